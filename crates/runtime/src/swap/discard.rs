//! Discards pages that are no longer needed: returns them to the machine without writing them.

use std::ops::Range;

use super::book::{PageBlock, PageBook, PageState, Unit, UnitPriority};
use super::pager::Pager;
use super::slots::BufferSlot;
use super::units::{PageSpan, REGION_BYTES, REGION_PAGES};

/// Next step for a region that is to be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forget {
    /// No page of it is resident, and it is forgotten.
    Done,
    /// The region is marked: this number of pages must be returned to the machine.
    Discard(u64),
    /// Another thread works on the region.
    Wait,
}

/// A region that is marked, and its number of resident pages.
#[derive(Clone, Copy)]
struct MarkedRegion {
    region: usize,
    pages: u64,
}

impl Pager {
    /// Discards the content of regions, which are zero afterwards.
    pub(super) fn forget(&self, regions: Range<usize>) {
        let mut rest: Vec<usize> = regions.collect();
        while !rest.is_empty() {
            let mut pager_state = self.pager_state();
            let mut marked = Vec::new();
            rest.retain(|&region| {
                let forget = pager_state.book.begin_to_forget(region);
                if let Forget::Discard(pages) = forget {
                    marked.push(MarkedRegion { region, pages });
                }
                forget == Forget::Wait
            });
            pager_state.book.leave_queue(&marked);
            if marked.is_empty() {
                if !rest.is_empty() {
                    self.wait_a_moment(pager_state);
                }
                continue;
            }
            drop(pager_state);
            self.discard(&marked);
        }
    }

    fn discard(&self, marked: &[MarkedRegion]) {
        for run in marked.chunk_by(|one, next| one.region + 1 == next.region) {
            let (offset, len_bytes) = (run[0].region as u64 * REGION_BYTES, run.len() as u64 * REGION_BYTES);
            // SAFETY: the content is of no further use. A thread that touches it faults, and gets new pages.
            self.expect_done(unsafe { self.parts.array.discard(offset, len_bytes) });
        }
        let wanted: Vec<bool> =
            self.settle(|book| marked.iter().map(|&leaving| book.forgotten(leaving)).collect());
        for (leaving, _) in marked.iter().zip(wanted).filter(|(_, is_wanted)| *is_wanted) {
            self.wake(PageSpan::region(leaving.region));
        }
    }
}

impl PageBook {
    fn begin_to_forget(&mut self, region: usize) -> Forget {
        let there = &mut self.regions[region];
        let is_busy = there.blocks().is_some_and(|blocks| blocks.iter().any(|block| block.is_busy));
        if there.state == PageState::Moving || is_busy {
            return Forget::Wait;
        }
        if let Some(slot) = there.slot {
            if self.slots.get(slot) == BufferSlot::Busy {
                return Forget::Wait;
            }
            there.slot = None;
            self.slots.set(slot, BufferSlot::Free);
        }
        self.loads.retain(|loading| *loading != region);
        if self.regions[region].is_away() {
            self.forgotten(MarkedRegion { region, pages: 0 });
            return Forget::Done;
        }
        let there = &mut self.regions[region];
        let pages = |block: &PageBlock| u64::from(block.here.count_ones());
        let pages = match there.state {
            PageState::Whole => REGION_PAGES,
            PageState::Pages | PageState::Moving => {
                there.blocks().map_or(0, |blocks| blocks.iter().map(pages).sum())
            }
        };
        there.state = PageState::Moving;
        Forget::Discard(pages)
    }

    /// Removes marked regions, which are sorted, from the order of eviction.
    fn leave_queue(&mut self, marked: &[MarkedRegion]) {
        if marked.is_empty() {
            return;
        }
        self.queue.retain(|unit| {
            let region = match unit {
                Unit::Region(region) => region,
                Unit::Block(at) => &at.region,
            };
            marked.binary_search_by_key(region, |leaving| leaving.region).is_err()
        });
    }

    /// Records that a region has no resident pages and no stored ones. Returns whether a thread waits for it.
    fn forgotten(&mut self, leaving: MarkedRegion) -> bool {
        self.used_pages -= leaving.pages;
        let there = &mut self.regions[leaving.region];
        there.state = PageState::Pages;
        there.is_written = false;
        there.standing = UnitPriority::default();
        there.blocks = None;
        self.free_places.extend(there.place.take());
        std::mem::take(&mut there.is_wanted)
    }
}
