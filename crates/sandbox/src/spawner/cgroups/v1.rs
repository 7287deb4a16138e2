//! Version 1: a hierarchy for each controller, so a sandbox has a folder in each.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

use super::claim::{SpawnerGroup, remove_left};
use super::files::{core_list, counter, number};
use super::share;
use crate::SandboxLimits;
use crate::groups::own_place;

const MEMORY: &str = "memory";
const PIDS: &str = "pids";
const CPUSET: &str = "cpuset";
const CPU: &str = "cpu";
const CPUACCT: &str = "cpuacct";
/// Controllers; the folder of the first one must be prepared before it takes processes.
const CONTROLLERS: [&str; 5] = [CPUSET, MEMORY, PIDS, CPU, CPUACCT];

pub(super) struct V1 {
    hierarchies: Vec<Hierarchy>,
}

/// The spawner's folder in a hierarchy, which may be that of several controllers, as of `cpu` and `cpuacct`.
struct Hierarchy {
    controllers: Vec<&'static str>,
    claim: SpawnerGroup,
}

#[derive(Debug)]
pub(in crate::spawner) struct GroupV1 {
    folders: Vec<(Vec<&'static str>, PathBuf)>,
}

impl V1 {
    /// Nothing if there is none of the controllers, or no right to make groups.
    pub(super) fn open() -> Option<V1> {
        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        for controller in CONTROLLERS {
            let Some(parent) = own_place("cgroup", controller).map(|place| place.folder) else { continue };
            let is_here = |one: &&mut Hierarchy| one.claim.parent() == Some(&parent);
            match hierarchies.iter_mut().find(is_here) {
                Some(hierarchy) => hierarchy.controllers.push(controller),
                None => hierarchies.extend(Hierarchy::open(controller, &parent)),
            }
        }
        let v1 = V1 { hierarchies };
        v1.weigh();
        (!v1.hierarchies.is_empty()).then_some(v1)
    }

    /// Gives all sandboxes together the share of one process for each core, as against the machine's other programs.
    fn weigh(&self) {
        let mut hierarchies = self.hierarchies.iter();
        if let Some(hierarchy) = hierarchies.find(|hierarchy| hierarchy.controllers.contains(&CPU)) {
            let shares = share::shares(share::machine_cores());
            let _ = fs::write(hierarchy.claim.folder.join("cpu.shares"), shares.to_string());
        }
    }

    pub(super) fn controllers(&self) -> Vec<&'static str> {
        self.hierarchies.iter().flat_map(|hierarchy| hierarchy.controllers.iter().copied()).collect()
    }

    pub(super) fn make(&self, name: &str) -> io::Result<GroupV1> {
        let mut group = GroupV1 { folders: Vec::new() };
        for Hierarchy { controllers, claim } in &self.hierarchies {
            let folder = claim.folder.join(name);
            fs::create_dir(&folder)?;
            group.folders.push((controllers.clone(), folder.clone()));
            if controllers.contains(&CPUSET) {
                inherit_cores(&claim.folder, &folder)?;
            }
        }
        Ok(group)
    }
}

impl Hierarchy {
    fn open(controller: &'static str, parent: &Path) -> Option<Hierarchy> {
        remove_left(parent);
        let claim = SpawnerGroup::take(parent)?;
        if controller == CPUSET {
            inherit_cores(parent, &claim.folder).ok()?;
        }
        Some(Hierarchy { controllers: vec![controller], claim })
    }
}

impl GroupV1 {
    pub(super) fn limit(&self, limits: &SandboxLimits) -> io::Result<()> {
        let has_cpuset = self.folder(CPUSET).is_some();
        for (controllers, folder) in &self.folders {
            controllers.iter().try_for_each(|controller| bound(controller, folder, limits, has_cpuset))?;
        }
        Ok(())
    }

    pub(super) fn adopt(&self, process: Pid) -> io::Result<()> {
        let number = process.as_raw_nonzero().to_string();
        self.folders.iter().try_for_each(|(_, folder)| fs::write(folder.join("cgroup.procs"), &number))
    }

    pub(super) fn out_of_memory_kills(&self) -> u64 {
        self.folder(MEMORY).map_or(0, |folder| counter(&folder.join("memory.oom_control"), "oom_kill "))
    }

    pub(super) fn limits_memory_and_cores(&self) -> bool {
        [MEMORY, CPUSET].iter().all(|controller| self.folder(controller).is_some())
    }

    pub(super) fn memory_bytes(&self) -> Option<u64> {
        let folder = self.folder(MEMORY)?;
        let counted = |word: &str| counter(&folder.join("memory.stat"), word);
        let files = counted("total_cache ").saturating_sub(counted("total_shmem "));
        Some(number(&folder.join("memory.usage_in_bytes"))?.saturating_sub(files))
    }

    pub(super) fn processor_us(&self) -> Option<u64> {
        number(&self.folder(CPUACCT)?.join("cpuacct.usage")).map(|used_ns| used_ns / 1000)
    }

    fn folder(&self, controller: &str) -> Option<&Path> {
        let mut folders = self.folders.iter();
        folders.find(|(controllers, _)| controllers.contains(&controller)).map(|(_, folder)| folder.as_path())
    }
}

impl Drop for GroupV1 {
    fn drop(&mut self) {
        self.folders.iter().for_each(|(_, folder)| drop(fs::remove_dir(folder)));
    }
}

/// Writes what a controller bounds of a sandbox.
fn bound(controller: &str, folder: &Path, limits: &SandboxLimits, has_cpuset: bool) -> io::Result<()> {
    let write = |file: &str, text: String| fs::write(folder.join(file), text);
    match (controller, limits) {
        (MEMORY, SandboxLimits { memory_bytes: Some(bytes), .. }) => limit_memory(folder, *bytes),
        (PIDS, SandboxLimits { processes: Some(count), .. }) => write("pids.max", count.to_string()),
        (CPUSET, SandboxLimits { cores, .. }) if !cores.is_empty() => {
            write("cpuset.cpus", core_list(&limits.distinct_cores()))
        }
        (CPU, limits) => {
            write("cpu.shares", share::shares(limits.workers()).to_string())?;
            let Some(quota_us) = share::quota_us(limits, has_cpuset) else { return Ok(()) };
            write("cpu.cfs_period_us", share::PERIOD_US.to_string())?;
            write("cpu.cfs_quota_us", quota_us.to_string())
        }
        _ => Ok(()),
    }
}

/// Copies the cores and memory nodes of the parent group. A new group has neither, and takes no process before it has
/// both.
fn inherit_cores(parent: &Path, folder: &Path) -> io::Result<()> {
    ["cpuset.cpus", "cpuset.mems"]
        .iter()
        .try_for_each(|name| fs::write(folder.join(name), fs::read(parent.join(name))?))
}

/// Memory and what could be swapped out together: swap is no way around.
fn limit_memory(folder: &Path, bytes: u64) -> io::Result<()> {
    let text = bytes.to_string();
    let limit_both = || match fs::write(folder.join("memory.memsw.limit_in_bytes"), &text) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written,
    };
    match fs::write(folder.join("memory.limit_in_bytes"), &text) {
        // A limit that grows: memory may never have more than both together.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            limit_both()?;
            fs::write(folder.join("memory.limit_in_bytes"), &text)
        }
        written => written.and_then(|()| limit_both()),
    }
}
