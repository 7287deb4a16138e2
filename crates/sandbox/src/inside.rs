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
//! ([`ahead`]).
//!
//! What comes before the plan is the same for all, and happens before anybody asks: it is what takes long, above all
//! entering a control group of version 1, for which the kernel waits until all processors have taken note.
//!
//! Init has all restrictions before the program is there, so both have the same; it differs in that it cannot be traced
//! by the program, and that the kernel ends everything in the sandbox when it ends.
//!
//! All of this runs in a process forked from one with a single thread, the spawner or a template: it may allocate and fail
//! like any other. It never returns into the spawner's code.

pub(crate) mod ahead;
mod container;
mod delegate;
mod init;
mod landlock;
mod names;
mod output;
mod plan;
mod privileges;
mod processes;
mod report;
mod root;
pub(crate) mod seccomp;
pub(crate) mod template;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;

use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal};

use crate::system;
pub(crate) use names::{USER_NAME, user_entry};
pub(crate) use output::Target;
pub(crate) use plan::Plan;
pub(crate) use report::{Order, Report, Step};
pub(crate) use root::{DRIVER_FOLDERS, GPU_NODES, MountPoint, PROGRAM, SHARED_POINT, SYSTEM_FOLDERS, VIEWS};
use seccomp::Filters;

/// The status of a process that did not become the program. Nobody sees it: it has said why.
const NOT_EXECUTED: i32 = 127;
/// What every sandbox has for itself. Of the network it may have the host's.
pub(crate) const NAMESPACES: i32 =
    libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// What a process is made with, before anybody knows what it will be.
pub(crate) struct Blank {
    /// To the spawner.
    pub(crate) link: OwnedFd,
    /// As whom it will appear to itself: the sandbox's user, or root for an OCI runtime.
    pub(crate) user: u32,
    /// Whether the groups of the spawner's user can be left: not without privileges.
    pub(crate) leaves_groups: bool,
    pub(crate) filters: Rc<Filters>,
    /// What it keeps of the process that it was forked from: what a language runtime holds for itself.
    pub(crate) kept: Vec<RawFd>,
}

/// The life of a sandbox's first process.
pub(crate) fn run(blank: &Blank) -> ! {
    let link = blank.link.as_fd();
    let prepared = make_ready(blank).and_then(|()| {
        let mut plan = plan::receive(link).map_err(|error| (Step::Plan, error))?;
        become_sandbox(blank, &mut plan).map(|()| plan)
    });
    match prepared {
        Ok(plan) => {
            await_start(link);
            init::run(plan, blank)
        }
        Err((step, error)) => give_up(link, step, &error),
    }
}

/// Says that all but the program is there, and comes back when that shall run.
fn await_start(link: BorrowedFd<'_>) {
    if Report::Made.send(link).is_err() || Order::receive(link) != Some(Order::Start) {
        // The spawner is gone, or does not want it any more.
        system::leave(0);
    }
}

fn give_up(link: BorrowedFd<'_>, step: Step, error: &io::Error) -> ! {
    // If it cannot be told, the end of this process tells enough.
    let _ = Report::failed(step, error).send(link);
    system::leave(1)
}

/// All that does not depend on what it will be.
fn make_ready(blank: &Blank) -> Result<(), (Step, io::Error)> {
    let at = |step: Step| move |error: io::Error| (step, error);
    forget_spawner(blank).map_err(at(Step::Root))?;
    die_with_spawner().map_err(at(Step::Identity))?;
    root::begin().map_err(at(Step::Root))?;
    if Order::receive(blank.link.as_fd()) != Some(Order::Go) {
        system::leave(0);
    }
    system::unshare(libc::CLONE_NEWCGROUP).map_err(at(Step::Cgroup))?;
    rustix::system::sethostname(b"sandbox").map_err(|errno| (Step::HostName, errno.into()))
}

fn become_sandbox(blank: &Blank, plan: &mut Plan) -> Result<(), (Step, io::Error)> {
    let at = |step: Step| move |error: io::Error| (step, error);
    // Before it makes files, which are to be its own. It has its rights over its namespaces still.
    privileges::become_user(blank).map_err(at(Step::Identity))?;
    // A change of user has cleared it.
    die_with_spawner().map_err(at(Step::Identity))?;
    match &plan.image {
        None => root::enter(plan).map_err(at(Step::Root))?,
        // Its walls are the runtime's.
        Some(_) if plan.is_delegated() => return delegate::enter(plan).map_err(at(Step::Container)),
        Some(image) => container::enter(plan, image).map_err(at(Step::Container))?,
    }
    restrict(blank, plan)
}

/// What a process does to itself when its root is as it shall be. What it forks after that has the same.
fn restrict(blank: &Blank, plan: &Plan) -> Result<(), (Step, io::Error)> {
    let at = |step: Step| move |error: io::Error| (step, error);
    // A program that is executed is again what a program is; a copy says so.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|errno| (Step::Identity, errno.into()))?;
    privileges::drop_capabilities().map_err(at(Step::Capabilities))?;
    landlock::restrict(plan).map_err(at(Step::Landlock))?;
    blank.filters.apply(plan.network, plan.devices).map_err(at(Step::Seccomp))
}

/// Closes what belongs to the spawner or the template, and to other sandboxes, but for where messages are printed.
fn forget_spawner(blank: &Blank) -> io::Result<()> {
    let mut kept = blank.kept.clone();
    kept.extend([libc::STDOUT_FILENO, libc::STDERR_FILENO, blank.link.as_raw_fd()]);
    system::keep_only(&mut kept)?;
    // Until the program has its own: else the next descriptor would be what it will be taken for.
    Ok(rustix::stdio::dup2_stdin(&blank.link)?)
}

fn die_with_spawner() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}
