//! Log of refused connections: the first refusal at once, and then a summary for each interval, so that a flood does not fill
//! the disk.

use std::collections::BTreeMap;

/// Time between two lines of the same kind, in milliseconds.
pub const SUMMARY_MS: u64 = 10_000;
/// Maximum number of kinds of refusals that are counted separately.
const MAX_KINDS: usize = 64;

/// Counts of refusals of each kind that are not logged yet.
#[derive(Debug, Default)]
pub struct RefusalLog {
    kinds: BTreeMap<String, RefusalCount>,
}

#[derive(Debug)]
struct RefusalCount {
    logged_ms: u64,
    unlogged: u64,
}

impl RefusalLog {
    /// Counts a refusal. If a line of its kind is due, returns the number of refusals since the last line.
    pub fn note(&mut self, now_ms: u64, kind: &str) -> Option<u64> {
        // Kinds come from the program, not from peers. Beyond the maximum, all further kinds count together.
        let kind = if self.kinds.len() < MAX_KINDS || self.kinds.contains_key(kind) { kind } else { "other" };
        let Some(known) = self.kinds.get_mut(kind) else {
            self.kinds.insert(kind.to_owned(), RefusalCount { logged_ms: now_ms, unlogged: 0 });
            return Some(1);
        };
        known.unlogged += 1;
        if now_ms.saturating_sub(known.logged_ms) < SUMMARY_MS {
            return None;
        }
        known.logged_ms = now_ms;
        Some(std::mem::take(&mut known.unlogged))
    }

    /// Returns the kinds whose line is due without a further refusal, with their counts.
    pub fn due(&mut self, now_ms: u64) -> Vec<(String, u64)> {
        let is_due = |kind: &RefusalCount| now_ms.saturating_sub(kind.logged_ms) >= SUMMARY_MS;
        let mut due = Vec::new();
        self.kinds.retain(|name, kind| {
            if is_due(kind) && kind.unlogged > 0 {
                due.push((name.clone(), std::mem::take(&mut kind.unlogged)));
                kind.logged_ms = now_ms;
            }
            // A kind without refusals for a whole interval is forgotten: its next refusal is logged at once.
            !is_due(kind)
        });
        due
    }
}
