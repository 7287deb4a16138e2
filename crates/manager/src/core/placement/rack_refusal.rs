//! Words the refusal of a global manager, whose nodes are racks.

use std::collections::HashMap;

use sublet_proto::{Code, Error};

use super::super::ids::{ClassKey, RackKey};
use super::super::messages::ClientRequest;
use super::super::nodes::ManagedNode;
use super::search::Search;

/// Resources of the nodes of a class in one rack.
#[derive(Clone, Copy, Default)]
struct InRack {
    all: u64,
    free: u64,
}

/// Builds the refusal when no rack takes the workers, with the amounts that exist and are free.
#[cold]
pub(super) fn refusal(search: &Search<'_>, class: ClassKey) -> Error {
    let Search { nodes, request: ClientRequest { terms, .. }, pools } = *search;
    let (asked, place) = (terms.workers, pools.place());
    let kind = if terms.shared { "shared places" } else { "cores" };
    let mut racks = HashMap::<RackKey, InRack>::new();
    let (mut largest, mut most_memory) = (0, 0);
    let is_there = |node: &&ManagedNode| node.seats.has(class) && node.takes_leases() && pools.has(node.pool);
    for node in nodes.iter().map(|(_, node)| node).filter(is_there) {
        let rack = racks.entry(node.rack).or_default();
        rack.all += u64::from(node.capacity.workers(terms.shared));
        rack.free += u64::from(node.free().workers(terms.shared));
        largest = largest.max(node.largest().workers(terms.shared));
        most_memory = most_memory.max(node.largest().memory_bytes);
    }
    let insufficient = |message: String| Error::new(Code::InsufficientResources, format!("{message}{place}"));
    let Some(most) = racks.values().map(|rack| rack.all).max() else {
        return insufficient(format!("no rack with nodes of {} is there", nodes.classes.name(class)));
    };
    if u64::from(asked) > most {
        return insufficient(format!("{asked} {kind} asked, the largest rack has {most}"));
    }
    if terms.max_nodes == 1 && asked > largest {
        return insufficient(format!(
            "{asked} {kind} of one node asked, the largest node of a rack has {largest}"
        ));
    }
    let each = terms.cores_together();
    if each > largest {
        return insufficient(format!(
            "{each} cores of one node asked for each worker, the largest node of a rack has {largest}"
        ));
    }
    let one_node = if terms.max_nodes == 1 { asked } else { each };
    let (memory, one) = (terms.memory_bytes, terms.memory_of(one_node));
    if one > most_memory {
        return insufficient(format!(
            "{memory} bytes of memory asked, {one} of them on one node, the largest node of a rack has {most_memory}"
        ));
    }
    let InRack { all, free } = racks.into_values().max_by_key(|rack| rack.free).unwrap_or_default();
    let message = format!(
        "{asked} {kind} and {memory} bytes of memory asked, the rack with most has {free} of {all} {kind} free{place}"
    );
    Error::new(Code::NoCapacity, message)
}
