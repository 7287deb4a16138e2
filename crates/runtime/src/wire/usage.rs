//! The usage region: what each worker has done with its time, kept by itself, read by its agent.
//!
//! One cache line for each worker, in a region that client and other leases cannot reach. The worker adds up ticks
//! after each call; between calls `state` and `since_ticks` let the agent account for what is still going on, so
//! that neither a long function nor a sudden death escapes the bill. After a death they tell what was being executed.
//!
//! The line lies in the worker's memory: a function that knows where could falsify it. The agent therefore never
//! bills more than wall time allows, and allocated time is measured by the agent alone.

use sublet_fabric::FabricError;
use sublet_fabric::clock::ticks;
use sublet_fabric::line::LINE_BYTES;
use sublet_fabric::region::{Region, page_align};
use sublet_fabric::sync::{AtomicU64, Ordering};

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WorkerState {
    /// Blocked until the next call (warm). Costs nothing but the allocation.
    Sleeping = 0,
    /// Looking for the next call (hot).
    Polling = 1,
    /// In a function.
    Executing = 2,
    /// Publishing the result of a call, which is counted already.
    Answering = 3,
}

/// A reading of one worker's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerUsage {
    /// What it is doing now,
    pub state: WorkerState,
    /// in which function, if executing,
    pub function: u32,
    /// and since when, in ticks.
    pub since_ticks: u64,
    /// Ticks in functions that have returned.
    pub executing_ticks: u64,
    /// Ticks of polling that has ended.
    pub polling_ticks: u64,
    /// Calls that have ended.
    pub calls: u64,
    /// Those among them that ended with an error.
    pub failed_calls: u64,
}

impl WorkerUsage {
    /// Executing and polling ticks, what is going on at `now_ticks` included.
    pub fn at(&self, now_ticks: u64) -> (u64, u64) {
        let current = now_ticks.saturating_sub(self.since_ticks);
        match self.state {
            WorkerState::Sleeping => (self.executing_ticks, self.polling_ticks),
            WorkerState::Polling => (self.executing_ticks, self.polling_ticks.saturating_add(current)),
            WorkerState::Executing | WorkerState::Answering => {
                (self.executing_ticks.saturating_add(current), self.polling_ticks)
            }
        }
    }
}

const STATE: u64 = 0;
const SINCE: u64 = 8;
const EXECUTING: u64 = 16;
const POLLING: u64 = 24;
const CALLS: u64 = 32;
const FAILED: u64 = 40;

/// Size of the usage region of so many workers.
pub fn region_bytes(workers: u32) -> u64 {
    page_align(u64::from(workers) * LINE_BYTES).unwrap_or(u64::MAX)
}

/// The line of one worker; all zero if the region has no such worker.
pub fn read(region: &Region, worker: u32) -> WorkerUsage {
    let at = u64::from(worker) * LINE_BYTES;
    let word = |offset| region.view::<AtomicU64>(at + offset).map_or(0, |word| word.load(Ordering::Acquire));
    let state = word(STATE);
    WorkerUsage {
        state: match state as u32 {
            1 => WorkerState::Polling,
            2 => WorkerState::Executing,
            3 => WorkerState::Answering,
            _ => WorkerState::Sleeping,
        },
        function: (state >> 32) as u32,
        since_ticks: word(SINCE),
        executing_ticks: word(EXECUTING),
        polling_ticks: word(POLLING),
        calls: word(CALLS),
        failed_calls: word(FAILED),
    }
}

/// Closes the account of a worker that has died: what was going on is added up, and it sleeps.
pub fn settle(region: &Region, worker: u32, now_ticks: u64) -> Result<(), FabricError> {
    let usage = read(region, worker);
    let (executing, polling) = usage.at(now_ticks);
    let meter = Meter::new(region, worker)?;
    meter.executing.store(executing, Ordering::Release);
    meter.polling.store(polling, Ordering::Release);
    if usage.state == WorkerState::Executing {
        add(meter.calls, 1);
        add(meter.failed, 1);
    }
    meter.state.store(WorkerState::Sleeping as u64, Ordering::Release);
    Ok(())
}

/// The worker's own pen. All stores are to one line that nobody else writes: plain, and never waited for.
pub struct Meter<'region> {
    state: &'region AtomicU64,
    since: &'region AtomicU64,
    executing: &'region AtomicU64,
    polling: &'region AtomicU64,
    calls: &'region AtomicU64,
    failed: &'region AtomicU64,
}

#[inline(always)]
fn add(word: &AtomicU64, value: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(value), Ordering::Release);
}

impl<'region> Meter<'region> {
    /// Of one worker.
    pub fn new(region: &'region Region, worker: u32) -> Result<Meter<'region>, FabricError> {
        let at = u64::from(worker) * LINE_BYTES;
        let word = |offset| {
            let out_of_bounds = FabricError::OutOfBounds { region: 0, offset: at + offset, len_bytes: 8 };
            region.view(at + offset).ok_or(out_of_bounds)
        };
        Ok(Meter {
            state: word(STATE)?,
            since: word(SINCE)?,
            executing: word(EXECUTING)?,
            polling: word(POLLING)?,
            calls: word(CALLS)?,
            failed: word(FAILED)?,
        })
    }

    /// The worker begins to poll. Returns the time.
    pub fn poll(&self) -> u64 {
        let now = ticks();
        self.since.store(now, Ordering::Release);
        self.state.store(WorkerState::Polling as u64, Ordering::Release);
        now
    }

    /// The worker stops polling and sleeps.
    pub fn sleep(&self) {
        add(self.polling, ticks().saturating_sub(self.since.load(Ordering::Relaxed)));
        self.state.store(WorkerState::Sleeping as u64, Ordering::Release);
    }

    /// The worker goes to sleep without having polled.
    pub fn rest(&self) {
        self.state.store(WorkerState::Sleeping as u64, Ordering::Release);
    }

    /// A call begins at this time, after polling or (`was_polling` false) after sleep.
    #[inline(always)]
    pub fn enter(&self, function: u16, now_ticks: u64, was_polling: bool) {
        if was_polling {
            add(self.polling, now_ticks.saturating_sub(self.since.load(Ordering::Relaxed)));
        }
        self.since.store(now_ticks, Ordering::Release);
        self.state.store(u64::from(function) << 32 | WorkerState::Executing as u64, Ordering::Release);
    }

    /// The function has returned. The call is counted before its client knows the result: a client that then gives
    /// its lease back, and so ends this process, finds it on the bill as it was.
    #[inline(always)]
    pub fn answer(&self, failed: bool) {
        self.state.store(WorkerState::Answering as u64, Ordering::Release);
        add(self.calls, 1);
        if failed {
            add(self.failed, 1);
        }
    }

    /// The call has ended at this time, after so many ticks; the worker polls.
    #[inline(always)]
    pub fn leave(&self, now_ticks: u64, spent_ticks: u64) {
        add(self.executing, spent_ticks);
        self.since.store(now_ticks, Ordering::Release);
        self.state.store(WorkerState::Polling as u64, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_accounted_to_what_it_was_spent_on() {
        let region = Region::create("usage", region_bytes(2)).unwrap();
        let meter = Meter::new(&region, 1).unwrap();
        meter.poll();
        let entered = ticks();
        meter.enter(7, entered, true);
        let usage = read(&region, 1);
        assert_eq!((usage.state, usage.function, usage.calls), (WorkerState::Executing, 7, 0));
        assert!(usage.polling_ticks > 0);
        meter.answer(true);
        meter.leave(entered + 500, 500);
        meter.sleep();
        let usage = read(&region, 1);
        assert_eq!((usage.state, usage.executing_ticks), (WorkerState::Sleeping, 500));
        assert_eq!((usage.calls, usage.failed_calls), (1, 1));
        assert_eq!(usage.at(u64::MAX), (usage.executing_ticks, usage.polling_ticks), "sleep is free");
        assert_eq!(read(&region, 0).calls, 0, "the other worker's line is untouched");
    }

    #[test]
    fn a_death_after_the_answer_does_not_make_the_call_a_failure() {
        let region = Region::create("usage", region_bytes(1)).unwrap();
        let (meter, entered) = (Meter::new(&region, 0).unwrap(), ticks());
        meter.enter(3, entered, false);
        meter.answer(false);
        settle(&region, 0, entered + 1000).unwrap();
        let usage = read(&region, 0);
        assert_eq!((usage.executing_ticks, usage.calls, usage.failed_calls), (1000, 1, 0));
    }

    #[test]
    fn a_call_cut_short_by_death_is_settled() {
        let region = Region::create("usage", region_bytes(1)).unwrap();
        let entered = ticks();
        Meter::new(&region, 0).unwrap().enter(3, entered, false);
        settle(&region, 0, entered + 1000).unwrap();
        let usage = read(&region, 0);
        assert_eq!(
            (usage.state, usage.executing_ticks, usage.failed_calls),
            (WorkerState::Sleeping, 1000, 1)
        );
    }
}
