//! The XPU interface for functions in JavaScript: this worker process as a global process.
//!
//! `xpu.js` is the functions' interface. Its requests are JSON, in which ids are decimal text, because a number of
//! JavaScript does not hold 64 bits. A request either is answered at once ([`answer`]), or is an [`WaitingOperation`] that may
//! wait.
//!
//! Ends of FIFOs, executors and chains have numbers here. An operation has its object to itself: it is taken from the
//! table and put back. An object that is closed meanwhile is released when the operation ends.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use sublet_proto::{Code, Error};
use sublet_xpu::{
    Chain, Executor, FifoRights, FifoShape, GlobalId, Process, Reader, Spawn, Unread, Writer, process,
};

use crate::operation::{PollableOperation, deadline, decode, invalid, within};

/// The functions' interface, in JavaScript: the template compiles it before it is forked.
pub(crate) const SOURCE: &str = include_str!("xpu.js");

/// Longest message that is read at the first attempt, in bytes: its length is not known before.
const SHORT_BYTES: usize = 4096;

thread_local! {
    /// The objects of this process: of Node.js's main thread.
    static OBJECTS: RefCell<Objects> = const { RefCell::new(Objects { last: 0, of: BTreeMap::new() }) };
}

/// An object that requests name by a number.
enum Object {
    Reader(Reader),
    Writer(Writer),
    Executor(Executor),
    Chain(Chain),
}

/// Objects by number; nothing for one that an operation uses.
struct Objects {
    last: u32,
    of: BTreeMap<u32, Option<Object>>,
}

/// A global id.
#[derive(Clone, Copy)]
struct Id(GlobalId);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Id, D::Error> {
        let text = String::deserialize(from)?;
        let bits = text.parse().map_err(|_| serde::de::Error::custom(format!("{text:?} is no global id")))?;
        Ok(Id(GlobalId::from_bits(bits)))
    }
}

/// A request that does not wait.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum Request {
    Pid,
    Grant { to: Id, object: Id, rights: u32 },
    Revoke { from: Id, object: Id, rights: u32 },
    Rights { object: Id },
    Fifo { name: String, slots: u32, slot_bytes: u32 },
    Unit { number: u32 },
    Device { processor: u32, name: String },
    Find { kind: String },
    Spawn { unit: u32, path: String, args: Vec<String>, env: Vec<String>, capabilities: Vec<(Id, u32)> },
    Pids { end: u32 },
    Close { end: u32 },
}

/// A request that may wait.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum Step {
    Connect { name: String },
    ConnectTo { object: Id },
    ConnectToRead { name: String },
    Read { end: u32 },
    Write { end: u32 },
    StartExecutor { unit: u32, max_bytes: u64, package: String },
    Call { end: u32, function: String },
    Submit { end: u32, function: String },
    Result { end: u32 },
    StartChain { graph: String, max_bytes: u64 },
    CallChain { end: u32 },
}

/// An operation in progress.
pub(crate) struct WaitingOperation {
    step: Step,
    /// The message or input.
    bytes: Vec<u8>,
    until: Option<Instant>,
    /// The object that it uses.
    object: Option<Object>,
    /// Whether its call was begun, and is waited for.
    is_begun: bool,
    outcome: Option<Result<OperationResult, Error>>,
}

/// The result of an operation.
#[derive(Default)]
struct OperationResult {
    /// The process that has written a message.
    writer: Option<GlobalId>,
    /// A message or output.
    bytes: Option<Vec<u8>>,
    /// An object that was made.
    made: Option<Object>,
}

/// An id as JavaScript gets it.
fn text(id: GlobalId) -> String {
    id.to_bits().to_string()
}

/// Answers a request that does not wait.
///
/// # Errors
/// Those of [`Process`].
pub(crate) fn answer(request: &str) -> Result<Value, Error> {
    match decode(request)? {
        Request::Close { end } => Ok(json!(close(end))),
        Request::Pids { end } => pids(end),
        request => answer_by(process()?, request),
    }
}

fn answer_by(process: &Process, request: Request) -> Result<Value, Error> {
    Ok(match request {
        Request::Pid => json!(text(process.pid())),
        Request::Grant { to, object, rights } => {
            process.grant(to.0, object.0, FifoRights::from_bits(rights)?)?;
            Value::Null
        }
        Request::Revoke { from, object, rights } => {
            process.revoke(from.0, object.0, FifoRights::from_bits(rights)?)?;
            Value::Null
        }
        Request::Rights { object } => json!(process.rights(object.0)?.to_bits()),
        Request::Fifo { name, slots, slot_bytes } => {
            keep(Object::Reader(process.init(&name, FifoShape { lines: slots, slot_bytes })?))
        }
        Request::Unit { number } => json!(process.unit(number)?),
        Request::Device { processor, name } => json!(process.device(processor, &name)?),
        Request::Find { kind } => json!(process.find(&kind)?),
        Request::Spawn { unit, path, args, env, capabilities } => {
            let bytes = |words: Vec<String>| words.into_iter().map(String::into_bytes).collect();
            let capability = |(object, rights): (Id, u32)| Ok((object.0, FifoRights::from_bits(rights)?));
            let capabilities = capabilities.into_iter().map(capability).collect::<Result<_, Error>>()?;
            let (args, env) = (bytes(args), bytes(env));
            let spawn = Spawn { path, args, env, capabilities, ..Spawn::default() };
            json!(text(process.spawn(unit, &spawn)?))
        }
        Request::Pids { .. } | Request::Close { .. } => Value::Null,
    })
}

/// Gives an object a number. Returns what JavaScript has to know of it.
fn keep(object: Object) -> Value {
    let id = match &object {
        Object::Reader(reader) => Some(reader.object()),
        Object::Writer(writer) => Some(writer.object()),
        Object::Executor(executor) => Some(executor.pid()),
        Object::Chain(_) => None,
    };
    OBJECTS.with_borrow_mut(|objects| {
        objects.last += 1;
        let before = objects.of.insert(objects.last, Some(object));
        debug_assert!(before.is_none(), "the number {} is given to two objects", objects.last);
        json!({ "end": objects.last, "id": id.map(text) })
    })
}

/// Closes an object, and tells whether it was open. One that an operation uses is released with that.
fn close(end: u32) -> bool {
    let closed = OBJECTS.with_borrow_mut(|objects| objects.of.remove(&end));
    closed.is_some()
}

fn pids(end: u32) -> Result<Value, Error> {
    OBJECTS.with_borrow(|objects| match objects.of.get(&end) {
        Some(Some(Object::Chain(chain))) => Ok(json!(chain.pids().map(text).collect::<Vec<_>>())),
        Some(None) => Err(invalid("the chain is in use".to_owned())),
        _ => Err(closed()),
    })
}

#[cold]
fn closed() -> Error {
    invalid("it was closed".to_owned())
}

impl Step {
    /// The number of the object that it uses.
    fn object(&self) -> Option<u32> {
        match self {
            Step::Read { end }
            | Step::Write { end }
            | Step::Call { end, .. }
            | Step::Submit { end, .. }
            | Step::Result { end }
            | Step::CallChain { end } => Some(*end),
            _ => None,
        }
    }
}

impl PollableOperation for WaitingOperation {
    /// Takes the operation's object. Fails also for an object that was closed or is in use.
    fn begin(request: &str, bytes: Vec<u8>) -> Result<WaitingOperation, Error> {
        let (step, until) = (decode::<Step>(request)?, deadline(request)?);
        let object = step.object().map(take).transpose()?;
        Ok(WaitingOperation { step, bytes, until, object, is_begun: false, outcome: None })
    }

    fn may_begin_at_once(&self) -> bool {
        self.object.is_some()
    }

    fn attempt(&mut self, tick: Instant) -> bool {
        debug_assert!(self.outcome.is_none(), "an operation of object {:?} has ended", self.step.object());
        let Some(outcome) = within(self.until, tick, |until| self.step(until)) else { return false };
        if outcome.is_err() && self.is_begun {
            self.give_up();
        }
        self.outcome = Some(outcome);
        true
    }

    /// Whether its object was closed meanwhile.
    fn is_cancelled(&self) -> bool {
        let is_open = |end| OBJECTS.with_borrow(|objects| objects.of.contains_key(&end));
        self.step.object().is_some_and(|end| !is_open(end))
    }

    /// Puts the object back. Fails also if the object was closed meanwhile.
    fn end(self) -> Result<(Value, Option<Vec<u8>>), Error> {
        let is_closed = self.is_cancelled();
        if let (Some(end), false) = (self.step.object(), is_closed) {
            let before = OBJECTS.with_borrow_mut(|objects| objects.of.insert(end, self.object));
            debug_assert!(matches!(before, Some(None)), "two operations use object {end}");
        }
        match self.outcome {
            Some(outcome) => {
                let OperationResult { writer, bytes, made } = outcome?;
                let told = made.map_or_else(|| json!({ "writer": writer.map(text) }), keep);
                Ok((told, bytes))
            }
            None if is_closed => Err(closed()),
            None => Err(Error::new(Code::Internal, "an operation ended without an outcome")),
        }
    }
}

impl WaitingOperation {
    fn step(&mut self, tick: Instant) -> Result<OperationResult, Error> {
        let WaitingOperation { step, bytes, until, object, is_begun, .. } = self;
        let tick = Some(tick);
        match (step, object.as_mut()) {
            (Step::Connect { name }, _) => made(Object::Writer(process()?.connect(name, tick)?)),
            (Step::ConnectTo { object }, _) => made(Object::Writer(process()?.connect_to(object.0, tick)?)),
            (Step::ConnectToRead { name }, _) => {
                made(Object::Reader(process()?.connect_to_read(name, tick)?))
            }
            (Step::StartExecutor { unit, max_bytes, package }, _) => {
                made(Object::Executor(process()?.executor_of(package, *unit, *max_bytes, *until)?))
            }
            (Step::StartChain { graph, max_bytes }, _) => {
                made(Object::Chain(process()?.chain(graph.as_bytes(), *max_bytes, *until)?))
            }
            (Step::Read { .. }, Some(Object::Reader(reader))) => read(reader, tick),
            (Step::Write { .. }, Some(Object::Writer(writer))) => {
                writer.write(bytes.as_slice(), tick)?;
                Ok(OperationResult::default())
            }
            (Step::Call { function, .. }, Some(Object::Executor(executor))) => {
                if !*is_begun {
                    executor.begin(function, bytes.as_slice(), tick)?;
                    *is_begun = true;
                }
                executor.wait(tick)?;
                output(executor.result(tick)?)
            }
            (Step::Submit { function, .. }, Some(Object::Executor(executor))) => {
                executor.submit(function, bytes.as_slice(), tick)?;
                Ok(OperationResult::default())
            }
            (Step::Result { .. }, Some(Object::Executor(executor))) => {
                executor.wait(tick)?;
                output(executor.result(tick)?)
            }
            (Step::CallChain { .. }, Some(Object::Chain(chain))) => {
                if !*is_begun {
                    chain.begin(bytes.as_slice());
                    *is_begun = true;
                }
                chain.wait(tick)?;
                output(chain.result()?)
            }
            _ => Err(invalid("the request does not fit its object".to_owned())),
        }
    }

    /// Drops the output of a call that has failed, or was not answered in time.
    fn give_up(&mut self) {
        match &mut self.object {
            Some(Object::Executor(executor)) => executor.give_up(),
            Some(Object::Chain(chain)) => chain.give_up(),
            _ => {}
        }
    }
}

/// Takes an object for an operation.
fn take(end: u32) -> Result<Object, Error> {
    OBJECTS.with_borrow_mut(|objects| match objects.of.get_mut(&end) {
        Some(place) => place.take().ok_or_else(|| invalid("another operation uses it".to_owned())),
        None => Err(closed()),
    })
}

fn made(object: Object) -> Result<OperationResult, Error> {
    Ok(OperationResult { made: Some(object), ..OperationResult::default() })
}

fn output(bytes: &[u8]) -> Result<OperationResult, Error> {
    Ok(OperationResult { bytes: Some(bytes.to_vec()), ..OperationResult::default() })
}

/// Reads a message, however long it is.
fn read(reader: &mut Reader, tick: Option<Instant>) -> Result<OperationResult, Error> {
    let mut bytes = vec![0; SHORT_BYTES];
    loop {
        match reader.read(bytes.as_mut_slice(), tick) {
            Ok((len, writer)) => {
                bytes.truncate(usize::try_from(len).unwrap_or(usize::MAX));
                return Ok(OperationResult { writer: Some(writer), bytes: Some(bytes), made: None });
            }
            Err(Unread::TooLong(len)) => {
                let len = usize::try_from(len).map_err(|_| invalid(format!("a message of {len} bytes")))?;
                bytes.resize(len, 0);
            }
            Err(Unread::Error(error)) => return Err(error),
        }
    }
}
