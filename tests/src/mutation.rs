//! Mutations of a decoder's inputs: the same inputs, seed and number make the same bytes in every run.

use crate::sim::Random;

/// Longest mutated input, in bytes: that of a packet inside a node.
const MAX_BYTES: usize = 64 * 1024;
/// Most changes of one input.
const MAX_CHANGES: u64 = 4;
/// Most bytes that one change repeats or removes.
const MAX_PART_BYTES: usize = 256;
/// Most by which one change increases or decreases a byte.
const MAX_STEP: u64 = 16;
/// Integers at the bounds of their types, from which lengths and offsets overflow.
const BOUNDS: [u64; 16] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Changes one of the inputs in a few places.
///
/// # Panics
/// If there are no inputs.
pub fn mutate(inputs: &[&[u8]], seed: u64, number: u64) -> Vec<u8> {
    let mut random = Random::from_seed(seed.wrapping_add(number));
    let mut bytes = random.pick(inputs).to_vec();
    for _ in 0..random.between(1, MAX_CHANGES) {
        change(&mut bytes, inputs, &mut random);
    }
    bytes.truncate(MAX_BYTES);
    bytes
}

/// Makes one change. An input without bytes can only grow.
fn change(bytes: &mut Vec<u8>, inputs: &[&[u8]], random: &mut Random) {
    match random.below(9) {
        0 => insert(bytes, &random.bits().to_le_bytes(), random),
        1 => splice(bytes, random.pick(inputs), random),
        _ if bytes.is_empty() => {}
        2 => bytes.truncate(below(random, bytes.len())),
        3 => *any_of(bytes, random) ^= 1 << random.below(8),
        4 => *any_of(bytes, random) = random.bits().to_le_bytes()[0],
        5 => step(any_of(bytes, random), random),
        6 => overwrite(bytes, random),
        7 => {
            let (start, end) = part(bytes, random);
            let repeated = bytes[start..end].to_vec();
            insert(bytes, &repeated, random);
        }
        _ => {
            let (start, end) = part(bytes, random);
            bytes.drain(start..end);
        }
    }
}

/// Inserts the first bytes of a text, at least one of them.
fn insert(bytes: &mut Vec<u8>, inserted: &[u8], random: &mut Random) {
    let rest = bytes.split_off(below(random, bytes.len() + 1));
    bytes.extend_from_slice(&inserted[..1 + below(random, inserted.len())]);
    bytes.extend(rest);
}

/// Replaces the end by the end of another input.
fn splice(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    bytes.truncate(below(random, bytes.len() + 1));
    bytes.extend_from_slice(&other[below(random, other.len() + 1)..]);
}

/// Increases or decreases a byte by a little.
fn step(byte: &mut u8, random: &mut Random) {
    let by = random.between(1, MAX_STEP).to_le_bytes()[0];
    *byte = if random.below(2) == 0 { byte.wrapping_add(by) } else { byte.wrapping_sub(by) };
}

/// Writes one of [`BOUNDS`] in 1 to 8 bytes, in either byte order.
fn overwrite(bytes: &mut [u8], random: &mut Random) {
    let width = random.pick(&[1, 2, 4, 8]).min(bytes.len());
    let start = below(random, bytes.len() - width + 1);
    let written = &mut bytes[start..start + width];
    written.copy_from_slice(&random.pick(&BOUNDS).to_le_bytes()[..width]);
    if random.below(2) == 0 {
        written.reverse();
    }
}

/// Chooses a part of an input that is not empty: its start and its end.
fn part(bytes: &[u8], random: &mut Random) -> (usize, usize) {
    let start = below(random, bytes.len());
    (start, start + 1 + below(random, MAX_PART_BYTES.min(bytes.len() - start)))
}

/// Chooses one of several bytes.
fn any_of<'bytes>(bytes: &'bytes mut [u8], random: &mut Random) -> &'bytes mut u8 {
    let index = below(random, bytes.len());
    &mut bytes[index]
}

/// Draws an index below a length, which is not 0.
fn below(random: &mut Random, len: usize) -> usize {
    let len = u64::try_from(len).expect("a length has 64 bits at most");
    usize::try_from(random.below(len)).expect("what is below a length is an index")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const INPUTS: &[&[u8]] = &[b"", b"one", b"another input", &[0; 4096]];

    #[test]
    fn seed_and_number_determine_a_mutation() {
        let all = |seed| (0..1000).map(|number| mutate(INPUTS, seed, number)).collect::<Vec<_>>();
        assert_eq!(all(7), all(7));
        assert_ne!(all(7), all(1_000_000));
        let different: BTreeSet<_> = all(7).into_iter().collect();
        assert!(different.len() > 500, "only {} of 1000 mutations are different", different.len());
    }

    #[test]
    fn mutations_shorten_lengthen_join_and_overwrite() {
        let all: Vec<_> = (0..10_000).map(|number| mutate(&INPUTS[1..3], 1, number)).collect();
        let found = |what: &str, is_so: &dyn Fn(&[u8]) -> bool| {
            assert!(all.iter().any(|bytes| is_so(bytes)), "no mutation {what}");
        };
        found("is empty", &|bytes| bytes.is_empty());
        found("is longer than the inputs", &|bytes| bytes.len() > INPUTS[2].len());
        found("joins the inputs", &|bytes| bytes == b"oneanother input");
        found("has a large integer", &|bytes| bytes.windows(4).any(|word| word == [0xff; 4]));
        found("has a changed bit", &|bytes| bytes == b"ong" || bytes == b"onm" || bytes == b"one\x20");
    }

    #[test]
    fn mutations_have_a_bounded_length() {
        let longest = vec![7; MAX_BYTES];
        for number in 0..1000 {
            let len = mutate(&[&longest], 1, number).len();
            assert!(len <= MAX_BYTES, "mutation {number} has {len} bytes");
        }
    }
}
