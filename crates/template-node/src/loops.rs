//! The event loop of a copy.

use std::ffi::c_int;
use std::io;
use std::ptr;

use napi_sys::{napi_env, uv_loop_s};

unsafe extern "C" {
    /// Function of libuv, which is a part of Node.js.
    fn uv_loop_fork(of: *mut uv_loop_s) -> c_int;
}

/// Returns the event loop of this thread.
///
/// # Safety
/// On Node.js's main thread, with its environment.
pub(crate) unsafe fn of(env: napi_env) -> io::Result<*mut uv_loop_s> {
    let mut event_loop = ptr::null_mut();
    // SAFETY: the environment is Node.js's, of this thread.
    let status = unsafe { napi_sys::napi_get_uv_event_loop(env, &raw mut event_loop) };
    if status != napi_sys::Status::napi_ok || event_loop.is_null() {
        return Err(io::Error::other("Node.js has no event loop"));
    }
    Ok(event_loop)
}

/// Begins the event loop again after a fork, with the descriptors that watch files and signals.
///
/// # Safety
/// It is this thread's and not running, in a process that was just forked.
pub(crate) unsafe fn begin_again(event_loop: *mut uv_loop_s) -> io::Result<()> {
    // SAFETY: as this function's.
    match unsafe { uv_loop_fork(event_loop) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}
