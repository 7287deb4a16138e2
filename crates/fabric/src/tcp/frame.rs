//! Encodes the frames of a stream: a fixed header, little endian, with its payload behind it.
//!
//! Fields, by their bytes in the header:
//! - 0: kind
//! - 1: number of words of a line's body
//! - 2..4: 0
//! - 4..8: a line's immediate; the number of a request; the length of a reason
//! - 8..16: the region's key
//! - 16..24: offset of the bytes, the word, or the line
//! - 24..32: length; a line's watch; the value added or expected; the previous value
//! - 32..40: a line's turn; the new value
//! - 40..64: 0
//!
//! Fields that a kind does not use are 0, so that each frame has exactly one encoding. A decoder accepts any 64 bytes
//! and returns a frame or an error; it does not check that the addresses of the frame exist.

use crate::FabricError;
use crate::line::{BODY_WORDS, Turn};

/// Bytes of a header: a cache line, so that a payload that is aligned to cache lines stays aligned to them in the
/// kernel. Some processors copy many times more slowly if the destination's offset in its page is a few bytes larger
/// than the source's.
pub const HEADER_BYTES: usize = 64;
/// Most bytes of the reason of a [`Frame::Cut`]; a longer one is cut.
pub const MAX_REASON_BYTES: usize = 512;

/// A frame without the bytes that follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Bytes for a region, which follow the header.
    Put {
        /// The region's key.
        key: u64,
        /// Offset of the destination in the region.
        offset: u64,
        /// Number of bytes.
        len_bytes: u64,
    },
    /// A line to publish; its body follows.
    Line {
        /// The region's key.
        key: u64,
        /// Offset of the line.
        line: u64,
        /// Offset of the line's watch.
        watch: u64,
        /// Turn of the line.
        turn: Turn,
        /// Immediate value of the line.
        immediate: u32,
        /// Number of 64-bit words of the line's body.
        words: u8,
    },
    /// A request for bytes of a region.
    Get {
        /// The number that the reply has.
        request: u32,
        /// The region's key.
        key: u64,
        /// Offset of the bytes.
        offset: u64,
        /// Number of bytes.
        len_bytes: u64,
    },
    /// The bytes that a [`Frame::Get`] requested follow.
    GetReply {
        /// The request.
        request: u32,
        /// Number of bytes.
        len_bytes: u64,
    },
    /// A request to add to a word.
    FetchAdd {
        /// The number that the reply has.
        request: u32,
        /// The region's key.
        key: u64,
        /// Offset of the word.
        offset: u64,
        /// The addend.
        value: u64,
    },
    /// A request to replace a word if it has the expected value.
    CompareSwap {
        /// The number that the reply has.
        request: u32,
        /// The region's key.
        key: u64,
        /// Offset of the word.
        offset: u64,
        /// The value that the word must have.
        expected: u64,
        /// The value that replaces it.
        new: u64,
    },
    /// The previous value of a word that was added to or replaced.
    AtomicReply {
        /// The request.
        request: u32,
        /// The previous value.
        before: u64,
    },
    /// The refusal of a request, since its region's key has expired.
    Refused {
        /// The request.
        request: u32,
    },
    /// The connection ends here. The reason follows, as text.
    Cut {
        /// Length of the reason in bytes.
        len_bytes: u32,
    },
}

const PUT: u8 = 1;
const LINE: u8 = 2;
const GET: u8 = 3;
const GET_REPLY: u8 = 4;
const FETCH_ADD: u8 = 5;
const COMPARE_SWAP: u8 = 6;
const ATOMIC_REPLY: u8 = 7;
const CUT: u8 = 8;
const REFUSED: u8 = 9;

/// The fields of a header, in the order of their offsets.
#[derive(Default, PartialEq, Eq)]
struct HeaderFields {
    kind: u8,
    words: u8,
    number: u32,
    key: u64,
    offset: u64,
    third: u64,
    fourth: u64,
}

impl Frame {
    /// Encodes the header of the frame.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        self.fields().encode()
    }

    /// Decodes a header.
    #[inline]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Frame, FabricError> {
        let fields = HeaderFields::decode(bytes);
        let frame = fields.frame().ok_or_else(|| malformed(bytes))?;
        // Each frame has one encoding only: unused fields are 0.
        if frame.encode() == *bytes { Ok(frame) } else { Err(malformed(bytes)) }
    }

    #[inline]
    fn fields(&self) -> HeaderFields {
        let none = HeaderFields::default();
        match *self {
            Frame::Put { key, offset, len_bytes } => {
                HeaderFields { kind: PUT, key, offset, third: len_bytes, ..none }
            }
            Frame::Line { key, line, watch, turn, immediate, words } => HeaderFields {
                kind: LINE,
                words,
                number: immediate,
                key,
                offset: line,
                third: watch,
                fourth: u64::from(turn.to_bits()),
            },
            Frame::Get { request, key, offset, len_bytes } => {
                HeaderFields { kind: GET, number: request, key, offset, third: len_bytes, ..none }
            }
            Frame::GetReply { request, len_bytes } => {
                HeaderFields { kind: GET_REPLY, number: request, third: len_bytes, ..none }
            }
            Frame::FetchAdd { request, key, offset, value } => {
                HeaderFields { kind: FETCH_ADD, number: request, key, offset, third: value, ..none }
            }
            Frame::CompareSwap { request, key, offset, expected, new } => HeaderFields {
                kind: COMPARE_SWAP,
                words: 0,
                number: request,
                key,
                offset,
                third: expected,
                fourth: new,
            },
            Frame::AtomicReply { request, before } => {
                HeaderFields { kind: ATOMIC_REPLY, number: request, third: before, ..none }
            }
            Frame::Refused { request } => HeaderFields { kind: REFUSED, number: request, ..none },
            Frame::Cut { len_bytes } => HeaderFields { kind: CUT, number: len_bytes, ..none },
        }
    }
}

impl HeaderFields {
    #[inline]
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind;
        bytes[1] = self.words;
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.third.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.fourth.to_le_bytes());
        bytes
    }

    #[inline]
    fn decode(bytes: &[u8; HEADER_BYTES]) -> HeaderFields {
        HeaderFields {
            kind: bytes[0],
            words: bytes[1],
            number: u32::from_le_bytes(array(bytes, 4)),
            key: u64::from_le_bytes(array(bytes, 8)),
            offset: u64::from_le_bytes(array(bytes, 16)),
            third: u64::from_le_bytes(array(bytes, 24)),
            fourth: u64::from_le_bytes(array(bytes, 32)),
        }
    }

    #[inline]
    fn frame(&self) -> Option<Frame> {
        let &HeaderFields { kind, words, number: request, key, offset, third, fourth } = self;
        Some(match kind {
            PUT => Frame::Put { key, offset, len_bytes: third },
            LINE if usize::from(words) <= BODY_WORDS => {
                let turn = Turn::from_bits(u32::try_from(fourth).ok()?);
                Frame::Line { key, line: offset, watch: third, turn, immediate: request, words }
            }
            GET => Frame::Get { request, key, offset, len_bytes: third },
            GET_REPLY => Frame::GetReply { request, len_bytes: third },
            FETCH_ADD => Frame::FetchAdd { request, key, offset, value: third },
            COMPARE_SWAP => Frame::CompareSwap { request, key, offset, expected: third, new: fourth },
            ATOMIC_REPLY => Frame::AtomicReply { request, before: third },
            REFUSED => Frame::Refused { request },
            CUT if request as usize <= MAX_REASON_BYTES => Frame::Cut { len_bytes: request },
            _ => return None,
        })
    }
}

/// `LEN` bytes from `at` on.
#[inline]
fn array<const LEN: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; LEN] {
    std::array::from_fn(|index| bytes[at + index])
}

#[cold]
fn malformed(bytes: &[u8; HEADER_BYTES]) -> FabricError {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    FabricError::Protocol(format!("{hex} is not the header of a frame"))
}

/// Cuts a reason between characters to at most [`MAX_REASON_BYTES`].
pub fn shorten(reason: &str) -> &str {
    let mut end = reason.len().min(MAX_REASON_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let numbers = (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
        (0u8..9, numbers, 0..=BODY_WORDS as u8).prop_map(
            |(kind, (request, key, offset, third, fourth), words)| {
                let turn = Turn::from_bits(fourth as u32);
                match kind {
                    0 => Frame::Put { key, offset, len_bytes: third },
                    1 => Frame::Line { key, line: offset, watch: third, turn, immediate: request, words },
                    2 => Frame::Get { request, key, offset, len_bytes: third },
                    3 => Frame::GetReply { request, len_bytes: third },
                    4 => Frame::FetchAdd { request, key, offset, value: third },
                    5 => Frame::CompareSwap { request, key, offset, expected: third, new: fourth },
                    6 => Frame::AtomicReply { request, before: third },
                    7 => Frame::Refused { request },
                    _ => Frame::Cut { len_bytes: request % (MAX_REASON_BYTES as u32 + 1) },
                }
            },
        )
    }

    proptest! {
        #[test]
        fn a_frame_survives_the_journey(frame in frames()) {
            prop_assert_eq!(Frame::decode(&frame.encode()).unwrap(), frame);
        }

        #[test]
        fn any_bytes_are_an_error_or_one_frames_only_encoding(mut bytes: [u8; HEADER_BYTES], kind in 0u8..11) {
            bytes[0] = kind;
            for zeroed in [false, true] {
                if zeroed {
                    bytes[1..4].fill(0);
                    bytes[36..].fill(0);
                }
                if let Ok(frame) = Frame::decode(&bytes) {
                    prop_assert_eq!(frame.encode(), bytes);
                }
            }
        }

        #[test]
        fn a_reason_is_cut_between_characters(reason: String) {
            prop_assert!(shorten(&reason.repeat(40)).len() <= MAX_REASON_BYTES);
        }
    }

    #[test]
    fn the_form_on_the_wire_stays_as_it_is() {
        let line =
            Frame::Line { key: 1, line: 2, watch: 3, turn: Turn::from_bits(4), immediate: 5, words: 6 };
        let mut expected = [0; HEADER_BYTES];
        for (at, value) in [(0, 2), (1, 6), (4, 5), (8, 1), (16, 2), (24, 3), (32, 4)] {
            expected[at] = value;
        }
        assert_eq!(line.encode(), expected);
    }
}
