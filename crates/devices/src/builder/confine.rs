//! Restricts a builder's process before it reads untrusted programs.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};

/// The newest version of Landlock whose features are all used.
const NEWEST: ABI = ABI::V6;
/// Largest file, in bytes.
const MAX_FILE_BYTES: u64 = 512 << 20;
/// Most open files.
const MAX_FILES: u64 = 1024;

/// Paths of compilers, drivers, their headers and libraries.
const PROGRAMS: &[&str] = &["/usr", "/lib", "/lib64", "/bin", "/etc/OpenCL", "/etc/ld.so.cache", "/opt"];
/// Files by which drivers identify the machine. None contains data of a user.
const FACTS: &[&str] = &["/proc/cpuinfo", "/proc/meminfo", "/sys/devices", "/sys/class", "/sys/bus"];
/// The devices themselves, for drivers that use them to compile.
const DEVICES: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/urandom",
    "/dev/dri",
    "/dev/kfd",
    "/dev/nvidia0",
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
];

/// Arguments with which a builder is started.
pub(super) struct BuilderLimits {
    folder: PathBuf,
    has_own: bool,
    time_s: u64,
    memory_bytes: u64,
}

impl BuilderLimits {
    /// Reads the command line: folder, confinement, seconds, bytes.
    pub fn of(mut words: impl Iterator<Item = OsString>) -> io::Result<BuilderLimits> {
        let usage =
            || io::Error::other("it is started by Sublet, with FOLDER own|surroundings SECONDS BYTES");
        let mut next = || words.next().ok_or_else(usage);
        let number = |word: OsString| word.to_str().and_then(|word| word.parse().ok()).ok_or_else(usage);
        Ok(BuilderLimits {
            folder: next()?.into(),
            has_own: next()? == "own",
            time_s: number(next()?)?,
            memory_bytes: number(next()?)?,
        })
    }
}

/// Gives up all unnecessary privileges for good, or returns the reason why that is not possible.
pub(super) fn apply(limits: &BuilderLimits) -> Result<(), String> {
    let bound =
        |resource, most: u64| setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
    let bounded = set_parent_process_death_signal(Some(Signal::KILL))
        .and_then(|()| bound(Resource::As, limits.memory_bytes))
        .and_then(|()| bound(Resource::Cpu, limits.time_s))
        .and_then(|()| bound(Resource::Fsize, MAX_FILE_BYTES))
        .and_then(|()| bound(Resource::Nofile, MAX_FILES))
        .and_then(|()| bound(Resource::Core, 0));
    bounded.map_err(|error| format!("cannot limit itself: {error}"))?;
    if !limits.has_own {
        return Ok(());
    }
    match restrict(&limits.folder) {
        Ok(RulesetStatus::NotEnforced) => Err("has no Landlock in this kernel to keep it from files".into()),
        Ok(_) => Ok(()),
        Err(error) => Err(format!("cannot confine itself: {error}")),
    }
}

fn restrict(folder: &Path) -> Result<RulesetStatus, Box<dyn std::error::Error>> {
    let all = AccessFs::from_all(NEWEST);
    let devices = AccessFs::from_file(NEWEST) & !AccessFs::Execute | AccessFs::ReadDir;
    let nodes = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::MakeSock;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    let read = AccessFs::from_read(NEWEST);
    let plain = AccessFs::ReadFile | AccessFs::ReadDir;
    let groups: [(&[&str], BitFlags<AccessFs>); 3] = [(PROGRAMS, read), (FACTS, plain), (DEVICES, devices)];
    for (paths, access) in groups {
        for path in paths.iter().filter_map(|path| PathFd::new(path).ok()) {
            rules = rules.add_rule(PathBeneath::new(path, access))?;
        }
    }
    let rules = rules.add_rule(PathBeneath::new(PathFd::new(folder)?, all & !nodes))?;
    Ok(rules.restrict_self()?.ruleset)
}
