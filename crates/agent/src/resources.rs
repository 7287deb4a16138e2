//! Which cores and how much memory are lent to whom: pure, and never the same twice.
//!
//! Cores are lent from the highest number downwards, so that the lowest, where clients and the system tend to run,
//! are lent last. A [`Reservation`] gives back what it holds when it is dropped; nothing else does.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use sublet_proto::{Code, Error};

use crate::lock;

/// What is free of a node. Cores that are not in it are lent, or were never to be.
#[derive(Debug)]
pub(crate) struct Resources {
    cores: BTreeSet<u32>,
    all_cores: usize,
    memory_bytes: u64,
    all_memory_bytes: u64,
}

impl Resources {
    /// All of these cores and all of this memory are free.
    pub(crate) fn new(cores: impl IntoIterator<Item = u32>, memory_bytes: u64) -> Resources {
        let cores: BTreeSet<u32> = cores.into_iter().collect();
        Resources { all_cores: cores.len(), cores, memory_bytes, all_memory_bytes: memory_bytes }
    }

    /// The numbers of the cores lent, the highest first.
    fn take(&mut self, cores: u32, memory_bytes: u64) -> Result<Vec<u32>, Error> {
        let count = cores as usize;
        if count > self.all_cores || memory_bytes > self.all_memory_bytes {
            let message = format!(
                "{cores} cores and {memory_bytes} bytes asked, the node lends {} and {}",
                self.all_cores, self.all_memory_bytes
            );
            return Err(Error::new(Code::InsufficientResources, message));
        }
        if count > self.cores.len() || memory_bytes > self.memory_bytes {
            let message = format!(
                "{cores} cores and {memory_bytes} bytes asked, {} and {} are free",
                self.cores.len(),
                self.memory_bytes
            );
            return Err(Error::new(Code::NoCapacity, message));
        }
        self.memory_bytes -= memory_bytes;
        Ok((0..count).filter_map(|_| self.cores.pop_last()).collect())
    }

    fn give_back(&mut self, cores: &[u32], memory_bytes: u64) {
        self.memory_bytes += memory_bytes;
        self.cores.extend(cores);
    }
}

/// The node's resources, shared by the supervisors of its leases.
#[derive(Clone, Debug)]
pub(crate) struct Pool(Arc<Mutex<Resources>>);

impl Pool {
    pub(crate) fn new(resources: Resources) -> Pool {
        Pool(Arc::new(Mutex::new(resources)))
    }

    /// So many cores and so much memory, or none of either.
    pub(crate) fn reserve(&self, cores: u32, memory_bytes: u64) -> Result<Reservation, Error> {
        let cores = lock(&self.0).take(cores, memory_bytes)?;
        Ok(Reservation { pool: self.clone(), cores, memory_bytes })
    }
}

/// Cores and memory that belong to one lease until this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    pool: Pool,
    /// The numbers of the cores.
    pub(crate) cores: Vec<u32>,
    memory_bytes: u64,
}

impl Reservation {
    /// Never gives the resources back: something that cannot be ended still uses them.
    pub(crate) fn forfeit(mut self) {
        self.cores.clear();
        self.memory_bytes = 0;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        lock(&self.pool.0).give_back(&self.cores, self.memory_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_lent_from_the_highest_downwards_and_come_back() {
        let pool = Pool::new(Resources::new([0, 1, 2, 5], 100));
        let first = pool.reserve(2, 10).unwrap();
        assert_eq!(first.cores, [5, 2]);
        let second = pool.reserve(1, 10).unwrap();
        assert_eq!(second.cores, [1]);
        drop(first);
        assert_eq!(pool.reserve(3, 90).unwrap().cores, [5, 2, 0]);
    }

    #[test]
    fn too_much_is_told_from_too_much_now_and_takes_nothing() {
        let pool = Pool::new(Resources::new(0..2, 100));
        for (cores, memory, code) in
            [(3, 0, Code::InsufficientResources), (1, 101, Code::InsufficientResources)]
        {
            assert_eq!(pool.reserve(cores, memory).unwrap_err().code, code);
        }
        let held = pool.reserve(1, 60).unwrap();
        for (cores, memory) in [(2, 0), (1, 41)] {
            let error = pool.reserve(cores, memory).unwrap_err();
            assert_eq!(error.code, Code::NoCapacity);
            assert!(error.message.contains("1 and 40 are free"), "{error}");
        }
        drop(held);
        pool.reserve(2, 100).unwrap();
    }

    #[test]
    fn forfeited_resources_do_not_come_back() {
        let pool = Pool::new(Resources::new(0..2, 100));
        pool.reserve(1, 60).unwrap().forfeit();
        assert_eq!(pool.reserve(2, 0).unwrap_err().code, Code::NoCapacity);
        assert_eq!(pool.reserve(1, 40).unwrap().cores, [0]);
    }

    #[test]
    fn no_core_is_lent_twice_in_any_order_of_leases() {
        // A fixed linear congruential sequence: each step reserves some cores or gives a reservation back.
        let (mut random, pool) = (12_345_u64, Pool::new(Resources::new(0..16, 1_600)));
        let mut held: Vec<Reservation> = Vec::new();
        for _ in 0..10_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let choice = (random >> 33) as usize;
            if choice.is_multiple_of(3) && !held.is_empty() {
                held.swap_remove(choice % held.len());
            } else if let Ok(reservation) = pool.reserve((choice % 5) as u32, 100) {
                held.push(reservation);
            }
            let lent: Vec<u32> = held.iter().flat_map(|reservation| reservation.cores.clone()).collect();
            let distinct: BTreeSet<u32> = lent.iter().copied().collect();
            assert_eq!(lent.len(), distinct.len());
            assert!(held.len() <= 16);
        }
    }
}
