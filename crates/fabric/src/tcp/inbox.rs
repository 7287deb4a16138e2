//! Buffers received frames, and receives large payloads directly at their destination.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use sublet_proto::text::printable_line;
use sublet_proto::to_usize;

use super::frame::{Frame, HEADER_BYTES, MAX_REASON_BYTES};
use super::parts::Part;
use super::stream::ByteStream;
use crate::FabricError;
use crate::line::BODY_WORDS;
use crate::shared::copy_bytes;

/// Bytes of the buffer: one system call receives at most that many bytes of small frames.
const BUFFER_BYTES: usize = 16 << 10;
/// Most bytes of a payload that one system call receives, so that no payload keeps a thread from its other connections.
const MAX_STRETCH_BYTES: u64 = 4 << 20;
/// Most bytes of a discarded payload that one system call receives.
const SCRAP_BYTES: usize = 64 << 10;
/// Most bytes that must be in the buffer together: a header with a line's body or a reason.
const MAX_WHOLE_BYTES: usize = HEADER_BYTES + MAX_REASON_BYTES;
const _: () = assert!(BODY_WORDS * 8 <= MAX_REASON_BYTES && MAX_WHOLE_BYTES * 2 < BUFFER_BYTES);

/// See the [module](self).
pub(super) struct Inbox {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    payload: Option<PayloadRest>,
    /// Buffer for discarded payloads. Allocated at the first use.
    scrap: Box<[u8]>,
    /// The payload that is being received, if it is for stored bytes.
    staged: Option<StagedPut>,
}

/// A payload for stored bytes, which is written when all of it has arrived.
pub(super) struct StagedPut {
    pub(super) key: u64,
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

/// The rest of a payload. While some is missing, the buffer is empty.
struct PayloadRest {
    /// Destination of the next byte. `None` if the payload is discarded, as its request or region has ended.
    into: Option<NonNull<u8>>,
    left: u64,
    /// The request that is complete with the last byte.
    request: Option<u32>,
}

// SAFETY: the payload goes into a region, which lives as long as the endpoint, to a request whose owner waits, or into
// the staged bytes beside it.
unsafe impl Send for Inbox {}

/// The destination of a payload.
#[derive(Clone, Copy)]
pub(super) struct Destination {
    /// The address. `None` if the bytes are only removed from the stream.
    pub(super) into: Option<NonNull<u8>>,
    pub(super) len_bytes: u64,
    pub(super) request: Option<u32>,
}

impl Inbox {
    pub(super) fn new() -> Inbox {
        let (buffer, scrap) = (vec![0; BUFFER_BYTES].into(), Box::default());
        Inbox { buffer, start: 0, end: 0, payload: None, scrap, staged: None }
    }

    pub(super) fn clear(&mut self) {
        (self.start, self.end, self.payload) = (0, 0, None);
        self.staged = None;
    }

    /// Stops delivering the reply to this request. Returns whether the reply was being received; then the request gets
    /// no other reply.
    pub(super) fn abandon(&mut self, request: u32) -> bool {
        self.divert(|payload| payload.request == Some(request))
    }

    /// Stops delivering a payload to these bytes.
    pub(super) fn spare(&mut self, bytes: &Range<*const u8>) {
        self.divert(|payload| payload.into.is_some_and(|into| bytes.contains(&into.as_ptr().cast_const())));
    }

    /// Discards the rest of the current payload if `is_it` accepts it.
    fn divert(&mut self, is_it: impl FnOnce(&PayloadRest) -> bool) -> bool {
        match self.payload.as_mut().filter(|payload| is_it(payload)) {
            Some(payload) => {
                (payload.into, payload.request) = (None, None);
                true
            }
            None => false,
        }
    }

    /// Whether the last frame is incomplete.
    pub(super) fn is_amid_frame(&self) -> bool {
        self.start != self.end || self.payload.is_some()
    }

    /// Receives from the stream. `Ok(0)`: the stream has ended.
    #[inline]
    pub(super) fn fill(&mut self, stream: &ByteStream) -> io::Result<usize> {
        debug_assert!(
            self.start == self.end || self.payload.as_ref().is_none_or(|payload| payload.left == 0),
            "{} bytes wait in the buffer before a payload",
            self.end - self.start
        );
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if BUFFER_BYTES - self.end < MAX_WHOLE_BYTES {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let first = match &self.payload {
            Some(PayloadRest { into: Some(into), left, .. }) => {
                (into.as_ptr(), (*left).min(MAX_STRETCH_BYTES) as usize)
            }
            Some(PayloadRest { into: None, left, .. }) => {
                if self.scrap.is_empty() {
                    self.scrap = vec![0; SCRAP_BYTES].into();
                }
                (self.scrap.as_mut_ptr(), to_usize(*left).min(SCRAP_BYTES))
            }
            None => (std::ptr::null_mut(), 0),
        };
        let rest = &mut self.buffer[self.end..];
        // Nothing else may follow a payload of which only a part is requested.
        let rest_len = match &self.payload {
            Some(payload) if payload.left > first.1 as u64 => 0,
            _ => rest.len(),
        };
        let parts = [
            Part { iov_base: first.0.cast(), iov_len: first.1 },
            Part { iov_base: rest.as_mut_ptr().cast(), iov_len: rest_len },
        ];
        // SAFETY: the payload's memory is writable for what is left of it, and `rest` is a slice of this buffer.
        let received = unsafe { stream.recv(&parts) }?;
        let of_payload = received.min(first.1);
        if let Some(payload) = &mut self.payload {
            // SAFETY: within the payload's memory.
            payload.into = payload.into.map(|into| unsafe { into.add(of_payload) });
            payload.left -= of_payload as u64;
        }
        self.end += received - of_payload;
        debug_assert!(self.start <= self.end && self.end <= BUFFER_BYTES, "{}..{}", self.start, self.end);
        Ok(received)
    }

    /// State of the current payload. Once it is complete, the request that it completes is reported once.
    #[inline]
    pub(super) fn payload(&mut self) -> PayloadState {
        match &self.payload {
            None => PayloadState::Nothing,
            Some(payload) if payload.left > 0 => PayloadState::Under,
            Some(payload) => {
                let request = payload.request;
                self.payload = None;
                PayloadState::Complete(request)
            }
        }
    }

    /// The next frame, if its header has arrived together with the line's body or the reason that must follow.
    #[inline]
    pub(super) fn frame(&mut self) -> Result<Option<Frame>, FabricError> {
        let waiting = &self.buffer[self.start..self.end];
        let Some(header) = waiting.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let frame = Frame::decode(header)?;
        let with_it = match frame {
            Frame::Line { words, .. } => usize::from(words) * 8,
            Frame::Cut { len_bytes } => len_bytes as usize,
            _ => 0,
        };
        if waiting.len() < HEADER_BYTES + with_it {
            return Ok(None);
        }
        self.start += HEADER_BYTES;
        Ok(Some(frame))
    }

    /// The body of a line whose frame has just been taken.
    #[inline]
    pub(super) fn body(&mut self, words: u8) -> [u64; BODY_WORDS] {
        let bytes = &self.buffer[self.start..self.end];
        let (chunks, _) = bytes.as_chunks::<8>();
        let mut body = [0; BODY_WORDS];
        for (word, chunk) in body.iter_mut().zip(&chunks[..usize::from(words)]) {
            *word = u64::from_le_bytes(*chunk);
        }
        self.start += usize::from(words) * 8;
        debug_assert!(self.start <= self.end, "a body of {words} words was not in the buffer");
        body
    }

    /// The reason of a cut whose frame has just been taken.
    pub(super) fn reason(&mut self, len_bytes: u32) -> String {
        let bytes = &self.buffer[self.start..self.start + len_bytes as usize];
        self.start += len_bytes as usize;
        // A peer's text goes into messages and logs: on one line, without control characters.
        printable_line(&String::from_utf8_lossy(bytes)).into_owned()
    }

    /// Keeps the payload of the frame that has just been taken until it is complete.
    #[cold]
    pub(super) fn stage(&mut self, key: u64, (offset, len_bytes): (u64, u64)) {
        let mut bytes = vec![0; to_usize(len_bytes)];
        let into = NonNull::new(bytes.as_mut_ptr());
        // The bytes stay where they are when the vector is moved.
        self.staged = Some(StagedPut { key, offset, bytes });
        self.deliver(Destination { into, len_bytes, request: None });
    }

    /// Takes the payload for stored bytes that is complete.
    #[inline]
    pub(super) fn take_staged(&mut self) -> Option<StagedPut> {
        self.staged.take()
    }

    /// Delivers the payload of the frame that has just been taken to this destination.
    #[inline]
    pub(super) fn deliver(&mut self, to: Destination) {
        debug_assert!(self.payload.is_none(), "a payload follows one that has not come");
        let here = (self.end - self.start).min(usize::try_from(to.len_bytes).unwrap_or(usize::MAX));
        let bytes = &self.buffer[self.start..self.start + here];
        let into = to.into.map(|into| {
            // SAFETY: the destination is writable for its length, and `bytes` is not longer.
            unsafe { copy_bytes(bytes.as_ptr(), into.as_ptr(), here) };
            // SAFETY: within the destination or one past its end.
            unsafe { into.add(here) }
        });
        self.start += here;
        self.payload = Some(PayloadRest { into, left: to.len_bytes - here as u64, request: to.request });
    }
}

/// State of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PayloadState {
    /// There is no payload.
    Nothing,
    /// The payload is incomplete.
    Under,
    /// The payload is complete, and with it the reply to this request.
    Complete(Option<u32>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_peers_hold_no_control_characters() {
        let reason = "gone\n\x1b[2J\u{202e}".as_bytes();
        let mut inbox = Inbox::new();
        inbox.buffer[..reason.len()].copy_from_slice(reason);
        inbox.end = reason.len();
        assert_eq!(inbox.reason(reason.len() as u32), "gone\\x0a\\x1b[2J\\u{202e}");
    }
}
