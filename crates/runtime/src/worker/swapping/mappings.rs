//! Implements `mmap` and related functions, for a program that swaps, in place of the C library's: allocators such as
//! jemalloc and mimalloc get their memory from them, and not from `malloc`.
//!
//! Anonymous private memory of `MIN_MAPPED_BYTES` or more, to be read and written, comes from the heap, and there is no
//! other if the heap is full. All else is the kernel's. In the heap pages are unmapped, discarded and moved as in the kernel's memory. They
//! cannot get other rights than reading and writing: that is refused. The kernel does not learn names of them, since it would
//! divide the array's mapping at their ends, and moves no huge page across such a division. The C library's own calls, such
//! as those for the stacks of threads, and system calls without the C library do not come here.

use std::ops::Range;

use libc::{c_int, c_long, c_ulong, c_void};
use sublet_proto::to_usize;

use super::heap::{HEAP, errno, set_errno};
use super::mapped::PAGE_BYTES;
use crate::swap::{REGION_BYTES, is_paging};

/// Size of the smallest mapping that is swapped. Smaller ones are those of the interpreter of Python, and those in which
/// allocators keep their own state: child processes need them too.
const MIN_MAPPED_BYTES: u64 = 2 * REGION_BYTES;
/// Flags of mappings that may be swapped.
const SWAPPED_FLAGS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
const ANONYMOUS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;
/// The second argument of `prctl` for naming memory.
const PR_SET_VMA_ANON_NAME: c_ulong = 0;

/// # Safety
/// As the C library's.
pub unsafe fn mmap(
    at: *mut c_void,
    size: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    let is_anonymous = flags & (libc::MAP_TYPE | libc::MAP_ANONYMOUS) == ANONYMOUS;
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 {
        let inside = inside(at, size);
        if !inside.is_empty() {
            let can_be = is_anonymous && (protection == READ_WRITE || protection == libc::PROT_NONE);
            let replaces = flags & libc::MAP_FIXED_NOREPLACE == 0;
            if can_be && replaces && is_whole(at, size, &inside) && HEAP.is_mapped(&inside) {
                // SAFETY: the caller replaces the content.
                keeping_errno(|| unsafe { HEAP.discard(&inside, true) });
                return at;
            }
            return refused(if replaces { libc::EINVAL } else { libc::EEXIST });
        }
    } else if is_anonymous
        && flags & !SWAPPED_FLAGS == 0
        && protection == READ_WRITE
        && size as u64 >= MIN_MAPPED_BYTES
        && HEAP.is_on()
        && !is_paging()
    {
        return match keeping_errno(|| HEAP.map(size)) {
            Some(mapped) => mapped.as_ptr(),
            None => refused(libc::ENOMEM),
        };
    }
    // SAFETY: as the caller vouches; nothing of the heap is replaced.
    unsafe { system::mmap(at, size, protection, flags, file, offset) }
}

/// # Safety
/// As the C library's.
pub unsafe fn munmap(at: *mut c_void, size: usize) -> c_int {
    let inside = inside(at, size);
    if inside.is_empty() {
        // SAFETY: as the caller vouches; nothing of the heap is there.
        return unsafe { system::munmap(at, size) };
    }
    if !is_page(at) {
        return invalid();
    }
    keeping_errno(|| HEAP.unmap(&inside));
    // SAFETY: as the caller vouches; what lies beside the heap is not of it.
    outside(at, size, &inside, |at, size| unsafe { system::munmap(at, size) })
}

/// # Safety
/// As the C library's.
pub unsafe fn madvise(at: *mut c_void, size: usize, advice: c_int) -> c_int {
    let inside = inside(at, size);
    if inside.is_empty() {
        // SAFETY: as the caller vouches; nothing of the heap is there.
        return unsafe { system::madvise(at, size, advice) };
    }
    match advice {
        _ if !is_page(at) => return invalid(),
        // SAFETY: the caller discards the content.
        libc::MADV_DONTNEED => keeping_errno(|| unsafe { HEAP.discard(&inside, true) }),
        // SAFETY: as above.
        libc::MADV_FREE => keeping_errno(|| unsafe { HEAP.discard(&inside, false) }),
        // Hints that the pager does without.
        libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_WILLNEED
        | libc::MADV_DONTFORK
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT => {}
        _ => return invalid(),
    }
    // SAFETY: as the caller vouches; what lies beside the heap is not of it.
    outside(at, size, &inside, |at, size| unsafe { system::madvise(at, size, advice) })
}

/// # Safety
/// As the C library's.
pub unsafe fn mprotect(at: *mut c_void, size: usize, protection: c_int) -> c_int {
    let inside = inside(at, size);
    if inside.is_empty() {
        // SAFETY: as the caller vouches; nothing of the heap is there.
        return unsafe { system::mprotect(at, size, protection) };
    }
    if !is_page(at) {
        return invalid();
    }
    if protection != READ_WRITE {
        set_errno(libc::EACCES);
        return -1;
    }
    // SAFETY: as the caller vouches; what lies beside the heap is not of it.
    outside(at, size, &inside, |at, size| unsafe { system::mprotect(at, size, protection) })
}

/// # Safety
/// As the C library's.
pub unsafe fn mremap(
    at: *mut c_void,
    size: usize,
    new_size: usize,
    flags: c_int,
    new_at: *mut c_void,
) -> *mut c_void {
    let there = inside(at, size.max(1));
    let is_fixed = flags & libc::MREMAP_FIXED != 0;
    if there.is_empty() && (!is_fixed || inside(new_at, new_size).is_empty()) {
        // SAFETY: as the caller vouches; nothing of the heap is there.
        return unsafe { system::mremap(at, size, new_size, flags, new_at) };
    }
    let (Some(has), Some(wanted)) = (whole_pages(size), whole_pages(new_size)) else {
        return refused(libc::ENOMEM);
    };
    let is_known = flags & !libc::MREMAP_MAYMOVE == 0 && is_whole(at, size, &there) && HEAP.is_mapped(&there);
    if !is_known || has == 0 || wanted == 0 {
        return refused(libc::EINVAL);
    }
    if wanted <= has {
        // The pages behind are not used any more, as the caller vouches.
        keeping_errno(|| HEAP.unmap(&(there.start + wanted..there.end)));
        return at;
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        return refused(libc::ENOMEM);
    }
    // SAFETY: the kernel or the heap chooses the place of new memory, and replaces none.
    let moved = unsafe { mmap(std::ptr::null_mut(), new_size, READ_WRITE, ANONYMOUS, -1, 0) };
    if moved != libc::MAP_FAILED {
        // SAFETY: both have the copied whole pages, and are two mappings.
        unsafe { std::ptr::copy_nonoverlapping(at.cast::<u8>(), moved.cast(), to_usize(has)) };
        keeping_errno(|| HEAP.unmap(&there));
    }
    moved
}

/// # Safety
/// As the C library's.
pub unsafe fn prctl(
    operation: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    let is_name = operation == libc::PR_SET_VMA && second == PR_SET_VMA_ANON_NAME;
    if is_name {
        let at = std::ptr::with_exposed_provenance_mut(to_usize(third));
        if !inside(at, to_usize(fourth)).is_empty() {
            return 0;
        }
    }
    // SAFETY: as the caller vouches; the mapping of the heap is not divided.
    unsafe { system::prctl(operation, second, third, fourth, fifth) }
}

/// The bytes of the heap within whole pages, counted from its first byte. Empty for a thread that pages: it handles the
/// heap's own memory.
fn inside(at: *mut c_void, size: usize) -> Range<u64> {
    let bytes = whole_pages(size).and_then(|bytes| usize::try_from(bytes).ok());
    let inside = bytes.map_or(0..0, |bytes| HEAP.bytes_within(at, bytes));
    // Only then: the first threads of a program have nothing of the heap, and no state of their own yet.
    if inside.is_empty() || is_paging() { 0..0 } else { inside }
}

/// Calls `what` for what lies before the heap's bytes and behind them, and returns its first failure.
fn outside(
    at: *mut c_void,
    size: usize,
    inside: &Range<u64>,
    mut what: impl FnMut(*mut c_void, usize) -> c_int,
) -> c_int {
    let heap = HEAP.address_of(inside.start);
    let before = usize::try_from(heap.saturating_sub(at as u64)).unwrap_or(usize::MAX);
    let done = if before > 0 { what(at, before) } else { 0 };
    let part = usize::try_from(inside.end - inside.start).unwrap_or(usize::MAX);
    let behind = size.saturating_sub(before).saturating_sub(part);
    if done != 0 || behind == 0 { done } else { what(at.wrapping_byte_add(before + part), behind) }
}

/// Whether the heap has all of these bytes, from a page on.
fn is_whole(at: *mut c_void, size: usize, inside: &Range<u64>) -> bool {
    is_page(at) && whole_pages(size) == Some(inside.end - inside.start)
}

fn is_page(at: *mut c_void) -> bool {
    (at as u64).is_multiple_of(PAGE_BYTES)
}

fn whole_pages(size: usize) -> Option<u64> {
    (size as u64).checked_next_multiple_of(PAGE_BYTES)
}

/// Runs `what`, after which the number of the latest error is the same.
fn keeping_errno<T>(what: impl FnOnce() -> T) -> T {
    let before = errno();
    let done = what();
    set_errno(before);
    done
}

fn invalid() -> c_int {
    set_errno(libc::EINVAL);
    -1
}

fn refused(number: c_int) -> *mut c_void {
    set_errno(number);
    libc::MAP_FAILED
}

/// The kernel's functions: the C library's are those of this module, by name.
mod system {
    use super::{c_int, c_long, c_ulong, c_void};

    pub(super) unsafe fn mmap(
        at: *mut c_void,
        size: usize,
        protection: c_int,
        flags: c_int,
        file: c_int,
        offset: i64,
    ) -> *mut c_void {
        let [protection, flags, file] = [protection, flags, file].map(c_long::from);
        // SAFETY: as the caller vouches.
        let mapped = unsafe { libc::syscall(libc::SYS_mmap, at, size, protection, flags, file, offset) };
        mapped as *mut c_void
    }

    pub(super) unsafe fn munmap(at: *mut c_void, size: usize) -> c_int {
        // SAFETY: as the caller vouches.
        code(unsafe { libc::syscall(libc::SYS_munmap, at, size) })
    }

    pub(super) unsafe fn madvise(at: *mut c_void, size: usize, advice: c_int) -> c_int {
        // SAFETY: as the caller vouches.
        code(unsafe { libc::syscall(libc::SYS_madvise, at, size, c_long::from(advice)) })
    }

    pub(super) unsafe fn mprotect(at: *mut c_void, size: usize, protection: c_int) -> c_int {
        // SAFETY: as the caller vouches.
        code(unsafe { libc::syscall(libc::SYS_mprotect, at, size, c_long::from(protection)) })
    }

    pub(super) unsafe fn mremap(
        at: *mut c_void,
        size: usize,
        new_size: usize,
        flags: c_int,
        new_at: *mut c_void,
    ) -> *mut c_void {
        // SAFETY: as the caller vouches.
        let moved =
            unsafe { libc::syscall(libc::SYS_mremap, at, size, new_size, c_long::from(flags), new_at) };
        moved as *mut c_void
    }

    pub(super) unsafe fn prctl(
        operation: c_int,
        second: c_ulong,
        third: c_ulong,
        fourth: c_ulong,
        fifth: c_ulong,
    ) -> c_int {
        // SAFETY: as the caller vouches.
        let done =
            unsafe { libc::syscall(libc::SYS_prctl, c_long::from(operation), second, third, fourth, fifth) };
        code(done)
    }

    fn code(done: c_long) -> c_int {
        c_int::try_from(done).unwrap_or(-1)
    }
}
