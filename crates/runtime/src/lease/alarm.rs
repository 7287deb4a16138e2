//! Wake-ups at a time: futures of calls that were turned away sleep a little before they are sent again.
//!
//! The lease's thread keeps them, as it sleeps anyway. Each uncollected call sets at most one at a time, which bounds
//! how many there are.

use std::sync::{Mutex, MutexGuard};
use std::task::Waker;
use std::time::Instant;

use sublet_fabric::sync::lock;

/// The wakers to call, with their times.
pub(super) struct Alarms {
    /// `None` once the lease's thread has stopped: it calls no further wakers.
    set: Mutex<Option<Vec<(Instant, Waker)>>>,
}

impl Alarms {
    pub(super) fn new() -> Alarms {
        Alarms { set: Mutex::new(Some(Vec::new())) }
    }

    /// Has the waker called at that time. If the lease's thread has stopped, calls it at once and returns `false`.
    pub(super) fn set(&self, at: Instant, waker: &Waker) -> bool {
        match &mut *self.lock() {
            Some(alarms) => alarms.push((at, waker.clone())),
            None => {
                waker.wake_by_ref();
                return false;
            }
        }
        true
    }

    /// Calls the wakers whose time has come. Returns the time of the next one.
    pub(super) fn ring(&self, now: Instant) -> Option<Instant> {
        let mut due = Vec::new();
        let next = {
            let mut set = self.lock();
            let alarms = set.as_mut()?;
            due.extend(alarms.extract_if(.., |(at, _)| *at <= now));
            alarms.iter().map(|&(at, _)| at).min()
        };
        // The lock is released before: a woken task may set the next alarm.
        due.into_iter().for_each(|(_, waker)| waker.wake());
        next
    }

    /// Calls all wakers, and accepts no further alarms.
    pub(super) fn close(&self) {
        let all = self.lock().take();
        all.into_iter().flatten().for_each(|(_, waker)| waker.wake());
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<(Instant, Waker)>>> {
        lock(&self.set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;
    use std::time::Duration;

    #[derive(Default)]
    struct Count(AtomicU32);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn alarms_ring_once_in_time_and_all_on_close() {
        let (alarms, count) = (Alarms::new(), Arc::new(Count::default()));
        let waker = Waker::from(count.clone());
        let rung = || count.0.load(Ordering::SeqCst);
        let now = Instant::now();
        let later = now + Duration::from_secs(60);
        assert!(alarms.set(now, &waker) && alarms.set(later, &waker));
        assert_eq!((alarms.ring(now), rung()), (Some(later), 1));
        assert_eq!((alarms.ring(now), rung()), (Some(later), 1));
        alarms.close();
        assert_eq!((alarms.ring(later), rung()), (None, 2));
        assert!(!alarms.set(later, &waker));
        assert_eq!(rung(), 3);
    }
}
