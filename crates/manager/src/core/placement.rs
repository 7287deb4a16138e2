//! Places leases: ranked lists of nodes for each class, with random choice among the best (rFaaS-preprint 3.1),
//! by rack and by pool (Scad 4.1.1).
//!
//! If a package has several builds, or a build runs on nodes of several classes, the chosen class has enough free and
//! is where the work is cheapest, or soonest done, as the request weighs the two ([`weighing`](super::weighing)). Among
//! equal classes the one whose build comes first in the package is chosen, and then the one with the most free.
//!
//! Nodes of a class are ranked by their free resources. A lease goes to a node of the lowest rank where it fits, so
//! that large leases still fit somewhere; the choice within that rank is random, so that the leases of many clients,
//! and of many managers, spread.
//!
//! A lease is placed beside the nodes it communicates with; else in the same rack, as far as that has enough free; else
//! in any rack, beginning with the one that has the most free. The pools are searched in the lease's order ([`pools`]),
//! and in each pool first the nodes where leases with the same key have run, then the others by rank.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use sublet_proto::package::{is_device, is_interpreter, runs_on};
use sublet_proto::pool::Pool;
use sublet_proto::price::Prices;
use sublet_proto::pu::kind;
use sublet_proto::v1::{Needs, PackageInfo, Price};
use sublet_proto::{Code, Error};

use super::chance::Chance;
use super::ids::{ClassKey, NodeKey, RackKey};
use super::locality::NodeRing;
use super::messages::ClientRequest;
use super::nodes::{LeaseResources, ManagedNode, Nodes};
use super::pools::{self, Pools};
use super::racks::{GroupedNodes, Measure, RackPool, Shifted, Spot};
use super::ranked::merged;
use super::segments;
use super::terms::LeaseTerms;
use super::weighing::{RequestWork, UnitOutcome, explain};
use super::{Level, global};

/// Most kinds of nodes and devices, which are looked through for each request.
pub const MAX_CLASSES: usize = 64;
/// Most nodes of one request.
pub const MAX_PARTS: usize = 1024;

/// Nodes by the number of workers that they have free.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    nodes: GroupedNodes,
    /// Totals of each pool.
    totals: [Totals; pools::COUNT],
}

/// Totals over the nodes of a class.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    /// Workers that these nodes have free.
    free: u64,
    /// Workers that these nodes, and the full ones, have in all.
    capacity: u64,
    /// The largest node that was ever among them, and the most memory of one.
    largest: u32,
    most_memory_bytes: u64,
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
    fn totals(&self, pools: Pools) -> Totals {
        let of = Pool::ALL.into_iter().filter(|&pool| pools.has(pool)).map(|pool| self.totals[pool as usize]);
        of.fold(Totals::default(), |sum, one| Totals {
            free: sum.free + one.free,
            capacity: sum.capacity + one.capacity,
            largest: sum.largest.max(one.largest),
            most_memory_bytes: sum.most_memory_bytes.max(one.most_memory_bytes),
            has_shrunk: sum.has_shrunk || one.has_shrunk,
        })
    }

    fn has_capacity(&self, pool: Pool, workers: u32) -> bool {
        self.totals[pool as usize].free >= u64::from(workers)
    }
}

impl Totals {
    /// Tells whether a request is refused only because of current leases, as far as the totals show without a look at
    /// nodes.
    fn are_merely_leased(&self, terms: &LeaseTerms) -> bool {
        let asked = u64::from(terms.workers);
        let one_node = terms.max_nodes != 1 || terms.workers <= self.largest;
        asked > self.free
            && asked <= self.capacity
            && one_node
            && terms.memory_of(1) <= self.most_memory_bytes
    }

    /// Tells whether the request has to be on one node, and the totals do not exclude one: a node is large enough, or
    /// one for its workers and one for its memory.
    fn may_be_on_one_node(&self, terms: &LeaseTerms) -> bool {
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

/// Placement of a request.
#[derive(Debug)]
pub(super) struct Placement {
    pub(super) choice: Choice,
    pub(super) parts: Vec<PlacementPart>,
    /// Reason for this kind of processing unit, if there were several.
    pub(super) why: String,
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
        ClassKey(at as u16)
    }

    fn find(&self, pu: &str, architecture: &str) -> Option<usize> {
        let pu = unit_of(pu, architecture);
        self.known.iter().position(|class| class.pu == pu && class.architecture == architecture)
    }

    /// Whether a node's class is known, or may become so.
    pub(super) fn may_add(&self, pu: &str, architecture: &str) -> bool {
        self.known.len() < MAX_CLASSES || self.find(pu, architecture).is_some()
    }

    /// Returns the choices for a package on processing units of this kind or, if it is empty, on all for which the
    /// package has profiles, in no order.
    fn fitting(&self, package: &PackageInfo, pu: &str) -> impl Iterator<Item = Choice> {
        let is_any = package.profiles.is_empty();
        let fits = move |class: &NodeClass| match pu {
            "" => is_any || package.profile(&class.pu).is_some(),
            pu => class.pu == pu,
        };
        // A restored lease shows only the kind of processing unit; nothing is placed in such a class.
        let wanted = move |class: &NodeClass| !class.architecture.is_empty() && fits(class);
        let build_for = move |class: &NodeClass| {
            package.builds.iter().position(|build| runs_on(&build.architecture, &class.architecture))
        };
        let classes = self.known.iter().enumerate().filter(move |(_, class)| wanted(class));
        classes.filter_map(move |(at, class)| {
            Some(Choice { class: ClassKey(at as u16), build: build_for(class)? as u32 })
        })
    }

    /// Sorts the choices, the best first.
    fn rank(&self, choices: &mut [Choice], request: &ClientRequest, pools: Pools) {
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
    fn explain(&self, choices: &[Choice], request: &ClientRequest, taken: usize) -> String {
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
    fn ring(&self, class: ClassKey, rack: Option<RackKey>) -> Option<&NodeRing> {
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

    fn ranked(&self, class: ClassKey, shared: bool) -> &Ranks {
        &self.known[usize::from(class.0)].ranks[usize::from(shared)]
    }

    /// Panics unless every class has exactly its nodes, at the ranks of their free resources.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn assert_consistent(&self, nodes: &Nodes) {
        for (at, class) in self.known.iter().enumerate() {
            let of_class = || nodes.iter().filter(|(_, node)| node.seats.has(ClassKey(at as u16)));
            for shared in [false, true] {
                let ranks = &class.ranks[usize::from(shared)];
                let mut count = 0;
                for pool in Pool::ALL {
                    let of_pool = || of_class().filter(|(_, node)| node.is_there() && node.pool == pool);
                    let open = of_pool().filter(|(_, node)| node.takes_leases());
                    let free: Vec<u32> = open.map(|(_, node)| node.free().workers(shared)).collect();
                    let all = of_pool().map(|(_, node)| u64::from(node.capacity.workers(shared)));
                    let Totals { free: counted, capacity, .. } = ranks.totals[pool as usize];
                    let sum = free.iter().copied().map(u64::from).sum();
                    assert_eq!((counted, capacity), (sum, all.sum()), "{pool} {shared}");
                    count += free.iter().filter(|free| **free > 0).count();
                }
                assert_eq!(ranks.nodes.len(), count);
            }
            assert_eq!(class.ring.len(), of_class().count());
            let of_racks = of_class().filter(|(_, node)| node.rack != RackKey::NONE);
            assert_eq!(class.rings.values().map(NodeRing::len).sum::<usize>(), of_racks.count());
        }
    }
}

/// A device is its own processing unit.
fn class_name(pu: &str, architecture: &str) -> String {
    if pu == architecture { pu.to_owned() } else { format!("{pu}/{architecture}") }
}

/// The kind of processing unit that a node of this architecture, or a device, is.
fn unit_of<'name>(pu: &'name str, architecture: &'name str) -> &'name str {
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

/// Workers of a request that are on one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacementPart {
    pub(super) node: NodeKey,
    pub(super) amount: LeaseResources,
}

/// Finds nodes of one class and in these pools for all of a request's workers, or says why there are none. Interpreters execute
/// one function at a time: there each worker is a lease, and a process, of its own.
pub(super) fn place(
    nodes: &Nodes,
    request: &ClientRequest,
    pools: Pools,
    chance: &mut Chance,
) -> Result<Placement, Error> {
    let search = Search { nodes, request, pools };
    if !request.needs.is_empty() {
        search.check_needs()?;
    }
    if request.terms.is_segment() {
        let placed = segments::place(&search, chance);
        return placed.map(|(choice, part)| Placement { choice, parts: vec![part], why: String::new() });
    }
    let placed = search.place_together(chance)?;
    let choice = placed.choice;
    let is_single = request
        .package
        .builds
        .get(choice.build as usize)
        .is_some_and(|build| is_interpreter(&build.architecture));
    if !is_single {
        return Ok(placed);
    }
    let ClientRequest { terms, .. } = request;
    if terms.workers as usize > MAX_PARTS {
        let message = format!(
            "{} cores asked, of functions of an interpreter one request has at most {MAX_PARTS}",
            terms.workers
        );
        return Err(Error::new(Code::InsufficientResources, message));
    }
    let alone = |part: PlacementPart| {
        let LeaseResources { workers, shared, memory_bytes } = part.amount;
        let amount =
            LeaseResources { workers: 1, shared, memory_bytes: memory_bytes / u64::from(workers.max(1)) };
        (0..workers).map(move |_| PlacementPart { amount, ..part })
    };
    Ok(Placement { parts: placed.parts.into_iter().flat_map(alone).collect(), ..placed })
}

/// A search: the nodes, the request, and the allowed pools.
pub(super) struct Search<'all> {
    pub(super) nodes: &'all Nodes,
    pub(super) request: &'all ClientRequest,
    /// Pools in which the request may be placed.
    pub(super) pools: Pools,
}

/// Criteria by which [`Search::one`] finds a node.
pub(super) struct Steps<Fits, Warm, Any> {
    /// Whether a node has enough free.
    pub(super) fits: Fits,
    /// Finds a node that has run leases with the same key, in a rack or anywhere, and in a pool.
    pub(super) warm: Warm,
    /// Finds any node of a group.
    pub(super) any: Any,
    /// Measure by which racks are compared.
    pub(super) measure: Measure,
}

impl Search<'_> {
    /// Finds one node for all workers (Scad 4.1.1). It is a neighbour (step 3), else a node of a neighbour's rack (step
    /// 2), else a node of any rack. Each rack is searched pool by pool, first for a warm node (steps 1 and 4), then for
    /// one with enough free (step 5).
    pub(super) fn one<Fits, Warm, Any>(
        &self,
        steps: &Steps<Fits, Warm, Any>,
        chance: &mut Chance,
    ) -> Option<NodeKey>
    where
        Fits: Fn(&ManagedNode) -> bool,
        Warm: Fn(Option<RackKey>, Pool) -> Option<NodeKey>,
        Any: Fn(RackPool, &mut Chance) -> Option<NodeKey>,
    {
        let Search { nodes, request: ClientRequest { terms, locality, .. }, pools } = *self;
        let fits = |node: &ManagedNode| pools.has(node.pool) && (steps.fits)(node);
        let near = || locality.near().filter_map(|name| nodes.find(name));
        if let Some(node) = near().find(|&node| nodes.get(node).is_some_and(fits)) {
            return Some(node);
        }
        let order = pools.in_order(terms);
        for rack in self.racks() {
            for pool in order.clone() {
                let found =
                    (steps.warm)(Some(rack), pool).or_else(|| (steps.any)(RackPool { rack, pool }, chance));
                if found.is_some() {
                    return found;
                }
            }
        }
        for pool in order {
            if let Some(node) = (steps.warm)(None, pool) {
                return Some(node);
            }
            for rack in nodes.racks.with_most_capacity(steps.measure, chance) {
                if let Some(node) = (steps.any)(RackPool { rack, pool }, chance) {
                    return Some(node);
                }
            }
        }
        None
    }

    /// Checks that a node lends all that the request needs, whatever it has free.
    #[cold]
    fn check_needs(&self) -> Result<(), Error> {
        let needs = &self.request.needs;
        let there = || self.nodes.iter().map(|(_, node)| node).filter(|node| node.is_there());
        // Without any node the refusal is that of every request.
        if there().next().is_none() || there().any(|node| node.lacks(needs).is_none()) {
            return Ok(());
        }
        let none_lends = |part: &Needs| there().all(|node| node.lacks(part).is_some());
        let parts = needs.parts();
        let message = match parts.iter().find(|(part, _)| none_lends(part)) {
            Some((_, what)) => format!("no node lends {what}"),
            None => {
                let all: Vec<_> = parts.into_iter().map(|(_, what)| what).collect();
                format!("no node lends all of {}", all.join(", "))
            }
        };
        Err(Error::new(Code::InsufficientResources, message))
    }

    /// Returns the racks of the neighbours, each once.
    fn racks(&self) -> Vec<RackKey> {
        let mut racks = Vec::new();
        for name in self.request.locality.near() {
            let node = self.nodes.find(name).and_then(|node| self.nodes.get(node));
            let rack = node.map_or(RackKey::NONE, |node| node.rack);
            if rack != RackKey::NONE && !racks.contains(&rack) {
                racks.push(rack);
            }
        }
        racks
    }

    /// Places a request in as few parts as possible.
    fn place_together(&self, chance: &mut Chance) -> Result<Placement, Error> {
        let Search { nodes, request, pools } = *self;
        let ClientRequest { package, pu, locality, .. } = request;
        if let Some(node) = &locality.only {
            let (choice, parts) = self.place_on(node)?;
            return Ok(Placement { choice, parts, why: String::new() });
        }
        let mut fitting = nodes.classes.fitting(package, pu);
        match (fitting.next(), fitting.next()) {
            (None, _) => Err(no_class(package, pu)),
            (Some(choice), None) => {
                let parts = self.place_by(choice, chance)?;
                Ok(Placement { choice, parts, why: String::new() })
            }
            (Some(one), Some(other)) => {
                let mut choices: Vec<_> = [one, other].into_iter().chain(fitting).collect();
                nodes.classes.rank(&mut choices, request, pools);
                self.place_in_first(&choices, chance)
            }
        }
    }

    /// Places a request on this node only.
    fn place_on(&self, name: &str) -> Result<(Choice, Vec<PlacementPart>), Error> {
        let Search { nodes, request: ClientRequest { package, pu, terms, .. }, .. } = *self;
        let gone = || Error::new(Code::InsufficientResources, format!("there is no node {name}"));
        let key = nodes.find(name).ok_or_else(gone)?;
        let node = nodes.get(key).ok_or_else(gone)?;
        if let Some(what) = node.lacks(&self.request.needs) {
            let message = format!("node {name} does not lend {what}");
            return Err(Error::new(Code::InsufficientResources, message));
        }
        let choices = nodes.classes.fitting(package, pu).filter(|choice| node.seats.has(choice.class));
        let choice = choices.min_by_key(|choice| choice.build).ok_or_else(|| {
            let message = format!("package {} has no build for the processor of node {name}", package.name);
            Error::new(Code::InsufficientResources, message)
        })?;
        let amount = amount(terms, terms.workers);
        if self.fits(node, choice.class, amount) {
            return Ok((choice, vec![PlacementPart { node: key, amount }]));
        }
        let (free, LeaseResources { workers, memory_bytes, .. }) = (node.free(), amount);
        let message = format!(
            "{workers} cores with {memory_bytes} bytes asked on node {name}, which has {} with {} left",
            free.workers(terms.shared),
            free.memory_bytes
        );
        Err(Error::new(Code::NoCapacity, message))
    }

    /// Tells whether a node of this class has enough free for the request.
    fn fits(&self, node: &ManagedNode, class: ClassKey, amount: LeaseResources) -> bool {
        let free = node.free();
        node.takes_leases()
            && node.seats.has(class)
            && free.workers(amount.shared) >= amount.workers
            && free.memory_bytes >= amount.memory_bytes
            && node.may_take(self.request)
    }

    /// Places a request in the first of several classes that has enough free for all of it.
    fn place_in_first(&self, choices: &[Choice], chance: &mut Chance) -> Result<Placement, Error> {
        let mut refusals = Vec::new();
        for (number, &choice) in choices.iter().enumerate() {
            match self.place_by(choice, chance) {
                Ok(parts) => {
                    let why = self.nodes.classes.explain(choices, self.request, number);
                    return Ok(Placement { choice, parts, why });
                }
                Err(error) => refusals.push(error),
            }
        }
        Err(every_class(self.nodes, choices, &refusals))
    }

    /// Places a request with the memory of the package's profile, unless the request names its own.
    fn place_by(&self, choice: Choice, chance: &mut Chance) -> Result<Vec<PlacementPart>, Error> {
        let Search { nodes, request, pools } = *self;
        let profile = request.package.profile(nodes.classes.pu(choice.class));
        match request.terms_by(profile) {
            None => self.place_in(choice.class, chance),
            Some(terms) => {
                let request = &ClientRequest { terms, ..request.clone() };
                Search { nodes, request, pools }.place_in(choice.class, chance)
            }
        }
    }

    fn place_in(&self, class: ClassKey, chance: &mut Chance) -> Result<Vec<PlacementPart>, Error> {
        if let Some(part) = self.on_one_node(class, chance) {
            return Ok(vec![part]);
        }
        if self.request.terms.max_nodes != 1
            && let Some(parts) = self.on_several_nodes(class, chance)
        {
            return Ok(parts);
        }
        match self.nodes.level {
            Level::Rack => Err(self.refusal(class)),
            Level::Global => Err(global::refusal(self, class)),
        }
    }

    fn on_one_node(&self, class: ClassKey, chance: &mut Chance) -> Option<PlacementPart> {
        let Search { nodes, request: ClientRequest { terms, locality, .. }, pools } = *self;
        let (amount, ranks) = (amount(terms, terms.workers), nodes.classes.ranked(class, terms.shared));
        if !Pool::ALL.into_iter().any(|pool| pools.has(pool) && ranks.has_capacity(pool, terms.workers)) {
            return None;
        }
        let fits = |node: &ManagedNode| self.fits(node, class, amount);
        let warm = |rack, pool| {
            let ring = nodes.classes.ring(class, rack).filter(|_| ranks.has_capacity(pool, terms.workers))?;
            let is_of_pool = |node: &NodeKey| nodes.get(*node).is_some_and(|node| node.pool == pool);
            locality.warm(ring, is_of_pool).find(|node| nodes.get(*node).is_some_and(fits))
        };
        let any = |group: RackPool, chance: &mut Chance| {
            let has_memory = |node: &ManagedNode| node.free().memory_bytes >= amount.memory_bytes;
            let fits =
                |node| nodes.get(node).is_some_and(|node| has_memory(node) && node.may_take(self.request));
            let list = ranks.nodes.list(group).filter(|_| ranks.has_capacity(group.pool, terms.workers));
            list.and_then(|list| list.first_fit(terms.workers, chance, fits))
        };
        let node = self.one(&Steps { fits, warm, any, measure: Measure::Workers }, chance)?;
        debug_assert!(
            nodes.get(node).is_some_and(|node| self.fits(node, class, amount) && pools.has(node.pool)),
            "{amount:?} was placed on {:?}",
            nodes.get(node)
        );
        Some(PlacementPart { node, amount })
    }

    /// Searches the neighbours' racks and then all racks, in the first pool, then in the first two, and so on, until
    /// enough is free. On the level above racks all parts go to one rack, the one with the most free first.
    fn on_several_nodes(&self, class: ClassKey, chance: &mut Chance) -> Option<Vec<PlacementPart>> {
        let Search { nodes, request: ClientRequest { terms, .. }, pools } = *self;
        let together: Vec<Vec<RackKey>> = match nodes.level {
            Level::Rack => vec![self.racks(), nodes.racks.keys().collect()],
            Level::Global => {
                nodes.racks.with_most_capacity(Measure::Workers, chance).map(|rack| vec![rack]).collect()
            }
        };
        for racks in &together {
            let mut within = Vec::new();
            for pool in pools.in_order(terms) {
                within.extend(racks.iter().map(|&rack| RackPool { rack, pool }));
                let found = self.on_several_of(class, &within);
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }

    /// Finds the fewest nodes of these groups, beginning with those that have the most free.
    fn on_several_of(&self, class: ClassKey, groups: &[RackPool]) -> Option<Vec<PlacementPart>> {
        let Search { nodes, request: ClientRequest { terms, .. }, .. } = *self;
        let most = if terms.max_nodes == 0 { MAX_PARTS } else { terms.max_nodes as usize };
        let (mut parts, mut left) = (Vec::new(), terms.workers);
        let ranks = nodes.classes.ranked(class, terms.shared);
        let pools = groups.iter().fold(Pools::NONE, |pools, group| pools.with(group.pool));
        if u64::from(left) > ranks.totals(pools).free {
            return None;
        }
        for node in merged(groups.iter().filter_map(|&group| ranks.nodes.list(group))) {
            if left == 0 || parts.len() == most {
                break;
            }
            let known = nodes.get(node).filter(|node| node.may_take(self.request));
            let Some(free) = known.map(ManagedNode::free) else { continue };
            let most_of_one = match nodes.level {
                Level::Rack => sublet_proto::limits::MAX_CORES,
                Level::Global => u32::MAX,
            };
            let workers = free.workers(terms.shared).min(left).min(most_of_one);
            let amount = amount(terms, workers);
            if workers > 0 && amount.memory_bytes <= free.memory_bytes {
                parts.push(PlacementPart { node, amount });
                left -= workers;
            }
        }
        debug_assert!(parts.len() <= most, "{} parts, at most {most}", parts.len());
        (left == 0).then_some(parts)
    }

    /// Builds the refusal when no node takes the workers, with the amounts that exist and are free.
    #[cold]
    fn refusal(&self, class: ClassKey) -> Error {
        let Search { nodes, request, pools } = *self;
        let terms = &request.terms;
        let (kind, place) = (if terms.shared { "shared places" } else { "cores" }, pools.place());
        let insufficient =
            |message: String| Error::new(Code::InsufficientResources, format!("{message}{place}"));
        let totals = nodes.classes.ranked(class, terms.shared).totals(pools);
        let (asked, free) = (terms.workers, totals.free);
        if !request.needs.is_empty() {
            return self.refusal_with_needs(class);
        }
        let full = |free, all| {
            Error::new(Code::NoCapacity, format!("{asked} {kind} asked, {free} of {all} free{place}"))
        };
        // The refusals that are frequent cost no look at the nodes.
        if totals.are_merely_leased(terms) {
            return full(free, totals.capacity);
        }
        let most = nodes.classes.ranked(class, terms.shared).nodes.highest(pools);
        if totals.may_be_on_one_node(terms) && most < asked {
            let all = totals.capacity;
            let message = format!(
                "{asked} {kind} of one node asked, {free} of {all} are free, and at most {most} on a node{place}"
            );
            return Error::new(Code::NoCapacity, message);
        }
        let is_there =
            |node: &&ManagedNode| node.seats.has(class) && node.is_there() && nodes.may_be_in(node, pools);
        let there = nodes.iter().map(|(_, node)| node).filter(is_there);
        let there = there.fold(NodeTotals::default(), |there, node| there.and(node, terms.shared));
        let NodeTotals { nodes: 1.., all, largest, most_memory, free_memory } = there else {
            return insufficient(format!("no node of {} is there", nodes.classes.name(class)));
        };
        if terms.max_nodes == 1 && asked > largest {
            return insufficient(format!("{asked} {kind} asked, the largest node has {largest}"));
        }
        if u64::from(asked) > all {
            return insufficient(format!("{asked} {kind} asked, all nodes together have {all}"));
        }
        let (memory, one) = (terms.memory_bytes, terms.memory_of(1));
        if one > most_memory {
            return insufficient(format!(
                "{memory} bytes of memory asked, {one} for each worker, the largest node has {most_memory}"
            ));
        }
        if terms.max_nodes == 1 && memory > most_memory {
            return insufficient(format!(
                "{memory} bytes of memory asked, the largest node has {most_memory}"
            ));
        }
        if u64::from(asked) > free {
            return full(free, all);
        }
        let message = format!(
            "{asked} {kind} and {memory} bytes of memory asked, {free} of {all} {kind} are free, and at most {free_memory} bytes on a node{place}"
        );
        Error::new(Code::NoCapacity, message)
    }
}

impl Search<'_> {
    /// Builds the refusal of a request that only some nodes can take, by what they lend.
    #[cold]
    fn refusal_with_needs(&self, class: ClassKey) -> Error {
        let Search { nodes, request, pools } = *self;
        let terms = &request.terms;
        let lends = |node: &&ManagedNode| {
            node.seats.has(class) && node.is_there() && node.lacks(&request.needs).is_none()
        };
        let lending = nodes.iter().map(|(_, node)| node).filter(lends);
        let lending = lending.filter(|node| nodes.may_be_in(node, pools));
        let (mut all, mut free) = (0u64, 0u64);
        for node in lending {
            all += u64::from(node.capacity.workers(terms.shared));
            free += u64::from(node.free().workers(terms.shared));
        }
        let kind = if terms.shared { "shared places" } else { "cores" };
        let (asked, place) = (terms.workers, pools.place());
        let of = "nodes that offer the requested folders, temporary space and isolation";
        let message = format!(
            "{asked} {kind} and {} bytes of memory asked of {of}, which have {all} {kind}, {free} of them free{place}",
            terms.memory_bytes
        );
        let code = if u64::from(asked) > all { Code::InsufficientResources } else { Code::NoCapacity };
        Error::new(code, message)
    }
}

/// Resources of nodes: totals, and maxima over one node.
#[derive(Default)]
struct NodeTotals {
    nodes: u32,
    /// Workers of all nodes.
    all: u64,
    /// Workers of the largest node.
    largest: u32,
    /// Memory of the largest node, and of the node with the most free.
    most_memory: u64,
    free_memory: u64,
}

impl NodeTotals {
    fn and(self, node: &ManagedNode, shared: bool) -> NodeTotals {
        let workers = node.capacity.workers(shared);
        NodeTotals {
            nodes: self.nodes.saturating_add(1),
            all: self.all + u64::from(workers),
            largest: self.largest.max(workers),
            most_memory: self.most_memory.max(node.capacity.memory_bytes),
            free_memory: self.free_memory.max(node.free().memory_bytes),
        }
    }
}

/// Builds the refusal when there has never been a node for any of a package's builds.
#[cold]
fn no_class(package: &PackageInfo, pu: &str) -> Error {
    let architectures = package.builds.iter().map(|build| build.architecture.as_str());
    let fitting = architectures.filter(|architecture| may_run_on(pu, architecture));
    let names: Vec<_> =
        fitting.map(|architecture| class_name(unit_of(pu, architecture), architecture)).collect();
    let message = format!("no node of {} is there", names.join(" or "));
    Error::new(Code::InsufficientResources, message)
}

/// Refusal when none of several classes takes the workers; its code says whether one of them could at another time.
#[cold]
fn every_class(nodes: &Nodes, choices: &[Choice], refusals: &[Error]) -> Error {
    let may_at_another_time = refusals.iter().any(|error| error.code == Code::NoCapacity);
    let code = if may_at_another_time { Code::NoCapacity } else { Code::InsufficientResources };
    let said = choices.iter().zip(refusals);
    let said: Vec<_> = said
        .map(|(choice, error)| format!("{}: {}", nodes.classes.name(choice.class), error.message))
        .collect();
    Error::new(code, said.join("; "))
}

fn amount(terms: &LeaseTerms, workers: u32) -> LeaseResources {
    LeaseResources { workers, shared: terms.shared, memory_bytes: terms.memory_of(workers) }
}
