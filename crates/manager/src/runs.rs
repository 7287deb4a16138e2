//! Runs of graphs, and the journal of what their components hand on (Scad 4.2.4).
//!
//! A client drives a run. The manager keeps what the client needs if it, or a component, dies: the input, and each
//! message, stored before any component has it. When the run has ended the messages are removed, and a record of it
//! stays, with the usage of each component, and the memory over time. Reports of a client on a running run are for
//! observers, and each replaces the one before.

use std::collections::{BTreeMap, HashSet};

use prost::Message;
use sublet_proto::graph::MAX_COMPONENTS;
use sublet_proto::run::{MAX_CHANNELS, MAX_ENTRIES, MAX_NODES, MAX_OUTPUT_BYTES, MAX_POINTS};
use sublet_proto::v1::{
    BeginRunRequest, ComponentUse, EndRunRequest, JournalEntry, JournalRequest, ListRunsRequest,
    ReadRunRequest, ReportRunRequest, RunInfo, RunList, RunPage, RunReport, UsagePoint,
};
use sublet_proto::{Code, Error, decode};

use crate::clock::DAY_MS;
use crate::database::Database;
use crate::reply::ReplyPage;
use crate::store::RECORD_BYTES;
use crate::store::{Batch, Store, StoreRecord, each_record, keys};

/// Length of a run's identifier, in hexadecimal digits.
const ID_DIGITS: usize = 32;
/// Records that are read from the store, or removed, at a time.
const PAGE_RECORDS: usize = 256;
/// Runs that are listed by default, and at most.
const DEFAULT_RUNS: u32 = 100;
const MAX_RUNS: u32 = 10_000;
/// Pages, and records of a page, in which the latest runs of a graph are searched.
const LATEST_PAGES: usize = 16;
const LATEST_RECORDS: usize = 64;

/// The runs of a store.
pub(crate) struct StoreRuns {
    database: Database,
}

impl StoreRuns {
    pub(crate) fn new(database: Database) -> StoreRuns {
        StoreRuns { database }
    }

    /// Begins a run. `begun` has the name and digest of its graph, and its packages.
    pub(crate) async fn begin(
        &self,
        tenant: &str,
        request: BeginRunRequest,
        begun: RunInfo,
        now_ms: u64,
    ) -> Result<RunInfo, Error> {
        let BeginRunRequest { run, input, .. } = request;
        check_id(&run)?;
        check_output("the input of a run", &input)?;
        let tenant = tenant.to_owned();
        let begin = move |store: &mut dyn Store| {
            let key = run_key(&tenant, &run);
            if let Some(found) = store.get(&key)? {
                // The request is repeated, because the answer was lost.
                return decode("a stored run", &found.value);
            }
            let info = RunInfo { run, tenant, began_unix_ms: now_ms, ..begun };
            let mut batch = Batch::default();
            let input = JournalEntry { output: input, ..JournalEntry::default() };
            batch.put(entry_key(&info.tenant, &info.run, 0), input.encode_to_vec());
            batch.put(key, info.encode_to_vec());
            store.commit(&batch)?;
            Ok(info)
        };
        self.database.keeping_reserve(begin).await
    }

    /// Stores entries of a running run.
    pub(crate) async fn journal(&self, tenant: &str, request: JournalRequest) -> Result<(), Error> {
        let JournalRequest { run, entries } = request;
        check_id(&run)?;
        entries.iter().try_for_each(check_entry)?;
        let tenant = tenant.to_owned();
        let keep = move |store: &mut dyn Store| {
            going_on(store, &tenant, &run)?;
            let mut batch = Batch::default();
            for entry in &entries {
                batch.put(entry_key(&tenant, &run, entry.number), entry.encode_to_vec());
            }
            store.commit(&batch)
        };
        self.database.keeping_reserve(keep).await
    }

    /// Stores a client's report on a running run.
    pub(crate) async fn report(
        &self,
        tenant: &str,
        request: ReportRunRequest,
        now_ms: u64,
    ) -> Result<(), Error> {
        let ReportRunRequest { run, components, points } = request;
        check_id(&run)?;
        check_uses(&components, &points)?;
        let tenant = tenant.to_owned();
        let keep = move |store: &mut dyn Store| {
            going_on(store, &tenant, &run)?;
            // It is not in the run's own record: a late report would undo the run's end.
            let report = RunReport { components, points, reported_unix_ms: now_ms };
            let mut batch = Batch::default();
            batch.put(report_key(&tenant, &run), report.encode_to_vec());
            store.commit(&batch)
        };
        self.database.keeping_reserve(keep).await
    }

    /// Ends a run; a second end changes nothing.
    pub(crate) async fn end(
        &self,
        tenant: &str,
        request: EndRunRequest,
        now_ms: u64,
    ) -> Result<RunInfo, Error> {
        let EndRunRequest { run, code, message, components, points } = request;
        check_id(&run)?;
        check_uses(&components, &points)?;
        let owner = tenant.to_owned();
        let id = run.clone();
        let end = move |store: &mut dyn Store| {
            let info = find(store, &owner, &id)?;
            if info.ended_unix_ms != 0 {
                return Ok(info);
            }
            let ended_unix_ms = now_ms.max(info.began_unix_ms + 1);
            let info = RunInfo { ended_unix_ms, code, message, components, ..info };
            let report = RunReport { points, ..RunReport::default() };
            let mut batch = Batch::default();
            batch.put(report_key(&owner, &id), report.encode_to_vec());
            batch.put(run_key(&owner, &id), info.encode_to_vec());
            store.commit(&batch)?;
            Ok(info)
        };
        let info = self.database.with(end).await?;
        self.forget(tenant, &run).await?;
        Ok(info)
    }

    /// Lets go of a run's messages, letting others have the store between.
    async fn forget(&self, tenant: &str, run: &str) -> Result<(), Error> {
        loop {
            let prefix = journal_key(tenant, run);
            if self.database.with(move |store| forget_page(store, &prefix)).await? < PAGE_RECORDS {
                return Ok(());
            }
        }
    }

    /// Removes runs that have ended: these, or all of the tenant's. Returns their number.
    pub(crate) async fn remove(&self, tenant: &str, runs: Vec<String>) -> Result<u32, Error> {
        runs.iter().try_for_each(|run| check_id(run))?;
        if runs.is_empty() {
            return self.remove_all(tenant).await;
        }
        let tenant = tenant.to_owned();
        let remove = move |store: &mut dyn Store| {
            let runs = runs.iter().map(|run| find(store, &tenant, run)).collect::<Result<Vec<_>, _>>()?;
            match runs.iter().find(|run| run.ended_unix_ms == 0) {
                None => remove(store, &runs),
                Some(info) => Err(Error::new(
                    Code::InvalidArgument,
                    format!(
                        "run {} is in progress, or can be resumed: only runs that have ended are removed",
                        info.run
                    ),
                )),
            }
        };
        self.database.with(remove).await
    }

    async fn remove_all(&self, tenant: &str) -> Result<u32, Error> {
        let mut removed = 0u32;
        loop {
            match self.remove_oldest(tenant).await? {
                0 => return Ok(removed),
                more => removed = removed.saturating_add(more),
            }
        }
    }

    /// Removes some of a tenant's oldest runs that have ended, and returns their number.
    pub(crate) async fn remove_oldest(&self, tenant: &str) -> Result<u32, Error> {
        let tenant = tenant.to_owned();
        self.database.with(move |store| remove_oldest(store, &tenant)).await
    }

    /// Removes runs of all tenants that ended before this time, and returns their number by tenant.
    pub(crate) async fn expire(&self, before_ms: u64) -> Result<BTreeMap<String, u32>, Error> {
        self.each_page(move |store, runs| {
            let ended = |run: &RunInfo| run.ended_unix_ms != 0 && run.ended_unix_ms < before_ms;
            let old: Vec<RunInfo> = runs.into_iter().filter(ended).collect();
            remove(store, &old)?;
            Ok(old)
        })
        .await
    }

    /// Ends runs of all tenants whose clients last reported before this time, and returns their number by tenant.
    pub(crate) async fn abandon(&self, before_ms: u64, now_ms: u64) -> Result<BTreeMap<String, u32>, Error> {
        self.each_page(move |store, runs| {
            let mut abandoned = Vec::new();
            for run in runs.into_iter().filter(|run| run.ended_unix_ms == 0) {
                abandoned.extend(abandon(store, run, before_ms, now_ms)?);
            }
            Ok(abandoned)
        })
        .await
    }

    /// Passes all runs, a page at a time, to an action that changes some of them, and returns their number by tenant.
    async fn each_page(
        &self,
        change: impl Fn(&mut dyn Store, Vec<RunInfo>) -> Result<Vec<RunInfo>, Error> + Clone + Send + 'static,
    ) -> Result<BTreeMap<String, u32>, Error> {
        let (mut changed, mut after) = (BTreeMap::new(), None::<String>);
        loop {
            let (behind, change) = (after.take(), change.clone());
            let step = move |store: &mut dyn Store| {
                let page = store.scan(keys::RUN, behind.as_deref(), PAGE_RECORDS)?;
                let runs = page.iter().map(|record| decode::<RunInfo>("a stored run", &record.value));
                let changed = change(store, runs.collect::<Result<_, _>>()?)?;
                Ok((changed, page.into_iter().last().map(|last| last.key)))
            };
            let (runs, reached) = self.database.with(step).await?;
            for run in runs {
                *changed.entry(run.tenant).or_default() += 1;
            }
            if reached.is_none() {
                return Ok(changed);
            }
            after = reached;
        }
    }

    /// Returns a run, and its journal's entries after a number.
    pub(crate) async fn read(&self, tenant: &str, request: ReadRunRequest) -> Result<RunPage, Error> {
        let ReadRunRequest { run, after } = request;
        check_id(&run)?;
        let tenant = tenant.to_owned();
        let read = move |store: &mut dyn Store| {
            let info = find(store, &tenant, &run)?;
            let input = match after {
                0 => store.get(&entry_key(&tenant, &run, 0))?,
                _ => None,
            };
            let input =
                input.map(|input| decode::<JournalEntry>("a run's input", &input.value)).transpose()?;
            let behind = entry_key(&tenant, &run, after);
            let page = store.scan(&journal_key(&tenant, &run), Some(&behind), PAGE_RECORDS)?;
            let mut entries = ReplyPage::default();
            for StoreRecord { key, value, .. } in &page {
                if !entries.add(key, decode::<JournalEntry>("a run's journal", value)?) {
                    break;
                }
            }
            let input = input.map(|input| input.output).unwrap_or_default();
            let (info, points) = with_report(store, info)?;
            Ok(RunPage { info: Some(info), input, entries: entries.items, points })
        };
        self.database.with(read).await
    }

    /// Returns the latest runs of a graph that succeeded, the newest first, out of the tenant's latest 1,024 runs.
    pub(crate) async fn succeeded(
        &self,
        tenant: &str,
        graph: &str,
        limit: usize,
    ) -> Result<Vec<RunInfo>, Error> {
        let (prefix, graph) = (format!("{}{tenant}/", keys::RUN), graph.to_owned());
        let read = move |store: &mut dyn Store| {
            let (mut runs, mut before) = (Vec::new(), None::<String>);
            for _ in 0..LATEST_PAGES {
                let page = store.scan_back(&prefix, before.as_deref(), LATEST_RECORDS)?;
                let Some(last) = page.last() else { break };
                before = Some(last.key.clone());
                for record in &page {
                    let info: RunInfo = decode("a stored run", &record.value)?;
                    if info.graph == graph && info.ended_unix_ms != 0 && info.code == 0 {
                        runs.push(info);
                    }
                    if runs.len() == limit {
                        return Ok(runs);
                    }
                }
            }
            Ok(runs)
        };
        self.database.with(read).await
    }

    /// Returns a page of the tenant's runs, the newest first.
    pub(crate) async fn list(&self, tenant: &str, request: ListRunsRequest) -> Result<RunList, Error> {
        let limit = if request.limit == 0 { DEFAULT_RUNS } else { request.limit.min(MAX_RUNS) } as usize;
        let prefix = format!("{}{tenant}/", keys::RUN);
        let read = move |store: &mut dyn Store| {
            let mut list = ReplyPage::default();
            let mut before = (!request.after.is_empty()).then(|| format!("{prefix}{}", request.after));
            while !list.is_full() {
                let page = store.scan_back(&prefix, before.as_deref(), PAGE_RECORDS)?;
                let Some(last) = page.last() else { break };
                before = Some(last.key.clone());
                for record in &page {
                    let info: RunInfo = decode("a stored run", &record.value)?;
                    let is_asked = (request.graph.is_empty() || request.graph == info.graph)
                        && !(request.going_on && info.ended_unix_ms != 0);
                    if !is_asked {
                        continue;
                    }
                    let info = if info.ended_unix_ms == 0 { with_report(store, info)?.0 } else { info };
                    if list.items.len() == limit {
                        list.end();
                    }
                    if !list.add(&record.key[prefix.len()..], info) {
                        break;
                    }
                }
            }
            Ok(RunList { runs: list.items, next: list.next })
        };
        self.database.with(read).await
    }
}

/// Removes the oldest of a tenant's runs that have ended, at most a page of them, and returns their number.
fn remove_oldest(store: &mut dyn Store, tenant: &str) -> Result<u32, Error> {
    let prefix = format!("{}{tenant}/", keys::RUN);
    let mut after = None::<String>;
    loop {
        let page = store.scan(&prefix, after.as_deref(), PAGE_RECORDS)?;
        let Some(last) = page.last() else { return Ok(0) };
        after = Some(last.key.clone());
        let runs = page.iter().map(|record| decode::<RunInfo>("a stored run", &record.value));
        let mut runs = runs.collect::<Result<Vec<_>, _>>()?;
        runs.retain(|run| run.ended_unix_ms != 0);
        if !runs.is_empty() {
            return remove(store, &runs);
        }
    }
}

/// Ends a run whose client last reported before this time; does nothing if it has reported since.
fn abandon(
    store: &mut dyn Store,
    run: RunInfo,
    before_ms: u64,
    now_ms: u64,
) -> Result<Option<RunInfo>, Error> {
    if run.began_unix_ms >= before_ms {
        return Ok(None);
    }
    let (run, _) = with_report(store, run)?;
    let heard_ms = run.began_unix_ms.max(run.reported_unix_ms);
    if heard_ms >= before_ms {
        return Ok(None);
    }
    let message =
        format!("its client was not heard of for {} days", now_ms.saturating_sub(heard_ms) / DAY_MS);
    let run = RunInfo {
        ended_unix_ms: now_ms,
        code: Code::DeadlineExceeded.number(),
        message,
        reported_unix_ms: 0,
        ..run
    };
    let mut batch = Batch::default();
    batch.put(run_key(&run.tenant, &run.run), run.encode_to_vec());
    store.commit(&batch)?;
    while forget_page(store, &journal_key(&run.tenant, &run.run))? == PAGE_RECORDS {}
    Ok(Some(run))
}

/// Removes some entries of a journal, and returns their number.
fn forget_page(store: &mut dyn Store, prefix: &str) -> Result<usize, Error> {
    let page = store.scan(prefix, None, PAGE_RECORDS)?;
    let mut batch = Batch::default();
    page.iter().for_each(|record| batch.remove(record.key.clone()));
    store.commit(&batch)?;
    Ok(page.len())
}

/// Removes runs that have ended, and returns their number.
fn remove(store: &mut dyn Store, runs: &[RunInfo]) -> Result<u32, Error> {
    let mut batch = Batch::default();
    for info in runs {
        // Removes what an interrupted end has left.
        while forget_page(store, &journal_key(&info.tenant, &info.run))? == PAGE_RECORDS {}
        batch.remove(report_key(&info.tenant, &info.run));
        batch.remove(run_key(&info.tenant, &info.run));
    }
    store.commit(&batch)?;
    Ok(u32::try_from(runs.len()).unwrap_or(u32::MAX))
}

/// Returns the bytes and the number of a tenant's runs.
pub(crate) fn measure(store: &dyn Store, tenant: &str) -> Result<(u64, u32), Error> {
    let size = |kind: &str| store.size(&format!("{kind}{tenant}/"));
    let runs = size(keys::RUN)?;
    let all = [runs, size(keys::JOURNAL)?, size(keys::REPORT)?];
    let bytes = all.iter().map(|size| size.bytes.saturating_add(size.records.saturating_mul(RECORD_BYTES)));
    Ok((bytes.fold(0, u64::saturating_add), u32::try_from(runs.records).unwrap_or(u32::MAX)))
}

/// Returns the digests that a run needs to continue: its graph, and its packages.
pub(crate) fn digests_of_run(run: &RunInfo) -> impl Iterator<Item = &str> {
    let digest_of = |pinned: &str| pinned.rfind('@').map_or(0, |at| at + 1);
    let packages = run.packages.iter().map(move |package| &package.pinned[digest_of(&package.pinned)..]);
    packages.chain([run.digest.as_str()])
}

/// Digests of the graphs and packages that a tenant's unfinished runs need.
pub(crate) fn digests_of_unfinished(store: &dyn Store, tenant: &str) -> Result<HashSet<String>, Error> {
    let mut digests = HashSet::new();
    each_record(store, &format!("{}{tenant}/", keys::RUN), |record| {
        let run: RunInfo = decode("a stored run", &record.value)?;
        if run.ended_unix_ms == 0 {
            digests.extend(digests_of_run(&run).map(str::to_owned));
        }
        Ok(())
    })?;
    Ok(digests)
}

fn find(store: &dyn Store, tenant: &str, run: &str) -> Result<RunInfo, Error> {
    let found = store.get(&run_key(tenant, run))?;
    let found = found.ok_or_else(|| Error::new(Code::UnknownRun, format!("there is no run {run}")))?;
    decode("a stored run", &found.value)
}

/// Returns a run and its memory over time; a running run has the usage of its latest report.
fn with_report(store: &dyn Store, info: RunInfo) -> Result<(RunInfo, Vec<UsagePoint>), Error> {
    let found = store.get(&report_key(&info.tenant, &info.run))?;
    let report = found.map(|found| decode("a run's report", &found.value)).transpose()?;
    let RunReport { components, points, reported_unix_ms } = report.unwrap_or_default();
    if info.ended_unix_ms != 0 {
        return Ok((info, points));
    }
    Ok((RunInfo { components, reported_unix_ms, ..info }, points))
}

fn going_on(store: &dyn Store, tenant: &str, run: &str) -> Result<(), Error> {
    if find(store, tenant, run)?.ended_unix_ms == 0 {
        return Ok(());
    }
    Err(Error::new(Code::UnknownRun, format!("run {run} has ended")))
}

fn check_id(run: &str) -> Result<(), Error> {
    if run.len() == ID_DIGITS && run.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return Ok(());
    }
    let shown: String = run.chars().take(2 * ID_DIGITS).collect();
    Err(Error::new(Code::UnknownRun, format!("{shown:?} is no run: {ID_DIGITS} hexadecimal digits")))
}

fn check_uses(components: &[ComponentUse], points: &[UsagePoint]) -> Result<(), Error> {
    let nodes = components.iter().map(|used| used.nodes.len()).max().unwrap_or_default();
    let channels = components.iter().map(|used| used.channels.len()).sum();
    for (what, count, most) in [
        ("components of a run", components.len(), MAX_COMPONENTS),
        ("points of a run", points.len(), MAX_POINTS),
        ("nodes of a component", nodes, MAX_NODES),
        ("pairs of components that moved data", channels, MAX_CHANNELS),
    ] {
        if count > most {
            let message = format!("{count} {what}, at most {most} are kept");
            return Err(Error::new(Code::InvalidArgument, message));
        }
    }
    Ok(())
}

fn check_entry(entry: &JournalEntry) -> Result<(), Error> {
    if !(1..MAX_ENTRIES).contains(&entry.number) {
        let message =
            format!("entry {} of a run's journal, there are 1 to {}", entry.number, MAX_ENTRIES - 1);
        return Err(Error::new(Code::InvalidArgument, message));
    }
    if entry.to.len() > MAX_COMPONENTS {
        let message =
            format!("a message to {} components, a graph has at most {MAX_COMPONENTS}", entry.to.len());
        return Err(Error::new(Code::InvalidArgument, message));
    }
    check_output("the output of an instance", &entry.output)
}

fn check_output(what: &str, output: &[u8]) -> Result<(), Error> {
    if output.len() <= MAX_OUTPUT_BYTES {
        return Ok(());
    }
    let message = format!(
        "{what} has {} bytes, at most {MAX_OUTPUT_BYTES} are kept: larger data belongs into a memory component",
        output.len()
    );
    Err(Error::new(Code::OutputTooLarge, message))
}

fn run_key(tenant: &str, run: &str) -> String {
    format!("{}{tenant}/{run}", keys::RUN)
}

fn journal_key(tenant: &str, run: &str) -> String {
    format!("{}{tenant}/{run}/", keys::JOURNAL)
}

fn report_key(tenant: &str, run: &str) -> String {
    format!("{}{tenant}/{run}", keys::REPORT)
}

fn entry_key(tenant: &str, run: &str, number: u64) -> String {
    format!("{}{number:016x}", journal_key(tenant, run))
}

#[cfg(test)]
mod tests {
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
        let report =
            |run: &String, points| ReportRunRequest { run: run.clone(), points, ..Default::default() };
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
        let listed =
            runs.list("alice", ListRunsRequest { going_on: true, ..Default::default() }).await.unwrap();
        assert_eq!(listed.runs.into_iter().map(|run| run.run).collect::<Vec<_>>(), [young, reporting]);
    }
}
