//! The sending half: small payloads are gathered, publishing a line sends everything with one system call, and a sender
//! that waits until the socket accepts more processes arriving frames meanwhile.

use std::io::{self, ErrorKind};
use std::ptr::NonNull;
use std::sync::{Arc, TryLockError};
use std::time::Duration;

use sublet_proto::graph::MemoryRights;
use sublet_proto::to_usize;

use super::TcpEndpoint;
use super::frame::{Frame, HEADER_BYTES, shorten};
use super::outbox::{Outbox, SMALL_BYTES};
use super::replies::TcpReply;
use super::stream::{ByteStream, Until};
use crate::FabricError;
use crate::line::{BODY_WORDS, Turn};
use crate::sync::{MutexGuard, Ordering, fence, lock};

/// Longest wait of a sender before it checks for missing acknowledgements.
const LOOK_AROUND: Duration = Duration::from_millis(250);
/// Number of attempts to send the peer the reason of the connection's end, and the wait of each.
const FAREWELL_TRIES: u32 = 64;
const FAREWELL_NAP: Duration = Duration::from_micros(200);

/// State of the sending half, under its lock. The outbox refers to borrowed memory only while its borrower is sending,
/// or as [`TcpEndpoint::push`](super::TcpEndpoint::push) allows.
pub(super) struct Sending {
    pub(super) stream: Option<Arc<ByteStream>>,
    pub(super) outbox: Outbox,
}

/// A line as a frame, with its body.
pub(super) struct LineFrame<'body, const WORDS: usize> {
    pub(super) key: u64,
    pub(super) line: u64,
    pub(super) watch: u64,
    pub(super) turn: Turn,
    pub(super) immediate: u32,
    pub(super) body: &'body [u64; WORDS],
}

impl TcpEndpoint {
    /// Locks the sending half, while there is a connection.
    #[inline]
    pub(super) fn sending(&self) -> Result<MutexGuard<'_, Sending>, FabricError> {
        let sending = lock(&self.sending);
        if self.link.is_up() { Ok(sending) } else { Err(self.link.error()) }
    }

    /// Adds a frame and its payload; a large payload is not copied.
    ///
    /// # Safety
    /// The payload must be readable until it has been sent or the outbox cleared.
    #[inline]
    pub(super) unsafe fn add(
        &self,
        sending: &mut Sending,
        frame: Frame,
        payload: (NonNull<u8>, usize),
    ) -> Result<(), FabricError> {
        let (at, len) = payload;
        let copied = if len <= SMALL_BYTES { len } else { 0 };
        self.make_space(sending, HEADER_BYTES + copied)?;
        sending.outbox.copy(&frame.encode());
        if copied > 0 {
            // SAFETY: the caller's duty.
            unsafe { sending.outbox.copy_raw(at.as_ptr(), len) };
        } else if len > 0 {
            // SAFETY: the caller's duty.
            unsafe { sending.outbox.refer(at, len) };
        }
        Ok(())
    }

    /// Adds a line. Returns the lock, under which the caller can add data to be sent with it.
    #[inline]
    pub(super) fn add_line<const WORDS: usize>(
        &self,
        line: LineFrame<'_, WORDS>,
    ) -> Result<MutexGuard<'_, Sending>, FabricError> {
        const { assert!(WORDS <= BODY_WORDS) };
        let LineFrame { key, line, watch, turn, immediate, body } = line;
        #[expect(clippy::cast_possible_truncation, reason = "asserted above: `BODY_WORDS` at most")]
        let frame = Frame::Line { key, line, watch, turn, immediate, words: WORDS as u8 };
        let mut bytes = [[0; 8]; WORDS];
        for (bytes, word) in bytes.iter_mut().zip(body) {
            *bytes = word.to_le_bytes();
        }
        let mut sending = self.sending()?;
        self.make_space(&mut sending, HEADER_BYTES + WORDS * 8)?;
        sending.outbox.copy(&frame.encode());
        sending.outbox.copy(bytes.as_flattened());
        Ok(sending)
    }

    /// Sends everything that has been added so far.
    pub(super) fn send_all(&self, sending: &mut Sending) -> Result<(), FabricError> {
        let mark = sending.outbox.mark();
        while !sending.outbox.has_sent(mark) {
            match send_some(sending) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.take_meanwhile(sending),
                Err(error) => self.send_failed(&error),
            }
            if !self.link.is_up() {
                // The outbox must not refer any longer to memory that other threads have lent to it.
                sending.outbox.clear();
                return Err(self.link.error());
            }
        }
        Ok(())
    }

    /// Finishes an operation that has sent: sends the replies that were requested meanwhile.
    #[inline]
    pub(super) fn leave(&self, sending: MutexGuard<'_, Sending>) {
        let rest = !sending.outbox.is_empty() || has_unsent(&sending);
        self.note_unsent(rest);
        drop(sending);
        if !self.replies.is_empty_now() || rest {
            self.flush();
            if self.is_unsent() && self.waiters.has_reader() {
                self.link.wake();
            }
        }
    }

    /// Finishes an operation that has only gathered.
    #[inline]
    pub(super) fn leave_gathered(&self, sending: MutexGuard<'_, Sending>) {
        self.note_unsent(true);
        drop(sending);
        if !self.replies.is_empty_now() {
            self.flush();
        }
    }

    /// Sends all that is queued, replies included, as far as the socket accepts it. Returns whether all was sent. Also
    /// returns true if another thread is sending, which then sends all.
    pub(super) fn flush(&self) -> bool {
        loop {
            fence(Ordering::SeqCst);
            let mut sending = match self.sending.try_lock() {
                Ok(sending) => sending,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return true,
            };
            let sent = self.flush_locked(&mut sending);
            self.note_unsent(!sent);
            drop(sending);
            if !sent || self.replies.is_empty_now() {
                self.link.want_space(!sent);
                return sent;
            }
        }
    }

    /// Whether [`TcpEndpoint::flush`] would send something.
    #[inline]
    pub(super) fn is_unsent(&self) -> bool {
        self.unsent.load(Ordering::Relaxed) == 1 || !self.replies.is_empty()
    }

    /// Records whether bytes are gathered or not fully sent.
    #[inline]
    pub(super) fn note_unsent(&self, unsent: bool) {
        self.unsent.store(u32::from(unsent), Ordering::Relaxed);
    }

    /// Sends the peer a last frame with the reason, after the connection's end, if a frame can begin now.
    pub(super) fn say_why(&self, reason: &str) {
        let Ok(mut sending) = self.sending.try_lock() else { return };
        if !sending.outbox.is_between_frames() {
            return;
        }
        let reason = shorten(reason);
        #[expect(clippy::cast_possible_truncation, reason = "`shorten` leaves `MAX_REASON_BYTES` at most")]
        let len_bytes = reason.len() as u32;
        sending.outbox.copy(&Frame::Cut { len_bytes }.encode());
        sending.outbox.copy(reason.as_bytes());
        for _ in 0..FAREWELL_TRIES {
            let sent = send_some(&mut sending);
            if sending.outbox.is_empty() && !has_unsent(&sending) {
                break;
            }
            match (sent, &sending.stream) {
                (Err(error), Some(stream)) if error.kind() == ErrorKind::WouldBlock => {
                    stream.poll(Until::Writable, None, Some(FAREWELL_NAP));
                }
                (Ok(()), _) => {}
                // A peer that does not accept it will find the stream ended.
                _ => break,
            }
        }
        sending.outbox.clear();
    }

    fn flush_locked(&self, sending: &mut Sending) -> bool {
        loop {
            if !self.link.is_up() {
                // No peer is left to reply to, and a thread that sees waiting replies would return to them without end.
                sending.outbox.clear();
                self.replies.clear();
                return true;
            }
            while sending.outbox.has_space(HEADER_BYTES + SMALL_BYTES)
                && let Some(reply) = self.replies.pop()
            {
                self.add_reply(sending, reply);
            }
            if sending.outbox.is_empty() && !has_unsent(sending) {
                return true;
            }
            match send_some(sending) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The reader sees the end, and the peer's frames before it.
                Err(error) => {
                    self.lost(&error);
                }
            }
        }
    }

    /// Adds a reply. It must fit.
    fn add_reply(&self, sending: &mut Sending, reply: TcpReply) {
        match reply {
            TcpReply::Word { request, before } => {
                sending.outbox.copy(&Frame::AtomicReply { request, before }.encode());
            }
            TcpReply::Refused { request } => sending.outbox.copy(&Frame::Refused { request }.encode()),
            TcpReply::Bytes { request, key, offset, len_bytes } if self.exposed.is_stored(key) => {
                self.add_stored_reply(sending, request, key, (offset, len_bytes));
            }
            TcpReply::Bytes { request, key, offset, len_bytes } => {
                let Ok(from) = self.exposed.find(key, offset, len_bytes) else {
                    return self.add_reply(sending, TcpReply::Refused { request });
                };
                let len = to_usize(len_bytes);
                sending.outbox.copy(&Frame::GetReply { request, len_bytes }.encode());
                // SAFETY: a region stays mapped as long as `exposed`, which the endpoint holds.
                unsafe {
                    if len <= SMALL_BYTES {
                        sending.outbox.copy_raw(from.as_ptr(), len);
                    } else {
                        sending.outbox.refer(from, len);
                    }
                }
            }
        }
    }

    /// Adds a reply of stored bytes, or a refusal if they cannot be read: their store reports the reason. It must fit.
    #[cold]
    fn add_stored_reply(&self, sending: &mut Sending, request: u32, key: u64, at: (u64, u64)) {
        let (offset, len_bytes) = at;
        let read = self.exposed.find_stored(key, at, MemoryRights::Read).ok().and_then(|stored| {
            let mut bytes = vec![0; to_usize(len_bytes)];
            stored.read(offset, &mut bytes).ok().map(|()| bytes)
        });
        match read {
            Some(bytes) => {
                sending.outbox.copy(&Frame::GetReply { request, len_bytes }.encode());
                sending.outbox.own(bytes);
            }
            None => sending.outbox.copy(&Frame::Refused { request }.encode()),
        }
    }

    #[inline]
    fn make_space(&self, sending: &mut Sending, gathered_bytes: usize) -> Result<(), FabricError> {
        if sending.outbox.has_space(gathered_bytes) { Ok(()) } else { self.send_all(sending) }
    }

    /// Waits until the socket accepts more or something arrives. Processes what arrives, since the peer may be waiting
    /// for that.
    #[cold]
    fn take_meanwhile(&self, sending: &Sending) {
        let Some(stream) = &sending.stream else { return };
        let polled = stream.poll(Until::ReadableOrWritable, None, Some(LOOK_AROUND));
        if polled.readable {
            // The replies that the frames request are sent when this thread leaves.
            self.take_turn(lock(&self.receiving));
        } else {
            self.end_if_stalled(stream);
        }
    }

    #[cold]
    fn send_failed(&self, error: &io::Error) {
        if error.kind() != ErrorKind::Interrupted {
            self.take_last_words();
            self.lost(error);
        }
    }
}

#[inline]
fn send_some(sending: &mut Sending) -> io::Result<()> {
    let Sending { stream, outbox } = sending;
    match stream {
        Some(stream) if outbox.is_empty() => stream.flush(),
        Some(stream) => outbox.send(stream),
        None => Err(ErrorKind::NotConnected.into()),
    }
}

fn has_unsent(sending: &Sending) -> bool {
    sending.stream.as_ref().is_some_and(|stream| stream.has_unsent())
}
