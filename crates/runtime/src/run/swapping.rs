//! Adds swap space to a run: a memory component, not named in the document, for each instance of a compute component
//! that swaps. A worker process uses that of its first instance. The component is leased as it is needed, shown and
//! counted like all memory. When it is lost the compute component begins again, and the swapped bytes are of no further
//! use.

use sublet_proto::graph::{Component, Edge, Graph, MemoryNeed, MemoryRights, Relation, Role};
use sublet_proto::limits::MIN_SEGMENT_BYTES;

/// Part of the names of swap components, which no name in a document can have.
const OF: &str = "/swap";
/// The smallest amount that is leased at a time, in bytes.
const MIN_STEP_BYTES: u64 = 16 << 20;
/// Number of steps in which an instance leases its whole swap space. Each step is a lease, and a connection to its
/// agent.
const STEPS: u64 = 64;

/// The graph as it is executed: with a further memory component for each instance that swaps.
pub(super) fn with_swap_space(graph: &Graph) -> Graph {
    let mut driven = graph.clone();
    for (from, component) in graph.components.iter().enumerate() {
        let Some(compute) = component.compute() else { continue };
        let Some(swap_bytes) = compute.resources.swap_bytes else { continue };
        for instance in 0..compute.parallelism {
            // A process whose first instance is this one may execute all later ones, too.
            let limit_bytes = swap_bytes.saturating_mul((compute.parallelism - instance).into());
            // The size does not follow earlier runs: after runs that swapped little, it would grow page by page, also
            // in a run that then swaps much.
            let step_bytes = (swap_bytes / STEPS).next_multiple_of(MIN_SEGMENT_BYTES).max(MIN_STEP_BYTES);
            let (initial_bytes, increment_bytes) = (Some(step_bytes), Some(step_bytes));
            let memory =
                MemoryNeed { initial_bytes, increment_bytes, limit_bytes, pool: None, is_result: false };
            let number = if instance == 0 { String::new() } else { format!("/{instance}") };
            let to = driven.components.len();
            driven.components.push(Component {
                name: format!("{}{OF}{number}", component.name),
                role: Role::Memory(memory),
            });
            driven.edges.push(Edge {
                from,
                to,
                relation: Relation::Access(MemoryRights::Write),
                condition: None,
            });
        }
    }
    driven
}

/// The first instance of the process that swaps to a memory component. `None` if the component is not swap space.
pub(super) fn instance_of(graph: &Graph, memory: usize) -> Option<u32> {
    let (_, number) = graph.components[memory].name.split_once(OF)?;
    number.strip_prefix('/').map_or(Some(0), |number| number.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_instance_that_swaps_has_memory_of_its_own() {
        let document = r#"{ "version": 1, "name": "swaps",
            "components": [
                { "name": "entry", "type": "compute", "package": "p", "function": "f", "entry": true },
                { "name": "large", "type": "compute", "package": "p", "function": "f", "parallelism": 3,
                  "resources": { "memory_bytes": 67108864, "swap_bytes": 268435456 } },
                { "name": "table", "type": "memory" } ],
            "edges": [
                { "type": "trigger", "from": "entry", "to": "large" },
                { "type": "access", "from": "large", "to": "table", "rights": "read" } ] }"#;
        let graph = Graph::parse(document.as_bytes()).unwrap();
        let driven = with_swap_space(&graph);
        let names: Vec<&str> = driven.components[3..].iter().map(|of| of.name.as_str()).collect();
        assert_eq!(names, ["large/swap", "large/swap/1", "large/swap/2"]);
        let limits: Vec<u64> =
            driven.components[3..].iter().map(|of| of.memory().unwrap().limit_bytes).collect();
        assert_eq!(limits, [3 << 28, 2 << 28, 1 << 28]);
        let steps = |swap_bytes: u64| {
            let document = document.replace("268435456", &swap_bytes.to_string());
            let driven = with_swap_space(&Graph::parse(document.as_bytes()).unwrap());
            driven.components[3].memory().unwrap().increment_bytes.unwrap()
        };
        assert_eq!([16 << 20, 1 << 30, 10 << 30].map(steps), [16 << 20, 16 << 20, 160 << 20]);
        assert_eq!([2, 3, 4, 5].map(|at| instance_of(&driven, at)), [None, Some(0), Some(1), Some(2)]);
        assert!((3..6).all(|to| driven.edges_to(to).map(|edge| edge.from).eq([1])));
    }
}
