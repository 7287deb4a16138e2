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
    // SAFETY: the name has so many bytes, and the value is written before it is read, or stays null, which is refused.
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

/// A string.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn text(env: napi_env, text: &str) -> napi_value {
    let mut value = ptr::null_mut();
    // SAFETY: the text has so many bytes; null is what no value is.
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

/// True or false.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn boolean(env: napi_env, is_it: bool) -> napi_value {
    let mut value = ptr::null_mut();
    // SAFETY: null is what no value is.
    unsafe { napi_sys::napi_get_boolean(env, is_it, &raw mut value) };
    value
}

/// Has the function that called this throw an error.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn throw(env: napi_env, message: &str) -> napi_value {
    let message = std::ffi::CString::new(message).unwrap_or_default();
    // SAFETY: the message ends with zero.
    unsafe { napi_sys::napi_throw_error(env, ptr::null(), message.as_ptr()) };
    ptr::null_mut()
}

/// The first argument of a function that was called.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn argument(env: napi_env, info: napi_callback_info) -> napi_value {
    let (mut value, mut count) = (ptr::null_mut(), 1);
    // SAFETY: there is room for so many arguments as are asked for.
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

/// What a value is as a number; 0 if it is none.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn number(env: napi_env, value: napi_value) -> i32 {
    let mut number = 0;
    // SAFETY: it is written, or stays 0.
    unsafe { napi_sys::napi_get_value_int32(env, value, &raw mut number) };
    number
}
