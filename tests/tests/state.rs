//! `sublet up` and its folder: who may have it, what is left behind and found again, how it stops, and what happens
//! when its disk is full.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::Ordering;

use rustix::process::Signal;
use sublet::{Code, Invocation};
use sublet_means::{Means, skip};
use sublet_tests::assert_fails;
use sublet_tests::functions::library;
use sublet_tests::platform::{PlatformProcess, assert_echoes, programs, sublet};
use sublet_tests::process::{is_alive, wait_until};

fn exit_status(code: Code) -> Option<i32> {
    i32::try_from(code.number()).ok()
}

/// Starts a second `sublet up`, which is to fail, and gives what it said.
fn up_fails(state: &Path, code: Code) -> String {
    let output = sublet().args(["up", "--state"]).arg(state).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), exit_status(code), "{said}");
    said
}

#[test]
fn a_second_up_on_the_same_folder_is_refused() {
    let platform = PlatformProcess::start();
    let client = platform.client("calls.c");
    let said = up_fails(platform.state(), Code::AlreadyRunning);
    assert!(said.contains(&platform.pid().to_string()), "{said}");
    assert!(said.contains(platform.state().to_str().unwrap()), "{said}");
    assert_echoes(&client);
    drop(client);
    platform.assert_serves();
}

#[test]
fn remains_of_a_killed_up_are_removed_except_its_bills() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let mut platform = PlatformProcess::start_in(&state);
    let (mut client, mut output) = (platform.client("faults.c"), [0u8; 8]);
    let lease = client.lease().unwrap().id.clone();
    let spinning = client.submit("spin", &[0u8; 0], &mut output).unwrap();
    let worker = platform.worker();
    // A lease that is killed within its first second may be missing from the bill.
    wait_until("the lease is on the bill", || {
        !platform.json(&["bill"])["leases"].as_array().unwrap().is_empty()
    });
    platform.signal(Signal::KILL);
    platform.wait();
    assert_fails(spinning.wait(), Code::AgentUnreachable, &["agent"]);
    wait_until("the worker dies with its agent", || !is_alive(worker));
    assert!(state.join("manager.sock").exists() && state.join("agent.sock").exists());
    assert_fails(client.deallocate(), Code::AgentUnreachable, &["agent"]);

    let platform = PlatformProcess::start_in(&state);
    let client = platform.client("faults.c");
    assert_echoes(&client);
    let billed = platform.json(&["bill"]);
    let leases: Vec<_> = billed["leases"].as_array().unwrap().iter().map(|line| &line["lease"]).collect();
    assert!(leases.contains(&&lease.as_str().into()), "{leases:?}");
    assert_eq!(platform.json(&["ps"])["packages"][0]["name"], "libfaults");
}

#[test]
fn stale_sockets_and_unfinished_packages_are_cleared_away() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    for socket in ["manager.sock", "agent.sock"] {
        drop(UnixListener::bind(state.join(socket)).unwrap());
    }
    fs::write(state.join("lock"), "4194304").unwrap();
    let unfinished = state.join("packages/.unfinished-package");
    fs::create_dir_all(&unfinished).unwrap();
    let platform = PlatformProcess::start_in(state);
    assert!(!unfinished.exists());
    platform.assert_serves();
}

#[test]
fn what_is_no_socket_is_not_cleared_away() {
    let folder = tempfile::tempdir().unwrap();
    let precious = folder.path().join("manager.sock");
    fs::write(&precious, "precious").unwrap();
    assert!(up_fails(folder.path(), Code::InvalidArgument).contains("manager.sock"));
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
}

#[test]
fn sigterm_and_sigint_end_leases_in_order() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let mut platform = PlatformProcess::start_in(&state);
        let (client, mut outputs) = (platform.client("faults.c"), [[0u8; 8]; 2]);
        let lease = client.lease().unwrap().id.clone();
        let [first, second] = &mut outputs;
        let mut flag = client.buffer::<u32>(1).unwrap();
        flag.set(0, 0);
        let calls = [first, second].map(|output| client.submit("spin", &flag, output).unwrap());
        wait_until("a call begins", || flag.atomic(0).load(Ordering::Acquire) == 1);
        let worker = platform.worker();
        platform.signal(signal);
        assert_eq!(platform.wait().code(), Some(0), "{signal:?}");
        assert!(!is_alive(worker));
        for call in calls {
            assert_fails(call.wait(), Code::LeaseEnded, &["stopping"]);
        }
        let late = client.submit("echo", b"hello", &mut [0u8; 5]).and_then(Invocation::wait);
        assert_fails(late, Code::LeaseEnded, &["stopping"]);
        assert!(!state.join("manager.sock").exists() && !state.join("agent.sock").exists());

        let again = PlatformProcess::start_in(&state);
        let line = again.json(&["bill", &lease])["leases"][0].take();
        assert_eq!(line["state"], "ended");
        assert!(line["usage"]["executing_ns"].as_u64() > Some(0), "{line}");
        again.assert_serves();
    }
}

/// Runs in a mount namespace of its own, in which the state folder is a disk of 16 MiB. Prints one line for each step:
/// its name, the exit status, what was said.
const FULL_DISK: &str = r#"
mount -t tmpfs -o size=16m tmpfs "$SUBLET_STATE" || exit 77
step() {
    name=$1
    shift
    said=$("$@" 2>&1 >/dev/null)
    echo "$name $? $said"
}
lends() {
    "$SUBLET" ps | grep -q lending
}
wait_until() {
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        test $tries -lt 3600 || exit 1
        sleep 0.05
    done
}
"$SUBLET" up >/dev/null &
up=$!
wait_until lends
step deploy "$SUBLET" deploy "$SMALL" --json
step too-large "$SUBLET" deploy "$LARGE" --json
step call "$SUBLET" call libcalls/echo --input "$SMALL" --output /dev/null --json
dd if=/dev/zero of="$SUBLET_STATE/filler" bs=4k >/dev/null 2>&1
step full "$SUBLET" deploy "$OTHER" --json
step ps "$SUBLET" ps --json
step full-call "$SUBLET" call libcalls/echo --input "$SMALL" --output /dev/null --json
rm "$SUBLET_STATE/filler"
step space "$SUBLET" deploy "$OTHER" --json
step call-again "$SUBLET" call libcalls/echo --input "$SMALL" --output /dev/null --json
kill -TERM $up
wait $up
echo "stopped $?"
dd if=/dev/zero of="$SUBLET_STATE/filler" bs=4k >/dev/null 2>&1
"$SUBLET" manager --listen 127.0.0.1:0 --tls-mode off >/dev/null &
manager=$!
wait_until "$SUBLET" ps
step read-only-list "$SUBLET" package list --json
step read-only-bill "$SUBLET" bill --json
step read-only-deploy "$SUBLET" deploy "$SMALL" --json
step read-only-token "$SUBLET" token create --tenant alice
rm "$SUBLET_STATE/filler"
wait_until "$SUBLET" token create --tenant alice
step written "$SUBLET" deploy "$SMALL" --json
kill -TERM $manager
wait $manager
echo "manager-stopped $?"
rm -r "$SUBLET_STATE"/*
dd if=/dev/zero of="$SUBLET_STATE/filler" bs=4k >/dev/null 2>&1
step up-new timeout --signal KILL 20 "$SUBLET" up
"#;

/// Whether this user may make mount namespaces.
fn may_mount() -> bool {
    let tried = Command::new("unshare").args(["--user", "--map-root-user", "--mount", "true"]).output();
    tried.is_ok_and(|output| output.status.success())
}

/// Runs [`FULL_DISK`] in namespaces of its own, on a state folder and a package that is larger than the disk.
fn run_full_disk(state: &Path, large: &Path) -> Output {
    let namespaces =
        ["--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"];
    Command::new("unshare")
        .args(namespaces)
        .args(["sh", "-c", FULL_DISK])
        .env("SUBLET", sublet().get_program())
        .env("SUBLET_WORKER", programs().join("sublet-worker"))
        .env("SUBLET_STATE", state)
        .env("SMALL", library("calls.c"))
        .env("OTHER", library("faults.c"))
        .env("LARGE", large)
        .env_remove("SUBLET_MANAGER")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn a_full_disk_is_reported_and_everything_else_goes_on() {
    if !may_mount() {
        skip(Means::Namespaces, "this user may not make a mount namespace");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    fs::create_dir(&state).unwrap();
    // A package that alone is larger than the disk: a function, and data.
    let large = folder.path().join("large");
    fs::create_dir(&large).unwrap();
    fs::copy(library("calls.c"), large.join("libcalls.so")).unwrap();
    fs::write(large.join("sublet.toml"), "name = 'large'\nlibrary = 'libcalls.so'\n").unwrap();
    fs::write(large.join("data"), vec![1; 24 << 20]).unwrap();
    let output = run_full_disk(&state, &large);
    let said = String::from_utf8(output.stdout).unwrap();
    if output.status.code() == Some(77) {
        skip(
            Means::Namespaces,
            format_args!("this user may not mount: {}", String::from_utf8_lossy(&output.stderr)),
        );
        return;
    }
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    let step = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let line = line.unwrap_or_else(|| panic!("there was no step {name}"));
        let (status, words) = line.split_once(' ').unwrap_or((line, ""));
        (status.parse::<i32>().unwrap(), words.to_owned())
    };
    let working = ["deploy", "call", "ps", "space", "call-again", "stopped"];
    for works in working.into_iter().chain(["read-only-list", "read-only-bill", "written", "manager-stopped"])
    {
        let (status, words) = step(works);
        assert_eq!(status, 0, "{works}: {words}");
    }
    for full in ["too-large", "full", "read-only-deploy", "read-only-token", "up-new"] {
        let (status, words) = step(full);
        assert_eq!(Some(status), exit_status(Code::StoreFull), "{full}: {words}");
        assert!(words.contains("full"), "{full}: {words}");
    }
    // A command that needs no free space may work; a command that fails names the reason.
    let (status, words) = step("full-call");
    assert!([Some(0), exit_status(Code::StoreFull)].contains(&Some(status)), "full-call: {status} {words}");
}
