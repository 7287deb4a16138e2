//! `cargo xtask loom`: every interleaving of the rings' atomics, within loom's bounds.
//!
//! The flag that turns the facade of atomics into loom's changes every crate's hash, so these builds have a folder
//! of their own.

use std::io;
use std::process::ExitCode;

use crate::options::ChoreOptions;
use crate::step::{Show, Step, StepOutcome};
use crate::{PROFILE, cargo};

/// The crates that execute each model many times: with little optimization they take ten times as long. The other crates
/// are compiled as the profile says, since the models hardly call them.
const OPTIMIZED: &[&str] = &["loom", "generator", "sublet-fabric"];

/// Runs the check, and shows all of its output.
pub fn chore(options: ChoreOptions) -> io::Result<ExitCode> {
    options.end()?;
    let mut step = Step::start("loom", Show::Everything)?;
    let outcome = check(&mut step)?;
    let tally = step.finish(outcome)?;
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the fabric's tests under loom; its other tests are not compiled then. A run without tests fails: otherwise it
/// would pass for ever.
pub fn check(step: &mut Step) -> io::Result<StepOutcome> {
    let mut command = cargo();
    command.env("RUSTFLAGS", "--cfg loom");
    command.args([
        "test",
        "--profile",
        PROFILE,
        "--package",
        "sublet-fabric",
        "--lib",
        "--target-dir",
        "target/loom",
    ]);
    for package in OPTIMIZED {
        command.arg("--config").arg(format!("profile.{PROFILE}.package.{package}.opt-level=3"));
    }
    Ok(StepOutcome::from(step.run(command)? && step.has_counted()))
}
