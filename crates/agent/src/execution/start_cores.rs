//! The cores of a lease, lent to the work that its start needs: a query of an image, a build of kernels.
//!
//! Cores are leased again once their lease has ended. So the work does not outlast the lease: the lease's supervisor calls
//! the cores back, the work kills its processes, and only then are the cores free. Another lease that waits for the same
//! work begins it anew on its own cores: see [`shared_work`](crate::execution::shared_work).
//!
//! Invariants:
//! - No work begins on cores that were called back.
//! - A [`CoreLoan`] ends when no process of the work is left. Cores on which a process cannot be killed are never lent
//!   again.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use sublet_fabric::sync::lock;
use sublet_proto::{Code, Error};

use crate::execution::shared_work::WorkEnd;
use crate::machine::resources::ResourceReservation;
use crate::signal::Signal;

/// See the [module](self).
pub(crate) struct StartCores {
    numbers: Vec<u32>,
    /// Raised once the cores are called back.
    called_back: Signal,
    state: Mutex<LoanState>,
    /// Notified when a loan ends.
    returned: Condvar,
}

#[derive(Default)]
struct LoanState {
    is_over: bool,
    loans: u32,
    /// The lease's resources, if they outlast the lease because of a loan.
    reservation: Option<ResourceReservation>,
}

/// The right of work to use the cores. Dropping it says that no process of the work is left.
pub(crate) struct CoreLoan {
    cores: Arc<StartCores>,
    is_lost: bool,
}

impl StartCores {
    pub(crate) fn new(numbers: Vec<u32>) -> Result<Arc<StartCores>, Error> {
        let (state, returned) = (Mutex::default(), Condvar::new());
        Ok(Arc::new(StartCores { numbers, called_back: Signal::new()?, state, returned }))
    }

    /// Lends the cores to work.
    ///
    /// # Errors
    /// `lease_ended` if they were called back.
    pub(crate) fn lend(self: &Arc<StartCores>) -> Result<CoreLoan, Error> {
        let mut state = lock(&self.state);
        if state.is_over {
            return Err(lease_ended());
        }
        state.loans += 1;
        Ok(CoreLoan { cores: self.clone(), is_lost: false })
    }

    /// The end of work on these cores. If they were called back, a failure says nothing about the work.
    pub(crate) fn end_of<T>(&self, outcome: Result<T, Error>) -> WorkEnd<T> {
        match outcome {
            Err(error) if lock(&self.state).is_over => WorkEnd::GivenUp(error),
            outcome => WorkEnd::Done(outcome),
        }
    }

    /// Calls the cores back, and waits at most until then. Returns whether no work uses them.
    pub(crate) fn call_back(&self, until: Instant) -> bool {
        let mut state = lock(&self.state);
        state.is_over = true;
        self.called_back.raise();
        while state.loans > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            (state, _) = self.returned.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// Gives the resources of the lease back once no work uses the cores, which were called back.
    pub(crate) fn keep(&self, reservation: ResourceReservation) {
        let mut state = lock(&self.state);
        debug_assert!(state.is_over, "cores {:?} are kept and still lent", self.numbers);
        if state.loans > 0 {
            state.reservation = Some(reservation);
        }
    }
}

impl CoreLoan {
    /// Numbers of the cores.
    pub(crate) fn numbers(&self) -> &[u32] {
        &self.cores.numbers
    }

    /// A descriptor that is readable once the cores are called back.
    pub(crate) fn called_back(&self) -> BorrowedFd<'_> {
        self.cores.called_back.as_fd()
    }

    /// Notes that a process of the work cannot be killed.
    pub(crate) fn lose(&mut self) {
        self.is_lost = true;
    }
}

impl Drop for CoreLoan {
    fn drop(&mut self) {
        if self.is_lost {
            // A reservation that is kept here is never given back.
            std::mem::forget(self.cores.clone());
            return;
        }
        let mut state = lock(&self.cores.state);
        state.loans -= 1;
        let free = if state.loans == 0 { state.reservation.take() } else { None };
        drop(state);
        drop(free);
        self.cores.returned.notify_all();
    }
}

/// The error of work that ends because its lease has.
pub(crate) fn lease_ended() -> Error {
    Error::new(Code::LeaseEnded, "the lease has ended before its worker was started")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::machine::capacity::Cores;
    use crate::machine::resources::{FreeResources, ResourcePool, ResourceRequest};
    use crate::signal::wait_readable;

    const ONE_CORE: ResourceRequest = ResourceRequest { cores: 1, memory_bytes: 1, shared: false };

    fn pool() -> ResourcePool {
        let cores = Cores { exclusive: vec![7], shared: Vec::new() };
        ResourcePool::new(FreeResources::new(cores, 1, 0).unwrap())
    }

    fn now() -> Instant {
        Instant::now()
    }

    #[test]
    fn work_notices_that_its_cores_are_called_back() {
        let cores = StartCores::new(vec![7]).unwrap();
        let loan = cores.lend().unwrap();
        assert_eq!(loan.numbers(), [7]);
        assert_eq!(wait_readable([Some(loan.called_back())], Some(now())).unwrap(), [false]);
        let failed = || Err::<(), Error>(Error::new(Code::System, "no report"));
        assert!(matches!(cores.end_of(failed()), WorkEnd::Done(Err(_))));
        std::thread::scope(|scope| {
            let end = scope.spawn(|| cores.call_back(now() + Duration::from_secs(3600)));
            assert_eq!(wait_readable([Some(loan.called_back())], None).unwrap(), [true]);
            assert!(!end.is_finished());
            assert_eq!(cores.lend().err().map(|error| error.code), Some(Code::LeaseEnded));
            assert!(matches!(cores.end_of(failed()), WorkEnd::GivenUp(_)));
            assert!(matches!(cores.end_of(Ok(1)), WorkEnd::Done(Ok(1))));
            drop(loan);
            assert!(end.join().unwrap());
        });
    }

    #[test]
    fn cores_are_free_once_the_last_work_has_ended() {
        let pool = pool();
        let reservation = pool.reserve(&ONE_CORE).unwrap();
        let cores = StartCores::new(reservation.cores.clone()).unwrap();
        let loans = [cores.lend().unwrap(), cores.lend().unwrap()];
        assert!(!cores.call_back(now()));
        cores.keep(reservation);
        for loan in loans {
            assert_eq!(pool.reserve(&ONE_CORE).unwrap_err().code, Code::NoCapacity);
            drop(loan);
        }
        drop(pool.reserve(&ONE_CORE).unwrap());
    }

    #[test]
    fn cores_of_an_unkillable_process_are_never_free() {
        let pool = pool();
        let reservation = pool.reserve(&ONE_CORE).unwrap();
        let cores = StartCores::new(reservation.cores.clone()).unwrap();
        let mut loan = cores.lend().unwrap();
        loan.lose();
        drop(loan);
        assert!(!cores.call_back(now()));
        cores.keep(reservation);
        drop(cores);
        assert_eq!(pool.reserve(&ONE_CORE).unwrap_err().code, Code::NoCapacity);
    }
}
