//! Swapping: an array of ordinary memory of which only a bounded part is on this machine (Scad 4.2.2).
//!
//! A [`SwappedMemory`] is `len_bytes` of memory that any thread, and any system call, reads and writes in place. At most
//! `local_bytes` of it are resident. The rest lies in a [`Backing`], usually a memory component
//! ([`Memory`](crate::Memory)), which is leased as it is needed. A thread that touches an absent page sleeps until the
//! pager, another thread, has put the page in (`userfaultfd`).
//!
//! Memory that is accessed sequentially, forward or backward, is paged by regions of 2 MiB. Each is a huge page that is
//! moved and not copied; helper threads read the next regions ahead. All other memory is paged by blocks of 64 KiB or
//! by pages of 4 KiB, depending on the program's recent accesses. Helper threads also free memory ahead of need, so
//! that a fault waits for a write to the swap space only if that is slower than the program for a long time.
//!
//! The unit that was paged in first is evicted, unless it had been evicted before and soon came back. Such a unit stays
//! for another round, up to three. An evicted region stays readable in its slot until the slot is needed.
//!
//! Invariants:
//! - Resident pages and filled slots are together at most `local_bytes`.
//! - A unit has one keeper at a time: while it is moved it is marked, and a thread that faults on it meanwhile is woken
//!   when it is settled. All decisions are made under one lock, without a system call, and executed outside of it.
//! - A page that counts as unchanged cannot be written without a fault, so no write is lost. Pages are put in
//!   write-protected in one step. This is not possible for a region: it counts as written, unless the plan says that
//!   only one thread accesses the array at a time.
//! - Bytes that were never written are zero, and take no swap space.
//! - Lost bytes are never read as zeros. When the swap space fails, the reason is written to standard error, and a
//!   thread that touches lost bytes is sent SIGBUS (a system call: `EFAULT`).
//!
//! A child process does not have the array (`MADV_DONTFORK`): to touch it there is a segmentation fault.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::JoinHandle;

use sublet_fabric::faults::PageFaults;
use sublet_fabric::stretch::{PageSize, Stretch};
use sublet_proto::{Code, Error, to_usize};

use pager::{Pager, PagerParts};

pub use backing::Backing;
pub(crate) use pager::{as_paging, is_paging};
pub use plan::{SwapPlan, Touching};
pub use statistics::SwapStatistics;
pub(crate) use units::REGION_BYTES;

mod backing;
mod book;
mod discard;
mod eviction;
mod fault_handling;
mod follow;
mod helper;
mod page_in;
mod page_out;
mod pager;
mod plan;
mod slots;
mod statistics;
mod streams;
mod units;

/// Threads that read ahead and page out.
const HELPERS: usize = 2;

/// Memory of which a part is elsewhere; see the [module](self). Made by [`Invoker::swapped`](crate::Invoker::swapped).
#[derive(Debug)]
pub struct SwappedMemory {
    len_bytes: u64,
    pager: Arc<Pager>,
    threads: Vec<JoinHandle<()>>,
}

impl SwappedMemory {
    /// Creates an array with the given swap space.
    ///
    /// # Errors
    /// `invalid_argument` for sizes that are not possible; `limit_too_low` if this user may not handle page faults,
    /// with the setting that would allow it; `system` if the kernel cannot.
    pub fn new(plan: SwapPlan, backing: Box<dyn Backing>) -> Result<SwappedMemory, Error> {
        plan.check()?;
        SwappedMemory::by(PageFaults::open()?, plan, backing)
    }

    /// Creates an array by a plan that is checked, with this handler of page faults.
    pub(crate) fn by(
        faults: PageFaults,
        plan: SwapPlan,
        backing: Box<dyn Backing>,
    ) -> Result<SwappedMemory, Error> {
        // The kernel makes no huge pages here by itself, but where it could make one, a fault leaves space for one.
        let array = Stretch::reserve(plan.whole_bytes(), PageSize::Huge)?;
        let slots = Stretch::reserve(plan.slots_bytes(), PageSize::Huge)?;
        faults.watch(&array)?;
        faults.accept(&slots)?;
        let aside = Stretch::reserve(plan.whole_bytes(), PageSize::Small)?;
        faults.accept(&aside)?;
        let bell = Stretch::reserve(units::PAGE_BYTES, PageSize::Small)?;
        faults.watch(&bell)?;
        let pager = Arc::new(Pager::new(&plan, PagerParts { faults, array, slots, aside, bell, backing }));
        let mut swapped = SwappedMemory { len_bytes: plan.len_bytes, pager, threads: Vec::new() };
        // Dropping `swapped` ends the threads that were started.
        swapped.start("sublet swap", Pager::run)?;
        for _ in 0..HELPERS {
            swapped.start("sublet swap aid", Pager::help)?;
        }
        Ok(swapped)
    }

    fn start(&mut self, name: &str, run: fn(&Pager)) -> Result<(), Error> {
        let pager = self.pager.clone();
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&pager));
        let failed = |error| Error::new(Code::System, format!("starting a thread that swaps: {error}"));
        self.threads.push(started.map_err(failed)?);
        Ok(())
    }

    /// Length of the array, in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Pointer to the first byte. All bytes may be read and written as long as the array lives, by the rules for memory
    /// that threads share.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.pager.base()
    }

    /// All of it.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the bytes are there when they are touched, zero at first. A writer has `&mut self`, or vouches by an
        // unsafe block of its own.
        unsafe { std::slice::from_raw_parts(self.as_ptr().as_ptr(), to_usize(self.len_bytes)) }
    }

    /// All of it, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and no other slice of the array exists.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().as_ptr(), to_usize(self.len_bytes)) }
    }

    /// Discards the content of these regions of 2 MiB: they take no memory and are not written to the swap space, and
    /// their part of it is used again. They are zero afterwards.
    pub(crate) fn forget(&self, regions: Range<usize>) {
        self.pager.forget(regions);
    }

    /// Checks that the swap space has not failed.
    ///
    /// # Errors
    /// The reason why the swap space failed. Resident bytes are still valid then, all others are lost: touching them
    /// raises SIGBUS.
    pub fn check(&self) -> Result<(), Error> {
        self.pager.check()
    }

    /// The array's counters.
    pub fn statistics(&self) -> SwapStatistics {
        self.pager.statistics()
    }
}

impl Drop for SwappedMemory {
    fn drop(&mut self) {
        self.pager.close(self.threads.first().is_some_and(|run| !run.is_finished()));
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported that.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
