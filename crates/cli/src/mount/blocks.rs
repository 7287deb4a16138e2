//! Divides chunks of storage into blocks, and knows which blocks are free.
//!
//! A chunk is one lease of memory, or a file on a disk. Chunks whose bytes are lost keep their blocks in use until the
//! files release them, and lend none.

use std::collections::{BTreeMap, BTreeSet};

/// Size of a block in bytes, by which files grow.
pub(crate) const BLOCK_BYTES: u64 = 64 << 10;

/// A block of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Block {
    pub(crate) chunk: u32,
    pub(crate) index: u32,
}

impl Block {
    /// Offset in the chunk, in bytes.
    pub(crate) fn offset(self) -> u64 {
        u64::from(self.index) * BLOCK_BYTES
    }
}

/// A block that a file gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenBlock {
    pub(crate) block: Block,
    /// Whether the block may hold bytes of a file that had it before. Otherwise its bytes are 0.
    pub(crate) is_used: bool,
}

/// The blocks of all chunks.
#[derive(Debug)]
pub(crate) struct Blocks {
    chunks: BTreeMap<u32, ChunkBlocks>,
    /// Chunks with free blocks that are not lost.
    with_space: BTreeSet<u32>,
    blocks_each: u32,
    /// Number of free blocks in chunks that are not lost.
    free: u64,
    next: u32,
}

#[derive(Debug, Default)]
struct ChunkBlocks {
    /// Free blocks that files had before.
    recycled: BTreeSet<u32>,
    /// First block that no file has had.
    fresh_from: u32,
    in_use: u32,
    is_lost: bool,
}

impl Blocks {
    /// Creates a table of chunks with this number of blocks each.
    pub(crate) fn new(blocks_each: u32) -> Blocks {
        Blocks { chunks: BTreeMap::new(), with_space: BTreeSet::new(), blocks_each, free: 0, next: 0 }
    }

    /// Number of free blocks.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Number of chunks whose bytes are not lost.
    pub(crate) fn kept_chunks(&self) -> u64 {
        self.chunks.values().filter(|chunk| !chunk.is_lost).count() as u64
    }

    /// Number of blocks in use in chunks whose bytes are not lost.
    pub(crate) fn in_use(&self) -> u64 {
        self.kept_chunks() * u64::from(self.blocks_each) - self.free
    }

    /// The number that the next chunk will have.
    pub(crate) fn next_chunk(&self) -> u32 {
        self.next
    }

    /// Adds a chunk whose bytes are 0.
    pub(crate) fn add_chunk(&mut self) {
        self.chunks.insert(self.next, ChunkBlocks::default());
        self.with_space.insert(self.next);
        self.free += u64::from(self.blocks_each);
        self.next += 1;
    }

    /// Whether the bytes of a chunk are lost.
    pub(crate) fn is_lost(&self, chunk: u32) -> bool {
        self.chunks.get(&chunk).is_none_or(|chunk| chunk.is_lost)
    }

    /// Takes a free block, if possible the one behind `after`, so that an access spans both.
    pub(crate) fn take(&mut self, after: Option<Block>) -> Option<TakenBlock> {
        let next = after.filter(|after| self.is_free(after.chunk, after.index + 1));
        let number = match next {
            Some(after) => after.chunk,
            None => *self.with_space.first()?,
        };
        let blocks_each = self.blocks_each;
        let chunk = self.chunks.get_mut(&number)?;
        let index = match next {
            Some(after) => after.index + 1,
            None => chunk.recycled.first().copied().unwrap_or(chunk.fresh_from),
        };
        let is_used = chunk.recycled.remove(&index);
        if !is_used {
            debug_assert_eq!(
                index, chunk.fresh_from,
                "a block of chunk {number} is neither new nor recycled"
            );
            chunk.fresh_from += 1;
        }
        chunk.in_use += 1;
        if chunk.in_use == blocks_each {
            self.with_space.remove(&number);
        }
        self.free -= 1;
        Some(TakenBlock { block: Block { chunk: number, index }, is_used })
    }

    /// Takes a block back. Returns its chunk if that is to be given back: no file uses the chunk, and another empty one is
    /// there for the next file.
    pub(crate) fn give(&mut self, block: Block) -> Option<u32> {
        let chunk = self.chunks.get_mut(&block.chunk)?;
        debug_assert!(block.index < chunk.fresh_from, "{block:?} was never taken");
        chunk.in_use -= 1;
        let is_empty = chunk.in_use == 0;
        if chunk.is_lost {
            return is_empty.then(|| self.remove(block.chunk));
        }
        let is_new = chunk.recycled.insert(block.index);
        debug_assert!(is_new, "{block:?} was given back twice");
        self.with_space.insert(block.chunk);
        self.free += 1;
        let is_spare = |(number, other): (&u32, &ChunkBlocks)| {
            *number != block.chunk && other.in_use == 0 && !other.is_lost
        };
        (is_empty && self.chunks.iter().any(is_spare)).then(|| self.remove(block.chunk))
    }

    /// Records that the bytes of a chunk are lost. Returns the chunk if no file uses it.
    pub(crate) fn lose(&mut self, number: u32) -> Option<u32> {
        let chunk = self.chunks.get_mut(&number).filter(|chunk| !chunk.is_lost)?;
        chunk.is_lost = true;
        self.free -= u64::from(self.blocks_each - chunk.in_use);
        let is_empty = chunk.in_use == 0;
        self.with_space.remove(&number);
        is_empty.then(|| self.remove(number))
    }

    fn is_free(&self, number: u32, index: u32) -> bool {
        let chunk = self.chunks.get(&number).filter(|chunk| !chunk.is_lost && index < self.blocks_each);
        chunk.is_some_and(|chunk| chunk.recycled.contains(&index) || index == chunk.fresh_from)
    }

    fn remove(&mut self, number: u32) -> u32 {
        let removed = self.chunks.remove(&number);
        self.with_space.remove(&number);
        if let Some(chunk) = removed.filter(|chunk| !chunk.is_lost) {
            self.free -= u64::from(self.blocks_each - chunk.in_use);
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_chunks(chunks: u32) -> Blocks {
        let mut blocks = Blocks::new(2);
        (0..chunks).for_each(|_| blocks.add_chunk());
        blocks
    }

    #[test]
    fn takes_blocks_behind_each_other() {
        let mut blocks = with_chunks(2);
        let taken = |blocks: &mut Blocks, after| blocks.take(after).map(|taken| taken.block);
        let first = taken(&mut blocks, None);
        let second = taken(&mut blocks, first);
        assert_eq!(first, Some(Block { chunk: 0, index: 0 }));
        assert_eq!(second, Some(Block { chunk: 0, index: 1 }));
        assert_eq!(taken(&mut blocks, second), Some(Block { chunk: 1, index: 0 }));
        assert_eq!((blocks.free(), blocks.in_use()), (1, 3));
    }

    #[test]
    fn marks_blocks_that_another_file_had() {
        let mut blocks = with_chunks(1);
        let first = blocks.take(None).unwrap();
        assert!(!first.is_used);
        assert_eq!(blocks.give(first.block), None);
        assert!(blocks.take(None).unwrap().is_used);
        assert!(!blocks.take(None).unwrap().is_used);
        assert!(blocks.take(None).is_none());
    }

    #[test]
    fn keeps_one_empty_chunk_and_returns_others() {
        let mut blocks = with_chunks(2);
        let taken: Vec<_> = (0..3).map(|_| blocks.take(None).unwrap().block).collect();
        assert_eq!(blocks.give(taken[2]), None);
        assert_eq!(blocks.give(taken[0]), None);
        assert_eq!(blocks.give(taken[1]), Some(0));
        assert_eq!((blocks.kept_chunks(), blocks.free()), (1, 2));
    }

    #[test]
    fn lends_nothing_of_lost_chunks() {
        let mut blocks = with_chunks(2);
        let first = blocks.take(None).unwrap().block;
        assert_eq!(blocks.lose(first.chunk), None);
        assert!(blocks.is_lost(first.chunk));
        assert_eq!(blocks.free(), 2);
        assert_eq!(blocks.take(Some(first)).unwrap().block.chunk, 1);
        assert_eq!(blocks.give(first), Some(0));
        assert_eq!(blocks.free(), 1);
    }

    #[test]
    fn returns_a_lost_chunk_that_is_empty() {
        let mut blocks = with_chunks(1);
        assert_eq!(blocks.lose(0), Some(0));
        assert_eq!(blocks.lose(0), None);
        assert_eq!((blocks.free(), blocks.kept_chunks()), (0, 0));
    }
}
