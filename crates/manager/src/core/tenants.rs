//! Tenants: their use, their spending, and their quotas.

use std::collections::HashMap;
use std::sync::Arc;

use sublet_proto::pool::Pool;
use sublet_proto::v1::{Quota, TenantUse};
use sublet_proto::{Code, Error};

use super::application_runs::{ApplicationRuns, RunNumber};
use super::ids::TenantKey;
use super::pools::Pools;
use super::resources::LeaseResources;

/// Time for which a tenant's requests are held back after the first grant that it let lapse, in milliseconds; twice as
/// long after each further one in a row.
const HELD_BACK_MS: u64 = 10_000;
/// Grants in a row that lapsed and count: 160 s at most.
const MAX_LAPSES: u32 = 5;
/// Time for which a tenant is held back for the sake of another one that had to wait, in milliseconds.
pub(super) const CONTENTION_MS: u64 = 60_000;

/// A tenant as its manager sees it.
#[derive(Debug)]
pub struct Tenant {
    /// Name of the tenant.
    pub name: Arc<str>,
    /// Limits of its use at a time, and of its spending.
    pub quota: Quota,
    /// Use by leases of this manager; `spent_nano` is the cost of those since this manager started.
    pub own: TenantUse,
    /// Use by other managers, and its spending before this manager started.
    pub elsewhere: TenantUse,
    /// Grants to which it did not attach in time, less those to which it did.
    lapses: u32,
    /// Time until which its requests are held back for that.
    held_back_until_ms: u64,
    /// Time at which one of its requests last had to wait; 0: never.
    waited_ms: u64,
    /// The runs that hold leases or wait, of an application.
    pub(super) runs: ApplicationRuns,
}

impl Tenant {
    /// Returns its use by all managers.
    pub fn used(&self) -> TenantUse {
        let mut used = self.own;
        used.add_resources(&self.elsewhere);
        used.spent_nano = used.spent_nano.saturating_add(self.elsewhere.spent_nano);
        used
    }

    /// Tells whether it has spent its limit.
    pub(super) fn is_spent(&self) -> bool {
        self.quota.spend_nano.is_some_and(|limit| self.used().spent_nano >= limit)
    }

    /// Notes that it has not attached to a grant in time. Grants that lapse together count once.
    pub(super) fn lapse(&mut self, now_ms: u64) {
        if self.held_back_until_ms <= now_ms {
            debug_assert!(self.lapses < MAX_LAPSES, "tenant {} has {} lapses", self.name, self.lapses);
            self.held_back_until_ms = now_ms.saturating_add(HELD_BACK_MS << self.lapses);
            self.lapses = (self.lapses + 1).min(MAX_LAPSES - 1);
        }
    }

    /// Notes that it has attached to a grant.
    pub(super) fn attach(&mut self) {
        self.lapses = self.lapses.saturating_sub(1);
    }

    /// Notes that one of its requests has to wait.
    pub(super) fn wait(&mut self, now_ms: u64) {
        self.waited_ms = now_ms;
    }

    /// Checks whether it may have these leases as well.
    pub(super) fn check(&self, amounts: impl IntoIterator<Item = LeaseResources>) -> Result<(), Error> {
        if self.is_spent() {
            let message = format!(
                "tenant {} has spent {} of {} nano-units",
                self.name,
                self.used().spent_nano,
                self.quota.spend_nano.unwrap_or_default()
            );
            return Err(Error::new(Code::QuotaExceeded, message));
        }
        let used = self.used();
        let (mut cores, mut memory_bytes, mut leases) = (0, 0u64, 0);
        let mut in_pools = TenantUse::default();
        for amount in amounts {
            let bytes = in_pools.pool_bytes_mut(amount.pool);
            *bytes = bytes.saturating_add(amount.memory_bytes);
            cores += u64::from(amount.workers);
            memory_bytes = memory_bytes.saturating_add(amount.memory_bytes);
            leases += 1;
        }
        self.within("cores", used.cores.into(), cores, self.quota.cores.map(u64::from))?;
        self.within("bytes of memory", used.memory_bytes, memory_bytes, self.quota.memory_bytes)?;
        for pool in Pool::ALL.into_iter().filter(|&pool| in_pools.pool_bytes(pool) > 0) {
            let what = format!("bytes of memory in the {pool} pool");
            self.within(
                &what,
                used.pool_bytes(pool),
                in_pools.pool_bytes(pool),
                self.quota.pool_bytes(pool),
            )?;
        }
        self.within("leases", used.leases.into(), leases, self.quota.leases.map(u64::from))
    }

    /// The pools in which it may not have this much memory as well.
    pub(super) fn full_pools(&self, bytes: u64) -> Pools {
        let used = self.used();
        let is_full = |pool: &Pool| {
            let limit = self.quota.pool_bytes(*pool);
            limit.is_some_and(|limit| used.pool_bytes(*pool).saturating_add(bytes) > limit)
        };
        Pool::ALL.into_iter().filter(is_full).fold(Pools::NONE, Pools::with)
    }

    /// Builds the refusal of a request for which it has its quota in all or the suitable ones of these pools.
    #[cold]
    pub(super) fn pool_refusal(&self, pools: Pools, bytes: u64) -> Error {
        let (used, full) = (self.used(), self.full_pools(bytes));
        let full = Pool::ALL.into_iter().filter(|&pool| pools.has(pool) && full.has(pool));
        let said: Vec<String> = full
            .map(|pool| {
                let limit = self.quota.pool_bytes(pool).unwrap_or_default();
                format!("has {} in the {pool} pool and may have {limit} there", used.pool_bytes(pool))
            })
            .collect();
        let message = format!("{bytes} bytes of memory asked, tenant {} {}", self.name, said.join(", and "));
        Error::new(Code::QuotaExceeded, message)
    }

    /// Checks whether an application may have these cores and this memory as well, over all of its runs.
    pub(super) fn check_application(&self, cores: u32, memory_bytes: u64) -> Result<(), Error> {
        let (used, quota) = (self.used(), self.quota);
        for (what, used, asked, limit) in [
            ("cores", u64::from(used.cores), u64::from(cores), quota.cores.map(u64::from)),
            ("bytes of memory", used.memory_bytes, memory_bytes, quota.memory_bytes),
        ] {
            let Some(limit) = limit.filter(|limit| asked > 0 && used.saturating_add(asked) > *limit) else {
                continue;
            };
            let code = if asked > limit { Code::InsufficientResources } else { Code::NoCapacity };
            let message = format!(
                "{asked} {what} asked, application {} has {used} in all of its runs and may have {limit}",
                self.name
            );
            return Err(Error::new(code, message));
        }
        Ok(())
    }

    /// Decides on a request of a run of the application, which may wait for `wait_ms` more, given whether its limits
    /// allow it.
    ///
    /// # Errors
    /// `no_capacity` if it has to wait; `lease_ended` if its run has to give way, with what it holds.
    pub(super) fn check_run(
        &mut self,
        now_ms: u64,
        (run, wait_ms): (RunNumber, u64),
        checked: Result<(), Error>,
    ) -> Result<(), Error> {
        let error = match checked {
            Ok(()) if !self.runs.must_wait(now_ms, run) => return Ok(()),
            Ok(()) => {
                let message =
                    format!("another run of application {} waits for more within its limits", self.name);
                Error::new(Code::NoCapacity, message)
            }
            Err(error) if error.code == Code::NoCapacity => error,
            Err(error) => return Err(error),
        };
        if !self.runs.refuse(now_ms, run, wait_ms) {
            return Err(error);
        }
        let message = format!("the run gives way to earlier runs of application {}: {error}", self.name);
        Err(Error::new(Code::LeaseEnded, message))
    }

    fn within(&self, what: &str, used: u64, asked: u64, limit: Option<u64>) -> Result<(), Error> {
        match limit {
            Some(limit) if used.saturating_add(asked) > limit => Err(Error::new(
                Code::QuotaExceeded,
                format!("{asked} {what} asked, tenant {} has {used} and may have {limit}", self.name),
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn add(&mut self, amount: LeaseResources) {
        self.own.cores = self.own.cores.saturating_add(amount.workers);
        self.own.memory_bytes = self.own.memory_bytes.saturating_add(amount.memory_bytes);
        let in_pool = self.own.pool_bytes_mut(amount.pool);
        *in_pool = in_pool.saturating_add(amount.memory_bytes);
        self.own.leases = self.own.leases.saturating_add(1);
    }

    pub(super) fn remove(&mut self, amount: LeaseResources) {
        debug_assert!(
            amount.workers <= self.own.cores && amount.memory_bytes <= self.own.memory_bytes,
            "tenant {} gives back {amount:?} of {:?}",
            self.name,
            self.own
        );
        debug_assert!(self.own.leases > 0, "tenant {} gives back a lease, and has none", self.name);
        self.own.cores = self.own.cores.saturating_sub(amount.workers);
        self.own.memory_bytes = self.own.memory_bytes.saturating_sub(amount.memory_bytes);
        let in_pool = self.own.pool_bytes_mut(amount.pool);
        debug_assert!(amount.memory_bytes <= *in_pool, "{amount:?} of {in_pool} bytes in its pool");
        *in_pool = in_pool.saturating_sub(amount.memory_bytes);
        self.own.leases = self.own.leases.saturating_sub(1);
    }
}

/// Returns the name under which an application of a tenant is counted. No tenant has a slash in its name.
pub fn application_name(tenant: &str, application: &str) -> String {
    format!("{tenant}/{application}")
}

/// Returns the name of the application that is counted under a name; `None` if that is the name of a tenant.
pub fn application_of(name: &str) -> Option<&str> {
    name.split_once('/').map(|(_, application)| application)
}

/// Every tenant that was ever named. They are few, and none is forgotten while the manager runs.
#[derive(Debug, Default)]
pub(super) struct TenantTable {
    all: Vec<Tenant>,
    by_name: HashMap<Arc<str>, TenantKey>,
}

impl TenantTable {
    pub(super) fn key(&mut self, name: &str) -> TenantKey {
        if let Some(&key) = self.by_name.get(name) {
            return key;
        }
        #[expect(clippy::cast_possible_truncation, reason = "memory ends before 2^32 tenants")]
        let (key, name): (_, Arc<str>) = (TenantKey(self.all.len() as u32), name.into());
        let (quota, own, elsewhere) = Default::default();
        let (lapses, held_back_until_ms, waited_ms, runs) = Default::default();
        let name_of = name.clone();
        debug_assert_eq!(self.by_name.len(), self.all.len(), "names of tenants, before {name}");
        self.all.push(Tenant {
            name: name_of,
            quota,
            own,
            elsewhere,
            lapses,
            held_back_until_ms,
            waited_ms,
            runs,
        });
        self.by_name.insert(name, key);
        key
    }

    pub(super) fn get(&self, key: TenantKey) -> &Tenant {
        &self.all[key.0 as usize]
    }

    pub(super) fn get_mut(&mut self, key: TenantKey) -> &mut Tenant {
        &mut self.all[key.0 as usize]
    }

    /// Time until which the requests of a tenant are held back, if they are: it lets grants lapse, and others have to
    /// wait.
    pub(super) fn held_back_until(&self, key: TenantKey, now_ms: u64) -> Option<u64> {
        let until_ms = Some(self.get(key).held_back_until_ms).filter(|until_ms| *until_ms > now_ms)?;
        let waits = |other: &Tenant| {
            other.lapses == 0
                && other.waited_ms != 0
                && now_ms < other.waited_ms.saturating_add(CONTENTION_MS)
        };
        self.all.iter().any(waits).then_some(until_ms)
    }

    /// Whether the requests of any tenant are held back.
    pub(super) fn is_any_held_back(&self, now_ms: u64) -> bool {
        let may_be = |tenant: &Tenant| tenant.held_back_until_ms > now_ms;
        let keys = (0..).map(TenantKey);
        self.all
            .iter()
            .zip(keys)
            .any(|(tenant, key)| may_be(tenant) && self.held_back_until(key, now_ms).is_some())
    }

    /// Whether the requests of any tenant were held back at this time or later.
    pub(super) fn are_any_held_back(&self, at_ms: u64) -> bool {
        self.all.iter().any(|tenant| tenant.held_back_until_ms > at_ms)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Tenant> {
        self.all.iter()
    }
}
