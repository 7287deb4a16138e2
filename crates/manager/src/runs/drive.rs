//! Leases of runs in the store: the processes that drive runs take, renew and return them here, and runs are cancelled.

use std::ops::ControlFlow;
use std::sync::Mutex;

use sublet_fabric::sync::lock;
use sublet_proto::v1::{DriveRunRequest, RunInfo, RunLease, TakeRunRequest};
use sublet_proto::{Code, Error, decode};

use super::check::check_id;
use super::lease::{self, LeaseWatch};
use super::{
    KeptEntries, PAGE_RECORDS, StoreRuns, change, find, forget_all, has_ended, run_key, unlist, with_report,
};
use crate::store::{Store, keys};

impl StoreRuns {
    /// Takes, renews or hands back a run's lease, as the request says.
    ///
    /// # Errors
    /// `run_taken` if another process has it, and `unknown_run` or `run_cancelled` if the run has ended.
    pub(crate) async fn drive(
        &self,
        tenant: &str,
        request: DriveRunRequest,
        now_ms: u64,
    ) -> Result<RunInfo, Error> {
        let DriveRunRequest { run, runner, epoch, lease_ms } = request;
        check_id(&run)?;
        if epoch == 0 {
            lease::check_runner(&runner)?;
        }
        let (tenant, watch) = (tenant.to_owned(), self.watch.clone());
        let drive = move |store: &mut dyn Store| {
            let taker = Taker { runner: &runner, lease_ms, now_ms, watch: &watch };
            change(store, &tenant, &run, |info| {
                if info.ended_unix_ms != 0 {
                    return Err(has_ended(&info));
                }
                let lease = info.lease.clone().unwrap_or_default();
                let next = match (epoch, lease_ms) {
                    (0, _) => taker.take(&info),
                    (_, 0) => lease::hand_back(&lease, epoch),
                    _ => lease::renew(&lease, epoch, lease_ms),
                };
                let next = next.ok_or_else(|| lease::taken(&run, info.lease.as_ref()))?;
                Ok(Some(RunInfo { lease: Some(next), ..info }))
            })
        };
        self.database.with(drive).await
    }

    /// Takes the lease of a detached run that no process drives: of this tenant, or of any. `None` if there is none.
    /// Tenants take turns, so that one with many runs does not keep those of others waiting.
    ///
    /// # Errors
    /// `invalid_argument` if the process has no valid name, and errors of the store.
    pub(crate) async fn take(
        &self,
        tenant: Option<&str>,
        request: TakeRunRequest,
        now_ms: u64,
    ) -> Result<Option<RunInfo>, Error> {
        let TakeRunRequest { runner, lease_ms } = request;
        lease::check_runner(&runner)?;
        let prefix = match tenant {
            Some(tenant) => format!("{}{tenant}/", keys::DETACHED),
            None => keys::DETACHED.to_owned(),
        };
        // From the tenant behind the one whose run was last taken, and then from the beginning.
        let turn = if tenant.is_none() { lock(&self.turn).clone() } else { None };
        let starts = if turn.is_some() { vec![turn, None] } else { vec![None] };
        for mut after in starts {
            loop {
                let (prefix, runner, behind) = (prefix.clone(), runner.clone(), after.take());
                let watch = self.watch.clone();
                let page = move |store: &mut dyn Store| {
                    let taker = Taker { runner: &runner, lease_ms, now_ms, watch: &watch };
                    take_of_page(store, &prefix, behind.as_deref(), &taker)
                };
                match self.database.with(page).await? {
                    ControlFlow::Continue(last) => after = Some(last),
                    ControlFlow::Break(None) => break,
                    ControlFlow::Break(Some(taken)) => {
                        if tenant.is_none() {
                            *lock(&self.turn) = Some(behind_runs_of(&taken.tenant));
                        }
                        return Ok(Some(taken));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Ends a run that has not ended. A run that was cancelled before stays as it is.
    ///
    /// # Errors
    /// `unknown_run` if it has ended otherwise.
    pub(crate) async fn cancel(&self, tenant: &str, run: String, now_ms: u64) -> Result<RunInfo, Error> {
        check_id(&run)?;
        let tenant = tenant.to_owned();
        let cancel =
            move |store: &mut dyn Store| end_at_once(store, &tenant, &run, now_ms, Code::RunCancelled);
        let info = self.database.with(cancel).await?;
        self.forget(&info, KeptEntries::Nothing).await?;
        Ok(info)
    }
}

/// A process that wants the lease of a run, for a time, and the manager's view of leases.
struct Taker<'taker> {
    runner: &'taker str,
    lease_ms: u64,
    now_ms: u64,
    watch: &'taker Mutex<LeaseWatch>,
}

impl Taker<'_> {
    /// Whether another process holds the lease of a run.
    fn is_kept_out(&self, info: &RunInfo) -> bool {
        let Some(lease) = &info.lease else { return false };
        let key = run_key(&info.tenant, &info.run);
        lock(self.watch).is_held(&key, lease, self.now_ms) && lease.runner != self.runner
    }

    /// The lease of a run as this process takes it; `None` if another one holds it. A process that has it already keeps
    /// its epoch: its request is repeated because the answer was lost.
    fn take(&self, info: &RunInfo) -> Option<RunLease> {
        let lease = info.lease.clone().unwrap_or_default();
        match lease.runner == self.runner {
            true => lease::renew(&lease, lease.epoch, self.lease_ms),
            false if self.is_kept_out(info) => None,
            false => lease::take(&lease, self.runner, self.lease_ms),
        }
    }
}

/// Takes the lease of a run of a page of the list. Breaks with the run, or with `None` at the end of the list.
fn take_of_page(
    store: &mut dyn Store,
    prefix: &str,
    after: Option<&str>,
    taker: &Taker<'_>,
) -> Result<ControlFlow<Option<RunInfo>, String>, Error> {
    let page = store.scan(prefix, after, PAGE_RECORDS)?;
    let Some(last) = page.last().map(|record| record.key.clone()) else {
        return Ok(ControlFlow::Break(None));
    };
    let names: Vec<(&str, &str)> = page.iter().filter_map(|record| names_of(&record.key)).collect();
    let of_runs: Vec<String> = names.iter().map(|(tenant, run)| run_key(tenant, run)).collect();
    let records = store.get_each(&of_runs)?;
    for ((tenant, run), record) in names.into_iter().zip(records) {
        let Some(record) = record else {
            // A run is stored before it is listed, so this one was removed.
            unlist(store, tenant, run)?;
            continue;
        };
        let info: RunInfo = decode("a stored run", &record)?;
        if info.ended_unix_ms != 0 {
            // The manager that ended it was killed before it removed the rest.
            remove_rest(store, &info)?;
            continue;
        }
        if let Some(taken) = take_listed(store, &info, taker)? {
            return Ok(ControlFlow::Break(Some(taken)));
        }
    }
    Ok(ControlFlow::Continue(last))
}

/// Takes the lease of a run that is listed, unless another process has it.
fn take_listed(store: &mut dyn Store, listed: &RunInfo, taker: &Taker<'_>) -> Result<Option<RunInfo>, Error> {
    if taker.is_kept_out(listed) {
        return Ok(None);
    }
    if listed.lease.as_ref().is_some_and(|lease| lease::is_exhausted(lease) && lease.runner != taker.runner) {
        let ended = end_at_once(store, &listed.tenant, &listed.run, taker.now_ms, Code::WorkerDied)?;
        remove_rest(store, &ended)?;
        return Ok(None);
    }
    let mut is_taken = false;
    let info = change(store, &listed.tenant, &listed.run, |info| {
        let next = if info.ended_unix_ms == 0 { taker.take(&info) } else { None };
        is_taken = next.is_some();
        Ok(next.map(|next| RunInfo { lease: Some(next), ..info }))
    })?;
    Ok(is_taken.then_some(info))
}

/// Ends a run by another process than the one that drives it, with the usage that was last reported.
fn end_at_once(
    store: &mut dyn Store,
    tenant: &str,
    run: &str,
    now_ms: u64,
    code: Code,
) -> Result<RunInfo, Error> {
    let (reported, _) = with_report(store, find(store, tenant, run)?)?;
    change(store, tenant, run, |info| {
        if info.ended_unix_ms != 0 {
            return if info.code == code.number() { Ok(None) } else { Err(has_ended(&info)) };
        }
        let message = match code {
            Code::RunCancelled => "the run was cancelled".to_owned(),
            _ => {
                let epoch = info.lease.as_ref().map_or(0, |lease| lease.epoch);
                format!("{epoch} processes have driven the run, and none of them has ended it")
            }
        };
        let ended_unix_ms = now_ms.max(info.began_unix_ms + 1);
        let components = reported.components.clone();
        Ok(Some(RunInfo { ended_unix_ms, code: code.number(), message, components, ..info }))
    })
}

/// Removes what a run that has ended needs no more, and takes it off the list.
fn remove_rest(store: &mut dyn Store, ended: &RunInfo) -> Result<(), Error> {
    forget_all(store, &ended.tenant, &ended.run, KeptEntries::of(ended))?;
    unlist(store, &ended.tenant, &ended.run)
}

/// A key behind those of a tenant's runs in the list, and before those of the tenants that follow.
fn behind_runs_of(tenant: &str) -> String {
    // The character that follows a slash.
    format!("{}{tenant}0", keys::DETACHED)
}

/// The tenant and the run of a key of the list.
fn names_of(key: &str) -> Option<(&str, &str)> {
    key.strip_prefix(keys::DETACHED)?.split_once('/')
}
