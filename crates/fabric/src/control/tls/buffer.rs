//! The bytes of a TLS connection that are about to be sent or to be processed.

/// A byte queue in one allocation.
pub(super) struct ByteQueue {
    bytes: Box<[u8]>,
    start: usize,
    pub(super) end: usize,
}

impl ByteQueue {
    pub(super) fn new(capacity: usize) -> ByteQueue {
        ByteQueue { bytes: vec![0; capacity].into(), start: 0, end: 0 }
    }

    pub(super) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(super) fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    pub(super) fn take(&mut self, used: usize) {
        self.start += used;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Free space behind the bytes. The bytes move to the front when at least as many have been taken, so that moving
    /// costs no more than receiving them did. Thus a buffer twice as large as its content always has free space.
    pub(super) fn space(&mut self) -> &mut [u8] {
        if self.start >= self.end - self.start || self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.bytes[self.end..]
    }
}
