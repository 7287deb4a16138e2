//! The acceptors: a thread for the agent's socket and one for its port, which take connections and give each a thread of
//! its own.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sublet_admission::Party;
use sublet_fabric::connection::Connection;
use sublet_fabric::greeting;
use sublet_fabric::packet::PacketListener;
use sublet_proto::graph::DEFAULT_SEGMENT_BYTES;
use sublet_proto::{Code, Error};
use tracing::error;

use crate::listener::{connection, message, unauthenticated};
use crate::node::Node;
use crate::signal::wait_readable;

/// Connections beyond one for each core, place and segment, and those without a ticket: those that are about to end.
const SPARE_CONNECTIONS: usize = 64;
/// Segments of the usual size for which there are connections. More memory is had by larger ones.
const MAX_SEGMENTS: u64 = 4096;
/// How long to wait after a failure to accept, such as of too many open files, before trying again.
const RETRY: Duration = Duration::from_millis(100);

/// Socket at which connections arrive.
pub(crate) trait Entrance: AsFd {
    /// Takes the next connection, if there still is one, and gives it a thread or turns it away; `busy` threads run.
    fn admit(&self, node: &Arc<Node>, busy: usize) -> Result<Option<JoinHandle<()>>, Error>;
}

/// The body of an acceptor's thread. Returns when the agent stops and every supervisor has ended.
pub(crate) fn run(node: &Arc<Node>, entrance: impl Entrance) {
    let mut supervisors: Vec<JoinHandle<()>> = Vec::new();
    while is_wanted(node, &entrance) {
        supervisors.retain(|supervisor| !supervisor.is_finished());
        match entrance.admit(node, supervisors.len()) {
            Ok(supervisor) => supervisors.extend(supervisor),
            Err(error) => {
                node.clients.connections.note("connections could not be accepted", &error);
                let _ = wait_readable([Some(node.stopping.as_fd())], Some(Instant::now() + RETRY));
            }
        }
    }
    drop(entrance);
    for supervisor in supervisors {
        if supervisor.join().is_err() {
            error!("a supervisor has failed");
        }
    }
}

/// Waits for a connection; false once the agent stops.
fn is_wanted(node: &Node, entrance: &impl Entrance) -> bool {
    loop {
        match wait_readable([Some(node.stopping.as_fd()), Some(entrance.as_fd())], None) {
            Ok([true, _]) => return false,
            Ok([false, true]) => return true,
            Ok([false, false]) => {}
            Err(error) => {
                error!(%error, "no connection is accepted any more");
                return false;
            }
        }
    }
}

/// Clients and operators of this machine. Whatever clients there are, a command of the operator's is heard.
impl Entrance for PacketListener {
    fn admit(&self, node: &Arc<Node>, busy: usize) -> Result<Option<JoinHandle<()>>, Error> {
        let socket = self.accept()?;
        let party = match connection::is_operator(&socket)? {
            true => Party::Operator,
            false => Party::User(socket.peer_uid()?),
        };
        let lent = &node.description;
        let segments = (lent.memory_bytes / DEFAULT_SEGMENT_BYTES).min(MAX_SEGMENTS) as usize;
        let leases = lent.cores as usize + lent.shared_places as usize + segments;
        let most = leases + SPARE_CONNECTIONS + node.clients.connections.most();
        let entered = if busy < most || party == Party::Operator {
            node.clients.connections.enter(party, &socket)
        } else {
            Err(Error::new(Code::NoCapacity, format!("the agent has {most} connections already")))
        };
        match entered {
            Ok(entry) => {
                let serve = move |node: &Arc<Node>| connection::serve(node, Connection::Local(socket), entry);
                Ok(spawn(node, serve))
            }
            Err(error) => {
                node.clients.connections.note_refused(&error);
                // A fresh connection has buffer space for one message.
                let _ = message::send(&Connection::Local(socket), message::failure(&error), &[]);
                Ok(None)
            }
        }
    }
}

/// Clients of other machines. Those that have shown a ticket are bounded by what the node lends, the others by their number.
impl Entrance for TcpListener {
    fn admit(&self, node: &Arc<Node>, _busy: usize) -> Result<Option<JoinHandle<()>>, Error> {
        let (socket, from) = match self.accept() {
            Ok(accepted) => accepted,
            // The connection has gone meanwhile.
            Err(error) if is_passing(&error) => return Ok(None),
            Err(error) => return Err(Error::new(Code::System, format!("accepting failed: {error}"))),
        };
        greeting::prepare(&socket)?;
        match node.clients.connections.enter_from(from.ip(), &socket) {
            Ok(entry) => Ok(spawn(node, move |node| unauthenticated::receive(node, socket, entry))),
            Err(error) => {
                node.clients.connections.note_refused(&error);
                greeting::turn_away(&socket, &error);
                Ok(None)
            }
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | WouldBlock)
}

fn spawn(node: &Arc<Node>, serve: impl FnOnce(&Arc<Node>) + Send + 'static) -> Option<JoinHandle<()>> {
    node.spawn("sublet-lease", serve).inspect_err(|error| error!(%error, "a connection was dropped")).ok()
}
