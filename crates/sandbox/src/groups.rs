//! Control groups as this machine has mounted them: where a process's own group is, and what it and those above it allow.
//!
//! A batch system or a service manager puts programs into nested groups, each of which may have limits; the kernel enforces
//! all of them. `/proc/PID/cgroup` says which group a process is in. A container may be shown a part of a hierarchy only,
//! whose root is then at the mount point.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Limits of the control groups that this process is in, including the groups above them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Allowance {
    /// Bytes of memory; nothing: no limit.
    pub memory_bytes: Option<u64>,
    /// Processor time, in cores; nothing: no quota.
    pub cores: Option<f64>,
}

impl Allowance {
    /// Returns the allowance of this process.
    pub fn own() -> Allowance {
        let read = |path: &Path| fs::read_to_string(path).ok();
        let text = |path: &str| read(Path::new(path)).unwrap_or_default();
        allowance(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"), read)
    }
}

fn allowance(groups: &str, mounts: &str, read: impl Fn(&Path) -> Option<String>) -> Allowance {
    let mut memory: Vec<u64> = Vec::new();
    let mut cores: Vec<f64> = Vec::new();
    for folder in place("cgroup2", "", groups, mounts).iter().flat_map(GroupLocation::upwards) {
        memory.extend(read(&folder.join("memory.max")).and_then(|text| text.trim().parse::<u64>().ok()));
        cores.extend(read(&folder.join("cpu.max")).and_then(|text| {
            let (quota, period) = text.trim().split_once(' ')?;
            ratio(quota, period)
        }));
    }
    for folder in place("cgroup", "memory", groups, mounts).iter().flat_map(GroupLocation::upwards) {
        let limit = read(&folder.join("memory.limit_in_bytes"));
        memory.extend(limit.and_then(|text| text.trim().parse::<u64>().ok()));
    }
    for folder in place("cgroup", "cpu", groups, mounts).iter().flat_map(GroupLocation::upwards) {
        let (quota, period) =
            (read(&folder.join("cpu.cfs_quota_us")), read(&folder.join("cpu.cfs_period_us")));
        cores.extend(quota.zip(period).and_then(|(quota, period)| ratio(quota.trim(), period.trim())));
    }
    Allowance { memory_bytes: memory.into_iter().min(), cores: cores.into_iter().reduce(f64::min) }
}

/// A quota in periods; nothing where there is none: `max`, or -1.
fn ratio(quota: &str, period: &str) -> Option<f64> {
    let (quota, period) = (quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?);
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

/// A group in a hierarchy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GroupLocation {
    /// Mount point of the hierarchy.
    pub(crate) mount: PathBuf,
    /// The group's folder: the mount point, or a folder below it.
    pub(crate) folder: PathBuf,
}

impl GroupLocation {
    /// The group's folder, and those of the groups above it.
    fn upwards(&self) -> Vec<PathBuf> {
        let is_below = |folder: &&Path| folder.starts_with(&self.mount);
        self.folder.ancestors().take_while(is_below).map(Path::to_owned).collect()
    }
}

/// The group in which this process is, of version 1 with a controller, or of version 2 with an empty one.
pub(crate) fn own_place(kind: &str, controller: &str) -> Option<GroupLocation> {
    place_of(&fs::read_to_string("/proc/self/cgroup").ok()?, kind, controller)
}

/// The group of the process whose `/proc/PID/cgroup` says this.
pub(crate) fn place_of(groups: &str, kind: &str, controller: &str) -> Option<GroupLocation> {
    // Mount points of hierarchies do not change; the list of all mounts is long where there are many.
    static MOUNTS: OnceLock<String> = OnceLock::new();
    let mounts = MOUNTS.get_or_init(|| fs::read_to_string("/proc/self/mountinfo").unwrap_or_default());
    place(kind, controller, groups, mounts)
}

fn place(kind: &str, controller: &str, groups: &str, mounts: &str) -> Option<GroupLocation> {
    let path = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let path = fields.next()?;
        controllers.split(',').any(|word| word == controller).then_some(path)
    })?;
    let (root, mount) = mounted(kind, controller, mounts)?;
    // A group that is not below what is mounted cannot be seen from here; the mounted one is above it.
    let inside = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
    let is_plain = inside.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    let inside = if is_plain { inside } else { Path::new("") };
    let mount = PathBuf::from(mount);
    // Joined with nothing a path would end with a slash.
    let folder = if inside.as_os_str().is_empty() { mount.clone() } else { mount.join(inside) };
    debug_assert!(folder.starts_with(&mount), "the group {folder:?} is outside of its hierarchy {mount:?}");
    Some(GroupLocation { mount, folder })
}

/// The group that is the root of a mounted hierarchy, and where it is mounted.
fn mounted<'text>(kind: &str, controller: &str, mounts: &'text str) -> Option<(&'text str, &'text str)> {
    mounts.lines().find_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let is_kind = system.next()? == kind;
        let options = system.nth(1).unwrap_or_default();
        let has_it = controller.is_empty() || options.split(',').any(|word| word == controller);
        let mut fields = mount.split(' ').skip(3);
        (is_kind && has_it).then_some((fields.next()?, fields.next()?))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const V2: &str = "30 23 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

    fn of(groups: &str, mounts: &str, files: &[(&str, &str)]) -> Allowance {
        let files: BTreeMap<_, _> = files.iter().copied().collect();
        allowance(groups, mounts, |path| files.get(path.to_str()?).map(ToString::to_string))
    }

    #[test]
    fn reads_limits_of_nested_groups_of_version_2() {
        let files = [
            ("/sys/fs/cgroup/system.slice/memory.max", "max\n"),
            ("/sys/fs/cgroup/system.slice/job/memory.max", "1073741824\n"),
            ("/sys/fs/cgroup/system.slice/job/step/memory.max", "2147483648\n"),
            ("/sys/fs/cgroup/system.slice/job/step/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/system.slice/job/cpu.max", "250000 100000\n"),
        ];
        let found = of("0::/system.slice/job/step\n", V2, &files);
        assert_eq!(found, Allowance { memory_bytes: Some(1 << 30), cores: Some(2.5) });
        assert_eq!(of("0::/\n", V2, &files), Allowance::default());
    }

    #[test]
    fn reads_limits_of_nested_groups_of_version_1() {
        let files = [
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes", "1073741824\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_quota_us", "150000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ];
        let groups = "7:memory:/slurm/job_7/step_0\n3:cpu,cpuacct:/slurm/job_7\n0::/\n";
        let found = of(groups, V1, &files);
        assert_eq!(found, Allowance { memory_bytes: Some(1 << 30), cores: Some(1.5) });
    }

    #[test]
    fn finds_groups_where_container_mounts_part_of_hierarchy() {
        let mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let at = |groups: &str| {
            place("cgroup", "memory", groups, mounts).unwrap().folder.to_str().unwrap().to_owned()
        };
        assert_eq!(at("4:memory:/docker/abc\n"), "/sys/fs/cgroup/memory");
        assert_eq!(at("4:memory:/docker/abc/inner\n"), "/sys/fs/cgroup/memory/inner");
        // In a namespace of control groups that began elsewhere.
        assert_eq!(at("4:memory:/../other\n"), "/sys/fs/cgroup/memory");
        assert!(place("cgroup", "pids", "4:memory:/\n", mounts).is_none());
    }
}
