//! Tests of the engine that calls WebAssembly functions.

mod calls;
mod hostile;
mod support;
