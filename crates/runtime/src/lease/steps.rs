//! Steps of a worker's start, which the agent and the worker process report while it takes time.
//!
//! A start has no time limit of its own as long as its steps are reported: the first start of an environment may fetch
//! gigabytes, and import for minutes. The limit is the caller's ([`Starting::limit`]), and the end of the lease.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sublet_proto::text::printable_line;
use sublet_proto::{Code, Error};

/// Longest step that is reported, in characters.
const MAX_STEP_CHARS: usize = 200;

/// Function that is called with each step of a start, on any thread.
#[derive(Clone)]
pub(crate) struct StepListener(Arc<dyn Fn(&str) + Send + Sync>);

impl StepListener {
    pub(crate) fn new(function: impl Fn(&str) + Send + Sync + 'static) -> StepListener {
        StepListener(Arc::new(function))
    }
}

impl fmt::Debug for StepListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StepListener")
    }
}

/// Options of a caller for the starts of its workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Starting {
    /// Hears of each step.
    pub(crate) listener: Option<StepListener>,
    /// Longest time of a start. Without a limit a start may take until the lease ends.
    pub(crate) limit: Option<Duration>,
}

/// State of the start that is under way.
#[derive(Debug, Default)]
pub(super) struct StartProgress {
    step: String,
    told: Option<Instant>,
    until: Option<Instant>,
}

impl Starting {
    /// The state of a start that begins now.
    pub(super) fn begin(&self) -> StartProgress {
        let until = self.limit.and_then(|limit| Instant::now().checked_add(limit));
        StartProgress { step: String::new(), told: None, until }
    }

    /// Passes a step on to the caller.
    pub(super) fn tell(&self, step: &str) {
        if let Some(StepListener(listener)) = &self.listener {
            listener(step);
        }
    }
}

impl StartProgress {
    /// Takes note of a step. Returns its text if it is another one than before.
    pub(super) fn note(&mut self, step: &str) -> Option<String> {
        let step: String = printable_line(step).chars().take(MAX_STEP_CHARS).collect();
        self.told = Some(Instant::now());
        let is_new = self.step != step;
        self.step.clone_from(&step);
        is_new.then_some(step)
    }

    /// Time until which an answer may take that is awaited since a time, and that comes within a time after each step.
    pub(super) fn answer_due(&self, since: Instant, longest: Duration) -> Instant {
        let due = self.told.map_or(since, |told| told.max(since)) + longest;
        self.until.map_or(due, |until| due.min(until))
    }

    /// The error of a start that takes longer than its caller allows, if it does.
    pub(super) fn check_limit(&self, limit: Option<Duration>) -> Result<(), Error> {
        let (Some(until), Some(limit)) = (self.until, limit) else { return Ok(()) };
        if Instant::now() < until {
            return Ok(());
        }
        let step = if self.step.is_empty() { "starting it" } else { &self.step };
        let message =
            format!("the worker did not start within {} s (start_timeout): {step}", limit.as_secs_f64());
        Err(Error::new(Code::DeadlineExceeded, message))
    }
}
