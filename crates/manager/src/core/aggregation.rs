//! Decides which communicating components run together, on a node of the balanced pool, and which are left apart in the
//! compute and the memory pool (Scad 4.3.2 and 4.3.3).
//!
//! The sets of components of a run that is to begin compete with those that run together now. If all of them fit
//! within the watermark of the balanced pool, the new ones run together. Otherwise those are left apart which
//! communicate least for what they free ([`program`]), as far as the other pools have space. A set that runs keeps its
//! place; it is decided about again when its application next runs.

use program::{MAX_SETS, Movable, Program};

mod program;

/// Whole of a watermark: 1000 are all resources of the pool.
pub const WHOLE_PERMILLE: u32 = 1000;

/// Cores and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Number of cores.
    pub cores: u64,
    /// Memory, in bytes.
    pub memory_bytes: u64,
}

impl Amount {
    /// The sum. It stays at the largest number.
    #[must_use]
    pub fn plus(self, other: Amount) -> Amount {
        Amount {
            cores: self.cores.saturating_add(other.cores),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }

    /// The difference, and at least nothing.
    #[must_use]
    pub fn minus(self, other: Amount) -> Amount {
        Amount {
            cores: self.cores.saturating_sub(other.cores),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
        }
    }

    /// Whether another amount is no larger.
    pub fn has(self, other: Amount) -> bool {
        other.cores <= self.cores && other.memory_bytes <= self.memory_bytes
    }

    fn at_most(self, other: Amount) -> Amount {
        Amount { cores: self.cores.min(other.cores), memory_bytes: self.memory_bytes.min(other.memory_bytes) }
    }

    fn permille(self, permille: u32) -> Amount {
        let part = |whole: u64| {
            let part =
                u128::from(whole) * u128::from(permille.min(WHOLE_PERMILLE)) / u128::from(WHOLE_PERMILLE);
            u64::try_from(part).unwrap_or(whole)
        };
        Amount { cores: part(self.cores), memory_bytes: part(self.memory_bytes) }
    }
}

/// Components that communicate with each other, as earlier runs measured them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommunicatingSet {
    /// Bytes that they move in a run.
    pub moved_bytes: u64,
    /// Most that the compute components use at a time.
    pub compute: Amount,
    /// Most memory of the memory components at a time, in bytes.
    pub memory_bytes: u64,
    /// Whether functions map memory, for which components must be on one node.
    pub is_mapped: bool,
}

impl CommunicatingSet {
    /// All that a node must have free for the set.
    pub fn all(&self) -> Amount {
        self.compute.plus(Amount { cores: 0, memory_bytes: self.memory_bytes })
    }

    fn movable(&self) -> Movable {
        let (all, compute) = (self.all(), self.compute);
        let takes = match self.is_mapped {
            // No pool takes it.
            true => [u64::MAX; 3],
            false => [compute.cores, compute.memory_bytes, self.memory_bytes],
        };
        Movable { cost: self.moved_bytes, frees: [all.cores, all.memory_bytes], takes }
    }
}

/// Resources of the pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolResources {
    /// All that nodes of the balanced pool lend.
    pub balanced_lent: Amount,
    /// The leased part of it.
    pub balanced_leased: Amount,
    /// Free resources of the compute pool.
    pub compute_free: Amount,
    /// Free resources of the memory pool.
    pub memory_free: Amount,
}

/// Decision on the sets of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// For each set, whether it is left apart.
    pub is_apart: Vec<bool>,
    /// Resources to free before all sets can run together within the watermark.
    pub missing: Amount,
    /// Whether no other decision lets less be communicated. Otherwise it is that of a greedy method.
    pub is_exact: bool,
}

/// Decides about the sets of a run that is to begin. `running` are the sets that run together now; what they lease is
/// part of what is leased in the balanced pool.
pub fn decide(
    sets: &[CommunicatingSet],
    running: &[CommunicatingSet],
    pools: &PoolResources,
    watermark_permille: u32,
) -> Decision {
    let sum = |sets: &[CommunicatingSet]| sets.iter().fold(Amount::default(), |sum, set| sum.plus(set.all()));
    // A history may say more than is leased.
    let held = sum(running).at_most(pools.balanced_leased);
    let others = pools.balanced_leased.minus(held);
    let space = pools.balanced_lent.permille(watermark_permille).minus(others);
    let missing = sum(sets).plus(held).minus(space);
    let new = sets.len().min(MAX_SETS);
    let movable = sets.iter().chain(running).take(MAX_SETS).map(CommunicatingSet::movable).collect();
    let (compute, memory) = (pools.compute_free, pools.memory_free);
    let program = Program {
        sets: movable,
        needs: [missing.cores, missing.memory_bytes],
        limits: [compute.cores, compute.memory_bytes, memory.memory_bytes],
    };
    let choice = program.solve();
    let mut is_apart: Vec<bool> = choice.apart.iter().copied().take(new).collect();
    is_apart.resize(sets.len(), false);
    Decision { is_apart, missing, is_exact: choice.is_exact && sets.len() + running.len() <= MAX_SETS }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn amount(cores: u64, gib: u64) -> Amount {
        Amount { cores, memory_bytes: gib * GIB }
    }

    fn set(moved_bytes: u64, cores: u64) -> CommunicatingSet {
        CommunicatingSet { moved_bytes, compute: amount(cores, cores), memory_bytes: GIB, is_mapped: false }
    }

    fn pools(leased: u64) -> PoolResources {
        PoolResources {
            balanced_lent: amount(20, 200),
            balanced_leased: amount(leased, leased * 2),
            compute_free: amount(20, 40),
            memory_free: amount(0, 100),
        }
    }

    fn is_apart(sets: &[CommunicatingSet], running: &[CommunicatingSet], leased: u64) -> Vec<bool> {
        decide(sets, running, &pools(leased), 700).is_apart
    }

    /// The three applications of Scad's figure 22: one that cannot be separated fills the balanced pool.
    #[test]
    fn least_communicating_set_is_left_apart_beyond_watermark() {
        let (little, much) = (set(1000, 2), set(50_000, 2));
        assert_eq!(is_apart(&[little], &[much], 12), [false], "14 of 20 cores are the watermark");
        assert_eq!(is_apart(&[little], &[much], 13), [true]);
        assert_eq!(
            is_apart(&[much], &[little], 13),
            [false],
            "the other one is left apart when it next runs"
        );
        assert_eq!(is_apart(&[much], &[little], 16), [true]);
        assert_eq!(is_apart(&[much], &[], 12), [false]);
    }

    #[test]
    fn sets_that_no_other_pool_takes_run_together() {
        let mapped = CommunicatingSet { is_mapped: true, ..set(1, 2) };
        assert_eq!(is_apart(&[mapped, set(900, 2)], &[], 12), [false, true]);
        let full = PoolResources { compute_free: Amount::default(), ..pools(20) };
        assert_eq!(decide(&[set(1, 2)], &[], &full, 700).is_apart, [false]);
        assert_eq!(decide(&[set(1, 2)], &[], &pools(20), 700).is_apart, [true]);
    }

    #[test]
    fn untrue_histories_are_bounded_by_the_pools() {
        let most = Amount { cores: u64::MAX, memory_bytes: u64::MAX };
        let liar = CommunicatingSet {
            moved_bytes: u64::MAX,
            compute: most,
            memory_bytes: u64::MAX,
            is_mapped: false,
        };
        let decision = decide(&[liar, set(5, 1)], &[liar, liar], &pools(14), 700);
        assert!(!decision.is_apart[0], "no pool takes it: {decision:?}");
        assert_eq!(decide(&[], &[liar], &pools(0), u32::MAX).is_apart, [false; 0]);
        let many = vec![set(3, 1); 2 * MAX_SETS];
        let decision = decide(&many, &[], &pools(0), 700);
        assert!(decision.is_apart.len() == many.len() && !decision.is_exact);
    }

    proptest! {
        #[test]
        fn sets_run_together_whenever_all_fit(
            cores in prop::collection::vec((0..1000_u64, 1..4_u64), 0..6),
            leased in 0..20_u64,
        ) {
            let sets: Vec<CommunicatingSet> = cores.iter().map(|&(moved, cores)| set(moved, cores)).collect();
            let decision = decide(&sets, &[], &pools(leased), 700);
            let wanted: u64 = cores.iter().map(|(_, cores)| cores).sum::<u64>() + leased;
            let all_fit = decision.missing == Amount::default();
            prop_assert_eq!(all_fit, sets.is_empty() || wanted <= 14, "{:?}", decision);
            prop_assert_eq!(all_fit, !decision.is_apart.contains(&true), "{:?}", decision);
        }
    }
}
