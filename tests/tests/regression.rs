//! The example examples/logistic_regression, measured, and runs of graphs of which something is killed each time: a
//! component, or a process that it needs. `SUBLET_TEST_RUNS` says how many runs there are (60); an eighth of that number,
//! and at least 10, is detached.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use sublet::{Access, Application, Invoker, News, Outcome, RunOptions};
use sublet_proto::v1::RunPage;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, TENANT, connect};
use sublet_tests::functions::library;
use sublet_tests::graph::{sum_to, sums, total};
use sublet_tests::numbers::from_environment;
use sublet_tests::platform::{PlatformProcess, kill, programs};
use sublet_tests::process::{PATIENCE, wait_until};
use sublet_tests::program::ServerProgram;
use sublet_tests::{root, runner};

/// Runs of which a component is killed.
const RUNS: u64 = 60;
const STEPS: u64 = 2000;
/// Fewest detached runs, each with one process killed: every process of every kind is killed once.
const DETACHED_RUNS: u64 = 10;
/// More than one in this number of runs loses something. On a busy machine many end before anything of them is killed.
const LOSES_ONE_IN: u64 = 10;

fn runs() -> u64 {
    from_environment("SUBLET_TEST_RUNS").unwrap_or(RUNS)
}

fn folder() -> PathBuf {
    root().join("examples/logistic_regression")
}

fn said(command: &mut Command) -> Vec<u8> {
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{command:?}");
    output.stdout
}

#[test]
fn the_example_computes_the_same_model_and_its_usage() {
    let platform = PlatformProcess::start();
    let mut command = Command::new(folder().join("run"));
    command.args(["--mb", "2", "--steps", "50", "--rounds", "1", "--redis", "--json"]);
    command.arg("--sublet").arg(programs().join("sublet"));
    command.env("SUBLET_MANAGER", platform.address());
    let said: Value = serde_json::from_slice(&said(&mut command)).unwrap();
    assert_eq!(said["same_model"], true);
    assert!(said["accuracy"].as_f64().unwrap() > 0.8, "{said}");
    for ratio in
        ["utilisation", "gb_seconds_ratio", "time_ratio", "redis_gb_seconds_ratio", "redis_time_ratio"]
    {
        assert!(said[ratio].as_f64().unwrap() > 0.0, "{said}");
    }
    assert!(said["utilisation"].as_f64().unwrap() <= 1.0, "{said}");
}

/// Builds the example, and says where its programs are.
fn build() -> PathBuf {
    let folder = programs().join("test-regression");
    let (include, build) = (root().join("crates/capi/include"), folder.display());
    let mut make = Command::new("make");
    make.args(["--silent", "--no-print-directory", "-C"]).arg(self::folder());
    make.arg(format!("INCLUDE={}", include.display())).arg(format!("BUILD={build}"));
    said(&mut make);
    folder
}

fn graph() -> (Vec<u8>, u64) {
    let document = said(Command::new(folder().join("run")).args(["--graph", "--mb", "0.5"]));
    (document, 500_000 / (32 * 9 + 2))
}

fn single(build: &Path, samples: u64) -> Vec<u8> {
    let mut command = Command::new(build.join("single"));
    command.args([samples.to_string(), STEPS.to_string()]).stderr(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success());
    output.stdout
}

/// Whether [`kill_something`] ends a segment.
fn has_segment_ended(dice: u64) -> bool {
    dice.is_multiple_of(4)
}

/// Kills a worker, or, which takes a while, has a segment end: by chance, that of some component.
fn kill_something(platform: &PlatformProcess, client: &Invoker, dice: u64) {
    let which = (dice / 4) as usize;
    if !has_segment_ended(dice) {
        let workers = platform.workers();
        if let Some(&worker) = workers.get(which % workers.len().max(1)) {
            kill(worker, Signal::KILL);
        }
        return;
    }
    let leases = client.manager().leases().unwrap();
    let segments: Vec<_> = leases.iter().filter(|lease| lease.cores == 0).collect();
    if let Some(segment) = segments.get(which % segments.len().max(1)) {
        // It may have ended by itself.
        let _ = client.manager().end_lease(&segment.id);
    }
}

#[test]
fn killing_any_component_leaves_the_model_identical() {
    let platform = PlatformProcess::start();
    let build = build();
    said(platform.command().arg("deploy").arg(build.join("libregression.so")));
    let (document, samples) = graph();
    let expected = single(&build, samples);
    let input = [samples.to_le_bytes(), STEPS.to_le_bytes()].concat();
    let access = Access::parse(&platform.address()).unwrap();
    let options = RunOptions { retries: 100, ..RunOptions::default() };
    let application = Application::deploy(access, &document, options).unwrap();
    let (client, runs, mut killed) = (platform.invoker(), runs(), 0);
    for number in 0..runs {
        let fire = Fire { dice: dice(number), span_us: 40_000 };
        let (outcome, has_lost) = run_under_fire(&platform, &client, (&application, &input[..]), fire);
        assert!(outcome.outputs[0].1[0] == expected, "run {number} has come to another model");
        killed += u32::from(has_lost);
    }
    assert_many_lost_something(killed, runs);
}

/// Numbers that are the result of the run, and that one or two instances add up: one for each begun 4 MiB of them.
fn counted_sums() -> Vec<u8> {
    let mut graph: Value = serde_json::from_slice(&sums()).unwrap();
    graph["components"][1]["parallelism"] = json!({ "from": "numbers", "bytes_each": 4 << 20, "limit": 2 });
    graph["components"][3]["result"] = json!(true);
    graph.to_string().into_bytes()
}

#[test]
fn killing_any_component_keeps_counted_instances_and_the_result() {
    let platform = PlatformProcess::start();
    said(platform.command().arg("deploy").arg(library("components.c")));
    let access = Access::parse(&platform.address()).unwrap();
    let options = RunOptions { retries: 100, ..RunOptions::default() };
    let application = Application::deploy(access, &counted_sums(), options).unwrap();
    // The first run begins the processes that make templates, and takes longer than the next ones.
    let undisturbed = [(); 2].map(|()| {
        let begun = Instant::now();
        assert_eq!(total(&application.run(&1_000_000u64.to_le_bytes()).unwrap()), sum_to(1_000_000));
        begun.elapsed()
    });
    let span_us = u64::try_from(undisturbed[1].as_micros()).unwrap() / 2 + 1;
    let (client, runs, mut killed, mut unread) = (platform.invoker(), runs(), 0, 0);
    for number in 0..runs {
        let (count, instances) = if number.is_multiple_of(2) { (1_000_000u64, 2) } else { (500_000, 1) };
        let fire = Fire { dice: dice(number), span_us };
        let (outcome, has_lost) =
            run_under_fire(&platform, &client, (&application, &count.to_le_bytes()[..]), fire);
        assert_eq!(total(&outcome), sum_to(count), "run {number}");
        let share = outcome.components.iter().find(|of| of.component == "share").unwrap();
        assert_eq!(share.instances, instances, "run {number}");
        let result = outcome.result.as_ref().unwrap();
        assert_eq!(result.memory.len_bytes(), count * 8, "run {number}");
        let mut bytes = vec![0; usize::try_from(count * 8).unwrap()];
        match result.memory.read(0, &mut bytes) {
            Ok(()) => {
                let numbers = bytes.chunks_exact(8).map(|it| u64::from_le_bytes(it.try_into().unwrap()));
                assert!(numbers.eq(1..=count), "run {number} has another result");
            }
            // Its segment was ended after the run had handed it out.
            Err(error) => {
                assert!(has_segment_ended(dice(number) / span_us), "run {number}: {error}");
                unread += 1;
            }
        }
        killed += u32::from(has_lost);
    }
    assert_many_lost_something(killed, runs);
    assert!(unread < runs / 4, "{unread} of {runs} results were lost after their runs");
    wait_until("nothing is leased any more", || {
        let node = &platform.json(&["ps"])["nodes"][0];
        node["cores_leased"] == 0 && node["memory_leased_bytes"] == 0
    });
}

/// A number that decides when something is killed in this run, and what.
fn dice(run: u64) -> u64 {
    run.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

/// The beginning of the kills within the first `span_us` microseconds of a run, and their targets.
struct Fire {
    dice: u64,
    span_us: u64,
}

/// Runs a graph with this input while workers and segments are killed, until something was hit that the run needed.
/// Returns also whether anything was.
fn run_under_fire(
    platform: &PlatformProcess,
    client: &Invoker,
    (application, input): (&Application, &[u8]),
    Fire { dice, span_us }: Fire,
) -> (Outcome, bool) {
    let lost = AtomicUsize::new(0);
    let outcome = scope(|scope| {
        let run = scope.spawn(|| run(application, input, &lost));
        sleep(Duration::from_micros(dice % span_us));
        while !run.is_finished() && lost.load(Relaxed) == 0 {
            kill_something(platform, client, dice / span_us);
            sleep(Duration::from_millis(1));
        }
        run.join().unwrap()
    });
    (outcome, lost.into_inner() > 0)
}

#[track_caller]
fn assert_many_lost_something(killed: u32, runs: u64) {
    println!("{runs} runs, {killed} of them lost something");
    assert!(u64::from(killed) > runs / LOSES_ONE_IN, "{killed} of {runs} runs lost something");
}

fn run(application: &Application, input: &[u8], lost: &AtomicUsize) -> Outcome {
    let outcome = application.run_with(input, |news| {
        if let News::Lost { .. } = news {
            lost.fetch_add(1, Relaxed);
        }
    });
    outcome.unwrap_or_else(|error| panic!("{error}"))
}

/// Kills one process of a cluster, and starts it again unless it is a worker: by its number, a runner, a manager, the
/// store, an agent or a worker.
fn kill_process_of(cluster: &mut Cluster, runners: &mut [ServerProgram], dice: u64) -> &'static str {
    let which = (dice / 5) as usize;
    match dice % 5 {
        0 => {
            runners[which % runners.len()].restart();
            "a runner"
        }
        1 => {
            let managers = cluster.managers.len();
            cluster.managers[which % managers].restart();
            "a manager"
        }
        2 => {
            let store = cluster.nats.as_mut().unwrap();
            store.kill();
            store.restart();
            "the store"
        }
        3 => {
            let agents = cluster.agents.len();
            cluster.agents[which % agents].restart();
            "an agent"
        }
        _ => {
            let workers: Vec<u32> = cluster.agents.iter().flat_map(|agent| agent.workers()).collect();
            // It may have ended by itself.
            if let Some(&worker) = workers.get(which % workers.len().max(1)) {
                let _ =
                    Command::new("kill").args(["-KILL", &worker.to_string()]).stderr(Stdio::null()).status();
            }
            "a worker"
        }
    }
}

#[test]
fn killing_any_process_leaves_a_detached_runs_model_identical() {
    let mut cluster = Cluster::start(ClusterPlan::of_managers(2));
    for _ in 0..2 {
        cluster.add_agent(LentCores::cores(2));
    }
    let build = build();
    cluster.publish(build.join("libregression.so"));
    let (document, samples) = graph();
    let expected = single(&build, samples);
    let input = [samples.to_le_bytes(), STEPS.to_le_bytes()].concat();
    let access = cluster.user(TENANT);
    let options = RunOptions { retries: 100, patience: PATIENCE, ..RunOptions::default() };
    let mut runners = ["first", "second"].map(|name| runner::start(&cluster, name));
    let (application, client) =
        (Application::deploy(access.clone(), &document, options).unwrap(), connect(&access));
    let mut again = 0;
    let runs = (runs() / 8).max(DETACHED_RUNS);
    for number in 0..runs {
        let dice = dice(number);
        let mut begun = None;
        // The store may have been away until a moment ago.
        wait_until("the run is stored", || {
            begun = application.detach(&input).ok();
            begun.is_some()
        });
        let run = begun.unwrap();
        let is_driven = || client.manager().read_run(run.id(), u64::MAX).is_ok_and(|page| has_owner(&page));
        wait_until("a runner drives it", is_driven);
        sleep(Duration::from_micros(dice % 60_000));
        let killed = kill_process_of(&mut cluster, &mut runners, number);
        let outcome =
            run.wait(Some(PATIENCE)).unwrap_or_else(|error| panic!("run {number}, {killed}: {error}"));
        assert!(
            outcome.outputs[0].1[0] == expected,
            "run {number} has come to another model: {killed} was killed"
        );
        again +=
            u64::from(outcome.components.iter().any(|of| of.attempts > 1) || epoch(&client, run.id()) > 1);
    }
    println!("{runs} detached runs, {again} of them continued after a loss");
    assert!(again > 0, "no run lost anything");
    cluster.wait_until_idle();
}

fn has_owner(page: &RunPage) -> bool {
    page.info.as_ref().is_some_and(|info| info.lease.is_some())
}

/// Number of times that a run was taken.
fn epoch(client: &Invoker, run: &str) -> u64 {
    runner::record(client, run).lease.map_or(0, |lease| lease.epoch)
}
