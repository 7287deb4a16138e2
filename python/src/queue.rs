//! Calls that may have ended, for the one thread that completes futures that no other thread waits for.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

use pyo3::prelude::*;

/// The numbers of calls whose wakers were called.
#[pyclass(name = "Queue", frozen, module = "sublet._native")]
pub struct PyQueue(Arc<QueueState>);

#[derive(Default)]
struct QueueState {
    woken: Mutex<VecDeque<u64>>,
    more: Condvar,
}

/// Puts one call's number into the queue.
struct QueueBell {
    queue: Arc<QueueState>,
    number: u64,
}

impl Wake for QueueBell {
    fn wake(self: Arc<QueueBell>) {
        self.queue.lock().push_back(self.number);
        self.queue.more.notify_one();
    }
}

impl QueueState {
    fn lock(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PyQueue {
    /// Returns a waker that puts this number into the queue.
    pub fn waker(&self, number: u64) -> Waker {
        Waker::from(Arc::new(QueueBell { queue: self.0.clone(), number }))
    }
}

#[pymethods]
impl PyQueue {
    #[new]
    fn new() -> PyQueue {
        PyQueue(Arc::default())
    }

    /// Puts a number into the queue.
    fn put(&self, number: u64) {
        self.waker(number).wake();
    }

    /// Takes all numbers from the queue; waits at most `timeout` seconds for the first one.
    fn take(&self, py: Python<'_>, timeout: f64) -> Vec<u64> {
        let timeout = Duration::try_from_secs_f64(timeout).unwrap_or_default();
        py.detach(|| {
            let waited = self.0.more.wait_timeout_while(self.0.lock(), timeout, |woken| woken.is_empty());
            let (mut woken, _) = waited.unwrap_or_else(PoisonError::into_inner);
            woken.drain(..).collect()
        })
    }
}
