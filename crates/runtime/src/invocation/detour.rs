//! The progress of a call that its worker rejected, or that was lost with its worker: when it is sent again
//! ([`resending`](super::resending)), and when it is given up.
//!
//! **Turned away**, by `core_busy`: the shared core was executing something else, and the call was not executed. It is
//! sent at once to the next worker, on another core or another node, round after round with a growing nap in between,
//! until its deadline or for [`MOST_ROUNDS`] (rFaaS III-D).
//!
//! **Lost**, by the end of its worker, its lease or its node: it may have been executed in part, so it is sent again
//! only as often as its caller has allowed ([`CallOptions::retries`](crate::CallOptions::retries); rFaaS-preprint 3.5).

use std::time::{Duration, Instant};

use sublet_proto::{Code, Error};

/// Rounds over all workers of a call that each of them turns away: with the naps, about an eighth of a second.
pub(super) const MOST_ROUNDS: u32 = 128;
/// The nap after the first round; each is twice as long as the one before, up to [`LONGEST_NAP`].
const FIRST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// Progress of a call among the workers.
pub(super) struct Detour {
    /// Workers that were tried since the latest nap.
    pub(super) visited: usize,
    pub(super) rounds: u32,
    pub(super) repeated: u32,
    /// The end of the nap.
    pub(super) not_before: Option<Instant>,
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

    /// Ends a round: the next one begins after a nap.
    pub(super) fn nap(&mut self, now: Instant) -> DetourStep {
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
