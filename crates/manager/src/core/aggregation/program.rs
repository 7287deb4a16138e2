//! Solves the 0-1 programs of aggregation and disaggregation: which sets of components are left apart, so that the rest
//! has enough space and as little as possible is communicated between nodes.
//!
//! ```text
//! choose        apart(i) in {0, 1} for each set i
//! minimize      sum of cost(i) * apart(i), and PENALTY for what is not freed (soft)
//! subject to    sum of takes(i, j) * apart(i) <= limit(j)     for each resource j of the pools that take them (hard)
//! frees         sum of frees(j, i) * apart(i) >= need(j)      for each resource j of the pool that they leave
//! ```
//!
//! Branch and bound finds the best choice: sets in the order of cost for what they free, a bound by the relaxation in
//! which one set may be chosen in part, and in which all resources are one. A budget of steps bounds the time. Beyond it
//! the best choice so far counts, which is at least as good as that of the greedy method it begins with.

/// Resources that are freed: cores, and memory in bytes.
pub(super) const FREED: usize = 2;
/// Resources that are taken instead: cores and memory of the compute pool, and memory of the memory pool.
pub(super) const TAKEN: usize = 3;
/// Cost of everything that is not freed, as a multiple of the cost of all sets.
const PENALTY: f64 = 1e9;
/// Relative difference of two costs that are taken for equal, beyond the precision of sums.
const PRECISION: f64 = 1e-14;
/// Most sets of a program: the search has a step of recursion for each.
pub(super) const MAX_SETS: usize = 1024;
/// Steps of the search: about 20 ms.
const MAX_STEPS: u32 = 200_000;

/// A set of components that may be left apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Movable {
    /// Communication that then passes between nodes.
    pub(super) cost: u64,
    pub(super) frees: [u64; FREED],
    pub(super) takes: [u64; TAKEN],
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) sets: Vec<Movable>,
    pub(super) needs: [u64; FREED],
    pub(super) limits: [u64; TAKEN],
}

/// ApartSets of the sets that are left apart.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ApartSets {
    pub(super) apart: Vec<bool>,
    /// Whether no other choice is better. Otherwise the search had no steps left.
    pub(super) is_exact: bool,
}

impl Program {
    /// Solves the program. Only its first [`MAX_SETS`] sets may be left apart.
    pub(super) fn solve(&self) -> ApartSets {
        self.solve_within(MAX_STEPS)
    }

    fn solve_within(&self, steps: u32) -> ApartSets {
        let all: f64 = self.sets.iter().map(|set| set.cost as f64).sum();
        let penalty = (all + 1.0) * PENALTY;
        let mut order: Vec<usize> = (0..self.sets.len().min(MAX_SETS)).collect();
        // A set that costs more than leaving its part unfreed is not left apart.
        order.retain(|&set| self.share(set) > 0.0 && self.ratio(set) < penalty);
        order.sort_by(|&one, &other| self.ratio(one).total_cmp(&self.ratio(other)));
        let mut sums = vec![(0.0, 0.0)];
        for &set in &order {
            let (share, cost) = sums.last().copied().unwrap_or_default();
            sums.push((share + self.share(set), cost + self.sets[set].cost as f64));
        }
        let mut search = Search {
            program: self,
            penalty,
            order,
            sums,
            apart: vec![false; self.sets.len()],
            best: (f64::INFINITY, vec![false; self.sets.len()]),
            steps,
        };
        search.greedy();
        let is_exact = search.branch(0, self.needs, self.limits, 0.0);
        ApartSets { apart: search.best.1, is_exact }
    }

    /// The part of all needs that a set frees.
    fn share(&self, set: usize) -> f64 {
        let frees = self.sets[set].frees;
        share_of(std::array::from_fn(|at| frees[at].min(self.needs[at])), self.needs)
    }

    fn ratio(&self, set: usize) -> f64 {
        self.sets[set].cost as f64 / self.share(set)
    }
}

/// The sum of amounts as parts of the needs.
fn share_of(amounts: [u64; FREED], needs: [u64; FREED]) -> f64 {
    let parts = amounts.iter().zip(needs).filter(|(_, need)| *need > 0);
    parts.map(|(&amount, need)| amount as f64 / need as f64).sum()
}

/// Difference of amounts; `None` if one would be negative.
fn take<const N: usize>(from: [u64; N], amounts: [u64; N]) -> Option<[u64; N]> {
    let mut left = from;
    for (left, amount) in left.iter_mut().zip(amounts) {
        *left = left.checked_sub(amount)?;
    }
    Some(left)
}

/// Needs that remain after these resources are freed.
fn without(needs: [u64; FREED], frees: [u64; FREED]) -> [u64; FREED] {
    std::array::from_fn(|at| needs[at].saturating_sub(frees[at]))
}

struct Search<'program> {
    program: &'program Program,
    penalty: f64,
    /// Sets that free anything, in the order of the search.
    order: Vec<usize>,
    /// Sums of the shares and costs of the sets before each position.
    sums: Vec<(f64, f64)>,
    apart: Vec<bool>,
    /// The best choice so far, with its cost.
    best: (f64, Vec<bool>),
    steps: u32,
}

impl Search<'_> {
    /// Chooses sets in order, as long as something is to be freed.
    fn greedy(&mut self) {
        let (mut needs, mut limits, mut cost) = (self.program.needs, self.program.limits, 0.0);
        let mut apart = vec![false; self.apart.len()];
        for &set in &self.order {
            let movable = &self.program.sets[set];
            if needs == [0; FREED] {
                break;
            }
            if let Some(left) = take(limits, movable.takes) {
                (limits, needs) = (left, without(needs, movable.frees));
                apart[set] = true;
                cost += movable.cost as f64;
            }
        }
        self.best = (cost + self.penalty * share_of(needs, self.program.needs), apart);
    }

    /// Decides on the sets from a position on. Returns whether all choices were considered.
    fn branch(&mut self, at: usize, needs: [u64; FREED], limits: [u64; TAKEN], cost: f64) -> bool {
        let Some(left) = self.steps.checked_sub(1) else { return false };
        self.steps = left;
        let missing = share_of(needs, self.program.needs);
        if needs == [0; FREED] || at == self.order.len() {
            let total = cost + self.penalty * missing;
            if total < self.best.0 {
                self.best = (total, self.apart.clone());
            }
            return true;
        }
        if cost + self.bound(at, missing) >= self.best.0 * (1.0 - PRECISION) {
            return true;
        }
        let set = self.order[at];
        let movable = self.program.sets[set];
        let mut is_done = true;
        if let Some(limits) = take(limits, movable.takes) {
            self.apart[set] = true;
            let needs = without(needs, movable.frees);
            is_done = self.branch(at + 1, needs, limits, cost + movable.cost as f64);
            self.apart[set] = false;
        }
        self.branch(at + 1, needs, limits, cost) && is_done
    }

    /// The least cost of freeing as much with the sets from a position on, if they could be divided.
    fn bound(&self, at: usize, missing: f64) -> f64 {
        let (share, cost) = self.sums[at];
        let end = self.sums.partition_point(|(sum, _)| *sum <= share + missing);
        let last = end.saturating_sub(1).max(at);
        let whole = self.sums[last].1 - cost;
        let rest = (missing - (self.sums[last].0 - share)).max(0.0);
        let part = match self.order.get(last) {
            Some(&set) => rest * self.program.ratio(set),
            None => rest * self.penalty,
        };
        whole + part
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Cost of a choice; `None` if it takes too much.
    fn cost_of(program: &Program, apart: &[bool]) -> Option<f64> {
        let (mut needs, mut limits, mut cost) = (program.needs, program.limits, 0.0);
        for (movable, _) in program.sets.iter().zip(apart).filter(|(_, apart)| **apart) {
            limits = take(limits, movable.takes)?;
            needs = without(needs, movable.frees);
            cost += movable.cost as f64;
        }
        let all: f64 = program.sets.iter().map(|set| set.cost as f64).sum();
        Some(cost + (all + 1.0) * PENALTY * share_of(needs, program.needs))
    }

    /// The least cost of all choices.
    fn least(program: &Program) -> f64 {
        let count = program.sets.len();
        let choices = (0..1_u32 << count).map(|bits| (0..count).map(move |at| bits >> at & 1 == 1).collect());
        choices.filter_map(|apart: Vec<bool>| cost_of(program, &apart)).fold(f64::INFINITY, f64::min)
    }

    fn movable() -> impl Strategy<Value = Movable> {
        let amount = || prop_oneof![Just(0_u64), 0..20_u64, Just(u64::MAX)];
        let takes = || prop_oneof![4 => 0..20_u64, 1 => Just(u64::MAX)];
        (0..1000_u64, [amount(), amount()], [takes(), takes(), takes()])
            .prop_map(|(cost, frees, takes)| Movable { cost, frees, takes })
    }

    proptest! {
        #[test]
        fn no_choice_is_better(
            sets in prop::collection::vec(movable(), 0..12),
            needs in [0..60_u64, 0..60_u64],
            limits in [0..100_u64, 0..100_u64, 0..100_u64],
        ) {
            let program = Program { sets, needs, limits };
            let choice = program.solve();
            prop_assert!(choice.is_exact);
            let (cost, least) = (cost_of(&program, &choice.apart), least(&program));
            prop_assert!(cost.is_some_and(|cost| cost <= least * (1.0 + 1e-9)), "{cost:?}, and {least} is possible");
        }

        #[test]
        fn a_search_without_steps_stays_within_the_limits(
            sets in prop::collection::vec(movable(), 0..40),
            needs in [0..60_u64, 0..60_u64],
            limits in [0..100_u64, 0..100_u64, 0..100_u64],
            steps in 0..30_u32,
        ) {
            let program = Program { sets, needs, limits };
            let choice = program.solve_within(steps);
            prop_assert!(cost_of(&program, &choice.apart).is_some());
        }
    }

    #[test]
    fn the_cheapest_is_left_apart_that_frees_enough() {
        let set = |cost, cores| Movable { cost, frees: [cores, 0], takes: [cores, 0, 0] };
        let program = |needs, limits| Program {
            sets: vec![set(900, 4), set(20, 2), set(10, 1), set(25, 3)],
            needs: [needs, 0],
            limits: [limits, 0, 0],
        };
        let apart = |needs, limits| program(needs, limits).solve().apart;
        assert_eq!(apart(0, 100), [false; 4]);
        assert_eq!(apart(3, 100), [false, false, false, true]);
        assert_eq!(apart(4, 100), [false, false, true, true]);
        assert_eq!(apart(6, 100), [false, true, true, true]);
        // The other pools take 3 cores: as much as possible is freed.
        assert_eq!(apart(6, 3), [false, false, false, true]);
        let greedy = program(4, 100).solve_within(2);
        assert_eq!(greedy, ApartSets { apart: vec![false, true, false, true], is_exact: false });
    }
}
