//! Decodes greetings from the network: no bytes may panic an agent or a client, none may pass for a lease's
//! without its secret, and no stream of bytes becomes a message outside of the bounds.

use sublet_fabric::greeting::{
    ANSWER_BYTES, ConnectionPurpose, Counters, Greeting, GreetingAnswer, HELLO_BYTES,
};
use sublet_fabric::remote::FrameSplitter;
use sublet_proto::MAX_PACKET_BYTES;

use crate::values;

/// The beginning that is checked first: a random input hardly begins with it.
const BEGINNING: &[u8; 12] = b"\x89Sublet\n\x01\0\0\0";

/// Decodes a greeting, an answer, a stream of messages and counters. An odd first byte puts the right beginning before
/// greeting and answer.
///
/// # Panics
/// If one of them is accepted that must not be, or is not the same after a round trip.
pub fn run(input: &[u8]) {
    let Some((begin, bytes)) = values::<(bool, &[u8])>(input) else { return };
    greeting(&padded(begin, bytes));
    answer(&padded(begin, bytes));
    frames(bytes);
    counters(bytes);
}

fn padded<const N: usize>(begin: bool, bytes: &[u8]) -> [u8; N] {
    let mut all = [0; N];
    let start = if begin { BEGINNING.len() } else { 0 };
    all[..start].copy_from_slice(&BEGINNING[..start]);
    for (place, &byte) in all[start..].iter_mut().zip(bytes) {
        *place = byte;
    }
    all
}

fn greeting(bytes: &[u8; HELLO_BYTES]) {
    if let Ok(greeting) = Greeting::decode(bytes) {
        assert!(!greeting.is_by(&[7; 32]), "no key has signed it");
        if greeting.kind == ConnectionPurpose::Control {
            assert!(bytes[16..].iter().all(|&byte| byte == 0));
        }
    }
}

fn answer(bytes: &[u8; ANSWER_BYTES]) {
    if let Ok(answer) = GreetingAnswer::decode(bytes) {
        // Decoding may cut or replace text: decoding its result again changes nothing more.
        let again = GreetingAnswer::decode(&answer.encode()).expect("what was encoded can be decoded");
        let once_more = GreetingAnswer::decode(&again.encode()).expect("what was encoded can be decoded");
        assert_eq!(again, once_more);
        assert_eq!(again.refusal.map(|error| error.code), answer.refusal.map(|error| error.code));
    }
}

/// The first byte says how the rest is cut.
fn frames(bytes: &[u8]) {
    let Some((&piece, stream)) = bytes.split_first() else { return };
    let (mut frames, mut total) = (FrameSplitter::default(), 0);
    for part in stream.chunks(usize::from(piece) + 1) {
        frames.push(part);
        loop {
            match frames.next() {
                Ok(Some(message)) => {
                    assert!((1..=MAX_PACKET_BYTES).contains(&message.len()));
                    total += message.len() + 4;
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
    assert!(total <= stream.len());
}

fn counters(bytes: &[u8]) {
    let mut counters = Counters::default();
    for pair in bytes.chunks_exact(2) {
        let counter = u64::from(pair[0]) << 8 | u64::from(pair[1]);
        counters.accept(counter);
        assert!(!counters.accept(counter));
    }
}
