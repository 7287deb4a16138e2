//! Tests of runs in a store.

use sublet_proto::run::{MAX_EPOCH, entries_before};
use sublet_proto::v1::{DriveRunRequest, RunTerms, TakeRunRequest, UsagePoint};

use super::*;
use crate::store::{Blob, BlobPart, SqliteStore, StoreCopy, VersionedValue};

fn run_id(number: usize) -> String {
    format!("{number:032x}")
}

#[tokio::test]
async fn old_runs_that_have_ended_are_removed_with_all_that_is_kept_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
    let database = Database::new(Box::new(store));
    let runs = StoreRuns::new(database.clone());
    // More than a page, of two tenants: those before the 600th end before the others, and the 300th keeps running.
    let number = 2 * PAGE_RECORDS + 200;
    for of in 0..number {
        let tenant = if of % 2 == 0 { "alice" } else { "bob" };
        let request = BeginRunRequest { run: run_id(of), input: vec![7], ..BeginRunRequest::default() };
        runs.begin(tenant, request, RunInfo::default(), 1000).await.unwrap();
        if of != 300 {
            let request = EndRunRequest { run: run_id(of), ..EndRunRequest::default() };
            runs.end(tenant, request, if of < 600 { 2000 } else { 3000 }).await.unwrap();
        }
    }
    assert_eq!(runs.expire(2000).await.unwrap(), BTreeMap::new());
    let removed = BTreeMap::from([("alice".to_owned(), 299), ("bob".to_owned(), 300)]);
    assert_eq!(runs.expire(3000).await.unwrap(), removed);
    let left = number as u64 - 599;
    let sizes = [(keys::RUN, left), (keys::REPORT, left - 1), (keys::JOURNAL, 1)];
    for (kind, records) in sizes {
        let size = database.with(move |store| store.size(kind)).await.unwrap();
        assert_eq!(size.records, records, "{kind}");
    }
    assert!(runs.read("alice", ReadRunRequest { run: run_id(300), after: 0 }).await.is_ok());
}

#[tokio::test]
async fn run_whose_client_is_gone_for_long_is_ended_and_one_that_reports_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
    let database = Database::new(Box::new(store));
    let runs = StoreRuns::new(database.clone());
    let (gone, reporting, young) = (run_id(1), run_id(2), run_id(3));
    for (run, began_ms) in [(&gone, 0), (&reporting, 0), (&young, 9 * DAY_MS)] {
        let request = BeginRunRequest { run: run.clone(), input: vec![7], ..Default::default() };
        runs.begin("alice", request, RunInfo::default(), began_ms).await.unwrap();
    }
    let report = |run: &String, points| ReportRunRequest { run: run.clone(), points, ..Default::default() };
    runs.report("alice", report(&gone, vec![UsagePoint::default()]), DAY_MS).await.unwrap();
    runs.report("alice", report(&reporting, Vec::new()), 9 * DAY_MS).await.unwrap();
    let now_ms = 11 * DAY_MS;
    assert_eq!(runs.abandon(DAY_MS, now_ms).await.unwrap(), BTreeMap::new());
    let ended = BTreeMap::from([("alice".to_owned(), 1)]);
    assert_eq!(runs.abandon(9 * DAY_MS, now_ms).await.unwrap(), ended);
    let page = runs.read("alice", ReadRunRequest { run: gone.clone(), after: 0 }).await.unwrap();
    let info = page.info.unwrap();
    assert_eq!((info.ended_unix_ms, info.code), (now_ms, Code::DeadlineExceeded.number()));
    assert!(info.message.contains("10 days"), "{}", info.message);
    assert_eq!((page.input, page.points.len()), (Vec::new(), 1));
    assert!(runs.report("alice", report(&gone, Vec::new()), now_ms).await.is_err());
    let listed = runs.list("alice", ListRunsRequest { going_on: true, ..Default::default() }).await.unwrap();
    assert_eq!(listed.runs.into_iter().map(|run| run.run).collect::<Vec<_>>(), [young, reporting]);
}

/// A store with a run of a tenant, which `client` drives, and a detached one.
async fn driven_and_detached() -> (tempfile::TempDir, StoreRuns, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
    let runs = StoreRuns::new(Database::new(Box::new(store)));
    let (driven, detached) = (run_id(1), run_id(2));
    let request = |run: &String| BeginRunRequest { run: run.clone(), input: vec![7], ..Default::default() };
    let by_client = BeginRunRequest { runner: "client".into(), lease_ms: 5_000, ..request(&driven) };
    let begun = runs.begin("alice", by_client, RunInfo::default(), 1_000).await.unwrap();
    let lease = begun.lease.unwrap();
    assert_eq!((&*lease.runner, lease.epoch, lease.lease_ms), ("client", 1, 5_000));
    let on_terms = BeginRunRequest { detached: Some(RunTerms::default()), ..request(&detached) };
    assert_eq!(runs.begin("alice", on_terms, RunInfo::default(), 1_000).await.unwrap().lease, None);
    (folder, runs, driven, detached)
}

#[tokio::test]
async fn run_that_needs_bytes_of_its_client_is_marked_and_not_detached() {
    let (_folder, runs, ..) = driven_and_detached().await;
    let filled = vec!["table".to_owned()];
    let request = BeginRunRequest { run: run_id(3), filled: filled.clone(), ..Default::default() };
    let begun = runs.begin("alice", request.clone(), RunInfo::default(), 1_000).await.unwrap();
    assert_eq!(begun.filled, filled);
    let page = runs.read("alice", ReadRunRequest { run: run_id(3), after: 0 }).await.unwrap();
    assert_eq!(page.info.unwrap().filled, filled);
    for (detached, filled) in [
        (Some(RunTerms::default()), filled),
        (None, vec!["m".to_owned(); sublet_proto::graph::MAX_COMPONENTS + 1]),
    ] {
        let request = BeginRunRequest { run: run_id(4), detached, filled, ..request.clone() };
        let refused = runs.begin("alice", request, RunInfo::default(), 1_000).await;
        assert_eq!(code(refused), Some(Code::InvalidArgument));
    }
}

fn drive(run: &str, runner: &str, epoch: u64) -> DriveRunRequest {
    DriveRunRequest { run: run.into(), runner: runner.into(), epoch, lease_ms: 5_000 }
}

fn take(runner: &str) -> TakeRunRequest {
    TakeRunRequest { runner: runner.into(), lease_ms: 5_000 }
}

fn entry(number: u64, to: &[&str]) -> JournalEntry {
    let to = to.iter().map(|&to| to.to_owned()).collect();
    JournalEntry { number, from: "c".into(), to, instances: 1, ..JournalEntry::default() }
}

fn written(run: &str, epoch: u64, entries: &[JournalEntry]) -> JournalRequest {
    JournalRequest { run: run.into(), epoch, entries: entries.to_vec() }
}

fn code<T>(result: Result<T, Error>) -> Option<Code> {
    result.err().map(|error| error.code)
}

#[tokio::test]
async fn refuses_writes_of_a_process_without_the_lease() {
    let (_folder, runs, run, _) = driven_and_detached().await;
    let (first, second) = (entries_before(1), entries_before(2));
    runs.journal("alice", written(&run, 1, &[entry(first + 1, &[])])).await.unwrap();
    for now_ms in [2_000, 6_999] {
        assert_eq!(code(runs.drive("alice", drive(&run, "other", 0), now_ms).await), Some(Code::RunTaken));
    }
    runs.drive("alice", drive(&run, "", 1), 6_999).await.unwrap();
    for now_ms in [7_000, 11_999] {
        assert_eq!(code(runs.drive("alice", drive(&run, "other", 0), now_ms).await), Some(Code::RunTaken));
    }
    // After the end of the lease it still writes, until another has taken it.
    runs.journal("alice", written(&run, 1, &[entry(first + 2, &[])])).await.unwrap();
    let taken = runs.drive("alice", drive(&run, "other", 0), 12_000).await.unwrap();
    assert_eq!(taken.lease.unwrap().epoch, 2);
    let end = |epoch| EndRunRequest { run: run.clone(), epoch, ..EndRunRequest::default() };
    let report = |epoch| ReportRunRequest { run: run.clone(), epoch, ..ReportRunRequest::default() };
    for epoch in [0, 1, 3] {
        let entries = [entry(entries_before(epoch) + 3, &[])];
        assert_eq!(code(runs.journal("alice", written(&run, epoch, &entries)).await), Some(Code::RunTaken));
        assert_eq!(code(runs.report("alice", report(epoch), 9_000).await), Some(Code::RunTaken));
        assert_eq!(code(runs.end("alice", end(epoch), 9_000).await), Some(Code::RunTaken));
    }
    assert_eq!(code(runs.drive("alice", drive(&run, "", 1), 9_000).await), Some(Code::RunTaken));
    // An entry among those of another lease is refused, too.
    let stray = written(&run, 2, &[entry(first + 3, &[])]);
    assert_eq!(code(runs.journal("alice", stray).await), Some(Code::InvalidArgument));
    runs.journal("alice", written(&run, 2, &[entry(second + 1, &[])])).await.unwrap();
    let page = runs.read("alice", ReadRunRequest { run: run.clone(), after: 0 }).await.unwrap();
    let numbers: Vec<u64> = page.entries.iter().map(|entry| entry.number).collect();
    assert_eq!(numbers, [first + 1, first + 2, second + 1]);
    runs.end("alice", end(2), 9_000).await.unwrap();
    assert_eq!(code(runs.drive("alice", drive(&run, "third", 0), 99_000).await), Some(Code::UnknownRun));
}

#[tokio::test]
async fn detached_run_is_taken_once_and_keeps_its_outputs() {
    let (_folder, runs, driven, run) = driven_and_detached().await;
    assert_eq!(runs.take(Some("bob"), take("a"), 2_000).await.unwrap(), None);
    let taken = runs.take(None, take("a"), 2_000).await.unwrap().unwrap();
    assert_eq!((&taken.run, &*taken.tenant, taken.lease.unwrap().epoch), (&run, "alice", 1));
    // Its request is repeated if the answer was lost; another process gets nothing.
    let again = runs.take(Some("alice"), take("a"), 2_000).await.unwrap().unwrap();
    assert_eq!(again.lease.unwrap().epoch, 1);
    assert_eq!(runs.take(None, take("b"), 2_000).await.unwrap(), None);
    // One that hands the run back leaves it to others at once.
    let back = DriveRunRequest { lease_ms: 0, ..drive(&run, "", 1) };
    runs.drive("alice", back, 2_000).await.unwrap();
    assert_eq!(runs.take(None, take("b"), 2_000).await.unwrap().unwrap().lease.unwrap().epoch, 2);
    let before = entries_before(2);
    let number = PAGE_RECORDS as u64 + 10;
    let output = |at: u64| {
        let to: &[&str] = if at.is_multiple_of(2) { &[] } else { &["d"] };
        entry(before + at, to)
    };
    let entries: Vec<JournalEntry> = (1..=number).map(output).collect();
    runs.journal("alice", written(&run, 2, &entries)).await.unwrap();
    let outputs = vec!["c".to_owned()];
    let end =
        EndRunRequest { run: run.clone(), epoch: 2, outputs: outputs.clone(), ..EndRunRequest::default() };
    runs.end("alice", end, 3_000).await.unwrap();
    let page = runs.read("alice", ReadRunRequest { run: run.clone(), after: 0 }).await.unwrap();
    assert_eq!((page.info.unwrap().outputs, page.input.len()), (outputs, 0));
    let kept: Vec<u64> = page.entries.iter().map(|entry| entry.number - before).collect();
    assert!(kept.iter().copied().eq((2..=number).step_by(2)), "{kept:?}");
    assert_eq!(runs.take(None, take("c"), 99_000).await.unwrap(), None);
    assert_eq!(runs.remove("alice", vec![run]).await.unwrap(), 1);
    // The other one, which a client drives, is no runner's.
    assert!(runs.read("alice", ReadRunRequest { run: driven, after: 0 }).await.is_ok());
}

#[tokio::test]
async fn detached_runs_of_tenants_are_taken_in_turns() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
    let runs = StoreRuns::new(Database::new(Box::new(store)));
    for (tenant, count) in [("alice", 3), ("alice0", 1), ("bob", 2)] {
        for number in 0..count {
            let detached = Some(RunTerms::default());
            let request = BeginRunRequest { run: run_id(number), detached, ..Default::default() };
            runs.begin(tenant, request, RunInfo::default(), 1_000).await.unwrap();
        }
    }
    let mut tenants = Vec::new();
    for number in 0..6 {
        let taken = runs.take(None, take(&format!("runner-{number}")), 2_000).await.unwrap().unwrap();
        tenants.push(taken.tenant);
    }
    assert_eq!(tenants, ["alice", "alice0", "bob", "alice", "bob", "alice"]);
    assert_eq!(runs.take(None, take("last"), 2_000).await.unwrap(), None);
}

#[tokio::test]
async fn cancelled_run_takes_nothing_more() {
    let (_folder, runs, driven, detached) = driven_and_detached().await;
    for run in [driven, detached] {
        let info = runs.cancel("alice", run.clone(), 2_000).await.unwrap();
        assert_eq!((info.code, info.ended_unix_ms), (Code::RunCancelled.number(), 2_000));
        // A second one changes nothing.
        assert_eq!(runs.cancel("alice", run.clone(), 3_000).await.unwrap().ended_unix_ms, 2_000);
        let end = EndRunRequest { run: run.clone(), epoch: 1, ..EndRunRequest::default() };
        assert_eq!(code(runs.end("alice", end, 3_000).await), Some(Code::RunCancelled));
        let entries = [entry(entries_before(1) + 1, &[])];
        assert_eq!(code(runs.journal("alice", written(&run, 1, &entries)).await), Some(Code::RunCancelled));
        assert_eq!(code(runs.drive("alice", drive(&run, "a", 0), 3_000).await), Some(Code::RunCancelled));
        assert_eq!(code(runs.cancel("bob", run, 3_000).await), Some(Code::UnknownRun));
    }
    assert_eq!(runs.take(None, take("a"), 99_000).await.unwrap(), None);
}

#[tokio::test]
async fn run_that_no_process_can_end_is_ended() {
    let (_folder, runs, _, run) = driven_and_detached().await;
    let (id, lease) = (run.clone(), RunLease { epoch: MAX_EPOCH - 1, ..RunLease::default() });
    let taken_often = move |store: &mut dyn Store| {
        change(store, "alice", &id, |info| Ok(Some(RunInfo { lease: Some(lease.clone()), ..info })))
    };
    runs.database.with(taken_often).await.unwrap();
    let taken = runs.take(None, take("last"), 2_000).await.unwrap().unwrap();
    assert_eq!(taken.lease.unwrap().epoch, MAX_EPOCH);
    for now_ms in [2_000, 6_999, 7_000] {
        assert_eq!(runs.take(None, take("other"), now_ms).await.unwrap(), None);
    }
    let info = runs.read("alice", ReadRunRequest { run, after: 0 }).await.unwrap().info.unwrap();
    assert_eq!((info.code, info.ended_unix_ms), (Code::WorkerDied.number(), 7_000));
    assert!(info.message.contains("1000 processes"), "{}", info.message);
}

/// A store in which another process takes the first run while it is stored that a component begins.
struct OvertakingStore(SqliteStore);

impl Store for OvertakingStore {
    fn get(&self, key: &str) -> Result<Option<VersionedValue>, Error> {
        self.0.get(key)
    }

    fn compare_and_swap(&mut self, key: &str, version: u64, value: &[u8]) -> Result<bool, Error> {
        self.0.compare_and_swap(key, version, value)
    }

    fn remove_if(&mut self, key: &str, version: u64) -> Result<bool, Error> {
        self.0.remove_if(key, version)
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        let is_entry = |record: &&StoreRecord| record.key.starts_with(keys::JOURNAL);
        let begins = |record: &StoreRecord| decode::<JournalEntry>("an entry", &record.value).unwrap().begins;
        if batch.puts.iter().filter(is_entry).any(begins) {
            change(&mut self.0, "alice", &run_id(1), |info| {
                let lease = lease::take(&info.lease.clone().unwrap_or_default(), "other", 5_000);
                Ok(Some(RunInfo { lease, ..info }))
            })?;
        }
        self.0.commit(batch)
    }

    fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<StoreRecord>, Error> {
        self.0.scan(prefix, after, limit)
    }

    fn scan_back(&self, prefix: &str, before: Option<&str>, limit: usize) -> Result<Vec<StoreRecord>, Error> {
        self.0.scan_back(prefix, before, limit)
    }

    fn put_blob_part(&mut self, part: BlobPart<'_>, data: &[u8]) -> Result<(), Error> {
        self.0.put_blob_part(part, data)
    }

    fn blob_part(&self, part: BlobPart<'_>) -> Result<Option<Vec<u8>>, Error> {
        self.0.blob_part(part)
    }

    fn remove_blob(&mut self, digest: &str) -> Result<(), Error> {
        self.0.remove_blob(digest)
    }

    fn blobs(&self) -> Result<Vec<Blob>, Error> {
        self.0.blobs()
    }

    fn blob_parts(&self, digest: &str) -> Result<u32, Error> {
        self.0.blob_parts(digest)
    }

    fn begin_copy(&mut self) -> Result<StoreCopy, Error> {
        self.0.begin_copy()
    }
}

#[tokio::test]
async fn component_with_external_effects_begins_only_with_the_lease() {
    let folder = tempfile::tempdir().unwrap();
    let store = OvertakingStore(SqliteStore::open(&folder.path().join("store.sqlite")).unwrap());
    let runs = StoreRuns::new(Database::new(Box::new(store)));
    let run = run_id(1);
    let request =
        BeginRunRequest { run: run.clone(), runner: "client".into(), lease_ms: 5_000, ..Default::default() };
    runs.begin("alice", request, RunInfo::default(), 1_000).await.unwrap();
    let output = entry(entries_before(1) + 1, &[]);
    runs.journal("alice", written(&run, 1, &[output])).await.unwrap();
    // The lease was there when the entry was checked.
    let begins = JournalEntry { begins: true, ..entry(entries_before(1) + 2, &[]) };
    assert_eq!(code(runs.journal("alice", written(&run, 1, &[begins])).await), Some(Code::RunTaken));
}
