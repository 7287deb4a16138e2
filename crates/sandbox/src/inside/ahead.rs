//! The program's process of a copy of a template. The first process of the sandbox forks it ahead of time, before the
//! plan is known, when the first process is in its control group. The new process applies the same restrictions to
//! itself as the first process, except for the mounts, which both share.
//!
//! ```text
//! spawner           first process                          program's process
//!    ├─── go ───────────► │ fork ─────────────────────────────► what a new process of the language does
//!    :  until it is wanted
//!    ├─── plan ─────────► mounts, pivot, restrictions
//!    │                    ├─── plan ─────────────────────────► identity, restrictions
//!    │◄── made ───────────┤◄── made ─────────────────────────────┤
//!    ├─── start ────────► ├─── start ──────────────────────────► limits, descriptors
//!    │◄── started, running ────────────────────────────────────┤ the program
//! ```
//!
//! Before the plan of the program, the program's process can get a plan to wait on standby with imported modules. A module
//! may start threads, which inherit the restrictions of the thread that starts them, and no later restriction reaches
//! them: a user, Landlock and a filter of system calls belong to a thread. So the process takes all of them before it
//! imports. The first process keeps its rights over the namespaces, which both share, and mounts later what the program
//! needs.
//!
//! ```text
//! spawner           first process                          program's process
//!    ├─── standby ──────► root, mounts, pivot
//!    │                    ├─── standby ──────────────────────► identity, restrictions
//!    │◄── started ─────────────────────────────────────────────┤ closes its connection to the spawner
//!    │                    │◄── made ─────────────────────────────┤
//!    │◄── waiting ────────┤◄── waiting ──────────────────────────┤ imports
//!    :  until it is wanted
//!    ├─── plan ─────────► more mounts, sizes, restrictions
//!    │                    ├─── plan ─────────────────────────►
//!    │◄── made ───────────┤◄── made ─────────────────────────────┤
//!    ├─── start ────────► ├─── start ──────────────────────────► limits, descriptors
//!    │◄── running ────────┤◄── running ──────────────────────────┤ the program
//! ```
//!
//! Modules may be code of a tenant. So a process that imports them has no connection to the spawner, on which it could read
//! the plan with the descriptors that are only for the first process, or send reports in place of that one. It can only
//! answer the first process wrongly, which then ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use super::init::{self, ForkSide, StartedProgram};
use super::output::ProgramOutput;
use super::{
    Blank, CreationPlan, CreationStep, SandboxOrder, SandboxReport, await_start, become_owner,
    become_sandbox, give_up, make_ready, plan,
};
use super::{hide, privileges, restrict, root, weak};
use crate::system;

/// A process that waits to become the program.
pub(crate) struct Ahead {
    blank: Blank,
    /// The first process of its sandbox.
    first: OwnedFd,
    output: OwnedFd,
    /// Plan of the program, if it came in place of a plan to wait on standby.
    plan: Option<CreationPlan>,
    /// Whether this process has all of its restrictions, as one on standby has.
    is_restricted: bool,
}

/// The life of the first process of a copy. Returns in the process of its program.
pub(crate) fn live(blank: Blank) -> Ahead {
    let forked = make_ready(&blank).and_then(|()| fork(&blank));
    match forked {
        Ok((ForkSide::Program(output), first)) => {
            Ahead { blank, first, output, plan: None, is_restricted: false }
        }
        Ok((ForkSide::First(started, pipe), program)) => lead(&blank, &program, started, pipe),
        Err((step, error)) => give_up(blank.link.as_fd(), step, &error),
    }
}

/// Forks the program's process. Each side gets a connection to the other.
fn fork(blank: &Blank) -> Result<(ForkSide, OwnedFd), (CreationStep, io::Error)> {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (own, theirs) = pair.map_err(|errno| (CreationStep::Fork, errno.into()))?;
    match init::fork(system::fork, &[blank.link.as_fd(), own.as_fd()])? {
        ForkSide::Program(output) => Ok((ForkSide::Program(output), theirs)),
        first => {
            // It was closed with all that is not kept.
            std::mem::forget(theirs);
            Ok((first, own))
        }
    }
}

/// Continues as the first process: receives the plan, applies it, passes it on, and waits for the start.
fn lead(blank: &Blank, program: &OwnedFd, started: StartedProgram, pipe: OwnedFd) -> ! {
    let link = blank.link.as_fd();
    let prepared = await_plan(blank, program.as_fd()).and_then(|(mut plan, was_standby)| {
        let output = ProgramOutput::new(pipe, plan.output.take(), plan.id);
        pass_on(plan, program.as_fd()).map(|()| (output, was_standby))
    });
    let (output, was_standby) = prepared.unwrap_or_else(|(step, error)| give_up(link, step, &error));
    await_start(link);
    let is_started = SandboxOrder::Start.send(program.as_fd()).is_ok();
    if is_started && (!was_standby || pass_on_start(program.as_fd(), link)) {
        let _ = started.attend(output).send(link);
    }
    system::leave(0)
}

/// Passes on the report of a program's process that was on standby, which reports to this process only. Returns whether it
/// has become the program.
pub(super) fn pass_on_start(program: BorrowedFd<'_>, link: BorrowedFd<'_>) -> bool {
    loop {
        let report = match SandboxReport::receive(program, RecvFlags::empty()) {
            // The spawner knows it already.
            Ok(Some((SandboxReport::Started, _))) => continue,
            Ok(Some((report @ (SandboxReport::Running | SandboxReport::Failed { .. }), _))) => report,
            _ => SandboxReport::failed(CreationStep::Standby, &io::Error::from_raw_os_error(libc::EPIPE)),
        };
        return report.send(link).is_ok() && report == SandboxReport::Running;
    }
}

/// Waits for the plan, and applies it. Until then the program's process is on standby if the spawner orders that. Returns
/// also whether it was.
fn await_plan(
    blank: &Blank,
    program: BorrowedFd<'_>,
) -> Result<(CreationPlan, bool), (CreationStep, io::Error)> {
    let link = blank.link.as_fd();
    let next = || plan::receive(link).map_err(|error| (CreationStep::Plan, error));
    let mut plan = next()?;
    if !plan.is_standby {
        become_sandbox(blank, &mut plan)?;
        return Ok((plan, false));
    }
    become_owner(blank)?;
    root::enter(&plan).map_err(|error| (CreationStep::Root, error))?;
    hide()?;
    plan.output = None;
    pass_on(plan, program)?;
    await_order(link, program)?;
    let plan = next()?;
    root::complete(&plan).map_err(|error| (CreationStep::Root, error))?;
    restrict(blank, &plan)?;
    Ok((plan, true))
}

/// Waits for an order of the spawner, or for its end. Passes on that the process on standby has imported its modules. Fails
/// if that process ends before, or reports anything else.
pub(super) fn await_order(
    link: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
) -> Result<(), (CreationStep, io::Error)> {
    let failed = |error: io::Error| (CreationStep::Standby, error);
    let mut has_imported = false;
    loop {
        let mut watched = [PollFd::new(&link, PollFlags::IN), PollFd::new(&program, PollFlags::IN)];
        let polled = retry_on_intr(|| poll(&mut watched, None));
        polled.map_err(|errno| failed(errno.into()))?;
        if watched[1].revents().is_empty() {
            return Ok(());
        }
        match SandboxReport::receive(program, RecvFlags::DONTWAIT) {
            Ok(Some((SandboxReport::Waiting, _))) if !has_imported => {
                has_imported = true;
                SandboxReport::Waiting.send(link).map_err(failed)?;
            }
            _ => return Err(failed(io::Error::from_raw_os_error(libc::EPIPE))),
        }
    }
}

/// Has the program's process become what the first is by now.
pub(super) fn pass_on(
    mut plan: CreationPlan,
    program: BorrowedFd<'_>,
) -> Result<(), (CreationStep, io::Error)> {
    // Both have the same.
    plan.mounts.clear();
    plan.folders.iter_mut().for_each(|folder| folder.mount = None);
    plan.device_mounts.iter_mut().for_each(|one| one.mount = None);
    plan.send(program).map_err(|error| (CreationStep::Plan, error))?;
    match SandboxReport::receive(program, RecvFlags::empty()) {
        Ok(Some((SandboxReport::Made, _))) => Ok(()),
        Ok(Some((SandboxReport::Failed { step, errno }, _))) => {
            Err((step, io::Error::from_raw_os_error(errno)))
        }
        Ok(_) => Err((CreationStep::Plan, io::ErrorKind::UnexpectedEof.into())),
        Err(error) => Err((CreationStep::Plan, error)),
    }
}

impl Ahead {
    /// Waits for the plan, prepares everything with `last` as the last step, and waits for the start. Ends the process
    /// if it is not wanted, or cannot be prepared.
    pub(crate) fn become_program(mut self, last: impl FnOnce() -> io::Result<()>) -> CreationPlan {
        let received = self.plan.take().map_or_else(|| plan::receive(self.first.as_fd()), Ok);
        let first = self.first.as_fd();
        let prepared = received.map_err(|error| (CreationStep::Plan, error));
        let prepared = prepared.and_then(|plan| self.become_inhabitant(&plan).map(|()| plan));
        let plan = match prepared {
            Ok(plan) => plan,
            Err((step, error)) => give_up(first, step, &error),
        };
        await_start(first);
        let link = self.blank.link.as_fd();
        let begun = self.begin(&plan).and_then(|()| last().map_err(|error| (CreationStep::Copy, error)));
        if let Err((step, error)) = begun {
            give_up(link, step, &error);
        }
        if SandboxReport::Running.send(link).is_err() {
            system::leave(0);
        }
        plan
    }

    /// Waits for the first plan. If this process is to wait on standby, returns that plan once all restrictions hold, with
    /// `last` as the last step. Nothing if it is the plan of the program. Ends the process if it cannot be prepared.
    pub(crate) fn await_standby(&mut self, last: impl FnOnce() -> io::Result<()>) -> Option<CreationPlan> {
        let plan = match plan::receive(self.first.as_fd()) {
            Ok(plan) => plan,
            Err(error) => give_up(self.first.as_fd(), CreationStep::Plan, &error),
        };
        if !plan.is_standby {
            self.plan = Some(plan);
            return None;
        }
        let begun = self.stand_by(&plan);
        let begun = begun.and_then(|()| last().map_err(|error| (CreationStep::Copy, error)));
        let begun = begun.and_then(|()| self.leave_spawner());
        if let Err((step, error)) = begun {
            give_up(self.first.as_fd(), step, &error);
        }
        if SandboxReport::Made.send(self.first.as_fd()).is_err() {
            system::leave(0);
        }
        self.is_restricted = true;
        Some(plan)
    }

    /// Takes the restrictions and the descriptors of a process that imports modules.
    fn stand_by(&self, plan: &CreationPlan) -> Result<(), (CreationStep, io::Error)> {
        self.become_inhabitant(plan)?;
        let failed = |errno: rustix::io::Errno| (CreationStep::Standby, errno.into());
        // The output of modules during their import is discarded.
        rustix::stdio::dup2_stdin(&plan.control).map_err(failed)?;
        rustix::stdio::dup2_stdout(&plan.control).map_err(failed)?;
        rustix::stdio::dup2_stderr(&plan.control).map_err(failed)?;
        set_dumpable_behavior(DumpableBehavior::Dumpable).map_err(failed)
    }

    /// Reports this process to the spawner, and gives up the connection to it: the first process passes on later reports.
    fn leave_spawner(&mut self) -> Result<(), (CreationStep, io::Error)> {
        let failed = |error: io::Error| (CreationStep::Standby, error);
        SandboxReport::Started.send(self.blank.link.as_fd()).map_err(failed)?;
        self.blank.link = self.first.try_clone().map_err(failed)?;
        Ok(())
    }

    /// Reports that the modules are imported.
    pub(crate) fn tell_waiting(&self) -> io::Result<()> {
        SandboxReport::Waiting.send(self.blank.link.as_fd())
    }

    /// Connection that is readable once there is another plan, or none will come.
    pub(crate) fn orders(&self) -> BorrowedFd<'_> {
        self.first.as_fd()
    }

    fn become_inhabitant(&self, plan: &CreationPlan) -> Result<(), (CreationStep, io::Error)> {
        let folder = plan.image.as_ref().map_or(c"/", |image| image.working_folder.as_c_str());
        rustix::process::chdir(folder).map_err(|errno| (CreationStep::Root, errno.into()))?;
        if self.is_restricted {
            return Ok(());
        }
        if let Some(walls) = &plan.weak {
            return weak::restrict(plan, walls);
        }
        privileges::become_user(&self.blank).map_err(|error| (CreationStep::Identity, error))?;
        restrict(&self.blank, plan)
    }

    fn begin(&self, plan: &CreationPlan) -> Result<(), (CreationStep, io::Error)> {
        SandboxReport::Started.send(self.blank.link.as_fd()).map_err(|error| (CreationStep::Fork, error))?;
        init::prepare_program(plan, &self.output)?;
        // A program that is executed becomes dumpable by itself, so that the process can inspect itself.
        set_dumpable_behavior(DumpableBehavior::Dumpable)
            .map_err(|errno| (CreationStep::Identity, errno.into()))
    }
}
