//! The worker program of packages of kernels for OpenCL.

use std::process::ExitCode;

use sublet_devices::opencl::{self, OpenCl};
use sublet_devices::worker::KernelEngine;
use sublet_runtime::worker::engine::EngineLoad;
use sublet_runtime::worker::{program, spawned};

fn main() -> ExitCode {
    let load = |load: &EngineLoad<'_>| {
        // Worker threads are started when the package is loaded.
        opencl::enter_environment(load.workers);
        KernelEngine::load(load, |lanes| OpenCl::first(lanes, None))
    };
    program::main(load, spawned::none)
}
