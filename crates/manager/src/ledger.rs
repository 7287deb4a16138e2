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

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prost::Message;
use sublet_proto::v1::{FunctionUsage, Lease, LeaseState, Usage};
use sublet_proto::{Code, Error, decode, price};
use tokio::sync::{Notify, watch};

use crate::bill::fold::folded_before;
use crate::core::LeaseId;
use crate::peers::{Peers, Spending};
use crate::retention::LEAST_AGE_MS;
use crate::store::{Batch, PAGE_RECORDS, Store, keys};

/// Unit of time of the ledger, in milliseconds.
pub(crate) const MINUTE_MS: u64 = 60_000;
/// Largest difference of managers' clocks, in minutes: the manager that writes a lease may differ from the one that
/// granted it.
const CLOCK_MINUTES: u64 = 5;
/// Leases that are written at a time: the store is free for others in between.
const BATCH_LEASES: usize = 256;
/// Managers that write one lease's record at the same time, one of them first.
const SWAP_ATTEMPTS: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// A lease's record in the store.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseRecord {
    /// The lease with its usage so far.
    #[prost(message, required, tag = "1")]
    pub(crate) lease: Lease,
    /// The token with which it was taken; empty if none was needed.
    #[prost(string, tag = "2")]
    pub(crate) token: String,
    /// The minute, counted since 1970, in which it was last written, and its usage before that minute.
    #[prost(uint64, tag = "3")]
    pub(crate) minute: u64,
    #[prost(message, required, tag = "4")]
    base: Usage,
    #[prost(message, repeated, tag = "5")]
    base_functions: Vec<FunctionUsage>,
}

/// A lease's usage in a minute.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Minute {
    /// Cumulative usage before it.
    #[prost(message, required, tag = "1")]
    pub(crate) base: Usage,
    /// Cumulative usage after it.
    #[prost(message, required, tag = "2")]
    pub(crate) end: Usage,
    /// Usage of functions within it.
    #[prost(message, repeated, tag = "3")]
    pub(crate) functions: Vec<FunctionUsage>,
}

impl LeaseRecord {
    /// Creates a record of a lease that is not in the store.
    pub(crate) fn new(minute: u64) -> LeaseRecord {
        LeaseRecord { minute, ..LeaseRecord::default() }
    }

    fn usage(&self) -> Usage {
        self.lease.usage.unwrap_or_default()
    }

    pub(crate) fn cost_nano(&self) -> u64 {
        let price = self.lease.price.unwrap_or_default();
        price::cost(&price, &self.usage(), self.lease.memory_bytes).total_nano()
    }

    /// Merges the current state of the lease. Usage never shrinks; the other fields are those of the manager that has
    /// seen it run longest.
    fn merge(&mut self, mut lease: Lease, token: &str, minute: u64) {
        if minute > self.minute {
            self.minute = minute;
            self.base = self.usage();
            self.base_functions = self.lease.function_usage.clone();
        }
        let (ours, theirs) = (self.usage(), lease.usage.unwrap_or_default());
        let usage = larger(ours, theirs);
        let functions = larger_functions(&self.lease.function_usage, &lease.function_usage);
        // A manager that has lost the lease may still say that it runs, with all that it used, when its end is stored.
        let has_ended = |lease: &Lease| lease.state() == LeaseState::Ended;
        let as_seen = |usage: Usage, lease: &Lease| (usage.allocated_ns, has_ended(lease));
        let is_newer = as_seen(theirs, &lease) >= as_seen(ours, &self.lease);
        if is_newer || self.lease.id.is_empty() {
            lease.usage = None;
            self.lease = lease;
        }
        if self.token.is_empty() {
            token.clone_into(&mut self.token);
        }
        self.lease.usage = Some(usage);
        self.lease.function_usage = functions;
    }

    /// The minute that it was last written in, with its key.
    pub(crate) fn last_minute(&self) -> (String, Minute) {
        let functions = grown_functions(&self.base_functions, &self.lease.function_usage);
        let minute = Minute { base: self.base, end: self.usage(), functions };
        (minute_key(self.minute, &self.lease.id), minute)
    }

    /// Returns the lease as others see it: if both its agent and its manager are gone, it has ended when its time was
    /// over.
    pub(crate) fn seen_at(mut self, now_ms: u64) -> Lease {
        let is_over = self.lease.expires_unix_ms.saturating_add(MINUTE_MS) < now_ms;
        if self.lease.state() != LeaseState::Ended && is_over {
            self.lease.set_state(LeaseState::Ended);
            self.lease.end_reason = "its time is over".into();
            self.lease.end_code = Code::LeaseExpired.number();
            self.lease.ended_unix_ms = self.lease.expires_unix_ms;
        }
        self.lease
    }
}

/// Returns the key of a lease's minute; keys sort by time.
fn minute_key(minute: u64, lease: &str) -> String {
    format!("{}{lease}", minute_prefix(minute))
}

/// Returns the prefix of the keys of a minute.
pub(crate) fn minute_prefix(minute: u64) -> String {
    format!("{}{minute:012}/", keys::USAGE)
}

/// Returns the minute and the lease of a key.
pub(crate) fn parse_minute_key(key: &str) -> Option<(u64, &str)> {
    let (minute, lease) = key.strip_prefix(keys::USAGE)?.split_once('/')?;
    Some((minute.parse().ok()?, lease))
}

/// Returns the minutes of a lease's life that may have a record, from shortly before its grant on.
pub(crate) fn minutes_in_life(record: &LeaseRecord) -> std::ops::Range<u64> {
    let first = (record.lease.granted_unix_ms / MINUTE_MS).saturating_sub(CLOCK_MINUTES);
    first..record.minute
}

/// Returns the minutes in which a lease grew, with their keys, in order. Records of a lease are not adjacent in the
/// store, so they are looked up by their keys, a page at a time.
///
/// # Errors
/// Errors of the store.
pub(crate) fn minutes_of(store: &dyn Store, record: &LeaseRecord) -> Result<BTreeMap<String, Minute>, Error> {
    let mut minutes = BTreeMap::from([record.last_minute()]);
    let mut keys = minutes_in_life(record).map(|minute| minute_key(minute, &record.lease.id));
    loop {
        let page: Vec<String> = keys.by_ref().take(PAGE_RECORDS).collect();
        if page.is_empty() {
            return Ok(minutes);
        }
        let found = store.get_each(&page)?;
        for (key, value) in page.into_iter().zip(found) {
            if let Some(value) = value {
                minutes.insert(key, decode("a stored minute", &value)?);
            }
        }
    }
}

/// Field by field.
pub(crate) fn larger(a: Usage, b: Usage) -> Usage {
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

fn larger_functions(a: &[FunctionUsage], b: &[FunctionUsage]) -> Vec<FunctionUsage> {
    let mut all: HashMap<u32, FunctionUsage> = HashMap::with_capacity(a.len().max(b.len()));
    for usage in a.iter().chain(b) {
        let known = all.entry(usage.function).or_insert(*usage);
        known.executing_ns = known.executing_ns.max(usage.executing_ns);
        known.calls = known.calls.max(usage.calls);
        known.failed_calls = known.failed_calls.max(usage.failed_calls);
    }
    let mut all: Vec<_> = all.into_values().collect();
    all.sort_by_key(|usage| usage.function);
    all
}

/// Returns the growth of each function; functions without growth are left out.
fn grown_functions(before: &[FunctionUsage], after: &[FunctionUsage]) -> Vec<FunctionUsage> {
    let before: HashMap<u32, &FunctionUsage> = before.iter().map(|usage| (usage.function, usage)).collect();
    let grown = after.iter().filter_map(|usage| {
        let Some(base) = before.get(&usage.function) else { return Some(*usage) };
        let grown = FunctionUsage {
            function: usage.function,
            executing_ns: usage.executing_ns.saturating_sub(base.executing_ns),
            calls: usage.calls.saturating_sub(base.calls),
            failed_calls: usage.failed_calls.saturating_sub(base.failed_calls),
        };
        (grown.executing_ns > 0 || grown.calls > 0).then_some(grown)
    });
    grown.collect()
}

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

/// A record, and which writing of it that is.
struct VersionedRecord {
    record: LeaseRecord,
    version: u64,
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
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
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

fn read(store: &dyn Store, key: &str) -> Result<Option<VersionedRecord>, Error> {
    let Some(found) = store.get(key)? else { return Ok(None) };
    Ok(Some(VersionedRecord { record: decode("a stored lease", &found.value)?, version: found.version }))
}

/// Returns a lease's record from the store.
pub(crate) fn stored(store: &dyn Store, id: &str) -> Result<Option<LeaseRecord>, Error> {
    Ok(read(store, &format!("{}{id}", keys::LEASE))?.map(|found| found.record))
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
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
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
        let marks = self.due.lock().unwrap_or_else(PoisonError::into_inner).marks;
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
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut due.revisions).into_iter().collect(), due.marks)
    }

    fn put_back(&self, lease: LeaseId, revision: u64) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        due.revisions.entry(lease).or_insert(revision);
        drop(due);
        self.wake.notify_one();
    }
}
