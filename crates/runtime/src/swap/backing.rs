//! Defines the swap space of an array: where its absent pages are stored.

use sublet_proto::Error;

use crate::memory::Memory;

/// Bytes somewhere else. Any number of threads call it at once, for stretches that do not overlap.
pub trait Backing: Send + Sync {
    /// Makes it so long, if it is shorter.
    ///
    /// # Errors
    /// Why it cannot. The array is lost then, but for what is resident.
    fn ensure(&self, len_bytes: u64) -> Result<(), Error>;

    /// Copies bytes out that were written before.
    ///
    /// # Errors
    /// Why they are lost, and the array with them.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Error>;

    /// Copies bytes in, below the length that was ensured. They are what is read from then on.
    ///
    /// # Errors
    /// As for [`Backing::read_at`].
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Error>;
}

/// A memory component: each of its segments is leased when it is needed, with the patience of the component's plan. Its
/// cache is of no use here, so its plan has none: `cache_bytes(0)`.
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
