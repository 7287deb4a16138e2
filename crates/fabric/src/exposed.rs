//! What the peer of a connection between nodes may reach of this side's memory, and under which keys.
//!
//! Region 0 is a side's own: a worker's inbox, a client's results. The others have the same numbers and sizes on both
//! sides: the client's are its buffers, the worker's are copies of them, so that a place means the same bytes on
//! either side and a request says the same whatever carries it.
//!
//! A peer names a region by its *key* and nothing else. A key is 16 bits of region number and 48 random bits, new for
//! each connection's exposure. A wrong key, or a place outside of the region, ends the connection: it cannot be
//! probed for. A key that was withdrawn is told from one that never was, so that a late access after a lease's end has
//! a clear error.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::FabricError;
use crate::region::{PAGE_BYTES, Region, read_only};
use crate::sync::{AtomicU64, Ordering};
use crate::window::{Address, Window};

/// The number of a side's own region.
pub const OWN: u32 = 0;

const INDEX_BITS: u32 = 16;
/// In the table: no key yet. A key is never 0, since its random part is not.
const NONE: u64 = 0;

/// A region as its owner tells it to the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteRegion {
    /// What the owner knows it by.
    pub key: u64,
    /// What an offset is added to.
    pub base: u64,
    /// Its size.
    pub len_bytes: u64,
}

/// See the [module](self).
pub struct Exposed {
    own: Region,
    /// The peer reads, and writes nothing.
    is_read_only: bool,
    others: Arc<Window>,
    /// For each region its key, and in the second half those withdrawn.
    keys: Box<[AtomicU64]>,
    withdrawn: Box<[AtomicU64]>,
}

impl Exposed {
    /// Nothing is reachable before its key has been asked for. `own` is mapped a second time.
    pub fn new(own: &Region, others: Arc<Window>, regions: u32) -> Result<Exposed, FabricError> {
        let file = own
            .fd()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| FabricError::system("dup of a region", error))?;
        let none = || (0..regions.min(1 << INDEX_BITS)).map(|_| AtomicU64::new(NONE)).collect();
        let own = Region::attach(file, own.len_bytes())?;
        Ok(Exposed { own, is_read_only: false, others, keys: none(), withdrawn: none() })
    }

    /// As [`Exposed::new`], of a side that has no other region.
    pub fn alone(own: &Region) -> Result<Exposed, FabricError> {
        Exposed::new(own, Arc::new(Window::reserve(1, PAGE_BYTES)?), 1)
    }

    /// As [`Exposed::alone`], for a peer that reads, and writes nothing; over TCP.
    pub fn to_read(own: &Region) -> Result<Exposed, FabricError> {
        let exposed = Exposed::alone(own)?;
        let own = Region::attach_to_read(read_only(own.fd())?, own.len_bytes())?;
        Ok(Exposed { own, is_read_only: true, ..exposed })
    }

    /// Makes a region reachable; the same answer each time.
    pub fn expose(&self, region: u32) -> Result<RemoteRegion, FabricError> {
        let len_bytes = self.region_bytes(region);
        let Some(place) = self.keys.get(region as usize).filter(|_| len_bytes > 0) else {
            return Err(FabricError::out_of_bounds(Address { region, offset: 0 }, 0));
        };
        let fresh = new_key(region)?;
        let key = match place.compare_exchange(NONE, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(known) => known,
        };
        Ok(RemoteRegion { key, base: 0, len_bytes })
    }

    /// Ends what a region's key is good for.
    pub fn withdraw(&self, region: u32) {
        if let (Some(key), Some(withdrawn)) =
            (self.keys.get(region as usize), self.withdrawn.get(region as usize))
        {
            let old = key.swap(NONE, Ordering::AcqRel);
            if old != NONE {
                withdrawn.store(old, Ordering::Release);
            }
        }
    }

    /// Where a peer's access goes in this process.
    #[inline]
    pub fn find(&self, key: u64, offset: u64, len_bytes: u64) -> Result<NonNull<u8>, FabricError> {
        let region = (key & ((1 << INDEX_BITS) - 1)) as u32;
        if key == NONE
            || self.keys.get(region as usize).map(|known| known.load(Ordering::Acquire)) != Some(key)
        {
            return Err(self.refuse(key, region));
        }
        let at = Address { region, offset };
        self.pointer(at, len_bytes).ok_or_else(|| FabricError::out_of_bounds(at, len_bytes))
    }

    /// As [`Exposed::find`], of an access that writes.
    #[inline]
    pub fn find_to_write(&self, key: u64, offset: u64, len_bytes: u64) -> Result<NonNull<u8>, FabricError> {
        let found = self.find(key, offset, len_bytes)?;
        if self.is_read_only { Err(FabricError::ReadOnly) } else { Ok(found) }
    }

    /// Where bytes of a region lie in this process.
    #[inline]
    pub fn pointer(&self, at: Address, len_bytes: u64) -> Option<NonNull<u8>> {
        if at.region == OWN {
            self.own.pointer(at.offset, len_bytes)
        } else {
            self.others.pointer(at, len_bytes)
        }
    }

    /// The regions that have the same number on both sides.
    pub fn others(&self) -> &Arc<Window> {
        &self.others
    }

    /// How many regions there can be.
    pub fn regions(&self) -> usize {
        self.keys.len()
    }

    /// The size of a region, 0 if there is none.
    pub fn region_bytes(&self, region: u32) -> u64 {
        if region == OWN { self.own.len_bytes() } else { self.others.region_bytes(region) }
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

fn new_key(region: u32) -> Result<u64, FabricError> {
    let mut bytes = [0; 8];
    loop {
        getrandom::fill(&mut bytes).map_err(|error| {
            FabricError::system("getrandom for a key", std::io::Error::other(error.to_string()))
        })?;
        let random = u64::from_ne_bytes(bytes) << INDEX_BITS;
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

    fn exposed() -> Exposed {
        let window = Window::reserve(4, 1 << 20).unwrap();
        window.map(2, create_file("two", 8192).unwrap().as_fd(), 8192).unwrap();
        Exposed::new(&Region::create("own", 4096).unwrap(), Arc::new(window), 4).unwrap()
    }

    #[test]
    fn a_region_is_reached_by_its_key_and_within_its_bounds() {
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
    fn who_is_to_read_finds_nothing_to_write() {
        let region = Region::create("own", 4096).unwrap();
        region.write(0, b"there").unwrap();
        let exposed = Exposed::to_read(&region).unwrap();
        let remote = exposed.expose(OWN).unwrap();
        assert!(exposed.find(remote.key, 0, 5).is_ok());
        assert!(matches!(exposed.find_to_write(remote.key, 0, 5), Err(FabricError::ReadOnly)));
        assert!(matches!(exposed.find_to_write(remote.key ^ 1 << 20, 0, 5), Err(FabricError::KeyUnknown)));
    }

    #[test]
    fn what_was_not_exposed_has_no_key_and_what_was_withdrawn_says_so() {
        let exposed = exposed();
        assert!(matches!(exposed.find(0, 0, 1), Err(FabricError::KeyUnknown)));
        assert!(matches!(exposed.find(2, 0, 1), Err(FabricError::KeyUnknown)));
        let remote = exposed.expose(2).unwrap();
        exposed.withdraw(2);
        assert!(matches!(exposed.find(remote.key, 0, 1), Err(FabricError::KeyExpired { region: 2 })));
        assert_ne!(exposed.expose(2).unwrap().key, remote.key);
    }
}
