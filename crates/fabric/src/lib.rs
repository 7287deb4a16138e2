//! Registered regions, one-sided operations and their completions: the data plane's unsafe wall.
//!
//! Everything that two processes share is a [`Region`](region::Region). What one process tells another about it
//! is a [`Line`](line::Line): one cache line that its writer fills and publishes with plain stores, and that its
//! reader polls, or sleeps beside. Requests travel in a [`ring`] of lines, results in lines of
//! their own. An [`Endpoint`] is one end of a connection: it writes into the peer's regions and lines.
//!
//! Invariants:
//! - Memory that a peer can write is never behind `&` or `&mut`, except as atomics. Bulk bytes move by raw copy.
//! - Nothing read from a peer is an address: peers say (region, offset, length), and every access is checked
//!   against what this side mapped.
//! - Nothing here allocates, locks or enters the kernel when a line is published to a peer that is awake, or
//!   polled.
//!
//! The providers are an enum, not plug-ins ([`Provider`]); one conformance suite runs over all of them.

#![allow(unsafe_code)]

mod awaited;
pub mod bell;
pub mod clock;
#[cfg(not(loom))]
pub mod connection;
#[cfg(not(loom))]
pub mod endpoint;
mod error;
pub mod exposed;
#[cfg(not(loom))]
pub mod faults;
#[cfg(not(loom))]
pub mod greeting;
pub mod line;
#[cfg(not(loom))]
pub mod ofi;
#[cfg(not(loom))]
pub mod packet;
#[cfg(not(loom))]
pub mod progress;
pub mod region;
#[cfg(not(loom))]
pub mod remote;
pub mod ring;
pub mod shm;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod sim;
pub mod slot;
#[cfg(not(loom))]
mod socket;
#[cfg(not(loom))]
pub mod socket_path;
pub mod space;
pub mod standard;
pub mod stretch;
pub mod sync;
#[cfg(not(loom))]
pub mod tcp;
#[cfg(not(loom))]
pub mod tls;
mod waiters;
pub mod window;

#[cfg(not(loom))]
pub use endpoint::{Endpoint, Provider};
pub use error::FabricError;
