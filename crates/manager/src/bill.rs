//! Bills: what leases have cost, by lease, tenant, function, period or kind of processing unit, exact to the last
//! nano-unit.
//!
//! A lease's cost is a function of its cumulative usage, rounded down once for each term. Its cost between two points
//! of time is the difference of two such costs. The lines of any grouping are therefore differences and sums of
//! integers, and add up to the same total, whichever way they are cut. A lease's cost for computing is shared out to
//! functions in proportion to their time, by prefix sums, so that nothing is lost or gained by rounding. A bill of a
//! part of time shares it out day by day: a function's cost over several days is the sum of its costs in each.
//!
//! Old leases are [folded](fold) into sums by day, and into sums of all time. A sum of a day counts at the day's
//! beginning.

pub(crate) mod fold;
mod span;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::time::Duration;

use sublet_proto::price::{self, Cost};
use sublet_proto::v1::{BillBy, BillLine, BillReply, BillRequest, Lease, LeaseState, PackageInfo, Usage};
use sublet_proto::{Code, Error, decode};
use tokio::sync::Semaphore;

use self::fold::FoldedSum;
use self::span::{FunctionShare, PeriodUsage, UsageSpan, day_of};
use crate::clock::Clock;
use crate::database::Database;
use crate::lease_records::{self, LeaseRecord, MINUTE_MS, Minute, minute_prefix, parse_minute_key};
use crate::packages;
use crate::reply::within_reply;
use crate::store::{self, PAGE_RECORDS, Store, keys};

/// Bills that are made at the same time; further ones wait.
const MAX_BILLS: u32 = 2;
/// Most minutes of leases that are read for one bill.
pub const MAX_MINUTES: usize = 4_000_000;
/// Most lines of one bill, and most leases in a bill of a part of time.
pub const MAX_LINES: usize = 262_144;
const HOUR_MS: u64 = 60 * MINUTE_MS;
/// Most times that a bill is begun anew because another manager folds leases meanwhile, and the pause before it.
const ATTEMPTS: u32 = 50;
const RETRY: Duration = Duration::from_millis(100);

/// Makes bills from the ledger.
pub(crate) struct Bills {
    database: Database,
    clock: Clock,
    turns: Semaphore,
}

/// Selection and grouping of a bill.
#[derive(Clone, Debug)]
struct Scope {
    lease: Option<String>,
    tenant: Option<String>,
    /// In minutes since 1970; the second is exclusive.
    minutes: Option<(u64, u64)>,
    by: BillBy,
    period_minutes: u64,
}

impl Scope {
    /// Takes `tenant` in place of the requested one if the caller may see no other tenant.
    fn of(asked: BillRequest, tenant: Option<String>) -> Result<Scope, Error> {
        let by = asked.by();
        let some = |text: String| (!text.is_empty()).then_some(text);
        let is_timed = asked.from_unix_ms != 0 || asked.to_unix_ms != 0 || by == BillBy::Period;
        let to = if asked.to_unix_ms == 0 { u64::MAX } else { asked.to_unix_ms.div_ceil(MINUTE_MS) };
        let period_ms = if asked.period_ms == 0 { HOUR_MS } else { asked.period_ms };
        if !period_ms.is_multiple_of(MINUTE_MS) {
            let message = format!("a period of {period_ms} ms asked, it has to be whole minutes");
            return Err(Error::new(Code::InvalidArgument, message));
        }
        Ok(Scope {
            lease: some(asked.lease),
            tenant: tenant.or(some(asked.tenant)),
            minutes: is_timed.then_some((asked.from_unix_ms / MINUTE_MS, to)),
            by,
            period_minutes: period_ms / MINUTE_MS,
        })
    }

    fn has(&self, lease: &Lease) -> bool {
        self.tenant.as_ref().is_none_or(|tenant| *tenant == lease.tenant)
            && self.lease.as_ref().is_none_or(|id| *id == lease.id)
    }

    fn has_minute(&self, minute: u64) -> bool {
        self.minutes.is_none_or(|(from, to)| (from..to).contains(&minute))
    }

    /// Returns the beginning of the period, or of the day, in which a minute is counted; 0 if the bill has neither.
    fn period(&self, minute: u64) -> u64 {
        match self.by {
            BillBy::Period => minute / self.period_minutes * self.period_minutes,
            BillBy::Function => day_of(minute),
            _ => 0,
        }
    }
}

/// Reads the usage of leases in the scope, page by page.
struct UsageReader {
    scope: Scope,
    /// Spans of leases; `None` for leases that are not in the scope.
    spans: HashMap<String, Option<UsageSpan>>,
    after: String,
    end: u64,
    read: usize,
}

impl UsageReader {
    fn new(scope: Scope, (from, end): (u64, u64)) -> UsageReader {
        UsageReader { scope, spans: HashMap::new(), after: minute_prefix(from), end, read: 0 }
    }

    /// Whether there may be more.
    fn read_page(&mut self, store: &dyn Store) -> Result<bool, Error> {
        let page = store.scan(keys::USAGE, Some(&self.after), PAGE_RECORDS)?;
        for found in &page {
            let Some((minute, id)) = parse_minute_key(&found.key) else { continue };
            if minute >= self.end {
                return Ok(false);
            }
            self.add(store, minute, id, &decode("a stored minute", &found.value)?)?;
        }
        self.read += page.len();
        if self.read > MAX_MINUTES || self.spans.len() > MAX_LINES {
            return Err(too_large());
        }
        let Some(last) = page.last() else { return Ok(false) };
        self.after.clone_from(&last.key);
        Ok(true)
    }

    fn add(&mut self, store: &dyn Store, minute: u64, id: &str, usage: &Minute) -> Result<(), Error> {
        if !self.spans.contains_key(id) {
            let record = lease_records::stored(store, id)?.filter(|record| self.scope.has(&record.lease));
            let span = record.map(|record| {
                let last = self.scope.has_minute(record.minute).then(|| self.scope.period(record.minute));
                UsageSpan::from(record, usage.base, last)
            });
            self.spans.insert(id.to_owned(), span);
        }
        if let Some(Some(span)) = self.spans.get_mut(id) {
            span.add(self.scope.period(minute), usage);
        }
        Ok(())
    }
}

fn too_large() -> Error {
    let message = format!(
        "the bill would be made of more than {MAX_MINUTES} minutes or {MAX_LINES} lines: ask for less time, or for one \
         tenant"
    );
    Error::new(Code::InvalidArgument, message)
}

impl Bills {
    pub(crate) fn new(database: Database, clock: Clock) -> Bills {
        Bills { database, clock, turns: Semaphore::new(MAX_BILLS as usize) }
    }

    /// Makes the requested bill; only of one tenant if `tenant` is set.
    pub(crate) async fn make(&self, asked: BillRequest, tenant: Option<String>) -> Result<BillReply, Error> {
        let scope = Scope::of(asked, tenant)?;
        let _turn =
            self.turns.acquire().await.map_err(|_| Error::new(Code::Internal, "the manager stops"))?;
        for _ in 0..ATTEMPTS {
            let now_ms = self.clock.now_ms();
            let folded = self.database.with(move |store| fold::settle(store, now_ms)).await?;
            if let Some(version) = folded {
                let reply = self.read(&scope).await?;
                if self.database.with(|store| fold::version(store)).await? == version {
                    return Ok(reply);
                }
            }
            tokio::time::sleep(RETRY).await;
        }
        Err(Error::new(Code::TryLater, "another manager is folding old leases of the ledger"))
    }

    /// Folds leases that ended before this time, and returns their number.
    ///
    /// # Errors
    /// `try_later` if another manager folds, and errors of the store.
    pub(crate) async fn fold(&self, before_ms: u64) -> Result<u64, Error> {
        let (mut folded, mut after) = (0, None::<String>);
        loop {
            let _turns = self.all_turns().await?;
            let (behind, now_ms) = (after.take(), self.clock.now_ms());
            let step = move |store: &mut dyn Store| fold::step(store, behind.as_deref(), before_ms, now_ms);
            let step = self.database.with(step).await?;
            folded += step.folded;
            if step.reached.is_none() {
                return Ok(folded);
            }
            after = step.reached;
        }
    }

    /// Bills are made before or after this.
    async fn all_turns(&self) -> Result<tokio::sync::SemaphorePermit<'_>, Error> {
        self.turns.acquire_many(MAX_BILLS).await.map_err(|_| Error::new(Code::Internal, "the manager stops"))
    }

    async fn read(&self, scope: &Scope) -> Result<BillReply, Error> {
        let mut lines = BillLines::new(scope.by);
        match (scope.minutes, &scope.lease) {
            (Some(minutes), _) => {
                let spans = self.timed(UsageReader::new(scope.clone(), minutes)).await?;
                spans.iter().try_for_each(|span| lines.add(span))?;
            }
            (None, Some(lease)) => lines.add(&self.one(scope, lease.clone()).await?)?,
            (None, None) => self.all(scope, &mut lines).await?,
        }
        if scope.lease.is_none() {
            self.folded(scope, &mut lines).await?;
        }
        if lines.by == BillBy::Function {
            lines = self.name_functions(lines).await?;
        }
        Ok(lines.finish())
    }

    /// Adds the usage of folded leases to the lines.
    async fn folded(&self, scope: &Scope, lines: &mut BillLines) -> Result<(), Error> {
        let (prefix, after) = fold::sums_of(scope.minutes);
        let see = |page: &[store::StoreRecord]| {
            for found in page {
                let sum: FoldedSum = decode("a sum of folded leases", &found.value)?;
                if scope.minutes.is_some_and(|(_, end)| sum.day >= end) {
                    return Ok(ControlFlow::Break(()));
                }
                if scope.tenant.as_ref().is_none_or(|tenant| *tenant == sum.tenant) {
                    lines.add_sum(scope.period(sum.day), &sum)?;
                }
            }
            Ok(ControlFlow::Continue(()))
        };
        self.database.each_page(prefix, after, see).await
    }

    async fn one(&self, scope: &Scope, id: String) -> Result<UsageSpan, Error> {
        let wanted = id.clone();
        let record = self.database.with(move |store| lease_records::stored(store, &wanted)).await?;
        let record = record.filter(|record| scope.has(&record.lease));
        record
            .map(UsageSpan::whole)
            .ok_or_else(|| Error::new(Code::UnknownLease, format!("the ledger has no lease {id:?}")))
    }

    /// Every lease, page by page.
    async fn all(&self, scope: &Scope, lines: &mut BillLines) -> Result<(), Error> {
        let mut before: Option<String> = None;
        loop {
            let from = before.take();
            let page = self
                .database
                .with(move |store| store.scan_back(keys::LEASE, from.as_deref(), PAGE_RECORDS))
                .await?;
            let Some(last) = page.last() else { return Ok(()) };
            before = Some(last.key.clone());
            for found in &page {
                let record: LeaseRecord = decode("a stored lease", &found.value)?;
                if scope.has(&record.lease) {
                    lines.add(&UsageSpan::whole(record))?;
                }
            }
        }
    }

    async fn timed(&self, mut reader: UsageReader) -> Result<Vec<UsageSpan>, Error> {
        loop {
            let read = self.database.with(move |store| {
                let goes_on = reader.read_page(store)?;
                Ok((reader, goes_on))
            });
            let goes_on;
            (reader, goes_on) = read.await?;
            if !goes_on {
                return Ok(reader.spans.into_values().flatten().collect());
            }
        }
    }

    /// Puts the names of functions in place of their packages' digests and their indices.
    async fn name_functions(&self, lines: BillLines) -> Result<BillLines, Error> {
        self.database
            .with(move |store| {
                let mut named = BillLines::new(lines.by);
                let mut infos: HashMap<String, Option<PackageInfo>> = HashMap::new();
                for (key, line) in lines.of {
                    let BillKey::Function(package, digest, function) = key else { continue };
                    if !infos.contains_key(&digest) {
                        infos.insert(digest.clone(), packages::known(store, &digest)?);
                    }
                    let known = infos.get(&digest).and_then(Option::as_ref);
                    let function = function.map(|function| {
                        let name = known.and_then(|info| info.functions.get(function as usize));
                        let name = name.map_or_else(|| format!("#{function}"), |known| known.name.clone());
                        format!("{package}/{name}")
                    });
                    let function = function.unwrap_or_default();
                    let key = BillKey::Named(package.clone(), function.clone());
                    let new = || BillLine { package_name: package, function, ..BillLine::default() };
                    named.sum(key, new, line.usage.unwrap_or_default(), cost_of(&line))?;
                }
                Ok(named)
            })
            .await
    }
}

fn cost_of(line: &BillLine) -> Cost {
    let BillLine { allocation_nano, compute_nano, polling_nano, .. } = *line;
    Cost { allocation_nano, compute_nano, polling_nano }
}

/// Key of a line of a bill. Lines are sorted by it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum BillKey {
    /// The latest first.
    Lease(Reverse<String>),
    /// All leases of a tenant that are folded.
    Folded(String),
    Tenant(String),
    /// A package's name and digest, and a function's index, if it is one.
    Function(String, String, Option<u32>),
    /// A package's name and a function's.
    Named(String, String),
    /// Beginning of the period, in minutes.
    Period(u64),
    Pu(String),
}

/// The lines of a bill.
struct BillLines {
    by: BillBy,
    of: BTreeMap<BillKey, BillLine>,
}

impl BillLines {
    fn new(by: BillBy) -> BillLines {
        BillLines { by, of: BTreeMap::new() }
    }

    fn add(&mut self, span: &UsageSpan) -> Result<(), Error> {
        let lease = &span.lease;
        for part in span.parts() {
            let PeriodUsage { period, usage, cost } = part;
            match self.by {
                BillBy::Lease => {
                    self.sum(BillKey::Lease(Reverse(lease.id.clone())), || lease_line(lease), usage, cost)?;
                }
                BillBy::Tenant => self.sum_tenant(&lease.tenant, usage, cost)?,
                BillBy::Period => self.sum_period(period, usage, cost)?,
                BillBy::Pu => self.sum_pu(&lease.pu, usage, cost)?,
                BillBy::Function => self.add_functions(span, &part)?,
            }
        }
        Ok(())
    }

    /// Adds the usage of folded leases, as [`BillLines::add`] does for a lease.
    fn add_sum(&mut self, period: u64, sum: &FoldedSum) -> Result<(), Error> {
        let (usage, cost) = (sum.usage, sum.cost());
        match self.by {
            BillBy::Lease => {
                let line = || BillLine {
                    tenant: sum.tenant.clone(),
                    state: LeaseState::Ended.into(),
                    ..BillLine::default()
                };
                self.sum(BillKey::Folded(sum.tenant.clone()), line, usage, cost)
            }
            BillBy::Tenant => self.sum_tenant(&sum.tenant, usage, cost),
            BillBy::Period => self.sum_period(period, usage, cost),
            BillBy::Pu => self.sum_pu(&sum.pu, usage, cost),
            BillBy::Function => {
                self.sum_function((&sum.package_name, &sum.package, sum.function), usage, cost)
            }
        }
    }

    fn sum_tenant(&mut self, tenant: &str, usage: Usage, cost: Cost) -> Result<(), Error> {
        let line = || BillLine { tenant: tenant.to_owned(), ..BillLine::default() };
        self.sum(BillKey::Tenant(tenant.to_owned()), line, usage, cost)
    }

    fn sum_period(&mut self, period: u64, usage: Usage, cost: Cost) -> Result<(), Error> {
        let line = || BillLine { from_unix_ms: period * MINUTE_MS, ..BillLine::default() };
        self.sum(BillKey::Period(period), line, usage, cost)
    }

    fn sum_pu(&mut self, pu: &str, usage: Usage, cost: Cost) -> Result<(), Error> {
        let line = || BillLine { pu: pu.to_owned(), ..BillLine::default() };
        self.sum(BillKey::Pu(pu.to_owned()), line, usage, cost)
    }

    fn sum_function(
        &mut self,
        (package_name, digest, function): (&str, &str, Option<u32>),
        usage: Usage,
        cost: Cost,
    ) -> Result<(), Error> {
        let key = BillKey::Function(package_name.to_owned(), digest.to_owned(), function);
        let line = || BillLine { package_name: package_name.to_owned(), ..BillLine::default() };
        self.sum(key, line, usage, cost)
    }

    /// Adds each function's usage, and the rest, which belongs to no function.
    fn add_functions(&mut self, span: &UsageSpan, part: &PeriodUsage) -> Result<(), Error> {
        let lease = &span.lease;
        for FunctionShare { function, usage, cost } in span.shares(part) {
            self.sum_function((&lease.package_name, &lease.package, function), usage, cost)?;
        }
        Ok(())
    }

    /// Adds to the line of this key, which begins as it is made.
    fn sum(
        &mut self,
        key: BillKey,
        line: impl FnOnce() -> BillLine,
        usage: Usage,
        cost: Cost,
    ) -> Result<(), Error> {
        if self.of.len() >= MAX_LINES && !self.of.contains_key(&key) {
            return Err(too_large());
        }
        let line = self.of.entry(key).or_insert_with(line);
        let more = BillLine {
            usage: Some(usage),
            allocation_nano: cost.allocation_nano,
            compute_nano: cost.compute_nano,
            polling_nano: cost.polling_nano,
            total_nano: cost.total_nano(),
            ..BillLine::default()
        };
        price::add(line, &more);
        Ok(())
    }

    /// Returns the lines that fit into a reply, and the total of all lines.
    fn finish(self) -> BillReply {
        let mut total = BillLine { usage: Some(Usage::default()), ..BillLine::default() };
        self.of.values().for_each(|line| price::add(&mut total, line));
        let count = self.of.len();
        let lines = within_reply(self.of.into_values());
        let left_out = (count - lines.len()) as u64;
        BillReply { lines, total: Some(total), left_out }
    }
}

fn lease_line(lease: &Lease) -> BillLine {
    BillLine {
        lease: lease.id.clone(),
        tenant: lease.tenant.clone(),
        package_name: lease.package_name.clone(),
        cores: lease.cores,
        memory_bytes: lease.memory_bytes,
        granted_unix_ms: lease.granted_unix_ms,
        state: lease.state,
        pu: lease.pu.clone(),
        ..BillLine::default()
    }
}

#[cfg(test)]
mod tests;
