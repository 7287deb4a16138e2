//! Decides which functions stay ready while they are not called, by recency, frequency, cost and size.
//!
//! This is Greedy-Dual-Size-Frequency, which FaasCache found best for functions: an entry's priority is
//!
//! ```text
//! clock when it was last used  +  uses x cost of loading / size
//! ```
//!
//! and the entry of the lowest priority goes first; the clock then becomes that priority. So the clock runs as fast as
//! room is needed: what was dear to load, is small or used often lives through more evictions, and whatever is not used
//! goes in the end, which plain cost per byte would not do, and plain recency would let one large cheap image drive out
//! twenty small dear ones. Device programs make the difference large: a source takes a second to build and an image
//! milliseconds to load, for sizes that differ by as much. A fixed time to live, as most platforms have, knows
//! neither.
//!
//! What is in use is pinned and never chosen. Equal priorities go by age, so that decisions are the same everywhere.

use std::collections::HashMap;
use std::hash::Hash;

/// Uses of one entry that count: beyond these, being used once more says nothing new, and without a bound an entry of a
/// busy hour would stay for days.
const MOST_USES: u32 = 1000;

/// What an entry costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// To have it again if it is not kept, in microseconds.
    pub load_us: u64,
    /// To keep it, in bytes.
    pub size_bytes: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    cost: Cost,
    uses: u32,
    pins: u32,
    priority: f64,
    /// When it was last used, counted in uses of anything.
    turn: u64,
}

/// What is kept, within so many bytes.
#[derive(Clone, Debug)]
pub struct KeepAlive<K> {
    entries: HashMap<K, Entry>,
    capacity_bytes: u64,
    used_bytes: u64,
    clock: f64,
    turn: u64,
}

impl<K: Clone + Eq + Hash> KeepAlive<K> {
    /// Keeps nothing yet.
    pub fn new(capacity_bytes: u64) -> KeepAlive<K> {
        KeepAlive { entries: HashMap::new(), capacity_bytes, used_bytes: 0, clock: 0.0, turn: 0 }
    }

    /// Takes a new entry, used once now, and says which have to go for it: the caller drops them. What is pinned stays
    /// even if that is more than there is room for; an entry that is too large for all the room goes itself at once.
    pub fn insert(&mut self, key: K, cost: Cost) -> Vec<K> {
        self.remove(&key);
        self.used_bytes += cost.size_bytes;
        self.entries.insert(key.clone(), Entry { cost, uses: 0, pins: 0, priority: 0.0, turn: 0 });
        self.touch(&key);
        if cost.size_bytes > self.capacity_bytes {
            self.remove(&key);
            return vec![key];
        }
        self.make_room(Some(&key))
    }

    /// Notes a use. Whether the entry is kept.
    pub fn touch(&mut self, key: &K) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        self.turn += 1;
        entry.turn = self.turn;
        entry.uses = (entry.uses + 1).min(MOST_USES);
        let worth = entry.cost.load_us as f64 / entry.cost.size_bytes.max(1) as f64;
        entry.priority = self.clock + f64::from(entry.uses) * worth;
        true
    }

    /// Keeps an entry whatever comes, until it is unpinned as often.
    pub fn pin(&mut self, key: &K) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.pins += 1;
        }
    }

    /// Ends a pin, and says which entries have to go now that they may.
    pub fn unpin(&mut self, key: &K) -> Vec<K> {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.pins = entry.pins.saturating_sub(1);
        }
        self.make_room(None)
    }

    /// Forgets an entry without its being chosen.
    pub fn remove(&mut self, key: &K) -> bool {
        let Some(entry) = self.entries.remove(key) else { return false };
        self.used_bytes -= entry.cost.size_bytes;
        true
    }

    /// Whether it is kept.
    pub fn contains(&self, key: &K) -> bool {
        self.entries.contains_key(key)
    }

    /// What is kept.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.keys()
    }

    /// What is kept, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Chooses until the rest fits; the newest is not chosen for its own sake.
    fn make_room(&mut self, newest: Option<&K>) -> Vec<K> {
        let mut gone = Vec::new();
        while self.used_bytes > self.capacity_bytes {
            let Some(key) = self.least(newest) else { break };
            self.clock = self.clock.max(self.entries[&key].priority);
            self.remove(&key);
            gone.push(key);
        }
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
