//! Keys ordered by rank: nodes by their free resources, and racks by theirs. Finding a rank is a scan of bits, so a
//! decision costs the same with ten keys or ten thousand.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::chance::Chance;

/// Most keys of a rank that are examined for a further criterion before the search goes to the next rank.
const LOOKS_PER_RANK: usize = 64;
const WORD_BITS: usize = u64::BITS as usize;

/// Position of a key: its rank, and the index there.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankPosition {
    pub(super) rank: u32,
    index: u32,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct RankIndex<K> {
    keys: Vec<Vec<K>>,
    /// A bit for each rank that has keys.
    occupied: Vec<u64>,
}

impl<K> Default for RankIndex<K> {
    fn default() -> RankIndex<K> {
        RankIndex { keys: Vec::new(), occupied: Vec::new() }
    }
}

impl<K: Copy> RankIndex<K> {
    pub(super) fn insert(&mut self, rank: u32, key: K) -> RankPosition {
        let at = rank as usize;
        if self.keys.len() <= at {
            self.keys.resize_with(at + 1, Vec::new);
            self.occupied.resize(at / WORD_BITS + 1, 0);
        }
        self.occupied[at / WORD_BITS] |= 1 << (at % WORD_BITS);
        self.keys[at].push(key);
        #[expect(clippy::cast_possible_truncation, reason = "there are fewer nodes and racks")]
        let index = (self.keys[at].len() - 1) as u32;
        RankPosition { rank, index }
    }

    /// Takes a key out. Returns the key that has moved to its index, if any.
    pub(super) fn remove(&mut self, place: RankPosition) -> Option<K> {
        let rank = place.rank as usize;
        let keys = self.keys.get_mut(rank)?;
        debug_assert!((place.index as usize) < keys.len(), "{place:?} is beyond {} keys", keys.len());
        keys.swap_remove(place.index as usize);
        if keys.is_empty() {
            self.occupied[rank / WORD_BITS] &= !(1 << (rank % WORD_BITS));
        }
        keys.get(place.index as usize).copied()
    }

    pub(super) fn at(&self, place: RankPosition) -> Option<K> {
        self.keys.get(place.rank as usize)?.get(place.index as usize).copied()
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn len(&self) -> usize {
        self.keys.iter().map(Vec::len).sum()
    }

    /// The highest rank that has keys.
    pub(super) fn highest(&self) -> Option<u32> {
        let at = self.occupied.iter().rposition(|word| *word != 0)?;
        #[expect(clippy::cast_possible_truncation, reason = "`insert` takes ranks of 32 bits")]
        let rank = (at * WORD_BITS) as u32 + self.occupied[at].ilog2();
        debug_assert!(!self.keys[rank as usize].is_empty(), "rank {rank} counts as occupied, and is empty");
        Some(rank)
    }

    /// The first key that fits of the lowest rank, from this one upwards, that has one. Which one of that rank is chance.
    pub(super) fn first_fit(&self, from: u32, chance: &mut Chance, fits: impl Fn(K) -> bool) -> Option<K> {
        for rank in self.upwards(from) {
            let first = chance.below(rank.len());
            let (after, before) = (rank[first..].iter(), rank[..first].iter());
            if let Some(&key) = after.chain(before).take(LOOKS_PER_RANK).find(|key| fits(**key)) {
                return Some(key);
            }
        }
        None
    }

    /// Ranks with keys, from this one upwards.
    fn upwards(&self, from: u32) -> impl Iterator<Item = &Vec<K>> {
        let first = from as usize / WORD_BITS;
        let words = (first..).zip(self.occupied.iter().skip(first));
        words.flat_map(move |(at, &word)| {
            let word = if at == first { word & (u64::MAX << (from as usize % WORD_BITS)) } else { word };
            Bits(word).map(move |bit| &self.keys[at * WORD_BITS + bit])
        })
    }

    /// Returns keys from the highest rank downwards, each with its rank. Those of one rank begin at an index that
    /// follows from `first`.
    pub(super) fn downwards(&self, first: usize) -> impl Iterator<Item = (u32, K)> + '_ {
        self.keys.iter().enumerate().rev().flat_map(move |(rank, keys)| {
            let (before, after) = keys.split_at(first % keys.len().max(1));
            #[expect(clippy::cast_possible_truncation, reason = "`insert` takes ranks of 32 bits")]
            let rank = rank as u32;
            after.iter().chain(before).map(move |&key| (rank, key))
        })
    }
}

/// Merges several lists from the highest rank downwards; within a rank the keys of the first list come first.
pub(super) fn merged<'keys, K: Copy + Ord + 'keys>(
    lists: impl Iterator<Item = &'keys RankIndex<K>>,
) -> impl Iterator<Item = K> + 'keys {
    let mut lists: Vec<_> = lists.map(|list| list.downwards(0)).collect();
    let count = lists.len();
    let mut next_of = move |at: usize| lists[at].next().map(|(rank, key)| (rank, Reverse(at), key));
    let mut next: BinaryHeap<_> = (0..count).filter_map(&mut next_of).collect();
    std::iter::from_fn(move || {
        let (_, Reverse(at), key) = next.pop()?;
        next.extend(next_of(at));
        Some(key)
    })
}

/// The positions of a word's bits, the lowest first.
struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros() as usize;
        (self.0 != 0).then(|| {
            self.0 &= self.0 - 1;
            bit
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(keys: &[(u32, u32)]) -> RankIndex<u32> {
        let mut list = RankIndex::default();
        for &(rank, key) in keys {
            list.insert(rank, key);
        }
        list
    }

    #[test]
    fn last_key_of_a_rank_fills_a_removed_keys_index() {
        let mut list = list(&[(3, 1), (3, 2), (200, 4)]);
        let place = list.insert(3, 3);
        assert_eq!(list.at(place), Some(3));
        assert_eq!(list.remove(RankPosition { rank: 3, index: 0 }), Some(3));
        assert_eq!(list.highest(), Some(200));
        assert_eq!(list.remove(RankPosition { rank: 200, index: 0 }), None);
        assert_eq!(list.highest(), Some(3));
        let mut chance = Chance::new(1);
        assert_eq!(list.first_fit(4, &mut chance, |_| true), None);
        assert!(list.first_fit(0, &mut chance, |key| key == 2).is_some());
        assert_eq!(list.len(), 2);
    }

    #[test]
    fn merges_lists_by_descending_rank_with_the_first_list_first() {
        let lists = [list(&[(2, 20), (7, 70)]), list(&[(7, 71), (1, 11), (9, 91)])];
        assert_eq!(merged(lists.iter()).collect::<Vec<_>>(), [91, 70, 71, 20, 11]);
        assert_eq!(merged(lists.iter().take(0)).next(), None);
    }

    #[test]
    fn all_of_a_rank_come_wherever_they_begin() {
        let list = list(&[(1, 1), (1, 2), (1, 3), (4, 9)]);
        for first in 0..5 {
            let mut keys: Vec<u32> = list.downwards(first).map(|(_, key)| key).collect();
            assert_eq!((keys.remove(0), keys[0]), (9, 1 + (first % 3) as u32));
            keys.sort();
            assert_eq!(keys, [1, 2, 3]);
        }
    }
}
