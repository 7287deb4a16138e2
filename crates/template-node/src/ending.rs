//! The end of a copy. When no work is left, Node.js waits for its threads, which a copy does not have: it would wait
//! for ever. So a copy's event loop never runs out of work: this module detects the end in its place.

use std::alloc::{Layout, alloc_zeroed};
use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::ptr;

use napi_sys::{napi_env, napi_ref, napi_value, uv_loop_s};

/// `UV_PREPARE`, the kind of a handle whose callback runs before the loop waits.
const PREPARE: c_uint = 9;

/// A handle of libuv, which is a part of Node.js.
#[repr(C)]
struct Handle {
    /// A pointer for the creator of the handle: the first field of every handle.
    data: *mut c_void,
}

unsafe extern "C" {
    fn uv_handle_size(kind: c_uint) -> usize;
    fn uv_prepare_init(of: *mut uv_loop_s, handle: *mut Handle) -> c_int;
    fn uv_prepare_start(handle: *mut Handle, then: unsafe extern "C" fn(*mut Handle)) -> c_int;
    fn uv_ref(handle: *mut Handle);
    fn uv_unref(handle: *mut Handle);
    fn uv_loop_alive(of: *const uv_loop_s) -> c_int;
}

/// The function that is called when no work is left.
struct Ending {
    env: napi_env,
    event_loop: *mut uv_loop_s,
    function: napi_ref,
}

/// Registers a function that is called whenever no work is left. The function ends the process, or adds work.
///
/// # Safety
/// On Node.js's main thread, with its environment and its loop.
pub(crate) unsafe fn call_at_end(
    env: napi_env,
    event_loop: *mut uv_loop_s,
    function: napi_value,
) -> io::Result<()> {
    let mut kept = ptr::null_mut();
    // SAFETY: the function is alive while it is referred to here; from then on it is kept.
    let referred = unsafe { napi_sys::napi_create_reference(env, function, 1, &raw mut kept) };
    if referred != napi_sys::Status::napi_ok {
        return Err(io::Error::other("the function for the end of the process cannot be kept"));
    }
    // SAFETY: no memory is passed.
    let size = unsafe { uv_handle_size(PREPARE) }.max(size_of::<Handle>());
    let layout = Layout::from_size_align(size, align_of::<u128>()).map_err(io::Error::other)?;
    // The handle lives as long as the process.
    // SAFETY: the size is not zero.
    let handle: *mut Handle = unsafe { alloc_zeroed(layout) }.cast();
    if handle.is_null() {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let ending = Box::leak(Box::new(Ending { env, event_loop, function: kept }));
    // SAFETY: the handle has the size that libuv asks for, and begins with the field that is written.
    let started = unsafe {
        uv_prepare_init(event_loop, handle);
        (*handle).data = ptr::from_mut(ending).cast();
        uv_prepare_start(handle, before_waiting)
    };
    if started == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-started)) }
}

/// # Safety
/// The event loop calls it, with what [`call_at_end`] has made.
unsafe extern "C" fn before_waiting(handle: *mut Handle) {
    // SAFETY: the handle begins with this field.
    let data = unsafe { (*handle).data };
    debug_assert!(!data.is_null(), "the loop calls handle {handle:p}, which has no function");
    // SAFETY: `call_at_end` has set the pointer, to memory that is never freed.
    let ending = unsafe { &*data.cast::<Ending>() };
    // The handle is not counted while the loop is asked whether other work is left.
    // SAFETY: handle and loop are alive, and this is their thread, in no call of JavaScript.
    unsafe {
        uv_unref(handle);
        if uv_loop_alive(ending.event_loop) == 0 {
            call(ending);
        }
        uv_ref(handle);
    }
}

/// Whether work is left, for the function that is called at the end.
///
/// # Safety
/// On the loop's thread.
pub(crate) unsafe fn is_alive(event_loop: *const uv_loop_s) -> bool {
    // SAFETY: as this function's.
    unsafe { uv_loop_alive(event_loop) != 0 }
}

/// # Safety
/// On Node.js's main thread.
unsafe fn call(ending: &Ending) {
    let (mut scope, mut function, mut object) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: all values are of the scope that is opened here and closed after them.
    unsafe {
        napi_sys::napi_open_handle_scope(ending.env, &raw mut scope);
        napi_sys::napi_get_reference_value(ending.env, ending.function, &raw mut function);
        napi_sys::napi_get_global(ending.env, &raw mut object);
        let nothing = ptr::null_mut();
        let called = napi_sys::napi_make_callback(
            ending.env,
            nothing,
            object,
            function,
            0,
            ptr::null(),
            ptr::null_mut(),
        );
        if called != napi_sys::Status::napi_ok {
            let mut error = ptr::null_mut();
            napi_sys::napi_get_and_clear_last_exception(ending.env, &raw mut error);
            napi_sys::napi_fatal_exception(ending.env, error);
        }
        napi_sys::napi_close_handle_scope(ending.env, scope);
    }
}
