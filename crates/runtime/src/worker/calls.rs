//! Functions that call functions of their own package (Molecule 4.3: the callee is called by the caller, and no runtime stands
//! between them): in place, on the same thread.
//!
//! A call within a call has the context of the outer one, whose room for output and failure stand aside meanwhile: what is begun to be
//! read, and the run, are the same.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;

use sublet_proto::{Code, Error};

use super::context::Context;

/// How deep calls go within calls: the thread's stack has an end.
const MAX_DEPTH: u32 = 64;

/// `sublet_call`.
///
/// # Safety
/// The function's own context; a string that ends with 0; so many bytes that may be read, and written, of which those that are written are
/// nobody else's; a place for a number or null.
pub(super) unsafe extern "C" fn sublet_context_call(
    context: *mut Context,
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
    context: &mut Context,
    name: &CStr,
    input: (*mut c_void, u32),
    (output, capacity): (*mut c_void, u32),
) -> Result<u32, Error> {
    let library = context.library.ok_or_else(|| unknown(name))?;
    // SAFETY: it lives as long as the process.
    let library = unsafe { library.as_ref() };
    let function = library.named(name).ok_or_else(|| unknown(name))?;
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
    let called = library.invoke(context, function, input, output);
    context.depth -= 1;
    context.resume(outer);
    match called {
        Ok(len) if len <= capacity => Ok(len),
        Ok(len) => {
            let message = format!(
                "{}: {len} bytes of output, and there is room for {capacity}",
                name.to_string_lossy()
            );
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
