//! Graphs with functions in Node.js: their memory components and messages.

#![allow(clippy::unwrap_used)]

use std::process::Command;

use serde_json::{Value, json};
use sublet::{Access, Application, Code, FabricChoice, Outcome, RunOptions};
use sublet_tests::graph::{access, compute, compute_with, document, memory, sum_to, sums, total, trigger};
use sublet_tests::platform::PlatformProcess;
use sublet_tests::{assert_fails, root};

fn platform() -> PlatformProcess {
    let platform = PlatformProcess::start_with(|up| {
        up.args(["--listen", "127.0.0.1:0", "--node", "node"]);
    });
    deploy(&mut platform.command());
    platform
}

fn deploy(command: &mut Command) {
    let deployed =
        command.arg("deploy").arg(root().join("tests/functions/nodejs_components")).output().unwrap();
    assert!(deployed.status.success(), "{}", String::from_utf8_lossy(&deployed.stderr));
}

fn application(platform: &PlatformProcess, document: &[u8], options: RunOptions) -> Application {
    Application::deploy(Access::parse(&platform.address()).unwrap(), document, options).unwrap()
}

/// Memory of the same machine, and memory that is reached as that of another machine is.
fn fabrics() -> [RunOptions; 2] {
    let tcp = Some(FabricChoice::Tcp { encrypted: false });
    [RunOptions::default(), RunOptions { fabric: tcp, ..RunOptions::default() }]
}

/// Output of the only instance of the only component that triggers no other.
#[track_caller]
fn text(outcome: &Outcome) -> String {
    String::from_utf8(outcome.outputs[0].1[0].clone()).unwrap()
}

#[test]
fn components_in_nodejs_share_memory() {
    let platform = platform();
    for options in fabrics() {
        let application = application(&platform, &sums(), options);
        for count in [1u64, 511, 100_000] {
            let outcome = application.run(&count.to_le_bytes()).unwrap();
            assert_eq!(total(&outcome), sum_to(count));
            let numbers = outcome.components.iter().find(|of| of.component == "numbers").unwrap();
            assert_eq!(numbers.used_bytes, count * 8);
        }
        let failed = application.run(b"x");
        assert_fails(
            failed,
            Code::FunctionFailed,
            &["component fill", "libcomponents/fill failed: how many?"],
        );
    }
}

#[test]
fn components_in_nodejs_exchange_messages() {
    let platform = platform();
    let components = [
        compute_with("start", "later", &json!({ "entry": true })),
        compute("ask", "ask"),
        compute("tell", "tell"),
    ];
    let message = json!({ "type": "message", "from": "ask", "to": "tell" });
    let edges = [trigger("start", "ask"), trigger("start", "tell"), message];
    for options in fabrics() {
        let application = application(&platform, &document("talk", &components, &edges), options);
        for count in [0u64, 1, 1_000] {
            let outcome = application.run(&count.to_le_bytes()).unwrap();
            let said: Vec<u64> = outcome
                .outputs
                .iter()
                .map(|(_, outputs)| u64::from_le_bytes(outputs[0].as_slice().try_into().unwrap()))
                .collect();
            assert_eq!(said, [(1..=count).map(|number| number * number).sum(), count]);
        }
    }
}

/// A graph of one component with access to memory.
fn alone(function: &str, rights: &str) -> Vec<u8> {
    let components = [compute_with("only", function, &json!({ "entry": true })), memory("numbers")];
    document("alone", &components, &[access("only", "numbers", rights)])
}

#[test]
fn memory_is_copied_and_resized() {
    let platform = platform();
    for options in fabrics() {
        let outcome = application(&platform, &alone("keep", "write"), options).run(b"").unwrap();
        let expected = json!({ "copy": "before", "now": "after!", "end": [0, 0, 0, 0, 0, 0], "whole": "af" });
        assert_eq!(serde_json::from_str::<Value>(&text(&outcome)).unwrap(), expected);
    }
}

#[test]
fn misuse_of_memory_fails_with_its_code() {
    let platform = platform();
    for (rights, what, expected) in [
        ("read", "write", "permission_denied: memory component numbers is read by this component"),
        ("read", "grow 8", "permission_denied: "),
        ("read", "read 0", "invalid_argument: 8 bytes at 0 of memory component numbers of 0 bytes"),
        ("write", "read 9007199254740991", "invalid_argument: 8 bytes at 9007199254740991 of memory"),
        ("write", "writeAt 67108857", "memory_exceeded: "),
        ("write", "writeAt -1", "invalid_argument: offset must be a whole number of 0 or more: -1"),
        ("write", "writeAt 0.5", "invalid_argument: offset must be a whole number of 0 or more: 0.5"),
        ("write", "resize 67108865", "memory_exceeded: "),
        ("write", "released", "lease_ended: memory component numbers was released by this function"),
        ("write", "opened", "lease_ended: memory component numbers was released by this function"),
        (
            "write",
            "absent",
            "invalid_argument: the graph has no access edge from this component to \"nothing\"",
        ),
        (
            "write",
            "message",
            "invalid_argument: the graph has no message edge between this component and \"missing\"",
        ),
        ("write", "longMessage", "invalid_argument: a timeout of -1 milliseconds is no time to wait"),
        ("write", "writeAt 8", "ok: "),
    ] {
        let outcome =
            application(&platform, &alone("abuse", rights), RunOptions::default()).run(what.as_bytes());
        let said = text(&outcome.unwrap());
        assert!(said.starts_with(expected), "{what}: {said}");
    }
}

#[test]
fn channel_ends_with_its_run() {
    let platform = platform();
    // Workers are kept for the next run.
    let options = RunOptions { keep_alive: std::time::Duration::from_secs(60), ..RunOptions::default() };
    let application = application(&platform, &alone("abuse", "write"), options);
    assert_eq!(text(&application.run(b"kept").unwrap()), "ok: ");
    let said = text(&application.run(b"kept").unwrap());
    assert_eq!(said, "lease_ended: the run of this operation is over: open the channel again");
}

#[test]
fn memory_and_messages_belong_to_runs() {
    let platform = platform();
    let client = platform.client_with(&sublet::Allocation::new("libcomponents").memory_bytes(64 << 20));
    let (input, mut output) = (8u64.to_le_bytes(), vec![0u8; 256]);
    let done = client.submit("share", input.as_slice(), &mut output).and_then(|call| call.wait());
    assert_fails(done, Code::FunctionFailed, &["this call is not of a graph's run"]);
}
