//! The XPU interface for functions in Python: this worker process as a global process.
//!
//! `sublet/xpu.py` is the functions' interface to this module.
//!
//! Invariants:
//! - A waiting thread holds neither the interpreter's lock nor an end's own, and checks every 50 ms whether it was
//!   interrupted.
//! - One thread uses an end at a time; another thread waits for the end until its own deadline. If the end is closed
//!   meanwhile, the thread that uses the end releases it.
//! - A process that was forked from this one uses none of these objects, and releases none.

mod forks;
mod open_end;

use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sublet_proto::{Code, Error, to_usize};
use sublet_python_buffers::{BufferUse, BufferView};
use sublet_xpu::{FifoRights, FifoShape, GlobalId, Process, SharedBytes, SharedBytesMut, Spawn, Unread};

use crate::component::{deadline, raised};
use crate::shared::{bytes_of, bytes_of_mut};
use forks::check_not_forked;
use open_end::{OpenEnd, TakenEnd, wait};

pub(crate) use forks::watch_forks;

/// Longest message that is read into this library's memory first, in bytes: its size is not known before.
const SHORT_BYTES: usize = 4096;

/// The words for an end of a FIFO in messages.
const END: &str = "this end of FIFO";

/// The reading end of a FIFO.
#[pyclass(name = "Reader", frozen, module = "sublet_template")]
pub(crate) struct PyReader(OpenEnd<sublet_xpu::Reader>);

/// The writing end of a FIFO.
#[pyclass(name = "Writer", frozen, module = "sublet_template")]
pub(crate) struct PyWriter(OpenEnd<sublet_xpu::Writer>);

/// Functions of the package on another processor.
#[pyclass(name = "Executor", frozen, module = "sublet_template")]
pub(crate) struct PyExecutor(OpenEnd<sublet_xpu::Executor>);

/// Functions that a graph connects.
#[pyclass(name = "Chain", frozen, module = "sublet_template")]
pub(crate) struct PyChain(OpenEnd<sublet_xpu::Chain>);

/// Result of reading a message.
enum Read {
    Message {
        len_bytes: usize,
        writer: GlobalId,
    },
    /// The message's length in bytes, which the reader's memory is too short for.
    TooLong(u64),
}

/// Adds the functions and types of this module to `sublet_template`.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let xpu = PyModule::new(module.py(), "sublet_template.xpu")?;
    xpu.add_function(wrap_pyfunction!(pid, &xpu)?)?;
    xpu.add_function(wrap_pyfunction!(grant, &xpu)?)?;
    xpu.add_function(wrap_pyfunction!(revoke, &xpu)?)?;
    xpu.add_function(wrap_pyfunction!(rights, &xpu)?)?;
    xpu.add_function(wrap_pyfunction!(fifo, &xpu)?)?;
    xpu.add_function(wrap_pyfunction!(connect, &xpu)?)?;
    xpu.add_function(wrap_pyfunction!(connect_to, &xpu)?)?;
    xpu.add_function(wrap_pyfunction!(connect_to_read, &xpu)?)?;
    xpu.add_function(wrap_pyfunction!(spawn, &xpu)?)?;
    xpu.add_function(wrap_pyfunction!(executor, &xpu)?)?;
    xpu.add_function(wrap_pyfunction!(chain, &xpu)?)?;
    xpu.add_function(wrap_pyfunction!(unit, &xpu)?)?;
    xpu.add_function(wrap_pyfunction!(find, &xpu)?)?;
    xpu.add_function(wrap_pyfunction!(device, &xpu)?)?;
    module.add("xpu", xpu)
}

/// Returns this process as a global process. Fails if it was forked from a worker.
fn process() -> Result<&'static Process, Error> {
    check_not_forked()?;
    sublet_xpu::process()
}

/// Calls the shim for an operation that does not wait.
fn call<T: Send>(py: Python<'_>, what: impl FnOnce(&Process) -> Result<T, Error> + Send) -> PyResult<T> {
    py.detach(|| what(process()?)).map_err(|error| raised(py, &error))
}

/// Returns the [`deadline`] of a timeout, or the exception that Python raises for a timeout that is not valid.
fn until(py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Instant>> {
    deadline(timeout).map_err(|error| raised(py, &error))
}

/// The global id of this process.
#[pyfunction]
fn pid(py: Python<'_>) -> PyResult<u64> {
    call(py, |process| Ok(process.pid().to_bits()))
}

#[pyfunction]
fn grant(py: Python<'_>, to: u64, object: u64, rights: u32) -> PyResult<()> {
    let (to, object) = (GlobalId::from_bits(to), GlobalId::from_bits(object));
    call(py, |process| process.grant(to, object, FifoRights::from_bits(rights)?))
}

#[pyfunction]
fn revoke(py: Python<'_>, from: u64, object: u64, rights: u32) -> PyResult<()> {
    let (from, object) = (GlobalId::from_bits(from), GlobalId::from_bits(object));
    call(py, |process| process.revoke(from, object, FifoRights::from_bits(rights)?))
}

/// Returns the rights of this process on a FIFO.
#[pyfunction]
fn rights(py: Python<'_>, object: u64) -> PyResult<u32> {
    call(py, |process| process.rights(GlobalId::from_bits(object)).map(FifoRights::to_bits))
}

/// Makes a FIFO.
#[pyfunction]
fn fifo(py: Python<'_>, name: &str, slots: u32, slot_bytes: u32) -> PyResult<PyReader> {
    call(py, |process| process.init(name, FifoShape { lines: slots, slot_bytes })).map(PyReader::of)
}

/// Connects to a FIFO by its name, to write.
#[pyfunction]
fn connect(py: Python<'_>, name: &str, timeout: Option<f64>) -> PyResult<PyWriter> {
    wait(py, until(py, timeout)?, |tick| process()?.connect(name, tick)).map(PyWriter::of)
}

/// Connects to a FIFO by its id, to write.
#[pyfunction]
fn connect_to(py: Python<'_>, object: u64, timeout: Option<f64>) -> PyResult<PyWriter> {
    let object = GlobalId::from_bits(object);
    wait(py, until(py, timeout)?, |tick| process()?.connect_to(object, tick)).map(PyWriter::of)
}

/// Connects to a FIFO that has no reader, to read.
#[pyfunction]
fn connect_to_read(py: Python<'_>, name: &str, timeout: Option<f64>) -> PyResult<PyReader> {
    wait(py, until(py, timeout)?, |tick| process()?.connect_to_read(name, tick)).map(PyReader::of)
}

/// Starts a program of the package on a processor.
#[pyfunction]
fn spawn(
    py: Python<'_>,
    unit: u32,
    path: String,
    args: Vec<Vec<u8>>,
    env: Vec<Vec<u8>>,
    capabilities: Vec<(u64, u32)>,
) -> PyResult<u64> {
    let capability = |(object, rights)| Ok((GlobalId::from_bits(object), FifoRights::from_bits(rights)?));
    call(py, move |process| {
        let capabilities = capabilities.into_iter().map(capability).collect::<Result<_, Error>>()?;
        process
            .spawn(unit, &Spawn { path, args, env, capabilities, ..Spawn::default() })
            .map(GlobalId::to_bits)
    })
}

/// Starts an executor on a processor.
#[pyfunction]
fn executor(
    py: Python<'_>,
    unit: u32,
    max_bytes: u64,
    timeout: Option<f64>,
    package: &str,
) -> PyResult<PyExecutor> {
    let until = until(py, timeout)?;
    let started = call(py, |process| process.executor_of(package, unit, max_bytes, until))?;
    Ok(PyExecutor(OpenEnd::new("executor", started.pid(), started)))
}

/// Starts the executors of a graph's components.
#[pyfunction]
fn chain(py: Python<'_>, graph: &str, max_bytes: u64, timeout: Option<f64>) -> PyResult<PyChain> {
    let until = until(py, timeout)?;
    let started = call(py, |process| process.chain(graph.as_bytes(), max_bytes, until))?;
    let entry = started.pids().next().unwrap_or(GlobalId::from_bits(0));
    Ok(PyChain(OpenEnd::new("chain", entry, started)))
}

/// A unit of a kind.
#[pyfunction]
fn find(py: Python<'_>, kind: &str) -> PyResult<u32> {
    call(py, |process| process.find(kind))
}

/// The processor of a number.
#[pyfunction]
fn unit(py: Python<'_>, number: u32) -> PyResult<u32> {
    call(py, |process| process.unit(number))
}

/// The device of a processor.
#[pyfunction]
fn device(py: Python<'_>, processor: u32, name: &str) -> PyResult<u32> {
    call(py, |process| process.device(processor, name))
}

impl PyReader {
    fn of(made: sublet_xpu::Reader) -> PyReader {
        PyReader(OpenEnd::new(END, made.object(), made))
    }
}

impl PyWriter {
    fn of(made: sublet_xpu::Writer) -> PyWriter {
        PyWriter(OpenEnd::new(END, made.object(), made))
    }
}

impl TakenEnd<'_, sublet_xpu::Executor> {
    fn send(
        &mut self,
        py: Python<'_>,
        until: Option<Instant>,
        input: &Bound<'_, PyAny>,
        mut how: impl FnMut(&mut sublet_xpu::Executor, SharedBytes<'_>, Option<Instant>) -> Result<(), Error>
        + Send,
    ) -> PyResult<()> {
        let view = BufferView::of(input, BufferUse::Reading)?;
        let bytes = bytes_of(&view);
        self.wait(py, until, |executor, tick| how(executor, bytes, tick))
    }

    fn answer<'py>(&mut self, py: Python<'py>, until: Option<Instant>) -> PyResult<Bound<'py, PyBytes>> {
        self.wait(py, until, sublet_xpu::Executor::wait)?;
        let Some(executor) = &mut self.end else { return Err(raised(py, &self.from.closed())) };
        let answer = executor.result(until);
        answer.map(|output| PyBytes::new(py, output)).map_err(|error| raised(py, &error))
    }
}

impl TakenEnd<'_, sublet_xpu::Reader> {
    fn read<'output_space>(
        &mut self,
        py: Python<'_>,
        until: Option<Instant>,
        output_space: impl Into<SharedBytesMut<'output_space>>,
    ) -> PyResult<Read> {
        let mut output_space = output_space.into();
        self.wait(py, until, |reader, tick| match reader.read(output_space.reborrow(), tick) {
            Ok((len, writer)) => Ok(Read::Message { len_bytes: to_usize(len), writer }),
            Err(Unread::TooLong(len)) => Ok(Read::TooLong(len)),
            Err(Unread::Error(error)) => Err(error),
        })
    }
}

#[pymethods]
impl PyReader {
    /// The global id of the FIFO.
    #[getter]
    fn object(&self) -> u64 {
        self.0.object.to_bits()
    }

    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Reads the next message, and returns it with its writer.
    fn read<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<(Bound<'py, PyBytes>, u64)> {
        let until = until(py, timeout)?;
        let mut taken = self.0.take(py, until)?;
        let mut short = [0; SHORT_BYTES];
        let mut wanted = match taken.read(py, until, &mut short)? {
            Read::Message { len_bytes, writer } => {
                return Ok((PyBytes::new(py, &short[..len_bytes]), writer.to_bits()));
            }
            Read::TooLong(len) => len,
        };
        loop {
            let mut read = Read::TooLong(wanted);
            let bytes = PyBytes::new_with(py, to_usize(wanted), |output_space| {
                read = taken.read(py, until, output_space)?;
                Ok(())
            })?;
            match read {
                Read::Message { len_bytes, writer } if len_bytes as u64 == wanted => {
                    return Ok((bytes, writer.to_bits()));
                }
                // Another writer's message came first.
                Read::Message { len_bytes, writer } => {
                    return Ok((PyBytes::new(py, &bytes.as_bytes()[..len_bytes]), writer.to_bits()));
                }
                Read::TooLong(len) => wanted = len,
            }
        }
    }

    /// Reads the next message into an object's memory. Returns its length in bytes and its writer.
    fn read_into(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<(usize, u64)> {
        let until = until(py, timeout)?;
        let view = BufferView::of(buffer, BufferUse::Writing)?;
        let mut taken = self.0.take(py, until)?;
        match taken.read(py, until, bytes_of_mut(&view))? {
            Read::Message { len_bytes, writer } => Ok((len_bytes, writer.to_bits())),
            Read::TooLong(len) => {
                let message =
                    format!("the next message of {len} bytes does not fit into {}", view.len_bytes());
                Err(raised(py, &Error::new(Code::OutputTooLarge, message)))
            }
        }
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py)
    }
}

#[pymethods]
impl PyExecutor {
    /// The global id of the executor's process.
    #[getter]
    fn pid(&self) -> u64 {
        self.0.object.to_bits()
    }

    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Calls a function, and waits for its output.
    fn call<'py>(
        &self,
        py: Python<'py>,
        function: &str,
        input: &Bound<'py, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let until = until(py, timeout)?;
        let mut taken = self.0.take(py, until)?;
        taken.send(py, until, input, |executor, input, tick| executor.begin(function, input, tick))?;
        let answer = taken.answer(py, until);
        if let (Err(_), Some(executor)) = (&answer, &mut taken.end) {
            executor.give_up();
        }
        answer
    }

    /// Submits a call.
    fn submit(
        &self,
        py: Python<'_>,
        function: &str,
        input: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let until = until(py, timeout)?;
        let mut taken = self.0.take(py, until)?;
        taken.send(py, until, input, |executor, input, tick| executor.submit(function, input, tick))
    }

    /// Waits for the output of the oldest call that was submitted.
    fn result<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyBytes>> {
        let until = until(py, timeout)?;
        self.0.take(py, until)?.answer(py, until)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py)
    }
}

#[pymethods]
impl PyChain {
    /// The global ids of the processes that execute the chain.
    #[getter]
    fn pids(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        let mut taken = self.0.take(py, Some(Instant::now()))?;
        taken.wait(py, None, |chain, _| Ok(chain.pids().map(GlobalId::to_bits).collect()))
    }

    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Calls the chain, and waits for its output.
    fn call<'py>(
        &self,
        py: Python<'py>,
        input: &Bound<'py, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let until = until(py, timeout)?;
        let view = BufferView::of(input, BufferUse::Reading)?;
        let bytes = bytes_of(&view);
        let mut taken = self.0.take(py, until)?;
        let begun = taken.wait(py, None, |chain, _| {
            chain.begin(bytes);
            Ok(())
        });
        let called = begun.and_then(|()| taken.wait(py, until, sublet_xpu::Chain::wait));
        let Some(chain) = &mut taken.end else { return Err(raised(py, &self.0.closed())) };
        called.inspect_err(|_| chain.give_up())?;
        chain.result().map(|output| PyBytes::new(py, output)).map_err(|error| raised(py, &error))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py)
    }
}

#[pymethods]
impl PyWriter {
    /// The global id of the FIFO.
    #[getter]
    fn object(&self) -> u64 {
        self.0.object.to_bits()
    }

    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Writes an object's bytes as one message.
    fn write(&self, py: Python<'_>, message: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        let until = until(py, timeout)?;
        let view = BufferView::of(message, BufferUse::Reading)?;
        let bytes = bytes_of(&view);
        self.0.take(py, until)?.wait(py, until, |writer, tick| writer.write(bytes, tick))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py)
    }
}
