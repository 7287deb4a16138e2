//! `cargo xtask bench`: runs every measuring command of the documents, and writes the measurements into
//! docs/performance.md, and a few of them into README.md.
//!
//! The commands are read from SPECIFICATION.md, where each stands beside its promise, and from docs/performance.md, so a
//! promise and its measurement cannot drift apart. A sweep over payloads for each fabric makes the plot. The reader judges
//! the measurements: a limit that fails the run would measure the other programs of this machine. A command that measured
//! nothing, because this machine lacks its fabric for instance, is listed with the reason. No other document has
//! measurements, and each measuring command is in the report; tests assert both.

mod criterion;
mod json;
mod plot;
#[cfg(test)]
mod quantities;
mod report;
mod scad;
mod speed;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, ExitCode};

use crate::options::ChoreOptions;
use crate::step::{Show, Step, StepOutcome};
use crate::{cargo, root};
use json::Measurement;
use report::UnmeasuredCommand;

/// The commands whose measurements the plot shows.
const SWEEPS: [&str; 3] = [
    "sublet bench latency --fabric shm --mode hot --sweep --json",
    "sublet bench latency --fabric tcp --mode hot --sweep --json",
    "sublet bench latency --fabric ofi --mode hot --sweep --json",
];
/// The script that measures over a link of a known rate.
const LINK: &str = "scripts/bench-link.sh";
const PLOT: &str = "docs/latency.svg";
const DOCUMENT: &str = "docs/performance.md";
const README: &str = "README.md";
/// Beginnings of commands that measure.
const MEASURING: [&str; 4] = ["sublet bench ", LINK, "cargo bench ", "examples/"];
/// The error's name where a machine lacks what a fabric needs.
const UNAVAILABLE: &str = "\"fabric_unavailable\"";

/// Builds, then runs the commands one after the other; with the word `scad`, those of Scad's evaluation.
pub fn chore(mut options: ChoreOptions) -> io::Result<ExitCode> {
    match options.take_part().as_deref() {
        None => options.end()?,
        Some("scad") => return scad::chore(options),
        Some(other) => return Err(io::Error::other(format!("bench {other:?}: there is only `bench scad`"))),
    }
    let mut step = Step::start("bench", Show::Everything)?;
    let outcome = measure(&mut step)?;
    let tally = step.finish(outcome)?;
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(step: &mut Step) -> io::Result<StepOutcome> {
    let mut build = cargo();
    build.args(["build", "--release", "--workspace"]);
    if !step.run(build)? {
        return Ok(StepOutcome::Failed);
    }
    let promises = fs::read_to_string(root().join("SPECIFICATION.md"))?;
    let document = fs::read_to_string(root().join(DOCUMENT))?;
    let named = format!("{promises}\n{}", report::without_measurements(&document));
    let (mut all_passed, mut measurements, mut series) = (true, Vec::new(), Vec::new());
    let mut unmeasured = Vec::new();
    for command in commands(&named) {
        let outcome = MeasuringCommand::new(command).run(step)?;
        measurements.extend(outcome.measurements);
        if let Some(problem) = outcome.problem {
            all_passed &= !problem.is_failure;
            unmeasured.push(UnmeasuredCommand { command: command.to_owned(), reason: problem.reason });
        }
    }
    for sweep in SWEEPS.map(MeasuringCommand::new) {
        let outcome = sweep.run(step)?;
        all_passed &= !outcome.problem.is_some_and(|problem| problem.is_failure);
        series.extend(report::series(&outcome.measurements));
    }
    fs::write(root().join(PLOT), plot::svg("Latency of a hot echo", &series))?;
    let machine = machine();
    let text = format!("{machine}\n\n{}", report::tables(&measurements, &unmeasured));
    write(DOCUMENT, report::BEGIN, &text)?;
    write(README, report::BEGIN, &format!("{machine}\n\n{}", speed::table(&measurements)))?;
    Ok(StepOutcome::from(all_passed))
}

/// Writes the text behind a mark of a document.
fn write(document: &str, begin: &str, text: &str) -> io::Result<()> {
    let path = root().join(document);
    match report::insert(&fs::read_to_string(&path)?, begin, text) {
        Some(written) => fs::write(path, written),
        None => Err(io::Error::other(format!("{document} has no place for measurements"))),
    }
}

/// The outcome of a measuring command. One that failed may have printed measurements before.
#[derive(Default)]
struct Outcome {
    measurements: Vec<Measurement>,
    problem: Option<Problem>,
}

/// Why measurements of a command are missing.
struct Problem {
    reason: &'static str,
    /// Whether the command should have measured on this machine.
    is_failure: bool,
}

/// A measuring command of a document.
#[derive(Clone, Debug, PartialEq)]
struct MeasuringCommand<'text> {
    /// The command as the document has it.
    text: &'text str,
    words: Vec<&'text str>,
    /// Rate of the link that the measurement uses, if it uses one.
    link: Option<&'text str>,
}

impl<'text> MeasuringCommand<'text> {
    /// Splits a command into words as a shell would. Simplified to what the documents need: a quoted word has no
    /// spaces.
    fn new(command: &'text str) -> MeasuringCommand<'text> {
        let words: Vec<_> = command.split_whitespace().map(|word| word.trim_matches('\'')).collect();
        let link = (words[0] == LINK).then(|| words[1]);
        MeasuringCommand { text: command, words, link }
    }

    /// Runs the command and returns its measurements, and the reason for which some are missing.
    fn run(&self, step: &mut Step) -> io::Result<Outcome> {
        if self.link.is_some() && fs::metadata("/proc/self")?.uid() != 0 {
            println!("not measured, because only root makes network namespaces: {}", self.words.join(" "));
            let problem = Problem { reason: "only root makes network namespaces", is_failure: false };
            return Ok(Outcome { problem: Some(problem), ..Outcome::default() });
        }
        let mut command = match (self.link, self.words[0]) {
            (Some(_), _) => Command::new(root().join(LINK)),
            (None, "cargo") => cargo(),
            (None, scad::PROGRAM) => scad::program(),
            (None, _) => Command::new(root().join("scripts/with-sublet.sh")),
        };
        let is_program = self.link.is_some() || ["cargo", scad::PROGRAM].contains(&self.words[0]);
        command.current_dir(root()).args(&self.words[usize::from(is_program)..]);
        let (succeeded, lines) = step.run_and_keep(command)?;
        let measurements = self.measurements(&lines);
        let problem = if lines.iter().any(|line| line.contains(UNAVAILABLE)) {
            Some(Problem { reason: "this machine lacks what the fabric needs", is_failure: false })
        } else if !succeeded {
            Some(Problem { reason: "the command failed", is_failure: true })
        } else {
            let is_silent = measurements.is_empty();
            is_silent.then_some(Problem { reason: "the command printed no measurement", is_failure: true })
        };
        step.count(!problem.as_ref().is_some_and(|problem| problem.is_failure));
        Ok(Outcome { measurements, problem })
    }

    /// Reads the measurements in the command's output.
    fn measurements(&self, lines: &[String]) -> Vec<Measurement> {
        let in_json = lines.iter().flat_map(|line| Measurement::all_of(line));
        let found = in_json.chain(criterion::measurements(lines)).filter(Measurement::has_measured);
        found.map(|found| found.over(self.link).by(self.text)).collect()
    }
}

/// Describes the machine and the date of the measurements.
fn machine() -> String {
    let said = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).current_dir(root()).output().ok();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        text.filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
    };
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    format!(
        "Measured on {} at commit {}, on {} cores of {}, Linux {}.",
        said("date", &["-u", "+%Y-%m-%d"]),
        said("git", &["rev-parse", "--short", "HEAD"]),
        std::thread::available_parallelism().map_or(1, usize::from),
        model.map_or("an unnamed processor", |(_, model)| model),
        said("uname", &["-r"])
    )
}

/// Returns each measuring command among the document's code spans, once, in their order.
fn commands(markdown: &str) -> Vec<&str> {
    let code_spans = markdown.split('`').skip(1).step_by(2);
    let mut commands = Vec::new();
    let measures = |code: &&str| {
        let prints_measurements = code.starts_with("cargo bench ") || code.ends_with(" --json");
        prints_measurements && MEASURING.iter().any(|beginning| code.starts_with(beginning))
    };
    for command in code_spans.filter(measures) {
        if !commands.contains(&command) {
            commands.push(command);
        }
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_of_the_document_is_run_once() {
        let markdown = "| a | `sublet bench swap --json` |\n| b | `make test`, `sublet bench swap --json` |\n\
                        | c | `scripts/bench-link.sh 1gbit bandwidth --json` | `sublet ps --json`, `sublet bench fifo` |";
        let commands = commands(markdown);
        assert_eq!(commands, ["sublet bench swap --json", "scripts/bench-link.sh 1gbit bandwidth --json"]);
        let of = |command| MeasuringCommand::new(command);
        assert_eq!((of(commands[0]).link, of(commands[1]).link), (None, Some("1gbit")));
        let quoted = of("sublet bench latency --provider 'tcp;ofi_rxm'").words;
        assert_eq!(quoted, ["sublet", "bench", "latency", "--provider", "tcp;ofi_rxm"]);
    }

    #[test]
    fn the_documents_have_places_for_measurements() {
        for path in [DOCUMENT, README] {
            let document = fs::read_to_string(root().join(path)).unwrap();
            assert!(report::insert(&document, report::BEGIN, "").is_some(), "{path}");
        }
        let document = fs::read_to_string(root().join(DOCUMENT)).unwrap();
        assert!(document.contains("](latency.svg)"), "{DOCUMENT} does not show the plot");
    }

    #[test]
    fn every_measuring_command_is_in_the_report() {
        let promises = fs::read_to_string(root().join("SPECIFICATION.md")).unwrap();
        let document = fs::read_to_string(root().join(DOCUMENT)).unwrap();
        let (_, report) = document.split_once(report::BEGIN).unwrap();
        let (report, _) = report.split_once(report::END).unwrap();
        let named = format!("{promises}\n{}", report::without_measurements(&document));
        for command in commands(&named) {
            assert!(
                report.contains(&format!("`{command}`")),
                "run `make bench`, or add this to the report's last table: | `{command}` | added after this run |"
            );
        }
    }

    #[test]
    fn benches_print_the_rows_of_the_document() {
        let document = fs::read_to_string(root().join(DOCUMENT)).unwrap();
        for (command, source) in [
            ("cargo bench -p sublet-sandbox", "crates/sandbox/benches/start.rs"),
            ("cargo bench -p sublet-tests --bench cold", "tests/benches/cold.rs"),
            ("cargo bench -p sublet-tests --bench hops", "tests/benches/hops.rs"),
        ] {
            let source = fs::read_to_string(root().join(source)).unwrap();
            let end = format!("| `{command}` |");
            let cells = document
                .lines()
                .filter(|line| line.ends_with(&end))
                .filter_map(|line| line.split('|').nth(2));
            let names: Vec<_> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
            assert!(names.len() > 2, "{command}: {names:?}");
            for name in names {
                // A literal, a program that has the name, or text of JSON.
                let forms = [format!("\"{name}\""), format!("/{name}\""), format!("\\\"{name}\\\"")];
                assert!(forms.iter().any(|form| source.contains(form)), "{command} has no row {name}");
            }
        }
    }
}
