//! This manager among the others of its store: who they are, and what tenants have by them.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use sublet_proto::Error;
use sublet_proto::v1::{Holding, ManagerInfo, NodeGeneration, TenantUse};

use crate::core::{Core, Event};
use crate::database::Database;
use crate::ledger::Writer;
use crate::peers::{MAX_HOLDINGS, Peers, Spending, Standing};
use crate::shell::Shell;

/// All managers of a store, seen by one of them.
pub(crate) struct Fleet {
    database: Database,
    peers: Arc<Mutex<Peers>>,
    epoch: u64,
    /// Where clients and agents reach this manager.
    address: String,
    /// Those that are alive, this one first.
    managers: RwLock<Vec<ManagerInfo>>,
    /// Nodes that the others missed when they were heard of last.
    missing: Mutex<Vec<NodeGeneration>>,
}

/// What the others have said.
struct Heard {
    elsewhere: Vec<(String, TenantUse)>,
    managers: Vec<ManagerInfo>,
    missing: Vec<NodeGeneration>,
    found: Vec<NodeGeneration>,
}

/// Nodes that are looked up at a time, while the core is locked.
const LOOKED_UP: usize = 256;

impl Fleet {
    pub(crate) fn new(database: Database, peers: Peers, epoch: u64) -> Fleet {
        let (address, managers, missing) = Default::default();
        Fleet { database, peers: Arc::new(Mutex::new(peers)), epoch, address, managers, missing }
    }

    /// Where clients and agents reach this manager.
    pub(crate) fn at(self, address: String) -> Fleet {
        Fleet { address, ..self }
    }

    /// Writes the ledger with what it counts for the others.
    pub(crate) fn writer(&self) -> Writer {
        Writer::new(Spending::new(self.epoch), Arc::clone(&self.peers))
    }

    /// Every manager that is alive, this one first.
    pub(crate) fn managers(&self) -> Vec<ManagerInfo> {
        self.managers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where they are.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let managers = self.managers.read().unwrap_or_else(PoisonError::into_inner);
        managers.iter().map(|manager| manager.address.clone()).collect()
    }

    /// Tells the others how this manager is, learns how they are, and tells the core. To be called each second.
    pub(crate) async fn exchange(&self, shell: &Shell) -> Result<(), Error> {
        let now_ms = shell.clock.now_ms();
        let (mut standing, tenants) = shell.look(|core| (self.standing(core, now_ms), names(core)))?;
        let missing = std::mem::take(&mut *self.missing.lock().unwrap_or_else(PoisonError::into_inner));
        for missing in missing.chunks(LOOKED_UP) {
            standing.found.extend(shell.look(|core| core.found(missing))?);
        }
        let peers = Arc::clone(&self.peers);
        let exchanged = self.database.with(move |store| {
            let mut peers = peers.lock().unwrap_or_else(PoisonError::into_inner);
            peers.exchange(store, now_ms, standing)?;
            let table = peers.table();
            let all = tenants.into_iter().chain(table.tenants().map(str::to_owned));
            let elsewhere: Vec<(String, TenantUse)> = all
                .map(|tenant| (table.elsewhere(&tenant), tenant))
                .map(|(has, tenant)| (tenant, has))
                .collect();
            let (missing, found) = (table.missing(), table.found());
            Ok(Heard { elsewhere, managers: table.managers().collect(), missing, found })
        });
        let Heard { elsewhere, mut managers, missing, found } = exchanged.await?;
        *self.missing.lock().unwrap_or_else(PoisonError::into_inner) = missing;
        managers.sort_by_key(|manager| (manager.epoch != self.epoch, manager.epoch));
        *self.managers.write().unwrap_or_else(PoisonError::into_inner) = managers;
        for (tenant, has) in elsewhere {
            let key = shell.tenant_key(&tenant)?;
            shell.tell([Event::Elsewhere(key, has)])?;
        }
        // What they have taken over is counted by now.
        shell.moved(&found)
    }

    fn standing(&self, core: &Core, now_unix_ms: u64) -> Standing {
        let here = || core.nodes().filter(|node| !node.is_lost());
        let cores_free: u64 = here().map(|node| u64::from(node.free().cores)).sum();
        let holdings = core.tenants().filter(|tenant| tenant.own != TenantUse::default());
        let holding = |tenant: &crate::core::Tenant| Holding {
            tenant: tenant.name.to_string(),
            r#use: Some(tenant.own),
        };
        Standing {
            address: self.address.clone(),
            now_unix_ms,
            nodes: u32::try_from(here().count()).unwrap_or(u32::MAX),
            cores_free: u32::try_from(cores_free).unwrap_or(u32::MAX),
            holdings: holdings.take(MAX_HOLDINGS).map(holding).collect(),
            missing: core.missing().collect(),
            found: Vec::new(),
        }
    }

    /// Tells the others that this manager is gone.
    pub(crate) async fn leave(&self) -> Result<(), Error> {
        let peers = Arc::clone(&self.peers);
        self.database
            .with(move |store| peers.lock().unwrap_or_else(PoisonError::into_inner).leave(store))
            .await
    }
}

fn names(core: &Core) -> Vec<String> {
    core.tenants().map(|tenant| tenant.name.to_string()).collect()
}
