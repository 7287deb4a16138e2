//! A sandbox's `/proc`: its own processes, and the spawner's files in place of the kernel's files about the machine.
//!
//! The kernel can leave its files about the machine out of a `/proc` (`subset=pid`). After that, no file can be mounted in their
//! places either. So the sandbox's first process mounts the whole `/proc`, mounts the spawner's files over the kernel's, and then
//! remounts `/proc` with `subset=pid`. From then on the kernel finds no name at the top of this `/proc` but processes and names
//! that it has cached. See [`mount_with`] for why it has cached only names that the spawner's files cover.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, mount, mount_remount, move_mount, open_tree};

use super::mounts::{SHARED_POINT, attach_copy};

/// Files of a sandbox's `/proc` other than processes. Over the first three each sandbox gets files about its own cores
/// and memory.
const PROCESS_FILES: [&str; 13] = [
    "proc/meminfo",
    "proc/cpuinfo",
    "proc/stat",
    "proc/diskstats",
    "proc/filesystems",
    "proc/loadavg",
    "proc/mounts",
    "proc/net",
    "proc/swaps",
    "proc/sys",
    "proc/uptime",
    "proc/version",
    "proc/vmstat",
];
const FOLDER: &str = "proc";
const FLAGS: MountFlags =
    MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC).union(MountFlags::RDONLY);

/// Mounts the sandbox's `/proc` in the working directory. On a host that does not see all of its own `/proc`, as in many
/// containers, the kernel refuses this mount: the sandbox then has the spawner's files, and no processes.
pub(super) fn mount_own() -> io::Result<()> {
    mount_with("subset=pid", || Ok(()))
}

/// Mounts a template's `/proc`. A template is in the process namespace of the spawner and sees only its own processes there
/// (`hidepid`). Without the right to mount such a `/proc` the template sees what the spawner's user sees.
///
/// The kernel lets a user namespace mount a `/proc` only where it already sees one that nothing is mounted over. So a template has a
/// second `/proc` without the spawner's files, in the folder that each of its copies covers with [`crate::SHARED_MEMORY`].
pub(super) fn mount_for_template() -> io::Result<()> {
    match mount(FOLDER, SHARED_POINT, FOLDER, FLAGS, Some(c"subset=pid,hidepid=invisible")) {
        Err(Errno::PERM) => drop(attach_copy("/proc", SHARED_POINT)?),
        mounted => mounted?,
    }
    mount_with("subset=pid,hidepid=invisible", || {
        let files = files()?;
        drop(attach_copy("/proc", FOLDER)?);
        attach(&files)
    })
}

/// Mounts `/proc` with these options and the spawner's files over the kernel's.
///
/// `subset=pid` takes effect where the kernel looks a name up, so names that it has cached for this mount are still found. Each
/// mount of `/proc` has a cache of its own, which begins empty. Only this process sees the mount before the remount, and it looks
/// up nothing but the names in [`PROCESS_FILES`]. Each of them has a file of the spawner's mounted over it, or does not exist in
/// this kernel; a mount also keeps its name in the cache. So do not look up any other name here before the remount.
fn mount_with(options: &str, otherwise: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let files = files()?;
    match mount(FOLDER, FOLDER, FOLDER, FLAGS, None) {
        Err(Errno::PERM) => return otherwise(),
        mounted => mounted?,
    }
    attach(&files)?;
    Ok(mount_remount(FOLDER, FLAGS, options)?)
}

/// The spawner's files as detached mounts.
fn files() -> io::Result<Vec<(&'static str, OwnedFd)>> {
    // `mounts` and `net` are symbolic links into the folders of processes, and stay links.
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let tree = |path: &'static str| Ok((path, open_tree(CWD, path, flags)?));
    PROCESS_FILES.into_iter().map(tree).collect()
}

fn attach(files: &[(&str, OwnedFd)]) -> io::Result<()> {
    for (path, file) in files {
        match move_mount(file, "", CWD, *path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH) {
            // This kernel was built without the file, so the sandbox has none.
            Err(Errno::NOENT) => {}
            attached => attached?,
        }
    }
    Ok(())
}
