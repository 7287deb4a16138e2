//! Wall clocks that jump by an hour, on a manager or an agent, forward and backward, while leases run and across
//! restarts: no lease ends early or late, no ticket is refused, no lease is charged for an hour that did not pass.
//!
//! libfaketime is loaded into the program whose clock jumps; the monotonic clock stays as it is, as it does when an
//! operator or a time server sets a clock.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use sublet::{Allocation, Code, Invoker};
use sublet_means::{Means, skip};
use sublet_proto::v1::{LeaseState, NodeState};
use sublet_tests::cluster::{Cluster, TENANT, connect};
use sublet_tests::functions::package;
use sublet_tests::platform::assert_echoes;
use sublet_tests::process::{PATIENCE, wait_until};
use sublet_tests::rounds::{wait_for_journal, wait_for_reports};

const HOUR: i64 = 3600;
/// More time than any of these tests takes, and less than the clock jumps.
const HALF_HOUR_NS: u64 = 30 * 60 * 1_000_000_000;

/// A wall clock that can be moved.
struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// One that goes right. `None`, said on standard output, without the library.
    fn new(folder: &Path, name: &str) -> Option<Clock> {
        let folders = fs::read_dir("/usr/lib").unwrap().flatten().map(|entry| entry.path());
        let places = folders.chain([PathBuf::from("/usr/lib"), PathBuf::from("/usr/local/lib")]);
        let mut libraries = places.map(|place| place.join("faketime/libfaketime.so.1"));
        let Some(library) = libraries.find(|library| library.is_file()) else {
            skip(Means::Faketime, "libfaketime is not installed (Debian: libfaketime)");
            return None;
        };
        let clock = Clock { library, file: folder.join(name) };
        clock.jump(0);
        Some(clock)
    }

    /// Sets the clock's error, in seconds.
    fn jump(&self, seconds: i64) {
        // In one step: the program may look at any time.
        let new = self.file.with_extension("new");
        fs::write(&new, format!("{seconds:+}\n")).unwrap();
        fs::rename(&new, &self.file).unwrap();
    }

    /// A program that goes by this clock.
    fn give(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("DONT_FAKE_MONOTONIC", "1");
    }
}

fn allocation() -> Allocation {
    Allocation::new(package("calls.c")).wait(PATIENCE)
}

fn client(cluster: &Cluster, timeout: Duration) -> Invoker {
    let mut client = connect(&cluster.user(TENANT));
    client.allocate(&allocation().timeout(timeout)).unwrap();
    client
}

/// A lease of 3 s ends when its time is over, and not before, whatever the clock does meanwhile.
fn assert_ends_in_time(cluster: &Cluster, meanwhile: impl FnOnce()) {
    let since = Instant::now();
    let client = client(cluster, Duration::from_secs(3));
    let lease = client.lease().unwrap().id;
    meanwhile();
    let mut error = None;
    wait_until("the lease ends", || {
        error = client.submit("echo", b"hello", &mut [0u8; 5]).and_then(sublet::Invocation::wait).err();
        error.is_some()
    });
    let (error, held) = (error.unwrap(), since.elapsed());
    assert_eq!(error.code, Code::LeaseExpired, "{error}");
    // Rounded to the clock's milliseconds.
    assert!(held >= Duration::from_millis(2_990), "it ended {held:?} after it was asked for");
    let usage = cluster.final_bill(&lease).usage.unwrap();
    assert!(Duration::from_nanos(usage.allocated_ns) <= since.elapsed(), "{usage:?}");
}

/// Everything works: leases in flight, new ones, renewals, ends, bills.
fn assert_unimpressed(cluster: &Cluster, holder: &Invoker) {
    assert_echoes(holder);
    cluster.assert_serves();
    holder.renew(Duration::from_secs(600)).unwrap();
    let lease = holder.lease().unwrap().id;
    let held = cluster.lease(&lease).unwrap();
    assert_eq!(held.state(), LeaseState::Attached);
    assert!(cluster.billed(&lease).usage.unwrap().allocated_ns < HALF_HOUR_NS);
    assert_eq!(cluster.node(&held.node).unwrap().state(), NodeState::Lending);
}

/// While a lease runs, and while leases end, the clock jumps in both directions.
#[track_caller]
fn assert_jumps_change_nothing(cluster: &Cluster, clock: &Clock) {
    let mut holder = client(cluster, Duration::from_secs(600));
    for seconds in [HOUR, 0, -HOUR] {
        clock.jump(seconds);
        for agent in &cluster.agents {
            wait_for_reports(&cluster.managers[0], &agent.name, 2);
        }
        assert_unimpressed(cluster, &holder);
    }
    assert_ends_in_time(cluster, || clock.jump(HOUR));
    assert_ends_in_time(cluster, || clock.jump(-HOUR));
    let usage = holder.deallocate().unwrap();
    assert!(usage.allocated_ns < HALF_HOUR_NS, "{usage:?}");
}

#[test]
fn a_managers_clock_that_jumps_by_an_hour_changes_nothing() {
    let mut cluster = Cluster::with_agents(2);
    let Some(clock) = Clock::new(cluster.folder(), "clock") else { return };
    cluster.managers[0].restart_with(|command| clock.give(command));
    wait_until("the agents are back", || {
        cluster.agents.iter().all(|agent| cluster.managers[0].hears_of(&agent.name))
    });
    assert_jumps_change_nothing(&cluster, &clock);
}

#[test]
fn an_agents_clock_that_jumps_by_an_hour_changes_nothing() {
    let mut cluster = Cluster::with_agents(2);
    let Some(clock) = Clock::new(cluster.folder(), "clock") else { return };
    for agent in &mut cluster.agents {
        agent.restart_with(|command| clock.give(command));
    }
    assert_jumps_change_nothing(&cluster, &clock);
}

#[test]
fn a_restarted_manager_with_another_clock_keeps_leases() {
    let mut cluster = Cluster::with_agents(1);
    let Some(clock) = Clock::new(cluster.folder(), "clock") else { return };
    let mut holder = client(&cluster, Duration::from_secs(600));
    let lease = holder.lease().unwrap().id;
    for seconds in [HOUR, -HOUR, 0] {
        clock.jump(seconds);
        cluster.managers[0].kill();
        cluster.managers[0].restart_with(|command| clock.give(command));
        wait_until("the agent is back", || cluster.managers[0].hears_of("node-0"));
        assert_echoes(&holder);
        wait_until("the lease is known", || {
            cluster.lease(&lease).is_some_and(|lease| lease.state() == LeaseState::Attached)
        });
        holder.renew(Duration::from_secs(600)).unwrap();
        assert!(cluster.billed(&lease).usage.unwrap().allocated_ns < HALF_HOUR_NS);
    }
    let usage = holder.deallocate().unwrap();
    assert_eq!(cluster.final_bill(&lease).usage.unwrap(), usage);
    assert!(usage.allocated_ns < HALF_HOUR_NS, "{usage:?}");
    cluster.assert_serves();
}

#[test]
fn a_restarted_agent_with_another_clock_reports_usage() {
    let mut cluster = Cluster::with_agents(1);
    let Some(clock) = Clock::new(cluster.folder(), "clock") else { return };
    for seconds in [HOUR, -HOUR] {
        let mut client = client(&cluster, Duration::from_secs(600));
        let lease = client.lease().unwrap().id;
        client.submit("busy", &[1_000u32], &mut [0u8; 0]).unwrap().wait().unwrap();
        wait_for_journal(&cluster.agents[0]);
        clock.jump(seconds);
        cluster.agents[0].kill();
        cluster.agents[0].restart_with(|command| clock.give(command));
        let usage = cluster.final_bill(&lease).usage.unwrap();
        assert!((1_000_000_000..HALF_HOUR_NS).contains(&usage.allocated_ns), "{usage:?}");
        assert!(client.deallocate().is_err());
        cluster.assert_serves();
    }
}
