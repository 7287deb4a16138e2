//! Memory components: leased by the segment, on real processes.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sublet::{Code, FabricChoice, Invoker, Memory, MemoryPlan};
use sublet_proto::v1::Quota;
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, connect};
use sublet_tests::network::connections_to;
use sublet_tests::platform::{PlatformProcess, kill};
use sublet_tests::process::{PATIENCE, is_stopped, wait_until, with_growing_time};

const MIB: u64 = 1 << 20;
/// Tells the helper whose memory to hold.
const HOLDER: &str = "SUBLET_TEST_HOLDS_MEMORY_OF";

fn plan() -> MemoryPlan {
    MemoryPlan::new().initial_bytes(MIB).increment_bytes(2 * MIB).limit_bytes(64 * MIB)
}

/// Expected bytes of the memory: they depend on the offset, so that bytes of another place are noticed.
fn pattern(offset: u64, len: usize) -> Vec<u8> {
    (offset..).take(len).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

#[track_caller]
fn assert_holds(memory: &Memory, offset: u64, len: usize) {
    let mut bytes = vec![0; len];
    memory.read(offset, &mut bytes).unwrap();
    assert!(bytes == pattern(offset, len), "{len} bytes at {offset}");
}

fn leased_bytes(platform: &PlatformProcess) -> u64 {
    platform.json(&["ps"])["nodes"][0]["memory_leased_bytes"].as_u64().unwrap()
}

/// A way to memory: sharing it, or as it would be had from another machine, with or without a cache.
struct Way {
    fabric: FabricChoice,
    cache_bytes: u64,
    line_bytes: u64,
}

const TCP: FabricChoice = FabricChoice::Tcp { encrypted: false };
const TLS: FabricChoice = FabricChoice::Tcp { encrypted: true };
const WAYS: [Way; 6] = [
    Way { fabric: FabricChoice::Shm, cache_bytes: 0, line_bytes: 4096 },
    Way { fabric: TCP, cache_bytes: 0, line_bytes: 4096 },
    Way { fabric: TCP, cache_bytes: 64 * MIB, line_bytes: 4096 },
    // So small that nearly all is written back for something else; and lines that span segments.
    Way { fabric: TCP, cache_bytes: 8192, line_bytes: 64 },
    Way { fabric: TLS, cache_bytes: 0, line_bytes: 4096 },
    Way { fabric: TLS, cache_bytes: 128 * MIB, line_bytes: 1 << 20 },
];

impl Way {
    fn plan(&self) -> MemoryPlan {
        plan().fabric(self.fabric.clone()).cache_bytes(self.cache_bytes).line_bytes(self.line_bytes)
    }
}

fn open_platform() -> PlatformProcess {
    PlatformProcess::start_with(|command| {
        command.args(["--listen", "127.0.0.1:0"]);
    })
}

#[test]
fn memory_grows_while_it_is_written_and_is_given_back() {
    let platform = open_platform();
    for way in WAYS {
        grows_and_is_given_back(&platform, way);
    }
}

fn grows_and_is_given_back(platform: &PlatformProcess, way: Way) {
    let client = platform.invoker();
    let is_mapped = way.fabric == FabricChoice::Shm;
    let mut memory = client.memory(way.plan()).unwrap();
    assert_eq!((memory.capacity_bytes(), leased_bytes(platform)), (0, 0), "it begins with its first access");
    memory.write(0, &pattern(0, 100)).unwrap();
    assert_eq!((memory.len_bytes(), memory.capacity_bytes()), (100, MIB));
    // Over the ends of three segments at once, and at odd places.
    memory.write(100, &pattern(100, 6 * MIB as usize)).unwrap();
    assert_eq!(memory.capacity_bytes(), 7 * MIB);
    assert_holds(&memory, 0, 6 * MIB as usize + 100);
    for offset in [MIB - 3, 3 * MIB - 4097, 5 * MIB - 1] {
        assert_holds(&memory, offset, 8192);
    }
    match memory.mapped(MIB - 3, 8) {
        Ok(_) => assert!(is_mapped, "memory of another machine is mapped"),
        Err(error) => assert!(!is_mapped && error.code == Code::FabricUnavailable, "{error}"),
    }
    let segments = memory.segments();
    assert_eq!(segments.iter().map(|lease| lease.memory_bytes / MIB).collect::<Vec<_>>(), [1, 2, 2, 2]);
    wait_until("all of it is leased", || leased_bytes(platform) == 7 * MIB);
    // Freed memory is available to others, and new memory is 0.
    memory.resize(MIB + 10).unwrap();
    assert_eq!((memory.len_bytes(), memory.capacity_bytes()), (MIB + 10, 3 * MIB));
    wait_until("the rest is free", || leased_bytes(platform) == 3 * MIB);
    memory.resize(4 * MIB).unwrap();
    assert_holds(&memory, 0, MIB as usize + 10);
    let mut rest = vec![1; 3 * MIB as usize - 10];
    memory.read(MIB + 10, &mut rest).unwrap();
    assert!(rest.iter().all(|byte| *byte == 0));
    let ended = memory.release().unwrap();
    assert_eq!(ended.len(), 3);
    assert!(ended.iter().all(|lease| lease.usage.unwrap().allocated_ns > 0), "{ended:?}");
    assert_eq!(leased_bytes(platform), 0);
}

#[test]
fn memory_is_billed_by_bytes_and_seconds_only() {
    let platform = PlatformProcess::start();
    let memory = platform.invoker().memory(plan()).unwrap();
    memory.write(0, &[1]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let [lease] = <[_; 1]>::try_from(memory.release().unwrap()).unwrap();
    let usage = lease.usage.unwrap();
    assert!(
        usage.allocated_ns >= 100_000_000 && usage.executing_ns == 0 && usage.polling_ns == 0,
        "{usage:?}"
    );
    let bill = platform.json(&["bill", &lease.id]);
    let line = &bill["leases"][0];
    assert_eq!(line["usage"]["allocated_ns"].as_u64(), Some(usage.allocated_ns), "{bill}");
    let gib_ns = u128::from(usage.allocated_ns) * u128::from(MIB);
    println!("{gib_ns} byte-nanoseconds cost {}", line["cost"]);
    // A person sees it among the others.
    let text = platform.run(&["bill"]);
    assert!(String::from_utf8_lossy(&text.stdout).contains(&lease.id[..8]), "{text:?}");
}

#[test]
fn what_lies_beyond_the_end_or_the_limit_is_refused() {
    let platform = PlatformProcess::start();
    let client = platform.invoker();
    let memory = client.memory(plan()).unwrap();
    let mut byte = [0];
    assert_fails(memory.read(0, &mut byte), Code::InvalidArgument, &["1 bytes at 0", "0 bytes"]);
    memory.write(10, &[1]).unwrap();
    memory.read(10, &mut byte).unwrap();
    assert_eq!(byte, [1]);
    for offset in [11, MIB, 64 * MIB - 1] {
        assert_fails(
            memory.read(offset, &mut byte),
            Code::InvalidArgument,
            &[&offset.to_string(), "11 bytes"],
        );
        assert_fails(memory.mapped(offset, 1), Code::InvalidArgument, &[&offset.to_string()]);
    }
    for offset in [64 * MIB, u64::MAX] {
        assert_fails(memory.write(offset, &byte), Code::MemoryExceeded, &["67108864"]);
        assert_fails(memory.read(offset, &mut byte), Code::MemoryExceeded, &["67108864"]);
    }
    assert_eq!(memory.capacity_bytes(), MIB, "what is refused leases nothing");
    for plan in [plan().initial_bytes(0), plan().increment_bytes(0), plan().initial_bytes(1 << 41)] {
        assert_fails(client.memory(plan).map(drop), Code::InvalidArgument, &["4096"]);
    }
}

#[test]
fn impossible_memory_is_refused_and_used_memory_waited_for() {
    let platform = PlatformProcess::start_with(|command| {
        command.args(["--memory", "8MiB"]);
    });
    let client = platform.invoker();
    let large = client.memory(plan().initial_bytes(16 * MIB)).unwrap();
    assert_fails(large.write(0, &[1]), Code::InsufficientResources, &["16777216", "8388608"]);
    let first = client.memory(plan().initial_bytes(6 * MIB)).unwrap();
    first.write(0, &[1]).unwrap();
    let other = client.memory(plan().initial_bytes(4 * MIB)).unwrap();
    assert_fails(other.write(0, &[1]), Code::NoCapacity, &["4194304", "2097152"]);
    let patient = client.memory(plan().initial_bytes(4 * MIB).wait(Duration::from_millis(200))).unwrap();
    assert_fails(patient.write(0, &[1]), Code::NoCapacity, &["200 ms"]);
    let patient = client.memory(plan().initial_bytes(4 * MIB).wait(PATIENCE)).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| patient.write(0, &[2]));
        wait_until("the request waits", || client.manager().managers().unwrap()[0].waiting == 1);
        first.release().unwrap();
        waits.join().unwrap().unwrap();
    });
    assert_eq!(leased_bytes(&platform), 4 * MIB);
}

#[test]
fn small_scattered_accesses_equal_those_of_an_array() {
    let platform = open_platform();
    for way in WAYS {
        let memory = platform.invoker().memory(way.plan()).unwrap();
        let mut expected = vec![0; 4 * MIB as usize];
        memory.write(0, &expected).unwrap();
        let mut random = 88_172_645_463_325_252_u64;
        for round in 0..3000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let len = (random >> 32) as usize % 10_000;
            let offset = random as usize % (expected.len() - len);
            match random >> 60 {
                0..6 => {
                    let mut bytes = vec![0; len];
                    memory.read(offset as u64, &mut bytes).unwrap();
                    assert!(bytes == expected[offset..offset + len], "round {round}: {len} at {offset}");
                }
                6 => {
                    let bytes = memory.read_async(offset as u64, vec![0; len]).unwrap().wait().unwrap();
                    assert!(bytes == expected[offset..offset + len], "round {round}: {len} at {offset}");
                }
                7 => memory.prefetch(offset as u64, len as u64),
                8 if round % 10 == 0 => memory.sync().unwrap(),
                8 => {
                    expected[offset..offset + len].fill(round as u8);
                    memory.write_async(offset as u64, &expected[offset..offset + len]).unwrap();
                }
                _ => {
                    expected[offset..offset + len].copy_from_slice(&pattern(random, len));
                    memory.write(offset as u64, &expected[offset..offset + len]).unwrap();
                }
            }
        }
        let mut all = vec![1; expected.len()];
        memory.read(0, &mut all).unwrap();
        assert!(all == expected);
    }
}

#[test]
fn more_reads_than_fit_can_be_submitted_at_once() {
    let platform = open_platform();
    for way in WAYS {
        let memory = platform.invoker().memory(way.plan()).unwrap();
        memory.write_async(0, &pattern(0, 8 * MIB as usize)).unwrap();
        let stretches = |number: u64| (number * 80_000, 70_001);
        let asked: Vec<_> = (0..100)
            .map(stretches)
            .map(|(offset, len)| memory.read_async(offset, vec![0; len]).unwrap())
            .collect();
        // Others read meanwhile; and what takes long to be waited for costs no connection.
        assert_holds(&memory, 12_345, 100);
        for (number, reading) in (0..).zip(asked) {
            let (offset, len) = stretches(number);
            assert!(reading.wait().unwrap() == pattern(offset, len), "reading {number}");
        }
        // The test does not wait for these.
        drop(memory.read_async(0, vec![0; 1 << 20]).unwrap());
        let late = memory.read_async(0, vec![0; 1 << 20]).unwrap();
        drop(memory);
        let _ = late.wait();
    }
}

/// Stops the platform, which then answers nothing.
fn stop(platform: &PlatformProcess) {
    kill(platform.pid(), Signal::STOP);
    wait_until("it stands still", || is_stopped(platform.pid()));
}

#[test]
fn reads_of_a_killed_node_fail_without_hanging() {
    for way in WAYS.into_iter().filter(|way| way.fabric != FabricChoice::Shm) {
        let mut platform = open_platform();
        let memory = platform.invoker().memory(way.plan()).unwrap();
        memory.write(0, &pattern(0, 8 * MIB as usize)).unwrap();
        // Writes that have not arrived yet would be sent first, and wait for the node.
        memory.sync().unwrap();
        stop(&platform);
        let asked: Vec<_> =
            (0..8).map(|number| memory.read_async(number * MIB, vec![0; MIB as usize])).collect();
        memory.prefetch(0, MIB);
        kill(platform.pid(), Signal::KILL);
        platform.wait();
        for reading in asked {
            let error = reading.and_then(sublet::Reading::wait).unwrap_err();
            assert_eq!(error.code, Code::AgentUnreachable, "{error}");
        }
        assert_fails(memory.write(0, &[1; 100]).and_then(|()| memory.sync()), Code::AgentUnreachable, &[]);
    }
}

#[test]
fn a_component_closes_though_its_agent_is_stopped() {
    for way in WAYS.into_iter().filter(|way| way.fabric != FabricChoice::Shm) {
        let mut platform = open_platform();
        let memory = platform.invoker().memory(way.plan()).unwrap();
        memory.write(0, &pattern(0, 8 * MIB as usize)).unwrap();
        memory.sync().unwrap();
        stop(&platform);
        // The read comes first, because prefetches may take all places for reads that no caller waits for.
        let asked = memory.read_async(0, vec![0; MIB as usize]).unwrap();
        memory.prefetch(0, MIB);
        drop(memory);
        assert!(asked.wait().is_err());
        kill(platform.pid(), Signal::KILL);
        platform.wait();
    }
}

#[test]
fn a_cache_that_makes_no_sense_is_refused() {
    let platform = PlatformProcess::start();
    let client = platform.invoker();
    for (plan, said) in [
        (plan().line_bytes(100), "100 bytes"),
        (plan().line_bytes(32), "64 to 1048576"),
        (plan().line_bytes(2 * MIB), "64 to 1048576"),
        (plan().cache_bytes(4096), "524288"),
        (plan().cache_bytes(u64::MAX), "1099511627776"),
    ] {
        assert_fails(client.memory(plan).map(drop), Code::InvalidArgument, &[said]);
    }
}

#[test]
fn a_quota_of_memory_bounds_segments() {
    let cluster = Cluster::with_agents(1);
    let access = cluster.user("bounded");
    cluster.set_quota("bounded", Quota { memory_bytes: Some(2 * MIB), ..Quota::default() });
    let memory = connect(&access).memory(plan()).unwrap();
    memory.write(0, &[1]).unwrap();
    assert_fails(memory.write(MIB, &[1]), Code::QuotaExceeded, &["bounded", "2097152"]);
    let mut byte = [0];
    memory.read(0, &mut byte).unwrap();
    assert_eq!((byte, memory.capacity_bytes()), ([1], MIB), "what was there stays");
}

#[test]
fn every_access_reports_an_end_that_was_not_requested() {
    let platform = open_platform();
    let client = platform.invoker();
    let mut byte = [0];
    let expires = with_growing_time(Duration::from_millis(300), |time| {
        let expires = client.memory(plan().timeout(time)).unwrap();
        expires.write(0, &[1]).is_ok().then_some(expires)
    });
    let ended = client.memory(plan().fabric(TCP)).unwrap();
    ended.write(0, &[1]).unwrap();
    assert!(platform.run(&["lease", "end", &ended.segments()[0].id]).status.success());
    for (memory, code) in [(&expires, Code::LeaseExpired), (&ended, Code::LeaseEnded)] {
        wait_until("the end is known", || memory.write(0, &[2]).is_err_and(|error| error.code == code));
        assert_fails(memory.read(0, &mut byte), code, &[]);
        assert_fails(memory.write(MIB, &[1]), code, &[]);
        assert_fails(memory.renew(Duration::from_secs(60)), code, &[]);
    }
    assert_fails(ended.release().map(drop), Code::LeaseEnded, &[]);
    wait_until("nothing is leased", || leased_bytes(&platform) == 0);
}

#[test]
fn one_connection_carries_a_nodes_segments_which_end_separately() {
    const SMALL: u64 = 64 << 10;
    for fabric in [TCP, TLS] {
        let platform = open_platform();
        let client = platform.invoker();
        let agent = platform.agent_address();
        let before = connections_to(agent);
        let plan = || plan().fabric(fabric.clone()).cache_bytes(0);
        let (one, other) = with_growing_time(Duration::from_secs(2), |time| {
            let (one, other) = (client.memory(plan().timeout(time)).unwrap(), client.memory(plan()).unwrap());
            let is_written = one.write(0, &pattern(0, 2 * MIB as usize)).is_ok();
            other.write(0, &pattern(0, 6 * MIB as usize)).unwrap();
            let (segments, connections) =
                ((one.segments().len(), other.segments().len()), connections_to(agent) - before);
            if !is_written || one.read(0, &mut [0]).is_err() {
                drop((one, other));
                wait_until("the connection is closed", || connections_to(agent) == before);
                return None;
            }
            // Beside the one by which each lease is held.
            assert_eq!((segments, connections), ((2, 4), 6 + 1));
            Some((one, other))
        });
        wait_until("one has expired", || one.read(0, &mut [0]).is_err());
        assert_fails(one.read(0, &mut [0]), Code::LeaseExpired, &[]);
        assert_holds(&other, 0, 6 * MIB as usize);
        wait_until("the connection is the other's alone", || connections_to(agent) - before == 4 + 1);
        // A later component joins the connection as well, until the connection carries the most segments that it may.
        let many = client.memory(plan().initial_bytes(SMALL).increment_bytes(SMALL)).unwrap();
        many.write(0, &pattern(0, 130 * SMALL as usize)).unwrap();
        assert_holds(&many, 0, 130 * SMALL as usize);
        assert_eq!(connections_to(agent) - before, 4 + 130 + 2);
        drop((one, other, many));
        wait_until("the connection is closed", || connections_to(agent) == before);
    }
}

#[test]
fn reads_of_ending_memory_are_right_or_fail() {
    let platform = open_platform();
    let client = platform.invoker();
    for _ in 0..8 {
        for way in WAYS.iter().take(2) {
            let memory = with_growing_time(Duration::from_millis(80), |time| {
                let memory = client.memory(way.plan().timeout(time)).unwrap();
                let is_written = memory.write(0, &pattern(0, MIB as usize)).is_ok();
                (is_written && memory.read(0, &mut [0]).is_ok()).then_some(memory)
            });
            let mut bytes = [0; 64];
            let mut offset = 0;
            // Until it is over.
            while memory.read(offset, &mut bytes).is_ok() {
                assert!(bytes[..] == pattern(offset, 64), "64 bytes at {offset}");
                offset = (offset + 4096 + 64) % (MIB - 64);
            }
        }
    }
}

#[test]
fn renewed_memory_outlives_its_first_end() {
    let platform = open_platform();
    let all = WAYS.map(|way| {
        with_growing_time(Duration::from_secs(1), |time| {
            let memory = platform.invoker().memory(way.plan().timeout(time)).unwrap();
            memory.write(0, &pattern(0, 2 * MIB as usize)).ok()?;
            memory.renew(Duration::from_secs(600)).ok()?;
            Some((memory, Instant::now() + time))
        })
    });
    for (memory, first_end) in &all {
        wait_until("the first end is over", || Instant::now() > *first_end);
        assert_holds(memory, 0, 2 * MIB as usize);
    }
}

#[test]
fn a_memory_node_killed_during_writes_ends_its_components() {
    WAYS.into_iter().for_each(is_killed_in_mid_write);
}

fn is_killed_in_mid_write(way: Way) {
    let mut platform = open_platform();
    let memory = platform.invoker().memory(way.plan()).unwrap();
    memory.write(0, &pattern(0, MIB as usize)).unwrap();
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| {
            let bytes = pattern(0, 1 << 16);
            let round = || written.fetch_add(1, Ordering::Relaxed);
            std::iter::repeat_with(|| memory.write(round() % 16 * 4096, &bytes))
                .find_map(Result::err)
                .unwrap()
        });
        wait_until("it writes", || written.load(Ordering::Relaxed) > 10);
        kill(platform.pid(), Signal::KILL);
        let error = writes.join().unwrap();
        assert_eq!(error.code, Code::AgentUnreachable, "{error}");
    });
    platform.wait();
    for _ in 0..2 {
        assert_fails(memory.read(0, &mut [0]), Code::AgentUnreachable, &[]);
    }
}

/// Not a test of its own: run by the next one, in a process that is killed.
#[test]
fn helper_that_holds_memory_until_it_is_killed() {
    let Ok(managers) = std::env::var(HOLDER) else { return };
    let memory = Invoker::connect_to(&managers).unwrap().memory(plan()).unwrap();
    memory.write(0, &[1]).unwrap();
    loop {
        std::thread::park();
    }
}

#[test]
fn a_killed_or_gone_client_holds_no_memory() {
    let platform = PlatformProcess::start();
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["memory::helper_that_holds_memory_until_it_is_killed", "--exact"])
        .env(HOLDER, platform.address())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("it is leased", || leased_bytes(&platform) == MIB);
    holder.kill().unwrap();
    holder.wait().unwrap();
    wait_until("it is free", || leased_bytes(&platform) == 0);
    let memory = platform.invoker().memory(plan()).unwrap();
    memory.write(0, &[1]).unwrap();
    wait_until("it is leased", || leased_bytes(&platform) == MIB);
    drop(memory);
    wait_until("it is free", || leased_bytes(&platform) == 0);
}

#[test]
fn many_threads_read_and_write_while_it_grows() {
    let platform = open_platform();
    for way in WAYS {
        let memory = platform.invoker().memory(way.plan().increment_bytes(MIB)).unwrap();
        used_by_many_threads(&memory);
    }
}

fn used_by_many_threads(memory: &Memory) {
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            scope.spawn(move || {
                for round in 0..16 {
                    let offset = (round * 8 + thread) * 100_000;
                    memory.write(offset, &pattern(offset, 100_000)).unwrap();
                    assert_holds(memory, offset, 100_000);
                }
            });
        }
    });
    assert_holds(memory, 0, 128 * 100_000);
    assert_eq!(memory.capacity_bytes(), 13 * MIB);
}
