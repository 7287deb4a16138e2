//! Implements a worker process whose client is on another node: connections instead of shared memory, and copies of its
//! buffers.
//!
//! Each worker thread has an endpoint of its own over one [`ExposedMemory`]: region 0 is the inbox, the others are copies of
//! the client's buffers, with the same numbers and sizes. A copy takes memory when the client writes to it, and counts
//! with its whole size against the lease's memory: a worker cannot allocate it.
//!
//! Over TCP the agent passes a connection for each thread before the client connects; a later connection is dropped.
//! Over libfabric the client's message to connect gives the addresses of its endpoints, and the worker's are opened
//! then. Each is a network of its own, with its own keys, so regions come afterwards.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use sublet_fabric::exposed::{ExposedMemory, RemoteRegion};
use sublet_fabric::ofi::{self, OfiNetwork};
use sublet_fabric::packet::PacketSocket;
use sublet_fabric::region::create_file;
use sublet_fabric::tcp::{self, ByteStream};
use sublet_fabric::tls::Identity;
use sublet_fabric::window::Window;
use sublet_fabric::{Endpoint, FabricError};
use sublet_proto::network::Fabric;
use sublet_proto::v1::{self, client_to_worker, worker_to_client};
use sublet_proto::{Code, Error};

use super::answers::{Answer, ConnectionData, check_number, check_results, ready, second_connection};
use super::control;
use super::preparation::{descriptors, limit_memory};
use super::threads::WorkerProcessState;
use crate::wire::{MAX_REGIONS, OWN_REGION};

/// See the [module](self).
pub(super) struct RemoteClient {
    process: &'static WorkerProcessState,
    fabric: Fabric,
    /// The identity that the worker shows to the client, if calls are encrypted.
    identity: Option<Identity>,
    window: Arc<Window>,
    /// Endpoints, one for each worker thread.
    ends: &'static [Endpoint],
    /// The sizes of the copies, by their numbers.
    copies: BTreeMap<u32, u64>,
    is_connected: bool,
}

impl RemoteClient {
    pub(super) fn new(
        process: &'static WorkerProcessState,
        window: Window,
        fabric: Fabric,
    ) -> Result<RemoteClient, Error> {
        let setup = &process.setup;
        process.clear_inbox();
        let window = Arc::new(window);
        let exposed = Arc::new(ExposedMemory::new(&process.inbox, window.clone(), MAX_REGIONS)?);
        let end = |_| match &fabric {
            Fabric::Tcp => Endpoint::Tcp(tcp::TcpEndpoint::new(exposed.clone(), None)),
            Fabric::Ofi(_) => Endpoint::Ofi(ofi::OfiEndpoint::new(exposed.clone(), None)),
        };
        let ends: Vec<Endpoint> = (0..process.workers()).map(end).collect();
        let is_encrypted = setup.fabric.as_ref().is_some_and(|fabric| fabric.encrypted);
        let identity =
            || Identity { certificate: setup.certificate.clone(), private_key: setup.private_key.clone() };
        Ok(RemoteClient {
            process,
            fabric,
            identity: is_encrypted.then(identity),
            window,
            ends: Vec::leak(ends),
            copies: BTreeMap::new(),
            is_connected: false,
        })
    }

    /// Handles a message of the client or the agent. An error ends the process.
    pub(super) fn take(
        &mut self,
        body: client_to_worker::Body,
        fds: Vec<OwnedFd>,
        control: &'static PacketSocket,
    ) -> Answer {
        match body {
            client_to_worker::Body::Link(link) => self.link(&link, fds).map(|()| None),
            client_to_worker::Body::MapRegion(region) => {
                let [] = descriptors("a region of another node", fds)?;
                self.map(&region).map(Some)
            }
            client_to_worker::Body::Connect(connect) => {
                let [] = descriptors("a connection of another node", fds)?;
                self.connect(&connect, control).map(Some)
            }
            client_to_worker::Body::Run(run) => {
                self.process.take_run(&run, fds)?;
                Ok(Some(worker_to_client::Body::RunTaken(v1::RunTaken {})))
            }
        }
    }

    fn link(&self, link: &v1::Link, fds: Vec<OwnedFd>) -> Result<(), Error> {
        let [socket] = descriptors("a worker's connection", fds)?;
        let socket = TcpStream::from(socket);
        let end = self.ends.get(link.worker as usize);
        let end =
            end.ok_or_else(|| Error::new(Code::Protocol, format!("there is no worker {}", link.worker)))?;
        if self.is_connected {
            eprintln!("sublet-worker: a connection of worker {} came too late", link.worker);
            return Ok(());
        }
        let Endpoint::Tcp(end) = end else {
            return Err(Error::new(Code::Protocol, "a connection of a worker that needs none"));
        };
        let stream = match &self.identity {
            None => ByteStream::plain(socket),
            Some(identity) => ByteStream::encrypted_server(socket, identity),
        };
        let linked = stream.and_then(|stream| end.connect(stream));
        let named = |error: FabricError| {
            Error::new(
                Code::FabricUnavailable,
                format!("worker {} could not be connected: {error}", link.worker),
            )
        };
        linked.map_err(named)
    }

    /// Creates the copy of a region of the client's. A copy that does not fit the lease's memory is refused, and calls
    /// continue.
    fn map(&mut self, region: &v1::MapRegion) -> Result<worker_to_client::Body, Error> {
        check_number(region)?;
        let (number, len_bytes) = (region.region, region.len_bytes);
        let copied: u64 = self.copies.values().sum();
        let most = self.process.setup.copies_bytes;
        if copied.checked_add(len_bytes).is_none_or(|all| all > most) {
            let message = format!(
                "{len_bytes} bytes of buffers do not fit the lease's memory: over a network the worker has copies of them, \
                 which take {copied} of {most} bytes already"
            );
            return Ok(control::failure(&Error::new(Code::InsufficientResources, message)));
        }
        let theirs = self.their_regions(number, len_bytes, (region.key, &region.keys))?;
        let file = create_file("sublet-copy", len_bytes)?;
        self.window.map(number, file.as_fd(), len_bytes)?;
        self.copies.insert(number, len_bytes);
        limit_memory(&self.process.setup, copied + len_bytes)?;
        self.reach(number, &theirs)?;
        let (key, keys) = self.expose(number)?;
        Ok(worker_to_client::Body::RegionMapped(v1::RegionMapped { region: number, key, keys }))
    }

    fn connect(
        &mut self,
        connect: &v1::Connect,
        control: &'static PacketSocket,
    ) -> Result<worker_to_client::Body, Error> {
        if self.is_connected {
            return Err(second_connection());
        }
        let results_bytes = check_results(self.process, connect)?;
        let theirs =
            self.their_regions(OWN_REGION, results_bytes, (connect.results, &connect.results_keys))?;
        let contacts = self.open(&connect.contacts)?;
        self.reach(OWN_REGION, &theirs)?;
        for (number, end) in self.ends.iter().enumerate() {
            if let Some(reason) = end.down() {
                let message = format!("worker {number} has no connection: {reason}");
                return Err(Error::new(Code::FabricUnavailable, message));
            }
        }
        let (inbox, inbox_keys) = self.expose(OWN_REGION)?;
        self.process.start(control, self.ends, &connect.start_positions)?;
        self.is_connected = true;
        let inbox = ConnectionData { inbox, inbox_keys, contacts };
        Ok(ready(self.process, inbox))
    }

    /// Opens a network for each worker over libfabric, to the client's endpoint. Returns the addresses of this side's
    /// endpoints.
    fn open(&self, contacts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Error> {
        let Fabric::Ofi(provider) = &self.fabric else { return Ok(Vec::new()) };
        if contacts.len() != self.ends.len() {
            let message = format!("{} contacts for {} workers", contacts.len(), self.ends.len());
            return Err(Error::new(Code::Protocol, message));
        }
        let network = OfiNetwork::of(provider);
        let ends = self.ends.iter().zip(contacts).filter_map(|(end, contact)| match end {
            Endpoint::Ofi(end) => Some(end.accept(&network, contact)),
            _ => None,
        });
        Ok(ends.collect::<Result<_, _>>()?)
    }

    /// A region of the client's as each worker reaches it.
    fn their_regions(
        &self,
        region: u32,
        len_bytes: u64,
        (key, keys): (Option<v1::RegionKey>, &[v1::RegionKey]),
    ) -> Result<Vec<RemoteRegion>, Error> {
        let keys = match (&self.fabric, key) {
            (Fabric::Tcp, Some(key)) => vec![key; self.ends.len()],
            (Fabric::Ofi(_), _) if keys.len() == self.ends.len() => keys.to_vec(),
            _ => {
                let message =
                    format!("the client did not say for each worker the key of its region {region}");
                return Err(Error::new(Code::Protocol, message));
            }
        };
        Ok(keys
            .into_iter()
            .map(|v1::RegionKey { key, base, .. }| RemoteRegion { key, base, len_bytes })
            .collect())
    }

    fn reach(&self, region: u32, theirs: &[RemoteRegion]) -> Result<(), Error> {
        let reach = |(end, theirs): (&Endpoint, &RemoteRegion)| match end {
            Endpoint::Tcp(end) => end.reach(region, *theirs),
            Endpoint::Ofi(end) => end.reach(region, *theirs),
            _ => Ok(()),
        };
        Ok(self.ends.iter().zip(theirs).try_for_each(reach)?)
    }

    /// Lets the client reach a region of this side: by the same key through each end, or by one for each.
    fn expose(&self, region: u32) -> Result<(Option<v1::RegionKey>, Vec<v1::RegionKey>), Error> {
        let mut keys = Vec::with_capacity(self.ends.len());
        for end in self.ends {
            let RemoteRegion { key, base, .. } = match end {
                Endpoint::Tcp(end) => end.expose(region)?,
                Endpoint::Ofi(end) => end.expose(region)?,
                _ => continue,
            };
            keys.push(v1::RegionKey { key, base, stored: false });
        }
        Ok(match self.fabric {
            Fabric::Tcp => (keys.first().copied(), Vec::new()),
            Fabric::Ofi(_) => (None, keys),
        })
    }
}
