//! Registered memory: a sealed memory file that several processes map.
//!
//! A region lives as long as any process has it open or mapped, and has no name in any file system: when the last
//! process of a connection dies, for whatever reason, the kernel frees it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use sublet_proto::graph::MemoryRights;
use sublet_proto::to_usize;

use crate::FabricError;
pub use crate::address::PAGE_BYTES;
use crate::line::{Line, Watch};
use crate::shared::{SharedBytes, SharedBytesMut};
use crate::slot::CoreSlot;
use crate::sync::AtomicU64;

/// Words of a mask of NUMA nodes: the kernel has at most 1024 nodes.
const NUMA_MASK_WORDS: usize = 16;

/// Rounds `len_bytes` up to whole pages. `None` if the result exceeds 64 bits.
pub fn page_align(len_bytes: u64) -> Option<u64> {
    Some(len_bytes.checked_add(PAGE_BYTES - 1)? & !(PAGE_BYTES - 1))
}

/// Makes the memory file of a region. Its size is fixed, so that no peer can remove pages under a reader.
pub fn create_file(name: &str, len_bytes: u64) -> Result<OwnedFd, FabricError> {
    let failed = |call: &str, error: Errno| {
        FabricError::system(format!("{call} for region {name} of {len_bytes} bytes"), error)
    };
    // The kernel would kill the process for exceeding the limit, unless it ignores SIGXFSZ.
    if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|&limit| limit < len_bytes) {
        return Err(FabricError::Limit(format!(
            "cannot make region {name} of {len_bytes} bytes: this process may write files of {limit} bytes (raise it with \
             ulimit -f)"
        )));
    }
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|error| failed("memfd_create", error))?;
    rustix::fs::ftruncate(&file, len_bytes).map_err(|error| failed("ftruncate", error))?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|error| failed("fcntl(F_ADD_SEALS)", error))?;
    Ok(file)
}

/// Checks that a descriptor from a peer is a memory file of this size that no process can shrink.
pub fn check_file(file: BorrowedFd<'_>, expected_bytes: u64) -> Result<(), FabricError> {
    let not = |reason: String| FabricError::NotARegion { expected_bytes, reason };
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| not("it cannot be sealed".into()))?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Err(not("its size is not sealed".into()));
    }
    let stat = rustix::fs::fstat(file).map_err(|error| FabricError::system("fstat of a region", error))?;
    let actual = u64::try_from(stat.st_size).unwrap_or(0);
    if actual != expected_bytes {
        return Err(not(format!("it has {actual} bytes")));
    }
    Ok(())
}

/// Lets users other than the file's owner read a region that is lent to them for reading, and only read: they cannot
/// open it again for writing.
pub fn bar_writers(file: BorrowedFd<'_>) -> Result<(), FabricError> {
    rustix::fs::fchmod(file, Mode::from_raw_mode(0o644))
        .map_err(|error| FabricError::system("fchmod of a region", error))
}

/// Opens the same region for reading: a process with this descriptor cannot map it for writing.
pub fn read_only(file: BorrowedFd<'_>) -> Result<OwnedFd, FabricError> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| FabricError::system("opening a region for reading", error))
}

pub(crate) fn protection(rights: MemoryRights) -> ProtFlags {
    match rights {
        MemoryRights::Read => ProtFlags::READ,
        MemoryRights::Write => ProtFlags::READ | ProtFlags::WRITE,
    }
}

/// A type that can be read in place in memory that a peer writes at the same time.
///
/// # Safety
/// Every field is an atomic, so that there is no data race, and every bit pattern is a value.
pub unsafe trait PeerWritable {}

// SAFETY: all fields are atomic integers.
unsafe impl PeerWritable for Line {}
// SAFETY: an atomic integer.
unsafe impl PeerWritable for Watch {}
// SAFETY: an atomic integer.
unsafe impl PeerWritable for AtomicU64 {}
// SAFETY: an atomic integer, and padding that no code accesses.
unsafe impl PeerWritable for CoreSlot {}
// SAFETY: as its elements.
unsafe impl<T: PeerWritable, const N: usize> PeerWritable for [T; N] {}

/// A region mapped into this process. Unmapped and closed when dropped.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len_bytes: u64,
    file: OwnedFd,
}

// SAFETY: a mapping belongs to the process, not to a thread; every access through `Region` is atomic or a raw copy.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Makes and maps a region, zeroed. Pages are taken from the machine when they are first written.
    pub fn create(name: &str, len_bytes: u64) -> Result<Region, FabricError> {
        Region::map(create_file(name, len_bytes)?, len_bytes, MemoryRights::Write)
    }

    /// Maps a region that a peer passed, after [`check_file`].
    pub fn attach(file: OwnedFd, expected_bytes: u64) -> Result<Region, FabricError> {
        check_file(file.as_fd(), expected_bytes)?;
        Region::map(file, expected_bytes, MemoryRights::Write)
    }

    /// Maps a region like [`Region::attach`], from a descriptor that is [open for reading](read_only) only: a write to
    /// it kills the process.
    pub fn attach_to_read(file: OwnedFd, expected_bytes: u64) -> Result<Region, FabricError> {
        check_file(file.as_fd(), expected_bytes)?;
        Region::map(file, expected_bytes, MemoryRights::Read)
    }

    fn map(file: OwnedFd, len_bytes: u64, rights: MemoryRights) -> Result<Region, FabricError> {
        let failed = |error| FabricError::system(format!("mmap of a region of {len_bytes} bytes"), error);
        let len = usize::try_from(len_bytes).map_err(|_| failed(rustix::io::Errno::NOMEM))?;
        // SAFETY: a fresh shared mapping at an address of the kernel's choice aliases nothing; the file's size is
        // sealed, so that no access within `len_bytes` can fault for want of a file.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, protection(rights), MapFlags::SHARED, &file, 0)
        }
        .map_err(failed)?;
        let base = NonNull::new(base.cast()).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
        Ok(Region { base, len_bytes, file })
    }

    /// The region's size.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Has all pages of the region allocated on these NUMA nodes from now on, whichever process touches them first.
    ///
    /// # Errors
    /// Those of the kernel: for a node without memory, and where the process may not choose nodes.
    pub fn bind_to_nodes(&self, nodes: &[u32]) -> Result<(), FabricError> {
        let failed = |error: std::io::Error| {
            FabricError::system(
                format!("mbind of a region of {} bytes to NUMA nodes {nodes:?}", self.len_bytes),
                error,
            )
        };
        let mut mask = [0_u64; NUMA_MASK_WORDS];
        for node in nodes {
            let word = mask.get_mut(to_usize(u64::from(node / u64::BITS)));
            *word.ok_or_else(|| failed(Errno::INVAL.into()))? |= 1_u64 << (node % u64::BITS);
        }
        // The kernel takes the number of bits and one more.
        let bits = u64::from(u64::BITS) * NUMA_MASK_WORDS as u64 + 1;
        // SAFETY: the region's own mapping, of which only the place of future pages changes; the mask has the bits that
        // the call names, and the kernel only reads it.
        let bound = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.len_bytes,
                libc::MPOL_BIND,
                mask.as_ptr(),
                bits,
                0,
            )
        };
        if bound == 0 { Ok(()) } else { Err(failed(std::io::Error::last_os_error())) }
    }

    /// The descriptor, to be passed to a peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Address of `len_bytes` bytes at `offset` in this process, if they are inside.
    #[inline(always)]
    pub fn pointer(&self, offset: u64, len_bytes: u64) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len_bytes)?;
        if end > self.len_bytes {
            return None;
        }
        // SAFETY: offset <= len_bytes, so the result stays within the mapping or one past its end.
        Some(unsafe { self.base.add(to_usize(offset)) })
    }

    /// The line, watch or word at `offset`, if it is inside and aligned.
    #[inline(always)]
    pub fn view<T: PeerWritable>(&self, offset: u64) -> Option<&T> {
        let pointer = self.pointer(offset, size_of::<T>() as u64)?.cast::<T>();
        // SAFETY: aligned, and inside of the mapping, which lives as long as `self`; the rest is `PeerWritable`'s promise.
        pointer.is_aligned().then_some(pointer).map(|pointer| unsafe { pointer.as_ref() })
    }

    /// Returns the `count` values in a row from `offset` on, if they are inside and aligned.
    pub fn views<T: PeerWritable>(&self, offset: u64, count: usize) -> Option<&[T]> {
        let len_bytes = count.checked_mul(size_of::<T>())?;
        let pointer = self.pointer(offset, len_bytes as u64)?.cast::<T>();
        // SAFETY: as in `view`, for each of them.
        let all = || unsafe { std::slice::from_raw_parts(pointer.as_ptr(), count) };
        pointer.is_aligned().then(all)
    }

    /// Copies bytes out of the region. A concurrent write by a peer can make them any bytes, and has no other effect.
    pub fn read<'into>(&self, offset: u64, into: impl Into<SharedBytesMut<'into>>) -> Option<()> {
        let mut into = into.into();
        into.copy_from(self.bytes(offset, into.len())?);
        Some(())
    }

    /// Copies bytes into the region.
    pub fn write<'from>(&self, offset: u64, from: impl Into<SharedBytes<'from>>) -> Option<()> {
        let from = from.into();
        let into = self.pointer(offset, from.len() as u64)?;
        // SAFETY: inside of the mapping, which lives as long as `self`, and of which no reference but to atomics is made.
        unsafe { SharedBytesMut::new(into, from.len()) }.copy_from(from);
        Some(())
    }

    /// A view of bytes of the region, if they are inside.
    #[inline(always)]
    fn bytes(&self, offset: u64, len: usize) -> Option<SharedBytes<'_>> {
        let start = self.pointer(offset, len as u64)?;
        // SAFETY: inside of the mapping, which lives as long as `self`.
        Some(unsafe { SharedBytes::new(start, len) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `map`; nothing borrowed from `self` can outlive it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), to_usize(self.len_bytes)) };
    }
}

/// Allocates the pages of a range of a region. They are charged to this process, whichever process writes them.
pub fn take_pages(file: BorrowedFd<'_>, offset: u64, len_bytes: u64) -> Result<(), FabricError> {
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), offset, len_bytes)
        .map_err(|error| FabricError::system(format!("fallocate of {len_bytes} bytes"), error))
}

/// Gives the pages of a range of a region back to the machine; they read as zero afterwards.
pub fn punch_hole(file: BorrowedFd<'_>, offset: u64, len_bytes: u64) -> Result<(), FabricError> {
    use rustix::fs::FallocateFlags;
    rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len_bytes)
        .map_err(|error| FabricError::system(format!("fallocate(PUNCH_HOLE) of {len_bytes} bytes"), error))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_a_region_are_the_same_memory() {
        let ours = Region::create("test", 8192).unwrap();
        let theirs = Region::attach(ours.fd().try_clone_to_owned().unwrap(), 8192).unwrap();
        ours.write(4090, b"sublet").unwrap();
        let mut bytes = [0; 6];
        theirs.read(4090, &mut bytes).unwrap();
        assert_eq!(&bytes, b"sublet");
    }

    #[test]
    fn who_may_read_cannot_map_to_write() {
        let ours = Region::create("test", 4096).unwrap();
        bar_writers(ours.fd()).unwrap();
        let theirs = read_only(ours.fd()).unwrap();
        let again = || theirs.try_clone().unwrap();
        assert!(Region::attach(again(), 4096).is_err());
        let mapped = Region::attach_to_read(again(), 4096).unwrap();
        ours.write(7, b"x").unwrap();
        let mut byte = [0];
        mapped.read(7, &mut byte).unwrap();
        assert_eq!(&byte, b"x");
        let mode = rustix::fs::fstat(&theirs).unwrap().st_mode & 0o777;
        assert_eq!(mode, 0o644, "another user may not open it anew");
    }

    #[test]
    fn accesses_outside_are_refused() {
        let region = Region::create("test", 4096).unwrap();
        assert!(region.pointer(4096, 0).is_some());
        assert!(region.pointer(4096, 1).is_none());
        assert!(region.pointer(u64::MAX, 2).is_none());
        assert!(region.view::<Line>(4096 - 32).is_none());
        assert!(region.view::<Line>(32).is_none(), "unaligned");
        assert!(region.view::<AtomicU64>(4).is_none(), "unaligned");
        assert_eq!(region.views::<AtomicU64>(4096 - 16, 2).map(<[_]>::len), Some(2));
        assert!(region.views::<AtomicU64>(4096 - 16, 3).is_none());
        assert!(region.views::<AtomicU64>(4, 1).is_none(), "unaligned");
        assert!(region.views::<AtomicU64>(0, usize::MAX).is_none());
    }

    #[test]
    fn rejects_descriptor_that_can_shrink_or_has_another_size() {
        let plain = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&plain, 4096).unwrap();
        assert!(matches!(Region::attach(plain, 4096), Err(FabricError::NotARegion { .. })));
        let sealed = create_file("x", 4096).unwrap();
        assert!(matches!(Region::attach(sealed, 8192), Err(FabricError::NotARegion { .. })));
        let file: OwnedFd = std::fs::File::open("/dev/zero").unwrap().into();
        assert!(matches!(Region::attach(file, 4096), Err(FabricError::NotARegion { .. })));
    }
}
