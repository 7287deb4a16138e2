//! Contents of the files in the kernel's formats, computed from a sandbox's cores and memory and the machine's constants.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Position of a core in the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Topology {
    /// Number of the physical core within its package.
    pub(super) core: u32,
    /// Number of the package.
    pub(super) package: u32,
    /// Cores of the machine on the same physical core, this one included.
    pub(super) siblings: BTreeSet<u32>,
}

/// Cores of a sandbox by their numbers.
pub(super) type Cores = BTreeMap<u32, Topology>;

/// Fields of `/proc/meminfo` that are 0 in every sandbox.
const ZERO_FIELDS: [&str; 25] = [
    "Buffers",
    "Cached",
    "SwapCached",
    "Active",
    "Inactive",
    "Active(anon)",
    "Inactive(anon)",
    "Active(file)",
    "Inactive(file)",
    "Unevictable",
    "Mlocked",
    "SwapTotal",
    "SwapFree",
    "Dirty",
    "Writeback",
    "AnonPages",
    "Mapped",
    "Shmem",
    "KReclaimable",
    "Slab",
    "SReclaimable",
    "SUnreclaim",
    "KernelStack",
    "PageTables",
    "Committed_AS",
];

/// `/proc/meminfo` of a machine with this much memory, all of it free.
pub(super) fn meminfo(bytes: u64) -> String {
    let size = bytes / 1024;
    let all = [("MemTotal", size), ("MemFree", size), ("MemAvailable", size)];
    let zero = ZERO_FIELDS.map(|name| (name, 0));
    let last = [("CommitLimit", size)];
    let fields = all.into_iter().chain(zero).chain(last);
    fields.map(|(name, size)| format!("{:<16}{size:>8} kB\n", format!("{name}:"))).collect()
}

/// `/proc/cpuinfo` with the blocks of these cores only. Its counts of cores in a package are of these cores, too.
pub(super) fn cpuinfo(machine: &str, cores: &Cores) -> String {
    let blocks = machine.split("\n\n").filter_map(|block| block_of(block, cores));
    blocks.fold(String::new(), |text, block| text + &block + "\n")
}

fn block_of(block: &str, cores: &Cores) -> Option<String> {
    let field = |line: &str| {
        line.split_once(':').map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
    };
    let number = block.lines().filter_map(field).find(|(name, _)| name == "processor");
    // On some architectures the last block is about the whole machine.
    let Some((_, number)) = number else { return (!block.trim().is_empty()).then(|| format!("{block}\n")) };
    let number = number.parse().ok()?;
    let package = cores.get(&number)?.package;
    let beside = cores.values().filter(|topology| topology.package == package);
    let physical: BTreeSet<u32> = beside.clone().map(|topology| topology.core).collect();
    let text = block.lines().map(|line| match field(line) {
        Some((name, _)) if name == "siblings" => format!("siblings\t: {}\n", beside.clone().count()),
        Some((name, _)) if name == "cpu cores" => format!("cpu cores\t: {}\n", physical.len()),
        _ => format!("{line}\n"),
    });
    Some(text.collect())
}

/// `/proc/stat` of these cores with zeros for all times. The time of the machine's start, in seconds since 1970, is the true one:
/// the kernel counts start times of processes from there.
pub(super) fn stat(cores: &Cores, booted: u64) -> String {
    let names = std::iter::once("cpu ".to_owned()).chain(cores.keys().map(|core| format!("cpu{core}")));
    let mut text: String = names.map(|name| format!("{name} 0 0 0 0 0 0 0 0 0 0\n")).collect();
    let rest = "processes 0\nprocs_running 1\nprocs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0\n";
    let _ = write!(text, "intr 0\nctxt 0\nbtime {booted}\n{rest}");
    text
}

/// Formats numbers as the kernel does lists of cores: "0-3,8".
pub(super) fn list(numbers: impl IntoIterator<Item = u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let range = |&(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

/// Parses such a list. Parts that are not numbers are left out.
pub(super) fn numbers(list: &str) -> BTreeSet<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: &str = "processor\t: 0\nmodel name\t: X\nphysical id\t: 0\nsiblings\t: 4\ncore id\t\t: 0\ncpu cores\t: 2\n\n\
                           processor\t: 1\nmodel name\t: X\nphysical id\t: 0\nsiblings\t: 4\ncore id\t\t: 0\ncpu cores\t: 2\n\n\
                           processor\t: 2\nmodel name\t: X\nphysical id\t: 0\nsiblings\t: 4\ncore id\t\t: 1\ncpu cores\t: 2\n\n\
                           Hardware\t: Y\n\n";

    fn cores(numbers: &[u32]) -> Cores {
        let topology = |core| Topology { core, package: 0, siblings: [core * 2, core * 2 + 1].into() };
        numbers.iter().map(|&number| (number, topology(number / 2))).collect()
    }

    #[test]
    fn cpuinfo_has_only_the_cores_of_the_sandbox() {
        let text = cpuinfo(MACHINE, &cores(&[1, 2]));
        let lines = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
        assert_eq!((lines("processor\t: 1"), lines("processor\t: 2"), lines("processor")), (1, 1, 2));
        assert_eq!((lines("siblings\t: 2"), lines("cpu cores\t: 2"), lines("model name\t: X")), (2, 2, 2));
        assert!(text.contains("Hardware\t: Y"), "{text}");
        let text = cpuinfo(MACHINE, &cores(&[0]));
        assert!(text.contains("siblings\t: 1\n") && text.contains("cpu cores\t: 1\n"), "{text}");
    }

    #[test]
    fn meminfo_has_memory_of_sandbox_in_columns_of_kernel() {
        let text = meminfo(256 << 20);
        assert!(text.starts_with("MemTotal:         262144 kB\nMemFree:          262144 kB\n"), "{text}");
        assert!(text.contains("\nSwapTotal:             0 kB\n"), "{text}");
    }

    #[test]
    fn stat_has_line_for_each_core_and_boot_time() {
        let text = stat(&cores(&[3, 7]), 1_700_000_000);
        let names: Vec<_> = text.lines().map(|line| line.split(' ').next().unwrap()).take(3).collect();
        assert_eq!(names, ["cpu", "cpu3", "cpu7"]);
        assert!(text.contains("\nbtime 1700000000\n"), "{text}");
    }

    #[test]
    fn lists_of_cores_survive_writing_and_reading() {
        for (set, text) in
            [(vec![], ""), (vec![5], "5"), (vec![0, 1, 2, 8], "0-2,8"), (vec![1, 3, 4], "1,3-4")]
        {
            assert_eq!(list(set.iter().copied()), text);
            assert_eq!(numbers(text), set.into_iter().collect());
        }
        assert_eq!(numbers("x,1-y,3\n"), [3].into());
    }
}
