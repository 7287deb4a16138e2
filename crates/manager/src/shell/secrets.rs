//! Finds the secrets that an agent may have: those of a lease that its node runs.

use std::sync::Arc;

use sublet_proto::v1::{Needs, PackageInfo, SecretUse};
use sublet_proto::{Code, Error};

use super::{Shell, parse_lease, unknown_lease};
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
        let lease = state.core.lease(id).ok_or_else(|| unknown_lease(id))?;
        let node = state.core.node(lease.node).map(|node| node.name.clone()).unwrap_or_default();
        caller.check_node(&node)?;
        if !lease.is_active() || lease.provisional {
            return Err(Error::new(Code::LeaseEnded, format!("lease {id} is over, or not verified yet")));
        }
        Ok((Arc::clone(&state.core.tenant(lease.tenant).name), lease.needs.secrets.clone()))
    }
}

/// Needs of a package of which a tenant's process spawns a program. A package of another tenant gets no secrets.
pub(super) fn own_needs(package: &PackageInfo, tenant: &str) -> Arc<Needs> {
    let mut needs = package.needs.clone().unwrap_or_default();
    needs.variables.clear();
    if package.owner != tenant {
        needs.secrets.clear();
    }
    Arc::new(needs)
}
