//! Results of work that are remembered, up to a number. If there are more, the tenant with the most results loses the one
//! that was not used for the longest time. So a tenant that has much work done evicts only its own results.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::time::Instant;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct KnownResults<K, R> {
    most: usize,
    results: BTreeMap<K, KnownResult<R>>,
    /// Number of uses of any results.
    uses: u64,
}

#[derive(Debug)]
struct KnownResult<R> {
    result: R,
    /// The tenant whose it counts as: of those that have used it, one with few results.
    tenant: String,
    /// Number of its latest use.
    used: u64,
    /// End of its time; `None` if it is forgotten only in favour of others.
    until: Option<Instant>,
}

impl<K: Clone + Ord, R: Clone> KnownResults<K, R> {
    /// Keeps up to `most` results.
    pub(crate) fn new(most: usize) -> KnownResults<K, R> {
        KnownResults { most, results: BTreeMap::new(), uses: 0 }
    }

    /// The result of a key, for a call of a tenant.
    pub(crate) fn find<Q: Ord + ?Sized>(&mut self, key: &Q, tenant: &str, now: Instant) -> Option<R>
    where
        K: Borrow<Q>,
    {
        let known = self.results.get(key)?;
        if known.until.is_some_and(|until| until <= now) {
            self.results.remove(key);
            return None;
        }
        let is_cheaper = known.tenant != tenant && self.count(tenant) + 1 < self.count(&known.tenant);
        self.uses += 1;
        let known = self.results.get_mut(key)?;
        known.used = self.uses;
        if is_cheaper {
            known.tenant = tenant.to_owned();
        }
        Some(known.result.clone())
    }

    /// Keeps a result that a tenant's call has received, until then or until there are too many.
    pub(crate) fn insert(&mut self, key: &K, tenant: &str, result: R, until: Option<Instant>) {
        self.results.remove(key);
        while self.results.len() >= self.most
            && let Some(victim) = self.victim()
        {
            self.results.remove(&victim);
        }
        self.uses += 1;
        let known = KnownResult { result, tenant: tenant.to_owned(), used: self.uses, until };
        self.results.insert(key.clone(), known);
    }

    /// Number of results that count as a tenant's.
    fn count(&self, tenant: &str) -> usize {
        self.results.values().filter(|known| known.tenant == tenant).count()
    }

    fn victim(&self) -> Option<K> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for known in self.results.values() {
            *counts.entry(&known.tenant).or_default() += 1;
        }
        let most = counts.values().max()?;
        let is_of_most = |known: &KnownResult<R>| counts.get(&*known.tenant) == Some(most);
        let candidates = self.results.iter().filter(|(_, known)| is_of_most(known));
        candidates.min_by_key(|(_, known)| known.used).map(|(key, _)| key.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    type Known = KnownResults<String, u32>;

    fn insert(known: &mut Known, name: &str, tenant: &str) {
        known.insert(&name.to_owned(), tenant, 1, None);
    }

    #[test]
    fn a_tenant_with_many_results_evicts_only_its_own() {
        let mut known = Known::new(4);
        for name in ["b1", "c1"] {
            insert(&mut known, name, &name[..1]);
        }
        for number in 0..9 {
            insert(&mut known, &format!("a{number}"), "a");
        }
        let kept: Vec<_> = known.results.keys().map(String::as_str).collect();
        assert_eq!(kept, ["a7", "a8", "b1", "c1"]);
    }

    #[test]
    fn evicts_the_least_recently_used_result() {
        let (mut known, now) = (Known::new(2), Instant::now());
        insert(&mut known, "a1", "a");
        insert(&mut known, "a2", "a");
        assert_eq!(known.find("a1", "a", now), Some(1));
        insert(&mut known, "a3", "a");
        assert_eq!(known.find("a2", "a", now), None);
        assert_eq!(known.find("a1", "a", now), Some(1));
    }

    #[test]
    fn a_result_counts_as_that_of_a_tenant_with_few() {
        let (mut known, now) = (Known::new(3), Instant::now());
        for name in ["a1", "a2", "a3"] {
            insert(&mut known, name, "a");
        }
        known.find("a1", "b", now);
        for name in ["a4", "a5", "a6"] {
            insert(&mut known, name, "a");
        }
        assert_eq!(known.find("a1", "b", now), Some(1));
    }

    #[test]
    fn forgets_a_result_after_its_time() {
        let (mut known, now) = (Known::new(3), Instant::now());
        known.insert(&"a1".to_owned(), "a", 1, Some(now + Duration::from_secs(60)));
        assert_eq!(known.find("a1", "a", now + Duration::from_secs(59)), Some(1));
        assert_eq!(known.find("a1", "a", now + Duration::from_secs(60)), None);
    }
}
