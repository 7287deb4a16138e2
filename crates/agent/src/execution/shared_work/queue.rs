//! Order in which shared work is executed: a bound for each tenant, one for the node, and turns among tenants. It has no
//! threads or clock; [`SharedWork`](super::SharedWork) adds those.
//!
//! One execution serves all calls of the same key, of any tenant. Work may begin once the node is below its bound, and so
//! is one of the tenants whose calls wait for the work. The work counts as this tenant's. The tenant with the least work in
//! progress goes first, then the oldest work. So a tenant whose work never ends delays only its own.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sublet_proto::Error;

/// Bounds of one kind of work on a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkBounds {
    /// Work in progress.
    pub(crate) of_node: usize,
    /// Work in progress that counts as one tenant's.
    pub(crate) of_tenant: usize,
    /// Calls of one tenant that wait for work.
    pub(crate) calls_of_tenant: usize,
    /// How long a call waits for its turn, or for work that another call executes.
    pub(crate) patience: Duration,
}

/// Outcome of work, once it has ended.
pub(super) type Outcome<T> = Arc<OnceLock<Result<T, Error>>>;

/// See the [module](self).
pub(super) struct WorkQueue<K, T> {
    bounds: WorkBounds,
    work: BTreeMap<K, QueuedWork<T>>,
    /// Number of the next work.
    next: u64,
}

struct QueuedWork<T> {
    /// Place in the order of work.
    number: u64,
    stage: WorkStage,
    /// Number of calls that wait for the outcome, by tenant.
    calls: BTreeMap<String, usize>,
    outcome: Outcome<T>,
}

#[derive(Debug, PartialEq, Eq)]
enum WorkStage {
    Waiting,
    /// One of its calls may begin it. It counts as this tenant's.
    Granted(String),
    /// A call executes it. It counts as this tenant's.
    Begun(String),
}

impl WorkStage {
    fn tenant(&self) -> Option<&str> {
        match self {
            WorkStage::Waiting => None,
            WorkStage::Granted(tenant) | WorkStage::Begun(tenant) => Some(tenant),
        }
    }
}

impl<K: Clone + Ord, T> WorkQueue<K, T> {
    pub(super) fn new(bounds: WorkBounds) -> WorkQueue<K, T> {
        WorkQueue { bounds, work: BTreeMap::new(), next: 0 }
    }

    /// Adds a tenant's call to the work of a key. `None` if too many calls of the tenant wait already.
    pub(super) fn join(&mut self, key: &K, tenant: &str) -> Option<Outcome<T>> {
        let waiting: usize = self.work.values().filter_map(|work| work.calls.get(tenant)).sum();
        if waiting >= self.bounds.calls_of_tenant {
            return None;
        }
        let work = self.work.entry(key.clone()).or_insert_with(|| {
            self.next += 1;
            QueuedWork {
                number: self.next,
                stage: WorkStage::Waiting,
                calls: BTreeMap::new(),
                outcome: Arc::default(),
            }
        });
        *work.calls.entry(tenant.to_owned()).or_default() += 1;
        let outcome = work.outcome.clone();
        self.grant();
        Some(outcome)
    }

    /// Whether the caller has to execute the work now, and then [`WorkQueue::finish`] it.
    pub(super) fn begin(&mut self, key: &K) -> bool {
        let Some(work) = self.work.get_mut(key) else { return false };
        let WorkStage::Granted(tenant) = &mut work.stage else { return false };
        work.stage = WorkStage::Begun(std::mem::take(tenant));
        true
    }

    /// Removes a tenant's call that waits no longer, and the work if no other call waits for it.
    pub(super) fn leave(&mut self, key: &K, tenant: &str) {
        let Some(work) = self.work.get_mut(key) else { return };
        if let Some(calls) = work.calls.get_mut(tenant) {
            *calls -= 1;
            if *calls == 0 {
                work.calls.remove(tenant);
            }
        }
        if work.calls.is_empty() && !matches!(work.stage, WorkStage::Begun(_)) {
            self.work.remove(key);
        }
        self.grant();
    }

    /// Ends work with the outcome for all of its calls.
    pub(super) fn finish(&mut self, key: &K, outcome: Result<T, Error>) {
        if let Some(work) = self.work.remove(key) {
            // Only this call sets the outcome, and only once, since the work is removed.
            let _ = work.outcome.set(outcome);
        }
        self.grant();
    }

    /// Ends the execution of work without an outcome. The tenant's call that has executed it leaves, and another call may
    /// begin the work.
    pub(super) fn give_up(&mut self, key: &K, tenant: &str) {
        if let Some(work) = self.work.get_mut(key) {
            work.stage = WorkStage::Waiting;
        }
        self.leave(key, tenant);
    }

    /// Number of calls that wait for the work of a key.
    #[cfg(test)]
    pub(super) fn calls(&self, key: &K) -> usize {
        self.work.get(key).map_or(0, |work| work.calls.values().sum())
    }

    /// Lets work begin, up to the bounds.
    fn grant(&mut self) {
        while let Some((key, tenant)) = self.following() {
            if let Some(work) = self.work.get_mut(&key) {
                work.stage = WorkStage::Granted(tenant);
            }
        }
    }

    /// The work that may begin, and the tenant whose it counts as.
    fn following(&self) -> Option<(K, String)> {
        let mut in_progress: BTreeMap<&str, usize> = BTreeMap::new();
        for tenant in self.work.values().filter_map(|work| work.stage.tenant()) {
            *in_progress.entry(tenant).or_default() += 1;
        }
        if in_progress.values().sum::<usize>() >= self.bounds.of_node {
            return None;
        }
        let of = |tenant: &str| in_progress.get(tenant).copied().unwrap_or_default();
        let waiting = self.work.iter().filter(|(_, work)| work.stage == WorkStage::Waiting);
        let candidates = waiting.filter_map(|(key, work)| {
            let tenant = work.calls.keys().min_by_key(|tenant| of(tenant))?;
            (of(tenant) < self.bounds.of_tenant).then_some((of(tenant), work.number, key, tenant))
        });
        let first = candidates.min_by_key(|&(in_progress, number, ..)| (in_progress, number));
        first.map(|(.., key, tenant)| (key.clone(), tenant.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Queue = WorkQueue<&'static str, u32>;

    fn queue(of_node: usize, of_tenant: usize) -> Queue {
        let patience = Duration::from_secs(1);
        WorkQueue::new(WorkBounds { of_node, of_tenant, calls_of_tenant: 5, patience })
    }

    /// Adds calls, of the tenant that each key begins with.
    fn join(queue: &mut Queue, keys: &[&'static str]) {
        keys.iter().for_each(|key| assert!(queue.join(key, &key[..1]).is_some(), "{key}"));
    }

    /// Begins the work of those of these keys whose work may begin.
    fn begun(queue: &mut Queue, keys: &[&'static str]) -> Vec<&'static str> {
        keys.iter().copied().filter(|key| queue.begin(key)).collect()
    }

    #[test]
    fn executes_work_once_for_all_calls() {
        let mut queue = queue(8, 2);
        let outcomes = ["a", "a", "b"].map(|tenant| queue.join(&"key", tenant).unwrap());
        assert_eq!([(); 3].map(|()| queue.begin(&"key")), [true, false, false]);
        queue.finish(&"key", Ok(1));
        assert!(outcomes.iter().all(|outcome| outcome.get() == Some(&Ok(1))));
        let later = queue.join(&"key", "a").unwrap();
        assert_eq!((later.get(), queue.begin(&"key")), (None, true));
    }

    #[test]
    fn bounds_work_of_a_tenant() {
        let mut queue = queue(8, 2);
        let keys = ["a1", "a2", "a3", "a4", "b1"];
        join(&mut queue, &keys);
        assert_eq!(begun(&mut queue, &keys), ["a1", "a2", "b1"]);
        queue.finish(&"b1", Ok(1));
        assert_eq!(begun(&mut queue, &keys), [""; 0]);
        queue.finish(&"a2", Ok(1));
        assert_eq!(begun(&mut queue, &keys), ["a3"]);
    }

    #[test]
    fn bounds_work_of_a_node_fairly() {
        let mut queue = queue(3, 2);
        let keys = ["a1", "a2", "b1", "a3", "b2", "c1", "d1"];
        join(&mut queue, &keys);
        assert_eq!(begun(&mut queue, &keys), ["a1", "a2", "b1"]);
        for (ended, following) in [("a1", "c1"), ("b1", "b2"), ("c1", "d1"), ("b2", "a3")] {
            queue.finish(&ended, Ok(1));
            assert_eq!(begun(&mut queue, &keys), [following]);
        }
    }

    #[test]
    fn work_of_two_tenants_waits_for_neither() {
        let mut queue = queue(8, 2);
        join(&mut queue, &["a1", "a2", "a3"]);
        assert_eq!(begun(&mut queue, &["a1", "a2", "a3"]), ["a1", "a2"]);
        queue.join(&"a3", "b").unwrap();
        assert_eq!(begun(&mut queue, &["a3"]), ["a3"]);
        // The work counts as the second tenant's.
        join(&mut queue, &["b1", "b2"]);
        assert_eq!(begun(&mut queue, &["b1", "b2"]), ["b1"]);
    }

    #[test]
    fn forgets_work_without_calls_unless_it_has_begun() {
        let mut queue = queue(1, 1);
        join(&mut queue, &["a1", "b1", "c1"]);
        // Granted, and left before it has begun.
        queue.leave(&"a1", "a");
        assert_eq!(begun(&mut queue, &["a1", "b1", "c1"]), ["b1"]);
        queue.leave(&"b1", "b");
        assert_eq!(begun(&mut queue, &["b1", "c1"]), [""; 0]);
        queue.finish(&"b1", Ok(1));
        assert_eq!(begun(&mut queue, &["c1"]), ["c1"]);
        queue.finish(&"c1", Ok(1));
        assert!(queue.work.is_empty());
    }

    #[test]
    fn another_call_begins_work_that_was_given_up() {
        let mut queue = queue(1, 1);
        let outcomes = ["a", "b"].map(|tenant| queue.join(&"key", tenant).unwrap());
        join(&mut queue, &["c1"]);
        assert_eq!(begun(&mut queue, &["key", "c1"]), ["key"]);
        queue.give_up(&"key", "a");
        // The work keeps its place, and counts as the other tenant's.
        assert_eq!(begun(&mut queue, &["key", "c1"]), ["key"]);
        queue.give_up(&"key", "b");
        assert!(outcomes.iter().all(|outcome| outcome.get().is_none()));
        assert_eq!(begun(&mut queue, &["key", "c1"]), ["c1"]);
    }

    #[test]
    fn bounds_waiting_calls_of_a_tenant() {
        let mut queue = queue(8, 2);
        join(&mut queue, &["a1", "a1", "a2", "a3", "a4"]);
        assert!(queue.join(&"a1", "a").is_none());
        join(&mut queue, &["b1"]);
        queue.leave(&"a1", "a");
        join(&mut queue, &["a5"]);
    }
}
