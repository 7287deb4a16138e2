//! The level above racks (Scad 4.1): the same decisions, with the racks of other managers in the place of nodes.
//!
//! A rack's manager reports the state of its nodes in groups: nodes of one pool that run the same packages. Here such a
//! group is a node, with the free resources of the whole group and the most free on one node, and the manager is its
//! rack. So classes, pools, ranks, turns, waits and quotas are those of [`super`]; only the consequence of a decision
//! differs. Nothing is leased here: the request is *handed* to the manager of the rack, which its client then asks by
//! itself. Its resources count as used until the rack reports again.
//!
//! Invariants:
//! - All of a request is handed to one rack, and a rack never gets more than it had free in its last report.
//! - A request that its rack refuses takes its turn again, before all others, and is not handed there again until the
//!   rack's groups change. Its resources still count as used: the rack knows better.
//! - A request that is repeated gets the same answer. A rack can refuse only requests that were handed to it.
//! - A rack counts until the other managers hold its manager for dead. How long it has been silent does not matter:
//!   while the store is unreachable no manager hears of another.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use sublet_proto::package::{is_device, is_interpreter};
use sublet_proto::v1::{NodeDescription, NodeGroup, NodeRoom};

use super::Core;
use super::description::MAX_NODE_CORES;
use super::ids::{NodeKey, RequestId, TenantKey};
use super::messages::{ClientRequest, CoreAction, RackStanding};
use super::nodes::ManagedNode;
use super::placement::PlacementPart;
use super::resources::{LeaseResources, LendingState, NodeCapacity, OfRack};
use super::seats::MAX_SEATS;

/// Time in milliseconds within which a request that was handed to a rack may take its turn again.
const HANDED_MS: u64 = 30_000;
/// Most handed requests that are remembered; beyond that, the oldest ones count as new when they come back.
const MAX_HANDED: usize = 65_536;
/// Most refusals of racks that are remembered of one request: of more, the first.
const MAX_REFUSALS: usize = 256;
/// Most groups of nodes in a rack's report: those with most cores.
const MAX_GROUPS: usize = 64;

/// State that a core of the level above racks keeps beside its nodes.
#[derive(Debug, Default)]
pub(super) struct Global {
    racks: HashMap<Arc<str>, ReportedRack>,
    handed: HashMap<(TenantKey, RequestId), HandedRequest>,
    /// Requests that were handed, in the order of their handing; some occur again because they were handed anew.
    in_order: VecDeque<(u64, TenantKey, RequestId)>,
}

/// A rack by its last report.
#[derive(Debug, Default)]
struct ReportedRack {
    said: (u64, u64),
    groups: Vec<NodeGroup>,
    /// Node of each of its groups, in the same order.
    nodes: Vec<NodeKey>,
    /// Amounts that were handed to it since its last report.
    handed: Vec<(TenantKey, LeaseResources)>,
}

/// A request that was handed to a rack.
#[derive(Debug)]
struct HandedRequest {
    manager: Arc<str>,
    /// Registration of the rack's groups when the request was handed.
    standing: u64,
    /// Registrations of the groups of racks that had refused the request before.
    refused: Vec<u64>,
    until_ms: u64,
}

impl Global {
    fn hand(&mut self, key: (TenantKey, RequestId), handed: HandedRequest) {
        while self.in_order.len() >= MAX_HANDED {
            self.forget_first();
        }
        self.in_order.push_back((handed.until_ms, key.0, key.1));
        self.handed.insert(key, handed);
        let (handed, in_order) = (self.handed.len(), self.in_order.len());
        debug_assert!(handed <= in_order, "{handed} requests were handed, and {in_order} are in order");
    }

    fn forget_first(&mut self) {
        let Some((until_ms, tenant, request)) = self.in_order.pop_front() else { return };
        if self.handed.get(&(tenant, request)).is_some_and(|handed| handed.until_ms == until_ms) {
            self.handed.remove(&(tenant, request));
        }
    }

    /// Forgets requests that were handed so long ago that no client repeats them.
    pub(super) fn tick(&mut self, now_ms: u64) {
        while self.in_order.front().is_some_and(|(until_ms, ..)| *until_ms <= now_ms) {
            self.forget_first();
        }
    }
}

impl Core {
    /// Takes the reports of all racks whose managers live.
    pub(super) fn racks_stand(
        &mut self,
        now_ms: u64,
        standings: Vec<RackStanding>,
        out: &mut Vec<CoreAction>,
    ) {
        let Some(global) = &self.global else { return };
        let living: HashSet<&str> = standings.iter().map(|standing| standing.manager.as_str()).collect();
        let dead = global.racks.keys().filter(|manager| !living.contains(&***manager));
        for manager in dead.cloned().collect::<Vec<_>>() {
            self.rack_is_gone(&manager);
        }
        for standing in standings {
            self.rack_stands(now_ms, standing);
        }
        self.serve_waiting(now_ms, out);
    }

    fn rack_is_gone(&mut self, manager: &str) {
        let Some(rack) = self.global.as_deref_mut().and_then(|global| global.racks.remove(manager)) else {
            return;
        };
        self.count_no_more(rack.handed);
        rack.nodes.into_iter().for_each(|node| self.nodes.remove(node));
    }

    /// Stops counting amounts that were handed to a rack: its report includes them, or they are under way or refused.
    fn count_no_more(&mut self, handed: Vec<(TenantKey, LeaseResources)>) {
        for (tenant, amount) in handed {
            self.tenants.get_mut(tenant).remove(amount);
        }
    }

    fn rack_stands(&mut self, now_ms: u64, standing: RackStanding) {
        let RackStanding { manager, said, groups } = standing;
        let Some(global) = self.global.as_deref_mut() else { return };
        let manager: Arc<str> = manager.into();
        let known = global.racks.get(&manager);
        if known.is_some_and(|rack| rack.said >= said) {
            return;
        }
        let ReportedRack { groups: before, nodes, handed, .. } =
            global.racks.remove(&manager).unwrap_or_default();
        self.count_no_more(handed);
        // A request that the rack has refused may ask it again if its groups have changed.
        let known = nodes.first().and_then(|&node| self.nodes.get(node)).map(|node| node.registration);
        let registration = known.filter(|_| before == groups).unwrap_or_else(|| {
            self.registration += 1;
            self.registration
        });
        let now: Vec<NodeKey> = groups
            .iter()
            .filter_map(|group| self.group_stands(now_ms, &manager, registration, group))
            .collect();
        nodes.into_iter().filter(|node| !now.contains(node)).for_each(|node| self.nodes.remove(node));
        debug_assert!(
            now.iter().all(|&node| self.nodes.get(node).is_some_and(|node| node.of_rack.is_some())),
            "not every group of rack {manager} is a node: {now:?}"
        );
        if let Some(global) = self.global.as_deref_mut() {
            global.racks.insert(manager, ReportedRack { said, groups, nodes: now, handed: Vec::new() });
        }
    }

    /// Adds a group as a node. Ignores a group that is not valid, or that exceeds the number of kinds of nodes.
    fn group_stands(
        &mut self,
        now_ms: u64,
        manager: &str,
        registration: u64,
        group: &NodeGroup,
    ) -> Option<NodeKey> {
        let (all, free) = (node_capacity(group.all), node_capacity(group.free));
        let description = description(manager, group, all);
        self.nodes.check_class(&description).ok()?;
        let key = self.nodes.describe(description);
        self.nodes.change(key, |node| {
            node.registration = registration;
            node.lending = LendingState::Open;
            (node.silent_ticks, node.last_report_ms) = (0, now_ms);
            node.leased = all.without(free);
            let (largest, most_free) = (node_capacity(group.largest), node_capacity(group.most_free));
            node.of_rack = Some(OfRack { largest, most_free });
        });
        Some(key)
    }

    /// Hands a request to the manager of the rack in which its parts are.
    pub(super) fn hand(
        &mut self,
        now_ms: u64,
        request: &ClientRequest,
        parts: &[PlacementPart],
    ) -> Option<CoreAction> {
        self.global.as_ref()?;
        let (tenant, id) = (request.tenant, request.id);
        let application = request.application.map(|application| application.key);
        let node = self.nodes.get(parts.first()?.node)?;
        let (manager, standing): (Arc<str>, u64) = (node.description.rack.as_str().into(), node.registration);
        let rack = node.rack;
        for part in parts {
            debug_assert_eq!(
                self.nodes.get(part.node).map(|node| node.rack),
                Some(rack),
                "one rack for all of {parts:?}"
            );
            self.nodes.change(part.node, |node| {
                let (free, leased) = (node.free(), node.leased.plus(part.amount));
                debug_assert!(
                    part.amount.workers <= free.workers(part.amount.shared)
                        && part.amount.memory_bytes <= free.memory_bytes,
                    "{part:?} is handed to a rack that has {free:?}"
                );
                node.leased = leased;
            });
            for counted in [Some(tenant), application].into_iter().flatten() {
                self.tenants.get_mut(counted).add(part.amount);
            }
        }
        let global = self.global.as_deref_mut()?;
        let rack = global.racks.get_mut(&manager)?;
        for counted in [Some(tenant), application].into_iter().flatten() {
            rack.handed.extend(parts.iter().map(|part| (counted, part.amount)));
        }
        let (refused, until_ms) = (request.refusals.standings.clone(), now_ms.saturating_add(HANDED_MS));
        global.hand((tenant, id), HandedRequest { manager: manager.clone(), standing, refused, until_ms });
        Some(CoreAction::Handed { tenant, request: id, manager })
    }

    /// Returns the answer to a request that was handed before: the same one if it is only repeated. If the rack refused
    /// it, the request notes that; a refusal by a rack to which it was not handed is ignored.
    pub(super) fn handed_before(&mut self, request: &mut ClientRequest) -> Option<CoreAction> {
        let refused_by = request.refusals.by.take();
        let global = self.global.as_deref_mut()?;
        let key = (request.tenant, request.id);
        let handed = global.handed.get_mut(&key)?;
        match refused_by {
            Some(manager) if *manager == *handed.manager => {
                request.refusals.standings = std::mem::take(&mut handed.refused);
                let is_full = request.refusals.standings.len() >= MAX_REFUSALS;
                request.refusals.standings.drain(..usize::from(is_full));
                request.refusals.standings.push(handed.standing);
                global.handed.remove(&key);
                None
            }
            _ if global.racks.contains_key(&handed.manager) => {
                let (tenant, manager) = (request.tenant, handed.manager.clone());
                Some(CoreAction::Handed { tenant, request: request.id, manager })
            }
            _ => None,
        }
    }

    /// Returns the groups of the nodes that take leases, for the manager above.
    pub fn groups(&self) -> Vec<NodeGroup> {
        let mut groups = BTreeMap::new();
        for node in self.nodes().filter(|node| node.takes_leases()) {
            let (seats, pool) = (node.seats.keys(), node.pool as u8);
            let NodeDescription { folders, temporary_bytes, messages, isolations, .. } = &*node.description;
            let folders: Vec<_> = folders.iter().map(|folder| (&folder.name, folder.writable)).collect();
            let lent = (folders, *temporary_bytes, *messages, isolations);
            groups.entry((seats, pool, lent)).or_insert_with(|| NodeSum::of(node)).add(node);
        }
        let mut groups: Vec<NodeGroup> = groups.into_values().map(NodeSum::group).collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.all.map_or(0, |all| all.cores)));
        groups.truncate(MAX_GROUPS);
        debug_assert!(groups.iter().all(|group| group.all.is_some()), "a group without nodes: {groups:?}");
        groups
    }
}

/// Nodes that are described together, by the first of them.
struct NodeSum<'core> {
    node: &'core ManagedNode,
    all: NodeRoom,
    free: NodeRoom,
    largest: NodeRoom,
    most_free: NodeRoom,
}

impl NodeSum<'_> {
    fn of(node: &ManagedNode) -> NodeSum<'_> {
        let [all, free, largest, most_free] = [NodeRoom::default(); 4];
        NodeSum { node, all, free, largest, most_free }
    }

    fn add(&mut self, node: &ManagedNode) {
        let (all, free) = (node.capacity, node.free());
        for (sum, most, one) in
            [(&mut self.all, &mut self.largest, all), (&mut self.free, &mut self.most_free, free)]
        {
            sum.cores = sum.cores.saturating_add(one.cores);
            sum.places = sum.places.saturating_add(one.places);
            sum.memory_bytes = sum.memory_bytes.saturating_add(one.memory_bytes);
            most.cores = most.cores.max(one.cores);
            most.places = most.places.max(one.places);
            most.memory_bytes = most.memory_bytes.max(one.memory_bytes);
        }
    }

    fn group(self) -> NodeGroup {
        let NodeSum { node, all, free, largest, most_free } = self;
        let NodeDescription {
            pu,
            architecture,
            devices,
            runtimes,
            folders,
            temporary_bytes,
            messages,
            isolations,
            ..
        } = (*node.description).clone();
        // A node's position in lists depends only on known names.
        let known = |names: Vec<String>, is_known: fn(&str) -> bool| {
            names.into_iter().filter(|name| is_known(name)).take(MAX_SEATS).collect()
        };
        NodeGroup {
            pu,
            architecture,
            devices: known(devices, is_device),
            runtimes: known(runtimes, is_interpreter),
            pool: node.pool.to_string(),
            folders,
            temporary_bytes,
            messages,
            isolations,
            all: Some(all),
            free: Some(free),
            largest: Some(largest),
            most_free: Some(most_free),
        }
    }
}

/// Reads reported resources. A group has no more cores than a node may have: lists are as long as a node is large, and
/// no request is larger.
fn node_capacity(said: Option<NodeRoom>) -> NodeCapacity {
    let NodeRoom { cores, places, memory_bytes } = said.unwrap_or_default();
    NodeCapacity { cores: cores.min(MAX_NODE_CORES), places: places.min(MAX_NODE_CORES), memory_bytes }
}

/// Describes a group as the node that stands for it: its name stays the same as long as the group does.
fn description(manager: &str, group: &NodeGroup, all: NodeCapacity) -> NodeDescription {
    let NodeGroup {
        pu,
        architecture,
        devices,
        runtimes,
        pool,
        folders,
        temporary_bytes,
        messages,
        isolations,
        ..
    } = group.clone();
    let space = if temporary_bytes > 0 { temporary_bytes.to_string() } else { String::new() };
    let words = [&pu, &architecture].into_iter().chain(&devices).chain(&runtimes).chain([&pool, &space]);
    let words = words.chain(folders.iter().map(|folder| &folder.name)).chain(&isolations);
    let words: Vec<&str> = words.map(String::as_str).filter(|word| !word.is_empty()).collect();
    NodeDescription {
        name: format!("{manager} {}", words.join(" ")),
        agent: manager.to_owned(),
        rack: manager.to_owned(),
        cores: all.cores,
        shared_places: all.places,
        memory_bytes: all.memory_bytes,
        pu,
        architecture,
        devices,
        runtimes,
        pool,
        folders,
        temporary_bytes,
        messages,
        isolations,
        ..NodeDescription::default()
    }
}
