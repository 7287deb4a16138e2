//! Sizes of the parts of a lease's memory.

use sublet_proto::v1::Lease;

/// Bytes that the rings of a process's FIFOs can use beside half of the lease's memory.
const RINGS_BYTES: u64 = 16 << 20;

/// Bytes that the rings of the FIFOs of a lease's process may use.
pub(crate) fn rings_bytes(lease: &Lease) -> u64 {
    lease.memory_bytes / 2 + RINGS_BYTES
}

/// Share of `memory_bytes` that holds swapped pages, in bytes. The rest is for everything that is not swapped: the
/// program, small pieces, the caches of channels.
pub(crate) fn local_bytes(memory_bytes: u64) -> u64 {
    memory_bytes / 4 * 3
}
