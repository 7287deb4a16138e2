//! Packages: what is deployed, how it is addressed, and what makes it valid.
//!
//! A package is a manifest (`sublet.toml`) and files, one of which is the library with the functions: a shared object, a
//! WebAssembly module or a program of kernels ([`Kind`]). It is stored and sent as the canonical encoding of [`v1::Package`] and is known by the SHA-256 of those bytes, so
//! that the same content is the same package wherever it is deployed.
//!
//! Building one ([`from_library`], [`from_files`], [`encode`]) checks only what it needs to; [`validate`] is the
//! gate that every encoded package passes before it is stored or unpacked, and it trusts nothing:
//!
//! - every path is relative and stays inside of the package's folder, none stands twice or inside of another file;
//! - the library is complete, for a known processor or for all, and exports every function that the package offers;
//! - everything is bounded by the constants here.
//!
//! A function is addressed as `package/function`, where the package is a name or a digest.

mod elf;
mod image;
pub mod kernels;
mod kind;
mod wasm;

use std::collections::BTreeSet;

use prost::Message;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::v1::{self, FunctionInfo, PackageFile};
use crate::{Code, Error};

pub use image::{is_pinned, pin_image, unpinned_image};
pub use kernels::KernelLimits;
pub use kind::{Kind, PORTABLE, is_device, runs_on};

/// The manifest's name in a package's folder; no file of the package may have it.
pub const MANIFEST_FILE: &str = "sublet.toml";
/// The name under which a node keeps what it knows of an unpacked package: an encoded `PackageInfo`.
pub const INFO_FILE: &str = "manifest.pb";
/// The name under which a node keeps what it has built of an unpacked package of kernels.
pub const BUILT_FILE: &str = ".built";
/// Largest encoded package, in bytes.
pub const MAX_PACKAGE_BYTES: u64 = 256 << 20;
/// Most files in a package, without the manifest.
pub const MAX_FILES: usize = 4096;
/// Most functions that a package offers.
pub const MAX_FUNCTIONS: usize = 1024;
/// Largest manifest, in bytes.
pub const MAX_MANIFEST_BYTES: usize = 1 << 20;
/// Longest name of a package or a function, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Longest symbol that a manifest may name, in bytes.
pub const MAX_SYMBOL_BYTES: usize = 255;
/// Longest path of a file, in bytes.
pub const MAX_PATH_BYTES: usize = 1024;
/// Longest component of a path, in bytes: what Linux file systems take.
pub const MAX_COMPONENT_BYTES: usize = 255;

const DIGEST_PREFIX: &str = "sha256:";
const DIGEST_HEX_DIGITS: usize = 64;

/// What `sublet.toml` says.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The package's name.
    pub name: String,
    /// The path of the library in the package.
    pub library: String,
    /// What the library is, where its first bytes do not say it: `opencl` or `cuda`.
    pub kind: Option<String>,
    /// Whether the functions open connections by themselves. Only nodes that lend their network execute them then.
    #[serde(default)]
    pub network: bool,
    /// The OCI image in whose file system the functions run, as `REGISTRY/NAME:TAG@sha256:...`. Without a digest it can
    /// neither be stored nor run: [`pin_image`].
    pub image: Option<String>,
    /// The functions that the package offers, in the order of their indexes. None: every exported C function.
    #[serde(default, rename = "function")]
    pub functions: Vec<ManifestFunction>,
    /// What calls of a WebAssembly module may take.
    pub wasm: Option<WasmLimits>,
    /// How kernels are compiled, and what calls of them may take.
    pub kernels: Option<KernelLimits>,
}

/// The `[wasm]` of a manifest: what one call of a WebAssembly function may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WasmLimits {
    /// How long it may run, in milliseconds; [`DEFAULT_DEADLINE_MS`] if it is left out.
    pub deadline_ms: Option<u64>,
    /// The largest size of its linear memory, in bytes, input and output included; its part of the lease's memory if it is
    /// left out, and never more.
    pub memory_bytes: Option<u64>,
    /// How many units of fuel it may burn, about one for each instruction; any number if it is left out.
    pub fuel: Option<u64>,
}

/// How long a call of a WebAssembly function may run if its package does not say, in milliseconds.
pub const DEFAULT_DEADLINE_MS: u64 = 60_000;
/// The longest time that a package may give its calls, in milliseconds: a day.
pub const MAX_DEADLINE_MS: u64 = 24 * 60 * 60 * 1000;

/// One `[[function]]` of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestFunction {
    /// What callers say.
    pub name: String,
    /// What the library exports; the same as the name if it is left out. The kernel, of a package of kernels.
    pub symbol: Option<String>,
    /// Of a kernel: the path of its program; the package's library if it is left out.
    pub program: Option<String>,
    /// Of a kernel: the least number of work-items that execute it; 1 if it is left out.
    pub items: Option<u32>,
    /// Of a kernel: as many bytes of input have one work-item; any if it is left out.
    pub bytes_per_item: Option<u32>,
    /// Of a kernel: work-items of a group; the driver chooses if it is left out.
    pub group: Option<u32>,
}

impl Manifest {
    /// From the text of a `sublet.toml`; names and paths are checked, the shared object is not.
    pub fn parse(text: &str) -> Result<Manifest, Error> {
        if text.len() > MAX_MANIFEST_BYTES {
            return Err(invalid(format!(
                "{MANIFEST_FILE} has {} bytes, at most {MAX_MANIFEST_BYTES} are taken",
                text.len()
            )));
        }
        let manifest: Manifest =
            toml::from_str(text).map_err(|error| invalid(format!("{MANIFEST_FILE}: {}", error.message())))?;
        check_name("package", &manifest.name)?;
        check_path(&manifest.library)?;
        manifest.image.as_deref().map_or(Ok(()), image::check_image)?;
        manifest.check_functions()?;
        manifest.check_limits()?;
        kernels::check_manifest(&manifest)?;
        Ok(manifest)
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

    fn check_functions(&self) -> Result<(), Error> {
        check_function_count(self.functions.len())?;
        let mut seen = BTreeSet::new();
        for function in &self.functions {
            check_name("function", &function.name)?;
            if !seen.insert(&function.name) {
                return Err(invalid(format!("{MANIFEST_FILE} names the function {} twice", function.name)));
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
}

impl ManifestFunction {
    /// What the library calls it.
    pub fn symbol(&self) -> &str {
        self.symbol.as_deref().unwrap_or(&self.name)
    }
}

/// A package that has passed [`validate`].
#[derive(Clone, Debug)]
pub struct Checked {
    /// The package's name.
    pub name: String,
    /// "sha256:" and 64 hexadecimal digits.
    pub digest: String,
    /// What its library is.
    pub kind: Kind,
    /// The processor of its library, as Rust names it; [`PORTABLE`] for all.
    pub architecture: &'static str,
    /// The path of the library in the package.
    pub library: String,
    /// Its functions, in the order of their indexes.
    pub functions: Vec<FunctionInfo>,
    /// Whether they open connections by themselves.
    pub network: bool,
    /// The image in whose file system they run, pinned by its digest; empty: none.
    pub image: String,
    /// Size of the encoded package.
    pub size_bytes: u64,
    /// The decoded package: its files may be unpacked into an empty folder.
    pub package: v1::Package,
}

impl Checked {
    /// What a manager says about the package; it adds the time of deployment.
    pub fn info(&self) -> v1::PackageInfo {
        v1::PackageInfo {
            name: self.name.clone(),
            digest: self.digest.clone(),
            architecture: self.architecture.to_owned(),
            size_bytes: self.size_bytes,
            functions: self.functions.clone(),
            deployed_unix_ms: 0,
            library: self.library.clone(),
            network: self.network,
            kind: self.kind.name().to_owned(),
            image: self.image.clone(),
        }
    }
}

/// A package of one library. Its name is the file's name without `.so` and what follows, or `.wasm`: `libx` of `libx.so`,
/// `libx.so.1`, `libx.wasm` or `libx`. Every exported function becomes callable: `f` as `libx/f`.
pub fn from_library(file_name: &str, bytes: Vec<u8>) -> Result<v1::Package, Error> {
    kernels::check_bare(file_name)?;
    let (name, suffix) = match Kind::of(&bytes) {
        Kind::Wasm => (file_name.strip_suffix(".wasm").unwrap_or(file_name), "wasm"),
        // Of kernels nothing can be told without a manifest.
        _ => (library_stem(file_name), "so"),
    };
    check_name("package", name)?;
    let library = format!("{name}.{suffix}");
    let manifest = format!("name = \"{name}\"\nlibrary = \"{library}\"\n");
    from_files(&manifest, vec![PackageFile { path: library, data: bytes, executable: true }])
}

/// A package of a manifest and files; the manifest is not among the files.
pub fn from_files(manifest: &str, files: Vec<PackageFile>) -> Result<v1::Package, Error> {
    let library = Manifest::parse(manifest)?.library;
    let mut package = v1::Package { manifest: manifest.to_owned(), files };
    package.files.sort_by(|a, b| a.path.cmp(&b.path));
    check_files(&package.files)?;
    find_file(&package.files, &library)?;
    Ok(package)
}

/// The canonical encoding: files in the order of their paths.
pub fn encode(package: &v1::Package) -> Vec<u8> {
    if package.files.is_sorted_by(|a, b| a.path <= b.path) {
        return package.encode_to_vec();
    }
    let mut sorted = package.clone();
    sorted.files.sort_by(|a, b| a.path.cmp(&b.path));
    sorted.encode_to_vec()
}

/// What an encoded package is known by: "sha256:" and 64 hexadecimal digits.
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

/// Whether this is a digest as [`digest`] writes it, which also makes it safe as the name of a file.
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix(DIGEST_PREFIX).is_some_and(|hex| {
        hex.len() == DIGEST_HEX_DIGITS && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Splits `package/function`; without a slash there is no function.
pub fn split_address(address: &str) -> (&str, Option<&str>) {
    match address.split_once('/') {
        Some((package, function)) => (package, Some(function)),
        None => (address, None),
    }
}

/// Decodes a package and checks all of it.
pub fn validate(encoded: &[u8]) -> Result<Checked, Error> {
    let size_bytes = encoded.len() as u64;
    check_size(size_bytes)?;
    let package = v1::Package::decode(encoded)
        .map_err(|error| invalid(format!("the package cannot be decoded: {error}")))?;
    // One content has one encoding, or it would have several digests.
    if package.encode_to_vec() != encoded {
        return Err(invalid("the package is not in its canonical encoding"));
    }
    check_files(&package.files)?;
    let manifest = Manifest::parse(&package.manifest)?;
    let file = find_file(&package.files, &manifest.library)?;
    let library = match manifest.kernel_kind()? {
        Some(kind) => {
            kernels::check_alone(&manifest)?;
            kernels::read(kind, &manifest, &package.files)?
        }
        None => read_library(&file.data).map_err(|reason| invalid(format!("{}: {reason}", file.path)))?,
    };
    if manifest.wasm.is_some() && library.kind != Kind::Wasm {
        return Err(invalid(format!(
            "{MANIFEST_FILE} has limits for a WebAssembly module, which {} is not",
            file.path
        )));
    }
    image::check_pinned(manifest.image.as_deref())?;
    if manifest.image.is_some() && library.kind != Kind::Native {
        return Err(invalid(format!("{MANIFEST_FILE} names an image, and {} needs none", file.path)));
    }
    let functions = functions(&manifest, &library)?;
    let (kind, architecture) = (library.kind, library.architecture);
    Ok(Checked {
        name: manifest.name,
        digest: digest(encoded),
        kind,
        architecture,
        library: manifest.library,
        functions,
        network: manifest.network,
        image: manifest.image.unwrap_or_default(),
        size_bytes,
        package,
    })
}

/// Refuses a package of more than [`MAX_PACKAGE_BYTES`], for those who gather one piece by piece.
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

fn is_name(name: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.len() <= MAX_NAME_BYTES
        && name.bytes().next().is_some_and(word)
        && name.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'-'))
}

fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if is_name(name) {
        return Ok(());
    }
    Err(invalid(format!(
        "{name:?} is no {what} name: 1 to {MAX_NAME_BYTES} of A-Z a-z 0-9 _ . - and no . or - in front"
    )))
}

fn check_function_count(count: usize) -> Result<(), Error> {
    if count <= MAX_FUNCTIONS {
        return Ok(());
    }
    Err(invalid(format!(
        "the package has {count} functions, at most {MAX_FUNCTIONS} are taken; name some in {MANIFEST_FILE}"
    )))
}

fn check_path(path: &str) -> Result<(), Error> {
    let bad = |why: &str| Err(invalid(format!("the path {path:?} in the package {why}")));
    if path.len() > MAX_PATH_BYTES {
        return bad(&format!("has {} bytes, at most {MAX_PATH_BYTES} are taken", path.len()));
    }
    if path.starts_with('/') {
        return bad("is absolute");
    }
    if path.contains(|c: char| c == '\\' || c.is_control()) {
        return bad("has a backslash or a control character");
    }
    for component in path.split('/') {
        match component {
            "" => return bad("has an empty component"),
            "." | ".." => return bad("leaves the package or is not in its shortest form"),
            long if long.len() > MAX_COMPONENT_BYTES => return bad("has a component that is too long"),
            _ => {}
        }
    }
    Ok(())
}

/// Checks paths one by one and against each other; the files must be sorted.
fn check_files(files: &[PackageFile]) -> Result<(), Error> {
    if files.len() > MAX_FILES {
        return Err(invalid(format!("the package has {} files, at most {MAX_FILES} are taken", files.len())));
    }
    let mut seen = BTreeSet::new();
    for file in files {
        check_path(&file.path)?;
        let first = file.path.split('/').next();
        if let Some(taken) =
            [MANIFEST_FILE, INFO_FILE, BUILT_FILE].into_iter().find(|&taken| first == Some(taken))
        {
            return Err(invalid(format!("{taken} stands among the package's files, a name that is taken")));
        }
        if seen.last().is_some_and(|last: &&str| *last > file.path.as_str()) {
            return Err(invalid(format!("the package's files are not sorted: {:?}", file.path)));
        }
        if !seen.insert(file.path.as_str()) {
            return Err(invalid(format!("the package has the file {:?} twice", file.path)));
        }
    }
    seen.iter().try_for_each(|path| check_ancestors(path, &seen))
}

/// A file cannot stand inside of another file.
fn check_ancestors(path: &str, files: &BTreeSet<&str>) -> Result<(), Error> {
    let inside = path.match_indices('/').map(|(end, _)| &path[..end]);
    match inside.into_iter().find(|folder| *folder == MANIFEST_FILE || files.contains(folder)) {
        Some(file) => Err(invalid(format!("the package has {file:?} both as a file and as a folder"))),
        None => Ok(()),
    }
}

fn find_file<'a>(files: &'a [PackageFile], path: &str) -> Result<&'a PackageFile, Error> {
    files.iter().find(|file| file.path == path).ok_or_else(|| {
        invalid(format!("{MANIFEST_FILE} names the library {path:?}, which is not among the package's files"))
    })
}

/// What is known of a complete library.
#[derive(Debug)]
struct Library<'data> {
    kind: Kind,
    architecture: &'static str,
    /// What it exports that can be called, with names of at most [`MAX_SYMBOL_BYTES`].
    functions: BTreeSet<&'data str>,
}

/// Reads a library, or says why it is none that can be run.
fn read_library(data: &[u8]) -> Result<Library<'_>, String> {
    match Kind::of(data) {
        Kind::Wasm => wasm::read(data),
        _ => elf::read(data),
    }
}

fn functions(manifest: &Manifest, library: &Library<'_>) -> Result<Vec<FunctionInfo>, Error> {
    if manifest.functions.is_empty() {
        return exported_functions(library);
    }
    manifest.functions.iter().map(|function| named_function(function, library)).collect()
}

/// Every exported function that C code would call by its name: none of the compiler's or of C++.
fn exported_functions(library: &Library<'_>) -> Result<Vec<FunctionInfo>, Error> {
    let callable: Vec<_> =
        library.functions.iter().filter(|symbol| !symbol.starts_with('_') && is_name(symbol)).collect();
    if callable.is_empty() {
        return Err(invalid(match library.kind {
            Kind::Wasm => "the module exports no function of the type (i32, i32, i32[, i32]) -> i32",
            _ => "the library exports no C function",
        }));
    }
    check_function_count(callable.len())?;
    let info = |symbol: &&&str| FunctionInfo { name: symbol.to_string(), symbol: symbol.to_string() };
    Ok(callable.iter().map(info).collect())
}

fn named_function(function: &ManifestFunction, library: &Library<'_>) -> Result<FunctionInfo, Error> {
    let symbol = function.symbol();
    if library.functions.contains(symbol) {
        return Ok(FunctionInfo { name: function.name.clone(), symbol: symbol.to_owned() });
    }
    Err(Error::new(
        Code::MissingSymbol,
        format!(
            "the library does not export a function {symbol:?} that can be called, but {}",
            some_of(library)
        ),
    ))
}

fn some_of(library: &Library<'_>) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> = library.functions.iter().take(SHOWN).copied().collect();
    match library.functions.len() {
        0 => "none".to_owned(),
        n if n > SHOWN => format!("{} and {} more", shown.join(", "), n - SHOWN),
        _ => shown.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> PackageFile {
        PackageFile { path: path.into(), data: vec![1], executable: false }
    }

    fn refused(path: &str) -> bool {
        check_path(path).is_err_and(|error| error.code == Code::InvalidPackage)
    }

    #[test]
    fn paths_that_could_leave_the_package_are_refused() {
        let long = "a/".repeat(600) + "a";
        let component = "a".repeat(256);
        for path in [
            "",
            "/etc/passwd",
            "..",
            "a/../b",
            "./a",
            "a//b",
            "a/",
            "a\\b",
            "a\0b",
            "a\nb",
            &long,
            &component,
        ] {
            assert!(refused(path), "{path:?} was accepted");
        }
        for path in ["a", "a/b.so", "..a", "a..", "ä/ß"] {
            assert!(!refused(path), "{path:?} was refused");
        }
    }

    #[test]
    fn files_may_not_collide() {
        assert!(check_files(&[file("a"), file("a")]).unwrap_err().message.contains("twice"));
        assert!(check_files(&[file("a"), file("a.b"), file("a/b")]).unwrap_err().message.contains("both"));
        assert!(check_files(&[file("b"), file("a")]).unwrap_err().message.contains("sorted"));
        assert!(check_files(&[file(MANIFEST_FILE)]).is_err());
        assert!(check_files(&[file("sublet.toml/a")]).is_err());
        assert!(check_files(&[file("a.b"), file("a/b"), file("b")]).is_ok());
        let many: Vec<_> = (0..=MAX_FILES).map(|i| file(&format!("{i:05}"))).collect();
        assert!(check_files(&many).unwrap_err().message.contains("4097 files"));
    }

    #[test]
    fn a_manifest_says_what_is_wrong_with_it() {
        let message = |text: &str| Manifest::parse(text).unwrap_err().message;
        assert!(message("library = 'a'").contains("name"));
        assert!(message("name = 'a/b'\nlibrary = 'a'").contains("a/b"));
        assert!(message("name = 'a'\nlibrary = '../a'").contains("../a"));
        assert!(message("name = 'a'\nlibrary = 'a'\ncolour = 'red'").contains("colour"));
        let twice = "name='a'\nlibrary='a'\n[[function]]\nname='f'\n[[function]]\nname='f'\nsymbol='g'";
        assert!(message(twice).contains("f twice"));
        assert!(message("name='a'\nlibrary='a'\n[[function]]\nname='f'\nsymbol=''").contains("symbol"));
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

    #[test]
    fn addresses_split_at_the_first_slash() {
        assert_eq!(split_address("libx/f"), ("libx", Some("f")));
        assert_eq!(split_address("libx"), ("libx", None));
    }
}
