//! The smallest executor.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

use crate::process::PATIENCE;

/// Wakes a thread, and counts how often.
struct Wakes(Thread, AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::AcqRel);
        self.0.unpark();
    }
}

/// Polls a future, and sleeps until it is woken. Gives how often that was, too.
///
/// # Panics
/// If it is not woken for [`PATIENCE`].
pub fn block_on<F: Future>(future: F) -> (F::Output, u32) {
    let wakes = Arc::new(Wakes(std::thread::current(), AtomicU32::new(0)));
    let waker = Waker::from(wakes.clone());
    let mut future = pin!(future);
    let since = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return (output, wakes.1.load(Ordering::Acquire));
        }
        assert!(since.elapsed() < PATIENCE, "the future is not woken");
        std::thread::park_timeout(PATIENCE);
    }
}
