//! The log of refused connections: the first one at once, and a summary for each interval afterwards, so that a flood
//! fills no disk.

use std::collections::BTreeMap;

/// Time between two lines of the same kind, in milliseconds.
pub const SUMMARY_MS: u64 = 10_000;
/// Kinds of refusals that are told apart.
const MAX_KINDS: usize = 64;

/// Refusals of each kind that have not been logged.
#[derive(Debug, Default)]
pub struct RefusalLog {
    kinds: BTreeMap<String, Kind>,
}

#[derive(Debug)]
struct Kind {
    logged_ms: u64,
    unlogged: u64,
}

impl RefusalLog {
    /// Counts a refusal. Gives how many there were since the last line of its kind, if it is time for a line.
    pub fn note(&mut self, now_ms: u64, kind: &str) -> Option<u64> {
        // Kinds come from the program itself, and not from peers; if there are too many, the last ones count together.
        let kind = if self.kinds.len() < MAX_KINDS || self.kinds.contains_key(kind) { kind } else { "other" };
        let Some(known) = self.kinds.get_mut(kind) else {
            self.kinds.insert(kind.to_owned(), Kind { logged_ms: now_ms, unlogged: 0 });
            return Some(1);
        };
        known.unlogged += 1;
        if now_ms.saturating_sub(known.logged_ms) < SUMMARY_MS {
            return None;
        }
        known.logged_ms = now_ms;
        Some(std::mem::take(&mut known.unlogged))
    }

    /// The refusals of each kind whose line is due although no further refusal came.
    pub fn due(&mut self, now_ms: u64) -> Vec<(String, u64)> {
        let is_due = |kind: &Kind| now_ms.saturating_sub(kind.logged_ms) >= SUMMARY_MS;
        let mut due = Vec::new();
        self.kinds.retain(|name, kind| {
            if is_due(kind) && kind.unlogged > 0 {
                due.push((name.clone(), std::mem::take(&mut kind.unlogged)));
                kind.logged_ms = now_ms;
            }
            // A kind that was quiet for a whole interval is logged at once when it comes again.
            !is_due(kind)
        });
        due
    }
}
