//! WebAssembly functions: the engine that calls them, for the worker program `sublet-worker-wasm`.
//!
//! - [`WasmEngine`] compiles a package's module, links it with its few allowed imports, and keeps a pool of one instance
//!   for each worker thread.
//! - [`WasmCaller`] executes a call: it creates a fresh instance, places input and output in its linear memory, calls the
//!   function, and copies the output out. Instances keep no state for the next call: globals, memory and tables start with
//!   the module's initial values.
//! - A call ends at its limits of time, memory and fuel, with an error of its own and not with the process.
//!
//! The module is untrusted. It is compiled and executed in the sandbox of its lease's worker process, so that a fault in
//! the compiler has no more effect than native code of the same tenant. The crate has no unsafe code: memory that clients
//! may write concurrently is copied by [`Input`](sublet_runtime::worker::engine::CallInput) and
//! [`Output`](sublet_runtime::worker::engine::CallOutput).

// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

mod call;
mod engine;
mod failure;
mod host;
mod limits;
mod reserve;
mod state;
mod ticker;
mod wasi;

pub use call::WasmCaller;
pub use engine::WasmEngine;
