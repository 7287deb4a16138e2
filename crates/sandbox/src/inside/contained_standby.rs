//! A process on standby in a container: an interpreter of an image, which imports modules and waits for its program.
//!
//! The interpreter is code of a tenant. It is started as the program of any container is, with all restrictions, but by a
//! first process that keeps its rights over the namespaces until the program is known:
//!
//! ```text
//! spawner           first process                          the image's interpreter
//!    ├─── standby ──────► root of the image, mounts
//!    │                    │ fork ─────────────────────────────► restrictions, exec
//!    │◄── started ──────────────────────────────────────────────┤
//!    │◄── waiting ────────┤◄── waiting ──────────────────────────┤ imports
//!    :  until it is wanted
//!    ├─── plan ─────────► more mounts, restrictions
//!    │                    ├─── plan ─────────────────────────────►
//!    │◄── made ───────────┤◄── made ─────────────────────────────┤
//!    ├─── start ────────► ├─── start ────────────────────────────►
//!    │◄── running ────────┤◄── running ──────────────────────────┤ the program
//! ```
//!
//! The interpreter's connection to the first process is its standard input until it has its control socket there. It has no
//! connection to the spawner.

use std::convert::Infallible;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::PipeFlags;
use rustix::stdio::stdin;

use super::ahead::{await_order, pass_on, pass_on_start};
use super::blank::{Blank, NOT_EXECUTED};
use super::init::{self, ForkSide, StartedProgram};
use super::output::{OutputTarget, ProgramOutput};
use super::{
    CreationPlan, CreationStep, SandboxOrder, SandboxReport, await_start, become_owner, container, give_up,
    hide, plan, restrict,
};
use crate::system;

/// The life of the first process, from its plan to wait on standby on.
pub(super) fn lead(blank: &Blank, plan: CreationPlan) -> ! {
    let link = blank.link.as_fd();
    let begun = begin(blank, plan).and_then(|(started, program)| {
        let output = await_program(blank, program.as_fd())?;
        Ok((started, program, output))
    });
    let (started, program, output) = begun.unwrap_or_else(|(step, error)| give_up(link, step, &error));
    await_start(link);
    if SandboxOrder::Start.send(program.as_fd()).is_ok() && pass_on_start(program.as_fd(), link) {
        let _ = started.attend(output).send(link);
    }
    system::leave(0)
}

/// Makes the container, and starts the interpreter in it. Returns also the connection to that.
fn begin(
    blank: &Blank,
    mut plan: CreationPlan,
) -> Result<(StartedProgram, OwnedFd), (CreationStep, io::Error)> {
    debug_assert!(plan.folders.is_empty(), "a process on standby has {} lent folders", plan.folders.len());
    let failed = |error: io::Error| (CreationStep::Standby, error);
    become_owner(blank)?;
    let image = plan.image.as_ref().ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
    container::enter(&plan, image).map_err(|error| (CreationStep::Container, error))?;
    hide()?;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (own, theirs) = pair.map_err(|errno| failed(errno.into()))?;
    let nothing = mem::replace(&mut plan.control, theirs);
    match init::fork(system::fork_until_exec, &[blank.link.as_fd(), own.as_fd()])? {
        ForkSide::First(started, _) => {
            // All descriptors of the plan were closed with what is not kept, and so was this one.
            mem::forget((plan, nothing));
            Ok((started, own))
        }
        ForkSide::Program(_) => {
            let Err((step, error)) = become_interpreter(blank, &mut plan, &nothing);
            let _ = SandboxReport::failed(step, &error).send(blank.link.as_fd());
            system::leave(NOT_EXECUTED)
        }
    }
}

/// Becomes the interpreter, in the process that is to be the program. The output of imports is discarded.
fn become_interpreter(
    blank: &Blank,
    plan: &mut CreationPlan,
    nothing: &OwnedFd,
) -> Result<Infallible, (CreationStep, io::Error)> {
    restrict(blank, plan)?;
    let started = SandboxReport::Started.send(blank.link.as_fd());
    started.map_err(|error| (CreationStep::Standby, error))?;
    // The program sets its own limit, which may be higher.
    plan.processes = None;
    init::prepare_program(plan, nothing)?;
    Err((CreationStep::Exec, init::execute(plan)))
}

/// Waits for the plan of the program, applies it, and passes it on. Returns the output of the program.
fn await_program(blank: &Blank, program: BorrowedFd<'_>) -> Result<ProgramOutput, (CreationStep, io::Error)> {
    let link = blank.link.as_fd();
    let failed = |error: io::Error| (CreationStep::Standby, error);
    await_order(link, program)?;
    let mut plan = plan::receive(link).map_err(|error| (CreationStep::Plan, error))?;
    container::complete(&plan).map_err(|error| (CreationStep::Container, error))?;
    restrict(blank, &plan)?;
    let pipe = rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
    let (read, write) = pipe.map_err(|errno| failed(errno.into()))?;
    rustix::io::ioctl_fionbio(&read, true).map_err(|errno| failed(errno.into()))?;
    let output = ProgramOutput::new(read, plan.output.take(), plan.id);
    // The program's process is in the image already.
    plan.image = None;
    plan.output = Some(OutputTarget::Log(write));
    pass_on(plan, program)?;
    Ok(output)
}

/// In the interpreter: reports to the first process that the modules are imported.
pub(crate) fn tell_waiting() -> io::Result<()> {
    SandboxReport::Waiting.send(stdin())
}

/// In the interpreter: waits for the plan and for the start, and takes the descriptors of the program. Ends the process if it
/// is not wanted any more.
pub(crate) fn become_program() -> io::Result<CreationPlan> {
    let first = stdin().try_clone_to_owned()?;
    let mut plan = plan::receive(first.as_fd())?;
    let output = plan.output.take().ok_or(io::ErrorKind::InvalidData)?;
    SandboxReport::Made.send(first.as_fd())?;
    await_only_start(first.as_fd());
    init::limit(&plan)?;
    rustix::stdio::dup2_stdin(&plan.control)?;
    rustix::stdio::dup2_stdout(output.as_fd())?;
    rustix::stdio::dup2_stderr(output.as_fd())?;
    SandboxReport::Running.send(first.as_fd())?;
    Ok(plan)
}

fn await_only_start(first: BorrowedFd<'_>) {
    if SandboxOrder::receive(first) != Some(SandboxOrder::Start) {
        system::leave(0);
    }
}
