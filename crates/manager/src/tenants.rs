//! Tenants and their quotas in the store.
//!
//! A tenant exists once an operator has set its quota, or a token or a lease names it; without a quota its use is not
//! limited. Managers read the quotas again within a second of a change by any of them.

use std::collections::HashMap;
use std::sync::Mutex;

use prost::Message;
use sublet_fabric::sync::lock;
use sublet_proto::v1::{Quota, Tenant};
use sublet_proto::{Error, decode};

use crate::chance;
use crate::database::Database;
use crate::names;
use crate::store::{Batch, Store, each_record, keys};

/// Written with each change of a tenant: readers only compare its version.
const REVISION: &str = "auth/tenants-revision";
const REVISION_BYTES: usize = 16;

/// Quota of all tenants without a verified token together: enough to start with, and bounded because it may be lost.
pub(crate) const UNVERIFIED_QUOTA: Quota = Quota { cores: Some(64), leases: Some(64), ..NO_QUOTA };
const NO_QUOTA: Quota = Quota {
    cores: None,
    memory_bytes: None,
    leases: None,
    spend_nano: None,
    store_bytes: None,
    packages: None,
    graphs: None,
    runs: None,
    leases_per_day: None,
    compute_pool_bytes: None,
    memory_pool_bytes: None,
    balanced_pool_bytes: None,
    swap: None,
    flash_pool_bytes: None,
};

/// The tenants of a store.
pub(crate) struct StoreTenants {
    database: Database,
    /// Revision at which they were read; `None` before the first time.
    revision: Mutex<Option<u64>>,
}

impl StoreTenants {
    pub(crate) fn new(database: Database) -> StoreTenants {
        StoreTenants { database, revision: Mutex::new(None) }
    }

    /// Returns all quotas, if any manager has changed one since the last time. Call it each second.
    pub(crate) async fn refresh(&self) -> Result<Option<HashMap<String, Quota>>, Error> {
        let last = *lock(&self.revision);
        let read = self.database.with(move |store| {
            // The revision is read first: a change while the tenants are read is read again the next time.
            let revision = store.get(REVISION)?.map_or(0, |found| found.version);
            if Some(revision) == last {
                return Ok(None);
            }
            let tenants =
                all(store)?.into_iter().map(|tenant| (tenant.name, tenant.quota.unwrap_or_default()));
            Ok(Some((revision, tenants.collect())))
        });
        let Some((revision, quotas)) = read.await? else { return Ok(None) };
        *lock(&self.revision) = Some(revision);
        Ok(Some(quotas))
    }

    /// Sets a tenant's quota, for all managers.
    pub(crate) async fn set(&self, name: &str, quota: Quota) -> Result<(), Error> {
        names::check_tenant(name)?;
        let tenant = Tenant { name: name.to_owned(), quota: Some(quota), ..Tenant::default() };
        self.database
            .with(move |store| {
                let mut batch = Batch::default();
                batch.put(format!("{}{}", keys::TENANT, tenant.name), tenant.encode_to_vec());
                batch.put(REVISION.into(), chance::secret::<REVISION_BYTES>()?.to_vec());
                store.commit(&batch)
            })
            .await
    }

    /// Returns the tenants that have a quota.
    pub(crate) async fn list(&self) -> Result<Vec<Tenant>, Error> {
        self.database.with(|store| all(store)).await
    }
}

fn all(store: &dyn Store) -> Result<Vec<Tenant>, Error> {
    let mut tenants = Vec::new();
    each_record(store, keys::TENANT, |found| {
        tenants.push(decode::<Tenant>("a stored tenant", &found.value)?);
        Ok(())
    })?;
    Ok(tenants)
}
