//! Processor time of hostile functions: many processes of one lease leave its neighbours on a shared core their share, and the bill
//! follows the kernel's count whatever the worker's own counters say.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sublet::{Allocation, Invoker, Policy};
use sublet_fabric::sync::lock;
use sublet_means::{Means, skip};
use sublet_proto::v1::Usage;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores};
use sublet_tests::functions::package;
use sublet_tests::platform::{PlatformProcess, kill, sublet};
use sublet_tests::process::{children, stay_on_lowest_core, wait_until};

/// Processes that a hostile function leaves behind.
const SPINNERS: u32 = 104;
/// How long throughput is measured.
const SPAN: Duration = Duration::from_millis(600);
/// How often.
const ROUNDS: usize = 3;
/// The fair share of one of two leases.
const FAIR: f64 = 0.5;
/// Only one of these tests keeps cores busy at a time.
static BUSY: Mutex<()> = Mutex::new(());
/// Part of its fair share of a core that a lease keeps beside a hostile one.
const KEPT: f64 = 0.8;
/// How much a bill may differ from the kernel's count.
const TOLERANCE: f64 = 0.01;

/// Whether control groups provide this here, as `sublet doctor` reports.
fn has_wall(name: &str) -> bool {
    let doctor = sublet().args(["doctor", "--json"]).output().unwrap();
    let doctor: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let walls = doctor["walls"].as_array().unwrap();
    let wall = walls.iter().find(|wall| wall["wall"] == name).unwrap_or_else(|| panic!("{name}: {doctor}"));
    wall["strength"] == "full"
}

/// Where the kernel counts the processor time of a worker's sandbox. Nothing where it does not: then the agent adds up what
/// processes have used, and only tells what it finds.
fn count_file(worker: u32) -> Option<PathBuf> {
    if !has_wall("cpuacct") {
        return None;
    }
    let groups = fs::read_to_string(format!("/proc/{worker}/cgroup")).unwrap();
    let path = |controller: &str| {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let folder = if controllers.is_empty() { "" } else { controllers };
            let is_it = controllers.split(',').any(|word| word == controller);
            is_it.then(|| Path::new("/sys/fs/cgroup").join(folder).join(path.trim_start_matches('/')))
        })
    };
    let of_version_1 = path("cpuacct").map(|folder| folder.join("cpuacct.usage"));
    Some(of_version_1.filter(|file| file.exists()).unwrap_or_else(|| path("").unwrap().join("cpu.stat")))
}

fn counted(file: &Path) -> Duration {
    let text = fs::read_to_string(file).unwrap();
    match text.lines().find_map(|line| line.strip_prefix("usage_usec ")) {
        Some(us) => Duration::from_micros(us.parse().unwrap()),
        None => Duration::from_nanos(text.trim().parse().unwrap()),
    }
}

fn cores() -> Allocation {
    Allocation::new(package("cores.c")).policy(Policy::AlwaysWarm)
}

fn answer(client: &Invoker, function: &str, input: &[u32]) -> u32 {
    let mut output = [0u32];
    let done = client.submit(function, input, &mut output).unwrap().wait().unwrap();
    assert_eq!(done.output_bytes, 4);
    output[0]
}

fn work(client: &Invoker, rounds: u32) {
    client.submit("work", &[rounds], &mut [0u8; 0]).unwrap().wait().unwrap();
}

/// Calls in a span of time, and some before.
fn throughput(client: &Invoker, rounds: u32) -> f64 {
    (0..5).for_each(|_| work(client, rounds));
    let (begun, mut calls) = (Instant::now(), 0u32);
    while begun.elapsed() < SPAN {
        work(client, rounds);
        calls += 1;
    }
    f64::from(calls) / begun.elapsed().as_secs_f64()
}

/// Rounds of `work` that take about a millisecond.
fn rounds(client: &Invoker) -> u32 {
    let rounds = 1_000_000;
    let quickest = (0..10).map(|_| {
        let begun = Instant::now();
        work(client, rounds);
        begun.elapsed()
    });
    let quickest = quickest.min().unwrap().as_secs_f64();
    (f64::from(rounds) * 0.001 / quickest) as u32
}

/// Gives the lease back. Its bill is at least the kernel's count that was read before, where there is one, and at most
/// that count and the time until the lease's end.
#[track_caller]
fn assert_billed_by_the_kernels_count(client: &mut Invoker, file: Option<&Path>) -> Usage {
    let (usage, [counted, since]) = assert_billed_at_least_the_kernels_count(client, file);
    let billed = billed(&usage).as_secs_f64();
    if file.is_some() {
        assert!(billed <= (counted + since) * (1.0 + TOLERANCE), "{billed} s for {counted} s: {usage:?}");
    }
    usage
}

/// Gives the lease back. Its bill is at least the kernel's count that was read before, where there is one. Returns the
/// count as well, and the time from then to the lease's end, in seconds.
#[track_caller]
fn assert_billed_at_least_the_kernels_count(client: &mut Invoker, file: Option<&Path>) -> (Usage, [f64; 2]) {
    let (read, counted) = (Instant::now(), file.map_or(Duration::ZERO, counted).as_secs_f64());
    let usage = client.deallocate().unwrap();
    let (since, billed) = (read.elapsed().as_secs_f64(), billed(&usage).as_secs_f64());
    println!("billed {billed:.4} s, counted {counted:.4} s and at most {since:.4} s more");
    assert!(billed >= counted * (1.0 - TOLERANCE), "{billed} s of {counted} s: {usage:?}");
    (usage, [counted, since])
}

fn billed(usage: &Usage) -> Duration {
    Duration::from_nanos(usage.executing_ns + usage.polling_ns)
}

#[test]
fn spinning_processes_leave_a_neighbour_its_share_of_a_core() {
    let _alone = lock(&BUSY);
    if !has_wall("cpu") {
        skip(Means::Controller("cpu"), "without a cpu controller leases have no shares of a shared core");
        return;
    }
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent(LentCores::shared(1, 2));
    stay_on_lowest_core();
    let shared = cores().shared();
    let mut neighbour = cluster.invoker();
    neighbour.allocate(&shared).unwrap();
    let rounds = rounds(&neighbour);
    // Other programs of the machine come and go: the two are measured in turn, and the median of their ratios counts.
    let mut ratios: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let alone = throughput(&neighbour, rounds);
            let mut hostile = cluster.invoker();
            hostile.allocate(&shared).unwrap();
            assert_eq!(answer(&hostile, "leave_spinning", &[SPINNERS, 600_000]), SPINNERS);
            let beside = throughput(&neighbour, rounds);
            // Its processes end with its lease.
            hostile.deallocate().unwrap();
            println!("calls a second: {alone:.0} alone, {beside:.0} beside {SPINNERS} spinners");
            beside / alone
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios[ROUNDS / 2];
    assert!(ratio >= KEPT * FAIR, "{ratio:.2} of its throughput, {FAIR} are fair");
}

#[test]
fn falsified_counters_do_not_lower_the_bill() {
    let _alone = lock(&BUSY);
    let platform = PlatformProcess::start();
    let mut client = platform.client_with(&cores());
    let file = count_file(platform.worker());
    assert!(answer(&client, "forge_counters", &[]) > 0, "it has found its counters");
    let rounds = rounds(&client);
    (0..100).for_each(|_| work(&client, 20 * rounds));
    // A cleared start of a call may count as its whole time: a bill of up to the time of the lease.
    let (usage, _) = assert_billed_at_least_the_kernels_count(&mut client, file.as_deref());
    assert!(billed(&usage) <= Duration::from_nanos(usage.allocated_ns), "{usage:?}");
    assert!(usage.executing_ns >= 500_000_000, "its calls took about 2 s: {usage:?}");
    let lease = platform.json(&["bill"])["leases"][0].clone();
    assert_eq!(lease["usage"]["executing_ns"].as_u64(), Some(usage.executing_ns), "{lease}");
    let by_function = platform.json(&["bill", "--by", "function"]);
    let by_function = by_function["total"]["total_nano"].as_u64();
    assert_eq!(by_function, platform.json(&["bill"])["total"]["total_nano"].as_u64());
}

#[test]
fn processes_that_go_on_between_calls_are_billed() {
    let _alone = lock(&BUSY);
    let platform = PlatformProcess::start();
    let mut client = platform.client_with(&cores());
    let worker = platform.worker();
    let file = count_file(worker);
    assert_eq!(answer(&client, "leave_spinning", &[4, 400]), 4);
    wait_until("they have ended", || children(worker).is_empty());
    let usage = assert_billed_by_the_kernels_count(&mut client, file.as_deref());
    assert!(usage.executing_ns >= 500_000_000, "the call itself has hardly taken time: {usage:?}");
    assert_eq!((usage.calls, usage.failed_calls), (1, 0));
}

#[test]
fn usage_of_a_dead_worker_stays_on_the_bill() {
    let _alone = lock(&BUSY);
    if !has_wall("cpuacct") {
        skip(Means::Controller("cpuacct"), "the kernel does not count the processor time of sandboxes");
        return;
    }
    let platform = PlatformProcess::start();
    let mut client = platform.client_with(&cores());
    let worker = platform.worker();
    let file = count_file(worker).unwrap();
    assert_eq!(answer(&client, "leave_spinning", &[1, 600_000]), 1);
    wait_until("it uses processor time", || counted(&file) >= Duration::from_millis(500));
    let before = counted(&file);
    kill(worker, Signal::KILL);
    wait_until("its sandbox is gone", || !file.exists());
    let usage = client.deallocate().unwrap();
    let billed = Duration::from_nanos(usage.executing_ns + usage.polling_ns);
    assert!(billed.as_secs_f64() >= before.as_secs_f64() * (1.0 - TOLERANCE), "{billed:?} of {before:?}");
}
