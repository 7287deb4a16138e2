//! Implements the executor's side: executes the caller's calls, and answers.

use std::time::{Duration, Instant};

use sublet_proto::{Code, Error, to_usize};

use super::engine::{Execute, InputSource, OutputSink};
use super::named_buffers::NamedBuffers;
use super::{AlignedBytes, FRAME_BYTES, Order, PLACE, THEN, check_space, shape};
use crate::capability::FifoRights;
use crate::fifo::{Reader, Unread, Writer};
use crate::process::Process;

/// Time after which an idle executor checks whether its caller still exists, and the longest wait for its caller to
/// connect.
const IDLE: Duration = Duration::from_secs(1);
const CONNECTING: Duration = Duration::from_secs(60);

/// An executor that serves its caller.
pub struct ServedExecutor {
    calls: Reader,
    answers: Writer,
    message: AlignedBytes,
    output: AlignedBytes,
    places: NamedBuffers,
    max_bytes: u64,
    begun: Instant,
    had_caller: bool,
}

impl ServedExecutor {
    /// Becomes the executor that these arguments describe, if `load` succeeds. Otherwise its caller gets the error.
    ///
    /// # Errors
    /// The error of `load`; `protocol` for other arguments; the shim's errors.
    pub fn begin(
        process: &Process,
        words: &[Vec<u8>],
        deadline: Option<Instant>,
        load: impl FnOnce() -> Result<(), Error>,
    ) -> Result<ServedExecutor, Error> {
        let order = || Error::new(Code::Protocol, "an executor without its caller");
        let Order { caller, answers, max_bytes } = Order::of(words).ok_or_else(order)?;
        let shape = shape(max_bytes)?;
        let mut answers = process.connect_to(answers, deadline)?;
        let mut message = AlignedBytes::for_messages(shape);
        let made = load().and_then(|()| {
            let calls = process.init("", shape)?;
            process.grant(caller, calls.object(), FifoRights::WRITE)?;
            Ok(calls)
        });
        let said = match &made {
            Ok(calls) => message.join([&calls.object().to_bits().to_le_bytes(), &0u32.to_le_bytes()]),
            Err(error) => {
                message.join([clipped(&error.message, max_bytes), &error.code.number().to_le_bytes()])
            }
        };
        answers.write(said, deadline)?;
        let (output, begun) = (AlignedBytes::for_messages(shape), Instant::now());
        let (calls, places) = (made?, NamedBuffers::new(to_usize(max_bytes)));
        Ok(ServedExecutor { calls, answers, message, output, places, max_bytes, begun, had_caller: false })
    }

    /// Executes calls until the caller is done.
    ///
    /// # Errors
    /// The error that ends the connection.
    pub fn serve<E: Execute>(&mut self, mut by: E) -> Result<(), Error> {
        let (code, room) = (Code::Protocol, to_usize(self.max_bytes));
        while let Some(len) = self.next_call()? {
            let called = parts(self.message.first(len));
            let (function, input) = called.ok_or_else(|| Error::new(code, "a call of no function"))?;
            let output = &mut self.output.all()[..room];
            let executed = if function.contains([THEN, PLACE]) {
                self.places.call(function, input, output, &mut by)
            } else {
                by.execute(function, InputSource::Given(input), OutputSink::Given(output))
            };
            let answer = match executed.and_then(|len| check_space(len as usize, room)) {
                Ok(len) => self.output.close(len, 0),
                Err(error) => {
                    let said = clipped(&error.message, self.max_bytes);
                    self.output.join([said, &error.code.number().to_le_bytes()])
                }
            };
            self.answers.write(answer, None)?;
            self.places.rest(&mut by);
            by.rest();
        }
        Ok(())
    }

    /// Length of the next call's message; `None` once the caller is gone.
    fn next_call(&mut self) -> Result<Option<u64>, Error> {
        loop {
            match self.calls.read(self.message.all(), Some(Instant::now() + IDLE)) {
                Ok((0, _)) => return Ok(None),
                Ok((len, _)) => return Ok(Some(len)),
                Err(Unread::TooLong(_)) => return Err(Error::new(Code::Protocol, "a call that is too long")),
                Err(Unread::Error(error)) if error.code != Code::DeadlineExceeded => return Err(error),
                Err(Unread::Error(_)) => {}
            }
            let is_there = self.calls.writers()? > 0;
            if !is_there && (self.had_caller || self.begun.elapsed() >= CONNECTING) {
                return Ok(None);
            }
            self.had_caller |= is_there;
        }
    }
}

/// The function's name and its input.
pub(super) fn parts(message: &[u8]) -> Option<(&str, &[u8])> {
    let (rest, len) = message.split_last_chunk::<FRAME_BYTES>()?;
    let at = rest.len().checked_sub(u32::from_le_bytes(*len) as usize)?;
    let (input, function) = rest.split_at(at);
    Some((std::str::from_utf8(function).ok()?, input))
}

/// The text, truncated to `max_bytes`.
fn clipped(text: &str, max_bytes: u64) -> &[u8] {
    &text.as_bytes()[..text.len().min(to_usize(max_bytes))]
}
