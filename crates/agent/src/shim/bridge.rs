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

use sublet_fabric::greeting::{self, BridgeLink, Counters, Greeting, Secret};
use sublet_fabric::sync::lock;
use sublet_proto::v1::Neighbour;
use sublet_proto::{Code, Error};
use tracing::debug;

use super::route::PortRoute;
use super::sockets::{copy, cut};

/// Largest number of bridges at a time.
const MAX_BRIDGES: usize = 1024;
/// Most bytes that are passed on at once.
const PIECE_BYTES: usize = 64 << 10;

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
        inside.all.values().flatten().for_each(cut);
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
        let [one, other] = ends.map(copy);
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

/// The node that bridges.
pub(super) struct BridgingNode<'node> {
    pub(super) bridges: &'node Bridges,
    /// The node's neighbours now.
    pub(super) known: &'node [Neighbour],
    /// Id of the node's processor.
    pub(super) processor: u32,
}

impl BridgingNode<'_> {
    /// Passes on what comes by a connection that has greeted the port, until either end ends.
    pub(super) fn carry(
        &self,
        link: &BridgeLink,
        socket: &TcpStream,
        greeting: &Greeting,
        known_now: impl FnOnce(),
    ) -> Result<(), Error> {
        let onward = self.connect(link, greeting).inspect_err(|error| greeting.refuse(socket, error))?;
        let number =
            self.bridges.enter([socket, &onward]).inspect_err(|error| greeting.refuse(socket, error))?;
        known_now();
        let passed = greeting.accept(socket).map(|()| pass(socket, &onward));
        self.bridges.leave(number);
        debug!(from = link.from, to = link.to, "a bridge has ended");
        passed
    }

    /// Connects to the other node, if these two may be bridged.
    fn connect(&self, link: &BridgeLink, greeting: &Greeting) -> Result<TcpStream, Error> {
        let linked = |unit: u32| self.known.iter().find(|one| one.unit == unit && one.bridge.is_empty());
        let is_by = |by: &&Neighbour| {
            Secret::try_from(by.secret.as_slice()).is_ok_and(|secret| greeting.is_by(&secret))
        };
        let by = linked(link.from).filter(is_by).filter(|by| self.bridges.is_first(by, link.counter));
        let Some((by, to)) = by.zip(linked(link.to)).filter(|(by, to)| by.unit != to.unit) else {
            let message =
                format!("this node bridges nothing from unit {:x} to unit {:x}", link.from, link.to);
            return Err(Error::new(Code::PermissionDenied, message));
        };
        let onward = PortRoute::to(to, self.known, self.processor).dial()?;
        greeting::prepare_for_data(&onward)?;
        debug!(from = by.node, to = to.node, "a bridge begins");
        Ok(onward)
    }
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
        cut(one);
        cut(other);
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
            cut(from);
            cut(to);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    fn neighbour(node: &str, unit: u32) -> Neighbour {
        Neighbour { node: node.into(), unit, registration: 1, ..Neighbour::default() }
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (here, listener.accept().unwrap().0)
    }

    #[test]
    fn refuses_a_replayed_greeting_until_the_node_registers_again() {
        let bridges = Bridges::default();
        let mut by = neighbour("a", 1);
        assert!(bridges.is_first(&by, 1) && bridges.is_first(&by, 3) && bridges.is_first(&by, 2));
        assert!(!bridges.is_first(&by, 3));
        assert!(bridges.is_first(&neighbour("b", 2), 3), "each has its own");
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
