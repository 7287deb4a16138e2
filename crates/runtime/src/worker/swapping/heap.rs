//! The heap of a process that swaps: pieces of one swapped array, of which the large allocations are made, and mapped pages
//! in it, as allocators of their own map them.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock};

use libc::{c_int, c_void};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use sublet_fabric::sync::{AtomicU32, AtomicU64, Ordering};
use sublet_proto::{Code, Error, to_usize};

use super::extents::Extents;
use super::mapped::{MappedRegions, PAGE_BYTES, REGION_PAGES};
use crate::lease::link::lock;
use crate::swap::{REGION_BYTES, SwappedMemory, as_paging};

/// Size of the smallest allocation that is swapped, in bytes. Each takes whole regions of 2 MiB.
pub(super) const MIN_PIECE_BYTES: usize = 1 << 20;

/// The heap of this process, which has only one `malloc`.
pub(super) static HEAP: Heap = Heap {
    base: AtomicU64::new(0),
    len_bytes: AtomicU64::new(0),
    is_on: AtomicU32::new(0),
    is_forked: AtomicU32::new(0),
    array: OnceLock::new(),
};

/// See the [module](self).
pub(super) struct Heap {
    /// Address of the array; written once, before it is on.
    base: AtomicU64,
    len_bytes: AtomicU64,
    /// Whether large allocations come from it: from the run's beginning on. Written by the thread that takes the
    /// client's messages.
    is_on: AtomicU32,
    /// Whether this is a child process, written by that as it begins.
    is_forked: AtomicU32,
    array: OnceLock<Array>,
}

struct Array {
    swapped: SwappedMemory,
    /// Regions with mapped pages are neither free here nor in a piece.
    extents: Mutex<Extents>,
    mapped: Mutex<MappedRegions>,
}

impl Heap {
    /// Takes the array, while nothing is swapped.
    ///
    /// # Errors
    /// `internal` if it has one already, `system` without memory.
    pub(super) fn begin(&self, swapped: SwappedMemory) -> Result<(), Error> {
        let (base, len_bytes) = (swapped.as_ptr().as_ptr() as u64, swapped.len_bytes());
        debug_assert!(base.is_multiple_of(REGION_BYTES), "the array at {base:#x} begins within a region");
        let extents = Mutex::new(Extents::new(base / REGION_BYTES, len_bytes / REGION_BYTES));
        if self.array.set(Array { swapped, extents, mapped: Mutex::default() }).is_err() {
            return Err(Error::new(Code::Internal, "a process swaps twice"));
        }
        self.base.store(base, Ordering::Relaxed);
        self.len_bytes.store(len_bytes, Ordering::Relaxed);
        // SAFETY: the function is there as long as the process, and does nothing that a new child must not do.
        if unsafe { libc::pthread_atfork(None, None, Some(leave_to_parent)) } != 0 {
            return Err(Error::new(Code::System, "pthread_atfork: out of memory"));
        }
        Ok(())
    }

    /// Makes large allocations come from the array, if there is one.
    pub(super) fn turn_on(&self) {
        if self.array.get().is_some() {
            self.is_on.store(1, Ordering::Release);
        }
    }

    /// Whether there is an array to swap.
    pub(super) fn has_array(&self) -> bool {
        self.array.get().is_some()
    }

    pub(super) fn turn_off(&self) {
        self.is_on.store(0, Ordering::Release);
    }

    #[inline(always)]
    pub(super) fn is_on(&self) -> bool {
        // Pairs with the store in `turn_on`: a thread that sees it on knows the array's address when it frees a piece.
        self.is_on.load(Ordering::Acquire) != 0
    }

    /// Whether an address is in the array.
    #[inline(always)]
    pub(super) fn has(&self, at: *const c_void) -> bool {
        self.offset_of(at) < self.len_bytes.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn offset_of(&self, at: *const c_void) -> u64 {
        (at as u64).wrapping_sub(self.base.load(Ordering::Relaxed))
    }

    /// The array. `None` in a child process, whose copies, including the lock, are the parent's state.
    fn array(&self) -> Option<&Array> {
        self.array.get().filter(|_| self.is_forked.load(Ordering::Relaxed) == 0)
    }

    /// Allocates a piece, all zero. `None` if no free range is large enough.
    #[cold]
    pub(super) fn take(&self, size: usize, align: usize) -> Option<NonNull<c_void>> {
        let (array, regions) = (self.array()?, regions_of(size)?);
        let first = as_paging(|| lock(&array.extents).take(regions, align as u64))?;
        Some(array.at(first, regions))
    }

    /// Maps pages, all zero, from the beginning of a region on. `None` if no free range is large enough.
    #[cold]
    pub(super) fn map(&self, size: usize) -> Option<NonNull<c_void>> {
        let (array, regions) = (self.array()?, regions_of(size)?);
        let pages = (size as u64).div_ceil(PAGE_BYTES);
        let first = as_paging(|| {
            let mut extents = lock(&array.extents);
            let first = extents.take(regions, 1)?;
            // No piece begins there: its pages are unmapped one by one.
            extents.detach(first, 0);
            drop(extents);
            lock(&array.mapped).add(first * REGION_PAGES..first * REGION_PAGES + pages);
            Some(first)
        })?;
        Some(array.at(first, regions))
    }

    /// Unmaps the mapped pages among these bytes, from a page to a page. Pieces stay.
    #[cold]
    pub(super) fn unmap(&self, bytes: &Range<u64>) {
        let Some(array) = self.array() else { return };
        as_paging(|| {
            let free = lock(&array.mapped).remove(pages_of(bytes));
            free.into_iter().for_each(|regions| array.forget(regions));
        });
    }

    /// Whether all of these bytes, from a page to a page, are mapped.
    #[cold]
    pub(super) fn is_mapped(&self, bytes: &Range<u64>) -> bool {
        self.array().is_some_and(|array| as_paging(|| lock(&array.mapped).has(pages_of(bytes))))
    }

    /// Discards the content of these bytes. Whole regions take no memory afterwards, and are zero. The other bytes are
    /// set to zero if `must_be_zero`.
    ///
    /// # Safety
    /// The content of these bytes is of no further use.
    #[cold]
    pub(super) unsafe fn discard(&self, bytes: &Range<u64>, must_be_zero: bool) {
        let Some(array) = self.array() else { return };
        let (first, end) = (bytes.start.div_ceil(REGION_BYTES), bytes.end / REGION_BYTES);
        let zero = |from: u64, to: u64| {
            if must_be_zero && from < to {
                debug_assert!(to <= array.swapped.len_bytes(), "{from} to {to} is beyond the array");
                // SAFETY: the bytes are the array's, and the caller vouches for their content.
                unsafe { array.swapped.as_ptr().add(to_usize(from)).write_bytes(0, to_usize(to - from)) };
            }
        };
        if first >= end {
            return zero(bytes.start, bytes.end);
        }
        as_paging(|| array.swapped.forget(to_usize(first)..to_usize(end)));
        zero(bytes.start, first * REGION_BYTES);
        zero(end * REGION_BYTES, bytes.end);
    }

    /// Address of a byte of the array.
    pub(super) fn address_of(&self, offset: u64) -> u64 {
        self.base.load(Ordering::Relaxed).saturating_add(offset)
    }

    /// The bytes of the array within a range of addresses, counted from its first byte.
    pub(super) fn bytes_within(&self, at: *const c_void, size: usize) -> Range<u64> {
        let base = self.base.load(Ordering::Relaxed);
        let begin = (at as u64).max(base);
        let end = (at as u64).saturating_add(size as u64).min(base + self.len_bytes.load(Ordering::Relaxed));
        if begin < end { begin - base..end - base } else { 0..0 }
    }

    /// Number of usable bytes of a piece; 0 in a child process.
    #[cold]
    pub(super) fn len_of(&self, at: *const c_void) -> usize {
        let Some(array) = self.array() else { return 0 };
        let found = self.region_of(at).and_then(|first| lock(&array.extents).len_of(first));
        let regions = found.unwrap_or_else(|| refuse("no piece of memory begins there"));
        to_usize(regions * REGION_BYTES)
    }

    #[cold]
    pub(super) fn give_back(&self, at: *const c_void) {
        let Some(array) = self.array() else { return };
        as_paging(|| {
            let taken = self.region_of(at).and_then(|first| lock(&array.extents).detach(first, 0));
            let regions =
                taken.unwrap_or_else(|| refuse("no piece of memory begins there, or it was freed already"));
            array.forget(regions);
        });
    }

    /// Resizes a piece in place. Returns whether it could.
    #[cold]
    pub(super) fn resize(&self, at: *const c_void, size: usize) -> bool {
        let (Some(array), Some(first), Some(wanted)) = (self.array(), self.region_of(at), regions_of(size))
        else {
            return false;
        };
        as_paging(|| {
            let mut extents = lock(&array.extents);
            let Some(has) = extents.len_of(first) else { refuse("no piece of memory begins there") };
            if wanted >= has {
                return extents.extend(first, wanted);
            }
            let rest = extents.detach(first, wanted);
            drop(extents);
            rest.into_iter().for_each(|rest| array.forget(rest));
            true
        })
    }

    /// The region that begins there.
    fn region_of(&self, at: *const c_void) -> Option<u64> {
        let offset = self.offset_of(at);
        offset.is_multiple_of(REGION_BYTES).then_some(offset / REGION_BYTES)
    }
}

impl Array {
    /// Address of regions.
    fn at(&self, first: u64, regions: u64) -> NonNull<c_void> {
        debug_assert!(
            (first + regions) * REGION_BYTES <= self.swapped.len_bytes(),
            "{regions} regions from {first} on are beyond {} bytes",
            self.swapped.len_bytes()
        );
        // SAFETY: the extents are of the array's regions.
        unsafe { self.swapped.as_ptr().add(to_usize(first * REGION_BYTES)) }.cast()
    }

    /// Forgets regions that were detached, and makes them free.
    fn forget(&self, regions: Range<u64>) {
        self.swapped.forget(to_usize(regions.start)..to_usize(regions.end));
        lock(&self.extents).attach(regions);
    }
}

fn regions_of(size: usize) -> Option<u64> {
    let bytes = (size as u64).checked_next_multiple_of(REGION_BYTES)?;
    Some((bytes / REGION_BYTES).max(1))
}

fn pages_of(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES)
}

/// Switches swapping off in a child process, which has no pager. Reserves the array's addresses there: memory that the
/// kernel put at them would count as the array's, and could not be unmapped or resized.
extern "C" fn leave_to_parent() {
    HEAP.is_on.store(0, Ordering::Relaxed);
    HEAP.is_forked.store(1, Ordering::Relaxed);
    let base = std::ptr::with_exposed_provenance_mut(to_usize(HEAP.base.load(Ordering::Relaxed)));
    let len_bytes = to_usize(HEAP.len_bytes.load(Ordering::Relaxed));
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: the mapping replaces no other, and nothing may access it. In a child of a child it exists already.
    let _ = unsafe { mmap_anonymous(base, len_bytes, ProtFlags::empty(), flags) };
}

/// Ends the process, as the C library does for a pointer that it did not allocate.
#[cold]
fn refuse(why: &str) -> ! {
    eprintln!("sublet: swapped memory is freed or resized: {why}");
    std::process::abort()
}

/// Reports in the C library's way that there is no memory.
#[cold]
pub(super) fn no_memory() -> *mut c_void {
    set_errno(libc::ENOMEM);
    std::ptr::null_mut()
}

pub(super) fn errno() -> c_int {
    // SAFETY: it is where this thread's is.
    unsafe { *libc::__errno_location() }
}

pub(super) fn set_errno(number: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = number };
}
