//! Functions, workers and clients that fail while calls run: every call ends and says why, nothing is held any longer
//! than its owner lives, and the next call works.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sublet::{Allocation, Buffer, Code, Completion, Error, Invocation, Invoker, Policy};
use sublet_fabric::packet::PacketSocket;
use sublet_means::{Means, skip, spawn_until_asleep};
use sublet_tests::assert_fails;
use sublet_tests::functions::package;
use sublet_tests::platform::{
    PlatformProcess, assert_echoes, assert_memory_bomb_ends_alone, executing_process as process, kill,
};
use sublet_tests::process::{
    PATIENCE, is_alive, is_mapped_by_anybody, memory_files, open_descriptors, wait_until, with_growing_time,
};

const MIB: u64 = 1 << 20;

fn call(client: &Invoker, function: &str) -> Result<Completion, Error> {
    client.submit(function, &[0u8; 0], &mut [0u8; 8])?.wait()
}

/// A buffer that tells when a call of `spin` with it has begun, and that call.
fn flag(client: &Invoker) -> Buffer<u32> {
    let mut flag = client.buffer::<u32>(1).unwrap();
    flag.set(0, 0);
    flag
}

fn wait_for_flag(flag: &Buffer<u32>) {
    wait_until("the call begins", || flag.atomic(0).load(std::sync::atomic::Ordering::Relaxed) == 1);
}

#[test]
fn a_crash_names_the_function_and_the_next_call_works() {
    let platform = PlatformProcess::start();
    let client = platform.client("faults.c");
    let lease = client.lease().unwrap().id.clone();
    let mut faults = vec![("segfault", "SIGSEGV"), ("leave", "status 3")];
    if cfg!(target_arch = "x86_64") {
        // Elsewhere a division by zero is 0.
        faults.push(("divide", "SIGFPE"));
    }
    for (function, cause) in faults {
        let name = format!("libfaults/{function}");
        assert_fails(call(&client, function), Code::WorkerDied, &[&name, cause]);
        assert_echoes(&client);
    }
    assert_eq!(client.lease().unwrap().id, lease);
    platform.assert_serves();
}

#[test]
fn a_function_that_never_returns_is_stopped_at_its_deadline() {
    let platform = PlatformProcess::start();
    let client = platform.client("faults.c");
    let mut output = [0u8; 8];
    let spinning = client.submit("spin", &[0u8; 0], &mut output).unwrap();
    let worker = platform.worker();
    let late = spinning.wait_deadline(Instant::now() + Duration::from_millis(50));
    assert_fails(late, Code::DeadlineExceeded, &["libfaults/spin", "deadline"]);
    assert!(!is_alive(worker), "the worker still runs");
    assert_echoes(&client);
    let function = client.function("spin").unwrap();
    let deadline = Some(Instant::now() + Duration::from_millis(50));
    let options = sublet::CallOptions { deadline, ..Default::default() };
    let late = client.submit_with(function, &[0u8; 0], &mut output, options).unwrap().wait();
    assert_fails(late, Code::DeadlineExceeded, &["libfaults/spin"]);
    assert_echoes(&client);
}

#[test]
fn a_function_that_returns_before_its_deadline_is_not_disturbed() {
    let platform = PlatformProcess::start();
    let client = platform.client("calls.c");
    let (worker, mut output) = (platform.worker(), [0u8; 5]);
    let call = client.submit("echo", b"hello", &mut output).unwrap();
    assert_eq!(call.wait_deadline(Instant::now() + PATIENCE).unwrap().output_bytes, 5);
    assert_eq!(platform.worker(), worker);
}

#[test]
fn exceptions_end_the_call_and_not_the_worker() {
    let platform = PlatformProcess::start();
    let client = platform.client("throws.cpp");
    let worker = process(&client);
    let thrown = call(&client, "throw_exception");
    assert_fails(thrown, Code::FunctionFailed, &["libthrows/throw_exception", "the ink is dry"]);
    assert_fails(call(&client, "throw_int"), Code::FunctionFailed, &["libthrows/throw_int", "exception"]);
    assert_echoes(&client);
    assert_eq!(process(&client), worker);
}

#[test]
fn cpp_out_of_memory_ends_only_the_call() {
    let platform = PlatformProcess::start();
    let allocation = Allocation::new(package("throws.cpp")).memory_bytes(64 * MIB);
    let client = platform.client_with(&allocation);
    let worker = process(&client);
    let lease = (64 * MIB).to_string();
    assert_fails(call(&client, "devour"), Code::MemoryExceeded, &["libthrows/devour", &lease]);
    assert_echoes(&client);
    assert_eq!(process(&client), worker);
}

#[test]
fn unchecked_out_of_memory_ends_the_worker_with_a_hint() {
    let platform = PlatformProcess::start();
    let client = platform.client_with(&Allocation::new(package("faults.c")).memory_bytes(64 * MIB));
    assert_fails(call(&client, "devour"), Code::WorkerDied, &["libfaults/devour", "SIGSEGV", "64 MiB"]);
    assert_echoes(&client);
}

#[test]
fn a_memory_bomb_is_killed_alone_with_an_error() {
    if !rustix::process::getuid().is_root() {
        skip(Means::Root, "without control groups there is no limit of a sandbox's memory");
        return;
    }
    let bomb = Allocation::new(package("faults.c")).memory_bytes(64 * MIB);
    assert_memory_bomb_ends_alone(&PlatformProcess::start(), &bomb);
}

#[test]
fn a_function_says_itself_why_it_failed() {
    let platform = PlatformProcess::start();
    let mut client = platform.client("faults.c");
    let message =
        assert_fails(call(&client, "refuse"), Code::FunctionFailed, &["libfaults/refuse", "the ink is dry"]);
    assert!(!message.contains("second"), "{message}");
    let message = assert_fails(call(&client, "refuse_at_length"), Code::FunctionFailed, &[]);
    assert_eq!(message.matches('x').count(), 256, "{message}");
    assert_fails(call(&client, "refuse_silently"), Code::FunctionFailed, &["libfaults/refuse_silently"]);
    assert_echoes(&client);
    let usage = client.deallocate().unwrap();
    assert_eq!((usage.calls, usage.failed_calls), (4, 3));
}

#[test]
fn a_worker_killed_during_a_call_is_replaced() {
    let platform = PlatformProcess::start();
    let client = platform.client("faults.c");
    let lease = client.lease().unwrap().id.clone();
    let (flag, mut output) = (flag(&client), [0u8; 8]);
    let spinning = client.submit("spin", &flag, &mut output).unwrap();
    wait_for_flag(&flag);
    let worker = platform.worker();
    kill(worker, Signal::KILL);
    assert_fails(spinning.wait(), Code::WorkerDied, &["libfaults/spin", "SIGKILL"]);
    assert_echoes(&client);
    assert_ne!(platform.worker(), worker);
    assert_eq!(client.lease().unwrap().id, lease);
}

#[test]
fn the_next_call_replaces_a_killed_worker() {
    let platform = PlatformProcess::start();
    let client = platform.client("faults.c");
    for _ in 0..3 {
        assert_echoes(&client);
        let worker = platform.worker();
        kill(worker, Signal::KILL);
        // A call fails while the worker's end is not known yet; a later call goes to the new worker.
        wait_until("calls work again", || client.submit("echo", &[1u8], &mut [0u8]).unwrap().wait().is_ok());
        assert_ne!(platform.worker(), worker);
    }
}

#[test]
fn every_call_in_flight_ends_when_its_worker_dies() {
    let platform = PlatformProcess::start();
    let client = platform.client_with(&Allocation::new(package("faults.c")).slots(16));
    let (flag, mut outputs) = (flag(&client), [[0u8; 8]; 12]);
    let (first, others) = outputs.split_at_mut(1);
    let spinning = client.submit("spin", &flag, &mut first[0]).unwrap();
    let mut waiting: Vec<_> =
        others.iter_mut().map(|output| client.submit("echo", b"hello", output).unwrap()).collect();
    wait_for_flag(&flag);
    assert!(!waiting.iter_mut().any(Invocation::is_ready));
    kill(platform.worker(), Signal::KILL);
    assert_fails(spinning.wait(), Code::WorkerDied, &["SIGKILL"]);
    for call in waiting {
        assert_fails(call.wait(), Code::WorkerDied, &["SIGKILL"]);
    }
    assert_echoes(&client);
}

#[test]
fn a_killed_client_holds_nothing_any_longer() {
    let platform = PlatformProcess::start();
    platform.assert_serves();
    let descriptors = open_descriptors(platform.pid());
    let mut client = Command::new(env!("CARGO_BIN_EXE_holding-client"))
        .args([platform.address(), package("faults.c")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(client.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "3 calls\n");
    let worker = platform.worker();
    let buffers = memory_files(worker, "sublet-buffers");
    assert!(!buffers.is_empty() && memory_files(client.id(), "sublet-buffers") == buffers);
    let inboxes = memory_files(worker, "sublet-inbox");
    assert_eq!(inboxes.len(), 1);

    client.kill().unwrap();
    let dead = wait_until("the worker is gone", || !is_alive(worker));
    client.wait().unwrap();
    let reclaimed =
        wait_until("the lease is gone", || platform.json(&["ps"])["leases"].as_array().unwrap().is_empty());
    println!("worker dead after {dead:?}, lease reclaimed {reclaimed:?} later");
    let ended = &platform.json(&["ps", "--all"])["leases"][0];
    assert_eq!((&ended["state"], &ended["end_reason"]), (&"ended".into(), &"the client is gone".into()));
    assert_eq!(ended["usage"]["calls"], 1);
    // A memory file without a name is freed with its last user.
    for buffer in &buffers {
        assert!(!is_mapped_by_anybody("sublet-buffers", buffer));
    }
    assert!(!is_mapped_by_anybody("sublet-inbox", &inboxes[0]));
    wait_until("the agent has closed what it held", || open_descriptors(platform.pid()) <= descriptors);
    let all = Allocation::new(package("calls.c")).cores(platform.cores());
    assert_echoes(&platform.client_with(&all));
}

#[test]
fn calls_in_flight_end_when_the_lease_is_given_back() {
    let platform = PlatformProcess::start();
    let mut client = platform.client("faults.c");
    let (flag, mut outputs) = (flag(&client), [[0u8; 8]; 2]);
    let [first, second] = &mut outputs;
    let executing = client.submit("spin", &flag, first).unwrap();
    let waiting = client.submit("echo", b"hello", second).unwrap();
    wait_for_flag(&flag);
    client.deallocate().unwrap();
    assert_fails(executing.wait(), Code::LeaseEnded, &["released"]);
    assert_fails(waiting.wait(), Code::LeaseEnded, &["released"]);
    assert!(platform.workers().is_empty());
    client.allocate(&Allocation::new(package("faults.c"))).unwrap();
    assert_echoes(&client);
}

#[test]
fn a_lease_that_expires_ends_its_calls() {
    let platform = PlatformProcess::start();
    let mut client = with_growing_time(Duration::from_millis(1200), |time| {
        let mut client = platform.invoker();
        client.allocate(&Allocation::new(package("faults.c")).timeout(time).wait(PATIENCE)).ok()?;
        call(&client, "echo").is_ok().then_some(client)
    });
    let lease = client.lease().unwrap().id.clone();
    assert_fails(call(&client, "spin"), Code::LeaseExpired, &[&lease]);
    assert!(platform.workers().is_empty());
    assert_fails(call(&client, "echo"), Code::LeaseExpired, &[&lease]);
    assert!(client.deallocate().unwrap().allocated_ns >= 1_000_000_000);
    client.allocate(&Allocation::new(package("faults.c"))).unwrap();
    assert_echoes(&client);
}

#[test]
fn two_clients_at_once_do_not_disturb_each_other() {
    let platform = PlatformProcess::start();
    if platform.cores() < 2 {
        skip(Means::Cores(2), "this machine has one core");
        return;
    }
    let (calling, broken) = (platform.client("calls.c"), platform.client("faults.c"));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            for _ in 0..3 {
                assert_fails(call(&broken, "segfault"), Code::WorkerDied, &["SIGSEGV"]);
                assert_echoes(&broken);
            }
        });
        let worker = process(&calling);
        while !other.is_finished() {
            assert_echoes(&calling);
        }
        assert_eq!(process(&calling), worker);
    });
}

#[test]
fn garbage_on_the_agents_socket_hurts_nobody_but_its_sender() {
    let platform = PlatformProcess::start();
    let client = platform.client("calls.c");
    let silent = PacketSocket::connect(platform.state().join("agent.sock")).unwrap();
    for garbage in [&b"\xff\xff\xff\xff"[..], &[0; 1], &[0x0a, 0x7f, 1, 2, 3], &[7; 60_000]] {
        let socket = PacketSocket::connect(platform.state().join("agent.sock")).unwrap();
        socket.send(garbage, &[]).unwrap();
        let answer = socket.receive(Some(PATIENCE)).unwrap().expect("the agent says why");
        assert!(!answer.bytes.is_empty());
        assert!(socket.receive(Some(PATIENCE)).unwrap().is_none(), "the connection stays open");
        assert_echoes(&client);
    }
    platform.assert_serves();
    drop(silent);
}

#[test]
fn garbage_on_the_managers_socket_hurts_nobody_but_its_sender() {
    let platform = PlatformProcess::start();
    let socket = || UnixStream::connect(platform.state().join("manager.sock")).unwrap();
    let silent = socket();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 100_000], &[preface, &[0xff; 100][..]].concat()] {
        let mut socket = socket();
        // The manager may hang up before it has all of it.
        let _ = socket.write_all(garbage);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        if let Err(error) = socket.read_to_end(&mut Vec::new()) {
            assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "the connection stays open");
        }
    }
    platform.assert_serves();
    drop(silent);
}

#[test]
fn a_sleeping_warm_client_survives_its_workers_death() {
    let platform = PlatformProcess::start();
    let client = platform.client_with(&Allocation::new(package("faults.c")).policy(Policy::AlwaysWarm));
    let (flag, mut output) = (flag(&client), [0u8; 8]);
    let spinning = client.submit("spin", &flag, &mut output).unwrap();
    wait_for_flag(&flag);
    std::thread::scope(|scope| {
        let waiting = spawn_until_asleep(scope, || spinning.wait());
        kill(platform.worker(), Signal::KILL);
        assert_fails(waiting.join().unwrap(), Code::WorkerDied, &["SIGKILL"]);
    });
    assert_echoes(&client);
}
