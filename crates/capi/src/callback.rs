//! Callbacks for the end of calls.
//!
//! A `CallbackWatch` is the waker of an invocation's future. After a wake-up the call may still be running, and must be polled
//! again; and a wake-up may come during the first poll, on another thread, whereas only one thread may touch the
//! invocation. So the watch has a state, and the thread that has set it to `POLLING` owns the invocation:
//!
//! ```text
//!   POLLING ──pending──► WAITING ──woken──► POLLING ──ended──► DONE, callback
//!      │ ▲
//!      │ └── polls again
//!      └─woken─► NOTIFIED
//! ```
//!
//! A poll may have to start a new worker process, for which it waits for the lease's background thread. On that thread
//! it would wait for itself: there, a spurious wake-up is polled on a thread of its own.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Poll, Wake, Waker};

use crate::boundary::{guarded, invalid, sublet_status};
use crate::invocation::{CallSlot, slot, sublet_invocation};

/// Type of `sublet_callback`.
pub type sublet_callback = unsafe extern "C" fn(*mut sublet_invocation, *mut c_void);

/// A thread polls the invocation and owns it.
const POLLING: u8 = 0;
/// A thread polls the invocation, and a wake-up has come meanwhile.
const NOTIFIED: u8 = 1;
/// The thread of the next wake-up will own the invocation.
const WAITING: u8 = 2;
/// The callback has been called; wake-ups are ignored.
const DONE: u8 = 3;

struct CallbackWatch {
    invocation: *mut sublet_invocation,
    callback: sublet_callback,
    user: *mut c_void,
    /// State, changed by compare-and-swap or stored by the owner of the invocation. A Release gives ownership up, so that
    /// the Acquire of the next owner sees all changes of the invocation.
    state: AtomicU8,
}

// SAFETY: the caller of `sublet_invocation_on_complete` leaves the invocation to the watch until the callback, and the
// state gives it to one thread at a time; `user` is only passed on, to a callback that is documented to run on any thread.
unsafe impl Send for CallbackWatch {}
// SAFETY: as above.
unsafe impl Sync for CallbackWatch {}

impl CallbackWatch {
    /// # Safety
    /// The caller owns the invocation: it has set the state to `POLLING`.
    unsafe fn call<'a>(&self) -> Option<&'a mut CallSlot> {
        // SAFETY: the invocation is alive until the callback, and only the caller uses it.
        unsafe { slot(self.invocation) }.ok()
    }

    /// Polls until the call has ended or has registered the waker.
    ///
    /// # Safety
    /// The caller owns the invocation, as for [`CallbackWatch::call`].
    unsafe fn advance(self: Arc<CallbackWatch>) {
        let waker = Waker::from(self.clone());
        loop {
            // SAFETY: as the caller vouches.
            let ended = unsafe { self.call() }.map_or(Poll::Ready(()), |call| call.poll(&waker));
            if ended.is_ready() {
                // SAFETY: as the caller vouches.
                return unsafe { self.finish() };
            }
            if self.state.compare_exchange(POLLING, WAITING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return;
            }
            self.state.store(POLLING, Ordering::Relaxed);
        }
    }

    /// Returns the invocation to its owner in C, by the callback.
    ///
    /// # Safety
    /// The caller owns the invocation, as for [`CallbackWatch::call`].
    unsafe fn finish(&self) {
        self.state.store(DONE, Ordering::Release);
        // SAFETY: the callback is the caller's, for just these arguments; nothing here touches the invocation again.
        unsafe { (self.callback)(self.invocation, self.user) };
    }

    /// Takes ownership of the invocation, or notifies its owner.
    fn take(&self) -> bool {
        let change = |state| match state {
            WAITING => Some(POLLING),
            POLLING => Some(NOTIFIED),
            _ => None,
        };
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, change) == Ok(WAITING)
    }
}

impl Wake for CallbackWatch {
    fn wake(self: Arc<CallbackWatch>) {
        if !self.take() {
            return;
        }
        // SAFETY: this thread has just taken ownership.
        if unsafe { self.call() }.is_none_or(|call| call.is_ready()) {
            // SAFETY: as above.
            return unsafe { self.finish() };
        }
        let watch = self.clone();
        // SAFETY: as above; ownership goes to the new thread.
        let poll = move || unsafe { watch.advance() };
        if std::thread::Builder::new().name("sublet callback".into()).spawn(poll).is_err() {
            // Without a thread, the callback comes early, and its wait for the invocation blocks.
            // SAFETY: there is no new thread, so this one still owns the invocation.
            unsafe { self.finish() };
        }
    }
}

/// Registers a callback for the end of a call.
///
/// # Safety
/// The duties of `sublet.h` hold: the invocation is not used until the callback, which may run on another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_invocation_on_complete(
    invocation: *mut sublet_invocation,
    callback: Option<sublet_callback>,
    user: *mut c_void,
) -> sublet_status {
    guarded(|| {
        let callback = callback.ok_or_else(|| invalid("the argument `callback` is a null pointer"))?;
        // SAFETY: null or the caller's invocation, which no other thread uses. Checks that there is a call.
        unsafe { slot(invocation) }?;
        let watch = Arc::new(CallbackWatch { invocation, callback, user, state: AtomicU8::new(POLLING) });
        // SAFETY: the state starts as POLLING, for this thread.
        unsafe { watch.advance() };
        Ok(())
    })
}
