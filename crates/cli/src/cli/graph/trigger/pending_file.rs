//! A file of a watched folder whose run has not ended: reads it, and moves it away afterwards.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use sublet_fabric::sync::lock;
use sublet_proto::Error;

/// Folders for files whose run has succeeded or failed.
pub(super) const DONE: &str = "done";
pub(super) const FAILED: &str = "failed";

/// Names of files whose runs have not ended.
pub(super) type UnderWay = Arc<Mutex<HashSet<OsString>>>;

/// A file whose run has not ended.
pub(super) struct PendingFile {
    pub(super) folder: PathBuf,
    pub(super) name: OsString,
    pub(super) under_way: UnderWay,
    /// Stamp of the file when it was read.
    pub(super) read: Mutex<Option<ContentStamp>>,
}

/// Identity of a file's contents, which changes when the file is rewritten.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct ContentStamp {
    inode: u64,
    len_bytes: u64,
    modified_s: i64,
    modified_ns: i64,
}

impl ContentStamp {
    fn of(metadata: &Metadata) -> ContentStamp {
        ContentStamp {
            inode: metadata.ino(),
            len_bytes: metadata.len(),
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
        }
    }
}

impl PendingFile {
    /// Reads up to `limit` bytes of the file.
    pub(super) fn read(&self, limit: u64) -> Result<Vec<u8>, Error> {
        let path = self.folder.join(&self.name);
        let read = || {
            let file = File::open(&path)?;
            *lock(&self.read) = Some(ContentStamp::of(&file.metadata()?));
            let mut bytes = Vec::new();
            file.take(limit).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_err(|error: std::io::Error| {
            Error::of_system(format_args!("reading {}", path.display()), &error)
        })
    }

    /// Moves the file away after its run. Returns false, and leaves it, if its contents have changed.
    pub(super) fn put_away(&self, is_well: bool) -> Result<bool, Error> {
        let from = self.folder.join(&self.name);
        let to = self.folder.join(if is_well { DONE } else { FAILED }).join(&self.name);
        // Held until the file is moved: a later file of this name is another event.
        let mut under_way = lock(&self.under_way);
        debug_assert!(under_way.contains(&self.name), "the file {:?} has no run that has ended", self.name);
        let put = || -> std::io::Result<bool> {
            std::fs::rename(&from, &to)?;
            let is_same = *lock(&self.read) == Some(ContentStamp::of(&std::fs::metadata(&to)?));
            if !is_same {
                std::fs::rename(&to, &from)?;
            }
            Ok(is_same)
        };
        let put = match put() {
            // Another process has moved the file.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
            put => put,
        };
        if !matches!(put, Ok(false)) {
            under_way.remove(&self.name);
        }
        put.map_err(|error| {
            Error::of_system(format_args!("cannot move {} to {}", from.display(), to.display()), &error)
        })
    }
}
