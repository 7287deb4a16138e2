//! Makes first processes of sandboxes: forks each into its namespaces and its control group, ahead of time.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::RecvFlags;
use rustix::process::Pid;

use super::cgroups::Cgroup;
use super::link::link;
use super::means::SpawnMeans;
use super::sandbox::Sandbox;
use super::template::TemplateProcess;
use crate::inside::{self, Blank, NAMESPACES, SandboxOrder, SandboxReport};
use crate::system::{Clone, Fork, clone};
use crate::{NetworkAccess, SandboxError, USER, Walls};

/// Makes the first process of a sandbox, of which nothing is decided but whether it has the host's network, and whether it is
/// root in there for an OCI runtime. It waits for what it is to become.
pub(super) fn blank(
    means: &mut SpawnMeans,
    network: NetworkAccess,
    is_root: bool,
) -> Result<Sandbox, SandboxError> {
    let leaves_groups = means.users.leave_groups();
    let filters = means.filters.clone();
    let user = if is_root { 0 } else { USER };
    let walls = means.walls();
    bring_forth(means, is_root, |link, begin_in| {
        fork(&Blank { link, user, leaves_groups, filters, kept: Vec::new(), walls }, network, begin_in)
    })
}

/// Has a template make one. An error leaves it open whether the template is still there.
pub(super) fn copy(means: &mut SpawnMeans, template: &mut TemplateProcess) -> Result<Sandbox, SandboxError> {
    let (leaves_groups, walls) = (means.users.leave_groups(), means.walls());
    bring_forth(means, false, |link, _| {
        let (pid, pidfd) = template.fork(&link, leaves_groups, walls)?;
        Ok(Born { pid, pidfd, is_in_group: false })
    })
}

/// A new process, and whether it began in its control group.
struct Born {
    pid: Pid,
    pidfd: OwnedFd,
    is_in_group: bool,
}

/// Makes a first process by a fork, which is given its end of the connection and the control group in which it could begin.
fn bring_forth(
    means: &mut SpawnMeans,
    is_root: bool,
    fork: impl FnOnce(OwnedFd, Option<BorrowedFd<'_>>) -> io::Result<Born>,
) -> Result<Sandbox, SandboxError> {
    let failed = |what: &'static str| move |error: io::Error| SandboxError::system(what, error);
    let (link, theirs) = link().map_err(failed("connecting a sandbox"))?;
    let cgroup = means.cgroups.make();
    let users = if is_root { means.users.take_with_root() } else { means.users.take() };
    let users = users.map_err(failed("finding a sandbox a user"))?;
    let begin_in = cgroup.as_ref().and_then(|cgroup| cgroup.begin_in());
    let Born { pid, pidfd, is_in_group } = fork(theirs, begin_in).map_err(not_forked)?;
    let sandbox = Sandbox::new(pid, pidfd, (link, means.walls()), cgroup, users);
    let group = sandbox.cgroup().filter(|_| !is_in_group);
    match tell_who_it_is(means, pid, &sandbox, group) {
        Ok(()) => Ok(sandbox),
        // It may have ended already, and have said why.
        Err(error) => Err(reported(&sandbox).unwrap_or_else(|| failed("telling a sandbox who it is")(error))),
    }
}

/// The error of a first process that cannot be forked. The kernel's own word for a machine without user namespaces means
/// a full disk elsewhere.
fn not_forked(error: io::Error) -> SandboxError {
    match error.raw_os_error() {
        Some(libc::ENOSPC) => {
            let what =
                "forking a sandbox into namespaces of its own (a limit of /proc/sys/user is 0 or reached)";
            SandboxError::system(what, error)
        }
        _ => SandboxError::system("forking a sandbox", error),
    }
}

/// Returns the error that a sandbox has reported, if any.
pub(super) fn reported(sandbox: &Sandbox) -> Option<SandboxError> {
    match SandboxReport::receive(sandbox.link(), RecvFlags::DONTWAIT) {
        Ok(Some((SandboxReport::Failed { step, errno }, _))) => {
            Some(SandboxError::system(step.describe(), io::Error::from_raw_os_error(errno)))
        }
        _ => None,
    }
}

/// The new process never comes back from here.
fn fork(blank: &Blank, network: NetworkAccess, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Born> {
    let flags = match (blank.walls, network) {
        (Walls::Weak, _) => 0,
        (Walls::Full, NetworkAccess::None) => NAMESPACES | libc::CLONE_NEWNET,
        (Walls::Full, NetworkAccess::Host) => NAMESPACES,
    };
    match clone(Clone { flags, cgroup, is_sibling: false }) {
        Ok(Fork::Child) => inside::first::run(blank),
        Ok(Fork::Parent(pid, pidfd)) => Ok(Born { pid, pidfd, is_in_group: cgroup.is_some() }),
        // Where only the older call is there, the process enters its group afterwards.
        Err(error) if cgroup.is_some() && error.raw_os_error() == Some(libc::ENOSYS) => {
            fork(blank, network, None)
        }
        Err(error) => Err(error),
    }
}

fn tell_who_it_is(means: &SpawnMeans, pid: Pid, sandbox: &Sandbox, group: Option<&Cgroup>) -> io::Result<()> {
    if means.walls() == Walls::Full {
        means.users.map(pid, sandbox.users())?;
    }
    if let Some(group) = group {
        group.adopt(pid)?;
    }
    SandboxOrder::Go.send(sandbox.link())
}
