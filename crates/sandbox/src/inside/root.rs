//! A sandbox's root: the host's shared libraries, a few devices, the program and its folder, all read-only; its own
//! processes as `/proc`; and a small `/tmp` in memory.
//!
//! What all sandboxes have in common the spawner mounts once, as the template; its working directory is there. A new
//! process has a copy of the spawner's mounts, in which everything is locked: what was read-only there stays so even
//! for whoever had all rights in the sandbox.

use std::ffi::{CStr, CString};
use std::io;

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, move_mount, open_tree, unmount,
};

use super::Plan;

/// The program, as the sandbox finds it.
pub(crate) const PROGRAM: &CStr = c"/program";
/// Of the host, shown to sandboxes with the host's network, where they are: what RDMA libraries look for.
pub(crate) const SYSTEM_FOLDERS: [MountPoint; 3] =
    [MountPoint("sys"), MountPoint("dev/infiniband"), MountPoint("etc/libibverbs.d")];
/// All places, by which messages number them.
const PLACES: [MountPoint; 5] =
    [MountPoint::PROGRAM, MountPoint::FOLDER, SYSTEM_FOLDERS[0], SYSTEM_FOLDERS[1], SYSTEM_FOLDERS[2]];

/// Where the template has room for [`crate::SCRATCH`].
pub(super) const SCRATCH_POINT: &str = "tmp";

const PAGE_BYTES: u64 = 4096;

/// A place in the template where something can be mounted, relative to the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MountPoint(pub(crate) &'static str);

impl MountPoint {
    pub(crate) const PROGRAM: MountPoint = MountPoint("program");
    pub(crate) const FOLDER: MountPoint = MountPoint("package");

    pub(super) fn number(self) -> u32 {
        PLACES.iter().position(|place| *place == self).map_or(u32::MAX, |number| number as u32)
    }

    pub(super) fn of_number(number: u32) -> Option<MountPoint> {
        PLACES.get(number as usize).copied()
    }
}

/// Makes a copy of the template that is this process's own, and goes there.
pub(super) fn begin() -> io::Result<()> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, ".", flags)?;
    move_mount(&tree, "", CWD, ".", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    rustix::process::fchdir(&tree)?;
    mount_processes()
}

/// Mounts in there what only this sandbox has, and makes it the root. Nothing else of what the spawner sees is left.
pub(super) fn enter(plan: &Plan) -> io::Result<()> {
    for (place, detached) in &plan.mounts {
        move_mount(detached, "", CWD, place.0, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    }
    mount_scratch(SCRATCH_POINT, plan.scratch_bytes, 2, "1777", MountFlags::NOEXEC)?;
    make_root()
}

/// Makes the working directory the root, which must be where something is mounted.
pub(super) fn make_root() -> io::Result<()> {
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}

/// What the sandbox writes, at a folder, with room for so many files beside the sandbox's.
pub(super) fn mount_scratch(
    folder: &str,
    len_bytes: u64,
    own_files: u64,
    mode: &str,
    flags: MountFlags,
) -> io::Result<()> {
    // Of a size of nothing the kernel makes one without a bound.
    let len_bytes = len_bytes.max(PAGE_BYTES);
    // A file takes a page at least, so no more inodes are of use.
    let inodes = len_bytes / PAGE_BYTES + own_files;
    let options = CString::new(format!("size={len_bytes},nr_inodes={inodes},mode={mode}"))?;
    let flags = flags | MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount("tmpfs", folder, "tmpfs", flags, Some(options.as_c_str()))?)
}

/// Only processes: nothing of what else `/proc` tells of the machine, or lets one change.
fn mount_processes() -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    match mount("proc", "proc", "proc", flags, Some(c"subset=pid")) {
        // Where the host itself may not see all of it, as in many containers, a sandbox does without.
        Err(rustix::io::Errno::PERM) => Ok(()),
        mounted => Ok(mounted?),
    }
}
