//! `cargo xtask test`: every check, a line for each, the failed steps and the skipped tests named, and the sum alone on the last line.
//!
//! A failed step does not stop the others: one run shows all that is wrong.

use std::io;
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::options::ChoreOptions;
use crate::step::{Show, Step, StepOutcome, Tally};
use crate::{PROFILE, cargo, deny, docs, loom, musl, python, root, sim, suites, target};

type Check = fn(&mut Step) -> io::Result<StepOutcome>;

// Ordered so that the quick and the likely failures come first.
const STEPS: &[(&str, Check)] = &[
    ("format", format),
    ("build", build),
    ("clippy", clippy),
    ("clippy of releases", clippy_of_releases),
    ("docs", docs::check),
    ("deny", deny::rules),
    ("advisories", deny::advisories),
    ("tests", tests),
    ("sim", sim::check),
    ("loom", loom::check),
    ("c and c++", capi),
    ("python", python::check),
];

/// The quick steps, which take minutes if little has changed: for use before a commit.
const QUICK_STEPS: &[(&str, Check)] = &[("format", format), ("clippy", clippy), ("unit tests", unit_tests)];

/// `cargo xtask test [--only STEP,...]`: every step, or those named.
pub fn chore(mut options: ChoreOptions) -> io::Result<ExitCode> {
    let only = options.take("only");
    options.end()?;
    match only {
        Some(names) => run(&steps_named(&names)?),
        None => run(STEPS),
    }
}

/// The steps of a list of names, separated by commas.
fn steps_named(names: &str) -> io::Result<Vec<(&'static str, Check)>> {
    let step = |name: &str| {
        let known = || STEPS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let step = STEPS.iter().find(|(known, _)| *known == name.trim());
        step.copied().ok_or_else(|| io::Error::other(format!("no step {name:?}; there are {}", known())))
    };
    names.split(',').map(step).collect()
}

/// `cargo xtask check`: the quick steps.
pub fn check(options: ChoreOptions) -> io::Result<ExitCode> {
    options.end()?;
    run(QUICK_STEPS)
}

/// Runs steps and adds up.
fn run(steps: &[(&'static str, Check)]) -> io::Result<ExitCode> {
    let started = Instant::now();
    let (mut sum, mut failed_steps) = (Tally::default(), Vec::new());
    for &(name, check) in steps {
        let mut step = Step::start(name, Show::Summary)?;
        let outcome = check(&mut step)?;
        let tally = step.finish(outcome)?;
        if tally.failed > 0 {
            failed_steps.push(name);
        }
        sum.add(tally);
    }
    println!("\ntotal {:.0} s", started.elapsed().as_secs_f32());
    if !failed_steps.is_empty() {
        println!("failed: {}", failed_steps.join(", "));
    }
    for test in &sum.skipped {
        println!("skipped: {test}");
    }
    println!("{}", sum.sum());
    Ok(if sum.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn format(step: &mut Step) -> io::Result<StepOutcome> {
    let mut workspace = cargo();
    workspace.args(["fmt", "--all", "--check"]);
    let mut fuzz = cargo();
    fuzz.args(["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]);
    Ok(StepOutcome::from(step.run(workspace)? && step.run(fuzz)?))
}

/// Builds the workspace with the binaries that the black-box tests start. The tests are built in the same command:
/// without them cargo would choose other features of the dependencies, and compile all of them again for the tests. The
/// files for workers in images with musl are built beside it.
fn build(step: &mut Step) -> io::Result<StepOutcome> {
    let mut command = cargo();
    command.args(["build", "--profile", PROFILE, "--workspace", "--lib", "--bins", "--examples", "--tests"]);
    let built = step.run(command)? && musl::build(step, PROFILE, &target().join(PROFILE))?;
    Ok(StepOutcome::from(built))
}

fn clippy(step: &mut Step) -> io::Result<StepOutcome> {
    Ok(StepOutcome::from(step.run(clippy_with(&["--all-targets"]))?))
}

/// Checks that releases build without warnings. They differ from what tests execute by the assertions, which some code
/// is only there for. Tests and benchmarks are in no release. Dependencies have no assertions in either case, so what was
/// checked of them is used again. Examples are checked because without them, as without tests, cargo would choose other
/// features of the dependencies.
fn clippy_of_releases(step: &mut Step) -> io::Result<StepOutcome> {
    let setting = format!("profile.{PROFILE}.debug-assertions=false");
    Ok(StepOutcome::from(step.run(clippy_with(&["--lib", "--bins", "--examples", "--config", &setting]))?))
}

fn clippy_with(more: &[&str]) -> Command {
    let mut command = cargo();
    command.args(["clippy", "--profile", PROFILE, "--workspace"]).args(more);
    command.args(["--", "-D", "warnings"]);
    command
}

/// Runs the unit tests of all packages: a change in one package may break another.
fn unit_tests(step: &mut Step) -> io::Result<StepOutcome> {
    let mut command = cargo();
    command.args(["test", "--profile", PROFILE, "--workspace", "--lib", "--bins", "--no-fail-fast"]);
    Ok(StepOutcome::from(step.run(command)? && step.has_counted()))
}

fn tests(step: &mut Step) -> io::Result<StepOutcome> {
    Ok(StepOutcome::from(suites::run(step)? && step.has_counted()))
}

fn capi(step: &mut Step) -> io::Result<StepOutcome> {
    let mut command = Command::new(root().join("tests/capi/run.sh"));
    command.current_dir(root()).env("SUBLET_PROFILE", PROFILE);
    Ok(StepOutcome::from(step.run(command)?))
}
