//! Assigns cores and memory to leases, each at most once at a time.
//!
//! Exclusive cores are lent from the highest number downwards, so that the lowest, where clients and the system tend
//! to run, are lent last. Places on shared cores are lent as [`SharedPool`] says; a core is one or the other for as
//! long as the agent runs. A [`ResourceReservation`] gives back what it holds when it is dropped; nothing else does.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use sublet_fabric::sync::lock;
use sublet_proto::{Code, Error};

use crate::machine::capacity::Cores;
use crate::machine::devices::DeviceReservation;
use crate::machine::shared::{SharedPool, SlotHold};

/// Free resources of a node. Cores that are not in it are leased, or are not lent at all.
#[derive(Debug)]
pub(crate) struct FreeResources {
    cores: BTreeSet<u32>,
    all_cores: usize,
    memory_bytes: u64,
    all_memory_bytes: u64,
    shared: Arc<Mutex<SharedPool>>,
}

/// Resources that a lease requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResourceRequest {
    /// How many cores; of shared ones, how many workers on them.
    pub(crate) cores: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) shared: bool,
}

impl FreeResources {
    /// Creates the free resources from these cores and this memory. `shared_places` workers in all fit on the shared
    /// cores.
    pub(crate) fn new(cores: Cores, memory_bytes: u64, shared_places: u32) -> Result<FreeResources, Error> {
        let shared = Arc::new(Mutex::new(SharedPool::new(&cores.shared, shared_places)?));
        let cores: BTreeSet<u32> = cores.exclusive.into_iter().collect();
        Ok(FreeResources {
            all_cores: cores.len(),
            cores,
            memory_bytes,
            all_memory_bytes: memory_bytes,
            shared,
        })
    }

    fn check(&self, wanted: &ResourceRequest) -> Result<(), Error> {
        let ResourceRequest { cores, memory_bytes, shared } = *wanted;
        let (what, all, free) = if shared {
            let pool = lock(&self.shared);
            ("places on shared cores", pool.places(), pool.free_places())
        } else {
            ("cores", self.all_cores, self.cores.len())
        };
        let asked = format!("{cores} {what} and {memory_bytes} bytes asked");
        let count = cores as usize;
        if count > all || memory_bytes > self.all_memory_bytes {
            let message = format!("{asked}, the node lends {all} and {}", self.all_memory_bytes);
            return Err(Error::new(Code::InsufficientResources, message));
        }
        if count > free || memory_bytes > self.memory_bytes {
            let message = format!("{asked}, {free} and {} are free", self.memory_bytes);
            return Err(Error::new(Code::NoCapacity, message));
        }
        Ok(())
    }
}

/// The node's resources, shared by the supervisors of its leases.
#[derive(Clone, Debug)]
pub(crate) struct ResourcePool(Arc<Mutex<FreeResources>>);

impl ResourcePool {
    pub(crate) fn new(resources: FreeResources) -> ResourcePool {
        ResourcePool(Arc::new(Mutex::new(resources)))
    }

    /// Exclusive cores that no lease has, those first that are lent last.
    pub(crate) fn idle_cores(&self) -> Vec<u32> {
        lock(&self.0).cores.iter().copied().collect()
    }

    /// Reserves all requested resources, or none.
    pub(crate) fn reserve(&self, wanted: &ResourceRequest) -> Result<ResourceReservation, Error> {
        let mut resources = lock(&self.0);
        resources.check(wanted)?;
        resources.memory_bytes -= wanted.memory_bytes;
        let count = wanted.cores as usize;
        let (cores, slots) = if wanted.shared {
            let mut pool = lock(&resources.shared);
            let places = pool.take(count);
            let cores: Vec<_> = places.iter().map(|&place| pool.core(place)).collect();
            (cores, Some(SlotHold { pool: resources.shared.clone(), places }))
        } else {
            ((0..count).filter_map(|_| resources.cores.pop_last()).collect(), None)
        };
        debug_assert_eq!(cores.len(), count, "cores reserved of {resources:?}");
        let (memory_bytes, devices) = (wanted.memory_bytes, DeviceReservation::default());
        Ok(ResourceReservation { pool: self.clone(), cores, slots, memory_bytes, devices })
    }
}

/// Cores, memory and devices that belong to one lease until this is dropped.
#[derive(Debug)]
pub(crate) struct ResourceReservation {
    pool: ResourcePool,
    /// The number of each worker's core; shared ones may be there several times.
    pub(crate) cores: Vec<u32>,
    /// If the cores are shared: how its workers take turns on them with others.
    pub(crate) slots: Option<SlotHold>,
    memory_bytes: u64,
    /// Devices of the lease, which are reserved after the cores and the memory.
    pub(crate) devices: DeviceReservation,
}

impl ResourceReservation {
    /// Never gives the resources back: something that cannot be ended still uses them.
    pub(crate) fn forfeit(mut self) {
        self.cores.clear();
        self.slots = None;
        self.memory_bytes = 0;
        self.devices.forfeit();
    }
}

impl Drop for ResourceReservation {
    fn drop(&mut self) {
        let mut resources = lock(&self.pool.0);
        resources.memory_bytes += self.memory_bytes;
        match &self.slots {
            Some(hold) => lock(&hold.pool).give_back(&hold.places),
            None => {
                let is_lent = |core| !resources.cores.contains(core);
                debug_assert!(
                    self.cores.iter().all(is_lent),
                    "free already: {:?} of {resources:?}",
                    self.cores
                );
                resources.cores.extend(&self.cores);
            }
        }
        debug_assert!(
            resources.memory_bytes <= resources.all_memory_bytes
                && resources.cores.len() <= resources.all_cores,
            "more is free than there is: {resources:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(cores: impl IntoIterator<Item = u32>, memory_bytes: u64) -> ResourcePool {
        let cores = Cores { exclusive: cores.into_iter().collect(), shared: vec![100, 101] };
        ResourcePool::new(FreeResources::new(cores, memory_bytes, 3).unwrap())
    }

    fn reserve(pool: &ResourcePool, cores: u32, memory_bytes: u64) -> Result<ResourceReservation, Error> {
        pool.reserve(&ResourceRequest { cores, memory_bytes, shared: false })
    }

    fn reserve_shared(
        pool: &ResourcePool,
        cores: u32,
        memory_bytes: u64,
    ) -> Result<ResourceReservation, Error> {
        pool.reserve(&ResourceRequest { cores, memory_bytes, shared: true })
    }

    #[test]
    fn cores_are_lent_from_the_highest_downwards_and_come_back() {
        let pool = pool([0, 1, 2, 5], 100);
        let first = reserve(&pool, 2, 10).unwrap();
        assert_eq!(first.cores, [5, 2]);
        let second = reserve(&pool, 1, 10).unwrap();
        assert_eq!(second.cores, [1]);
        assert_eq!(pool.idle_cores(), [0]);
        drop(first);
        assert_eq!(pool.idle_cores(), [0, 2, 5]);
        assert_eq!(reserve(&pool, 3, 90).unwrap().cores, [5, 2, 0]);
    }

    #[test]
    fn distinguishes_excessive_requests_from_lack_of_free_resources() {
        let pool = pool(0..2, 100);
        for (cores, memory, code) in
            [(3, 0, Code::InsufficientResources), (1, 101, Code::InsufficientResources)]
        {
            assert_eq!(reserve(&pool, cores, memory).unwrap_err().code, code);
        }
        let held = reserve(&pool, 1, 60).unwrap();
        for (cores, memory) in [(2, 0), (1, 41)] {
            let error = reserve(&pool, cores, memory).unwrap_err();
            assert_eq!(error.code, Code::NoCapacity);
            assert!(error.message.contains("1 and 40 are free"), "{error}");
        }
        drop(held);
        reserve(&pool, 2, 100).unwrap();
    }

    #[test]
    fn counts_shared_and_exclusive_cores_apart_with_common_memory() {
        let pool = pool(0..1, 100);
        for (workers, memory, code) in
            [(4, 0, Code::InsufficientResources), (1, 101, Code::InsufficientResources)]
        {
            assert_eq!(reserve_shared(&pool, workers, memory).unwrap_err().code, code);
        }
        let shared = reserve_shared(&pool, 2, 60).unwrap();
        assert_eq!(shared.cores, [100, 101]);
        let error = reserve_shared(&pool, 2, 0).unwrap_err();
        assert_eq!(error.code, Code::NoCapacity);
        assert!(error.message.contains("1 and 40 are free"), "{error}");
        let exclusive = reserve(&pool, 1, 40).unwrap();
        assert!(exclusive.slots.is_none() && exclusive.cores == [0]);
        assert_eq!(reserve_shared(&pool, 1, 1).unwrap_err().code, Code::NoCapacity);
        drop((shared, exclusive));
        assert_eq!(reserve_shared(&pool, 3, 100).unwrap().cores.len(), 3);
    }

    #[test]
    fn forfeited_places_do_not_come_back() {
        let pool = pool(0..1, 100);
        reserve_shared(&pool, 2, 60).unwrap().forfeit();
        assert_eq!(reserve_shared(&pool, 2, 0).unwrap_err().code, Code::NoCapacity);
        reserve_shared(&pool, 1, 40).unwrap();
    }

    #[test]
    fn forfeited_resources_do_not_come_back() {
        let pool = pool(0..2, 100);
        reserve(&pool, 1, 60).unwrap().forfeit();
        assert_eq!(reserve(&pool, 2, 0).unwrap_err().code, Code::NoCapacity);
        assert_eq!(reserve(&pool, 1, 40).unwrap().cores, [0]);
    }

    #[test]
    fn no_core_is_lent_twice_in_any_order_of_leases() {
        // A fixed linear congruential sequence: each step reserves some cores or gives a reservation back.
        let (mut random, pool) = (12_345_u64, pool(0..16, 1_600));
        let mut held: Vec<ResourceReservation> = Vec::new();
        for _ in 0..10_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let choice = (random >> 33) as usize;
            if choice.is_multiple_of(3) && !held.is_empty() {
                held.swap_remove(choice % held.len());
            } else if let Ok(reservation) = reserve(&pool, (choice % 5) as u32, 100) {
                held.push(reservation);
            }
            let lent: Vec<u32> = held.iter().flat_map(|reservation| reservation.cores.clone()).collect();
            let distinct: BTreeSet<u32> = lent.iter().copied().collect();
            assert_eq!(lent.len(), distinct.len());
            assert!(held.len() <= 16);
        }
    }
}
