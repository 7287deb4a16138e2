//! Shows the results of the parts, as a table and as JSON.

use std::fmt::Write;
use std::path::Path;

use super::parts::{PartKind, VmPart};
use super::read;
use crate::step::{Tally, test_result};

/// Exit status of `timeout` after it ended a command by a signal, and after it had to kill the command.
const TIMED_OUT: [i32; 2] = [124, 137];

/// How a part ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartEnd {
    Passed,
    Failed,
    LeftOut,
}

/// One line of the table.
#[derive(Debug)]
pub struct VmPartOutcome {
    pub name: &'static str,
    pub ended: PartEnd,
    /// Tests that passed and that failed; `None` for a measurement.
    tests: Option<(u64, u64)>,
    seconds: Option<u64>,
    /// Why it failed or what was left out.
    reasons: Vec<String>,
}

impl VmPartOutcome {
    /// Reads the outcome of a part from the files that the emulated machine left in the shared folder.
    pub fn read(part: &VmPart, share: &Path) -> VmPartOutcome {
        let log = read(share, &format!("{}.log", part.name));
        let status = read(share, &format!("{}.status", part.name));
        VmPartOutcome::of(part, &status, &log)
    }

    fn of(part: &VmPart, status: &str, log: &str) -> VmPartOutcome {
        let bare = VmPartOutcome {
            name: part.name,
            ended: PartEnd::Failed,
            tests: None,
            seconds: None,
            reasons: Vec::new(),
        };
        let (is_tests, limit_s) = match part.kind {
            PartKind::LeftOut(reason) => {
                return VmPartOutcome { ended: PartEnd::LeftOut, reasons: vec![reason.into()], ..bare };
            }
            PartKind::Tests { limit_s, .. } => (true, limit_s),
            PartKind::Measurement { limit_s, .. } => (false, limit_s),
        };
        let Some((status, seconds)) = numbers(status) else {
            return VmPartOutcome { reasons: vec![unfinished(log)], ..bare };
        };
        let tally = is_tests.then(|| tally(log));
        let mut reasons = left_out(log);
        let did_something = tally.as_ref().is_none_or(|tally| tally.passed > 0);
        let skipped = log.lines().filter(|line| line.starts_with("skipped")).count() as u64;
        let all_skipped = skipped > 0
            && tally.as_ref().is_none_or(|tally| skipped >= tally.passed)
            && !log.lines().any(|line| line.starts_with("over "));
        let ended = match () {
            () if status != 0 || !did_something => PartEnd::Failed,
            () if all_skipped => PartEnd::LeftOut,
            () => PartEnd::Passed,
        };
        if TIMED_OUT.contains(&status) {
            reasons.push(format!("not done after {limit_s} s{}", running(log)));
        } else if ended == PartEnd::Failed {
            reasons.extend(failed(log));
            reasons.push(format!("exit status {status}"));
        }
        let tests = tally.map(|tally| (tally.passed, tally.failed));
        VmPartOutcome { ended, tests, seconds: Some(seconds), reasons, ..bare }
    }

    /// Whether it passed, or was not to run.
    pub fn is_good(&self) -> bool {
        self.ended != PartEnd::Failed
    }

    /// Whether it is a check at all.
    pub fn was_to_run(&self) -> bool {
        self.ended != PartEnd::LeftOut
    }

    fn verdict(&self) -> &'static str {
        match self.ended {
            PartEnd::Passed => "ok",
            PartEnd::Failed => "FAILED",
            PartEnd::LeftOut => "left out",
        }
    }
}

/// Formats the outcomes as a table, for people.
pub fn table(title: &str, outcomes: &[VmPartOutcome]) -> String {
    let mut table = format!("{title:<14}{:<10}{:>8}{:>8}{:>8}  \n", "", "passed", "failed", "time");
    for outcome in outcomes {
        let count =
            |of: fn((u64, u64)) -> u64| outcome.tests.map_or("-".to_owned(), |tests| of(tests).to_string());
        let time = outcome.seconds.map_or("-".to_owned(), |seconds| format!("{seconds} s"));
        // Writing to a string cannot fail.
        let _ = writeln!(
            table,
            "{:<14}{:<10}{:>8}{:>8}{:>8}  {}",
            outcome.name,
            outcome.verdict(),
            count(|tests| tests.0),
            count(|tests| tests.1),
            time,
            outcome.reasons.join("; ")
        );
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Formats the outcomes as JSON, for programs.
pub fn json(outcomes: &[VmPartOutcome]) -> String {
    let number = |number: Option<u64>| number.map_or("null".to_owned(), |number| number.to_string());
    let objects = outcomes.iter().map(|outcome| {
        format!(
            "{{\"name\": \"{}\", \"result\": \"{}\", \"passed\": {}, \"failed\": {}, \"seconds\": {}, \
             \"reason\": \"{}\"}}",
            outcome.name,
            outcome.verdict().to_lowercase().replace(' ', "_"),
            number(outcome.tests.map(|tests| tests.0)),
            number(outcome.tests.map(|tests| tests.1)),
            number(outcome.seconds),
            outcome.reasons.join("; ").replace(['"', '\\'], "'")
        )
    });
    format!("[{}]", objects.collect::<Vec<_>>().join(", "))
}

/// Parses the exit status and the seconds of a part.
fn numbers(status: &str) -> Option<(i32, u64)> {
    let (status, seconds) = status.trim().split_once(' ')?;
    Some((status.parse().ok()?, seconds.parse().ok()?))
}

fn tally(log: &str) -> Tally {
    let mut sum = Tally::default();
    log.lines().filter_map(test_result).for_each(|result| sum.add(result));
    sum
}

/// Returns the lines in which tests say that they were skipped, each once.
fn left_out(log: &str) -> Vec<String> {
    let mut reasons: Vec<String> = Vec::new();
    for line in log.lines().filter(|line| line.starts_with("skipped")) {
        if !reasons.iter().any(|known| known == line) {
            reasons.push(line.to_owned());
        }
    }
    reasons
}

/// Says why a part has no status: it had not begun or not ended when the emulated machine stopped.
fn unfinished(log: &str) -> String {
    match log {
        "" => "not begun when the emulated machine ended".to_owned(),
        _ => format!("not done when the emulated machine ended{}", running(log)),
    }
}

/// Returns the test that had begun and not ended.
fn running(log: &str) -> String {
    let test = log.lines().rev().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... "));
    test.map_or(String::new(), |test| format!(", in {test}"))
}

/// Returns the tests that failed.
fn failed(log: &str) -> Option<String> {
    let names = log.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    let names: Vec<_> = names.collect();
    (!names.is_empty()).then(|| names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "running 2 tests\ntest a::one ... ok\ntest a::two ... ";
    const OK: &str = "over Ofi\ntest result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out\n";

    fn of(status: &str, log: &str) -> VmPartOutcome {
        let kind = PartKind::Tests { program: "conformance", arguments: "a::", limit_s: 7 };
        VmPartOutcome::of(&VmPart::new("a", kind), status, log)
    }

    #[test]
    fn passing_tests_are_counted_and_failing_or_hanging_ones_named() {
        let passed = of("0 12\n", OK);
        assert_eq!((passed.ended, passed.tests, passed.seconds), (PartEnd::Passed, Some((2, 0)), Some(12)));
        let hangs = of("124 7\n", LOG);
        assert_eq!((hangs.ended, &*hangs.reasons[0]), (PartEnd::Failed, "not done after 7 s, in a::two"));
        let fails =
            of("101 3\n", "test a::one ... FAILED\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\n");
        assert_eq!((fails.ended, fails.tests, &*fails.reasons[0]), (PartEnd::Failed, Some((1, 1)), "a::one"));
        assert!(table("a", &[fails]).contains("FAILED"));
    }

    #[test]
    fn a_part_that_did_nothing_has_not_passed() {
        assert_eq!(of("0 1\n", "").ended, PartEnd::Failed);
        assert_eq!(
            (of("", "").ended, &*of("", "").reasons[0]),
            (PartEnd::Failed, "not begun when the emulated machine ended")
        );
        assert!(of("", LOG).reasons[0].ends_with("in a::two"));
        assert_eq!(
            of("0 1\n", "test result: ok. 0 passed; 0 failed; 9 filtered out\n").ended,
            PartEnd::Failed
        );
    }

    #[test]
    fn reports_skipped_tests_with_their_reason() {
        let log = format!("skipped over Ofi: no memory\nskipped over Ofi: no memory\n{OK}");
        let some = of("0 1\n", &log);
        assert_eq!((some.ended, some.reasons.len()), (PartEnd::Passed, 1));
        let few = of("0 1\n", &format!("skipped: no rights\n{}", OK.replace("over Ofi\n", "")));
        assert_eq!((few.ended, few.reasons.len()), (PartEnd::Passed, 1));
        let all = of("0 1\n", &log.replace("over Ofi\ntest", "test"));
        assert_eq!((all.ended, &*all.reasons[0]), (PartEnd::LeftOut, "skipped over Ofi: no memory"));
        assert!(json(&[all]).contains("\"result\": \"left_out\""));
    }
}
