//! The decisions of the cache: what fits, whose entries are evicted first, what is in use. No file is touched here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_image::Image;

/// Most packages, layers of environments, and images of a node.
const MAX_ENTRIES: usize = 4096;

/// Size of an entry or of several on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskSize {
    /// Sum of the apparent lengths of the files, holes included.
    pub(crate) bytes: u64,
    /// Files, folders and links.
    pub(crate) files: u64,
}

impl DiskSize {
    /// Size of an image with all of its layers, shared ones included.
    pub(crate) fn of_image(image: &Image) -> DiskSize {
        DiskSize { bytes: image.unpacked_bytes, files: image.files }
    }

    pub(crate) fn plus(self, other: DiskSize) -> DiskSize {
        DiskSize {
            bytes: self.bytes.saturating_add(other.bytes),
            files: self.files.saturating_add(other.files),
        }
    }

    pub(crate) fn minus(self, other: DiskSize) -> DiskSize {
        DiskSize {
            bytes: self.bytes.saturating_sub(other.bytes),
            files: self.files.saturating_sub(other.files),
        }
    }

    /// Whether neither its bytes nor its files are more than another's.
    pub(crate) fn fits(self, limit: DiskSize) -> bool {
        self.bytes <= limit.bytes && self.files <= limit.files
    }

    /// No more bytes and no more files than another.
    pub(crate) fn at_most(self, other: DiskSize) -> DiskSize {
        DiskSize { bytes: self.bytes.min(other.bytes), files: self.files.min(other.files) }
    }
}

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EntryKind {
    Package,
    Image,
}

impl EntryKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            EntryKind::Package => "package",
            EntryKind::Image => "image",
        }
    }
}

/// An entry's kind and digest.
pub(crate) type Key = (EntryKind, String);

/// A token of an entry's use: the entry is not evicted while there is one.
#[derive(Clone, Debug)]
pub(crate) struct EntryUse(Arc<()>);

/// Whether there is an entry.
#[derive(Debug)]
pub(crate) enum CacheLookup {
    Here(EntryUse),
    /// The entry is being evicted.
    Leaving,
    Unknown,
}

/// Why nothing could be reserved.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CacheRefusal {
    /// This entry has to be removed first; it is marked as leaving.
    Evict(Key),
    /// Nothing is left that could be evicted.
    Full,
}

#[derive(Debug)]
struct CacheEntry {
    size: DiskSize,
    tenant: String,
    /// Later than all uses with a lower number.
    used: u64,
    is_leaving: bool,
    token: EntryUse,
    /// Tokens of entries that this one is made of: those stay for as long as it does.
    parts: Vec<EntryUse>,
}

impl CacheEntry {
    /// The entry itself has one token.
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.token.0) > 1
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct CacheIndex {
    pub(super) limit: DiskSize,
    entries: BTreeMap<Key, CacheEntry>,
    reserved: DiskSize,
    uses: u64,
}

impl CacheIndex {
    pub(super) fn new(limit: DiskSize) -> CacheIndex {
        CacheIndex { limit, entries: BTreeMap::new(), reserved: DiskSize::default(), uses: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The number and the size of the entries that leases use.
    pub(super) fn in_use(&self) -> (usize, DiskSize) {
        let used = self.entries.values().filter(|entry| entry.is_in_use());
        used.fold((0, DiskSize::default()), |(count, size), entry| (count + 1, size.plus(entry.size)))
    }

    /// All that is on the disk or will be. The images are counted by their store: they share layers.
    pub(super) fn used(&self, images: DiskSize) -> DiskSize {
        let packages = self.entries.iter().filter(|((kind, _), _)| *kind == EntryKind::Package);
        packages.fold(images.plus(self.reserved), |sum, (_, entry)| sum.plus(entry.size))
    }

    /// Finds an entry and marks it as used now. The entry is charged to its user with the fewest bytes, so that no
    /// tenant can charge others.
    pub(super) fn find(&mut self, key: &Key, tenant: &str) -> CacheLookup {
        let used = self.next_use();
        let has = |tenant: &str| self.bytes_of(tenant);
        let Some(entry) = self.entries.get(key) else { return CacheLookup::Unknown };
        let is_cheaper = entry.tenant != tenant && has(tenant) < has(&entry.tenant);
        let Some(entry) = self.entries.get_mut(key) else { return CacheLookup::Unknown };
        if entry.is_leaving {
            return CacheLookup::Leaving;
        }
        entry.used = used;
        if is_cheaper {
            entry.tenant = tenant.to_owned();
        }
        CacheLookup::Here(entry.token.clone())
    }

    /// Reserves between two sizes, as much as is free; or says what is to be evicted for the larger one.
    pub(super) fn reserve(
        &mut self,
        (least, most): (DiskSize, DiskSize),
        images: DiskSize,
        tenant: &str,
    ) -> Result<DiskSize, CacheRefusal> {
        let is_crowded = most != DiskSize::default() && self.entries.len() >= MAX_ENTRIES;
        let used = self.used(images);
        let could_ever = least.fits(self.limit);
        debug_assert!(least.fits(most), "at least {least:?} and at most {most:?} are to be reserved");
        if could_ever && !is_crowded && used.plus(most).fits(self.limit) {
            self.reserved = self.reserved.plus(most);
            return Ok(most);
        }
        if could_ever && let Some(victim) = self.victim(tenant, most.bytes) {
            return Err(CacheRefusal::Evict(victim));
        }
        let free = self.limit.minus(used).at_most(most);
        if is_crowded || !used.plus(least).fits(self.limit) {
            return Err(CacheRefusal::Full);
        }
        debug_assert!(least.fits(free) && free.fits(most), "{free:?}, of {least:?} to {most:?}");
        self.reserved = self.reserved.plus(free);
        Ok(free)
    }

    pub(super) fn release(&mut self, size: DiskSize) {
        debug_assert!(size.fits(self.reserved), "{size:?} is released of {:?}", self.reserved);
        self.reserved = self.reserved.minus(size);
    }

    pub(super) fn insert(&mut self, key: &Key, size: DiskSize, tenant: &str) -> EntryUse {
        let (used, token) = (self.next_use(), EntryUse(Arc::new(())));
        let entry =
            CacheEntry { size, tenant: tenant.to_owned(), used, is_leaving: false, token, parts: Vec::new() };
        let known = self.entries.entry(key.clone()).or_insert(entry);
        (known.size, known.used, known.is_leaving) = (size, used, false);
        known.token.clone()
    }

    /// Keeps other entries for as long as this one.
    pub(super) fn compose(&mut self, key: &Key, parts: Vec<EntryUse>) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.parts = parts;
        }
    }

    pub(super) fn resize(&mut self, key: &Key, size: DiskSize) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.size = size;
        }
    }

    pub(super) fn remove(&mut self, key: &Key) {
        self.entries.remove(key);
    }

    /// An entry that was to be evicted could not be.
    pub(super) fn stays(&mut self, key: &Key) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.is_leaving = false;
        }
    }

    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    fn bytes_of(&self, tenant: &str) -> u64 {
        let of_tenant = self.entries.values().filter(|entry| entry.tenant == tenant);
        of_tenant.map(|entry| entry.size.bytes).fold(0, u64::saturating_add)
    }

    /// Marks the entry that is evicted next for a tenant that is about to have more: the least recently used one that no
    /// lease uses, of tenants beyond their share if they have any, else of all.
    fn victim(&mut self, tenant: &str, more_bytes: u64) -> Option<Key> {
        let tenants: BTreeSet<&str> =
            self.entries.values().map(|entry| &*entry.tenant).chain([tenant]).collect();
        let share = self.limit.bytes / tenants.len() as u64;
        let is_beyond = |of: &&str| {
            let more_bytes = if *of == tenant { more_bytes } else { 0 };
            self.bytes_of(of).saturating_add(more_bytes) > share
        };
        let beyond: BTreeSet<&str> = tenants.iter().copied().filter(is_beyond).collect();
        let evictable = self.entries.iter().filter(|(_, entry)| !entry.is_leaving && !entry.is_in_use());
        let order = |(_, entry): &(&Key, &CacheEntry)| (!beyond.contains(&*entry.tenant), entry.used);
        let victim = evictable.min_by_key(order).map(|(key, _)| key.clone())?;
        let entry = self.entries.get_mut(&victim)?;
        debug_assert!(!entry.is_leaving && !entry.is_in_use(), "{victim:?} is evicted in use: {entry:?}");
        entry.is_leaving = true;
        Some(victim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(bytes: u64) -> DiskSize {
        DiskSize { bytes, files: 1 }
    }

    fn key(name: &str) -> Key {
        (EntryKind::Package, name.to_owned())
    }

    fn index() -> CacheIndex {
        CacheIndex::new(DiskSize { bytes: 100, files: 10 })
    }

    /// Makes an entry of this size as a node does, and says what had to be evicted.
    fn add(
        index: &mut CacheIndex,
        name: &str,
        bytes: u64,
        tenant: &str,
    ) -> Result<Vec<String>, CacheRefusal> {
        let mut evicted = Vec::new();
        loop {
            match index.reserve((size(bytes), size(bytes)), DiskSize::default(), tenant) {
                Ok(reserved) => {
                    index.insert(&key(name), size(bytes), tenant);
                    index.release(reserved);
                    return Ok(evicted);
                }
                Err(CacheRefusal::Evict(victim)) => {
                    index.remove(&victim);
                    evicted.push(victim.1);
                }
                Err(CacheRefusal::Full) => return Err(CacheRefusal::Full),
            }
        }
    }

    #[test]
    fn evicts_the_least_recently_used_unused_entry() {
        let mut index = index();
        for name in ["a", "b", "c"] {
            assert_eq!(add(&mut index, name, 30, "t").unwrap(), Vec::<String>::new());
        }
        drop(index.find(&key("a"), "t"));
        let CacheLookup::Here(in_use) = index.find(&key("b"), "t") else { panic!("b is there") };
        assert_eq!(add(&mut index, "d", 30, "t").unwrap(), ["c"]);
        assert_eq!(add(&mut index, "e", 60, "t").unwrap(), ["a", "d"]);
        assert_eq!(add(&mut index, "f", 80, "t"), Err(CacheRefusal::Full), "b is in use");
        drop(in_use);
        assert_eq!(add(&mut index, "f", 80, "t").unwrap(), ["b"]);
    }

    #[test]
    fn sizes_of_a_tenants_entries_saturate() {
        let mut index = index();
        for name in ["a", "b"] {
            index.insert(&key(name), size(u64::MAX), "t");
        }
        let reserved = index.reserve((size(1), size(1)), DiskSize::default(), "t");
        assert_eq!(reserved, Err(CacheRefusal::Evict(key("a"))));
        assert_eq!(index.bytes_of("t"), u64::MAX);
    }

    #[test]
    fn evicts_entries_of_tenants_beyond_their_share_first() {
        let mut index = index();
        add(&mut index, "mine", 40, "victim").unwrap();
        for number in 0..20 {
            let evicted = add(&mut index, &format!("{number}"), 10, "flood").unwrap();
            assert!(!evicted.contains(&"mine".to_owned()), "{evicted:?}");
        }
        assert!(matches!(index.find(&key("mine"), "victim"), CacheLookup::Here(_)));
    }

    #[test]
    fn counts_files_and_refuses_what_never_fits_without_evicting() {
        let mut index = index();
        let files = |files| DiskSize { bytes: 0, files };
        index.insert(&key("a"), files(9), "t");
        let refused = |index: &mut CacheIndex, size| index.reserve((size, size), DiskSize::default(), "t");
        assert_eq!(refused(&mut index, files(2)), Err(CacheRefusal::Evict(key("a"))));
        index.stays(&key("a"));
        assert_eq!(refused(&mut index, files(11)), Err(CacheRefusal::Full));
        assert_eq!(refused(&mut index, size(101)), Err(CacheRefusal::Full));
        assert!(matches!(index.find(&key("a"), "t"), CacheLookup::Here(_)), "it was not evicted in vain");
    }

    #[test]
    fn reserves_what_is_left_if_that_is_enough() {
        let mut index = index();
        let reserved = index.reserve((size(10), size(80)), size(60), "t").unwrap();
        assert_eq!((reserved.bytes, index.used(size(60)).bytes), (40, 100));
        assert_eq!(index.reserve((size(1), size(1)), size(60), "t"), Err(CacheRefusal::Full));
        index.release(reserved);
        index.reserve((size(1), size(1)), size(60), "t").unwrap();
    }

    #[test]
    fn charges_an_entry_to_the_user_that_has_less() {
        let mut index = index();
        add(&mut index, "shared", 30, "large").unwrap();
        add(&mut index, "own", 5, "small").unwrap();
        drop(index.find(&key("shared"), "small"));
        assert_eq!((index.bytes_of("small"), index.bytes_of("large")), (35, 0));
        add(&mut index, "own2", 10, "large").unwrap();
        drop(index.find(&key("own"), "large"));
        assert_eq!(index.bytes_of("large"), 15);
        drop(index.find(&key("own2"), "small"));
        assert_eq!(index.bytes_of("large"), 15, "the entry stays charged to the user that has less");
    }
}
