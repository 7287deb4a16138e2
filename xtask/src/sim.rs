//! `cargo xtask sim`: the simulator over many seeds; see `tests/src/sim.rs`.

use std::io;
use std::process::{Command, ExitCode};

use crate::options::ChoreOptions;
use crate::step::{Show, Step, StepOutcome};
use crate::{PROFILE, built, cargo, root};

/// The size of a run without options: it takes a night.
const DEFAULT: Size = Size { seeds: 1_000, first_seed: 1, nodes: 1_000, hours: 1 };
/// The size of the run in `cargo xtask test`.
const IN_TESTS: Size = Size { seeds: 10, ..DEFAULT };

struct Size {
    seeds: u64,
    first_seed: u64,
    nodes: u64,
    hours: u64,
}

/// Runs the simulator, and shows all of its output.
pub fn chore(mut options: ChoreOptions) -> io::Result<ExitCode> {
    let mut number = |name: &str, default: u64| match options.take(name) {
        Some(text) => text.parse().map_err(|_| io::Error::other(format!("--{name} {text} is not a number"))),
        None => Ok(default),
    };
    let size = Size {
        seeds: number("seeds", DEFAULT.seeds)?,
        first_seed: number("first-seed", DEFAULT.first_seed)?,
        nodes: number("nodes", DEFAULT.nodes)?,
        hours: number("hours", DEFAULT.hours)?,
    };
    options.end()?;
    let mut step = Step::start("sim", Show::Everything)?;
    // Builds the whole workspace, as `make test` does: with other features, its dependencies would be compiled again.
    let mut build = cargo();
    build.args(["build", "--profile", PROFILE, "--workspace", "--lib", "--bins", "--examples", "--tests"]);
    let passed = step.run(build)? && step.run(command(&size))?;
    let tally = step.finish(StepOutcome::from(passed))?;
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Simulates as many seeds as a test run has time for. Each seed is one check; a run without a check fails.
pub fn check(step: &mut Step) -> io::Result<StepOutcome> {
    let passed = step.run(command(&IN_TESTS))?;
    Ok(StepOutcome::from(passed && step.has_counted()))
}

fn command(size: &Size) -> Command {
    let mut command = Command::new(built("sim"));
    command.current_dir(root());
    let options = [
        ("--seeds", size.seeds),
        ("--first-seed", size.first_seed),
        ("--nodes", size.nodes),
        ("--hours", size.hours),
    ];
    for (name, value) in options {
        command.arg(name).arg(value.to_string());
    }
    command
}
