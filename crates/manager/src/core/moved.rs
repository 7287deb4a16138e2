//! Nodes that go to another manager: nodes that may have gone, nodes that have come, and letting go of the gone ones.
//!
//! An agent that loses its manager registers with another one, which takes over the node's leases. The previous manager
//! hears nothing of that: the leases that it still counts on the node would count for its tenants, beside those that
//! the new manager counts. So a manager publishes which nodes it misses, and a manager that has one of them by a later
//! registration answers. Generations, which the agent itself has numbered, decide which of two registrations is the
//! later, not the time of the last report: silence only decides which nodes to ask about.
//!
//! A node that is let go of takes its leases along. They have not ended and are not billed here: their agent has listed
//! them to the other manager. Usage that is not stored yet is kept until it is, in case the agent has died meanwhile
//! and no other manager knows it. If the node comes back before that, its leases continue.

use sublet_proto::v1::NodeGeneration;

use super::ids::NodeKey;
use super::lease::LeasePhase;
use super::messages::CoreAction;
use super::nodes::ManagedNode;
use super::resources::NodeCapacity;
use super::{Core, SILENCE_TICKS};

/// Ticks without a report after which the other managers are asked for a node: 1.5 s, as agents report each second.
const MISSING_TICKS: u32 = 3;

impl Core {
    /// Returns the nodes that have not reported lately.
    pub fn missing(&self) -> impl Iterator<Item = NodeGeneration> {
        let missing = |node: &&ManagedNode| {
            let counts = node.registration != 0 || node.attached + node.unattached > 0;
            counts && node.silent_ticks > MISSING_TICKS
        };
        self.nodes().filter(missing).map(generation)
    }

    /// Returns the nodes, out of those that others miss, that have a later registration here.
    pub fn found(&self, missing: &[NodeGeneration]) -> Vec<NodeGeneration> {
        let found = missing.iter().filter_map(|missing| {
            let node = self.nodes.get(self.nodes.find(&missing.node)?)?;
            (node.registration != 0 && node.generation > missing.generation).then(|| generation(node))
        });
        found.collect()
    }

    /// Another manager has the node by a registration of this generation. If it is later than this manager's, the
    /// node and its leases are gone from here.
    pub(super) fn moved(&mut self, key: NodeKey, generation: u64, out: &mut Vec<CoreAction>) {
        if self.nodes.get(key).is_none_or(|node| node.generation >= generation) {
            return;
        }
        for lease in self.leases_of(key) {
            self.let_go(lease, out);
        }
        self.nodes.change(key, |node| {
            debug_assert_eq!(
                node.leased,
                NodeCapacity::default(),
                "left of node {}, which has moved",
                node.name
            );
            debug_assert_eq!(
                (node.attached, node.unattached),
                (0, 0),
                "leases of {}, which moved",
                node.name
            );
            node.registration = 0;
            node.generation = generation;
            node.silent_ticks = node.silent_ticks.max(SILENCE_TICKS + 1);
        });
        if self.nodes.get(key).is_some_and(|node| node.leases.is_empty()) {
            self.nodes.remove(key);
        }
    }

    fn let_go(&mut self, key: u32, out: &mut Vec<CoreAction>) {
        let was_granted = self.release(key, LeasePhase::Moved) == Some(LeasePhase::Granted);
        let Some(lease) = self.leases.get_mut(key) else { return };
        lease.marks.is_settled = true;
        if was_granted || lease.is_stored() {
            self.forget(key, out);
        }
    }

    /// A lease that has moved is on a node of this manager again.
    pub(super) fn take_back(&mut self, key: u32) {
        let Some(lease) = self.leases.get_mut(key).filter(|lease| lease.state == LeasePhase::Moved) else {
            return;
        };
        lease.state = LeasePhase::Attached;
        lease.marks.is_settled = false;
        self.hold(key);
    }
}

fn generation(node: &ManagedNode) -> NodeGeneration {
    NodeGeneration { node: node.name.to_string(), generation: node.generation }
}
