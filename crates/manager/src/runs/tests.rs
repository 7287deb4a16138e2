//! Tests of runs in a store.

use sublet_proto::v1::UsagePoint;

use super::*;
use crate::store::SqliteStore;

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
