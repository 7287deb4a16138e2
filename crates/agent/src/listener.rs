//! Takes connections, limits those that are not authenticated, and matches authenticated ones with their lease.
//!
//! A connection comes at the agent's socket or at its TCP port. Its first message says what it is for: a client shows a
//! ticket, a worker of a neighbour proves that it belongs to a lease, the operator gives a command.

pub(crate) mod acceptor;
pub(crate) mod arrivals;
pub(crate) mod command;
pub(crate) mod connection;
pub(crate) mod connections;
pub(crate) mod invited_readers;
pub(crate) mod message;
pub(crate) mod network;
pub(crate) mod pace;
pub(crate) mod secret;
pub(crate) mod shared_connection;
pub(crate) mod transport;
pub(crate) mod unauthenticated;

use std::sync::{Arc, Mutex};

use sublet_fabric::progress::ProgressThread;
use sublet_fabric::sync::lock;
use sublet_proto::Error;

use connections::{Connections, UnauthenticatedLimits};
use network::ListenerState;

/// Users whose clients an agent serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientUsers {
    /// Clients of the agent's own user, and of root.
    #[default]
    OwnUser,
    /// Clients of all users of the machine: a ticket is all the authority that they need.
    AllUsers,
}

/// Clients that may reach the agent, and their connections.
pub(crate) struct ClientAccess {
    pub(crate) users: ClientUsers,
    /// Connections that have shown no ticket.
    pub(crate) connections: Arc<Connections>,
    /// Listener for clients of other machines, if they may connect.
    pub(crate) listener_state: Option<ListenerState>,
    /// Serves the memory of segments to clients of other machines, from the first one on.
    serving: Mutex<Option<Arc<ProgressThread>>>,
}

impl ClientAccess {
    pub(crate) fn new(
        users: ClientUsers,
        limits: UnauthenticatedLimits,
        listener_state: Option<ListenerState>,
    ) -> ClientAccess {
        let connections = Connections::new(limits);
        ClientAccess { users, connections, listener_state, serving: Mutex::default() }
    }

    /// The thread that serves memory.
    pub(crate) fn progress(&self) -> Result<Arc<ProgressThread>, Error> {
        let mut serving = lock(&self.serving);
        if let Some(progress) = &*serving {
            return Ok(progress.clone());
        }
        Ok(serving.insert(Arc::new(ProgressThread::start()?)).clone())
    }
}
