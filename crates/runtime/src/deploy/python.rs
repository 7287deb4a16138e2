//! Checks a package in Python before it is deployed: its module can be parsed, and has the functions that the manifest
//! names.
//!
//! The parser is that of an interpreter of this machine, of the version that the package requires. It executes nothing
//! of the package.

use std::path::Path;
use std::process::Command;

use sublet_proto::Error;
use sublet_proto::package::python::{ANY_PYTHON, CALL, without_image};
use sublet_proto::package::{self, is_python};
use sublet_proto::v1::{Package, PackageBuild};

use super::fault::check_by;

/// The program that parses.
const CHECK: &str = include_str!("check.py");

/// Refuses a folder whose builds for Python could not be executed.
///
/// # Errors
/// [`Code::InvalidPackage`](sublet_proto::Code::InvalidPackage) with the file and line, or the function that is missing.
pub(super) fn check(folder: &Path, package: Package) -> Result<(), Error> {
    let checked = package::validate(&as_pinned(package)?)?;
    let builds =
        checked.builds.iter().filter(|build| is_python(&build.architecture) && !build.is_environment());
    for build in builds {
        check_build(folder, &checked.name, build)?;
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

/// Refuses a build with a fault, if this machine has an interpreter for it.
fn check_build(folder: &Path, name: &str, build: &PackageBuild) -> Result<(), Error> {
    // `python3.11` is the name of an interpreter, too.
    let architecture = without_image(&build.architecture);
    let interpreter = if architecture == ANY_PYTHON { "python3" } else { architecture };
    let named = std::env::var_os("SUBLET_PYTHON").filter(|path| !path.is_empty());
    let named = named.filter(|_| architecture == ANY_PYTHON);
    let functions = build.symbols.iter().map(String::as_str).filter(|symbol| *symbol != CALL);
    let mut python = Command::new(named.as_deref().unwrap_or(interpreter.as_ref()));
    python.args(["-I", "-S", "-c", CHECK]);
    check_by(&mut python, name, folder, [build.library.as_str()].into_iter().chain(functions))
}
