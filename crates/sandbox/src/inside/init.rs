//! The first process of the sandbox, from the order to start on: starts the program, passes on its output, reaps the
//! remaining processes, and reports how the program ended. When the first process ends, the kernel ends all other
//! processes.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libc::STDERR_FILENO;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Access, access};
use rustix::io::{Errno, retry_on_intr};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Resource, Rlimit, WaitOptions, WaitStatus, setrlimit, wait};

use super::blank::{Blank, NOT_EXECUTED};
use super::output::{OutputTarget, ProgramOutput};
use super::{CreationPlan, CreationStep, SandboxReport, delegate, weak};
use crate::system;

pub(super) fn run(mut plan: CreationPlan, blank: &Blank) -> ! {
    plan.first = Some(rustix::process::getpid());
    let link = blank.link.as_fd();
    let target = plan.output.take();
    match start(&plan, target, blank) {
        Ok((started, output)) => {
            let _ = SandboxReport::Running.send(link);
            let _ = started.attend(output).send(link);
        }
        Err((step, error)) => drop(SandboxReport::failed(step, &error).send(link)),
    }
    system::leave(0)
}

/// Side of the fork of the program's process.
pub(super) enum ForkSide {
    /// The first process, with the reading end of the pipe for the program's output.
    First(StartedProgram, OwnedFd),
    /// The program's process, with the writing end of the pipe.
    Program(OwnedFd),
}

/// The program's process, and a descriptor that becomes readable when a process here has ended.
pub(super) struct StartedProgram {
    program: Pid,
    ends: OwnedFd,
}

impl StartedProgram {
    /// Waits for the end of the program, and passes on what it prints.
    pub(super) fn attend(self, mut output: ProgramOutput) -> SandboxReport {
        let StartedProgram { program, ends } = self;
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
) -> Result<ForkSide, (CreationStep, io::Error)> {
    let at_fork = |error: io::Error| (CreationStep::Fork, error);
    let ends = system::child_ends().map_err(at_fork)?;
    let pipe = rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
    let (read, write) = pipe.map_err(|errno| at_fork(errno.into()))?;
    let Some(program) = how().map_err(at_fork)? else {
        system::hear_child_ends().map_err(|error| (CreationStep::Limits, error))?;
        return Ok(ForkSide::Program(write));
    };
    rustix::io::ioctl_fionbio(&read, true).map_err(|errno| at_fork(errno.into()))?;
    // Descriptors of the program alone, above all its control socket, close when the program ends.
    let mut all: Vec<_> = kept.iter().map(AsRawFd::as_raw_fd).collect();
    all.extend([STDERR_FILENO, ends.as_raw_fd(), read.as_raw_fd()]);
    system::keep_only(&mut all).map_err(at_fork)?;
    std::mem::forget(write);
    // Exceeding an inherited limit of file sizes then loses only the output, and does not kill this process.
    system::ignore_file_size_signal().map_err(at_fork)?;
    Ok(ForkSide::First(StartedProgram { program, ends }, read))
}

/// Forks the program's process. Comes back when that has become the program, or has ended.
fn start(
    plan: &CreationPlan,
    target: Option<OutputTarget>,
    blank: &Blank,
) -> Result<(StartedProgram, ProgramOutput), (CreationStep, io::Error)> {
    let link = &blank.link;
    let kept: Vec<_> = [link.as_fd()].into_iter().chain(target.as_ref().map(OutputTarget::as_fd)).collect();
    let (mut started, pipe) = match fork(system::fork_until_exec, &kept)? {
        ForkSide::First(started, pipe) => (started, pipe),
        ForkSide::Program(output) => {
            let Err((step, error)) = become_program(plan, link, &output);
            let _ = SandboxReport::failed(step, &error).send(link.as_fd());
            system::leave(NOT_EXECUTED)
        }
    };
    let mut output = ProgramOutput::new(pipe, target, plan.id);
    if plan.is_delegated() {
        let made = delegate::container(plan, started.program);
        // If there is no container, the runtime's output has the reason.
        while output.pass_on() {}
        started.program = made.map_err(|error| (CreationStep::Runtime, error))?;
        let told = SandboxReport::Started.send_for(link.as_fd(), started.program);
        told.map_err(|error| (CreationStep::Fork, error))?;
    }
    Ok((started, output))
}

fn become_program(
    plan: &CreationPlan,
    link: &OwnedFd,
    output: &OwnedFd,
) -> Result<std::convert::Infallible, (CreationStep, io::Error)> {
    if !plan.is_delegated() {
        SandboxReport::Started.send(link.as_fd()).map_err(|error| (CreationStep::Fork, error))?;
    }
    if let Some(walls) = &plan.weak {
        weak::restrict(plan, walls)?;
    }
    prepare_program(plan, output)?;
    Err((CreationStep::Exec, execute(plan)))
}

/// Becomes the program. Returns only what prevented it: `ENOENT` if there is no such file, and `ELIBACC` if a file is there
/// and the loader that it names is not.
pub(super) fn execute(plan: &CreationPlan) -> io::Error {
    let mut error = io::Error::from_raw_os_error(libc::ENOENT);
    for program in candidates(&plan.program, &plan.env) {
        let found = system::exec(&program, &plan.args, &plan.env);
        let is_there = access(program.as_c_str(), Access::EXISTS).is_ok();
        error = match found.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) if !is_there => continue,
            Some(libc::ENOENT) => io::Error::from_raw_os_error(libc::ELIBACC),
            _ => found,
        };
        // A file that may not be executed is passed over, as shells do.
        if error.raw_os_error() != Some(libc::EACCES) {
            break;
        }
    }
    error
}

/// The paths at which a program may be: its own, or for a name without a slash those in the folders of `PATH`.
fn candidates(program: &CString, env: &[CString]) -> Vec<CString> {
    if program.as_bytes().contains(&b'/') {
        return vec![program.clone()];
    }
    let folders = env.iter().find_map(|variable| variable.as_bytes().strip_prefix(b"PATH="));
    let folders = folders.unwrap_or_default().split(|&byte| byte == b':').filter(|folder| !folder.is_empty());
    folders.filter_map(|folder| CString::new([folder, b"/", program.as_bytes()].concat()).ok()).collect()
}

/// Gives a process the program's limits and descriptors.
pub(super) fn prepare_program(
    plan: &CreationPlan,
    output: &OwnedFd,
) -> Result<(), (CreationStep, io::Error)> {
    let failed = |step: CreationStep| move |errno: Errno| (step, errno.into());
    limit(plan).map_err(failed(CreationStep::Limits))?;
    rustix::stdio::dup2_stdin(&plan.control).map_err(failed(CreationStep::Exec))?;
    rustix::stdio::dup2_stdout(output).map_err(failed(CreationStep::Exec))?;
    rustix::stdio::dup2_stderr(output).map_err(failed(CreationStep::Exec))?;
    system::close_on_exec().map_err(|error| (CreationStep::Exec, error))
}

/// Sets the limits of each process. The kernel counts processes for each user namespace, so that is a second limit of
/// them, and the only one without a control group.
pub(super) fn limit(plan: &CreationPlan) -> Result<(), Errno> {
    let at_most = |most| Rlimit { current: Some(most), maximum: Some(most) };
    for resource in [Resource::Core, Resource::Rtprio, Resource::Nice, Resource::Msgqueue] {
        setrlimit(resource, at_most(0))?;
    }
    if let Some(walls) = &plan.weak {
        // The kernel counts the processes of all sandboxes together: they have one user in one namespace.
        return weak::limit(walls);
    }
    plan.processes.map_or(Ok(()), |processes| setrlimit(Resource::Nproc, at_most(processes.into())))
}

/// Takes leave of processes that have ended, also of those that others have left to this one; says how the program
/// ended, if it was among them.
fn reap(program: Pid) -> Option<SandboxReport> {
    loop {
        match retry_on_intr(|| wait(WaitOptions::NOHANG)) {
            Ok(Some((pid, status))) if pid == program => return Some(report(status)),
            Ok(Some(_)) => {}
            Ok(None) => return None,
            // While the program was not seen to end there is a child.
            Err(_) => return Some(SandboxReport::Killed(libc::SIGKILL)),
        }
    }
}

fn report(status: WaitStatus) -> SandboxReport {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => SandboxReport::Exited(status),
        (None, signal) => SandboxReport::Killed(signal.unwrap_or(libc::SIGKILL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_up_in_the_folders_of_path() {
        let text = |text: &str| CString::new(text).unwrap();
        let env = [text("HOME=/x"), text("PATH=/a::/b/c")];
        assert_eq!(candidates(&text("p"), &env), [text("/a/p"), text("/b/c/p")]);
        assert_eq!(candidates(&text("/p"), &env), [text("/p")]);
        assert_eq!(candidates(&text("d/p"), &env), [text("d/p")]);
        assert!(candidates(&text("p"), &env[..1]).is_empty());
    }
}
