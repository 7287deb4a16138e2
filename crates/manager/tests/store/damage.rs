//! Tests the embedded store on faulty disks: flipped bits, torn and missing files, older copies.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use sublet_manager::store::{AuditReport, SqliteStore, Store, check, repair};
use sublet_proto::{Code, Error};
use tempfile::TempDir;

use super::{put, value};

const FILES: [&str; 3] = ["store.sqlite", "store.sqlite-wal", "store.journal"];
/// Trials for each file. Each has a bit of its own.
const FLIPS: u64 = 60;

/// A store as a killed manager leaves it, with its records.
struct KilledStore {
    folder: TempDir,
    records: BTreeMap<String, Vec<u8>>,
}

/// A random generator with a seed, so that a failure can be repeated.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn file(folder: &Path) -> PathBuf {
    folder.join(FILES[0])
}

/// A store with much in its file, and later changes in its write-ahead log.
fn killed() -> KilledStore {
    let live = tempfile::tempdir().unwrap();
    let mut records = BTreeMap::new();
    let mut store = SqliteStore::open(&file(live.path())).unwrap();
    let mut write = |store: &mut SqliteStore, key: String, value: Vec<u8>| {
        put(store, &key, &value).unwrap();
        records.insert(key, value);
    };
    for number in 0..40u32 {
        write(&mut store, format!("token/{number:04}"), vec![number as u8; 90]);
        write(&mut store, format!("lease/{number:04}"), vec![number as u8; 900]);
    }
    // The next opening brings all of this into the file.
    drop(store);
    let mut store = SqliteStore::open(&file(live.path())).unwrap();
    for number in 0..40u32 {
        // Revoked, and used.
        write(&mut store, format!("token/{number:04}"), vec![!number as u8; 99]);
        write(&mut store, format!("lease/{number:04}"), vec![!number as u8; 910]);
    }
    let folder = tempfile::tempdir().unwrap();
    copy(live.path(), folder.path());
    assert!(fs::metadata(folder.path().join(FILES[1])).unwrap().len() > 50_000);
    KilledStore { folder, records }
}

fn copy(from: &Path, to: &Path) {
    for name in FILES {
        if from.join(name).exists() {
            fs::copy(from.join(name), to.join(name)).unwrap();
        }
    }
}

impl KilledStore {
    /// A copy that is damaged.
    fn damaged(&self, damage: impl FnOnce(&Path)) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        copy(self.folder.path(), folder.path());
        damage(folder.path());
        folder
    }

    /// Asserts that every record exists.
    fn assert_whole(&self, store: &SqliteStore, what: &str) {
        for (key, expected) in &self.records {
            assert_eq!(value(store, key).as_ref(), Some(expected), "{what}: {key}");
        }
        assert_eq!(store.scan("token/", None, 99).unwrap().len(), 40, "{what}");
    }

    /// Asserts that a repaired store has no faults, has all tokens if possible, and reports the kinds with lost
    /// records.
    fn assert_repaired(&self, folder: &Path, what: &str) {
        let (report, kept) = repair(&file(folder)).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(kept.is_dir());
        let store = SqliteStore::open(&file(folder)).unwrap_or_else(|error| panic!("{what}: {error}"));
        for (key, expected) in &self.records {
            match value(&store, key) {
                Some(found) if found == *expected => {}
                found => {
                    assert!(found.is_none(), "{what}: {key} is another record");
                    let kind = key.split('/').next().unwrap();
                    assert_ne!(kind, "token", "{what}: {key} stands in the journal");
                    assert!(!report.lost.is_empty(), "{what}: {key} is gone, and nothing was said");
                }
            }
        }
    }
}

fn flip(file: &Path, bit: u64) {
    let mut bytes = fs::read(file).unwrap();
    bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    fs::write(file, bytes).unwrap();
}

fn refusal(opened: Result<SqliteStore, Error>, what: &str) -> Option<String> {
    let error = opened.err()?;
    assert_eq!(error.code, Code::StoreDamaged, "{what}: {error}");
    Some(error.message)
}

#[test]
fn notices_every_flipped_bit_that_loses_something() {
    let killed = killed();
    for name in FILES {
        let (mut chance, mut refused) = (Chance(0x9e37_79b9_7f4a_7c15), 0);
        for _ in 0..FLIPS {
            let bits = fs::metadata(killed.folder.path().join(name)).unwrap().len() * 8;
            let bit = chance.below(bits);
            let what = format!("bit {bit} of {name}");
            let folder = killed.damaged(|folder| flip(&folder.join(name), bit));
            match SqliteStore::open(&file(folder.path())) {
                Ok(store) => killed.assert_whole(&store, &what),
                refusal => {
                    refused += 1;
                    self::refusal(refusal, &what);
                    let folder = killed.damaged(|folder| flip(&folder.join(name), bit));
                    killed.assert_repaired(folder.path(), &what);
                }
            }
        }
        // The journal has all that the log has, and the file all that the journal has.
        let may_refuse = name == "store.sqlite";
        assert!(may_refuse || refused == 0, "{refused} of {FLIPS} flips in {name} were not mended");
    }
}

#[test]
fn puts_back_a_torn_or_missing_write_ahead_log() {
    let killed = killed();
    let len = fs::metadata(killed.folder.path().join(FILES[1])).unwrap().len();
    for left in [0, 40, len / 3, len - 1] {
        let folder = killed.damaged(|folder| {
            let wal = fs::OpenOptions::new().write(true).open(folder.join(FILES[1])).unwrap();
            wal.set_len(left).unwrap();
        });
        let store = SqliteStore::open(&file(folder.path())).unwrap();
        killed.assert_whole(&store, &format!("{left} bytes of the log"));
        assert!(!store.report().restored.is_empty(), "what was put back is said");
    }
    let folder = killed.damaged(|folder| fs::remove_file(folder.join(FILES[1])).unwrap());
    let store = SqliteStore::open(&file(folder.path())).unwrap();
    killed.assert_whole(&store, "no log");
    let restored = &store.report().restored;
    assert!(restored.iter().any(|record| record == "token/0007"), "{restored:?}");
    drop(store);
    let store = SqliteStore::open(&file(folder.path())).unwrap();
    assert_eq!(
        *store.report(),
        AuditReport { records: store.report().records.clone(), ..AuditReport::default() }
    );
}

#[test]
fn detects_a_missing_or_old_file_and_repairs_it() {
    let killed = killed();
    let without = || {
        killed
            .damaged(|folder| FILES[..2].iter().for_each(|name| fs::remove_file(folder.join(name)).unwrap()))
    };
    let folder = without();
    let message =
        refusal(SqliteStore::open(&file(folder.path())), "no file").expect("it has lost everything");
    assert!(message.contains("store.journal"), "{message}");
    killed.assert_repaired(without().path(), "no file");

    let live = tempfile::tempdir().unwrap();
    copy(killed.folder.path(), live.path());
    let mut store = SqliteStore::open(&file(live.path())).unwrap();
    put(&mut store, "token/0001", b"revoked later").unwrap();
    put(&mut store, "lease/later", b"used later").unwrap();
    drop(store);
    // A journal that begins after the old copy ends.
    drop(SqliteStore::open(&file(live.path())).unwrap());
    FILES[..2].iter().for_each(|name| {
        fs::copy(killed.folder.path().join(name), live.path().join(name)).unwrap();
    });
    let message =
        refusal(SqliteStore::open(&file(live.path())), "older").expect("it is older than its journal");
    assert!(message.contains("older copy"), "{message}");
    let (report, _) = repair(&file(live.path())).unwrap();
    assert!(report.lost.iter().any(|lost| lost.contains("older copy")), "{report:?}");
    let store = SqliteStore::open(&file(live.path())).unwrap();
    assert_eq!(value(&store, "token/0001").unwrap(), b"revoked later", "a revocation is not undone");
}

#[test]
fn goes_on_without_a_journal_and_says_so() {
    let killed = killed();
    let folder = killed.damaged(|folder| fs::remove_file(folder.join(FILES[2])).unwrap());
    let store = SqliteStore::open(&file(folder.path())).unwrap();
    killed.assert_whole(&store, "no journal");
    assert!(store.report().notes[0].contains("journal is missing"), "{:?}", store.report());
}

#[test]
fn a_check_changes_nothing_and_names_what_is_damaged() {
    let killed = killed();
    let folder = killed.damaged(|_| ());
    assert_eq!(check(&file(folder.path())).unwrap().lost, [""; 0]);
    // A record that no journal has, with a changed value under its old checksum.
    let connection = rusqlite::Connection::open(file(folder.path())).unwrap();
    connection.execute("UPDATE entries SET value = x'00' WHERE key = 'lease/0005'", []).unwrap();
    connection.execute("DELETE FROM entries WHERE key = 'token/0009'", []).unwrap();
    drop(connection);
    // The journal that a clean start has left: without the leases' changes.
    let clean = tempfile::tempdir().unwrap();
    copy(killed.folder.path(), clean.path());
    drop(SqliteStore::open(&file(clean.path())).unwrap());
    fs::copy(clean.path().join(FILES[2]), folder.path().join(FILES[2])).unwrap();
    for _ in 0..2 {
        let report = check(&file(folder.path())).unwrap();
        assert!(report.lost.iter().any(|lost| lost.contains("lease/0005")), "{report:?}");
    }
    let message = refusal(SqliteStore::open(&file(folder.path())), "altered").expect("a lease is lost");
    assert!(message.contains("lease/0005"), "{message}");
    let (report, _) = repair(&file(folder.path())).unwrap();
    assert!(report.restored.contains(&"token/0009".to_owned()), "{report:?}");
    let store = SqliteStore::open(&file(folder.path())).unwrap();
    assert_eq!(value(&store, "lease/0005"), None);
    assert_eq!(value(&store, "token/0009").as_ref(), killed.records.get("token/0009"));
}

#[test]
fn seals_the_records_of_an_earlier_format_once() {
    let folder = tempfile::tempdir().unwrap();
    let connection = rusqlite::Connection::open(file(folder.path())).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
             CREATE TABLE logs (log TEXT NOT NULL, sequence INTEGER NOT NULL, record BLOB NOT NULL,
                 PRIMARY KEY (log, sequence)) WITHOUT ROWID;
             CREATE TABLE blobs (digest TEXT NOT NULL, part INTEGER NOT NULL, data BLOB NOT NULL,
                 PRIMARY KEY (digest, part));
             INSERT INTO entries VALUES ('token/a', x'31', 3);
             INSERT INTO logs VALUES ('deployments', 1, x'32');
             PRAGMA user_version = 1;",
        )
        .unwrap();
    for number in 0..600 {
        let values = rusqlite::params![format!("lease/{number:04}"), b"l", 1];
        connection.execute("INSERT INTO entries VALUES (?1, ?2, ?3)", values).unwrap();
    }
    drop(connection);
    let store = SqliteStore::open(&file(folder.path())).unwrap();
    let found = store.get("token/a").unwrap().unwrap();
    assert_eq!((found.value.as_slice(), found.version), (b"1".as_slice(), 3));
    assert_eq!(store.scan("lease/", None, 999).unwrap().len(), 600);
    drop(store);
    // A mark that says again that there are no checksums is no way around them.
    let connection = rusqlite::Connection::open(file(folder.path())).unwrap();
    connection
        .execute_batch("UPDATE entries SET value = x'00', seal = NULL; PRAGMA user_version = 1;")
        .unwrap();
    drop(connection);
    let message = refusal(SqliteStore::open(&file(folder.path())), "mark").expect("it was altered");
    assert!(message.contains("has checksums"), "{message}");
}

#[test]
fn drops_the_logs_of_earlier_versions() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = SqliteStore::open(&file(folder.path())).unwrap();
    put(&mut store, "token/a", b"1").unwrap();
    drop(store);
    let connection = rusqlite::Connection::open(file(folder.path())).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE logs (log TEXT NOT NULL, sequence INTEGER NOT NULL, record BLOB NOT NULL, seal BLOB,
                 PRIMARY KEY (log, sequence)) WITHOUT ROWID;
             INSERT INTO logs VALUES ('deployments', 1, x'32', x'00');
             INSERT INTO tallies VALUES ('log deployments', 1, zeroblob(16));",
        )
        .unwrap();
    drop(connection);
    let store = SqliteStore::open(&file(folder.path())).unwrap();
    assert_eq!(value(&store, "token/a").unwrap(), b"1");
    drop(store);
    let connection = rusqlite::Connection::open(file(folder.path())).unwrap();
    let left = "SELECT (SELECT count(*) FROM sqlite_master WHERE name = 'logs') + (SELECT count(*) FROM tallies WHERE kind LIKE 'log %')";
    assert_eq!(connection.query_row(left, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
}

#[test]
fn token_changes_need_a_sync_and_lease_changes_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = SqliteStore::open(&file(folder.path())).unwrap();
    put(&mut store, "lease/a", b"1").unwrap();
    assert!(store.unsynced().is_none());
    put(&mut store, "token/a", b"1").unwrap();
    let group = store.unsynced().expect("a token was changed");
    assert!(store.unsynced().is_none(), "once");
    group.sync().unwrap();
    assert!(store.compare_and_swap("manager/epoch", 0, b"1").unwrap());
    store.unsynced().expect("an epoch was changed").sync().unwrap();
}
