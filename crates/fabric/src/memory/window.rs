//! A window: the regions of a connection in this process's address space, by their numbers.
//!
//! Address space is reserved for each region when it is mapped, so a process under a limit of address space (`ulimit -v`)
//! needs as much as its regions have. Behind each region a hole is reserved without access rights: a stray pointer past the
//! end of a region faults and never hits a neighbour. Regions stay mapped, and where they are, as long as the window.

use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use sublet_proto::graph::MemoryRights;
use sublet_proto::to_usize;

use crate::FabricError;
use crate::address::PAGE_BYTES;
pub use crate::address::{LineAddress, RegionAddress};
use crate::space::Space;

/// The hole behind each region, in bytes.
const HOLE_BYTES: u64 = 1 << 20;

/// See the [module](self).
pub struct Window {
    places: Box<[MappedRange]>,
    /// One more than the highest number that is mapped. Written under the lock of `spaces`, Release, after the place is;
    /// pairs with the Acquire load of `locate`.
    end: AtomicU32,
    max_region_bytes: u64,
    /// Address space reserved for each mapped region.
    spaces: Mutex<Vec<Space>>,
}

/// Address and size of a mapped region.
struct MappedRange {
    /// Written once, before `len_bytes`; read after it.
    base: AtomicPtr<u8>,
    /// 0 while nothing is mapped. Written once, Release, after the region is mapped; pairs with the Acquire load of every
    /// access.
    len_bytes: AtomicU64,
}

impl MappedRange {
    /// The beginning and size of the region, if it is mapped.
    #[inline(always)]
    fn get(&self) -> Option<(NonNull<u8>, u64)> {
        let len_bytes = self.len_bytes.load(Ordering::Acquire);
        // Ordered behind the load above, which pairs with the store after both.
        NonNull::new(self.base.load(Ordering::Relaxed))
            .filter(|_| len_bytes > 0)
            .map(|base| (base, len_bytes))
    }
}

impl Window {
    /// Makes a window for up to `regions` regions of up to `max_region_bytes` bytes each, rounded up to a power of two.
    /// Reserves no address space yet.
    pub fn new(regions: u32, max_region_bytes: u64) -> Result<Window, FabricError> {
        let max_region_bytes = max_region_bytes.max(PAGE_BYTES).checked_next_power_of_two();
        let max_region_bytes =
            max_region_bytes.ok_or(FabricError::DoesNotFit { region: 0, len_bytes: u64::MAX, regions })?;
        let empty = |_| MappedRange { base: AtomicPtr::new(null_mut()), len_bytes: AtomicU64::new(0) };
        Ok(Window {
            places: (0..regions).map(empty).collect(),
            end: AtomicU32::new(0),
            max_region_bytes,
            spaces: Mutex::default(),
        })
    }

    /// Maps a region's file. Refuses a number that is in use.
    pub fn map(&self, region: u32, file: BorrowedFd<'_>, len_bytes: u64) -> Result<(), FabricError> {
        let does_not_fit = || FabricError::DoesNotFit {
            region,
            len_bytes,
            regions: u32::try_from(self.places.len()).unwrap_or(u32::MAX),
        };
        let place = self.places.get(region as usize).ok_or_else(does_not_fit)?;
        let mut spaces = self.spaces.lock().unwrap_or_else(PoisonError::into_inner);
        if len_bytes == 0 || len_bytes > self.max_region_bytes || place.get().is_some() {
            return Err(does_not_fit());
        }
        let space = Space::reserve(len_bytes + HOLE_BYTES)?;
        // SAFETY: nothing is mapped there yet, and no other thread learns the address before the region's size is
        // stored.
        unsafe { space.map(0, file, len_bytes, MemoryRights::Write) }?;
        place.base.store(space.base.as_ptr(), Ordering::Relaxed);
        place.len_bytes.store(len_bytes, Ordering::Release);
        self.end.fetch_max(region + 1, Ordering::Release);
        spaces.push(space);
        debug_assert!(spaces.len() <= self.places.len(), "{} of {} regions", spaces.len(), self.places.len());
        Ok(())
    }

    /// The size of a region, 0 if it is not mapped.
    #[inline(always)]
    pub fn region_bytes(&self, region: u32) -> u64 {
        self.places.get(region as usize).map_or(0, |place| place.len_bytes.load(Ordering::Acquire))
    }

    /// Address of `len_bytes` bytes at `at` in this process, if they are inside of a mapped region.
    #[inline(always)]
    pub fn pointer(&self, at: RegionAddress, len_bytes: u64) -> Option<NonNull<u8>> {
        let end = at.offset.checked_add(len_bytes)?;
        let (base, region_bytes) = self.places.get(at.region as usize)?.get()?;
        if end > region_bytes {
            return None;
        }
        // SAFETY: the region is mapped, and the offset is inside of it or at its end.
        Some(unsafe { base.add(to_usize(at.offset)) })
    }

    /// The region and offset of memory that lies wholly inside of a mapped region.
    #[inline(always)]
    pub fn locate(&self, pointer: *const u8, len_bytes: u64) -> Option<RegionAddress> {
        // An arena doubles as it grows, so there are few, and most memory is in the last one.
        let mapped = &self.places[..self.end.load(Ordering::Acquire) as usize];
        mapped.iter().enumerate().rev().find_map(|(region, place)| {
            let (base, region_bytes) = place.get()?;
            let offset = (pointer as usize).wrapping_sub(base.as_ptr() as usize) as u64;
            let is_inside = offset <= region_bytes && len_bytes <= region_bytes - offset;
            #[expect(clippy::cast_possible_truncation, reason = "the number is below `end`, a `u32`")]
            let region = region as u32;
            is_inside.then_some(RegionAddress { region, offset })
        })
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::region::create_file;
    use proptest::prelude::*;
    use std::os::fd::AsFd;

    fn window() -> Window {
        let window = Window::new(4, u64::from(u32::MAX)).unwrap();
        window.map(1, create_file("one", 8192).unwrap().as_fd(), 8192).unwrap();
        window.map(3, create_file("three", 4096).unwrap().as_fd(), 4096).unwrap();
        window
    }

    #[test]
    fn region_of_4_gib_fits_and_larger_does_not() {
        let window = Window::new(2, u64::from(u32::MAX)).unwrap();
        window.map(0, create_file("large", 1 << 32).unwrap().as_fd(), 1 << 32).unwrap();
        let larger = create_file("larger", (1 << 32) + 4096).unwrap();
        assert!(window.map(1, larger.as_fd(), (1 << 32) + 4096).is_err());
    }

    #[test]
    fn a_number_is_mapped_once_and_within_the_window() {
        let window = window();
        let file = create_file("again", 4096).unwrap();
        assert!(matches!(window.map(1, file.as_fd(), 4096), Err(FabricError::DoesNotFit { .. })));
        assert!(matches!(window.map(4, file.as_fd(), 4096), Err(FabricError::DoesNotFit { .. })));
    }

    proptest! {
        #[test]
        fn an_address_is_inside_or_refused_and_comes_back(region in 0u32..6, offset: u64, len in 0u64..10_000) {
            let window = window();
            for offset in [offset, offset % 10_000] {
                let at = RegionAddress { region, offset };
                let inside = offset.checked_add(len).is_some_and(|end| end <= window.region_bytes(region));
                let pointer = window.pointer(at, len);
                prop_assert_eq!(pointer.is_some(), inside && window.region_bytes(region) > 0);
                if let Some(pointer) = pointer {
                    prop_assert_eq!(window.locate(pointer.as_ptr(), len), Some(at));
                }
            }
        }
    }
}
