//! Places segments: leases of memory without cores, on any node with the memory
//! (Scad 4.1.1, step 5), preferably on one that the request names, as that of a component that accesses them (step 3), or one
//! of its rack (step 2).
//!
//! Nodes are ranked by the magnitude of their free memory. A segment goes to a node of the lowest rank where it fits,
//! so that large ones still fit somewhere.

use sublet_proto::pool::Pool;
use sublet_proto::{Code, Error};

use super::super::chance::Chance;
use super::super::classes::Choice;
use super::super::messages::ClientRequest;
use super::super::nodes::ManagedNode;
use super::super::pools::Pools;
use super::super::racks::{Measure, RackPool};
use super::super::resources::{LeaseResources, memory_rank};
use super::search::{PlacementPart, Search, Steps};

/// Finds a node for a segment, or returns why none fits.
pub(super) fn place(search: &Search<'_>, chance: &mut Chance) -> Result<(Choice, PlacementPart), Error> {
    let Search { nodes, request: ClientRequest { terms, .. }, .. } = *search;
    let memory_bytes = terms.memory_bytes;
    let fits = |node: &ManagedNode| {
        node.takes_leases() && node.free().memory_bytes >= memory_bytes && node.may_take(search.request)
    };
    let any = |group: RackPool, chance: &mut Chance| {
        let fits = |node| nodes.get(node).is_some_and(fits);
        nodes.by_memory.list(group)?.first_fit(memory_rank(memory_bytes).unwrap_or_default(), chance, fits)
    };
    // A segment has no environment that could be warm.
    let found = search.one(&Steps { fits, warm: |_, _| None, any, measure: Measure::MemoryBytes }, chance);
    let found = found.and_then(|node| Some((node, nodes.get(node)?.seats.own()?)));
    let (node, class) = found.ok_or_else(|| refusal(search, memory_bytes))?;
    debug_assert!(
        nodes.get(node).is_some_and(fits),
        "{memory_bytes} bytes were placed on {:?}",
        nodes.get(node)
    );
    let amount = LeaseResources { workers: 0, shared: false, memory_bytes, pool: Pool::Balanced };
    Ok((Choice { class, build: 0 }, search.part(node, amount)))
}

/// Builds the refusal when no node takes the segment.
#[cold]
fn refusal(search: &Search<'_>, asked: u64) -> Error {
    let Search { nodes, pools, .. } = *search;
    let place = pools.place();
    let there = || {
        let nodes_there = nodes.iter().map(|(_, node)| node).filter(|node| node.is_there());
        nodes_there.filter(move |node| nodes.may_be_in(node, pools))
    };
    let Some(largest) = there().map(|node| node.largest().memory_bytes).max() else {
        let message = if pools == Pools::FLASH {
            "no node lends flash: that takes an agent with a part of a disk ([flash])".to_owned()
        } else {
            format!("no node is there{place}")
        };
        return Error::new(Code::InsufficientResources, message);
    };
    if asked > largest {
        let message = format!("{asked} bytes of memory asked, the largest node has {largest}{place}");
        return Error::new(Code::InsufficientResources, message);
    }
    let in_pools = there().filter(|node| pools.has(node.pool));
    let free = in_pools.map(|node| node.most_free().memory_bytes).max().unwrap_or_default();
    let message = format!("{asked} bytes of memory asked, at most {free} are free on a node{place}");
    Error::new(Code::NoCapacity, message)
}
