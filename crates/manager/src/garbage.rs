//! Removes packages and documents without references.
//!
//! A blob is kept while a name, a version, an active lease or an unfinished run refers to it, or a package that is kept
//! for one of these: to its environment, and an environment to its layers. A collector and deployments take turns by
//! the record of [`collection`](crate::collection).

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use sublet_proto::v1::{LeaseState, RunInfo};
use sublet_proto::{Code, Error, decode};

use crate::clock::Clock;
use crate::collection::{Collection, begin, claim, release, remove_all};
use crate::database::Database;
use crate::lease_records::LeaseRecord;
use crate::runs::digests_of_run;
use crate::store::{Blob, Store, StoreRecord, keys};
use crate::{graphs, packages};

/// Blobs that are removed at a time.
const BATCH_BLOBS: usize = 16;
/// Longest time for which a collector works on a list that it has written.
const BATCH_TIME: Duration = Duration::from_secs(20);
/// Deployments that may come in between before a collector gives up.
const ATTEMPTS: u32 = 8;

/// Blobs and bytes that a collection has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemovedBlobs {
    pub(crate) blobs: u32,
    pub(crate) bytes: u64,
}

/// Removes every blob without references. `active` are digests that leases of this manager use.
///
/// # Errors
/// `try_later` if another manager is collecting, or deployments keep interrupting.
pub(crate) async fn collect(
    database: &Database,
    clock: &Clock,
    active: impl Fn() -> Result<HashSet<String>, Error>,
) -> Result<RemovedBlobs, Error> {
    let mut removed = RemovedBlobs::default();
    for _ in 0..ATTEMPTS {
        let now_ms = clock.now_ms();
        let notes = database.with(move |store| begin(store, now_ms)).await?;
        let mut used = database.with(|store| named(store)).await?;
        let mut unused = unused(database, &used).await?;
        if unused.is_empty() {
            return Ok(removed);
        }
        used.extend(active()?);
        used.extend(leased(database, clock).await?);
        used.extend(of_unfinished_runs(database).await?);
        let used = database.with(move |store| with_references(store, used)).await?;
        unused.retain(|blob| !used.contains(&blob.digest));
        if remove(database, clock, notes, unused, &mut removed).await? {
            return Ok(removed);
        }
    }
    Err(Error::new(Code::TryLater, "packages are being deployed all the time: nothing could be collected"))
}

/// Removes blobs, a few at a time; whether all of them could be removed before a reference was noted.
async fn remove(
    database: &Database,
    clock: &Clock,
    notes: u64,
    unused: Vec<Blob>,
    removed: &mut RemovedBlobs,
) -> Result<bool, Error> {
    for blobs in unused.chunks(BATCH_BLOBS) {
        let digests: Vec<String> = blobs.iter().map(|blob| blob.digest.clone()).collect();
        let claimed = Collection { digests, begun_unix_ms: clock.now_ms(), notes };
        if !database.with(move |store| claim(store, &claimed)).await? {
            return Ok(false);
        }
        let deadline = Instant::now() + BATCH_TIME;
        for blob in blobs {
            if Instant::now() > deadline {
                break;
            }
            let digest = blob.digest.clone();
            database.with(move |store| remove_all(store, &[digest])).await?;
            removed.blobs += 1;
            removed.bytes = removed.bytes.saturating_add(blob.bytes);
        }
        database.with(|store| release(store)).await?;
    }
    Ok(true)
}

/// Digests that names and versions refer to.
fn named(store: &dyn Store) -> Result<HashSet<String>, Error> {
    let mut digests = packages::named_digests(store)?;
    digests.extend(graphs::digests(store)?);
    Ok(digests)
}

/// Adds what these packages need: their environments, and the layers of those.
fn with_references(store: &dyn Store, mut used: HashSet<String>) -> Result<HashSet<String>, Error> {
    packages::add_references(store, &mut used)?;
    Ok(used)
}

async fn unused(database: &Database, used: &HashSet<String>) -> Result<Vec<Blob>, Error> {
    let mut blobs = database.with(|store| store.blobs()).await?;
    blobs.retain(|blob| !used.contains(&blob.digest));
    Ok(blobs)
}

/// Packages of leases that have not ended, of all managers.
async fn leased(database: &Database, clock: &Clock) -> Result<HashSet<String>, Error> {
    let now_ms = clock.now_ms();
    read_all(database, keys::LEASE, move |value| {
        let lease = decode::<LeaseRecord>("a stored lease", value)?.seen_at(now_ms);
        let is_active = lease.state() != LeaseState::Ended;
        Ok(is_active.then_some(lease.package).into_iter().collect())
    })
    .await
}

/// Packages and graphs that runs were begun with and may be resumed with.
async fn of_unfinished_runs(database: &Database) -> Result<HashSet<String>, Error> {
    read_all(database, keys::RUN, |value| {
        let run: RunInfo = decode("a stored run", value)?;
        if run.ended_unix_ms != 0 {
            return Ok(Vec::new());
        }
        Ok(digests_of_run(&run).map(str::to_owned).collect())
    })
    .await
}

/// Collects the results of `read` over the records of a kind, and lets others use the store between pages.
async fn read_all(
    database: &Database,
    prefix: &'static str,
    read: impl Fn(&[u8]) -> Result<Vec<String>, Error>,
) -> Result<HashSet<String>, Error> {
    let mut all = HashSet::new();
    let see = |page: &[StoreRecord]| {
        for record in page {
            all.extend(read(&record.value)?);
        }
        Ok(ControlFlow::Continue(()))
    };
    database.each_page(prefix, None, see).await?;
    Ok(all)
}
