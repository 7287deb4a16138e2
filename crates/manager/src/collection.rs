//! The record by which deployments and collectors of unused blobs take turns.
//!
//! Managers of one store collect and deploy at the same time, so both change one record, [`COLLECTION`], by
//! compare-and-swap:
//!
//! 1. A deployment writes its reference first, and then [notes](note) that there is a new one. A collector whose list
//!    of references is older than that note does not get the record, and begins anew.
//! 2. The collector writes into the record which blobs it is about to remove. A deployment of one of these waits until
//!    they are removed, checks whether its own blob still exists, and stores it again if not.
//!
//! If a collector dies, the next one completes its list after [`ABANDONED_MS`].

use std::time::Duration;

use prost::Message;
use sublet_proto::{Code, Error, decode};

use crate::clock::Clock;
use crate::database::Database;
use crate::store::{Batch, Store, keys};

/// Key of the record of a collection in progress.
const COLLECTION: &str = "manager/collection";
/// Age at which a list counts as left by a collector that died. No other process removes its blobs before that.
const ABANDONED_MS: u64 = 60_000;
const RETRY: Duration = Duration::from_millis(100);

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Collection {
    /// Blobs that are about to be removed.
    #[prost(string, repeated, tag = "1")]
    pub(crate) digests: Vec<String>,
    #[prost(uint64, tag = "2")]
    pub(crate) begun_unix_ms: u64,
    /// References that were noted.
    #[prost(uint64, tag = "3")]
    pub(crate) notes: u64,
}

impl Collection {
    fn read(store: &dyn Store) -> Result<(Collection, u64), Error> {
        let Some(found) = store.get(COLLECTION)? else { return Ok((Collection::default(), 0)) };
        Ok((decode("the record of collections", &found.value)?, found.version))
    }

    fn is_abandoned(&self, now_ms: u64) -> bool {
        now_ms >= self.begun_unix_ms.saturating_add(ABANDONED_MS)
    }
}

/// Notes references to blobs that were written just now, and waits until no collector is about to remove one of them.
pub(crate) async fn note(database: &Database, clock: &Clock, digests: Vec<String>) -> Result<(), Error> {
    loop {
        let (digests, now_ms) = (digests.clone(), clock.now_ms());
        let is_noted = database.with(move |store| try_note(store, &digests, now_ms)).await?;
        if is_noted {
            return Ok(());
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn try_note(store: &mut dyn Store, digests: &[impl AsRef<str>], now_ms: u64) -> Result<bool, Error> {
    let (mut collection, version) = Collection::read(store)?;
    let is_listed = |listed: &String| digests.iter().any(|digest| digest.as_ref() == listed);
    if collection.digests.iter().any(is_listed) {
        if !collection.is_abandoned(now_ms) {
            return Ok(false);
        }
        remove_all(store, &collection.digests)?;
        collection.digests.clear();
    }
    collection.notes += 1;
    store.compare_and_swap(COLLECTION, version, &collection.encode_to_vec())
}

/// Returns the number of noted references, once the rest of an earlier collection is removed.
pub(crate) fn begin(store: &mut dyn Store, now_ms: u64) -> Result<u64, Error> {
    let (collection, _) = Collection::read(store)?;
    if collection.digests.is_empty() {
        return Ok(collection.notes);
    }
    if !collection.is_abandoned(now_ms) {
        return Err(Error::new(Code::TryLater, "another collection is in progress"));
    }
    remove_all(store, &collection.digests)?;
    release(store)?;
    Ok(collection.notes)
}

/// Writes the list of blobs to remove, unless a reference was noted since the references were read.
pub(crate) fn claim(store: &mut dyn Store, claimed: &Collection) -> Result<bool, Error> {
    let (before, version) = Collection::read(store)?;
    if before.notes != claimed.notes || !before.digests.is_empty() {
        return Ok(false);
    }
    store.compare_and_swap(COLLECTION, version, &claimed.encode_to_vec())
}

/// Clears the list of blobs to remove; references to other blobs may have been noted meanwhile.
pub(crate) fn release(store: &mut dyn Store) -> Result<(), Error> {
    loop {
        let (before, version) = Collection::read(store)?;
        let empty = Collection { digests: Vec::new(), ..before };
        if store.compare_and_swap(COLLECTION, version, &empty.encode_to_vec())? {
            return Ok(());
        }
    }
}

/// Removes the record of a package whose blob is gone.
pub(crate) fn remove_record(store: &mut dyn Store, digest: &str) -> Result<(), Error> {
    let mut batch = Batch::default();
    batch.remove(format!("{}{digest}", keys::PACKAGE));
    store.commit(&batch)
}

/// Removes blobs with their records.
pub(crate) fn remove_all(store: &mut dyn Store, digests: &[String]) -> Result<(), Error> {
    for digest in digests {
        // The record goes first: without it no reader takes the blob for a complete one.
        remove_record(store, digest)?;
        store.remove_blob(digest)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sublet_proto::package::{self, CheckedPackage};

    use super::*;
    use crate::packages::StorePackages;
    use crate::store::{BlobPart, SqliteStore};

    const NOW_MS: u64 = 1_700_000_000_000;

    fn store() -> (tempfile::TempDir, SqliteStore) {
        let folder = tempfile::tempdir().unwrap();
        let mut store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
        store.put_blob_part(BlobPart { digest: "d", index: 0 }, b"data").unwrap();
        (folder, store)
    }

    fn claimed(store: &mut SqliteStore, notes: u64) -> bool {
        let collection = Collection { digests: vec!["d".into()], begun_unix_ms: NOW_MS, notes };
        claim(store, &collection).unwrap()
    }

    #[test]
    fn reference_that_is_noted_meanwhile_keeps_every_blob() {
        let (_folder, mut store) = store();
        let notes = begin(&mut store, NOW_MS).unwrap();
        assert!(try_note(&mut store, &["other"], NOW_MS).unwrap());
        assert!(!claimed(&mut store, notes));
        let notes = begin(&mut store, NOW_MS).unwrap();
        assert!(claimed(&mut store, notes));
    }

    #[test]
    fn deployment_waits_for_the_removal_of_its_blob_alone() {
        let (_folder, mut store) = store();
        let notes = begin(&mut store, NOW_MS).unwrap();
        assert!(claimed(&mut store, notes));
        assert!(!try_note(&mut store, &["d"], NOW_MS).unwrap());
        assert!(try_note(&mut store, &["other"], NOW_MS).unwrap());
        assert_eq!(begin(&mut store, NOW_MS).unwrap_err().code, Code::TryLater);
        release(&mut store).unwrap();
        assert!(try_note(&mut store, &["d"], NOW_MS).unwrap());
        // Both notes count, though one was made while a list existed.
        assert_eq!(begin(&mut store, NOW_MS).unwrap(), notes + 2);
    }

    #[test]
    fn list_of_a_collector_that_died_is_worked_off_later() {
        for is_deployed_first in [true, false] {
            let (_folder, mut store) = store();
            let notes = begin(&mut store, NOW_MS).unwrap();
            assert!(claimed(&mut store, notes));
            let later_ms = NOW_MS + ABANDONED_MS;
            if is_deployed_first {
                assert!(try_note(&mut store, &["d"], later_ms).unwrap());
            } else {
                begin(&mut store, later_ms).unwrap();
            }
            assert_eq!(store.blobs().unwrap(), []);
            begin(&mut store, NOW_MS).unwrap();
        }
    }

    #[tokio::test]
    async fn package_that_is_removed_while_it_is_deployed_is_stored_again() {
        let (_folder, store) = store();
        let (database, clock) = (Database::new(Box::new(store)), Clock::start());
        let (encoded, packages) = (vec![7], StorePackages::new(database.clone(), clock));
        let digest = package::digest(&encoded);
        let checked = CheckedPackage {
            name: "p".into(),
            digest: digest.clone(),
            functions: vec!["f".into()],
            builds: Vec::new(),
            profiles: Vec::new(),
            needs: None,
            size_bytes: encoded.len() as u64,
            package: Default::default(),
        };
        let claimed = Collection { digests: vec![digest.clone()], begun_unix_ms: clock.now_ms(), notes: 0 };
        assert!(database.with(move |store| claim(store, &claimed)).await.unwrap());
        let deployment =
            tokio::spawn(async move { packages.deploy("alice", Arc::new(encoded), checked).await });
        let stored = async || {
            let (digest, key) = (digest.clone(), format!("{}{digest}", keys::PACKAGE));
            let look =
                move |store: &mut dyn Store| Ok((store.get(&key)?.is_some(), store.blob_parts(&digest)?));
            database.with(look).await.unwrap()
        };
        while stored().await != (true, 1) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let removed = [digest.clone()];
        let remove = move |store: &mut dyn Store| remove_all(store, &removed).and_then(|()| release(store));
        database.with(remove).await.unwrap();
        deployment.await.unwrap().unwrap();
        assert_eq!(stored().await, (true, 1));
    }
}
