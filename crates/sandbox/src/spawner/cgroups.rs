//! Control groups, one for each sandbox. A group limits memory, processes, cores and share of the cores of all
//! processes of a sandbox together, and counts their processor time.
//!
//! Version 2 is used if its controllers are available, otherwise version 1, otherwise no control groups: a spawner
//! without the right to make groups still makes sandboxes. No group is used twice, since memory of a dead sandbox that
//! others still share stays charged to its group.

mod claim;
mod files;
mod share;
mod v1;
mod v2;

use std::io;
use std::os::fd::BorrowedFd;

use rustix::process::Pid;

use crate::SandboxLimits;
use v1::V1;
use v2::V2;

pub(crate) use claim::PREFIX;

/// The groups of one spawner.
pub(super) struct Cgroups {
    version: Option<Version>,
    made: u64,
}

enum Version {
    One(V1),
    Two(V2),
}

/// A group for one sandbox. Its folders are removed when it is dropped, if nothing is in it any more.
#[derive(Debug)]
pub(super) enum Cgroup {
    One(v1::GroupV1),
    Two(v2::GroupV2),
}

impl Cgroups {
    pub(super) fn open() -> Cgroups {
        let version = V2::open().map(Version::Two).or_else(|| V1::open().map(Version::One));
        Cgroups { version, made: 0 }
    }

    /// Returns the version in use, if any, and its available controllers.
    pub(super) fn describe(&self) -> Option<(u32, Vec<&'static str>)> {
        match self.version.as_ref()? {
            Version::One(v1) => Some((1, v1.controllers())),
            Version::Two(v2) => Some((2, v2.controllers())),
        }
    }

    /// A new group, if there are groups.
    pub(super) fn make(&mut self) -> Option<Cgroup> {
        self.made += 1;
        let name = self.made.to_string();
        let made = match self.version.as_ref()? {
            Version::One(v1) => v1.make(&name).map(Cgroup::One),
            Version::Two(v2) => v2.make(&name).map(Cgroup::Two),
        };
        made.inspect_err(|error| eprintln!("sublet-spawner: a control group cannot be made: {error}")).ok()
    }
}

impl Cgroup {
    /// Bounds what is in it, or will be.
    pub(super) fn limit(&self, limits: &SandboxLimits) -> io::Result<()> {
        match self {
            Cgroup::One(group) => group.limit(limits),
            Cgroup::Two(group) => group.limit(limits),
        }
    }

    /// In which a process can be made.
    pub(super) fn begin_in(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Cgroup::One(_) => None,
            Cgroup::Two(group) => Some(group.folder()),
        }
    }

    /// Takes a process that was not made in it.
    pub(super) fn adopt(&self, process: Pid) -> io::Result<()> {
        match self {
            Cgroup::One(group) => group.adopt(process),
            Cgroup::Two(group) => group.adopt(process),
        }
    }

    /// Whether it limits memory and cores.
    pub(super) fn limits_memory_and_cores(&self) -> bool {
        match self {
            Cgroup::One(group) => group.limits_memory_and_cores(),
            Cgroup::Two(group) => group.limits_memory_and_cores(),
        }
    }

    /// Memory of all that is in it, in bytes, without copies of files on a disk. Nothing if that is not counted.
    pub(super) fn memory_bytes(&self) -> Option<u64> {
        match self {
            Cgroup::One(group) => group.memory_bytes(),
            Cgroup::Two(group) => group.memory_bytes(),
        }
    }

    /// Processor time of all that is or was in it, in microseconds. Nothing if that is not counted.
    pub(super) fn processor_us(&self) -> Option<u64> {
        match self {
            Cgroup::One(group) => group.processor_us(),
            Cgroup::Two(group) => Some(group.processor_us()),
        }
    }

    /// Returns how many processes of the group were killed because they exceeded its memory.
    pub(super) fn out_of_memory_kills(&self) -> u64 {
        match self {
            Cgroup::One(group) => group.out_of_memory_kills(),
            Cgroup::Two(group) => group.out_of_memory_kills(),
        }
    }
}
