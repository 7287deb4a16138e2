//! Detached runs: a runner drives each, others stand in for it, and no two drive one.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use sublet::{Access, Application, Code, Invoker, RunHandle, RunOptions, Runner, RunnerOptions};
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, TENANT, connect};
use sublet_tests::functions::library;
use sublet_tests::graph::{chain, compute, compute_with, document, memory, sum_to, sums, total, trigger};
use sublet_tests::platform::{PlatformProcess, sublet};
use sublet_tests::process::{PATIENCE, wait_until};
use sublet_tests::runner::{self, log, record};

/// Components of a run during which the process that drives it ends: they take some seconds after the first one.
const LONG: usize = 12;

/// One component that does not end by itself.
fn stay(more: &Value) -> Vec<u8> {
    let mut entry = json!({ "entry": true });
    for (key, value) in more.as_object().into_iter().flatten() {
        entry[key] = value.clone();
    }
    document("stay", &[compute_with("only", "stay", &entry)], &[])
}

fn options() -> RunOptions {
    RunOptions { patience: PATIENCE, retries: 100, ..RunOptions::default() }
}

/// Managers and two nodes, with the functions of components.c, and no runner.
fn cluster(plan: ClusterPlan) -> Cluster {
    let mut cluster = Cluster::start(plan);
    for _ in 0..2 {
        cluster.add_agent(LentCores::cores(2));
    }
    cluster.publish(library("components.c"));
    cluster
}

/// A tenant's way to the managers, and a client on it.
fn tenant(cluster: &Cluster, name: &str) -> (Access, Invoker) {
    let access = cluster.user(name);
    let client = connect(&access);
    (access, client)
}

#[track_caller]
fn output_of(run: &RunHandle) -> Vec<u8> {
    let outcome = run.wait(Some(PATIENCE)).unwrap_or_else(|error| panic!("{error}"));
    outcome.outputs[0].1[0].clone()
}

/// Waits until a component of the run is done.
#[track_caller]
fn wait_for_record(client: &Invoker, run: &RunHandle) {
    wait_until("a component is done", || {
        let page = client.manager().read_run(run.id(), 0).unwrap();
        assert_eq!(page.info.unwrap_or_default().ended_unix_ms, 0, "the run ended before");
        !page.entries.is_empty()
    });
}

/// Names of the runners that have driven the run, in order, and the number of starts of its components.
fn driven_by(run: &RunHandle) -> (Vec<String>, usize) {
    let log = log(run);
    let runners = log.iter().filter_map(|(_, text)| text.strip_prefix("driven by ").map(str::to_owned));
    let starts = log.iter().filter(|(_, text)| text.starts_with("started")).count();
    (runners.collect(), starts)
}

fn command(cluster: &Cluster, access: &Access) -> Command {
    let mut command = sublet();
    command.env("SUBLET_MANAGER", cluster.addresses()).env("SUBLET_CA", cluster.ca_file());
    command.env("SUBLET_TOKEN", access.token.as_deref().unwrap()).stdin(Stdio::null());
    command
}

fn ran(cluster: &Cluster, access: &Access, arguments: &[&str]) -> Output {
    command(cluster, access).args(arguments).output().unwrap()
}

#[test]
fn detached_run_needs_no_client() {
    let platform = PlatformProcess::start();
    let deployed = platform.command().arg("deploy").arg(library("components.c")).output().unwrap();
    assert!(deployed.status.success());
    let file = platform.state().join("chain.json");
    std::fs::write(&file, chain(3)).unwrap();
    let begun = platform.pipe(&["graph", "run", file.to_str().unwrap(), "--detach"], b"\x20xyz");
    assert!(begun.status.success(), "{}", String::from_utf8_lossy(&begun.stderr));
    // Its client is gone.
    let run = String::from_utf8(begun.stdout).unwrap().trim().to_owned();
    let waited = platform.run(&["graph", "wait", &run]);
    assert!(waited.status.success(), "{}", String::from_utf8_lossy(&waited.stderr));
    assert_eq!(waited.stdout, b"\x20xyz");
    let output = platform.state().join("output");
    let waited = platform.json(&["graph", "wait", &run, "--output", output.to_str().unwrap()]);
    assert_eq!((&waited["run"], waited["components"].as_array().unwrap().len()), (&json!(run), 3));
    assert_eq!(std::fs::read(output).unwrap(), b"\x20xyz");
    let events = platform.json(&["graph", "logs", &run])["events"].take();
    let texts: Vec<_> =
        events.as_array().unwrap().iter().map(|event| event["text"].as_str().unwrap()).collect();
    assert_eq!(texts.iter().filter(|text| **text == "started").count(), 3, "{texts:?}");
    let shown = platform.json(&["graph", "history", &run]);
    assert_eq!((&shown["detached"], shown["error"].is_null()), (&json!(true), true));
    let begun = platform.pipe(&["graph", "run", "chain", "--detach", "--json"], b"\0");
    let begun: Value = serde_json::from_slice(&begun.stdout).unwrap();
    platform.json(&["graph", "wait", begun["run"].as_str().unwrap(), "--output", "/dev/null"]);
    wait_until("nothing is leased any more", || {
        let node = &platform.json(&["ps"])["nodes"][0];
        node["cores_leased"] == 0 && node["memory_leased_bytes"] == 0
    });
}

#[test]
fn restarted_platform_continues_its_runs() {
    let mut platform = PlatformProcess::start();
    let deployed = platform.command().arg("deploy").arg(library("components.c")).output().unwrap();
    assert!(deployed.status.success());
    let access = Access::parse(&platform.address()).unwrap();
    let application = Application::deploy(access.clone(), &chain(LONG), options()).unwrap();
    let run = application.detach(b"\xffxyz").unwrap();
    wait_for_record(&platform.invoker(), &run);
    platform.signal(rustix::process::Signal::TERM);
    assert!(platform.wait().success());
    let again = PlatformProcess::start_in(platform.state());
    let (id, client) = (run.id().to_owned(), again.invoker());
    let run = client.open_run(&id);
    assert_eq!(output_of(&run), b"\xffxyz");
    let (runners, starts) = driven_by(&run);
    assert_eq!(runners.len(), 2, "{:?}", log(&run));
    // One component was executed when the platform stopped.
    assert!((LONG..=LONG + 1).contains(&starts), "{:?}", log(&run));
}

#[test]
fn runner_continues_the_run_of_a_killed_one() {
    let cluster = cluster(ClusterPlan::default());
    let (access, client) = tenant(&cluster, TENANT);
    let mut first = runner::start(&cluster, "first");
    let application = Application::deploy(access, &chain(LONG), options()).unwrap();
    let run = application.detach(b"\xffxyz").unwrap();
    wait_for_record(&client, &run);
    first.kill();
    let _second = runner::start(&cluster, "second");
    assert_eq!(output_of(&run), b"\xffxyz");
    assert_eq!(record(&client, run.id()).lease.unwrap().epoch, 2);
    let log = log(&run);
    let taken = log.iter().position(|(_, text)| text == "driven by second").unwrap();
    let again =
        log[taken..].iter().any(|(component, text)| component == "step0" && text.starts_with("started"));
    assert!(!again, "a recorded component was executed again: {log:?}");
    cluster.wait_until_idle();
}

#[test]
fn killed_runners_leave_results_bit_for_bit() {
    let cluster = cluster(ClusterPlan::default());
    let (access, client) = tenant(&cluster, TENANT);
    let mut runners = [runner::start(&cluster, "first"), runner::start(&cluster, "second")];
    let application = Application::deploy(access.clone(), &sums(), options()).unwrap();
    for round in 0..6u64 {
        let count = 100_000 + round;
        let run = application.detach(&count.to_le_bytes()).unwrap();
        // At another moment each time: when it was taken, and later.
        wait_until("a runner drives it", || record(&client, run.id()).lease.is_some());
        wait_until("some events later", || {
            let has_ended = record(&client, run.id()).ended_unix_ms != 0;
            has_ended || log(&run).len() as u64 >= round / 2
        });
        let driver = record(&client, run.id()).lease.unwrap().runner;
        let killed = usize::from(driver.starts_with("second"));
        runners[killed].kill();
        let outcome = run.wait(Some(PATIENCE)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(total(&outcome), sum_to(count), "round {round}");
        runners[killed].restart();
    }
    cluster.wait_until_idle();
}

#[test]
fn stopped_runner_hands_its_run_back() {
    let cluster = cluster(ClusterPlan::default());
    let (access, client) = tenant(&cluster, TENANT);
    let mut first = runner::start(&cluster, "first");
    let run = Application::deploy(access, &chain(LONG), options()).unwrap().detach(b"\xffxyz").unwrap();
    wait_for_record(&client, &run);
    assert!(first.stop().success());
    let lease = record(&client, run.id()).lease.unwrap();
    assert_eq!((&*lease.runner, lease.epoch), ("", 1));
    cluster.wait_until_idle();
    let _second = runner::start(&cluster, "second");
    assert_eq!(output_of(&run), b"\xffxyz");
    let (runners, starts) = driven_by(&run);
    assert_eq!(runners, ["first", "second"]);
    assert!((LONG..=LONG + 1).contains(&starts), "{:?}", log(&run));
}

#[test]
fn runners_that_race_drive_each_run_once() {
    let cluster = cluster(ClusterPlan::of_managers(2));
    let (access, _) = tenant(&cluster, TENANT);
    let runners: Vec<_> = (0..3).map(|number| runner::start(&cluster, &format!("runner-{number}"))).collect();
    let application = Application::deploy(access, &chain(2), options()).unwrap();
    let runs: Vec<_> = (0..12).map(|_| application.detach(b"\x30x").unwrap()).collect();
    for run in &runs {
        assert_eq!(output_of(run), b"\x30x");
        let (drivers, starts) = driven_by(run);
        assert_eq!((drivers.len(), starts), (1, 2), "{:?}", log(run));
    }
    drop(runners);
    cluster.wait_until_idle();
}

#[test]
fn runner_that_stood_still_changes_nothing() {
    let cluster = cluster(ClusterPlan::default());
    let (access, client) = tenant(&cluster, TENANT);
    let first = runner::start(&cluster, "first");
    let run = Application::deploy(access, &chain(LONG), options()).unwrap().detach(b"\xffxyz").unwrap();
    wait_for_record(&client, &run);
    first.pause();
    let _second = runner::start(&cluster, "second");
    wait_until("the second one has the lease", || {
        record(&client, run.id()).lease.is_some_and(|lease| lease.epoch == 2)
    });
    // It continues in the middle of the other's work, and is refused.
    first.resume();
    assert_eq!(output_of(&run), b"\xffxyz");
    wait_until("the first one has noticed", || first.log().contains("another process drives it"));
    let info = record(&client, run.id());
    assert_eq!((info.lease.unwrap().epoch, info.code), (2, 0));
    assert_eq!(driven_by(&run).0.last().unwrap(), "second");
    cluster.wait_until_idle();
}

#[test]
fn client_cannot_resume_a_run_that_is_driven() {
    let cluster = cluster(ClusterPlan::default());
    let (access, client) = tenant(&cluster, TENANT);
    let _runner = runner::start(&cluster, "first");
    let application = Application::deploy(access, &stay(&json!({})), options()).unwrap();
    let run = application.detach(b"").unwrap();
    wait_until("a runner drives it", || record(&client, run.id()).lease.is_some());
    assert_fails(application.resume(run.id(), |_| {}), Code::RunTaken, &[run.id(), "driven by first"]);
    run.cancel().unwrap();
    assert_fails(application.resume(run.id(), |_| {}), Code::RunCancelled, &[run.id()]);
    cluster.wait_until_idle();
}

#[test]
fn run_is_not_resumed_as_another_graph() {
    let cluster = cluster(ClusterPlan::default());
    let (access, client) = tenant(&cluster, TENANT);
    let run = Application::deploy(access.clone(), &chain(1), options()).unwrap().detach(b"\0x").unwrap();
    let other = Application::deploy(access, &chain(2), options()).unwrap();
    assert_fails(other.resume(run.id(), |_| {}), Code::InvalidArgument, &[run.id(), "another version"]);
    // Its lease was handed back at once.
    let lease = record(&client, run.id()).lease.unwrap();
    assert_eq!((&*lease.runner, lease.epoch), ("", 1));
    let _runner = runner::start(&cluster, "first");
    assert_eq!(output_of(&run), b"\0x");
}

#[test]
fn cancelled_run_gives_its_leases_back() {
    let cluster = cluster(ClusterPlan::default());
    let (access, client) = tenant(&cluster, TENANT);
    let _runner = runner::start(&cluster, "first");
    let run = Application::deploy(access.clone(), &stay(&json!({})), options()).unwrap().detach(b"").unwrap();
    wait_until("it has a core", || !client.manager().leases().unwrap().is_empty());
    let cancelled = ran(&cluster, &access, &["graph", "cancel", run.id(), "--json"]);
    assert!(cancelled.status.success(), "{}", String::from_utf8_lossy(&cancelled.stderr));
    assert_fails(run.wait(Some(PATIENCE)), Code::RunCancelled, &["cancelled"]);
    cluster.wait_until_idle();
    run.cancel().unwrap();
    let info = record(&client, run.id());
    assert_eq!((info.code, info.ended_unix_ms != 0), (Code::RunCancelled.number(), true));
    // Also a client's own run ends.
    let application = Application::deploy(access, &stay(&json!({})), options()).unwrap();
    let ended = std::thread::scope(|scope| {
        let own = scope.spawn(|| application.run(b""));
        wait_until("it has a core", || !client.manager().leases().unwrap().is_empty());
        let runs = client.manager().runs_going_on("stay", 0).unwrap();
        client.open_run(&runs[0].run).cancel().unwrap();
        own.join().unwrap()
    });
    assert_fails(ended, Code::RunCancelled, &["was cancelled"]);
    cluster.wait_until_idle();
}

#[test]
fn run_survives_managers_and_their_store() {
    let mut cluster = cluster(ClusterPlan::of_managers(2));
    let (access, client) = tenant(&cluster, TENANT);
    let _runners = [runner::start(&cluster, "first"), runner::start(&cluster, "second")];
    let application = Application::deploy(access, &chain(8), options()).unwrap();
    for victim in 0..3 {
        let run = application.detach(b"\xffxyz").unwrap();
        wait_for_record(&client, &run);
        match victim {
            2 => {
                let store = cluster.nats.as_mut().unwrap();
                store.kill();
                store.restart();
            }
            manager => {
                cluster.managers[manager].kill();
                cluster.managers[manager].restart();
            }
        }
        assert_eq!(output_of(&run), b"\xffxyz", "victim {victim}");
    }
    cluster.wait_until_idle();
}

#[test]
fn component_with_external_effects_is_executed_by_one_runner() {
    let cluster = cluster(ClusterPlan::default());
    let (access, client) = tenant(&cluster, TENANT);
    let mut first = runner::start(&cluster, "first");
    let graph = stay(&json!({ "external_effects": true }));
    let run = Application::deploy(access, &graph, options()).unwrap().detach(b"").unwrap();
    let begun = || client.manager().read_run(run.id(), 0).unwrap().entries.iter().any(|entry| entry.begins);
    wait_until("the component has begun", begun);
    first.kill();
    let _second = runner::start(&cluster, "second");
    assert_fails(run.wait(Some(PATIENCE)), Code::WorkerDied, &["component only has external effects"]);
    cluster.wait_until_idle();
}

#[test]
fn users_runner_drives_runs_of_its_tenant_only() {
    let cluster = cluster(ClusterPlan::default());
    let (one, two) = (tenant(&cluster, "one"), tenant(&cluster, "two"));
    let _runner = runner::start_with(&cluster, "ones", one.0.token.as_deref().unwrap());
    let detach = |access: &Access| {
        Application::deploy(access.clone(), &chain(1), options()).unwrap().detach(b"\0x").unwrap()
    };
    let others = detach(&two.0);
    // It was begun before, so it would be taken before.
    assert_eq!(output_of(&detach(&one.0)), b"\0x");
    assert_eq!(record(&two.1, others.id()).lease, None);
    let line = |arguments: &[&str]| String::from_utf8(ran(&cluster, &two.0, arguments).stdout).unwrap();
    assert!(line(&["graph", "history", others.id()]).contains("waits for a runner"));
    // An operator's drives it with the rights and on the bill of its tenant.
    let _operators = runner::start(&cluster, "operators");
    assert_eq!(output_of(&others), b"\0x");
    let leases = cluster.operator().manager().leases_with_ended().unwrap();
    assert!(leases.iter().all(|lease| ["one", "two"].contains(&&*lease.tenant)), "{leases:?}");
    let acting = one.0.clone().for_tenant("two").unwrap();
    assert_fails(Application::open(acting, "chain", options()).map(drop), Code::PermissionDenied, &["two"]);
}

#[test]
fn runs_that_are_not_there_are_refused() {
    let cluster = cluster(ClusterPlan::default());
    let (one, two) = (tenant(&cluster, "one"), tenant(&cluster, "two"));
    let application = Application::deploy(one.0.clone(), &chain(1), options()).unwrap();
    // No runner is there.
    let run = application.detach(b"\0x").unwrap();
    let unknown = ["0".repeat(32), "a run".to_owned(), String::new(), "../".repeat(9)];
    for id in unknown.iter().map(String::as_str).chain([run.id()]) {
        let handle = two.1.open_run(id);
        assert_fails(handle.wait(None).map(drop), Code::UnknownRun, &[]);
        assert_fails(handle.cancel(), Code::UnknownRun, &[]);
        assert_fails(handle.logs().map(drop), Code::UnknownRun, &[]);
    }
    let refused = |arguments: &[&str], code: Code| {
        let output = ran(&cluster, &one.0, arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), i32::try_from(code.number()).ok(), "{arguments:?}: {said}");
        said
    };
    let late = refused(&["graph", "wait", run.id(), "--timeout", "10ms"], Code::DeadlineExceeded);
    assert!(late.contains("it continues"), "{late}");
    refused(&["graph", "wait", run.id(), "--timeout", "soon"], Code::InvalidArgument);
    refused(&["graph", "wait", run.id(), "--json"], Code::InvalidArgument);
    refused(&["graph", "run", "chain", "--detach", "--output", "x"], Code::InvalidArgument);
    refused(&["runner", "--at-once", "0"], Code::InvalidArgument);
    refused(&["runner", "--name", "a b"], Code::InvalidArgument);
    let unnamed = Runner::start(one.0.clone(), RunnerOptions::new("", 1), |_| {});
    assert_fails(unnamed.map(drop), Code::InvalidArgument, &["1 to 64"]);
    let without_width = RunnerOptions { idle_bin: Duration::ZERO, ..RunnerOptions::new("first", 1) };
    assert_fails(
        Runner::start(one.0.clone(), without_width, |_| {}).map(drop),
        Code::InvalidArgument,
        &["idle_bin"],
    );

    let _runner = runner::start(&cluster, "first");
    assert_eq!(output_of(&run), b"\0x");
    assert_fails(run.cancel(), Code::UnknownRun, &["has ended"]);
    refused(&["graph", "cancel", run.id()], Code::UnknownRun);
    // The outputs of a client's run went to the client.
    let own = application.run(b"\0x").unwrap().run;
    assert_fails(one.1.open_run(&own).wait(None).map(drop), Code::InvalidArgument, &["only a detached run"]);
    let mut numbers = memory("numbers");
    numbers["result"] = json!(true);
    let components =
        [compute_with("fill", "fill", &json!({ "entry": true })), compute("last", "later"), numbers];
    let edges = [trigger("fill", "last"), sublet_tests::graph::access("fill", "numbers", "write")];
    let kept = Application::deploy(one.0.clone(), &document("kept", &components, &edges), options()).unwrap();
    assert_fails(kept.detach(b""), Code::InvalidArgument, &["memory component numbers"]);
}

#[test]
fn failed_detached_run_ends_with_the_error_of_its_component() {
    let cluster = cluster(ClusterPlan::default());
    let (access, _) = tenant(&cluster, TENANT);
    let _runner = runner::start(&cluster, "first");
    let run = Application::deploy(access.clone(), &sums(), options()).unwrap().detach(b"x").unwrap();
    assert_fails(run.wait(Some(PATIENCE)).map(drop), Code::FunctionFailed, &["component fill", "how many?"]);
    let waited = ran(&cluster, &access, &["graph", "wait", run.id()]);
    assert_eq!(waited.status.code(), i32::try_from(Code::FunctionFailed.number()).ok());
    let failed =
        log(&run).into_iter().any(|(component, text)| component == "fill" && text.contains("how many?"));
    assert!(failed, "{:?}", log(&run));
    assert_eq!(run.wait(Some(Duration::ZERO)).unwrap_err().code, Code::FunctionFailed);
    cluster.wait_until_idle();
}
