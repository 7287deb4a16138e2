//! Adds swap space to a run: a memory component, not named in the document, for each instance of a compute component
//! that swaps, because its document says so or because the graph lets all components swap (Scad 4.2.2). A worker
//! process uses that of its first instance. The component is leased as it is needed, shown and counted like all memory.
//! When it is lost the compute component begins again, and the swapped bytes are of no further use.

use sublet_proto::graph::{
    Component, Edge, Graph, MAX_SWAPPING, Medium, MemoryNeed, MemoryRights, Relation, Role, SwapMedium,
};
use sublet_proto::limits::{MAX_SWAP_BYTES, MIN_SEGMENT_BYTES, MIN_SWAPPING_BYTES};
use sublet_proto::package::is_device;
use sublet_proto::pool::Pool;

/// Part of the names of swap components, which no name in a document can have.
const OF: &str = "/swap";
/// The smallest amount that is leased at a time, in bytes.
const MIN_STEP_BYTES: u64 = 16 << 20;
/// Number of steps in which an instance leases its whole swap space. Each step is a lease, and a connection to its
/// agent.
const STEPS: u64 = 64;

/// Memory that an instance may swap if the graph lets all components swap, in bytes.
const CHOSEN_BYTES: u64 = 4 << 30;

/// The graph as it is executed: with a further memory component for each instance that swaps. `tenant_swaps` holds where
/// the document does not say whether components swap.
pub(super) fn with_swap_space(graph: &Graph, tenant_swaps: bool) -> Graph {
    let mut driven = graph.clone();
    if graph.limits.swap.unwrap_or(tenant_swaps) {
        let_all_swap(&mut driven);
    }
    let pool = (graph.limits.swap_medium == Some(SwapMedium::Flash)).then_some(Pool::Flash);
    for (from, component) in driven.components.clone().iter().enumerate() {
        let Some(compute) = component.compute() else { continue };
        let Some(swap_bytes) = compute.resources.swap_bytes else { continue };
        for instance in 0..compute.parallelism {
            // A process whose first instance is this one may execute all later ones, too.
            let limit_bytes = swap_bytes.saturating_mul((compute.parallelism - instance).into());
            // The size does not follow earlier runs: after runs that swapped little, it would grow page by page, also
            // in a run that then swaps much.
            let step_bytes = (swap_bytes / STEPS).next_multiple_of(MIN_SEGMENT_BYTES).max(MIN_STEP_BYTES);
            let (initial_bytes, increment_bytes) = (Some(step_bytes), Some(step_bytes));
            let memory = MemoryNeed {
                initial_bytes,
                increment_bytes,
                limit_bytes,
                pool,
                is_result: false,
                medium: Medium::Memory,
            };
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

/// Lets all components swap that name no size, as far as a graph may have instances that swap. Those whose number of
/// instances follows from data do not swap, nor do those that name too little memory of their own.
fn let_all_swap(graph: &mut Graph) {
    let computes = || graph.components.iter().filter_map(Component::compute);
    let swapping = computes().filter(|compute| compute.resources.swap_bytes.is_some());
    let named: u64 = swapping.map(|compute| u64::from(compute.parallelism)).sum();
    let mut left = u64::from(MAX_SWAPPING).saturating_sub(named);
    for component in &mut graph.components {
        let Role::Compute(compute) = &mut component.role else { continue };
        let instances = u64::from(compute.parallelism);
        let has_enough = compute.resources.memory_bytes.is_none_or(|bytes| bytes >= MIN_SWAPPING_BYTES);
        let is_fixed = compute.instances_from.is_none();
        // Workers of devices do not swap, and those that may swap are not passed on with what they have on a device.
        let is_on_device = compute.resources.pu.as_deref().is_some_and(is_device);
        let may_swap = compute.resources.swap_bytes.is_none() && is_fixed && !is_on_device;
        if may_swap && has_enough && instances <= left {
            compute.resources.swap_bytes = Some(CHOSEN_BYTES.min(MAX_SWAP_BYTES / instances.max(1)));
            left -= instances;
        }
    }
}

/// Whether a memory component is swap space of this compute component.
pub(super) fn is_swap_space(memory: &str, of: &str) -> bool {
    let number = memory.strip_prefix(of).and_then(|rest| rest.strip_prefix(OF));
    number.is_some_and(|number| number.is_empty() || number.starts_with('/'))
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
        let driven = with_swap_space(&graph, false);
        let names: Vec<&str> = driven.components[3..].iter().map(|of| of.name.as_str()).collect();
        assert_eq!(names, ["large/swap", "large/swap/1", "large/swap/2"]);
        assert!(names.iter().all(|name| is_swap_space(name, "large") && !is_swap_space(name, "larg")));
        assert!(!is_swap_space("large/swapped", "large") && !is_swap_space("large", "large"));
        let limits: Vec<u64> =
            driven.components[3..].iter().map(|of| of.memory().unwrap().limit_bytes).collect();
        assert_eq!(limits, [3 << 28, 2 << 28, 1 << 28]);
        let steps = |swap_bytes: u64| {
            let document = document.replace("268435456", &swap_bytes.to_string());
            let driven = with_swap_space(&Graph::parse(document.as_bytes()).unwrap(), false);
            driven.components[3].memory().unwrap().increment_bytes.unwrap()
        };
        assert_eq!([16 << 20, 1 << 30, 10 << 30].map(steps), [16 << 20, 16 << 20, 160 << 20]);
        assert_eq!([2, 3, 4, 5].map(|at| instance_of(&driven, at)), [None, Some(0), Some(1), Some(2)]);
        assert!((3..6).all(|to| driven.edges_to(to).map(|edge| edge.from).eq([1])));
    }

    #[test]
    fn swap_space_is_in_the_pool_of_the_named_medium() {
        let pool = |limits: &str| {
            let document = format!(
                r#"{{ "version": 1, "name": "swaps", "limits": {limits},
                    "components": [
                        {{ "name": "a", "type": "compute", "package": "p", "function": "f", "entry": true }} ],
                    "edges": [] }}"#
            );
            let driven = with_swap_space(&Graph::parse(document.as_bytes()).unwrap(), false);
            driven.components[1].memory().unwrap().pool
        };
        assert_eq!(pool(r#"{ "swap": true }"#), None);
        assert_eq!(pool(r#"{ "swap": true, "swap_medium": "memory" }"#), None);
        assert_eq!(pool(r#"{ "swap": true, "swap_medium": "flash" }"#), Some(Pool::Flash));
    }

    #[test]
    fn graph_or_tenant_lets_components_swap_that_name_no_size() {
        const SWAP: &str = "\"swap\": true";
        let document = r#"{ "version": 1, "name": "swaps", "limits": { "swap": true },
            "components": [
                { "name": "entry", "type": "compute", "package": "p", "function": "f", "entry": true },
                { "name": "own", "type": "compute", "package": "p", "function": "f",
                  "resources": { "memory_bytes": 67108864, "swap_bytes": 268435456 } },
                { "name": "small", "type": "compute", "package": "p", "function": "f",
                  "resources": { "memory_bytes": 1048576 } },
                { "name": "counted", "type": "compute", "package": "p", "function": "f",
                  "parallelism": { "from": "entry", "limit": 2 } },
                { "name": "wide", "type": "compute", "package": "p", "function": "f", "parallelism": 200 },
                { "name": "wider", "type": "compute", "package": "p", "function": "f", "parallelism": 100 } ],
            "edges": [
                { "type": "trigger", "from": "entry", "to": "own" },
                { "type": "trigger", "from": "entry", "to": "small" },
                { "type": "trigger", "from": "entry", "to": "counted" },
                { "type": "trigger", "from": "entry", "to": "wide" },
                { "type": "trigger", "from": "entry", "to": "wider" } ] }"#;
        let graph = Graph::parse(document.as_bytes()).unwrap();
        let swap_bytes = |graph: &Graph| -> Vec<Option<u64>> {
            let computes = graph.components.iter().filter_map(Component::compute);
            computes.map(|compute| compute.resources.swap_bytes).collect()
        };
        let (chosen, own) = (Some(CHOSEN_BYTES), Some(268_435_456));
        // A graph has at most 256 instances that swap.
        let expected = [chosen, own, None, None, chosen, None];
        assert_eq!(swap_bytes(&with_swap_space(&graph, false)), expected);
        let (refuses, is_silent) = (document.replace(SWAP, "\"swap\": false"), document.replace(SWAP, ""));
        let parsed = |document: &str| Graph::parse(document.as_bytes()).unwrap();
        let without = [None, own, None, None, None, None];
        // The document is asked before the tenant.
        for (document, tenant_swaps, expected) in [
            (&refuses, false, without),
            (&refuses, true, without),
            (&is_silent, false, without),
            (&is_silent, true, expected),
        ] {
            assert_eq!(
                swap_bytes(&with_swap_space(&parsed(document), tenant_swaps)),
                expected,
                "{tenant_swaps}: {document}"
            );
        }
    }
}
