//! The nodes, what is leased of them, and which of them a lease goes to.

use std::collections::BTreeMap;

use sublet_proto::v1::{NodeDescription, NodeInfo};
use sublet_proto::{Code, Error};

use super::{SILENCE_TICKS, TICK_MS};

/// Most nodes of one manager.
pub const MAX_NODES: usize = 1024;
/// Most cores of one node.
const MAX_NODE_CORES: u32 = 65_536;
const MAX_NAME_BYTES: usize = 64;
/// Ticks after which a lost node without leases is forgotten: an hour.
const FORGET_TICKS: u32 = (60 * 60 * 1000 / TICK_MS) as u32;

/// Cores and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) cores: u32,
    pub(super) memory_bytes: u64,
}

impl Amount {
    pub(super) fn plus(self, other: Amount) -> Amount {
        Amount {
            cores: self.cores.saturating_add(other.cores),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }

    fn minus(self, other: Amount) -> Amount {
        Amount {
            cores: self.cores.saturating_sub(other.cores),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
        }
    }

    fn holds(self, other: Amount) -> bool {
        self.cores >= other.cores && self.memory_bytes >= other.memory_bytes
    }
}

#[derive(Debug)]
struct Node {
    description: NodeDescription,
    leased: Amount,
    last_report_ms: u64,
    silent_ticks: u32,
}

impl Node {
    fn capacity(&self) -> Amount {
        Amount { cores: self.description.cores, memory_bytes: self.description.memory_bytes }
    }

    fn free(&self) -> Amount {
        self.capacity().minus(self.leased)
    }

    fn is_silent(&self) -> bool {
        self.silent_ticks > SILENCE_TICKS
    }
}

/// Every node, by name.
#[derive(Debug, Default)]
pub(super) struct Nodes(BTreeMap<String, Node>);

impl Nodes {
    /// Adds a node, or takes it up again with what is leased of it.
    pub(super) fn register(
        &mut self,
        now_ms: u64,
        description: NodeDescription,
        leased: Amount,
    ) -> Result<(), Error> {
        check_description(&description)?;
        match self.0.get(&description.name) {
            Some(known) if known.description.agent != description.agent && !known.is_silent() => {
                let agent = &known.description.agent;
                return Err(invalid(format!(
                    "there is a node {} already, with agent {agent}",
                    description.name
                )));
            }
            None if self.0.len() >= MAX_NODES => {
                return Err(invalid(format!(
                    "there are {MAX_NODES} nodes already, one manager takes no more"
                )));
            }
            _ => {}
        }
        let name = description.name.clone();
        self.0.insert(name, Node { description, leased, last_report_ms: now_ms, silent_ticks: 0 });
        Ok(())
    }

    /// Notes a sign of life; whether the node is known.
    pub(super) fn heard_from(&mut self, now_ms: u64, name: &str) -> bool {
        let Some(node) = self.0.get_mut(name) else { return false };
        node.last_report_ms = now_ms;
        node.silent_ticks = 0;
        true
    }

    pub(super) fn tick(&mut self) {
        for node in self.0.values_mut() {
            node.silent_ticks = node.silent_ticks.saturating_add(1);
        }
    }

    /// Forgets nodes that have been silent for long and are not needed.
    pub(super) fn forget_lost(&mut self, is_unneeded: impl Fn(&str) -> bool) {
        self.0.retain(|name, node| node.silent_ticks < FORGET_TICKS || !is_unneeded(name));
    }

    pub(super) fn reserve(&mut self, name: &str, amount: Amount) {
        if let Some(node) = self.0.get_mut(name) {
            node.leased = node.leased.plus(amount);
        }
    }

    pub(super) fn release(&mut self, name: &str, amount: Amount) {
        if let Some(node) = self.0.get_mut(name) {
            node.leased = node.leased.minus(amount);
        }
    }

    pub(super) fn agent(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|node| node.description.agent.as_str())
    }

    pub(super) fn infos(&self) -> impl Iterator<Item = NodeInfo> + '_ {
        self.0.values().map(|node| NodeInfo {
            description: Some(node.description.clone()),
            cores_leased: node.leased.cores,
            memory_leased_bytes: node.leased.memory_bytes,
            last_report_unix_ms: node.last_report_ms,
        })
    }

    /// The node that a lease goes to: of those where it fits, the one with the fewest cores left, so that large
    /// leases still find room.
    pub(super) fn find(&self, architecture: &str, asked: Amount) -> Result<&str, Error> {
        let reachable: Vec<&Node> = self
            .0
            .values()
            .filter(|n| n.description.architecture == architecture && !n.is_silent())
            .collect();
        reachable
            .iter()
            .filter(|node| node.free().holds(asked))
            .min_by_key(|node| (node.free().cores, node.free().memory_bytes))
            .map(|node| node.description.name.as_str())
            .ok_or_else(|| refusal(architecture, asked, &reachable))
    }
}

fn check_description(node: &NodeDescription) -> Result<(), Error> {
    if !(1..=MAX_NAME_BYTES).contains(&node.name.len()) || node.name.contains(char::is_control) {
        return Err(invalid(format!("{:?} is no name of a node: 1 to {MAX_NAME_BYTES} bytes", node.name)));
    }
    if !(1..=MAX_NODE_CORES).contains(&node.cores) {
        return Err(invalid(format!(
            "node {} says that it has {} cores, not 1 to {MAX_NODE_CORES}",
            node.name, node.cores
        )));
    }
    for (what, value) in [("agent", &node.agent), ("architecture", &node.architecture)] {
        if value.is_empty() {
            return Err(invalid(format!("node {} says no {what}", node.name)));
        }
    }
    Ok(())
}

/// Why no reachable node takes the lease, with what would fit.
fn refusal(architecture: &str, asked: Amount, reachable: &[&Node]) -> Error {
    let insufficient = |message| Error::new(Code::InsufficientResources, message);
    let Some(most_cores) = reachable.iter().map(|node| node.capacity().cores).max() else {
        return insufficient(format!("no node of architecture {architecture} is there"));
    };
    let most_memory = reachable.iter().map(|node| node.capacity().memory_bytes).max().unwrap_or_default();
    let Amount { cores, memory_bytes } = asked;
    if cores > most_cores {
        return insufficient(format!("{cores} cores asked, the largest node has {most_cores}"));
    }
    if memory_bytes > most_memory {
        return insufficient(format!(
            "{memory_bytes} bytes of memory asked, the largest node has {most_memory}"
        ));
    }
    let large_enough = reachable.iter().filter(|node| node.capacity().holds(asked));
    match large_enough.max_by_key(|node| (node.free().cores, node.free().memory_bytes)) {
        Some(node) => no_capacity(asked, node),
        None => insufficient(format!("no node has both {cores} cores and {memory_bytes} bytes of memory")),
    }
}

fn no_capacity(asked: Amount, node: &Node) -> Error {
    let (free, all) = (node.free(), node.capacity());
    let message = if asked.cores > free.cores {
        format!("{} cores asked, {} of {} free", asked.cores, free.cores, all.cores)
    } else {
        format!(
            "{} bytes of memory asked, {} of {} free",
            asked.memory_bytes, free.memory_bytes, all.memory_bytes
        )
    };
    Error::new(Code::NoCapacity, message)
}

fn invalid(message: String) -> Error {
    Error::new(Code::InvalidArgument, message)
}
