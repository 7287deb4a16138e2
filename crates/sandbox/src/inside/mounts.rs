//! Copies mounts, and attaches them at other places.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

/// Mount point of [`crate::SHARED_MEMORY`] in the common root.
pub(crate) const SHARED_POINT: &str = "dev/shm";

/// Mounts what is at one place at another, too, with all that is mounted beneath.
pub(super) fn attach_copy(from: &str, to: &str) -> io::Result<OwnedFd> {
    let tree = copy(from)?;
    attach(&tree, Path::new(to))?;
    Ok(tree)
}

/// Mounts it there.
pub(super) fn attach(mount: &OwnedFd, path: &Path) -> io::Result<()> {
    Ok(move_mount(mount.as_fd(), "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Returns a detached copy of the mount at a path and of all mounts beneath it.
pub(super) fn copy(path: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(CWD, path, flags)?)
}
