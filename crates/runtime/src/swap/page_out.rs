//! Evicts pages: moves them out of the array, so that no thread writes them, writes them to the swap space if
//! they changed, and returns their memory to the machine.

use sublet_fabric::FabricError;
use sublet_fabric::faults::{Extent, Writing};
use sublet_fabric::stretch::Stretch;
use sublet_proto::{Error, to_usize};

use super::eviction::{EvictedBlock, EvictedRegion, EvictionResult};
use super::page_in::place_of;
use super::pager::Pager;
use super::units::{PAGE_BYTES, PageSpan, REGION_BYTES};

impl Pager {
    pub(super) fn let_region_go(&self, leaving: EvictedRegion) {
        let gone = self.move_region_out(&leaving);
        if self.settle(|book| book.region_went(leaving, gone)) {
            self.wake(PageSpan::region(leaving.region));
        }
        if gone == EvictionResult::Stayed {
            self.wait_a_moment(self.pager_state());
        }
    }

    fn move_region_out(&self, leaving: &EvictedRegion) -> EvictionResult {
        let parts = &self.parts;
        let at = PageSpan::region(leaving.region).extent().offset;
        let slot = leaving.slot as u64 * REGION_BYTES;
        // The kernel does not move pages that it or a device has pinned: these stay for another round.
        if parts.faults.shift((&parts.slots, slot), (&parts.array, at), REGION_BYTES).is_err() {
            return EvictionResult::Stayed;
        }
        match self.store_region(leaving, slot) {
            Ok(gone) => gone,
            Err(error) => {
                self.fail(error);
                self.expect_done(parts.faults.shift((&parts.array, at), (&parts.slots, slot), REGION_BYTES));
                EvictionResult::Stayed
            }
        }
    }

    fn store_region(&self, leaving: &EvictedRegion, slot: u64) -> Result<EvictionResult, Error> {
        if !leaving.is_written {
            return Ok(EvictionResult::Stored);
        }
        let bytes = bytes_of(&self.parts.slots, Extent { offset: slot, len_bytes: REGION_BYTES });
        if !leaving.is_stored && is_zero(bytes) {
            return Ok(EvictionResult::Zero);
        }
        self.store(PageSpan::region(leaving.region), bytes)?;
        Ok(EvictionResult::Stored)
    }

    /// Writes pages of one region to the swap space.
    fn store(&self, span: PageSpan, bytes: &[u8]) -> Result<(), Error> {
        let place = self.pager_state().book.place((span.first * PAGE_BYTES / REGION_BYTES) as usize);
        self.parts.backing.ensure((u64::from(place) + 1) * REGION_BYTES)?;
        self.parts.backing.write_at(place_of(span, Some(place)), bytes)
    }

    pub(super) fn let_blocks_go(&self, blocks: &[EvictedBlock]) {
        let went: Vec<Option<u16>> = blocks.iter().map(|block| self.store_block(block)).collect();
        let (mut of_array, mut of_aside) = (Vec::new(), Vec::new());
        for (block, _) in blocks.iter().zip(&went).filter(|(_, stored)| stored.is_some()) {
            let from = if self.is_moved_aside(block) { &mut of_aside } else { &mut of_array };
            from.extend(block.at.spans(block.here).map(PageSpan::extent));
        }
        let parts = &self.parts;
        // SAFETY: a thread that touches these pages of the array faults, and gets new ones when the block is no longer
        // marked. No thread accesses the pages aside.
        let done = unsafe {
            parts
                .faults
                .discard(&parts.array, &of_array)
                .and_then(|()| parts.faults.discard(&parts.aside, &of_aside))
        };
        self.expect_done(done);
        let wanted: Vec<bool> = self.settle(|book| {
            blocks.iter().zip(&went).map(|(block, stored)| book.block_went(block, *stored)).collect()
        });
        for (block, _) in blocks.iter().zip(wanted).filter(|(_, is_wanted)| *is_wanted) {
            self.wake(block.at.span());
        }
        if went.iter().all(Option::is_none) {
            self.wait_a_moment(self.pager_state());
        }
    }

    fn is_moved_aside(&self, block: &EvictedBlock) -> bool {
        block.written != 0 && self.parts.faults.can_shift()
    }

    /// Stores a block's pages. Returns those that were written to the swap space; `None` if the block stays.
    fn store_block(&self, block: &EvictedBlock) -> Option<u16> {
        if block.written == 0 {
            return Some(0);
        }
        if self.is_lost() || self.hold_still(block).is_err() {
            return None;
        }
        let from = if self.is_moved_aside(block) { &self.parts.aside } else { &self.parts.array };
        let mut stored = 0;
        for span in block.at.spans(block.written) {
            let bytes = bytes_of(from, span.extent());
            if span.mask() & block.stored == 0 && is_zero(bytes) {
                continue;
            }
            if let Err(error) = self.store(span, bytes) {
                self.fail(error);
                self.expect_done(self.let_be(block));
                return None;
            }
            stored |= span.mask();
        }
        Some(stored)
    }

    /// Ensures that no thread writes the block's pages: moves them aside, or protects them.
    fn hold_still(&self, block: &EvictedBlock) -> Result<(), FabricError> {
        let (parts, Extent { offset, len_bytes }) = (&self.parts, block.at.span().extent());
        if self.is_moved_aside(block) {
            return parts.faults.shift((&parts.aside, offset), (&parts.array, offset), len_bytes);
        }
        parts.faults.protect(&parts.array, block.at.span().extent(), Writing::Faults)
    }

    /// Restores the block's pages after a failure.
    fn let_be(&self, block: &EvictedBlock) -> Result<(), FabricError> {
        let (parts, Extent { offset, len_bytes }) = (&self.parts, block.at.span().extent());
        if self.is_moved_aside(block) {
            parts.faults.shift((&parts.array, offset), (&parts.aside, offset), len_bytes)?;
        }
        // All of it counts as written from now on.
        parts.faults.protect(&parts.array, block.at.span().extent(), Writing::Allowed)
    }

    /// Gives a slot's huge page back to the machine.
    pub(super) fn empty_slot(&self, slot: usize) {
        // SAFETY: the slot is marked, and what is in it is of no use any more.
        let done = unsafe { self.parts.slots.discard(slot as u64 * REGION_BYTES, REGION_BYTES) };
        self.expect_done(done);
        self.settle(|book| book.slot_emptied(slot));
    }
}

/// The bytes of pages that are present and that no thread writes.
fn bytes_of(stretch: &Stretch, extent: Extent) -> &[u8] {
    match stretch.pointer(extent.offset, extent.len_bytes) {
        // SAFETY: the pages are within the range. They were moved to where no other thread accesses them, or protected,
        // and their unit is marked.
        Some(at) => unsafe { std::slice::from_raw_parts(at.as_ptr(), to_usize(extent.len_bytes)) },
        None => &[],
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |all, byte| all | byte) == 0
}
