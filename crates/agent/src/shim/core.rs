//! Keeps the state of a shim and makes its decisions: processes, FIFOs, names, rights and connections. Pure:
//! calls, messages and ends go in, effects come out, and who carries them out stands [beside](super).
//!
//! | state | kept | synchronised (Molecule 5) |
//! |---|---|---|
//! | processes | by their own agent | not at all: the ids are partitioned |
//! | names of FIFOs | by the FIFO's agent; copies everywhere | at once: a name is claimed of all neighbours |
//! | rights to a FIFO | by the FIFO's agent; a copy with the process's | at once: a change is answered when both have it |
//! | connections | by the FIFO's agent, and the writer's | at once |
//! | ends of processes, names that are free again | | lazily: a copy that is too old names what is refused when it is used |
//!
//! Invariants:
//! - A FIFO's own agent decides who connects; a process's agent refuses what its copy does not allow without asking.
//! - Of neighbours that can reach each other two never have a FIFO of the same name of a tenant. If they could not, the one with
//!   the lower id has the name afterwards.
//! - A neighbour is believed about its own processes and FIFOs, and about nothing else.
//! - What waits for a neighbour is answered when that is out of reach.

mod connections;
mod names;
mod peers;
mod rights;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use sublet_proto::package::{check_path, is_device};
use sublet_proto::v1::{self, shim_message};
use sublet_proto::{Code, Error, pu};
use sublet_xpu::wire::{DESCRIPTORS, MAX_NAME_BYTES};
use sublet_xpu::{FifoShape, GlobalId, Rights};

use names::{Name, Names};
pub(crate) use peers::Violation;

/// FIFOs of one process.
const MAX_FIFOS: usize = 64;
/// Who has a right to one FIFO.
const MAX_HOLDERS: usize = 1024;
/// Who is connected to one FIFO.
const MAX_WRITERS: usize = 128;
/// What a neighbour's copies name, of each neighbour.
const MAX_PEER_NAMES: usize = 65_536;
/// Of what a neighbour is told there is in one message.
const MAX_TOLD: usize = 128;
/// Devices of each kind that a node has.
pub(super) const MAX_DEVICES: u32 = 16;
/// What waits for an answer of neighbours.
const MAX_PENDING: usize = 65_536;

/// By which a process knows the answer to its call.
pub(crate) type Tag = u64;
/// The agent of a neighbour, by the id of its processor.
pub(crate) type Peer = u32;

/// See the [module](self).
pub(crate) struct Core {
    /// Of this agent,
    node: String,
    /// and of which kind its processor is.
    kind: String,
    /// Of its start.
    instance: String,
    /// Which it serves.
    units: BTreeSet<u32>,
    next_local: u32,
    next_token: u64,
    processes: HashMap<GlobalId, Process>,
    fifos: HashMap<GlobalId, Fifo>,
    /// Of all FIFOs in the computer, as far as this agent was told.
    names: Names,
    peers: BTreeMap<Peer, Neighbour>,
    /// Of each neighbour that was ever linked the start of its agent.
    instances: BTreeMap<Peer, String>,
    /// Which neighbour serves a unit.
    routes: BTreeMap<u32, Peer>,
    pending: BTreeMap<u64, Pending>,
    /// What neighbours are told when there is time.
    gone: v1::ShimGone,
    out: VecDeque<Effect>,
}

/// The group of capabilities of a process (Molecule 3.2), with its descriptors.
struct Process {
    tenant: Arc<str>,
    /// To FIFOs of neighbours: copies.
    rights: HashMap<GlobalId, Rights>,
    descriptors: BTreeMap<u32, Descriptor>,
    fifos: BTreeSet<GlobalId>,
    /// That the rings of its FIFOs may take, and take.
    room_bytes: u64,
    rings_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Descriptor {
    Reader(GlobalId),
    Writer { object: GlobalId, connection: u32, is_over: bool },
}

struct Fifo {
    name: Option<Name>,
    tenant: Arc<str>,
    shape: FifoShape,
    /// Whose it is, and when it ends.
    creator: GlobalId,
    reader: Option<(GlobalId, u32)>,
    rights: BTreeMap<GlobalId, Rights>,
    /// Its writers; of a process of this agent with the descriptor.
    writers: BTreeMap<u32, (GlobalId, Option<u32>)>,
    next_connection: u32,
}

#[derive(Default)]
struct Neighbour {
    node: String,
    /// Of its processor, as it says.
    kind: String,
    units: Vec<u32>,
    /// It has told what it knows.
    is_linked: bool,
    names: BTreeSet<(Name, GlobalId)>,
}

/// What waits for neighbours.
enum Pending {
    Claim(Claim),
    Change { by: GlobalId, tag: Tag, peer: Peer },
    Update { asked: Asked, peer: Peer, revoked: bool, process: GlobalId, object: GlobalId, before: Rights },
    Connect { by: GlobalId, tag: Tag, peer: Peer, object: GlobalId, to: Target },
}

/// A name that a process of this agent wants.
struct Claim {
    by: GlobalId,
    tag: Tag,
    name: Name,
    shape: FifoShape,
    object: GlobalId,
    awaits: BTreeSet<Peer>,
    /// Somebody else gets it.
    lost_to: Option<GlobalId>,
}

/// Who asked for a change of rights.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Here {
        by: GlobalId,
        tag: Tag,
    },
    There {
        peer: Peer,
        token: u64,
    },
    /// Who waits for the answer no more.
    Gone,
}

/// What a process asks for.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Grant {
        to: GlobalId,
        object: GlobalId,
        rights: Rights,
    },
    Revoke {
        from: GlobalId,
        object: GlobalId,
        rights: Rights,
    },
    Rights {
        object: GlobalId,
    },
    Init {
        name: String,
        shape: FifoShape,
    },
    Connect {
        to: Target,
    },
    ConnectToRead {
        to: Target,
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
    Spawn(Box<Spawn>),
    /// The processor of this number.
    Unit {
        number: u64,
    },
    /// The device of this name beside a processor.
    Device {
        processor: u32,
        name: String,
    },
    /// A unit of this kind.
    Find {
        kind: String,
    },
}

/// A program that is to be executed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spawn {
    pub(crate) unit: u32,
    pub(crate) program: v1::Program,
    /// That it is of; empty: that of the process.
    pub(crate) package: String,
    pub(crate) capabilities: Vec<(GlobalId, Rights)>,
}

/// Which FIFO.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Object(GlobalId),
    Named(String),
}

/// A process's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct At {
    pub(crate) process: GlobalId,
    pub(crate) descriptor: u32,
}

/// A connection of a FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Way {
    pub(crate) object: GlobalId,
    pub(crate) connection: u32,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Effect {
    /// Answers a call.
    Answer { process: GlobalId, tag: Tag, answer: Result<u64, Error> },
    /// Gives a process the reading end of a FIFO, and answers its call with the descriptor.
    Read { at: At, tag: Tag, object: GlobalId, shape: FifoShape },
    /// Connects two processes of this agent, and answers the writer's call with its descriptor.
    Join { way: Way, shape: FifoShape, reader: At, writer: At, tag: Tag },
    /// Lets a process of a neighbour connect, and tells its agent how.
    Invite { way: Way, shape: FifoShape, reader: At, writer: GlobalId, peer: Peer, token: u64 },
    /// Connects a process of this agent as a neighbour has said, and answers its call.
    Dial { at: At, tag: Tag, peer: Peer, object: GlobalId, invited: v1::FifoInvited },
    /// A connection is over: its reader is told,
    Part { reader: At, way: Way, at_once: bool },
    /// and what either end holds of it beside is let go.
    Forget { way: Way },
    /// A descriptor is over, for this reason, and whoever waits by it learns of it.
    End { at: At, way: Option<Way>, code: Code },
    /// A descriptor is closed.
    Closed { at: At },
    /// A program is executed for a process, with rights that this one can grant, and its call is answered.
    Spawn { by: GlobalId, tag: Tag, spawn: Box<Spawn> },
    /// A neighbour is told something.
    Tell { peer: Peer, message: v1::ShimMessage },
}

impl Core {
    /// Of an agent of this node, whose processor is of this kind, that serves these units. Local numbers begin where it is said, so that
    /// those of an earlier start come again seldom.
    pub(crate) fn new((node, kind): (&str, &str), instance: String, units: &[u32], first_local: u32) -> Core {
        Core {
            node: node.into(),
            kind: kind.into(),
            instance,
            units: units.iter().copied().collect(),
            next_local: first_local.max(1),
            next_token: 1,
            processes: HashMap::new(),
            fifos: HashMap::new(),
            names: Names::default(),
            peers: BTreeMap::new(),
            instances: BTreeMap::new(),
            routes: BTreeMap::new(),
            pending: BTreeMap::new(),
            gone: v1::ShimGone::default(),
            out: VecDeque::new(),
        }
    }

    /// What is to be done next.
    pub(crate) fn next_effect(&mut self) -> Option<Effect> {
        self.out.pop_front()
    }

    /// A process enters, on a unit of this agent; the rings of its FIFOs may take so much.
    pub(crate) fn enter(&mut self, tenant: &str, pu: u32, room_bytes: u64) -> Result<GlobalId, Error> {
        if !self.units.contains(&pu) {
            return Err(Error::new(Code::Internal, format!("there is no processing unit {pu:x} here")));
        }
        let pid = self.new_id(pu);
        let process = Process {
            tenant: tenant.into(),
            rights: HashMap::new(),
            descriptors: BTreeMap::new(),
            fifos: BTreeSet::new(),
            room_bytes,
            rings_bytes: 0,
        };
        let before = self.processes.insert(pid, process);
        debug_assert!(before.is_none(), "process {pid} has entered twice");
        Ok(pid)
    }

    /// A process is gone: its FIFOs end, and so does what it was connected to.
    pub(crate) fn leave(&mut self, pid: GlobalId) {
        let Some(process) = self.processes.get(&pid) else { return };
        let descriptors: Vec<u32> = process.descriptors.keys().copied().collect();
        let fifos = process.fifos.clone();
        for descriptor in descriptors {
            // It has it: it is the key of its table.
            let _ = self.close(At { process: pid, descriptor });
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

    /// A process calls. Some calls are answered at once, and others when neighbours have answered.
    pub(crate) fn call(&mut self, by: GlobalId, tag: Tag, call: Call) {
        let answered = match call {
            Call::Grant { to, object, rights } => self.change((by, tag), (to, object, rights), false),
            Call::Revoke { from, object, rights } => self.change((by, tag), (from, object, rights), true),
            Call::Rights { object } => Ok(Some(u64::from(self.rights(by, object).to_bits()))),
            Call::Init { name, shape } => self.init((by, tag), name, shape),
            Call::Connect { to } => self.connect((by, tag), &to),
            Call::ConnectToRead { to } => self.connect_to_read((by, tag), &to),
            Call::Close { descriptor } => self.close(At { process: by, descriptor }).map(|()| Some(0)),
            Call::Object { descriptor } => {
                self.object(At { process: by, descriptor }).map(|id| Some(id.to_bits()))
            }
            Call::Cut { descriptor, connection } => {
                self.cut(At { process: by, descriptor }, connection).map(|()| Some(0))
            }
            Call::Spawn(spawn) => self.spawn((by, tag), spawn),
            Call::Unit { number } => self.unit(by, number).map(|unit| Some(unit.into())),
            Call::Device { processor, name } => self.device(processor, &name).map(|unit| Some(unit.into())),
            Call::Find { kind } => self.unit_of(&kind).map(|unit| Some(unit.into())),
        };
        match answered {
            Ok(Some(value)) => self.answer((by, tag), Ok(value)),
            Ok(None) => {}
            Err(error) => self.answer((by, tag), Err(error)),
        }
    }

    /// Whether a program may be executed with these rights; where it may be is for the manager to say.
    fn spawn(&mut self, (by, tag): (GlobalId, Tag), spawn: Box<Spawn>) -> Result<Option<u64>, Error> {
        // Without a path it is an executor of the package's functions.
        if !spawn.program.path.is_empty() {
            check_path(&spawn.program.path)
                .map_err(|Error { message, .. }| Error::new(Code::InvalidArgument, message))?;
        }
        if !self.units.contains(&spawn.unit) {
            self.route(GlobalId { pu: spawn.unit, local: 0 })?;
        }
        let lacks = |(object, _): &&(GlobalId, Rights)| !self.rights(by, *object).contains(Rights::OWN);
        if let Some((object, _)) = spawn.capabilities.iter().find(lacks) {
            return Err(denied(by, "own", *object));
        }
        self.out.push_back(Effect::Spawn { by, tag, spawn });
        Ok(None)
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

    /// Now is time to tell neighbours what is gone.
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

    /// What the calls of a process that is gone wait for is nobody's any more.
    fn abandon(&mut self, pid: GlobalId) {
        self.forget_asked(|asked| matches!(asked, Asked::Here { by, .. } if by == pid));
        let of = |pending: &Pending| match pending {
            Pending::Claim(Claim { by, .. }) | Pending::Change { by, .. } | Pending::Connect { by, .. } => {
                *by == pid
            }
            Pending::Update { .. } => false,
        };
        let tokens: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| of(pending)).map(|(token, _)| *token).collect();
        for token in tokens {
            if let Some(Pending::Claim(claim)) = self.pending.remove(&token) {
                self.release_name(&claim.name, claim.object);
            }
        }
    }

    /// A change of rights that is under way goes on, and nobody is told how it ended.
    fn forget_asked(&mut self, is_gone: impl Fn(Asked) -> bool) {
        for pending in self.pending.values_mut() {
            if let Pending::Update { asked, .. } = pending
                && is_gone(*asked)
            {
                *asked = Asked::Gone;
            }
        }
    }

    fn answer(&mut self, (process, tag): (GlobalId, Tag), answer: Result<u64, Error>) {
        self.out.push_back(Effect::Answer { process, tag, answer });
    }

    fn tell(&mut self, peer: Peer, body: shim_message::Body) {
        self.out.push_back(Effect::Tell { peer, message: v1::ShimMessage { body: Some(body) } });
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

    fn await_peers(&mut self, pending: Pending) -> Result<u64, Error> {
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
                let at = At { process, descriptor };
                assert_eq!(self.described(at), Ok(Descriptor::Reader(object)), "the reader of FIFO {object}");
                *rings_bytes.entry(process).or_default() +=
                    fifo.shape.region_bytes() * fifo.writers.len() as u64;
            }
            assert!(fifo.reader.is_some() || fifo.writers.is_empty(), "FIFO {object} has only writers");
            for (&connection, &(process, descriptor)) in &fifo.writers {
                assert!(fifo.rights_of(process).contains(Rights::WRITE), "{process} writes to FIFO {object}");
                let Some(descriptor) = descriptor else { continue };
                let writer = Descriptor::Writer { object, connection, is_over: false };
                assert_eq!(self.described(At { process, descriptor }), Ok(writer), "a writer of {object}");
            }
        }
        for (pid, process) in &self.processes {
            let expected = rings_bytes.get(pid).copied().unwrap_or_default();
            assert_eq!(process.rings_bytes, expected, "bytes in the rings of process {pid}");
            assert!(process.rings_bytes <= process.room_bytes, "the rings of {pid} take {expected} bytes");
        }
    }

    fn process(&self, pid: GlobalId) -> Result<&Process, Error> {
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
    fn describe(&mut self, pid: GlobalId, what: Descriptor) -> Result<At, Error> {
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
        Ok(At { process: pid, descriptor })
    }

    fn described(&self, at: At) -> Result<Descriptor, Error> {
        let found = self.process(at.process)?.descriptors.get(&at.descriptor);
        found.copied().ok_or_else(|| {
            Error::new(Code::InvalidArgument, format!("descriptor {} is not open", at.descriptor))
        })
    }

    fn object(&self, at: At) -> Result<GlobalId, Error> {
        self.described(at).map(|descriptor| match descriptor {
            Descriptor::Reader(object) | Descriptor::Writer { object, .. } => object,
        })
    }
}

/// As much at once as a message has room for.
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
