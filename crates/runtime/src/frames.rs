//! Encodes a message of several pieces in one input or output: a value's description and the large pieces of memory
//! that it has, which need not be copied into it (as in pickle's protocol 5, PEP 574).
//!
//! ```text
//!   0            4          8             16                 16 + 24 n
//!   ┌────────────┬──────────┬─────────────┬───┬───────────────────┬───┬─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─┐
//!   │ operation  │ n pieces │ token       │ n × (where, offset, length) │ bytes of inline pieces │
//!   └────────────┴──────────┴─────────────┴───┴───────────────────┴───┴─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─┘
//! ```
//!
//! A piece whose `where` is 0, but for a bit that marks it as read-only, is inline, at an offset from the message's
//! beginning that is a multiple of [`ALIGNMENT`]. Any other piece is at an address that both ends know: in a request,
//! in the client's region of that number; in a reply, in the piece of the request that has this number, counted from 1.
//!
//! The memory that a reader reads may still be changed by its writer. Everything is therefore copied before it is
//! checked, and pieces are returned as addresses, never as references.

pub mod lent;

use std::ptr::NonNull;

pub use sublet_fabric::{SharedBytes, SharedBytesMut};
use sublet_proto::{Code, Error, to_usize};

/// Alignment of inline pieces, in bytes: as the widest vectors need it.
pub const ALIGNMENT: u64 = 64;
/// Largest number of pieces of a message. A writer with more pieces joins some.
pub const MAX_PIECES: usize = 1 << 20;

/// An operation that both ends know: a reply that was larger than its output is asked for again, by its token.
pub const FETCH: u32 = u32::MAX;
/// Bit beside any other operation: both ends have the same memory, so that a reply may name pieces of its request.
pub const SHARES_MEMORY: u32 = 1 << 16;
/// Bit beside the operation of a reply: objects of the worker still refer to memory of the request or of the output, so
/// the client leaves both unchanged until a reply says that they are free. The same holds, without this bit, for a call
/// that failed or whose reply was larger than its output. The token of a reply distinguishes the worker's process from
/// earlier ones.
pub const IN_USE: u32 = 1 << 17;
/// Bit beside the operation of a reply: its last piece holds tokens of requests, of 8 bytes each, whose memory is free.
pub const FREES: u32 = 1 << 18;

const HEAD_BYTES: u64 = 16;
const ENTRY_BYTES: u64 = 24;
/// Read-only bit, beside a piece's number.
const READ_ONLY: u64 = 1 << 32;

/// Head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Operation that is requested or answered.
    pub operation: u32,
    /// Number of the call that the message belongs to.
    pub token: u64,
}

/// A piece to send.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Location of the piece's bytes.
    pub source: Source,
    /// Number of bytes.
    pub len_bytes: u64,
    /// Whether its receiver is not to change them.
    pub read_only: bool,
}

/// Location of the bytes of a piece to send.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// In this process: the bytes are copied into the message.
    Here(NonNull<u8>),
    /// In the message already, at this offset from its beginning in bytes: behind all pieces that are copied into it.
    Placed(u64),
    /// At an address that both ends know.
    Shared(SharedAddress),
}

/// An address that both ends know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedAddress {
    /// A region of the client's, or a piece of the request; never 0.
    pub number: u32,
    /// Offset from the beginning of the region or piece, in bytes.
    pub offset: u64,
}

/// A received piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedPiece {
    /// Location of the piece's bytes.
    pub at: PieceLocation,
    /// Number of bytes.
    pub len_bytes: u64,
    /// Whether its receiver is not to change them.
    pub read_only: bool,
}

/// Location of the bytes of a received piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceLocation {
    /// In the message, at this offset from its beginning in bytes. All bytes of the piece are in the message.
    Message(u64),
    /// Elsewhere. The reader must check that the address exists.
    Shared(SharedAddress),
}

impl Piece {
    fn inline_bytes(&self) -> Option<u64> {
        matches!(self.source, Source::Here(_)).then_some(self.len_bytes)
    }
}

/// Length of a message of these pieces, in bytes.
pub fn len_bytes(pieces: &[Piece]) -> u64 {
    let placed = pieces.iter().map(|piece| match piece.source {
        Source::Placed(offset) => offset.saturating_add(piece.len_bytes),
        _ => 0,
    });
    placed.max().unwrap_or_default().max(copied_bytes(pieces))
}

/// Length of the message's beginning that [`write`] writes, in bytes.
pub fn copied_bytes(pieces: &[Piece]) -> u64 {
    ends(pieces.iter().map(Piece::inline_bytes)).last().unwrap_or(HEAD_BYTES)
}

/// The offset of each piece in its message, given the number of its inline bytes. Pieces that are elsewhere have none.
fn offsets(inline_bytes: impl ExactSizeIterator<Item = Option<u64>> + Clone) -> Vec<u64> {
    let starts = inline_bytes.clone().zip(ends(inline_bytes));
    starts.map(|(len, end)| end.saturating_sub(len.unwrap_or_default())).collect()
}

/// The end of the message after each piece.
fn ends(inline_bytes: impl ExactSizeIterator<Item = Option<u64>>) -> impl Iterator<Item = u64> {
    let front = HEAD_BYTES + ENTRY_BYTES * inline_bytes.len() as u64;
    inline_bytes.scan(front, |end, len| {
        if let Some(len) = len {
            *end = end.next_multiple_of(ALIGNMENT).saturating_add(len);
        }
        Some(*end)
    })
}

/// Writes a message. Returns the offset of each piece that was copied.
///
/// # Safety
/// `to` is writable for [`len_bytes`] bytes, and each piece that is copied is readable. If other threads or processes
/// write either meanwhile, the message has any bytes.
pub unsafe fn write(head: Head, pieces: &[Piece], to: NonNull<u8>) -> Vec<u64> {
    let put = |at: u64, bytes: &[u8]| {
        // SAFETY: every place written is below `len_bytes`, as the caller vouches for.
        unsafe { SharedBytesMut::new(to.add(to_usize(at)), bytes.len()) }.copy_from(bytes);
    };
    debug_assert!(pieces.len() <= MAX_PIECES, "a message of {} pieces", pieces.len());
    #[expect(clippy::cast_possible_truncation, reason = "asserted above: `MAX_PIECES` at most")]
    let count = pieces.len() as u32;
    put(0, &head.operation.to_le_bytes());
    put(4, &count.to_le_bytes());
    put(8, &head.token.to_le_bytes());
    let offsets = offsets(pieces.iter().map(Piece::inline_bytes));
    debug_assert!(offsets.is_sorted(), "pieces lie over each other: {offsets:?}");
    for (entry, (piece, &inline_offset)) in (0..).zip(pieces.iter().zip(&offsets)) {
        let Piece { source, len_bytes, read_only } = *piece;
        let (number, offset) = match source {
            Source::Shared(SharedAddress { number, offset }) => (number, offset),
            Source::Placed(offset) => (0, offset),
            Source::Here(from) => {
                // SAFETY: as the caller vouches; the function `len_bytes` counts these bytes.
                unsafe {
                    let from = SharedBytes::new(from, to_usize(len_bytes));
                    SharedBytesMut::new(to.add(to_usize(inline_offset)), from.len()).copy_from(from);
                }
                (0, inline_offset)
            }
        };
        let words = [u64::from(number) | if read_only { READ_ONLY } else { 0 }, offset, len_bytes];
        for (word, value) in (0..).zip(words) {
            put(HEAD_BYTES + ENTRY_BYTES * entry + 8 * word, &value.to_le_bytes());
        }
    }
    offsets
}

/// Reads a message of `len_bytes` bytes. `copy` fills its buffer with the message's bytes from an offset on.
///
/// # Errors
/// [`Code::Protocol`] if the bytes are not a message.
pub fn read(len_bytes: u64, copy: impl Fn(u64, &mut [u8])) -> Result<(Head, Vec<ReceivedPiece>), Error> {
    let wrong = |what: String| Error::new(Code::Protocol, format!("a message of {len_bytes} bytes {what}"));
    if len_bytes < HEAD_BYTES {
        return Err(wrong("has no head".to_owned()));
    }
    let mut head = [0; to_usize(HEAD_BYTES)];
    copy(0, &mut head);
    let [operation, count] =
        [0, 4].map(|at| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
    let token = word(&head[8..]);
    let body = HEAD_BYTES + ENTRY_BYTES * u64::from(count);
    if count as usize > MAX_PIECES || body > len_bytes {
        return Err(wrong(format!("says that it has {count} pieces")));
    }
    let mut entries = vec![0; to_usize(body - HEAD_BYTES)];
    copy(HEAD_BYTES, &mut entries);
    let place = |entry: &[u8]| {
        let [number, offset, len] = [0, 8, 16].map(|at| word(&entry[at..]));
        let (read_only, number) = (number & READ_ONLY != 0, number & !READ_ONLY);
        let at = match u32::try_from(number) {
            Ok(0) if offset.checked_add(len).is_some_and(|end| end <= len_bytes) => {
                PieceLocation::Message(offset)
            }
            Ok(number @ 1..) => PieceLocation::Shared(SharedAddress { number, offset }),
            _ => return Err(wrong(format!("has a piece of {len} bytes at {offset} of {number}"))),
        };
        Ok(ReceivedPiece { at, len_bytes: len, read_only })
    };
    let places = entries.chunks_exact(to_usize(ENTRY_BYTES)).map(place).collect::<Result<_, _>>()?;
    Ok((Head { operation, token }, places))
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn copier(bytes: &[u8]) -> impl Fn(u64, &mut [u8]) {
        |at, into| into.copy_from_slice(&bytes[at as usize..at as usize + into.len()])
    }

    fn written(head: Head, pieces: &[Piece]) -> Vec<u8> {
        let mut message = vec![0; len_bytes(pieces) as usize];
        // SAFETY: the vector has the length that `write` needs, and no other reference to it exists.
        unsafe { write(head, pieces, NonNull::from(&mut message[..]).cast()) };
        message
    }

    #[test]
    fn pieces_come_out_as_they_went_in() {
        let (one, two) = (b"one".as_slice(), vec![7u8; 1000]);
        let inline = |bytes: &[u8]| Piece {
            source: Source::Here(NonNull::from(bytes).cast()),
            len_bytes: bytes.len() as u64,
            read_only: false,
        };
        let there = SharedAddress { number: 3, offset: 4096 };
        let shared = Piece { source: Source::Shared(there), len_bytes: 1 << 31, read_only: true };
        let head = Head { operation: 9, token: u64::MAX };
        let message = written(head, &[inline(one), shared, inline(&[]), inline(&two)]);
        let (read_head, places) = read(message.len() as u64, copier(&message)).unwrap();
        assert_eq!(read_head, head);
        let bytes = |place: &ReceivedPiece| match *place {
            ReceivedPiece { at: PieceLocation::Message(offset), len_bytes, read_only: false } => {
                assert_eq!(offset % ALIGNMENT, 0);
                message[offset as usize..][..len_bytes as usize].to_vec()
            }
            _ => panic!("{place:?}"),
        };
        assert_eq!(
            places[1],
            ReceivedPiece { at: PieceLocation::Shared(there), len_bytes: 1 << 31, read_only: true }
        );
        assert_eq!((bytes(&places[0]), bytes(&places[2]), bytes(&places[3])), (one.to_vec(), vec![], two));
        assert_eq!(places.len(), 4);
    }

    #[test]
    fn what_is_in_its_place_already_stays_there() {
        let placed = Piece { source: Source::Placed(512), len_bytes: 8, read_only: false };
        let copied =
            Piece { source: Source::Here(NonNull::from(b"ab").cast()), len_bytes: 2, read_only: false };
        assert_eq!((len_bytes(&[copied, placed]), copied_bytes(&[copied, placed])), (520, 66));
        let mut message = vec![7; 520];
        // SAFETY: the vector has the length that `write` needs, and no other reference to it exists.
        unsafe {
            write(Head { operation: 1, token: 2 }, &[copied, placed], NonNull::from(&mut message[..]).cast())
        };
        let (_, places) = read(520, copier(&message)).unwrap();
        assert_eq!(
            places[1],
            ReceivedPiece { at: PieceLocation::Message(512), len_bytes: 8, read_only: false }
        );
        assert_eq!(message[512..], [7; 8]);
    }

    #[test]
    fn rejects_malformed_messages() {
        let message = written(Head { operation: 1, token: 2 }, &[]);
        assert!(read(8, copier(&message)).is_err());
        let mut many = message.clone();
        many[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(read(many.len() as u64, copier(&many)).unwrap_err().message.contains("4294967295 pieces"));
        let source = Source::Shared(SharedAddress { number: 1, offset: 0 });
        let piece = Piece { source, len_bytes: 8, read_only: false };
        let mut beyond = written(Head { operation: 1, token: 2 }, &[piece]);
        beyond[16..24].fill(0);
        assert!(read(beyond.len() as u64, copier(&beyond)).is_ok());
        beyond[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(read(beyond.len() as u64, copier(&beyond)).is_err());
        beyond[16..24].fill(255);
        assert!(read(beyond.len() as u64, copier(&beyond)).is_err());
    }

    #[test]
    fn rejects_messages_with_a_wrong_count_of_pieces() {
        let says = |count: u32, len_bytes: usize| {
            let mut message = vec![0; len_bytes];
            message[4..8].copy_from_slice(&count.to_le_bytes());
            read(len_bytes as u64, copier(&message)).map(|(_, places)| places.len())
        };
        let (most, enough) = (MAX_PIECES as u32, 16 + 24 * (MAX_PIECES + 1));
        assert_eq!((says(0, 16), says(1, 40), says(most, enough)), (Ok(0), Ok(1), Ok(MAX_PIECES)));
        for (count, len_bytes) in [(1, 16), (1, 39), (2, 40), (most + 1, enough)] {
            let told = says(count, len_bytes).unwrap_err();
            assert_eq!(told.code, Code::Protocol);
            assert!(told.message.contains(&format!("{count} pieces")), "{told}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok((_, places)) = read(bytes.len() as u64, copier(&bytes)) {
                for place in places {
                    if let PieceLocation::Message(offset) = place.at {
                        prop_assert!(offset + place.len_bytes <= bytes.len() as u64);
                    }
                }
            }
        }
    }
}
