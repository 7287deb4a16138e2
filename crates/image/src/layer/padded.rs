//! An archive whose last block is not full. Some tools, Debian's umoci among them, leave the padding after the last file
//! out, and images made by them are about.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

const BLOCK_BYTES: u64 = 512;

/// Fills the last block with zeros, and says since when it does.
pub(super) struct PaddedReader<R> {
    inner: R,
    read_bytes: u64,
    is_padding: Rc<Cell<bool>>,
}

impl<R: Read> PaddedReader<R> {
    pub(super) fn new(inner: R) -> PaddedReader<R> {
        PaddedReader { inner, read_bytes: 0, is_padding: Rc::default() }
    }

    /// Whether what was read last was not in the archive.
    pub(super) fn is_padding(&self) -> Rc<Cell<bool>> {
        self.is_padding.clone()
    }
}

impl<R: Read> Read for PaddedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut read = self.inner.read(buffer)?;
        let missing = self.read_bytes.next_multiple_of(BLOCK_BYTES) - self.read_bytes;
        if read == 0 && missing > 0 && !buffer.is_empty() {
            self.is_padding.set(true);
            // Fewer than 512.
            read = buffer.len().min(usize::try_from(missing).unwrap_or(usize::MAX));
            buffer[..read].fill(0);
        }
        self.read_bytes += read as u64;
        Ok(read)
    }
}
