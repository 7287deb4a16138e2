//! A worker process's client, as its first thread sees it: the regions that it maps, and its connection.
//!
//! On the same machine both are memory, passed as descriptors. Over a network they are copies and connections, see
//! [`super::remote`].

use std::os::fd::{AsFd, OwnedFd};

use sublet_fabric::packet::{Packet, PacketSocket};
use sublet_fabric::window::Window;
use sublet_fabric::{Endpoint, shm};
use sublet_proto::network::Fabric;
use sublet_proto::v1::{self, client_to_worker, worker_to_client};
use sublet_proto::{Code, Error, decode};

use super::answers::{Answer, ConnectionData, check_number, check_results, ready, second_connection};
use super::preparation::descriptors;
use super::remote::RemoteClient;
use super::threads::WorkerProcessState;
use crate::wire::{MAX_REGIONS, OWN_REGION};

/// See the [module](self).
pub(super) struct WorkerClient {
    process: &'static WorkerProcessState,
    control: &'static PacketSocket,
    way: ClientConnection,
}

/// Connection to the client, before and after it is established.
enum ClientConnection {
    Connecting(Window),
    Connected(&'static Endpoint),
    Broken,
    Remote(RemoteClient),
}

impl WorkerClient {
    /// Creates the state for a client that has sent nothing yet.
    pub(super) fn new(
        process: &'static WorkerProcessState,
        control: &'static PacketSocket,
    ) -> Result<WorkerClient, Error> {
        let window = Window::new(MAX_REGIONS, u64::from(u32::MAX))?;
        let way = match Fabric::chosen(process.setup.fabric.as_ref())? {
            None => ClientConnection::Connecting(window),
            Some(fabric) => ClientConnection::Remote(RemoteClient::new(process, window, fabric)?),
        };
        Ok(WorkerClient { process, control, way })
    }

    /// Handles a message of the client. An error ends the process.
    pub(super) fn take(&mut self, packet: Packet) -> Answer {
        let message: v1::ClientToWorker = decode("a client's message to its worker", &packet.bytes)?;
        let body =
            message.body.ok_or_else(|| Error::new(Code::Protocol, "an empty message from the client"))?;
        match (&mut self.way, body) {
            (
                ClientConnection::Connecting(_) | ClientConnection::Connected(_),
                client_to_worker::Body::Run(run),
            ) => {
                self.process.take_run(&run, packet.fds)?;
                Ok(Some(worker_to_client::Body::RunTaken(v1::RunTaken {})))
            }
            (ClientConnection::Remote(remote), body) => remote.take(body, packet.fds, self.control),
            (way, client_to_worker::Body::MapRegion(region)) => map(way, &region, packet.fds),
            (_, client_to_worker::Body::Connect(connect)) => self.connect(&connect, packet.fds),
            (_, client_to_worker::Body::Link(_)) => {
                Err(Error::new(Code::Protocol, "a connection of a worker that shares its client's memory"))
            }
            (ClientConnection::Broken, client_to_worker::Body::Run(_)) => {
                Err(Error::new(Code::Protocol, "a run after a failed connection"))
            }
        }
    }

    fn connect(&mut self, connect: &v1::Connect, fds: Vec<OwnedFd>) -> Answer {
        let ClientConnection::Connecting(window) = std::mem::replace(&mut self.way, ClientConnection::Broken)
        else {
            return Err(second_connection());
        };
        let [results, bell] = descriptors("a connection", fds)?;
        let results_bytes = check_results(self.process, connect)?;
        window.map(OWN_REGION, results.as_fd(), results_bytes)?;
        let endpoint: &'static Endpoint =
            Box::leak(Box::new(Endpoint::Shm(shm::ShmEndpoint::new(window, Some(bell)))));
        let clients = std::iter::repeat_n(endpoint, self.process.workers() as usize);
        self.process.start(self.control, clients, &connect.start_positions)?;
        self.way = ClientConnection::Connected(endpoint);
        Ok(Some(ready(self.process, ConnectionData::default())))
    }
}

fn map(way: &ClientConnection, region: &v1::MapRegion, fds: Vec<OwnedFd>) -> Answer {
    let [file] = descriptors("a region", fds)?;
    check_number(region)?;
    match way {
        ClientConnection::Connecting(window) => window.map(region.region, file.as_fd(), region.len_bytes)?,
        ClientConnection::Connected(Endpoint::Shm(endpoint)) => {
            endpoint.register(region.region, file.as_fd(), region.len_bytes)?
        }
        _ => return Err(Error::new(Code::Protocol, "a region after a failed connection")),
    }
    Ok(Some(worker_to_client::Body::RegionMapped(v1::RegionMapped {
        region: region.region,
        ..v1::RegionMapped::default()
    })))
}
