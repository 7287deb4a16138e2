//! Swaps memory of a component's functions transparently (Scad 4.2.2). Large allocations come from one [`SwappedMemory`]
//! array of the process, of which as many bytes are resident as fit in the lease's memory. The rest is in memory of the
//! run, which the client leases as it is needed.
//!
//! A program that swaps replaces the C library's `malloc` and related functions by those of
//! [`interpose_malloc`](crate::interpose_malloc), so that functions, the interpreter and its modules all use them.
//! Small allocations, and all allocations while nothing is swapped, still go to the C library's, at the cost of a
//! branch.
//!
//! Invariants:
//! - Threads that page never get swapped memory, nor do the data structures here and in the pager: none of their locks
//!   is held while swapped memory is touched.
//! - Memory is forgotten before it is free: it is zero, and takes neither memory nor swap space.
//! - A child process does not have the array. It swaps nothing, and cannot touch memory that was swapped.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock};

use libc::{c_int, c_void};
use sublet_fabric::faults::PageFaults;
use sublet_fabric::sync::{AtomicU32, AtomicU64, Ordering};
use sublet_proto::v1::WorkerSetup;
use sublet_proto::{Code, Error};

use crate::lease::link::lock;
use crate::swap::{REGION_BYTES, SwapPlan, SwappedMemory, as_paging, is_paging};
use extents::Extents;
use space::RunsSpace;

mod extents;
pub mod functions;
mod next;
mod space;

/// Size of the smallest allocation that is swapped, in bytes. Each takes whole regions of 2 MiB.
const MIN_PIECE_BYTES: usize = 1 << 20;

/// The heap of this process, which has only one `malloc`.
static HEAP: Heap = Heap {
    base: AtomicU64::new(0),
    len_bytes: AtomicU64::new(0),
    is_on: AtomicU32::new(0),
    is_forked: AtomicU32::new(0),
    array: OnceLock::new(),
};

/// See the [module](self).
struct Heap {
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
    extents: Mutex<Extents>,
}

/// Makes the array, if the set-up asks for swapping. To be called before the process's memory is limited, as the array
/// does not count.
///
/// # Errors
/// `protocol` without the device, the errors of [`SwappedMemory::new`], and `invalid_argument` if this program does not swap.
pub(super) fn start(setup: &WorkerSetup, device: Option<OwnedFd>) -> Result<(), Error> {
    if setup.local_bytes == 0 {
        return Ok(());
    }
    let protocol = |message| Error::new(Code::Protocol, message);
    let device = device.ok_or_else(|| protocol("a worker that swaps, and no device for its page faults"))?;
    let options = setup.options.ok_or_else(|| protocol("the worker's set-up has no options"))?;
    let swap_bytes =
        options.swap_bytes.saturating_mul(setup.cores.len() as u64) / REGION_BYTES * REGION_BYTES;
    let plan = SwapPlan::new(swap_bytes, setup.local_bytes);
    plan.check()?;
    let swapped = SwappedMemory::by(PageFaults::of_device(device.as_fd())?, plan, Box::new(RunsSpace))?;
    HEAP.begin(swapped)
}

/// Begins to swap large allocations to memory of the run.
pub(super) fn turn_on() {
    if HEAP.array.get().is_some() {
        HEAP.is_on.store(1, Ordering::Release);
    }
}

impl Heap {
    fn begin(&self, swapped: SwappedMemory) -> Result<(), Error> {
        let (base, len_bytes) = (swapped.as_ptr().as_ptr() as u64, swapped.len_bytes());
        let extents = Mutex::new(Extents::new(base / REGION_BYTES, len_bytes / REGION_BYTES));
        if self.array.set(Array { swapped, extents }).is_err() {
            return Err(Error::new(Code::Internal, "a process swaps twice"));
        }
        self.base.store(base, Ordering::Relaxed);
        self.len_bytes.store(len_bytes, Ordering::Relaxed);
        // SAFETY: the function is there as long as the process, and does nothing that a new child must not do.
        if unsafe { libc::pthread_atfork(None, None, Some(leave_to_parent)) } != 0 {
            return Err(Error::new(Code::System, "pthread_atfork: out of memory"));
        }
        self.is_on.store(1, Ordering::Release);
        let is_ours = functions::reach_heap();
        self.is_on.store(0, Ordering::Release);
        if is_ours {
            return Ok(());
        }
        let message =
            "this worker's memory cannot be swapped: that of packages of native code and of Python can";
        Err(Error::new(Code::InvalidArgument, message))
    }

    #[inline(always)]
    fn is_on(&self) -> bool {
        // The array's own lock guards the data.
        self.is_on.load(Ordering::Relaxed) != 0
    }

    /// Whether an address is in the array.
    #[inline(always)]
    fn has(&self, at: *const c_void) -> bool {
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
    fn take(&self, size: usize, align: usize) -> Option<NonNull<c_void>> {
        let (array, regions) = (self.array()?, regions_of(size)?);
        let first = as_paging(|| lock(&array.extents).take(regions, align as u64))?;
        // SAFETY: the extents are of the array's regions.
        Some(unsafe { array.swapped.as_ptr().add((first * REGION_BYTES) as usize) }.cast())
    }

    /// Number of usable bytes of a piece; 0 in a child process.
    #[cold]
    fn len_of(&self, at: *const c_void) -> usize {
        let Some(array) = self.array() else { return 0 };
        let found = self.region_of(at).and_then(|first| lock(&array.extents).len_of(first));
        let regions = found.unwrap_or_else(|| refuse("no piece of memory begins there"));
        (regions * REGION_BYTES) as usize
    }

    #[cold]
    fn give_back(&self, at: *const c_void) {
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
    fn resize(&self, at: *const c_void, size: usize) -> bool {
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
    /// Forgets regions that were detached, and makes them free.
    fn forget(&self, regions: Range<u64>) {
        self.swapped.forget(regions.start as usize..regions.end as usize);
        lock(&self.extents).attach(regions);
    }
}

fn regions_of(size: usize) -> Option<u64> {
    let bytes = (size as u64).checked_next_multiple_of(REGION_BYTES)?;
    Some((bytes / REGION_BYTES).max(1))
}

/// Switches swapping off in a child process, which has no pager.
extern "C" fn leave_to_parent() {
    HEAP.is_on.store(0, Ordering::Relaxed);
    HEAP.is_forked.store(1, Ordering::Relaxed);
}

/// Ends the process, as the C library does for a pointer that it did not allocate.
#[cold]
fn refuse(why: &str) -> ! {
    eprintln!("sublet: swapped memory is freed or resized: {why}");
    std::process::abort()
}

/// Reports in the C library's way that there is no memory.
#[cold]
fn no_memory() -> *mut c_void {
    set_errno(libc::ENOMEM);
    std::ptr::null_mut()
}

fn errno() -> c_int {
    // SAFETY: it is where this thread's is.
    unsafe { *libc::__errno_location() }
}

fn set_errno(number: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = number };
}
