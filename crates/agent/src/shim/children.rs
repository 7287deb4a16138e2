//! Programs that processes spawn, on this node or on one that is linked with it (Molecule 3.4): each has a lease of its own.
//!
//! The parent's agent is the client of that lease. It requests the lease from the manager and shows the ticket to the
//! agent of the processor, which returns the id that the child will have. It then grants the child the capabilities
//! that the parent has named, within the parent's rights. Only then does it start the program. The connection is the
//! child's life line: when the parent or this agent is gone, the lease ends.
//!
//! Invariants:
//! - A child never runs without all the rights that its parent has named, and never has others.
//! - A child that cannot be started leaves nothing behind: no process, no lease, no rights.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use prost::Message;
use sublet_fabric::connection::Connection;
use sublet_fabric::greeting::PULSE;
use sublet_fabric::packet::{PacketError, PacketSocket};
use sublet_fabric::sync::lock;
use sublet_proto::network::Fabric;
use sublet_proto::v1::{
    AgentToClient, Alive, Attach, ClientToAgent, FabricChoice, LeaseGrant, Release, Start,
};
use sublet_proto::{Code, Error, decode, version};
use sublet_runtime::access::socket_path;
use sublet_xpu::{FifoRights, GlobalId};
use tracing::{debug, info};

use super::State;
use super::core::{ShimCall, SpawnRequest, Tag};
use super::route::{PortRoute, reach};
use crate::leases::managers::Managers;
use crate::listener::message::{FromClient, ToClient};
use crate::signal::{Signal, wait_readable};
use crate::threads::start_thread;

/// Children of a process that live or are being started.
const MAX_CHILDREN: usize = 64;
/// How long the child's agent may be silent, if it is another node's.
const SILENCE: Duration = Duration::from_millis(800);
/// How long attaching may take, starting with the fetching of the package, and a grant.
const ATTACHING: Duration = Duration::from_secs(10);
const STARTING: Duration = Duration::from_secs(120);
const GRANTING: Duration = Duration::from_secs(5);
/// Value in place of a record in the tag of a call that no process has made itself.
const ASKED: u32 = u32::MAX;

/// State of children beside that of their agents.
pub(super) struct Children {
    managers: Arc<Managers>,
    /// Whether this node insists on encryption.
    encrypt: bool,
    /// Signals of the children of each process, raised when that process is gone.
    of: HashMap<GlobalId, Vec<Arc<Signal>>>,
    /// Calls that are made for a process, by their tags.
    asked: HashMap<(GlobalId, Tag), SyncSender<Result<u64, Error>>>,
    count: u32,
}

/// One child, as the thread that supervises it sees it.
struct Child {
    state: Weak<Mutex<State>>,
    managers: Arc<Managers>,
    encrypt: bool,
    parent: GlobalId,
    /// Lease of the parent.
    lease: String,
    spawn: Box<SpawnRequest>,
    /// Whether the unit is this agent's own.
    is_here: bool,
    /// Route to the agent of another node, if that is linked.
    route: Option<PortRoute>,
    /// Raised when the parent is gone.
    gone: Arc<Signal>,
}

/// The connection by which a child's lease is held.
struct ChildLease<'child> {
    connection: Connection,
    gone: &'child Signal,
    heard: Instant,
    told: Instant,
}

impl Children {
    pub(super) fn new(managers: Arc<Managers>, encrypt: bool) -> Children {
        Children { managers, encrypt, of: HashMap::new(), asked: HashMap::new(), count: 0 }
    }

    /// Ends the children of a process that is gone.
    pub(super) fn orphan(&mut self, parent: GlobalId) {
        for gone in self.of.remove(&parent).unwrap_or_default() {
            gone.raise();
        }
        self.asked.retain(|(by, _), _| *by != parent);
    }

    pub(super) fn end(&mut self) {
        self.of.values().flatten().for_each(|gone| gone.raise());
    }

    /// Takes the answer to a call that was made here, if it is one.
    pub(super) fn take(
        &mut self,
        by: GlobalId,
        tag: Tag,
        answer: Result<u64, Error>,
    ) -> Option<Result<u64, Error>> {
        if (tag & 0xffff_ffff) as u32 != ASKED {
            return Some(answer);
        }
        if let Some(asked) = self.asked.remove(&(by, tag)) {
            // The channel has capacity for one answer, and its receiver may be gone.
            let _ = asked.try_send(answer);
        }
        None
    }

    fn adopt(&mut self, parent: GlobalId) -> Result<Arc<Signal>, Error> {
        let own = self.of.entry(parent).or_default();
        own.retain(|gone| Arc::strong_count(gone) > 1);
        if own.len() >= MAX_CHILDREN {
            let message = format!("process {parent} has {MAX_CHILDREN} children, and no more");
            return Err(Error::new(Code::TooManyInFlight, message));
        }
        let gone = Arc::new(Signal::new()?);
        own.push(gone.clone());
        Ok(gone)
    }
}

impl State {
    /// Executes a program for a process, whose call is answered once the program runs.
    pub(super) fn spawn(&mut self, parent: GlobalId, tag: Tag, spawn: Box<SpawnRequest>) {
        if let Err(error) = self.begin_child(parent, tag, spawn) {
            self.answer(parent, tag, Err(error));
        }
    }

    fn begin_child(&mut self, parent: GlobalId, tag: Tag, spawn: Box<SpawnRequest>) -> Result<(), Error> {
        let lease = self.member(parent)?.lease.clone();
        let gone = self.children.adopt(parent)?;
        let (managers, encrypt) = (self.children.managers.clone(), self.children.encrypt);
        let is_here = self.core.is_here(GlobalId { pu: spawn.unit, local: 0 });
        let peer = self.core.serves(spawn.unit);
        let route = peer.and_then(|peer| self.links.get(&peer)).map(|(_, link)| link.route.clone());
        let child =
            Child { state: self.own.clone(), managers, encrypt, parent, lease, spawn, is_here, route, gone };
        start_thread("sublet-child", move || child.live(tag)).map(drop)
    }

    /// Makes a call on behalf of a process.
    fn ask(&mut self, by: GlobalId, call: ShimCall) -> Receiver<Result<u64, Error>> {
        self.children.count = self.children.count.wrapping_add(1);
        let tag = u64::from(self.children.count) << 32 | u64::from(ASKED);
        let (sender, answer) = sync_channel(1);
        self.children.asked.insert((by, tag), sender);
        self.call(by, tag, call);
        answer
    }
}

impl Child {
    /// Supervises the child from the call until the child or the parent has ended.
    fn live(self, tag: Tag) {
        match self.start() {
            Ok((line, pid)) => {
                self.answer(tag, Ok(pid.to_bits()));
                let path = self.spawn.program.path.as_str();
                let program = if path.is_empty() { "an executor of the package's functions" } else { path };
                info!(%pid, parent = %self.parent, program, "a program was spawned");
                let end = line.last();
                debug!(%pid, why = %end, "a program has ended");
            }
            Err(error) => self.answer(tag, Err(error)),
        }
    }

    fn answer(&self, tag: Tag, answer: Result<u64, Error>) {
        if let Some(state) = self.state.upgrade() {
            lock(&state).answer(self.parent, tag, answer);
        }
    }

    /// Leases and starts the child. If that fails, the connection closes, which ends all of the child.
    fn start(&self) -> Result<(ChildLease<'_>, GlobalId), Error> {
        let unit = self.spawn.unit;
        let grant = self.managers.connect()?.lease_for_process(&self.lease, unit, &self.spawn.package)?;
        let (connection, fabric) = self.reach(&grant)?;
        let now = Instant::now();
        let mut line = ChildLease { connection, gone: &self.gone, heard: now, told: now };
        let (ticket, program) = (grant.ticket, Some(self.spawn.program.clone()));
        line.tell(FromClient::Attach(Attach {
            ticket,
            fabric,
            program,
            calls: version::CALLS,
            ..Attach::default()
        }))?;
        let pid = line.wait(ATTACHING, |said| match said {
            ToClient::Attached(attached) => Some(GlobalId::from_bits(attached.process)),
            _ => None,
        })?;
        if pid.pu != unit {
            let message = format!("a program was spawned on processing unit {unit:x}, and is process {pid}");
            return Err(Error::new(Code::Protocol, message));
        }
        self.spawn.capabilities.iter().try_for_each(|&(object, rights)| self.grant(pid, object, rights))?;
        line.tell(FromClient::Start(Start {}))?;
        line.wait(STARTING, |said| matches!(said, ToClient::Started(_)).then_some(()))?;
        Ok((line, pid))
    }

    /// Connects to this node's own agent by its socket, or to another one by its port.
    fn reach(&self, grant: &LeaseGrant) -> Result<(Connection, Option<FabricChoice>), Error> {
        if self.is_here {
            let socket = PacketSocket::connect(&socket_path(&grant.agent)?)?;
            return Ok((Connection::Local(socket), None));
        }
        let network = grant.network.as_ref();
        let address = network.map(|network| network.address.clone()).unwrap_or_default();
        let direct = || PortRoute::direct(format!("processing unit {:x}", self.spawn.unit), address);
        let route = self.route.clone().unwrap_or_else(direct);
        let connection = reach(&route, network)?;
        let encrypted = self.encrypt || network.is_some_and(|network| network.encrypted);
        Ok((connection, Some(Fabric::Tcp.choice(encrypted))))
    }

    /// Grants the child a right that the parent can grant.
    fn grant(&self, to: GlobalId, object: GlobalId, rights: FifoRights) -> Result<(), Error> {
        let lost =
            || Error::new(Code::AgentUnreachable, "a right could not be granted: the shim does not answer");
        let state = self.state.upgrade().ok_or_else(lost)?;
        let answer = lock(&state).ask(self.parent, ShimCall::Grant { to, object, rights });
        answer.recv_timeout(GRANTING).map_err(|_| lost())?.map(drop)
    }
}

impl ChildLease<'_> {
    fn tell(&mut self, body: FromClient) -> Result<(), Error> {
        self.told = Instant::now();
        Ok(self.connection.send(&ClientToAgent { body: Some(body) }.encode_to_vec(), &[])?)
    }

    /// Waits for an expected message of the agent.
    fn wait<T>(
        &mut self,
        patience: Duration,
        mut wanted: impl FnMut(&ToClient) -> Option<T>,
    ) -> Result<T, Error> {
        let until = Instant::now() + patience;
        loop {
            let said = self.hear(Some(until))?;
            if let Some(found) = wanted(&said) {
                return Ok(found);
            }
            if let Some(error) = end_of(said) {
                return Err(error);
            }
        }
    }

    /// Waits until the child or its parent has ended, and returns the reason.
    fn last(mut self) -> Error {
        let end = loop {
            match self.hear(None).map(end_of) {
                Ok(None) => {}
                Ok(Some(error)) | Err(error) => break error,
            }
        };
        // If the child's agent is gone, its lease has ended already.
        let _ = self.tell(FromClient::Release(Release {}));
        end
    }

    /// Receives the agent's next message. Between nodes both sides send signs of life.
    fn hear(&mut self, until: Option<Instant>) -> Result<ToClient, Error> {
        loop {
            match self.connection.receive(Some(Duration::ZERO)) {
                Ok(Some(packet)) => {
                    self.heard = Instant::now();
                    let said: AgentToClient = decode("an agent's message", &packet.bytes)?;
                    let nothing = || Error::new(Code::Protocol, "an agent says nothing");
                    return said.body.ok_or_else(nothing);
                }
                Ok(None) | Err(PacketError::PeerGone) => return Err(unreachable("is gone")),
                Err(PacketError::TimedOut(_)) => {}
                Err(error) => return Err(error.into()),
            }
            let now = Instant::now();
            if self.connection.is_remote() {
                if now.duration_since(self.heard) > SILENCE {
                    return Err(unreachable("is silent"));
                }
                if now.duration_since(self.told) >= PULSE {
                    self.tell(FromClient::Alive(Alive {}))?;
                }
            }
            if until.is_some_and(|until| now >= until) {
                return Err(Error::new(Code::DeadlineExceeded, "the program's agent takes too long"));
            }
            let next = self.connection.is_remote().then(|| self.told + PULSE);
            let deadline = [until, next].into_iter().flatten().min();
            let fds = [Some(self.connection.as_fd()), Some(self.gone.as_fd())];
            if let [_, true] = wait_readable(fds, deadline)? {
                return Err(Error::new(Code::LeaseEnded, "its parent is gone"));
            }
        }
    }
}

/// Why the child has ended, if the agent's message says that.
fn end_of(said: ToClient) -> Option<Error> {
    match said {
        ToClient::Failure(failure) => Some(Error::new(Code::from_number(failure.code), failure.message)),
        ToClient::WorkerExited(exited) => Some(Error::new(Code::from_number(exited.code), exited.reason)),
        ToClient::LeaseEnded(ended) => Some(Error::new(Code::from_number(ended.code), ended.reason)),
        _ => None,
    }
}

fn unreachable(what: &str) -> Error {
    Error::new(Code::AgentUnreachable, format!("the program's agent {what}"))
}
