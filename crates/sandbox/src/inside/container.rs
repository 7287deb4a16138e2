//! A container's root: the layers of an image, and over them what the sandbox writes.
//!
//! Nothing in an image is trusted. A link in it leads nowhere but to the image, since what is put into it is put there only
//! when it is the root already and nothing else can be reached.

use std::ffi::CString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use rustix::mount::{MountFlags, mount};

use super::Plan;
use super::plan::LayerMounts;
use super::root::{MountPoint, SCRATCH_POINT, attach, copy, is_folder, make_root, mount_scratch};
use crate::{MAX_LAYERS, SCRATCH};

/// Of the common root, shown in every container.
const SHOWN: [&str; 2] = ["proc", "dev"];

/// Room for what is made here: a folder for each layer, and places to mount things.
const OWN_FILES: u64 = MAX_LAYERS as u64 + 32;
/// Where the layers are mounted over each other.
pub(super) const ROOT: &str = "root";
/// What is written over them.
pub(super) const UPPER: &str = "upper";

/// Makes the image the root, with what only this sandbox has mounted in there.
pub(super) fn enter(plan: &Plan, image: &LayerMounts) -> io::Result<()> {
    let shown = SHOWN.map(|path| copy(path).map(|mount| (path, mount)));
    prepare(SCRATCH_POINT, plan, image)?;
    rustix::process::chdir(ROOT)?;
    make_root()?;
    for shown in shown {
        let (path, mount) = shown?;
        show(Path::new(path), &mount)?;
    }
    for (MountPoint(path), mount) in &plan.mounts {
        show(Path::new(path), mount)?;
    }
    make_folder(Path::new(SCRATCH))?;
    fs::set_permissions(SCRATCH, Permissions::from_mode(0o1777))?;
    Ok(rustix::process::chdir(image.working_folder.as_c_str())?)
}

/// Mounts what the container writes over a folder, goes there, and mounts the layers over each other as [`ROOT`], with
/// [`UPPER`], which can be written, over them all.
pub(super) fn prepare(folder: &str, plan: &Plan, image: &LayerMounts) -> io::Result<()> {
    mount_scratch(folder, plan.scratch_bytes, OWN_FILES, "755", MountFlags::empty())?;
    rustix::process::chdir(folder)?;
    mount_layers(&image.layers)
}

fn mount_layers(layers: &[OwnedFd]) -> io::Result<()> {
    for folder in [ROOT, UPPER, "work", "layers"] {
        DirBuilder::new().mode(0o755).create(folder)?;
    }
    for (number, layer) in layers.iter().enumerate() {
        let place = format!("layers/{number}");
        fs::create_dir(&place)?;
        attach(layer, Path::new(&place))?;
    }
    // Overlayfs has the highest first.
    let numbers = (0..layers.len()).rev();
    let lower: Vec<_> = numbers.map(|number| format!("layers/{number}")).collect();
    let options = format!("lowerdir={},upperdir={UPPER},workdir=work,userxattr", lower.join(":"));
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount("overlay", ROOT, "overlay", flags, Some(CString::new(options)?.as_c_str()))?)
}

/// Mounts it at a path of the image, where whatever is in the way is none any more.
fn show(path: &Path, mount: &OwnedFd) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    if is_folder(mount)? {
        make_folder(path)?;
    } else {
        remove_unless(path, |kind| kind.is_file())?;
        File::options().append(true).create(true).open(path)?;
    }
    attach(mount, path)
}

fn make_folder(path: &Path) -> io::Result<()> {
    remove_unless(path, |kind| kind.is_dir())?;
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn remove_unless(path: &Path, is_right: impl Fn(fs::FileType) -> bool) -> io::Result<()> {
    match fs::symlink_metadata(path).map(|metadata| metadata.file_type()) {
        Ok(kind) if is_right(kind) => Ok(()),
        Ok(kind) if kind.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
