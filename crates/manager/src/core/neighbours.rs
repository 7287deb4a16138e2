//! Nodes that are each other's neighbours, as a host and its DPU (Molecule, section 3.1): with whom a node's agent may be
//! linked.
//!
//! A link is *marked* if both nodes name each other, and both are registered here and not lost. So an agent that names a node
//! which does not name it is told nothing of that, and its own operator sees that the link is not marked.
//!
//! Two nodes that are both linked with a third, and not with each other, as two DPUs of one host, are of one computer all the same: the third
//! *bridges* them (section 5), and each is told so.
//!
//! Nothing is kept of links: each node keeps whom it names, at most [`sublet_proto::pu::MAX_NEIGHBOURS`], and that is looked up.
//! What is kept is a version for each node. It grows when something happens to the node itself or to one that it is linked
//! or bridged with, so that a report tells news by one comparison.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use sublet_proto::pu;
use sublet_proto::v1::ProcessingUnit;

use super::ids::NodeKey;
use super::nodes::{Node, Nodes, Reach};

/// Most that a node's agent is told of: whom it names, and as many again that these bridge.
const MAX_AROUND: usize = 2 * pu::MAX_NEIGHBOURS;

/// The nodes with whom one is linked or bridged, as its agent is told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Neighbourhood {
    /// The node itself, and its registration.
    pub own: (Arc<str>, u64),
    /// Grows with each change.
    pub version: u64,
    /// In the order in which the node names them; those that are bridged behind the others.
    pub all: Vec<Marked>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Marked {
    /// Its name.
    pub node: Arc<str>,
    /// The latest.
    pub registration: u64,
    /// How its agent is reached,
    pub reach: Arc<Reach>,
    /// and by which neighbour, if not directly.
    pub bridge: Option<Arc<str>>,
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
        let mut beyond = Vec::new();
        for other in self.naming(&named, &name) {
            let Some(other) = self.get_mut(other) else { continue };
            other.links.version += 1;
            beyond.push((other.name.clone(), other.description.neighbours.clone()));
        }
        let beyond = beyond.iter().flat_map(|(bridge, named)| self.naming(named, bridge));
        let beyond: BTreeSet<NodeKey> = beyond.filter(|other| *other != key).collect();
        for other in beyond {
            if let Some(other) = self.get_mut(other) {
                other.links.version += 1;
            }
        }
    }

    /// Those of these that name this one.
    fn naming(&self, named: &[String], name: &str) -> Vec<NodeKey> {
        let found = named.iter().filter_map(|other| self.find(other));
        found.filter(|other| self.get(*other).is_some_and(|other| other.names(name))).collect()
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
        let marked = |(other, bridge): (&Node, Option<&Node>)| Marked {
            node: other.name.clone(),
            registration: other.registration,
            reach: other.reach.clone(),
            bridge: bridge.map(|bridge| bridge.name.clone()),
        };
        Neighbourhood {
            own: (node.name.clone(), node.registration),
            version: node.links.version,
            all: self.around(node).into_iter().map(marked).collect(),
        }
    }

    /// Those that a node is linked with, and those that one of these bridges: the first that does.
    fn around<'nodes>(&'nodes self, node: &'nodes Node) -> Vec<(&'nodes Node, Option<&'nodes Node>)> {
        let mut all: Vec<(&Node, Option<&Node>)> = self.marked(node).map(|other| (other, None)).collect();
        let mut known: HashSet<&str> =
            all.iter().map(|(other, _)| &*other.name).chain([&*node.name]).collect();
        for bridge in self.marked(node) {
            for other in self.marked(bridge) {
                if all.len() < MAX_AROUND && known.insert(&other.name) {
                    all.push((other, Some(bridge)));
                }
            }
        }
        debug_assert!(all.len() <= MAX_AROUND, "{} has {} neighbours", node.name, all.len());
        all
    }

    /// The node that has this unit, of a node itself and of those that it is linked or bridged with, and of what kind the unit is:
    /// the processor, or a device, which belongs to the same agent (Molecule 3.1: a virtual shim).
    pub(super) fn beside(&self, key: NodeKey, unit: u32) -> Option<(&Node, String)> {
        let node = self.get(key)?;
        [node].into_iter().chain(self.around(node).into_iter().map(|(other, _)| other)).find_map(|node| {
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
