//! Where leases go: a ranked list of nodes for each class, with random choice among the best (rFaaS-preprint 3.1).
//!
//! Where a package has several builds, or a build runs on nodes of several classes, the cheapest class that has room is
//! taken; of several at one price the one whose build stands first in the package, and then the one with most room.
//!
//! Nodes of a class are ranked by the room that they have. A lease goes to a node of the lowest rank where it fits, so
//! that large leases still find room; which one of that rank is chance, so that the leases of many clients, and of
//! many managers, spread. Finding a rank is a scan of bits, so a decision costs the same with ten nodes or ten
//! thousand.

use std::cmp::Reverse;

use sublet_proto::package::{is_device, is_python, runs_on};
use sublet_proto::price::Prices;
use sublet_proto::v1::{PackageInfo, Price};
use sublet_proto::{Code, Error};

use super::chance::Chance;
use super::ids::{ClassKey, NodeKey};
use super::locality::{Locality, Ring};
use super::messages::Request;
use super::nodes::{Amount, Node, Nodes};
use super::segments;
use super::terms::Terms;

/// Most kinds of nodes and devices, which are looked through for each request.
pub const MAX_CLASSES: usize = 64;
/// Most nodes of one request.
pub const MAX_PARTS: usize = 1024;
/// How many nodes of a rank are looked at where memory is what is short, before the next rank's are.
const LOOKS_PER_RANK: usize = 64;
const WORD_BITS: usize = u64::BITS as usize;

/// Where a node stands: in which rank, and at which index there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) rank: u32,
    index: u32,
}

/// Nodes whose place has changed, and to which one.
pub(super) type Shifted = [Option<(NodeKey, Option<Place>)>; 2];

/// Nodes by a rank that each of them has.
#[derive(Debug, Default)]
pub(super) struct Ranked {
    nodes: Vec<Vec<NodeKey>>,
    /// A bit for each rank that has nodes.
    occupied: Vec<u64>,
}

/// Nodes by how many workers they have room for.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    nodes: Ranked,
    /// Room for so many workers on all of them,
    free: u64,
    /// of so many that those nodes, and the full ones, have.
    capacity: u64,
    /// The largest node that was ever among them, and the most memory of one.
    largest: u32,
    most_memory_bytes: u64,
}

impl Ranks {
    /// As [`Ranked::shift`].
    pub(super) fn shift(&mut self, node: NodeKey, from: Option<Place>, to: Option<u32>) -> Shifted {
        self.free = self.free + u64::from(to.unwrap_or(0)) - u64::from(from.map_or(0, |place| place.rank));
        self.nodes.shift(node, from, to)
    }

    /// A node that counted with so many workers now counts with others.
    pub(super) fn count(&mut self, before: u32, now: u32, memory_bytes: u64) {
        self.capacity = self.capacity + u64::from(now) - u64::from(before);
        self.largest = self.largest.max(now);
        self.most_memory_bytes = self.most_memory_bytes.max(memory_bytes);
    }

    /// Whether a request is refused only because of what is leased now, for all that need not be looked at.
    fn is_merely_full(&self, terms: &Terms) -> bool {
        let asked = u64::from(terms.workers);
        let one_node = terms.max_nodes != 1 || terms.workers <= self.largest;
        asked > self.free
            && asked <= self.capacity
            && one_node
            && terms.memory_of(1) <= self.most_memory_bytes
    }
}

impl Ranked {
    /// Takes a node from its place and puts it into a rank, where it had one and where it has one now. Says where that node
    /// and the one that has come to its place stand from now on.
    pub(super) fn shift(&mut self, node: NodeKey, from: Option<Place>, to: Option<u32>) -> Shifted {
        let other = from.and_then(|place| Some((self.remove(place)?, Some(place))));
        [other, Some((node, to.map(|rank| self.insert(rank, node))))]
    }

    fn insert(&mut self, rank: u32, node: NodeKey) -> Place {
        let at = rank as usize;
        if self.nodes.len() <= at {
            self.nodes.resize_with(at + 1, Vec::new);
            self.occupied.resize(at / WORD_BITS + 1, 0);
        }
        self.occupied[at / WORD_BITS] |= 1 << (at % WORD_BITS);
        self.nodes[at].push(node);
        Place { rank, index: (self.nodes[at].len() - 1) as u32 }
    }

    /// Takes a node out; another one may have come to its place.
    fn remove(&mut self, place: Place) -> Option<NodeKey> {
        let rank = place.rank as usize;
        let nodes = self.nodes.get_mut(rank)?;
        nodes.swap_remove(place.index as usize);
        if nodes.is_empty() {
            self.occupied[rank / WORD_BITS] &= !(1 << (rank % WORD_BITS));
        }
        nodes.get(place.index as usize).copied()
    }

    #[cfg(test)]
    pub(super) fn at(&self, place: Place) -> Option<NodeKey> {
        self.nodes.get(place.rank as usize)?.get(place.index as usize).copied()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.nodes.iter().map(Vec::len).sum()
    }

    /// The first node that fits of the lowest rank, from this one upwards, that has one. Which one of that rank is chance.
    pub(super) fn first_fit(
        &self,
        from: u32,
        chance: &mut Chance,
        fits: impl Fn(NodeKey) -> bool,
    ) -> Option<NodeKey> {
        for rank in self.upwards(from) {
            let first = chance.below(rank.len());
            let (after, before) = (rank[first..].iter(), rank[..first].iter());
            if let Some(&node) = after.chain(before).take(LOOKS_PER_RANK).find(|node| fits(**node)) {
                return Some(node);
            }
        }
        None
    }

    /// Ranks with nodes, from this one upwards.
    fn upwards(&self, from: u32) -> impl Iterator<Item = &Vec<NodeKey>> {
        let first = from as usize / WORD_BITS;
        let words = (first..).zip(self.occupied.iter().skip(first));
        words.flat_map(move |(at, &word)| {
            let word = if at == first { word & (u64::MAX << (from as usize % WORD_BITS)) } else { word };
            Bits(word).map(move |bit| &self.nodes[at * WORD_BITS + bit])
        })
    }

    /// Nodes from the highest rank downwards.
    fn downwards(&self) -> impl Iterator<Item = NodeKey> {
        self.nodes.iter().rev().flatten().copied()
    }
}

/// The positions of a word's bits, the lowest first.
struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros() as usize;
        (self.0 != 0).then(|| {
            self.0 &= self.0 - 1;
            bit
        })
    }
}

/// Nodes that run the same packages at one price, or a kind of device that nodes have.
#[derive(Debug)]
struct Class {
    pu: String,
    architecture: String,
    price: Price,
    /// For exclusive and for shared workers.
    ranks: [Ranks; 2],
    /// All of its nodes, those that take no leases among them.
    ring: Ring,
}

/// The ranked lists of each class.
#[derive(Debug)]
pub(super) struct Classes {
    prices: Prices,
    known: Vec<Class>,
}

/// A class in which a request can be placed, and the build of its package that is executed there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) class: ClassKey,
    pub(super) build: u32,
}

impl Classes {
    pub(super) fn new(prices: Prices) -> Classes {
        Classes { prices, known: Vec::new() }
    }

    /// The class of a node, or of a device, which is a processing unit of its own.
    pub(super) fn key(&mut self, pu: &str, architecture: &str) -> ClassKey {
        let at = self.find(pu, architecture).unwrap_or_else(|| {
            let pu = unit_of(pu, architecture);
            self.known.push(Class {
                pu: pu.to_owned(),
                architecture: architecture.to_owned(),
                price: self.prices.of(pu),
                ranks: Default::default(),
                ring: Ring::default(),
            });
            self.known.len() - 1
        });
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

    /// Where a package can be executed, on processing units of this kind or, if none is said, of all, in no order.
    fn fitting(&self, package: &PackageInfo, pu: &str) -> impl Iterator<Item = Choice> {
        // Of a restored lease only the kind of processing unit is known; nothing is placed there.
        let wanted = move |class: &Class| !class.architecture.is_empty() && (pu.is_empty() || class.pu == pu);
        let build_for = move |class: &Class| {
            package.builds.iter().position(|build| runs_on(&build.architecture, &class.architecture))
        };
        let classes = self.known.iter().enumerate().filter(move |(_, class)| wanted(class));
        classes.filter_map(move |(at, class)| {
            Some(Choice { class: ClassKey(at as u16), build: build_for(class)? as u32 })
        })
    }

    /// The best first.
    fn rank(&self, choices: &mut [Choice], terms: &Terms) {
        choices.sort_by_cached_key(|choice| {
            let class = &self.known[usize::from(choice.class.0)];
            let room = &class.ranks[usize::from(terms.shared)];
            (terms.busy_second(&class.price), choice.build, Reverse((room.free, room.capacity)))
        });
    }

    fn get(&self, class: ClassKey) -> Option<&Class> {
        self.known.get(usize::from(class.0))
    }

    pub(super) fn pu(&self, class: ClassKey) -> &str {
        self.get(class).map_or("", |class| &class.pu)
    }

    pub(super) fn price(&self, class: ClassKey) -> Price {
        self.get(class).map_or(self.prices.default, |class| class.price)
    }

    /// Whether any node takes leases for such workers, full or not.
    pub(super) fn has_nodes(&self, request: &Request) -> bool {
        let Request { package, pu, terms, .. } = request;
        self.fitting(package, pu).any(|choice| self.ranked(choice.class, terms.shared).capacity > 0)
    }

    fn name(&self, class: ClassKey) -> String {
        self.get(class).map(|class| class_name(&class.pu, &class.architecture)).unwrap_or_default()
    }

    pub(super) fn ranks(&mut self, class: ClassKey, shared: bool) -> &mut Ranks {
        &mut self.known[usize::from(class.0)].ranks[usize::from(shared)]
    }

    /// Where leases of the same key begin to look.
    fn ring(&self, class: ClassKey) -> &Ring {
        &self.known[usize::from(class.0)].ring
    }

    pub(super) fn ring_mut(&mut self, class: ClassKey) -> &mut Ring {
        &mut self.known[usize::from(class.0)].ring
    }

    fn ranked(&self, class: ClassKey, shared: bool) -> &Ranks {
        &self.known[usize::from(class.0)].ranks[usize::from(shared)]
    }
}

/// A device is its own processing unit.
fn class_name(pu: &str, architecture: &str) -> String {
    if pu == architecture { pu.to_owned() } else { format!("{pu}/{architecture}") }
}

/// The kind of processing unit that a node of this architecture, or a device, is.
fn unit_of<'name>(pu: &'name str, architecture: &'name str) -> &'name str {
    match pu {
        _ if is_device(architecture) => architecture,
        "" => DEFAULT_PU,
        pu => pu,
    }
}

/// Whether there may be processing units of this kind, or of any if none is said, for what is built for this architecture.
pub(crate) fn may_run_on(pu: &str, architecture: &str) -> bool {
    match is_device(pu) {
        true => architecture == pu,
        false => pu.is_empty() || !is_device(architecture),
    }
}

/// The kind of processing unit of a node that says nothing of it.
pub const DEFAULT_PU: &str = "cpu";

/// So many workers of a request on one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) node: NodeKey,
    pub(super) amount: Amount,
}

/// Finds nodes of one class for all of a request's workers, or says why there are none. Interpreters execute one function at a
/// time: there each worker is a lease, and a process, of its own.
pub(super) fn place(
    nodes: &Nodes,
    request: &Request,
    chance: &mut Chance,
) -> Result<(Choice, Vec<Part>), Error> {
    if request.terms.is_segment() {
        return segments::place(nodes, request, chance).map(|(choice, part)| (choice, vec![part]));
    }
    let (choice, parts) = place_together(nodes, request, chance)?;
    let is_single =
        request.package.builds.get(choice.build as usize).is_some_and(|build| is_python(&build.architecture));
    if !is_single {
        return Ok((choice, parts));
    }
    let Request { terms, .. } = request;
    if terms.workers as usize > MAX_PARTS {
        let message = format!(
            "{} cores asked, of functions in Python one request has at most {MAX_PARTS}",
            terms.workers
        );
        return Err(Error::new(Code::InsufficientResources, message));
    }
    let alone = |part: Part| {
        let Amount { workers, shared, memory_bytes } = part.amount;
        let amount = Amount { workers: 1, shared, memory_bytes: memory_bytes / u64::from(workers.max(1)) };
        (0..workers).map(move |_| Part { amount, ..part })
    };
    Ok((choice, parts.into_iter().flat_map(alone).collect()))
}

/// The same, with as few parts as there can be.
fn place_together(
    nodes: &Nodes,
    request: &Request,
    chance: &mut Chance,
) -> Result<(Choice, Vec<Part>), Error> {
    let Request { package, pu, .. } = request;
    let mut fitting = nodes.classes.fitting(package, pu);
    match (fitting.next(), fitting.next()) {
        (None, _) => Err(no_class(package, pu)),
        (Some(only), None) => place_in(nodes, only.class, request, chance).map(|parts| (only, parts)),
        (Some(one), Some(other)) => {
            let mut choices: Vec<_> = [one, other].into_iter().chain(fitting).collect();
            nodes.classes.rank(&mut choices, &request.terms);
            place_in_first(nodes, &choices, request, chance)
        }
    }
}

/// In the first of several classes that has room for all.
fn place_in_first(
    nodes: &Nodes,
    choices: &[Choice],
    request: &Request,
    chance: &mut Chance,
) -> Result<(Choice, Vec<Part>), Error> {
    let mut refusals = Vec::new();
    for &choice in choices {
        match place_in(nodes, choice.class, request, chance) {
            Ok(parts) => return Ok((choice, parts)),
            Err(error) => refusals.push(error),
        }
    }
    Err(every_class(nodes, choices, &refusals))
}

/// There has never been a node for any of a package's builds.
#[cold]
fn no_class(package: &PackageInfo, pu: &str) -> Error {
    let architectures = package.builds.iter().map(|build| build.architecture.as_str());
    let fitting = architectures.filter(|architecture| may_run_on(pu, architecture));
    let names: Vec<_> =
        fitting.map(|architecture| class_name(unit_of(pu, architecture), architecture)).collect();
    let message = format!("no node of {} is there", names.join(" or "));
    Error::new(Code::InsufficientResources, message)
}

/// None of several classes takes the workers; one that could at another time decides what kind of refusal that is.
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

fn place_in(
    nodes: &Nodes,
    class: ClassKey,
    request: &Request,
    chance: &mut Chance,
) -> Result<Vec<Part>, Error> {
    let Request { terms, locality, .. } = request;
    if let Some(part) = on_one_node(nodes, class, (terms, locality), chance) {
        return Ok(vec![part]);
    }
    if terms.max_nodes != 1
        && let Some(parts) = on_several_nodes(nodes, class, terms)
    {
        return Ok(parts);
    }
    Err(refusal(nodes, class, terms))
}

fn amount(terms: &Terms, workers: u32) -> Amount {
    Amount { workers, shared: terms.shared, memory_bytes: terms.memory_of(workers) }
}

fn on_one_node(
    nodes: &Nodes,
    class: ClassKey,
    (terms, locality): (&Terms, &Locality),
    chance: &mut Chance,
) -> Option<Part> {
    let amount = amount(terms, terms.workers);
    let fits = |node: &NodeKey| {
        let fits = |node: &Node| {
            let (free, is_of_class) = (node.free(), node.takes_leases() && node.seats.has(class));
            is_of_class
                && free.workers(terms.shared) >= terms.workers
                && free.memory_bytes >= amount.memory_bytes
        };
        nodes.get(*node).is_some_and(fits)
    };
    let near = || locality.near().filter_map(|name| nodes.find(name)).find(fits);
    let warm = || locality.warm(nodes.classes.ring(class)).find(fits);
    let any = || {
        let has_memory =
            |node| nodes.get(node).is_some_and(|node| node.free().memory_bytes >= amount.memory_bytes);
        nodes.classes.ranked(class, terms.shared).nodes.first_fit(terms.workers, chance, has_memory)
    };
    near().or_else(warm).or_else(any).map(|node| Part { node, amount })
}

/// The fewest nodes: those with most room first.
fn on_several_nodes(nodes: &Nodes, class: ClassKey, terms: &Terms) -> Option<Vec<Part>> {
    let most = if terms.max_nodes == 0 { MAX_PARTS } else { terms.max_nodes as usize };
    let (mut parts, mut left) = (Vec::new(), terms.workers);
    if u64::from(left) > nodes.classes.ranked(class, terms.shared).free {
        return None;
    }
    for node in nodes.classes.ranked(class, terms.shared).nodes.downwards() {
        if left == 0 || parts.len() == most {
            break;
        }
        let Some(free) = nodes.get(node).map(|known| known.free()) else { continue };
        let workers = free.workers(terms.shared).min(left).min(sublet_proto::limits::MAX_CORES);
        let amount = amount(terms, workers);
        if workers > 0 && amount.memory_bytes <= free.memory_bytes {
            parts.push(Part { node, amount });
            left -= workers;
        }
    }
    (left == 0).then_some(parts)
}

/// Why no node takes the workers, with what would fit.
#[cold]
fn refusal(nodes: &Nodes, class: ClassKey, terms: &Terms) -> Error {
    let insufficient = |message| Error::new(Code::InsufficientResources, message);
    let kind = if terms.shared { "shared places" } else { "cores" };
    let ranks = nodes.classes.ranked(class, terms.shared);
    let Ranks { free, capacity: all, .. } = *ranks;
    let asked = terms.workers;
    let full = |free| Error::new(Code::NoCapacity, format!("{asked} {kind} asked, {free} of {all} free"));
    // The one refusal that is frequent costs no look at the nodes.
    if ranks.is_merely_full(terms) {
        return full(free);
    }
    let there = || nodes.iter().filter(|(_, node)| node.seats.has(class) && node.takes_leases());
    let Some(largest) = there().map(|(_, node)| node.capacity.workers(terms.shared)).max() else {
        return insufficient(format!("no node of {} is there", nodes.classes.name(class)));
    };
    if terms.max_nodes == 1 && asked > largest {
        return insufficient(format!("{asked} {kind} asked, the largest node has {largest}"));
    }
    if u64::from(asked) > all {
        return insufficient(format!("{asked} {kind} asked, all nodes together have {all}"));
    }
    let most_memory = there().map(|(_, node)| node.capacity.memory_bytes).max().unwrap_or_default();
    let (memory, one) = (terms.memory_bytes, terms.memory_of(1));
    if one > most_memory {
        return insufficient(format!(
            "{memory} bytes of memory asked, {one} for each worker, the largest node has {most_memory}"
        ));
    }
    if terms.max_nodes == 1 && memory > most_memory {
        return insufficient(format!("{memory} bytes of memory asked, the largest node has {most_memory}"));
    }
    if u64::from(asked) > free {
        return full(free);
    }
    let free_memory = there().map(|(_, node)| node.free().memory_bytes).max().unwrap_or_default();
    let message = format!(
        "{asked} {kind} and {memory} bytes of memory asked, {free} of {all} {kind} are free, and at most {free_memory} bytes on a node"
    );
    Error::new(Code::NoCapacity, message)
}
