//! Measures calls per second through several workers with several calls in flight at each.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::Serialize;
use sublet_proto::{Code, Error};
use sublet_runtime::{Access, Allocation, CallOptions, Invoker, Policy};

use super::{PACKAGE, allocate, human_ns, pin_client};

/// Parameters of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct ThroughputPlan {
    /// Workers, each on its own core.
    pub workers: u32,
    /// Calls in flight at each worker.
    pub in_flight: u32,
    /// Bytes of each call's input, which are copied into the worker's inbox while it executes other calls.
    pub size: u32,
    /// Duration of the measurement.
    pub time: Duration,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct ThroughputResult {
    bench: &'static str,
    fabric: &'static str,
    workers: u32,
    in_flight: u32,
    size_bytes: u32,
    calls: u64,
    seconds: f64,
    calls_per_s: f64,
    bytes_per_s: f64,
}

/// The headings of [`ThroughputResult::cells`].
pub const HEADINGS: [&str; 7] = ["WORKERS", "IN FLIGHT", "BYTES", "CALLS", "CALLS/S", "PER CALL", "MB/S"];

impl ThroughputResult {
    /// Formats the results for a table.
    pub fn cells(&self) -> [String; 7] {
        [
            self.workers.to_string(),
            self.in_flight.to_string(),
            self.size_bytes.to_string(),
            self.calls.to_string(),
            format!("{:.0}", self.calls_per_s),
            human_ns(1e9 / self.calls_per_s),
            format!("{:.1}", self.bytes_per_s / 1e6),
        ]
    }
}

/// Measures with one client thread, which keeps every worker's calls in flight and collects them in order.
pub fn run(access: &Access, plan: ThroughputPlan) -> Result<ThroughputResult, Error> {
    if plan.in_flight == 0 {
        return Err(Error::new(Code::InvalidArgument, "calls in flight: 0 is not at least 1"));
    }
    pin_client()?;
    let mut invoker = Invoker::connect_with(access.clone())?;
    let slots = plan.in_flight.clamp(8, sublet_proto::limits::MAX_SLOTS);
    let allocation = Allocation::new(PACKAGE)
        .cores(plan.workers)
        .slots(slots)
        .slot_bytes(u64::from(plan.size))
        .policy(Policy::AlwaysHot);
    allocate(&mut invoker, &allocation)?;
    let outcome = measure(&invoker, plan);
    invoker.deallocate()?;
    outcome
}

fn measure(invoker: &Invoker, plan: ThroughputPlan) -> Result<ThroughputResult, Error> {
    let noop = invoker.function("noop")?;
    let input = vec![7u8; plan.size as usize];
    let submit = |place: usize| {
        #[expect(clippy::cast_possible_truncation, reason = "the calls in flight fit into memory")]
        let options = CallOptions { worker: Some(place as u32 % plan.workers), ..CallOptions::default() };
        invoker.submit_with(noop, &input, &mut [] as &mut [u8], options)
    };
    let places = plan.workers as usize * plan.in_flight as usize;
    let mut flying = (0..places).map(submit).collect::<Result<VecDeque<_>, _>>()?;
    let begun = Instant::now();
    let mut calls = 0u64;
    while begun.elapsed() < plan.time {
        for place in 0..places {
            if let Some(oldest) = flying.pop_front() {
                oldest.wait()?;
            }
            flying.push_back(submit(place)?);
            calls += 1;
        }
        debug_assert_eq!(flying.len(), places, "calls in flight after {calls} calls");
    }
    let seconds = begun.elapsed().as_secs_f64();
    let calls_per_s = calls as f64 / seconds;
    Ok(ThroughputResult {
        bench: "throughput",
        fabric: "shm",
        workers: plan.workers,
        in_flight: plan.in_flight,
        size_bytes: plan.size,
        calls,
        seconds,
        calls_per_s,
        bytes_per_s: calls_per_s * f64::from(plan.size),
    })
}
