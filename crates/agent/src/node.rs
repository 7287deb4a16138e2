//! What the threads of one agent share.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;

use sublet_fabric::clock::{Calibration, unix_ms};
use sublet_proto::ticket::Verifying;
use sublet_proto::v1::{Lease, NodeDescription};
use sublet_proto::{Code, Error};

use crate::ledger::Ledger;
use crate::packages::Packages;
use crate::resources::Pool;
use crate::signal::Signal;

/// One node, as its supervisors, its acceptor and its reporter see it.
pub(crate) struct Node {
    /// What the manager knows of the node; fixed for the agent's life.
    pub(crate) description: NodeDescription,
    /// The worker program.
    pub(crate) worker: PathBuf,
    /// Of the time-stamp counter, since the agent's start.
    pub(crate) calibration: Calibration,
    pub(crate) pool: Pool,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) packages: Packages,
    /// Raised when the agent stops; whoever waits for a client watches it.
    pub(crate) stopping: Signal,
    /// The manager's key, from the first registration on; written by the reporter.
    pub(crate) verifying: RwLock<Option<Verifying>>,
}

impl Node {
    /// Starts a thread of the agent.
    pub(crate) fn spawn(
        self: &Arc<Node>,
        name: &str,
        body: impl FnOnce(&Arc<Node>) + Send + 'static,
    ) -> Result<JoinHandle<()>, Error> {
        let node = self.clone();
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || body(&node))
            .map_err(|error| Error::new(Code::System, format!("cannot start the thread {name}: {error}")))
    }

    pub(crate) fn set_verifying(&self, key: Verifying) {
        *self.verifying.write().unwrap_or_else(PoisonError::into_inner) = Some(key);
    }

    /// The lease that a ticket grants on this node.
    pub(crate) fn verify(&self, ticket: &[u8]) -> Result<Lease, Error> {
        let denied = |message: String| Error::new(Code::PermissionDenied, message);
        let verifying = self.verifying.read().unwrap_or_else(PoisonError::into_inner).clone();
        let verifying =
            verifying.ok_or_else(|| denied("the node is not registered with a manager".into()))?;
        let ticket = verifying.verify(ticket, unix_ms())?;
        let lease = ticket.lease.ok_or_else(|| denied("the ticket names no lease".into()))?;
        if lease.node != self.description.name {
            let name = &self.description.name;
            return Err(denied(format!("the ticket is for node {:?}, and this is {name:?}", lease.node)));
        }
        Ok(lease)
    }
}
