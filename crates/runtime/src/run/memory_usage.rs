//! Usage of a memory component over time.

use std::time::Instant;

/// Usage of a memory component.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemoryComponentUsage {
    /// Time at which its first segment was leased.
    pub(super) since: Option<Instant>,
    /// Time of the latest sample.
    pub(super) until: Option<Instant>,
    pub(super) capacity_bytes: u64,
    pub(super) len_bytes: u64,
    /// Leased bytes times microseconds, and written bytes times microseconds.
    pub(super) allocated_byte_us: u64,
    pub(super) used_byte_us: u64,
}

impl MemoryComponentUsage {
    /// Adds the time since the latest sample.
    pub(super) fn advance(&mut self, now: Instant, len_bytes: u64) {
        let elapsed = self.until.map_or(0, |at| now.saturating_duration_since(at).as_micros());
        let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
        let allocated = self.capacity_bytes.saturating_mul(elapsed);
        self.allocated_byte_us = self.allocated_byte_us.saturating_add(allocated);
        // The time at which bytes were written between two samples is unknown; the mean of both lengths is the
        // estimate.
        let used = u64::midpoint(self.len_bytes, len_bytes).saturating_mul(elapsed);
        self.used_byte_us = self.used_byte_us.saturating_add(used);
        (self.until, self.len_bytes) = (Some(now), len_bytes);
    }
}
