//! A range of address space into which regions are mapped one after the other, so that they form contiguous memory.
//!
//! Unmapped parts are reserved without access rights: they take no memory, and an access there faults.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use sublet_proto::graph::MemoryRights;
use sublet_proto::to_usize;

use crate::FabricError;
use crate::address::PAGE_BYTES;
use crate::region::{check_file, protection};
use crate::shared::{SharedBytes, SharedBytesMut};

/// See the [module](self).
#[derive(Debug)]
pub struct Space {
    pub(crate) base: NonNull<u8>,
    len_bytes: u64,
}

// SAFETY: a space is a stretch of the process's address space; all access goes through raw copies.
unsafe impl Send for Space {}
// SAFETY: as above.
unsafe impl Sync for Space {}

impl Space {
    /// Reserves `len_bytes` bytes, in whole pages. Takes address space, no memory.
    pub fn reserve(len_bytes: u64) -> Result<Space, FabricError> {
        let refused = |error| refused(len_bytes, error);
        let len = usize::try_from(len_bytes).map_err(|_| refused(rustix::io::Errno::NOMEM))?;
        // SAFETY: a fresh private mapping without access rights, at an address of the kernel's choice.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), reserved()) };
        let base = NonNull::new(base.map_err(refused)?.cast());
        Ok(Space { base: base.ok_or_else(|| refused(rustix::io::Errno::NOMEM))?, len_bytes })
    }

    /// Maps a region's file here, in place of anything mapped before.
    ///
    /// # Safety
    /// No thread may access this range meanwhile, and no thread may write to it later if it is mapped for reading.
    pub unsafe fn map(
        &self,
        offset: u64,
        file: BorrowedFd<'_>,
        len_bytes: u64,
        rights: MemoryRights,
    ) -> Result<(), FabricError> {
        check_file(file, len_bytes)?;
        let at = self.range(offset, len_bytes)?;
        let rights = protection(rights);
        // SAFETY: the range lies within this space's own reservation, and no thread accesses it; the file's size is
        // sealed.
        let mapped = unsafe {
            rustix::mm::mmap(
                at.as_ptr().cast(),
                to_usize(len_bytes),
                rights,
                MapFlags::SHARED | MapFlags::FIXED,
                file,
                0,
            )
        };
        mapped
            .map(drop)
            .map_err(|error| FabricError::system(format!("mmap of {len_bytes} bytes at {offset}"), error))
    }

    /// Unmaps a range, which stays reserved.
    ///
    /// # Safety
    /// No thread may access this range meanwhile or afterwards.
    pub unsafe fn unmap(&self, offset: u64, len_bytes: u64) -> Result<(), FabricError> {
        if !len_bytes.is_multiple_of(PAGE_BYTES) {
            return Err(FabricError::OutOfBounds { region: 0, offset, len_bytes });
        }
        let at = self.range(offset, len_bytes)?;
        // SAFETY: the range lies within this space's own reservation, and no thread accesses it.
        let cleared = unsafe {
            let flags = reserved() | MapFlags::FIXED;
            rustix::mm::mmap_anonymous(at.as_ptr().cast(), to_usize(len_bytes), ProtFlags::empty(), flags)
        };
        cleared
            .map(drop)
            .map_err(|error| FabricError::system(format!("unmapping {len_bytes} bytes at {offset}"), error))
    }

    /// Address of `len_bytes` bytes at `offset` in this process, if they are inside. The caller must know whether a
    /// region is mapped there.
    #[inline(always)]
    pub fn pointer(&self, offset: u64, len_bytes: u64) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len_bytes)?;
        // SAFETY: `offset` is at most `len_bytes`, so the result stays within the reservation or one past its end.
        (end <= self.len_bytes).then(|| unsafe { self.base.add(to_usize(offset)) })
    }

    /// Copies bytes out. A concurrent write can make them any bytes, and has no other effect.
    ///
    /// # Safety
    /// Regions must be mapped in all of the range.
    #[inline(always)]
    pub unsafe fn read<'into>(&self, offset: u64, into: impl Into<SharedBytesMut<'into>>) -> Option<()> {
        let mut into = into.into();
        let from = self.pointer(offset, into.len() as u64)?;
        // SAFETY: the range is mapped by the caller's promise, and no reference to it is made.
        into.copy_from(unsafe { SharedBytes::new(from, into.len()) });
        Some(())
    }

    /// Copies bytes in.
    ///
    /// # Safety
    /// As for [`Space::read`].
    #[inline(always)]
    pub unsafe fn write<'from>(&self, offset: u64, from: impl Into<SharedBytes<'from>>) -> Option<()> {
        let from = from.into();
        let into = self.pointer(offset, from.len() as u64)?;
        // SAFETY: as in `read`.
        unsafe { SharedBytesMut::new(into, from.len()) }.copy_from(from);
        Some(())
    }

    fn range(&self, offset: u64, len_bytes: u64) -> Result<NonNull<u8>, FabricError> {
        let is_place = offset.is_multiple_of(PAGE_BYTES) && len_bytes > 0;
        let place = self.pointer(offset, len_bytes).filter(|_| is_place);
        place.ok_or(FabricError::OutOfBounds { region: 0, offset, len_bytes })
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: this is the reservation made in `reserve`, with whatever was mapped into it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), to_usize(self.len_bytes)) };
    }
}

/// Explains why address space could not be reserved: by a limit of this process, where it has one.
fn refused(len_bytes: u64, error: rustix::io::Errno) -> FabricError {
    match getrlimit(Resource::As).current {
        Some(limit) if error == rustix::io::Errno::NOMEM => FabricError::Limit(format!(
            "cannot reserve {len_bytes} bytes of address space: this process may have {limit} bytes (raise it with ulimit -v)"
        )),
        _ => FabricError::system(format!("reserving {len_bytes} bytes of address space"), error),
    }
}

fn reserved() -> MapFlags {
    MapFlags::PRIVATE | MapFlags::NORESERVE
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::region::create_file;

    #[test]
    fn regions_beside_each_other_are_one_piece_of_memory() {
        let space = Space::reserve(1 << 40).unwrap();
        let files = [8192, 4096].map(|len| create_file("space", len).unwrap());
        // SAFETY: no other thread has the space, and every accessed byte is mapped.
        unsafe {
            space.map(0, files[0].as_fd(), 8192, MemoryRights::Write).unwrap();
            space.map(8192, files[1].as_fd(), 4096, MemoryRights::Write).unwrap();
            space.write(8190, b"sublet").unwrap();
            let mut bytes = [0; 6];
            space.read(8190, &mut bytes).unwrap();
            assert_eq!(&bytes, b"sublet");
            space.unmap(8192, 4096).unwrap();
            space.map(8192, files[1].as_fd(), 4096, MemoryRights::Write).unwrap();
            space.read(8190, &mut bytes).unwrap();
            assert_eq!(&bytes, b"sublet", "a region keeps its bytes when it is mapped elsewhere or anew");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let space = Space::reserve(1 << 20).unwrap();
        let file = create_file("space", 8192).unwrap();
        // SAFETY: nothing is accessed.
        unsafe {
            for (offset, len_bytes) in
                [(1 << 20, 8192), ((1 << 20) - 4096, 8192), (100, 8192), (u64::MAX, 8192), (0, 0)]
            {
                assert!(
                    space.map(offset, file.as_fd(), len_bytes, MemoryRights::Write).is_err(),
                    "{offset} {len_bytes}"
                );
            }
            assert!(space.map(0, file.as_fd(), 4096, MemoryRights::Write).is_err(), "a file of another size");
            assert!(space.unmap(0, 100).is_err());
            assert!(space.write(1 << 20, b"x").is_none());
        }
        assert!(space.pointer(1 << 20, 0).is_some() && space.pointer(u64::MAX, 2).is_none());
        assert!(Space::reserve(1 << 62).is_err());
    }
}
