//! What a lease has used: read from its usage region, bounded by what the agent itself has measured.
//!
//! The region lies in the worker's memory, where a function could falsify it. So what is reported never shrinks,
//! and executing and polling together never exceed the lease's cores times the time it has held them; that time is
//! the agent's own. A closed meter stands still.

use std::sync::Mutex;

use sublet_fabric::clock::{Calibration, monotonic_ns, ticks};
use sublet_fabric::region::Region;
use sublet_proto::Error;
use sublet_proto::v1::Usage;
use sublet_runtime::wire::usage::{self, WorkerState};

use crate::lock;

/// The account of one lease, from the reservation of its resources until they are free again.
pub(crate) struct Meter {
    region: Region,
    cores: u32,
    calibration: Calibration,
    opened_ns: u64,
    reading: Mutex<Reading>,
}

#[derive(Default)]
struct Reading {
    last: Usage,
    closed: bool,
}

impl Meter {
    /// Begins to count.
    pub(crate) fn open(cores: u32, calibration: Calibration) -> Result<Meter, Error> {
        let region = Region::create("sublet-usage", usage::region_bytes(cores))?;
        let reading = Mutex::default();
        Ok(Meter { region, cores, calibration, opened_ns: monotonic_ns(), reading })
    }

    /// What the workers write; theirs and the agent's alone.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Cumulative usage, what is going on now included.
    pub(crate) fn read(&self) -> Usage {
        self.refresh(&mut lock(&self.reading))
    }

    /// The last reading; from now on it is all there is.
    pub(crate) fn close(&self) -> Usage {
        let mut reading = lock(&self.reading);
        let usage = self.refresh(&mut reading);
        reading.closed = true;
        usage
    }

    /// The indexes of the functions that are being executed, or were when the worker process died.
    pub(crate) fn executing(&self) -> Vec<u32> {
        let workers = (0..self.cores).map(|worker| usage::read(&self.region, worker));
        workers
            .filter(|worker| worker.state == WorkerState::Executing)
            .map(|worker| worker.function)
            .collect()
    }

    /// Closes the accounts of a worker process that has ended: nothing goes on in it any more.
    pub(crate) fn settle(&self) -> Result<(), Error> {
        let now = ticks();
        (0..self.cores).try_for_each(|worker| Ok(usage::settle(&self.region, worker, now)?))
    }

    fn refresh(&self, reading: &mut Reading) -> Usage {
        if !reading.closed {
            let allocated_ns = monotonic_ns().saturating_sub(self.opened_ns);
            reading.last = bounded(self.measure(allocated_ns), &reading.last, self.cores);
        }
        reading.last
    }

    fn measure(&self, allocated_ns: u64) -> Usage {
        let (now, ticks_per_ns) = (ticks(), self.calibration.ticks_per_ns());
        // Saturates, as a conversion from float does.
        let to_ns = |ticks: u64| (ticks as f64 / ticks_per_ns) as u64;
        let mut sum = Usage { allocated_ns, ..Usage::default() };
        for worker in 0..self.cores {
            let line = usage::read(&self.region, worker);
            let (executing, polling) = line.at(now);
            sum.executing_ns = sum.executing_ns.saturating_add(to_ns(executing));
            sum.polling_ns = sum.polling_ns.saturating_add(to_ns(polling));
            sum.calls = sum.calls.saturating_add(line.calls);
            sum.failed_calls = sum.failed_calls.saturating_add(line.failed_calls);
        }
        sum
    }
}

/// `measured`, but nothing less than `last`, and no more time than `cores` have had.
fn bounded(measured: Usage, last: &Usage, cores: u32) -> Usage {
    let allocated_ns = measured.allocated_ns.max(last.allocated_ns);
    let budget_ns = allocated_ns.saturating_mul(u64::from(cores));
    // `last` was within a smaller budget, so both upper bounds are at least what was reported before.
    let executing_ns =
        measured.executing_ns.min(budget_ns.saturating_sub(last.polling_ns)).max(last.executing_ns);
    let polling_ns = measured.polling_ns.min(budget_ns.saturating_sub(executing_ns)).max(last.polling_ns);
    let calls = measured.calls.max(last.calls);
    let failed_calls = measured.failed_calls.min(calls).max(last.failed_calls);
    Usage { allocated_ns, executing_ns, polling_ns, calls, failed_calls }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn usage(allocated_ns: u64, executing_ns: u64, polling_ns: u64, calls: u64, failed_calls: u64) -> Usage {
        Usage { allocated_ns, executing_ns, polling_ns, calls, failed_calls }
    }

    #[test]
    fn what_is_plausible_is_reported_as_it_is() {
        let measured = usage(100, 150, 40, 5, 1);
        assert_eq!(bounded(measured, &usage(50, 60, 20, 2, 0), 2), measured);
    }

    #[test]
    fn a_falsified_region_cannot_exceed_the_time_of_the_cores_or_take_anything_back() {
        let mut last = Usage::default();
        let lies = [(u64::MAX, u64::MAX), (0, u64::MAX), (u64::MAX, 0), (0, 0), (7, 13)];
        for (step, (executing, polling)) in lies.into_iter().cycle().take(50).enumerate() {
            let now = bounded(usage(step as u64 * 100, executing, polling, executing, polling), &last, 2);
            assert!(now.executing_ns + now.polling_ns <= now.allocated_ns * 2, "{now:?}");
            assert!(now.executing_ns >= last.executing_ns && now.polling_ns >= last.polling_ns, "{now:?}");
            assert!(now.calls >= last.calls && now.failed_calls <= now.calls, "{now:?}");
            last = now;
        }
    }

    #[test]
    fn a_call_is_counted_while_it_runs_and_when_its_worker_dies() {
        let meter = Meter::open(2, Calibration::start()).unwrap();
        usage::Meter::new(meter.region(), 1).unwrap().enter(7, sublet_fabric::clock::ticks(), false);
        std::thread::sleep(Duration::from_millis(5));
        let running = meter.read();
        assert!(running.executing_ns >= 1_000_000 && running.calls == 0, "{running:?}");
        assert_eq!(meter.executing(), [7]);
        meter.settle().unwrap();
        let settled = meter.close();
        assert!(settled.executing_ns >= running.executing_ns);
        assert_eq!((settled.calls, settled.failed_calls), (1, 1));
        assert!(meter.executing().is_empty());
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(meter.read(), settled, "a closed meter stands still");
    }
}
