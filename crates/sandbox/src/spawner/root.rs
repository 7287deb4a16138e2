//! The root that all sandboxes have in common, mounted once, and the detached mounts that each sandbox has for itself.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change, mount_remount,
    move_mount, open_tree,
};

use super::opened_files::OpenedFiles;
use super::view::{ResourceView, Views};
use crate::inside::{
    DRIVER_FOLDERS, FOLDERS_POINT, GPU_NODES, MountPoint, SHARED_POINT, SYSTEM_FOLDERS, USER_NAME, VIEWS,
    user_entry,
};
use crate::system::{self, restrict_mount};
use crate::{
    DeviceMount, DevicePlace, Devices, FolderAccess, IsolationKind, LentFolder, NetworkAccess, RootImage,
    SCRATCH, SandboxError, Spec, Template, USER,
};

/// Memory limit of a template and its modules, in bytes, which the common root shows. A template belongs to no tenant, but
/// tenants name the modules.
pub(super) const TEMPLATE_MEMORY_BYTES: u64 = 4 << 30;
/// Folders and files of hosts with shared libraries, the choice among several libraries, and the dynamic loader's list
/// of them.
pub(super) const LIBRARIES: [&str; 8] = [
    "lib",
    "lib64",
    "usr/lib",
    "usr/lib64",
    "usr/local/lib",
    "etc/alternatives",
    "etc/ld.so.cache",
    "etc/ld.so.conf",
];
/// Folders of time zones where C libraries and languages look for them.
pub(super) const ZONES: [&str; 4] =
    ["usr/share/zoneinfo", "usr/lib/zoneinfo", "usr/share/lib/zoneinfo", "etc/zoneinfo"];
/// The host's own time zone: a link to a file of [`ZONES`], or a copy of one.
pub(super) const LOCAL_ZONE: &str = "etc/localtime";
/// Name of the host's time zone, on hosts that have this file.
pub(super) const LOCAL_ZONE_NAME: &str = "etc/timezone";
/// Name of folders of modules in Node.js.
const NODE_MODULES: &str = "node_modules";
/// The devices that a sandbox has.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// Enters a mount namespace of this process's own.
pub(super) fn unshare_mounts() -> io::Result<()> {
    system::unshare(libc::CLONE_NEWNS)?;
    // Later mounts of the host are visible here; mounts that are made here are not visible there.
    Ok(mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM)?)
}

/// Mounts the common root of all sandboxes over the folder, with these paths of the host in it, and makes it the working directory.
pub(super) fn mount_common(
    folder: &Path,
    (shown, places): (&[PathBuf], &[DevicePlace]),
    views: &Views,
    opened: &mut OpenedFiles,
) -> io::Result<()> {
    mount("tmpfs", folder, "tmpfs", MountFlags::empty(), Some(c"size=8m,mode=755"))?;
    rustix::process::chdir(folder)?;
    let own = [MountPoint::FOLDER.0, MountPoint::ENVIRONMENT.0, FOLDERS_POINT];
    for folder in ["tmp", "etc", "dev", SHARED_POINT, "usr"].into_iter().chain(own) {
        fs::create_dir(folder)?;
    }
    views.write_common(Path::new("."), TEMPLATE_MEMORY_BYTES)?;
    write_names()?;
    for MountPoint(folder) in SYSTEM_FOLDERS.iter().chain(&DRIVER_FOLDERS) {
        fs::create_dir_all(folder)?;
    }
    File::create(MountPoint::PROGRAM.0)?;
    for MountPoint(node) in GPU_NODES.iter().filter(|node| Path::new("/").join(node.0).exists()) {
        File::create(node)?;
    }
    LIBRARIES.iter().try_for_each(|path| show(path.as_ref(), libc::MOUNT_ATTR_NODEV))?;
    show_zones()?;
    DEVICES.iter().try_for_each(|name| show(format!("dev/{name}").as_ref(), libc::MOUNT_ATTR_NOEXEC))?;
    for path in shown {
        let inside = path.strip_prefix("/").map_err(|_| io::ErrorKind::InvalidInput)?;
        show_from(inside, libc::MOUNT_ATTR_NODEV, |outside| opened.path_of(outside))?;
        if path.ends_with(NODE_MODULES) {
            // Node.js looks for modules at this path from any program.
            symlink(path, NODE_MODULES)?;
        }
    }
    symlink("/proc/self/fd", "dev/fd")?;
    places.iter().try_for_each(make_place)?;
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount_remount(".", flags, "")?)
}

/// Makes an empty file or folder in the common root, unless something is there.
fn make_place(place: &DevicePlace) -> io::Result<()> {
    let (DevicePlace::File(path) | DevicePlace::Folder(path)) = place;
    let inside = path.strip_prefix("/").map_err(|_| io::ErrorKind::InvalidInput)?;
    if fs::symlink_metadata(inside).is_ok() {
        return Ok(());
    }
    inside.parent().map_or(Ok(()), fs::create_dir_all)?;
    match place {
        // No process may open this file: only the device that is mounted over it.
        DevicePlace::File(_) => {
            File::options().write(true).create_new(true).mode(0o000).open(inside).map(drop)
        }
        DevicePlace::Folder(_) => fs::create_dir(inside),
    }
}

/// Writes the list of users: the sandbox's own, and `nobody`, the owner of every file that is not the sandbox's.
fn write_names() -> io::Result<()> {
    let user = user_entry();
    fs::write("etc/passwd", format!("{user}nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"))?;
    fs::write("etc/group", format!("{USER_NAME}:x:{USER}:\nnogroup:x:65534:\n"))
}

/// Shows sandboxes the host's time zones, and which of them is local time.
fn show_zones() -> io::Result<()> {
    ZONES
        .iter()
        .chain([&LOCAL_ZONE_NAME])
        .try_for_each(|path| show(path.as_ref(), libc::MOUNT_ATTR_NODEV))?;
    let host = Path::new("/").join(LOCAL_ZONE);
    let Ok(zone) = host.canonicalize() else { return Ok(()) };
    if ZONES.iter().any(|folder| zone.starts_with(Path::new("/").join(folder))) {
        // Programs take the name of the zone from the link's target.
        return symlink(&zone, LOCAL_ZONE);
    }
    File::create(LOCAL_ZONE)?;
    let mount = detached(&zone, libc::MOUNT_ATTR_NODEV)?;
    Ok(move_mount(&mount, "", CWD, LOCAL_ZONE, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Returns these paths without those that are within another one of them.
pub(super) fn outermost(shown: &[PathBuf]) -> Vec<PathBuf> {
    let mut shown = shown.to_vec();
    shown.sort();
    shown.dedup_by(|inner, outer| inner.starts_with(outer));
    shown
}

/// Returns those of these paths that the sandbox's scratch space would cover, without the first slash.
pub(super) fn beneath_scratch(shown: &[PathBuf]) -> Vec<CString> {
    let beneath = shown.iter().filter(|path| path.starts_with(SCRATCH) && *path != Path::new(SCRATCH));
    beneath
        .filter_map(|path| CString::new(path.strip_prefix("/").ok()?.as_os_str().as_bytes()).ok())
        .collect()
}

/// Returns the mounts of one sandbox.
pub(super) fn mounts_of(spec: &Spec, opened: &mut OpenedFiles) -> io::Result<Vec<(MountPoint, OwnedFd)>> {
    let mut mounts = Vec::new();
    if let Some(program) = spec.program.shown() {
        mounts.push((MountPoint::PROGRAM, detached(&opened.path_of(program)?, libc::MOUNT_ATTR_NODEV)?));
    }
    if let Some(folder) = &spec.folder {
        mounts.push((MountPoint::FOLDER, detached(folder, libc::MOUNT_ATTR_NODEV)?));
    }
    if let IsolationKind::Template(Template { environment: Some(environment), .. }) = &spec.kind {
        mounts.push((MountPoint::ENVIRONMENT, shown_environment(environment)?));
    }
    if spec.network == NetworkAccess::Host {
        show_to(&mut mounts, &SYSTEM_FOLDERS, 0)?;
    }
    if matches!(spec.devices, Devices::Drivers | Devices::Gpu) && spec.kind.image().is_none() {
        show_to(&mut mounts, &DRIVER_FOLDERS, libc::MOUNT_ATTR_NODEV)?;
    }
    if spec.devices == Devices::Gpu && spec.kind.image().is_none() {
        show_to(&mut mounts, &GPU_NODES, libc::MOUNT_ATTR_NOEXEC)?;
        let [system, ..] = SYSTEM_FOLDERS;
        show_to(&mut mounts, &[system], 0)?;
    }
    if spec.devices == Devices::Own && spec.network == NetworkAccess::None {
        // Drivers look for their devices there.
        let [system, ..] = SYSTEM_FOLDERS;
        show_to(&mut mounts, &[system], 0)?;
    }
    Ok(mounts)
}

/// Adds a sandbox's files about its cores and memory to its mounts. A sandbox that sees parts of the host's `/sys` keeps those
/// instead of a `/sys` of its own.
pub(super) fn show_view(mounts: &mut Vec<(MountPoint, OwnedFd)>, view: &ResourceView) -> io::Result<()> {
    let [.., system] = VIEWS;
    let has_system = mounts.iter().any(|(place, _)| Path::new(place.0).starts_with(system.0));
    let files = [view.meminfo(), view.cpuinfo(), view.stat(), view.system()];
    for (place, file) in VIEWS.into_iter().zip(files) {
        if place != system || !has_system {
            mounts.push((place, detached(&file, libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC)?));
        }
    }
    Ok(())
}

/// The folders that are lent to a sandbox, in the order of the specification.
pub(super) fn folders_of(spec: &Spec) -> Result<Vec<OwnedFd>, SandboxError> {
    let fixed = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    let one = |folder: &LentFolder| {
        let mount = match folder.access {
            FolderAccess::ReadOnly => detached(&folder.path, fixed),
            FolderAccess::Write => copied(&folder.path).and_then(|tree| {
                restrict_mount(tree.as_fd(), fixed)?;
                Ok(tree)
            }),
        };
        let what = || format!("showing a sandbox the lent folder {}", folder.name);
        mount.map_err(|error| SandboxError::system(what(), error))
    };
    spec.lent_folders.iter().map(one).collect()
}

/// The nodes and files of a sandbox's own devices, in the order of the specification.
pub(super) fn device_mounts_of(spec: &Spec) -> Result<Vec<OwnedFd>, SandboxError> {
    let one = |mount: &DeviceMount| {
        let what = || format!("showing a sandbox {} of a device", mount.source.display());
        let attributes =
            if is_node(&mount.source) { libc::MOUNT_ATTR_NOEXEC } else { libc::MOUNT_ATTR_NODEV };
        detached(&mount.source, attributes).map_err(|error| SandboxError::system(what(), error))
    };
    spec.device_mounts.iter().map(one).collect()
}

/// Whether a path is that of a device node, which is nothing to execute.
fn is_node(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_char_device())
}

/// The folder of an environment, as sandboxes and templates are shown it.
pub(super) fn shown_environment(folder: &Path) -> io::Result<OwnedFd> {
    detached(folder, libc::MOUNT_ATTR_NODEV)
}

/// A file of the host for a template, where programs are.
pub(super) fn adapter(path: &Path, opened: &mut OpenedFiles) -> io::Result<OwnedFd> {
    detached(&opened.path_of(path)?, libc::MOUNT_ATTR_NODEV)
}

/// Shows folders of the host to one sandbox, at the same paths, as far as they exist.
fn show_to(
    mounts: &mut Vec<(MountPoint, OwnedFd)>,
    places: &[MountPoint],
    attributes: u64,
) -> io::Result<()> {
    for place in places {
        match detached(&Path::new("/").join(place.0), attributes) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            mount => mounts.push((*place, mount?)),
        }
    }
    Ok(())
}

/// The layers of an image, if it is a container.
pub(super) fn layers_of(spec: &Spec) -> Result<Vec<OwnedFd>, SandboxError> {
    spec.kind.image().map_or(Ok(Vec::new()), layers_of_image)
}

/// The layers of an image, the lowest first.
pub(super) fn layers_of_image(image: &RootImage) -> Result<Vec<OwnedFd>, SandboxError> {
    let layer = |path: &PathBuf| {
        let mount = detached(path, libc::MOUNT_ATTR_NODEV);
        mount.map_err(|error| SandboxError::system(format!("showing a container {}", path.display()), error))
    };
    image.layers.iter().map(layer).collect()
}

/// Shows a path of the host, if it exists, at the same path in the common root.
fn show(path: &Path, attributes: u64) -> io::Result<()> {
    show_from(path, attributes, |outside| Ok(outside.to_owned()))
}

/// Shows a path of the host as [`show`] does, mounted from the path that `source` returns for it.
fn show_from(
    path: &Path,
    attributes: u64,
    source: impl FnOnce(&Path) -> io::Result<PathBuf>,
) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok() {
        // The path is a part of another one that is shown already.
        return Ok(());
    }
    let outside = Path::new("/").join(path);
    let Ok(kind) = fs::symlink_metadata(&outside).map(|metadata| metadata.file_type()) else { return Ok(()) };
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    if kind.is_symlink() {
        return symlink(fs::read_link(&outside)?, path);
    }
    if kind.is_dir() {
        fs::create_dir(path)?;
    } else {
        File::create(path)?;
    }
    let mount = detached(&source(&outside)?, attributes)?;
    Ok(move_mount(&mount, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// A file or folder of the host, as a read-only mount that is not anywhere yet.
fn detached(path: &Path, attributes: u64) -> io::Result<OwnedFd> {
    let tree = copied(path)?;
    restrict_mount(tree.as_fd(), libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | attributes)?;
    Ok(tree)
}

/// A copy of the mount of a file or folder of the host that is not anywhere yet.
fn copied(path: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    match open_tree(CWD, path, flags | OpenTreeFlags::AT_RECURSIVE) {
        // Mounts beneath this one cannot be copied.
        Err(Errno::INVAL) => Ok(open_tree(CWD, path, flags)?),
        tree => Ok(tree?),
    }
}
