//! Reports the state of a run to the managers, for clients that watch it. The run does not wait for this: a thread of
//! its own sends the reports, and a newer report replaces one that was not sent yet.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use sublet_proto::v1::ReportRunRequest;

use crate::lease::link::lock;
use crate::manager::ManagerClient;

/// Reports the state of one run. It reports nothing more once it is dropped.
pub(super) struct RunReporter {
    manager: Arc<ManagerClient>,
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

impl RunReporter {
    pub(super) fn new(manager: &Arc<ManagerClient>) -> RunReporter {
        RunReporter { manager: manager.clone(), report_state: Arc::default(), is_started: false }
    }

    /// Submits the current state of the run.
    pub(super) fn tell(&mut self, report: ReportRunRequest) {
        lock(&self.report_state.state).latest = Some(report);
        self.report_state.changed.notify_all();
        if !self.is_started {
            let (manager, report_state) = (self.manager.clone(), self.report_state.clone());
            let thread = std::thread::Builder::new().name("sublet report".into());
            // Without a thread there are no reports.
            let _ = thread.spawn(move || report_state.serve(&manager));
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
    fn serve(&self, manager: &ManagerClient) {
        while let Some(report) = self.next() {
            // Observers of the run detect a missing report by the time of the last one.
            let _ = manager.report_run(report);
        }
    }

    fn next(&self) -> Option<ReportRunRequest> {
        let is_empty = |state: &mut State| state.latest.is_none() && !state.is_over;
        let waited = self.changed.wait_while(lock(&self.state), is_empty);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_over { None } else { state.latest.take() }
    }
}
