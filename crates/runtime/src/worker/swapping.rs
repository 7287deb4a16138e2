//! Swaps memory of a component's functions transparently (Scad 4.2.2). Large allocations come from one [`SwappedMemory`]
//! array of the process, of which as many bytes are resident as fit in the lease's memory. The rest is in memory of the
//! run, which the client leases as it is needed.
//!
//! A program that swaps replaces the C library's `malloc` and related functions by those of
//! [`interpose_malloc`](crate::interpose_malloc), so that functions, the interpreter and its modules all use them; and those
//! of `mmap`, from which allocators of libraries get their memory ([`mappings`]).
//! Small allocations, and all allocations while nothing is swapped, still go to the C library's, at the cost of a
//! branch.
//!
//! Invariants:
//! - Threads that page never get swapped memory, nor do the data structures here and in the pager: none of their locks
//!   is held while swapped memory is touched.
//! - Memory is forgotten before it is free: it is zero, and takes neither memory nor swap space.
//! - A child process does not have the array. It swaps nothing, and cannot touch memory that was swapped.

use std::os::fd::{AsFd, OwnedFd};

use sublet_fabric::faults::PageFaults;
use sublet_proto::v1::WorkerSetup;
use sublet_proto::{Code, Error};

use crate::swap::{REGION_BYTES, SwapPlan, SwappedMemory};
use heap::HEAP;
use space::RunsSpace;

mod extents;
pub mod functions;
mod heap;
mod mapped;
pub mod mappings;
mod next;
mod space;

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
    let workers = setup.cores.len() as u64 / u64::from(options.cores_each());
    let swap_bytes = options.swap_bytes.saturating_mul(workers) / REGION_BYTES * REGION_BYTES;
    let plan = SwapPlan::new(swap_bytes, setup.local_bytes);
    plan.check()?;
    let swapped = SwappedMemory::by(PageFaults::of_device(device.as_fd())?, plan, Box::new(RunsSpace))?;
    HEAP.begin(swapped)?;
    HEAP.turn_on();
    let is_ours = functions::reach_heap();
    HEAP.turn_off();
    if is_ours {
        return Ok(());
    }
    let message = "this worker's memory cannot be swapped: that of packages of native code and of Python can, but for images with musl";
    Err(Error::new(Code::InvalidArgument, message))
}

/// Whether this process may swap.
pub(super) fn is_available() -> bool {
    HEAP.has_array()
}

/// Begins to swap large allocations to memory of the run, if this process swaps.
pub(super) fn turn_on() {
    HEAP.turn_on();
}
