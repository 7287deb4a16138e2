//! Chooses among several kinds of processing units for a request, by the cost of the work there and its time (Molecule
//! 4.1). The request sets the weight of each.

use std::fmt::Write;

use super::terms::{LeaseTerms, MAX_WEIGHT_PERMILLE};

/// The speed of a kind for which a package states none.
const PLAIN_PERMILLE: u32 = 1000;
/// Number of steps into which a factor of e is divided: costs that are closer to each other are compared exactly.
const STEPS: f64 = 1e9;

/// Work that a request does in a second, on some kind of processing unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestWork {
    /// Cost of the second, by [`LeaseTerms::busy_second`].
    pub(super) second: u128,
    /// Speed relative to other kinds.
    pub(super) speed_permille: u32,
}

/// Outcome for a kind of processing unit that was examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnitOutcome {
    /// The kind has not enough free.
    Full,
    Taken,
    /// The kind would have been next.
    Left,
}

impl RequestWork {
    pub(super) fn of(
        terms: &LeaseTerms,
        price: &sublet_proto::v1::Price,
        speed_permille: Option<u32>,
    ) -> RequestWork {
        let speed_permille = speed_permille.unwrap_or(PLAIN_PERMILLE).max(1);
        RequestWork { second: terms.busy_second(price), speed_permille }
    }

    /// Returns the logarithm of the product of cost and time, each to the power of its weight. Less is better.
    pub(super) fn score(self, time_weight_permille: u32) -> i64 {
        let time_weight =
            f64::from(time_weight_permille.min(MAX_WEIGHT_PERMILLE)) / f64::from(MAX_WEIGHT_PERMILLE);
        let time = f64::from(PLAIN_PERMILLE) / f64::from(self.speed_permille);
        let cost = self.second.max(1) as f64 * time;
        debug_assert!(time.is_finite() && cost > 0.0, "a score of cost {cost} and time {time}");
        #[expect(clippy::cast_possible_truncation, reason = "parts of a step make no difference")]
        let score = (STEPS * ((1.0 - time_weight) * cost.ln() + time_weight * time.ln())) as i64;
        score
    }

    /// Returns the nano-units for work that takes a second at plain speed.
    fn cost_nano(self) -> u128 {
        (self.second.saturating_mul(PLAIN_PERMILLE.into()) / u128::from(self.speed_permille)) >> 30
    }
}

/// Explains the weighing to the client: kinds in the order in which they were tried.
pub(super) fn explain<'name>(
    kinds: impl Iterator<Item = (&'name str, RequestWork, UnitOutcome)>,
    time_weight_permille: u32,
) -> String {
    let weight = time_weight_permille.min(MAX_WEIGHT_PERMILLE);
    let mut said = match weight {
        0 => "by price".to_owned(),
        MAX_WEIGHT_PERMILLE => "by time".to_owned(),
        weight => format!("by price and, to {} %, by time", f64::from(weight) / 10.0),
    };
    for (number, (kind, work, fate)) in kinds.enumerate() {
        let (cost, speed) = (work.cost_nano(), f64::from(work.speed_permille) / f64::from(PLAIN_PERMILLE));
        let fate = match fate {
            UnitOutcome::Full => " has no free capacity",
            UnitOutcome::Taken => " is taken",
            UnitOutcome::Left => "",
        };
        let before = if number == 0 { ": " } else { ", " };
        // A string takes all that is written.
        let _ = write!(said, "{before}{kind} ({cost} nano-units for a second's work, speed {speed}){fate}");
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(nano: u128, speed_permille: u32) -> RequestWork {
        RequestWork { second: nano << 30, speed_permille }
    }

    #[test]
    fn price_prefers_the_cheaper_work_and_time_the_faster() {
        let (cpu, dpu, gpu) = (work(20_000, 1000), work(6_000, 400), work(200_000, 8000));
        let best = |weight| {
            let mut kinds = [("cpu", cpu), ("dpu", dpu), ("gpu", gpu)];
            kinds.sort_by_key(|(_, work)| work.score(weight));
            kinds.map(|(name, _)| name)
        };
        // A second's work costs 20000, 15000 and 25000.
        assert_eq!(best(0), ["dpu", "cpu", "gpu"]);
        assert_eq!(best(1000), ["gpu", "cpu", "dpu"]);
        assert_eq!(best(300)[0], "gpu", "a fourth more for an eighth of the time");
        assert_eq!(best(5000), best(1000));
    }

    #[test]
    fn what_costs_nothing_has_a_place_too() {
        assert!(work(0, 1000).score(0) < work(1, 1000).score(0));
        assert!(work(0, 1).score(500) < work(1, 1).score(500));
        assert_eq!(work(0, 1000).score(1000), 0);
    }

    #[test]
    fn the_reason_names_all_kinds_in_their_order() {
        let kinds = [
            ("opencl", work(10, 1000), UnitOutcome::Full),
            ("dpu", work(6_000, 400), UnitOutcome::Taken),
            ("cpu", work(20_000, 1000), UnitOutcome::Left),
        ];
        assert_eq!(
            explain(kinds.into_iter(), 0),
            "by price: opencl (10 nano-units for a second's work, speed 1) has no free capacity, dpu (15000 nano-units for a second's work, \
             speed 0.4) is taken, cpu (20000 nano-units for a second's work, speed 1)"
        );
        assert!(explain([].into_iter(), 255).starts_with("by price and, to 25.5 %, by time"));
        assert_eq!(explain([].into_iter(), 1000), "by time");
    }
}
