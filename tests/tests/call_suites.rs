//! Tests of calls and of remote memory, over every fabric and on every kind of processor.

mod bridged;
mod calls;
mod chains;
mod executors;
mod fabrics;
mod kernels;
mod libfabric;
mod memory;
mod memory_mount;
mod pus;
mod remote_calls;
mod scribbling;
mod second_pu;
mod slow_packages;
mod spawned;
mod swap;
mod swapping;
mod wasm;
