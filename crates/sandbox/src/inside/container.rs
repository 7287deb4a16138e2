//! A container's root: the layers of an image, and over them what the sandbox writes. A template in an image has the same
//! layers, and writes nothing.
//!
//! Nothing in an image is trusted. A link in an image leads only to the image. The mount points for files from outside
//! are made in a separate layer over it. The files are mounted only when the image is the root already, and nothing
//! else can be reached.

use std::ffi::CString;
use std::fs::{self, DirBuilder, File, Permissions};
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
    FOLDERS_POINT, SCRATCH_POINT, attach_folder, begin_template, make_place, make_root, mount_scratch,
    mount_shared, resize_shared,
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
/// Folder of a template's root that has the common root, in which its copies begin.
const COMMON: &str = "sublet-common";
/// Folder with a folder for each layer.
const LAYERS: &str = "layers";

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

/// Adds to a container that [`enter`] has made for a process on standby what only its program has. The size of the files that it
/// can write stays, since they are not at a path any more.
pub(super) fn complete(plan: &CreationPlan) -> io::Result<()> {
    let image = plan.image.as_ref().ok_or(io::ErrorKind::InvalidData)?;
    rustix::process::chdir("/")?;
    for (MountPoint(path), mount) in &plan.mounts {
        attach(mount, Path::new(path))?;
    }
    resize_shared(plan)?;
    Ok(rustix::process::chdir(image.working_folder.as_c_str())?)
}

/// Makes an image the root of a template, which can change nothing of it, and goes to the common root: a copy begins there as
/// a first process does in the spawner's. The place of the program is a file.
pub(super) fn enter_template(layers: &[OwnedFd]) -> io::Result<()> {
    begin_template()?;
    let common = copy(".")?;
    let shown = SHOWN.map(|path| copy(path).map(|mount| (path, mount)));
    mount_scratch(SCRATCH_POINT, 0, OWN_FILES, "755", MountFlags::empty())?;
    rustix::process::chdir(SCRATCH_POINT)?;
    [ROOT, UPPER, LAYERS].into_iter().try_for_each(make_folder)?;
    let places = Path::new(UPPER);
    SHOWN.into_iter().chain([COMMON]).try_for_each(|folder| make_folder(places.join(folder)))?;
    File::create(places.join(MountPoint::PROGRAM.0))?;
    // Without a folder for what is written the kernel mounts it read-only.
    mount_over(&format!("lowerdir={UPPER}:{}", attach_layers(layers)?))?;
    rustix::process::chdir(ROOT)?;
    make_root()?;
    for shown in shown {
        let (path, mount) = shown?;
        attach(&mount, Path::new(path))?;
    }
    attach(&common, Path::new(COMMON))?;
    Ok(rustix::process::chdir(COMMON)?)
}

/// Mounts what the container writes over a folder, goes there, and mounts the layers over each other as [`ROOT`], with
/// [`UPPER`], which can be written, over them all.
pub(super) fn prepare(folder: &str, plan: &CreationPlan, image: &LayerMounts) -> io::Result<()> {
    mount_scratch(folder, plan.scratch_bytes, OWN_FILES, "755", MountFlags::empty())?;
    rustix::process::chdir(folder)?;
    [ROOT, UPPER, "work", LAYERS].into_iter().try_for_each(make_folder)?;
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
    if plan.is_standby {
        // The folder of its program is mounted later.
        make_folder(upper.join(MountPoint::FOLDER.0))?;
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
    let lower = attach_layers(layers)?;
    mount_over(&format!("lowerdir={lower},upperdir={UPPER},workdir=work"))
}

/// Mounts each layer in a folder of its own. Returns these folders as overlayfs has them, the highest first.
fn attach_layers(layers: &[OwnedFd]) -> io::Result<String> {
    debug_assert!((1..=MAX_LAYERS).contains(&layers.len()), "an image has {} layers", layers.len());
    for (number, layer) in layers.iter().enumerate() {
        let place = format!("{LAYERS}/{number}");
        fs::create_dir(&place)?;
        attach(layer, Path::new(&place))?;
    }
    let lower: Vec<_> = (0..layers.len()).rev().map(|number| format!("{LAYERS}/{number}")).collect();
    Ok(lower.join(":"))
}

/// Mounts folders over each other as [`ROOT`].
fn mount_over(folders: &str) -> io::Result<()> {
    let options = CString::new(format!("{folders},userxattr"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount("overlay", ROOT, "overlay", flags, Some(options.as_c_str()))?)
}
