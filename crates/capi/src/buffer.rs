//! Buffers: memory that workers reach without copying, known to C by its address alone.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sublet::{Buffer, Error};

use crate::boundary::{argument, guarded, invalid, output, sublet_status};
use crate::invoker::sublet_invoker;

/// Every buffer that C holds, by its address. One table for all invokers, so that freeing needs nothing but the
/// pointer, also after the invoker is gone, and so that a pointer that is none of ours is an error and not a crash.
static BUFFERS: Mutex<BTreeMap<usize, Buffer<u8>>> = Mutex::new(BTreeMap::new());

fn buffers() -> MutexGuard<'static, BTreeMap<usize, Buffer<u8>>> {
    BUFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a buffer to C.
fn lend(mut buffer: Buffer<u8>) -> *mut c_void {
    let data = buffer.as_mut_ptr();
    buffers().insert(data.addr(), buffer);
    data.cast()
}

/// Takes a buffer back from C.
fn take_back(data: *mut c_void) -> Result<Buffer<u8>, Error> {
    let buffer = buffers().remove(&data.addr());
    buffer.ok_or_else(|| invalid(format!("there is no buffer at {data:p}: it was freed, or never given")))
}

/// Allocates memory that workers reach without copying.
///
/// # Safety
/// As `sublet.h` says of invokers and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_buffer_allocate(
    invoker: *const sublet_invoker,
    len_bytes: usize,
    data: *mut *mut c_void,
) -> sublet_status {
    guarded(|| {
        // SAFETY: the caller's invoker, which it does not free or lease with meanwhile.
        let invoker = unsafe { argument(invoker, "invoker") }?;
        let data = output(data, "data")?;
        let buffer = invoker.facade().buffer(len_bytes)?;
        // SAFETY: not null, so it is the caller's place for a pointer.
        unsafe { data.write(lend(buffer)) };
        Ok(())
    })
}

/// Frees a buffer.
///
/// # Safety
/// No call may be using the buffer, and nobody may use its memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_buffer_free(data: *mut c_void) -> sublet_status {
    guarded(|| if data.is_null() { Ok(()) } else { take_back(data).map(drop) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_no_buffer_is_an_error_and_null_is_nothing() {
        let mut elsewhere = 0u8;
        let pointer = (&raw mut elsewhere).cast();
        // SAFETY: neither is a buffer.
        unsafe {
            assert_eq!(sublet_buffer_free(pointer), 10);
            assert_eq!(sublet_buffer_free(std::ptr::null_mut()), 0);
        }
    }
}
