//! Connects to the agent at an address.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use sublet_proto::{Code, Error};

use super::prepare;
use crate::FabricError;

/// Most addresses of a name that are tried.
const MAX_ADDRESSES: usize = 8;

/// Connects to the agent at "host:port"; the greeting is the next step. The host is a name, an IPv4 address, or an IPv6
/// address in brackets. `interface` selects the outgoing interface: its name, or one of its addresses. The remaining
/// time is divided among the addresses of a name.
pub fn dial(address: &str, interface: Option<&str>, deadline: Instant) -> Result<TcpStream, Error> {
    let addresses = look_up(address, deadline)?;
    let mut failures = Vec::new();
    for (tried, candidate) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let part = left / u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        let socket = socket_at(candidate, interface)?;
        let connected = socket.connect_timeout(&(*candidate).into(), part.max(Duration::from_millis(1)));
        match connected.map(|()| TcpStream::from(socket)) {
            Ok(socket) => {
                prepare(&socket)?;
                return Ok(socket);
            }
            Err(error) => failures.push(format!("{candidate} {}", outcome(&error, part))),
        }
    }
    Err(unreachable(address, failures.join(", ")))
}

/// A socket for connections to an address, bound to the interface if one is named.
fn socket_at(address: &SocketAddr, interface: Option<&str>) -> Result<Socket, Error> {
    let socket = Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))
        .map_err(|error| FabricError::system("making a TCP socket", error))?;
    let Some(interface) = interface else { return Ok(socket) };
    let bound = match interface.parse::<IpAddr>() {
        Ok(own) => socket.bind(&SocketAddr::new(own, 0).into()),
        Err(_) => socket.bind_device(Some(interface.as_bytes())),
    };
    bound.map(|()| socket).map_err(|error| {
        Error::new(Code::FabricUnavailable, format!("the interface {interface} cannot be used: {error}"))
    })
}

/// Checks that connections can go out by an interface: its name or one of its addresses. No host need be reachable by
/// it.
pub fn check_interface(interface: &str) -> Result<(), Error> {
    let own = interface.parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    socket_at(&SocketAddr::new(own, 0), Some(interface)).map(drop)
}

fn outcome(error: &std::io::Error, waited: Duration) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "refuses connections".into(),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => format!("is out of reach ({error})"),
        ErrorKind::TimedOut => format!("did not answer within {} ms", waited.as_millis()),
        _ => format!("cannot be connected to: {error}"),
    }
}

fn unreachable(address: &str, why: impl std::fmt::Display) -> Error {
    Error::new(Code::AgentUnreachable, format!("no connection to the agent at {address}: {why}"))
}

/// Resolves the addresses of a host. The system's resolver has no deadline, so it runs in a thread of its own, which is
/// abandoned if it is too slow.
fn look_up(address: &str, deadline: Instant) -> Result<Vec<SocketAddr>, Error> {
    if let Ok(literal) = address.parse() {
        return Ok(vec![literal]);
    }
    let known =
        address.rsplit_once(':').filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if known.is_none() {
        return Err(Error::new(
            Code::InvalidArgument,
            format!("\"{address}\" is no address of a host and port"),
        ));
    }
    let (found, answer) = mpsc::channel();
    let name = address.to_owned();
    std::thread::Builder::new()
        .name("sublet-lookup".into())
        .spawn(move || found.send(name.to_socket_addrs().map(|all| all.take(MAX_ADDRESSES).collect())))
        .map_err(|error| FabricError::system("starting a thread to look up a name", error))?;
    let left = deadline.saturating_duration_since(Instant::now());
    let addresses: Vec<_> = match answer.recv_timeout(left) {
        Ok(addresses) => addresses.map_err(|error| unreachable(address, error))?,
        Err(_) => return Err(unreachable(address, "its name was not resolved in time")),
    };
    match addresses.is_empty() {
        true => Err(unreachable(address, "its name has no address")),
        false => Ok(addresses),
    }
}
