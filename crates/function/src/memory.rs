//! Views of a call's input and output, which the client may read and write at any time: they copy, and make no references.
//!
//! Each access lies within the length that the worker has stated, whatever the client writes. A copy that races with the
//! client has any bytes, old and new mixed; every value of a [`PlainValue`] type is valid. Rust's memory model does not define a
//! copy that races with another process. As in Sublet's own code, the copy is one `memmove` through raw pointers, from which
//! the compiler draws no conclusions about the memory afterwards.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use crate::FunctionError;

/// A type of which any bytes are a valid value, as numbers are.
///
/// # Safety
/// Every value of the bytes is valid, and there is no padding between or behind the fields (`repr(C)` for structures). Byte
/// order and layout are those of the processor, which client and function must agree on.
pub unsafe trait PlainValue: Copy + Default + 'static {}

macro_rules! plain {
    ($($number:ty)*) => {
        // SAFETY: each value of the bytes is a number, and numbers have no padding.
        $(unsafe impl PlainValue for $number {})*
    };
}

plain!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64);

// SAFETY: values of a plain type behind each other, without padding between them.
unsafe impl<T: PlainValue, const N: usize> PlainValue for [T; N] where [T; N]: Default {}

/// Input of a call, in the client's memory.
#[derive(Clone, Copy, Debug)]
pub struct InputView<'call> {
    start: NonNull<u8>,
    len_bytes: usize,
    call: PhantomData<&'call ()>,
}

impl<'call> InputView<'call> {
    /// # Safety
    /// `len_bytes` bytes at `start` can be read for `'call`. There is no reference to them that forbids others to write.
    pub(crate) unsafe fn new(start: NonNull<u8>, len_bytes: usize) -> InputView<'call> {
        InputView { start, len_bytes, call: PhantomData }
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Number of values of this type.
    ///
    /// # Errors
    /// The length in bytes is not a multiple of the type's size.
    pub fn count<T: PlainValue>(&self) -> Result<usize, FunctionError> {
        let size = size_of_value::<T>();
        if self.len_bytes.is_multiple_of(size) {
            return Ok(self.len_bytes / size);
        }
        let name = std::any::type_name::<T>();
        Err(FunctionError::new(format_args!(
            "the input has {} bytes, which is not a multiple of {size} ({name})",
            self.len_bytes
        )))
    }

    /// Copies the whole input.
    ///
    /// # Errors
    /// As for [`InputView::count`].
    pub fn to_vec<T: PlainValue>(&self) -> Result<Vec<T>, FunctionError> {
        let count = self.count::<T>()?;
        let mut values = Vec::<T>::with_capacity(count);
        // SAFETY: the input has `len_bytes` bytes, and the vector memory for as many. All of its values are then initialized,
        // since any bytes are a valid value.
        unsafe {
            std::ptr::copy(self.start.as_ptr(), values.as_mut_ptr().cast(), self.len_bytes);
            values.set_len(count);
        }
        Ok(values)
    }

    /// Copies the value at an index.
    ///
    /// # Panics
    /// If the index is beyond the last whole value.
    pub fn get<T: PlainValue>(&self, index: usize) -> T {
        let at = offset_of_values::<T>(index, 1, self.len_bytes);
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: the value's bytes lie within the input. Any bytes are a valid value.
        unsafe {
            std::ptr::copy(self.start.as_ptr().add(at), value.as_mut_ptr().cast(), size_of::<T>());
            value.assume_init()
        }
    }

    /// Copies values from an index on, to fill `into`.
    ///
    /// # Panics
    /// If the input ends before.
    pub fn copy_to<T: PlainValue>(&self, index: usize, into: &mut [T]) {
        let at = offset_of_values::<T>(index, into.len(), self.len_bytes);
        // SAFETY: the bytes lie within the input, and `into` has as many. Any bytes are valid values.
        unsafe {
            std::ptr::copy(self.start.as_ptr().add(at), into.as_mut_ptr().cast(), size_of_val(into));
        }
    }

    /// Address of the input, for access in place. It is aligned to 8 bytes if the client passes a whole buffer of Sublet.
    ///
    /// A reference made of it is sound only while no client writes the memory, which Sublet does not enforce.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }
}

/// Output of a call, in the client's memory.
#[derive(Debug)]
pub struct OutputView<'call> {
    start: NonNull<u8>,
    capacity_bytes: usize,
    call: PhantomData<&'call ()>,
}

impl<'call> OutputView<'call> {
    /// # Safety
    /// `capacity_bytes` bytes at `start` can be written for `'call`. There is no reference to them.
    pub(crate) unsafe fn new(start: NonNull<u8>, capacity_bytes: usize) -> OutputView<'call> {
        OutputView { start, capacity_bytes, call: PhantomData }
    }

    /// Number of bytes that the caller takes.
    pub fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    /// Number of whole values of this type that fit.
    pub fn capacity<T: PlainValue>(&self) -> usize {
        self.capacity_bytes / size_of_value::<T>()
    }

    /// Writes the value at an index.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn set<T: PlainValue>(&mut self, index: usize, value: T) {
        self.copy_from(index, &[value]);
    }

    /// Writes values from an index on.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn copy_from<T: PlainValue>(&mut self, index: usize, from: &[T]) {
        let at = offset_of_values::<T>(index, from.len(), self.capacity_bytes);
        // SAFETY: the bytes lie within the output, and `from` has as many, all initialized: plain types have no padding.
        unsafe {
            std::ptr::copy(from.as_ptr().cast(), self.start.as_ptr().add(at), size_of_val(from));
        }
    }

    /// Address of the output, for access in place. It is aligned to 8 bytes if the client passes a whole buffer of Sublet.
    ///
    /// A reference made of it is sound only while no client reads or writes the memory, which Sublet does not enforce.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }
}

const fn size_of_value<T: PlainValue>() -> usize {
    const { assert!(size_of::<T>() > 0, "values without bytes cannot be counted") };
    size_of::<T>()
}

/// Offset in bytes of `count` values from `index` on, within memory of this length.
fn offset_of_values<T: PlainValue>(index: usize, count: usize, len_bytes: usize) -> usize {
    let size = size_of_value::<T>();
    let end = index.checked_add(count).and_then(|end| end.checked_mul(size));
    assert!(
        end.is_some_and(|end| end <= len_bytes),
        "values {index}..{} of {size} bytes lie beyond the {len_bytes} bytes of the call",
        index.saturating_add(count)
    );
    index * size
}
