//! Many threads at one end.

use std::sync::atomic::{AtomicU64, Ordering};

use sublet_fabric::line::Turn;
use sublet_fabric::window::LineAddress;
use sublet_means::spawn_until_asleep;

use crate::pairs::{CARRIERS, NETWORKS, Pair, REGION, WATCH, at, over};

const THREADS: u64 = 4;
const ROUNDS: u64 = 60;
/// Size of each thread's own area.
const AREA: u64 = 64 << 10;

/// Each thread has a line and a watch of its own: sleepers must not wake each other.
fn line(thread: u64) -> LineAddress {
    LineAddress { region: REGION, line: thread * 64, watch: WATCH + thread * 4 }
}

fn work(pair: &Pair, thread: u64) {
    let area = 4096 + thread * AREA;
    for round in 0..ROUNDS {
        let len = [1, 100, 4096, 5000, 40_000][round as usize % 5];
        let bytes: Vec<u8> = (0..len).map(|index| (index as u64 * 3 + round + thread) as u8).collect();
        pair.end.put(at(area), &bytes).unwrap();
        let mut back = vec![0; len];
        pair.end.get(at(area), &mut back).unwrap();
        assert!(bytes == back, "thread {thread}, round {round}");
        pair.end.fetch_add(at(2048), 1).unwrap();
        pair.end.put_imm(line(thread), Turn::of_use(round), round as u32, &[thread]).unwrap();
        let answered: &AtomicU64 = pair.target.view(1024 + thread * 8).unwrap();
        while answered.load(Ordering::Acquire) != round + 1 {
            std::thread::yield_now();
        }
    }
}

/// Waits for each line of a thread, and answers in memory.
fn answer(pair: &Pair, thread: u64) {
    let LineAddress { line, watch, .. } = line(thread);
    let (line, watch) = (pair.target.view(line).unwrap(), pair.target.view(watch).unwrap());
    for round in 0..ROUNDS {
        assert!(pair.passive.wait((line, watch), Turn::of_use(round), None, || false));
        assert_eq!(line.read(), (round as u32, [thread]));
        let answered: &AtomicU64 = pair.target.view(1024 + thread * 8).unwrap();
        answered.store(round + 1, Ordering::Release);
    }
}

#[test]
fn many_threads_put_get_count_and_wait_on_one_end() {
    over(CARRIERS, |pair| {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let pair = &pair;
                scope.spawn(move || work(pair, thread));
                scope.spawn(move || answer(pair, thread));
            }
        });
        assert_eq!(pair.end.fetch_add(at(2048), 0).unwrap(), THREADS * ROUNDS);
    });
}

#[test]
fn more_requests_than_there_are_places_wait_their_turn() {
    over(NETWORKS, |pair| {
        const MANY: usize = 100;
        std::thread::scope(|scope| {
            for _ in 0..MANY {
                scope.spawn(|| {
                    for _ in 0..5 {
                        pair.end.fetch_add(at(0), 1).unwrap();
                    }
                });
            }
        });
        assert_eq!(pair.end.fetch_add(at(0), 0).unwrap(), 5 * MANY as u64);
    });
}

#[test]
fn poke_ends_waits_of_the_reader_and_other_waiters() {
    over(CARRIERS, |pair| {
        let stop = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let sleepers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (pair, stop) = (&pair, &stop);
                    let LineAddress { line, watch, .. } = line(thread);
                    let (line, watch) = (pair.target.view(line).unwrap(), pair.target.view(watch).unwrap());
                    spawn_until_asleep(scope, move || {
                        pair.passive
                            .wait((line, watch), Turn::of_use(0), None, || stop.load(Ordering::SeqCst) == 1)
                    })
                })
                .collect();
            stop.store(1, Ordering::SeqCst);
            for thread in 0..THREADS {
                pair.passive.poke(pair.target.view(line(thread).watch).unwrap());
            }
            for sleeper in sleepers {
                assert!(!sleeper.join().unwrap());
            }
        });
    });
}
