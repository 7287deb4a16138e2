//! Links to the shims of neighbours: a control connection between each two agents that the manager has named to each
//! other.
//!
//! The agent whose processor has the lower id connects to the other's port, and checks the certificate that the manager
//! has sent. It shows the secret that the manager has sent to both of them. Both agents then send what they know, and
//! from then on what changes.
//!
//! Invariants:
//! - Messages arrive in the order in which the sender's core emits them, or the link ends.
//! - No thread waits for a neighbour: messages to it wait for its link's own thread, up to a bound.
//! - A neighbour that the manager names no more, or names anew, has no link any more.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prost::Message;
use sublet_fabric::connection::Connection;
use sublet_fabric::greeting::{BridgeLink, Greeting, PULSE, Secret};
use sublet_fabric::packet::PacketError;
use sublet_fabric::sync::lock;
use sublet_proto::package::PackageKind;
use sublet_proto::v1::shim_message::Body;
use sublet_proto::v1::{
    AgentToClient, Alive, ClientToAgent, JoinShim, Neighbour, ShimAlive, ShimMessage, ShimSync,
};
use sublet_proto::{Code, Error, decode, pu};
use tracing::{info, warn};

use super::bridge::{Bridges, BridgingNode};
use super::core::{MAX_DEVICES, Peer, ProtocolViolation};
use super::route::{PortRoute, reach};
use super::{Shim, State};
use crate::listener::message::{self, FromClient, ToClient};
use crate::listener::secret::is_same;
use crate::machine::neighbours::Neighbours;
use crate::signal::{Signal, wait_readable};
use crate::threads::start_thread;

/// Messages to a neighbour that are not sent yet.
const MAX_WAITING: usize = 65_536;
/// A neighbour that is silent for this time is out of reach.
const SILENCE: Duration = Duration::from_secs(2);
/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(500);
/// How often neighbours learn of ended processes and freed names.
const LAZILY: Duration = Duration::from_millis(100);
/// Parts of a neighbour's first message.
const MAX_PARTS: usize = 4096;

/// Sending side of the link to a neighbour.
pub(super) struct NeighbourLink {
    /// Route to its port, and whether connections between processes are encrypted.
    pub(super) route: PortRoute,
    pub(super) encrypted: bool,
    /// The neighbour as the manager has described it.
    told_of: Neighbour,
    outbox: SyncSender<ShimMessage>,
    /// The connection, with which the link is ended.
    connection: Arc<Connection>,
}

impl NeighbourLink {
    /// Sends a message without waiting. A neighbour that is too slow loses its link.
    pub(super) fn tell(&self, message: ShimMessage) {
        match self.outbox.try_send(message) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                warn!(node = self.told_of.node, "a neighbour does not take its messages: its link ends");
                self.end();
            }
            // The link is over, which its own thread notices.
            Err(TrySendError::Disconnected(_)) => {}
        }
    }

    fn end(&self) {
        if let Connection::Remote(socket) = &*self.connection {
            socket.end();
        }
    }
}

/// The node's shim, its neighbours, and its links with their shims.
pub(crate) struct ShimLinks {
    /// Global processes of all processing units of the node.
    pub(crate) shim: Shim,
    /// The nodes that this one is linked with.
    pub(crate) neighbours: Neighbours,
    /// Name of the node.
    pub(crate) name: String,
    /// Id of the node's own processor among processing units.
    pub(crate) processor: u32,
    /// Whether connections to the node's port are encrypted; `None` if the node is on no network.
    pub(crate) encrypts: Option<bool>,
    bridges: Bridges,
}

impl ShimLinks {
    /// Creates the links of the node with this name and this processor, without any link yet.
    pub(crate) fn new(
        shim: Shim,
        neighbours: Neighbours,
        (name, processor): (String, u32),
        encrypts: Option<bool>,
    ) -> ShimLinks {
        ShimLinks { shim, neighbours, name, processor, encrypts, bridges: Bridges::default() }
    }

    /// The body of the thread that keeps the node linked, until the agent is `stopping`.
    pub(crate) fn run(self: &Arc<ShimLinks>, stopping: &Signal) {
        let mut dialling: BTreeMap<Peer, JoinHandle<()>> = BTreeMap::new();
        let mut tried = Instant::now();
        loop {
            let known = self.neighbours.current();
            let deadline = (!known.is_empty()).then(|| Instant::now() + LAZILY);
            let fds = [Some(stopping.as_fd()), Some(self.neighbours.changed.as_fd())];
            match wait_readable(fds, deadline) {
                Ok([false, changed]) => {
                    if changed {
                        self.neighbours.changed.clear();
                    }
                    let known = self.neighbours.current();
                    self.shim.keep_linked(&known);
                    dialling.retain(|_, thread| !thread.is_finished());
                    if changed || tried.elapsed() >= RETRY {
                        tried = Instant::now();
                        self.begin(&known, &mut dialling);
                    }
                }
                Ok([true, _]) => break,
                Err(error) => {
                    warn!(%error, "neighbours are not linked any more");
                    break;
                }
            }
        }
        self.shim.keep_linked(&[]);
        self.bridges.end();
        for (_, thread) in dialling {
            // The thread has logged why it failed.
            let _ = thread.join();
        }
    }

    /// Connects to the neighbours to which this node has to connect.
    fn begin(self: &Arc<ShimLinks>, known: &[Neighbour], dialling: &mut BTreeMap<Peer, JoinHandle<()>>) {
        for neighbour in known.iter().filter(|neighbour| self.processor < neighbour.unit) {
            if dialling.contains_key(&neighbour.unit) || self.shim.is_linked(neighbour.unit) {
                continue;
            }
            let (links, told_of) = (self.clone(), neighbour.clone());
            let dial = move || {
                if let Err(error) = links.dial(&told_of) {
                    info!(node = told_of.node, %error, "its shim cannot be linked with this one");
                }
            };
            match start_thread("sublet-link", dial) {
                Ok(thread) => drop(dialling.insert(neighbour.unit, thread)),
                Err(error) => warn!(%error, "the shim of a neighbour cannot be linked"),
            }
        }
    }

    fn dial(&self, told_of: &Neighbour) -> Result<(), Error> {
        if self.encrypts.is_none() {
            return Err(Error::new(Code::FabricUnavailable, "this node is on no network (listen)"));
        }
        let route = PortRoute::to(told_of, &self.neighbours.current(), self.processor);
        let connection = reach(&route, told_of.network.as_ref())?;
        connection.set_send_timeout(SILENCE)?;
        let join = JoinShim { node: self.name.clone(), secret: told_of.secret.clone() };
        connection.send(&ClientToAgent { body: Some(FromClient::Shim(join)) }.encode_to_vec(), &[])?;
        let packet = connection.receive(Some(SILENCE))?.ok_or_else(gone)?;
        let answer: AgentToClient = decode("a neighbour's answer", &packet.bytes)?;
        match answer.body {
            Some(ToClient::Alive(_)) => self.serve(&Arc::new(connection), told_of),
            Some(ToClient::Failure(failure)) => {
                Err(Error::new(Code::from_number(failure.code), failure.message))
            }
            _ => Err(Error::new(Code::Protocol, "a neighbour's answer makes no sense")),
        }
    }

    /// Passes on what comes by a connection between two neighbours that has greeted the port, until either end ends.
    pub(crate) fn carry(
        &self,
        link: &BridgeLink,
        socket: &TcpStream,
        greeting: &Greeting,
        known_now: impl FnOnce(),
    ) -> Result<(), Error> {
        let known = self.neighbours.current();
        let node = BridgingNode { bridges: &self.bridges, known: &known, processor: self.processor };
        node.carry(link, socket, greeting, known_now)
    }

    /// Serves a connection whose peer claims to be a neighbour, until it ends.
    pub(crate) fn welcome(
        &self,
        connection: &Arc<Connection>,
        asked: &JoinShim,
        known_now: impl FnOnce(),
    ) -> Result<(), Error> {
        let known = self.neighbours.current();
        let secret = |bytes: &[u8]| Secret::try_from(bytes).ok();
        let is_it = |neighbour: &&Neighbour| {
            let secrets = secret(&neighbour.secret).zip(secret(&asked.secret));
            neighbour.node == asked.node && secrets.is_some_and(|(known, shown)| is_same(&known, &shown))
        };
        let neighbour = known
            .iter()
            .find(is_it)
            .filter(|neighbour| neighbour.unit < self.processor)
            .ok_or_else(|| {
                let message =
                    format!("node {:?} is no neighbour of this one that may link itself with it", asked.node);
                Error::new(Code::PermissionDenied, message)
            })?;
        known_now();
        message::send(connection, ToClient::Alive(Alive {}), &[])?;
        self.serve(connection, neighbour)
    }

    /// Serves a link until one of the two agents is gone.
    fn serve(&self, connection: &Arc<Connection>, told_of: &Neighbour) -> Result<(), Error> {
        connection.set_send_timeout(SILENCE)?;
        let (outbox, waiting) = sync_channel(MAX_WAITING);
        let network = told_of.network.as_ref();
        let link = NeighbourLink {
            route: PortRoute::to(told_of, &self.neighbours.current(), self.processor),
            encrypted: network.is_some_and(|network| network.encrypted) || self.encrypts.unwrap_or(false),
            told_of: told_of.clone(),
            outbox,
            connection: connection.clone(),
        };
        let units = units(&told_of.node);
        let state = self.shim.state();
        let number = begin_link(state, told_of.unit, link, &units);
        let sending = connection.clone();
        let sender = start_thread("sublet-link", move || send_all(&sending, &waiting));
        let ended = sender.and_then(|sender| {
            let ended = hear_all(state, told_of, connection, &units);
            end_link(state, told_of.unit, number);
            // The thread's outbox is gone, so it ends.
            let _ = sender.join();
            ended
        });
        end_link(state, told_of.unit, number);
        info!(node = told_of.node, "its shim is out of reach");
        ended
    }
}

/// Registers a link. From now on the neighbour is sent what is known now, and then what changes.
fn begin_link(state: &Arc<Mutex<State>>, peer: Peer, link: NeighbourLink, units: &[u32]) -> u64 {
    let mut state = lock(state);
    state.link_count += 1;
    let number = state.link_count;
    let node = link.told_of.node.clone();
    if let Some((_, before)) = state.links.insert(peer, (number, link)) {
        before.end();
    }
    state.core.greet(peer, &node, units);
    state.perform();
    number
}

fn end_link(state: &Arc<Mutex<State>>, peer: Peer, number: u64) {
    let mut state = lock(state);
    if state.links.get(&peer).is_some_and(|(current, _)| *current == number) {
        state.links.remove(&peer);
        state.core.unlinked(peer);
        state.perform();
    }
}

fn send_all(connection: &Connection, waiting: &Receiver<ShimMessage>) {
    loop {
        let message = match waiting.recv_timeout(PULSE) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => {
                ShimMessage { body: Some(Body::Alive(ShimAlive { alive: true })) }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if connection.send(&message.encode_to_vec(), &[]).is_err() {
            return;
        }
    }
}

fn hear_all(
    state: &Arc<Mutex<State>>,
    told_of: &Neighbour,
    connection: &Connection,
    units: &[u32],
) -> Result<(), Error> {
    let violated = |ProtocolViolation(what)| {
        warn!(node = told_of.node, what, "a neighbour breaks the rules: its link ends");
        Error::new(Code::Protocol, format!("node {} breaks the rules: {what}", told_of.node))
    };
    let sync = hear_first(connection)?;
    {
        let mut state = lock(state);
        let linked = state.core.linked(told_of.unit, &sync, units);
        state.perform();
        linked.map_err(violated)?;
    }
    info!(node = told_of.node, "its shim is linked with this one");
    loop {
        let message = hear(connection)?;
        let mut state = lock(state);
        let heard = state.core.heard(told_of.unit, message);
        state.perform();
        heard.map_err(violated)?;
    }
}

/// Receives all parts of a neighbour's first message.
fn hear_first(connection: &Connection) -> Result<ShimSync, Error> {
    let mut all = ShimSync::default();
    for _ in 0..MAX_PARTS {
        let Some(Body::Sync(mut part)) = hear(connection)?.body else {
            return Err(Error::new(Code::Protocol, "a neighbour does not begin with what it knows"));
        };
        all.names.append(&mut part.names);
        all.rights.append(&mut part.rights);
        if !part.more {
            return Ok(ShimSync { names: all.names, rights: all.rights, ..part });
        }
    }
    Err(Error::new(Code::Protocol, "a neighbour knows too much"))
}

fn hear(connection: &Connection) -> Result<ShimMessage, Error> {
    match connection.receive(Some(SILENCE)) {
        Ok(Some(packet)) => decode("what a neighbour says", &packet.bytes),
        Ok(None) | Err(PacketError::PeerGone) => Err(gone()),
        Err(error) => Err(error.into()),
    }
}

/// Ids that the processing units of a node may have.
fn units(node: &str) -> Vec<u32> {
    let devices = [PackageKind::OpenCl, PackageKind::Cuda].into_iter();
    let devices =
        devices.flat_map(|kind| (0..MAX_DEVICES).map(move |number| format!("{}{number}", kind.name())));
    [pu::PROCESSOR.to_owned()].into_iter().chain(devices).map(|unit| pu::id(node, &unit)).collect()
}

fn gone() -> Error {
    Error::new(Code::AgentUnreachable, "the neighbour's agent has closed the connection")
}

impl Shim {
    /// Ends links to neighbours that the manager names no more, or names anew. Tells the others of ended processes and
    /// freed names.
    fn keep_linked(&self, known: &[Neighbour]) {
        let mut state = lock(&self.state);
        for (_, link) in state.links.values() {
            if !known.contains(&link.told_of) {
                link.end();
            }
        }
        state.forget_late();
        state.core.tick();
        state.perform();
    }

    /// Nodes to whose agents this one is connected, and whose processing units its functions reach.
    pub(crate) fn connected(&self) -> Vec<String> {
        lock(&self.state).core.linked_nodes()
    }

    fn is_linked(&self, peer: Peer) -> bool {
        lock(&self.state).links.contains_key(&peer)
    }

    fn state(&self) -> &Arc<Mutex<State>> {
        &self.state
    }
}
