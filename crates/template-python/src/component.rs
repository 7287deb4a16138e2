//! The memory components and the messages of a graph's component, for functions in Python.
//!
//! `sublet/_channel.py` is the functions' interface to this module. An interpreter has one worker, so a process has one
//! instance.
//!
//! Invariants:
//! - A mapping lasts for as long as an array refers to it, and belongs to the run only until the run ends.
//! - A component that an array refers to is neither released nor shortened to less than that array's end.
//! - A thread does not hold the interpreter's lock while a component grows, or while it waits for a message.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use sublet_proto::{Code, Error, to_usize};
use sublet_python_buffers::{BufferUse, BufferView};
use sublet_runtime::worker::channel::Channel;
use sublet_runtime::worker::worker_run::{self, MAX_MESSAGE_BYTES, ReceiveError, WorkerRun};
use sublet_xpu::SharedBytes;

use crate::shared::{bytes_of, bytes_of_mut};

/// The worker of an interpreter.
const WORKER: u32 = 0;
/// NumPy's name of the type of a byte.
const BYTES: &str = "|u1";

/// Access to a memory component, which ends with the run for which it was opened.
#[pyclass(name = "Channel", frozen, module = "sublet_template")]
pub(crate) struct PyChannel {
    run: Arc<WorkerRun>,
    /// Index of the memory component among the run's channels.
    number: usize,
}

/// A view of a memory component's bytes, without a copy.
#[pyclass(name = "Piece", frozen, module = "sublet_template")]
pub(crate) struct PyPiece {
    at: NonNull<u8>,
    len_bytes: u64,
    is_writable: bool,
    /// Keeps the bytes mapped.
    _run: Arc<WorkerRun>,
    /// Key of the piece in [`LENT`].
    lent: u64,
}

/// Bytes that are being copied out of a memory component.
#[pyclass(name = "Reading", frozen, module = "sublet_template")]
pub(crate) struct PyChannelReading(Mutex<Option<sublet_runtime::Reading>>);

/// Position of an array in a memory component.
struct LentArray {
    /// The address of the run, which a piece keeps.
    run: usize,
    channel: usize,
    end: u64,
}

/// The positions of all arrays in memory components, by the number of their [`PyPiece`].
static LENT: Mutex<BTreeMap<u64, LentArray>> = Mutex::new(BTreeMap::new());

fn lent() -> MutexGuard<'static, BTreeMap<u64, LentArray>> {
    LENT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for PyPiece {
    fn drop(&mut self) {
        let before = lent().remove(&self.lent);
        debug_assert!(
            before.is_some(),
            "the array {} of {} bytes has no position",
            self.lent,
            self.len_bytes
        );
    }
}

// SAFETY: it is an address and the run that keeps the memory mapped; any thread may keep and drop the two.
unsafe impl Send for PyPiece {}
// SAFETY: as above; nothing is read or written through it.
unsafe impl Sync for PyPiece {}

/// Returns the index of this instance of its component, and the number of instances. Outside of a run, returns 0 and 1.
#[pyfunction]
pub(crate) fn instance() -> (u32, u32) {
    worker_run::current().map_or((0, 1), |run| (run.instance(WORKER), run.instances))
}

/// Returns the run that the current call belongs to.
fn present() -> Result<Arc<WorkerRun>, Error> {
    worker_run::current().ok_or_else(|| {
        let message = "this call is not of a graph's run, and has no memory components";
        Error::new(Code::InvalidArgument, message)
    })
}

/// Returns the point in time that is `timeout` seconds from now, or `None` for a wait without a limit.
pub(crate) fn deadline(timeout: Option<f64>) -> Result<Option<Instant>, Error> {
    let Some(seconds) = timeout else { return Ok(None) };
    let timeout = Duration::try_from_secs_f64(seconds).map_err(|_| {
        Error::new(Code::InvalidArgument, format!("a timeout of {seconds} seconds is no time to wait"))
    })?;
    Ok(Instant::now().checked_add(timeout))
}

/// Sends a message to an instance of another component.
#[pyfunction]
pub(crate) fn send(
    py: Python<'_>,
    component: &str,
    data: &Bound<'_, PyAny>,
    instance: u32,
    timeout: Option<f64>,
) -> PyResult<()> {
    let view = BufferView::of(data, BufferUse::Reading)?;
    let mut message = vec![0; to_usize(view.len_bytes())];
    view.copy_to(0, &mut message);
    let sent = py.detach(|| {
        let run = present()?;
        run.send(run.instance(WORKER), (component, instance), (&message).into(), deadline(timeout)?)
    });
    sent.map_err(|error| raised(py, &error))
}

/// Receives the next message of another component: its bytes, and the instance that sent it.
#[pyfunction]
pub(crate) fn receive<'py>(
    py: Python<'py>,
    component: &str,
    timeout: Option<f64>,
) -> PyResult<(Bound<'py, PyBytes>, u32)> {
    let mut output_space = vec![0; to_usize(MAX_MESSAGE_BYTES)];
    let received = py.detach(|| {
        let run = present()?;
        match run.receive(run.instance(WORKER), component, (&mut output_space).into(), deadline(timeout)?) {
            Ok(received) => Ok(received),
            Err(ReceiveError::Error(error)) => Err(error),
            Err(ReceiveError::TooLong(len)) => {
                Err(Error::new(Code::Protocol, format!("a message of {len} bytes, which none may have")))
            }
        }
    });
    let (len, from) = received.map_err(|error| raised(py, &error))?;
    Ok((PyBytes::new(py, &output_space[..len as usize]), from))
}

/// Opens a memory component.
#[pyfunction]
pub(crate) fn open_channel(py: Python<'_>, component: &str) -> PyResult<PyChannel> {
    let open = || {
        let run = present()?;
        run.channel(component)?.held_by(WORKER)?;
        let number = run.channels().iter().position(|channel| channel.name() == component);
        Ok(PyChannel { number: number.unwrap_or_default(), run })
    };
    open().map_err(|error| raised(py, &error))
}

/// Publishes the writes of a function that has returned, for the components that run next.
///
/// # Errors
/// If the writes could not be published.
pub(crate) fn settle(py: Python<'_>) -> Result<(), Error> {
    let Some(run) = worker_run::current() else { return Ok(()) };
    py.detach(|| run.sync(WORKER))
}

impl PyChannel {
    /// Calls a function with the component, if its run is the current one.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        what: impl FnOnce(&Channel) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| {
            if !worker_run::current().is_some_and(|run| Arc::ptr_eq(&run, &self.run)) {
                return Err(Error::new(Code::LeaseEnded, "the run of this channel is over: open it again"));
            }
            what(self.run.channels()[self.number].used_by(WORKER)?)
        });
        done.map_err(|error| raised(py, &error))
    }

    /// Fails if an array ends beyond the first `len_bytes` bytes of the component.
    fn check_lent(&self, len_bytes: u64) -> Result<(), Error> {
        let (run, channel) = (Arc::as_ptr(&self.run).addr(), self.number);
        let is_beyond =
            |lent: &&LentArray| (lent.run, lent.channel) == (run, channel) && lent.end > len_bytes;
        match lent().values().filter(is_beyond).count() {
            0 => Ok(()),
            beyond => {
                let message = format!("{beyond} arrays lie in what would go: give them up before");
                Err(Error::new(Code::InvalidArgument, message))
            }
        }
    }

    /// Fails if the range is not within the component, before any memory is allocated for its bytes.
    fn check_readable(&self, py: Python<'_>, offset: u64, nbytes: usize) -> PyResult<()> {
        self.with(py, |channel| {
            let is = channel.len_bytes()?;
            if offset.checked_add(nbytes as u64).is_some_and(|end| end <= is) {
                return Ok(());
            }
            let message =
                format!("{nbytes} bytes at {offset} of memory component {} of {is} bytes", channel.name());
            Err(Error::new(Code::InvalidArgument, message))
        })
    }

    fn copy_in(
        &self,
        py: Python<'_>,
        offset: u64,
        from: &Bound<'_, PyAny>,
        write: fn(&Channel, u64, SharedBytes<'_>) -> Result<(), Error>,
    ) -> PyResult<()> {
        let view = BufferView::of(from, BufferUse::Reading)?;
        self.with(py, |channel| write(channel, offset, bytes_of(&view)))
    }
}

#[pymethods]
impl PyChannel {
    /// Length of the component, in bytes.
    fn nbytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, Channel::len_bytes)
    }

    /// Whether the graph's edge to the component allows writes.
    fn is_writable(&self) -> bool {
        self.run.channels()[self.number].is_writable()
    }

    /// Copies bytes out, and returns the copy.
    fn read<'py>(&self, py: Python<'py>, offset: u64, nbytes: usize) -> PyResult<Bound<'py, PyBytes>> {
        self.check_readable(py, offset, nbytes)?;
        PyBytes::new_with(py, nbytes, |bytes| self.with(py, |channel| channel.read(offset, bytes.into())))
    }

    /// Copies bytes into an object's memory.
    fn read_into(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let view = BufferView::of(buffer, BufferUse::Writing)?;
        self.with(py, |channel| channel.read(offset, bytes_of_mut(&view)))
    }

    /// Copies an object's bytes in.
    fn write(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        self.copy_in(py, offset, data, Channel::write)
    }

    /// Copies an object's bytes in, and does not wait until others can read them.
    fn write_async(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        self.copy_in(py, offset, data, Channel::write_async)
    }

    /// Begins to copy bytes out, and does not wait for them.
    fn read_async(&self, py: Python<'_>, offset: u64, nbytes: usize) -> PyResult<PyChannelReading> {
        self.check_readable(py, offset, nbytes)?;
        let reading = self.with(py, |channel| channel.read_async(offset, vec![0; nbytes]))?;
        Ok(PyChannelReading(Mutex::new(Some(reading))))
    }

    /// Sets the length of the component, in bytes.
    fn resize(&self, py: Python<'_>, nbytes: u64) -> PyResult<()> {
        self.with(py, |channel| {
            self.check_lent(nbytes)?;
            channel.resize(WORKER, nbytes)
        })
    }

    /// Ends this instance's access to the component.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |channel| {
            self.check_lent(0)?;
            channel.release(WORKER, self.run.instance(WORKER))
        })
    }

    /// Grows the component to `nbytes` bytes if it is shorter.
    fn grow(&self, py: Python<'_>, nbytes: u64) -> PyResult<()> {
        self.with(py, |channel| channel.grow(nbytes))
    }

    /// Publishes this instance's writes to the other readers, and makes the writes that others synced visible here.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Channel::sync)
    }

    /// Requests bytes from other machines that will be read soon.
    fn prefetch(&self, py: Python<'_>, offset: u64, nbytes: u64) -> PyResult<()> {
        self.with(py, |channel| {
            channel.prefetch(offset, nbytes);
            Ok(())
        })
    }

    /// Returns a view of bytes of the component, without a copy.
    fn mapped(&self, py: Python<'_>, offset: u64, nbytes: u64) -> PyResult<PyPiece> {
        let ThreadAddress(at) = self.with(py, |channel| channel.mapped(offset, nbytes).map(ThreadAddress))?;
        let place = LentArray {
            run: Arc::as_ptr(&self.run).addr(),
            channel: self.number,
            end: if nbytes == 0 { 0 } else { offset + nbytes },
        };
        let mut all = lent();
        let number = all.last_key_value().map_or(0, |(last, _)| last + 1);
        all.insert(number, place);
        drop(all);
        let run = self.run.clone();
        Ok(PyPiece { at, len_bytes: nbytes, is_writable: self.is_writable(), _run: run, lent: number })
    }
}

#[pymethods]
impl PyChannelReading {
    /// Waits for the bytes and returns them. A second call fails.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let reading = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let waited = py.detach(|| match reading {
            Some(reading) => reading.wait(),
            None => Err(Error::new(Code::InvalidArgument, "these bytes were taken already")),
        });
        Ok(PyBytes::new(py, &waited.map_err(|error| raised(py, &error))?))
    }
}

#[pymethods]
impl PyPiece {
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

/// An address that is passed between threads, and not used by them.
struct ThreadAddress(NonNull<u8>);

// SAFETY: the address is only passed on, and never dereferenced through this type.
unsafe impl Send for ThreadAddress {}

/// Returns the exception of an error: a class of the Python package `sublet`.
#[cold]
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let made = py.import("sublet._errors").and_then(|module| {
        module.getattr("of")?.call1((error.code.to_string(), error.code.number(), error.message.as_str()))
    });
    made.map_or_else(|_| PyRuntimeError::new_err(error.message.clone()), PyErr::from_value)
}
