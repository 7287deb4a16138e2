//! Defines the wire layout: the lines that a client and a worker write into each other's memory, byte by byte.
//!
//! A **request** is a line in the worker's inbox, one ring for each worker. Its immediate value names the invocation
//! and the function (rFaaS IV-A). Its body has the addresses of the input and of the output, in regions that both ends
//! have mapped. Input outside of these regions is copied once, into the payload slot that belongs to the line.
//!
//! A **result** is a line in the client's results region, one for each invocation record. By the time its turn is
//! published, the output is in its place.
//!
//! | body word | request | result |
//! |---|---|---|
//! | 0 | Low 32 bits: input length. High 32 bits: output capacity. | Low 32 bits: status, 0 or an error code. High 32 bits: output length. |
//! | 1 | Address of the input. Above it: the low 16 bits of the result's turn. | Ticks spent executing if the request was timed, or the length of the error message. |
//! | 2 | Address of the output. Above it: the high 16 bits of the result's turn, and a flag for a timed request. | |
//!
//! An address has 41 bits: 33 of offset, and above them 8 of region. A request thus takes 32 bytes and a result 24. The
//! lines are short because each word costs time of its writer and its reader.
//!
//! Both sides of the protocol live in this crate; no other code writes or reads these lines. A worker decodes requests
//! of a client that may be broken: [`WireRequest::decode`] takes any three words, and every address in them is checked
//! against the mapped regions before it is used.

use sublet_fabric::line::{LINE_BYTES, Turn, WATCH_BYTES};
use sublet_fabric::window::{LineAddress, RegionAddress};
use sublet_proto::Error;
use sublet_proto::inbox::InboxShape;

pub mod usage;

/// Invocation records of one worker: calls of one client that may be unfinished or uncollected at a time.
pub const RECORDS: u32 = 1024;
/// Longest error message of a function that reaches the client, in bytes.
pub const MAX_MESSAGE_BYTES: u64 = 256;
/// The client's regions of one connection, the results region included.
pub const MAX_REGIONS: u32 = 256;
/// The region number of the results region, and in a request's input: the payload slot of the request's own line.
pub const OWN_REGION: u32 = 0;

/// The immediate value of a request: which invocation, which function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// The record in the low 10 bits, the low bits of its use count above: it wraps after 65,536 calls.
    pub invocation: u16,
    /// The function's index in its package.
    pub function: u16,
}

impl Immediate {
    /// The value for the `uses`-th use of a record.
    #[inline(always)]
    pub fn new(record: u16, uses: u64, function: u16) -> Immediate {
        Immediate { invocation: ((uses & 0xffff) as u16) << 10 | record & RECORD_MASK, function }
    }

    /// The record whose result line awaits the result.
    #[inline(always)]
    pub fn record(self) -> u16 {
        self.invocation & RECORD_MASK
    }

    /// The value as it travels.
    #[inline(always)]
    pub fn to_bits(self) -> u32 {
        u32::from(self.invocation) << 16 | u32::from(self.function)
    }

    /// The value as it arrives.
    #[inline(always)]
    pub fn from_bits(bits: u32) -> Immediate {
        Immediate { invocation: (bits >> 16) as u16, function: (bits & 0xffff) as u16 }
    }
}

/// The bits of [`Immediate::invocation`] that hold the record.
const RECORD_MASK: u16 = (1 << 10) - 1;

const _: () = assert!(RECORDS == RECORD_MASK as u32 + 1);

/// Addresses of a call's input and output. Lengths are 32 bits, as a function takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireRequest {
    /// Region [`OWN_REGION`]: the payload slot of the request's line; the offset is ignored.
    pub input: RegionAddress,
    /// Bytes of input.
    pub input_len: u32,
    /// Address of the function's output.
    pub output: RegionAddress,
    /// Bytes that it may write.
    pub output_capacity: u32,
    /// The turn in which the result line is published.
    pub result_turn: Turn,
    /// Whether the result reports the time spent executing: reading the clock delays the result.
    pub timed: bool,
}

const OFFSET_BITS: u32 = 33;
const PLACE_BITS: u32 = OFFSET_BITS + 8;
const TURN_BITS: u32 = 16;
/// The flag of a timed request, in its word 2.
const TIMED: u64 = 1 << (PLACE_BITS + TURN_BITS);

const _: () = assert!(MAX_REGIONS == 1 << (PLACE_BITS - OFFSET_BITS), "a region's number has 8 bits");

impl WireRequest {
    /// Words of the body.
    pub const WORDS: usize = 3;

    /// Encodes the request as a line's body.
    #[inline(always)]
    pub fn encode(&self) -> [u64; WireRequest::WORDS] {
        let turn = self.result_turn.to_bits();
        let timed = if self.timed { TIMED } else { 0 };
        [
            low_high(self.input_len, self.output_capacity),
            place(self.input) | u64::from(turn & 0xffff) << PLACE_BITS,
            place(self.output) | u64::from(turn >> TURN_BITS) << PLACE_BITS | timed,
        ]
    }

    /// Decodes a line's body. Any words make some request.
    #[inline(always)]
    pub fn decode(body: &[u64; WireRequest::WORDS]) -> WireRequest {
        let half_turn = |word: u64| (word >> PLACE_BITS & 0xffff) as u32;
        let turn = half_turn(body[1]) | half_turn(body[2]) << TURN_BITS;
        WireRequest {
            input: address(body[1]),
            input_len: low(body[0]),
            output: address(body[2]),
            output_capacity: high(body[0]),
            result_turn: Turn::from_bits(turn),
            timed: body[2] & TIMED != 0,
        }
    }
}

/// An address within a window of [`MAX_REGIONS`] regions of at most 4 GiB.
#[inline(always)]
fn place(at: RegionAddress) -> u64 {
    debug_assert!(
        at.region < MAX_REGIONS && at.offset < 1 << OFFSET_BITS,
        "{at:?} does not fit into a request"
    );
    at.offset & ((1 << OFFSET_BITS) - 1) | u64::from(at.region & 0xff) << OFFSET_BITS
}

#[inline(always)]
fn address(word: u64) -> RegionAddress {
    RegionAddress { region: (word >> OFFSET_BITS & 0xff) as u32, offset: word & ((1 << OFFSET_BITS) - 1) }
}

/// Result of a call, as its worker reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOutcome {
    /// 0, or the number of a [`Code`](sublet_proto::Code).
    pub status: u32,
    /// Bytes that the function wrote. With [`OutputTooLarge`](sublet_proto::Code::OutputTooLarge), the bytes that it
    /// had to write; for a function that failed, the length of its report.
    pub output_len: u32,
    /// Time in the function with status 0, in ticks of the node's counter, or 0 if the request was not timed. Otherwise
    /// the length of the error message, in the message slot of the record.
    pub detail: u64,
}

impl CallOutcome {
    /// Words of the body.
    pub const WORDS: usize = 2;

    /// Encodes the outcome as a line's body.
    #[inline(always)]
    pub fn encode(&self) -> [u64; CallOutcome::WORDS] {
        [low_high(self.status, self.output_len), self.detail]
    }

    /// Decodes a line's body.
    #[inline(always)]
    pub fn decode(body: &[u64; CallOutcome::WORDS]) -> CallOutcome {
        CallOutcome { status: low(body[0]), output_len: high(body[0]), detail: body[1] }
    }
}

#[inline(always)]
fn low_high(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[inline(always)]
fn low(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

#[inline(always)]
fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Layout of an inbox region: for each worker its ring of lines, their one watch (a worker waits for one line at a
/// time), then its payload slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxLayout {
    slots: u32,
    shape: InboxShape,
}

impl InboxLayout {
    /// A layout for `workers` workers with `slots` slots, each for inputs of `slot_bytes`; see [`InboxShape::new`].
    pub fn new(workers: u32, slots: u32, slot_bytes: u64) -> Result<InboxLayout, Error> {
        Ok(InboxLayout { slots, shape: InboxShape::new(workers, slots, slot_bytes)? })
    }

    /// Size of the region.
    pub fn len_bytes(&self) -> u64 {
        self.shape.len_bytes
    }

    /// Lines of each worker's ring.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The address of a request's line.
    #[inline(always)]
    pub fn line(&self, worker: u32, slot: u32) -> LineAddress {
        debug_assert!(slot < self.slots, "line {slot} of {}", self.slots);
        let ring = u64::from(worker) * self.shape.worker_stride;
        LineAddress {
            region: OWN_REGION,
            line: ring + u64::from(slot) * LINE_BYTES,
            watch: ring + u64::from(self.slots) * LINE_BYTES,
        }
    }

    /// The offset of a request's payload slot.
    #[inline(always)]
    pub fn payload(&self, worker: u32, slot: u32) -> u64 {
        debug_assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        u64::from(worker) * self.shape.worker_stride
            + self.shape.ring_bytes
            + u64::from(slot) * self.shape.slot_stride
    }
}

/// Layout of a results region: for each worker its records' lines, their watches, and their messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultsLayout {
    workers: u32,
}

const RECORD_LINES_BYTES: u64 = RECORDS as u64 * LINE_BYTES;
const WATCHES_BYTES: u64 = RECORDS as u64 * WATCH_BYTES;
const WORKER_RESULTS_BYTES: u64 = RECORD_LINES_BYTES + WATCHES_BYTES + RECORDS as u64 * MAX_MESSAGE_BYTES;

impl ResultsLayout {
    /// A layout for this number of workers.
    pub fn new(workers: u32) -> ResultsLayout {
        ResultsLayout { workers }
    }

    /// Size of the region.
    pub fn len_bytes(&self) -> u64 {
        u64::from(self.workers) * WORKER_RESULTS_BYTES
    }

    /// The address of a record's line.
    #[inline(always)]
    pub fn line(&self, worker: u32, record: u16) -> LineAddress {
        debug_assert!(
            worker < self.workers && u32::from(record) < RECORDS,
            "record {record} of worker {worker}"
        );
        let results = u64::from(worker) * WORKER_RESULTS_BYTES;
        LineAddress {
            region: OWN_REGION,
            line: results + u64::from(record) * LINE_BYTES,
            watch: results + RECORD_LINES_BYTES + u64::from(record) * WATCH_BYTES,
        }
    }

    /// The offset of a record's error message.
    pub fn message(&self, worker: u32, record: u16) -> u64 {
        let messages = u64::from(worker) * WORKER_RESULTS_BYTES + RECORD_LINES_BYTES + WATCHES_BYTES;
        messages + u64::from(record) * MAX_MESSAGE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(words: [u64; 3], bits: u32) {
            let request = WireRequest::decode(&words);
            prop_assert_eq!(WireRequest::decode(&request.encode()), request);
            let outcome = CallOutcome::decode(&[words[0], words[1]]);
            prop_assert_eq!(CallOutcome::decode(&outcome.encode()), outcome);
            prop_assert_eq!(Immediate::from_bits(bits).to_bits(), bits);
        }

        #[test]
        fn a_request_keeps_every_place_of_a_window(
            offsets: [u32; 2], regions: [u8; 2], sizes: [u32; 2], turn: u32, timed: bool,
        ) {
            let at = |index: usize| RegionAddress { region: regions[index].into(), offset: u64::from(offsets[index]) + 1 };
            let request = WireRequest {
                input: at(0),
                input_len: sizes[0],
                output: at(1),
                output_capacity: sizes[1],
                result_turn: Turn::from_bits(turn),
                timed,
            };
            prop_assert_eq!(WireRequest::decode(&request.encode()), request);
        }

        #[test]
        fn lines_and_slots_of_an_inbox_do_not_overlap(workers in 1u32..5, log_slots in 0u32..5, slot_bytes in 0u64..9000) {
            let slots = 1 << log_slots;
            let layout = InboxLayout::new(workers, slots, slot_bytes).unwrap();
            let mut places = Vec::new();
            for worker in 0..workers {
                for slot in 0..slots {
                    let address = layout.line(worker, slot);
                    places.push((address.line, LINE_BYTES));
                    if slot == 0 {
                        places.push((address.watch, WATCH_BYTES));
                    }
                    places.push((layout.payload(worker, slot), slot_bytes));
                }
            }
            places.sort_unstable();
            for pair in places.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0);
            }
            let last = places[places.len() - 1];
            prop_assert!(last.0 + last.1 <= layout.len_bytes());
        }
    }

    #[test]
    fn an_invocation_id_wraps_and_keeps_its_record() {
        for uses in [0, 63, 64, u64::MAX] {
            assert_eq!(Immediate::new(1023, uses, 9).record(), 1023);
        }
        assert_eq!(Immediate::new(5, 0, 9), Immediate::new(5, 64, 9));
    }
}
