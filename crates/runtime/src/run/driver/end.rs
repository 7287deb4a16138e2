//! End of a drive: what the run holds is returned, and its end is stored, or it is left to another process.

use sublet_proto::Error;
use sublet_proto::v1::ReportRunRequest;

use super::{Driven, RunDriver, is_set};
use crate::run::journal::RunEnd;
use crate::run::lease::is_outage;
use crate::run::news::RunResult;
use crate::run::progress::Outputs;
use crate::run::workers::ComponentWorkers;

impl RunDriver<'_> {
    /// Returns everything that the run holds, and stores its end. A detached run that this process cannot end, or is to
    /// leave, is handed back: it continues elsewhere.
    pub(super) fn end(mut self, outcome: Result<Vec<(usize, Outputs)>, Error>) -> Driven {
        let result = if outcome.is_ok() { self.take_result() } else { None };
        self.account.turn(self.running.keys().copied(), []);
        self.running.drain().for_each(|(_, running)| running.cancel.cancel());
        for (environment, workers) in std::mem::take(&mut self.idle) {
            let workers = workers.into_iter().map(ComponentWorkers::leave_run).collect();
            self.application.keep(environment, workers);
        }
        let left: Vec<usize> = self.memories.keys().copied().collect();
        left.into_iter().for_each(|memory| self.drop_memory(memory));
        for (memory, thread) in std::mem::take(&mut self.leaving) {
            if let Ok(used) = thread.join() {
                self.uses.count_memory(memory, used);
            }
        }
        self.tell_states();
        drop(self.reporter);
        let is_left = self.journal.is_detached()
            && outcome.as_ref().is_err_and(|error| is_outage(error.code) || is_set(self.leaves));
        if is_left && is_set(self.leaves) {
            // The process that continues the run executes again whatever is not stored.
            let _ = self.journal.flush();
        }
        // The entries of a run that has failed are not needed; those of another are stored.
        self.journal.stop_writing();
        if let Err(error) = &outcome {
            self.log.note("", format!("{}: {error}", if is_left { "left" } else { "ended" }));
        }
        let notes = self.log.notes();
        let (uses, points) = self.uses.finish();
        match is_left {
            true => {
                let (run, components) = (self.journal.run().to_owned(), uses.clone());
                let epoch = self.lease.epoch();
                // Without this report, the log lacks the latest events.
                let report = ReportRunRequest { run, components, points, epoch, notes };
                let _ = self.lease.manager().report_run(report);
                self.lease.hand_back();
            }
            // If the store does not record the end, the run stays listed as running. A detached run is then taken by
            // another process, which finds all of its records.
            false => {
                let components = uses.clone();
                let _ = self.journal.end(RunEnd { outcome: &outcome, components, points, notes });
            }
        }
        Driven { outcome, result, uses }
    }

    /// Takes the run's result out of the run: its caller gives it back. `None` if nothing has accessed it.
    fn take_result(&mut self) -> Option<RunResult> {
        let graph = &self.application.graph;
        let index = graph.result()?;
        let component = self.memories.remove(&index)?;
        drop(self.account.leave_memory(index));
        self.uses.count_traffic(index, component.take_traffic());
        let (memory, used) = component.hand_out();
        self.uses.count_memory(index, used);
        Some(RunResult { component: graph.components[index].name.clone(), memory: memory? })
    }
}
