//! Resources of nodes and of leases on them, and how a node is reached.

use sublet_proto::pool::Pool;
use sublet_proto::v1::{NodeDescription, NodeNetwork};

use super::terms::LeaseTerms;

/// Resources that a lease holds of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseResources {
    /// Number of workers.
    pub workers: u32,
    /// Whether they are on shared cores, instead of each on its own.
    pub shared: bool,
    /// Memory of all workers together.
    pub memory_bytes: u64,
    /// Pool in which it counts: that of its node when the lease was placed there.
    pub pool: Pool,
}

/// Cores, places on shared cores, and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCapacity {
    /// Lent to one lease each.
    pub cores: u32,
    /// Workers on shared cores.
    pub places: u32,
    /// Memory, in bytes.
    pub memory_bytes: u64,
}

impl NodeCapacity {
    pub(super) fn plus(self, amount: LeaseResources) -> NodeCapacity {
        let (cores, places) = split(amount);
        NodeCapacity {
            cores: self.cores.saturating_add(cores),
            places: self.places.saturating_add(places),
            memory_bytes: self.memory_bytes.saturating_add(amount.memory_bytes),
        }
    }

    pub(super) fn minus(self, amount: LeaseResources) -> NodeCapacity {
        let (cores, places) = split(amount);
        debug_assert!(
            cores <= self.cores && places <= self.places && amount.memory_bytes <= self.memory_bytes,
            "cannot release {amount:?}: only {self:?} is leased"
        );
        NodeCapacity {
            cores: self.cores.saturating_sub(cores),
            places: self.places.saturating_sub(places),
            memory_bytes: self.memory_bytes.saturating_sub(amount.memory_bytes),
        }
    }

    pub(super) fn without(self, other: NodeCapacity) -> NodeCapacity {
        NodeCapacity {
            cores: self.cores.saturating_sub(other.cores),
            places: self.places.saturating_sub(other.places),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
        }
    }

    /// Returns the number of workers of one kind.
    pub(super) fn workers(&self, shared: bool) -> u32 {
        if shared { self.places } else { self.cores }
    }
}

fn split(amount: LeaseResources) -> (u32, u32) {
    if amount.shared { (0, amount.workers) } else { (amount.workers, 0) }
}

/// Addresses of a node's agent for clients; sent with each grant.
#[derive(Debug, Default, PartialEq)]
pub struct Reach {
    /// Address on its own machine: `unix:/path`.
    pub agent: String,
    /// Machine of the agent.
    pub host: String,
    /// Network addresses, if other machines can reach it.
    pub network: Option<NodeNetwork>,
}

impl Reach {
    pub(super) fn of(description: &NodeDescription) -> Reach {
        let NodeDescription { agent, host, network, .. } = description;
        Reach { agent: agent.clone(), host: host.clone(), network: network.clone() }
    }
}

/// Whether an agent takes leases on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LendingState {
    /// New leases may come.
    Open,
    /// No new lease may come.
    Draining,
    /// No new lease may come, and running ones are being ended.
    Reclaimed,
}

/// Largest single node of a rack's group: belongs to a node of this core that stands for several.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfRack {
    /// The most that one node of the group has.
    pub(super) largest: NodeCapacity,
    /// The most that is free on one node of the group.
    pub(super) most_free: NodeCapacity,
}

impl OfRack {
    /// Tells whether one of the nodes can hold the part of a request that must be on one node.
    pub(super) fn may_take(&self, terms: &LeaseTerms) -> bool {
        let (workers, memory_bytes) = match terms.max_nodes {
            1 => (terms.workers, terms.memory_bytes),
            _ => (terms.cores_together(), terms.memory_of(terms.cores_together())),
        };
        workers <= self.most_free.workers(terms.shared) && memory_bytes <= self.most_free.memory_bytes
    }
}

/// Returns the rank by memory of a node with this much free, or of a request for as much. Without memory there is none.
pub(super) fn memory_rank(bytes: u64) -> Option<u32> {
    bytes.checked_ilog2()
}
