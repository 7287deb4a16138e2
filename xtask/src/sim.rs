//! `cargo xtask sim`: the simulator over many seeds; see `tests/src/sim.rs`.

use std::io;
use std::process::{Command, ExitCode};

use crate::cargo;
use crate::options::Options;
use crate::step::{Outcome, Show, Step};

/// What the chore runs if it is told nothing: a night's work.
const DEFAULT: Size = Size { seeds: 1_000, first_seed: 1, nodes: 1_000, hours: 1 };
/// What `cargo xtask test` runs.
const IN_TESTS: Size = Size { seeds: 50, ..DEFAULT };

struct Size {
    seeds: u64,
    first_seed: u64,
    nodes: u64,
    hours: u64,
}

/// The runs, with all of their output.
pub fn chore(mut options: Options) -> io::Result<ExitCode> {
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
    let passed = step.run(command(&size))?;
    let tally = step.finish(Outcome::from(passed))?;
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// As many seeds as a test run has time for. Each is one check; that there are none is a failure.
pub fn check(step: &mut Step) -> io::Result<Outcome> {
    let passed = step.run(command(&IN_TESTS))?;
    Ok(Outcome::from(passed && step.has_counted()))
}

fn command(size: &Size) -> Command {
    let mut command = cargo();
    command.args(["run", "--release", "--package", "sublet-tests", "--bin", "sim", "--"]);
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
