//! Reads and writes the bytes of the files, by plans for the storage of chunks.

use std::time::SystemTime;

use rustix::io::Errno;

use super::blocks::{BLOCK_BYTES, Blocks};
use super::extents::{ExtentRefusal, FileData, FileExtent, Location, Purpose, WritePlan};
use super::files::{Files, NodeAttributes};

/// Largest size of a file, in bytes. A file may have holes, which take no memory.
pub(crate) const MAX_FILE_BYTES: u64 = 1 << 46;
/// Number of chunks that may turn out to be lost during one write.
const TRIES: u32 = 8;
/// Number of bytes that are reserved or made 0 at a time.
const STEP_BYTES: u64 = 1 << 20;

/// Storage of chunks: leased memory, or files of a disk.
pub(crate) trait Storage {
    /// Adds a chunk whose bytes are 0.
    fn add(&mut self, chunk: u32) -> Result<(), Errno>;

    /// Gives a chunk back. Its bytes are not needed any more.
    fn remove(&mut self, chunk: u32);

    /// Copies bytes out. After an error, the chunk is lost.
    fn read(&self, chunk: u32, offset: u64, into: &mut [u8]) -> Result<(), Errno>;

    /// Copies bytes in. After an error, the chunk is lost.
    fn write(&self, chunk: u32, offset: u64, from: &[u8]) -> Result<(), Errno>;
}

/// Files and the storage of their bytes.
#[derive(Debug)]
pub(crate) struct Contents<S> {
    pub(crate) files: Files,
    pub(crate) storage: S,
    blocks: Blocks,
    chunk_bytes: u64,
    limit_bytes: u64,
}

/// Sizes of the whole folder, in blocks of [`BLOCK_BYTES`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FolderUsage {
    pub(crate) blocks: u64,
    pub(crate) free: u64,
}

impl<S: Storage> Contents<S> {
    /// Creates an empty folder. The chunk is a multiple of [`BLOCK_BYTES`], and the limit at least one chunk.
    pub(crate) fn new(
        attributes: NodeAttributes,
        storage: S,
        chunk_bytes: u64,
        limit_bytes: u64,
    ) -> Contents<S> {
        debug_assert!(
            chunk_bytes > 0 && chunk_bytes.is_multiple_of(BLOCK_BYTES),
            "a chunk of {chunk_bytes} bytes"
        );
        let blocks_each = u32::try_from(chunk_bytes / BLOCK_BYTES).unwrap_or(u32::MAX);
        let (files, blocks) = (Files::new(attributes), Blocks::new(blocks_each));
        Contents { files, storage, blocks, chunk_bytes, limit_bytes }
    }

    /// Sizes, as `df` shows them.
    pub(crate) fn usage(&self) -> FolderUsage {
        let blocks = self.limit_bytes / self.chunk_bytes * (self.chunk_bytes / BLOCK_BYTES);
        FolderUsage { blocks, free: blocks.saturating_sub(self.blocks.in_use()) }
    }

    /// Copies bytes out, up to the end of the file. Returns their number.
    pub(crate) fn read(&mut self, number: u64, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let data = self.files.data(number)?;
        let len_bytes = data.len_bytes().saturating_sub(offset).min(into.len() as u64);
        if len_bytes == 0 {
            return Ok(0);
        }
        let extents = data.extents(&self.blocks, offset, len_bytes).map_err(|_| Errno::IO)?;
        let mut rest = into;
        for FileExtent { location, len_bytes } in extents {
            let len = usize::try_from(len_bytes).map_err(|_| Errno::INVAL)?;
            let (part, behind) = std::mem::take(&mut rest).split_at_mut(len);
            rest = behind;
            match location {
                Location::Hole => part.fill(0),
                Location::Chunk { chunk, offset } => {
                    if self.storage.read(chunk, offset, part).is_err() {
                        self.lose_chunk(chunk);
                        return Err(Errno::IO);
                    }
                }
            }
        }
        usize::try_from(len_bytes).map_err(|_| Errno::INVAL)
    }

    /// Copies bytes in. The file grows if they reach beyond its end. After an error some of the bytes may be there.
    pub(crate) fn write(
        &mut self,
        number: u64,
        offset: u64,
        bytes: &[u8],
        now: SystemTime,
    ) -> Result<(), Errno> {
        let end = end_of(offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let written = self.write_blocks(number, offset, bytes);
        let before = self.files.data(number)?.len_bytes();
        if let Err(error) = written {
            if end > before {
                // A part of the bytes may have arrived in a block that the file had, where bytes behind the end are 0.
                self.cut(number, before, end - before)?;
            }
            return Err(error);
        }
        let (data, attributes) = self.files.file_mut(number)?;
        data.set_len(before.max(end));
        (attributes.modified, attributes.changed) = (now, now);
        Ok(())
    }

    /// Copies bytes in that the kernel had accepted from a program before. After an error, those that could not be written are
    /// lost: the program believes that they are written, and the kernel drops its pages. Other bytes of the file are kept.
    pub(crate) fn write_late(
        &mut self,
        number: u64,
        offset: u64,
        bytes: &[u8],
        now: SystemTime,
    ) -> Result<(), Errno> {
        let Err(error) = self.write(number, offset, bytes, now) else { return Ok(()) };
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let room = usize::try_from(BLOCK_BYTES - at % BLOCK_BYTES).unwrap_or(usize::MAX);
            let (part, behind) = rest.split_at(room.min(rest.len()));
            // A block that the file has needs no memory, and holds earlier bytes.
            let has_block = self.files.data(number).is_ok_and(|data| data.has_block(at));
            if !has_block || self.write(number, at, part, now).is_err() {
                self.lose(number, at, part.len() as u64);
            }
            at += part.len() as u64;
            rest = behind;
        }
        Err(error)
    }

    fn write_blocks(&mut self, number: u64, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        for _ in 0..TRIES {
            let plan = self.plan(number, (offset, bytes.len() as u64), Purpose::Write)?;
            match self.fill(&plan, bytes) {
                Ok(()) => return Ok(()),
                Err(chunk) => self.undo(number, &plan, chunk)?,
            }
        }
        Err(Errno::IO)
    }

    fn lose(&mut self, number: u64, offset: u64, len_bytes: u64) {
        if let Ok((data, _)) = self.files.file_mut(number) {
            let emptied = data.lose(&mut self.blocks, offset, len_bytes);
            self.give_back(&emptied);
        }
    }

    /// Sets the length of a file. New bytes are 0.
    pub(crate) fn set_len(&mut self, number: u64, len_bytes: u64, now: SystemTime) -> Result<(), Errno> {
        let len_bytes = end_of(len_bytes, 0)?;
        let before = self.files.data(number)?.len_bytes();
        if len_bytes < before {
            // Late writes that failed may have lost bytes behind the largest size.
            self.cut(number, len_bytes, u64::MAX - len_bytes)?;
        }
        let (data, attributes) = self.files.file_mut(number)?;
        data.set_len(len_bytes);
        (attributes.modified, attributes.changed) = (now, now);
        Ok(())
    }

    /// Makes bytes within the file 0, and gives back the memory of whole blocks.
    pub(crate) fn punch(
        &mut self,
        number: u64,
        offset: u64,
        len_bytes: u64,
        now: SystemTime,
    ) -> Result<(), Errno> {
        end_of(offset, len_bytes)?;
        self.cut(number, offset, len_bytes)?;
        let (_, attributes) = self.files.file_mut(number)?;
        (attributes.modified, attributes.changed) = (now, now);
        Ok(())
    }

    /// Takes the memory for a range ahead of its writes. The file grows to the range's end, unless `keeps_len`.
    pub(crate) fn reserve(
        &mut self,
        number: u64,
        (offset, len_bytes): (u64, u64),
        keeps_len: bool,
        now: SystemTime,
    ) -> Result<(), Errno> {
        let end = end_of(offset, len_bytes)?;
        if self.files.data(number)?.missing_blocks(offset, len_bytes) > self.usage().free {
            return Err(Errno::NOSPC);
        }
        let mut at = offset;
        while at < end {
            let step = STEP_BYTES.min(end - at);
            self.reserve_step(number, (at, step))?;
            at += step;
        }
        let (data, attributes) = self.files.file_mut(number)?;
        if !keeps_len {
            data.set_len(data.len_bytes().max(end));
        }
        (attributes.modified, attributes.changed) = (now, now);
        Ok(())
    }

    /// Gives back the memory of a file that is gone.
    pub(crate) fn free(&mut self, data: Option<FileData>) {
        if let Some(data) = data {
            let emptied = data.clear(&mut self.blocks);
            self.give_back(&emptied);
        }
    }

    fn reserve_step(&mut self, number: u64, range: (u64, u64)) -> Result<(), Errno> {
        for _ in 0..TRIES {
            let plan = self.plan(number, range, Purpose::Reserve)?;
            match self.zero(&plan.zeros) {
                Ok(()) => return Ok(()),
                Err(chunk) => self.undo(number, &plan, chunk)?,
            }
        }
        Err(Errno::IO)
    }

    /// Plans a write, with as many more chunks as it needs.
    fn plan(&mut self, number: u64, range: (u64, u64), purpose: Purpose) -> Result<WritePlan, Errno> {
        loop {
            let (data, _) = self.files.file_mut(number)?;
            match data.prepare_write(&mut self.blocks, range, purpose) {
                Ok(plan) => {
                    self.give_back(&plan.emptied);
                    return Ok(plan);
                }
                Err(ExtentRefusal::Lost) => return Err(Errno::IO),
                Err(ExtentRefusal::NeedsChunk) => self.add_chunk()?,
            }
        }
    }

    fn add_chunk(&mut self) -> Result<(), Errno> {
        let chunks = self.blocks.kept_chunks() + 1;
        if chunks.checked_mul(self.chunk_bytes).is_none_or(|bytes| bytes > self.limit_bytes) {
            return Err(Errno::NOSPC);
        }
        self.storage.add(self.blocks.next_chunk())?;
        self.blocks.add_chunk();
        Ok(())
    }

    /// Carries out a plan. Returns the chunk that turned out to be lost.
    fn fill(&self, plan: &WritePlan, bytes: &[u8]) -> Result<(), u32> {
        self.zero(&plan.zeros)?;
        let mut rest = bytes;
        for FileExtent { location, len_bytes } in &plan.extents {
            let len = usize::try_from(*len_bytes).unwrap_or(usize::MAX).min(rest.len());
            let (part, behind) = rest.split_at(len);
            rest = behind;
            if let Location::Chunk { chunk, offset } = *location {
                self.storage.write(chunk, offset, part).map_err(|_| chunk)?;
            }
        }
        debug_assert!(rest.is_empty(), "{} bytes of a write have no place", rest.len());
        Ok(())
    }

    fn zero(&self, extents: &[FileExtent]) -> Result<(), u32> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        for FileExtent { location, len_bytes } in extents {
            let Location::Chunk { chunk, offset } = *location else { continue };
            let mut at = 0;
            while at < *len_bytes {
                let len = (len_bytes - at).min(ZEROS.len() as u64);
                let zeros = &ZEROS[..usize::try_from(len).unwrap_or(ZEROS.len())];
                self.storage.write(chunk, offset + at, zeros).map_err(|_| chunk)?;
                at += len;
            }
        }
        Ok(())
    }

    fn undo(&mut self, number: u64, plan: &WritePlan, lost: u32) -> Result<(), Errno> {
        self.lose_chunk(lost);
        let (data, _) = self.files.file_mut(number)?;
        let emptied = data.undo(&mut self.blocks, plan);
        self.give_back(&emptied);
        Ok(())
    }

    fn cut(&mut self, number: u64, offset: u64, len_bytes: u64) -> Result<(), Errno> {
        let (data, _) = self.files.file_mut(number)?;
        let plan = data.cut(&mut self.blocks, offset, len_bytes);
        self.give_back(&plan.emptied);
        for extent in &plan.zeros {
            if let Err(chunk) = self.zero(std::slice::from_ref(extent)) {
                // The bytes that were to be 0 are lost with the rest of their block.
                self.lose_chunk(chunk);
            }
        }
        Ok(())
    }

    fn lose_chunk(&mut self, chunk: u32) {
        let emptied = self.blocks.lose(chunk);
        self.give_back(emptied.as_slice());
    }

    fn give_back(&mut self, chunks: &[u32]) {
        chunks.iter().for_each(|chunk| self.storage.remove(*chunk));
    }
}

fn end_of(offset: u64, len_bytes: u64) -> Result<u64, Errno> {
    offset.checked_add(len_bytes).filter(|end| *end <= MAX_FILE_BYTES).ok_or(Errno::FBIG)
}
