//! Graphs of components in libcomponents, for tests that run them.

use serde_json::{Value, json};
use sublet::Outcome;

const MIB: u64 = 1 << 20;

/// A compute component of libcomponents.
pub fn compute(name: &str, function: &str) -> Value {
    json!({ "name": name, "type": "compute", "package": "libcomponents", "function": function })
}

/// A compute component with more said of it.
pub fn compute_with(name: &str, function: &str, more: &Value) -> Value {
    let mut component = compute(name, function);
    for (key, value) in more.as_object().into_iter().flatten() {
        component[key] = value.clone();
    }
    component
}

/// A memory component that grows by the MiB.
pub fn memory(name: &str) -> Value {
    json!({ "name": name, "type": "memory", "initial_bytes": 4096, "increment_bytes": MIB, "limit_bytes": 64 * MIB })
}

/// An edge by which one component begins after another.
pub fn trigger(from: &str, to: &str) -> Value {
    json!({ "type": "trigger", "from": from, "to": to })
}

/// An edge to a memory component.
pub fn access(from: &str, to: &str, rights: &str) -> Value {
    json!({ "type": "access", "from": from, "to": to, "rights": rights })
}

/// A graph.
pub fn document(name: &str, components: &[Value], edges: &[Value]) -> Vec<u8> {
    json!({ "version": 1, "name": name, "components": components, "edges": edges }).to_string().into_bytes()
}

/// A graph of `count` components that hand on their input, each after a delay in milliseconds that is the first byte of
/// it.
pub fn chain(count: usize) -> Vec<u8> {
    chain_of("later", count)
}

/// A graph of `count` components that execute this function, one after the other.
pub fn chain_of(function: &str, count: usize) -> Vec<u8> {
    let name = |at: usize| format!("step{at}");
    let components: Vec<Value> = (0..count)
        .map(|at| {
            let entry = if at == 0 { json!({ "entry": true }) } else { json!({}) };
            compute_with(&name(at), function, &entry)
        })
        .collect();
    let edges: Vec<Value> = (1..count).map(|at| trigger(&name(at - 1), &name(at))).collect();
    document("chain", &components, &edges)
}

/// Numbers are written, added up by two instances at a time, and the sums are added up.
pub fn sums() -> Vec<u8> {
    sums_by("share")
}

/// Does what [`sums`] does, with instances that execute this function.
pub fn sums_by(share: &str) -> Vec<u8> {
    let components = [
        compute_with("fill", "fill", &json!({ "entry": true })),
        compute_with("share", share, &json!({ "parallelism": 2 })),
        compute("total", "total"),
        memory("numbers"),
        memory("sums"),
    ];
    let edges = [
        trigger("fill", "share"),
        trigger("share", "total"),
        access("fill", "numbers", "write"),
        access("share", "numbers", "read"),
        access("share", "sums", "write"),
        access("total", "sums", "read"),
    ];
    document("sums", &components, &edges)
}

/// Sum that a run of [`sums`] returned.
#[track_caller]
pub fn total(outcome: &Outcome) -> u64 {
    let [(name, outputs)] = outcome.outputs.as_slice() else { panic!("{outcome:?}") };
    assert_eq!((name.as_str(), outputs.len()), ("total", 1));
    u64::from_le_bytes(outputs[0].as_slice().try_into().expect("it is a number of eight bytes"))
}

/// Sum that the run should return.
pub fn sum_to(count: u64) -> u64 {
    count * (count + 1) / 2
}
