//! Modules for tests, and engines that have loaded them.

#![allow(clippy::unwrap_used)]
#![allow(dead_code, reason = "each test file uses its part")]

pub mod encode;

use std::fs;
use std::path::Path;
use std::process::Command;

use sublet_proto::package::{self, MANIFEST_FILE};
use sublet_proto::v1::{FunctionInfo, PackageBuild, PackageFile, PackageInfo};
use sublet_proto::{Code, Error};
use sublet_runtime::worker::engine::{CallInput, CallOutput, Engine, EngineLoad, FunctionCaller};
use sublet_wasm::{WasmCaller, WasmEngine};

pub const MIB: u64 = 1 << 20;
/// Memory of the leases in these tests, in bytes.
pub const LEASE_BYTES: u64 = 64 * MIB;
pub const PAGE_BYTES: u64 = 1 << 16;

/// The libraries that a module is linked with.
#[derive(Clone, Copy, Debug)]
pub enum Libraries {
    None,
    C,
}

/// Compiles a file of `tests/functions`.
pub fn compile(source: &str, with: Libraries) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/functions").join(source);
    let folder = tempfile::tempdir().unwrap();
    let module = folder.path().join("module.wasm");
    let how: &[&str] = match with {
        Libraries::None => &["--target=wasm32", "-nostdlib", "-mbulk-memory", "-Wl,--no-entry"],
        Libraries::C => &["--target=wasm32-wasi", "-mexec-model=reactor", "-nodefaultlibs", "-lc"],
    };
    let made = Command::new("clang")
        .args(["-O2", "-Wl,--export-dynamic", "-o"])
        .args([&module, &path])
        .args(how)
        .output()
        .expect("clang is there: scripts/setup.sh installs it");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::read(module).unwrap()
}

/// Checks and loads a module, as a package with this end of a manifest.
pub fn load(module: &[u8], manifest: &str) -> Result<LoadedModule, Error> {
    let manifest = format!("name = 'm'\nlibrary = 'm.wasm'\n{manifest}");
    let file = PackageFile { path: "m.wasm".into(), data: module.to_vec(), executable: false };
    let checked = package::validate(&package::encode(&package::from_files(&manifest, vec![file])?))?;
    load_unchecked(module, &manifest, &checked.info())
}

/// Loads a module without any check, like the worker of a node that has been deceived.
pub fn load_function(module: &[u8], symbol: &str) -> Result<LoadedModule, Error> {
    let build =
        PackageBuild { library: "m.wasm".into(), symbols: vec![symbol.into()], ..PackageBuild::default() };
    let info = PackageInfo {
        name: "m".into(),
        functions: vec![FunctionInfo { name: symbol.into() }],
        builds: vec![build],
        ..PackageInfo::default()
    };
    load_unchecked(module, "name = 'm'\nlibrary = 'm.wasm'\n", &info)
}

fn load_unchecked(module: &[u8], manifest: &str, package: &PackageInfo) -> Result<LoadedModule, Error> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("m.wasm"), module).unwrap();
    fs::write(folder.path().join(MANIFEST_FILE), manifest).unwrap();
    let load = EngineLoad {
        folder: folder.path(),
        package,
        build: 0,
        workers: 1,
        memory_bytes: LEASE_BYTES,
        variables: &[],
    };
    let engine = WasmEngine::load(&load)?;
    Ok(LoadedModule {
        engine,
        names: package.functions.iter().map(|function| function.name.clone()).collect(),
    })
}

/// A loaded module.
pub struct LoadedModule {
    pub engine: WasmEngine,
    pub names: Vec<String>,
}

impl LoadedModule {
    /// Creates the state of a worker thread.
    pub fn thread(&self) -> Thread<'_> {
        Thread { caller: self.engine.caller(0).unwrap(), names: &self.names }
    }

    /// Calls a function once, on a new thread state.
    pub fn call(&self, function: &str, input: &[u8], capacity: usize) -> Result<Vec<u8>, (Code, String)> {
        self.thread().call(function, input, capacity)
    }
}

/// A worker thread that calls by name.
pub struct Thread<'engine> {
    caller: WasmCaller<'engine>,
    names: &'engine [String],
}

impl Thread<'_> {
    /// Calls a function. Returns its output, or the code and the message of the error.
    pub fn call(&mut self, name: &str, input: &[u8], capacity: usize) -> Result<Vec<u8>, (Code, String)> {
        let index = self.names.iter().position(|known| known == name).expect("the module has the function");
        let mut output = vec![0; capacity];
        let called = self.caller.call(index as u16, CallInput::of(input), CallOutput::of(&mut output));
        let said = String::from_utf8_lossy(self.caller.message()).into_owned();
        self.caller.rest();
        let written = called.map_err(|code| (code, said))?;
        output.truncate(written as usize);
        Ok(output)
    }

    /// Calls a function like [`call`](Thread::call), with 32-bit words as input and output.
    pub fn words(&mut self, name: &str, input: &[u32], capacity: usize) -> Result<Vec<u32>, (Code, String)> {
        let input: Vec<u8> = input.iter().flat_map(|word| word.to_le_bytes()).collect();
        let output = self.call(name, &input, capacity * 4)?;
        Ok(output.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect())
    }
}

/// Asserts that a call failed with this code, and that the message has all of these words.
#[track_caller]
pub fn assert_fails<T: std::fmt::Debug>(called: Result<T, (Code, String)>, code: Code, words: &[&str]) {
    let (actual, message) = called.expect_err("the call should have failed");
    assert_eq!(actual, code, "{message}");
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
}

/// Asserts that a module was refused, and that the message has all of these words.
#[track_caller]
pub fn assert_refused(loaded: Result<LoadedModule, Error>, words: &[&str]) {
    let error = loaded.err().expect("the module should have been refused");
    assert_eq!(error.code, Code::InvalidPackage, "{error}");
    for word in words {
        assert!(error.message.contains(word), "{word:?} is not in {error}");
    }
}
