//! Implements the writing end of a FIFO.

use std::sync::Arc;
use std::time::Instant;

use sublet_fabric::line::{Line, Turn, Watch};
use sublet_fabric::ring::Position;
use sublet_fabric::window::{LineAddress, RegionAddress};
use sublet_fabric::{Endpoint, FabricError, SharedBytes};
use sublet_proto::{Code, Error};

use super::{FifoEnd, FifoShape, INLINE_BYTES, LOOKS, LinePart, MessagePartKind, PIECE_BYTES, to_words};
use crate::capability::GlobalId;
use crate::process::ObjectDescriptor;

/// See the [module](super). When it is dropped, the reader gets what was written, and then the writer's end.
pub struct Writer {
    descriptor: Arc<ObjectDescriptor>,
    object: GlobalId,
    /// The end whose region has the reader's acknowledgements.
    end: FifoEnd,
    shape: FifoShape,
    next: u64,
    /// Number of positions that are known to be taken.
    taken: u64,
}

impl Writer {
    pub(crate) fn new(
        descriptor: Arc<ObjectDescriptor>,
        object: GlobalId,
        end: FifoEnd,
        shape: FifoShape,
    ) -> Writer {
        Writer { descriptor, object, end, shape, next: 0, taken: 0 }
    }

    /// The FIFO.
    pub fn object(&self) -> GlobalId {
        self.object
    }

    /// Size of the ring.
    pub fn shape(&self) -> FifoShape {
        self.shape
    }

    /// Number of the descriptor in this process.
    pub fn descriptor(&self) -> u32 {
        self.descriptor.number()
    }

    /// Writes a message, which other processes may change meanwhile. Waits until the ring has space for all of it, at
    /// most until the deadline (`None`: without limit), and not until it is read.
    ///
    /// # Errors
    /// `invalid_argument` for a message that is longer than the ring; `deadline_exceeded` while it is full;
    /// `permission_denied` after the right was revoked; `lease_ended` if the FIFO has no reader; `agent_unreachable` if
    /// the connection is lost. Nothing of the message was written then.
    #[inline]
    pub fn write<'message>(
        &mut self,
        message: impl Into<SharedBytes<'message>>,
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        let message = message.into();
        let len_bytes = message.len() as u64;
        if len_bytes > self.shape.max_message_bytes() {
            return Err(self.too_long(len_bytes));
        }
        self.check()?;
        let end = self.next + self.shape.parts(len_bytes);
        debug_assert!(
            self.taken <= self.next && end - self.next <= u64::from(self.shape.lines),
            "{} of {} positions are taken, and {end} is beyond the ring",
            self.taken,
            self.next
        );
        if end > self.taken + u64::from(self.shape.lines) {
            self.await_space(end, deadline)?;
        }
        let mut kind = MessagePartKind::First;
        let mut rest = message;
        while self.next < end {
            let (part, more) = rest.split_at(self.shape.slot_bytes as usize);
            self.put(kind, len_bytes, part).map_err(|error| self.lost(&error))?;
            (kind, rest) = (MessagePartKind::Next, more);
        }
        Ok(())
    }

    #[inline]
    fn put(
        &mut self,
        kind: MessagePartKind,
        message_bytes: u64,
        part: SharedBytes<'_>,
    ) -> Result<(), FabricError> {
        let position = Position::new(self.next, self.shape.lines);
        let inline = if part.len() <= INLINE_BYTES {
            to_words(part)
        } else {
            let to = self.end.there(self.shape.payload(position.line));
            match &*self.end {
                Endpoint::Shm(end) => {
                    let (mut offset, mut rest) = (to.offset, part);
                    while !rest.is_empty() {
                        let (piece, more) = rest.split_at(PIECE_BYTES);
                        end.put(RegionAddress { offset, ..to }, piece)?;
                        (offset, rest) = (offset + PIECE_BYTES as u64, more);
                    }
                }
                // It leaves with the line that follows.
                // SAFETY: `part` is readable until that line is published below, or the end has cleared what it had gathered.
                end => unsafe { end.push(to, part.start(), part.len() as u64) }?,
            }
            Default::default()
        };
        let (immediate, body) = LinePart { kind, message_bytes, inline }.encode();
        self.end.put_imm(
            self.end.line_there(self.shape.line(position.line)),
            position.turn,
            immediate,
            &body,
        )?;
        self.next += 1;
        debug_assert!(
            self.next <= self.taken + u64::from(self.shape.lines),
            "position {} is written, and only {} are taken",
            self.next,
            self.taken
        );
        Ok(())
    }

    /// Waits until all positions before `end` are free.
    #[cold]
    fn await_space(&mut self, end: u64, deadline: Option<Instant>) -> Result<(), Error> {
        let lines = u64::from(self.shape.lines);
        // The last position whose predecessor one lap before must have been taken. Quarters are acknowledged in their
        // order.
        let needed = Position::new(end - 1 - lines, self.shape.lines);
        let (address, turn) = self.shape.acknowledgement(needed);
        if !self.is_acknowledged(address, turn, deadline)? {
            self.check()?;
            let message = format!("FIFO {} stays full: its reader takes nothing", self.object);
            return Err(Error::new(Code::DeadlineExceeded, message));
        }
        let quarter = lines / u64::from(super::QUARTERS);
        self.taken = (end - 1 - lines) / quarter * quarter + quarter;
        Ok(())
    }

    fn is_acknowledged(&self, at: LineAddress, turn: Turn, deadline: Option<Instant>) -> Result<bool, Error> {
        let (Some(line), Some(watch)) =
            (self.end.region().view::<Line>(at.line), self.end.region().view::<Watch>(at.watch))
        else {
            return Err(Error::new(Code::Internal, "a FIFO's region is smaller than its layout"));
        };
        if self.end.spin((line, watch), turn, LOOKS) {
            return Ok(true);
        }
        let descriptor = &self.descriptor;
        let is_there = self.end.wait((line, watch), turn, deadline, || descriptor.state().over().is_some());
        if !is_there && let Some(reason) = self.end.down() {
            self.check()?;
            return Err(self.gone(&reason));
        }
        Ok(is_there)
    }

    /// Whether it may still be written to.
    #[inline]
    fn check(&self) -> Result<(), Error> {
        match self.descriptor.state().over() {
            None => Ok(()),
            Some(code) => Err(self.over(code)),
        }
    }

    #[cold]
    fn over(&self, code: Code) -> Error {
        let object = self.object;
        let message = match code {
            Code::PermissionDenied => format!("the right to write to FIFO {object} was revoked"),
            Code::LeaseEnded => format!("FIFO {object} has no reader any more"),
            code => format!("the connection to FIFO {object} is over: {code}"),
        };
        Error::new(code, message)
    }

    #[cold]
    fn too_long(&self, len_bytes: u64) -> Error {
        let most = self.shape.max_message_bytes();
        let message =
            format!("a message of {len_bytes} bytes: the rings of FIFO {} have {most}", self.object);
        Error::new(Code::InvalidArgument, message)
    }

    /// Returns the reason why nothing can be sent. The shim may know a better one.
    #[cold]
    fn lost(&self, error: &FabricError) -> Error {
        self.check().err().unwrap_or_else(|| self.gone(&error.to_string()))
    }

    #[cold]
    fn gone(&self, reason: &str) -> Error {
        let message = format!("the connection to FIFO {} is lost: {reason}", self.object);
        Error::new(Code::AgentUnreachable, message)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // If the ring is full, or the connection lost, the reader learns of the end from its shim.
        let has_space = self.next < self.taken + u64::from(self.shape.lines);
        if has_space && self.check().is_ok() {
            let _ = self.put(MessagePartKind::End, 0, SharedBytes::from(&[]));
        }
        self.descriptor.close();
    }
}
