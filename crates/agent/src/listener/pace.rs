//! Limits the rate of a peer's messages. Control messages are few; whoever sends them as fast as it can wants no
//! answer.

use std::time::{Duration, Instant};

/// Messages within a second.
pub(crate) const MAX_MESSAGES_PER_SECOND: u32 = 2048;
const SECOND: Duration = Duration::from_secs(1);

/// Counts the messages of one peer.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    since: Option<Instant>,
    messages: u32,
}

impl Pace {
    /// Counts one; says whether the peer keeps within its bound.
    pub(crate) fn keeps(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= SECOND) {
            *self = Pace { since: Some(now), messages: 0 };
        }
        self.messages = self.messages.saturating_add(1);
        self.messages <= MAX_MESSAGES_PER_SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_has_a_bound_and_the_next_second_a_new_one() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        assert!((0..MAX_MESSAGES_PER_SECOND).all(|_| pace.keeps(start)));
        assert!(!pace.keeps(start + SECOND / 2));
        assert!(pace.keeps(start + SECOND));
    }
}
