//! A shared connection by which one process, here or on another machine, reaches memory of segments on this node.
//!
//! The connection serves one segment first, and then others that join it (Scad 4.2.3: a process that reaches one
//! component on a server needs no further connection for the next).
//!
//! Invariants:
//! - A segment joins a connection only if its own client asks for it, and only if it is of the connection's tenant.
//! - Each segment ends by itself; the connection does when none is left, or when it is lost.

use std::sync::{Arc, OnceLock};

use sublet_fabric::exposed::{ExposedMemory, RemoteRegion};
use sublet_fabric::region::Region;
use sublet_fabric::tcp::{self, ByteStream};
use sublet_proto::Error;
use sublet_proto::graph::MemoryRights;
use sublet_proto::v1::RegionKey;

use crate::machine::flash::FlashFile;

/// See the [module](self).
pub(crate) struct SharedConnection {
    tenant: String,
    pub(crate) encrypted: bool,
    exposed: Arc<ExposedMemory>,
    /// The connection's endpoint once it exists; `None` inside if it will not come.
    end: OnceLock<Option<Arc<tcp::TcpEndpoint>>>,
}

/// Bytes of a segment, as connections lend them.
#[derive(Clone)]
pub(crate) enum SegmentBytes {
    Mapped(Arc<Region>),
    Stored(Arc<FlashFile>),
}

/// A segment's part in a shared connection: the peer reaches the segment until this is dropped.
pub(crate) struct JoinedSegment {
    shared_connection: Arc<SharedConnection>,
    region: u32,
}

impl SharedConnection {
    /// Creates a shared connection that is expected.
    pub(crate) fn new(tenant: &str, encrypted: bool) -> Arc<SharedConnection> {
        let exposed = Arc::new(ExposedMemory::lending(sublet_runtime::invited::MAX_JOINED));
        Arc::new(SharedConnection { tenant: tenant.to_owned(), encrypted, exposed, end: OnceLock::new() })
    }

    /// Whether memory of a tenant, to be reached with or without encryption, can join the connection.
    pub(crate) fn takes(&self, tenant: &str, encrypted: bool) -> bool {
        self.tenant == tenant && self.encrypted >= encrypted && !self.is_over()
    }

    /// Lets the peer reach memory by this key. Returns `None` if the connection has had the largest number of segments.
    pub(crate) fn lend(
        self: &Arc<SharedConnection>,
        memory: &SegmentBytes,
        rights: MemoryRights,
    ) -> Result<Option<(JoinedSegment, RegionKey)>, Error> {
        let lent = match memory {
            SegmentBytes::Mapped(region) => self.exposed.lend(region.clone(), rights)?,
            SegmentBytes::Stored(file) => self.exposed.lend_stored(file.clone(), rights)?,
        };
        let Some((region, RemoteRegion { key, base, .. })) = lent else { return Ok(None) };
        let stored = matches!(memory, SegmentBytes::Stored(_));
        let key = RegionKey { key, base, stored };
        Ok(Some((JoinedSegment { shared_connection: self.clone(), region }, key)))
    }

    /// Begins to use a stream as the connection. A second stream is refused.
    pub(crate) fn begin(&self, stream: ByteStream) -> Result<Arc<tcp::TcpEndpoint>, Error> {
        let end = Arc::new(tcp::TcpEndpoint::new(self.exposed.clone(), None));
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

    /// Marks the connection as not expected any more, unless it exists.
    pub(crate) fn give_up(&self) {
        let _ = self.end.set(None);
    }

    fn is_over(&self) -> bool {
        self.end.get().is_some_and(|end| end.as_ref().is_none_or(|end| end.down().is_some()))
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        if let Some(Some(end)) = self.end.get() {
            end.disconnect("the lease has ended");
        }
    }
}

impl JoinedSegment {
    pub(crate) fn shared_connection(&self) -> &Arc<SharedConnection> {
        &self.shared_connection
    }

    pub(crate) fn is_over(&self) -> bool {
        self.shared_connection.is_over()
    }
}

impl Drop for JoinedSegment {
    fn drop(&mut self) {
        match self.shared_connection.end.get() {
            Some(Some(end)) => end.withdraw(self.region, "a segment ended while it was being read"),
            _ => self.shared_connection.exposed.withdraw(self.region),
        }
    }
}
