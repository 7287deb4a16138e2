//! Grants leases: a pure core in a thin shell of gRPC and a store.
//!
//! ```text
//! service.rs   gRPC on a Unix socket: who calls, packages in pieces
//!    shell.rs  the core and the store under one lock
//!       core/  every decision, without clock, chance or I/O
//!       store/ what outlives the process: SQLite
//! folder.rs    the state folder: private, locked, cleared of what a killed process left
//! ```
//!
//! The manager is never on the path of a call, and it keeps no connection to agents: they report to it, each
//! second, and its answer tells them what to end. See [`core`] for what it promises about leases.
//!
//! ```no_run
//! # async fn example() -> Result<(), sublet_proto::Error> {
//! let manager = sublet_manager::Manager::start(sublet_manager::Options::in_folder("/run/sublet".into())).await?;
//! manager.stop().await
//! # }
//! ```

pub mod core;
mod folder;
mod service;
mod shell;
pub mod store;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sublet_proto::price::DEFAULT_PRICE;
use sublet_proto::v1::Price;
use sublet_proto::v1::manager_server::ManagerServer;
use sublet_proto::v1::nodes_server::NodesServer;
use sublet_proto::{Code, Error};
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;

use crate::core::TICK_MS;
use crate::folder::StateFolder;
use crate::service::{Service, lock, now_ms};
use crate::shell::Shell;
use crate::store::SqliteStore;

/// How long calls in progress may take when the manager stops.
const STOP_GRACE: Duration = Duration::from_millis(500);
/// Calls of one connection that run at the same time; further ones wait in the connection.
const MAX_CALLS_PER_CONNECTION: u32 = 64;

/// How to run a manager.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder of its state; made if it is not there.
    pub state: PathBuf,
    /// The Unix socket on which it listens.
    pub socket: PathBuf,
    /// What new leases cost.
    pub price: Price,
}

impl Options {
    /// The usual: the socket `manager.sock` in the state folder, and default prices.
    pub fn in_folder(state: PathBuf) -> Options {
        Options { socket: state.join("manager.sock"), state, price: DEFAULT_PRICE }
    }
}

/// A running manager. Dropping it stops it at once; [`Manager::stop`] does so in order.
pub struct Manager {
    socket: PathBuf,
    shell: Arc<Mutex<Shell>>,
    /// Dropped or used to end the server.
    shutdown: Option<oneshot::Sender<()>>,
    server: JoinHandle<()>,
    ticker: JoinHandle<()>,
    /// Dropped last: the next manager may start as soon as it is free.
    _folder: StateFolder,
}

impl Manager {
    /// Takes the state folder up and serves its socket, on the current tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Code::AlreadyRunning`] if another process has the folder or the socket, [`Code::StoreFull`] if the
    /// folder's disk is full, [`Code::PermissionDenied`] if the folder belongs to another user,
    /// [`Code::InvalidArgument`] if the socket's path is not possible, [`Code::System`] otherwise.
    pub async fn start(options: Options) -> Result<Manager, Error> {
        let Options { state, socket, price } = options;
        let open = tokio::task::spawn_blocking(move || open(&state, price)).await;
        let (folder, shell) =
            open.map_err(|error| Error::new(Code::Internal, format!("the manager failed: {error}")))??;
        let listener = folder::listen(&socket)?;
        let shell = Arc::new(Mutex::new(shell));
        let (shutdown, stopped) = oneshot::channel();
        let server = tokio::spawn(serve(listener, Service::new(Arc::clone(&shell)), stopped));
        let ticker = tokio::spawn(tick(Arc::clone(&shell)));
        Ok(Manager { socket, shell, shutdown: Some(shutdown), server, ticker, _folder: folder })
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Lets calls in progress end, for a moment, and writes what is not yet stored.
    ///
    /// # Errors
    ///
    /// [`Code::StoreFull`] if the usage of some leases could not be stored.
    pub async fn stop(mut self) -> Result<(), Error> {
        drop(self.shutdown.take());
        if tokio::time::timeout(STOP_GRACE, &mut self.server).await.is_err() {
            self.server.abort();
        }
        self.ticker.abort();
        if let Err(error) = std::fs::remove_file(&self.socket) {
            tracing::warn!(socket = %self.socket.display(), %error, "the socket cannot be removed");
        }
        let shell = Arc::clone(&self.shell);
        let flushed = tokio::task::spawn_blocking(move || lock(&shell)?.flush(now_ms())).await;
        flushed.map_err(|error| Error::new(Code::Internal, format!("the manager failed: {error}")))?
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.server.abort();
        self.ticker.abort();
    }
}

fn open(state: &Path, price: Price) -> Result<(StateFolder, Shell), Error> {
    let folder = StateFolder::open(state)?;
    let store = SqliteStore::open(&folder.file("store.sqlite"))?;
    let shell = Shell::open(Box::new(store), price, now_ms())?;
    Ok((folder, shell))
}

async fn serve(listener: UnixListener, service: Service, stopped: oneshot::Receiver<()>) {
    let manager = InterceptedService::new(ManagerServer::new(service.clone()), service::authenticate);
    let nodes = InterceptedService::new(NodesServer::new(service), service::authenticate);
    let served = Server::builder()
        .max_concurrent_streams(MAX_CALLS_PER_CONNECTION)
        .add_service(manager)
        .add_service(nodes)
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async { drop(stopped.await) });
    if let Err(error) = served.await {
        tracing::error!(%error, "the manager's server failed");
    }
}

async fn tick(shell: Arc<Mutex<Shell>>) {
    let mut interval = tokio::time::interval(Duration::from_millis(TICK_MS));
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let shell = Arc::clone(&shell);
        let ticked = tokio::task::spawn_blocking(move || lock(&shell).map(|mut shell| shell.tick(now_ms())));
        if let Ok(Err(error)) = ticked.await {
            tracing::error!(%error, "the manager's clock stops");
            return;
        }
    }
}
