//! The packages under test: `tests/functions/*`, compiled into shared objects when they are first asked for.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use sublet_fabric::sync::lock;
use tempfile::TempDir;

use crate::{platform, root};

/// Target of rustc for WebAssembly.
const WASM: &str = "wasm32-unknown-unknown";

static COMPILED: Mutex<Option<HashMap<&'static str, PathBuf>>> = Mutex::new(None);

/// The shared object `libNAME.so` of `tests/functions/NAME.c` or `.cpp`, which makes a package `libNAME`.
///
/// # Panics
/// If it cannot be compiled.
pub fn library(source: &'static str) -> PathBuf {
    let mut compiled = lock(&COMPILED);
    let compiled = compiled.get_or_insert_default();
    compiled.entry(source).or_insert_with(|| compile(source)).clone()
}

/// A package of these kernels of one of the tests' sources, named after that; `limits` is what its manifest says of all of them.
///
/// # Panics
/// If it cannot be made.
pub fn kernels(source: &str, limits: &str, functions: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().expect("temporary folder");
    let from = root().join("tests/functions").join(source);
    std::fs::copy(&from, folder.path().join(source))
        .unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    let name = source.trim_end_matches(".cl");
    let functions: String = functions.iter().map(|name| format!("[[function]]\nname = '{name}'\n")).collect();
    let manifest = format!("name = '{name}'\nkind = 'opencl'\nlibrary = '{source}'\n{limits}{functions}");
    std::fs::write(folder.path().join("sublet.toml"), manifest).expect("manifest");
    folder
}

/// Does what [`library`] does, and returns the path as text, which an allocation takes.
pub fn package(source: &'static str) -> String {
    library(source).to_string_lossy().into_owned()
}

/// A program of `tests/functions`, linked with `libsublet`.
pub fn program(source: &'static str) -> PathBuf {
    let source = root().join("tests/functions").join(source);
    let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    link(compiler(&source), &source, &name, &platform::programs().join("libsublet_c.a"))
}

/// Does what [`program`] does for a source in C, with the library and the header of some version.
pub fn program_of(version: &str, source: &'static str, programs: &Path, include: &Path) -> PathBuf {
    let source = root().join("tests/functions").join(source);
    let name = source.file_stem().unwrap_or_default().to_string_lossy();
    let mut compiler = compiler(&source);
    compiler.arg("-I").arg(include);
    link(compiler, &source, &format!("{name}.{version}"), &programs.join("libsublet_c.a"))
}

/// Does what [`program`] does for a source in C, with a compiler for another architecture and the library for that.
///
/// # Panics
/// If it cannot be compiled.
pub fn foreign_program(compiler: &str, source: &str, library: &Path) -> PathBuf {
    let source = root().join("tests/functions").join(source);
    let name = source.file_stem().unwrap_or_default().to_string_lossy();
    let mut command = Command::new(compiler);
    command.arg("-std=c11");
    link(command, &source, &format!("{name}.{compiler}"), library)
}

fn link(mut compiler: Command, source: &Path, name: &str, library: &Path) -> PathBuf {
    compiler.args(["-O2", "-s", "-Wl,--gc-sections"]);
    let linked = [library.to_string_lossy().into_owned(), "-lm".into(), "-ldl".into(), "-lpthread".into()];
    build_with(compiler, source, name, &linked)
}

/// Kind of a library of functions in Rust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RustTarget {
    /// A shared object for this machine.
    Native,
    /// A module for every processor.
    Wasm,
}

/// An example of a package of this workspace that is a library of functions, built by cargo as a user builds it.
///
/// # Panics
/// If it cannot be built.
pub fn rust_library(package: &str, example: &str, target: RustTarget) -> PathBuf {
    let programs = platform::programs();
    let (top, profile) = (programs.parent(), programs.file_name().and_then(OsStr::to_str));
    let (Some(top), Some(profile)) = (top, profile) else {
        panic!("{} is not a folder of cargo", programs.display())
    };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args([
        "build",
        "--quiet",
        "--offline",
        "--package",
        package,
        "--example",
        example,
    ]);
    cargo.args(["--profile", if profile == "debug" { "dev" } else { profile }]).arg("--target-dir").arg(top);
    let file = match target {
        RustTarget::Native => programs.join(format!("examples/lib{example}.so")),
        RustTarget::Wasm => {
            cargo.args(["--target", WASM]);
            top.join(WASM).join(profile).join(format!("examples/{example}.wasm"))
        }
    };
    let output = cargo.output().unwrap_or_else(|error| panic!("cargo does not start: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    file
}

/// A source of `tests/functions` as a WebAssembly module, compiled without a C library.
pub fn module(source: &'static str) -> PathBuf {
    let mut clang = Command::new("clang");
    clang.args(["--target=wasm32", "-mbulk-memory", "-O2", "-nostdlib"]);
    clang.args(["-Wl,--no-entry", "-Wl,--export-dynamic"]);
    let source = root().join("tests/functions").join(source);
    let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    build(clang, &source, &format!("{name}.wasm"))
}

/// Does what [`library`] does for a source in C, with a compiler for another architecture.
///
/// # Panics
/// If it cannot be compiled.
pub fn foreign(compiler: &str, source: &str) -> PathBuf {
    let source = root().join("tests/functions").join(source);
    let mut command = Command::new(compiler);
    command.arg("-std=c11");
    share(command, &source, &format!(".{compiler}.so"))
}

fn compile(source: &str) -> PathBuf {
    let source = root().join("tests/functions").join(source);
    share(compiler(&source), &source, ".so")
}

fn share(mut compiler: Command, source: &Path, ending: &str) -> PathBuf {
    let name = source.file_stem().unwrap_or_default().to_string_lossy();
    compiler.args(["-O2", "-shared", "-fPIC"]);
    build(compiler, source, &format!("lib{name}{ending}"))
}

/// Compiles beside its place and moves it there: a worker of another test may have the old one mapped.
fn build(compiler: Command, source: &Path, library: &str) -> PathBuf {
    build_with(compiler, source, library, &[])
}

fn build_with(mut compiler: Command, source: &Path, library: &str, linked: &[String]) -> PathBuf {
    static BUILT: AtomicU32 = AtomicU32::new(0);
    let folder = platform::programs().join("test-functions");
    std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let built = BUILT.fetch_add(1, Ordering::Relaxed);
    let (object, part) =
        (folder.join(library), folder.join(format!("{library}.{}.{built}", std::process::id())));
    let output = compiler
        .arg("-o")
        .args([part.as_path(), source])
        .args(linked)
        .output()
        .unwrap_or_else(|error| panic!("a compiler is missing, see scripts/setup.sh: {error}"));
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
