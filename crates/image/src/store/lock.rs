//! Excludes operations on a store that must not overlap.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{Image, ImageStore, LOCK};
use crate::digest::Digest;
use crate::error::ImageError;

/// A shared lock. While it is held, nothing is removed from the store.
#[derive(Debug)]
pub(crate) struct Presence {
    _lock: File,
}

/// An exclusive lock. While it is held, no other process adds or removes anything.
#[derive(Debug)]
pub(super) struct Alone {
    _lock: File,
}

/// A lock on the layers of an image: they are not removed while it is held, even if the image is. It ends with its
/// process.
#[derive(Debug)]
pub struct InUse {
    _layers: Vec<File>,
}

impl Image {
    /// Locks the layers for as long as the image is in use.
    pub fn hold(&self) -> Result<InUse, ImageError> {
        let gone = || ImageError::Unknown(self.digest.to_string());
        let hold = |path: &std::path::PathBuf| hold(path)?.ok_or_else(gone);
        self.layers.iter().map(hold).collect::<Result<_, _>>().map(|_layers| InUse { _layers })
    }
}

/// Locks a layer's folder, so that it is not removed; `None` if there is none.
fn hold(path: &Path) -> Result<Option<File>, ImageError> {
    let held = || -> io::Result<File> {
        let layer = File::open(path)?;
        flock(&layer, FlockOperation::LockShared)?;
        Ok(layer)
    };
    match held() {
        // A layer that has lost its name was removed before it was locked.
        Ok(layer) => Ok(is_still(&layer, path).then_some(layer)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ImageError::system("locking", path, error)),
    }
}

/// Whether a path still names an opened file.
pub(super) fn is_still(opened: &File, path: &Path) -> bool {
    match (opened.metadata(), fs::symlink_metadata(path)) {
        (Ok(opened), Ok(named)) => (opened.dev(), opened.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

impl ImageStore {
    /// Locks a layer, so that it is not removed until the file is closed; `None` if there is none.
    pub(crate) fn hold_layer(&self, diff_id: &Digest) -> Result<Option<File>, ImageError> {
        hold(&self.layer(diff_id))
    }

    /// Waits until no process removes anything.
    pub(crate) fn be_present(&self) -> Result<Presence, ImageError> {
        self.lock(FlockOperation::LockShared).map(|_lock| Presence { _lock })
    }

    /// Waits until no process adds or removes anything.
    pub(super) fn be_alone(&self) -> Result<Alone, ImageError> {
        self.lock(FlockOperation::LockExclusive).map(|_lock| Alone { _lock })
    }

    /// Locks the store exclusively; `None` if another process works in it.
    pub(super) fn try_alone(&self) -> Result<Option<Alone>, ImageError> {
        let lock = self.open_lock()?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Alone { _lock: lock })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(ImageError::system("locking", self.folder.join(LOCK), errno)),
        }
    }

    fn lock(&self, operation: FlockOperation) -> Result<File, ImageError> {
        let lock = self.open_lock()?;
        loop {
            match flock(&lock, operation) {
                Ok(()) => return Ok(lock),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(ImageError::system("locking", self.folder.join(LOCK), errno)),
            }
        }
    }

    fn open_lock(&self) -> Result<File, ImageError> {
        let path = self.folder.join(LOCK);
        let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        opened.map_err(|error| ImageError::system("opening", path, error))
    }
}
