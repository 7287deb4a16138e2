//! The shim of this node's processing units (Molecule 3.1): global processes, their capabilities and their FIFOs.
//!
//! The agent gives each process that it starts a socket by which the process may [enter](server). The process then
//! makes calls through a page that it shares with a thread of the shim. The thread polls the pages of processes that
//! call often, and sleeps for the others. The [core] decides. This module carries out the effects: memory and bells for
//! connections, packets to the processes, answers.
//!
//! Data in FIFOs never passes through the shim.
//!
//! Invariants:
//! - Answers and effects are carried out in the order in which the core emits them: a right is revoked when the answer
//!   says it.
//! - Nothing here waits for a process. A process that does not take a message gets no further ones.

mod bridge;
mod children;
mod core;
pub(crate) mod link;
mod member;
mod remote_fifos;
mod route;
mod server;
mod sockets;

use std::collections::HashMap;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};

use prost::Message;
use sublet_fabric::greeting::{DataLink, Greeting};
use sublet_fabric::line::Watch;
use sublet_fabric::packet::PacketSocket;
use sublet_fabric::region::Region;
use sublet_fabric::sync::lock;
use sublet_proto::v1::shim_to_process::Body;
use sublet_proto::v1::{self, ShimToProcess};
use sublet_proto::{Code, Error};
use sublet_xpu::{FifoShape, GlobalId};
use tracing::debug;

use self::core::{FifoConnectionId, Peer, ProcessDescriptor, ShimCall, ShimCore, ShimEffect, Tag};
use children::Children;
use link::NeighbourLink;
use member::{Member, new_bell};
use remote_fifos::{Invitations, PendingConnection, RemoteFifo};
use server::Server;

use crate::leases::managers::Managers;

/// Identity of a process that may enter.
#[derive(Clone, Debug)]
pub(crate) struct ProcessIdentity {
    /// Lease to which the process belongs.
    pub(crate) lease: String,
    pub(crate) tenant: String,
    /// Processing unit on which the process runs.
    pub(crate) pu: u32,
    /// Bytes that the rings of the process's FIFOs may use.
    pub(crate) capacity_bytes: u64,
}

/// A process that may enter, and the id that was reserved for it, if any.
#[derive(Clone, Debug)]
struct Entrant {
    who: ProcessIdentity,
    reserved: Option<GlobalId>,
}

/// A process id that is reserved before the process runs. Dropping this removes the process.
pub(crate) struct ReservedPid {
    pub(crate) pid: GlobalId,
    state: Weak<Mutex<State>>,
}

/// See the [module](self).
pub(crate) struct Shim {
    state: Arc<Mutex<State>>,
    servers: Vec<Server>,
    next: std::sync::atomic::AtomicUsize,
}

/// A process's right to enter, and its presence. Dropping this removes the process.
pub(crate) struct ProcessAdmission {
    leave: Option<server::Leave>,
}

struct State {
    core: ShimCore,
    members: HashMap<GlobalId, Arc<Member>>,
    /// Sockets on which readers learn of their writers.
    readers: HashMap<ProcessDescriptor, PacketSocket>,
    /// State of each connection beside that of its processes.
    ways: HashMap<FifoConnectionId, FifoConnection>,
    invited: Invitations,
    /// Neighbours, each with the number of its link.
    links: HashMap<Peer, (u64, NeighbourLink)>,
    link_count: u64,
    children: Children,
    own: Weak<Mutex<State>>,
}

enum FifoConnection {
    /// Within a processing unit: the region.
    Near(Region),
    /// Between two processing units.
    Far(RemoteFifo),
}

impl Shim {
    /// Starts the shim of an agent of this node, kind of processor and start, which serves these processing units with
    /// `threads` threads. `children` has the managers that grant leases for children, and whether these are reached by
    /// encrypted connections only.
    pub(crate) fn start(
        (node, kind, instance): (&str, &str, &str),
        units: &[u32],
        threads: usize,
        children: (Arc<Managers>, bool),
    ) -> Result<Shim, Error> {
        let first = u32::from_str_radix(instance.get(..8).unwrap_or_default(), 16).unwrap_or(1);
        let core = ShimCore::new((node, kind), instance.to_owned(), units, first);
        let (members, readers, ways, invited, links) = Default::default();
        let own = |own: &Weak<Mutex<State>>| {
            Mutex::new(State {
                core,
                members,
                readers,
                ways,
                invited,
                links,
                link_count: 0,
                children: Children::new(children.0, children.1),
                own: own.clone(),
            })
        };
        let state = Arc::new_cyclic(own);
        let servers = (0..threads.max(1)).map(|_| Server::start(state.clone())).collect::<Result<_, _>>()?;
        Ok(Shim { state, servers, next: Default::default() })
    }

    /// Reserves an id for a process that may enter later.
    pub(crate) fn reserve(&self, who: &ProcessIdentity) -> Result<ReservedPid, Error> {
        let pid = lock(&self.state).core.enter(&who.tenant, who.pu, who.capacity_bytes)?;
        Ok(ReservedPid { pid, state: Arc::downgrade(&self.state) })
    }

    /// Lets a process enter by the other end of this socket, with the id that was reserved for it, if any.
    pub(crate) fn admit(
        &self,
        socket: PacketSocket,
        who: ProcessIdentity,
        reserved: Option<GlobalId>,
    ) -> ProcessAdmission {
        let entrant = Entrant { who, reserved };
        let turn = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let leave =
            self.servers.get(turn % self.servers.len().max(1)).map(|server| server.admit(socket, entrant));
        ProcessAdmission { leave }
    }

    /// Handles a connection that has greeted the port, if it is for a FIFO.
    pub(crate) fn arrive(
        &self,
        link: &DataLink,
        socket: &TcpStream,
        greeting: &Greeting,
    ) -> Option<Result<(), Error>> {
        remote_fifos::arrive(&self.state, link, socket, greeting)
    }

    /// Number of processes that have entered.
    #[cfg(test)]
    fn members(&self) -> usize {
        lock(&self.state).members.len()
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        lock(&self.state).children.end();
    }
}

impl Drop for ReservedPid {
    fn drop(&mut self) {
        if let Some(state) = self.state.upgrade() {
            lock(&state).leave(self.pid);
        }
    }
}

impl Drop for ProcessAdmission {
    fn drop(&mut self) {
        if let Some(leave) = &self.leave {
            leave.now();
        }
    }
}

impl State {
    /// Lets a process enter.
    fn enter(&mut self, entrant: &Entrant, socket: Arc<PacketSocket>) -> Result<Arc<Member>, Error> {
        let Entrant { who, reserved } = entrant;
        let pid = match reserved {
            Some(pid) => *pid,
            None => self.core.enter(&who.tenant, who.pu, who.capacity_bytes)?,
        };
        let made = Member::new(pid, &who.lease, socket)
            .and_then(|member| member.welcome().map(|()| Arc::new(member)));
        match made {
            Ok(member) => {
                self.members.insert(pid, member.clone());
                debug!(%pid, tenant = who.tenant, "a process has entered");
                Ok(member)
            }
            Err(error) => {
                self.core.leave(pid);
                Err(error)
            }
        }
    }

    fn leave(&mut self, pid: GlobalId) {
        self.members.remove(&pid);
        self.children.orphan(pid);
        self.core.leave(pid);
        self.perform();
    }

    fn call(&mut self, by: GlobalId, tag: Tag, call: ShimCall) {
        self.core.call(by, tag, call);
        self.perform();
    }

    /// Carries out the core's effects in order. An effect that fails may cause more.
    fn perform(&mut self) {
        loop {
            let Some(effect) = self.core.next_effect() else { return };
            self.perform_one(effect);
        }
    }

    fn perform_one(&mut self, effect: ShimEffect) {
        match effect {
            ShimEffect::Answer { process, tag, answer } => self.answer(process, tag, answer),
            ShimEffect::Read { at, tag, object, shape } => {
                let made = self.read(at, object, shape).map(|()| u64::from(at.descriptor));
                if made.is_err() {
                    self.core.undo(at);
                }
                self.answer(at.process, tag, made);
            }
            ShimEffect::Join { way, shape, reader, writer, tag } => {
                let joined = self.join(way, shape, (reader, writer)).map(|()| u64::from(writer.descriptor));
                if joined.is_err() {
                    self.core.undo(writer);
                }
                self.answer(writer.process, tag, joined);
            }
            ShimEffect::Part { reader, way, at_once } => {
                let parted = v1::FifoParted { connection: way.connection, at_once };
                self.tell_reader(reader, Body::Parted(parted), &[]);
                if let Some(FifoConnection::Far(far)) = self.ways.get(&way).filter(|_| at_once) {
                    far.cut();
                }
            }
            ShimEffect::End { at, way, code } => self.end(at, way, code),
            ShimEffect::Forget { way } => drop(self.ways.remove(&way)),
            ShimEffect::Closed { at } => drop(self.readers.remove(&at)),
            ShimEffect::Invite { way, shape, reader, writer, peer, token } => {
                self.invite((way, shape, reader), writer, (peer, token));
            }
            ShimEffect::Dial { at, tag, peer, object, invited } => {
                self.dial(peer, PendingConnection { at, tag, object, invited });
            }
            ShimEffect::Spawn { by, tag, spawn } => self.spawn(by, tag, spawn),
            ShimEffect::Tell { peer, message } => self.tell(peer, message),
        }
    }

    fn tell(&self, peer: Peer, message: v1::ShimMessage) {
        if let Some((_, link)) = self.links.get(&peer) {
            link.tell(message);
        }
    }

    fn answer(&mut self, process: GlobalId, tag: Tag, answer: Result<u64, Error>) {
        let Some(answer) = self.children.take(process, tag, answer) else { return };
        if let Some(member) = self.members.get(&process) {
            member.answer(tag, answer);
        }
    }

    /// Gives a process the reading end of a FIFO.
    fn read(&mut self, at: ProcessDescriptor, object: GlobalId, shape: FifoShape) -> Result<(), Error> {
        let member = self.member(at.process)?;
        let (here, there) = PacketSocket::pair()?;
        let made =
            v1::FifoMade { object: object.to_bits(), lines: shape.lines, slot_bytes: shape.slot_bytes };
        member.open(at.descriptor);
        member.send(Body::Made(made), &[there.as_fd()])?;
        self.readers.insert(at, here);
        Ok(())
    }

    /// Connects two processes by a region, and a bell that the writer rings.
    fn join(
        &mut self,
        way: FifoConnectionId,
        shape: FifoShape,
        (reader, writer): (ProcessDescriptor, ProcessDescriptor),
    ) -> Result<(), Error> {
        let region = Region::create("sublet-fifo", shape.region_bytes())?;
        let bell = new_bell()?;
        let member = self.member(writer.process)?;
        member.open(writer.descriptor);
        let fds = [region.fd(), bell.as_fd()];
        if !self.tell_reader(reader, joined(way, shape, writer.process, None), &fds) {
            let message = format!("the reader of FIFO {} takes no news of writers", way.object);
            return Err(Error::new(Code::TryLater, message));
        }
        member.send(joined(way, shape, reader.process, None), &fds)?;
        // This agent needs only the writer's watch of the region.
        self.ways.insert(way, FifoConnection::Near(region));
        Ok(())
    }

    /// Sends a message to the reader of a FIFO. Returns whether that was possible; after a failure the reader gets no
    /// further messages.
    fn tell_reader(&mut self, at: ProcessDescriptor, body: Body, fds: &[BorrowedFd<'_>]) -> bool {
        let (Some(socket), Some(member)) = (self.readers.get(&at), self.members.get(&at.process)) else {
            return false;
        };
        let packet = ShimToProcess { body: Some(body) }.encode_to_vec();
        match socket.try_send(&packet, fds) {
            Ok(()) => {
                member.count_packet(at.descriptor);
                true
            }
            Err(error) => {
                debug!(pid = %at.process, %error, "cannot inform the reader of a FIFO of its writers");
                member.end(at.descriptor, Code::Protocol);
                socket.shutdown();
                false
            }
        }
    }

    /// Ends a descriptor and wakes each process that sleeps on it.
    fn end(&self, at: ProcessDescriptor, way: Option<FifoConnectionId>, code: Code) {
        if let Some(member) = self.members.get(&at.process) {
            member.end(at.descriptor, code);
        }
        if let Some(socket) = self.readers.get(&at) {
            socket.shutdown();
        }
        match way.and_then(|way| self.ways.get(&way)) {
            Some(FifoConnection::Near(region)) => {
                if let Some(watch) = region.view::<Watch>(FifoShape::WRITER_WATCH) {
                    watch.poke();
                }
            }
            Some(FifoConnection::Far(far)) => far.cut(),
            None => {}
        }
    }

    fn member(&self, pid: GlobalId) -> Result<Arc<Member>, Error> {
        let found = self.members.get(&pid).cloned();
        found.ok_or_else(|| Error::new(Code::InvalidArgument, format!("process {pid} is gone")))
    }
}

/// Message that describes a connection and the peer to either of its processes.
fn joined(way: FifoConnectionId, shape: FifoShape, peer: GlobalId, across: Option<v1::FifoAcross>) -> Body {
    Body::Joined(v1::FifoJoined {
        connection: way.connection,
        peer: peer.to_bits(),
        object: way.object.to_bits(),
        lines: shape.lines,
        slot_bytes: shape.slot_bytes,
        across,
    })
}

#[cfg(test)]
mod tests;
