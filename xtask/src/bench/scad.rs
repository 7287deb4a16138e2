//! `cargo xtask bench scad`: measures the rows of Scad's evaluation (section 5 of the paper), and writes their table into
//! docs/performance.md.
//!
//! Each row has one or more commands, each of which measures Sublet beside its peers and its limit, in turn in one run. The
//! table is written only after all rows were measured, so that it is of one commit and one machine.

use std::fmt::Write;
use std::io;
use std::process::{Command, ExitCode};

use super::json::Measurement;
use super::report::{self, UnmeasuredCommand};
use super::{DOCUMENT, MeasuringCommand, machine, write};
use crate::options::ChoreOptions;
use crate::step::{Show, Step, StepOutcome};
use crate::{install, python, root};

/// The program of the rows in Python.
pub const PROGRAM: &str = "examples/scad/run";
/// Name of the virtual environment in which it runs.
const ENVIRONMENT: &str = "scad";
const HEADING: &str = "| row | case | measured | Sublet | limit | Sublet / limit | compared with |\n|---|---|---|---|---|---|---|\n";

/// A row of the evaluation.
struct Row {
    name: &'static str,
    commands: &'static [&'static str],
}

/// All rows, in the order of the paper.
const ROWS: &[Row] = &[
    Row { name: "regression", commands: &["examples/scad/run regression --json"] },
    Row { name: "regression-c", commands: &["examples/logistic_regression/run --redis --json"] },
    Row { name: "reduce", commands: &["examples/scad/run reduce --json"] },
    Row { name: "growth", commands: &["examples/scad/run growth --json"] },
    Row {
        name: "swap",
        commands: &[
            "sublet bench swap --pattern sequential --work-us 2 --local 0.4 --json",
            "sublet bench swap --pattern random-page --work-us 10 --local 0.4 --json",
        ],
    },
    Row { name: "techniques", commands: &["examples/scad/run techniques --json"] },
    Row { name: "warm", commands: &["examples/scad/run warm --json"] },
    Row { name: "pairs", commands: &["examples/scad/run pairs --json"] },
    Row { name: "placement", commands: &["cargo bench -p sublet-tests --bench placement"] },
];

/// Builds, measures all rows or those of `--only`, and writes the table if all were measured.
pub fn chore(mut options: ChoreOptions) -> io::Result<ExitCode> {
    let only = options.take("only");
    options.end()?;
    let rows = only.as_deref().map_or_else(|| Ok(ROWS.iter().collect()), rows_named)?;
    if !install::build()? {
        return Ok(ExitCode::FAILURE);
    }
    let mut step = Step::start("bench scad", Show::Everything)?;
    let outcome = measure(&mut step, &rows, only.is_none())?;
    let tally = step.finish(outcome)?;
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The rows of a list of names, separated by commas.
fn rows_named(names: &str) -> io::Result<Vec<&'static Row>> {
    let row = |name: &str| {
        let known = || ROWS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
        let found = ROWS.iter().find(|row| row.name == name.trim());
        found.ok_or_else(|| io::Error::other(format!("no row {name:?}; there are {}", known())))
    };
    names.split(',').map(row).collect()
}

fn measure(step: &mut Step, rows: &[&Row], is_whole: bool) -> io::Result<StepOutcome> {
    if !python::install_with_numpy(step, ENVIRONMENT)? {
        return Ok(StepOutcome::Failed);
    }
    let (mut all_passed, mut measurements, mut unmeasured) = (true, Vec::new(), Vec::new());
    for &command in rows.iter().flat_map(|row| row.commands) {
        let outcome = MeasuringCommand::new(command).run(step)?;
        measurements.extend(outcome.measurements);
        if let Some(problem) = outcome.problem {
            all_passed &= !problem.is_failure;
            unmeasured.push(UnmeasuredCommand { command: command.to_owned(), reason: problem.reason });
        }
    }
    let incomplete = incomplete(&measurements);
    if incomplete > 0 {
        step.line(&format!(
            "{incomplete} measurements lack a name, a unit or a number: the table has no line for them"
        ))?;
        all_passed = false;
    }
    let text = format!("{}\n\n{}", machine(), text(measurements, &unmeasured));
    if is_whole {
        write(DOCUMENT, report::BEGIN_OF_SCAD, &text)?;
    } else {
        println!("{text}\n{DOCUMENT} stays as it is: it gets all rows of one run, without --only");
    }
    Ok(StepOutcome::from(all_passed))
}

/// The program of the rows in Python, with the interpreter that has the wheel.
pub fn program() -> Command {
    let mut command = Command::new(python::environment(ENVIRONMENT).join("bin/python"));
    command.arg("-B").arg(root().join(PROGRAM)).env_remove("SUBLET_MANAGER");
    command
}

fn is_of_row(measurement: &Measurement) -> bool {
    measurement.text("bench") == Some("scad")
}

/// Number of the measurements of rows that cannot be shown. One is not a number if a peer has measured nothing.
fn incomplete(measurements: &[Measurement]) -> usize {
    measurements.iter().filter(|measurement| is_of_row(measurement) && cells(measurement).is_none()).count()
}

/// The table of the rows, and the tables of what other commands have measured.
fn text(measurements: Vec<Measurement>, unmeasured: &[UnmeasuredCommand]) -> String {
    let (rows, others): (Vec<_>, Vec<_>) = measurements.into_iter().partition(is_of_row);
    let mut text = HEADING.to_owned();
    for cells in rows.iter().filter_map(cells) {
        // Writing into a text does not fail.
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    let others = report::tables(&others, unmeasured);
    if others.is_empty() { text } else { format!("{text}\n{others}") }
}

/// The cells of a row's measurement.
fn cells(measurement: &Measurement) -> Option<[String; 7]> {
    let unit = measurement.text("unit")?;
    let (ours, limit) = (measurement.number("sublet")?, measurement.number("limit"));
    let of_limit = measurement.text("limit_of").map(|of| format!("{of}: ")).unwrap_or_default();
    let peers = measurement.numbers().filter_map(|(name, value)| {
        name.strip_prefix("peers.").map(|peer| format!("{peer}: {}", shown(value, unit)))
    });
    Some([
        measurement.text("row")?.to_owned(),
        measurement.text("case")?.to_owned(),
        measurement.text("measure")?.to_owned(),
        shown(ours, unit),
        limit.map_or_else(|| "-".to_owned(), |limit| format!("{of_limit}{}", shown(limit, unit))),
        limit.map_or_else(|| "-".to_owned(), |limit| format!("{:.2}", ours / limit)),
        peers.collect::<Vec<_>>().join("; "),
    ])
}

/// Formats a value with three digits that count.
fn shown(value: f64, unit: &str) -> String {
    let decimals = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.995 => 2,
        _ => 4,
    };
    format!("{value:.decimals$} {unit}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_row_is_in_the_document() {
        let document = fs::read_to_string(root().join(DOCUMENT)).unwrap();
        assert!(report::insert(&document, report::BEGIN_OF_SCAD, "").is_some());
        let (_, section) = document.split_once("\n## The evaluation of Scad\n").unwrap();
        let section = section.split("\n## ").next().unwrap_or_default();
        for row in ROWS {
            assert!(
                section.contains(&format!("| `{}` |", row.name)),
                "{DOCUMENT} does not explain {}",
                row.name
            );
        }
    }

    #[test]
    fn every_row_in_python_has_its_module() {
        let commands = ROWS.iter().flat_map(|row| row.commands);
        let commands = commands.filter(|command| command.starts_with(PROGRAM));
        let names: Vec<_> = commands.filter_map(|command| command.split(' ').nth(1)).collect();
        assert_eq!(names.len(), 6);
        for name in names {
            assert!(root().join("examples/scad").join(name).with_extension("py").is_file(), "{name}");
        }
    }

    #[test]
    fn names_of_rows_are_checked() {
        let names =
            |text: &str| rows_named(text).map(|rows| rows.iter().map(|row| row.name).collect::<Vec<_>>());
        assert_eq!(names("warm, swap").unwrap(), ["warm", "swap"]);
        assert!(
            names("warm,cool").unwrap_err().to_string().contains("no row \"cool\"; there are regression,")
        );
    }

    #[test]
    fn incomplete_measurements_are_counted() {
        let line = r#"[{"bench":"scad","row":"growth","case":"8 MB","measure":"time","unit":"s","sublet":null},
{"bench":"scad","row":"growth","case":"8 MB","measure":"time","unit":"s","sublet":1.5},
{"bench":"swap","pattern":"sequential"}]"#;
        assert_eq!(incomplete(&Measurement::all_of(line)), 1);
    }

    #[test]
    fn measurements_have_limit_and_peers_beside_them() {
        let line = r#"[{"bench":"scad","row":"reduce","case":"64 MB","measure":"time","unit":"s","sublet":0.25,"limit":0.2,"limit_of":"one process","peers":{"Redis":1.5}},
{"bench":"scad","row":"pairs","case":"1 pairs","measure":"an access","unit":"us","sublet":12.34}]"#;
        let text = text(Measurement::all_of(line), &[]);
        let expected = format!(
            "{HEADING}| reduce | 64 MB | time | 0.2500 s | one process: 0.2000 s | 1.25 | Redis: 1.50 s |\n\
             | pairs | 1 pairs | an access | 12.3 us | - | - |  |\n"
        );
        assert_eq!(text, expected);
    }
}
