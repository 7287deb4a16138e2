//! Fuzz targets: what each does with one input, whatever its bytes are, and what it asserts of the result.
//!
//! Each module is a target, and its function `run` takes an input. Two programs call it: libFuzzer, which searches for
//! inputs by the code that they reach (`cargo xtask fuzz`, with the programs in `fuzz`), and the test `fuzz_targets`,
//! which repeats the inputs found before and mutations of them. A panic is a finding: for libFuzzer one in any thread, for the
//! test one in the thread that runs the target.

use arbitrary::{Arbitrary, Unstructured};
use prost::Message;
use sublet_proto::decode;

pub mod control_messages;
pub mod devices;
pub mod error_status;
pub mod graph_document;
pub mod greeting;
pub mod image;
pub mod listeners;
pub mod message_frames;
pub mod node_messages;
pub mod package_validate;
pub mod stream_frames;
pub mod ticket_verify;
pub mod wire_request;

/// Reads the values that an input consists of. Returns `None` if the input is too short.
///
/// The first values are the first bytes, and a slice at the end is the rest, so that other programs can make inputs. The
/// kept inputs are in this form, which is the one of libFuzzer's macro for Rust.
fn values<'input, T: Arbitrary<'input>>(input: &'input [u8]) -> Option<T> {
    let least_bytes = T::size_hint(0).0;
    if input.len() < least_bytes {
        return None;
    }
    T::arbitrary_take_rest(Unstructured::new(input)).ok()
}

/// Asserts that a message, if it can be decoded, is the same after it was encoded and decoded again.
fn round_trip<M: Message + Default>(bytes: &[u8]) {
    if let Ok(message) = decode::<M>("a message", bytes) {
        // Bytes, not messages: a decoded NaN is not equal to itself.
        let encoded = message.encode_to_vec();
        let again = decode::<M>("a message", &encoded).expect("what was encoded can be decoded");
        assert_eq!(again.encode_to_vec(), encoded);
    }
}
