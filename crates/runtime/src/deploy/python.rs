//! Checks a package in Python before it is deployed: its module can be parsed, and has the functions that the manifest
//! names.
//!
//! The parser is that of an interpreter of this machine, of the version that the package requires. It executes nothing
//! of the package.

use std::path::Path;
use std::process::Command;

use sublet_proto::package::python::{ANY_PYTHON, CALL, without_image};
use sublet_proto::package::{self, is_python};
use sublet_proto::v1::{Package, PackageBuild};
use sublet_proto::{Code, Error};

use super::fault::fault_found_by;

/// The program that parses.
const CHECK: &str = include_str!("check.py");

/// Refuses a folder whose builds for Python could not be executed.
///
/// # Errors
/// [`Code::InvalidPackage`] with the file and line, or the function that is missing.
pub(super) fn check(folder: &Path, package: Package) -> Result<(), Error> {
    let checked = package::validate(&as_pinned(package)?)?;
    let builds =
        checked.builds.iter().filter(|build| is_python(&build.architecture) && !build.is_environment());
    for build in builds {
        if let Some(wrong) = find_fault(folder, build) {
            return Err(Error::new(Code::InvalidPackage, format!("package {}: {wrong}", checked.name)));
        }
    }
    Ok(())
}

/// The package as if its environments and images were known.
fn as_pinned(mut package: Package) -> Result<Vec<u8>, Error> {
    let any = package::digest(b"");
    while package::unpinned_image(&package)?.is_some() {
        package::pin_image(&mut package, &any)?;
    }
    while let Some(unpinned) = package::unpinned_environment(&package)? {
        package::pin_environment(&mut package, &unpinned, &any)?;
    }
    Ok(package::encode(&package))
}

/// The first fault of a build, unless this machine has no interpreter for it.
fn find_fault(folder: &Path, build: &PackageBuild) -> Option<String> {
    // `python3.11` is the name of an interpreter, too.
    let architecture = without_image(&build.architecture);
    let interpreter = if architecture == ANY_PYTHON { "python3" } else { architecture };
    let named = std::env::var_os("SUBLET_PYTHON").filter(|path| !path.is_empty());
    let named = named.filter(|_| architecture == ANY_PYTHON);
    let functions = build.symbols.iter().filter(|symbol| *symbol != CALL);
    let mut python = Command::new(named.as_deref().unwrap_or(interpreter.as_ref()));
    python.args(["-I", "-S", "-c", CHECK]).arg(folder).arg(&build.library).args(functions);
    fault_found_by(&mut python)
}
