//! Lends part of a disk: the bytes of each segment are a file without a name, in a folder of the operator.
//!
//! The file has no name from its creation on (`O_TMPFILE`), so that nothing is left of it when the agent is killed. Its
//! blocks are allocated when the segment is leased. The agent reads and writes it past the page cache (`O_DIRECT`) where
//! the file system can, and no process maps it.
//!
//! Invariants:
//! - A segment begins with bytes that are 0: the file is new, and a file system shows no bytes of earlier files.
//! - After an error of the disk, every access to the segment fails, and its lease ends with that error.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, ftruncate, statvfs};
use rustix::io::Errno;
use sublet_fabric::stored::StoredBytes;
use sublet_fabric::sync::{AtomicU32, Ordering, lock};
use sublet_proto::limits::MIN_SEGMENT_BYTES;
use sublet_proto::{Code, Error, to_usize};
use tracing::{error, info};

use crate::machine::state::system;
use crate::signal::{EndRequest, WantedEnd};

/// Alignment of offsets, lengths and buffers of accesses past the page cache, in bytes: that of no disk is larger.
const BLOCK_BYTES: usize = 4096;

/// Part of a disk that an agent lends in place of cores and memory.
#[derive(Clone, Debug)]
pub struct FlashOptions {
    /// Folder on the disk in which the agent makes files without names.
    pub folder: PathBuf,
    /// Number of bytes to lend.
    pub bytes: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct FlashDisk {
    folder: PathBuf,
    /// Flags of each file: with `O_DIRECT` if the file system has it.
    flags: OFlags,
}

/// The bytes of a segment on a disk.
pub(crate) struct FlashFile {
    file: File,
    pub(crate) len_bytes: u64,
    /// 1 once the disk has failed.
    failed: AtomicU32,
    /// Guards no data: held while blocks are written of which only a part changes.
    writing: Mutex<()>,
    end: Arc<EndRequest>,
}

impl FlashDisk {
    /// Opens the folder, and checks that its file system has what is to be lent.
    pub(crate) fn open(options: &FlashOptions) -> Result<FlashDisk, Error> {
        let FlashOptions { folder, bytes } = options;
        if *bytes < MIN_SEGMENT_BYTES {
            let message =
                format!("cannot lend {bytes} bytes of flash: use at least {MIN_SEGMENT_BYTES} bytes");
            return Err(Error::new(Code::InvalidArgument, message));
        }
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let flags = match create(folder, flags | OFlags::DIRECT) {
            Ok(_) => flags | OFlags::DIRECT,
            Err(Errno::INVAL) => {
                create(folder, flags).map_err(|errno| refused(folder, errno))?;
                info!(folder = %folder.display(), "flash is accessed through the page cache: its file system has no O_DIRECT");
                flags
            }
            Err(errno) => return Err(refused(folder, errno)),
        };
        let space = statvfs(folder)
            .map_err(|errno| system("looking at the file system of", folder, &errno.into()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free < *bytes {
            let message = format!(
                "cannot lend {bytes} bytes of flash: the file system of {} has {free} bytes free",
                folder.display()
            );
            return Err(Error::new(Code::InsufficientResources, message));
        }
        Ok(FlashDisk { folder: folder.clone(), flags })
    }

    /// Allocates the bytes of a segment. An error of the disk ends the lease by `end`.
    pub(crate) fn allocate(&self, len_bytes: u64, end: &Arc<EndRequest>) -> Result<Arc<FlashFile>, Error> {
        let file = create(&self.folder, self.flags).map_err(|errno| refused(&self.folder, errno))?;
        fallocate(&file, FallocateFlags::empty(), 0, len_bytes).map_err(|errno| {
            let message =
                format!("allocating {len_bytes} bytes of flash in {} failed: {errno}", self.folder.display());
            Error::new(code_of(&errno.into()), message)
        })?;
        let end = end.clone();
        Ok(Arc::new(FlashFile { file, len_bytes, failed: AtomicU32::new(0), writing: Mutex::default(), end }))
    }
}

/// Makes a file without a name.
fn create(folder: &Path, flags: OFlags) -> Result<File, Errno> {
    rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

fn refused(folder: &Path, errno: Errno) -> Error {
    system("making a file without a name (O_TMPFILE) for flash in", folder, &errno.into())
}

/// The code of an error of the disk.
fn code_of(error: &io::Error) -> Code {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Code::InsufficientResources,
        _ => Code::System,
    }
}

impl FlashFile {
    /// Gives the blocks back to the file system. Every later access fails.
    pub(crate) fn release(&self) {
        self.failed.store(1, Ordering::Release);
        if let Err(errno) = ftruncate(&self.file, 0) {
            error!(%errno, "the blocks of a flash segment are free only when its last connection ends");
        }
    }

    fn check(&self) -> io::Result<()> {
        match self.failed.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(io::Error::other("the segment has failed or ended")),
        }
    }

    /// Makes all later accesses fail, and ends the lease.
    fn fail(&self, what: &str, (offset, len): (u64, usize), error: &io::Error) {
        self.failed.store(1, Ordering::Release);
        let message = format!("{what} {len} bytes of flash at {offset} failed: {error}");
        error!("{message}");
        let reason = Error::new(code_of(error), message);
        self.end.raise(WantedEnd { reason, at: Instant::now() });
    }

    /// Writes whole blocks that contain the bytes.
    fn write_blocks(&self, blocks: Blocks, from: &[u8]) -> io::Result<()> {
        let mut buffer = BlockBuffer::new(blocks.len);
        let bytes = buffer.bytes_mut();
        if blocks.len != from.len() {
            self.file.read_exact_at(bytes, blocks.start)?;
        }
        bytes[blocks.skip..blocks.skip + from.len()].copy_from_slice(from);
        self.file.write_all_at(bytes, blocks.start)
    }
}

impl StoredBytes for FlashFile {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.check()?;
        let blocks = Blocks::around(offset, into.len());
        let mut buffer = BlockBuffer::new(blocks.len);
        let bytes = buffer.bytes_mut();
        let read = self.file.read_exact_at(bytes, blocks.start);
        read.inspect_err(|error| self.fail("reading", (offset, into.len()), error))?;
        into.copy_from_slice(&bytes[blocks.skip..blocks.skip + into.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.check()?;
        let _writing = lock(&self.writing);
        let written = self.write_blocks(Blocks::around(offset, from.len()), from);
        written.inspect_err(|error| self.fail("writing", (offset, from.len()), error))
    }
}

/// Whole blocks of a file around some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Blocks {
    /// Offset of the first block.
    start: u64,
    /// Bytes before the first byte that is meant.
    skip: usize,
    /// Bytes of all blocks.
    len: usize,
}

impl Blocks {
    fn around(offset: u64, len: usize) -> Blocks {
        let skip = to_usize(offset % BLOCK_BYTES as u64);
        Blocks { start: offset - skip as u64, skip, len: (skip + len).next_multiple_of(BLOCK_BYTES) }
    }
}

/// Memory at the alignment of blocks.
struct BlockBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl BlockBuffer {
    fn new(len: usize) -> BlockBuffer {
        let memory = vec![0_u8; len + BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        debug_assert!(start < BLOCK_BYTES, "a byte at {start} is the first one at the alignment of blocks");
        BlockBuffer { memory, start, len }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(folder: &Path, bytes: u64) -> Result<FlashDisk, Error> {
        FlashDisk::open(&FlashOptions { folder: folder.to_owned(), bytes })
    }

    fn file(len_bytes: u64) -> (Arc<FlashFile>, Arc<EndRequest>, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let end = Arc::new(EndRequest::new().unwrap());
        let file = disk(folder.path(), len_bytes).unwrap().allocate(len_bytes, &end).unwrap();
        (file, end, folder)
    }

    #[test]
    fn blocks_surround_the_bytes() {
        let around = |offset, len| {
            let Blocks { start, skip, len } = Blocks::around(offset, len);
            (start, skip, len)
        };
        assert_eq!(around(0, 4096), (0, 0, 4096));
        assert_eq!(around(4095, 2), (0, 4095, 8192));
        assert_eq!(around(8192, 1), (8192, 0, 4096));
        assert_eq!(around(5000, 0), (4096, 904, 4096));
    }

    #[test]
    fn reads_what_was_written_after_random_operations() {
        const LEN: usize = 1 << 18;
        let (file, _end, _folder) = file(LEN as u64);
        let mut expected = vec![0_u8; LEN];
        // A fixed linear congruential sequence.
        let mut random = 12_345_u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        for round in 0..1_000 {
            let (at, len) = (next(LEN), next(20_000));
            let len = len.min(LEN - at);
            if next(2) == 0 {
                let bytes: Vec<u8> = (0..len).map(|byte| (byte + round) as u8).collect();
                file.write(at as u64, &bytes).unwrap();
                expected[at..at + len].copy_from_slice(&bytes);
            } else {
                let mut bytes = vec![1; len];
                file.read(at as u64, &mut bytes).unwrap();
                assert!(bytes == expected[at..at + len], "{len} bytes at {at} in round {round}");
            }
        }
    }

    #[test]
    fn folder_is_empty_while_a_segment_exists() {
        let (file, _end, folder) = file(1 << 16);
        file.write(0, b"secret").unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn disk_error_ends_the_lease_and_all_later_accesses() {
        let (file, end, _folder) = file(1 << 16);
        file.write(0, &[7; 100]).unwrap();
        // A disk that has lost the blocks: the read is too short.
        ftruncate(&file.file, 0).unwrap();
        let mut bytes = [1; 100];
        assert!(file.read(0, &mut bytes).is_err());
        assert_eq!(bytes, [1; 100], "no zeros in place of bytes that are lost");
        let WantedEnd { reason, .. } = end.take_note().unwrap();
        assert_eq!(reason.code, Code::System);
        assert!(reason.message.contains("reading 100 bytes of flash at 0 failed"), "{reason}");
        assert!(file.write(0, &[1]).is_err() && file.read(0, &mut bytes).is_err());
    }

    #[test]
    fn refuses_what_the_file_system_cannot_hold() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(disk(folder.path(), 1).unwrap_err().code, Code::InvalidArgument);
        let error = disk(folder.path(), 1 << 60).unwrap_err();
        assert_eq!(error.code, Code::InsufficientResources);
        assert!(error.message.contains("1152921504606846976"), "{error}");
        let error = disk(&folder.path().join("none"), 1 << 20).unwrap_err();
        assert!(error.code == Code::System && error.message.contains("none"), "{error}");
        assert_eq!(code_of(&Errno::NOSPC.into()), Code::InsufficientResources);
        assert_eq!(code_of(&Errno::IO.into()), Code::System);
    }
}
