//! `sublet.toml`: a package's description of itself. It is one build, or several of the same functions, each for
//! another kind of processing unit.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::build::{
    Build, KernelLimits, MAX_DEADLINE_MS, MAX_SYMBOL_BYTES, ManifestFunction, PythonNeeds, WasmLimits,
};
use super::files::check_path;
use super::kind::PackageKind;
use super::nodejs::NodejsNeeds;
use super::profile::Profile;
use super::rules::{MANIFEST_FILE, check_function_count, check_name, invalid, wrong};
use super::{environment, image, kernels, manifest_needs, nodejs, profile, python};
use crate::Error;
use crate::isolation::Isolation;
use crate::v1::Needs;

/// Largest manifest, in bytes.
pub const MAX_MANIFEST_BYTES: usize = 1 << 20;
/// Most builds of a package.
pub const MAX_BUILDS: usize = 16;

/// Content of `sublet.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The package's name.
    pub name: String,
    /// At least one build. If any functions are named, all builds name the same ones in the same order: that of their
    /// indexes.
    pub builds: Vec<Build>,
    /// Kinds of processing units on which its functions are executed; empty: all for which there is a build.
    pub profiles: Vec<Profile>,
    /// Environment variables, secrets, folders and temporary space of all builds' functions.
    pub needs: Needs,
}

/// A manifest as it is written, in either form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    library: Option<String>,
    kind: Option<String>,
    network: Option<bool>,
    image: Option<String>,
    #[serde(default, rename = "function")]
    functions: Vec<ManifestFunction>,
    wasm: Option<WasmLimits>,
    kernels: Option<KernelLimits>,
    python: Option<PythonNeeds>,
    nodejs: Option<NodejsNeeds>,
    #[serde(default, rename = "build")]
    builds: Vec<Build>,
    #[serde(default, rename = "profile")]
    profiles: Vec<Profile>,
    environment: Option<toml::Table>,
    secrets: Option<toml::Value>,
    #[serde(default)]
    folders: Vec<String>,
    temporary_bytes: Option<u64>,
    isolation: Option<String>,
    #[serde(default)]
    devices: BTreeMap<String, u32>,
}

impl Manifest {
    /// Parses the text of a `sublet.toml`. It checks names, paths and limits, but not the libraries.
    ///
    /// # Errors
    /// `invalid_package` with the fault.
    pub fn parse(text: &str) -> Result<Manifest, Error> {
        if text.len() > MAX_MANIFEST_BYTES {
            return Err(wrong(format!("has {} bytes, at most {MAX_MANIFEST_BYTES} are taken", text.len())));
        }
        let mut written: Written =
            toml::from_str(text).map_err(|error| invalid(format!("{MANIFEST_FILE}: {}", error.message())))?;
        let name = written.name.clone();
        check_name("package", &name)?;
        let profiles = std::mem::take(&mut written.profiles);
        profile::check(&profiles)?;
        let needs = manifest_needs::read(
            written.environment.take(),
            written.secrets.take(),
            std::mem::take(&mut written.folders),
            written.temporary_bytes,
            written.isolation.take(),
            std::mem::take(&mut written.devices),
        )
        .map_err(wrong)?;
        let manifest = Manifest { name, builds: written.builds()?, profiles, needs };
        manifest.builds.iter().try_for_each(Build::check)?;
        if !manifest.needs.is_empty() {
            manifest.builds.iter().try_for_each(Build::check_can_need)?;
        }
        if !manifest.needs.devices.is_empty() {
            manifest.builds.iter().try_for_each(Build::check_can_use_devices)?;
        }
        manifest.builds.iter().try_for_each(|build| build.check_isolation(&manifest.needs.isolation))?;
        debug_assert!(
            manifest.builds.windows(2).all(|pair| pair[0].names().eq(pair[1].names())),
            "the builds of {} name other functions: {:?}",
            manifest.name,
            manifest.builds
        );
        Ok(manifest)
    }

    /// Returns the build of this index.
    ///
    /// # Errors
    /// `invalid_package` without one.
    pub fn build(&self, index: u32) -> Result<&Build, Error> {
        let missing = || wrong(format!("has {} builds and none of the index {index}", self.builds.len()));
        self.builds.get(index as usize).ok_or_else(missing)
    }
}

impl Written {
    /// The builds, each with all of its functions.
    fn builds(self) -> Result<Vec<Build>, Error> {
        if self.builds.is_empty() {
            kernels::check_words(&self.functions, is_of_kernels(self.kind.as_deref()))?;
            return Ok(vec![self.only_build()?]);
        }
        self.check_top()?;
        let Written { functions, builds, .. } = self;
        if builds.len() > MAX_BUILDS {
            return Err(wrong(format!("has {} builds, at most {MAX_BUILDS} are taken", builds.len())));
        }
        check_functions(&functions)?;
        let has_kernels = builds.iter().any(|build| is_of_kernels(build.kind.as_deref()));
        kernels::check_words(&functions, has_kernels)?;
        builds.into_iter().map(|build| build.with_functions(&functions)).collect()
    }

    fn only_build(self) -> Result<Build, Error> {
        let missing = || wrong("names no library, and has no [[build]] that does".to_owned());
        Ok(Build {
            library: self.library.ok_or_else(missing)?,
            kind: self.kind,
            network: self.network.unwrap_or_default(),
            image: self.image,
            functions: self.functions,
            wasm: self.wasm,
            kernels: self.kernels,
            python: self.python,
            nodejs: self.nodejs,
        })
    }

    /// Refuses fields of a build at the top beside `[[build]]`s.
    fn check_top(&self) -> Result<(), Error> {
        let said = [
            (self.library.is_some(), "library"),
            (self.kind.is_some(), "kind"),
            (self.network.is_some(), "network"),
            (self.image.is_some(), "image"),
            (self.wasm.is_some(), "[wasm]"),
            (self.kernels.is_some(), "[kernels]"),
            (self.python.is_some(), "[python]"),
            (self.nodejs.is_some(), "[nodejs]"),
        ];
        match said.into_iter().find(|(is_said, _)| *is_said) {
            Some((_, what)) => {
                Err(wrong(format!("says {what} beside [[build]], where each build says it for itself")))
            }
            None => Ok(()),
        }
    }
}

impl Build {
    /// The names of its functions, in the order of their indexes.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().map(|function| function.name.as_str())
    }

    /// Adds all of the package's functions; the build's own fields take precedence over those for all builds.
    fn with_functions(mut self, functions: &[ManifestFunction]) -> Result<Build, Error> {
        check_functions(&self.functions)?;
        kernels::check_words(&self.functions, is_of_kernels(self.kind.as_deref()))?;
        let is_known = |own: &&ManifestFunction| functions.iter().any(|function| function.name == own.name);
        if let Some(unknown) = self.functions.iter().find(|own| !is_known(own)) {
            return Err(wrong(format!(
                "says of the build {} what its function {} is, and has no [[function]] of that name",
                self.library, unknown.name
            )));
        }
        let of_this =
            |function: &ManifestFunction| match self.functions.iter().find(|own| own.name == function.name) {
                Some(own) => own.before(function),
                None => function.clone(),
            };
        self.functions = functions.iter().map(of_this).collect();
        Ok(self)
    }

    fn check(&self) -> Result<(), Error> {
        check_path(&self.library)?;
        self.image.as_deref().map_or(Ok(()), image::check_image)?;
        check_functions(&self.functions)?;
        self.check_limits()?;
        python::check_build(self)?;
        self.check_nodejs()?;
        environment::check_build(self)?;
        kernels::check_build(self)
    }

    /// Checks the fields that concern Node.js.
    fn check_nodejs(&self) -> Result<(), Error> {
        let is_nodejs = self.kind.as_deref() == Some(PackageKind::Nodejs.name());
        match (&self.nodejs, is_nodejs) {
            (Some(_), false) => return Err(wrong("has a [nodejs], and its kind is not nodejs".to_owned())),
            (_, false) => return Ok(()),
            (_, true) => {}
        }
        let foreign = [
            (self.network, "network"),
            (self.wasm.is_some(), "[wasm]"),
            (self.python.is_some(), "[python]"),
            (self.kernels.is_some(), "[kernels]"),
        ];
        if let Some((_, what)) = foreign.into_iter().find(|(is_said, _)| *is_said) {
            return Err(wrong(format!("says {what}, which functions in Node.js cannot have")));
        }
        let functions = self.functions.iter().map(|function| (function.name.as_str(), function.symbol()));
        nodejs::check_module(&self.library, functions).map_err(wrong)
    }

    /// Refuses needs of a build that can have none: kernels execute without an operating system, and environments have no
    /// functions.
    fn check_can_need(&self) -> Result<(), Error> {
        let Some(name) = self.kind.as_deref() else { return Ok(()) };
        let kind = PackageKind::parse(name).ok();
        if !kind.is_some_and(|kind| kind.is_of_kernels() || kind == PackageKind::Environment) {
            return Ok(());
        }
        Err(wrong(format!(
            "has an [environment], secrets, folders, temporary_bytes, an isolation or devices, which the build {} of the kind {name} cannot have",
            self.library
        )))
    }

    /// Refuses devices for a build whose functions cannot open them.
    fn check_can_use_devices(&self) -> Result<(), Error> {
        let what = match self.kind.as_deref() {
            _ if self.image.is_some() => "runs in an image".to_owned(),
            None | Some("native" | "python") => return Ok(()),
            Some(kind) => format!("is of the kind {kind}"),
        };
        Err(wrong(format!(
            "has [devices], which native code and Python can open, and the build {} {what}",
            self.library
        )))
    }

    /// Refuses an isolation that the build can never have.
    fn check_isolation(&self, isolation: &str) -> Result<(), Error> {
        if isolation.is_empty() {
            return Ok(());
        }
        let has_image = self.image.is_some();
        let (is, has) = match (Isolation::parse(isolation)?.has_image(), has_image) {
            (true, false) => ("runs images", "no image"),
            (false, true) => ("runs no images", "an image"),
            _ => return Ok(()),
        };
        let library = &self.library;
        Err(wrong(format!("has the isolation {isolation:?}, which {is}, and its build {library} has {has}")))
    }

    fn check_limits(&self) -> Result<(), Error> {
        let limits = self.wasm.unwrap_or_default();
        if limits.deadline_ms.is_some_and(|ms| !(1..=MAX_DEADLINE_MS).contains(&ms)) {
            return Err(invalid(format!("{MANIFEST_FILE}: deadline_ms is not 1 to {MAX_DEADLINE_MS}")));
        }
        if limits.memory_bytes == Some(0) || limits.fuel == Some(0) {
            return Err(invalid(format!("{MANIFEST_FILE}: no function runs without memory or fuel")));
        }
        Ok(())
    }
}

impl ManifestFunction {
    /// Merges two descriptions; the fields of this one take precedence.
    fn before(&self, other: &ManifestFunction) -> ManifestFunction {
        ManifestFunction {
            name: self.name.clone(),
            symbol: self.symbol.as_ref().or(other.symbol.as_ref()).cloned(),
            program: self.program.as_ref().or(other.program.as_ref()).cloned(),
            items: self.items.or(other.items),
            bytes_per_item: self.bytes_per_item.or(other.bytes_per_item),
            group: self.group.or(other.group),
        }
    }
}

fn is_of_kernels(kind: Option<&str>) -> bool {
    kind.and_then(|name| PackageKind::parse(name).ok()).is_some_and(PackageKind::is_of_kernels)
}

fn check_functions(functions: &[ManifestFunction]) -> Result<(), Error> {
    check_function_count(functions.len())?;
    let mut seen = BTreeSet::new();
    for function in functions {
        check_name("function", &function.name)?;
        if !seen.insert(&function.name) {
            return Err(wrong(format!("names the function {} twice", function.name)));
        }
        if !(1..=MAX_SYMBOL_BYTES).contains(&function.symbol().len()) {
            return Err(invalid(format!(
                "the symbol of function {} has {} bytes, not 1 to {MAX_SYMBOL_BYTES}",
                function.name,
                function.symbol().len()
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        Manifest::parse(text).unwrap_err().message
    }

    #[test]
    fn a_manifest_says_what_is_wrong_with_it() {
        assert!(message("library = 'a'").contains("name"));
        assert!(message("name = 'a'").contains("no library"));
        assert!(message("name = 'a/b'\nlibrary = 'a'").contains("a/b"));
        assert!(message("name = 'a'\nlibrary = '../a'").contains("../a"));
        assert!(message("name = 'a'\nlibrary = 'a'\ncolour = 'red'").contains("colour"));
        let twice = "name='a'\nlibrary='a'\n[[function]]\nname='f'\n[[function]]\nname='f'\nsymbol='g'";
        assert!(message(twice).contains("f twice"));
        assert!(message("name='a'\nlibrary='a'\n[[function]]\nname='f'\nsymbol=''").contains("symbol"));
    }

    const BUILDS: &str = "name = 'p'
        [[function]]
        name = 'f'
        symbol = 'shared'
        bytes_per_item = 4
        [[function]]
        name = 'g'
        [[build]]
        library = 'x86/p.so'
        [[build]]
        library = 'p.cl'
        kind = 'opencl'
        kernels = { deadline_ms = 7 }
        [[build.function]]
        name = 'g'
        symbol = 'g_kernel'
        program = 'g.cl'
        items = 2
        ";

    #[test]
    fn function_of_a_build_overrides_the_one_for_all() {
        let manifest = Manifest::parse(BUILDS).unwrap();
        let Manifest { name, builds, .. } = &manifest;
        let [native, kernels] = &builds[..] else { panic!("{builds:?}") };
        assert_eq!(
            (name.as_str(), native.library.as_str(), kernels.library.as_str()),
            ("p", "x86/p.so", "p.cl")
        );
        let symbols = |build: &Build| -> Vec<String> {
            build.functions.iter().map(|function| function.symbol().to_owned()).collect()
        };
        assert_eq!(
            (symbols(native), symbols(kernels)),
            (vec!["shared".into(), "g".into()], vec!["shared".into(), "g_kernel".into()])
        );
        let [f, g] = &kernels.functions[..] else { panic!("{kernels:?}") };
        assert_eq!((f.bytes_per_item, f.items, f.program.as_deref()), (Some(4), None, None));
        assert_eq!((g.bytes_per_item, g.items, g.program.as_deref()), (None, Some(2), Some("g.cl")));
        assert_eq!(manifest.build(1).unwrap().library, "p.cl");
        assert!(manifest.build(2).unwrap_err().message.contains("2 builds"));
    }

    #[test]
    fn builds_that_contradict_the_package_or_themselves_are_refused() {
        for (more, named) in [
            ("[[build.function]]\nname = 'h'", "no [[function]]"),
            ("[[build.function]]\nname = 'g'", "g twice"),
            ("[[build]]\nlibrary = 'q.so'\n[[build.function]]\nname = 'f'\nitems = 1", "items"),
            ("[[build]]\nlibrary = '/q.so'", "/q.so"),
            ("[[build]]\nlibrary = 'q.so'\ncolour = 'red'", "colour"),
            ("[[build]]\nkind = 'cuda'", "library"),
            (&"[[build]]\nlibrary = 'q.so'\n".repeat(MAX_BUILDS - 1), "17 builds"),
        ] {
            let message = message(&format!("{BUILDS}\n{more}"));
            assert!(message.contains(named), "{message}");
        }
        for top in [
            "library = 'a'",
            "kind = 'cuda'",
            "network = true",
            "image = 'a'",
            "wasm = {}",
            "kernels = {}",
            "python = {}",
        ] {
            assert!(message(&format!("{top}\n{BUILDS}")).contains("beside [[build]]"), "{top}");
        }
        let native = "name='p'\n[[function]]\nname='f'\nitems=1\n[[build]]\nlibrary='p.so'";
        assert!(message(native).contains("items"), "no build has kernels");
    }
}
