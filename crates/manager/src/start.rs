//! What a manager takes from its store when it starts: an epoch of its own, and the secret of tickets.

use sublet_proto::ticket::Signing;
use sublet_proto::{Code, Error};

use crate::chance;
use crate::store::{Store, keys};

/// Starts of a manager that may race for an epoch on one store.
const EPOCH_ATTEMPTS: u32 = 16;
const SEED_BYTES: usize = 32;

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

/// The key of tickets, which all managers of a store share; the first one makes it.
pub(crate) fn signing(store: &mut dyn Store) -> Result<Signing, Error> {
    if store.get(keys::SIGNING_SEED)?.is_none() {
        store.compare_and_swap(keys::SIGNING_SEED, 0, &chance::secret::<SEED_BYTES>()?)?;
    }
    let known = store.get(keys::SIGNING_SEED)?;
    let seed = stored_array(keys::SIGNING_SEED, &known.map(|known| known.value).unwrap_or_default())?;
    Ok(Signing::from_seed(&seed))
}

fn stored_array<const N: usize>(key: &str, value: &[u8]) -> Result<[u8; N], Error> {
    value.try_into().map_err(|_| {
        Error::new(Code::System, format!("the store's {key} has {} bytes instead of {N}", value.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::SqliteStore;

    #[test]
    fn each_start_has_an_epoch_of_its_own_and_the_same_key() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
        assert_eq!((next_epoch(&mut store).unwrap(), next_epoch(&mut store).unwrap()), (1, 2));
        let key = |store: &mut SqliteStore| signing(store).unwrap().verifying_key();
        assert_eq!(key(&mut store), key(&mut store));
    }
}
