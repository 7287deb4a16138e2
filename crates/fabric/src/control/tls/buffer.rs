//! The bytes of a TLS connection that are on their way in or out.

/// Bytes in the order of their coming, without an allocation for each.
pub(super) struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    pub(super) end: usize,
}

impl Buffer {
    pub(super) fn new(capacity: usize) -> Buffer {
        Buffer { bytes: vec![0; capacity].into(), start: 0, end: 0 }
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

    /// What is free behind them. They are moved to the front when as many have been taken, so that this costs no more than
    /// their coming did; so a buffer twice as large as what lies in it always has room.
    pub(super) fn space(&mut self) -> &mut [u8] {
        if self.start >= self.end - self.start || self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.bytes[self.end..]
    }
}
