//! Records the state of each page: resident, written, or in the swap space.
//!
//! No system call is made here. [`fault_handling`](super::fault_handling) decides how a fault is handled, [`eviction`](super::eviction)
//! which units are evicted. The threads that execute the decisions report here when they are done.

use std::collections::VecDeque;

use sublet_proto::to_usize;

use super::plan::{SwapPlan, Touching};
use super::slots::BufferSlots;
use super::statistics::SwapStatistics;
use super::streams::Streams;
use super::units::{BlockAt, PAGE_BYTES, PageSpan, REGION_BLOCKS, REGION_PAGES};

/// Largest number of times that a unit which came back soon is passed over.
const MAX_CREDIT: u8 = 3;
/// Regions that are read ahead and were not begun, at most.
pub(super) const MAX_LOADS: usize = 16;

/// A region of the array.
pub(super) struct ArrayRegion {
    pub(super) state: PageState,
    /// Set if a thread waits until the region has come or gone.
    pub(super) is_wanted: bool,
    /// Set if the region differs from the swap space, or may. Valid only for a whole region.
    pub(super) is_written: bool,
    /// Set if pages of the region came one by one: it then has a page table, where a huge page would go.
    pub(super) has_table: bool,
    /// The slot that holds the region's content.
    pub(super) slot: Option<usize>,
    /// The region's index in the swap space.
    pub(super) place: Option<u32>,
    pub(super) standing: UnitPriority,
    pub(super) blocks: Option<Box<[PageBlock; REGION_BLOCKS]>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageState {
    /// Each page is resident or not by itself.
    Pages,
    /// A thread moves or fills the whole region.
    Moving,
    /// The whole region is resident, as one huge page.
    Whole,
}

/// A block of a region: a bit for each page.
#[derive(Clone, Copy, Default)]
pub(super) struct PageBlock {
    /// Pages that are resident by themselves.
    pub(super) here: u16,
    /// Pages of `here` that may be written without a fault: they count as written.
    pub(super) written: u16,
    /// Pages that are in the swap space. A resident page may be newer.
    pub(super) stored: u16,
    /// Set while a thread fills or evicts pages of the block.
    pub(super) is_busy: bool,
    /// Set if a thread waits until `is_busy` is cleared.
    pub(super) is_wanted: bool,
    pub(super) standing: UnitPriority,
}

/// Priority of a unit to stay resident.
#[derive(Clone, Copy, Default)]
pub(super) struct UnitPriority {
    credit: u8,
    /// Number of pages that had been evicted when the unit was.
    went_at: u64,
}

/// A unit that is resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Region(usize),
    Block(BlockAt),
}

/// Kind of memory that must be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NeededMemory {
    Pages,
    Slot,
}

/// See the [module](self).
pub(super) struct PageBook {
    pub(super) regions: Vec<ArrayRegion>,
    pub(super) slots: BufferSlots,
    pub(super) streams: Streams,
    /// Resident units that no thread works on, in the order of eviction.
    pub(super) queue: VecDeque<Unit>,
    /// Resident pages, and those of slots that are not empty.
    pub(super) used_pages: u64,
    pub(super) limit_pages: u64,
    pub(super) touching: Touching,
    /// Kind of memory that was needed last.
    pub(super) latest: NeededMemory,
    /// Regions to be read ahead.
    pub(super) loads: VecDeque<usize>,
    pub(super) statistics: SwapStatistics,
    pub(super) is_closed: bool,
    /// Indices in the swap space of regions that were forgotten.
    pub(super) free_places: Vec<u32>,
    gone_pages: u64,
    next_place: u32,
}

impl PageBook {
    pub(super) fn new(plan: &SwapPlan) -> PageBook {
        let region = || ArrayRegion {
            state: PageState::Pages,
            is_wanted: false,
            is_written: false,
            has_table: false,
            slot: None,
            place: None,
            standing: UnitPriority::default(),
            blocks: None,
        };
        PageBook {
            regions: std::iter::repeat_with(region).take(to_usize(plan.regions())).collect(),
            slots: BufferSlots::new(to_usize(plan.slots())),
            streams: Streams::new(),
            queue: VecDeque::new(),
            used_pages: 0,
            limit_pages: plan.local_regions() * REGION_PAGES,
            touching: plan.touching,
            latest: NeededMemory::Pages,
            loads: VecDeque::with_capacity(MAX_LOADS),
            statistics: SwapStatistics::default(),
            is_closed: false,
            free_places: Vec::new(),
            gone_pages: 0,
            next_place: 0,
        }
    }

    pub(super) fn block(&mut self, at: BlockAt) -> &mut PageBlock {
        &mut self.regions[at.region].blocks_mut()[at.block]
    }

    /// The region's index in the swap space, which is assigned now if it has none.
    pub(super) fn place(&mut self, region: usize) -> u32 {
        let (next, free) = (&mut self.next_place, &mut self.free_places);
        *self.regions[region].place.get_or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                *next += 1;
                *next - 1
            })
        })
    }

    pub(super) fn free_pages(&self) -> u64 {
        self.limit_pages.saturating_sub(self.used_pages)
    }

    /// Adds a unit to the resident ones.
    pub(super) fn came(&mut self, unit: Unit) {
        let soon = self.gone_pages.saturating_sub(self.standing(unit).went_at) < self.limit_pages / 2;
        let standing = self.standing(unit);
        if standing.went_at > 0 {
            standing.credit = if soon { (standing.credit + 1).min(MAX_CREDIT) } else { 0 };
        }
        self.queue.push_back(unit);
    }

    /// Records that a unit is no longer resident.
    pub(super) fn went(&mut self, unit: Unit, pages: u64) {
        self.gone_pages += pages;
        self.statistics.out_bytes += pages * PAGE_BYTES;
        let gone_pages = self.gone_pages;
        self.standing(unit).went_at = gone_pages;
    }

    /// Returns whether a unit is passed over when it is its turn to be evicted.
    pub(super) fn is_spared(&mut self, unit: Unit) -> bool {
        let standing = self.standing(unit);
        let is_spared = standing.credit > 0;
        standing.credit = standing.credit.saturating_sub(1);
        is_spared
    }

    fn standing(&mut self, unit: Unit) -> &mut UnitPriority {
        match unit {
            Unit::Region(region) => &mut self.regions[region].standing,
            Unit::Block(at) => &mut self.block(at).standing,
        }
    }

    /// Records that pages are resident now, or that filling them has failed. Returns whether a thread waits for them.
    pub(super) fn filled(&mut self, at: BlockAt, span: PageSpan, result: FillResult) -> bool {
        let mask = span.mask();
        debug_assert!(span.pages <= self.used_pages, "{span:?} of {} used pages", self.used_pages);
        let block = self.block(at);
        debug_assert!(
            block.is_busy && block.here & mask == 0,
            "{span:?} of {at:?} is filled without a request"
        );
        block.is_busy = false;
        let was_empty = block.here == 0;
        match result {
            FillResult::Failed => self.used_pages -= span.pages,
            FillResult::Protected | FillResult::Writable => {
                block.here |= mask;
                if result == FillResult::Writable {
                    block.written |= mask;
                }
                self.regions[at.region].has_table = true;
                self.statistics.in_bytes += span.pages * PAGE_BYTES;
                if was_empty {
                    self.came(Unit::Block(at));
                }
            }
        }
        std::mem::take(&mut self.block(at).is_wanted)
    }
}

/// Result of putting pages in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FillResult {
    Protected,
    Writable,
    Failed,
}

impl ArrayRegion {
    /// The region's blocks. `None` if it was never touched.
    pub(super) fn blocks(&self) -> Option<&[PageBlock; REGION_BLOCKS]> {
        self.blocks.as_deref()
    }

    pub(super) fn blocks_mut(&mut self) -> &mut [PageBlock; REGION_BLOCKS] {
        self.blocks.get_or_insert_with(|| Box::new([PageBlock::default(); REGION_BLOCKS]))
    }

    /// Returns whether no page of the region is resident and no thread works on any of it.
    pub(super) fn is_away(&self) -> bool {
        let is_away = |block: &PageBlock| block.here == 0 && !block.is_busy;
        self.state == PageState::Pages && self.blocks.as_ref().is_none_or(|blocks| blocks.iter().all(is_away))
    }
}
