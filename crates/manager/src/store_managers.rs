//! This manager among the others of its store: the living managers, what tenants use through them, and, for a global
//! manager, the nodes that the others have.

use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use sublet_fabric::sync::{lock, read_lock, write_lock};
use sublet_proto::Error;
use sublet_proto::v1::{Holding, ManagerInfo, NodeGeneration, PeerRecord, TenantUse};

use crate::core::{Core, CoreEvent, Level, RackStanding};
use crate::database::Database;
use crate::ledger::RecordWriter;
use crate::peers::{MAX_HOLDINGS, ManagerReport, Peers, Spending};
use crate::shell::Shell;

/// All managers of a store, seen by one of them.
pub(crate) struct StoreManagers {
    database: Database,
    peers: Arc<Mutex<Peers>>,
    epoch: u64,
    /// Address at which clients and agents reach this manager.
    address: String,
    /// Managers that are alive, this one first.
    managers: RwLock<Vec<ManagerInfo>>,
    /// Nodes that the others missed when they were heard of last.
    missing: Mutex<Vec<NodeGeneration>>,
}

/// Reports of the other managers.
struct PeerReports {
    elsewhere: Vec<(String, TenantUse)>,
    managers: Vec<ManagerInfo>,
    missing: Vec<NodeGeneration>,
    found: Vec<NodeGeneration>,
    racks: Vec<RackStanding>,
}

/// Nodes that are looked up at a time, while the core is locked.
const LOOKED_UP: usize = 256;
/// Intervals at which managers report to each other: the usual one, and the one while a client waits with a global
/// manager for resources that become free with the others.
const PERIOD: Duration = Duration::from_secs(1);
const PERIOD_IN_HASTE: Duration = Duration::from_millis(200);

impl StoreManagers {
    pub(crate) fn new(database: Database, peers: Peers, epoch: u64) -> StoreManagers {
        let (address, managers, missing) = Default::default();
        StoreManagers { database, peers: Arc::new(Mutex::new(peers)), epoch, address, managers, missing }
    }

    /// Sets the address at which clients and agents reach this manager.
    pub(crate) fn at(self, address: String) -> StoreManagers {
        StoreManagers { address, ..self }
    }

    /// Creates the writer of the ledger, which counts spending for the others.
    pub(crate) fn writer(&self) -> RecordWriter {
        RecordWriter::new(Spending::new(self.epoch), Arc::clone(&self.peers))
    }

    /// Every manager that is alive, this one first.
    pub(crate) fn managers(&self) -> Vec<ManagerInfo> {
        read_lock(&self.managers).clone()
    }

    /// The number of this start of a manager.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the addresses of the managers that have nodes.
    pub(crate) fn racks(&self) -> Vec<String> {
        let managers = read_lock(&self.managers);
        managers.iter().filter(|manager| !manager.global).map(|manager| manager.address.clone()).collect()
    }

    /// Returns the time until the next exchange with the others.
    pub(crate) fn period(&self) -> Duration {
        let managers = read_lock(&self.managers);
        let somebody_waits = managers.iter().any(|manager| manager.global && manager.waiting > 0);
        if somebody_waits { PERIOD_IN_HASTE } else { PERIOD }
    }

    /// Tells the others how this manager is, learns how they are, and tells the core. To be called each
    /// [`StoreManagers::period`].
    pub(crate) async fn exchange(&self, shell: &Shell) -> Result<(), Error> {
        let now_ms = shell.clock.now_ms();
        let (mut standing, tenants) = shell.look(|core| (self.standing(core, now_ms), names(core)))?;
        let missing = std::mem::take(&mut *lock(&self.missing));
        for missing in missing.chunks(LOOKED_UP) {
            standing.found.extend(shell.look(|core| core.found(missing))?);
        }
        let (peers, is_global) = (Arc::clone(&self.peers), standing.global);
        let exchanged = self.database.with(move |store| {
            let mut peers = lock(&peers);
            peers.exchange(store, now_ms, standing)?;
            let table = peers.table();
            let all = tenants.into_iter().chain(table.tenants().map(str::to_owned));
            let elsewhere: Vec<(String, TenantUse)> = all
                .map(|tenant| (table.elsewhere(&tenant), tenant))
                .map(|(has, tenant)| (tenant, has))
                .collect();
            let (missing, found) = (table.missing(), table.found());
            let racks = if is_global { table.racks().map(rack_standing).collect() } else { Vec::new() };
            Ok(PeerReports { elsewhere, managers: table.managers().collect(), missing, found, racks })
        });
        let PeerReports { elsewhere, mut managers, missing, found, racks } = exchanged.await?;
        *lock(&self.missing) = missing;
        managers.sort_by_key(|manager| (manager.epoch != self.epoch, manager.epoch));
        *write_lock(&self.managers) = managers;
        for (tenant, has) in elsewhere {
            let key = shell.tenant_key(&tenant)?;
            shell.tell([CoreEvent::Elsewhere(key, has)])?;
        }
        if is_global {
            shell.tell([CoreEvent::Racks(racks)])?;
        }
        // The reports above already count the nodes that other managers have taken over.
        shell.moved(&found)
    }

    fn standing(&self, core: &Core, now_unix_ms: u64) -> ManagerReport {
        let standing = ManagerReport {
            address: self.address.clone(),
            now_unix_ms,
            waiting: u32::try_from(core.waiting()).unwrap_or(u32::MAX),
            ..ManagerReport::default()
        };
        // The racks report the resources that this manager has handed to them.
        if core.level() == Level::Global {
            return ManagerReport { global: true, ..standing };
        }
        let here = || core.nodes().filter(|node| !node.is_lost());
        let cores_free: u64 = here().map(|node| u64::from(node.free().cores)).sum();
        let holdings = core.tenants().filter(|tenant| tenant.own != TenantUse::default());
        let holding = |tenant: &crate::core::Tenant| Holding {
            tenant: tenant.name.to_string(),
            r#use: Some(tenant.own),
        };
        ManagerReport {
            nodes: u32::try_from(here().count()).unwrap_or(u32::MAX),
            cores_free: u32::try_from(cores_free).unwrap_or(u32::MAX),
            holdings: holdings.take(MAX_HOLDINGS).map(holding).collect(),
            missing: core.missing().collect(),
            groups: core.groups(),
            ..standing
        }
    }

    /// Tells the others that this manager is gone.
    pub(crate) async fn leave(&self) -> Result<(), Error> {
        let peers = Arc::clone(&self.peers);
        self.database.with(move |store| lock(&peers).leave(store)).await
    }
}

fn rack_standing(record: &PeerRecord) -> RackStanding {
    let PeerRecord { address, epoch, beat, groups, .. } = record;
    RackStanding { manager: address.clone(), said: (*epoch, *beat), groups: groups.clone() }
}

fn names(core: &Core) -> Vec<String> {
    core.tenants().map(|tenant| tenant.name.to_string()).collect()
}
