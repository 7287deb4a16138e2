//! The ledger: the usage of leases in the store.
//!
//! ```text
//! lease/<lease>            the lease with its cumulative usage: the truth of what it costs
//! spend/<epoch>/<tenant>   what a tenant has spent by this manager, or by those before it: see peers.rs
//! usage/<minute>/<lease>   what that was before and after a minute in which it grew: the truth of when
//! folded/...               sums of leases that ended long ago, in place of their records: see bill/fold.rs
//! ```
//!
//! One task writes, in batches and beside everything else: no grant and no report waits for the disk. A lease's record
//! is written by compare-and-swap, since a manager that has lost a node may still write the usage it knows of its
//! leases while another manager writes later usage; usage is merged, so neither order loses or doubles any of it. The
//! record is written before the minute, and contains enough to write the minute again: a crash in between loses
//! nothing. If the store fails, unwritten leases stay in the core, are tried again with growing pauses, and are not
//! acknowledged meanwhile.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message;
use sublet_fabric::sync::lock;
use sublet_proto::v1::{Lease, LeaseState};
use sublet_proto::{Code, Error};
use tokio::sync::{Notify, watch};

use crate::bill::fold::folded_before;
use crate::clock::LEAST_AGE_MS;
use crate::core::LeaseId;
use crate::lease_records::{LeaseRecord, MINUTE_MS, Minute, VersionedRecord, read};
use crate::peers::{Peers, Spending};
use crate::store::{Batch, Store, keys};

/// Leases that are written at a time: the store is free for others in between.
const BATCH_LEASES: usize = 256;
/// Managers that write one lease's record at the same time, one of them first.
const SWAP_ATTEMPTS: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// A lease that is to be written.
#[derive(Clone, Debug)]
pub(crate) struct LedgerEntry {
    pub(crate) id: LeaseId,
    pub(crate) revision: u64,
    pub(crate) lease: Lease,
    pub(crate) token: String,
}

impl LedgerEntry {
    fn key(&self) -> String {
        format!("{}{}", keys::LEASE, self.id)
    }
}

/// Writes records, and beside them the spending of tenants by this manager.
pub(crate) struct RecordWriter {
    spending: Spending,
    peers: Arc<Mutex<Peers>>,
    /// Costs of leases when they were counted last.
    counted: HashMap<LeaseId, u64>,
}

impl RecordWriter {
    pub(crate) fn new(spending: Spending, peers: Arc<Mutex<Peers>>) -> RecordWriter {
        RecordWriter { spending, peers, counted: HashMap::new() }
    }

    /// Writes all entries, or says why the store could not take them; each of them may then have been written.
    pub(crate) fn write(
        &mut self,
        store: &mut dyn Store,
        entries: &[LedgerEntry],
        now_ms: u64,
    ) -> Result<(), Error> {
        let minute = now_ms / MINUTE_MS;
        let mut known = Vec::with_capacity(entries.len());
        for entry in entries {
            let before = read(store, &entry.key())?;
            if before.is_some() || !is_folded(store, entry, now_ms)? {
                known.push((entry, before));
            }
        }
        self.count(&known, minute);
        let mut sums = Batch::default();
        self.spending.put_first(&mut sums);
        store.commit(&sums)?;
        let mut minutes = Batch::default();
        for (entry, before) in known {
            for (key, minute) in swap(store, entry, minute, before)? {
                minutes.put(key, minute.encode_to_vec());
            }
        }
        store.commit(&minutes)?;
        self.spending.stored();
        for entry in entries.iter().filter(|entry| entry.lease.state() == LeaseState::Ended) {
            self.counted.remove(&entry.id);
            self.spending.forget(&entry.lease.id);
        }
        Ok(())
    }

    /// Forgets all leases but these.
    pub(crate) fn keep(&mut self, leases: &HashSet<LeaseId>) {
        for (lease, _) in self.counted.extract_if(|lease, _| !leases.contains(lease)) {
            self.spending.forget(&lease.to_string());
        }
    }

    fn count(&mut self, entries: &[(&LedgerEntry, Option<VersionedRecord>)], minute: u64) {
        let peers = lock(&self.peers);
        for (entry, before) in entries {
            let mut record =
                before.as_ref().map_or_else(|| LeaseRecord::new(minute), |before| before.record.clone());
            let (id, stored_nano) = (&entry.lease.id, record.cost_nano());
            match self.counted.get(&entry.id) {
                None => self.spending.take_over(id, peers.counted(id, stored_nano)),
                // Another manager has had the lease meanwhile, and has counted that cost.
                Some(&counted_nano) if stored_nano > counted_nano => self.spending.take_over(id, stored_nano),
                Some(_) => {}
            }
            record.merge(entry.lease.clone(), &entry.token, minute);
            self.spending.count(&record.lease.tenant, id, record.cost_nano());
            self.counted.insert(entry.id, record.cost_nano());
        }
    }
}

/// Whether a lease that has no record is folded: an agent that was away for long may still report it.
fn is_folded(store: &dyn Store, entry: &LedgerEntry, now_ms: u64) -> Result<bool, Error> {
    let granted_ms = entry.id.granted_ms();
    // Younger leases are never folded, and most leases are young.
    if granted_ms.saturating_add(LEAST_AGE_MS) > now_ms || granted_ms >= folded_before(store)? {
        return Ok(false);
    }
    tracing::warn!(lease = %entry.id, "a lease is reported whose use is in sums already: it is not counted again");
    Ok(true)
}

/// Writes a lease's record over the stored one. Returns the minute that it changed, and the one before it, which is
/// written again in case that its last write was interrupted.
fn swap(
    store: &mut dyn Store,
    entry: &LedgerEntry,
    minute: u64,
    mut before: Option<VersionedRecord>,
) -> Result<Vec<(String, Minute)>, Error> {
    let key = entry.key();
    for _ in 0..SWAP_ATTEMPTS {
        let known =
            before.unwrap_or_else(|| VersionedRecord { record: LeaseRecord::new(minute), version: 0 });
        let mut minutes = Vec::new();
        if known.version > 0 && known.record.minute < minute {
            minutes.push(known.record.last_minute());
        }
        let mut record = known.record;
        record.merge(entry.lease.clone(), &entry.token, minute);
        if store.compare_and_swap(&key, known.version, &record.encode_to_vec())? {
            minutes.push(record.last_minute());
            return Ok(minutes);
        }
        before = read(store, &key)?;
    }
    Err(Error::new(
        Code::StoreUnreachable,
        format!("other managers keep writing the record of lease {}", entry.id),
    ))
}

/// Leases that are to be written, and the progress of writing.
pub(crate) struct Ledger {
    due: Mutex<Due>,
    wake: Notify,
    done: watch::Sender<MarkProgress>,
}

#[derive(Default)]
struct Due {
    revisions: HashMap<LeaseId, u64>,
    /// Grows with each lease that becomes due.
    marks: u64,
}

/// Number of marks that were handled, and whether the store took the last of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct MarkProgress {
    marks: u64,
    failure: Option<Error>,
}

impl Ledger {
    pub(crate) fn new() -> Ledger {
        Ledger { due: Mutex::default(), wake: Notify::new(), done: watch::Sender::default() }
    }

    /// This lease is to be written, as of this revision or a later one.
    pub(crate) fn mark(&self, lease: LeaseId, revision: u64) {
        let mut due = lock(&self.due);
        due.revisions.insert(lease, revision);
        due.marks += 1;
        drop(due);
        self.wake.notify_one();
    }

    /// Waits until everything that is due now has been tried, but not for longer than this.
    ///
    /// # Errors
    /// Why the store did not take it.
    pub(crate) async fn settle(&self, patience: Duration) -> Result<(), Error> {
        let marks = lock(&self.due).marks;
        let mut done = self.done.subscribe();
        let reached = tokio::time::timeout(patience, done.wait_for(|done| done.marks >= marks)).await;
        match reached {
            Ok(Ok(done)) => done.failure.clone().map_or(Ok(()), Err),
            _ => Err(Error::new(
                Code::StoreUnreachable,
                format!("the store has not taken the ledger's last entries within {} s", patience.as_secs()),
            )),
        }
    }

    /// Writes due leases for ever. `write` writes the given leases with their revisions, and reports the result to the
    /// core.
    pub(crate) async fn run<W>(&self, mut write: impl FnMut(Vec<(LeaseId, u64)>) -> W)
    where
        W: Future<Output = Result<(), Error>>,
    {
        let mut pause = FIRST_PAUSE;
        loop {
            self.wake.notified().await;
            let (mut due, marks) = self.take();
            let mut failure = None;
            while !due.is_empty() && failure.is_none() {
                let rest = due.split_off(due.len().min(BATCH_LEASES));
                failure = write(std::mem::replace(&mut due, rest)).await.err();
            }
            // Leases that were not tried are due again.
            due.into_iter().for_each(|(lease, revision)| self.put_back(lease, revision));
            let was_failing =
                self.done.send_replace(MarkProgress { marks, failure: failure.clone() }).failure.is_some();
            match failure {
                Some(error) => {
                    if !was_failing {
                        tracing::error!(%error, "the ledger cannot be written");
                    }
                    tokio::time::sleep(pause).await;
                    pause = LONGEST_PAUSE.min(pause * 2);
                }
                None => {
                    if was_failing {
                        tracing::info!("the ledger can be written again");
                    }
                    pause = FIRST_PAUSE;
                }
            }
        }
    }

    fn take(&self) -> (Vec<(LeaseId, u64)>, u64) {
        let mut due = lock(&self.due);
        (std::mem::take(&mut due.revisions).into_iter().collect(), due.marks)
    }

    fn put_back(&self, lease: LeaseId, revision: u64) {
        let mut due = lock(&self.due);
        due.revisions.entry(lease).or_insert(revision);
        drop(due);
        self.wake.notify_one();
    }
}
