//! Implements messages between the instances of two components of a run: a queue for each instance, in a memory
//! component of both (Scad Figure 3: send and receive).
//!
//! A queue is a ring of records, each a word and its message. Senders claim their records by moving the tail, write the
//! message and then the word. The instance that owns the queue takes records in their order, sets them to zero and
//! moves the head, one of its threads at a time. On another machine the same steps are executed over the connection, one
//! after the other.
//!
//! Invariants:
//! - All bytes between the tail and the head are zero, so a word that is not zero marks a complete message.
//! - A record is contiguous: the rest of the ring before its beginning is a record that no instance receives.
//! - A position, a length or a sender is checked each time that it is read: every process with access to the memory
//!   component may have written any number there. No access is outside of the queue, and none is of a part of a word.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sublet_fabric::sync::{AtomicU32, AtomicU64, Ordering, fence, futex};
use sublet_fabric::{SharedBytes, SharedBytesMut};
use sublet_proto::v1;
use sublet_proto::{Code, Error, to_usize};

use super::channel::Channel;
use crate::memory::piece::MemoryPiece;

/// Size of one instance's queue, in bytes.
pub(crate) const QUEUE_BYTES: u64 = 256 << 10;
/// Longest message.
pub const MAX_MESSAGE_BYTES: u64 = 64 << 10;

const HEAD_AT: u64 = 0;
const TAIL_AT: u64 = 64;
/// Offset of the word on which the receiver sleeps.
const BELL_AT: u64 = 128;
/// Offset of the flag that the receiver sleeps.
const SLEEPS_AT: u64 = 132;
const RING_AT: u64 = 4096;
const RING_BYTES: u64 = QUEUE_BYTES - RING_AT;
const WORD_BYTES: u64 = 8;

/// Value in place of a message's length: the rest of the ring up to its end is skipped.
const SKIP: u32 = u32::MAX - 1;

/// Number of times that a receiver polls before it sleeps.
const LOOKS: u32 = 2_000;
/// Longest sleep of a receiver: a sender on another machine cannot wake it.
const NAP: Duration = Duration::from_millis(1);
/// First wait of a sender to a full queue, and of a receiver that polls a queue on another machine.
const SHORTEST_WAIT: Duration = Duration::from_micros(20);
/// Longest such wait.
const LONGEST_WAIT: Duration = Duration::from_millis(1);
/// Interval at which the client is asked whether the peers still run, if this process cannot see that itself.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// See the [module](self): the connection of an instance to those of another component.
pub(super) struct Mailbox<'run> {
    pub(super) channel: &'run Channel,
    pub(super) told: &'run v1::Mailbox,
}

/// An instance of a component, and the worker of this process that executes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueReceiver {
    pub(super) instance: u32,
    pub(super) worker: u32,
}

/// Result of one look at a queue.
enum TakeOutcome {
    /// Length and sender of the message that was taken.
    Message(u32, u32),
    /// The end of the ring was skipped.
    Skipped,
    /// The word at this offset of the ring is zero: no message has arrived.
    Nothing(u64),
    /// Another thread of the component takes a message from the queue.
    Busy,
}

/// A queue, with its location.
struct Queue<'run> {
    channel: &'run Channel,
    offset: u64,
    place: MailboxMemory,
}

enum MailboxMemory {
    /// In this process, aligned for words.
    Here(NonNull<u8>),
    There(Arc<MemoryPiece>),
}

/// Offset and length of a message's record in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    at: u64,
    /// Number of bytes up to the ring's end that are skipped before the record.
    skipped: u64,
    bytes: u64,
}

impl Record {
    /// The record of a message of `len` bytes at this position, which counts on for ever.
    fn at(position: u64, len: u64) -> Record {
        let bytes = WORD_BYTES + len.next_multiple_of(WORD_BYTES);
        let at = position % RING_BYTES;
        let record = match RING_BYTES - at {
            left if left < bytes => Record { at: 0, skipped: left, bytes },
            _ => Record { at, skipped: 0, bytes },
        };
        debug_assert!(record.at + record.bytes <= RING_BYTES, "{record:?} is beyond a ring of {RING_BYTES}");
        record
    }

    /// The position behind the record; `None` if positions end before.
    fn end(&self, position: u64) -> Option<u64> {
        position.checked_add(self.skipped)?.checked_add(self.bytes)
    }

    /// The record that a sender of `len` bytes claims in a queue with these positions, and the tail behind it; `None` if
    /// the queue has not enough space.
    ///
    /// # Errors
    /// `protocol` if the positions are not those of a queue.
    fn claimed(head: u64, tail: u64, len: u64) -> Result<Option<(Record, u64)>, Error> {
        let record = Record::at(checked(tail)?, len);
        let end = record.end(tail).ok_or_else(written_over)?;
        // A head that is old is a lower one.
        Ok((end.wrapping_sub(checked(head)?) <= RING_BYTES).then_some((record, end)))
    }

    /// The record at the head of a queue, whose word has this length.
    ///
    /// # Errors
    /// `protocol` if no sender has made such a record.
    fn received(head: u64, len: u32) -> Result<Record, Error> {
        let len = u64::from(len);
        if len > MAX_MESSAGE_BYTES {
            return Err(written_over());
        }
        match Record::at(checked(head)?, len) {
            record if record.skipped == 0 => Ok(record),
            _ => Err(written_over()),
        }
    }
}

/// A position that was read from a queue: positions move by whole words.
fn checked(position: u64) -> Result<u64, Error> {
    if position.is_multiple_of(WORD_BYTES) { Ok(position) } else { Err(written_over()) }
}

#[cold]
fn written_over() -> Error {
    Error::new(Code::Protocol, "a queue of messages was written over")
}

fn word(len: u32, from: u32) -> u64 {
    u64::from(from) << 32 | u64::from(len.wrapping_add(1))
}

/// Length and sender; nothing if nothing is there.
fn read_word(word: u64) -> Option<(u32, u32)> {
    let (len, from) = ((word & 0xffff_ffff) as u32, (word >> 32) as u32);
    (word != 0).then(|| (len.wrapping_sub(1), from))
}

impl Mailbox<'_> {
    /// Puts a message into the queue of an instance, once the queue has enough space.
    ///
    /// # Errors
    /// `invalid_argument` if the message is too long or the instance does not exist, `deadline_exceeded`, `lease_ended`
    /// if the other component has ended.
    pub(super) fn send(
        &self,
        own: u32,
        to: u32,
        message: SharedBytes<'_>,
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        let len = message.len() as u64;
        if len > MAX_MESSAGE_BYTES {
            let text = format!(
                "a message of {len} bytes: it has at most {MAX_MESSAGE_BYTES}, more is for memory components"
            );
            return Err(Error::new(Code::InvalidArgument, text));
        }
        if to >= self.told.peers {
            let (peer, peers) = (&self.told.peer, self.told.peers);
            let text = format!("there is no instance {to} of component {peer}, which has {peers}");
            return Err(Error::new(Code::InvalidArgument, text));
        }
        let queue = self.queue(u64::from(self.told.peer_queue) + u64::from(to))?;
        let mut wait = Wait::new(self, deadline);
        loop {
            let (head, tail) = (queue.load(HEAD_AT)?, queue.load(TAIL_AT)?);
            let Some((record, end)) = Record::claimed(head, tail, len)? else {
                self.check_peer()?;
                wait.more(false, || {
                    format!("the queue of instance {to} of component {} stays full", self.told.peer)
                })?;
                continue;
            };
            if queue.swap(TAIL_AT, tail, end)? != tail {
                continue;
            }
            if record.skipped > 0 {
                queue.publish(tail % RING_BYTES, word(SKIP, own))?;
            }
            queue.put(RING_AT + record.at + WORD_BYTES, message)?;
            #[expect(clippy::cast_possible_truncation, reason = "checked above: `MAX_MESSAGE_BYTES` at most")]
            let len = len as u32;
            queue.publish(record.at, word(len, own))?;
            self.channel.traffic.count_write(len.into());
            queue.ring();
            return self.channel.check();
        }
    }

    /// Takes the next message out of an instance's queue: how long it is, and which instance has sent it. Several threads
    /// of the instance may receive at once: each message goes to one of them.
    ///
    /// # Errors
    /// `deadline_exceeded`, and `lease_ended` if the other component has ended and nothing is left of it.
    pub(super) fn receive(
        &self,
        own: QueueReceiver,
        mut into: SharedBytesMut<'_>,
        deadline: Option<Instant>,
    ) -> Result<(u32, u32), ReceiveError> {
        let queue = self.queue(u64::from(self.told.own_queue) + u64::from(own.instance))?;
        let mut wait = Wait::new(self, deadline);
        loop {
            // Checked before the queue is read, so that messages which the peer sent before its end are received.
            let peer = self.check_peer();
            match self.take(&queue, own.worker, &mut into)? {
                TakeOutcome::Message(len, from) => {
                    self.channel.traffic.count_read(len.into());
                    self.channel.check()?;
                    return Ok((len, from));
                }
                TakeOutcome::Skipped => {}
                TakeOutcome::Nothing(at) => {
                    peer?;
                    let has_slept = queue.sleep(at);
                    wait.more(has_slept, || format!("component {} sends nothing", self.told.peer))?;
                }
                TakeOutcome::Busy => wait.more(false, || {
                    format!("another thread receives from component {} at the same time", self.told.peer)
                })?,
            }
        }
    }

    /// Takes the message at the head of a queue, if one has arrived. No other thread of the process takes one from there
    /// meanwhile: the head moves after the message was copied.
    fn take(
        &self,
        queue: &Queue<'_>,
        worker: u32,
        into: &mut SharedBytesMut<'_>,
    ) -> Result<TakeOutcome, ReceiveError> {
        let Some(_claim) = self.channel.claim_queue(worker) else { return Ok(TakeOutcome::Busy) };
        let head = checked(queue.load(HEAD_AT)?)?;
        let at = head % RING_BYTES;
        let Some((len, from)) = read_word(queue.load(RING_AT + at)?) else {
            return Ok(TakeOutcome::Nothing(RING_AT + at));
        };
        if len == SKIP {
            queue.clear(at, WORD_BYTES)?;
            queue.add(HEAD_AT, RING_BYTES - at)?;
            return Ok(TakeOutcome::Skipped);
        }
        let Record { bytes, .. } = Record::received(head, len)?;
        if len as usize > into.len() {
            return Err(ReceiveError::TooLong(len));
        }
        queue.get(RING_AT + at + WORD_BYTES, into.part(0..len as usize))?;
        queue.clear(at, bytes)?;
        queue.add(HEAD_AT, bytes)?;
        Ok(TakeOutcome::Message(len, from))
    }

    fn queue(&self, number: u64) -> Result<Queue<'_>, Error> {
        let offset = number * QUEUE_BYTES;
        let place = match self.channel.piece(offset, QUEUE_BYTES)? {
            piece if piece.file().is_some() => {
                MailboxMemory::Here(self.channel.pointer(offset, QUEUE_BYTES)?)
            }
            piece => MailboxMemory::There(piece),
        };
        Ok(Queue { channel: self.channel, offset, place })
    }

    fn check_peer(&self) -> Result<(), Error> {
        self.channel.check()?;
        if self.channel.ended() & 1 << self.told.peer_end == 0 {
            return Ok(());
        }
        Err(Error::new(Code::LeaseEnded, format!("component {} has ended", self.told.peer)))
    }
}

/// Reason why nothing was received.
#[derive(Debug)]
pub enum ReceiveError {
    /// The next message has this length, which exceeds the given capacity. It stays in the queue.
    TooLong(u32),
    /// There is no message.
    Error(Error),
}

impl From<Error> for ReceiveError {
    fn from(error: Error) -> ReceiveError {
        ReceiveError::Error(error)
    }
}

impl Queue<'_> {
    fn load(&self, at: u64) -> Result<u64, Error> {
        match &self.place {
            MailboxMemory::Here(base) => Ok(self.here(*base, at).load(Ordering::Acquire)),
            MailboxMemory::There(piece) => {
                let mut bytes = [0; to_usize(WORD_BYTES)];
                self.told(piece, piece.get(self.offset + at, (&mut bytes).into()))?;
                Ok(u64::from_ne_bytes(bytes))
            }
        }
    }

    fn add(&self, at: u64, value: u64) -> Result<u64, Error> {
        match &self.place {
            MailboxMemory::Here(base) => Ok(self.here(*base, at).fetch_add(value, Ordering::AcqRel)),
            MailboxMemory::There(piece) => self.told(piece, piece.fetch_add(self.offset + at, value)),
        }
    }

    fn swap(&self, at: u64, expected: u64, new: u64) -> Result<u64, Error> {
        match &self.place {
            MailboxMemory::Here(base) => {
                let word = self.here(*base, at);
                let swapped = word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
                Ok(swapped.unwrap_or_else(|is| is))
            }
            MailboxMemory::There(piece) => {
                self.told(piece, piece.compare_swap(self.offset + at, expected, new))
            }
        }
    }

    /// Writes the word of a record in one step, after all earlier writes.
    fn publish(&self, at: u64, word: u64) -> Result<(), Error> {
        self.add(RING_AT + at, word).map(drop)
    }

    fn put(&self, at: u64, bytes: SharedBytes<'_>) -> Result<(), Error> {
        match &self.place {
            MailboxMemory::Here(_) => self.channel.put(self.offset + at, bytes),
            MailboxMemory::There(piece) => self.told(piece, piece.put(self.offset + at, bytes)),
        }
    }

    fn get(&self, at: u64, into: SharedBytesMut<'_>) -> Result<(), Error> {
        match &self.place {
            MailboxMemory::Here(_) => self.channel.get(self.offset + at, into),
            MailboxMemory::There(piece) => self.told(piece, piece.get(self.offset + at, into)),
        }
    }

    fn clear(&self, at: u64, len_bytes: u64) -> Result<(), Error> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut done = 0;
        while done < len_bytes {
            let len = (len_bytes - done).min(ZEROS.len() as u64);
            self.put(RING_AT + at + done, ZEROS[..to_usize(len)].into())?;
            done += len;
        }
        Ok(())
    }

    /// Sleeps for a moment, or until a sender of this machine rings, unless the word at `at` is set. Returns `false` at
    /// once for a queue on another machine.
    fn sleep(&self, at: u64) -> bool {
        let MailboxMemory::Here(base) = self.place else { return false };
        let word = self.here(base, at);
        for _ in 0..LOOKS {
            if word.load(Ordering::Acquire) != 0 {
                return true;
            }
            std::hint::spin_loop();
        }
        let (bell, sleeps) = (self.half(base, BELL_AT), self.half(base, SLEEPS_AT));
        let rung = bell.load(Ordering::Acquire);
        sleeps.store(1, Ordering::Relaxed);
        // Pairs with that of `ring`: either this sees the word, or that the sleeper.
        fence(Ordering::SeqCst);
        if word.load(Ordering::Acquire) == 0 {
            futex::wait(bell, rung, Some(NAP));
        }
        sleeps.store(0, Ordering::Relaxed);
        true
    }

    /// Wakes the receiver, if it sleeps on this machine.
    fn ring(&self) {
        let MailboxMemory::Here(base) = self.place else { return };
        fence(Ordering::SeqCst);
        if self.half(base, SLEEPS_AT).load(Ordering::Relaxed) != 0 {
            let bell = self.half(base, BELL_AT);
            bell.fetch_add(1, Ordering::AcqRel);
            futex::wake_all(bell);
        }
    }

    fn here(&self, base: NonNull<u8>, at: u64) -> &AtomicU64 {
        debug_assert!(
            at + WORD_BYTES <= QUEUE_BYTES && at.is_multiple_of(WORD_BYTES),
            "a word at byte {at} of a queue of {QUEUE_BYTES}"
        );
        // SAFETY: within the queue, which is mapped as long as the channel is borrowed, begins at a page and is
        // accessed only as atomics and raw copies.
        unsafe { base.add(to_usize(at)).cast().as_ref() }
    }

    fn half(&self, base: NonNull<u8>, at: u64) -> &AtomicU32 {
        // SAFETY: as in `here`.
        unsafe { base.add(to_usize(at)).cast().as_ref() }
    }

    fn told<T>(&self, piece: &MemoryPiece, done: Result<T, Error>) -> Result<T, Error> {
        done.map_err(|error| self.channel.failed(piece, error))
    }
}

/// State of a wait for another instance.
struct Wait<'run> {
    mailbox: &'run Mailbox<'run>,
    deadline: Option<Instant>,
    next: Duration,
    asked: Instant,
}

impl<'run> Wait<'run> {
    fn new(mailbox: &'run Mailbox<'run>, deadline: Option<Instant>) -> Wait<'run> {
        Wait { mailbox, deadline, next: SHORTEST_WAIT, asked: Instant::now() }
    }

    /// Waits for a moment, longer each time, unless the caller has slept already.
    fn more(&mut self, has_slept: bool, what: impl FnOnce() -> String) -> Result<(), Error> {
        let now = Instant::now();
        let left = self.deadline.map_or(LONGEST_WAIT, |deadline| deadline.saturating_duration_since(now));
        if left.is_zero() {
            return Err(Error::new(Code::DeadlineExceeded, what()));
        }
        if now.saturating_duration_since(self.asked) >= ASK_EVERY {
            self.asked = now;
            self.mailbox.channel.ask_ended()?;
        }
        if has_slept {
            return Ok(());
        }
        std::thread::sleep(self.next.min(left));
        self.next = (self.next * 2).min(LONGEST_WAIT);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
