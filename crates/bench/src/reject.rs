//! Measures a call that a busy shared core rejects, and one that is redirected to a free core, beside a plain warm
//! call.
//!
//! A private node shares two cores. A function sleeps on one of them, so that this core is occupied and yet idle. A
//! client has a worker on each. Three kinds of calls alternate in short blocks:
//! - *plain*: to the worker on the free core;
//! - *rejected*: to the worker on the occupied core, with a deadline that has passed, so that the answer is final;
//! - *redirected*: to no particular worker. An uncollected answer makes the free worker look busy, so that the library
//!   tries the other one first, is rejected, and continues with the free one.
//!
//! The client polls for its results on a core of its own. On a machine with two cores it has none, and sleeps.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::thread::futex;
use serde::Serialize;
use sublet_fabric::clock::{Calibration, ticks, ticks_ordered};
use sublet_proto::{Code, Error, saturating_u64};
use sublet_runtime::{Access, Allocation, CallOptions, Function, Invocation, Invoker, Policy};

use super::private_instance::PrivateInstance;
use super::{PACKAGE, Samples, Summary, allocate, human_ns, pin_client};

/// Counted calls of each kind in a block, and uncounted calls before them.
const BLOCK: u32 = 16;
const UNCOUNTED: u32 = 4;
/// Pause between two calls: long enough that the workers sleep.
const THINK: Duration = Duration::from_micros(100);
/// Number of searches for the occupied core, and the time between them.
const LOOKS: u32 = 100;
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Time after which an answer will not come.
const PATIENCE: Duration = Duration::from_secs(30);
const BYTES: usize = 64;
/// Words of the input of `raw`: rounds (two), bytes to copy, whether it sleeps; and the offset of the flag that ends
/// it.
const PARAMETERS: [u32; 4] = [1, 0, 0, 1];
const FLAG: usize = 128 / 4;
const HEAD_WORDS: usize = 4096 / 4;

/// How the client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum ClientWait {
    /// Polls, on a core of its own.
    Polls,
    /// Sleeps, where there is no such core.
    Sleeps,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct RejectionResult {
    bench: &'static str,
    fabric: &'static str,
    client: ClientWait,
    n: usize,
    plain: Summary,
    rejected: Summary,
    redirected: Summary,
    /// Ratio of the median to the median of plain calls.
    rejected_ratio: f64,
    redirected_ratio: f64,
}

/// The headings of [`RejectionResult::rows`].
pub const HEADINGS: [&str; 4] = ["CALL", "MEDIAN", "P99", "RATIO"];

impl RejectionResult {
    /// Formats the results for a table.
    pub fn rows(&self) -> Vec<[String; 4]> {
        let row = |name: &str, summary: &Summary, ratio: f64| {
            [name.to_owned(), human_ns(summary.median_ns), human_ns(summary.p99_ns), format!("{ratio:.2}")]
        };
        vec![
            row("plain warm", &self.plain, 1.0),
            row("rejected", &self.rejected, self.rejected_ratio),
            row("rejected and redirected", &self.redirected, self.redirected_ratio),
        ]
    }
}

/// Starts a node with two shared cores and measures `calls` calls of each kind.
pub fn run(calls: u32, mut progress: impl FnMut()) -> Result<RejectionResult, Error> {
    let calibration = Calibration::start();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let client = if cores > 2 { ClientWait::Polls } else { ClientWait::Sleeps };
    if client == ClientWait::Polls {
        pin_client()?;
    }
    let own = PrivateInstance::up(&[
        "--cores",
        "0",
        "--shared-cores",
        "2",
        "--shared-places",
        "8",
        "--memory",
        "512MiB",
    ])?;
    let shared = Allocation::new(PACKAGE).policy(Policy::AlwaysWarm).memory_bytes(64 << 20).shared();
    let holder = connect(&own.access(), &shared)?;
    let invoker = connect(&own.access(), &shared.clone().cores(2).spin(client.spin()))?;
    let per_ns = calibration.ticks_per_ns();
    let mut bench = RejectionBench::new(&invoker, client, calls, per_ns)?;
    held(&holder, || {
        bench.find_the_held_core()?;
        for _ in 0..blocks(calls) {
            bench.block()?;
            progress();
        }
        Ok(())
    })?;
    Ok(bench.outcome(per_ns))
}

/// Number of blocks for this number of calls, which is the number of progress steps.
pub fn blocks(calls: u32) -> u32 {
    calls.div_ceil(BLOCK).max(1)
}

fn connect(access: &Access, allocation: &Allocation) -> Result<Invoker, Error> {
    let mut invoker = Invoker::connect_with(access.clone())?;
    allocate(&mut invoker, allocation)?;
    Ok(invoker)
}

/// Executes `act` while a function of the holder sleeps on its core.
fn held(holder: &Invoker, act: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let (mut input, mut output) = (holder.buffer::<u32>(HEAD_WORDS)?, holder.buffer::<u32>(HEAD_WORDS)?);
    input.fill(0);
    input.copy_from(0, &PARAMETERS);
    let holding = holder.submit("raw", &input, &mut output)?;
    let done = act();
    // Also after an error: dropping an invocation waits for its end.
    let flag = input.atomic(FLAG);
    flag.store(1, Ordering::Release);
    let _ = futex::wake(flag, futex::Flags::empty(), 1);
    holding.wait()?;
    done
}

impl ClientWait {
    fn spin(self) -> Duration {
        match self {
            ClientWait::Polls => Duration::MAX,
            ClientWait::Sleeps => Duration::ZERO,
        }
    }

    /// Waits for the result of a call.
    fn collect(self, mut call: Invocation<'_>) -> Result<(), Error> {
        // A sleeping client must not wait with a deadline that has passed.
        if self == ClientWait::Sleeps && !call.wait_timeout(PATIENCE) {
            let message = format!("a call had no answer in {} s", PATIENCE.as_secs());
            return Err(Error::new(Code::Internal, message));
        }
        call.wait().map(drop)
    }
}

/// The state of the measurement.
struct RejectionBench<'invoker> {
    invoker: &'invoker Invoker,
    client: ClientWait,
    noop: Function,
    /// The client's workers: on the free core and on the occupied one.
    free: u32,
    held: u32,
    passed: Instant,
    think_ticks: u64,
    plain: Samples,
    rejected: Samples,
    redirected: Samples,
}

impl<'invoker> RejectionBench<'invoker> {
    fn new(
        invoker: &'invoker Invoker,
        client: ClientWait,
        calls: u32,
        per_ns: f64,
    ) -> Result<RejectionBench<'invoker>, Error> {
        let samples = || Samples::with_capacity((blocks(calls) * BLOCK) as usize);
        Ok(RejectionBench {
            noop: invoker.function("noop")?,
            invoker,
            client,
            free: 0,
            held: 1,
            passed: Instant::now(),
            think_ticks: saturating_u64(THINK.as_nanos() as f64 * per_ns),
            plain: samples(),
            rejected: samples(),
            redirected: samples(),
        })
    }

    /// Waits until one of the cores is occupied, and records which.
    fn find_the_held_core(&mut self) -> Result<(), Error> {
        for _ in 0..LOOKS {
            for (held, free) in [(0, 1), (1, 0)] {
                if self.is_rejected(held)? {
                    (self.held, self.free) = (held, free);
                    return Ok(());
                }
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Err(Error::new(Code::Internal, "no worker turns calls away, although a core is held"))
    }

    fn block(&mut self) -> Result<(), Error> {
        debug_assert_ne!(self.free, self.held, "a worker's core is free or held");
        let [mut plain, mut rejected, mut redirected] =
            [(); 3].map(|()| Samples::with_capacity(BLOCK as usize));
        let to = |worker| CallOptions { worker, ..CallOptions::default() };
        self.calls(&mut plain, |bench| bench.call(to(Some(bench.free))))?;
        self.calls(&mut rejected, |bench| match bench.is_rejected(bench.held)? {
            true => Ok(()),
            false => Err(Error::new(Code::Internal, "a call was executed on a core that is held")),
        })?;
        let (input, mut output) = ([0u8; BYTES], [0u8; BYTES]);
        let uncollected = self.invoker.submit_with(self.noop, &input, &mut output, to(Some(self.free)))?;
        self.calls(&mut redirected, |bench| bench.call(to(None)))?;
        uncollected.wait()?;
        self.plain.extend(plain);
        self.rejected.extend(rejected);
        self.redirected.extend(redirected);
        Ok(())
    }

    fn calls(&self, samples: &mut Samples, call: impl Fn(&Self) -> Result<(), Error>) -> Result<(), Error> {
        for round in 0..UNCOUNTED + BLOCK {
            self.think();
            let since = ticks_ordered();
            call(self)?;
            if round >= UNCOUNTED {
                samples.since(since);
            }
        }
        Ok(())
    }

    fn call(&self, options: CallOptions) -> Result<(), Error> {
        let (input, mut output) = ([0u8; BYTES], [0u8; BYTES]);
        self.client.collect(self.invoker.submit_with(self.noop, &input, &mut output, options)?)
    }

    /// Whether a worker rejects a call that may not be redirected.
    fn is_rejected(&self, worker: u32) -> Result<bool, Error> {
        let options =
            CallOptions { worker: Some(worker), deadline: Some(self.passed), ..CallOptions::default() };
        match self.call(options) {
            Ok(()) => Ok(false),
            Err(error) if error.code == Code::CoreBusy => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn think(&self) {
        match self.client {
            ClientWait::Sleeps => std::thread::sleep(THINK),
            ClientWait::Polls => {
                let since = ticks();
                while ticks().saturating_sub(since) < self.think_ticks {
                    std::hint::spin_loop();
                }
            }
        }
    }

    fn outcome(mut self, per_ns: f64) -> RejectionResult {
        let n = self.plain.len();
        debug_assert!(
            self.rejected.len() == n && self.redirected.len() == n,
            "{n} plain calls, {} rejected and {} redirected ones",
            self.rejected.len(),
            self.redirected.len()
        );
        let (plain, rejected, redirected) =
            (self.plain.summary(per_ns), self.rejected.summary(per_ns), self.redirected.summary(per_ns));
        RejectionResult {
            bench: "reject",
            fabric: "shm",
            client: self.client,
            n,
            plain,
            rejected,
            redirected,
            rejected_ratio: rejected.median_ns / plain.median_ns,
            redirected_ratio: redirected.median_ns / plain.median_ns,
        }
    }
}
