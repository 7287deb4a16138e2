//! Limits how much of the store each tenant may keep, and how many leases a day it may add to the ledger.
//!
//! A tenant's use is measured in the store, and from then on counted as it grows. The count is too high if data was
//! replaced or removed, and too low only by what other managers have admitted since. So before a request is refused the
//! tenant is measured again, at most once a second, and once a minute in any case.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use sublet_fabric::sync::lock;
use sublet_proto::v1::{Quota, StoreUse};
use sublet_proto::{Code, Error};

use crate::clock::DAY_MS;
use crate::database::Database;
use crate::packages::{self, Asker};
use crate::store::{RECORD_BYTES, Store, keys};
use crate::{graphs, runs};

/// Defaults for tenants without a limit of their own, operators excepted.
pub const DEFAULT_STORE_BYTES: u64 = 4 << 30;
/// Versions of packages, and names.
pub const DEFAULT_PACKAGES: u32 = 1_000;
/// Versions of graphs, and names.
pub const DEFAULT_GRAPHS: u32 = 1_000;
/// Runs, ended ones included.
pub const DEFAULT_RUNS: u32 = 10_000;
/// Leases per day: of each the ledger has some 1.3 KB.
pub const DEFAULT_LEASES_PER_DAY: u32 = 500_000;

/// Age at which a measurement is taken anew.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Least age of a measurement before it is repeated because a request exceeds a limit.
const MIN_AGE: Duration = Duration::from_secs(1);
/// Part of a day's leases that may be granted at once.
const BURST_PARTS: u32 = 4;

/// Tenants' use of the store, and its limits.
pub(crate) struct Quotas {
    database: Database,
    known: Mutex<QuotaTable>,
}

#[derive(Default)]
struct QuotaTable {
    quotas: HashMap<String, Quota>,
    accounts: HashMap<String, Account>,
}

/// A tenant's use of the store and of its day's leases.
#[derive(Debug, Default)]
struct Account {
    measured: Option<MeasuredUse>,
    leases: LeaseRate,
}

#[derive(Clone, Copy, Debug)]
struct MeasuredUse {
    used: StoreUse,
    at: Instant,
    /// Whether data of the tenant was removed since.
    is_stale: bool,
}

/// Limits of one tenant. The highest number means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    store: StoreUse,
    leases_per_day: u32,
}

const UNLIMITED: Limits = Limits {
    store: StoreUse { bytes: u64::MAX, packages: u32::MAX, graphs: u32::MAX, runs: u32::MAX },
    leases_per_day: u32::MAX,
};
const DEFAULTS: Limits = Limits {
    store: StoreUse {
        bytes: DEFAULT_STORE_BYTES,
        packages: DEFAULT_PACKAGES,
        graphs: DEFAULT_GRAPHS,
        runs: DEFAULT_RUNS,
    },
    leases_per_day: DEFAULT_LEASES_PER_DAY,
};

impl Limits {
    fn of(quota: Option<&Quota>, is_operator: bool) -> Limits {
        let default = if is_operator { UNLIMITED } else { DEFAULTS };
        let Some(quota) = quota else { return default };
        Limits {
            store: StoreUse {
                bytes: quota.store_bytes.unwrap_or(default.store.bytes),
                packages: quota.packages.unwrap_or(default.store.packages),
                graphs: quota.graphs.unwrap_or(default.store.graphs),
                runs: quota.runs.unwrap_or(default.store.runs),
            },
            leases_per_day: quota.leases_per_day.unwrap_or(default.leases_per_day),
        }
    }
}

/// Result of a request for more.
enum QuotaDecision {
    Admitted,
    Refused(Error),
    /// The tenant has to be measured first.
    Unmeasured,
}

impl Quotas {
    pub(crate) fn new(database: Database) -> Quotas {
        Quotas { database, known: Mutex::default() }
    }

    /// Takes over the quotas that operators have set.
    pub(crate) fn set(&self, quotas: HashMap<String, Quota>) {
        self.known().quotas = quotas;
    }

    /// Whether components of a tenant's graphs swap, unless a document says otherwise.
    pub(crate) fn lets_swap(&self, tenant: &str) -> bool {
        self.known().quotas.get(tenant).is_some_and(|quota| quota.swap == Some(true))
    }

    /// Counts what a caller is about to store.
    ///
    /// # Errors
    /// `quota_exceeded` if its tenant would exceed its quota.
    pub(crate) async fn admit(&self, caller: Asker<'_>, more: StoreUse) -> Result<(), Error> {
        let refusal = self.decide(caller.tenant, |known| known.admit(caller, more, Instant::now())).await?;
        refusal.map_or(Ok(()), Err)
    }

    /// Whether one run more would be more runs than the caller's tenant may have.
    pub(crate) async fn is_full_of_runs(&self, caller: Asker<'_>) -> Result<bool, Error> {
        let one = StoreUse { runs: 1, ..StoreUse::default() };
        let check = |known: &mut QuotaTable| {
            let limits = known.limits(caller);
            let store = StoreUse { runs: limits.store.runs, ..UNLIMITED.store };
            known.check(caller.tenant, Limits { store, ..limits }, one, Instant::now())
        };
        Ok(self.decide(caller.tenant, check).await?.is_some())
    }

    /// Decides about a tenant, which is measured as often as the decision needs it. Returns the refusal, if it is one.
    async fn decide(
        &self,
        tenant: &str,
        decide: impl Fn(&mut QuotaTable) -> QuotaDecision,
    ) -> Result<Option<Error>, Error> {
        loop {
            let admission = decide(&mut self.known());
            match admission {
                QuotaDecision::Admitted => return Ok(None),
                QuotaDecision::Refused(error) => return Ok(Some(error)),
                QuotaDecision::Unmeasured => self.measure(tenant).await.map(drop)?,
            }
        }
    }

    /// Notes that data of a tenant was removed, so that it is measured before a request of it is refused.
    pub(crate) fn removed(&self, tenant: &str) {
        if let Some(measured) = self.known().account(tenant).measured.as_mut() {
            measured.is_stale = true;
        }
    }

    /// Returns a tenant's use of the store.
    pub(crate) async fn used(&self, tenant: &str) -> Result<StoreUse, Error> {
        let measured = self.known().account(tenant).measured;
        match measured.filter(|measured| !measured.is_stale && measured.at.elapsed() < MAX_AGE) {
            Some(measured) => Ok(measured.used),
            None => self.measure(tenant).await,
        }
    }

    /// Refuses leases to a caller whose tenant has used up those of its day.
    pub(crate) fn check_leases(&self, caller: Asker<'_>, now_ms: u64) -> Result<(), Error> {
        let mut known = self.known();
        let most = known.limits(caller).leases_per_day;
        if most == u32::MAX {
            return Ok(());
        }
        known.account(caller.tenant).leases.check(caller.tenant, most, now_ms)
    }

    /// Counts leases that were granted to a caller.
    pub(crate) fn add_leases(&self, caller: Asker<'_>, count: usize, now_ms: u64) {
        let mut known = self.known();
        let most = known.limits(caller).leases_per_day;
        if most != u32::MAX {
            known.account(caller.tenant).leases.add(count as u64, most, now_ms);
        }
    }

    async fn measure(&self, tenant: &str) -> Result<StoreUse, Error> {
        let of = tenant.to_owned();
        let used = self.database.with(move |store| measure(store, &of)).await?;
        self.known().account(tenant).measured =
            Some(MeasuredUse { used, at: Instant::now(), is_stale: false });
        Ok(used)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, QuotaTable> {
        lock(&self.known)
    }
}

impl QuotaTable {
    fn limits(&self, caller: Asker<'_>) -> Limits {
        Limits::of(self.quotas.get(caller.tenant), caller.is_operator)
    }

    fn account(&mut self, tenant: &str) -> &mut Account {
        self.accounts.entry(tenant.to_owned()).or_default()
    }

    fn admit(&mut self, caller: Asker<'_>, more: StoreUse, now: Instant) -> QuotaDecision {
        let limits = self.limits(caller);
        let admission = self.check(caller.tenant, limits, more, now);
        if let QuotaDecision::Admitted = admission
            && let Some(measured) = self.account(caller.tenant).measured.as_mut()
        {
            measured.used = sum(&measured.used, &more);
        }
        admission
    }

    fn check(&mut self, tenant: &str, limits: Limits, more: StoreUse, now: Instant) -> QuotaDecision {
        if limits.store == UNLIMITED.store {
            return QuotaDecision::Admitted;
        }
        let measured = self.account(tenant).measured;
        let Some(measured) = measured.filter(|measured| now.duration_since(measured.at) < MAX_AGE) else {
            return QuotaDecision::Unmeasured;
        };
        let Some(error) = exceeded(tenant, &measured.used, &more, &limits.store) else {
            return QuotaDecision::Admitted;
        };
        let may_be_less = measured.is_stale || now.duration_since(measured.at) >= MIN_AGE;
        if may_be_less { QuotaDecision::Unmeasured } else { QuotaDecision::Refused(error) }
    }
}

fn sum(used: &StoreUse, more: &StoreUse) -> StoreUse {
    StoreUse {
        bytes: used.bytes.saturating_add(more.bytes),
        packages: used.packages.saturating_add(more.packages),
        graphs: used.graphs.saturating_add(more.graphs),
        runs: used.runs.saturating_add(more.runs),
    }
}

/// The first limit that a tenant would exceed.
fn exceeded(tenant: &str, used: &StoreUse, more: &StoreUse, most: &StoreUse) -> Option<Error> {
    let after = sum(used, more);
    let (what, used, most, remove, option) = if more.bytes > 0 && after.bytes > most.bytes {
        ("bytes in the store", used.bytes, most.bytes, "package|graph|run", "store")
    } else if more.packages > 0 && after.packages > most.packages {
        ("versions of packages", used.packages.into(), most.packages.into(), "package", "packages")
    } else if more.graphs > 0 && after.graphs > most.graphs {
        ("versions of graphs", used.graphs.into(), most.graphs.into(), "graph", "graphs")
    } else if more.runs > 0 && after.runs > most.runs {
        ("runs", used.runs.into(), most.runs.into(), "run", "runs")
    } else {
        return None;
    };
    let message = format!(
        "tenant {tenant} has {used} {what} and may have {most}: remove some (`sublet {remove} remove`), or let an operator \
         raise the limit (`sublet tenant set {tenant} --{option}`)"
    );
    Some(Error::new(Code::QuotaExceeded, message))
}

/// Measures a tenant's use of the store.
fn measure(store: &dyn Store, tenant: &str) -> Result<StoreUse, Error> {
    let (package_bytes, packages) = packages::measure(store, tenant)?;
    let (graph_bytes, graphs) = graphs::measure(store, tenant)?;
    let (run_bytes, runs) = runs::measure(store, tenant)?;
    let bytes = package_bytes.saturating_add(graph_bytes).saturating_add(run_bytes);
    let secrets = store.size(&format!("{}{tenant}/", keys::SECRET))?;
    let bytes = bytes.saturating_add(secrets.bytes).saturating_add(secrets.records * RECORD_BYTES);
    Ok(StoreUse { bytes, packages, graphs, runs })
}

/// Rate of a tenant's leases: the day's number may be granted in a day, and a quarter of it at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LeaseRate {
    /// Leases that count, each [`DAY_MS`]; every millisecond takes away the number of leases of a day.
    level: u64,
    at_ms: u64,
}

impl LeaseRate {
    fn advance(&mut self, per_day: u32, now_ms: u64) {
        let elapsed_ms = now_ms.saturating_sub(self.at_ms);
        self.level = self.level.saturating_sub(elapsed_ms.saturating_mul(per_day.into()));
        self.at_ms = self.at_ms.max(now_ms);
    }

    fn check(&mut self, tenant: &str, per_day: u32, now_ms: u64) -> Result<(), Error> {
        self.advance(per_day, now_ms);
        let burst = u64::from(per_day.div_ceil(BURST_PARTS));
        let over = (self.level + DAY_MS).saturating_sub(burst * DAY_MS);
        if over == 0 {
            return Ok(());
        }
        let wait = match per_day {
            0 => String::new(),
            _ => format!("; the next one may be granted in {} s", over.div_ceil(u64::from(per_day) * 1000)),
        };
        let message = format!(
            "tenant {tenant} may have {per_day} leases a day, {burst} of them at once{wait} (operators: `sublet tenant set \
             {tenant} --leases-per-day`)"
        );
        Err(Error::new(Code::QuotaExceeded, message))
    }

    fn add(&mut self, count: u64, per_day: u32, now_ms: u64) {
        self.advance(per_day, now_ms);
        self.level = self.level.saturating_add(count.saturating_mul(DAY_MS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Asker<'_> = Asker { tenant: "alice", is_operator: false };

    fn bytes(bytes: u64) -> StoreUse {
        StoreUse { bytes, ..StoreUse::default() }
    }

    fn known(used: StoreUse, at: Instant) -> QuotaTable {
        let mut known = QuotaTable::default();
        known.account("alice").measured = Some(MeasuredUse { used, at, is_stale: false });
        known
    }

    fn code(admission: QuotaDecision) -> Option<Code> {
        match admission {
            QuotaDecision::Refused(error) => Some(error.code),
            _ => None,
        }
    }

    #[test]
    fn counts_what_is_admitted_until_a_limit_is_reached() {
        let now = Instant::now();
        let mut known = known(StoreUse::default(), now);
        assert!(matches!(known.admit(ALICE, bytes(DEFAULT_STORE_BYTES), now), QuotaDecision::Admitted));
        assert_eq!(code(known.admit(ALICE, bytes(1), now)), Some(Code::QuotaExceeded));
        for (more, option) in [
            (StoreUse { packages: DEFAULT_PACKAGES + 1, ..bytes(0) }, "--packages"),
            (StoreUse { graphs: DEFAULT_GRAPHS + 1, ..bytes(0) }, "--graphs"),
            (StoreUse { runs: DEFAULT_RUNS + 1, ..bytes(0) }, "--runs"),
            (bytes(1), "--store"),
        ] {
            let QuotaDecision::Refused(error) = known.admit(ALICE, more, now) else {
                panic!("{more:?} is admitted")
            };
            assert!(error.message.contains(option), "{error}");
        }
        // A request that takes no more bytes is not refused for them.
        assert!(matches!(
            known.admit(ALICE, StoreUse { graphs: 1, ..bytes(0) }, now),
            QuotaDecision::Admitted
        ));
    }

    #[test]
    fn measures_again_before_a_request_is_refused() {
        let now = Instant::now();
        let mut known = known(bytes(DEFAULT_STORE_BYTES), now);
        assert_eq!(code(known.admit(ALICE, bytes(1), now)), Some(Code::QuotaExceeded));
        assert!(matches!(known.admit(ALICE, bytes(1), now + MIN_AGE), QuotaDecision::Unmeasured));
        known.account("alice").measured.as_mut().unwrap().is_stale = true;
        assert!(matches!(known.admit(ALICE, bytes(1), now), QuotaDecision::Unmeasured));
        assert!(matches!(known.admit(ALICE, bytes(0), now + MAX_AGE), QuotaDecision::Unmeasured));
    }

    #[test]
    fn operators_have_no_defaults_and_quotas_hold_for_all() {
        let operator = Asker { tenant: "ops", is_operator: true };
        let mut known = QuotaTable::default();
        assert!(matches!(known.admit(operator, bytes(u64::MAX), Instant::now()), QuotaDecision::Admitted));
        let quota = Quota { store_bytes: Some(7), leases_per_day: Some(u32::MAX), ..Quota::default() };
        known.quotas.insert("ops".into(), quota);
        let limits = known.limits(operator);
        assert_eq!((limits.store.bytes, limits.store.runs), (7, u32::MAX));
        let limits = Limits::of(Some(&quota), false);
        assert_eq!((limits.store.runs, limits.leases_per_day), (DEFAULT_RUNS, u32::MAX));
    }

    #[test]
    fn leases_of_a_day_are_spread_over_it() {
        let mut rate = LeaseRate::default();
        let per_day = 2_400;
        let granted = |rate: &mut LeaseRate, now_ms: u64| {
            let mut count = 0;
            while rate.check("alice", per_day, now_ms).is_ok() {
                rate.add(1, per_day, now_ms);
                count += 1;
            }
            count
        };
        let begin_ms = 1_700_000_000_000;
        assert_eq!(granted(&mut rate, begin_ms), 600);
        // A clock that runs backwards adds no credit.
        assert_eq!(granted(&mut rate, begin_ms - 1_000), 0);
        assert_eq!(granted(&mut rate, begin_ms + DAY_MS / 24), 100);
        let error = rate.check("alice", per_day, begin_ms + DAY_MS / 24).unwrap_err();
        assert!(error.message.contains("in 36 s"), "{error}");
        assert_eq!(granted(&mut rate, begin_ms + 3 * DAY_MS), 600);
        assert!(rate.check("alice", 0, begin_ms + 9 * DAY_MS).is_err());
    }
}
