//! The rounds that both sides of a measurement execute: their mode, function, memory and pauses.

use std::time::Duration;

use serde::Serialize;
use sublet_fabric::clock::ticks;
use sublet_proto::Error;
use sublet_runtime::{Buffer, Invoker};

/// Bytes before the payload in both buffers. In the input's they contain parameters of the raw side.
pub(super) const HEAD_BYTES: usize = 4096;
/// Largest payload of a measured call, in bytes: the longest buffer without its head, in whole words.
pub const MAX_PAYLOAD_BYTES: u32 = (u32::MAX - 4096) / 4 * 4;

const _: () = assert!(MAX_PAYLOAD_BYTES as u64 + HEAD_BYTES as u64 <= u32::MAX as u64);

/// Rounds of a block before the counted ones, in which caches and branch predictors adapt.
pub(super) const UNCOUNTED: u32 = 8;
/// Pause between two calls to a sleeping worker: long enough that it sleeps.
pub(super) const THINK: Duration = Duration::from_micros(100);

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
