//! `cargo xtask docs`: builds the documentation site into target/site. A warning of the builder is an error.

use std::io;
use std::process::{Command, ExitCode};

use crate::options::ChoreOptions;
use crate::step::{Show, Step, StepOutcome};
use crate::{PROFILE, install, root};

/// The builder, which `scripts/setup.sh docs` installs.
const MKDOCS: &str = "target/tools/mkdocs/bin/mkdocs";

/// Builds the command, whose help texts are a part of the site, and then the site.
pub fn chore(options: ChoreOptions) -> io::Result<ExitCode> {
    options.end()?;
    if !install::build()? {
        return Ok(ExitCode::FAILURE);
    }
    let mut step = Step::start("docs", Show::Summary)?;
    let outcome = build(&mut step, "release")?;
    let tally = step.finish(outcome)?;
    println!("the site is in target/site");
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds the site with the command of the tests.
pub fn check(step: &mut Step) -> io::Result<StepOutcome> {
    build(step, PROFILE)
}

/// Builds the site with the command that was built with this profile.
fn build(step: &mut Step, profile: &str) -> io::Result<StepOutcome> {
    let builder = root().join(MKDOCS);
    if !builder.exists() {
        return Err(io::Error::other(format!("{MKDOCS} does not exist: run scripts/setup.sh docs")));
    }
    let mut build = Command::new(builder);
    build.args(["build", "--strict", "--quiet"]).current_dir(root());
    build.env("SUBLET_PROFILE", profile).env("NO_MKDOCS_2_WARNING", "1");
    Ok(StepOutcome::from(step.run(build)?))
}
