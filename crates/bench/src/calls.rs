//! `sublet bench xpucall`: a call of the shim and its answer, beside a flag's round trip through shared memory.
//!
//! The call requests the caller's rights to a FIFO: the shim looks them up, and no other process takes part. A function
//! in a worker process makes it, on one core; the shim's thread belongs to another process, and runs where the system
//! puts it. The flag goes between the core of the same worker and the core of this process.

use serde::Serialize;
use sublet_fabric::clock::Calibration;
use sublet_proto::Error;
use sublet_runtime::manager::ManagerClient;
use sublet_runtime::{Access, Allocation, Invoker, Policy};

use super::peer_process::{self, PeerProcess};
use super::private_instance::{PrivateInstance, measured};
use super::raw::RawSide;
use super::rounds::{CalledFunction, Mode, PairPlan, Rounds};
use super::{PACKAGE, Samples, human_ns, pin_client};

/// Calls of a block, and round trips of the flag.
const CALLS: u32 = 256;
/// Blocks before the counted ones.
const UNCOUNTED: u32 = 2;

/// Results: medians of blocks.
#[derive(Clone, Debug, Serialize)]
pub struct CallResult {
    bench: &'static str,
    blocks: u32,
    median_ns: f64,
    p99_ns: f64,
    raw_median_ns: f64,
    /// Ratio of a call to the flag's round trip.
    ratio: f64,
}

/// The headings of [`CallResult::cells`].
pub const HEADINGS: [&str; 4] = ["CALL", "P99", "FLAG", "RATIO"];

impl CallResult {
    /// Formats the results for a table.
    pub fn cells(&self) -> [String; 4] {
        [
            human_ns(self.median_ns),
            human_ns(self.p99_ns),
            human_ns(self.raw_median_ns),
            format!("{:.2}", self.ratio),
        ]
    }
}

/// Measures `blocks` blocks. Without a manager it starts a private Sublet.
pub fn run(access: Option<Access>, blocks: u32, mut done: impl FnMut()) -> Result<CallResult, Error> {
    let calibration = Calibration::start();
    let (access, _own) = measured(access, || Ok(vec![PrivateInstance::up(&["--cores", "2"])?]))?;
    let manager = ManagerClient::connect_with(access.clone())?;
    peer_process::deploy(&manager)?;
    super::deploy(&manager)?;
    pin_client()?;
    // The flag's worker has the last core, and sleeps during calls on the first core.
    let mut flags = Flags::start(&access)?;
    let caller = PeerProcess::start(&access)?;
    let fifo = caller.make(1)?;
    let mut calls = Samples::with_capacity(blocks as usize);
    let mut raw = Samples::with_capacity((blocks * CALLS) as usize);
    for number in 0..UNCOUNTED + blocks {
        // The first calls wake the shim.
        let [_] = caller.call("calls", &[fifo.object, u64::from(CALLS)])?;
        let [took] = caller.call("calls", &[fifo.object, u64::from(CALLS)])?;
        let mut block = Samples::with_capacity(CALLS as usize);
        flags.block(&mut block)?;
        if number >= UNCOUNTED {
            calls.push(took);
            raw.extend(block);
        }
        done();
    }
    let ours = calls.summary(f64::from(CALLS));
    let flag = raw.summary(calibration.ticks_per_ns());
    Ok(CallResult {
        bench: "xpucall",
        blocks,
        median_ns: ours.median_ns,
        p99_ns: ours.p99_ns,
        raw_median_ns: flag.median_ns,
        ratio: ours.median_ns / flag.median_ns,
    })
}

/// The raw side: a flag between this thread and a worker's.
struct Flags {
    invoker: Invoker,
    raw: RawSide,
    rounds: Rounds,
}

impl Flags {
    fn start(access: &Access) -> Result<Flags, Error> {
        let mut invoker = Invoker::connect_with(access.clone())?;
        invoker.allocate(&Allocation::new(PACKAGE).policy(Policy::AlwaysWarm))?;
        let plan = PairPlan { mode: Mode::Hot, function: CalledFunction::Noop, calls: CALLS };
        let rounds = Rounds::new(&invoker, plan, 64)?;
        Ok(Flags { invoker, raw: RawSide::Shm, rounds })
    }

    fn block(&mut self, samples: &mut Samples) -> Result<(), Error> {
        self.raw.block(&self.invoker, &mut self.rounds, CALLS, samples)
    }
}
