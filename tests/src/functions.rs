//! The packages under test: `tests/functions/*`, compiled into shared objects when they are first asked for.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::{platform, root};

static COMPILED: Mutex<Option<HashMap<&'static str, PathBuf>>> = Mutex::new(None);

/// The shared object `libNAME.so` of `tests/functions/NAME.c` or `.cpp`, which makes a package `libNAME`.
///
/// # Panics
/// If it cannot be compiled.
pub fn library(source: &'static str) -> PathBuf {
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let compiled = compiled.get_or_insert_default();
    compiled.entry(source).or_insert_with(|| compile(source)).clone()
}

/// As [`library`], as text: what an allocation takes.
pub fn package(source: &'static str) -> String {
    library(source).to_string_lossy().into_owned()
}

/// Compiles beside its place and moves it there: a worker of another test may have the old one mapped.
fn compile(source: &str) -> PathBuf {
    let folder = platform::programs().join("test-functions");
    std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let source = root().join("tests/functions").join(source);
    let name = source.file_stem().unwrap_or_default().to_string_lossy();
    let (object, part) =
        (folder.join(format!("lib{name}.so")), folder.join(format!("{name}.{}", std::process::id())));
    let output = compiler(&source)
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .args([&part, &source])
        .output()
        .unwrap_or_else(|error| panic!("a C and C++ compiler is needed: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(&part, &object).unwrap_or_else(|error| panic!("{}: {error}", object.display()));
    object
}

fn compiler(source: &Path) -> Command {
    let (variable, usual, standard) = match source.extension() {
        Some(extension) if extension == "cpp" => ("CXX", "c++", "-std=c++17"),
        _ => ("CC", "cc", "-std=c11"),
    };
    let mut command = Command::new(std::env::var(variable).unwrap_or_else(|_| usual.to_owned()));
    command.arg(standard);
    command
}
