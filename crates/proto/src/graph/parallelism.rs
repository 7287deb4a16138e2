//! Checks the numbers of components' instances: numbers of the document, or the data that they follow from.

use std::collections::HashMap;

use super::document::{ComponentDocument, ComponentType, InstancesDocument, ParallelismDocument};
use super::model::{
    Compute, Graph, InstancesFrom, MAX_MEMORY_BYTES, MAX_PARALLELISM, MemoryRights, Relation,
};
use super::problems::Problems;

/// Number of a component's instances.
pub(super) struct Parallelism {
    /// The number, or the most if it follows from data.
    pub(super) most: u32,
    /// Data that the number follows from.
    pub(super) from: Option<InstancesFrom>,
}

/// Reads the number of a component's instances, with the index of each name and the type of each component.
pub(super) fn of(
    (index, component): (usize, &ComponentDocument),
    (names, types): (&HashMap<&str, usize>, &[ComponentType]),
    problems: &mut Problems,
) -> Parallelism {
    let at = |field: &str| format!("components[{index}].parallelism{field}");
    let InstancesDocument { from, bytes_each, limit } = match &component.parallelism {
        // A memory component does not have the field, which is another problem.
        _ if component.r#type == ComponentType::Memory => return Parallelism { most: 1, from: None },
        None => return Parallelism { most: 1, from: None },
        Some(ParallelismDocument::Number(number)) => {
            problems.check_within(at(""), (*number).into(), 1..=MAX_PARALLELISM.into());
            return Parallelism { most: *number, from: None };
        }
        Some(ParallelismDocument::From(instances)) => instances,
    };
    problems.check_within(at(".limit"), (*limit).into(), 1..=MAX_PARALLELISM.into());
    let source = match (names.get(from.as_str()).copied(), bytes_each) {
        (None, _) => {
            problems.add(at(".from"), format!("there is no component {from:?}"));
            None
        }
        (Some(found), bytes_each) => match (types[found], *bytes_each) {
            (ComponentType::Compute, None) => Some(InstancesFrom::Output { component: found }),
            (ComponentType::Compute, Some(_)) => {
                let message = format!("{from:?} is of type compute: its output begins with the number");
                problems.add(at(".bytes_each"), message);
                None
            }
            (ComponentType::Memory, None) => {
                let message = format!("{from:?} is of type memory: each instance needs its part in bytes");
                problems.add(at(".bytes_each"), message);
                None
            }
            (ComponentType::Memory, Some(bytes_each)) => {
                problems.check_within(at(".bytes_each"), bytes_each, 1..=MAX_MEMORY_BYTES);
                Some(InstancesFrom::Memory { memory: found, bytes_each })
            }
        },
    };
    Parallelism { most: *limit, from: source }
}

/// Checks that the data from which a number of instances follows are there when the component begins, and that nothing
/// needs the number before. `reached_from` says which components run because one does, `certain` which run in each run.
pub(super) fn check_sources(
    graph: &Graph,
    reached_from: impl Fn(usize) -> Vec<bool>,
    certain: &[bool],
    problems: &mut Problems,
) {
    for (index, component) in graph.components.iter().enumerate() {
        let Some(compute) = component.compute() else { continue };
        let Some(source) = compute.instances_from else { continue };
        let problem = fixed(graph, index, compute).or_else(|| match source {
            InstancesFrom::Output { component: from } => lacks_output(graph, (from, index), certain),
            InstancesFrom::Memory { memory, .. } => lacks_memory(graph, (memory, index), &reached_from),
        });
        if let Some(message) = problem {
            problems.add(format!("components[{index}].parallelism"), message);
        }
    }
}

/// The reason why a component needs a number of instances that is known before it begins.
fn fixed(graph: &Graph, index: usize, compute: &Compute) -> Option<String> {
    let name = &graph.components[index].name;
    let has_messages = || {
        let mut messages = graph.edges.iter().filter(|edge| edge.relation == Relation::Message);
        messages.any(|edge| edge.from == index || edge.to == index)
    };
    if compute.resources.swap_bytes.is_some() {
        return Some(format!("{name:?} has swap_bytes, for which the number of instances must be fixed"));
    }
    has_messages()
        .then(|| format!("{name:?} exchanges messages, for which the number of instances must be fixed"))
}

/// The reason why a component begins without the output of another.
fn lacks_output(graph: &Graph, (from, index): (usize, usize), certain: &[bool]) -> Option<String> {
    let (name, of) = (&graph.components[index].name, &graph.components[from].name);
    let triggers: Vec<_> = graph.edges_to(index).filter(|edge| edge.relation == Relation::Trigger).collect();
    if !triggers.iter().any(|edge| edge.from == from && edge.condition.is_none()) {
        return Some(format!("{of:?} does not trigger {name:?} without a condition"));
    }
    let instances = graph.components[from].compute().map_or(1, |compute| compute.parallelism);
    if instances > 1 {
        return Some(format!("{of:?} has {instances} instances, and the number follows from one output"));
    }
    let may_be_skipped = !certain[from] && triggers.len() > 1;
    may_be_skipped.then(|| format!("{of:?} may be left out in a run in which {name:?} is executed"))
}

/// The reason why a component begins before anything has written to a memory component.
fn lacks_memory(
    graph: &Graph,
    (memory, index): (usize, usize),
    reached_from: impl Fn(usize) -> Vec<bool>,
) -> Option<String> {
    let (name, of) = (&graph.components[index].name, &graph.components[memory].name);
    if !graph.edges_from(index).any(|edge| edge.to == memory) {
        return Some(format!("{name:?} has no access to {of:?}"));
    }
    let writers =
        graph.edges_to(memory).filter(|edge| edge.relation == Relation::Access(MemoryRights::Write));
    let mut before = writers.filter(|edge| edge.from != index && reached_from(edge.from)[index]);
    before.next().is_none().then(|| format!("no component that writes {of:?} ends before {name:?} begins"))
}
