//! The round trip of one call, beside the raw round trip.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::thread::futex;
use serde::Serialize;
use sublet_fabric::clock::{Calibration, ticks, ticks_ordered};
use sublet_proto::Error;
use sublet_runtime::{Access, Allocation, Buffer, CallOptions, Function, Invoker, Policy};

use super::{PACKAGE, Samples, allocate, human_ns, pin_client};

/// The sizes of `--sweep`, in bytes.
pub const SWEEP: &[u32] = &[0, 64, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 5 << 20];

/// What lies before the payload in both buffers; in the input's: parameters and flags.
const HEAD_BYTES: usize = 4096;
/// The flags, as indices of 32-bit words.
const REQUEST: usize = 128 / 4;
const RESPONSE: usize = 256 / 4;
/// Rounds of a block that are not counted: caches and branch predictors change over.
const UNCOUNTED: u32 = 8;
/// Between two calls to a sleeping worker: long enough that it sleeps.
const THINK: Duration = Duration::from_micros(100);

/// How the worker waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// It polls.
    Hot,
    /// It sleeps.
    Warm,
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Called {
    /// Does nothing; the raw side answers the flag.
    Noop,
    /// Copies its input to its output; the raw side makes the same copy.
    Echo,
}

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How the worker waits.
    pub mode: Mode,
    /// What is called.
    pub function: Called,
    /// Calls for each size; fewer where a call takes long.
    pub calls: u32,
}

/// One size's figures.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    bench: &'static str,
    fabric: &'static str,
    mode: Mode,
    function: Called,
    size_bytes: u32,
    n: usize,
    median_ns: f64,
    p99_ns: f64,
    raw_median_ns: f64,
    raw_p99_ns: f64,
    ratio: f64,
}

/// The headings of [`Figure::cells`].
pub const HEADINGS: [&str; 9] =
    ["MODE", "FUNCTION", "BYTES", "N", "MEDIAN", "P99", "RAW MEDIAN", "RAW P99", "RATIO"];

impl Figure {
    /// For a table.
    pub fn cells(&self) -> [String; 9] {
        [
            format!("{:?}", self.mode).to_lowercase(),
            format!("{:?}", self.function).to_lowercase(),
            self.size_bytes.to_string(),
            self.n.to_string(),
            human_ns(self.median_ns),
            human_ns(self.p99_ns),
            human_ns(self.raw_median_ns),
            human_ns(self.raw_p99_ns),
            format!("{:.2}", self.ratio),
        ]
    }
}

/// Measures every size in turn, in one lease. `progress` is told after each.
pub fn run(
    access: &Access,
    plan: Plan,
    sizes: &[u32],
    mut progress: impl FnMut(u32),
) -> Result<Vec<Figure>, Error> {
    let calibration = Calibration::start();
    pin_client()?;
    let mut invoker = Invoker::connect_with(access.clone())?;
    let policy = match plan.mode {
        Mode::Hot => Policy::AlwaysHot,
        Mode::Warm => Policy::AlwaysWarm,
    };
    allocate(&mut invoker, &Allocation::new(PACKAGE).policy(policy).spin(Duration::MAX))?;
    let mut figures = Vec::with_capacity(sizes.len());
    for &size in sizes {
        figures.push(Bench::new(&invoker, plan, size)?.run(&calibration)?);
        progress(size);
    }
    invoker.deallocate()?;
    Ok(figures)
}

/// The state of one size's measurement.
struct Bench<'invoker> {
    invoker: &'invoker Invoker,
    plan: Plan,
    size: u32,
    called: Function,
    raw: Function,
    input: Buffer<u32>,
    output: Buffer<u8>,
    ours: Samples,
    limit: Samples,
    think_ticks: u64,
}

impl<'invoker> Bench<'invoker> {
    fn new(invoker: &'invoker Invoker, plan: Plan, size: u32) -> Result<Bench<'invoker>, Error> {
        let called = match plan.function {
            Called::Noop => "noop",
            Called::Echo => "echo",
        };
        let bytes = HEAD_BYTES + size as usize;
        let (mut input, mut output) =
            (invoker.buffer::<u32>(bytes.div_ceil(4))?, invoker.buffer::<u8>(bytes)?);
        input.fill(7);
        output.fill(0);
        Ok(Bench {
            called: invoker.function(called)?,
            raw: invoker.function("raw")?,
            ours: Samples::with_capacity(plan.calls as usize),
            limit: Samples::with_capacity(plan.calls as usize),
            invoker,
            plan,
            size,
            input,
            output,
            think_ticks: 0,
        })
    }

    fn run(mut self, calibration: &Calibration) -> Result<Figure, Error> {
        let per_ns = calibration.ticks_per_ns();
        if self.plan.mode == Mode::Warm {
            self.think_ticks = (THINK.as_nanos() as f64 * per_ns) as u64;
        }
        let (blocks, counted) = self.blocks();
        for _ in 0..blocks {
            self.calls(counted)?;
            self.round_trips(counted)?;
        }
        let (ours, raw) = (self.ours.summary(per_ns), self.limit.summary(per_ns));
        Ok(Figure {
            bench: "latency",
            fabric: "shm",
            mode: self.plan.mode,
            function: self.plan.function,
            size_bytes: self.size,
            n: self.ours.len(),
            median_ns: ours.median_ns,
            p99_ns: ours.p99_ns,
            raw_median_ns: raw.median_ns,
            raw_p99_ns: raw.p99_ns,
            ratio: ours.median_ns / raw.median_ns,
        })
    }

    /// How many blocks of how many counted rounds: short ones, so that both sides see the machine's every mood.
    fn blocks(&self) -> (u32, u32) {
        let copies = self.plan.function == Called::Echo && self.size > 64 << 10;
        let slow = copies || self.plan.mode == Mode::Warm;
        let counted = if slow { 16 } else { 128 };
        let calls = if copies { self.plan.calls.min(2_000) } else { self.plan.calls };
        (calls.div_ceil(counted).max(1), counted)
    }

    fn calls(&mut self, counted: u32) -> Result<(), Error> {
        let input =
            &bytemuck::cast_slice::<u32, u8>(&self.input)[HEAD_BYTES..HEAD_BYTES + self.size as usize];
        for round in 0..UNCOUNTED + counted {
            think(self.think_ticks);
            let output = &mut self.output[HEAD_BYTES..];
            let since = ticks_ordered();
            self.invoker.submit_with(self.called, input, output, CallOptions::default())?.wait()?;
            if round >= UNCOUNTED {
                self.ours.since(since);
            }
        }
        Ok(())
    }

    fn round_trips(&mut self, counted: u32) -> Result<(), Error> {
        let rounds = UNCOUNTED + counted;
        let copy_bytes = if self.plan.function == Called::Echo { self.size } else { 0 };
        let sleeps = self.plan.mode == Mode::Warm;
        self.input[..4].copy_from_slice(&[rounds, 0, copy_bytes, u32::from(sleeps)]);
        (self.input[REQUEST], self.input[RESPONSE]) = (0, 0);
        let think_ticks = self.think_ticks;
        let responder =
            self.invoker.submit_with(self.raw, &self.input, &mut self.output, CallOptions::default())?;
        let (request, response) = (self.input.atomic(REQUEST), self.input.atomic(RESPONSE));
        for round in 1..=rounds {
            think(think_ticks);
            let since = ticks_ordered();
            request.store(round, Ordering::Release);
            if sleeps {
                let _ = futex::wake(request, futex::Flags::empty(), 1);
            }
            while response.load(Ordering::Acquire) != round {}
            if round > UNCOUNTED {
                self.limit.since(since);
            }
        }
        responder.wait().map(drop)
    }
}

fn think(for_ticks: u64) {
    let since = ticks();
    while ticks().saturating_sub(since) < for_ticks {
        std::hint::spin_loop();
    }
}
