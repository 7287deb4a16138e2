//! Background tasks: each runs on a thread of its own, while a supervisor waits for its outcome and for events of its
//! lease.

use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use sublet_fabric::sync::lock;
use sublet_proto::{Code, Error};

use crate::signal::Signal;
use crate::threads::start_thread;

/// A background task with an outcome. The thread runs to its end even if this handle is dropped.
pub(crate) struct BackgroundTask<T>(Arc<TaskOutcome<T>>);

struct TaskOutcome<T> {
    /// Raised when the outcome is available.
    signal: Signal,
    value: Mutex<Option<Result<T, Error>>>,
}

impl<T: Clone + Send + 'static> BackgroundTask<T> {
    /// Starts the task on a thread of the given name.
    pub(crate) fn begin(
        name: &str,
        run: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<(BackgroundTask<T>, JoinHandle<()>), Error> {
        let outcome = Arc::new(TaskOutcome { signal: Signal::new()?, value: Mutex::new(None) });
        let done = outcome.clone();
        let failed = format!("{name} has failed");
        let body = move || {
            // A panic becomes an outcome as well, so that the waiting supervisor does not wait forever.
            let value = catch_unwind(AssertUnwindSafe(run));
            *lock(&done.value) = Some(value.unwrap_or_else(|_| Err(Error::new(Code::Internal, failed))));
            done.signal.raise();
        };
        Ok((BackgroundTask(outcome), start_thread(name, body)?))
    }

    /// Outcome of the task, or `None` while it runs.
    pub(crate) fn outcome(&self) -> Option<Result<T, Error>> {
        lock(&self.0.value).clone()
    }
}

impl<T> AsFd for BackgroundTask<T> {
    /// A descriptor that is readable once the outcome is available.
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
    fn announces_an_outcome_and_a_panic() {
        let (go, wait) = channel();
        let (task, thread) = BackgroundTask::begin("slow", move || {
            wait.recv().unwrap();
            Ok(7)
        })
        .unwrap();
        assert_eq!(wait_readable([Some(task.as_fd())], Some(Instant::now())).unwrap(), [false]);
        assert_eq!(task.outcome(), None);
        go.send(()).unwrap();
        assert_eq!(wait_readable([Some(task.as_fd())], None).unwrap(), [true]);
        assert_eq!(task.outcome(), Some(Ok(7)));
        thread.join().unwrap();

        let (broken, _thread) = BackgroundTask::<u32>::begin("broken", || panic!("as it is to")).unwrap();
        assert_eq!(wait_readable([Some(broken.as_fd())], None).unwrap(), [true]);
        assert_eq!(broken.outcome().unwrap().unwrap_err().code, Code::Internal);
    }
}
