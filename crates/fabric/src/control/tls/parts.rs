//! Plaintext that is to be sent, wherever it lies.

use std::io::IoSlice;

/// Bytes to be sent.
pub(crate) trait Plaintext {
    /// How many are left.
    fn left(&self) -> usize;

    /// The next ones, at most so many and at least one if there are some; `gathered` may be used for them.
    fn next<'a>(&'a mut self, most: usize, gathered: &'a mut Vec<u8>) -> &'a [u8];
}

/// Bytes in several places, one after the other.
pub(super) struct Parts<'a> {
    parts: &'a [IoSlice<'a>],
    /// How much of the first is gone.
    offset: usize,
    left: usize,
}

impl<'a> Parts<'a> {
    pub(super) fn new(parts: &'a [IoSlice<'a>]) -> Parts<'a> {
        Parts { parts, offset: 0, left: parts.iter().map(|part| part.len()).sum() }
    }

    /// As many of the next bytes as lie together. There must be some.
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

impl Plaintext for Parts<'_> {
    fn left(&self) -> usize {
        self.left
    }

    /// Where they lie, if that is in one piece, or gathered.
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
