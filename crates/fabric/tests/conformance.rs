//! What every provider must do, written once and run over all of them.

#![allow(clippy::unwrap_used)]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use sublet_fabric::line::{LINE_BYTES, Line, Turn, Watch};
use sublet_fabric::region::Region;
use sublet_fabric::window::{Address, LineAddress, Window};
use sublet_fabric::{Endpoint, FabricError, Provider, shm};

const REGION: u32 = 3;
const LEN: u64 = 1 << 20;

/// An end, and the memory of the other side that it reaches as region 3.
struct Pair {
    end: Endpoint,
    target: Region,
    bell: std::os::fd::OwnedFd,
}

fn pair(provider: Provider) -> Pair {
    let target = Region::create("target", LEN).unwrap();
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let end = match provider {
        Provider::Shm => {
            let window = Window::reserve(8, LEN).unwrap();
            Endpoint::Shm(shm::Endpoint::new(window, Some(bell.try_clone().unwrap())))
        }
        other => panic!("no pair for {other:?}"),
    };
    end.register(REGION, target.fd(), LEN).unwrap();
    Pair { end, target, bell }
}

fn at(offset: u64) -> Address {
    Address { region: REGION, offset }
}

/// The line at an offset; its watch lies in the region's last page.
fn line_at(offset: u64) -> LineAddress {
    LineAddress { region: REGION, line: offset, watch: WATCH }
}

const WATCH: u64 = LEN - 4096;

fn line_and_watch(pair: &Pair, offset: u64) -> (&Line, &Watch) {
    (pair.target.view(offset).unwrap(), pair.target.view(WATCH).unwrap())
}

fn word(pair: &Pair, offset: u64) -> &AtomicU64 {
    pair.target.view(offset).unwrap()
}

fn over_all(test: impl Fn(Pair)) {
    for &provider in Provider::ALL {
        let pair = pair(provider);
        assert_eq!(pair.end.provider(), provider);
        test(pair);
    }
}

#[test]
fn what_is_put_is_there_and_can_be_got() {
    over_all(|pair| {
        for (offset, len) in [(0, 0), (1, 1), (63, 130), (4095, 4097), (0, LEN as usize), (LEN - 1, 1)] {
            let bytes: Vec<u8> = (0..len).map(|index| (index * 7 + len) as u8).collect();
            pair.end.put(at(offset), &bytes).unwrap();
            let (mut there, mut back) = (vec![0; len], vec![0; len]);
            pair.target.read(offset, &mut there).unwrap();
            pair.end.get(at(offset), &mut back).unwrap();
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
                    for _ in 0..10_000 {
                        pair.end.fetch_add(at(16), 1).unwrap();
                    }
                });
            }
        });
        assert_eq!(pair.end.fetch_add(at(16), 0).unwrap(), 40_000);
        assert_eq!(word(&pair, 8).load(Ordering::SeqCst), 4);
    });
}

#[test]
fn whoever_sees_a_line_sees_what_was_put_before_it() {
    over_all(|pair| {
        let (line, watch) = line_and_watch(&pair, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..2_000u64 {
                    pair.end.put(at(4096), &n.to_ne_bytes()).unwrap();
                    pair.end.put_imm(line_at(0), Turn::of_use(n), n as u32, &[n; 7]).unwrap();
                    // The reader answers in a word of its own region.
                    while word(&pair, 128).load(Ordering::Acquire) != n + 1 {
                        std::hint::spin_loop();
                    }
                }
            });
            for n in 0..2_000u64 {
                assert!(pair.end.wait((line, watch), Turn::of_use(n), None, || false));
                let mut bytes = [0; 8];
                pair.target.read(4096, &mut bytes).unwrap();
                assert_eq!((line.read::<7>(), u64::from_ne_bytes(bytes)), ((n as u32, [n; 7]), n));
                word(&pair, 128).store(n + 1, Ordering::Release);
            }
        });
    });
}

#[test]
fn a_sleeping_reader_is_woken_and_an_early_deadline_ends_its_sleep() {
    over_all(|pair| {
        let (line, watch) = line_and_watch(&pair, LINE_BYTES);
        let soon = Instant::now() + Duration::from_millis(5);
        assert!(!pair.end.wait((line, watch), Turn::of_use(0), Some(soon), || false));
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| pair.end.wait((line, watch), Turn::of_use(0), None, || false));
            std::thread::sleep(Duration::from_millis(10));
            pair.end.put_imm(line_at(LINE_BYTES), Turn::of_use(0), 0, &[0; 7]).unwrap();
            assert!(sleeper.join().unwrap());
        });
    });
}

#[test]
fn the_bell_rings_for_lines_that_ask_for_it_and_for_no_others() {
    over_all(|pair| {
        let rung = || rustix::io::read(&pair.bell, &mut [0; 8]).is_ok();
        let (line, watch) = line_and_watch(&pair, 0);
        pair.end.put_imm(line_at(0), Turn::of_use(0), 0, &[0; 7]).unwrap();
        assert!(!rung());
        assert!(line.ask_bell(watch, Turn::of_use(1)));
        pair.end.put_imm(line_at(0), Turn::of_use(1), 0, &[0; 7]).unwrap();
        assert!(rung());
    });
}

#[test]
fn nothing_outside_of_a_region_is_touched_and_the_error_says_where() {
    over_all(|pair| {
        let outside = [
            at(LEN),
            at(LEN - 3),
            at(u64::MAX),
            Address { region: 2, offset: 0 },
            Address { region: 99, offset: 0 },
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
fn a_region_can_be_registered_while_the_connection_is_in_use() {
    over_all(|pair| {
        let more = Region::create("more", 8192).unwrap();
        pair.end.register(4, more.fd(), 8192).unwrap();
        pair.end.put(Address { region: 4, offset: 8191 }, &[9]).unwrap();
        assert!(pair.end.register(4, more.fd(), 8192).is_err(), "a number is given once");
        let wrong_size = pair.end.register(5, more.fd(), 4096);
        assert!(matches!(wrong_size, Err(FabricError::NotARegion { .. })));
    });
}

#[test]
fn memory_outlives_whoever_made_it_as_long_as_somebody_maps_it() {
    over_all(|pair| {
        let Pair { end, target, .. } = pair;
        end.put(at(0), b"kept").unwrap();
        let _ = target.fd().as_fd();
        drop(target);
        let mut bytes = [0; 4];
        end.get(at(0), &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept");
    });
}
