//! Measures calls beside raw round trips: blocks of both alternate, so that both see the same states of the machine.

use std::time::Duration;

use serde::Serialize;
use sublet_fabric::clock::{Calibration, ticks, ticks_ordered};
use sublet_proto::Error;
use sublet_runtime::{Buffer, CallOptions, Function, Invoker};

use super::raw::RawSide;
use super::transport::{CallTransport, Site, Where};
use super::{Samples, Summary, allocate, pin_client};

/// Bytes before the payload in both buffers. In the input's they contain parameters of the raw side in shared memory.
pub(super) const HEAD_BYTES: usize = 4096;
/// Rounds of a block before the counted ones, in which caches and branch predictors adapt.
pub(super) const UNCOUNTED: u32 = 8;
/// Pause between two calls to a sleeping worker: long enough that it sleeps.
pub(super) const THINK: Duration = Duration::from_micros(100);
/// Size above which fewer calls suffice, since each takes long.
const LARGE_BYTES: u32 = 64 << 10;
const LARGE_CALLS: u32 = 2_000;

/// How the worker waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The worker polls.
    Hot,
    /// The worker sleeps.
    Warm,
}

impl Mode {
    /// Name of the mode in the command and its output.
    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::Hot => "hot",
            Mode::Warm => "warm",
        }
    }
}

/// The called function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum CalledFunction {
    /// Does nothing; the raw side answers with as little as it can.
    Noop,
    /// Returns its input; the raw side moves the same bytes.
    Echo,
    /// Returns as many bytes as its input has, and copies none; the raw side moves as many.
    Exchange,
}

impl CalledFunction {
    /// Name of the function in the package and the output.
    pub(super) fn name(self) -> &'static str {
        match self {
            CalledFunction::Noop => "noop",
            CalledFunction::Echo => "echo",
            CalledFunction::Exchange => "exchange",
        }
    }
}

/// Parameters of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct PairPlan {
    /// How the worker waits.
    pub mode: Mode,
    /// The called function.
    pub function: CalledFunction,
    /// Calls for each size; fewer where a call takes long.
    pub calls: u32,
}

/// Results for one size.
pub(super) struct PairSummary {
    pub(super) n: usize,
    pub(super) ours: Summary,
    pub(super) raw: Summary,
}

/// Measures every size in turn, in one lease. Calls `done` with the results of each.
pub(super) fn measure(
    place: &Where,
    transport: &CallTransport,
    plan: PairPlan,
    sizes: &[u32],
    mut done: impl FnMut(u32, &PairSummary),
) -> Result<(), Error> {
    let calibration = Calibration::start();
    let transport = &transport.resolved()?;
    let site = Site::open(place, transport, &[])?;
    pin_client()?;
    let mut invoker = Invoker::connect_with(site.access.clone())?;
    allocate(&mut invoker, &transport.allocation(plan.mode))?;
    let mut raw = RawSide::new(transport, site.local, sizes.iter().copied().max().unwrap_or_default())?;
    for &size in sizes {
        let pairs = Pairs::new(&invoker, &mut raw, plan, size)?;
        done(size, &pairs.run(calibration.ticks_per_ns())?);
    }
    drop(raw);
    invoker.deallocate().map(drop)
}

/// Memory and parameters of both sides' rounds.
pub(super) struct Rounds {
    pub(super) mode: Mode,
    pub(super) function: CalledFunction,
    pub(super) size: u32,
    pub(super) input: Buffer<u32>,
    pub(super) output: Buffer<u8>,
    /// Time that the client waits before each round.
    pub(super) think_ticks: u64,
}

/// The state of one size's measurement.
struct Pairs<'run> {
    invoker: &'run Invoker,
    limit: &'run mut RawSide,
    called: Function,
    calls: u32,
    rounds: Rounds,
    ours: Samples,
    raw: Samples,
}

impl<'run> Pairs<'run> {
    fn new(
        invoker: &'run Invoker,
        limit: &'run mut RawSide,
        plan: PairPlan,
        size: u32,
    ) -> Result<Pairs<'run>, Error> {
        let samples = || Samples::with_capacity(plan.calls as usize);
        Ok(Pairs {
            called: invoker.function(plan.function.name())?,
            rounds: Rounds::new(invoker, plan, size)?,
            calls: plan.calls,
            ours: samples(),
            raw: samples(),
            invoker,
            limit,
        })
    }

    fn run(mut self, ticks_per_ns: f64) -> Result<PairSummary, Error> {
        if self.rounds.mode == Mode::Warm {
            self.rounds.think_ticks = (THINK.as_nanos() as f64 * ticks_per_ns) as u64;
        }
        let (blocks, counted) = self.blocks();
        for _ in 0..blocks {
            calls(self.invoker, self.called, &mut self.rounds, counted, &mut self.ours)?;
            self.limit.block(self.invoker, &mut self.rounds, counted, &mut self.raw)?;
        }
        let n = self.ours.len();
        Ok(PairSummary { n, ours: self.ours.summary(ticks_per_ns), raw: self.raw.summary(ticks_per_ns) })
    }

    /// Number of blocks, and of counted rounds in each.
    fn blocks(&self) -> (u32, u32) {
        let moves = self.rounds.function == CalledFunction::Echo || !self.limit.is_shared_memory();
        let large = moves && self.rounds.size > LARGE_BYTES;
        let slow = large || self.rounds.mode == Mode::Warm;
        let counted = if slow { 16 } else { 128 };
        let calls = if large { self.calls.min(LARGE_CALLS) } else { self.calls };
        (calls.div_ceil(counted).max(1), counted)
    }
}

impl Rounds {
    pub(super) fn new(invoker: &Invoker, plan: PairPlan, size: u32) -> Result<Rounds, Error> {
        // The raw side over a network moves at least one byte.
        let bytes = HEAD_BYTES + size.max(1) as usize;
        let (mut input, mut output) =
            (invoker.buffer::<u32>(bytes.div_ceil(4))?, invoker.buffer::<u8>(bytes)?);
        input.fill(7);
        output.fill(0);
        Ok(Rounds { mode: plan.mode, function: plan.function, size, input, output, think_ticks: 0 })
    }

    /// Bytes of a request over a network: at least one.
    pub(super) fn request_bytes(&self) -> u32 {
        self.size.max(1)
    }

    /// Bytes of a response.
    pub(super) fn response_bytes(&self) -> u32 {
        match self.function {
            CalledFunction::Noop => 1,
            CalledFunction::Echo | CalledFunction::Exchange => self.request_bytes(),
        }
    }
}

/// Waits by spinning.
pub(super) fn think(for_ticks: u64) {
    let since = ticks();
    while ticks().saturating_sub(since) < for_ticks {
        std::hint::spin_loop();
    }
}

fn calls(
    invoker: &Invoker,
    called: Function,
    rounds: &mut Rounds,
    counted: u32,
    samples: &mut Samples,
) -> Result<(), Error> {
    let size = rounds.size as usize;
    for round in 0..UNCOUNTED + counted {
        think(rounds.think_ticks);
        let input = &bytemuck::cast_slice::<u32, u8>(&rounds.input)[HEAD_BYTES..HEAD_BYTES + size];
        let output = &mut rounds.output[HEAD_BYTES..HEAD_BYTES + size];
        let since = ticks_ordered();
        invoker.submit_with(called, input, output, CallOptions::default())?.wait()?;
        if round >= UNCOUNTED {
            samples.since(since);
        }
    }
    Ok(())
}
