//! Limits the rate of a peer's messages. Control messages are few, so a peer that sends them as fast as it can is not
//! served.

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
    /// Counts a message. Returns whether the peer keeps within its limit.
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
    fn bounds_a_burst_and_resets_in_the_next_second() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        assert!((0..MAX_MESSAGES_PER_SECOND).all(|_| pace.keeps(start)));
        assert!(!pace.keeps(start + SECOND / 2));
        assert!(pace.keeps(start + SECOND));
    }
}
