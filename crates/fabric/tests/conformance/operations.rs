//! Each operation alone, and in its order.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sublet_fabric::line::{LINE_BYTES, Turn};
use sublet_fabric::region::Region;
use sublet_fabric::window::{LineAddress, RegionAddress};
use sublet_fabric::{FabricError, Provider};
use sublet_means::spawn_until_asleep;

use crate::pairs::{CARRIERS, LEN, Pair, PairTransport, WATCH, at, line_at, over, pair, unavailable};

fn word(pair: &Pair, offset: u64) -> &AtomicU64 {
    pair.target.view(offset).unwrap()
}

fn over_all(test: impl Fn(Pair)) {
    over(CARRIERS, test);
}

#[test]
fn an_end_knows_what_carries_it() {
    let available = CARRIERS.iter().filter(|pair_transport| unavailable(**pair_transport).is_none());
    let providers = available.map(|&pair_transport| (pair_transport, pair(pair_transport).end.provider()));
    for (pair_transport, provider) in providers {
        let expected = match pair_transport {
            PairTransport::Shm => Provider::Shm,
            PairTransport::Tcp | PairTransport::Tls => Provider::Tcp,
            PairTransport::Sim(_) => Provider::Sim,
            PairTransport::Ofi => Provider::Ofi,
        };
        assert_eq!(provider, expected);
    }
    assert!(!Provider::ALL.contains(&Provider::Sim), "the simulation is offered to users");
}

#[test]
fn what_is_put_is_there_and_can_be_got() {
    over_all(|pair| {
        for (offset, len) in [(0, 0), (1, 1), (63, 130), (4095, 4097), (0, LEN as usize), (LEN - 1, 1)] {
            let bytes: Vec<u8> = (0..len).map(|index| (index * 7 + len) as u8).collect();
            pair.end.put(at(offset), &bytes).unwrap();
            let (mut there, mut back) = (vec![0; len], vec![0; len]);
            pair.end.get(at(offset), &mut back).unwrap();
            pair.target.read(offset, &mut there).unwrap();
            assert_eq!((there == bytes, back == bytes), (true, true), "{len} bytes at {offset}");
        }
    });
}

#[test]
fn atomics_return_what_was_and_lose_nothing() {
    over_all(|pair| {
        assert_eq!(pair.end.compare_swap(at(8), 0, 5).unwrap(), 0);
        assert_eq!(pair.end.compare_swap(at(8), 0, 6).unwrap(), 5);
        assert_eq!(pair.end.fetch_add(at(8), u64::MAX).unwrap(), 5);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        pair.end.fetch_add(at(16), 1).unwrap();
                    }
                });
            }
        });
        assert_eq!(pair.end.fetch_add(at(16), 0).unwrap(), 2000);
        assert_eq!(word(&pair, 8).load(Ordering::SeqCst), 4);
    });
}

#[test]
fn whoever_sees_a_line_sees_what_was_put_before_it() {
    over_all(|pair| {
        let (line, watch) = pair.line(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..2_000u64 {
                    pair.end.put(at(4096), &n.to_ne_bytes()).unwrap();
                    pair.end.put_imm(line_at(0), Turn::of_use(n), n as u32, &[n; 7]).unwrap();
                    // The reader answers in a word of its own region.
                    while word(&pair, 128).load(Ordering::Acquire) != n + 1 {
                        std::thread::yield_now();
                    }
                }
            });
            for n in 0..2_000u64 {
                assert!(pair.passive.wait((line, watch), Turn::of_use(n), None, || false));
                let mut bytes = [0; 8];
                pair.target.read(4096, &mut bytes).unwrap();
                assert_eq!((line.read::<7>(), u64::from_ne_bytes(bytes)), ((n as u32, [n; 7]), n));
                word(&pair, 128).store(n + 1, Ordering::Release);
            }
        });
    });
}

#[test]
fn a_line_of_any_length_arrives_as_it_was() {
    over_all(|pair| {
        let (line, watch) = pair.line(0);
        let come = |n| assert!(pair.passive.wait((line, watch), Turn::of_use(n), None, || false));
        pair.end.put_imm(line_at(0), Turn::of_use(0), 1, &[]).unwrap();
        come(0);
        assert_eq!(line.read::<0>(), (1, []));
        pair.end.put_imm(line_at(0), Turn::of_use(1), 2, &[3]).unwrap();
        come(1);
        assert_eq!(line.read::<1>(), (2, [3]));
        pair.end.put_imm(line_at(0), Turn::of_use(2), 3, &[4, 5, 6, 7]).unwrap();
        come(2);
        assert_eq!(line.read::<4>(), (3, [4, 5, 6, 7]));
    });
}

#[test]
fn sleeping_reader_wakes_at_a_line_or_its_deadline() {
    over_all(|pair| {
        let (line, watch) = pair.line(LINE_BYTES);
        let soon = Instant::now() + Duration::from_millis(5);
        assert!(!pair.passive.wait((line, watch), Turn::of_use(0), Some(soon), || false));
        std::thread::scope(|scope| {
            let sleeper = spawn_until_asleep(scope, || {
                pair.passive.wait((line, watch), Turn::of_use(0), None, || false)
            });
            pair.end.put_imm(line_at(LINE_BYTES), Turn::of_use(0), 0, &[0; 7]).unwrap();
            assert!(sleeper.join().unwrap());
        });
    });
}

#[test]
fn bell_rings_only_for_lines_that_ask_for_it() {
    over_all(|pair| {
        let rung = || rustix::io::read(&pair.bell, &mut [0; 8]).is_ok();
        let (line, watch) = pair.line(0);
        let publish = |n| {
            pair.end.put_imm(line_at(0), Turn::of_use(n), 0, &[0; 7]).unwrap();
            // The later operation has been executed, so the line has been published.
            pair.end.fetch_add(at(4096), 1).unwrap();
        };
        publish(0);
        assert!(!rung());
        assert!(line.ask_bell(watch, Turn::of_use(1)));
        publish(1);
        assert!(rung());
    });
}

#[test]
fn access_outside_of_a_region_is_refused_with_its_address() {
    over_all(|pair| {
        let outside = [
            at(LEN),
            at(LEN - 3),
            at(u64::MAX),
            RegionAddress { region: 2, offset: 0 },
            RegionAddress { region: 99, offset: 0 },
        ];
        for address in outside {
            let named = |error: FabricError| {
                assert!(error.to_string().contains(&address.region.to_string()), "{error}")
            };
            named(pair.end.put(address, &[1; 8]).unwrap_err());
            named(pair.end.get(address, &mut [1; 8]).unwrap_err());
            named(pair.end.fetch_add(address, 1).unwrap_err());
            named(pair.end.compare_swap(address, 0, 1).unwrap_err());
            let line = LineAddress { region: address.region, line: address.offset, watch: WATCH };
            named(pair.end.put_imm(line, Turn::of_use(0), 0, &[0; 7]).unwrap_err());
            let watch = LineAddress { region: address.region, line: 0, watch: address.offset };
            named(pair.end.put_imm(watch, Turn::of_use(0), 0, &[0; 7]).unwrap_err());
            assert!(pair.end.mapped(address, 8).is_none());
        }
        assert!(matches!(pair.end.fetch_add(at(4), 1), Err(FabricError::Unaligned { .. })));
        let line = pair.end.put_imm(line_at(8), Turn::of_use(0), 0, &[0; 7]);
        assert!(matches!(line, Err(FabricError::Unaligned { .. })));
    });
}

#[test]
fn region_can_be_registered_while_the_connection_is_used() {
    over_all(|pair| {
        let more = Region::create("more", 8192).unwrap();
        pair.register(4, &more).unwrap();
        let last = RegionAddress { region: 4, offset: 8191 };
        pair.end.put(last, &[9]).unwrap();
        let mut byte = [0];
        pair.end.get(last, &mut byte).unwrap();
        assert_eq!(byte, [9]);
        assert!(pair.register(4, &more).is_err(), "a number is given once");
        assert!(matches!(pair.register_as(5, &more, 4096), Err(FabricError::NotARegion { .. })));
    });
}

#[test]
fn memory_outlives_its_creator_while_it_is_mapped() {
    over_all(|pair| {
        let Pair { end, target, passive: _passive, .. } = pair;
        end.put(at(0), b"kept").unwrap();
        let _ = target.fd().as_fd();
        drop(target);
        let mut bytes = [0; 4];
        end.get(at(0), &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept");
    });
}
