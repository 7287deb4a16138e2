//! Queues data to send, in order: small pieces are copied together, large ones stay in place.

use super::parts::Part;
use super::stream::ByteStream;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

/// Most bytes that are gathered.
const GATHERED_BYTES: usize = 32 << 10;
/// Most parts that wait.
const MAX_PARTS: usize = 64;
/// Most payloads that the outbox owns.
const MAX_OWNED: usize = 4;
/// Most bytes of a payload that is copied: copying costs less than one more part.
pub(super) const SMALL_BYTES: usize = 4 << 10;

/// See the [module](self).
pub(super) struct Outbox {
    gathered: Box<[u8]>,
    gathered_len: usize,
    /// Waiting parts. Those before `first` have been sent.
    parts: Box<[QueuedBytes; MAX_PARTS]>,
    first: usize,
    count: usize,
    /// Bytes added and bytes sent so far.
    added: u64,
    sent: u64,
    /// Payloads of some of the parts, until all parts have been sent.
    owned: Vec<Vec<u8>>,
    /// A frame was discarded that may have been sent in part: nothing can follow it on the stream.
    broken: bool,
}

#[derive(Clone, Copy)]
enum QueuedBytes {
    Gathered { at: usize, len: usize },
    Elsewhere { at: *const u8, len: usize },
}

// SAFETY: the caller that adds memory by reference keeps it readable, from any thread, until it has been sent.
unsafe impl Send for Outbox {}

impl Outbox {
    pub(super) fn new() -> Outbox {
        Outbox {
            gathered: vec![0; GATHERED_BYTES].into(),
            gathered_len: 0,
            parts: Box::new([QueuedBytes::Gathered { at: 0, len: 0 }; MAX_PARTS]),
            first: 0,
            count: 0,
            added: 0,
            sent: 0,
            owned: Vec::new(),
            broken: false,
        }
    }

    /// Discards all bytes that have not been sent.
    pub(super) fn clear(&mut self) {
        self.broken |= !self.is_empty();
        (self.gathered_len, self.first, self.count) = (0, 0, 0);
        self.owned.clear();
        self.sent = self.added;
    }

    /// Whether the next byte would be the first of a frame.
    pub(super) fn is_between_frames(&self) -> bool {
        self.is_empty() && !self.broken
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first == self.count
    }

    /// Whether bytes in this range are still to be sent.
    pub(super) fn refers_to(&self, bytes: &Range<*const u8>) -> bool {
        let is_of =
            |part: &QueuedBytes| matches!(part, QueuedBytes::Elsewhere { at, .. } if bytes.contains(at));
        self.parts[self.first..self.count].iter().any(is_of)
    }

    /// Whether `gathered_bytes` more bytes and one more part fit.
    pub(super) fn has_space(&self, gathered_bytes: usize) -> bool {
        self.gathered_len + gathered_bytes <= GATHERED_BYTES
            && self.count + 2 <= MAX_PARTS
            && self.owned.len() < MAX_OWNED
    }

    /// The number of bytes added so far: those are sent when [`Outbox::has_sent`] returns true for it.
    pub(super) fn mark(&self) -> u64 {
        self.added
    }

    pub(super) fn has_sent(&self, mark: u64) -> bool {
        self.sent >= mark
    }

    /// Adds bytes by copying them. They must fit.
    #[inline]
    pub(super) fn copy(&mut self, bytes: &[u8]) {
        // SAFETY: a slice is readable.
        unsafe { self.copy_raw(bytes.as_ptr(), bytes.len()) }
    }

    /// Adds bytes like [`Outbox::copy`], from memory that other threads and processes may write.
    ///
    /// # Safety
    /// `len` bytes at `from` must be readable.
    #[inline]
    pub(super) unsafe fn copy_raw(&mut self, from: *const u8, len: usize) {
        let at = self.gathered_len;
        debug_assert!(at + len <= GATHERED_BYTES, "{len} bytes are gathered beside {at}");
        let into = &mut self.gathered[at..at + len];
        // SAFETY: the caller's duty for `from`; `into` is a slice of this length.
        unsafe { crate::shared::copy_bytes(from, into.as_mut_ptr(), len) };
        self.gathered_len += len;
        self.added += len as u64;
        match self.parts[..self.count].last_mut() {
            Some(QueuedBytes::Gathered { at: last, len: last_len }) if *last + *last_len == at => {
                *last_len += len
            }
            _ => self.push(QueuedBytes::Gathered { at, len }),
        }
    }

    /// Adds memory by reference. It must fit.
    ///
    /// # Safety
    /// The memory must be readable until it has been sent, or [`Outbox::clear`] has been called.
    pub(super) unsafe fn refer(&mut self, at: NonNull<u8>, len: usize) {
        self.added += len as u64;
        self.push(QueuedBytes::Elsewhere { at: at.as_ptr(), len });
    }

    /// Adds bytes, which the outbox keeps until they have been sent. They must fit.
    pub(super) fn own(&mut self, bytes: Vec<u8>) {
        if bytes.len() <= SMALL_BYTES {
            return self.copy(&bytes);
        }
        // SAFETY: the bytes stay where they are until `owned` is cleared, which is when no part is left to send.
        unsafe { self.refer(NonNull::from(bytes.as_slice()).cast(), bytes.len()) };
        self.owned.push(bytes);
    }

    fn push(&mut self, part: QueuedBytes) {
        debug_assert!(self.count < MAX_PARTS, "{} parts wait already", self.count);
        self.parts[self.count] = part;
        self.count += 1;
    }

    /// Passes to the stream as much as it accepts at once.
    #[inline]
    pub(super) fn send(&mut self, stream: &ByteStream) -> io::Result<()> {
        let waiting = &self.parts[self.first..self.count];
        let sent = match waiting {
            // SAFETY: gathered bytes are this side's own, and the callers of `refer` keep the others readable.
            [only] => unsafe { stream.send(&[self.part(only)]) },
            waiting => {
                let mut parts = [Part { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_PARTS];
                for (part, queued) in parts.iter_mut().zip(waiting) {
                    *part = self.part(queued);
                }
                // SAFETY: as above.
                unsafe { stream.send(&parts[..waiting.len()]) }
            }
        }?;
        self.advance(sent);
        Ok(())
    }

    fn part(&self, queued: &QueuedBytes) -> Part {
        let (at, len) = match *queued {
            QueuedBytes::Gathered { at, len } => (self.gathered[at..].as_ptr(), len),
            QueuedBytes::Elsewhere { at, len } => (at, len),
        };
        Part { iov_base: at.cast_mut().cast(), iov_len: len }
    }

    fn advance(&mut self, mut sent: usize) {
        self.sent += sent as u64;
        while self.first < self.count {
            let part = &mut self.parts[self.first];
            let (QueuedBytes::Gathered { len, .. } | QueuedBytes::Elsewhere { len, .. }) = *part;
            if sent < len {
                match part {
                    QueuedBytes::Gathered { at, len } => (*at, *len) = (*at + sent, *len - sent),
                    QueuedBytes::Elsewhere { at, len } => (*at, *len) = (at.wrapping_add(sent), *len - sent),
                }
                return;
            }
            sent -= len;
            self.first += 1;
        }
        (self.gathered_len, self.first, self.count) = (0, 0, 0);
        self.owned.clear();
        debug_assert_eq!((sent, self.sent), (0, self.added), "bytes that were sent, and not added");
    }
}
