//! A hot call allocates nothing and makes no system call, in the client and in the worker: both are counted. Nor does a message
//! through a FIFO while both of its ends are awake.
//!
//! Each count is shown to count: what is done on purpose is seen. The tests take turns, because each keeps two cores
//! busy.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use rustix::process::Signal;
use sublet::{Allocation, Invoker, Policy};
use sublet_fabric::sync::lock;
use sublet_means::{Means, skip};
use sublet_tests::functions::{library, package};
use sublet_tests::global::{GlobalProcess, WRITE};
use sublet_tests::platform::{PlatformProcess, kill, programs};
use sublet_tests::process::{stay_on_lowest_core, wait_until};

/// Calls that are counted.
const CALLS: u32 = 10_000;
/// Calls that come first and touch everything once.
const WARM_UP: u32 = 1000;
/// How often messages are sent and counted: what else runs on the machine disturbs some.
const ATTEMPTS: u32 = 50;
/// System call that marks the counted calls, as in `observer.c` and `hot_client.rs`. The rest of it may be on another
/// line of the trace.
const MARKER: &str = "getpgid(5943783";
/// How a trace begins the second half of a call that it has shown the first half of.
const SECOND_HALF: &str = "<... ";

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    lock(&TURN)
}

/// Program that a sandbox executes in place of the worker program: it starts that program, from the package, with a
/// library before others.
const LAUNCHER: &str = r#"
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    setenv("LD_PRELOAD", "/package/libcounting.so", 1);
    return execv("/package/sublet-worker", words);
}
"#;

/// A platform whose workers count what they allocate, and the package that they need for that.
fn counting_platform(source: &'static str, folder: &Path) -> (PlatformProcess, String) {
    let own = folder.join("counted");
    fs::create_dir(&own).unwrap();
    fs::write(own.join("sublet.toml"), "name = 'counted'\nlibrary = 'libcounted.so'\n").unwrap();
    fs::copy(library(source), own.join("libcounted.so")).unwrap();
    fs::copy(library("counting.c"), own.join("libcounting.so")).unwrap();
    fs::copy(programs().join("sublet-worker"), own.join("sublet-worker")).unwrap();
    let (source, launcher) = (folder.join("launcher.c"), folder.join("launcher"));
    fs::write(&source, LAUNCHER).unwrap();
    assert!(Command::new("cc").arg("-o").args([&launcher, &source]).status().unwrap().success());
    let platform = PlatformProcess::start_with(|up| {
        up.env("SUBLET_WORKER", &launcher);
    });
    (platform, own.to_str().unwrap().to_owned())
}

/// A trace of all threads of a process, for as long as this lives.
struct Trace(Child);

impl Trace {
    fn of(process: u32, log: &Path) -> Trace {
        let pid = process.to_string();
        let strace = Command::new("strace").args(["-f", "-qq", "-p", &pid, "-o"]).arg(log).spawn().unwrap();
        let trace = Trace(strace);
        wait_until("all threads are traced", || {
            let mut tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
            tasks.all(|task| {
                let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
                status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
            })
        });
        trace
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // Killed, it would leave the process stopped.
        kill(self.0.id(), Signal::TERM);
        let _ = self.0.wait();
    }
}

fn hot_client(platform: &PlatformProcess, package: String) -> Invoker {
    stay_on_lowest_core();
    platform.client_with(&Allocation::new(package).policy(Policy::AlwaysHot).spin(Duration::MAX))
}

/// Calls of all kinds that a worker may get to execute: in place, copied, empty.
fn call_hot(client: &Invoker, calls: u32) {
    let mut own = client.buffer::<u32>(16).unwrap();
    let mut output = client.buffer::<u32>(16).unwrap();
    for number in 0..calls / 2 {
        own.set(0, number);
        client.submit("echo", &own, &mut output).unwrap().wait().unwrap();
        assert_eq!(output.get(0), number);
        client.submit("echo", &[!number], &mut output).unwrap().wait().unwrap();
        assert_eq!(output.get(0), !number);
    }
}

/// Two processes, and FIFOs between them: what they read from and write to.
struct Pair {
    ends: [GlobalProcess; 2],
    descriptors: [[u32; 2]; 2],
}

impl Pair {
    fn of(platform: &PlatformProcess, package: &str) -> Pair {
        let allocation = Allocation::new(package).policy(Policy::AlwaysWarm);
        let ends = [(); 2].map(|()| GlobalProcess(platform.client_with(&allocation)));
        let mut descriptors = [[0; 2]; 2];
        for (reader, writer, name) in [(0, 1, "forth"), (1, 0, "back")] {
            let (object, descriptor) = ends[reader].make(name).unwrap();
            ends[reader].words("allow", &[ends[writer].pid(), object, WRITE]).unwrap();
            descriptors[reader][0] = descriptor;
            descriptors[writer][1] = ends[writer].join(name).unwrap();
        }
        Pair { ends, descriptors }
    }

    /// Sends a message so often; gives what the two have allocated or freed.
    fn hop(&self, count: u32, deliberate: u32) -> [u64; 2] {
        let words = |of: usize, begins: u32| {
            let [from, to] = self.descriptors[of];
            [from, to, count, 40 + 60 * begins, begins, deliberate * begins]
        };
        let (inputs, mut outputs) = ([words(0, 1), words(1, 0)], [[0u64], [0u64]]);
        let [first, second] = &mut outputs;
        let other = self.ends[1].0.submit("hop", &inputs[1], second).unwrap();
        self.ends[0].0.submit("hop", &inputs[0], first).unwrap().wait().unwrap();
        other.wait().unwrap();
        [outputs[0][0], outputs[1][0]]
    }
}

/// Whether system calls can be traced here; says so if not.
fn can_trace() -> bool {
    let traced = Command::new("strace").args(["-f", "-o", "/dev/null", "true"]).output();
    let can = traced.is_ok_and(|output| output.status.success());
    if !can {
        skip(Means::Strace, "strace is not installed or may not trace");
    }
    can
}

/// The system calls between the last two markers, of the thread that made them.
fn calls_between_markers(log: &Path) -> Vec<String> {
    let text = fs::read_to_string(log).unwrap();
    let lines: Vec<_> = text.lines().filter_map(|line| line.trim_start().split_once(' ')).collect();
    let markers: Vec<_> = (0..lines.len()).filter(|&at| lines[at].1.contains(MARKER)).collect();
    let &[.., first, last] = markers.as_slice() else { panic!("{} markers in the trace", markers.len()) };
    assert_eq!(lines[first].0, lines[last].0, "two threads made the markers");
    let between = lines[first + 1..last].iter().filter(|(thread, _)| *thread == lines[first].0);
    let calls = between.map(|(_, call)| call.trim()).filter(|call| !call.starts_with(SECOND_HALF));
    calls.map(str::to_owned).collect()
}

/// How many lines of a trace hold the marker.
fn markers(log: &Path) -> usize {
    fs::read_to_string(log).unwrap_or_default().lines().filter(|line| line.contains(MARKER)).count()
}

#[test]
fn a_hot_call_allocates_nothing_in_the_worker() {
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    let (platform, package) = counting_platform("observer.c", folder.path());
    let client = hot_client(&platform, package);
    let mut output = client.buffer::<u64>(1).unwrap();
    let mut allocations = || {
        client.submit::<[u8], _>("allocations", &[], &mut output).unwrap().wait().unwrap();
        assert_ne!(output.get(0), u64::MAX, "nothing counts in this worker");
        output.get(0)
    };
    call_hot(&client, WARM_UP);
    allocations();
    let before = allocations();
    call_hot(&client, CALLS);
    assert_eq!(allocations() - before, 0, "allocated or freed in {CALLS} calls");
    client.submit::<[u8], [u8]>("allocate_once", &[], &mut []).unwrap().wait().unwrap();
    assert_eq!(allocations() - before, 2, "it counts what is allocated and freed on purpose");
}

#[test]
fn a_hot_call_makes_no_system_call_in_the_worker() {
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    if !can_trace() {
        return;
    }
    let log = folder.path().join("trace");
    let platform = PlatformProcess::start();
    let client = hot_client(&platform, package("observer.c"));
    let _trace = Trace::of(platform.worker(), &log);
    let call = |name: &str| {
        client.submit::<[u8], [u8]>(name, &[], &mut []).unwrap().wait().unwrap();
    };
    let wait_for_markers = |count| {
        wait_until("the trace is written", || markers(&log) == count);
    };
    call_hot(&client, WARM_UP);
    call("mark");
    call_hot(&client, CALLS);
    call("mark");
    wait_for_markers(2);
    assert_eq!(calls_between_markers(&log), [""; 0], "system calls of the worker in {CALLS} calls");
    call("enter_the_kernel");
    call("mark");
    wait_for_markers(3);
    assert_eq!(calls_between_markers(&log).len(), 1, "it sees a system call that is made on purpose");
}

#[test]
fn a_message_allocates_nothing() {
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    let (platform, package) = counting_platform("neighbours.c", folder.path());
    let pair = Pair::of(&platform, &package);
    // Who is not let run for long is not awake: it sleeps, and is woken.
    assert!(
        (0..ATTEMPTS).any(|_| pair.hop(WARM_UP, 0) == [0, 0]),
        "allocated or freed in each {WARM_UP} messages"
    );
}

#[test]
fn a_message_makes_no_system_call_between_awake_ends() {
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    if !can_trace() {
        return;
    }
    let log = folder.path().join("trace");
    let platform = PlatformProcess::start();
    let pair = Pair::of(&platform, &package("neighbours.c"));
    let traced = platform.workers()[0];
    let _trace = Trace::of(traced, &log);
    let mut marked = 0;
    let mut hop = |deliberate| {
        pair.hop(WARM_UP, deliberate);
        marked += 2;
        wait_until("the trace is written", || markers(&log) == marked);
        calls_between_markers(&log)
    };
    // As above; and the mark itself takes so long that the other may have gone to sleep.
    let few = WARM_UP as usize / 100;
    assert!(
        (0..ATTEMPTS).any(|_| hop(0).len() < few),
        "{few} system calls and more in each {WARM_UP} messages"
    );
    let seen = hop(3).iter().filter(|call| call.starts_with("getsid")).count();
    assert_eq!(seen, 3, "it sees system calls that are made on purpose");
}

/// A chain of two ways, each over both executors: the other one is for what might be executed at the same time.
fn forked_chain(package: &str) -> Vec<u8> {
    let component = |name: &str, more: &str| {
        format!(r#"{{"name":"{name}","type":"compute","package":"{package}","function":"{name}"{more}}}"#)
    };
    let components =
        [component("echo", r#","entry":true"#), component("a", ""), component("b", "")].join(",");
    let edge = |to: &str, when: &str| format!(r#"{{"type":"trigger","from":"echo","to":"{to}",{when}}}"#);
    let edges = [edge("a", r#""when":"cat""#), edge("b", r#""otherwise":true"#)].join(",");
    let graph = format!(r#"{{"version":1,"name":"g","components":[{components}],"edges":[{edges}]}}"#);
    [&[0; 4], graph.as_bytes()].concat()
}

/// A process that has such a chain: what `count` takes.
fn chain_of(platform: &PlatformProcess, package: &str, name: &str) -> (GlobalProcess, [u32; 2]) {
    let caller = GlobalProcess(platform.client_with(&Allocation::new(package)));
    let mut chain = None;
    wait_until("there is a core", || {
        chain = caller.call("join", &forked_chain(name)).ok();
        chain.is_some()
    });
    let number: [u8; 4] = chain.unwrap().try_into().unwrap();
    (caller, [u32::from_le_bytes(number), WARM_UP])
}

#[test]
fn a_call_of_a_chain_allocates_nothing_in_its_caller() {
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    let (platform, package) = counting_platform("dags.c", folder.path());
    let (caller, words) = chain_of(&platform, &package, "counted");
    let mut allocated = [u64::MAX];
    // Who has to sleep looks first whether the other is still there.
    let is_none = (0..ATTEMPTS).any(|_| {
        caller.0.submit("count", &words, &mut allocated).unwrap().wait().unwrap();
        assert_ne!(allocated[0], u64::MAX, "nothing counts in this worker");
        allocated[0] == 0
    });
    assert!(is_none, "allocated or freed in each {WARM_UP} calls, at last {}", allocated[0]);
}

#[test]
fn a_call_of_an_awake_chain_makes_no_system_call() {
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    if !can_trace() {
        return;
    }
    let log = folder.path().join("trace");
    let platform = PlatformProcess::start();
    let (caller, words) = chain_of(&platform, &package("dags.c"), "libdags");
    let traced = platform.workers()[0];
    let _trace = Trace::of(traced, &log);
    let (few, mut marked) = (WARM_UP as usize / 100, 0);
    let is_quiet = (0..ATTEMPTS).any(|_| {
        caller.0.submit("count", &words, &mut [0u64]).unwrap().wait().unwrap();
        marked += 2;
        wait_until("the trace is written", || markers(&log) == marked);
        calls_between_markers(&log).len() < few
    });
    assert!(is_quiet, "{few} system calls and more in each {WARM_UP} calls");
}

/// Runs the counting client under a command; gives what it counted.
fn run_hot_client(platform: &PlatformProcess, under: &[&str]) -> [u64; 2] {
    let command: Vec<String> = under
        .iter()
        .map(|&word| word.to_owned())
        .chain([
            env!("CARGO_BIN_EXE_hot-client").to_owned(),
            platform.address(),
            package("observer.c"),
            CALLS.to_string(),
        ])
        .collect();
    let output = Command::new(&command[0]).args(&command[1..]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    let counts: Vec<_> = said.split_whitespace().map(|count| count.parse().unwrap()).collect();
    counts.try_into().unwrap()
}

#[test]
fn a_hot_call_allocates_nothing_in_the_client() {
    let _turn = turn();
    let platform = PlatformProcess::start();
    let [hot, deliberate] = run_hot_client(&platform, &[]);
    assert_eq!(hot, 0, "allocated or freed in {CALLS} calls");
    assert_eq!(deliberate, 2, "it counts what is allocated and freed on purpose");
}

#[test]
fn a_hot_call_makes_no_system_call_in_the_client() {
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    if !can_trace() {
        return;
    }
    let log: PathBuf = folder.path().join("trace");
    let platform = PlatformProcess::start();
    run_hot_client(&platform, &["strace", "-f", "-qq", "-o", log.to_str().unwrap()]);
    // The markers are system calls themselves: that they are there shows that the trace sees them.
    assert_eq!(markers(&log), 2);
    assert_eq!(calls_between_markers(&log), [""; 0], "system calls of the client in {CALLS} calls");
}
