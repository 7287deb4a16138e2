//! Lists all leases of one invoker, for a call that must be sent to another lease (rFaaS III-D).
//!
//! Their workers are numbered through, in the order in which the leases were taken. A lease keeps its numbers when it
//! is over. Nothing here is on the path of a call that is executed where it was sent first.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use sublet_fabric::sync::lock;

use super::ClientLease;

/// The leases, which know each other by it and do not keep each other alive.
#[derive(Default)]
pub(crate) struct WorkerSet {
    members: Mutex<Vec<Weak<ClientLease>>>,
}

/// A worker of one of the leases, by its number within that lease.
pub(crate) struct WorkerIndex {
    pub(crate) lease: Arc<ClientLease>,
    pub(crate) worker: u32,
}

impl WorkerSet {
    /// Makes leases known, whose workers are numbered after those that are known already.
    pub(crate) fn join(&self, leases: &[Arc<ClientLease>]) {
        self.lock().extend(leases.iter().map(Arc::downgrade));
    }

    /// The places of one round that ends at the worker of this number. Leases that are over are left out, and so are
    /// those whose end is announced if there are others.
    pub(crate) fn round(&self, last: u32) -> Vec<WorkerIndex> {
        let members: Vec<_> = self.members().into_iter().filter(|lease| !lease.is_over()).collect();
        let staying = members.iter().any(|lease| !lease.is_ending());
        let usable = members.iter().filter(|lease| !(staying && lease.is_ending()));
        let places = usable.flat_map(|lease| {
            (0..lease.workers()).map(|worker| WorkerIndex { lease: lease.clone(), worker })
        });
        let mut places: Vec<_> = places.collect();
        debug_assert!(
            places.is_sorted_by_key(WorkerIndex::number),
            "workers are not in the order of their numbers: {:?}",
            places.iter().map(WorkerIndex::number).collect::<Vec<_>>()
        );
        let first = places.iter().position(|place| place.number() > last).unwrap_or(0);
        places.rotate_left(first);
        places
    }

    fn members(&self) -> Vec<Arc<ClientLease>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<ClientLease>>> {
        lock(&self.members)
    }
}

impl WorkerIndex {
    /// The worker's number among those of all leases.
    pub(crate) fn number(&self) -> u32 {
        self.lease.first_worker + self.worker
    }
}
