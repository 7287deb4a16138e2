//! A call in progress, and the way from C into a function and back.

use std::any::Any;
use std::ffi::CString;
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::components::Components;
use crate::{Callable, FunctionError, InputView, OutputView};

/// Largest message that Sublet keeps, in bytes.
const MAX_MESSAGE_BYTES: usize = 256;

/// The front of `struct sublet_context`, as `sublet_function.h` declares it.
#[repr(C)]
pub struct FunctionContext {
    size_bytes: u32,
    capacity: u32,
    #[cfg(not(target_family = "wasm"))]
    fail: unsafe extern "C" fn(*mut FunctionContext, *const std::ffi::c_char),
    #[cfg(not(target_family = "wasm"))]
    components: NonNull<Components>,
}

/// A call in progress.
pub struct FunctionCall<'call> {
    input: InputView<'call>,
    output: OutputView<'call>,
    #[cfg_attr(target_family = "wasm", expect(dead_code, reason = "the host has its own state of a call"))]
    context: NonNull<FunctionContext>,
    // A context belongs to one thread.
    thread: PhantomData<*mut ()>,
}

impl<'call> FunctionCall<'call> {
    /// # Safety
    /// `size` bytes of input can be read, and the context's capacity of output written, for `'call`. No reference to them
    /// exists. The context is this thread's own for `'call`.
    unsafe fn new(
        input: *const u8,
        size: u32,
        output: *mut u8,
        context: NonNull<FunctionContext>,
    ) -> FunctionCall<'call> {
        // SAFETY: the context is valid, and only this thread uses it.
        let capacity = unsafe { (*context.as_ptr()).capacity };
        let start = |at: *mut u8| NonNull::new(at).unwrap_or(NonNull::dangling());
        // SAFETY: as the caller promises. Null comes only with no bytes.
        let (input, output) = unsafe {
            (
                InputView::new(start(input.cast_mut()), size as usize),
                OutputView::new(start(output), capacity as usize),
            )
        };
        FunctionCall { input, output, context, thread: PhantomData }
    }

    /// The input.
    pub fn input(&self) -> InputView<'call> {
        self.input
    }

    /// The output.
    pub fn output(&mut self) -> &mut OutputView<'call> {
        &mut self.output
    }

    /// The worker's functions for calls, and the context that they take.
    ///
    /// # Errors
    /// A function in WebAssembly has none.
    pub(crate) fn components(&mut self) -> Result<(&Components, *mut FunctionContext), FunctionError> {
        #[cfg(not(target_family = "wasm"))]
        // SAFETY: the worker's context has a table of functions for its whole life.
        return Ok((unsafe { (*self.context.as_ptr()).components.as_ref() }, self.context.as_ptr()));
        #[cfg(target_family = "wasm")]
        Err(FunctionError::new(
            "a function in WebAssembly can neither call other functions by name nor access memory components",
        ))
    }

    /// Makes the call fail with a message.
    fn fail(&mut self, message: &str) {
        // A zero byte would end the message, and half a character would not be text.
        let message = message.replace('\0', "\u{fffd}");
        let end = (0..=MAX_MESSAGE_BYTES.min(message.len())).rev().find(|&end| message.is_char_boundary(end));
        let message = CString::new(&message[..end.unwrap_or_default()]).unwrap_or_default();
        debug_assert!(message.count_bytes() <= MAX_MESSAGE_BYTES, "{message:?} is longer than Sublet keeps");
        // SAFETY: a string that ends with 0, which is copied at once; the context is this thread's own.
        #[cfg(not(target_family = "wasm"))]
        unsafe {
            ((*self.context.as_ptr()).fail)(self.context.as_ptr(), message.as_ptr());
        }
        #[cfg(target_family = "wasm")]
        host::fail(&message);
    }
}

#[cfg(target_family = "wasm")]
mod host {
    use std::ffi::{CStr, c_char};

    #[link(wasm_import_module = "sublet")]
    unsafe extern "C" {
        #[link_name = "fail"]
        fn sublet_host_fail(message: *const c_char);
    }

    pub(super) fn fail(message: &CStr) {
        // SAFETY: a string that ends with 0, which the host copies at once.
        unsafe { sublet_host_fail(message.as_ptr()) };
    }
}

/// Executes a call from C: what [`export!`](crate::export) makes of a function calls it, and nothing else should.
///
/// # Safety
/// The arguments are those that a worker passes to a function, as `sublet_function.h` says.
pub unsafe fn run<Form>(
    function: &impl Callable<Form>,
    input: *const u8,
    size: u32,
    output: *mut u8,
    context: *mut FunctionContext,
) -> u32 {
    let Some(context) = NonNull::new(context) else { return 0 };
    // SAFETY: as the caller promises.
    let mut call = unsafe { FunctionCall::new(input, size, output, context) };
    let written = catch_panic(|| function.execute(&mut call)).and_then(|written| {
        u32::try_from(written).map_err(|_| {
            FunctionError::new(format_args!("{written} bytes of output are too many: at most 4 GiB - 1"))
        })
    });
    written.unwrap_or_else(|error| {
        call.fail(&error.message);
        0
    })
}

/// Makes an error of a panic.
#[cfg(not(target_family = "wasm"))]
fn catch_panic(call: impl FnOnce() -> Result<usize, FunctionError>) -> Result<usize, FunctionError> {
    // State that the function has left half changed is in its own statics: nothing of Sublet sees it.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        let failure = panic_message(payload.as_ref());
        // The drop of an unusual payload may panic again.
        std::mem::forget(payload);
        Err(failure)
    })
}

/// Reports a panic to the host, before it becomes a trap that ends the call. Each call has an instance, and so a hook, of its own.
#[cfg(target_family = "wasm")]
fn catch_panic(call: impl FnOnce() -> Result<usize, FunctionError>) -> Result<usize, FunctionError> {
    std::panic::set_hook(Box::new(|info| {
        let message = panic_message(info.payload()).message;
        host::fail(&CString::new(message.replace('\0', "\u{fffd}")).unwrap_or_default());
    }));
    call()
}

fn panic_message(payload: &(dyn Any + Send)) -> FunctionError {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    match text.or_else(|| payload.downcast_ref::<&str>().copied()) {
        Some(text) => FunctionError::new(format_args!("panicked: {text}")),
        None => FunctionError::new("panicked"),
    }
}

#[cfg(test)]
mod tests;
