//! The command line of Apptainer, which has no bundles: it executes a program in a folder with a file system, and becomes it.
//!
//! No Apptainer has executed this command line yet. A test compares it with what a recorder was given.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;

use super::shown::ContainerMount;
use crate::FolderAccess;
use crate::inside::CreationPlan;
use crate::inside::container::ROOT;
use crate::inside::plan::LayerMounts;

/// Name of the program.
const NAME: &[u8] = b"apptainer";
/// Options before the mounts: no file, variable, namespace or right of the caller.
const OPTIONS: [&CStr; 8] = [
    c"--quiet",
    c"exec",
    c"--containall",
    c"--no-home",
    c"--cleanenv",
    c"--no-privs",
    c"--writable",
    c"--pwd",
];
/// Prefix of variables that Apptainer gives to the program, without the prefix.
const VARIABLE: &[u8] = b"APPTAINERENV_";

/// Whether a runtime is Apptainer.
pub(super) fn is_it(runtime: &CStr) -> bool {
    std::path::Path::new(OsStr::from_bytes(runtime.to_bytes()))
        .file_name()
        .is_some_and(|name| name == OsStr::from_bytes(NAME))
}

/// The words of the command for a plan, with what is shown in the container, and from where.
pub(super) fn command(
    runtime: &CStr,
    plan: &CreationPlan,
    image: &LayerMounts,
    shown: &[ContainerMount],
) -> io::Result<Vec<CString>> {
    let mut words: Vec<CString> = std::iter::once(runtime).chain(OPTIONS).map(CStr::to_owned).collect();
    words.push(image.working_folder.clone());
    for ContainerMount { place, source, access } in shown {
        let access: &[u8] = match access {
            FolderAccess::ReadOnly => b"ro",
            FolderAccess::Write => b"rw",
        };
        let parts = [source.as_os_str().as_bytes(), place.as_os_str().as_bytes(), access];
        words.extend([c"--bind".to_owned(), CString::new(parts.join(&b':'))?]);
    }
    words.push(CString::new(ROOT)?);
    words.push(plan.program.clone());
    words.extend(plan.args.iter().skip(1).cloned());
    Ok(words)
}

/// The program's variables as Apptainer takes them, and those of Apptainer itself.
pub(super) fn environment(plan: &CreationPlan, own: &CStr) -> io::Result<Vec<CString>> {
    let given = plan.env.iter().map(|variable| CString::new([VARIABLE, variable.to_bytes()].concat()));
    let given = given.collect::<Result<Vec<_>, _>>()?;
    Ok(std::iter::once(own.to_owned()).chain(given).collect())
}
