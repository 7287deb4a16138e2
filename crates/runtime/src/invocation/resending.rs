//! Sends a call again that its worker rejected, or that was lost with its worker ([`detour`](super::detour)).
//!
//! Nothing here waits, so that [`Invocation::is_ready`] and futures can use it as well as a blocking wait.

use std::time::Instant;

use sublet_proto::{Code, Error};

use super::Invocation;
use super::detour::{Detour, DetourStep, MOST_ROUNDS, is_repeatable};
use crate::lease::worker_set::WorkerIndex;

impl Invocation<'_> {
    /// Sends a call again that was turned away or lost, if it may be. Never waits.
    #[cold]
    pub(super) fn go_on(&mut self) -> DetourStep {
        let lost = (!self.answered()).then(|| self.lease.why_lost(self.sent.worker, self.sent.position));
        let now = Instant::now();
        let mut detour = self.detour.take().unwrap_or_default();
        let next = self.decide(&mut detour, lost, now);
        self.detour = Some(detour);
        next
    }

    fn decide(&mut self, detour: &mut Detour, lost: Option<Error>, now: Instant) -> DetourStep {
        let too_late = detour.rounds > MOST_ROUNDS || self.call.deadline.is_some_and(|at| at <= now);
        match &lost {
            Some(error) if too_late || detour.repeated >= self.call.retries || !is_repeatable(error.code) => {
                return DetourStep::Over(error.clone());
            }
            None if too_late => return DetourStep::Over(self.core_busy(detour.rounds)),
            _ => {}
        }
        match detour.not_before {
            Some(at) if at > now => return DetourStep::Nap(at),
            _ => detour.not_before = None,
        }
        let places = self.places();
        if places.is_empty() {
            return DetourStep::Over(lost.unwrap_or_else(|| self.lease.why_over()));
        }
        let all = places.len();
        for place in places {
            if detour.visited >= all {
                break;
            }
            detour.visited += 1;
            match self.move_to(place) {
                Ok(true) => {
                    detour.repeated += u32::from(lost.is_some());
                    return DetourStep::Sent;
                }
                Ok(false) => {}
                Err(error) => return DetourStep::Over(error),
            }
        }
        detour.nap(now)
    }

    /// The workers that the call may be sent to next, this one last. A call whose worker was named stays with it.
    fn places(&self) -> Vec<WorkerIndex> {
        let mut places = self.lease.worker_set.round(self.lease.first_worker + self.sent.worker);
        if let Some(named) = self.call.worker {
            places.retain(|place| place.number() == named);
        }
        places
    }

    /// Sends the call to another worker. Returns `false` if that worker has no free slot.
    fn move_to(&mut self, place: WorkerIndex) -> Result<bool, Error> {
        let (worker, record) = (self.sent.worker, self.sent.record);
        if !place.lease.take_over(place.worker, &self.call, &mut self.sent)? {
            return Ok(false);
        }
        let records = self.lease.records(worker);
        records.unwatch(record);
        records.release(record);
        self.lease = place.lease;
        if !self.lease.running() {
            self.lease.revive_soon();
        }
        Ok(true)
    }

    fn core_busy(&self, rounds: u32) -> Error {
        let sent = match self.call.worker {
            Some(named) => format!("its worker {named}"),
            None => "every worker".to_owned(),
        };
        let message = self.describe(&format!(
            "was turned away by {sent} in {rounds} rounds: their cores were executing other calls"
        ));
        Error::new(Code::CoreBusy, message)
    }
}
