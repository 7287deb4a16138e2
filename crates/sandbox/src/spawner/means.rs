//! The means by which every first process is made: control groups, users, filters of system calls, and the root.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::Mode;

use super::cgroups::Cgroups;
use super::opened_files::OpenedFiles;
use super::root;
use super::users::UserRange;
use super::view::Views;
use super::weak::WeakRoot;
use crate::inside::seccomp::Filters;
use crate::{DevicePlace, SandboxError, Walls};

/// Operation that fails on kernels that are too old.
const NO_MOUNT_CALLS: &str = "mounting the root of sandboxes (by mount_setattr, which Linux has from 5.12 on, and this machine has not)";
/// Umask of the spawner and of every sandbox, whichever umask the agent has: other users may read new files.
const UMASK: Mode = Mode::WGRP.union(Mode::WOTH);
/// Means by which every first process is made.
pub(super) struct SpawnMeans {
    pub(super) cgroups: Cgroups,
    pub(super) users: UserRange,
    pub(super) filters: Rc<Filters>,
    pub(super) root: SandboxRoot,
}

/// Files of the host that sandboxes see.
pub(super) enum SandboxRoot {
    /// Sandboxes have a root of their own.
    Own(OwnRoot),
    /// Sandboxes see the host's root.
    Weak(WeakRoot),
}

/// Parts of the roots that sandboxes have for themselves.
pub(super) struct OwnRoot {
    pub(super) views: Views,
    pub(super) opened: OpenedFiles,
    /// Paths of the host that are shown beneath [`crate::SCRATCH`], without the first slash.
    pub(super) kept: Vec<CString>,
}

impl SpawnMeans {
    /// Opens the means of a spawner with these walls, before anything else uses this process.
    pub(super) fn open(
        folder: &Path,
        (shown, places): (&[PathBuf], &[DevicePlace]),
        walls: Walls,
    ) -> Result<SpawnMeans, SandboxError> {
        let failed = |what: &'static str| move |error: std::io::Error| SandboxError::system(what, error);
        // Sandboxes are other users, and have to read the files that this process makes.
        rustix::process::umask(UMASK);
        // Control groups are opened before the namespaces, in which the name of this process's group would be another.
        let cgroups = Cgroups::open();
        let shown = root::outermost(shown);
        let (users, root) = match walls {
            Walls::Full => {
                let users = UserRange::enter().map_err(failed("entering a user namespace"))?;
                let root = OwnRoot::mount(folder, (&shown, places), &users).map_err(|error| {
                    let is_missing = error.raw_os_error() == Some(libc::ENOSYS);
                    let what = "mounting the root of sandboxes";
                    SandboxError::system(if is_missing { NO_MOUNT_CALLS } else { what }, error)
                })?;
                (users, SandboxRoot::Own(root))
            }
            Walls::Weak => {
                let root = WeakRoot::open(shown).map_err(failed("isolating weakly"))?;
                (UserRange::own(), SandboxRoot::Weak(root))
            }
        };
        Ok(SpawnMeans { cgroups, users, filters: Filters::compile().into(), root })
    }

    pub(super) fn walls(&self) -> Walls {
        match self.root {
            SandboxRoot::Own(_) => Walls::Full,
            SandboxRoot::Weak(_) => Walls::Weak,
        }
    }
}

impl SandboxRoot {
    /// # Errors
    /// If sandboxes see the host's root.
    pub(super) fn own(&mut self) -> Result<&mut OwnRoot, SandboxError> {
        match self {
            SandboxRoot::Own(root) => Ok(root),
            SandboxRoot::Weak(_) => Err(WeakRoot::refusal("a root of its own")),
        }
    }
}

impl OwnRoot {
    fn mount(
        folder: &Path,
        (shown, places): (&[PathBuf], &[DevicePlace]),
        users: &UserRange,
    ) -> std::io::Result<OwnRoot> {
        root::unshare_mounts()?;
        let views = Views::open(folder)?;
        let mut opened = OpenedFiles::open(folder, users.are_own())?;
        root::mount_common(folder, (shown, places), &views, &mut opened)?;
        Ok(OwnRoot { views, opened, kept: root::beneath_scratch(shown) })
    }
}
