//! Conversions between types of numbers that lose nothing, or saturate.

const _: () = assert!(usize::BITS == u64::BITS, "Sublet runs on machines with 64-bit addresses only");

/// Converts a number of bytes, an offset or a count to the type that indexes memory. Every value fits: this crate does
/// not compile where the two types differ in size.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "asserted above: both types have 64 bits")]
pub const fn to_usize(number: u64) -> usize {
    number as usize
}

/// Converts a measurement to a whole number, rounded towards 0. A negative number and NaN become 0, and a number beyond
/// `u64::MAX` becomes `u64::MAX`.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts of `f64` saturate")]
pub const fn saturating_u64(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saturates_measurements_at_both_ends() {
        let whole = [1.9, 0.0, -0.5, -3.0, f64::NAN, f64::INFINITY, 1e30].map(saturating_u64);
        assert_eq!(whole, [1, 0, 0, 0, 0, u64::MAX, u64::MAX]);
    }
}
