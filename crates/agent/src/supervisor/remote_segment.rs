//! A segment's memory for programs on other machines: the node's progress thread carries out what is asked of it.
//!
//! Clients know the memory by a key, which is valid as long as the lease. The client has one connection, and proves
//! that it is its own as it does for connections of workers. Each invited process (see [`InvitedReaders`]) has one connection
//! as well. A process that already has a connection to another segment of this node uses that one, which this segment
//! then joins (see [`SharedConnection`]).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use sublet_fabric::region::{Region, read_only};
use sublet_fabric::tcp::{self, ByteStream};
use sublet_fabric::tls::Identity;
use sublet_proto::graph::MemoryRights;
use sublet_proto::v1::{self, Joins, RegionKey};
use sublet_proto::{Code, Error};
use tracing::info;

use crate::listener::arrivals::{ArrivedConnection, OpenArrivalQueue};
use crate::listener::invited_readers::{CLIENT, InvitedAccess, InvitedReaders};
use crate::listener::network::ListenerState;
use crate::listener::secret::new_secret;
use crate::listener::shared_connection::{JoinedSegment, SegmentBytes, SharedConnection};
use crate::listener::transport::NetworkTransport;
use crate::machine::flash::FlashFile;
use crate::node::Node;

/// Processes that reach the segment at a time.
const MAX_INVITED_READERS: usize = 1024;

/// See the [module](self). Once this is dropped, no process reaches the memory any more.
pub(super) struct RemoteSegment {
    open: OpenArrivalQueue,
    to_write: SegmentBytes,
    to_read: SegmentBytes,
    /// Identity for encrypted connections of the client.
    identity: Option<Identity>,
    readers_identity: Option<Identity>,
    /// Access of a client on another machine.
    client: Option<SegmentClient>,
    invited_readers: Vec<JoinedSegment>,
}

struct SegmentClient {
    key: RegionKey,
    joined: JoinedSegment,
    /// Whether the segment has joined a connection that the client had.
    has_joined: bool,
}

impl RemoteSegment {
    /// Serves the segment, or its file on a disk, to a client on another machine, or to processes that a local client
    /// invites. The segment may join an existing connection of its client.
    pub(super) fn open(
        node: &Node,
        lease: &v1::Lease,
        network_transport: Option<&NetworkTransport>,
        (memory, flash): (&Region, Option<&Arc<FlashFile>>),
    ) -> Result<RemoteSegment, Error> {
        let listener_state = listener_state(node, lease)?;
        let secret = match network_transport.and_then(|network_transport| network_transport.secret) {
            Some(secret) => secret,
            // No client has this secret.
            None => new_secret()?,
        };
        let (to_write, to_read) = match flash {
            Some(file) => (SegmentBytes::Stored(file.clone()), SegmentBytes::Stored(file.clone())),
            None => mapped(memory)?,
        };
        let mut invited_readers = InvitedReaders::of(flash.is_none().then(|| memory.fd()))?;
        let client = network_transport
            .map(|network_transport| SegmentClient::new(listener_state, lease, network_transport, &to_write))
            .transpose()?;
        if let Some(client) = &client {
            invited_readers.serve_client(client.joined.shared_connection());
        }
        Ok(RemoteSegment {
            // A segment's client has one connection, as if it had one worker.
            open: listener_state.links.open(&lease.id, (secret, 1), Some(invited_readers))?,
            to_write,
            to_read,
            identity: network_transport.and_then(|network_transport| network_transport.identity.clone()),
            readers_identity: None,
            client,
            invited_readers: Vec::new(),
        })
    }

    /// Key by which a client on another machine reaches the segment, and whether by a connection that it had.
    pub(super) fn key(&self) -> Option<(RegionKey, bool)> {
        self.client.as_ref().map(|client| (client.key, client.has_joined))
    }

    /// A descriptor that is readable when connections have arrived.
    pub(super) fn arrived(&self) -> BorrowedFd<'_> {
        self.open.arrival_queue.arrived.as_fd()
    }

    /// Invites another process to reach the memory.
    pub(super) fn invite(
        &mut self,
        node: &Node,
        lease: &v1::Lease,
        asked: &v1::Invite,
    ) -> Result<v1::Invited, Error> {
        let listener_state = listener_state(node, lease)?;
        let encrypted = asked.encrypted || listener_state.described.encrypted;
        let (memory, rights) = match asked.writable {
            true => (&self.to_write, MemoryRights::Write),
            false => (&self.to_read, MemoryRights::Read),
        };
        self.invited_readers.retain(|guest| !guest.is_over());
        if self.invited_readers.len() < MAX_INVITED_READERS
            && let Some((joined, key)) =
                join(listener_state, lease, asked.joins.as_ref(), encrypted, (memory, rights))?
        {
            self.invited_readers.push(joined);
            return Ok(v1::Invited { memory: Some(key), joined: true, ..v1::Invited::default() });
        }
        let certificate = match (encrypted, &self.readers_identity) {
            (false, _) => Vec::new(),
            (true, Some(identity)) => identity.certificate.clone(),
            (true, None) => {
                let identity = Identity::generate(&format!("lease {}", lease.id))?;
                self.readers_identity.insert(identity).certificate.clone()
            }
        };
        let (joined, key) = begin(lease, encrypted, (memory, rights))?;
        let (guest, secret) = self.open.arrival_queue.invite(InvitedAccess { rights, joined })?;
        let secret = secret.to_vec();
        Ok(v1::Invited { guest, secret, memory: Some(key), certificate, joined: false })
    }

    /// Serves the connections that have arrived.
    pub(super) fn take_links(&mut self, node: &Node) {
        for arrival in self.open.arrival_queue.take() {
            if let Err(error) = self.take(node, arrival) {
                info!(%error, "a connection to a segment was lost before it was served");
            }
        }
    }

    fn take(&mut self, node: &Node, mut arrival: ArrivedConnection) -> Result<(), Error> {
        self.invited_readers.retain(|guest| !guest.is_over());
        if arrival.guest.is_some() && self.invited_readers.len() >= MAX_INVITED_READERS {
            let message = format!("{MAX_INVITED_READERS} others reach the segment already");
            return arrival.turn_away(Error::new(Code::TryLater, message));
        }
        let guest = arrival.guest.take().map(|invitation| invitation.joined);
        let own = self.client.as_ref().filter(|client| !client.has_joined).map(|client| &client.joined);
        let Some(shared_connection) = guest.as_ref().or(own).map(|joined| joined.shared_connection().clone())
        else {
            let message = "the segment is reached by the connection that it has joined";
            return arrival.turn_away(Error::new(Code::PermissionDenied, message));
        };
        let identity = if guest.is_some() { &self.readers_identity } else { &self.identity };
        match begun(&shared_connection, arrival, identity.as_ref()) {
            Ok(end) => {
                self.invited_readers.extend(guest);
                Ok(node.clients.progress()?.serve(end)?)
            }
            Err(error) => {
                shared_connection.give_up();
                Err(error)
            }
        }
    }
}

impl SegmentClient {
    fn new(
        listener_state: &ListenerState,
        lease: &v1::Lease,
        network_transport: &NetworkTransport,
        memory: &SegmentBytes,
    ) -> Result<SegmentClient, Error> {
        let encrypted = network_transport.identity.is_some();
        let joins =
            network_transport.joins.as_ref().map(|segment| Joins { segment: segment.clone(), guest: CLIENT });
        let memory = (memory, MemoryRights::Write);
        if let Some((joined, key)) = join(listener_state, lease, joins.as_ref(), encrypted, memory)? {
            return Ok(SegmentClient { key, joined, has_joined: true });
        }
        let (joined, key) = begin(lease, encrypted, memory)?;
        Ok(SegmentClient { key, joined, has_joined: false })
    }
}

/// Maps memory a second time: for writing, and for reading only.
fn mapped(memory: &Region) -> Result<(SegmentBytes, SegmentBytes), Error> {
    let file = memory.fd().try_clone_to_owned();
    let file = file.map_err(|error| Error::new(Code::System, format!("dup of a segment: {error}")))?;
    let to_write = Region::attach(file, memory.len_bytes())?;
    let to_read = Region::attach_to_read(read_only(memory.fd())?, memory.len_bytes())?;
    Ok((SegmentBytes::Mapped(Arc::new(to_write)), SegmentBytes::Mapped(Arc::new(to_read))))
}

/// Joins memory to a connection, if there is one of the same tenant with free capacity.
fn join(
    listener_state: &ListenerState,
    lease: &v1::Lease,
    joins: Option<&Joins>,
    encrypted: bool,
    (memory, rights): (&SegmentBytes, MemoryRights),
) -> Result<Option<(JoinedSegment, RegionKey)>, Error> {
    let shared_connection = joins.and_then(|joins| listener_state.links.shared_connection(joins));
    match shared_connection.filter(|shared_connection| shared_connection.takes(&lease.tenant, encrypted)) {
        Some(shared_connection) => shared_connection.lend(memory, rights),
        None => Ok(None),
    }
}

/// Creates a connection that is expected, with the memory as its first.
fn begin(
    lease: &v1::Lease,
    encrypted: bool,
    (memory, rights): (&SegmentBytes, MemoryRights),
) -> Result<(JoinedSegment, RegionKey), Error> {
    let lent = SharedConnection::new(&lease.tenant, encrypted).lend(memory, rights)?;
    lent.ok_or_else(|| Error::new(Code::Internal, "a new connection has no capacity for a segment"))
}

/// Begins a connection. The greeting is answered first, because an encrypted connection continues with TLS.
fn begun(
    shared_connection: &SharedConnection,
    arrival: ArrivedConnection,
    identity: Option<&Identity>,
) -> Result<Arc<tcp::TcpEndpoint>, Error> {
    let ArrivedConnection { socket, greeting, .. } = arrival;
    greeting.accept(&socket)?;
    shared_connection.begin(match (shared_connection.encrypted, identity) {
        (false, _) => ByteStream::plain(socket)?,
        (true, Some(identity)) => ByteStream::encrypted_server(socket, identity)?,
        (true, None) => {
            return Err(Error::new(Code::Internal, "an encrypted connection without a certificate"));
        }
    })
}

fn listener_state<'node>(node: &'node Node, lease: &v1::Lease) -> Result<&'node ListenerState, Error> {
    let none = || {
        let message = format!("segment {} is on a node that is on no network", lease.id);
        Error::new(Code::FabricUnavailable, message)
    };
    node.clients.listener_state.as_ref().ok_or_else(none)
}
