//! Helps the tests of processes on standby: waits, and the processes that wait.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, test_kill_process};
use sublet_means::{Means, skip};
use sublet_proto::v1::StandbyProcesses;
use sublet_sandbox::ProgramEnd;

use crate::support::{MIB, SandboxFixture, StartedSandbox, is_bounded};

/// Longest wait for a process on standby.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// Pause between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Memory for all processes on standby.
pub const STANDBY_BYTES: u64 = 512 * MIB;
/// First lines of each program.
pub const SAY: &str =
    "import os, sys\ndef say(*words): os.write(0, (' '.join(map(str, words)) + '\\n').encode())\n";

/// First lines of a module that notes what it can do while it is imported. A list `tries` of results of `attempt` follows.
pub const NOTES: &str = "\
import os, socket, threading
def attempt(call):
    try: call()
    except OSError as error: return type(error).__name__
    return 'BREACH'
lines = open('/proc/self/status').read().splitlines()
status = dict(line.split(':', 1) for line in lines if ':' in line)
walls = [status[name].split()[0] for name in ('Uid', 'CapPrm', 'CapEff', 'CapBnd', 'NoNewPrivs', 'Seccomp')]
links = [os.readlink('/proc/self/fd/' + fd) for fd in os.listdir('/proc/self/fd') if os.path.islink('/proc/self/fd/' + fd)]
sockets = len({link for link in links if link.startswith('socket:')})
number = os.urandom(8).hex()
threading.Thread(target=threading.Event().wait, daemon=True).start()
";
/// Program that says whether its process had imported the module `beta`, and the number of that import.
pub const TELL: &str = "ready = 'beta' in sys.modules\nimport beta\nsay(ready, beta.number)\n";

/// Processes on standby of a tenant, after a look.
#[track_caller]
pub fn kept(fixture: &SandboxFixture, tenant: &str) -> Vec<StandbyProcesses> {
    let kept = fixture.sandboxes.keep_standby(own_cores(), STANDBY_BYTES).unwrap();
    kept.into_iter().filter(|kept| kept.tenant == tenant).collect()
}

/// Waits for the end of a program that succeeds. Returns its output, and whether its process was on standby.
#[track_caller]
pub fn finish(fixture: &SandboxFixture, mut program: StartedSandbox) -> (String, bool) {
    let said = program.read_all();
    assert_eq!(fixture.wait(&program.made).exit, Some(ProgramEnd::Status(0)), "{said}");
    (said, program.made.is_standby)
}

/// The one process on standby, which is found by a program that runs.
#[track_caller]
pub fn only_process_on_standby(witness: &StartedSandbox) -> Pid {
    let waiting = processes_on_standby(witness);
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    waiting[0]
}

/// Waits until a process has ended.
#[track_caller]
pub fn await_end(process: Pid) {
    wait_for("the process ends", || test_kill_process(process).is_err().then_some(()));
}

/// Looks until there is something.
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "in {} s it did not happen that {what}", PATIENCE.as_secs());
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// The cores on which this test may run.
pub fn own_cores() -> Vec<u32> {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    let cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core));
    cores.map(|core| u32::try_from(core).unwrap()).collect()
}

/// Whether processes on standby can be limited here.
pub fn can_stand_by() -> bool {
    let missing = ["memory", "cpuset"].into_iter().find(|controller| !is_bounded(controller));
    if let Some(controller) = missing {
        skip(Means::Controller(controller), "without control groups no process is put on standby");
    }
    missing.is_none()
}

/// The program's processes of sandboxes without a program: children of the spawner's children that wait in namespaces of
/// their own, and are on standby as they have more than one thread.
pub fn processes_on_standby(witness: &StartedSandbox) -> Vec<Pid> {
    let word = |pid: u32, name: &str| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    let program = witness.made.state.pid.unwrap();
    let spawner = word(word(program, "PPid:").unwrap(), "PPid:").unwrap();
    let numbers =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let waits = |pid: &u32| {
        let grandparent = word(*pid, "PPid:").and_then(|parent| word(parent, "PPid:"));
        *pid != program && grandparent == Some(spawner) && word(*pid, "Threads:").is_some_and(|n| n > 1)
    };
    numbers.filter(waits).filter_map(|pid: u32| Pid::from_raw(pid.cast_signed())).collect()
}
