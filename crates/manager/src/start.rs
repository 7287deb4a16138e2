//! Prepares a manager's store at the start: an epoch of its own, the secret of tickets, and the format of records.

use std::path::Path;

use sublet_proto::ticket::Signing;
use sublet_proto::{Code, Error};

use crate::chance;
use crate::key_file::{self, Key, KeyFile};
use crate::packages;
use crate::store::{Store, keys, version};

/// Starts of a manager that may race for an epoch on one store.
const EPOCH_ATTEMPTS: u32 = 16;
/// Name of the key in errors.
const WHAT: &str = "the key of tickets";

/// A number that no other start of a manager on this store has or had.
pub(crate) fn next_epoch(store: &mut dyn Store) -> Result<u64, Error> {
    for _ in 0..EPOCH_ATTEMPTS {
        let known = store.get(keys::EPOCH)?;
        let version = known.as_ref().map_or(0, |known| known.version);
        let last = match known {
            Some(known) => u64::from_le_bytes(stored_array(keys::EPOCH, &known.value)?),
            None => 0,
        };
        if store.compare_and_swap(keys::EPOCH, version, &(last + 1).to_le_bytes())? {
            return Ok(last + 1);
        }
    }
    Err(Error::new(Code::System, "other managers keep changing the store's epoch"))
}

/// The number that the next start will have, of a manager that cannot write it: a disk is full, and its store is its own.
pub(crate) fn unwritten_epoch(store: &dyn Store) -> Result<u64, Error> {
    let known = store.get(keys::EPOCH)?;
    let last =
        known.map(|known| stored_array(keys::EPOCH, &known.value).map(u64::from_le_bytes)).transpose()?;
    Ok(last.unwrap_or_default() + 1)
}

/// The key of tickets, which all managers of a store share; the first one makes it.
///
/// The state folder has a copy of it. A store or a folder that has lost it gets it from the other one, and a new one is made
/// for a store without tokens and leases only.
pub(crate) fn signing(store: &mut dyn Store, state: &Path) -> Result<Signing, Error> {
    let file = state.join(SIGNING_FILE);
    let copy = KeyFile::read(&file, WHAT)?;
    let stored = store.get(keys::SIGNING_SEED)?.map(|stored| stored.value);
    let stored: Option<Seed> = stored.map(|stored| stored_array(keys::SIGNING_SEED, &stored)).transpose()?;
    let seed = match (stored, &copy) {
        (Some(stored), KeyFile::Good(copied)) if stored != *copied => return Err(differs(&file)),
        (Some(stored), _) => stored,
        (None, KeyFile::Good(copied)) => {
            tracing::warn!(file = %file.display(), "the store has no key of tickets: it gets that of the state folder");
            share(store, *copied)?
        }
        (None, _) if is_in_use(store)? => return Err(lost(&file)),
        (None, _) => share(store, chance::secret()?)?,
    };
    if copy != KeyFile::Good(seed) {
        if copy == KeyFile::Damaged {
            tracing::warn!(file = %file.display(), "the copy of the key of tickets is damaged, and written anew");
        }
        key_file::write(&file, &seed, WHAT)?;
    }
    Ok(Signing::from_seed(&seed))
}

/// Name of the state folder's copy of the secret from which the key of tickets is made.
pub(crate) const SIGNING_FILE: &str = "signing.key";

type Seed = Key;

/// Puts a seed into a store that has none, and returns the stored one, which may be another manager's.
fn share(store: &mut dyn Store, seed: Seed) -> Result<Seed, Error> {
    store.compare_and_swap(keys::SIGNING_SEED, 0, &seed)?;
    let stored = store.get(keys::SIGNING_SEED)?.map(|stored| stored.value).unwrap_or_default();
    stored_array(keys::SIGNING_SEED, &stored)
}

/// Tells whether tokens or leases rely on the key of this store.
fn is_in_use(store: &dyn Store) -> Result<bool, Error> {
    Ok(!store.scan(keys::TOKEN, None, 1)?.is_empty() || !store.scan(keys::LEASE, None, 1)?.is_empty())
}

fn differs(file: &Path) -> Error {
    let message = format!(
        "the store's key of tickets is not that of {0}: one of the two was altered, or the folder was used with another store. \
         Remove {0} to continue with the store's key, or restore the store",
        file.display()
    );
    Error::new(Code::System, message)
}

fn lost(file: &Path) -> Error {
    let message = format!(
        "the key of tickets is lost: the store has none, though it has tokens or leases, and {0} is missing or damaged. Put {0} \
         or the store back from a backup, or let `sublet store repair --new-signing-key` make another: running leases then \
         cannot be renewed",
        file.display()
    );
    Error::new(Code::StoreDamaged, message)
}

/// Makes a new key for a store that has lost its own.
pub(crate) fn replace_signing(store: &mut dyn Store, state: &Path) -> Result<(), Error> {
    if store.get(keys::SIGNING_SEED)?.is_some()
        || matches!(KeyFile::read(&state.join(SIGNING_FILE), WHAT)?, KeyFile::Good(_))
    {
        let message = "the key of tickets is not lost: the store or the state folder has it";
        return Err(Error::new(Code::InvalidArgument, message));
    }
    share(store, chance::secret()?).map(drop)
}

/// Brings the records of an earlier version to the format of this one. Returns the number of migrated packages.
pub(crate) fn migrate(store: &mut dyn Store) -> Result<usize, Error> {
    version::mark(store)?;
    packages::migrate(store)
}

fn stored_array<const N: usize>(key: &str, value: &[u8]) -> Result<[u8; N], Error> {
    value.try_into().map_err(|_| {
        Error::new(Code::StoreDamaged, format!("the store's {key} has {} bytes instead of {N}", value.len()))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sha2::{Digest, Sha256};

    use super::*;
    use crate::key_file::KEY_BYTES;
    use crate::store::{Batch, SqliteStore};

    #[test]
    fn each_start_has_a_new_epoch_and_the_same_key() {
        let (folder, mut store) = store();
        assert_eq!((next_epoch(&mut store).unwrap(), next_epoch(&mut store).unwrap()), (1, 2));
        let key = |store: &mut SqliteStore| signing(store, folder.path()).unwrap().verifying_key();
        assert_eq!(key(&mut store), key(&mut store));
    }

    fn store() -> (tempfile::TempDir, SqliteStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
        (folder, store)
    }

    fn remove_stored(store: &mut SqliteStore) {
        let mut batch = Batch::default();
        batch.remove(keys::SIGNING_SEED.into());
        store.commit(&batch).unwrap();
    }

    #[test]
    fn signing_key_and_its_copy_restore_each_other() {
        let (folder, mut store) = store();
        let file = folder.path().join(SIGNING_FILE);
        let key = signing(&mut store, folder.path()).unwrap().verifying_key();
        let good = fs::read(&file).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        let mut flipped = good.clone();
        flipped[7] ^= 1;
        for damage in [flipped, Vec::new(), good[..40].to_vec()] {
            fs::write(&file, damage).unwrap();
            assert_eq!(signing(&mut store, folder.path()).unwrap().verifying_key(), key);
            assert_eq!(fs::read(&file).unwrap(), good);
        }
        fs::remove_file(&file).unwrap();
        assert_eq!(signing(&mut store, folder.path()).unwrap().verifying_key(), key);
        remove_stored(&mut store);
        assert_eq!(signing(&mut store, folder.path()).unwrap().verifying_key(), key);
        assert!(store.get(keys::SIGNING_SEED).unwrap().is_some());
    }

    #[test]
    fn makes_no_new_signing_key_while_tokens_exist() {
        let (folder, mut store) = store();
        let key = signing(&mut store, folder.path()).unwrap().verifying_key();
        let mut batch = Batch::default();
        batch.put("token/0".into(), b"t".to_vec());
        store.commit(&batch).unwrap();
        remove_stored(&mut store);
        let file = folder.path().join(SIGNING_FILE);
        fs::remove_file(&file).unwrap();
        let error = signing(&mut store, folder.path()).err().unwrap();
        assert!(error.message.contains("is lost") && error.message.contains("signing.key"), "{error}");
        assert!(!file.exists());
        replace_signing(&mut store, folder.path()).unwrap();
        assert_ne!(signing(&mut store, folder.path()).unwrap().verifying_key(), key);
        assert_eq!(replace_signing(&mut store, folder.path()).unwrap_err().code, Code::InvalidArgument);
        let mut other = [9; KEY_BYTES].to_vec();
        other.extend(Sha256::digest([9; KEY_BYTES]));
        fs::write(&file, other).unwrap();
        let error = signing(&mut store, folder.path()).err().unwrap();
        assert!(error.message.contains("altered"), "{error}");
    }
}
