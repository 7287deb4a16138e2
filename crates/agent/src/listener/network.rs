//! The agent's network listener: one TCP port for clients of other machines, and the description of it that the node
//! publishes.
//!
//! The port's certificate is generated at each start and reaches clients through the manager. They trust this
//! certificate and no other.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::sync::Arc;

use sublet_fabric::ofi;
use sublet_fabric::tls::Identity;
use sublet_proto::network::{Fabric, MAX_FABRICS};
use sublet_proto::v1::{FabricChoice, NodeNetwork};
use sublet_proto::{Code, Error};
use sublet_runtime::access::{Access, Address};
use tracing::warn;

use crate::listener::arrivals::ArrivalQueues;

/// Options for clients of other machines.
#[derive(Clone, Debug)]
pub struct NetworkOptions {
    /// Address on which the agent listens. With port 0 the system chooses a free port.
    pub listen: SocketAddr,
    /// The agent's `host:port` as clients know it. By default the address by which it reaches its managers.
    pub advertise: Option<String>,
    /// Transports for calls, best first. If empty, all that this machine can use.
    pub fabrics: Vec<Fabric>,
    /// Whether calls over TCP must be encrypted.
    pub encrypt: bool,
}

impl NetworkOptions {
    /// Creates the options for an address, with defaults otherwise.
    pub fn at(listen: SocketAddr) -> NetworkOptions {
        NetworkOptions { listen, advertise: None, fabrics: Vec::new(), encrypt: false }
    }
}

/// State that the network connections share.
pub(crate) struct ListenerState {
    pub(crate) identity: Identity,
    /// Description of the network access, as managers and clients know it.
    pub(crate) described: NodeNetwork,
    fabrics: Vec<Fabric>,
    pub(crate) links: Arc<ArrivalQueues>,
}

impl ListenerState {
    /// Listens, and determines the address at which clients reach the port.
    pub(crate) fn open(
        network: &NetworkOptions,
        access: &Access,
        name: &str,
    ) -> Result<(ListenerState, TcpListener), Error> {
        let listener = listen(network.listen)?;
        let port = listener.local_addr().map_err(|error| failed(network.listen, &error))?.port();
        let address = match &network.advertise {
            Some(address) => address.clone(),
            None => SocketAddr::new(own_address(network.listen.ip(), access)?, port).to_string(),
        };
        let identity = Identity::generate(name)?;
        let fabrics = match network.fabrics.as_slice() {
            [] => automatic_fabrics(network.encrypt),
            named => named
                .iter()
                .map(|fabric| check_usable(fabric).map(|()| fabric.clone()))
                .collect::<Result<_, _>>()?,
        };
        let described = NodeNetwork {
            address,
            certificate: identity.certificate.clone(),
            fabrics: fabrics.iter().map(Fabric::to_string).collect(),
            encrypted: network.encrypt,
        };
        let listener_state = ListenerState { identity, described, fabrics, links: Arc::default() };
        Ok((listener_state, listener))
    }

    /// Checks the transport that a client requests for its calls against those that the node offers.
    pub(crate) fn check(&self, choice: Option<&FabricChoice>) -> Result<Fabric, Error> {
        let unavailable = |message: String| Error::new(Code::FabricUnavailable, message);
        let offered = || self.described.fabrics.join(", ");
        let Some(fabric) = Fabric::chosen(choice)? else {
            let message = format!("memory is shared within a machine alone; this node offers {}", offered());
            return Err(unavailable(message));
        };
        if !self.fabrics.contains(&fabric) {
            return Err(unavailable(format!("this node does not offer {fabric}, but {}", offered())));
        }
        let encrypted = choice.is_some_and(|choice| choice.encrypted);
        match fabric {
            Fabric::Tcp if self.described.encrypted && !encrypted => {
                Err(unavailable("this node takes calls over tcp only if they are encrypted".to_owned()))
            }
            Fabric::Ofi(_) if encrypted => Err(unavailable(format!("{fabric} does not encrypt, tcp can"))),
            fabric => Ok(fabric),
        }
    }
}

/// Default transports of a node, best first: the RDMA networks that this machine can use, and tcp. Where calls over TCP
/// must be encrypted, only tcp is offered, because those networks do not encrypt. libfabric is queried only where the
/// kernel lists a device for it.
pub fn automatic_fabrics(encrypt: bool) -> Vec<Fabric> {
    let mut fabrics: Vec<Fabric> = Vec::new();
    if !encrypt && ofi::has_devices() {
        // Without the library there is no such network.
        for found in ofi::providers().unwrap_or_default() {
            let fabric = Fabric::Ofi(found.name.clone());
            if found.is_automatic() && !fabrics.contains(&fabric) && fabrics.len() < MAX_FABRICS - 1 {
                fabrics.push(fabric);
            }
        }
    }
    fabrics.push(Fabric::Tcp);
    fabrics
}

/// Checks that this machine has a transport that the operator wants to offer.
fn check_usable(fabric: &Fabric) -> Result<(), Error> {
    let Fabric::Ofi(provider) = fabric else { return Ok(()) };
    let unavailable =
        |why: &str| Error::new(Code::FabricUnavailable, format!("this machine cannot offer {fabric}: {why}"));
    let found = ofi::providers().map_err(|error| unavailable(&error.to_string()))?;
    let mut why = "libfabric knows no such provider that Sublet can use".to_owned();
    for found in found.into_iter().filter(|found| found.name == *provider) {
        match found.usable {
            Ok(()) => return Ok(()),
            Err(reason) => why = reason,
        }
    }
    Err(unavailable(&why))
}

fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    let listener = TcpListener::bind(address).map_err(|error| failed(address, &error))?;
    // A connection that is reset before it is accepted must not keep its acceptor waiting.
    listener.set_nonblocking(true).map_err(|error| failed(address, &error))?;
    Ok(listener)
}

fn failed(address: SocketAddr, error: &io::Error) -> Error {
    let (ip, port) = (address.ip(), address.port());
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            let message = format!(
                "port {port} of {ip} is in use by another program; listen on another one, or stop that"
            );
            Error::new(Code::AlreadyRunning, message)
        }
        io::ErrorKind::AddrNotAvailable => {
            let message =
                format!("cannot listen on {address}: no interface of this machine has the address {ip}");
            Error::new(Code::InvalidArgument, message)
        }
        _ => Error::new(Code::System, format!("cannot listen on {address}: {error}")),
    }
}

/// The address by which clients find this machine: the one that is listened on, or that of the interface through which a
/// manager is reached.
fn own_address(listen: IpAddr, access: &Access) -> Result<IpAddr, Error> {
    if !listen.is_unspecified() {
        return Ok(listen);
    }
    let found = access.managers.iter().find_map(|manager| match manager {
        Address::Unix(_) if listen.is_ipv4() => Some(Ipv4Addr::LOCALHOST.into()),
        Address::Unix(_) => Some(Ipv6Addr::LOCALHOST.into()),
        Address::Tcp { authority, .. } => way_to(authority, listen)
            .inspect_err(|error| warn!(%manager, %error, "no address of this machine leads there"))
            .ok()
            .flatten(),
    });
    found.ok_or_else(|| {
        let managers: Vec<_> = access.managers.iter().map(Address::to_string).collect();
        let message = format!(
            "the address of this machine is not known, since no interface leads to {}: say it (advertise)",
            managers.join(" or ")
        );
        Error::new(Code::InvalidArgument, message)
    })
}

/// The address of this machine on the route to a manager. Nothing is sent.
fn way_to(authority: &str, listen: IpAddr) -> io::Result<Option<IpAddr>> {
    for there in authority.to_socket_addrs()? {
        // A listener on all IPv6 addresses also accepts IPv4 connections.
        if there.is_ipv6() && listen.is_ipv4() {
            continue;
        }
        let any: IpAddr =
            if there.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        if socket.connect(there).is_ok() {
            return socket.local_addr().map(|own| Some(own.ip()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener_state(fabrics: &[&str], encrypt: bool) -> ListenerState {
        let network = NetworkOptions { encrypt, fabrics: vec![Fabric::Tcp], ..NetworkOptions::at(local(0)) };
        let mut listener_state =
            ListenerState::open(&network, &Access::parse("unix:/m").unwrap(), "n").unwrap().0;
        listener_state.fabrics = fabrics.iter().map(|fabric| fabric.parse().unwrap()).collect();
        listener_state
    }

    fn local(port: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, port).into()
    }

    #[test]
    fn names_a_used_port_and_an_unavailable_address() {
        let taken = TcpListener::bind(local(0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = listen(local(port)).unwrap_err();
        assert_eq!(error.code, Code::AlreadyRunning);
        assert!(error.message.contains(&port.to_string()) && error.message.contains("127.0.0.1"), "{error}");
        let error = listen("192.0.2.1:7441".parse().unwrap()).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(error.message.contains("192.0.2.1"), "{error}");
    }

    #[test]
    fn uses_the_address_that_leads_to_a_manager() {
        let own = |listen: &str, managers: &str| {
            own_address(listen.parse().unwrap(), &Access::parse(managers).unwrap())
        };
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        assert_eq!(own("0.0.0.0", "unix:/m").unwrap(), loopback);
        assert_eq!(own("0.0.0.0", "https://127.0.0.1:7433").unwrap(), loopback);
        assert_eq!(own("127.0.0.9", "https://127.0.0.1:7433").unwrap(), IpAddr::from([127, 0, 0, 9]));
        let error = own("0.0.0.0", "https://[::1]:7433").unwrap_err();
        assert!(
            error.message.contains("https://[::1]:7433") && error.message.contains("advertise"),
            "{error}"
        );
    }

    #[test]
    fn accepts_only_fabrics_that_the_node_offers() {
        let tcp = |encrypted| Fabric::Tcp.choice(encrypted);
        let verbs = |encrypted| Fabric::Ofi("verbs".into()).choice(encrypted);
        let open = listener_state(&["ofi:verbs", "tcp"], false);
        assert_eq!(open.check(Some(&tcp(false))).unwrap(), Fabric::Tcp);
        assert_eq!(open.check(Some(&tcp(true))).unwrap(), Fabric::Tcp);
        assert_eq!(open.check(Some(&verbs(false))).unwrap(), Fabric::Ofi("verbs".into()));
        let closed = listener_state(&["tcp"], true);
        assert_eq!(closed.check(Some(&tcp(true))).unwrap(), Fabric::Tcp);
        for (listener_state, choice) in [
            (&open, None),
            (&open, Some(verbs(true))),
            (&open, Some(Fabric::Ofi("efa".into()).choice(false))),
            (&closed, Some(tcp(false))),
            (&closed, Some(verbs(false))),
        ] {
            let error = listener_state.check(choice.as_ref()).unwrap_err();
            assert_eq!(error.code, Code::FabricUnavailable, "{choice:?}: {error}");
        }
    }

    #[test]
    fn a_node_says_what_managers_take() {
        let described = listener_state(&[], true).described;
        sublet_proto::network::check_network(&described).unwrap();
        assert_eq!(described.fabrics, ["tcp"]);
        assert!(described.address.starts_with("127.0.0.1:"), "{}", described.address);
    }

    #[test]
    fn offers_tcp_always_and_only_encrypting_fabrics_where_required() {
        assert_eq!(automatic_fabrics(true), [Fabric::Tcp]);
        assert_eq!(automatic_fabrics(false).last(), Some(&Fabric::Tcp));
        let error = check_usable(&Fabric::Ofi("carrier_pigeon".into())).unwrap_err();
        assert_eq!(error.code, Code::FabricUnavailable);
        assert!(error.message.contains("ofi:carrier_pigeon"), "{error}");
    }
}
