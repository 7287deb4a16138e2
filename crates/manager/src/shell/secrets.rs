//! Finds the secrets that an agent may have: those of a lease that its node runs. And what spawned programs need.

use std::sync::Arc;

use sublet_proto::Error;
use sublet_proto::v1::{Needs, PackageInfo, SecretUse};

use super::{Shell, parse_lease, verified_lease_of_agent};
use crate::auth::CallerIdentity;

impl Shell {
    /// Returns the tenant of an active, verified lease of the agent's node, and the secrets that the lease uses.
    pub(crate) fn secrets_of(
        &self,
        lease: &str,
        caller: &CallerIdentity,
    ) -> Result<(Arc<str>, Vec<SecretUse>), Error> {
        let id = parse_lease(lease)?;
        let state = self.lock()?;
        let (lease, _) = verified_lease_of_agent(&state.core, id, caller)?;
        Ok((Arc::clone(&state.core.tenant(lease.tenant).name), lease.needs.secrets.clone()))
    }
}

/// Needs of a spawned program of the same package: all of its parent's but the devices, which stay the parent's alone.
pub(super) fn without_devices(needs: &Needs) -> Arc<Needs> {
    Arc::new(Needs { devices: Vec::new(), ..needs.clone() })
}

/// Needs of a package of which a tenant's process spawns a program. A package of another tenant gets no secrets, and none
/// gets devices.
pub(super) fn own_needs(package: &PackageInfo, tenant: &str) -> Arc<Needs> {
    let mut needs = package.needs.clone().unwrap_or_default();
    needs.variables.clear();
    needs.devices.clear();
    if package.owner != tenant {
        needs.secrets.clear();
    }
    Arc::new(needs)
}
