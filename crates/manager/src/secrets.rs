//! Secrets of tenants: values that functions get as environment variables, encrypted in the store.
//!
//! ```text
//! store          secret/<tenant>/<name>   the value by ChaCha20-Poly1305, bound to its record's key
//! store          manager/secrets-key      by what the managers of a store recognize the key
//! state folder   secrets.key              the key, mode 600: never in the store or its backups
//! ```
//!
//! The first secret of a store makes the key. Further managers of the store need a copy of the file. No request of a
//! client returns a value; an agent gets the values of a lease's secrets for the lease's worker processes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use prost::Message;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use sha2::{Digest, Sha256};
use sublet_proto::needs::{check_secret_name, check_secret_value};
use sublet_proto::v1::{
    SecretInfo, SecretList, SecretRecord, SecretUse, SetSecretRequest, StoreUse, Variable,
};
use sublet_proto::{Code, Error, decode};

use crate::chance;
use crate::clock::Clock;
use crate::database::Database;
use crate::key_file::{self, Key, KeyFile};
use crate::reply::ReplyPage;
use crate::store::RECORD_BYTES;
use crate::store::{Batch, Store, each_record, keys};

/// Most secrets of a tenant.
const MAX_SECRETS: u64 = 1_000;
/// Name of the state folder's file with the key.
pub(crate) const KEY_FILE: &str = "secrets.key";
/// Name of the key in errors.
const WHAT: &str = "the key of secrets";
/// Prefix of the hash by which a key is recognized, which therefore is no hash of anything else.
const RECOGNITION: &[u8] = b"sublet: key of secrets\n";

/// The secrets of a store.
pub(crate) struct StoreSecrets {
    database: Database,
    clock: Clock,
    file: Arc<PathBuf>,
}

impl StoreSecrets {
    /// Opens the secrets of a store whose key is in this file, from the first secret on.
    pub(crate) fn new(database: Database, clock: Clock, file: PathBuf) -> StoreSecrets {
        StoreSecrets { database, clock, file: Arc::new(file) }
    }

    /// Returns the further use of the store by a secret of this size.
    pub(crate) fn more(request: &SetSecretRequest) -> StoreUse {
        StoreUse { bytes: request.value.len() as u64 + 2 * RECORD_BYTES, ..StoreUse::default() }
    }

    /// Stores a secret of a tenant, in place of one of the same name.
    pub(crate) async fn set(&self, tenant: &str, request: SetSecretRequest) -> Result<SecretInfo, Error> {
        check_secret_name(&request.name)?;
        check_secret_value(&request.name, &request.value)?;
        let (tenant, file) = (tenant.to_owned(), Arc::clone(&self.file));
        let set_unix_ms = self.clock.now_ms();
        let store = move |store: &mut dyn Store| {
            let SetSecretRequest { name, value } = request;
            let place = record_key(&tenant, &name);
            if store.get(&place)?.is_none() && store.size(&record_key(&tenant, ""))?.records >= MAX_SECRETS {
                let message = format!("tenant {tenant} has {MAX_SECRETS} secrets, which is the most");
                return Err(Error::new(Code::QuotaExceeded, message));
            }
            let key = key_or_new(store, &file)?;
            let record = seal(&key, &place, value.into_bytes(), set_unix_ms)?;
            let mut batch = Batch::default();
            batch.put(place, record.encode_to_vec());
            store.commit(&batch)?;
            Ok(SecretInfo { name, set_unix_ms })
        };
        self.database.keeping_reserve(store).await
    }

    /// Returns a page of the names of a tenant's secrets.
    pub(crate) async fn list(&self, tenant: &str, after: &str) -> Result<SecretList, Error> {
        let (prefix, after) = (record_key(tenant, ""), after.to_owned());
        let read = move |store: &mut dyn Store| {
            let mut list = ReplyPage::default();
            each_record(store, &prefix, |found| {
                let name = &found.key[prefix.len()..];
                if name > after.as_str() && !list.is_full() {
                    let SecretRecord { set_unix_ms, .. } = decode("a stored secret", &found.value)?;
                    list.add(name, SecretInfo { name: name.to_owned(), set_unix_ms });
                }
                Ok(())
            })?;
            Ok(SecretList { secrets: list.items, next: list.next })
        };
        self.database.with(read).await
    }

    /// Removes a secret of a tenant.
    pub(crate) async fn remove(&self, tenant: &str, name: &str) -> Result<SecretInfo, Error> {
        check_secret_name(name)?;
        let (tenant, name) = (tenant.to_owned(), name.to_owned());
        let remove = move |store: &mut dyn Store| {
            let place = record_key(&tenant, &name);
            let Some(found) = store.get(&place)? else { return Err(unknown(&tenant, &name)) };
            let SecretRecord { set_unix_ms, .. } = decode("a stored secret", &found.value)?;
            let mut batch = Batch::default();
            batch.remove(place);
            store.commit(&batch)?;
            Ok(SecretInfo { name, set_unix_ms })
        };
        self.database.with(remove).await
    }

    /// Checks that a tenant has these secrets.
    ///
    /// # Errors
    /// `invalid_argument` with the name of the first one that it does not have.
    pub(crate) async fn check(&self, tenant: &str, uses: &[SecretUse]) -> Result<(), Error> {
        if uses.is_empty() {
            return Ok(());
        }
        let (tenant, names): (_, Vec<_>) =
            (tenant.to_owned(), uses.iter().map(|one| one.secret.clone()).collect());
        let look = move |store: &mut dyn Store| {
            let places: Vec<_> = names.iter().map(|name| record_key(&tenant, name)).collect();
            let found = store.get_each(&places)?;
            match names.iter().zip(found).find(|(_, found)| found.is_none()) {
                Some((name, _)) => Err(unknown(&tenant, name)),
                None => Ok(()),
            }
        };
        self.database.with(look).await
    }

    /// Returns the values of a tenant's secrets, by the variables that are to have them.
    pub(crate) async fn open(&self, tenant: &str, uses: Vec<SecretUse>) -> Result<Vec<Variable>, Error> {
        if uses.is_empty() {
            return Ok(Vec::new());
        }
        let (tenant, file) = (tenant.to_owned(), Arc::clone(&self.file));
        let read = move |store: &mut dyn Store| {
            let key = known_key(store, &file)?.ok_or_else(|| key_missing(&file))?;
            let one = |SecretUse { variable, secret }| {
                let place = record_key(&tenant, &secret);
                let found = store.get(&place)?.ok_or_else(|| unknown(&tenant, &secret))?;
                let value = open(&key, &place, decode("a stored secret", &found.value)?)?;
                Ok(Variable { name: variable, value })
            };
            uses.into_iter().map(one).collect()
        };
        self.database.with(read).await
    }
}

fn record_key(tenant: &str, name: &str) -> String {
    format!("{}{tenant}/{name}", keys::SECRET)
}

fn unknown(tenant: &str, name: &str) -> Error {
    let message = format!("tenant {tenant} has no secret {name:?} (`sublet secret set {name}`)");
    Error::new(Code::InvalidArgument, message)
}

/// Hash by which managers recognize the key of their store.
fn recognition(key: &Key) -> Vec<u8> {
    Sha256::new().chain_update(RECOGNITION).chain_update(key).finalize().to_vec()
}

/// The key in this manager's file, if there is one and it is the store's.
fn known_key(store: &dyn Store, file: &Path) -> Result<Option<Key>, Error> {
    let stored = store.get(keys::SECRETS_KEY)?.map(|stored| stored.value);
    match (KeyFile::read(file, WHAT)?, stored) {
        (KeyFile::Good(key), Some(stored)) if recognition(&key) != stored => {
            let message = format!(
                "{} is not the key of this store's secrets: copy that of another manager of the store, or remove the \
                 store's secrets",
                file.display()
            );
            Err(Error::new(Code::System, message))
        }
        (KeyFile::Good(key), _) => Ok(Some(key)),
        (KeyFile::Damaged, _) => {
            let message = format!(
                "{WHAT} in {} is damaged: put it back from a backup or another manager",
                file.display()
            );
            Err(Error::new(Code::System, message))
        }
        (KeyFile::Missing, Some(_)) => Err(key_missing(file)),
        (KeyFile::Missing, None) => Ok(None),
    }
}

/// The key of the store's secrets, which is made if no manager of the store has one.
fn key_or_new(store: &mut dyn Store, file: &Path) -> Result<Key, Error> {
    let key = match known_key(store, file)? {
        Some(key) => key,
        None => {
            let key = chance::secret()?;
            key_file::write(file, &key, WHAT)?;
            key
        }
    };
    if store.get(keys::SECRETS_KEY)?.is_none() {
        store.compare_and_swap(keys::SECRETS_KEY, 0, &recognition(&key))?;
        // Another manager may have made a key meanwhile.
        known_key(store, file)?;
    }
    Ok(key)
}

fn key_missing(file: &Path) -> Error {
    let message = format!(
        "{WHAT} is not on this manager: copy {KEY_FILE} from the state folder of another manager of the store, or from a \
         backup, to {} (mode 600)",
        file.display()
    );
    Error::new(Code::System, message)
}

fn cipher(key: &Key) -> Result<LessSafeKey, Error> {
    let key = UnboundKey::new(&CHACHA20_POLY1305, key);
    key.map(LessSafeKey::new).map_err(|_| Error::new(Code::Internal, "a key of secrets has another length"))
}

fn seal(key: &Key, place: &str, mut value: Vec<u8>, set_unix_ms: u64) -> Result<SecretRecord, Error> {
    let nonce: [u8; NONCE_LEN] = chance::secret()?;
    let sealed = cipher(key)?.seal_in_place_append_tag(
        Nonce::assume_unique_for_key(nonce),
        Aad::from(place.as_bytes()),
        &mut value,
    );
    sealed.map_err(|_| Error::new(Code::Internal, "a secret cannot be encrypted"))?;
    Ok(SecretRecord { nonce: nonce.to_vec(), sealed: value, set_unix_ms })
}

/// Decrypts the record at a place. A record that was moved there from another place does not open.
fn open(key: &Key, place: &str, record: SecretRecord) -> Result<String, Error> {
    let damaged =
        || Error::new(Code::StoreDamaged, format!("the store's {place} cannot be decrypted: set it anew"));
    let SecretRecord { nonce, mut sealed, .. } = record;
    let nonce = Nonce::try_assume_unique_for_key(&nonce).map_err(|_| damaged())?;
    let aad = Aad::from(place.as_bytes());
    let value = cipher(key)?.open_in_place(nonce, aad, &mut sealed).map_err(|_| damaged())?;
    String::from_utf8(value.to_vec()).map_err(|_| damaged())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::store::SqliteStore;

    const VALUE: &str = "correct horse battery staple";

    struct Fixture {
        folder: tempfile::TempDir,
        secrets: StoreSecrets,
        database: Database,
    }

    fn fixture() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
        let database = Database::new(Box::new(store));
        let file = folder.path().join(KEY_FILE);
        let secrets = StoreSecrets::new(database.clone(), Clock::start(), file);
        Fixture { folder, secrets, database }
    }

    fn request(name: &str, value: &str) -> SetSecretRequest {
        SetSecretRequest { name: name.into(), value: value.into() }
    }

    fn uses(names: &[&str]) -> Vec<SecretUse> {
        names.iter().map(|name| sublet_proto::needs::parse_secret_use(name)).collect()
    }

    #[tokio::test]
    async fn secret_is_encrypted_in_the_store_and_opens_for_its_tenant() {
        let Fixture { folder, secrets, .. } = fixture();
        secrets.set("alice", request("KEY", VALUE)).await.unwrap();
        let opened = secrets.open("alice", uses(&["DB=KEY"])).await.unwrap();
        assert_eq!((opened[0].name.as_str(), opened[0].value.as_str()), ("DB", VALUE));
        for entry in fs::read_dir(folder.path()).unwrap() {
            let bytes = fs::read(entry.unwrap().path()).unwrap();
            assert!(!bytes.windows(VALUE.len()).any(|part| part == VALUE.as_bytes()));
        }
        let mode = fs::metadata(folder.path().join(KEY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = secrets.open("bob", uses(&["KEY"])).await.unwrap_err();
        assert!(
            error.code == Code::InvalidArgument && error.message.contains("bob has no secret"),
            "{error}"
        );
        assert!(secrets.check("bob", &uses(&["KEY"])).await.is_err());
        secrets.check("alice", &uses(&["KEY"])).await.unwrap();
    }

    #[tokio::test]
    async fn moved_record_does_not_open() {
        let Fixture { secrets, database, folder: _folder } = fixture();
        secrets.set("alice", request("KEY", VALUE)).await.unwrap();
        let copy = |store: &mut dyn Store| {
            let record = store.get(&record_key("alice", "KEY"))?.unwrap();
            let mut batch = Batch::default();
            batch.put(record_key("bob", "KEY"), record.value);
            store.commit(&batch)
        };
        database.with(copy).await.unwrap();
        assert_eq!(secrets.open("bob", uses(&["KEY"])).await.unwrap_err().code, Code::StoreDamaged);
    }

    #[tokio::test]
    async fn lost_or_foreign_key_is_reported_and_never_replaced() {
        let Fixture { folder, secrets, .. } = fixture();
        secrets.set("alice", request("KEY", VALUE)).await.unwrap();
        let file = folder.path().join(KEY_FILE);
        let good = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        for error in [
            secrets.open("alice", uses(&["KEY"])).await.unwrap_err(),
            secrets.set("alice", request("OTHER", VALUE)).await.unwrap_err(),
        ] {
            assert!(error.message.contains(KEY_FILE), "{error}");
        }
        assert!(!file.exists());
        key_file::write(&file, &[7; 32], WHAT).unwrap();
        let error = secrets.open("alice", uses(&["KEY"])).await.unwrap_err();
        assert!(error.message.contains("not the key of this store"), "{error}");
        fs::write(&file, &good[1..]).unwrap();
        assert!(secrets.open("alice", uses(&["KEY"])).await.unwrap_err().message.contains("damaged"));
        fs::write(&file, good).unwrap();
        assert_eq!(secrets.open("alice", uses(&["KEY"])).await.unwrap()[0].value, VALUE);
    }

    #[tokio::test]
    async fn list_has_names_and_removal_is_by_name() {
        let Fixture { secrets, folder: _folder, .. } = fixture();
        secrets.set("alice", request("B", "x")).await.unwrap();
        secrets.set("alice", request("A", "x")).await.unwrap();
        secrets.set("alicia", request("C", "x")).await.unwrap();
        let names: Vec<_> =
            secrets.list("alice", "").await.unwrap().secrets.into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["A", "B"]);
        secrets.remove("alice", "A").await.unwrap();
        let error = secrets.remove("alice", "A").await.unwrap_err();
        assert!(error.message.contains("no secret \"A\""), "{error}");
        for (name, value) in
            [("a/b", "x"), ("", "x"), ("A", ""), ("A", "x\0"), ("A", &"x".repeat(16 << 10 | 1))]
        {
            assert_eq!(
                secrets.set("alice", request(name, value)).await.unwrap_err().code,
                Code::InvalidArgument
            );
        }
    }
}
