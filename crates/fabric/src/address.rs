//! Addresses in the regions of a connection, and the unit in which regions are mapped.

/// The page size that regions and buffers are multiples of, in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// An offset in a region of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionAddress {
    /// The region's number in its connection.
    pub region: u32,
    /// Bytes from its beginning.
    pub offset: u64,
}

/// A line and its watch in a region of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineAddress {
    /// The region's number in its connection.
    pub region: u32,
    /// Offset of the line.
    pub line: u64,
    /// Offset of the line's watch.
    pub watch: u64,
}
