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
pub(crate) mod shared_connection;
pub(crate) mod transport;
pub(crate) mod unauthenticated;
