//! A search for the nodes of a request: the order in which racks, pools and nodes are tried.

use sublet_proto::pool::Pool;

use super::super::chance::Chance;
use super::super::ids::{NodeKey, RackKey};
use super::super::messages::ClientRequest;
use super::super::nodes::{ManagedNode, Nodes};
use super::super::pools::Pools;
use super::super::racks::{Measure, RackPool};
use super::super::resources::LeaseResources;

/// Workers of a request that are on one node.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct PlacementPart {
    pub(in crate::core) node: NodeKey,
    pub(in crate::core) amount: LeaseResources,
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
    /// Makes the part of a request on a node. It counts in the pool in which the node is now.
    pub(super) fn part(&self, node: NodeKey, amount: LeaseResources) -> PlacementPart {
        let pool = self.nodes.get(node).map_or(amount.pool, |node| node.pool);
        PlacementPart { node, amount: LeaseResources { pool, ..amount } }
    }

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

    /// Returns the racks of the neighbours, each once.
    pub(super) fn racks(&self) -> Vec<RackKey> {
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
}
