//! Keeps the state of a shim and makes its decisions: processes, FIFOs, names, rights and connections. Pure: calls,
//! messages and ends go in, effects come out, and the [shim](super) carries them out.
//!
//! State is kept and synchronised in these ways (Molecule 5):
//! - Processes are known to their own agent. They are not synchronised: the ids are partitioned.
//! - Names of FIFOs are kept by the FIFO's agent, with copies everywhere. They are synchronised at once: a name is
//!   claimed of all neighbours.
//! - Rights to a FIFO are kept by the FIFO's agent, with a copy at the process's agent. They are synchronised at once:
//!   a change is answered when both agents have it.
//! - Connections are kept by the FIFO's agent and the writer's, and synchronised at once.
//! - Ends of processes and freed names are synchronised lazily: the use of a name from a stale copy is refused.
//!
//! Invariants:
//! - A FIFO's own agent decides which processes connect; a process's agent refuses what its copy does not allow without
//!   asking.
//! - Two neighbours that can reach each other never have a FIFO of the same name of a tenant. If they took the name
//!   while apart, the FIFO with the lower id keeps it once they are linked.
//! - A neighbour is believed about its own processes and FIFOs, and about nothing else.
//! - A call that waits for a neighbour is answered when that is out of reach.

mod connections;
mod fifo_names;
mod names;
mod peers;
mod rights;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use sublet_proto::package::{check_path, is_device};
use sublet_proto::v1::{self, shim_message};
use sublet_proto::{Code, Error, pu};
use sublet_xpu::wire::{DESCRIPTORS, MAX_NAME_BYTES};
use sublet_xpu::{FifoRights, FifoShape, GlobalId};

use fifo_names::{FifoNames, TenantFifoName};
pub(crate) use peers::ProtocolViolation;

/// FIFOs of one process.
const MAX_FIFOS: usize = 64;
/// Processes with a right to one FIFO.
const MAX_HOLDERS: usize = 1024;
/// Processes that write to one FIFO.
const MAX_WRITERS: usize = 128;
/// Names of one neighbour's FIFOs in this agent's copies.
const MAX_PEER_NAMES: usize = 65_536;
/// Entries in one message to a neighbour.
const MAX_TOLD: usize = 128;
/// Devices of each kind that a node has.
pub(super) const MAX_DEVICES: u32 = 16;
/// Calls that wait for answers of neighbours.
const MAX_PENDING: usize = 65_536;

/// Number by which a process identifies the answer to its call.
pub(crate) type Tag = u64;
/// The agent of a neighbour, by the id of its processor.
pub(crate) type Peer = u32;

/// See the [module](self).
pub(crate) struct ShimCore {
    /// Name of this agent's node.
    node: String,
    /// Kind of this node's processor.
    kind: String,
    /// Identifier of this start of the agent.
    instance: String,
    /// Processing units that the agent serves.
    units: BTreeSet<u32>,
    next_local: u32,
    next_token: u64,
    processes: HashMap<GlobalId, ShimProcess>,
    fifos: HashMap<GlobalId, FifoState>,
    /// Names of all FIFOs in the computer, as far as this agent knows them.
    names: FifoNames,
    peers: BTreeMap<Peer, ShimNeighbour>,
    /// Identifier of the agent's start of each neighbour that was ever linked.
    instances: BTreeMap<Peer, String>,
    /// Neighbour that serves each remote unit.
    routes: BTreeMap<u32, Peer>,
    pending: BTreeMap<u64, DelayedRequest>,
    /// Ends that neighbours learn lazily.
    gone: v1::ShimGone,
    out: VecDeque<ShimEffect>,
}

/// The group of capabilities of a process (Molecule 3.2), with its descriptors.
struct ShimProcess {
    tenant: Arc<str>,
    /// Copies of the rights to FIFOs of neighbours.
    rights: HashMap<GlobalId, FifoRights>,
    descriptors: BTreeMap<u32, FifoDescriptor>,
    fifos: BTreeSet<GlobalId>,
    /// Most bytes that the rings of the process's FIFOs may use.
    capacity_bytes: u64,
    rings_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FifoDescriptor {
    Reader(GlobalId),
    Writer { object: GlobalId, connection: u32, is_over: bool },
}

struct FifoState {
    name: Option<TenantFifoName>,
    tenant: Arc<str>,
    shape: FifoShape,
    /// Process that created the FIFO. The FIFO ends with this process.
    creator: GlobalId,
    reader: Option<(GlobalId, u32)>,
    rights: BTreeMap<GlobalId, FifoRights>,
    /// Writers by connection; those of this agent with their descriptors.
    writers: BTreeMap<u32, (GlobalId, Option<u32>)>,
    next_connection: u32,
}

#[derive(Default)]
struct ShimNeighbour {
    node: String,
    /// Kind of its processor, as the neighbour reports it.
    kind: String,
    units: Vec<u32>,
    /// Whether the neighbour has sent all that it knows.
    is_linked: bool,
    names: BTreeSet<(TenantFifoName, GlobalId)>,
}

/// A request that waits for neighbours.
enum DelayedRequest {
    Claim(Claim),
    Change {
        by: GlobalId,
        tag: Tag,
        peer: Peer,
    },
    Update {
        asked: RightsChangeOrigin,
        peer: Peer,
        revoked: bool,
        process: GlobalId,
        object: GlobalId,
        before: FifoRights,
    },
    Connect {
        by: GlobalId,
        tag: Tag,
        peer: Peer,
        object: GlobalId,
        to: FifoTarget,
    },
}

/// A name that a process of this agent requests.
struct Claim {
    by: GlobalId,
    tag: Tag,
    name: TenantFifoName,
    shape: FifoShape,
    object: GlobalId,
    awaits: BTreeSet<Peer>,
    /// FIFO that gets the name instead.
    lost_to: Option<GlobalId>,
}

/// Origin of a change of rights.
#[derive(Clone, Copy, Debug)]
enum RightsChangeOrigin {
    Here {
        by: GlobalId,
        tag: Tag,
    },
    There {
        peer: Peer,
        token: u64,
    },
    /// The requester no longer waits for the answer.
    Gone,
}

/// Request of a process.
#[derive(Clone, Debug)]
pub(crate) enum ShimCall {
    Grant {
        to: GlobalId,
        object: GlobalId,
        rights: FifoRights,
    },
    Revoke {
        from: GlobalId,
        object: GlobalId,
        rights: FifoRights,
    },
    Rights {
        object: GlobalId,
    },
    Init {
        name: String,
        shape: FifoShape,
    },
    Connect {
        to: FifoTarget,
    },
    ConnectToRead {
        to: FifoTarget,
    },
    Close {
        descriptor: u32,
    },
    Object {
        descriptor: u32,
    },
    Cut {
        descriptor: u32,
        connection: u32,
    },
    Spawn(Box<SpawnRequest>),
    /// Looks up the processor of this number.
    Unit {
        number: u64,
    },
    /// Looks up the device of this name beside a processor.
    Device {
        processor: u32,
        name: String,
    },
    /// Looks up a unit of this kind.
    Find {
        kind: String,
    },
}

/// A program to be executed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SpawnRequest {
    pub(crate) unit: u32,
    pub(crate) program: v1::Program,
    /// Digest of the program's package; empty for that of the calling process.
    pub(crate) package: String,
    pub(crate) capabilities: Vec<(GlobalId, FifoRights)>,
}

/// Identification of a FIFO.
#[derive(Clone, Debug)]
pub(crate) enum FifoTarget {
    Object(GlobalId),
    Named(String),
}

/// A process's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ProcessDescriptor {
    pub(crate) process: GlobalId,
    pub(crate) descriptor: u32,
}

/// A connection of a FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FifoConnectionId {
    pub(crate) object: GlobalId,
    pub(crate) connection: u32,
}

/// Action for the shim to carry out, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ShimEffect {
    /// Answers a call.
    Answer { process: GlobalId, tag: Tag, answer: Result<u64, Error> },
    /// Gives a process the reading end of a FIFO, and answers its call with the descriptor.
    Read { at: ProcessDescriptor, tag: Tag, object: GlobalId, shape: FifoShape },
    /// Connects two processes of this agent, and answers the writer's call with its descriptor.
    Join {
        way: FifoConnectionId,
        shape: FifoShape,
        reader: ProcessDescriptor,
        writer: ProcessDescriptor,
        tag: Tag,
    },
    /// Lets a process of a neighbour connect, and tells its agent how.
    Invite {
        way: FifoConnectionId,
        shape: FifoShape,
        reader: ProcessDescriptor,
        writer: GlobalId,
        peer: Peer,
        token: u64,
    },
    /// Connects a process of this agent as a neighbour has said, and answers its call.
    Dial { at: ProcessDescriptor, tag: Tag, peer: Peer, object: GlobalId, invited: v1::FifoInvited },
    /// Informs the reader that a connection has ended.
    Part { reader: ProcessDescriptor, way: FifoConnectionId, at_once: bool },
    /// Releases all that the agent holds of a connection.
    Forget { way: FifoConnectionId },
    /// Ends a descriptor for this reason, and wakes each process that waits on it.
    End { at: ProcessDescriptor, way: Option<FifoConnectionId>, code: Code },
    /// A descriptor is closed.
    Closed { at: ProcessDescriptor },
    /// Executes a program for a process, with rights that this process can grant, and answers its call.
    Spawn { by: GlobalId, tag: Tag, spawn: Box<SpawnRequest> },
    /// Sends a message to a neighbour.
    Tell { peer: Peer, message: v1::ShimMessage },
}

impl ShimCore {
    /// Creates the state of an agent of this node, whose processor is of this kind, and which serves these units. Local
    /// numbers begin at `first_local`, so that they seldom repeat those of an earlier start.
    pub(crate) fn new(
        (node, kind): (&str, &str),
        instance: String,
        units: &[u32],
        first_local: u32,
    ) -> ShimCore {
        ShimCore {
            node: node.into(),
            kind: kind.into(),
            instance,
            units: units.iter().copied().collect(),
            next_local: first_local.max(1),
            next_token: 1,
            processes: HashMap::new(),
            fifos: HashMap::new(),
            names: FifoNames::default(),
            peers: BTreeMap::new(),
            instances: BTreeMap::new(),
            routes: BTreeMap::new(),
            pending: BTreeMap::new(),
            gone: v1::ShimGone::default(),
            out: VecDeque::new(),
        }
    }

    /// Returns the next effect to carry out.
    pub(crate) fn next_effect(&mut self) -> Option<ShimEffect> {
        self.out.pop_front()
    }

    /// Lets a process enter on a unit of this agent. `capacity_bytes` limits the rings of its FIFOs.
    pub(crate) fn enter(&mut self, tenant: &str, pu: u32, capacity_bytes: u64) -> Result<GlobalId, Error> {
        if !self.units.contains(&pu) {
            return Err(Error::new(Code::Internal, format!("there is no processing unit {pu:x} here")));
        }
        let pid = self.new_id(pu);
        let process = ShimProcess {
            tenant: tenant.into(),
            rights: HashMap::new(),
            descriptors: BTreeMap::new(),
            fifos: BTreeSet::new(),
            capacity_bytes,
            rings_bytes: 0,
        };
        let before = self.processes.insert(pid, process);
        debug_assert!(before.is_none(), "process {pid} has entered twice");
        Ok(pid)
    }

    /// Removes a process that is gone: its FIFOs end, and so do its connections.
    pub(crate) fn leave(&mut self, pid: GlobalId) {
        let Some(process) = self.processes.get(&pid) else { return };
        let descriptors: Vec<u32> = process.descriptors.keys().copied().collect();
        let fifos = process.fifos.clone();
        for descriptor in descriptors {
            // The descriptor is a key of the table, so it can be closed.
            let _ = self.close(ProcessDescriptor { process: pid, descriptor });
        }
        for object in fifos {
            self.end_fifo(object);
        }
        self.abandon(pid);
        let process = self.processes.remove(&pid);
        debug_assert!(
            process.is_none_or(|process| process.descriptors.is_empty() && process.fifos.is_empty()),
            "process {pid} has left, and left something"
        );
        self.forget_process(pid);
        debug_assert!(
            self.fifos.values().all(|fifo| fifo.creator != pid && !fifo.rights.contains_key(&pid)),
            "a FIFO knows the process {pid}, which is gone"
        );
        if !self.peers.is_empty() {
            self.gone.processes.push(pid.to_bits());
        }
    }

    /// Handles a call of a process. Some calls are answered at once, others when neighbours have answered.
    pub(crate) fn call(&mut self, by: GlobalId, tag: Tag, call: ShimCall) {
        let answered = match call {
            ShimCall::Grant { to, object, rights } => self.change((by, tag), (to, object, rights), false),
            ShimCall::Revoke { from, object, rights } => self.change((by, tag), (from, object, rights), true),
            ShimCall::Rights { object } => Ok(Some(u64::from(self.rights(by, object).to_bits()))),
            ShimCall::Init { name, shape } => self.init((by, tag), name, shape),
            ShimCall::Connect { to } => self.connect((by, tag), &to),
            ShimCall::ConnectToRead { to } => self.connect_to_read((by, tag), &to),
            ShimCall::Close { descriptor } => {
                self.close(ProcessDescriptor { process: by, descriptor }).map(|()| Some(0))
            }
            ShimCall::Object { descriptor } => {
                self.object(ProcessDescriptor { process: by, descriptor }).map(|id| Some(id.to_bits()))
            }
            ShimCall::Cut { descriptor, connection } => {
                self.cut(ProcessDescriptor { process: by, descriptor }, connection).map(|()| Some(0))
            }
            ShimCall::Spawn(spawn) => self.spawn((by, tag), spawn),
            ShimCall::Unit { number } => self.unit(by, number).map(|unit| Some(unit.into())),
            ShimCall::Device { processor, name } => {
                self.device(processor, &name).map(|unit| Some(unit.into()))
            }
            ShimCall::Find { kind } => self.unit_of(&kind).map(|unit| Some(unit.into())),
        };
        match answered {
            Ok(Some(value)) => self.answer((by, tag), Ok(value)),
            Ok(None) => {}
            Err(error) => self.answer((by, tag), Err(error)),
        }
    }

    /// Checks whether a program may be executed with these rights. The manager decides whether it may run on the unit.
    fn spawn(&mut self, (by, tag): (GlobalId, Tag), spawn: Box<SpawnRequest>) -> Result<Option<u64>, Error> {
        // Without a path it is an executor of the package's functions.
        if !spawn.program.path.is_empty() {
            check_path(&spawn.program.path)
                .map_err(|Error { message, .. }| Error::new(Code::InvalidArgument, message))?;
        }
        if !self.units.contains(&spawn.unit) {
            self.route(GlobalId { pu: spawn.unit, local: 0 })?;
        }
        let lacks =
            |(object, _): &&(GlobalId, FifoRights)| !self.rights(by, *object).contains(FifoRights::OWN);
        if let Some((object, _)) = spawn.capabilities.iter().find(lacks) {
            return Err(denied(by, "own", *object));
        }
        self.out.push_back(ShimEffect::Spawn { by, tag, spawn });
        Ok(None)
    }

    /// Nodes of the neighbours that are linked now.
    pub(crate) fn linked_nodes(&self) -> Vec<String> {
        self.peers.values().filter(|peer| peer.is_linked).map(|peer| peer.node.clone()).collect()
    }

    /// The neighbour that serves a unit.
    pub(super) fn serves(&self, unit: u32) -> Option<Peer> {
        self.routes.get(&unit).copied()
    }

    fn unit(&self, by: GlobalId, number: u64) -> Result<u32, Error> {
        let linked = self.peers.iter().filter(|(_, peer)| peer.is_linked).map(|(unit, _)| *unit);
        let mut units = std::iter::once(by.pu).chain(linked);
        usize::try_from(number).ok().and_then(|number| units.nth(number)).ok_or_else(|| {
            Error::new(
                Code::InvalidArgument,
                format!("there is no processor {number} that is linked with this one"),
            )
        })
    }

    /// The device of a node that a processor is of.
    fn device(&self, processor: u32, name: &str) -> Result<u32, Error> {
        let is_own = self.units.contains(&processor);
        let node = match self.peers.get(&processor).filter(|peer| peer.is_linked) {
            _ if is_own => &self.node,
            Some(neighbour) => &neighbour.node,
            None => {
                let message = format!("processor {processor:x} is no neighbour, or is out of reach");
                return Err(Error::new(Code::AgentUnreachable, message));
            }
        };
        let unit = pu::id(node, name);
        let is_there = if is_own { self.units.contains(&unit) } else { self.routes.contains_key(&unit) };
        if is_there && name != pu::PROCESSOR {
            return Ok(unit);
        }
        Err(Error::new(Code::InvalidArgument, format!("node {node} has no device {name:?}")))
    }

    /// The first unit of a kind: of this node, or else of a neighbour.
    fn unit_of(&self, kind: &str) -> Result<u32, Error> {
        let linked = self.peers.values().filter(|peer| peer.is_linked);
        let mut nodes =
            std::iter::once((&self.node, &self.kind)).chain(linked.map(|of| (&of.node, &of.kind)));
        let found = if is_device(kind) {
            let names = (0..MAX_DEVICES).map(|number| format!("{kind}{number}"));
            let units = |node| names.clone().map(move |name| pu::id(node, &name));
            let is_there = |unit: &u32| self.units.contains(unit) || self.routes.contains_key(unit);
            nodes.flat_map(|(node, _)| units(node)).find(is_there)
        } else {
            nodes.find(|(_, of)| *of == kind).map(|(node, _)| pu::id(node, pu::PROCESSOR))
        };
        found.ok_or_else(|| {
            let message = format!("neither node {} nor a linked one has a unit of kind {kind:?}", self.node);
            Error::new(Code::AgentUnreachable, message)
        })
    }

    /// Tells neighbours of ended processes and freed names.
    pub(crate) fn tick(&mut self) {
        #[cfg(debug_assertions)]
        self.assert_consistent();
        if self.gone.processes.is_empty() && self.gone.names.is_empty() {
            return;
        }
        let gone = std::mem::take(&mut self.gone);
        for peer in self.peers.keys().copied().collect::<Vec<_>>() {
            for part in parts(&gone) {
                self.tell(peer, shim_message::Body::Gone(part));
            }
        }
    }

    /// Abandons the pending calls of a process that is gone.
    fn abandon(&mut self, pid: GlobalId) {
        self.forget_asked(|asked| matches!(asked, RightsChangeOrigin::Here { by, .. } if by == pid));
        let of = |pending: &DelayedRequest| match pending {
            DelayedRequest::Claim(Claim { by, .. })
            | DelayedRequest::Change { by, .. }
            | DelayedRequest::Connect { by, .. } => *by == pid,
            DelayedRequest::Update { .. } => false,
        };
        let tokens: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| of(pending)).map(|(token, _)| *token).collect();
        for token in tokens {
            if let Some(DelayedRequest::Claim(claim)) = self.pending.remove(&token) {
                self.release_name(&claim.name, claim.object);
            }
        }
    }

    /// Lets changes of rights that are under way continue without an answer to their requesters.
    fn forget_asked(&mut self, is_gone: impl Fn(RightsChangeOrigin) -> bool) {
        for pending in self.pending.values_mut() {
            if let DelayedRequest::Update { asked, .. } = pending
                && is_gone(*asked)
            {
                *asked = RightsChangeOrigin::Gone;
            }
        }
    }

    fn answer(&mut self, (process, tag): (GlobalId, Tag), answer: Result<u64, Error>) {
        self.out.push_back(ShimEffect::Answer { process, tag, answer });
    }

    fn tell(&mut self, peer: Peer, body: shim_message::Body) {
        self.out.push_back(ShimEffect::Tell { peer, message: v1::ShimMessage { body: Some(body) } });
    }

    fn new_id(&mut self, pu: u32) -> GlobalId {
        loop {
            let id = GlobalId { pu, local: self.next_local };
            self.next_local = self.next_local.checked_add(1).unwrap_or(1);
            if !self.processes.contains_key(&id) && !self.fifos.contains_key(&id) {
                return id;
            }
        }
    }

    fn await_peers(&mut self, pending: DelayedRequest) -> Result<u64, Error> {
        if self.pending.len() >= MAX_PENDING {
            let message = format!("{MAX_PENDING} calls wait for neighbours already");
            return Err(Error::new(Code::TryLater, message));
        }
        let token = self.next_token;
        self.next_token += 1;
        let before = self.pending.insert(token, pending);
        debug_assert!(before.is_none(), "two calls wait by the token {token}");
        Ok(token)
    }

    /// Panics unless FIFOs and processes agree on who reads and writes, and what that takes.
    #[cfg(debug_assertions)]
    fn assert_consistent(&self) {
        let mut rings_bytes = HashMap::<GlobalId, u64>::new();
        for (&object, fifo) in &self.fifos {
            let creator = self.processes.get(&fifo.creator);
            assert!(creator.is_some_and(|by| by.fifos.contains(&object)), "the creator of FIFO {object}");
            if let Some((process, descriptor)) = fifo.reader {
                let at = ProcessDescriptor { process, descriptor };
                assert_eq!(
                    self.described(at),
                    Ok(FifoDescriptor::Reader(object)),
                    "the reader of FIFO {object}"
                );
                *rings_bytes.entry(process).or_default() +=
                    fifo.shape.region_bytes() * fifo.writers.len() as u64;
            }
            assert!(fifo.reader.is_some() || fifo.writers.is_empty(), "FIFO {object} has only writers");
            for (&connection, &(process, descriptor)) in &fifo.writers {
                assert!(
                    fifo.rights_of(process).contains(FifoRights::WRITE),
                    "{process} writes to FIFO {object}"
                );
                let Some(descriptor) = descriptor else { continue };
                let writer = FifoDescriptor::Writer { object, connection, is_over: false };
                assert_eq!(
                    self.described(ProcessDescriptor { process, descriptor }),
                    Ok(writer),
                    "a writer of {object}"
                );
            }
        }
        for (pid, process) in &self.processes {
            let expected = rings_bytes.get(pid).copied().unwrap_or_default();
            assert_eq!(process.rings_bytes, expected, "bytes in the rings of process {pid}");
            assert!(
                process.rings_bytes <= process.capacity_bytes,
                "the rings of {pid} take {expected} bytes"
            );
        }
    }

    fn process(&self, pid: GlobalId) -> Result<&ShimProcess, Error> {
        self.processes.get(&pid).ok_or_else(|| no_process(pid))
    }

    pub(super) fn is_here(&self, id: GlobalId) -> bool {
        self.units.contains(&id.pu)
    }

    /// The neighbour that serves a unit.
    fn route(&self, id: GlobalId) -> Result<Peer, Error> {
        self.routes.get(&id.pu).copied().ok_or_else(|| {
            let message = format!("processing unit {:x} is no neighbour, or is out of reach", id.pu);
            Error::new(Code::AgentUnreachable, message)
        })
    }

    /// Gives a process a number for something.
    fn describe(&mut self, pid: GlobalId, what: FifoDescriptor) -> Result<ProcessDescriptor, Error> {
        let process = self.processes.get_mut(&pid).ok_or_else(|| no_process(pid))?;
        let free = (0..DESCRIPTORS).find(|number| !process.descriptors.contains_key(number));
        let descriptor = free.ok_or_else(|| {
            Error::new(
                Code::TooManyInFlight,
                format!("process {pid} has {DESCRIPTORS} descriptors, and no more"),
            )
        })?;
        let before = process.descriptors.insert(descriptor, what);
        debug_assert!(before.is_none(), "descriptor {descriptor} of process {pid} was {before:?}");
        Ok(ProcessDescriptor { process: pid, descriptor })
    }

    fn described(&self, at: ProcessDescriptor) -> Result<FifoDescriptor, Error> {
        let found = self.process(at.process)?.descriptors.get(&at.descriptor);
        found.copied().ok_or_else(|| {
            Error::new(Code::InvalidArgument, format!("descriptor {} is not open", at.descriptor))
        })
    }

    fn object(&self, at: ProcessDescriptor) -> Result<GlobalId, Error> {
        self.described(at).map(|descriptor| match descriptor {
            FifoDescriptor::Reader(object) | FifoDescriptor::Writer { object, .. } => object,
        })
    }
}

/// Splits a message into parts that are small enough to send.
fn parts(gone: &v1::ShimGone) -> Vec<v1::ShimGone> {
    let processes =
        gone.processes.chunks(MAX_TOLD).map(|some| v1::ShimGone { processes: some.into(), names: vec![] });
    let names =
        gone.names.chunks(MAX_TOLD).map(|some| v1::ShimGone { processes: vec![], names: some.into() });
    processes.chain(names).collect()
}

fn no_process(pid: GlobalId) -> Error {
    Error::new(Code::InvalidArgument, format!("there is no process {pid}"))
}

fn no_fifo(what: &str) -> Error {
    Error::new(Code::InvalidArgument, format!("there is no FIFO {what}"))
}

fn denied(by: GlobalId, what: &str, object: GlobalId) -> Error {
    Error::new(Code::PermissionDenied, format!("process {by} has no right to {what} FIFO {object}"))
}

#[cfg(test)]
mod tests;
