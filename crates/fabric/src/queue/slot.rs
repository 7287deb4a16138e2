//! The core slot: who executes on a core that several workers share (rFaaS III-D).
//!
//! One word says it: 0, or the [`Holder`] that took the slot. A worker takes the slot of its core before it executes
//! and is refused at once if another has it; nobody waits for a slot. Each shared core has a slot in a region of its
//! own, which only the workers on that core and their agent have mapped: a worker that scribbles over it harms only
//! those who share its core.
//!
//! | change | by | ordering |
//! |---|---|---|
//! | 0 to a holder | that worker | Acquire; pairs with the Release of whoever freed the slot |
//! | the holder to 0 | that worker, or the agent once its process is dead | Release |
//!
//! Invariants:
//! - No two holders have the slot at a time.
//! - Only what holds the slot is ever taken out of it: giving back late, or twice, frees nobody else's.
//! - Every process has another number than all before it, so that nothing of the dead is taken for the living's.

use std::num::NonZeroU32;

use crate::region::PAGE_BYTES;
use crate::sync::{AtomicU64, Ordering};

/// Size of the region in which a core's slot lies, at its beginning.
pub const SLOT_REGION_BYTES: u64 = PAGE_BYTES;

/// A worker that may hold a slot: the number of its process, and which worker of the process it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The process's number, given by its agent.
    pub process: NonZeroU32,
    /// Counted within the process.
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
    /// Takes the slot if it is free, or the holder's already.
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

    /// Frees the slot unless its holder is one of the living. Returns the number of the process that held it: one that
    /// no process has was scribbled. For the agent, once a process on this core is dead.
    pub fn clear_dead(&self, lives: impl FnOnce(Holder) -> bool) -> Option<u32> {
        let bits = self.holder.load(Ordering::Relaxed);
        let process = (bits >> 32) as u32;
        let holder = NonZeroU32::new(process).map(|process| Holder { process, worker: bits as u32 });
        if bits == FREE || holder.is_some_and(lives) {
            return None;
        }
        self.free(bits).then_some(process)
    }

    /// The number of the process that holds the slot: for showing.
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
    fn the_dead_and_what_was_scribbled_are_cleared_and_the_living_are_not() {
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
    fn what_the_dead_held_is_freed_once_and_nobody_elses_is() {
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
