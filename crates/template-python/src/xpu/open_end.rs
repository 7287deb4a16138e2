//! Lends an end of a FIFO, an executor or a chain to one thread at a time, until it is closed.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use sublet_proto::{Code, Error};
use sublet_xpu::GlobalId;

use super::forks::{check_not_forked, is_forked};
use crate::component::raised;

/// Interval at which a waiting thread checks whether it was interrupted.
const TICK: Duration = Duration::from_millis(50);

/// An end of a FIFO, an executor or a chain of them, until it is closed.
pub(super) struct OpenEnd<T> {
    /// The kind of the end, in words for messages.
    what: &'static str,
    /// The FIFO or the process that the end belongs to; for a chain, the process of its entry.
    pub(super) object: GlobalId,
    place: Mutex<EndOwner<T>>,
    /// Signals that the end is here again, or closed.
    changed: Condvar,
}

/// Owner of an end: none, a thread, or none any more because it was closed.
enum EndOwner<T> {
    Here(T),
    /// A thread has taken it.
    Taken,
    Closed,
}

/// An end that a thread has taken, which it puts back.
pub(super) struct TakenEnd<'end, T> {
    pub(super) from: &'end OpenEnd<T>,
    /// The end, until it is put back.
    pub(super) end: Option<T>,
}

impl<T: Send> OpenEnd<T> {
    pub(super) fn new(what: &'static str, object: GlobalId, end: T) -> OpenEnd<T> {
        let (place, changed) = (Mutex::new(EndOwner::Here(end)), Condvar::new());
        OpenEnd { what, object, place, changed }
    }

    /// Locks the place of the end. The lock is held for moments, and never while its holder waits for anything else.
    fn lock(&self) -> MutexGuard<'_, EndOwner<T>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self, py: Python<'_>, until: Option<Instant>) -> PyResult<TakenEnd<'_, T>> {
        check_not_forked().map_err(|error| raised(py, &error))?;
        let end = wait(py, until, |tick| self.take_until(tick))?;
        Ok(TakenEnd { from: self, end: Some(end) })
    }

    fn take_until(&self, until: Option<Instant>) -> Result<T, Error> {
        let mut place = self.lock();
        loop {
            match std::mem::replace(&mut *place, EndOwner::Taken) {
                EndOwner::Here(end) => return Ok(end),
                EndOwner::Taken => {}
                EndOwner::Closed => {
                    *place = EndOwner::Closed;
                    return Err(self.closed());
                }
            }
            let left = until.map_or(TICK, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                let message = format!("another thread uses {} {}", self.what, self.object);
                return Err(Error::new(Code::DeadlineExceeded, message));
            }
            place = self.changed.wait_timeout(place, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Fails if another thread has closed the end.
    fn check_open(&self) -> Result<(), Error> {
        if self.is_closed() { Err(self.closed()) } else { Ok(()) }
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(*self.lock(), EndOwner::Closed)
    }

    /// Closes the end. A second call does nothing.
    pub(super) fn close(&self, py: Python<'_>) -> PyResult<()> {
        check_not_forked().map_err(|error| raised(py, &error))?;
        // The value is dropped, which informs the shim, after the lock has been released.
        py.detach(|| {
            let before = std::mem::replace(&mut *self.lock(), EndOwner::Closed);
            self.changed.notify_all();
            drop(before);
        });
        Ok(())
    }

    #[cold]
    pub(super) fn closed(&self) -> Error {
        Error::new(Code::InvalidArgument, format!("{} {} was closed", self.what, self.object))
    }
}

impl<T> Drop for OpenEnd<T> {
    fn drop(&mut self) {
        if is_forked() {
            let place = self.place.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::replace(place, EndOwner::Closed));
        }
    }
}

impl<T: Send> TakenEnd<'_, T> {
    /// Repeats an attempt with the end like [`wait`]. Fails if the end is closed meanwhile.
    pub(super) fn wait<R: Send>(
        &mut self,
        py: Python<'_>,
        until: Option<Instant>,
        mut attempt: impl FnMut(&mut T, Option<Instant>) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let from = self.from;
        let Some(end) = &mut self.end else { return Err(raised(py, &from.closed())) };
        wait(py, until, |tick| {
            from.check_open()?;
            attempt(end, tick)
        })
    }
}

impl<T> Drop for TakenEnd<'_, T> {
    fn drop(&mut self) {
        // A child that was forked by a signal handler meanwhile releases nothing.
        if is_forked() {
            return std::mem::forget(self.end.take());
        }
        let mut place = self.from.place.lock().unwrap_or_else(PoisonError::into_inner);
        debug_assert!(
            !matches!(*place, EndOwner::Here(_)),
            "two threads use {} {}",
            self.from.what,
            self.from.object
        );
        // An end that was closed meanwhile is released after the lock.
        if let EndOwner::Taken = *place
            && let Some(end) = self.end.take()
        {
            *place = EndOwner::Here(end);
            self.from.changed.notify_one();
        }
    }
}

/// Repeats an attempt of at most [`TICK`] until it succeeds or the deadline passes. Checks for signals in between.
pub(super) fn wait<T: Send>(
    py: Python<'_>,
    until: Option<Instant>,
    mut attempt: impl FnMut(Option<Instant>) -> Result<T, Error> + Send,
) -> PyResult<T> {
    loop {
        let tick = Instant::now() + TICK;
        let last = until.filter(|until| *until <= tick);
        match py.detach(|| attempt(Some(last.unwrap_or(tick)))) {
            Err(error) if error.code == Code::DeadlineExceeded && last.is_none() => py.check_signals()?,
            tried => return tried.map_err(|error| raised(py, &error)),
        }
    }
}
