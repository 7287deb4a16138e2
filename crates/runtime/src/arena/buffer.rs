//! A client's buffer: values in memory that workers read and write in place, and other memory that calls take.
//!
//! Every worker of the client's leases has the buffer's region mapped, as long as the worker lives, and may be another
//! tenant's program. It can write any value at any time. A reference would promise the compiler that this does not
//! happen. For this reason [`Buffer`], [`BufferPart`] and [`BufferPartMut`] copy values to private memory and from
//! there, through [`SharedBytes`], and make no references. Only [`Buffer::as_slice`] and [`Buffer::as_mut_slice`] do,
//! which are unsafe.
//!
//! A call takes its memory by [`InputMemory`] and [`OutputMemory`]: buffers, parts of them, and private memory alike.

use std::ops::RangeBounds;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use bytemuck::Pod;
use sublet_fabric::{SharedBytes, SharedBytesMut};
use sublet_proto::{Code, Error};

use super::{Arena, ArenaBlock};

mod call_memory;
mod parts;
#[cfg(test)]
mod tests;

pub use call_memory::{InputMemory, OutputMemory};
pub use parts::{BufferPart, BufferPartMut};

/// Size of the smallest pages, in bytes: the alignment of a buffer is at least this.
const LEAST_PAGE_BYTES: usize = 4096;

/// `len` values of `T` in memory that workers reach without copying.
///
/// The contents of a new buffer are unspecified values, zero if the memory was never used before.
///
/// Workers may write the values at any time, so the buffer gives no references to them. Its methods copy values, and
/// have the names and panics of a slice's methods where these exist. A copy that races with a writer has any bytes, old
/// and new mixed. All of them are valid, since every bit pattern is a value of a [`Pod`] type. A program checks its
/// private copy of what it relies on.
///
/// A call borrows the buffer until the call has ended, as [`Invoker::submit`](crate::Invoker::submit) says.
///
/// ```
/// # fn main() -> Result<(), sublet_proto::Error> {
/// use sublet_runtime::RegisteredMemory;
///
/// let memory = RegisteredMemory::new()?;
/// let mut numbers = memory.buffer::<f64>(1000)?;
/// numbers.fill(1.0);
/// numbers.set(0, 0.5);
/// numbers.copy_from(10, &[2.0, 3.0]);
/// assert_eq!(numbers.get(11), 3.0);
/// assert_eq!(numbers.part(..3).to_vec(), [0.5, 1.0, 1.0]);
/// assert_eq!(numbers.iter().sum::<f64>(), 1002.5);
/// # Ok(())
/// # }
/// ```
pub struct Buffer<T: Pod> {
    arena: Arc<Arena>,
    pub(super) block: ArenaBlock,
    start: NonNull<T>,
    len: usize,
}

// SAFETY: a buffer owns its block of the arena, as a Vec owns its heap block.
unsafe impl<T: Pod + Send> Send for Buffer<T> {}
// SAFETY: as above; through `&self` values are only copied out, and words accessed as atomics.
unsafe impl<T: Pod + Sync> Sync for Buffer<T> {}

impl<T: Pod> Buffer<T> {
    pub(crate) fn new(
        arena: &Arc<Arena>,
        len: usize,
        publish: impl FnMut() -> Result<(), Error>,
    ) -> Result<Buffer<T>, Error> {
        const {
            assert!(
                align_of::<T>() <= LEAST_PAGE_BYTES,
                "a buffer is aligned to a page, its values to no more"
            )
        };
        let too_large = || {
            let message = format!(
                "a buffer of {len} values of {} bytes: the largest has {} bytes",
                size_of::<T>(),
                u32::MAX
            );
            Error::new(Code::InvalidArgument, message)
        };
        let len_bytes = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| u32::try_from(bytes).ok())
            .ok_or_else(too_large)?;
        let block = arena.allocate(u64::from(len_bytes), publish)?;
        let start = arena
            .pointer(&block)
            .ok_or_else(|| Error::new(Code::Internal, "a block outside of its arena"))?;
        Ok(Buffer { arena: arena.clone(), block, start: start.cast(), len })
    }

    /// Address of the first value.
    pub fn start(&self) -> NonNull<T> {
        self.start
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the value at an index.
    ///
    /// # Panics
    /// If the buffer has no such value, as indexing a slice does.
    #[inline]
    pub fn get(&self, index: usize) -> T {
        self.whole().get(index)
    }

    /// Sets the value at an index.
    ///
    /// # Panics
    /// If the buffer has no such value, as indexing a slice does.
    #[inline]
    pub fn set(&mut self, index: usize, value: T) {
        self.whole_mut().set(index, value);
    }

    /// Copies values from an index on, to fill `into`.
    ///
    /// # Panics
    /// If the buffer ends before, as indexing a slice with that range does.
    #[inline]
    pub fn copy_to(&self, index: usize, into: &mut [T]) {
        self.whole().copy_to(index, into);
    }

    /// Sets the values from an index on to those of `from`.
    ///
    /// # Panics
    /// If the buffer ends before, as indexing a slice with that range does.
    #[inline]
    pub fn copy_from(&mut self, index: usize, from: &[T]) {
        self.whole_mut().copy_from(index, from);
    }

    /// Sets all values to those of `from`.
    ///
    /// # Panics
    /// If the two have different lengths, as [`slice::copy_from_slice`] does.
    #[inline]
    pub fn copy_from_slice(&mut self, from: &[T]) {
        self.whole_mut().copy_from_slice(from);
    }

    /// Sets all values to one.
    pub fn fill(&mut self, value: T) {
        self.whole_mut().fill(value);
    }

    /// Copies all values to private memory.
    pub fn to_vec(&self) -> Vec<T> {
        self.whole().to_vec()
    }

    /// Iterates over the values, and copies each when its turn comes.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = T> + ExactSizeIterator {
        self.whole().iter()
    }

    /// Some of the values, to be read; also as the input of a call.
    ///
    /// # Panics
    /// If the range lies beyond the buffer, as for a slice.
    #[inline]
    pub fn part(&self, range: impl RangeBounds<usize>) -> BufferPart<'_, T> {
        self.whole().part(range)
    }

    /// Some of the values, to be written; also as the output of a call.
    ///
    /// # Panics
    /// If the range lies beyond the buffer, as for a slice.
    #[inline]
    pub fn part_mut(&mut self, range: impl RangeBounds<usize>) -> BufferPartMut<'_, T> {
        self.whole_mut().within(range)
    }

    /// The values in place, for programs to which copies cost too much, and which trust their workers.
    ///
    /// # Safety
    /// Nothing writes the values for as long as the slice is used: no process, no thread, and no [atomic](Buffer::atomic).
    /// For the processes, two things are necessary:
    ///
    /// - No call that uses the buffer is in flight, not even one whose [`Invocation`](crate::Invocation) was forgotten.
    /// - The caller trusts every worker of every lease that has this memory mapped to write only to its output, and only
    ///   while its function is executing. The leases are those of all invokers with the buffer's
    ///   [`RegisteredMemory`](crate::RegisteredMemory). A lease of another tenant's package does not qualify.
    pub unsafe fn as_slice(&self) -> &[T] {
        // SAFETY: the block is mapped for at least `len` values, aligned to a page, and lives as long as the arena that
        // `self` holds; any bytes are values of a `Pod` type; the caller vouches that they do not change meanwhile.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The values in place, to be read and written; see [`Buffer::as_slice`].
    ///
    /// # Safety
    /// Nothing else reads or writes the values for as long as the slice is used. The conditions are those of
    /// [`Buffer::as_slice`].
    pub unsafe fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as for `as_slice`; `self` is borrowed exclusively, and the caller vouches for the other processes.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    #[inline(always)]
    fn whole(&self) -> BufferPart<'_, T> {
        // SAFETY: the block is mapped for `len` values as long as the arena that `self` holds, and `self` is borrowed.
        // A `&mut` to the values exists only while `self` is borrowed exclusively.
        let bytes = unsafe { SharedBytes::new(self.start.cast(), self.len * size_of::<T>()) };
        BufferPart::new(bytes, self.len)
    }

    #[inline(always)]
    fn whole_mut(&mut self) -> BufferPartMut<'_, T> {
        // SAFETY: as for `whole`, and `self` is borrowed exclusively.
        let bytes = unsafe { SharedBytesMut::new(self.start.cast(), self.len * size_of::<T>()) };
        BufferPartMut::new(bytes, self.len)
    }
}

impl Buffer<u32> {
    /// One value as an atomic, by which a client and a running function exchange progress or a request to stop. A copy of
    /// the value by another method is neither atomic nor ordered.
    ///
    /// # Panics
    /// If the buffer has no such value, as indexing a slice does.
    pub fn atomic(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.len, "value {index} of a buffer of {}", self.len);
        // SAFETY: inside of the block, aligned, alive as long as `self`; all other accesses are copies by pointers.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(index)) }
    }
}

impl<T: Pod> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.arena.free(self.block);
    }
}
