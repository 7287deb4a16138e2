//! Sizes and places: around every internal limit, larger than 4 GiB, in both directions at once, and to who is slow.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags};
use sublet_fabric::exposed::OWN;
use sublet_fabric::line::Turn;
use sublet_fabric::region::Region;
use sublet_fabric::sim::{Faults, Sim};
use sublet_fabric::tcp::{self, Stream};
use sublet_fabric::window::Address;

use crate::pairs::{
    CARRIERS, LEN, NETWORKS, Node, at, encrypted, line_at, meet, over, own_at, own_line, plain,
};

/// Sizes at which something changes inside: a header, what is copied, the buffers.
const LIMITS: &[usize] = &[1, 8, 40, 64, 4 << 10, 16 << 10, 32 << 10, 64 << 10];

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|index| (index.wrapping_mul(31) >> 3) as u8 ^ (index + seed) as u8).collect()
}

#[test]
fn every_length_near_a_limit_arrives_at_odd_places_and_hurts_nothing_beside_it() {
    over(CARRIERS, |pair| {
        for (seed, limit) in LIMITS.iter().enumerate() {
            for len in limit - 1..=limit + 1 {
                let offset = 4097 + seed as u64;
                pair.end.put(at(offset - 1), &vec![0xee; len + 2]).unwrap();
                let bytes = pattern(len, seed);
                pair.end.put(at(offset), &bytes).unwrap();
                let mut back = vec![0; len + 2];
                pair.end.get(at(offset - 1), &mut back).unwrap();
                assert!(back[0] == 0xee && back[len + 1] == 0xee, "{len} bytes at {offset}: beside it");
                assert!(back[1..=len] == bytes, "{len} bytes at {offset}");
            }
        }
    });
}

#[test]
fn what_is_pushed_is_there_when_the_line_is() {
    over(NETWORKS, |pair| {
        let (line, watch) = pair.line(0);
        for (n, len) in [1, 100, 4096, 4097, 9000].into_iter().enumerate() {
            // Many in a row, so that what waits for the line is more than what may wait.
            let parts: Vec<Vec<u8>> = (0..40).map(|part| pattern(len, n + part)).collect();
            for (place, part) in parts.iter().enumerate() {
                let from = NonNull::from(part.as_slice()).cast();
                // SAFETY: the parts stay as they are until the line has been published.
                unsafe { pair.end.push(at(4096 + place as u64 * 10_000), from, part.len() as u64) }.unwrap();
            }
            pair.end.put_imm(line_at(0), Turn::of_use(n as u64), 0, &[]).unwrap();
            assert!(pair.passive.wait((line, watch), Turn::of_use(n as u64), None, || false));
            for (place, part) in parts.iter().enumerate() {
                let mut there = vec![0; part.len()];
                pair.target.read(4096 + place as u64 * 10_000, &mut there).unwrap();
                assert!(there == *part, "part {place} of {len} bytes");
            }
        }
    });
}

#[test]
fn two_ends_that_send_to_each_other_at_once_both_arrive() {
    let simulated = |seed| {
        let (_, left, right) = Sim::pair(Faults::of_seed(seed));
        (Stream::sim(left), Stream::sim(right))
    };
    for (streams, len) in
        [(plain(), 64 << 20), (encrypted(), 64 << 20), (simulated(7), 1 << 20), (simulated(8), 1 << 20)]
    {
        const DATA: u64 = 4096;
        let nodes = [Node::new(DATA + len), Node::new(DATA + len)];
        let ends = meet((&nodes[0], streams.0), (&nodes[1], streams.1));
        let send_and_wait = |end: &tcp::Endpoint, node: &Node, seed: usize| {
            end.put(own_at(DATA), &pattern(len as usize, seed)).unwrap();
            end.put_imm(own_line(0), Turn::of_use(0), 0, &[]).unwrap();
            assert!(end.wait(node.line(0), Turn::of_use(0), None, || false), "{:?}", end.down());
            let mut there = vec![0; len as usize];
            node.own.read(DATA, &mut there).unwrap();
            assert!(there == pattern(len as usize, 1 - seed));
        };
        std::thread::scope(|scope| {
            scope.spawn(|| send_and_wait(&ends.0, &nodes[0], 0));
            send_and_wait(&ends.1, &nodes[1], 1);
        });
    }
}

/// Maps the same small file again and again over memory that is already mapped.
fn fold(at: NonNull<u8>, len_bytes: u64, file: &Region) {
    for offset in (0..len_bytes).step_by(file.len_bytes() as usize) {
        let len = file.len_bytes().min(len_bytes - offset) as usize;
        // SAFETY: over a part of a mapping of this test's own, to which there are no references.
        unsafe {
            let place = at.as_ptr().add(offset as usize).cast();
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
            rustix::mm::mmap(place, len, access, flags, file.fd().as_fd(), 0).unwrap();
        }
    }
}

#[test]
fn one_put_of_more_than_4_gib_arrives() {
    const FILE_BYTES: u64 = 64 << 20;
    const PUT_BYTES: u64 = (4 << 30) + FILE_BYTES + 12_345;
    let files = [Region::create("from", FILE_BYTES).unwrap(), Region::create("into", FILE_BYTES).unwrap()];
    files[0].write(0, &pattern(FILE_BYTES as usize, 3)).unwrap();
    let nodes = [
        Node::new(8192 + PUT_BYTES.next_multiple_of(4096)),
        Node::new(8192 + PUT_BYTES.next_multiple_of(4096)),
    ];
    for (node, file) in nodes.iter().zip(&files) {
        let whole = node.exposed.pointer(Address { region: OWN, offset: 8192 }, PUT_BYTES).unwrap();
        fold(whole, PUT_BYTES.next_multiple_of(4096), file);
    }
    let streams = plain();
    let ends = meet((&nodes[0], streams.0), (&nodes[1], streams.1));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let from = nodes[0].exposed.pointer(Address { region: OWN, offset: 8192 }, PUT_BYTES).unwrap();
            // SAFETY: mapped above, and nobody writes there.
            unsafe { ends.0.push(own_at(8192), from, PUT_BYTES) }.unwrap();
            ends.0.put_imm(own_line(0), Turn::of_use(0), 0, &[]).unwrap();
        });
        assert!(ends.1.wait(nodes[1].line(0), Turn::of_use(0), None, || false), "{:?}", ends.1.down());
    });
    let [mut sent, mut received] = [(); 2].map(|()| vec![0; FILE_BYTES as usize]);
    files[0].read(0, &mut sent).unwrap();
    files[1].read(0, &mut received).unwrap();
    assert!(sent == received);
}

#[test]
fn a_slow_receiver_holds_its_sender_back_and_loses_nothing() {
    for streams in [plain(), encrypted()] {
        let nodes = [Node::new(LEN), Node::new(LEN)];
        let ends = meet((&nodes[0], streams.0), (&nodes[1], streams.1));
        const PUTS: u64 = 64;
        const DATA: u64 = PUTS * 128;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..PUTS {
                    ends.0.put(own_at(DATA), &pattern((LEN - DATA) as usize, n as usize)).unwrap();
                    ends.0.put_imm(own_line(n * 128), Turn::of_use(0), n as u32, &[]).unwrap();
                }
            });
            for n in 0..PUTS {
                if n % 8 == 0 {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let came = ends.1.wait(nodes[1].line(n * 128), Turn::of_use(0), None, || false);
                assert!(came, "{:?}", ends.1.down());
            }
            let mut last = vec![0; (LEN - DATA) as usize];
            nodes[1].own.read(DATA, &mut last).unwrap();
            assert!(last == pattern(last.len(), PUTS as usize - 1));
        });
    }
}
