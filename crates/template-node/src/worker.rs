//! A worker whose functions are JavaScript's: the [`Engine`] of the Node.js that has loaded this.
//!
//! Functions get and return bytes, from callers of any language. A function may return a promise, and then the event
//! loop runs until the promise is settled. So JavaScript drives: it calls [`next`] for the next request, which it
//! executes. The loop of the worker, which waits for requests and calls an engine, runs as a coroutine on a stack of its
//! own: where it calls a function, it is suspended until JavaScript asks again. The coroutine never enters V8.
//!
//! Node.js has one thread for JavaScript, so a process has one worker.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use napi_sys::{napi_callback_info, napi_env, napi_value};
use sublet_proto::{Code, Error};
use sublet_runtime::frames::{SharedBytes, SharedBytesMut};
use sublet_runtime::worker::engine::{
    CallInput, CallOutput, Engine, EngineLoad, ErrorMessage, FunctionCaller,
};
use sublet_runtime::worker::program;
use sublet_runtime::worker::spawned::SpawnedProgram;

use crate::component;
use crate::values::{arguments, bytes_of, integer, number, text, text_of, throw};

/// Loads modules and executes functions, in JavaScript: the template compiles it before it is forked.
pub(crate) const SOURCE: &str = include_str!("worker.js");

/// Bytes of the coroutine's stack.
const STACK_BYTES: usize = 1 << 20;

/// Numbers by which [`next`] tells what is asked, below those of functions.
const LOAD: i32 = -1;
const EXECUTE: i32 = -2;
const END: i32 = -3;

const _: () = assert!(LOAD < 0 && EXECUTE < 0 && END < 0, "functions have the numbers from 0 on");

/// A request of the worker's loop.
enum Request {
    /// Load of the package, which is described as JSON.
    Load(String),
    /// Execution of a program in place of functions, which is described as JSON.
    Execute(String),
    /// Call of a function.
    Call(RequestedCall),
}

/// A call, whose memory stays mapped until it is answered. Its client can write to that memory at any time.
#[derive(Clone, Copy)]
struct RequestedCall {
    function: u16,
    input: NonNull<u8>,
    input_bytes: u32,
    output: NonNull<u8>,
    capacity: u32,
}

/// The number of bytes that a function has returned, or its error.
type Reply = Result<u32, Box<Failure>>;

/// The error of a function, or of what loads functions.
struct Failure {
    code: Code,
    message: ErrorMessage,
}

type WorkerLoop = Coroutine<Reply, Request, u8, DefaultStack>;
type Caller = Yielder<Reply, Request>;

thread_local! {
    /// The worker's loop: of Node.js's main thread.
    static LOOP: RefCell<Option<WorkerLoop>> = const { RefCell::new(None) };
    /// Suspends the loop; set while it lives.
    static CALLER: Cell<*const Caller> = const { Cell::new(ptr::null()) };
    /// Request of the loop, until it is answered.
    static REQUEST: RefCell<Option<Request>> = const { RefCell::new(None) };
    /// The answer.
    static REPLY: RefCell<Reply> = const { RefCell::new(Ok(0)) };
}

unsafe extern "C" {
    /// Function of the C library: like `atexit`, with the status.
    fn on_exit(function: unsafe extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Ends the process when a thread of the worker ends it. Node.js's own functions for that would run beside its main
/// thread, which is in a function or waits.
unsafe extern "C" fn leave(status: c_int, _: *mut c_void) {
    // SAFETY: ends the process, whatever its state.
    unsafe { libc::_exit(status) }
}

/// Makes the worker's loop, which begins when it is resumed.
fn begin() -> std::io::Result<WorkerLoop> {
    debug_assert!(CALLER.get().is_null(), "a loop of this thread is suspended at {:p}", CALLER.get());
    // SAFETY: the function ends the process, and uses no argument.
    unsafe { on_exit(leave, ptr::null_mut()) };
    let stack = DefaultStack::new(STACK_BYTES)?;
    Ok(Coroutine::with_stack(stack, |caller: &Caller, _: Reply| {
        CALLER.set(caller);
        program::run(NodePackage::load, execute)
    }))
}

/// Suspends the loop until JavaScript has done what it asks for.
fn ask(request: Request) -> Reply {
    // SAFETY: the coroutine has set the pointer when it began, and this runs in the coroutine or on another thread, where it
    // is null.
    let caller = unsafe { CALLER.get().as_ref() };
    match caller {
        Some(caller) => caller.suspend(request),
        None => Err(Failure::boxed(Code::Internal, "JavaScript is executed by the first worker only")),
    }
}

impl Failure {
    fn boxed(code: Code, message: &str) -> Box<Failure> {
        Box::new(Failure { code, message: ErrorMessage::of(message.as_bytes()) })
    }

    fn error(&self) -> Error {
        Error::new(self.code, String::from_utf8_lossy(self.message.as_bytes()))
    }
}

/// Executes a file of the package as a program. Node.js ends the process when the program has ended.
fn execute(spawned: &SpawnedProgram) -> Result<u8, Error> {
    let lossy = |word: &std::ffi::OsString| word.to_string_lossy().into_owned();
    let env: Vec<_> = spawned.env.iter().map(|(name, value)| [lossy(name), lossy(value)]).collect();
    let args: Vec<_> = spawned.args.iter().skip(1).map(lossy).collect();
    let program = serde_json::json!({ "path": spawned.path.to_string_lossy(), "args": args, "env": env });
    match ask(Request::Execute(program.to_string())) {
        Ok(_) => Ok(0),
        Err(failure) => Err(failure.error()),
    }
}

/// A package's functions, which JavaScript has loaded.
struct NodePackage {
    functions: usize,
}

impl NodePackage {
    fn load(load: &EngineLoad<'_>) -> Result<NodePackage, Error> {
        let build = load.package.build(load.build)?;
        let variables = load.variables.iter().map(|one| [&one.name, &one.value]).collect::<Vec<_>>();
        let described = serde_json::json!({
            "variables": variables,
            "folder": load.folder.to_string_lossy(),
            "library": build.library,
            "symbols": build.symbols,
        });
        ask(Request::Load(described.to_string())).map_err(|failure| {
            let error = failure.error();
            Error::new(error.code, format!("{}: {}", load.package.name, error.message))
        })?;
        Ok(NodePackage { functions: build.symbols.len() })
    }
}

impl Engine for NodePackage {
    const ON_MAIN_THREAD: bool = true;
    type Caller<'engine> = NodeCaller<'engine>;

    fn caller(&self, worker: u32) -> Result<NodeCaller<'_>, Error> {
        if worker > 0 {
            return Err(Error::new(Code::Internal, "a process of Node.js has one worker"));
        }
        Ok(NodeCaller { package: self, message: ErrorMessage::new() })
    }
}

/// The state with which the worker calls functions.
struct NodeCaller<'engine> {
    package: &'engine NodePackage,
    message: ErrorMessage,
}

impl FunctionCaller for NodeCaller<'_> {
    fn call(&mut self, function: u16, input: CallInput<'_>, mut output: CallOutput<'_>) -> Result<u32, Code> {
        if usize::from(function) >= self.package.functions {
            return Err(Code::UnknownFunction);
        }
        let call = RequestedCall {
            function,
            input: input.address(),
            input_bytes: input.len(),
            output: output.address(),
            capacity: output.capacity(),
        };
        let len = ask(Request::Call(call)).map_err(|failure| {
            self.message = failure.message;
            failure.code
        })?;
        component::settle().map_err(|error| {
            self.message = ErrorMessage::of(error.message.as_bytes());
            error.code
        })?;
        Ok(len)
    }

    fn message(&self) -> &[u8] {
        self.message.as_bytes()
    }
}

/// `next()`: answers the latest request, waits for the next one, and returns its number: that of a function, or
/// [`LOAD`], [`EXECUTE`] or [`END`].
///
/// # Safety
/// Node.js calls it, on its main thread.
pub(crate) unsafe extern "C" fn next(env: napi_env, _: napi_callback_info) -> napi_value {
    let resumed = LOOP.with_borrow_mut(|state| {
        let worker = match state {
            Some(worker) => worker,
            None => state.insert(begin()?),
        };
        let reply = REPLY.with_borrow_mut(|reply| std::mem::replace(reply, Ok(0)));
        REQUEST.take();
        Ok::<_, std::io::Error>(worker.resume(reply))
    });
    let number = match resumed {
        Ok(CoroutineResult::Yield(request)) => {
            let number = match &request {
                Request::Load(_) => LOAD,
                Request::Execute(_) => EXECUTE,
                Request::Call(call) => i32::from(call.function),
            };
            REQUEST.set(Some(request));
            number
        }
        Ok(CoroutineResult::Return(status)) => {
            REPLY.set(Ok(u32::from(status)));
            END
        }
        // SAFETY: as this function's.
        Err(error) => return unsafe { throw(env, &error.to_string()) },
    };
    // SAFETY: as this function's.
    unsafe { integer(env, number) }
}

/// `status()`: the exit status, when there is no next request.
///
/// # Safety
/// Node.js calls it, on its main thread.
pub(crate) unsafe extern "C" fn status(env: napi_env, _: napi_callback_info) -> napi_value {
    let status = REPLY.with_borrow(|reply| reply.as_ref().map_or(1, |status| *status));
    // SAFETY: as this function's.
    unsafe { integer(env, status.cast_signed()) }
}

/// `described()`: what is to be loaded or executed, as JSON.
///
/// # Safety
/// Node.js calls it, on its main thread.
pub(crate) unsafe extern "C" fn described(env: napi_env, _: napi_callback_info) -> napi_value {
    REQUEST.with_borrow(|request| match request {
        // SAFETY: as this function's.
        Some(Request::Load(json) | Request::Execute(json)) => unsafe { text(env, json) },
        // SAFETY: as this function's.
        _ => unsafe { throw(env, "nothing is to be loaded") },
    })
}

/// The call that is to be answered.
fn requested_call() -> Option<RequestedCall> {
    REQUEST.with_borrow(|request| match request {
        Some(Request::Call(call)) => Some(*call),
        _ => None,
    })
}

/// `input()`: a copy of the call's input, as a Buffer.
///
/// # Safety
/// Node.js calls it, on its main thread.
pub(crate) unsafe extern "C" fn input(env: napi_env, _: napi_callback_info) -> napi_value {
    let Some(RequestedCall { input, input_bytes, .. }) = requested_call() else {
        // SAFETY: as this function's.
        return unsafe { throw(env, "no call is to be answered") };
    };
    let (mut data, mut buffer) = (ptr::null_mut::<c_void>(), ptr::null_mut());
    let len = input_bytes as usize;
    // SAFETY: as this function's; both are written before they are used, or stay null.
    let status = unsafe { napi_sys::napi_create_buffer(env, len, &raw mut data, &raw mut buffer) };
    if status != napi_sys::Status::napi_ok {
        // SAFETY: as this function's.
        return unsafe { throw(env, "there is no memory for the input") };
    }
    if let Some(data) = NonNull::new(data.cast::<u8>()) {
        // SAFETY: the input stays mapped until the call is answered, and the new Buffer has `len` bytes, which nothing else
        // refers to yet.
        unsafe {
            let mut copy = SharedBytesMut::new(data, len);
            copy.copy_from(SharedBytes::new(input, len));
        }
    }
    buffer
}

/// `output(bytes)`: answers the call with a Uint8Array, which is copied.
///
/// # Safety
/// Node.js calls it, on its main thread.
pub(crate) unsafe extern "C" fn output(env: napi_env, info: napi_callback_info) -> napi_value {
    let Some(RequestedCall { output, capacity, .. }) = requested_call() else {
        // SAFETY: as this function's.
        return unsafe { throw(env, "no call is to be answered") };
    };
    // SAFETY: as this function's.
    let [value] = unsafe { arguments(env, info) };
    // SAFETY: as this function's.
    let Some((data, len)) = (unsafe { bytes_of(env, value) }) else {
        // SAFETY: as this function's.
        return unsafe { throw(env, "the output is no Uint8Array") };
    };
    if len <= capacity as usize {
        // SAFETY: the output stays mapped until the call is answered; the array's bytes stay where they are while
        // JavaScript does not run. Both may be written by others meanwhile, so neither is a reference.
        unsafe {
            let mut bytes = SharedBytesMut::new(output, capacity as usize);
            bytes.copy_from(SharedBytes::new(data, len));
        }
    }
    REPLY.set(Ok(u32::try_from(len).unwrap_or(u32::MAX)));
    ptr::null_mut()
}

/// `failed(code, message)`: answers with an error: 0 is that of a function, 1 that of a package.
///
/// # Safety
/// Node.js calls it, on its main thread.
pub(crate) unsafe extern "C" fn failed(env: napi_env, info: napi_callback_info) -> napi_value {
    // SAFETY: as this function's.
    let (code, message) = unsafe {
        let [code, message] = arguments(env, info);
        (number(env, code), text_of(env, message))
    };
    let code = if code == 1 { Code::InvalidPackage } else { Code::FunctionFailed };
    REPLY.set(Err(Failure::boxed(code, &message)));
    ptr::null_mut()
}
