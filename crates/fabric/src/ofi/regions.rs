//! The regions of both sides in one connection: this side's registrations, and the peer's keys.

use std::ptr::NonNull;
use std::sync::Arc;

use super::ffi::RawRegistration;
use super::link::OfiLink;
use super::message::PutDestination;
use crate::FabricError;
use crate::exposed::{ExposedMemory, OWN, RemoteRegion};
use crate::line::{LINE_BYTES, WATCH_BYTES};
use crate::region::PeerWritable;
use crate::window::{LineAddress, RegionAddress};

/// Most regions that a peer may name.
const MAX_REGIONS: u32 = 1 << 16;

/// A region of this side that the peer may access.
struct OwnRegion {
    registration: Option<RawRegistration>,
    /// The provider's key, which the peer shows.
    key: u64,
    /// The key under which [`ExposedMemory`] has the region; it determines whether the provider's key is still valid.
    exposed_key: u64,
}

/// See the [module](self).
pub struct OfiRegions {
    exposed: Arc<ExposedMemory>,
    ours: Vec<Option<OwnRegion>>,
    theirs: Vec<Option<RemoteRegion>>,
}

impl OfiRegions {
    pub fn new(exposed: Arc<ExposedMemory>) -> OfiRegions {
        OfiRegions { exposed, ours: Vec::new(), theirs: Vec::new() }
    }

    /// Registers a region, so that the peer can access it. Returns the same key for each call.
    pub fn expose(&mut self, link: &mut OfiLink, region: u32) -> Result<RemoteRegion, FabricError> {
        let exposed = self.exposed.expose(region)?;
        let start = RegionAddress { region, offset: 0 };
        let outside = || FabricError::out_of_bounds(start, exposed.len_bytes);
        let memory = self.exposed.pointer(start, exposed.len_bytes).ok_or_else(outside)?;
        let base = if link.facts.virtual_addresses != 0 { memory.as_ptr() as u64 } else { 0 };
        let place = place_for(&mut self.ours, region)?;
        if let Some(known) = place.as_ref().filter(|known| known.exposed_key == exposed.key) {
            return Ok(RemoteRegion { key: known.key, base, len_bytes: exposed.len_bytes });
        }
        if let Some(old) = place.take().and_then(|old| old.registration) {
            link.dismiss(&old);
        }
        // SAFETY: the region stays mapped as long as `ExposedMemory`, which this keeps; the link goes first (see `Live`).
        let registration = unsafe { link.enroll(memory, exposed.len_bytes, true)? };
        let key = registration.key;
        *place = Some(OwnRegion { registration: Some(registration), key, exposed_key: exposed.key });
        Ok(RemoteRegion { key, base, len_bytes: exposed.len_bytes })
    }

    /// Withdraws the key of a region. The number is kept, to distinguish an expired key from a wrong one.
    pub fn withdraw(&mut self, link: &mut OfiLink, region: u32) {
        self.exposed.withdraw(region);
        let ours = self.ours.get_mut(region as usize).and_then(Option::as_mut);
        if let Some(registration) = ours.and_then(|ours| ours.registration.take()) {
            link.dismiss(&registration);
        }
    }

    /// Records how to access the peer's region.
    pub fn reach(&mut self, region: u32, remote: RemoteRegion) -> Result<(), FabricError> {
        *place_for(&mut self.theirs, region)? = Some(remote);
        Ok(())
    }

    /// Finds bytes of the peer: their address in messages, and their address in direct operations.
    #[inline]
    pub fn theirs(&self, at: RegionAddress, len_bytes: u64) -> Result<(PutDestination, u64), FabricError> {
        let known = self.theirs.get(at.region as usize).and_then(Option::as_ref);
        let inside =
            known.filter(|known| at.offset.checked_add(len_bytes).is_some_and(|end| end <= known.len_bytes));
        match inside {
            Some(known) => {
                let place = PutDestination { key: known.key, region: at.region, offset: at.offset };
                Ok((place, known.base.wrapping_add(at.offset)))
            }
            None => Err(FabricError::out_of_bounds(at, len_bytes)),
        }
    }

    /// Finds a line of the peer and its watch.
    #[inline]
    pub fn their_line(&self, to: LineAddress) -> Result<PutDestination, FabricError> {
        aligned(RegionAddress { region: to.region, offset: to.line }, LINE_BYTES)?;
        aligned(RegionAddress { region: to.region, offset: to.watch }, WATCH_BYTES)?;
        self.theirs(RegionAddress { region: to.region, offset: to.watch }, WATCH_BYTES)?;
        Ok(self.theirs(RegionAddress { region: to.region, offset: to.line }, LINE_BYTES)?.0)
    }

    /// Address in this process of bytes that the peer names.
    #[inline]
    pub fn ours(&self, at: PutDestination, len_bytes: u64) -> Result<NonNull<u8>, FabricError> {
        match self.ours.get(at.region as usize).and_then(Option::as_ref) {
            Some(ours) if ours.key == at.key => self.exposed.find(ours.exposed_key, at.offset, len_bytes),
            _ => Err(FabricError::KeyUnknown),
        }
    }

    /// A line, watch or word that the peer names.
    #[inline]
    pub fn our_view<T: PeerWritable>(&self, at: PutDestination) -> Result<&T, FabricError> {
        let pointer = self.ours(at, size_of::<T>() as u64)?.cast::<T>();
        if !pointer.is_aligned() {
            aligned(RegionAddress { region: at.region, offset: at.offset }, align_of::<T>() as u64)?;
            return Err(FabricError::KeyUnknown);
        }
        // SAFETY: aligned, and inside of a region that lives as long as `ExposedMemory`; the rest is `PeerWritable`'s promise.
        Ok(unsafe { pointer.as_ref() })
    }

    /// Finds the registration of memory of this process that lies in an exposed region.
    pub fn registration_of(&self, memory: *const u8, len_bytes: u64) -> Option<RawRegistration> {
        let own = self.exposed.pointer(RegionAddress { region: OWN, offset: 0 }, 0)?;
        let own_bytes = self.exposed.region_bytes(OWN);
        let in_own = (memory as usize).checked_sub(own.as_ptr() as usize);
        let region = match in_own.filter(|from| (*from as u64).saturating_add(len_bytes) <= own_bytes) {
            Some(_) => OWN,
            None => self.exposed.others()?.locate(memory, len_bytes)?.region,
        };
        self.ours.get(region as usize)?.as_ref()?.registration
    }
}

/// The entry of a region's number in a table that grows as needed.
fn place_for<T>(table: &mut Vec<Option<T>>, region: u32) -> Result<&mut Option<T>, FabricError> {
    if region >= MAX_REGIONS {
        return Err(FabricError::DoesNotFit { region, len_bytes: 0, regions: MAX_REGIONS });
    }
    if table.len() <= region as usize {
        table.resize_with(region as usize + 1, || None);
    }
    Ok(&mut table[region as usize])
}

/// Checks that an offset is a multiple of `alignment`.
pub fn aligned(at: RegionAddress, alignment: u64) -> Result<(), FabricError> {
    match at.offset.is_multiple_of(alignment) {
        true => Ok(()),
        false => Err(FabricError::unaligned(at, alignment)),
    }
}
