//! Environments: the distributions that functions in Python import, in place of those of a node.
//!
//! An environment is a package of the kind `environment`. Its library is a list of layers, one a line: the digest of a
//! [wheel](super::wheel), the name of its file, and its size in bytes. The lines are in the order of the names, so that
//! the same layers are the same environment. Its architecture is the platform that its wheels need
//! ([`PythonPlatform`]). It has no functions, and is not leased: packages of Python name it.

use std::collections::BTreeMap;

use super::address::is_package;
use super::build::Build;
use super::digest::is_digest;
use super::kind::PackageKind;
use super::library::LibraryFile;
use super::platform::PythonPlatform;
use super::rules::{MANIFEST_FILE, MAX_PACKAGE_BYTES, invalid};
use super::wheel::{WHEEL, WheelName};
use crate::Error;
use crate::v1::{self, PackageBuild, PackageFile, PackageLayer};

/// The file of an environment that lists its layers.
pub const LAYERS_FILE: &str = "layers.txt";
/// Most layers of an environment.
pub const MAX_ENVIRONMENT_LAYERS: usize = 512;

/// A layer of an environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvironmentLayer {
    /// Digest of the wheel, as that of a package.
    pub digest: String,
    /// Name of the wheel's file.
    pub name: String,
    /// Size of the wheel.
    pub size_bytes: u64,
}

impl EnvironmentLayer {
    /// The name of the distribution, without its version.
    pub fn distribution(&self) -> &str {
        self.name.split('-').next().unwrap_or_default()
    }
}

impl From<EnvironmentLayer> for PackageLayer {
    fn from(EnvironmentLayer { digest, name, size_bytes }: EnvironmentLayer) -> PackageLayer {
        PackageLayer { digest, name, size_bytes }
    }
}

/// Parses a list of layers.
///
/// # Errors
/// `invalid_package` with the line that is wrong.
pub fn parse_layers(list: &[u8]) -> Result<Vec<EnvironmentLayer>, Error> {
    let list = std::str::from_utf8(list).map_err(|_| invalid("the list of layers is not UTF-8"))?;
    let layers: Vec<EnvironmentLayer> = list.lines().map(parse_line).collect::<Result<_, _>>()?;
    if layers.is_empty() || layers.len() > MAX_ENVIRONMENT_LAYERS {
        let count = layers.len();
        return Err(invalid(format!("an environment has 1 to {MAX_ENVIRONMENT_LAYERS} layers, not {count}")));
    }
    if !layers.is_sorted_by(|one, other| one.name < other.name) {
        return Err(invalid("the layers of an environment are not in the order of their names, each once"));
    }
    Ok(layers)
}

fn parse_line(line: &str) -> Result<EnvironmentLayer, Error> {
    let wrong = || invalid(format!("{line:.200?} is not a layer: sha256:DIGEST FILE.whl BYTES"));
    let mut words = line.split(' ');
    let (Some(digest), Some(name), Some(size), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(wrong());
    };
    let size_bytes = size.parse().ok().filter(|bytes: &u64| bytes.to_string() == size).ok_or_else(wrong)?;
    if !is_digest(digest) || !(1..=MAX_PACKAGE_BYTES).contains(&size_bytes) {
        return Err(wrong());
    }
    WheelName::parse(name)?;
    Ok(EnvironmentLayer { digest: digest.to_owned(), name: name.to_owned(), size_bytes })
}

/// The least platform on which a Python of a version can use all of these wheels, by the names of their files.
///
/// # Errors
/// `invalid_package` with the wheel for which there is none, or with two of one distribution.
pub fn platform_of<'name>(
    version: (u32, u32),
    names: impl Iterator<Item = &'name str>,
) -> Result<PythonPlatform, Error> {
    let mut all = PythonPlatform { version, machine: None };
    let mut distributions = BTreeMap::new();
    for name in names {
        let wheel = WheelName::parse(name)?;
        let of = |fault: String| invalid(format!("the wheel {name} {fault}"));
        let distribution = wheel.distribution.split('-').next().unwrap_or_default();
        let distribution = distribution.to_ascii_lowercase().replace(['.', '-'], "_");
        if let Some(other) = distributions.insert(distribution, name) {
            return Err(of(format!("and the wheel {other} are of one distribution")));
        }
        let (major, minor) = version;
        let own =
            wheel.fit(version).ok_or_else(|| of(format!("is not for Python {major}.{minor} on Linux")))?;
        let before = all.clone();
        all = all.and(own.clone()).ok_or_else(|| of(format!("is for {own}, and others are for {before}")))?;
        debug_assert_eq!(all.version, version, "the platform of {before} and {own} together, which is {all}");
    }
    Ok(all)
}

/// Describes the library of an environment.
pub(super) fn read<'data>(build: &Build, file: &PackageFile) -> Result<LibraryFile<'data>, Error> {
    let layers = parse_layers(&file.data)?;
    let said = build.python.as_ref().and_then(|needs| needs.version.as_deref()).unwrap_or_default();
    let wrong =
        || invalid(format!("{MANIFEST_FILE}: an environment names its [python] version, as \"3.11\""));
    let version = PythonPlatform::of_version(said).ok_or_else(wrong)?.version;
    let platform = platform_of(version, layers.iter().map(|layer| layer.name.as_str()))?;
    Ok(LibraryFile {
        kind: PackageKind::Environment,
        architecture: platform.to_string().into(),
        functions: Default::default(),
        layers: layers.into_iter().map(PackageLayer::from).collect(),
    })
}

/// Checks what a manifest of an environment says.
pub(super) fn check_build(build: &Build) -> Result<(), Error> {
    if build.kind.as_deref() != Some(PackageKind::Environment.name()) {
        return Ok(());
    }
    let needs = build.python.clone().unwrap_or_default();
    let foreign = [
        (!build.functions.is_empty(), "[[function]]"),
        (build.network, "network"),
        (build.image.is_some(), "image"),
        (build.wasm.is_some(), "[wasm]"),
        (build.kernels.is_some(), "[kernels]"),
        (!needs.imports.is_empty(), "imports"),
        (needs.environment.is_some(), "environment"),
        (needs.requirements.is_some(), "requirements"),
    ];
    match foreign.into_iter().find(|(is_said, _)| *is_said) {
        Some((_, what)) => {
            Err(invalid(format!("{MANIFEST_FILE} says {what}, which an environment cannot have")))
        }
        None => Ok(()),
    }
}

/// Checks the address of an environment in a stored package: its digest is part of it.
pub(super) fn check_pinned(address: &str) -> Result<(), Error> {
    if is_pinned_environment(address) {
        return Ok(());
    }
    Err(invalid(format!(
        "{MANIFEST_FILE}: the environment {address:?} is not pinned: it has to be sha256:DIGEST or \
         TENANT/NAME@sha256:DIGEST; `sublet deploy` pins a name"
    )))
}

/// Whether the address of an environment always means the same one.
pub fn is_pinned_environment(address: &str) -> bool {
    is_package(address) && is_digest(environment_digest(address))
}

/// The digest in the pinned address of an environment.
pub fn environment_digest(address: &str) -> &str {
    let (_, last) = address.rsplit_once(['@', '/']).unwrap_or(("", address));
    last
}

impl PackageBuild {
    /// Whether it is an environment.
    pub fn is_environment(&self) -> bool {
        self.kind == PackageKind::Environment.name()
    }

    /// Whether it is a layer of environments.
    pub fn is_layer(&self) -> bool {
        self.kind == WHEEL
    }
}

impl v1::PackageInfo {
    /// Whether it is an environment.
    pub fn is_environment(&self) -> bool {
        self.builds.iter().any(PackageBuild::is_environment)
    }

    /// Whether it is a layer of environments.
    pub fn is_layer(&self) -> bool {
        self.builds.iter().any(PackageBuild::is_layer)
    }

    /// Digests of its layers, if it is an environment.
    pub fn layers(&self) -> impl Iterator<Item = &str> {
        self.builds.iter().flat_map(|build| &build.layers).map(|layer| layer.digest.as_str())
    }

    /// Returns the address that always means this package: its owner's name for it, to which rights may be granted, and
    /// its digest.
    pub fn pinned_address(&self) -> String {
        match self.owner.as_str() {
            "" => self.digest.clone(),
            owner => format!("{owner}/{}@{}", self.name, self.digest),
        }
    }

    /// Digest of the environment of one of its builds; empty if it has none.
    pub fn environment_of(&self, build: u32) -> &str {
        let build = self.builds.get(build as usize);
        build.map_or("", |build| environment_digest(&build.environment))
    }

    /// Digests of the environments of its builds.
    pub fn environments(&self) -> impl Iterator<Item = &str> {
        let named = self.builds.iter().filter(|build| !build.environment.is_empty());
        named.map(|build| environment_digest(&build.environment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::{digest, encode, environment_of, validate};

    fn layer(name: &str) -> EnvironmentLayer {
        EnvironmentLayer { digest: digest(name.as_bytes()), name: name.to_owned(), size_bytes: 7 }
    }

    fn fault(version: &str, names: &[&str]) -> String {
        environment_of("e", version, names.iter().map(|name| layer(name)).collect()).unwrap_err().message
    }

    #[test]
    fn same_layers_are_same_environment_in_any_order() {
        let (one, other) =
            (layer("a-1-py3-none-any.whl"), layer("b-1-cp311-cp311-manylinux_2_17_x86_64.whl"));
        let package = environment_of("e", "3.11", vec![other.clone(), one.clone()]).unwrap();
        let again = environment_of("e", "3.11", vec![one.clone(), other.clone()]).unwrap();
        assert_eq!(encode(&package), encode(&again));
        let info = validate(&encode(&package)).unwrap().info();
        assert!(info.is_environment() && !info.is_layer() && info.functions.is_empty());
        assert_eq!(info.architectures(), "python3.11-x86_64-glibc2.17");
        assert_eq!(info.layers().collect::<Vec<_>>(), [one.digest, other.digest]);
    }

    #[test]
    fn rejects_wheels_that_cannot_be_used_together() {
        assert!(
            fault("3.12", &["a-1-cp311-cp311-manylinux_2_17_x86_64.whl"]).contains("not for Python 3.12")
        );
        assert!(fault("3.11", &["a-1-cp311-cp311-win_amd64.whl"]).contains("on Linux"));
        let two = ["a-1-py3-none-manylinux_2_17_x86_64.whl", "b-1-py3-none-manylinux_2_17_aarch64.whl"];
        assert!(fault("3.11", &two).contains("others are for python3.11-x86_64"));
        let twice = ["a_b-1-py3-none-any.whl", "A.b-2-py3-none-any.whl"];
        assert!(fault("3.11", &twice).contains("one distribution"));
        assert!(fault("3.11", &[]).contains("1 to 512 layers"));
        assert!(fault("3.11.7", &["a-1-py3-none-any.whl"]).contains("3.11.7"));
    }

    #[test]
    fn rejects_lists_that_are_no_lists_of_layers() {
        let digest = digest(b"a");
        for line in [
            String::new(),
            "sha256:12 a-1-py3-none-any.whl 7".to_owned(),
            format!("{digest} a-1-py3-none-any.whl 0"),
            format!("{digest} a-1-py3-none-any.whl 07"),
            format!("{digest} a-1-py3-none-any.whl 7 8"),
            format!("{digest} a-1-py3-none-any.whl {}", MAX_PACKAGE_BYTES + 1),
            format!("{digest} a.whl 7"),
            format!("{digest} b-1-py3-none-any.whl 7\n{digest} a-1-py3-none-any.whl 7"),
        ] {
            assert!(parse_layers(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn an_environment_has_nothing_else() {
        let list = format!("{} a-1-py3-none-any.whl 7\n", digest(b"a"));
        let file = PackageFile { path: "layers.txt".into(), data: list.into_bytes(), executable: false };
        let check = |more: &str| {
            let head = "name='e'\nkind='environment'\nlibrary='layers.txt'\n";
            let package = crate::package::from_files(&format!("{head}{more}"), vec![file.clone()])?;
            validate(&encode(&package))
        };
        check("[python]\nversion='3.11'").unwrap();
        for (more, named) in [
            ("", "version"),
            ("network=true\n[python]\nversion='3.11'", "network"),
            ("[[function]]\nname='f'\n[python]\nversion='3.11'", "[[function]]"),
            ("[python]\nversion='3.11'\nimports=['a']", "imports"),
        ] {
            let error = check(more).unwrap_err();
            assert!(error.message.contains(named), "{more}: {error}");
        }
    }

    #[test]
    fn only_addresses_with_digests_are_pinned() {
        let digest = digest(b"a");
        for address in [digest.clone(), format!("alice/e@{digest}"), format!("e@{digest}")] {
            assert!(is_pinned_environment(&address), "{address}");
            assert_eq!(environment_digest(&address), digest);
        }
        for address in ["", "e", "alice/e", "e@sha256:12", "../e"] {
            assert!(!is_pinned_environment(address), "{address}");
        }
    }
}
