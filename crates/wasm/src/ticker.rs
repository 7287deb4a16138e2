//! The clock of deadlines: a thread that advances the engine's epoch while there are calls, and sleeps otherwise.
//!
//! Compiled code compares the epoch with its deadline at each loop and call, which costs it no look at a clock. A deadline
//! is [`PARTS`] ticks, so a call ends at most a twentieth of its time late, and the thread wakes up as seldom as the
//! package's deadline allows. Where calls follow each other a tick late or early makes no difference.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use sublet_proto::{Code, Error};
use wasmtime::Engine;

/// Ticks of a deadline.
const PARTS: u32 = 20;
const SHORTEST_TICK: Duration = Duration::from_millis(1);
const STACK_BYTES: usize = 64 << 10;

/// See the [module](self).
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    deadline_ticks: u64,
}

#[derive(Default)]
struct Shared {
    /// Calls that are under way. Written by the threads of workers; with `asleep` it decides who sees whom: each side
    /// writes its own and then reads the other's, both in one order for all.
    calls: AtomicU32,
    /// Whether the ticker sleeps until it is woken. Written by the ticker.
    asleep: AtomicBool,
    /// Written once, by the end of the engine.
    stopped: AtomicBool,
}

impl Ticker {
    /// Starts the thread, which sleeps until the first call.
    pub(crate) fn start(engine: &Engine, deadline: Duration) -> Result<Ticker, Error> {
        let shared = Arc::new(Shared::default());
        let tick = (deadline / PARTS).max(SHORTEST_TICK);
        let (engine, of_thread) = (engine.clone(), shared.clone());
        let thread = std::thread::Builder::new()
            .name("ticker".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || of_thread.tick(&engine, tick))
            .map_err(|error| {
                Error::new(Code::System, format!("starting the ticker of deadlines: {error}"))
            })?;
        // The tick that a call begins in is over soon, so one more.
        let ticks = deadline.as_nanos().div_ceil(tick.as_nanos()) + 1;
        Ok(Ticker { shared, thread: Some(thread), deadline_ticks: ticks as u64 })
    }

    /// How many ticks a call has.
    pub(crate) fn deadline_ticks(&self) -> u64 {
        self.deadline_ticks
    }

    /// A call begins; it ends when what this returns is dropped.
    pub(crate) fn enter(&self) -> Call<'_> {
        self.shared.calls.fetch_add(1, Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::SeqCst) {
            self.wake();
        }
        Call { shared: &self.shared }
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

impl Shared {
    fn tick(&self, engine: &Engine, tick: Duration) {
        while !self.stopped.load(Ordering::SeqCst) {
            if self.calls.load(Ordering::SeqCst) == 0 {
                self.sleep();
            }
            std::thread::park_timeout(tick);
            engine.increment_epoch();
        }
    }

    /// Sleeps until there is a call or an end.
    fn sleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        while self.calls.load(Ordering::SeqCst) == 0 && !self.stopped.load(Ordering::SeqCst) {
            std::thread::park();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

/// A call that is under way.
pub(crate) struct Call<'ticker> {
    shared: &'ticker Shared,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.shared.calls.fetch_sub(1, Ordering::Release);
    }
}
