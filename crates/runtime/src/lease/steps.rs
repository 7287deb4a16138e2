//! Steps of a worker's start, which the agent and the worker process report while it takes time.
//!
//! A start has no time limit of its own as long as its steps are reported: the first start of an environment may fetch
//! gigabytes, and import for minutes. The limit is the caller's ([`Starting::limit`]), and the end of the lease.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sublet_proto::text::printable_line;
use sublet_proto::{Code, Error};

use super::ClientLease;
use super::link::lock;

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

impl ClientLease {
    /// Begins a start: its limit counts from now.
    pub(super) fn begin_steps(&self) {
        let until = self.starting.limit.and_then(|limit| Instant::now().checked_add(limit));
        *lock(&self.link.progress) = StartProgress { step: String::new(), told: None, until };
    }

    /// Takes note of a step, which shows that the start continues.
    pub(super) fn note_step(&self, step: &str) {
        let step: String = printable_line(step).chars().take(MAX_STEP_CHARS).collect();
        let is_new = {
            let mut progress = lock(&self.link.progress);
            progress.told = Some(Instant::now());
            let is_new = progress.step != step;
            progress.step.clone_from(&step);
            is_new
        };
        if let Some(StepListener(listener)) = self.starting.listener.as_ref().filter(|_| is_new) {
            listener(&step);
        }
    }

    /// Time until which an answer may take that is awaited since a time, and that comes within a time after each step.
    pub(super) fn answer_due(&self, since: Instant, longest: Duration) -> Instant {
        let progress = lock(&self.link.progress);
        let due = progress.told.map_or(since, |told| told.max(since)) + longest;
        progress.until.map_or(due, |until| due.min(until))
    }

    /// The error of a start that takes longer than its caller allows, if it does.
    pub(super) fn check_limit(&self) -> Result<(), Error> {
        let progress = lock(&self.link.progress);
        let (Some(until), Some(limit)) = (progress.until, self.starting.limit) else { return Ok(()) };
        if Instant::now() < until {
            return Ok(());
        }
        let step = if progress.step.is_empty() { "starting it" } else { &progress.step };
        let message =
            format!("the worker did not start within {} s (start_timeout): {step}", limit.as_secs_f64());
        Err(Error::new(Code::DeadlineExceeded, message))
    }

    /// Forgets the limit of a start that is over: later requests to the agent have their own.
    pub(super) fn end_steps(&self) {
        *lock(&self.link.progress) = StartProgress::default();
    }
}
