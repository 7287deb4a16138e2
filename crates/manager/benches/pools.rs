//! Plays three applications that share the balanced pool through its watermark (Scad 5.2.4, figure 22), in a simulated
//! time. `cargo bench -p sublet-manager --bench pools` prints JSON.
//!
//! `rising` is a compute component that cannot be left apart, and more and more runs of it begin from second 30 to 150,
//! and fewer until second 240. `little` and `much` are each a compute and a memory component, which run together or
//! apart, and begin once in a second; `much` moves a hundred times as many bytes. The decision is that of
//! the managers before each run. Nothing is executed: what a component takes longer apart is not measured.

use std::fmt;
use std::hint::black_box;
use std::time::Instant;

use sublet_manager::core::{Amount, CommunicatingSet, PoolResources, decide};

const GIB: u64 = 1 << 30;
const WATERMARK_PERMILLE: u32 = 700;
/// Cores of the balanced pool.
const CORES: u64 = 20;
/// Most cores that `rising` has at a time.
const MOST_CORES: u64 = 14;
/// Seconds at which `rising` begins, has its most cores, and is gone.
const RISES: u64 = 30;
const FALLS: u64 = 150;
const IS_GONE: u64 = 240;
const ENDS: u64 = 300;
/// Decisions for one measurement of their time.
const DECISIONS: u32 = 1_000;

/// An application that may be left apart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    Little,
    Much,
}

struct Application {
    name: Name,
    set: CommunicatingSet,
    is_apart: bool,
    /// Second at which a run was first left apart, and since which all have run together again.
    apart_s: Option<u64>,
    together_s: Option<u64>,
    /// Bytes that its runs moved between nodes.
    moved_bytes: u64,
}

fn main() {
    let mut applications = [(Name::Little, GIB / 100), (Name::Much, GIB)].map(Application::new);
    // The largest part of the pool that was leased, with plans and without. A run that is in progress keeps its place, so
    // for the rest of it the pool may have more than the watermark.
    let (mut most, mut most_together, mut above_s) = (0, 0, 0_u32);
    for now_s in 0..ENDS {
        for at in 0..applications.len() {
            let decision = decide_about(&applications, at, now_s);
            applications[at].begin(decision, now_s);
        }
        let together =
            applications.iter().filter(|of| !of.is_apart).map(|of| of.set.all().cores).sum::<u64>();
        let all = applications.iter().map(|of| of.set.all().cores).sum::<u64>();
        let used = rising_cores(now_s) + together;
        above_s += u32::from(used * 1000 > CORES * u64::from(WATERMARK_PERMILLE));
        most = most.max(used);
        most_together = most_together.max(rising_cores(now_s) + all);
    }
    let begun = Instant::now();
    for _ in 0..DECISIONS {
        black_box(decide_about(black_box(&applications), 0, FALLS));
    }
    let decision_ns = begun.elapsed().as_nanos() / u128::from(DECISIONS);
    for of in &applications {
        println!(
            "{{\"bench\":\"pools\",\"application\":\"{}\",\"n\":{ENDS},\"apart_after_s\":{},\"together_after_s\":{},\
             \"moved_between_nodes_bytes\":{},\"most_used\":{:.2},\"most_used_without\":{:.2},\"above_watermark_s\":{above_s},\"decision_ns\":{decision_ns}}}",
            of.name,
            json(of.apart_s),
            json(of.together_s),
            of.moved_bytes,
            most as f64 / CORES as f64,
            most_together as f64 / CORES as f64
        );
    }
}

/// Decides before a run of an application: whether it is left apart. The other one's run is in progress.
fn decide_about(applications: &[Application; 2], at: usize, now_s: u64) -> bool {
    let other = &applications[1 - at];
    let running: Vec<CommunicatingSet> = (!other.is_apart).then_some(other.set).into_iter().collect();
    let leased = rising_cores(now_s) + running.iter().map(|set| set.all().cores).sum::<u64>();
    let amount = |cores| Amount { cores, memory_bytes: cores * 4 * GIB };
    let pools = PoolResources {
        balanced_lent: amount(CORES),
        balanced_leased: amount(leased),
        compute_free: amount(CORES),
        memory_free: amount(CORES),
    };
    decide(&[applications[at].set], &running, &pools, WATERMARK_PERMILLE).is_apart == [true]
}

/// Cores of `rising` at a time.
fn rising_cores(now_s: u64) -> u64 {
    match now_s {
        RISES..FALLS => MOST_CORES * (now_s - RISES) / (FALLS - RISES),
        FALLS..IS_GONE => MOST_CORES * (IS_GONE - now_s) / (IS_GONE - FALLS),
        _ => 0,
    }
}

impl Application {
    fn new((name, moved_bytes): (Name, u64)) -> Application {
        let compute = Amount { cores: 4, memory_bytes: 4 * GIB };
        let set = CommunicatingSet { moved_bytes, compute, memory_bytes: 8 * GIB, is_mapped: false };
        Application { name, set, is_apart: false, apart_s: None, together_s: None, moved_bytes: 0 }
    }

    /// A run begins.
    fn begin(&mut self, is_apart: bool, now_s: u64) {
        if is_apart {
            self.apart_s.get_or_insert(now_s);
            self.together_s = None;
            self.moved_bytes += self.set.moved_bytes;
        } else if self.is_apart {
            self.together_s = Some(now_s);
        }
        self.is_apart = is_apart;
    }
}

/// A number in JSON, or null.
fn json(number: Option<u64>) -> String {
    number.map_or_else(|| "null".to_owned(), |number| number.to_string())
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Name::Little => "little",
            Name::Much => "much",
        })
    }
}
