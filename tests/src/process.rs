//! Processes as `/proc` shows them.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Uid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity, set_thread_res_uid};
pub use sublet_means::with_growing_time;

/// Time after which an event that has not happened never will, on a machine that is ten times slower than usual and
/// stands still for some seconds now and then. It only ends tests that hang.
pub const PATIENCE: Duration = Duration::from_millis(PATIENCE_MS as u64);
/// [`PATIENCE`] in milliseconds.
pub const PATIENCE_MS: u32 = 180_000;
/// A Unix user that is neither a test's own nor root.
pub const NOBODY: u32 = 65_534;
/// Another one.
pub const SOMEBODY: u32 = 54_321;
/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Waits until something is so, and says how long that took.
///
/// # Panics
/// If it does not become so.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "in {} s it did not happen that {what}", PATIENCE.as_secs());
        std::thread::sleep(LOOK_AGAIN);
    }
    since.elapsed()
}

/// Does something in a thread of another Unix user, which only root can.
///
/// # Panics
/// If this process is not root's, or `act` panics.
pub fn as_user<T: Send>(uid: u32, act: impl FnOnce() -> T + Send) -> T {
    let acting = || {
        let uid = Uid::from_raw(uid);
        set_thread_res_uid(uid, uid, uid).expect("root may become any user");
        act()
    };
    let acted = std::thread::scope(|scope| scope.spawn(acting).join());
    acted.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Whether no thread of a process runs any more, since a signal has stopped it.
pub fn is_stopped(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut states = threads.filter_map(|thread| Some(Stat::of(&thread.path())?.state));
    states.all(|state| state == 'T')
}

/// Whether a process is there and not just its remains.
pub fn is_alive(pid: u32) -> bool {
    Stat::of(Path::new(&format!("/proc/{pid}"))).is_some_and(|stat| stat.state != 'Z')
}

/// The worker processes that the agent in a process has started, by the process that makes its sandboxes, and that have
/// not ended.
pub fn workers(agent: u32) -> Vec<u32> {
    let below = |parents: Vec<u32>| parents.into_iter().flat_map(children).collect::<Vec<_>>();
    let inits = below(spawner(agent).into_iter().collect());
    below(inits).into_iter().filter(|&pid| is_called(pid, "sublet-worker")).collect()
}

/// Memory of a process that is really there, in KiB.
///
/// # Panics
/// If the process is not there.
#[track_caller]
pub fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).expect("a number of KiB")
}

/// The process that makes an agent's sandboxes.
pub fn spawner(agent: u32) -> Option<u32> {
    children(agent).into_iter().find(|&child| is_called(child, "sublet-spawner"))
}

fn is_called(pid: u32, name: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name)
}

/// The processes that a process has started and that have not ended.
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |&child: &u32| {
        let stat = Stat::of(Path::new(&format!("/proc/{child}")));
        stat.is_some_and(|stat| stat.parent == pid && stat.state != 'Z')
    };
    pids.filter(is_child).collect()
}

/// How many descriptors a process has open.
pub fn open_descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |entries| entries.count())
}

/// The states of a process's threads whose names begin with this: R runs, S sleeps.
pub fn thread_states(pid: u32, name: &str) -> Vec<char> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let states = tasks.flatten().filter_map(|task| {
        let comm = fs::read_to_string(task.path().join("comm")).ok()?;
        comm.starts_with(name).then(|| Stat::of(&task.path()).map(|stat| stat.state))?
    });
    states.collect()
}

/// Unit of [`cpu_ticks`]: the kernel shows this many ticks a second to programs of x86-64 and aarch64.
pub const TICKS_PER_SECOND: u64 = 100;

/// Processor time of a process, in user and kernel mode, in ticks.
///
/// # Panics
/// If it is not there.
pub fn cpu_ticks(pid: u32) -> u64 {
    let stat = Stat::of(Path::new(&format!("/proc/{pid}")));
    stat.unwrap_or_else(|| panic!("there is no process {pid}")).cpu_ticks
}

/// Waits until a process has used the processor for a fifth of a second: one that sleeps between calls executes.
///
/// # Panics
/// If it does not, or is not there.
#[track_caller]
pub fn wait_until_busy(pid: u32) {
    let before = cpu_ticks(pid);
    wait_until("the process uses the processor", || cpu_ticks(pid) >= before + TICKS_PER_SECOND / 5);
}

/// The inodes of the memory files that a process has mapped and whose names begin with this.
pub fn memory_files(pid: u32, name: &str) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let named = maps.lines().filter(|line| line.contains(&format!("/memfd:{name}")));
    let mut inodes: Vec<_> =
        named.filter_map(|line| line.split_whitespace().nth(4)).map(str::to_owned).collect();
    inodes.sort_unstable();
    inodes.dedup();
    inodes
}

/// The TCP ports at which a process listens.
pub fn listening_ports(pid: u32) -> Vec<u16> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let inodes: Vec<String> = links
        .filter_map(|link| {
            fs::read_link(link.path()).ok()?.to_str()?.strip_prefix("socket:[").map(str::to_owned)
        })
        .filter_map(|rest| rest.strip_suffix(']').map(str::to_owned))
        .collect();
    let tables = ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/{pid}/net/{table}")));
    let lines: Vec<String> = tables
        .into_iter()
        .flatten()
        .flat_map(|table| table.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let port = |line: &String| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let is_own = inodes.iter().any(|inode| fields.get(9) == Some(&inode.as_str()));
        let is_listening = fields.get(3) == Some(&"0A");
        let port = fields.get(1)?.rsplit(':').next()?;
        (is_own && is_listening).then(|| u16::from_str_radix(port, 16).ok()).flatten()
    };
    lines.iter().filter_map(port).collect()
}

/// Whether any process that may be looked at has a memory file mapped.
pub fn is_mapped_by_anybody(name: &str, inode: &str) -> bool {
    let Ok(entries) = fs::read_dir("/proc") else { return false };
    let mut pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.any(|pid| memory_files(pid, name).iter().any(|mapped| mapped == inode))
}

/// Keeps the calling thread on the lowest of its cores. Agents lend the highest first: while both ends of a hot call
/// poll, neither is to wait until the other's time on a shared core is over.
///
/// # Panics
/// If the kernel refuses.
pub fn stay_on_lowest_core() {
    let own = sched_getaffinity(None).expect("a thread may ask for its own cores");
    let mut lowest = CpuSet::new();
    (0..CpuSet::MAX_CPU).find(|&core| own.is_set(core)).into_iter().for_each(|core| lowest.set(core));
    sched_setaffinity(None, &lowest).expect("a thread may give up cores");
}

/// Used fields of a `stat` file.
struct Stat {
    state: char,
    parent: u32,
    cpu_ticks: u64,
}

impl Stat {
    fn of(folder: &Path) -> Option<Stat> {
        let text = fs::read_to_string(folder.join("stat")).ok()?;
        // The name may hold anything, also a parenthesis.
        let fields: Vec<_> = text.rsplit_once(") ")?.1.split(' ').collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let (user, system) = (number(11)?, number(12)?);
        let state = fields.first()?.chars().next()?;
        Some(Stat { state, parent: number(1)?.try_into().ok()?, cpu_ticks: user + system })
    }
}
