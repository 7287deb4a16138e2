//! Tests that a store of a later version is refused by name, and that all of its files stay as they are.

use std::fs;
use std::path::Path;

use rusqlite::Connection;
use sublet_manager::store::{NatsStore, SqliteStore, check, repair};
use sublet_manager::upkeep::{check_nats, repair_nats};
use sublet_proto::{Code, Error};

use super::nats::NatsServer;
use super::{open, options, put};

/// The files of a folder with their contents, in the order of their names.
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let content =
        |entry: fs::DirEntry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap());
    let mut contents: Vec<_> = entries.map(content).collect();
    contents.sort();
    contents
}

#[track_caller]
fn assert_refused<T>(refused: Result<T, Error>, named: [&str; 2]) {
    let Err(error) = refused else { panic!("it was accepted") };
    assert_eq!(error.code, Code::VersionMismatch, "{error}");
    assert!(named.iter().all(|name| error.message.contains(name)), "{error}");
}

/// Checks that nothing opens the store in a folder, and that nothing changes its files.
#[track_caller]
fn assert_kept(folder: &Path, named: [&str; 2]) {
    let file = folder.join("store.sqlite");
    let before = contents(folder);
    assert_refused(SqliteStore::open(&file), named);
    assert_refused(check(&file), named);
    assert_refused(repair(&file), named);
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let after = contents(folder);
    assert_eq!(names(&after), names(&before));
    assert!(after == before, "a file was changed");
}

/// A store with one record.
fn store(folder: &Path) -> SqliteStore {
    let mut store = SqliteStore::open(&folder.join("store.sqlite")).unwrap();
    put(&mut store, "token/a", b"1").unwrap();
    store
}

#[test]
fn later_file_is_refused_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    drop(store(folder.path()));
    let file = folder.path().join("store.sqlite");
    let later = Connection::open(&file).unwrap();
    later.execute_batch("CREATE TABLE later (key TEXT); PRAGMA user_version = 3;").unwrap();
    drop(later);
    assert_kept(folder.path(), ["format 3", "up to 2"]);
}

#[test]
fn later_write_ahead_log_is_refused_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    drop(store(folder.path()));
    let later = Connection::open(folder.path().join("store.sqlite")).unwrap();
    later.execute_batch("PRAGMA journal_mode = WAL; PRAGMA user_version = 3;").unwrap();
    // As a killed manager of the later version leaves them: its format is in the log only.
    let killed = tempfile::tempdir().unwrap();
    for name in ["store.sqlite", "store.sqlite-wal", "store.journal"] {
        fs::copy(folder.path().join(name), killed.path().join(name)).unwrap();
    }
    drop(later);
    assert!(fs::metadata(killed.path().join("store.sqlite-wal")).unwrap().len() > 0);
    assert_kept(killed.path(), ["format 3", "up to 2"]);
}

#[test]
fn later_journal_is_refused_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    drop(store(folder.path()));
    let journal = folder.path().join("store.journal");
    let mut bytes = fs::read(&journal).unwrap();
    assert_eq!(&bytes[..8], b"SUBLETJ1");
    bytes[7] = b'2';
    fs::write(&journal, bytes).unwrap();
    assert_kept(folder.path(), ["format 2", "up to 1"]);
}

#[test]
fn later_records_on_servers_are_refused() {
    let server = NatsServer::start();
    let mut store = open(&server);
    put(&mut store, "manager/records", &2u64.to_le_bytes()).unwrap();
    drop(store);
    let folder = tempfile::tempdir().unwrap();
    assert_refused(check_nats(&options(&server)), ["format 2", "up to 1"]);
    assert_refused(repair_nats(&options(&server)), ["format 2", "up to 1"]);
    assert_refused(
        NatsStore::open_noting(&options(&server), &folder.path().join("streams")),
        ["format 2", "up to 1"],
    );
}
