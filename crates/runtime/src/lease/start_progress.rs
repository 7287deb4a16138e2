//! The steps of a lease's start: noted, passed on to the caller, and held to the caller's limit ([`steps`](super::steps)).

use std::time::{Duration, Instant};

use sublet_proto::Error;

use super::ClientLease;
use super::link::lock;
use super::steps::StartProgress;

impl ClientLease {
    /// Begins a start: its limit counts from now.
    pub(super) fn begin_steps(&self) {
        *lock(&self.link.progress) = self.starting.begin();
    }

    /// Takes note of a step, which shows that the start continues.
    pub(super) fn note_step(&self, step: &str) {
        let noted = lock(&self.link.progress).note(step);
        if let Some(step) = noted {
            self.starting.tell(&step);
        }
    }

    /// Time until which an answer may take that is awaited since a time, and that comes within a time after each step.
    pub(super) fn answer_due(&self, since: Instant, longest: Duration) -> Instant {
        lock(&self.link.progress).answer_due(since, longest)
    }

    /// The error of a start that takes longer than its caller allows, if it does.
    pub(super) fn check_limit(&self) -> Result<(), Error> {
        lock(&self.link.progress).check_limit(self.starting.limit)
    }

    /// Forgets the limit of a start that is over: later requests to the agent have their own.
    pub(super) fn end_steps(&self) {
        *lock(&self.link.progress) = StartProgress::default();
    }
}
