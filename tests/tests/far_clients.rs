//! Runs of clients that are far from the nodes: what components hand on does not pass the client of a detached run, and
//! bytes that components share in memory pass no client.
//!
//! Each client is on a machine of its own, whose interface counts the bytes that pass it; see `sublet_tests::network`.

#![allow(clippy::unwrap_used)]

use sublet::{Access, Application, RunHandle, RunOptions};
use sublet_tests::cluster::{
    CLIENT_HOST, Cluster, ClusterPlan, FIRST_AGENT_HOST, LentCores, MANAGER_HOST, TENANT,
};
use sublet_tests::functions::library;
use sublet_tests::graph::{chain, sum_to, sums_by, total};
use sublet_tests::network::{Host, SwitchedNetwork};
use sublet_tests::process::PATIENCE;
use sublet_tests::runner;

/// Components of a run, each of which hands on its input.
const COMPONENTS: u64 = 8;
/// Bytes that each component hands on.
const OUTPUT_BYTES: u64 = 200_000;
/// Numbers of eight bytes in a memory component.
const NUMBERS: u64 = 1 << 20;

/// A manager, a node, and the functions of components.c. `None` where this user may not make machines.
fn cluster() -> Option<Cluster> {
    cluster_of(1, 2)
}

/// Does what [`cluster`] does, with `nodes` nodes of `cores` cores each.
fn cluster_of(nodes: u8, cores: u32) -> Option<Cluster> {
    let network = SwitchedNetwork::of_machines(FIRST_AGENT_HOST + nodes)?;
    let mut cluster = Cluster::start(ClusterPlan { network: Some(network), ..ClusterPlan::default() });
    for _ in 0..nodes {
        cluster.add_agent(LentCores::cores(cores));
    }
    cluster.publish(library("components.c"));
    Some(cluster)
}

fn host(cluster: &Cluster, number: u8) -> Host {
    cluster.network.as_ref().unwrap().host(number)
}

fn application(access: &Access) -> Application {
    deploy(access, &chain(usize::try_from(COMPONENTS).unwrap()))
}

fn deploy(access: &Access, document: &[u8]) -> Application {
    let options = RunOptions { patience: PATIENCE, retries: 0, ..RunOptions::default() };
    Application::deploy(access.clone(), document, options).unwrap()
}

/// Waits for a run on the calling thread's machine, and returns the output of its last component.
#[track_caller]
fn output_of(access: &Access, run: &str) -> Vec<u8> {
    let handle = RunHandle::open(access.clone(), run).unwrap();
    let mut outcome = handle.wait(Some(PATIENCE)).unwrap_or_else(|error| panic!("{error}"));
    outcome.outputs.remove(0).1.remove(0)
}

/// Bytes that no compression makes shorter. The first one makes the components wait for no time.
fn bytes() -> Vec<u8> {
    let count = u32::try_from(OUTPUT_BYTES).unwrap();
    let mut bytes: Vec<u8> = (0..count).map(|at| at.wrapping_mul(0x9e37_79b1).to_le_bytes()[2]).collect();
    bytes[0] = 0;
    bytes
}

#[test]
fn outputs_of_a_detached_run_do_not_pass_its_client() {
    let Some(cluster) = cluster() else { return };
    let (client, manager) = (host(&cluster, CLIENT_HOST), host(&cluster, MANAGER_HOST));
    let (access, input) = (cluster.user(TENANT), bytes());
    // A client that drives its run itself has every output on its way.
    let before = client.passed_bytes();
    let output = client.run(|| application(&access).run(&input).unwrap().outputs.remove(0).1.remove(0));
    assert!(output == input, "another output");
    let driven = client.passed_bytes() - before;
    assert!(driven > 2 * COMPONENTS * OUTPUT_BYTES, "{driven} bytes");
    for machine in [MANAGER_HOST, FIRST_AGENT_HOST] {
        let name = format!("runner-{machine}");
        let _runner = runner::start_on(&cluster, &name, &host(&cluster, machine));
        let before = client.passed_bytes();
        let run = client.run(|| application(&access).detach(&input).unwrap().id().to_owned());
        let output = manager.run(|| output_of(&access, &run));
        let detached = client.passed_bytes() - before;
        assert!(output == input, "another output with {name}");
        // The input of the run passes it once, and nothing else of this size.
        assert!((OUTPUT_BYTES..2 * OUTPUT_BYTES).contains(&detached), "{detached} bytes with {name}");
    }
}

#[test]
fn bytes_of_memory_go_between_nodes_without_the_client() {
    let Some(cluster) = cluster_of(2, 1) else { return };
    let (client, access) = (host(&cluster, CLIENT_HOST), cluster.user(TENANT));
    let nodes = [0, 1].map(|node| host(&cluster, FIRST_AGENT_HOST + node));
    let of_nodes = || nodes.iter().map(Host::passed_bytes).sum::<u64>();
    let before = (client.passed_bytes(), of_nodes());
    let (sum, readers) = client.run(|| {
        let outcome = deploy(&access, &sums_by("gather")).run(&NUMBERS.to_le_bytes()).unwrap();
        let share = outcome.components.iter().find(|used| used.component == "share").unwrap();
        (total(&outcome), share.nodes.clone())
    });
    let (by_client, by_nodes) = (client.passed_bytes() - before.0, of_nodes() - before.1);
    assert_eq!(sum, sum_to(NUMBERS));
    // Each of the two instances reads half of the numbers. One of them is on another node than the numbers.
    assert_eq!(readers.len(), 2, "{readers:?}");
    let moved = NUMBERS * 8 / 2;
    assert!(by_nodes > 2 * moved, "{by_nodes} bytes have left and reached nodes, {moved} are read");
    assert!(by_client < moved, "{by_client} bytes have passed the client, {moved} are read");
}

#[test]
fn detached_run_ends_while_its_client_is_cut_off() {
    let Some(cluster) = cluster() else { return };
    let network = cluster.network.as_ref().unwrap();
    let (client, manager) = (host(&cluster, CLIENT_HOST), host(&cluster, MANAGER_HOST));
    let (access, input) = (cluster.user(TENANT), bytes());
    let run = client.run(|| application(&access).detach(&input).unwrap().id().to_owned());
    let away = client.address(0);
    let near = [&manager, &host(&cluster, FIRST_AGENT_HOST)].map(|near| near.address(0));
    for near in near {
        network.cut(away, near);
        network.cut(near, away);
    }
    // No process drives the run before.
    let _runner = runner::start_on(&cluster, "runner", &manager);
    assert!(manager.run(|| output_of(&access, &run)) == input, "another output");
    for near in near {
        network.mend(away, near);
        network.mend(near, away);
    }
    assert!(client.run(|| output_of(&access, &run)) == input, "another output for its client");
}
