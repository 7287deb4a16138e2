//! Swapping: an array of ordinary memory of which only so much is on this machine as the program may use (Scad 4.2.2).
//!
//! A [`Swapped`] is `len_bytes` of memory that any thread, and any system call, reads and writes in place. At most
//! `local_bytes` of it are resident. The rest lies in a [`Backing`], as a rule a memory component
//! ([`Memory`](crate::Memory)), which is leased as it is needed. Who touches what is not here sleeps until the pager, a
//! thread, has put it there (`userfaultfd`).
//!
//! What is touched in order, forward or backward, comes and goes by regions of 2 MiB, each a huge page that is moved
//! and not copied; the next ones are read ahead by other threads. All else comes by blocks of 64 KiB or by pages of 4
//! KiB, whichever the program has lately been seen to use. Room is made ahead of need and by other threads, so that a
//! fault waits for a write to the swap space only if that is slower than the program for a long time.
//!
//! Which unit goes: the one that came first, unless it had been sent away and came back soon; that one stays for
//! another round, up to three. A region that went stays readable in its slot until the slot is needed.
//!
//! Invariants:
//! - Resident pages and filled slots are together at most `local_bytes`.
//! - A unit has one keeper at a time: while it is on its way it is marked, and who faults on it meanwhile is woken when
//!   it is settled. All decisions are made under one lock, without a system call; what they decide is done outside of
//!   it.
//! - A page that counts as unchanged cannot be written without a fault, so no write is lost. Pages are put in protected
//!   in one step. A region cannot be: it counts as written, unless the plan says that only one thread touches the
//!   array.
//! - What was never written is zero, and takes no swap space.
//! - What is lost is never read as zeros. When the swap space fails, the reason is written to standard error, and who
//!   touches what was there is sent SIGBUS (a system call: `EFAULT`).
//!
//! A child process does not have the array (`MADV_DONTFORK`): to touch it there is a segmentation fault.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::JoinHandle;

use sublet_fabric::faults::Faults;
use sublet_fabric::stretch::{PageSize, Stretch};
use sublet_proto::{Code, Error};

use pager::{Pager, Parts};

pub use backing::Backing;
pub(crate) use pager::{as_paging, is_paging};
pub use plan::{SwapPlan, Touching};
pub(crate) use units::REGION_BYTES;

mod backing;
mod book;
mod coming;
mod follow;
mod forgetting;
mod helper;
mod judge;
mod leaving;
mod pager;
mod plan;
mod slots;
mod streams;
mod units;
mod victims;

/// Threads that read ahead and make room.
const HELPERS: usize = 2;

/// Memory of which a part is elsewhere; see the [module](self). Made by [`Invoker::swapped`](crate::Invoker::swapped).
#[derive(Debug)]
pub struct Swapped {
    len_bytes: u64,
    pager: Arc<Pager>,
    threads: Vec<JoinHandle<()>>,
}

/// What went to and fro since the array was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapStatistics {
    /// How often a thread waited for a page, or to write one.
    pub faults: u64,
    /// Regions that were there already when they were touched: read ahead, or not gone yet.
    pub ahead: u64,
    /// Bytes that were put in, those that were zero included.
    pub in_bytes: u64,
    /// Bytes that were taken out.
    pub out_bytes: u64,
    /// Of these, those that were written to the swap space.
    pub written_bytes: u64,
    /// What is here now.
    pub resident_bytes: u64,
}

impl Swapped {
    /// With its own swap space.
    ///
    /// # Errors
    /// `invalid_argument` for sizes that make no sense; `limit_too_low` if this user may not see to page faults, with
    /// what would allow it; `system` if the kernel cannot.
    pub fn new(plan: SwapPlan, backing: Box<dyn Backing>) -> Result<Swapped, Error> {
        plan.check()?;
        Swapped::by(Faults::open()?, plan, backing)
    }

    /// The same by a plan that is checked; this sees to its faults.
    pub(crate) fn by(faults: Faults, plan: SwapPlan, backing: Box<dyn Backing>) -> Result<Swapped, Error> {
        // Not that the kernel would make pages of it: but where it could make a huge one, a fault leaves room for a huge one.
        let array = Stretch::reserve(plan.whole_bytes(), PageSize::Huge)?;
        let slots = Stretch::reserve(plan.slots_bytes(), PageSize::Huge)?;
        faults.watch(&array)?;
        faults.accept(&slots)?;
        let aside = Stretch::reserve(plan.whole_bytes(), PageSize::Small)?;
        faults.accept(&aside)?;
        let bell = Stretch::reserve(units::PAGE_BYTES, PageSize::Small)?;
        faults.watch(&bell)?;
        let pager = Arc::new(Pager::new(&plan, Parts { faults, array, slots, aside, bell, backing }));
        let mut swapped = Swapped { len_bytes: plan.len_bytes, pager, threads: Vec::new() };
        // What was started is ended when this is dropped.
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

    /// How long it is.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Its first byte. All of its bytes may be read and written as long as this lives, as of any memory that threads
    /// share.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.pager.base()
    }

    /// All of it.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the bytes are there when they are touched, from all zero on; who writes them has `&mut self`, or
        // vouches by an unsafe block of its own.
        unsafe { std::slice::from_raw_parts(self.as_ptr().as_ptr(), self.len_bytes as usize) }
    }

    /// All of it, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has a slice of it.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().as_ptr(), self.len_bytes as usize) }
    }

    /// What is in these regions of 2 MiB is of no use any more: it takes no memory and is not written to the swap space, whose
    /// place for it is used again. They are zero afterwards.
    pub(crate) fn forget(&self, regions: Range<usize>) {
        self.pager.forget(regions);
    }

    /// Whether all of it is still there.
    ///
    /// # Errors
    /// Why the swap space failed. What is resident is still good then, all else is lost: to touch it is SIGBUS.
    pub fn check(&self) -> Result<(), Error> {
        self.pager.check()
    }

    /// What went to and fro.
    pub fn statistics(&self) -> SwapStatistics {
        self.pager.statistics()
    }
}

impl Drop for Swapped {
    fn drop(&mut self) {
        self.pager.close(self.threads.first().is_some_and(|run| !run.is_finished()));
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
