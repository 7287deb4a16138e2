//! Reaches a segment that another process has leased: a worker process reaches one whose lease its run's client has.
//!
//! The client requests an invitation from the segment's agent, and passes it on as a ticket over existing connections
//! (Scad 4.2.3). The process that shows the ticket first at the agent's port gets a connection to the memory; the
//! ticket is then used up. A process with a connection to that agent gets no further one: the segment joins the
//! existing connection ([`super::segment_connection`]).

use std::net::TcpStream;
use std::sync::Arc;

use sublet_fabric::greeting::{self, ConnectionPurpose, DataLink, Secret};
use sublet_fabric::tcp::ByteStream;
use sublet_proto::v1::{self, Connected, Invited, SegmentTicket};
use sublet_proto::{Code, Error};

pub use super::segment_connection::MAX_JOINED;
use super::segment_connection::SegmentConnection;
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

/// Connects to a segment's memory, as its ticket allows. [`Connected`] describes the content of the connection.
fn connect(segment: &str, ticket: &SegmentTicket) -> Result<(TcpStream, Connected), Error> {
    let invited = ticket.invited.as_ref().ok_or_else(|| protocol("a ticket without an invitation"))?;
    let socket = Dial { address: ticket.address.clone(), interface: None }.connect()?;
    let link = DataLink { lease: lease_bytes(segment)?, worker: invited.guest, counter: FIRST_LINK };
    greeting::greet(&socket, &ConnectionPurpose::Data(link), Some(&secret_of(invited)?))?;
    let certificate = invited.certificate.clone();
    Ok((socket, Connected { memory: invited.memory, certificate, guest: invited.guest, joins: None }))
}

/// Connects to a segment's memory, as its ticket allows. Returns no socket if the segment joins a connection that the
/// process has. [`Connected`] describes the content of the connection.
///
/// # Errors
/// The agent's error, for example if the ticket was used before; `agent_unreachable`.
pub fn connected(segment: &str, ticket: &SegmentTicket) -> Result<(Connected, Option<TcpStream>), Error> {
    if ticket.joins.is_some() {
        let memory = ticket.invited.as_ref().and_then(|invited| invited.memory);
        return Ok((Connected { memory, joins: ticket.joins.clone(), ..Connected::default() }, None));
    }
    let (socket, connected) = connect(segment, ticket)?;
    Ok((connected, Some(socket)))
}

/// The 32 bytes of an invitation's secret.
///
/// # Errors
/// `protocol` if the secret has another length.
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

/// A connection on which the agent has been greeted.
pub(crate) fn segment_connection(
    socket: TcpStream,
    connected: &Connected,
) -> Result<Arc<SegmentConnection>, Error> {
    SegmentConnection::connect(match connected.certificate.as_slice() {
        [] => ByteStream::plain(socket)?,
        certificate => ByteStream::encrypted_client(socket, certificate)?,
    })
}
