//! Helps the tests of the whole repository: finds its files and reads them.
//!
//! `tests/walls.rs` holds the import rules and the wall around unsafe code, `tests/map.rs` keeps the documents in
//! step with the tree, and the program `fuzz-seeds` writes the first inputs of the fuzz targets. `tests/fuzz_targets.rs`
//! runs the fuzz targets with these, with the kept inputs, and with mutations of both ([`mutation`]).
//!
//! The other tests run the real `sublet` ([`platform`]) with packages that are compiled for them ([`functions`]) and,
//! where managers share a store, a real NATS server ([`nats`]); and they look at its processes from the outside
//! ([`process`]). They never ask how long something took.

// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

use std::fs;
use std::path::{Path, PathBuf};

use sublet::{Code, Error};

pub mod attack;
pub mod before;
pub mod cluster;
pub mod crowd;
pub mod disk;
pub mod emulated;
pub mod executor;
pub mod functions;
pub mod global;
pub mod graph;
pub mod hand;
pub mod mounted;
pub mod mutation;
pub mod nats;
pub mod network;
pub mod numbers;
pub mod placement;
pub mod platform;
pub mod process;
pub mod program;
pub mod rounds;
pub mod runner;
pub mod sim;

/// Folders that hold what is built, not what is written.
const BUILT: &[&str] = &["target", ".git", "corpus", "artifacts", "seeds", "minimal", "node_modules"];

/// The repository's top folder.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ stands inside the repository")
}

/// A text file's content, by its path from the top folder.
///
/// # Panics
/// If there is no such file: for a test, that is the finding.
pub fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files below a folder whose names end in one of these, as sorted paths from the top folder.
/// A folder that is not there has none.
pub fn files(folder: &str, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(&root().join(folder), endings, &mut found);
    found.sort();
    found
}

fn collect(folder: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !path.is_symlink() && !BUILT.contains(&name.as_str()) {
            collect(&path, endings, found);
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path.strip_prefix(root()).unwrap_or(&path).to_path_buf());
        }
    }
}

/// Checks that a result is an error with this code, whose message has each of these names in it. Returns the message.
///
/// # Panics
/// If it did not.
#[track_caller]
pub fn assert_fails<T>(result: Result<T, Error>, code: Code, named: &[&str]) -> String {
    let Err(error) = result else { panic!("it should have failed with {code}") };
    assert_eq!(error.code, code, "{error}");
    for name in named {
        assert!(error.message.contains(name), "{name:?} is not named in: {}", error.message);
    }
    error.message
}
