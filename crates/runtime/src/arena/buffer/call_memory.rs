//! Memory that calls take as input and output.

use bytemuck::Pod;
use sublet_fabric::{SharedBytes, SharedBytesMut};

use super::{Buffer, BufferPart, BufferPartMut};

/// Memory that the input of a call can be: a [`Buffer`], a part of one, a slice, an array or a vector.
///
/// Workers read a buffer in place. Other memory is copied once.
pub trait InputMemory {
    /// The bytes of the input, which stay readable for as long as `self` is borrowed.
    fn shared_bytes(&self) -> SharedBytes<'_>;
}

/// Memory that the output of a call can be: a [`Buffer`], a part of one, a slice, an array or a vector.
///
/// Workers write a buffer in place. Other memory is written once, when the call has ended.
pub trait OutputMemory {
    /// The bytes of the output, which stay writable for as long as `self` is borrowed. Any bytes may be written.
    fn shared_bytes_mut(&mut self) -> SharedBytesMut<'_>;
}

impl<T: Pod> InputMemory for [T] {
    #[inline(always)]
    fn shared_bytes(&self) -> SharedBytes<'_> {
        SharedBytes::from(bytemuck::cast_slice::<T, u8>(self))
    }
}

impl<T: Pod> OutputMemory for [T] {
    #[inline(always)]
    fn shared_bytes_mut(&mut self) -> SharedBytesMut<'_> {
        SharedBytesMut::from(bytemuck::cast_slice_mut::<T, u8>(self))
    }
}

impl<T: Pod, const N: usize> InputMemory for [T; N] {
    #[inline(always)]
    fn shared_bytes(&self) -> SharedBytes<'_> {
        self.as_slice().shared_bytes()
    }
}

impl<T: Pod, const N: usize> OutputMemory for [T; N] {
    #[inline(always)]
    fn shared_bytes_mut(&mut self) -> SharedBytesMut<'_> {
        self.as_mut_slice().shared_bytes_mut()
    }
}

impl<T: Pod> InputMemory for Vec<T> {
    #[inline(always)]
    fn shared_bytes(&self) -> SharedBytes<'_> {
        self.as_slice().shared_bytes()
    }
}

impl<T: Pod> OutputMemory for Vec<T> {
    #[inline(always)]
    fn shared_bytes_mut(&mut self) -> SharedBytesMut<'_> {
        self.as_mut_slice().shared_bytes_mut()
    }
}

impl<T: Pod> InputMemory for Buffer<T> {
    #[inline(always)]
    fn shared_bytes(&self) -> SharedBytes<'_> {
        self.whole().bytes
    }
}

impl<T: Pod> OutputMemory for Buffer<T> {
    #[inline(always)]
    fn shared_bytes_mut(&mut self) -> SharedBytesMut<'_> {
        self.whole_mut().bytes
    }
}

impl<T: Pod> InputMemory for BufferPart<'_, T> {
    #[inline(always)]
    fn shared_bytes(&self) -> SharedBytes<'_> {
        self.bytes
    }
}

impl<T: Pod> InputMemory for BufferPartMut<'_, T> {
    #[inline(always)]
    fn shared_bytes(&self) -> SharedBytes<'_> {
        self.as_part().bytes
    }
}

impl<T: Pod> OutputMemory for BufferPartMut<'_, T> {
    #[inline(always)]
    fn shared_bytes_mut(&mut self) -> SharedBytesMut<'_> {
        self.bytes.reborrow()
    }
}

impl<I: InputMemory + ?Sized> InputMemory for &I {
    #[inline(always)]
    fn shared_bytes(&self) -> SharedBytes<'_> {
        (**self).shared_bytes()
    }
}

impl<I: InputMemory + ?Sized> InputMemory for &mut I {
    #[inline(always)]
    fn shared_bytes(&self) -> SharedBytes<'_> {
        (**self).shared_bytes()
    }
}

impl<O: OutputMemory + ?Sized> OutputMemory for &mut O {
    #[inline(always)]
    fn shared_bytes_mut(&mut self) -> SharedBytesMut<'_> {
        (**self).shared_bytes_mut()
    }
}

impl<'buffer, T: Pod> From<&'buffer Buffer<T>> for SharedBytes<'buffer> {
    #[inline(always)]
    fn from(buffer: &'buffer Buffer<T>) -> SharedBytes<'buffer> {
        buffer.whole().bytes
    }
}

impl<'buffer, T: Pod> From<BufferPart<'buffer, T>> for SharedBytes<'buffer> {
    #[inline(always)]
    fn from(part: BufferPart<'buffer, T>) -> SharedBytes<'buffer> {
        part.bytes
    }
}

impl<'buffer, T: Pod> From<&'buffer mut Buffer<T>> for SharedBytesMut<'buffer> {
    #[inline(always)]
    fn from(buffer: &'buffer mut Buffer<T>) -> SharedBytesMut<'buffer> {
        buffer.whole_mut().bytes
    }
}

impl<'buffer, T: Pod> From<BufferPartMut<'buffer, T>> for SharedBytesMut<'buffer> {
    #[inline(always)]
    fn from(part: BufferPartMut<'buffer, T>) -> SharedBytesMut<'buffer> {
        part.bytes
    }
}
