//! One step of a chore: runs commands, keeps their output in a log, counts the tests that it reports.
//!
//! Standard output and error share one pipe, so the log has the lines in the order in which they were written.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, PipeReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::root;

/// Lines of a failed step's log that are shown: enough for the failures, bounded for a runaway test.
const SHOWN_LINES: usize = 400;
/// Lines after the shown log that name the failed tests again: the shown lines may be of tests that passed.
const SHOWN_FAILURES: usize = 40;
/// Lines read and not yet logged.
const QUEUED_LINES: usize = 1024;
/// Lines of one command's output that are kept for the caller.
const KEPT_LINES: usize = 1000;
/// Longest time of one command in a test run: a command that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(30 * 60);
/// Longest wait for a line of output before the step checks whether the command still runs.
const TICK: Duration = Duration::from_millis(200);

/// Output of a step beside its log.
#[derive(Clone, Copy, PartialEq)]
pub enum Show {
    /// One line for the step; on a terminal, meanwhile, the latest line of output.
    Summary,
    /// Every line, as it comes.
    Everything,
}

/// Beginning of the line in which a test in Rust, C or C++ reports that it is skipped on this machine: its name and the
/// reason follow.
const SKIPPED: &str = "skipped: ";

/// The outcomes of checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
    /// The tests that checked nothing on this machine, each with the reason.
    pub skipped: Vec<String>,
}

impl Tally {
    /// Adds the counts of another tally.
    pub fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
    }

    /// The sum of all checks, as the last line of a test run: programs read its beginning.
    pub fn sum(&self) -> String {
        let Tally { passed, failed, skipped } = self;
        format!("{passed} passed, {failed} failed, {} skipped", skipped.len())
    }
}

/// How a step ended.
pub enum StepOutcome {
    Passed,
    Failed,
    /// The step was not done, for this reason.
    Skipped(String),
}

impl From<bool> for StepOutcome {
    fn from(passed: bool) -> StepOutcome {
        if passed { StepOutcome::Passed } else { StepOutcome::Failed }
    }
}

/// A step in progress.
pub struct Step {
    name: &'static str,
    show: Show,
    log: File,
    log_path: PathBuf,
    /// The last lines of output, for a caller that reads them: see [`Step::run_and_keep`].
    kept: Option<Vec<String>>,
    tally: Tally,
    /// Skipped tests that their harness counts among those that passed.
    skipped_but_passed: u64,
    /// The program of tests that runs.
    suite: String,
    started: Instant,
}

impl Step {
    /// Starts the step's log, `target/xtask/NAME.log`, and its clock.
    pub fn start(name: &'static str, show: Show) -> io::Result<Step> {
        let folder = root().join("target/xtask");
        std::fs::create_dir_all(&folder)?;
        let log_path = folder.join(name.replace(' ', "-")).with_extension("log");
        let log = File::create(&log_path)?;
        let (tally, skipped_but_passed, suite, started) =
            (Tally::default(), 0, String::new(), Instant::now());
        let step = Step { name, show, log, log_path, kept: None, tally, skipped_but_passed, suite, started };
        step.progress("");
        Ok(step)
    }

    /// Runs a command to its end, or, if the step shows only a summary, to [`LIMIT`]. Returns whether it succeeded.
    pub fn run(&mut self, command: Command) -> io::Result<bool> {
        self.line(&format!("$ {command:?}"))?;
        let limit = (self.show == Show::Summary).then_some(LIMIT);
        run_within(command, limit, |line| self.line(line))
    }

    /// Runs a command like [`Step::run`], and also returns its last lines of output, at most [`KEPT_LINES`].
    pub fn run_and_keep(&mut self, command: Command) -> io::Result<(bool, Vec<String>)> {
        self.kept = Some(Vec::new());
        let succeeded = self.run(command);
        let lines = self.kept.take().unwrap_or_default();
        succeeded.map(|succeeded| (succeeded, lines))
    }

    /// Counts one check that is not a test of cargo's.
    pub fn count(&mut self, passed: bool) {
        self.tally.passed += u64::from(passed);
        self.tally.failed += u64::from(!passed);
    }

    /// Whether any test or check has been counted.
    pub fn has_counted(&self) -> bool {
        self.tally != Tally::default()
    }

    /// Writes the step's line, and after a failure its log. A step that counted nothing is itself one check.
    pub fn finish(mut self, outcome: StepOutcome) -> io::Result<Tally> {
        let seconds = self.started.elapsed();
        match &outcome {
            StepOutcome::Passed if !self.has_counted() => self.count(true),
            StepOutcome::Failed if self.tally.failed == 0 => self.count(false),
            StepOutcome::Skipped(why) => self.tally.skipped.push(format!("{}: {why}", self.name)),
            _ => {}
        }
        self.tally.passed = self.tally.passed.saturating_sub(self.skipped_but_passed);
        self.clear_progress();
        let counts = self.tally.sum();
        match &outcome {
            StepOutcome::Passed => println!("{}", summary(self.name, "ok", seconds, &counts)),
            StepOutcome::Skipped(why) => println!("{}", summary(self.name, "SKIPPED", seconds, why)),
            StepOutcome::Failed => {
                println!("{}", summary(self.name, "FAILED", seconds, &counts));
                self.show_log()?;
            }
        }
        Ok(self.tally)
    }

    /// Logs one line of output, and counts the tests that it reports.
    pub fn line(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.log, "{line}")?;
        if let Some(kept) = &mut self.kept {
            if kept.len() == KEPT_LINES {
                kept.remove(0);
            }
            kept.push(line.to_owned());
        }
        if let Some(tally) = test_result(line) {
            self.tally.add(tally);
        }
        self.note_skipped(line);
        match self.show {
            Show::Everything => println!("{line}"),
            Show::Summary => self.progress(line),
        }
        Ok(())
    }

    /// Notes the tests that a line of output reports as skipped.
    fn note_skipped(&mut self, line: &str) {
        if let Some((suite, _)) =
            line.trim_start().strip_prefix("Running ").and_then(|line| line.split_once(" ("))
        {
            suite.clone_into(&mut self.suite);
        } else if let Some(test) = line.strip_prefix(SKIPPED) {
            let test = match self.suite.as_str() {
                "" => test.to_owned(),
                suite => format!("{suite}: {test}"),
            };
            // Some tests find out more than once that they cannot run.
            if !self.tally.skipped.contains(&test) {
                self.skipped_but_passed += 1;
                self.tally.skipped.push(test);
            }
        } else if let Some((count, test)) = skipped_by_pytest(line) {
            self.tally.skipped.extend(std::iter::repeat_n(test.to_owned(), count));
        }
    }

    fn progress(&self, line: &str) {
        if self.show == Show::Summary && io::stdout().is_terminal() {
            let line: String = line.trim().chars().filter(|c| !c.is_control()).take(60).collect();
            print!("\r\x1b[K{:<12} {:>6.1} s  {line}", self.name, self.started.elapsed().as_secs_f32());
            // A failure to show the progress does not stop the step.
            let _ = io::stdout().flush();
        }
    }

    fn clear_progress(&self) {
        if self.show == Show::Summary && io::stdout().is_terminal() {
            print!("\r\x1b[K");
        }
    }

    fn show_log(&self) -> io::Result<()> {
        if self.show == Show::Everything {
            return Ok(());
        }
        let log = std::fs::read(&self.log_path)?;
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        for line in &lines[lines.len().saturating_sub(SHOWN_LINES)..] {
            println!("    {line}");
        }
        for line in failures(&lines).take(SHOWN_FAILURES) {
            println!("    {line}");
        }
        println!("    (the whole log: {})", self.log_path.display());
        Ok(())
    }
}

/// Runs a command to its end, or to [`LIMIT`], and passes each line of its output on. Returns whether it succeeded.
pub fn run(command: Command, each_line: impl FnMut(&str) -> io::Result<()>) -> io::Result<bool> {
    run_within(command, Some(LIMIT), each_line)
}

fn run_within(
    mut command: Command,
    limit: Option<Duration>,
    each_line: impl FnMut(&str) -> io::Result<()>,
) -> io::Result<bool> {
    let (output, input) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(input.try_clone()?).stderr(input);
    let program = command.get_program().display().to_string();
    let child = command
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("{program} does not start: {error}")))?;
    // The command holds the pipe's writing end: while it lives, the output has no end.
    drop(command);
    follow(child, lines_of(output), limit, each_line)
}

/// Takes lines until there are no more. A process that outlives the command and holds its output open does not keep
/// the step waiting.
fn follow(
    mut child: Child,
    lines: Receiver<String>,
    limit: Option<Duration>,
    mut each_line: impl FnMut(&str) -> io::Result<()>,
) -> io::Result<bool> {
    let started = Instant::now();
    loop {
        match lines.recv_timeout(TICK) {
            Ok(line) => each_line(&line)?,
            Err(RecvTimeoutError::Disconnected) => return Ok(child.wait()?.success()),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = child.try_wait()? {
                    return Ok(status.success());
                }
            }
        }
        if let Some(limit) = limit.filter(|limit| started.elapsed() > *limit) {
            child.kill()?;
            child.wait()?;
            each_line(&format!("stopped after {} s", limit.as_secs()))?;
            return Ok(false);
        }
    }
}

/// A text field of a JSON object that has no escapes in it.
pub fn text_field(line: &str, name: &str) -> Option<String> {
    let rest = line.split(&format!("\"{name}\":\"")).nth(1)?;
    Some(rest.split('"').next()?.to_owned())
}

/// Reads lines on a thread of its own, so that waiting for one can have an end.
fn lines_of(output: PipeReader) -> Receiver<String> {
    let (sender, lines) = mpsc::sync_channel(QUEUED_LINES);
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    lines
}

fn summary(name: &str, verdict: &str, took: Duration, detail: &str) -> String {
    format!("{name:<12} {verdict:<8} {:>6.1} s  {detail}", took.as_secs_f32())
}

/// Finds the lines of a log in which cargo or pytest names a failed test, and the message of its panic.
fn failures<'a>(lines: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    let is_named = |line: &str| {
        line.starts_with("test ") && line.ends_with(" ... FAILED")
            || line.starts_with("FAILED ")
            || line.starts_with("ERROR ")
    };
    let panics = |line: &str| line.starts_with("thread '") && line.contains(" panicked at ");
    let before = [""].iter().chain(lines);
    let told =
        before.zip(lines).filter(move |(before, line)| is_named(line) || panics(line) || panics(before));
    told.map(|(_, line)| *line)
}

/// The numbers of a line such as `test result: ok. 12 passed; 0 failed; 1 ignored; ...`, or of pytest's last one, as
/// `2 failed, 12 passed, 1 skipped in 3.21s`.
pub fn test_result(line: &str) -> Option<Tally> {
    cargos_result(line).or_else(|| pytests_result(line))
}

fn pytests_result(line: &str) -> Option<Tally> {
    let (counts, seconds) = line.trim_matches(['=', ' ']).rsplit_once(" in ")?;
    seconds.split_once('s')?.0.parse::<f64>().ok()?;
    let mut tally = Tally::default();
    for part in counts.split(", ") {
        let (count, what) = part.split_once(' ')?;
        let count: u64 = count.parse().ok()?;
        match what {
            "passed" => tally.passed += count,
            "failed" | "error" | "errors" => tally.failed += count,
            _ => {}
        }
    }
    Some(tally)
}

/// The count and the place and reason of a line such as `SKIPPED [2] tests/test_a.py:12: no C compiler is here`.
fn skipped_by_pytest(line: &str) -> Option<(usize, &str)> {
    let (count, test) = line.strip_prefix("SKIPPED [")?.split_once("] ")?;
    Some((count.parse().ok()?, test))
}

fn cargos_result(line: &str) -> Option<Tally> {
    let (_, counts) = line.trim_start().strip_prefix("test result: ")?.split_once(". ")?;
    let count = |what: &str| {
        let part = counts.split("; ").find_map(|part| part.strip_suffix(what))?;
        part.trim().parse().ok()
    };
    Some(Tally { passed: count("passed")?, failed: count("failed")?, skipped: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargos_results_are_counted() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.02s";
        assert_eq!(test_result(line), Some(Tally { passed: 12, failed: 3, skipped: Vec::new() }));
        assert!(test_result("test wire::header_has_64_bytes ... ok").is_none());
        assert!(test_result("test result: what?").is_none());
    }

    #[test]
    fn what_failed_is_named_with_its_words() {
        let log = [
            "test a::passes ... ok",
            "test a::fails ... FAILED",
            "",
            "---- a::fails stdout ----",
            "thread 'a::fails' (12) panicked at src/a.rs:3:5:",
            "the node is lost",
            "note: run with `RUST_BACKTRACE=1`",
            "FAILED tests/test_a.py::test_fails - assert 1 == 2",
        ];
        let told: Vec<&str> = failures(&log).collect();
        assert_eq!(told, [log[1], log[4], log[5], log[7]]);
        assert_eq!(failures(&[]).count(), 0);
    }

    #[test]
    fn skipped_tests_are_named_once_and_have_not_passed() {
        let mut step = Step::start("test of skipped tests", Show::Summary).unwrap();
        for line in [
            "     Running clocks (/t/clocks-1)",
            "skipped: tests::a: no clock",
            "skipped: tests::a: no clock",
            "test result: ok. 3 passed; 0 failed; 0 ignored",
            "     Running tests/swap.rs (/t/swap-1)",
            "skipped: tests::a: no clock",
            "test result: ok. 1 passed; 0 failed; 0 ignored",
            "SKIPPED [2] tests/test_a.py:12: no C compiler is here",
            "4 passed, 2 skipped in 3.21s",
        ] {
            step.line(line).unwrap();
        }
        let tally = step.finish(StepOutcome::Passed).unwrap();
        let python = "tests/test_a.py:12: no C compiler is here";
        let expected = ["clocks: tests::a: no clock", "tests/swap.rs: tests::a: no clock", python, python];
        assert_eq!(tally.skipped, expected);
        assert_eq!(tally.sum(), "6 passed, 0 failed, 4 skipped");
    }

    #[test]
    fn pytests_results_are_counted() {
        let count = |line: &str| test_result(line).map(|Tally { passed, failed, .. }| (passed, failed));
        assert_eq!(count("42 passed in 9.27s"), Some((42, 0)));
        assert_eq!(count("= 2 failed, 12 passed, 1 skipped, 3 errors in 61.02s (0:01:01) ="), Some((12, 5)));
        assert_eq!(count("collected 42 items in 3s"), None);
        assert_eq!(count("a test took 5 s in all"), None);
    }
}
