//! A control connection to an end on this machine or on another.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::packet::{Packet, PacketError, PacketSocket};
use crate::remote::RemoteSocket;

/// One end of a connection that carries messages. A connection within one machine also carries descriptors.
#[derive(Debug)]
pub enum Connection {
    /// Over a Unix socket.
    Local(PacketSocket),
    /// Over TLS.
    Remote(RemoteSocket),
}

impl Connection {
    /// Sends a message; see [`PacketSocket::send`] and [`RemoteSocket::send`]. Descriptors do not leave a machine:
    /// sending some to a remote end is a [`PacketError::Protocol`].
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), PacketError> {
        match self {
            Connection::Local(socket) => socket.send(bytes, fds),
            Connection::Remote(socket) if fds.is_empty() => socket.send(bytes),
            Connection::Remote(_) => {
                let message = format!("{} descriptors cannot be sent to another machine", fds.len());
                Err(PacketError::Protocol(message))
            }
        }
    }

    /// Receives a message; see [`PacketSocket::receive`] and [`RemoteSocket::receive`]. After poll(2) reports the
    /// descriptor as readable, receive with a timeout of zero until that times out.
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Option<Packet>, PacketError> {
        match self {
            Connection::Local(socket) => socket.receive(timeout),
            Connection::Remote(socket) => socket.receive(timeout),
        }
    }

    /// Sets the longest time that [`Connection::send`] waits for a peer that does not receive.
    pub fn set_send_timeout(&self, timeout: Duration) -> Result<(), PacketError> {
        match self {
            Connection::Local(socket) => socket.set_send_timeout(timeout),
            Connection::Remote(socket) => {
                socket.set_send_timeout(timeout);
                Ok(())
            }
        }
    }

    /// The user of the process that made the other end. `None` if that process runs on another machine.
    pub fn peer_uid(&self) -> Result<Option<u32>, PacketError> {
        match self {
            Connection::Local(socket) => socket.peer_uid().map(Some),
            Connection::Remote(_) => Ok(None),
        }
    }

    /// Whether the other end is on another machine.
    pub fn is_remote(&self) -> bool {
        matches!(self, Connection::Remote(_))
    }

    /// Reason why the peer is gone, if the connection knows one.
    pub fn gone(&self) -> Option<String> {
        match self {
            Connection::Local(_) => None,
            Connection::Remote(socket) => socket.gone(),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Connection::Local(socket) => socket.as_fd(),
            Connection::Remote(socket) => socket.as_fd(),
        }
    }
}

impl From<PacketSocket> for Connection {
    fn from(socket: PacketSocket) -> Connection {
        Connection::Local(socket)
    }
}

impl From<RemoteSocket> for Connection {
    fn from(socket: RemoteSocket) -> Connection {
        Connection::Remote(socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote;
    use std::os::fd::AsFd;

    #[test]
    fn descriptors_stay_on_their_machine() {
        let (here, there) = remote::tests::pair();
        let (here, there) = (Connection::from(here), Connection::from(there));
        let refused = here.send(b"x", &[here.as_fd()]);
        assert!(matches!(refused, Err(PacketError::Protocol(_))), "{refused:?}");
        here.send(b"y", &[]).unwrap();
        assert_eq!(there.receive(None).unwrap().unwrap().bytes, b"y");
        assert_eq!((here.peer_uid().unwrap(), here.is_remote()), (None, true));
    }

    #[test]
    fn within_a_machine_it_is_a_packet_socket() {
        let (here, there) = PacketSocket::pair().unwrap();
        let (here, there) = (Connection::from(here), Connection::from(there));
        here.send(b"x", &[there.as_fd()]).unwrap();
        assert_eq!(there.receive(None).unwrap().unwrap().fds.len(), 1);
        assert_eq!(here.peer_uid().unwrap(), Some(rustix::process::getuid().as_raw()));
    }
}
