//! Time without the kernel: the processor's time-stamp counter, and its rate against CLOCK_MONOTONIC.
//!
//! The worker takes two time stamps for each call. Reading the counter costs a few nanoseconds, and the vDSO's clock
//! costs tens. Therefore the hot path counts ticks, and the reader of the count converts it.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The time-stamp counter. Monotonic on one core, and across cores where the processor keeps them in step, as
/// every x86-64 since 2008 and every aarch64 does; callers subtract with saturation all the same.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC exists on every x86-64 and has no precondition.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: CNTVCT_EL0 is readable from user space on Linux; the instruction touches nothing else.
        unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
        ticks
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    monotonic_ns()
}

/// Reads [`ticks`] only after everything before it in the program has happened. Without this order a processor may read
/// the counter while it still waits for a flag, and measure a round trip that it has not made.
#[inline(always)]
pub fn ticks_ordered() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: LFENCE exists on every x86-64 and has no precondition.
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: ISB is a barrier and touches nothing.
    unsafe {
        std::arch::asm!("isb", options(nostack));
    }
    ticks()
}

/// CLOCK_MONOTONIC in nanoseconds: the same clock in every process of a node.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

/// Time since the Unix epoch in milliseconds.
pub fn unix_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Measures the counter's rate over its own lifetime: a longer lifetime gives a more precise rate.
#[derive(Clone, Copy, Debug)]
pub struct Calibration {
    start_ticks: u64,
    start_ns: u64,
}

/// Shortest measurement. Below it the jitter of the two readings would show.
const SHORTEST: Duration = Duration::from_millis(20);
/// Number of times that both clocks are read for one reading.
const TRIES: usize = 5;

impl Calibration {
    /// Begins the measurement.
    pub fn start() -> Calibration {
        let (start_ticks, start_ns) = Calibration::read();
        Calibration { start_ticks, start_ns }
    }

    /// Reads both clocks at one moment. Makes several tries and returns the one in which the least time passed between
    /// the two readings, so that a preemption between them does not distort the result.
    fn read() -> (u64, u64) {
        let read = |_| {
            let (before, now_ns, after) = (ticks_ordered(), monotonic_ns(), ticks_ordered());
            let passed = after.saturating_sub(before);
            (passed, before + passed / 2, now_ns)
        };
        let (_, ticks, now_ns) = (0..TRIES).map(read).min().unwrap_or_default();
        (ticks, now_ns)
    }

    /// Ticks per nanosecond; sleeps first if the measurement began less than 20 ms ago.
    pub fn ticks_per_ns(&self) -> f64 {
        let age = Duration::from_nanos(monotonic_ns().saturating_sub(self.start_ns));
        if age < SHORTEST {
            std::thread::sleep(SHORTEST - age);
        }
        let (ticks, now_ns) = Calibration::read();
        let elapsed_ns = now_ns.saturating_sub(self.start_ns).max(1);
        let elapsed_ticks = ticks.saturating_sub(self.start_ticks).max(1);
        elapsed_ticks as f64 / elapsed_ns as f64
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn ticks_convert_to_the_time_that_passed() {
        let calibration = Calibration::start();
        let rate = calibration.ticks_per_ns();
        let (ticks0, ns0) = Calibration::read();
        std::thread::sleep(Duration::from_millis(30));
        let (ticks1, ns1) = Calibration::read();
        let (passed_ticks, passed_ns) = (ticks1 - ticks0, ns1 - ns0);
        let by_ticks = passed_ticks as f64 / rate;
        assert!(
            (by_ticks / passed_ns as f64 - 1.0).abs() < 0.2,
            "{by_ticks} ns by ticks, {passed_ns} ns by clock"
        );
    }
}
