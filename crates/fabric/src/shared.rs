//! Views of memory that other threads and processes may read and write at any time. They give access by copies only.
//!
//! A reference promises the compiler that its bytes do not change (`&`) or that nothing else touches them (`&mut`). Memory
//! that another process has mapped, memory of an interpreter's object, or memory that a caller in C shares between its
//! threads keeps neither promise. A [`SharedBytes`] or [`SharedBytesMut`] is a pointer and a length. It copies bytes to
//! private memory and from there, and never becomes a slice. A slice converts into a view, so that one function serves
//! private and shared memory alike, at the cost of a slice.
//!
//! Guarantees:
//! - Every access lies within the length that the view was made with, whatever others write.
//! - No reference to the memory exists, so the compiler draws no conclusion from its contents. Each copy is one call of
//!   `memmove`: a byte is read once, into private memory, and only the private copy is checked and used.
//! - A copy that races with a writer has any bytes, old and new mixed. All types that are copied this way are plain bytes,
//!   of which every value is valid.
//!
//! The copies are neither atomic nor ordered. A reader learns from an atomic (a line's turn, a word of a ring) when
//! bytes are complete. Rust's memory model does not define a byte-wise copy that races with another process (RFC 3301
//! would add one). This module is the only one that relies on the compiler to treat such a copy as a call that reads or
//! writes unknown memory, as the Linux kernel and vm-memory do.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// Bytes to be read, which others may write meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes<'memory> {
    start: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'memory ()>,
}

/// Bytes to be written, which others may read and write meanwhile.
#[derive(Debug)]
pub struct SharedBytesMut<'memory> {
    start: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'memory mut ()>,
}

// SAFETY: a view points to memory that stays mapped for its lifetime, whichever thread uses it, and every access is a copy
// through that pointer. A view of a slice holds the slice's borrow, and `&[u8]` may be sent and shared.
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as for `Send`; a shared reference to a view only reads.
unsafe impl Sync for SharedBytes<'_> {}
// SAFETY: as for `SharedBytes`; the view is not `FaultCopy`, so a view of a `&mut [u8]` is the only way to its bytes.
unsafe impl Send for SharedBytesMut<'_> {}
// SAFETY: through a shared reference a view gives only its address and length.
unsafe impl Sync for SharedBytesMut<'_> {}

impl<'memory> SharedBytes<'memory> {
    /// Views `len` bytes from `start` on.
    ///
    /// # Safety
    /// The bytes stay readable for `'memory`, and no `&mut` to any of them is used in that time. Others may write them through
    /// pointers.
    #[inline(always)]
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> SharedBytes<'memory> {
        SharedBytes { start, len, memory: PhantomData }
    }

    /// Length in bytes.
    #[inline(always)]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether the view has no bytes.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    #[inline(always)]
    pub fn start(self) -> NonNull<u8> {
        self.start
    }

    /// The bytes before `at`, and those from `at` on. All bytes lie before `at` if there are fewer.
    #[inline(always)]
    pub fn split_at(self, at: usize) -> (SharedBytes<'memory>, SharedBytes<'memory>) {
        let at = at.min(self.len);
        (self.part(0..at), self.part(at..self.len))
    }

    /// Some of the bytes.
    ///
    /// # Panics
    /// If the range lies beyond the length, as for a slice.
    #[inline(always)]
    pub fn part(self, range: Range<usize>) -> SharedBytes<'memory> {
        check(&range, self.len);
        // SAFETY: the range lies within this view, whose bytes are readable for `'memory`.
        unsafe { SharedBytes::new(self.start.add(range.start), range.end - range.start) }
    }

    /// Copies bytes to the front of `into`, up to the length of the shorter side, and returns the number of bytes
    /// copied.
    #[inline(always)]
    pub fn copy_to(self, into: &mut [u8]) -> usize {
        let len = self.len.min(into.len());
        // SAFETY: both sides have `len` bytes, one to be read and one to be written.
        unsafe { copy_bytes(self.start.as_ptr(), into.as_mut_ptr(), len) };
        len
    }

    /// Copies all bytes to private memory.
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_to(&mut bytes);
        bytes
    }
}

impl<'memory> SharedBytesMut<'memory> {
    /// Views `len` bytes from `start` on.
    ///
    /// # Safety
    /// The bytes stay writable for `'memory`, and no reference to any of them is used in that time. Others may read and write
    /// them through pointers.
    #[inline(always)]
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> SharedBytesMut<'memory> {
        SharedBytesMut { start, len, memory: PhantomData }
    }

    /// Length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the view has no bytes.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    #[inline(always)]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The same bytes, for a shorter time.
    #[inline(always)]
    pub fn reborrow(&mut self) -> SharedBytesMut<'_> {
        self.part(0..self.len)
    }

    /// The bytes before `at`, and those from `at` on. All bytes lie before `at` if there are fewer.
    #[inline(always)]
    pub fn split_at(self, at: usize) -> (SharedBytesMut<'memory>, SharedBytesMut<'memory>) {
        let at = at.min(self.len);
        // SAFETY: `at` is at most the length, so both parts lie within this view, and they do not overlap.
        unsafe {
            (SharedBytesMut::new(self.start, at), SharedBytesMut::new(self.start.add(at), self.len - at))
        }
    }

    /// Some of the bytes.
    ///
    /// # Panics
    /// If the range lies beyond the length, as for a slice.
    #[inline(always)]
    pub fn part(&mut self, range: Range<usize>) -> SharedBytesMut<'_> {
        check(&range, self.len);
        // SAFETY: the range lies within this view, which is borrowed for as long as the part is used.
        unsafe { SharedBytesMut::new(self.start.add(range.start), range.end - range.start) }
    }

    /// Copies bytes of `from` to the front, up to the length of the shorter side, and returns the number of bytes
    /// copied.
    #[inline(always)]
    pub fn copy_from<'from>(&mut self, from: impl Into<SharedBytes<'from>>) -> usize {
        let from = from.into();
        let len = self.len.min(from.len());
        // SAFETY: both sides have `len` bytes, one to be read and one to be written; the copy allows overlap.
        unsafe { copy_bytes(from.start.as_ptr(), self.start.as_ptr(), len) };
        len
    }
}

/// The bounds check of a part.
#[inline(always)]
fn check(range: &Range<usize>, len: usize) {
    assert!(range.start <= range.end && range.end <= len, "bytes {range:?} of a view of {len} bytes");
}

/// memmove between private and shared memory.
///
/// # Safety
/// `from` must be readable and `into` writable for `len_bytes` bytes.
#[inline(always)]
pub(crate) unsafe fn copy_bytes(from: *const u8, into: *mut u8, len_bytes: usize) {
    // SAFETY: the caller's duty.
    unsafe { std::ptr::copy(from, into, len_bytes) };
}

impl<'memory> From<&'memory [u8]> for SharedBytes<'memory> {
    #[inline(always)]
    fn from(bytes: &'memory [u8]) -> SharedBytes<'memory> {
        // SAFETY: borrowed for as long as the view lives.
        unsafe { SharedBytes::new(NonNull::from(bytes).cast(), bytes.len()) }
    }
}

impl<'memory, const N: usize> From<&'memory [u8; N]> for SharedBytes<'memory> {
    #[inline(always)]
    fn from(bytes: &'memory [u8; N]) -> SharedBytes<'memory> {
        bytes.as_slice().into()
    }
}

impl<'memory> From<&'memory Vec<u8>> for SharedBytes<'memory> {
    #[inline(always)]
    fn from(bytes: &'memory Vec<u8>) -> SharedBytes<'memory> {
        bytes.as_slice().into()
    }
}

impl<'memory> From<&'memory mut [u8]> for SharedBytesMut<'memory> {
    #[inline(always)]
    fn from(bytes: &'memory mut [u8]) -> SharedBytesMut<'memory> {
        let len = bytes.len();
        // SAFETY: borrowed exclusively for as long as the view lives.
        unsafe { SharedBytesMut::new(NonNull::from(bytes).cast(), len) }
    }
}

impl<'memory, const N: usize> From<&'memory mut [u8; N]> for SharedBytesMut<'memory> {
    #[inline(always)]
    fn from(bytes: &'memory mut [u8; N]) -> SharedBytesMut<'memory> {
        bytes.as_mut_slice().into()
    }
}

impl<'memory> From<&'memory mut Vec<u8>> for SharedBytesMut<'memory> {
    #[inline(always)]
    fn from(bytes: &'memory mut Vec<u8>) -> SharedBytesMut<'memory> {
        bytes.as_mut_slice().into()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::cell::UnsafeCell;

    use super::*;

    /// Two views of one memory, as a client and a worker have them. Miri rejects this test if a view makes a slice.
    #[test]
    fn sees_what_another_view_writes() {
        let memory = UnsafeCell::new([0_u8; 8]);
        let start = NonNull::new(memory.get().cast::<u8>()).unwrap();
        // SAFETY: the memory outlives both views, and no reference to it is made.
        let (reads, mut writes) = unsafe { (SharedBytes::new(start, 8), SharedBytesMut::new(start, 8)) };
        assert_eq!(reads.to_vec(), [0; 8]);
        assert_eq!(writes.copy_from(b"sublet"), 6);
        assert_eq!(reads.to_vec(), b"sublet\0\0");
        writes.reborrow().split_at(6).1.copy_from(b"!!!");
        assert_eq!(reads.to_vec(), b"sublet!!");
        writes.part(1..3).copy_from(reads.part(5..8));
        assert_eq!(reads.to_vec(), b"st!let!!");
        writes.copy_from(reads.part(1..8));
        assert_eq!(reads.to_vec(), b"t!let!!!", "a copy within one memory");
    }

    #[test]
    fn copies_no_more_than_either_side_has() {
        let mut private = [9; 4];
        assert_eq!(SharedBytes::from(b"sublet").copy_to(&mut private), 4);
        assert_eq!(&private, b"subl");
        assert_eq!(SharedBytesMut::from(&mut private).copy_from(b"abcdef"), 4);
        assert_eq!(SharedBytesMut::from(&mut private).copy_from(b"x"), 1);
        assert_eq!(&private, b"xbcd");
        assert_eq!(SharedBytes::from(&[0; 0]).copy_to(&mut private), 0);
    }

    #[test]
    fn splits_within_its_length() {
        let (front, back) = SharedBytes::from(b"sublet").split_at(3);
        assert_eq!((front.to_vec(), back.to_vec()), (b"sub".to_vec(), b"let".to_vec()));
        let (front, back) = SharedBytes::from(b"sublet").split_at(7);
        assert_eq!((front.len(), back.len()), (6, 0));
        let mut private = *b"sublet";
        let (front, back) = SharedBytesMut::from(&mut private).split_at(9);
        assert!(front.len() == 6 && back.is_empty());
    }

    #[test]
    fn refuses_a_part_beyond_its_length() {
        let refused = |range: Range<usize>| {
            let mut private = [0; 4];
            std::panic::catch_unwind(|| SharedBytes::from(&[0; 4]).part(range.clone()).len()).is_err()
                && std::panic::catch_unwind(move || SharedBytesMut::from(&mut private).part(range).len())
                    .is_err()
        };
        assert!(refused(3..5) && refused(5..5) && refused(0..usize::MAX));
        #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
        let reversed = 3..2;
        assert!(refused(reversed));
        assert!(SharedBytes::from(&[0; 4]).part(4..4).is_empty());
    }
}
