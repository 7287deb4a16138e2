//! Reads the processor time of a sandbox: the kernel's count, which no function can write.
//!
//! The count is that of the sandbox's control group: all of its processes, including those that have ended, from the
//! time they joined it. Without such groups it is the sum over the present processes, with the children that they have
//! waited for. Then processes that began and ended unseen, or whose parent ignores their end, are missing.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;

use crate::gauge::{sandbox_group, text};

const NS_PER_US: u64 = 1_000;
/// A tick of `/proc/PID/stat`, the same on all of Sublet's architectures (`USER_HZ`).
const NS_PER_TICK: u64 = 10_000_000;
/// Processes whose times are added up, in one reading.
const MAX_PROCESSES: usize = 4_096;

/// See the [module](self).
#[derive(Debug)]
pub struct ComputeGauge(ComputeSource);

#[derive(Debug)]
enum ComputeSource {
    /// `cpuacct.usage`
    V1(File),
    /// `cpu.stat`
    V2(File),
    /// The process from which all others of the sandbox come.
    Processes(u32),
}

impl ComputeGauge {
    /// Returns the gauge of the sandbox in which this process is the program. None if there is no such process.
    pub fn of(pid: u32) -> Option<ComputeGauge> {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let open = |kind: &str, controller: &str, file: &str| {
            File::open(sandbox_group(&groups, kind, controller)?.join(file)).ok()
        };
        let counted = open("cgroup2", "", "cpu.stat").map(ComputeSource::V2);
        let counted = counted.or_else(|| open("cgroup", "cpuacct", "cpuacct.usage").map(ComputeSource::V1));
        Some(ComputeGauge(counted.unwrap_or_else(|| ComputeSource::Processes(first_process(pid)))))
    }

    /// Nanoseconds so far. None once the sandbox is gone.
    pub fn read(&self) -> Option<u64> {
        match &self.0 {
            ComputeSource::V1(file) => text(file).ok()?.trim().parse().ok(),
            ComputeSource::V2(file) => {
                let text = text(file).ok()?;
                let us = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
                us.trim().parse::<u64>().ok()?.checked_mul(NS_PER_US)
            }
            ComputeSource::Processes(first) => times_from(*first),
        }
    }

    /// Whether nothing of the sandbox escapes the count.
    pub fn is_complete(&self) -> bool {
        !matches!(self.0, ComputeSource::Processes(_))
    }
}

/// The first process of the sandbox of a program, if it is in one: it reaps what others leave.
fn first_process(pid: u32) -> u32 {
    let parent = status_word(pid, "PPid:").and_then(|text| text.trim().parse().ok());
    let is_first = |pid: &u32| {
        let numbers = status_word(*pid, "NSpid:").unwrap_or_default();
        let numbers: Vec<_> = numbers.split_whitespace().collect();
        numbers.len() > 1 && numbers.last() == Some(&"1")
    };
    parent.filter(is_first).unwrap_or(pid)
}

fn status_word(pid: u32, word: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| Some(line.strip_prefix(word)?.to_owned()))
}

/// Returns the time that a process and its descendants have used, in nanoseconds, with that of descendants that were
/// waited for.
fn times_from(first: u32) -> Option<u64> {
    let (mut all, mut waiting) = (BTreeSet::from([first]), vec![first]);
    let mut ticks = 0_u64;
    let mut is_there = false;
    while let Some(pid) = waiting.pop() {
        let Some(own) = process_ticks(pid) else { continue };
        is_there = true;
        ticks = ticks.saturating_add(own);
        let born = children(pid).into_iter().filter(|child| all.len() < MAX_PROCESSES && all.insert(*child));
        waiting.extend(born);
    }
    is_there.then(|| ticks.saturating_mul(NS_PER_TICK))
}

/// `utime`, `stime`, `cutime` and `cstime` of a process, added up.
fn process_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program may have spaces and brackets; the state follows.
    let fields = stat.rsplit_once(')')?.1;
    let mut times = fields.split_whitespace().skip(11).take(4).map(|field| field.parse::<u64>().ok());
    times.try_fold(0_u64, |sum, time| Some(sum.saturating_add(time?)))
}

/// Children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(PathBuf::from(format!("/proc/{pid}/task"))).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn reads_the_counts_of_both_versions() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).unwrap();
            File::open(folder.path().join(name)).unwrap()
        };
        let gauge = ComputeGauge(ComputeSource::V1(file("cpuacct.usage", "123456789\n")));
        assert_eq!((gauge.read(), gauge.is_complete()), (Some(123_456_789), true));
        let stat = "usage_usec 123456\nuser_usec 100000\nsystem_usec 23456\nnr_periods 0\n";
        let gauge = ComputeGauge(ComputeSource::V2(file("cpu.stat", stat)));
        assert_eq!((gauge.read(), gauge.is_complete()), (Some(123_456_000), true));
        let gauge = ComputeGauge(ComputeSource::V2(file("garbage", "usage_usec x\n")));
        assert_eq!(gauge.read(), None);
    }

    #[test]
    fn counts_times_of_process_and_children_without_groups() {
        let spin = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        // One child has ended and was waited for, then another one lives.
        let script = format!("({spin}); echo ended; sh -c '{spin}; echo spun; read -r _'; :");
        let mut command = Command::new("sh");
        let mut shell =
            command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let gauge = ComputeGauge(ComputeSource::Processes(shell.id()));
        let mut said = BufReader::new(shell.stdout.take().unwrap());
        let mut hear = |expected: &str| {
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            assert_eq!(line.trim(), expected);
        };
        hear("ended");
        let first = gauge.read().unwrap();
        hear("spun");
        let both = gauge.read().unwrap();
        assert!(first >= NS_PER_TICK && both > first, "{first} and then {both}");
        assert!(!gauge.is_complete());
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert_eq!(gauge.read(), None, "there is no such process any more");
    }
}
