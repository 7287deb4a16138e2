//! Sends a lease's requests to its workers: through shared memory, or over a connection to each.
//!
//! In shared memory a request stays in the ring until a worker process takes it, whichever that is. Over a network each
//! worker has a connection, which ends with its process ([`worker_connection`](super::worker_connection)).

use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sublet_fabric::exposed::{ExposedMemory, RemoteRegion};
use sublet_fabric::greeting::{self, ConnectionPurpose, DataLink};
use sublet_fabric::line::{Line, Watch};
use sublet_fabric::region::Region;
use sublet_fabric::sync::{Ordering, fence};
use sublet_fabric::tcp::ByteStream;
use sublet_fabric::window::Window;
use sublet_fabric::{Endpoint, FabricError, ofi, shm, tcp};
use sublet_proto::v1;
use sublet_proto::{Code, Error};

use super::call::SentCall;
use super::dial::Dial;
use super::worker_connection::{RingRequest, WorkerConnection};
use crate::fabrics::{FabricChoice, NetworkPath};
use crate::wire::MAX_REGIONS;

/// See the [module](self).
pub(super) enum WorkerTransport {
    /// The common inbox of all workers, mapped here.
    Local(shm::ShmEndpoint),
    Remote(Box<RemoteWorkers>),
}

impl WorkerTransport {
    pub(super) fn fabric(&self) -> FabricChoice {
        match self {
            WorkerTransport::Local(_) => FabricChoice::Shm,
            WorkerTransport::Remote(remote) => remote.route.network.choice(),
        }
    }

    pub(super) fn remote(&self) -> Option<&RemoteWorkers> {
        match self {
            WorkerTransport::Local(_) => None,
            WorkerTransport::Remote(remote) => Some(remote),
        }
    }
}

/// The way to a node's workers, or to the memory of a segment there.
pub(crate) struct Route {
    pub(crate) dial: Dial,
    pub(crate) network: NetworkPath,
    /// Address of the agent.
    pub(crate) agent: Option<IpAddr>,
    /// The lease's id.
    pub(crate) lease: [u8; 16],
    /// Secret that proves to the worker that a TCP connection is this client's.
    pub(crate) secret: [u8; 32],
    /// The only one that the other end may have.
    pub(crate) certificate: Vec<u8>,
}

impl Route {
    /// Opens a TCP connection to a worker. Each counter is accepted only once.
    pub(crate) fn stream(&self, worker: u32, counter: u64) -> Result<ByteStream, Error> {
        let socket = self.dial.connect()?;
        let kind = ConnectionPurpose::Data(DataLink { lease: self.lease, worker, counter });
        greeting::greet(&socket, &kind, Some(&self.secret))?;
        Ok(match self.network {
            NetworkPath::Tcp { encrypted: true } => ByteStream::encrypted_client(socket, &self.certificate)?,
            _ => ByteStream::plain(socket)?,
        })
    }
}

/// The connections to the workers of a lease.
pub(super) struct RemoteWorkers {
    route: Route,
    exposed: Arc<ExposedMemory>,
    ends: Box<[WorkerConnection]>,
    /// Time that a waiting thread spins before it sleeps.
    pub(super) spin: Duration,
}

/// Partly established connections to a new worker process: none of them can send yet.
pub(super) enum PartialConnections {
    /// Connections over TCP, which its threads have already.
    Streams(Vec<ByteStream>),
    /// Addresses of this side's endpoints, over libfabric.
    Contacts(Vec<Vec<u8>>),
}

/// Keys by which the workers reach a region, or this side theirs: one key, or over libfabric one for each.
#[derive(Default)]
pub(super) struct RegionKeys {
    pub(super) key: Option<v1::RegionKey>,
    pub(super) keys: Vec<v1::RegionKey>,
}

impl RemoteWorkers {
    pub(super) fn new(
        route: Route,
        (results, window): (&Region, &Arc<Window>),
        (workers, spin): (u32, Duration),
        bell: BorrowedFd<'_>,
    ) -> Result<RemoteWorkers, Error> {
        let exposed = Arc::new(ExposedMemory::new(results, window.clone(), MAX_REGIONS)?);
        let endpoint = |bell: OwnedFd| match &route.network {
            NetworkPath::Tcp { .. } => Endpoint::Tcp(tcp::TcpEndpoint::new(exposed.clone(), Some(bell))),
            NetworkPath::Ofi { .. } => Endpoint::Ofi(ofi::OfiEndpoint::new(exposed.clone(), Some(bell))),
        };
        let ends = (0..workers).map(|_| {
            let bell =
                bell.try_clone_to_owned().map_err(|error| FabricError::system("dup of a bell", error))?;
            Ok(WorkerConnection::new(endpoint(bell)))
        });
        let ends = ends.collect::<Result<_, FabricError>>()?;
        Ok(RemoteWorkers { route, exposed, ends, spin })
    }

    /// The endpoint of the connection to a worker.
    pub(super) fn endpoint(&self, worker: u32) -> &Endpoint {
        &self.ends[worker as usize].endpoint
    }

    /// Sends a request to a worker, or keeps it for the next connection.
    pub(super) fn publish(&self, worker: u32, request: RingRequest<'_>) {
        self.ends[worker as usize].send(request);
    }

    /// Sleeps until the result is there, `over` returns true, the connection is lost and made anew, or the deadline
    /// passes.
    pub(super) fn wait(
        &self,
        sent: &SentCall,
        line: (&Line, &Watch),
        deadline: Option<Instant>,
        over: impl Fn() -> bool + Copy,
    ) -> bool {
        let endpoint = &self.ends[sent.worker as usize].endpoint;
        if endpoint.wait(line, sent.turn, deadline, over) {
            return true;
        }
        if endpoint.down().is_none() || over() {
            return line.0.is(sent.turn);
        }
        // No result can come, and the lease's thread finds out the reason.
        line.0.wait(line.1, sent.turn, deadline, || over() || endpoint.down().is_none())
    }

    /// Receives data that has arrived from a worker. Returns whether there may have been some.
    #[cold]
    pub(super) fn take_arrived(&self, worker: u32) -> bool {
        // That the connection is down is for the lease's thread to find.
        let _ = self.ends[worker as usize].endpoint.progress();
        true
    }

    /// Whether the lease's thread receives the data of a worker, one of whose records was marked as watched before.
    #[cold]
    pub(super) fn is_polled(&self, worker: u32) -> bool {
        // Pairs with the fence in `to_poll`: either this sees the flag down, or that the mark.
        fence(Ordering::SeqCst);
        self.ends[worker as usize].polled.load(Ordering::Relaxed) != 0
    }

    /// The connections of the workers with watched records, for the lease's thread.
    pub(super) fn to_poll(&self, watched: impl Fn(u32) -> bool) -> Vec<(u32, BorrowedFd<'_>)> {
        self.ends.iter().for_each(|end| end.polled.store(0, Ordering::Relaxed));
        fence(Ordering::SeqCst);
        let watched = (0..).zip(&self.ends).filter(|(worker, _)| watched(*worker));
        let polled = watched.filter_map(|(worker, end)| {
            end.polled.store(1, Ordering::Relaxed);
            Some((worker, end.readable()?))
        });
        polled.collect()
    }

    /// A connection that is down, and why.
    pub(super) fn down(&self) -> Option<(u32, String)> {
        (0..).zip(&self.ends).find_map(|(worker, end)| Some((worker, end.endpoint.down()?)))
    }

    /// Ends all connections. Requests that are sent afterwards are kept for the next ones.
    pub(super) fn disconnect(&self, reason: &str) {
        self.ends.iter().for_each(|end| end.disconnect(reason));
    }

    /// Revokes the worker processes' keys: the lease is over.
    pub(super) fn withdraw(&self) {
        (0..MAX_REGIONS).for_each(|region| self.exposed.withdraw(region));
    }

    /// Whether connections are made after the regions are sent. Over libfabric keys belong to one connection, which is
    /// made first.
    pub(super) fn connects_last(&self) -> bool {
        matches!(self.route.network, NetworkPath::Tcp { .. })
    }

    /// Begins the connections to all threads of a worker process. No counter is used twice.
    pub(super) fn link(&self, counter: &mut u64) -> Result<PartialConnections, Error> {
        match &self.route.network {
            NetworkPath::Tcp { .. } => {
                let stream = |(worker, _)| {
                    *counter += 1;
                    self.route.stream(worker, *counter)
                };
                Ok(PartialConnections::Streams(
                    (0..).zip(&self.ends).map(stream).collect::<Result<_, Error>>()?,
                ))
            }
            NetworkPath::Ofi { provider } => {
                let interface = self.route.dial.interface.clone();
                let network =
                    ofi::OfiNetwork { provider: provider.clone(), interface, toward: self.route.agent };
                let contacts = self.ends.iter().map(|end| end.contact(&network));
                Ok(PartialConnections::Contacts(contacts.collect::<Result<_, FabricError>>()?))
            }
        }
    }

    /// Exposes a region of this side and returns its keys for a worker process.
    pub(super) fn expose(&self, region: u32) -> Result<RegionKeys, Error> {
        let said = |RemoteRegion { key, base, .. }| v1::RegionKey { key, base, stored: false };
        match self.connects_last() {
            true => Ok(RegionKeys { key: Some(said(self.exposed.expose(region)?)), keys: Vec::new() }),
            false => {
                let keys = self.ends.iter().map(|end| end.expose(region).map(said));
                Ok(RegionKeys { key: None, keys: keys.collect::<Result<_, FabricError>>()? })
            }
        }
    }

    /// Learns how the worker process's region of a number is reached.
    pub(super) fn reach(&self, region: u32, said: RegionKeys, len_bytes: u64) -> Result<(), Error> {
        let keys = match said.key.filter(|_| self.connects_last()) {
            Some(key) => vec![key; self.ends.len()],
            None => said.keys,
        };
        if keys.len() != self.ends.len() {
            let message = format!("{} keys of region {region} for {} workers", keys.len(), self.ends.len());
            return Err(Error::new(Code::Protocol, message));
        }
        let reach = |(end, v1::RegionKey { key, base, .. }): (&WorkerConnection, v1::RegionKey)| {
            end.reach(region, RemoteRegion { key, base, len_bytes })
        };
        Ok(self.ends.iter().zip(keys).try_for_each(reach)?)
    }

    /// Connects all workers, of which over libfabric the ends are there.
    pub(super) fn connect(&self, links: PartialConnections, contacts: &[Vec<u8>]) -> Result<(), Error> {
        let connected: Result<(), FabricError> = match links {
            PartialConnections::Streams(streams) => {
                self.ends.iter().zip(streams).try_for_each(|(end, stream)| end.connect(stream))
            }
            PartialConnections::Contacts(_) if contacts.len() == self.ends.len() => {
                self.ends.iter().zip(contacts).try_for_each(|(end, contact)| end.meet(contact))
            }
            PartialConnections::Contacts(_) => {
                let message = format!("{} contacts of {} workers", contacts.len(), self.ends.len());
                return Err(Error::new(Code::Protocol, message));
            }
        };
        Ok(connected?)
    }

    /// Opens the connections for requests, and sends the kept ones from these positions on.
    pub(super) fn open(&self, starts: &[u64]) -> Result<(), Error> {
        Ok(self.ends.iter().zip(starts).try_for_each(|(end, &start)| end.open(start))?)
    }
}
