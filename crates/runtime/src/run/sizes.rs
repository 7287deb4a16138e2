//! Chooses the sizes of components from the usage of earlier runs (Scad 4.3.1): pure.
//!
//! A memory component has an initial size, and grows by an increment. Memory that is leased and not used costs its
//! share of the used memory; each growth costs time, which is weighted as [`STEP_COST`] of the used memory. The module
//! chooses those of a few sizes with which the earlier runs would have cost least in total. Later runs have more
//! weight: the weight halves with each [`HALF_LIFE`] runs of age. A run's cost is the logarithm of one plus its
//! relative cost, so that a single outlier does not decide for the others.
//!
//! A worker's memory cannot grow. So a worker gets a quarter more than any of the latest runs needed, except the one
//! that needed most if there are enough others. If that is too little and the component begins again, it gets more than
//! all needed. A worker with swap space needs more only if swapped data returned: then as much as all of its data.

use std::iter;

use sublet_proto::graph::{DEFAULT_SEGMENT_BYTES, MAX_MEMORY_BYTES, MAX_SEGMENTS, MemoryNeed};
use sublet_proto::limits::{MAX_SEGMENT_BYTES, MEMORY_PER_CORE_BYTES, MIN_SEGMENT_BYTES};

/// Number of earlier runs that are considered.
pub const HISTORY_RUNS: usize = 64;
/// Cost of a growth, as a share of the used memory: that of leasing an eighth of it in vain.
const STEP_COST: f64 = 0.125;
/// Number of further runs after which the weight of a run halves.
const HALF_LIFE: f64 = 4.0;
/// Weight of a hypothetical run that uses twice as much as the latest.
const SURPRISE: f64 = 1.0 / 32.0;
/// Number of runs from which on the largest is ignored as an exception.
const ENOUGH_RUNS: usize = 8;
/// Number of the latest runs from which a worker's memory is chosen.
const WORKER_RUNS: usize = 16;

/// The sizes of a memory component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Size of the first segment, in bytes.
    pub initial_bytes: u64,
    /// Size of each further segment, in bytes; not 0.
    pub increment_bytes: u64,
}

impl Sizes {
    /// The number of leased bytes when `used_bytes` bytes are used, and the number of growths to reach it.
    pub fn reach(self, used_bytes: u64) -> (u64, u64) {
        debug_assert!(self.increment_bytes > 0, "memory that grows by nothing: {self:?}");
        let steps = used_bytes.saturating_sub(self.initial_bytes).div_ceil(self.increment_bytes);
        (self.initial_bytes.saturating_add(steps.saturating_mul(self.increment_bytes)), steps)
    }

    fn cost(self, used_bytes: u64) -> f64 {
        let used_bytes = used_bytes.max(MIN_SEGMENT_BYTES);
        let (leased_bytes, steps) = self.reach(used_bytes);
        let vain = leased_bytes.saturating_sub(used_bytes) as f64 / used_bytes as f64;
        (vain + STEP_COST * steps as f64).ln_1p()
    }
}

/// Chooses the sizes of a memory component from its usage in earlier runs, in bytes, the latest first. Sizes in the
/// graph take precedence.
pub fn memory(graph: &MemoryNeed, used: &[u64]) -> Sizes {
    let initial_bytes = graph.initial_bytes.unwrap_or(DEFAULT_SEGMENT_BYTES.min(graph.limit_bytes));
    let increment_bytes = graph.increment_bytes.unwrap_or(DEFAULT_SEGMENT_BYTES);
    let said = Sizes { initial_bytes, increment_bytes };
    let Some(&latest) = used.first() else { return said };
    let weight = |age: usize| (-(age as f64) / HALF_LIFE).exp2();
    let before = used.iter().enumerate().map(|(age, &used)| (used, weight(age)));
    let runs: Vec<(u64, f64)> = before.chain([(latest.saturating_mul(2), SURPRISE)]).collect();
    let most = used.iter().max().copied().unwrap_or_default();
    let increments = choices(graph.increment_bytes, most, graph.limit_bytes);
    let mut best = (f64::INFINITY, said);
    // The component must reach its limit with the number of segments that it may have.
    let least_initial = least_initial(graph);
    let initials = choices(graph.initial_bytes, most, graph.limit_bytes).into_iter();
    for initial_bytes in initials.filter(|&bytes| bytes >= least_initial).chain([least_initial]) {
        let least = graph.limit_bytes.saturating_sub(initial_bytes).div_ceil(MAX_SEGMENTS - 1);
        let least = least.max(MIN_SEGMENT_BYTES).next_multiple_of(MIN_SEGMENT_BYTES);
        let more = graph.increment_bytes.is_none().then_some(least);
        let enough = |bytes: &u64| *bytes >= least || graph.increment_bytes.is_some();
        for increment_bytes in increments.iter().copied().filter(enough).chain(more) {
            let sizes = Sizes { initial_bytes, increment_bytes };
            let cost: f64 = runs.iter().map(|&(used, weight)| weight * sizes.cost(used)).sum();
            if cost < best.0 {
                best = (cost, sizes);
            }
        }
    }
    best.1
}

/// The least initial size with which the component reaches its limit, if the graph gives the increment. A given initial
/// size reaches the limit with a given increment, since the graph was checked.
fn least_initial(graph: &MemoryNeed) -> u64 {
    let grown = graph.increment_bytes.map_or(u64::MAX, |bytes| bytes.saturating_mul(MAX_SEGMENTS - 1));
    let least = graph.limit_bytes.saturating_sub(grown).max(MIN_SEGMENT_BYTES);
    graph.initial_bytes.unwrap_or(least.next_multiple_of(MIN_SEGMENT_BYTES).min(graph.limit_bytes))
}

/// The given size, or all candidate sizes up to the usage.
fn choices(said: Option<u64>, used_bytes: u64, limit_bytes: u64) -> Vec<u64> {
    let last = size_of(used_bytes).min(limit_bytes).min(MAX_SEGMENT_BYTES);
    said.map_or_else(|| sizes().take_while(|&size| size <= last).collect(), |bytes| vec![bytes])
}

/// The sizes there are: powers of two, and those half as large again, from the smallest segment on.
fn sizes() -> impl Iterator<Item = u64> {
    let powers = iter::successors(Some(MIN_SEGMENT_BYTES), |size| size.checked_mul(2));
    powers.take_while(|&size| size <= MAX_MEMORY_BYTES).flat_map(|size| {
        let more = (size >= 2 * MIN_SEGMENT_BYTES).then_some(size + size / 2);
        iter::once(size).chain(more)
    })
}

/// The smallest that is no less.
fn size_of(bytes: u64) -> u64 {
    sizes().find(|&size| size >= bytes).unwrap_or(MAX_MEMORY_BYTES)
}

/// Memory of an instance, with swap space, up to which it does not get more for swapping often (Scad 4.3.1).
const SMALL_BYTES: u64 = 256 << 20;

/// Use of the swap space of a compute component's instances in an earlier run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SwapUsage {
    /// Size of the swapped data.
    pub(super) swapped_bytes: u64,
    /// Swapped data that the instances touched again.
    pub(super) returned_bytes: u64,
}

/// Memory and usage of a compute component's instances in an earlier run.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlierUsage {
    pub(super) allocated_bytes: u64,
    pub(super) used_bytes: u64,
    pub(super) instances: u32,
    /// `None` if the component had no swap space.
    pub(super) swap: Option<SwapUsage>,
}

impl EarlierUsage {
    /// Returns whether hardly any memory was left, so that the component may have needed more.
    pub(super) fn is_short(self) -> bool {
        self.used_bytes >= self.allocated_bytes / 4 * 3
    }

    /// Whether the instances swapped, and whether that was often.
    fn swapping(self) -> (bool, bool) {
        let SwapUsage { swapped_bytes, returned_bytes } = self.swap.unwrap_or_default();
        (swapped_bytes > 0, swapped_bytes > 0 && returned_bytes >= swapped_bytes / 2)
    }

    /// The number of bytes that an instance needed. `swaps_often` tells whether the component does so in most runs.
    fn needed(self, swaps_often: bool) -> u64 {
        let instances = u64::from(self.instances.max(1));
        let EarlierUsage { allocated_bytes, used_bytes, swap, .. } = self;
        let needed = match swap {
            Some(SwapUsage { swapped_bytes, .. }) => {
                let peak = used_bytes.saturating_add(swapped_bytes);
                let is_often = swaps_often && self.swapping().1;
                match is_often && peak.div_ceil(instances) > SMALL_BYTES {
                    // With the quarter more that a worker gets, three quarters of its memory hold all data.
                    true => peak.saturating_add(peak.div_ceil(15)),
                    // Memory that was full is no sign, as the rest is swapped.
                    false => used_bytes,
                }
            }
            None if self.is_short() => allocated_bytes.saturating_mul(2),
            None => used_bytes,
        };
        needed.div_ceil(instances)
    }
}

/// The memory for an instance after these runs, the latest first, in bytes. `None` if the default suffices: it is never
/// reduced, since a program may reserve memory that it does not use. `attempt` counts the component's beginnings, from
/// 1.
pub(super) fn worker(runs: &[EarlierUsage], attempt: u32) -> Option<u64> {
    let runs = &runs[..runs.len().min(WORKER_RUNS)];
    let swapping: Vec<bool> =
        runs.iter().map(|run| run.swapping()).filter(|of| of.0).map(|of| of.1).collect();
    let swaps_often = swapping.iter().filter(|is_often| **is_often).count() * 2 >= swapping.len();
    let mut needed: Vec<u64> = runs.iter().map(|run| run.needed(swaps_often)).collect();
    needed.sort_unstable();
    let largest = needed.last().copied()?;
    let usual = match needed.len() {
        count if count >= ENOUGH_RUNS && attempt <= 1 => needed[count - 2],
        _ => largest,
    };
    let again = 1_u64 << attempt.saturating_sub(1).min(8);
    let bytes = usual.saturating_add(usual / 4).saturating_mul(again);
    (bytes > MEMORY_PER_CORE_BYTES).then(|| size_of(bytes.min(MAX_MEMORY_BYTES)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sublet_proto::graph::Medium;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn unsaid(limit_bytes: u64) -> MemoryNeed {
        MemoryNeed {
            initial_bytes: None,
            increment_bytes: None,
            limit_bytes,
            pool: None,
            is_result: false,
            medium: Medium::Memory,
        }
    }

    fn worked(used_bytes: u64, allocated_bytes: u64) -> EarlierUsage {
        EarlierUsage { allocated_bytes, used_bytes, instances: 1, swap: None }
    }

    #[test]
    fn a_worker_that_swaps_often_gets_memory_for_all_data() {
        let swapped = |swapped: u64, returned: u64, run: EarlierUsage| {
            let swap = SwapUsage { swapped_bytes: swapped * MIB, returned_bytes: returned * MIB };
            EarlierUsage { swap: Some(swap), ..run }
        };
        let full = worked(120 * MIB, 128 * MIB);
        assert_eq!(worker(&[swapped(900, 2000, full)], 1), Some(1536 * MIB), "4/3 of 1020 MiB, rounded up");
        assert_eq!(worker(&[swapped(900, 100, full)], 1), Some(192 * MIB), "what was swapped stayed away");
        assert_eq!(worker(&[swapped(100, 2000, full)], 1), Some(192 * MIB), "the component is small");
        let four = EarlierUsage { instances: 4, ..swapped(900, 2000, full) };
        assert_eq!(worker(&[four], 1), None, "each instance is small");
        // Most of the runs that swapped did so often, or it is an exception.
        let (often, rarely) = (swapped(900, 2000, full), swapped(900, 100, full));
        assert_eq!(worker(&[often, rarely], 1), Some(1536 * MIB));
        assert_eq!(worker(&[rarely, often, rarely], 1), Some(192 * MIB));
        // When it uses little in all runs that count, it has little again.
        let mut shrunk = vec![swapped(0, 0, worked(50 * MIB, 1536 * MIB)); WORKER_RUNS];
        shrunk.push(often);
        assert_eq!(worker(&shrunk, 1), None);
        // With more memory it does not swap, and its size stays.
        let fits = swapped(0, 0, worked(1100 * MIB, 1536 * MIB));
        assert_eq!(worker(&[fits, swapped(900, 2000, full)], 1), Some(1536 * MIB));
        let most = EarlierUsage { allocated_bytes: u64::MAX, ..swapped(0, 0, worked(u64::MAX, 1)) };
        let most = EarlierUsage {
            swap: Some(SwapUsage { swapped_bytes: u64::MAX, returned_bytes: u64::MAX }),
            ..most
        };
        assert_eq!(worker(&[most], 1), Some(MAX_MEMORY_BYTES), "a record may say anything");
    }

    #[test]
    fn without_a_history_it_is_as_large_as_ever() {
        let sizes = memory(&unsaid(1 << 40), &[]);
        assert_eq!(sizes, Sizes { initial_bytes: 16 * MIB, increment_bytes: 16 * MIB });
        assert_eq!(memory(&unsaid(8192), &[]).initial_bytes, 8192);
        assert_eq!(worker(&[], 1), None);
    }

    #[test]
    fn what_a_graph_says_holds_whatever_was_used() {
        let said = MemoryNeed {
            initial_bytes: Some(4096),
            increment_bytes: Some(MIB),
            limit_bytes: 64 * MIB,
            pool: None,
            is_result: false,
            medium: Medium::Memory,
        };
        let sizes = memory(&said, &[32 * MIB; 20]);
        assert_eq!(sizes, Sizes { initial_bytes: 4096, increment_bytes: MIB });
        let half = MemoryNeed { initial_bytes: Some(4096), ..unsaid(64 * MIB) };
        let sizes = memory(&half, &[32 * MIB; 20]);
        assert!(sizes.initial_bytes == 4096 && sizes.increment_bytes >= 8 * MIB, "{sizes:?}");
    }

    #[test]
    fn memory_with_a_given_increment_reaches_its_limit() {
        let grown = 4096 * (MAX_SEGMENTS - 1);
        for more in [0, 4095, 4096, MIB, 3 * MIB + 4096, 16 * MIB] {
            let graph = MemoryNeed { increment_bytes: Some(4096), ..unsaid(grown + more) };
            for used in [1, 8192, 2 * MIB, grown + more] {
                let sizes = memory(&graph, &[used; 20]);
                assert_eq!(sizes.increment_bytes, 4096);
                assert!(
                    sizes.initial_bytes + grown >= graph.limit_bytes,
                    "{sizes:?} up to {}",
                    graph.limit_bytes
                );
                assert!(sizes.initial_bytes <= MAX_SEGMENT_BYTES, "{sizes:?}");
            }
        }
        let small = MemoryNeed { increment_bytes: Some(4096), ..unsaid(8192) };
        assert!(memory(&small, &[8192; 20]).initial_bytes <= 8192);
    }

    #[test]
    fn capacity_follows_growing_and_shrinking_applications() {
        let (mut history, mut used) = (Vec::new(), MIB);
        for _ in 0..80 {
            history.insert(0, used);
            history.truncate(HISTORY_RUNS);
            used += used / 10;
            let sizes = memory(&unsaid(1 << 34), &history);
            let (leased, steps) = sizes.reach(used);
            assert!(steps <= 5, "{sizes:?} for {used} bytes, after {:?}", &history[..1]);
            assert!(leased <= 2 * used, "{sizes:?} for {used} bytes");
        }
        for _ in 0..40 {
            history.insert(0, MIB);
            history.truncate(HISTORY_RUNS);
        }
        let (leased, steps) = memory(&unsaid(1 << 34), &history).reach(MIB);
        assert!(leased <= 2 * MIB && steps <= 1, "{leased} bytes in {steps} steps");
    }

    #[test]
    fn short_workers_get_more_and_outliers_are_ignored() {
        assert_eq!(worker(&[worked(120 * MIB, 128 * MIB)], 1), Some(384 * MIB), "twice, and a quarter more");
        let mut runs = vec![worked(600 * MIB, 1024 * MIB); 10];
        assert_eq!(worker(&runs, 1), Some(768 * MIB));
        runs[0] = worked(40 << 30, 64 << 30);
        assert_eq!(worker(&runs, 1), Some(768 * MIB));
        assert!(worker(&runs, 2).unwrap() >= 80 << 30, "once it was lost, all that there was counts");
        assert_eq!(worker(&runs[1..3], 1), Some(768 * MIB));
        let two = EarlierUsage { instances: 2, ..worked(600 * MIB, 1024 * MIB) };
        assert_eq!(worker(&[two], 1), Some(384 * MIB), "each of the instances");
        assert_eq!(worker(&[worked(60 * MIB, 128 * MIB)], 1), None, "what it gets anyway is more");
    }

    proptest! {
        #[test]
        fn a_constant_use_is_met_with_little_more(used in 4096..(1_u64 << 36), runs in 1_usize..30) {
            let sizes = memory(&unsaid(1 << 38), &vec![used; runs]);
            let (leased, steps) = sizes.reach(used);
            prop_assert!(steps <= 2, "{:?}", sizes);
            let page = MIN_SEGMENT_BYTES + ((1 << 38) / (MAX_SEGMENTS - 1)).next_multiple_of(MIN_SEGMENT_BYTES);
            prop_assert!(leased <= used + used / 2 + page, "{:?}: {} bytes", sizes, leased);
        }

        #[test]
        fn one_wild_run_changes_little_for_the_others(
            used in MIB..(1 << 30_u64),
            wild in 2_u64..10_000,
            at in 0_usize..16,
        ) {
            let mut history = vec![used; 16];
            history[at] = used.saturating_mul(wild);
            let sizes = memory(&unsaid(1 << 44), &history);
            let (leased, steps) = sizes.reach(used);
            prop_assert!(leased <= 2 * used + sizes.increment_bytes * steps.min(1), "{:?}", sizes);
            prop_assert!(sizes.initial_bytes <= 2 * used && steps <= 2, "{:?}", sizes);
        }

        #[test]
        fn chosen_sizes_are_valid_and_no_worse_than_the_defaults(
            used in proptest::collection::vec(0_u64..(1 << 34), 1..HISTORY_RUNS),
            limit in 4096_u64..(1 << 40),
        ) {
            let graph = unsaid(limit);
            let used: Vec<u64> = used.into_iter().map(|used| used.min(limit)).collect();
            let sizes = memory(&graph, &used);
            prop_assert!((MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&sizes.initial_bytes));
            prop_assert!((MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&sizes.increment_bytes));
            prop_assert!(sizes.initial_bytes <= limit);
            let most = sizes.initial_bytes + sizes.increment_bytes.saturating_mul(MAX_SEGMENTS - 1);
            prop_assert!(most >= limit, "{:?} for {}", sizes, limit);
            let cost = |sizes: Sizes| {
                let weight = |age: usize| (-(age as f64) / HALF_LIFE).exp2();
                used.iter().enumerate().map(|(age, &used)| weight(age) * sizes.cost(used)).sum::<f64>()
                    + SURPRISE * sizes.cost(used[0].saturating_mul(2))
            };
            let before = memory(&graph, &[]);
            let is_a_choice = before.increment_bytes.saturating_mul(MAX_SEGMENTS - 1) + before.initial_bytes >= limit
                && sizes_have(before.initial_bytes, &used) && sizes_have(before.increment_bytes, &used);
            prop_assert!(!is_a_choice || cost(sizes) <= cost(before) + 1e-9, "{:?} and not {:?}", sizes, before);
        }
    }

    /// Whether this is among the sizes for such a use.
    fn sizes_have(bytes: u64, used: &[u64]) -> bool {
        let most = used.iter().max().copied().unwrap_or_default();
        sizes().any(|size| size == bytes) && bytes <= size_of(most)
    }
}
