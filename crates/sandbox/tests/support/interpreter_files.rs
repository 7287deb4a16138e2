//! Finds the files of this machine that an interpreter in an image needs.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names in Python's standard library that need no place in an image.
const LEFT_OUT: [&str; 7] =
    ["__pycache__", "test", "idlelib", "lib2to3", "ensurepip", "site-packages", "dist-packages"];

/// Finds the files of a folder that an image needs.
pub fn collect(folder: &Path, files: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if LEFT_OUT.contains(&name) || name.starts_with("config-") {
            continue;
        }
        match path.is_dir() {
            true => collect(&path, files),
            false => drop(files.insert(path)),
        }
    }
}

/// Whether a file is a program or a library.
pub fn is_code(path: &Path) -> bool {
    fs::read(path).unwrap().starts_with(b"\x7fELF")
}

/// The shared libraries that a program or library needs, where it looks for them.
pub fn libraries(path: &Path) -> Vec<PathBuf> {
    let needed = Command::new("ldd").arg(path).output().unwrap();
    let needed = String::from_utf8(needed.stdout).unwrap();
    let paths = needed.split_whitespace().filter(|word| word.starts_with('/') && !word.ends_with(':'));
    paths.map(Into::into).collect()
}
