//! Layout of the page with the state of a memory component, which all processes with access to the component share on
//! the client's machine.

/// Offset of the component's length in its state page, in bytes.
pub(crate) const LEN_AT: u64 = 0;
/// Offset of the flag that the component is over.
pub const OVER_AT: u64 = 8;
/// Offset of the bits that say which ends of a mailbox have ended.
pub(crate) const ENDED_AT: u64 = 16;
