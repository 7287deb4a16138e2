//! Reports the state of a run to the managers, for clients that watch it, and renews the run's lease. The run does not
//! wait for this: a thread of its own sends the reports, and a newer report replaces one that was not sent yet.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use sublet_proto::v1::ReportRunRequest;

use super::lease::{DriverLease, RENEWAL};
use crate::lease::link::lock;

/// Reports the state of one run. It reports and renews nothing more once it is dropped.
pub(super) struct RunReporter {
    lease: Arc<DriverLease>,
    report_state: Arc<ReportState>,
    is_started: bool,
}

#[derive(Default)]
struct ReportState {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    latest: Option<ReportRunRequest>,
    is_over: bool,
}

/// Next action of the thread.
enum NextAction {
    Report(ReportRunRequest),
    Renew,
    End,
}

impl RunReporter {
    pub(super) fn new(lease: Arc<DriverLease>) -> RunReporter {
        RunReporter { lease, report_state: Arc::default(), is_started: false }
    }

    /// Submits the current state of the run.
    pub(super) fn tell(&mut self, report: ReportRunRequest) {
        lock(&self.report_state.state).latest = Some(report);
        self.report_state.changed.notify_all();
        self.start();
    }

    /// Renews the lease from now on, also without reports.
    pub(super) fn start(&mut self) {
        if !self.is_started {
            let (lease, report_state) = (self.lease.clone(), self.report_state.clone());
            let thread = std::thread::Builder::new().name("sublet report".into());
            // Without a thread there are no reports, and another process may take the run over.
            let _ = thread.spawn(move || report_state.serve(&lease));
            self.is_started = true;
        }
    }
}

impl Drop for RunReporter {
    fn drop(&mut self) {
        lock(&self.report_state.state).is_over = true;
        self.report_state.changed.notify_all();
    }
}

impl ReportState {
    fn serve(&self, lease: &DriverLease) {
        let mut renew_at = Instant::now() + RENEWAL;
        loop {
            match self.next(renew_at) {
                NextAction::Report(report) => {
                    // Observers of the run detect a missing report by the time of the last one.
                    if let Err(error) = lease.manager().report_run(report) {
                        lease.note(&error);
                    }
                }
                NextAction::Renew => {
                    renew_at = Instant::now() + RENEWAL;
                    lease.renew();
                }
                NextAction::End => return,
            }
        }
    }

    /// Waits for the next action. A renewal that is due comes before a report.
    fn next(&self, renew_at: Instant) -> NextAction {
        let left = renew_at.saturating_duration_since(Instant::now());
        let is_idle = |state: &mut State| state.latest.is_none() && !state.is_over;
        let waited = self.changed.wait_timeout_while(lock(&self.state), left, is_idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_over {
            return NextAction::End;
        }
        match state.latest.take() {
            Some(report) if Instant::now() < renew_at => NextAction::Report(report),
            latest => {
                state.latest = latest;
                NextAction::Renew
            }
        }
    }
}
