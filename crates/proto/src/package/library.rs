//! Describes a build's library after it was inspected: its kind, its architecture and its exports.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::files::find_file;
use super::manifest::{Build, ManifestFunction};
use super::{
    MANIFEST_FILE, PackageKind, check_function_count, elf, environment, image, invalid, is_name, kernels,
    nodejs, python, wasm,
};
use crate::v1::{PackageBuild, PackageFile, PackageLayer};
use crate::{Code, Error};

/// A complete library.
#[derive(Debug)]
pub(super) struct LibraryFile<'data> {
    pub(super) kind: PackageKind,
    pub(super) architecture: Cow<'static, str>,
    /// Exported functions that can be called, with names of at most [`super::MAX_SYMBOL_BYTES`].
    pub(super) functions: BTreeSet<&'data str>,
    /// The layers of an environment.
    pub(super) layers: Vec<PackageLayer>,
}

impl<'data> LibraryFile<'data> {
    /// Reads the library of a build among a package's files, if the build can be run.
    pub(super) fn read(
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
        if build.image.is_some() && !matches!(library.kind, PackageKind::Native | PackageKind::Python) {
            return Err(invalid(format!("{MANIFEST_FILE} names an image, and {} needs none", file.path)));
        }
        Ok(library)
    }

    /// Returns the names of the functions that a build offers: those that it names, or every exported one that C code
    /// would call by its name, without those of the compiler or of C++.
    pub(super) fn offered(&self, build: &Build) -> Result<Vec<String>, Error> {
        let named = build.functions.iter().map(|function| function.name.clone());
        if self.kind == PackageKind::Environment {
            return Ok(Vec::new());
        }
        if self.kind == PackageKind::Python {
            return Ok(named.chain([python::CALL.to_owned()]).collect());
        }
        if !build.functions.is_empty() {
            return Ok(named.collect());
        }
        let is_callable = |symbol: &&&str| !symbol.starts_with('_') && is_name(symbol);
        let callable: Vec<_> = self.functions.iter().filter(is_callable).map(ToString::to_string).collect();
        if callable.is_empty() {
            return Err(invalid(match self.kind {
                PackageKind::Wasm => {
                    "the module exports no function of the type (i32, i32, i32[, i32]) -> i32"
                }
                _ => "the library exports no C function",
            }));
        }
        check_function_count(callable.len())?;
        Ok(callable)
    }

    /// Returns the description for managers and nodes of this library's build, in a package of these functions.
    pub(super) fn info(&self, build: &Build, functions: &[String]) -> Result<PackageBuild, Error> {
        Ok(PackageBuild {
            kind: self.kind.name().to_owned(),
            architecture: self.architecture.clone().into_owned(),
            library: build.library.clone(),
            network: build.network,
            image: build.image.clone().unwrap_or_default(),
            imports: build.python.iter().flat_map(|needs| needs.imports.clone()).collect(),
            environment: build.python.iter().find_map(|needs| needs.environment.clone()).unwrap_or_default(),
            layers: self.layers.clone(),
            symbols: functions.iter().map(|name| self.symbol(build, name)).collect::<Result<_, _>>()?,
        })
    }

    /// Returns the symbol under which it exports a function.
    fn symbol(&self, build: &Build, function: &str) -> Result<String, Error> {
        let named = build.functions.iter().find(|named| named.name == function);
        let symbol = named.map_or(function, |named| named.symbol());
        if self.functions.contains(symbol) {
            return Ok(symbol.to_owned());
        }
        let (library, others) = (&build.library, some_of(&self.functions));
        let message = format!(
            "the library {library} does not export a function {symbol:?} that can be called, but {others}"
        );
        Err(Error::new(Code::MissingSymbol, message))
    }
}

/// The library of a build of Node.js: a module is not examined.
fn of_nodejs(build: &Build) -> Result<LibraryFile<'_>, Error> {
    let architecture = nodejs::architecture(build.nodejs.as_ref())
        .map_err(|wrong| invalid(format!("{MANIFEST_FILE} {wrong}")))?;
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

fn some_of(functions: &BTreeSet<&str>) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> = functions.iter().take(SHOWN).copied().collect();
    match functions.len() {
        0 => "none".to_owned(),
        n if n > SHOWN => format!("{} and {} more", shown.join(", "), n - SHOWN),
        _ => shown.join(", "),
    }
}
