//! Tests the output of functions: a log for each lease, and never the node's own.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};

use serde_json::Value;
use sublet::{Allocation, Code, Invoker};
use sublet_proto::v1::sandbox_request::Body;
use sublet_proto::v1::{SandboxCreate, SandboxRequest, SandboxSpec};
use sublet_tests::platform::{PlatformProcess, assert_echoes};
use sublet_tests::process::wait_until;
use tempfile::TempDir;

/// Largest log of a lease, in bytes, and what a line of Sublet's own may add to it.
const MAX_LOG_BYTES: usize = (1 << 20) + 256;

/// The kind of a sandbox that shows a program of the host.
const PROCESS: u32 = 1;

/// A platform, and what its programs say on standard error.
fn platform() -> (PlatformProcess, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let log = File::create(folder.path().join("log")).unwrap();
    let platform = PlatformProcess::start_with(|up| {
        up.stderr(log);
    });
    (platform, folder)
}

fn said(folder: &TempDir) -> String {
    String::from_utf8_lossy(&fs::read(folder.path().join("log")).unwrap()).into_owned()
}

fn call(client: &Invoker, function: &str, input: &[u8]) {
    client.submit(function, input, &mut [0u8; 8]).unwrap().wait().unwrap();
}

/// The only lease's id.
fn lease(platform: &PlatformProcess) -> String {
    platform.json(&["ps"])["leases"][0]["id"].as_str().unwrap().to_owned()
}

#[test]
fn output_goes_to_the_log_of_its_lease() {
    let (platform, folder) = platform();
    let mut client = platform.client("printing.c");
    call(&client, "print", b"hello from a function\n");
    call(&client, "print", b"and \x1b[31mmore");
    let lease = lease(&platform);
    let text = |said: &Value| said["log"].as_str().unwrap().to_owned();
    wait_until("the log has it", || text(&platform.json(&["logs", &lease])).contains("more"));
    client.deallocate().unwrap();
    // As it was printed, for programs; and after the lease's end.
    let raw = platform.run(&["logs", &lease]);
    assert_eq!(raw.stdout, b"hello from a function\nand \x1b[31mmore", "{:?}", raw.stderr);
    assert_eq!(said(&folder), "", "the node's own log");
    for (wrong, named) in [("../agent", "not a lease's id"), ("0123456789abcdef", "printed nothing")] {
        let refused = platform.assert_refuses(&["logs", wrong], Code::InvalidArgument);
        assert!(refused.contains(named), "{refused}");
    }
    // A lease that prints nothing leaves nothing.
    let mut silent = platform.client("printing.c");
    assert_echoes(&silent);
    silent.deallocate().unwrap();
    let logs = || fs::read_dir(platform.state().join("logs")).unwrap().count();
    wait_until("the empty log is gone", || logs() == 1);
}

#[test]
fn a_flood_is_bounded_and_never_enters_the_nodes_log() {
    let (platform, folder) = platform();
    let client = platform.client("printing.c");
    let lease = lease(&platform);
    call(&client, "flood", &64u32.to_le_bytes());
    call(&client, "print", b"the end\n");
    assert_echoes(&client);
    let log = platform.state().join(format!("logs/{lease}.log"));
    // The last output may have been dropped as well. The log says how much was dropped once output is kept again.
    wait_until("output is kept again", || {
        call(&client, "print", b"later\n");
        let text = String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned();
        text.contains("bytes of output were dropped") && text.contains("later")
    });
    let text = String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned();
    let notes = text.matches("bytes of output were dropped").count();
    assert!(notes < 20, "{notes} lines say that output was dropped");
    let len = fs::metadata(&log).unwrap().len() as usize;
    assert!((1 << 16..MAX_LOG_BYTES).contains(&len), "{len} bytes of log");
    assert_eq!(said(&folder), "", "the node's own log");
}

#[test]
fn output_of_an_operators_sandbox_is_labelled() {
    let (platform, folder) = platform();
    let socket = platform.state().join("agent.sock");
    let text = "ERROR sublet_agent: forged\n\x1b[2Jsecond\rthird";
    let arguments =
        ["sandbox", "--agent", socket.to_str().unwrap(), "create", "--start", "--", "/bin/echo", text];
    let made = platform.run(&arguments);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    wait_until("it is printed", || said(&folder).contains("third"));
    let said = said(&folder);
    assert!(said.lines().all(|line| line.starts_with("[sandbox ")), "{said}");
    assert!(
        said.contains("] ERROR sublet_agent: forged\n") && said.contains("] \\x1b[2Jsecond\\x0dthird"),
        "{said}"
    );
}

#[test]
fn an_operator_passes_no_log_with_a_sandbox() {
    let (platform, folder) = platform();
    let spec = |text: &str| SandboxSpec {
        kind: PROCESS,
        program: "/bin/echo".into(),
        args: vec![text.into()],
        has_log: true,
        scratch_bytes: 1 << 20,
        ..SandboxSpec::default()
    };
    let create = SandboxCreate { specs: vec![spec("first"), spec("second")], start: true };
    let request = SandboxRequest { body: Some(Body::Create(create)) };
    let answers = sublet_agent::sandboxes(&platform.state().join("agent.sock"), request).unwrap();
    assert!(answers.iter().all(|answer| answer.failure.is_none()), "{answers:?}");
    wait_until("both have printed", || {
        let said = said(&folder);
        said.contains("] first\n") && said.contains("] second\n")
    });
}

#[test]
fn output_of_imported_modules_stays_out_of_the_nodes_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = File::create(folder.path().join("log")).unwrap();
    let platform = PlatformProcess::start_with(|up| {
        up.args(["--python", "/usr/bin/python3"]).stderr(log);
    });
    let package = folder.path().join("package");
    fs::create_dir(&package).unwrap();
    fs::write(package.join("m.py"), "def f(data):\n    print('in a function')\n    return data\n").unwrap();
    let manifest = "name = 'm'\nkind = 'python'\nlibrary = 'm.py'\n[[function]]\nname = 'f'\n[python]\nimports = ['this']\n";
    fs::write(package.join("sublet.toml"), manifest).unwrap();
    for _ in 0..2 {
        let mut client = platform.client_with(&Allocation::new(package.to_str().unwrap()));
        call(&client, "f", b"x");
        client.deallocate().unwrap();
    }
    assert_eq!(said(&folder), "", "the node's own log");
}
