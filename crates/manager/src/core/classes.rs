//! Classes of nodes, which run the same packages at one price: their nodes, ranked by what is free.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use sublet_proto::package::{is_device, runs_on};
use sublet_proto::pool::Pool;
use sublet_proto::price::Prices;
use sublet_proto::pu::kind;
use sublet_proto::v1::{PackageInfo, Price};

use super::ids::{ClassKey, NodeKey, RackKey};
use super::locality::NodeRing;
use super::messages::ClientRequest;
use super::pools::{self, Pools};
use super::racks::{GroupedNodes, RackPool, Shifted, Spot};
#[cfg(any(test, debug_assertions))]
use super::resources::NodeCapacity;
use super::terms::LeaseTerms;
use super::weighing::{RequestWork, UnitOutcome, explain};

/// Most kinds of nodes and devices, which are looked through for each request.
pub const MAX_CLASSES: usize = 64;
/// Most classes in all: those of these kinds, and of the devices and interpreters that nodes have beside them.
pub(super) const MAX_ALL_CLASSES: usize = 1024;

/// Nodes by the number of workers that they have free.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    pub(super) nodes: GroupedNodes,
    /// Totals of each pool.
    totals: [Totals; pools::COUNT],
}

/// Totals over the nodes of a class.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    /// Workers that these nodes have free.
    pub(super) free: u64,
    /// Workers that these nodes, and the full ones, have in all.
    pub(super) capacity: u64,
    /// The largest node that was ever among them, and the most memory of one.
    pub(super) largest: u32,
    pub(super) most_memory_bytes: u64,
    /// Whether a node as large as either has gone, and no other has come since.
    has_shrunk: bool,
}

/// Counted resources of a node, and the pool that counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CountedResources {
    pub(super) pool: Pool,
    pub(super) workers: u32,
    pub(super) memory_bytes: u64,
}

impl Ranks {
    /// Moves a node as [`GroupedNodes::shift`] does, and keeps the totals.
    pub(super) fn shift(
        &mut self,
        node: NodeKey,
        from: Option<Spot>,
        to: Option<(RackPool, u32)>,
    ) -> Shifted {
        if let Some(spot) = from {
            let free = self.totals[spot.group().pool as usize].free;
            debug_assert!(u64::from(spot.rank()) <= free, "{node:?} at {spot:?}, of {free} free in its pool");
            self.totals[spot.group().pool as usize].free -= u64::from(spot.rank());
        }
        if let Some((group, rank)) = to {
            self.totals[group.pool as usize].free += u64::from(rank);
        }
        self.nodes.shift(node, from, to)
    }

    /// Replaces the counted resources of a node.
    pub(super) fn count(&mut self, before: Option<CountedResources>, now: Option<CountedResources>) {
        if let Some(CountedResources { pool, workers, memory_bytes }) = before {
            let totals = &mut self.totals[pool as usize];
            debug_assert!(
                u64::from(workers) <= totals.capacity && workers <= totals.largest,
                "{before:?} was not counted in {totals:?}"
            );
            totals.capacity -= u64::from(workers);
            totals.has_shrunk |= workers == totals.largest || memory_bytes == totals.most_memory_bytes;
        }
        if let Some(CountedResources { pool, workers, memory_bytes }) = now {
            let totals = &mut self.totals[pool as usize];
            totals.capacity += u64::from(workers);
            totals.has_shrunk &= workers < totals.largest || memory_bytes < totals.most_memory_bytes;
            totals.largest = totals.largest.max(workers);
            totals.most_memory_bytes = totals.most_memory_bytes.max(memory_bytes);
        }
    }

    /// Sums up the totals of some pools.
    pub(super) fn totals(&self, pools: Pools) -> Totals {
        let of = Pool::ALL.into_iter().filter(|&pool| pools.has(pool)).map(|pool| self.totals[pool as usize]);
        of.fold(Totals::default(), |sum, one| Totals {
            free: sum.free + one.free,
            capacity: sum.capacity + one.capacity,
            largest: sum.largest.max(one.largest),
            most_memory_bytes: sum.most_memory_bytes.max(one.most_memory_bytes),
            has_shrunk: sum.has_shrunk || one.has_shrunk,
        })
    }

    pub(super) fn has_capacity(&self, pool: Pool, workers: u32) -> bool {
        self.totals[pool as usize].free >= u64::from(workers)
    }
}

impl Totals {
    /// Tells whether a request is refused only because of current leases, as far as the totals show without a look at
    /// nodes.
    pub(super) fn are_merely_leased(&self, terms: &LeaseTerms) -> bool {
        let asked = u64::from(terms.workers);
        let together = if terms.max_nodes == 1 { terms.workers } else { terms.cores_together() };
        asked > self.free
            && asked <= self.capacity
            && together <= self.largest
            && terms.memory_of(terms.cores_together()) <= self.most_memory_bytes
    }

    /// Tells whether the request has to be on one node, and the totals do not exclude one: a node is large enough, or
    /// one for its workers and one for its memory.
    pub(super) fn may_be_on_one_node(&self, terms: &LeaseTerms) -> bool {
        terms.max_nodes == 1
            && !self.has_shrunk
            && terms.workers <= self.largest
            && terms.memory_bytes <= self.most_memory_bytes
    }
}

/// Nodes that run the same packages at one price, or a kind of device that nodes have.
#[derive(Debug)]
struct NodeClass {
    pu: String,
    architecture: String,
    price: Price,
    /// Lists for exclusive and for shared workers.
    ranks: [Ranks; 2],
    /// All nodes of the class, including those that take no leases.
    ring: NodeRing,
    /// Nodes of each rack that has a name.
    rings: HashMap<RackKey, NodeRing>,
}

/// The ranked lists of each class.
#[derive(Debug)]
pub(super) struct Classes {
    prices: Prices,
    known: Vec<NodeClass>,
}

/// A class in which a request can be placed, and the build of its package that is executed there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) class: ClassKey,
    pub(super) build: u32,
}

/// A node of a class, for a comparison with the lists of the class.
#[cfg(any(test, debug_assertions))]
pub(super) struct ListedNode {
    pub(super) pool: Pool,
    pub(super) rack: RackKey,
    pub(super) capacity: NodeCapacity,
    pub(super) free: NodeCapacity,
    pub(super) is_there: bool,
    pub(super) takes_leases: bool,
}

impl Classes {
    pub(super) fn new(prices: Prices) -> Classes {
        Classes { prices, known: Vec::new() }
    }

    /// The class of a node, or of a device, which is a processing unit of its own.
    pub(super) fn key(&mut self, pu: &str, architecture: &str) -> ClassKey {
        let at = self.find(pu, architecture).unwrap_or_else(|| {
            let pu = unit_of(pu, architecture);
            self.known.push(NodeClass {
                pu: pu.to_owned(),
                architecture: architecture.to_owned(),
                price: self.prices.of(pu),
                ranks: Default::default(),
                ring: NodeRing::default(),
                rings: HashMap::new(),
            });
            self.known.len() - 1
        });
        debug_assert!(self.known.len() <= usize::from(u16::MAX), "{} classes", self.known.len());
        #[expect(
            clippy::cast_possible_truncation,
            reason = "`MAX_ALL_CLASSES`, and few kinds of restored leases"
        )]
        let key = at as u16;
        ClassKey(key)
    }

    fn find(&self, pu: &str, architecture: &str) -> Option<usize> {
        let pu = unit_of(pu, architecture);
        self.known.iter().position(|class| class.pu == pu && class.architecture == architecture)
    }

    /// Whether a node's class is known, or may become so.
    pub(super) fn may_add(&self, pu: &str, architecture: &str) -> bool {
        self.known.len() < MAX_CLASSES || self.find(pu, architecture).is_some()
    }

    /// Whether the classes of a node's devices and interpreters are known, or may become so beside the node's own.
    pub(super) fn may_add_all<'names>(&self, pu: &str, more: impl Iterator<Item = &'names str>) -> bool {
        let added = more.filter(|architecture| self.find(pu, architecture).is_none()).count();
        added == 0 || self.known.len() + added < MAX_ALL_CLASSES
    }

    /// Returns the choices for a package on processing units of this kind or, if it is empty, on all for which the
    /// package has profiles, in no order.
    pub(super) fn fitting(&self, package: &PackageInfo, pu: &str) -> impl Iterator<Item = Choice> {
        let is_any = package.profiles.is_empty();
        let fits = move |class: &NodeClass| match pu {
            "" => is_any || package.profile(&class.pu).is_some(),
            pu => class.pu == pu,
        };
        // A restored lease shows only the kind of processing unit; nothing is placed in such a class.
        let wanted = move |class: &NodeClass| !class.architecture.is_empty() && fits(class);
        let build_for = move |class: &NodeClass| {
            let mut builds = (0..).zip(&package.builds);
            builds
                .find(|(_, build)| runs_on(&build.architecture, &class.architecture))
                .map(|(index, _)| index)
        };
        let classes = (0..).zip(&self.known).filter(move |(_, class)| wanted(class));
        classes.filter_map(move |(at, class)| Some(Choice { class: ClassKey(at), build: build_for(class)? }))
    }

    /// Sorts the choices, the best first.
    pub(super) fn rank(&self, choices: &mut [Choice], request: &ClientRequest, pools: Pools) {
        let LeaseTerms { shared, time_weight_permille, .. } = request.terms;
        choices.sort_by_cached_key(|choice| {
            let room = self.ranked(choice.class, shared).totals(pools);
            let work = self.work(request, choice.class);
            let room = Reverse((room.free, room.capacity));
            (work.score(time_weight_permille), work.second, choice.build, room)
        });
    }

    /// Returns the work that a request does in a second on this kind of processing unit.
    fn work(&self, request: &ClientRequest, class: ClassKey) -> RequestWork {
        let class = &self.known[usize::from(class.0)];
        let profile = request.package.profile(&class.pu);
        let terms = request.terms_by(profile).unwrap_or(request.terms);
        RequestWork::of(&terms, &class.price, profile.map(|profile| profile.speed_permille))
    }

    /// Explains the choice; `taken` is the index of the chosen class among `choices`, which were tried in this order.
    pub(super) fn explain(&self, choices: &[Choice], request: &ClientRequest, taken: usize) -> String {
        let kinds = choices.iter().enumerate().map(|(number, choice)| {
            let fate = match number.cmp(&taken) {
                Ordering::Less => UnitOutcome::Full,
                Ordering::Equal => UnitOutcome::Taken,
                Ordering::Greater => UnitOutcome::Left,
            };
            (self.pu(choice.class), self.work(request, choice.class), fate)
        });
        explain(kinds, request.terms.time_weight_permille)
    }

    fn get(&self, class: ClassKey) -> Option<&NodeClass> {
        self.known.get(usize::from(class.0))
    }

    pub(super) fn pu(&self, class: ClassKey) -> &str {
        self.get(class).map_or("", |class| &class.pu)
    }

    /// Returns the prices of leases, by the kind of processing unit.
    pub(super) fn prices(&self) -> &Prices {
        &self.prices
    }

    pub(super) fn price(&self, class: ClassKey) -> Price {
        self.get(class).map_or(self.prices.default, |class| class.price)
    }

    /// Tells whether any node takes leases for such workers, full or not.
    pub(super) fn has_nodes(&self, request: &ClientRequest) -> bool {
        let ClientRequest { package, pu, terms, locality, .. } = request;
        let totals = |choice: Choice| self.ranked(choice.class, terms.shared).totals(locality.pools);
        self.fitting(package, pu).any(|choice| totals(choice).capacity > 0)
    }

    pub(super) fn name(&self, class: ClassKey) -> String {
        self.get(class).map(|class| class_name(&class.pu, &class.architecture)).unwrap_or_default()
    }

    pub(super) fn ranks(&mut self, class: ClassKey, shared: bool) -> &mut Ranks {
        &mut self.known[usize::from(class.0)].ranks[usize::from(shared)]
    }

    /// Returns the ring in which leases of the same key begin their search: of a rack, or of the class.
    pub(super) fn ring(&self, class: ClassKey, rack: Option<RackKey>) -> Option<&NodeRing> {
        let class = &self.known[usize::from(class.0)];
        rack.map_or(Some(&class.ring), |rack| class.rings.get(&rack))
    }

    /// Lets the nodes of a class meet one more.
    pub(super) fn meet(&mut self, class: ClassKey, rack: RackKey, name: &str, node: NodeKey) {
        let class = &mut self.known[usize::from(class.0)];
        class.ring.insert(name, node);
        if rack != RackKey::NONE {
            class.rings.entry(rack).or_default().insert(name, node);
        }
    }

    /// Removes a node from the class.
    pub(super) fn part(&mut self, class: ClassKey, rack: RackKey, name: &str, node: NodeKey) {
        let class = &mut self.known[usize::from(class.0)];
        class.ring.remove(name, node);
        if let Some(ring) = class.rings.get_mut(&rack) {
            ring.remove(name, node);
            if ring.is_empty() {
                class.rings.remove(&rack);
            }
        }
    }

    pub(super) fn ranked(&self, class: ClassKey, shared: bool) -> &Ranks {
        &self.known[usize::from(class.0)].ranks[usize::from(shared)]
    }

    /// Panics unless every class has exactly its nodes, at the ranks of their free resources.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn assert_consistent(&self, members: impl Fn(ClassKey) -> Vec<ListedNode>) {
        for (at, class) in (0..).zip(&self.known) {
            let members = members(ClassKey(at));
            for shared in [false, true] {
                let ranks = &class.ranks[usize::from(shared)];
                let mut count = 0;
                for pool in Pool::ALL {
                    let of_pool = || members.iter().filter(|node| node.is_there && node.pool == pool);
                    let open = of_pool().filter(|node| node.takes_leases);
                    let free: Vec<u32> = open.map(|node| node.free.workers(shared)).collect();
                    let all = of_pool().map(|node| u64::from(node.capacity.workers(shared)));
                    let Totals { free: counted, capacity, .. } = ranks.totals[pool as usize];
                    let sum = free.iter().copied().map(u64::from).sum();
                    assert_eq!((counted, capacity), (sum, all.sum()), "{pool} {shared}");
                    count += free.iter().filter(|free| **free > 0).count();
                }
                assert_eq!(ranks.nodes.len(), count);
            }
            assert_eq!(class.ring.len(), members.len());
            let of_racks = members.iter().filter(|node| node.rack != RackKey::NONE);
            assert_eq!(class.rings.values().map(NodeRing::len).sum::<usize>(), of_racks.count());
        }
    }
}

/// A device is its own processing unit.
pub(super) fn class_name(pu: &str, architecture: &str) -> String {
    if pu == architecture { pu.to_owned() } else { format!("{pu}/{architecture}") }
}

/// The kind of processing unit that a node of this architecture, or a device, is.
pub(super) fn unit_of<'name>(pu: &'name str, architecture: &'name str) -> &'name str {
    if is_device(architecture) { architecture } else { kind(pu) }
}

/// Tells whether processing units of this kind, or of any if it is empty, can run builds for this architecture.
pub(crate) fn may_run_on(pu: &str, architecture: &str) -> bool {
    match is_device(pu) {
        true => architecture == pu,
        false => pu.is_empty() || !is_device(architecture),
    }
}

/// The kind of processing unit of a node that names none.
pub const DEFAULT_PU: &str = sublet_proto::pu::PROCESSOR;
