//! Finds `malloc` and related functions that the program would have without those of [`functions`](super::functions):
//! the C library's, or those of a library that is loaded before it.

use std::cell::Cell;
use std::ffi::CStr;

use libc::{c_int, c_void};
use sublet_fabric::sync::{AtomicU64, Ordering};

// The C library's own functions, by the names that no library replaces. musl exports no such names, and programs with
// musl do not replace these functions: see `interpose_malloc`.
unsafe extern "C" {
    #[cfg_attr(target_env = "musl", link_name = "malloc")]
    fn __libc_malloc(size: usize) -> *mut c_void;
    #[cfg_attr(target_env = "musl", link_name = "calloc")]
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    #[cfg_attr(target_env = "musl", link_name = "realloc")]
    fn __libc_realloc(at: *mut c_void, size: usize) -> *mut c_void;
    #[cfg_attr(target_env = "musl", link_name = "memalign")]
    fn __libc_memalign(align: usize, size: usize) -> *mut c_void;
    #[cfg_attr(target_env = "musl", link_name = "free")]
    fn __libc_free(at: *mut c_void);
}

thread_local! {
    /// Set while this thread looks a function up. Allocations by the lookup use the C library's functions.
    static IS_LOOKING: Cell<bool> = const { Cell::new(false) };
}

/// A function of the next library.
pub(super) struct NextFunction {
    name: &'static CStr,
    /// The C library's own function, for the case that no other is found.
    own: *const c_void,
    /// Address of the function; 0 until it was looked up. Every thread that finds it writes the same value.
    at: AtomicU64,
}

// SAFETY: what it points to are functions, of which any thread may call any.
unsafe impl Sync for NextFunction {}

type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Calloc = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type PosixMemalign = unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int;
type UsableSize = unsafe extern "C" fn(*mut c_void) -> usize;
type Free = unsafe extern "C" fn(*mut c_void);

static MALLOC: NextFunction = NextFunction::new(c"malloc", __libc_malloc as *const c_void);
static CALLOC: NextFunction = NextFunction::new(c"calloc", __libc_calloc as *const c_void);
static REALLOC: NextFunction = NextFunction::new(c"realloc", __libc_realloc as *const c_void);
static MEMALIGN: NextFunction = NextFunction::new(c"memalign", __libc_memalign as *const c_void);
static ALIGNED_ALLOC: NextFunction = NextFunction::new(c"aligned_alloc", __libc_memalign as *const c_void);
static POSIX_MEMALIGN: NextFunction =
    NextFunction::new(c"posix_memalign", own_posix_memalign as *const c_void);
static USABLE_SIZE: NextFunction = NextFunction::new(c"malloc_usable_size", own_usable_size as *const c_void);
static FREE: NextFunction = NextFunction::new(c"free", __libc_free as *const c_void);

impl NextFunction {
    const fn new(name: &'static CStr, own: *const c_void) -> NextFunction {
        NextFunction { name, own, at: AtomicU64::new(0) }
    }

    /// # Safety
    /// The type is that of the function of this name.
    #[inline(always)]
    unsafe fn function<F: Copy>(&self) -> F {
        const { assert!(size_of::<F>() == size_of::<u64>()) };
        let mut at = self.at.load(Ordering::Relaxed);
        if at == 0 {
            at = self.find();
        }
        // SAFETY: an address of a function, of the type that the caller vouches for.
        unsafe { std::mem::transmute_copy(&at) }
    }

    #[cold]
    fn find(&self) -> u64 {
        if IS_LOOKING.replace(true) {
            return self.own as u64;
        }
        // SAFETY: the name is a string; nothing is called.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        IS_LOOKING.set(false);
        let at = if found.is_null() { self.own } else { found };
        self.at.store(at as u64, Ordering::Relaxed);
        at as u64
    }
}

/// # Safety
/// As the C library's, and so are the others.
#[inline(always)]
pub(super) unsafe fn malloc(size: usize) -> *mut c_void {
    // SAFETY: the type is this function's; the rest is as the caller vouches.
    unsafe { MALLOC.function::<Malloc>()(size) }
}

#[inline(always)]
pub(super) unsafe fn calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: as for `malloc`.
    unsafe { CALLOC.function::<Calloc>()(count, size) }
}

#[inline(always)]
pub(super) unsafe fn realloc(at: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: as for `malloc`.
    unsafe { REALLOC.function::<Realloc>()(at, size) }
}

#[inline(always)]
pub(super) unsafe fn memalign(align: usize, size: usize) -> *mut c_void {
    // SAFETY: as for `malloc`.
    unsafe { MEMALIGN.function::<Calloc>()(align, size) }
}

#[inline(always)]
pub(super) unsafe fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    // SAFETY: as for `malloc`.
    unsafe { ALIGNED_ALLOC.function::<Calloc>()(align, size) }
}

#[inline(always)]
pub(super) unsafe fn posix_memalign(at: *mut *mut c_void, align: usize, size: usize) -> c_int {
    // SAFETY: as for `malloc`.
    unsafe { POSIX_MEMALIGN.function::<PosixMemalign>()(at, align, size) }
}

#[inline(always)]
pub(super) unsafe fn malloc_usable_size(at: *mut c_void) -> usize {
    // SAFETY: as for `malloc`.
    unsafe { USABLE_SIZE.function::<UsableSize>()(at) }
}

#[inline(always)]
pub(super) unsafe fn free(at: *mut c_void) {
    // SAFETY: as for `malloc`.
    unsafe { FREE.function::<Free>()(at) }
}

unsafe extern "C" fn own_posix_memalign(at: *mut *mut c_void, align: usize, size: usize) -> c_int {
    // SAFETY: as the caller vouches.
    let piece = unsafe { __libc_memalign(align, size) };
    if piece.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller passes a place for a pointer.
    unsafe { at.write(piece) };
    0
}

/// The C library has no other name for it.
unsafe extern "C" fn own_usable_size(_: *mut c_void) -> usize {
    0
}
