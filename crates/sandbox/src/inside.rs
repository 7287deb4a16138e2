//! Prepares a new process before it becomes the sandbox's program.
//!
//! ```text
//! spawner           init, the sandbox's first process                       program
//!    │ clone: namespaces, cgroup (v2)
//!    ├──────────────────► a root of its own
//!    │ maps of users, cgroup (v1)
//!    ├─── go ───────────► cgroup namespace, host name
//!    :  until it is wanted
//!    ├─── plan ─────────► identity, mounts, pivot, capabilities, Landlock, seccomp
//!    │◄── made ───────────┤
//!    ├─── start ────────► │ fork ────────────────────────────────────────► limits, descriptors
//!    │◄── started (with the kernel's word for its pid) ────────────────────┤
//!    │◄── running ────────┤                                                │ exec
//!    │                    │ passes on what is printed, reaps ◄─────────────┤ ends
//!    │◄── ended ──────────┘
//! ```
//!
//! The first process of a copy of a template ([`template`]) is forked by that instead. It forks the program's process ahead of
//! time, too, since both have much memory; that then restricts itself, and says itself that it runs, as nothing is executed
//! ([`ahead`]). Between these two steps it may be put on standby: it takes its restrictions early, imports modules, and waits.
//!
//! The steps before the plan are the same for all sandboxes, and are done before a request comes. They take the
//! longest, above all entering a control group of version 1, for which the kernel waits until all processors have taken
//! note.
//!
//! Init has all restrictions before the program starts, so both have the same. Init differs in that the program cannot
//! trace it, and that the kernel ends everything in the sandbox when init ends.
//!
//! All of this runs in a process forked from one with a single thread, the spawner or a template: it may allocate and fail
//! like any other. It never returns into the spawner's code.

pub(crate) mod ahead;
mod blank;
pub(crate) mod contained_standby;
mod container;
mod delegate;
pub(crate) mod first;
mod init;
mod landlock;
mod mount_points;
mod mounts;
mod names;
mod output;
mod plan;
mod privileges;
mod processes;
mod report;
mod root;
pub(crate) mod seccomp;
pub(crate) mod template;
mod weak;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal};

use crate::{Walls, system};
pub(crate) use blank::Blank;
pub(crate) use mount_points::{DRIVER_FOLDERS, GPU_NODES, MountPoint, PROGRAM, SYSTEM_FOLDERS, VIEWS};
pub(crate) use mounts::SHARED_POINT;
pub(crate) use names::{USER_NAME, user_entry};
pub(crate) use output::OutputTarget;
pub(crate) use plan::CreationPlan;
pub(crate) use report::{CreationStep, SandboxOrder, SandboxReport};
pub(crate) use root::FOLDERS_POINT;

/// Namespaces that every sandbox has for itself. A sandbox may use the host's network.
pub(crate) const NAMESPACES: i32 =
    libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// Reports that everything but the program exists, and returns at the order to start the program.
fn await_start(link: BorrowedFd<'_>) {
    if SandboxReport::Made.send(link).is_err() || SandboxOrder::receive(link) != Some(SandboxOrder::Start) {
        // The spawner is gone, or does not want it any more.
        system::leave(0);
    }
}

fn give_up(link: BorrowedFd<'_>, step: CreationStep, error: &io::Error) -> ! {
    // If the report cannot be sent, the end of this process shows the failure.
    let _ = SandboxReport::failed(step, error).send(link);
    system::leave(1)
}

/// Does all steps that do not depend on the plan.
fn make_ready(blank: &Blank) -> Result<(), (CreationStep, io::Error)> {
    let at = |step: CreationStep| move |error: io::Error| (step, error);
    forget_spawner(blank).map_err(at(CreationStep::Root))?;
    die_with_spawner().map_err(at(CreationStep::Identity))?;
    if blank.walls == Walls::Full {
        root::begin().map_err(at(CreationStep::Root))?;
    }
    if SandboxOrder::receive(blank.link.as_fd()) != Some(SandboxOrder::Go) {
        system::leave(0);
    }
    if blank.walls == Walls::Weak {
        return Ok(());
    }
    system::unshare(libc::CLONE_NEWCGROUP).map_err(at(CreationStep::Cgroup))?;
    rustix::system::sethostname(b"sandbox").map_err(|errno| (CreationStep::HostName, errno.into()))
}

fn become_sandbox(blank: &Blank, plan: &mut CreationPlan) -> Result<(), (CreationStep, io::Error)> {
    let at = |step: CreationStep| move |error: io::Error| (step, error);
    if plan.weak.is_some() {
        return weak::prepare_first();
    }
    become_owner(blank)?;
    match &plan.image {
        None => root::enter(plan).map_err(at(CreationStep::Root))?,
        // Its walls are the runtime's.
        Some(_) if plan.is_delegated() => return delegate::enter(plan).map_err(at(CreationStep::Container)),
        Some(image) => container::enter(plan, image).map_err(at(CreationStep::Container))?,
    }
    restrict(blank, plan)
}

/// Becomes the sandbox's user before files are made, so that it owns them. The process still has its rights over its
/// namespaces.
fn become_owner(blank: &Blank) -> Result<(), (CreationStep, io::Error)> {
    let failed = |error: io::Error| (CreationStep::Identity, error);
    privileges::become_user(blank).map_err(failed)?;
    // A change of user has cleared it.
    die_with_spawner().map_err(failed)
}

/// Hides a first process that keeps its rights from code of a tenant that is on standby beside it: that cannot list its files.
fn hide() -> Result<(), (CreationStep, io::Error)> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|errno| (CreationStep::Identity, errno.into()))
}

/// Applies the restrictions of a process whose root is complete. Processes that it forks afterwards inherit them.
fn restrict(blank: &Blank, plan: &CreationPlan) -> Result<(), (CreationStep, io::Error)> {
    let at = |step: CreationStep| move |error: io::Error| (step, error);
    // The kernel makes a program dumpable again when it is executed; a copy of a template does so itself.
    hide()?;
    privileges::drop_capabilities().map_err(at(CreationStep::Capabilities))?;
    landlock::restrict(plan).map_err(at(CreationStep::Landlock))?;
    blank.filters.apply(plan.network, plan.devices).map_err(at(CreationStep::Seccomp))
}

/// Closes what belongs to the spawner or the template, and to other sandboxes, but for where messages are printed.
fn forget_spawner(blank: &Blank) -> io::Result<()> {
    let mut kept = blank.kept.clone();
    kept.extend([libc::STDOUT_FILENO, libc::STDERR_FILENO, blank.link.as_raw_fd()]);
    system::keep_only(&mut kept)?;
    // Keeps descriptor 0 in use until the program has its own: otherwise the next descriptor would become standard
    // input.
    Ok(rustix::stdio::dup2_stdin(&blank.link)?)
}

fn die_with_spawner() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}
