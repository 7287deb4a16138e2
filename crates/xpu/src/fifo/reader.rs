//! Implements the reading end of a FIFO: the rings of all its writers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use sublet_fabric::SharedBytesMut;
use sublet_fabric::line::{Line, Watch};
use sublet_fabric::packet::{PacketError, PacketSocket};
use sublet_fabric::ring::Position;
use sublet_proto::v1::shim_to_process::Body;
use sublet_proto::v1::{FifoJoined, FifoParted, ShimToProcess};
use sublet_proto::{Code, Error, decode, to_usize};

use super::{FifoEnd, FifoShape, INLINE_BYTES, LOOKS, LinePart, MessagePartKind, PIECE_BYTES, from_words};
use crate::capability::GlobalId;
use crate::process::ObjectDescriptor;
use crate::shim_messages::shim_gone;

/// Number of polls of one ring before the next.
const LOOKS_AT_ONE: u32 = 64;

/// See the [module](super). When it is dropped, its writers learn that the FIFO has no reader.
pub struct Reader {
    descriptor: Arc<ObjectDescriptor>,
    object: GlobalId,
    /// Socket on which the shim reports writers.
    socket: PacketSocket,
    /// Number of its packets that were read.
    packets: u32,
    shape: FifoShape,
    rings: Vec<WriterRing>,
    /// Index of the ring of the latest message.
    latest: usize,
}

/// The ring of one writer.
struct WriterRing {
    number: u32,
    writer: GlobalId,
    end: FifoEnd,
    next: u64,
    /// Set if the writer is gone, and only the messages in its ring remain.
    is_last: bool,
}

/// Reason why nothing was read.
#[derive(Debug)]
pub enum Unread {
    /// The next message has this length, which exceeds the given capacity. It stays in the ring.
    TooLong(u64),
    /// There is no message.
    Error(Error),
}

impl From<Error> for Unread {
    fn from(error: Error) -> Unread {
        Unread::Error(error)
    }
}

/// State of a ring.
enum Next {
    Nothing,
    Message { len_bytes: u64 },
    End,
}

impl Reader {
    pub(crate) fn new(
        descriptor: Arc<ObjectDescriptor>,
        object: GlobalId,
        socket: PacketSocket,
        shape: FifoShape,
    ) -> Reader {
        Reader { descriptor, object, socket, packets: 0, shape, rings: Vec::new(), latest: 0 }
    }

    /// The FIFO.
    pub fn object(&self) -> GlobalId {
        self.object
    }

    /// Size of the rings.
    pub fn shape(&self) -> FifoShape {
        self.shape
    }

    /// Number of the descriptor in this process.
    pub fn descriptor(&self) -> u32 {
        self.descriptor.number()
    }

    /// Number of current writers.
    ///
    /// # Errors
    /// As for [`Reader::read`].
    pub fn writers(&mut self) -> Result<usize, Error> {
        self.hear()?;
        let shape = self.shape;
        self.rings.retain_mut(|ring| !matches!(ring.look(shape), Ok(Next::End)));
        Ok(self.rings.len())
    }

    /// Copies the next message of any writer to the front of `into`, and returns its length and its writer. Writers
    /// take turns. Waits at most until the deadline (`None`: without limit), also while there is no writer, as one may
    /// connect.
    ///
    /// # Errors
    /// [`Unread::TooLong`]; `deadline_exceeded`; `permission_denied` after the right to read was revoked; `protocol` if
    /// a writer has written invalid values, which ends its connection; `agent_unreachable` if the shim is gone.
    #[inline]
    pub fn read<'into>(
        &mut self,
        into: impl Into<SharedBytesMut<'into>>,
        deadline: Option<Instant>,
    ) -> Result<(u64, GlobalId), Unread> {
        let into = into.into();
        loop {
            self.hear()?;
            let Some((index, len_bytes)) = self.find(deadline)? else {
                self.sleep(deadline)?;
                continue;
            };
            let ring = &mut self.rings[index];
            if len_bytes > into.len() as u64 {
                return Err(Unread::TooLong(len_bytes));
            }
            let (message, _) = into.split_at(to_usize(len_bytes));
            if let Err(error) = ring.take(self.shape, message) {
                return Err(self.drop_ring(index, error).into());
            }
            self.latest = index;
            return Ok((len_bytes, self.rings[index].writer));
        }
    }

    /// Whether a message is there.
    ///
    /// # Errors
    /// As for [`Reader::read`].
    #[inline]
    pub fn has_message(&mut self) -> Result<bool, Error> {
        self.hear()?;
        Ok(self.look(LOOKS_AT_ONE)?.is_some())
    }

    /// Looks at all rings for a while, from the one after the latest on, for a message that is there in whole.
    #[inline]
    fn find(&mut self, deadline: Option<Instant>) -> Result<Option<(usize, u64)>, Error> {
        let is_over = deadline.is_some_and(|deadline| deadline <= Instant::now());
        self.look(if is_over { LOOKS_AT_ONE } else { LOOKS })
    }

    #[inline]
    fn look(&mut self, looks: u32) -> Result<Option<(usize, u64)>, Error> {
        for _ in 0..looks / LOOKS_AT_ONE {
            let mut ended = None;
            for step in 1..=self.rings.len() {
                let index = (self.latest + step) % self.rings.len();
                match self.rings[index].look(self.shape) {
                    Ok(Next::Nothing) => {}
                    Ok(Next::Message { len_bytes }) => return Ok(Some((index, len_bytes))),
                    Ok(Next::End) => ended = Some(index),
                    Err(error) => return Err(self.drop_ring(index, error)),
                }
            }
            if let Some(index) = ended {
                self.drop_ended(index);
            }
            if self.has_news() || self.rings.is_empty() {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Removes a writer that sends nothing any more. The shim does not see that a connection was lost.
    #[cold]
    fn drop_ended(&mut self, index: usize) {
        let ring = self.rings.swap_remove(index);
        if !ring.is_last && ring.end.down().is_some() {
            let _ = self.descriptor.cut(ring.number);
        }
    }

    /// Ends the connection to a writer, which the shim reports to the writer.
    #[cold]
    fn drop_ring(&mut self, index: usize, error: Error) -> Error {
        let ring = self.rings.swap_remove(index);
        // The shim may have ended it before.
        let _ = self.descriptor.cut(ring.number);
        error
    }

    #[inline]
    fn has_news(&self) -> bool {
        let state = self.descriptor.state();
        state.packets() != self.packets || state.over().is_some()
    }

    /// Processes the shim's messages: before each read, so that nothing is read after the right was revoked.
    #[inline]
    fn hear(&mut self) -> Result<(), Error> {
        if self.has_news() { self.hear_all() } else { Ok(()) }
    }

    #[cold]
    fn hear_all(&mut self) -> Result<(), Error> {
        let state = self.descriptor.state();
        while self.packets != state.packets() {
            let packet = self.socket.receive(None)?.ok_or_else(shim_gone)?;
            self.packets = self.packets.wrapping_add(1);
            let told: ShimToProcess = decode("what the shim says of a FIFO", &packet.bytes)?;
            match told.body {
                Some(Body::Joined(joined)) => self.join(&joined, packet.fds),
                Some(Body::Parted(parted)) => self.part(&parted),
                _ => {
                    return Err(Error::new(
                        Code::Protocol,
                        "the shim said something of a FIFO that makes no sense",
                    ));
                }
            }
        }
        match state.over() {
            None => Ok(()),
            Some(Code::PermissionDenied) => {
                let message = format!("the right to read FIFO {} was revoked", self.object);
                Err(Error::new(Code::PermissionDenied, message))
            }
            Some(code) => Err(Error::new(code, format!("FIFO {} is over: {code}", self.object))),
        }
    }

    /// Adds a writer. One that cannot be connected is cut off; the others continue.
    fn join(&mut self, joined: &FifoJoined, fds: Vec<OwnedFd>) {
        let (number, writer) = (joined.connection, GlobalId::from_bits(joined.peer));
        match self.descriptor.spares().read(joined, fds, self.shape) {
            Ok(end) => self.rings.push(WriterRing { number, writer, end, next: 0, is_last: false }),
            Err(_) => drop(self.descriptor.cut(number)),
        }
    }

    fn part(&mut self, parted: &FifoParted) {
        if parted.at_once {
            self.rings.retain(|ring| ring.number != parted.connection);
        } else if let Some(ring) = self.rings.iter_mut().find(|ring| ring.number == parted.connection) {
            ring.is_last = true;
        }
    }

    /// Sleeps until there may be something.
    #[cold]
    fn sleep(&mut self, deadline: Option<Instant>) -> Result<(), Error> {
        if self.has_news() {
            return Ok(());
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(Error::new(
                Code::DeadlineExceeded,
                format!("no process has written to FIFO {}", self.object),
            ));
        }
        let shape = self.shape;
        if self.rings.iter_mut().any(|ring| ring.may_have(shape)) {
            return Ok(());
        }
        let socket = Some(self.socket.as_fd());
        let watched: Vec<BorrowedFd<'_>> =
            socket.into_iter().chain(self.rings.iter().flat_map(|ring| ring.end.wakes())).collect();
        let mut polled: Vec<_> = watched.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut polled, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::new(Code::System, format!("poll failed: {errno}"))),
        }
        let is_told = polled.first().is_some_and(|socket| !socket.revents().is_empty());
        drop(polled);
        self.rings.iter().for_each(|ring| ring.end.hush());
        if is_told { self.await_news() } else { Ok(()) }
    }

    /// A packet is there, which is counted a moment later; or the shim is gone.
    fn await_news(&self) -> Result<(), Error> {
        while !self.has_news() {
            if self.socket.is_closed() {
                return Err(shim_gone());
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.descriptor.close();
    }
}

impl WriterRing {
    fn line(&self, shape: FifoShape, position: Position) -> Result<(&Line, &Watch), Error> {
        let at = shape.line(position.line);
        match (self.end.region().view::<Line>(at.line), self.end.region().view::<Watch>(at.watch)) {
            (Some(line), Some(watch)) => Ok((line, watch)),
            _ => Err(Error::new(Code::Internal, "a FIFO's region is smaller than its layout")),
        }
    }

    /// Whether the next message is there in whole.
    #[inline]
    fn look(&mut self, shape: FifoShape) -> Result<Next, Error> {
        let first = Position::new(self.next, shape.lines);
        let (line, watch) = self.line(shape, first)?;
        if !self.end.spin((line, watch), first.turn, LOOKS_AT_ONE) {
            let is_over = self.is_last || self.end.down().is_some();
            return Ok(if is_over && !line.is(first.turn) { Next::End } else { Next::Nothing });
        }
        let part =
            LinePart::decode(line.read()).ok_or_else(|| self.nonsense("what is no part of a message"))?;
        match part.kind {
            MessagePartKind::First if part.message_bytes <= shape.max_message_bytes() => {}
            MessagePartKind::End => return Ok(Next::End),
            MessagePartKind::First => return Err(self.nonsense("a message that is longer than its ring")),
            MessagePartKind::Next => return Err(self.nonsense("a message without a beginning")),
        }
        let last = Position::new(self.next + shape.parts(part.message_bytes) - 1, shape.lines);
        let (line, watch) = self.line(shape, last)?;
        // A message that its writer leaves incomplete does not count.
        match self.end.spin((line, watch), last.turn, LOOKS_AT_ONE) {
            true => Ok(Next::Message { len_bytes: part.message_bytes }),
            false if self.is_last || self.end.down().is_some() => Ok(Next::End),
            false => Ok(Next::Nothing),
        }
    }

    /// Copies the message out that [`WriterRing::look`] has found to have as many bytes.
    #[inline]
    fn take(&mut self, shape: FifoShape, into: SharedBytesMut<'_>) -> Result<(), Error> {
        let mut rest = into;
        // Only what was taken last is acknowledged later: so the ring has space for the longest message once everything
        // before was taken.
        self.end.hurry();
        let parts = shape.parts(rest.len() as u64);
        debug_assert!(
            parts <= u64::from(shape.lines),
            "a message of {parts} parts in a ring of {}",
            shape.lines
        );
        for left in (0..parts).rev() {
            let position = Position::new(self.next, shape.lines);
            let (part, more) = rest.split_at(shape.slot_bytes as usize);
            if part.len() <= INLINE_BYTES {
                let (line, _) = self.line(shape, position)?;
                let (_, body) = line.read::<6>();
                let mut words = [0; super::INLINE_WORDS];
                words.copy_from_slice(&body[1..]);
                from_words(&words, part);
            } else {
                let smaller = || Error::new(Code::Internal, "a FIFO's region is smaller than its layout");
                let (mut offset, mut rest) = (shape.payload(position.line), part);
                while !rest.is_empty() {
                    let (piece, more) = rest.split_at(PIECE_BYTES);
                    self.end.region().read(offset, piece).ok_or_else(smaller)?;
                    (offset, rest) = (offset + PIECE_BYTES as u64, more);
                }
            }
            rest = more;
            self.next += 1;
            if shape.ends_quarter(position) {
                let (at, turn) = shape.acknowledgement(position);
                match left {
                    0 => self.end.acknowledge_soon(at, turn),
                    _ => self.end.acknowledge(at, turn),
                }
            }
        }
        Ok(())
    }

    /// Whether there is something, or else has itself woken when there is.
    fn may_have(&mut self, shape: FifoShape) -> bool {
        match self.look(shape) {
            Ok(Next::Nothing) => {}
            _ => return true,
        }
        let first = Position::new(self.next, shape.lines);
        let Ok((line, watch)) = self.line(shape, first) else { return true };
        let awaited = if line.is(first.turn) {
            // The beginning is there, and its end is not.
            let bytes = LinePart::decode(line.read()).map_or(0, |part| part.message_bytes);
            Position::new(self.next + shape.parts(bytes) - 1, shape.lines)
        } else {
            first
        };
        match self.line(shape, awaited) {
            Ok((line, _)) if self.end.has_bell() => !line.ask_bell(watch, awaited.turn),
            _ => false,
        }
    }

    #[cold]
    fn nonsense(&self, what: &str) -> Error {
        Error::new(Code::Protocol, format!("process {} has written {what}", self.writer))
    }
}

impl From<PacketError> for Unread {
    fn from(error: PacketError) -> Unread {
        Unread::Error(error.into())
    }
}
