//! A container's root: the layers of an image, and over them what the sandbox writes.
//!
//! Nothing in an image is trusted. A link in an image leads only to the image. The mount points for files from outside
//! are made in a separate layer over it. The files are mounted only when the image is the root already, and nothing
//! else can be reached.

use std::ffi::CString;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use rustix::mount::{MountFlags, mount};

use super::CreationPlan;
use super::mount_points::MountPoint;
use super::mounts::{attach, copy};
use super::names::add_user;
use super::plan::LayerMounts;
use super::root::{
    FOLDERS_POINT, SCRATCH_POINT, attach_folder, make_place, make_root, mount_scratch, mount_shared,
};
use crate::MAX_LAYERS;

/// Folders of the common root that every container sees.
const SHOWN: [&str; 2] = ["proc", "dev"];

/// Number of files that are made here: a folder for each layer, and mount points.
const OWN_FILES: u64 = MAX_LAYERS as u64 + 32;
/// Folder over which the layers are mounted.
pub(super) const ROOT: &str = "root";
/// Folder of the files that are written over the layers.
pub(super) const UPPER: &str = "upper";

/// Makes the image the root, with what only this sandbox has mounted in there.
pub(super) fn enter(plan: &CreationPlan, image: &LayerMounts) -> io::Result<()> {
    let shown = SHOWN.map(|path| copy(path).map(|mount| (path, mount)));
    prepare(SCRATCH_POINT, plan, image)?;
    rustix::process::chdir(ROOT)?;
    make_root()?;
    for shown in shown {
        let (path, mount) = shown?;
        attach(&mount, Path::new(path))?;
    }
    for (MountPoint(path), mount) in &plan.mounts {
        attach(mount, Path::new(path))?;
    }
    for folder in &plan.folders {
        attach_folder(folder, &Path::new(FOLDERS_POINT).join(&folder.name))?;
    }
    mount_shared(plan)?;
    Ok(rustix::process::chdir(image.working_folder.as_c_str())?)
}

/// Mounts what the container writes over a folder, goes there, and mounts the layers over each other as [`ROOT`], with
/// [`UPPER`], which can be written, over them all.
pub(super) fn prepare(folder: &str, plan: &CreationPlan, image: &LayerMounts) -> io::Result<()> {
    mount_scratch(folder, plan.scratch_bytes, OWN_FILES, "755", MountFlags::empty())?;
    rustix::process::chdir(folder)?;
    [ROOT, UPPER, "work", "layers"].into_iter().try_for_each(make_folder)?;
    // A runtime makes them by itself.
    if !plan.is_delegated() {
        make_places(plan)?;
    }
    mount_layers(&image.layers)?;
    add_user(Path::new(ROOT))
}

fn make_folder(path: impl AsRef<Path>) -> io::Result<()> {
    DirBuilder::new().mode(0o755).create(path)
}

/// Makes the places where things are mounted, and the one for what is written, over whatever the image has there. A folder that
/// takes the place of something else once the layers are mounted would need an attribute that tmpfs has only since Linux 6.6.
fn make_places(plan: &CreationPlan) -> io::Result<()> {
    let upper = Path::new(UPPER);
    SHOWN.into_iter().chain([SCRATCH_POINT]).try_for_each(|folder| make_folder(upper.join(folder)))?;
    if !plan.folders.is_empty() {
        make_folder(upper.join(FOLDERS_POINT))?;
    }
    fs::set_permissions(upper.join(SCRATCH_POINT), Permissions::from_mode(0o1777))?;
    for (MountPoint(path), mount) in &plan.mounts {
        let path = upper.join(path);
        if let Some(above) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(above)?;
        }
        make_place(&path, mount)?;
    }
    Ok(())
}

fn mount_layers(layers: &[OwnedFd]) -> io::Result<()> {
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
