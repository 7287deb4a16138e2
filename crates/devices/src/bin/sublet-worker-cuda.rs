//! The worker program of packages of kernels for CUDA.

use std::process::ExitCode;

use sublet_devices::cuda::Cuda;
use sublet_devices::worker::KernelEngine;
use sublet_runtime::worker::{program, spawned};

fn main() -> ExitCode {
    program::main(|load| KernelEngine::load(load, Cuda::first), spawned::none)
}
