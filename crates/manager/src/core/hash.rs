//! A hash of names that the managers themselves made by chance.
//!
//! [`LeaseId`](super::LeaseId)s come from a generator, or with a ticket that a manager of the store has signed; no
//! client can choose colliding ones. So mixing their bits by one multiplication is enough, where the standard library's
//! hash defends against keys that an attacker chooses. Clients choose [`RequestId`](super::RequestId)s, which keep that
//! hash.

use std::hash::{BuildHasherDefault, Hasher};

/// Hasher of maps whose keys are such names.
pub(super) type ByChance = BuildHasherDefault<FoldHasher>;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FoldHasher(u64);

/// Odd, with bits everywhere: the golden ratio's.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for FoldHasher {
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(FACTOR);
        self.0 = (product >> 64) as u64 ^ (product & 0xffff_ffff_ffff_ffff) as u64;
    }

    fn write_u128(&mut self, id: u128) {
        self.write_u64((id >> 64) as u64);
        self.write_u64((id & 0xffff_ffff_ffff_ffff) as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
