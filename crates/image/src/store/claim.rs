//! A layer that is being unpacked, usually by one process at a time, under a name that differs from that of a complete
//! layer.
//!
//! Images of different owners share layers, and each owner names the registry of its image. So a process waits for
//! another one's layer only for [`PATIENCE`], and then fetches and unpacks a copy of its own. The first complete copy
//! becomes the layer. A registry that sends a layer slowly thus delays the images of others by this time only, and no
//! removal at all: a folder that is locked is another process's, and stays.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, RenameFlags, flock, renameat_with, syncfs};
use rustix::io::Errno;

use super::lock::is_still;
use super::record::{make_private, sync};
use super::removal::remove_tree;
use super::{ImageStore, LAYERS, Presence, UNFINISHED};
use crate::digest::Digest;
use crate::error::ImageError;

/// How long a process waits for a layer that another one makes, before it makes a copy of its own.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time between two looks at a layer that another process makes.
const INTERVAL: Duration = Duration::from_millis(20);
/// Copies of one layer that are made at the same time, in addition to the first.
const MAX_COPIES: usize = 16;

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

    /// Writes all of the layer to the disk and gives the folder its final name, unless another copy has it already.
    pub(crate) fn finish(mut self, _present: &Presence) -> Result<(), ImageError> {
        let failed = |errno| ImageError::system("finishing", &self.complete, errno);
        // One call for all files: a layer has tens of thousands.
        syncfs(&self.folder).map_err(failed)?;
        match renameat_with(
            rustix::fs::CWD,
            &self.path,
            rustix::fs::CWD,
            &self.complete,
            RenameFlags::NOREPLACE,
        ) {
            Err(Errno::EXIST) => return Ok(()),
            renamed => renamed.map_err(failed)?,
        }
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
    /// Waits for a time until no process makes this layer. Returns `None` if the layer exists.
    ///
    /// # Errors
    /// [`ImageError::LayerBusy`] if too many processes make the layer.
    pub(crate) fn claim(&self, diff_id: &Digest) -> Result<Option<LayerClaim>, ImageError> {
        self.claim_after(diff_id, PATIENCE)
    }

    fn claim_after(&self, diff_id: &Digest, patience: Duration) -> Result<Option<LayerClaim>, ImageError> {
        let complete = self.layer(diff_id);
        let until = Instant::now() + patience;
        loop {
            if exists(&complete)? {
                return Ok(None);
            }
            let is_late = Instant::now() >= until;
            let last_copy = if is_late { MAX_COPIES } else { 0 };
            for copy in 0..=last_copy {
                let path = self.unfinished_layer(diff_id, copy);
                if let Some(folder) = try_claim(&path)? {
                    let claim = LayerClaim { folder, path, complete, is_finished: false };
                    return Ok(if exists(&claim.complete)? { None } else { Some(claim) });
                }
            }
            if is_late {
                return Err(ImageError::LayerBusy { diff_id: *diff_id, copies: MAX_COPIES + 1 });
            }
            std::thread::sleep(INTERVAL);
        }
    }

    /// Path of a copy of a layer that is not complete.
    fn unfinished_layer(&self, diff_id: &Digest, copy: usize) -> PathBuf {
        let hex = diff_id.hex();
        let name = if copy == 0 { format!("{UNFINISHED}{hex}") } else { format!("{UNFINISHED}{hex}-{copy}") };
        self.folder.join(LAYERS).join(name)
    }
}

/// Opens, locks and empties the folder, in which a killed process may have left files; `None` if another process has
/// locked it, or if the folder has just gone.
fn try_claim(path: &Path) -> Result<Option<File>, ImageError> {
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
    match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
        locked => locked.map_err(|errno| failed(errno.into()))?,
    }
    // Another process may have finished or given up since the folder was opened.
    if !is_still(&folder, path) {
        return Ok(None);
    }
    super::removal::empty(&folder, path)?;
    Ok(Some(folder))
}

fn exists(path: &Path) -> Result<bool, ImageError> {
    path.try_exists().map_err(|error| ImageError::system("looking at", path, error))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn makes_a_copy_of_a_layer_that_another_process_holds() {
        let folder = tempfile::tempdir().unwrap();
        let store = ImageStore::open(folder.path()).unwrap();
        let (presence, diff_id) = (store.be_present().unwrap(), Digest::of(b"layer"));
        let claim = || store.claim_after(&diff_id, Duration::ZERO);
        // This one fetches from a registry that sends nothing.
        let slow = claim().unwrap().unwrap();
        let own = claim().unwrap().unwrap();
        assert_ne!(own.path, slow.path);
        fs::write(own.path.join("file"), "own").unwrap();
        own.finish(&presence).unwrap();
        assert!(claim().unwrap().is_none());
        // The copy that comes second is given up.
        fs::write(slow.path.join("file"), "slow").unwrap();
        let path = slow.path.clone();
        slow.finish(&presence).unwrap();
        assert!(!path.exists());
        assert_eq!(fs::read(store.layer(&diff_id).join("file")).unwrap(), b"own");
    }

    #[test]
    fn bounds_copies_of_a_layer() {
        let folder = tempfile::tempdir().unwrap();
        let store = ImageStore::open(folder.path()).unwrap();
        let diff_id = Digest::of(b"layer");
        let claim = || store.claim_after(&diff_id, Duration::ZERO);
        let mut claims: Vec<_> = (0..=MAX_COPIES).map(|_| claim().unwrap().unwrap()).collect();
        let refused = sublet_proto::Error::from(claim().map(drop).unwrap_err());
        assert_eq!(refused.code, sublet_proto::Code::TryLater);
        assert!(refused.message.contains(&diff_id.to_string()), "{refused}");
        claims.pop();
        claim().unwrap().unwrap();
    }

    #[test]
    fn a_claimed_layer_is_no_remains_of_a_dead_process() {
        let folder = tempfile::tempdir().unwrap();
        let store = ImageStore::open(folder.path()).unwrap();
        let (claimed, left) = (Digest::of(b"claimed"), Digest::of(b"left"));
        let claim = store.claim(&claimed).unwrap().unwrap();
        fs::write(claim.path.join("file"), "x").unwrap();
        let dead = store.unfinished_layer(&left, 0);
        fs::create_dir(&dead).unwrap();
        ImageStore::open(folder.path()).unwrap();
        assert!(claim.path.join("file").exists() && !dead.exists());
    }
}
