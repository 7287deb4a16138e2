//! What a new process does to itself before it becomes the sandbox's program.
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
//! What comes before the plan is the same for all, and happens before anybody asks: it is what takes long, above all
//! entering a control group of version 1, for which the kernel waits until all processors have taken note.
//!
//! Init has all restrictions before the program is there, so both have the same; it differs in that it cannot be traced
//! by the program, and that the kernel ends everything in the sandbox when it ends.
//!
//! All of this runs in a process forked from the spawner, which has a single thread: it may allocate and fail like any
//! other. It never returns into the spawner's code.

mod container;
mod delegate;
mod init;
mod landlock;
mod plan;
mod privileges;
mod report;
mod root;
pub(crate) mod seccomp;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;

use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal};

use crate::system;
pub(crate) use plan::Plan;
pub(crate) use report::{Order, Report, Step};
pub(crate) use root::{MountPoint, PROGRAM, SYSTEM_FOLDERS};
use seccomp::Filters;

/// What a process is made with, before anybody knows what it will be.
pub(crate) struct Blank {
    /// To the spawner.
    pub(crate) link: OwnedFd,
    /// As whom it will appear to itself: the sandbox's user, or root for an OCI runtime.
    pub(crate) user: u32,
    /// Whether the groups of the spawner's user can be left: not without privileges.
    pub(crate) leaves_groups: bool,
    pub(crate) filters: Rc<Filters>,
}

/// The life of a sandbox's first process.
pub(crate) fn run(blank: Blank) -> ! {
    let link = blank.link.as_fd();
    let prepared = make_ready(&blank).and_then(|()| {
        let mut plan = plan::receive(link).map_err(|error| (Step::Plan, error))?;
        become_sandbox(&blank, &mut plan).map(|()| plan)
    });
    match prepared {
        Ok(plan) => {
            if Report::Made.send(link).is_ok() && Order::receive(link) == Some(Order::Start) {
                init::run(&plan, &blank.link)
            }
            // The spawner is gone, or does not want it any more.
            system::leave(0)
        }
        Err((step, error)) => {
            // If it cannot be told, the end of this process tells enough.
            let _ = Report::failed(step, &error).send(link);
            system::leave(1)
        }
    }
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
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|errno| (Step::Identity, errno.into()))?;
    privileges::drop_capabilities().map_err(at(Step::Capabilities))?;
    landlock::restrict(plan).map_err(at(Step::Landlock))?;
    blank.filters.apply(plan.network).map_err(at(Step::Seccomp))
}

/// Closes what belongs to the spawner and to its other sandboxes, but for where messages are printed.
fn forget_spawner(blank: &Blank) -> io::Result<()> {
    system::keep_only(&mut [libc::STDOUT_FILENO, libc::STDERR_FILENO, blank.link.as_raw_fd()])
}

fn die_with_spawner() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}
