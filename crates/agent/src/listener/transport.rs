//! Chooses the transport of a lease's calls between nodes.

use sublet_fabric::connection::Connection;
use sublet_fabric::greeting::Secret;
use sublet_fabric::tls::Identity;
use sublet_proto::network::Fabric;
use sublet_proto::v1::{Attach, FabricChoice};
use sublet_proto::{Code, Error};

use crate::listener::network::ListenerState;
use crate::listener::secret::new_secret;

/// Transport that a client requests for its calls, once it is permitted.
pub(crate) enum TransportRequest {
    /// Shared memory.
    Memory,
    Network {
        fabric: Fabric,
        encrypted: bool,
        /// For a segment that joins another one's connection: that other segment.
        joins: Option<String>,
    },
}

/// Transport of a lease whose calls travel over a network.
pub(crate) struct NetworkTransport {
    /// Transport choice that the worker process receives.
    pub(crate) choice: FabricChoice,
    /// Secret by which the client proves that connections are its own, for tcp only.
    pub(crate) secret: Option<Secret>,
    /// Identity of the worker process towards the client, for encrypted tcp only.
    pub(crate) identity: Option<Identity>,
    /// For a segment that joins another one's connection, if that exists: that other segment.
    pub(crate) joins: Option<String>,
}

impl TransportRequest {
    /// Checks the transport that the client on this connection has requested, against those that the node's port offers.
    pub(crate) fn by(
        listener_state: Option<&ListenerState>,
        connection: &Connection,
        request: &Attach,
    ) -> Result<TransportRequest, Error> {
        let choice = request.fabric.as_ref();
        match (connection, listener_state) {
            (Connection::Remote(_), Some(listener_state)) => {
                let fabric = listener_state.check(choice)?;
                let encrypted = choice.is_some_and(|choice| choice.encrypted);
                let joins = Some(request.joins.clone()).filter(|segment| !segment.is_empty());
                Ok(TransportRequest::Network { fabric, encrypted, joins })
            }
            (Connection::Remote(_), None) => Err(Error::new(Code::Internal, "a connection through no port")),
            (Connection::Local(_), _) => match Fabric::chosen(choice)? {
                None => Ok(TransportRequest::Memory),
                Some(fabric) => {
                    let message = format!("calls by {fabric} begin at the agent's port, not at its socket");
                    Err(Error::new(Code::FabricUnavailable, message))
                }
            },
        }
    }

    /// Creates the transport for the calls of the lease; `None` for shared memory.
    pub(crate) fn network_transport(self, lease: &str) -> Result<Option<NetworkTransport>, Error> {
        let TransportRequest::Network { fabric, encrypted, joins } = self else { return Ok(None) };
        let of_tcp = fabric == Fabric::Tcp;
        let name = format!("lease {lease}");
        Ok(Some(NetworkTransport {
            choice: fabric.choice(encrypted),
            secret: of_tcp.then(new_secret).transpose()?,
            identity: (of_tcp && encrypted).then(|| Identity::generate(&name)).transpose()?,
            joins,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tcp_has_secrets_and_each_lease_its_own() {
        let network_transport = |fabric: Fabric, encrypted| {
            TransportRequest::Network { fabric, encrypted, joins: None }
                .network_transport("l")
                .unwrap()
                .unwrap()
        };
        let (one, other) = (network_transport(Fabric::Tcp, true), network_transport(Fabric::Tcp, true));
        assert_ne!(one.secret, other.secret);
        assert_ne!(one.identity.unwrap().certificate, other.identity.unwrap().certificate);
        let plain = network_transport(Fabric::Tcp, false);
        assert!(plain.secret.is_some() && plain.identity.is_none());
        let verbs = network_transport(Fabric::Ofi("verbs".into()), false);
        assert!(verbs.secret.is_none() && verbs.identity.is_none() && verbs.choice.provider == "verbs");
        assert!(TransportRequest::Memory.network_transport("l").unwrap().is_none());
    }
}
