//! Checksums of records, and the sums of them by which a missing record is noticed.
//!
//! A [`Seal`] is bound to the record's key and version, so that a record under another key, or an older one, does not
//! pass for the right one. Seals are against faulty disks, not against attackers who can write to the store: they have
//! no key.
//!
//! A [`RecordTally`] counts the records of a kind and adds up their seals. It is changed together with the records, so if the
//! records do not add up to it, some are missing or superfluous. Only a copy can say which.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

/// Bytes of a seal.
pub(crate) const SEAL_BYTES: usize = 16;

/// A checksum of a record.
pub(crate) type Seal = [u8; SEAL_BYTES];

/// Returns the seal of a value under its key. The version is 0 where the store counts versions by itself.
pub(crate) fn seal(key: &str, version: u64, value: &[u8]) -> Seal {
    let mut hash = Sha256::new();
    hash.update(version.to_le_bytes());
    hash.update((key.len() as u64).to_le_bytes());
    hash.update(key);
    hash.update(value);
    shorten(hash)
}

/// The first bytes of a hash.
pub(crate) fn shorten(hash: Sha256) -> Seal {
    let mut seal = Seal::default();
    seal.copy_from_slice(&hash.finalize()[..SEAL_BYTES]);
    seal
}

/// Number of records of a kind, and the sum of their seals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordTally {
    pub(crate) count: u64,
    pub(crate) sum: u128,
}

/// Tallies by kind.
pub(crate) type Tallies = BTreeMap<String, RecordTally>;

impl RecordTally {
    pub(crate) fn add(&mut self, seal: &Seal) {
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(u128::from_le_bytes(*seal));
    }

    pub(crate) fn remove(&mut self, seal: &Seal) {
        self.count = self.count.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(u128::from_le_bytes(*seal));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seals_bind_key_version_and_value() {
        let good = seal("t/a", 1, b"b");
        assert_eq!(good, seal("t/a", 1, b"b"));
        for other in [seal("t/", 1, b"ab"), seal("t/a", 2, b"b"), seal("t/a", 1, b"c"), seal("t/b", 1, b"b")]
        {
            assert_ne!(good, other);
        }
    }

    #[test]
    fn tallies_ignore_order_and_detect_a_missing_record() {
        let seals = [seal("t/a", 1, b""), seal("t/b", 1, b""), seal("t/c", 1, b"")];
        let (mut forth, mut back) = (RecordTally::default(), RecordTally::default());
        seals.iter().for_each(|seal| forth.add(seal));
        seals.iter().rev().for_each(|seal| back.add(seal));
        assert_eq!(forth, back);
        back.remove(&seals[1]);
        assert_ne!(forth, back);
        forth.remove(&seals[1]);
        assert_eq!(forth, back);
    }
}
