//! Implements a connection by which this process reaches segments of one node. The first segment there makes it, and
//! later ones, of the same component or another, join it (Scad 4.2.3). This process may reach all of them, so the
//! connection need not separate them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use sublet_fabric::exposed::{ExposedMemory, RemoteRegion};
use sublet_fabric::sync::{AtomicU32, Ordering};
use sublet_fabric::tcp::{self, ByteStream};
use sublet_proto::Error;
use sublet_proto::v1::RegionKey;

use crate::fabrics::NetworkPath;
use crate::lease::dial::Dial;
use crate::lease::link::{lock, protocol};

/// Segments that a connection carries in its time, at most: then there is another.
pub const MAX_JOINED: u32 = 128;

/// See the [module](self). It ends with the last segment that is reached by it.
pub(crate) struct SegmentConnection {
    pub(super) end: Arc<tcp::TcpEndpoint>,
    /// Number of segments that have joined.
    joined: AtomicU32,
}

impl SegmentConnection {
    pub(crate) fn connect(stream: ByteStream) -> Result<Arc<SegmentConnection>, Error> {
        // The agent reaches nothing of this process.
        let end = Arc::new(tcp::TcpEndpoint::new(Arc::new(ExposedMemory::lending(MAX_JOINED)), None));
        end.connect(stream)?;
        Ok(Arc::new(SegmentConnection { end, joined: AtomicU32::new(0) }))
    }

    /// Makes memory reachable by the key from its agent. Returns the number by which it is reached from now on.
    pub(super) fn reach(&self, key: RegionKey, len_bytes: u64) -> Result<u32, Error> {
        let region = self.joined.fetch_add(1, Ordering::AcqRel);
        if region >= MAX_JOINED {
            return Err(protocol(format!("more than {MAX_JOINED} segments by one connection")));
        }
        self.end.reach(region, RemoteRegion { key: key.key, base: key.base, len_bytes })?;
        Ok(region)
    }
}

/// Destination of a client's connection.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConnectionTarget {
    address: String,
    interface: Option<String>,
    encrypted: bool,
}

/// A client's connection, and a segment that is reached by it, by which its agent knows it.
pub(super) struct KnownSegment {
    pub(super) segment: String,
    pub(super) segment_connection: Arc<SegmentConnection>,
}

/// The connections of this process as a client.
static OWN: Mutex<BTreeMap<ConnectionTarget, (String, Weak<SegmentConnection>)>> =
    Mutex::new(BTreeMap::new());

impl ConnectionTarget {
    pub(super) fn of((dial, network): &(Dial, NetworkPath)) -> ConnectionTarget {
        let encrypted = matches!(network, NetworkPath::Tcp { encrypted: true });
        ConnectionTarget { address: dial.address.clone(), interface: dial.interface.clone(), encrypted }
    }

    /// The connection that leads there, if there is one.
    pub(super) fn known(&self) -> Option<KnownSegment> {
        let own = lock(&OWN);
        let (segment, segment_connection) = own.get(self)?;
        let segment_connection = segment_connection
            .upgrade()
            .filter(|segment_connection| segment_connection.end.down().is_none())?;
        Some(KnownSegment { segment: segment.clone(), segment_connection })
    }

    /// A segment is reached by this.
    pub(super) fn note(self, segment: &str, segment_connection: &Arc<SegmentConnection>) {
        let mut own = lock(&OWN);
        own.retain(|_, (_, segment_connection)| segment_connection.strong_count() > 0);
        own.insert(self, (segment.to_owned(), Arc::downgrade(segment_connection)));
    }
}
