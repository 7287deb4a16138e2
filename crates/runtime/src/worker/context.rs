//! The context of a call, and the functions of a package that are called with it.
//!
//! The context is the fourth argument of a function's long form: `struct sublet_context` of `sublet_function.h`. Its
//! operations are in [`components`](super::components).

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use sublet_proto::{Code, Error, to_usize};

use super::channel::Channel;
use super::swapping;
use super::worker_run::{self, WorkerRun};
use crate::memory::RawReading;
use crate::wire::MAX_MESSAGE_BYTES;

/// A function of a package.
pub(super) type Function = unsafe extern "C" fn(*mut c_void, u32, *mut c_void, *mut CallContext) -> u32;

/// The C++ guard, which calls a function and catches its exceptions.
pub(super) type GuardedCall = unsafe extern "C" fn(
    Function,
    *mut c_void,
    u32,
    *mut c_void,
    *mut CallContext,
    *mut u32,
    *mut c_char,
    usize,
) -> c_int;

/// The functions of a package's shared object.
pub(super) struct PackageFunctions {
    /// The functions in the order of their indexes.
    pub(super) indexed: Vec<Function>,
    /// The functions by their names in the package.
    pub(super) names: HashMap<CString, Function>,
    /// Set if the package has C++ code.
    pub(super) guard: Option<GuardedCall>,
}

/// The context of a call, with the front that `sublet_function.h` declares.
#[repr(C)]
pub(super) struct CallContext {
    size_bytes: u32,
    capacity: u32,
    fail: unsafe extern "C" fn(*mut CallContext, *const c_char),
    components: &'static ContextOperations,
    pub(super) failed: bool,
    pub(super) message: [u8; to_usize(MAX_MESSAGE_BYTES)],
    pub(super) worker: u32,
    /// The functions that the call may call by their names.
    pub(super) functions: Option<NonNull<PackageFunctions>>,
    /// The depth of nested calls.
    pub(super) depth: u32,
    /// The run, once a function has asked for it in the current call.
    run: Option<Arc<WorkerRun>>,
    /// Set if the process may swap: its swap space then counts, also if functions do not use their run.
    swaps: bool,
    /// Outstanding reads, each with its channel.
    pub(super) reading: Vec<(u32, RawReading)>,
    /// Reason why the latest access failed, ended by a 0.
    pub(super) why: [u8; to_usize(MAX_MESSAGE_BYTES) + 1],
}

/// `struct sublet_components`.
#[repr(C)]
pub(super) struct ContextOperations {
    pub(super) instance: unsafe extern "C" fn(*mut CallContext) -> u32,
    pub(super) instances: unsafe extern "C" fn(*mut CallContext) -> u32,
    pub(super) why: unsafe extern "C" fn(*mut CallContext) -> *const c_char,
    pub(super) open: unsafe extern "C" fn(*mut CallContext, *const c_char, *mut u32) -> u32,
    pub(super) size: unsafe extern "C" fn(*mut CallContext, u32, *mut u64) -> u32,
    pub(super) read: unsafe extern "C" fn(*mut CallContext, u32, u64, *mut c_void, u64) -> u32,
    pub(super) write: unsafe extern "C" fn(*mut CallContext, u32, u64, *const c_void, u64) -> u32,
    pub(super) grow: unsafe extern "C" fn(*mut CallContext, u32, u64) -> u32,
    pub(super) map: unsafe extern "C" fn(*mut CallContext, u32, u64, u64, *mut *mut c_void) -> u32,
    pub(super) read_async: unsafe extern "C" fn(*mut CallContext, u32, u64, *mut c_void, u64) -> u32,
    pub(super) prefetch: unsafe extern "C" fn(*mut CallContext, u32, u64, u64) -> u32,
    pub(super) sync: unsafe extern "C" fn(*mut CallContext, u32) -> u32,
    pub(super) send:
        unsafe extern "C" fn(*mut CallContext, *const c_char, u32, *const c_void, u64, u64) -> u32,
    pub(super) receive: unsafe extern "C" fn(
        *mut CallContext,
        *const c_char,
        *mut c_void,
        u64,
        u64,
        *mut u64,
        *mut u32,
    ) -> u32,
    pub(super) write_async: unsafe extern "C" fn(*mut CallContext, u32, u64, *const c_void, u64) -> u32,
    pub(super) resize: unsafe extern "C" fn(*mut CallContext, u32, u64) -> u32,
    pub(super) release: unsafe extern "C" fn(*mut CallContext, u32) -> u32,
    pub(super) call: unsafe extern "C" fn(
        *mut CallContext,
        *const c_char,
        *const c_void,
        u32,
        *mut c_void,
        u32,
        *mut u32,
    ) -> u32,
}

impl PackageFunctions {
    /// A function by its index in the package.
    #[inline(always)]
    pub(super) fn at(&self, index: u16) -> Option<Function> {
        self.indexed.get(usize::from(index)).copied()
    }

    /// A function by its name in the package.
    #[inline]
    pub(super) fn named(&self, name: &CStr) -> Option<Function> {
        self.names.get(name).copied()
    }

    /// Calls a function, with a context that has begun. Where its message is from a failure, the context has it.
    #[inline(always)]
    pub(super) fn invoke(
        &self,
        context: &mut CallContext,
        function: Function,
        (input, size): (*mut c_void, u32),
        output: *mut c_void,
    ) -> Result<u32, Code> {
        let written = match self.guard {
            // SAFETY: the symbol is an exported function of the package, whose interface is the tenant's promise;
            // input and output are mapped for `size` and the context's capacity; the context is this thread's own.
            None => unsafe { function(input, size, output, context) },
            Some(guard) => PackageFunctions::call_guarded(context, guard, function, (input, size, output))?,
        };
        if context.failed { Err(Code::FunctionFailed) } else { Ok(written) }
    }

    #[inline(always)]
    fn call_guarded(
        context: &mut CallContext,
        guard: GuardedCall,
        function: Function,
        (input, size, output): (*mut c_void, u32, *mut c_void),
    ) -> Result<u32, Code> {
        let mut written = 0;
        let message = context.message.as_mut_ptr().cast::<c_char>();
        let message_bytes = context.message.len();
        // SAFETY: as for a plain call; `message` has `message_bytes` bytes, which the guard ends with a 0.
        let outcome =
            unsafe { guard(function, input, size, output, context, &mut written, message, message_bytes) };
        match outcome {
            0 => Ok(written),
            1 => Err(Code::MemoryExceeded),
            _ => Err(Code::FunctionFailed),
        }
    }
}

impl CallContext {
    /// The context of a worker's calls of these functions.
    pub(super) fn new(
        worker: u32,
        functions: Option<NonNull<PackageFunctions>>,
        components: &'static ContextOperations,
    ) -> CallContext {
        CallContext {
            #[expect(clippy::cast_possible_truncation, reason = "the structure has about a kilobyte")]
            size_bytes: size_of::<CallContext>() as u32,
            capacity: 0,
            fail: sublet_context_fail,
            components,
            failed: false,
            message: [0; to_usize(MAX_MESSAGE_BYTES)],
            worker,
            functions,
            depth: 0,
            run: None,
            swaps: swapping::is_available(),
            reading: Vec::new(),
            why: [0; to_usize(MAX_MESSAGE_BYTES) + 1],
        }
    }

    /// Prepares the context for a call with an output of `capacity` bytes.
    #[inline(always)]
    pub(super) fn begin(&mut self, capacity: u32) {
        self.capacity = capacity;
        self.failed = false;
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// A function that it has called has returned: now it is again the context of the one that called.
    #[inline(always)]
    pub(super) fn resume(&mut self, capacity: u32) {
        self.capacity = capacity;
        self.failed = false;
    }

    /// Syncs the function's writes, after the function and before its result is published, so that the next components
    /// read them.
    ///
    /// # Errors
    /// The error of the sync, which becomes the call's error; the message says more.
    #[inline(always)]
    pub(super) fn settle(&mut self) -> Result<(), Code> {
        if self.run.is_some() || self.swaps { self.sync_all() } else { Ok(()) }
    }

    #[cold]
    fn sync_all(&mut self) -> Result<(), Code> {
        if self.run.is_none() && worker_run::current().is_none() {
            return Ok(());
        }
        let worker = self.worker;
        let synced = self.finish_reading(|_| true).and_then(|()| self.run()?.sync(worker));
        synced.map_err(|error| {
            self.set_message(error.message.as_bytes());
            error.code
        })
    }

    /// Waits for outstanding reads of these channels.
    pub(super) fn finish_reading(&mut self, of: impl Fn(u32) -> bool) -> Result<(), Error> {
        let (ours, others) =
            std::mem::take(&mut self.reading).into_iter().partition(|(channel, _)| of(*channel));
        self.reading = others;
        let ours: Vec<(u32, RawReading)> = ours;
        // Each is waited for, even if one before it has failed.
        let finished: Vec<_> = ours.into_iter().map(|(_, reading)| reading.wait()).collect();
        finished.into_iter().collect()
    }

    fn set_message(&mut self, message: &[u8]) {
        self.message.fill(0);
        let len = message.len().min(self.message.len());
        self.message[..len].copy_from_slice(&message[..len]);
    }

    /// Releases the run after a call, so that its memory is kept no longer than the run.
    #[inline(always)]
    pub(super) fn rest(&mut self) {
        if self.run.is_some() {
            // Where a call failed, something may be on its way still.
            self.reading.clear();
            if let Some(run) = self.run.take() {
                run.rest(self.worker);
            }
        }
    }

    /// The function's error message.
    pub(super) fn message(&self) -> &[u8] {
        let len = self.message.iter().position(|&byte| byte == 0).unwrap_or(self.message.len());
        &self.message[..len]
    }

    pub(super) fn run(&mut self) -> Result<&WorkerRun, Error> {
        if self.run.is_none() {
            self.run = worker_run::current();
        }
        self.run.as_deref().ok_or_else(|| {
            Error::new(
                Code::InvalidArgument,
                "this call is not of a graph's run, and has no memory components",
            )
        })
    }

    /// A channel that the function accesses now.
    pub(super) fn channel(&mut self, number: u32) -> Result<&Channel, Error> {
        let worker = self.worker;
        let none =
            || Error::new(Code::InvalidArgument, format!("there is no channel {number}: open it first"));
        self.run()?.channels().get(number as usize).ok_or_else(none)?.used_by(worker)
    }

    /// Does something, and keeps why it failed.
    pub(super) fn attempt(&mut self, what: impl FnOnce(&mut CallContext) -> Result<(), Error>) -> u32 {
        what(self).map_or_else(|error| self.explain(&error), |()| 0)
    }

    /// Keeps why something failed.
    #[cold]
    pub(super) fn explain(&mut self, error: &Error) -> u32 {
        let message = error.message.as_bytes();
        let len = message.len().min(self.why.len() - 1);
        self.why[..len].copy_from_slice(&message[..len]);
        self.why[len] = 0;
        error.code.number()
    }
}

/// The function reports an error; the first report of a call counts.
///
/// # Safety
/// As `sublet_fail` in `sublet_function.h` requires: the function's own context, and a string that ends with 0, or
/// null.
unsafe extern "C" fn sublet_context_fail(context: *mut CallContext, message: *const c_char) {
    // SAFETY: the caller passes the context that it was given, which no other thread uses during the call.
    let Some(context) = (unsafe { context.as_mut() }) else { return };
    if context.failed {
        return;
    }
    context.failed = true;
    let message = match message.is_null() {
        true => c"",
        // SAFETY: not null, so it is a string that ends with 0.
        false => unsafe { CStr::from_ptr(message) },
    };
    context.set_message(message.to_bytes());
}
