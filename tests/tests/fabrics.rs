//! `sublet fabrics` and `sublet bench --fabric`, as people and scripts use them, and what becomes of a choice that cannot
//! be had. No time is judged.

#![allow(clippy::unwrap_used)]

use std::process::{Output, Stdio};

use serde_json::{Value, json};
use sublet::{Allocation, Code, FabricChoice};
use sublet_fabric::ofi;
use sublet_means::{Means, skip};
use sublet_tests::assert_fails;
use sublet_tests::functions::package;
use sublet_tests::platform::{PlatformProcess, assert_echoes, sublet};
use sublet_tests::process::{children, is_alive, wait_until, workers};

fn run(arguments: &[&str]) -> Output {
    sublet().args(arguments).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn answer(arguments: &[&str]) -> Value {
    let output = run(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Every name is a field, and a number above 0.
#[track_caller]
fn assert_measured(measured: &Value, fields: &[&str]) {
    for field in fields {
        assert!(measured[field].as_f64() > Some(0.0), "{field} of {measured}");
    }
}

#[test]
fn the_machines_fabrics_are_listed_without_a_running_sublet() {
    let said = answer(&["fabrics"]);
    let fabrics = said["fabrics"].as_array().unwrap();
    let shared_memory = &fabrics[0];
    assert_eq!((&shared_memory["fabric"], &shared_memory["usable"]), (&json!("shm"), &json!(true)));
    let loopback = fabrics.iter().find(|fabric| fabric["address"] == "127.0.0.1").unwrap();
    assert_eq!((&loopback["fabric"], &loopback["usable"]), (&json!("tcp"), &json!(true)));
    assert!(loopback["mtu_bytes"].as_u64() > Some(0), "{loopback}");
    for fabric in fabrics {
        // Whatever cannot be used says why.
        assert_eq!(fabric["usable"].as_bool(), Some(fabric["reason"].is_null()), "{fabric}");
        assert!(fabric["measured"].is_null(), "{fabric}");
    }
    assert!(fabrics.iter().any(|fabric| fabric["fabric"] == "ofi"), "nothing is said of libfabric: {said}");
    let chosen = &said["chosen"][0];
    assert_eq!((&chosen["clients"], &chosen["fabric"]), (&json!("this_machine"), &json!("shm")));
    assert!(!chosen["why"].as_str().unwrap().is_empty());
}

#[test]
fn a_person_reads_a_table_and_what_is_chosen() {
    let output = run(&["fabrics"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.starts_with("FABRIC"), "{text}");
    assert!(text.contains("clients on this machine use shm"), "{text}");
}

#[test]
fn what_is_usable_is_measured_if_that_is_asked() {
    let said = answer(&["fabrics", "--measure"]);
    for fabric in said["fabrics"].as_array().unwrap() {
        match fabric["usable"].as_bool() {
            Some(true) => assert_measured(&fabric["measured"], &["round_trip_ns", "bytes_per_s"]),
            _ => assert!(fabric["measured"].is_null(), "{fabric}"),
        }
    }
}

#[test]
fn calls_over_tcp_are_measured_beside_a_raw_connection() {
    let fields = ["median_ns", "p99_ns", "raw_median_ns", "raw_p99_ns", "ratio", "size_bytes", "n"];
    for (more, mode, encrypted) in [
        (&["--mode", "hot"][..], "hot", false),
        (&["--mode", "warm", "--function", "noop"], "warm", false),
        (&["--encrypted", "--size", "100000"], "hot", true),
    ] {
        let figure = answer(&[&["bench", "latency", "--fabric", "tcp", "--n", "16"], more].concat());
        assert_eq!((&figure["bench"], &figure["fabric"]), (&json!("latency"), &json!("tcp")), "{figure}");
        assert_eq!((&figure["mode"], &figure["encrypted"]), (&json!(mode), &json!(encrypted)), "{figure}");
        assert_measured(&figure, &fields);
    }
}

#[test]
fn calls_over_libfabric_are_measured_beside_its_ping_pong() {
    if let Err(error) = ofi::providers() {
        skip(Means::Libfabric, error);
        return;
    }
    let provider = ["bench", "latency", "--fabric", "ofi", "--provider", "tcp;ofi_rxm", "--n", "16"];
    for mode in ["hot", "warm"] {
        for size in ["0", "64", "100000", "5000000"] {
            let more = ["--mode", mode, "--function", "echo", "--size", size];
            let figure = answer(&[&provider[..], &more].concat());
            let said = (&figure["provider"], &figure["mode"], figure["size_bytes"].to_string());
            assert_eq!(said, (&json!("tcp;ofi_rxm"), &json!(mode), size.to_owned()), "{figure}");
            assert_measured(&figure, &["median_ns", "p99_ns", "raw_median_ns", "raw_p99_ns", "ratio", "n"]);
        }
    }
}

#[test]
fn bandwidth_over_tcp_is_measured_beside_a_raw_connection() {
    let said = answer(&["bench", "bandwidth", "--fabric", "tcp", "--n", "16", "--size", "1MB"]);
    let figure = &said[0];
    assert_eq!((&figure["bench"], &figure["size_bytes"]), (&json!("bandwidth"), &json!(1_000_000)));
    assert_measured(figure, &["bytes_per_s", "raw_bytes_per_s", "ratio", "n"]);
}

#[test]
fn memory_is_measured_beside_copying_and_a_raw_connection() {
    let measured = |arguments: &[&str]| {
        let said = answer(&[&["bench", "memory", "--n", "1", "--size", "64KiB"], arguments].concat());
        let figures = said.as_array().unwrap().clone();
        for figure in &figures {
            assert_eq!(figure["bench"], "memory");
            assert_measured(figure, &["bytes_per_s", "raw_bytes_per_s", "ratio", "median_ns", "n"]);
        }
        figures.iter().map(|figure| figure["access"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(measured(&["--fabric", "shm"]), ["read", "write"]);
    assert_eq!(measured(&["--fabric", "tcp"]), ["read", "read_async", "write", "cached_read"]);
    assert_eq!(measured(&["--fabric", "tcp", "--encrypted"]).len(), 4);
}

#[test]
fn connections_are_measured_beside_one() {
    let said = answer(&["bench", "latency", "--fabric", "tcp", "--connections", "3", "--n", "1"]);
    let connections: Vec<_> = said.as_array().unwrap().iter().map(|figure| &figure["connections"]).collect();
    assert_eq!(connections, [1, 2, 3]);
    assert_eq!(said[0]["ratio"], 1.0);
    assert_measured(&said[2], &["median_ns", "p99_ns", "ratio", "n"]);
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_reason() {
    for (arguments, reason) in [
        (&["--fabric", "tcp", "--provider", "verbs"][..], "requires --fabric ofi"),
        (&["--fabric", "shm", "--encrypted"], "requires --fabric tcp"),
        (&["--fabric", "tcp", "--connections", "33"], "33"),
        (&["--fabric", "tcp", "--connections", "2", "--mode", "hot"], "warm"),
    ] {
        let output = run(&[&["bench", "latency", "--json"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        let status = i32::try_from(Code::InvalidArgument.number()).ok();
        assert_eq!(output.status.code(), status, "{arguments:?}: {said}");
        assert!(said.contains(reason), "{said}");
    }
}

#[test]
fn the_sublet_of_a_killed_measurement_ends_with_it() {
    let state = tempfile::tempdir().unwrap();
    let mut bench = sublet()
        .args(["bench", "latency", "--fabric", "tcp", "--mode", "warm", "--n", "10000000"])
        .env("TMPDIR", state.path())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("it has started a Sublet that has a worker", || {
        children(bench.id()).iter().any(|own| !workers(*own).is_empty())
    });
    let own = children(bench.id())[0];
    let workers = workers(own);
    bench.kill().unwrap();
    bench.wait().unwrap();
    wait_until("its Sublet has ended", || !is_alive(own));
    wait_until("the workers have", || !workers.iter().any(|worker| is_alive(*worker)));
}

#[test]
fn a_wrong_process_in_with_parent_is_refused() {
    let state = tempfile::tempdir().unwrap();
    let output = sublet().args(["up", "--with-parent", "1", "--state"]).arg(state.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), i32::try_from(Code::InvalidArgument.number()).ok(), "{said}");
    assert!(said.contains("process 1 has ended, or did not start this one"), "{said}");
}

fn over(fabric: &str) -> Allocation {
    Allocation::new(package("calls.c")).fabric(fabric.parse().unwrap())
}

/// Checks that a node of one core is free whenever its only client is refused.
fn assert_refused_and_free(platform: &PlatformProcess, bad: &Allocation, good: &Allocation, named: &str) {
    let mut client = platform.invoker();
    for _ in 0..2 {
        assert_fails(client.allocate(bad), Code::FabricUnavailable, &[named]);
    }
    client.allocate(good).unwrap();
    assert_echoes(&client);
    // The core is free, and the next choice as bad as the first.
    client.deallocate().unwrap();
    assert_fails(client.allocate(bad), Code::FabricUnavailable, &[named]);
}

#[test]
fn an_unusable_fabric_holds_no_core_after_the_refusal() {
    let one_core = |more: &[&str]| {
        PlatformProcess::start_with(|up| {
            up.args(["--cores", "1"]).args(more);
        })
    };
    let open = one_core(&["--listen", "127.0.0.1:0", "--fabrics", "tcp"]);
    // The client knows these by itself,
    let interface = "no-such-link";
    assert_refused_and_free(&open, &over("ofi:smoke"), &over("tcp"), "ofi:smoke");
    assert_refused_and_free(&open, &over("tcp").interface(interface), &over("tcp+tls"), interface);
    assert_refused_and_free(&open, &over("auto").interface(interface), &over("shm"), interface);
    // and these when it knows the node, if libfabric is here.
    assert_refused_and_free(&open, &over("ofi"), &over("tcp"), "ofi");
    let closed = one_core(&[]);
    for fabric in ["tcp", "tcp+tls"] {
        assert_refused_and_free(&closed, &over(fabric), &over("shm"), "no network");
    }
}

#[test]
fn an_unknown_choice_is_refused_with_the_existing_ones() {
    for (text, named) in [("smoke", "tcp+tls"), ("ofi+tls", "tcp alone"), ("shm+tls", "tcp+tls")] {
        assert_fails(text.parse::<FabricChoice>(), Code::InvalidArgument, &[text, named]);
    }
}
