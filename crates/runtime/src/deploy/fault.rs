//! Runs the interpreters that look for faults in the sources of packages.

use std::path::Path;
use std::process::{Command, Stdio};

use sublet_proto::{Code, Error};

/// Refuses a package in which an interpreter finds a fault. The interpreter's program gets the package's folder and these
/// arguments, and prints the first fault or nothing. An interpreter that cannot be started finds none.
///
/// # Errors
/// [`Code::InvalidPackage`] with the fault.
pub(super) fn check_by<'text>(
    interpreter: &mut Command,
    package: &str,
    folder: &Path,
    arguments: impl Iterator<Item = &'text str>,
) -> Result<(), Error> {
    interpreter.arg(folder).args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    let Ok(output) = interpreter.output() else { return Ok(()) };
    let fault = String::from_utf8_lossy(&output.stdout);
    match fault.trim() {
        fault if output.status.success() && !fault.is_empty() => {
            Err(Error::new(Code::InvalidPackage, format!("package {package}: {fault}")))
        }
        _ => Ok(()),
    }
}
