//! Defines the swap space of an array: where its absent pages are stored.

use sublet_proto::Error;

use crate::memory::Memory;

/// Bytes somewhere else. Any number of threads call it at once, for stretches that do not overlap.
pub trait Backing: Send + Sync {
    /// Makes the swap space at least `len_bytes` bytes long.
    ///
    /// # Errors
    /// The reason why it cannot. The array is then lost, except its resident part.
    fn ensure(&self, len_bytes: u64) -> Result<(), Error>;

    /// Copies bytes out that were written before.
    ///
    /// # Errors
    /// The reason why the bytes are lost, and the array with them.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Error>;

    /// Copies bytes in, below the length that was ensured. Later reads return them.
    ///
    /// # Errors
    /// As for [`Backing::read_at`].
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Error>;
}

/// Swap space in a memory component. Each of its segments is leased when it is needed, within the waiting time of the
/// component's plan. A cache is of no use here, so the plan has none: `cache_bytes(0)`.
impl Backing for Memory {
    fn ensure(&self, len_bytes: u64) -> Result<(), Error> {
        self.ensure_capacity(len_bytes)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.read(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.write(offset, from)
    }
}
