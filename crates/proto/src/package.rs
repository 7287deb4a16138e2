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
mod elf;
mod environment;
mod files;
mod image;
pub mod kernels;
mod kind;
mod library;
mod manifest;
mod manifest_needs;
pub mod nodejs;
mod platform;
mod profile;
pub mod python;
mod wasm;
pub mod wheel;
pub mod zip;

use prost::Message;
use sha2::{Digest, Sha256};

use crate::names::name_form;
use crate::v1::{self, FunctionInfo, PackageBuild, PackageFile};
use crate::{Code, Error};
use files::{check_files, find_file};
use library::LibraryFile;

pub use crate::names::{MAX_NAME_BYTES, is_name};
pub use address::{PUBLIC, PackageAddress, is_owner, is_package, readings};
pub use environment::{
    EnvironmentLayer, LAYERS_FILE, MAX_ENVIRONMENT_LAYERS, UnpinnedEnvironment, environment_digest,
    environment_of, is_pinned_environment, parse_layers, pin_environment, platform_of, unpinned_environment,
};
pub use files::{MAX_COMPONENT_BYTES, MAX_PATH_BYTES, check_path};
pub use image::{is_pinned, pin_image, unpinned_image};
pub use kernels::KernelLimits;
pub use kind::{
    MAX_KIND_BYTES, PORTABLE, PackageKind, is_device, is_interpreter, is_processor, is_processor_kind,
    runs_on,
};
pub use manifest::{
    Build, DEFAULT_DEADLINE_MS, MAX_BUILDS, MAX_DEADLINE_MS, MAX_MANIFEST_BYTES, MAX_SYMBOL_BYTES, Manifest,
    ManifestFunction, WasmLimits,
};
pub use nodejs::{NodejsNeeds, is_nodejs, nodejs_architecture};
pub use platform::{PlatformMachine, PythonPlatform};
pub use profile::{MAX_PROFILES, MAX_SPEED, Profile};
pub use python::{IMAGE_PYTHON, PythonNeeds, is_image_python, is_python, python_architecture};

/// The manifest's name in a package's folder; no file of the package may have it.
pub const MANIFEST_FILE: &str = "sublet.toml";
/// The file in which a node keeps its description of an unpacked package: an encoded `PackageInfo`.
pub const INFO_FILE: &str = "manifest.pb";
/// The folder in which a node keeps the built kernels of an unpacked package: [`built_file`].
pub const BUILT_FOLDER: &str = ".built";
/// Largest encoded package, in bytes.
pub const MAX_PACKAGE_BYTES: u64 = 256 << 20;
/// Most files in a package, without the manifest.
pub const MAX_FILES: usize = 4096;
/// Most functions that a package offers.
pub const MAX_FUNCTIONS: usize = 1024;

const DIGEST_PREFIX: &str = "sha256:";
const DIGEST_HEX_DIGITS: usize = 64;

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

/// Returns the digest of an encoded package: "sha256:" and 64 hexadecimal digits.
pub fn digest(encoded: &[u8]) -> String {
    let hash = Sha256::digest(encoded);
    let mut text = String::with_capacity(DIGEST_PREFIX.len() + DIGEST_HEX_DIGITS);
    text.push_str(DIGEST_PREFIX);
    for byte in hash {
        for nibble in [byte >> 4, byte & 0xf] {
            text.push(char::from(b"0123456789abcdef"[usize::from(nibble)]));
        }
    }
    text
}

/// Tells whether this is a digest as [`digest`] writes it, which also makes it safe as the name of a file.
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix(DIGEST_PREFIX).is_some_and(|hex| {
        hex.len() == DIGEST_HEX_DIGITS && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Decodes a package and checks all of it.
pub fn validate(encoded: &[u8]) -> Result<CheckedPackage, Error> {
    let size_bytes = encoded.len() as u64;
    check_size(size_bytes)?;
    if zip::is_zip(encoded) {
        return wheel::validate(encoded, digest(encoded));
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
    let (name, digest) = (manifest.name, digest(encoded));
    Ok(CheckedPackage { name, digest, functions, builds, profiles, needs, size_bytes, package })
}

/// The names of the functions, which are the first build's, and the builds.
fn read_builds(
    manifest: &Manifest,
    files: &[PackageFile],
) -> Result<(Vec<String>, Vec<PackageBuild>), Error> {
    check_kinds(&manifest.builds)?;
    let (mut functions, mut builds) = (Vec::new(), Vec::<PackageBuild>::new());
    for build in &manifest.builds {
        let library = LibraryFile::read(build, files)?;
        if builds.is_empty() {
            functions = library.offered(build)?;
        }
        if let Some(other) = builds.iter().find(|other| other.architecture == library.architecture) {
            return Err(invalid(format!(
                "the builds {} and {} are both for {}, and only the first would ever run",
                other.library, build.library, other.architecture
            )));
        }
        builds.push(library.info(build, &functions)?);
    }
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

/// Refuses a package of more than [`MAX_PACKAGE_BYTES`], for callers that collect one piece by piece.
pub fn check_size(size_bytes: u64) -> Result<(), Error> {
    if size_bytes <= MAX_PACKAGE_BYTES {
        return Ok(());
    }
    Err(invalid(format!("the package has {size_bytes} bytes or more, at most {MAX_PACKAGE_BYTES} are taken")))
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(Code::InvalidPackage, message)
}

fn library_stem(file_name: &str) -> &str {
    match file_name.find(".so.") {
        Some(end) => &file_name[..end],
        None => file_name.strip_suffix(".so").unwrap_or(file_name),
    }
}

fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if is_name(name) {
        return Ok(());
    }
    Err(invalid(format!("{name:?} is no {what} name: {}", name_form())))
}

fn check_function_count(count: usize) -> Result<(), Error> {
    if count <= MAX_FUNCTIONS {
        return Ok(());
    }
    Err(invalid(format!(
        "the package has {count} functions, at most {MAX_FUNCTIONS} are taken; name some in {MANIFEST_FILE}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

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
