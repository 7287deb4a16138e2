//! Messages of several pieces, as workers of Python and their callers read them in memory that the other one writes.

// The pieces to write are named by their addresses.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use sublet_runtime::frames::{Piece, PieceLocation, SharedAddress, Source, len_bytes, read, write};

/// Longest message that is written again, in bytes: pieces may overlap, so it can be longer than the one that was read.
const MAX_WRITTEN_BYTES: u64 = 1 << 20;

/// Reads a message, writes its pieces as a message, and reads that one.
///
/// # Panics
/// If a piece is outside of the message, or the two messages differ in their head or the number of their pieces.
pub fn run(input: &[u8]) {
    let Ok((head, places)) = read(len(input), |at, into| copy(input, at, into)) else { return };
    let pieces: Vec<Piece> = places
        .iter()
        .map(|place| {
            let source = match place.at {
                PieceLocation::Message(offset) => {
                    let piece = &input[index(offset)..][..index(place.len_bytes)];
                    Source::Here(NonNull::from(piece).cast())
                }
                PieceLocation::Shared(SharedAddress { number, offset }) => {
                    Source::Shared(SharedAddress { number, offset })
                }
            };
            Piece { source, len_bytes: place.len_bytes, read_only: place.read_only }
        })
        .collect();
    let written_bytes = len_bytes(&pieces);
    if written_bytes > MAX_WRITTEN_BYTES {
        return;
    }
    let mut again = vec![0; index(written_bytes)];
    let to = NonNull::from(again.as_mut_slice()).cast();
    // SAFETY: the memory has the length that was computed for the message, and the pieces lie in the input.
    unsafe { write(head, &pieces, to) };
    let (head_again, places_again) =
        read(written_bytes, |at, into| copy(&again, at, into)).expect("what was written can be read");
    assert_eq!((head_again, places_again.len()), (head, places.len()));
}

/// Copies bytes of a message.
fn copy(message: &[u8], at: u64, into: &mut [u8]) {
    into.copy_from_slice(&message[index(at)..][..into.len()]);
}

fn len(message: &[u8]) -> u64 {
    message.len().try_into().expect("a length has 64 bits at most")
}

fn index(number: u64) -> usize {
    number.try_into().expect("an index has 64 bits")
}
