//! Measures a program whose array is larger than its memory, beside the same program with all of it local.
//!
//! Both arrays are equal: one is ordinary memory in huge pages, one is [`SwappedMemory`] with its swap space on the same
//! node. A round goes through the first and then through the second, page by page, in the same order, and does the same
//! work on each page: it mixes the page's content for the requested time. The results of both must be equal.

use std::time::Instant;

use clap::ValueEnum;
use serde::Serialize;
use sublet_fabric::stretch::{PageSize, Stretch};
use sublet_proto::{Code, Error, saturating_u64, to_usize};
use sublet_runtime::{Access, Invoker, MemoryPlan, SwapPlan, SwapStatistics, SwappedMemory};

const PAGE_BYTES: usize = 4096;
const BLOCK_PAGES: usize = 16;
/// Increment of the swap space.
const INCREMENT_BYTES: u64 = 64 << 20;
/// Steps by which the speed of mixing is measured.
const CALIBRATION: u32 = 4 << 20;

/// Order in which a program goes through its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum AccessOrder {
    /// Pages from the first to the last
    Sequential,
    /// Blocks of 64 KiB here and there, each from its first page to its last
    RandomBlock,
    /// Pages of 4 KiB here and there
    RandomPage,
}

/// Parameters of the measurement.
#[derive(Clone, Debug)]
pub struct SwapBenchPlan {
    /// Order of the accesses.
    pub pattern: AccessOrder,
    /// Work on each page, in microseconds; 0: each of its words is added up.
    pub work_us: f64,
    /// Resident share of the array.
    pub local: f64,
    /// Resident memory, in bytes.
    pub local_bytes: u64,
    /// Number of rounds.
    pub rounds: u32,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct SwapResult {
    bench: &'static str,
    pattern: AccessOrder,
    work_us: f64,
    local: f64,
    len_bytes: u64,
    local_bytes: u64,
    n: u32,
    /// Time of a page in the median round.
    median_ns: f64,
    local_median_ns: f64,
    /// Ratio of the two medians.
    ratio: f64,
    faults: u64,
    read_ahead_hits: u64,
    in_bytes: u64,
    out_bytes: u64,
    written_bytes: u64,
}

/// The headings of [`SwapResult::cells`].
pub const HEADINGS: [&str; 9] =
    ["PATTERN", "WORK US", "MIB", "LOCAL MIB", "ROUNDS", "NS A PAGE", "ALL LOCAL", "RATIO", "FAULTS"];

impl SwapResult {
    /// Formats the results for a table.
    pub fn cells(&self) -> [String; 9] {
        let pattern = self.pattern.to_possible_value().map(|value| value.get_name().to_owned());
        [
            pattern.unwrap_or_default(),
            self.work_us.to_string(),
            (self.len_bytes >> 20).to_string(),
            (self.local_bytes >> 20).to_string(),
            self.n.to_string(),
            format!("{:.0}", self.median_ns),
            format!("{:.0}", self.local_median_ns),
            format!("{:.2}", self.ratio),
            self.faults.to_string(),
        ]
    }
}

/// Measures the rounds. Calls `progress` after each.
pub fn run(access: &Access, plan: &SwapBenchPlan, mut progress: impl FnMut()) -> Result<SwapResult, Error> {
    let len_bytes = plan.len_bytes()?;
    // A worker's threads are pinned, too.
    super::pin_client()?;
    let client = Invoker::connect_with(access.clone())?;
    let space = MemoryPlan::new().initial_bytes(INCREMENT_BYTES).increment_bytes(INCREMENT_BYTES);
    let mut swapped = client.swapped(SwapPlan::new(len_bytes, plan.local_bytes), space)?;
    let mut local = Stretch::reserve(len_bytes, PageSize::Huge)?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    write(swapped.as_mut_slice(), random.clone());
    write(local.as_mut_slice(), random.clone());
    let work = Work::calibrated(plan.work_us);
    let (mut ours, mut limit, mut before) = (Vec::new(), Vec::new(), SwapStatistics::default());
    // The first round warms both arrays up.
    for round in 0..=plan.rounds {
        let order = random.clone();
        let (took, limit_of_it) = (
            plan.pass(swapped.as_slice(), &work, &mut random),
            plan.pass(local.as_mut_slice(), &work, &mut order.clone()),
        );
        swapped.check()?;
        if took.1 != limit_of_it.1 {
            return Err(Error::new(Code::Internal, "a swapped array is not what was written to it"));
        }
        if round == 0 {
            before = swapped.statistics();
            continue;
        }
        ours.push(took.0);
        limit.push(limit_of_it.0);
        progress();
    }
    Ok(plan.outcome(&swapped, before, (median(ours), median(limit))))
}

impl SwapBenchPlan {
    fn len_bytes(&self) -> Result<u64, Error> {
        let len = self.local_bytes as f64 / self.local;
        let is_sound = self.local > 0.0 && self.local <= 1.0 && self.work_us >= 0.0 && self.work_us <= 1e6;
        if !is_sound || len > (1u64 << 40) as f64 {
            let message = format!(
                "{} us of work, and {} of an array in {} bytes: a share is above 0 and at most 1, work is at most 1 s",
                self.work_us, self.local, self.local_bytes
            );
            return Err(Error::new(Code::InvalidArgument, message));
        }
        Ok(saturating_u64(len) / (1 << 20) * (1 << 20))
    }

    /// Time of each page in nanoseconds, and the result of the work.
    fn pass(&self, array: &[u8], work: &Work, random: &mut Random) -> (f64, u64) {
        debug_assert!(array.len().is_multiple_of(PAGE_BYTES), "{} bytes are not whole pages", array.len());
        let pages = array.len() / PAGE_BYTES;
        let (mut result, unit) = (0, self.unit_pages());
        let units = pages / unit;
        let begun = Instant::now();
        for number in 0..units {
            let chosen = match self.pattern {
                AccessOrder::Sequential => number,
                AccessOrder::RandomBlock | AccessOrder::RandomPage => random.below(units),
            };
            for page in array[chosen * unit * PAGE_BYTES..][..unit * PAGE_BYTES].chunks_exact(PAGE_BYTES) {
                result ^= work.on(page, result);
            }
        }
        (begun.elapsed().as_nanos() as f64 / (units * unit) as f64, result)
    }

    fn unit_pages(&self) -> usize {
        if self.pattern == AccessOrder::RandomBlock { BLOCK_PAGES } else { 1 }
    }

    fn outcome(
        &self,
        swapped: &SwappedMemory,
        before: SwapStatistics,
        (ours, limit): (f64, f64),
    ) -> SwapResult {
        let now = swapped.statistics();
        SwapResult {
            bench: "swap",
            pattern: self.pattern,
            work_us: self.work_us,
            local: self.local,
            len_bytes: swapped.len_bytes(),
            local_bytes: self.local_bytes,
            n: self.rounds,
            median_ns: ours,
            local_median_ns: limit,
            ratio: ours / limit,
            faults: now.faults - before.faults,
            read_ahead_hits: now.ahead - before.ahead,
            in_bytes: now.in_bytes - before.in_bytes,
            out_bytes: now.out_bytes - before.out_bytes,
            written_bytes: now.written_bytes - before.written_bytes,
        }
    }
}

/// Work on a page.
struct Work {
    /// Steps of mixing; 0: the page's words are added up.
    steps: u32,
}

impl Work {
    fn calibrated(work_us: f64) -> Work {
        let page = [7; PAGE_BYTES];
        let of = |steps| {
            let begun = Instant::now();
            std::hint::black_box(Work { steps }.on(std::hint::black_box(&page), 1));
            begun.elapsed().as_nanos() as f64 / f64::from(steps)
        };
        // The fastest of several: other work on the machine makes none faster.
        let step_ns = (0..5).map(|_| of(CALIBRATION)).fold(f64::INFINITY, f64::min);
        Work { steps: u32::try_from(saturating_u64(work_us * 1e3 / step_ns)).unwrap_or(u32::MAX) }
    }

    #[inline]
    fn on(&self, page: &[u8], seed: u64) -> u64 {
        let words =
            || page.chunks_exact(8).map(|word| word.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)));
        if self.steps == 0 {
            return words().fold(seed, u64::wrapping_add);
        }
        let (mut state, mut left) = (seed, self.steps as usize);
        while left > 0 {
            for word in words().take(left) {
                state = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            }
            left = left.saturating_sub(PAGE_BYTES / 8);
        }
        state
    }
}

#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        debug_assert_ne!(self.0, 0, "no shift and no XOR changes 0");
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        to_usize(self.next() % end as u64)
    }
}

fn write(array: &mut [u8], mut random: Random) {
    for word in array.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_ne_bytes());
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(pattern: AccessOrder) -> SwapBenchPlan {
        SwapBenchPlan { pattern, work_us: 0.0, local: 0.5, local_bytes: 1 << 20, rounds: 1 }
    }

    #[test]
    fn each_pattern_reads_all_pages_and_their_content() {
        let mut array = vec![0; 2 << 20];
        write(&mut array, Random(1));
        for pattern in [AccessOrder::Sequential, AccessOrder::RandomBlock, AccessOrder::RandomPage] {
            let of = |array: &[u8]| plan(pattern).pass(array, &Work { steps: 600 }, &mut Random(7)).1;
            let result = of(&array);
            assert_eq!(result, of(&array));
            array.chunks_exact_mut(PAGE_BYTES).for_each(|page| page[3] ^= 1);
            assert_ne!(result, of(&array), "{pattern:?}");
        }
    }

    #[test]
    fn a_share_that_makes_no_sense_is_refused() {
        for local in [0.0, -1.0, 1.5, f64::NAN, 1e-9] {
            let refused =
                SwapBenchPlan { local, local_bytes: 64 << 20, ..plan(AccessOrder::Sequential) }.len_bytes();
            assert_eq!(refused.unwrap_err().code, Code::InvalidArgument, "{local}");
        }
        assert_eq!(plan(AccessOrder::Sequential).len_bytes().unwrap(), 2 << 20);
    }
}
