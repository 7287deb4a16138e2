//! A library after it was inspected: its kind, its architecture and its exports.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::build::{Build, MAX_SYMBOL_BYTES};
use super::kind::PackageKind;
use crate::v1::{PackageBuild, PackageLayer};
use crate::{Code, Error};

/// A complete library.
#[derive(Debug)]
pub(super) struct LibraryFile<'data> {
    pub(super) kind: PackageKind,
    pub(super) architecture: Cow<'static, str>,
    /// Exported functions that can be called, with names of at most [`MAX_SYMBOL_BYTES`].
    pub(super) functions: BTreeSet<&'data str>,
    /// The layers of an environment.
    pub(super) layers: Vec<PackageLayer>,
}

impl<'data> LibraryFile<'data> {
    /// Returns the description for managers and nodes of this library's build, in a package of these functions.
    pub(super) fn info(&self, build: &Build, functions: &[String]) -> Result<PackageBuild, Error> {
        debug_assert!(
            self.functions.iter().all(|symbol| symbol.len() <= MAX_SYMBOL_BYTES),
            "a symbol of {} is longer than {MAX_SYMBOL_BYTES} bytes",
            build.library
        );
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

fn some_of(functions: &BTreeSet<&str>) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> = functions.iter().take(SHOWN).copied().collect();
    match functions.len() {
        0 => "none".to_owned(),
        n if n > SHOWN => format!("{} and {} more", shown.join(", "), n - SHOWN),
        _ => shown.join(", "),
    }
}
