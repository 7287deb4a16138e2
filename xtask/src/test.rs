//! `cargo xtask test`: every check, a line for each, the failed ones named, and the sum alone on the last line.
//!
//! A failed step does not stop the others: one run shows all that is wrong.

use std::io;
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::options::Options;
use crate::step::{Outcome, Show, Step, Tally};
use crate::{cargo, deny, fuzz, loom, python, root, sim};

/// What each fuzz target gets in a test run, in seconds; `make fuzz` gives more.
const FUZZ_SECONDS: u64 = 5;

type Check = fn(&mut Step) -> io::Result<Outcome>;

// Ordered so that the quick and the likely failures come first.
const STEPS: &[(&str, Check)] = &[
    ("format", format),
    ("build", build),
    ("clippy", clippy),
    ("deny", deny::rules),
    ("advisories", deny::advisories),
    ("tests", tests),
    ("sim", sim::check),
    ("loom", loom::check),
    ("fuzz", |step| fuzz::check(step, FUZZ_SECONDS)),
    ("c and c++", capi),
    ("python", python::check),
];

/// Runs every step and adds up.
pub fn chore(options: Options) -> io::Result<ExitCode> {
    options.end()?;
    let started = Instant::now();
    let (mut sum, mut failed_steps) = (Tally::default(), Vec::new());
    for &(name, check) in STEPS {
        let mut step = Step::start(name, Show::Summary)?;
        let outcome = check(&mut step)?;
        let tally = step.finish(outcome)?;
        sum.passed += tally.passed;
        sum.failed += tally.failed;
        if tally.failed > 0 {
            failed_steps.push(name);
        }
    }
    println!("\ntotal {:.0} s", started.elapsed().as_secs_f32());
    if !failed_steps.is_empty() {
        println!("failed: {}", failed_steps.join(", "));
    }
    println!("{} passed, {} failed", sum.passed, sum.failed);
    Ok(if sum.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn format(step: &mut Step) -> io::Result<Outcome> {
    let mut workspace = cargo();
    workspace.args(["fmt", "--all", "--check"]);
    let mut fuzz = cargo();
    fuzz.args(["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]);
    Ok(Outcome::from(step.run(workspace)? && step.run(fuzz)?))
}

/// Also what the black-box tests start: they run the real binaries. The tests themselves are built along, since what
/// they need of dependencies is then built once; without them cargo would choose other features, and build all of it
/// again for the tests.
fn build(step: &mut Step) -> io::Result<Outcome> {
    let mut command = cargo();
    command.args(["build", "--release", "--workspace", "--lib", "--bins", "--examples", "--tests"]);
    Ok(Outcome::from(step.run(command)?))
}

fn clippy(step: &mut Step) -> io::Result<Outcome> {
    let mut command = cargo();
    command.args(["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    Ok(Outcome::from(step.run(command)?))
}

fn tests(step: &mut Step) -> io::Result<Outcome> {
    let mut command = cargo();
    command.args(["test", "--release", "--workspace", "--no-fail-fast"]);
    Ok(Outcome::from(step.run(command)?))
}

fn capi(step: &mut Step) -> io::Result<Outcome> {
    let script = root().join("tests/capi/run.sh");
    if !script.exists() {
        return Ok(Outcome::Skipped("tests/capi/run.sh is not there".into()));
    }
    let mut command = Command::new(script);
    command.current_dir(root());
    Ok(Outcome::from(step.run(command)?))
}
