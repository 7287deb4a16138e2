//! Counters of an array's paging.

/// Counters of an array's paging since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapStatistics {
    /// Number of times that a thread waited for a page, or to write one.
    pub faults: u64,
    /// Regions that were there already when they were touched: read ahead, or not gone yet.
    pub ahead: u64,
    /// Bytes that were put in, those that were zero included.
    pub in_bytes: u64,
    /// Bytes that were taken out.
    pub out_bytes: u64,
    /// The bytes of `out_bytes` that were written to the swap space.
    pub written_bytes: u64,
    /// Bytes that are resident now.
    pub resident_bytes: u64,
}
