//! Runs of graphs, and the journal of what their components hand on (Scad 4.2.4).
//!
//! A client or a runner drives a run, under the run's [lease](lease). The manager keeps what is needed if that process,
//! or a component, dies: the input, and each message. When the run has ended the messages are removed, except the
//! outputs of a detached run, and a record of it stays, with the usage of each component, and the memory over time.
//! Reports on a running run are for observers, and each replaces the one before.
//!
//! The record of a run is changed by compare-and-swap only, so its end, its cancellation and its lease exclude each
//! other. A write to the journal is checked against the record first, and its key contains the lease's epoch: one that
//! a server makes late cannot replace an entry of a later owner.

mod check;
mod drive;
mod latest;
mod lease;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

use prost::Message;
use sublet_proto::v1::{
    BeginRunRequest, EndRunRequest, JournalEntry, JournalRequest, ListRunsRequest, ReadRunRequest,
    ReportRunRequest, RunInfo, RunLease, RunList, RunPage, RunReport,
};
use sublet_proto::{Code, Error, decode};

use crate::clock::DAY_MS;
use crate::database::Database;
use crate::reply::ReplyPage;
use crate::store::RECORD_BYTES;
use crate::store::{Batch, Store, StoreRecord, each_record, keys};
use check::{check_entry, check_filled, check_id, check_notes, check_output, check_outputs, check_uses};
use lease::LeaseWatch;

/// Records that are read from the store, or removed, at a time.
const PAGE_RECORDS: usize = 256;
/// Number of times that a change of a run's record is decided anew, because another changed it in between.
const CHANGES: usize = 16;
/// Runs that are listed by default, and at most.
const DEFAULT_RUNS: u32 = 100;
const MAX_RUNS: u32 = 10_000;

/// The runs of a store.
pub(crate) struct StoreRuns {
    database: Database,
    watch: Arc<Mutex<LeaseWatch>>,
    /// Key of the list of detached runs behind which the next one is searched: tenants take turns.
    turn: Mutex<Option<String>>,
}

impl StoreRuns {
    pub(crate) fn new(database: Database) -> StoreRuns {
        StoreRuns { database, watch: Arc::default(), turn: Mutex::default() }
    }

    /// Begins a run. `begun` has the name and digest of its graph, and its packages.
    pub(crate) async fn begin(
        &self,
        tenant: &str,
        request: BeginRunRequest,
        begun: RunInfo,
        now_ms: u64,
    ) -> Result<RunInfo, Error> {
        let BeginRunRequest { run, input, runner, lease_ms, detached, filled, .. } = request;
        check_id(&run)?;
        check_output("the input of a run", &input)?;
        check_filled(&filled, detached.is_some())?;
        if !runner.is_empty() {
            lease::check_runner(&runner)?;
        }
        let tenant = tenant.to_owned();
        let begin = move |store: &mut dyn Store| {
            let key = run_key(&tenant, &run);
            let mut batch = Batch::default();
            let listed = detached_key(&tenant, &run);
            if let Some(found) = store.get(&key)? {
                // The request is repeated, because the answer was lost.
                let info: RunInfo = decode("a stored run", &found.value)?;
                if info.terms.is_some() && info.ended_unix_ms == 0 {
                    batch.put(listed, Vec::new());
                    store.commit(&batch)?;
                }
                return Ok(info);
            }
            let is_driven = detached.is_none() && !runner.is_empty();
            let lease = is_driven.then(|| lease::take(&RunLease::default(), &runner, lease_ms)).flatten();
            let info =
                RunInfo { run, tenant, began_unix_ms: now_ms, lease, terms: detached, filled, ..begun };
            let input = JournalEntry { output: input, ..JournalEntry::default() };
            batch.put(entry_key(&info.tenant, &info.run, 0), input.encode_to_vec());
            batch.put(key, info.encode_to_vec());
            if info.terms.is_some() {
                batch.put(listed, Vec::new());
            }
            store.commit(&batch)?;
            Ok(info)
        };
        self.database.keeping_reserve(begin).await
    }

    /// Stores entries of a running run.
    ///
    /// # Errors
    /// `run_taken` if the caller does not have the run's lease, `unknown_run` or `run_cancelled` if the run has ended.
    pub(crate) async fn journal(&self, tenant: &str, request: JournalRequest) -> Result<(), Error> {
        let JournalRequest { run, entries, epoch } = request;
        check_id(&run)?;
        let tenant = tenant.to_owned();
        let keep = move |store: &mut dyn Store| {
            check_owner(store, &tenant, &run, epoch)?;
            entries.iter().try_for_each(|entry| check_entry(entry, epoch))?;
            let mut batch = Batch::default();
            for entry in &entries {
                batch.put(entry_key(&tenant, &run, entry.number), entry.encode_to_vec());
            }
            store.commit(&batch)?;
            match entries.iter().any(|entry| entry.begins) {
                // A process that took the lease before the entry was stored has read a journal without it, and executes
                // the component itself.
                true => check_owner(store, &tenant, &run, epoch),
                false => Ok(()),
            }
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
        let ReportRunRequest { run, components, points, epoch, notes } = request;
        check_id(&run)?;
        check_uses(&components, &points)?;
        check_notes(&notes)?;
        let tenant = tenant.to_owned();
        let keep = move |store: &mut dyn Store| {
            check_owner(store, &tenant, &run, epoch)?;
            // It is not in the run's own record: a late report would undo the run's end.
            let report = RunReport { components, points, reported_unix_ms: now_ms, notes };
            let mut batch = Batch::default();
            batch.put(report_key(&tenant, &run), report.encode_to_vec());
            store.commit(&batch)
        };
        self.database.keeping_reserve(keep).await
    }

    /// Ends a run; a second end changes nothing.
    ///
    /// # Errors
    /// `run_taken` if the caller does not have the run's lease, and `run_cancelled` if the run was cancelled.
    pub(crate) async fn end(
        &self,
        tenant: &str,
        request: EndRunRequest,
        now_ms: u64,
    ) -> Result<RunInfo, Error> {
        let EndRunRequest { run, code, message, components, points, epoch, notes, outputs } = request;
        check_id(&run)?;
        check_uses(&components, &points)?;
        check_notes(&notes)?;
        check_outputs(&outputs)?;
        let owner = tenant.to_owned();
        let id = run.clone();
        let end = move |store: &mut dyn Store| {
            let found = find(store, &owner, &id)?;
            if found.ended_unix_ms == 0 {
                check_lease(&found, epoch)?;
                let report = RunReport { points, notes, ..RunReport::default() };
                let mut batch = Batch::default();
                batch.put(report_key(&owner, &id), report.encode_to_vec());
                store.commit(&batch)?;
            }
            change(store, &owner, &id, |info| {
                if info.code == Code::RunCancelled.number() && info.ended_unix_ms != 0 {
                    return Err(has_ended(&info));
                }
                if info.ended_unix_ms != 0 {
                    return Ok(None);
                }
                check_lease(&info, epoch)?;
                let ended_unix_ms = now_ms.max(info.began_unix_ms + 1);
                let is_kept = info.terms.is_some() && code == 0;
                let outputs = if is_kept { outputs.clone() } else { Vec::new() };
                let (message, components) = (message.clone(), components.clone());
                Ok(Some(RunInfo { ended_unix_ms, code, message, components, outputs, ..info }))
            })
        };
        let info = self.database.with(end).await?;
        self.forget(&info, KeptEntries::of(&info)).await?;
        Ok(info)
    }

    /// Removes what a run that has ended needs no more, letting others use the store between.
    async fn forget(&self, info: &RunInfo, kept: KeptEntries) -> Result<(), Error> {
        let mut after = None::<String>;
        loop {
            let (prefix, behind) = (journal_key(&info.tenant, &info.run), after.take());
            let page = move |store: &mut dyn Store| forget_page(store, &prefix, behind.as_deref(), kept);
            match self.database.with(page).await? {
                Some(last) => after = Some(last),
                None => break,
            }
        }
        if info.terms.is_none() {
            return Ok(());
        }
        let (tenant, run) = (info.tenant.clone(), info.run.clone());
        self.database.with(move |store| unlist(store, &tenant, &run)).await
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
            let (info, RunReport { points, notes, .. }) = with_report(store, info)?;
            Ok(RunPage { info: Some(info), input, entries: entries.items, points, notes })
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
    let (tenant, id) = (run.tenant.clone(), run.run.clone());
    let mut is_abandoned = false;
    let run = change(store, &tenant, &id, |info| {
        is_abandoned = info.ended_unix_ms == 0;
        let ended = || RunInfo {
            ended_unix_ms: now_ms,
            code: Code::DeadlineExceeded.number(),
            message: message.clone(),
            components: run.components.clone(),
            ..info
        };
        Ok(is_abandoned.then(ended))
    })?;
    if !is_abandoned {
        return Ok(None);
    }
    forget_all(store, &tenant, &id, KeptEntries::Nothing)?;
    unlist(store, &tenant, &id)?;
    Ok(Some(run))
}

/// Entries of a journal that stay when its run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeptEntries {
    Nothing,
    /// Entries of the run's outputs.
    Outputs,
}

impl KeptEntries {
    /// Entries of a run that has ended: the outputs of a detached run are for the clients that wait for it.
    fn of(run: &RunInfo) -> KeptEntries {
        if run.terms.is_some() && run.code == 0 { KeptEntries::Outputs } else { KeptEntries::Nothing }
    }

    fn has(self, entry: &JournalEntry) -> bool {
        let is_output =
            entry.number > 0 && entry.to.is_empty() && entry.decided_instances == 0 && !entry.begins;
        self == KeptEntries::Outputs && is_output
    }
}

/// Removes entries of a page of a journal. Returns the page's last key; `None` if it is the last page.
fn forget_page(
    store: &mut dyn Store,
    prefix: &str,
    after: Option<&str>,
    kept: KeptEntries,
) -> Result<Option<String>, Error> {
    let page = store.scan(prefix, after, PAGE_RECORDS)?;
    let mut batch = Batch::default();
    for record in &page {
        let is_kept = kept != KeptEntries::Nothing && kept.has(&decode("a run's journal", &record.value)?);
        if !is_kept {
            batch.remove(record.key.clone());
        }
    }
    store.commit(&batch)?;
    let has_more = page.len() == PAGE_RECORDS;
    Ok(page.into_iter().last().filter(|_| has_more).map(|last| last.key))
}

/// Removes entries of a whole journal.
fn forget_all(store: &mut dyn Store, tenant: &str, run: &str, kept: KeptEntries) -> Result<(), Error> {
    let (prefix, mut after) = (journal_key(tenant, run), None);
    loop {
        after = forget_page(store, &prefix, after.as_deref(), kept)?;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// Takes a run that has ended off the list of detached runs.
fn unlist(store: &mut dyn Store, tenant: &str, run: &str) -> Result<(), Error> {
    let mut batch = Batch::default();
    batch.remove(detached_key(tenant, run));
    store.commit(&batch)
}

/// Removes runs that have ended, and returns their number.
fn remove(store: &mut dyn Store, runs: &[RunInfo]) -> Result<u32, Error> {
    let mut batch = Batch::default();
    for info in runs {
        // Removes what an interrupted end has left.
        forget_all(store, &info.tenant, &info.run, KeptEntries::Nothing)?;
        batch.remove(detached_key(&info.tenant, &info.run));
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
    let all = [runs, size(keys::JOURNAL)?, size(keys::REPORT)?, size(keys::DETACHED)?];
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
    let found = found.ok_or_else(|| unknown(run))?;
    decode("a stored run", &found.value)
}

fn unknown(run: &str) -> Error {
    Error::new(Code::UnknownRun, format!("there is no run {run}"))
}

/// The number of a run, by which runs are in the order of their beginnings.
///
/// # Errors
/// `unknown_run` if this is no run's identifier.
pub(crate) fn run_number(run: &str) -> Result<u128, Error> {
    check_id(run)?;
    u128::from_str_radix(run, 16).map_err(|error| Error::new(Code::UnknownRun, format!("run {run}: {error}")))
}

/// Changes a run's record as `decide` says, which is called again if another manager or request has changed the record
/// in between. `decide` returns `None` for a record that stays as it is. A record exists before it is changed here: a
/// change that a server makes late, when the record was removed, finds another version and changes nothing.
fn change(
    store: &mut dyn Store,
    tenant: &str,
    run: &str,
    mut decide: impl FnMut(RunInfo) -> Result<Option<RunInfo>, Error>,
) -> Result<RunInfo, Error> {
    let key = run_key(tenant, run);
    for _ in 0..CHANGES {
        let found = store.get(&key)?.ok_or_else(|| unknown(run))?;
        let info: RunInfo = decode("a stored run", &found.value)?;
        let Some(changed) = decide(info.clone())? else { return Ok(info) };
        debug_assert!(
            info.ended_unix_ms == 0,
            "run {run}, which ended at {}, is changed: {changed:?}",
            info.ended_unix_ms
        );
        if store.compare_and_swap(&key, found.version, &changed.encode_to_vec())? {
            return Ok(changed);
        }
    }
    Err(Error::new(Code::TryLater, format!("run {run} was changed by others {CHANGES} times in a row")))
}

/// Returns a run, and its latest report without the usage of components; a running run has that of the report.
fn with_report(store: &dyn Store, info: RunInfo) -> Result<(RunInfo, RunReport), Error> {
    let found = store.get(&report_key(&info.tenant, &info.run))?;
    let report: Option<RunReport> = found.map(|found| decode("a run's report", &found.value)).transpose()?;
    let mut report = report.unwrap_or_default();
    if info.ended_unix_ms != 0 {
        return Ok((info, report));
    }
    let (components, reported_unix_ms) = (std::mem::take(&mut report.components), report.reported_unix_ms);
    Ok((RunInfo { components, reported_unix_ms, ..info }, report))
}

/// Checks that a run has not ended, and that the caller has its lease.
fn check_owner(store: &dyn Store, tenant: &str, run: &str, epoch: u64) -> Result<(), Error> {
    let info = find(store, tenant, run)?;
    if info.ended_unix_ms != 0 {
        return Err(has_ended(&info));
    }
    check_lease(&info, epoch)
}

fn check_lease(info: &RunInfo, epoch: u64) -> Result<(), Error> {
    match lease::is_current(info.lease.as_ref(), epoch) {
        true => Ok(()),
        false => Err(lease::taken(&info.run, info.lease.as_ref())),
    }
}

/// The error of a run that has ended.
fn has_ended(info: &RunInfo) -> Error {
    match Code::from_number(info.code) {
        Code::RunCancelled => Error::new(Code::RunCancelled, format!("run {} was cancelled", info.run)),
        _ => Error::new(Code::UnknownRun, format!("run {} has ended", info.run)),
    }
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

fn detached_key(tenant: &str, run: &str) -> String {
    format!("{}{tenant}/{run}", keys::DETACHED)
}

fn entry_key(tenant: &str, run: &str, number: u64) -> String {
    format!("{}{number:016x}", journal_key(tenant, run))
}
