//! The format of a store's records, by which a manager refuses a store that a later version has written.
//!
//! The embedded store's file has a format of its own beside it (`sqlite/schema.rs`): that of tables and checksums. This
//! one is for the records, which are the same in every kind of store.

use sublet_proto::{Code, Error};

use super::{Store, keys};

/// Format of the records that this version writes. 1: all formats before the number was stored.
const RECORDS: u64 = 1;

/// Checks that no later version has changed the format of a store's records.
///
/// # Errors
/// `version_mismatch`, which names both formats.
pub(crate) fn check(store: &dyn Store) -> Result<(), Error> {
    match stored(store)? {
        found if found <= RECORDS => Ok(()),
        found => Err(Error::new(
            Code::VersionMismatch,
            format!(
                "the store has records of format {found}, and this version reads up to {RECORDS}: start the version \
                 that wrote them, or restore a backup of before"
            ),
        )),
    }
}

/// Notes the format of this version in a store whose records have an earlier one.
pub(crate) fn mark(store: &mut dyn Store) -> Result<(), Error> {
    check(store)?;
    let known = store.get(keys::RECORDS)?;
    if known.is_some() && stored(store)? == RECORDS {
        return Ok(());
    }
    let version = known.map_or(0, |known| known.version);
    // Another manager that starts at the same time has written it, or a later one, which the check then finds.
    if store.compare_and_swap(keys::RECORDS, version, &RECORDS.to_le_bytes())? {
        Ok(())
    } else {
        check(store)
    }
}

fn stored(store: &dyn Store) -> Result<u64, Error> {
    let Some(known) = store.get(keys::RECORDS)? else { return Ok(RECORDS.min(1)) };
    <[u8; 8]>::try_from(known.value.as_slice()).map(u64::from_le_bytes).map_err(|_| {
        Error::new(
            Code::StoreDamaged,
            format!("the store's record {} has {} bytes instead of 8", keys::RECORDS, known.value.len()),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::SqliteStore;
    use super::*;

    #[test]
    fn refuses_records_of_a_later_format() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
        check(&store).unwrap();
        mark(&mut store).unwrap();
        mark(&mut store).unwrap();
        let version = store.get(keys::RECORDS).unwrap().unwrap().version;
        assert!(store.compare_and_swap(keys::RECORDS, version, &(RECORDS + 1).to_le_bytes()).unwrap());
        for refused in [check(&store), mark(&mut store)] {
            let error = refused.unwrap_err();
            assert_eq!(error.code, Code::VersionMismatch);
            assert!(error.message.contains("format 2") && error.message.contains("up to 1"), "{error}");
        }
        assert_eq!(store.get(keys::RECORDS).unwrap().unwrap().version, version + 1);
    }
}
