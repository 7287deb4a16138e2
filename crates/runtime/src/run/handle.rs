//! A run that another process drives: waits for its result, cancels it, and reads its log.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sublet_proto::v1::{RunInfo, RunNote};
use sublet_proto::{Code, Error};

use super::journal::outputs_of;
use super::lease::is_outage;
use super::news::Outcome;
use crate::access::Access;
use crate::lease::link::protocol;
use crate::manager::ManagerClient;

/// Intervals at which a run is looked at: the first, and the longest. Each is twice the one before.
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LONGEST_LOOK: Duration = Duration::from_millis(200);
/// Time for which no manager may answer while a run is waited for.
const OUTAGE: Duration = Duration::from_secs(60);

/// A run of the caller's tenant, which any process may drive.
#[derive(Clone)]
pub struct RunHandle {
    manager: Arc<ManagerClient>,
    run: String,
}

impl fmt::Debug for RunHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunHandle").field("run", &self.run).finish_non_exhaustive()
    }
}

/// Event in the log of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Time of the event, in milliseconds since 1970, by the clock of the process that drove the run.
    pub at_unix_ms: u64,
    /// Name of the component; empty for the run itself.
    pub component: String,
    /// Description of the event, with the error and the output of a failed function in Python. At most 1 KiB; functions
    /// control parts of its content.
    pub text: String,
}

impl RunHandle {
    pub(super) fn new(manager: Arc<ManagerClient>, run: String) -> RunHandle {
        RunHandle { manager, run }
    }

    /// Opens a run by its identifier. That there is such a run shows when it is used.
    ///
    /// # Errors
    /// As for [`ManagerClient::connect_with`].
    pub fn open(access: Access, run: &str) -> Result<RunHandle, Error> {
        Ok(RunHandle::new(Arc::new(ManagerClient::connect_with(access)?), run.to_owned()))
    }

    /// The run's identifier.
    pub fn id(&self) -> &str {
        &self.run
    }

    /// Waits until the run has ended, at most so long if there is a limit, and returns its result.
    ///
    /// # Errors
    /// The error with which the run ended: that of a component, or `run_cancelled`. `deadline_exceeded` if it has not
    /// ended in time, and continues; `unknown_run` if the tenant has no such run; `invalid_argument` if it succeeded
    /// and was not detached, since only its client has its outputs then.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Outcome, Error> {
        self.wait_while(timeout, || true)
    }

    /// Waits like [`RunHandle::wait`], as long as `goes_on`, which is called repeatedly, returns true.
    ///
    /// # Errors
    /// As for [`RunHandle::wait`]; `deadline_exceeded` as well if `goes_on` returns false. The run continues.
    pub fn wait_while(
        &self,
        timeout: Option<Duration>,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Outcome, Error> {
        let (begun, mut look, mut answered) = (Instant::now(), FIRST_LOOK, Instant::now());
        loop {
            match self.manager.read_run(&self.run, u64::MAX) {
                Ok(page) => {
                    answered = Instant::now();
                    let info = page.info.ok_or_else(|| protocol("the manager does not describe the run"))?;
                    if info.ended_unix_ms != 0 {
                        return self.outcome(info);
                    }
                }
                Err(error) if is_outage(error.code) && answered.elapsed() < OUTAGE => {}
                Err(error) => return Err(error),
            }
            let left = timeout.map_or(look, |timeout| timeout.saturating_sub(begun.elapsed()));
            if left.is_zero() || !goes_on() {
                let message =
                    format!("run {} has not ended within {:?}: it continues", self.run, begun.elapsed());
                return Err(Error::new(Code::DeadlineExceeded, message));
            }
            std::thread::sleep(look.min(left));
            look = (look * 2).min(LONGEST_LOOK);
        }
    }

    /// Ends the run before it is done. The process that drives it gives its cores and memory back within about a second.
    /// A run that was cancelled before stays cancelled.
    ///
    /// # Errors
    /// `unknown_run` if the tenant has no such run, or the run has ended.
    pub fn cancel(&self) -> Result<(), Error> {
        self.manager.cancel_run(&self.run).map(drop)
    }

    /// The latest events of the run, at most 128, the oldest first. A running run reports them about once a second.
    ///
    /// # Errors
    /// `unknown_run` if the tenant has no such run.
    pub fn logs(&self) -> Result<Vec<LogLine>, Error> {
        let page = self.manager.read_run(&self.run, u64::MAX)?;
        let line = |RunNote { at_unix_ms, component, text }| LogLine { at_unix_ms, component, text };
        Ok(page.notes.into_iter().map(line).collect())
    }

    fn outcome(&self, info: RunInfo) -> Result<Outcome, Error> {
        if info.code != 0 {
            return Err(Error::new(Code::from_number(info.code), info.message));
        }
        if info.terms.is_none() {
            let message = format!(
                "run {} succeeded, and its outputs went to the client that drove it: only a detached run keeps them",
                self.run
            );
            return Err(Error::new(Code::InvalidArgument, message));
        }
        let (mut entries, mut after) = (Vec::new(), 0);
        loop {
            let page = self.manager.read_run(&self.run, after)?;
            let Some(last) = page.entries.last() else { break };
            after = last.number;
            entries.extend(page.entries);
        }
        let outputs = outputs_of(&info.outputs, entries)?;
        debug_assert_eq!(outputs.len(), info.outputs.len(), "outputs of run {}", self.run);
        Ok(Outcome { run: info.run, outputs, components: info.components, result: None })
    }
}
