//! Queries of images by the threads of leases: one thread asks, the others that need the same image wait for its answer.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sublet_fabric::sync::lock;
use sublet_proto::{Code, Error};

use super::answer::{Answer, QueryKey};
use super::known::KnownPythons;
use super::queue::{QueryLimits, QueryQueue};

/// See the [module](self).
pub(super) struct Queries {
    limits: QueryLimits,
    /// How long a call waits at most.
    patience: Duration,
    state: Mutex<QueriesState>,
    /// Notified when queries end or may begin.
    changed: Condvar,
}

struct QueriesState {
    queue: QueryQueue,
    known: KnownPythons,
}

/// A query that a thread executes. Dropping it ends the query, also after a panic.
struct BegunQuery<'queries> {
    queries: &'queries Queries,
    key: &'queries QueryKey,
    tenant: &'queries str,
    answer: Option<Answer>,
}

impl Queries {
    /// Keeps up to `most_known` answers.
    pub(super) fn new(limits: QueryLimits, patience: Duration, most_known: usize) -> Queries {
        let state = QueriesState { queue: QueryQueue::new(limits), known: KnownPythons::new(most_known) };
        Queries { limits, patience, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The answer of an image, for a call of a tenant, if it is known.
    pub(super) fn find(&self, key: &QueryKey, tenant: &str) -> Option<Answer> {
        lock(&self.state).known.find(key, tenant, Instant::now())
    }

    /// The answer of an image, for a call of a tenant. If the answer is not known, `ask` gives it, on this thread, or on that
    /// of another call.
    ///
    /// # Errors
    /// Those of `ask`, and `try_later` if the image cannot be asked in time.
    pub(super) fn find_or_ask(&self, key: &QueryKey, tenant: &str, ask: impl FnOnce() -> Answer) -> Answer {
        let until = Instant::now() + self.patience;
        let mut state = lock(&self.state);
        if let Some(known) = state.known.find(key, tenant, Instant::now()) {
            return known;
        }
        let outcome = state.queue.join(key, tenant).ok_or_else(|| self.too_many())?;
        loop {
            if let Some(answer) = outcome.get() {
                return answer.clone();
            }
            if state.queue.begin(key) {
                drop(state);
                return BegunQuery { queries: self, key, tenant, answer: None }.execute(ask);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.queue.leave(key, tenant);
                self.changed.notify_all();
                return Err(self.too_late());
            }
            (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn too_many(&self) -> Error {
        let QueryLimits { calls_of_tenant, .. } = self.limits;
        Error::new(
            Code::TryLater,
            format!("{calls_of_tenant} starts of this tenant wait for Pythons of images already"),
        )
    }

    fn too_late(&self) -> Error {
        let QueryLimits { of_node, of_tenant, .. } = self.limits;
        let message = format!(
            "it has not reported its version after {} s: a node asks at most {of_tenant} images of a tenant and {of_node} of \
             all at once",
            self.patience.as_secs()
        );
        Error::new(Code::TryLater, message)
    }
}

impl BegunQuery<'_> {
    fn execute(mut self, ask: impl FnOnce() -> Answer) -> Answer {
        let answer = ask();
        self.answer = Some(answer.clone());
        answer
    }
}

impl Drop for BegunQuery<'_> {
    fn drop(&mut self) {
        let failed = || Err(Error::new(Code::Internal, "the query of its version has failed"));
        let answer = self.answer.take().unwrap_or_else(failed);
        let mut state = lock(&self.queries.state);
        state.known.insert(self.key, self.tenant, &answer, Instant::now());
        state.queue.finish(self.key, answer);
        drop(state);
        self.queries.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::super::answer::tests::{key, python};
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::channel;
    use std::thread::scope;

    fn queries(patience: Duration) -> Queries {
        Queries::new(QueryLimits { of_node: 3, of_tenant: 2, calls_of_tenant: 4 }, patience, 8)
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn serves_another_tenant_while_images_of_one_do_not_answer() {
        let queries = &queries(LONG);
        scope(|scope| {
            let (begun, has_begun) = channel();
            let releases = ["a1", "a2"].map(|name| {
                let (release, released) = channel::<()>();
                let begun = begun.clone();
                scope.spawn(move || {
                    queries.find_or_ask(&key(name), "a", || {
                        begun.send(()).unwrap();
                        released.recv().unwrap();
                        python("3.11")
                    })
                });
                release
            });
            (0..2).for_each(|_| has_begun.recv().unwrap());
            let third = scope.spawn(|| queries.find_or_ask(&key("a3"), "a", || python("3.12")));
            assert_eq!(queries.find_or_ask(&key("b1"), "b", || python("3.13")), python("3.13"));
            assert_eq!(queries.find(&key("a3"), "a"), None);
            releases.iter().for_each(|release| release.send(()).unwrap());
            assert_eq!(third.join().unwrap(), python("3.12"));
        });
    }

    #[test]
    fn shares_a_failure_among_waiting_calls_and_asks_again() {
        let queries = &queries(LONG);
        let failed: Answer = Err(Error::new(Code::System, "no report"));
        scope(|scope| {
            let (begun, has_begun) = channel();
            let (release, released) = channel::<()>();
            let asking = scope.spawn(move || {
                queries.find_or_ask(&key("a1"), "a", || {
                    begun.send(()).unwrap();
                    released.recv().unwrap();
                    Err(Error::new(Code::System, "no report"))
                })
            });
            has_begun.recv().unwrap();
            let others = ["a", "b"].map(|tenant| {
                let never = || panic!("the image is asked twice");
                scope.spawn(move || queries.find_or_ask(&key("a1"), tenant, never))
            });
            while lock(&queries.state).queue.calls(&key("a1")) < 3 {
                std::thread::yield_now();
            }
            release.send(()).unwrap();
            assert_eq!(asking.join().unwrap(), failed);
            others.into_iter().for_each(|other| assert_eq!(other.join().unwrap(), failed));
        });
        assert_eq!(queries.find_or_ask(&key("a1"), "a", || python("3.12")), python("3.12"));
        let never = || panic!("the image is asked again");
        assert_eq!(queries.find_or_ask(&key("a1"), "b", never), python("3.12"));
    }

    #[test]
    fn a_call_gives_up_after_a_time() {
        let queries = &queries(Duration::from_millis(20));
        let late = queries.find_or_ask(&key("a1"), "a", || {
            scope(|scope| {
                let never = || panic!("the image is asked twice");
                scope.spawn(move || queries.find_or_ask(&key("a1"), "b", never)).join().unwrap()
            })
        });
        let error = late.unwrap_err();
        assert_eq!(error.code, Code::TryLater);
        assert!(error.message.contains("2 images of a tenant and 3 of all"), "{error}");
        assert_eq!(queries.find_or_ask(&key("a1"), "b", || python("3.12")), python("3.12"));
    }

    #[test]
    fn a_panic_ends_its_query() {
        let queries = queries(LONG);
        for _ in 0..9 {
            let panicking = || queries.find_or_ask(&key("a1"), "a", || panic!("as intended"));
            assert!(catch_unwind(AssertUnwindSafe(panicking)).is_err());
        }
        assert_eq!(queries.find_or_ask(&key("a1"), "a", || python("3.12")), python("3.12"));
    }
}
