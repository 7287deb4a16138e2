//! The receiving half: takes frames and executes them on this side's memory.

use std::io::ErrorKind;
use std::ptr::NonNull;
use std::sync::{Arc, TryLockError};

use sublet_proto::graph::MemoryRights;

use super::TcpEndpoint;
use super::frame::Frame;
use super::inbox::{Destination, Inbox, PayloadState, StagedPut};
use super::replies::TcpReply;
use super::stream::ByteStream;
use crate::FabricError;
use crate::line::{BODY_WORDS, Line, Turn, Watch};
use crate::region::PeerWritable;
use crate::sync::{AtomicU64, MutexGuard, Ordering, lock};
use crate::window::RegionAddress;

/// Most system calls of one turn at receiving, so that other threads get theirs.
pub(super) const MAX_TAKES: u32 = 16;
/// Number of polls without a result between two checks for missing acknowledgements: about one second.
const LOOKS_UNTIL_STALLED: u32 = 1 << 20;
/// Bits of a key that contain the region's number.
const REGION_BITS: u32 = 16;

/// State of the receiving half, under its lock.
pub(super) struct Receiving {
    pub(super) stream: Option<Arc<ByteStream>>,
    pub(super) inbox: Inbox,
    /// Number of polls without a result.
    pub(super) idle: u32,
}

/// Result of one attempt to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveOutcome {
    Nothing,
    Something,
    /// The connection is down.
    Down,
}

impl TcpEndpoint {
    /// Receives and processes the bytes of one system call, including those that the stream keeps in its own small
    /// buffer: no event would announce them again.
    #[inline]
    pub(super) fn take(&self, receiving: &mut Receiving) -> ReceiveOutcome {
        loop {
            let received = self.take_once(receiving);
            let buffered = receiving.stream.as_ref().is_some_and(|stream| stream.is_buffered());
            if received != ReceiveOutcome::Something || !buffered {
                return received;
            }
        }
    }

    #[inline]
    fn take_once(&self, receiving: &mut Receiving) -> ReceiveOutcome {
        let Some(stream) = receiving.stream.as_ref().filter(|_| self.link.is_up()) else {
            return ReceiveOutcome::Down;
        };
        match receiving.inbox.fill(stream) {
            Ok(0) => self.ended_by_peer(receiving.inbox.is_amid_frame()),
            Ok(_) => match self.apply_all(&mut receiving.inbox) {
                Ok(()) => ReceiveOutcome::Something,
                Err(error) => self.cut(&error),
            },
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                receiving.idle = receiving.idle.wrapping_add(1);
                if receiving.idle.is_multiple_of(LOOKS_UNTIL_STALLED) {
                    self.end_if_stalled(stream);
                }
                ReceiveOutcome::Nothing
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => ReceiveOutcome::Nothing,
            Err(error) => self.lost(&error),
        }
    }

    /// Locks the receiving half, unless another thread is receiving at this moment.
    #[inline]
    pub(super) fn try_receiving(&self) -> Option<MutexGuard<'_, Receiving>> {
        match self.receiving.try_lock() {
            Ok(receiving) => Some(receiving),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Processes arrived frames, up to a bound, and sends the replies that they request. Not for the reader: this wakes
    /// the reader, because the frames may have published its line.
    pub(super) fn take_turn(&self, mut receiving: MutexGuard<'_, Receiving>) {
        let mut some = false;
        for _ in 0..MAX_TAKES {
            match self.take(&mut receiving) {
                ReceiveOutcome::Something => some = true,
                ReceiveOutcome::Nothing | ReceiveOutcome::Down => break,
            }
        }
        drop(receiving);
        if some {
            self.after_taking();
        }
    }

    /// Finishes after a thread that is not the reader has processed frames.
    #[inline]
    pub(super) fn after_taking(&self) {
        if !self.replies.is_empty() {
            self.flush();
        }
        if self.waiters.has_reader() {
            self.link.wake();
        }
    }

    /// Processes the peer's last frames, whose reason is more precise than the error of a send.
    pub(super) fn take_last_words(&self) {
        self.take_turn(lock(&self.receiving));
    }

    #[inline]
    fn apply_all(&self, inbox: &mut Inbox) -> Result<(), FabricError> {
        loop {
            match inbox.payload() {
                PayloadState::Under => return Ok(()),
                PayloadState::Complete(Some(request)) => self.requests.complete(request),
                PayloadState::Complete(None) => {
                    if let Some(staged) = inbox.take_staged() {
                        self.store(&staged)?;
                    }
                }
                PayloadState::Nothing => {}
            }
            match inbox.frame()? {
                Some(frame) => self.apply(frame, inbox)?,
                None => return Ok(()),
            }
        }
    }

    #[inline]
    fn apply(&self, frame: Frame, inbox: &mut Inbox) -> Result<(), FabricError> {
        match frame {
            Frame::Put { key, offset, len_bytes } if self.exposed.is_stored(key) => {
                self.stage(inbox, key, (offset, len_bytes))
            }
            Frame::Put { key, offset, len_bytes } => {
                // A put to a region whose key has expired is discarded: a peer that needs to know sends a request about
                // the region.
                let into = unless_over(self.exposed.find_to_write(key, offset, len_bytes))?;
                inbox.deliver(Destination { into, len_bytes, request: None });
                Ok(())
            }
            Frame::Line { key, line, watch, turn, immediate, words } => {
                let body = inbox.body(words);
                if let (Some(line), Some(watch)) =
                    (unless_over(self.shared(key, line))?, unless_over(self.shared(key, watch))?)
                {
                    self.publish((line, watch), turn, immediate, &body);
                }
                Ok(())
            }
            Frame::GetReply { request, len_bytes } => {
                let into = self.requests.place(request, len_bytes)?;
                inbox.deliver(Destination { into, len_bytes, request: into.map(|_| request) });
                Ok(())
            }
            Frame::AtomicReply { request, before } => self.requests.answer(request, before),
            Frame::Refused { request } => self.requests.refuse(request),
            Frame::Get { request, key, offset, len_bytes } => {
                if self.exposed.is_stored(key) {
                    unless_over(self.exposed.find_stored(key, (offset, len_bytes), MemoryRights::Read))?;
                } else {
                    unless_over(self.exposed.find(key, offset, len_bytes))?;
                }
                self.replies.push(TcpReply::Bytes { request, key, offset, len_bytes })
            }
            Frame::FetchAdd { request, key, offset, value } => {
                self.answer(request, key, offset, |word| word.fetch_add(value, Ordering::AcqRel))
            }
            Frame::CompareSwap { request, key, offset, expected, new } => {
                self.answer(request, key, offset, |word| {
                    let swapped = word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
                    swapped.unwrap_or_else(|before| before)
                })
            }
            Frame::Cut { len_bytes } => {
                let reason = inbox.reason(len_bytes);
                self.fail(&format!("the peer ended it: {reason}"));
                Ok(())
            }
        }
    }

    /// Begins to receive a payload for stored bytes.
    #[cold]
    fn stage(&self, inbox: &mut Inbox, key: u64, at: (u64, u64)) -> Result<(), FabricError> {
        match unless_over(self.exposed.find_stored(key, at, MemoryRights::Write))? {
            Some(_) => inbox.stage(key, at),
            None => inbox.deliver(Destination { into: None, len_bytes: at.1, request: None }),
        }
        Ok(())
    }

    /// Writes a payload for stored bytes, unless their key has expired meanwhile.
    #[cold]
    fn store(&self, staged: &StagedPut) -> Result<(), FabricError> {
        let StagedPut { key, offset, bytes } = staged;
        let at = (*offset, bytes.len() as u64);
        if let Some(stored) = unless_over(self.exposed.find_stored(*key, at, MemoryRights::Write))? {
            // The store reports its error, and refuses the requests that follow.
            let _ = stored.write(*offset, bytes);
        }
        Ok(())
    }

    /// Applies an operation to a word, and queues a reply with the previous value.
    #[inline]
    fn answer(
        &self,
        request: u32,
        key: u64,
        offset: u64,
        act: impl FnOnce(&AtomicU64) -> u64,
    ) -> Result<(), FabricError> {
        let reply = match unless_over(self.shared(key, offset))? {
            Some(word) => TcpReply::Word { request, before: act(word) },
            None => TcpReply::Refused { request },
        };
        self.replies.push(reply)
    }

    #[inline]
    fn publish(&self, (line, watch): (&Line, &Watch), turn: Turn, immediate: u32, body: &[u64; BODY_WORDS]) {
        if line.publish(watch, turn, immediate, body) {
            self.bell.ring();
        }
    }

    /// A line, a watch or a word that the peer names, for writing.
    #[inline]
    fn shared<T: PeerWritable>(&self, key: u64, offset: u64) -> Result<&T, FabricError> {
        let pointer: NonNull<T> = self.exposed.find_to_write(key, offset, size_of::<T>() as u64)?.cast();
        if !pointer.is_aligned() {
            let region = (key & ((1 << REGION_BITS) - 1)) as u32;
            return Err(FabricError::unaligned(RegionAddress { region, offset }, align_of::<T>() as u64));
        }
        // SAFETY: aligned, and inside of a region, which stays mapped as long as `exposed`; the rest is `PeerWritable`'s
        // promise.
        Ok(unsafe { pointer.as_ref() })
    }
}

/// Maps an expired key to `None`. A peer may not know yet that its key has expired, so its use is not a violation.
#[inline]
fn unless_over<T>(found: Result<T, FabricError>) -> Result<Option<T>, FabricError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(FabricError::KeyExpired { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
