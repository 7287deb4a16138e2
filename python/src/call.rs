//! A call that was sent, until its result is collected.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use sublet::frames::lent::ReplySource;
use sublet::frames::{FETCH, Head};
use sublet::{Code, Completion, Error, Invocation};
use sublet_python_buffers::BufferView;

use crate::buffer::{BufferOwner, OwnedBuffer};
use crate::error::{invalid, raised};
use crate::fork_cell::{ForkCell, is_forked};
use crate::invoker::{LeasedInvoker, RequestedCall};
use crate::message::{OpenedReply, WorkerReply, WrittenRequest};
use crate::pool::Paper;
use crate::queue::PyQueue;

/// Number of checks for a result before this thread lets others have the interpreter.
const ATTACHED_LOOKS: u32 = 400;
/// Time of checks for a result without the interpreter, before this thread sleeps.
const SPIN: Duration = Duration::from_micros(60);
/// Interval at which a sleeping thread checks whether it was interrupted.
const TICK: Duration = Duration::from_millis(50);

/// See the [module](self).
#[pyclass(name = "Call", frozen, module = "sublet._native")]
pub struct PyCall(Mutex<State>);

/// A request, and the memory for its result.
pub enum SentRequest {
    /// Objects, to a function in Python.
    Objects {
        /// The request.
        request: Arc<WrittenRequest>,
        /// Memory for the reply.
        output: Paper,
    },
    /// Bytes, to a function that is not in Python.
    Bytes(CallBuffers),
}

/// Owners of the input and output of a call with bytes, which keep both at their addresses.
#[derive(Default)]
pub struct CallBuffers {
    /// The caller's own memory.
    pub views: Vec<Arc<BufferView>>,
    /// A copy of the input.
    pub input: Option<Paper>,
    /// The output, if the caller has none of its own.
    pub output: Option<Paper>,
}

struct State {
    /// Dropped first: until then the worker may write to the output.
    invocation: Option<ForkCell<Invocation<'static>>>,
    finished: Option<Result<Completion, Error>>,
    deadline: Option<Instant>,
    sent: SentRequest,
    /// Options of the call, with which further requests go to the same worker.
    asked: RequestedCall,
    /// Request for the rest of a reply, until the answer has come.
    fetching: Option<Paper>,
    leased: Arc<LeasedInvoker>,
}

impl PyCall {
    /// Wraps a call that was just sent.
    pub fn new(
        invocation: Invocation<'static>,
        asked: RequestedCall,
        sent: SentRequest,
        leased: Arc<LeasedInvoker>,
    ) -> PyCall {
        let deadline = asked.deadline;
        let invocation = Some(ForkCell::new(invocation));
        PyCall(Mutex::new(State {
            invocation,
            finished: None,
            deadline,
            sent,
            asked,
            fetching: None,
            leased,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state, or returns nothing if another thread waits for the call.
    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.0.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if is_forked() {
            return;
        }
        // No thread has read the reply, which may say that the worker still uses memory of the call.
        if self.finished.is_none()
            && let Some(invocation) = &mut self.invocation
        {
            self.finished = Some(invocation.finish());
        }
        if let Some(finished) = self.finished.take() {
            drop(self.open(finished));
        }
    }
}

impl State {
    /// Reads how a call of a function in Python has ended, and notes what the worker uses of its memory.
    fn open(&mut self, finished: Result<Completion, Error>) -> Result<OpenedReply, Error> {
        let worker = self.invocation.as_ref().map_or(0, |invocation| invocation.worker());
        let SentRequest::Objects { request, output } = &self.sent else {
            return Err(Error::new(Code::InvalidArgument, "this call was not one of a function in Python"));
        };
        let lent = &self.leased.lent;
        match finished {
            Ok(done) => {
                let opened = OpenedReply::of(output, done.output_bytes)?;
                opened.note(lent, worker, (request, output));
                Ok(opened)
            }
            Err(error) => {
                // Without a reply, the worker says later that the memory is free.
                if matches!(error.code, Code::FunctionFailed | Code::MemoryExceeded | Code::OutputTooLarge) {
                    let by = ReplySource { worker, process: None };
                    lent.lend(by, request.token, (request.clone(), output.clone()));
                }
                Err(error)
            }
        }
    }

    /// Whether it has ended. If so, all there is to know about that is known.
    fn look(&mut self) -> bool {
        if self.finished.is_some() {
            return true;
        }
        let is_late = self.deadline.is_some_and(|deadline| deadline <= Instant::now());
        let Some(invocation) = &mut self.invocation else { return true };
        if !is_late && !invocation.is_ready() {
            return false;
        }
        self.finished = Some(invocation.finish());
        true
    }

    /// Looks for a short while, then sleeps until there is something to see, or that time.
    fn await_until(&mut self, until: Option<Instant>) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < SPIN {
            if self.look() {
                return true;
            }
            std::hint::spin_loop();
        }
        let until = [until, self.deadline, Some(begun + TICK)].into_iter().flatten().min().unwrap_or(begun);
        if let Some(invocation) = &mut self.invocation {
            invocation.wait_timeout(until.saturating_duration_since(Instant::now()));
        }
        self.look()
    }

    /// Asks for the reply that was larger than its output.
    fn fetch(&mut self, py: Python<'_>, head: Head) -> PyResult<()> {
        if self.fetching.is_some() {
            // The output has the size that the worker asked for.
            return Err(raised(
                py,
                &Error::new(Code::Protocol, "a worker's reply is larger than it said before"),
            ));
        }
        let Some(invocation) = self.invocation.take() else { return Ok(()) };
        let (wanted, worker) = (invocation.returned_bytes(), invocation.worker());
        drop(invocation);
        let SentRequest::Objects { output, .. } = &mut self.sent else { return Ok(()) };
        let failed = |error: Error| raised(py, &error);
        let fetching = WrittenRequest::new(py, head, &[], (&self.leased.pool, false))?;
        *output = self.leased.pool.take(u64::from(wanted)).map_err(failed)?;
        let asked = RequestedCall { worker: Some(worker), retries: 0, ..self.asked };
        let sent = self.leased.send(&asked, (&fetching.paper, fetching.len_bytes), (output, output.len()));
        self.invocation = Some(ForkCell::new(sent.map_err(failed)?));
        // The request for the rest is small, and the worker has read it when the answer has come.
        self.fetching = Some(fetching.paper);
        self.finished = None;
        Ok(())
    }
}

#[pymethods]
impl PyCall {
    /// Waits for the end of the call, at most `timeout` seconds, and returns whether it has ended.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        if let Some(mut state) = self.try_lock() {
            let looks = if timeout.is_some_and(|timeout| timeout <= 0.0) { 1 } else { ATTACHED_LOOKS };
            for _ in 0..looks {
                if state.look() {
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
        }
        let until = timeout.map(|timeout| {
            let timeout = Duration::try_from_secs_f64(timeout).unwrap_or_default();
            Instant::now().checked_add(timeout)
        });
        let until = until.flatten();
        while until.is_none_or(|until| Instant::now() < until) {
            if py.detach(|| self.lock().await_until(until)) {
                return Ok(true);
            }
            py.check_signals()?;
        }
        Ok(false)
    }

    /// Whether the call has ended, as far as this can be found without waiting.
    fn done(&self) -> bool {
        self.try_lock().is_some_and(|mut state| state.look())
    }

    /// Puts the call's number into the queue when the call may have ended. Returns whether it has ended already.
    fn watch(&self, py: Python<'_>, queue: &PyQueue, number: u64) -> bool {
        let waker = queue.waker(number);
        py.detach(|| {
            let mut state = self.lock();
            if state.look() {
                return true;
            }
            let Some(invocation) = &mut state.invocation else { return true };
            match Pin::new(&mut **invocation).poll(&mut Context::from_waker(&waker)) {
                Poll::Pending => false,
                Poll::Ready(result) => {
                    state.finished = Some(result);
                    true
                }
            }
        })
    }

    /// Number of the worker that has executed it; none once its reply was read.
    fn worker(&self) -> Option<u32> {
        self.lock().invocation.as_ref().map(|invocation| invocation.worker())
    }

    /// Returns the reply of a Python function: its kind, and its parts. Returns nothing if the reply is larger than
    /// expected and the
    /// rest is still to come.
    fn reply<'py>(&self, py: Python<'py>) -> PyResult<Option<WorkerReply<'py>>> {
        let mut state = self.lock();
        let Some(finished) = state.finished.take() else {
            return Err(invalid(py, "this call has not ended, or its result was collected"));
        };
        let opened = state.open(finished);
        let SentRequest::Objects { request, output } = &state.sent else {
            return Err(invalid(py, "this call was not one of a function in Python"));
        };
        match opened {
            Ok(opened) => {
                let (request, output) = (request.clone(), output.clone());
                state.invocation = None;
                request.reply(py, &output, &opened).map(Some)
            }
            Err(error) if error.code == Code::OutputTooLarge => {
                let head = Head { operation: FETCH, token: request.token };
                state.fetch(py, head).map(|()| None)
            }
            Err(error) => Err(raised(py, &error)),
        }
    }

    /// Returns the size of another function's output, and the output if the caller passed no memory for it.
    fn bytes(&self, py: Python<'_>) -> PyResult<(usize, Option<OwnedBuffer>)> {
        let mut state = self.lock();
        let Some(finished) = state.finished.take() else {
            return Err(invalid(py, "this call has not ended, or its result was collected"));
        };
        state.invocation = None;
        let done = finished.map_err(|error| raised(py, &error))?;
        let SentRequest::Bytes(CallBuffers { output, .. }) = &state.sent else {
            return Err(invalid(py, "this call was one of a function in Python"));
        };
        let buffer = output.as_ref().map(|paper| {
            let (at, written) = (paper.start(), done.output_bytes);
            debug_assert!(written <= paper.len(), "{written} bytes of output lie in {}", paper.len());
            OwnedBuffer::new(at, done.output_bytes as u64, false, BufferOwner::Message(paper.clone()))
        });
        Ok((done.output_bytes, buffer))
    }
}
