//! What a new process does to itself before it becomes the sandbox's program.
//!
//! ```text
//! spawner           init, the sandbox's first process                       program
//!    │ clone: namespaces, pooled network, cgroup (v2)
//!    ├──────────────────► root: mounts, pivot
//!    │ maps of users, cgroup (v1)
//!    ├─── go ───────────► identity, host name, capabilities, Landlock, seccomp
//!    │◄── made ───────────┤
//!    ├─── start ────────► │ fork ────────────────────────────────────────► limits, descriptors
//!    │◄── started (with the kernel's word for its pid) ────────────────────┤
//!    │◄── running ────────┤                                                │ exec
//!    │                    │ passes on what is printed, reaps ◄─────────────┤ ends
//!    │◄── ended ──────────┘
//! ```
//!
//! Init has all restrictions before the program is there, so both have the same; it differs in that it cannot be traced
//! by the program, and that the kernel ends everything in the sandbox when it ends.
//!
//! All of this runs in a process forked from the spawner, which has a single thread: it may allocate and fail like any
//! other. It never returns into the spawner's code.

mod init;
mod landlock;
mod privileges;
mod report;
mod root;
pub(crate) mod seccomp;

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;

use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal};

use crate::Network;
use crate::system;
pub(crate) use report::{Order, Report, Step};
pub(crate) use root::{MountPoint, PROGRAM, SYSTEM_FOLDERS};
use seccomp::Filters;

/// All that the new process needs, made before it is there.
pub(crate) struct Plan {
    /// Detached mounts, and where they belong.
    pub(crate) mounts: Vec<(MountPoint, OwnedFd)>,
    pub(crate) args: Vec<CString>,
    pub(crate) env: Vec<CString>,
    pub(crate) control: OwnedFd,
    /// To the spawner.
    pub(crate) link: OwnedFd,
    pub(crate) network: Network,
    pub(crate) scratch_bytes: u64,
    pub(crate) processes: Option<u32>,
    /// As whom it appears to itself.
    pub(crate) user: u32,
    /// Whether the groups of the spawner's user can be left: not without privileges.
    pub(crate) leaves_groups: bool,
    pub(crate) filters: Rc<Filters>,
}

/// The life of a sandbox's first process.
pub(crate) fn run(plan: Plan) -> ! {
    let link = plan.link.as_fd();
    let Err((step, error)) = prepare(&plan) else {
        if Report::Made.send(link).is_ok() && Order::receive(link) == Some(Order::Start) {
            init::run(&plan)
        }
        // The spawner is gone, or does not want it any more.
        system::leave(0)
    };
    // If it cannot be told, the end of this process tells enough.
    let _ = Report::failed(step, &error).send(link);
    system::leave(1)
}

fn prepare(plan: &Plan) -> Result<(), (Step, std::io::Error)> {
    let at = |step: Step| move |error: std::io::Error| (step, error);
    forget_spawner(plan).map_err(at(Step::Root))?;
    die_with_spawner().map_err(at(Step::Identity))?;
    root::enter(plan).map_err(at(Step::Root))?;
    if Order::receive(plan.link.as_fd()) != Some(Order::Go) {
        system::leave(0);
    }
    system::unshare(libc::CLONE_NEWCGROUP).map_err(at(Step::Cgroup))?;
    privileges::become_user(plan).map_err(at(Step::Identity))?;
    // A change of user has cleared it.
    die_with_spawner().map_err(at(Step::Identity))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|errno| (Step::Identity, errno.into()))?;
    rustix::system::sethostname(b"sandbox").map_err(|errno| (Step::HostName, errno.into()))?;
    privileges::drop_capabilities().map_err(at(Step::Capabilities))?;
    landlock::restrict(plan.network).map_err(at(Step::Landlock))?;
    plan.filters.apply(plan.network).map_err(at(Step::Seccomp))
}

/// Closes what belongs to the spawner and to its other sandboxes, but for where messages are printed.
fn forget_spawner(plan: &Plan) -> std::io::Result<()> {
    let own = [libc::STDOUT_FILENO, libc::STDERR_FILENO, plan.control.as_raw_fd(), plan.link.as_raw_fd()];
    let mounts = plan.mounts.iter().map(|(_, mount)| mount.as_raw_fd());
    system::keep_only(&mut own.into_iter().chain(mounts).collect::<Vec<_>>())
}

fn die_with_spawner() -> std::io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}
