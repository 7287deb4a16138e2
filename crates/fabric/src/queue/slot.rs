//! The core slot: records which of the workers that share a core executes on it (rFaaS III-D).
//!
//! The slot is one word: 0, or the [`Holder`] that took the slot. A worker takes the slot of its core before it
//! executes, and is refused at once if another worker has it; no worker waits for a slot. Each shared core has a slot
//! in a region of its own, which only the workers on that core and their agent have mapped: a worker that overwrites it
//! harms only the workers that share its core.
//!
//! | change | by | ordering |
//! |---|---|---|
//! | 0 to a holder | that worker | Acquire; pairs with the Release of the process that freed the slot |
//! | the holder to 0 | that worker, or the agent once its process is dead | Release |
//!
//! Invariants:
//! - No two holders have the slot at a time.
//! - A holder is removed only by its own number: a late or second release frees no other holder's slot.
//! - Every process has a number that no earlier process had, so that no word of a dead process is taken for that of a
//!   living one.

use std::num::NonZeroU32;

use crate::address::PAGE_BYTES;
use crate::sync::{AtomicU64, Ordering};

/// Size of the region in which a core's slot lies, at its beginning.
pub const SLOT_REGION_BYTES: u64 = PAGE_BYTES;

/// A worker that may hold a slot: the number of its process, and its number within the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The process's number, given by its agent.
    pub process: NonZeroU32,
    /// The worker's number within the process.
    pub worker: u32,
}

impl Holder {
    fn to_bits(self) -> u64 {
        u64::from(self.process.get()) << 32 | u64::from(self.worker)
    }
}

/// See the [module](self).
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct CoreSlot {
    holder: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<CoreSlot>() == 64);

impl CoreSlot {
    /// Takes the slot if it is free or already belongs to the holder.
    #[inline]
    pub fn take(&self, holder: Holder) -> bool {
        let taken =
            self.holder.compare_exchange(FREE, holder.to_bits(), Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok() || taken == Err(holder.to_bits())
    }

    /// Gives the slot back if the holder has it.
    #[inline]
    pub fn release(&self, holder: Holder) {
        self.free(holder.to_bits());
    }

    /// Frees the slot unless its holder is alive. Returns the number of the process that held it; a number of no
    /// process means that the word was overwritten. The agent calls this once a process on this core is dead.
    pub fn clear_dead(&self, lives: impl FnOnce(Holder) -> bool) -> Option<u32> {
        let bits = self.holder.load(Ordering::Relaxed);
        let process = (bits >> 32) as u32;
        let holder =
            NonZeroU32::new(process).map(|process| Holder { process, worker: (bits & 0xffff_ffff) as u32 });
        if bits == FREE || holder.is_some_and(lives) {
            return None;
        }
        self.free(bits).then_some(process)
    }

    /// The number of the process that holds the slot, for display.
    pub fn process(&self) -> Option<NonZeroU32> {
        NonZeroU32::new((self.holder.load(Ordering::Relaxed) >> 32) as u32)
    }

    fn free(&self, bits: u64) -> bool {
        self.holder.compare_exchange(bits, FREE, Ordering::Release, Ordering::Relaxed).is_ok()
    }
}

const FREE: u64 = 0;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn holder(process: u32, worker: u32) -> Holder {
        Holder { process: NonZeroU32::new(process).unwrap(), worker }
    }

    #[test]
    fn a_slot_has_one_holder_who_alone_gives_it_back() {
        let slot = CoreSlot::default();
        assert!(slot.take(holder(1, 0)));
        assert!(slot.take(holder(1, 0)), "it has it already");
        assert!(!slot.take(holder(2, 0)) && !slot.take(holder(1, 1)));
        slot.release(holder(2, 0));
        slot.release(holder(1, 1));
        assert_eq!(slot.process(), NonZeroU32::new(1));
        slot.release(holder(1, 0));
        assert!(slot.process().is_none() && slot.take(holder(2, 0)));
    }

    #[test]
    fn clears_dead_and_invalid_holders_and_keeps_living_ones() {
        let slot = CoreSlot::default();
        assert_eq!(slot.clear_dead(|_| false), None, "free");
        assert!(slot.take(holder(7, 3)));
        assert_eq!(slot.clear_dead(|holder| holder.process.get() == 7), None);
        assert_eq!(slot.clear_dead(|holder| holder.process.get() != 7), Some(7));
        slot.holder.store(9, Ordering::Relaxed);
        assert_eq!(slot.clear_dead(|_| true), Some(0), "no process has the number 0");
        assert!(slot.take(holder(8, 0)));
    }
}

#[cfg(test)]
#[cfg(loom)]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// A slot, and a core: two executing on it at a time, or not seeing what was done before, is a race for loom.
    #[derive(Default)]
    struct Core {
        slot: CoreSlot,
        executed: UnsafeCell<u32>,
    }

    // SAFETY: loom reports accesses to the cell that are not ordered.
    unsafe impl Sync for Core {}

    impl Core {
        fn execute(&self) {
            // SAFETY: as above; that there is no other access now is what the model checks.
            self.executed.with_mut(|executed| unsafe { *executed += 1 });
        }
    }

    fn holder(process: u32) -> Holder {
        Holder { process: NonZeroU32::new(process).expect("not 0"), worker: 0 }
    }

    #[test]
    fn never_two_execute_on_a_core() {
        loom::model(|| {
            let core = Arc::new(Core::default());
            let workers: Vec<_> = (1..=2)
                .map(|process| {
                    let core = core.clone();
                    thread::spawn(move || {
                        for _ in 0..2 {
                            if core.slot.take(holder(process)) {
                                core.execute();
                                core.slot.release(holder(process));
                            }
                        }
                    })
                })
                .collect();
            for worker in workers {
                worker.join().unwrap();
            }
            assert!(core.slot.take(holder(3)), "a slot was not given back");
        });
    }

    /// A process dies with the slot. Its agent clears it while a neighbour takes and gives back as it likes, and
    /// while the dead process's successor does the same.
    #[test]
    fn slot_of_a_dead_process_is_freed_exactly_once() {
        loom::model(|| {
            let core = Arc::new(Core::default());
            assert!(core.slot.take(holder(1)));
            core.execute();
            let neighbours: Vec<_> = (2..=3)
                .map(|process| {
                    let core = core.clone();
                    thread::spawn(move || {
                        if core.slot.take(holder(process)) {
                            core.execute();
                            core.slot.clear_dead(|holder| holder.process.get() != 1);
                            core.execute();
                            core.slot.release(holder(process));
                        }
                    })
                })
                .collect();
            core.slot.clear_dead(|holder| holder.process.get() != 1);
            core.slot.clear_dead(|holder| holder.process.get() != 1);
            for neighbour in neighbours {
                neighbour.join().unwrap();
            }
            assert!(core.slot.take(holder(4)), "a dead holder kept the slot");
        });
    }
}
