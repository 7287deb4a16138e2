//! Merges the spending of tenants through managers that are gone, so that the store does not keep a record of each
//! start for ever.
//!
//! The record of [`MERGED`], the epoch of no manager, has a tenant's spending through all managers up to
//! `through_epoch`. It is changed by compare-and-swap before the records that it replaces are removed. A replaced
//! record may still exist, because a manager died in between or has lived after all; it is part of the sum and does not
//! count again.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use sublet_proto::v1::{CountedLease, SpendRecord};
use sublet_proto::{Error, decode};

use crate::clock::LEAST_AGE_MS;
use crate::core::LeaseId;
use crate::lease_records;
use crate::store::{Batch, Store, keys};

/// The epoch of the merged record. The first manager of a store has the epoch 1.
pub(super) const MERGED: u64 = 0;

/// Epochs of managers that have spending records, by tenant.
pub(crate) type Spenders = BTreeMap<String, BTreeSet<u64>>;

/// The epoch and the tenant of the key of a record of spending.
pub(super) fn epoch_and_tenant(key: &str) -> Option<(u64, &str)> {
    let (epoch, tenant) = key.strip_prefix(keys::SPEND)?.split_once('/')?;
    Some((u64::from_str_radix(epoch, 16).ok()?, tenant))
}

/// Notes the tenant and the epoch of a record of spending.
pub(crate) fn note(spenders: &mut Spenders, key: &str) {
    if let Some((epoch, tenant)) = epoch_and_tenant(key)
        && epoch != MERGED
    {
        spenders.entry(tenant.to_owned()).or_default().insert(epoch);
    }
}

/// Merges the records of a tenant from the first of these epochs to the last before a manager that is not gone. Returns
/// the number of removed records; 0 if another manager merges at the same time.
pub(crate) fn merge(
    store: &mut dyn Store,
    tenant: &str,
    epochs: impl Iterator<Item = u64>,
    now_ms: u64,
) -> Result<u64, Error> {
    let key = |epoch| format!("{}{}/{tenant}", keys::SPEND, keys::epoch(epoch));
    let found = store.get(&key(MERGED))?;
    let version = found.as_ref().map_or(0, |found| found.version);
    let read = |value: &[u8]| decode::<SpendRecord>("a record of spending", value);
    let mut merged = found.map(|found| read(&found.value)).transpose()?.unwrap_or_default();
    let (before, mut removals) = (merged.through_epoch, Batch::default());
    for epoch in epochs {
        if epoch > merged.through_epoch
            && let Some(found) = store.get(&key(epoch))?
        {
            let record = read(&found.value)?;
            merged.spent_nano = merged.spent_nano.saturating_add(record.spent_nano);
            merged.counted.extend(record.counted);
            merged.through_epoch = epoch;
        }
        removals.remove(key(epoch));
    }
    if merged.through_epoch > before {
        merged.counted = still_needed(store, merged.counted, now_ms)?;
        if !store.compare_and_swap(&key(MERGED), version, &merged.encode_to_vec())? {
            return Ok(0);
        }
    }
    store.commit(&removals)?;
    Ok(removals.removes.len() as u64)
}

/// Returns the leases whose own records have less cost than was counted. A young lease without a record may still be
/// reported.
fn still_needed(
    store: &dyn Store,
    counted: Vec<CountedLease>,
    now_ms: u64,
) -> Result<Vec<CountedLease>, Error> {
    let is_young = |lease: &str| {
        let id = lease.parse::<LeaseId>();
        id.is_ok_and(|id| id.granted_ms().saturating_add(LEAST_AGE_MS) > now_ms)
    };
    let mut needed: BTreeMap<String, u64> = BTreeMap::new();
    for CountedLease { lease, cost_nano } in counted {
        let is_needed = match lease_records::stored(store, &lease)? {
            Some(record) => record.cost_nano() < cost_nano,
            None => is_young(&lease),
        };
        if is_needed {
            let known = needed.entry(lease).or_default();
            *known = cost_nano.max(*known);
        }
    }
    Ok(needed.into_iter().map(|(lease, cost_nano)| CountedLease { lease, cost_nano }).collect())
}

#[cfg(test)]
mod tests {
    use sublet_proto::v1::{Lease, Price, Usage};

    use super::super::{Peers, Spending};
    use super::*;
    use crate::lease_records::LeaseRecord;
    use crate::store::SqliteStore;

    fn store() -> (tempfile::TempDir, SqliteStore) {
        let folder = tempfile::tempdir().unwrap();
        let mut store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
        for epoch in 1..=4 {
            let mut spending = Spending::new(epoch);
            spending.count("t", "l", 10 * epoch);
            spending.count("a/b", "m", 1);
            let mut batch = Batch::default();
            spending.put_first(&mut batch);
            store.commit(&batch).unwrap();
        }
        (folder, store)
    }

    fn spenders(store: &SqliteStore) -> Spenders {
        let mut spenders = Spenders::new();
        let page = store.scan(keys::SPEND, None, 99).unwrap();
        page.iter().for_each(|found| note(&mut spenders, &found.key));
        spenders
    }

    fn spent(store: &SqliteStore) -> [u64; 2] {
        let peers = Peers::join(store, 9).unwrap();
        ["t", "a/b"].map(|tenant| peers.table().elsewhere(tenant).spent_nano)
    }

    #[test]
    fn merging_keeps_sums_and_removes_records_of_gone_managers() {
        let (_folder, mut store) = store();
        assert_eq!(spent(&store), [100, 4]);
        for (tenant, epochs) in spenders(&store) {
            let gone = epochs.into_iter().take_while(|&epoch| epoch < 4);
            assert_eq!(merge(&mut store, &tenant, gone, 0).unwrap(), 3);
        }
        assert_eq!(spent(&store), [100, 4]);
        assert_eq!(store.scan(keys::SPEND, None, 99).unwrap().len(), 4);
        for (tenant, epochs) in spenders(&store) {
            merge(&mut store, &tenant, epochs.into_iter(), 0).unwrap();
        }
        assert_eq!(spent(&store), [100, 4]);
        assert_eq!(store.scan(keys::SPEND, None, 99).unwrap().len(), 2);
    }

    #[test]
    fn record_that_a_merge_has_left_counts_once() {
        let (_folder, mut store) = store();
        let page = store.scan(keys::SPEND, None, 99).unwrap();
        merge(&mut store, "t", [1, 2].into_iter(), 0).unwrap();
        // This is the state after its manager died before it removed them, or after their writer lived after all.
        let mut batch = Batch::default();
        page.into_iter().for_each(|found| batch.put(found.key, found.value));
        store.commit(&batch).unwrap();
        assert_eq!(spent(&store), [100, 4]);
        assert_eq!(merge(&mut store, "t", [1, 2].into_iter(), 0).unwrap(), 2);
        assert_eq!(spent(&store), [100, 4]);
        assert_eq!(spenders(&store)["t"], BTreeSet::from([3, 4]));
    }

    #[test]
    fn merging_keeps_counted_costs_above_a_leases_own_record() {
        let (_folder, mut store) = store();
        let price = Price { compute_nano_per_core_s: 5, ..Price::default() };
        let usage = Usage { executing_ns: 1_000_000_000, ..Usage::default() };
        let lease = Lease { price: Some(price), usage: Some(usage), ..Lease::default() };
        let mut record = LeaseRecord::default();
        record.lease = lease;
        let mut batch = Batch::default();
        batch.put(format!("{}l", keys::LEASE), record.encode_to_vec());
        store.commit(&batch).unwrap();
        let now_ms = 3 * LEAST_AGE_MS;
        let leases = [now_ms - 1000, 1000].map(|granted_ms| LeaseId::new(granted_ms, 7).to_string());
        let mut spending = Spending::new(5);
        leases.iter().for_each(|lease| spending.count("t", lease, 3));
        let mut batch = Batch::default();
        spending.put_first(&mut batch);
        store.commit(&batch).unwrap();
        for tenant in ["t", "a/b"] {
            merge(&mut store, tenant, 1..=5, now_ms).unwrap();
        }
        let peers = Peers::join(&store, 9).unwrap();
        assert_eq!(peers.counted("l", 5), 40);
        // Leases without a record may still be reported if they are young.
        assert_eq!(leases.map(|lease| peers.counted(&lease, 0)), [3, 0]);
    }
}
