//! Values of JavaScript, as few as are needed.
//!
//! All functions here are for Node.js's main thread, with an environment that it has just given.

use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};

use napi_sys::{napi_callback_info, napi_env, napi_value};
use sublet_proto::Error;
use sublet_runtime::frames::{SharedBytes, SharedBytesMut};

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

/// Returns the first arguments of the called function. Missing ones are undefined.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn arguments<const N: usize>(env: napi_env, info: napi_callback_info) -> [napi_value; N] {
    let (mut values, mut count) = ([ptr::null_mut(); N], N);
    // SAFETY: N arguments are requested, and there is memory for N.
    unsafe {
        napi_sys::napi_get_cb_info(
            env,
            info,
            &raw mut count,
            values.as_mut_ptr(),
            ptr::null_mut(),
            ptr::null_mut(),
        );
    }
    values
}

/// Creates a number.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn integer(env: napi_env, number: i32) -> napi_value {
    let mut value = ptr::null_mut();
    // SAFETY: no valid value is null.
    unsafe { napi_sys::napi_create_int32(env, number, &raw mut value) };
    value
}

/// Returns the address and the number of the bytes of a Uint8Array.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn bytes_of(env: napi_env, value: napi_value) -> Option<(NonNull<u8>, usize)> {
    let (mut kind, mut len, mut data) = (0, 0, ptr::null_mut::<c_void>());
    // SAFETY: all three are written before they are used, unless the value is no typed array.
    let status = unsafe {
        napi_sys::napi_get_typedarray_info(
            env,
            value,
            &raw mut kind,
            &raw mut len,
            &raw mut data,
            ptr::null_mut(),
            ptr::null_mut(),
        )
    };
    if status != napi_sys::Status::napi_ok || kind != napi_sys::TypedarrayType::uint8_array {
        return None;
    }
    // An empty one may have no address.
    Some((NonNull::new(data.cast()).unwrap_or(NonNull::dangling()), len))
}

/// Returns a string; an empty one if the value is not a string.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn text_of(env: napi_env, value: napi_value) -> String {
    let mut len = 0;
    // SAFETY: without a buffer only the length is written.
    unsafe { napi_sys::napi_get_value_string_utf8(env, value, ptr::null_mut(), 0, &raw mut len) };
    let mut bytes = vec![0u8; len + 1];
    let mut written = 0;
    // SAFETY: the buffer has that many bytes, one of them for the final zero.
    unsafe {
        napi_sys::napi_get_value_string_utf8(
            env,
            value,
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            &raw mut written,
        );
    }
    debug_assert!(written <= len, "{written} bytes of a string that has {len}");
    bytes.truncate(written);
    String::from_utf8_lossy(&bytes).into_owned()
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

/// Returns a copy of the bytes of a Uint8Array, which JavaScript's other threads may write meanwhile.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn copied_bytes(env: napi_env, value: napi_value) -> Option<Vec<u8>> {
    // SAFETY: as this function's.
    let (data, len) = unsafe { bytes_of(env, value) }?;
    let mut copy = vec![0; len];
    // SAFETY: the array's bytes stay where they are while JavaScript does not run.
    SharedBytesMut::from(copy.as_mut_slice()).copy_from(unsafe { SharedBytes::new(data, len) });
    Some(copy)
}

/// Creates a Buffer with a copy of bytes; undefined if there is no memory for it.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn buffer(env: napi_env, bytes: &[u8]) -> napi_value {
    let (mut copy, mut value) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the length is that of the bytes; the value is written, or stays null.
    let status = unsafe {
        napi_sys::napi_create_buffer_copy(
            env,
            bytes.len(),
            bytes.as_ptr().cast(),
            &raw mut copy,
            &raw mut value,
        )
    };
    // SAFETY: as this function's.
    if status == napi_sys::Status::napi_ok { value } else { unsafe { undefined(env) } }
}

/// Returns the value undefined.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn undefined(env: napi_env) -> napi_value {
    let mut value = ptr::null_mut();
    // SAFETY: no valid value is null.
    unsafe { napi_sys::napi_get_undefined(env, &raw mut value) };
    value
}

/// Creates an Error with the name of the code as its `code`.
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn error_of(env: napi_env, error: &Error) -> napi_value {
    let mut value = ptr::null_mut();
    // SAFETY: both texts are strings; no valid value is null.
    unsafe {
        let (code, message) = (text(env, error.code.name()), text(env, &error.message));
        napi_sys::napi_create_error(env, code, message, &raw mut value);
    }
    value
}

/// Makes the calling JavaScript function throw [such an error](error_of).
///
/// # Safety
/// As the module's.
pub(crate) unsafe fn throw_error(env: napi_env, error: &Error) -> napi_value {
    // SAFETY: as this function's.
    unsafe { napi_sys::napi_throw(env, error_of(env, error)) };
    ptr::null_mut()
}
