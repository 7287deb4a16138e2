//! Tests of the ofi provider only; tests/conformance has the tests of all providers.

#![allow(clippy::unwrap_used, unsafe_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sublet_fabric::exposed::{ExposedMemory, OWN, RemoteRegion};
use sublet_fabric::line::{Line, Turn, Watch};
use sublet_fabric::ofi::raw::PingPong;
use sublet_fabric::ofi::{OfiEndpoint, OfiNetwork};
use sublet_fabric::region::Region;
use sublet_fabric::window::{LineAddress, RegionAddress, Window};
use sublet_fabric::{FabricError, ofi};
use sublet_means::{Means, skip, spawn_until_asleep};

const OWN_BYTES: u64 = 1 << 16;
const SHARED: u32 = 1;
const SHARED_BYTES: u64 = 64 << 20;
const WATCH: u64 = OWN_BYTES - 4096;

/// One side: its memory and its endpoint.
struct Side {
    own: Region,
    exposed: Arc<ExposedMemory>,
    end: OfiEndpoint,
}

impl Side {
    fn new() -> Side {
        let own = Region::create("own", OWN_BYTES).unwrap();
        let window = Arc::new(Window::new(4, SHARED_BYTES).unwrap());
        let shared = Region::create("shared", SHARED_BYTES).unwrap();
        window.map(SHARED, shared.fd().as_fd(), SHARED_BYTES).unwrap();
        let exposed = Arc::new(ExposedMemory::new(&own, window, 4).unwrap());
        Side { own, end: OfiEndpoint::new(exposed.clone(), None), exposed }
    }

    fn line(&self, offset: u64) -> (&Line, &Watch) {
        (self.own.view(offset).unwrap(), self.own.view(WATCH).unwrap())
    }

    fn shared(&self, offset: u64, len: u64) -> NonNull<u8> {
        self.exposed.pointer(RegionAddress { region: SHARED, offset }, len).unwrap()
    }

    fn shared_bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let from = self.shared(offset, len as u64);
        let mut bytes = vec![0; len];
        // SAFETY: inside of the region.
        unsafe { std::ptr::copy(from.as_ptr(), bytes.as_mut_ptr(), len) };
        bytes
    }
}

/// The tested providers: two kinds of endpoints without hardware, or the provider that the environment names.
fn networks() -> Vec<OfiNetwork> {
    let named = std::env::var("SUBLET_CONFORMANCE_OFI").ok();
    let names: Vec<&str> = named.as_deref().map_or(vec!["tcp;ofi_rxm", "tcp"], |name| vec![name]);
    let toward = std::env::var("SUBLET_CONFORMANCE_OFI_TOWARD").unwrap_or("127.0.0.1".into());
    names.into_iter().map(|name| OfiNetwork::of(name).toward(toward.parse().unwrap())).collect()
}

fn over_all(test: impl Fn(Side, Side)) {
    if let Err(error) = ofi::providers() {
        skip(Means::Libfabric, error);
        return;
    }
    for network in networks() {
        eprintln!("over {}", network.provider);
        let (one, other) = connected(&network);
        test(one, other);
    }
}

fn connected(network: &OfiNetwork) -> (Side, Side) {
    let sides = (Side::new(), Side::new());
    connect(network, &sides.0, &sides.1);
    sides
}

fn connect(network: &OfiNetwork, one: &Side, other: &Side) {
    let contact = one.end.open(network).unwrap();
    let answer = other.end.accept(network, &contact).unwrap();
    served(other, || one.end.connect(&answer).unwrap());
    for region in [OWN, SHARED] {
        one.end.reach(region, other.end.expose(region).unwrap()).unwrap();
        other.end.reach(region, one.end.expose(region).unwrap()).unwrap();
    }
}

/// Makes progress at a side while `act` runs at the other.
fn served<T>(side: &Side, act: impl FnOnce() -> T) -> T {
    /// Ends the progress, even if `act` panics.
    struct DoneFlag<'a>(&'a AtomicBool);
    impl Drop for DoneFlag<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let never = Turn::of_use(u64::from(u32::MAX) - 1);
            while !done.load(Ordering::SeqCst) && side.end.down().is_none() {
                side.end.wait(side.line(1024), never, None, || done.load(Ordering::SeqCst));
            }
        });
        let _done = DoneFlag(&done);
        act()
    })
}

fn line_at(line: u64) -> LineAddress {
    LineAddress { region: OWN, line, watch: WATCH }
}

fn spin_until(side: &Side, line: (&Line, &Watch), turn: Turn) {
    while !side.end.spin(line, turn, 256) {
        assert_eq!(side.end.down(), None);
    }
}

#[test]
fn lines_go_both_ways_hot_with_earlier_puts() {
    over_all(|client, worker| {
        const CALLS: u64 = 1_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..CALLS {
                    spin_until(&worker, worker.line(0), Turn::of_use(n));
                    let put = worker.own.view::<AtomicU64>(8192).unwrap().load(Ordering::Relaxed);
                    assert_eq!((worker.line(0).0.read::<3>(), put), ((n as u32, [n, n + 1, 7]), n * 3));
                    worker.end.put_imm(line_at(64), Turn::of_use(n), 1, &[n]).unwrap();
                }
            });
            for n in 0..CALLS {
                let payload = (n * 3).to_ne_bytes();
                client.end.put(RegionAddress { region: OWN, offset: 8192 }, &payload).unwrap();
                client.end.put_imm(line_at(0), Turn::of_use(n), n as u32, &[n, n + 1, 7]).unwrap();
                spin_until(&client, client.line(64), Turn::of_use(n));
                assert_eq!(client.line(64).0.read::<1>().1, [n]);
            }
        });
    });
}

#[test]
fn many_lines_one_way_wait_for_free_slots() {
    over_all(|client, worker| {
        const LINES: u64 = 5_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..LINES {
                    client.end.put_imm(line_at((n % 8) * 64), Turn::of_use(n), n as u32, &[n]).unwrap();
                    // The writer reuses a line once the reader has counted it in a word of the reader's memory.
                    while n + 1 >= worker.own.view::<AtomicU64>(4096).unwrap().load(Ordering::Acquire) + 8 {
                        std::hint::spin_loop();
                    }
                }
            });
            for n in 0..LINES {
                let line = worker.line((n % 8) * 64);
                assert!(worker.end.wait(line, Turn::of_use(n), None, || false));
                assert_eq!(line.0.read::<1>(), (n as u32, [n]));
                worker.own.view::<AtomicU64>(4096).unwrap().store(n + 1, Ordering::Release);
            }
        });
    });
}

#[test]
fn pushes_of_any_size_are_there_when_the_line_is() {
    over_all(|client, worker| {
        for (n, len) in [0, 1, 63, 4096, 8000, 8192, 70_001, 1 << 20, (48 << 20) + 5].into_iter().enumerate()
        {
            let turn = Turn::of_use(n as u64);
            for (from, to) in [(&client, &worker), (&worker, &client)] {
                let fill: Vec<u8> = (0..len).map(|at| (at * 7 + len + n as u64) as u8).collect();
                // SAFETY: inside of the region.
                unsafe { std::ptr::copy(fill.as_ptr(), from.shared(3, len).as_ptr(), fill.len()) };
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let to = RegionAddress { region: SHARED, offset: 3 };
                        // SAFETY: readable, and no thread writes there until the line was taken.
                        unsafe { from.end.push(to, from.shared(3, len), len).unwrap() };
                        from.end.put_imm(line_at(0), turn, 0, &[len]).unwrap();
                    });
                    assert!(to.end.wait(to.line(0), turn, None, || false), "{:?}", to.end.down());
                });
                assert!(to.shared_bytes(3, fill.len()) == fill, "{len} bytes");
            }
        }
    });
}

#[test]
fn what_is_put_can_be_got_wherever_the_bytes_lie() {
    over_all(|client, worker| {
        served(&worker, || {
            for len in [0usize, 1, 100, 8191, 9000, 300_000, (3 << 20) + 1] {
                let bytes: Vec<u8> = (0..len).map(|at| (at * 13 + len) as u8).collect();
                let at = RegionAddress { region: SHARED, offset: 7 };
                client.end.put(at, &bytes).unwrap();
                let mut back = vec![0; len];
                client.end.get(at, &mut back).unwrap();
                assert!(back == bytes, "{len} bytes");
                assert!(worker.shared_bytes(7, len) == bytes, "{len} bytes");
            }
            let outside = client.end.put(RegionAddress { region: SHARED, offset: SHARED_BYTES - 3 }, &[0; 4]);
            assert!(matches!(outside, Err(FabricError::OutOfBounds { region: SHARED, .. })));
        });
    });
}

#[test]
fn atomics_lose_nothing_natively_and_by_message() {
    over_all(|client, worker| {
        for by_message in [false, true] {
            if by_message {
                client.end.without_native_atomics().unwrap();
            }
            let at = |offset| RegionAddress { region: SHARED, offset: offset + 1024 * u64::from(by_message) };
            served(&worker, || {
                assert_eq!(client.end.compare_swap(at(8), 0, 5).unwrap(), 0);
                assert_eq!(client.end.compare_swap(at(8), 0, 6).unwrap(), 5);
                assert_eq!(client.end.fetch_add(at(8), u64::MAX).unwrap(), 5);
                std::thread::scope(|scope| {
                    for _ in 0..3 {
                        scope.spawn(|| {
                            (0..300).for_each(|_| assert!(client.end.fetch_add(at(16), 1).unwrap() < 900))
                        });
                    }
                });
                assert_eq!(client.end.fetch_add(at(16), 0).unwrap(), 900);
                assert!(matches!(client.end.fetch_add(at(12), 1), Err(FabricError::Unaligned { .. })));
            });
        }
    });
}

#[test]
fn sleepers_wake_whoever_of_them_reads() {
    over_all(|client, worker| {
        for n in 0..50 {
            let turn = Turn::of_use(n);
            std::thread::scope(|scope| {
                let sleepers: Vec<_> = (0..3)
                    .map(|line| {
                        let worker = &worker;
                        scope.spawn(move || worker.end.wait(worker.line(line * 64), turn, None, || false))
                    })
                    .collect();
                for line in [1, 0, 2] {
                    client.end.put_imm(line_at(line * 64), turn, 0, &[n]).unwrap();
                }
                assert!(sleepers.into_iter().all(|sleeper| sleeper.join().unwrap()));
            });
        }
        let soon = Instant::now() + Duration::from_millis(5);
        assert!(!worker.end.wait(worker.line(0), Turn::of_use(99), Some(soon), || false));
    });
}

#[test]
fn a_wrong_key_ends_the_connection_and_says_so() {
    over_all(|client, worker| {
        let good = worker.end.expose(OWN).unwrap();
        let wrong = RemoteRegion { key: good.key ^ 1 << 20, ..good };
        client.end.reach(OWN, wrong).unwrap();
        client.end.put_imm(line_at(0), Turn::of_use(0), 0, &[0]).unwrap();
        assert!(!worker.end.wait(worker.line(0), Turn::of_use(0), None, || false));
        assert!(worker.end.down().unwrap().contains("key"), "{:?}", worker.end.down());
        assert!(!client.end.wait(client.line(0), Turn::of_use(0), None, || false));
        assert!(client.end.down().unwrap().contains("key"), "{:?}", client.end.down());
    });
}

#[test]
fn error_distinguishes_a_withdrawn_key_from_a_wrong_one() {
    over_all(|client, worker| {
        worker.end.withdraw(OWN);
        client.end.put_imm(line_at(0), Turn::of_use(0), 0, &[0]).unwrap();
        assert!(!worker.end.wait(worker.line(0), Turn::of_use(0), None, || false));
        assert!(worker.end.down().unwrap().contains("expired"), "{:?}", worker.end.down());
    });
}

#[test]
fn access_with_a_wrong_key_fails_and_changes_nothing() {
    over_all(|client, worker| {
        let good = worker.end.expose(SHARED).unwrap();
        let wrong = RemoteRegion { key: good.key ^ 1 << 20, ..good };
        client.end.reach(SHARED, wrong).unwrap();
        served(&worker, || {
            let got = client.end.get(RegionAddress { region: SHARED, offset: 0 }, &mut [0; 64]);
            assert!(matches!(got, Err(FabricError::Disconnected { .. })), "{got:?}");
        });
        assert!(worker.shared_bytes(0, 64).iter().all(|byte| *byte == 0));
    });
}

#[test]
fn leaving_end_gives_a_reason_and_can_be_replaced() {
    if let Err(error) = ofi::providers() {
        skip(Means::Libfabric, error);
        return;
    }
    for network in networks() {
        let (client, worker) = connected(&network);
        client.end.put_imm(line_at(0), Turn::of_use(0), 0, &[0]).unwrap();
        assert!(worker.end.wait(worker.line(0), Turn::of_use(0), None, || false));
        std::thread::scope(|scope| {
            let sleeper = spawn_until_asleep(scope, || {
                client.end.wait(client.line(0), Turn::of_use(5), None, || false)
            });
            worker.end.disconnect("the lease is over");
            assert!(!sleeper.join().unwrap());
        });
        let said = client.end.down().unwrap();
        assert!(said.contains("the lease is over") || said.contains("ended"), "{said}");
        let refused = client.end.put_imm(line_at(0), Turn::of_use(1), 0, &[0]);
        assert!(matches!(refused, Err(FabricError::Disconnected { .. })));

        let next = Side::new();
        connect(&network, &client, &next);
        client.end.put_imm(line_at(0), Turn::of_use(1), 4, &[2]).unwrap();
        assert!(next.end.wait(next.line(0), Turn::of_use(1), None, || false));
    }
}

/// The child of the next test: waits at an endpoint that its parent connects to, until it is killed.
#[test]
fn helper_that_waits_until_it_is_killed() {
    let Ok(told) = std::env::var("OFI_HELPER_WAITS") else { return };
    let (number, contact) = told.split_once('@').unwrap();
    let side = Side::new();
    let contact = side.end.accept(&networks()[number.parse::<usize>().unwrap()], &from_hex(contact)).unwrap();
    let RemoteRegion { key, base, len_bytes } = side.end.expose(OWN).unwrap();
    println!("\n{key} {base} {len_bytes} {}", to_hex(&contact));
    side.end.wait(side.line(0), Turn::of_use(9), None, || false);
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// Connects an end to a new process, which waits there.
fn connected_to_a_process(number: usize, network: &OfiNetwork, side: &Side) -> Child {
    let contact = side.end.open(network).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_that_waits_until_it_is_killed", "--nocapture"])
        .env("OFI_HELPER_WAITS", format!("{number}@{}", to_hex(&contact)))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let said = lines.map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    let words = said.into_iter().find(|words| words.len() == 4 && words[0].parse::<u64>().is_ok()).unwrap();
    let [key, base, len_bytes] = [0, 1, 2].map(|word: usize| words[word].parse().unwrap());
    side.end.connect(&from_hex(&words[3])).unwrap();
    side.end.reach(OWN, RemoteRegion { key, base, len_bytes }).unwrap();
    child
}

/// A network reports that a connected peer is gone. For endpoints that send to any other, the network may report
/// nothing, or try to reach the peer without end: then the caller must end the connection.
#[test]
fn waits_and_sends_to_a_killed_peer_end_at_disconnect() {
    if let Err(error) = ofi::providers() {
        skip(Means::Libfabric, error);
        return;
    }
    for (number, network) in networks().iter().enumerate() {
        let side = Side::new();
        for process in 0..2 {
            let mut child = connected_to_a_process(number, network, &side);
            side.end.put_imm(line_at(0), Turn::of_use(0), 0, &[0]).unwrap();
            let sent = AtomicU64::new(0);
            std::thread::scope(|scope| {
                let waiter = spawn_until_asleep(scope, || {
                    side.end.wait(side.line(0), Turn::of_use(7), None, || false)
                });
                let sender = scope.spawn(|| {
                    let send = |n| side.end.put_imm(line_at(64), Turn::of_use(n), 0, &[n]);
                    (0..).inspect(|&n| sent.store(n, Ordering::Relaxed)).find_map(|n| send(n).err()).unwrap()
                });
                while sent.load(Ordering::Relaxed) < 2 && !sender.is_finished() {
                    std::thread::yield_now();
                }
                child.kill().unwrap();
                child.wait().unwrap();
                if network.provider == "tcp" {
                    // A connected endpoint needs no report of the end.
                    assert!(!waiter.join().unwrap());
                } else {
                    side.end.disconnect("its agent says that it is dead");
                    assert!(!waiter.join().unwrap());
                }
                let error = sender.join().unwrap();
                assert!(matches!(error, FabricError::Disconnected { .. }), "{process}: {error}");
            });
            assert!(side.end.down().is_some());
        }
    }
}

/// Relays TCP connections to a port of this machine, and can stop in the middle of the target's data.
struct Relay {
    port: u16,
    /// Number of bytes of the target that are still relayed.
    left: Arc<AtomicU64>,
}

impl Relay {
    fn to(target: u16) -> Relay {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let relay = Relay { port: listener.local_addr().unwrap().port(), left: Arc::new(u64::MAX.into()) };
        let left = relay.left.clone();
        // The threads end with the connections, or with the test's process.
        std::thread::spawn(move || {
            for near in listener.incoming().map(Result::unwrap) {
                let far = TcpStream::connect(("127.0.0.1", target)).unwrap();
                let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let (left, all) = (left.clone(), Arc::new(u64::MAX.into()));
                std::thread::spawn(move || relay_bytes(near_too, far_too, &all));
                std::thread::spawn(move || relay_bytes(far, near, &left));
            }
        });
        relay
    }
}

fn relay_bytes(mut from: TcpStream, mut to: TcpStream, left: &AtomicU64) {
    let mut bytes = [0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        let relayed = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            Some(if left == u64::MAX { left } else { left.saturating_sub(read as u64) })
        });
        if to.write_all(&bytes[..relayed.unwrap().min(read as u64) as usize]).is_err() {
            break;
        }
    }
}

/// The machine of the peer may lose power: the message that it was sending stays half received.
#[test]
fn survives_a_peer_that_stops_within_a_message() {
    if let Err(error) = ofi::providers() {
        skip(Means::Libfabric, error);
        return;
    }
    let toward = "127.0.0.1".parse().unwrap();
    for provider in ["tcp;ofi_rxm", "tcp"] {
        let (client, worker) = (Side::new(), Side::new());
        let network = OfiNetwork::of(provider).toward(toward);
        let contact = client.end.open(&network).unwrap();
        let mut answer = worker.end.accept(&network, &contact).unwrap();
        // The contact contains the worker's address: a `struct sockaddr_in`.
        let address =
            answer.windows(8).position(|bytes| bytes[..2] == [2, 0] && bytes[4..] == [127, 0, 0, 1]);
        let port = address.unwrap() + 2..address.unwrap() + 4;
        let relay = Relay::to(u16::from_be_bytes(answer[port.clone()].try_into().unwrap()));
        answer[port].copy_from_slice(&relay.port.to_be_bytes());
        served(&worker, || client.end.connect(&answer).unwrap());
        worker.end.reach(OWN, client.end.expose(OWN).unwrap()).unwrap();
        worker.end.put_imm(line_at(0), Turn::of_use(0), 0, &[0]).unwrap();
        assert!(client.end.wait(client.line(0), Turn::of_use(0), None, || false));

        relay.left.store(1000, Ordering::SeqCst);
        worker.end.put(RegionAddress { region: OWN, offset: 8192 }, &[7; 4000]).unwrap();
        worker.end.put_imm(line_at(0), Turn::of_use(1), 0, &[1]).unwrap();
        let soon = Instant::now() + Duration::from_millis(100);
        assert!(!client.end.wait(client.line(0), Turn::of_use(1), Some(soon), || false));
        client.end.disconnect("the peer does not answer");
        assert!(client.end.down().is_some());
    }
}

#[test]
fn what_is_not_there_is_named() {
    if let Err(error) = ofi::providers() {
        skip(Means::Libfabric, error);
        return;
    }
    let side = Side::new();
    let said = side.end.open(&OfiNetwork::of("no-such-provider")).unwrap_err();
    assert!(matches!(&said, FabricError::Unsupported(text) if text.contains("no-such-provider")), "{said}");
    let other = OfiNetwork { interface: Some("no-such-interface".into()), ..OfiNetwork::of("tcp;ofi_rxm") };
    assert!(side.end.open(&other).unwrap_err().to_string().contains("no-such-interface"));
    let by_address = OfiNetwork { interface: Some("127.0.0.1".into()), ..OfiNetwork::of("tcp;ofi_rxm") };
    side.end.open(&by_address).unwrap();
    side.end.disconnect("it was opened for nothing");
    assert!(matches!(side.end.progress(), Err(FabricError::Disconnected { .. })));
}

/// Loads libfabric in a process without it, and reports which signals have handlers before and after.
#[test]
fn helper_that_loads_libfabric() {
    if std::env::var_os("OFI_HELPER_LOADS").is_none() {
        return;
    }
    let caught = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        status.lines().find(|line| line.starts_with("SigCgt")).unwrap().to_owned()
    };
    let before = caught();
    let _ = ofi::providers();
    assert_eq!(before, caught());
    println!("loaded");
}

#[test]
fn libraries_that_are_loaded_leave_the_programs_signal_handlers_alone() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_that_loads_libfabric", "--nocapture"])
        .env("OFI_HELPER_LOADS", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("loaded"), "{said}");
}

#[test]
fn plain_ping_pong_completes_or_reports_what_is_late() {
    if let Err(error) = ofi::providers() {
        skip(Means::Libfabric, error);
        return;
    }
    // The last of the large messages is more than a socket accepts: its sender continues until it has left.
    for (network, (rounds, answer_bytes)) in
        networks().iter().flat_map(|network| [(network, (100, 64)), (network, (2, 64 << 20))])
    {
        let (mut near, contact) = PingPong::open(network, answer_bytes).unwrap();
        let (mut far, contact) = PingPong::accept(network, answer_bytes, &contact).unwrap();
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| -> Result<(), FabricError> {
                far.meet()?;
                for _ in 0..rounds {
                    far.receive()?;
                    far.send(answer_bytes)?;
                }
                far.finish()
            });
            near.connect(&contact).unwrap();
            for _ in 0..rounds {
                near.send(64).unwrap();
                near.receive().unwrap();
            }
            answering.join().unwrap().unwrap();
        });
        let silent = near.patience(Duration::from_millis(200)).receive().unwrap_err().to_string();
        assert!(silent.contains("no message came for 200 ms"), "{silent}");
    }
}

#[test]
fn providers_are_listed_with_why_they_cannot_be_used() {
    match ofi::providers() {
        Err(error) => skip(Means::Libfabric, error),
        Ok(all) => {
            assert!(
                all.iter()
                    .any(|info| info.name == "verbs" && (info.usable.is_err() || !info.domain.is_empty()))
            );
            assert!(
                all.iter()
                    .any(|info| info.name == "tcp;ofi_rxm" && info.usable.is_ok() && !info.is_automatic())
            );
        }
    }
}
