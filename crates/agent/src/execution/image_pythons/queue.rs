//! Order in which images are asked for their Python: a bound for each tenant, one for the node, and turns among
//! tenants. It has no threads, clock or sandboxes; [`Queries`](super::queries::Queries) adds those.
//!
//! One query of an image serves all calls for that image, of any tenant. A query may begin once the node is below its bound,
//! and so is one of the tenants whose calls wait for the query. The query counts as this tenant's. The tenant with the
//! fewest queries in progress goes first, then the oldest query. So a tenant whose images never answer delays only its own.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use super::answer::{Answer, QueryKey};

/// Bounds of a node's queries.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueryLimits {
    /// Queries in progress.
    pub(super) of_node: usize,
    /// Queries in progress that count as one tenant's.
    pub(super) of_tenant: usize,
    /// Calls of one tenant that wait for queries.
    pub(super) calls_of_tenant: usize,
}

/// Answer to a query, once it has ended.
pub(super) type Outcome = Arc<OnceLock<Answer>>;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct QueryQueue {
    limits: QueryLimits,
    queries: BTreeMap<QueryKey, Query>,
    /// Number of the next query.
    next: u64,
}

#[derive(Debug)]
struct Query {
    /// Place in the order of queries.
    number: u64,
    stage: QueryStage,
    /// Number of calls that wait for the answer, by tenant.
    calls: BTreeMap<String, usize>,
    outcome: Outcome,
}

#[derive(Debug, PartialEq, Eq)]
enum QueryStage {
    Waiting,
    /// One of its calls may begin it. It counts as this tenant's.
    Granted(String),
    /// A call executes it. It counts as this tenant's.
    Begun(String),
}

impl QueryStage {
    fn tenant(&self) -> Option<&str> {
        match self {
            QueryStage::Waiting => None,
            QueryStage::Granted(tenant) | QueryStage::Begun(tenant) => Some(tenant),
        }
    }
}

impl QueryQueue {
    pub(super) fn new(limits: QueryLimits) -> QueryQueue {
        QueryQueue { limits, queries: BTreeMap::new(), next: 0 }
    }

    /// Adds a tenant's call to the query of an image. `None` if too many calls of the tenant wait already.
    pub(super) fn join(&mut self, key: &QueryKey, tenant: &str) -> Option<Outcome> {
        let waiting: usize = self.queries.values().filter_map(|query| query.calls.get(tenant)).sum();
        if waiting >= self.limits.calls_of_tenant {
            return None;
        }
        let query = self.queries.entry(key.clone()).or_insert_with(|| {
            self.next += 1;
            Query {
                number: self.next,
                stage: QueryStage::Waiting,
                calls: BTreeMap::new(),
                outcome: Outcome::default(),
            }
        });
        *query.calls.entry(tenant.to_owned()).or_default() += 1;
        let outcome = query.outcome.clone();
        self.grant();
        Some(outcome)
    }

    /// Whether the caller has to execute the query now, and then [`QueryQueue::finish`] it.
    pub(super) fn begin(&mut self, key: &QueryKey) -> bool {
        let Some(query) = self.queries.get_mut(key) else { return false };
        let QueryStage::Granted(tenant) = &mut query.stage else { return false };
        query.stage = QueryStage::Begun(std::mem::take(tenant));
        true
    }

    /// Removes a tenant's call that waits no longer, and the query if no other call waits for it.
    pub(super) fn leave(&mut self, key: &QueryKey, tenant: &str) {
        let Some(query) = self.queries.get_mut(key) else { return };
        if let Some(calls) = query.calls.get_mut(tenant) {
            *calls -= 1;
            if *calls == 0 {
                query.calls.remove(tenant);
            }
        }
        if query.calls.is_empty() && !matches!(query.stage, QueryStage::Begun(_)) {
            self.queries.remove(key);
        }
        self.grant();
    }

    /// Ends a query with the answer for all of its calls.
    pub(super) fn finish(&mut self, key: &QueryKey, answer: Answer) {
        if let Some(query) = self.queries.remove(key) {
            // Only this call sets the outcome, and only once, since the query is removed.
            let _ = query.outcome.set(answer);
        }
        self.grant();
    }

    /// Number of calls that wait for a query.
    #[cfg(test)]
    pub(super) fn calls(&self, key: &QueryKey) -> usize {
        self.queries.get(key).map_or(0, |query| query.calls.values().sum())
    }

    /// Lets queries begin, up to the bounds.
    fn grant(&mut self) {
        while let Some((key, tenant)) = self.following() {
            if let Some(query) = self.queries.get_mut(&key) {
                query.stage = QueryStage::Granted(tenant);
            }
        }
    }

    /// The query that may begin, and the tenant whose it counts as.
    fn following(&self) -> Option<(QueryKey, String)> {
        let mut in_progress: BTreeMap<&str, usize> = BTreeMap::new();
        for tenant in self.queries.values().filter_map(|query| query.stage.tenant()) {
            *in_progress.entry(tenant).or_default() += 1;
        }
        if in_progress.values().sum::<usize>() >= self.limits.of_node {
            return None;
        }
        let of = |tenant: &str| in_progress.get(tenant).copied().unwrap_or_default();
        let waiting = self.queries.iter().filter(|(_, query)| query.stage == QueryStage::Waiting);
        let candidates = waiting.filter_map(|(key, query)| {
            let tenant = query.calls.keys().min_by_key(|tenant| of(tenant))?;
            (of(tenant) < self.limits.of_tenant).then_some((of(tenant), query.number, key, tenant))
        });
        let first = candidates.min_by_key(|&(in_progress, number, ..)| (in_progress, number));
        first.map(|(.., key, tenant)| (key.clone(), tenant.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execution::image_pythons::answer::tests::{key, python};

    fn queue(of_node: usize, of_tenant: usize) -> QueryQueue {
        QueryQueue::new(QueryLimits { of_node, of_tenant, calls_of_tenant: 5 })
    }

    /// Adds calls, of the tenant that each name begins with, for the image that each name is.
    fn join(queue: &mut QueryQueue, names: &[&str]) {
        names.iter().for_each(|name| assert!(queue.join(&key(name), &name[..1]).is_some(), "{name}"));
    }

    /// Begins those of these queries that may begin.
    fn begun<'name>(queue: &mut QueryQueue, names: &[&'name str]) -> Vec<&'name str> {
        names.iter().copied().filter(|name| queue.begin(&key(name))).collect()
    }

    #[test]
    fn asks_an_image_once_for_all_calls() {
        let mut queue = queue(8, 2);
        let outcomes = ["a", "a", "b"].map(|tenant| queue.join(&key("image"), tenant).unwrap());
        assert_eq!([(); 3].map(|()| queue.begin(&key("image"))), [true, false, false]);
        queue.finish(&key("image"), python("3.12"));
        assert!(outcomes.iter().all(|outcome| outcome.get() == Some(&python("3.12"))));
        let later = queue.join(&key("image"), "a").unwrap();
        assert_eq!((later.get(), queue.begin(&key("image"))), (None, true));
    }

    #[test]
    fn bounds_queries_of_a_tenant() {
        let mut queue = queue(8, 2);
        let names = ["a1", "a2", "a3", "a4", "b1"];
        join(&mut queue, &names);
        assert_eq!(begun(&mut queue, &names), ["a1", "a2", "b1"]);
        queue.finish(&key("b1"), python("3.12"));
        assert_eq!(begun(&mut queue, &names), [""; 0]);
        queue.finish(&key("a2"), python("3.12"));
        assert_eq!(begun(&mut queue, &names), ["a3"]);
    }

    #[test]
    fn bounds_queries_of_a_node_fairly() {
        let mut queue = queue(3, 2);
        let names = ["a1", "a2", "b1", "a3", "b2", "c1", "d1"];
        join(&mut queue, &names);
        assert_eq!(begun(&mut queue, &names), ["a1", "a2", "b1"]);
        for (ended, following) in [("a1", "c1"), ("b1", "b2"), ("c1", "d1"), ("b2", "a3")] {
            queue.finish(&key(ended), python("3.12"));
            assert_eq!(begun(&mut queue, &names), [following]);
        }
    }

    #[test]
    fn an_image_of_two_tenants_waits_for_neither() {
        let mut queue = queue(8, 2);
        join(&mut queue, &["a1", "a2", "a3"]);
        assert_eq!(begun(&mut queue, &["a1", "a2", "a3"]), ["a1", "a2"]);
        queue.join(&key("a3"), "b").unwrap();
        assert_eq!(begun(&mut queue, &["a3"]), ["a3"]);
        // The query counts as the second tenant's.
        join(&mut queue, &["b1", "b2"]);
        assert_eq!(begun(&mut queue, &["b1", "b2"]), ["b1"]);
    }

    #[test]
    fn forgets_a_query_without_calls_unless_it_has_begun() {
        let mut queue = queue(1, 1);
        join(&mut queue, &["a1", "b1", "c1"]);
        // Granted, and left before it has begun.
        queue.leave(&key("a1"), "a");
        assert_eq!(begun(&mut queue, &["a1", "b1", "c1"]), ["b1"]);
        queue.leave(&key("b1"), "b");
        assert_eq!(begun(&mut queue, &["b1", "c1"]), [""; 0]);
        queue.finish(&key("b1"), python("3.12"));
        assert_eq!(begun(&mut queue, &["c1"]), ["c1"]);
        queue.finish(&key("c1"), python("3.12"));
        assert!(queue.queries.is_empty());
    }

    #[test]
    fn bounds_waiting_calls_of_a_tenant() {
        let mut queue = queue(8, 2);
        join(&mut queue, &["a1", "a1", "a2", "a3", "a4"]);
        assert!(queue.join(&key("a1"), "a").is_none());
        join(&mut queue, &["b1"]);
        queue.leave(&key("a1"), "a");
        join(&mut queue, &["a5"]);
    }
}
