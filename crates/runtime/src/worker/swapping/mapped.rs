//! Knows the pages of the array that a program has mapped, and returns regions to the heap when none of their pages is.
//!
//! A program may unmap any pages of what it has mapped, as with the kernel's memory. Swapped memory is free in whole
//! regions only, so the pages of a region that are not mapped any more wait for the others.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::swap::REGION_BYTES;

/// Size of a page, in bytes.
pub(super) const PAGE_BYTES: u64 = 4096;
/// Pages of a region.
pub(super) const REGION_PAGES: u64 = REGION_BYTES / PAGE_BYTES;
/// Bits of a word.
const WORD_BITS: u64 = 64;
/// Words of a bit for each page of a region.
const WORDS: usize = (REGION_PAGES / WORD_BITS) as usize;

/// See the [module](self). Regions of which no page is mapped are not in it.
#[derive(Debug, Default)]
pub(super) struct MappedRegions {
    regions: BTreeMap<u64, RegionPages>,
}

/// A bit for each page of a region: whether it is mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RegionPages([u64; WORDS]);

impl MappedRegions {
    /// Maps pages. Pages are counted from the array's first one.
    pub(super) fn add(&mut self, pages: Range<u64>) {
        for (region, pages) in by_region(pages) {
            self.regions.entry(region).or_default().set(pages, true);
        }
    }

    /// Unmaps those of these pages that are mapped. Returns the regions of which no page is mapped any more.
    pub(super) fn remove(&mut self, pages: Range<u64>) -> Vec<Range<u64>> {
        let mut free: Vec<Range<u64>> = Vec::new();
        for (region, pages) in by_region(pages) {
            let Some(there) = self.regions.get_mut(&region) else { continue };
            there.set(pages, false);
            if *there != RegionPages::default() {
                continue;
            }
            self.regions.remove(&region);
            match free.last_mut() {
                Some(last) if last.end == region => last.end += 1,
                _ => free.push(region..region + 1),
            }
        }
        free
    }

    /// Whether all of these pages are mapped.
    pub(super) fn has(&self, pages: Range<u64>) -> bool {
        by_region(pages)
            .all(|(region, pages)| self.regions.get(&region).is_some_and(|there| there.has(pages)))
    }
}

impl RegionPages {
    fn set(&mut self, pages: Range<u64>, is_mapped: bool) {
        for (word, bits) in bits_of(pages) {
            let Some(word) = self.0.get_mut(word) else { continue };
            *word = if is_mapped { *word | bits } else { *word & !bits };
        }
    }

    fn has(&self, pages: Range<u64>) -> bool {
        bits_of(pages).all(|(word, bits)| self.0.get(word).is_some_and(|word| word & bits == bits))
    }
}

/// The regions that pages are in, each with its part of them, counted from the region's first page.
fn by_region(pages: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    let regions = pages.start / REGION_PAGES..pages.end.div_ceil(REGION_PAGES);
    regions.filter_map(move |region| {
        let first = region * REGION_PAGES;
        let part = pages.start.max(first) - first..pages.end.min(first + REGION_PAGES).saturating_sub(first);
        (!part.is_empty()).then_some((region, part))
    })
}

/// The words that have the bits of these pages, each with those bits.
fn bits_of(pages: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    (0..WORDS).filter_map(move |word| {
        let first = word as u64 * WORD_BITS;
        let part = pages.start.max(first)..pages.end.min(first + WORD_BITS);
        let below = |end: u64| u64::MAX.checked_shr(u32::try_from(WORD_BITS - end).unwrap_or(0)).unwrap_or(0);
        (!part.is_empty()).then(|| (word, below(part.end - first) & !below(part.start - first)))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGES: u64 = 3 * REGION_PAGES;

    proptest! {
        #[test]
        fn a_region_is_free_when_its_last_page_is_unmapped(
            acts in prop::collection::vec((any::<bool>(), 0..PAGES, 0..PAGES), 0..40),
        ) {
            let (mut mapped, mut model) = (MappedRegions::default(), vec![false; PAGES as usize]);
            let some = |model: &[bool], region: u64| {
                (region * REGION_PAGES..(region + 1) * REGION_PAGES).any(|page| model[page as usize])
            };
            for (is_added, one, other) in acts {
                let pages = one.min(other)..one.max(other);
                let before: Vec<bool> = (0..3).map(|region| some(&model, region)).collect();
                pages.clone().for_each(|page| model[page as usize] = is_added);
                if is_added {
                    mapped.add(pages.clone());
                    prop_assert!(mapped.has(pages));
                    continue;
                }
                let free: Vec<u64> = mapped.remove(pages).into_iter().flatten().collect();
                let emptied = |region: &u64| before[*region as usize] && !some(&model, *region);
                prop_assert_eq!(free, (0..3).filter(emptied).collect::<Vec<_>>());
            }
            for page in 0..PAGES {
                prop_assert_eq!(mapped.has(page..page + 1), model[page as usize], "page {}", page);
            }
        }
    }

    #[test]
    fn free_regions_that_adjoin_are_one_range() {
        let mut mapped = MappedRegions::default();
        mapped.add(0..2 * REGION_PAGES + 5);
        assert!(mapped.has(0..2 * REGION_PAGES + 5) && !mapped.has(0..2 * REGION_PAGES + 6));
        assert!(mapped.remove(1..REGION_PAGES).is_empty());
        let free = mapped.remove(0..2 * REGION_PAGES);
        assert!(free.len() == 1 && free[0] == (0..2), "{free:?}");
        let free = mapped.remove(0..PAGES);
        assert!(free.len() == 1 && free[0] == (2..3), "{free:?}");
        assert!(mapped.remove(0..PAGES).is_empty() && mapped.has(7..7));
    }
}
