//! Values of JavaScript, as few as are needed.
//!
//! All functions here are for Node.js's main thread, with an environment that it has just given.

use std::ffi::CStr;
use std::ptr;

use napi_sys::{napi_callback_info, napi_env, napi_value};

/// Makes a function a property of an object.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn define(
    env: napi_env,
    object: napi_value,
    name: &CStr,
    function: unsafe extern "C" fn(napi_env, napi_callback_info) -> napi_value,
) {
    let mut value = ptr::null_mut();
    let len = name.to_bytes().len().cast_signed();
    // SAFETY: the length is the name's, and the value is written before it is read, or stays null, which is refused.
    unsafe {
        napi_sys::napi_create_function(
            env,
            name.as_ptr(),
            len,
            Some(function),
            ptr::null_mut(),
            &raw mut value,
        );
        napi_sys::napi_set_named_property(env, object, name.as_ptr(), value);
    }
}

/// Creates a string.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn text(env: napi_env, text: &str) -> napi_value {
    let mut value = ptr::null_mut();
    // SAFETY: the length is the text's; no valid value is null.
    unsafe {
        napi_sys::napi_create_string_utf8(
            env,
            text.as_ptr().cast(),
            text.len().cast_signed(),
            &raw mut value,
        );
    }
    value
}

/// Returns the value true or false.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn boolean(env: napi_env, is_it: bool) -> napi_value {
    let mut value = ptr::null_mut();
    // SAFETY: no valid value is null.
    unsafe { napi_sys::napi_get_boolean(env, is_it, &raw mut value) };
    value
}

/// Makes the calling JavaScript function throw an error.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn throw(env: napi_env, message: &str) -> napi_value {
    let message = std::ffi::CString::new(message).unwrap_or_default();
    // SAFETY: the message ends with zero.
    unsafe { napi_sys::napi_throw_error(env, ptr::null(), message.as_ptr()) };
    ptr::null_mut()
}

/// Returns the first argument of the called function.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn argument(env: napi_env, info: napi_callback_info) -> napi_value {
    let (mut value, mut count) = (ptr::null_mut(), 1);
    // SAFETY: one argument is requested, and there is memory for one.
    unsafe {
        napi_sys::napi_get_cb_info(
            env,
            info,
            &raw mut count,
            &raw mut value,
            ptr::null_mut(),
            ptr::null_mut(),
        );
    }
    value
}

/// Returns a value as an integer; 0 if the value is not a number.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn number(env: napi_env, value: napi_value) -> i32 {
    let mut number = 0;
    // SAFETY: it is written, or stays 0.
    unsafe { napi_sys::napi_get_value_int32(env, value, &raw mut number) };
    number
}
