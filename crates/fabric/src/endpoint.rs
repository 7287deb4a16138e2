//! The fabric's interface: one end of a connection, whatever carries it.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::time::Instant;

use crate::line::{Line, Turn, Watch};
use crate::window::{Address, LineAddress};
use crate::{FabricError, shm};

/// What carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Provider {
    /// Shared memory, within a node.
    Shm,
}

impl Provider {
    /// Every provider of this build.
    pub const ALL: &'static [Provider] = &[Provider::Shm];

    /// As `--fabric` names it.
    pub fn name(self) -> &'static str {
        match self {
            Provider::Shm => "shm",
        }
    }
}

/// One end of a connection: one-sided operations on the regions that the peer registered with it.
///
/// Operations of one thread take effect at the peer in their order; a line is published last. All are bounds-checked
/// on this side, and none needs the peer's processor.
#[non_exhaustive]
pub enum Endpoint {
    /// See [`shm`].
    Shm(shm::Endpoint),
}

macro_rules! forward {
    ($self:ident . $method:ident ( $($argument:expr),* )) => {
        match $self { Endpoint::Shm(endpoint) => endpoint.$method($($argument),*) }
    };
}

impl Endpoint {
    /// Fills and publishes a line of the peer, and wakes whoever sleeps on it. Everything put before is visible to
    /// whoever sees the line's turn.
    #[inline(always)]
    pub fn put_imm<const WORDS: usize>(
        &self,
        to: LineAddress,
        turn: Turn,
        immediate: u32,
        body: &[u64; WORDS],
    ) -> Result<(), FabricError> {
        forward!(self.put_imm(to, turn, immediate, body))
    }

    /// Writes bytes into a region of the peer.
    #[inline(always)]
    pub fn put(&self, to: Address, bytes: &[u8]) -> Result<(), FabricError> {
        forward!(self.put(to, bytes))
    }

    /// Reads bytes from a region of the peer.
    #[inline(always)]
    pub fn get(&self, from: Address, into: &mut [u8]) -> Result<(), FabricError> {
        forward!(self.get(from, into))
    }

    /// Adds to a 64-bit word of the peer, wrapping; returns what it was.
    pub fn fetch_add(&self, at: Address, value: u64) -> Result<u64, FabricError> {
        forward!(self.fetch_add(at, value))
    }

    /// Replaces a 64-bit word of the peer if it is `expected`; returns what it was.
    pub fn compare_swap(&self, at: Address, expected: u64, new: u64) -> Result<u64, FabricError> {
        forward!(self.compare_swap(at, expected, new))
    }

    /// Where the peer's memory lies in this process, if this provider maps it: then nothing need be copied.
    #[inline(always)]
    pub fn mapped(&self, at: Address, len_bytes: u64) -> Option<NonNull<u8>> {
        forward!(self.mapped(at, len_bytes))
    }

    /// Sleeps until the peer publishes this turn of a line of ours; see [`Line::wait`].
    pub fn wait(
        &self,
        line: (&Line, &Watch),
        turn: Turn,
        deadline: Option<Instant>,
        give_up: impl FnMut() -> bool,
    ) -> bool {
        forward!(self.wait(line, turn, deadline, give_up))
    }

    /// Makes a region that the peer passed reachable under a number.
    pub fn register(&self, region: u32, file: BorrowedFd<'_>, len_bytes: u64) -> Result<(), FabricError> {
        forward!(self.register(region, file, len_bytes))
    }

    /// What carries it.
    pub fn provider(&self) -> Provider {
        match self {
            Endpoint::Shm(_) => Provider::Shm,
        }
    }
}
