//! Serves the page faults of an array: a thread of its own, which decides under a lock and acts outside of it.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use sublet_fabric::faults::{PageFaults, Touch, Writing};
use sublet_fabric::stretch::Stretch;
use sublet_proto::{Error, to_usize};

use super::backing::Backing;
use super::book::{NeededMemory, PageBook};
use super::eviction::Eviction;
use super::fault_handling::{FaultCase, FaultStep};
use super::follow::Follow;
use super::plan::SwapPlan;
use super::statistics::SwapStatistics;
use super::units::{BLOCK_PAGES, PAGE_BYTES, PageSpan};
use crate::lease::link::lock;

/// Longest wait for another thread that frees memory, before the fault is judged again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Memory and handlers of an array.
pub(super) struct PagerParts {
    pub(super) faults: PageFaults,
    pub(super) array: Stretch,
    /// Slots through which regions are paged in and out.
    pub(super) slots: Stretch,
    /// Blocks that are being paged out, each at its own offset.
    pub(super) aside: Stretch,
    /// A page that is touched only to wake the pager at the end.
    pub(super) bell: Stretch,
    pub(super) backing: Box<dyn Backing>,
}

thread_local! {
    /// Set for threads that page memory in and out.
    static IS_PAGING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread pages memory in or out: it would wait for itself if it touched swapped memory.
pub(crate) fn is_paging() -> bool {
    IS_PAGING.get()
}

/// Runs `what` as a paging thread: memory that it allocates is not swapped.
pub(crate) fn as_paging<T>(what: impl FnOnce() -> T) -> T {
    let before = IS_PAGING.replace(true);
    let done = what();
    IS_PAGING.set(before);
    done
}

/// This thread does from now on.
pub(super) fn begin_paging() {
    IS_PAGING.set(true);
}

/// See the [module](self).
pub(super) struct Pager {
    pub(super) parts: PagerParts,
    pager_state: Mutex<PagerState>,
    /// Signalled when a helper has a task.
    work: Condvar,
    /// Signalled when a unit that a thread waits for is settled.
    settled: Condvar,
    why: OnceLock<Error>,
}

/// State that the lock guards.
pub(super) struct PagerState {
    pub(super) book: PageBook,
    idle_helpers: usize,
    who_wait: usize,
}

impl std::fmt::Debug for Pager {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pager").field("array", &self.parts.array).finish_non_exhaustive()
    }
}

impl Pager {
    pub(super) fn new(plan: &SwapPlan, parts: PagerParts) -> Pager {
        let pager_state = Mutex::new(PagerState { book: PageBook::new(plan), idle_helpers: 0, who_wait: 0 });
        let (work, settled, why) = (Condvar::new(), Condvar::new(), OnceLock::new());
        Pager { parts, pager_state, work, settled, why }
    }

    /// Sees to faults until the bell is rung.
    pub(super) fn run(&self) {
        begin_paging();
        let _guard = EndsTheProcess;
        let mut follow = Follow::new();
        let mut buffer = vec![0; to_usize(BLOCK_PAGES * PAGE_BYTES)];
        loop {
            let fault = match self.parts.faults.next() {
                Ok(fault) => fault,
                Err(error) => end_the_process(&error),
            };
            if self.parts.bell.offset_of(fault.address).is_some() {
                let page = &buffer[..to_usize(PAGE_BYTES)];
                if let Err(error) = self.parts.faults.fill(&self.parts.bell, 0, page, Writing::Allowed) {
                    self.fail(error.into());
                }
                return;
            }
            if let Some(offset) = self.parts.array.offset_of(fault.address) {
                follow.saw(fault.thread);
                self.see_to(offset / PAGE_BYTES, fault.touch, &mut buffer);
            }
        }
    }

    fn see_to(&self, page: u64, touch: Touch, buffer: &mut [u8]) {
        let mut case = FaultCase::new(page, touch, self.parts.faults.can_shift());
        loop {
            case.is_lost = self.is_lost();
            let step = self.pager_state().book.judge(&mut case);
            match step {
                FaultStep::Wait => {}
                FaultStep::Wake(span) => self.wake(span),
                FaultStep::Allow(span) => self.allow(span),
                FaultStep::Lose(span) => self.lose(span),
                FaultStep::Fill(fill) => self.fill(&fill, buffer),
                FaultStep::Take(load) => self.take(load),
                FaultStep::Load(load) => self.load_and_take(load),
                FaultStep::FreeMemory(want) => {
                    self.free_memory(want);
                    continue;
                }
            }
            return self.call_helpers(self.pager_state());
        }
    }

    pub(super) fn pager_state(&self) -> MutexGuard<'_, PagerState> {
        lock(&self.pager_state)
    }

    /// Wakes one that is idle if there is something to do.
    fn call_helpers(&self, pager_state: MutexGuard<'_, PagerState>) {
        let has_work = pager_state.idle_helpers > 0
            && (!pager_state.book.loads.is_empty() || pager_state.book.lacks().is_some());
        drop(pager_state);
        if has_work {
            self.work.notify_one();
        }
    }

    /// Waits for the next task of a helper. `None` if the array is gone.
    pub(super) fn next_task<T>(&self, next: impl Fn(&mut PageBook) -> Option<T>) -> Option<T> {
        let mut pager_state = self.pager_state();
        loop {
            if pager_state.book.is_closed {
                return None;
            }
            if !self.is_lost()
                && let Some(task) = next(&mut pager_state.book)
            {
                return Some(task);
            }
            pager_state.idle_helpers += 1;
            pager_state = self.work.wait(pager_state).unwrap_or_else(|poisoned| poisoned.into_inner());
            pager_state.idle_helpers -= 1;
        }
    }

    /// Changes the book, and wakes the threads that wait for a change.
    pub(super) fn settle<T>(&self, what: impl FnOnce(&mut PageBook) -> T) -> T {
        let mut pager_state = self.pager_state();
        let result = what(&mut pager_state.book);
        let is_waited_for = pager_state.who_wait > 0;
        drop(pager_state);
        if is_waited_for {
            self.settled.notify_all();
        }
        result
    }

    /// Waits until something is settled, or a moment.
    pub(super) fn wait_a_moment(&self, mut pager_state: MutexGuard<'_, PagerState>) {
        pager_state.who_wait += 1;
        let waited = self.settled.wait_timeout(pager_state, LOOK_AGAIN);
        let (mut pager_state, _) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        pager_state.who_wait -= 1;
    }

    pub(super) fn wake(&self, span: PageSpan) {
        self.expect_done(self.parts.faults.wake(&self.parts.array, span.extent()));
    }

    fn allow(&self, span: PageSpan) {
        self.expect_done(self.parts.faults.protect(&self.parts.array, span.extent(), Writing::Allowed));
    }

    fn lose(&self, span: PageSpan) {
        match self.parts.faults.poison(&self.parts.array, span.extent()) {
            Ok(true) => {}
            Ok(false) => end_the_process("this kernel cannot tell a thread alone that memory is lost"),
            Err(error) => end_the_process(&error),
        }
    }

    /// Handles the result of an operation that fails only if the kernel is out of memory.
    pub(super) fn expect_done(&self, done: Result<(), sublet_fabric::FabricError>) {
        if let Err(error) = done {
            self.fail(error.into());
        }
    }

    /// Records that the swap space has failed.
    #[cold]
    pub(super) fn fail(&self, error: Error) {
        let message = format!(
            "sublet: the swap space of an array of {} bytes failed ({}): {}; who touches what is lost is sent SIGBUS",
            self.parts.array.len_bytes(),
            error.code.name(),
            error.message
        );
        if self.why.set(error).is_ok() {
            eprintln!("{message}");
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.why.get().is_some()
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        self.why.get().map_or(Ok(()), |why| Err(why.clone()))
    }

    pub(super) fn statistics(&self) -> SwapStatistics {
        self.pager_state().book.statistics_now()
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.parts.array.base()
    }

    /// Frees memory of one kind, or waits a moment until another thread has.
    pub(super) fn free_memory(&self, want: NeededMemory) {
        let mut pager_state = self.pager_state();
        let victims = pager_state.book.pick(want);
        match victims {
            Eviction::Region(leaving) => {
                drop(pager_state);
                self.let_region_go(leaving);
            }
            Eviction::Blocks(leaving) => {
                drop(pager_state);
                self.let_blocks_go(&leaving);
            }
            Eviction::Slot(slot) => {
                drop(pager_state);
                self.empty_slot(slot);
            }
            Eviction::None => self.wait_a_moment(pager_state),
        }
    }

    /// Ends the threads. The pager, if it still runs, is waited for, the helpers are not.
    pub(super) fn close(&self, is_running: bool) {
        self.pager_state().book.is_closed = true;
        self.work.notify_all();
        if is_running && let Some(bell) = self.parts.bell.pointer(0, 1) {
            // SAFETY: the byte is the bell's, and the pager puts a page there before it ends.
            unsafe { bell.as_ptr().read_volatile() };
        }
    }
}

/// Ends the process, since faulting threads would otherwise sleep for ever, or read wrong bytes.
#[cold]
fn end_the_process(why: impl std::fmt::Display) -> ! {
    eprintln!("sublet: a swapped array cannot be used any more: {why}");
    std::process::abort()
}

/// Guard that ends the process if the pager panics, since faulting threads would otherwise sleep for ever.
struct EndsTheProcess;

impl Drop for EndsTheProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
