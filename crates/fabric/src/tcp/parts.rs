//! Ranges of memory that a stream reads or writes, one after the other.

/// A range of memory, to be read or to be written.
pub(super) type Part = libc::iovec;

/// Ranges of memory, one after the other.
pub(super) struct PartCursor<'a> {
    parts: &'a [Part],
    offset: usize,
    /// Bytes of all remaining ranges.
    pub(super) left: usize,
}

impl<'a> PartCursor<'a> {
    pub(super) fn new(parts: &'a [Part]) -> PartCursor<'a> {
        PartCursor { parts, offset: 0, left: parts.iter().map(|part| part.iov_len).sum() }
    }

    /// Returns the next range, of at least one byte and at most `most` bytes.
    pub(super) fn next(&mut self, most: usize) -> Option<(*mut u8, usize)> {
        while let Some((part, rest)) = self.parts.split_first() {
            let len = (part.iov_len - self.offset).min(most);
            if len > 0 {
                let at = part.iov_base.cast::<u8>().wrapping_add(self.offset);
                self.offset += len;
                self.left -= len;
                return Some((at, len));
            }
            if most == 0 {
                break;
            }
            (self.parts, self.offset) = (rest, 0);
        }
        None
    }
}
