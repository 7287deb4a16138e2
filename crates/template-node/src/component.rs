//! The memory components and the messages of a graph's component, for functions in JavaScript.
//!
//! `component.js` is the functions' interface to this module. A process has one worker, so it has one instance.
//!
//! Invariants:
//! - JavaScript gets copies only: V8 must not see memory that other processes write.
//! - An operation uses the run during which it began, and fails if that run is over.

use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::time::Instant;

use serde::Deserialize;
use serde_json::{Value, json};
use sublet_proto::{Code, Error, to_usize};
use sublet_runtime::worker::channel::Channel;
use sublet_runtime::worker::worker_run::{self, MAX_MESSAGE_BYTES, ReceiveError, WorkerRun};

use crate::operation::{PollableOperation, deadline, decode, invalid, within};

/// The functions' interface, in JavaScript: the template compiles it before it is forked.
pub(crate) const SOURCE: &str = include_str!("component.js");

/// The worker of a process.
const WORKER: u32 = 0;

thread_local! {
    /// The latest run of which a channel was opened, and its number: of Node.js's main thread.
    static LATEST: RefCell<(u64, Weak<WorkerRun>)> = const { RefCell::new((0, Weak::new())) };
}

/// A request that does not wait.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "camelCase")]
enum Request {
    Instance,
    Open { component: String },
    Prefetch { channel: OpenChannel, offset: u64, nbytes: u64 },
}

/// A request that may wait.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "camelCase")]
enum Step {
    Nbytes { channel: OpenChannel },
    Read { channel: OpenChannel, offset: u64, nbytes: Option<u64> },
    Write { channel: OpenChannel, offset: u64 },
    Grow { channel: OpenChannel, nbytes: u64 },
    Resize { channel: OpenChannel, nbytes: u64 },
    Release { channel: OpenChannel },
    Sync { channel: OpenChannel },
    Send { component: String, instance: u32 },
    Receive { component: String },
}

/// A memory component as JavaScript has opened it: by its name, in the run of this number.
#[derive(Deserialize)]
struct OpenChannel {
    run: u64,
    component: String,
}

/// An operation in progress on memory or messages of a run.
pub(crate) struct ComponentOperation {
    step: Step,
    run: Arc<WorkerRun>,
    /// The bytes to write or send.
    bytes: Vec<u8>,
    deadline: Option<Instant>,
    outcome: Option<Result<ComponentResult, Error>>,
}

/// Description of an outcome, and its bytes.
type ComponentResult = (Value, Option<Vec<u8>>);

/// The run that the current call belongs to.
fn present() -> Result<Arc<WorkerRun>, Error> {
    worker_run::current().ok_or_else(|| {
        invalid(
            "this call is not of a graph's run, and has neither memory components nor messages".to_owned(),
        )
    })
}

/// The number of the current run, by which JavaScript names it.
fn number_of(run: &Arc<WorkerRun>) -> u64 {
    LATEST.with_borrow_mut(|(number, latest)| {
        // The weak reference keeps the address, so no later run has it.
        if !std::ptr::eq(latest.as_ptr(), Arc::as_ptr(run)) {
            *number += 1;
            *latest = Arc::downgrade(run);
        }
        *number
    })
}

#[cold]
fn over() -> Error {
    Error::new(Code::LeaseEnded, "the run of this operation is over: open the channel again")
}

impl OpenChannel {
    /// The run in which it was opened, if that is the current one.
    fn run(&self) -> Result<Arc<WorkerRun>, Error> {
        worker_run::current().filter(|run| number_of(run) == self.run).ok_or_else(over)
    }

    fn of<'run>(&self, run: &'run WorkerRun) -> Result<&'run Channel, Error> {
        run.channel(&self.component)?.used_by(WORKER)
    }
}

/// Answers a request that does not wait.
///
/// # Errors
/// `invalid_argument` outside of runs, and without an edge to the component; those of [`Channel`].
pub(crate) fn answer(request: &str) -> Result<Value, Error> {
    Ok(match decode(request)? {
        Request::Instance => {
            let run = worker_run::current();
            json!(run.map_or((0, 1), |run| (run.instance(WORKER), run.instances)))
        }
        Request::Open { component } => {
            let run = present()?;
            let is_writable = run.channel(&component)?.held_by(WORKER)?.is_writable();
            json!({ "run": number_of(&run), "readonly": !is_writable })
        }
        Request::Prefetch { channel, offset, nbytes } => {
            let run = channel.run()?;
            channel.of(&run)?.prefetch(offset, nbytes);
            Value::Null
        }
    })
}

/// Publishes the writes of a function that has returned, for the components that run next.
///
/// # Errors
/// The reason why a component is over.
pub(crate) fn settle() -> Result<(), Error> {
    worker_run::current().map_or(Ok(()), |run| run.sync(WORKER))
}

impl Step {
    /// The run that it is for.
    fn run(&self) -> Result<Arc<WorkerRun>, Error> {
        match self {
            Step::Send { .. } | Step::Receive { .. } => present(),
            Step::Nbytes { channel }
            | Step::Read { channel, .. }
            | Step::Write { channel, .. }
            | Step::Grow { channel, .. }
            | Step::Resize { channel, .. }
            | Step::Release { channel }
            | Step::Sync { channel } => channel.run(),
        }
    }

    /// Whether an attempt does not wait: a message is looked for, and memory of this machine is copied.
    fn is_at_once(&self, run: &WorkerRun, write_bytes: usize) -> bool {
        let is_here = |channel: &OpenChannel, offset: u64, nbytes: u64| {
            channel.of(run).and_then(|channel| channel.mapped(offset, nbytes)).is_ok()
        };
        match self {
            Step::Send { .. } | Step::Receive { .. } => true,
            Step::Read { channel, offset, nbytes: Some(nbytes) } => is_here(channel, *offset, *nbytes),
            Step::Write { channel, offset } => is_here(channel, *offset, write_bytes as u64),
            _ => false,
        }
    }
}

impl PollableOperation for ComponentOperation {
    fn begin(request: &str, bytes: Vec<u8>) -> Result<ComponentOperation, Error> {
        let (step, deadline) = (decode::<Step>(request)?, deadline(request)?);
        let run = step.run()?;
        Ok(ComponentOperation { step, run, bytes, deadline, outcome: None })
    }

    fn may_begin_at_once(&self) -> bool {
        self.step.is_at_once(&self.run, self.bytes.len())
    }

    fn attempt(&mut self, tick: Instant) -> bool {
        debug_assert!(self.outcome.is_none(), "an operation with {} bytes has ended", self.bytes.len());
        self.outcome = match &self.step {
            _ if self.is_cancelled() => Some(Err(over())),
            Step::Send { component, instance } => within(self.deadline, tick, |until| {
                let (own, bytes) = (self.run.instance(WORKER), self.bytes.as_slice());
                self.run.send(own, (component.as_str(), *instance), bytes.into(), Some(until))?;
                Ok((Value::Null, None))
            }),
            Step::Receive { component } => {
                within(self.deadline, tick, |until| receive(&self.run, component, until))
            }
            _ => Some(self.access()),
        };
        self.outcome.is_some()
    }

    fn is_cancelled(&self) -> bool {
        worker_run::current().is_none_or(|run| !Arc::ptr_eq(&run, &self.run))
    }

    fn end(self) -> Result<ComponentResult, Error> {
        self.outcome.unwrap_or_else(|| Err(over()))
    }
}

impl ComponentOperation {
    /// Accesses memory.
    fn access(&self) -> Result<ComponentResult, Error> {
        let run = &self.run;
        match &self.step {
            Step::Nbytes { channel } => return Ok((json!(channel.of(run)?.len_bytes()?), None)),
            Step::Read { channel, offset, nbytes } => {
                return Ok((Value::Null, Some(read(channel.of(run)?, *offset, *nbytes)?)));
            }
            Step::Write { channel, offset } => {
                channel.of(run)?.write(*offset, self.bytes.as_slice().into())?;
            }
            Step::Grow { channel, nbytes } => channel.of(run)?.grow(*nbytes)?,
            Step::Resize { channel, nbytes } => channel.of(run)?.resize(WORKER, *nbytes)?,
            Step::Release { channel } => channel.of(run)?.release(WORKER, run.instance(WORKER))?,
            Step::Sync { channel } => channel.of(run)?.sync()?,
            Step::Send { .. } | Step::Receive { .. } => {
                return Err(Error::new(Code::Internal, "a message is no access of memory"));
            }
        }
        Ok((Value::Null, None))
    }
}

/// Copies bytes out of a component, up to its end if their number is not given.
fn read(channel: &Channel, offset: u64, nbytes: Option<u64>) -> Result<Vec<u8>, Error> {
    let is = channel.len_bytes()?;
    let nbytes = nbytes.unwrap_or_else(|| is.saturating_sub(offset));
    if offset.checked_add(nbytes).is_none_or(|end| end > is) {
        let name = channel.name();
        return Err(invalid(format!("{nbytes} bytes at {offset} of memory component {name} of {is} bytes")));
    }
    let too_large =
        || Error::new(Code::MemoryExceeded, format!("there is no memory for a copy of {nbytes} bytes"));
    let len = usize::try_from(nbytes).map_err(|_| too_large())?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| too_large())?;
    bytes.resize(len, 0);
    channel.read(offset, bytes.as_mut_slice().into())?;
    Ok(bytes)
}

/// Takes the next message of a component.
fn receive(run: &WorkerRun, component: &str, until: Instant) -> Result<ComponentResult, Error> {
    let mut bytes = vec![0; to_usize(MAX_MESSAGE_BYTES)];
    match run.receive(run.instance(WORKER), component, bytes.as_mut_slice().into(), Some(until)) {
        Ok((len, from)) => {
            bytes.truncate(len as usize);
            Ok((json!({ "instance": from }), Some(bytes)))
        }
        Err(ReceiveError::Error(error)) => Err(error),
        Err(ReceiveError::TooLong(len)) => {
            Err(Error::new(Code::Protocol, format!("a message of {len} bytes, which none may have")))
        }
    }
}
