//! The store behind the managers: it keeps what it has taken, and is at times slow, full, or not to be reached.

use std::collections::BTreeMap;

use sublet_manager::core::LeaseId;
use sublet_proto::v1::{self, LeaseState, PeerRecord, Usage};

/// How the store is at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreHealth {
    /// The store accepts writes, after this many microseconds.
    Up(u64),
    /// The store accepts no more writes.
    Full,
    /// The store does not answer.
    Unreachable,
}

/// A lease as the store has it.
#[derive(Clone, Debug)]
pub struct SimLeaseRecord {
    /// The latest state.
    pub lease: v1::Lease,
    /// The manager that wrote it.
    pub manager: u8,
}

/// See the [module](self).
#[derive(Debug)]
pub struct SimStore {
    /// How it is now.
    pub health: StoreHealth,
    records: BTreeMap<LeaseId, SimLeaseRecord>,
    epochs: u64,
    peers: BTreeMap<u64, PeerRecord>,
}

/// A manager's write on its way.
#[derive(Clone, Debug)]
pub struct Write {
    /// Number of the manager that writes.
    pub manager: u8,
    /// Epoch of that manager.
    pub epoch: u64,
    /// The lease to write.
    pub lease: v1::Lease,
    /// Id of the lease.
    pub id: LeaseId,
    /// Revision of the lease that is written.
    pub revision: u64,
}

impl SimStore {
    /// An empty one.
    pub fn new() -> SimStore {
        SimStore {
            health: StoreHealth::Up(1_000),
            records: BTreeMap::new(),
            epochs: 0,
            peers: BTreeMap::new(),
        }
    }

    /// A number for a manager that starts.
    pub fn next_epoch(&mut self) -> u64 {
        self.epochs += 1;
        self.epochs
    }

    /// Writes a lease. Usage only grows, whichever manager writes: of two managers that believe they have a node, one
    /// knows less. Returns the usage that is now stored.
    pub fn take(&mut self, write: Write) -> Usage {
        let Write { manager, lease, id, .. } = write;
        let mut record = SimLeaseRecord { lease, manager };
        if let Some(known) = self.records.get(&id) {
            let usage = record.lease.usage.get_or_insert_default();
            *usage = most(usage, &known.lease.usage.unwrap_or_default());
        }
        let usage = record.lease.usage.unwrap_or_default();
        self.records.insert(id, record);
        usage
    }

    /// The leases that have not ended and were last written by this manager.
    pub fn active_of(&self, manager: u8) -> impl Iterator<Item = &v1::Lease> {
        let own = self.records.values().filter(move |record| record.manager == manager);
        own.map(|record| &record.lease).filter(|lease| lease.state() != LeaseState::Ended)
    }

    /// Takes a manager's record, and gives those of all.
    pub fn exchange(&mut self, own: PeerRecord) -> Vec<PeerRecord> {
        self.peers.insert(own.epoch, own);
        self.peers.values().cloned().collect()
    }

    /// Forgets the record of a manager that is dead to one of the others.
    pub fn bury(&mut self, epoch: u64) {
        self.peers.remove(&epoch);
    }
}

fn most(a: &Usage, b: &Usage) -> Usage {
    Usage {
        allocated_ns: a.allocated_ns.max(b.allocated_ns),
        executing_ns: a.executing_ns.max(b.executing_ns),
        polling_ns: a.polling_ns.max(b.polling_ns),
        calls: a.calls.max(b.calls),
        failed_calls: a.failed_calls.max(b.failed_calls),
        memory_byte_us: a.memory_byte_us.max(b.memory_byte_us),
        memory_peak_bytes: a.memory_peak_bytes.max(b.memory_peak_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(id: u128, allocated_ns: u64, state: LeaseState) -> Write {
        let usage = Some(Usage { allocated_ns, ..Usage::default() });
        let lease = v1::Lease { usage, state: state.into(), ..v1::Lease::default() };
        Write { manager: 0, epoch: 1, lease, id: LeaseId(id), revision: 1 }
    }

    #[test]
    fn usage_never_shrinks_and_the_ended_are_not_restored() {
        let mut store = SimStore::new();
        assert_eq!(store.take(write(1, 5, LeaseState::Attached)).allocated_ns, 5);
        assert_eq!(store.take(write(1, 3, LeaseState::Attached)).allocated_ns, 5);
        assert_eq!((store.active_of(0).count(), store.active_of(1).count()), (1, 0));
        assert_eq!(store.take(write(1, 7, LeaseState::Ended)).allocated_ns, 7);
        assert_eq!((store.active_of(0).count(), store.records.len()), (0, 1));
    }
}
