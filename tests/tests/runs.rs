//! Runs of graphs: components on real processes, the memory that they share, and what becomes of both when they are killed.

#![allow(clippy::unwrap_used)]

use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread::{scope, sleep};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sublet::{Access, Allocation, Application, Code, Error, FabricChoice, News, Outcome, RunOptions};
use sublet_proto::v1::Lease;
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores};
use sublet_tests::functions::{library, package};
use sublet_tests::graph::{
    access, chain, compute, compute_with, document, memory, sum_to, sums, sums_by, total, trigger,
};
use sublet_tests::platform::PlatformProcess;
use sublet_tests::process::{PATIENCE, wait_until};

const MIB: u64 = 1 << 20;

fn platform() -> PlatformProcess {
    let platform = PlatformProcess::start_with(|command| {
        command.args(["--listen", "127.0.0.1:0"]);
    });
    deploy(&mut platform.command());
    platform
}

fn deploy(command: &mut Command) {
    let deployed = command.arg("deploy").arg(library("components.c")).output().unwrap();
    assert!(deployed.status.success(), "{}", String::from_utf8_lossy(&deployed.stderr));
}

fn access_to(platform: &PlatformProcess) -> Access {
    Access::parse(&platform.address()).unwrap()
}

fn application(platform: &PlatformProcess, document: &[u8]) -> Application {
    application_with(platform, document, RunOptions { patience: PATIENCE, ..RunOptions::default() })
}

fn application_with(platform: &PlatformProcess, document: &[u8], options: RunOptions) -> Application {
    Application::deploy(access_to(platform), document, options).unwrap()
}

#[track_caller]
fn assert_idle(platform: &PlatformProcess) {
    wait_until("nothing is leased any more", || {
        let node = &platform.json(&["ps"])["nodes"][0];
        node["cores_leased"] == 0 && node["memory_leased_bytes"] == 0
    });
}

#[test]
fn components_share_memory_and_give_all_of_it_back() {
    let platform = platform();
    let application = application(&platform, &sums());
    for count in [1u64, 511, 300_000] {
        let outcome = application.run(&count.to_le_bytes()).unwrap();
        assert_eq!(total(&outcome), sum_to(count));
        let of = |name: &str| outcome.components.iter().find(|of| of.component == name).unwrap();
        assert_eq!((of("share").attempts, of("share").instances, of("fill").attempts), (1, 2, 1));
        let numbers = of("numbers");
        assert_eq!(numbers.used_bytes, count * 8);
        assert!(
            numbers.allocated_bytes >= numbers.used_bytes && numbers.allocated_bytes < count * 8 + MIB + 4096
        );
        assert!(
            of("total").begin_us >= of("share").end_us,
            "a component begins when those before it are done"
        );
    }
    assert_idle(&platform);
    let runs = platform.json(&["graph", "history", "sums"])["runs"].take();
    assert_eq!(runs.as_array().unwrap().len(), 3);
    assert!(runs[0]["error"].is_null() && runs[0]["ended_unix_ms"].is_u64(), "{runs}");
    let run = platform.json(&["graph", "history", runs[0]["run"].as_str().unwrap()]);
    assert_eq!(run["components"].as_array().unwrap().len(), 5);
}

/// One component whose instances have this many cores each.
fn wide(cores: u32) -> Vec<u8> {
    let more = json!({ "entry": true, "resources": { "cores": cores, "memory_bytes": 32 * MIB } });
    document("wide", &[compute_with("wide", "cores", &more)], &[])
}

#[test]
fn instance_runs_on_all_of_its_cores() {
    let platform = platform();
    for fabric in [None, tcp(false)] {
        for cores in [1, 2] {
            let options = RunOptions { fabric: fabric.clone(), ..RunOptions::default() };
            let outcome = application_with(&platform, &wide(cores), options).run(&[0]).unwrap();
            assert_eq!(outcome.outputs[0].1, [u64::from(cores).to_le_bytes().to_vec()], "by {fabric:?}");
            assert_eq!((outcome.components[0].instances, outcome.components[0].cores), (1, cores));
        }
    }
    assert_idle(&platform);
    let runs = platform.json(&["graph", "history", "wide"])["runs"].take();
    let run = platform.json(&["graph", "history", runs[0]["run"].as_str().unwrap()]);
    assert_eq!((&run["components"][0]["instances"], &run["components"][0]["cores"]), (&json!(1), &json!(2)));
}

#[test]
fn refuses_instance_with_more_cores_than_any_node() {
    let platform = platform();
    let failed = application(&platform, &wide(1000)).run(&[0]);
    assert_fails(
        failed,
        Code::InsufficientResources,
        &["component wide", "1000 cores of one node", "largest node has"],
    );
    assert_idle(&platform);
}

/// One component that lasts as many milliseconds as its input's first byte says, with limits over all runs.
fn limited(limits: &Value) -> Vec<u8> {
    let component = compute_with("only", "later", &json!({ "entry": true }));
    let mut graph: Value = serde_json::from_slice(&document("limited", &[component], &[])).unwrap();
    graph["limits"] = limits.clone();
    graph.to_string().into_bytes()
}

#[test]
fn limits_of_an_application_hold_over_runs_of_several_clients() {
    let platform = platform();
    let graph = limited(&json!({ "application_cores": 1, "application_memory_bytes": 512 * MIB }));
    let application = || application(&platform, &graph);
    let largest = AtomicUsize::new(0);
    scope(|scope| {
        let runs: Vec<_> =
            (0..4).map(|_| scope.spawn(|| application().run(b"\xffx").unwrap().outputs)).collect();
        let leases = || platform.json(&["ps"])["leases"].as_array().map_or(0, Vec::len);
        while !runs.iter().all(|run| run.is_finished()) {
            largest.fetch_max(leases(), Relaxed);
        }
        for run in runs {
            assert_eq!(run.join().unwrap()[0].1, [b"\xffx".to_vec()]);
        }
    });
    assert_eq!(largest.into_inner(), 1, "leases at a time");
    let impatient = RunOptions { patience: Duration::from_millis(100), ..RunOptions::default() };
    let held = json!({ "application_memory_bytes": MIB });
    let failed = application_with(&platform, &limited(&held), impatient).run(b"\0");
    assert_fails(failed, Code::InsufficientResources, &["application", "limited", "1048576"]);
    assert_idle(&platform);
}

#[test]
fn runs_that_wait_for_each_other_all_succeed() {
    let platform = platform();
    let mut graph: Value = serde_json::from_slice(&talk()).unwrap();
    // Two components exchange messages, and each of the runs has a core while its entry lasts.
    graph["limits"] = json!({ "application_cores": 2 });
    let options = RunOptions { patience: Duration::from_secs(20), ..RunOptions::default() };
    let application = application_with(&platform, graph.to_string().as_bytes(), options);
    let count = 255u64;
    scope(|scope| {
        let runs: Vec<_> =
            (0..2).map(|_| scope.spawn(|| application.run(&count.to_le_bytes()).unwrap())).collect();
        for run in runs {
            assert_talked(&run.join().unwrap(), count);
        }
    });
    assert_idle(&platform);
}

/// Numbers that are written into a memory component, which is the result.
fn numbers_as_result() -> Vec<u8> {
    let mut numbers = memory("numbers");
    numbers["result"] = json!(true);
    let components =
        [compute_with("fill", "fill", &json!({ "entry": true })), compute("last", "later"), numbers];
    document("kept", &components, &[trigger("fill", "last"), access("fill", "numbers", "write")])
}

#[test]
fn client_reads_a_result_in_memory_and_releases_it() {
    let platform = platform();
    let count = 300_000u64;
    for fabric in [None, tcp(false)] {
        let options = RunOptions { fabric, ..RunOptions::default() };
        let application = application_with(&platform, &numbers_as_result(), options);
        let outcome = application.run(&count.to_le_bytes()).unwrap();
        let result = outcome.result.as_ref().unwrap();
        assert_eq!((result.component.as_str(), result.memory.len_bytes()), ("numbers", count * 8));
        let mut bytes = vec![0; usize::try_from(count * 8).unwrap()];
        result.memory.read(0, &mut bytes).unwrap();
        let numbers = bytes.chunks_exact(8).map(|number| u64::from_le_bytes(number.try_into().unwrap()));
        assert!(numbers.eq(1..=count));
        let beyond = result.memory.read(count * 8, &mut [0u8; 1][..]);
        assert_fails(beyond, Code::InvalidArgument, &[]);
        let used = outcome.components.iter().find(|of| of.component == "numbers").unwrap();
        assert_eq!(used.used_bytes, count * 8);
        drop(application);
        let leased = platform.json(&["ps"])["nodes"][0]["memory_leased_bytes"].as_u64().unwrap();
        assert!(leased >= count * 8, "{leased}");
        drop(outcome);
        assert_idle(&platform);
    }
}

#[test]
fn the_command_writes_a_result_that_is_memory() {
    let platform = platform();
    let file = platform.state().join("kept.json");
    std::fs::write(&file, numbers_as_result()).unwrap();
    let expected: Vec<u8> = (1..=200_000u64).flat_map(u64::to_le_bytes).collect();
    let output = platform.state().join("numbers");
    let arguments = ["graph", "run", file.to_str().unwrap(), "--output", output.to_str().unwrap()];
    assert!(platform.pipe(&arguments, &200_000u64.to_le_bytes()).status.success());
    assert!(std::fs::read(&output).unwrap() == expected, "another result");
    let ran = platform.pipe(&["graph", "run", "kept", "--quiet"], &200_000u64.to_le_bytes());
    assert!(ran.status.success() && ran.stdout == expected);
    assert_idle(&platform);
}

/// The number and the count of each instance of "map", as its instances returned them.
#[track_caller]
fn told_by_instances(outcome: &Outcome) -> Vec<(u32, u32)> {
    let [(name, outputs)] = outcome.outputs.as_slice() else { panic!("{outcome:?}") };
    assert_eq!(name, "map");
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    outputs.iter().map(|output| (number(&output[..4]), number(&output[4..]))).collect()
}

#[test]
fn number_of_instances_follows_from_an_output() {
    let platform = platform();
    let map = json!({ "parallelism": { "from": "plan", "limit": 2 } });
    let components =
        [compute_with("plan", "later", &json!({ "entry": true })), compute_with("map", "who", &map)];
    let application = application(&platform, &document("planned", &components, &[trigger("plan", "map")]));
    for (plan, instances) in [("1", 1), ("2 parts", 2), ("2\nof them", 2)] {
        let outcome = application.run(plan.as_bytes()).unwrap();
        let expected: Vec<(u32, u32)> = (0..instances).map(|instance| (instance, instances)).collect();
        assert_eq!(told_by_instances(&outcome), expected, "{plan:?}");
        let map = outcome.components.iter().find(|of| of.component == "map").unwrap();
        assert_eq!((map.instances, map.cores, map.attempts), (instances, instances, 1));
    }
    for (plan, said) in [
        ("", "instead of a number of instances from 1 to 2"),
        ("-1", "begins with \"-1\""),
        ("two", "begins with \"two\""),
        ("0", "plan asks for 0 instances"),
        ("3", "plan asks for 3 instances, allowed are 1 to 2"),
    ] {
        assert_fails(application.run(plan.as_bytes()), Code::InvalidArgument, &["component map: ", said]);
    }
    assert_idle(&platform);
}

#[test]
fn number_of_instances_follows_from_the_size_of_memory() {
    let platform = platform();
    let mut graph: Value = serde_json::from_slice(&sums()).unwrap();
    graph["components"][1]["parallelism"] = json!({ "from": "numbers", "bytes_each": 4096, "limit": 2 });
    for fabric in [None, tcp(false)] {
        let options = RunOptions { fabric, ..RunOptions::default() };
        let application = application_with(&platform, graph.to_string().as_bytes(), options);
        for (count, instances) in [(1u64, 1), (512, 1), (513, 2), (300_000, 2)] {
            let outcome = application.run(&count.to_le_bytes()).unwrap();
            assert_eq!(total(&outcome), sum_to(count));
            let share = outcome.components.iter().find(|of| of.component == "share").unwrap();
            assert_eq!(share.instances, instances, "for {count} numbers");
        }
    }
    assert_idle(&platform);
}

#[test]
fn resumed_run_keeps_a_number_of_instances_that_memory_decided() {
    let platform = platform();
    let map = json!({ "parallelism": { "from": "numbers", "bytes_each": 4096, "limit": 2 } });
    let components = [
        compute_with("swell", "swell", &json!({ "entry": true })),
        compute_with("map", "who_later", &map),
        memory("numbers"),
    ];
    let edges =
        [trigger("swell", "map"), access("swell", "numbers", "write"), access("map", "numbers", "read")];
    let application = application(&platform, &document("chain", &components, &edges));
    let now_ms = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let now_ms = || u64::try_from(now_ms()).unwrap();
    let until_ms = now_ms() + 3_000;
    let mut client = begin(&platform, &until_ms.to_le_bytes());
    let run = || platform.json(&["graph", "history", "chain"])["runs"][0]["run"].as_str().map(str::to_owned);
    wait_until("the run has begun", || run().is_some());
    let run = run().unwrap();
    let reader = platform.invoker();
    let decided = || {
        let entries = reader.manager().read_run(&run, 0).unwrap().entries;
        entries.into_iter().find(|entry| entry.decided_instances > 0)
    };
    wait_until("the number is recorded", || decided().is_some());
    let decided = decided().unwrap();
    client.kill().unwrap();
    client.wait().unwrap();
    assert_idle(&platform);
    assert_eq!(decided.from, "map");
    // From then on, what writes the memory makes it longer.
    wait_until("the memory would be longer", || now_ms() >= until_ms);
    let outcome = application.resume(&run, |_| {}).unwrap();
    let count = decided.decided_instances;
    let expected: Vec<(u32, u32)> = (0..count).map(|instance| (instance, count)).collect();
    assert_eq!(told_by_instances(&outcome), expected);
    let longer = application.run(&until_ms.to_le_bytes()).unwrap();
    assert_eq!(told_by_instances(&longer).len(), 2, "a new run has a number of its own");
}

/// Bytes of the caller for the memory component "numbers": 1, 2, ... up to this.
fn numbers_to(count: u64) -> Vec<(String, Vec<u8>)> {
    vec![("numbers".to_owned(), (1..=count).flat_map(u64::to_le_bytes).collect())]
}

#[test]
fn number_of_instances_follows_from_bytes_of_the_caller() {
    let platform = platform();
    let map = json!({ "parallelism": { "from": "numbers", "bytes_each": 4096, "limit": 2 } });
    let components = [
        compute_with("before", "later", &json!({ "entry": true })),
        compute_with("map", "who", &map),
        memory("numbers"),
    ];
    let edges =
        [trigger("before", "map"), access("before", "numbers", "write"), access("map", "numbers", "read")];
    let application = application(&platform, &document("filled", &components, &edges));
    // No function accesses them before.
    for (count, instances) in [(512, 1), (513, 2)] {
        let outcome = application.run_filled(b"\0", numbers_to(count), |_| {}, || true).unwrap();
        assert_eq!(told_by_instances(&outcome).len(), instances, "for {count} numbers");
    }
    assert_idle(&platform);
}

/// A graph of which a component accesses "numbers", and then another one only if this says so.
fn filled(last_reads: bool) -> Vec<u8> {
    let components = [
        compute_with("first", "later", &json!({ "entry": true })),
        compute("last", "who_later"),
        memory("numbers"),
    ];
    let mut edges = vec![trigger("first", "last"), access("first", "numbers", "write")];
    edges.extend(last_reads.then(|| access("last", "numbers", "read")));
    document("filled", &components, &edges)
}

/// Environment variable with the managers of the helper that follows.
const FILLER: &str = "SUBLET_TEST_FILLER";

/// Not a test of its own: run by the next one, in a process that is killed.
#[test]
fn helper_runs_with_its_own_bytes_until_killed() {
    let Ok(managers) = std::env::var(FILLER) else { return };
    let options = RunOptions { patience: PATIENCE, ..RunOptions::default() };
    let application = Application::open(Access::parse(&managers).unwrap(), "filled", options).unwrap();
    application.run_filled(b"\0", numbers_to(1000), |_| {}, || true).unwrap();
}

#[test]
fn run_that_needs_its_killed_clients_bytes_is_not_resumed() {
    let platform = platform();
    let reader = platform.invoker();
    for last_reads in [false, true] {
        let application = application(&platform, &filled(last_reads));
        let mut client = Command::new(std::env::current_exe().unwrap())
            .args(["runs::helper_runs_with_its_own_bytes_until_killed", "--exact"])
            .env(FILLER, platform.address())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut run = String::new();
        wait_until("the first component is done", || {
            let going_on = reader.manager().runs_going_on("filled", 0).unwrap();
            run = going_on.first().map(|info| info.run.clone()).unwrap_or_default();
            !run.is_empty() && !reader.manager().read_run(&run, 0).unwrap().entries.is_empty()
        });
        client.kill().unwrap();
        client.wait().unwrap();
        let resumed = application.resume(&run, |_| {});
        if last_reads {
            assert_fails(resumed, Code::WorkerDied, &["memory component numbers", "cannot be resumed"]);
            assert_fails(application.resume(&run, |_| {}), Code::UnknownRun, &[]);
        } else {
            assert_eq!(resumed.unwrap().outputs[0].0, "last");
        }
        assert_idle(&platform);
    }
}

/// A worker that no component before has, so that it is leased ahead.
fn own_worker() -> Value {
    json!({ "resources": { "memory_bytes": 64 * MIB } })
}

/// A second passes between a component that writes numbers and one that adds them up with a worker of its own.
fn ahead() -> Vec<u8> {
    let components = [
        compute_with("fill", "fill", &json!({ "entry": true })),
        compute("wait", "who_later"),
        compute_with("share", "share", &own_worker()),
        memory("numbers"),
        memory("sums"),
    ];
    let edges = [
        trigger("fill", "wait"),
        trigger("wait", "share"),
        access("fill", "numbers", "write"),
        access("share", "numbers", "read"),
        access("share", "sums", "write"),
    ];
    document("ahead", &components, &edges)
}

fn unix_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

#[test]
fn workers_are_leased_ahead_after_the_time_to_prewarm() {
    const TAU: Duration = Duration::from_millis(300);
    let platform = platform();
    let options = RunOptions { patience: PATIENCE, prewarm: Some(TAU), ..RunOptions::default() };
    let application = application_with(&platform, &ahead(), options);
    let reader = platform.invoker();
    // A busy machine may grant the lease when the component before has ended.
    wait_until("a worker is leased before its component begins", || {
        let (mut first_ms, mut granted_ms, mut share_ms) = (None, None, None);
        let outcome = application.run_with(&1000u64.to_le_bytes(), |news| match news {
            News::Began { component, .. } if component == "fill" => first_ms = Some(unix_ms()),
            News::Began { component, .. } if component == "share" => share_ms = Some(unix_ms()),
            News::Ended { component, .. } if component == "wait" => {
                let leases = reader.manager().leases().unwrap();
                // That of the run before may be ending.
                let is_own = |lease: &&Lease| {
                    lease.memory_bytes == 64 * MIB && first_ms.is_some_and(|ms| lease.granted_unix_ms >= ms)
                };
                granted_ms = leases.iter().find(is_own).map(|lease| lease.granted_unix_ms);
            }
            _ => {}
        });
        outcome.unwrap();
        let (first_ms, share_ms) = (first_ms.unwrap(), share_ms.unwrap());
        let Some(granted_ms) = granted_ms else { return false };
        // The time counts from the call of a component, at the earliest that of the first.
        assert!(granted_ms >= first_ms + 290, "granted at {granted_ms}, and the run began at {first_ms}");
        granted_ms <= share_ms
    });
    assert_idle(&platform);
}

#[test]
fn workers_leased_ahead_join_memory_before_their_component() {
    let platform = platform();
    let graph = ahead();
    for fabric in [None, tcp(false)] {
        // Eight thousand bytes are two segments. There are no sums yet.
        for (prewarm, segments) in [(Some(Duration::ZERO), 2), (None, 0)] {
            let options =
                RunOptions { patience: PATIENCE, fabric: fabric.clone(), prewarm, ..RunOptions::default() };
            let application = application_with(&platform, &graph, options);
            // A busy machine may not have started the worker when the component before has ended.
            wait_until("a run's workers have joined its memory ahead", || {
                let outcome = application.run(&1000u64.to_le_bytes()).unwrap();
                assert_eq!(
                    outcome.outputs,
                    [("share".to_owned(), vec![sum_to(1000).to_le_bytes().to_vec()])]
                );
                let share = outcome.components.iter().find(|of| of.component == "share").unwrap();
                share.joined_ahead == segments
            });
        }
    }
    assert_idle(&platform);
}

#[test]
fn workers_notice_that_joined_memory_was_made_shorter() {
    let platform = platform();
    let components = [
        compute_with("fill", "fill", &json!({ "entry": true })),
        compute("cut", "cut"),
        compute_with("again", "fill", &own_worker()),
        compute("share", "share"),
        memory("numbers"),
        memory("sums"),
    ];
    let edges = [
        trigger("fill", "cut"),
        trigger("cut", "again"),
        trigger("again", "share"),
        access("fill", "numbers", "write"),
        access("cut", "numbers", "write"),
        access("again", "numbers", "write"),
        access("share", "numbers", "read"),
        access("share", "sums", "write"),
    ];
    let graph = document("cut", &components, &edges);
    for fabric in [None, tcp(false)] {
        let options = RunOptions { retries: 0, patience: PATIENCE, fabric, ..RunOptions::default() };
        let outcome = application_with(&platform, &graph, options).run(&1000u64.to_le_bytes()).unwrap();
        assert_eq!(outcome.outputs, [("share".to_owned(), vec![sum_to(1000).to_le_bytes().to_vec()])]);
    }
    assert_idle(&platform);
}

/// One asks another as often as the input says.
fn talk() -> Vec<u8> {
    let components = [
        compute_with("start", "later", &json!({ "entry": true })),
        compute("ask", "ask"),
        compute("tell", "tell"),
    ];
    let message = json!({ "type": "message", "from": "ask", "to": "tell" });
    document("talk", &components, &[trigger("start", "ask"), trigger("start", "tell"), message])
}

fn squares_to(count: u64) -> u64 {
    (1..=count).map(|number| number * number).sum()
}

#[track_caller]
fn assert_talked(outcome: &Outcome, count: u64) {
    let said: Vec<u64> = outcome
        .outputs
        .iter()
        .map(|(_, outputs)| u64::from_le_bytes(outputs[0].as_slice().try_into().unwrap()))
        .collect();
    assert_eq!(said, [squares_to(count), count]);
}

#[test]
fn components_send_each_other_messages() {
    let platform = platform();
    for fabric in [None, tcp(false)] {
        let options = RunOptions { fabric, ..RunOptions::default() };
        let application = application_with(&platform, &talk(), options);
        for count in [0u64, 1, 33, 5_000] {
            assert_talked(&application.run(&count.to_le_bytes()).unwrap(), count);
        }
    }
    assert_idle(&platform);
}

#[test]
fn what_cannot_be_sent_or_received_is_said_so() {
    let platform = platform();
    let components = [
        compute_with("start", "later", &json!({ "entry": true })),
        compute("pester", "pester"),
        compute("tell", "greet"),
    ];
    let message = json!({ "type": "message", "from": "tell", "to": "pester" });
    let edges = [trigger("start", "pester"), trigger("start", "tell"), message];
    let application = application(&platform, &document("pester", &components, &edges));
    for (what, code, words) in [
        ("n", Code::InvalidArgument, "no message edge between this component and \"absent\""),
        ("i", Code::InvalidArgument, "no instance 7 of component tell, which has 1"),
        ("l", Code::InvalidArgument, "a message of 65537 bytes"),
        ("w", Code::DeadlineExceeded, "component tell sends nothing"),
        ("s", Code::OutputTooLarge, "a message of 5 bytes from component tell does not fit into 3"),
        ("f", Code::DeadlineExceeded, "the queue of instance 0 of component tell stays full"),
    ] {
        let outcome = application.run(what.as_bytes()).unwrap();
        let (number, said) = told(&outcome, "pester");
        assert_eq!(number, code.number(), "{what}");
        assert!(said.contains(words), "{what}: {said}");
    }
}

/// Fabric by which programs of other machines reach nodes.
fn tcp(encrypted: bool) -> Option<FabricChoice> {
    Some(FabricChoice::Tcp { encrypted })
}

#[test]
fn workers_share_memory_of_their_node_wherever_their_client_is() {
    let platform = platform();
    for fabric in [tcp(false), tcp(true)] {
        for share in ["share", "gather"] {
            let options = RunOptions { fabric: fabric.clone(), ..RunOptions::default() };
            let application = application_with(&platform, &sums_by(share), options);
            for count in [1u64, 511, 300_000] {
                let outcome = application.run(&count.to_le_bytes()).unwrap();
                assert_eq!(total(&outcome), sum_to(count), "{share} by {fabric:?}");
                let of = |name: &str| outcome.components.iter().find(|of| of.component == name).unwrap();
                assert_eq!((of("share").attempts, of("numbers").used_bytes), (1, count * 8));
            }
        }
    }
    assert_idle(&platform);
}

#[test]
fn a_function_alone_is_a_graph_of_one_component() {
    let platform = platform();
    let document = document("alone", &[compute_with("only", "later", &json!({ "entry": true }))], &[]);
    let outcome = application(&platform, &document).run(b"\0abc").unwrap();
    assert_eq!(outcome.outputs, [("only".to_owned(), vec![b"\0abc".to_vec()])]);
}

#[test]
fn components_that_are_not_triggered_lease_nothing() {
    let platform = platform();
    let components = [
        compute_with("start", "later", &json!({ "entry": true })),
        compute("cat", "later"),
        compute("dog", "later"),
        compute("end", "later"),
        memory("bones"),
    ];
    let when = |to: &str, field: &str, value: Value| {
        let mut edge = trigger("start", to);
        edge[field] = value;
        edge
    };
    let edges = [
        when("cat", "when", json!("\0cat")),
        when("dog", "otherwise", json!(true)),
        trigger("cat", "end"),
        trigger("dog", "end"),
        access("dog", "bones", "write"),
    ];
    let application = application(&platform, &document("pets", &components, &edges));
    for (input, executed, skipped) in [("\0cat", "cat", "dog"), ("\0cow", "dog", "cat")] {
        let outcome = application.run(input.as_bytes()).unwrap();
        assert_eq!(outcome.outputs, [("end".to_owned(), vec![input.as_bytes().to_vec()])]);
        let run = platform.json(&["graph", "history", &outcome.run]);
        let used = |name: &str| {
            let all = run["components"].as_array().unwrap();
            all.iter().find(|used| used["component"] == name).unwrap().clone()
        };
        assert_eq!((&used(executed)["state"], &used(executed)["attempts"]), (&json!("done"), &json!(1)));
        assert_eq!((&used(skipped)["state"], &used(skipped)["attempts"]), (&json!("skipped"), &json!(0)));
        assert_eq!(used(skipped)["allocated_bytes"], 0);
        assert_eq!(used("bones")["attempts"], i32::from(executed == "dog"), "only the dog wants them");
        assert_idle(&platform);
    }
}

#[test]
fn workers_that_are_kept_have_nothing_of_the_run_before() {
    let platform = platform();
    let options = RunOptions { keep_alive: Duration::from_secs(60), ..RunOptions::default() };
    let application = application_with(&platform, &sums(), options);
    // The first run has more numbers: a run that got its memory would find too many.
    for count in [10_000, 10, 5_000] {
        assert_eq!(total(&application.run(&u64::to_le_bytes(count)).unwrap()), sum_to(count));
        let memory = platform.json(&["ps"])["leases"].as_array().unwrap().clone();
        let segments = memory.iter().filter(|lease| lease["cores"] == 0).count();
        assert_eq!(segments, 0, "memory ends with its run");
    }
    drop(application);
    assert_idle(&platform);
}

/// Error of the function `abuse` when it does this, as its code and text, if there is one.
fn abuse(
    (platform, fabric): (&PlatformProcess, &Option<FabricChoice>),
    rights: &str,
    what: u8,
    at: [u64; 2],
) -> Result<(u32, String), Error> {
    let only = document(
        "abuse",
        &[compute_with("abuse", "abuse", &json!({ "entry": true })), memory("numbers")],
        &[access("abuse", "numbers", rights)],
    );
    let options = RunOptions { retries: 0, fabric: fabric.clone(), ..RunOptions::default() };
    let mut input = vec![what];
    input.extend(at[0].to_le_bytes());
    input.extend(at[1].to_le_bytes());
    let outcome = application_with(platform, &only, options).run(&input)?;
    Ok(told(&outcome, "abuse"))
}

#[test]
fn a_function_does_with_memory_what_its_edge_allows() {
    let platform = platform();
    let cases: [(&str, u8, [u64; 2], Code, &str); 17] = [
        ("read", b'w', [0, 0], Code::PermissionDenied, "numbers is read by this component"),
        ("read", b'g', [8, 0], Code::PermissionDenied, "numbers is read by this component"),
        ("read", b'r', [0, 0], Code::InvalidArgument, "8 bytes at 0 of memory component numbers of 0 bytes"),
        ("write", b'r', [u64::MAX, 0], Code::InvalidArgument, "of memory component numbers"),
        ("write", b'm', [0, 1], Code::InvalidArgument, "1 bytes at 0 of memory component numbers of 0 bytes"),
        ("write", b'm', [1, u64::MAX], Code::InvalidArgument, "of memory component numbers"),
        ("write", b'w', [64 * MIB - 7, 0], Code::MemoryExceeded, "which grows to 67108864 bytes"),
        ("write", b'w', [u64::MAX - 3, 0], Code::MemoryExceeded, "which grows to 67108864 bytes"),
        ("write", b'g', [u64::MAX, 0], Code::MemoryExceeded, "which grows to 67108864 bytes"),
        ("read", b'a', [0, 0], Code::PermissionDenied, "numbers is read by this component"),
        ("read", b's', [0, 0], Code::PermissionDenied, "numbers is read by this component"),
        ("write", b'a', [64 * MIB - 7, 0], Code::MemoryExceeded, "which grows to 67108864 bytes"),
        ("write", b's', [64 * MIB + 1, 0], Code::MemoryExceeded, "which grows to 67108864 bytes"),
        ("write", b'e', [0, 0], Code::LeaseEnded, "memory component numbers was released by this function"),
        ("write", b'n', [0, 0], Code::InvalidArgument, "null pointer"),
        ("write", b'u', [0, 0], Code::InvalidArgument, "there is no channel 7"),
        ("write", b'x', [0, 0], Code::InvalidArgument, "no access edge from this component to \"nothing\""),
    ];
    for fabric in [None, tcp(false)] {
        let on = (&platform, &fabric);
        for (rights, what, at, code, words) in cases {
            let (number, said) = abuse(on, rights, what, at).unwrap();
            assert_eq!(number, code.number(), "{}: {said}", char::from(what));
            assert!(said.contains(words), "{}: {said}", char::from(what));
        }
        assert_eq!(abuse(on, "write", b'g', [8, 0]).unwrap().0, 0);
        assert_eq!(abuse(on, "write", b's', [64 * MIB, 0]).unwrap().0, 0);
        assert_eq!(abuse(on, "write", b'w', [64 * MIB - 8, 0]).unwrap().0, 0);
    }
    assert_idle(&platform);
}

/// Code and text that the first instance of a component reports of a call.
fn told(outcome: &Outcome, component: &str) -> (u32, String) {
    let (_, outputs) = outcome.outputs.iter().find(|(name, _)| name == component).unwrap();
    let (code, words) = outputs[0].split_first_chunk::<4>().unwrap();
    (u32::from_le_bytes(*code), String::from_utf8_lossy(words).into_owned())
}

#[test]
fn memory_is_made_shorter_and_longer_with_zeros() {
    let platform = platform();
    for fabric in [None, tcp(false)] {
        let components = [compute_with("halve", "halve", &json!({ "entry": true })), memory("numbers")];
        let document = document("halve", &components, &[access("halve", "numbers", "write")]);
        let options = RunOptions { retries: 0, fabric, ..RunOptions::default() };
        let application = application_with(&platform, &document, options);
        for count in [2, 1_000, 500_000] {
            let outcome = application.run(&u64::to_le_bytes(count)).unwrap();
            let sum = u64::from_le_bytes(outcome.outputs[0].1[0].as_slice().try_into().unwrap());
            // The lower half of the number in the middle is left, which is all of it.
            assert_eq!(sum, sum_to(count / 2 + 1));
        }
    }
    assert_idle(&platform);
}

#[test]
fn memory_that_a_function_frees_is_available_to_others() {
    let platform = platform();
    let resources = json!({ "entry": true, "resources": { "memory_bytes": 64 * MIB } });
    let components = [compute_with("cede", "cede", &resources), memory("numbers"), memory("spare")];
    let edges = [access("cede", "numbers", "write"), access("cede", "spare", "write")];
    let mut graph: Value = serde_json::from_slice(&document("cede", &components, &edges)).unwrap();
    graph["limits"] = json!({ "memory_bytes": 69 * MIB });
    for (fabric, what, code) in [
        (None, "k", Code::MemoryExceeded.number()),
        (None, "s", 0),
        (None, "r", 0),
        // A process that is reached over a network keeps what it has.
        (tcp(false), "s", Code::MemoryExceeded.number()),
        (tcp(false), "r", 0),
    ] {
        let options = RunOptions { retries: 0, fabric: fabric.clone(), ..RunOptions::default() };
        let application = application_with(&platform, graph.to_string().as_bytes(), options);
        let (number, said) = told(&application.run(what.as_bytes()).unwrap(), "cede");
        assert_eq!(number, code, "{what} by {fabric:?}: {said}");
    }
    assert_idle(&platform);
}

#[test]
fn memory_that_others_access_is_not_made_shorter() {
    let platform = platform();
    let shared = (Code::InvalidArgument.number(), "numbers is accessed by others");
    for fabric in [None, tcp(false)] {
        let options = RunOptions { retries: 0, fabric, ..RunOptions::default() };
        let components = [
            compute_with("start", "later", &json!({ "entry": true })),
            compute("trim", "trim"),
            compute("hold", "hold"),
            memory("numbers"),
        ];
        let edges = [
            trigger("start", "trim"),
            trigger("start", "hold"),
            json!({ "type": "message", "from": "trim", "to": "hold" }),
            access("trim", "numbers", "write"),
            access("hold", "numbers", "write"),
        ];
        let document = document("trim", &components, &edges);
        let outcome = application_with(&platform, &document, options).run(b"").unwrap();
        let (number, said) = told(&outcome, "trim");
        assert!(number == shared.0 && said.contains(shared.1), "{number}: {said}");
    }
    assert_idle(&platform);
}

#[test]
fn instances_of_one_process_release_memory_each_for_itself() {
    let platform = platform();
    for fabric in [None, tcp(false)] {
        let options = RunOptions { retries: 0, fabric, ..RunOptions::default() };
        let both = compute_with("both", "both", &json!({ "entry": true, "parallelism": 2 }));
        let edges = [access("both", "numbers", "write"), access("both", "flags", "write")];
        let document = document("both", &[both, memory("numbers"), memory("flags")], &edges);
        let outcome = application_with(&platform, &document, options).run(b"").unwrap();
        let (number, said) = told(&outcome, "both");
        assert_eq!(number, Code::InvalidArgument.number(), "{said}");
        assert_eq!(outcome.outputs[0].1[1], u64::to_le_bytes(7));
    }
    assert_idle(&platform);
}

/// Runs a function on "numbers" with these rights, after others have written there.
fn after_fill(
    platform: &PlatformProcess,
    function: &str,
    rights: &str,
    fabric: Option<FabricChoice>,
) -> Result<Outcome, Error> {
    let components = [
        compute_with("fill", "fill", &json!({ "entry": true })),
        compute(function, function),
        memory("numbers"),
    ];
    let edges =
        [trigger("fill", function), access("fill", "numbers", "write"), access(function, "numbers", rights)];
    let options = RunOptions { retries: 0, fabric, ..RunOptions::default() };
    application_with(platform, &document(function, &components, &edges), options).run(&8u64.to_le_bytes())
}

#[test]
fn who_may_read_cannot_write_in_place_either() {
    let platform = platform();
    for fabric in [None, tcp(false)] {
        let scribble = |rights| after_fill(&platform, "scribble", rights, fabric.clone());
        assert_eq!(scribble("write").unwrap().outputs[0].1, [b"done".to_vec()]);
        assert_fails(scribble("read"), Code::WorkerDied, &["component scribble", "SIGSEGV"]);
    }
    assert_idle(&platform);
}

#[test]
fn who_may_read_cannot_make_it_more() {
    let platform = platform();
    for (fabric, most) in [(None, 2), (tcp(false), 1)] {
        let got = |rights| {
            let outcome = after_fill(&platform, "seize", rights, fabric.clone()).unwrap();
            u64::from_le_bytes(outcome.outputs[0].1[0].as_slice().try_into().unwrap())
        };
        // Who may write has its memory to write, and on its client's machine the page of state.
        assert!(got("write") >= most);
        assert_eq!(got("read"), 0);
    }
}

#[test]
fn a_function_that_fails_is_named_and_ends_its_run() {
    let platform = platform();
    let application = application(&platform, &sums());
    assert_fails(
        application.run(b"x"),
        Code::FunctionFailed,
        &["component fill", "libcomponents/fill", "how many?"],
    );
    assert_idle(&platform);
    let runs = platform.json(&["graph", "history", "sums"])["runs"].take();
    assert_eq!(runs[0]["error"]["code"], "function_failed");
    let unknown = document("unknown", &[compute_with("a", "nothing", &json!({ "entry": true }))], &[]);
    assert_fails(
        self::application(&platform, &unknown).run(b""),
        Code::UnknownFunction,
        &["component a", "nothing"],
    );
    let unknown = String::from_utf8(unknown).unwrap().replace("libcomponents", "nowhere");
    assert_fails(
        self::application(&platform, unknown.as_bytes()).run(b""),
        Code::UnknownPackage,
        &["component a", "nowhere"],
    );
}

#[test]
fn an_output_too_large_to_hand_on_is_reported() {
    let platform = platform();
    let application = application(&platform, &chain(2));
    let most = vec![0; 256 << 10];
    assert_eq!(application.run(&most).unwrap().outputs[0].1[0], most);
    assert_fails(
        application.run(&vec![0; (256 << 10) + 1]),
        Code::OutputTooLarge,
        &["262145 bytes", "memory component"],
    );
}

/// Kills a worker that was there a moment ago, and may have ended by now.
fn kill_worker(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Kills some worker again and again, until the run has ended or has lost something several times. Gives the number of
/// losses, too.
fn run_under_fire(
    platform: &PlatformProcess,
    application: &Application,
    input: &[u8],
    pause: Duration,
) -> (Outcome, usize) {
    let lost = AtomicUsize::new(0);
    let outcome = scope(|scope| {
        let run = scope.spawn(|| {
            application.run_with(input, |news| {
                lost.fetch_add(usize::from(matches!(news, News::Lost { .. })), Relaxed);
            })
        });
        let mut shots = 0;
        while !run.is_finished() && lost.load(Relaxed) < 6 {
            sleep(pause);
            let workers = platform.workers();
            if let Some(&worker) = workers.get(shots % workers.len().max(1)) {
                kill_worker(worker);
            }
            shots += 1;
        }
        run.join().unwrap().unwrap()
    });
    (outcome, lost.into_inner())
}

/// Runs a graph until a run has lost something: on a machine that stands still, one may end before anything is killed.
fn run_with_losses(
    platform: &PlatformProcess,
    application: &Application,
    input: &[u8],
    pause: Duration,
) -> Outcome {
    let mut runs = (0..10).map(|_| run_under_fire(platform, application, input, pause));
    runs.find(|&(_, lost)| lost > 0).expect("a worker of some run is killed").0
}

#[test]
fn a_killed_component_restarts_with_the_same_result() {
    let platform = platform();
    let options = RunOptions { retries: 100, ..RunOptions::default() };
    let slow = application_with(&platform, &chain(3), options.clone());
    let outcome = run_with_losses(&platform, &slow, b"\x96abc", Duration::from_millis(60));
    assert_eq!(outcome.outputs[0].1, [b"\x96abc".to_vec()]);
    let sums = application_with(&platform, &sums(), options);
    for ms in [2, 5, 9, 14] {
        let count = 200_000u64;
        let (outcome, _) = run_under_fire(&platform, &sums, &count.to_le_bytes(), Duration::from_millis(ms));
        assert_eq!(total(&outcome), sum_to(count), "killed each {ms} ms");
    }
    assert_idle(&platform);
}

#[test]
fn who_exchanges_messages_begins_again_together() {
    let platform = platform();
    let options = RunOptions { retries: 100, ..RunOptions::default() };
    let application = application_with(&platform, &talk(), options);
    let pause = Duration::from_millis(30);
    let outcome = run_with_losses(&platform, &application, &100_000u64.to_le_bytes(), pause);
    assert_talked(&outcome, 100_000);
    let attempts = |name: &str| outcome.components.iter().find(|of| of.component == name).unwrap().attempts;
    assert_eq!(attempts("ask"), attempts("tell"));
    assert_idle(&platform);
}

#[test]
fn a_component_that_always_dies_fails_its_run() {
    let platform = platform();
    let document = document("crash", &[compute_with("a", "crash", &json!({ "entry": true }))], &[]);
    let options = RunOptions { retries: 2, ..RunOptions::default() };
    let application = application_with(&platform, &document, options);
    assert_fails(application.run(b""), Code::WorkerDied, &["component a was lost 3 times", "SIGSEGV"]);
    assert_idle(&platform);
}

#[test]
fn who_has_external_effects_is_not_executed_again() {
    let platform = platform();
    let component = compute_with("only", "stay", &json!({ "entry": true, "external_effects": true }));
    let effects = application(&platform, &document("effects", &[component], &[]));
    let ended = scope(|scope| {
        let run = scope.spawn(|| effects.run(b""));
        // A worker that has not begun yet may be replaced, so there may be another one to kill, which has more time to begin.
        let pauses = std::iter::successors(Some(Duration::from_millis(100)), |pause| Some(*pause * 2));
        for pause in pauses.take_while(|_| !run.is_finished()) {
            sleep(pause);
            platform.workers().into_iter().for_each(kill_worker);
        }
        run.join().unwrap()
    });
    assert_fails(ended, Code::WorkerDied, &["component only has external effects"]);
}

#[test]
fn a_run_survives_the_node_of_its_components_and_memory() {
    a_run_survives_a_node("share", None);
}

#[test]
fn a_remote_clients_run_survives_a_lost_node() {
    a_run_survives_a_node("gather", tcp(false));
}

fn a_run_survives_a_node(share: &str, fabric: Option<FabricChoice>) {
    let cluster = Cluster::start(ClusterPlan::default());
    let mut cluster = cluster;
    cluster.add_agent(LentCores::cores(2));
    cluster.add_agent(LentCores::cores(2));
    cluster.publish(library("components.c"));
    let options = RunOptions { retries: 10, fabric, ..RunOptions::default() };
    let components = [
        compute_with("fill", "fill", &json!({ "entry": true })),
        compute("wait", "linger"),
        compute_with("share", share, &json!({ "parallelism": 2 })),
        compute("total", "total"),
        memory("numbers"),
        memory("sums"),
    ];
    let edges = [
        trigger("fill", "wait"),
        trigger("wait", "share"),
        trigger("share", "total"),
        access("fill", "numbers", "write"),
        access("share", "numbers", "read"),
        access("share", "sums", "write"),
        access("total", "sums", "read"),
    ];
    let document = document("nodes", &components, &edges);
    let application = Application::deploy(cluster.user("somebody"), &document, options).unwrap();
    let (outcome, lost) = scope(|scope| {
        let run = scope.spawn(|| {
            let mut lost = Vec::new();
            let outcome = application.run_with(&100_000u64.to_le_bytes(), |news| {
                if let News::Lost { component, .. } = news {
                    lost.push(component.clone());
                }
            });
            (outcome, lost)
        });
        // Not one that has nothing but workers that wait: nothing is lost with those.
        let with_memory = |cluster: &Cluster| {
            let leases = cluster.json(&["ps"])["leases"].as_array().cloned().unwrap_or_default();
            let segment = leases.into_iter().find(|lease| lease["cores"] == 0)?;
            cluster.agents.iter().position(|agent| segment["node"] == agent.name.as_str())
        };
        let mut hit = None;
        wait_until("a node has memory", || {
            hit = with_memory(&cluster);
            hit.is_some()
        });
        let agent = &mut cluster.agents[hit.unwrap()];
        agent.kill();
        run.join().unwrap()
    });
    assert_eq!(total(&outcome.unwrap()), sum_to(100_000));
    assert!(!lost.is_empty());
}

#[test]
fn a_run_without_capacity_reports_what_it_waits_for() {
    let platform = platform();
    let cores = platform.cores();
    let options = RunOptions { patience: Duration::from_millis(200), ..RunOptions::default() };
    let mut holder = platform.invoker();
    holder.allocate(&Allocation::new(package("calls.c")).cores(cores)).unwrap();
    let application = application_with(&platform, &sums(), options);
    assert_fails(application.run(&1u64.to_le_bytes()), Code::NoCapacity, &["component fill", "cores"]);
    // And who waits long enough has it.
    let (patient, waits) = (self::application(&platform, &sums()), AtomicBool::new(false));
    scope(|scope| {
        let run = scope.spawn(|| {
            let outcome = patient.run_with(&9u64.to_le_bytes(), |news| {
                waits.fetch_or(matches!(news, News::Waits { .. }), Relaxed);
            });
            outcome.unwrap()
        });
        wait_until("it waits for capacity", || waits.load(Relaxed));
        holder.deallocate().unwrap();
        assert_eq!(total(&run.join().unwrap()), sum_to(9));
    });
    assert_idle(&platform);
}

/// `sublet graph run` of a deployed graph, with its input in a file.
fn begin(platform: &PlatformProcess, input: &[u8]) -> Child {
    let file = platform.state().join("input");
    std::fs::write(&file, input).unwrap();
    let mut command = platform.command();
    command.args(["graph", "run", "chain", "--input"]).arg(file);
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_killed_clients_run_resumes_from_its_records() {
    let platform = platform();
    drop(application(&platform, &chain(3)));
    let listed = || {
        let history = platform.json(&["graph", "history", "chain"]);
        history["runs"].as_array().cloned().unwrap_or_default()
    };
    let is_ended = |run: &str| {
        let run = listed().into_iter().find(|listed| listed["run"] == run).unwrap();
        !run["ended_unix_ms"].is_null()
    };
    let (reader, mut known) = (platform.invoker(), Vec::new());
    // On a machine that stands still a run may end before its client is killed.
    let mut runs = (0..10).map(|_| {
        let mut client = begin(&platform, b"\xffxyz");
        wait_until("the run has begun", || listed().len() > known.len());
        let mut names = listed().into_iter().map(|run| run["run"].as_str().unwrap().to_owned());
        let run = names.find(|run| !known.contains(run)).unwrap();
        known.push(run.clone());
        wait_until("a component is done", || !reader.manager().read_run(&run, 0).unwrap().entries.is_empty());
        client.kill().unwrap();
        client.wait().unwrap();
        assert_idle(&platform);
        run
    });
    let run = runs.find(|run| !is_ended(run)).expect("a client is killed before its run ends");
    let resumed = platform.run(&["graph", "resume", &run]);
    let said = String::from_utf8_lossy(&resumed.stderr).into_owned();
    assert!(resumed.status.success(), "{said}");
    assert_eq!(resumed.stdout, b"\xffxyz");
    assert!(!said.contains("step0 started") && said.contains("step2 started"), "{said}");
    assert!(is_ended(&run));
    for run in [run, "0".repeat(32), "a run".to_owned()] {
        platform.assert_refuses(&["graph", "resume", &run, "--output", "/dev/null"], Code::UnknownRun);
    }
    platform.assert_refuses(&["graph", "run", "nothing", "--output", "/dev/null"], Code::UnknownGraph);
}

#[test]
fn the_command_runs_a_document_and_shows_what_was_used() {
    let platform = platform();
    let file = platform.state().join("sums.json");
    std::fs::write(&file, sums()).unwrap();
    let ran = platform.pipe(&["graph", "run", file.to_str().unwrap()], &100u64.to_le_bytes());
    assert_eq!(ran.stdout, sum_to(100).to_le_bytes());
    let told = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(told.contains("share started\n") && told.contains("total is done"), "{told}");
    let output = platform.state().join("output");
    let arguments = ["graph", "run", "sums", "--json", "--output", output.to_str().unwrap()];
    let ran = platform.pipe(&arguments, &7u64.to_le_bytes());
    let ran: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(ran["components"][3]["used_bytes"], 56);
    assert_eq!(std::fs::read(output).unwrap(), sum_to(7).to_le_bytes());
    let history = platform.run(&["graph", "history"]);
    let history = String::from_utf8(history.stdout).unwrap();
    assert_eq!(history.lines().filter(|line| line.contains("well")).count(), 2, "{history}");
    assert_eq!(platform.json(&["graph", "list"])["graphs"][0]["name"], "sums");
    platform.assert_refuses(&["graph", "run", "sums", "--json"], Code::InvalidArgument);
}

#[test]
fn a_tenants_graphs_and_runs_are_its_own() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent(LentCores::cores(2));
    cluster.publish(library("components.c"));
    let open = |tenant: &str| Application::open(cluster.user(tenant), "chain", RunOptions::default());
    let mine = Application::deploy(cluster.user("one"), &chain(1), RunOptions::default()).unwrap();
    let run = mine.run(b"\0").unwrap().run;
    assert!(open("one").is_ok());
    assert_fails(open("two").map(drop), Code::UnknownGraph, &["chain"]);
    let other = sublet_tests::cluster::connect(&cluster.user("two"));
    assert_fails(other.manager().read_run(&run, 0), Code::UnknownRun, &[&run]);
    assert!(other.manager().runs("", 0).unwrap().is_empty());
}

#[test]
fn what_cannot_be_recorded_has_no_effect() {
    let mut cluster = Cluster::start(ClusterPlan { disk_bytes: Some(16 * MIB), ..ClusterPlan::default() });
    cluster.add_agent(LentCores::cores(2));
    cluster.publish(library("components.c"));
    let Some(disk) = &cluster.disk else { return };
    for has_effects in [true, false] {
        let mut graph: Value = serde_json::from_slice(&chain(2)).unwrap();
        graph["components"][1]["external_effects"] = json!(has_effects);
        let document = graph.to_string();
        let application =
            Application::deploy(cluster.user("one"), document.as_bytes(), RunOptions::default()).unwrap();
        let mut input = vec![0; 200 << 10];
        application.run(&input).unwrap();
        input[0] = 0xff;
        let mut began = Vec::new();
        let outcome = application.run_with(&input, |news| {
            if let News::Began { component, .. } = news {
                began.push(component.clone());
                disk.fill();
            }
        });
        assert_fails(outcome, Code::StoreFull, &[]);
        // A component whose effects stay within the run may begin meanwhile.
        assert!(!has_effects || began == ["step0"], "{began:?}");
        disk.empty();
        cluster.wait_until_idle();
        wait_until("a store with free space takes runs again", || application.run(b"\0x").is_ok());
    }
}

#[test]
fn components_begin_while_their_inputs_are_being_stored() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    let agent = cluster.add_agent(LentCores::cores(2));
    cluster.publish(library("components.c"));
    let application = Application::deploy(cluster.user("one"), &chain(2), RunOptions::default()).unwrap();
    // On a busy machine the first component may end before the manager stands still.
    wait_until("a manager stands still while the first component runs", || {
        wait_until("no worker is left", || cluster.agents[agent].workers().is_empty());
        let (tell, events) = std::sync::mpsc::channel();
        scope(|scope| {
            let hear = move |news: &News| {
                let event = match news {
                    News::Began { component, .. } => format!("{component} began"),
                    News::Ended { component, .. } => format!("{component} ended"),
                    _ => return,
                };
                let _ = tell.send(event);
            };
            let run = scope.spawn(|| application.run_with(b"\xffx", hear));
            wait_until("the first component has a worker", || !cluster.agents[agent].workers().is_empty());
            cluster.managers[0].pause();
            let mut said: Vec<String> = events.try_iter().collect();
            let is_in_time = !said.iter().any(|event| event == "step0 ended");
            let more = (said.len()..4).map_while(|_| events.recv_timeout(PATIENCE).ok());
            said.extend(more);
            let has_returned = run.is_finished();
            cluster.managers[0].resume();
            assert_eq!(said, ["step0 began", "step0 ended", "step1 began", "step1 ended"]);
            assert!(!is_in_time || !has_returned, "outputs are returned before they are stored");
            assert_eq!(run.join().unwrap().unwrap().outputs[0].1, [b"\xffx".to_vec()]);
            is_in_time
        })
    });
    cluster.wait_until_idle();
}
