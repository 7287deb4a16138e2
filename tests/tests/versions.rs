//! Processes and state of other versions: the state of the version before is read in full, a later one is refused by
//! name and stays as it is, and processes whose versions do not work together refuse each other and name both.
//!
//! The tests with the programs of the version before are in `upgrades.rs`.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use prost::Message;
use serde_json::Value;
use sublet::{Allocation, Code, Error, Invoker};
use sublet_fabric::packet::{PacketListener, PacketSocket};
use sublet_fabric::region::Region;
use sublet_proto::v1::agent_to_client::Body as Heard;
use sublet_proto::v1::client_to_agent::Body as Said;
use sublet_proto::v1::{AgentToClient, Attach, Attached, ClientToAgent};
use sublet_proto::version::{CALLS, MESSAGES};
use sublet_runtime::wire::InboxLayout;
use sublet_tests::assert_fails;
use sublet_tests::before::{access_of, state};
use sublet_tests::functions::package;
use sublet_tests::hand::{ByHand, ask};
use sublet_tests::platform::{PlatformProcess, assert_echoes, sublet};
use sublet_tests::process::{PATIENCE, wait_until};
use sublet_tests::program::ServerProgram;

const ANY_PORT: &str = "127.0.0.1:0";

/// Runs `sublet ... --json`, and returns the JSON that it prints.
#[track_caller]
fn json(manager: &Path, arguments: &[&str]) -> Value {
    let output = sublet()
        .args(arguments)
        .arg("--json")
        .env("SUBLET_MANAGER", format!("unix:{}", manager.join("manager.sock").display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A manager of this version on a state folder, which keeps all records for ever.
fn manager(folder: &Path, state: &Path) -> ServerProgram {
    let state = state.to_owned();
    ServerProgram::start("manager", folder, move || {
        let mut command = sublet();
        command.args(["manager", "--json", "--retention-ledger", "forever", "--retention-runs", "forever"]);
        command.args(["--listen", ANY_PORT, "--state"]).arg(&state);
        command
    })
}

/// An agent of this version on a state folder.
fn agent(folder: &Path, manager: &Path, state: &Path) -> ServerProgram {
    let (manager, state) = (format!("unix:{}", manager.join("manager.sock").display()), state.to_owned());
    ServerProgram::start("agent", folder, move || {
        let mut command = sublet();
        command.args(["agent", "--json", "--name", "node", "--cores", "1", "--manager", &manager]);
        command.args(["--listen", ANY_PORT, "--state"]).arg(&state);
        command
    })
}

/// Checks that everything that an earlier version listed is listed, with the same values. New fields may be beside it.
#[track_caller]
fn assert_listed(before: &Value, now: &Value, what: &str) {
    match (before, now) {
        (Value::Object(before), Value::Object(now)) => {
            for (key, value) in before {
                let found = now.get(key).unwrap_or_else(|| panic!("{what}.{key} is lost: {now:?}"));
                assert_listed(value, found, &format!("{what}.{key}"));
            }
        }
        (Value::Array(before), Value::Array(now)) => {
            assert_eq!(before.len(), now.len(), "{what}: {before:?}, and now {now:?}");
            let pairs = before.iter().zip(now).enumerate();
            pairs.for_each(|(at, (before, now))| assert_listed(before, now, &format!("{what}[{at}]")));
        }
        _ => assert_eq!(before, now, "{what}"),
    }
}

/// A list of tenants without what their running leases use.
fn settled(tenants: &Value) -> Value {
    let mut tenants = tenants.clone();
    for tenant in tenants["tenants"].as_array_mut().unwrap() {
        let fields = tenant.as_object_mut().unwrap();
        fields.retain(|name, _| !["cores", "memory_bytes", "leases", "spent_nano"].contains(&name.as_str()));
    }
    tenants
}

/// The lines of a bill, of leases that had ended or not.
fn lines(bill: &Value, has_ended: bool) -> Value {
    let all = bill["leases"].as_array().unwrap().iter();
    all.filter(|line| (line["state"] == "ended") == has_ended).cloned().collect()
}

#[test]
fn state_of_the_version_before_is_read_in_full() {
    let folder = state();
    let (of_manager, of_agent) = (folder.path().join("manager"), folder.path().join("agent"));
    let before: Value =
        serde_json::from_slice(&fs::read(folder.path().join("before.json")).unwrap()).unwrap();
    let _manager = manager(folder.path(), &of_manager);
    for (kind, arguments) in [
        ("packages", &["package", "list"][..]),
        ("tokens", &["token", "list"]),
        ("graphs", &["graph", "list"]),
        ("runs", &["graph", "history"]),
    ] {
        assert!(!before[kind].as_object().unwrap().is_empty());
        assert_listed(&before[kind], &json(&of_manager, arguments), kind);
    }
    let tenants = json(&of_manager, &["tenant", "list"]);
    assert_listed(&settled(&before["tenants"]), &settled(&tenants), "tenants");
    let alice = |tenants: &Value| tenants["tenants"][0]["spent_nano"].as_u64().unwrap();
    assert_eq!(alice(&tenants), alice(&before["tenants"]));
    assert_listed(&lines(&before["bill"], true), &lines(&json(&of_manager, &["bill"]), true), "bill");

    // The lease during which the agent was killed is billed with what its journal has.
    let _agent = agent(folder.path(), &of_manager, &of_agent);
    let held = lines(&before["bill"], false)[0].clone();
    let id = held["lease"].as_str().unwrap();
    let mut line = Value::Null;
    wait_until("the lease of the killed agent has ended", || {
        line = json(&of_manager, &["bill", id])["leases"][0].take();
        line["state"] == "ended"
    });
    let used = |line: &Value| line["usage"]["executing_ns"].as_u64().unwrap();
    assert!(used(&line) >= used(&held), "{held}, and now {line}");

    // Its tokens are what they were, and its packages can be called.
    let socket = of_manager.join("manager.sock");
    let revoked = Invoker::connect_with(access_of(&socket, &folder.path().join("bob.token")));
    assert_fails(revoked, Code::Unauthenticated, &["token", "revoked"]);
    if cfg!(target_arch = "x86_64") {
        let alice = access_of(&socket, &folder.path().join("alice.token"));
        let mut alice = Invoker::connect_with(alice).unwrap();
        alice.allocate(&Allocation::new("libcalls").wait(PATIENCE)).unwrap();
        assert_echoes(&alice);
        alice.deallocate().unwrap();
    }
}

/// The contents of a folder's files.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        match entry.is_dir() {
            true => found.extend(contents(&entry)),
            false => found.push((entry.clone(), fs::read(&entry).unwrap())),
        }
    }
    found.retain(|(path, _)| path.file_name().unwrap() != "lock");
    found.sort();
    found
}

/// Runs a command that is to fail, and ends it if it serves.
fn outcome(command: &Command) -> Output {
    let mut bounded = Command::new("timeout");
    bounded.arg(PATIENCE.as_secs().to_string()).arg(command.get_program()).args(command.get_args());
    for (variable, value) in command.get_envs() {
        match value {
            Some(value) => bounded.env(variable, value),
            None => bounded.env_remove(variable),
        };
    }
    bounded.stdin(Stdio::null()).output().unwrap()
}

/// Checks that a command has failed with `version_mismatch`, and named these.
#[track_caller]
fn assert_mismatch(output: &Output, named: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), i32::try_from(Code::VersionMismatch.number()).ok(), "{said}");
    named.iter().for_each(|name| assert!(said.contains(name), "{name:?} is not in: {said}"));
}

#[test]
fn store_of_a_later_version_is_refused_and_unchanged() {
    // A mark in the header of SQLite's file, where the format is, and the last byte of the journal's.
    for (name, at, named) in
        [("store.sqlite", 63, ["format 3", "up to 2"]), ("store.journal", 7, ["format 2", "up to 1"])]
    {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("manager");
        let mut earlier = manager(folder.path(), &state);
        json(&state, &["token", "create", "--tenant", "alice"]);
        earlier.stop();
        let mut bytes = fs::read(state.join(name)).unwrap();
        bytes[at] += 1;
        fs::write(state.join(name), bytes).unwrap();
        let before = contents(&state);
        for arguments in [&["manager"][..], &["up"], &["store", "check"], &["store", "repair"]] {
            let mut command = sublet();
            command.args(arguments);
            if matches!(arguments, ["manager"]) {
                command.args(["--listen", ANY_PORT]);
            }
            command.arg("--state").arg(&state);
            assert_mismatch(&outcome(&command), &[named[0], named[1], name]);
            assert!(contents(&state) == before, "{arguments:?} changed the files of a later version");
        }
    }
}

#[test]
fn journal_of_a_later_agent_is_refused_and_unchanged() {
    let folder = state();
    let (of_manager, of_agent) = (folder.path().join("manager"), folder.path().join("agent"));
    let _manager = manager(folder.path(), &of_manager);
    let journal = of_agent.join("leases.journal");
    let mut bytes = fs::read(&journal).unwrap();
    assert!(bytes.starts_with(b"sublet-leases-1 "));
    bytes[14] = b'2';
    fs::write(&journal, &bytes).unwrap();
    let manager = format!("unix:{}", of_manager.join("manager.sock").display());
    let mut command = sublet();
    command.args(["agent", "--name", "node", "--cores", "1", "--listen", ANY_PORT]);
    command.args(["--manager", &manager, "--state"]).arg(&of_agent);
    assert_mismatch(&outcome(&command), &["leases.journal", "form 2", "form 1"]);
    assert!(fs::read(&journal).unwrap() == bytes);
}

/// Shows a new ticket to the agent of a platform's node as a client of some version.
fn attach(platform: &PlatformProcess, calls: u32) -> Result<Heard, Error> {
    let invoker = platform.invoker();
    let deployed = platform.json(&["deploy", &package("calls.c")]);
    let access = sublet::Access::parse(&platform.address()).unwrap();
    let grant = ask(&access, deployed["name"].as_str().unwrap()).unwrap();
    let agent = ByHand::to(&grant);
    agent.say(Said::Attach(Attach { ticket: grant.ticket.clone(), calls, ..Attach::default() }));
    let heard = agent.hear();
    if heard.is_err() {
        invoker.manager().end_lease(&grant.lease.unwrap().id).unwrap();
    } else {
        agent.release();
    }
    heard
}

#[test]
fn agent_refuses_local_clients_of_another_version() {
    let platform = PlatformProcess::start();
    let versions = [CALLS, CALLS + 1].map(|version| format!("version {version}"));
    assert_fails(
        attach(&platform, CALLS + 1),
        Code::VersionMismatch,
        &[&versions[0], &versions[1], "client"],
    );
    // A client before the number was sent has version 1.
    assert_eq!(CALLS, 1, "a client without a version is to be refused from now on");
    for calls in [0, CALLS] {
        let Ok(Heard::Attached(attached)) = attach(&platform, calls) else { panic!("version {calls}") };
        assert_eq!((attached.calls, attached.messages), (CALLS, MESSAGES));
    }
    platform.assert_serves();
}

/// Answers the next ticket in place of a platform's agent.
fn answer_as_agent(socket: PathBuf, answer: Attached) -> impl FnOnce() {
    let moved = socket.with_extension("moved");
    fs::rename(&socket, &moved).unwrap();
    let listener = PacketListener::listen(&socket).unwrap();
    move || {
        let client: PacketSocket = listener.accept().unwrap();
        let packet = client.receive(Some(PATIENCE)).unwrap().unwrap();
        let Some(Said::Attach(attach)) = ClientToAgent::decode(packet.bytes.as_slice()).unwrap().body else {
            panic!("a client shows its ticket first");
        };
        assert_eq!(attach.calls, CALLS);
        let inbox = Region::create("inbox", answer.inbox_bytes).unwrap();
        let body = Some(Heard::Attached(answer));
        client.send(&AgentToClient { body }.encode_to_vec(), &[inbox.fd()]).unwrap();
        // The client closes the connection: it does not use the lease.
        assert!(client.receive(Some(PATIENCE)).unwrap().is_none());
        drop(listener);
        fs::rename(&moved, &socket).unwrap();
    }
}

#[test]
fn client_refuses_agents_that_would_misread_or_ignore_it() {
    let platform = PlatformProcess::start();
    let plain = Allocation::new(package("calls.c"));
    let inbox_bytes = InboxLayout::new(1, 8, 64 << 10).unwrap().len_bytes();
    let earlier = Attached { inbox_bytes, ticks_per_ns: 1.0, ..Attached::default() };
    let later = Attached { calls: CALLS + 1, messages: MESSAGES, ..earlier.clone() };
    for (answer, allocation, named) in [
        (later, plain.clone(), ["version 2", "version 1"]),
        (earlier, plain.clone().variable("COLOUR", "red"), ["revision 0", "revision 1"]),
    ] {
        let agent = answer_as_agent(platform.state().join("agent.sock"), answer);
        std::thread::scope(|scope| {
            let agent = scope.spawn(agent);
            assert_fails(platform.invoker().allocate(&allocation), Code::VersionMismatch, &named);
            agent.join().unwrap();
        });
        // The lease was given back, so that all cores can be leased.
        let all = plain.clone().cores(platform.cores()).wait(PATIENCE);
        let mut client = platform.client_with(&all);
        assert_echoes(&client);
        client.deallocate().unwrap();
    }
}
