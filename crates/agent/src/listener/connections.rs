//! Connections to the agent's socket and port that have shown no ticket yet: the shell around
//! [`Admission`](sublet_admission::Admission), shared by both acceptors.
//!
//! Each is a thread with a deadline for every step. One that shows a ticket leaves: what the node lends bounds it from then
//! on. One that gives way to a later one is shut down, which ends its thread.

use std::fmt::Display;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::net::{Shutdown, shutdown};
use rustix::process::{Resource, getrlimit};
use sublet_admission::{Admission, AdmissionLimits, ClassBudget, ConnectionId, Party, RefusalLog};
use sublet_fabric::sync::lock;
use sublet_proto::{Code, Error};

/// Connections without a ticket at the same time, unless an operator says otherwise or there may be few files.
pub const MAX_UNAUTHENTICATED: usize = 256;
/// Descriptors that are not connections without a ticket.
const OTHER_FILES: u64 = 128;
/// Part of the other descriptors that such connections have: each has two while it lasts, so a quarter in all.
const FILES_PER_UNAUTHENTICATED: u64 = 8;
/// Lower bound of [`UnauthenticatedLimits::unauthenticated`] where few files may be open.
const LEAST_UNAUTHENTICATED: usize = 16;
/// Connections of the node's operator that have neither shown a ticket nor given a command, at the same time.
const MAX_OF_THE_OPERATOR: usize = 64;

/// How many connections without a ticket an agent has at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnauthenticatedLimits {
    /// Limit for all users and addresses together. By default [`MAX_UNAUTHENTICATED`], or what the limit of open files
    /// allows.
    pub unauthenticated: Option<usize>,
    /// Limit for one Unix user or one address. By default a quarter of the limit for all.
    pub per_party: Option<usize>,
}

impl UnauthenticatedLimits {
    fn budgets(self, files: u64) -> AdmissionLimits {
        let possible = usize::try_from(files.saturating_sub(OTHER_FILES) / FILES_PER_UNAUTHENTICATED);
        let possible = possible.unwrap_or(usize::MAX).max(LEAST_UNAUTHENTICATED);
        let most = self.unauthenticated.unwrap_or(MAX_UNAUTHENTICATED).clamp(1, possible);
        let each = self.per_party.unwrap_or(most.div_ceil(4)).clamp(1, most);
        let none = ClassBudget { reserved: 0, most: 0, each: 0 };
        let operator = ClassBudget {
            reserved: MAX_OF_THE_OPERATOR,
            most: MAX_OF_THE_OPERATOR,
            each: MAX_OF_THE_OPERATOR,
        };
        AdmissionLimits {
            total: most + MAX_OF_THE_OPERATOR,
            unidentified: ClassBudget { reserved: most, most, each },
            operator,
            peers: none,
            tenants: none,
            // The threads of the connections have these deadlines themselves.
            handshake_ms: u64::MAX,
            first_request_ms: u64::MAX,
            idle_ms: u64::MAX,
        }
    }
}

/// See the [module](self).
pub(crate) struct Connections {
    inside: Mutex<ConnectionsState>,
    begun: Instant,
}

struct ConnectionsState {
    admission: Admission<OwnedFd>,
    refusals: RefusalLog,
    is_closed: bool,
}

/// A connection without a ticket, until it is dropped.
pub(crate) struct ConnectionEntry {
    connections: Arc<Connections>,
    id: ConnectionId,
}

impl Connections {
    pub(crate) fn new(limits: UnauthenticatedLimits) -> Arc<Connections> {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Connections::with_files(limits, files)
    }

    fn with_files(limits: UnauthenticatedLimits, files: u64) -> Arc<Connections> {
        let admission = Admission::new(limits.budgets(files));
        let inside = ConnectionsState { admission, refusals: RefusalLog::default(), is_closed: false };
        Arc::new(Connections { inside: Mutex::new(inside), begun: Instant::now() })
    }

    /// Largest number of connections without a ticket.
    pub(crate) fn most(&self) -> usize {
        lock(&self.inside).admission.limits().total
    }

    /// Admits a connection from the network.
    pub(crate) fn enter_from(
        self: &Arc<Connections>,
        from: IpAddr,
        socket: &impl AsFd,
    ) -> Result<ConnectionEntry, Error> {
        self.enter(Party::at(from), socket)
    }

    /// Admits a connection. Where there is no place, the oldest one of the same party makes way, or of the party with most.
    pub(crate) fn enter(
        self: &Arc<Connections>,
        party: Party,
        socket: &impl AsFd,
    ) -> Result<ConnectionEntry, Error> {
        let of = party.to_string();
        let socket = socket.as_fd().try_clone_to_owned().map_err(|error| {
            Error::new(Code::System, format!("a connection of {of} cannot be kept: {error}"))
        })?;
        let now_ms = self.now_ms();
        let mut inside = lock(&self.inside);
        if inside.is_closed {
            return Err(Error::new(Code::LeaseEnded, "the agent is stopping"));
        }
        let entered = inside.admission.enter(now_ms, party, socket);
        drop(inside);
        let (id, shed) = entered.map_err(|refusal| Error::new(Code::TryLater, refusal.to_string()))?;
        if let Some(shed) = shed {
            self.note("connections without a ticket made way for later ones", &of);
            cut(&shed);
        }
        Ok(ConnectionEntry { connections: self.clone(), id })
    }

    /// Logs a refusal: the first of its kind at once, and summaries of further ones.
    pub(crate) fn note(&self, kind: &str, latest: &dyn Display) {
        let count = lock(&self.inside).refusals.note(self.now_ms(), kind);
        if let Some(count) = count {
            tracing::warn!(count, %latest, "{kind}");
        }
    }

    /// See [`Connections::note`].
    pub(crate) fn note_refused(&self, error: &Error) {
        self.note(&format!("connections were refused: {}", error.code), error);
    }

    /// Shuts down all connections without a ticket, and admits no more.
    pub(crate) fn close(&self) {
        let mut inside = lock(&self.inside);
        inside.is_closed = true;
        inside.admission.drain_unidentified().iter().for_each(cut);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl ConnectionEntry {
    /// Keeps the connection from making way for another one: it is an operator's that has given a command.
    ///
    /// # Errors
    /// [`Code::TryLater`] if there are too many.
    pub(crate) fn command_given(&self) -> Result<(), Error> {
        let now_ms = self.connections.now_ms();
        let identified = lock(&self.connections.inside).admission.identify(self.id, Party::Operator, now_ms);
        identified.map_err(|refusal| Error::new(Code::TryLater, refusal.to_string()))
    }
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        lock(&self.connections.inside).admission.leave(self.id);
    }
}

fn cut(socket: &OwnedFd) {
    // A socket that is already shut down needs nothing more.
    let _ = shutdown(socket, Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    fn is_open(socket: &mut TcpStream) -> bool {
        socket.set_nonblocking(true).unwrap();
        socket.read(&mut [0; 1]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    #[test]
    fn later_connection_of_a_user_cuts_its_oldest() {
        let connections =
            Connections::new(UnauthenticatedLimits { unauthenticated: Some(4), per_party: Some(2) });
        let mut sockets: Vec<_> = (0..4).map(|_| connected()).collect();
        let users = [7, 7, 8, 7];
        let entries: Vec<_> = std::iter::zip(users, &sockets)
            .map(|(uid, (ours, _))| connections.enter(Party::User(uid), ours).unwrap())
            .collect();
        let open: Vec<bool> = sockets.iter_mut().map(|(_, there)| is_open(there)).collect();
        assert_eq!(open, [false, true, true, true]);
        drop(entries);
    }

    #[test]
    fn connections_with_a_ticket_stay_when_it_closes() {
        let connections = Connections::new(UnauthenticatedLimits::default());
        let (socket, mut there) = connected();
        let inside = connections.enter_from([192, 0, 2, 1].into(), &socket).unwrap();
        let (known, mut known_there) = connected();
        drop(connections.enter_from([192, 0, 2, 1].into(), &known).unwrap());
        connections.close();
        assert!(!is_open(&mut there) && is_open(&mut known_there));
        assert!(connections.enter_from([192, 0, 2, 1].into(), &socket).is_err());
        drop(inside);
    }

    #[test]
    fn connection_with_a_command_makes_way_for_no_other() {
        let connections = Connections::new(UnauthenticatedLimits::default());
        let mut sockets: Vec<_> = (0..MAX_OF_THE_OPERATOR + 1).map(|_| connected()).collect();
        let enter = |(ours, _): &(TcpStream, TcpStream)| connections.enter(Party::Operator, ours).unwrap();
        let first = enter(&sockets[0]);
        first.command_given().unwrap();
        let later: Vec<_> = sockets[1..].iter().map(enter).collect();
        let open: Vec<bool> = sockets.iter_mut().map(|(_, there)| is_open(there)).collect();
        assert!(open[0] && !open[1] && open[2], "{open:?}");
        drop((first, later));
    }

    #[test]
    fn few_files_leave_few_places() {
        let most = |files| UnauthenticatedLimits::default().budgets(files).unidentified;
        assert_eq!(most(400), ClassBudget { reserved: 34, most: 34, each: 9 });
        assert_eq!(most(u64::MAX).most, MAX_UNAUTHENTICATED);
        assert_eq!(most(0).most, LEAST_UNAUTHENTICATED);
    }
}
