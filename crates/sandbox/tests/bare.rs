//! The five verbs on the bare process kind.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use sublet_sandbox::bare::{Exit, Id, Kind, SandboxError, Sandboxes, Signal, Spec, State, Status};

/// A shell that executes `script` with one end of a connection as its descriptor 0; the other end is returned.
fn shell(script: &str) -> (Spec, UnixStream) {
    let (outside, inside) = UnixStream::pair().unwrap();
    let spec = Spec {
        kind: Kind::Process,
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        env: vec![("GIVEN".into(), "yes".into())],
        control: OwnedFd::from(inside),
    };
    (spec, outside)
}

fn create(sandboxes: &mut Sandboxes, script: &str) -> (Id, UnixStream) {
    let (spec, outside) = shell(script);
    (sandboxes.create(vec![spec]).remove(0).unwrap(), outside)
}

fn start(sandboxes: &mut Sandboxes, script: &str) -> (Id, UnixStream) {
    let (id, outside) = create(sandboxes, script);
    sandboxes.start(&[id]).remove(0).unwrap();
    (id, outside)
}

fn wait(sandboxes: &mut Sandboxes, id: Id) -> State {
    if let Some(fd) = sandboxes.exit_fd(id) {
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
    }
    sandboxes.state(&[id]).remove(0).unwrap()
}

fn exit_of(script: &str) -> Exit {
    let mut sandboxes = Sandboxes::new();
    let (id, _outside) = start(&mut sandboxes, script);
    wait(&mut sandboxes, id).exit.unwrap()
}

/// Neither there nor waiting to be reaped by whoever adopted it.
fn is_alive(pid: &str) -> bool {
    let mut stat = String::new();
    let read = File::open(format!("/proc/{pid}/stat")).and_then(|mut file| file.read_to_string(&mut stat));
    read.is_ok() && !stat.contains(") Z ")
}

fn assert_dies(pid: &str) {
    let start = Instant::now();
    while is_alive(pid) {
        assert!(start.elapsed() < Duration::from_secs(10), "process {pid} lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn read_line(stream: &mut UnixStream) -> String {
    let mut bytes = [0; 64];
    let count = stream.read(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes[..count]).trim().to_owned()
}

#[test]
fn a_sandbox_goes_through_the_states_of_its_life() {
    let mut sandboxes = Sandboxes::new();
    let (id, mut outside) = create(&mut sandboxes, "read x; exit 3");
    let state = |sandboxes: &mut Sandboxes| sandboxes.state(&[id]).remove(0).unwrap();
    assert_eq!(state(&mut sandboxes), State { status: Status::Created, pid: None, exit: None });
    assert!(sandboxes.exit_fd(id).is_none());
    sandboxes.start(&[id]).remove(0).unwrap();
    assert_eq!(state(&mut sandboxes).status, Status::Running);
    assert!(matches!(sandboxes.start(&[id]).remove(0), Err(SandboxError::WrongStatus { .. })));
    assert!(matches!(sandboxes.delete(&[id]).remove(0), Err(SandboxError::WrongStatus { .. })));
    outside.write_all(b"go\n").unwrap();
    let stopped = wait(&mut sandboxes, id);
    assert_eq!((stopped.status, stopped.exit), (Status::Stopped, Some(Exit::Status(3))));
    assert_eq!(wait(&mut sandboxes, id), stopped, "an end can be heard of again");
    sandboxes.delete(&[id]).remove(0).unwrap();
    assert!(matches!(sandboxes.state(&[id]).remove(0), Err(SandboxError::Unknown(_))));
}

#[test]
fn one_of_a_vector_can_fail_alone() {
    let mut sandboxes = Sandboxes::new();
    let (good, _a) = shell("true");
    let (mut bad, _b) = shell("true");
    bad.program = "/no/such/program".into();
    let ids: Vec<Id> = sandboxes.create(vec![bad, good]).into_iter().map(Result::unwrap).collect();
    let started = sandboxes.start(&ids);
    assert!(started[0].as_ref().unwrap_err().to_string().contains("/no/such/program"));
    assert!(started[1].is_ok());
    assert_eq!(wait(&mut sandboxes, ids[1]).exit, Some(Exit::Status(0)));
    assert!(sandboxes.delete(&ids).iter().all(Result::is_ok));
}

#[test]
fn an_end_says_its_status_or_its_signal() {
    assert_eq!(exit_of("exit 7").to_string(), "exited with status 7");
    assert_eq!(exit_of("kill -SEGV $$").to_string(), "killed by SIGSEGV");
    assert_eq!(exit_of("kill -34 $$").to_string(), "killed by signal 34");
}

#[test]
fn kill_ends_all_that_the_sandbox_has_started() {
    let mut sandboxes = Sandboxes::new();
    let (id, mut outside) = start(&mut sandboxes, "sleep 1000 <&- & echo $! >&0; wait");
    let grandchild = read_line(&mut outside);
    assert!(is_alive(&grandchild));
    sandboxes.kill(&[id], Signal::KILL).remove(0).unwrap();
    assert_eq!(wait(&mut sandboxes, id).exit.unwrap().to_string(), "killed by SIGKILL");
    assert_dies(&grandchild);
    sandboxes.kill(&[id], Signal::KILL).remove(0).unwrap();
}

#[test]
fn what_a_program_leaves_behind_goes_with_it() {
    let mut sandboxes = Sandboxes::new();
    let (id, mut outside) = start(&mut sandboxes, "sleep 1000 <&- & echo $! >&0");
    let left = read_line(&mut outside);
    assert_eq!(wait(&mut sandboxes, id).exit, Some(Exit::Status(0)));
    assert_dies(&left);
}

#[test]
fn a_dropped_table_leaves_no_process() {
    let mut sandboxes = Sandboxes::new();
    let (id, _outside) = start(&mut sandboxes, "exec sleep 1000");
    let pid = sandboxes.state(&[id]).remove(0).unwrap().pid.unwrap().to_string();
    assert!(is_alive(&pid));
    drop(sandboxes);
    assert!(!is_alive(&pid));
}

#[test]
fn a_program_gets_its_control_socket_and_little_else() {
    let mut sandboxes = Sandboxes::new();
    let (id, mut outside) = start(&mut sandboxes, "env >&0; ls /proc/$$/fd >&0; true");
    wait(&mut sandboxes, id);
    let mut said = String::new();
    outside.read_to_string(&mut said).unwrap();
    assert!(said.contains("GIVEN=yes\n"));
    assert!(!said.contains("HOME=") && !said.contains("CARGO"), "{said}");
    assert!(said.ends_with("\n0\n1\n10\n2\n") || said.ends_with("\n0\n1\n2\n"), "{said}");
}
