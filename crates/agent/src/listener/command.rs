//! Executes the commands of a node's operator: lend, drain, reclaim, and sandboxes of its own. This module has both
//! ends of the protocol.
//!
//! A command is the first message of a connection of its own. It is taken from the agent's own user and from root,
//! which the kernel tells; a ticket is no authority for it, and no manager is needed. The node's state is answered at
//! once and then each second, until nothing is leased or another command has changed what the node lends.
//!
//! A later command changes an earlier one. Ends that were announced to clients stay, though: a longer grace or a node
//! that is lent again takes none of them back, a shorter grace takes effect.

use std::path::Path;
use std::time::{Duration, Instant};

use sublet_fabric::connection::Connection;
use sublet_fabric::packet::{PacketError, PacketSocket};
use sublet_proto::v1::{
    AgentToClient, ClientToAgent, Command, NodeState, NodeStatus, SandboxAnswer, SandboxRequest,
};
use sublet_proto::{Code, Error, decode, limits};
use tracing::info;

use crate::listener::message::{self, FromClient, ToClient};
use crate::node::Node;
use crate::signal::WantedEnd;

/// Period of the status messages.
const PERIOD: Duration = Duration::from_secs(1);
/// How long an agent may be silent before it counts as gone.
const SILENCE: Duration = Duration::from_secs(10);

/// Gives a node's agent a command; tells each status and answers with the last one, when the command has been obeyed
/// or another has taken its place.
///
/// # Errors
///
/// [`Code::AgentUnreachable`] if no agent answers at the socket, [`Code::PermissionDenied`] if it does not obey this
/// user, [`Code::InvalidArgument`] if the command makes no sense.
pub fn command(
    socket: &Path,
    command: Command,
    mut on_status: impl FnMut(&NodeStatus),
) -> Result<NodeStatus, Error> {
    let asked = PendingRequest::of(socket, FromClient::Command(command))?;
    let mut last = None;
    while let Some(answer) = asked.answer()? {
        match answer {
            ToClient::Status(status) => {
                on_status(&status);
                last = Some(status);
            }
            other => return Err(no_answer(&other)),
        }
    }
    asked.sent?;
    last.ok_or_else(|| gone(socket, "it closed the connection"))
}

/// Asks a node's agent something of the operator's sandboxes.
///
/// # Errors
///
/// As [`command`].
pub fn sandboxes(socket: &Path, request: SandboxRequest) -> Result<Vec<SandboxAnswer>, Error> {
    let asked = PendingRequest::of(socket, FromClient::Sandboxes(request))?;
    match asked.answer()? {
        Some(ToClient::Sandboxes(reply)) => Ok(reply.answers),
        Some(other) => Err(no_answer(&other)),
        None => asked.sent.and_then(|()| Err(gone(socket, "it closed the connection"))),
    }
}

/// A request to an agent, whose answers are still to come.
struct PendingRequest<'socket> {
    socket: &'socket Path,
    connection: PacketSocket,
    /// An agent that has refused the connection already says why.
    sent: Result<(), Error>,
}

impl PendingRequest<'_> {
    fn of(socket: &Path, body: FromClient) -> Result<PendingRequest<'_>, Error> {
        let connection = PacketSocket::connect(socket).map_err(|error| gone(socket, &error.to_string()))?;
        let message = ClientToAgent { body: Some(body) };
        let sent = connection.send(&prost::Message::encode_to_vec(&message), &[]);
        Ok(PendingRequest {
            socket,
            connection,
            sent: sent.map_err(|error| gone(socket, &error.to_string())),
        })
    }

    /// The next answer, until the agent closes the connection.
    fn answer(&self) -> Result<Option<ToClient>, Error> {
        let packet = match self.connection.receive(Some(SILENCE)) {
            Ok(Some(packet)) => packet,
            Ok(None) => return Ok(None),
            Err(error) => return Err(gone(self.socket, &error.to_string())),
        };
        let answer: AgentToClient = decode("an agent's message", &packet.bytes)?;
        match answer.body {
            Some(ToClient::Failure(failure)) => {
                Err(Error::new(Code::from_number(failure.code), failure.message))
            }
            Some(body) => Ok(Some(body)),
            None => Err(Error::new(Code::Protocol, "an agent's message is of no known kind")),
        }
    }
}

fn gone(socket: &Path, why: &str) -> Error {
    Error::new(Code::AgentUnreachable, format!("no agent answers at {}: {why}", socket.display()))
}

fn no_answer(other: &ToClient) -> Error {
    Error::new(Code::Protocol, format!("{other:?} is no answer to a command"))
}

/// Does what an operator asks of sandboxes.
pub(crate) fn make_sandboxes(
    node: &Node,
    connection: &Connection,
    request: SandboxRequest,
) -> Result<(), Error> {
    let reply = node.execution.sandboxes.obey(request)?;
    match message::send(connection, ToClient::Sandboxes(reply), &[]) {
        Ok(()) | Err(PacketError::PeerGone | PacketError::TimedOut(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Obeys a command; returns when it is done or its sender has gone.
pub(crate) fn obey(node: &Node, connection: &Connection, command: &Command) -> Result<(), Error> {
    let state = command.state();
    info!(state = state.as_str_name(), grace_ms = command.grace_ms, "a command of the node's operator");
    match state {
        NodeState::Lending => node.leases.ledger.lend(),
        NodeState::Draining => node.leases.ledger.drain(),
        NodeState::Reclaimed => {
            let grace = Duration::from_millis(command.grace_ms.min(limits::MAX_TIMEOUT_MS));
            let message = format!("node {} was handed back to its owner", node.description.name);
            let reason = Error::new(Code::NodeReclaimed, message);
            node.leases.ledger.reclaim(WantedEnd { reason, at: Instant::now() + grace });
        }
        NodeState::Unspecified | NodeState::Lost => {
            let message = format!("the state of a node cannot be set to {}", state.as_str_name());
            return Err(Error::new(Code::InvalidArgument, message));
        }
    }
    loop {
        let status = node.leases.ledger.status();
        match message::send(connection, ToClient::Status(status), &[]) {
            Ok(()) => {}
            Err(PacketError::PeerGone | PacketError::TimedOut(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if state == NodeState::Lending || status.leases == 0 || status.state() != state {
            return Ok(());
        }
        node.leases.ledger.wait_idle(state, PERIOD);
    }
}
