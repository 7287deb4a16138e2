//! Memory of this process alone whose pages its owner puts in and takes out: what [`faults`](crate::faults) watches.
//!
//! It begins at a multiple of 2 MiB, so that whole huge pages fit. A child process does not have it: nobody would bring
//! its pages there.

use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::FabricError;
use crate::region::PAGE_BYTES;

/// A huge page of this processor.
pub const HUGE_BYTES: u64 = 2 << 20;

/// What the kernel makes pages of when it makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// 4 KiB each.
    Small,
    /// 2 MiB each, where it has such.
    Huge,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Stretch {
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    base: NonNull<u8>,
    len_bytes: u64,
}

// SAFETY: a stretch of the process's address space; what is in it is reached by raw pointers alone.
unsafe impl Send for Stretch {}
// SAFETY: as above.
unsafe impl Sync for Stretch {}

impl Stretch {
    /// Reserves so much, in whole pages. It takes memory as it is written.
    pub fn reserve(len_bytes: u64, pages: PageSize) -> Result<Stretch, FabricError> {
        let refused = |error| FabricError::system(format!("reserving {len_bytes} bytes of memory"), error);
        let whole =
            len_bytes.checked_next_multiple_of(PAGE_BYTES).and_then(|len| len.checked_add(HUGE_BYTES));
        let mapped_bytes = whole.and_then(|len| usize::try_from(len).ok()).ok_or(rustix::io::Errno::NOMEM);
        let mapped_bytes = mapped_bytes.map_err(refused)?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh private mapping, at an address of the kernel's choice.
        let mapped = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), mapped_bytes, rights, flags)
        };
        let mapped = NonNull::new(mapped.map_err(refused)?.cast::<u8>());
        let mapped = mapped.ok_or_else(|| refused(rustix::io::Errno::NOMEM))?;
        let before = mapped.align_offset(HUGE_BYTES as usize);
        // SAFETY: the mapping is a huge page longer than what is used of it, so this is within.
        let base = unsafe { mapped.add(before) };
        debug_assert!(
            before as u64 + len_bytes <= mapped_bytes as u64
                && (base.as_ptr() as u64).is_multiple_of(HUGE_BYTES),
            "{len_bytes} bytes at {base:?} of {mapped_bytes} at {mapped:?}"
        );
        let stretch = Stretch { mapped, mapped_bytes, base, len_bytes };
        // A kernel without huge pages refuses to be told about them.
        let _ = match pages {
            PageSize::Small => stretch.advise(Advice::LinuxNoHugepage),
            PageSize::Huge => stretch.advise(Advice::LinuxHugepage),
        };
        stretch.advise(Advice::LinuxDontFork)?;
        Ok(stretch)
    }

    /// How long it is.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Its first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Where `len_bytes` bytes at `offset` lie, if they are inside.
    #[inline]
    pub fn pointer(&self, offset: u64, len_bytes: u64) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len_bytes)?;
        // SAFETY: `offset` is at most the length, so the result is inside or one past the end.
        (end <= self.len_bytes).then(|| unsafe { self.base.add(offset as usize) })
    }

    /// All of it.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the bytes are this mapping's, zero until they are written; nobody else has the stretch meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len_bytes as usize) }
    }

    /// How far inside an address is, if it is.
    #[inline]
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.base.as_ptr() as u64)?;
        (offset < self.len_bytes).then_some(offset)
    }

    /// Gives pages back to the machine.
    ///
    /// # Safety
    /// What is there is lost, so nobody may rely on it.
    pub unsafe fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), FabricError> {
        let at = self.pointer(offset, len_bytes).ok_or(FabricError::OutOfBounds {
            region: 0,
            offset,
            len_bytes,
        })?;
        // SAFETY: the range is within this mapping, and its bytes are nobody's by the caller's word.
        let done =
            unsafe { rustix::mm::madvise(at.as_ptr().cast(), len_bytes as usize, Advice::LinuxDontNeed) };
        done.map_err(|error| FabricError::system(format!("giving back {len_bytes} bytes at {offset}"), error))
    }

    fn advise(&self, advice: Advice) -> Result<(), FabricError> {
        // SAFETY: the range is all of this mapping, and no such advice changes what is in it.
        let done = unsafe { rustix::mm::madvise(self.mapped.as_ptr().cast(), self.mapped_bytes, advice) };
        done.map_err(|error| FabricError::system(format!("madvise({advice:?})"), error))
    }
}

impl Drop for Stretch {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `reserve`.
        let _ = unsafe { rustix::mm::munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_begins_where_a_huge_page_does_and_ends_where_it_says() {
        let stretch = Stretch::reserve(3 << 20, PageSize::Huge).unwrap();
        let base = stretch.pointer(0, 3 << 20).unwrap();
        assert_eq!(base.as_ptr() as u64 % HUGE_BYTES, 0);
        assert_eq!(stretch.offset_of(base.as_ptr() as u64 + 5), Some(5));
        assert_eq!(stretch.offset_of(base.as_ptr() as u64 + (3 << 20)), None);
        assert!(stretch.pointer(1, 3 << 20).is_none() && stretch.pointer(u64::MAX, 2).is_none());
        assert!(Stretch::reserve(u64::MAX, PageSize::Small).is_err());
        assert!(Stretch::reserve(1 << 62, PageSize::Small).is_err());
    }

    #[test]
    fn what_is_discarded_is_zero_again() {
        let stretch = Stretch::reserve(8192, PageSize::Small).unwrap();
        let second = stretch.pointer(4096, 1).unwrap();
        // SAFETY: the byte is inside, and nobody else has the stretch.
        unsafe {
            second.write(7);
            stretch.discard(4096, 4096).unwrap();
            assert_eq!(second.read(), 0);
        }
    }
}
