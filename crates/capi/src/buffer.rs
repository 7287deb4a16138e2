//! Buffers: memory that workers access without copying, known to C only by its address.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sublet::{Buffer, Error};

use crate::boundary::{argument, guarded, invalid, output, sublet_status};
use crate::invoker::sublet_invoker;

/// Every buffer that C holds, by its address. One table serves all invokers, so that a buffer can be freed by its pointer
/// after its invoker is gone, and so that a foreign pointer is an error and not a crash.
static BUFFERS: Mutex<BTreeMap<usize, Buffer<u8>>> = Mutex::new(BTreeMap::new());

fn buffers() -> MutexGuard<'static, BTreeMap<usize, Buffer<u8>>> {
    BUFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands a buffer over to C.
fn lend(buffer: Buffer<u8>) -> *mut c_void {
    let data = buffer.start().as_ptr();
    buffers().insert(data.addr(), buffer);
    data.cast()
}

/// Takes a buffer back from C.
fn take_back(data: *mut c_void) -> Result<Buffer<u8>, Error> {
    let buffer = buffers().remove(&data.addr());
    buffer.ok_or_else(|| invalid(format!("there is no buffer at {data:p}: it was freed, or never given")))
}

/// Allocates memory that workers access without copying.
///
/// # Safety
/// The duties of `sublet.h` hold for invokers and outputs.
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
        // SAFETY: not null, so it is the caller's pointer to write.
        unsafe { data.write(lend(buffer)) };
        Ok(())
    })
}

/// Frees a buffer.
///
/// # Safety
/// No call may be using the buffer, and its memory must not be used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_buffer_free(data: *mut c_void) -> sublet_status {
    guarded(|| if data.is_null() { Ok(()) } else { take_back(data).map(drop) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_foreign_address_and_ignores_null() {
        let mut elsewhere = 0u8;
        let pointer = (&raw mut elsewhere).cast();
        // SAFETY: neither address is a buffer.
        unsafe {
            assert_eq!(sublet_buffer_free(pointer), 10);
            assert_eq!(sublet_buffer_free(std::ptr::null_mut()), 0);
        }
    }
}
