//! Defines the units of paging: pages, blocks of pages, regions of blocks.

use sublet_fabric::faults::Extent;
use sublet_fabric::stretch::HUGE_BYTES;

pub(super) const PAGE_BYTES: u64 = 4096;
pub(super) const BLOCK_PAGES: u64 = 16;
pub(crate) const REGION_BYTES: u64 = HUGE_BYTES;
pub(super) const REGION_PAGES: u64 = REGION_BYTES / PAGE_BYTES;
pub(super) const REGION_BLOCKS: usize = (REGION_PAGES / BLOCK_PAGES) as usize;

/// Pages of the array that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageSpan {
    pub(super) first: u64,
    pub(super) pages: u64,
}

/// A block: its region, and its index in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockAt {
    pub(super) region: usize,
    pub(super) block: usize,
}

impl PageSpan {
    pub(super) fn page(page: u64) -> PageSpan {
        PageSpan { first: page, pages: 1 }
    }

    pub(super) fn region(region: usize) -> PageSpan {
        PageSpan { first: region as u64 * REGION_PAGES, pages: REGION_PAGES }
    }

    pub(super) fn extent(self) -> Extent {
        Extent { offset: self.first * PAGE_BYTES, len_bytes: self.pages * PAGE_BYTES }
    }

    /// A bit for each of its pages, for a span within one block.
    pub(super) fn mask(self) -> u16 {
        debug_assert!(
            self.first % BLOCK_PAGES + self.pages.min(BLOCK_PAGES) <= BLOCK_PAGES,
            "{self:?} is not of one block"
        );
        let ones = (((1u32 << self.pages.min(BLOCK_PAGES)) - 1) & 0xffff) as u16;
        ones << (self.first % BLOCK_PAGES)
    }
}

impl BlockAt {
    pub(super) fn of(page: u64) -> BlockAt {
        let block = (page % REGION_PAGES / BLOCK_PAGES) as usize;
        BlockAt { region: (page / REGION_PAGES) as usize, block }
    }

    pub(super) fn first_page(self) -> u64 {
        self.region as u64 * REGION_PAGES + self.block as u64 * BLOCK_PAGES
    }

    pub(super) fn span(self) -> PageSpan {
        PageSpan { first: self.first_page(), pages: BLOCK_PAGES }
    }

    /// The pages of the block whose bit in `mask` is set, in as few spans as possible.
    pub(super) fn spans(self, mask: u16) -> impl Iterator<Item = PageSpan> {
        let mut rest = u32::from(mask);
        let first = self.first_page();
        std::iter::from_fn(move || {
            (rest != 0).then(|| {
                let from = rest.trailing_zeros();
                let pages = (rest >> from).trailing_ones();
                rest &= !(((1u32 << pages) - 1) << from);
                PageSpan { first: first + u64::from(from), pages: u64::from(pages) }
            })
        })
    }
}
