//! Runs the workspace's suites of tests, several at once, and those that need the machine to themselves after them.
//!
//! `cargo test` runs one test binary after the other. Most of them wait more than they compute, so that several at once
//! take less than half the time. A binary is a suite. Linking takes longer than compiling most files of tests, so that
//! many files are modules of one binary, whose name ends in [`GROUP`]: each of these modules is a suite, with a process of
//! its own. The tests of a suite share its process, as with `cargo test`: some start one platform for all of them.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::thread;

use crate::step::{self, Step};
use crate::{PROFILE, cargo};

/// Suites that run at the same time.
const AT_ONCE: usize = 3;

/// End of the name of a binary whose modules are suites.
const GROUP: &str = "suites";

/// Suites that run for longest: they start first, so that the others fill the time beside them.
const LONGEST: &[&str] = &[
    "typescript",
    "agent",
    "random_kills",
    "runs",
    "runners",
    "conformance",
    "opencl",
    "image_pythons",
    "sim",
    "hostile",
    "environments",
    "fabrics",
    "clocks",
    "listeners",
    "network",
    "machines",
    "memory",
];

/// Suites that run without any other beside them, since they compare shares of processor time, fill the machine
/// with processes or connections, or count system calls of whole processes.
const ALONE: &[&str] = &["cores", "shared_cores", "hot_path", "idle", "crowds", "regression"];

/// The tests that share a process: those of a test binary, or of one of its modules.
#[derive(Debug, PartialEq)]
pub struct Suite {
    name: String,
    pub program: PathBuf,
    /// The package folder in which the tests expect to run.
    folder: PathBuf,
    /// The full names of the module's tests. None are named if all tests of the binary are the suite.
    tests: Vec<String>,
}

/// A command that executes tests, and the name that it has in the log.
pub struct Job {
    pub name: String,
    pub command: Command,
}

/// Output and verdict of a command that ended.
struct Report {
    lines: Vec<String>,
    passed: bool,
}

/// Environment variables that a build and its tests get in addition to this process's.
pub type Environment<'a> = &'a [(&'a str, OsString)];

/// Runs the tests of the whole workspace, documentation included. Returns whether all passed.
pub fn run(step: &mut Step) -> io::Result<bool> {
    let Some(suites) = list(step, &[])? else { return Ok(false) };
    let mut examples = cargo();
    examples.args(["test", "--profile", PROFILE, "--workspace", "--doc", "--no-fail-fast"]);
    let examples = Job { name: "documentation".to_owned(), command: examples };
    run_suites(step, suites, Some(examples), &[])
}

/// Runs suites: most of them several at once, with another job among them, then those that need the machine. Returns
/// whether all passed.
pub fn run_suites(
    step: &mut Step,
    suites: Vec<Suite>,
    other: Option<Job>,
    environment: Environment,
) -> io::Result<bool> {
    let (alone, mut together): (Vec<_>, Vec<_>) =
        suites.into_iter().partition(|suite| ALONE.contains(&suite.name.as_str()));
    together
        .sort_by_key(|suite| LONGEST.iter().position(|name| *name == suite.name).unwrap_or(LONGEST.len()));
    let jobs = |suites: Vec<Suite>| -> Vec<Job> {
        suites.into_iter().map(|suite| job(suite, environment)).collect()
    };
    let together = other.into_iter().chain(jobs(together)).collect();
    let together_passed = run_jobs(step, together, AT_ONCE)?;
    let alone_passed = run_jobs(step, jobs(alone), 1)?;
    Ok(together_passed && alone_passed)
}

/// The suites of the workspace. Their binaries are built if they are out of date.
pub fn list(step: &mut Step, environment: Environment) -> io::Result<Option<Vec<Suite>>> {
    let mut build = cargo();
    build.envs(environment.iter().cloned()).args(["test", "--profile", PROFILE, "--workspace", "--no-run"]);
    if !step.run(build)? {
        return Ok(None);
    }
    let mut list = cargo();
    list.envs(environment.iter().cloned()).args([
        "test",
        "--profile",
        PROFILE,
        "--workspace",
        "--no-run",
        "--message-format=json",
    ]);
    let output = list.stderr(Stdio::null()).output()?;
    let mut suites = Vec::new();
    for binary in String::from_utf8_lossy(&output.stdout).lines().filter_map(suite) {
        if binary.name.ends_with(GROUP) {
            suites.extend(modules_of(&binary, environment)?);
        } else {
            suites.push(binary);
        }
    }
    Ok(Some(suites))
}

/// The modules of a binary, each as a suite.
fn modules_of(binary: &Suite, environment: Environment) -> io::Result<Vec<Suite>> {
    let Suite { program, folder, .. } = binary;
    let mut list = Command::new(program);
    list.current_dir(folder).envs(environment.iter().cloned()).args(["--list", "--format", "terse"]);
    let output = list.output()?;
    let modules = by_module(&String::from_utf8_lossy(&output.stdout));
    if !output.status.success() || modules.is_empty() {
        return Err(io::Error::other(format!("{} lists no tests", program.display())));
    }
    let suite = |(name, tests)| Suite { name, program: program.clone(), folder: folder.clone(), tests };
    Ok(modules.into_iter().map(suite).collect())
}

/// The tests in a binary's list of them, by module of the binary.
fn by_module(list: &str) -> BTreeMap<String, Vec<String>> {
    let mut modules: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        let (module, _) = test.split_once("::").unwrap_or((test, ""));
        modules.entry(module.to_owned()).or_default().push(test.to_owned());
    }
    modules
}

/// Reads the suite from one of cargo's messages, if that message is about a test binary.
fn suite(message: &str) -> Option<Suite> {
    let program = step::text_field(message, "executable")?;
    let (profile, _) = message.split_once("\"profile\":{")?.1.split_once('}')?;
    if !profile.contains("\"test\":true") {
        return None;
    }
    let (_, target) = message.split_once("\"target\":{")?;
    let manifest = PathBuf::from(step::text_field(message, "manifest_path")?);
    let name = step::text_field(target, "name")?;
    Some(Suite { name, program: program.into(), folder: manifest.parent()?.to_path_buf(), tests: Vec::new() })
}

/// The command that executes a suite.
fn job(suite: Suite, environment: Environment) -> Job {
    let mut command = Command::new(&suite.program);
    command.current_dir(&suite.folder).envs(environment.iter().cloned());
    if !suite.tests.is_empty() {
        command.arg("--exact").args(&suite.tests);
    }
    Job { name: suite.name, command }
}

/// Runs commands, `at_once` at a time, and logs the output of each as it ends. Returns whether all passed.
pub fn run_jobs(step: &mut Step, jobs: Vec<Job>, at_once: usize) -> io::Result<bool> {
    let waiting = Mutex::new(VecDeque::from(jobs));
    let (sender, reports) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..at_once {
            let (sender, waiting) = (sender.clone(), &waiting);
            scope.spawn(move || {
                let next = || waiting.lock().map(|mut jobs| jobs.pop_front()).ok().flatten();
                while let Some(job) = next() {
                    if sender.send(run_one(job)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut all_passed = true;
        for report in reports {
            let Report { lines, passed } = report?;
            lines.iter().try_for_each(|line| step.line(line))?;
            all_passed &= passed;
        }
        Ok(all_passed)
    })
}

fn run_one(job: Job) -> io::Result<Report> {
    let Job { name, command } = job;
    let mut lines = vec![format!("     Running {name} ({})", command.get_program().display())];
    let passed = step::run(command, |line| {
        lines.push(line.to_owned());
        Ok(())
    })?;
    if !passed {
        lines.push(format!("FAILED {name}"));
    }
    Ok(Report { lines, passed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_test_binaries_in_messages_of_cargo() {
        let test = r#"{"manifest_path":"/a/image/Cargo.toml","target":{"kind":["test"],"name":"layers","test":true},"profile":{"opt_level":"1","test":true},"executable":"/t/layers-1","fresh":true}"#;
        let expected = Suite {
            name: "layers".into(),
            program: "/t/layers-1".into(),
            folder: "/a/image".into(),
            tests: Vec::new(),
        };
        assert_eq!(suite(test), Some(expected));
        assert_eq!(
            suite(&test.replace("\"1\",\"test\":true", "\"1\",\"test\":false")),
            None,
            "a program without tests"
        );
        assert_eq!(suite(&test.replace("\"/t/layers-1\"", "null")), None, "a library");
    }

    #[test]
    fn tests_of_a_group_are_split_by_module() {
        let list =
            "calls::ends: test\ncalls::large::ends: test\nmemory::grows: test\nmemory::time: benchmark\n";
        let [calls, memory] = [&["calls::ends", "calls::large::ends"][..], &["memory::grows"]];
        let owned = |tests: &[&str]| tests.iter().map(|test| (*test).to_owned()).collect::<Vec<_>>();
        let expected = [("calls".to_owned(), owned(calls)), ("memory".to_owned(), owned(memory))];
        assert_eq!(by_module(list), BTreeMap::from(expected));
    }

    #[test]
    fn suites_that_run_alone_exist() {
        let missing = |name: &&&str| !crate::root().join(format!("tests/tests/{name}.rs")).is_file();
        assert_eq!(ALONE.iter().filter(missing).collect::<Vec<_>>(), Vec::<&&str>::new());
    }
}
