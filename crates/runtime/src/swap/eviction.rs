//! Chooses the pages to evict.

use sublet_proto::to_usize;

use super::book::{NeededMemory, PageBook, PageState, Unit};
use super::slots::BufferSlot;
use super::units::{BlockAt, PAGE_BYTES, REGION_PAGES};

/// Largest number of blocks that are evicted at once.
const MAX_BLOCKS: usize = 32;
/// Number of slots that are kept free for the next accesses.
const SPARE_SLOTS: usize = 2;
/// Number of local pages for each page that is kept free.
const PAGES_PER_FREE: u64 = 64;

/// Units to evict, marked.
pub(super) enum Eviction {
    Region(EvictedRegion),
    Blocks(Vec<EvictedBlock>),
    /// A slot's huge page without valid content.
    Slot(usize),
    /// No unit: all that could be evicted are being evicted.
    None,
}

#[derive(Clone, Copy)]
pub(super) struct EvictedRegion {
    pub(super) region: usize,
    pub(super) slot: usize,
    pub(super) is_written: bool,
    /// Set if any page of the region is in the swap space.
    pub(super) is_stored: bool,
}

#[derive(Clone, Copy)]
pub(super) struct EvictedBlock {
    pub(super) at: BlockAt,
    pub(super) here: u16,
    pub(super) written: u16,
    pub(super) stored: u16,
}

/// Result of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictionResult {
    /// The content is in the swap space, written now or before.
    Stored,
    /// The content was zero, and no page of it was ever in the swap space.
    Zero,
    /// The unit was not evicted.
    Stayed,
}

impl PageBook {
    /// The kind of memory that a helper must free ahead of need.
    pub(super) fn lacks(&self) -> Option<NeededMemory> {
        let free = self.free_pages();
        match self.latest {
            NeededMemory::Slot => {
                let more = if self.slots.empty().is_some() { free / REGION_PAGES } else { 0 };
                let lacks = self.slots.spare() + to_usize(more) < SPARE_SLOTS.min(self.slots.len() - 1);
                (lacks && !self.queue.is_empty()).then_some(NeededMemory::Slot)
            }
            NeededMemory::Pages => {
                let lacks = free < self.limit_pages / PAGES_PER_FREE;
                let has_some = !self.queue.is_empty() || self.slots.reusable().is_some();
                (lacks && has_some).then_some(NeededMemory::Pages)
            }
        }
    }

    /// Chooses and marks the units to evict.
    pub(super) fn pick(&mut self, want: NeededMemory) -> Eviction {
        if want == NeededMemory::Pages
            && let Some(slot) = self.reuse_slot()
        {
            return Eviction::Slot(slot);
        }
        let mut blocks = Vec::new();
        // Each unit is checked once, and again for each time that it is passed over.
        for _ in 0..self.queue.len().saturating_mul(4) {
            let Some(unit) = self.queue.pop_front() else { break };
            if self.is_spared(unit) {
                self.queue.push_back(unit);
                continue;
            }
            match unit {
                Unit::Region(region) if blocks.is_empty() => match self.mark_region(region) {
                    Some(leaving) => return Eviction::Region(leaving),
                    None => {
                        self.queue.push_front(unit);
                        break;
                    }
                },
                Unit::Region(_) => {
                    self.queue.push_front(unit);
                    break;
                }
                Unit::Block(at) => match self.mark_block(at) {
                    Some(leaving) => blocks.push(leaving),
                    None => self.queue.push_back(unit),
                },
            }
            if blocks.len() == MAX_BLOCKS {
                break;
            }
        }
        if blocks.is_empty() { Eviction::None } else { Eviction::Blocks(blocks) }
    }

    fn mark_region(&mut self, region: usize) -> Option<EvictedRegion> {
        let slot = self.slots.empty()?;
        self.slots.set(slot, BufferSlot::Busy);
        let there = &mut self.regions[region];
        debug_assert_eq!(there.state, PageState::Whole, "region {region} is to go");
        there.state = PageState::Moving;
        let is_stored = there.blocks().is_some_and(|blocks| blocks.iter().any(|block| block.stored != 0));
        Some(EvictedRegion { region, slot, is_written: there.is_written, is_stored })
    }

    fn mark_block(&mut self, at: BlockAt) -> Option<EvictedBlock> {
        let block = self.block(at);
        if block.is_busy {
            return None;
        }
        block.is_busy = true;
        Some(EvictedBlock { at, here: block.here, written: block.written & block.here, stored: block.stored })
    }

    /// Records the result of a region's eviction. Returns whether a thread waits for the region.
    pub(super) fn region_went(&mut self, leaving: EvictedRegion, gone: EvictionResult) -> bool {
        let region = &mut self.regions[leaving.region];
        debug_assert_eq!(region.state, PageState::Moving, "region {} has gone", leaving.region);
        if gone == EvictionResult::Stayed {
            region.state = PageState::Whole;
            // A region that was moved and moved back is no longer protected.
            region.is_written = true;
            self.slots.set(leaving.slot, BufferSlot::Empty);
            self.queue.push_back(Unit::Region(leaving.region));
        } else {
            region.state = PageState::Pages;
            region.slot = Some(leaving.slot);
            if gone == EvictionResult::Stored && leaving.is_written {
                region.blocks_mut().iter_mut().for_each(|block| block.stored = u16::MAX);
                self.statistics.written_bytes += REGION_PAGES * PAGE_BYTES;
            }
            self.slots.ready(leaving.slot, leaving.region, false);
            self.went(Unit::Region(leaving.region), REGION_PAGES);
        }
        std::mem::take(&mut self.regions[leaving.region].is_wanted)
    }

    /// Records the result of a block's eviction: the pages that were written to the swap space, or `None` if it stays.
    /// Returns whether a thread waits for it.
    pub(super) fn block_went(&mut self, leaving: &EvictedBlock, stored: Option<u16>) -> bool {
        let block = self.block(leaving.at);
        debug_assert!(block.is_busy, "block {:?} has gone without a request", leaving.at);
        block.is_busy = false;
        let is_wanted = std::mem::take(&mut block.is_wanted);
        match stored {
            Some(stored) => {
                block.stored |= stored;
                (block.here, block.written) = (0, 0);
                let pages = u64::from(leaving.here.count_ones());
                debug_assert!(pages <= self.used_pages, "{pages} pages go of {}", self.used_pages);
                self.used_pages -= pages;
                self.statistics.written_bytes += u64::from(stored.count_ones()) * PAGE_BYTES;
                self.went(Unit::Block(leaving.at), pages);
            }
            None => {
                // As with regions.
                block.written = block.here;
                self.queue.push_back(Unit::Block(leaving.at));
            }
        }
        is_wanted
    }

    /// A slot's huge page was given back.
    pub(super) fn slot_emptied(&mut self, slot: usize) {
        debug_assert_eq!(self.slots.get(slot), BufferSlot::Busy, "slot {slot} is given back");
        debug_assert!(REGION_PAGES <= self.used_pages, "slot {slot} of {} used pages", self.used_pages);
        self.slots.set(slot, BufferSlot::Empty);
        self.used_pages -= REGION_PAGES;
    }
}
