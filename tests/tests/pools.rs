//! Pools and racks of nodes: where real leases go, what waits for a pool, and what the operator says and sees of both.

#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::thread::scope;
use std::time::Duration;

use serde_json::{Value, json};
use sublet::{Allocation, Application, Code, Invoker, MemoryPlan, News, Pool, RunOptions};
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, TENANT, connect};
use sublet_tests::functions::{library, package};
use sublet_tests::platform::{assert_echoes, sublet};
use sublet_tests::process::{PATIENCE, wait_until};

const MIB: u64 = 1 << 20;

/// A node of each pool with a core and a gigabyte; those of cores and of memory stand in one rack.
fn cluster() -> Cluster {
    let mut cluster = Cluster::start(ClusterPlan::default());
    for (pool, rack) in [("compute", "a"), ("memory", "a"), ("balanced", "b")] {
        let told = ["--memory", "1GiB", "--pool", pool, "--rack", rack];
        cluster.add_agent_with(LentCores::cores(1), &told);
    }
    cluster
}

fn allocation() -> Allocation {
    Allocation::new(package("calls.c"))
}

/// A client with a lease, and the node that it is on.
fn lease(cluster: &Cluster, allocation: &Allocation) -> (Invoker, String) {
    let mut client = connect(&cluster.user(TENANT));
    client.allocate(allocation).unwrap_or_else(|error| panic!("{error}"));
    assert_echoes(&client);
    let node = client.leases().remove(0).node;
    (client, node)
}

/// Name, pool and rack of each node, as `sublet ps` lists them.
fn shown(cluster: &Cluster) -> Vec<(String, String, Value)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let nodes = cluster.json(&["ps"])["nodes"].take();
    let nodes = nodes.as_array().unwrap();
    nodes.iter().map(|node| (text(&node["name"]), text(&node["pool"]), node["rack"].clone())).collect()
}

#[test]
fn leases_prefer_their_pool_and_keep_to_a_named_one() {
    let cluster = cluster();
    let said = [("node-0", "compute", "a"), ("node-1", "memory", "a"), ("node-2", "balanced", "b")];
    let said = said.map(|(node, pool, rack)| (node.to_owned(), pool.to_owned(), json!(rack)));
    assert_eq!(shown(&cluster), said);

    let owner = cluster.invoker();
    let memory = owner.memory(plan()).unwrap();
    memory.write(0, &[7; 16]).unwrap();
    assert_eq!(memory.segments()[0].node, "node-1");
    let (held, first) = lease(&cluster, &allocation());
    let (_second, second) = lease(&cluster, &allocation());
    assert_eq!((first.as_str(), second.as_str()), ("node-0", "node-2"), "compute, and then balanced");

    let of_compute = allocation().pool(Pool::Compute);
    let mut other = cluster.invoker();
    let full = "1 cores asked, 0 of 1 free in the compute pool";
    assert_fails(other.allocate(&of_compute), Code::NoCapacity, &[full]);
    let waits = of_compute.clone().wait(Duration::from_millis(200));
    let told = "1 cores in the compute pool did not become free within 200 ms";
    assert_fails(other.allocate(&waits), Code::NoCapacity, &[told]);
    // A core is free in another pool the whole time, and it is not taken.
    scope(|scope| {
        let waiting = scope.spawn(|| lease(&cluster, &of_compute.clone().wait(PATIENCE)).1);
        drop(held);
        assert_eq!(waiting.join().unwrap(), "node-0");
    });
}

fn plan() -> MemoryPlan {
    MemoryPlan::new().initial_bytes(MIB).increment_bytes(MIB).limit_bytes(16 * MIB)
}

#[test]
fn communicating_components_share_a_rack_with_free_capacity() {
    let cluster = cluster();
    let near = || allocation().near(["node-0"]);
    let (_first, first) = lease(&cluster, &near());
    let (_second, second) = lease(&cluster, &near());
    let (_third, third) = lease(&cluster, &near());
    // By pools alone the second would be on the balanced node, which is in another rack.
    assert_eq!([first, second, third], ["node-0", "node-1", "node-2"]);
}

#[test]
fn nodes_without_a_pool_are_distinguished_by_free_capacity() {
    let arguments = ["--pools-balanced", "512MiB"].map(str::to_owned).into();
    let mut cluster = Cluster::start(ClusterPlan { arguments, ..ClusterPlan::default() });
    for memory in ["2GiB", "512MiB", "128MiB"] {
        cluster.add_agent_with(LentCores::cores(1), &["--memory", memory]);
    }
    let pools = |cluster: &Cluster| shown(cluster).into_iter().map(|(_, pool, _)| pool).collect::<Vec<_>>();
    assert_eq!(pools(&cluster), ["memory", "balanced", "compute"]);
    let (client, node) = lease(&cluster, &allocation().pool(Pool::Balanced).memory_bytes(300 * MIB));
    assert_eq!(node, "node-1");
    // Its core is gone, and memory is left.
    wait_until("the node is in the pool of what it has left", || {
        pools(&cluster) == ["memory", "memory", "compute"]
    });
    drop(client);
    wait_until("the node has everything again", || pools(&cluster)[1] == "balanced");
}

#[test]
fn tenant_cannot_exhaust_a_memory_pool() {
    let cluster = cluster();
    let set = ["tenant", "set", "greedy", "--pool-memory", "memory=2MiB"];
    let shown = cluster.json(&set);
    assert_eq!(
        shown["pools"][1],
        json!({ "pool": "memory", "memory_bytes": 0, "memory_limit_bytes": 2 * MIB })
    );
    let greedy = connect(&cluster.user("greedy"));
    // Memory is leased by its first access.
    let begin = |client: &Invoker, plan: MemoryPlan| {
        let memory = client.memory(plan)?;
        memory.write(0, &[1]).map(|()| memory)
    };
    let memory = begin(&greedy, plan().pool(Pool::Memory)).unwrap();
    memory.write(MIB, &[1]).unwrap();
    let said = ["greedy", "in the memory pool", "2097152"];
    assert_fails(memory.write(2 * MIB, &[1]), Code::QuotaExceeded, &said);
    assert_fails(begin(&greedy, plan().pool(Pool::Memory)).map(drop), Code::QuotaExceeded, &said);
    // Memory that names no pool is elsewhere, and another tenant has the pool's memory.
    let other_pool = begin(&greedy, plan()).unwrap();
    assert_eq!(other_pool.segments()[0].node, "node-2");
    let modest = connect(&cluster.user("modest"));
    let its = begin(&modest, plan().initial_bytes(16 * MIB).pool(Pool::Memory)).unwrap();
    assert_eq!(its.segments()[0].node, "node-1");
    let tenants = cluster.json(&["tenant", "list"])["tenants"].take();
    let of = |name: &str| tenants.as_array().unwrap().iter().find(|of| of["name"] == name).unwrap().clone();
    assert_eq!(of("greedy")["pools"][1]["memory_bytes"], 2 * MIB);
    // Memory that is given back may be leased again.
    drop(memory);
    wait_until("the memory may be leased again", || begin(&greedy, plan().pool(Pool::Memory)).is_ok());
}

fn graph() -> Vec<u8> {
    let of = |name: &str, more: Value| {
        let mut component =
            json!({ "name": name, "type": "compute", "package": "libcomponents", "function": "later" });
        component.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        component
    };
    let components = [
        of("first", json!({ "entry": true, "resources": { "pool": "compute" } })),
        of("second", json!({ "resources": { "pool": "memory" } })),
    ];
    let edges = [json!({ "type": "trigger", "from": "first", "to": "second" })];
    json!({ "version": 1, "name": "pooled", "components": components, "edges": edges })
        .to_string()
        .into_bytes()
}

#[test]
fn a_component_waits_for_its_pool_and_executes_there() {
    let cluster = cluster();
    cluster.publish(library("components.c"));
    let (held, node) = lease(&cluster, &allocation().pool(Pool::Memory));
    assert_eq!(node, "node-1");
    let mut held = Some(held);
    let access = cluster.access(&cluster.addresses(), &cluster.user_token(TENANT).secret);
    let options = RunOptions { prewarm: None, patience: Duration::from_secs(60), ..RunOptions::default() };
    let application = Application::deploy(access, &graph(), options).unwrap();
    let mut waited = Vec::new();
    let outcome = application.run_with(b"\x01abc", |news| {
        if let News::Waits { component, error } = news {
            waited.push((component.clone(), error.message.clone()));
            drop(held.take());
        }
    });
    assert_eq!(outcome.unwrap().outputs[0].1, [b"\x01abc".to_vec()]);
    assert_eq!(waited.len(), 1, "{waited:?}");
    let (component, why) = &waited[0];
    assert!(component == "second" && why == "1 cores asked, 0 of 1 free in the memory pool", "{waited:?}");
    let leases = cluster.operator().manager().leases_with_ended().unwrap();
    let nodes = leases.iter().filter(|lease| lease.package_name == "libcomponents").map(|lease| &lease.node);
    assert_eq!(nodes.collect::<Vec<_>>(), ["node-1", "node-0"], "the newest first");
}

#[track_caller]
fn refused(command: &mut Command, named: &[&str]) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(Code::InvalidArgument.number() as i32), "{said}");
    assert!(named.iter().all(|part| said.contains(part)), "{said}");
}

#[test]
fn an_unknown_pool_is_refused_with_the_existing_ones() {
    let there_are = "compute, memory, balanced and flash";
    let agent = |value: &str| {
        let mut command = sublet();
        command.args(["agent", "--print-config", "--pool", value]);
        command
    };
    refused(&mut agent("fast"), &["--pool", "fast", there_are]);
    assert!(agent("memory").output().unwrap().status.success());
    let mut manager = sublet();
    refused(
        manager.args(["manager", "--print-config", "--pools-balanced", "0"]),
        &["--pools-balanced", "must be more than 0"],
    );
    let call = sublet().args(["call", "x/f", "--pool", "fast"]).output().unwrap();
    assert!(!call.status.success() && String::from_utf8_lossy(&call.stderr).contains(there_are), "{call:?}");
}
