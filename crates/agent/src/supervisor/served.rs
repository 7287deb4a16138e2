//! A segment's memory for programs on other machines: the node's progress thread carries out what is asked of it.
//!
//! They know the memory by a key, which is good as long as the lease; who may only read has another one. The client has one
//! connection, which it proves to be its own as it proves those of workers; another takes the place of the one before. Its
//! [guests](crate::guests) have one each.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use sublet_fabric::exposed::{Exposed, OWN, RemoteRegion};
use sublet_fabric::region::Region;
use sublet_fabric::tcp::{self, Stream};
use sublet_fabric::tls::Identity;
use sublet_proto::v1::{self, RegionKey};
use sublet_proto::{Code, Error};
use tracing::info;

use crate::carrier::{Carrier, new_secret};
use crate::gate::Gate;
use crate::guests::{Guests, Rights};
use crate::links::{Arrival, OpenDesk};
use crate::node::Node;

/// Connections of guests at a time.
const MAX_GUESTS: usize = 1024;

/// See the [module](self). When it is dropped, nobody reaches the memory any more.
pub(super) struct Served {
    open: OpenDesk,
    to_write: Arc<Exposed>,
    to_read: Arc<Exposed>,
    /// Of encrypted connections: the client's, and its guests'.
    identity: Option<Identity>,
    guests_identity: Option<Identity>,
    client: Option<Arc<tcp::Endpoint>>,
    guests: Vec<Arc<tcp::Endpoint>>,
}

impl Served {
    /// For a client on another machine, or the guests of one on this.
    pub(super) fn open(
        node: &Node,
        lease: &v1::Lease,
        carrier: Option<&Carrier>,
        memory: &Region,
    ) -> Result<Served, Error> {
        let gate = gate(node, lease)?;
        let secret = match carrier.and_then(|carrier| carrier.secret) {
            Some(secret) => secret,
            // Nobody has it.
            None => new_secret()?,
        };
        let guests = Guests::of(memory.fd())?;
        Ok(Served {
            // A segment's client has one connection, as if it had one worker.
            open: gate.links.open(&lease.id, (secret, 1), Some(guests))?,
            to_write: Arc::new(Exposed::alone(memory)?),
            to_read: Arc::new(Exposed::to_read(memory)?),
            identity: carrier.and_then(|carrier| carrier.identity.clone()),
            guests_identity: None,
            client: None,
            guests: Vec::new(),
        })
    }

    /// By which the client reaches it.
    pub(super) fn key(&self) -> Result<RegionKey, Error> {
        key_of(&self.to_write)
    }

    /// Readable when connections have arrived.
    pub(super) fn arrived(&self) -> BorrowedFd<'_> {
        self.open.desk.arrived.as_fd()
    }

    /// Lets somebody else reach the memory.
    pub(super) fn invite(
        &mut self,
        node: &Node,
        lease: &v1::Lease,
        asked: &v1::Invite,
    ) -> Result<v1::Invited, Error> {
        let encrypted = asked.encrypted || gate(node, lease)?.described.encrypted;
        let certificate = match (encrypted, &self.guests_identity) {
            (false, _) => Vec::new(),
            (true, Some(identity)) => identity.certificate.clone(),
            (true, None) => {
                let identity = Identity::generate(&format!("lease {}", lease.id))?;
                self.guests_identity.insert(identity).certificate.clone()
            }
        };
        let memory = key_of(if asked.writable { &self.to_write } else { &self.to_read })?;
        let (guest, secret) = self.open.desk.invite(Rights { writable: asked.writable, encrypted })?;
        Ok(v1::Invited { guest, secret: secret.to_vec(), memory: Some(memory), certificate })
    }

    /// Serves the connections that have arrived.
    pub(super) fn take_links(&mut self, node: &Node) {
        for arrival in self.open.desk.take() {
            if let Err(error) = self.take(node, arrival) {
                info!(%error, "a connection to a segment was lost before it was served");
            }
        }
    }

    /// Whose connection it is, is answered first: it goes on with TLS where that is meant.
    fn take(&mut self, node: &Node, arrival: Arrival) -> Result<(), Error> {
        let Arrival { guest, socket, greeting, .. } = arrival;
        self.guests.retain(|end| end.down().is_none());
        if guest.is_some() && self.guests.len() >= MAX_GUESTS {
            let error = Error::new(Code::TryLater, format!("{MAX_GUESTS} others reach the segment already"));
            greeting.refuse(&socket, &error);
            return Err(error);
        }
        greeting.accept(&socket)?;
        let identity = match guest {
            None => self.identity.as_ref(),
            Some(rights) => self.guests_identity.as_ref().filter(|_| rights.encrypted),
        };
        let stream = match identity {
            None => Stream::plain(socket)?,
            Some(identity) => Stream::encrypted_server(socket, identity)?,
        };
        let reached = match guest {
            Some(Rights { writable: false, .. }) => &self.to_read,
            _ => &self.to_write,
        };
        let end = Arc::new(tcp::Endpoint::new(reached.clone(), None));
        end.connect(stream)?;
        match guest {
            None => {
                disconnect(self.client.replace(end.clone()), "another connection has taken its place");
            }
            Some(_) => self.guests.push(end.clone()),
        }
        Ok(node.progress()?.serve(end)?)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.to_write.withdraw(OWN);
        self.to_read.withdraw(OWN);
        disconnect(self.client.take().into_iter().chain(self.guests.drain(..)), "the lease has ended");
    }
}

fn disconnect(ends: impl IntoIterator<Item = Arc<tcp::Endpoint>>, reason: &str) {
    ends.into_iter().for_each(|end| end.disconnect(reason));
}

fn key_of(exposed: &Exposed) -> Result<RegionKey, Error> {
    let RemoteRegion { key, base, .. } = exposed.expose(OWN)?;
    Ok(RegionKey { key, base })
}

fn gate<'node>(node: &'node Node, lease: &v1::Lease) -> Result<&'node Gate, Error> {
    let none = || {
        let message = format!("segment {} is on a node that is on no network", lease.id);
        Error::new(Code::FabricUnavailable, message)
    };
    node.gate.as_ref().ok_or_else(none)
}
