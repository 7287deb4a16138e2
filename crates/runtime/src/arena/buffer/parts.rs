//! Parts of a buffer, through which all of its values are copied.

use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};

use bytemuck::Pod;
use sublet_fabric::{SharedBytes, SharedBytesMut};

/// Size of the private memory from which a buffer is filled, in bytes.
pub(super) const FILL_BYTES: usize = 4096;

/// Values of a [`Buffer`](super::Buffer), to be read. Copies values as the buffer does.
#[derive(Clone, Copy, Debug)]
pub struct BufferPart<'buffer, T: Pod> {
    pub(super) bytes: SharedBytes<'buffer>,
    len: usize,
    values: PhantomData<T>,
}

impl<'buffer, T: Pod> BufferPart<'buffer, T> {
    /// Views bytes of a buffer as `len` values.
    #[inline(always)]
    pub(super) fn new(bytes: SharedBytes<'buffer>, len: usize) -> BufferPart<'buffer, T> {
        debug_assert!(bytes.len() == len * size_of::<T>(), "{} bytes for {len} values", bytes.len());
        BufferPart { bytes, len, values: PhantomData }
    }

    /// Number of values.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether the part has no values.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Copies the value at an index of the part.
    ///
    /// # Panics
    /// If the part has no such value, as indexing a slice does.
    #[inline]
    pub fn get(self, index: usize) -> T {
        let mut value = T::zeroed();
        self.copy_to(index, std::slice::from_mut(&mut value));
        value
    }

    /// Copies values from an index of the part on, to fill `into`.
    ///
    /// # Panics
    /// If the part ends before, as indexing a slice with that range does.
    #[inline]
    pub fn copy_to(self, index: usize, into: &mut [T]) {
        let part = self.part(index..index.saturating_add(into.len()));
        part.bytes.copy_to(bytemuck::cast_slice_mut::<T, u8>(into));
    }

    /// Copies all values of the part to private memory.
    pub fn to_vec(self) -> Vec<T> {
        let mut values = vec![T::zeroed(); self.len];
        self.copy_to(0, &mut values);
        values
    }

    /// Iterates over the values of the part, and copies each when its turn comes.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = T> + ExactSizeIterator {
        (0..self.len).map(move |index| self.get(index))
    }

    /// Some of the values of the part.
    ///
    /// # Panics
    /// If the range lies beyond the part, as for a slice.
    #[inline]
    pub fn part(self, range: impl RangeBounds<usize>) -> BufferPart<'buffer, T> {
        let Range { start, end } = checked(range, self.len);
        let bytes = self.bytes.part(start * size_of::<T>()..end * size_of::<T>());
        BufferPart::new(bytes, end - start)
    }

    /// The same memory as bytes.
    #[inline]
    pub fn bytes(self) -> BufferPart<'buffer, u8> {
        BufferPart::new(self.bytes, self.bytes.len())
    }
}

/// Values of a [`Buffer`](super::Buffer), to be written. Copies values as the buffer does.
#[derive(Debug)]
pub struct BufferPartMut<'buffer, T: Pod> {
    pub(super) bytes: SharedBytesMut<'buffer>,
    len: usize,
    values: PhantomData<T>,
}

impl<'buffer, T: Pod> BufferPartMut<'buffer, T> {
    /// Views bytes of a buffer as `len` values.
    #[inline(always)]
    pub(super) fn new(bytes: SharedBytesMut<'buffer>, len: usize) -> BufferPartMut<'buffer, T> {
        debug_assert!(bytes.len() == len * size_of::<T>(), "{} bytes for {len} values", bytes.len());
        BufferPartMut { bytes, len, values: PhantomData }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the part has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The same values, to be read.
    #[inline]
    pub fn as_part(&self) -> BufferPart<'_, T> {
        // SAFETY: these are bytes of a buffer, which can also be read. They stay so as long as the part is borrowed, and
        // there is no reference to them.
        let bytes = unsafe { SharedBytes::new(self.bytes.start(), self.bytes.len()) };
        BufferPart::new(bytes, self.len)
    }

    /// Sets the value at an index of the part.
    ///
    /// # Panics
    /// If the part has no such value, as indexing a slice does.
    #[inline]
    pub fn set(&mut self, index: usize, value: T) {
        self.copy_from(index, &[value]);
    }

    /// Sets the values from an index of the part on to those of `from`.
    ///
    /// # Panics
    /// If the part ends before, as indexing a slice with that range does.
    #[inline]
    pub fn copy_from(&mut self, index: usize, from: &[T]) {
        let mut part = self.part_mut(index..index.saturating_add(from.len()));
        part.bytes.copy_from(bytemuck::cast_slice::<T, u8>(from));
    }

    /// Sets all values of the part to those of `from`.
    ///
    /// # Panics
    /// If the two have different lengths, as [`slice::copy_from_slice`] does.
    #[inline]
    pub fn copy_from_slice(&mut self, from: &[T]) {
        assert!(self.len == from.len(), "{} values for a buffer of {}", from.len(), self.len);
        self.copy_from(0, from);
    }

    /// Sets all values of the part to one.
    pub fn fill(&mut self, value: T) {
        let values = vec![value; (FILL_BYTES / size_of::<T>().max(1)).max(1)];
        let from: &[u8] = bytemuck::cast_slice(&values);
        let mut rest = self.bytes.reborrow();
        while !rest.is_empty() {
            let copied = rest.copy_from(from);
            rest = rest.split_at(copied).1;
        }
    }

    /// Some of the values of the part.
    ///
    /// # Panics
    /// If the range lies beyond the part, as for a slice.
    #[inline]
    pub fn part_mut(&mut self, range: impl RangeBounds<usize>) -> BufferPartMut<'_, T> {
        BufferPartMut::new(self.bytes.reborrow(), self.len).within(range)
    }

    /// The values before an index, and those from it on: two parts that two calls can write at once.
    ///
    /// # Panics
    /// If the part has fewer values, as for a slice.
    #[inline]
    pub fn split_at(self, index: usize) -> (BufferPartMut<'buffer, T>, BufferPartMut<'buffer, T>) {
        assert!(index <= self.len, "value {index} of a buffer of {}", self.len);
        let (front, back) = self.bytes.split_at(index * size_of::<T>());
        (BufferPartMut::new(front, index), BufferPartMut::new(back, self.len - index))
    }

    /// Some of the values, for as long as those of this part.
    #[inline]
    pub(super) fn within(self, range: impl RangeBounds<usize>) -> BufferPartMut<'buffer, T> {
        let Range { start, end } = checked(range, self.len);
        let (front, _) = self.bytes.split_at(end * size_of::<T>());
        let (_, bytes) = front.split_at(start * size_of::<T>());
        BufferPartMut::new(bytes, end - start)
    }
}

/// The indices of a range within `len` values.
///
/// # Panics
/// If the range begins behind its end, or ends beyond the values.
#[inline]
fn checked(range: impl RangeBounds<usize>, len: usize) -> Range<usize> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    assert!(start <= end && end <= len, "values {start}..{end} of a buffer of {len}");
    start..end
}
