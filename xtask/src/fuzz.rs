//! `cargo xtask fuzz`: fuzzes each target of `fuzz/` for a bounded time, on a stable compiler.
//!
//! The layout is cargo-fuzz's, and its commands work where it is installed. This chore needs neither it nor a nightly
//! compiler: coverage comes from LLVM's own pass, named on the command line; the address sanitizer, which stable
//! compilers lack, is left out. Naming a target triple keeps build scripts uninstrumented.

use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::options::Options;
use crate::step::{Outcome, Show, Step};
use crate::{PROFILE, built, cargo, root};

const DEFAULT_SECONDS: u64 = 60;
/// Largest input, in bytes: that of a packet inside a node.
const MAX_INPUT_BYTES: u64 = 64 * 1024;
/// A single input that takes longer is a finding, in seconds.
const HANG_SECONDS: u64 = 10;
/// An input that makes a decoder take more memory is a finding, in MiB.
const MEMORY_MIB: u64 = 1024;

// What `cargo fuzz build --sanitizer none` passes.
const COVERAGE_FLAGS: &[&str] = &[
    "--cfg=fuzzing",
    "-Ccodegen-units=1",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
];

/// The check, with all of its output.
pub fn chore(mut options: Options) -> io::Result<ExitCode> {
    let seconds = match options.take("seconds") {
        Some(text) => {
            text.parse().map_err(|_| io::Error::other(format!("--seconds {text} is not a number")))?
        }
        None => DEFAULT_SECONDS,
    };
    options.end()?;
    let mut step = Step::start("fuzz", Show::Everything)?;
    let outcome = match step.run(build_programs())? {
        true => check(&mut step, seconds)?,
        false => Outcome::Failed,
    };
    let tally = step.finish(outcome)?;
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds all targets and runs each for so many seconds. Each target is one check. The programs that an agent starts are there
/// already: the tests need them, too.
pub fn check(step: &mut Step, seconds: u64) -> io::Result<Outcome> {
    let triple = host_triple()?;
    if !step.run(write_seeds())? || !step.run(build(&triple))? {
        return Ok(Outcome::Failed);
    }
    let mut all_passed = true;
    for target in targets()? {
        let passed = step.run(fuzz(&triple, &target, seconds)?)?;
        step.count(passed);
        all_passed &= passed;
    }
    Ok(Outcome::from(all_passed))
}

/// The programs that an agent starts: the target `listeners` has one.
fn build_programs() -> Command {
    let mut command = cargo();
    command.args(["build", "--profile", PROFILE, "--workspace", "--lib", "--bins", "--examples", "--tests"]);
    command
}

/// Valid inputs, made by the real encoders, so that each target starts past the first checks of its decoder.
fn write_seeds() -> Command {
    let mut command = Command::new(built("fuzz-seeds"));
    command.current_dir(root()).arg("fuzz/seeds");
    command
}

fn build(triple: &str) -> Command {
    let mut command = cargo();
    command.env("RUSTFLAGS", COVERAGE_FLAGS.join(" "));
    command.args(["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target-dir", "fuzz/target"]);
    command.args(["--bins", "--target", triple]);
    command
}

fn fuzz(triple: &str, target: &str, seconds: u64) -> io::Result<Command> {
    let [corpus, artifacts, seeds] =
        ["corpus", "artifacts", "seeds"].map(|kind| format!("fuzz/{kind}/{target}"));
    for folder in [&corpus, &artifacts, &seeds] {
        std::fs::create_dir_all(root().join(folder))?;
    }
    let mut command = Command::new(root().join(format!("fuzz/target/{triple}/release/{target}")));
    command.current_dir(root()).env("SUBLET_PROGRAMS", built("")).arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-max_len={MAX_INPUT_BYTES}"));
    command.arg(format!("-timeout={HANG_SECONDS}"));
    command.arg(format!("-rss_limit_mb={MEMORY_MIB}"));
    command.arg(format!("-artifact_prefix={artifacts}/"));
    // New inputs go to the first folder.
    command.arg(corpus).arg(seeds);
    Ok(command)
}

/// The targets are the files of `fuzz/fuzz_targets`.
fn targets() -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root().join("fuzz/fuzz_targets"))? {
        let name = entry?.file_name();
        let stem = Path::new(&name).file_stem().unwrap_or_default();
        names.push(stem.to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn host_triple() -> io::Result<String> {
    let output = Command::new("rustc").arg("-vV").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| io::Error::other("`rustc -vV` names no host"))
}
