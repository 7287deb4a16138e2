//! Inspects the builds of a package: the library of each by its kind, and whether the builds belong together.

use super::build::{Build, ManifestFunction};
use super::files::find_file;
use super::kind::PackageKind;
use super::library::LibraryFile;
use super::manifest::Manifest;
use super::rules::{MANIFEST_FILE, check_function_count, invalid, wrong};
use super::{elf, environment, image, kernels, nodejs, python, wasm};
use crate::Error;
use crate::names::is_name;
use crate::v1::{PackageBuild, PackageFile};

/// Returns the names of the functions, which are the first build's, and the builds.
pub(super) fn read_builds(
    manifest: &Manifest,
    files: &[PackageFile],
) -> Result<(Vec<String>, Vec<PackageBuild>), Error> {
    check_kinds(&manifest.builds)?;
    let (mut functions, mut builds) = (Vec::new(), Vec::<PackageBuild>::new());
    for build in &manifest.builds {
        let library = read_library(build, files)?;
        if builds.is_empty() {
            functions = offered(&library, build)?;
            check_function_count(functions.len())?;
        }
        if let Some(other) = builds.iter().find(|other| other.architecture == library.architecture) {
            return Err(invalid(format!(
                "the builds {} and {} are both for {}, and only the first would ever run",
                other.library, build.library, other.architecture
            )));
        }
        builds.push(library.info(build, &functions)?);
    }
    debug_assert!(
        builds.iter().all(|build| build.symbols.len() == functions.len()),
        "each build exports each of {} functions: {builds:?}",
        functions.len()
    );
    Ok((functions, builds))
}

/// Refuses builds of Python beside others: only interpreters have the function that Python callers call. An environment
/// is alone, too.
fn check_kinds(builds: &[Build]) -> Result<(), Error> {
    let is_environment = |build: &Build| build.kind.as_deref() == Some(PackageKind::Environment.name());
    if builds.len() > 1 && builds.iter().any(is_environment) {
        return Err(invalid("the package is an environment and has other builds"));
    }
    let is_python = |build: &Build| build.kind.as_deref() == Some(PackageKind::Python.name());
    if builds.iter().any(is_python) && !builds.iter().all(is_python) {
        return Err(invalid("the package has builds of Python and of other kinds"));
    }
    Ok(())
}

/// Reads the library of a build among a package's files, if the build can be run.
fn read_library<'data>(
    build: &'data Build,
    files: &'data [PackageFile],
) -> Result<LibraryFile<'data>, Error> {
    let file = find_file(files, &build.library)?;
    let library = match build.said_kind()? {
        Some(PackageKind::Python) => python::read(build)?,
        Some(PackageKind::Nodejs) => of_nodejs(build)?,
        Some(PackageKind::Environment) => environment::read(build, file)?,
        Some(kind) => {
            kernels::check_alone(build)?;
            kernels::read(kind, build, files)?
        }
        None => of_bytes(&file.data).map_err(|reason| invalid(format!("{}: {reason}", file.path)))?,
    };
    if build.wasm.is_some() && library.kind != PackageKind::Wasm {
        return Err(invalid(format!(
            "{MANIFEST_FILE} has limits for a WebAssembly module, which {} is not",
            file.path
        )));
    }
    image::check_pinned(build.image.as_deref())?;
    python::check_pinned(build)?;
    let has_images = matches!(library.kind, PackageKind::Native | PackageKind::Python | PackageKind::Nodejs);
    if build.image.is_some() && !has_images {
        return Err(invalid(format!("{MANIFEST_FILE} names an image, and {} needs none", file.path)));
    }
    Ok(library)
}

/// Returns the names of the functions that a build offers: those that it names, or every exported one that C code
/// would call by its name, without those of the compiler or of C++.
fn offered(library: &LibraryFile<'_>, build: &Build) -> Result<Vec<String>, Error> {
    let named = build.functions.iter().map(|function| function.name.clone());
    if library.kind == PackageKind::Environment {
        return Ok(Vec::new());
    }
    if library.kind == PackageKind::Python {
        return Ok(named.chain([python::CALL.to_owned()]).collect());
    }
    if !build.functions.is_empty() {
        return Ok(named.collect());
    }
    let is_callable = |symbol: &&&str| !symbol.starts_with('_') && is_name(symbol);
    let callable: Vec<_> = library.functions.iter().filter(is_callable).map(ToString::to_string).collect();
    if callable.is_empty() {
        return Err(invalid(match library.kind {
            PackageKind::Wasm => "the module exports no function of the type (i32, i32, i32[, i32]) -> i32",
            _ => "the library exports no C function",
        }));
    }
    Ok(callable)
}

/// The library of a build of Node.js: a module is not examined.
fn of_nodejs(build: &Build) -> Result<LibraryFile<'_>, Error> {
    let architecture = nodejs::architecture(build.nodejs.as_ref(), build.image.as_deref()).map_err(wrong)?;
    Ok(LibraryFile {
        kind: PackageKind::Nodejs,
        architecture: architecture.into(),
        functions: build.functions.iter().map(ManifestFunction::symbol).collect(),
        layers: Vec::new(),
    })
}

fn of_bytes(data: &[u8]) -> Result<LibraryFile<'_>, String> {
    match PackageKind::of(data) {
        PackageKind::Wasm => wasm::read(data),
        _ => elf::read(data),
    }
}
