//! One connection's thread: reads the first message and serves its sender. A client shows a ticket, an operator gives a
//! command.
//!
//! A network connection comes from a client, whose ticket is its authority. Commands are accepted only on the agent's
//! own socket.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sublet_fabric::connection::Connection;
use sublet_fabric::packet::{PacketError, PacketSocket};
use sublet_proto::v1::JoinShim;
use sublet_proto::{Code, Error};

use crate::leases::attach::attach;
use crate::listener::ClientUsers;
use crate::listener::command;
use crate::listener::connections::ConnectionEntry;
use crate::listener::message::{self, FromClient};
use crate::node::Node;
use crate::signal::wait_readable;
use crate::supervisor;

/// How long a connection may take to show its ticket.
const TICKET_PATIENCE: Duration = Duration::from_secs(5);
/// How long a client may take to free buffer space for a message. A client that does not receive blocks its thread for
/// no longer.
const SEND_PATIENCE: Duration = Duration::from_secs(1);

/// The body of a connection's thread. Its entry is dropped once its ticket was taken.
pub(crate) fn serve(node: &Arc<Node>, own: Connection, entry: ConnectionEntry) {
    let connection = &own;
    let first = prepare(node, connection).and_then(|()| first_message(node, connection));
    if let Ok(Some(FromClient::Shim(asked))) = &first {
        return neighbour(node, own, asked, || drop(entry));
    }
    let served = first.and_then(|first| match first {
        None => Ok(()),
        Some(FromClient::Attach(request)) => attach(node, connection, &request).map(|held| {
            drop(entry);
            supervisor::supervise(node, connection, held);
        }),
        Some(FromClient::Command(request)) => check_operator(connection)
            .and_then(|()| entry.command_given())
            .and_then(|()| command::obey(node, connection, &request)),
        Some(FromClient::Sandboxes(request)) => check_operator(connection)
            .and_then(|()| entry.command_given())
            .and_then(|()| command::make_sandboxes(node, connection, request)),
        Some(_) => Err(Error::new(Code::Protocol, "the first message of a client is not its ticket")),
    });
    if let Err(error) = served {
        node.clients.connections.note_refused(&error);
        // A client that does not listen is refused all the same.
        let _ = message::send(connection, message::failure(&error), &[]);
    }
}

/// Serves the agent of another node of the computer.
fn neighbour(node: &Arc<Node>, connection: Connection, asked: &JoinShim, known: impl FnOnce()) {
    let connection = Arc::new(connection);
    if let Err(error) = node.links.welcome(&connection, asked, known) {
        node.clients.connections.note("neighbours are not linked, or not any more", &error);
        let _ = message::send(&connection, message::failure(&error), &[]);
    }
}

/// Whether the peer is of this process's user, or root.
pub(crate) fn is_operator(socket: &PacketSocket) -> Result<bool, Error> {
    let uid = socket.peer_uid()?;
    Ok(uid == 0 || uid == rustix::process::geteuid().as_raw())
}

fn prepare(node: &Node, connection: &Connection) -> Result<(), Error> {
    connection.set_send_timeout(SEND_PATIENCE)?;
    match (connection, node.clients.users) {
        (Connection::Remote(_), _) | (_, ClientUsers::AllUsers) => Ok(()),
        // The socket's mode enforces the same.
        (Connection::Local(_), ClientUsers::OwnUser) => check_operator(connection),
    }
}

fn check_operator(connection: &Connection) -> Result<(), Error> {
    let Connection::Local(socket) = connection else {
        let message = "commands are taken on the agent's own socket, and not over the network";
        return Err(Error::new(Code::PermissionDenied, message));
    };
    if is_operator(socket)? {
        return Ok(());
    }
    let (uid, own) = (socket.peer_uid()?, rustix::process::geteuid().as_raw());
    let message = format!("this agent obeys user {own} and root, and not user {uid}");
    Err(Error::new(Code::PermissionDenied, message))
}

/// Receives the first message. Returns `None` if the client has gone or the agent stops.
fn first_message(node: &Node, connection: &Connection) -> Result<Option<FromClient>, Error> {
    let deadline = Instant::now() + TICKET_PATIENCE;
    loop {
        // The message may have arrived already, where no poll reports it.
        match connection.receive(Some(Duration::ZERO)) {
            Ok(packet) => return packet.map(|packet| message::parse(&packet.bytes)).transpose(),
            Err(PacketError::PeerGone) => return Ok(None),
            Err(PacketError::TimedOut(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let fds = [Some(connection.as_fd()), Some(node.stopping.as_fd())];
        let [readable, stopping] = wait_readable(fds, Some(deadline))?;
        if stopping {
            return Ok(None);
        }
        if !readable || Instant::now() >= deadline {
            let message = format!("no ticket was shown within {} s", TICKET_PATIENCE.as_secs());
            return Err(Error::new(Code::Protocol, message));
        }
    }
}
