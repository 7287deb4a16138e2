//! Processes that are killed at random while clients lease and call: workers, the processes that make sandboxes, agents, managers and
//! clients. Nothing that was acknowledged is lost, nothing hangs, and nothing is left.
//!
//! `SUBLET_TEST_KILLS` says how many there are (200), and `SUBLET_TEST_SEED` repeats the choices of a run.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use sublet::{Access, Allocation, Code, Error, Invoker, Usage};
use sublet_proto::v1::{BillLine, BillRequest, LeaseState};
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, TENANT};
use sublet_tests::functions::package;
use sublet_tests::numbers::from_environment;
use sublet_tests::platform::sublet;
use sublet_tests::process::{children, is_alive, open_descriptors, spawner, wait_until};

const KILLS: u64 = 200;
/// Kills between two looks at whether clients are still served.
const ROUND: u64 = 20;
const CLIENTS: usize = 3;
const AGENTS: usize = 2;
/// Calls on each lease.
const CALLS: u64 = 3;
/// How long a request waits for capacity.
const WAIT: Duration = Duration::from_secs(2);
/// How long the call of a client that is killed takes.
const CALL_MS: u32 = 5_000;
/// Longest pause between two kills, in milliseconds.
const PAUSE_MS: u64 = 60;
/// Descriptors that a process may have more than before its kills: connections that come and go.
const MORE_DESCRIPTORS: usize = 16;

/// Numbers that a seed repeats.
struct Chance(u64);

impl Chance {
    fn new() -> Chance {
        let clock = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let seed = from_environment("SUBLET_TEST_SEED").unwrap_or_else(clock);
        println!("SUBLET_TEST_SEED={seed}");
        Chance(seed | 1)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Leases that were given back, with what their agents said of them.
#[derive(Default)]
struct ServedLeases {
    leases: Mutex<BTreeMap<String, Usage>>,
    count: AtomicU64,
    stop: AtomicBool,
}

/// Whether a request may fail so while processes are killed.
fn may_happen(code: Code) -> bool {
    !matches!(
        code,
        Code::Internal
            | Code::InvalidArgument
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::Protocol
            | Code::StoreDamaged
            | Code::DeadlineExceeded
    )
}

impl ServedLeases {
    /// Leases, calls and gives back until `stop` is set.
    fn work(&self, access: &Access) {
        while !self.stop.load(Ordering::Relaxed) {
            let worked = Invoker::connect_with(access.clone()).and_then(|mut client| {
                loop {
                    let (lease, usage) = serve(&mut client)?;
                    self.leases.lock().unwrap().insert(lease, usage);
                    self.count.fetch_add(1, Ordering::Relaxed);
                    if self.stop.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                }
            });
            if let Err(error) = worked {
                assert!(may_happen(error.code), "{}: {error}", error.code);
            }
        }
    }
}

fn serve(client: &mut Invoker) -> Result<(String, Usage), Error> {
    client.allocate(&Allocation::new(package("calls.c")).wait(WAIT))?;
    let lease = client.leases().remove(0).id;
    for _ in 0..CALLS {
        let mut output = [0u8; 5];
        client.submit("echo", b"hello", &mut output)?.wait()?;
        assert_eq!(&output, b"hello");
    }
    client.deallocate().map(|usage| (lease, usage))
}

/// A client in a process of its own, whose one call takes long.
fn client_process(access: &BTreeMap<&str, String>, input: &Path) -> Child {
    let mut command: Command = sublet();
    command.envs(access).args(["call", "libcalls/busy", "--wait", "2s", "--output", "/dev/null", "--input"]);
    command.arg(input).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Kills one process, and starts agents and managers again. Says what it was.
fn strike(cluster: &mut Cluster, client: &mut Child, chance: &mut Chance) -> &'static str {
    let agent = chance.below(AGENTS as u64) as usize;
    match chance.below(10) {
        0..3 => {
            let workers = cluster.agents[agent].workers();
            if let Some(&worker) = workers.get(chance.below(workers.len().max(1) as u64) as usize) {
                kill_if_there(worker);
            }
            "worker"
        }
        3 => {
            spawner(cluster.agents[agent].pid()).into_iter().for_each(kill_if_there);
            "spawner"
        }
        4..6 => {
            cluster.agents[agent].kill();
            std::thread::sleep(Duration::from_millis(chance.below(PAUSE_MS)));
            cluster.agents[agent].restart();
            "agent"
        }
        6..8 => {
            let manager = chance.below(cluster.managers.len() as u64) as usize;
            cluster.managers[manager].kill();
            std::thread::sleep(Duration::from_millis(chance.below(PAUSE_MS)));
            cluster.managers[manager].restart();
            "manager"
        }
        _ => {
            let _ = client.kill();
            client.wait().unwrap();
            "client"
        }
    }
}

/// Kills a process, unless it has ended by itself.
fn kill_if_there(pid: u32) {
    if is_alive(pid) {
        let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
    }
}

/// Checks that each lease that was given back is billed with the usage that its agent reported.
fn assert_billed(cluster: &Cluster, served: &BTreeMap<String, Usage>) {
    for manager in &cluster.managers {
        let operator = manager.operator();
        for (lease, said) in served {
            // A bill of one lease has one line. The lines of all leases would not fit into one bill.
            let bill =
                || operator.manager().bill(BillRequest { lease: lease.clone(), ..BillRequest::default() });
            let mut line = BillLine::default();
            wait_until("the end is known", || {
                line = bill().unwrap().lines.remove(0);
                line.state() == LeaseState::Ended
            });
            assert_eq!(line.usage.as_ref(), Some(said), "lease {lease}");
        }
    }
}

#[test]
fn random_kills_lose_nothing_and_leave_nothing() {
    let kills = from_environment("SUBLET_TEST_KILLS").unwrap_or(KILLS);
    let mut chance = Chance::new();
    let mut cluster = Cluster::start(ClusterPlan::of_managers(2));
    for _ in 0..AGENTS {
        cluster.add_agent(LentCores::cores(2));
    }
    cluster.publish(package("calls.c"));
    let (access, served) = (cluster.user(TENANT), ServedLeases::default());
    let token = cluster.user_token(TENANT).secret;
    let of_process = BTreeMap::from([
        ("SUBLET_MANAGER", cluster.addresses()),
        ("SUBLET_CA", cluster.ca_file().display().to_string()),
        ("SUBLET_TOKEN", token),
    ]);
    let input = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(input.path(), CALL_MS.to_le_bytes()).unwrap();
    let mut struck = BTreeMap::<&str, u64>::new();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| served.work(&access))).collect();
        let mut client = client_process(&of_process, input.path());
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for number in 1..=kills {
                std::thread::sleep(Duration::from_millis(chance.below(PAUSE_MS)));
                let what = strike(&mut cluster, &mut client, &mut chance);
                *struck.entry(what).or_default() += 1;
                if client.try_wait().unwrap().is_some() {
                    client = client_process(&of_process, input.path());
                }
                if number % ROUND == 0 {
                    let before = served.count.load(Ordering::Relaxed);
                    wait_until("clients are served", || {
                        assert!(!clients.iter().any(|client| client.is_finished()), "a client has given up");
                        served.count.load(Ordering::Relaxed) > before
                    });
                }
            }
        }));
        served.stop.store(true, Ordering::Relaxed);
        let _ = client.kill();
        client.wait().unwrap();
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
    let leases = served.leases.into_inner().unwrap();
    println!("{struck:?}; {} leases served", leases.len());
    cluster.wait_until_idle();
    wait_until("no worker is left", || cluster.agents.iter().all(|agent| agent.workers().is_empty()));
    cluster.assert_serves();
    assert_billed(&cluster, &leases);
    // The resources that a process holds after its last start, and after the leases of others, do not grow with them.
    for agent in &cluster.agents {
        let before = open_descriptors(agent.pid());
        cluster.assert_serves();
        wait_until("descriptors are closed", || open_descriptors(agent.pid()) <= before + MORE_DESCRIPTORS);
        assert!(children(agent.pid()).len() <= 2, "{:?}", children(agent.pid()));
    }
}
