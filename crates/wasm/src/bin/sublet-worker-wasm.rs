//! The worker program of packages of WebAssembly.

use std::process::ExitCode;

use sublet_runtime::worker::{program, spawned};
use sublet_wasm::WasmEngine;

fn main() -> ExitCode {
    program::main(WasmEngine::load, spawned::none)
}
