//! Messages of several pieces, as workers of Python and their callers read them in memory that the other one writes.
#![no_main]

use std::ptr::NonNull;

use libfuzzer_sys::fuzz_target;
use sublet_runtime::frames::{Piece, PieceLocation, SharedAddress, Source, len_bytes, read, write};

fuzz_target!(|bytes: &[u8]| {
    let copy = |at: u64, into: &mut [u8]| into.copy_from_slice(&bytes[at as usize..at as usize + into.len()]);
    let Ok((head, places)) = read(bytes.len() as u64, copy) else { return };
    let pieces: Vec<Piece> = places
        .iter()
        .map(|place| {
            let source = match place.at {
                PieceLocation::Message(offset) => {
                    Source::Here(NonNull::from(&bytes[offset as usize..][..place.len_bytes as usize]).cast())
                }
                PieceLocation::Shared(SharedAddress { number, offset }) => {
                    Source::Shared(SharedAddress { number, offset })
                }
            };
            Piece { source, len_bytes: place.len_bytes, read_only: place.read_only }
        })
        .collect();
    // Pieces may overlap: what is written of them can be longer than what was read.
    let len = len_bytes(&pieces);
    if len > 1 << 20 {
        return;
    }
    let mut again = vec![0; len as usize];
    let to = NonNull::from(again.as_mut_slice()).cast();
    // SAFETY: the memory has the length that was computed for the frame, and the pieces lie in the input.
    unsafe { write(head, &pieces, to) };
    let copy = |at: u64, into: &mut [u8]| into.copy_from_slice(&again[at as usize..at as usize + into.len()]);
    let (head_again, places_again) = read(len, copy).expect("what was written can be read");
    assert_eq!((head_again, places_again.len()), (head, places.len()));
});
