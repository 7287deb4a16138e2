//! Version 1: a hierarchy for each controller, so a sandbox has a folder in each.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

use super::{core_list, counter, own_name, remove, remove_left};
use crate::Limits;
use crate::groups::own_place;

const MEMORY: &str = "memory";
const PIDS: &str = "pids";
const CPUSET: &str = "cpuset";

pub(super) struct V1 {
    /// The spawner's folder, by controller.
    folders: Vec<(&'static str, PathBuf)>,
}

#[derive(Debug)]
pub(in crate::spawner) struct Group {
    folders: Vec<(&'static str, PathBuf)>,
}

impl V1 {
    /// Nothing if there is none of the controllers, or no right to make groups.
    pub(super) fn open() -> Option<V1> {
        let folders: Vec<_> = [MEMORY, PIDS, CPUSET]
            .into_iter()
            .filter_map(|controller| Some((controller, open_controller(controller)?)))
            .collect();
        (!folders.is_empty()).then_some(V1 { folders })
    }

    pub(super) fn controllers(&self) -> Vec<&'static str> {
        self.folders.iter().map(|&(controller, _)| controller).collect()
    }

    pub(super) fn make(&self, name: &str) -> io::Result<Group> {
        let mut group = Group { folders: Vec::new() };
        for (controller, own) in &self.folders {
            let folder = own.join(name);
            fs::create_dir(&folder)?;
            if *controller == CPUSET {
                inherit_cores(own, &folder)?;
            }
            group.folders.push((controller, folder));
        }
        Ok(group)
    }
}

impl Drop for V1 {
    fn drop(&mut self) {
        self.folders.iter().for_each(|(_, folder)| remove(folder));
    }
}

impl Group {
    pub(super) fn limit(&self, limits: &Limits) -> io::Result<()> {
        for (controller, folder) in &self.folders {
            match (*controller, limits) {
                (MEMORY, Limits { memory_bytes: Some(bytes), .. }) => limit_memory(folder, *bytes)?,
                (PIDS, Limits { processes: Some(count), .. }) => {
                    fs::write(folder.join("pids.max"), count.to_string())?;
                }
                (CPUSET, Limits { cores, .. }) if !cores.is_empty() => {
                    fs::write(folder.join("cpuset.cpus"), core_list(cores))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn adopt(&self, process: Pid) -> io::Result<()> {
        let number = process.as_raw_nonzero().to_string();
        self.folders.iter().try_for_each(|(_, folder)| fs::write(folder.join("cgroup.procs"), &number))
    }

    pub(super) fn out_of_memory_kills(&self) -> u64 {
        let folder = self.folders.iter().find(|(controller, _)| *controller == MEMORY);
        folder.map_or(0, |(_, folder)| counter(&folder.join("memory.oom_control"), "oom_kill "))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.folders.iter().for_each(|(_, folder)| drop(fs::remove_dir(folder)));
    }
}

fn open_controller(controller: &str) -> Option<PathBuf> {
    let parent = own_place("cgroup", controller)?.folder;
    remove_left(&parent);
    let folder = parent.join(own_name());
    fs::create_dir(&folder).ok()?;
    if controller == CPUSET && inherit_cores(&parent, &folder).is_err() {
        let _ = fs::remove_dir(&folder);
        return None;
    }
    Some(folder)
}

/// A new group has neither cores nor memory until it is told which, and takes no process before.
fn inherit_cores(parent: &Path, folder: &Path) -> io::Result<()> {
    ["cpuset.cpus", "cpuset.mems"]
        .iter()
        .try_for_each(|name| fs::write(folder.join(name), fs::read(parent.join(name))?))
}

/// Memory and what could be swapped out together: swap is no way around.
fn limit_memory(folder: &Path, bytes: u64) -> io::Result<()> {
    let text = bytes.to_string();
    fs::write(folder.join("memory.limit_in_bytes"), &text)?;
    match fs::write(folder.join("memory.memsw.limit_in_bytes"), &text) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written,
    }
}
