//! The five verbs, on every kind of sandbox.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::Path;

use rustix::process::{Pid, kill_process};
use sublet_means::{Means, skip, spawn_until_asleep};
use sublet_proto::MAX_PACKET_BYTES;
use sublet_proto::v1::sandbox_request::Body;
use sublet_proto::v1::{SandboxIds, SandboxRequest};
use sublet_sandbox::{
    MAX_VECTOR, ProgramEnd, SandboxError, SandboxId, SandboxProgram, SandboxState, SandboxStatus, Signal,
};

use crate::support::{self, SandboxFixture, Sort};

crate::for_every_kind! {
    a_sandbox_goes_through_the_states_of_its_life
    a_vector_is_answered_in_order_and_one_of_it_can_fail_alone
    a_request_that_is_too_large_is_refused_and_harms_nobody
    what_is_no_program_is_refused_when_it_is_started_and_leaves_nothing
    an_end_says_its_status_or_its_signal
    a_program_that_has_ended_is_stopped_and_what_it_ended_of_is_awaited
    a_signal_reaches_the_program_and_kill_ends_everything
    what_is_created_and_never_started_can_be_deleted
    whoever_drops_its_sandboxes_leaves_none
    sandboxes_die_with_the_process_that_makes_them
    each_sandbox_is_a_user_that_no_other_is
    a_program_gets_its_environment_its_control_socket_and_nothing_else
}

/// Returns the number in a line of a process's status file.
fn status_of(pid: u32, line: &str) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let rest = status.lines().find_map(|found| found.strip_prefix(line)).unwrap();
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

/// Whether a process exists, even as a zombie.
fn is_there(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

fn a_sandbox_goes_through_the_states_of_its_life(sort: Sort) {
    let fixture = SandboxFixture::open(sort);
    let (spec, mut outside) = fixture.probe(&["wait", "3"]);
    let made = fixture.sandboxes.create(vec![spec]).remove(0).unwrap();
    let state = || fixture.sandboxes.state(&[made.id]).remove(0).unwrap();
    assert_eq!(state(), SandboxState { status: SandboxStatus::Created, pid: None, exit: None });
    let started = fixture.sandboxes.start(&[made.id]).remove(0).unwrap();
    assert_eq!(started.status, SandboxStatus::Running);
    assert_eq!(state(), started);
    let status = std::fs::read_to_string(format!("/proc/{}/status", started.pid.unwrap())).unwrap();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap();
    assert!(numbers.ends_with("\t2"), "the pid is the program's, as this machine numbers it: {numbers}");
    let ids = [made.id];
    let again = fixture.sandboxes.start(&ids).remove(0);
    assert!(
        matches!(again, Err(SandboxError::WrongStatus { status: SandboxStatus::Running, .. })),
        "{again:?}"
    );
    assert!(matches!(fixture.sandboxes.delete(&ids).remove(0), Err(SandboxError::WrongStatus { .. })));
    outside.write_all(b"x").unwrap();
    let stopped = fixture.wait(&made);
    assert_eq!((stopped.status, stopped.exit), (SandboxStatus::Stopped, Some(ProgramEnd::Status(3))));
    assert_eq!(fixture.wait(&made), stopped, "an end can be heard of again");
    fixture.sandboxes.delete(&ids).remove(0).unwrap();
    assert!(matches!(fixture.sandboxes.state(&ids).remove(0), Err(SandboxError::Unknown(_))));
}

fn a_vector_is_answered_in_order_and_one_of_it_can_fail_alone(sort: Sort) {
    let fixture = SandboxFixture::open(sort);
    let (mut specs, controls): (Vec<_>, Vec<_>) =
        (0..5).map(|number| fixture.probe(&["exit", &number.to_string()])).unzip();
    specs[2].program = SandboxProgram::Outside("/no/such/program".into());
    let mut made = fixture.sandboxes.create(specs);
    let error = made.remove(2).unwrap_err().to_string();
    assert!(error.contains("/no/such/program"), "{error}");
    let made: Vec<_> = made.into_iter().map(Result::unwrap).collect();
    let ids: Vec<SandboxId> = made.iter().map(|made| made.id).collect();
    assert!(fixture.sandboxes.start(&ids).iter().all(Result::is_ok));
    let exits: Vec<_> = made.iter().map(|made| fixture.wait(made).exit.unwrap()).collect();
    assert_eq!(exits, [0, 1, 3, 4].map(ProgramEnd::Status));
    assert!(fixture.sandboxes.delete(&ids).iter().all(Result::is_ok));
    drop(controls);
}

fn a_request_that_is_too_large_is_refused_and_harms_nobody(sort: Sort) {
    let fixture = SandboxFixture::open(sort);
    let tenant = fixture.start(&["wait"]);
    let asked = fixture.sandboxes.state(&[tenant.made.id; MAX_VECTOR + 1]);
    assert!(asked.iter().all(|state| matches!(state, Err(SandboxError::TooMany))), "{asked:?}");
    // A request of an operator with too many numbers: the answers would not fit into a packet.
    let request = SandboxRequest { body: Some(Body::State(SandboxIds { ids: vec![0; 10_000] })) };
    let relayed = fixture.sandboxes.relay(&request, &[]);
    assert!(matches!(relayed, Err(SandboxError::TooMany)), "{relayed:?}");
    // A request of an operator with a later version, which this version does not know.
    let unknown = fixture.sandboxes.relay(&SandboxRequest::default(), &[]);
    assert!(unknown.is_err(), "{unknown:?}");
    let (spec, _outside) = fixture.probe(&[&"long".repeat(MAX_PACKET_BYTES)]);
    let error = fixture.sandboxes.launch(vec![spec]).remove(0).unwrap_err().to_string();
    assert!(error.contains("larger than a packet"), "{error}");
    assert_eq!(fixture.sandboxes.state(&[tenant.made.id]).remove(0).unwrap().status, SandboxStatus::Running);
}

fn what_is_no_program_is_refused_when_it_is_started_and_leaves_nothing(sort: Sort) {
    let fixture = SandboxFixture::open(sort);
    let (mut spec, _outside) = fixture.probe(&[]);
    let file = fixture.folder.path().join("text");
    std::fs::write(&file, "no program").unwrap();
    spec.program = SandboxProgram::Outside(file);
    let launched = fixture.sandboxes.launch(vec![spec]).remove(0);
    if sort == Sort::Template {
        // The copy of the interpreter runs already: it fails to read the program.
        assert_eq!(fixture.wait(&launched.unwrap()).exit, Some(ProgramEnd::Status(1)));
        return;
    }
    let error = launched.unwrap_err().to_string();
    assert!(error.contains("executing"), "{error}");
}

fn an_end_says_its_status_or_its_signal(sort: Sort) {
    let fixture = SandboxFixture::open(sort);
    assert_eq!(fixture.run(&["exit", "7"]).1.to_string(), "exited with status 7");
    assert_eq!(fixture.run(&["raise", "11"]).1.to_string(), "killed by SIGSEGV");
    assert_eq!(fixture.run(&["abort"]).1.to_string(), "killed by SIGABRT");
    assert_eq!(fixture.run(&["raise", "34"]).1.to_string(), "killed by signal 34");
}

/// A sandbox whose program has ended must not be reported as running, even before its first process has reported the
/// end.
fn a_program_that_has_ended_is_stopped_and_what_it_ended_of_is_awaited(sort: Sort) {
    let fixture = SandboxFixture::open(sort);
    for (goes_on, expected) in [(true, Signal::SEGV), (false, Signal::KILL)] {
        let mut tenant = fixture.start(&["wait"]);
        assert_eq!(tenant.read_line(), "said ready");
        let program = Pid::from_raw(tenant.made.state.pid.unwrap().cast_signed()).unwrap();
        let status = std::fs::read_to_string(format!("/proc/{program}/status")).unwrap();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
        let init = Pid::from_raw(parent.trim().parse().unwrap()).unwrap();
        kill_process(init, Signal::STOP).unwrap();
        kill_process(program, Signal::SEGV).unwrap();
        // No other process has the program's socket, which is closed a little before the program ends.
        assert_eq!(tenant.read_all(), "");
        while !std::fs::read_to_string(format!("/proc/{program}/status")).unwrap().contains("State:\tZ") {
            std::thread::yield_now();
        }
        let state = std::thread::scope(|scope| {
            let looking =
                spawn_until_asleep(scope, || fixture.sandboxes.state(&[tenant.made.id]).remove(0).unwrap());
            if goes_on {
                kill_process(init, Signal::CONT).unwrap();
            }
            looking.join().unwrap()
        });
        assert_eq!(
            (state.status, state.exit),
            (SandboxStatus::Stopped, Some(ProgramEnd::Signal(expected.as_raw())))
        );
    }
}

fn a_signal_reaches_the_program_and_kill_ends_everything(sort: Sort) {
    let fixture = SandboxFixture::open(sort);
    let mut tenant = fixture.start(&["wait"]);
    assert_eq!(tenant.read_line(), "said ready");
    fixture.kill(&tenant, Signal::TERM);
    assert_eq!(fixture.wait(&tenant.made).exit, Some(ProgramEnd::Signal(15)));
    let tenant = fixture.start(&["wait"]);
    fixture.kill(&tenant, Signal::KILL);
    assert_eq!(fixture.wait(&tenant.made).exit, Some(ProgramEnd::Signal(9)));
    fixture.kill(&tenant, Signal::KILL);
}

fn what_is_created_and_never_started_can_be_deleted(sort: Sort) {
    let fixture = SandboxFixture::open(sort);
    let (spec, mut outside) = fixture.probe(&["wait"]);
    let made = fixture.sandboxes.create(vec![spec]).remove(0).unwrap();
    fixture.sandboxes.delete(&[made.id]).remove(0).unwrap();
    let mut nothing = String::new();
    std::io::Read::read_to_string(&mut outside, &mut nothing).unwrap();
}

fn whoever_drops_its_sandboxes_leaves_none(sort: Sort) {
    let fixture = SandboxFixture::open(sort);
    let mut tenants: Vec<_> = (0..3).map(|_| fixture.start(&["survive"])).collect();
    for tenant in &mut tenants {
        for _ in 0..3 {
            assert_eq!(tenant.read_line(), "said hidden");
        }
    }
    let pids: Vec<_> = tenants.iter().map(|tenant| tenant.made.state.pid.unwrap()).collect();
    assert!(pids.iter().all(|&pid| is_there(pid)));
    drop(fixture);
    assert!(!pids.iter().any(|&pid| is_there(pid)));
    tenants.iter_mut().for_each(|tenant| drop(tenant.read_all()));
}

fn sandboxes_die_with_the_process_that_makes_them(sort: Sort) {
    let fixture = SandboxFixture::open(sort);
    let mut tenant = fixture.start(&["survive"]);
    for _ in 0..3 {
        assert_eq!(tenant.read_line(), "said hidden");
    }
    let first = status_of(tenant.made.state.pid.unwrap(), "PPid:");
    let spawner = status_of(first, "PPid:");
    kill_process(Pid::from_raw(spawner.cast_signed()).unwrap(), Signal::KILL).unwrap();
    assert_eq!(tenant.read_all(), "", "a surviving process would have the socket");
}

fn each_sandbox_is_a_user_that_no_other_is(sort: Sort) {
    if !support::is_root() {
        skip(Means::Root, "only root can be several users");
        return;
    }
    let fixture = SandboxFixture::open(sort);
    let tenants: Vec<_> = (0..3).map(|_| fixture.start(&["wait"])).collect();
    for id in ["Uid:", "Gid:"] {
        let all = tenants.iter().map(|tenant| status_of(tenant.made.state.pid.unwrap(), id));
        let different: std::collections::BTreeSet<_> = all.collect();
        assert!(different.len() == 3 && !different.contains(&0), "{id} {different:?}");
    }
}

fn a_program_gets_its_environment_its_control_socket_and_nothing_else(sort: Sort) {
    let fixture = SandboxFixture::open(sort);
    let (said, _) = fixture.run_with(&["show"], |spec| spec.limits.cores = vec![0]);
    let lines = |word: &str| -> Vec<String> {
        said.lines().filter_map(|line| line.strip_prefix(word)).map(str::to_owned).collect()
    };
    assert_eq!(lines("said env "), ["GIVEN=yes"]);
    let descriptors = lines("said fd ");
    assert_eq!(descriptors.len(), 3, "{said}");
    assert!(descriptors[0].starts_with("0 socket") && descriptors[1].starts_with("1 pipe"), "{said}");
    let agents = std::fs::read_link("/proc/self/fd/2").unwrap();
    assert!(!descriptors.iter().any(|own| own.ends_with(agents.to_str().unwrap())), "{agents:?}: {said}");
    assert_eq!(lines("said user "), ["1000 pid 2 parent 1"]);
    assert!(!support::is_bounded("cpuset") || lines("said cores ") == ["1"], "{said}");
}
