//! Calls over libfabric between real processes: every size, and what becomes of both ends when one of them is killed.
//!
//! The provider is the one that needs no card, `tcp;ofi_rxm`. Its ends send to any other, so that none of them notices
//! while nothing is sent that the other is gone: the control connections of client and agent do.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::{Child, Stdio};

use rustix::process::Signal;
use sublet::{Allocation, Code, Completion, Error, FabricChoice, Invoker, Policy};
use sublet_fabric::ofi;
use sublet_means::{Means, skip};
use sublet_tests::assert_fails;
use sublet_tests::functions::package;
use sublet_tests::platform::{PlatformProcess, assert_echoes, kill};
use sublet_tests::process::{is_alive, thread_states, wait_until};

const MIB: u64 = 1 << 20;
const PROVIDER: &str = "tcp;ofi_rxm";

/// A node that offers it. `None` where there is no libfabric.
fn platform() -> Option<PlatformProcess> {
    let providers = ofi::providers().inspect_err(|error| skip(Means::Libfabric, error)).ok()?;
    if !providers.iter().any(|found| found.name == PROVIDER && found.usable.is_ok()) {
        skip(Means::Libfabric, format_args!("the installed libfabric has no {PROVIDER}"));
        return None;
    }
    Some(PlatformProcess::start_with(|command| {
        command.args(["--listen", "127.0.0.1:0", "--fabrics", &format!("ofi:{PROVIDER}")]);
    }))
}

fn allocation(source: &'static str, policy: Policy) -> Allocation {
    let fabric = FabricChoice::Ofi { provider: Some(PROVIDER.into()) };
    Allocation::new(package(source)).fabric(fabric).policy(policy)
}

fn call(client: &Invoker, function: &str) -> Result<Completion, Error> {
    client.submit(function, &[0u8; 0], &mut [0u8; 8])?.wait()
}

fn wait_until_it_executes(worker: u32) {
    wait_until("the call is executed", || thread_states(worker, "worker 0") == ['R']);
}

/// A client of its own process that waits for a call without an end.
fn spinning_client(platform: &PlatformProcess) -> Child {
    let name = format!("{}/spin", package("faults.c"));
    let mut command = platform.command();
    command.args(["call", &name, "--fabric", &format!("ofi:{PROVIDER}")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

fn leases(platform: &PlatformProcess) -> usize {
    platform.json(&["ps"])["leases"].as_array().unwrap().len()
}

#[test]
fn every_size_comes_back_whether_the_worker_polls_or_sleeps() {
    let Some(platform) = platform() else { return };
    for policy in [Policy::AlwaysHot, Policy::AlwaysWarm] {
        let client = platform.client_with(&allocation("calls.c", policy).memory_bytes(256 * MIB));
        for len in [0, 1, 64, 1000, 4096, 65_536, 1_000_003, 5_000_000] {
            let bytes: Vec<u8> = (0..len).map(|at: usize| (at.wrapping_mul(31) + len) as u8).collect();
            let mut input = client.buffer::<u8>(len).unwrap();
            input.copy_from_slice(&bytes);
            let mut output = client.buffer::<u8>(len + 1).unwrap();
            output.fill(0xee);
            for _ in 0..20 {
                let done = client.submit("echo", &input, &mut output).unwrap().wait().unwrap();
                assert_eq!(done.output_bytes, len);
            }
            assert!(output.part(..len).to_vec() == bytes && output.get(len) == 0xee, "{len} bytes");
        }
    }
}

#[test]
fn a_client_gets_another_worker_for_a_killed_one() {
    let Some(platform) = platform() else { return };
    for policy in [Policy::AlwaysHot, Policy::AlwaysWarm] {
        let client = platform.client_with(&allocation("faults.c", policy));
        let worker = platform.worker();
        let mut output = [0u8; 8];
        let spinning = client.submit("spin", &[0u8; 4], &mut output).unwrap();
        wait_until_it_executes(worker);
        kill(worker, Signal::KILL);
        assert_fails(spinning.wait(), Code::WorkerDied, &["SIGKILL"]);
        assert_echoes(&client);
        let idle = platform.worker();
        assert_ne!(idle, worker);
        kill(idle, Signal::KILL);
        wait_until("the client has another one", || match call(&client, "refuse") {
            Err(error) => error.code == Code::FunctionFailed,
            Ok(_) => false,
        });
        assert_ne!(platform.worker(), idle);
    }
}

#[test]
fn a_killed_client_holds_nothing_any_longer() {
    let Some(platform) = platform() else { return };
    let mut client = spinning_client(&platform);
    wait_until("it has a worker", || platform.workers().len() == 1);
    let worker = platform.worker();
    wait_until_it_executes(worker);
    client.kill().unwrap();
    wait_until("the worker is gone", || !is_alive(worker));
    client.wait().unwrap();
    wait_until("the lease is gone", || leases(&platform) == 0);
    let all = allocation("calls.c", Policy::AlwaysWarm).cores(platform.cores());
    assert_echoes(&platform.client_with(&all));
}

#[test]
fn a_crash_is_reported_with_its_signal() {
    let Some(platform) = platform() else { return };
    let client = platform.client_with(&allocation("faults.c", Policy::AlwaysWarm));
    for (function, signal) in [("segfault", "SIGSEGV"), ("divide", "SIGFPE")] {
        assert_fails(call(&client, function), Code::WorkerDied, &[function, signal]);
        assert_echoes(&client);
    }
}

#[test]
fn a_node_without_such_devices_does_not_load_libfabric() {
    if ofi::has_devices() {
        skip(Means::NoRdmaDevices, "this machine has devices for it");
        return;
    }
    let platform = PlatformProcess::start_with(|command| {
        command.args(["--listen", "127.0.0.1:0"]);
    });
    let loaded = fs::read_to_string(format!("/proc/{}/maps", platform.pid())).unwrap();
    assert!(loaded.contains("libc.so") && !loaded.contains("libfabric"), "{loaded}");
}
