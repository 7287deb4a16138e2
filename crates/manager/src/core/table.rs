//! Every lease that is not forgotten, found by its name, its request, or its key.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::hash::ByChance;
use super::ids::{LeaseId, RequestId, TenantKey};
use super::lease::{Lease, LeasePhase};

/// Keys are used again; a caller that keeps one checks that its lease still exists.
#[derive(Debug, Default)]
pub(super) struct LeaseTable {
    slots: Vec<Option<Lease>>,
    unused: Vec<u32>,
    by_id: HashMap<LeaseId, u32, ByChance>,
    by_request: HashMap<(TenantKey, RequestId), Leases>,
    /// Leases whose changes the store has not been asked to write.
    dirty: Vec<LeaseId>,
    /// The revision of the latest change to any lease. The leases share this count: a lease that was forgotten can come back
    /// while the store still writes its earlier state, and must not use the same revisions again.
    last_revision: u64,
}

/// Leases of one request, on as many nodes: nearly always one.
#[derive(Debug)]
enum Leases {
    One(LeaseId),
    Several(Vec<LeaseId>),
}

impl Leases {
    fn as_slice(&self) -> &[LeaseId] {
        match self {
            Leases::One(lease) => std::slice::from_ref(lease),
            Leases::Several(leases) => leases,
        }
    }

    fn push(&mut self, lease: LeaseId) {
        match self {
            Leases::One(first) => *self = Leases::Several(vec![*first, lease]),
            Leases::Several(leases) => leases.push(lease),
        }
    }

    /// Says whether others are left.
    fn remove(&mut self, lease: LeaseId) -> bool {
        match self {
            Leases::One(one) => *one != lease,
            Leases::Several(leases) => {
                leases.retain(|&other| other != lease);
                !leases.is_empty()
            }
        }
    }
}

impl LeaseTable {
    pub(super) fn find(&self, id: LeaseId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn get(&self, key: u32) -> Option<&Lease> {
        self.slots.get(key as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut Lease> {
        self.slots.get_mut(key as usize)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.slots.iter().flatten()
    }

    pub(super) fn of_request(&self, tenant: TenantKey, request: RequestId) -> Option<&[LeaseId]> {
        self.by_request.get(&(tenant, request)).map(Leases::as_slice)
    }

    pub(super) fn insert(&mut self, lease: Lease) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "memory ends before 2^32 leases")]
        let key = self.unused.pop().unwrap_or(self.slots.len() as u32);
        if key as usize == self.slots.len() {
            self.slots.push(None);
        }
        debug_assert!(self.slots[key as usize].is_none(), "the unused key {key} has a lease");
        let namesake = self.by_id.insert(lease.id, key);
        debug_assert!(namesake.is_none(), "lease {} is in the table twice: {namesake:?}, {key}", lease.id);
        if let Some(request) = lease.request {
            match self.by_request.entry((lease.tenant, request)) {
                Entry::Vacant(entry) => _ = entry.insert(Leases::One(lease.id)),
                Entry::Occupied(mut entry) => entry.get_mut().push(lease.id),
            }
        }
        self.slots[key as usize] = Some(lease);
        key
    }

    pub(super) fn remove(&mut self, key: u32) -> Option<Lease> {
        let lease = self.slots.get_mut(key as usize)?.take()?;
        self.unused.push(key);
        let indexed = self.by_id.remove(&lease.id);
        debug_assert_eq!(indexed, Some(key), "the key of lease {}", lease.id);
        debug_assert!(
            lease.request.is_none_or(|request| {
                let answered = self.of_request(lease.tenant, request).unwrap_or_default();
                answered.contains(&lease.id)
            }),
            "request {:?} is not answered by lease {}",
            lease.request,
            lease.id
        );
        if let Some(request) = lease.request
            && let Entry::Occupied(mut leases) = self.by_request.entry((lease.tenant, request))
            && !leases.get_mut().remove(lease.id)
        {
            leases.remove();
        }
        Some(lease)
    }

    /// The lease is another tenant's from now on, and so is the request that it answers.
    pub(super) fn change_tenant(&mut self, key: u32, tenant: TenantKey) {
        let Some(mut lease) = self.remove(key) else { return };
        lease.tenant = tenant;
        let is_stored = lease.state != LeasePhase::Granted;
        // The slot that was freed last is taken first: the key stays.
        let inserted = self.insert(lease);
        debug_assert_eq!(inserted, key, "a lease that changes its tenant keeps its key");
        if is_stored {
            self.touch(key);
        }
    }

    /// The lease has changed: the store has to hear of it.
    pub(super) fn touch(&mut self, key: u32) {
        let Some(lease) = self.slots.get_mut(key as usize).and_then(Option::as_mut) else { return };
        debug_assert!(
            lease.state != LeasePhase::Granted,
            "lease {} is stored before it is attached",
            lease.id
        );
        self.last_revision += 1;
        lease.revision = self.last_revision;
        self.mark(key);
    }

    /// Marks a lease for the store to write.
    pub(super) fn mark(&mut self, key: u32) {
        let Some(lease) = self.slots.get_mut(key as usize).and_then(Option::as_mut) else { return };
        if !std::mem::replace(&mut lease.marks.is_dirty, true) {
            self.dirty.push(lease.id);
        }
    }

    /// Panics unless every index leads to its lease, and no lease is missing in one.
    #[cfg(debug_assertions)]
    pub(super) fn assert_consistent(&self) {
        let mut of_requests = 0;
        for lease in self.iter() {
            let indexed = self.find(lease.id).and_then(|key| self.get(key)).map(|lease| lease.id);
            assert_eq!(indexed, Some(lease.id), "the index of leases");
            let Some(request) = lease.request else { continue };
            let answered = self.of_request(lease.tenant, request).unwrap_or_default();
            assert!(answered.contains(&lease.id), "request {request} is not answered by lease {}", lease.id);
            of_requests += 1;
        }
        assert_eq!(
            self.by_id.len(),
            self.slots.len() - self.unused.len(),
            "leases in the index and the table"
        );
        let indexed: usize = self.by_request.values().map(|leases| leases.as_slice().len()).sum();
        assert_eq!(indexed, of_requests, "leases that answer requests");
    }

    /// Takes the list of leases that the store has to be asked to write, with their revisions.
    pub(super) fn take_dirty(&mut self) -> Vec<(LeaseId, u64)> {
        let dirty = std::mem::take(&mut self.dirty);
        let mut changed = Vec::with_capacity(dirty.len());
        for id in dirty {
            let Some(lease) = self.find(id).and_then(|key| self.get_mut(key)) else { continue };
            if std::mem::replace(&mut lease.marks.is_dirty, false) {
                changed.push((id, lease.revision));
            }
        }
        changed
    }

    /// Takes one lease out of the list, as [`LeaseTable::take_dirty`] does for all.
    pub(super) fn take_one(&mut self, key: u32) -> Option<(LeaseId, u64)> {
        let lease = self.get_mut(key)?;
        let was_dirty = std::mem::replace(&mut lease.marks.is_dirty, false);
        was_dirty.then_some((lease.id, lease.revision))
    }
}
