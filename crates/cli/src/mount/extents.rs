//! Maps the bytes of a file to blocks of chunks.
//!
//! Invariants:
//! - Bytes without a block, and bytes of blocks behind the end of the file, are 0.
//! - Lost bytes are an error for each reader until a write replaces the whole block, or the file ends before them. They are
//!   never read as 0.

use std::collections::BTreeMap;

use super::blocks::{BLOCK_BYTES, Block, Blocks};

/// Location of consecutive bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// The bytes are 0 and have no block.
    Hole,
    /// The bytes begin at this offset in a chunk.
    Chunk { chunk: u32, offset: u64 },
}

/// Consecutive bytes of a file that are also consecutive in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileExtent {
    pub(crate) location: Location,
    pub(crate) len_bytes: u64,
}

/// Reason why bytes cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtentRefusal {
    /// The node or disk with the bytes is gone.
    Lost,
    /// There are too few free blocks: another chunk is needed.
    NeedsChunk,
}

/// Purpose of new blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The caller writes every byte of the range.
    Write,
    /// The bytes of new blocks are to be 0.
    Reserve,
}

/// Accesses by which a write is carried out.
#[derive(Debug, Default)]
pub(crate) struct WritePlan {
    /// The bytes of the write, in order.
    pub(crate) extents: Vec<FileExtent>,
    /// Bytes that must become 0.
    pub(crate) zeros: Vec<FileExtent>,
    /// Chunks that no file uses any more.
    pub(crate) emptied: Vec<u32>,
    /// New blocks by their number in the file, and whether the bytes there had been lost.
    added: Vec<(u64, bool)>,
}

/// Accesses that follow after a part of a file was removed.
#[derive(Debug, Default)]
pub(crate) struct CutPlan {
    /// Bytes that must become 0.
    pub(crate) zeros: Vec<FileExtent>,
    /// Chunks that no file uses any more.
    pub(crate) emptied: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
enum Slot {
    Kept(Block),
    Lost,
}

/// Length and blocks of a file.
#[derive(Debug, Default)]
pub(crate) struct FileData {
    len_bytes: u64,
    /// Blocks by their number in the file. A missing one is a hole.
    slots: BTreeMap<u64, Slot>,
}

/// Part of a range that lies in one block of a file.
#[derive(Clone, Copy, Debug)]
struct Part {
    number: u64,
    /// Offset in the block, in bytes.
    start: u64,
    len_bytes: u64,
}

impl Part {
    fn is_whole(&self) -> bool {
        self.len_bytes == BLOCK_BYTES
    }
}

fn parts(offset: u64, len_bytes: u64) -> impl Iterator<Item = Part> {
    let end = offset + len_bytes;
    (offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)).map(move |number| {
        let start = offset.max(number * BLOCK_BYTES);
        let until = end.min((number + 1) * BLOCK_BYTES);
        Part { number, start: start - number * BLOCK_BYTES, len_bytes: until - start }
    })
}

fn push(extents: &mut Vec<FileExtent>, location: Location, len_bytes: u64) {
    if len_bytes == 0 {
        return;
    }
    let follows = |last: &FileExtent| match (last.location, location) {
        (Location::Hole, Location::Hole) => true,
        (Location::Chunk { chunk, offset }, Location::Chunk { chunk: next, offset: at }) => {
            chunk == next && offset + last.len_bytes == at
        }
        _ => false,
    };
    match extents.last_mut() {
        Some(last) if follows(last) => last.len_bytes += len_bytes,
        _ => extents.push(FileExtent { location, len_bytes }),
    }
}

fn location(block: Block, start: u64) -> Location {
    debug_assert!(start <= BLOCK_BYTES, "byte {start} of a block");
    Location::Chunk { chunk: block.chunk, offset: block.offset() + start }
}

impl FileData {
    /// Length, in bytes.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Number of blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Whether the byte at this offset has a block, or had one whose bytes are lost.
    pub(crate) fn has_block(&self, offset: u64) -> bool {
        self.slots.contains_key(&(offset / BLOCK_BYTES))
    }

    /// Number of blocks that a range lacks.
    pub(crate) fn missing_blocks(&self, offset: u64, len_bytes: u64) -> u64 {
        let (first, end) = (offset / BLOCK_BYTES, (offset + len_bytes).div_ceil(BLOCK_BYTES));
        end - first - self.slots.range(first..end).count() as u64
    }

    /// Sets the length, after [`FileData::cut`] if it shrinks.
    pub(crate) fn set_len(&mut self, len_bytes: u64) {
        self.len_bytes = len_bytes;
    }

    /// Locations of the bytes of a range.
    pub(crate) fn extents(
        &self,
        blocks: &Blocks,
        offset: u64,
        len_bytes: u64,
    ) -> Result<Vec<FileExtent>, ExtentRefusal> {
        let mut extents = Vec::new();
        for part in parts(offset, len_bytes) {
            let location = match self.slots.get(&part.number) {
                None => Location::Hole,
                Some(Slot::Kept(block)) if !blocks.is_lost(block.chunk) => location(*block, part.start),
                Some(_) => return Err(ExtentRefusal::Lost),
            };
            push(&mut extents, location, part.len_bytes);
        }
        Ok(extents)
    }

    /// Takes the blocks that are missing for a range. After an error nothing has changed.
    pub(crate) fn prepare_write(
        &mut self,
        blocks: &mut Blocks,
        (offset, len_bytes): (u64, u64),
        purpose: Purpose,
    ) -> Result<WritePlan, ExtentRefusal> {
        let mut missing = 0;
        for part in parts(offset, len_bytes) {
            match self.slots.get(&part.number) {
                None => missing += 1,
                Some(slot) if is_lost(slot, blocks) => match purpose {
                    Purpose::Write if part.is_whole() => missing += 1,
                    Purpose::Write => return Err(ExtentRefusal::Lost),
                    Purpose::Reserve => {}
                },
                Some(_) => {}
            }
        }
        if blocks.free() < missing {
            return Err(ExtentRefusal::NeedsChunk);
        }
        let mut plan = WritePlan::default();
        let mut after = None;
        for part in parts(offset, len_bytes) {
            let block = match self.slots.get(&part.number) {
                Some(Slot::Kept(block)) if !blocks.is_lost(block.chunk) => *block,
                Some(_) if purpose == Purpose::Reserve => continue,
                _ => self.add_block(blocks, part, (after, purpose), &mut plan),
            };
            push(&mut plan.extents, location(block, part.start), part.len_bytes);
            after = Some(block);
        }
        Ok(plan)
    }

    /// Gives a part of the file a new block.
    fn add_block(
        &mut self,
        blocks: &mut Blocks,
        part: Part,
        (after, purpose): (Option<Block>, Purpose),
        plan: &mut WritePlan,
    ) -> Block {
        let taken = blocks.take(after).expect("the caller counted the free blocks");
        let before = self.slots.insert(part.number, Slot::Kept(taken.block));
        plan.added.push((part.number, before.is_some()));
        if let Some(Slot::Kept(lost)) = before {
            plan.emptied.extend(blocks.give(lost));
        }
        if taken.is_used {
            let zeros = match purpose {
                Purpose::Write => [(0, part.start), (part.start + part.len_bytes, BLOCK_BYTES)],
                Purpose::Reserve => [(0, BLOCK_BYTES), (BLOCK_BYTES, BLOCK_BYTES)],
            };
            zeros
                .iter()
                .for_each(|&(from, to)| push(&mut plan.zeros, location(taken.block, from), to - from));
        }
        taken.block
    }

    /// Gives back the blocks of a plan that was not carried out. Returns the chunks that no file uses any more.
    pub(crate) fn undo(&mut self, blocks: &mut Blocks, plan: &WritePlan) -> Vec<u32> {
        let mut emptied = Vec::new();
        for &(number, was_lost) in &plan.added {
            let slot =
                if was_lost { self.slots.insert(number, Slot::Lost) } else { self.slots.remove(&number) };
            if let Some(Slot::Kept(block)) = slot {
                emptied.extend(blocks.give(block));
            }
        }
        emptied
    }

    /// Makes a range a hole, as far as its blocks lie in it, and plans zeros for the rest. The length stays.
    pub(crate) fn cut(&mut self, blocks: &mut Blocks, offset: u64, len_bytes: u64) -> CutPlan {
        let mut plan = CutPlan::default();
        let end = offset.saturating_add(len_bytes);
        let numbers: Vec<u64> = self
            .slots
            .range(offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES))
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            let from = offset.max(number * BLOCK_BYTES) - number * BLOCK_BYTES;
            let to = (end - number * BLOCK_BYTES).min(BLOCK_BYTES);
            if to - from == BLOCK_BYTES {
                if let Some(Slot::Kept(block)) = self.slots.remove(&number) {
                    plan.emptied.extend(blocks.give(block));
                }
            } else if let Some(Slot::Kept(block)) = self.slots.get(&number)
                && !blocks.is_lost(block.chunk)
            {
                push(&mut plan.zeros, location(*block, from), to - from);
            }
        }
        plan
    }

    /// Marks the bytes of a range as lost: they were to be replaced, and were not.
    pub(crate) fn lose(&mut self, blocks: &mut Blocks, offset: u64, len_bytes: u64) -> Vec<u32> {
        let mut emptied = Vec::new();
        for part in parts(offset, len_bytes) {
            if let Some(Slot::Kept(block)) = self.slots.insert(part.number, Slot::Lost) {
                emptied.extend(blocks.give(block));
            }
        }
        self.len_bytes = self.len_bytes.max(offset + len_bytes);
        emptied
    }

    /// Gives back all blocks. Returns the chunks that no file uses any more.
    pub(crate) fn clear(mut self, blocks: &mut Blocks) -> Vec<u32> {
        self.cut(blocks, 0, u64::MAX / BLOCK_BYTES * BLOCK_BYTES).emptied
    }
}

fn is_lost(slot: &Slot, blocks: &Blocks) -> bool {
    match slot {
        Slot::Kept(block) => blocks.is_lost(block.chunk),
        Slot::Lost => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(chunk: u32, offset: u64, len_bytes: u64) -> FileExtent {
        FileExtent { location: Location::Chunk { chunk, offset }, len_bytes }
    }

    fn blocks(chunks: u32) -> Blocks {
        let mut blocks = Blocks::new(4);
        (0..chunks).for_each(|_| blocks.add_chunk());
        blocks
    }

    #[test]
    fn joins_neighbouring_blocks_in_one_extent() {
        let (mut blocks, mut file) = (blocks(1), FileData::default());
        let plan = file.prepare_write(&mut blocks, (100, 2 * BLOCK_BYTES), Purpose::Write).unwrap();
        assert_eq!(plan.extents, [chunk(0, 100, 2 * BLOCK_BYTES)]);
        assert!(plan.zeros.is_empty());
        let read = file.extents(&blocks, 3 * BLOCK_BYTES - 10, 30).unwrap();
        assert_eq!(
            read,
            [chunk(0, 3 * BLOCK_BYTES - 10, 10), FileExtent { location: Location::Hole, len_bytes: 20 }]
        );
    }

    #[test]
    fn zeroes_the_rest_of_recycled_blocks() {
        let (mut blocks, mut file) = (blocks(1), FileData::default());
        file.prepare_write(&mut blocks, (0, BLOCK_BYTES), Purpose::Write).unwrap();
        file.cut(&mut blocks, 0, BLOCK_BYTES);
        let plan = file.prepare_write(&mut blocks, (10, 20), Purpose::Write).unwrap();
        assert_eq!(plan.zeros, [chunk(0, 0, 10), chunk(0, 30, BLOCK_BYTES - 30)]);
    }

    #[test]
    fn lost_bytes_stay_lost_until_a_whole_block_is_written() {
        let (mut blocks, mut file) = (blocks(2), FileData::default());
        file.prepare_write(&mut blocks, (0, BLOCK_BYTES), Purpose::Write).unwrap();
        blocks.lose(0);
        assert_eq!(file.extents(&blocks, 5, 1), Err(ExtentRefusal::Lost));
        let partly = file.prepare_write(&mut blocks, (0, BLOCK_BYTES - 1), Purpose::Write);
        assert_eq!(partly.unwrap_err(), ExtentRefusal::Lost);
        let whole = file.prepare_write(&mut blocks, (0, BLOCK_BYTES), Purpose::Write).unwrap();
        assert_eq!((&whole.extents[..], &whole.emptied[..]), (&[chunk(1, 0, BLOCK_BYTES)][..], &[0][..]));
        file.undo(&mut blocks, &whole);
        assert_eq!(file.extents(&blocks, 5, 1), Err(ExtentRefusal::Lost));
    }

    #[test]
    fn refused_writes_change_nothing() {
        let (mut blocks, mut file) = (blocks(1), FileData::default());
        let refused = file.prepare_write(&mut blocks, (0, 5 * BLOCK_BYTES), Purpose::Write);
        assert_eq!(refused.unwrap_err(), ExtentRefusal::NeedsChunk);
        assert_eq!((blocks.free(), file.blocks()), (4, 0));
    }

    #[test]
    fn cutting_frees_whole_blocks_and_zeroes_parts() {
        let (mut blocks, mut file) = (blocks(1), FileData::default());
        file.prepare_write(&mut blocks, (0, 3 * BLOCK_BYTES), Purpose::Write).unwrap();
        let plan = file.cut(&mut blocks, 10, 2 * BLOCK_BYTES);
        assert_eq!(plan.zeros, [chunk(0, 10, BLOCK_BYTES - 10), chunk(0, 2 * BLOCK_BYTES, 10)]);
        assert_eq!(file.blocks(), 2);
        assert!(file.clear(&mut blocks).is_empty());
        assert_eq!(blocks.free(), 4);
    }
}
