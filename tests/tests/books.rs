//! The books balance: workers, agents and the manager are killed at random while clients call functions whose times are
//! known; then the bill is compared with what was really used. It is exact where nothing of the lease's node was
//! killed, and has all that was in the journal of the lease's agent where that was killed.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sublet::{Access, Allocation, Code, Invoker, Usage};
use sublet_fabric::sync::lock;
use sublet_proto::v1::{BillLine, BillRequest, LeaseState};
use sublet_tests::cluster::{AgentProcess, Cluster, connect};
use sublet_tests::functions::package;
use sublet_tests::process::wait_until;
use sublet_tests::rounds::wait_for_journal;

/// How long everything is killed.
const CHAOS: Duration = Duration::from_secs(20);
/// Between two kills.
const PEACE: Duration = Duration::from_millis(1_200);
const NODES: usize = 3;
const CLIENTS: usize = 3;
/// Number of calls after which a client gives a lease back.
const CALLS: u32 = 12;
/// Most time by which a call of `busy` may be shorter than requested.
const ROUNDING: Duration = Duration::from_millis(1);

/// Numbers that look random, and are the same for a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// How a client's lease ended.
#[derive(Debug, PartialEq)]
enum End {
    /// Given back: its agent has said what it used.
    GivenBack(Usage),
    /// The lease's agent was killed.
    Lost,
}

/// Observations of a client about a lease that it had.
#[derive(Debug)]
struct Truth {
    lease: String,
    tenant: String,
    /// Least time that the answered calls took.
    answered: Duration,
    calls: u64,
    held: Duration,
    end: End,
}

/// A lease as far as its client has used it.
struct UsedLease {
    node: String,
    taken: Instant,
    /// Least time that the calls answered so far took.
    answered: Duration,
}

/// State that the clients share with the thread that kills.
#[derive(Default)]
struct UseCounts {
    stop: AtomicBool,
    leases: Mutex<HashMap<String, UsedLease>>,
}

/// The content of the journals of killed agents.
#[derive(Default)]
struct Journals {
    /// Time of the last restart of each agent.
    restarted: HashMap<String, Instant>,
    /// Least time of each lease's calls that its agent's journal had.
    answered: HashMap<String, Duration>,
}

impl Journals {
    /// Kills an agent and starts it again: every other time, when its journal has all calls that were answered.
    fn kill(
        &mut self,
        agent: &mut AgentProcess,
        chance: &mut Chance,
        leases: &Mutex<HashMap<String, UsedLease>>,
    ) {
        if chance.below(2) == 0 {
            let restarted = self.restarted.get(&agent.name);
            // Leases from before its last restart were lost then, with calls that were in no journal.
            let is_running = |lease: &UsedLease| {
                lease.node == agent.name && restarted.is_none_or(|&restarted| lease.taken > restarted)
            };
            let answered: Vec<_> = lock(leases)
                .iter()
                .filter(|(_, lease)| is_running(lease))
                .map(|(name, lease)| (name.clone(), lease.answered))
                .collect();
            wait_for_journal(agent);
            self.answered.extend(answered);
        }
        agent.kill();
        std::thread::sleep(Duration::from_millis(chance.below(800) as u64));
        self.restarted.insert(agent.name.clone(), Instant::now());
        agent.restart();
    }
}

/// Leases and calls until `stop` is set.
fn work(access: &Access, tenant: &str, seed: u64, shared: &UseCounts) -> Vec<Truth> {
    let (mut chance, mut client, mut truths) = (Chance(seed), connect(access), Vec::new());
    let allocation = Allocation::new(package("calls.c")).wait(Duration::from_secs(2));
    while !shared.stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        match client.allocate(&allocation) {
            Ok(()) => {
                let truth = use_up(&mut client, &mut chance, &shared.leases);
                truths.push(Truth { tenant: tenant.to_owned(), held: asked.elapsed(), ..truth });
            }
            Err(error) => {
                let passes = [
                    Code::ManagerUnreachable,
                    Code::AgentUnreachable,
                    Code::NoCapacity,
                    Code::InsufficientResources,
                    Code::TicketSuperseded,
                    Code::WorkerDied,
                ];
                assert!(passes.contains(&error.code), "{}: {error}", error.code);
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
    truths
}

/// Calls functions on a lease and gives it back.
fn use_up(client: &mut Invoker, chance: &mut Chance, leases: &Mutex<HashMap<String, UsedLease>>) -> Truth {
    let taken = client.lease().unwrap();
    let (lease, mut answered, mut calls) = (taken.id, Duration::ZERO, 0);
    let used = UsedLease { node: taken.node, taken: Instant::now(), answered };
    lock(leases).insert(lease.clone(), used);
    for _ in 0..CALLS {
        let ms = 20 + chance.below(180) as u32;
        let done = client.submit("busy", &[ms], &mut [0u8; 0]).and_then(sublet::Invocation::wait);
        match done {
            Ok(_) => {
                answered += Duration::from_millis(ms.into()) - ROUNDING;
                calls += 1;
                if let Some(used) = lock(leases).get_mut(&lease) {
                    used.answered = answered;
                }
            }
            // A killed worker is replaced by the next call; a killed agent ends the lease.
            Err(error) if error.code == Code::WorkerDied => {}
            Err(error) if error.code == Code::AgentUnreachable => break,
            Err(error) => panic!("{}: {error}", error.code),
        }
    }
    let end = match client.deallocate() {
        Ok(usage) => End::GivenBack(usage),
        Err(error) if error.code == Code::AgentUnreachable => End::Lost,
        Err(error) => panic!("{}: {error}", error.code),
    };
    Truth { lease, tenant: String::new(), answered, calls, held: Duration::ZERO, end }
}

/// Kills a process at random, and starts it again if no other program does.
fn kill_something(
    cluster: &mut Cluster,
    chance: &mut Chance,
    leases: &Mutex<HashMap<String, UsedLease>>,
    journals: &mut Journals,
) -> &'static str {
    match chance.below(5) {
        0 => {
            cluster.managers[0].kill();
            std::thread::sleep(Duration::from_millis(chance.below(800) as u64));
            cluster.managers[0].restart();
            "the manager"
        }
        1 | 2 => {
            journals.kill(&mut cluster.agents[chance.below(NODES)], chance, leases);
            "an agent"
        }
        _ => {
            let workers = cluster.agents[chance.below(NODES)].workers();
            for worker in workers {
                // It may have ended by itself meanwhile.
                let _ = kill_process(Pid::from_raw(worker as i32).unwrap(), Signal::KILL);
            }
            "a worker"
        }
    }
}

/// The bill of all leases, by their names, when all of them have ended.
fn final_bill(cluster: &Cluster) -> HashMap<String, BillLine> {
    let operator = cluster.operator();
    let bill = || operator.manager().bill(BillRequest::default()).unwrap().lines;
    wait_until("all leases have ended", || bill().iter().all(|line| line.state() == LeaseState::Ended));
    bill().into_iter().map(|line| (line.lease.clone(), line)).collect()
}

fn assert_charged_right(truth: &Truth, line: Option<&BillLine>, journals: &Journals) -> Duration {
    let usage = line.map(|line| line.usage.unwrap()).unwrap_or_default();
    let (executing, allocated) =
        (Duration::from_nanos(usage.executing_ns), Duration::from_nanos(usage.allocated_ns));
    match truth.end {
        End::GivenBack(said) => {
            let line = line.unwrap_or_else(|| panic!("{truth:?} is on no bill"));
            assert_eq!((usage, line.tenant.as_str()), (said, truth.tenant.as_str()), "{truth:?}");
            assert!(usage.calls >= truth.calls && executing >= truth.answered, "{usage:?}, {truth:?}");
        }
        End::Lost => {
            let journaled = journals.answered.get(&truth.lease).copied().unwrap_or_default();
            assert!(executing >= journaled, "{journaled:?} in the journal, {usage:?}, {truth:?}");
        }
    }
    assert!(executing <= allocated && allocated <= truth.held, "{usage:?}, {truth:?}");
    truth.answered.saturating_sub(executing)
}

fn sum(lines: &Value, field: &str) -> u64 {
    lines.as_array().unwrap().iter().map(|line| line[field].as_u64().unwrap()).sum()
}

/// Checks that the lines of every kind of bill add up to the same total, in each of its parts.
fn assert_bills_agree(cluster: &Cluster) {
    let all = cluster.json(&["bill"]);
    assert!(all["total"]["total_nano"].as_u64() > Some(0), "{}", all["total"]);
    for (by, name) in
        [("lease", "leases"), ("tenant", "tenants"), ("function", "functions"), ("period", "periods")]
    {
        let bill =
            cluster.json(&["bill", "--by", by, "--period", "1m"][..if by == "period" { 5 } else { 3 }]);
        assert_eq!(bill["total"], all["total"], "by {by}");
        for field in ["allocation_nano", "compute_nano", "polling_nano", "total_nano"] {
            assert_eq!(sum(&bill[name], field), all["total"][field].as_u64().unwrap(), "{field} by {by}");
        }
    }
}

#[test]
fn the_bill_is_what_was_used_whatever_was_killed_meanwhile() {
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    println!("seed {seed}");
    let mut cluster = Cluster::with_agents(NODES);
    let users: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let tenant = format!("tenant-{number}");
            (cluster.user(&tenant), tenant)
        })
        .collect();
    let (shared, mut chance, mut journals) = (UseCounts::default(), Chance(seed), Journals::default());
    let truths: Vec<Truth> = std::thread::scope(|scope| {
        let clients: Vec<_> = users
            .iter()
            .zip(seed..)
            .map(|((access, tenant), seed)| {
                let shared = &shared;
                scope.spawn(move || work(access, tenant, seed, shared))
            })
            .collect();
        let begun = Instant::now();
        while begun.elapsed() < CHAOS {
            std::thread::sleep(PEACE);
            let killed = kill_something(&mut cluster, &mut chance, &shared.leases, &mut journals);
            println!("{:?}: {killed} was killed", begun.elapsed());
        }
        shared.stop.store(true, Ordering::Relaxed);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    cluster.wait_until_idle();
    let bill = final_bill(&cluster);
    let mut lacking = Duration::ZERO;
    for truth in &truths {
        lacking += assert_charged_right(truth, bill.get(&truth.lease), &journals);
    }
    let lost = truths.iter().filter(|truth| truth.end == End::Lost).count();
    println!("{} leases, {lost} of them with their agents: {lacking:?} not billed", truths.len());
    // A lease that no client had is billed without calls.
    let known = |lease: &&String| truths.iter().any(|truth| truth.lease == **lease);
    let strange: Vec<_> = bill.keys().filter(|lease| !known(lease)).collect();
    for lease in strange {
        let usage = bill[lease].usage.unwrap();
        assert_eq!(usage.calls, 0, "{lease}: {usage:?}");
    }
    assert_bills_agree(&cluster);
    cluster.assert_serves();
}
