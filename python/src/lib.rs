//! Implements the module `sublet._native`: the part of the Python package `sublet` that is not in Python.
//!
//! This module is thin: it has leases, calls and registered memory as the library has them, and messages of several
//! pieces
//! ([`sublet::frames`]). The Python package defines how Python calls use these: see `sublet/_lease.py`.

#![allow(unsafe_code)]
// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

mod application;
mod buffer;
mod call;
mod component;
mod environment;
mod error;
mod fork_cell;
mod image;
mod invoker;
mod message;
mod pool;
mod queue;

use pyo3::prelude::*;

/// The module, as the interpreter knows it.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<application::PyApplication>()?;
    module.add_class::<application::PyRun>()?;
    module.add_class::<buffer::OwnedBuffer>()?;
    module.add_class::<call::PyCall>()?;
    module.add_class::<component::PyMemory>()?;
    module.add_class::<component::PyMemoryReading>()?;
    module.add_class::<invoker::PyInvoker>()?;
    module.add_class::<queue::PyQueue>()?;
    module.add_function(wrap_pyfunction!(fork_cell::forked, module)?)?;
    module.add_function(wrap_pyfunction!(environment::make_environment, module)?)?;
    module.add_function(wrap_pyfunction!(environment::find_environment, module)?)?;
    module.add_function(wrap_pyfunction!(image::pin_image, module)?)?;
    module.add_function(wrap_pyfunction!(invoker::is_path, module)?)?;
    module.add_function(wrap_pyfunction!(buffer::is_registered, module)?)?;
    module.add_function(wrap_pyfunction!(buffer::allocate, module)?)
}
