//! Creates a sandbox: forks it into its namespaces ahead of time, sends its plan, and waits for it.
//!
//! The steps are separate so that those of a vector run side by side: all plans are sent before the first sandbox is
//! awaited.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::RecvFlags;
use rustix::process::Pid;

use super::cgroups::Cgroup;
use super::link::link;
use super::sandbox::Sandbox;
use super::template::TemplateProcess;
use super::{SpawnMeans, Workshop, root};
use crate::inside::{self, Blank, CreationPlan, NAMESPACES, SandboxOrder, SandboxReport};
use crate::system::{Clone, Fork, clone};
use crate::{FolderAccess, IsolationKind, NetworkAccess, SandboxError, SandboxId, Spec, USER};

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
    bring_forth(means, is_root, |link, begin_in| {
        fork(Blank { link, user, leaves_groups, filters, kept: Vec::new() }, network, begin_in)
    })
}

/// Has a template make one. An error leaves it open whether the template is still there.
pub(super) fn copy(means: &mut SpawnMeans, template: &mut TemplateProcess) -> Result<Sandbox, SandboxError> {
    let leaves_groups = means.users.leave_groups();
    bring_forth(means, false, |link, _| {
        let (pid, pidfd) = template.fork(&link, leaves_groups)?;
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
    let Born { pid, pidfd, is_in_group } = fork(theirs, begin_in).map_err(failed("forking a sandbox"))?;
    let sandbox = Sandbox::new(pid, pidfd, link, cgroup, users);
    let group = sandbox.cgroup().filter(|_| !is_in_group);
    match tell_who_it_is(means, pid, &sandbox, group) {
        Ok(()) => Ok(sandbox),
        // It may have ended already, and have said why.
        Err(error) => Err(reported(&sandbox).unwrap_or_else(|| failed("telling a sandbox who it is")(error))),
    }
}

/// Has a process that waits for it become a sandbox, which is not complete before [`await_made`].
pub(super) fn begin(workshop: &mut Workshop, id: SandboxId, spec: Spec) -> Result<Sandbox, SandboxError> {
    let failed = |what: &'static str| move |error: io::Error| SandboxError::system(what, error);
    let program = spec.program.path();
    let named = |error| SandboxError::system(format!("showing a sandbox {}", program.display()), error);
    let mut mounts = root::mounts_of(&spec, &mut workshop.means.opened).map_err(named)?;
    let view = workshop.means.views.of(&spec.limits.distinct_cores(), spec.limits.shown());
    let view = view.and_then(|view| root::show_view(&mut mounts, &view).map(|()| view));
    let view = view.map_err(failed("showing a sandbox its cores and memory"))?;
    let layers = root::layers_of(&spec)?;
    let folders = root::folders_of(&spec)?;
    let mut sandbox = match &spec.kind {
        IsolationKind::Template(template) => workshop.templates.take(&mut workshop.means, template)?,
        kind => workshop.take(spec.network, matches!(kind, IsolationKind::Delegated { .. }))?,
    };
    let owned = layers.iter().try_for_each(|layer| sandbox.make_owner(layer.as_fd()));
    owned
        .map_err(failed("giving a container the files of its image (their file system has to map owners)"))?;
    let writable = spec.lent_folders.iter().zip(&folders);
    let mut writable = writable.filter(|(folder, _)| folder.access == FolderAccess::Write);
    writable
        .try_for_each(|(_, mount)| sandbox.make_owner(mount.as_fd()))
        .map_err(failed("giving a sandbox its part of a lent folder (its file system has to map owners)"))?;
    sandbox.keep(view);
    sandbox.limit(&spec.limits).map_err(failed("limiting a sandbox"))?;
    let plan = CreationPlan::new(id, spec, mounts, (layers, folders), &workshop.means.kept)
        .map_err(failed("reading a specification"))?;
    let told = plan.send(sandbox.link());
    told.map_err(|error| {
        reported(&sandbox).unwrap_or_else(|| failed("telling a sandbox what to become")(error))
    })?;
    Ok(sandbox)
}

/// Waits until it is complete but for its program.
pub(super) fn await_made(sandbox: &Sandbox) -> Result<(), SandboxError> {
    expect(sandbox.link(), SandboxReport::Made).map(drop)
}

/// Returns the error that a sandbox has reported, if any.
fn reported(sandbox: &Sandbox) -> Option<SandboxError> {
    match SandboxReport::receive(sandbox.link(), RecvFlags::DONTWAIT) {
        Ok(Some((SandboxReport::Failed { step, errno }, _))) => {
            Some(SandboxError::system(step.describe(), io::Error::from_raw_os_error(errno)))
        }
        _ => None,
    }
}

/// Has the program started.
pub(super) fn order_start(sandbox: &Sandbox) -> Result<(), SandboxError> {
    let sent = SandboxOrder::Start.send(sandbox.link());
    sent.map_err(|error| {
        reported(sandbox).unwrap_or_else(|| SandboxError::system("reaching a sandbox", error))
    })
}

/// Waits until the program runs; gives its process.
pub(super) fn await_running(sandbox: &Sandbox) -> Result<u32, SandboxError> {
    let pid = expect(sandbox.link(), SandboxReport::Started)?;
    expect(sandbox.link(), SandboxReport::Running)?;
    Ok(pid.unsigned_abs())
}

fn expect(link: BorrowedFd<'_>, expected: SandboxReport) -> Result<i32, SandboxError> {
    let lost = |error| SandboxError::system("hearing from a new sandbox", error);
    match SandboxReport::receive(link, RecvFlags::empty()).map_err(lost)? {
        Some((report, sender)) if report == expected => Ok(sender),
        Some((SandboxReport::Failed { step, errno }, _)) => {
            Err(SandboxError::system(step.describe(), io::Error::from_raw_os_error(errno)))
        }
        // The process was killed while it was made, for example because memory ran out.
        _ => Err(lost(io::ErrorKind::UnexpectedEof.into())),
    }
}

/// The new process never comes back from here.
fn fork(blank: Blank, network: NetworkAccess, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Born> {
    let own_network = match network {
        NetworkAccess::None => libc::CLONE_NEWNET,
        NetworkAccess::Host => 0,
    };
    match clone(Clone { flags: NAMESPACES | own_network, cgroup, is_sibling: false })? {
        Fork::Child => inside::run(&blank),
        Fork::Parent(pid, pidfd) => Ok(Born { pid, pidfd, is_in_group: cgroup.is_some() }),
    }
}

fn tell_who_it_is(means: &SpawnMeans, pid: Pid, sandbox: &Sandbox, group: Option<&Cgroup>) -> io::Result<()> {
    means.users.map(pid, sandbox.users())?;
    if let Some(group) = group {
        group.adopt(pid)?;
    }
    SandboxOrder::Go.send(sandbox.link())
}
