//! Prepares a package of Node.js before it is deployed: installs its dependencies by its lock file, and checks that its
//! own modules can be parsed.
//!
//! npm and the Node.js of this machine do so, and execute nothing of the package or of its dependencies.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use sublet_proto::package::nodejs::is_module;
use sublet_proto::package::{Build, Manifest, PackageKind};
use sublet_proto::v1::PackageFile;
use sublet_proto::{Code, Error};

use super::fault::check_by;

/// The program that parses.
const CHECK: &str = include_str!("check.js");
/// Lock files of npm, the one that precedes first.
const LOCKS: [&str; 2] = ["npm-shrinkwrap.json", "package-lock.json"];
/// npm's configuration, which may hold the token of a registry.
pub(super) const CONFIGURATION: &str = ".npmrc";
/// Files of a folder that npm needs to install its dependencies.
const FOR_NPM: [&str; 4] = ["package.json", LOCKS[0], LOCKS[1], CONFIGURATION];
/// Folder of dependencies.
pub(super) const MODULES: &str = "node_modules";
/// Entries of that folder that no function needs: links to programs, and npm's own notes.
pub(super) const LEFT_OUT: [&str; 2] = [".bin", ".package-lock.json"];
/// Number of lines of npm's error that are reported.
const MOST_LINES: usize = 3;

/// Whether a manifest has a build for Node.js.
pub(super) fn is_for_nodejs(manifest: &Manifest) -> bool {
    manifest.builds.iter().any(|build| build.kind.as_deref() == Some(PackageKind::Nodejs.name()))
}

/// Whether a build for the Node.js of nodes imports what the package has. Functions in an image import what the image has.
pub(super) fn needs_modules(manifest: &Manifest) -> bool {
    let is_of_node =
        |build: &Build| build.kind.as_deref() == Some(PackageKind::Nodejs.name()) && build.image.is_none();
    manifest.builds.iter().any(is_of_node)
}

/// Whether a lock file is among a package's own files.
pub(super) fn is_locked(files: &[PackageFile]) -> bool {
    files.iter().any(|file| LOCKS.contains(&file.path.as_str()))
}

/// Removes npm's configuration: no function needs it, and everyone who may execute the package could read it.
pub(super) fn remove_configuration(files: &mut Vec<PackageFile>) {
    files.retain(|file| file.path.rsplit('/').next() != Some(CONFIGURATION));
}

/// A folder that is removed in the end.
pub(super) struct InstalledModules(PathBuf);

impl InstalledModules {
    /// The folder of dependencies.
    pub(super) fn path(&self) -> PathBuf {
        self.0.join(MODULES)
    }
}

impl Drop for InstalledModules {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Installs the dependencies that a lock file names, without those for development. The files are those of the folder.
///
/// # Errors
/// [`Code::InvalidPackage`] with npm's error; [`Code::System`] without npm.
pub(super) fn install(folder: &Path, files: &[PackageFile]) -> Result<InstalledModules, Error> {
    let installed = InstalledModules(make_folder().map_err(|error| {
        Error::of_system(format_args!("cannot make a folder in {}", std::env::temp_dir().display()), &error)
    })?);
    for file in files.iter().filter(|file| FOR_NPM.contains(&file.path.as_str())) {
        let copy = installed.0.join(&file.path);
        fs::write(&copy, &file.data)
            .map_err(|error| Error::of_system(format_args!("cannot write {}", copy.display()), &error))?;
    }
    let output = Command::new("npm")
        .args(["ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
        .current_dir(&installed.0)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            Error::of_system(
                format_args!("cannot start npm, which installs what {} locks", folder.display()),
                &error,
            )
        })?;
    if output.status.success() {
        return Ok(installed);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let lines = said.lines().map(|line| line.trim_start_matches("npm error").trim());
    let lines: Vec<_> =
        lines.filter(|line| !line.is_empty() && !line.contains("complete log of this run")).collect();
    let lines = lines[..lines.len().min(MOST_LINES)].join("; ");
    let message = format!("installing the dependencies of {}: npm ci: {lines}", folder.display());
    Err(Error::new(Code::InvalidPackage, message))
}

/// Makes a folder that only this user reads.
fn make_folder() -> io::Result<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let path = std::env::temp_dir().join(format!("sublet-npm-{}-{now}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&path)?;
    Ok(path)
}

/// Refuses a folder with a module of its own that cannot be parsed.
///
/// # Errors
/// [`Code::InvalidPackage`] with the file and line.
pub(super) fn check(folder: &Path, name: &str, files: &[PackageFile]) -> Result<(), Error> {
    let dependencies = format!("{MODULES}/");
    let is_own = |path: &&str| is_module(path) && !path.contains(&dependencies);
    let modules = files.iter().map(|file| file.path.as_str()).filter(is_own);
    let mut node = Command::new("node");
    node.args(["--experimental-vm-modules", "--no-warnings", "--eval", CHECK, "--"]);
    check_by(&mut node, name, folder, modules)
}
