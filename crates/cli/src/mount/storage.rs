//! Stores chunks in leased memory, or in unlinked files of a disk where memory cannot be leased.
//!
//! When a lease ends, the agent on this machine frees the memory, of which a mapping then reads as 0. The client learns of the end
//! by a message, possibly later, as after it was stopped. So each chunk begins with a page that has a mark: the agent
//! frees a chunk from its beginning on, and bytes that were read before an intact mark are those of the chunk.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use sublet_proto::{Code, Error};
use sublet_runtime::{Invoker, Memory, MemoryPlan};

use super::contents::Storage;
use super::keeper::{Keeper, MountBill};

/// Size of the page before the bytes of a chunk.
const MARK_BYTES: u64 = 4096;
/// First bytes of that page.
const MARK: [u8; 8] = *b"sublet!\n";

/// Storage by leases; see the [module](self).
pub(crate) struct LeasedStorage {
    invoker: Invoker,
    /// Memory component of one chunk.
    plan: MemoryPlan,
    chunk_bytes: u64,
    /// Folder of the files in place of memory that cannot be leased.
    fallback: Option<PathBuf>,
    chunks: HashMap<u32, Chunk>,
    /// Extends the leases, until the folder has ended.
    keeper: Option<Keeper>,
    disk_chunks: u64,
    /// Whether the latest chunk was refused. A program may write to a full folder again and again, and only the first refusal
    /// is a warning: a reader of the log that is slow must not hold up the folder.
    is_refused: bool,
}

enum Chunk {
    Leased(LeasedChunk),
    Disk(File),
}

struct LeasedChunk {
    memory: Arc<Memory>,
    /// Whether the memory is on this machine.
    is_mapped: bool,
}

/// Final report of the storage.
#[derive(Debug, Default)]
pub(crate) struct StorageReport {
    pub(crate) bill: MountBill,
    /// Number of chunks that were files on the disk.
    pub(crate) disk_chunks: u64,
}

impl LeasedStorage {
    /// Creates a storage without chunks.
    pub(crate) fn new(
        invoker: Invoker,
        plan: MemoryPlan,
        chunk_bytes: u64,
        fallback: Option<PathBuf>,
        keeper: Keeper,
    ) -> LeasedStorage {
        let leased = MARK_BYTES + chunk_bytes;
        let plan = plan.initial_bytes(leased).increment_bytes(leased).limit_bytes(leased).cache_bytes(0);
        let chunks = HashMap::new();
        let (keeper, disk_chunks, is_refused) = (Some(keeper), 0, false);
        LeasedStorage { invoker, plan, chunk_bytes, fallback, chunks, keeper, disk_chunks, is_refused }
    }

    /// Gives all memory back. Every later access fails.
    pub(crate) fn end(&mut self) -> Result<StorageReport, Error> {
        let Some(keeper) = self.keeper.take() else { return Ok(StorageReport::default()) };
        for (_, chunk) in self.chunks.drain() {
            if let Chunk::Leased(chunk) = chunk {
                keeper.give_back(chunk.memory);
            }
        }
        Ok(StorageReport { bill: keeper.end()?, disk_chunks: self.disk_chunks })
    }

    /// Leases the memory of a chunk.
    fn lease(&self) -> Result<LeasedChunk, Error> {
        let memory = self.invoker.memory(self.plan.clone())?;
        // The last byte makes the component lease all of its memory.
        memory.write(MARK_BYTES + self.chunk_bytes - 1, &[0_u8])?;
        memory.write(0, &MARK)?;
        debug_assert_eq!(memory.capacity_bytes(), MARK_BYTES + self.chunk_bytes, "a chunk is one segment");
        let is_mapped = memory.mapped(0, MARK_BYTES).is_ok();
        Ok(LeasedChunk { memory: Arc::new(memory), is_mapped })
    }

    fn make(&self, keeper: &Keeper) -> Result<Chunk, Error> {
        let leased = self.lease().or_else(|error| {
            if !error.code.may_pass_by_waiting() {
                return Err(error);
            }
            // The missing memory may be that of files that were just removed.
            keeper.settle();
            self.lease()
        });
        match (leased, &self.fallback) {
            (Ok(chunk), _) => {
                keeper.watch(&chunk.memory);
                Ok(Chunk::Leased(chunk))
            }
            (Err(error), None) => Err(error),
            (Err(error), Some(folder)) => {
                tracing::warn!(%error, folder = %folder.display(), "cannot lease memory: uses the disk instead");
                make_file(folder, self.chunk_bytes).map(Chunk::Disk)
            }
        }
    }
}

impl LeasedChunk {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.memory.read(MARK_BYTES + offset, into)?;
        if !self.is_mapped {
            return Ok(());
        }
        // The mark is read after the bytes.
        fence(Ordering::Acquire);
        let mut mark = [0; MARK.len()];
        self.memory.read(0, &mut mark)?;
        if mark == MARK {
            Ok(())
        } else {
            Err(Error::new(Code::LeaseEnded, "the agent has freed memory of the folder"))
        }
    }
}

impl Storage for LeasedStorage {
    fn add(&mut self, chunk: u32) -> Result<(), Errno> {
        let keeper = self.keeper.as_ref().ok_or(Errno::IO)?;
        let made = self.make(keeper);
        let was_refused = std::mem::replace(&mut self.is_refused, made.is_err());
        let made = made.map_err(|error| {
            if was_refused {
                tracing::debug!(%error, "the folder still cannot grow");
            } else {
                tracing::warn!(%error, "the folder cannot grow");
            }
            if is_full(&error) { Errno::NOSPC } else { Errno::IO }
        })?;
        self.disk_chunks += u64::from(matches!(made, Chunk::Disk(_)));
        self.chunks.insert(chunk, made);
        Ok(())
    }

    fn remove(&mut self, chunk: u32) {
        if let (Some(Chunk::Leased(chunk)), Some(keeper)) = (self.chunks.remove(&chunk), &self.keeper) {
            keeper.give_back(chunk.memory);
        }
    }

    fn read(&self, chunk: u32, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        match self.chunks.get(&chunk).ok_or(Errno::IO)? {
            Chunk::Leased(chunk) => chunk.read(offset, into).map_err(lost),
            Chunk::Disk(file) => file.read_exact_at(into, offset).map_err(|error| disk_failed(&error)),
        }
    }

    fn write(&self, chunk: u32, offset: u64, from: &[u8]) -> Result<(), Errno> {
        match self.chunks.get(&chunk).ok_or(Errno::IO)? {
            // A write that does not arrive ends the component, and then every read of it fails.
            Chunk::Leased(chunk) => chunk.memory.write_async(MARK_BYTES + offset, from).map_err(lost),
            Chunk::Disk(file) => file.write_all_at(from, offset).map_err(|error| disk_failed(&error)),
        }
    }
}

impl fmt::Debug for LeasedStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedStorage").field("chunks", &self.chunks.len()).finish_non_exhaustive()
    }
}

/// Makes a file without a name, with its space on the disk.
fn make_file(folder: &Path, len_bytes: u64) -> Result<File, Error> {
    let failed = |error: &std::io::Error| {
        let message = format!("cannot make a file of {len_bytes} bytes in {}: {error}", folder.display());
        let is_full = matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT));
        Error::new(if is_full { Code::StoreFull } else { Code::System }, message)
    };
    let file = tempfile::tempfile_in(folder).map_err(|error| failed(&error))?;
    match fallocate(&file, FallocateFlags::empty(), 0, len_bytes) {
        // This file system takes space as the file is written. A write that finds none would lose a chunk with bytes of files.
        Err(Errno::OPNOTSUPP) => fill(&file, len_bytes).map_err(|error| failed(&error))?,
        reserved => reserved.map_err(|error| failed(&error.into()))?,
    }
    Ok(file)
}

/// Writes zeros to an empty file.
fn fill(mut file: &File, len_bytes: u64) -> io::Result<()> {
    io::copy(&mut io::Read::take(io::repeat(0), len_bytes), &mut file).map(drop)
}

fn is_full(error: &Error) -> bool {
    error.code.may_pass_by_waiting() || matches!(error.code, Code::MemoryExceeded | Code::StoreFull)
}

fn lost(error: Error) -> Errno {
    tracing::warn!(%error, "memory of the folder is lost");
    Errno::IO
}

fn disk_failed(error: &std::io::Error) -> Errno {
    tracing::warn!(%error, "a file in place of memory cannot be used");
    Errno::IO
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn filled_file_has_its_space() {
        let file = tempfile::tempfile().unwrap();
        fill(&file, 1 << 20).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.len(), 1 << 20);
        assert!(metadata.blocks() * 512 >= 1 << 20, "{} blocks", metadata.blocks());
    }
}
