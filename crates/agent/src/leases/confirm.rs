//! Verification of a provisional ticket: a thread of its own asks the manager while the lease's worker starts.
//!
//! Nothing of the lease is handed to the client before the answer. Dropping the [`Confirmation`] ends the request and
//! its thread.

use std::os::fd::{AsFd, BorrowedFd};
use std::thread::JoinHandle;

use sublet_proto::{Code, Error};
use tokio::sync::oneshot;

use crate::execution::background_task::BackgroundTask;
use crate::leases::manager::ManagerLink;

/// A request to the manager. It ends when this is dropped.
pub(crate) struct Confirmation {
    answer: BackgroundTask<Vec<u8>>,
    give_up: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Confirmation {
    /// Asks whether a lease may be taken up.
    pub(crate) fn ask(mut manager: ManagerLink, lease: &str) -> Result<Confirmation, Error> {
        let (give_up, given_up) = oneshot::channel();
        let lease = lease.to_owned();
        let ask = move || manager.confirm(&lease, given_up).map_err(|error| unverified(&lease, error));
        let (answer, thread) = BackgroundTask::begin("sublet-confirm", ask)?;
        Ok(Confirmation { answer, give_up: Some(give_up), thread: Some(thread) })
    }

    /// Answer of the manager, if there is one: the ticket by which the lease is held from now on.
    pub(crate) fn outcome(&self) -> Option<Result<Vec<u8>, Error>> {
        self.answer.outcome()
    }
}

impl AsFd for Confirmation {
    /// A descriptor that is readable once the answer is available.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.answer.as_fd()
    }
}

impl Drop for Confirmation {
    fn drop(&mut self) {
        drop(self.give_up.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a question to the manager has failed");
        }
    }
}

/// Turns a missing answer into a refusal: a manager that does not answer has not verified the token.
fn unverified(lease: &str, error: Error) -> Error {
    match error.code {
        Code::ManagerUnreachable | Code::StoreUnreachable => {
            let message = format!("the token behind lease {lease} could not be verified: {error}");
            Error::new(Code::PermissionDenied, message)
        }
        _ => error,
    }
}
