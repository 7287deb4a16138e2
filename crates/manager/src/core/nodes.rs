//! The nodes, and their leased resources.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use sublet_proto::pool::Pool;
use sublet_proto::price::Prices;
use sublet_proto::v1::{self, DeviceCount, Needs, NodeDescription, NodeInfo};
use sublet_proto::{Code, Error, version};

#[cfg(any(test, debug_assertions))]
use super::classes::ListedNode;
use super::classes::{Classes, CountedResources, MAX_ALL_CLASSES, MAX_CLASSES};
use super::ids::{ClassKey, InstanceId, NodeKey, RackKey};
use super::messages::ClientRequest;
use super::pools::{self, Pools};
use super::racks::{Free, GroupedNodes, RackPool, Racks, Spot};
use super::resources::{LendingState, NodeCapacity, OfRack, Reach, memory_rank};
use super::seats::{MAX_SEATS, Seat, Seats, devices_and_interpreters};
use super::terms::LeaseTerms;

/// Interval at which the shell sends [`CoreEvent::Tick`](super::CoreEvent::Tick), in milliseconds.
pub const TICK_MS: u64 = 500;
/// Ticks without a report after which a node counts as lost: 3 s.
pub const SILENCE_TICKS: u32 = 6;
/// Most nodes of one manager.
pub const MAX_NODES: usize = 65_536;
/// Ticks after which a lost node is forgotten: an hour.
#[expect(clippy::cast_possible_truncation, reason = "a small constant")]
const FORGET_TICKS: u32 = (60 * 60 * 1000 / TICK_MS) as u32;
/// Ticks without a report after which a node's name is free even for an agent that seems to be older: a minute.
#[expect(clippy::cast_possible_truncation, reason = "a small constant")]
const LATE_TICKS: u32 = (60 * 1000 / TICK_MS) as u32;

/// Kind of a manager's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Nodes are computers, whose agents register with it.
    Rack,
    /// Nodes of the racks of other managers of its store, to one of which it hands each request.
    Global,
}

/// State of a node's links.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeLinks {
    pub(super) version: u64,
    /// The registration that its neighbours know it by; 0 while it is not registered here.
    pub(super) known: u64,
}

/// A node as its manager sees it.
#[derive(Debug)]
pub struct ManagedNode {
    /// Name of the node, unique among the managers of a store.
    pub name: Arc<str>,
    /// Addresses of the agent.
    pub reach: Arc<Reach>,
    /// Description by the agent.
    pub description: Box<NodeDescription>,
    /// All that it lends.
    pub capacity: NodeCapacity,
    /// The leased part of the capacity.
    pub leased: NodeCapacity,
    /// The leased devices, by their kind.
    pub(super) devices_leased: BTreeMap<String, u32>,
    /// Whether it takes leases.
    pub lending: LendingState,
    /// The latest registration; 0 if it has not registered, or has left for another manager.
    pub registration: u64,
    /// Time of its last report.
    pub last_report_ms: u64,
    /// Generation of that registration, or of a later one with another manager.
    pub generation: u64,
    pub(super) instance: InstanceId,
    pub(super) sequence: u64,
    pub(super) silent_ticks: u32,
    /// Whether the connection by which its agent reported has ended, without a report since.
    pub(super) is_missed: bool,
    /// Keys of all its leases that are not forgotten; a lease knows its index in this list.
    pub(super) leases: Vec<u32>,
    /// Number of attached leases, and number of granted ones that are not attached.
    pub(super) attached: u32,
    pub(super) unattached: u32,
    /// The pool that it belongs to now.
    pub pool: Pool,
    /// The pool that its agent has named, if any.
    said_pool: Option<Pool>,
    pub(super) rack: RackKey,
    /// Contribution to its rack's free resources.
    counted: Free,
    /// Position among the other nodes, by its cores.
    pub(super) seats: Seats,
    /// Position among the other nodes, by its memory.
    pub(super) by_memory: Option<Spot>,
    /// Set if it stands for several nodes of a rack.
    pub(super) of_rack: Option<OfRack>,
    pub(super) links: NodeLinks,
    /// Use of its cache of packages and images, by its latest report.
    pub(super) cache: Option<v1::CacheUse>,
    /// Neighbours to which its agent is connected, by its latest report since its registration.
    pub(super) connected: Option<v1::ConnectedNodes>,
    /// Processes of the node that wait on standby, by its latest report.
    pub(super) standby: Vec<v1::StandbyProcesses>,
}

impl ManagedNode {
    /// Returns the part that is not leased.
    pub fn free(&self) -> NodeCapacity {
        self.capacity.without(self.leased)
    }

    /// Tells whether no report has come for too long.
    pub fn is_lost(&self) -> bool {
        self.silent_ticks > SILENCE_TICKS
    }

    /// Generation 0 means that the agent reports none: nothing is known of its order.
    fn is_later_than(&self, generation: u64) -> bool {
        (1..=self.generation).contains(&generation)
    }

    /// Tells whether another agent may not take the name. An agent with an older generation than this node's is either
    /// dead, and its registration late, or its clock was set back: the latter has to wait.
    fn is_anothers(&self, generation: u64) -> bool {
        let ticks = if self.is_later_than(generation) { LATE_TICKS } else { SILENCE_TICKS };
        self.registration != 0 && self.silent_ticks <= ticks && !self.is_missed
    }

    /// Tells whether a lease may be granted on it now.
    pub fn takes_leases(&self) -> bool {
        self.is_there() && !self.is_missed
    }

    /// Tells whether a request that it could serve may wait for it.
    pub(super) fn is_there(&self) -> bool {
        !self.is_lost() && self.lending == LendingState::Open
    }

    /// Rank among the nodes that take segments.
    fn memory_rank(&self) -> Option<u32> {
        self.takes_leases().then(|| memory_rank(self.free().memory_bytes)).flatten()
    }

    fn group(&self) -> RackPool {
        RackPool { rack: self.rack, pool: self.pool }
    }

    /// Resources that it adds to its rack's free ones.
    fn free_for_rack(&self) -> Free {
        let NodeCapacity { cores, places, memory_bytes } = self.free();
        let free =
            Free { workers: u64::from(cores) + u64::from(places), memory_bytes: u128::from(memory_bytes) };
        if self.takes_leases() { free } else { Free::default() }
    }

    fn state(&self) -> v1::NodeState {
        match self.lending {
            _ if self.is_lost() => v1::NodeState::Lost,
            LendingState::Open => v1::NodeState::Lending,
            LendingState::Draining => v1::NodeState::Draining,
            LendingState::Reclaimed => v1::NodeState::Reclaimed,
        }
    }

    /// Returns the part of the users' view that the node knows by itself.
    pub(super) fn info(&self) -> NodeInfo {
        NodeInfo {
            description: Some(NodeDescription::clone(&self.description)),
            cores_leased: self.leased.cores,
            memory_leased_bytes: self.leased.memory_bytes,
            last_report_unix_ms: self.last_report_ms,
            shared_leased: self.leased.places,
            state: self.state().into(),
            pool: self.pool.to_string(),
            units: Vec::new(),
            cache: self.cache,
            connected: self.connected.clone().filter(|_| !self.is_lost()),
            standby: self.standby.clone(),
            devices_leased: self
                .devices_leased
                .iter()
                .map(|(kind, &count)| DeviceCount { kind: kind.clone(), count })
                .collect(),
        }
    }

    /// Tells whether a request, or a part of it, may be placed here, free capacity aside. A node allows it if it lends
    /// what the request needs; a group of a rack's also as far as its manager has reported.
    pub(super) fn may_take(&self, request: &ClientRequest) -> bool {
        self.lacks(&request.needs).is_none()
            && self.busy_devices(&request.needs).is_none()
            && self.gives_cores_to(&request.terms)
            && self.of_rack.as_ref().is_none_or(|of_rack| {
                of_rack.may_take(&request.terms) && !request.refusals.standings.contains(&self.registration)
            })
    }

    /// Whether its agent gives workers as many cores as a request asks for each. One of an earlier version gives one.
    pub(super) fn gives_cores_to(&self, terms: &LeaseTerms) -> bool {
        terms.cores_together() == 1 || self.description.messages >= version::WORKER_CORES
    }

    /// The first folder, space or isolation that the node does not offer to a request with these needs, in words.
    pub(super) fn lacks(&self, needs: &Needs) -> Option<String> {
        if self.ignores(needs) {
            return Some(
                "secrets, folders, temporary space or isolations, since its agent is of an earlier version"
                    .into(),
            );
        }
        needs.lacking(&self.description)
    }

    /// Whether its agent is of a version that ignores these needs.
    pub(super) fn ignores(&self, needs: &Needs) -> bool {
        !needs.is_empty() && self.description.messages < version::NEEDS
    }

    /// The most that one of the nodes it stands for has.
    pub(super) fn largest(&self) -> NodeCapacity {
        self.of_rack.map_or(self.capacity, |of_rack| of_rack.largest)
    }

    /// The most that is free on one of the nodes it stands for.
    pub(super) fn most_free(&self) -> NodeCapacity {
        self.of_rack.map_or_else(|| self.free(), |of_rack| of_rack.most_free)
    }
}

/// Every node. A key is used again only when no reference to its node is left.
#[derive(Debug)]
pub(super) struct Nodes {
    slots: Vec<Option<ManagedNode>>,
    unused: Vec<u32>,
    by_name: HashMap<Arc<str>, NodeKey>,
    pub(super) classes: Classes,
    pub(super) racks: Racks,
    /// Nodes that take leases, by their free memory.
    pub(super) by_memory: GroupedNodes,
    /// Memory for each core of nodes of the balanced pool, if the pools of nodes that say none are virtual.
    usual_bytes: Option<u64>,
    /// Kind of its nodes.
    pub(super) level: Level,
}

impl Nodes {
    pub(super) fn new(prices: Prices, usual_bytes: Option<u64>, level: Level) -> Nodes {
        Nodes {
            slots: Vec::new(),
            unused: Vec::new(),
            by_name: HashMap::default(),
            classes: Classes::new(prices),
            racks: Racks::default(),
            by_memory: GroupedNodes::default(),
            usual_bytes,
            level,
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<NodeKey> {
        self.by_name.get(name).copied()
    }

    pub(super) fn get(&self, key: NodeKey) -> Option<&ManagedNode> {
        self.slots.get(key.0 as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, key: NodeKey) -> Option<&mut ManagedNode> {
        self.slots.get_mut(key.0 as usize)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeKey, &ManagedNode)> {
        let keyed = (0u32..).zip(&self.slots);
        keyed.filter_map(|(key, node)| Some((NodeKey(key), node.as_ref()?)))
    }

    /// Whether another agent than this one lends a node of the name now, or this registration comes late.
    pub(super) fn check_name(&self, name: &str, instance: InstanceId, generation: u64) -> Result<(), Error> {
        match self.find(name).and_then(|key| self.get(key)) {
            Some(node) if node.instance == instance && node.is_later_than(generation) => {
                let message =
                    format!("a registration of node {name} came late: its agent has sent another since");
                Err(Error::new(Code::Protocol, message))
            }
            Some(node) if node.instance != instance && node.is_anothers(generation) => {
                let message = format!("a node {name} is lent already, by the agent at {}", node.reach.agent);
                Err(Error::new(Code::AlreadyRunning, message))
            }
            None if self.by_name.len() >= MAX_NODES => {
                let message = format!("there are {MAX_NODES} nodes already, one manager takes no more");
                Err(Error::new(Code::InvalidArgument, message))
            }
            _ => Ok(()),
        }
    }

    /// Checks that such a node, and such a rack, may be added: an agent that names one architecture or interpreter after
    /// the other fills no table.
    pub(super) fn check_class(&self, description: &NodeDescription) -> Result<(), Error> {
        let NodeDescription { name, pu, architecture, rack, .. } = description;
        let message = if !self.classes.may_add(pu, architecture) {
            format!(
                "there are {MAX_CLASSES} kinds of nodes already, and node {name} is of another: {pu:?}, {architecture:?}"
            )
        } else if !self.classes.may_add_all(pu, devices_and_interpreters(description)) {
            format!(
                "nodes, devices and interpreters are of {MAX_ALL_CLASSES} kinds at most, and node {name} has more: {:?}",
                description.runtimes
            )
        } else {
            return self.racks.check(rack);
        };
        Err(Error::new(Code::InvalidArgument, message))
    }

    /// Describes the node of this name anew, and keeps its leases.
    pub(super) fn describe(&mut self, description: NodeDescription) -> NodeKey {
        let seats = Seats::of(&description, &mut self.classes);
        let key = self.find(&description.name).unwrap_or_else(|| self.add(&description.name));
        self.take_out(key);
        self.cut_links(key);
        // A pool that does not exist has been refused.
        let said_pool = Pool::said(&description.pool).unwrap_or_default();
        let rack = self.racks.join(&description.rack);
        for class in seats.classes() {
            self.classes.meet(class, rack, &description.name, key);
        }
        if let Some(node) = self.get_mut(key) {
            (node.rack, node.said_pool) = (rack, said_pool);
            node.reach = Arc::new(Reach::of(&description));
            node.capacity = NodeCapacity {
                cores: description.cores,
                places: description.shared_places,
                memory_bytes: description.memory_bytes,
            };
            node.seats = seats;
            *node.description = description;
        }
        key
    }

    /// Adds a node of which only the name is known: it has not registered, and takes no leases.
    pub(super) fn add(&mut self, name: &str) -> NodeKey {
        let name: Arc<str> = name.into();
        let rack = self.racks.join("");
        let node = ManagedNode {
            name: name.clone(),
            reach: Arc::default(),
            description: Box::new(NodeDescription { name: name.to_string(), ..NodeDescription::default() }),
            capacity: NodeCapacity::default(),
            leased: NodeCapacity::default(),
            devices_leased: BTreeMap::new(),
            lending: LendingState::Open,
            registration: 0,
            last_report_ms: 0,
            generation: 0,
            instance: InstanceId(0),
            sequence: 0,
            silent_ticks: SILENCE_TICKS + 1,
            is_missed: false,
            leases: Vec::new(),
            attached: 0,
            unattached: 0,
            pool: Pool::Balanced,
            said_pool: None,
            rack,
            counted: Free::default(),
            seats: Seats::default(),
            by_memory: None,
            of_rack: None,
            links: NodeLinks::default(),
            cache: None,
            connected: None,
            standby: Vec::new(),
        };
        #[expect(clippy::cast_possible_truncation, reason = "there are `MAX_NODES` at most")]
        let key = self.unused.pop().unwrap_or(self.slots.len() as u32);
        if key as usize == self.slots.len() {
            self.slots.push(None);
        }
        debug_assert!(self.slots[key as usize].is_none(), "the unused key {key} has a node");
        self.slots[key as usize] = Some(node);
        let namesake = self.by_name.insert(name, NodeKey(key));
        debug_assert!(namesake.is_none(), "{namesake:?} and the new node {key} have one name");
        NodeKey(key)
    }

    /// Changes a node, its position among the others, and its neighbours' versions.
    pub(super) fn change(&mut self, key: NodeKey, change: impl FnOnce(&mut ManagedNode)) {
        let Some(node) = self.slots.get_mut(key.0 as usize).and_then(Option::as_mut) else { return };
        change(node);
        node.pool = pools::of(node.said_pool, node.free(), self.usual_bytes);
        let free = node.free_for_rack();
        let counted = std::mem::replace(&mut node.counted, free);
        if counted != free {
            self.racks.count(node.rack, counted, free);
        }
        (0..MAX_SEATS).for_each(|seat| self.seat(key, seat));
        self.rank_memory(key);
        self.renew_links(key);
        debug_assert!(self.is_ranked(key), "{:?} is not where its free memory places it", self.get(key));
    }

    /// Tells whether a node is in the list of free memory.
    fn is_ranked(&self, key: NodeKey) -> bool {
        let Some(node) = self.get(key) else { return false };
        let to = node.memory_rank().map(|rank| (node.group(), rank));
        let is_listed = |spot: Spot| self.by_memory.at(spot) == Some(key);
        node.by_memory.map(|spot| (spot.group(), spot.rank())) == to && node.by_memory.is_none_or(is_listed)
    }

    /// Tells whether a node is in one of these pools, or may come into one by the resources it has left.
    pub(super) fn may_be_in(&self, node: &ManagedNode, pools: Pools) -> bool {
        pools.has(node.pool) || (node.said_pool.is_none() && self.has_virtual_pools())
    }

    /// Tells whether nodes that name no pool are assigned to one by the resources they have left.
    pub(super) fn has_virtual_pools(&self) -> bool {
        self.usual_bytes.is_some()
    }

    /// Tells whether any node takes leases of such a kind, full or not.
    pub(super) fn has_any_for(&self, request: &ClientRequest) -> bool {
        let is_for = |node: &ManagedNode| {
            node.is_there() && node.capacity.memory_bytes > 0 && request.locality.pools.has(node.pool)
        };
        match request.terms.is_segment() {
            true => self.iter().any(|(_, node)| is_for(node)),
            false => self.classes.has_nodes(request),
        }
    }

    /// Puts a node where it belongs by its memory.
    fn rank_memory(&mut self, key: NodeKey) {
        let Some(node) = self.get(key) else { return };
        self.move_by_memory(key, node.memory_rank().map(|rank| (node.group(), rank)));
    }

    fn move_by_memory(&mut self, key: NodeKey, to: Option<(RackPool, u32)>) {
        let Some(spot) = self.get(key).map(|node| node.by_memory) else { return };
        if spot.map(|spot| (spot.group(), spot.rank())) == to {
            return;
        }
        for (moved, spot) in self.by_memory.shift(key, spot, to).into_iter().flatten() {
            if let Some(node) = self.get_mut(moved) {
                node.by_memory = spot;
            }
        }
    }

    /// Puts a node where it belongs in one of its classes.
    fn seat(&mut self, key: NodeKey, seat: usize) {
        let Some(node) = self.get_mut(key) else { return };
        let (free, takes, group) = (node.free(), node.takes_leases(), node.group());
        let (NodeCapacity { memory_bytes, .. }, is_there) = (node.capacity, node.is_there());
        let capacity = [false, true].map(|shared| {
            is_there.then(|| CountedResources {
                pool: group.pool,
                workers: node.capacity.workers(shared),
                memory_bytes,
            })
        });
        let Some(seat) = node.seats.at(seat) else { return };
        let counted = std::mem::replace(&mut seat.counted, capacity);
        let Seat { class, spots, .. } = *seat;
        for shared in [false, true] {
            let kind = usize::from(shared);
            if counted[kind] != capacity[kind] {
                self.classes.ranks(class, shared).count(counted[kind], capacity[kind]);
            }
            let rank = takes.then(|| free.workers(shared)).filter(|&workers| workers > 0);
            let to = rank.map(|rank| (group, rank));
            if spots[kind].map(|spot| (spot.group(), spot.rank())) != to {
                self.move_to(key, class, shared, to);
            }
        }
    }

    /// Takes a node out of wherever it is found.
    fn take_out(&mut self, key: NodeKey) {
        self.move_by_memory(key, None);
        for seat in 0..MAX_SEATS {
            let Some(seat) = self.get_mut(key).and_then(|node| node.seats.at(seat)) else { continue };
            let (class, counted) = (seat.class, std::mem::take(&mut seat.counted));
            for shared in [false, true] {
                self.classes.ranks(class, shared).count(counted[usize::from(shared)], None);
                self.move_to(key, class, shared, None);
            }
        }
        let Some(node) = self.get_mut(key) else { return };
        debug_assert!(node.by_memory.is_none(), "{} is still listed by its memory", node.name);
        let (name, rack, counted) = (node.name.clone(), node.rack, std::mem::take(&mut node.counted));
        let classes: Vec<ClassKey> = node.seats.classes().collect();
        classes.into_iter().for_each(|class| self.classes.part(class, rack, &name, key));
        self.racks.count(rack, counted, Free::default());
        self.racks.leave(rack);
    }

    fn move_to(&mut self, key: NodeKey, class: ClassKey, shared: bool, to: Option<(RackPool, u32)>) {
        let kind = usize::from(shared);
        let Some(spot) = self.seat_in(key, class).map(|seat| seat.spots[kind]) else { return };
        for (moved, spot) in self.classes.ranks(class, shared).shift(key, spot, to).into_iter().flatten() {
            if let Some(seat) = self.seat_in(moved, class) {
                seat.spots[kind] = spot;
            }
        }
    }

    fn seat_in(&mut self, key: NodeKey, class: ClassKey) -> Option<&mut Seat> {
        self.get_mut(key)?.seats.in_class(class)
    }

    /// Gives a node no leases until its next report.
    pub(super) fn miss(&mut self, key: NodeKey) {
        self.change(key, |node| node.is_missed = true);
    }

    /// Counts the silence of all nodes; lost ones no longer take leases. Returns the nodes that are to be forgotten.
    pub(super) fn tick(&mut self) -> Vec<NodeKey> {
        let (mut lost, mut forgotten) = (Vec::new(), Vec::new());
        for (key, slot) in (0u32..).zip(&mut self.slots) {
            // A rack's nodes are heard of by way of the store, and are gone with its manager.
            let Some(node) = slot.as_mut().filter(|node| node.of_rack.is_none()) else { continue };
            node.silent_ticks = node.silent_ticks.saturating_add(1);
            if node.silent_ticks == SILENCE_TICKS + 1 {
                lost.push(NodeKey(key));
            }
            if node.silent_ticks > FORGET_TICKS {
                forgotten.push(NodeKey(key));
            }
        }
        lost.into_iter().for_each(|key| self.change(key, |_| ()));
        forgotten
    }

    /// The nodes of a class, for a comparison with its lists.
    #[cfg(any(test, debug_assertions))]
    fn listed(&self, class: ClassKey) -> Vec<ListedNode> {
        let of_class = self.iter().map(|(_, node)| node).filter(|node| node.seats.has(class));
        let listed = of_class.map(|node| ListedNode {
            pool: node.pool,
            rack: node.rack,
            capacity: node.capacity,
            free: node.free(),
            is_there: node.is_there(),
            takes_leases: node.takes_leases(),
        });
        listed.collect()
    }

    /// Panics unless every node is only at its right position, and racks and classes match their nodes.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn assert_consistent(&self) {
        let (mut count, mut named) = (0, 0);
        let mut racks = HashMap::<RackKey, Free>::new();
        for (key, node) in self.iter() {
            assert!(self.is_ranked(key), "{} is not where its free memory places it", node.name);
            assert_eq!(self.find(&node.name), Some(key), "the name {} leads to another node", node.name);
            named += 1;
            count += usize::from(node.by_memory.is_some());
            let (free, rack) = (node.free_for_rack(), racks.entry(node.rack).or_default());
            rack.workers += free.workers;
            rack.memory_bytes += free.memory_bytes;
        }
        assert_eq!(self.by_memory.len(), count, "nodes listed by memory");
        assert_eq!(self.by_name.len(), named, "names of nodes");
        assert_eq!(self.unused.len() + named, self.slots.len(), "used and unused keys of nodes");
        for rack in self.racks.keys() {
            assert_eq!(self.racks.free(rack), racks.remove(&rack).unwrap_or_default(), "free in {rack:?}");
        }
        self.classes.assert_consistent(|class| self.listed(class));
    }

    /// Forgets a node that has no leases.
    pub(super) fn remove(&mut self, key: NodeKey) {
        self.take_out(key);
        if let Some(node) = self.slots.get_mut(key.0 as usize).and_then(Option::take) {
            let leases = node.leases.len();
            debug_assert_eq!(leases, 0, "node {} is removed with leases", node.name);
            self.by_name.remove(&node.name);
            self.unused.push(key.0);
        }
    }
}
