//! Recognizes a program's access pattern from its faults: sequential or random, by page or by block.

use super::units::{BLOCK_PAGES, REGION_PAGES};

/// Number of sequential accesses that are distinguished.
const STREAMS: usize = 16;
/// A page number that is close to no page.
const NOWHERE: u64 = u64::MAX / 2;
/// Largest number of pages that a sequential access may skip.
const SKIPPED: u64 = 4;
/// Number of pages in sequence after which whole regions are paged in.
const LONG: u64 = 2 * BLOCK_PAGES;
/// Largest confidence that blocks are used and not pages, or the other way round.
const SURE: i32 = 8;
/// Number of blocks of which one is paged in by the page, to check whether the next page is used, too.
const PROBE: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Forward,
    Backward,
}

/// Access pattern that a fault is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessPattern {
    /// Unknown: the page is put in.
    Page,
    /// Random blocks: the whole block is put in.
    Block,
    /// Sequential: the rest of the block is put in, from the page on.
    Onward(Direction),
    /// Sequential for long: the whole region is put in, and the next ones are read ahead.
    Region(Direction),
}

#[derive(Clone, Copy)]
struct Stream {
    /// The page after its last, and the one before its first.
    after: u64,
    before: u64,
    /// Number of pages that were put in for it.
    pages: u64,
    direction: Option<Direction>,
    /// Set if the stream began with a single page, to check whether blocks are used.
    is_probe: bool,
}

/// See the [module](self).
pub(super) struct Streams {
    all: [Stream; STREAMS],
    oldest: usize,
    last: usize,
    /// Confidence that blocks are used, if above 0.
    density: i32,
    since_probe: u32,
}

impl Streams {
    pub(super) fn new() -> Streams {
        let none = Stream { after: NOWHERE, before: NOWHERE, pages: 0, direction: None, is_probe: false };
        Streams { all: [none; STREAMS], oldest: 0, last: 0, density: 0, since_probe: 0 }
    }

    pub(super) fn uses_blocks(&self) -> bool {
        debug_assert!(self.density.abs() <= SURE, "a confidence of {}, at most {SURE}", self.density);
        self.density > 0
    }

    /// Records a fault on an absent page. The caller must report the pages that it put in with [`Streams::filled`].
    pub(super) fn note(&mut self, page: u64) -> AccessPattern {
        let known = self.all.iter().enumerate().find_map(|(index, one)| Some((index, one.goes_on(page)?)));
        let Some((index, direction)) = known else { return self.begin(page) };
        self.last = index;
        let stream = &mut self.all[index];
        stream.direction = Some(direction);
        if std::mem::take(&mut stream.is_probe) {
            self.density = (self.density + 1).min(SURE);
        }
        let in_region = page % REGION_PAGES;
        let is_at_edge = match direction {
            Direction::Forward => in_region <= SKIPPED,
            Direction::Backward => in_region >= REGION_PAGES - 1 - SKIPPED,
        };
        if stream.pages >= LONG && is_at_edge {
            AccessPattern::Region(direction)
        } else {
            AccessPattern::Onward(direction)
        }
    }

    /// Records the pages that were put in for the last noted fault: from `first` up to `end`.
    pub(super) fn filled(&mut self, first: u64, end: u64) {
        debug_assert!(first < end, "pages {first} to {end}");
        let stream = &mut self.all[self.last];
        stream.pages = stream.pages.saturating_add(end - first);
        stream.after = end;
        stream.before = first.wrapping_sub(1);
    }

    fn begin(&mut self, page: u64) -> AccessPattern {
        let index = self.oldest;
        self.oldest = (self.oldest + 1) % STREAMS;
        self.last = index;
        if self.all[index].is_probe {
            // Among blocks probes are rare, so each of them has more weight.
            let lost = if self.uses_blocks() { 4 } else { 1 };
            self.density = (self.density - lost).max(-SURE);
        }
        self.since_probe += 1;
        let is_probe = !self.uses_blocks() || self.since_probe >= PROBE;
        if is_probe {
            self.since_probe = 0;
        }
        self.all[index] = Stream { after: page, before: page, pages: 0, direction: None, is_probe };
        if is_probe { AccessPattern::Page } else { AccessPattern::Block }
    }
}

impl Stream {
    fn goes_on(&self, page: u64) -> Option<Direction> {
        let is_forward = self.direction != Some(Direction::Backward);
        let is_backward = self.direction != Some(Direction::Forward);
        if is_forward && page.wrapping_sub(self.after) < SKIPPED {
            Some(Direction::Forward)
        } else if is_backward && self.before.wrapping_sub(page) < SKIPPED {
            Some(Direction::Backward)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes a fault and reports the pages that the pager would put in.
    fn touch(streams: &mut Streams, page: u64) -> AccessPattern {
        let pattern = streams.note(page);
        let block = page / BLOCK_PAGES * BLOCK_PAGES;
        match pattern {
            AccessPattern::Page => streams.filled(page, page + 1),
            AccessPattern::Block => streams.filled(block, block + BLOCK_PAGES),
            AccessPattern::Onward(Direction::Forward) => streams.filled(page, block + BLOCK_PAGES),
            AccessPattern::Onward(Direction::Backward) => streams.filled(block, page + 1),
            AccessPattern::Region(_) => {
                let region = page / REGION_PAGES * REGION_PAGES;
                streams.filled(region, region + REGION_PAGES);
            }
        }
        pattern
    }

    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn sequential_accesses_soon_page_by_regions_in_both_directions() {
        let mut streams = Streams::new();
        let mut page = 0;
        assert_eq!(touch(&mut streams, page), AccessPattern::Page);
        page += 1;
        while page < REGION_PAGES {
            assert_eq!(touch(&mut streams, page), AccessPattern::Onward(Direction::Forward));
            page = page / BLOCK_PAGES * BLOCK_PAGES + BLOCK_PAGES;
        }
        for region in 1..4 {
            assert_eq!(touch(&mut streams, region * REGION_PAGES), AccessPattern::Region(Direction::Forward));
        }
        let mut streams = Streams::new();
        let last = 5 * REGION_PAGES - 1;
        assert_eq!(touch(&mut streams, last), AccessPattern::Page);
        let mut page = last - 1;
        while page >= 4 * REGION_PAGES {
            assert_eq!(touch(&mut streams, page), AccessPattern::Onward(Direction::Backward), "{page}");
            page = page / BLOCK_PAGES * BLOCK_PAGES - 1;
        }
        for region in [4, 3, 2] {
            let last = region * REGION_PAGES - 1;
            assert_eq!(touch(&mut streams, last), AccessPattern::Region(Direction::Backward));
        }
    }

    #[test]
    fn random_pages_come_singly_and_random_blocks_whole() {
        let (mut streams, mut state) = (Streams::new(), 88_172_645_463_325_252);
        for _ in 0..1000 {
            let page = random(&mut state) % 1_000_000;
            assert_eq!(touch(&mut streams, page * 64), AccessPattern::Page);
        }
        let mut by_block = 0;
        for round in 0..1000 {
            let block = random(&mut state) % 1_000_000 * 4 * BLOCK_PAGES;
            match touch(&mut streams, block) {
                AccessPattern::Block => by_block += u32::from(round >= 100),
                AccessPattern::Page => drop(touch(&mut streams, block + 1)),
                other => panic!("{other:?}"),
            }
        }
        assert!(by_block > 800, "{by_block} of 900 blocks");
        let by_page = (0..1000)
            .filter(|_| touch(&mut streams, random(&mut state) % 1_000_000 * 64) == AccessPattern::Page);
        assert!(by_page.count() > 800);
    }
}
