//! Registered regions, one-sided operations and their completions: the data plane's unsafe wall.
//!
//! Processes share memory as [`Region`](region::Region)s. One process notifies another through a [`Line`](line::Line):
//! one cache line that its writer fills and publishes with plain stores, and that its reader polls or sleeps on.
//! Requests travel in a [`ring`] of lines, results in lines of their own. An [`Endpoint`] is one end of a connection:
//! it writes into the peer's regions and lines.
//!
//! Invariants:
//! - Memory that a peer can write is never behind `&` or `&mut`, except as atomics. Bulk bytes move by raw copy.
//! - Nothing read from a peer is an address: peers say (region, offset, length), and every access is checked
//!   against what this side mapped.
//! - Nothing here allocates, locks or enters the kernel when a line is published to a peer that is awake, or
//!   polled.
//!
//! The folders, from the bottom up: `memory` (regions and views of them), `queue` (lines, rings, core slots), `control`
//! (connections that make connections), then one for each provider: [`shm`], [`tcp`], [`ofi`], and [`sim`] for tests. Users
//! import their modules from the crate's root.
//!
//! The providers are an enum, not plug-ins ([`Provider`]); one conformance suite runs over all of them.

#![allow(unsafe_code)]
// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

mod address;
pub mod clock;
#[cfg(not(loom))]
mod control;
#[cfg(not(loom))]
pub mod endpoint;
mod error;
mod memory;
#[cfg(not(loom))]
pub mod ofi;
#[cfg(not(loom))]
pub mod progress;
#[cfg(not(loom))]
mod provider;
mod queue;
pub mod shared;
pub mod shm;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod sim;
pub mod standard;
pub mod sync;
#[cfg(not(loom))]
pub mod tcp;

#[cfg(not(loom))]
use control::socket;
#[cfg(not(loom))]
pub use control::{connection, greeting, packet, remote, socket_path, tls};
#[cfg(not(loom))]
pub use endpoint::Endpoint;
pub use error::FabricError;
#[cfg(not(loom))]
pub use memory::faults;
pub use memory::{exposed, region, space, stored, stretch, window};
#[cfg(not(loom))]
pub use provider::Provider;
pub use queue::{bell, line, ring, slot};
use queue::{line_wait, waiters};
pub use shared::{SharedBytes, SharedBytesMut};
