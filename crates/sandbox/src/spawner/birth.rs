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
use super::weak::WeakRoot;
use super::{SandboxRoot, SpawnMeans, Workshop, root};
use crate::inside::{self, Blank, CreationPlan, NAMESPACES, SandboxOrder, SandboxReport};
use crate::system::{Clone, Fork, clone};
use crate::{
    FolderAccess, IsolationKind, NetworkAccess, SandboxError, SandboxId, Spec, Template, USER, Walls,
};

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

/// Has a process that waits for it become a sandbox, which is not complete before [`await_made`].
pub(super) fn begin(workshop: &mut Workshop, id: SandboxId, spec: Spec) -> Result<Sandbox, SandboxError> {
    if let SandboxRoot::Weak(_) = workshop.means.root {
        return begin_weak(workshop, id, spec);
    }
    let failed = |what: &'static str| move |error: io::Error| SandboxError::system(what, error);
    let program = spec.program.path();
    let own = workshop.means.root.own()?;
    let named = |error| SandboxError::system(format!("showing a sandbox {}", program.display()), error);
    let mut mounts = root::mounts_of(&spec, &mut own.opened).map_err(named)?;
    let view = own.views.of(&spec.limits.distinct_cores(), spec.limits.shown());
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
    let kept = &workshop.means.root.own()?.kept;
    let plan = CreationPlan::new(id, spec, mounts, (layers, folders), kept)
        .map_err(failed("reading a specification"))?;
    tell(plan, sandbox)
}

/// Has a process that waits for it become a sandbox of weak isolation, which is not complete before [`await_made`].
fn begin_weak(workshop: &mut Workshop, id: SandboxId, spec: Spec) -> Result<Sandbox, SandboxError> {
    let failed = |what: &'static str| move |error: io::Error| SandboxError::system(what, error);
    let SandboxRoot::Weak(root) = &workshop.means.root else {
        return Err(failed("isolating weakly")(io::ErrorKind::Unsupported.into()));
    };
    WeakRoot::check(&spec)?;
    let readable = root.readable(&spec);
    let mut sandbox = match &spec.kind {
        IsolationKind::Template(template) => {
            // A template has no walls here, so it imports no module that a tenant has named.
            let bare = Template { imports: Vec::new(), ..template.clone() };
            workshop.templates.take(&mut workshop.means, &bare)?
        }
        _ => workshop.take(spec.network, false)?,
    };
    sandbox.limit(&spec.limits).map_err(failed("limiting a sandbox"))?;
    let plan = CreationPlan::weak(id, spec, &readable).map_err(failed("reading a specification"))?;
    tell(plan, sandbox)
}

/// Tells a process what it becomes.
fn tell(plan: CreationPlan, sandbox: Sandbox) -> Result<Sandbox, SandboxError> {
    match plan.send(sandbox.link()) {
        Ok(()) => Ok(sandbox),
        Err(error) => Err(reported(&sandbox)
            .unwrap_or_else(|| SandboxError::system("telling a sandbox what to become", error))),
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
fn fork(blank: &Blank, network: NetworkAccess, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Born> {
    let flags = match (blank.walls, network) {
        (Walls::Weak, _) => 0,
        (Walls::Full, NetworkAccess::None) => NAMESPACES | libc::CLONE_NEWNET,
        (Walls::Full, NetworkAccess::Host) => NAMESPACES,
    };
    match clone(Clone { flags, cgroup, is_sibling: false }) {
        Ok(Fork::Child) => inside::run(blank),
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
