//! Opens the parts of a manager that its calls and its background tasks share.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use sublet_proto::{Code, Error};

use crate::auth::Authorizer;
use crate::bill::Bills;
use crate::clock::Clock;
use crate::core::{Core, CoreSettings, Level};
use crate::database::Database;
use crate::folder::ManagerStateFolder;
use crate::graphs::Graphs;
use crate::options::{ManagerOptions, StoreOptions};
use crate::packages::StorePackages;
use crate::peers::Peers;
use crate::plans::RunPlans;
use crate::quotas::Quotas;
use crate::retention::{Retention, RetentionParts, Sharing};
use crate::runs::StoreRuns;
use crate::secrets::StoreSecrets;
use crate::service::{Service, ServiceParts};
use crate::shell::Shell;
use crate::store::{NatsStore, Store, version};
use crate::store_managers::StoreManagers;
use crate::tenants::StoreTenants;
use crate::tls::Certificates;
use crate::tokens::{Tokens, ValidTokens};
use crate::uploads::Uploads;
use crate::{chance, start, upkeep};

/// The file of the state folder that has the last sequence number of each stream of a store on NATS.
const STREAMS: &str = "streams";

/// Parts that a manager has opened before it serves.
pub(crate) struct OpenedParts {
    pub(crate) folder: ManagerStateFolder,
    pub(crate) certificates: Option<Arc<Certificates>>,
    /// Whether the epoch is not written because the disk is full.
    pub(crate) is_read_only: bool,
    pub(crate) shared: SharedParts,
}

/// Parts that calls and background tasks share.
#[derive(Clone)]
pub(crate) struct SharedParts {
    pub(crate) shell: Arc<Shell>,
    pub(crate) store_managers: Arc<StoreManagers>,
    pub(crate) authorizer: Arc<Authorizer>,
    pub(crate) tenants: Arc<StoreTenants>,
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) bills: Arc<Bills>,
    pub(crate) plans: Arc<RunPlans>,
    pub(crate) database: Database,
}

impl SharedParts {
    /// Creates the gRPC services. `secrets_file` holds the key that encrypts the secrets of tenants.
    pub(crate) fn service(&self, secrets_file: PathBuf) -> Service {
        let (database, clock) = (&self.database, self.shell.clock);
        Service::new(ServiceParts {
            shell: Arc::clone(&self.shell),
            authorizer: Arc::clone(&self.authorizer),
            tenants: Arc::clone(&self.tenants),
            packages: StorePackages::new(database.clone(), clock),
            graphs: Graphs::new(database.clone(), clock),
            runs: StoreRuns::new(database.clone()),
            plans: Arc::clone(&self.plans),
            secrets: StoreSecrets::new(database.clone(), clock, secrets_file),
            bills: Arc::clone(&self.bills),
            database: database.clone(),
            store_managers: Arc::clone(&self.store_managers),
            uploads: Uploads::new(),
            quotas: Arc::clone(&self.quotas),
        })
    }

    /// Creates the task that removes what has ended long ago.
    pub(crate) fn retention(&self, retention: Retention, sharing: Sharing) -> RetentionParts {
        let clock = self.shell.clock;
        RetentionParts {
            clock,
            bills: Arc::clone(&self.bills),
            runs: StoreRuns::new(self.database.clone()),
            packages: StorePackages::new(self.database.clone(), clock),
            quotas: Arc::clone(&self.quotas),
            store_managers: Arc::clone(&self.store_managers),
            database: self.database.clone(),
            sharing,
            retention,
        }
    }
}

/// Opens the state folder and the store of a manager that listens on these addresses.
pub(crate) fn open(options: &ManagerOptions, addresses: &[SocketAddr]) -> Result<OpenedParts, Error> {
    let folder = ManagerStateFolder::open(&options.state)?;
    let mut store: Box<dyn Store> = match &options.store {
        StoreOptions::Embedded => Box::new(upkeep::open(&folder)?),
        StoreOptions::Nats(servers) => Box::new(NatsStore::open_noting(servers, &folder.file(STREAMS))?),
    };
    version::check(&*store)?;
    let clock = Clock::start();
    let (epoch, is_read_only) = take_epoch(&mut *store, &options.store)?;
    let signing = start::signing(&mut *store, &options.state)?;
    if !is_read_only {
        migrate(&mut *store)?;
    }
    let certificates = open_certificates(options, &mut *store)?;
    let core = new_core(options, epoch)?;
    // Tickets are signed by a key that outlives the machine.
    store.unsynced().map_or(Ok(()), |sync| sync.sync())?;
    let known = ValidTokens::read(&*store, clock.now_ms())?;
    let peers = Peers::join(&*store, epoch)?;
    let database = Database::new(store);
    let shell = Shell::new(core, signing, database.clone(), clock)?;
    let address = own_address(options, addresses, certificates.is_some());
    let store_managers = StoreManagers::new(database.clone(), peers, epoch).at(address);
    let authorizer = Authorizer::new(Tokens::new(database.clone(), known), clock);
    authorizer.set_read_only(is_read_only);
    let shared = SharedParts {
        shell: Arc::new(shell),
        store_managers: Arc::new(store_managers),
        authorizer: Arc::new(authorizer),
        tenants: Arc::new(StoreTenants::new(database.clone())),
        quotas: Arc::new(Quotas::new(database.clone())),
        bills: Arc::new(Bills::new(database.clone(), clock)),
        plans: Arc::new(RunPlans::new(options.watermark_permille, options.level)),
        database,
    };
    Ok(OpenedParts { folder, certificates, is_read_only, shared })
}

/// Takes a new epoch from the store, and tells whether the disk is too full to write it.
fn take_epoch(store: &mut dyn Store, options: &StoreOptions) -> Result<(u64, bool), Error> {
    match start::next_epoch(store) {
        // The embedded store has one manager, so no other takes the number meanwhile.
        Err(error) if error.code == Code::StoreFull && matches!(options, StoreOptions::Embedded) => {
            tracing::error!(%error, "the manager is read-only until the disk has free space");
            Ok((start::unwritten_epoch(store)?, true))
        }
        epoch => Ok((epoch?, false)),
    }
}

/// Brings the store to the format of this version, and logs which packages became public.
fn migrate(store: &mut dyn Store) -> Result<(), Error> {
    let migrated = start::migrate(store)?;
    if migrated > 0 {
        tracing::warn!(
            migrated,
            "packages of a store in which names had no owners are public now: `sublet package list` shows them"
        );
    }
    Ok(())
}

/// Opens the certificates of the TCP addresses; `None` without such addresses or without encryption.
fn open_certificates(
    options: &ManagerOptions,
    store: &mut dyn Store,
) -> Result<Option<Arc<Certificates>>, Error> {
    if options.listen.is_empty() {
        return Ok(None);
    }
    let reached = (&*options.listen, options.advertise.as_deref());
    Ok(Certificates::open(&options.tls, reached, &options.state, store)?.map(Arc::new))
}

fn new_core(options: &ManagerOptions, epoch: u64) -> Result<Core, Error> {
    let ManagerOptions { prices, queue, balanced_bytes, level, .. } = options.clone();
    let seed = u64::from_le_bytes(chance::secret()?);
    let settings = CoreSettings { epoch, seed, prices, queue, balanced_bytes };
    Ok(match level {
        Level::Rack => Core::new(settings),
        Level::Global => Core::global(settings),
    })
}

/// Returns the address at which clients and agents reach the manager.
fn own_address(options: &ManagerOptions, addresses: &[SocketAddr], is_encrypted: bool) -> String {
    let scheme = if is_encrypted { "https" } else { "http" };
    match (&options.advertise, addresses.first()) {
        (Some(address), _) => address.clone(),
        (None, Some(address)) => format!("{scheme}://{address}"),
        (None, None) => format!("unix:{}", options.socket.display()),
    }
}
