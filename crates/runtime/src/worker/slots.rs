//! A worker's right to its core: exclusive for as long as the lease lasts, or shared and taken call by call.
//!
//! A worker on a shared core executes only while it has the core's slot (rFaaS III-D). It takes the slot when a request
//! has come, keeps it while it polls (hot), and gives it back when it goes to sleep. A worker that does not poll
//! (always warm) gives it back before it publishes a result, so that a client that has the result finds the core free.
//! A request that finds the slot taken is rejected at once, and the worker sleeps again. There is no queue for a core:
//! a worker whose requests leave no gap has nearly all of it, and the others' clients try other workers.
//!
//! The worker's loop is compiled once for each kind, so an exclusive core adds no cost.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;

use sublet_fabric::region::Region;
use sublet_fabric::slot::{CoreSlot, Holder, SLOT_REGION_BYTES};
use sublet_proto::v1::WorkerSetup;
use sublet_proto::{Code, Error};

/// The right to execute on a core.
pub(crate) trait CoreRight {
    /// Takes the core unless the worker has it already. Returns whether the worker has it now.
    fn take(&self) -> bool;
    /// Gives the core back if the worker has it.
    fn give_back(&self);
}

/// A core that only this lease has.
pub(crate) struct OwnCore;

impl CoreRight for OwnCore {
    #[inline(always)]
    fn take(&self) -> bool {
        true
    }

    #[inline(always)]
    fn give_back(&self) {}
}

/// A core that workers of several leases share.
pub(crate) struct SharedCoreSlot<'lease> {
    slot: &'lease CoreSlot,
    holder: Holder,
    taken: Cell<bool>,
}

impl CoreRight for SharedCoreSlot<'_> {
    #[inline(always)]
    fn take(&self) -> bool {
        if !self.taken.get() {
            self.taken.set(self.slot.take(self.holder));
        }
        self.taken.get()
    }

    #[inline(always)]
    fn give_back(&self) {
        if self.taken.replace(false) {
            self.slot.release(self.holder);
        }
    }
}

/// The slots of the shared cores that a process's workers are on.
pub(super) struct SharedCoreSlots {
    regions: Vec<Region>,
    /// The index of each worker's region in `regions`.
    of_workers: Vec<u32>,
    process: NonZeroU32,
}

impl SharedCoreSlots {
    /// Attaches the slots of the set-up, with the descriptors that came for them. `None` if the cores are exclusive to
    /// the lease.
    pub(super) fn attach(setup: &WorkerSetup, files: Vec<OwnedFd>) -> Result<Option<SharedCoreSlots>, Error> {
        let protocol =
            |message: String| Error::new(Code::Protocol, format!("the worker's set-up has {message}"));
        if setup.slots.is_empty() && files.is_empty() {
            return Ok(None);
        }
        let (slots, workers) = (setup.slots.len(), setup.cores.len());
        if slots != workers {
            return Err(protocol(format!("{slots} core slots for {workers} workers")));
        }
        if let Some(slot) = setup.slots.iter().find(|&&slot| slot as usize >= files.len()) {
            return Err(protocol(format!("the core slot {slot} and {} regions for them", files.len())));
        }
        let process = NonZeroU32::new(setup.holder).ok_or_else(|| protocol("the holder 0".to_owned()))?;
        let attach = |file| Region::attach(file, SLOT_REGION_BYTES);
        let regions = files.into_iter().map(attach).collect::<Result<_, _>>()?;
        Ok(Some(SharedCoreSlots { regions, of_workers: setup.slots.clone(), process }))
    }

    /// The core of one worker.
    pub(super) fn core(&self, worker: u32) -> Result<SharedCoreSlot<'_>, Error> {
        let region = self.of_workers.get(worker as usize).and_then(|&slot| self.regions.get(slot as usize));
        let slot = region.and_then(|region| region.view(0));
        let slot = slot.ok_or_else(|| {
            Error::new(Code::Protocol, format!("there is no core slot for worker {worker}"))
        })?;
        Ok(SharedCoreSlot { slot, holder: Holder { process: self.process, worker }, taken: Cell::new(false) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attach(slots: &[u32], files: usize, holder: u32) -> Result<Option<SharedCoreSlots>, Error> {
        let region = || Region::create("core", SLOT_REGION_BYTES).unwrap();
        let files = (0..files).map(|_| region().fd().try_clone_to_owned().unwrap()).collect();
        let setup =
            WorkerSetup { cores: vec![0; 2], slots: slots.to_vec(), holder, ..WorkerSetup::default() };
        SharedCoreSlots::attach(&setup, files)
    }

    #[test]
    fn two_workers_on_one_core_exclude_each_other() {
        let slots = attach(&[0, 0], 1, 5).unwrap().unwrap();
        let (first, second) = (slots.core(0).unwrap(), slots.core(1).unwrap());
        assert!(first.take() && first.take() && !second.take());
        second.give_back();
        assert!(!second.take());
        first.give_back();
        assert!(second.take());
        assert!(slots.core(2).is_err());
    }

    #[test]
    fn a_set_up_whose_slots_make_no_sense_is_refused() {
        assert!(attach(&[], 0, 0).unwrap().is_none());
        for (slots, files, holder) in
            [(&[0, 1][..], 1, 5), (&[0], 1, 5), (&[], 1, 5), (&[0, 0], 0, 5), (&[0, 1], 2, 0)]
        {
            let error = attach(slots, files, holder).err().unwrap();
            assert_eq!(error.code, Code::Protocol, "{slots:?} of {files}: {error}");
        }
    }
}
