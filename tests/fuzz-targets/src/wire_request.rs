//! Decodes a worker's inbox and a client's results: any words are some request and some outcome, and no lease's
//! options make a layout with offsets outside of its region.

use sublet_runtime::wire::{CallOutcome, Immediate, InboxLayout, WireRequest};

use crate::values;

const LINE_BYTES: u64 = 64;

/// Words of a request, an immediate, and workers, slots and bytes of a slot of an inbox.
type WireValues = ([u64; 3], u32, (u32, u32, u64));

/// Decodes words, and makes the layout of an inbox.
///
/// # Panics
/// If something is not the same after a round trip, or an offset is outside of the layout.
pub fn run(input: &[u8]) {
    let Some((words, immediate, (workers, slots, slot_bytes))) = values::<WireValues>(input) else { return };
    let request = WireRequest::decode(&words);
    assert_eq!(WireRequest::decode(&request.encode()), request);
    let outcome = CallOutcome::decode(&[words[0], words[1]]);
    assert_eq!(CallOutcome::decode(&outcome.encode()), outcome);
    assert_eq!(Immediate::from_bits(immediate).to_bits(), immediate);
    if let Ok(layout) = InboxLayout::new(workers, slots, slot_bytes) {
        let last = layout.line(workers - 1, slots - 1);
        assert!(last.line + LINE_BYTES <= last.watch && last.watch < layout.len_bytes());
        assert!(layout.payload(workers - 1, slots - 1) + slot_bytes <= layout.len_bytes());
    }
}
