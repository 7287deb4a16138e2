//! Carries messages between compute components in memory. Each pair of components with a message edge gets a memory
//! component that both may write and that the graph's document does not name. It has a queue for each of their
//! instances. The component is made, shared, lost and made anew like all memory, and components that exchange messages
//! begin again together.

use sublet_proto::graph::{Component, Edge, Graph, Medium, MemoryNeed, MemoryRights, Relation, Role};
use sublet_proto::v1;

use crate::worker::mailbox::QUEUE_BYTES;

/// The graph as it is executed: with a further memory component for each message edge.
pub(super) fn with_mailboxes(graph: &Graph) -> Graph {
    let mut driven = graph.clone();
    for edge in graph.edges.iter().filter(|edge| edge.relation == Relation::Message) {
        let name = |component: usize| graph.components[component].name.as_str();
        let queues = [edge.from, edge.to].map(|component| u64::from(instances(graph, component)));
        let bytes = (queues[0] + queues[1]) * QUEUE_BYTES;
        let (initial_bytes, increment_bytes) = (Some(bytes), Some(bytes));
        let memory = MemoryNeed {
            initial_bytes,
            increment_bytes,
            limit_bytes: bytes,
            pool: None,
            is_result: false,
            medium: Medium::Memory,
        };
        let to = driven.components.len();
        driven.components.push(Component {
            // No name that a document may have.
            name: format!("{}~{}", name(edge.from), name(edge.to)),
            role: Role::Memory(memory),
        });
        let relation = Relation::Access(MemoryRights::Write);
        driven.edges.extend([edge.from, edge.to].map(|from| Edge { from, to, relation, condition: None }));
    }
    driven
}

/// Describes a mailbox to one of the two components that access it. `None` if the memory component is not a mailbox.
pub(super) fn mailbox(graph: &Graph, memory: usize, component: usize) -> Option<v1::Mailbox> {
    graph.components[memory].name.split_once('~')?;
    let (one, other) = ends(graph, memory)?;
    let (peer, own_queue, peer_queue) = match component == one {
        true => (other, 0, instances(graph, one)),
        false => (one, instances(graph, one), 0),
    };
    Some(v1::Mailbox {
        peer: graph.components[peer].name.clone(),
        peers: instances(graph, peer),
        own_queue,
        peer_queue,
        peer_end: u32::from(component == one),
    })
}

/// The index of a component's end of a mailbox: 0 or 1.
pub(super) fn end_of(graph: &Graph, memory: usize, component: usize) -> Option<u32> {
    mailbox(graph, memory, component).map(|mailbox| 1 - mailbox.peer_end)
}

fn ends(graph: &Graph, memory: usize) -> Option<(usize, usize)> {
    let mut ends = graph.edges_to(memory).map(|edge| edge.from);
    Some((ends.next()?, ends.next()?))
}

fn instances(graph: &Graph, component: usize) -> u32 {
    graph.components[component].compute().map_or(0, |compute| compute.parallelism)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_mailbox_have_queues_of_their_own() {
        let document = r#"{ "version": 1, "name": "talk",
            "components": [
                { "name": "entry", "type": "compute", "package": "p", "function": "f", "entry": true },
                { "name": "ask", "type": "compute", "package": "p", "function": "f", "parallelism": 2 },
                { "name": "tell", "type": "compute", "package": "p", "function": "f", "parallelism": 3 } ],
            "edges": [
                { "type": "trigger", "from": "entry", "to": "ask" },
                { "type": "trigger", "from": "entry", "to": "tell" },
                { "type": "message", "from": "ask", "to": "tell" } ] }"#;
        let graph = Graph::parse(document.as_bytes()).unwrap();
        let driven = with_mailboxes(&graph);
        assert_eq!((driven.components.len(), driven.edges.len()), (4, 5));
        assert_eq!(driven.components[3].name, "ask~tell");
        assert_eq!(driven.components[3].memory().unwrap().initial_bytes, Some(5 * QUEUE_BYTES));
        let ask = mailbox(&driven, 3, 1).unwrap();
        assert_eq!((ask.peer.as_str(), ask.peers, ask.own_queue, ask.peer_queue), ("tell", 3, 0, 2));
        let tell = mailbox(&driven, 3, 2).unwrap();
        assert_eq!((tell.peer.as_str(), tell.peers, tell.own_queue, tell.peer_queue), ("ask", 2, 2, 0));
        assert_eq!((end_of(&driven, 3, 1), end_of(&driven, 3, 2)), (Some(0), Some(1)));
        assert_eq!((ask.peer_end, tell.peer_end), (1, 0));
        let alone = with_mailboxes(
            &Graph::parse(
                br#"{ "version": 1, "name": "a", "edges": [], "components": [
                { "name": "a", "type": "compute", "package": "p", "function": "f", "entry": true } ] }"#,
            )
            .unwrap(),
        );
        assert_eq!(alone.components.len(), 1);
    }
}
