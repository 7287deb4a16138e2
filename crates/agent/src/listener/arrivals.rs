//! Matches the connections of workers with their lease: a client makes one for each worker, and proves that it is
//! its own.
//!
//! A connection names a lease, a worker and a counter, with a proof that requires the lease's secret. The thread that
//! accepted the connection verifies the proof and puts the connection into the lease's arrival queue, an [`ArrivalQueue`]. The
//! lease's supervisor takes it from there, passes it to the worker process, and answers the client. Processes that a
//! segment's client has invited connect in the same way.
//!
//! Invariants:
//! - A counter is accepted once for each lease, so that a recorded connection cannot be replayed.
//! - A connection without a valid proof changes nothing. A queue has bounded capacity: the number of workers and a few
//!   more.
//! - A lease that has ended has no queue; connections that still wait in it are refused.

use std::collections::HashMap;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use sublet_fabric::greeting::{Counters, DataLink, Greeting, Secret};
use sublet_fabric::region::Region;
use sublet_fabric::sync::lock;
use sublet_proto::v1::Joins;
use sublet_proto::{Code, Error};

use crate::listener::invited_readers::{CLIENT, InvitedAccess, InvitedReaders};
use crate::listener::secret::is_same;
use crate::listener::shared_connection::SharedConnection;
use crate::signal::Signal;

/// Connections in a queue beyond one for each worker: those that replace an earlier one.
const SPARE_ARRIVALS: usize = 16;

/// The arrival queues of all leases whose calls travel over TCP.
#[derive(Default)]
pub(crate) struct ArrivalQueues(Mutex<HashMap<[u8; 16], Arc<ArrivalQueue>>>);

/// Queue in which the connections of one lease arrive.
pub(crate) struct ArrivalQueue {
    secret: Secret,
    workers: u32,
    /// Raised while a connection waits.
    pub(crate) arrived: Signal,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    counters: Counters,
    arrivals: Vec<ArrivedConnection>,
    /// Invitations, if the lease is a segment's.
    invited_readers: Option<InvitedReaders>,
}

/// A connection that its client has proven to be its own, and that has not been answered.
pub(crate) struct ArrivedConnection {
    pub(crate) worker: u32,
    /// Access of an invited process; `None` for the client's own connection.
    pub(crate) guest: Option<InvitedAccess>,
    pub(crate) socket: TcpStream,
    pub(crate) greeting: Greeting,
}

/// An arrival queue that is open until this is dropped with its lease.
pub(crate) struct OpenArrivalQueue {
    links: Arc<ArrivalQueues>,
    lease: [u8; 16],
    pub(crate) arrival_queue: Arc<ArrivalQueue>,
}

impl ArrivalQueues {
    /// Opens the arrival queue of a lease, with invitations if it is a segment's.
    pub(crate) fn open(
        self: &Arc<ArrivalQueues>,
        lease: &str,
        (secret, workers): (Secret, u32),
        invited_readers: Option<InvitedReaders>,
    ) -> Result<OpenArrivalQueue, Error> {
        let key = lease_bytes(lease).ok_or_else(|| {
            Error::new(Code::Protocol, format!("lease {lease:?} is not named by 32 hexadecimal digits"))
        })?;
        let state = Mutex::new(State { invited_readers, ..State::default() });
        let arrival_queue = Arc::new(ArrivalQueue { secret, workers, arrived: Signal::new()?, state });
        lock(&self.0).insert(key, arrival_queue.clone());
        Ok(OpenArrivalQueue { links: self.clone(), lease: key, arrival_queue })
    }

    /// Queues a connection for the lease that it names if it proves to be the client's; otherwise refuses it.
    pub(crate) fn arrive(&self, link: DataLink, socket: TcpStream, greeting: Greeting) -> Result<(), Error> {
        let arrival = ArrivedConnection { worker: link.worker, guest: None, socket, greeting };
        let arrival_queue = lock(&self.0).get(&link.lease).cloned();
        match arrival_queue {
            Some(arrival_queue) => arrival_queue.lay(link.counter, arrival),
            None => {
                let lease = u128::from_be_bytes(link.lease);
                let message = format!("lease {lease:032x} has no workers here");
                arrival.turn_away(Error::new(Code::UnknownLease, message))
            }
        }
    }

    /// Opens the memory of a segment of this node for an invited process on it that has this secret, and that learns of
    /// the end by this page. Returns `None` if the segment is not on this node.
    pub(crate) fn admit(
        &self,
        lease: &str,
        (guest, secret): (u32, &Secret),
        state: &Arc<Region>,
    ) -> Result<Option<OwnedFd>, Error> {
        let arrival_queue = lease_bytes(lease).and_then(|lease| lock(&self.0).get(&lease).cloned());
        let Some(arrival_queue) = arrival_queue else { return Ok(None) };
        let mut arrival_queue = lock(&arrival_queue.state);
        let entered = |invited_readers: &mut InvitedReaders| {
            invited_readers.enter(guest, |known| is_same(known, secret))
        };
        match arrival_queue.invited_readers.as_mut().and_then(entered) {
            Some(InvitedAccess { rights, joined }) => {
                joined.shared_connection().give_up();
                arrival_queue
                    .invited_readers
                    .as_mut()
                    .map(|invited_readers| invited_readers.open(rights, state))
                    .transpose()
            }
            None => Err(not_invited()),
        }
    }

    /// Connection by which a process reaches a segment of this node, if it exists or is expected.
    pub(crate) fn shared_connection(&self, asked: &Joins) -> Option<Arc<SharedConnection>> {
        let arrival_queue = lock(&self.0).get(&lease_bytes(&asked.segment)?).cloned()?;
        lock(&arrival_queue.state).invited_readers.as_ref()?.shared_connection(asked.guest)
    }
}

impl ArrivedConnection {
    /// Refuses the connection with an error.
    pub(crate) fn turn_away(&self, error: Error) -> Result<(), Error> {
        if let Some(InvitedAccess { joined, .. }) = &self.guest {
            joined.shared_connection().give_up();
        }
        self.greeting.refuse(&self.socket, &error);
        Err(error)
    }
}

impl ArrivalQueue {
    fn lay(&self, counter: u64, mut arrival: ArrivedConnection) -> Result<(), Error> {
        let mut state = lock(&self.state);
        if let Some(invited_readers) = state.invited_readers.as_mut().filter(|_| arrival.worker != CLIENT) {
            let is_by = |secret: &Secret| arrival.greeting.is_by(secret);
            arrival.guest = invited_readers.enter(arrival.worker, is_by);
            if arrival.guest.is_none() {
                drop(state);
                return arrival.turn_away(not_invited());
            }
            state.arrivals.push(arrival);
            self.arrived.raise();
            return Ok(());
        }
        let refusal = if !arrival.greeting.is_by(&self.secret) {
            Error::new(
                Code::PermissionDenied,
                "the connection does not prove that it is the lease's client's",
            )
        } else if arrival.worker >= self.workers {
            let message = format!("there is no worker {}: the lease has {}", arrival.worker, self.workers);
            Error::new(Code::InvalidArgument, message)
        } else if !state.counters.accept(counter) {
            Error::new(
                Code::PermissionDenied,
                format!("the proof with the counter {counter} was used before"),
            )
        } else if state.arrivals.len() >= self.workers as usize + SPARE_ARRIVALS {
            Error::new(Code::TryLater, "too many connections of the lease's workers wait already")
        } else {
            state.arrivals.push(arrival);
            self.arrived.raise();
            return Ok(());
        };
        drop(state);
        arrival.turn_away(refusal)
    }

    /// Invites another process to reach the segment.
    pub(crate) fn invite(&self, invitation: InvitedAccess) -> Result<(u32, Secret), Error> {
        let none = || Error::new(Code::InvalidArgument, "only a segment has memory that others may reach");
        lock(&self.state).invited_readers.as_mut().ok_or_else(none)?.invite(invitation)
    }

    /// Takes all waiting connections, in the order of their arrival.
    pub(crate) fn take(&self) -> Vec<ArrivedConnection> {
        let mut state = lock(&self.state);
        self.arrived.clear();
        std::mem::take(&mut state.arrivals)
    }
}

impl Drop for OpenArrivalQueue {
    fn drop(&mut self) {
        lock(&self.links.0).remove(&self.lease);
        // From now on no process is admitted, and those that were learn of the end.
        lock(&self.arrival_queue.state).invited_readers = None;
        let ended = Error::new(Code::LeaseEnded, "the lease has ended");
        for arrival in self.arrival_queue.take() {
            // The refusal is the answer.
            let _ = arrival.turn_away(ended.clone());
        }
    }
}

fn not_invited() -> Error {
    let message = "no unused invitation to the segment has this proof";
    Error::new(Code::PermissionDenied, message)
}

/// A lease as its connections name it: its 32 digits as bytes, the first digits first.
fn lease_bytes(lease: &str) -> Option<[u8; 16]> {
    let is_hex = lease.len() == 32 && lease.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(lease, 16).ok()).flatten().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_named_by_the_bytes_of_its_digits() {
        let bytes = lease_bytes("0123456789abcdef0123456789abcdef").unwrap();
        assert_eq!((bytes[0], bytes[1], bytes[15]), (0x01, 0x23, 0xef));
        for name in ["", "0123", "0123456789abcdef0123456789abcdeg", "+123456789abcdef0123456789abcdef"] {
            assert_eq!(lease_bytes(name), None, "{name}");
        }
    }
}
