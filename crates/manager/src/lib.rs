//! Grants leases: a pure core in a thin shell of gRPC and a store.
//!
//! ```text
//! listen.rs, tls.rs   connections, bounded and encrypted
//!    auth.rs          who calls, by tokens.rs, and what they may
//!    service.rs       each method
//!       shell.rs      the core among threads
//!          core.rs    every decision, without clock, chance or I/O
//!       ledger.rs     what was used, in lease_records.rs; bill.rs, what it costs
//!       packages.rs   what is run, as uploads.rs receives it; tenants.rs, who may have how much
//!       graphs.rs     applications of several components; runs.rs, what a run has come to
//!       quotas.rs    what tenants may keep in the store; garbage.rs, what nothing refers to any more
//!       retention.rs  how long is kept what has ended
//!       store_managers.rs  the other managers of the store
//!    parts.rs        opens all of these by options.rs; background.rs, the tasks beside the calls
//!    database.rs      the store, off the threads that serve
//!       store.rs      what outlives the process
//! ```
//!
//! The manager is never on the path of a call, and it keeps no connection to agents: they report to it each second, and
//! its answer lists the leases to end. See [`core`] for its guarantees about leases.
//!
//! ```no_run
//! # async fn example() -> Result<(), sublet_proto::Error> {
//! let manager = sublet_manager::Manager::start(sublet_manager::ManagerOptions::in_folder("/run/sublet".into())).await?;
//! manager.stop().await
//! # }
//! ```

// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

mod auth;
mod background;
mod bill;
mod chance;
mod clock;
mod collection;
pub mod core;
mod database;
mod folder;
mod garbage;
mod graphs;
mod key_file;
mod lease_records;
mod ledger;
mod listen;
mod names;
mod options;
mod packages;
mod parts;
pub mod peers;
mod plans;
mod quotas;
mod reply;
mod retention;
mod runs;
mod secrets;
mod service;
mod shell;
mod start;
pub mod store;
mod store_managers;
mod tenants;
mod tls;
mod tokens;
pub mod upkeep;
mod uploads;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sublet_proto::{Code, Error};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

pub use bill::{MAX_LINES, MAX_MINUTES};
pub use listen::{ConnectionLimits, MAX_CONNECTIONS};
pub use names::MAX_NAME_BYTES;
pub use options::{ManagerOptions, StoreOptions};
pub use quotas::{
    DEFAULT_GRAPHS, DEFAULT_LEASES_PER_DAY, DEFAULT_PACKAGES, DEFAULT_RUNS, DEFAULT_STORE_BYTES,
};
pub use retention::Retention;
pub use tls::Tls;
pub use tokens::{MAX_LOOKUPS_PER_SECOND, MAX_TOKENS, MAX_UNVERIFIED};

use crate::auth::{Authorizer, GuardedService};
use crate::core::{CoreEvent, Level};
use crate::database::blocking;
use crate::folder::ManagerStateFolder;
use crate::listen::{AcceptedConnection, Intake};
use crate::parts::OpenedParts;
use crate::service::{Methods, Service};
use crate::shell::Shell;
use crate::store_managers::StoreManagers;
use crate::tls::Certificates;

/// Longest time for calls in progress when the manager stops.
const STOP_GRACE: Duration = Duration::from_millis(500);
/// Longest time for the ledger when the manager stops.
const LAST_ENTRIES: Duration = Duration::from_secs(5);
/// Calls of one connection that run at the same time; further ones wait in the connection.
const MAX_CALLS_PER_CONNECTION: u32 = 256;
/// Interval at which a silent connection is probed, and the time limit for the answer.
const KEEPALIVE: Duration = Duration::from_secs(20);
const KEEPALIVE_ANSWER: Duration = Duration::from_secs(10);
/// Longest metadata of a request, in bytes.
const MAX_HEADER_BYTES: u32 = 16 << 10;

/// A running manager. Dropping it stops it at once; [`Manager::stop`] does so in order.
pub struct Manager {
    socket: PathBuf,
    addresses: Vec<SocketAddr>,
    shell: Arc<Shell>,
    store_managers: Arc<StoreManagers>,
    /// Dropped or used to end the server.
    shutdown: Option<oneshot::Sender<()>>,
    server: JoinHandle<()>,
    /// Aborted when the manager is dropped.
    intake: JoinSet<()>,
    background: JoinSet<()>,
    /// Dropped last: the next manager may start as soon as it is free.
    _folder: ManagerStateFolder,
}

impl Manager {
    /// Opens the state folder and serves its socket and addresses, on the current tokio runtime.
    ///
    /// # Errors
    ///
    /// - [`Code::AlreadyRunning`] if another process has the folder, the socket or an address.
    /// - [`Code::StoreFull`] if the folder's disk is full.
    /// - [`Code::StoreUnreachable`] if the store does not answer.
    /// - [`Code::PermissionDenied`] if the folder belongs to another user.
    /// - [`Code::InvalidArgument`] if the socket's path, an address or a certificate is not possible, or a global
    ///   manager's store is one for a single manager.
    /// - [`Code::System`] otherwise.
    pub async fn start(options: ManagerOptions) -> Result<Manager, Error> {
        options.tls.check(&options.listen)?;
        check_level(&options)?;
        let listeners = listen::bind_all(&options.listen).await?;
        let addresses = listeners.iter().map(listen::address).collect::<Result<Vec<_>, _>>()?;
        let ManagerOptions { socket, connections: limits, retention, store, .. } = options.clone();
        let bound = addresses.clone();
        let opened = blocking(move || parts::open(&options, &bound)).await?;
        let unix = folder::listen(&socket)?;
        let service = opened.shared.service(opened.folder.file(secrets::KEY_FILE));
        let background = background::start_all(&opened, retention, store).await?;
        let OpenedParts { folder, certificates, shared, .. } = opened;
        let (intake, connections) = accept(&limits, listeners, unix, certificates.as_ref());
        let (shutdown, stopped) = oneshot::channel();
        let server = tokio::spawn(serve(connections, service, shared.authorizer, stopped));
        Ok(Manager {
            socket,
            addresses,
            shell: shared.shell,
            store_managers: shared.store_managers,
            shutdown: Some(shutdown),
            server,
            intake,
            background,
            _folder: folder,
        })
    }

    /// The Unix socket on which it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the TCP addresses on which it listens, in the order of the options.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Lets calls in progress end, for a moment, and writes data that is not stored yet.
    ///
    /// # Errors
    ///
    /// The store's error if the usage of some leases could not be stored.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.intake.shutdown().await;
        drop(self.shutdown.take());
        if tokio::time::timeout(STOP_GRACE, &mut self.server).await.is_err() {
            self.server.abort();
        }
        if let Err(error) = std::fs::remove_file(&self.socket) {
            tracing::warn!(socket = %self.socket.display(), %error, "the socket cannot be removed");
        }
        self.shell.tell([CoreEvent::Tick])?;
        let settled = self.shell.ledger.settle(LAST_ENTRIES).await;
        self.background.shutdown().await;
        let left = self.store_managers.leave().await;
        settled.and(left)
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Checks that a global manager's store allows racks below it.
fn check_level(options: &ManagerOptions) -> Result<(), Error> {
    match (options.level, &options.store) {
        (Level::Global, StoreOptions::Embedded) => {
            let message = "a global manager shares its store with those of its racks: an embedded store is for one manager";
            Err(Error::new(Code::InvalidArgument, message))
        }
        _ => Ok(()),
    }
}

/// Starts the tasks that accept connections, and returns them with the connections.
fn accept(
    limits: &ConnectionLimits,
    listeners: Vec<TcpListener>,
    unix: UnixListener,
    certificates: Option<&Arc<Certificates>>,
) -> (JoinSet<()>, mpsc::Receiver<std::io::Result<AcceptedConnection>>) {
    let mut intake = JoinSet::new();
    let (taker, connections) = Intake::new(limits);
    intake.spawn(taker.places().sweep());
    for listener in listeners {
        intake.spawn(taker.clone().tcp(listener, certificates.cloned()));
    }
    intake.spawn(taker.unix(unix));
    (intake, connections)
}

/// Serves these connections until `stopped` completes.
async fn serve(
    connections: mpsc::Receiver<std::io::Result<AcceptedConnection>>,
    service: Service,
    authorizer: Arc<Authorizer>,
    stopped: oneshot::Receiver<()>,
) {
    let served = Server::builder()
        .max_concurrent_streams(MAX_CALLS_PER_CONNECTION)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_ANSWER))
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .serve_with_incoming_shutdown(
            GuardedService::new(Methods::new(service), authorizer),
            ReceiverStream::new(connections),
            async { drop(stopped.await) },
        );
    if let Err(error) = served.await {
        tracing::error!(%error, "the manager's server failed");
    }
}
