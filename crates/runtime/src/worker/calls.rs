//! Implements calls of functions by functions of their own package: in place, on the same thread (Molecule 4.3: the
//! caller calls the callee directly, without a runtime in between).
//!
//! A nested call uses the context of the outer one. The outer call's output capacity and failure are saved meanwhile;
//! outstanding reads and the run are shared.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;

use sublet_proto::{Code, Error};

use super::context::CallContext;

/// Largest depth of nested calls, which bounds the use of the thread's stack.
const MAX_DEPTH: u32 = 64;

/// `sublet_call`.
///
/// # Safety
/// `context` is the function's own. `function` is a string that ends with 0. `size` bytes of `input` may be read, and
/// `capacity` bytes of `output` written, to which no other reference exists. `written` is the address of a number, or
/// null.
pub(super) unsafe extern "C" fn sublet_context_call(
    context: *mut CallContext,
    function: *const c_char,
    input: *const c_void,
    size: u32,
    output: *mut c_void,
    capacity: u32,
    written: *mut u32,
) -> u32 {
    // SAFETY: the function passes the context that it was given, which no other thread uses during the call.
    let Some(context) = (unsafe { context.as_mut() }) else { return Code::InvalidArgument.number() };
    if function.is_null() || (input.is_null() && size > 0) || (output.is_null() && capacity > 0) {
        return context.explain(&Error::new(Code::InvalidArgument, "a null pointer"));
    }
    // SAFETY: not null, so it is a string that ends with 0.
    let name = unsafe { CStr::from_ptr(function) };
    match call(context, name, (input.cast_mut(), size), (output, capacity)) {
        Ok(len) => {
            if let Some(written) = NonNull::new(written) {
                // SAFETY: not null, so it is a place for a number.
                unsafe { written.write(len) };
            }
            0
        }
        Err(error) => context.explain(&error),
    }
}

/// Calls a function of the package by its name.
#[inline]
fn call(
    context: &mut CallContext,
    name: &CStr,
    input: (*mut c_void, u32),
    (output, capacity): (*mut c_void, u32),
) -> Result<u32, Error> {
    let functions = context.functions.ok_or_else(|| unknown(name))?;
    // SAFETY: they live as long as the process.
    let functions = unsafe { functions.as_ref() };
    let function = functions.named(name).ok_or_else(|| unknown(name))?;
    if context.depth >= MAX_DEPTH {
        let message = format!("functions call each other {MAX_DEPTH} deep, and no deeper");
        return Err(Error::new(Code::InvalidArgument, message));
    }
    if context.failed {
        return Err(Error::new(Code::InvalidArgument, "a call that has failed calls no other function"));
    }
    let outer = context.capacity();
    context.depth += 1;
    context.begin(capacity);
    let called = functions.invoke(context, function, input, output);
    context.depth -= 1;
    context.resume(outer);
    match called {
        Ok(len) if len <= capacity => Ok(len),
        Ok(len) => {
            let message =
                format!("{}: {len} bytes of output do not fit into {capacity}", name.to_string_lossy());
            Err(Error::new(Code::OutputTooLarge, message))
        }
        Err(code) => {
            let said = String::from_utf8_lossy(context.message()).into_owned();
            Err(Error::new(code, format!("{}: {said}", name.to_string_lossy())))
        }
    }
}

#[cold]
fn unknown(name: &CStr) -> Error {
    let message = format!("the package has no function {:?}", name.to_string_lossy());
    Error::new(Code::UnknownFunction, message)
}
