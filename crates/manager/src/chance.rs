//! Random bytes.

use sublet_proto::{Code, Error};

/// Returns unpredictable bytes from the system.
pub(crate) fn secret<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(Code::System, format!("no random bytes from the system: {error}")))?;
    Ok(bytes)
}

/// Numbers for names that must be unique but not secret: a counter, mixed.
///
/// A lease's name grants no access, only its signed ticket does; so a system call for each name would gain nothing.
#[derive(Debug)]
pub(crate) struct NameGenerator(u128);

impl NameGenerator {
    /// Creates numbers that differ from those of every other start.
    pub(crate) fn new() -> Result<NameGenerator, Error> {
        secret().map(u128::from_le_bytes).map(NameGenerator)
    }

    pub(crate) fn next(&mut self) -> u128 {
        self.0 = self.0.wrapping_add(1);
        // An odd factor and shifts are one-to-one, so no number comes twice; the factor is PCG's for 128 bits.
        let stirred = self.0.wrapping_mul(0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645);
        stirred ^ (stirred >> 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_differ_in_every_part() {
        let mut names = NameGenerator::new().unwrap();
        let taken: HashSet<u64> = (0..10_000).map(|_| names.next() as u64).collect();
        assert_eq!(taken.len(), 10_000);
    }
}
