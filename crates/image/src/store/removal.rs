//! Removes layers and their remains: never through a link, and whatever their permissions are.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, flock, openat, statat, unlinkat};
use rustix::io::Errno;

use super::lock::Alone;
use super::{FACTS, IMAGES, ImageStore, LAYERS, NAMES, UNFINISHED};
use crate::digest::Digest;
use crate::error::ImageError;

/// Prefix of the name of a layer's folder that is removed, after that of an incomplete one.
const REMOVED: &str = "removed-";

impl ImageStore {
    /// Removes the unfinished files of killed processes. A layer that is locked is another process's, which makes it.
    pub(super) fn remove_unfinished(&self, _alone: &Alone) -> Result<(), ImageError> {
        for name in [IMAGES, NAMES, LAYERS, FACTS] {
            let folder = self.folder.join(name);
            let failed = |error| ImageError::system("reading", &folder, error);
            for entry in fs::read_dir(&folder).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                if !entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
                    continue;
                }
                // The lock keeps processes from making the layer in a folder that goes.
                let locked = match File::open(entry.path()) {
                    Ok(file) => Some(file),
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    Err(_) => None,
                };
                match locked.as_ref().map(|file| flock(file, FlockOperation::NonBlockingLockExclusive)) {
                    Some(Err(Errno::WOULDBLOCK)) => {}
                    _ => remove_tree(&entry.path())?,
                }
            }
        }
        Ok(())
    }

    /// Removes a layer. Returns `false` if a process uses it. The folder is renamed first, so that an interrupted
    /// removal leaves no layer.
    pub(super) fn remove_layer(&self, diff_id: &Digest, _alone: &Alone) -> Result<bool, ImageError> {
        let path = self.layer(diff_id);
        let failed = |error: io::Error| ImageError::system("removing", &path, error);
        let layer = File::open(&path).map_err(failed)?;
        match flock(&layer, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(false),
            locked => locked.map_err(|errno| failed(errno.into()))?,
        }
        // Not the name of a copy that another process may be making.
        let unfinished = self.folder.join(LAYERS).join(format!("{UNFINISHED}{REMOVED}{}", diff_id.hex()));
        remove_tree(&unfinished)?;
        fs::rename(&path, &unfinished).map_err(failed)?;
        remove_tree(&unfinished)?;
        debug_assert!(!path.exists() && !unfinished.exists(), "left of {}", path.display());
        self.remove_facts(diff_id).map(|()| true)
    }
}

/// Removes a file, a link or a folder with all that is in it, if it is there.
pub(super) fn remove_tree(path: &Path) -> Result<(), ImageError> {
    let failed = |error: io::Error| ImageError::system("removing", path, error);
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Ok(metadata) if metadata.is_dir() => {}
        found => return found.and_then(|_| fs::remove_file(path)).map_err(failed),
    }
    empty(&File::open(path).map_err(failed)?, path)?;
    fs::remove_dir(path).map_err(failed)
}

/// Removes all that is in a folder.
pub(super) fn empty(folder: &File, path: &Path) -> Result<(), ImageError> {
    empty_within(folder.as_fd()).map_err(|errno| ImageError::system("emptying", path, errno))
}

/// Folders are as deep as the paths of layers may be, so this needs neither a deep stack nor many descriptors.
fn empty_within(folder: BorrowedFd<'_>) -> Result<(), Errno> {
    // Without root, removal needs the permission, which the owner of the folder may set.
    rustix::fs::fchmod(folder, Mode::RWXU)?;
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let found = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            empty_within(openat(folder, name, flags, Mode::empty())?.as_fd())?;
            unlinkat(folder, name, AtFlags::REMOVEDIR)?;
        } else {
            unlinkat(folder, name, AtFlags::empty())?;
        }
    }
    Ok(())
}
