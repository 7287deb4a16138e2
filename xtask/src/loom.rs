//! `cargo xtask loom`: every interleaving of the rings' atomics, within loom's bounds.
//!
//! The flag that turns the facade of atomics into loom's changes every crate's hash, so these builds have a folder
//! of their own.

use std::io;
use std::process::ExitCode;

use crate::options::ChoreOptions;
use crate::step::{Show, Step, StepOutcome};
use crate::{PROFILE, cargo};

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
    // Loom executes each model many times: it takes ten times as long with little optimization.
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_PROFILE_CHECKED_OPT_LEVEL", "3");
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
    Ok(StepOutcome::from(step.run(command)? && step.has_counted()))
}
