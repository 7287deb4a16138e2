//! Copies of the store's file while the store is in use.
//!
//! While a copy is made no checkpoint writes to the file: changes stay in the write-ahead log. So the file has the store
//! of the moment at which the copy began, and is read without the store's lock.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Weak};

const PIECE_BYTES: usize = 1 << 20;

/// The store of one moment. It can be read until it is dropped; then the log is written to the store's file again.
#[derive(Debug)]
pub struct StoreCopy {
    file: Arc<File>,
    /// Shows [`CopySource`] that the copy exists.
    _marker: Arc<()>,
}

impl StoreCopy {
    /// Writes the store of that moment to an empty file. Returns its length in bytes.
    ///
    /// # Errors
    /// Errors of reading and writing.
    pub fn write_to(&self, mut to: &File) -> io::Result<u64> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut len = 0;
        loop {
            let read = self.file.read_at(&mut piece, len)?;
            if read == 0 {
                return Ok(len);
            }
            to.write_all(&piece[..read])?;
            len += read as u64;
        }
    }
}

/// The store's file as copies read it, and the copy that is being made.
///
/// The kernel releases the locks that a process has on a file when the process closes any of its descriptors of that
/// file. So there is one for all copies, which is closed after SQLite's own.
pub(super) struct CopySource {
    file: Arc<File>,
    copy: Weak<()>,
    /// Whether the log has been kept from the file for a copy.
    is_log_kept: bool,
}

impl CopySource {
    pub(super) fn new(file: File) -> CopySource {
        CopySource { file: Arc::new(file), copy: Weak::new(), is_log_kept: false }
    }

    /// Tells whether a copy is being made: then nothing may be written to the file.
    pub(super) fn is_being_copied(&self) -> bool {
        self.copy.strong_count() > 0
    }

    /// Begins a copy, for which the log is kept from the file.
    pub(super) fn begin(&mut self) -> StoreCopy {
        debug_assert!(!self.is_being_copied(), "two copies at a time");
        let marker = Arc::new(());
        self.copy = Arc::downgrade(&marker);
        self.is_log_kept = true;
        StoreCopy { file: Arc::clone(&self.file), _marker: marker }
    }

    /// Tells, once for each copy, that it has ended and the log may be written to the file again.
    pub(super) fn has_ended(&mut self) -> bool {
        let has_ended = self.is_log_kept && !self.is_being_copied();
        self.is_log_kept &= !has_ended;
        has_ended
    }
}
