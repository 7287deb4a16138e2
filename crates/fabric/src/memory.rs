//! Memory that processes share: regions, views of them, windows of remote ones, and pages that their owner fills on demand.

pub mod exposed;
#[cfg(not(loom))]
pub mod faults;
pub mod region;
pub mod space;
pub mod stored;
pub mod stretch;
pub mod window;
