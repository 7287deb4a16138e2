//! Telling a lease's worker process of the run for which it executes a component.

use std::os::fd::BorrowedFd;

use sublet_fabric::sync::Ordering;
use sublet_proto::v1::{self, client_to_worker, worker_to_client};
use sublet_proto::{Code, Error};

use super::link::{lock, protocol};
use super::{Lease, RUNNING};

impl Lease {
    /// Tells the process that runs, and gives it the socket on which it asks for memory. Says how many processes of the lease
    /// had ended before that one.
    ///
    /// # Errors
    /// `worker_died` if none runs, and `fabric_unavailable` if it is on another machine and is to access memory.
    pub(crate) fn tell_run(&self, run: v1::Run, socket: Option<BorrowedFd<'_>>) -> Result<u64, Error> {
        if socket.is_some() && self.carrier.remote().is_some() {
            let (lease, node) = (self.id(), &self.description.node);
            let message = format!(
                "the workers of lease {lease} are on node {node}, which this machine shares no memory with: memory components do not reach them"
            );
            return Err(Error::new(Code::FabricUnavailable, message));
        }
        let control = lock(&self.link.control);
        if self.status.load(Ordering::Acquire) != RUNNING {
            return Err(Error::new(Code::WorkerDied, "the worker ended before it was told of its run"));
        }
        let sockets: Vec<BorrowedFd<'_>> = socket.into_iter().collect();
        match self.ask_worker(&control, client_to_worker::Body::Run(run), &sockets)? {
            worker_to_client::Body::RunTaken(_) => Ok(control.exits),
            other => Err(protocol(format!("the worker answered a run with {other:?}"))),
        }
    }

    /// How many of its worker processes have ended.
    pub(crate) fn exits(&self) -> u64 {
        lock(&self.link.ended).exits
    }
}
