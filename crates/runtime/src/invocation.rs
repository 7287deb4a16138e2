//! A call that has been submitted: a future of its result (rFaaS IV-B).
//!
//! The worker writes the result straight into the invocation's line. A thread that waits for it polls that line first
//! and then sleeps on it; no other process is involved. A call that returned no result where it was sent continues by
//! its [`detour`].

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sublet_fabric::{SharedBytes, SharedBytesMut};
use sublet_proto::{Code, Error, saturating_u64};

mod detour;
mod resending;

pub use detour::is_repeatable;
use detour::{Detour, DetourStep};

use crate::lease::nonsense::{Nonsense, STOP_TIMEOUT};
use crate::lease::{Call, ClientLease, SentCall};
use crate::wire::CallOutcome;

/// Status of the result of a call that was turned away, and not executed.
const TURNED_AWAY: u32 = Code::CoreBusy as u32;
/// Number of polls of a result line after which the caller checks once that the worker's writes make sense.
const LOOKS_PER_CHECK: u32 = 1 << 12;

/// Result of a call that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Bytes that the function wrote to its output.
    pub output_bytes: usize,
    /// Time that the worker spent in the function; zero unless the call was [timed](crate::CallOptions::timed).
    pub executing: Duration,
}

/// A submitted call. Input and output stay borrowed until it has ended.
///
/// Dropping an invocation waits for the call's end, at the latest the lease's, since the worker still writes to the
/// output. This is not possible for a forgotten one ([`std::mem::forget`]): values of a [`Buffer`](crate::Buffer) may
/// then still change after the borrow has ended. Nothing worse happens, as values are only copied from it, and the
/// memory stays mapped.
#[must_use = "the result of a call is in its invocation: wait for it"]
pub struct Invocation<'call> {
    lease: Arc<ClientLease>,
    sent: SentCall,
    call: Call,
    ended: bool,
    /// Looks of a caller that polls.
    looks: u32,
    /// Number of bytes that the function returned, if they did not fit into the call's output.
    returned_bytes: u32,
    reported_bytes: usize,
    /// Progress of a call that was turned away or lost.
    detour: Option<Box<Detour>>,
    _memory: PhantomData<&'call mut [u8]>,
}

// SAFETY: the pointers in `call` are those of the views of the memory that `'call` borrows, which are Send and Sync
// themselves because they only copy plain data; everything else is.
unsafe impl Send for Invocation<'_> {}
// SAFETY: as above; through `&self` nothing is written.
unsafe impl Sync for Invocation<'_> {}

impl<'call> Invocation<'call> {
    pub(crate) fn new(lease: &Arc<ClientLease>, sent: SentCall, call: Call) -> Invocation<'call> {
        Invocation {
            lease: lease.clone(),
            sent,
            call,
            ended: false,
            looks: 0,
            returned_bytes: 0,
            reported_bytes: 0,
            detour: None,
            _memory: PhantomData,
        }
    }

    /// Whether the call has ended, one way or another. Never blocks. A call that a busy core turned away, or that was
    /// lost and may be repeated, is sent again by this.
    #[inline(always)]
    pub fn is_ready(&mut self) -> bool {
        if self.ended {
            return true;
        }
        let mut outcome = self.outcome();
        if outcome.is_none() && self.lease.take_arrived(self.sent.worker) {
            outcome = self.outcome();
        }
        match outcome {
            Some(outcome) if outcome.status != TURNED_AWAY => true,
            None if self.lease.running() && !self.lost() => self.is_void(),
            _ => self.is_over(),
        }
    }

    /// Checks, once in many polls, whether a missing result can still come.
    #[inline(always)]
    fn is_void(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        self.looks.is_multiple_of(LOOKS_PER_CHECK) && self.nonsense().is_some()
    }

    /// Waits for the end: polls for as long as the invoker spins, then sleeps.
    #[inline(always)]
    pub fn wait(mut self) -> Result<Completion, Error> {
        self.finish()
    }

    /// Waits up to `timeout` and returns whether the call has ended. The call continues otherwise.
    pub fn wait_timeout(&mut self, timeout: Duration) -> bool {
        let until = Instant::now().checked_add(timeout);
        loop {
            if self.is_ready() {
                return true;
            }
            if until.is_some_and(|at| at <= Instant::now()) {
                return false;
            }
            match self.napping() {
                Some(at) => sleep_until(until.map_or(at, |until| at.min(until))),
                None if matches!(self.await_end(until), WaitEnd::InVain(_)) => return true,
                // The loop has checked above whether there is something to collect.
                None => {}
            }
        }
    }

    /// Waits until the deadline. If that passes, the call is ended: since nothing else can stop a function, its
    /// worker process is, with all calls that it was executing, and the next submission starts another.
    pub fn wait_deadline(mut self, deadline: Instant) -> Result<Completion, Error> {
        self.call.deadline = Some(self.call.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
        self.finish()
    }

    /// Waits like [`Invocation::wait`], for callers that keep the invocation in memory of their own (the C interface).
    /// A second call returns an error.
    #[inline(always)]
    pub fn finish(&mut self) -> Result<Completion, Error> {
        if self.ended {
            return Err(Error::new(
                Code::InvalidArgument,
                "the result of this call has been collected already",
            ));
        }
        let line = self.lease.result_line(self.sent.worker, self.sent.record);
        if self.lease.spin(line, &self.sent, &self.call) {
            // This is where a hot call ends.
            let outcome = CallOutcome::decode(&line.read().1);
            if outcome.status == 0 && outcome.output_len <= self.call.output_capacity {
                let done = self.complete(&outcome);
                self.close();
                return Ok(done);
            }
        }
        self.finish_otherwise()
    }

    /// The end of a call that is not over while its waiter spins, or not by a result.
    #[cold]
    #[inline(never)]
    fn finish_otherwise(&mut self) -> Result<Completion, Error> {
        loop {
            let line = self.lease.result_line(self.sent.worker, self.sent.record);
            let nonsense = match self.lease.spin(line, &self.sent, &self.call) {
                true => None,
                false => match self.await_end(self.call.deadline) {
                    WaitEnd::ForEnd => None,
                    WaitEnd::TooLong(error) => return self.give_up(error),
                    WaitEnd::InVain(nonsense) => Some(nonsense),
                },
            };
            let nonsense = match self.outcome() {
                _ if nonsense.is_some() => nonsense,
                Some(outcome) if outcome.status != TURNED_AWAY => {
                    match outcome.check(self.call.output_capacity) {
                        Ok(()) => return self.take(&outcome),
                        Err(nonsense) => Some(nonsense),
                    }
                }
                // The result was there and is gone.
                None if !self.lost() => Some(Nonsense::Turn),
                _ => None,
            };
            if let Some(nonsense) = nonsense {
                match self.distrust(nonsense) {
                    Some(error) => return Err(error),
                    None => continue,
                }
            }
            match self.go_on() {
                DetourStep::Sent => {}
                DetourStep::Nap(at) => {
                    sleep_until(self.call.deadline.map_or(at, |deadline| at.min(deadline)))
                }
                DetourStep::Over(error) => {
                    self.close();
                    return Err(error);
                }
            }
        }
    }

    /// The end of a call that has a result.
    fn take(&mut self, outcome: &CallOutcome) -> Result<Completion, Error> {
        if outcome.status == Code::DeadlineExceeded.number() {
            self.lease.await_end_with_kernel(&self.sent, self.call.deadline);
        }
        let result = self.result(outcome);
        self.take_report(outcome);
        self.close();
        result
    }

    /// Ends a call whose worker has written invalid values. `None` if the next process gets the call.
    #[cold]
    fn distrust(&mut self, nonsense: Nonsense) -> Option<Error> {
        let Error { code, message } = self.lease.distrust(self.sent.worker, self.sent.position, nonsense)?;
        self.close();
        Some(Error::new(code, self.describe(&format!("was lost: {message}"))))
    }

    /// Looks for invalid values of all calls of the worker, since a call behind a function that does not return has
    /// none of its own.
    fn nonsense(&self) -> Option<Nonsense> {
        self.lease.find_nonsense(self.sent.worker).map(|(_, nonsense)| nonsense)
    }

    /// Number of the worker that has the call, among those of all leases. It may change until the call has ended.
    pub fn worker(&self) -> u32 {
        self.lease.first_worker + self.sent.worker
    }

    /// Records what the worker has reported about the output of a call that failed.
    fn take_report(&mut self, outcome: &CallOutcome) {
        match Code::from_number(outcome.status) {
            Code::OutputTooLarge => self.returned_bytes = outcome.output_len,
            Code::FunctionFailed | Code::MemoryExceeded => {
                self.reported_bytes = self.complete(outcome).output_bytes;
            }
            _ => {}
        }
    }

    /// Number of bytes of the output that are a report of the function's failure; 0 if there is none.
    pub(crate) fn reported_bytes(&self) -> usize {
        self.reported_bytes
    }

    /// Number of bytes that a function returned which failed with `output_too_large`; 0 otherwise.
    pub fn returned_bytes(&self) -> u32 {
        self.returned_bytes
    }

    #[inline(always)]
    fn answered(&self) -> bool {
        self.lease.result_line(self.sent.worker, self.sent.record).is(self.sent.turn)
    }

    /// The worker's result, once it has been written.
    #[inline(always)]
    fn outcome(&self) -> Option<CallOutcome> {
        let line = self.lease.result_line(self.sent.worker, self.sent.record);
        line.is(self.sent.turn).then(|| CallOutcome::decode(&line.read().1))
    }

    fn lost(&self) -> bool {
        self.lease.lost(self.sent.worker, self.sent.position)
    }

    /// Whether a call has ended that has no result: it was turned away, it was lost, or no worker is running.
    #[cold]
    fn is_over(&mut self) -> bool {
        if !self.answered() && !self.lost() {
            // Submitted after the last worker process ended, and not lost with it: for the next one.
            self.lease.revive_soon();
            return false;
        }
        matches!(self.go_on(), DetourStep::Over(_))
    }

    /// Time until which the call must not be checked.
    fn napping(&self) -> Option<Instant> {
        self.detour.as_ref()?.napping()
    }

    /// Sleeps until there is something to collect, the deadline passes, or no result can come any more.
    #[cold]
    fn await_end(&self, deadline: Option<Instant>) -> WaitEnd {
        let line = self.lease.result_line(self.sent.worker, self.sent.record);
        loop {
            if self.lease.sleep(line, &self.sent, deadline) || self.lost() {
                return WaitEnd::ForEnd;
            }
            if !self.lease.running() {
                // The call was submitted after the last worker process ended, and not lost with it: the next process
                // executes it. If there is no next one, the call is lost by now.
                let _ = self.lease.revive();
                continue;
            }
            if deadline.is_some_and(|at| at <= Instant::now()) {
                let message = self.describe("did not return before its deadline");
                return WaitEnd::TooLong(Error::new(Code::DeadlineExceeded, message));
            }
            if let Some(nonsense) = self.nonsense() {
                return WaitEnd::InVain(nonsense);
            }
        }
    }

    /// Stops the worker of a call whose deadline has passed, so that it writes nothing any more.
    #[cold]
    fn give_up(&mut self, error: Error) -> Result<Completion, Error> {
        self.lease.stop_worker(format!("the worker was stopped: a call of {}", error.message));
        let stopped = Instant::now() + STOP_TIMEOUT;
        let line = self.lease.result_line(self.sent.worker, self.sent.record);
        while !self.lost() && Instant::now() < stopped && !ClientLease::is_own_thread() {
            if self.lease.sleep(line, &self.sent, Some(stopped)) {
                break;
            }
        }
        let is_result = |outcome: &CallOutcome| {
            outcome.status != TURNED_AWAY && outcome.check(self.call.output_capacity).is_ok()
        };
        let result = match self.outcome().filter(is_result) {
            Some(outcome) => self.result(&outcome),
            None if self.lost() => Err(error),
            None => Err(Error::new(error.code, format!("{}; its worker has not ended yet", error.message))),
        };
        self.close();
        result
    }

    fn result(&self, outcome: &CallOutcome) -> Result<Completion, Error> {
        match outcome.status {
            0 => Ok(self.complete(outcome)),
            _ => Err(self.failure(outcome)),
        }
    }

    #[inline(always)]
    fn complete(&self, outcome: &CallOutcome) -> Completion {
        // The caller has checked that the length is within the capacity; the copy does not rely on that.
        let output_bytes = outcome.output_len.min(self.call.output_capacity) as usize;
        if let Some(staging) = &self.sent.staging {
            self.copy_output(staging, output_bytes);
        }
        let executing = if outcome.detail == 0 { Duration::ZERO } else { self.executing(outcome.detail) };
        Completion { output_bytes, executing }
    }

    #[cold]
    fn executing(&self, ticks: u64) -> Duration {
        Duration::from_nanos(saturating_u64(ticks as f64 / self.lease.ticks_per_ns))
    }

    /// The one copy of an output that is not in the arena.
    #[cold]
    fn copy_output(&self, staging: &crate::arena::ArenaBlock, output_bytes: usize) {
        debug_assert!(output_bytes as u64 <= staging.len_bytes, "{output_bytes} bytes of {staging:?}");
        if let Some(from) = self.lease.arena.pointer(staging) {
            let Some(output) = NonNull::new(self.call.output) else { return };
            // SAFETY: the staging block has at least the output's capacity, and the caller vouches for the same size at
            // its output until the call has ended. The worker may write the one, and the caller's threads the other.
            unsafe {
                let from = SharedBytes::new(from, output_bytes);
                SharedBytesMut::new(output, output_bytes).copy_from(from);
            }
        }
    }

    #[cold]
    fn failure(&self, outcome: &CallOutcome) -> Error {
        let code = Code::from_number(outcome.status);
        let said = self.lease.message(self.sent.worker, self.sent.record, outcome.detail);
        let message = match code {
            Code::FunctionFailed => self.describe(&format!("failed: {said}")),
            Code::DeadlineExceeded => self.describe(&said),
            Code::MemoryExceeded => {
                let memory_bytes = self.lease.memory_bytes();
                self.describe(&format!("ran out of the lease's memory of {memory_bytes} bytes: {said}"))
            }
            Code::OutputTooLarge => self.describe(&format!(
                "returned {} bytes, and its output has {}",
                outcome.output_len, self.call.output_capacity
            )),
            Code::UnknownFunction => {
                format!("package {} has no function {}", self.lease.package.name, self.call.function)
            }
            _ => self.describe(&format!("was refused by its worker: {code}")),
        };
        Error::new(code, message)
    }

    fn describe(&self, what: &str) -> String {
        format!("{} {what}", self.lease.function_name(self.call.function))
    }

    #[inline(always)]
    fn close(&mut self) {
        debug_assert!(!self.ended, "a call of {} ends twice", self.lease.function_name(self.call.function));
        self.ended = true;
        self.lease.release(&mut self.sent);
    }
}

impl Drop for Invocation<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.ended {
            self.lease.records(self.sent.worker).unwatch(self.sent.record);
            // Its result, or its error, was not asked for.
            let _ = self.finish();
        }
    }
}

impl Future for Invocation<'_> {
    type Output = Result<Completion, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        while !self.is_ready() {
            if self.call.is_late() {
                break;
            }
            if let Some(at) = self.napping() {
                self.lease.wake_at(at, context.waker());
                return Poll::Pending;
            }
            let records = self.lease.records(self.sent.worker);
            records.watch(self.sent.record, context.waker());
            if let Some(deadline) = self.call.deadline {
                self.lease.look_at_futures_at(deadline);
            }
            let line = self.lease.result_line(self.sent.worker, self.sent.record);
            let watch = self.lease.result_watch(self.sent.worker, self.sent.record);
            if line.ask_bell(watch, self.sent.turn) && !self.lost() {
                self.lease.watched(self.sent.worker);
                return Poll::Pending;
            }
            records.unwatch(self.sent.record);
        }
        Poll::Ready(self.finish())
    }
}

/// Reason why a wait ended.
enum WaitEnd {
    /// A result may have come.
    ForEnd,
    /// The deadline passed.
    TooLong(Error),
    /// The worker has written something that makes no sense.
    InVain(Nonsense),
}

fn sleep_until(at: Instant) {
    std::thread::sleep(at.saturating_duration_since(Instant::now()));
}
