//! Plaintext that is to be sent, from any memory.

use std::io::IoSlice;

/// Bytes to be sent.
pub(crate) trait Plaintext {
    /// Number of bytes left.
    fn left(&self) -> usize;

    /// Returns the next bytes: at most `most`, and at least one if any are left. May use `gathered` for them.
    fn next<'a>(&'a mut self, most: usize, gathered: &'a mut Vec<u8>) -> &'a [u8];
}

/// Bytes in several places, one after the other.
pub(super) struct ByteParts<'a> {
    parts: &'a [IoSlice<'a>],
    /// Number of bytes of the first part that were taken.
    offset: usize,
    left: usize,
}

impl<'a> ByteParts<'a> {
    pub(super) fn new(parts: &'a [IoSlice<'a>]) -> ByteParts<'a> {
        ByteParts { parts, offset: 0, left: parts.iter().map(|part| part.len()).sum() }
    }

    /// Returns the next contiguous bytes, at most `most`. At least one byte must be left.
    fn piece(&mut self, most: usize) -> &'a [u8] {
        while self.offset == self.parts[0].len() {
            self.parts = &self.parts[1..];
            self.offset = 0;
        }
        let rest = &self.parts[0][self.offset..];
        let piece = &rest[..rest.len().min(most)];
        self.offset += piece.len();
        self.left -= piece.len();
        piece
    }
}

impl Plaintext for ByteParts<'_> {
    fn left(&self) -> usize {
        self.left
    }

    /// Returns the next bytes in place if they are contiguous, otherwise gathered.
    fn next<'a>(&'a mut self, most: usize, gathered: &'a mut Vec<u8>) -> &'a [u8] {
        let wanted = most.min(self.left);
        let first = self.piece(wanted);
        if first.len() == wanted {
            return first;
        }
        gathered.clear();
        gathered.extend_from_slice(first);
        while gathered.len() < wanted {
            let piece = self.piece(wanted - gathered.len());
            gathered.extend_from_slice(piece);
        }
        gathered
    }
}
