//! Runs that another process drives, known to C by handles.

use std::ffi::{CString, c_char, c_void};
use std::ptr::null_mut;
use std::time::Duration;

use sublet::RunHandle;

use super::{Listener, driven, sublet_application, sublet_outcome, words};
use crate::boundary::{argument, bytes, guarded, output, sublet_status, text};
use crate::invoker::sublet_invoker;

/// `struct sublet_run`, opaque to C.
pub struct sublet_run {
    run: RunHandle,
    id: CString,
}

/// Value of `timeout_ns` for a wait without a limit.
const NO_TIMEOUT_NS: u64 = u64::MAX;

/// Hands a run over to C.
fn handle(run: RunHandle) -> *mut sublet_run {
    let id = words(run.id());
    Box::into_raw(Box::new(sublet_run { run, id }))
}

/// Begins a run that a runner drives.
///
/// # Safety
/// The duties of `sublet_graph.h` hold for applications and outputs; `input` has `input_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_application_detach(
    application: *const sublet_application,
    input: *const c_void,
    input_bytes: usize,
    run: *mut *mut sublet_run,
) -> sublet_status {
    guarded(|| {
        let place = output(run, "run")?;
        // SAFETY: the caller's application, which it does not free meanwhile.
        let application = unsafe { argument(application, "application") }?;
        // SAFETY: the caller's bytes, which it keeps until this returns.
        let input = unsafe { bytes(input, input_bytes, "input") }?.to_vec();
        let begun = handle(application.application.detach(&input)?);
        // SAFETY: not null, so it is the caller's pointer to write.
        unsafe { place.write(begun) };
        Ok(())
    })
}

/// Opens a run by its identifier.
///
/// # Safety
/// The duties of `sublet_graph.h` hold for invokers, strings and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_run_open(
    invoker: *const sublet_invoker,
    id: *const c_char,
    run: *mut *mut sublet_run,
) -> sublet_status {
    guarded(|| {
        let place = output(run, "run")?;
        // SAFETY: the caller's invoker, which it does not free or lease with meanwhile.
        let invoker = unsafe { argument(invoker, "invoker") }?;
        // SAFETY: the caller's string.
        let id = unsafe { text(id, "id") }?;
        let opened = handle(invoker.facade().open_run(id));
        // SAFETY: not null, so it is the caller's pointer to write.
        unsafe { place.write(opened) };
        Ok(())
    })
}

/// Returns the run's identifier.
///
/// # Safety
/// The duties of `sublet_graph.h` hold for runs and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_run_id(run: *const sublet_run, id: *mut *const c_char) -> sublet_status {
    guarded(|| {
        let place = output(id, "id")?;
        // SAFETY: the caller's run, which it does not free meanwhile.
        let run = unsafe { argument(run, "run") }?;
        // SAFETY: not null, so it is the caller's pointer to write.
        unsafe { place.write(run.id.as_ptr()) };
        Ok(())
    })
}

/// Waits until a run has ended.
///
/// # Safety
/// The duties of `sublet_graph.h` hold for runs and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_run_wait(
    run: *const sublet_run,
    timeout_ns: u64,
    outcome: *mut *mut sublet_outcome,
) -> sublet_status {
    guarded(|| {
        let place = output(outcome, "outcome")?;
        // SAFETY: the caller's run, which it does not free meanwhile.
        let run = unsafe { argument(run, "run") }?;
        let timeout = (timeout_ns != NO_TIMEOUT_NS).then(|| Duration::from_nanos(timeout_ns));
        let listener = Listener { call: None, user: null_mut() };
        let ended = driven(listener, |_, _| run.run.wait(timeout))?;
        // SAFETY: not null, so it is the caller's pointer to write.
        unsafe { place.write(Box::into_raw(ended)) };
        Ok(())
    })
}

/// Ends a run before it is done.
///
/// # Safety
/// The duties of `sublet_graph.h` hold for runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_run_cancel(run: *const sublet_run) -> sublet_status {
    guarded(|| {
        // SAFETY: the caller's run, which it does not free meanwhile.
        let run = unsafe { argument(run, "run") }?;
        run.run.cancel()
    })
}

/// Frees a handle of a run.
///
/// # Safety
/// It is null, or from this library and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_run_free(run: *mut sublet_run) {
    guarded(|| {
        if !run.is_null() {
            // SAFETY: it came from `Box::into_raw`, and the caller does not use it any more.
            drop(unsafe { Box::from_raw(run) });
        }
        Ok(())
    });
}
