//! A reader with a limit on its bytes, against archives that unpack to more than a disk holds.

use std::io::{self, Read};

/// A reader that fails once its limit is exceeded, and reports that afterwards.
pub(crate) struct BoundedReader<R> {
    inner: R,
    left_bytes: u64,
    is_exceeded: bool,
}

impl<R: Read> BoundedReader<R> {
    /// Creates a reader of at most `bytes` bytes.
    pub(crate) fn new(inner: R, bytes: u64) -> BoundedReader<R> {
        BoundedReader { inner, left_bytes: bytes, is_exceeded: false }
    }

    /// Whether the inner reader had more bytes than the limit.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.is_exceeded
    }

    pub(crate) fn into_inner(self) -> R {
        self.inner
    }
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        debug_assert!(read <= buffer.len(), "{read} bytes were read into {}", buffer.len());
        match self.left_bytes.checked_sub(read as u64) {
            Some(left_bytes) => {
                self.left_bytes = left_bytes;
                Ok(read)
            }
            None => {
                self.is_exceeded = true;
                Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than it may be"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_exactly_the_allowed_bytes() {
        for (bytes, passes) in [(9, false), (10, true), (11, true)] {
            let mut bounded = BoundedReader::new(&b"ten bytes."[..], bytes);
            assert_eq!(io::copy(&mut bounded, &mut io::sink()).is_ok(), passes, "{bytes}");
            assert_eq!(bounded.is_exceeded(), !passes);
        }
    }
}
