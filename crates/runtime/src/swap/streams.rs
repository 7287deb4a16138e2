//! Recognizes a program's access pattern from its faults: sequential or random, by page or by block.

use super::units::{BLOCK_PAGES, REGION_PAGES};

/// Who goes through memory in order is told apart from so many others.
const STREAMS: usize = 16;
/// No page is near.
const NOWHERE: u64 = u64::MAX / 2;
/// Pages that may be left out by who goes on.
const SKIPPED: u64 = 4;
/// Pages in order after which whole regions come.
const LONG: u64 = 2 * BLOCK_PAGES;
/// How sure it is at most that blocks are used and not pages, or the other way round.
const SURE: i32 = 8;
/// Of so many blocks one comes by the page, to see whether the next page is used, too.
const PROBE: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Forward,
    Backward,
}

/// What a fault is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Nothing that is known: its page.
    Page,
    /// Blocks here and there: all of its block.
    Block,
    /// What goes on: its block from here on.
    Onward(Direction),
    /// What goes on for long: all of its region, and the next ones ahead.
    Region(Direction),
}

#[derive(Clone, Copy)]
struct Stream {
    /// The page after its last, and the one before its first.
    after: u64,
    before: u64,
    /// What came of it.
    pages: u64,
    direction: Option<Direction>,
    /// It began with one page.
    is_probe: bool,
}

/// See the [module](self).
pub(super) struct Streams {
    all: [Stream; STREAMS],
    oldest: usize,
    last: usize,
    /// Above 0: blocks are used.
    density: i32,
    since_probe: u32,
}

impl Streams {
    pub(super) fn new() -> Streams {
        let none = Stream { after: NOWHERE, before: NOWHERE, pages: 0, direction: None, is_probe: false };
        Streams { all: [none; STREAMS], oldest: 0, last: 0, density: 0, since_probe: 0 }
    }

    pub(super) fn uses_blocks(&self) -> bool {
        self.density > 0
    }

    /// Takes note of a fault on a page that is not here. What comes of it is to be told by [`Streams::filled`].
    pub(super) fn note(&mut self, page: u64) -> Pattern {
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
            Pattern::Region(direction)
        } else {
            Pattern::Onward(direction)
        }
    }

    /// What came of the last fault that was noted: pages from `first` up to `end`.
    pub(super) fn filled(&mut self, first: u64, end: u64) {
        debug_assert!(first < end, "pages {first} to {end}");
        let stream = &mut self.all[self.last];
        stream.pages = stream.pages.saturating_add(end - first);
        stream.after = end;
        stream.before = first.wrapping_sub(1);
    }

    fn begin(&mut self, page: u64) -> Pattern {
        let index = self.oldest;
        self.oldest = (self.oldest + 1) % STREAMS;
        self.last = index;
        if self.all[index].is_probe {
            // Among blocks probes are rare, so each of them says more.
            let lost = if self.uses_blocks() { 4 } else { 1 };
            self.density = (self.density - lost).max(-SURE);
        }
        self.since_probe += 1;
        let is_probe = !self.uses_blocks() || self.since_probe >= PROBE;
        if is_probe {
            self.since_probe = 0;
        }
        self.all[index] = Stream { after: page, before: page, pages: 0, direction: None, is_probe };
        if is_probe { Pattern::Page } else { Pattern::Block }
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

    /// What comes of a page, as the pager does it.
    fn touch(streams: &mut Streams, page: u64) -> Pattern {
        let pattern = streams.note(page);
        let block = page / BLOCK_PAGES * BLOCK_PAGES;
        match pattern {
            Pattern::Page => streams.filled(page, page + 1),
            Pattern::Block => streams.filled(block, block + BLOCK_PAGES),
            Pattern::Onward(Direction::Forward) => streams.filled(page, block + BLOCK_PAGES),
            Pattern::Onward(Direction::Backward) => streams.filled(block, page + 1),
            Pattern::Region(_) => {
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
    fn what_is_in_order_soon_comes_by_regions_forward_and_backward() {
        let mut streams = Streams::new();
        let mut page = 0;
        assert_eq!(touch(&mut streams, page), Pattern::Page);
        page += 1;
        while page < REGION_PAGES {
            assert_eq!(touch(&mut streams, page), Pattern::Onward(Direction::Forward));
            page = page / BLOCK_PAGES * BLOCK_PAGES + BLOCK_PAGES;
        }
        for region in 1..4 {
            assert_eq!(touch(&mut streams, region * REGION_PAGES), Pattern::Region(Direction::Forward));
        }
        let mut streams = Streams::new();
        let last = 5 * REGION_PAGES - 1;
        assert_eq!(touch(&mut streams, last), Pattern::Page);
        let mut page = last - 1;
        while page >= 4 * REGION_PAGES {
            assert_eq!(touch(&mut streams, page), Pattern::Onward(Direction::Backward), "{page}");
            page = page / BLOCK_PAGES * BLOCK_PAGES - 1;
        }
        for region in [4, 3, 2] {
            let last = region * REGION_PAGES - 1;
            assert_eq!(touch(&mut streams, last), Pattern::Region(Direction::Backward));
        }
    }

    #[test]
    fn pages_here_and_there_come_by_the_page_and_blocks_by_the_block() {
        let (mut streams, mut state) = (Streams::new(), 88_172_645_463_325_252);
        for _ in 0..1000 {
            let page = random(&mut state) % 1_000_000;
            assert_eq!(touch(&mut streams, page * 64), Pattern::Page);
        }
        let mut by_block = 0;
        for round in 0..1000 {
            let block = random(&mut state) % 1_000_000 * 4 * BLOCK_PAGES;
            match touch(&mut streams, block) {
                Pattern::Block => by_block += u32::from(round >= 100),
                Pattern::Page => drop(touch(&mut streams, block + 1)),
                other => panic!("{other:?}"),
            }
        }
        assert!(by_block > 800, "{by_block} of 900 blocks");
        let by_page =
            (0..1000).filter(|_| touch(&mut streams, random(&mut state) % 1_000_000 * 64) == Pattern::Page);
        assert!(by_page.count() > 800);
    }
}
