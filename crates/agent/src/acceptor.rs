//! The acceptor: one thread that takes connections and gives each a thread of its own.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sublet_fabric::packet::{PacketListener, PacketSocket};
use sublet_proto::{Code, Error};
use tracing::{error, warn};

use crate::node::Node;
use crate::signal::wait_readable;
use crate::{connection, message};

/// Connections beyond one for each core: those that have not shown a ticket, or are about to end.
const SPARE_CONNECTIONS: usize = 64;
/// Connections beyond those that only the node's operator gets: no client keeps a command from being heard.
const OPERATOR_CONNECTIONS: usize = 8;
/// How long to wait after a failure to accept, such as of too many open files, before trying again.
const RETRY: Duration = Duration::from_millis(100);

/// The body of the acceptor's thread. Returns when the agent stops and every supervisor has ended.
pub(crate) fn run(node: &Arc<Node>, listener: PacketListener) {
    let most = node.description.cores as usize + SPARE_CONNECTIONS;
    let mut supervisors: Vec<JoinHandle<()>> = Vec::new();
    while is_wanted(node, &listener) {
        supervisors.retain(|supervisor| !supervisor.is_finished());
        match listener.accept() {
            Ok(socket) if supervisors.len() < most + reserved(&socket) => {
                supervisors.extend(supervise(node, socket));
            }
            Ok(socket) => refuse(&socket, most),
            Err(error) => {
                warn!(%error, "a connection could not be accepted");
                let _ = wait_readable([Some(node.stopping.as_fd())], Some(Instant::now() + RETRY));
            }
        }
    }
    drop(listener);
    for supervisor in supervisors {
        if supervisor.join().is_err() {
            error!("a supervisor has failed");
        }
    }
}

/// Waits for a connection; false once the agent stops.
fn is_wanted(node: &Node, listener: &PacketListener) -> bool {
    loop {
        match wait_readable([Some(node.stopping.as_fd()), Some(listener.as_fd())], None) {
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

fn supervise(node: &Arc<Node>, socket: PacketSocket) -> Option<JoinHandle<()>> {
    node.spawn("sublet-lease", move |node| connection::serve(node, socket))
        .inspect_err(|error| error!(%error, "a connection was dropped"))
        .ok()
}

/// How many more connections than others the peer's user may make.
fn reserved(socket: &PacketSocket) -> usize {
    if connection::is_operator(socket).unwrap_or(false) { OPERATOR_CONNECTIONS } else { 0 }
}

fn refuse(socket: &PacketSocket, most: usize) {
    let error = Error::new(Code::NoCapacity, format!("the agent has {most} connections already"));
    warn!(%error, "a connection was refused");
    // A fresh connection has room for one message.
    let _ = message::send(socket, message::failure(&error), &[]);
}
