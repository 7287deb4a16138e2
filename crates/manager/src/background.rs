//! The background tasks of a running manager: they refresh tokens, write the ledger, and clean the store.

use std::sync::Arc;
use std::time::Duration;

use sublet_proto::Error;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::core::{CoreEvent, TICK_MS};
use crate::database::blocking;
use crate::options::StoreOptions;
use crate::parts::{OpenedParts, SharedParts};
use crate::retention::{Retention, Sharing};
use crate::shell::Shell;
use crate::store::{self, NatsOptions};
use crate::tls::{self, Certificates};
use crate::{garbage, start, upkeep};

/// Interval at which tokens and quotas are refreshed.
const REFRESH: Duration = Duration::from_secs(1);
/// Interval at which all of a store on NATS is read and compared.
const RECHECK: Duration = Duration::from_secs(6 * 60 * 60);
/// Interval at which packages and graphs without references are removed from the store.
const COLLECTION: Duration = Duration::from_secs(60 * 60);

/// Reads tokens, quotas and the reports of the other managers once, and starts the tasks.
pub(crate) async fn start_all(
    opened: &OpenedParts,
    retention: Retention,
    store: StoreOptions,
) -> Result<JoinSet<()>, Error> {
    let parts = &opened.shared;
    let mut tasks = JoinSet::new();
    refresh(parts).await?;
    if opened.is_read_only {
        tasks.spawn(leave_read_only(parts.clone()));
    } else {
        parts.store_managers.exchange(&parts.shell).await?;
    }
    tasks.spawn(collect_garbage(parts.clone()));
    let sharing = match store {
        StoreOptions::Embedded => Sharing::Own,
        StoreOptions::Nats(_) => Sharing::Shared,
    };
    tasks.spawn(parts.retention(retention, sharing).keep(every(COLLECTION)));
    if let StoreOptions::Nats(servers) = store {
        tasks.spawn(recheck(servers));
    }
    tasks.spawn(keep_ledger(parts.clone()));
    tasks.spawn(exchange_reports(parts.clone()));
    tasks.spawn(tick(Arc::clone(&parts.shell)));
    tasks.spawn(keep_fresh(parts.clone()));
    if let Some(certificates) = &opened.certificates {
        tasks.spawn(keep_certified(Arc::clone(certificates)));
    }
    Ok(tasks)
}

/// Makes a manager that has started on a full disk writable as soon as the disk has free space.
async fn leave_read_only(parts: SharedParts) {
    let mut interval = every(REFRESH);
    loop {
        interval.tick().await;
        // Keeps the reserve: if the disk has no more than it, users soon fill the disk again.
        let begun = parts.database.keeping_reserve(|store| {
            start::next_epoch(store)?;
            start::migrate(store)
        });
        if begun.await.is_ok() {
            parts.authorizer.set_read_only(false);
            tracing::warn!("the disk has free space again: the manager is no longer read-only");
            return;
        }
    }
}

/// Removes packages and graphs without references from the store.
async fn collect_garbage(parts: SharedParts) {
    let mut interval = every(COLLECTION);
    loop {
        interval.tick().await;
        match garbage::collect(&parts.database, &parts.shell.clock, || parts.shell.packages()).await {
            Ok(garbage::RemovedBlobs { blobs: 0, .. }) => {}
            Ok(garbage::RemovedBlobs { blobs, bytes }) => {
                tracing::info!(blobs, bytes, "packages and graphs that nothing refers to are removed");
            }
            Err(error) => tracing::debug!(%error, "packages and graphs that nothing refers to stay"),
        }
    }
}

/// Reads all of a store on NATS at intervals, on a connection of its own, completes the second copies of records, and
/// logs records that its servers have damaged or dropped.
async fn recheck(servers: NatsOptions) {
    let mut interval = every(RECHECK);
    loop {
        interval.tick().await;
        let servers = servers.clone();
        match blocking(move || upkeep::check_and_copy_nats(&servers)).await {
            Ok(store::AuditReport { lost, restored, notes, .. }) => {
                for note in notes {
                    tracing::error!(note, "the store is damaged: `sublet store check`");
                }
                if !lost.is_empty() {
                    tracing::error!(
                        records = store::listed(&lost),
                        "the store is damaged: `sublet store check`"
                    );
                }
                if !restored.is_empty() {
                    let records = store::listed(&restored);
                    tracing::error!(
                        records,
                        "the servers of the store have lost records: `sublet store repair` puts them back"
                    );
                }
            }
            Err(error) => tracing::warn!(%error, "the store is not checked now"),
        }
    }
}

/// Writes the due entries of the ledger.
async fn keep_ledger(parts: SharedParts) {
    parts.shell.keep_ledger(parts.store_managers.writer()).await;
}

/// Exchanges reports with the other managers of the store.
async fn exchange_reports(parts: SharedParts) {
    let mut is_failing = false;
    loop {
        tokio::time::sleep(parts.store_managers.period()).await;
        let exchanged = parts.store_managers.exchange(&parts.shell).await;
        if let Err(error) = &exchanged
            && !is_failing
        {
            tracing::error!(%error, "the other managers cannot be heard of");
        }
        is_failing = exchanged.is_err();
    }
}

/// Advances the core's time.
async fn tick(shell: Arc<Shell>) {
    let mut interval = every(Duration::from_millis(TICK_MS));
    loop {
        interval.tick().await;
        if let Err(error) = shell.tell([CoreEvent::Tick]) {
            tracing::error!(%error, "the manager's clock stops");
            return;
        }
    }
}

/// Takes over other managers' changes of tokens and quotas, and ends the leases of removed tokens.
async fn keep_fresh(parts: SharedParts) {
    let mut interval = every(REFRESH);
    let mut is_failing = false;
    loop {
        interval.tick().await;
        let refreshed = refresh(&parts).await;
        if let Err(error) = &refreshed
            && !is_failing
        {
            tracing::error!(%error, "tokens and quotas stay as they were: the store cannot be read");
        }
        is_failing = refreshed.is_err();
    }
}

/// Reads the changes of tokens and quotas once.
async fn refresh(parts: &SharedParts) -> Result<(), Error> {
    let SharedParts { shell, authorizer, tenants, quotas, .. } = parts;
    let now_ms = shell.clock.now_ms();
    let read = authorizer.tokens.refresh(now_ms).await;
    // Tokens expire even when the store is away.
    shell.end_revoked(|token| authorizer.tokens.is_valid(token, now_ms))?;
    read?;
    if let Some(limits) = tenants.refresh().await? {
        quotas.set(limits.clone());
        shell.set_quotas(limits)?;
    }
    Ok(())
}

/// Renews the certificate before it expires.
async fn keep_certified(certificates: Arc<Certificates>) {
    let mut interval = every(tls::RENEWAL);
    // The first one is due at once, and they have just been made.
    interval.tick().await;
    loop {
        interval.tick().await;
        let certificates = Arc::clone(&certificates);
        if let Err(error) = blocking(move || certificates.renew()).await {
            tracing::error!(%error, "the certificate stays as it was");
        }
    }
}

/// An interval that delays missed ticks.
fn every(period: Duration) -> tokio::time::Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}
