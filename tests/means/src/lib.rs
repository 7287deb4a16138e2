//! Helps the tests of all crates: reports that a test cannot run, because this machine lacks what it needs, waits until a
//! thread sleeps, and finds a time that is long enough on this machine.
//!
//! Each test finds out by itself whether it can run, often by what fails. So that a fault of Sublet is not taken for a lack of
//! this machine, [`skip`] looks for the means in its own way where the environment variable `CI` is `true`, and fails the test if the
//! machine has them.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

pub use asleep::spawn_until_asleep;
pub use growing::with_growing_time;

mod asleep;
mod growing;

/// Requirement of a test that not every machine meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// The rights of root.
    Root,
    /// A control group controller, of version 1 or 2, as `cpu`, and the rights to use it.
    Controller(&'static str),
    /// A control group controller of version 1.
    ControllerV1(&'static str),
    /// Mount namespaces, network namespaces, and file systems mounted in them.
    Namespaces,
    /// Page faults handled by a process: `/dev/userfaultfd`.
    Userfaultfd,
    /// File systems that a process serves: `/dev/fuse`, and the right to mount or the program fusermount3.
    Fuse,
    /// The library libfabric.
    Libfabric,
    /// The library libfaketime.
    Faketime,
    /// The program strace, and the right to trace.
    Strace,
    /// The program systemd-analyze.
    SystemdAnalyze,
    /// A kernel whose Landlock has rules for networks.
    LandlockNetworks,
    /// Processor cores: this number of them, or more.
    Cores(usize),
    /// This number of processor cores exactly.
    ExactCores(usize),
    /// A machine without RDMA devices.
    NoRdmaDevices,
    /// Available memory, in bytes.
    Memory(u64),
}

/// Says that the running test checks nothing, because this machine lacks what it needs. `cargo xtask test` counts and names it.
///
/// # Panics
/// If `CI` is `true` and the machine has what the test needs.
pub fn skip(missing: Means, why: impl Display) {
    let is_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!is_ci || !missing.is_here(), "skipped on a machine that has {missing:?}: {why}");
    let why = why.to_string();
    let why = why.trim().replace('\n', " ");
    let thread = thread::current();
    let name = thread.name().unwrap_or("a test");
    // The test harness captures what is printed by macros, and drops it if the test passes.
    let _ = writeln!(io::stdout(), "\nskipped: {name}: {why}");
}

impl Means {
    /// Whether this machine has it. `false` where that cannot be found out.
    #[must_use]
    pub fn is_here(self) -> bool {
        match self {
            Means::Root => is_root(),
            Means::Controller(name) => is_root() && (has_controller(name) || has_controller_v1(name)),
            Means::ControllerV1(name) => is_root() && has_controller_v1(name),
            Means::Namespaces => {
                succeeds("unshare", &["--mount", "--net", "mount", "-t", "tmpfs", "none", "/mnt"])
            }
            Means::Userfaultfd => File::options().read(true).write(true).open("/dev/userfaultfd").is_ok(),
            Means::Fuse => {
                File::options().read(true).write(true).open("/dev/fuse").is_ok()
                    && (is_root() || succeeds("fusermount3", &["--version"]))
            }
            Means::Libfabric => has_library("libfabric.so.1"),
            Means::Faketime => has_library("faketime/libfaketime.so.1"),
            Means::Strace => succeeds("strace", &["-o", "/dev/null", "true"]),
            Means::SystemdAnalyze => succeeds("systemd-analyze", &["--version"]),
            Means::LandlockNetworks => has_landlock() && kernel_version() >= Some((6, 7)),
            Means::Cores(cores) => thread::available_parallelism().is_ok_and(|here| here.get() >= cores),
            Means::ExactCores(cores) => thread::available_parallelism().is_ok_and(|here| here.get() == cores),
            Means::NoRdmaDevices => {
                fs::read_dir("/sys/class/infiniband").map_or(true, |mut devices| devices.next().is_none())
            }
            Means::Memory(bytes) => available_bytes() >= Some(bytes),
        }
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

fn has_controller(name: &str) -> bool {
    let all = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    all.split_whitespace().any(|found| found == name)
}

fn has_controller_v1(name: &str) -> bool {
    fs::metadata(Path::new("/sys/fs/cgroup").join(name).join("tasks")).is_ok()
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn has_library(name: &str) -> bool {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut folders = folders.chain(["/usr/lib", "/usr/local/lib"].map(PathBuf::from));
    folders.any(|folder| folder.join(name).is_file())
}

fn has_landlock() -> bool {
    fs::read_to_string("/sys/kernel/security/lsm").is_ok_and(|modules| modules.contains("landlock"))
}

fn kernel_version() -> Option<(u32, u32)> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let mut numbers = release.split(['.', '-']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn available_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the test below in a process of its own, and returns whether it passed and what it printed.
    fn skipping(ci: &str) -> (bool, String) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "tests::skips_for_want_of_memory", "--ignored"]).env("CI", ci);
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    }

    #[test]
    #[ignore = "the next test runs it"]
    fn skips_for_want_of_memory() {
        let needed = std::env::var("CI").map_or(u64::MAX, |ci| if ci == "true" { 1 } else { u64::MAX });
        skip(Means::Memory(needed), "as an\nexample");
    }

    #[test]
    fn skipped_tests_are_named_and_fail_in_ci() {
        let (passed, said) = skipping("");
        assert!(
            passed && said.contains("\nskipped: tests::skips_for_want_of_memory: as an example\n"),
            "{said}"
        );
        let (passed, said) = skipping("true");
        assert!(!passed && said.contains("on a machine that has Memory(1)"), "{said}");
    }
}
