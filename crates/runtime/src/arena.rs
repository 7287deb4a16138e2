//! The client's registered memory, and the buffers that are allocated from it (rFaaS IV-B).
//!
//! A buffer lies in a region that every worker of the invoker's lease has mapped: a function reads its input and
//! writes its output in place, and the cost of a call does not depend on the size of either. Buffers are aligned to
//! pages and need no room for a header: what a worker must know travels in the request's line.
//!
//! Regions are made when allocation outgrows them, each at least as large as all before it together, and stay until
//! the invoker is dropped; a large freed buffer gives its pages back to the machine at once.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;
use sublet_fabric::region::{create_file, page_align, punch_hole};
use sublet_fabric::window::{Address, Window};
use sublet_proto::{Code, Error};

use crate::wire::MAX_REGIONS;

/// Size of the first region. Untouched pages of a region take no memory.
const FIRST_REGION_BYTES: u64 = 64 << 20;
/// Largest region, and so the largest buffer: what a call's 32-bit size can say, in whole pages.
const MAX_REGION_BYTES: u64 = 1 << 32;
/// From this size on, a freed buffer's pages are given back. Below, keeping them saves the next owner the faults.
const GIVE_BACK_BYTES: u64 = 32 << 20;

/// Memory that workers can reach.
pub struct Arena {
    window: Window,
    regions: Mutex<Vec<ArenaRegion>>,
}

/// A region by its index + 1, as the wire numbers it.
struct ArenaRegion {
    file: OwnedFd,
    len_bytes: u64,
    /// Free stretches, by offset. No two touch.
    free: BTreeMap<u64, u64>,
}

/// A piece of an arena, in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) at: Address,
    pub(crate) len_bytes: u64,
}

impl Arena {
    pub(crate) fn new() -> Result<Arc<Arena>, Error> {
        let window = Window::reserve(MAX_REGIONS, u64::from(u32::MAX))?;
        Ok(Arc::new(Arena { window, regions: Mutex::new(Vec::new()) }))
    }

    /// Allocates whole pages. `publish` is called after a region was added and before anything in it is given out:
    /// by then workers must have it.
    pub(crate) fn allocate(
        &self,
        len_bytes: u64,
        publish: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Block, Error> {
        let wanted =
            page_align(len_bytes.max(1)).filter(|&wanted| wanted <= MAX_REGION_BYTES).ok_or_else(|| {
                let message = format!("a buffer of {len_bytes} bytes: the largest has {} bytes", u32::MAX);
                Error::new(Code::InvalidArgument, message)
            })?;
        if let Some(block) = self.take(wanted) {
            return Ok(block);
        }
        let region = self.grow(wanted)?;
        let published = publish();
        self.open(region);
        published?;
        self.take(wanted)
            .ok_or_else(|| Error::new(Code::Internal, "a new region was taken before its first buffer"))
    }

    pub(crate) fn free(&self, block: Block) {
        let mut regions = self.lock();
        let Some(region) = regions.get_mut(block.at.region as usize - 1) else { return };
        if block.len_bytes >= GIVE_BACK_BYTES {
            // If the machine does not want the pages back, the next owner has them.
            let _ = punch_hole(region.file.as_fd(), block.at.offset, block.len_bytes);
        }
        region.insert_free(block.at.offset, block.len_bytes);
    }

    /// Where a block lies in this process.
    pub(crate) fn pointer(&self, block: &Block) -> Option<NonNull<u8>> {
        self.window.pointer(block.at, block.len_bytes)
    }

    /// The place of memory that lies wholly inside of the arena.
    #[inline(always)]
    pub(crate) fn locate(&self, pointer: *const u8, len_bytes: u64) -> Option<Address> {
        self.window.locate(pointer, len_bytes)
    }

    /// Hands every region numbered above `known` to `give`, in order.
    pub(crate) fn regions_above(
        &self,
        known: u32,
        mut give: impl FnMut(u32, &OwnedFd, u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let regions = self.lock();
        for (index, region) in regions.iter().enumerate().skip(known as usize) {
            give(index as u32 + 1, &region.file, region.len_bytes)?;
        }
        Ok(())
    }

    fn take(&self, wanted: u64) -> Option<Block> {
        let mut regions = self.lock();
        regions.iter_mut().enumerate().find_map(|(index, region)| {
            let offset = region.take_free(wanted)?;
            Some(Block { at: Address { region: index as u32 + 1, offset }, len_bytes: wanted })
        })
    }

    /// Adds a region without free space.
    fn grow(&self, wanted: u64) -> Result<u32, Error> {
        let mut regions = self.lock();
        let so_far: u64 = regions.iter().map(|region| region.len_bytes).sum();
        let len_bytes = wanted.max(so_far).clamp(FIRST_REGION_BYTES, MAX_REGION_BYTES);
        let number = regions.len() as u32 + 1;
        let file = create_file("sublet-buffers", len_bytes)?;
        self.window.map(number, file.as_fd(), len_bytes)?;
        regions.push(ArenaRegion { file, len_bytes, free: BTreeMap::new() });
        Ok(number)
    }

    /// Makes the space of a new region free.
    fn open(&self, number: u32) {
        let mut regions = self.lock();
        if let Some(region) = regions.get_mut(number as usize - 1) {
            region.insert_free(0, region.len_bytes);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ArenaRegion>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ArenaRegion {
    /// First fit: low addresses are used again first, and stay in the caches.
    fn take_free(&mut self, wanted: u64) -> Option<u64> {
        let (&offset, &len) = self.free.iter().find(|&(_, &len)| len >= wanted)?;
        self.free.remove(&offset);
        if len > wanted {
            self.free.insert(offset + wanted, len - wanted);
        }
        Some(offset)
    }

    fn insert_free(&mut self, mut offset: u64, mut len: u64) {
        if let Some((&before, &before_len)) = self.free.range(..offset).next_back()
            && before + before_len == offset
        {
            self.free.remove(&before);
            (offset, len) = (before, before_len + len);
        }
        if let Some(after_len) = self.free.remove(&(offset + len)) {
            len += after_len;
        }
        self.free.insert(offset, len);
    }
}

/// `len` values of `T` in memory that workers reach without copying. Behaves as a slice.
///
/// The contents of a new buffer are unspecified values, zero if the memory was never used before.
///
/// While no call uses it, the memory is this process's alone: [`Invoker::submit`](crate::Invoker::submit) borrows
/// input and output until the call has ended. A worker that writes elsewhere or at another time than its function
/// was asked to can spoil values here, never more: `T` is plain data, every bit pattern of which is a value.
pub struct Buffer<T: Pod> {
    arena: Arc<Arena>,
    block: Block,
    start: NonNull<T>,
    len: usize,
}

// SAFETY: a buffer owns its block of the arena, as a Vec owns its heap block.
unsafe impl<T: Pod + Send> Send for Buffer<T> {}
// SAFETY: as above.
unsafe impl<T: Pod + Sync> Sync for Buffer<T> {}

impl<T: Pod> Buffer<T> {
    pub(crate) fn new(
        arena: &Arc<Arena>,
        len: usize,
        publish: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Buffer<T>, Error> {
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
}

impl Buffer<u32> {
    /// One value as an atomic: for what a client and a function that is running tell each other, as progress or a
    /// wish to stop. Nobody may look at that value through the slice meanwhile.
    ///
    /// # Panics
    /// If the buffer has no such value.
    pub fn atomic(&self, index: usize) -> &std::sync::atomic::AtomicU32 {
        assert!(index < self.len, "value {index} of a buffer of {}", self.len);
        // SAFETY: inside of the block, aligned, alive as long as `self`; the slice's borrowers leave it alone.
        unsafe { std::sync::atomic::AtomicU32::from_ptr(self.start.as_ptr().add(index)) }
    }
}

impl<T: Pod> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the block is mapped for at least `len` values, aligned to a page, lives as long as the arena that
        // `self` holds, and belongs to `self` alone; any bytes are values of a `Pod` type.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Pod> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.arena.free(self.block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn buffer<T: Pod>(arena: &Arc<Arena>, len: usize) -> Result<Buffer<T>, Error> {
        Buffer::new(arena, len, || Ok(()))
    }

    #[test]
    fn a_buffer_is_page_aligned_and_found_again_by_its_address() {
        let arena = Arena::new().unwrap();
        let mut values = buffer::<f64>(&arena, 1000).unwrap();
        values.fill(1.5);
        assert_eq!(values.as_ptr() as usize % 4096, 0);
        assert_eq!(arena.locate(values.as_ptr().cast(), 8000), Some(values.block.at));
        assert_eq!(arena.locate(values[10..].as_ptr().cast(), 80).unwrap().offset, 80);
        let elsewhere = [0u8; 64];
        assert_eq!(arena.locate(elsewhere.as_ptr(), 64), None);
    }

    #[test]
    fn sizes_from_nothing_to_4_gib_less_one_byte() {
        let arena = Arena::new().unwrap();
        assert_eq!(buffer::<u8>(&arena, 0).unwrap().len(), 0);
        assert_eq!(buffer::<u8>(&arena, u32::MAX as usize).unwrap().len(), u32::MAX as usize);
        let error = buffer::<u8>(&arena, 1 << 32).err().unwrap();
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(error.message.contains("4294967296"), "{error}");
    }

    #[test]
    fn a_region_is_published_before_its_first_buffer_and_only_once() {
        let arena = Arena::new().unwrap();
        let mut published = 0;
        let first = Buffer::<u8>::new(&arena, 1, || {
            published += 1;
            Ok(())
        })
        .unwrap();
        let second = Buffer::<u8>::new(&arena, 1, || {
            published += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!((published, first.len() + second.len()), (1, 2));
    }

    proptest! {
        #[test]
        fn live_buffers_never_overlap_and_freed_space_is_whole_again(
            steps in prop::collection::vec((any::<bool>(), 1usize..300_000, any::<prop::sample::Index>()), 1..60),
        ) {
            let arena = Arena::new().unwrap();
            let mut live = Vec::new();
            for (free, len, which) in steps {
                if free && !live.is_empty() {
                    live.swap_remove(which.index(live.len()));
                } else {
                    live.push(buffer::<u8>(&arena, len).unwrap());
                }
                let mut spans: Vec<_> = live.iter().map(|b| (b.as_ptr() as usize, b.len())).collect();
                spans.sort_unstable();
                prop_assert!(spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            }
            live.clear();
            let regions = arena.lock();
            for region in regions.iter() {
                prop_assert_eq!(region.free.iter().collect::<Vec<_>>(), [(&0, &region.len_bytes)]);
            }
        }
    }
}
