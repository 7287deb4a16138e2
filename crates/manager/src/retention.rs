//! Defines how long the manager keeps ended leases and runs.

use std::time::Duration;

pub(crate) const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Age below which nothing is folded, in milliseconds.
pub(crate) const LEAST_AGE_MS: u64 = DAY_MS;
const DAY: Duration = Duration::from_millis(DAY_MS);

/// How long the manager keeps what has ended; nothing stands for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Each lease's own record in the ledger. Then its use and cost are part of sums.
    pub ledger: Option<Duration>,
    /// Runs of graphs, and their reports.
    pub runs: Option<Duration>,
}

impl Retention {
    /// Shorter than this it cannot be: a manager that was cut off from the store may still write what it knows.
    pub const LEAST: Duration = Duration::from_millis(LEAST_AGE_MS);
}

impl Default for Retention {
    fn default() -> Retention {
        Retention { ledger: Some(90 * DAY), runs: Some(30 * DAY) }
    }
}

/// The beginning of the day, in UTC, that was so long ago.
pub(crate) fn day_before(now_ms: u64, age: Duration) -> u64 {
    let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    now_ms.saturating_sub(age_ms) / DAY_MS * DAY_MS
}
