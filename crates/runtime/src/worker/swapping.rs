//! Memory of a component's functions that is swapped, without their doing (Scad 4.2.2): what they allocate in large pieces is in
//! one [`Swapped`] array of the process, of which as much is resident as the lease has room for. The rest is in memory of the
//! run, which the client leases as it is needed.
//!
//! A program that swaps replaces the C library's `malloc` and its like by those of [`interpose_malloc`](crate::interpose_malloc),
//! so that functions, the interpreter and its modules all allocate so. Small pieces, and all while nothing is swapped, are
//! the C library's as before: that costs a branch.
//!
//! Invariants:
//! - Who brings and takes pages never gets memory that is swapped, nor who keeps these books or the pager's: no lock of theirs is
//!   held while swapped memory is touched.
//! - What is free is forgotten before it is: it is zero, and takes neither memory nor swap space.
//! - A child process does not have the array. There nothing is swapped, and what was cannot be touched.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock};

use libc::{c_int, c_void};
use sublet_fabric::faults::Faults;
use sublet_fabric::sync::{AtomicU32, AtomicU64, Ordering};
use sublet_proto::v1::WorkerSetup;
use sublet_proto::{Code, Error};

use crate::lease::link::lock;
use crate::swap::{REGION_BYTES, SwapPlan, Swapped, as_paging, is_paging};
use extents::Extents;
use space::RunsSpace;

mod extents;
pub mod functions;
mod next;
mod space;

/// The least piece that is swapped, in bytes. Each has whole regions of 2 MiB.
const MIN_PIECE_BYTES: usize = 1 << 20;

/// Of this process: there is one `malloc`.
static HEAP: Heap = Heap {
    base: AtomicU64::new(0),
    len_bytes: AtomicU64::new(0),
    is_on: AtomicU32::new(0),
    is_forked: AtomicU32::new(0),
    array: OnceLock::new(),
};

/// See the [module](self).
struct Heap {
    /// Where the array is; written once, before it is on.
    base: AtomicU64,
    len_bytes: AtomicU64,
    /// Whether large pieces are of it: from the run's beginning on. Written by the thread that takes the client's messages.
    is_on: AtomicU32,
    /// Whether this is a child process, written by that as it begins.
    is_forked: AtomicU32,
    array: OnceLock<Array>,
}

struct Array {
    swapped: Swapped,
    extents: Mutex<Extents>,
}

/// Makes the array, if something is to be swapped. To be called before the process's memory is limited, of which the array
/// is no part.
///
/// # Errors
/// `protocol` without the device, what [`Swapped::new`] says, and `invalid_argument` if this program does not swap.
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
    let swapped = Swapped::by(Faults::of_device(device.as_fd())?, plan, Box::new(RunsSpace))?;
    HEAP.begin(swapped)
}

/// From now on large pieces are swapped, to memory of the run.
pub(super) fn turn_on() {
    if HEAP.array.get().is_some() {
        HEAP.is_on.store(1, Ordering::Release);
    }
}

impl Heap {
    fn begin(&self, swapped: Swapped) -> Result<(), Error> {
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
        // What it guards is in the array's own lock.
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

    /// None in a child process: its copies are of what is the parent's, the lock, too.
    fn array(&self) -> Option<&Array> {
        self.array.get().filter(|_| self.is_forked.load(Ordering::Relaxed) == 0)
    }

    /// A piece, all zero; none if there is no room.
    #[cold]
    fn take(&self, size: usize, align: usize) -> Option<NonNull<c_void>> {
        let (array, regions) = (self.array()?, regions_of(size)?);
        let first = as_paging(|| lock(&array.extents).take(regions, align as u64))?;
        // SAFETY: the extents are of the array's regions.
        Some(unsafe { array.swapped.as_ptr().add((first * REGION_BYTES) as usize) }.cast())
    }

    /// How many bytes of a piece may be used: none in a child process.
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

    /// Makes a piece so long, where it is. Says whether it could.
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
    /// What was taken and is nobody's is forgotten, and then free.
    fn forget(&self, regions: Range<u64>) {
        self.swapped.forget(regions.start as usize..regions.end as usize);
        lock(&self.extents).attach(regions);
    }
}

fn regions_of(size: usize) -> Option<u64> {
    let bytes = (size as u64).checked_next_multiple_of(REGION_BYTES)?;
    Some((bytes / REGION_BYTES).max(1))
}

/// In a child process: there is nobody who would bring pages.
extern "C" fn leave_to_parent() {
    HEAP.is_on.store(0, Ordering::Relaxed);
    HEAP.is_forked.store(1, Ordering::Relaxed);
}

/// As the C library does with what it did not give.
#[cold]
fn refuse(why: &str) -> ! {
    eprintln!("sublet: swapped memory is freed or resized: {why}");
    std::process::abort()
}

/// Says by the C library's way that there is no memory.
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
