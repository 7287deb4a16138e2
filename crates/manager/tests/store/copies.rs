//! Copies of the embedded store while it is in use.

use std::fs::File;
use std::path::{Path, PathBuf};

use sublet_manager::store::{BLOB_PART_BYTES, Batch, BlobPart, SqliteStore, Store, StoreRecord};
use sublet_proto::Code;
use tempfile::TempDir;

use super::{put, value};

const BLOBS: u32 = 4;

fn store() -> (TempDir, SqliteStore) {
    let folder = tempfile::tempdir().unwrap();
    let mut store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
    let mut batch = Batch::default();
    (0..100).for_each(|number| batch.put(format!("token/{number:03}"), vec![1; 1000]));
    store.commit(&batch).unwrap();
    for digest in (0..BLOBS).map(|number| format!("d{number}")) {
        store.put_blob_part(BlobPart { digest: &digest, index: 0 }, &[2; BLOB_PART_BYTES]).unwrap();
    }
    (folder, store)
}

fn records(store: &dyn Store) -> Vec<StoreRecord> {
    store.scan("token/", None, 1000).unwrap()
}

fn written(copy: &sublet_manager::store::StoreCopy, folder: &Path) -> PathBuf {
    let path = folder.join("copy.sqlite");
    copy.write_to(&File::create_new(&path).unwrap()).unwrap();
    path
}

fn log_bytes(folder: &Path) -> u64 {
    folder.join("store.sqlite-wal").metadata().unwrap().len()
}

#[test]
fn copy_is_of_the_moment_at_which_it_began() {
    let (folder, mut store) = store();
    let before = records(&store);
    let copy = store.begin_copy().unwrap();
    // More than fits into the log before it is usually written to the file, and what writes it at once otherwise: the
    // removal of a blob.
    for number in 0..40 {
        put(&mut store, &format!("token/{number:03}"), &vec![3; 200 << 10]).unwrap();
    }
    (0..BLOBS).for_each(|number| store.remove_blob(&format!("d{number}")).unwrap());
    let path = written(&copy, folder.path());
    let copied = SqliteStore::open(&path).unwrap();
    assert!(records(&copied) == before, "the copy has later records");
    assert_eq!(copied.blobs().unwrap().len(), BLOBS as usize);
    assert_eq!(value(&store, "token/000").unwrap().len(), 200 << 10, "the store has what came later");
}

#[test]
fn log_is_written_to_the_file_after_a_copy() {
    let (folder, mut store) = store();
    let copy = store.begin_copy().unwrap();
    let change = |store: &mut SqliteStore, from: u32| {
        (from..from + 40).for_each(|number| {
            put(store, &format!("lease/{number:03}"), &vec![4; 400 << 10]).unwrap();
        });
    };
    change(&mut store, 0);
    let kept_bytes = log_bytes(folder.path());
    assert!(kept_bytes > 40 * (400 << 10), "{kept_bytes}");
    drop(copy);
    // A log that is in the file is written from its beginning again.
    change(&mut store, 100);
    assert!(log_bytes(folder.path()) < kept_bytes * 3 / 2, "{} after {kept_bytes}", log_bytes(folder.path()));
}

#[test]
fn only_one_copy_is_made_at_a_time() {
    let (folder, mut store) = store();
    let copy = store.begin_copy().unwrap();
    assert_eq!(store.begin_copy().unwrap_err().code, Code::TryLater);
    drop(copy);
    let copy = store.begin_copy().unwrap();
    // The lock on the store's file is not lost when a copy ends: another process cannot open it.
    drop(copy);
    let output = std::process::Command::new("python3")
        .args(["-c", "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('select count(*) from entries')"])
        .arg(folder.path().join("store.sqlite"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("locked"), "{said}");
}

#[test]
fn full_journal_is_begun_anew_after_a_copy() {
    let (folder, mut store) = store();
    let before = records(&store);
    let journal_bytes = || folder.path().join("store.journal").metadata().unwrap().len();
    let base_bytes = journal_bytes();
    let copy = store.begin_copy().unwrap();
    // The journal has no larger values than this one.
    let change = |store: &mut SqliteStore| put(store, "token/000", &[5; 32 << 10]).unwrap();
    (0..150).for_each(|_| change(&mut store));
    let copied = SqliteStore::open(&written(&copy, folder.path())).unwrap();
    assert!(records(&copied) == before, "the copy has later records");
    assert!(journal_bytes() > base_bytes + (4 << 20), "{} after {base_bytes}", journal_bytes());
    drop((copied, copy));
    change(&mut store);
    assert!(journal_bytes() < base_bytes + (1 << 20), "{} after {base_bytes}", journal_bytes());
}
