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

mod rack_refusal;
mod search;
mod segments;

use sublet_proto::package::is_interpreter;
use sublet_proto::pool::Pool;
use sublet_proto::v1::{Needs, PackageInfo};
use sublet_proto::{Code, Error, version};

use super::chance::Chance;
use super::classes::{Choice, class_name, may_run_on, unit_of};
use super::ids::{ClassKey, NodeKey, RackKey};
use super::messages::ClientRequest;
use super::nodes::{Level, ManagedNode, Nodes};
use super::pools::Pools;
use super::racks::{Measure, RackPool};
use super::ranked::merged;
use super::resources::LeaseResources;
use super::terms::LeaseTerms;
use search::{Search, Steps};

pub(super) use search::PlacementPart;

/// Most nodes of one request.
pub const MAX_PARTS: usize = 1024;

/// Placement of a request.
#[derive(Debug)]
pub(super) struct Placement {
    pub(super) choice: Choice,
    pub(super) parts: Vec<PlacementPart>,
    /// Reason for this kind of processing unit, if there were several.
    pub(super) why: String,
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
    if request.terms.cores_together() > 1 {
        search.check_cores_together()?;
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
    let each = terms.cores_together();
    let workers = terms.workers / each;
    if workers > 1 && !request.needs.devices.is_empty() {
        let message = format!(
            "{workers} workers with devices asked, and workers of an interpreter are processes of their own: ask for a lease \
             for each, or for one worker with several cores"
        );
        return Err(Error::new(Code::InvalidArgument, message));
    }
    if workers as usize > MAX_PARTS {
        let message = format!(
            "{workers} workers asked, of functions of an interpreter one request has at most {MAX_PARTS}"
        );
        return Err(Error::new(Code::InsufficientResources, message));
    }
    let alone = |part: PlacementPart| {
        let LeaseResources { workers, memory_bytes, .. } = part.amount;
        let parts = workers / each;
        let memory_bytes = memory_bytes / u64::from(parts.max(1));
        let amount = LeaseResources { workers: each, memory_bytes, ..part.amount };
        (0..parts).map(move |_| PlacementPart { amount, ..part })
    };
    Ok(Placement { parts: placed.parts.into_iter().flat_map(alone).collect(), ..placed })
}

impl Search<'_> {
    /// Checks that a node lends all that the request needs, whatever it has free.
    #[cold]
    fn check_needs(&self) -> Result<(), Error> {
        let needs = &self.request.needs;
        let there = || self.nodes.iter().map(|(_, node)| node).filter(|node| node.is_there());
        // Without any node the refusal is that of every request.
        if there().next().is_none() || there().any(|node| node.lacks(needs).is_none()) {
            return Ok(());
        }
        if there().all(|node| node.ignores(needs)) {
            let what = "secrets, folders, temporary space and isolations";
            version::check_messages("every agent", 0, what, version::NEEDS)?;
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

    /// Checks that the agent of a node gives workers several cores, whatever the node has free.
    #[cold]
    fn check_cores_together(&self) -> Result<(), Error> {
        let mut there = self.nodes.iter().map(|(_, node)| node).filter(|node| node.is_there()).peekable();
        // Without any node the refusal is that of every request.
        if there.peek().is_none() || there.any(|node| node.gives_cores_to(&self.request.terms)) {
            return Ok(());
        }
        version::check_messages("every agent", 0, "workers with several cores", version::WORKER_CORES)
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
        if node.ignores(&self.request.needs) {
            let agent = format!("the agent of node {name}");
            let what = "secrets, folders, temporary space and isolations";
            version::check_messages(&agent, node.description.messages, what, version::NEEDS)?;
        }
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
            return Ok((choice, vec![self.part(key, amount)]));
        }
        if let Some(busy) = node.busy_devices(&self.request.needs) {
            return Err(Error::new(Code::NoCapacity, format!("{busy} on node {name}")));
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
        // Devices belong to one process.
        if self.request.terms.max_nodes != 1
            && self.request.needs.devices.is_empty()
            && let Some(parts) = self.on_several_nodes(class, chance)
        {
            return Ok(parts);
        }
        match self.nodes.level {
            Level::Rack => Err(self.refusal(class)),
            Level::Global => Err(rack_refusal::refusal(self, class)),
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
        Some(self.part(node, amount))
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
            let workers = workers - workers % terms.cores_together();
            let amount = amount(terms, workers);
            if workers > 0 && amount.memory_bytes <= free.memory_bytes {
                parts.push(self.part(node, amount));
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
        if terms.cores_together() > largest.max(1) {
            let each = terms.cores_together();
            return insufficient(format!(
                "{each} cores of one node asked for each worker, the largest node has {largest}"
            ));
        }
        if terms.max_nodes == 1 && asked > largest {
            return insufficient(format!("{asked} {kind} asked, the largest node has {largest}"));
        }
        if u64::from(asked) > all {
            return insufficient(format!("{asked} {kind} asked, all nodes together have {all}"));
        }
        let (memory, one) = (terms.memory_bytes, terms.memory_of(terms.cores_together()));
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
        let mut busy = None;
        for node in lending {
            let (own, own_free) = (node.capacity.workers(terms.shared), node.free().workers(terms.shared));
            busy = busy.or_else(|| node.busy_devices(&request.needs));
            if request.needs.devices.is_empty() {
                all += u64::from(own);
                free += u64::from(own_free);
            } else {
                // All of it has to be on one node.
                all = all.max(own.into());
                free = free.max(own_free.into());
            }
        }
        if let Some(busy) = busy.filter(|_| u64::from(terms.workers) <= free) {
            return Error::new(Code::NoCapacity, busy);
        }
        let kind = if terms.shared { "shared places" } else { "cores" };
        let (asked, place) = (terms.workers, pools.place());
        let of = "nodes that offer the requested folders, temporary space, isolation and devices";
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

/// Resources of this many workers, on a node whose pool is not known yet.
fn amount(terms: &LeaseTerms, workers: u32) -> LeaseResources {
    let memory_bytes = terms.memory_of(workers);
    LeaseResources { workers, shared: terms.shared, memory_bytes, pool: Pool::Balanced }
}
