//! Chooses the transport of a lease's calls between nodes, and makes the secrets that protect its connections.

use sublet_fabric::connection::Connection;
use sublet_fabric::greeting::Secret;
use sublet_fabric::tls::Identity;
use sublet_proto::network::Fabric;
use sublet_proto::v1::{Attach, FabricChoice};
use sublet_proto::{Code, Error};

use crate::node::Node;

/// What a client wants its calls to be carried by, and may.
pub(crate) enum Wanted {
    /// Shared memory.
    Memory,
    Network {
        fabric: Fabric,
        encrypted: bool,
        /// Of a segment: the one by whose connection it is to be reached.
        joins: Option<String>,
    },
}

/// Of a lease whose calls travel over a network.
pub(crate) struct Carrier {
    /// As the worker process is told.
    pub(crate) choice: FabricChoice,
    /// Of tcp: by which the client proves that connections are its own.
    pub(crate) secret: Option<Secret>,
    /// Of tcp, encrypted: as whom the worker process comes to the client.
    pub(crate) identity: Option<Identity>,
    /// Of a segment: the one by whose connection it is to be reached, if that is there.
    pub(crate) joins: Option<String>,
}

impl Wanted {
    /// What the client on this connection has asked for.
    pub(crate) fn by(node: &Node, connection: &Connection, request: &Attach) -> Result<Wanted, Error> {
        let choice = request.fabric.as_ref();
        match (connection, &node.gate) {
            (Connection::Remote(_), Some(gate)) => {
                let fabric = gate.check(choice)?;
                let encrypted = choice.is_some_and(|choice| choice.encrypted);
                let joins = Some(request.joins.clone()).filter(|segment| !segment.is_empty());
                Ok(Wanted::Network { fabric, encrypted, joins })
            }
            (Connection::Remote(_), None) => Err(Error::new(Code::Internal, "a connection through no port")),
            (Connection::Local(_), _) => match Fabric::chosen(choice)? {
                None => Ok(Wanted::Memory),
                Some(fabric) => {
                    let message = format!("calls by {fabric} begin at the agent's port, not at its socket");
                    Err(Error::new(Code::FabricUnavailable, message))
                }
            },
        }
    }

    /// What carries the calls of the lease; nothing if that is memory.
    pub(crate) fn carrier(self, lease: &str) -> Result<Option<Carrier>, Error> {
        let Wanted::Network { fabric, encrypted, joins } = self else { return Ok(None) };
        let of_tcp = fabric == Fabric::Tcp;
        let name = format!("lease {lease}");
        Ok(Some(Carrier {
            choice: fabric.choice(encrypted),
            secret: of_tcp.then(new_secret).transpose()?,
            identity: (of_tcp && encrypted).then(|| Identity::generate(&name)).transpose()?,
            joins,
        }))
    }
}

pub(crate) fn new_secret() -> Result<Secret, Error> {
    let mut secret = Secret::default();
    getrandom::fill(&mut secret)
        .map_err(|error| Error::new(Code::System, format!("no random number could be had: {error}")))?;
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_needs_secrets_has_them_and_no_two_leases_the_same() {
        let carrier = |fabric: Fabric, encrypted| {
            Wanted::Network { fabric, encrypted, joins: None }.carrier("l").unwrap().unwrap()
        };
        let (one, other) = (carrier(Fabric::Tcp, true), carrier(Fabric::Tcp, true));
        assert_ne!(one.secret, other.secret);
        assert_ne!(one.identity.unwrap().certificate, other.identity.unwrap().certificate);
        let plain = carrier(Fabric::Tcp, false);
        assert!(plain.secret.is_some() && plain.identity.is_none());
        let verbs = carrier(Fabric::Ofi("verbs".into()), false);
        assert!(verbs.secret.is_none() && verbs.identity.is_none() && verbs.choice.provider == "verbs");
        assert!(Wanted::Memory.carrier("l").unwrap().is_none());
    }
}
