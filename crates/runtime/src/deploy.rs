//! Reads a folder or a bare library that a user deploys into an encoded package, and checks its sources.
//!
//! Only files in the folder get into the package: symbolic links are refused rather than followed, and only regular
//! files and folders are opened. All other properties of the package are checked by [`package::validate`], which the
//! manager calls.

mod fault;
mod nodejs;
mod python;

use std::fs::{self, DirEntry, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use sublet_proto::package::nodejs::SOURCES_FILE;
use sublet_proto::package::{self, MANIFEST_FILE, MAX_FILES, MAX_PACKAGE_BYTES, Manifest};
use sublet_proto::v1::{Package, PackageFile};
use sublet_proto::{Code, Error, decode};

/// Largest depth of nested folders.
const MAX_DEPTH: usize = 32;
const ANY_EXECUTE: u32 = 0o111;

/// Returns whether a package is given by the path of its folder or library, and not by its address. The path need not
/// exist: a folder in the working directory, which another user may have made, never takes the place of a deployed
/// package.
///
/// ```
/// # use sublet_runtime::deploy::is_path;
/// assert!(is_path("./words") && is_path("/srv/words") && is_path("build/libwords.so") && is_path("a/b/c"));
/// assert!(!is_path("words") && !is_path("alice/words"));
/// ```
pub fn is_path(package: &str) -> bool {
    let is_address = |reading: package::PackageAddress<'_>| {
        reading.function.is_none() && is_plain(reading.package) && reading.owner.is_none_or(is_plain)
    };
    let is_library = [".so", ".wasm"].iter().any(|suffix| package.ends_with(suffix));
    is_library || !package::readings(package).any(is_address)
}

/// Whether the text begins like a name, and not like a path.
fn is_plain(text: &str) -> bool {
    text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric() || first == b'_')
}

/// Encodes the package in a folder with a `sublet.toml`, or a bare shared object or WebAssembly module.
///
/// For a package in Node.js, npm installs the dependencies of a lock file, without their scripts. It does not if all builds
/// of the package have images, which bring the dependencies. The configuration of npm in the folder, `.npmrc`, may hold the
/// token of a registry, so the package does not contain that file. The installation uses it.
///
/// The path itself may be a symbolic link, as installed libraries often are. Links inside of a folder are refused.
///
/// # Errors
///
/// [`Code::InvalidArgument`] if the path does not exist, [`Code::InvalidPackage`] if it is not a package,
/// [`Code::System`] if it cannot be read.
pub fn read_package(path: &Path) -> Result<Vec<u8>, Error> {
    match read_sources(path)? {
        PackageSources::Whole(encoded) => Ok(encoded),
        PackageSources::Locked(locked) => locked.install(),
    }
}

/// Content of the path of a package.
pub(crate) enum PackageSources {
    /// An encoded package.
    Whole(Vec<u8>),
    /// The own files of a package in Node.js, without the dependencies of its lock file.
    Locked(LockedPackage),
}

/// Reads the files of a package, as [`read_package`], and installs no dependencies.
///
/// # Errors
///
/// As for [`read_package`].
pub(crate) fn read_sources(path: &Path) -> Result<PackageSources, Error> {
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            Error::new(Code::InvalidArgument, format!("there is no file or folder {}", path.display()))
        }
        _ => unreadable(path, &error),
    })?;
    if metadata.is_dir() {
        read_folder(path)
    } else if metadata.is_file() {
        Ok(PackageSources::Whole(encode(&read_library(path)?)?))
    } else {
        Err(invalid(path, "is neither a folder nor a regular file"))
    }
}

fn encode(package: &Package) -> Result<Vec<u8>, Error> {
    let encoded = package::encode(package);
    package::check_size(encoded.len() as u64)?;
    Ok(encoded)
}

/// The file of a folder that its package does not contain, if there is one: npm's configuration, `.npmrc`.
///
/// # Errors
///
/// [`Code::InvalidPackage`] if the package cannot be decoded.
pub fn left_out(path: &Path, encoded: &[u8]) -> Result<Option<PathBuf>, Error> {
    let package: Package = decode("a package", encoded)?;
    let is_left_out = nodejs::is_for_nodejs(&Manifest::parse(&package.manifest)?);
    let file = path.join(nodejs::CONFIGURATION);
    Ok((is_left_out && file.exists()).then_some(file))
}

/// Checks the sources of the package that was read from a path, before it is uploaded.
///
/// For a package in Python, a matching interpreter of this machine, if there is one, parses the module and the
/// package's modules that it always imports, and checks that the functions exist. For a package in Node.js, the Node.js
/// of this machine, if there is one, parses the package's own modules. Nothing of the package is executed. Without an
/// interpreter the package is not checked, and its node reports the fault when it is leased.
///
/// # Errors
///
/// [`Code::InvalidPackage`] with the file and line, or the function that is missing.
pub fn check_package(path: &Path, encoded: &[u8]) -> Result<(), Error> {
    let package: Package = decode("a package", encoded)?;
    let manifest = Manifest::parse(&package.manifest)?;
    if nodejs::is_for_nodejs(&manifest) {
        nodejs::check(path, &manifest.name, &package.files)?;
    }
    if package.files.iter().any(|file| file.path.ends_with(".py")) {
        python::check(path, package)?;
    }
    Ok(())
}

fn read_library(path: &Path) -> Result<Package, Error> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| invalid(path, "has a name that is not UTF-8"))?;
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    package::from_library(name, ReadBudget::whole().read(path, file)?)
}

fn read_folder(path: &Path) -> Result<PackageSources, Error> {
    let mut folder =
        PackageFolder { files: Vec::new(), manifest: None, modules: None, budget: ReadBudget::whole() };
    folder.add_entries(path, "", 0)?;
    let manifest = folder.manifest.take().ok_or_else(|| invalid(path, &format!("has no {MANIFEST_FILE}")))?;
    let manifest =
        String::from_utf8(manifest).map_err(|_| invalid(&path.join(MANIFEST_FILE), "is not UTF-8"))?;
    let parsed = Manifest::parse(&manifest)?;
    let is_locked = nodejs::is_for_nodejs(&parsed) && nodejs::is_locked(&folder.files);
    if is_locked && nodejs::needs_modules(&parsed) {
        return Ok(PackageSources::Locked(LockedPackage::new(path, parsed.name, manifest, folder)));
    }
    // The image has the dependencies of a lock file.
    if let Some(modules) = folder.modules.take().filter(|_| !is_locked) {
        folder.add_modules(&modules)?;
    }
    if nodejs::is_for_nodejs(&parsed) {
        nodejs::remove_configuration(&mut folder.files);
    }
    Ok(PackageSources::Whole(encode(&package::from_files(&manifest, folder.files)?)?))
}

/// The own files of a package in Node.js whose dependencies a lock file names.
pub(crate) struct LockedPackage {
    path: PathBuf,
    /// Name of the package.
    pub(crate) name: String,
    manifest: String,
    folder: PackageFolder,
    /// Digest of the files and of the platform for which npm installs. The same sources get the same dependencies.
    pub(crate) sources: String,
}

impl LockedPackage {
    fn new(path: &Path, name: String, manifest: String, mut folder: PackageFolder) -> LockedPackage {
        let mut package = Package { manifest, files: std::mem::take(&mut folder.files) };
        package.files.sort_by(|one, other| one.path.cmp(&other.path));
        let mut content = package::encode(&package);
        content.extend(format!("{} {}", std::env::consts::OS, std::env::consts::ARCH).into_bytes());
        let sources = package::digest(&content);
        folder.files = package.files;
        LockedPackage { path: path.to_owned(), name, manifest: package.manifest, folder, sources }
    }

    /// Installs the dependencies in a copy, in place of those that the folder may have, and encodes the package.
    ///
    /// # Errors
    ///
    /// As for [`read_package`].
    pub(crate) fn install(mut self) -> Result<Vec<u8>, Error> {
        let installed = nodejs::install(&self.path, &self.folder.files)?;
        if installed.path().is_dir() {
            self.folder.add_modules(&installed.path())?;
        }
        let note =
            PackageFile { path: SOURCES_FILE.to_owned(), data: self.sources.into_bytes(), executable: false };
        self.folder.files.push(note);
        nodejs::remove_configuration(&mut self.folder.files);
        encode(&package::from_files(&self.manifest, self.folder.files)?)
    }
}

/// A folder while it is read.
struct PackageFolder {
    files: Vec<PackageFile>,
    manifest: Option<Vec<u8>>,
    /// Folder of installed dependencies of Node.js, which is not read with the others.
    modules: Option<PathBuf>,
    budget: ReadBudget,
}

impl PackageFolder {
    /// Adds the entries of the folder at `path`, whose path in the package is `prefix`.
    fn add_entries(&mut self, path: &Path, prefix: &str, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid(path, &format!("stands more than {MAX_DEPTH} folders deep")));
        }
        for entry in fs::read_dir(path).map_err(|error| unreadable(path, &error))? {
            self.add_entry(&entry.map_err(|error| unreadable(path, &error))?, prefix, depth)?;
        }
        Ok(())
    }

    /// Adds a folder of installed dependencies of Node.js.
    fn add_modules(&mut self, path: &Path) -> Result<(), Error> {
        self.add_entries(path, &format!("{}/", nodejs::MODULES), 1)
    }

    fn add_entry(&mut self, entry: &DirEntry, prefix: &str, depth: usize) -> Result<(), Error> {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_str().ok_or_else(|| invalid(&path, "has a name that is not UTF-8"))?;
        if nodejs::LEFT_OUT.contains(&name) && path.parent().is_some_and(|of| of.ends_with(nodejs::MODULES)) {
            return Ok(());
        }
        let kind = entry.file_type().map_err(|error| unreadable(&path, &error))?;
        if kind.is_dir() && prefix.is_empty() && name == nodejs::MODULES {
            self.modules = Some(path);
            Ok(())
        } else if kind.is_dir() {
            self.add_entries(&path, &format!("{prefix}{name}/"), depth + 1)
        } else if kind.is_file() {
            self.add_file(&path, format!("{prefix}{name}"))
        } else if kind.is_symlink() {
            Err(invalid(&path, "is a symbolic link; a package holds only files and folders"))
        } else {
            Err(invalid(&path, "is a special file; a package holds only files and folders"))
        }
    }

    fn add_file(&mut self, path: &Path, name: String) -> Result<(), Error> {
        let file = open(path)?;
        let metadata = file.metadata().map_err(|error| unreadable(path, &error))?;
        let executable = metadata.permissions().mode() & ANY_EXECUTE != 0;
        let data = self.budget.read(path, file)?;
        if name == MANIFEST_FILE {
            self.manifest = Some(data);
            return Ok(());
        }
        if self.files.len() == MAX_FILES {
            return Err(invalid(path, &format!("is one file too many: a package has at most {MAX_FILES}")));
        }
        self.files.push(PackageFile { path: name, data, executable });
        Ok(())
    }
}

/// Opens a file that was regular a moment ago; one that was exchanged since is neither followed nor waited for.
fn open(path: &Path) -> Result<File, Error> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .map_err(|error| unreadable(path, &error))
}

/// Number of bytes that may still be read.
struct ReadBudget {
    left_bytes: u64,
}

impl ReadBudget {
    fn whole() -> ReadBudget {
        ReadBudget { left_bytes: MAX_PACKAGE_BYTES }
    }

    fn read(&mut self, path: &Path, file: File) -> Result<Vec<u8>, Error> {
        let mut data = Vec::new();
        let read = file.take(self.left_bytes + 1).read_to_end(&mut data);
        let read = read.map_err(|error| unreadable(path, &error))? as u64;
        self.left_bytes = self.left_bytes.checked_sub(read).ok_or_else(|| {
            invalid(path, &format!("makes the package larger than {MAX_PACKAGE_BYTES} bytes"))
        })?;
        Ok(data)
    }
}

fn invalid(path: &Path, why: &str) -> Error {
    Error::new(Code::InvalidPackage, format!("{} {why}", path.display()))
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::of_system(format_args!("cannot read {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    const MANIFEST: &str = "name = 'p'\nlibrary = 'lib/p.so'\n";

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("lib")).unwrap();
        fs::write(folder.path().join(MANIFEST_FILE), MANIFEST).unwrap();
        fs::write(folder.path().join("lib/p.so"), b"code").unwrap();
        folder
    }

    /// Reads a package and checks its sources.
    fn checked(path: &Path) -> Result<Vec<u8>, Error> {
        let encoded = read_package(path)?;
        check_package(path, &encoded)?;
        Ok(encoded)
    }

    fn message(path: &Path) -> String {
        let error = read_package(path).unwrap_err();
        assert_eq!(error.code, Code::InvalidPackage, "{error}");
        error.message
    }

    fn python_package(manifest: &str, files: &[(&str, &str)]) -> Result<Vec<u8>, Error> {
        let folder = tempfile::tempdir().unwrap();
        let head = "name = 'p'\nkind = 'python'\nlibrary = 'm.py'\n";
        fs::write(folder.path().join(MANIFEST_FILE), format!("{head}{manifest}")).unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        checked(folder.path())
    }

    #[test]
    fn rejects_python_with_a_syntax_error() {
        let function = "[[function]]\nname = 'f'\n";
        let error = python_package(function, &[("m.py", "x = 1\ndef f(:\n")]).unwrap_err();
        assert!(error.code == Code::InvalidPackage && error.message.contains("m.py:2"), "{error}");
        // The check covers modules that are always imported; other files may be for another Python.
        for import in ["import inner.b", "from inner import b", "from .inner.b import c"] {
            let module = format!("{import}\ndef f(): pass\n");
            let files = [("m.py", module.as_str()), ("inner/b.py", "print 'old'\n")];
            let error = python_package(function, &files).unwrap_err();
            assert!(error.message.contains("inner/b.py:1"), "{import}: {error}");
        }
        let guarded = "try:\n  import old\nexcept SyntaxError:\n  old = None\ndef f(): pass\n";
        python_package(function, &[("m.py", guarded), ("old.py", "print 'old'\n")]).unwrap();
        // A machine without the package's own version does not judge it.
        let other = "[[function]]\nname = 'f'\n[python]\nversion = '3.99'\n";
        python_package(other, &[("m.py", "def f(:\n")]).unwrap();
    }

    fn nodejs_package(library: &str, files: &[(&str, &str)]) -> Result<Vec<u8>, Error> {
        let folder = tempfile::tempdir().unwrap();
        let manifest =
            format!("name = 'p'\nkind = 'nodejs'\nlibrary = '{library}'\n[[function]]\nname = 'f'\n");
        for (name, text) in files.iter().chain(&[(MANIFEST_FILE, manifest.as_str())]) {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        if fs::create_dir(folder.path().join("node_modules/.bin")).is_ok() {
            symlink("nowhere", folder.path().join("node_modules/.bin/program")).unwrap();
        }
        checked(folder.path())
    }

    #[test]
    fn rejects_nodejs_with_a_syntax_error() {
        for (library, files, said) in [
            (
                "m.js",
                [("m.js", "exports.f = 1;\nexports.g = (;\n"), ("a", "")],
                "m.js:2: Unexpected token ';'",
            ),
            ("m.js", [("m.js", ""), ("lib/n.mjs", "const a = require('b'\n")], "lib/n.mjs:1: missing )"),
            ("m.js", [("m.js", "import 'x'; return 1"), ("a", "")], "m.js:1: Cannot use import"),
            (
                "m.js",
                [("m.js", "return 1"), ("package.json", "{\"type\": \"module\"}")],
                "m.js:1: Illegal return",
            ),
        ] {
            let error = nodejs_package(library, &files).unwrap_err();
            assert!(error.code == Code::InvalidPackage, "{error}");
            assert!(error.message.contains(&format!("package p: {said}")), "{error}");
        }
        for text in ["import 'x';\nexport const f = await 1", "#!/usr/bin/env node\nreturn 1", "with (a) b"] {
            nodejs_package("m.js", &[("m.js", text), ("node_modules/a/m.js", "(")]).unwrap();
        }
    }

    /// Paths in the package of a folder for Node.js with these files.
    fn nodejs_paths(manifest: &str, files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let manifest =
            format!("name = 'p'\nkind = 'nodejs'\nlibrary = 'm.js'\n{manifest}\n[[function]]\nname = 'f'\n");
        for (name, text) in files.iter().chain(&[(MANIFEST_FILE, manifest.as_str()), ("m.js", "")]) {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let encoded = read_package(folder.path()).unwrap();
        let left_out = left_out(folder.path(), &encoded).unwrap();
        assert_eq!(left_out.is_some(), files.iter().any(|(name, _)| *name == ".npmrc"));
        let package: Package = decode("package", &encoded).unwrap();
        package.files.into_iter().map(|file| file.path).collect()
    }

    #[test]
    fn package_does_not_contain_the_token_of_a_registry() {
        let files = [(".npmrc", "//registry/:_authToken=secret"), ("a/.npmrc", "x"), ("a/npmrc", "y")];
        assert_eq!(nodejs_paths("", &files), ["a/npmrc", "m.js"]);
        assert_eq!(nodejs_paths("", &[]), ["m.js"]);
    }

    #[test]
    fn image_has_the_dependencies_of_a_lock_file() {
        let image = format!("image = 'x@sha256:{}'", "0".repeat(64));
        // npm would refuse this lock file.
        let files = [("package-lock.json", "none"), ("node_modules/a/index.js", "")];
        assert_eq!(nodejs_paths(&image, &files), ["m.js", "package-lock.json"]);
        // Without a lock file the package brings modules of its own.
        assert_eq!(nodejs_paths(&image, &files[1..]), ["m.js", "node_modules/a/index.js"]);
    }

    #[test]
    fn rejects_python_without_a_named_function() {
        let functions = "[[function]]\nname = 'f'\n[[function]]\nname = 'g'\nsymbol = 'C.g'\n";
        let check = |module| python_package(functions, &[("m.py", module)]);
        check("class C:\n  def g(self): pass\ntry:\n  from os import fork as f\nexcept ImportError:\n  f = None\n").unwrap();
        let error = check("def f(): return C.g\n").unwrap_err();
        assert!(error.code == Code::InvalidPackage && error.message.contains("m.py has no C.g"), "{error}");
        // Names that the module's execution binds cannot be known before.
        check("from os.path import *\n").unwrap();
        check("globals().update(f=1, C=2)\n").unwrap();
    }

    #[test]
    fn a_folder_becomes_a_package() {
        let folder = folder();
        fs::write(folder.path().join("a.txt"), b"data").unwrap();
        let package: Package =
            sublet_proto::decode("package", &read_package(folder.path()).unwrap()).unwrap();
        assert_eq!(package.manifest, MANIFEST);
        let paths: Vec<_> = package.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["a.txt", "lib/p.so"]);
    }

    #[test]
    fn a_bare_library_may_be_reached_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("libx.so.1"), b"code").unwrap();
        symlink("libx.so.1", folder.path().join("libx.so")).unwrap();
        let through_link = read_package(&folder.path().join("libx.so")).unwrap();
        assert_eq!(through_link, read_package(&folder.path().join("libx.so.1")).unwrap());
    }

    #[test]
    fn links_inside_of_a_folder_are_refused_by_name() {
        for target in ["/etc/passwd", "p.so", "../..", "nowhere"] {
            let folder = folder();
            symlink(target, folder.path().join("lib/link")).unwrap();
            let message = message(folder.path());
            assert!(message.contains("lib/link") && message.contains("symbolic link"), "{message}");
        }
    }

    #[test]
    fn special_files_are_refused() {
        let folder = folder();
        let _listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        assert!(message(folder.path()).contains("special file"));
        assert!(message(Path::new("/dev/null")).contains("neither"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let empty = tempfile::tempdir().unwrap();
        assert!(message(empty.path()).contains(MANIFEST_FILE));
        let error = read_package(&empty.path().join("nothing")).unwrap_err();
        assert!(error.code == Code::InvalidArgument && error.message.contains("nothing"), "{error}");
        let folder = folder();
        fs::remove_file(folder.path().join("lib/p.so")).unwrap();
        assert!(message(folder.path()).contains("lib/p.so"));
    }

    #[test]
    fn rejects_too_large_files_without_reading_them() {
        let folder = folder();
        let large = File::create(folder.path().join("large")).unwrap();
        large.set_len(MAX_PACKAGE_BYTES + (1 << 40)).unwrap();
        assert!(message(folder.path()).contains("large"));
    }

    #[test]
    fn folders_that_are_too_deep_are_refused() {
        let folder = folder();
        let deep = "d/".repeat(MAX_DEPTH + 2);
        fs::create_dir_all(folder.path().join(deep)).unwrap();
        assert!(message(folder.path()).contains("folders deep"));
    }
}
