//! `cargo xtask install --prefix DIR [--units systemd]`: builds, then has `scripts/install.sh` put everything in its
//! place.

use std::io;
use std::process::{Command, ExitCode};

use crate::options::ChoreOptions;
use crate::step::{Show, Step, StepOutcome};
use crate::{cargo, musl, root};

const DEFAULT_PREFIX: &str = "/usr/local";

/// Builds, then installs.
pub fn chore(mut options: ChoreOptions) -> io::Result<ExitCode> {
    let prefix = options.take("prefix").unwrap_or_else(|| DEFAULT_PREFIX.into());
    let units = options.take("units");
    if let Some(other) = units.as_deref().filter(|&units| units != "systemd") {
        return Err(io::Error::other(format!("there are no units for {other:?}, only for systemd")));
    }
    options.end()?;
    if !build()? || !build_for_musl()? {
        return Ok(ExitCode::FAILURE);
    }
    let mut install = Command::new(root().join("scripts/install.sh"));
    install.arg(&prefix).args(units.map(|_| "--systemd"));
    if !install.status()?.success() {
        return Ok(ExitCode::FAILURE);
    }
    println!("installed under {prefix}");
    Ok(ExitCode::SUCCESS)
}

/// Builds what nodes need for images with musl, where this machine can; says whether that went well.
fn build_for_musl() -> io::Result<bool> {
    let mut step = Step::start("build for musl", Show::Summary)?;
    let outcome = match musl::lack()? {
        Some(lack) => StepOutcome::Skipped(lack),
        None => StepOutcome::Passed,
    };
    let built = musl::build(&mut step, "release", &crate::target().join("release"))?;
    step.finish(if built { outcome } else { StepOutcome::Failed })?;
    Ok(built)
}

/// Builds all that is installed, or carried by a wheel; says whether that went well.
pub fn build() -> io::Result<bool> {
    let mut step = Step::start("build", Show::Summary)?;
    let mut build = cargo();
    build.args(["build", "--release", "--workspace"]);
    let built = step.run(build)?;
    step.finish(StepOutcome::from(built))?;
    Ok(built)
}
