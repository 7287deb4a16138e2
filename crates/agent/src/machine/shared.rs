//! The node's shared cores: which workers are placed on which, and the core slots by which they take turns.
//!
//! A shared core takes workers of several leases (rFaaS III-D), and the workers are spread evenly over the cores. The
//! slot of a core is in a region of its own, which is passed only to the worker processes that have a worker on the
//! core. Each process is known in the slots by a number that no process before it had; when it is dead, its
//! [`Occupancy`] frees the slots that it still held.
//!
//! Invariants:
//! - Never more workers than places, and never more on one core than its share of the places, rounded up.
//! - The pool is locked after the node's other resources, never before them.
//! - A slot is freed by the agent only if its holder is no living process on that core.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use sublet_fabric::region::Region;
use sublet_fabric::slot::{CoreSlot, Holder, SLOT_REGION_BYTES};
use sublet_fabric::sync::lock;
use sublet_proto::Error;
use tracing::debug;

/// Use of the node's shared cores.
#[derive(Debug, Default)]
pub(crate) struct SharedPool {
    cores: Vec<SharedCore>,
    places: usize,
    taken: usize,
    /// The number of the latest process.
    latest: u32,
    /// On which of the cores each living worker process is.
    living: BTreeMap<u32, Vec<SharedCoreIndex>>,
}

#[derive(Debug)]
struct SharedCore {
    number: u32,
    region: Arc<Region>,
    workers: usize,
}

/// A worker's place: which of the shared cores, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SharedCoreIndex(usize);

impl SharedPool {
    /// Creates a pool of these cores, which take `places` workers in all.
    pub(crate) fn new(cores: &[u32], places: u32) -> Result<SharedPool, Error> {
        let core = |&number| {
            let region = Arc::new(Region::create("sublet-core", SLOT_REGION_BYTES)?);
            Ok(SharedCore { number, region, workers: 0 })
        };
        let cores = cores.iter().map(core).collect::<Result<_, Error>>()?;
        Ok(SharedPool { cores, places: places as usize, ..SharedPool::default() })
    }

    pub(crate) fn places(&self) -> usize {
        self.places
    }

    pub(crate) fn free_places(&self) -> usize {
        self.places - self.taken
    }

    /// Places for the workers of a lease, as far as possible on different cores, and there on those that have the
    /// fewest. No more of them than are free.
    pub(crate) fn take(&mut self, workers: usize) -> Vec<SharedCoreIndex> {
        let share = self.places.div_ceil(self.cores.len().max(1));
        let mut own = vec![0; self.cores.len()];
        let mut places = Vec::with_capacity(workers);
        for _ in 0..workers.min(self.free_places()) {
            let with_room = (0..self.cores.len()).filter(|&at| self.cores[at].workers < share);
            // While places are free, so is one of some core: the shares add up to at least all of them.
            let Some(at) = with_room.min_by_key(|&at| (own[at], self.cores[at].workers)) else { break };
            own[at] += 1;
            self.cores[at].workers += 1;
            self.taken += 1;
            places.push(SharedCoreIndex(at));
        }
        self.assert_consistent();
        places
    }

    /// In debug builds, panics unless workers are counted once on their cores and once in all, within every bound.
    fn assert_consistent(&self) {
        let share = self.places.div_ceil(self.cores.len().max(1));
        debug_assert!(self.taken <= self.places, "{} of {} places are taken", self.taken, self.places);
        debug_assert_eq!(self.cores.iter().map(|core| core.workers).sum::<usize>(), self.taken, "workers");
        debug_assert!(
            self.cores.iter().all(|core| core.workers <= share),
            "beyond {share}: {:?}",
            self.cores
        );
    }

    pub(crate) fn give_back(&mut self, places: &[SharedCoreIndex]) {
        debug_assert!(places.len() <= self.taken, "{places:?} come back, and {} are taken", self.taken);
        self.taken -= places.len();
        places.iter().for_each(|place| self.cores[place.0].workers -= 1);
        self.assert_consistent();
    }

    /// The number of the core of a place.
    pub(crate) fn core(&self, place: SharedCoreIndex) -> u32 {
        self.cores[place.0].number
    }

    /// A number for a new process on these places.
    fn enter(&mut self, places: &[SharedCoreIndex]) -> u32 {
        loop {
            self.latest = self.latest.wrapping_add(1);
            if self.latest != 0 && !self.living.contains_key(&self.latest) {
                break;
            }
        }
        let before = self.living.insert(self.latest, places.to_vec());
        debug_assert!(
            self.latest != 0 && before.is_none(),
            "process {} enters twice: {before:?}",
            self.latest
        );
        self.latest
    }

    /// Frees the slots of a dead process's cores, unless a living worker of the core holds them. The dead process may
    /// have written anything there, also the number of a living process with a worker that it does not have.
    fn leave(&mut self, holder: u32) {
        debug_assert!(self.living.contains_key(&holder), "process {holder} leaves, which never entered");
        let places = self.living.remove(&holder).unwrap_or_default();
        for place in places {
            let core = &self.cores[place.0];
            let lives = |holder: Holder| {
                let places = self.living.get(&holder.process.get());
                places.and_then(|places| places.get(holder.worker as usize)) == Some(&place)
            };
            let slot = core.region.view::<CoreSlot>(0);
            if let Some(holder) = slot.and_then(|slot| slot.clear_dead(lives)) {
                debug!(core = core.number, holder, "the slot of a dead worker is free");
            }
        }
    }
}

/// A lease's places on shared cores.
#[derive(Debug)]
pub(crate) struct SlotHold {
    pub(crate) pool: Arc<Mutex<SharedPool>>,
    pub(crate) places: Vec<SharedCoreIndex>,
}

impl SlotHold {
    /// Assigns a worker process that is about to start a number of its own and the slots of its cores.
    pub(crate) fn occupy(&self) -> Occupancy {
        let mut shared = lock(&self.pool);
        let mut distinct = self.places.clone();
        distinct.sort_unstable();
        distinct.dedup();
        debug_assert!(!distinct.is_empty(), "a process occupies no core");
        #[expect(clippy::cast_possible_truncation, reason = "a node shares `MAX_SHARED_CORES` at most")]
        let which = |place| distinct.partition_point(|&other| other < place) as u32;
        Occupancy {
            pool: self.pool.clone(),
            holder: shared.enter(&self.places),
            slots: self.places.iter().map(|&place| which(place)).collect(),
            regions: distinct.iter().map(|place| shared.cores[place.0].region.clone()).collect(),
        }
    }
}

/// A worker process's part in core slots. Dropped once the process is dead: frees what it still held.
#[derive(Debug)]
pub(crate) struct Occupancy {
    pool: Arc<Mutex<SharedPool>>,
    /// The process's number in the slots.
    pub(crate) holder: u32,
    /// For each worker, which of the regions has its core's slot.
    pub(crate) slots: Vec<u32>,
    /// The slots' regions.
    pub(crate) regions: Vec<Arc<Region>>,
}

impl Drop for Occupancy {
    fn drop(&mut self) {
        lock(&self.pool).leave(self.holder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::capacity::Cores;
    use crate::machine::resources::{FreeResources, ResourcePool, ResourceRequest, ResourceReservation};
    use std::num::NonZeroU32;

    /// A node that shares these cores.
    fn pool(cores: &[u32], places: u32) -> ResourcePool {
        let cores = Cores { exclusive: vec![9], shared: cores.to_vec() };
        ResourcePool::new(FreeResources::new(cores, 1 << 20, places).unwrap())
    }

    fn reserve(pool: &ResourcePool, workers: u32) -> Result<ResourceReservation, Error> {
        pool.reserve(&ResourceRequest { cores: workers, memory_bytes: 0, shared: true })
    }

    fn occupy(reservation: &ResourceReservation) -> Occupancy {
        reservation.slots.as_ref().unwrap().occupy()
    }

    /// The first worker's slot, and how it is known there.
    fn slot(occupancy: &Occupancy) -> (&CoreSlot, Holder) {
        let region = &occupancy.regions[occupancy.slots[0] as usize];
        let process = NonZeroU32::new(occupancy.holder).unwrap();
        (region.view(0).unwrap(), Holder { process, worker: 0 })
    }

    #[test]
    fn spreads_workers_over_cores_and_prefers_the_idlest() {
        let pool = pool(&[5, 3, 1], 6);
        let first = reserve(&pool, 2).unwrap();
        assert_eq!(first.cores, [5, 3]);
        let second = reserve(&pool, 1).unwrap();
        assert_eq!(second.cores, [1]);
        drop(first);
        assert_eq!(reserve(&pool, 2).unwrap().cores, [5, 3]);
        assert_eq!(reserve(&pool, 5).unwrap().cores, [5, 3, 1, 5, 3], "more workers than cores");
    }

    #[test]
    fn each_worker_has_the_slot_of_its_own_core() {
        let pool = pool(&[5, 3], 6);
        let reservation = reserve(&pool, 4).unwrap();
        let (one, another) = (occupy(&reservation), occupy(&reservation));
        assert_eq!(
            (reservation.cores.as_slice(), one.slots.as_slice()),
            (&[5, 3, 5, 3][..], &[0, 1, 0, 1][..])
        );
        assert_eq!(one.regions.len(), 2, "one for each core");
        let neighbour = occupy(&reserve(&pool, 1).unwrap());
        assert!(slot(&one).0.take(slot(&one).1));
        assert!(!slot(&neighbour).0.take(slot(&neighbour).1), "the same slot, mapped by another lease");
        assert_ne!(one.holder, another.holder, "a process that is started again is another");
    }

    #[test]
    fn frees_slots_of_dead_processes_only() {
        let pool = pool(&[5], 3);
        let leases: Vec<_> = (0..2).map(|_| reserve(&pool, 1).unwrap()).collect();
        let (dies, lives) = (occupy(&leases[0]), occupy(&leases[1]));
        assert!(slot(&dies).0.take(slot(&dies).1));
        assert!(!slot(&lives).0.take(slot(&lives).1));
        drop(dies);
        assert!(slot(&lives).0.take(slot(&lives).1));
        let successor = occupy(&leases[0]);
        drop(successor);
        assert_eq!(slot(&lives).0.process(), Some(slot(&lives).1.process), "it still has it");
    }

    #[test]
    fn an_ending_process_clears_an_invalid_holder() {
        let pool = pool(&[5, 3], 4);
        let lease = reserve(&pool, 2).unwrap();
        let elsewhere = reserve(&pool, 1).unwrap();
        let (scribbler, lives) = (occupy(&lease), occupy(&elsewhere));
        let bogus = Holder { process: NonZeroU32::new(u32::MAX).unwrap(), worker: 7 };
        assert!(slot(&lives).0.take(bogus));
        drop(scribbler);
        assert!(slot(&lives).0.take(slot(&lives).1));
    }

    #[test]
    fn frees_a_slot_that_names_a_missing_worker() {
        let pool = pool(&[5], 3);
        let leases: Vec<_> = (0..3).map(|_| reserve(&pool, 1).unwrap()).collect();
        let (scribbler, named, other) = (occupy(&leases[0]), occupy(&leases[1]), occupy(&leases[2]));
        assert!(slot(&other).0.take(Holder { worker: 1, ..slot(&named).1 }));
        drop(scribbler);
        assert!(slot(&other).0.take(slot(&other).1));
    }

    #[test]
    fn bounds_workers_by_places_and_by_each_cores_share() {
        // A fixed linear congruential sequence: each step reserves some places or gives a reservation back.
        let mut random = 54_321_u64;
        for (cores, places) in [(1, 1), (1, 7), (3, 3), (3, 7), (4, 16), (5, 23)] {
            let numbers: Vec<u32> = (0..cores).collect();
            let pool = pool(&numbers, places);
            let mut held: Vec<(ResourceReservation, Occupancy)> = Vec::new();
            for _ in 0..2_000 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let choice = (random >> 33) as usize;
                if choice.is_multiple_of(3) && !held.is_empty() {
                    held.swap_remove(choice % held.len());
                } else if choice.is_multiple_of(5) {
                    let exclusive =
                        pool.reserve(&ResourceRequest { cores: 1, memory_bytes: 0, shared: false });
                    assert_eq!(exclusive.unwrap().cores, [9], "a shared core is never lent to one lease");
                } else if let Ok(reservation) = reserve(&pool, (choice % 5) as u32 + 1) {
                    let occupancy = occupy(&reservation);
                    held.push((reservation, occupancy));
                }
                let on = |core: u32| {
                    let all = held.iter().flat_map(|(reservation, _)| &reservation.cores);
                    all.filter(|&&number| number == core).count() as u32
                };
                let loads: Vec<u32> = numbers.iter().map(|&core| on(core)).collect();
                assert!(loads.iter().sum::<u32>() <= places, "{loads:?}");
                assert!(loads.iter().all(|&load| load <= places.div_ceil(cores)), "{loads:?}");
                let lent: usize = held.iter().map(|(reservation, _)| reservation.cores.len()).sum();
                assert_eq!(loads.iter().sum::<u32>() as usize, lent, "a core that is not shared");
                for (reservation, occupancy) in &held {
                    let mut distinct = reservation.cores.clone();
                    distinct.sort_unstable();
                    distinct.dedup();
                    assert_eq!(distinct.len(), occupancy.regions.len(), "a slot for two cores");
                }
            }
            drop(held);
            assert_eq!(reserve(&pool, places).unwrap().cores.len(), places as usize, "all come back");
        }
    }
}
