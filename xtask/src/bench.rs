//! `cargo xtask bench`: runs every measuring command of the documents, and writes the measurements into
//! docs/performance.md.
//!
//! The commands are read from SPECIFICATION.md, where each stands beside its promise, and from docs/performance.md, so a
//! promise and its measurement cannot drift apart. A sweep over payloads for each fabric makes the plot. The reader judges
//! the measurements: a limit that fails the run would measure the other programs of this machine. A fabric that this
//! machine cannot use is left out, and the output says so. No other document has measurements; a test asserts that.

mod criterion;
mod json;
mod plot;
mod report;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, ExitCode};

use crate::options::ChoreOptions;
use crate::step::{Show, Step, StepOutcome};
use crate::{cargo, root};
use json::Measurement;

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
/// Beginnings of commands that measure.
const MEASURING: [&str; 4] = ["sublet bench ", LINK, "cargo bench ", "examples/"];
/// The error's name where a machine lacks what a fabric needs.
const UNAVAILABLE: &str = "\"fabric_unavailable\"";

/// Builds, then runs the commands one after the other.
pub fn chore(options: ChoreOptions) -> io::Result<ExitCode> {
    options.end()?;
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
    for command in commands(&named).into_iter().map(MeasuringCommand::new) {
        let measured = command.run(step)?;
        all_passed &= measured.is_some();
        measurements.extend(measured.unwrap_or_default());
    }
    for sweep in SWEEPS.map(MeasuringCommand::new) {
        let measured = sweep.run(step)?;
        all_passed &= measured.is_some();
        series.extend(report::series(&measured.unwrap_or_default()));
    }
    fs::write(root().join(PLOT), plot::svg("Latency of a hot echo", &series))?;
    let text = format!("{}\n\n{}", machine(), report::tables(&measurements));
    match report::insert(&document, &text) {
        Some(document) => fs::write(root().join(DOCUMENT), document)?,
        None => return Err(io::Error::other(format!("{DOCUMENT} has no place for measurements"))),
    }
    Ok(StepOutcome::from(all_passed))
}

/// A measuring command of a document.
#[derive(Clone, Debug, PartialEq)]
struct MeasuringCommand<'text> {
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
        MeasuringCommand { words, link }
    }

    /// Runs the command and returns its measurements, or `None` if the command failed.
    fn run(&self, step: &mut Step) -> io::Result<Option<Vec<Measurement>>> {
        if self.link.is_some() && fs::metadata("/proc/self")?.uid() != 0 {
            println!("not measured, because only root makes network namespaces: {}", self.words.join(" "));
            return Ok(Some(Vec::new()));
        }
        let mut command = match (self.link, self.words[0]) {
            (Some(_), _) => Command::new(root().join(LINK)),
            (None, "cargo") => cargo(),
            (None, _) => Command::new(root().join("scripts/with-sublet.sh")),
        };
        let is_program = self.link.is_some() || self.words[0] == "cargo";
        command.current_dir(root()).args(&self.words[usize::from(is_program)..]);
        let (succeeded, lines) = step.run_and_keep(command)?;
        let unavailable = lines.iter().any(|line| line.contains(UNAVAILABLE));
        let passed = succeeded || unavailable;
        step.count(passed);
        let measurements =
            lines.iter().flat_map(|line| Measurement::all_of(line)).chain(criterion::measurements(&lines));
        let command = self.words.join(" ");
        Ok(passed.then(|| measurements.map(|measurement| measurement.over(self.link).by(&command)).collect()))
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

    /// Whether a line has a measured time or rate: a number, then one of these units.
    fn has_measurement(line: &str) -> bool {
        const UNITS: [&str; 6] = ["ns", "us", "µs", "MB/s", "GB/s", "million/s"];
        let words: Vec<_> = line.split(|c: char| c.is_whitespace() || "|,;:()".contains(c)).collect();
        words
            .windows(2)
            .any(|pair| pair[0].parse::<f64>().is_ok() && UNITS.contains(&pair[1].trim_end_matches('.')))
    }

    #[test]
    fn measurements_are_in_the_performance_document_only() {
        // Promises and bounds have units, too. The measurements of use cases are written by examples/use_cases.py.
        const WITH_UNITS: [&str; 4] =
            [DOCUMENT, "SPECIFICATION.md", "docs/reference/limits.md", "examples/README.md"];
        for path in crate::map::files(&["md"]).unwrap() {
            if WITH_UNITS.iter().any(|document| path == std::path::Path::new(document)) {
                continue;
            }
            let text = fs::read_to_string(root().join(&path)).unwrap();
            let measurements: Vec<_> = text.lines().filter(|line| has_measurement(line)).collect();
            assert!(
                measurements.is_empty(),
                "{}: link to {DOCUMENT} instead of {measurements:#?}",
                path.display()
            );
        }
    }

    #[test]
    fn a_measurement_is_a_number_with_a_unit() {
        for line in ["takes 4.6 us.", "| 3 ns |", "some 9519 MB/s"] {
            assert!(has_measurement(line), "{line}");
        }
        for line in ["`p99_ns`", "within 800 ms", "lease us 2 cores", "2 nsec"] {
            assert!(!has_measurement(line), "{line}");
        }
    }

    #[test]
    fn benches_print_the_rows_of_the_document() {
        let document = fs::read_to_string(root().join(DOCUMENT)).unwrap();
        for (command, source) in [
            ("cargo bench -p sublet-sandbox", "crates/sandbox/benches/start.rs"),
            ("cargo bench -p sublet-tests --bench cold", "tests/benches/cold.rs"),
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

    #[test]
    fn the_document_has_a_place_for_measurements() {
        let document = fs::read_to_string(root().join(DOCUMENT)).unwrap();
        assert!(report::insert(&document, "").is_some());
        assert!(document.contains("](latency.svg)"), "{DOCUMENT} does not show the plot");
    }
}
