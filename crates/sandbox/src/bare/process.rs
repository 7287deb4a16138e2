//! The bare process: the cheapest sandbox, isolated by what its program does to itself before foreign code runs.
//!
//! `create` keeps the specification and forks nothing; `start` does. There would be nothing to gain from a process
//! that waits: the program is started with `vfork` and `exec` (std's `posix_spawn` path, which is why no closure runs
//! in the child), and what takes time, loading the functions, belongs to the program. A pool of started programs
//! that wait for their control message is the caller's way to hide the rest.
//!
//! The program finds its control socket as descriptor 0, writes what it prints to this process's standard error,
//! holds no other descriptor, and inherits of the environment only `PATH`, `LANG` and what begins with `SUBLET_`
//! (so no secret may ever be put into such a variable). It leads a process group of its own, by which it is killed
//! with everything that it has started and that has not left the group.

#![allow(unsafe_code)]

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Once;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd, retry_on_intr};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, pidfd_open, waitid,
};
use rustix::time::Timespec;

use super::{Exit, Id, SandboxError, Spec, State, Status};

/// How long a dropped sandbox waits for the process that it has killed.
const LONGEST_END: Duration = Duration::from_secs(10);

/// A sandbox of the bare kind. Killed and reaped when it is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Created(Box<Spec>),
    /// The program could not be started.
    Failed,
    Started(Started),
}

#[derive(Debug)]
struct Started {
    /// While there is no exit it is not reaped: it, and the group of the same number, are this sandbox's.
    pid: Pid,
    /// Stays readable once the process has ended, also after it was reaped.
    pidfd: OwnedFd,
    exit: Option<Exit>,
}

impl Process {
    pub(crate) fn create(spec: Spec) -> Process {
        Process { phase: Phase::Created(Box::new(spec)) }
    }

    pub(crate) fn start(&mut self, id: Id) -> Result<(), SandboxError> {
        match std::mem::replace(&mut self.phase, Phase::Failed) {
            Phase::Created(spec) => {
                self.phase = Phase::Started(spawn(*spec)?);
                Ok(())
            }
            other => {
                self.phase = other;
                Err(SandboxError::WrongStatus { id, status: self.state()?.status, verb: "start" })
            }
        }
    }

    pub(crate) fn state(&mut self) -> Result<State, SandboxError> {
        match &mut self.phase {
            Phase::Created(_) => Ok(State { status: Status::Created, pid: None, exit: None }),
            Phase::Failed => Ok(State { status: Status::Stopped, pid: None, exit: None }),
            Phase::Started(started) => {
                let exit = started.reap()?;
                let status = if exit.is_some() { Status::Stopped } else { Status::Running };
                Ok(State { status, pid: Some(started.pid.as_raw_nonzero().get().unsigned_abs()), exit })
            }
        }
    }

    pub(crate) fn kill(&mut self, signal: Signal) -> Result<(), SandboxError> {
        match &self.phase {
            Phase::Started(started) if started.exit.is_none() => started.kill(signal),
            _ => Ok(()),
        }
    }

    pub(crate) fn exit_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.phase {
            Phase::Started(started) => Some(started.pidfd.as_fd()),
            Phase::Created(_) | Phase::Failed => None,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Phase::Started(started) = &mut self.phase
            && started.exit.is_none()
        {
            // Nobody is left to hear of an error; a process that cannot be killed is the kernel's.
            let _ = started.kill(Signal::KILL);
            let timeout = Timespec::try_from(LONGEST_END).ok();
            let _ =
                retry_on_intr(|| poll(&mut [PollFd::new(&started.pidfd, PollFlags::IN)], timeout.as_ref()));
            let _ = started.reap();
        }
    }
}

impl Started {
    /// For a process that is not reaped.
    fn kill(&self, signal: Signal) -> Result<(), SandboxError> {
        match kill_process_group(self.pid, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(self.failed("kill", errno)),
        }
    }

    /// How the program ended, if it has. What it has left running in its group is killed, while its own entry in
    /// the process table still keeps the group's number from being used again.
    fn reap(&mut self) -> Result<Option<Exit>, SandboxError> {
        if self.exit.is_none() && self.wait(WaitIdOptions::NOWAIT)?.is_some() {
            self.kill(Signal::KILL)?;
            self.exit = self.wait(WaitIdOptions::empty())?.map(|status| exit_of(&status));
        }
        Ok(self.exit)
    }

    fn wait(&self, options: WaitIdOptions) -> Result<Option<WaitIdStatus>, SandboxError> {
        let options = options | WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        retry_on_intr(|| waitid(WaitId::PidFd(self.pidfd.as_fd()), options))
            .map_err(|errno| self.failed("wait", errno))
    }

    fn failed(&self, operation: &'static str, errno: Errno) -> SandboxError {
        SandboxError::System { operation, pid: self.pid.as_raw_nonzero().get(), source: errno.into() }
    }
}

fn exit_of(status: &WaitIdStatus) -> Exit {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => Exit::Status(status),
        (None, signal) => Exit::Signal(signal.unwrap_or(0)),
    }
}

fn spawn(spec: Spec) -> Result<Started, SandboxError> {
    let Spec { program, args, env, control, kind: _ } = spec;
    let failed = |source| SandboxError::Spawn { program: program.clone(), source };
    static INHERITED: Once = Once::new();
    INHERITED.call_once(close_inherited_on_exec);
    let output = std::io::stderr().as_fd().try_clone_to_owned().map_err(failed)?;
    let mut child = Command::new(&program)
        .args(args)
        .env_clear()
        .envs(inherited_environment())
        .envs(env)
        .stdin(control)
        .stdout(output)
        .stderr(Stdio::inherit())
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else {
        return Err(failed(std::io::Error::other(format!("{} is no process id", child.id()))));
    };
    // The child is not reaped yet, so the number still means it.
    pidfd_open(pid, PidfdFlags::empty()).map(|pidfd| Started { pid, pidfd, exit: None }).map_err(|errno| {
        let _ = child.kill();
        let _ = child.wait();
        failed(errno.into())
    })
}

/// Whoever started this process may have left it descriptors that are not closed on exec. All that are opened
/// since then are, as Rust's library does; so this is needed once.
fn close_inherited_on_exec() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
    for number in numbers.filter(|&number| number > 2) {
        // SAFETY: the number is not -1. Another thread may close it meanwhile: then the flag is refused, or is set
        // on what was opened in its place, which has it already. It is not used beyond these two calls.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        if let Ok(flags) = fcntl_getfd(fd) {
            let _ = fcntl_setfd(fd, flags | FdFlags::CLOEXEC);
        }
    }
}

fn inherited_environment() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| {
        let bytes = name.as_encoded_bytes();
        bytes == b"PATH" || bytes == b"LANG" || bytes.starts_with(b"SUBLET_")
    })
}

/// The name of a signal that ends processes.
pub(crate) fn signal_name(number: i32) -> Option<&'static str> {
    const NAMES: [(Signal, &str); 18] = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::USR1, "SIGUSR1"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::TERM, "SIGTERM"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
        (Signal::SYS, "SIGSYS"),
    ];
    NAMES.iter().find(|(signal, _)| signal.as_raw() == number).map(|&(_, name)| name)
}
