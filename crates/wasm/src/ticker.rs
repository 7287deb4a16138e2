//! Clock for deadlines: a thread that advances the engine's epoch while there are calls, and sleeps otherwise.
//!
//! Compiled code compares the epoch with its deadline at each loop and call, without reading a clock. A deadline is
//! [`PARTS`] ticks, so a call ends at most a twentieth of its time late, and the thread wakes up as seldom as the package's
//! deadline allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use sublet_proto::{Code, Error};
use wasmtime::Engine;

/// Number of ticks of a deadline.
const PARTS: u32 = 20;
const SHORTEST_TICK: Duration = Duration::from_millis(1);
const STACK_BYTES: usize = 64 << 10;

/// Clock for deadlines; see the [module](self).
pub(crate) struct Ticker {
    shared: Arc<TickerState>,
    thread: Option<JoinHandle<()>>,
    deadline_ticks: u64,
}

#[derive(Default)]
struct TickerState {
    /// Number of running calls, written by the threads of workers. Each side writes its own field and then reads the other's
    /// in sequentially consistent order, so that a new call or the ticker always notices the other (see `asleep`).
    calls: AtomicU32,
    /// Whether the ticker sleeps until it is woken, written by the ticker.
    asleep: AtomicBool,
    /// Whether the engine has ended, written once.
    stopped: AtomicBool,
}

impl Ticker {
    /// Starts the thread, which sleeps until the first call.
    pub(crate) fn start(engine: &Engine, deadline: Duration) -> Result<Ticker, Error> {
        let shared = Arc::new(TickerState::default());
        let tick = (deadline / PARTS).max(SHORTEST_TICK);
        let (engine, of_thread) = (engine.clone(), shared.clone());
        let thread = std::thread::Builder::new()
            .name("ticker".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || of_thread.tick(&engine, tick))
            .map_err(|error| {
                Error::new(Code::System, format!("starting the ticker of deadlines: {error}"))
            })?;
        // A call starts within a tick, so it gets one more.
        let ticks = deadline.as_nanos().div_ceil(tick.as_nanos()) + 1;
        // The length of a tick is rounded down, which adds one more.
        debug_assert!(ticks <= u128::from(PARTS) + 2, "{deadline:?} is {ticks} ticks of {tick:?}");
        Ok(Ticker { shared, thread: Some(thread), deadline_ticks: u64::try_from(ticks).unwrap_or(u64::MAX) })
    }

    /// Number of ticks of a call.
    pub(crate) fn deadline_ticks(&self) -> u64 {
        self.deadline_ticks
    }

    /// Notes the start of a call, which ends when the returned guard is dropped.
    pub(crate) fn enter(&self) -> RunningCall<'_> {
        self.shared.calls.fetch_add(1, Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::SeqCst) {
            self.wake();
        }
        RunningCall { shared: &self.shared }
    }

    #[cold]
    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl TickerState {
    fn tick(&self, engine: &Engine, tick: Duration) {
        while !self.stopped.load(Ordering::SeqCst) {
            if self.calls.load(Ordering::SeqCst) == 0 {
                self.sleep();
            }
            std::thread::park_timeout(tick);
            engine.increment_epoch();
        }
    }

    /// Sleeps until a call starts or the engine ends.
    fn sleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        while self.calls.load(Ordering::SeqCst) == 0 && !self.stopped.load(Ordering::SeqCst) {
            std::thread::park();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

/// Guard of a running call.
pub(crate) struct RunningCall<'ticker> {
    shared: &'ticker TickerState,
}

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        let before = self.shared.calls.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "a call ends, of {before} that are running");
    }
}
