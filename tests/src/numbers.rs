//! Conversions of numbers that a test keeps small enough for the other type.

use std::any::type_name;
use std::fmt::Debug;

/// Converts a number to a type that has fewer values.
///
/// # Panics
/// If the type lacks the number.
#[track_caller]
pub fn narrow<N: Copy + Debug, T: TryFrom<N>>(number: N) -> T {
    let converted = T::try_from(number);
    converted.unwrap_or_else(|_| panic!("{number:?} is no {}", type_name::<T>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_what_the_other_type_has() {
        assert_eq!(narrow::<u64, u8>(255), 255);
        assert_eq!(narrow::<i64, u128>(7), 7);
    }

    #[test]
    #[should_panic(expected = "256 is no u8")]
    fn refuses_what_the_other_type_lacks() {
        narrow::<u64, u8>(256);
    }
}
