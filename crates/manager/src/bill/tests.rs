//! Whatever leases have used and whenever, a bill's lines add up, by whichever kind.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use sublet_proto::v1::{FunctionUsage, LeaseState, Price};

use super::*;
use crate::core::LeaseId;
use crate::lease_records;
use crate::ledger::{LedgerEntry, RecordWriter};
use crate::peers::{Peers, Spending};
use crate::store::SqliteStore;

/// Some minutes before midnight.
pub(super) const START_MS: u64 = 42 * 24 * HOUR_MS - 3 * MINUTE_MS;

/// A ledger that leases can be written into.
pub(super) struct Books<S> {
    pub(super) folder: tempfile::TempDir,
    pub(super) store: S,
    writer: RecordWriter,
}

pub(super) fn books() -> Books<SqliteStore> {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
    books_in(folder, store)
}

pub(super) fn books_in<S: Store>(folder: tempfile::TempDir, store: S) -> Books<S> {
    let writer = writer(&store, 1);
    Books { folder, store, writer }
}

fn writer(store: &dyn Store, epoch: u64) -> RecordWriter {
    RecordWriter::new(Spending::new(epoch), Arc::new(Mutex::new(Peers::join(store, epoch).unwrap())))
}

/// A lease's reported usage after some time.
#[derive(Clone, Debug)]
pub(super) struct UsageStep {
    pub(super) lease: u8,
    pub(super) seconds: u64,
    pub(super) executing_ns: u64,
    pub(super) function: u32,
    pub(super) restarts: bool,
}

/// Generates steps with fewer than `seconds` seconds between them.
pub(super) fn steps(seconds: u64) -> impl Strategy<Value = Vec<UsageStep>> {
    let step = (0u8..4, 0..seconds, 0u64..3_000_000_000, 0u32..3, any::<bool>());
    let step = step.prop_map(|(lease, seconds, executing_ns, function, restarts)| UsageStep {
        lease,
        seconds,
        executing_ns,
        function,
        restarts,
    });
    proptest::collection::vec(step, 1..40)
}

pub(super) fn lease(number: u8) -> Lease {
    Lease {
        id: LeaseId(u128::from(number) + 1).to_string(),
        tenant: format!("t{}", number % 2),
        package: "sha256:0".into(),
        package_name: "p".into(),
        memory_bytes: 77_777_777,
        granted_unix_ms: START_MS,
        price: Some(Price {
            allocation_nano_per_gib_s: 1_003,
            compute_nano_per_core_s: 20_011,
            polling_nano_per_core_s: 25_013,
        }),
        usage: Some(Usage::default()),
        expires_unix_ms: u64::MAX,
        ..Lease::default()
    }
}

impl<S: Store> Books<S> {
    pub(super) fn write(&mut self, lease: &Lease, now_ms: u64) {
        let id = lease.id.parse().unwrap();
        let entry = LedgerEntry { id, revision: 1, lease: lease.clone(), token: String::new() };
        self.writer.write(&mut self.store, &[entry], now_ms).unwrap();
    }

    /// Lets time pass as the steps say; how the leases are after them, and when.
    pub(super) fn live(&mut self, steps: &[UsageStep]) -> (Vec<Lease>, u64) {
        let mut leases: Vec<Lease> = (0..4).map(lease).collect();
        let mut now_ms = START_MS;
        for (epoch, step) in (2..).zip(steps) {
            now_ms += step.seconds * 1000;
            let lease = &mut leases[usize::from(step.lease)];
            let usage = lease.usage.get_or_insert_default();
            usage.allocated_ns += 1 + step.seconds * 1_000_000_000;
            usage.executing_ns += step.executing_ns;
            usage.polling_ns += step.executing_ns / 3;
            usage.calls += 1;
            let known = lease.function_usage.iter_mut().find(|usage| usage.function == step.function);
            match known {
                Some(usage) => {
                    (usage.executing_ns, usage.calls) =
                        (usage.executing_ns + step.executing_ns, usage.calls + 1)
                }
                None => lease.function_usage.push(FunctionUsage {
                    function: step.function,
                    executing_ns: step.executing_ns,
                    calls: 1,
                    failed_calls: 0,
                }),
            }
            if step.restarts {
                self.writer = writer(&self.store, epoch);
            }
            let lease = lease.clone();
            self.write(&lease, now_ms);
        }
        (leases, now_ms)
    }
}

pub(super) async fn bill(bills: &Bills, asked: BillRequest) -> BillReply {
    let by = asked.by();
    let bill = bills.make(asked, None).await.unwrap();
    let total = price::total(&bill.lines);
    assert_eq!(bill.total, Some(total), "the lines of {by:?} do not add up");
    bill
}

#[test]
fn bill_counts_the_lines_that_it_leaves_out() {
    let mut lines = BillLines::new(BillBy::Tenant);
    let usage = Usage { calls: 1, ..Usage::default() };
    for number in 0..5 {
        lines.sum_tenant(&format!("{number}{}", "x".repeat(1 << 20)), usage, Cost::default()).unwrap();
    }
    let BillReply { lines, total, left_out } = lines.finish();
    assert_eq!((lines.len(), left_out), (2, 3));
    assert_eq!(total.unwrap().usage.unwrap().calls, 5);
}

async fn check(steps: Vec<UsageStep>) {
    let mut books = books();
    let (leases, now_ms) = books.live(&steps);
    let Books { folder: _folder, store, .. } = books;
    let bills = Bills::new(Database::new(Box::new(store)), Clock::start());
    let used = leases.iter().filter(|lease| lease.usage != Some(Usage::default()));
    let owed: u64 = used.map(|lease| price::bill(lease).total_nano).sum();
    let middle_ms = (START_MS + now_ms) / 2 / MINUTE_MS * MINUTE_MS;
    let mut halves_nano = 0;
    for (from_unix_ms, to_unix_ms) in [(0, 0), (0, middle_ms), (middle_ms, 0)] {
        let mut totals = Vec::new();
        for by in [BillBy::Lease, BillBy::Tenant, BillBy::Function, BillBy::Period, BillBy::Pu] {
            let period_ms = 2 * MINUTE_MS;
            let asked =
                BillRequest { from_unix_ms, to_unix_ms, by: by.into(), period_ms, ..BillRequest::default() };
            totals.push(bill(&bills, asked).await.total.unwrap());
        }
        assert!(totals.iter().all(|total| *total == totals[0]), "kinds differ: {totals:?}");
        if (from_unix_ms, to_unix_ms) == (0, 0) {
            assert_eq!(totals[0].total_nano, owed);
        } else {
            halves_nano += totals[0].total_nano;
        }
    }
    assert_eq!(halves_nano, owed, "two halves are not the whole");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_kind_of_line_adds_up_to_the_same_total(steps in steps(400)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(check(steps));
    }
}

#[test]
fn a_late_writer_neither_loses_nor_doubles_usage() {
    let mut books = books();
    let with = |seconds: u64, state: LeaseState| {
        let mut lease = lease(0);
        let ns = seconds * 1_000_000_000;
        lease.usage = Some(Usage { allocated_ns: ns, executing_ns: ns, ..Usage::default() });
        lease.set_state(state);
        lease
    };
    books.write(&with(5, LeaseState::Attached), START_MS);
    // Another manager takes the lease over, and sees it end.
    let mut other = writer(&books.store, 2);
    std::mem::swap(&mut books.writer, &mut other);
    books.write(&with(9, LeaseState::Ended), START_MS + MINUTE_MS);
    // The first manager, which was cut off, writes its outdated state.
    std::mem::swap(&mut books.writer, &mut other);
    books.write(&with(7, LeaseState::Attached), START_MS + 2 * MINUTE_MS);
    let record = lease_records::stored(&books.store, &lease(0).id).unwrap().unwrap();
    assert_eq!(record.lease.state(), LeaseState::Ended);
    assert_eq!(record.lease.usage.unwrap().executing_ns, 9_000_000_000);
    let peers = Peers::join(&books.store, 3).unwrap();
    assert_eq!(peers.table().elsewhere("t0").spent_nano, price::bill(&record.lease).total_nano);
}

#[test]
fn a_period_that_is_no_whole_minutes_is_refused() {
    let asked = BillRequest { period_ms: 90_001, ..BillRequest::default() };
    assert_eq!(Scope::of(asked, None).unwrap_err().code, Code::InvalidArgument);
}
