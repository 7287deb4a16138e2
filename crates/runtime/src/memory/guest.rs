//! Reaching a segment that somebody else has leased: a worker process, where its run's client has the lease.
//!
//! The client asks the segment's agent for an invitation, and hands it on as a ticket over connections that are there
//! already (Scad 4.2.3). Whoever shows it at the agent's port gets a connection to the memory, and nobody a second one.

use std::net::TcpStream;

use sublet_fabric::greeting::{self, DataLink, Kind, Secret};
use sublet_fabric::tcp::Stream;
use sublet_proto::v1::{self, Connected, Invited, SegmentTicket};
use sublet_proto::{Code, Error};

use super::piece::{At, Piece};
use crate::lease::dial::Dial;
use crate::lease::link::protocol;

/// The counter of a guest's one connection.
const FIRST_LINK: u64 = 1;

/// A segment whose agent other machines do not reach.
pub(super) fn no_network(lease: &v1::Lease) -> Error {
    let message = format!(
        "segment {} is on node {}, which is on no network: only programs of that machine reach its memory",
        lease.id, lease.node
    );
    Error::new(Code::FabricUnavailable, message)
}

/// Connects to a segment's memory, as its ticket allows. What is next on the connection says [`Connected`].
///
/// # Errors
/// What the agent says, as that the ticket was used before; `agent_unreachable`.
pub fn connect(segment: &str, ticket: &SegmentTicket) -> Result<(TcpStream, Connected), Error> {
    let invited = ticket.invited.as_ref().ok_or_else(|| protocol("a ticket without an invitation"))?;
    let socket = Dial { address: ticket.address.clone(), interface: None }.connect()?;
    let link = DataLink { lease: lease_bytes(segment)?, worker: invited.guest, counter: FIRST_LINK };
    greeting::greet(&socket, &Kind::Data(link), Some(&secret_of(invited)?))?;
    Ok((socket, Connected { memory: invited.memory, certificate: invited.certificate.clone() }))
}

/// The 32 bytes that an invitation has.
///
/// # Errors
/// `protocol` if they are not so many.
pub fn secret_of(invited: &Invited) -> Result<Secret, Error> {
    let secret = invited.secret.as_slice();
    Secret::try_from(secret)
        .map_err(|_| protocol(format!("a secret of {} bytes instead of 32", secret.len())))
}

/// A lease as connections name it.
fn lease_bytes(lease: &str) -> Result<[u8; 16], Error> {
    let id = u128::from_str_radix(lease, 16).map_err(|_| protocol(format!("{lease:?} is no lease's id")))?;
    Ok(id.to_be_bytes())
}

/// What is reached by a connection.
pub(crate) fn reached(at: At, socket: TcpStream, connected: &Connected) -> Result<Piece, Error> {
    let key = connected.memory.ok_or_else(|| protocol("a connection to memory without its key"))?;
    let stream = match connected.certificate.as_slice() {
        [] => Stream::plain(socket)?,
        certificate => Stream::encrypted_client(socket, certificate)?,
    };
    Piece::there(at, stream, key)
}
