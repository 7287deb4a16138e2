//! Memory private to this process whose owner inserts and removes the pages: the memory that [`faults`](crate::faults)
//! watches.
//!
//! A stretch begins at a multiple of 2 MiB, so that whole huge pages fit. A child process does not inherit it, since no
//! thread there would supply its pages.

use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};
use sublet_proto::to_usize;

use crate::FabricError;
use crate::region::PAGE_BYTES;

/// Size of a huge page of this processor, in bytes.
pub const HUGE_BYTES: u64 = 2 << 20;

/// Size of the pages that the kernel makes on a first touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// 4 KiB each.
    Small,
    /// 2 MiB each, where the kernel supports them.
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

// SAFETY: a stretch of the process's address space; its bytes are accessed by raw pointers only.
unsafe impl Send for Stretch {}
// SAFETY: as above.
unsafe impl Sync for Stretch {}

impl Stretch {
    /// Reserves `len_bytes` bytes, in whole pages. Takes memory only as pages are written.
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
        let before = mapped.align_offset(to_usize(HUGE_BYTES));
        // SAFETY: the mapping is a huge page longer than what is used of it, so this is within.
        let base = unsafe { mapped.add(before) };
        debug_assert!(
            before as u64 + len_bytes <= mapped_bytes as u64
                && (base.as_ptr() as u64).is_multiple_of(HUGE_BYTES),
            "{len_bytes} bytes at {base:?} of {mapped_bytes} at {mapped:?}"
        );
        let stretch = Stretch { mapped, mapped_bytes, base, len_bytes };
        // A kernel without huge pages refuses advice about them.
        let _ = match pages {
            PageSize::Small => stretch.advise(Advice::LinuxNoHugepage),
            PageSize::Huge => stretch.advise(Advice::LinuxHugepage),
        };
        stretch.advise(Advice::LinuxDontFork)?;
        Ok(stretch)
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Address of the first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Address of `len_bytes` bytes at `offset`, if they are inside.
    #[inline]
    pub fn pointer(&self, offset: u64, len_bytes: u64) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len_bytes)?;
        // SAFETY: `offset` is at most the length, so the result is inside or one past the end.
        (end <= self.len_bytes).then(|| unsafe { self.base.add(to_usize(offset)) })
    }

    /// All bytes of the stretch.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the bytes are this mapping's, zero until they are written; no other code has the stretch meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), to_usize(self.len_bytes)) }
    }

    /// Offset of an address in the stretch, if it is inside.
    #[inline]
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.base.as_ptr() as u64)?;
        (offset < self.len_bytes).then_some(offset)
    }

    /// Gives pages back to the machine.
    ///
    /// # Safety
    /// The contents of the pages are lost, so no code may rely on them.
    pub unsafe fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), FabricError> {
        let at = self.pointer(offset, len_bytes).ok_or(FabricError::OutOfBounds {
            region: 0,
            offset,
            len_bytes,
        })?;
        // SAFETY: the range is within this mapping, and by the caller's promise no code relies on its bytes.
        let done =
            unsafe { rustix::mm::madvise(at.as_ptr().cast(), to_usize(len_bytes), Advice::LinuxDontNeed) };
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
    fn stretch_starts_at_a_huge_page_and_keeps_its_length() {
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
        // SAFETY: the byte is inside, and no other thread has the stretch.
        unsafe {
            second.write(7);
            stretch.discard(4096, 4096).unwrap();
            assert_eq!(second.read(), 0);
        }
    }
}
