//! Measures how often something is requested: the number of requests, in which recent ones count more.

use std::time::{Duration, Instant};

/// Time after which a request counts half.
const HALF_LIFE: Duration = Duration::from_secs(60);

/// See the [module](self).
#[derive(Clone, Copy)]
pub(super) struct Heat {
    /// Number of requests at the time of the latest one.
    pub(super) count: f64,
    /// Time of the latest request.
    pub(super) at: Instant,
}

impl Heat {
    /// Returns the number of requests, as it counts at a time.
    pub(super) fn now(self, now: Instant) -> f64 {
        debug_assert!(self.count.is_finite() && self.count >= 0.0, "asked for {} times", self.count);
        let halves = now.saturating_duration_since(self.at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        self.count * 0.5_f64.powf(halves)
    }

    /// Counts a request.
    pub(super) fn add(&mut self, now: Instant) {
        *self = Heat { count: self.now(now) + 1.0, at: now };
    }
}
