//! Chance from a seed: the same seed makes the same decisions.

use sublet_proto::to_usize;

/// SplitMix64 (Steele, Lea, Flood 2014): every state is a good one.
#[derive(Clone, Debug)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Less than `bound`; 0 if that is 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        to_usize(((u128::from(self.next()) * bound as u128) >> 64) as u64)
    }

    /// Any number.
    pub(super) fn wide(&mut self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }
}
