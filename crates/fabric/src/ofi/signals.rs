//! Preserves the program's handlers of fatal signals while libraries are loaded.
//!
//! Libraries of some cards (psm, psm2) install handlers for these signals when they are loaded; the handlers print a
//! trace and exit with a status of their own. The owner of a process decides how it dies: an agent reports to a client
//! that its function was killed by SIGSEGV, and a client has handlers of its own.

use std::mem::MaybeUninit;

use libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGINT, SIGSEGV, SIGTERM, c_int, sigaction};

const FATAL: [c_int; 7] = [SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGINT, SIGTERM];

/// Action of each fatal signal.
pub struct Handlers([Option<sigaction>; FATAL.len()]);

impl Handlers {
    /// Reads the current actions.
    pub fn now() -> Handlers {
        Handlers(FATAL.map(|signal| {
            let mut action = MaybeUninit::uninit();
            // SAFETY: the call changes nothing, and `action` has space for its result.
            let told = unsafe { sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } == 0;
            // SAFETY: the call has filled it if it succeeded.
            told.then(|| unsafe { action.assume_init() })
        }))
    }

    /// Restores the actions that were read.
    pub fn restore(&self) {
        for (signal, action) in FATAL.into_iter().zip(&self.0) {
            if let Some(action) = action {
                // SAFETY: the action was this process's own for this signal, so it is whole and its handler is there.
                unsafe { sigaction(signal, action, std::ptr::null_mut()) };
            }
        }
    }
}
