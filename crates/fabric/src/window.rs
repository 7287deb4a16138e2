//! A window: one stretch of address space in which every region of a connection has a fixed place.
//!
//! Region r begins at `base + r * stride`, so that an address becomes (region, offset) by a shift, and back, in a
//! nanosecond and without a table of addresses. What is not mapped is reserved without access rights: a stray
//! pointer past the end of a region faults and never hits a neighbour. Regions stay mapped as long as the window.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use sublet_proto::graph::Rights;

use crate::FabricError;
use crate::space::Space;
use std::sync::atomic::{AtomicU64, Ordering};

/// Somewhere in a region of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The region's number in its connection.
    pub region: u32,
    /// Bytes from its beginning.
    pub offset: u64,
}

/// A line and its watch in a region of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineAddress {
    /// The region's number in its connection.
    pub region: u32,
    /// Where the line begins.
    pub line: u64,
    /// Where its watch is.
    pub watch: u64,
}

/// See the [module](self).
pub struct Window {
    space: Space,
    stride_bits: u32,
    /// The size of each region, 0 where there is none. Written once, Release, after the region is mapped; pairs
    /// with the Acquire load of every access.
    len_bytes: Box<[AtomicU64]>,
}

impl Window {
    /// Reserves room for so many regions, each at most so large. Takes address space, no memory.
    pub fn reserve(regions: u32, max_region_bytes: u64) -> Result<Window, FabricError> {
        let refused = |error| {
            FabricError::system(
                format!("reserving address space for {regions} regions of {max_region_bytes} bytes"),
                error,
            )
        };
        // Twice the room leaves a hole after every region.
        let stride = max_region_bytes
            .max(crate::region::PAGE_BYTES)
            .checked_next_power_of_two()
            .and_then(|power| power.checked_mul(2))
            .ok_or_else(|| refused(rustix::io::Errno::NOMEM))?;
        let total =
            stride.checked_mul(u64::from(regions)).ok_or_else(|| refused(rustix::io::Errno::NOMEM))?;
        let len_bytes = (0..regions).map(|_| AtomicU64::new(0)).collect();
        Ok(Window { space: Space::reserve(total)?, stride_bits: stride.trailing_zeros(), len_bytes })
    }

    /// Maps a region's file at its place. A number that is taken is refused.
    pub fn map(&self, region: u32, file: BorrowedFd<'_>, len_bytes: u64) -> Result<(), FabricError> {
        let does_not_fit =
            || FabricError::DoesNotFit { region, len_bytes, regions: self.len_bytes.len() as u32 };
        let slot = self.len_bytes.get(region as usize).ok_or_else(does_not_fit)?;
        if len_bytes == 0 || len_bytes > 1 << (self.stride_bits - 1) || slot.load(Ordering::Acquire) != 0 {
            return Err(does_not_fit());
        }
        // SAFETY: nothing is mapped at this place yet, and nobody is told of what lies there before its size is stored.
        unsafe { self.space.map(u64::from(region) << self.stride_bits, file, len_bytes, Rights::Write) }?;
        slot.store(len_bytes, Ordering::Release);
        Ok(())
    }

    /// The size of a region, 0 if it is not mapped.
    #[inline(always)]
    pub fn region_bytes(&self, region: u32) -> u64 {
        self.len_bytes.get(region as usize).map_or(0, |len| len.load(Ordering::Acquire))
    }

    /// Where `len_bytes` bytes at `at` lie in this process, if they are inside of a mapped region.
    #[inline(always)]
    pub fn pointer(&self, at: Address, len_bytes: u64) -> Option<NonNull<u8>> {
        let end = at.offset.checked_add(len_bytes)?;
        let region_bytes = self.region_bytes(at.region);
        if end > region_bytes || region_bytes == 0 {
            return None;
        }
        // SAFETY: the region is mapped, so its number is inside of the window, and the offset is inside of it.
        Some(unsafe { self.place(at.region).add(at.offset as usize) })
    }

    /// The region and offset of memory that lies wholly inside of a mapped region.
    #[inline(always)]
    pub fn locate(&self, pointer: *const u8, len_bytes: u64) -> Option<Address> {
        let distance = (pointer as usize).checked_sub(self.space.base.as_ptr() as usize)? as u64;
        let region = u32::try_from(distance >> self.stride_bits).ok()?;
        let offset = distance & ((1 << self.stride_bits) - 1);
        let at = Address { region, offset };
        self.pointer(at, len_bytes).map(|_| at)
    }

    #[inline(always)]
    fn place(&self, region: u32) -> NonNull<u8> {
        // SAFETY: callers pass numbers below the window's count, so the place is inside of the reservation.
        unsafe { self.space.base.add((region as usize) << self.stride_bits) }
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
        let window = Window::reserve(4, u64::from(u32::MAX)).unwrap();
        window.map(1, create_file("one", 8192).unwrap().as_fd(), 8192).unwrap();
        window.map(3, create_file("three", 4096).unwrap().as_fd(), 4096).unwrap();
        window
    }

    #[test]
    fn a_region_of_4_gib_fits_and_a_larger_one_does_not() {
        let window = Window::reserve(2, u64::from(u32::MAX)).unwrap();
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
                let at = Address { region, offset };
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
