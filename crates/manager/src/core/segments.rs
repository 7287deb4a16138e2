//! Where segments go: leases of memory alone, which any node has that has memory (Scad 4.1.1, step 5), but rather one that the
//! request names, as that of a component that accesses them (step 3).
//!
//! Nodes are ranked by the magnitude of what is free. A segment goes to a node of the lowest rank where it fits, so that
//! large ones still find room.

use sublet_proto::{Code, Error};

use super::chance::Chance;
use super::messages::Request;
use super::nodes::{Amount, Nodes};
use super::placement::{Choice, Part};

/// The rank of a node with so much free. One without any has none.
pub(super) fn rank(free_bytes: u64) -> Option<u32> {
    free_bytes.checked_ilog2()
}

/// Finds a node for a segment, or says why there is none.
pub(super) fn place(nodes: &Nodes, request: &Request, chance: &mut Chance) -> Result<(Choice, Part), Error> {
    let Request { terms, locality, .. } = request;
    let memory_bytes = terms.memory_bytes;
    let fits = |node| {
        nodes.get(node).is_some_and(|node| node.takes_leases() && node.free().memory_bytes >= memory_bytes)
    };
    let near = locality.near().filter_map(|name| nodes.find(name)).find(|node| fits(*node));
    let any = || nodes.by_memory.first_fit(rank(memory_bytes).unwrap_or_default(), chance, fits);
    let found = near.or_else(any);
    let found = found.and_then(|node| Some((node, nodes.get(node)?.seats.own()?)));
    let (node, class) = found.ok_or_else(|| refusal(nodes, memory_bytes))?;
    let amount = Amount { workers: 0, shared: false, memory_bytes };
    Ok((Choice { class, build: 0 }, Part { node, amount }))
}

/// Why no node takes it.
#[cold]
fn refusal(nodes: &Nodes, asked: u64) -> Error {
    let there = || nodes.iter().map(|(_, node)| node).filter(|node| node.takes_leases());
    let Some(largest) = there().map(|node| node.capacity.memory_bytes).max() else {
        return Error::new(Code::InsufficientResources, "no node is there");
    };
    if asked > largest {
        let message = format!("{asked} bytes of memory asked, the largest node has {largest}");
        return Error::new(Code::InsufficientResources, message);
    }
    let free = there().map(|node| node.free().memory_bytes).max().unwrap_or_default();
    let message = format!("{asked} bytes of memory asked, at most {free} are free on a node");
    Error::new(Code::NoCapacity, message)
}
