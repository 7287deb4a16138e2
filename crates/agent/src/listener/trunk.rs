//! A connection by which one process, here or elsewhere, reaches the memory of segments on this node: of one, and of others that
//! join it (Scad 4.2.3: whoever reaches one component on a server needs no further connection for the next).
//!
//! Invariants:
//! - Memory joins a connection by the word of its own client, and only that of the tenant whose connection it is.
//! - Each segment ends by itself; the connection does when none is left, or when it is lost.

use std::sync::{Arc, OnceLock};

use sublet_fabric::exposed::{Exposed, RemoteRegion};
use sublet_fabric::region::Region;
use sublet_fabric::tcp::{self, Stream};
use sublet_proto::Error;
use sublet_proto::graph::Rights;
use sublet_proto::v1::RegionKey;

/// See the [module](self).
pub(crate) struct Trunk {
    tenant: String,
    pub(crate) encrypted: bool,
    exposed: Arc<Exposed>,
    /// When it is there; None if it will not come.
    end: OnceLock<Option<Arc<tcp::Endpoint>>>,
}

/// A segment's part in a connection: as long as this, the peer reaches it.
pub(crate) struct Joined {
    trunk: Arc<Trunk>,
    region: u32,
}

impl Trunk {
    /// Of a connection that is to come.
    pub(crate) fn new(tenant: &str, encrypted: bool) -> Arc<Trunk> {
        let exposed = Arc::new(Exposed::lending(sublet_runtime::guest::MAX_JOINED));
        Arc::new(Trunk { tenant: tenant.to_owned(), encrypted, exposed, end: OnceLock::new() })
    }

    /// Whether memory of a tenant can join it that is to be reached so.
    pub(crate) fn takes(&self, tenant: &str, encrypted: bool) -> bool {
        self.tenant == tenant && self.encrypted >= encrypted && !self.is_over()
    }

    /// Lets its peer reach memory, by this key. None: it has had as many as a connection may.
    pub(crate) fn lend(
        self: &Arc<Trunk>,
        memory: &Arc<Region>,
        rights: Rights,
    ) -> Result<Option<(Joined, RegionKey)>, Error> {
        let Some((region, RemoteRegion { key, base, .. })) = self.exposed.lend(memory.clone(), rights)?
        else {
            return Ok(None);
        };
        Ok(Some((Joined { trunk: self.clone(), region }, RegionKey { key, base })))
    }

    /// It is there. Whoever comes second is refused.
    pub(crate) fn begin(&self, stream: Stream) -> Result<Arc<tcp::Endpoint>, Error> {
        let end = Arc::new(tcp::Endpoint::new(self.exposed.clone(), None));
        end.connect(stream)?;
        match self.end.set(Some(end.clone())) {
            Ok(()) => Ok(end),
            Err(_) => {
                end.disconnect("another connection has its place");
                Err(Error::new(
                    sublet_proto::Code::PermissionDenied,
                    "the segment is reached by a connection already",
                ))
            }
        }
    }

    /// It will not come, if it is not there.
    pub(crate) fn give_up(&self) {
        let _ = self.end.set(None);
    }

    fn is_over(&self) -> bool {
        self.end.get().is_some_and(|end| end.as_ref().is_none_or(|end| end.down().is_some()))
    }
}

impl Drop for Trunk {
    fn drop(&mut self) {
        if let Some(Some(end)) = self.end.get() {
            end.disconnect("the lease has ended");
        }
    }
}

impl Joined {
    pub(crate) fn trunk(&self) -> &Arc<Trunk> {
        &self.trunk
    }

    pub(crate) fn is_over(&self) -> bool {
        self.trunk.is_over()
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        match self.trunk.end.get() {
            Some(Some(end)) => end.withdraw(self.region, "a segment ended while it was being read"),
            _ => self.trunk.exposed.withdraw(self.region),
        }
    }
}
