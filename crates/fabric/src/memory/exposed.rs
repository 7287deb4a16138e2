//! Decides which of this side's memory the peer of a connection between nodes may reach, and under which keys.
//!
//! Region 0 is a side's own: a worker's inbox, a client's results. All other regions have the same numbers and sizes on
//! both sides: the client's are its buffers, and the worker's are copies of them. Thus an address means the same bytes
//! on either side, and a request is the same with every provider.
//!
//! Where a connection only gives access to memory, the regions are those lent to the peer, by one lease or by several
//! in sequence. Each of them ends separately.
//!
//! A peer names a region by its *key* and nothing else. A key is 16 bits of region number and 48 random bits, new for
//! each connection's exposure. A wrong key, or an address outside of the region, ends the connection, so that a peer
//! cannot probe for keys. A withdrawn key differs from an unknown one: an access after the end of a lease is not a
//! violation. It gets a clear error, and the connection continues for the other regions.

use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use sublet_proto::graph::MemoryRights;
use sublet_proto::to_usize;

use crate::FabricError;
use crate::region::Region;
use crate::stored::{MAX_STORED_BYTES, StoredBytes};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::window::{RegionAddress, Window};

/// The number of a side's own region.
pub const OWN: u32 = 0;

const INDEX_BITS: u32 = 16;
/// Marks an entry of the table that has no key yet. A key is never 0, since its random part is not 0.
const NONE: u64 = 0;

/// A region as its owner describes it to the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteRegion {
    /// The key by which the owner finds the region.
    pub key: u64,
    /// The start address to which the peer adds an offset.
    pub base: u64,
    /// The region's size.
    pub len_bytes: u64,
}

/// See the [module](self).
pub struct ExposedMemory {
    memory: RegionLocation,
    /// Current key of each region, or [`NONE`].
    keys: Box<[AtomicU64]>,
    withdrawn: Box<[AtomicU64]>,
}

/// Location of the regions.
enum RegionLocation {
    /// This side's own region, and the regions that have the same number on both sides.
    Shared { own: Region, others: Arc<Window> },
    /// The lent regions by number, and the count of numbers in use.
    Lent(Box<[OnceLock<LentMemory>]>, AtomicU32),
}

/// Lent memory. It stays mapped as long as the connection exists, so that a withdrawal does not wait.
struct LentMemory {
    bytes: LentBytes,
    rights: MemoryRights,
}

/// Location of lent bytes.
enum LentBytes {
    Mapped(Arc<Region>),
    Stored(Arc<dyn StoredBytes>),
}

impl LentBytes {
    fn len_bytes(&self) -> u64 {
        match self {
            LentBytes::Mapped(region) => region.len_bytes(),
            LentBytes::Stored(stored) => stored.len_bytes(),
        }
    }
}

impl ExposedMemory {
    /// Makes a table in which no region is reachable before its key has been requested. `own` is mapped a second time.
    pub fn new(own: &Region, others: Arc<Window>, regions: u32) -> Result<ExposedMemory, FabricError> {
        let file = own
            .fd()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| FabricError::system("dup of a region", error))?;
        let own = Region::attach(file, own.len_bytes())?;
        Ok(ExposedMemory {
            memory: RegionLocation::Shared { own, others },
            keys: keys(regions),
            withdrawn: keys(regions),
        })
    }

    /// Makes the table of a TCP connection that lends up to `regions` regions, or that only uses the peer's and knows
    /// up to `regions` of them.
    pub fn lending(regions: u32) -> ExposedMemory {
        let (keys, withdrawn) = (keys(regions), keys(regions));
        let places = keys.iter().map(|_| OnceLock::new()).collect();
        ExposedMemory { memory: RegionLocation::Lent(places, AtomicU32::new(0)), keys, withdrawn }
    }

    /// Lends memory, for reading or for writing, and returns its number and key. `None` if all numbers are in use.
    pub fn lend(
        &self,
        region: Arc<Region>,
        rights: MemoryRights,
    ) -> Result<Option<(u32, RemoteRegion)>, FabricError> {
        self.lend_bytes(LentMemory { bytes: LentBytes::Mapped(region), rights })
    }

    /// Lends stored bytes like [`ExposedMemory::lend`]. The peer reads and writes them with [`MAX_STORED_BYTES`] at a
    /// time, and has neither lines nor words in them.
    pub fn lend_stored(
        &self,
        stored: Arc<dyn StoredBytes>,
        rights: MemoryRights,
    ) -> Result<Option<(u32, RemoteRegion)>, FabricError> {
        self.lend_bytes(LentMemory { bytes: LentBytes::Stored(stored), rights })
    }

    fn lend_bytes(&self, lent: LentMemory) -> Result<Option<(u32, RemoteRegion)>, FabricError> {
        let RegionLocation::Lent(places, taken) = &self.memory else { return Ok(None) };
        let next = |taken: u32| ((taken as usize) < places.len()).then(|| taken + 1);
        let Ok(number) = taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) else {
            return Ok(None);
        };
        let was_set = places[number as usize].set(lent);
        debug_assert!(was_set.is_ok(), "the number {number} is lent twice");
        Ok(Some((number, self.expose(number)?)))
    }

    /// Lends memory for writing by a key that both sides received from a third process, which [made](new_key) it and
    /// chose the number in it. A side that uses this lends all its memory in this way.
    pub fn lend_by(&self, key: u64, region: Arc<Region>) -> Result<(), FabricError> {
        let number = region_of(key) as usize;
        let RegionLocation::Lent(places, _) = &self.memory else { return Err(FabricError::KeyUnknown) };
        let (Some(place), Some(known)) = (places.get(number), self.keys.get(number)) else {
            return Err(FabricError::KeyUnknown);
        };
        let lent = LentMemory { bytes: LentBytes::Mapped(region), rights: MemoryRights::Write };
        if key >> INDEX_BITS == 0 || place.set(lent).is_err() {
            return Err(FabricError::KeyUnknown);
        }
        known.store(key, Ordering::Release);
        Ok(())
    }

    /// Makes a region reachable. Returns the same key for each call.
    pub fn expose(&self, region: u32) -> Result<RemoteRegion, FabricError> {
        let len_bytes = self.region_bytes(region);
        let Some(place) = self.keys.get(region as usize).filter(|_| len_bytes > 0) else {
            return Err(FabricError::out_of_bounds(RegionAddress { region, offset: 0 }, 0));
        };
        let fresh = new_key(region)?;
        let key = match place.compare_exchange(NONE, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(known) => known,
        };
        Ok(RemoteRegion { key, base: 0, len_bytes })
    }

    /// Withdraws a region's key.
    pub fn withdraw(&self, region: u32) {
        if let (Some(key), Some(withdrawn)) =
            (self.keys.get(region as usize), self.withdrawn.get(region as usize))
        {
            let old = key.swap(NONE, Ordering::AcqRel);
            debug_assert!(old == NONE || region_of(old) == region, "{old:x} is the key of region {region}");
            if old != NONE {
                withdrawn.store(old, Ordering::Release);
            }
        }
    }

    /// Returns the address in this process that a peer's access refers to.
    #[inline]
    pub fn find(&self, key: u64, offset: u64, len_bytes: u64) -> Result<NonNull<u8>, FabricError> {
        let region = region_of(key);
        if key == NONE
            || self.keys.get(region as usize).map(|known| known.load(Ordering::Acquire)) != Some(key)
        {
            return Err(self.refuse(key, region));
        }
        let at = RegionAddress { region, offset };
        self.pointer(at, len_bytes).ok_or_else(|| self.outside(key, at, len_bytes))
    }

    /// Returns the same as [`ExposedMemory::find`], for an access that writes.
    #[inline]
    pub fn find_to_write(&self, key: u64, offset: u64, len_bytes: u64) -> Result<NonNull<u8>, FabricError> {
        let found = self.find(key, offset, len_bytes)?;
        match &self.memory {
            RegionLocation::Shared { .. } => Ok(found),
            RegionLocation::Lent(..)
                if self.lent(region_of(key)).is_some_and(|lent| lent.rights == MemoryRights::Write) =>
            {
                Ok(found)
            }
            RegionLocation::Lent(..) => Err(FabricError::ReadOnly),
        }
    }

    /// Whether the region of a key, valid or not, has stored bytes.
    #[inline]
    pub(crate) fn is_stored(&self, key: u64) -> bool {
        self.lent(region_of(key)).is_some_and(|lent| matches!(lent.bytes, LentBytes::Stored(_)))
    }

    /// Returns the stored bytes that a peer's access refers to, after the same checks as [`ExposedMemory::find`].
    pub(crate) fn find_stored(
        &self,
        key: u64,
        (offset, len_bytes): (u64, u64),
        rights: MemoryRights,
    ) -> Result<&dyn StoredBytes, FabricError> {
        let region = region_of(key);
        if key == NONE
            || self.keys.get(region as usize).map(|known| known.load(Ordering::Acquire)) != Some(key)
        {
            return Err(self.refuse(key, region));
        }
        let Some(LentMemory { bytes: LentBytes::Stored(stored), rights: lent }) = self.lent(region) else {
            return Err(FabricError::KeyUnknown);
        };
        if rights == MemoryRights::Write && *lent != MemoryRights::Write {
            return Err(FabricError::ReadOnly);
        }
        if len_bytes > MAX_STORED_BYTES {
            let message =
                format!("{len_bytes} stored bytes in one request, at most {MAX_STORED_BYTES} are possible");
            return Err(FabricError::Protocol(message));
        }
        match offset.checked_add(len_bytes) {
            Some(end) if end <= stored.len_bytes() => Ok(&**stored),
            _ => Err(FabricError::out_of_bounds(RegionAddress { region, offset }, len_bytes)),
        }
    }

    /// Makes the error of an access to bytes that are not in this process's memory.
    #[cold]
    fn outside(&self, key: u64, at: RegionAddress, len_bytes: u64) -> FabricError {
        if self.is_stored(key) {
            let message = format!("region {} is stored: its bytes are only read and written", at.region);
            return FabricError::Protocol(message);
        }
        FabricError::out_of_bounds(at, len_bytes)
    }

    /// Address of bytes of a region in this process.
    #[inline]
    pub fn pointer(&self, at: RegionAddress, len_bytes: u64) -> Option<NonNull<u8>> {
        match &self.memory {
            RegionLocation::Shared { own, .. } if at.region == OWN => own.pointer(at.offset, len_bytes),
            RegionLocation::Shared { others, .. } => others.pointer(at, len_bytes),
            RegionLocation::Lent(..) => match &self.lent(at.region)?.bytes {
                LentBytes::Mapped(region) => region.pointer(at.offset, len_bytes),
                LentBytes::Stored(_) => None,
            },
        }
    }

    /// Addresses of a region in this process. Empty if the region does not exist.
    pub(crate) fn bytes(&self, region: u32) -> Range<*const u8> {
        let len_bytes = self.region_bytes(region);
        let begin = self.pointer(RegionAddress { region, offset: 0 }, len_bytes);
        let begin = begin.map_or(std::ptr::null(), |begin| begin.as_ptr().cast_const());
        begin..begin.wrapping_add(if begin.is_null() { 0 } else { to_usize(len_bytes) })
    }

    /// The regions that have the same number on both sides, if this connection has such regions.
    pub fn others(&self) -> Option<&Arc<Window>> {
        match &self.memory {
            RegionLocation::Shared { others, .. } => Some(others),
            RegionLocation::Lent(..) => None,
        }
    }

    /// Most regions that the table can hold.
    pub fn regions(&self) -> usize {
        self.keys.len()
    }

    /// The size of a region, 0 if it does not exist.
    pub fn region_bytes(&self, region: u32) -> u64 {
        match &self.memory {
            RegionLocation::Shared { own, .. } if region == OWN => own.len_bytes(),
            RegionLocation::Shared { others, .. } => others.region_bytes(region),
            RegionLocation::Lent(..) => self.lent(region).map_or(0, |lent| lent.bytes.len_bytes()),
        }
    }

    #[inline]
    fn lent(&self, region: u32) -> Option<&LentMemory> {
        match &self.memory {
            RegionLocation::Shared { .. } => None,
            RegionLocation::Lent(places, _) => places.get(region as usize)?.get(),
        }
    }

    #[cold]
    fn refuse(&self, key: u64, region: u32) -> FabricError {
        let withdrawn = self.withdrawn.get(region as usize).map(|old| old.load(Ordering::Acquire));
        match withdrawn {
            Some(old) if old == key && key != NONE => FabricError::KeyExpired { region },
            _ => FabricError::KeyUnknown,
        }
    }
}

/// The region number in a key.
#[inline]
fn region_of(key: u64) -> u32 {
    (key & ((1 << INDEX_BITS) - 1)) as u32
}

/// Makes an array without keys, one entry for each of `regions` regions.
fn keys(regions: u32) -> Box<[AtomicU64]> {
    (0..regions.min(1 << INDEX_BITS)).map(|_| AtomicU64::new(NONE)).collect()
}

/// Makes a key that a peer cannot guess.
pub fn new_key(region: u32) -> Result<u64, FabricError> {
    let mut bytes = [0; 8];
    loop {
        getrandom::fill(&mut bytes).map_err(|error| {
            FabricError::system("getrandom for a key", std::io::Error::other(error.to_string()))
        })?;
        let random = u64::from_ne_bytes(bytes) << INDEX_BITS;
        debug_assert!(region < 1 << INDEX_BITS, "the region {region} does not fit into a key");
        if random != 0 {
            return Ok(random | u64::from(region));
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::region::create_file;

    fn exposed() -> ExposedMemory {
        let window = Window::new(4, 1 << 20).unwrap();
        window.map(2, create_file("two", 8192).unwrap().as_fd(), 8192).unwrap();
        ExposedMemory::new(&Region::create("own", 4096).unwrap(), Arc::new(window), 4).unwrap()
    }

    #[test]
    fn region_is_reached_by_its_key_within_its_bounds() {
        let exposed = exposed();
        for (region, len) in [(OWN, 4096), (2, 8192)] {
            let remote = exposed.expose(region).unwrap();
            assert_eq!((remote.len_bytes, exposed.expose(region).unwrap()), (len, remote));
            assert!(exposed.find(remote.key, len - 8, 8).is_ok());
            assert!(matches!(exposed.find(remote.key, len - 7, 8), Err(FabricError::OutOfBounds { .. })));
            assert!(matches!(exposed.find(remote.key, u64::MAX, 8), Err(FabricError::OutOfBounds { .. })));
            assert!(matches!(exposed.find(remote.key ^ 1 << 20, 0, 1), Err(FabricError::KeyUnknown)));
        }
        assert!(exposed.expose(1).is_err() && exposed.expose(9).is_err());
    }

    #[test]
    fn region_lent_for_reading_is_read_only_and_ends_separately() {
        let region = Arc::new(Region::create("lent", 4096).unwrap());
        let exposed = ExposedMemory::lending(2);
        let (_, to_read) = exposed.lend(region.clone(), MemoryRights::Read).unwrap().unwrap();
        let (number, to_write) = exposed.lend(region.clone(), MemoryRights::Write).unwrap().unwrap();
        assert!(exposed.find(to_read.key, 0, 5).is_ok() && exposed.find_to_write(to_write.key, 0, 5).is_ok());
        assert!(matches!(exposed.find_to_write(to_read.key, 0, 5), Err(FabricError::ReadOnly)));
        assert!(matches!(exposed.find_to_write(to_read.key ^ 1 << 20, 0, 5), Err(FabricError::KeyUnknown)));
        // A number is not used twice: a peer with the earlier key would otherwise reach the new region.
        exposed.withdraw(number);
        assert!(matches!(exposed.find(to_write.key, 0, 5), Err(FabricError::KeyExpired { region: 1 })));
        assert!(exposed.lend(region, MemoryRights::Write).unwrap().is_none());
        assert!(exposed.find(to_read.key, 0, 5).is_ok());
    }

    #[test]
    fn third_partys_key_lends_a_region_once() {
        let region = Arc::new(Region::create("lent", 4096).unwrap());
        let exposed = ExposedMemory::lending(2);
        let key = new_key(1).unwrap();
        exposed.lend_by(key, region.clone()).unwrap();
        assert!(
            exposed.find_to_write(key, 4088, 8).is_ok() && exposed.find(new_key(0).unwrap(), 0, 1).is_err()
        );
        for wrong in [new_key(1).unwrap(), new_key(2).unwrap(), 0] {
            assert!(matches!(exposed.lend_by(wrong, region.clone()), Err(FabricError::KeyUnknown)));
        }
        exposed.withdraw(1);
        assert!(matches!(exposed.find(key, 0, 1), Err(FabricError::KeyExpired { region: 1 })));
    }

    #[test]
    fn unexposed_region_has_no_key_and_withdrawn_one_is_expired() {
        let exposed = exposed();
        assert!(matches!(exposed.find(0, 0, 1), Err(FabricError::KeyUnknown)));
        assert!(matches!(exposed.find(2, 0, 1), Err(FabricError::KeyUnknown)));
        let remote = exposed.expose(2).unwrap();
        exposed.withdraw(2);
        assert!(matches!(exposed.find(remote.key, 0, 1), Err(FabricError::KeyExpired { region: 2 })));
        assert_ne!(exposed.expose(2).unwrap().key, remote.key);
    }
}
