//! Memory that Python has no object for: registered, or of a memory component. Arrays lie in it by NumPy's array interface,
//! and memoryviews of those are views of it.

use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use sublet_proto::to_usize;
use sublet_python_buffers::{BufferUse, BufferView};

use crate::component::LentPiece;
use crate::error::raised;
use crate::fork_cell::ForkCell;
use crate::pool::{MemoryPool, Paper};

/// NumPy's name for the type of bytes.
const BYTES: &str = "|u1";

/// A piece of memory, and the owner that keeps it.
#[pyclass(name = "Buffer", frozen, module = "sublet._native")]
pub struct OwnedBuffer {
    at: NonNull<u8>,
    len_bytes: u64,
    read_only: bool,
    // Never looked at.
    _owner: BufferOwner,
}

/// Owner of a piece of memory, which keeps it at its address.
#[derive(Clone)]
pub enum BufferOwner {
    /// Registered memory of a message.
    Message(Paper),
    /// Registered memory of its own.
    Array(Arc<ForkCell<sublet::Buffer<u8>>>),
    /// Memory of a component, which is not made shorter meanwhile.
    Component(Arc<LentPiece>),
    /// Memory of a Python object, kept by a view of it.
    Object(Arc<BufferView>),
}

// SAFETY: a buffer is an address and the owner of the memory there; any thread may keep and drop the owner.
unsafe impl Send for OwnedBuffer {}
// SAFETY: as above; nothing is read or written through it.
unsafe impl Sync for OwnedBuffer {}

impl OwnedBuffer {
    /// Makes a buffer of `len_bytes` bytes at an address, which the owner keeps.
    pub fn new(at: NonNull<u8>, len_bytes: u64, read_only: bool, owner: BufferOwner) -> OwnedBuffer {
        OwnedBuffer { at, len_bytes, read_only, _owner: owner }
    }
}

#[pymethods]
impl OwnedBuffer {
    /// The address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.at.as_ptr() as usize
    }

    /// Number of bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.len_bytes
    }

    /// Whether the memory must not be written.
    #[getter]
    fn readonly(&self) -> bool {
        self.read_only
    }

    /// NumPy's array interface, version 3: an array of bytes.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", BYTES)?;
        interface.set_item("shape", (self.len_bytes,))?;
        interface.set_item("data", (self.at.as_ptr() as usize, self.read_only))?;
        Ok(interface)
    }

    fn __repr__(&self) -> String {
        format!("<sublet buffer of {} bytes at {:#x}>", self.len_bytes, self.at.as_ptr() as usize)
    }

    fn __len__(&self) -> usize {
        to_usize(self.len_bytes)
    }
}

/// Whether workers on this machine reach an object's memory without copying.
#[pyfunction]
pub fn is_registered(py: Python<'_>, object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let view = BufferView::of(object, BufferUse::Reading)?;
    let pool = MemoryPool::shared().map_err(|error| raised(py, &error))?;
    Ok(pool.memory().locate(view.pointer().as_ptr(), view.len_bytes()).is_some())
}

/// Allocates `nbytes` bytes of registered memory, which workers on this machine reach without copying.
#[pyfunction]
pub fn allocate(py: Python<'_>, nbytes: usize) -> PyResult<OwnedBuffer> {
    let made = py.detach(|| MemoryPool::shared()?.memory().buffer::<u8>(nbytes));
    let made = made.map_err(|error| raised(py, &error))?;
    let at = made.start();
    Ok(OwnedBuffer::new(at, nbytes as u64, false, BufferOwner::Array(Arc::new(ForkCell::new(made)))))
}
