//! Nodes that are each other's neighbours, as a host and its DPU (Molecule, section 3.1): with whom a node's agent may be
//! linked.
//!
//! A link is *marked* if both nodes name each other, and both are registered here and not lost. So an agent that names a node
//! which does not name it is told nothing of that, and its own operator sees that the link is not marked.
//!
//! Nothing is kept of links: each node keeps whom it names, at most [`sublet_proto::pu::MAX_NEIGHBOURS`], and that is looked up.
//! What is kept is a version for each node. It grows when something happens to the node itself or to one that it is linked
//! with, so that a report tells news by one comparison.

use std::sync::Arc;

use sublet_proto::pu;
use sublet_proto::v1::ProcessingUnit;

use super::ids::NodeKey;
use super::nodes::{Node, Nodes, Reach};

/// The nodes with whom one is linked, as its agent is told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Neighbourhood {
    /// The node itself, and its registration.
    pub own: (Arc<str>, u64),
    /// Grows with each change.
    pub version: u64,
    /// In the order in which the node names them.
    pub all: Vec<Marked>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Marked {
    /// Its name.
    pub node: Arc<str>,
    /// The latest.
    pub registration: u64,
    /// How its agent is reached.
    pub reach: Arc<Reach>,
}

/// What is kept of a node's links.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Links {
    version: u64,
    /// The registration that its neighbours know it by; 0 while it is not here.
    known: u64,
}

impl Node {
    /// By which registration neighbours know it, if it is here.
    fn standing(&self) -> u64 {
        if self.is_lost() { 0 } else { self.registration }
    }

    fn names(&self, name: &str) -> bool {
        self.description.neighbours.iter().any(|named| named == name)
    }
}

impl Nodes {
    /// To be called when a node may have come or gone: those that it is linked with have news then.
    pub(super) fn renew_links(&mut self, key: NodeKey) {
        let standing = self.get(key).map_or(0, Node::standing);
        self.stand(key, standing);
    }

    /// To be called before a node says anew whom it names.
    pub(super) fn cut_links(&mut self, key: NodeKey) {
        self.stand(key, 0);
    }

    fn stand(&mut self, key: NodeKey, standing: u64) {
        let Some(node) = self.get_mut(key).filter(|node| node.links.known != standing) else { return };
        node.links.known = standing;
        if node.description.neighbours.is_empty() {
            return;
        }
        node.links.version += 1;
        let (name, named) = (node.name.clone(), node.description.neighbours.clone());
        for other in named {
            let other = self.find(&other).and_then(|other| self.get_mut(other));
            if let Some(other) = other.filter(|other| other.names(&name)) {
                other.links.version += 1;
            }
        }
    }

    /// Those that a node is linked with now.
    fn marked<'nodes>(&'nodes self, node: &'nodes Node) -> impl Iterator<Item = &'nodes Node> {
        let named = node.description.neighbours.iter().filter(|_| node.standing() != 0);
        let named = named.filter_map(|name| self.get(self.find(name)?));
        named.filter(|other| other.standing() != 0 && other.names(&node.name))
    }

    /// What a node's agent is told.
    pub(super) fn neighbourhood(&self, key: NodeKey) -> Neighbourhood {
        let Some(node) = self.get(key) else { return Neighbourhood::default() };
        let marked = |other: &Node| Marked {
            node: other.name.clone(),
            registration: other.registration,
            reach: other.reach.clone(),
        };
        Neighbourhood {
            own: (node.name.clone(), node.registration),
            version: node.links.version,
            all: self.marked(node).map(marked).collect(),
        }
    }

    /// The node that has this unit, of a node itself and of those that it is linked with, and of what kind the unit is:
    /// the processor, or a device, which belongs to the same agent (Molecule 3.1: a virtual shim).
    pub(super) fn beside(&self, key: NodeKey, unit: u32) -> Option<(&Node, String)> {
        let node = self.get(key)?;
        [node].into_iter().chain(self.marked(node)).find_map(|node| {
            let units = pu::units(&node.description, self.classes.prices(), &[]);
            units.into_iter().find(|found| found.id == unit).map(|found| (node, found.kind))
        })
    }

    /// The same, for an agent that knows another version.
    pub(super) fn news_of_neighbours(&self, key: NodeKey, known: u64) -> Option<Neighbourhood> {
        self.get(key).filter(|node| node.links.version != known).map(|_| self.neighbourhood(key))
    }

    /// The processing units of a node, with their prices.
    pub(super) fn units(&self, node: &Node) -> Vec<ProcessingUnit> {
        let neighbours: Vec<String> = self.marked(node).map(|other| other.name.to_string()).collect();
        pu::units(&node.description, self.classes.prices(), &neighbours)
    }
}
