//! Calls to a node that is reached by a network: the same as within it, and what is different about memory, loss and
//! choice. Client and node are on one machine and told to use TCP all the same.

#![allow(clippy::unwrap_used)]

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sublet::{Allocation, CallOptions, Code, Completion, Error, FabricChoice, Invocation, Invoker, Policy};
use sublet_means::{Means, skip};
use sublet_tests::assert_fails;
use sublet_tests::executor::block_on;
use sublet_tests::functions::package;
use sublet_tests::platform::{PlatformProcess, assert_echoes, assert_more_calls_than_slots, kill};
use sublet_tests::process::{PATIENCE, is_alive, thread_states, wait_until, with_growing_time};

const MIB: u64 = 1 << 20;
const TCP: FabricChoice = FabricChoice::Tcp { encrypted: false };
const TLS: FabricChoice = FabricChoice::Tcp { encrypted: true };

/// A platform that other machines reach.
fn open_platform() -> PlatformProcess {
    PlatformProcess::start_with(|command| {
        command.args(["--listen", "127.0.0.1:0"]);
    })
}

fn over(fabric: FabricChoice, source: &'static str) -> Allocation {
    Allocation::new(package(source)).fabric(fabric)
}

fn call(client: &Invoker, function: &str) -> Result<Completion, Error> {
    client.submit(function, &[0u8; 0], &mut [0u8; 8])?.wait_deadline(Instant::now() + PATIENCE)
}

/// Bytes that differ from their neighbours and from those of other sizes.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31).wrapping_add(len) >> 3) as u8).collect()
}

/// A worker that sleeps between calls is executing one.
fn wait_until_it_executes(worker: u32) {
    wait_until("the call is executed", || thread_states(worker, "worker 0") == ['R']);
}

#[test]
fn every_size_returns_from_any_memory_plain_and_encrypted() {
    let platform = open_platform();
    for fabric in [TCP, TLS] {
        let allocation = over(fabric.clone(), "calls.c").memory_bytes(512 * MIB).slot_bytes(300_000);
        let client = platform.client_with(&allocation);
        assert_eq!(client.fabrics(), [fabric]);
        for len in [0, 1, 7, 64, 65, 4095, 4097, 65_536, 300_000, 1_000_003, 5_000_000, 40 << 20] {
            let bytes = pattern(len);
            let mut input = client.buffer::<u8>(len).unwrap();
            input.copy_from_slice(&bytes);
            let mut output = client.buffer::<u8>(len + 1).unwrap();
            output.fill(0xee);
            let done = client.submit("echo", &input, &mut output).unwrap().wait().unwrap();
            let returned = output.part(..len).to_vec();
            assert!(done.output_bytes == len && returned == bytes && output.get(len) == 0xee, "{len} bytes");
            if len <= 300_000 {
                let mut other = vec![0xee; len + 1];
                let done = client.submit("echo", &bytes, &mut other).unwrap().wait().unwrap();
                assert!(
                    done.output_bytes == len && other[..len] == bytes && other[len] == 0xee,
                    "{len} bytes"
                );
            }
        }
    }
}

#[test]
fn what_functions_say_of_their_errors_arrives() {
    let platform = open_platform();
    let client = platform.client_with(&over(TCP, "faults.c"));
    assert_fails(call(&client, "refuse"), Code::FunctionFailed, &["libfaults/refuse", "the ink is dry"]);
    let message = assert_fails(call(&client, "refuse_at_length"), Code::FunctionFailed, &[]);
    assert_eq!(message.matches('x').count(), 256, "{message}");
    let small = client.submit("echo", &[0u8; 100], &mut [0u8; 10]).unwrap().wait();
    assert_fails(small, Code::OutputTooLarge, &["100 bytes", "10"]);
    let large = client.submit("echo", &vec![0u8; 70_000], &mut [0u8; 1]).map(drop);
    assert_fails(large, Code::InputTooLarge, &["70000", "65536"]);
    assert_fails(call(&client, "missing"), Code::UnknownFunction, &["missing"]);
    let throwing = platform.client_with(&over(TLS, "throws.cpp"));
    assert_fails(call(&throwing, "throw_exception"), Code::FunctionFailed, &["the ink is dry"]);
    assert_echoes(&throwing);
}

#[test]
fn only_buffers_beyond_the_leases_memory_are_refused() {
    let platform = open_platform();
    let client = platform.client_with(&over(TCP, "calls.c").memory_bytes(64 * MIB));
    for _ in 0..3 {
        let refused = client.buffer::<u8>(100 << 20).map(drop);
        assert_fails(refused, Code::InsufficientResources, &[&(100 * MIB).to_string(), "memory"]);
    }
    let mut output = client.buffer::<u8>(8 << 20).unwrap();
    let bytes = pattern(60_000);
    let done = client.submit("echo", &bytes, &mut output).unwrap().wait().unwrap();
    assert_eq!(output.part(..done.output_bytes).to_vec(), bytes);
}

#[test]
fn buffers_may_be_older_than_the_lease_and_change_networks() {
    let platform = open_platform();
    let mut client = platform.invoker();
    let bytes = pattern(200_000);
    let mut input = client.buffer::<u8>(bytes.len()).unwrap();
    input.copy_from_slice(&bytes);
    let mut output = client.buffer::<u8>(bytes.len()).unwrap();
    for fabric in [TCP, FabricChoice::Shm, TLS] {
        client.allocate(&over(fabric, "calls.c")).unwrap();
        output.fill(0);
        client.submit("echo", &input, &mut output).unwrap().wait().unwrap();
        assert_eq!(output.to_vec(), bytes);
        client.deallocate().unwrap();
    }
}

#[test]
fn many_calls_and_threads_get_their_own_results() {
    let platform = open_platform();
    for fabric in [TCP, TLS] {
        let mut client = platform.client_with(&over(fabric, "calls.c").slots(4));
        assert_more_calls_than_slots(&client);
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let client = &client;
                scope.spawn(move || {
                    let mut own = client.buffer::<u32>(4).unwrap();
                    let mut output = [0u32; 4];
                    for number in 0..300 {
                        own.fill(thread << 24 | number);
                        client.submit("echo", &own, &mut output).unwrap().wait().unwrap();
                        assert_eq!(own.to_vec(), output);
                    }
                });
            }
        });
        assert_eq!(client.deallocate().unwrap().calls, 200 + 1200);
    }
}

#[test]
fn awaited_calls_are_completed_by_a_thread_that_sleeps() {
    let platform = open_platform();
    for fabric in [TCP, TLS] {
        let client = platform.client_with(&over(fabric, "calls.c").policy(Policy::AlwaysWarm));
        let (busy, ms) = (client.function("busy").unwrap(), [50u32]);
        block_on(async {
            client.submit_with(busy, &ms, &mut [0u8; 0], CallOptions::default()).unwrap().await.unwrap();
        });
        let inputs: Vec<[u32; 1]> = (0..100).map(|n| [n]).collect();
        let mut outputs = vec![[0u32; 1]; inputs.len()];
        block_on(async {
            let calls: Vec<_> = inputs
                .iter()
                .zip(&mut outputs)
                .map(|(input, output)| client.submit("echo", input, output).unwrap())
                .collect();
            for call in calls {
                call.await.unwrap();
            }
        });
        assert_eq!(outputs, inputs);
        // One after the other: each is submitted when nothing is under way.
        block_on(async {
            for number in 0..50u32 {
                let mut output = [0u32];
                client.submit("echo", &[number], &mut output).unwrap().await.unwrap();
                assert_eq!(output, [number]);
            }
        });
    }
}

#[test]
fn awaited_calls_that_lose_their_worker_wake_with_the_reason() {
    let platform = open_platform();
    let client = platform.client_with(&over(TCP, "faults.c").policy(Policy::AlwaysWarm));
    let worker = platform.worker();
    std::thread::scope(|scope| {
        let awaiting = scope
            .spawn(|| block_on(async { client.submit("spin", &[0u8; 4], &mut [0u8; 0]).unwrap().await }).0);
        wait_until_it_executes(worker);
        kill(worker, Signal::KILL);
        assert_fails(awaiting.join().unwrap(), Code::WorkerDied, &["SIGKILL"]);
    });
    assert_echoes(&client);
}

#[test]
fn a_killed_worker_is_replaced_and_every_call_ends() {
    let platform = open_platform();
    for fabric in [TCP, TLS] {
        let allocation = over(fabric, "faults.c").slots(16).policy(Policy::AlwaysWarm);
        let client = platform.client_with(&allocation);
        let lease = client.lease().unwrap().id.clone();
        let mut large = client.buffer::<u8>(1 << 20).unwrap();
        large.fill(7);
        for _ in 0..3 {
            let worker = platform.worker();
            let mut outputs = [[0u8; 8]; 12];
            let (first, others) = outputs.split_at_mut(1);
            let spinning = client.submit("spin", &[0u8; 4], &mut first[0]).unwrap();
            let waiting: Vec<_> =
                others.iter_mut().map(|output| client.submit("echo", b"hello", output).unwrap()).collect();
            wait_until_it_executes(worker);
            kill(worker, Signal::KILL);
            assert_fails(spinning.wait(), Code::WorkerDied, &["SIGKILL"]);
            for call in waiting {
                assert_fails(call.wait(), Code::WorkerDied, &["SIGKILL"]);
            }
            assert_echoes(&client);
            let mut output = vec![0u8; 1 << 20];
            client.submit("echo", &large, &mut output).unwrap().wait().unwrap();
            assert!(output == large.to_vec());
            assert_ne!(platform.worker(), worker);
        }
        assert_eq!(client.lease().unwrap().id, lease);
        assert_fails(call(&client, "segfault"), Code::WorkerDied, &["libfaults/segfault", "SIGSEGV"]);
        assert_echoes(&client);
    }
}

#[test]
fn calls_continue_while_workers_are_killed_repeatedly() {
    let platform = open_platform();
    let client = platform.client_with(&over(TCP, "calls.c").slots(4));
    let (stop, served) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3u32 {
            let (client, stop, served) = (&client, &stop, &served);
            scope.spawn(move || {
                let echo = client.function("echo").unwrap();
                let mut number = thread << 24;
                while !stop.load(Ordering::Relaxed) {
                    number += 1;
                    let (input, mut output) = ([number; 64], [0u32; 64]);
                    let options = CallOptions::default().repeatable(50);
                    client.submit_with(echo, &input, &mut output, options).unwrap().wait().unwrap();
                    assert_eq!(output, input);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..8 {
            let before = served.load(Ordering::Relaxed);
            wait_until("calls are served", || served.load(Ordering::Relaxed) > before + 100);
            if let [worker] = platform.workers()[..] {
                kill(worker, Signal::KILL);
                wait_until("it is gone", || !is_alive(worker));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    // A call fails while the last worker's end is not known yet.
    wait_until("calls work again", || client.submit("echo", &[1u8], &mut [0u8]).unwrap().wait().is_ok());
}

#[test]
fn a_deadline_replaces_the_worker() {
    let platform = open_platform();
    let client = platform.client_with(&over(TCP, "faults.c"));
    let (worker, mut output) = (platform.worker(), [0u8; 8]);
    let spinning = client.submit("spin", &[0u8; 4], &mut output).unwrap();
    let late = spinning.wait_deadline(Instant::now() + Duration::from_millis(50));
    assert_fails(late, Code::DeadlineExceeded, &["libfaults/spin", "deadline"]);
    assert!(!is_alive(worker), "the worker still runs");
    assert_echoes(&client);
}

#[test]
fn a_lease_is_renewed_announced_ended_and_billed() {
    let platform = open_platform();
    let mut client = with_growing_time(Duration::from_secs(2), |time| {
        let mut client = platform.invoker();
        client.allocate(&over(TCP, "calls.c").idle_timeout(time).wait(PATIENCE)).ok()?;
        let before = client.lease()?.expires_unix_ms;
        client.renew(Duration::from_secs(7200)).ok()?;
        assert!(client.lease()?.expires_unix_ms > before);
        call(&client, "echo").is_ok().then_some(client)
    });
    let lease = client.lease().unwrap().id.clone();
    wait_until("the end is announced", || !client.notices().is_empty());
    assert_fails::<()>(Err(client.notices().remove(0).error), Code::LeaseEnded, &["idle"]);
    wait_until("it ends", || platform.workers().is_empty());
    wait_until("the client knows", || client.submit("echo", b"x", &mut [0u8]).is_err());
    let late = client.submit("echo", b"x", &mut [0u8]).and_then(Invocation::wait);
    assert_fails(late, Code::LeaseEnded, &["idle"]);
    let usage = client.deallocate().unwrap();
    assert!(usage.calls >= 1 && usage.failed_calls == 0, "{usage:?}");
    let bill = platform.json(&["bill", &lease]);
    assert_eq!(bill["leases"][0]["usage"]["calls"], usage.calls);

    let mut client = platform.client_with(&over(TLS, "faults.c"));
    let mut output = [0u8; 8];
    let executing = client.submit("spin", &[0u8; 4], &mut output).unwrap();
    client.deallocate().unwrap();
    assert_fails(executing.wait(), Code::LeaseEnded, &["released"]);
    assert!(platform.workers().is_empty());
}

#[test]
fn a_killed_client_holds_nothing_any_longer() {
    let platform = open_platform();
    let name = format!("{}/spin", package("faults.c"));
    for fabric in ["tcp", "tcp+tls"] {
        let mut client = platform
            .command()
            .args(["call", &name, "--fabric", fabric])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("it has a worker", || platform.workers().len() == 1);
        let worker = platform.worker();
        wait_until_it_executes(worker);
        client.kill().unwrap();
        wait_until("the worker is gone", || !is_alive(worker));
        client.wait().unwrap();
        wait_until("the lease is gone", || platform.json(&["ps"])["leases"].as_array().unwrap().is_empty());
        let all = Allocation::new(package("calls.c")).cores(platform.cores());
        assert_echoes(&platform.client_with(&all));
    }
}

#[test]
fn an_agent_stopped_for_a_while_is_not_lost() {
    let platform = open_platform();
    let mut client = platform.client_with(&over(TCP, "calls.c"));
    // From now on it has nothing to ask of the agent.
    assert_echoes(&client);
    platform.signal(Signal::STOP);
    let (stopped, mut calls) = (Instant::now(), 1);
    // Longer than an agent is silent that runs.
    while stopped.elapsed() < Duration::from_secs(2) {
        assert_echoes(&client);
        calls += 1;
    }
    platform.signal(Signal::CONT);
    assert_eq!(client.deallocate().unwrap().calls, calls);
}

#[test]
fn a_buffer_of_a_stopped_agent_is_refused_until_resumed() {
    let platform = open_platform();
    let client = platform.client_with(&over(TCP, "calls.c").memory_bytes(512 * MIB));
    assert_echoes(&client);
    platform.signal(Signal::STOP);
    wait_until("it stands still", || thread_states(platform.pid(), "").iter().all(|&state| state == 'T'));
    for _ in 0..3 {
        let refused = client.buffer::<u8>(16 << 20).map(drop);
        assert_fails(refused, Code::AgentUnreachable, &["sign of life", "800 ms"]);
        assert_echoes(&client);
    }
    platform.signal(Signal::CONT);
    let worker = platform.worker();
    for len in [16 << 20, 48 << 20] {
        let bytes = pattern(len);
        let mut input = client.buffer::<u8>(len).unwrap();
        input.copy_from_slice(&bytes);
        let mut output = client.buffer::<u8>(len).unwrap();
        client.submit("echo", &input, &mut output).unwrap().wait().unwrap();
        assert!(output.to_vec() == bytes, "{len} bytes came back as others");
    }
    assert_eq!(platform.worker(), worker, "an answer that came late was taken for another's");
}

#[test]
fn a_dead_agent_ends_the_lease_with_an_error() {
    let mut platform = open_platform();
    let client = platform.client_with(&over(TCP, "calls.c"));
    assert_echoes(&client);
    platform.signal(Signal::KILL);
    platform.wait();
    wait_until("the lease is over", || call(&client, "noop").is_err());
    assert_fails(call(&client, "noop"), Code::AgentUnreachable, &["gone"]);
}

#[test]
fn memory_is_shared_where_possible_by_default() {
    let platform = open_platform();
    let client = platform.client_with(&Allocation::new(package("calls.c")));
    assert_eq!(client.fabrics(), [FabricChoice::Shm]);
    assert_echoes(&client);
    drop(client);
    let refused = platform.invoker().allocate(&over(FabricChoice::Ofi { provider: None }, "calls.c"));
    assert_fails(refused, Code::FabricUnavailable, &["ofi", "tcp", "shm"]);
    let closed = PlatformProcess::start();
    let refused = closed.invoker().allocate(&over(TCP, "calls.c"));
    assert_fails(refused, Code::FabricUnavailable, &["by tcp", "shm", "no network"]);
    wait_until("the grant that was of no use is free again", || {
        closed.json(&["ps"])["leases"].as_array().unwrap().is_empty()
    });
    closed.assert_serves();
    let name = format!("{}/echo", package("calls.c"));
    platform.assert_refuses(
        &["call", &name, "--output", "/dev/null", "--wait", "180s", "--fabric", "ofi:verbs"],
        Code::FabricUnavailable,
    );
    let output =
        platform.command().args(["call", &name]).env("SUBLET_FABRIC", "rdma").stdin(Stdio::null()).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(Code::InvalidArgument.number() as i32));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("SUBLET_FABRIC") && said.contains("rdma"), "{said}");
    let echoed =
        platform.pipe(&["call", &name, "--wait", "180s", "--fabric", "tcp", "--interface", "lo"], b"by wire");
    assert_eq!(echoed.stdout, b"by wire", "{}", String::from_utf8_lossy(&echoed.stderr));
    let nowhere = platform
        .pipe(&["call", &name, "--wait", "180s", "--fabric", "tcp", "--interface", "no-such-link"], b"");
    assert_eq!(nowhere.status.code(), Some(Code::FabricUnavailable.number() as i32));
}

#[test]
fn measures_a_remote_cold_start_by_the_local_clock() {
    let platform = open_platform();
    let client = platform.client_with(&over(TCP, "calls.c"));
    let cold = client.cold_start().unwrap();
    let steps = [cold.asked_ns, cold.requested_ns, cold.package_ready_ns, cold.entered_ns, cold.ready_ns];
    assert!(steps.is_sorted(), "{cold:?}");
}

#[test]
fn several_workers_have_a_connection_each() {
    let platform = open_platform();
    if platform.cores() < 2 {
        skip(Means::Cores(2), "this machine has one core");
        return;
    }
    let client = platform.client_with(&over(TLS, "calls.c").cores(2));
    let echo = client.function("echo").unwrap();
    for number in 0..200u32 {
        let mut output = [0u32];
        let options = CallOptions { worker: Some(number % 2), ..CallOptions::default() };
        client.submit_with(echo, &[number], &mut output, options).unwrap().wait().unwrap();
        assert_eq!(output, [number]);
    }
}
