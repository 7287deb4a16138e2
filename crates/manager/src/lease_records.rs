//! Records of leases and of their minutes, as the store has them, and how usage is merged.

use std::collections::{BTreeMap, HashMap};

use prost::Message;
use sublet_proto::v1::{FunctionUsage, Lease, LeaseState, Usage};
use sublet_proto::{Code, Error, decode, price};

use crate::store::{PAGE_RECORDS, Store, keys};

/// Unit of time of the ledger, in milliseconds.
pub(crate) const MINUTE_MS: u64 = 60_000;
/// Largest difference of managers' clocks, in minutes: the manager that writes a lease may differ from the one that
/// granted it.
const CLOCK_MINUTES: u64 = 5;

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
    pub(crate) fn merge(&mut self, mut lease: Lease, token: &str, minute: u64) {
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

/// A record, and which writing of it that is.
pub(crate) struct VersionedRecord {
    pub(crate) record: LeaseRecord,
    pub(crate) version: u64,
}

/// Returns the record of a key.
pub(crate) fn read(store: &dyn Store, key: &str) -> Result<Option<VersionedRecord>, Error> {
    let Some(found) = store.get(key)? else { return Ok(None) };
    Ok(Some(VersionedRecord { record: decode("a stored lease", &found.value)?, version: found.version }))
}

/// Returns a lease's record from the store.
pub(crate) fn stored(store: &dyn Store, id: &str) -> Result<Option<LeaseRecord>, Error> {
    Ok(read(store, &format!("{}{id}", keys::LEASE))?.map(|found| found.record))
}
