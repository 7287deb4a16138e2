//! A connection from the network, until it is known what it is: a client's that shows a ticket, or a worker's that
//! proves to be of a lease. Anything else is refused with the reason, if it speaks this language at all, and logged.

use std::net::TcpStream;
use std::sync::Arc;

use sublet_fabric::connection::Connection;
use sublet_fabric::greeting::{ConnectionPurpose, Greeting};
use sublet_fabric::remote::RemoteSocket;
use sublet_proto::{Code, Error};

use crate::listener::connection;
use crate::listener::connections::ConnectionEntry;
use crate::node::Node;

/// The body of a connection's thread.
pub(crate) fn receive(node: &Arc<Node>, socket: TcpStream, entry: ConnectionEntry) {
    if let Err(error) = greet(node, socket, entry) {
        node.clients.connections.note_refused(&error);
    }
}

fn greet(node: &Arc<Node>, socket: TcpStream, entry: ConnectionEntry) -> Result<(), Error> {
    let listener_state = node
        .clients
        .listener_state
        .as_ref()
        .ok_or_else(|| Error::new(Code::Internal, "a connection through no port"))?;
    let greeting = Greeting::receive(&socket)?;
    match greeting.kind {
        ConnectionPurpose::Data(link) => match node.links.shim.arrive(&link, &socket, &greeting) {
            Some(arrived) => arrived,
            None => listener_state.links.arrive(link, socket, greeting),
        },
        ConnectionPurpose::Bridge(link) => node.links.carry(&link, &socket, &greeting, || drop(entry)),
        ConnectionPurpose::Control => {
            greeting.accept(&socket)?;
            let remote = RemoteSocket::accept(socket, &listener_state.identity)?;
            connection::serve(node, Connection::Remote(remote), entry);
            Ok(())
        }
    }
}
