//! Defines the usage region: the times of each worker's activities, recorded by the worker, read by its agent.
//!
//! Each worker has a line, and behind it an entry for each function of the package and one more for calls of functions
//! that do not exist. The region is out of reach of the client and other leases. After each call the worker adds its
//! ticks to the function's entry; the sum of the entries is the worker's total. Between calls `state` and `since_ticks`
//! let the agent account for the current activity, so that neither a long function nor a sudden death escapes the bill.
//! After a death they show what was being executed.
//!
//! | part | bytes | content |
//! |---|---|---|
//! | line | 0-7 | State (low 32 bits). Function being executed (high 32 bits). |
//! | | 8-15 | Start of the state, in ticks. |
//! | | 16-23 | Ticks of completed polling. |
//! | | 24-31 | Number of rejected requests. For each, the core was taken. |
//! | entry of a function | 0-7 | Ticks in calls that have ended. |
//! | | 8-15, 16-23 | Number of calls that have ended. Number of those that failed. |
//!
//! Only the worker writes to its part, and the agent once the worker is dead. The region is mapped in the worker's
//! memory: a function that knows the address could falsify it. The agent therefore never bills more than wall time
//! allows, and measures the allocated time itself.

use sublet_fabric::FabricError;
use sublet_fabric::clock::ticks;
use sublet_fabric::line::LINE_BYTES;
use sublet_fabric::region::{Region, page_align};
use sublet_fabric::sync::{AtomicU64, Ordering};
use sublet_proto::package::MAX_FUNCTIONS;

/// Activity of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WorkerState {
    /// Blocked until the next call (warm). Costs nothing but the allocation.
    Sleeping = 0,
    /// Looking for the next call (hot).
    Polling = 1,
    /// Executing a function.
    Executing = 2,
    /// Publishing the result of a call, which is counted already.
    Answering = 3,
}

/// Layout of a usage region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageLayout {
    workers: u32,
    functions: u32,
}

/// Distance that keeps two workers' writes apart, in bytes: a pair of cache lines, which processors fetch together.
const APART_BYTES: u64 = 2 * LINE_BYTES;
const PLACE_WORDS: usize = 4;
const PLACE_BYTES: u64 = 8 * PLACE_WORDS as u64;

impl UsageLayout {
    /// A layout for this number of workers, and of functions of their package. 0 functions stands for the most that a
    /// package may have.
    pub fn new(workers: u32, functions: u32) -> UsageLayout {
        #[expect(clippy::cast_possible_truncation, reason = "a small constant")]
        let most = MAX_FUNCTIONS as u32;
        UsageLayout { workers, functions: if functions == 0 { most } else { functions.min(most) } }
    }

    /// Number of workers.
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// Number of functions.
    pub fn functions(&self) -> u32 {
        self.functions
    }

    /// Size of the region; that of a lease without workers has a page, too.
    pub fn len_bytes(&self) -> u64 {
        page_align((u64::from(self.workers) * self.stride()).max(1)).unwrap_or(u64::MAX)
    }

    /// Places of each worker: the functions', and the last for calls of functions that there are not.
    fn places(&self) -> usize {
        self.functions as usize + 1
    }

    fn stride(&self) -> u64 {
        (LINE_BYTES + self.places() as u64 * PLACE_BYTES).next_multiple_of(APART_BYTES)
    }

    fn line<'region>(&self, region: &'region Region, worker: u32) -> Option<&'region Line> {
        region.view(u64::from(worker) * self.stride())
    }

    fn place_list<'region>(&self, region: &'region Region, worker: u32) -> Option<&'region [Place]> {
        region.views(u64::from(worker) * self.stride() + LINE_BYTES, self.places())
    }
}

type Line = [AtomicU64; (LINE_BYTES / 8) as usize];
const STATE: usize = 0;
const SINCE: usize = 1;
const POLLING: usize = 2;
const REJECTED: usize = 3;

type Place = [AtomicU64; PLACE_WORDS];
const EXECUTING: usize = 0;
const CALLS: usize = 1;
const FAILED: usize = 2;

/// A reading of one worker's line. It never exceeds the real usage: the current activity is read after the completed
/// ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerUsage {
    /// Current activity of the worker.
    pub state: WorkerState,
    /// Index of the function that is executed, if one is.
    pub function: u32,
    /// Start of the current activity, in ticks.
    pub since_ticks: u64,
    /// Ticks of polling that has ended.
    pub polling_ticks: u64,
    /// Requests that it rejected because its core was taken.
    pub rejected: u64,
}

/// A reading of one function's place, of one worker or added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionTally {
    /// Ticks in calls that have ended.
    pub executing_ticks: u64,
    /// Calls that have ended.
    pub calls: u64,
    /// Calls among `calls` that ended with an error.
    pub failed_calls: u64,
}

impl WorkerUsage {
    /// Ticks of polling, with the current activity until `now_ticks`.
    pub fn polling_at(&self, now_ticks: u64) -> u64 {
        let going_on = self.state == WorkerState::Polling;
        self.polling_ticks.saturating_add(if going_on { self.current(now_ticks) } else { 0 })
    }

    /// The function that is being executed, and for how long at `now_ticks`.
    pub fn executing_at(&self, now_ticks: u64) -> Option<(u32, u64)> {
        let going_on = matches!(self.state, WorkerState::Executing | WorkerState::Answering);
        going_on.then(|| (self.function, self.current(now_ticks)))
    }

    fn current(&self, now_ticks: u64) -> u64 {
        now_ticks.saturating_sub(self.since_ticks)
    }
}

/// Adds a worker's usage to the tallies of the functions, one for each and a last one for calls of functions that do
/// not exist. Returns the reading of its line. All zero if the region has no such worker.
pub fn read(region: &Region, layout: UsageLayout, worker: u32, tallies: &mut [FunctionTally]) -> WorkerUsage {
    let word = |word: &AtomicU64| word.load(Ordering::Acquire);
    // A call ends by being added and then by a change of state: read in the same order, it may be missed for now, but
    // never be found twice.
    for (tally, place) in tallies.iter_mut().zip(layout.place_list(region, worker).unwrap_or_default()) {
        tally.executing_ticks = tally.executing_ticks.saturating_add(word(&place[EXECUTING]));
        tally.calls = tally.calls.saturating_add(word(&place[CALLS]));
        tally.failed_calls = tally.failed_calls.saturating_add(word(&place[FAILED]));
    }
    read_line(region, layout, worker)
}

/// The reading of one worker's line alone.
pub fn read_line(region: &Region, layout: UsageLayout, worker: u32) -> WorkerUsage {
    let line = layout.line(region, worker);
    let word = |index: usize| line.map_or(0, |line| line[index].load(Ordering::Acquire));
    let (polling_ticks, rejected, state) = (word(POLLING), word(REJECTED), word(STATE));
    WorkerUsage {
        state: match state & 0xffff_ffff {
            1 => WorkerState::Polling,
            2 => WorkerState::Executing,
            3 => WorkerState::Answering,
            _ => WorkerState::Sleeping,
        },
        function: ((state >> 32) as u32).min(layout.functions),
        since_ticks: word(SINCE),
        polling_ticks,
        rejected,
    }
}

/// Closes the account of a worker that has died: adds the current activity up, and sets the state to sleeping.
pub fn settle(region: &Region, layout: UsageLayout, worker: u32, now_ticks: u64) -> Result<(), FabricError> {
    let usage = read_line(region, layout, worker);
    let meter = WorkerMeter::new(region, layout, worker)?;
    meter.line[POLLING].store(usage.polling_at(now_ticks), Ordering::Release);
    if let Some((function, ticks)) = usage.executing_at(now_ticks) {
        let call = meter.call(function);
        if usage.state == WorkerState::Executing {
            meter.answer(&call, true);
        }
        add(&call.place[EXECUTING], ticks);
    }
    meter.rest();
    Ok(())
}

/// A call that is being executed, with the entry in which it is counted.
pub struct CountedCall<'region> {
    place: &'region Place,
    function: u32,
}

/// Writer of one worker's line. No other process writes to it, so all stores are plain and never waited for.
pub struct WorkerMeter<'region> {
    line: &'region Line,
    functions: &'region [Place],
    /// Entry for calls of functions that do not exist.
    unknown: &'region Place,
}

#[inline(always)]
fn add(word: &AtomicU64, value: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(value), Ordering::Release);
}

impl<'region> WorkerMeter<'region> {
    /// Creates the writer of one worker's line.
    pub fn new(
        region: &'region Region,
        layout: UsageLayout,
        worker: u32,
    ) -> Result<WorkerMeter<'region>, FabricError> {
        let offset = u64::from(worker) * layout.stride();
        let outside = FabricError::OutOfBounds { region: 0, offset, len_bytes: layout.stride() };
        let places = layout.place_list(region, worker).and_then(<[Place]>::split_last);
        match (layout.line(region, worker), places) {
            (Some(line), Some((unknown, functions))) => Ok(WorkerMeter { line, functions, unknown }),
            _ => Err(outside),
        }
    }

    /// The worker begins to poll. Returns the time.
    pub fn poll(&self) -> u64 {
        let now = ticks();
        self.begin_polling(now);
        now
    }

    /// The worker stops polling and sleeps.
    pub fn sleep(&self) {
        self.end_polling(ticks());
        self.rest();
    }

    /// Records that the worker goes to sleep without having polled.
    pub fn rest(&self) {
        self.state(WorkerState::Sleeping as u64);
    }

    /// The worker rejects a request, and sleeps.
    pub fn reject(&self) {
        add(&self.line[REJECTED], 1);
    }

    /// A call begins at this time, after polling or (`was_polling` false) after sleep.
    #[inline(always)]
    pub fn enter(&self, function: u16, now_ticks: u64, was_polling: bool) -> CountedCall<'region> {
        if was_polling {
            self.end_polling(now_ticks);
        }
        self.line[SINCE].store(now_ticks, Ordering::Release);
        self.state(u64::from(function) << 32 | WorkerState::Executing as u64);
        self.call(function.into())
    }

    /// The function has returned. The call is counted before its client knows the result: a client that then gives
    /// its lease back, and so ends this process, finds it on the bill as it was.
    #[inline(always)]
    pub fn answer(&self, call: &CountedCall<'_>, failed: bool) {
        self.state(u64::from(call.function) << 32 | WorkerState::Answering as u64);
        add(&call.place[CALLS], 1);
        if failed {
            add(&call.place[FAILED], 1);
        }
    }

    /// Records the end of a call at `now_ticks`, after `spent_ticks`. The worker polls from then on.
    #[inline(always)]
    pub fn leave(&self, call: &CountedCall<'_>, now_ticks: u64, spent_ticks: u64) {
        add(&call.place[EXECUTING], spent_ticks);
        self.begin_polling(now_ticks);
    }

    #[inline(always)]
    fn call(&self, function: u32) -> CountedCall<'region> {
        CountedCall { place: self.functions.get(function as usize).unwrap_or(self.unknown), function }
    }

    #[inline(always)]
    fn begin_polling(&self, now_ticks: u64) {
        self.line[SINCE].store(now_ticks, Ordering::Release);
        self.state(WorkerState::Polling as u64);
    }

    #[inline(always)]
    fn end_polling(&self, now_ticks: u64) {
        let since = self.line[SINCE].load(Ordering::Relaxed);
        add(&self.line[POLLING], now_ticks.saturating_sub(since));
    }

    #[inline(always)]
    fn state(&self, state: u64) {
        self.line[STATE].store(state, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(layout: UsageLayout) -> Region {
        Region::create("usage", layout.len_bytes()).unwrap()
    }

    fn read_all(region: &Region, layout: UsageLayout, worker: u32) -> (WorkerUsage, Vec<FunctionTally>) {
        let mut tallies = vec![FunctionTally::default(); layout.places()];
        (read(region, layout, worker, &mut tallies), tallies)
    }

    fn tally(executing_ticks: u64, calls: u64, failed_calls: u64) -> FunctionTally {
        FunctionTally { executing_ticks, calls, failed_calls }
    }

    #[test]
    fn accounts_time_to_activity_and_function() {
        let layout = UsageLayout::new(2, 3);
        let region = region(layout);
        let meter = WorkerMeter::new(&region, layout, 1).unwrap();
        meter.poll();
        let entered = ticks();
        let call = meter.enter(2, entered, true);
        let (usage, tallies) = read_all(&region, layout, 1);
        assert_eq!((usage.state, usage.function), (WorkerState::Executing, 2));
        assert_eq!(usage.executing_at(entered + 9), Some((2, 9)));
        assert_eq!(tallies, [FunctionTally::default(); 4], "the call has not ended");
        meter.answer(&call, true);
        assert_eq!(read_all(&region, layout, 1).0.function, 2);
        meter.leave(&call, entered + 500, 500);
        meter.sleep();
        let (usage, tallies) = read_all(&region, layout, 1);
        assert_eq!(usage.state, WorkerState::Sleeping);
        assert!(usage.polling_ticks > 0);
        let sleeping = (usage.polling_at(u64::MAX), usage.executing_at(u64::MAX));
        assert_eq!(sleeping, (usage.polling_ticks, None), "sleep is free");
        assert_eq!(tallies[2], tally(500, 1, 1));
        assert_eq!(
            read_all(&region, layout, 0).1,
            [FunctionTally::default(); 4],
            "the other worker's are untouched"
        );
    }

    #[test]
    fn unknown_functions_are_counted_in_the_last_entry_only() {
        let layout = UsageLayout::new(2, 1);
        let region = region(layout);
        let meter = WorkerMeter::new(&region, layout, 0).unwrap();
        for function in [1, 2, u16::MAX] {
            let call = meter.enter(function, 10, false);
            meter.answer(&call, true);
            meter.leave(&call, 15, 5);
        }
        assert_eq!(read_all(&region, layout, 0).1, [tally(0, 0, 0), tally(15, 3, 3)]);
        meter.enter(u16::MAX, 20, false);
        settle(&region, layout, 0, 25).unwrap();
        assert_eq!(read_all(&region, layout, 0).1[1], tally(20, 4, 4));
        assert_eq!(read_all(&region, layout, 1).1, [FunctionTally::default(); 2]);
    }

    #[test]
    fn death_after_the_answer_is_no_failed_call() {
        let layout = UsageLayout::new(1, 4);
        let region = region(layout);
        let (meter, entered) = (WorkerMeter::new(&region, layout, 0).unwrap(), ticks());
        let call = meter.enter(3, entered, false);
        meter.answer(&call, false);
        settle(&region, layout, 0, entered + 1000).unwrap();
        assert_eq!(read_all(&region, layout, 0).1[3], tally(1000, 1, 0));
    }

    #[test]
    fn a_call_cut_short_by_death_is_settled() {
        let layout = UsageLayout::new(1, 4);
        let region = region(layout);
        let entered = ticks();
        WorkerMeter::new(&region, layout, 0).unwrap().enter(3, entered, false);
        settle(&region, layout, 0, entered + 1000).unwrap();
        let (usage, tallies) = read_all(&region, layout, 0);
        assert_eq!((usage.state, tallies[3]), (WorkerState::Sleeping, tally(1000, 1, 1)));
        settle(&region, layout, 0, entered + 2000).unwrap();
        assert_eq!(read_all(&region, layout, 0).1[3], tally(1000, 1, 1), "once");
    }

    #[test]
    fn layouts_fit_their_region_with_bounded_functions() {
        for (workers, functions) in [(1, 1), (2, 3), (7, 1024), (3, 0), (2, u32::MAX)] {
            let layout = UsageLayout::new(workers, functions);
            assert!((1..=MAX_FUNCTIONS as u32).contains(&layout.functions()));
            let region = region(layout);
            assert!(WorkerMeter::new(&region, layout, workers - 1).is_ok());
        }
        let layout = UsageLayout::new(64, 1024);
        assert!(WorkerMeter::new(&region(layout), layout, 64).is_err());
    }
}
