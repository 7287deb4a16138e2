//! What an operator of the node commands: lend, drain, reclaim. Both ends of it.
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
use sublet_proto::v1::{AgentToClient, ClientToAgent, Command, NodeState, NodeStatus};
use sublet_proto::{Code, Error, decode, limits};
use tracing::info;

use crate::message::{self, FromClient, ToClient};
use crate::node::Node;
use crate::signal::WantedEnd;

/// From one status to the next.
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
    let gone = |why: &str| {
        Error::new(Code::AgentUnreachable, format!("no agent answers at {}: {why}", socket.display()))
    };
    let connection = PacketSocket::connect(socket).map_err(|error| gone(&error.to_string()))?;
    let message = ClientToAgent { body: Some(FromClient::Command(command)) };
    // An agent that has refused the connection already says why.
    let sent = connection.send(&prost::Message::encode_to_vec(&message), &[]);
    let mut last = None;
    loop {
        let packet = match connection.receive(Some(SILENCE)) {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            Err(error) => return Err(gone(&error.to_string())),
        };
        let answer: AgentToClient = decode("an agent's message", &packet.bytes)?;
        match answer.body {
            Some(ToClient::Status(status)) => {
                on_status(&status);
                last = Some(status);
            }
            Some(ToClient::Failure(failure)) => {
                return Err(Error::new(Code::from_number(failure.code), failure.message));
            }
            other => return Err(Error::new(Code::Protocol, format!("{other:?} is no answer to a command"))),
        }
    }
    sent.map_err(|error| gone(&error.to_string()))?;
    last.ok_or_else(|| gone("it closed the connection"))
}

/// Obeys a command; returns when it is done or its sender has gone.
pub(crate) fn obey(node: &Node, connection: &Connection, command: &Command) -> Result<(), Error> {
    let state = command.state();
    info!(state = state.as_str_name(), grace_ms = command.grace_ms, "a command of the node's operator");
    match state {
        NodeState::Lending => node.ledger.lend(),
        NodeState::Draining => node.ledger.drain(),
        NodeState::Reclaimed => {
            let grace = Duration::from_millis(command.grace_ms.min(limits::MAX_TIMEOUT_MS));
            let message = format!("node {} was handed back to its owner", node.description.name);
            let reason = Error::new(Code::NodeReclaimed, message);
            node.ledger.reclaim(WantedEnd { reason, at: Instant::now() + grace });
        }
        NodeState::Unspecified | NodeState::Lost => {
            let message = format!("no node can be told to be {}", state.as_str_name());
            return Err(Error::new(Code::InvalidArgument, message));
        }
    }
    loop {
        let status = node.ledger.status();
        match message::send(connection, ToClient::Status(status), &[]) {
            Ok(()) => {}
            Err(PacketError::PeerGone | PacketError::TimedOut(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if state == NodeState::Lending || status.leases == 0 || status.state() != state {
            return Ok(());
        }
        node.ledger.wait_idle(state, PERIOD);
    }
}
