//! Decides when a lease is idle (R06): no call was executed for its idle timeout.
//!
//! Calls leave no timestamps, so their number is sampled a few times within the timeout. A lease ends between one
//! timeout and one and an eighth of it after its last call, and the grace after that. The end is announced; a call
//! within the grace keeps the lease, and the announcement is void.

use std::time::{Duration, Instant};

use crate::leases::usage::Activity;

/// Time between the announcement and the end.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
/// Number of samples within a timeout.
const LOOKS: u32 = 8;
/// Shortest time between two samples.
const SHORTEST_STEP: Duration = Duration::from_millis(10);

/// Decision after a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleDecision {
    Stay,
    Announce,
    End,
}

/// Watches one lease.
#[derive(Debug)]
pub(crate) struct IdleWatch {
    pub(crate) timeout: Duration,
    calls: u64,
    /// Since when there has been no call, as far as was seen.
    quiet_since: Instant,
    announced: Option<Instant>,
    next_look: Instant,
}

impl IdleWatch {
    pub(crate) fn new(timeout: Duration, now: Instant) -> IdleWatch {
        IdleWatch { timeout, calls: 0, quiet_since: now, announced: None, next_look: now }
    }

    pub(crate) fn next_look(&self) -> Instant {
        self.next_look
    }

    /// The client has done something that a call will follow.
    pub(crate) fn touch(&mut self, now: Instant) {
        self.quiet_since = now;
        self.announced = None;
    }

    pub(crate) fn look(&mut self, now: Instant, activity: Activity) -> IdleDecision {
        if activity.executing || activity.calls != self.calls {
            self.calls = activity.calls;
            self.touch(now);
        }
        let quiet = now.saturating_duration_since(self.quiet_since);
        let step = (self.timeout / LOOKS).max(SHORTEST_STEP);
        debug_assert!(self.quiet_since <= now, "quiet since {:?}, and it is {now:?}", self.quiet_since);
        match self.announced {
            Some(announced) if now >= announced + GRACE => IdleDecision::End,
            Some(announced) => {
                self.next_look = announced + GRACE;
                IdleDecision::Stay
            }
            None if quiet >= self.timeout => {
                self.announced = Some(now);
                self.next_look = now + GRACE;
                IdleDecision::Announce
            }
            None => {
                self.next_look = now + step.min(self.timeout - quiet);
                IdleDecision::Stay
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(8);

    /// Looks whenever it is time to, until something follows; `activity` says what is seen after how long.
    fn next(
        watch: &mut IdleWatch,
        start: Instant,
        activity: impl Fn(Duration) -> Activity,
    ) -> (IdleDecision, Duration) {
        loop {
            let now = watch.next_look();
            let verdict = watch.look(now, activity(now - start));
            if verdict != IdleDecision::Stay {
                return (verdict, now - start);
            }
        }
    }

    #[test]
    fn a_lease_without_calls_is_announced_and_then_ends() {
        let start = Instant::now();
        let mut watch = IdleWatch::new(TIMEOUT, start);
        let quiet = |_| Activity { calls: 0, executing: false };
        assert_eq!(next(&mut watch, start, quiet), (IdleDecision::Announce, TIMEOUT));
        assert_eq!(next(&mut watch, start, quiet), (IdleDecision::End, TIMEOUT + GRACE));
    }

    #[test]
    fn calls_and_a_long_execution_keep_a_lease() {
        let start = Instant::now();
        let mut watch = IdleWatch::new(TIMEOUT, start);
        let busy = |after: Duration| Activity {
            calls: after.as_secs().min(25) / 5,
            executing: (Duration::from_secs(30)..Duration::from_secs(90)).contains(&after),
        };
        let (verdict, after) = next(&mut watch, start, busy);
        assert_eq!(verdict, IdleDecision::Announce);
        let last_seen = Duration::from_secs(90) - TIMEOUT / LOOKS..=Duration::from_secs(90);
        assert!(last_seen.contains(&(after - TIMEOUT)), "{after:?}");
    }

    #[test]
    fn a_call_within_the_grace_voids_the_announcement() {
        let start = Instant::now();
        let mut watch = IdleWatch::new(TIMEOUT, start);
        let rescued = |after| Activity { calls: u64::from(after > TIMEOUT), executing: false };
        assert_eq!(next(&mut watch, start, rescued), (IdleDecision::Announce, TIMEOUT));
        let second = TIMEOUT + GRACE + TIMEOUT;
        assert_eq!(next(&mut watch, start, rescued), (IdleDecision::Announce, second));
        assert_eq!(next(&mut watch, start, rescued), (IdleDecision::End, second + GRACE));
    }
}
