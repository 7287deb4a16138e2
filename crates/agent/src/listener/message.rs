//! The messages between a client and its lease's agent, one to a packet, or between nodes with their lengths before them.

use std::os::fd::BorrowedFd;

use prost::Message;
use sublet_fabric::connection::Connection;
use sublet_fabric::packet::PacketError;
use sublet_proto::v1::{AgentToClient, ClientToAgent, Failure};
use sublet_proto::{Code, Error, decode};

pub(crate) use sublet_proto::v1::agent_to_client::Body as ToClient;
pub(crate) use sublet_proto::v1::client_to_agent::Body as FromClient;

/// Sends one message, with the descriptors that it hands over.
pub(crate) fn send(to: &Connection, body: ToClient, fds: &[BorrowedFd<'_>]) -> Result<(), PacketError> {
    to.send(&AgentToClient { body: Some(body) }.encode_to_vec(), fds)
}

/// The answer to a message that failed.
pub(crate) fn failure(error: &Error) -> ToClient {
    ToClient::Failure(Failure { code: error.code.number(), message: error.message.clone() })
}

/// Decodes a client's message; anything else is a [`Code::Protocol`] error.
pub(crate) fn parse(bytes: &[u8]) -> Result<FromClient, Error> {
    let message: ClientToAgent = decode("a client's message", bytes)?;
    message.body.ok_or_else(|| Error::new(Code::Protocol, "a client's message is of no known kind"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_proto::v1::Stop;

    #[test]
    fn what_is_not_a_message_is_a_protocol_error() {
        for bytes in [&b"\xff\xff"[..], b"\x7a\x00", b"\x00"] {
            assert_eq!(parse(bytes).unwrap_err().code, Code::Protocol, "{bytes:?}");
        }
        let stop = FromClient::Stop(Stop { reason: "slow".into() });
        let bytes = ClientToAgent { body: Some(stop.clone()) }.encode_to_vec();
        assert_eq!(parse(&bytes).unwrap(), stop);
    }
}
