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

mod auth;
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
mod packages;
pub mod peers;
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

use sublet_proto::price::Prices;
use sublet_proto::{Code, Error};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

pub use bill::{MAX_LINES, MAX_MINUTES};
pub use listen::{ConnectionLimits, MAX_CONNECTIONS};
pub use names::MAX_NAME_BYTES;
pub use quotas::{
    DEFAULT_GRAPHS, DEFAULT_LEASES_PER_DAY, DEFAULT_PACKAGES, DEFAULT_RUNS, DEFAULT_STORE_BYTES,
};
pub use retention::Retention;
pub use tls::Tls;
pub use tokens::{MAX_LOOKUPS_PER_SECOND, MAX_TOKENS, MAX_UNVERIFIED};

use crate::auth::{Authorizer, GuardedService};
use crate::bill::Bills;
use crate::clock::Clock;
use crate::core::{Core, CoreEvent, CoreSettings, Level, QueueLimits, TICK_MS};
use crate::database::{Database, blocking};
use crate::folder::ManagerStateFolder;
use crate::graphs::Graphs;
use crate::listen::{AcceptedConnection, Intake};
use crate::packages::StorePackages;
use crate::peers::Peers;
use crate::quotas::Quotas;
use crate::retention::{RetentionParts, Sharing};
use crate::runs::StoreRuns;
use crate::secrets::StoreSecrets;
use crate::service::{Methods, Service, ServiceParts};
use crate::shell::Shell;
use crate::store::{NatsOptions, NatsStore, Store, version};
use crate::store_managers::StoreManagers;
use crate::tenants::StoreTenants;
use crate::tls::Certificates;
use crate::tokens::Tokens;
use crate::uploads::Uploads;

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
/// The file of the state folder that has the last sequence number of each stream of a store on NATS.
const STREAMS: &str = "streams";
/// Interval at which tokens and quotas are refreshed.
const REFRESH: Duration = Duration::from_secs(1);
/// Interval at which all of a store on NATS is read and compared.
const RECHECK: Duration = Duration::from_secs(6 * 60 * 60);
/// Interval at which packages and graphs without references are removed from the store.
const COLLECTION: Duration = Duration::from_secs(60 * 60);

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
            retention: Retention::default(),
            level: Level::Rack,
        }
    }
}

impl ManagerOptions {
    /// Checks that a global manager's store allows racks below it.
    fn check_level(&self) -> Result<(), Error> {
        match (self.level, &self.store) {
            (Level::Global, StoreOptions::Embedded) => {
                let message = "a global manager shares its store with those of its racks: an embedded store is for one manager";
                Err(Error::new(Code::InvalidArgument, message))
            }
            _ => Ok(()),
        }
    }
}

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
    chores: JoinSet<()>,
    /// Dropped last: the next manager may start as soon as it is free.
    _folder: ManagerStateFolder,
}

/// Parts that a manager has opened before it serves.
struct OpenedParts {
    folder: ManagerStateFolder,
    store_managers: StoreManagers,
    database: Database,
    tokens: Tokens,
    shell: Shell,
    certificates: Option<Arc<Certificates>>,
    /// Whether the epoch is not written because the disk is full.
    is_read_only: bool,
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
        let mut listeners = Vec::new();
        options.tls.check(&options.listen)?;
        options.check_level()?;
        for &address in &options.listen {
            listeners.push(listen::bind(address).await?);
        }
        let address = |listener: &tokio::net::TcpListener| {
            listener
                .local_addr()
                .map_err(|error| Error::new(Code::System, format!("a listener has no address: {error}")))
        };
        let addresses = listeners.iter().map(address).collect::<Result<Vec<_>, _>>()?;
        let ManagerOptions { socket, advertise, connections: limits, retention, store, .. } = options.clone();
        let opened = blocking(move || open(&options)).await?;
        let OpenedParts { folder, store_managers, database, tokens, shell, certificates, is_read_only } =
            opened;
        let secrets_file = folder.file(secrets::KEY_FILE);
        let unix = folder::listen(&socket)?;

        let scheme = if certificates.is_some() { "https" } else { "http" };
        let address = match (advertise, addresses.first()) {
            (Some(address), _) => address,
            (None, Some(address)) => format!("{scheme}://{address}"),
            (None, None) => format!("unix:{}", socket.display()),
        };
        let (shell, store_managers) = (Arc::new(shell), Arc::new(store_managers.at(address)));
        let authorizer = Arc::new(Authorizer::new(tokens, shell.clock));
        authorizer.set_read_only(is_read_only);
        let tenants = Arc::new(StoreTenants::new(database.clone()));
        let quotas = Arc::new(Quotas::new(database.clone()));
        let bills = Arc::new(Bills::new(database.clone(), shell.clock));
        let service = Service::new(ServiceParts {
            shell: Arc::clone(&shell),
            authorizer: Arc::clone(&authorizer),
            tenants: Arc::clone(&tenants),
            packages: StorePackages::new(database.clone(), shell.clock),
            graphs: Graphs::new(database.clone(), shell.clock),
            runs: StoreRuns::new(database.clone()),
            secrets: StoreSecrets::new(database.clone(), shell.clock, secrets_file),
            bills: Arc::clone(&bills),
            database: database.clone(),
            store_managers: Arc::clone(&store_managers),
            uploads: Uploads::new(),
            quotas: Arc::clone(&quotas),
        });
        let mut chores = JoinSet::new();
        refresh(&shell, &authorizer, &tenants, &quotas).await?;
        if is_read_only {
            chores.spawn(leave_read_only(database.clone(), Arc::clone(&authorizer)));
        } else {
            store_managers.exchange(&shell).await?;
        }
        chores.spawn(collect_garbage(Arc::clone(&shell), database.clone()));
        let sharing = match store {
            StoreOptions::Embedded => Sharing::Own,
            StoreOptions::Nats(_) => Sharing::Shared,
        };
        let keeper = RetentionParts {
            clock: shell.clock,
            bills,
            runs: StoreRuns::new(database.clone()),
            packages: StorePackages::new(database.clone(), shell.clock),
            quotas: Arc::clone(&quotas),
            store_managers: Arc::clone(&store_managers),
            database,
            sharing,
            retention,
        };
        chores.spawn(keeper.keep(every(COLLECTION)));
        if let StoreOptions::Nats(servers) = store {
            chores.spawn(recheck(servers));
        }
        chores.spawn(keep_ledger(Arc::clone(&shell), Arc::clone(&store_managers)));
        chores.spawn(keep_company(Arc::clone(&shell), Arc::clone(&store_managers)));
        chores.spawn(tick(Arc::clone(&shell)));
        chores.spawn(keep_fresh(Arc::clone(&shell), Arc::clone(&authorizer), tenants, quotas));
        let mut intake = JoinSet::new();
        let (taker, connections) = Intake::new(&limits);
        intake.spawn(taker.places().sweep());
        for listener in listeners {
            intake.spawn(taker.clone().tcp(listener, certificates.clone()));
        }
        intake.spawn(taker.unix(unix));
        if let Some(certificates) = certificates {
            chores.spawn(keep_certified(certificates));
        }
        let (shutdown, stopped) = oneshot::channel();
        let server = tokio::spawn(serve(connections, service, authorizer, stopped));
        Ok(Manager {
            socket,
            addresses,
            shell,
            store_managers,
            shutdown: Some(shutdown),
            server,
            intake,
            chores,
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
        self.chores.shutdown().await;
        let left = self.store_managers.leave().await;
        settled.and(left)
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn open(options: &ManagerOptions) -> Result<OpenedParts, Error> {
    let folder = ManagerStateFolder::open(&options.state)?;
    let mut store: Box<dyn Store> = match &options.store {
        StoreOptions::Embedded => Box::new(upkeep::open(&folder)?),
        StoreOptions::Nats(servers) => Box::new(NatsStore::open_noting(servers, &folder.file(STREAMS))?),
    };
    version::check(&*store)?;
    let clock = Clock::start();
    let (epoch, is_read_only) = match start::next_epoch(&mut *store) {
        // The embedded store has one manager, so no other takes the number meanwhile.
        Err(error) if error.code == Code::StoreFull && matches!(options.store, StoreOptions::Embedded) => {
            tracing::error!(%error, "the manager is read-only until the disk has free space");
            (start::unwritten_epoch(&*store)?, true)
        }
        epoch => (epoch?, false),
    };
    let signing = start::signing(&mut *store, &options.state)?;
    let migrated = if is_read_only { 0 } else { migrate(&mut *store)? };
    if migrated > 0 {
        tracing::warn!(
            migrated,
            "packages of a store in which names had no owners are public now: `sublet package list` shows them"
        );
    }
    let certificates = if options.listen.is_empty() {
        None
    } else {
        Certificates::open(
            &options.tls,
            (&options.listen, options.advertise.as_deref()),
            &options.state,
            &mut *store,
        )?
        .map(Arc::new)
    };
    let ManagerOptions { prices, queue, balanced_bytes, level, .. } = options.clone();
    let seed = u64::from_le_bytes(chance::secret()?);
    let settings = CoreSettings { epoch, seed, prices, queue, balanced_bytes };
    let core = match level {
        Level::Rack => Core::new(settings),
        Level::Global => Core::global(settings),
    };
    // Tickets are signed by a key that outlives the machine.
    store.unsynced().map_or(Ok(()), |sync| sync.sync())?;
    let known = tokens::ValidTokens::read(&*store, clock.now_ms())?;
    let peers = Peers::join(&*store, epoch)?;
    let database = Database::new(store);
    let shell = Shell::new(core, signing, database.clone(), clock)?;
    let store_managers = StoreManagers::new(database.clone(), peers, epoch);
    let tokens = Tokens::new(database.clone(), known);
    Ok(OpenedParts { folder, store_managers, tokens, database, shell, certificates, is_read_only })
}

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

/// Brings the records of an earlier version to the format of this one. Returns the number of migrated packages.
fn migrate(store: &mut dyn Store) -> Result<usize, Error> {
    version::mark(store)?;
    packages::migrate(store)
}

/// Makes a manager that has started on a full disk writable as soon as the disk has free space.
async fn leave_read_only(database: Database, authorizer: Arc<Authorizer>) {
    let mut interval = every(REFRESH);
    loop {
        interval.tick().await;
        // Keeps the reserve: if the disk has no more than it, users soon fill the disk again.
        let begun = database.keeping_reserve(|store| {
            start::next_epoch(store)?;
            migrate(store)
        });
        if begun.await.is_ok() {
            authorizer.set_read_only(false);
            tracing::warn!("the disk has free space again: the manager is no longer read-only");
            return;
        }
    }
}

async fn collect_garbage(shell: Arc<Shell>, database: Database) {
    let mut interval = every(COLLECTION);
    loop {
        interval.tick().await;
        match garbage::collect(&database, &shell.clock, || shell.packages()).await {
            Ok(garbage::RemovedBlobs { blobs: 0, .. }) => {}
            Ok(garbage::RemovedBlobs { blobs, bytes }) => {
                tracing::info!(blobs, bytes, "packages and graphs that nothing refers to are removed");
            }
            Err(error) => tracing::debug!(%error, "packages and graphs that nothing refers to stay"),
        }
    }
}

/// Reads all of a store on NATS at intervals, on a connection of its own, completes the second copies of records, and
/// logs records that its servers have damaged or dropped.
async fn recheck(servers: NatsOptions) {
    let mut interval = every(RECHECK);
    loop {
        interval.tick().await;
        let servers = servers.clone();
        match blocking(move || upkeep::check_and_copy_nats(&servers)).await {
            Ok(store::AuditReport { lost, restored, notes, .. }) => {
                for note in notes {
                    tracing::error!(note, "the store is damaged: `sublet store check`");
                }
                if !lost.is_empty() {
                    tracing::error!(
                        records = store::listed(&lost),
                        "the store is damaged: `sublet store check`"
                    );
                }
                if !restored.is_empty() {
                    let records = store::listed(&restored);
                    tracing::error!(
                        records,
                        "the servers of the store have lost records: `sublet store repair` puts them back"
                    );
                }
            }
            Err(error) => tracing::warn!(%error, "the store is not checked now"),
        }
    }
}

async fn keep_ledger(shell: Arc<Shell>, store_managers: Arc<StoreManagers>) {
    shell.keep_ledger(store_managers.writer()).await;
}

/// Tells the other managers how this one is, and learns how they are.
async fn keep_company(shell: Arc<Shell>, store_managers: Arc<StoreManagers>) {
    let mut is_failing = false;
    loop {
        tokio::time::sleep(store_managers.period()).await;
        let exchanged = store_managers.exchange(&shell).await;
        if let Err(error) = &exchanged
            && !is_failing
        {
            tracing::error!(%error, "the other managers cannot be heard of");
        }
        is_failing = exchanged.is_err();
    }
}

async fn tick(shell: Arc<Shell>) {
    let mut interval = every(Duration::from_millis(TICK_MS));
    loop {
        interval.tick().await;
        if let Err(error) = shell.tell([CoreEvent::Tick]) {
            tracing::error!(%error, "the manager's clock stops");
            return;
        }
    }
}

/// Takes over other managers' changes of tokens and quotas, and ends the leases of removed tokens.
async fn keep_fresh(
    shell: Arc<Shell>,
    authorizer: Arc<Authorizer>,
    tenants: Arc<StoreTenants>,
    quotas: Arc<Quotas>,
) {
    let mut interval = every(REFRESH);
    let mut is_failing = false;
    loop {
        interval.tick().await;
        let refreshed = refresh(&shell, &authorizer, &tenants, &quotas).await;
        if let Err(error) = &refreshed
            && !is_failing
        {
            tracing::error!(%error, "tokens and quotas stay as they were: the store cannot be read");
        }
        is_failing = refreshed.is_err();
    }
}

async fn refresh(
    shell: &Shell,
    authorizer: &Authorizer,
    tenants: &StoreTenants,
    limits: &Quotas,
) -> Result<(), Error> {
    let now_ms = shell.clock.now_ms();
    let read = authorizer.tokens.refresh(now_ms).await;
    // Tokens expire even when the store is away.
    shell.end_revoked(|token| authorizer.tokens.is_valid(token, now_ms))?;
    read?;
    if let Some(quotas) = tenants.refresh().await? {
        limits.set(quotas.clone());
        shell.set_quotas(quotas)?;
    }
    Ok(())
}

async fn keep_certified(certificates: Arc<Certificates>) {
    let mut interval = every(tls::RENEWAL);
    // The first one is due at once, and they have just been made.
    interval.tick().await;
    loop {
        interval.tick().await;
        let certificates = Arc::clone(&certificates);
        if let Err(error) = blocking(move || certificates.renew()).await {
            tracing::error!(%error, "the certificate stays as it was");
        }
    }
}

fn every(period: Duration) -> tokio::time::Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}
