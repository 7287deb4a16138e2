//! Functions of a package that call each other in place: what comes back, what an error says, how deep they go. And the example of chains.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Stdio};

use serde_json::Value;
use sublet::{Allocation, Code, Error, Invoker};
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores};
use sublet_tests::functions::package;
use sublet_tests::platform::{PlatformProcess, programs};
use sublet_tests::process::wait_until;
use sublet_tests::root;

fn call(client: &Invoker, function: &str, input: &[u8]) -> Result<Vec<u8>, Error> {
    let mut output = vec![0u8; 64];
    let done = client.submit(function, input, &mut output)?.wait()?;
    output.truncate(done.output_bytes);
    Ok(output)
}

#[track_caller]
fn fails(client: &Invoker, function: &str, input: &[u8], code: Code, what: &str) {
    let error = call(client, function, input).unwrap_err();
    assert!(error.code == code && error.message.contains(what), "{error}, where {what:?} was expected");
}

#[test]
fn a_function_calls_others_by_name_and_gets_their_answers() {
    let platform = PlatformProcess::start();
    let client = platform.client("chain.c");
    assert_eq!(call(&client, "relay", b"upper\0chain").unwrap(), b"CHAIN");
    assert_eq!(call(&client, "relay", b"relay\0relay\0upper\0a longer one").unwrap(), b"A LONGER ONE");
    assert_eq!(call(&client, "relay", b"upper\0").unwrap(), b"");
    assert_eq!(call(&client, "swap_halves", b"abcdefg").unwrap(), b"DEFGABC");
    let deepest = call(&client, "deep", &0u32.to_le_bytes()).unwrap();
    assert_eq!(deepest, 65u32.to_le_bytes(), "64 calls within the one that the client made");
    assert_eq!(call(&client, "upper", b"after").unwrap(), b"AFTER");
}

#[test]
fn an_error_in_the_middle_says_which_function_failed() {
    let platform = PlatformProcess::start();
    let client = platform.client("chain.c");
    fails(&client, "relay", b"refuse\0", Code::FunctionFailed, "refuse: not today");
    fails(
        &client,
        "relay",
        b"relay\0relay\0refuse\0",
        Code::FunctionFailed,
        "relay: relay: refuse: not today",
    );
    fails(&client, "relay", b"relay\0absent\0", Code::FunctionFailed, "no function \"absent\"");
    let long = [b"upper\0".as_slice(), &[b'x'; 65]].concat();
    fails(&client, "relay", &long, Code::FunctionFailed, "upper: 65 bytes of output do not fit into 64");
    fails(&client, "go_on", b"x", Code::FunctionFailed, "failed before");
    assert_eq!(call(&client, "relay", b"upper\0still here").unwrap(), b"STILL HERE");
}

#[test]
fn a_cpp_exception_ends_at_the_calling_function() {
    let platform = PlatformProcess::start();
    let client = platform.client_with(&Allocation::new(package("chain_cpp.cpp")));
    assert_eq!(call(&client, "survives", b"").unwrap(), [1]);
    fails(&client, "passes_on", b"t", Code::FunctionFailed, "throws: ");
    fails(&client, "passes_on", b"t", Code::FunctionFailed, "thrown within");
    fails(&client, "passes_on", b"e", Code::FunctionFailed, "exhausts: ");
    assert_eq!(call(&client, "survives", b"").unwrap(), [1]);
}

#[test]
fn the_example_answers_the_same_everywhere_and_by_http() {
    let python = root().join("target/tools/python/bin/python3");
    let mut cluster = Cluster::start(ClusterPlan::default());
    for (pu, neighbour, device) in [("cpu", "node-1", "none"), ("dpu", "node-0", "opencl")] {
        let of_this = ["--pu", pu, "--neighbour", neighbour, "--devices", device, "--listen", "127.0.0.1:0"];
        let more = [&of_this[..], &["--python", python.to_str().unwrap()]].concat();
        cluster.add_agent_with(LentCores::cores(2), &more);
    }
    wait_until("the units are linked", || {
        let listed = cluster.json(&["pus"]);
        let mut units = listed["units"].as_array().unwrap().iter().filter(|unit| unit["unit"] == "cpu");
        units.all(|unit| unit["connected"].as_array().is_some_and(|names| !names.is_empty()))
    });
    let mut command = Command::new(python);
    command.arg(root().join("examples/chains/run")).args(["--rounds", "20", "--json"]);
    command.arg("--sublet").arg(programs().join("sublet"));
    command.env("SUBLET_MANAGER", cluster.managers[0].socket()).stderr(Stdio::inherit());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    // It compares the outputs by itself.
    let figures: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let told = |figure: &Value, way: &str| figure[way].as_f64().is_some_and(|value| value > 0.0);
    let chains: Vec<_> = figures.iter().map(|figure| figure["chain"].as_str().unwrap()).collect();
    assert_eq!(chains, ["assistant", "words", "picture", "assistant", "words"], "in C, and in Python");
    for figure in &figures {
        let ways = ["one_ns", "two_ns", "http_ns", "http_over_one", "http_over_two"];
        assert!(ways.iter().all(|way| told(figure, way)), "{figure}");
        assert_eq!(told(figure, "device_ns"), figure["chain"] == "picture", "{figure}");
    }
}
