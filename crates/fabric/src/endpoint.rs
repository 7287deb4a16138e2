//! The fabric's interface: one end of a connection, whatever carries it.

use std::ptr::NonNull;
use std::time::Instant;

use crate::line::{Line, Turn, Watch};
use crate::shared::{SharedBytes, SharedBytesMut};
use crate::window::{Address, LineAddress};
use crate::{FabricError, ofi, shm, tcp};

/// What carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Provider {
    /// Shared memory, within a node.
    Shm,
    /// TCP, between any two nodes.
    Tcp,
    /// Whatever libfabric reaches: InfiniBand, RoCE, EFA, Slingshot.
    Ofi,
    /// The stream engine of TCP over a simulated stream: for tests, and offered to nobody.
    #[doc(hidden)]
    Sim,
}

impl Provider {
    /// Every provider that can be chosen.
    pub const ALL: &'static [Provider] = &[Provider::Shm, Provider::Tcp, Provider::Ofi];

    /// As `--fabric` names it.
    pub fn name(self) -> &'static str {
        match self {
            Provider::Shm => "shm",
            Provider::Tcp => "tcp",
            Provider::Ofi => "ofi",
            Provider::Sim => "sim",
        }
    }
}

/// One end of a connection: one-sided operations on the regions that the peer registered with it.
///
/// Operations of one thread take effect at the peer in their order; a line is published last. All are bounds-checked
/// on this side, and none needs the peer's processor.
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "there are few ends, and a box would cost each call a look")]
pub enum Endpoint {
    /// See [`shm`].
    Shm(shm::Endpoint),
    /// See [`tcp`].
    Tcp(tcp::Endpoint),
    /// See [`ofi`].
    Ofi(ofi::Endpoint),
}

macro_rules! forward {
    ($self:ident . $method:ident ( $($argument:expr),* )) => {
        match $self {
            Endpoint::Shm(endpoint) => endpoint.$method($($argument),*),
            Endpoint::Tcp(endpoint) => endpoint.$method($($argument),*),
            Endpoint::Ofi(endpoint) => endpoint.$method($($argument),*),
        }
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
    pub fn put<'bytes>(&self, to: Address, bytes: impl Into<SharedBytes<'bytes>>) -> Result<(), FabricError> {
        forward!(self.put(to, bytes))
    }

    /// Reads bytes from a region of the peer.
    #[inline(always)]
    pub fn get<'into>(
        &self,
        from: Address,
        into: impl Into<SharedBytesMut<'into>>,
    ) -> Result<(), FabricError> {
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

    /// Where the bytes of a region of both sides lie in this process: memory that they share, or, over a network, this
    /// side's copy of it.
    #[inline(always)]
    pub fn mapped(&self, at: Address, len_bytes: u64) -> Option<NonNull<u8>> {
        forward!(self.mapped(at, len_bytes))
    }

    /// Makes the peer's bytes of a region of both sides those of this side's, which lie at `from`. Memory that they
    /// share needs nothing. The bytes may be read until the next line is published.
    ///
    /// # Safety
    /// `len_bytes` bytes at `from` must be readable for that long. If others write them meanwhile, the peer gets any bytes.
    #[inline(always)]
    pub unsafe fn push(&self, to: Address, from: NonNull<u8>, len_bytes: u64) -> Result<(), FabricError> {
        match self {
            Endpoint::Shm(_) => Ok(()),
            // SAFETY: the caller's duty.
            Endpoint::Tcp(endpoint) => unsafe { endpoint.push(to, from, len_bytes) },
            // SAFETY: the caller's duty.
            Endpoint::Ofi(endpoint) => unsafe { endpoint.push(to, from, len_bytes) },
        }
    }

    /// Looks for the turn of a line of ours, about as long as `looks` looks at memory take. A network's end also takes
    /// what has arrived. Says whether the turn is there.
    #[inline(always)]
    pub fn spin(&self, line: (&Line, &Watch), turn: Turn, looks: u32) -> bool {
        match self {
            Endpoint::Shm(_) => line.0.spin(turn, looks),
            Endpoint::Tcp(endpoint) => endpoint.spin(line, turn, looks),
            Endpoint::Ofi(endpoint) => endpoint.spin(line, turn, looks),
        }
    }

    /// Takes what has arrived, without waiting. In shared memory nothing has to be taken.
    #[inline(always)]
    pub fn progress(&self) -> Result<(), FabricError> {
        match self {
            Endpoint::Shm(_) => Ok(()),
            Endpoint::Tcp(endpoint) => endpoint.progress(),
            Endpoint::Ofi(endpoint) => endpoint.progress(),
        }
    }

    /// Why there is no connection, if there is none. Shared memory always has one.
    #[inline(always)]
    pub fn down(&self) -> Option<String> {
        match self {
            Endpoint::Shm(_) => None,
            Endpoint::Tcp(endpoint) => endpoint.down(),
            Endpoint::Ofi(endpoint) => endpoint.down(),
        }
    }

    /// Sleeps until the peer publishes this turn of a line of ours; see [`Line::wait`]. Over a network it
    /// also ends, without the turn, when the connection does. Whoever makes `give_up` true must [`poke`](Endpoint::poke)
    /// the watch, which may be noticed late if it is poked without this end's knowledge.
    pub fn wait(
        &self,
        line: (&Line, &Watch),
        turn: Turn,
        deadline: Option<Instant>,
        give_up: impl FnMut() -> bool,
    ) -> bool {
        forward!(self.wait(line, turn, deadline, give_up))
    }

    /// Makes whoever waits with this watch look again at whether to give up.
    pub fn poke(&self, watch: &Watch) {
        match self {
            Endpoint::Tcp(endpoint) => endpoint.poke(watch),
            Endpoint::Ofi(endpoint) => endpoint.poke(watch),
            Endpoint::Shm(_) => watch.poke(),
        }
    }

    /// What carries it.
    pub fn provider(&self) -> Provider {
        match self {
            Endpoint::Shm(_) => Provider::Shm,
            Endpoint::Tcp(endpoint) => endpoint.provider(),
            Endpoint::Ofi(_) => Provider::Ofi,
        }
    }
}
