//! Encodes the message in a slot: several puts, then a line, an atomic operation or nothing.
//!
//! ```text
//! header   consumed u32, kind u8, words u8, puts u16
//! puts     key u64, offset u64, region u32, length u32, bytes, up to a multiple of 8
//! line     key u64, line u64, watch u64, region u32, immediate u32, turn u32, 0 u32, words u64
//! atomic   key u64, offset u64, operand u64, expected u64, region u32, number u32
//! answer   value u64, number u32, 0 u32
//! goodbye  text
//! ```
//! All fields are little-endian. `consumed` counts the messages that the sender has taken from its own slots: the
//! receiver may fill that number of slots again. Decoded values are not trusted; addresses and keys are checked where
//! they are used.

use crate::FabricError;
use crate::line::BODY_WORDS;
use crate::shared::copy_bytes;

/// Bytes of a slot, and so the longest message.
pub const SLOT_BYTES: usize = 8192;
/// Bytes before the puts.
const HEADER_BYTES: usize = 8;
/// Bytes of a put in addition to its payload.
pub const PUT_BYTES: usize = 24;
/// Longest tail behind the puts, except for texts.
const TAIL_BYTES: usize = 40 + 8 * BODY_WORDS;
/// Most bytes of the puts of a message.
pub const BATCH_BYTES: usize = SLOT_BYTES - HEADER_BYTES - TAIL_BYTES;
/// Most bytes of the reason in a goodbye; a longer one is cut.
const TEXT_BYTES: usize = 256;

/// Destination in a region, as the region's owner named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutDestination {
    /// The region's key.
    pub key: u64,
    /// The region's number.
    pub region: u32,
    /// Offset from the region's beginning.
    pub offset: u64,
}

/// A line to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineMessage {
    /// Address of the line.
    pub line: PutDestination,
    /// Offset of the line's watch, in the same region.
    pub watch: u64,
    pub turn: u32,
    pub immediate: u32,
    pub words: usize,
    pub body: [u64; BODY_WORDS],
}

/// Content behind the puts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail<'a> {
    Nothing,
    Line(LineMessage),
    FetchAdd {
        at: PutDestination,
        operand: u64,
        number: u32,
    },
    CompareSwap {
        at: PutDestination,
        expected: u64,
        new: u64,
        number: u32,
    },
    Answer {
        number: u32,
        value: u64,
    },
    Goodbye(&'a [u8]),
    /// The sender waits for a report that this message and all before it were taken.
    Probe,
}

const NOTHING: u8 = 0;
const LINE: u8 = 1;
const FETCH_ADD: u8 = 2;
const COMPARE_SWAP: u8 = 3;
const ANSWER: u8 = 4;
const GOODBYE: u8 = 5;
const PROBE: u8 = 6;

/// Puts that wait for the next line.
#[derive(Debug, Default)]
pub struct PutBatch {
    bytes: Vec<u8>,
    puts: u16,
}

impl PutBatch {
    pub fn is_empty(&self) -> bool {
        self.puts == 0
    }

    /// Whether a put of `len` bytes fits.
    pub fn has_space(&self, len: usize) -> bool {
        self.bytes.len() + PUT_BYTES + len.next_multiple_of(8) <= BATCH_BYTES
    }

    /// Adds a put that fits.
    ///
    /// # Safety
    /// `len` bytes at `from` must be readable.
    pub unsafe fn add(&mut self, to: PutDestination, from: *const u8, len: usize) {
        debug_assert!(self.has_space(len), "{len} bytes do not fit beside {}", self.bytes.len());
        self.bytes.extend_from_slice(&to.key.to_le_bytes());
        self.bytes.extend_from_slice(&to.offset.to_le_bytes());
        self.bytes.extend_from_slice(&to.region.to_le_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "a put that fits has `BATCH_BYTES` at most")]
        let len_bytes = len as u32;
        self.bytes.extend_from_slice(&len_bytes.to_le_bytes());
        let at = self.bytes.len();
        self.bytes.resize(at + len.next_multiple_of(8), 0);
        // SAFETY: the caller's duty, and the vector was extended by at least `len` bytes just now.
        unsafe { copy_bytes(from, self.bytes[at..].as_mut_ptr(), len) };
        self.puts += 1;
    }

    /// The puts, in their order.
    pub fn puts(&self) -> Puts<'_> {
        Puts { bytes: &self.bytes, left: self.puts }
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.puts = 0;
    }
}

/// Reads puts one after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Puts<'a> {
    bytes: &'a [u8],
    left: u16,
}

impl<'a> Puts<'a> {
    /// The next put, if it is complete.
    fn take_one(&mut self) -> Option<(PutDestination, &'a [u8])> {
        let mut rest = Rest(self.bytes);
        let (key, offset, region, len) = (rest.u64()?, rest.u64()?, rest.u32()?, rest.u32()? as usize);
        let padded = rest.take(len.checked_next_multiple_of(8)?)?;
        self.bytes = rest.0;
        Some((PutDestination { key, region, offset }, &padded[..len]))
    }
}

impl<'a> Iterator for Puts<'a> {
    type Item = (PutDestination, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        self.take_one()
    }
}

/// Writes a message into a slot. Returns its length.
pub fn encode(into: &mut [u8; SLOT_BYTES], consumed: u32, batch: &PutBatch, tail: &Tail<'_>) -> usize {
    let (kind, words) = match tail {
        Tail::Nothing => (NOTHING, 0),
        #[expect(clippy::cast_possible_truncation, reason = "a line has `BODY_WORDS` at most")]
        Tail::Line(line) => (LINE, line.words as u8),
        Tail::FetchAdd { .. } => (FETCH_ADD, 0),
        Tail::CompareSwap { .. } => (COMPARE_SWAP, 0),
        Tail::Answer { .. } => (ANSWER, 0),
        Tail::Goodbye(_) => (GOODBYE, 0),
        Tail::Probe => (PROBE, 0),
    };
    let mut writer = SlotWriter { into, at: 0 };
    debug_assert!(batch.bytes.len() <= BATCH_BYTES, "{} bytes of puts", batch.bytes.len());
    writer.bytes(&consumed.to_le_bytes());
    writer.bytes(&[kind, words]);
    writer.bytes(&batch.puts.to_le_bytes());
    writer.bytes(&batch.bytes);
    match tail {
        Tail::Nothing | Tail::Probe => {}
        Tail::Line(line) => {
            writer.words(&[line.line.key, line.line.offset, line.watch]);
            writer.halves(&[line.line.region, line.immediate, line.turn, 0]);
            writer.words(&line.body[..line.words]);
        }
        Tail::FetchAdd { at, operand, number } => {
            writer.words(&[at.key, at.offset, *operand, 0]);
            writer.halves(&[at.region, *number]);
        }
        Tail::CompareSwap { at, expected, new, number } => {
            writer.words(&[at.key, at.offset, *new, *expected]);
            writer.halves(&[at.region, *number]);
        }
        Tail::Answer { number, value } => {
            writer.words(&[*value]);
            writer.halves(&[*number, 0]);
        }
        Tail::Goodbye(text) => writer.bytes(&text[..text.len().min(TEXT_BYTES)]),
    }
    writer.at
}

struct SlotWriter<'a> {
    into: &'a mut [u8; SLOT_BYTES],
    at: usize,
}

impl SlotWriter<'_> {
    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.into[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    #[inline]
    fn words(&mut self, words: &[u64]) {
        for word in words {
            self.bytes(&word.to_le_bytes());
        }
    }

    #[inline]
    fn halves(&mut self, halves: &[u32]) {
        for half in halves {
            self.bytes(&half.to_le_bytes());
        }
    }
}

/// A decoded message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming<'a> {
    pub consumed: u32,
    pub puts: Puts<'a>,
    pub tail: Tail<'a>,
}

/// Decodes a message from a private copy of a slot.
pub fn decode(bytes: &[u8]) -> Result<Incoming<'_>, FabricError> {
    decode_whole(bytes).ok_or_else(|| {
        FabricError::Protocol(format!("{} bytes that the peer sent are not a message", bytes.len()))
    })
}

fn decode_whole(bytes: &[u8]) -> Option<Incoming<'_>> {
    let mut rest = Rest(bytes);
    let consumed = rest.u32()?;
    let (kind, words) = (rest.take(1)?[0], usize::from(rest.take(1)?[0]));
    let count = u16::from_le_bytes(rest.take(2)?.try_into().ok()?);
    let all = Puts { bytes: rest.0, left: count };
    let mut puts = all.clone();
    for _ in 0..count {
        puts.take_one()?;
    }
    let mut rest = Rest(puts.bytes);
    let tail = match kind {
        NOTHING => Tail::Nothing,
        PROBE => Tail::Probe,
        LINE => Tail::Line(line(&mut rest, words)?),
        FETCH_ADD | COMPARE_SWAP => {
            let (key, offset, operand, expected) = (rest.u64()?, rest.u64()?, rest.u64()?, rest.u64()?);
            let (region, number) = (rest.u32()?, rest.u32()?);
            let at = PutDestination { key, region, offset };
            match kind {
                FETCH_ADD => Tail::FetchAdd { at, operand, number },
                _ => Tail::CompareSwap { at, expected, new: operand, number },
            }
        }
        ANSWER => {
            let (value, number, _) = (rest.u64()?, rest.u32()?, rest.u32()?);
            Tail::Answer { number, value }
        }
        GOODBYE => Tail::Goodbye(rest.take(rest.0.len().min(TEXT_BYTES))?),
        _ => return None,
    };
    rest.0.is_empty().then_some(Incoming { consumed, puts: all, tail })
}

fn line(rest: &mut Rest<'_>, words: usize) -> Option<LineMessage> {
    let (key, offset, watch) = (rest.u64()?, rest.u64()?, rest.u64()?);
    let (region, immediate, turn, _) = (rest.u32()?, rest.u32()?, rest.u32()?, rest.u32()?);
    let mut body = [0; BODY_WORDS];
    for word in body.get_mut(..words)? {
        *word = rest.u64()?;
    }
    Some(LineMessage { line: PutDestination { key, region, offset }, watch, turn, immediate, words, body })
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    #[inline]
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, after) = self.0.split_at_checked(count)?;
        self.0 = after;
        Some(taken)
    }

    #[inline]
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    #[inline]
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(offset: u64) -> PutDestination {
        PutDestination { key: 1 << 63 | 5, region: 5, offset }
    }

    fn batch(puts: &[&[u8]]) -> PutBatch {
        let mut batch = PutBatch::default();
        for (at, bytes) in puts.iter().enumerate() {
            // SAFETY: a slice is readable.
            unsafe { batch.add(place(at as u64), bytes.as_ptr(), bytes.len()) };
        }
        batch
    }

    fn tails() -> Vec<Tail<'static>> {
        let mut body = [0; BODY_WORDS];
        body[..2].copy_from_slice(&[8, u64::MAX]);
        let line = LineMessage { line: place(64), watch: 4096, turn: 3, immediate: 9, words: 2, body };
        vec![
            Tail::Nothing,
            Tail::Line(line),
            Tail::FetchAdd { at: place(8), operand: 1, number: 7 },
            Tail::CompareSwap { at: place(8), expected: 4, new: 5, number: 7 },
            Tail::Answer { number: 7, value: 1 << 40 },
            Tail::Goodbye(b"so long"),
            Tail::Probe,
        ]
    }

    #[test]
    fn every_message_comes_back() {
        let puts: [&[u8]; 3] = [b"", b"four", &[9; 1000]];
        for tail in tails() {
            let mut slot = [0; SLOT_BYTES];
            let len = encode(&mut slot, 77, &batch(&puts), &tail);
            let read = decode(&slot[..len]).unwrap();
            assert_eq!((read.consumed, read.tail), (77, tail));
            let back: Vec<_> = read.puts.collect();
            assert_eq!(back, (0..).map(place).zip(puts).collect::<Vec<_>>());
            for cut in 0..len - usize::from(matches!(tail, Tail::Goodbye(_))) * b"so long".len() {
                assert!(decode(&slot[..cut]).is_err(), "{cut} bytes of {len}");
            }
        }
    }

    #[test]
    fn batch_takes_puts_that_fit_beside_a_line() {
        let mut batch = PutBatch::default();
        while batch.has_space(100) {
            // SAFETY: a slice is readable.
            unsafe { batch.add(place(0), [1; 100].as_ptr(), 100) };
        }
        let body = [1; BODY_WORDS];
        let line = LineMessage { line: place(0), watch: 0, turn: 0, immediate: 0, words: BODY_WORDS, body };
        let mut slot = [0; SLOT_BYTES];
        let len = encode(&mut slot, 0, &batch, &Tail::Line(line));
        assert!(len <= SLOT_BYTES && decode(&slot[..len]).is_ok());
        batch.clear();
        assert!(
            batch.is_empty() && batch.has_space(BATCH_BYTES - PUT_BYTES) && !batch.has_space(BATCH_BYTES)
        );
    }

    proptest! {
        #[test]
        fn no_bytes_are_trusted(bytes: Vec<u8>, at in 0usize..64, value: u8, which in 0usize..7) {
            let _ = decode(&bytes).map(|read| read.puts.count());
            let mut slot = [0; SLOT_BYTES];
            let len = encode(&mut slot, 1, &batch(&[b"abc"]), &tails()[which]);
            slot[at % len] = value;
            let _ = decode(&slot[..len]).map(|read| read.puts.count());
        }
    }
}
