//! Bytes that a peer reads and writes by requests and that no process maps, as those of a file on a disk.

use std::io;

/// Most bytes of one request for stored bytes. The side that has them holds that many for each request meanwhile.
pub const MAX_STORED_BYTES: u64 = 1 << 20;

/// Bytes in a store that may fail.
///
/// An implementation that has failed once fails from then on: a peer whose write was lost must not read what was there
/// before. It reports the reason itself; the peer's request is only refused.
pub trait StoredBytes: Send + Sync {
    /// The number of bytes.
    fn len_bytes(&self) -> u64;

    /// Reads bytes, all of them or none.
    ///
    /// # Errors
    /// The store's error.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes bytes.
    ///
    /// # Errors
    /// The store's error. Some of the bytes may be written then.
    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()>;
}
