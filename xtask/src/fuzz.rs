//! `cargo xtask fuzz`: fuzzes each target of `fuzz/` for a bounded time, on a stable compiler.
//!
//! It searches for inputs by the code that they reach, for which it compiles all crates once more. The test `fuzz_targets`
//! needs no such build: it repeats the inputs that were found before, and mutations of them.
//!
//! The layout is cargo-fuzz's, and its commands work where it is installed. This chore needs neither it nor a nightly
//! compiler: coverage comes from LLVM's own pass, named on the command line; the address sanitizer, which stable
//! compilers lack, is left out. Naming a target triple keeps build scripts uninstrumented.

use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::options::ChoreOptions;
use crate::step::{Show, Step, StepOutcome};
use crate::{PROFILE, built, cargo, root};

const DEFAULT_SECONDS: u64 = 60;
/// Largest input, in bytes: that of a packet inside a node.
const MAX_INPUT_BYTES: u64 = 64 * 1024;
/// Largest input that is kept, in bytes.
const MAX_KEPT_BYTES: u64 = 4096;
/// A single input that takes longer is a finding, in seconds.
const HANG_SECONDS: u64 = 10;
/// An input that makes a decoder take more memory is a finding, in MiB.
const MEMORY_MIB: u64 = 1024;

// Compiler flags that `cargo fuzz build --sanitizer none` passes.
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

/// Runs the check, and shows all of its output.
pub fn chore(mut options: ChoreOptions) -> io::Result<ExitCode> {
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
        false => StepOutcome::Failed,
    };
    let tally = step.finish(outcome)?;
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds all targets and runs each for `seconds`. Each target is one check.
fn check(step: &mut Step, seconds: u64) -> io::Result<StepOutcome> {
    let triple = host_triple()?;
    if !prepare(step, &triple)? {
        return Ok(StepOutcome::Failed);
    }
    let mut all_passed = true;
    for target in targets()? {
        let passed = step.run(fuzz(&triple, &target, seconds)?)?;
        step.count(passed);
        all_passed &= passed;
    }
    Ok(StepOutcome::from(all_passed))
}

/// `cargo xtask fuzz-keep`: replaces the kept corpus by the least inputs that cover as much as it and the local corpus.
pub fn keep(options: ChoreOptions) -> io::Result<ExitCode> {
    options.end()?;
    let mut step = Step::start("fuzz-keep", Show::Everything)?;
    let triple = host_triple()?;
    let mut is_done = step.run(build_programs())? && prepare(&mut step, &triple)?;
    for target in targets()? {
        is_done = is_done && step.run(merge(&triple, &target)?)? && step.run(pack(&target))?;
    }
    let tally = step.finish(StepOutcome::from(is_done))?;
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds all targets, and puts their first inputs into `fuzz/seeds`: made ones and kept ones.
fn prepare(step: &mut Step, triple: &str) -> io::Result<bool> {
    let seeds = root().join("fuzz/seeds");
    if seeds.exists() {
        std::fs::remove_dir_all(&seeds)?;
    }
    let mut is_done = step.run(write_seeds())?;
    for target in targets()? {
        std::fs::create_dir_all(seeds.join(&target))?;
        if root().join(kept(&target)).exists() {
            is_done = is_done && step.run(unpack(&target))?;
        }
    }
    Ok(is_done && step.run(build(triple))?)
}

/// The inputs of a target that are kept, in one file: there are hundreds of small ones.
fn kept(target: &str) -> String {
    format!("fuzz/kept/{target}.tar.gz")
}

fn unpack(target: &str) -> Command {
    let mut command = Command::new("tar");
    command.current_dir(root()).arg("-xzf").arg(kept(target)).arg("-C").arg(format!("fuzz/seeds/{target}"));
    command
}

/// The same inputs make the same file.
fn pack(target: &str) -> Command {
    let mut command = Command::new("tar");
    command.current_dir(root()).args(["--use-compress-program", "gzip -9n", "-cf"]).arg(kept(target));
    command.args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "-C"]);
    command.args([&minimal(target), "."]);
    command
}

fn minimal(target: &str) -> String {
    format!("fuzz/minimal/{target}")
}

fn merge(triple: &str, target: &str) -> io::Result<Command> {
    let minimal = root().join(minimal(target));
    if minimal.exists() {
        std::fs::remove_dir_all(&minimal)?;
    }
    for folder in [minimal, root().join("fuzz/kept"), root().join(format!("fuzz/corpus/{target}"))] {
        std::fs::create_dir_all(folder)?;
    }
    let mut command = program(triple, target);
    command.args(["-merge=1", "-set_cover_merge=1"]).arg(format!("-max_len={MAX_KEPT_BYTES}"));
    command.args([self::minimal(target), format!("fuzz/corpus/{target}"), format!("fuzz/seeds/{target}")]);
    Ok(command)
}

/// A target, with the programs that an agent starts.
fn program(triple: &str, target: &str) -> Command {
    let mut command = Command::new(root().join(format!("fuzz/target/{triple}/release/{target}")));
    command.current_dir(root()).env("SUBLET_PROGRAMS", built(""));
    command.arg(format!("-timeout={HANG_SECONDS}")).arg(format!("-rss_limit_mb={MEMORY_MIB}"));
    command
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
    let mut command = program(triple, target);
    command.arg(format!("-max_total_time={seconds}")).arg(format!("-max_len={MAX_INPUT_BYTES}"));
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

pub fn host_triple() -> io::Result<String> {
    let output = Command::new("rustc").arg("-vV").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| io::Error::other("`rustc -vV` names no host"))
}
