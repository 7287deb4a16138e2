//! The clocks of the simulated machines. True time is the run's own, in microseconds from its beginning; no party of
//! the run sees it.

use crate::numbers::narrow;

/// Most that a machine's clock is fast or slow, in parts of a million: that of ordinary quartz.
pub const MAX_DRIFT_PPM: i64 = 100;

/// A monotonic clock: it never jumps, and is a little fast or slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimClock {
    started_us: u64,
    drift_ppm: i64,
}

impl SimClock {
    /// A clock that starts at 0 now.
    pub fn start(now_us: u64, drift_ppm: i64) -> SimClock {
        debug_assert!(
            drift_ppm.abs() <= MAX_DRIFT_PPM,
            "a drift of {drift_ppm} ppm, at most {MAX_DRIFT_PPM}"
        );
        SimClock { started_us: now_us, drift_ppm }
    }

    /// Reading of the clock, in nanoseconds since its start.
    pub fn read_ns(&self, now_us: u64) -> u64 {
        let elapsed_us: i64 = narrow(now_us.saturating_sub(self.started_us));
        narrow(elapsed_us * 1_000 + elapsed_us * self.drift_ppm / 1_000)
    }

    /// The true time from which on it shows at least this.
    pub fn when_us(&self, reading_ns: u64) -> u64 {
        let elapsed_us = (u128::from(reading_ns) * 1_000).div_ceil(narrow(1_000_000 + self.drift_ppm));
        let mut at_us = self.started_us + narrow::<_, u64>(elapsed_us);
        while self.read_ns(at_us) < reading_ns {
            at_us += 1;
        }
        at_us
    }
}

/// A manager's clock: its machine's wall clock when it started, and monotonic from then on.
#[derive(Clone, Copy, Debug)]
pub struct SimManagerClock {
    base_ms: u64,
    clock: SimClock,
}

impl SimManagerClock {
    /// Starts now, when the machine's wall clock shows `wall_ms`.
    pub fn start(now_us: u64, wall_ms: u64, drift_ppm: i64) -> SimManagerClock {
        SimManagerClock { base_ms: wall_ms, clock: SimClock::start(now_us, drift_ppm) }
    }

    /// Reading of the clock, in milliseconds of Unix time.
    pub fn read_ms(&self, now_us: u64) -> u64 {
        self.base_ms + self.clock.read_ns(now_us) / 1_000_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::random::Random;

    #[test]
    fn a_clock_is_fast_or_slow_by_its_drift() {
        let hour_us = 3_600_000_000;
        assert_eq!(SimClock::start(0, 100).read_ns(hour_us), hour_us * 1_000 + 360_000_000);
        assert_eq!(SimClock::start(0, -100).read_ns(hour_us), hour_us * 1_000 - 360_000_000);
        assert_eq!(SimManagerClock::start(5_000, 7, 0).read_ms(10_000), 12);
    }

    #[test]
    fn a_reading_is_reached_when_the_clock_says_so() {
        let mut random = Random::from_seed(5);
        for _ in 0..10_000 {
            let clock = SimClock::start(random.below(1 << 40), random.below(201) as i64 - 100);
            let reading_ns = random.below(10_000_000_000_000);
            let at_us = clock.when_us(reading_ns);
            assert!(clock.read_ns(at_us) >= reading_ns);
            assert!(at_us == clock.started_us || clock.read_ns(at_us - 2) < reading_ns, "{clock:?}");
        }
    }
}
