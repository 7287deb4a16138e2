//! Tests the recorded usage of runs of graphs, and its consequences: sizes that earlier runs determine, limits,
//! and what is shown.

#![allow(clippy::unwrap_used)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

use serde_json::{Value, json};
use sublet::{Access, Application, Code, News, Outcome, RunOptions};
use sublet_proto::v1::{ComponentUse, Traffic};
use sublet_tests::assert_fails;
use sublet_tests::functions::library;
use sublet_tests::platform::PlatformProcess;
use sublet_tests::process::wait_until;

const MIB: u64 = 1 << 20;

fn compute(name: &str, function: &str, memory_bytes: u64) -> Value {
    let resources = json!({ "memory_bytes": memory_bytes });
    json!({ "name": name, "type": "compute", "package": "libcomponents", "function": function, "resources": resources })
}

fn entry(name: &str, function: &str, memory_bytes: u64) -> Value {
    let mut component = compute(name, function, memory_bytes);
    component["entry"] = json!(true);
    component
}

fn trigger(from: &str, to: &str) -> Value {
    json!({ "type": "trigger", "from": from, "to": to })
}

fn writes(from: &str, to: &str) -> Value {
    json!({ "type": "access", "from": from, "to": to, "rights": "write" })
}

fn document(components: &[Value], edges: &[Value], limits: &Value) -> Vec<u8> {
    json!({ "version": 1, "name": "usage", "components": components, "edges": edges, "limits": limits })
        .to_string()
        .into_bytes()
}

fn platform() -> PlatformProcess {
    let platform = PlatformProcess::start();
    let deployed = platform.run(&["deploy", &library("components.c").to_string_lossy()]);
    assert!(deployed.status.success(), "{}", String::from_utf8_lossy(&deployed.stderr));
    platform
}

fn application(platform: &PlatformProcess, document: &[u8]) -> Application {
    let access = Access::parse(&platform.address()).unwrap();
    Application::deploy(access, document, RunOptions::default()).unwrap()
}

fn of<'outcome>(outcome: &'outcome Outcome, name: &str) -> &'outcome ComponentUse {
    outcome.components.iter().find(|used| used.component == name).unwrap()
}

/// Data that a component moved to and from a memory component.
fn moved(outcome: &Outcome, component: &str, memory: &str) -> Traffic {
    let used = of(outcome, component);
    let channel = used.channels.iter().find(|channel| channel.memory == memory);
    channel.unwrap_or_else(|| panic!("{used:?}")).traffic.unwrap()
}

/// Runs the application, and lists the components that waited, each with the reason.
fn waited(
    application: &Application,
    input: &[u8],
) -> (Result<Outcome, sublet::Error>, Vec<(String, String)>) {
    let mut waited = Vec::new();
    let outcome = application.run_with(input, |news| {
        if let News::Waits { component, error } = news {
            waited.push((component.clone(), error.message.clone()));
        }
    });
    (outcome, waited)
}

#[test]
fn workers_own_memory_is_recorded_with_their_run() {
    let platform = platform();
    let components = [entry("hoard", "hoard", 256 * MIB), compute("after", "linger", 256 * MIB)];
    let graph = document(&components, &[trigger("hoard", "after")], &json!({}));
    let outcome = application(&platform, &graph).run(b"\x40").unwrap();
    let (hoard, after) = (of(&outcome, "hoard"), of(&outcome, "after"));
    assert!((56 * MIB..=72 * MIB).contains(&hoard.used_bytes), "{hoard:?}");
    assert!(hoard.used_byte_us > 0 && hoard.used_byte_us <= hoard.allocated_byte_us, "{hoard:?}");
    assert!(hoard.used_byte_us >= 64 * MIB * 200_000, "it had that for 600 ms: {hoard:?}");
    // The same process executes it, and has given that back.
    assert!(after.used_bytes < 16 * MIB, "{after:?}");
    assert_eq!((hoard.allocated_bytes, hoard.nodes.len()), (256 * MIB, 1));
    assert!((1..60_000_000_000).contains(&hoard.cpu_ns), "it wrote 64 MiB: {hoard:?}");

    let run = platform.json(&["graph", "history", &outcome.run]);
    let points = run["points"].as_array().unwrap();
    assert!((3..=256).contains(&points.len()), "{run}");
    let most = |of: &str| points.iter().map(|point| point[of].as_u64().unwrap()).max().unwrap();
    assert!(most("used_bytes") >= 56 * MIB && most("allocated_bytes") == 256 * MIB, "{run}");
    assert!(points.iter().all(|point| point["used_bytes"].as_u64() <= point["allocated_bytes"].as_u64()));
    assert!(points.is_sorted_by_key(|point| point["at_us"].as_u64().unwrap()));

    let text = platform.run(&["graph", "history", &outcome.run]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains('█') && text.contains('░') && text.contains("256 MiB"), "{text}");
    let svg = platform.run(&["graph", "history", &outcome.run, "--svg", "-"]);
    let svg = String::from_utf8(svg.stdout).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("class=\"used\""), "{svg}");
    assert!(!platform.run(&["graph", "history", "usage", "--svg", "-"]).status.success(), "that is no run");

    let leases = platform.json(&["ps", "--all"])["leases"].clone();
    let peak = leases[0]["usage"]["memory_peak_bytes"].as_u64().unwrap();
    assert!(peak >= 64 * MIB, "the lease's own account says so, too: {leases}");
}

#[test]
fn moved_data_are_recorded_for_each_memory() {
    let platform = platform();
    let mut share = compute("share", "share", 8 * MIB);
    share["parallelism"] = json!(2);
    let components = [
        entry("fill", "fill", 8 * MIB),
        share,
        compute("total", "total", 8 * MIB),
        json!({ "name": "numbers", "type": "memory" }),
        json!({ "name": "sums", "type": "memory" }),
    ];
    let reads = |from: &str, to: &str| json!({ "type": "access", "from": from, "to": to, "rights": "read" });
    let edges = [
        trigger("fill", "share"),
        trigger("share", "total"),
        writes("fill", "numbers"),
        reads("share", "numbers"),
        writes("share", "sums"),
        reads("total", "sums"),
    ];
    let application = application(&platform, &document(&components, &edges, &json!({})));
    let count: u64 = 10_000;
    let outcome = application.run(&count.to_le_bytes()).unwrap();
    let filled = Traffic { writes: 20, written_bytes: 8 * count, ..Traffic::default() };
    assert_eq!(moved(&outcome, "fill", "numbers"), filled);
    let mapped = Traffic { maps: 2, mapped_bytes: 2 * 8 * count, ..Traffic::default() };
    assert_eq!(moved(&outcome, "share", "numbers"), mapped);
    let written = Traffic { writes: 2, written_bytes: 16, ..Traffic::default() };
    assert_eq!(moved(&outcome, "share", "sums"), written);
    let read = Traffic { reads: 2, read_bytes: 16, ..Traffic::default() };
    assert_eq!(moved(&outcome, "total", "sums"), read);

    let run = platform.json(&["graph", "history", &outcome.run]);
    let shown = &run["components"][0]["channels"];
    let expected = json!([{
        "memory": "numbers", "reads": 0, "read_bytes": 0, "writes": 20, "written_bytes": 8 * count,
        "maps": 0, "mapped_bytes": 0,
    }]);
    assert_eq!(*shown, expected, "{run}");
    let text = String::from_utf8(platform.run(&["graph", "history", &outcome.run]).stdout).unwrap();
    let is_row =
        |line: &str| line.starts_with("fill ") && line.contains(" numbers ") && line.contains("78.1 KiB");
    assert!(text.lines().any(is_row), "{text}");
}

#[test]
fn messages_are_counted_at_both_ends_of_their_edge() {
    let platform = platform();
    let components =
        [entry("start", "later", 8 * MIB), compute("ask", "ask", 8 * MIB), compute("tell", "tell", 8 * MIB)];
    let edges = [
        trigger("start", "ask"),
        trigger("start", "tell"),
        json!({ "type": "message", "from": "ask", "to": "tell" }),
    ];
    let application = application(&platform, &document(&components, &edges, &json!({})));
    let outcome = application.run(&300u64.to_le_bytes()).unwrap();
    let (asked, told) = (moved(&outcome, "ask", "ask~tell"), moved(&outcome, "tell", "ask~tell"));
    assert_eq!((asked.writes, asked.reads, asked.read_bytes), (300, 300, 300 * 8));
    assert_eq!((told.writes, told.written_bytes, told.reads), (300, 300 * 8, 300));
    assert!(asked.written_bytes > 0 && asked.written_bytes == told.read_bytes, "{asked:?}, {told:?}");
}

#[test]
fn unspecified_sizes_of_a_graph_follow_measured_usage() {
    let platform = platform();
    let numbers = json!({ "name": "numbers", "type": "memory", "limit_bytes": 1u64 << 30 });
    let fixed =
        json!({ "name": "fixed", "type": "memory", "initial_bytes": 12 * MIB, "increment_bytes": MIB });
    let edges = [writes("fill", "numbers"), writes("fill", "fixed")];
    let graph = document(&[entry("fill", "fill", 8 * MIB), numbers, fixed], &edges, &json!({}));
    let first = application(&platform, &graph);
    let run = |application: &Application, bytes: u64| {
        let outcome = application.run(&(bytes / 8).to_le_bytes()).unwrap();
        let numbers = of(&outcome, "numbers");
        assert_eq!(numbers.used_bytes, bytes, "{numbers:?}");
        numbers.allocated_bytes
    };
    assert_eq!(run(&first, 64 << 10), 16 * MIB, "nothing is known yet");
    let leased = run(&first, 64 << 10);
    assert!(leased <= 128 << 10, "{leased} bytes");
    // A client that has not run it learns the same from the managers.
    assert_eq!(run(&application(&platform, &graph), 64 << 10), leased);
    let mut bytes = 64 << 10;
    while bytes < 4 * MIB {
        bytes += bytes / 4096 / 2 * 4096;
        let leased = run(&first, bytes);
        assert!(leased <= 2 * bytes, "{leased} bytes for {bytes}");
    }
    // One that is wild gets what it needs, and the next are as before.
    let leased = run(&first, 40 * MIB);
    assert!(leased < 100 * MIB, "{leased} bytes");
    let leased = run(&first, bytes);
    assert!(leased <= 3 * bytes, "{leased} bytes for {bytes}");
    let runs = platform.json(&["graph", "history", "usage"])["runs"].take();
    let said =
        runs[0]["components"].as_array().unwrap().iter().find(|used| used["component"] == "fixed").unwrap();
    assert_eq!(said["allocated_bytes"], 0, "no function has written to it");
}

#[test]
fn a_worker_short_of_memory_gets_more_next_run() {
    let platform = platform();
    let mut hoard = entry("hoard", "hoard", 0);
    hoard.as_object_mut().unwrap().remove("resources");
    let application = application(&platform, &document(&[hoard], &[], &json!({})));
    let usual = application.run(b"\x08").unwrap();
    let short = application.run(b"\x78").unwrap();
    assert_eq!(of(&short, "hoard").allocated_bytes, of(&usual, "hoard").allocated_bytes);
    assert!(of(&short, "hoard").used_bytes >= 96 * MIB, "{short:?}");
    let more = application.run(b"\x78").unwrap();
    assert!(of(&more, "hoard").allocated_bytes >= 2 * of(&short, "hoard").allocated_bytes, "{more:?}");
}

/// One that triggers two at the same time.
fn two_beside(limits: &Value) -> Vec<u8> {
    let components = [
        entry("first", "later", 8 * MIB),
        compute("left", "linger", 8 * MIB),
        compute("right", "linger", 8 * MIB),
    ];
    document(&components, &[trigger("first", "left"), trigger("first", "right")], limits)
}

fn overlap(outcome: &Outcome) -> bool {
    let (left, right) = (of(outcome, "left"), of(outcome, "right"));
    left.begin_us < right.end_us && right.begin_us < left.end_us
}

#[test]
fn a_run_stays_within_the_limits_of_its_graph() {
    let platform = PlatformProcess::start_with(|command| {
        command.args(["--cores", "2"]);
    });
    platform.run(&["deploy", &library("components.c").to_string_lossy()]);
    let (outcome, waits) = waited(&application(&platform, &two_beside(&json!({}))), b"\0");
    assert!(overlap(&outcome.unwrap()) && waits.is_empty(), "nothing limits it: {waits:?}");
    for limits in [json!({ "cores": 1 }), json!({ "memory_bytes": 12 * MIB })] {
        let (outcome, waits) = waited(&application(&platform, &two_beside(&limits)), b"\0");
        let outcome = outcome.unwrap();
        assert!(!overlap(&outcome), "{limits}: {outcome:?}");
        let [(component, why)] = waits.as_slice() else { panic!("{limits}: {waits:?}") };
        let other = if component == "left" { "right" } else { "left" };
        assert!(["left", "right"].contains(&component.as_str()), "{component}");
        assert!(why.contains("within the graph's limits") && why.contains(other), "{why}");
        let points = &platform.json(&["graph", "history", &outcome.run])["points"];
        let most = points.as_array().unwrap().iter().map(|at| at["allocated_bytes"].as_u64().unwrap()).max();
        assert!(most <= Some(12 * MIB), "{limits}: {points}");
    }
}

#[test]
fn a_component_beyond_the_limits_fails_its_run_at_once() {
    let platform = platform();
    let wide = |limits: Value| {
        let mut only = entry("only", "later", 8 * MIB);
        only["parallelism"] = json!(2);
        application(&platform, &document(&[only], &[], &limits))
    };
    let said = ["component only", "needs 2 cores", "limits allow a run 1 core"];
    assert_fails(wide(json!({ "cores": 1 })).run(b"\0"), Code::InsufficientResources, &said);
    let said = ["component only", "16777216 bytes", "limits allow a run 8388608 bytes"];
    assert_fails(wide(json!({ "memory_bytes": 8 * MIB })).run(b"\0"), Code::MemoryExceeded, &said);
    wide(json!({ "cores": 2, "memory_bytes": 16 * MIB })).run(b"\0").unwrap();
}

#[test]
fn growing_memory_waits_for_others_of_its_run() {
    let platform = platform();
    let numbers =
        json!({ "name": "numbers", "type": "memory", "initial_bytes": MIB, "increment_bytes": MIB });
    let components = [
        entry("first", "later", 8 * MIB),
        compute("fill", "fill", 8 * MIB),
        compute("beside", "linger", 8 * MIB),
        numbers,
    ];
    let edges = [trigger("first", "fill"), trigger("first", "beside"), writes("fill", "numbers")];
    let graph = |limit: u64| document(&components, &edges, &json!({ "memory_bytes": limit }));
    let input = (6 * MIB / 8).to_le_bytes();
    // 8 and 8 of workers, and 6 of memory: it grows by two, and by the rest when there is one worker alone.
    let (outcome, waits) = waited(&application(&platform, &graph(18 * MIB)), &input);
    let outcome = outcome.unwrap();
    assert_eq!(of(&outcome, "numbers").used_bytes, 6 * MIB);
    assert!(of(&outcome, "fill").end_us >= of(&outcome, "beside").end_us, "{outcome:?}");
    assert!(waits.iter().any(|(component, why)| component == "fill" && why.contains("beside")), "{waits:?}");
    let (outcome, _) =
        waited(&application(&platform, &graph(16 * MIB + MIB / 2)), &(9 * MIB / 8).to_le_bytes());
    let error = outcome.unwrap_err();
    assert!(error.message.contains("memory component numbers needs, to grow"), "{error}");
    wait_until("nothing is leased any more", || {
        platform.json(&["ps"])["nodes"][0]["memory_leased_bytes"] == 0
    });
}

#[test]
fn top_shows_what_goes_on_and_nothing_that_has_ended() {
    let platform = platform();
    let components: Vec<Value> = (0..4)
        .map(|at| {
            let name = format!("step{at}");
            if at == 0 { entry(&name, "hoard", 64 * MIB) } else { compute(&name, "hoard", 64 * MIB) }
        })
        .collect();
    let edges: Vec<Value> =
        (1..4).map(|at| trigger(&format!("step{}", at - 1), &format!("step{at}"))).collect();
    let application = application(&platform, &document(&components, &edges, &json!({})));
    let (seen, is_shown) = (Mutex::new(Value::Null), AtomicBool::new(false));
    scope(|scope| {
        // A busy machine may take longer than a run between two looks.
        let runs = scope.spawn(|| {
            for _ in 0..40 {
                application.run(b"\x10").unwrap();
                if is_shown.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let look = || {
            assert!(!runs.is_finished(), "all runs have ended, and none was shown");
            let runs = platform.json(&["graph", "top"])["runs"].take();
            let components = runs[0]["components"].as_array().cloned().unwrap_or_default();
            let is_known = components.iter().any(|of| {
                of["state"] == "running"
                    && of["used_now_bytes"].as_u64() >= Some(8 * MIB)
                    && of["nodes"][0].is_string()
            });
            *seen.lock().unwrap() = runs;
            is_known && components.iter().any(|of| of["state"] == "waiting")
        };
        wait_until("a run says what it has", look);
        wait_until("the text for people says it", || {
            assert!(!runs.is_finished(), "all runs have ended, and none was shown");
            let text = platform.run(&["graph", "top", "--once"]);
            let text = String::from_utf8(text.stdout).unwrap();
            ["usage", "running", "waiting"].iter().all(|word| text.contains(word))
        });
        is_shown.store(true, Ordering::Relaxed);
    });
    let seen = seen.into_inner().unwrap();
    let components = seen[0]["components"].as_array().unwrap();
    assert!(components.iter().all(|of| of["allocated_now_bytes"].as_u64() <= Some(64 * MIB)), "{seen}");
    assert_eq!(platform.json(&["graph", "top"]), json!({ "runs": [] }));
}
