//! Components whose functions allocate more than their lease has: allocations beyond the lease are in memory of the
//! run.

#![allow(clippy::unwrap_used)]

use std::thread::scope;

use rustix::process::Signal;
use serde_json::{Value, json};
use sublet::{Access, Application, Code, Error, Outcome, RunOptions};
use sublet_means::{Means, skip};
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, connect};
use sublet_tests::functions::{library, module};
use sublet_tests::platform::{PlatformProcess, kill};
use sublet_tests::process::wait_until;

const MIB: u64 = 1 << 20;
/// Memory that each instance leases for itself.
const OWN_BYTES: u64 = 64 * MIB;
/// Memory that an instance may allocate beyond its own.
const SWAP_BYTES: u64 = 320 * MIB;
/// Memory that an instance allocates.
const LARGE_MIB: u64 = 256;

fn component(function: &str, parallelism: u32, resources: &Value) -> Value {
    json!({ "name": "large", "type": "compute", "package": "libswapping", "function": function, "entry": true,
            "parallelism": parallelism, "resources": resources })
}

fn swapping() -> Value {
    json!({ "memory_bytes": OWN_BYTES, "swap_bytes": SWAP_BYTES })
}

fn document(component: &Value) -> Vec<u8> {
    json!({ "version": 1, "name": "swapping", "components": [component], "edges": [] })
        .to_string()
        .into_bytes()
}

/// Whether agents may hand on what their workers need to swap.
fn may_see_to_faults() -> bool {
    let may = std::fs::File::options().read(true).write(true).open("/dev/userfaultfd");
    may.inspect_err(|error| skip(Means::Userfaultfd, format_args!("/dev/userfaultfd: {error}"))).is_ok()
}

/// Starts a platform. Returns `None` where it may not handle page faults, so there is nothing to test.
fn platform() -> Option<PlatformProcess> {
    if !may_see_to_faults() {
        return None;
    }
    let platform = PlatformProcess::start_with(|command| {
        command.args(["--listen", "127.0.0.1:0"]);
    });
    let deployed = platform.command().arg("deploy").arg(library("swapping.c")).output().unwrap();
    assert!(deployed.status.success(), "{}", String::from_utf8_lossy(&deployed.stderr));
    Some(platform)
}

fn application(platform: &PlatformProcess, component: &Value) -> Application {
    let access = Access::parse(&platform.address()).unwrap();
    Application::deploy(access, &document(component), RunOptions::default()).unwrap()
}

fn input(mib: u64, threads: u64, held_ms: u64) -> Vec<u8> {
    [mib, threads, held_ms].iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn outputs(outcome: &Outcome) -> Vec<Vec<u64>> {
    let [(_, outputs)] = outcome.outputs.as_slice() else { panic!("{outcome:?}") };
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    outputs.iter().map(|output| output.chunks_exact(8).map(word).collect()).collect()
}

/// Each instance says which it is, and that no word was wrong.
#[track_caller]
fn assert_right(outcome: &Outcome, instances: u64) {
    let expected: Vec<Vec<u64>> = (0..instances).map(|instance| vec![instance, 0]).collect();
    assert_eq!(outputs(outcome), expected);
}

fn answer(run: Result<Outcome, Error>) -> u64 {
    outputs(&run.unwrap())[0][0]
}

#[track_caller]
fn assert_idle(platform: &PlatformProcess) {
    wait_until("nothing is leased any more", || {
        let node = &platform.json(&["ps"])["nodes"][0];
        node["cores_leased"] == 0 && node["memory_leased_bytes"] == 0
    });
}

#[test]
fn a_function_continues_in_memory_components_beyond_its_lease() {
    let Some(platform) = platform() else { return };
    let large = application(&platform, &component("large", 1, &swapping()));
    for threads in [1, 4] {
        let outcome = large.run(&input(LARGE_MIB, threads, 0)).unwrap();
        assert_right(&outcome, 1);
        let of = |name: &str| outcome.components.iter().find(|of| of.component == name).unwrap();
        let (own, swap) = (of("large"), of("large/swap"));
        assert_eq!((own.attempts, swap.attempts, own.allocated_bytes), (1, 1, OWN_BYTES));
        // All pages that are not resident are in the swap space, and it has no more than may be allocated.
        let gone = (LARGE_MIB * MIB - OWN_BYTES..=SWAP_BYTES).contains(&swap.used_bytes);
        assert!(gone && swap.allocated_bytes <= SWAP_BYTES, "{swap:?}");
        let moved = own.channels.iter().find(|channel| channel.memory == "large/swap").unwrap();
        let moved = moved.traffic.unwrap();
        assert!(moved.reads > 0 && moved.written_bytes >= (LARGE_MIB * MIB - OWN_BYTES) / 2, "{own:?}");
        assert_idle(&platform);
    }
}

#[test]
fn without_swap_space_the_same_function_fails() {
    let Some(platform) = platform() else { return };
    let large = application(&platform, &component("large", 1, &json!({ "memory_bytes": OWN_BYTES })));
    let failed = large.run(&input(LARGE_MIB, 1, 0));
    assert_fails(failed, Code::FunctionFailed, &["no memory"]);
}

/// An application whose graph says whether components without a size may swap.
fn letting_swap(platform: &PlatformProcess, component: &Value, swap: bool) -> Application {
    let mut graph: Value = serde_json::from_slice(&document(component)).unwrap();
    // Sizes follow from earlier runs of a name.
    graph["name"] = json!(if swap { "swaps" } else { "swaps-not" });
    graph["limits"] = json!({ "swap": swap });
    let access = Access::parse(&platform.address()).unwrap();
    Application::deploy(access, graph.to_string().as_bytes(), RunOptions::default()).unwrap()
}

#[test]
fn graph_lets_a_component_without_sizes_outgrow_its_lease() {
    let Some(platform) = platform() else { return };
    let unsized_component = component("large", 1, &json!({}));
    let large = letting_swap(&platform, &unsized_component, true);
    let outcome = large.run(&input(LARGE_MIB, 1, 0)).unwrap();
    assert_right(&outcome, 1);
    let of = |name: &str| outcome.components.iter().find(|of| of.component == name).unwrap();
    let (own, swap) = (of("large"), of("large/swap"));
    assert!(own.allocated_bytes < LARGE_MIB * MIB, "{own:?}");
    assert!(swap.used_bytes >= LARGE_MIB * MIB - own.allocated_bytes, "{swap:?}");
    // The next run knows the usage of this one, in which swapped data returned.
    let next = large.run(&input(LARGE_MIB, 1, 0)).unwrap();
    assert_right(&next, 1);
    let own = next.components.iter().find(|of| of.component == "large").unwrap();
    assert!(own.allocated_bytes >= LARGE_MIB * MIB, "{own:?}");
    let failed = letting_swap(&platform, &unsized_component, false).run(&input(LARGE_MIB, 1, 0));
    assert_fails(failed, Code::FunctionFailed, &["no memory"]);
    assert_idle(&platform);
}

#[test]
fn tenant_lets_components_of_its_graphs_outgrow_their_lease() {
    if !may_see_to_faults() {
        return;
    }
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent_with(LentCores::cores(1), &["--memory", "1GiB"]);
    cluster.publish(library("swapping.c"));
    cluster.json(&["tenant", "set", "somebody", "--swap", "true"]);
    let user = cluster.user("somebody");
    let silent = document(&component("large", 1, &json!({})));
    let client = connect(&user);
    let is_known = || client.manager().deploy_graph(silent.clone()).unwrap().swaps;
    wait_until("the manager knows the quota", is_known);
    let run = |document: &[u8]| {
        let large = Application::deploy(user.clone(), document, RunOptions::default()).unwrap();
        large.run(&input(LARGE_MIB, 1, 0))
    };
    let outcome = run(&silent).unwrap();
    assert_right(&outcome, 1);
    assert!(outcome.components.iter().any(|of| of.component == "large/swap" && of.used_bytes > 0));
    // A graph may say otherwise.
    let mut refusing: Value = serde_json::from_slice(&silent).unwrap();
    refusing["name"] = json!("swaps-not");
    refusing["limits"] = json!({ "swap": false });
    assert_fails(run(refusing.to_string().as_bytes()), Code::FunctionFailed, &["no memory"]);
    let tenants = cluster.json(&["tenant", "list"])["tenants"].take();
    let swaps = |name: &str| {
        tenants.as_array().unwrap().iter().find(|of| of["name"] == name).unwrap()["swaps"] == true
    };
    assert!(swaps("somebody"));
}

/// A component's own memory follows from what it swapped, and its pool from its own memory.
#[test]
fn component_that_swaps_often_moves_to_the_balanced_pool() {
    if !may_see_to_faults() {
        return;
    }
    let mut cluster = Cluster::start(ClusterPlan::default());
    for pool in ["compute", "memory", "balanced"] {
        cluster.add_agent_with(LentCores::cores(1), &["--memory", "1GiB", "--pool", pool]);
    }
    cluster.publish(library("swapping.c"));
    let mib = 320;
    let own_memory_unsaid = json!({ "swap_bytes": 400 * MIB });
    let graph = document(&component("large", 1, &own_memory_unsaid));
    let large = Application::deploy(cluster.user("somebody"), &graph, RunOptions::default()).unwrap();
    let run = || {
        let outcome = large.run(&input(mib, 1, 0)).unwrap();
        assert_right(&outcome, 1);
        let own = outcome.components.iter().find(|of| of.component == "large").unwrap();
        (own.nodes.clone(), own.allocated_bytes)
    };
    let (nodes, bytes) = run();
    assert_eq!(nodes, ["node-0"], "a component without earlier runs is one of cores");
    assert!(bytes < mib * MIB, "{bytes}");
    let (nodes, bytes) = run();
    assert_eq!(nodes, ["node-2"]);
    assert!(bytes >= mib * MIB, "{bytes}");
}

#[test]
fn components_that_cannot_swap_run_without_swapping() {
    let Some(platform) = platform() else { return };
    // Too little memory of its own: nothing sees to its page faults.
    let small = component("reach", 1, &json!({ "memory_bytes": 16 * MIB }));
    assert_eq!(answer(letting_swap(&platform, &small, true).run(b"")), 0);
    // WebAssembly has its memory in one piece.
    let deployed = platform.command().arg("deploy").arg(module("portable.c")).output().unwrap();
    assert!(deployed.status.success(), "{}", String::from_utf8_lossy(&deployed.stderr));
    let mut portable = component("echo", 1, &json!({}));
    portable["package"] = json!("portable");
    let outcome = letting_swap(&platform, &portable, true).run(b"word").unwrap();
    assert_eq!(outcome.outputs[0].1, [b"word".to_vec()]);
    assert_idle(&platform);
}

#[test]
fn swap_space_is_leased_when_it_is_needed() {
    let Some(platform) = platform() else { return };
    let large = application(&platform, &component("large", 1, &swapping()));
    let outcome = large.run(&input(16, 1, 0)).unwrap();
    assert_right(&outcome, 1);
    let swap = outcome.components.iter().find(|of| of.component == "large/swap").unwrap();
    assert_eq!((swap.allocated_bytes, swap.used_bytes), (0, 0));
}

#[test]
fn several_instances_have_their_own() {
    let Some(platform) = platform().filter(|platform| platform.cores() >= 2) else { return };
    let large = application(&platform, &component("large", 2, &swapping()));
    let outcome = large.run(&input(LARGE_MIB, 1, 0)).unwrap();
    assert_right(&outcome, 2);
    assert_idle(&platform);
}

#[test]
fn exhausted_swap_space_fails_with_enomem_and_is_reusable() {
    let Some(platform) = platform() else { return };
    let exhaust = application(&platform, &component("exhaust", 1, &swapping()));
    assert_eq!(answer(exhaust.run(&4u64.to_le_bytes())), SWAP_BYTES / (4 * MIB));
    // Whole regions of 2 MiB.
    assert_eq!(answer(exhaust.run(&3u64.to_le_bytes())), SWAP_BYTES / (4 * MIB));
}

#[test]
fn all_functions_that_allocate_know_of_both_kinds_of_memory() {
    let Some(platform) = platform() else { return };
    for resources in [swapping(), json!({ "memory_bytes": OWN_BYTES })] {
        let family = application(&platform, &component("family", 1, &resources));
        assert_eq!(answer(family.run(b"")), 1, "{resources}");
    }
}

/// Allocators that bypass `malloc` map memory in this way.
#[test]
fn memory_that_a_function_maps_is_swapped() {
    let Some(platform) = platform() else { return };
    let mapped = application(&platform, &component("mapped", 1, &swapping()));
    let outcome = mapped.run(&LARGE_MIB.to_le_bytes()).unwrap();
    assert_eq!(outputs(&outcome)[0][0], 1);
    let swap = outcome.components.iter().find(|of| of.component == "large/swap").unwrap();
    assert!(swap.used_bytes >= LARGE_MIB / 2 * MIB, "{swap:?}");
    assert_idle(&platform);
}

/// Only who swaps has what it needs to see to its page faults, and not the device that makes more.
#[test]
fn who_does_not_swap_sees_to_no_page_faults() {
    let Some(platform) = platform() else { return };
    for (resources, found) in [(swapping(), 1), (json!({}), 0)] {
        let reach = application(&platform, &component("reach", 1, &resources));
        assert_eq!(answer(reach.run(b"")), found, "{resources}");
    }
}

#[test]
fn swap_space_beyond_the_limits_ends_with_the_reason() {
    let Some(platform) = platform() else { return };
    let mut document: Value = serde_json::from_slice(&document(&component("large", 1, &swapping()))).unwrap();
    document["limits"] = json!({ "memory_bytes": OWN_BYTES + 64 * MIB });
    let access = Access::parse(&platform.address()).unwrap();
    let document = document.to_string().into_bytes();
    let large = Application::deploy(access, &document, RunOptions::default()).unwrap();
    assert_fails(large.run(&input(LARGE_MIB, 1, 0)), Code::MemoryExceeded, &["large/swap"]);
    assert_idle(&platform);
}

#[test]
fn a_killed_worker_restarts_with_new_swap_space() {
    let Some(platform) = platform() else { return };
    let large = application(&platform, &component("large", 1, &swapping()));
    let outcome = scope(|scope| {
        let run = scope.spawn(|| large.run(&input(LARGE_MIB, 1, 300)).unwrap());
        wait_until("it swaps", || {
            platform.json(&["ps"])["nodes"][0]["memory_leased_bytes"].as_u64().unwrap() > 128 * MIB
        });
        kill(platform.worker(), Signal::KILL);
        run.join().unwrap()
    });
    assert_right(&outcome, 1);
    let attempts = |name: &str| outcome.components.iter().find(|of| of.component == name).unwrap().attempts;
    assert_eq!((attempts("large"), attempts("large/swap")), (2, 2));
}

/// The worker is on one node and its swap space on another, which is killed.
#[test]
fn a_component_whose_swap_space_is_lost_begins_again() {
    if !may_see_to_faults() {
        return;
    }
    let mut cluster = Cluster::start(ClusterPlan::default());
    // Each node has memory for a worker and some of the rest. Until a dead node is known to be gone, an attempt may
    // fail there again and again.
    for _ in 0..3 {
        cluster.add_agent_with(LentCores::cores(1), &["--memory", "224MiB"]);
    }
    cluster.publish(library("swapping.c"));
    let options = RunOptions { retries: 100, ..RunOptions::default() };
    let document = document(&component("large", 1, &swapping()));
    let large = Application::deploy(cluster.user("somebody"), &document, options).unwrap();
    let outcome = scope(|scope| {
        let run = scope.spawn(|| large.run(&input(LARGE_MIB, 1, 2000)).unwrap());
        let far_segment = |cluster: &Cluster| {
            let leases = cluster.json(&["ps"])["leases"].as_array().cloned().unwrap_or_default();
            let worker = leases.iter().find(|lease| lease["cores"] == 1)?;
            let far = leases.iter().find(|lease| lease["cores"] == 0 && lease["node"] != worker["node"])?;
            cluster.agents.iter().position(|agent| far["node"] == agent.name.as_str())
        };
        let mut hit = None;
        wait_until("a node has swap space of another's worker", || {
            hit = far_segment(&cluster);
            hit.is_some()
        });
        cluster.agents[hit.unwrap()].kill();
        run.join().unwrap()
    });
    assert_right(&outcome, 1);
    assert!(outcome.components[0].attempts >= 2, "{:?}", outcome.components);
}
