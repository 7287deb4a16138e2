//! Tests that every store must pass, written once: SQLite in a folder, and NATS with a real server.

use std::sync::{Arc, Mutex};

use sublet_manager::store::{
    BLOB_PART_BYTES, Batch, BlobPart, MAX_KEY_BYTES, MAX_VALUE_BYTES, SqliteStore, Store, StoreRecord,
};
use sublet_proto::Code;
use tempfile::TempDir;

use super::nats::NatsServer;
use super::{open, put, value};

/// Somewhere to keep a store.
enum StoreLocation {
    Folder(TempDir),
    Server(NatsServer),
}

impl StoreLocation {
    fn open(&self) -> Box<dyn Store> {
        match self {
            StoreLocation::Folder(folder) => {
                Box::new(SqliteStore::open(&folder.path().join("store.sqlite")).unwrap())
            }
            StoreLocation::Server(server) => Box::new(open(server)),
        }
    }

    /// Several hands on one store: connections of their own where the store takes them, else one by turns.
    fn open_several(&self, count: usize) -> Vec<Arc<Mutex<Box<dyn Store>>>> {
        match self {
            StoreLocation::Folder(_) => {
                let one = Arc::new(Mutex::new(self.open()));
                vec![one; count]
            }
            StoreLocation::Server(_) => (0..count).map(|_| Arc::new(Mutex::new(self.open()))).collect(),
        }
    }
}

/// A module of tests for each store.
macro_rules! over_every_store {
    ($($behaviour:ident)*) => {
        mod sqlite { $(#[test] fn $behaviour() {
            super::$behaviour(&super::StoreLocation::Folder(tempfile::tempdir().unwrap()));
        })* }
        mod nats_server { $(#[test] fn $behaviour() {
            super::$behaviour(&super::StoreLocation::Server(super::NatsServer::start()));
        })* }
    };
}

over_every_store! {
    a_key_changes_only_if_its_version_is_known
    of_many_who_race_for_a_key_one_wins_each_time
    a_value_may_be_empty_and_is_not_an_absent_one
    a_removed_key_is_gone_and_can_be_made_anew
    a_key_is_removed_only_if_its_version_is_known
    values_of_many_keys_come_in_their_order
    scans_give_the_keys_of_a_prefix_in_order_page_by_page
    scans_keep_odd_keys_apart
    a_scan_of_many_pages_gives_every_key_once
    a_batch_may_be_made_again
    the_size_of_a_prefix_is_that_of_its_values
    blobs_come_back_in_parts_until_they_are_removed
    a_blob_of_several_megabytes_comes_back_whole
    what_was_stored_is_there_after_opening_again
    what_no_store_takes_is_refused
}

fn remove(store: &mut dyn Store, key: &str) {
    let mut batch = Batch::default();
    batch.remove(key.into());
    store.commit(&batch).unwrap();
}

fn keys(records: Vec<StoreRecord>) -> Vec<String> {
    records.into_iter().map(|record| record.key).collect()
}

fn a_key_changes_only_if_its_version_is_known(place: &StoreLocation) {
    let mut store = place.open();
    assert!(store.compare_and_swap("t/a", 0, b"1").unwrap());
    assert!(!store.compare_and_swap("t/a", 0, b"2").unwrap());
    let first = store.get("t/a").unwrap().unwrap().version;
    assert!(store.compare_and_swap("t/a", first, b"2").unwrap());
    assert!(!store.compare_and_swap("t/a", first, b"3").unwrap());
    put(&mut *store, "t/other", b"x").unwrap();
    put(&mut *store, "t/a", b"4").unwrap();
    let last = store.get("t/a").unwrap().unwrap();
    assert_eq!(last.value, b"4");
    assert!(last.version > first + 1, "{} after {first}", last.version);
    assert!(!store.compare_and_swap("t/absent", last.version, b"5").unwrap());
    assert_eq!(store.get("t/absent").unwrap(), None);
}

fn of_many_who_race_for_a_key_one_wins_each_time(place: &StoreLocation) {
    const RACERS: usize = 4;
    const WINS: u64 = 25;
    let count_up = |store: &Mutex<Box<dyn Store>>| {
        let mut wins = 0;
        while wins < WINS {
            // Others get their turn between looking and changing.
            let found = store.lock().unwrap().get("t/counter").unwrap();
            let version = found.as_ref().map_or(0, |found| found.version);
            let count = found.map_or(0, |found| u64::from_le_bytes(found.value.try_into().unwrap()));
            let next = (count + 1).to_le_bytes();
            wins += u64::from(store.lock().unwrap().compare_and_swap("t/counter", version, &next).unwrap());
        }
    };
    let stores = place.open_several(RACERS);
    std::thread::scope(|scope| {
        for store in &stores {
            scope.spawn(|| count_up(store));
        }
    });
    let counted = value(&**stores[0].lock().unwrap(), "t/counter").unwrap();
    assert_eq!(u64::from_le_bytes(counted.try_into().unwrap()), RACERS as u64 * WINS);
}

fn a_value_may_be_empty_and_is_not_an_absent_one(place: &StoreLocation) {
    let mut store = place.open();
    put(&mut *store, "t/empty", b"").unwrap();
    assert_eq!(value(&*store, "t/empty"), Some(Vec::new()));
    assert_eq!(store.scan("t/", None, 9).unwrap().len(), 1);
    let part = BlobPart { digest: "d", index: 0 };
    store.put_blob_part(part, b"").unwrap();
    assert_eq!(store.blob_part(part).unwrap(), Some(Vec::new()));
}

fn a_removed_key_is_gone_and_can_be_made_anew(place: &StoreLocation) {
    let mut store = place.open();
    for key in ["t/a", "t/a/b", "t/ab"] {
        put(&mut *store, key, b"1").unwrap();
    }
    remove(&mut *store, "t/a");
    remove(&mut *store, "t/absent");
    assert_eq!(store.get("t/a").unwrap(), None);
    assert_eq!(keys(store.scan("t/", None, 9).unwrap()), ["t/a/b", "t/ab"]);
    assert!(store.compare_and_swap("t/a", 0, b"2").unwrap());
    assert_eq!(value(&*store, "t/a").unwrap(), b"2");
}

fn a_key_is_removed_only_if_its_version_is_known(place: &StoreLocation) {
    let mut store = place.open();
    put(&mut *store, "t/a", b"1").unwrap();
    let first = store.get("t/a").unwrap().unwrap().version;
    put(&mut *store, "t/a", b"2").unwrap();
    assert!(!store.remove_if("t/a", first).unwrap());
    assert!(!store.remove_if("t/absent", first).unwrap());
    let last = store.get("t/a").unwrap().unwrap();
    assert_eq!(last.value, b"2");
    assert!(store.remove_if("t/a", last.version).unwrap());
    assert_eq!(store.get("t/a").unwrap(), None);
}

fn values_of_many_keys_come_in_their_order(place: &StoreLocation) {
    let mut store = place.open();
    let mut batch = Batch::default();
    (0..600).for_each(|number| batch.put(format!("t/{number}"), format!("{number}").into()));
    store.commit(&batch).unwrap();
    let keys: Vec<String> = (0..700).rev().map(|number| format!("t/{number}")).collect();
    let found = store.get_each(&keys).unwrap();
    let expected = (0..700).rev().map(|number| (number < 600).then(|| format!("{number}").into_bytes()));
    assert!(found.into_iter().eq(expected));
    assert_eq!(store.get_each(&[]).unwrap(), Vec::<Option<Vec<u8>>>::new());
}

fn scans_give_the_keys_of_a_prefix_in_order_page_by_page(place: &StoreLocation) {
    let mut store = place.open();
    for key in ["a/3", "a/1", "b/1", "a/2", "a/10/x"] {
        put(&mut *store, key, key.as_bytes()).unwrap();
    }
    let forth = |after, limit| keys(store.scan("a/", after, limit).unwrap());
    assert_eq!(forth(None, 2), ["a/1", "a/10/x"]);
    assert_eq!(forth(Some("a/10/x"), 2), ["a/2", "a/3"]);
    assert_eq!(forth(Some("a/3"), 2), [""; 0]);
    assert_eq!(forth(Some("a/15"), 9), ["a/2", "a/3"], "from where there is no key");
    let back = |before, limit| keys(store.scan_back("a/", before, limit).unwrap());
    assert_eq!(back(None, 2), ["a/3", "a/2"]);
    assert_eq!(back(Some("a/2"), 9), ["a/10/x", "a/1"]);
    assert_eq!(keys(store.scan("a/1", None, 9).unwrap()), ["a/1", "a/10/x"], "a prefix may end anywhere");
    assert_eq!(keys(store.scan("a/10/", None, 9).unwrap()), ["a/10/x"]);
    assert_eq!(keys(store.scan("c/", None, 9).unwrap()), [""; 0]);
    assert_eq!(keys(store.scan("a/", None, 0).unwrap()), [""; 0]);
    assert_eq!(store.scan("b/", None, 9).unwrap()[0].value, b"b/1");
}

fn scans_keep_odd_keys_apart(place: &StoreLocation) {
    let mut odd: Vec<String> = [
        "",
        "/",
        "//",
        "a.b",
        "a:b",
        "a=3ab",
        "a*",
        "a>",
        ">",
        "*",
        "a b",
        "a\nb",
        "a/b",
        "=",
        "$",
        "ä",
        "日本",
        "\u{7f}",
        "A",
        "a",
        "_",
        "-",
        "\u{10fffe}",
        "a\"\\",
        "sha256:00",
    ]
    .map(|rest| format!("t/{rest}"))
    .into();
    odd.push(format!("t/{}", "ü".repeat((MAX_KEY_BYTES - 2) / 2)));
    let mut store = place.open();
    let mut batch = Batch::default();
    for key in &odd {
        batch.put(key.clone(), key.clone().into_bytes());
    }
    store.commit(&batch).unwrap();
    odd.sort_unstable();
    let found = store.scan("t/", None, odd.len() + 1).unwrap();
    assert!(found.iter().all(|record| record.value == record.key.as_bytes()));
    assert_eq!(keys(found), odd);
    odd.reverse();
    assert_eq!(keys(store.scan_back("t/", None, odd.len() + 1).unwrap()), odd);
    for key in &odd {
        assert_eq!(value(&*store, key).unwrap(), key.as_bytes());
        remove(&mut *store, key);
        assert_eq!(store.get(key).unwrap(), None, "{key:?}");
    }
}

fn a_scan_of_many_pages_gives_every_key_once(place: &StoreLocation) {
    const KEYS: usize = 1000;
    let mut store = place.open();
    let mut batch = Batch::default();
    for number in 0..KEYS {
        batch.put(format!("t/{number:05}"), Vec::new());
    }
    store.commit(&batch).unwrap();
    let (mut seen, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = keys(store.scan("t/", after.as_deref(), 300).unwrap());
        let Some(last) = page.last() else { break };
        after = Some(last.clone());
        // A key that is removed meanwhile makes no page shorter, and a new one has no effect.
        remove(&mut *store, "t/00450");
        put(&mut *store, "t/00000a", b"").unwrap();
        seen.extend(page);
    }
    let expected: Vec<String> =
        (0..KEYS).filter(|&number| number != 450).map(|number| format!("t/{number:05}")).collect();
    assert_eq!(seen, expected);
}

fn the_size_of_a_prefix_is_that_of_its_values(place: &StoreLocation) {
    let mut store = place.open();
    for (key, value) in [("k/a/1", &b"abc"[..]), ("k/a/2", b""), ("k/ab", b"12345"), ("l/a/1", b"1")] {
        put(&mut *store, key, value).unwrap();
    }
    let size = |prefix: &str| store.size(prefix).map(|size| (size.records, size.bytes)).unwrap();
    assert_eq!((size("k/a/"), size("k/"), size("m/")), ((2, 3), (3, 8), (0, 0)));
}

fn a_batch_may_be_made_again(place: &StoreLocation) {
    let mut store = place.open();
    let mut batch = Batch::default();
    batch.put("t/a".into(), b"1".into());
    batch.put("t/b".into(), b"1".into());
    batch.put("t/a".into(), b"2".into());
    batch.put("u/a".into(), b"3".into());
    batch.remove("t/b".into());
    for _ in 0..2 {
        store.commit(&batch).unwrap();
        assert_eq!(value(&*store, "t/a").unwrap(), b"2", "the last put of a key counts");
        assert_eq!(value(&*store, "t/b"), None, "removals come after puts");
        assert_eq!(value(&*store, "u/a").unwrap(), b"3");
    }
    store.commit(&Batch::default()).unwrap();
}

fn blobs_come_back_in_parts_until_they_are_removed(place: &StoreLocation) {
    let mut store = place.open();
    let part = |index| BlobPart { digest: "sha256:d", index };
    store.put_blob_part(part(0), b"ab").unwrap();
    store.put_blob_part(part(1), &vec![1; BLOB_PART_BYTES]).unwrap();
    store.put_blob_part(part(1), b"d").unwrap();
    store.put_blob_part(BlobPart { digest: "sha256:e", index: 0 }, b"e").unwrap();
    assert_eq!(store.blob_part(part(0)).unwrap(), Some(b"ab".to_vec()));
    assert_eq!(store.blob_part(part(1)).unwrap(), Some(b"d".to_vec()));
    assert_eq!(store.blob_part(part(2)).unwrap(), None);
    let blobs = store.blobs().unwrap();
    let parts: Vec<_> = blobs.iter().map(|blob| (blob.digest.as_str(), blob.parts)).collect();
    assert_eq!(parts, [("sha256:d", 2), ("sha256:e", 1)]);
    assert!(blobs.iter().all(|blob| blob.bytes > 0), "{blobs:?}");
    assert_eq!((store.blob_parts("sha256:d").unwrap(), store.blob_parts("sha256:f").unwrap()), (2, 0));
    store.remove_blob("sha256:d").unwrap();
    store.remove_blob("sha256:d").unwrap();
    assert_eq!(store.blobs().unwrap().len(), 1);
    assert_eq!(store.blob_part(part(0)).unwrap(), None);
    assert_eq!(store.blob_part(part(1)).unwrap(), None);
    assert_eq!(store.blob_part(BlobPart { digest: "sha256:e", index: 0 }).unwrap(), Some(b"e".to_vec()));
}

fn a_blob_of_several_megabytes_comes_back_whole(place: &StoreLocation) {
    let blob: Vec<u8> = (0..5 * BLOB_PART_BYTES / 2).map(|place| (place / 7 % 251) as u8).collect();
    let mut store = place.open();
    for (index, data) in (0..).zip(blob.chunks(BLOB_PART_BYTES)) {
        store.put_blob_part(BlobPart { digest: "sha256:d", index }, data).unwrap();
    }
    let mut found = Vec::new();
    for index in 0.. {
        let Some(data) = store.blob_part(BlobPart { digest: "sha256:d", index }).unwrap() else { break };
        found.extend(data);
    }
    assert!(found == blob, "{} bytes came back of {}", found.len(), blob.len());
}

fn what_was_stored_is_there_after_opening_again(place: &StoreLocation) {
    let mut store = place.open();
    put(&mut *store, "t/a", b"1").unwrap();
    store.put_blob_part(BlobPart { digest: "d", index: 7 }, b"3").unwrap();
    drop(store);
    let store = place.open();
    assert_eq!(value(&*store, "t/a").unwrap(), b"1");
    assert_eq!(store.blob_part(BlobPart { digest: "d", index: 7 }).unwrap(), Some(b"3".to_vec()));
}

fn what_no_store_takes_is_refused(place: &StoreLocation) {
    let mut store = place.open();
    let long_key = format!("t/{}", "x".repeat(MAX_KEY_BYTES));
    for key in ["", "a", "/a", "A/b", "a.b/c", "*/a", &long_key] {
        let error = put(&mut *store, key, b"").unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument, "{key:?}");
        assert_eq!(store.compare_and_swap(key, 0, b"").unwrap_err().code, Code::InvalidArgument, "{key:?}");
    }
    put(&mut *store, "t/large", &vec![7; MAX_VALUE_BYTES]).unwrap();
    assert_eq!(value(&*store, "t/large").unwrap().len(), MAX_VALUE_BYTES);
    let error = put(&mut *store, "t/large", &vec![7; MAX_VALUE_BYTES + 1]).unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
    let part = BlobPart { digest: "d", index: 0 };
    let error = store.put_blob_part(part, &vec![7; BLOB_PART_BYTES + 1]).unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
}
