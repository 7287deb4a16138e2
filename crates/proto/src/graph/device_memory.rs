//! Checks memory components on devices, and the memory that kernels access.
//!
//! Bytes on a device are in the process of one worker. So the components that access them are executed by that worker,
//! one after another, and no other component may take the worker in between.

use super::document::ComponentDocument;
use super::model::{
    Compute, Condition, Edge, Graph, InstancesFrom, MAX_DEVICE_MEMORY_BYTES, Medium, MemoryNeed,
    MemoryRights, Relation,
};
use super::problems::Problems;
use crate::limits::MIN_SEGMENT_BYTES;
use crate::package::is_device;

/// Reads a memory component on a device.
pub(super) fn of(index: usize, component: &ComponentDocument, problems: &mut Problems) -> MemoryNeed {
    let at = |field: &str| format!("components[{index}].{field}");
    for (field, is_given) in [
        ("initial_bytes", component.initial_bytes.is_some()),
        ("increment_bytes", component.increment_bytes.is_some()),
        ("pool", component.pool.is_some()),
        ("result", component.result == Some(true)),
    ] {
        if is_given {
            problems.add(at(field), "memory on a device has no such field: it has limit_bytes bytes at once");
        }
    }
    let limit_bytes = component.limit_bytes.unwrap_or_default();
    match component.limit_bytes {
        None => problems.add(at("limit_bytes"), "memory on a device needs this field: its size"),
        Some(bytes) => {
            problems.check_within(at("limit_bytes"), bytes, MIN_SEGMENT_BYTES..=MAX_DEVICE_MEMORY_BYTES);
        }
    }
    let (initial_bytes, increment_bytes, pool, is_result) = (None, None, None, false);
    MemoryNeed { initial_bytes, increment_bytes, limit_bytes, pool, is_result, medium: Medium::Device }
}

/// Checks which components access memory on devices, and that a component on a device has at most one memory component
/// for its input and one for its output. `reached_from` says which components run because one does, `certain` which run in
/// each run.
pub(super) fn check(
    graph: &Graph,
    reached_from: impl Fn(usize) -> Vec<bool>,
    certain: &[bool],
    problems: &mut Problems,
) {
    for (index, component) in graph.components.iter().enumerate() {
        if component.compute().is_some_and(is_on_device) {
            check_kernel(graph, index, problems);
        }
        if component.memory().is_some_and(|memory| memory.medium == Medium::Device) {
            check_memory(graph, index, (&reached_from, certain), problems);
        }
    }
}

fn is_on_device(compute: &Compute) -> bool {
    compute.resources.pu.as_ref().is_some_and(|pu| is_device(pu))
}

fn check_kernel(graph: &Graph, index: usize, problems: &mut Problems) {
    for (rights, what) in [(MemoryRights::Read, "reads"), (MemoryRights::Write, "writes")] {
        let is_such = |edge: &&Edge| edge.relation == Relation::Access(rights);
        let count = graph.edges_from(index).filter(is_such).count();
        if count > 1 {
            let name = &graph.components[index].name;
            let message =
                format!("{name:?} {what} {count} memory components, and a component on a device one");
            problems.add(format!("components[{index}]"), message);
        }
    }
    let writes =
        graph.edges_from(index).filter(|edge| edge.relation == Relation::Access(MemoryRights::Write));
    let compute = graph.components[index].compute();
    let has_several =
        compute.is_some_and(|compute| compute.parallelism > 1 || compute.instances_from.is_some());
    for edge in writes {
        let component = &graph.components[edge.to];
        let Some(memory) = component.memory() else { continue };
        let (name, of, limit_bytes) = (&graph.components[index].name, &component.name, memory.limit_bytes);
        if has_several && memory.medium == Medium::Memory {
            let message = format!(
                "{name:?} is on a device and writes {of:?}, which has the output of one instance: it has several"
            );
            problems.add(format!("components[{index}].parallelism"), message);
        }
        if limit_bytes > MAX_DEVICE_MEMORY_BYTES {
            let message = format!(
                "{name:?} is on a device and writes {of:?}, whose limit_bytes is {limit_bytes}: it is at most \
                 {MAX_DEVICE_MEMORY_BYTES} there"
            );
            problems.add(format!("components[{}].limit_bytes", edge.to), message);
        }
        for (number, edge) in graph.edges.iter().enumerate() {
            if edge.from == index && matches!(edge.condition, Some(Condition::When(_))) {
                let message =
                    format!("the output of {name:?} is in {of:?}: its own is empty, and has no text");
                problems.add(format!("edges[{number}].when"), message);
            }
        }
    }
}

fn check_memory(
    graph: &Graph,
    memory: usize,
    (reached_from, certain): (&impl Fn(usize) -> Vec<bool>, &[bool]),
    problems: &mut Problems,
) {
    let name = |component: usize| graph.components[component].name.as_str();
    let of = name(memory);
    let mut add = |message: String| problems.add(format!("components[{memory}]"), message);
    let accesses: Vec<&Edge> = graph.edges_to(memory).collect();
    let Some(first) = accesses.first().and_then(|edge| graph.components[edge.from].compute()) else { return };
    for edge in &accesses {
        let Some(compute) = graph.components[edge.from].compute() else { continue };
        let from = name(edge.from);
        if !is_on_device(compute) {
            add(format!("{from:?} accesses {of:?}, and names no device: say \"pu\" in its resources"));
        } else if compute.parallelism > 1 || compute.instances_from.is_some() {
            add(format!("{from:?} accesses {of:?}, which is on a device: it has one instance"));
        } else if compute.resources.swap_bytes.is_some() {
            add(format!("{from:?} accesses {of:?}, which is on a device: it cannot have swap_bytes"));
        } else if (&compute.package, &compute.resources) != (&first.package, &first.resources) {
            let other = name(accesses[0].from);
            add(format!(
                "{from:?} and {other:?} share a worker for {of:?}: they need one package and equal resources"
            ));
        }
    }
    // The other components that may be executed by the same worker.
    let reached: Vec<Vec<bool>> = (0..graph.components.len()).map(reached_from).collect();
    let takes_worker = |compute: &Compute| {
        // A number of instances that follows from data may be one.
        let has_one_instance = compute.parallelism == 1 || compute.instances_from.is_some();
        has_one_instance && (&compute.package, &compute.resources) == (&first.package, &first.resources)
    };
    for edge in &accesses {
        for (other, component) in graph.components.iter().enumerate() {
            let is_apart = other != edge.from && !reached[edge.from][other] && !reached[other][edge.from];
            // One message is enough for two components that access the memory.
            let is_named = other < edge.from && accesses.iter().any(|edge| edge.from == other);
            if is_apart && !is_named && component.compute().is_some_and(takes_worker) {
                let (from, other) = (name(edge.from), name(other));
                add(format!(
                    "{from:?} accesses {of:?}, and {other:?} may take its worker: let one trigger the other"
                ));
            }
        }
    }
    check_order(graph, memory, (&reached[..], certain), &mut add);
    for component in &graph.components {
        let from = component.compute().and_then(|compute| compute.instances_from);
        if matches!(from, Some(InstancesFrom::Memory { memory: from, .. }) if from == memory) {
            let name = &component.name;
            add(format!("{of:?} is on a device: the number of instances of {name:?} cannot follow from it"));
        }
    }
}

/// Checks that in each run in which a component reads the memory, another one has written it before.
fn check_order(
    graph: &Graph,
    memory: usize,
    (reached, certain): (&[Vec<bool>], &[bool]),
    add: &mut impl FnMut(String),
) {
    let of = &graph.components[memory].name;
    let (writes, reads): (Vec<&Edge>, Vec<&Edge>) =
        graph.edges_to(memory).partition(|edge| edge.relation == Relation::Access(MemoryRights::Write));
    for read in reads {
        let writers: Vec<usize> =
            writes.iter().map(|write| write.from).filter(|&writer| reached[writer][read.from]).collect();
        let is_certain = writers.iter().any(|&writer| certain[writer]);
        let from = &graph.components[read.from].name;
        if writers.is_empty() {
            add(format!("no component writes {of:?} before {from:?} reads it"));
        } else if !is_certain && is_reached_without(graph, &writers, read.from) {
            add(format!(
                "{from:?} reads {of:?}, and may be executed in a run in which no component wrote it"
            ));
        }
    }
}

/// Whether triggers lead from the entry to a component without passing any of `others`.
fn is_reached_without(graph: &Graph, others: &[usize], component: usize) -> bool {
    let mut is_seen = vec![false; graph.components.len()];
    let mut left = vec![graph.entry()];
    while let Some(at) = left.pop() {
        if others.contains(&at) || std::mem::replace(&mut is_seen[at], true) {
            continue;
        }
        let triggers = graph.edges_from(at).filter(|edge| edge.relation == Relation::Trigger);
        left.extend(triggers.map(|edge| edge.to));
    }
    is_seen[component]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Two kernels that share memory on a device, and a component on a processor.
    fn document() -> Value {
        let on = json!({ "pu": "opencl" });
        let kernel = |name: &str| json!({ "name": name, "type": "compute", "package": "k", "function": name, "resources": on });
        let mut first = kernel("first");
        first["entry"] = json!(true);
        json!({
            "version": 1, "name": "kernels",
            "components": [
                first, kernel("second"),
                { "name": "host", "type": "compute", "package": "p", "function": "f" },
                { "name": "kept", "type": "memory", "medium": "device", "limit_bytes": 4096 },
                { "name": "other", "type": "memory" },
            ],
            "edges": [
                { "type": "trigger", "from": "first", "to": "second" },
                { "type": "trigger", "from": "second", "to": "host" },
                { "type": "access", "from": "first", "to": "kept", "rights": "write" },
                { "type": "access", "from": "second", "to": "kept", "rights": "read" },
                { "type": "access", "from": "host", "to": "other", "rights": "write" },
            ],
        })
    }

    /// The problems of the document with these changes.
    fn problems(changes: &[(&str, Value)]) -> String {
        let mut document = document();
        for (at, value) in changes {
            let (parent, field) = at.rsplit_once('/').unwrap();
            match document.pointer_mut(parent).unwrap() {
                Value::Array(items) => items.push(value.clone()),
                parent => parent[field] = value.clone(),
            }
        }
        let problems = Graph::parse(document.to_string().as_bytes()).err().unwrap_or_default();
        problems.iter().map(|problem| format!("{problem}\n")).collect()
    }

    #[track_caller]
    fn check_refused(cases: &[(&[(&str, Value)], &str)]) {
        for (changes, expected) in cases {
            let problems = problems(changes);
            assert!(problems.contains(expected), "{changes:?} lacks {expected:?}: {problems}");
        }
    }

    #[test]
    fn parses_memory_on_a_device_and_writes_the_same() {
        let graph = Graph::parse(document().to_string().as_bytes()).unwrap();
        let kept = graph.components[3].memory().unwrap();
        assert_eq!((kept.medium, kept.limit_bytes), (Medium::Device, 4096));
        assert_eq!(graph.components[4].memory().unwrap().medium, Medium::Memory);
        assert_eq!(Graph::parse(graph.to_json().as_bytes()).unwrap(), graph);
    }

    #[test]
    fn refuses_memory_on_a_device_that_no_worker_could_keep() {
        let access = |from: &str, rights: &str| json!({ "type": "access", "from": from, "to": "kept", "rights": rights });
        let on = json!({ "pu": "opencl" });
        let third = || json!({ "name": "third", "type": "compute", "package": "k", "function": "f", "resources": on });
        let cases: [(&[(&str, Value)], &str); 11] = [
            (
                &[("/components/3/limit_bytes", Value::Null)],
                "components[3].limit_bytes: memory on a device needs",
            ),
            (
                &[("/components/3/limit_bytes", json!(1u64 << 32))],
                "components[3].limit_bytes: 4294967296 is not within",
            ),
            (
                &[("/components/3/initial_bytes", json!(4096))],
                "components[3].initial_bytes: memory on a device",
            ),
            (&[("/components/3/result", json!(true))], "components[3].result: memory on a device"),
            (&[("/edges/-", access("host", "read"))], "\"host\" accesses \"kept\", and names no device"),
            (
                &[("/components/1/parallelism", json!(2))],
                "\"second\" accesses \"kept\", which is on a device: it has one",
            ),
            (&[("/components/1/package", json!("l"))], "need one package and equal resources"),
            (&[("/edges/2/rights", json!("read"))], "no component writes \"kept\" before \"first\" reads it"),
            (
                &[
                    ("/components/-", third()),
                    ("/edges/-", json!({ "type": "trigger", "from": "first", "to": "third" })),
                ],
                "\"third\" may take its worker: let one trigger the other",
            ),
            (
                &[
                    ("/components/2/parallelism", json!({ "from": "kept", "bytes_each": 1, "limit": 2 })),
                    ("/edges/-", access("host", "read")),
                ],
                "the number of instances of \"host\" cannot follow from it",
            ),
            (
                &[(
                    "/edges/-",
                    json!({ "type": "access", "from": "second", "to": "other", "rights": "read" }),
                )],
                "\"second\" reads 2 memory components, and a component on a device one",
            ),
        ];
        check_refused(&cases);
    }

    #[test]
    fn refuses_workers_taken_by_others_and_outputs_without_memory() {
        let on = json!({ "pu": "opencl" });
        let third = || json!({ "name": "third", "type": "compute", "package": "k", "function": "f", "resources": on });
        let write =
            |from: &str, to: &str| json!({ "type": "access", "from": from, "to": to, "rights": "write" });
        let cases: [(&[(&str, Value)], &str); 5] = [
            (
                &[("/edges/0/when", json!("w"))],
                "edges[0].when: the output of \"first\" is in \"kept\": its own is empty",
            ),
            (
                &[("/components/4/limit_bytes", json!(1u64 << 32)), ("/edges/-", write("second", "other"))],
                "components[4].limit_bytes: \"second\" is on a device and writes \"other\"",
            ),
            (
                &[("/components/4/limit_bytes", Value::Null), ("/edges/-", write("second", "other"))],
                "components[4].limit_bytes: \"second\" is on a device and writes \"other\"",
            ),
            (
                &[
                    ("/components/1/parallelism", json!(2)),
                    ("/components/4/limit_bytes", json!(1u64 << 26)),
                    ("/edges/-", write("second", "other")),
                ],
                "components[1].parallelism: \"second\" is on a device and writes \"other\", which has the output of one",
            ),
            // The number of instances of the third may be one.
            (
                &[
                    ("/components/-", third()),
                    ("/components/5/parallelism", json!({ "from": "first", "limit": 2 })),
                    ("/edges/-", json!({ "type": "trigger", "from": "first", "to": "third" })),
                ],
                "\"third\" may take its worker: let one trigger the other",
            ),
        ];
        check_refused(&cases);
    }

    #[test]
    fn refuses_to_read_what_may_not_be_written() {
        let kernel = |name: &str| json!({ "name": name, "type": "compute", "package": "k", "function": name, "resources": { "pu": "opencl" } });
        let late = json!({ "name": "late", "type": "memory", "medium": "device", "limit_bytes": 4096 });
        let trigger = |from: &str, to: &str| json!({ "type": "trigger", "from": from, "to": to });
        let access = |from: &str, rights: &str| json!({ "type": "access", "from": from, "to": "late", "rights": rights });
        let mut sometimes = trigger("second", "third");
        sometimes["when"] = json!("w");
        let mut changes = vec![
            ("/components/-", kernel("third")),
            ("/components/-", kernel("fourth")),
            ("/components/-", late),
            ("/edges/-", sometimes),
            ("/edges/-", trigger("third", "fourth")),
            ("/edges/-", access("third", "write")),
            ("/edges/-", access("fourth", "read")),
        ];
        // The fourth is executed only after the third.
        assert_eq!(problems(&changes), "");
        changes.push(("/edges/-", trigger("second", "fourth")));
        let problems = problems(&changes);
        let expected =
            "\"fourth\" reads \"late\", and may be executed in a run in which no component wrote it";
        assert!(problems.contains(expected), "{problems}");
    }
}
