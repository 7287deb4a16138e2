//! Compares the sizes of a memory component by earlier runs with fixed sizes, and with its highest use (Scad 5.2.4,
//! figures 20 and 21). `cargo bench -p sublet-runtime --bench sizes [-- RUNS]` prints JSON.
//!
//! The paper takes the memory of invocations from the Azure Functions trace of 2019. The trace is not part of this
//! repository, so the memory of each run is drawn from a distribution. That of `average` is the Burr distribution that
//! the authors of the trace fit to the average memory of applications. The paper describes the other three, `small`,
//! `large` and `varying`, by words only; their numbers are chosen here by these words. Draws are the same in each run
//! of this program, and the sizes are those that a run of a graph would get.

use std::fmt;

use sublet_proto::graph::{Medium, MemoryNeed};
use sublet_runtime::run::{HISTORY_RUNS, Sizes, memory_sizes};

const MIB: u64 = 1 << 20;
const DEFAULT_RUNS: usize = 500;
/// Largest size of the memory component.
const LIMIT_BYTES: u64 = 16 << 30;
/// The default sizes of Scad: 256 MB, and 64 MB more with each growth.
const FIXED: Sizes = Sizes { initial_bytes: 256 * MIB, increment_bytes: 64 * MIB };
/// Parameters of the Burr distribution of the average memory of applications (Shahrad et al., USENIX ATC 2020), the
/// last one in MB.
const BURR: [f64; 3] = [11.652, 0.221, 107.083];

/// An application, by the memory that its runs use.
#[derive(Clone, Copy)]
enum Application {
    Average,
    Small,
    Large,
    Varying,
}

/// How sizes are chosen.
#[derive(Clone, Copy)]
enum Policy {
    /// Sizes that are the same in each run.
    Fixed,
    /// The highest use of all runs, also of those to come.
    Peak,
    /// Sizes by earlier runs, as Sublet chooses them.
    History,
}

/// Costs of the runs of an application.
struct Costs {
    used_bytes: f64,
    leased_bytes: f64,
    growths: u64,
}

fn main() {
    let runs = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(DEFAULT_RUNS);
    for application in [Application::Average, Application::Small, Application::Large, Application::Varying] {
        let used = application.draw(runs);
        for policy in [Policy::Fixed, Policy::Peak, Policy::History] {
            let Costs { used_bytes, leased_bytes, growths } = policy.costs(&used);
            println!(
                "{{\"bench\":\"sizes\",\"application\":\"{application}\",\"policy\":\"{policy}\",\"n\":{runs},\
                 \"utilisation\":{:.3},\"growths_per_run\":{:.2}}}",
                used_bytes / leased_bytes,
                growths as f64 / runs.max(1) as f64
            );
        }
    }
}

impl Application {
    /// Memory of each run, in bytes.
    fn draw(self, runs: usize) -> Vec<u64> {
        let mut random = Random(1);
        (0..runs).map(|_| bytes(self.mib_at(random.share()))).collect()
    }

    /// The memory that this share of the runs does not exceed, in MiB.
    fn mib_at(self, share: f64) -> f64 {
        match self {
            Application::Average => {
                let [c, k, scale] = BURR;
                scale * ((1.0 - share).powf(-1.0 / k) - 1.0).powf(1.0 / c)
            }
            // Nine of ten runs use little, or much.
            Application::Small if share < 0.9 => between(16.0, 64.0, share / 0.9),
            Application::Small => between(64.0, 512.0, (share - 0.9) / 0.1),
            Application::Large if share < 0.1 => between(64.0, 512.0, share / 0.1),
            Application::Large => between(512.0, 1024.0, (share - 0.1) / 0.9),
            Application::Varying => between(16.0, 1536.0, share),
        }
    }
}

/// A size between two, whose logarithm is at this share of the way.
fn between(least: f64, most: f64, share: f64) -> f64 {
    least * (most / least).powf(share)
}

/// MiB in bytes, within the limit of the component.
fn bytes(mib: f64) -> u64 {
    (mib * MIB as f64).clamp(1.0, LIMIT_BYTES as f64) as u64
}

impl Policy {
    fn costs(self, used: &[u64]) -> Costs {
        let most = used.iter().copied().max().unwrap_or(1);
        let mut costs = Costs { used_bytes: 0.0, leased_bytes: 0.0, growths: 0 };
        // The latest first.
        let mut earlier = Vec::new();
        for &used in used {
            let sizes = match self {
                Policy::Fixed => FIXED,
                Policy::Peak => Sizes { initial_bytes: most, increment_bytes: most },
                Policy::History => memory_sizes(&NEED, &earlier),
            };
            let (leased, growths) = sizes.reach(used);
            costs.used_bytes += used as f64;
            costs.leased_bytes += leased as f64;
            costs.growths += growths;
            earlier.insert(0, used);
            earlier.truncate(HISTORY_RUNS);
        }
        costs
    }
}

/// A memory component whose document names no sizes.
const NEED: MemoryNeed = MemoryNeed {
    initial_bytes: None,
    increment_bytes: None,
    limit_bytes: LIMIT_BYTES,
    pool: None,
    is_result: false,
    medium: Medium::Memory,
};

impl fmt::Display for Application {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Application::Average => "average",
            Application::Small => "small",
            Application::Large => "large",
            Application::Varying => "varying",
        })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Policy::Fixed => "fixed",
            Policy::Peak => "peak",
            Policy::History => "history",
        })
    }
}

/// A sequence of numbers that is the same in each run of this program.
struct Random(u64);

impl Random {
    /// A number from 0 to less than 1.
    fn share(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let word = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (word >> 11) as f64 / (1_u64 << 53) as f64
    }
}
