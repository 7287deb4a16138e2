//! Promises of operations that may wait.
//!
//! An operation that cannot end at once continues in a thread of libuv's pool, in attempts of [a tick](PollableOperation::wait):
//! so a few threads serve all operations that wait, and those of the file system come in between. Between two attempts
//! it is on the main thread, where it may be cancelled: for example, if its object was closed.

use std::ffi::c_void;
use std::ptr;

use napi_sys::{napi_async_work, napi_callback_info, napi_deferred, napi_env, napi_status, napi_value};
use serde_json::Value;
use sublet_proto::{Code, Error};

use crate::operation::PollableOperation;
use crate::values::{arguments, buffer, copied_bytes, error_of, text, text_of, throw_error, undefined};
use crate::{component, xpu};

/// An operation in a pool's thread, and the promise of its outcome.
struct Task<O> {
    operation: O,
    deferred: napi_deferred,
    work: napi_async_work,
    has_ended: bool,
}

/// `xpu(request)`: answers a request about processes that does not wait, both as JSON.
///
/// # Safety
/// Node.js calls it, on its main thread.
pub(crate) unsafe extern "C" fn answer_xpu(env: napi_env, info: napi_callback_info) -> napi_value {
    // SAFETY: as this function's.
    unsafe { answer(env, info, xpu::answer) }
}

/// `component(request)`: answers a request about a graph's component that does not wait, both as JSON.
///
/// # Safety
/// Node.js calls it, on its main thread.
pub(crate) unsafe extern "C" fn answer_component(env: napi_env, info: napi_callback_info) -> napi_value {
    // SAFETY: as this function's.
    unsafe { answer(env, info, component::answer) }
}

/// # Safety
/// Node.js has called a function with `info`, on its main thread.
unsafe fn answer(
    env: napi_env,
    info: napi_callback_info,
    answered: fn(&str) -> Result<Value, Error>,
) -> napi_value {
    // SAFETY: as this function's.
    unsafe {
        let [request] = arguments(env, info);
        match answered(&text_of(env, request)) {
            Ok(answer) => text(env, &answer.to_string()),
            Err(error) => throw_error(env, &error),
        }
    }
}

/// `xpuWait(request, bytes)` and `componentWait(request, bytes)`: return a promise of the outcome: what is to be known of
/// it, as JSON, and its bytes.
///
/// # Safety
/// Node.js calls it, on its main thread.
pub(crate) unsafe extern "C" fn wait<O: PollableOperation>(
    env: napi_env,
    info: napi_callback_info,
) -> napi_value {
    // SAFETY: as this function's.
    unsafe {
        let [request, bytes] = arguments(env, info);
        let bytes = copied_bytes(env, bytes).unwrap_or_default();
        let mut operation = match O::begin(&text_of(env, request), bytes) {
            Ok(operation) => operation,
            Err(error) => return throw_error(env, &error),
        };
        let (mut deferred, mut promise) = (ptr::null_mut(), ptr::null_mut());
        if napi_sys::napi_create_promise(env, &raw mut deferred, &raw mut promise)
            != napi_sys::Status::napi_ok
        {
            let _ = operation.end();
            return throw_error(env, &Error::new(Code::Internal, "there is no promise"));
        }
        if operation.may_begin_at_once() && operation.look() {
            settle(env, deferred, operation);
        } else {
            queue(env, Box::new(Task { operation, deferred, work: ptr::null_mut(), has_ended: false }));
        }
        promise
    }
}

/// Gives the next attempt to the pool.
///
/// # Safety
/// On Node.js's main thread.
unsafe fn queue<O: PollableOperation>(env: napi_env, task: Box<Task<O>>) {
    let task = Box::into_raw(task);
    // SAFETY: the task lives until `complete`, which alone uses it after `execute` has ended. The name outlives the call.
    unsafe {
        let name = text(env, "sublet");
        let created = napi_sys::napi_create_async_work(
            env,
            ptr::null_mut(),
            name,
            Some(execute::<O>),
            Some(complete::<O>),
            task.cast(),
            &raw mut (*task).work,
        );
        if created != napi_sys::Status::napi_ok
            || napi_sys::napi_queue_async_work(env, (*task).work) != napi_sys::Status::napi_ok
        {
            let Task { operation, deferred, .. } = *Box::from_raw(task);
            settle(env, deferred, operation);
        }
    }
}

/// Makes an attempt, in a thread of the pool.
unsafe extern "C" fn execute<O: PollableOperation>(_: napi_env, task: *mut c_void) {
    // SAFETY: it is the task of `queue`, which nothing else uses meanwhile.
    let task = unsafe { &mut *task.cast::<Task<O>>() };
    task.has_ended = task.operation.wait();
}

/// Settles the promise, or queues the next attempt. On the main thread.
unsafe extern "C" fn complete<O: PollableOperation>(env: napi_env, _: napi_status, task: *mut c_void) {
    // SAFETY: it is the task of `queue`, whose attempt has ended.
    unsafe {
        let mut task = Box::from_raw(task.cast::<Task<O>>());
        napi_sys::napi_delete_async_work(env, task.work);
        if task.has_ended || task.operation.is_cancelled() {
            settle(env, task.deferred, task.operation);
        } else {
            task.work = ptr::null_mut();
            queue(env, task);
        }
    }
}

/// Ends an operation, and settles its promise.
///
/// # Safety
/// On Node.js's main thread, with a promise that was not settled.
unsafe fn settle(env: napi_env, deferred: napi_deferred, operation: impl PollableOperation) {
    // SAFETY: as this function's; the array has two places.
    unsafe {
        match operation.end() {
            Ok((told, bytes)) => {
                let mut pair = ptr::null_mut();
                napi_sys::napi_create_array_with_length(env, 2, &raw mut pair);
                napi_sys::napi_set_element(env, pair, 0, text(env, &told.to_string()));
                let bytes = bytes.map_or_else(|| undefined(env), |bytes| buffer(env, &bytes));
                napi_sys::napi_set_element(env, pair, 1, bytes);
                napi_sys::napi_resolve_deferred(env, deferred, pair);
            }
            Err(error) => {
                napi_sys::napi_reject_deferred(env, deferred, error_of(env, &error));
            }
        }
    }
}
