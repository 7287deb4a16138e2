//! Nodes that are each other's neighbours, as a host and its DPU (Molecule, section 3.1): the nodes that a node's agent
//! may be linked with.
//!
//! A link is *marked* if both nodes name each other, and both are registered here and not lost. An agent that names a
//! node which does not name it gets no error; its operator sees that the link is not marked.
//!
//! Two nodes that are both linked with a third, and not with each other, as two DPUs of one host, are still of one
//! computer: the third *bridges* them (section 5), and the manager reports that to each.
//!
//! Links are not stored: each node keeps the names of its neighbours, at most [`sublet_proto::pu::MAX_NEIGHBOURS`], and
//! links are looked up from these. Each node also keeps a version. It grows when something happens to the node itself
//! or to one that it is linked or bridged with, so that one comparison shows whether a report needs an update.

use std::collections::{BTreeSet, HashSet};

use sublet_proto::pu;
use sublet_proto::v1::{ConnectedNodes, ProcessingUnit};

use super::ids::NodeKey;
use super::messages::{Neighbourhood, NeighbourhoodNode};
use super::nodes::{ManagedNode, Nodes};

/// Most nodes that an agent is linked or bridged with: those it names, and as many again that these bridge.
const MAX_AROUND: usize = 2 * pu::MAX_NEIGHBOURS;

impl ManagedNode {
    /// Registration that neighbours know it by; 0 if it is lost or not registered.
    fn standing(&self) -> u64 {
        if self.is_lost() { 0 } else { self.registration }
    }

    fn names(&self, name: &str) -> bool {
        self.description.neighbours.iter().any(|named| named == name)
    }
}

impl Nodes {
    /// Tells linked nodes of a change. Call it when a node may have come or gone.
    pub(super) fn renew_links(&mut self, key: NodeKey) {
        let standing = self.get(key).map_or(0, ManagedNode::standing);
        self.stand(key, standing);
    }

    /// Cuts a node's links. Call it before the node's list of neighbours changes.
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

    /// Nodes of this list that name the given node.
    fn naming(&self, named: &[String], name: &str) -> Vec<NodeKey> {
        let found = named.iter().filter_map(|other| self.find(other));
        found.filter(|other| self.get(*other).is_some_and(|other| other.names(name))).collect()
    }

    /// Nodes that a node is linked with now.
    fn marked<'nodes>(&'nodes self, node: &'nodes ManagedNode) -> impl Iterator<Item = &'nodes ManagedNode> {
        let named = node.description.neighbours.iter().filter(|_| node.standing() != 0);
        let named = named.filter_map(|name| self.get(self.find(name)?));
        named.filter(|other| other.standing() != 0 && other.names(&node.name))
    }

    /// Returns the neighbourhood for a node's agent.
    pub(super) fn neighbourhood(&self, key: NodeKey) -> Neighbourhood {
        let Some(node) = self.get(key) else { return Neighbourhood::default() };
        let marked = |(other, bridge): (&ManagedNode, Option<&ManagedNode>)| NeighbourhoodNode {
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

    /// Nodes that a node is linked with, and those that one of these bridges: the first that does.
    fn around<'nodes>(
        &'nodes self,
        node: &'nodes ManagedNode,
    ) -> Vec<(&'nodes ManagedNode, Option<&'nodes ManagedNode>)> {
        let mut all: Vec<(&ManagedNode, Option<&ManagedNode>)> =
            self.marked(node).map(|other| (other, None)).collect();
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

    /// Returns the node that has this unit, out of a node itself and those that it is linked or bridged with, and the
    /// unit's kind: the processor, or a device, which belongs to the same agent (Molecule 3.1: a virtual shim).
    pub(super) fn beside(&self, key: NodeKey, unit: u32) -> Option<(&ManagedNode, String)> {
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

    /// Notes the neighbours to which a node's agent is connected, as the agent reports them.
    pub(super) fn note_connected(&mut self, key: NodeKey, reported: Option<ConnectedNodes>) {
        let Some(node) = self.get(key) else { return };
        let connected = reported.map(|ConnectedNodes { nodes }| {
            let around = self.around(node).into_iter().map(|(other, _)| other.name.to_string());
            ConnectedNodes { nodes: around.filter(|name| nodes.contains(name)).collect() }
        });
        if let Some(node) = self.get_mut(key) {
            node.connected = connected;
        }
    }

    /// The processing units of a node, with their prices.
    pub(super) fn units(&self, node: &ManagedNode) -> Vec<ProcessingUnit> {
        let neighbours: Vec<String> = self.marked(node).map(|other| other.name.to_string()).collect();
        pu::units(&node.description, self.classes.prices(), &neighbours)
    }
}
