//! Folds leases that ended long ago into exact sums, so that the ledger does not grow with every lease for ever.
//!
//! ```text
//! folded/day/<minute>/<digest>   what leases of one tenant, package, function and kind of processing unit used in a day (UTC)
//! folded/ever/<digest>           the same of all time
//! ```
//!
//! A sum of a day equals a bill of that day, and the sum of all time equals a bill without limits of time: bills of
//! whole days are the same before and after, to the last unit. A sum no longer tells which lease used it, nor at which
//! time of the day. Records of a lease and of its minutes are removed when the sums include them.
//!
//! Managers of one store take turns by a record, [`STEP`], which is changed by compare-and-swap. It names the leases of
//! the step in progress. Each sum names the step that added to it last. If a step was interrupted, any manager repeats
//! it from its beginning and leaves alone the sums that already include it. Leases are removed when all sums include
//! them, and a lease's minutes are removed before its record, so that the remains of a step always lead to the same
//! sums. A manager that wakes up late finds newer versions of the sums than it has read, and changes nothing. A manager
//! that makes a bill waits for the end of the step.

use std::collections::BTreeMap;

use prost::Message;
use sha2::{Digest, Sha256};
use sublet_proto::price::{self, Cost};
use sublet_proto::v1::{BillLine, LeaseState, Usage};
use sublet_proto::{Code, Error, decode};

use super::span::{FunctionShare, UsageSpan, day_of};
use crate::lease_records::{
    self, LeaseRecord, MINUTE_MS, Minute, minutes_in_life, minutes_of, parse_minute_key,
};
use crate::store::{Batch, Store, hex, keys};

/// The step that is being made.
const STEP: &str = "manager/folding";
/// Leases that are looked at in a step.
const STEP_LEASES: usize = 512;
/// Minutes that the leases of a step may have lived together; one lease may have lived longer.
const STEP_MINUTES: u64 = 32_768;
/// Age at which a step counts as left by a manager that died.
const ABANDONED_MS: u64 = 20_000;
/// Managers that change one sum at the same time, one of them first.
const SWAP_ATTEMPTS: u32 = 8;
const DAY: &str = "folded/day/";
const EVER: &str = "folded/ever/";
/// Length of a digest, in bytes.
const DIGEST_BYTES: usize = 16;

/// Usage of the folded leases that have all of these in common.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FoldedSum {
    /// The day's first minute; 0 in a sum of all time.
    #[prost(uint64, tag = "1")]
    pub(super) day: u64,
    #[prost(string, tag = "2")]
    pub(super) tenant: String,
    #[prost(string, tag = "3")]
    pub(super) pu: String,
    #[prost(string, tag = "4")]
    pub(super) package_name: String,
    #[prost(string, tag = "5")]
    pub(super) package: String,
    /// A function's index; absent for usage that belongs to no function.
    #[prost(uint32, optional, tag = "6")]
    pub(super) function: Option<u32>,
    #[prost(message, required, tag = "7")]
    pub(super) usage: Usage,
    #[prost(uint64, tag = "8")]
    allocation_nano: u64,
    #[prost(uint64, tag = "9")]
    compute_nano: u64,
    #[prost(uint64, tag = "10")]
    polling_nano: u64,
    /// The step that added to it last.
    #[prost(uint64, tag = "11")]
    step: u64,
}

/// Number of the last step, and the leases that it folds; the list is empty when the step is complete.
#[derive(Clone, PartialEq, Message)]
struct FoldStep {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(string, repeated, tag = "2")]
    leases: Vec<String>,
    #[prost(uint64, tag = "3")]
    begun_unix_ms: u64,
    /// Leases that ended before this time may be folded.
    #[prost(uint64, tag = "4")]
    before_unix_ms: u64,
}

/// Progress of folding.
#[derive(Debug, Default)]
pub(super) struct FoldProgress {
    pub(super) folded: u64,
    /// The record that was looked at last, if there may be more to fold behind it.
    pub(super) reached: Option<String>,
}

impl FoldedSum {
    pub(super) fn cost(&self) -> Cost {
        let FoldedSum { allocation_nano, compute_nano, polling_nano, .. } = *self;
        Cost { allocation_nano, compute_nano, polling_nano }
    }

    /// The sum of one share.
    fn of(span: &UsageSpan, day: Option<u64>, share: &FunctionShare) -> FoldedSum {
        let lease = &span.lease;
        FoldedSum {
            day: day.unwrap_or_default(),
            tenant: lease.tenant.clone(),
            pu: lease.pu.clone(),
            package_name: lease.package_name.clone(),
            package: lease.package.clone(),
            function: share.function,
            usage: share.usage,
            allocation_nano: share.cost.allocation_nano,
            compute_nano: share.cost.compute_nano,
            polling_nano: share.cost.polling_nano,
            step: 0,
        }
    }

    /// Returns the key of a sum: the day, if any, and a digest of the fields that its leases have in common.
    fn key(&self, day: Option<u64>) -> String {
        let mut hash = Sha256::new();
        for part in [&self.tenant, &self.pu, &self.package_name, &self.package] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.update(self.function.map_or(u64::MAX, u64::from).to_le_bytes());
        let digest = hex(&hash.finalize()[..DIGEST_BYTES]);
        day.map_or_else(|| format!("{EVER}{digest}"), |day| format!("{DAY}{day:012}/{digest}"))
    }

    fn line(&self) -> BillLine {
        let FoldedSum { allocation_nano, compute_nano, polling_nano, .. } = *self;
        let usage = Some(self.usage);
        BillLine { usage, allocation_nano, compute_nano, polling_nano, ..BillLine::default() }
    }

    fn add(&mut self, other: &FoldedSum) {
        let mut line = self.line();
        price::add(&mut line, &other.line());
        self.usage = line.usage.unwrap_or_default();
        self.allocation_nano = line.allocation_nano;
        self.compute_nano = line.compute_nano;
        self.polling_nano = line.polling_nano;
    }
}

impl FoldStep {
    fn read(store: &dyn Store) -> Result<(FoldStep, u64), Error> {
        let Some(found) = store.get(STEP)? else { return Ok((FoldStep::default(), 0)) };
        Ok((decode("the record of folded leases", &found.value)?, found.version))
    }

    /// Takes the step over if it was left by a manager that died; its version, if it is complete.
    fn settle(store: &mut dyn Store, now_ms: u64) -> Result<Option<(FoldStep, u64)>, Error> {
        let (step, version) = FoldStep::read(store)?;
        if step.leases.is_empty() {
            return Ok(Some((step, version)));
        }
        if now_ms < step.begun_unix_ms.saturating_add(ABANDONED_MS) {
            return Ok(None);
        }
        FoldStep { begun_unix_ms: now_ms, ..step }.make(store, version)?;
        Ok(Some(FoldStep::read(store)?))
    }

    /// Makes the step, unless another manager has changed the record since this version.
    fn make(mut self, store: &mut dyn Store, version: u64) -> Result<(), Error> {
        self.write(store, version)?;
        let (written, version) = FoldStep::read(store)?;
        if written != self {
            return Err(is_folding());
        }
        fold(store, &self)?;
        self.leases.clear();
        self.write(store, version)
    }

    fn write(&self, store: &mut dyn Store, version: u64) -> Result<(), Error> {
        if store.compare_and_swap(STEP, version, &self.encode_to_vec())? { Ok(()) } else { Err(is_folding()) }
    }
}

fn is_folding() -> Error {
    Error::new(Code::TryLater, "another manager is folding old leases of the ledger")
}

/// The version of the record when no step is being made; one that was left by a manager that died is completed first.
pub(super) fn settle(store: &mut dyn Store, now_ms: u64) -> Result<Option<u64>, Error> {
    Ok(FoldStep::settle(store, now_ms)?.map(|(_, version)| version))
}

/// Returns the version of the record; it does not change while nothing is folded.
pub(super) fn version(store: &dyn Store) -> Result<u64, Error> {
    Ok(FoldStep::read(store)?.1)
}

/// Returns the time before which leases that ended may be folded.
pub(crate) fn folded_before(store: &dyn Store) -> Result<u64, Error> {
    Ok(FoldStep::read(store)?.0.before_unix_ms)
}

/// Returns the prefix of the keys of sums, by day or of all time, and the key after which the listing begins.
pub(super) fn sums_of(minutes: Option<(u64, u64)>) -> (&'static str, Option<String>) {
    match minutes {
        Some((from, _)) => (DAY, Some(format!("{DAY}{from:012}"))),
        None => (EVER, None),
    }
}

/// Folds the next leases after `after`, out of those that ended before this time.
///
/// # Errors
/// `try_later` if another manager folds, and errors of the store: the rest of the step is then completed later.
pub(super) fn step(
    store: &mut dyn Store,
    after: Option<&str>,
    before_ms: u64,
    now_ms: u64,
) -> Result<FoldProgress, Error> {
    let (last, version) = FoldStep::settle(store, now_ms)?.ok_or_else(is_folding)?;
    let page = store.scan(keys::LEASE, after, STEP_LEASES)?;
    let mut progress =
        FoldProgress { reached: page.last().map(|found| found.key.clone()), ..FoldProgress::default() };
    let (mut leases, mut minutes, mut behind) = (Vec::new(), 0u64, None);
    for found in &page {
        let record: LeaseRecord = decode("a stored lease", &found.value)?;
        if record.lease.granted_unix_ms >= before_ms {
            // Records sort by the time of the grant.
            progress.reached = None;
            break;
        }
        if is_old(&record, before_ms, now_ms) {
            let life = minutes_in_life(&record);
            minutes = minutes.saturating_add(life.end.saturating_sub(life.start));
            if minutes > STEP_MINUTES && !leases.is_empty() {
                progress.reached = behind;
                break;
            }
            leases.push(record.lease.id);
        }
        behind = Some(found.key.clone());
    }
    progress.folded = leases.len() as u64;
    if !leases.is_empty() {
        let before_unix_ms = last.before_unix_ms.max(before_ms);
        FoldStep { number: last.number + 1, leases, begun_unix_ms: now_ms, before_unix_ms }
            .make(store, version)?;
    }
    Ok(progress)
}

/// Tells whether a lease has ended before this time, and its record was not written since.
fn is_old(record: &LeaseRecord, before_ms: u64, now_ms: u64) -> bool {
    let lease = record.clone().seen_at(now_ms);
    lease.state() == LeaseState::Ended
        && lease.ended_unix_ms < before_ms
        && record.minute.saturating_mul(MINUTE_MS) < before_ms
}

fn fold(store: &mut dyn Store, step: &FoldStep) -> Result<(), Error> {
    let (mut sums, mut minutes, mut records) = (BTreeMap::new(), Batch::default(), Batch::default());
    for id in &step.leases {
        let Some(record) = lease_records::stored(store, id)? else { continue };
        let of_lease = minutes_of(store, &record)?;
        sum_up(&mut sums, record, &of_lease);
        of_lease.into_keys().for_each(|key| minutes.remove(key));
        records.remove(format!("{}{id}", keys::LEASE));
    }
    for (key, sum) in sums {
        put(store, &key, sum, step.number)?;
    }
    store.commit(&minutes)?;
    store.commit(&records)
}

/// Adds a lease's usage to sums of days and of all time.
fn sum_up(sums: &mut BTreeMap<String, FoldedSum>, record: LeaseRecord, minutes: &BTreeMap<String, Minute>) {
    let mut add = |span: &UsageSpan, is_of_day: bool| {
        for part in span.parts() {
            let day = is_of_day.then_some(part.period);
            for share in span.shares(&part) {
                let sum = FoldedSum::of(span, day, &share);
                let key = sum.key(day);
                let known = sums.entry(key).or_insert_with(|| zero(&sum));
                known.add(&sum);
            }
        }
    };
    let base = minutes.values().next().map(|first| first.base).unwrap_or_default();
    let mut days = UsageSpan::from(record.clone(), base, Some(day_of(record.minute)));
    for (key, minute) in minutes {
        if let Some((number, _)) = parse_minute_key(key) {
            days.add(day_of(number), minute);
        }
    }
    add(&days, true);
    add(&UsageSpan::whole(record), false);
}

/// Returns an empty sum with the key fields of this one.
fn zero(sum: &FoldedSum) -> FoldedSum {
    let usage = Usage::default();
    FoldedSum { usage, allocation_nano: 0, compute_nano: 0, polling_nano: 0, ..sum.clone() }
}

/// Adds to a sum, unless this step or a later one has done so.
fn put(store: &mut dyn Store, key: &str, sum: FoldedSum, step: u64) -> Result<(), Error> {
    for _ in 0..SWAP_ATTEMPTS {
        let found = store.get(key)?;
        let version = found.as_ref().map_or(0, |found| found.version);
        let known =
            found.map(|found| decode::<FoldedSum>("a sum of folded leases", &found.value)).transpose()?;
        let mut known = known.unwrap_or_else(|| zero(&sum));
        if known.step >= step {
            return Ok(());
        }
        known.add(&sum);
        known.step = step;
        if store.compare_and_swap(key, version, &known.encode_to_vec())? {
            return Ok(());
        }
    }
    Err(is_folding())
}

#[cfg(test)]
mod tests;
