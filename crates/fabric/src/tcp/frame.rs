//! Encodes the frames of a stream: a fixed header, little endian, with its payload behind it.
//!
//! | bytes | |
//! |---|---|
//! | 0 | kind |
//! | 1 | words of a line's body |
//! | 2..4 | 0 |
//! | 4..8 | a line's immediate; the number of a request; the length of a reason |
//! | 8..16 | the region's key |
//! | 16..24 | offset: of the bytes, the word, or the line |
//! | 24..32 | length; a line's watch; the value added or expected; the value that was |
//! | 32..40 | a line's turn; the new value |
//! | 40..64 | 0 |
//!
//! What a kind does not use is 0, so that a frame has one form only. A decoder is given any 64 bytes and answers with a
//! frame or an error; whether its places exist is not the frame's affair.

use crate::FabricError;
use crate::line::{BODY_WORDS, Turn};

/// Bytes of a header: a cache line, so that a payload that is aligned to lines lies aligned to them in the kernel, too.
/// Some processors copy many times as slowly to a place that is a few bytes further into its page than the source.
pub const HEADER_BYTES: usize = 64;
/// Bytes of the longest reason of a [`Frame::Cut`]; the rest of a longer one is left out.
pub const MAX_REASON_BYTES: usize = 512;

/// A frame without the bytes that follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Bytes, which follow, for a region.
    Put {
        /// The region's key.
        key: u64,
        /// Where they go.
        offset: u64,
        /// How many they are.
        len_bytes: u64,
    },
    /// A line to be published; its body follows.
    Line {
        /// The region's key.
        key: u64,
        /// Where the line is.
        line: u64,
        /// Where its watch is.
        watch: u64,
        /// Its turn.
        turn: Turn,
        /// Its immediate value.
        immediate: u32,
        /// 64-bit words of its body.
        words: u8,
    },
    /// Bytes of a region are asked for.
    Get {
        /// The number that the reply has.
        request: u32,
        /// The region's key.
        key: u64,
        /// Where they are.
        offset: u64,
        /// How many they are.
        len_bytes: u64,
    },
    /// The bytes that a [`Frame::Get`] asked for follow.
    GetReply {
        /// The request.
        request: u32,
        /// How many they are.
        len_bytes: u64,
    },
    /// A word is to be added to.
    FetchAdd {
        /// The number that the reply has.
        request: u32,
        /// The region's key.
        key: u64,
        /// Where the word is.
        offset: u64,
        /// What is added.
        value: u64,
    },
    /// A word is to be replaced if it is what is expected.
    CompareSwap {
        /// The number that the reply has.
        request: u32,
        /// The region's key.
        key: u64,
        /// Where the word is.
        offset: u64,
        /// What it must be.
        expected: u64,
        /// What it becomes then.
        new: u64,
    },
    /// What a word was before it was added to or replaced.
    AtomicReply {
        /// The request.
        request: u32,
        /// What it was.
        before: u64,
    },
    /// What was asked for is of a region that is not reached any more.
    Refused {
        /// The request.
        request: u32,
    },
    /// The connection ends here. The reason follows, as text.
    Cut {
        /// Its length.
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

/// The fields of a header, by place.
#[derive(Default, PartialEq, Eq)]
struct Fields {
    kind: u8,
    words: u8,
    number: u32,
    key: u64,
    offset: u64,
    third: u64,
    fourth: u64,
}

impl Frame {
    /// As bytes.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        self.fields().encode()
    }

    /// From bytes.
    #[inline]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Frame, FabricError> {
        let fields = Fields::decode(bytes);
        let frame = fields.frame().ok_or_else(|| malformed(bytes))?;
        // The form that it has is the only one: nothing stands where nothing belongs.
        if frame.encode() == *bytes { Ok(frame) } else { Err(malformed(bytes)) }
    }

    #[inline]
    fn fields(&self) -> Fields {
        let none = Fields::default();
        match *self {
            Frame::Put { key, offset, len_bytes } => {
                Fields { kind: PUT, key, offset, third: len_bytes, ..none }
            }
            Frame::Line { key, line, watch, turn, immediate, words } => Fields {
                kind: LINE,
                words,
                number: immediate,
                key,
                offset: line,
                third: watch,
                fourth: u64::from(turn.to_bits()),
            },
            Frame::Get { request, key, offset, len_bytes } => {
                Fields { kind: GET, number: request, key, offset, third: len_bytes, ..none }
            }
            Frame::GetReply { request, len_bytes } => {
                Fields { kind: GET_REPLY, number: request, third: len_bytes, ..none }
            }
            Frame::FetchAdd { request, key, offset, value } => {
                Fields { kind: FETCH_ADD, number: request, key, offset, third: value, ..none }
            }
            Frame::CompareSwap { request, key, offset, expected, new } => Fields {
                kind: COMPARE_SWAP,
                words: 0,
                number: request,
                key,
                offset,
                third: expected,
                fourth: new,
            },
            Frame::AtomicReply { request, before } => {
                Fields { kind: ATOMIC_REPLY, number: request, third: before, ..none }
            }
            Frame::Refused { request } => Fields { kind: REFUSED, number: request, ..none },
            Frame::Cut { len_bytes } => Fields { kind: CUT, number: len_bytes, ..none },
        }
    }
}

impl Fields {
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
    fn decode(bytes: &[u8; HEADER_BYTES]) -> Fields {
        Fields {
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
        let &Fields { kind, words, number: request, key, offset, third, fourth } = self;
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

/// A reason as it travels: of bounded length, cut between characters.
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
        fn any_bytes_are_one_frame_in_its_only_form_or_an_error(mut bytes: [u8; HEADER_BYTES], kind in 0u8..11) {
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
