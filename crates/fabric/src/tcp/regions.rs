//! The peer's regions, as the peer announced them.

use crate::FabricError;
use crate::exposed::RemoteRegion;
use crate::sync::{AtomicU64, Ordering};
use crate::window::RegionAddress;

/// The peer's regions by number.
pub(super) struct PeerRegions(Box<[PeerRegion]>);

/// A region of the peer. `set` writes `len_bytes` first as 0 and last as its value, Release, so that a reader of a
/// length sees the key that belongs to it. If the region changes at that moment, a reader may mix both; the peer
/// refuses the mixture.
#[derive(Default)]
struct PeerRegion {
    key: AtomicU64,
    base: AtomicU64,
    len_bytes: AtomicU64,
}

/// Destination of an access, in the terms of frames.
#[derive(Clone, Copy)]
pub(super) struct AccessDestination {
    pub(super) key: u64,
    pub(super) base: u64,
}

impl PeerRegions {
    pub(super) fn new(regions: usize) -> PeerRegions {
        PeerRegions((0..regions).map(|_| PeerRegion::default()).collect())
    }

    pub(super) fn set(&self, region: u32, remote: RemoteRegion) -> Result<(), FabricError> {
        let does_not_fit = FabricError::DoesNotFit {
            region,
            len_bytes: remote.len_bytes,
            regions: u32::try_from(self.0.len()).unwrap_or(u32::MAX),
        };
        let entry = self.0.get(region as usize).ok_or(does_not_fit)?;
        entry.len_bytes.store(0, Ordering::Release);
        entry.key.store(remote.key, Ordering::Release);
        entry.base.store(remote.base, Ordering::Release);
        entry.len_bytes.store(remote.len_bytes, Ordering::Release);
        Ok(())
    }

    /// Makes all regions unreachable.
    pub(super) fn clear(&self) {
        for entry in &self.0 {
            entry.len_bytes.store(0, Ordering::Release);
        }
    }

    /// Makes a region unreachable.
    pub(super) fn forget(&self, region: u32) {
        if let Some(entry) = self.0.get(region as usize) {
            entry.len_bytes.store(0, Ordering::Release);
        }
    }

    /// Whether a region is reachable.
    pub(super) fn is_known(&self, region: u32) -> bool {
        self.0.get(region as usize).is_some_and(|entry| entry.len_bytes.load(Ordering::Acquire) > 0)
    }

    /// Finds the address of the peer's bytes.
    #[inline]
    pub(super) fn find(&self, at: RegionAddress, len_bytes: u64) -> Result<AccessDestination, FabricError> {
        let outside = || FabricError::out_of_bounds(at, len_bytes);
        let entry = self.0.get(at.region as usize).ok_or_else(outside)?;
        let region_bytes = entry.len_bytes.load(Ordering::Acquire);
        match at.offset.checked_add(len_bytes) {
            Some(end) if end <= region_bytes && region_bytes > 0 => Ok(AccessDestination {
                key: entry.key.load(Ordering::Acquire),
                base: entry.base.load(Ordering::Acquire),
            }),
            _ => Err(outside()),
        }
    }

    /// Finds an address like [`PeerRegions::find`], for a value that must be aligned to its own size.
    #[inline]
    pub(super) fn find_aligned(
        &self,
        at: RegionAddress,
        len_bytes: u64,
    ) -> Result<AccessDestination, FabricError> {
        let place = self.find(at, len_bytes)?;
        match at.offset.is_multiple_of(len_bytes) {
            true => Ok(place),
            false => Err(FabricError::unaligned(at, len_bytes)),
        }
    }
}
