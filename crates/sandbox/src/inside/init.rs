//! The first process of the sandbox, from the order to start on: starts the program, passes on its output, reaps the
//! remaining processes, and reports how the program ended. When the first process ends, the kernel ends all other
//! processes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libc::STDERR_FILENO;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Resource, Rlimit, WaitOptions, WaitStatus, setrlimit, wait};

use super::output::{Output, Target};
use super::{Blank, NOT_EXECUTED, Plan, Report, Step, delegate};
use crate::system;

pub(super) fn run(mut plan: Plan, blank: &Blank) -> ! {
    let link = blank.link.as_fd();
    let target = plan.output.take();
    match start(&plan, target, blank) {
        Ok((started, output)) => {
            let _ = Report::Running.send(link);
            let _ = started.attend(output).send(link);
        }
        Err((step, error)) => drop(Report::failed(step, &error).send(link)),
    }
    system::leave(0)
}

/// Side of the fork of the program's process.
pub(super) enum Side {
    /// The first process, with the reading end of the pipe for the program's output.
    First(Started, OwnedFd),
    /// The program's process, with the writing end of the pipe.
    Program(OwnedFd),
}

/// The program's process, and a descriptor that becomes readable when a process here has ended.
pub(super) struct Started {
    program: Pid,
    ends: OwnedFd,
}

impl Started {
    /// Waits for the end of the program, and passes on what it prints.
    pub(super) fn attend(self, mut output: Output) -> Report {
        let Started { program, ends } = self;
        loop {
            if let Some(report) = reap(program) {
                output.finish();
                return report;
            }
            let mut watched = output.watched();
            watched.push(PollFd::new(&ends, PollFlags::IN));
            let _ = poll(&mut watched, None);
            // The content does not matter: reading it only clears the descriptor.
            let _ = rustix::io::read(&ends, &mut [0; 128]);
            output.pass_on();
        }
    }
}

/// Forks the program's process with `how`. The first process keeps only these of its descriptors.
pub(super) fn fork(
    how: fn() -> io::Result<Option<Pid>>,
    kept: &[BorrowedFd<'_>],
) -> Result<Side, (Step, io::Error)> {
    let at_fork = |error: io::Error| (Step::Fork, error);
    let ends = system::child_ends().map_err(at_fork)?;
    let pipe = rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
    let (read, write) = pipe.map_err(|errno| at_fork(errno.into()))?;
    let Some(program) = how().map_err(at_fork)? else {
        system::hear_child_ends().map_err(|error| (Step::Limits, error))?;
        return Ok(Side::Program(write));
    };
    rustix::io::ioctl_fionbio(&read, true).map_err(|errno| at_fork(errno.into()))?;
    // Descriptors of the program alone, above all its control socket, close when the program ends.
    let mut all: Vec<_> = kept.iter().map(AsRawFd::as_raw_fd).collect();
    all.extend([STDERR_FILENO, ends.as_raw_fd(), read.as_raw_fd()]);
    system::keep_only(&mut all).map_err(at_fork)?;
    std::mem::forget(write);
    // Exceeding an inherited limit of file sizes then loses only the output, and does not kill this process.
    system::ignore_file_size_signal().map_err(at_fork)?;
    Ok(Side::First(Started { program, ends }, read))
}

/// Forks the program's process. Comes back when that has become the program, or has ended.
fn start(plan: &Plan, target: Option<Target>, blank: &Blank) -> Result<(Started, Output), (Step, io::Error)> {
    let link = &blank.link;
    let kept: Vec<_> = [link.as_fd()].into_iter().chain(target.as_ref().map(Target::as_fd)).collect();
    let (mut started, pipe) = match fork(system::fork_until_exec, &kept)? {
        Side::First(started, pipe) => (started, pipe),
        Side::Program(output) => {
            let Err((step, error)) = become_program(plan, link, &output);
            let _ = Report::failed(step, &error).send(link.as_fd());
            system::leave(NOT_EXECUTED)
        }
    };
    let mut output = Output::new(pipe, target, plan.id);
    if plan.is_delegated() {
        let made = delegate::container(started.program);
        // If there is no container, the runtime's output has the reason.
        while output.pass_on() {}
        started.program = made.map_err(|error| (Step::Runtime, error))?;
        let told = Report::Started.send_for(link.as_fd(), started.program);
        told.map_err(|error| (Step::Fork, error))?;
    }
    Ok((started, output))
}

fn become_program(
    plan: &Plan,
    link: &OwnedFd,
    output: &OwnedFd,
) -> Result<std::convert::Infallible, (Step, io::Error)> {
    if !plan.is_delegated() {
        Report::Started.send(link.as_fd()).map_err(|error| (Step::Fork, error))?;
    }
    prepare_program(plan, output)?;
    Err((Step::Exec, system::exec(&plan.program, &plan.args, &plan.env)))
}

/// Gives a process the program's limits and descriptors.
pub(super) fn prepare_program(plan: &Plan, output: &OwnedFd) -> Result<(), (Step, io::Error)> {
    let failed = |step: Step| move |errno: Errno| (step, errno.into());
    limit(plan).map_err(failed(Step::Limits))?;
    rustix::stdio::dup2_stdin(&plan.control).map_err(failed(Step::Exec))?;
    rustix::stdio::dup2_stdout(output).map_err(failed(Step::Exec))?;
    rustix::stdio::dup2_stderr(output).map_err(failed(Step::Exec))?;
    system::close_on_exec().map_err(|error| (Step::Exec, error))
}

/// Sets the limits of each process. The kernel counts processes for each user namespace, so that is a second limit of
/// them, and the only one without a control group.
fn limit(plan: &Plan) -> Result<(), Errno> {
    let at_most = |most| Rlimit { current: Some(most), maximum: Some(most) };
    for resource in [Resource::Core, Resource::Rtprio, Resource::Nice, Resource::Msgqueue] {
        setrlimit(resource, at_most(0))?;
    }
    plan.processes.map_or(Ok(()), |processes| setrlimit(Resource::Nproc, at_most(processes.into())))
}

/// Takes leave of processes that have ended, also of those that others have left to this one; says how the program
/// ended, if it was among them.
fn reap(program: Pid) -> Option<Report> {
    loop {
        match retry_on_intr(|| wait(WaitOptions::NOHANG)) {
            Ok(Some((pid, status))) if pid == program => return Some(report(status)),
            Ok(Some(_)) => {}
            Ok(None) => return None,
            // While the program was not seen to end there is a child.
            Err(_) => return Some(Report::Killed(libc::SIGKILL)),
        }
    }
}

fn report(status: WaitStatus) -> Report {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => Report::Exited(status),
        (None, signal) => Report::Killed(signal.unwrap_or(libc::SIGKILL)),
    }
}
