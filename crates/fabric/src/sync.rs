//! Atomics and the futex, through one facade, so that loom can run the rings under every interleaving.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::{Mutex, MutexGuard};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::{Mutex, MutexGuard};

/// Locks a mutex, even after a panic of its holder: data behind these locks is consistent between any two statements.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for reading, as [`lock`] does.
#[inline]
pub fn read_lock<T>(rw_lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    rw_lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing, as [`lock`] does.
#[inline]
pub fn write_lock<T>(rw_lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    rw_lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeping on a word and waking its sleepers. The word may lie in memory shared between processes.
#[cfg(not(loom))]
pub mod futex {
    use super::AtomicU32;
    use rustix::thread::futex;
    use std::time::Duration;

    /// Sleeps while the word holds `expected`, at most for `timeout`; may return early for no reason.
    pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        let timeout = timeout.map(|limit| futex::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        // Every outcome (woken, value changed, timeout, signal) means: look at the word again.
        let _ = futex::wait(word, futex::Flags::empty(), expected, timeout.as_ref());
    }

    /// Wakes every sleeper on the word.
    #[cold]
    pub fn wake_all(word: &AtomicU32) {
        // A word of this process's own mapping cannot fail to be woken; no sleepers is not an error.
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }
}

/// The futex as loom sees it: a lock makes "compare and sleep" one step, as the kernel does.
#[cfg(loom)]
pub mod futex {
    use super::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};
    use std::time::Duration;

    loom::lazy_static! {
        static ref QUEUE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    /// See the other facade.
    pub fn wait(word: &AtomicU32, expected: u32, _timeout: Option<Duration>) {
        let guard = QUEUE.0.lock().expect("loom does not poison");
        if word.load(Ordering::SeqCst) == expected {
            drop(QUEUE.1.wait(guard).expect("loom does not poison"));
        }
    }

    /// See the other facade.
    pub fn wake_all(_word: &AtomicU32) {
        let _guard = QUEUE.0.lock().expect("loom does not poison");
        QUEUE.1.notify_all();
    }
}
