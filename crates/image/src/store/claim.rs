//! A layer that is being unpacked: by one process at a time, under a name that nobody takes for the layer's.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, RenameFlags, flock, renameat_with, syncfs};
use rustix::io::Errno;

use super::record::{make_private, sync};
use super::removal::remove_tree;
use super::{LAYERS, Presence, Store, UNFINISHED};
use crate::digest::Digest;
use crate::error::ImageError;

/// The right to make one layer; what was made of it is removed if it is dropped before it was finished.
pub(crate) struct Claim {
    /// Locked.
    folder: File,
    path: PathBuf,
    complete: PathBuf,
    is_finished: bool,
}

impl Claim {
    /// The layer's folder, empty at first.
    pub(crate) fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// Writes all of it to the disk and gives it its name.
    pub(crate) fn finish(mut self) -> Result<(), ImageError> {
        let failed = |errno| ImageError::system("finishing", &self.complete, errno);
        // One call for all files: a layer has tens of thousands.
        syncfs(&self.folder).map_err(failed)?;
        renameat_with(rustix::fs::CWD, &self.path, rustix::fs::CWD, &self.complete, RenameFlags::NOREPLACE)
            .map_err(failed)?;
        debug_assert!(!self.path.exists(), "{} has its name, and its old one", self.complete.display());
        self.is_finished = true;
        self.complete.parent().map_or(Ok(()), sync)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.is_finished {
            // What cannot be removed now is removed by the next store that is alone.
            let _ = remove_tree(&self.path);
        }
    }
}

impl Store {
    /// Waits until nobody makes this layer. `None`: it is there.
    pub(crate) fn claim(&self, diff_id: &Digest, _present: &Presence) -> Result<Option<Claim>, ImageError> {
        let complete = self.layer(diff_id);
        let path = self.folder.join(LAYERS).join(format!("{UNFINISHED}{}", diff_id.hex()));
        loop {
            if exists(&complete)? {
                return Ok(None);
            }
            // Whoever has made it may have finished or given up since it was opened.
            if let Some(folder) = claim(&path)?.filter(|folder| is_still(folder, &path)) {
                return match exists(&complete)? {
                    true => Ok(None),
                    false => Ok(Some(Claim { folder, path, complete, is_finished: false })),
                };
            }
        }
    }
}

/// Opens and locks the folder, without what a killed process may have left there; `None`: it has just gone.
fn claim(path: &Path) -> Result<Option<File>, ImageError> {
    let failed = |error: std::io::Error| ImageError::system("locking", path, error);
    match make_private(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(ImageError::system("making the folder", path, error));
        }
        _ => {}
    }
    let folder = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    while let Err(errno) = flock(&folder, FlockOperation::LockExclusive) {
        if errno != Errno::INTR {
            return Err(failed(errno.into()));
        }
    }
    if is_still(&folder, path) {
        super::removal::empty(&folder, path)?;
    }
    Ok(Some(folder))
}

fn is_still(folder: &File, path: &Path) -> bool {
    match (folder.metadata(), fs::symlink_metadata(path)) {
        (Ok(opened), Ok(named)) => (opened.dev(), opened.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

fn exists(path: &Path) -> Result<bool, ImageError> {
    path.try_exists().map_err(|error| ImageError::system("looking at", path, error))
}
