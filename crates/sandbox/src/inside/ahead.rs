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

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use super::init::{self, ForkSide, StartedProgram};
use super::output::ProgramOutput;
use super::{
    Blank, CreationPlan, CreationStep, SandboxOrder, SandboxReport, await_start, become_sandbox, give_up,
    make_ready, plan,
};
use super::{privileges, restrict, weak};
use crate::system;

/// A process that waits to become the program.
pub(crate) struct Ahead {
    blank: Blank,
    /// The first process of its sandbox.
    first: OwnedFd,
    output: OwnedFd,
}

/// The life of the first process of a copy. Returns in the process of its program.
pub(crate) fn live(blank: Blank) -> Ahead {
    let forked = make_ready(&blank).and_then(|()| fork(&blank));
    match forked {
        Ok((ForkSide::Program(output), first)) => Ahead { blank, first, output },
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
    let prepared = plan::receive(link).map_err(|error| (CreationStep::Plan, error)).and_then(|mut plan| {
        become_sandbox(blank, &mut plan)?;
        let output = ProgramOutput::new(pipe, plan.output.take(), plan.id);
        pass_on(plan, program.as_fd()).map(|()| output)
    });
    let output = prepared.unwrap_or_else(|(step, error)| give_up(link, step, &error));
    await_start(link);
    if SandboxOrder::Start.send(program.as_fd()).is_ok() {
        let _ = started.attend(output).send(link);
    }
    system::leave(0)
}

/// Has the program's process become what the first is by now.
fn pass_on(mut plan: CreationPlan, program: BorrowedFd<'_>) -> Result<(), (CreationStep, io::Error)> {
    // Both have the same.
    plan.mounts.clear();
    plan.folders.iter_mut().for_each(|folder| folder.mount = None);
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
    pub(crate) fn become_program(self, last: impl FnOnce() -> io::Result<()>) -> CreationPlan {
        let first = self.first.as_fd();
        let prepared = plan::receive(first).map_err(|error| (CreationStep::Plan, error));
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

    fn become_inhabitant(&self, plan: &CreationPlan) -> Result<(), (CreationStep, io::Error)> {
        let folder = plan.image.as_ref().map_or(c"/", |image| image.working_folder.as_c_str());
        rustix::process::chdir(folder).map_err(|errno| (CreationStep::Root, errno.into()))?;
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
