//! The connection to a lease's agent: a Unix socket within a node, TLS between nodes. The messages are the same.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use prost::Message;
use sublet_fabric::packet::{Packet, PacketError, PacketSocket};
use sublet_fabric::remote::RemoteSocket;
use sublet_proto::v1::{self, client_to_agent};
use sublet_proto::{Code, Error};

/// Longest time that messages to an agent may stay unread in the sockets' buffers.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) enum AgentSocket {
    /// Descriptors travel beside messages.
    Local(PacketSocket),
    /// Messages between a client and its worker process travel inside of messages to the agent.
    Remote(RemoteSocket),
}

impl AgentSocket {
    /// A connection to an agent on another machine, whose certificate is known.
    pub(crate) fn remote(socket: RemoteSocket) -> AgentSocket {
        socket.set_send_timeout(SEND_TIMEOUT);
        AgentSocket::Remote(socket)
    }

    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, AgentSocket::Remote(_))
    }

    /// Address of the agent, over a network.
    pub(crate) fn peer_ip(&self) -> Option<IpAddr> {
        match self {
            AgentSocket::Local(_) => None,
            AgentSocket::Remote(socket) => socket.peer_address().ok().map(|address| address.ip()),
        }
    }

    /// Sends the agent a message.
    pub(crate) fn tell(&self, body: client_to_agent::Body) -> Result<(), Error> {
        let bytes = v1::ClientToAgent { body: Some(body) }.encode_to_vec();
        let sent = match self {
            AgentSocket::Local(socket) => socket.send(&bytes, &[]),
            AgentSocket::Remote(socket) => socket.send(&bytes),
        };
        sent.map_err(|error| {
            let why =
                if matches!(error, PacketError::PeerGone) { self.why_gone() } else { error.to_string() };
            Error::new(Code::AgentUnreachable, format!("cannot send to the lease's agent: {why}"))
        })
    }

    /// Receives the agent's next message; `None` once it has closed the connection.
    pub(crate) fn receive(&self, timeout: Option<Duration>) -> Result<Option<Packet>, PacketError> {
        match self {
            AgentSocket::Local(socket) => socket.receive(timeout),
            AgentSocket::Remote(socket) => socket.receive(timeout),
        }
    }

    /// Reason why the agent sends nothing any more.
    pub(crate) fn why_gone(&self) -> String {
        let reason = match self {
            AgentSocket::Local(_) => None,
            AgentSocket::Remote(socket) => socket.gone(),
        };
        reason.unwrap_or_else(|| "it closed the connection".to_owned())
    }
}

impl AsFd for AgentSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            AgentSocket::Local(socket) => socket.as_fd(),
            AgentSocket::Remote(socket) => socket.as_fd(),
        }
    }
}
