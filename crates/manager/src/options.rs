//! Options of a manager, and their default values.

use std::net::SocketAddr;
use std::path::PathBuf;

use sublet_proto::price::Prices;

use crate::core::{Level, QueueLimits};
use crate::listen::ConnectionLimits;
use crate::retention::Retention;
use crate::store::NatsOptions;
use crate::tls::Tls;

/// Store for the data that must outlive the manager.
#[derive(Clone, Debug)]
pub enum StoreOptions {
    /// A file of the state folder: for one manager.
    Embedded,
    /// Servers of NATS JetStream: for several managers.
    Nats(NatsOptions),
}

/// Options of a manager.
#[derive(Clone, Debug)]
pub struct ManagerOptions {
    /// The folder of its state; made if it does not exist.
    pub state: PathBuf,
    /// The Unix socket on which it listens.
    pub socket: PathBuf,
    /// The TCP addresses on which it listens as well.
    pub listen: Vec<SocketAddr>,
    /// Protection of the TCP addresses.
    pub tls: Tls,
    /// The address by which clients and agents of other machines reach it, if it is not the first one that it listens
    /// on.
    pub advertise: Option<String>,
    /// Store for the data that must outlive the manager.
    pub store: StoreOptions,
    /// Prices of new leases.
    pub prices: Prices,
    /// Limits of the queue of requests that wait for capacity.
    pub queue: QueueLimits,
    /// Limits of connections, in all and by kind of peer.
    pub connections: ConnectionLimits,
    /// Memory for each core of balanced nodes, if nodes that name no pool are assigned to one by the resources they
    /// have left.
    pub balanced_bytes: Option<u64>,
    /// Part of the balanced pool, in thousandths, up to which components of runs are planned together.
    pub watermark_permille: u32,
    /// Times after which ended leases, runs and names are removed.
    pub retention: Retention,
    /// Kind of its nodes.
    pub level: Level,
}

impl ManagerOptions {
    /// The usual on one machine: the socket `manager.sock` in the state folder, and default prices.
    pub fn in_folder(state: PathBuf) -> ManagerOptions {
        ManagerOptions {
            socket: state.join("manager.sock"),
            state,
            listen: Vec::new(),
            tls: Tls::Generated { names: Vec::new() },
            advertise: None,
            store: StoreOptions::Embedded,
            prices: Prices::default(),
            queue: QueueLimits::default(),
            connections: ConnectionLimits::default(),
            balanced_bytes: None,
            watermark_permille: 700,
            retention: Retention::default(),
            level: Level::Rack,
        }
    }
}
