//! Copies and ends the sockets that agents keep of connections between processes.

use std::net::{Shutdown, TcpStream};

use sublet_proto::{Code, Error};

/// Ends a connection, whatever its two processes do.
pub(super) fn cut(socket: &TcpStream) {
    // A connection that has ended already needs nothing more.
    let _ = socket.shutdown(Shutdown::Both);
}

pub(super) fn copy(socket: &TcpStream) -> Result<TcpStream, Error> {
    socket.try_clone().map_err(|error| Error::new(Code::System, format!("dup of a connection: {error}")))
}
