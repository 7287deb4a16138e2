//! The generator from which everything in a run is drawn: xoshiro256** of Blackman and Vigna, seeded by SplitMix64.
//!
//! Integers only: no result depends on a machine's mathematical library, so a seed means the same run everywhere.

use crate::numbers::narrow;

/// A stream of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Random([u64; 4]);

impl Random {
    /// The stream of a seed; any seed is as good as any other.
    pub fn from_seed(seed: u64) -> Random {
        let mut state = seed;
        Random([(); 4].map(|()| split_mix(&mut state)))
    }

    /// A stream of its own, so that what draws from it does not move what others draw.
    pub fn split(&mut self) -> Random {
        Random::from_seed(self.bits())
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// 128 random bits, for identifiers.
    pub fn wide_bits(&mut self) -> u128 {
        u128::from(self.bits()) << 64 | u128::from(self.bits())
    }

    /// Draws a number from 0 to below `bound`, which is not 0. The bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Draws a number from `least` to `most`, both included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// Returns true with a probability of `ppm` in a million.
    pub fn chance_ppm(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[narrow::<_, usize>(self.below(choices.len() as u64))]
    }

    /// A time with a long tail: `scale` doubled once in four, again once in sixteen and so on, then spread evenly
    /// over the octave. The mean is near three times the scale, the worst of a million near a thousand times.
    pub fn long_tail(&mut self, scale: u64) -> u64 {
        let bits = self.bits();
        let octave = scale << ((bits >> 32).trailing_zeros() / 2).min(MAX_DOUBLINGS);
        octave + narrow::<_, u64>((u128::from(bits & 0xffff_ffff) * u128::from(octave)) >> 32)
    }
}

/// Most doublings of [`Random::long_tail`].
const MAX_DOUBLINGS: u32 = 12;

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeding_is_split_mix_as_published() {
        let mut state = 1_234_567;
        let drawn = [(); 3].map(|()| split_mix(&mut state));
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn the_generator_is_xoshiro256_starstar_as_published() {
        let mut random = Random([1, 2, 3, 4]);
        let drawn = [(); 4].map(|()| random.bits());
        assert_eq!(drawn, [11520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
    }

    #[test]
    fn chances_and_bounds_are_what_they_say() {
        let mut random = Random::from_seed(1);
        let hits = (0..1_000_000).filter(|_| random.chance_ppm(10_000)).count();
        assert!((9_000..11_000).contains(&hits), "{hits} of a million at one in a hundred");
        assert!((0..10_000).all(|_| (3..=7).contains(&random.between(3, 7))));
        assert_ne!(random.split().bits(), random.split().bits());
    }

    #[test]
    fn delays_have_a_long_tail() {
        let mut random = Random::from_seed(2);
        let mut drawn: Vec<u64> = (0..100_000).map(|_| random.long_tail(100)).collect();
        drawn.sort_unstable();
        let (median, worst) = (drawn[50_000], drawn[99_999]);
        assert!((100..250).contains(&median), "median {median}");
        assert!(worst > 10_000, "worst {worst}");
    }
}
