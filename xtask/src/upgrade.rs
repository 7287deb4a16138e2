//! `cargo xtask upgrade [--from COMMIT]`: builds the programs of the version before, and runs the tests of upgrades with
//! them.
//!
//! The version before is the commit in `tests/upgrade/BEFORE`, unless another one is named. Its sources are checked out,
//! and its programs built, in a folder of `target/upgrade` with the commit's name, which is kept: the first run takes
//! about ten minutes, and the next ones only test.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::options::ChoreOptions;
use crate::step::{Show, Step, StepOutcome};
use crate::{PROFILE, cargo, root};

/// File with the commit of the version before.
const BEFORE: &str = "tests/upgrade/BEFORE";
/// Test binary with the tests that need the programs of the version before, and their module.
const BINARY: &str = "control_suites";
const MODULE: &str = "upgrades::";
/// Variable by which the tests find them.
const FOLDER: &str = "SUBLET_TEST_BEFORE";

/// The chore: see the module.
pub fn chore(mut options: ChoreOptions) -> io::Result<ExitCode> {
    let from = options.take("from");
    options.end()?;
    let commit = resolve(&match from {
        Some(commit) => commit,
        None => before(&fs::read_to_string(root().join(BEFORE))?)?,
    })?;
    let mut step = Step::start("upgrade", Show::Everything)?;
    let passed = run(&mut step, &root().join("target/upgrade").join(&commit), &commit)?;
    step.finish(StepOutcome::from(passed))?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The commit in the text of [`BEFORE`]: the only line that is no comment.
fn before(text: &str) -> io::Result<String> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    match lines.as_slice() {
        [commit] => Ok((*commit).to_owned()),
        _ => Err(io::Error::other(format!("{BEFORE} has {} lines with a commit instead of 1", lines.len()))),
    }
}

/// The full name of a commit of this repository's history.
fn resolve(name: &str) -> io::Result<String> {
    let output = git()
        .args(["rev-parse", "--verify", "--end-of-options"])
        .arg(format!("{name}^{{commit}}"))
        .output()?;
    if !output.status.success() {
        let message = format!("{name:?} is not a commit of this repository's history: fetch all of it");
        return Err(io::Error::other(message));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn run(step: &mut Step, folder: &Path, commit: &str) -> io::Result<bool> {
    step.line(&format!("the version before is commit {commit}"))?;
    let source = folder.join("source");
    if !(check_out(step, &source, commit)? && step.run(build(&source, folder))?) {
        return Ok(false);
    }
    // The tests also start the programs of this version.
    let mut own = cargo();
    own.args(["build", "--profile", PROFILE, "--workspace", "--lib", "--bins", "--examples"]);
    if !step.run(own)? {
        return Ok(false);
    }
    let mut tests = cargo();
    tests.env(FOLDER, folder).args(["test", "--profile", PROFILE, "--workspace", "--test", BINARY]);
    // One after the other: each fills the machine with processes of two versions.
    tests.args(["--", MODULE, "--include-ignored", "--nocapture", "--test-threads", "1"]);
    let (passed, lines) = step.run_and_keep(tests)?;
    // A run without a test is no success.
    Ok(passed
        && lines.iter().any(|line| line.starts_with("test result: ok. ") && !line.contains(" 0 passed")))
}

/// Checks the commit out, unless an earlier run has.
fn check_out(step: &mut Step, source: &Path, commit: &str) -> io::Result<bool> {
    if source.join("Cargo.toml").is_file() {
        return Ok(true);
    }
    // Git remembers a folder that was removed by hand.
    let mut prune = git();
    prune.args(["worktree", "prune"]);
    let mut add = git();
    add.args(["worktree", "add", "--force", "--detach"]).args([source.as_os_str(), OsStr::new(commit)]);
    Ok(step.run(prune)? && step.run(add)?)
}

/// Builds the commit's programs and its C library into a folder of their own.
fn build(source: &Path, target: &Path) -> Command {
    let mut build = cargo();
    build.current_dir(source).env("CARGO_TARGET_DIR", target);
    build.args(["build", "--profile", PROFILE, "--workspace", "--lib", "--bins", "--examples"]);
    build
}

fn git() -> Command {
    let mut git = Command::new("git");
    git.current_dir(root());
    git
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_before_is_one_commit_of_the_history() {
        let text = fs::read_to_string(root().join(BEFORE)).unwrap();
        let commit = before(&text).unwrap();
        assert!(commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{commit}");
        assert!(before("# a\n").is_err() && before("a\nb\n").is_err());
    }

    #[test]
    fn state_of_the_version_before_is_kept() {
        let state = root().join("tests/upgrade/state.tar.gz");
        assert!(fs::metadata(&state).unwrap().len() > 0);
    }
}
