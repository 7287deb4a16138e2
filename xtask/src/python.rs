//! The Python package: its wheel, and its tests as a user of the wheel has it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::options::Options;
use crate::step::{Outcome, Show, Step};
use crate::{install, root};

/// What the tests use beside the wheel.
const MODULES: &[&str] = &[
    "pytest==9.2.0",
    "hypothesis==6.170.17",
    "numpy==2.2.6",
    "pillow==12.0.0",
    "joblib==1.6.0",
    "dask[array]==2026.8.0",
    "parsl==2026.10.26",
    "tqdm==4.70.1",
    "rich==15.0.0",
];

/// `cargo xtask wheel [--out FOLDER]`: builds, then has `scripts/wheel.sh` make the wheel.
pub fn chore(mut options: Options) -> io::Result<ExitCode> {
    let out = options.take("out").map_or_else(wheels, PathBuf::from);
    options.end()?;
    if !install::build()? {
        return Ok(ExitCode::FAILURE);
    }
    let mut step = Step::start("wheel", Show::Summary)?;
    let made = step.run(wheel(&out))?;
    let tally = step.finish(Outcome::from(made))?;
    println!("the wheel is in {}", out.display());
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Makes the wheel of what is built, installs it into a virtual environment of its own, and tests it there.
pub fn check(step: &mut Step) -> io::Result<Outcome> {
    let environment = root().join("target/xtask/python");
    if !step.run(wheel(&wheels()))? {
        return Ok(Outcome::Failed);
    }
    let made = std::fs::read_dir(wheels())?.filter_map(Result::ok).map(|entry| entry.path());
    let Some(made) = made.max() else { return Ok(Outcome::Failed) };
    let mut create = Command::new("python3");
    create.args(["-m", "venv", "--clear"]).arg(&environment);
    let mut install = Command::new(environment.join("bin/pip"));
    install.args(["install", "--quiet", "--no-input", "--disable-pip-version-check"]).arg(made).args(MODULES);
    // Away from the sources: what is tested is what was installed.
    let mut test = Command::new(environment.join("bin/python"));
    test.args(["-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider"]);
    test.arg(root().join("python/tests")).current_dir(&environment);
    Ok(Outcome::from(step.run(create)? && step.run(install)? && step.run(test)?))
}

fn wheels() -> PathBuf {
    root().join("target/wheels")
}

fn wheel(out: &Path) -> Command {
    let mut command = Command::new(root().join("scripts/wheel.sh"));
    command.arg(out);
    command
}
