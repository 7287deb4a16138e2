//! `cargo xtask install --prefix DIR`: builds, then has `scripts/install.sh` put everything in its place.

use std::io;
use std::process::{Command, ExitCode};

use crate::options::Options;
use crate::step::{Outcome, Show, Step};
use crate::{cargo, root};

const DEFAULT_PREFIX: &str = "/usr/local";

/// Builds, then installs.
pub fn chore(mut options: Options) -> io::Result<ExitCode> {
    let prefix = options.take("prefix").unwrap_or_else(|| DEFAULT_PREFIX.into());
    options.end()?;
    let mut step = Step::start("build", Show::Summary)?;
    let mut build = cargo();
    build.args(["build", "--release", "--workspace"]);
    let built = step.run(build)?;
    step.finish(Outcome::from(built))?;
    if !built {
        return Ok(ExitCode::FAILURE);
    }
    let installed = Command::new(root().join("scripts/install.sh")).arg(&prefix).status()?;
    if !installed.success() {
        return Ok(ExitCode::FAILURE);
    }
    println!("installed under {prefix}");
    Ok(ExitCode::SUCCESS)
}
