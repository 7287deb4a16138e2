//! Steps of the starts of an invoker's workers, for a callback in C.
//!
//! A thread of the library may tell a step at any time from the request for the leases to their end. Once the leases are
//! released, or could not be had, the callback is closed: it does not run, and is not called again.

use std::ffi::{CString, c_char, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sublet::Allocation;

/// Type of `sublet_step_callback`.
pub type sublet_step_callback = unsafe extern "C" fn(*const c_char, *mut c_void);

/// The callback of an allocation, closed when this is dropped.
pub(crate) struct StepCallback(Arc<StepTarget>);

/// The callback and its argument, until it is closed.
struct StepTarget(Mutex<Option<(sublet_step_callback, UserPointer)>>);

/// The caller's pointer, which is passed on and never read.
#[derive(Clone, Copy)]
struct UserPointer(*mut c_void);

// SAFETY: the pointer is only passed to a callback that is documented to run on any thread.
unsafe impl Send for UserPointer {}

impl StepCallback {
    /// # Safety
    /// Until this is dropped, the callback may be called with any text and this pointer, on any thread.
    pub(crate) unsafe fn new(callback: sublet_step_callback, user: *mut c_void) -> StepCallback {
        StepCallback(Arc::new(StepTarget(Mutex::new(Some((callback, UserPointer(user)))))))
    }

    /// Has the starts of an allocation tell their steps to the callback.
    pub(crate) fn hear(&self, allocation: Allocation) -> Allocation {
        let target = self.0.clone();
        allocation.on_step(move |step| target.tell(step))
    }
}

impl Drop for StepCallback {
    fn drop(&mut self) {
        // Waits for a call that is under way.
        *self.0.lock() = None;
    }
}

impl StepTarget {
    fn lock(&self) -> MutexGuard<'_, Option<(sublet_step_callback, UserPointer)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, step: &str) {
        let target = self.lock();
        let (Some((callback, user)), Ok(step)) = (*target, CString::new(step)) else { return };
        // SAFETY: the callback is not closed, and cannot be while the lock is held: `StepCallback::new` allows the call.
        unsafe { callback(step.as_ptr(), user.0) };
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    unsafe extern "C" fn note(step: *const c_char, user: *mut c_void) {
        // SAFETY: the test passes a vector, which it does not use during this call; the step is a string.
        let (steps, step) = unsafe { (&mut *user.cast::<Vec<String>>(), CStr::from_ptr(step)) };
        steps.push(step.to_str().unwrap().to_owned());
    }

    #[test]
    fn tells_steps_until_it_is_closed() {
        let mut steps = Vec::<String>::new();
        // SAFETY: `note` takes this pointer, and the vector lives until the callback is closed.
        let callback = unsafe { StepCallback::new(note, (&raw mut steps).cast()) };
        let target = callback.0.clone();
        target.tell("importing torch");
        target.tell("no\0string");
        drop(callback);
        target.tell("too late");
        assert_eq!(steps, ["importing torch"]);
    }
}
