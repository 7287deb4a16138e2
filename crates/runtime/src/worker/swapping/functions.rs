//! Implements `malloc` and related functions, for a program that swaps, in place of the C library's.
//!
//! Only [`interpose_malloc`](crate::interpose_malloc) gives them these names, in the programs that use it: other
//! programs that link this crate keep the C library's. Memory from functions that are missing here (`valloc`,
//! `pvalloc`) is never swapped, and is recognized as such.

use std::ffi::CStr;
use std::ptr::NonNull;

use libc::{c_int, c_void};

use super::heap::{HEAP, MIN_PIECE_BYTES, errno, no_memory, set_errno};
use super::next;
use crate::swap::is_paging;

/// Makes the program, or the library that is loaded before all others, allocate and map large pieces of swapped memory while
/// a component executes that swaps: see [`worker::swapping`](crate::worker::swapping). With musl it does nothing: the
/// functions that it replaces could not be reached any more.
#[macro_export]
macro_rules! interpose_malloc {
    () => {
        /// The C library's functions of these names.
        #[cfg(not(target_env = "musl"))]
        mod interposed {
            use std::ffi::{c_int, c_ulong, c_void};

            use $crate::worker::swapping::{functions, mappings};

            #[unsafe(no_mangle)]
            unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
                // SAFETY: the caller of the function of this name keeps to its contract.
                unsafe { functions::malloc(size) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
                // SAFETY: as above.
                unsafe { functions::calloc(count, size) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn realloc(at: *mut c_void, size: usize) -> *mut c_void {
                // SAFETY: as above.
                unsafe { functions::realloc(at, size) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn reallocarray(at: *mut c_void, count: usize, size: usize) -> *mut c_void {
                // SAFETY: as above.
                unsafe { functions::reallocarray(at, count, size) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn free(at: *mut c_void) {
                // SAFETY: as above.
                unsafe { functions::free(at) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
                // SAFETY: as above.
                unsafe { functions::memalign(align, size) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
                // SAFETY: as above.
                unsafe { functions::aligned_alloc(align, size) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn posix_memalign(at: *mut *mut c_void, align: usize, size: usize) -> c_int {
                // SAFETY: as above.
                unsafe { functions::posix_memalign(at, align, size) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn malloc_usable_size(at: *mut c_void) -> usize {
                // SAFETY: as above.
                unsafe { functions::malloc_usable_size(at) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn mmap(
                at: *mut c_void,
                size: usize,
                protection: c_int,
                flags: c_int,
                file: c_int,
                offset: i64,
            ) -> *mut c_void {
                // SAFETY: as above.
                unsafe { mappings::mmap(at, size, protection, flags, file, offset) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn mmap64(
                at: *mut c_void,
                size: usize,
                protection: c_int,
                flags: c_int,
                file: c_int,
                offset: i64,
            ) -> *mut c_void {
                // SAFETY: as above.
                unsafe { mappings::mmap(at, size, protection, flags, file, offset) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn munmap(at: *mut c_void, size: usize) -> c_int {
                // SAFETY: as above.
                unsafe { mappings::munmap(at, size) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn madvise(at: *mut c_void, size: usize, advice: c_int) -> c_int {
                // SAFETY: as above.
                unsafe { mappings::madvise(at, size, advice) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn mprotect(at: *mut c_void, size: usize, protection: c_int) -> c_int {
                // SAFETY: as above.
                unsafe { mappings::mprotect(at, size, protection) }
            }

            /// The last parameter is variable in C, and passed in the same way.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn mremap(
                at: *mut c_void,
                size: usize,
                new_size: usize,
                flags: c_int,
                new_at: *mut c_void,
            ) -> *mut c_void {
                // SAFETY: as above.
                unsafe { mappings::mremap(at, size, new_size, flags, new_at) }
            }

            /// All parameters but the first are variable in C, and passed in the same way.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn prctl(
                operation: c_int,
                second: c_ulong,
                third: c_ulong,
                fourth: c_ulong,
                fifth: c_ulong,
            ) -> c_int {
                // SAFETY: as above.
                unsafe { mappings::prctl(operation, second, third, fourth, fifth) }
            }
        }
    };
}

/// Whether a piece of this size is the heap's.
#[inline(always)]
fn is_swapped(size: usize) -> bool {
    size >= MIN_PIECE_BYTES && HEAP.is_on() && !is_paging()
}

#[cold]
fn take(size: usize, align: usize) -> *mut c_void {
    let before = errno();
    let Some(at) = HEAP.take(size, align) else { return no_memory() };
    set_errno(before);
    at.as_ptr()
}

/// # Safety
/// As the C library's.
#[inline(always)]
pub unsafe fn malloc(size: usize) -> *mut c_void {
    if is_swapped(size) {
        return take(size, 1);
    }
    // SAFETY: as the caller vouches.
    unsafe { next::malloc(size) }
}

/// # Safety
/// As the C library's.
#[inline(always)]
pub unsafe fn calloc(count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // Free memory is zero.
        Some(all) if is_swapped(all) => take(all, 1),
        // SAFETY: as the caller vouches.
        _ => unsafe { next::calloc(count, size) },
    }
}

/// # Safety
/// As the C library's.
#[inline(always)]
pub unsafe fn free(at: *mut c_void) {
    if HEAP.has(at) {
        let before = errno();
        HEAP.give_back(at);
        set_errno(before);
        return;
    }
    // SAFETY: as the caller vouches; the pointer is not the heap's.
    unsafe { next::free(at) }
}

/// # Safety
/// As the C library's.
#[inline(always)]
pub unsafe fn realloc(at: *mut c_void, size: usize) -> *mut c_void {
    if HEAP.has(at) || (is_swapped(size) && !at.is_null()) {
        // SAFETY: as the caller vouches.
        return unsafe { move_to(at, size) };
    }
    if at.is_null() {
        // SAFETY: as the caller vouches.
        return unsafe { malloc(size) };
    }
    // SAFETY: as the caller vouches; neither is of the heap.
    unsafe { next::realloc(at, size) }
}

/// # Safety
/// As the C library's.
#[inline(always)]
pub unsafe fn reallocarray(at: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: as the caller vouches.
        Some(all) => unsafe { realloc(at, all) },
        None => no_memory(),
    }
}

/// # Safety
/// As `realloc`: a piece that is the heap's, or is to be.
#[cold]
unsafe fn move_to(at: *mut c_void, size: usize) -> *mut c_void {
    let is_of_heap = HEAP.has(at);
    if is_of_heap && size == 0 {
        // SAFETY: as the caller vouches.
        unsafe { free(at) };
        return std::ptr::null_mut();
    }
    if is_of_heap && size >= MIN_PIECE_BYTES && HEAP.resize(at, size) {
        return at;
    }
    // SAFETY: as the caller vouches.
    let has = unsafe { malloc_usable_size(at) };
    if has == 0 {
        // The content of a piece of unknown length cannot be copied.
        return no_memory();
    }
    // SAFETY: as the caller vouches.
    let into = unsafe { malloc(size) };
    if !into.is_null() {
        // SAFETY: both have the copied number of bytes, and are two pieces; the old one is no longer the caller's.
        unsafe {
            std::ptr::copy_nonoverlapping(at.cast::<u8>(), into.cast(), has.min(size));
            free(at);
        }
    }
    into
}

/// # Safety
/// As the C library's.
#[inline(always)]
pub unsafe fn memalign(align: usize, size: usize) -> *mut c_void {
    if is_swapped(size) && align.is_power_of_two() {
        return take(size, align);
    }
    // SAFETY: as the caller vouches.
    unsafe { next::memalign(align, size) }
}

/// # Safety
/// As the C library's.
#[inline(always)]
pub unsafe fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if is_swapped(size) && align.is_power_of_two() {
        return take(size, align);
    }
    // SAFETY: as the caller vouches.
    unsafe { next::aligned_alloc(align, size) }
}

/// # Safety
/// As the C library's.
#[inline(always)]
pub unsafe fn posix_memalign(at: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !is_swapped(size) || !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
        // SAFETY: as the caller vouches.
        return unsafe { next::posix_memalign(at, align, size) };
    }
    let before = errno();
    let piece = take(size, align);
    set_errno(before);
    if piece.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller passes a place for a pointer.
    unsafe { at.write(piece) };
    0
}

/// # Safety
/// As the C library's.
#[inline(always)]
pub unsafe fn malloc_usable_size(at: *mut c_void) -> usize {
    if HEAP.has(at) {
        return HEAP.len_of(at);
    }
    // SAFETY: as the caller vouches; the pointer is not the heap's.
    unsafe { next::malloc_usable_size(at) }
}

/// Returns whether a large allocation anywhere in this process would come from the heap now.
pub(super) fn reach_heap() -> bool {
    let find = |name: &CStr| {
        // SAFETY: the name is a string; nothing is called.
        NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
    };
    let (Some(malloc), Some(free)) = (find(c"malloc"), find(c"free")) else { return false };
    // SAFETY: functions of these names have these types, wherever they are.
    unsafe {
        let malloc: unsafe extern "C" fn(usize) -> *mut c_void = std::mem::transmute(malloc);
        let free: unsafe extern "C" fn(*mut c_void) = std::mem::transmute(free);
        let at = malloc(MIN_PIECE_BYTES);
        let is_ours = HEAP.has(at);
        free(at);
        is_ours
    }
}
