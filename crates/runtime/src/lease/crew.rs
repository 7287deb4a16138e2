//! Lists all leases of one invoker, for a call that must be sent to another lease (rFaaS III-D).
//!
//! Their workers are numbered through, in the order in which the leases were taken. A lease keeps its numbers when it
//! is over. Nothing here is on the path of a call that is executed where it was sent first.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Lease;

/// The leases, which know each other by it and do not keep each other alive.
#[derive(Default)]
pub(crate) struct Crew {
    members: Mutex<Vec<Weak<Lease>>>,
}

/// A worker of one of the leases, by its number within that lease.
pub(crate) struct Place {
    pub(crate) lease: Arc<Lease>,
    pub(crate) worker: u32,
}

impl Crew {
    /// Makes leases known, whose workers are numbered after those that are known already.
    pub(crate) fn join(&self, leases: &[Arc<Lease>]) {
        self.lock().extend(leases.iter().map(Arc::downgrade));
    }

    /// The places of one round that ends at the worker of this number. Leases that are over are left out, and so are
    /// those whose end is announced if there are others.
    pub(crate) fn round(&self, last: u32) -> Vec<Place> {
        let members: Vec<_> = self.members().into_iter().filter(|lease| !lease.is_over()).collect();
        let staying = members.iter().any(|lease| !lease.is_ending());
        let usable = members.iter().filter(|lease| !(staying && lease.is_ending()));
        let places = usable
            .flat_map(|lease| (0..lease.workers()).map(|worker| Place { lease: lease.clone(), worker }));
        let mut places: Vec<_> = places.collect();
        let first = places.iter().position(|place| place.number() > last).unwrap_or(0);
        places.rotate_left(first);
        places
    }

    fn members(&self) -> Vec<Arc<Lease>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Lease>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// The worker's number among those of all leases.
    pub(crate) fn number(&self) -> u32 {
        self.lease.first_worker + self.worker
    }
}
