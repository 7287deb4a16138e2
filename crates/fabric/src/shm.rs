//! The shared-memory provider: both ends of a connection map the same regions.
//!
//! A put is a copy, an atomic operation acts directly on the shared word, and a line is published where its reader
//! polls it. An idle target's processor does nothing. A function that reads and writes its buffers in place needs no
//! operation at all ([`ShmEndpoint::mapped`]).
//!
//! The peer's memory consists of the regions that the peer passed as descriptors when the connection was made. A peer
//! that overwrites it changes values, never addresses: every access is checked against the sizes that this side mapped.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Instant;

use crate::FabricError;
use crate::bell::Bell;
use crate::line::{Line, Turn, Watch};
use crate::region::PeerWritable;
use crate::shared::{SharedBytes, SharedBytesMut};
use crate::sync::{AtomicU64, Ordering};
use crate::window::{LineAddress, RegionAddress, Window};

/// One end of a connection within a node.
pub struct ShmEndpoint {
    window: Window,
    bell: Bell,
}

impl ShmEndpoint {
    /// Makes an endpoint that reaches the regions mapped into `window`, and rings `bell` (an eventfd) where a line asks
    /// for it.
    pub fn new(window: Window, bell: Option<OwnedFd>) -> ShmEndpoint {
        ShmEndpoint { window, bell: Bell(bell) }
    }

    /// See [`crate::Endpoint::put_imm`].
    #[inline(always)]
    pub fn put_imm<const WORDS: usize>(
        &self,
        to: LineAddress,
        turn: Turn,
        immediate: u32,
        body: &[u64; WORDS],
    ) -> Result<(), FabricError> {
        let line: &Line = self.view(RegionAddress { region: to.region, offset: to.line })?;
        let watch: &Watch = self.view(RegionAddress { region: to.region, offset: to.watch })?;
        if line.publish(watch, turn, immediate, body) {
            self.bell.ring();
        }
        Ok(())
    }

    /// Whether a line of the peer still holds the turn with which it was published.
    #[inline]
    pub fn holds(&self, line: LineAddress, turn: Turn) -> bool {
        let line = self.view::<Line>(RegionAddress { region: line.region, offset: line.line });
        line.is_ok_and(|line| line.is(turn))
    }

    /// See [`crate::Endpoint::put`].
    #[inline(always)]
    pub fn put<'bytes>(
        &self,
        to: RegionAddress,
        bytes: impl Into<SharedBytes<'bytes>>,
    ) -> Result<(), FabricError> {
        let bytes = bytes.into();
        let into = self.inside(to, bytes.len() as u64)?;
        // SAFETY: inside of the peer's region, mapped as long as the window; no reference to its bytes is made.
        unsafe { SharedBytesMut::new(into, bytes.len()) }.copy_from(bytes);
        Ok(())
    }

    /// See [`crate::Endpoint::get`].
    #[inline(always)]
    pub fn get<'into>(
        &self,
        from: RegionAddress,
        into: impl Into<SharedBytesMut<'into>>,
    ) -> Result<(), FabricError> {
        let mut into = into.into();
        let source = self.inside(from, into.len() as u64)?;
        // SAFETY: as in `put`.
        into.copy_from(unsafe { SharedBytes::new(source, into.len()) });
        Ok(())
    }

    /// See [`crate::Endpoint::fetch_add`].
    pub fn fetch_add(&self, at: RegionAddress, value: u64) -> Result<u64, FabricError> {
        Ok(self.view::<AtomicU64>(at)?.fetch_add(value, Ordering::AcqRel))
    }

    /// See [`crate::Endpoint::compare_swap`].
    pub fn compare_swap(&self, at: RegionAddress, expected: u64, new: u64) -> Result<u64, FabricError> {
        let swapped =
            self.view::<AtomicU64>(at)?.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
        Ok(swapped.unwrap_or_else(|before| before))
    }

    /// See [`crate::Endpoint::mapped`].
    #[inline(always)]
    pub fn mapped(&self, at: RegionAddress, len_bytes: u64) -> Option<NonNull<u8>> {
        self.window.pointer(at, len_bytes)
    }

    /// See [`crate::Endpoint::wait`].
    pub fn wait(
        &self,
        (line, watch): (&Line, &Watch),
        turn: Turn,
        deadline: Option<Instant>,
        give_up: impl FnMut() -> bool,
    ) -> bool {
        line.wait(watch, turn, deadline, give_up)
    }

    /// Makes a region that the peer passed reachable under a number.
    pub fn register(&self, region: u32, file: BorrowedFd<'_>, len_bytes: u64) -> Result<(), FabricError> {
        self.window.map(region, file, len_bytes)
    }

    #[inline(always)]
    fn view<T: PeerWritable>(&self, at: RegionAddress) -> Result<&T, FabricError> {
        let pointer = self.inside(at, size_of::<T>() as u64)?.cast::<T>();
        if !pointer.is_aligned() {
            return Err(FabricError::unaligned(at, align_of::<T>() as u64));
        }
        // SAFETY: aligned, and inside of a mapping that lives as long as the window; the rest is `PeerWritable`'s promise.
        Ok(unsafe { pointer.as_ref() })
    }

    #[inline(always)]
    fn inside(&self, at: RegionAddress, len_bytes: u64) -> Result<NonNull<u8>, FabricError> {
        match self.window.pointer(at, len_bytes) {
            Some(pointer) => Ok(pointer),
            None => Err(FabricError::out_of_bounds(at, len_bytes)),
        }
    }
}
