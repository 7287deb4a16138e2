//! Connections of FIFOs between two processing units: a socket between the processes, which the two agents create and
//! hand over.
//!
//! The FIFO's agent sends an invitation: a place and a secret that are valid once, at its port. The writer's agent
//! connects there and greets, and both agents pass their end on to their process. Each agent keeps a copy of its
//! socket, with which it can cut the connection.
//!
//! A FIFO in the other direction between the same two processes shares the first one's socket if it has the same shape.
//! The invitation then names the first connection, no agent connects, and both agents know the keys. Such a socket is
//! cut when the last of the two FIFOs ends; until then each process is asked not to use the ended FIFO any more.
//! Sharing gives two cooperating processes no more than they had: a socket always carries bytes both ways.

use std::collections::HashMap;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sublet_fabric::exposed::{OWN, new_key};
use sublet_fabric::greeting::{self, ConnectionPurpose, DataLink, Greeting, Secret};
use sublet_fabric::sync::lock;
use sublet_fabric::tls::Identity;
use sublet_proto::v1::shim_message::Body as Said;
use sublet_proto::v1::{self, FifoAcross, FifoInvited, FifoWay};
use sublet_proto::{Code, Error};
use sublet_xpu::fifo::BACK;
use sublet_xpu::{FifoShape, GlobalId};
use tracing::debug;

use super::core::{FifoConnectionId, Peer, ProcessDescriptor, Tag};
use super::route::PortRoute;
use super::sockets::{copy, cut};
use super::{FifoConnection, State, joined};
use crate::listener::secret::new_secret;
use crate::threads::start_thread;

/// Time for which an invitation is valid.
const INVITED: Duration = Duration::from_secs(10);
/// The counter of a writer's one connection.
const FIRST: u64 = 1;

/// Invitations whose writers have not connected yet.
pub(super) type Invitations = HashMap<[u8; 16], FifoInvitation>;

pub(super) struct FifoInvitation {
    secret: Secret,
    way: FifoConnectionId,
    shape: FifoShape,
    reader: ProcessDescriptor,
    writer: GlobalId,
    keys: FifoKeys,
    identity: Option<Identity>,
    until: Instant,
}

/// Keys of a connection's first FIFO, and spare ones for a FIFO in the other direction.
#[derive(Clone, Copy)]
struct FifoKeys {
    reader: u64,
    writer: u64,
    reader_spare: u64,
    writer_spare: u64,
}

/// State that the agent keeps of a connection.
pub(super) struct RemoteFifo {
    /// A copy of the connection's socket.
    socket: Arc<TcpStream>,
    /// The process of this agent, and that of the neighbour.
    own: GlobalId,
    peer: GlobalId,
    shape: FifoShape,
    /// Keys for a FIFO in the other direction, until there is one.
    spare: Option<SpareKeys>,
}

#[derive(Clone, Copy)]
struct SpareKeys {
    own_key: u64,
    peer_key: u64,
}

impl RemoteFifo {
    /// Ends the connection, whatever its two processes do, unless another FIFO uses its socket.
    pub(super) fn cut(&self) {
        if Arc::strong_count(&self.socket) == 1 {
            cut(&self.socket);
        }
    }

    /// Shares the socket with a FIFO in the other direction between these two processes. No further FIFO can share it
    /// then.
    fn share(
        &mut self,
        (own, peer): (GlobalId, GlobalId),
        shape: FifoShape,
    ) -> Option<(RemoteFifo, SpareKeys)> {
        if (self.own, self.peer, self.shape) != (own, peer, shape) {
            return None;
        }
        let spare = self.spare.take()?;
        Some((RemoteFifo { socket: self.socket.clone(), own, peer, shape, spare: None }, spare))
    }
}

impl SpareKeys {
    fn told(self, along: FifoConnectionId) -> FifoAcross {
        let along = FifoWay { object: along.object.to_bits(), connection: along.connection };
        let SpareKeys { own_key, peer_key } = self;
        FifoAcross { own_key, peer_key, along: Some(along), ..FifoAcross::default() }
    }
}

/// A process of this agent that is to be connected to a FIFO of a neighbour.
pub(super) struct PendingConnection {
    pub(super) at: ProcessDescriptor,
    pub(super) tag: Tag,
    pub(super) object: GlobalId,
    pub(super) invited: FifoInvited,
}

impl State {
    /// Lets a process of a neighbour connect, and tells its agent how.
    pub(super) fn invite(
        &mut self,
        (way, shape, reader): (FifoConnectionId, FifoShape, ProcessDescriptor),
        writer: GlobalId,
        (peer, token): (Peer, u64),
    ) {
        self.forget_late();
        let made = match self.find_along(reader.process, writer, shape) {
            Some(along) => self.invite_along((way, shape, reader), along),
            None => self.make_invitation((way, shape, reader), writer, peer),
        };
        let told = match made.map(|invited| FifoInvited { token, ..invited }) {
            Ok(invited) => Said::Invited(invited),
            Err(Error { code, message }) => {
                self.core.give_up(way);
                Said::Done(v1::ShimDone { token, code: code.number(), message })
            }
        };
        self.tell(peer, v1::ShimMessage { body: Some(told) });
    }

    fn make_invitation(
        &mut self,
        (way, shape, reader): (FifoConnectionId, FifoShape, ProcessDescriptor),
        writer: GlobalId,
        peer: Peer,
    ) -> Result<FifoInvited, Error> {
        let encrypted = self.links.get(&peer).is_some_and(|(_, link)| link.encrypted);
        let identity = encrypted.then(|| Identity::generate(&format!("FIFO {}", way.object))).transpose()?;
        let secret = new_secret()?;
        let mut place = [0; 16];
        place.copy_from_slice(&new_secret()?[..16]);
        let keys = FifoKeys {
            reader: new_key(OWN)?,
            writer: new_key(OWN)?,
            reader_spare: new_key(BACK)?,
            writer_spare: new_key(BACK)?,
        };
        let invited = FifoInvited {
            place: place.to_vec(),
            secret: secret.to_vec(),
            writer_key: keys.writer,
            reader_key: keys.reader,
            writer_spare_key: keys.writer_spare,
            reader_spare_key: keys.reader_spare,
            certificate: identity.as_ref().map(|identity| identity.certificate.clone()).unwrap_or_default(),
            ..invited(way, shape, reader.process)
        };
        let until = Instant::now() + INVITED;
        self.invited
            .insert(place, FifoInvitation { secret, way, shape, reader, writer, keys, identity, until });
        Ok(invited)
    }

    /// Finds a connection by which a process of this agent writes to the process of a neighbour, and which can also
    /// carry the other direction.
    fn find_along(
        &mut self,
        own: GlobalId,
        peer: GlobalId,
        shape: FifoShape,
    ) -> Option<(FifoConnectionId, RemoteFifo, SpareKeys)> {
        let State { core, ways, .. } = self;
        core.written_by(own).find_map(|way| match ways.get_mut(&way) {
            Some(FifoConnection::Far(far)) => {
                far.share((own, peer), shape).map(|(far, spare)| (way, far, spare))
            }
            _ => None,
        })
    }

    /// Invites the writer to share a connection whose end the reader has already.
    fn invite_along(
        &mut self,
        (way, shape, reader): (FifoConnectionId, FifoShape, ProcessDescriptor),
        (along, far, spare): (FifoConnectionId, RemoteFifo, SpareKeys),
    ) -> Result<FifoInvited, Error> {
        let told = spare.told(along);
        if !self.tell_reader(reader, joined(way, shape, far.peer, Some(told.clone())), &[]) {
            return Err(no_news(way));
        }
        self.ways.insert(way, FifoConnection::Far(far));
        Ok(FifoInvited { along: told.along, ..invited(way, shape, reader.process) })
    }

    /// Gives up the invitations of writers that have not come in time.
    pub(super) fn forget_late(&mut self) {
        let now = Instant::now();
        let late: Vec<_> = self.invited.extract_if(|_, invitation| invitation.until <= now).collect();
        for (_, invitation) in late {
            self.core.give_up(invitation.way);
        }
    }

    /// Gives the reader its end of a connection.
    fn receive(&mut self, invitation: &FifoInvitation, socket: &TcpStream) -> Result<(), Error> {
        let FifoInvitation { way, shape, reader, writer, keys, identity, .. } = invitation;
        let far = RemoteFifo {
            socket: Arc::new(copy(socket)?),
            own: reader.process,
            peer: *writer,
            shape: *shape,
            spare: Some(SpareKeys { own_key: keys.reader_spare, peer_key: keys.writer_spare }),
        };
        let identity = identity.as_ref();
        let across = FifoAcross {
            own_key: keys.reader,
            peer_key: keys.writer,
            certificate: identity.map(|identity| identity.certificate.clone()).unwrap_or_default(),
            private_key: identity.map(|identity| identity.private_key.clone()).unwrap_or_default(),
            spare_key: keys.reader_spare,
            along: None,
        };
        if !self.tell_reader(*reader, joined(*way, *shape, *writer, Some(across)), &[socket.as_fd()]) {
            return Err(no_news(*way));
        }
        self.ways.insert(*way, FifoConnection::Far(far));
        Ok(())
    }

    /// Gives a writer its end.
    fn hand_over(&mut self, wanted: &PendingConnection, socket: &TcpStream) -> Result<(), Error> {
        let PendingConnection { at, object, invited, .. } = wanted;
        let shape = FifoShape { lines: invited.lines, slot_bytes: invited.slot_bytes }.check()?;
        let member = self.member(at.process)?;
        let across = FifoAcross {
            own_key: invited.writer_key,
            peer_key: invited.reader_key,
            certificate: invited.certificate.clone(),
            private_key: Vec::new(),
            spare_key: invited.writer_spare_key,
            along: None,
        };
        let way = FifoConnectionId { object: *object, connection: invited.connection };
        let reader = GlobalId::from_bits(invited.reader);
        let far = RemoteFifo {
            socket: Arc::new(copy(socket)?),
            own: at.process,
            peer: reader,
            shape,
            spare: Some(SpareKeys { own_key: invited.writer_spare_key, peer_key: invited.reader_spare_key }),
        };
        member.open(at.descriptor);
        member.send(joined(way, shape, reader, Some(across)), &[socket.as_fd()])?;
        self.ways.insert(way, FifoConnection::Far(far));
        Ok(())
    }

    /// Gives a writer its end of a connection by which it reads already.
    fn hand_over_along(&mut self, wanted: &PendingConnection, along: FifoWay) -> Result<(), Error> {
        let PendingConnection { at, object, invited, .. } = wanted;
        let shape = FifoShape { lines: invited.lines, slot_bytes: invited.slot_bytes }.check()?;
        let member = self.member(at.process)?;
        let (way, reader) = (
            FifoConnectionId { object: *object, connection: invited.connection },
            GlobalId::from_bits(invited.reader),
        );
        let along =
            FifoConnectionId { object: GlobalId::from_bits(along.object), connection: along.connection };
        let shared = match self.ways.get_mut(&along) {
            Some(FifoConnection::Far(far)) => far.share((at.process, reader), shape),
            _ => None,
        };
        let over = || Error::new(Code::TryLater, format!("what FIFO {object} was to go along is over"));
        let (far, spare) = shared.ok_or_else(over)?;
        member.open(at.descriptor);
        member.send(joined(way, shape, reader, Some(spare.told(along))), &[])?;
        self.ways.insert(way, FifoConnection::Far(far));
        Ok(())
    }

    /// Connects a process as the neighbour's invitation says, on a thread of its own.
    pub(super) fn dial(&mut self, peer: Peer, wanted: PendingConnection) {
        if let Some(along) = wanted.invited.along {
            let done = self.hand_over_along(&wanted, along);
            return self.finish(&wanted, done);
        }
        let Some(route) = self.links.get(&peer).map(|(_, link)| link.route.clone()) else {
            return self.dialled(&wanted, Err(Error::new(Code::AgentUnreachable, "the neighbour is gone")));
        };
        let Some(state) = self.own.upgrade() else { return };
        let (at, tag) = (wanted.at, wanted.tag);
        let body = move || {
            let connected = connect(&route, &wanted.invited);
            let mut state = lock(&state);
            state.dialled(&wanted, connected);
            state.perform();
        };
        if let Err(error) = start_thread("sublet-dial", body) {
            self.core.undo(at);
            self.answer(at.process, tag, Err(error));
        }
    }

    fn dialled(&mut self, wanted: &PendingConnection, connected: Result<TcpStream, Error>) {
        let done = connected.and_then(|socket| self.hand_over(wanted, &socket));
        self.finish(wanted, done);
    }

    fn finish(&mut self, wanted: &PendingConnection, done: Result<(), Error>) {
        let PendingConnection { at, tag, .. } = wanted;
        if done.is_err() {
            self.core.undo(*at);
        }
        self.answer(at.process, *tag, done.map(|()| u64::from(at.descriptor)));
    }
}

/// Creates the common part of every invitation.
fn invited(way: FifoConnectionId, shape: FifoShape, reader: GlobalId) -> FifoInvited {
    let FifoShape { lines, slot_bytes } = shape;
    let (connection, reader) = (way.connection, reader.to_bits());
    FifoInvited { connection, lines, slot_bytes, reader, ..FifoInvited::default() }
}

fn no_news(way: FifoConnectionId) -> Error {
    Error::new(Code::TryLater, format!("the reader of FIFO {} takes no news of writers", way.object))
}

/// Handles a connection that has greeted the port, if it is for a FIFO; `None` if it is for something else.
pub(super) fn arrive(
    state: &Arc<Mutex<State>>,
    link: &DataLink,
    socket: &TcpStream,
    greeting: &Greeting,
) -> Option<Result<(), Error>> {
    let invitation = {
        let mut state = lock(state);
        let known = state.invited.get(&link.lease)?;
        if link.counter != FIRST || link.worker != known.way.connection || !greeting.is_by(&known.secret) {
            let error = Error::new(Code::PermissionDenied, "no invitation to the FIFO has this proof");
            greeting.refuse(socket, &error);
            return Some(Err(error));
        }
        state.invited.remove(&link.lease)?
    };
    // The greeting is answered first: everything after it is for the process.
    let accepted = greeting.accept(socket);
    let mut state = lock(state);
    let received = accepted.and_then(|()| state.receive(&invitation, socket));
    if let Err(error) = &received {
        debug!(%error, "a writer could not be connected");
        state.core.give_up(invitation.way);
        state.perform();
    }
    Some(received)
}

fn connect(route: &PortRoute, invited: &FifoInvited) -> Result<TcpStream, Error> {
    let wrong = || Error::new(Code::Protocol, "an invitation to a FIFO that makes no sense");
    let lease = <[u8; 16]>::try_from(invited.place.as_slice()).map_err(|_| wrong())?;
    let secret = Secret::try_from(invited.secret.as_slice()).map_err(|_| wrong())?;
    let socket = route.dial()?;
    let link = DataLink { lease, worker: invited.connection, counter: FIRST };
    greeting::greet(&socket, &ConnectionPurpose::Data(link), Some(&secret))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    const SHAPE: FifoShape = FifoShape { lines: 4, slot_bytes: 4096 };
    const OWN_END: GlobalId = GlobalId { pu: 1, local: 1 };
    const PEER: GlobalId = GlobalId { pu: 2, local: 1 };

    /// Creates the state of a connection, and the connection's other end.
    fn connection() -> (RemoteFifo, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = Arc::new(listener.accept().unwrap().0);
        let spare = Some(SpareKeys { own_key: 1, peer_key: 2 });
        (RemoteFifo { socket, own: OWN_END, peer: PEER, shape: SHAPE, spare }, other)
    }

    #[test]
    fn cuts_a_connection_with_its_last_fifo() {
        let (mut first, mut other) = connection();
        let (second, _) = first.share((OWN_END, PEER), SHAPE).unwrap();
        first.cut();
        drop(first);
        other.set_nonblocking(true).unwrap();
        assert_eq!(
            other.read(&mut [0]).unwrap_err().kind(),
            ErrorKind::WouldBlock,
            "the second FIFO is still connected"
        );
        second.cut();
        other.set_nonblocking(false).unwrap();
        other.set_read_timeout(Some(INVITED)).unwrap();
        assert_eq!(other.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn shares_a_connection_with_one_fifo_of_equal_shape() {
        let (mut far, _other) = connection();
        let stranger = GlobalId { local: 2, ..PEER };
        let larger = FifoShape { lines: 8, ..SHAPE };
        for (between, shape) in
            [((OWN_END, stranger), SHAPE), ((stranger, PEER), SHAPE), ((OWN_END, PEER), larger)]
        {
            assert!(far.share(between, shape).is_none());
        }
        assert!(far.share((OWN_END, PEER), SHAPE).is_some());
        assert!(far.share((OWN_END, PEER), SHAPE).is_none(), "it carries two at most");
    }
}
