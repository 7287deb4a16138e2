//! `cargo xtask second-pu`: a processing unit of another architecture, as a DPU has it, beside this machine's.
//!
//! Sublet is compiled for aarch64, and its agent runs in an emulated machine with Debian's kernel and Python, as this
//! machine's neighbour. QEMU emulates the whole machine and not single programs: its emulation of programs lacks the
//! system calls that sandboxes need (clone3, mounts by descriptors, Landlock, the filter of system calls), so a test of
//! sandboxes would test nothing. The tests are in `tests/tests/second_pu.rs`. In emulation times mean nothing, and
//! memory is as strongly ordered as this machine's.

mod outcome;

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::options::ChoreOptions;
use crate::step::{Show, Step, StepOutcome};
use crate::{cargo, root};
use outcome::PartOutcome;

const SCRIPT: &str = "scripts/second-pu.sh";
/// The script that installs the tools that build Sublet, and this machine's Python.
const SETUP: &str = "scripts/setup.sh";
/// Prefix of the line in which the script says that it cannot run.
const SKIPPED: &str = "skipped: ";
const ARCHITECTURE: &str = "aarch64";
const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Folder of the files that are kept between runs.
const FOLDER: &str = "target/second-pu";
/// The packages that an agent with Python needs, and last the C interface, which C programs are linked with.
const PACKAGES: [&str; 5] =
    ["sublet-cli", "sublet-runtime", "sublet-sandbox", "sublet-template-python", "sublet-capi"];
/// The files that are built from [`PACKAGES`] and copied.
const PROGRAMS: [&str; 4] = ["sublet", "sublet-worker", "sublet-spawner", "libsublet_template_python.so"];
const STRIP: &str = "aarch64-linux-gnu-strip";
/// The environment variable that tells the tests which parts to run.
const ONLY: &str = "SUBLET_SECOND_PU_ONLY";

/// Builds the programs, boots the emulated machine, runs the tests, and prints the outcome of each part.
pub fn chore(mut options: ChoreOptions) -> io::Result<ExitCode> {
    let only = options.take("only");
    let json = options.take("json").map(PathBuf::from);
    options.end()?;
    let mut step = Step::start("second-pu", Show::Everything)?;
    let outcome = run(&mut step, only.as_deref(), json.as_deref())?;
    let is_failed = matches!(outcome, StepOutcome::Failed);
    step.finish(outcome)?;
    Ok(if is_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn run(step: &mut Step, only: Option<&str>, json: Option<&Path>) -> io::Result<StepOutcome> {
    if std::env::consts::ARCH == ARCHITECTURE {
        return Ok(StepOutcome::Skipped(format!("this machine is {ARCHITECTURE} itself")));
    }
    if std::fs::metadata("/proc/self")?.uid() != 0 {
        return Ok(StepOutcome::Skipped("only root may make the network of its machines".to_owned()));
    }
    let mut setup = Command::new(root().join(SETUP));
    setup.arg("second-pu").current_dir(root());
    if !step.run(setup)? {
        return Ok(StepOutcome::Failed);
    }
    let mut prepare = Command::new(root().join(SCRIPT));
    prepare.arg("prepare").current_dir(root());
    let (prepared, lines) = step.run_and_keep(prepare)?;
    if !prepared {
        let reason = lines.iter().find_map(|line| line.strip_prefix(SKIPPED));
        return Ok(reason.map_or(StepOutcome::Failed, |reason| StepOutcome::Skipped(reason.to_owned())));
    }
    if !(step.run(cross_build())? && install_programs(step)? && step.run(build())?) {
        return Ok(StepOutcome::Failed);
    }
    let (is_done, lines) = step.run_and_keep(tests(only))?;
    let outcomes = outcome::read(&lines);
    println!("\n{}", outcome::table(&outcomes));
    if let Some(path) = json {
        std::fs::write(path, outcome::json(&outcomes))?;
    }
    Ok(StepOutcome::from(is_done && !outcomes.is_empty() && outcomes.iter().all(PartOutcome::is_good)))
}

/// Returns the command that compiles for the other architecture, in a folder of its own beside this machine's build.
fn cross_build() -> Command {
    let mut command = cargo();
    command.args(["build", "--release", "--target", TARGET, "--target-dir"]).arg(build_folder());
    command.args(["--lib", "--bins"]).args(PACKAGES.iter().flat_map(|package| ["-p", package]));
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    command
}

fn build_folder() -> PathBuf {
    root().join(FOLDER).join("build")
}

/// Copies the built programs, without debug information, into the folder from which the emulated machine's disk is
/// made.
fn install_programs(step: &mut Step) -> io::Result<bool> {
    let programs = root().join(FOLDER).join("programs");
    std::fs::create_dir_all(&programs)?;
    let mut strip = |name: &str| {
        let mut output = OsString::from("--output-file=");
        output.push(programs.join(name));
        let mut strip = Command::new(STRIP);
        strip.arg(output).arg(build_folder().join(TARGET).join("release").join(name));
        step.run(strip)
    };
    PROGRAMS.iter().try_fold(true, |so_far, name| Ok(so_far && strip(name)?))
}

fn build() -> Command {
    let mut command = cargo();
    command.args(["build", "--release", "--workspace"]);
    command
}

fn tests(only: Option<&str>) -> Command {
    let mut command = cargo();
    command.args([
        "test",
        "--release",
        "--workspace",
        "--test",
        "call_suites",
        "--",
        "second_pu::",
        "--ignored",
        "--nocapture",
    ]);
    command.env_remove(ONLY).envs(only.map(|only| (ONLY, only)));
    command
}
