//! Records a run's memory over time in a bounded number of points: pure.
//!
//! A point is the maximum in its interval. When there would be more than [`MAX_POINTS`], intervals become twice as
//! long, and two points become one.

use sublet_proto::run::MAX_POINTS;
use sublet_proto::v1::UsagePoint;

/// The first intervals, in microseconds.
const FIRST_INTERVAL_US: u64 = 10_000;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct MemorySeries {
    interval_us: u64,
    points: Vec<UsagePoint>,
}

impl MemorySeries {
    pub(super) fn new() -> MemorySeries {
        MemorySeries { interval_us: FIRST_INTERVAL_US, points: Vec::new() }
    }

    /// Adds the leased and used memory at a time. Times do not decrease.
    pub(super) fn note(&mut self, point: UsagePoint) {
        self.join(point);
        while self.points.len() > MAX_POINTS {
            self.interval_us = self.interval_us.saturating_mul(2);
            for point in std::mem::take(&mut self.points) {
                self.join(point);
            }
        }
        debug_assert!(
            self.points.is_sorted_by(|one, next| one.at_us < next.at_us),
            "the points at intervals of {} us are not in the order of time: {:?}",
            self.interval_us,
            self.points
        );
    }

    /// The points, in the order of time.
    pub(super) fn points(&self) -> &[UsagePoint] {
        &self.points
    }

    fn join(&mut self, point: UsagePoint) {
        let at_us = point.at_us - point.at_us % self.interval_us;
        match self.points.last_mut() {
            Some(last) if at_us <= last.at_us => {
                last.allocated_bytes = last.allocated_bytes.max(point.allocated_bytes);
                last.used_bytes = last.used_bytes.max(point.used_bytes);
            }
            _ => self.points.push(UsagePoint { at_us, ..point }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_point_is_the_most_of_its_interval() {
        let mut series = MemorySeries::new();
        for (at_us, allocated_bytes, used_bytes) in [(3, 5, 1), (9_999, 4, 2), (10_000, 9, 9), (35_000, 1, 0)]
        {
            series.note(UsagePoint { at_us, allocated_bytes, used_bytes });
        }
        let points: Vec<_> =
            series.points().iter().map(|at| (at.at_us, at.allocated_bytes, at.used_bytes)).collect();
        assert_eq!(points, [(0, 5, 2), (10_000, 9, 9), (30_000, 1, 0)]);
    }

    proptest! {
        #[test]
        fn series_keeps_peaks_in_a_bounded_number_of_points(
            steps in proptest::collection::vec((0..10_000_000_u64, 0..1000_u64, 0..1000_u64), 1..2000),
        ) {
            let (mut series, mut now_us, mut peaks) = (MemorySeries::new(), 0, (0, 0));
            for (step_us, allocated_bytes, used_bytes) in steps {
                now_us += step_us;
                series.note(UsagePoint { at_us: now_us, allocated_bytes, used_bytes });
                peaks = (peaks.0.max(allocated_bytes), peaks.1.max(used_bytes));
                prop_assert!(series.points().len() <= MAX_POINTS);
            }
            let points = series.points();
            prop_assert!(points.is_sorted_by(|a, b| a.at_us < b.at_us));
            prop_assert!(points.iter().all(|at| at.at_us % series.interval_us == 0));
            prop_assert!(now_us - points.last().unwrap().at_us < series.interval_us);
            let most = |of: fn(&UsagePoint) -> u64| points.iter().map(of).max().unwrap();
            prop_assert_eq!((most(|at| at.allocated_bytes), most(|at| at.used_bytes)), peaks);
        }
    }
}
