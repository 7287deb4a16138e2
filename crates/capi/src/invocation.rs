//! Invocations: calls that live in the caller's memory, so that calling allocates nothing.
//!
//! `struct sublet_invocation` has space for a `CallSlot` behind a tag that says whether it holds one. C may move it by copying
//! its bytes, as Rust moves a value. The tag is neither 0 nor likely in uninitialized memory, so most invalid invocations
//! end in `invalid_argument`.

use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use sublet::{Completion, Error, Invocation};

use crate::boundary::{duration, guarded, invalid, output, sublet_status};

/// Words of `struct sublet_invocation`, more than are used, so that later libraries with larger calls still fit older
/// programs.
const WORDS: usize = 32;

/// Layout of `struct sublet_invocation`, the C view of a `Storage`.
#[repr(C)]
pub struct sublet_invocation {
    opaque: [u64; WORDS],
}

/// `struct sublet_completion`.
#[repr(C)]
pub struct sublet_completion {
    output_bytes: u64,
    executing_ns: u64,
}

#[repr(C)]
struct Storage {
    tag: u64,
    slot: MaybeUninit<CallSlot>,
}

/// A submitted call, and its result if that was collected early.
pub(crate) struct CallSlot {
    call: Invocation<'static>,
    result: Option<Result<Completion, Error>>,
}

/// The storage holds no slot: `SUBLET_INVOCATION_INIT`.
const CLOSED: u64 = 0;
/// The storage holds a slot.
const OPEN: u64 = u64::from_le_bytes(*b"subletOK");

const _: () = assert!(size_of::<Storage>() <= size_of::<sublet_invocation>());
const _: () = assert!(align_of::<Storage>() <= align_of::<sublet_invocation>());
// The future must stay movable by copying its bytes while it is polled.
const _: () = is_unpin::<CallSlot>();
const fn is_unpin<T: Unpin>() {}

impl CallSlot {
    pub(crate) fn is_ready(&mut self) -> bool {
        self.result.is_some() || self.call.is_ready()
    }

    /// Returns whether the call has ended; registers the waker if not. The result remains to be collected.
    pub(crate) fn poll(&mut self, waker: &Waker) -> Poll<()> {
        if self.is_ready() {
            return Poll::Ready(());
        }
        Pin::new(&mut self.call)
            .poll(&mut Context::from_waker(waker))
            .map(|result| self.result = Some(result))
    }

    #[inline(always)]
    fn collect(&mut self) -> Result<Completion, Error> {
        self.result.take().unwrap_or_else(|| self.call.finish())
    }

    /// Adds a timeout to the current time; `None` if the sum exceeds the clock.
    fn collect_before(mut self, deadline: Option<Instant>) -> Result<Completion, Error> {
        match deadline {
            Some(at) if self.result.is_none() => self.call.wait_deadline(at),
            _ => self.collect(),
        }
    }
}

/// Stores a call.
///
/// # Safety
/// The storage is the caller's, and holds no call.
#[inline(always)]
pub(crate) unsafe fn store(place: NonNull<sublet_invocation>, call: Invocation<'static>) {
    let storage = Storage { tag: OPEN, slot: MaybeUninit::new(CallSlot { call, result: None }) };
    // SAFETY: the storage has the size and alignment for this, as asserted above.
    unsafe { place.cast::<Storage>().write(storage) };
}

/// Returns the call in storage.
///
/// # Safety
/// `invocation` is null or initialized, and no one else uses it while the reference is used.
#[inline(always)]
pub(crate) unsafe fn slot<'a>(invocation: *mut sublet_invocation) -> Result<&'a mut CallSlot, Error> {
    let storage = output(invocation, "invocation")?.cast::<Storage>().as_ptr();
    // SAFETY: not null, so the tag can be read, with or without a slot.
    if unsafe { (*storage).tag } != OPEN {
        return Err(no_call());
    }
    // SAFETY: the tag says that there is a slot, and the caller vouches that no one else uses it.
    Ok(unsafe { (*storage).slot.assume_init_mut() })
}

/// Takes the call out of storage.
///
/// # Safety
/// As for [`slot`].
unsafe fn take(invocation: *mut sublet_invocation) -> Result<CallSlot, Error> {
    // SAFETY: as the caller vouches.
    let slot: *mut CallSlot = unsafe { slot(invocation) }?;
    // SAFETY: there is a slot, so this is storage; the tag then says that there is none, so it is taken only once.
    unsafe {
        (*invocation.cast::<Storage>()).tag = CLOSED;
        Ok(slot.read())
    }
}

/// Collects the result in place, where the caches have it, and closes the invocation.
///
/// # Safety
/// As for [`slot`].
#[inline(always)]
unsafe fn end(invocation: *mut sublet_invocation) -> Result<Completion, Error> {
    // SAFETY: as the caller vouches.
    let slot = unsafe { slot(invocation) }?;
    let result = slot.collect();
    let slot: *mut CallSlot = slot;
    // SAFETY: there is a slot, so this is storage; the tag then says that there is none, so it is dropped only once.
    unsafe {
        (*invocation.cast::<Storage>()).tag = CLOSED;
        slot.drop_in_place();
    }
    result
}

/// Writes the result of a call, unless the pointer is null.
///
/// # Safety
/// `place` is null or the caller's.
#[inline(always)]
unsafe fn tell(done: Completion, place: *mut sublet_completion) {
    if place.is_null() {
        return;
    }
    let completion = sublet_completion {
        output_bytes: done.output_bytes as u64,
        executing_ns: u64::try_from(done.executing.as_nanos()).unwrap_or(u64::MAX),
    };
    // SAFETY: not null, so it is the caller's memory.
    unsafe { place.write(completion) };
}

#[cold]
fn no_call() -> Error {
    invalid("the invocation holds no call: it was never submitted, or has been collected or closed")
}

/// Whether the call has ended.
///
/// # Safety
/// The duties of `sublet.h` hold for invocations and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_invocation_is_ready(
    invocation: *const sublet_invocation,
    ready: *mut bool,
) -> sublet_status {
    guarded(|| {
        let place = output(ready, "ready")?;
        // SAFETY: the caller's invocation, which no one else uses meanwhile.
        let is_ready = unsafe { slot(invocation.cast_mut()) }?.is_ready();
        // SAFETY: not null, so it is the caller's memory.
        unsafe { place.write(is_ready) };
        Ok(())
    })
}

/// Waits for the end and collects the result.
///
/// # Safety
/// The duties of `sublet.h` hold for invocations; `completion` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_invocation_wait(
    invocation: *mut sublet_invocation,
    completion: *mut sublet_completion,
) -> sublet_status {
    guarded(|| {
        // SAFETY: the caller's invocation, which no one else uses.
        let done = unsafe { end(invocation) }?;
        // SAFETY: null or the caller's memory.
        unsafe { tell(done, completion) };
        Ok(())
    })
}

/// Waits for the end for a time.
///
/// # Safety
/// The duties of `sublet.h` hold for invocations and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_invocation_wait_timeout(
    invocation: *mut sublet_invocation,
    timeout_ns: u64,
    ended: *mut bool,
) -> sublet_status {
    guarded(|| {
        let place = output(ended, "ended")?;
        // SAFETY: the caller's invocation, which no one else uses.
        let slot = unsafe { slot(invocation) }?;
        let has_ended = slot.is_ready() || slot.call.wait_timeout(duration(timeout_ns));
        // SAFETY: not null, so it is the caller's memory.
        unsafe { place.write(has_ended) };
        Ok(())
    })
}

/// Waits for the end of the call, which is forced at the deadline.
///
/// # Safety
/// The duties of `sublet.h` hold for invocations; `completion` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_invocation_wait_deadline(
    invocation: *mut sublet_invocation,
    timeout_ns: u64,
    completion: *mut sublet_completion,
) -> sublet_status {
    guarded(|| {
        let deadline = Instant::now().checked_add(duration(timeout_ns));
        // SAFETY: the caller's invocation, which no one else uses.
        let done = unsafe { take(invocation) }?.collect_before(deadline)?;
        // SAFETY: null or the caller's memory.
        unsafe { tell(done, completion) };
        Ok(())
    })
}

/// Ends the use of an invocation.
///
/// # Safety
/// The duties of `sublet.h` hold for invocations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_invocation_close(invocation: *mut sublet_invocation) {
    guarded(|| {
        // SAFETY: the caller's invocation, which no one else uses, or null.
        let call = unsafe { take(invocation) };
        // Dropping a call waits for its end; an invocation without a call needs nothing.
        drop(call);
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed() -> sublet_invocation {
        sublet_invocation { opaque: [CLOSED; WORDS] }
    }

    #[test]
    fn rejects_empty_invocation_and_ignores_closing_it() {
        let mut invocation = closed();
        let (mut ready, mut completion) = (true, MaybeUninit::uninit());
        // SAFETY: initialized storage, used by this thread alone.
        unsafe {
            assert_eq!(sublet_invocation_is_ready(&invocation, &mut ready), 10);
            assert_eq!(sublet_invocation_wait(&mut invocation, completion.as_mut_ptr()), 10);
            assert_eq!(sublet_invocation_wait_timeout(&mut invocation, 0, &mut ready), 10);
            assert_eq!(sublet_invocation_wait_deadline(&mut invocation, 0, std::ptr::null_mut()), 10);
            sublet_invocation_close(&mut invocation);
            sublet_invocation_close(std::ptr::null_mut());
        }
        assert!(ready, "an output was written by a function that failed");
    }

    #[test]
    fn null_pointers_are_refused() {
        let (null, mut flag) = (std::ptr::null_mut(), false);
        // SAFETY: null pointers, as each function allows.
        unsafe {
            assert_eq!(sublet_invocation_is_ready(null, &mut flag), 10);
            assert_eq!(sublet_invocation_is_ready(&closed(), std::ptr::null_mut()), 10);
            assert_eq!(sublet_invocation_wait(null, std::ptr::null_mut()), 10);
        }
    }
}
