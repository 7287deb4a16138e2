//! The files that describe a machine, as sandboxes see them: with the cores and the memory of the sandbox.
//!
//! ```text
//! /proc/meminfo                  the sandbox's memory            written once for each size
//! /proc/cpuinfo, stat, /sys      the sandbox's cores             written once for each set of cores
//! the other files of /proc       the same: an idle machine       written once
//! ```
//!
//! The files lie in memory of the spawner, and sandboxes have them as read-only mounts, so making a sandbox takes mounts and writes
//! no files. Their content does not change: all memory is free, and no core has computed. (A server that computes current values,
//! as lxcfs is, would be one more process that hostile functions can talk to.)
//!
//! About the machine these files say only what every process also learns from the processor and by system calls: model
//! and numbers of the cores, the kernel's release and limits, and the time of the machine's start.

mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::mount::{MountFlags, mount};

use text::{Cores, Topology};

/// Most sets of cores, and most sizes of memory, whose files are kept. At this number the spawner removes all that no sandbox uses.
const MAX_KEPT: usize = 64;
/// Options of the file system: how much memory all files may take, in bytes.
const SIZE: &std::ffi::CStr = c"size=64m,mode=700";
/// Limits and constants of the kernel in `/proc/sys` that programs read. Sandboxes see the machine's values.
const KERNEL: [&str; 20] = [
    "fs/aio-max-nr",
    "fs/file-max",
    "fs/inotify/max_user_instances",
    "fs/inotify/max_user_watches",
    "fs/nr_open",
    "fs/pipe-max-size",
    "kernel/cap_last_cap",
    "kernel/ngroups_max",
    "kernel/osrelease",
    "kernel/ostype",
    "kernel/overflowgid",
    "kernel/overflowuid",
    "kernel/pid_max",
    "kernel/threads-max",
    "kernel/version",
    "net/core/somaxconn",
    "vm/max_map_count",
    "vm/mmap_min_addr",
    "vm/overcommit_memory",
    "vm/overcommit_ratio",
];
/// Folders of `/sys` in which programs look for devices. They are empty in a sandbox.
const EMPTY: [&str; 5] = ["block", "class/hwmon", "class/net", "class/power_supply", "class/thermal"];
/// Constants of the kernel in `/sys`.
const SYSTEM: [&str; 3] = [
    "devices/system/cpu/kernel_max",
    "kernel/mm/transparent_hugepage/enabled",
    "kernel/mm/transparent_hugepage/hpage_pmd_size",
];

/// See the [module](self).
pub(super) struct Views {
    /// Root of the file system that has the files. No path leads there.
    folder: Rc<File>,
    machine: MachineFacts,
    /// Number of folders made so far.
    made: u64,
    by_cores: BTreeMap<Vec<u32>, Rc<RenderedFolder>>,
    by_memory: BTreeMap<u64, Rc<RenderedFolder>>,
}

/// Properties of the machine that do not change.
struct MachineFacts {
    cpuinfo: String,
    /// Cores on which the spawner may run.
    cores: Vec<u32>,
    memory_bytes: u64,
    /// Time of the machine's start, in seconds since 1970.
    booted: u64,
}

/// A folder of files. Removed when neither the tables nor a sandbox use it.
pub(super) struct RenderedFolder {
    /// Root of the file system in which the folder is.
    above: Rc<File>,
    number: u64,
}

impl RenderedFolder {
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{}", self.above.as_raw_fd(), self.number))
    }
}

impl Drop for RenderedFolder {
    fn drop(&mut self) {
        // If this fails the folder takes memory of the spawner, which SIZE bounds.
        let _ = fs::remove_dir_all(self.path());
    }
}

/// Files about the cores and the memory of one sandbox.
pub(super) struct ResourceView {
    cores: Rc<RenderedFolder>,
    memory: Rc<RenderedFolder>,
}

impl ResourceView {
    pub(super) fn meminfo(&self) -> PathBuf {
        self.memory.path().join("meminfo")
    }

    pub(super) fn cpuinfo(&self) -> PathBuf {
        self.cores.path().join("cpuinfo")
    }

    pub(super) fn stat(&self) -> PathBuf {
        self.cores.path().join("stat")
    }

    pub(super) fn system(&self) -> PathBuf {
        self.cores.path().join("sys")
    }
}

impl Views {
    /// Mounts the file system of the files over a folder. The caller mounts another one over the same folder next.
    pub(super) fn open(folder: &Path) -> io::Result<Views> {
        mount("tmpfs", folder, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(SIZE))?;
        Ok(Views {
            folder: Rc::new(File::open(folder)?),
            machine: MachineFacts::look()?,
            made: 0,
            by_cores: BTreeMap::new(),
            by_memory: BTreeMap::new(),
        })
    }

    /// Files for a sandbox with these cores and this much memory. No cores: all of the spawner's. No size: the machine's memory.
    pub(super) fn of(&mut self, cores: &[u32], memory_bytes: Option<u64>) -> io::Result<ResourceView> {
        let cores = if cores.is_empty() { self.machine.cores.clone() } else { cores.to_vec() };
        let memory_bytes = memory_bytes.unwrap_or(self.machine.memory_bytes);
        let by_cores = match self.by_cores.get(&cores) {
            Some(rendered) => rendered.clone(),
            None => {
                let rendered = self.folder(|folder, machine| machine.write_cores(folder, &cores))?;
                keep(&mut self.by_cores, cores, rendered)
            }
        };
        let by_memory = match self.by_memory.get(&memory_bytes) {
            Some(rendered) => rendered.clone(),
            None => {
                let write =
                    |folder: &Path, _: &_| fs::write(folder.join("meminfo"), text::meminfo(memory_bytes));
                let rendered = self.folder(write)?;
                keep(&mut self.by_memory, memory_bytes, rendered)
            }
        };
        Ok(ResourceView { cores: by_cores, memory: by_memory })
    }

    fn folder(
        &mut self,
        write: impl FnOnce(&Path, &MachineFacts) -> io::Result<()>,
    ) -> io::Result<RenderedFolder> {
        self.made += 1;
        let rendered = RenderedFolder { above: self.folder.clone(), number: self.made };
        make_folder(&rendered.path())?;
        write(&rendered.path(), &self.machine)?;
        Ok(rendered)
    }

    /// Writes files for templates, which have all cores of the spawner and this much memory, into `proc` and `sys` of a folder,
    /// with the files of `/proc` that are the same for every sandbox.
    pub(super) fn write_common(&self, root: &Path, memory_bytes: u64) -> io::Result<()> {
        let processes = root.join("proc");
        make_folder(&processes)?;
        write_processes(&processes)?;
        fs::write(processes.join("meminfo"), text::meminfo(memory_bytes))?;
        let cores = self.machine.topology(&self.machine.cores);
        fs::write(processes.join("cpuinfo"), text::cpuinfo(&self.machine.cpuinfo, &cores))?;
        fs::write(processes.join("stat"), text::stat(&cores, self.machine.booted))?;
        write_system(&root.join("sys"), &cores)
    }
}

/// Adds a folder to a table, for later sandboxes with the same key.
fn keep<K: Ord>(
    kept: &mut BTreeMap<K, Rc<RenderedFolder>>,
    key: K,
    rendered: RenderedFolder,
) -> Rc<RenderedFolder> {
    if kept.len() >= MAX_KEPT {
        kept.clear();
    }
    let rendered = Rc::new(rendered);
    kept.insert(key, rendered.clone());
    rendered
}

impl MachineFacts {
    fn look() -> io::Result<MachineFacts> {
        let field = |file: &str, name: &str| -> Option<u64> {
            let text = fs::read_to_string(file).ok()?;
            let value = text.lines().find_map(|line| line.strip_prefix(name))?;
            value.split_whitespace().next()?.parse().ok()
        };
        let allowed = rustix::thread::sched_getaffinity(None)?;
        let cores = (0..).zip(0..rustix::thread::CpuSet::MAX_CPU).filter(|&(_, core)| allowed.is_set(core));
        Ok(MachineFacts {
            cpuinfo: fs::read_to_string("/proc/cpuinfo").unwrap_or_default(),
            cores: cores.map(|(number, _)| number).collect(),
            memory_bytes: field("/proc/meminfo", "MemTotal:").map_or(0, |size| size.saturating_mul(1024)),
            booted: field("/proc/stat", "btime ").unwrap_or(0),
        })
    }

    fn topology(&self, cores: &[u32]) -> Cores {
        cores.iter().map(|&core| (core, topology_of(core))).collect()
    }

    fn write_cores(&self, folder: &Path, cores: &[u32]) -> io::Result<()> {
        let cores = self.topology(cores);
        fs::write(folder.join("cpuinfo"), text::cpuinfo(&self.cpuinfo, &cores))?;
        fs::write(folder.join("stat"), text::stat(&cores, self.booted))?;
        write_system(&folder.join("sys"), &cores)
    }
}

/// Position of a core in the machine. Where the machine does not say, as on one package without hardware threads.
fn topology_of(core: u32) -> Topology {
    let folder = PathBuf::from(format!("/sys/devices/system/cpu/cpu{core}/topology"));
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u32>().ok();
    let siblings = read("core_cpus_list").or_else(|| read("thread_siblings_list"));
    let mut siblings = text::numbers(&siblings.unwrap_or_default());
    siblings.insert(core);
    Topology {
        core: number("core_id").unwrap_or(core),
        package: number("physical_package_id").unwrap_or(0),
        siblings,
    }
}

fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Writes a file, and makes the folders above it.
fn write(path: &Path, text: &str) -> io::Result<()> {
    path.parent().map_or(Ok(()), make_folder)?;
    fs::write(path, text)
}

/// Copies those of these files that the machine has.
fn copy_files(from: &str, to: &Path, files: &[&str]) -> io::Result<()> {
    let there =
        files.iter().filter_map(|file| Some((file, fs::read_to_string(Path::new(from).join(file)).ok()?)));
    for (file, text) in there {
        write(&to.join(file), &text)?;
    }
    Ok(())
}

/// Writes the files of `/proc` that are the same for every sandbox.
fn write_processes(folder: &Path) -> io::Result<()> {
    let kernel = rustix::system::uname();
    let word = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let version =
        format!("{} version {} {}\n", word(kernel.sysname()), word(kernel.release()), word(kernel.version()));
    let files = [
        ("diskstats", ""),
        ("filesystems", "nodev\tproc\nnodev\ttmpfs\nnodev\toverlay\n\text4\n"),
        ("loadavg", "0.00 0.00 0.00 1/2 2\n"),
        ("swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"),
        ("uptime", "0.00 0.00\n"),
        ("version", &version),
        ("vmstat", "pgpgin 0\npgpgout 0\npswpin 0\npswpout 0\npgfault 0\npgmajfault 0\noom_kill 0\n"),
    ];
    for (file, text) in files {
        fs::write(folder.join(file), text)?;
    }
    symlink("self/mounts", folder.join("mounts"))?;
    symlink("self/net", folder.join("net"))?;
    let limits = folder.join("sys");
    copy_files("/proc/sys", &limits, &KERNEL)?;
    write(&limits.join("kernel/hostname"), "sandbox\n")
}

/// Writes a `/sys` that has these cores and no devices.
fn write_system(folder: &Path, cores: &Cores) -> io::Result<()> {
    EMPTY.iter().try_for_each(|empty| make_folder(&folder.join(empty)))?;
    copy_files("/sys", folder, &SYSTEM)?;
    let cpu = folder.join("devices/system/cpu");
    let line = |list: String| list + "\n";
    let own = line(text::list(cores.keys().copied()));
    // Programs size arrays by this number and index them by the numbers of cores.
    let last = cores.keys().last().copied().unwrap_or(0);
    for (name, text) in [("online", &own), ("present", &own), ("possible", &line(text::list(0..=last)))] {
        write(&cpu.join(name), text)?;
    }
    for (core, Topology { core: physical, package, siblings }) in cores {
        let folder = cpu.join(format!("cpu{core}/topology"));
        let siblings: BTreeSet<u32> =
            siblings.iter().copied().filter(|core| cores.contains_key(core)).collect();
        let beside = cores.iter().filter(|(_, other)| other.package == *package).map(|(core, _)| *core);
        write(&folder.join("core_id"), &format!("{physical}\n"))?;
        fs::write(folder.join("physical_package_id"), format!("{package}\n"))?;
        fs::write(folder.join("core_cpus_list"), line(text::list(siblings)))?;
        fs::write(folder.join("package_cpus_list"), line(text::list(beside)))?;
        // Older names of the same files.
        symlink("core_cpus_list", folder.join("thread_siblings_list"))?;
        symlink("package_cpus_list", folder.join("core_siblings_list"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_no_sandbox_uses_are_removed_at_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        let above = Rc::new(File::open(folder.path()).unwrap());
        let mut kept = BTreeMap::new();
        let mut keep_one = |number| {
            let rendered = RenderedFolder { above: above.clone(), number };
            make_folder(&rendered.path()).unwrap();
            keep(&mut kept, number, rendered)
        };
        let used = keep_one(0);
        let folders = || fs::read_dir(folder.path()).unwrap().count();
        (1..MAX_KEPT as u64).for_each(|number| drop(keep_one(number)));
        assert_eq!(folders(), MAX_KEPT);
        drop(keep_one(MAX_KEPT as u64));
        assert_eq!(folders(), 2, "one is used, and one was made since");
        assert!(used.path().exists());
    }
}
