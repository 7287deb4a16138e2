//! Something that takes long, done on a thread of its own, while a supervisor waits for whatever may happen to its lease.

use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use sublet_fabric::sync::lock;
use sublet_proto::{Code, Error};

use crate::signal::Signal;
use crate::threads::start_thread;

/// Whoever no longer needs the outcome drops this; the thread goes on to its own end.
pub(crate) struct Errand<T>(Arc<Outcome<T>>);

struct Outcome<T> {
    /// Raised when it is there.
    signal: Signal,
    value: Mutex<Option<Result<T, Error>>>,
}

impl<T: Clone + Send + 'static> Errand<T> {
    /// Begins it.
    pub(crate) fn begin(
        name: &str,
        run: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<(Errand<T>, JoinHandle<()>), Error> {
        let outcome = Arc::new(Outcome { signal: Signal::new()?, value: Mutex::new(None) });
        let done = outcome.clone();
        let failed = format!("{name} has failed");
        let body = move || {
            // Whoever waits must not wait for ever.
            let value = catch_unwind(AssertUnwindSafe(run));
            *lock(&done.value) = Some(value.unwrap_or_else(|_| Err(Error::new(Code::Internal, failed))));
            done.signal.raise();
        };
        Ok((Errand(outcome), start_thread(name, body)?))
    }

    /// What has come of it, if it is over.
    pub(crate) fn outcome(&self) -> Option<Result<T, Error>> {
        lock(&self.0.value).clone()
    }
}

impl<T> AsFd for Errand<T> {
    /// Readable once the outcome is there.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.signal.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signal::wait_readable;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    #[test]
    fn the_outcome_is_announced_when_it_is_there_and_so_is_a_failure() {
        let (go, wait) = channel();
        let (errand, thread) = Errand::begin("slow", move || {
            wait.recv().unwrap();
            Ok(7)
        })
        .unwrap();
        assert_eq!(wait_readable([Some(errand.as_fd())], Some(Instant::now())).unwrap(), [false]);
        assert_eq!(errand.outcome(), None);
        go.send(()).unwrap();
        assert_eq!(wait_readable([Some(errand.as_fd())], None).unwrap(), [true]);
        assert_eq!(errand.outcome(), Some(Ok(7)));
        thread.join().unwrap();

        let (broken, _thread) = Errand::<u32>::begin("broken", || panic!("as it is to")).unwrap();
        assert_eq!(wait_readable([Some(broken.as_fd())], None).unwrap(), [true]);
        assert_eq!(broken.outcome().unwrap().unwrap_err().code, Code::Internal);
    }
}
