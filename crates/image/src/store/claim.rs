//! A layer that is being unpacked, by one process at a time, under a name that differs from that of a complete layer.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, RenameFlags, flock, renameat_with, syncfs};
use rustix::io::Errno;

use super::record::{make_private, sync};
use super::removal::remove_tree;
use super::{ImageStore, LAYERS, Presence, UNFINISHED};
use crate::digest::Digest;
use crate::error::ImageError;

/// The right to create one layer. Dropping this before it is finished removes the created files.
pub(crate) struct LayerClaim {
    /// The layer's folder, locked.
    folder: File,
    path: PathBuf,
    complete: PathBuf,
    is_finished: bool,
}

impl LayerClaim {
    /// Returns the layer's folder, empty at first.
    pub(crate) fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// Writes all of the layer to the disk and gives the folder its final name.
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

impl Drop for LayerClaim {
    fn drop(&mut self) {
        if !self.is_finished {
            // The next store that works alone removes what cannot be removed now.
            let _ = remove_tree(&self.path);
        }
    }
}

impl ImageStore {
    /// Waits until no process makes this layer. Returns `None` if the layer exists.
    pub(crate) fn claim(
        &self,
        diff_id: &Digest,
        _present: &Presence,
    ) -> Result<Option<LayerClaim>, ImageError> {
        let complete = self.layer(diff_id);
        let path = self.folder.join(LAYERS).join(format!("{UNFINISHED}{}", diff_id.hex()));
        loop {
            if exists(&complete)? {
                return Ok(None);
            }
            // Another process may have finished or given up since the folder was opened.
            if let Some(folder) = claim(&path)?.filter(|folder| is_still(folder, &path)) {
                return match exists(&complete)? {
                    true => Ok(None),
                    false => Ok(Some(LayerClaim { folder, path, complete, is_finished: false })),
                };
            }
        }
    }
}

/// Opens, locks and empties the folder, in which a killed process may have left files; `None` if the folder has just
/// gone.
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
