//! Decides which functions stay ready while they are not called, by recency, frequency, cost and size.
//!
//! This is Greedy-Dual-Size-Frequency, which FaasCache found best for functions: an entry's priority is
//!
//! ```text
//! clock when it was last used  +  uses x cost of loading / size
//! ```
//!
//! The entry of the lowest priority is evicted first; the clock then becomes that priority. Thus the clock advances as
//! fast as space is needed. An entry that is expensive to load, small or used often survives more evictions, and an
//! unused entry is evicted in the end. Plain cost per byte would never evict such an entry, and plain recency would let
//! one large cheap image evict twenty small expensive ones. Device programs make the difference large: a source takes a
//! second to build and an image milliseconds to load, and their sizes differ by similar factors. A fixed time to live,
//! as most platforms have, considers neither.
//!
//! Entries in use are pinned and never evicted. Equal priorities are ordered by age, so that decisions are the same
//! everywhere.

use std::collections::HashMap;
use std::hash::Hash;

/// Most uses of one entry that count: without a bound an entry of a busy hour would stay for days.
const MOST_USES: u32 = 1000;

/// Costs of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryCost {
    /// Time to load the entry again if it is not kept, in microseconds.
    pub load_us: u64,
    /// Size of the entry, in bytes.
    pub size_bytes: u64,
}

#[derive(Clone, Debug)]
struct KeptEntry {
    cost: EntryCost,
    uses: u32,
    pins: u32,
    priority: f64,
    /// Time of the last use, counted in uses of any entry.
    turn: u64,
}

/// The entries that are kept, within a number of bytes.
#[derive(Clone, Debug)]
pub struct KeepAlive<K> {
    entries: HashMap<K, KeptEntry>,
    capacity_bytes: u64,
    used_bytes: u64,
    clock: f64,
    turn: u64,
}

impl<K: Clone + Eq + Hash> KeepAlive<K> {
    /// Makes an empty policy.
    pub fn new(capacity_bytes: u64) -> KeepAlive<K> {
        KeepAlive { entries: HashMap::new(), capacity_bytes, used_bytes: 0, clock: 0.0, turn: 0 }
    }

    /// Takes a new entry, used once now, and returns the entries to evict for it, which the caller drops. Pinned
    /// entries stay even if they exceed the capacity; an entry larger than the whole capacity is returned itself.
    pub fn insert(&mut self, key: K, cost: EntryCost) -> Vec<K> {
        self.remove(&key);
        self.used_bytes += cost.size_bytes;
        self.entries.insert(key.clone(), KeptEntry { cost, uses: 0, pins: 0, priority: 0.0, turn: 0 });
        self.touch(&key);
        if cost.size_bytes > self.capacity_bytes {
            self.remove(&key);
            return vec![key];
        }
        self.make_space(Some(&key))
    }

    /// Records a use. Returns whether the entry is kept.
    pub fn touch(&mut self, key: &K) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        self.turn += 1;
        entry.turn = self.turn;
        entry.uses = (entry.uses + 1).min(MOST_USES);
        let worth = entry.cost.load_us as f64 / entry.cost.size_bytes.max(1) as f64;
        entry.priority = self.clock + f64::from(entry.uses) * worth;
        true
    }

    /// Keeps an entry in any case, until it is unpinned the same number of times.
    pub fn pin(&mut self, key: &K) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.pins += 1;
        }
    }

    /// Ends a pin, and returns the entries that are evicted now.
    pub fn unpin(&mut self, key: &K) -> Vec<K> {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.pins = entry.pins.saturating_sub(1);
        }
        self.make_space(None)
    }

    /// Removes an entry without an eviction.
    pub fn remove(&mut self, key: &K) -> bool {
        let Some(entry) = self.entries.remove(key) else { return false };
        self.used_bytes -= entry.cost.size_bytes;
        true
    }

    /// Whether the entry is kept.
    pub fn contains(&self, key: &K) -> bool {
        self.entries.contains_key(key)
    }

    /// The entries that are kept.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.keys()
    }

    /// Size of all entries, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Evicts entries until the rest fits. The newest is not evicted for its own insertion.
    fn make_space(&mut self, newest: Option<&K>) -> Vec<K> {
        let mut gone = Vec::new();
        while self.used_bytes > self.capacity_bytes {
            let Some(key) = self.least(newest) else { break };
            self.clock = self.clock.max(self.entries[&key].priority);
            self.remove(&key);
            gone.push(key);
        }
        debug_assert_eq!(
            self.used_bytes,
            self.entries.values().map(|entry| entry.cost.size_bytes).sum::<u64>(),
            "the sizes of {} entries",
            self.entries.len()
        );
        gone
    }

    fn least(&self, except: Option<&K>) -> Option<K> {
        let free = self.entries.iter().filter(|(key, entry)| entry.pins == 0 && Some(*key) != except);
        let least = free.min_by(|(_, a), (_, b)| a.priority.total_cmp(&b.priority).then(a.turn.cmp(&b.turn)));
        least.map(|(key, _)| key.clone())
    }
}

#[cfg(test)]
mod tests;
