//! Shared work by the threads of leases: one thread executes it, the others that need its outcome wait.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use sublet_fabric::sync::lock;
use sublet_proto::{Code, Error};

use super::queue::{WorkBounds, WorkQueue};

/// Why a call has no outcome of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkRefusal {
    /// Too many calls of its tenant wait already.
    TooManyCalls,
    /// The call waited for too long.
    TooLate,
    /// The thread that executed the work has panicked.
    Panicked,
}

impl WorkRefusal {
    fn code(self) -> Code {
        match self {
            WorkRefusal::TooManyCalls | WorkRefusal::TooLate => Code::TryLater,
            WorkRefusal::Panicked => Code::Internal,
        }
    }
}

/// End of work.
#[derive(Debug)]
pub(crate) enum WorkEnd<T> {
    /// The outcome for all calls.
    Done(Result<T, Error>),
    /// This call cannot execute the work to its end, which says nothing about the work. The error is only for this call.
    GivenUp(Error),
}

/// Work of one kind on a node, by key.
pub(crate) struct SharedWork<K, T> {
    bounds: WorkBounds,
    /// The message of a refusal.
    describe: fn(WorkRefusal, &WorkBounds) -> String,
    queue: Mutex<WorkQueue<K, T>>,
    /// Notified when work ends or may begin.
    changed: Condvar,
}

/// Work that a thread executes. Dropping it ends the work, also after a panic.
struct BegunWork<'work, K: Clone + Ord, T: Clone> {
    shared: &'work SharedWork<K, T>,
    key: &'work K,
    /// Tenant of the call that executes it.
    tenant: &'work str,
    end: Option<WorkEnd<T>>,
}

impl<K: Clone + Ord, T: Clone> SharedWork<K, T> {
    pub(crate) fn new(
        bounds: WorkBounds,
        describe: fn(WorkRefusal, &WorkBounds) -> String,
    ) -> SharedWork<K, T> {
        let queue = Mutex::new(WorkQueue::new(bounds));
        SharedWork { bounds, describe, queue, changed: Condvar::new() }
    }

    /// The outcome of the work of a key, for a call of a tenant: the tenant of the lease, as a manager has signed it. It
    /// is empty for leases whose token no manager has verified yet: these count as one tenant, and so delay no lease of a
    /// verified one. The work is executed on this thread, or on that of another call.
    ///
    /// Another call may have ended the same work just before this one came. So work whose result is remembered looks that
    /// up first.
    ///
    /// # Errors
    /// Those of the work, and `try_later` if it is not executed in time.
    pub(crate) fn execute(
        &self,
        key: &K,
        tenant: &str,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.execute_unless_given_up(key, tenant, || WorkEnd::Done(work()))
    }

    /// The outcome of the work of a key, as [`SharedWork::execute`] returns it, for work that this call may give up. Another
    /// call that waits for it then executes it.
    ///
    /// # Errors
    /// Those of [`SharedWork::execute`], and that of work which this call gave up.
    pub(crate) fn execute_unless_given_up(
        &self,
        key: &K,
        tenant: &str,
        work: impl FnOnce() -> WorkEnd<T>,
    ) -> Result<T, Error> {
        let until = Instant::now() + self.bounds.patience;
        let mut queue = lock(&self.queue);
        let outcome = queue.join(key, tenant).ok_or_else(|| self.refusal(WorkRefusal::TooManyCalls))?;
        loop {
            if let Some(outcome) = outcome.get() {
                return outcome.clone();
            }
            if queue.begin(key) {
                drop(queue);
                return BegunWork { shared: self, key, tenant, end: None }.execute(work);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                queue.leave(key, tenant);
                self.changed.notify_all();
                return Err(self.refusal(WorkRefusal::TooLate));
            }
            (queue, _) = self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Number of calls that wait for the work of a key.
    #[cfg(test)]
    pub(crate) fn calls(&self, key: &K) -> usize {
        lock(&self.queue).calls(key)
    }

    fn refusal(&self, refusal: WorkRefusal) -> Error {
        Error::new(refusal.code(), (self.describe)(refusal, &self.bounds))
    }
}

impl<K: Clone + Ord, T: Clone> BegunWork<'_, K, T> {
    fn execute(mut self, work: impl FnOnce() -> WorkEnd<T>) -> Result<T, Error> {
        let end = work();
        let outcome = match &end {
            WorkEnd::Done(outcome) => outcome.clone(),
            WorkEnd::GivenUp(error) => Err(error.clone()),
        };
        self.end = Some(end);
        outcome
    }
}

impl<K: Clone + Ord, T: Clone> Drop for BegunWork<'_, K, T> {
    fn drop(&mut self) {
        let mut queue = lock(&self.shared.queue);
        match self.end.take() {
            Some(WorkEnd::Done(outcome)) => queue.finish(self.key, outcome),
            Some(WorkEnd::GivenUp(_)) => queue.give_up(self.key, self.tenant),
            None => queue.finish(self.key, Err(self.shared.refusal(WorkRefusal::Panicked))),
        }
        drop(queue);
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::channel;
    use std::thread::scope;
    use std::time::Duration;

    type Work = SharedWork<&'static str, u32>;

    fn work(patience: Duration) -> Work {
        let bounds = WorkBounds { of_node: 3, of_tenant: 2, calls_of_tenant: 4, patience };
        SharedWork::new(bounds, |refusal, bounds| format!("{refusal:?}: {} of a tenant", bounds.of_tenant))
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn serves_another_tenant_while_work_of_one_does_not_end() {
        let work = &work(LONG);
        scope(|scope| {
            let (begun, has_begun) = channel();
            let releases = ["a1", "a2"].map(|key| {
                let (release, released) = channel::<()>();
                let begun = begun.clone();
                scope.spawn(move || {
                    work.execute(&key, "a", || {
                        begun.send(()).unwrap();
                        released.recv().unwrap();
                        Ok(1)
                    })
                });
                release
            });
            (0..2).for_each(|_| has_begun.recv().unwrap());
            let third = scope.spawn(|| work.execute(&"a3", "a", || Ok(2)));
            assert_eq!(work.execute(&"b1", "b", || Ok(3)), Ok(3));
            assert!(!third.is_finished());
            releases.iter().for_each(|release| release.send(()).unwrap());
            assert_eq!(third.join().unwrap(), Ok(2));
        });
    }

    #[test]
    fn shares_a_failure_among_waiting_calls_and_executes_again() {
        let work = &work(LONG);
        let failed: Result<u32, Error> = Err(Error::new(Code::System, "no report"));
        scope(|scope| {
            let (begun, has_begun) = channel();
            let (release, released) = channel::<()>();
            let executing = scope.spawn(move || {
                work.execute(&"a1", "a", || {
                    begun.send(()).unwrap();
                    released.recv().unwrap();
                    Err(Error::new(Code::System, "no report"))
                })
            });
            has_begun.recv().unwrap();
            let others = ["a", "b"].map(|tenant| {
                let never = || panic!("the work is executed twice");
                scope.spawn(move || work.execute(&"a1", tenant, never))
            });
            while lock(&work.queue).calls(&"a1") < 3 {
                std::thread::yield_now();
            }
            release.send(()).unwrap();
            assert_eq!(executing.join().unwrap(), failed);
            others.into_iter().for_each(|other| assert_eq!(other.join().unwrap(), failed));
        });
        assert_eq!(work.execute(&"a1", "a", || Ok(1)), Ok(1));
    }

    #[test]
    fn a_waiting_call_executes_work_that_another_gives_up() {
        let work = &work(LONG);
        scope(|scope| {
            let (begun, has_begun) = channel();
            let (release, released) = channel::<()>();
            let ended = Error::new(Code::LeaseEnded, "the lease has ended");
            let given_up = ended.clone();
            let executing = scope.spawn(move || {
                work.execute_unless_given_up(&"a1", "a", || {
                    begun.send(()).unwrap();
                    released.recv().unwrap();
                    WorkEnd::GivenUp(given_up)
                })
            });
            has_begun.recv().unwrap();
            let waiting = scope.spawn(move || work.execute(&"a1", "b", || Ok(2)));
            while lock(&work.queue).calls(&"a1") < 2 {
                std::thread::yield_now();
            }
            release.send(()).unwrap();
            assert_eq!(executing.join().unwrap(), Err(ended));
            assert_eq!(waiting.join().unwrap(), Ok(2));
        });
        assert_eq!(work.execute(&"a1", "a", || Ok(3)), Ok(3));
    }

    #[test]
    fn a_call_gives_up_after_a_time() {
        let work = &work(Duration::from_millis(20));
        let late = work.execute(&"a1", "a", || {
            scope(|scope| {
                let never = || panic!("the work is executed twice");
                scope.spawn(move || work.execute(&"a1", "b", never)).join().unwrap()
            })
        });
        assert_eq!(late, Err(Error::new(Code::TryLater, "TooLate: 2 of a tenant")));
        assert_eq!(work.execute(&"a1", "b", || Ok(1)), Ok(1));
    }

    #[test]
    fn refuses_calls_beyond_the_bound_of_a_tenant() {
        let work = &work(LONG);
        scope(|scope| {
            let (begun, has_begun) = channel();
            let (release, released) = channel::<()>();
            scope.spawn(move || {
                work.execute(&"a1", "a", || {
                    begun.send(()).unwrap();
                    released.recv().unwrap();
                    Ok(1)
                })
            });
            has_begun.recv().unwrap();
            for _ in 0..3 {
                scope.spawn(move || work.execute(&"a1", "a", || Ok(2)));
            }
            while lock(&work.queue).calls(&"a1") < 4 {
                std::thread::yield_now();
            }
            let refused = work.execute(&"a2", "a", || Ok(3));
            assert_eq!(refused, Err(Error::new(Code::TryLater, "TooManyCalls: 2 of a tenant")));
            assert_eq!(work.execute(&"b1", "b", || Ok(4)), Ok(4));
            release.send(()).unwrap();
        });
    }

    #[test]
    fn a_panic_ends_its_work() {
        let work = work(LONG);
        for _ in 0..9 {
            let panicking = || work.execute(&"a1", "a", || panic!("as intended"));
            assert!(catch_unwind(AssertUnwindSafe(panicking)).is_err());
        }
        assert_eq!(work.execute(&"a1", "a", || Ok(1)), Ok(1));
    }
}
