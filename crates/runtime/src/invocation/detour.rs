//! Sends a call again that its worker rejected, or that was lost with its worker.
//!
//! **Turned away**, by `core_busy`: the shared core was executing something else, and the call was not executed. It is
//! sent at once to the next worker, on another core or another node, round after round with a growing nap in between,
//! until its deadline or for [`MOST_ROUNDS`] (rFaaS III-D).
//!
//! **Lost**, by the end of its worker, its lease or its node: it may have been executed in part, so it is sent again
//! only as often as its caller has allowed ([`CallOptions::retries`](crate::CallOptions::retries); rFaaS-preprint 3.5).
//!
//! Nothing here waits, so that [`Invocation::is_ready`] and futures can use it as well as a blocking wait.

use std::time::{Duration, Instant};

use sublet_proto::{Code, Error};

use super::Invocation;
use crate::lease::worker_set::WorkerIndex;

/// Rounds over all workers of a call that each of them turns away: with the naps, about an eighth of a second.
pub(super) const MOST_ROUNDS: u32 = 128;
/// The nap after the first round; each is twice as long as the one before, up to [`LONGEST_NAP`].
const FIRST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// Progress of a call among the workers.
pub(super) struct Detour {
    /// Workers that were tried since the latest nap.
    visited: u32,
    rounds: u32,
    repeated: u32,
    /// The end of the nap.
    not_before: Option<Instant>,
}

/// Next step of a call that was turned away or lost.
pub(super) enum DetourStep {
    /// The call has been sent again.
    Sent,
    /// The call must be checked again at this time.
    Nap(Instant),
    /// The call has ended.
    Over(Error),
}

impl Default for Detour {
    /// Starts at the worker that the call was sent to first.
    fn default() -> Detour {
        Detour { visited: 1, rounds: 0, repeated: 0, not_before: None }
    }
}

impl Detour {
    /// Time until which the call is not sent.
    pub(super) fn napping(&self) -> Option<Instant> {
        self.not_before
    }

    fn nap(&mut self, now: Instant) -> DetourStep {
        let nap = FIRST_NAP.saturating_mul(1 << self.rounds.min(16)).min(LONGEST_NAP);
        self.visited = 0;
        self.rounds += 1;
        self.not_before = Some(now + nap);
        DetourStep::Nap(now + nap)
    }
}

/// Whether a call that ended with this code was lost, through no fault of its own, and may do better elsewhere if its
/// caller allows repetition (rFaaS-preprint 3.5).
pub fn is_repeatable(code: Code) -> bool {
    matches!(
        code,
        Code::WorkerDied
            | Code::AgentUnreachable
            | Code::LeaseEnded
            | Code::LeaseExpired
            | Code::NodeReclaimed
    )
}

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
        let all = places.len() as u32;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_grow_to_a_limit_once_per_round() {
        let (mut detour, now) = (Detour::default(), Instant::now());
        let mut before = Duration::ZERO;
        for round in 1..=MOST_ROUNDS {
            let DetourStep::Nap(at) = detour.nap(now) else { panic!("no nap") };
            assert!(at - now >= before && at - now <= LONGEST_NAP, "round {round}: {:?}", at - now);
            assert_eq!((detour.rounds, detour.visited, detour.napping()), (round, 0, Some(at)));
            before = at - now;
        }
        assert_eq!(before, LONGEST_NAP);
    }

    #[test]
    fn repeats_only_calls_lost_with_a_worker_or_lease() {
        let repeated: Vec<_> = Code::ALL.iter().filter(|&&code| is_repeatable(code)).collect();
        let expected = [
            Code::LeaseExpired,
            Code::LeaseEnded,
            Code::NodeReclaimed,
            Code::WorkerDied,
            Code::AgentUnreachable,
        ];
        assert_eq!(repeated, expected.iter().collect::<Vec<_>>());
    }
}
