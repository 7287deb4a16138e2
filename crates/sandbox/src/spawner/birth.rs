//! Creates a sandbox of a first process ([`first_process`](super::first_process)): sends its plan, and waits for it.
//!
//! The steps are separate so that those of a vector run side by side: all plans are sent before the first sandbox is
//! awaited.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::RecvFlags;

use super::first_process::reported;
use super::means::SandboxRoot;
use super::root;
use super::sandbox::Sandbox;
use super::templates::Stock;
use super::weak::WeakRoot;
use super::workshop::Workshop;
use crate::inside::{CreationPlan, MountPoint, SandboxOrder, SandboxReport};
use crate::{FolderAccess, IsolationKind, SandboxError, SandboxId, Spec, Template};

/// Has a process that waits for it become a sandbox, which is not complete before [`await_made`].
pub(super) fn begin(
    workshop: &mut Workshop,
    id: SandboxId,
    (spec, stock): (Spec, Stock),
) -> Result<Sandbox, SandboxError> {
    if let SandboxRoot::Weak(_) = workshop.means.root {
        return begin_weak(workshop, id, (spec, stock));
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
    let device_mounts = root::device_mounts_of(&spec)?;
    let mut sandbox = match &spec.kind {
        IsolationKind::Template(template) => workshop.copy(template, (&spec, stock))?,
        kind => {
            let has_root = matches!(kind, IsolationKind::Delegated { .. });
            workshop.take((spec.network, has_root), stock)?
        }
    };
    if sandbox.is_standby() {
        // It has imported from the environment. In an image it has also loaded its adapter, which is where the program is.
        let is_in_image = spec.kind.image().is_some();
        mounts.retain(|(place, _)| {
            *place != MountPoint::ENVIRONMENT && !(is_in_image && *place == MountPoint::PROGRAM)
        });
    }
    // One on standby has its layers already.
    let new_layers = layers.iter().filter(|_| !sandbox.is_standby());
    let owned = new_layers.map(AsFd::as_fd).try_for_each(|layer| sandbox.make_owner(layer));
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
    let plan = CreationPlan::new(id, spec, mounts, (layers, folders, device_mounts), kept)
        .map_err(failed("reading a specification"))?;
    tell(plan, sandbox)
}

/// Has a process that waits for it become a sandbox of weak isolation, which is not complete before [`await_made`].
fn begin_weak(
    workshop: &mut Workshop,
    id: SandboxId,
    (spec, stock): (Spec, Stock),
) -> Result<Sandbox, SandboxError> {
    let failed = |what: &'static str| move |error: io::Error| SandboxError::system(what, error);
    let SandboxRoot::Weak(root) = &workshop.means.root else {
        return Err(failed("isolating weakly")(io::ErrorKind::Unsupported.into()));
    };
    WeakRoot::check(&spec)?;
    let readable = root.readable(&spec);
    let mut sandbox = match &spec.kind {
        IsolationKind::Template(template) => {
            // A template has no walls here, so it imports no module that a tenant has named.
            let bare = Template { imports: Vec::new(), owner: None, ..template.clone() };
            workshop.copy(&bare, (&spec, stock))?
        }
        _ => workshop.take((spec.network, false), stock)?,
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

/// Waits until it is complete but for its program.
pub(super) fn await_made(sandbox: &Sandbox) -> Result<(), SandboxError> {
    expect(sandbox.link(), SandboxReport::Made).map(drop)
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
    if let Some(pid) = sandbox.standby_program() {
        return expect(sandbox.link(), SandboxReport::Running).map(|_| pid);
    }
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
