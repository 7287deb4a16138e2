//! Leases for programs that processes spawn (Molecule, section 3.4): their agents request them on their behalf.

use std::sync::Arc;

use sublet_proto::limits::MAX_TIMEOUT_MS;
use sublet_proto::v1::{LeaseGrant, LeaseRequest, PackageInfo, ProcessLeaseRequest, WorkerOptions};
use sublet_proto::{Code, Error};

use super::secrets::{own_needs, without_devices};
use super::{PreparedRequest, RequestOutcome, Shell, lease_of_agent, parse_lease, verified_lease_of_agent};
use crate::auth::CallerIdentity;
use crate::core::{LeaseTerms, Locality, Refusals, TokenStatus};

/// Options of workers without callers: the smallest inbox.
const UNCALLED: WorkerOptions = WorkerOptions {
    slots: 1,
    slot_bytes: 64,
    hot_timeout_ns: 0,
    swap_bytes: 0,
    cores: 0,
    swap_if_possible: false,
};

impl Shell {
    /// Grants a core for a program of a lease's tenant, on the node of the lease or on one that is linked with it. The
    /// program runs the lease's package unless the request names another.
    pub(crate) async fn lease_for_process(
        &self,
        request: &ProcessLeaseRequest,
        package: Option<Arc<PackageInfo>>,
        caller: &CallerIdentity,
    ) -> Result<LeaseGrant, Error> {
        let wanted = self.wanted_for_process(request, package, caller)?;
        match self.request(wanted).await? {
            RequestOutcome::Leases(mut granted) => match granted.pop() {
                Some(granted) => Ok(self.sign_one(granted)),
                None => Err(Error::new(Code::Internal, "a grant without a lease")),
            },
            RequestOutcome::Handed(_) => {
                Err(Error::new(Code::Internal, "a program was handed to another manager"))
            }
        }
    }

    /// Returns the tenant of the lease for whose process an agent asks.
    pub(crate) fn tenant_of(&self, lease: &str, caller: &CallerIdentity) -> Result<Arc<str>, Error> {
        let id = parse_lease(lease)?;
        let state = self.lock()?;
        let (lease, _) = lease_of_agent(&state.core, id, caller)?;
        Ok(Arc::clone(&state.core.tenant(lease.tenant).name))
    }

    fn wanted_for_process(
        &self,
        request: &ProcessLeaseRequest,
        package: Option<Arc<PackageInfo>>,
        caller: &CallerIdentity,
    ) -> Result<PreparedRequest, Error> {
        let ProcessLeaseRequest { lease: id, unit, .. } = request;
        let id = parse_lease(id)?;
        let state = self.lock()?;
        let (lease, node) = verified_lease_of_agent(&state.core, id, caller)?;
        let (beside, kind) = state.core.beside(lease.node, *unit).ok_or_else(|| {
            let message = format!(
                "processing unit {unit:x} is neither of node {node} nor of a node that is linked with it"
            );
            Error::new(Code::InvalidArgument, message)
        })?;
        let workers = u64::from(lease.amount.workers.max(1));
        Ok(PreparedRequest {
            request: None,
            tenant: state.core.tenant(lease.tenant).name.clone(),
            // If the token is revoked, this lease ends, too.
            token: state.taken.token(id).parse().ok(),
            standing: TokenStatus::Verified,
            pu: kind,
            needs: match &package {
                Some(package) => own_needs(package, &state.core.tenant(lease.tenant).name),
                None => without_devices(&lease.needs),
            },
            package: package.unwrap_or_else(|| lease.package.clone()),
            terms: LeaseTerms::of(&LeaseRequest {
                cores: 1,
                memory_bytes: lease.amount.memory_bytes / workers,
                // The lease ends with the spawning process.
                timeout_ms: MAX_TIMEOUT_MS,
                options: Some(UNCALLED),
                max_nodes: 1,
                ..LeaseRequest::default()
            })?,
            locality: Locality::on(beside.name.clone()),
            wait_ms: 0,
            refusals: Refusals::default(),
            application: None,
            run: None,
        })
    }
}
