//! Defines the page that a process shares with its agent's shim, and the messages in it.
//!
//! A call is a [line](sublet_fabric::line) of the process's ring, whose body names the operation and its arguments.
//! Longer arguments lie in the payload slot of the call's record. The answer is the record's own line (Molecule 5:
//! small arguments by a queue, the rest in memory of this process, answers polled). Several threads of the process may
//! call at a time; only they use the ring.
//!
//! ```text
//! 0      requests: a ring of lines, then its watch        written by the process
//! 1088   answers: a line for each record                  written by the shim
//! 2112   watches of the answers                           both
//! 3136   states: a word for each descriptor               written by the shim
//! 8192   payloads: 4 KiB for each record                  both
//! ```

use sublet_fabric::line::{LINE_BYTES, Turn};
use sublet_proto::{Code, Error};

/// Calls of a process that are under way at a time.
pub const RECORDS: u32 = 16;
/// Largest payload of a call or an answer, beside its line, in bytes.
pub const PAYLOAD_BYTES: u64 = 4096;
/// Descriptors that a process has at a time.
pub const DESCRIPTORS: u32 = 256;
/// The page's size, in bytes.
pub const PAGE_BYTES: u64 = PAYLOADS_AT + RECORDS as u64 * PAYLOAD_BYTES;
/// Longest name of a FIFO, in bytes.
pub const MAX_NAME_BYTES: usize = 128;
/// Version of these messages: process and agent are of one installation.
pub const VERSION: u32 = 1;

const ANSWERS_AT: u64 = (RECORDS as u64 + 1) * LINE_BYTES;
const ANSWER_WATCHES_AT: u64 = ANSWERS_AT + RECORDS as u64 * LINE_BYTES;
const STATES_AT: u64 = ANSWER_WATCHES_AT + RECORDS as u64 * LINE_BYTES;
const PAYLOADS_AT: u64 = 8192;

const _: () = {
    assert!(ANSWERS_AT == 1088 && ANSWER_WATCHES_AT == 2112 && STATES_AT == 3136);
    assert!(STATES_AT + DESCRIPTORS as u64 * 8 <= PAYLOADS_AT);
};

/// Offset of the watch of the requests' ring.
pub const REQUEST_WATCH: u64 = RECORDS as u64 * LINE_BYTES;

/// Offset of a line of the requests' ring.
pub const fn request(line: u32) -> u64 {
    debug_assert!(line < RECORDS, "the line is beyond the ring");
    line as u64 * LINE_BYTES
}

/// Offset of the answer of a record.
pub const fn answer(record: u32) -> u64 {
    debug_assert!(record < RECORDS, "the record has no answer");
    ANSWERS_AT + record as u64 * LINE_BYTES
}

/// Offset of the watch of a record's answer.
pub const fn answer_watch(record: u32) -> u64 {
    debug_assert!(record < RECORDS, "the record has no watch");
    ANSWER_WATCHES_AT + record as u64 * LINE_BYTES
}

/// Offset of a record's payload.
pub const fn payload(record: u32) -> u64 {
    debug_assert!(record < RECORDS, "the record has no payload");
    PAYLOADS_AT + record as u64 * PAYLOAD_BYTES
}

/// Offset of the state of a descriptor: the number of packets that the shim has sent about it (low half), and if it is
/// over, the code of the error (high half).
pub const fn state(descriptor: u32) -> u64 {
    debug_assert!(descriptor < DESCRIPTORS, "the descriptor has no state");
    STATES_AT + descriptor as u64 * 8
}

/// Checks that a FIFO may have a name of `len` bytes.
///
/// # Errors
/// `invalid_argument`.
pub fn check_name_len(len: usize) -> Result<(), Error> {
    if len <= MAX_NAME_BYTES {
        return Ok(());
    }
    let message = format!("a FIFO's name of {len} bytes: it has at most {MAX_NAME_BYTES}");
    Err(Error::new(Code::InvalidArgument, message))
}

/// Whether a FIFO may be called so.
///
/// # Errors
/// `invalid_argument`, with the reason.
pub fn check_name(name: &str) -> Result<(), Error> {
    check_name_len(name.len())?;
    match name.chars().find(|c| c.is_control()) {
        None => Ok(()),
        Some(c) => {
            let message = format!("a FIFO's name with the character {c:?}: {name:?}");
            Err(Error::new(Code::InvalidArgument, message))
        }
    }
}

/// Operations that a process can request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Operation {
    /// Grants rights: the process, the object, the rights.
    Grant = 1,
    /// Revokes rights: the process, the object, the rights.
    Revoke = 2,
    /// Returns the caller's rights to an object.
    Rights = 3,
    /// Makes a FIFO that the caller reads: lines of a ring, bytes of a slot; the payload is its name. Answers the
    /// descriptor; beside it comes a socket, by which the shim reports writers.
    Init = 4,
    /// Connects to write to a FIFO: its id, or 0 and its name in the payload. Answers the descriptor; beside it comes
    /// the description of the connection.
    Connect = 5,
    /// Connects to read a FIFO that has no reader; answers as [`Operation::Init`].
    ConnectToRead = 6,
    /// Closes a descriptor.
    Close = 7,
    /// Returns the object of a descriptor.
    Object = 8,
    /// Ends one connection of a FIFO that the caller reads: the descriptor, the connection.
    Cut = 9,
    /// Spawns a program: the processing unit; the payload is a `SpawnProgram`. Answers its process's id.
    Spawn = 10,
    /// Returns the processors: 0 is the caller's own, those from 1 on are linked with it.
    Unit = 11,
    /// Returns the unit of a device: the processor beside which it is; the payload is its name.
    Device = 12,
    /// Returns a unit of a kind; the payload is the kind.
    Find = 13,
}

impl Operation {
    /// Decodes a number from a process.
    pub fn from_number(number: u16) -> Result<Operation, Error> {
        const ALL: [Operation; 13] = [
            Operation::Grant,
            Operation::Revoke,
            Operation::Rights,
            Operation::Init,
            Operation::Connect,
            Operation::ConnectToRead,
            Operation::Close,
            Operation::Object,
            Operation::Cut,
            Operation::Spawn,
            Operation::Unit,
            Operation::Device,
            Operation::Find,
        ];
        let found = ALL.into_iter().find(|operation| *operation as u16 == number);
        found.ok_or_else(|| Error::new(Code::Protocol, format!("there is no call {number} of the shim")))
    }
}

/// A call, as its line encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallRequest {
    /// Number of the requested operation. The shim checks that it exists.
    pub operation: u16,
    /// Record whose answer and payload are meant.
    pub record: u16,
    /// Turn of the answer.
    pub turn: Turn,
    /// Length of the payload, in bytes.
    pub len_bytes: u32,
    /// Arguments.
    pub words: [u64; 3],
}

impl CallRequest {
    /// Encodes the call as immediate value and body of a line.
    #[inline]
    pub fn encode(&self) -> (u32, [u64; 4]) {
        let immediate = u32::from(self.record) << 16 | u32::from(self.operation);
        let [first, second, third] = self.words;
        let head = u64::from(self.len_bytes) << 32 | u64::from(self.turn.to_bits());
        (immediate, [head, first, second, third])
    }

    /// Decodes a line.
    #[inline]
    pub fn decode((immediate, [head, first, second, third]): (u32, [u64; 4])) -> CallRequest {
        CallRequest {
            operation: (immediate & 0xffff) as u16,
            record: (immediate >> 16) as u16,
            turn: Turn::from_bits((head & 0xffff_ffff) as u32),
            len_bytes: (head >> 32) as u32,
            words: [first, second, third],
        }
    }
}

/// A descriptor's state, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorState(pub u64);

impl DescriptorState {
    /// Number of packets that the shim has sent about it.
    #[inline]
    pub fn packets(self) -> u32 {
        (self.0 & 0xffff_ffff) as u32
    }

    /// Reason why it is over, if it is.
    #[inline]
    pub fn over(self) -> Option<Code> {
        match (self.0 >> 32) as u32 {
            0 => None,
            number => Some(Code::from_number(number)),
        }
    }

    /// The state with one more packet.
    pub fn with_packet(self) -> DescriptorState {
        DescriptorState(self.0 & !u64::from(u32::MAX) | u64::from(self.packets().wrapping_add(1)))
    }

    /// The state with an end, for a reason; the first one counts.
    pub fn with_end(self, code: Code) -> DescriptorState {
        if self.over().is_some() {
            self
        } else {
            DescriptorState(u64::from(self.packets()) | u64::from(code.number()) << 32)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_request_is_read_as_it_was_written(operation: u16, record: u16, turn: u32, len_bytes: u32, words: [u64; 3]) {
            let request = CallRequest { operation, record, turn: Turn::from_bits(turn), len_bytes, words };
            prop_assert_eq!(CallRequest::decode(request.encode()), request);
        }
    }

    #[test]
    fn operations_have_their_numbers_and_there_are_no_others() {
        for number in 1..=13 {
            assert_eq!(Operation::from_number(number).unwrap() as u16, number);
        }
        for number in [0, 14, u16::MAX] {
            assert_eq!(Operation::from_number(number).unwrap_err().code, Code::Protocol);
        }
    }

    #[test]
    fn names_have_a_length_and_no_control_characters() {
        assert!(check_name("").is_ok() && check_name("frames/left eye").is_ok());
        assert!(check_name(&"x".repeat(MAX_NAME_BYTES)).is_ok());
        assert!(check_name(&"x".repeat(MAX_NAME_BYTES + 1)).unwrap_err().message.contains("129"));
        assert!(check_name("a\nb").unwrap_err().message.contains("'\\n'"));
    }

    #[test]
    fn a_state_counts_packets_and_keeps_its_first_end() {
        let state = DescriptorState(u64::from(u32::MAX)).with_packet();
        assert_eq!((state.packets(), state.over()), (0, None));
        let over =
            state.with_packet().with_end(Code::PermissionDenied).with_end(Code::WorkerDied).with_packet();
        assert_eq!((over.packets(), over.over()), (2, Some(Code::PermissionDenied)));
    }
}
