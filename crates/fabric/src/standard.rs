//! Detects whether this process was started with its standard output open.
//!
//! Before `main` the standard library opens `/dev/null` in place of closed standard descriptors, so that no other file
//! takes their numbers. Output written there is lost without an error. For that reason this module looks earlier, when
//! the program is loaded.

use std::sync::atomic::{AtomicBool, Ordering};

/// Written once, before `main`.
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether standard output was closed when this process began, as by `>&-` in a shell.
pub fn output_was_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}

extern "C" fn look() {
    // SAFETY: no memory is passed; of a number that is not a descriptor the kernel says so.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_CLOSED.store(flags < 0, Ordering::Relaxed);
}

// SAFETY: the loader calls each entry of this section once, before `main`, with arguments that `look` ignores as the C calling
// convention allows. `look` makes one system call and stores to a static atomic, for which nothing has to be initialized.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;
