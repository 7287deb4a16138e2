//! Waits for a call's result, reads it, and frees its record.
//!
//! A result is there when its line has the call's turn. It will never be there if the call's ring position is below the
//! worker's `dead_before`; [`ClientLease::why_lost`] then returns the reason.

use std::time::{Duration, Instant};

use sublet_fabric::clock::ticks;
use sublet_fabric::line::{Line, Watch};
use sublet_fabric::sync::{Ordering, fence};
use sublet_proto::package::is_device;
use sublet_proto::{Code, Error};

use super::link::{Endings, lock};
use super::transport::{RemoteWorkers, WorkerTransport};
use super::{Call, ClientLease, SentCall, monitor};
use crate::wire::MAX_MESSAGE_BYTES;

/// Longest sleep of a waiting thread before it checks everything again that can end its wait: the worker can write the
/// word that it sleeps on, too.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Longest time until the end of a worker process that ends itself is announced.
const LONGEST_END: Duration = Duration::from_secs(2);

impl ClientLease {
    /// The line on which a record's result is published.
    #[inline(always)]
    pub(crate) fn result_line(&self, worker: u32, record: u16) -> &Line {
        match self.results.view(self.results_layout.line(worker, record).line) {
            Some(line) => line,
            None => outside_of_layout(),
        }
    }

    /// The word on which a thread that waits for a record's result sleeps.
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

    /// Waits until the end of a call's worker process is known, if the process executes kernels. After a kernel that
    /// has not ended in time the process ends itself once its call is answered, and the next call must not be sent to
    /// it. If the end is not announced, or if this thread is the one that would receive the announcement, the next call
    /// may be lost with the process.
    #[cold]
    pub(crate) fn await_end_with_kernel(&self, sent: &SentCall, deadline: Option<Instant>) {
        if is_device(&self.description.pu) && !monitor::is_here() {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let longest = left.map_or(LONGEST_END, |left| left.min(LONGEST_END));
            let lives = |_: &mut Endings| !self.lost(sent.worker, sent.position);
            drop(self.link.changed.wait_timeout_while(lock(&self.link.ended), longest, lives));
        }
    }

    /// Spins for the result for the lease's spin time. Returns `false` if it did not come in that time, or if there is
    /// a reason not to wait any more.
    #[inline(always)]
    pub(crate) fn spin(&self, line: &Line, sent: &SentCall, call: &Call) -> bool {
        if let WorkerTransport::Remote(remote) = &self.worker_transport {
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

    /// Spins like [`ClientLease::spin`], and also receives everything else that arrives.
    #[cold]
    #[inline(never)]
    fn spin_remote(&self, remote: &RemoteWorkers, line: &Line, sent: &SentCall, call: &Call) -> bool {
        const LOOKS: u32 = 256;
        let endpoint = remote.endpoint(sent.worker);
        let watched = (line, self.result_watch(sent.worker, sent.record));
        let until = Instant::now().checked_add(remote.spin);
        loop {
            if endpoint.spin(watched, sent.turn, LOOKS) {
                return true;
            }
            let is_late = call.is_late() || until.is_some_and(|until| Instant::now() >= until);
            let is_over = is_late || self.lost(sent.worker, sent.position) || !self.running();
            if is_over || self.nonsense(sent.worker, sent.position, sent.occupant()).is_some() {
                return false;
            }
        }
    }

    /// Sleeps until the result comes, the call is lost, the worker process ends, or the deadline passes, at most for
    /// [`LOOK_AGAIN`]. Returns whether the result came.
    pub(crate) fn sleep(&self, line: &Line, sent: &SentCall, deadline: Option<Instant>) -> bool {
        let look_again = Instant::now() + LOOK_AGAIN;
        let deadline = Some(deadline.map_or(look_again, |at| at.min(look_again)));
        let over = || self.lost(sent.worker, sent.position) || !self.running();
        let line = (line, self.result_watch(sent.worker, sent.record));
        match &self.worker_transport {
            WorkerTransport::Local(endpoint) => endpoint.wait(line, sent.turn, deadline, over),
            WorkerTransport::Remote(remote) => remote.wait(sent, line, deadline, over),
        }
    }

    /// Receives results that have arrived over a network. In shared memory there is nothing to receive: `false`.
    #[inline(always)]
    pub(crate) fn take_arrived(&self, worker: u32) -> bool {
        match &self.worker_transport {
            WorkerTransport::Local(_) => false,
            WorkerTransport::Remote(remote) => remote.take_arrived(worker),
        }
    }

    /// Registers that a future is about to sleep on a line of the worker's. The lease's thread must then check its
    /// call, and over a network receive its result.
    #[inline(always)]
    pub(crate) fn watched(&self, worker: u32) {
        // Pairs with the fence in `stop_looking`.
        fence(Ordering::SeqCst);
        let is_new = self.link.looking.load(Ordering::Relaxed) == 0;
        if is_new {
            self.link.looking.store(1, Ordering::Relaxed);
        }
        let is_untaken = self.worker_transport.remote().is_some_and(|remote| !remote.is_polled(worker));
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

    /// Releases the record of a call that is over, and the substitute buffer of its output.
    #[inline(always)]
    pub(crate) fn release(&self, sent: &mut SentCall) {
        if let Some(block) = sent.staging.take() {
            self.arena.free(block);
        }
        self.workers[sent.worker as usize].records.release(sent.record);
    }

    /// Reason why the call at a position was lost.
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
