//! Meters a lease: reads its usage region, bounded by the agent's own measurements.
//!
//! The region lies in the worker's memory, where a function could falsify it. So what is reported never shrinks, in
//! all and for each function, and executing and polling together never exceed the lease's cores times the time it has
//! held them; that time is the agent's own. A closed meter stands still. A call occupies all cores of its worker, so its
//! time counts for each of them.
//!
//! Executing and polling together are also never less than the processor time that the kernel has counted for the
//! lease's sandboxes, which no function can write. Processor time beyond the worker's own counters counts as computing
//! of no function: the start of a worker, processes and threads that run between calls, and all that falsified counters
//! leave out.
//!
//! Memory and processor time of the worker process are sampled each second, and when the client asks, from the kernel's
//! counters of its sandbox.

use std::sync::Mutex;

use sublet_fabric::clock::{Calibration, monotonic_ns, ticks};
use sublet_fabric::region::Region;
use sublet_fabric::sync::lock;
use sublet_proto::v1::{ColdImports, FunctionUsage, Usage};
use sublet_proto::{Error, saturating_u64};
use sublet_runtime::wire::usage::{self, FunctionTally, UsageLayout, WorkerState};
use sublet_sandbox::{ComputeGauge, Gauge, MemoryUse};

use crate::leases::book::MeasuredUsage;

/// Memory of no process.
const NOTHING: MemoryUse = MemoryUse { now_bytes: 0, peak_bytes: 0 };

/// The account of one lease, from the reservation of its resources until they are free again.
pub(crate) struct LeaseMeter {
    region: Region,
    layout: UsageLayout,
    /// Cores of each worker. A call occupies all of them.
    cores_each: u32,
    calibration: Calibration,
    opened_ns: u64,
    reading: Mutex<MeterReading>,
    watched: Mutex<Option<SandboxCounters>>,
    memory: Mutex<UsedMemory>,
    compute: Mutex<ProcessorTime>,
    /// Modules that the latest worker process imported by itself.
    cold_imports: Mutex<Option<ColdImports>>,
}

/// Counters of the present worker process's sandbox. They are opened at its start, so that a sandbox that ends before
/// the first sample is counted, too.
#[derive(Debug)]
struct SandboxCounters {
    memory: Gauge,
    compute: ComputeGauge,
    /// Processor time of the sandbox before it was the lease's, in nanoseconds.
    before_ns: u64,
}

/// Memory that the worker processes have used.
#[derive(Debug, Default)]
struct UsedMemory {
    /// Time of the latest sample, in nanoseconds.
    looked_ns: u64,
    /// Memory in use at the latest sample, in bytes.
    bytes: u64,
    /// Memory in bytes times microseconds, summed over all time until the latest sample.
    byte_us: u64,
    peak_bytes: u64,
}

/// Processor time by the kernel's count.
#[derive(Debug, Default)]
struct ProcessorTime {
    /// Processor time of all worker processes, in nanoseconds.
    total_ns: u64,
    /// Processor time of the present worker process, in nanoseconds.
    latest_ns: u64,
}

/// Activity of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Activity {
    /// Requests that its workers have answered, rejected ones included. While this stands still, nothing has ended.
    pub(crate) calls: u64,
    /// Whether a worker is in a call.
    pub(crate) executing: bool,
}

#[derive(Default)]
struct MeterReading {
    last: UsageTotals,
    closed: bool,
}

/// Measurements like [`MeasuredUsage`], with an element for each function.
#[derive(Clone, Debug, Default, PartialEq)]
struct UsageTotals {
    allocated_ns: u64,
    polling_ns: u64,
    functions: Vec<Share>,
    /// Computing of no function.
    beside_ns: u64,
    /// Processor time by the kernel's count at the latest sample.
    kernel_ns: u64,
    memory_byte_us: u64,
    memory_peak_bytes: u64,
}

/// Usage by the calls of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    executing_ns: u64,
    calls: u64,
    failed_calls: u64,
}

impl LeaseMeter {
    /// Begins to count, for workers that have this number of cores each.
    pub(crate) fn open(
        (layout, cores_each): (UsageLayout, u32),
        calibration: Calibration,
    ) -> Result<LeaseMeter, Error> {
        let region = Region::create("sublet-usage", layout.len_bytes())?;
        let (opened_ns, reading, watched) = (monotonic_ns(), Mutex::default(), Mutex::default());
        let memory = Mutex::new(UsedMemory { looked_ns: opened_ns, ..UsedMemory::default() });
        let (compute, cold_imports) = (Mutex::default(), Mutex::default());
        Ok(LeaseMeter {
            region,
            layout,
            cores_each,
            calibration,
            opened_ns,
            reading,
            watched,
            memory,
            compute,
            cold_imports,
        })
    }

    /// Begins to sample memory and processor time of this process. Before, the lease had no process.
    pub(crate) fn watch(&self, pid: u32) {
        self.watch_counters(SandboxCounters::of(pid));
    }

    /// Begins to sample like [`LeaseMeter::watch`] a process that was on standby: its processor time until now is not the
    /// lease's.
    pub(crate) fn watch_standby(&self, pid: u32) {
        self.watch_counters(SandboxCounters::of(pid).map(SandboxCounters::without_past));
    }

    fn watch_counters(&self, counters: Option<SandboxCounters>) {
        self.look();
        lock(&self.compute).begin();
        *lock(&self.watched) = counters;
    }

    /// The worker process that runs now imports these modules by itself, as the node cannot keep them warm.
    pub(crate) fn note_cold_imports(&self, cold: Option<ColdImports>) {
        *lock(&self.cold_imports) = cold;
    }

    /// Samples processor time and memory. Returns the memory in use, in bytes.
    pub(crate) fn look(&self) -> u64 {
        let mut watched = lock(&self.watched);
        let SandboxCounters { memory, compute, before_ns } = match watched.as_mut() {
            Some(watched) => watched,
            None => return lock(&self.memory).note(monotonic_ns(), NOTHING),
        };
        lock(&self.compute).note(compute.read().unwrap_or(0).saturating_sub(*before_ns));
        lock(&self.memory).note(monotonic_ns(), memory.read().unwrap_or(NOTHING))
    }

    /// Processor time of all worker processes until the latest sample, by the kernel's count, in nanoseconds.
    pub(crate) fn processor_ns(&self) -> u64 {
        lock(&self.compute).total_ns
    }

    /// Region that the workers write; only they and the agent map it.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Layout of the region.
    pub(crate) fn layout(&self) -> UsageLayout {
        self.layout
    }

    /// Cumulative usage, including that of running calls.
    pub(crate) fn read(&self) -> MeasuredUsage {
        self.refresh(&mut lock(&self.reading))
    }

    /// Takes the last reading, which stays the usage from now on.
    pub(crate) fn close(&self) -> MeasuredUsage {
        let mut reading = lock(&self.reading);
        let used = self.refresh(&mut reading);
        reading.closed = true;
        used
    }

    /// Activity of the lease. Two equal values without a call in between show that the lease is idle.
    pub(crate) fn activity(&self) -> Activity {
        let mut tallies = self.tallies();
        let mut activity = Activity { calls: 0, executing: false };
        for worker in 0..self.layout.workers() {
            let line = usage::read(&self.region, self.layout, worker, &mut tallies);
            activity.calls = activity.calls.saturating_add(line.rejected);
            activity.executing |= line.executing_at(0).is_some();
        }
        let calls = tallies.iter().map(|tally| tally.calls);
        activity.calls = calls.fold(activity.calls, u64::saturating_add);
        activity
    }

    /// The indexes of the functions that are being executed, or were when the worker process died.
    pub(crate) fn executing(&self) -> Vec<u32> {
        let workers = 0..self.layout.workers();
        workers
            .map(|worker| usage::read_line(&self.region, self.layout, worker))
            .filter(|line| line.state == WorkerState::Executing)
            .map(|line| line.function)
            .collect()
    }

    /// Closes the accounts of a worker process that has ended and runs nothing any more. Its sandbox must still exist,
    /// because its counters end with it.
    pub(crate) fn settle(&self) -> Result<(), Error> {
        self.look();
        *lock(&self.watched) = None;
        let now = ticks();
        let mut workers = 0..self.layout.workers();
        workers.try_for_each(|worker| Ok(usage::settle(&self.region, self.layout, worker, now)?))
    }

    fn refresh(&self, reading: &mut MeterReading) -> MeasuredUsage {
        if !reading.closed {
            let allocated_ns = monotonic_ns().saturating_sub(self.opened_ns);
            let cores = self.layout.workers().saturating_mul(self.cores_each);
            reading.last.grow(self.measure(allocated_ns), cores);
            let memory = lock(&self.memory);
            (reading.last.memory_byte_us, reading.last.memory_peak_bytes) =
                (memory.byte_us, memory.peak_bytes);
        }
        MeasuredUsage { cold_imports: lock(&self.cold_imports).clone(), ..reading.last.used() }
    }

    fn measure(&self, allocated_ns: u64) -> UsageTotals {
        let (now, ticks_per_ns) = (ticks(), self.calibration.ticks_per_ns());
        let to_ns = |ticks: u64| saturating_u64(ticks as f64 / ticks_per_ns);
        let (mut tallies, mut polling_ns) = (self.tallies(), 0_u64);
        for worker in 0..self.layout.workers() {
            let line = usage::read(&self.region, self.layout, worker, &mut tallies);
            polling_ns = polling_ns.saturating_add(to_ns(line.polling_at(now)));
            if let Some((function, ticks)) = line.executing_at(now) {
                let tally = &mut tallies[function as usize];
                tally.executing_ticks = tally.executing_ticks.saturating_add(ticks);
            }
        }
        let share = |tally: FunctionTally| Share {
            executing_ns: to_ns(tally.executing_ticks).saturating_mul(self.cores_each.into()),
            calls: tally.calls,
            failed_calls: tally.failed_calls,
        };
        let functions = tallies.into_iter().map(share).collect();
        let kernel_ns = lock(&self.compute).total_ns;
        UsageTotals { allocated_ns, polling_ns, functions, kernel_ns, ..UsageTotals::default() }
    }

    /// Tallies for all functions, and one more for invalid function indexes.
    fn tallies(&self) -> Vec<FunctionTally> {
        vec![FunctionTally::default(); self.layout.functions() as usize + 1]
    }
}

impl UsageTotals {
    /// Raises the values to what was measured. No value shrinks, the sum is at most the time that `cores` have had, and
    /// within that bound it is at least what the kernel has counted.
    fn grow(&mut self, measured: UsageTotals, cores: u32) {
        self.allocated_ns = self.allocated_ns.max(measured.allocated_ns);
        let budget_ns = self.allocated_ns.saturating_mul(u64::from(cores));
        self.functions.resize(measured.functions.len().max(self.functions.len()), Share::default());
        // Earlier reports were within a smaller budget, so both remainders are at least zero.
        let mut time_left = budget_ns.saturating_sub(self.busy_ns());
        // A call takes a nanosecond at least. So no sum of calls overflows either.
        let mut calls_left = budget_ns.saturating_sub(self.calls());
        for (share, measured) in self.functions.iter_mut().zip(measured.functions) {
            grow_within(&mut share.executing_ns, measured.executing_ns, &mut time_left);
            grow_within(&mut share.calls, measured.calls, &mut calls_left);
            share.failed_calls = measured.failed_calls.min(share.calls).max(share.failed_calls);
        }
        grow_within(&mut self.polling_ns, measured.polling_ns, &mut time_left);
        self.kernel_ns = self.kernel_ns.max(measured.kernel_ns);
        let uncounted_ns = self.kernel_ns.saturating_sub(self.busy_ns());
        self.beside_ns += uncounted_ns.min(time_left);
        debug_assert!(
            self.busy_ns() <= budget_ns && self.calls() <= budget_ns,
            "{} ns were used and {} calls made, with a budget of {budget_ns} ns",
            self.busy_ns(),
            self.calls()
        );
    }

    fn executing_ns(&self) -> u64 {
        self.functions.iter().map(|share| share.executing_ns).sum::<u64>() + self.beside_ns
    }

    fn busy_ns(&self) -> u64 {
        self.executing_ns() + self.polling_ns
    }

    fn calls(&self) -> u64 {
        self.functions.iter().map(|share| share.calls).sum()
    }

    fn used(&self) -> MeasuredUsage {
        let function_usage = |(function, share): (u32, &Share)| {
            let Share { executing_ns, calls, failed_calls } = *share;
            FunctionUsage { function, executing_ns, calls, failed_calls }
        };
        let called = |(_, share): &(u32, &Share)| **share != Share::default();
        MeasuredUsage {
            usage: Usage {
                allocated_ns: self.allocated_ns,
                executing_ns: self.executing_ns(),
                polling_ns: self.polling_ns,
                calls: self.calls(),
                failed_calls: self.functions.iter().map(|share| share.failed_calls).sum(),
                memory_byte_us: self.memory_byte_us,
                memory_peak_bytes: self.memory_peak_bytes,
            },
            functions: (0..).zip(&self.functions).filter(called).map(function_usage).collect(),
            cold_imports: None,
        }
    }
}

impl SandboxCounters {
    fn of(pid: u32) -> Option<SandboxCounters> {
        Some(SandboxCounters { memory: Gauge::of(pid)?, compute: ComputeGauge::of(pid)?, before_ns: 0 })
    }

    /// Leaves out the processor time until now.
    fn without_past(self) -> SandboxCounters {
        SandboxCounters { before_ns: self.compute.read().unwrap_or(0), ..self }
    }
}

impl ProcessorTime {
    /// Begins with a new worker process, whose counter starts at zero.
    fn begin(&mut self) {
        self.latest_ns = 0;
    }

    /// Notes the processor time of the present process. A lower value than before is not a valid reading.
    fn note(&mut self, ns: u64) {
        let grown_ns = ns.saturating_sub(self.latest_ns);
        self.total_ns = self.total_ns.saturating_add(grown_ns);
        self.latest_ns = self.latest_ns.max(ns);
        debug_assert!(self.latest_ns <= self.total_ns, "a process has used more than all: {self:?}");
    }
}

impl UsedMemory {
    /// Notes the memory in use now and returns it, in bytes. Usage since the last sample counts as the mean of both
    /// samples.
    fn note(&mut self, now_ns: u64, used: MemoryUse) -> u64 {
        debug_assert!(self.looked_ns <= now_ns, "a look at {now_ns} ns after one at {}", self.looked_ns);
        let elapsed_us = now_ns.saturating_sub(self.looked_ns) / 1000;
        let mean_bytes = u64::midpoint(self.bytes, used.now_bytes);
        self.byte_us = self.byte_us.saturating_add(mean_bytes.saturating_mul(elapsed_us));
        self.peak_bytes = self.peak_bytes.max(used.peak_bytes);
        (self.looked_ns, self.bytes) = (now_ns, used.now_bytes);
        used.now_bytes
    }
}

/// Raises `value` to `measured` by at most `left`, and reduces `left` by the growth.
fn grow_within(value: &mut u64, measured: u64, left: &mut u64) {
    let growth = measured.saturating_sub(*value).min(*left);
    *value += growth;
    *left -= growth;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn measured(allocated_ns: u64, polling_ns: u64, functions: &[(u64, u64, u64)]) -> UsageTotals {
        let share = |&(executing_ns, calls, failed_calls): &_| Share { executing_ns, calls, failed_calls };
        let functions = functions.iter().map(share).collect();
        UsageTotals { allocated_ns, polling_ns, functions, ..UsageTotals::default() }
    }

    fn open(workers: u32, functions: u32) -> LeaseMeter {
        LeaseMeter::open((UsageLayout::new(workers, functions), 1), Calibration::start()).unwrap()
    }

    fn pen(meter: &LeaseMeter, worker: u32) -> usage::WorkerMeter<'_> {
        usage::WorkerMeter::new(meter.region(), meter.layout(), worker).unwrap()
    }

    #[test]
    fn what_is_plausible_is_reported_as_it_is() {
        let mut last = measured(50, 20, &[(60, 2, 0), (0, 0, 0)]);
        let now = measured(100, 40, &[(80, 3, 0), (70, 2, 1)]);
        last.grow(now.clone(), 2);
        assert_eq!(last, now);
        let usage = Usage {
            allocated_ns: 100,
            executing_ns: 150,
            polling_ns: 40,
            calls: 5,
            failed_calls: 1,
            ..Usage::default()
        };
        assert_eq!(last.used().usage, usage);
    }

    #[test]
    fn bounds_a_falsified_region_by_kernel_count_and_core_time() {
        let large = [(u64::MAX, u64::MAX), (0, u64::MAX), (u64::MAX, 0), (0, 0), (7, 13), (150, 20)];
        let small = [(0, 3), (9, 0), (0, 0), (7, 13), (150, 20), (2, 1)];
        check_lies(&large);
        check_lies(&small);
    }

    fn check_lies(lies: &[(u64, u64)]) {
        let mut reading = UsageTotals::default();
        for step in 0..200_usize {
            let before = reading.clone();
            let lie = |of: usize| lies[(step * 7 + of * of) % lies.len()];
            let functions: Vec<_> = (0..4).map(|at| (lie(at).0, lie(at).1, lie(at + 1).0)).collect();
            // Processor time that 2 cores can have used: a little more at each step, and at times less, as if counted
            // late.
            let kernel_ns = (step as u64 * 137).saturating_sub(step as u64 % 5 * 300);
            let now = measured(step as u64 * 100, lie(9).1, &functions);
            reading.grow(UsageTotals { kernel_ns, ..now }, 2);
            let MeasuredUsage { usage, functions, .. } = reading.used();
            let busy_ns = usage.executing_ns + usage.polling_ns;
            assert!(busy_ns >= kernel_ns && busy_ns >= before.kernel_ns, "{usage:?}");
            assert!(busy_ns <= usage.allocated_ns * 2, "{usage:?}");
            assert!(usage.polling_ns >= before.polling_ns);
            for (share, before) in reading.functions.iter().zip(&before.functions) {
                assert!(share.executing_ns >= before.executing_ns && share.calls >= before.calls);
                assert!(share.failed_calls >= before.failed_calls && share.failed_calls <= share.calls);
            }
            let sum = |of: fn(&FunctionUsage) -> u64| functions.iter().map(of).sum::<u64>();
            assert_eq!(sum(|function| function.executing_ns) + reading.beside_ns, usage.executing_ns);
            assert_eq!(sum(|function| function.calls), usage.calls);
            assert_eq!(sum(|function| function.failed_calls), usage.failed_calls);
        }
    }

    #[test]
    fn bills_uncounted_processor_time_to_no_function() {
        let mut reading = UsageTotals::default();
        let mut at = |kernel_ns, polling_ns, executing_ns| {
            let now = measured(1_000, polling_ns, &[(executing_ns, 1, 0)]);
            reading.grow(UsageTotals { kernel_ns, ..now }, 1);
            let used = reading.used();
            (used.usage.executing_ns, used.usage.polling_ns, used.functions[0].executing_ns)
        };
        assert_eq!(at(100, 0, 10), (100, 0, 10), "the counters say 10");
        assert_eq!(at(100, 50, 40), (130, 50, 40), "what was billed stays");
        assert_eq!(at(150, 50, 40), (130, 50, 40), "180 are billed already");
        assert_eq!(at(300, 50, 40), (250, 50, 40));
        assert_eq!(at(u64::MAX, 50, 40), (950, 50, 40), "no more than the core has had");
    }

    #[test]
    fn processor_time_adds_up_over_worker_processes_and_never_shrinks() {
        let mut compute = ProcessorTime::default();
        let mut totals = Vec::new();
        for ns in [10, 30, 0, 25, 40] {
            compute.note(ns);
            totals.push(compute.total_ns);
        }
        compute.begin();
        for ns in [0, 7, 9] {
            compute.note(ns);
            totals.push(compute.total_ns);
        }
        assert_eq!(totals, [10, 30, 30, 30, 40, 40, 47, 49]);
    }

    #[test]
    fn counts_a_call_while_it_runs_and_after_a_crash() {
        let meter = open(2, 8);
        pen(&meter, 1).enter(7, ticks(), false);
        std::thread::sleep(Duration::from_millis(5));
        let running = meter.read();
        assert!(running.usage.executing_ns >= 1_000_000 && running.usage.calls == 0, "{running:?}");
        assert_eq!(running.functions[0].function, 7);
        assert_eq!(meter.executing(), [7]);
        meter.settle().unwrap();
        let settled = meter.close();
        assert!(settled.usage.executing_ns >= running.usage.executing_ns);
        assert_eq!((settled.usage.calls, settled.usage.failed_calls), (1, 1));
        let [function] = settled.functions.as_slice() else { panic!("{settled:?}") };
        assert_eq!((function.function, function.calls, function.failed_calls), (7, 1, 1));
        assert_eq!(function.executing_ns, settled.usage.executing_ns);
        assert!(meter.executing().is_empty());
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(meter.read(), settled, "a closed meter stands still");
    }

    #[test]
    fn call_counts_for_all_cores_of_its_worker() {
        let calls = |cores_each: u32| {
            let layout = UsageLayout::new(1, 1);
            let meter = LeaseMeter::open((layout, cores_each), Calibration::start()).unwrap();
            std::thread::sleep(Duration::from_millis(2));
            let pen = pen(&meter, 0);
            let call = pen.enter(0, 0, false);
            pen.answer(&call, false);
            pen.leave(&call, 1000, 1000);
            pen.rest();
            meter.read()
        };
        let (one, three) = (calls(1), calls(3));
        assert!(one.usage.executing_ns > 0, "{one:?}");
        // The clock of each meter is calibrated anew, so their ticks differ a little.
        assert!(three.usage.executing_ns >= one.usage.executing_ns * 5 / 2, "{three:?} and {one:?}");
        assert_eq!((one.usage.calls, three.usage.calls), (1, 1));
        assert_eq!(three.functions[0].executing_ns, three.usage.executing_ns);
    }

    #[test]
    fn memory_is_counted_while_its_process_runs_and_never_less() {
        let meter = open(1, 1);
        assert_eq!(meter.look(), 0);
        meter.watch(std::process::id());
        let first = meter.look();
        assert!(first > 0, "this process has some");
        let held = vec![1_u8; 64 << 20];
        let more = meter.look();
        assert!(more >= first + (32 << 20) && held.iter().all(|&byte| byte == 1), "{first} and then {more}");
        std::thread::sleep(Duration::from_millis(2));
        meter.look();
        let MeasuredUsage { usage, .. } = meter.read();
        assert!(usage.memory_peak_bytes >= more && usage.memory_byte_us > 0, "{usage:?}");
        let most = usage.memory_peak_bytes * (usage.allocated_ns / 1000 + 1);
        assert!(usage.memory_byte_us <= most, "no longer than the lease is there: {usage:?}");
        meter.settle().unwrap();
        meter.look();
        let ended = meter.read().usage;
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(meter.look(), 0);
        let later = meter.read().usage;
        let memory = |usage: &Usage| (usage.memory_byte_us, usage.memory_peak_bytes);
        assert_eq!(memory(&later), memory(&ended), "nothing is used when there is no process");
    }

    #[test]
    fn functions_are_counted_apart_over_all_workers() {
        let meter = open(2, 3);
        std::thread::sleep(Duration::from_millis(2));
        for (worker, function, ticks) in [(0, 0, 100), (0, 2, 200), (1, 2, 300), (1, 9, 400)] {
            let pen = pen(&meter, worker);
            let call = pen.enter(function, 0, false);
            pen.answer(&call, function == 9);
            pen.leave(&call, ticks, ticks);
            pen.rest();
        }
        let used = meter.read();
        let calls: Vec<_> = used.functions.iter().map(|used| (used.function, used.calls)).collect();
        assert_eq!(calls, [(0, 1), (2, 2), (3, 1)], "function 9 does not exist");
        assert_eq!((used.usage.calls, used.usage.failed_calls), (4, 1));
    }

    #[test]
    fn running_ended_and_rejected_calls_count_as_activity() {
        let meter = open(1, 2);
        let idle = meter.activity();
        assert_eq!(idle, Activity { calls: 0, executing: false });
        let pen = pen(&meter, 0);
        let call = pen.enter(1, ticks(), false);
        assert_eq!(meter.activity(), Activity { calls: 0, executing: true });
        pen.answer(&call, false);
        pen.leave(&call, ticks(), 1);
        assert_eq!(meter.activity(), Activity { calls: 1, executing: false }, "polling is idle");
        pen.sleep();
        pen.reject();
        assert_eq!(meter.activity(), Activity { calls: 2, executing: false });
        assert_eq!(meter.read().usage.calls, 1, "what is rejected is no call");
    }
}
