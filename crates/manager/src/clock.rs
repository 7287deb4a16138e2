//! The manager's clock: the wall clock's time at the start, advanced by a steady clock.
//!
//! Wall clocks jump when they are set. Leases, tickets and tokens are all measured by this clock, so a jump has no
//! effect until the manager restarts. Agents take the time from its replies, and are not affected at all.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub(crate) const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Age below which records of leases are neither folded nor removed, in milliseconds.
pub(crate) const LEAST_AGE_MS: u64 = DAY_MS;

/// Milliseconds of Unix time that never go back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    base_ms: u64,
    started: Instant,
}

impl Clock {
    /// Starts a clock at the current time.
    pub(crate) fn start() -> Clock {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { base_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX), started: Instant::now() }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        let elapsed_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.base_ms.saturating_add(elapsed_ms)
    }
}
