//! Bills: what leases have cost, by lease, tenant, function, period or kind of processing unit, exact to the last
//! nano-unit.
//!
//! What a lease has cost is a function of its cumulative usage, rounded down once for each term. What it cost between
//! two points of time is the difference of two such costs. So the lines of any grouping are differences and sums of
//! integers, and add up to the same total, whichever way they are cut; a lease's cost for computing is shared out to
//! functions in proportion to their time, by prefix sums, so that nothing is lost or gained by rounding.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use sublet_proto::price::{self, Cost};
use sublet_proto::v1::{BillBy, BillLine, BillReply, BillRequest, FunctionUsage, Lease, PackageInfo, Usage};
use sublet_proto::{Code, Error, decode};
use tokio::sync::Semaphore;

use crate::database::Database;
use crate::ledger::{self, MINUTE_MS, Minute, Record, larger, minute_prefix, parse_minute_key};
use crate::packages;
use crate::reply::within_reply;
use crate::store::{PAGE_RECORDS, Store, keys};

/// Bills that are made at the same time; further ones wait.
const MAX_BILLS: usize = 2;
/// Most minutes of leases that are read for one bill.
pub const MAX_MINUTES: usize = 4_000_000;
/// Most lines of one bill, and most leases in a bill of a part of time.
pub const MAX_LINES: usize = 262_144;
const HOUR_MS: u64 = 60 * MINUTE_MS;

/// Makes bills from the ledger.
pub(crate) struct Bills {
    database: Database,
    turns: Semaphore,
}

/// What a bill is to hold.
#[derive(Clone, Debug)]
struct Scope {
    lease: Option<String>,
    tenant: Option<String>,
    /// In minutes since 1970; the second is not part of it.
    minutes: Option<(u64, u64)>,
    by: BillBy,
    period_minutes: u64,
}

impl Scope {
    /// With `tenant` in place of what was asked if the caller may see no other.
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

    /// Where a minute is counted: the beginning of its period, or nowhere in particular.
    fn period(&self, minute: u64) -> u64 {
        if self.by == BillBy::Period { minute / self.period_minutes * self.period_minutes } else { 0 }
    }
}

/// A lease's usage in the scope.
struct Span {
    lease: Lease,
    base: Usage,
    /// Cumulative, at the end of each period in which it grew.
    ends: BTreeMap<u64, Usage>,
    /// Within the scope.
    functions: BTreeMap<u32, FunctionUsage>,
}

impl Span {
    /// All that a lease ever used.
    fn whole(record: Record) -> Span {
        let functions = record.lease.function_usage.iter().map(|usage| (usage.function, *usage)).collect();
        let ends = BTreeMap::from([(0, record.lease.usage.unwrap_or_default())]);
        Span { lease: record.lease, base: Usage::default(), ends, functions }
    }

    /// What a lease used in the scope, which begins for it with this minute.
    fn from(scope: &Scope, record: Record, first: &Minute) -> Span {
        let mut ends = BTreeMap::new();
        if scope.has_minute(record.minute) {
            ends.insert(scope.period(record.minute), record.lease.usage.unwrap_or_default());
        }
        Span { lease: record.lease, base: first.base, ends, functions: BTreeMap::new() }
    }

    fn add(&mut self, period: u64, minute: &Minute) {
        let end = self.ends.entry(period).or_default();
        *end = larger(*end, minute.end);
        for grown in &minute.functions {
            let usage = self
                .functions
                .entry(grown.function)
                .or_insert(FunctionUsage { function: grown.function, ..FunctionUsage::default() });
            usage.executing_ns = usage.executing_ns.saturating_add(grown.executing_ns);
            usage.calls = usage.calls.saturating_add(grown.calls);
            usage.failed_calls = usage.failed_calls.saturating_add(grown.failed_calls);
        }
    }

    /// What was used in each period, and what that cost.
    fn parts(&self) -> Vec<(u64, Usage, Cost)> {
        let price = self.lease.price.unwrap_or_default();
        let mut before = self.base;
        let parts = self.ends.iter().map(|(&period, &end)| {
            let end = larger(before, end);
            let cost = |usage| price::cost(&price, usage, self.lease.memory_bytes);
            let part = (period, usage_between(&before, &end), cost_between(cost(&before), cost(&end)));
            before = end;
            part
        });
        parts.collect()
    }
}

fn usage_between(before: &Usage, after: &Usage) -> Usage {
    Usage {
        allocated_ns: after.allocated_ns.saturating_sub(before.allocated_ns),
        executing_ns: after.executing_ns.saturating_sub(before.executing_ns),
        polling_ns: after.polling_ns.saturating_sub(before.polling_ns),
        calls: after.calls.saturating_sub(before.calls),
        failed_calls: after.failed_calls.saturating_sub(before.failed_calls),
        memory_byte_us: after.memory_byte_us.saturating_sub(before.memory_byte_us),
        // Of the lease until then: a peak is no sum.
        memory_peak_bytes: after.memory_peak_bytes,
    }
}

fn cost_between(before: Cost, after: Cost) -> Cost {
    Cost {
        allocation_nano: after.allocation_nano.saturating_sub(before.allocation_nano),
        compute_nano: after.compute_nano.saturating_sub(before.compute_nano),
        polling_nano: after.polling_nano.saturating_sub(before.polling_nano),
    }
}

/// Reads what leases used in the scope, page by page.
struct Reader {
    scope: Scope,
    /// Nothing for leases that are not in the scope.
    spans: HashMap<String, Option<Span>>,
    after: String,
    end: u64,
    read: usize,
}

impl Reader {
    fn new(scope: Scope, (from, end): (u64, u64)) -> Reader {
        Reader { scope, spans: HashMap::new(), after: minute_prefix(from), end, read: 0 }
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
            let record = ledger::stored(store, id)?.filter(|record| self.scope.has(&record.lease));
            let span = record.map(|record| Span::from(&self.scope, record, usage));
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
    pub(crate) fn new(database: Database) -> Bills {
        Bills { database, turns: Semaphore::new(MAX_BILLS) }
    }

    /// The bill that is asked for; of one tenant only if `tenant` says so.
    pub(crate) async fn make(&self, asked: BillRequest, tenant: Option<String>) -> Result<BillReply, Error> {
        let scope = Scope::of(asked, tenant)?;
        let _turn =
            self.turns.acquire().await.map_err(|_| Error::new(Code::Internal, "the manager stops"))?;
        let mut lines = Lines::new(scope.by);
        match (scope.minutes, &scope.lease) {
            (Some(minutes), _) => {
                let spans = self.timed(Reader::new(scope, minutes)).await?;
                spans.iter().try_for_each(|span| lines.add(span))?;
            }
            (None, Some(lease)) => lines.add(&self.one(&scope, lease.clone()).await?)?,
            (None, None) => self.all(&scope, &mut lines).await?,
        }
        if lines.by == BillBy::Function {
            lines = self.name_functions(lines).await?;
        }
        Ok(lines.finish())
    }

    async fn one(&self, scope: &Scope, id: String) -> Result<Span, Error> {
        let wanted = id.clone();
        let record = self.database.with(move |store| ledger::stored(store, &wanted)).await?;
        let record = record.filter(|record| scope.has(&record.lease));
        record
            .map(Span::whole)
            .ok_or_else(|| Error::new(Code::UnknownLease, format!("the ledger has no lease {id:?}")))
    }

    /// Every lease, page by page.
    async fn all(&self, scope: &Scope, lines: &mut Lines) -> Result<(), Error> {
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
                let record: Record = decode("a stored lease", &found.value)?;
                if scope.has(&record.lease) {
                    lines.add(&Span::whole(record))?;
                }
            }
        }
    }

    async fn timed(&self, mut reader: Reader) -> Result<Vec<Span>, Error> {
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
    async fn name_functions(&self, lines: Lines) -> Result<Lines, Error> {
        self.database
            .with(move |store| {
                let mut named = Lines::new(lines.by);
                let mut infos: HashMap<String, Option<PackageInfo>> = HashMap::new();
                for (key, line) in lines.of {
                    let Key::Function(package, digest, function) = key else { continue };
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
                    let key = Key::Named(package.clone(), function.clone());
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

/// What a line stands for. Lines are sorted by it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// The latest first.
    Lease(Reverse<String>),
    Tenant(String),
    /// A package's name and digest, and a function's index, if it is one.
    Function(String, String, Option<u32>),
    /// A package's name and a function's.
    Named(String, String),
    /// In minutes.
    Period(u64),
    Pu(String),
}

/// The lines of a bill.
struct Lines {
    by: BillBy,
    of: BTreeMap<Key, BillLine>,
}

impl Lines {
    fn new(by: BillBy) -> Lines {
        Lines { by, of: BTreeMap::new() }
    }

    fn add(&mut self, span: &Span) -> Result<(), Error> {
        let lease = &span.lease;
        for (period, usage, cost) in span.parts() {
            match self.by {
                BillBy::Lease => {
                    self.sum(Key::Lease(Reverse(lease.id.clone())), || lease_line(lease), usage, cost)?;
                }
                BillBy::Tenant => {
                    let line = || BillLine { tenant: lease.tenant.clone(), ..BillLine::default() };
                    self.sum(Key::Tenant(lease.tenant.clone()), line, usage, cost)?;
                }
                BillBy::Period => {
                    let line = || BillLine { from_unix_ms: period * MINUTE_MS, ..BillLine::default() };
                    self.sum(Key::Period(period), line, usage, cost)?;
                }
                BillBy::Pu => {
                    let line = || BillLine { pu: lease.pu.clone(), ..BillLine::default() };
                    self.sum(Key::Pu(lease.pu.clone()), line, usage, cost)?;
                }
                BillBy::Function => self.add_functions(span, usage, cost)?,
            }
        }
        Ok(())
    }

    /// Shares the cost of computing out to functions, by prefix sums of their time; what is left, with allocation and
    /// polling, is nobody's.
    fn add_functions(&mut self, span: &Span, usage: Usage, cost: Cost) -> Result<(), Error> {
        let lease = &span.lease;
        let line = || BillLine { package_name: lease.package_name.clone(), ..BillLine::default() };
        let key = |function| Key::Function(lease.package_name.clone(), lease.package.clone(), function);
        let (mut before_ns, mut shared_nano) = (0, 0);
        let mut rest = usage;
        for function in span.functions.values() {
            let end_ns = usage.executing_ns.min(function.executing_ns.saturating_add(before_ns));
            let until_nano = share(cost.compute_nano, end_ns, usage.executing_ns);
            let used = Usage {
                executing_ns: end_ns - before_ns,
                calls: function.calls.min(rest.calls),
                failed_calls: function.failed_calls.min(rest.failed_calls),
                ..Usage::default()
            };
            let its = Cost { compute_nano: until_nano - shared_nano, ..Cost::default() };
            self.sum(key(Some(function.function)), line, used, its)?;
            rest = usage_between(&used, &rest);
            (before_ns, shared_nano) = (end_ns, until_nano);
        }
        self.sum(key(None), line, rest, Cost { compute_nano: cost.compute_nano - shared_nano, ..cost })
    }

    /// Adds to the line of this key, which begins as it is made.
    fn sum(
        &mut self,
        key: Key,
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

    /// The total is of all lines, however many fit.
    fn finish(self) -> BillReply {
        let mut total = BillLine { usage: Some(Usage::default()), ..BillLine::default() };
        self.of.values().for_each(|line| price::add(&mut total, line));
        BillReply { lines: within_reply(self.of.into_values()), total: Some(total) }
    }
}

/// The part of a whole, rounded down.
fn share(whole: u64, part: u64, of: u64) -> u64 {
    let share = u128::from(whole) * u128::from(part) / u128::from(of.max(1));
    u64::try_from(share).unwrap_or(whole)
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
