//! The host as bridge (Molecule, section 5): how a node without a direct path is reached, and the bytes that this node
//! passes on between two others.
//!
//! The manager names the bridge to two nodes that are not linked with each other and both linked with a third. A node
//! that connects to the other one connects to the third and proves itself by the secret that the two share. It then
//! continues as if it had connected to the other node: with its greeting and, where required, with TLS from end to end.
//! The third node passes bytes on and interprets none.
//!
//! Invariants:
//! - Bytes pass only between two nodes with which this one is linked, and only for a node that proves to be one of
//!   them.
//! - A bridge ends, both ways, when either end closes or this agent stops.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sublet_fabric::greeting::{self, BridgeLink, ConnectionPurpose, Counters, Greeting, Secret};
use sublet_fabric::sync::lock;
use sublet_proto::v1::Neighbour;
use sublet_proto::{Code, Error};
use tracing::debug;

use super::link::DIAL;
use crate::node::Node;

/// Largest number of bridges at a time.
const MAX_BRIDGES: usize = 1024;
/// Most bytes that are passed on at once.
const PIECE_BYTES: usize = 64 << 10;

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
            |whom: &str| Error::new(Code::FabricUnavailable, format!("{whom} is on no network (listen)"));
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

/// The bridges that this node serves.
#[derive(Default)]
pub(crate) struct Bridges(Mutex<BridgeState>);

#[derive(Default)]
struct BridgeState {
    /// Sockets of each bridge, with which it is ended.
    all: HashMap<u64, [TcpStream; 2]>,
    count: u64,
    /// Registration of each neighbour, by its processor, and the counters of the greetings that it has used in it.
    used: HashMap<u32, (u64, Counters)>,
    is_closed: bool,
}

impl Bridges {
    /// Ends all bridges because the agent stops.
    pub(super) fn end(&self) {
        let mut inside = lock(&self.0);
        inside.is_closed = true;
        inside.all.values().flatten().for_each(super::remote_fifos::cut);
    }

    /// Whether a neighbour asks by this greeting for the first time.
    fn is_first(&self, by: &Neighbour, counter: u64) -> bool {
        let mut inside = lock(&self.0);
        let (registration, counters) = inside.used.entry(by.unit).or_default();
        if *registration != by.registration {
            (*registration, *counters) = (by.registration, Counters::default());
        }
        counters.accept(counter)
    }

    fn enter(&self, ends: [&TcpStream; 2]) -> Result<u64, Error> {
        let [one, other] = ends.map(super::remote_fifos::copy);
        let mut inside = lock(&self.0);
        if inside.is_closed || inside.all.len() >= MAX_BRIDGES {
            let message = format!("this node has {} bridges, and no more", inside.all.len());
            return Err(Error::new(Code::TooManyInFlight, message));
        }
        inside.count += 1;
        let number = inside.count;
        inside.all.insert(number, [one?, other?]);
        Ok(number)
    }

    fn leave(&self, number: u64) {
        lock(&self.0).all.remove(&number);
    }
}

/// Passes on what comes by a connection that has greeted the port, until either end ends.
pub(crate) fn carry(
    node: &Node,
    link: &BridgeLink,
    socket: &TcpStream,
    greeting: &Greeting,
    known_now: impl FnOnce(),
) -> Result<(), Error> {
    let onward = connect(node, link, greeting).inspect_err(|error| greeting.refuse(socket, error))?;
    let number = node.bridges.enter([socket, &onward]).inspect_err(|error| greeting.refuse(socket, error))?;
    known_now();
    let passed = greeting.accept(socket).map(|()| pass(socket, &onward));
    node.bridges.leave(number);
    debug!(from = link.from, to = link.to, "a bridge has ended");
    passed
}

/// Connects to the other node, if these two may be bridged.
fn connect(node: &Node, link: &BridgeLink, greeting: &Greeting) -> Result<TcpStream, Error> {
    let known = node.neighbours.current();
    let linked = |unit: u32| known.iter().find(|one| one.unit == unit && one.bridge.is_empty());
    let is_by =
        |by: &&Neighbour| Secret::try_from(by.secret.as_slice()).is_ok_and(|secret| greeting.is_by(&secret));
    let by = linked(link.from).filter(is_by).filter(|by| node.bridges.is_first(by, link.counter));
    let Some((by, to)) = by.zip(linked(link.to)).filter(|(by, to)| by.unit != to.unit) else {
        let message = format!("this node bridges nothing from unit {:x} to unit {:x}", link.from, link.to);
        return Err(Error::new(Code::PermissionDenied, message));
    };
    let onward = PortRoute::to(to, &known, node.processor).dial()?;
    greeting::prepare_for_data(&onward)?;
    debug!(from = by.node, to = to.node, "a bridge begins");
    Ok(onward)
}

/// Passes bytes in both directions.
fn pass(one: &TcpStream, other: &TcpStream) {
    std::thread::scope(|scope| {
        let back = std::thread::Builder::new().name("sublet-bridge".into());
        // Without a thread for the way back there is no bridge.
        if let Ok(back) = back.spawn_scoped(scope, || pass_on(other, one)) {
            pass_on(one, other);
            // The thread never panics, and a peer that closes one direction may still receive in the other.
            let _ = back.join();
        }
        super::remote_fifos::cut(one);
        super::remote_fifos::cut(other);
    });
}

/// Passes bytes on in one direction. The end of a stream closes the other side's stream for this direction; an error
/// ends both sockets.
fn pass_on(mut from: &TcpStream, mut to: &TcpStream) {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let passed = match from.read(&mut piece) {
            Ok(0) => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Ok(len) => to.write_all(&piece[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        };
        if passed.is_err() {
            super::remote_fifos::cut(from);
            super::remote_fifos::cut(to);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    use sublet_proto::v1::NodeNetwork;

    fn neighbour(node: &str, unit: u32, bridge: &str) -> Neighbour {
        Neighbour {
            node: node.into(),
            unit,
            bridge: bridge.into(),
            secret: vec![unit as u8; 32],
            registration: 1,
            network: Some(NodeNetwork { address: format!("{node}:1"), ..NodeNetwork::default() }),
            ..Neighbour::default()
        }
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (here, listener.accept().unwrap().0)
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

    #[test]
    fn refuses_a_replayed_greeting_until_the_node_registers_again() {
        let bridges = Bridges::default();
        let mut by = neighbour("a", 1, "");
        assert!(bridges.is_first(&by, 1) && bridges.is_first(&by, 3) && bridges.is_first(&by, 2));
        assert!(!bridges.is_first(&by, 3));
        assert!(bridges.is_first(&neighbour("b", 2, ""), 3), "each has its own");
        by.registration = 2;
        assert!(bridges.is_first(&by, 3));
    }

    #[test]
    fn passes_bytes_and_closed_ends_both_ways() {
        let ((mut a, near), (far, mut b)) = (pair(), pair());
        thread::scope(|scope| {
            let passing = scope.spawn(|| pass(&near, &far));
            let bytes = || (0..1_000_000u32).map(|at| at as u8).collect::<Vec<u8>>();
            let mut sending = a.try_clone().unwrap();
            let sent = scope.spawn(move || sending.write_all(&bytes()));
            let mut read = vec![0; 1_000_000];
            b.read_exact(&mut read).unwrap();
            sent.join().unwrap().unwrap();
            assert!(read == bytes());
            b.write_all(b"and back").unwrap();
            let mut back = [0; 8];
            a.read_exact(&mut back).unwrap();
            assert_eq!(&back, b"and back");
            // One node ends its direction; the other may still answer.
            a.shutdown(Shutdown::Write).unwrap();
            assert_eq!(b.read(&mut [0]).unwrap(), 0);
            b.write_all(b"x").unwrap();
            a.read_exact(&mut [0]).unwrap();
            drop(b);
            assert_eq!(a.read(&mut [0]).unwrap(), 0);
            passing.join().unwrap();
        });
    }

    #[test]
    fn all_bridges_end_with_the_agent() {
        let bridges = Bridges::default();
        let ((mut a, near), (far, _b)) = (pair(), pair());
        bridges.enter([&near, &far]).unwrap();
        bridges.end();
        assert_eq!(a.read(&mut [0]).unwrap(), 0);
        assert_eq!(bridges.enter([&near, &far]).unwrap_err().code, Code::TooManyInFlight);
    }
}
