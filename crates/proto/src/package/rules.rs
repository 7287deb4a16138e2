//! Bounds of a package, reserved names of its files, and the error, for all checks of packages.

use crate::names::{is_name, name_form};
use crate::{Code, Error};

/// The manifest's name in a package's folder; no file of the package may have it.
pub const MANIFEST_FILE: &str = "sublet.toml";
/// The file in which a node keeps its description of an unpacked package: an encoded `PackageInfo`.
pub const INFO_FILE: &str = "manifest.pb";
/// The folder in which a node keeps the built kernels of an unpacked package: [`super::built_file`].
pub const BUILT_FOLDER: &str = ".built";
/// Largest encoded package, in bytes.
pub const MAX_PACKAGE_BYTES: u64 = 256 << 20;
/// Most files in a package, without the manifest.
pub const MAX_FILES: usize = 4096;
/// Most functions that a package offers.
pub const MAX_FUNCTIONS: usize = 1024;

/// Error of a check of a package.
pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(Code::InvalidPackage, message)
}

/// Error of a check of a manifest; the message continues the manifest's name.
pub(super) fn wrong(what: impl Into<String>) -> Error {
    invalid(format!("{MANIFEST_FILE} {}", what.into()))
}

/// Refuses a text that is not the name of a package or of a function.
pub(super) fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if is_name(name) {
        return Ok(());
    }
    Err(invalid(format!("{name:?} is no {what} name: {}", name_form())))
}

/// Refuses more than [`MAX_FUNCTIONS`] functions.
pub(super) fn check_function_count(count: usize) -> Result<(), Error> {
    if count <= MAX_FUNCTIONS {
        return Ok(());
    }
    Err(invalid(format!(
        "the package has {count} functions, at most {MAX_FUNCTIONS} are taken; name some in {MANIFEST_FILE}"
    )))
}
