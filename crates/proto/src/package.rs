//! Packages: their content, their addresses, and their validity.
//!
//! A package is a manifest (`sublet.toml`) and files, one of which is the library with the functions: a shared object,
//! a WebAssembly module, a module of Python or Node.js, or a program of kernels ([`PackageKind`]). It may have several
//! such builds of the same functions, for several kinds of processing units; the functions' names and indexes are those
//! of the package. It
//! is stored and sent as the canonical encoding of [`v1::Package`] and is identified by the SHA-256 of those bytes, so
//! that the same content is the same package wherever it is deployed. Environments of Python are packages, too; their
//! layers are [wheels](wheel), stored by the digests of their files.
//!
//! Building one ([`from_library`], [`from_files`], [`encode`]) makes only the checks that it needs; [`validate`] checks
//! every encoded package before it is stored or unpacked, and trusts nothing:
//!
//! - every path is relative and stays inside of the package's folder, none occurs twice or inside of another file;
//! - each build's library is complete, for a known processor or for all, and exports every function that the package
//!   offers, and no two builds are for the same;
//! - everything is bounded by the constants here.
//!
//! A name belongs to a tenant. A function is addressed as `package/function` or, of another tenant's package,
//! `tenant/package/function`, where the package is a name or a digest: see [`readings`].

mod address;
mod build;
mod digest;
mod elf;
mod environment;
mod files;
mod image;
mod inspect;
pub mod kernels;
mod kind;
mod library;
mod manifest;
mod manifest_needs;
pub mod nodejs;
mod pins;
mod platform;
mod profile;
pub mod python;
mod rules;
mod wasm;
pub mod wheel;
pub mod zip;

use std::fmt::Write;

use prost::Message;

use crate::Error;
use crate::v1::{self, FunctionInfo, PackageBuild, PackageFile};
use files::{check_files, find_file};
use inspect::read_builds;
use rules::{check_name, invalid};

pub use crate::names::{MAX_NAME_BYTES, is_name};
pub use address::{PUBLIC, PackageAddress, is_owner, is_package, readings};
pub use build::{
    Build, DEFAULT_DEADLINE_MS, KernelLimits, MAX_DEADLINE_MS, MAX_SYMBOL_BYTES, ManifestFunction,
    PythonNeeds, WasmLimits,
};
pub use digest::{digest, is_digest};
pub use elf::needed_libraries;
pub use environment::{
    EnvironmentLayer, LAYERS_FILE, MAX_ENVIRONMENT_LAYERS, environment_digest, is_pinned_environment,
    parse_layers, platform_of,
};
pub use files::{MAX_COMPONENT_BYTES, MAX_PATH_BYTES, check_path};
pub use image::is_pinned;
pub use kind::{
    MAX_KIND_BYTES, PORTABLE, PackageKind, can_open_devices, is_device, is_image_interpreter, is_interpreter,
    is_processor, is_processor_kind, runs_on,
};
pub use manifest::{MAX_BUILDS, MAX_MANIFEST_BYTES, Manifest};
pub use nodejs::{IMAGE_NODEJS, NodejsNeeds, is_image_nodejs, is_nodejs, nodejs_architecture};
pub use pins::{UnpinnedEnvironment, pin_environment, pin_image, unpinned_environment, unpinned_image};
pub use platform::{
    IMAGE_PYTHON, PlatformMachine, PythonPlatform, is_image_python, is_python, python_architecture,
};
pub use profile::{MAX_PROFILES, MAX_SPEED, Profile};
pub use rules::{BUILT_FOLDER, INFO_FILE, MANIFEST_FILE, MAX_FILES, MAX_FUNCTIONS, MAX_PACKAGE_BYTES};

/// A package that has passed [`validate`].
#[derive(Clone, Debug)]
pub struct CheckedPackage {
    /// The package's name.
    pub name: String,
    /// "sha256:" and 64 hexadecimal digits.
    pub digest: String,
    /// The names of its functions, in the order of their indexes.
    pub functions: Vec<String>,
    /// The package's builds, in the order of the manifest.
    pub builds: Vec<PackageBuild>,
    /// The package's profiles.
    pub profiles: Vec<v1::Profile>,
    /// Needs of its functions; absent if there are none.
    pub needs: Option<v1::Needs>,
    /// Size of the encoded package.
    pub size_bytes: u64,
    /// The decoded package: its files may be unpacked into an empty folder.
    pub package: v1::Package,
}

impl CheckedPackage {
    /// Returns a manager's description of the package, without the time of deployment and the owner, which it adds.
    pub fn info(&self) -> v1::PackageInfo {
        let function = |name: &String| FunctionInfo { name: name.clone() };
        v1::PackageInfo {
            name: self.name.clone(),
            digest: self.digest.clone(),
            size_bytes: self.size_bytes,
            functions: self.functions.iter().map(function).collect(),
            deployed_unix_ms: 0,
            builds: self.builds.clone(),
            profiles: self.profiles.clone(),
            owner: String::new(),
            grants: Vec::new(),
            needs: self.needs.clone(),
            sources: nodejs::sources_of(&self.package.files),
        }
    }
}

impl v1::PackageInfo {
    /// Returns the build of this index, as a lease names it.
    ///
    /// # Errors
    /// [`Code::InvalidPackage`] without one: the description is of another version of this program.
    pub fn build(&self, index: u32) -> Result<&PackageBuild, Error> {
        let missing = || {
            invalid(format!(
                "package {} has {} builds, and none of the index {index}",
                self.name,
                self.builds.len()
            ))
        };
        self.builds.get(index as usize).ok_or_else(missing)
    }

    /// The architectures and devices that it has builds for.
    pub fn architectures(&self) -> String {
        self.builds.iter().map(|build| build.architecture.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the path, in an unpacked package, of the built kernels of a build.
pub fn built_file(build: u32) -> String {
    format!("{BUILT_FOLDER}/{build}")
}

/// Makes a package of one library. Its name is the file's name up to `.so`, or without `.wasm`: `libx` for `libx.so`,
/// `libx.so.1`, `libx.wasm` or `libx`. Every exported function becomes callable: `f` as `libx/f`.
pub fn from_library(file_name: &str, bytes: Vec<u8>) -> Result<v1::Package, Error> {
    kernels::check_bare(file_name)?;
    let (name, suffix) = match PackageKind::of(&bytes) {
        PackageKind::Wasm => (file_name.strip_suffix(".wasm").unwrap_or(file_name), "wasm"),
        // A package of kernels needs a manifest.
        _ => (library_stem(file_name), "so"),
    };
    check_name("package", name)?;
    let library = format!("{name}.{suffix}");
    let manifest = format!("name = \"{name}\"\nlibrary = \"{library}\"\n");
    from_files(&manifest, vec![PackageFile { path: library, data: bytes, executable: true }])
}

/// Makes a package of a manifest and files; the manifest is not among the files.
pub fn from_files(manifest: &str, files: Vec<PackageFile>) -> Result<v1::Package, Error> {
    let builds = Manifest::parse(manifest)?.builds;
    let mut package = v1::Package { manifest: manifest.to_owned(), files };
    package.files.sort_by(|a, b| a.path.cmp(&b.path));
    check_files(&package.files)?;
    builds.iter().try_for_each(|build| find_file(&package.files, &build.library).map(drop))?;
    debug_assert!(
        package.files.is_sorted_by(|one, next| one.path < next.path),
        "the files of a package are not in their canonical order: {:?}",
        package.files.iter().map(|file| &file.path).collect::<Vec<_>>()
    );
    Ok(package)
}

/// Makes an environment for this version of Python, as `3.11`.
///
/// # Errors
/// `invalid_package` if the layers cannot be used together.
pub fn environment_of(
    name: &str,
    version: &str,
    mut layers: Vec<EnvironmentLayer>,
) -> Result<v1::Package, Error> {
    check_name("environment", name)?;
    layers.sort_by(|one, other| one.name.cmp(&other.name));
    let list = layers.iter().fold(String::new(), |mut list, layer| {
        let _ = writeln!(list, "{} {} {}", layer.digest, layer.name, layer.size_bytes);
        list
    });
    PythonPlatform::of_version(version)
        .ok_or_else(|| invalid(format!("{version:?} is not a version of Python like \"3.11\"")))?;
    let manifest = format!(
        "name = \"{name}\"\nkind = \"environment\"\nlibrary = \"{LAYERS_FILE}\"\n\n[python]\nversion = \"{version}\"\n"
    );
    let file = PackageFile { path: LAYERS_FILE.to_owned(), data: list.into_bytes(), executable: false };
    let package = from_files(&manifest, vec![file])?;
    validate(&encode(&package))?;
    Ok(package)
}

/// Returns the canonical encoding: files in the order of their paths.
pub fn encode(package: &v1::Package) -> Vec<u8> {
    if package.files.is_sorted_by(|a, b| a.path <= b.path) {
        return package.encode_to_vec();
    }
    let mut sorted = package.clone();
    sorted.files.sort_by(|a, b| a.path.cmp(&b.path));
    sorted.encode_to_vec()
}

/// Decodes a package and checks all of it.
pub fn validate(encoded: &[u8]) -> Result<CheckedPackage, Error> {
    let size_bytes = encoded.len() as u64;
    check_size(size_bytes)?;
    if zip::is_zip(encoded) {
        return validate_layer(encoded);
    }
    let package = v1::Package::decode(encoded)
        .map_err(|error| invalid(format!("the package cannot be decoded: {error}")))?;
    // One content has one encoding, or it would have several digests.
    if package.encode_to_vec() != encoded {
        return Err(invalid("the package is not in its canonical encoding"));
    }
    check_files(&package.files)?;
    let manifest = Manifest::parse(&package.manifest)?;
    let (functions, builds) = read_builds(&manifest, &package.files)?;
    let profiles = manifest.profiles.iter().map(Profile::info).collect();
    let needs = Some(manifest.needs).filter(|needs| !needs.is_empty());
    debug_assert!(
        (1..=MAX_BUILDS).contains(&builds.len()),
        "the checked package {} has {} builds",
        manifest.name,
        builds.len()
    );
    let (name, digest) = (manifest.name, digest(encoded));
    Ok(CheckedPackage { name, digest, functions, builds, profiles, needs, size_bytes, package })
}

/// Checks a layer of environments.
fn validate_layer(encoded: &[u8]) -> Result<CheckedPackage, Error> {
    let wheel = wheel::Wheel::read(encoded)?;
    let build = PackageBuild { kind: wheel::WHEEL.to_owned(), ..PackageBuild::default() };
    Ok(CheckedPackage {
        name: wheel.name,
        digest: digest(encoded),
        functions: Vec::new(),
        builds: vec![build],
        profiles: Vec::new(),
        needs: None,
        size_bytes: encoded.len() as u64,
        package: v1::Package::default(),
    })
}

/// Refuses a package of more than [`MAX_PACKAGE_BYTES`], for callers that collect one piece by piece.
pub fn check_size(size_bytes: u64) -> Result<(), Error> {
    if size_bytes <= MAX_PACKAGE_BYTES {
        return Ok(());
    }
    Err(invalid(format!("the package has {size_bytes} bytes or more, at most {MAX_PACKAGE_BYTES} are taken")))
}

fn library_stem(file_name: &str) -> &str {
    match file_name.find(".so.") {
        Some(end) => &file_name[..end],
        None => file_name.strip_suffix(".so").unwrap_or(file_name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    fn file(path: &str) -> PackageFile {
        PackageFile { path: path.into(), data: vec![1], executable: false }
    }

    #[test]
    fn a_bare_library_is_named_after_its_file() {
        for name in ["libx.so", "libx", "libx.so.1.2"] {
            let package = from_library(name, vec![1]).unwrap();
            assert_eq!(package.files[0].path, "libx.so");
            assert_eq!(Manifest::parse(&package.manifest).unwrap().name, "libx");
        }
        assert_eq!(from_library(".so", vec![]).unwrap_err().code, Code::InvalidPackage);
    }

    #[test]
    fn the_order_of_files_does_not_change_the_digest() {
        let manifest = "name = 'a'\nlibrary = 'a'";
        let one = from_files(manifest, vec![file("a"), file("b")]).unwrap();
        let other = v1::Package { manifest: manifest.into(), files: vec![file("b"), file("a")] };
        assert_eq!(digest(&encode(&one)), digest(&encode(&other)));
        assert!(is_digest(&digest(&encode(&one))));
        assert!(!is_digest("sha256:../../etc"));
    }
}
