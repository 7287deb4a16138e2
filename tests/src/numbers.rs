//! Conversions of numbers that a test keeps small enough for the other type, and numbers from the environment.

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

/// The number in an environment variable: how often a test repeats what `make test` tries in part, for instance. `None` if
/// the variable is not set.
///
/// # Panics
/// If the variable has something else.
#[must_use]
pub fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
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
