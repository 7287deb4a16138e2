//! A sandbox's root: the host's shared libraries, a few devices, the program and its folder, all read-only; its own
//! processes as `/proc`; and `/tmp` and `/dev/shm` in memory, of limited sizes.
//!
//! The spawner mounts the common parts of all sandboxes once, as the common root, which is its working directory. A new
//! process has a copy of the spawner's mounts, in which everything is locked: read-only mounts stay so even for a
//! process with all rights in the sandbox.

use std::ffi::{CString, OsStr};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{MountFlags, MoveMountFlags, UnmountFlags, mount, mount_remount, move_mount, unmount};

use super::mounts::{SHARED_POINT, attach, attach_copy, copy};
use super::plan::LentFolderMount;
use super::{CreationPlan, processes};
use crate::Devices;

/// Mount point of [`crate::LENT_FOLDERS`] in the common root.
pub(crate) const FOLDERS_POINT: &str = "folders";
/// Mount point of [`crate::SCRATCH`] in the common root.
pub(super) const SCRATCH_POINT: &str = "tmp";
const PAGE_BYTES: u64 = 4096;
/// Number of files for the folders above each thing that is shown beneath [`crate::SCRATCH`].
const FILES_OF_KEPT: u64 = 16;
/// Number of files in [`crate::SHARED_MEMORY`] beside those of the sandbox.
const OWN_SHARED_FILES: u64 = 2;

/// Makes a copy of the common root that is this process's own, with its processes, and goes there.
pub(super) fn begin() -> io::Result<()> {
    copy_common()?;
    processes::mount_own()
}

/// Makes a copy of the common root this process's root, in the namespace of the spawner's processes.
pub(super) fn enter_template() -> io::Result<()> {
    begin_template()?;
    make_root()
}

/// Makes a copy of the common root that is a template's own, and goes there.
pub(super) fn begin_template() -> io::Result<()> {
    copy_common()?;
    // The kernel allows a new `/proc` in a user namespace only if one is visible there. Each sandbox mounts its own
    // over this one.
    processes::mount_for_template()
}

fn copy_common() -> io::Result<()> {
    Ok(rustix::process::fchdir(attach_copy(".", ".")?)?)
}

/// Mounts in there what only this sandbox has, and makes it the root. Nothing else of what the spawner sees is left.
pub(super) fn enter(plan: &CreationPlan) -> io::Result<()> {
    mount_given(plan)?;
    let kept: Vec<_> = plan.kept.iter().map(copy).collect::<io::Result<_>>()?;
    let flags = match plan.devices {
        Devices::None | Devices::Faults => MountFlags::NOEXEC,
        Devices::Drivers | Devices::Gpu | Devices::Own => MountFlags::empty(),
    };
    mount_scratch(SCRATCH_POINT, plan.scratch_bytes, own_files(plan), "1777", flags)?;
    mount_shared(plan)?;
    if !plan.folders.is_empty() {
        mount_folders(plan)?;
    }
    for (path, mount) in plan.kept.iter().zip(kept) {
        show_again(Path::new(OsStr::from_bytes(path.to_bytes())), &mount)?;
    }
    make_root()
}

/// Adds to a root that [`enter`] has made for a process on standby what only its program has: mounts over those that are
/// there, and the sizes of its own files.
pub(super) fn complete(plan: &CreationPlan) -> io::Result<()> {
    debug_assert!(
        plan.folders.is_empty() && plan.device_mounts.is_empty(),
        "a program that was on standby has {} lent folders and {} mounts of devices",
        plan.folders.len(),
        plan.device_mounts.len()
    );
    mount_given(plan)?;
    resize(SCRATCH_POINT, plan.scratch_bytes, own_files(plan))?;
    resize_shared(plan)
}

/// Sets the size of [`crate::SHARED_MEMORY`], from the root as the working directory.
pub(super) fn resize_shared(plan: &CreationPlan) -> io::Result<()> {
    resize(SHARED_POINT, plan.shared_bytes, OWN_SHARED_FILES)
}

fn mount_given(plan: &CreationPlan) -> io::Result<()> {
    for (place, detached) in &plan.mounts {
        move_mount(detached, "", CWD, place.0, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    }
    for one in &plan.device_mounts {
        let mount = one.mount.as_ref().ok_or(io::ErrorKind::InvalidData)?;
        attach(mount, Path::new(OsStr::from_bytes(one.place.to_bytes())))?;
    }
    Ok(())
}

/// Number of files in [`crate::SCRATCH`] beside those of the sandbox.
fn own_files(plan: &CreationPlan) -> u64 {
    2 + FILES_OF_KEPT * plan.kept.len() as u64
}

/// Mounts the folders that are lent to the sandbox, in a read-only folder of its own.
fn mount_folders(plan: &CreationPlan) -> io::Result<()> {
    mount_scratch(FOLDERS_POINT, 0, 1 + plan.folders.len() as u64, "755", MountFlags::NOEXEC)?;
    for folder in &plan.folders {
        attach_folder(folder, &Path::new(FOLDERS_POINT).join(&folder.name))?;
    }
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount_remount(FOLDERS_POINT, flags | MountFlags::NOEXEC, "")?)
}

/// Mounts a lent folder at a path where nothing is yet.
pub(super) fn attach_folder(folder: &LentFolderMount, path: &Path) -> io::Result<()> {
    let mount = folder.mount.as_ref().ok_or(io::ErrorKind::InvalidData)?;
    make_place(path, mount)?;
    attach(mount, path)
}

/// Shows what the sandbox's own files have covered.
fn show_again(path: &Path, mount: &OwnedFd) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    make_place(path, mount)?;
    attach(mount, path)
}

/// Makes what it can be mounted on there.
pub(super) fn make_place(path: &Path, mount: &OwnedFd) -> io::Result<()> {
    match is_folder(mount)? {
        true => DirBuilder::new().mode(0o755).create(path),
        false => File::create(path).map(drop),
    }
}

fn is_folder(mount: &OwnedFd) -> io::Result<bool> {
    Ok(rustix::fs::fstat(mount)?.st_mode & libc::S_IFMT == libc::S_IFDIR)
}

/// Makes the working directory the root, which must be where something is mounted.
pub(super) fn make_root() -> io::Result<()> {
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}

/// Mounts [`crate::SHARED_MEMORY`]: named shared memory and semaphores of the sandbox's processes.
pub(super) fn mount_shared(plan: &CreationPlan) -> io::Result<()> {
    mount_scratch(SHARED_POINT, plan.shared_bytes, OWN_SHARED_FILES, "1777", MountFlags::NOEXEC)
}

/// Mounts memory for the files that the sandbox writes, at a folder, with `own_files` files beside those of the
/// sandbox.
pub(super) fn mount_scratch(
    folder: &str,
    len_bytes: u64,
    own_files: u64,
    mode: &str,
    flags: MountFlags,
) -> io::Result<()> {
    let options = CString::new(format!("{},mode={mode}", sizes(len_bytes, own_files)))?;
    let flags = flags | MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount("tmpfs", folder, "tmpfs", flags, Some(options.as_c_str()))?)
}

/// Changes the size of files that [`mount_scratch`] has mounted for a process. Fails if they are larger.
fn resize(folder: &str, len_bytes: u64, own_files: u64) -> io::Result<()> {
    let flags = MountFlags::NOEXEC | MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount_remount(folder, flags, sizes(len_bytes, own_files))?)
}

/// Options of a file system in memory.
fn sizes(len_bytes: u64, own_files: u64) -> String {
    // The kernel takes a size of 0 as no limit.
    let len_bytes = len_bytes.max(PAGE_BYTES);
    // A file takes a page at least, so no more inodes are of use.
    let inodes = len_bytes / PAGE_BYTES + own_files;
    format!("size={len_bytes},nr_inodes={inodes}")
}
