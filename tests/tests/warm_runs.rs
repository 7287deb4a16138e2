//! Workers of runs are ready before they are needed: of the next component, and of the next detached run.

#![allow(clippy::unwrap_used)]

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sublet::{Application, Invoker, RunOptions, Runner, RunnerNews, RunnerOptions};
use sublet_proto::v1::{Lease, RunInfo};
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, TENANT, connect};
use sublet_tests::functions::library;
use sublet_tests::graph::{chain, compute_with, document, trigger};
use sublet_tests::process::{PATIENCE, wait_until};
use sublet_tests::runner;

/// Memory of the successor's worker, by which its lease is found.
const SUCCESSOR_BYTES: u64 = 80 << 20;

fn cluster() -> Cluster {
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent(LentCores::cores(2));
    cluster.publish(library("components.c"));
    cluster
}

fn options() -> RunOptions {
    RunOptions { patience: PATIENCE, ..RunOptions::default() }
}

/// One component that hands on its input, and what runners do with its workers.
fn warm(warm: &Value) -> Vec<u8> {
    let mut graph: Value = serde_json::from_slice(&chain(1)).unwrap();
    graph["warm"] = warm.clone();
    graph.to_string().into_bytes()
}

fn info(client: &Invoker, run: &str) -> RunInfo {
    client.manager().read_run(run, u64::MAX).unwrap().info.unwrap()
}

/// The leases of workers, also those that have ended.
fn all_leases(client: &Invoker) -> Vec<Lease> {
    client.manager().leases_with_ended().unwrap()
}

/// Runs two components of which the first takes 250 ms. Returns the times of the successor's lease, and of the first
/// component's begin and end, in milliseconds since the run began.
fn lease_and_predecessor(prewarm: Option<Duration>) -> (u64, u64, u64) {
    let cluster = cluster();
    let access = cluster.user(TENANT);
    let client = connect(&access);
    let components = [
        compute_with("first", "later", &json!({ "entry": true })),
        compute_with("second", "later", &json!({ "resources": { "memory_bytes": SUCCESSOR_BYTES } })),
    ];
    let graph = document("pair", &components, &[trigger("first", "second")]);
    let application = Application::deploy(access, &graph, RunOptions { prewarm, ..options() }).unwrap();
    let outcome = application.run(&[250]).unwrap();
    let began = info(&client, &outcome.run).began_unix_ms;
    let lease = all_leases(&client).into_iter().find(|lease| lease.memory_bytes == SUCCESSOR_BYTES).unwrap();
    let first = outcome.components.iter().find(|used| used.component == "first").unwrap();
    (lease.granted_unix_ms - began, first.begin_us / 1000, first.end_us / 1000)
}

#[test]
fn successor_has_its_worker_before_its_predecessor_ends() {
    let (leased, begin, end) = lease_and_predecessor(Some(Duration::ZERO));
    assert!(leased < end, "leased after {leased} ms; the predecessor took from {begin} to {end} ms");
}

#[test]
fn successor_has_its_worker_after_the_given_time() {
    let (leased, begin, end) = lease_and_predecessor(Some(Duration::from_millis(120)));
    // Times are rounded down to milliseconds.
    assert!(
        leased + 2 >= begin + 120,
        "leased after {leased} ms; the predecessor took from {begin} to {end} ms"
    );
}

#[test]
fn successor_has_its_worker_after_its_predecessor_without_preparation() {
    let (leased, begin, end) = lease_and_predecessor(None);
    // Times are rounded down to milliseconds.
    assert!(
        leased + 2 >= begin + 250,
        "leased after {leased} ms; the predecessor took from {begin} to {end} ms"
    );
}

#[test]
fn runs_share_a_kept_worker_until_the_runner_ends() {
    let cluster = cluster();
    let access = cluster.user(TENANT);
    let client = connect(&access);
    let mut runner = runner::start(&cluster, "keeper");
    let application = Application::deploy(access, &warm(&json!(600)), options()).unwrap();
    for _ in 0..3 {
        let outcome = application.detach(b"\0x").unwrap().wait(Some(PATIENCE)).unwrap();
        assert_eq!(outcome.outputs[0].1[0], b"\0x");
        assert_eq!(all_leases(&client).len(), 1, "{:?}", all_leases(&client));
        assert_eq!(client.manager().leases().unwrap().len(), 1, "its worker is kept");
    }
    runner.kill();
    wait_until("the kept lease ends with the runner", || client.manager().leases().unwrap().is_empty());
}

#[test]
fn worker_is_given_back_after_the_window() {
    let cluster = cluster();
    let access = cluster.user(TENANT);
    let client = connect(&access);
    let _runner = runner::start(&cluster, "keeper");
    let application = Application::deploy(access, &warm(&json!(2)), options()).unwrap();
    let run = application.detach(b"\0x").unwrap();
    run.wait(Some(PATIENCE)).unwrap();
    wait_until("the kept lease has ended", || client.manager().leases().unwrap().is_empty());
    let (ended, lease) = (info(&client, run.id()).ended_unix_ms, all_leases(&client).remove(0));
    assert!(lease.ended_unix_ms >= ended + 1000, "the run ended at {ended}: {lease:?}");
}

#[test]
fn kept_worker_yields_to_a_run_waiting_for_its_cores() {
    let cluster = cluster();
    let access = cluster.user(TENANT);
    let _runner = runner::start(&cluster, "keeper");
    let keeper = Application::deploy(access.clone(), &warm(&json!(600)), options()).unwrap();
    keeper.detach(b"\0x").unwrap().wait(Some(PATIENCE)).unwrap();
    let both = compute_with("both", "who", &json!({ "entry": true, "parallelism": 2 }));
    let other = Application::deploy(access, &document("other", &[both], &[]), options()).unwrap();
    other.detach(b"").unwrap().wait(Some(PATIENCE)).unwrap();
}

#[test]
fn worker_is_leased_before_a_run_that_earlier_runs_predict() {
    let cluster = cluster();
    let access = cluster.user(TENANT);
    let client = connect(&access);
    let (tell, told) = channel();
    let options_of_runner =
        RunnerOptions { idle_bin: Duration::from_secs(1), ..RunnerOptions::new("keeper", 4) };
    let news = move |news: &RunnerNews| {
        if let RunnerNews::Prewarmed { graph, error, .. } = news {
            // The test may have ended.
            let _ = tell.send((graph.clone(), error.clone()));
        }
    };
    let _runner = Runner::start(access.clone(), options_of_runner, news).unwrap();
    let application = Application::deploy(access, &warm(&json!("auto")), options()).unwrap();
    let mut ended = None::<Instant>;
    let mut last = String::new();
    for _ in 0..6 {
        wait_until("the time between runs has passed", || {
            ended.is_none_or(|ended| ended.elapsed() >= Duration::from_millis(2500))
        });
        let run = application.detach(b"\0x").unwrap();
        run.wait(Some(PATIENCE)).unwrap();
        ended = Some(Instant::now());
        last = run.id().to_owned();
    }
    let (graph, error) = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!((graph.as_str(), error.map(|error| error.message)), ("chain", None));
    let ended = info(&client, &last).ended_unix_ms;
    let ahead =
        all_leases(&client).into_iter().filter(|lease| lease.granted_unix_ms > ended).collect::<Vec<_>>();
    assert_eq!(ahead.len(), 1, "{ahead:?}");
    assert!(ahead[0].granted_unix_ms >= ended + 1500, "the run ended at {ended}: {ahead:?}");
    // No run comes.
    wait_until("the lease has ended", || client.manager().leases().unwrap().is_empty());
}
