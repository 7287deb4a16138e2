//! Chooses the transport of a measurement, and the Sublet that executes its calls.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use serde::Serialize;
use sublet_fabric::{Provider, ofi};
use sublet_proto::{Code, Error};
use sublet_runtime::manager::ManagerClient;
use sublet_runtime::{Access, Allocation, FabricChoice, Policy};

use super::private_instance::PrivateInstance;
use super::rounds::Mode;
use super::{DIALLING_PACKAGE, PACKAGE};

/// Transport of the calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallTransport {
    /// Fabric, as `--fabric` names it.
    pub fabric: Provider,
    /// Provider of libfabric. `None`: the best one available.
    pub provider: Option<String>,
    /// Whether calls over TCP use TLS. The raw side is never encrypted.
    pub encrypted: bool,
}

/// The Sublet that executes the calls.
#[derive(Clone, Debug)]
pub enum Where {
    /// An existing Sublet.
    Given(Box<Access>),
    /// A private Sublet, whose agent listens on this address.
    Own(IpAddr),
}

/// Fields of a result that describe its transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TransportFields {
    pub(super) fabric: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) encrypted: Option<bool>,
}

impl TransportFields {
    /// Formats the fields for a table.
    pub(super) fn cell(&self) -> String {
        let how = if self.encrypted == Some(true) { " encrypted" } else { "" };
        match &self.provider {
            Some(provider) => format!("{} {provider}{how}", self.fabric),
            None => format!("{}{how}", self.fabric),
        }
    }
}

impl CallTransport {
    /// A lease of one worker in this mode. The client polls, as on the raw side. Over a network a warm call blocks at
    /// both ends, like a blocking ping-pong.
    pub(super) fn allocation(&self, mode: Mode) -> Allocation {
        let (policy, spin) = match mode {
            Mode::Hot => (Policy::AlwaysHot, Duration::MAX),
            Mode::Warm if self.fabric == Provider::Shm => (Policy::AlwaysWarm, Duration::MAX),
            Mode::Warm => (Policy::AlwaysWarm, Duration::ZERO),
        };
        let package = if self.fabric == Provider::Shm { PACKAGE } else { DIALLING_PACKAGE };
        Allocation::new(package).policy(policy).spin(spin).fabric(self.choice())
    }

    /// Returns the transport with a provider of libfabric where it needs one: the best that this machine can use.
    pub(super) fn resolved(&self) -> Result<CallTransport, Error> {
        if self.fabric != Provider::Ofi || self.provider.is_some() {
            return Ok(self.clone());
        }
        let usable = ofi::providers()?.into_iter().find(|provider| provider.usable.is_ok());
        let none = || {
            Error::new(
                Code::FabricUnavailable,
                "no provider of libfabric can be used here: see `sublet fabrics`",
            )
        };
        Ok(CallTransport { provider: Some(usable.ok_or_else(none)?.name), ..self.clone() })
    }

    pub(super) fn choice(&self) -> FabricChoice {
        match self.fabric {
            Provider::Tcp => FabricChoice::Tcp { encrypted: self.encrypted },
            Provider::Ofi => FabricChoice::Ofi { provider: self.provider.clone() },
            _ => FabricChoice::Shm,
        }
    }

    /// Name of the transport in an agent's offer, for libfabric.
    fn offer(&self) -> Option<String> {
        match (self.fabric, &self.provider) {
            (Provider::Ofi, Some(provider)) => Some(format!("ofi:{provider}")),
            _ => None,
        }
    }

    pub(super) fn carried(&self) -> TransportFields {
        TransportFields {
            fabric: self.fabric.name(),
            provider: self.provider.clone().filter(|_| self.fabric == Provider::Ofi),
            encrypted: (self.fabric == Provider::Tcp).then_some(self.encrypted),
        }
    }
}

/// A Sublet to measure, and the access to it.
pub(super) struct Site {
    pub(super) access: Access,
    /// The address of this machine by which workers reach this process.
    pub(super) local: IpAddr,
    _own: Option<PrivateInstance>,
}

impl Site {
    /// Opens the Sublet. Starts a private one with these flags if `place` requires it.
    pub(super) fn open(place: &Where, transport: &CallTransport, flags: &[&str]) -> Result<Site, Error> {
        match place {
            Where::Given(access) => {
                let access = Access::clone(access);
                Ok(Site { local: local_address(&access)?, access, _own: None })
            }
            Where::Own(address) => {
                let listen = SocketAddr::new(*address, 0).to_string();
                let offer = transport.offer();
                let fabrics = offer.as_ref().map_or(vec![], |offer| vec!["--fabrics", offer]);
                let own = PrivateInstance::up(
                    &[&["--lend-network", "--listen", &listen], &fabrics[..], flags].concat(),
                )?;
                Ok(Site { access: own.access(), local: *address, _own: Some(own) })
            }
        }
    }
}

/// This machine's address on the route to the manager's nodes. The loopback address, if the node serves its own machine
/// only.
fn local_address(access: &Access) -> Result<IpAddr, Error> {
    let nodes = ManagerClient::connect_with(access.clone())?.nodes()?;
    let networks = nodes.into_iter().filter_map(|node| node.description?.network);
    let Some(network) = networks.into_iter().next() else { return Ok(Ipv4Addr::LOCALHOST.into()) };
    let failed = |error: std::io::Error| {
        Error::new(Code::AgentUnreachable, format!("no way to the node at {}: {error}", network.address))
    };
    let mut addresses = network.address.to_socket_addrs().map_err(failed)?;
    let node = addresses.next().ok_or_else(|| failed(std::io::ErrorKind::AddrNotAvailable.into()))?;
    towards(node).map_err(failed)
}

/// Finds the local address on the route to a node. Sends nothing: connecting a datagram socket only looks up the route.
fn towards(node: SocketAddr) -> std::io::Result<IpAddr> {
    let any: SocketAddr = if node.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(node)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_says_of_its_transport_what_the_fabric_has() {
        let json = |fabric, provider: Option<&str>| {
            let transport = CallTransport { fabric, provider: provider.map(str::to_owned), encrypted: false };
            serde_json::to_value(transport.carried()).unwrap()
        };
        assert_eq!(json(Provider::Shm, None), serde_json::json!({ "fabric": "shm" }));
        assert_eq!(json(Provider::Tcp, None), serde_json::json!({ "fabric": "tcp", "encrypted": false }));
        assert_eq!(
            json(Provider::Ofi, Some("tcp;ofi_rxm")),
            serde_json::json!({ "fabric": "ofi", "provider": "tcp;ofi_rxm" })
        );
    }

    #[test]
    fn the_way_to_an_address_of_the_loopback_starts_there() {
        assert_eq!(towards("127.0.0.1:9".parse().unwrap()).unwrap(), Ipv4Addr::LOCALHOST);
    }
}
