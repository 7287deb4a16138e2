//! Graphs that run for each event: lines, files, the clock, and messages of a real NATS server.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};
use sublet::Code;
use sublet_tests::functions::library;
use sublet_tests::graph::{compute_with, document};
use sublet_tests::nats::NatsServer;
use sublet_tests::platform::{PlatformProcess, kill};
use sublet_tests::process::wait_until;

/// Input that is larger than a run takes, in bytes.
const TOO_MUCH: usize = (256 << 10) + 1;

/// A platform, and the document of a graph that returns what it gets, after as many milliseconds as that's first byte says.
fn platform() -> (PlatformProcess, PathBuf) {
    let platform = PlatformProcess::start();
    let deployed = platform.run(&["deploy", library("components.c").to_str().unwrap()]);
    assert!(deployed.status.success(), "{}", String::from_utf8_lossy(&deployed.stderr));
    let components = [compute_with("echo", "later", &json!({ "entry": true }))];
    let file = platform.state().join("echo.json");
    fs::write(&file, document("echo", &components, &[])).unwrap();
    (platform, file)
}

/// A folder of its own.
fn folder(platform: &PlatformProcess, name: &str) -> PathBuf {
    let folder = platform.state().join(name);
    fs::create_dir(&folder).unwrap();
    folder
}

fn trigger(platform: &PlatformProcess, graph: &Path) -> Command {
    let mut command = platform.command();
    command.args(["graph", "trigger", "--json"]).arg(graph).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Reports of the events, one for each line of standard output.
fn said(stdout: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Asks for an end in order; what was said until then, and the exit status.
fn stop(process: Child) -> (Vec<Value>, i32) {
    kill(process.id(), Signal::TERM);
    let output = process.wait_with_output().unwrap();
    (said(&output.stdout), output.status.code().unwrap())
}

#[test]
fn each_line_is_an_event_with_an_output_file() {
    let (platform, graph) = platform();
    let results = platform.state().join("results");
    let mut command = trigger(&platform, &graph);
    command.args(["--lines", "--at-once", "2", "--output"]).arg(&results).stdin(Stdio::piped());
    let mut process = command.spawn().unwrap();
    process.stdin.take().unwrap().write_all(b"\xffone\n\n\x01three\nlast").unwrap();
    let output = process.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told = said(&output.stdout);
    let mut events: Vec<&str> = told.iter().map(|told| told["event"].as_str().unwrap()).collect();
    assert_ne!(events[0], "1", "other events are processed meanwhile");
    events.sort_unstable();
    assert_eq!(events, ["1", "2", "3", "4"]);
    assert!(told.iter().all(|told| told["run"].as_str().is_some_and(|run| run.len() == 32)));
    for (number, expected) in [("1", &b"\xffone"[..]), ("2", b""), ("3", b"\x01three"), ("4", b"last")] {
        assert_eq!(fs::read(results.join(number)).unwrap(), expected);
    }
    assert_eq!(platform.json(&["graph", "history", "echo"])["runs"].as_array().unwrap().len(), 4);
}

#[test]
fn reports_a_failed_run_and_continues_the_others() {
    let (platform, graph) = platform();
    let input = [&vec![b'x'; TOO_MUCH][..], b"\n\x01good\n"].concat();
    let told = platform.pipe(&["graph", "trigger", graph.to_str().unwrap(), "--lines", "--json"], &input);
    let [bad, good] = <[Value; 2]>::try_from(said(&told.stdout)).unwrap();
    assert_eq!((bad["event"].as_str(), good["event"].as_str()), (Some("1"), Some("2")));
    assert_eq!((good["output_bytes"].as_u64(), bad["run"].is_null()), (Some(5), true));
    let error: Value = serde_json::from_slice(&told.stderr).unwrap();
    assert_eq!(error["error"]["code"], bad["error"]);
    assert!(error["error"]["message"].as_str().unwrap().starts_with("1 of 2 runs failed"), "{error}");
    assert_eq!(told.status.code(), bad["number"].as_i64().map(|number| number as i32));
}

/// Whether a file is there, with these bytes.
fn holds(file: &Path, bytes: &[u8]) -> bool {
    fs::read(file).is_ok_and(|is| is == bytes)
}

#[test]
fn each_file_is_run_and_put_away() {
    let (platform, graph) = platform();
    let (inbox, results) = (folder(&platform, "inbox"), platform.state().join("results"));
    fs::write(inbox.join("early"), b"\x01early").unwrap();
    fs::write(inbox.join(".hidden"), b"hidden").unwrap();
    let mut command = trigger(&platform, &graph);
    let process = command.arg("--files").arg(&inbox).arg("--output").arg(&results).spawn().unwrap();
    let is_done = |name: &str, bytes: &[u8]| {
        let done = || holds(&inbox.join("done").join(name), bytes) && holds(&results.join(name), bytes);
        wait_until(name, done);
        assert!(!inbox.join(name).exists());
    };
    is_done("early", b"\x01early");
    fs::write(inbox.join("written"), b"\x01written").unwrap();
    is_done("written", b"\x01written");
    fs::write(platform.state().join("moved"), b"\x01moved").unwrap();
    fs::rename(platform.state().join("moved"), inbox.join("moved")).unwrap();
    is_done("moved", b"\x01moved");
    // The same name again is another event.
    fs::write(inbox.join("early"), b"\x01again").unwrap();
    is_done("early", b"\x01again");
    fs::write(inbox.join("large"), vec![b'x'; TOO_MUCH]).unwrap();
    wait_until("it has failed", || inbox.join("failed/large").exists());
    // A file that is written while its run is in progress is run once more, and no byte of it is lost.
    fs::write(inbox.join("twice"), b"\xffold").unwrap();
    wait_until("its run has begun", || platform.json(&["ps"])["leases"].as_array().unwrap().len() == 1);
    fs::write(inbox.join("twice"), b"\x01new").unwrap();
    is_done("twice", b"\x01new");
    let (told, status) = stop(process);
    let of = |name: &str| told.iter().filter(|told| told["event"] == name).count();
    assert_eq!(
        (of("early"), of("written"), of("moved"), of("large"), of("hidden")),
        (2, 1, 1, 1, 0),
        "{told:?}"
    );
    assert!(status != 0 && inbox.join(".hidden").exists());
}

#[test]
fn a_file_of_an_interrupted_run_is_run_again() {
    let (platform, graph) = platform();
    let inbox = folder(&platform, "inbox");
    fs::write(inbox.join("file"), b"\xffbytes").unwrap();
    let start = || trigger(&platform, &graph).arg("--files").arg(&inbox).spawn().unwrap();
    let mut process = start();
    let runs = || platform.json(&["graph", "history"])["runs"].as_array().map_or(0, Vec::len);
    wait_until("its run has begun", || runs() == 1);
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(inbox.join("file").exists());
    let process = start();
    wait_until("it is done", || inbox.join("done/file").exists());
    assert_eq!(stop(process).1, 0);
}

#[test]
fn the_clock_runs_the_graph_until_it_is_stopped() {
    let (platform, graph) = platform();
    let mut process = trigger(&platform, &graph).args(["--every", "50ms"]).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let first: Vec<Value> =
        lines.by_ref().take(3).map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert_eq!([0, 1, 2].map(|at| first[at]["event"].as_str().unwrap().to_owned()), ["1", "2", "3"]);
    kill(process.id(), Signal::INT);
    assert!(lines.all(|line| line.unwrap().contains("\"run\"")));
    assert!(process.wait().unwrap().success());
}

#[test]
fn whoever_is_stopped_finishes_what_has_begun() {
    let (platform, graph) = platform();
    let mut process = trigger(&platform, &graph).arg("--lines").stdin(Stdio::piped()).spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    input.write_all(b"\xffslow\n").unwrap();
    let runs = || platform.json(&["graph", "history"])["runs"].as_array().map_or(0, Vec::len);
    wait_until("its run has begun", || runs() == 1);
    // Standard input stays open: the command does not wait for its end.
    let (told, status) = stop(process);
    assert_eq!((told.len(), told[0]["output_bytes"].as_u64(), status), (1, Some(5), 0));
    drop(input);
}

#[test]
fn each_message_is_an_event_and_who_asks_is_answered() {
    let (platform, graph) = platform();
    let server = NatsServer::start();
    let start = || {
        let mut command = trigger(&platform, &graph);
        command.args(["--nats", "jobs.echo", "--nats-url", &server.url()]).spawn().unwrap()
    };
    let triggers = [start(), start()];
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let told = runtime.block_on(async {
        let client = async_nats::connect(server.url()).await.unwrap();
        let ask = |payload: Vec<u8>| {
            let client = client.clone();
            async move {
                // Repeats until the service listens.
                loop {
                    match client.request("jobs.echo", payload.clone().into()).await {
                        Ok(answer) => break answer,
                        Err(error) => assert_eq!(error.kind(), async_nats::RequestErrorKind::NoResponders),
                    }
                }
            }
        };
        assert_eq!(&ask(b"\x01hello".to_vec()).await.payload[..], b"\x01hello");
        let refused = ask(vec![b'x'; TOO_MUCH]).await;
        let said = |name: &str| refused.headers.as_ref().unwrap().get(name).unwrap().to_string();
        assert!(refused.payload.is_empty() && said("Nats-Service-Error-Code").parse::<u32>().unwrap() > 0);
        assert!(!said("Nats-Service-Error").is_empty());
        for _ in 0..10 {
            ask(b"\x01more".to_vec()).await;
        }
        triggers.map(|process| stop(process).0).concat()
    });
    // Each was seen to by one of the two.
    assert_eq!(told.iter().filter(|told| told["run"].is_string()).count(), 11, "{told:?}");
    assert_eq!(told.iter().filter(|told| told["error"].is_string()).count(), 1, "{told:?}");
}

#[test]
fn what_makes_no_sense_is_said_before_anything_runs() {
    let (platform, graph) = platform();
    let graph = graph.to_str().unwrap();
    let refused = |more: &[&str], code: Code| {
        platform.assert_refuses(&[&["graph", "trigger", graph], more].concat(), code)
    };
    refused(&[], Code::InvalidArgument);
    refused(&["--lines", "--every", "1s"], Code::InvalidArgument);
    refused(&["--every", "0s"], Code::InvalidArgument);
    refused(&["--lines", "--at-once", "0"], Code::InvalidArgument);
    assert!(refused(&["--files", "/no/such/folder"], Code::InvalidArgument).contains("/no/such/folder"));
    refused(&["--nats", "jobs", "--nats-url", "http://there"], Code::InvalidArgument);
    assert!(
        refused(&["--nats", "jobs", "--nats-url", "nats://127.0.0.1:1"], Code::System)
            .contains("127.0.0.1:1")
    );
    platform.assert_refuses(&["graph", "trigger", "nothing", "--lines"], Code::UnknownGraph);
    assert!(platform.json(&["graph", "history"])["runs"].as_array().unwrap().is_empty());
}
