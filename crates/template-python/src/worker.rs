//! A worker whose functions are Python's: the [`Engine`] of the interpreter that has loaded this.
//!
//! Functions that a package names get and return bytes, from callers of any language. Python callers call one more
//! function, [`CALL`]: its input and output are messages of [`frames`], which [`SOURCE`] interprets. The first piece of
//! a message is a pickle; the others are the memory of the pickled objects, which functions use in place.
//!
//! The worker is the interpreter's main thread, and holds the interpreter's lock only while it executes a function:
//! threads that a function has started run in between.

use std::ffi::CStr;
use std::ptr::NonNull;

use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyModule;
use sublet_proto::package::python::CALL;
use sublet_proto::{Code, Error};
use sublet_python_buffers::{BufferUse, BufferView, Exporter};
use sublet_runtime::frames::{self, FETCH, FREES, IN_USE, Piece, Source};
use sublet_runtime::worker::engine::{
    CallInput, CallOutput, Engine, EngineLoad, ErrorMessage, FunctionCaller,
};
use sublet_runtime::worker::program;
use sublet_runtime::worker::spawned::SpawnedProgram;
use sublet_runtime::worker::worker_run;

use crate::call_memory::{self, CallMemory};
use crate::component;
use crate::kept_replies::{KeptReplies, KeptReply};
use crate::objects::{Draft, ObjectRequest};
use crate::output_space::OutputSpace;
use crate::shared::bytes_of;
use crate::xpu;

/// Prepares and executes functions.
const SOURCE: &CStr = pyo3::ffi::c_str!(include_str!("worker.py"));
/// The name of that module.
const MODULE: &CStr = c"sublet_worker";
/// Sends classes of the caller back as references.
const CLASSES: &CStr = pyo3::ffi::c_str!(include_str!("classes.py"));
/// The name of that module, which the first imports.
const CLASSES_MODULE: &CStr = c"sublet_classes";
/// Sets constants of the caller's modules.
const CONSTANTS: &CStr = pyo3::ffi::c_str!(include_str!("constants.py"));
/// The name of that module, which the first imports.
const CONSTANTS_MODULE: &CStr = c"sublet_constants";
/// Describes exceptions.
const EXCEPTIONS: &CStr = pyo3::ffi::c_str!(include_str!("exceptions.py"));
/// The name of that module, which the first imports.
const EXCEPTIONS_MODULE: &CStr = c"sublet_exceptions";
/// Makes failure reports.
const FAILURES: &CStr = pyo3::ffi::c_str!(include_str!("failures.py"));
/// The name of that module, which the first imports.
const FAILURES_MODULE: &CStr = c"sublet_failures";
/// Knows which modules the caller could not send.
const LEFT_OUT: &CStr = pyo3::ffi::c_str!(include_str!("left_out.py"));
/// The name of that module, which the first imports.
const LEFT_OUT_MODULE: &CStr = c"sublet_left_out";

/// Works until the client is gone, which is the end of the process.
#[pyfunction]
pub(crate) fn work(py: Python<'_>) -> PyResult<()> {
    xpu::watch_forks(py)?;
    let status = py.detach(|| program::run(PackageInterpreter::load, execute));
    Err(pyo3::exceptions::PySystemExit::new_err(status))
}

/// Runs a file of the package as a program, in this copy of a warm interpreter.
fn execute(spawned: &SpawnedProgram) -> Result<u8, Error> {
    Python::attach(|py| {
        let executed = load_module(py).and_then(|module| {
            let SpawnedProgram { folder, path, args, env } = spawned;
            module.getattr("execute")?.call1((folder, path, args, env))?.extract()
        });
        executed.map_err(|error| Error::new(Code::FunctionFailed, told(py, &error)))
    })
}

/// Loads what prepares and executes functions.
fn load_module(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    PyModule::from_code(py, CLASSES, CLASSES_MODULE, CLASSES_MODULE)?;
    PyModule::from_code(py, CONSTANTS, CONSTANTS_MODULE, CONSTANTS_MODULE)?;
    PyModule::from_code(py, EXCEPTIONS, EXCEPTIONS_MODULE, EXCEPTIONS_MODULE)?;
    PyModule::from_code(py, FAILURES, FAILURES_MODULE, FAILURES_MODULE)?;
    PyModule::from_code(py, LEFT_OUT, LEFT_OUT_MODULE, LEFT_OUT_MODULE)?;
    PyModule::from_code(py, SOURCE, MODULE, MODULE)
}

/// The interpreter, with a package's functions.
struct PackageInterpreter {
    /// Executes a request of a Python caller.
    serve: Py<PyAny>,
    /// Reports why a function failed that exchanges bytes.
    report: Py<PyAny>,
    /// The function at each index, except the last index, which is [`CALL`].
    functions: Vec<Py<PyAny>>,
}

impl PackageInterpreter {
    fn load(load: &EngineLoad<'_>) -> Result<PackageInterpreter, Error> {
        Python::attach(|py| {
            let prepared = PackageInterpreter::prepare(py, load);
            prepared.map_err(|error| {
                let message = format!("{}: {}", load.package.name, told(py, &error));
                Error::new(Code::InvalidPackage, message)
            })
        })
    }

    fn prepare(py: Python<'_>, load: &EngineLoad<'_>) -> PyResult<PackageInterpreter> {
        let build = load.package.build(load.build).map_err(|error| PyRuntimeError::new_err(error.message))?;
        let module = load_module(py)?;
        let names = load.package.functions.iter().map(|function| &function.name);
        let offered: Vec<_> = names.zip(&build.symbols).filter(|(name, _)| *name != CALL).collect();
        let variables = load.variables.iter().map(|one| (one.name.as_str(), one.value.as_str()));
        let variables: Vec<_> = variables.collect();
        let found = module.getattr("prepare")?.call1((
            load.folder,
            load.folder.join(&build.library),
            offered,
            &build.imports,
            variables,
        ))?;
        let functions =
            found.try_iter()?.map(|function| function.map(Bound::unbind)).collect::<PyResult<_>>()?;
        let (serve, report) = (module.getattr("serve")?.unbind(), module.getattr("report")?.unbind());
        Ok(PackageInterpreter { serve, report, functions })
    }
}

impl Engine for PackageInterpreter {
    const ON_MAIN_THREAD: bool = true;
    type Caller<'engine> = PythonCaller<'engine>;

    fn caller(&self, _worker: u32) -> Result<PythonCaller<'_>, Error> {
        let (kept, message) = (KeptReplies::default(), ErrorMessage::new());
        Ok(PythonCaller { interpreter: self, kept, message, reported_bytes: 0 })
    }
}

/// The state with which the worker thread calls functions.
struct PythonCaller<'engine> {
    interpreter: &'engine PackageInterpreter,
    kept: KeptReplies,
    message: ErrorMessage,
    /// How much of its output the latest call has used to report its failure, in bytes.
    reported_bytes: u32,
}

impl FunctionCaller for PythonCaller<'_> {
    fn call(&mut self, function: u16, input: CallInput<'_>, output: CallOutput<'_>) -> Result<u32, Code> {
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

    fn reported_bytes(&self) -> u32 {
        self.reported_bytes
    }
}

impl PythonCaller<'_> {
    /// A function of the package, for callers of any language: `f(memoryview) -> bytes`.
    fn call_with_bytes(
        &mut self,
        py: Python<'_>,
        function: &Py<PyAny>,
        input: CallInput<'_>,
        mut output: CallOutput<'_>,
    ) -> Result<u32, Code> {
        self.reported_bytes = 0;
        let called = (|| {
            let exporter = Exporter::new(py)?;
            // SAFETY: a call's memory stays mapped for as long as the process lives; what it holds may change.
            let input = unsafe {
                exporter.memoryview(py, input.address(), u64::from(input.len()), BufferUse::Reading)?
            };
            let returned = function.bind(py).call1((&input,)).inspect_err(|_| drop(release(&input)))?;
            let len = if returned.is_none() {
                0
            } else {
                let bytes = BufferView::of(&returned, BufferUse::Reading)?;
                let len = u32::try_from(bytes.len_bytes())?;
                if len <= output.capacity() {
                    output.copy_from(bytes_of(&bytes));
                }
                len
            };
            drop(returned);
            take_back(&exporter, input)?;
            Ok(len)
        })();
        let len = called.map_err(|error: PyErr| {
            self.reported_bytes = self.report(py, &error, &mut output);
            self.failed(py, &error)
        })?;
        component::settle(py).map_err(|error| {
            self.message = ErrorMessage::of(error.message.as_bytes());
            error.code
        })?;
        Ok(len)
    }

    /// Writes the printed output and the traceback to the lease's log. For a component of a graph, also writes the
    /// failure report into the output, and returns the report's length in bytes.
    #[cold]
    fn report(&self, py: Python<'_>, error: &PyErr, output: &mut CallOutput<'_>) -> u32 {
        let capacity = worker_run::current().map_or(0, |_| output.capacity());
        let value = error.value(py);
        // Python sets this only where Python code catches it.
        let _ = value.setattr("__traceback__", error.traceback(py));
        let reported = self.interpreter.report.bind(py).call1((value, capacity));
        let Some(report) = reported.ok().and_then(|report| report.extract::<Vec<u8>>().ok()) else {
            return 0;
        };
        let Some(len) = u32::try_from(report.len()).ok().filter(|len| *len <= capacity) else { return 0 };
        output.copy_from(&report);
        len
    }

    /// Whatever a Python caller asks for.
    fn call_with_objects(
        &mut self,
        py: Python<'_>,
        input: CallInput<'_>,
        mut output: CallOutput<'_>,
    ) -> Result<u32, Code> {
        self.reported_bytes = 0;
        let request = ObjectRequest::of(&input)?;
        if request.head.operation == FETCH {
            let reply = self.kept.take(request.head.token).ok_or(Code::InvalidArgument)?;
            let limit = u64::from(output.capacity());
            return Ok(self.answer(py, (reply, false), None, (&mut output, limit)));
        }
        CallMemory::begin(request.head.token);
        OutputSpace::open(&mut output);
        let replied = self.reply(py, &request);
        let (output_space, lending) = (OutputSpace::close(), CallMemory::end().ok_or(Code::Internal)?);
        let settled = replied.and_then(|draft| draft.placed(py, output_space)?.parted(py, &lending));
        match settled {
            Ok(reply) => {
                // The message stays below the reserved part of the output if that part is still in use.
                let output_space =
                    output_space.filter(|_| reply.1).map(|output_space| output_space.front_bytes());
                let limit = output_space.unwrap_or_else(|| u64::from(output.capacity()));
                Ok(self.answer(py, reply, Some(lending), (&mut output, limit)))
            }
            Err(error) => {
                let code = self.failed(py, &error);
                lending.report_when_free(py);
                Err(code)
            }
        }
    }

    fn reply(&self, py: Python<'_>, request: &ObjectRequest) -> PyResult<Draft> {
        let asked = (request.head.operation, request.objects(py)?);
        let replied = self.interpreter.serve.bind(py).call1(asked)?;
        let (operation, parts): (u32, Vec<Bound<'_, PyAny>>) = replied.extract()?;
        Draft::of((operation, &parts), request)
    }

    /// Writes a reply, or keeps it for a client that comes back with a larger output.
    fn answer(
        &mut self,
        py: Python<'_>,
        (mut reply, is_in_use): (KeptReply, bool),
        lending: Option<CallMemory>,
        (output, limit): (&mut CallOutput<'_>, u64),
    ) -> u32 {
        if frames::len_bytes(&reply.pieces) > limit {
            return self.keep_for_later(py, reply, lending, output);
        }
        reply.head.token = call_memory::process();
        if let Some(lending) = lending.filter(|_| is_in_use) {
            lending.report_when_free(py);
            reply.head.operation |= IN_USE;
        }
        let freed = call_memory::take_freed();
        if let Some(freed) = &freed {
            let source = Source::Here(NonNull::from(&freed[..]).cast());
            reply.pieces.push(Piece { source, len_bytes: freed.len() as u64, read_only: true });
            reply.head.operation |= FREES;
            let is_too_large = reply.pieces.len() > frames::MAX_PIECES
                || frames::copied_bytes(&reply.pieces) > limit
                || frames::len_bytes(&reply.pieces) > limit;
            if is_too_large {
                call_memory::put_back(freed);
                reply.pieces.pop();
                reply.head.operation &= !FREES;
            }
        }
        let len = frames::len_bytes(&reply.pieces);
        debug_assert!(len <= limit, "a reply of {len} bytes is written into {limit}");
        // SAFETY: the reply fits into the output, and the pieces are alive: they are the reply's, or lie in `freed`.
        unsafe { frames::write(reply.head, &reply.pieces, output.address()) };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "at most the limit, which the capacity bounds: 32 bits"
        )]
        let len = len as u32;
        len
    }

    #[cold]
    fn keep_for_later(
        &mut self,
        py: Python<'_>,
        reply: KeptReply,
        lending: Option<CallMemory>,
        output: &CallOutput<'_>,
    ) -> u32 {
        if let Some(lending) = lending {
            lending.report_when_free(py);
        }
        // One that is larger than any output can be is asked for in vain, and says so.
        let len = frames::len_bytes(&reply.pieces).max(u64::from(output.capacity()) + 1);
        self.kept.keep(reply);
        u32::try_from(len).unwrap_or(u32::MAX)
    }

    fn failed(&mut self, py: Python<'_>, error: &PyErr) -> Code {
        self.message = ErrorMessage::of(told(py, error).as_bytes());
        if error.is_instance_of::<PyMemoryError>(py) { Code::MemoryExceeded } else { Code::FunctionFailed }
    }
}

/// Makes a memoryview raise an exception whenever it is used from now on.
fn release(input: &Bound<'_, PyAny>) -> PyResult<()> {
    input.call_method0("release").map(drop)
}

/// Ends the use of an input, which is the client's again after the call.
fn take_back(exporter: &Exporter, input: Bound<'_, PyAny>) -> PyResult<()> {
    let py = input.py();
    // Fails if arrays use the same memory, which are looked for next.
    let _ = release(&input);
    drop(input);
    if !exporter.is_in_use(py) {
        return Ok(());
    }
    // The object that uses the input may be garbage that waits to be collected.
    py.import("gc")?.call_method0("collect")?;
    if exporter.is_in_use(py) {
        let message = "it still uses its input, which lasts only for the call: keep a copy, as bytes(input)";
        return Err(PyRuntimeError::new_err(message));
    }
    Ok(())
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
