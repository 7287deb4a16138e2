//! Memory of Python's objects, and Python's objects over memory.
//!
//! - [`BufferView`] is an object's memory, by the buffer protocol (PEP 3118);
//! - [`memoryview`] creates an object over memory that Python does not own;
//! - [`Exporter`] makes such objects, and knows whether any of them still exists.
//!
//! PyO3's `PyBuffer` gives out slices of the memory, which Python code may change at any time. A [`BufferView`] only
//! copies into the memory and out of it.

#![allow(unsafe_code)]
// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

use std::ptr::{self, NonNull};

use pyo3::ffi;
use pyo3::prelude::*;

mod exporter;

pub use exporter::{Exporter, Notify};

/// How an object's memory is to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferUse {
    /// Reading only.
    Reading,
    /// Reading and writing: the object must allow writes.
    Writing,
}

/// An object's memory, one stretch of bytes. The object keeps it where it is for as long as there are views of it.
///
/// It is never a slice: Python code may write there at any time.
pub struct BufferView {
    // In a box: the interpreter refers to it.
    raw: Box<ffi::Py_buffer>,
}

// SAFETY: what it holds is used and given back only by threads that are attached to the interpreter.
unsafe impl Send for BufferView {}
// SAFETY: as above; through a shared reference nothing is changed.
unsafe impl Sync for BufferView {}

impl BufferView {
    /// That of an object which has the buffer protocol, and whose bytes lie in C order without gaps.
    ///
    /// # Errors
    /// What the object raises: `TypeError` if it has no memory to show, `BufferError` if that has gaps or is not writable.
    pub fn of(object: &Bound<'_, PyAny>, how: BufferUse) -> PyResult<BufferView> {
        let mut raw = Box::new(ffi::Py_buffer::new());
        let flags = match how {
            BufferUse::Reading => ffi::PyBUF_SIMPLE,
            BufferUse::Writing => ffi::PyBUF_WRITABLE,
        };
        // SAFETY: this thread is attached; the object is alive, and the structure is the interpreter's own, which stays where it is.
        match unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *raw, flags) } {
            0 => Ok(BufferView { raw }),
            _ => {
                // There is nothing to give back.
                raw.obj = ptr::null_mut();
                Err(PyErr::fetch(object.py()))
            }
        }
    }

    /// The start of the memory; never null.
    pub fn pointer(&self) -> NonNull<u8> {
        NonNull::new(self.raw.buf.cast()).unwrap_or(NonNull::<u128>::dangling().cast())
    }

    /// Length of the memory, in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn len(&self) -> usize {
        self.raw.len.max(0).cast_unsigned()
    }

    /// Copies bytes from `offset` on, up to the end of the memory. The bytes have any value if others write them
    /// meanwhile.
    pub fn copy_to(&self, offset: u64, into: &mut [u8]) {
        let (at, len) = part(self.len(), offset, into.len());
        // SAFETY: `len` bytes from `at` on are within the object's memory; `into` is other memory, and has `len` bytes.
        unsafe { self.pointer().add(at).copy_to_nonoverlapping(NonNull::from(into).cast(), len) };
    }

    /// Copies bytes to `offset` on, up to the end of the memory. Copies nothing into a read-only view.
    pub fn copy_from(&self, offset: u64, from: &[u8]) {
        let wanted = if self.is_read_only() { 0 } else { from.len() };
        let (at, len) = part(self.len(), offset, wanted);
        // SAFETY: `len` bytes from `at` on are within the object's memory, and none are copied unless it is writable;
        // `from` is other memory, and has `len` bytes. Others may read the object's memory meanwhile, so there is no
        // slice of it.
        unsafe { self.pointer().add(at).copy_from_nonoverlapping(NonNull::from(from).cast(), len) };
    }

    /// Whether the memory must not be written.
    pub fn is_read_only(&self) -> bool {
        self.raw.readonly != 0
    }
}

/// The offset and the length of up to `wanted` bytes from `offset` on, of memory of `len` bytes. Both are within the memory,
/// whatever is asked for.
const fn part(len: usize, offset: u64, wanted: usize) -> (usize, usize) {
    if offset >= len as u64 {
        return (len, 0);
    }
    #[expect(clippy::cast_possible_truncation, reason = "it is less than the length, which is a `usize`")]
    let at = offset as usize;
    (at, if wanted < len - at { wanted } else { len - at })
}

// Tests that the compiler executes: this crate cannot be linked outside of an interpreter.
const _: () = {
    assert!(matches!(part(8, 0, 3), (0, 3)) && matches!(part(8, 5, 9), (5, 3)));
    assert!(matches!(part(8, 8, 1), (8, 0)) && matches!(part(0, 0, 1), (0, 0)));
    assert!(matches!(part(8, u64::MAX, 8), (8, 0)) && matches!(part(0, 7, usize::MAX), (0, 0)));
};

impl Drop for BufferView {
    fn drop(&mut self) {
        if !self.raw.obj.is_null() {
            // SAFETY: it was filled by `PyObject_GetBuffer` and is given back once, by a thread that is attached.
            Python::attach(|_| unsafe { ffi::PyBuffer_Release(&mut *self.raw) });
        }
    }
}

/// Creates a memoryview of `len_bytes` bytes at `at`.
///
/// # Safety
/// The bytes stay mapped while the process lives, or until the object and all objects made of it have been freed.
pub unsafe fn memoryview<'py>(
    py: Python<'py>,
    at: NonNull<u8>,
    len_bytes: u64,
    how: BufferUse,
) -> PyResult<Bound<'py, PyAny>> {
    let len = isize::try_from(len_bytes)?;
    let flags = match how {
        BufferUse::Reading => ffi::PyBUF_READ,
        BufferUse::Writing => ffi::PyBUF_WRITE,
    };
    // SAFETY: this thread is attached, and the caller vouches for the memory.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyMemoryView_FromMemory(at.as_ptr().cast(), len, flags)) }
}
