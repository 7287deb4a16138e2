//! Callbacks: whom to call when a call has ended.
//!
//! A `Watch` is the waker of an invocation's future. Whoever is woken could find that the call has not ended, and
//! must then poll again; and it may be woken while the first poll is still on its way, on another thread, whereas only
//! one may touch the invocation. So the watch has a state, and who has put it to `POLLING` owns the invocation:
//!
//! ```text
//!   POLLING ──pending──► WAITING ──woken──► POLLING ──ended──► DONE, callback
//!      │ ▲
//!      │ └── polls again
//!      └─woken─► NOTIFIED
//! ```
//!
//! A poll may have to start a new worker process, for which it waits for the lease's background thread. On that very
//! thread it would wait for itself; there a wake-up that turns out to be none polls on a thread of its own.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Poll, Wake, Waker};

use crate::boundary::{guarded, invalid, sublet_status};
use crate::invocation::{Slot, slot, sublet_invocation};

/// `sublet_callback`.
pub type sublet_callback = unsafe extern "C" fn(*mut sublet_invocation, *mut c_void);

/// Somebody polls the invocation, and it is theirs.
const POLLING: u8 = 0;
/// As POLLING, and a wake-up came meanwhile.
const NOTIFIED: u8 = 1;
/// The next wake-up takes the invocation.
const WAITING: u8 = 2;
/// The callback has been called; wake-ups mean nothing any more.
const DONE: u8 = 3;

struct Watch {
    invocation: *mut sublet_invocation,
    callback: sublet_callback,
    user: *mut c_void,
    /// Changed by compare-and-swap, or stored by the owner of the invocation. Release when ownership is given up, so
    /// that the Acquire of the next owner sees all that was done to the invocation.
    state: AtomicU8,
}

// SAFETY: the caller of `sublet_invocation_on_complete` leaves the invocation to the watch until the callback, and the
// state gives it to one thread at a time; `user` is only handed on, to a callback that is told of its thread.
unsafe impl Send for Watch {}
// SAFETY: as above.
unsafe impl Sync for Watch {}

impl Watch {
    /// # Safety
    /// The caller owns the invocation: it has put the state to `POLLING`.
    unsafe fn call<'a>(&self) -> Option<&'a mut Slot> {
        // SAFETY: the invocation is alive until the callback, and the caller's alone.
        unsafe { slot(self.invocation) }.ok()
    }

    /// Polls until the call has ended or will wake the watch.
    ///
    /// # Safety
    /// As for [`Watch::call`].
    unsafe fn advance(self: Arc<Watch>) {
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

    /// Gives the invocation back to its owner in C.
    ///
    /// # Safety
    /// As for [`Watch::call`].
    unsafe fn finish(&self) {
        self.state.store(DONE, Ordering::Release);
        // SAFETY: the callback is the caller's, for just these arguments; nothing here touches the invocation again.
        unsafe { (self.callback)(self.invocation, self.user) };
    }

    /// Takes the invocation, or leaves word to its owner.
    fn take(&self) -> bool {
        let change = |state| match state {
            WAITING => Some(POLLING),
            POLLING => Some(NOTIFIED),
            _ => None,
        };
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, change) == Ok(WAITING)
    }
}

impl Wake for Watch {
    fn wake(self: Arc<Watch>) {
        if !self.take() {
            return;
        }
        // SAFETY: the invocation has just been taken.
        if unsafe { self.call() }.is_none_or(|call| call.is_ready()) {
            // SAFETY: as above.
            return unsafe { self.finish() };
        }
        let watch = self.clone();
        // SAFETY: as above; ownership goes to the new thread.
        let poll = move || unsafe { watch.advance() };
        if std::thread::Builder::new().name("sublet callback".into()).spawn(poll).is_err() {
            // Better early than never: the callback is then the one who waits.
            // SAFETY: there is no new thread, so the invocation is still this one's.
            unsafe { self.finish() };
        }
    }
}

/// Has the callback called once the call has ended.
///
/// # Safety
/// As `sublet.h` says: the invocation is left alone until then, and the callback may be called on another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_invocation_on_complete(
    invocation: *mut sublet_invocation,
    callback: Option<sublet_callback>,
    user: *mut c_void,
) -> sublet_status {
    guarded(|| {
        let callback = callback.ok_or_else(|| invalid("the argument `callback` is a null pointer"))?;
        // SAFETY: null or the caller's invocation, which nobody else uses. This is to see whether there is a call.
        unsafe { slot(invocation) }?;
        let watch = Arc::new(Watch { invocation, callback, user, state: AtomicU8::new(POLLING) });
        // SAFETY: the state was born POLLING, for this thread.
        unsafe { watch.advance() };
        Ok(())
    })
}
