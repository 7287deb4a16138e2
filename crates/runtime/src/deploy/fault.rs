//! Runs the interpreters that look for faults in the sources of packages.

use std::process::{Command, Stdio};

/// Runs a program that looks for a fault of a package and prints it. `None` if it finds none or does not run.
pub(super) fn fault_found_by(program: &mut Command) -> Option<String> {
    let output = program.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let fault = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !fault.is_empty()).then_some(fault)
}
