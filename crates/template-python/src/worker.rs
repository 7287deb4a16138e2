//! A worker whose functions are Python's: the [`Engine`] of the interpreter that has loaded this.
//!
//! Functions that a package names get and return bytes, from callers of any language. What Python callers call is one more,
//! [`CALL`]: its input and output are messages of [`frames`], which [`SOURCE`] makes sense of. Their first piece is a pickle, and
//! the others are the memory of what was pickled, which functions use where it is.
//!
//! The worker is the interpreter's main thread, and has its lock only while it executes a function: what that has started goes
//! on in between.

use std::ffi::CStr;
use std::ptr::NonNull;

use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyList, PyModule};
use sublet_proto::package::python::CALL;
use sublet_proto::{Code, Error};
use sublet_python_buffers::{Use, View, memoryview};
use sublet_runtime::frames::{self, At, FETCH, Head, Piece, Place, SHARES_MEMORY, Shared, Source};
use sublet_runtime::worker::engine::{Caller, Engine, Input, Load, Message, Output};
use sublet_runtime::worker::program;
use sublet_runtime::worker::spawned::Spawned;

use crate::component;
use crate::keeping::{Keeping, Reply};
use crate::room::Room;
use crate::xpu;

/// Prepares and executes functions.
const SOURCE: &CStr = pyo3::ffi::c_str!(include_str!("worker.py"));
/// The name of that module.
const MODULE: &CStr = c"sublet_worker";
/// Describes exceptions.
const EXCEPTIONS: &CStr = pyo3::ffi::c_str!(include_str!("exceptions.py"));
/// The name of that module, which the first imports.
const EXCEPTIONS_MODULE: &CStr = c"sublet_exceptions";
/// Knows which modules the caller could not send.
const LEFT_OUT: &CStr = pyo3::ffi::c_str!(include_str!("left_out.py"));
/// The name of that module, which the first imports.
const LEFT_OUT_MODULE: &CStr = c"sublet_left_out";

/// Works until the client is gone, which is the end of the process.
#[pyfunction]
pub(crate) fn work(py: Python<'_>) -> PyResult<()> {
    xpu::watch_forks(py)?;
    let status = py.detach(|| program::run(Interpreter::load, execute));
    Err(pyo3::exceptions::PySystemExit::new_err(status))
}

/// Runs a file of the package as a program, in this copy of a warm interpreter.
fn execute(spawned: &Spawned) -> Result<u8, Error> {
    Python::attach(|py| {
        let executed = load_module(py).and_then(|module| {
            let Spawned { folder, path, args, env } = spawned;
            module.getattr("execute")?.call1((folder, path, args, env))?.extract()
        });
        executed.map_err(|error| Error::new(Code::FunctionFailed, told(py, &error)))
    })
}

/// Loads what prepares and executes functions.
fn load_module(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    PyModule::from_code(py, EXCEPTIONS, EXCEPTIONS_MODULE, EXCEPTIONS_MODULE)?;
    PyModule::from_code(py, LEFT_OUT, LEFT_OUT_MODULE, LEFT_OUT_MODULE)?;
    PyModule::from_code(py, SOURCE, MODULE, MODULE)
}

/// The interpreter, with a package's functions.
struct Interpreter {
    /// Executes a request of a Python caller.
    serve: Py<PyAny>,
    /// Of each index the function, but of the last, which is [`CALL`].
    functions: Vec<Py<PyAny>>,
}

impl Interpreter {
    fn load(load: &Load<'_>) -> Result<Interpreter, Error> {
        Python::attach(|py| {
            let prepared = Interpreter::prepare(py, load);
            prepared.map_err(|error| {
                let message = format!("{}: {}", load.package.name, told(py, &error));
                Error::new(Code::InvalidPackage, message)
            })
        })
    }

    fn prepare(py: Python<'_>, load: &Load<'_>) -> PyResult<Interpreter> {
        let build = load.package.build(load.build).map_err(|error| PyRuntimeError::new_err(error.message))?;
        let module = load_module(py)?;
        let names = load.package.functions.iter().map(|function| &function.name);
        let offered: Vec<_> = names.zip(&build.symbols).filter(|(name, _)| *name != CALL).collect();
        let found = module.getattr("prepare")?.call1((
            load.folder,
            load.folder.join(&build.library),
            offered,
            &build.imports,
        ))?;
        let functions =
            found.try_iter()?.map(|function| function.map(Bound::unbind)).collect::<PyResult<_>>()?;
        Ok(Interpreter { serve: module.getattr("serve")?.unbind(), functions })
    }
}

impl Engine for Interpreter {
    const ON_MAIN_THREAD: bool = true;
    type Caller<'engine> = PythonCaller<'engine>;

    fn caller(&self, _worker: u32) -> Result<PythonCaller<'_>, Error> {
        Ok(PythonCaller { interpreter: self, kept: Keeping::default(), message: Message::new() })
    }
}

/// What the worker thread calls functions with.
struct PythonCaller<'engine> {
    interpreter: &'engine Interpreter,
    kept: Keeping,
    message: Message,
}

impl Caller for PythonCaller<'_> {
    fn call(&mut self, function: u16, input: Input<'_>, output: Output<'_>) -> Result<u32, Code> {
        let functions = &self.interpreter.functions;
        Python::attach(|py| match functions.get(usize::from(function)) {
            Some(function) => self.call_with_bytes(py, function, input, output),
            None if usize::from(function) == functions.len() => self.call_with_objects(py, input, output),
            None => Err(Code::UnknownFunction),
        })
    }

    fn message(&self) -> &[u8] {
        self.message.as_bytes()
    }
}

impl PythonCaller<'_> {
    /// A function of the package, for callers of any language: `f(memoryview) -> bytes`.
    fn call_with_bytes(
        &mut self,
        py: Python<'_>,
        function: &Py<PyAny>,
        input: Input<'_>,
        mut output: Output<'_>,
    ) -> Result<u32, Code> {
        let called = (|| {
            // SAFETY: a call's memory stays mapped for as long as the process lives; what it holds may change.
            let input = unsafe { memoryview(py, input.address(), u64::from(input.len()), Use::Reading)? };
            let returned = function.bind(py).call1((input,))?;
            if returned.is_none() {
                return Ok(0);
            }
            let bytes = View::of(&returned, Use::Reading)?;
            let len = u32::try_from(bytes.len_bytes())?;
            if len <= output.capacity() {
                // SAFETY: both have so many bytes, and a function that returns its own output's memory cannot have it.
                unsafe { std::ptr::copy(bytes.pointer().as_ptr(), output.address().as_ptr(), len as usize) };
            }
            Ok(len)
        })();
        let len = called.map_err(|error: PyErr| self.failed(py, &error))?;
        component::settle(py).map_err(|error| {
            self.message = Message::of(error.message.as_bytes());
            error.code
        })?;
        Ok(len)
    }

    /// Whatever a Python caller asks for.
    fn call_with_objects(
        &mut self,
        py: Python<'_>,
        input: Input<'_>,
        mut output: Output<'_>,
    ) -> Result<u32, Code> {
        Room::open(&mut output);
        let replied = self.reply(py, &input);
        let room = Room::close();
        let reply = match replied.and_then(|reply| reply.placed(py, room)) {
            Ok(reply) => reply,
            Err(Refusal::Request(code)) => return Err(code),
            Err(Refusal::Raised(error)) => return Err(self.failed(py, &error)),
        };
        let len = frames::len_bytes(&reply.pieces);
        if len <= u64::from(output.capacity()) {
            // SAFETY: there is room for it, and the pieces are alive: they are the reply's.
            unsafe { frames::write(reply.head, &reply.pieces, output.address().as_ptr()) };
            return Ok(len as u32);
        }
        self.kept.keep(reply);
        // One that is larger than any output can be is asked for in vain, and says so.
        Ok(u32::try_from(len).unwrap_or(u32::MAX))
    }

    fn reply(&mut self, py: Python<'_>, input: &Input<'_>) -> Result<Reply, Refusal> {
        let read = frames::read(u64::from(input.len()), |at, into| input.copy_from(at as u32, into));
        let (head, places) = read.map_err(|error| Refusal::Request(error.code))?;
        if head.operation == FETCH {
            return self.kept.take(head.token).ok_or(Refusal::Request(Code::InvalidArgument));
        }
        let request = places.iter().map(|place| find(input, place)).collect::<Option<Vec<_>>>();
        let request = request.ok_or(Refusal::Request(Code::InvalidArgument))?;
        let parts = PyList::empty(py);
        for stretch in &request {
            let how = if stretch.read_only { Use::Reading } else { Use::Writing };
            // SAFETY: as for a function that gets bytes.
            parts.append(unsafe { memoryview(py, stretch.at, stretch.len_bytes, how)? })?;
        }
        let (asked, shares_memory) = (head.operation & !SHARES_MEMORY, head.operation & SHARES_MEMORY != 0);
        let replied = self.interpreter.serve.bind(py).call1((asked, parts))?;
        let (operation, parts): (u32, Vec<Bound<'_, PyAny>>) = replied.extract()?;
        let views = parts.iter().map(|part| View::of(part, Use::Reading)).collect::<PyResult<Vec<_>>>()?;
        // Over a network the request's memory here is a copy: what a function changed there is not the client's.
        let returnable = if shares_memory { &request[..] } else { &[] };
        let pieces = views.iter().map(|view| piece(view, returnable)).collect();
        Ok(Reply { head: Head { operation, token: head.token }, pieces, views })
    }

    fn failed(&mut self, py: Python<'_>, error: &PyErr) -> Code {
        self.message = Message::of(told(py, error).as_bytes());
        if error.is_instance_of::<PyMemoryError>(py) { Code::MemoryExceeded } else { Code::FunctionFailed }
    }
}

impl Reply {
    /// What a function made in the output stays where it is, if the rest of the reply fits before it. Else it is taken out of the way.
    fn placed(mut self, py: Python<'_>, room: Option<Room>) -> Result<Reply, Refusal> {
        let Some(room) = room else { return Ok(self) };
        let mut own = Vec::new();
        for (number, piece) in self.pieces.iter_mut().enumerate() {
            let offset =
                self.views.get(number).and_then(|view| room.offset_of(view.pointer(), piece.len_bytes));
            if let (Some(offset), Source::Here(_)) = (offset, piece.source) {
                piece.source = Source::Placed(offset);
                own.push(number);
            }
        }
        if own.is_empty() || frames::copied_bytes(&self.pieces) <= room.front_bytes() {
            return Ok(self);
        }
        for number in own {
            let view = &self.views[number];
            // SAFETY: so many bytes of the output, which are copied at once.
            let bytes =
                unsafe { std::slice::from_raw_parts(view.pointer().as_ptr(), view.len_bytes() as usize) };
            let copy = View::of(PyByteArray::new(py, bytes).as_any(), Use::Writing)?;
            self.pieces[number].source = Source::Here(copy.pointer().as_ptr());
            self.views[number] = copy;
        }
        Ok(self)
    }
}

/// Why a request has no reply.
enum Refusal {
    Request(Code),
    Raised(PyErr),
}

impl From<PyErr> for Refusal {
    fn from(error: PyErr) -> Refusal {
        Refusal::Raised(error)
    }
}

/// A piece of a request, in this process.
struct Stretch {
    at: NonNull<u8>,
    len_bytes: u64,
    read_only: bool,
}

fn find(input: &Input<'_>, place: &Place) -> Option<Stretch> {
    let Place { at, len_bytes, read_only } = *place;
    let at = match at {
        // SAFETY: `read` has found that all of it is in the message.
        At::Message(offset) => unsafe { input.address().add(offset as usize) },
        At::Shared(shared) => input.reach(shared, len_bytes)?,
    };
    Some(Stretch { at, len_bytes, read_only })
}

/// What is returned of the request's own memory is not copied.
fn piece(view: &View, request: &[Stretch]) -> Piece {
    let (at, len_bytes) = (view.pointer(), view.len_bytes());
    let within = |stretch: &Stretch| {
        let offset = (at.as_ptr() as u64).checked_sub(stretch.at.as_ptr() as u64)?;
        (len_bytes > 0 && offset.checked_add(len_bytes)? <= stretch.len_bytes).then_some(offset)
    };
    let shared =
        (1..).zip(request).find_map(|(number, stretch)| Some(Shared { number, offset: within(stretch)? }));
    let source = shared.map_or(Source::Here(at.as_ptr()), Source::Shared);
    Piece { source, len_bytes, read_only: view.is_read_only() }
}

/// An exception in one line, with its notes.
fn told(py: Python<'_>, error: &PyErr) -> String {
    let value = error.value(py);
    let kind = error.get_type(py).name().map_or_else(|_| "exception".to_owned(), |name| name.to_string());
    let said = match value.str().map(|text| text.to_string()) {
        Ok(text) if !text.is_empty() => format!("{kind}: {text}"),
        _ => kind,
    };
    let notes = value.getattr("__notes__").and_then(|notes| notes.extract::<Vec<String>>());
    notes.unwrap_or_default().iter().fold(said, |said, note| format!("{said} ({note})"))
}
