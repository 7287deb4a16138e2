//! Packages of Python: functions of a module, executed by an interpreter of the node.
//!
//! Such a build names its kind (`kind = "python"`), the file of its module, and the functions that callers of any
//! language may call with bytes. Python callers call every function of every module by one more, [`CALL`], with any
//! arguments. Its architecture is the version of Python: `python3.11`, or `python` for any. A build with an image is
//! executed by the Python of the image, and its architecture says so: `python3.11-image`.
//!
//! Modules are not examined here: untrusted programs are read by a process with nothing to lose.

use std::collections::BTreeSet;

use super::address::is_package;
use super::build::{Build, ManifestFunction, PythonNeeds};
use super::environment;
use super::files::check_path;
use super::kind::PackageKind;
use super::library::LibraryFile;
use super::platform::{OF_IMAGE, python_architecture};
use super::rules::wrong;
use crate::Error;

pub use super::platform::{ANY_PYTHON, without_image};

/// The function by which Python callers call any other: the last one of each package of Python.
pub const CALL: &str = "sublet.call";
/// Most modules that a package has imported ahead.
pub const MAX_IMPORTS: usize = 64;
/// Longest name of a module, in bytes.
pub const MAX_MODULE_BYTES: usize = 128;

/// Describes the library of a build of Python.
pub(super) fn read(build: &Build) -> Result<LibraryFile<'_>, Error> {
    let needs = build.python.clone().unwrap_or_default();
    let architecture = match &needs.version {
        None => ANY_PYTHON.to_owned(),
        Some(version) => python_architecture(version)
            .filter(|architecture| architecture.strip_prefix(ANY_PYTHON) == Some(version))
            .ok_or_else(|| wrong(format!("says that it needs Python {version:?}, not one as \"3.11\"")))?,
    };
    let place = if build.image.is_some() { OF_IMAGE } else { "" };
    let architecture = format!("{architecture}{place}");
    let functions =
        build.functions.iter().map(ManifestFunction::symbol).chain([CALL]).collect::<BTreeSet<_>>();
    Ok(LibraryFile {
        kind: PackageKind::Python,
        architecture: architecture.into(),
        functions,
        layers: Vec::new(),
    })
}

/// Checks the fields of a build that concern Python, and that the required ones are set.
pub(super) fn check_build(build: &Build) -> Result<(), Error> {
    if build.kind.as_deref() == Some(PackageKind::Environment.name()) {
        return Ok(());
    }
    let is_python = build.kind.as_deref() == Some(PackageKind::Python.name());
    match (&build.python, is_python) {
        (Some(_), false) => return Err(wrong("has a [python], and its kind is not python".to_owned())),
        (_, false) => return Ok(()),
        (needs, true) => check_imports(needs.as_ref().map_or(&[], |needs| &needs.imports))?,
    }
    check_environment(build)?;
    if !build.library.ends_with(".py") || module_of(&build.library).is_none() {
        return Err(wrong(format!("names the module {:?}, which no file NAME.py can be", build.library)));
    }
    let foreign = [
        (build.network, "network"),
        (build.wasm.is_some(), "[wasm]"),
        (build.kernels.is_some(), "[kernels]"),
    ];
    if let Some((_, what)) = foreign.into_iter().find(|(is_said, _)| *is_said) {
        return Err(wrong(format!("says {what}, which functions in Python cannot have")));
    }
    match build.functions.iter().find(|function| function.name == CALL || !is_path(function.symbol())) {
        Some(function) if function.name == CALL => {
            Err(wrong(format!("names a function {CALL}, which every package has")))
        }
        Some(function) => Err(wrong(format!(
            "says that {} is {:?}, which is no name in Python",
            function.name,
            function.symbol()
        ))),
        None => Ok(()),
    }
}

/// Checks what a manifest says of the environment.
fn check_environment(build: &Build) -> Result<(), Error> {
    let Some(needs) = &build.python else { return Ok(()) };
    if build.image.is_some() && (needs.requirements.is_some() || needs.environment.is_some()) {
        return Err(wrong(
            "names an image and an environment: functions in an image import what the image has".to_owned(),
        ));
    }
    if let Some(requirements) = &needs.requirements {
        check_path(requirements)?;
    }
    match &needs.environment {
        Some(address) if !is_package(address) => Err(wrong(format!(
            "names the environment {address:.200?}, which is not NAME, TENANT/NAME or a digest"
        ))),
        _ => Ok(()),
    }
}

/// Refuses a stored package whose environment is not known for good.
pub(super) fn check_pinned(build: &Build) -> Result<(), Error> {
    match &build.python {
        Some(PythonNeeds { environment: Some(address), .. }) => environment::check_pinned(address),
        Some(PythonNeeds { requirements: Some(file), environment: None, .. }) => Err(wrong(format!(
            "has requirements in {file}, which are not resolved: `sublet deploy` does that"
        ))),
        _ => Ok(()),
    }
}

/// The module that a file is, if its name is one.
pub fn module_of(library: &str) -> Option<&str> {
    let file = library.rsplit('/').next()?;
    file.strip_suffix(".py").filter(|name| is_identifier(name))
}

fn check_imports(imports: &[String]) -> Result<(), Error> {
    if imports.len() > MAX_IMPORTS {
        return Err(wrong(format!("imports {} modules, at most {MAX_IMPORTS} are taken", imports.len())));
    }
    match imports.iter().find(|name| name.len() > MAX_MODULE_BYTES || !is_path(name)) {
        Some(name) => Err(wrong(format!("imports {name:.40?}, which is no name of a module"))),
        None => Ok(()),
    }
}

/// Whether this is names with dots between.
fn is_path(text: &str) -> bool {
    text.split('.').all(is_identifier)
}

fn is_identifier(text: &str) -> bool {
    let is_letter = |c: char| c.is_alphabetic() || c == '_';
    text.chars().next().is_some_and(is_letter) && text.chars().all(|c| is_letter(c) || c.is_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::{IMAGE_PYTHON, MAX_FUNCTIONS, encode, from_files, validate};
    use crate::v1::PackageFile;

    fn checked(manifest: &str) -> Result<crate::package::CheckedPackage, Error> {
        let file = |path: &str| PackageFile { path: path.into(), data: b"x = 1".to_vec(), executable: false };
        validate(&encode(&from_files(manifest, vec![file("m.py"), file("lib/n.py"), file("p.so")])?))
    }

    const MODULE: &str = "name='p'\nkind='python'\nlibrary='m.py'\n";

    #[test]
    fn python_package_has_its_functions_and_the_call_function() {
        let functions = "[[function]]\nname='f'\n[[function]]\nname='g'\nsymbol='C.g'\n";
        let package =
            checked(&format!("{MODULE}{functions}[python]\nversion='3.11'\nimports=['numpy', 'os.path']"))
                .unwrap();
        assert_eq!(package.functions, ["f", "g", CALL]);
        let build = &package.builds[0];
        assert_eq!((build.kind.as_str(), build.architecture.as_str()), ("python", "python3.11"));
        assert_eq!(build.symbols, ["f", "C.g", CALL]);
        assert_eq!(build.imports, ["numpy", "os.path"]);
        let image = format!("image='x@sha256:{}'\n", "0".repeat(64));
        let inside = checked(&format!("{MODULE}{image}[python]\nversion='3.12'")).unwrap();
        assert_eq!(inside.builds[0].architecture, "python3.12-image");
        let inside = checked(&format!("{MODULE}{image}")).unwrap();
        assert_eq!(inside.builds[0].architecture, IMAGE_PYTHON);
        let any = checked("name='p'\nkind='python'\nlibrary='lib/n.py'").unwrap();
        assert_eq!((any.functions.len(), any.builds[0].architecture.as_str()), (1, ANY_PYTHON));
    }

    #[test]
    fn call_function_counts_among_the_functions() {
        let named = |count: usize| {
            let functions: String =
                (0..count).map(|number| format!("[[function]]\nname='f{number}'\n")).collect();
            checked(&format!("{MODULE}{functions}"))
        };
        assert_eq!(named(MAX_FUNCTIONS - 1).unwrap().functions.len(), MAX_FUNCTIONS);
        let error = named(MAX_FUNCTIONS).unwrap_err();
        assert!(error.message.contains("1025 functions, at most 1024"), "{error}");
    }

    #[test]
    fn what_no_interpreter_can_be_told_is_refused() {
        for (more, named) in [
            ("[python]\nversion='3'", "\"3\""),
            ("[python]\nversion='3.11.2'", "3.11.2"),
            ("[python]\nimports=['a b']", "a b"),
            ("[python]\nimports=['']", "no name of a module"),
            ("[python]\ncolour='red'", "colour"),
            ("[[function]]\nname='sublet.call'", "every package"),
            ("[[function]]\nname='f'\nsymbol='f()'", "f()"),
            ("network=true", "network"),
            ("image='x'\n[python]\nenvironment='a'", "an image and an environment"),
            ("image='x'\n[python]\nrequirements='r.txt'", "an image and an environment"),
            ("wasm={}", "[wasm]"),
            ("[kernels]\n", "kernels"),
        ] {
            let error = checked(&format!("{MODULE}{more}")).unwrap_err();
            assert!(error.message.contains(named), "{more}: {error}");
        }
        let message = |manifest: &str| checked(manifest).unwrap_err().message;
        assert!(message("name='p'\nkind='python'\nlibrary='p.so'").contains("p.so"));
        assert!(message("name='p'\nlibrary='p.so'\n[python]\n").contains("kind is not python"));
        let mixed = "name='p'\n[[function]]\nname='f'\n[[build]]\nkind='python'\nlibrary='m.py'\n[[build]]\nlibrary='p.so'";
        assert!(message(mixed).contains("other kinds"), "{}", message(mixed));
        let imports: Vec<_> = (0..=MAX_IMPORTS).map(|number| format!("'m{number}'")).collect();
        assert!(
            message(&format!("{MODULE}[python]\nimports=[{}]", imports.join(","))).contains("65 modules")
        );
    }
}
