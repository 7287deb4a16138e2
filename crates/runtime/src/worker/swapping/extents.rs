//! Allocates whole regions of the array, first fit. The data structures here lie outside of the array.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::swap::REGION_BYTES;

/// See the [module](self). Both maps have the first region and the number of regions: of each piece, and of each free
/// range.
#[derive(Debug)]
pub(super) struct Extents {
    /// Number of the array's first region, counted from address 0, which determines alignment.
    origin: u64,
    taken: BTreeMap<u64, u64>,
    /// Free ranges, no two of which adjoin.
    free: BTreeMap<u64, u64>,
}

impl Extents {
    /// Creates an allocator of `regions` free regions.
    pub(super) fn new(origin: u64, regions: u64) -> Extents {
        let free = if regions > 0 { BTreeMap::from([(0, regions)]) } else { BTreeMap::new() };
        Extents { origin, taken: BTreeMap::new(), free }
    }

    /// Allocates a piece of `regions` regions, at an address that is a multiple of `align_bytes`, a power of two.
    pub(super) fn take(&mut self, regions: u64, align_bytes: u64) -> Option<u64> {
        let step = align_bytes.div_ceil(REGION_BYTES).max(1);
        let begin = |first: u64| Some((self.origin + first).checked_next_multiple_of(step)? - self.origin);
        let fits = |(&first, &count): (&u64, &u64)| {
            let piece = begin(first)?;
            (piece.checked_add(regions)? <= first + count).then_some((first, count, piece))
        };
        let (first, count, piece) = self.free.iter().find_map(fits)?;
        self.free.remove(&first);
        self.put(first..piece);
        self.put(piece + regions..first + count);
        let before = self.taken.insert(piece, regions);
        debug_assert!(before.is_none(), "the regions at {piece} are taken twice: {before:?}");
        Some(piece)
    }

    /// Number of regions of the piece that begins there.
    pub(super) fn len_of(&self, piece: u64) -> Option<u64> {
        self.taken.get(&piece).copied()
    }

    /// Shortens a piece to `left` regions. The others are neither free nor allocated until they are attached.
    pub(super) fn detach(&mut self, piece: u64, left: u64) -> Option<Range<u64>> {
        let count = self.taken.remove(&piece)?;
        if left > 0 {
            self.taken.insert(piece, left.min(count));
        }
        Some(piece + left.min(count)..piece + count)
    }

    /// Makes detached regions free.
    pub(super) fn attach(&mut self, regions: Range<u64>) {
        debug_assert!(
            self.free.range(..regions.end).next_back().is_none_or(|(at, count)| at + count <= regions.start),
            "{regions:?} are free already: {:?}",
            self.free
        );
        let before = self.free.range(..regions.start).next_back().map(|(&first, &count)| (first, count));
        let (mut first, mut end) = (regions.start, regions.end);
        if let Some((at, count)) = before.filter(|&(at, count)| at + count == first) {
            self.free.remove(&at);
            (first, end) = (at, end.max(at + count));
        }
        if let Some(count) = self.free.remove(&end) {
            end += count;
        }
        self.put(first..end);
    }

    /// Makes a piece longer, if the regions behind it are free.
    pub(super) fn extend(&mut self, piece: u64, regions: u64) -> bool {
        let Some(count) = self.len_of(piece) else { return false };
        let (end, more) = (piece + count, regions.saturating_sub(count));
        if more == 0 {
            return true;
        }
        let Some(behind) = self.free.get(&end).copied().filter(|behind| *behind >= more) else {
            return false;
        };
        self.free.remove(&end);
        self.put(end + more..end + behind);
        self.taken.insert(piece, regions);
        true
    }

    fn put(&mut self, free: Range<u64>) {
        if !free.is_empty() {
            debug_assert!(
                !self.free.contains_key(&free.end),
                "{free:?} adjoin free regions: {:?}",
                self.free
            );
            self.free.insert(free.start, free.end - free.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REGIONS: u64 = 40;
    /// An origin that is no multiple of the requested alignments.
    const ORIGIN: u64 = 1003;

    #[derive(Clone, Debug)]
    enum Act {
        Take { regions: u64, align: u32 },
        Give(usize),
        Resize(usize, u64),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            3 => (1u64..12, 0u32..5).prop_map(|(regions, align)| Act::Take { regions, align }),
            2 => any::<usize>().prop_map(Act::Give),
            1 => (any::<usize>(), 1u64..12).prop_map(|(piece, regions)| Act::Resize(piece, regions)),
        ]
    }

    /// Whose each region is: nobody's, or a piece's.
    struct Model {
        owners: Vec<Option<u64>>,
        pieces: Vec<u64>,
    }

    impl Model {
        fn fits(&self, regions: u64, step: u64) -> Option<u64> {
            let is_free = |at: u64| self.owners[at as usize].is_none();
            let fits = |at: &u64| (ORIGIN + at).is_multiple_of(step) && (*at..at + regions).all(is_free);
            (0..=REGIONS.checked_sub(regions)?).find(fits)
        }

        fn set(&mut self, regions: Range<u64>, owner: Option<u64>) {
            regions.for_each(|at| self.owners[at as usize] = owner);
        }

        fn len_of(&self, piece: u64) -> u64 {
            self.owners.iter().filter(|owner| **owner == Some(piece)).count() as u64
        }
    }

    proptest! {
        #[test]
        fn pieces_are_the_first_that_fit_and_nobody_elses(acts in prop::collection::vec(act(), 0..200)) {
            let mut extents = Extents::new(ORIGIN, REGIONS);
            let mut model = Model { owners: vec![None; REGIONS as usize], pieces: Vec::new() };
            for act in acts {
                match act {
                    Act::Take { regions, align } => {
                        let expected = model.fits(regions, 1 << align);
                        prop_assert_eq!(extents.take(regions, REGION_BYTES << align), expected);
                        if let Some(piece) = expected {
                            model.set(piece..piece + regions, Some(piece));
                            model.pieces.push(piece);
                        }
                    }
                    Act::Give(_) | Act::Resize(..) if model.pieces.is_empty() => {}
                    Act::Give(which) => {
                        let piece = model.pieces.swap_remove(which % model.pieces.len());
                        let len = model.len_of(piece);
                        prop_assert_eq!(extents.detach(piece, 0), Some(piece..piece + len));
                        prop_assert_eq!(extents.detach(piece, 0), None, "it is given twice");
                        extents.attach(piece..piece + len);
                        model.set(piece..piece + len, None);
                    }
                    Act::Resize(which, regions) => {
                        let piece = model.pieces[which % model.pieces.len()];
                        let len = model.len_of(piece);
                        if regions < len {
                            prop_assert_eq!(extents.detach(piece, regions), Some(piece + regions..piece + len));
                            extents.attach(piece + regions..piece + len);
                            model.set(piece + regions..piece + len, None);
                        } else {
                            let end = piece + regions;
                            let behind = piece + len..end;
                            let is_free = |at: u64| model.owners.get(at as usize) == Some(&None);
                            let fits = behind.clone().all(is_free);
                            prop_assert_eq!(extents.extend(piece, regions), fits);
                            if fits {
                                model.set(behind, Some(piece));
                            }
                        }
                    }
                }
                for &piece in &model.pieces {
                    prop_assert_eq!(extents.len_of(piece), Some(model.len_of(piece)));
                }
                let free: u64 = extents.free.values().sum();
                prop_assert_eq!(free as usize, model.owners.iter().filter(|owner| owner.is_none()).count());
                let ends = extents.free.iter().map(|(first, count)| first + count);
                prop_assert!(ends.clone().all(|end| !extents.free.contains_key(&end)), "{extents:?}");
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut extents = Extents::new(ORIGIN, REGIONS);
        assert_eq!(extents.take(REGIONS + 1, 1), None);
        assert_eq!(extents.take(u64::MAX, 1), None);
        assert_eq!(extents.take(1, 1 << 63), None);
        assert!(extents.len_of(7).is_none() && !extents.extend(7, 1));
        assert_eq!(Extents::new(ORIGIN, 0).take(1, 1), None);
    }
}
