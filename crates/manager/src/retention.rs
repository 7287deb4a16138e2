//! Defines how long the manager keeps ended leases and runs, and removes them in an hourly chore.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sublet_proto::Error;

use crate::bill::Bills;
use crate::clock::{Clock, DAY_MS, LEAST_AGE_MS};
use crate::database::Database;
use crate::packages::StorePackages;
use crate::peers::{self, Spenders};
use crate::quotas::Quotas;
use crate::runs::StoreRuns;
use crate::store::{Store, keys};
use crate::store_managers::StoreManagers;

const DAY: Duration = Duration::from_millis(DAY_MS);

/// Times for which the manager keeps ended leases and runs; neither is kept for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Each lease's own record in the ledger. Then its use and cost are part of sums.
    pub ledger: Option<Duration>,
    /// Runs of graphs that have ended, and their reports.
    pub runs: Option<Duration>,
    /// Runs of graphs that have not ended, since their clients were last heard of. Then they are ended.
    pub unfinished_runs: Option<Duration>,
}

impl Retention {
    /// Shortest time: a manager that was cut off from the store may still write its state within it.
    pub const LEAST: Duration = Duration::from_millis(LEAST_AGE_MS);
}

impl Default for Retention {
    fn default() -> Retention {
        Retention { ledger: Some(90 * DAY), runs: Some(30 * DAY), unfinished_runs: Some(30 * DAY) }
    }
}

/// Returns the beginning of the day, in UTC, that was `age` ago.
pub(crate) fn day_before(now_ms: u64, age: Duration) -> u64 {
    let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    now_ms.saturating_sub(age_ms) / DAY_MS * DAY_MS
}

/// Whether other managers may use the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// The embedded store is locked by its manager.
    Own,
    Shared,
}

/// The epochs of managers that are gone for good.
#[derive(Debug)]
struct DeadEpochs {
    own_epoch: u64,
    sharing: Sharing,
    begun: Instant,
    heard: BTreeMap<u64, Instant>,
}

impl DeadEpochs {
    fn new(own_epoch: u64, sharing: Sharing, now: Instant) -> DeadEpochs {
        DeadEpochs { own_epoch, sharing, begun: now, heard: BTreeMap::new() }
    }

    /// Notes that these managers are alive.
    fn hear(&mut self, living: impl Iterator<Item = u64>, now: Instant) {
        self.heard.extend(living.map(|epoch| (epoch, now)));
    }

    /// Whether a manager is gone: one that shares the store may be cut off from it for up to a day, and write then.
    fn has(&self, epoch: u64, now: Instant) -> bool {
        if epoch == self.own_epoch {
            return false;
        }
        let heard = self.heard.get(&epoch).copied().unwrap_or(self.begun);
        match self.sharing {
            Sharing::Own => epoch < self.own_epoch,
            Sharing::Shared => now.duration_since(heard) >= Retention::LEAST,
        }
    }
}

/// Parts that the retention task uses.
pub(crate) struct RetentionParts {
    pub(crate) clock: Clock,
    pub(crate) database: Database,
    pub(crate) bills: Arc<Bills>,
    pub(crate) runs: StoreRuns,
    pub(crate) packages: StorePackages,
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) store_managers: Arc<StoreManagers>,
    pub(crate) sharing: Sharing,
    pub(crate) retention: Retention,
}

impl RetentionParts {
    /// Removes leases, runs, names and layers that ended long ago, whenever the interval ticks.
    pub(crate) async fn keep(self, mut interval: tokio::time::Interval) {
        let mut gone = DeadEpochs::new(self.store_managers.epoch(), self.sharing, Instant::now());
        loop {
            interval.tick().await;
            self.fold().await;
            self.end_runs().await;
            self.expire_names().await;
            self.expire_layers().await;
            self.merge_spending(&mut gone).await;
        }
    }

    async fn fold(&self) {
        let Some(age) = self.retention.ledger else { return };
        match self.bills.fold(day_before(self.clock.now_ms(), age)).await {
            Ok(0) => {}
            Ok(leases) => tracing::info!(leases, "leases that ended long ago are folded into sums"),
            Err(error) => tracing::warn!(%error, "leases that ended long ago are not folded yet"),
        }
    }

    async fn end_runs(&self) {
        let now_ms = self.clock.now_ms();
        if let Some(age) = self.retention.unfinished_runs {
            let ended = self.runs.abandon(day_before(now_ms, age), now_ms).await;
            self.note_runs(ended, "runs whose clients are gone are ended");
        }
        if let Some(age) = self.retention.runs {
            let removed = self.runs.expire(day_before(now_ms, age)).await;
            self.note_runs(removed, "runs that ended long ago are removed");
        }
    }

    /// Notes that the tenants of these runs use less of the store.
    fn note_runs(&self, changed: Result<BTreeMap<String, u32>, Error>, what: &str) {
        match changed {
            Ok(changed) if changed.is_empty() => {}
            Ok(changed) => {
                changed.keys().for_each(|tenant| self.quotas.removed(tenant));
                tracing::info!(runs = changed.values().sum::<u32>(), "{what}");
            }
            Err(error) => tracing::warn!(%error, "old runs are not all looked after yet"),
        }
    }

    async fn expire_names(&self) {
        match self.packages.expire_names(self.clock.now_ms().saturating_sub(LEAST_AGE_MS)).await {
            Ok(0) => {}
            Ok(names) => tracing::info!(names, "records of package names that were removed are gone"),
            Err(error) => tracing::warn!(%error, "records of removed package names are not gone yet"),
        }
    }

    async fn expire_layers(&self) {
        match self.packages.expire_layers(self.clock.now_ms().saturating_sub(LEAST_AGE_MS)).await {
            Ok(expired) => {
                expired.keys().for_each(|tenant| self.quotas.removed(tenant));
                let layers: u32 = expired.values().sum();
                if layers > 0 {
                    tracing::info!(layers, "layers of environments that were never deployed are removed");
                }
            }
            Err(error) => tracing::warn!(%error, "unused layers of environments are not removed yet"),
        }
    }

    async fn merge_spending(&self, gone: &mut DeadEpochs) {
        gone.hear(self.store_managers.managers().iter().map(|manager| manager.epoch), Instant::now());
        match self.try_merge_spending(gone).await {
            Ok(0) => {}
            Ok(records) => tracing::info!(records, "spending by earlier managers is merged"),
            Err(error) => tracing::warn!(%error, "spending by earlier managers is not merged yet"),
        }
    }

    async fn try_merge_spending(&self, gone: &DeadEpochs) -> Result<u64, Error> {
        let mut spenders = Spenders::new();
        let see = |page: &[crate::store::StoreRecord]| {
            page.iter().for_each(|found| peers::note(&mut spenders, &found.key));
            Ok(ControlFlow::Continue(()))
        };
        self.database.each_page(keys::SPEND, None, see).await?;
        let (mut merged, now, now_ms) = (0, Instant::now(), self.clock.now_ms());
        for (tenant, epochs) in spenders {
            let gone: BTreeSet<u64> = epochs.into_iter().take_while(|&epoch| gone.has(epoch, now)).collect();
            if gone.is_empty() {
                continue;
            }
            let merge = move |store: &mut dyn Store| peers::merge(store, &tenant, gone.into_iter(), now_ms);
            merged += self.database.with(merge).await?;
        }
        Ok(merged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manager_of_a_shared_store_expires_after_a_silent_day() {
        let begun = Instant::now();
        let mut gone = DeadEpochs::new(3, Sharing::Shared, begun);
        gone.hear([2, 3].into_iter(), begun + DAY / 2);
        let gone_at = |time: Instant| (1..=3).filter(|&epoch| gone.has(epoch, time)).collect::<Vec<_>>();
        assert_eq!(gone_at(begun + DAY - Duration::from_secs(1)), [0; 0]);
        assert_eq!(gone_at(begun + DAY), [1]);
        assert_eq!(gone_at(begun + 2 * DAY), [1, 2]);
        let own = DeadEpochs::new(3, Sharing::Own, begun);
        assert_eq!((1..=4).filter(|&epoch| own.has(epoch, begun)).collect::<Vec<_>>(), [1, 2]);
    }
}
