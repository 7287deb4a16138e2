//! Implements FIFOs between processes (Molecule 3.3: XPU-FIFO, neighbour IPC): one reader, and for each writer a ring
//! of its own.
//!
//! A message is written straight into the reader's memory: within a processing unit by copying, between two by the
//! fabric. It consists of *parts*, one for each slot of the ring that it needs. The line of a slot carries up to 40
//! bytes itself. The reader acknowledges each quarter of the ring that it has read, by a line in the writer's memory,
//! so that neither end polls memory that the other is writing.
//!
//! ```text
//! 0      acknowledgements: a line for each quarter, then their watch    written by the reader
//! 4096   the ring: a line for each slot, then its watch                 written by the writer
//!        payloads: a slot for each line, from a page boundary on        written by the writer
//! ```
//!
//! Within a processing unit this is one region that both have mapped. Between two units each end has one of its own, of
//! which it uses the parts that the other writes. The module [`end`] connects them.
//!
//! Invariants:
//! - A connection has one writer and one reader, and what either does to its memory harms only the two of them: a
//!   process that writes to a FIFO cannot read what others write to it.
//! - A message is read wholly or not at all, and messages of one writer are read in their order.
//! - Lengths in a writer's lines are checked against the ring before anything is read.

mod end;
mod reader;
mod writer;

pub(crate) use end::{FifoEnd, Spares};

pub use end::BACK;
pub use reader::{Reader, Unread};
pub use writer::Writer;

use sublet_fabric::line::{LINE_BYTES, Turn};
use sublet_fabric::region::{PAGE_BYTES, page_align};
use sublet_fabric::ring::Position;
use sublet_fabric::window::LineAddress;
use sublet_fabric::{SharedBytes, SharedBytesMut};
use sublet_proto::{Code, Error};

/// The ring's region at either end.
const REGION: u32 = 0;
/// Number of parts into which a ring is divided for acknowledgements.
const QUARTERS: u32 = 4;
const RING_AT: u64 = PAGE_BYTES;
/// Number of words of data in a line, beside the lengths of the part and the message.
const INLINE_WORDS: usize = 5;
const INLINE_BYTES: usize = INLINE_WORDS * 8;
/// Number of bytes that are copied at a time. Longer copies are made by one instruction, which some processors execute
/// line by line where another core has written last. This takes many times as long.
const PIECE_BYTES: usize = 1024;
/// Number of polls before an end sleeps: about the time that waking takes.
const LOOKS: u32 = 20_000;

/// Largest number of lines of a ring.
pub const MAX_LINES: u32 = 1024;
/// Largest slot, in bytes.
pub const MAX_SLOT_BYTES: u32 = 16 << 20;
/// Largest ring, in bytes.
pub const MAX_RING_BYTES: u64 = 64 << 20;

/// Size of a FIFO's rings, of which each writer has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FifoShape {
    /// Largest number of waiting messages, if each fits a slot: a power of two, 4 to 1024.
    pub lines: u32,
    /// Bytes of a slot: whole pages. The longest message has the size of three quarters of all slots.
    pub slot_bytes: u32,
}

impl Default for FifoShape {
    fn default() -> FifoShape {
        #[expect(clippy::cast_possible_truncation, reason = "a small constant")]
        let slot_bytes = PAGE_BYTES as u32;
        FifoShape { lines: 16, slot_bytes }
    }
}

impl FifoShape {
    /// Whether it can be.
    ///
    /// # Errors
    /// `invalid_argument`, with the value that is not possible.
    pub fn check(self) -> Result<FifoShape, Error> {
        let FifoShape { lines, slot_bytes } = self;
        let wrong = |message: String| Err(Error::new(Code::InvalidArgument, message));
        if !lines.is_power_of_two() || !(QUARTERS..=MAX_LINES).contains(&lines) {
            return wrong(format!(
                "a FIFO's ring has a power of two of lines, {QUARTERS} to {MAX_LINES}, not {lines}"
            ));
        }
        if slot_bytes == 0 || !u64::from(slot_bytes).is_multiple_of(PAGE_BYTES) || slot_bytes > MAX_SLOT_BYTES
        {
            return wrong(format!(
                "a FIFO's slots are whole pages of {PAGE_BYTES} bytes, up to {MAX_SLOT_BYTES} bytes, not {slot_bytes}"
            ));
        }
        if self.ring_bytes() > MAX_RING_BYTES {
            return wrong(format!(
                "{lines} slots of {slot_bytes} bytes are more than {MAX_RING_BYTES} bytes"
            ));
        }
        Ok(self)
    }

    /// Length of the longest message, in bytes. The quarter in which it ends is free when everything written before it
    /// was taken.
    pub fn max_message_bytes(self) -> u64 {
        u64::from(self.lines - self.lines / QUARTERS) * u64::from(self.slot_bytes)
    }

    fn ring_bytes(self) -> u64 {
        u64::from(self.lines) * u64::from(self.slot_bytes)
    }

    /// The size of a connection's region.
    pub fn region_bytes(self) -> u64 {
        self.payloads_at() + self.ring_bytes()
    }

    /// Offset of the watch on which a writer sleeps while the ring is full.
    pub const WRITER_WATCH: u64 = QUARTERS as u64 * LINE_BYTES;

    /// The first bytes of the region, which are all that a writer needs that reaches the reader by the fabric.
    pub const WRITER_BYTES: u64 = PAGE_BYTES;

    fn watch_at(self) -> u64 {
        RING_AT + u64::from(self.lines) * LINE_BYTES
    }

    fn payloads_at(self) -> u64 {
        let end = self.watch_at() + LINE_BYTES;
        page_align(end).unwrap_or(end)
    }

    #[inline]
    fn line(self, line: u32) -> LineAddress {
        LineAddress { region: REGION, line: RING_AT + u64::from(line) * LINE_BYTES, watch: self.watch_at() }
    }

    #[inline]
    fn payload(self, line: u32) -> u64 {
        debug_assert!(line < self.lines, "line {line} of a ring of {}", self.lines);
        self.payloads_at() + u64::from(line) * u64::from(self.slot_bytes)
    }

    /// The acknowledgement of the quarter in which a position is, and its turn once that was taken.
    #[inline]
    fn acknowledgement(self, position: Position) -> (LineAddress, Turn) {
        let quarter = position.line / (self.lines / QUARTERS);
        debug_assert!(quarter < QUARTERS, "{position:?} is beyond a ring of {} lines", self.lines);
        let line = u64::from(quarter) * LINE_BYTES;
        (LineAddress { region: REGION, line, watch: FifoShape::WRITER_WATCH }, position.turn)
    }

    /// Returns whether a position is the last of its quarter.
    #[inline]
    fn ends_quarter(self, position: Position) -> bool {
        (position.line + 1).is_multiple_of(self.lines / QUARTERS)
    }

    /// The number of parts of a message of `len_bytes` bytes.
    #[inline]
    pub(crate) fn parts(self, len_bytes: u64) -> u64 {
        len_bytes.div_ceil(u64::from(self.slot_bytes)).max(1)
    }
}

/// Content of a line: a part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LinePart {
    kind: MessagePartKind,
    /// Length of the whole message.
    message_bytes: u64,
    /// The part itself, if it is short.
    inline: [u64; INLINE_WORDS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessagePartKind {
    /// The first part of a message.
    First,
    /// A further part of a message.
    Next,
    /// The writer's end: nothing follows.
    End,
}

impl LinePart {
    #[inline]
    fn encode(&self) -> (u32, [u64; 1 + INLINE_WORDS]) {
        let mut body = [0; 1 + INLINE_WORDS];
        body[0] = self.message_bytes;
        body[1..].copy_from_slice(&self.inline);
        (self.kind as u32, body)
    }

    #[inline]
    fn decode((immediate, body): (u32, [u64; 1 + INLINE_WORDS])) -> Option<LinePart> {
        let kind = match immediate {
            0 => MessagePartKind::First,
            1 => MessagePartKind::Next,
            2 => MessagePartKind::End,
            _ => return None,
        };
        let mut inline = [0; INLINE_WORDS];
        inline.copy_from_slice(&body[1..]);
        Some(LinePart { kind, message_bytes: body[0], inline })
    }
}

/// Packs up to 40 bytes into words.
#[inline]
fn to_words(bytes: SharedBytes<'_>) -> [u64; INLINE_WORDS] {
    debug_assert!(bytes.len() <= INLINE_BYTES, "{} bytes do not fit into a line", bytes.len());
    let mut copy = [0; INLINE_BYTES];
    bytes.copy_to(&mut copy);
    let mut words = [0; INLINE_WORDS];
    for (word, eight) in words.iter_mut().zip(copy.as_chunks().0) {
        *word = u64::from_le_bytes(*eight);
    }
    words
}

/// Copies the bytes back from a line's words.
#[inline]
fn from_words(words: &[u64; INLINE_WORDS], mut into: SharedBytesMut<'_>) {
    debug_assert!(into.len() <= INLINE_BYTES, "a line has not {} bytes", into.len());
    let mut bytes = [0; INLINE_BYTES];
    for (word, eight) in words.iter().zip(bytes.as_chunks_mut().0) {
        *eight = word.to_le_bytes();
    }
    into.copy_from(&bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_short_part_comes_back(bytes in proptest::collection::vec(any::<u8>(), 0..=INLINE_BYTES), message_bytes: u64) {
            let part = LinePart { kind: MessagePartKind::First, message_bytes, inline: to_words(SharedBytes::from(&bytes)) };
            prop_assert_eq!(LinePart::decode(part.encode()), Some(part));
            let mut back = vec![0; bytes.len()];
            from_words(&part.inline, SharedBytesMut::from(&mut back));
            prop_assert_eq!(back, bytes);
        }

        #[test]
        fn all_parts_of_a_layout_are_apart(lines in 2u32..=10, pages in 1u32..=16) {
            let shape = FifoShape { lines: 1 << lines, slot_bytes: pages * PAGE_BYTES as u32 };
            prop_assume!(shape.check().is_ok());
            prop_assert!(shape.line(0).line >= FifoShape::WRITER_BYTES);
            prop_assert!(shape.line(shape.lines - 1).line + LINE_BYTES <= shape.line(0).watch);
            prop_assert!(shape.line(0).watch + LINE_BYTES <= shape.payload(0));
            prop_assert_eq!(shape.payload(shape.lines - 1) + u64::from(shape.slot_bytes), shape.region_bytes());
            for count in 0..u64::from(shape.lines) {
                let (at, turn) = shape.acknowledgement(Position::new(count, shape.lines));
                prop_assert!(at.line + LINE_BYTES <= at.watch && at.watch + LINE_BYTES <= FifoShape::WRITER_BYTES);
                prop_assert_eq!(turn, Turn::of_use(0));
            }
        }
    }

    #[test]
    fn shapes_that_cannot_be_are_named() {
        let shape = |lines, slot_bytes| FifoShape { lines, slot_bytes }.check().unwrap_err().message;
        assert!(shape(3, 4096).contains("not 3") && shape(2, 4096).contains("not 2"));
        assert!(shape(2048, 4096).contains("2048"));
        assert!(shape(16, 0).contains("not 0") && shape(16, 100).contains("not 100"));
        assert!(shape(1024, 1 << 20).contains("1024 slots"));
        assert_eq!(FifoShape::default().check().unwrap().max_message_bytes(), 48 << 10);
    }

    #[test]
    fn a_quarter_ends_where_the_next_begins() {
        let shape = FifoShape { lines: 8, ..FifoShape::default() };
        let ends: Vec<u64> = (0..9).filter(|&count| shape.ends_quarter(Position::new(count, 8))).collect();
        assert_eq!(ends, [1, 3, 5, 7]);
        assert_eq!((shape.parts(0), shape.parts(4096), shape.parts(4097)), (1, 1, 2));
    }
}
