//! Calls functions of this process's package, or of another one, on another processor (Molecule 4.2: a runtime there,
//! started by xspawn; 4.3: callers and callees are connected by FIFOs). An executor is a worker process of that package
//! that this process has started.
//!
//! An executor has a lease of its own, on the named processor, and ends with this process. Its calls are executed one
//! after another, in the order in which they were submitted; a caller that needs more at once starts more executors.
//!
//! Two FIFOs connect caller and executor. The caller makes the FIFO for answers and lets the executor write to it. The
//! executor makes the FIFO for calls (its *self FIFO*), lets the caller write to it, and sends its id in its first
//! answer.
//!
//! ```text
//! call     input, the function's name, or several with | between them, its length (u32); nothing: the caller is done
//! answer   output or why it failed, the error's code (u32), 0 for none
//! first    the id of the FIFO for calls (u64), 0 (u32)
//! ```
//!
//! In a list of functions the output of each is the input of the next, and intermediate outputs stay with the executor.
//! Outputs that stay there for later calls have a name ([`named_buffers`]).
//!
//! Invariants:
//! - Answers come in the order of the calls, one for each. A call whose answer the caller has given up is executed all
//!   the same, and its answer is dropped when it comes.
//! - The error message of a function is passed on with the function's name before it, at each level.
//! - A submission does not wait until an answer is taken: it fails if the ring has not enough space.
//! - Submitting a call and taking its answer have neither system calls, allocations nor locks while both ends are awake.

mod engine;
mod named_buffers;
mod served_executor;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

pub use engine::{BufferName, Execute, InputSource, MAX_PLACES, OutputSink};
pub use served_executor::ServedExecutor;

use sublet_fabric::SharedBytes;
use sublet_proto::{Code, Error, to_usize};

use crate::capability::{FifoRights, GlobalId};
use crate::fifo::{FifoShape, Reader, Unread, Writer};
use crate::process::{Process, Spawn};

/// Length of the frame that a call or an answer carries beside its bytes, and longest name of a function, in bytes.
const FRAME_BYTES: usize = 4;
const MAX_NAME_BYTES: usize = 255;
/// Calls without an answer, at most.
const MAX_CALLS: usize = 8;
const LINES: u32 = 16;
/// Largest number of parts that all calls together take of the ring. The ring then has space for all of them, whatever
/// the executor does, and a caller that submits does not wait for an executor that waits for it.
const MAX_PARTS: u64 = (LINES - LINES / 4) as u64;
/// Time after which a waiting end checks whether the other one still exists.
const NAP: Duration = Duration::from_millis(50);
/// Separator of functions that follow each other in a call, and first character of the name of a buffer.
const THEN: char = '|';
const PLACE: char = '@';
/// Alignment of inputs and outputs, in bytes: any number may be read there.
const ALIGNMENT: usize = 64;

/// Largest input or output, in bytes.
pub const MAX_BYTES: u64 = 32 << 20;
/// Largest input or output by default, in bytes.
pub const DEFAULT_BYTES: u64 = 64 << 10;

/// Functions of this process's package on some processor: see the [module](self). When it is dropped, it ends.
pub struct Executor {
    pid: GlobalId,
    max_bytes: u64,
    calls: Writer,
    answers: Reader,
    /// The functions that were called, once each.
    functions: Vec<String>,
    /// The calls that are not answered, by their functions.
    waiting: VecDeque<PendingCall>,
    message: AlignedBytes,
    answer: AlignedBytes,
    /// The oldest answer, which was read and not taken.
    ready: Option<(PendingCall, u64)>,
}

#[derive(Clone, Copy)]
struct PendingCall {
    function: usize,
    /// Number of parts of the ring that the call takes.
    parts: u64,
    /// Set if the answer will be dropped.
    given_up: bool,
}

/// Arguments of an executor's program.
struct Order {
    caller: GlobalId,
    answers: GlobalId,
    max_bytes: u64,
}

/// Bytes that begin at a multiple of [`ALIGNMENT`].
struct AlignedBytes {
    bytes: Vec<u8>,
    at: usize,
}

impl Process {
    /// Starts an executor on a processor or a device of the computer: a worker process of this process's package, in a
    /// lease of its own of one core and the memory that this process has for each of its cores. Inputs and outputs have
    /// at most `max_bytes` bytes; 0 stands for [`DEFAULT_BYTES`].
    ///
    /// # Errors
    /// `invalid_argument` for more than [`MAX_BYTES`]; the errors of [`Process::spawn`]; the error of loading the
    /// package; `worker_died` if the executor ends; `deadline_exceeded`.
    pub fn executor(&self, unit: u32, max_bytes: u64, deadline: Option<Instant>) -> Result<Executor, Error> {
        self.executor_of("", unit, max_bytes, deadline)
    }

    /// Starts an executor like [`Process::executor`], of another deployed package, by its name or digest.
    ///
    /// # Errors
    /// As for [`Process::executor`]; `unknown_package`.
    pub fn executor_of(
        &self,
        package: &str,
        unit: u32,
        max_bytes: u64,
        deadline: Option<Instant>,
    ) -> Result<Executor, Error> {
        let max_bytes = if max_bytes == 0 { DEFAULT_BYTES } else { max_bytes };
        let shape = shape(max_bytes)?;
        let answers = self.init("", shape)?;
        let order = Order { caller: self.pid(), answers: answers.object(), max_bytes };
        let capabilities = vec![(answers.object(), FifoRights::WRITE)];
        let spawn =
            Spawn { args: order.words(), capabilities, package: package.to_owned(), ..Spawn::default() };
        let pid = self.start(unit, &spawn)?;
        let mut begun =
            StartingExecutor { process: self, pid, answers, message: AlignedBytes::for_messages(shape) };
        let calls = self.connect_to(begun.calls(deadline)?, deadline)?;
        let StartingExecutor { answers, message: answer, .. } = begun;
        let message = AlignedBytes::for_messages(shape);
        let (functions, waiting) = (Vec::new(), VecDeque::with_capacity(MAX_CALLS));
        Ok(Executor { pid, max_bytes, calls, answers, functions, waiting, message, answer, ready: None })
    }
}

/// An executor that has not reported its FIFO for calls yet.
struct StartingExecutor<'process> {
    process: &'process Process,
    pid: GlobalId,
    answers: Reader,
    message: AlignedBytes,
}

impl StartingExecutor<'_> {
    /// Waits until the executor has sent the id of its FIFO for calls.
    fn calls(&mut self, deadline: Option<Instant>) -> Result<GlobalId, Error> {
        let object = self.answers.object();
        loop {
            match self.answers.read(self.message.all(), until(deadline)) {
                Ok((len, _)) => {
                    let said = answer(self.message.first(len))?;
                    let id = said.try_into().map_err(|_| nonsense(self.pid))?;
                    return Ok(GlobalId::from_bits(u64::from_le_bytes(id)));
                }
                Err(unread) => check_waiting(unread, self.pid, deadline)?,
            }
            // Granting rights to a process that is gone fails.
            if self.process.grant(self.pid, object, FifoRights::WRITE).is_err() {
                return Err(died(self.pid));
            }
        }
    }
}

impl Executor {
    /// The executor's process id.
    pub fn pid(&self) -> GlobalId {
        self.pid
    }

    /// Number of the executor in this process.
    pub fn descriptor(&self) -> u32 {
        self.answers.descriptor()
    }

    /// Calls a function of the package by its name, and waits for its answer. Functions in a list such as
    /// `resize|compress` are executed one after the other: the output of each is the input of the next, stays in the
    /// memory of the device if there is one, and has at most the size of an output.
    ///
    /// `decode|@picture` keeps the last output there under a name, and the answer is empty. `@picture|resize` then
    /// reads it as its input, any number of times, and the call has no input of its own. `|@picture` keeps the call's
    /// input there. `@picture` returns the content of the buffer. An empty input removes it. An executor has
    /// [`MAX_PLACES`] such buffers.
    ///
    /// # Errors
    /// As for [`Executor::begin`] and [`Executor::result`]. A call that was not answered in time is executed to its end
    /// before the next one.
    pub fn call<'input>(
        &mut self,
        function: &str,
        input: impl Into<SharedBytes<'input>>,
        deadline: Option<Instant>,
    ) -> Result<&[u8], Error> {
        self.begin(function, input, deadline)?;
        if let Err(error) = self.wait(deadline) {
            self.give_up();
            return Err(error);
        }
        self.result(deadline)
    }

    /// Submits the only call that there is.
    ///
    /// # Errors
    /// As for [`Executor::submit`]; `invalid_argument` while answers of earlier calls are to be taken.
    pub fn begin<'input>(
        &mut self,
        function: &str,
        input: impl Into<SharedBytes<'input>>,
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        let kept =
            self.waiting.iter().filter(|call| !call.given_up).count() + usize::from(self.ready.is_some());
        if kept > 0 {
            let message = format!("{kept} answers of executor {} are to be taken first", self.pid);
            return Err(Error::new(Code::InvalidArgument, message));
        }
        self.submit(function, input, deadline)
    }

    /// Gives up all submitted calls: their answers are dropped.
    pub fn give_up(&mut self) {
        self.ready = None;
        self.waiting.iter_mut().for_each(|call| call.given_up = true);
    }

    /// Submits a call, and does not wait for its answer, which [`Executor::result`] takes.
    ///
    /// # Errors
    /// `invalid_argument` for an input or a name that is too long; `too_many_in_flight`; `deadline_exceeded` while the
    /// ring is full; `worker_died` if the executor has ended.
    pub fn submit<'input>(
        &mut self,
        function: &str,
        input: impl Into<SharedBytes<'input>>,
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        let input = input.into();
        if function.is_empty() || function.len() > MAX_NAME_BYTES {
            let message =
                format!("a function's name has 1 to {MAX_NAME_BYTES} bytes, not {}", function.len());
            return Err(Error::new(Code::InvalidArgument, message));
        }
        if input.len() as u64 > self.max_bytes {
            let message = format!(
                "{function}: {} bytes of input, and executor {} was started for {}",
                input.len(),
                self.pid,
                self.max_bytes
            );
            return Err(Error::new(Code::InvalidArgument, message));
        }
        let parts = self.calls.shape().parts((input.len() + function.len() + FRAME_BYTES) as u64);
        self.check_space(parts)?;
        #[expect(clippy::cast_possible_truncation, reason = "checked above: `MAX_NAME_BYTES` at most")]
        let name_bytes = function.len() as u32;
        let length = name_bytes.to_le_bytes();
        let message =
            self.message.join_shared([input, function.as_bytes().into(), SharedBytes::from(&length)]);
        if let Err(error) = self.calls.write(message, deadline) {
            // The executor has closed the FIFO for calls, or the connection to it is lost.
            let is_gone = matches!(error.code, Code::LeaseEnded | Code::AgentUnreachable);
            return Err(named(function, if is_gone { died(self.pid) } else { error }));
        }
        let function = self.number(function);
        self.waiting.push_back(PendingCall { function, parts, given_up: false });
        Ok(())
    }

    /// Checks that a call of this number of parts can be submitted. Answers that were given up are dropped first, up to
    /// the first one that is still to be taken.
    fn check_space(&mut self, parts: u64) -> Result<(), Error> {
        while self.waiting.front().is_some_and(|call| call.given_up) {
            if self.answers.read(self.answer.all(), Some(Instant::now())).is_err() {
                break;
            }
            self.waiting.pop_front();
        }
        let (calls, taken) = (self.waiting.len(), self.waiting.iter().map(|call| call.parts).sum::<u64>());
        if calls < MAX_CALLS && taken + parts <= MAX_PARTS {
            return Ok(());
        }
        let message = format!("{calls} calls of executor {} are not answered yet", self.pid);
        Err(Error::new(Code::TooManyInFlight, message))
    }

    /// Returns the answer of the oldest call that was submitted and not taken.
    ///
    /// # Errors
    /// The function's own, with its name before the message; and as for [`Executor::wait`].
    pub fn result(&mut self, deadline: Option<Instant>) -> Result<&[u8], Error> {
        self.wait(deadline)?;
        let Some((call, len)) = self.ready.take() else { return Err(nonsense(self.pid)) };
        answer(self.answer.first(len)).map_err(|error| named(&self.functions[call.function], error))
    }

    /// Waits until there is an answer.
    ///
    /// # Errors
    /// `invalid_argument` if there is no such call; `worker_died` if the executor has ended; `deadline_exceeded`, after
    /// which the answer can be taken later.
    pub fn wait(&mut self, deadline: Option<Instant>) -> Result<(), Error> {
        if self.ready.is_some() {
            return Ok(());
        }
        let oldest = self.waiting.iter().find(|call| !call.given_up);
        let Some(function) = oldest.map(|call| call.function) else {
            let message = format!("nothing was submitted to executor {} that is not answered", self.pid);
            return Err(Error::new(Code::InvalidArgument, message));
        };
        self.ready =
            Some(self.next_answer(deadline).map_err(|error| named(&self.functions[function], error))?);
        Ok(())
    }

    /// Whether an answer has come, so that [`Executor::wait`] need not wait.
    ///
    /// # Errors
    /// As for [`Executor::wait`].
    pub(crate) fn is_answered(&mut self) -> Result<bool, Error> {
        Ok(self.ready.is_some() || self.answers.has_message()?)
    }

    /// Reads the next answer that was not given up.
    fn next_answer(&mut self, deadline: Option<Instant>) -> Result<(PendingCall, u64), Error> {
        loop {
            match self.answers.read(self.answer.all(), until(deadline)) {
                Ok((len, _)) => match self.waiting.pop_front() {
                    Some(call) if !call.given_up => return Ok((call, len)),
                    _ => continue,
                },
                Err(Unread::Error(error)) if error.code == Code::DeadlineExceeded => {
                    if self.answers.writers()? == 0 {
                        self.waiting.clear();
                        return Err(died(self.pid));
                    }
                    check_waiting(Unread::Error(error), self.pid, deadline)?;
                }
                Err(unread) => check_waiting(unread, self.pid, deadline)?,
            }
        }
    }

    /// Functions are few, and each has its name kept once.
    fn number(&mut self, function: &str) -> usize {
        self.functions.iter().position(|known| known == function).unwrap_or_else(|| {
            self.functions.push(function.to_owned());
            self.functions.len() - 1
        })
    }
}

impl Drop for Executor {
    /// Tells the executor that its caller is done. If the FIFO is full, the executor learns it soon from the FIFO's
    /// end.
    fn drop(&mut self) {
        let _ = self.calls.write(&[], Some(Instant::now()));
    }
}

/// Returns the error unless it only means that no answer has come yet.
fn check_waiting(unread: Unread, pid: GlobalId, deadline: Option<Instant>) -> Result<(), Error> {
    match unread {
        Unread::TooLong(_) => Err(nonsense(pid)),
        Unread::Error(error) if error.code != Code::DeadlineExceeded => Err(error),
        Unread::Error(_) if deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
            Err(Error::new(Code::DeadlineExceeded, format!("executor {pid} has not answered in time")))
        }
        Unread::Error(_) => Ok(()),
    }
}

/// The time until which to wait before the other end is checked.
fn until(deadline: Option<Instant>) -> Option<Instant> {
    let nap = Instant::now() + NAP;
    Some(deadline.map_or(nap, |deadline| deadline.min(nap)))
}

#[cold]
fn named(function: &str, error: Error) -> Error {
    Error::new(error.code, format!("{function}: {}", error.message))
}

#[cold]
fn died(pid: GlobalId) -> Error {
    Error::new(Code::WorkerDied, format!("executor {pid} has ended"))
}

#[cold]
fn nonsense(pid: GlobalId) -> Error {
    Error::new(Code::Protocol, format!("executor {pid} answers what makes no sense"))
}

/// The parts of an answer.
fn answer(message: &[u8]) -> Result<&[u8], Error> {
    let short = || Error::new(Code::Protocol, "an executor has answered what is shorter than any answer");
    let (bytes, code) = message.split_last_chunk::<FRAME_BYTES>().ok_or_else(short)?;
    match u32::from_le_bytes(*code) {
        0 => Ok(bytes),
        code => Err(Error::new(Code::from_number(code), String::from_utf8_lossy(bytes))),
    }
}

/// The shape of a FIFO that holds a message of `max_bytes` bytes with its frame, and the largest number of calls.
fn shape(max_bytes: u64) -> Result<FifoShape, Error> {
    if max_bytes > MAX_BYTES {
        let message =
            format!("inputs and outputs of an executor have at most {MAX_BYTES} bytes, not {max_bytes}");
        return Err(Error::new(Code::InvalidArgument, message));
    }
    let message = max_bytes + (MAX_NAME_BYTES + FRAME_BYTES) as u64;
    let slots = u64::from(LINES - LINES / 4);
    let page = u64::from(FifoShape::default().slot_bytes);
    #[expect(clippy::cast_possible_truncation, reason = "checked above: `MAX_BYTES` and a name at most")]
    let slot_bytes = message.div_ceil(slots).next_multiple_of(page) as u32;
    FifoShape { lines: LINES, slot_bytes }.check()
}

impl Order {
    fn words(&self) -> Vec<Vec<u8>> {
        let words = [self.caller.to_bits(), self.answers.to_bits(), self.max_bytes];
        words.map(|word| word.to_string().into_bytes()).into()
    }

    fn of(words: &[Vec<u8>]) -> Option<Order> {
        let number = |word: &Vec<u8>| std::str::from_utf8(word).ok()?.parse::<u64>().ok();
        let [caller, answers, max_bytes] = words else { return None };
        let id = |word| number(word).map(GlobalId::from_bits);
        Some(Order { caller: id(caller)?, answers: id(answers)?, max_bytes: number(max_bytes)? })
    }
}

fn check_space(len: usize, capacity: usize) -> Result<usize, Error> {
    if len <= capacity {
        return Ok(len);
    }
    let message = format!("{len} bytes of output do not fit into {capacity}");
    Err(Error::new(Code::OutputTooLarge, message))
}

impl AlignedBytes {
    fn for_messages(shape: FifoShape) -> AlignedBytes {
        AlignedBytes::new(to_usize(shape.max_message_bytes()))
    }

    fn new(len: usize) -> AlignedBytes {
        let bytes = vec![0; len + ALIGNMENT];
        let at = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        AlignedBytes { bytes, at }
    }

    fn all(&mut self) -> &mut [u8] {
        &mut self.bytes[self.at..]
    }

    fn first(&self, len: u64) -> &[u8] {
        &self.bytes[self.at..][..to_usize(len)]
    }

    /// Joins the parts, which fit in the buffer.
    fn join<const N: usize>(&mut self, parts: [&[u8]; N]) -> &[u8] {
        self.join_shared(parts.map(SharedBytes::from))
    }

    /// Joins like [`AlignedBytes::join`], parts that other processes may write meanwhile.
    fn join_shared<const N: usize>(&mut self, parts: [SharedBytes<'_>; N]) -> &[u8] {
        let mut len = 0;
        for part in parts {
            len += part.copy_to(&mut self.all()[len..]);
        }
        self.first(len as u64)
    }

    /// Appends a code to the first `len` bytes.
    fn close(&mut self, len: usize, code: u32) -> &[u8] {
        self.all()[len..][..FRAME_BYTES].copy_from_slice(&code.to_le_bytes());
        self.first((len + FRAME_BYTES) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::served_executor::parts;
    use super::*;

    #[test]
    fn calls_and_answers_decode_as_encoded() {
        let shape = shape(100).unwrap();
        let mut buffer = AlignedBytes::for_messages(shape);
        assert_eq!(buffer.all().as_ptr() as usize % ALIGNMENT, 0);
        let message = buffer.join([b"input", b"name", &4u32.to_le_bytes()]).to_vec();
        assert_eq!(parts(&message), Some(("name", b"input".as_slice())));
        for wrong in [&message[..3], &b"name\x05\0\0\0"[..], b"\xff\x01\0\0\0"] {
            assert_eq!(parts(wrong), None, "{wrong:?}");
        }
        buffer.join([b"output"]);
        assert_eq!(answer(buffer.close(6, 0)), Ok(&b"output"[..]));
        buffer.join([b"why"]);
        let error = answer(buffer.close(3, Code::FunctionFailed.number())).unwrap_err();
        assert_eq!((error.code, &*error.message), (Code::FunctionFailed, "why"));
        assert_eq!(answer(b"abc").unwrap_err().code, Code::Protocol);
    }

    #[test]
    fn fifo_holds_the_longest_message() {
        for bytes in [1, 4096, 12 * 4096, DEFAULT_BYTES, MAX_BYTES] {
            let shape = shape(bytes).unwrap();
            assert!(shape.max_message_bytes() >= bytes + (MAX_NAME_BYTES + FRAME_BYTES) as u64, "{bytes}");
        }
        assert!(shape(MAX_BYTES + 1).unwrap_err().message.contains("33554433"));
    }

    #[test]
    fn an_order_is_read_as_it_was_said() {
        let id = |local| GlobalId { pu: 7, local };
        let words = Order { caller: id(1), answers: id(2), max_bytes: 3 }.words();
        let Order { caller, answers, max_bytes } = Order::of(&words).unwrap();
        assert_eq!((caller, answers, max_bytes), (id(1), id(2), 3));
        assert!(Order::of(&words[..2]).is_none() && Order::of(&[b"x".to_vec(), vec![], vec![]]).is_none());
    }
}
