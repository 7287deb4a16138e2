//! Routes to the ports of neighbours: direct ones, and those over a bridge.

use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sublet_fabric::connection::Connection;
use sublet_fabric::greeting::{self, BridgeLink, ConnectionPurpose, Secret};
use sublet_fabric::remote::RemoteSocket;
use sublet_proto::v1::{Neighbour, NodeNetwork};
use sublet_proto::{Code, Error};

/// Longest time that connecting takes.
const DIAL: Duration = Duration::from_secs(2);

/// Bridges that this process has asked for.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// Route to a node's port.
#[derive(Clone, Debug)]
pub(super) struct PortRoute {
    /// Name of the destination, for messages.
    whom: String,
    /// Address of the destination's port; empty if it is on no network.
    address: String,
    bridge: Option<Bridge>,
}

/// A neighbour of both nodes that bridges between them.
#[derive(Clone, Debug)]
struct Bridge {
    address: String,
    secret: Option<Secret>,
    from: u32,
    to: u32,
}

impl PortRoute {
    /// Creates the route to a neighbour among the known ones, from the node with this processor.
    pub(super) fn to(neighbour: &Neighbour, known: &[Neighbour], own: u32) -> PortRoute {
        let address = |of: Option<&Neighbour>| {
            of.and_then(|of| of.network.as_ref()).map(|network| network.address.clone()).unwrap_or_default()
        };
        let bridge = (!neighbour.bridge.is_empty()).then(|| {
            let by = known.iter().find(|other| other.node == neighbour.bridge && other.bridge.is_empty());
            let secret = by.and_then(|by| Secret::try_from(by.secret.as_slice()).ok());
            Bridge { address: address(by), secret, from: own, to: neighbour.unit }
        });
        PortRoute { whom: format!("node {}", neighbour.node), address: address(Some(neighbour)), bridge }
    }

    /// Creates the route to a node whose port is known.
    pub(super) fn direct(whom: String, address: String) -> PortRoute {
        PortRoute { whom, address, bridge: None }
    }

    /// Connects to the port, which is still to be greeted.
    ///
    /// # Errors
    /// `fabric_unavailable` if the node or its bridge is on no network, `agent_unreachable` if no connection can be
    /// made, and the error of a bridge that refuses.
    pub(super) fn dial(&self) -> Result<TcpStream, Error> {
        let none =
            |node: &str| Error::new(Code::FabricUnavailable, format!("{node} is on no network (listen)"));
        if self.address.is_empty() {
            return Err(none(&self.whom));
        }
        let Some(Bridge { address, secret, from, to }) = &self.bridge else {
            return greeting::dial(&self.address, None, Instant::now() + DIAL);
        };
        let by = || format!("the neighbour that bridges to {}", self.whom);
        if address.is_empty() {
            return Err(none(&by()));
        }
        let secret =
            secret.as_ref().ok_or_else(|| Error::new(Code::AgentUnreachable, format!("{} is gone", by())))?;
        let socket = greeting::dial(address, None, Instant::now() + DIAL)?;
        let counter = ASKED.fetch_add(1, Ordering::Relaxed) + 1;
        greeting::greet(
            &socket,
            &ConnectionPurpose::Bridge(BridgeLink { from: *from, to: *to, counter }),
            Some(secret),
        )?;
        Ok(socket)
    }
}

/// Opens a control connection to an agent by its node's port.
pub(super) fn reach(route: &PortRoute, network: Option<&NodeNetwork>) -> Result<Connection, Error> {
    let socket = route.dial()?;
    greeting::greet(&socket, &ConnectionPurpose::Control, None)?;
    let certificate = network.map(|network| network.certificate.as_slice()).unwrap_or_default();
    Ok(Connection::Remote(RemoteSocket::connect(socket, certificate)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbour(node: &str, unit: u32, bridge: &str) -> Neighbour {
        Neighbour {
            node: node.into(),
            unit,
            bridge: bridge.into(),
            secret: vec![unit as u8; 32],
            network: Some(NodeNetwork { address: format!("{node}:1"), ..NodeNetwork::default() }),
            ..Neighbour::default()
        }
    }

    #[test]
    fn routes_by_a_linked_neighbour_only() {
        let known = [neighbour("host", 2, ""), neighbour("b", 3, "host"), neighbour("c", 4, "b")];
        let route = PortRoute::to(&known[1], &known, 7);
        let bridge = route.bridge.unwrap();
        assert_eq!((bridge.address.as_str(), bridge.secret), ("host:1", Some([2; 32])));
        assert_eq!((bridge.from, bridge.to), (7, 3));
        assert!(PortRoute::to(&known[0], &known, 7).bridge.is_none());
        // A node that is reached by a bridge itself does not bridge.
        let error = PortRoute::to(&known[2], &known, 7).dial().unwrap_err();
        assert!(
            error.code == Code::FabricUnavailable && error.message.contains("bridges to node c"),
            "{error}"
        );
    }
}
