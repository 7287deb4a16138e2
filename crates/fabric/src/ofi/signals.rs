//! The program's handlers of fatal signals, kept while libraries are loaded.
//!
//! Libraries of some cards (psm, psm2) take these signals when they are loaded, print a trace and leave with a status of
//! their own. How a process dies is its owner's to say: an agent tells a client that its function was killed by SIGSEGV,
//! and a client has handlers of its own.

use std::mem::MaybeUninit;

use libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGINT, SIGSEGV, SIGTERM, c_int, sigaction};

const FATAL: [c_int; 7] = [SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGINT, SIGTERM];

/// What becomes of each fatal signal.
pub struct Handlers([Option<sigaction>; FATAL.len()]);

impl Handlers {
    /// As it is now.
    pub fn now() -> Handlers {
        Handlers(FATAL.map(|signal| {
            let mut action = MaybeUninit::uninit();
            // SAFETY: nothing is changed, and `action` has room for what is told.
            let told = unsafe { sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } == 0;
            // SAFETY: it was filled if the call says so.
            told.then(|| unsafe { action.assume_init() })
        }))
    }

    /// Makes it what it was.
    pub fn restore(&self) {
        for (signal, action) in FATAL.into_iter().zip(&self.0) {
            if let Some(action) = action {
                // SAFETY: the action was this process's own for this signal, so it is whole and its handler is there.
                unsafe { sigaction(signal, action, std::ptr::null_mut()) };
            }
        }
    }
}
