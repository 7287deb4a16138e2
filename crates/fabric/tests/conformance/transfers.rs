//! Sizes and addresses: around every internal limit, in both directions at once, and to a slow receiver.

use std::ptr::NonNull;
use std::time::Duration;

use sublet_fabric::line::Turn;

use crate::pairs::{
    CARRIERS, LEN, NETWORKS, PairTransport, at, for_each, line_at, over, own_at, own_line, pattern,
};
use crate::sides::{Side, join, sides};

/// Sizes at which the implementation changes: a header, the largest copied payload, the buffers.
const LIMITS: &[usize] = &[1, 8, 40, 64, 4 << 10, 16 << 10, 32 << 10, 64 << 10];

/// Transports over which two sides send at once.
const BOTH_WAYS: &[PairTransport] = &[
    PairTransport::Shm,
    PairTransport::Tcp,
    PairTransport::Tls,
    PairTransport::Sim(7),
    PairTransport::Sim(8),
    PairTransport::Ofi,
];

#[test]
fn lengths_near_limits_arrive_whole_at_odd_addresses() {
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
            // More pushes in a row than may wait for a line.
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
fn two_ends_can_send_to_each_other_at_once() {
    const DATA: u64 = 4096;
    for_each(BOTH_WAYS, |pair_transport| {
        let len: usize = if matches!(pair_transport, PairTransport::Sim(_)) { 1 << 20 } else { 64 << 20 };
        let sides = sides(pair_transport, [DATA + len as u64; 2]);
        join(pair_transport, &sides);
        let send_and_wait = |side: &Side, seed: usize| {
            side.end.put(own_at(DATA), &pattern(len, seed)).unwrap();
            side.end.put_imm(own_line(0), Turn::of_use(0), 0, &[]).unwrap();
            side.receive(0, Turn::of_use(0));
            let mut there = vec![0; len];
            side.node.own.read(DATA, &mut there).unwrap();
            assert!(there == pattern(len, 1 - seed));
        };
        std::thread::scope(|scope| {
            scope.spawn(|| send_and_wait(&sides[0], 0));
            send_and_wait(&sides[1], 1);
        });
    });
}

#[test]
fn a_slow_receiver_holds_its_sender_back_and_loses_nothing() {
    const PUTS: u64 = 64;
    const DATA: u64 = PUTS * 128;
    for_each(&[PairTransport::Tcp, PairTransport::Tls, PairTransport::Ofi], |pair_transport| {
        let sides = sides(pair_transport, [LEN; 2]);
        join(pair_transport, &sides);
        let [sender, receiver] = &sides;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..PUTS {
                    sender.end.put(own_at(DATA), &pattern((LEN - DATA) as usize, n as usize)).unwrap();
                    sender.end.put_imm(own_line(n * 128), Turn::of_use(0), n as u32, &[]).unwrap();
                }
            });
            for n in 0..PUTS {
                if n % 8 == 0 {
                    std::thread::sleep(Duration::from_millis(5));
                }
                receiver.receive(n * 128, Turn::of_use(0));
            }
            let mut last = vec![0; (LEN - DATA) as usize];
            receiver.node.own.read(DATA, &mut last).unwrap();
            assert!(last == pattern(last.len(), PUTS as usize - 1));
        });
    });
}
