//! Decodes a worker's inbox and a client's results: any words are some request and some outcome, and no lease's
//! options make a layout with offsets outside of its region.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sublet_runtime::wire::{CallOutcome, Immediate, InboxLayout, WireRequest};

const LINE_BYTES: u64 = 64;

fuzz_target!(|input: ([u64; 3], u32, (u32, u32, u64))| {
    let (words, immediate, (workers, slots, slot_bytes)) = input;
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
});
