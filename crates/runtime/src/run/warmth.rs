//! Decides how long idle workers of an application are kept, and when they are leased again, from the times between its
//! runs.
//!
//! This is the hybrid histogram policy of Shahrad et al., "Serverless in the Wild" (ATC 2020), section 4. The times
//! from the end of a run to the arrival of the next one are counted in bins. If the histogram is representative, its
//! head and its tail say when the next run is to be expected: workers are given back at once, leased again shortly
//! before the head, and kept until shortly after the tail. Otherwise they are kept for a fixed time. The paper predicts
//! times beyond the histogram by a time series; here the fixed time is used for them.

use std::time::Duration;

/// Width of a bin, except in tests.
pub(super) const BIN: Duration = Duration::from_secs(60);
/// Number of bins: the histogram covers 4 hours.
const BINS: usize = 240;
/// Bins for which workers are kept where the histogram says nothing: 10 minutes.
const FIXED_BINS: u32 = 10;
/// Fewest idle times from which a histogram is representative.
const FEWEST: u64 = 5;
/// Percentiles of the idle times that begin and end the time in which a run is expected.
const HEAD_PERCENT: u64 = 5;
const TAIL_PERCENT: u64 = 99;

/// Times at which workers are leased and given back after the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WarmPlan {
    /// Time after the run's end at which workers are leased for the next run. Zero: they are kept from its end.
    pub(super) prewarm_after: Duration,
    /// Time for which idle workers are kept, from then on.
    pub(super) keep_alive: Duration,
}

/// Idle times of an application.
#[derive(Clone, Debug)]
pub(super) struct IdleHistogram {
    bin: Duration,
    counts: Vec<u32>,
    beyond: u64,
}

impl IdleHistogram {
    /// An empty histogram with bins of this width.
    pub(super) fn new(bin: Duration) -> IdleHistogram {
        IdleHistogram { bin, counts: vec![0; BINS], beyond: 0 }
    }

    /// The histogram of runs, in any order, of which each has the times of its arrival and of its end in milliseconds.
    /// A run that has not ended has zero as its end.
    pub(super) fn of_runs(bin: Duration, mut runs: Vec<(u64, u64)>) -> IdleHistogram {
        let mut histogram = IdleHistogram::new(bin);
        runs.sort_unstable();
        let mut idle_since = None::<u64>;
        for (began, ended) in runs {
            if let Some(since) = idle_since {
                // Runs that overlap find no idle worker: the time is zero.
                histogram.add(Duration::from_millis(began.saturating_sub(since)));
            }
            idle_since = idle_since.max(Some(ended.max(began)));
        }
        histogram
    }

    /// Counts an idle time.
    pub(super) fn add(&mut self, idle: Duration) {
        let bin = usize::try_from(idle.as_nanos() / self.bin.as_nanos().max(1)).ok();
        match bin.and_then(|bin| self.counts.get_mut(bin)) {
            Some(count) => *count = count.saturating_add(1),
            None => self.beyond = self.beyond.saturating_add(1),
        }
    }

    /// Decides what is done after the next run.
    pub(super) fn plan(&self) -> WarmPlan {
        if !self.is_representative() {
            return WarmPlan {
                prewarm_after: Duration::ZERO,
                keep_alive: self.bin.saturating_mul(FIXED_BINS),
            };
        }
        // The margins of the paper: a tenth earlier, and a tenth later.
        let head = self.bin.saturating_mul(self.percentile(HEAD_PERCENT));
        let prewarm_after = head.saturating_mul(9) / 10;
        let tail = self.bin.saturating_mul(self.percentile(TAIL_PERCENT).saturating_add(1));
        let until = tail.saturating_mul(11) / 10;
        debug_assert!(prewarm_after < until, "workers are kept from {prewarm_after:?} until {until:?}");
        WarmPlan { prewarm_after, keep_alive: until.saturating_sub(prewarm_after) }
    }

    /// The number of idle times within the bins.
    fn within(&self) -> u64 {
        self.counts.iter().map(|&count| u64::from(count)).sum()
    }

    /// Whether there are enough idle times, most of them lie within the bins, and they are concentrated in few bins: the
    /// coefficient of variation of the bins' counts is at least 2.
    fn is_representative(&self) -> bool {
        let within = self.within();
        if within < FEWEST || self.beyond >= within {
            return false;
        }
        let squares: u128 = self.counts.iter().map(|&count| u128::from(count).pow(2)).sum();
        // The variance over the square of the mean is at least 4.
        squares.saturating_mul(BINS as u128) >= u128::from(within).pow(2).saturating_mul(5)
    }

    /// The first bin up to which this part of the idle times within the bins lies.
    fn percentile(&self, percent: u64) -> u32 {
        let within = u128::from(self.within()) * u128::from(percent);
        let mut seen = 0_u128;
        let reached = (0_u32..).zip(&self.counts).find(|&(_, &count)| {
            seen += u128::from(count) * 100;
            count > 0 && seen >= within
        });
        reached.map_or(0, |(bin, _)| bin)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn minutes(count: u64) -> Duration {
        Duration::from_secs(count * 60)
    }

    fn histogram(idle_minutes: impl IntoIterator<Item = u64>) -> IdleHistogram {
        let mut histogram = IdleHistogram::new(BIN);
        idle_minutes.into_iter().for_each(|idle| histogram.add(minutes(idle)));
        histogram
    }

    const FIXED: WarmPlan = WarmPlan { prewarm_after: Duration::ZERO, keep_alive: minutes(10) };

    #[test]
    fn too_few_runs_are_kept_for_a_fixed_time() {
        assert_eq!(histogram([]).plan(), FIXED);
        assert_eq!(histogram([30; 4]).plan(), FIXED);
        assert_ne!(histogram([30; 5]).plan(), FIXED);
    }

    #[test]
    fn spread_runs_are_kept_for_a_fixed_time() {
        assert_eq!(histogram(0..240).plan(), FIXED);
    }

    #[test]
    fn runs_beyond_the_histogram_are_kept_for_a_fixed_time() {
        assert_eq!(histogram([30, 30, 30, 30, 30, 240, 300, 400, 500, 600]).plan(), FIXED);
        assert_ne!(histogram([30, 30, 30, 30, 30, 240, 300, 400, 500]).plan(), FIXED);
    }

    #[test]
    fn head_and_tail_bound_the_time_of_leases() {
        let plan = histogram([30, 31, 32, 30, 31, 32]).plan();
        assert_eq!(plan.prewarm_after, minutes(27));
        assert_eq!(plan.prewarm_after + plan.keep_alive, minutes(33) * 11 / 10);
    }

    #[test]
    fn workers_of_frequent_runs_are_kept_from_their_end() {
        let plan = histogram([0; 20]).plan();
        assert_eq!((plan.prewarm_after, plan.keep_alive), (Duration::ZERO, Duration::from_secs(66)));
    }

    #[test]
    fn idle_times_span_from_last_end_to_next_arrival() {
        let minute = 60_000;
        // The second run lies within the first, and the last has not ended.
        let runs = vec![(10 * minute, 0), (0, 4 * minute), (minute, 2 * minute)];
        let histogram = IdleHistogram::of_runs(BIN, runs);
        let counted: Vec<usize> = (0..BINS).filter(|&bin| histogram.counts[bin] > 0).collect();
        assert_eq!((counted, histogram.within()), (vec![0, 6], 2));
    }

    /// Number of cold runs, and the time for which idle workers were held.
    fn simulate(gaps: &[Duration], plan: impl Fn(&IdleHistogram) -> WarmPlan) -> (usize, Duration) {
        let (mut histogram, mut cold, mut wasted) = (IdleHistogram::new(BIN), 0, Duration::ZERO);
        for &gap in gaps {
            let WarmPlan { prewarm_after, keep_alive } = plan(&histogram);
            let until = prewarm_after + keep_alive;
            cold += usize::from(!(prewarm_after..=until).contains(&gap));
            wasted += gap.min(until).saturating_sub(prewarm_after);
            histogram.add(gap);
        }
        (cold, wasted)
    }

    #[test]
    fn periodic_runs_find_workers_that_fixed_times_do_not_keep() {
        let gaps: Vec<Duration> = (0..100).map(|run| minutes(30 + run % 3)).collect();
        let (cold, wasted) = simulate(&gaps, IdleHistogram::plan);
        let (cold_fixed, wasted_fixed) = simulate(&gaps, |_| FIXED);
        assert_eq!(cold_fixed, 100);
        assert!(cold <= 10 && wasted * 2 < wasted_fixed, "{cold} cold, {wasted:?} of {wasted_fixed:?}");
    }

    #[test]
    fn frequent_runs_waste_less_than_by_a_fixed_time() {
        let gaps = [minutes(2); 100];
        let (cold, wasted) = simulate(&gaps, IdleHistogram::plan);
        let (cold_fixed, wasted_fixed) = simulate(&gaps, |_| FIXED);
        assert_eq!((cold, cold_fixed), (0, 0));
        assert!(wasted < wasted_fixed, "{wasted:?} of {wasted_fixed:?}");
    }

    proptest! {
        #[test]
        fn most_idle_times_of_a_representative_histogram_are_warm(
            near in prop::collection::vec(0_u64..3, 5..200),
            from in 0_u64..237,
        ) {
            let idle: Vec<u64> = near.iter().map(|near| near + from).collect();
            let plan = histogram(idle.iter().copied()).plan();
            let until = plan.prewarm_after + plan.keep_alive;
            let warm = idle.iter().filter(|&&idle| (plan.prewarm_after..=until).contains(&minutes(idle)));
            prop_assert!(warm.count() * 100 >= idle.len() * 94, "{plan:?} of {idle:?}");
        }

        #[test]
        fn plans_of_any_idle_times_are_bounded(idle in prop::collection::vec(any::<u64>(), 0..100), bin in 1_u64..100_000) {
            let mut histogram = IdleHistogram::new(Duration::from_millis(bin));
            idle.iter().for_each(|&idle| histogram.add(Duration::from_millis(idle)));
            let plan = histogram.plan();
            let limit = Duration::from_millis(bin) * 264;
            prop_assert!(plan.prewarm_after + plan.keep_alive <= limit, "{plan:?}");
        }
    }
}
