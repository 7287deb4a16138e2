//! The worker program of packages of native code.

use std::process::ExitCode;

use sublet_runtime::worker::library::LoadedLibrary;
use sublet_runtime::worker::{program, spawned};

sublet_runtime::interpose_malloc!();
sublet_xpu::export_c!();

fn main() -> ExitCode {
    program::main(LoadedLibrary::load, spawned::native)
}
