//! Pages memory in: reads them from the swap space, or moves them in from a slot.

use sublet_fabric::faults::Writing;
use sublet_proto::{Error, to_usize};

use super::book::FillResult;
use super::fault_handling::{Fill, RegionLoad};
use super::pager::Pager;
use super::units::{BlockAt, PAGE_BYTES, PageSpan, REGION_BLOCKS, REGION_BYTES, REGION_PAGES};

impl Pager {
    /// Puts pages of a block in. The buffer has the size of a block.
    pub(super) fn fill(&self, fill: &Fill, buffer: &mut [u8]) {
        let bytes = &mut buffer[..to_usize(fill.span.pages * PAGE_BYTES)];
        let writing = if fill.result == FillResult::Writable { Writing::Allowed } else { Writing::Faults };
        let done = self.read_pages(fill, bytes).and_then(|()| {
            let offset = fill.span.extent().offset;
            Ok(self.parts.faults.fill(&self.parts.array, offset, bytes, writing)?)
        });
        let result = if done.is_ok() { fill.result } else { FillResult::Failed };
        let is_wanted = self.settle(|book| book.filled(fill.at, fill.span, result));
        if let Err(error) = done {
            self.fail(error);
            // A thread that faults again finds the pages lost.
            self.wake(fill.span);
        }
        if is_wanted {
            self.wake(fill.at.span());
        }
    }

    fn read_pages(&self, fill: &Fill, bytes: &mut [u8]) -> Result<(), Error> {
        if fill.stored != fill.span.mask() {
            bytes.fill(0);
        }
        for span in fill.at.spans(fill.stored) {
            let from = to_usize((span.first - fill.span.first) * PAGE_BYTES);
            let into = &mut bytes[from..from + to_usize(span.extent().len_bytes)];
            self.parts.backing.read_at(place_of(span, fill.place), into)?;
        }
        Ok(())
    }

    pub(super) fn load_and_take(&self, load: RegionLoad) {
        match self.load(load) {
            Ok(()) => self.take(load),
            Err(error) => {
                self.fail(error);
                self.settle(|book| book.taken(load, FillResult::Failed));
                self.wake(PageSpan::region(load.region));
            }
        }
    }

    /// Reads a region ahead.
    pub(super) fn load_region(&self, load: RegionLoad) {
        let read = self.load(load);
        let is_read = read.is_ok();
        if let Err(error) = read {
            self.fail(error);
        }
        if self.settle(|book| book.is_ahead(load, is_read)) {
            self.wake(PageSpan::region(load.region));
        }
    }

    /// Reads a region into its slot.
    fn load(&self, load: RegionLoad) -> Result<(), Error> {
        let (stored, place) = {
            let mut pager_state = self.pager_state();
            let region = &mut pager_state.book.regions[load.region];
            let stored =
                region.blocks().map_or([0; REGION_BLOCKS], |blocks| blocks.map(|block| block.stored));
            (stored, region.place)
        };
        let Some(at) = self.parts.slots.pointer(load.slot as u64 * REGION_BYTES, REGION_BYTES) else {
            return Ok(());
        };
        // SAFETY: the slot is marked, so no other thread accesses it, and all of it is memory that may be written.
        let into = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), to_usize(REGION_BYTES)) };
        if stored.iter().all(|mask| *mask == u16::MAX) {
            return self.parts.backing.read_at(place_of(PageSpan::region(load.region), place), into);
        }
        into.fill(0);
        for (block, mask) in stored.into_iter().enumerate() {
            for span in (BlockAt { region: load.region, block }).spans(mask) {
                let from = to_usize(span.first % REGION_PAGES * PAGE_BYTES);
                let into = &mut into[from..from + to_usize(span.extent().len_bytes)];
                self.parts.backing.read_at(place_of(span, place), into)?;
            }
        }
        Ok(())
    }

    /// Moves a region in from its slot.
    pub(super) fn take(&self, load: RegionLoad) {
        let (result, has_table) = {
            let pager_state = self.pager_state();
            (pager_state.book.protection_of(load.touch), pager_state.book.regions[load.region].has_table)
        };
        let region = PageSpan::region(load.region);
        let done = self.move_in(load, has_table, result);
        let result = if done.is_ok() { result } else { FillResult::Failed };
        self.expect_done(done);
        self.settle(|book| book.taken(load, result));
        self.wake(region);
    }

    fn move_in(
        &self,
        load: RegionLoad,
        has_table: bool,
        result: FillResult,
    ) -> Result<(), sublet_fabric::FabricError> {
        let parts = &self.parts;
        let extent = PageSpan::region(load.region).extent();
        if has_table {
            // SAFETY: nothing is there; what goes is the table of its pages, so that a huge page fits.
            unsafe { parts.array.discard(extent.offset, extent.len_bytes) }?;
        }
        let from = (&parts.slots, load.slot as u64 * REGION_BYTES);
        parts.faults.shift((&parts.array, extent.offset), from, REGION_BYTES)?;
        if result == FillResult::Protected {
            parts.faults.protect(&parts.array, extent, Writing::Faults)?;
        }
        Ok(())
    }
}

/// Offset of pages of a region in the swap space.
pub(super) fn place_of(span: PageSpan, place: Option<u32>) -> u64 {
    u64::from(place.unwrap_or_default()) * REGION_BYTES + span.first % REGION_PAGES * PAGE_BYTES
}
