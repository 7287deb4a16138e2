//! The memory components that a component of a graph accesses, as its functions in Python have them.
//!
//! `sublet/_channel.py` is what they see of it. An interpreter has one worker, so that there is one instance in a process.
//!
//! Invariants:
//! - What is mapped stays mapped for as long as there is an array in it, and is the run's no longer than that lasts.
//! - The interpreter's lock is not held while a component grows.

use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use sublet_proto::{Code, Error};
use sublet_python_buffers::{Use, View};
use sublet_runtime::worker::channel::{self, Run};

/// How much is copied at a time: it stays in a core's cache.
const COPY_BYTES: u64 = 256 << 10;
/// The worker of an interpreter.
const WORKER: u32 = 0;
/// How NumPy calls bytes.
const BYTES: &str = "|u1";

/// The way to a memory component, for as long as the run for which it was opened.
#[pyclass(frozen, module = "sublet_template")]
pub(crate) struct Channel {
    run: Arc<Run>,
    /// Which of the run's.
    number: usize,
}

/// Bytes of a memory component where they lie.
#[pyclass(frozen, module = "sublet_template")]
pub(crate) struct Piece {
    at: NonNull<u8>,
    len_bytes: u64,
    is_writable: bool,
    /// Keeps them mapped.
    _run: Arc<Run>,
}

// SAFETY: it is an address and what keeps the memory there, which any thread may keep and give up.
unsafe impl Send for Piece {}
// SAFETY: as above; nothing is read or written through it.
unsafe impl Sync for Piece {}

/// Which instance of its component this is, and of how many; of a call that is not of a run, 0 of 1.
#[pyfunction]
pub(crate) fn instance() -> (u32, u32) {
    channel::run().map_or((0, 1), |run| (run.instance(WORKER), run.instances))
}

/// Opens the way to a component.
#[pyfunction]
pub(crate) fn open_channel(py: Python<'_>, component: &str) -> PyResult<Channel> {
    let open = || {
        let run = channel::run().ok_or_else(|| {
            let message = "this call is not of a graph's run, and has no memory components";
            Error::new(Code::InvalidArgument, message)
        })?;
        // Says what is wrong if there is none.
        run.channel(component)?;
        let number = run.channels().iter().position(|channel| channel.name() == component);
        Ok(Channel { number: number.unwrap_or_default(), run })
    };
    open().map_err(|error| raised(py, &error))
}

/// After a function: what it has written is where the next components read it.
///
/// # Errors
/// Why it is not.
pub(crate) fn settle(py: Python<'_>) -> Result<(), Error> {
    let Some(run) = channel::run() else { return Ok(()) };
    py.detach(|| run.sync())
}

impl Channel {
    /// Does something with it, if its run is the present one.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        what: impl FnOnce(&channel::Channel) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| {
            if !channel::run().is_some_and(|run| Arc::ptr_eq(&run, &self.run)) {
                return Err(Error::new(Code::LeaseEnded, "the run of this channel is over: open it again"));
            }
            what(&self.run.channels()[self.number])
        });
        done.map_err(|error| raised(py, &error))
    }
}

#[pymethods]
impl Channel {
    /// How many bytes there are to be read.
    fn nbytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, channel::Channel::len_bytes)
    }

    /// Whether its edge is for writing.
    fn is_writable(&self) -> bool {
        self.run.channels()[self.number].is_writable()
    }

    /// A copy of bytes.
    fn read<'py>(&self, py: Python<'py>, offset: u64, nbytes: usize) -> PyResult<Bound<'py, PyBytes>> {
        // What cannot be read need not be made room for.
        self.with(py, |channel| {
            let is = channel.len_bytes()?;
            if offset.checked_add(nbytes as u64).is_some_and(|end| end <= is) {
                return Ok(());
            }
            let message =
                format!("{nbytes} bytes at {offset} of memory component {} of {is} bytes", channel.name());
            Err(Error::new(Code::InvalidArgument, message))
        })?;
        PyBytes::new_with(py, nbytes, |bytes| self.with(py, |channel| channel.read(offset, bytes)))
    }

    /// Copies bytes into an object's memory.
    fn read_into(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let view = View::of(buffer, Use::Writing)?;
        let mut bytes = Vec::new();
        let mut at = 0;
        while at < view.len_bytes() {
            bytes.resize((view.len_bytes() - at).min(COPY_BYTES) as usize, 0);
            self.with(py, |channel| channel.read(offset.saturating_add(at), &mut bytes))?;
            view.copy_from(at, &bytes);
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// Copies an object's bytes in.
    fn write(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let view = View::of(data, Use::Reading)?;
        let mut bytes = Vec::new();
        // The end first: if there is no room for it, nothing is written.
        let mut end = view.len_bytes();
        while end > 0 {
            bytes.resize(((end - 1) % COPY_BYTES + 1) as usize, 0);
            end -= bytes.len() as u64;
            view.copy_to(end, &mut bytes);
            self.with(py, |channel| channel.write(offset.saturating_add(end), &bytes))?;
        }
        Ok(())
    }

    /// Makes it so many bytes long, if it is shorter.
    fn grow(&self, py: Python<'_>, nbytes: u64) -> PyResult<()> {
        self.with(py, |channel| channel.grow(nbytes))
    }

    /// Makes what was written be where others read it, and what they synced be read here.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, channel::Channel::sync)
    }

    /// Asks for bytes of other machines that will be read soon.
    fn prefetch(&self, py: Python<'_>, offset: u64, nbytes: u64) -> PyResult<()> {
        self.with(py, |channel| {
            channel.prefetch(offset, nbytes);
            Ok(())
        })
    }

    /// Bytes where they lie.
    fn mapped(&self, py: Python<'_>, offset: u64, nbytes: u64) -> PyResult<Piece> {
        let Address(at) = self.with(py, |channel| channel.mapped(offset, nbytes).map(Address))?;
        Ok(Piece { at, len_bytes: nbytes, is_writable: self.is_writable(), _run: self.run.clone() })
    }
}

#[pymethods]
impl Piece {
    /// NumPy's array interface, version 3: an array of bytes.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", BYTES)?;
        interface.set_item("shape", (self.len_bytes,))?;
        interface.set_item("data", (self.at.as_ptr() as usize, !self.is_writable))?;
        Ok(interface)
    }
}

/// An address that is nobody's to be used here.
struct Address(NonNull<u8>);

// SAFETY: nothing is done with it but passing it on.
unsafe impl Send for Address {}

/// The exception of an error: the package's, which has asked for what failed.
#[cold]
fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let made = py.import("sublet._errors").and_then(|module| {
        module.getattr("of")?.call1((error.code.to_string(), error.code.number(), error.message.as_str()))
    });
    made.map_or_else(|_| PyRuntimeError::new_err(error.message.clone()), PyErr::from_value)
}
