//! Whatever is folded, and wherever that is interrupted, bills of whole days stay as they were.

#[path = "../../../../../tests/src/nats.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod nats;

use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use sublet_proto::v1::{BillBy, BillRequest, Lease};

use super::super::Bills;
use super::super::span::DAY_MINUTES;
use super::super::tests::{self as ledger_tests, Books, START_MS, bill, books, books_in, steps};
use super::*;
use crate::clock::Clock;
use crate::database::Database;
use crate::store::{
    Blob, BlobPart, NatsOptions, NatsStore, SqliteStore, StoreCopy, StoreRecord, VersionedValue,
};

const DAY_MS: u64 = DAY_MINUTES * MINUTE_MS;
/// Time after all entries of the ledger.
const LATER_MS: u64 = START_MS + 1000 * DAY_MS;

/// A store that fails after some changes. As on a server, each change of a batch is made by itself.
struct FailingStore<S> {
    store: Arc<Mutex<S>>,
    /// Changes that it still makes.
    left: Arc<Mutex<u32>>,
}

impl<S> Clone for FailingStore<S> {
    fn clone(&self) -> FailingStore<S> {
        FailingStore { store: Arc::clone(&self.store), left: Arc::clone(&self.left) }
    }
}

impl<S: Store> FailingStore<S> {
    fn new(store: S) -> FailingStore<S> {
        FailingStore { store: Arc::new(Mutex::new(store)), left: Arc::new(Mutex::new(u32::MAX)) }
    }

    fn change<T>(&self, change: impl FnOnce(&mut S) -> Result<T, Error>) -> Result<T, Error> {
        let mut left = self.left.lock().unwrap();
        *left = left.checked_sub(1).ok_or_else(|| Error::new(Code::StoreUnreachable, "no change is left"))?;
        change(&mut self.store.lock().unwrap())
    }

    fn allow(&self, changes: u32) {
        *self.left.lock().unwrap() = changes;
    }

    fn bills(&self) -> Bills
    where
        S: 'static,
    {
        Bills::new(Database::new(Box::new(self.clone())), Clock::start())
    }
}

impl<S: Store> Store for FailingStore<S> {
    fn get(&self, key: &str) -> Result<Option<VersionedValue>, Error> {
        self.store.lock().unwrap().get(key)
    }

    fn compare_and_swap(&mut self, key: &str, version: u64, value: &[u8]) -> Result<bool, Error> {
        self.change(|store| store.compare_and_swap(key, version, value))
    }

    fn remove_if(&mut self, key: &str, version: u64) -> Result<bool, Error> {
        self.change(|store| store.remove_if(key, version))
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        for put in &batch.puts {
            self.change(|store| store.commit(&Batch { puts: vec![put.clone()], ..Batch::default() }))?;
        }
        for key in &batch.removes {
            self.change(|store| store.commit(&Batch { removes: vec![key.clone()], ..Batch::default() }))?;
        }
        Ok(())
    }

    fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<StoreRecord>, Error> {
        self.store.lock().unwrap().scan(prefix, after, limit)
    }

    fn scan_back(&self, prefix: &str, before: Option<&str>, limit: usize) -> Result<Vec<StoreRecord>, Error> {
        self.store.lock().unwrap().scan_back(prefix, before, limit)
    }

    fn begin_copy(&mut self) -> Result<StoreCopy, Error> {
        self.store.lock().unwrap().begin_copy()
    }

    fn put_blob_part(&mut self, part: BlobPart<'_>, data: &[u8]) -> Result<(), Error> {
        self.store.lock().unwrap().put_blob_part(part, data)
    }

    fn blob_part(&self, part: BlobPart<'_>) -> Result<Option<Vec<u8>>, Error> {
        self.store.lock().unwrap().blob_part(part)
    }

    fn remove_blob(&mut self, digest: &str) -> Result<(), Error> {
        self.store.lock().unwrap().remove_blob(digest)
    }

    fn blobs(&self) -> Result<Vec<Blob>, Error> {
        self.store.lock().unwrap().blobs()
    }

    fn blob_parts(&self, digest: &str) -> Result<u32, Error> {
        self.store.lock().unwrap().blob_parts(digest)
    }
}

/// Lets leases live as the steps say, and end `later_days` days later each.
fn live<S: Store>(books: &mut Books<S>, steps: &[ledger_tests::UsageStep], later_days: [u64; 4]) -> u64 {
    let (mut leases, now_ms) = books.live(steps);
    for (lease, later_days) in leases.iter_mut().zip(later_days) {
        let ended_ms = now_ms + later_days * DAY_MS;
        lease.ended_unix_ms = ended_ms;
        lease.set_state(LeaseState::Ended);
        books.write(lease, ended_ms);
    }
    now_ms
}

/// All bills of whole days.
async fn all_bills(bills: &Bills, now_ms: u64) -> Vec<(Vec<BillLine>, BillLine)> {
    let day = |ms: u64| ms / DAY_MS * DAY_MS;
    let middle_ms = day((START_MS + now_ms) / 2);
    let mut all = Vec::new();
    for (from_unix_ms, to_unix_ms) in [
        (0, 0),
        (0, middle_ms),
        (middle_ms, 0),
        (day(now_ms), day(now_ms) + DAY_MS),
        (middle_ms, day(now_ms) + DAY_MS),
    ] {
        for tenant in ["", "t0"] {
            for by in [BillBy::Lease, BillBy::Tenant, BillBy::Function, BillBy::Period, BillBy::Pu] {
                let asked = BillRequest {
                    from_unix_ms,
                    to_unix_ms,
                    by: by.into(),
                    period_ms: DAY_MS,
                    tenant: tenant.into(),
                    ..BillRequest::default()
                };
                let reply = bill(bills, asked).await;
                // The bill no longer tells the leases apart.
                let lines = if by == BillBy::Lease { Vec::new() } else { reply.lines };
                all.push((lines, reply.total.unwrap()));
            }
        }
    }
    all
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn leases_of(store: &dyn Store) -> Vec<StoreRecord> {
    store.scan(keys::LEASE, None, 9).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn bills_of_whole_days_are_the_same_after_folding(steps in steps(20_000)) {
        let mut books = books();
        let now_ms = live(&mut books, &steps, [0, 0, 3, 3]);
        let store = FailingStore::new(books.store);
        block_on(async {
            let bills = store.bills();
            let before = all_bills(&bills, now_ms).await;
            let some_ms = now_ms / DAY_MS * DAY_MS + DAY_MS;
            for (before_ms, folded) in [(some_ms, 2), (some_ms, 0), (LATER_MS, 2), (LATER_MS, 0)] {
                assert_eq!(bills.fold(before_ms).await.unwrap(), folded);
                assert_eq!(all_bills(&bills, now_ms).await, before);
            }
        });
        for kind in [keys::LEASE, keys::USAGE] {
            assert_eq!(store.scan(kind, None, 9).unwrap(), []);
        }
        drop(store);
        let report = crate::store::check(&books.folder.path().join("store.sqlite")).unwrap();
        assert!(report.lost.is_empty(), "{:?}", report.lost);
    }
}

/// Steps of several leases and functions, before and after midnight.
fn fixed_steps() -> Vec<ledger_tests::UsageStep> {
    let step = |number: u32| ledger_tests::UsageStep {
        lease: (number % 4) as u8,
        seconds: 40,
        executing_ns: 1_234_567_891 + u64::from(number),
        function: number % 3,
        restarts: false,
    };
    (0..14).map(step).collect()
}

/// Folds with an interruption after each `every`th number of changes, until none interrupts.
fn interrupt_everywhere<S: Store + 'static>(every: usize, mut open: impl FnMut() -> Books<S>) {
    for changes in (0..).step_by(every) {
        let mut books = open();
        let now_ms = live(&mut books, &fixed_steps(), [0; 4]);
        let store = FailingStore::new(books.store);
        let bills = || block_on(all_bills(&store.bills(), now_ms));
        let before = bills();
        store.allow(changes);
        // The step began long ago, so that others take it for abandoned.
        let was_interrupted = step(&mut store.clone(), None, LATER_MS, START_MS).is_err();
        store.allow(u32::MAX);
        assert_eq!(bills(), before, "after {changes} changes");
        block_on(store.bills().fold(LATER_MS)).unwrap();
        assert_eq!(bills(), before, "after {changes} changes and the rest");
        assert_eq!(leases_of(&store), []);
        assert_eq!(store.scan(keys::USAGE, None, 9).unwrap(), []);
        if !was_interrupted {
            assert!(changes > 20, "only {changes} changes");
            return;
        }
    }
}

#[test]
fn folding_interrupted_after_any_change_is_completed() {
    interrupt_everywhere(1, books);
}

#[test]
fn interrupted_folding_is_completed_on_a_server_too() {
    let server = nats::NatsServer::start();
    let mut number = 0;
    interrupt_everywhere(9, || {
        number += 1;
        let name = format!("fold{number}");
        let options = NatsOptions { url: server.url(), name, replicas: 1, ca_file: None };
        books_in(tempfile::tempdir().unwrap(), NatsStore::open(&options).unwrap())
    });
}

#[test]
fn one_manager_folds_at_a_time_and_bills_wait() {
    let mut books = books();
    live(&mut books, &fixed_steps(), [0; 4]);
    let leases: Vec<String> =
        leases_of(&books.store).iter().map(|found| found.key[keys::LEASE.len()..].to_owned()).collect();
    let begun = FoldStep { number: 1, leases, begun_unix_ms: LATER_MS, before_unix_ms: LATER_MS };
    begun.write(&mut books.store, 0).unwrap();
    let just_after_ms = LATER_MS + ABANDONED_MS - 1;
    let refused = step(&mut books.store, None, LATER_MS, just_after_ms).unwrap_err();
    assert_eq!(refused.code, Code::TryLater);
    assert_eq!(settle(&mut books.store, just_after_ms).unwrap(), None);
    assert_eq!(leases_of(&books.store).len(), 4);
    assert!(settle(&mut books.store, LATER_MS + ABANDONED_MS).unwrap().is_some());
    assert_eq!(leases_of(&books.store), []);
}

#[test]
fn a_manager_that_wakes_up_late_adds_nothing() {
    let mut books = books();
    live(&mut books, &fixed_steps(), [0; 4]);
    let mut sums = BTreeMap::new();
    for found in leases_of(&books.store) {
        let record: LeaseRecord = decode("a lease", &found.value).unwrap();
        let minutes = minutes_of(&books.store, &record).unwrap();
        sum_up(&mut sums, record, &minutes);
    }
    step(&mut books.store, None, LATER_MS, LATER_MS).unwrap();
    let folded = books.store.scan("folded/", None, 99).unwrap();
    for (key, sum) in sums {
        put(&mut books.store, &key, sum, 1).unwrap();
    }
    assert_eq!(books.store.scan("folded/", None, 99).unwrap(), folded);
}

#[test]
fn late_report_of_a_folded_lease_is_not_counted_again() {
    let mut books = books();
    let granted_ms = START_MS;
    let id = crate::core::LeaseId::new(granted_ms, 7);
    let mut lease = Lease {
        id: id.to_string(),
        granted_unix_ms: granted_ms,
        ended_unix_ms: granted_ms,
        ..ledger_tests::lease(0)
    };
    lease.set_state(LeaseState::Ended);
    lease.usage = Some(Usage { executing_ns: 5_000_000_000, ..Usage::default() });
    books.write(&lease, granted_ms);
    let later_ms = START_MS + 3 * DAY_MS;
    assert_eq!(step(&mut books.store, None, later_ms, later_ms).unwrap().folded, 1);
    // The agent was disconnected, and reports the lease as if it had ended just now.
    let late = Lease { ended_unix_ms: later_ms, expires_unix_ms: later_ms, ..lease };
    books.write(&late, later_ms);
    assert_eq!(leases_of(&books.store), []);
}

#[test]
fn step_is_bounded_by_the_minutes_that_its_leases_lived() {
    let mut books = books();
    let begun_ms = START_MS + 2 * STEP_MINUTES * MINUTE_MS;
    for number in 0..4 {
        let granted_unix_ms = begun_ms - STEP_MINUTES * MINUTE_MS / 3;
        let mut lease = Lease { granted_unix_ms, ended_unix_ms: begun_ms, ..ledger_tests::lease(number) };
        lease.set_state(LeaseState::Ended);
        books.write(&lease, begun_ms);
    }
    let later_ms = begun_ms + 3 * DAY_MS;
    let first = step(&mut books.store, None, later_ms, later_ms).unwrap();
    assert_eq!(first.folded, 2);
    let second = step(&mut books.store, first.reached.as_deref(), later_ms, later_ms).unwrap();
    assert_eq!(second.folded, 2);
    assert_eq!(leases_of(&books.store), []);
}

#[test]
fn leases_that_go_on_or_ended_later_stay() {
    let mut books = books();
    let (leases, now_ms) = books.live(&fixed_steps());
    let next_day_ms = now_ms / DAY_MS * DAY_MS + DAY_MS;
    let end = |lease: &Lease, ended_unix_ms| {
        let mut lease = Lease { ended_unix_ms, ..lease.clone() };
        lease.set_state(LeaseState::Ended);
        lease
    };
    books.write(&end(&leases[0], now_ms), now_ms);
    books.write(&end(&leases[1], next_day_ms), now_ms);
    // A lease that was written later may change again.
    books.write(&end(&leases[2], now_ms), next_day_ms);
    assert_eq!(step(&mut books.store, None, next_day_ms, LATER_MS).unwrap().folded, 1);
    let left: Vec<String> = leases_of(&books.store).into_iter().map(|found| found.key).collect();
    assert_eq!(left, [1, 2, 3].map(|number: usize| format!("{}{}", keys::LEASE, leases[number].id)));
}

/// `cargo test --release --workspace --lib time_to_fold -- --ignored --nocapture`
#[test]
#[ignore = "a measurement of minutes; LEASES says of how many leases"]
fn time_to_fold() {
    let number = std::env::var("LEASES").map_or(1_000_000, |text| text.parse::<u32>().unwrap());
    let Books { folder, mut store, .. } = books();
    fill(&mut store, number);
    let file = folder.path().join("store.sqlite");
    let bytes = |store: &mut SqliteStore| {
        let copy = tempfile::tempfile().unwrap();
        store.begin_copy().unwrap().write_to(&copy).unwrap() / u64::from(number)
    };
    let before = bytes(&mut store);
    let shared = FailingStore::new(store);
    let begun = std::time::Instant::now();
    assert_eq!(block_on(shared.bills().fold(LATER_MS)).unwrap(), u64::from(number));
    let took = begun.elapsed();
    let (sums, after) = (shared.size("folded/").unwrap(), bytes(&mut shared.store.lock().unwrap()));
    println!("{number} leases: {before} bytes each, {after} after {took:?}, {sums:?}, {file:?}");
}

/// Leases of an hour of 1,000 leases, of 20 tenants with a package of two functions each.
fn fill(store: &mut SqliteStore, number: u32) {
    let functions = |calls| {
        (0..2).map(move |function| sublet_proto::v1::FunctionUsage {
            function,
            executing_ns: 1_000_000,
            calls,
            failed_calls: 0,
        })
    };
    for first in (0..number).step_by(1000) {
        let mut batch = Batch::default();
        for number in first..number.min(first + 1000) {
            let granted_unix_ms = START_MS + u64::from(number) * 3_600;
            let usage = Usage { allocated_ns: 90_000_000_000, executing_ns: 2_000_000, ..Usage::default() };
            let mut lease = Lease {
                id: crate::core::LeaseId(u128::from(granted_unix_ms) << 64 | u128::from(number)).to_string(),
                tenant: format!("tenant{}", number % 20),
                package: format!("sha256:{:064x}", number % 20),
                package_name: format!("package{}", number % 20),
                pu: "cpu".into(),
                memory_bytes: 256 << 20,
                granted_unix_ms,
                ended_unix_ms: granted_unix_ms + 90_000,
                price: Some(sublet_proto::v1::Price::default()),
                usage: Some(usage),
                function_usage: functions(20).collect(),
                ..Lease::default()
            };
            lease.set_state(LeaseState::Ended);
            let minute = granted_unix_ms / MINUTE_MS + 1;
            let mut record = LeaseRecord::new(minute);
            record.lease = lease;
            let (key, last) = record.last_minute();
            batch.put(format!("{}{}", keys::LEASE, record.lease.id), record.encode_to_vec());
            batch.put(key, last.encode_to_vec());
            let before = Minute { end: Usage { allocated_ns: 1, ..usage }, ..Minute::default() };
            batch.put(
                format!("{}{:012}/{}", keys::USAGE, minute - 1, record.lease.id),
                before.encode_to_vec(),
            );
        }
        store.commit(&batch).unwrap();
    }
}
