//! Version 2: one hierarchy, in which a process can be made in its group, and a group of processes dies as one.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, getpid, getppid};

use super::claim::{SpawnerGroup, remove_left};
use super::files::{core_list, counter, number};
use super::share;
use crate::SandboxLimits;
use crate::groups::{GroupLocation, own_place};

const CPUSET: &str = "cpuset";
const CPU: &str = "cpu";
/// The first two have to be there.
const CONTROLLERS: [&str; 4] = ["memory", "pids", CPUSET, CPU];
const NEEDED: usize = 2;
/// Group to which the agent and its spawner move so that their own group can have groups with controllers.
const LEAF: &str = "agent";

pub(super) struct V2 {
    claim: SpawnerGroup,
    controllers: Vec<&'static str>,
}

#[derive(Debug)]
pub(in crate::spawner) struct GroupV2 {
    path: PathBuf,
    folder: File,
    controllers: Vec<&'static str>,
}

impl V2 {
    /// Nothing if memory and processes cannot be limited.
    pub(super) fn open() -> Option<V2> {
        let GroupLocation { mount, folder: own } = own_place("cgroup2", "")?;
        // The first choice is this process's own group, if it has only groups. The second is the group's parent, as
        // where a service has a group of its own in one that was delegated to it. The last is the root of the
        // hierarchy, with the right to that.
        move_into_leaf(&own);
        let beside = own.parent().filter(|_| own != mount).map(Path::to_owned);
        [Some(own), beside, Some(mount)].iter().flatten().find_map(|parent| V2::open_in(parent))
    }

    fn open_in(parent: &Path) -> Option<V2> {
        remove_left(parent);
        let claim = SpawnerGroup::take(parent)?;
        let v2 = V2 { controllers: enable(parent, &claim.folder), claim };
        if v2.controllers.contains(&CPU) {
            // All sandboxes together keep the share of one process for each core, as against the machine's other
            // programs.
            let weight = share::weight(share::machine_cores()).to_string();
            let _ = fs::write(v2.claim.folder.join("cpu.weight"), weight);
        }
        CONTROLLERS[..NEEDED].iter().all(|needed| v2.controllers.contains(needed)).then_some(v2)
    }

    pub(super) fn controllers(&self) -> Vec<&'static str> {
        self.controllers.clone()
    }

    pub(super) fn make(&self, name: &str) -> io::Result<GroupV2> {
        let path = self.claim.folder.join(name);
        fs::create_dir(&path)?;
        let folder = File::open(&path)?;
        Ok(GroupV2 { path, folder, controllers: self.controllers.clone() })
    }
}

/// A group that has processes can share out no controllers to groups in it. If the agent and its spawner are all that is in
/// theirs, as where a service manager has handed them one, they go into one below.
fn move_into_leaf(own: &Path) {
    let text = |file: &str| fs::read_to_string(own.join(file)).unwrap_or_default();
    let controllers = text("cgroup.controllers");
    let has = |needed: &&str| controllers.split_whitespace().any(|controller| controller == *needed);
    let ours =
        [Some(getpid()), getppid()].map(|pid| pid.map_or(0, |pid| pid.as_raw_nonzero().get()).to_string());
    let processes = text("cgroup.procs");
    let are_ours = processes.lines().all(|process| ours.iter().any(|own| own == process));
    let leaf = own.join(LEAF);
    if CONTROLLERS[..NEEDED].iter().all(has) && are_ours && fs::create_dir(&leaf).is_ok() {
        // If a process stays in the group, it stays without controllers for its groups, as before.
        processes.lines().for_each(|process| drop(fs::write(leaf.join("cgroup.procs"), process)));
    }
}

impl GroupV2 {
    pub(super) fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// Takes a process that was not made in it.
    pub(super) fn adopt(&self, process: Pid) -> io::Result<()> {
        self.write("cgroup.procs", &process.as_raw_nonzero().to_string())
    }

    pub(super) fn limit(&self, limits: &SandboxLimits) -> io::Result<()> {
        if let Some(bytes) = limits.memory_bytes {
            self.write("memory.max", &bytes.to_string())?;
            self.write("memory.oom.group", "1")?;
            // The file is missing without swap.
            let _ = self.write("memory.swap.max", "0");
        }
        if let Some(count) = limits.processes {
            self.write("pids.max", &count.to_string())?;
        }
        let has_cpuset = self.controllers.contains(&CPUSET);
        if has_cpuset && !limits.cores.is_empty() {
            self.write("cpuset.cpus", &core_list(&limits.distinct_cores()))?;
        }
        if !self.controllers.contains(&CPU) {
            return Ok(());
        }
        self.write("cpu.weight", &share::weight(limits.workers()).to_string())?;
        match share::quota_us(limits, has_cpuset) {
            Some(quota_us) => self.write("cpu.max", &format!("{quota_us} {}", share::PERIOD_US)),
            None => Ok(()),
        }
    }

    pub(super) fn out_of_memory_kills(&self) -> u64 {
        counter(&self.path.join("memory.events"), "oom_kill ")
    }

    pub(super) fn limits_memory_and_cores(&self) -> bool {
        // Without memory there is no group of this version.
        self.controllers.contains(&CPUSET)
    }

    pub(super) fn memory_bytes(&self) -> Option<u64> {
        let counted = |word: &str| counter(&self.path.join("memory.stat"), word);
        let files = counted("file ").saturating_sub(counted("shmem "));
        Some(number(&self.path.join("memory.current"))?.saturating_sub(files))
    }

    pub(super) fn processor_us(&self) -> u64 {
        // Every group of this version has the file.
        counter(&self.path.join("cpu.stat"), "usage_usec ")
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.path.join(file), text)
    }
}

impl Drop for GroupV2 {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// Has the controllers in a group, and in those in it; says which are.
fn enable(parent: &Path, folder: &Path) -> Vec<&'static str> {
    let turn_on = |controllers: &[&'static str]| {
        let words: Vec<_> = controllers.iter().map(|controller| format!("+{controller}")).collect();
        let all = words.join(" ");
        [parent, folder].iter().all(|group| fs::write(group.join("cgroup.subtree_control"), &all).is_ok())
    };
    // The needed controllers are enabled all at once, or none: a group with processes would accept some of them, and
    // then never the others.
    let (needed, more) = CONTROLLERS.split_at(NEEDED);
    if !turn_on(needed) {
        return Vec::new();
    }
    let more = more.iter().filter(|controller| turn_on(&[controller]));
    needed.iter().chain(more).copied().collect()
}
