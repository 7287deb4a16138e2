//! The host as bridge (Molecule, section 5): how a node is reached to which there is no direct path, and what passes between two nodes by
//! this one.
//!
//! Two nodes that are not linked, and both with a third, are told so by the manager. Who connects to the other one connects to the third,
//! shows the secret of the two of them, and goes on as if it had connected to the other: with its greeting and, where that belongs
//! to it, with TLS from end to end. The third passes bytes on and understands none.
//!
//! Invariants:
//! - Nothing is passed on but between two nodes with which this one is linked, for the one that proves to be one of them.
//! - A bridge ends, both ways, when either end does, or this agent.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sublet_fabric::greeting::{self, BridgeLink, Counters, Greeting, Kind, Secret};
use sublet_fabric::sync::lock;
use sublet_proto::v1::Neighbour;
use sublet_proto::{Code, Error};
use tracing::debug;

use super::link::DIAL;
use crate::node::Node;

/// Bridges at a time.
const MAX_BRIDGES: usize = 1024;
/// What is passed on at a time, at most.
const PIECE_BYTES: usize = 64 << 10;

/// Bridges that this process has asked for.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// How a node's port is reached.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// Whose, in words.
    whom: String,
    /// Its own; empty: it is on no network.
    address: String,
    bridge: Option<Bridge>,
}

/// By a neighbour of both.
#[derive(Clone, Debug)]
struct Bridge {
    address: String,
    secret: Option<Secret>,
    from: u32,
    to: u32,
}

impl Route {
    /// To a node that the manager has told of beside these others, from that of this processor.
    pub(super) fn to(neighbour: &Neighbour, known: &[Neighbour], own: u32) -> Route {
        let address = |of: Option<&Neighbour>| {
            of.and_then(|of| of.network.as_ref()).map(|network| network.address.clone()).unwrap_or_default()
        };
        let bridge = (!neighbour.bridge.is_empty()).then(|| {
            let by = known.iter().find(|other| other.node == neighbour.bridge && other.bridge.is_empty());
            let secret = by.and_then(|by| Secret::try_from(by.secret.as_slice()).ok());
            Bridge { address: address(by), secret, from: own, to: neighbour.unit }
        });
        Route { whom: format!("node {}", neighbour.node), address: address(Some(neighbour)), bridge }
    }

    /// To one whose port is known.
    pub(super) fn direct(whom: String, address: String) -> Route {
        Route { whom, address, bridge: None }
    }

    /// A connection to its port, which is still to be greeted.
    ///
    /// # Errors
    /// `fabric_unavailable`, `agent_unreachable`; why it is not bridged.
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
        greeting::greet(&socket, &Kind::Bridge(BridgeLink { from: *from, to: *to, counter }), Some(secret))?;
        Ok(socket)
    }
}

/// What this node passes on.
#[derive(Default)]
pub(crate) struct Bridges(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    /// Both ends of each, to end it.
    all: HashMap<u64, [TcpStream; 2]>,
    count: u64,
    /// Of each neighbour by its processor, in which registration, which greetings it has used.
    used: HashMap<u32, (u64, Counters)>,
    is_closed: bool,
}

impl Bridges {
    /// The agent stops.
    pub(super) fn end(&self) {
        let mut inside = lock(&self.0);
        inside.is_closed = true;
        inside.all.values().flatten().for_each(super::across::cut);
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
        let [one, other] = ends.map(super::across::copy);
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

/// The other side, if these two may be bridged.
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
    let onward = Route::to(to, &known, node.processor).dial()?;
    greeting::prepare_for_data(&onward)?;
    debug!(from = by.node, to = to.node, "a bridge begins");
    Ok(onward)
}

/// Both ways.
fn pass(one: &TcpStream, other: &TcpStream) {
    std::thread::scope(|scope| {
        let back = std::thread::Builder::new().name("sublet-bridge".into());
        // Without a thread for the way back there is no bridge.
        if let Ok(back) = back.spawn_scoped(scope, || pass_on(other, one)) {
            pass_on(one, other);
            // It panics at nothing, and whoever ends one way may still be answered.
            let _ = back.join();
        }
        super::across::cut(one);
        super::across::cut(other);
    });
}

/// What one end says no more the other is told to be no more; what neither takes ends both.
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
            super::across::cut(from);
            super::across::cut(to);
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
    fn a_node_behind_a_neighbour_is_reached_by_it_and_nobody_else() {
        let known = [neighbour("host", 2, ""), neighbour("b", 3, "host"), neighbour("c", 4, "b")];
        let route = Route::to(&known[1], &known, 7);
        let bridge = route.bridge.unwrap();
        assert_eq!((bridge.address.as_str(), bridge.secret), ("host:1", Some([2; 32])));
        assert_eq!((bridge.from, bridge.to), (7, 3));
        assert!(Route::to(&known[0], &known, 7).bridge.is_none());
        // Who is bridged itself bridges nobody.
        let error = Route::to(&known[2], &known, 7).dial().unwrap_err();
        assert!(
            error.code == Code::FabricUnavailable && error.message.contains("bridges to node c"),
            "{error}"
        );
    }

    #[test]
    fn a_recorded_greeting_is_worth_nothing_until_its_node_has_another_secret() {
        let bridges = Bridges::default();
        let mut by = neighbour("a", 1, "");
        assert!(bridges.is_first(&by, 1) && bridges.is_first(&by, 3) && bridges.is_first(&by, 2));
        assert!(!bridges.is_first(&by, 3));
        assert!(bridges.is_first(&neighbour("b", 2, ""), 3), "each has its own");
        by.registration = 2;
        assert!(bridges.is_first(&by, 3));
    }

    #[test]
    fn bytes_pass_both_ways_and_an_end_that_is_closed_closes_the_other() {
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
            // One says no more; the other may still answer.
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
