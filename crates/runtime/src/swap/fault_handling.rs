//! Decides how a page fault is handled.

use sublet_fabric::faults::Touch;

use super::book::{FillResult, MAX_LOADS, NeededMemory, PageBook, PageState, Unit};
use super::plan::Touching;
use super::slots::BufferSlot;
use super::statistics::SwapStatistics;
use super::streams::{AccessPattern, Direction};
use super::units::{BLOCK_PAGES, BlockAt, PAGE_BYTES, PageSpan, REGION_BYTES, REGION_PAGES};

/// Number of regions that are read ahead.
const REGIONS_AHEAD: usize = 2;

/// Next step to handle a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultStep {
    /// No step: the thread that works on the page wakes the waiting ones.
    Wait,
    /// The page is resident: the waiting threads are woken.
    Wake(PageSpan),
    /// Writing to the pages is allowed from now on.
    Allow(PageSpan),
    /// The pages are lost.
    Lose(PageSpan),
    /// Absent pages must be put in; their block is marked.
    Fill(Fill),
    /// The region must be read into the slot and moved in; both are marked.
    Load(RegionLoad),
    /// The region must be moved in from the slot, which holds its content; both are marked.
    Take(RegionLoad),
    /// Memory must be freed before the fault is judged again.
    FreeMemory(NeededMemory),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fill {
    pub(super) at: BlockAt,
    pub(super) span: PageSpan,
    /// Pages of the span that are in the swap space.
    pub(super) stored: u16,
    pub(super) result: FillResult,
    pub(super) place: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionLoad {
    pub(super) region: usize,
    pub(super) slot: usize,
    pub(super) touch: Touch,
}

/// State of a fault, kept while memory is freed for it.
pub(super) struct FaultCase {
    pub(super) page: u64,
    pub(super) touch: Touch,
    /// Set if the swap space has failed.
    pub(super) is_lost: bool,
    pub(super) can_shift: bool,
    pattern: Option<AccessPattern>,
    is_counted: bool,
}

impl FaultCase {
    pub(super) fn new(page: u64, touch: Touch, can_shift: bool) -> FaultCase {
        FaultCase { page, touch, is_lost: false, can_shift, pattern: None, is_counted: false }
    }
}

impl PageBook {
    pub(super) fn judge(&mut self, case: &mut FaultCase) -> FaultStep {
        self.statistics.faults += u64::from(!std::mem::replace(&mut case.is_counted, true));
        let at = BlockAt::of(case.page);
        let region = &mut self.regions[at.region];
        match region.state {
            PageState::Moving => {
                region.is_wanted = true;
                FaultStep::Wait
            }
            PageState::Whole if case.touch == Touch::Protected => {
                region.is_written = true;
                FaultStep::Allow(PageSpan::region(at.region))
            }
            PageState::Whole => FaultStep::Wake(PageSpan::page(case.page)),
            PageState::Pages => self.judge_page(at, case),
        }
    }

    fn judge_page(&mut self, at: BlockAt, case: &mut FaultCase) -> FaultStep {
        let page = PageSpan::page(case.page);
        let uses_blocks = self.streams.uses_blocks();
        let block = self.block(at);
        if block.is_busy {
            block.is_wanted = true;
            return FaultStep::Wait;
        }
        if block.here & page.mask() != 0 {
            if case.touch != Touch::Protected {
                return FaultStep::Wake(page);
            }
            let span = if uses_blocks { at.span() } else { page };
            block.written |= span.mask() & block.here;
            return FaultStep::Allow(span);
        }
        match self.regions[at.region].slot {
            // It was here a moment ago.
            _ if case.touch == Touch::Protected => FaultStep::Wake(page),
            Some(slot) => self.judge_slot(at.region, slot, case),
            None if case.is_lost => FaultStep::Lose(page),
            None => self.judge_missing(at, case),
        }
    }

    fn judge_slot(&mut self, region: usize, slot: usize, case: &mut FaultCase) -> FaultStep {
        if matches!(self.slots.get(slot), BufferSlot::Busy) {
            self.regions[region].is_wanted = true;
            return FaultStep::Wait;
        }
        debug_assert!(
            matches!(self.slots.get(slot), BufferSlot::Ready { region: of, .. } if of == region),
            "slot {slot} of region {region} is {:?}",
            self.slots.get(slot)
        );
        self.statistics.ahead += 1;
        self.regions[region].slot = None;
        self.regions[region].state = PageState::Moving;
        self.slots.set(slot, BufferSlot::Busy);
        if let AccessPattern::Region(direction) = self.streams.note(case.page) {
            self.go_ahead(region, direction);
        }
        let PageSpan { first, pages } = PageSpan::region(region);
        self.streams.filled(first, first + pages);
        self.latest = NeededMemory::Slot;
        FaultStep::Take(RegionLoad { region, slot, touch: case.touch })
    }

    fn judge_missing(&mut self, at: BlockAt, case: &mut FaultCase) -> FaultStep {
        let pattern = match case.pattern {
            Some(pattern) => pattern,
            None => *case.pattern.insert(self.streams.note(case.page)),
        };
        if let AccessPattern::Region(direction) = pattern
            && case.can_shift
            && self.regions[at.region].is_away()
        {
            self.latest = NeededMemory::Slot;
            let Some(slot) = self.claim_slot() else { return FaultStep::FreeMemory(NeededMemory::Slot) };
            self.regions[at.region].state = PageState::Moving;
            self.go_ahead(at.region, direction);
            let PageSpan { first, pages } = PageSpan::region(at.region);
            self.streams.filled(first, first + pages);
            return FaultStep::Load(RegionLoad { region: at.region, slot, touch: case.touch });
        }
        self.fill_pages(at, pattern, case)
    }

    fn fill_pages(&mut self, at: BlockAt, pattern: AccessPattern, case: &FaultCase) -> FaultStep {
        let free = self.free_pages();
        self.latest = NeededMemory::Pages;
        if free == 0 {
            return FaultStep::FreeMemory(NeededMemory::Pages);
        }
        let (first, end) = (at.first_page(), at.first_page() + BLOCK_PAGES);
        let wanted = match pattern {
            AccessPattern::Page => case.page..case.page + 1,
            AccessPattern::Block => first..end,
            AccessPattern::Onward(Direction::Forward) | AccessPattern::Region(Direction::Forward) => {
                case.page..end
            }
            AccessPattern::Onward(Direction::Backward) | AccessPattern::Region(Direction::Backward) => {
                first..case.page + 1
            }
        };
        let block = self.block(at);
        // The absent pages around the faulting one, as far as memory is free.
        let is_here = |page: &u64| block.here & PageSpan::page(*page).mask() != 0;
        let after = (case.page..wanted.end).find(is_here).unwrap_or(wanted.end);
        let after = after.min(case.page + free);
        let room = free - (after - case.page);
        let before = (wanted.start..case.page).rev().find(is_here).map_or(wanted.start, |page| page + 1);
        let before = before.max(case.page.saturating_sub(room));
        let span = PageSpan { first: before, pages: after - before };
        block.is_busy = true;
        let stored = block.stored & span.mask();
        debug_assert!(
            span.pages <= free && (span.first..span.first + span.pages).contains(&case.page),
            "{span:?} for page {} with {free} free pages",
            case.page
        );
        self.used_pages += span.pages;
        self.streams.filled(span.first, span.first + span.pages);
        let result = if case.touch == Touch::Write { FillResult::Writable } else { FillResult::Protected };
        FaultStep::Fill(Fill { at, span, stored, result, place: self.regions[at.region].place })
    }

    /// Takes a slot to read into, and marks it. Its content belongs to no region from then on.
    pub(super) fn claim_slot(&mut self) -> Option<usize> {
        if self.free_pages() >= REGION_PAGES
            && let Some(slot) = self.slots.empty()
        {
            self.used_pages += REGION_PAGES;
            debug_assert!(self.used_pages <= self.limit_pages, "{} of {}", self.used_pages, self.limit_pages);
            self.slots.set(slot, BufferSlot::Busy);
            return Some(slot);
        }
        self.reuse_slot()
    }

    /// Takes a slot that has a huge page, and marks it.
    pub(super) fn reuse_slot(&mut self) -> Option<usize> {
        let slot = self.slots.reusable()?;
        if let BufferSlot::Ready { region, .. } = self.slots.get(slot) {
            debug_assert_eq!(self.regions[region].slot, Some(slot), "the slot of region {region}");
            self.regions[region].slot = None;
        }
        self.slots.set(slot, BufferSlot::Busy);
        Some(slot)
    }

    /// Requests that the regions after this one are read ahead.
    fn go_ahead(&mut self, region: usize, direction: Direction) {
        let ahead = REGIONS_AHEAD.min(self.slots.len().saturating_sub(2));
        for away in 1..=ahead {
            let next = match direction {
                Direction::Forward => region.checked_add(away),
                Direction::Backward => region.checked_sub(away),
            };
            let Some(next) = next else { return };
            let Some(there) = self.regions.get(next) else { return };
            if there.is_away()
                && there.slot.is_none()
                && self.loads.len() < MAX_LOADS
                && !self.loads.contains(&next)
            {
                self.loads.push_back(next);
            }
        }
    }

    /// Takes the next region to read ahead, with a slot for it; both are marked. `None` if there is no such region; an
    /// error if no slot is free.
    pub(super) fn next_load(&mut self) -> Result<Option<RegionLoad>, NeededMemory> {
        while let Some(&region) = self.loads.front() {
            let there = &self.regions[region];
            let is_apt = there.is_away() && there.slot.is_none();
            if !is_apt || self.slots.ahead() + 2 > self.slots.len() {
                self.loads.pop_front();
                continue;
            }
            // Regions that were read ahead are not given up for regions further ahead.
            let has_slot =
                self.slots.spare() > 0 || (self.free_pages() >= REGION_PAGES && self.slots.empty().is_some());
            let Some(slot) = has_slot.then(|| self.claim_slot()).flatten() else {
                return Err(NeededMemory::Slot);
            };
            self.loads.pop_front();
            self.regions[region].slot = Some(slot);
            return Ok(Some(RegionLoad { region, slot, touch: Touch::Read }));
        }
        Ok(None)
    }

    /// Records that a region was read ahead, or that reading it has failed. Returns whether a thread waits for it.
    pub(super) fn is_ahead(&mut self, load: RegionLoad, is_read: bool) -> bool {
        debug_assert_eq!(self.regions[load.region].slot, Some(load.slot), "the slot of {load:?}");
        if is_read {
            self.slots.ready(load.slot, load.region, true);
        } else {
            self.slots.set(load.slot, BufferSlot::Free);
            self.regions[load.region].slot = None;
        }
        std::mem::take(&mut self.regions[load.region].is_wanted)
    }

    /// Records that a region was moved in, or that moving it has failed. Returns whether threads wait for it.
    pub(super) fn taken(&mut self, load: RegionLoad, result: FillResult) -> bool {
        let region = &mut self.regions[load.region];
        debug_assert_eq!(region.state, PageState::Moving, "region {} was moved in", load.region);
        debug_assert_eq!(self.slots.get(load.slot), BufferSlot::Busy, "the slot of {load:?}");
        region.is_written = result == FillResult::Writable;
        region.has_table = false;
        region.state = PageState::Whole;
        let is_wanted = std::mem::take(&mut region.is_wanted);
        if result == FillResult::Failed {
            region.state = PageState::Pages;
            self.slots.set(load.slot, BufferSlot::Free);
            return is_wanted;
        }
        self.slots.set(load.slot, BufferSlot::Empty);
        self.statistics.in_bytes += REGION_BYTES;
        self.came(Unit::Region(load.region));
        is_wanted
    }

    /// The protection with which a region is moved in after such an access.
    pub(super) fn protection_of(&self, touch: Touch) -> FillResult {
        let is_known = self.touching == Touching::OneAtATime && touch == Touch::Read;
        if is_known { FillResult::Protected } else { FillResult::Writable }
    }

    pub(super) fn statistics_now(&self) -> SwapStatistics {
        SwapStatistics { resident_bytes: self.used_pages * PAGE_BYTES, ..self.statistics }
    }
}
