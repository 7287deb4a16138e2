//! Attempts with growing times, for tests of what is over after some time.

use std::iter;
use std::time::Duration;

/// Times from this one on are not attempted.
const LONGEST: Duration = Duration::from_secs(180);

/// Attempts what succeeds only within some time, with longer and longer times: the first is enough on a usual machine.
///
/// # Panics
/// If no time is long enough.
#[track_caller]
pub fn with_growing_time<T>(first: Duration, attempt: impl FnMut(Duration) -> Option<T>) -> T {
    let times = iter::successors(Some(first), |time| time.checked_mul(2));
    let succeeded = times.take_while(|&time| time < LONGEST).find_map(attempt);
    succeeded.unwrap_or_else(|| panic!("no time below {} s was long enough", LONGEST.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_the_time_until_an_attempt_succeeds() {
        let mut times = Vec::new();
        let longest = with_growing_time(Duration::from_secs(1), |time| {
            times.push(time.as_secs());
            (time > Duration::from_secs(7)).then_some(time)
        });
        assert_eq!((longest, times), (Duration::from_secs(8), vec![1, 2, 4, 8]));
    }
}
