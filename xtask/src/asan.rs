//! `cargo xtask asan`: tests in C, C++ and Python with AddressSanitizer, in the libraries that they use.
//!
//! A nightly compiler compiles the libraries with the flag that reports accesses outside of memory and after its release.
//! A library has no runtime of the sanitizer: test programs in C have it, which the C compiler instruments, and Python
//! loads it first. Workers and the command are not instrumented, since they load functions that were compiled without
//! the sanitizer.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::options::ChoreOptions;
use crate::step::{Show, Step, StepOutcome};
use crate::{PROFILE, install, miri, python, root};

/// Instrumented builds have a folder of their own.
const TARGET: &str = "target/asan";

/// Runs the check, and shows all of its output.
pub fn chore(options: ChoreOptions) -> io::Result<ExitCode> {
    options.end()?;
    if !install::build()? {
        return Ok(ExitCode::FAILURE);
    }
    let mut step = Step::start("asan", Show::Everything)?;
    let outcome = check(&mut step)?;
    let tally = step.finish(outcome)?;
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(step: &mut Step) -> io::Result<StepOutcome> {
    let triple = crate::fuzz::host_triple()?;
    if !step.run(build(&triple))? {
        return Ok(StepOutcome::Failed);
    }
    let has_passed = step.run(tests(&library(&triple, "libsublet_c.so")))?;
    let module = library(&triple, "lib_native.so");
    let has_passed = python::check_sanitized(step, &module, &runtime()?)? && has_passed;
    Ok(StepOutcome::from(has_passed))
}

fn build(triple: &str) -> Command {
    let mut command = miri::nightly();
    // Naming the target keeps build scripts and macros, which the compiler loads, without the sanitizer.
    command.env("RUSTFLAGS", "-Zsanitizer=address").args(["build", "--profile", PROFILE]);
    command.args(["--package", "sublet-capi", "--package", "sublet-python", "--target", triple]);
    command.args(["--target-dir", TARGET]);
    command
}

fn library(triple: &str, name: &str) -> PathBuf {
    root().join(TARGET).join(triple).join(PROFILE).join(name)
}

/// The runtime that the C compiler links its own programs with.
fn runtime() -> io::Result<PathBuf> {
    let output = Command::new("cc").arg("-print-file-name=libasan.so").output()?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if path.is_absolute() { Ok(path) } else { Err(io::Error::other("the C compiler has no libasan.so")) }
}

fn tests(library: &Path) -> Command {
    let mut command = Command::new(root().join("tests/capi/run.sh"));
    command.current_dir(root()).env("SUBLET_SANITIZE", "address").env("SUBLET_SANITIZED_LIBRARY", library);
    command
}
