//! Connections of FIFOs between two processing units: a socket from process to process, which the two agents make and hand over.
//!
//! The FIFO's agent invites: by a place and a secret that are good once, at its port. The writer's agent connects there and greets,
//! and both pass their end on to their process. What they keep of it is a copy of the socket, to cut the connection with.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sublet_fabric::exposed::{OWN, new_key};
use sublet_fabric::greeting::{self, DataLink, Greeting, Kind, Secret};
use sublet_fabric::tls::Identity;
use sublet_proto::v1::shim_message::Body as Said;
use sublet_proto::v1::{self, FifoAcross, FifoInvited};
use sublet_proto::{Code, Error};
use sublet_xpu::{FifoShape, GlobalId};
use tracing::debug;

use super::bridge::Route;
use super::core::{At, Peer, Tag, Way};
use super::{Connected, State, joined};
use crate::carrier::new_secret;
use crate::{lock, start_thread};

/// How long an invitation is good.
const INVITED: Duration = Duration::from_secs(10);
/// The counter of a writer's one connection.
const FIRST: u64 = 1;

/// Of these whose writers have not come yet.
pub(super) type Invitations = HashMap<[u8; 16], Invitation>;

pub(super) struct Invitation {
    secret: Secret,
    way: Way,
    shape: FifoShape,
    reader: At,
    writer: GlobalId,
    keys: Keys,
    identity: Option<Identity>,
    until: Instant,
}

#[derive(Clone, Copy)]
struct Keys {
    reader: u64,
    writer: u64,
}

/// A process of this agent that is to be connected to a FIFO of a neighbour.
pub(super) struct Wanted {
    pub(super) at: At,
    pub(super) tag: Tag,
    pub(super) object: GlobalId,
    pub(super) invited: FifoInvited,
}

impl State {
    /// Lets a process of a neighbour connect, and tells its agent how.
    pub(super) fn invite(
        &mut self,
        (way, shape, reader): (Way, FifoShape, At),
        writer: GlobalId,
        (peer, token): (Peer, u64),
    ) {
        self.forget_late();
        let told = match self.make_invitation((way, shape, reader), writer, (peer, token)) {
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
        (way, shape, reader): (Way, FifoShape, At),
        writer: GlobalId,
        (peer, token): (Peer, u64),
    ) -> Result<FifoInvited, Error> {
        let encrypted = self.links.get(&peer).is_some_and(|(_, link)| link.encrypted);
        let identity = encrypted.then(|| Identity::generate(&format!("FIFO {}", way.object))).transpose()?;
        let secret = new_secret()?;
        let mut place = [0; 16];
        place.copy_from_slice(&new_secret()?[..16]);
        let keys = Keys { reader: new_key(OWN)?, writer: new_key(OWN)? };
        let invited = FifoInvited {
            token,
            connection: way.connection,
            lines: shape.lines,
            slot_bytes: shape.slot_bytes,
            reader: reader.process.to_bits(),
            place: place.to_vec(),
            secret: secret.to_vec(),
            writer_key: keys.writer,
            reader_key: keys.reader,
            certificate: identity.as_ref().map(|identity| identity.certificate.clone()).unwrap_or_default(),
        };
        let until = Instant::now() + INVITED;
        self.invited.insert(place, Invitation { secret, way, shape, reader, writer, keys, identity, until });
        Ok(invited)
    }

    /// Writers that have not come are given up.
    pub(super) fn forget_late(&mut self) {
        let now = Instant::now();
        let late: Vec<_> = self.invited.extract_if(|_, invitation| invitation.until <= now).collect();
        for (_, invitation) in late {
            self.core.give_up(invitation.way);
        }
    }

    /// Gives the reader its end of a connection.
    fn receive(&mut self, invitation: &Invitation, socket: &TcpStream) -> Result<(), Error> {
        let Invitation { way, shape, reader, writer, keys, identity, .. } = invitation;
        let kept = copy(socket)?;
        let identity = identity.as_ref();
        let across = FifoAcross {
            own_key: keys.reader,
            peer_key: keys.writer,
            certificate: identity.map(|identity| identity.certificate.clone()).unwrap_or_default(),
            private_key: identity.map(|identity| identity.private_key.clone()).unwrap_or_default(),
        };
        if !self.tell_reader(*reader, joined(*way, *shape, *writer, Some(across)), &[socket.as_fd()]) {
            return Err(Error::new(
                Code::TryLater,
                format!("the reader of FIFO {} takes no news", way.object),
            ));
        }
        self.ways.insert(*way, Connected::Far(kept));
        Ok(())
    }

    /// Gives a writer its end.
    fn hand_over(&mut self, wanted: &Wanted, socket: &TcpStream) -> Result<(), Error> {
        let Wanted { at, object, invited, .. } = wanted;
        let shape = FifoShape { lines: invited.lines, slot_bytes: invited.slot_bytes }.check()?;
        let member = self.member(at.process)?;
        let across = FifoAcross {
            own_key: invited.writer_key,
            peer_key: invited.reader_key,
            certificate: invited.certificate.clone(),
            private_key: Vec::new(),
        };
        let way = Way { object: *object, connection: invited.connection };
        let kept = copy(socket)?;
        member.open(at.descriptor);
        member
            .send(joined(way, shape, GlobalId::from_bits(invited.reader), Some(across)), &[socket.as_fd()])?;
        self.ways.insert(way, Connected::Far(kept));
        Ok(())
    }

    /// Connects a process as a neighbour has said, beside everything else.
    pub(super) fn dial(&mut self, peer: Peer, wanted: Wanted) {
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

    fn dialled(&mut self, wanted: &Wanted, connected: Result<TcpStream, Error>) {
        let Wanted { at, tag, .. } = wanted;
        let done =
            connected.and_then(|socket| self.hand_over(wanted, &socket)).map(|()| u64::from(at.descriptor));
        if done.is_err() {
            self.core.undo(*at);
        }
        self.answer(at.process, *tag, done);
    }
}

/// A connection that has greeted the port, if it is one of these; nothing if it is for something else.
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
            let error = Error::new(Code::PermissionDenied, "nobody was invited to a FIFO by this proof");
            greeting.refuse(socket, &error);
            return Some(Err(error));
        }
        state.invited.remove(&link.lease)?
    };
    // It is answered first: what follows is for the process.
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

fn connect(route: &Route, invited: &FifoInvited) -> Result<TcpStream, Error> {
    let wrong = || Error::new(Code::Protocol, "an invitation to a FIFO that makes no sense");
    let lease = <[u8; 16]>::try_from(invited.place.as_slice()).map_err(|_| wrong())?;
    let secret = Secret::try_from(invited.secret.as_slice()).map_err(|_| wrong())?;
    let socket = route.dial()?;
    let link = DataLink { lease, worker: invited.connection, counter: FIRST };
    greeting::greet(&socket, &Kind::Data(link), Some(&secret))?;
    Ok(socket)
}

pub(super) fn copy(socket: &TcpStream) -> Result<TcpStream, Error> {
    socket.try_clone().map_err(|error| Error::new(Code::System, format!("dup of a connection: {error}")))
}

/// Ends a connection, whatever its two processes do.
pub(super) fn cut(socket: &TcpStream) {
    // One that is ended already is ended.
    let _ = socket.shutdown(Shutdown::Both);
}
