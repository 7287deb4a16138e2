//! The fabric's interface: one end of a connection, whichever provider implements it.

use std::ptr::NonNull;
use std::time::Instant;

use crate::line::{Line, Turn, Watch};
use crate::shared::{SharedBytes, SharedBytesMut};
use crate::window::{LineAddress, RegionAddress};
use crate::{FabricError, Provider, ofi, shm, tcp};

/// One end of a connection: one-sided operations on the regions that the peer registered with it.
///
/// Operations of one thread take effect at the peer in their order; a line is published last. All are bounds-checked
/// on this side, and none needs the peer's processor.
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "there are few ends, and a box would cost each call a look")]
pub enum Endpoint {
    /// See [`shm`].
    Shm(shm::ShmEndpoint),
    /// See [`tcp`].
    Tcp(tcp::TcpEndpoint),
    /// See [`ofi`].
    Ofi(ofi::OfiEndpoint),
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
    /// Fills and publishes a line of the peer, and wakes the threads that sleep on it. A reader that sees the line's
    /// turn also sees every earlier put.
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
    pub fn put<'bytes>(
        &self,
        to: RegionAddress,
        bytes: impl Into<SharedBytes<'bytes>>,
    ) -> Result<(), FabricError> {
        forward!(self.put(to, bytes))
    }

    /// Reads bytes from a region of the peer.
    #[inline(always)]
    pub fn get<'into>(
        &self,
        from: RegionAddress,
        into: impl Into<SharedBytesMut<'into>>,
    ) -> Result<(), FabricError> {
        forward!(self.get(from, into))
    }

    /// Adds to a 64-bit word of the peer, wrapping, and returns its previous value.
    pub fn fetch_add(&self, at: RegionAddress, value: u64) -> Result<u64, FabricError> {
        forward!(self.fetch_add(at, value))
    }

    /// Replaces a 64-bit word of the peer if it equals `expected`, and returns its previous value.
    pub fn compare_swap(&self, at: RegionAddress, expected: u64, new: u64) -> Result<u64, FabricError> {
        forward!(self.compare_swap(at, expected, new))
    }

    /// Address in this process of bytes of a region that both sides have: shared memory, or, over a network, this
    /// side's copy.
    #[inline(always)]
    pub fn mapped(&self, at: RegionAddress, len_bytes: u64) -> Option<NonNull<u8>> {
        forward!(self.mapped(at, len_bytes))
    }

    /// Copies this side's bytes of a region that both sides have, which lie at `from`, to the peer. Does nothing in
    /// shared memory. The bytes may be read until the next line is published.
    ///
    /// # Safety
    /// `len_bytes` bytes at `from` must be readable for that long. If other threads write them meanwhile, the peer gets
    /// any bytes.
    #[inline(always)]
    pub unsafe fn push(
        &self,
        to: RegionAddress,
        from: NonNull<u8>,
        len_bytes: u64,
    ) -> Result<(), FabricError> {
        match self {
            Endpoint::Shm(_) => Ok(()),
            // SAFETY: the caller's duty.
            Endpoint::Tcp(endpoint) => unsafe { endpoint.push(to, from, len_bytes) },
            // SAFETY: the caller's duty.
            Endpoint::Ofi(endpoint) => unsafe { endpoint.push(to, from, len_bytes) },
        }
    }

    /// Polls a local line for the turn, for about as long as `looks` loads of memory take. A network endpoint also
    /// processes messages that have arrived. Returns whether the turn has been published.
    #[inline(always)]
    pub fn spin(&self, line: (&Line, &Watch), turn: Turn, looks: u32) -> bool {
        match self {
            Endpoint::Shm(_) => line.0.spin(turn, looks),
            Endpoint::Tcp(endpoint) => endpoint.spin(line, turn, looks),
            Endpoint::Ofi(endpoint) => endpoint.spin(line, turn, looks),
        }
    }

    /// Processes messages that have arrived, without waiting. Does nothing in shared memory.
    #[inline(always)]
    pub fn progress(&self) -> Result<(), FabricError> {
        match self {
            Endpoint::Shm(_) => Ok(()),
            Endpoint::Tcp(endpoint) => endpoint.progress(),
            Endpoint::Ofi(endpoint) => endpoint.progress(),
        }
    }

    /// Reason why the connection is down, or `None` while it is up. A shared-memory connection is always up.
    #[inline(always)]
    pub fn down(&self) -> Option<String> {
        match self {
            Endpoint::Shm(_) => None,
            Endpoint::Tcp(endpoint) => endpoint.down(),
            Endpoint::Ofi(endpoint) => endpoint.down(),
        }
    }

    /// Sleeps until the peer publishes this turn of a local line; see [`Line::wait`]. Over a network the wait also
    /// ends, without the turn, when the connection goes down. The thread that makes `give_up` true must
    /// [`poke`](Endpoint::poke) the watch; a poke of the watch that bypasses this endpoint may be noticed late.
    pub fn wait(
        &self,
        line: (&Line, &Watch),
        turn: Turn,
        deadline: Option<Instant>,
        give_up: impl FnMut() -> bool,
    ) -> bool {
        forward!(self.wait(line, turn, deadline, give_up))
    }

    /// Makes the threads that wait with this watch check again whether to give up.
    pub fn poke(&self, watch: &Watch) {
        match self {
            Endpoint::Tcp(endpoint) => endpoint.poke(watch),
            Endpoint::Ofi(endpoint) => endpoint.poke(watch),
            Endpoint::Shm(_) => watch.poke(),
        }
    }

    /// The provider that carries the connection.
    pub fn provider(&self) -> Provider {
        match self {
            Endpoint::Shm(_) => Provider::Shm,
            Endpoint::Tcp(endpoint) => endpoint.provider(),
            Endpoint::Ofi(_) => Provider::Ofi,
        }
    }
}
