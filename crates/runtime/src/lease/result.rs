//! Waits for a call's result, reads it, and frees its record.
//!
//! A result is there when its line has the call's turn. It will never be if the call's ring position is below the worker's
//! `dead_before`; then [`Lease::why_lost`] tells the reason.

use std::time::{Duration, Instant};

use sublet_fabric::clock::ticks;
use sublet_fabric::line::{Line, Watch};
use sublet_fabric::sync::{Ordering, fence};
use sublet_proto::package::is_device;
use sublet_proto::{Code, Error};

use super::carrier::Carrier;
use super::link::{Endings, lock};
use super::{Call, Lease, Sent, monitor};
use crate::wire::MAX_MESSAGE_BYTES;

/// How long a waiter sleeps before it looks again at all that can end its wait: the word that it sleeps on is the worker's to
/// write, too.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// How long a worker process that ends itself may take until its end is announced.
const LONGEST_END: Duration = Duration::from_secs(2);

impl Lease {
    /// The line on which a record's result is published.
    #[inline(always)]
    pub(crate) fn result_line(&self, worker: u32, record: u16) -> &Line {
        match self.results.view(self.results_layout.line(worker, record).line) {
            Some(line) => line,
            None => outside_of_layout(),
        }
    }

    /// Where whoever waits for a record's result sleeps.
    pub(crate) fn result_watch(&self, worker: u32, record: u16) -> &Watch {
        match self.results.view(self.results_layout.line(worker, record).watch) {
            Some(watch) => watch,
            None => outside_of_layout(),
        }
    }

    /// Whether the call at this position was lost, if it has no result.
    #[inline(always)]
    pub(crate) fn lost(&self, worker: u32, position: u64) -> bool {
        position < self.workers[worker as usize].dead_before.load(Ordering::Acquire)
    }

    /// Waits until the end of a call's worker process is known, if it is one of kernels: of a kernel that has not ended in time
    /// the process ends itself once its call is answered, and the next call must not be sent to it. Should the end not be
    /// announced, or this be the thread that would hear of it, the next call may be lost with it.
    #[cold]
    pub(crate) fn await_end_with_kernel(&self, sent: &Sent, deadline: Option<Instant>) {
        if is_device(&self.description.pu) && !monitor::is_here() {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let longest = left.map_or(LONGEST_END, |left| left.min(LONGEST_END));
            let lives = |_: &mut Endings| !self.lost(sent.worker, sent.position);
            drop(self.link.changed.wait_timeout_while(lock(&self.link.ended), longest, lives));
        }
    }

    /// Spins for the result as long as the lease spins. False: it did not come in that time, or there is a reason not to
    /// wait for it any more.
    #[inline(always)]
    pub(crate) fn spin(&self, line: &Line, sent: &Sent, call: &Call) -> bool {
        if let Carrier::Remote(remote) = &self.carrier {
            return self.spin_remote(remote, line, sent, call);
        }
        // Most hot calls end within these looks; the clock is read only after them.
        const FIRST_LOOKS: u32 = 4096;
        const LOOKS: u32 = 256;
        for _ in 0..FIRST_LOOKS {
            if line.is(sent.turn) {
                return true;
            }
        }
        let since = ticks();
        while ticks().saturating_sub(since) < self.spin_ticks && !self.lost(sent.worker, sent.position) {
            if line.spin(sent.turn, LOOKS) {
                return true;
            }
            if call.is_late() || self.nonsense(sent.worker, sent.position, sent.occupant()).is_some() {
                return false;
            }
        }
        false
    }

    /// Sleeps until the result comes, the call is lost, the worker process ends, or the deadline passes, and not longer than
    /// [`LOOK_AGAIN`]. Says whether the result came.
    pub(crate) fn sleep(&self, line: &Line, sent: &Sent, deadline: Option<Instant>) -> bool {
        let look_again = Instant::now() + LOOK_AGAIN;
        let deadline = Some(deadline.map_or(look_again, |at| at.min(look_again)));
        let over = || self.lost(sent.worker, sent.position) || !self.running();
        let line = (line, self.result_watch(sent.worker, sent.record));
        match &self.carrier {
            Carrier::Local(endpoint) => endpoint.wait(line, sent.turn, deadline, over),
            Carrier::Remote(remote) => remote.wait(sent, line, deadline, over),
        }
    }

    /// Takes results that have arrived, if somebody has to. In shared memory nobody has: `false`.
    #[inline(always)]
    pub(crate) fn take_arrived(&self, worker: u32) -> bool {
        match &self.carrier {
            Carrier::Local(_) => false,
            Carrier::Remote(remote) => remote.take_arrived(worker),
        }
    }

    /// A future is about to sleep on a line of the worker's: somebody must look after it, and over a network take its result.
    #[inline(always)]
    pub(crate) fn watched(&self, worker: u32) {
        // Pairs with the fence in `stop_looking`.
        fence(Ordering::SeqCst);
        let is_new = self.link.looking.load(Ordering::Relaxed) == 0;
        if is_new {
            self.link.looking.store(1, Ordering::Relaxed);
        }
        let is_untaken = self.carrier.remote().is_some_and(|remote| !remote.is_polled(worker));
        if is_new || is_untaken {
            self.link.ring();
        }
    }

    /// The error message of a record's result.
    pub(crate) fn message(&self, worker: u32, record: u16, len: u64) -> String {
        let mut bytes = vec![0; len.min(MAX_MESSAGE_BYTES) as usize];
        match self.results.read(self.results_layout.message(worker, record), &mut bytes) {
            Some(()) => String::from_utf8_lossy(&bytes).into_owned(),
            None => String::new(),
        }
    }

    /// The call is over: its record is free, and so is the stand-in of its output.
    #[inline(always)]
    pub(crate) fn release(&self, sent: &mut Sent) {
        if let Some(block) = sent.staging.take() {
            self.arena.free(block);
        }
        self.workers[sent.worker as usize].records.release(sent.record);
    }

    /// Why the call at a position was lost.
    pub(crate) fn why_lost(&self, worker: u32, position: u64) -> Error {
        let deaths = lock(&self.deaths);
        let death =
            deaths.iter().find(|death| death.before.get(worker as usize).is_some_and(|&end| position < end));
        death.or(deaths.back()).map_or_else(
            || Error::new(Code::WorkerDied, "the worker ended before the call did"),
            |death| death.error.clone(),
        )
    }
}

/// Records and workers are numbered by this crate alone, so the layout holds all of them.
#[cold]
fn outside_of_layout() -> ! {
    unreachable!("a result line outside of the results region")
}
