//! Grants, renews and lists leases for clients.

use std::sync::Arc;

use sublet_proto::graph::{Graph, RunLimits};
use sublet_proto::v1::{
    self, LeaseList, LeaseRequest, ListLeasesRequest, PackageInfo, PackageRight, Quota, RenewRequest,
};
use sublet_proto::{Code, Error, decode};

use super::ServiceParts;
use crate::auth::CallerIdentity;
use crate::core::{LeaseId, LeaseTerms, Level, Locality, Refusals, TokenStatus, may_run_on};
use crate::lease_records::LeaseRecord;
use crate::listen::Peer;
use crate::packages::{Asker, check_leasable};
use crate::reply::ReplyPage;
use crate::runs::run_number;
use crate::shell::{GrantedLease, PreparedRequest, RequestOutcome, active_leases, parse_lease};
use crate::store::{PAGE_RECORDS, keys};
use crate::tokens::ShownToken;

impl ServiceParts {
    /// Gives a lease a later end, if its tenant still has the right to its package.
    pub(super) async fn renew(
        &self,
        caller: &CallerIdentity,
        asked: RenewRequest,
    ) -> Result<GrantedLease, Error> {
        let id = parse_lease(&asked.lease)?;
        let is_callers = |tenant: &str| caller.may_see(tenant);
        let (tenant, package) = self.shell.package_of(id, is_callers)?;
        self.packages.check_still_allowed(&tenant, &package).await?;
        self.shell.renew(id, asked.timeout_ms, is_callers)
    }

    /// Grants leases to a caller that is known.
    pub(super) async fn request(
        &self,
        caller: &CallerIdentity,
        asked: LeaseRequest,
    ) -> Result<RequestOutcome, Error> {
        let package = match asked.is_segment() {
            true => Arc::default(),
            false => self.packages.resolve(Asker::of(caller), &asked.package, PackageRight::Execute).await?,
        };
        let needs = self.needs_of(&caller.tenant, &package, &asked).await?;
        self.quotas.check_leases(Asker::of(caller), self.shell.clock.now_ms())?;
        let application = self.application_of(&caller.tenant, &asked.application).await?;
        let wanted =
            PreparedRequest { needs, application, ..wanted(caller, TokenStatus::Verified, package, asked)? };
        let given = self.shell.request(wanted).await?;
        if let RequestOutcome::Leases(granted) = &given {
            self.quotas.add_leases(Asker::of(caller), granted.len(), self.shell.clock.now_ms());
        }
        Ok(given)
    }

    /// The limits over all runs of an application of the tenant, as its latest document says them; `None` if the name is
    /// empty, or of no graph.
    async fn application_of(&self, tenant: &str, name: &str) -> Result<Option<(String, Quota)>, Error> {
        if name.is_empty() {
            return Ok(None);
        }
        let found = match self.graphs.find(tenant, name).await {
            Err(error) if error.code == Code::UnknownGraph => return Ok(None),
            found => found?,
        };
        // It was checked when it was deployed.
        let Ok(graph) = Graph::parse(&found.document) else { return Ok(None) };
        let RunLimits { application_cores, application_memory_bytes, .. } = graph.limits;
        let quota =
            Quota { cores: application_cores, memory_bytes: application_memory_bytes, ..Quota::default() };
        Ok(graph.limits.limit_application().then_some((graph.name, quota)))
    }

    /// Grants leases to a caller whose token is not verified yet: they are granted at once, and their agent asks
    /// whether the token was valid before it releases anything. A request that cannot be granted at once waits until
    /// its caller is verified.
    pub(super) async fn request_pending(
        self: Arc<ServiceParts>,
        caller: &CallerIdentity,
        (shown, peer): (ShownToken, Option<Peer>),
        asked: LeaseRequest,
    ) -> Result<RequestOutcome, Error> {
        let authorizer = Arc::clone(&self.authorizer);
        let verification = tokio::spawn(async move { authorizer.look_up_user(&shown, peer.as_ref()).await });
        let verified = async |verification: tokio::task::JoinHandle<Result<CallerIdentity, Error>>| {
            let failed = |error| Error::new(Code::Internal, format!("the manager failed: {error}"));
            verification.await.map_err(failed).flatten()
        };
        // Unverified callers do not make the store look for packages, a name means something only for a known tenant,
        // and no sandbox is made meanwhile where nothing is leased.
        let package = match asked.is_segment() {
            _ if self.shell.level == Level::Global => None,
            true => Some(Arc::default()),
            false => self.packages.remembered(&asked.package),
        };
        // Secrets, folders and applications belong to a tenant, which has to be known. Needs of a package depend on its
        // owner.
        let has_needs = asked.needs.is_some() || !asked.application.is_empty();
        let package = package.filter(|package| !has_needs && package.needs.is_none());
        let Some(package) = package else {
            return self.request(&verified(verification).await?, asked).await;
        };
        let digest = package.digest.clone();
        // The package counts as the tenant's own only when the tenant is known.
        let package = Arc::new(PackageInfo { owner: String::new(), ..package.as_ref().clone() });
        let at_once = LeaseRequest { wait_ms: 0, ..asked.clone() };
        let provisional = wanted(caller, TokenStatus::Provisional, package, at_once)?;
        let Ok(RequestOutcome::Leases(granted)) = self.shell.request(provisional).await else {
            return self.request(&verified(verification).await?, asked).await;
        };
        let leases: Vec<LeaseId> = granted.iter().map(|granted| granted.id).collect();
        tokio::spawn(async move {
            let tenant = async {
                let identity = verified(verification).await?;
                if !digest.is_empty() {
                    self.packages.check_digest(Asker::of(&identity), &digest).await?;
                }
                let now_ms = self.shell.clock.now_ms();
                self.quotas.check_leases(Asker::of(&identity), now_ms)?;
                self.quotas.add_leases(Asker::of(&identity), leases.len(), now_ms);
                Ok(identity.tenant)
            };
            let tenant = tenant.await;
            if let Err(error) = self.shell.decide(&leases, &tenant) {
                tracing::error!(%error, "provisional leases stay undecided");
            }
        });
        Ok(RequestOutcome::Leases(granted))
    }

    /// Returns a page of the active leases, and on demand of those in the ledger, with the newest first.
    pub(super) async fn list_leases(
        &self,
        caller: &CallerIdentity,
        request: ListLeasesRequest,
    ) -> Result<LeaseList, Error> {
        let ListLeasesRequest { include_ended, after } = request;
        let is_asked = |lease: &v1::Lease| {
            caller.may_see(&lease.tenant) && (after.is_empty() || lease.id.as_str() < after.as_str())
        };
        let mut active: Vec<_> = self.shell.look(|core| active_leases(core).filter(is_asked).collect())?;
        active.sort_by(|a, b| b.id.cmp(&a.id));
        let mut active = active.into_iter().peekable();
        let mut list = ReplyPage::default();
        let mut before = (!after.is_empty()).then(|| format!("{}{after}", keys::LEASE));
        while include_ended && !list.is_full() {
            let from = before.take();
            let page = self
                .database
                .with(move |store| store.scan_back(keys::LEASE, from.as_deref(), PAGE_RECORDS))
                .await?;
            let Some(last) = page.last() else { break };
            before = Some(last.key.clone());
            let now_ms = self.shell.clock.now_ms();
            for found in &page {
                let lease = decode::<LeaseRecord>("a stored lease", &found.value)?.seen_at(now_ms);
                while let Some(newer) = active.next_if(|newer| newer.id > lease.id) {
                    list.add(&newer.id.clone(), newer);
                }
                let lease = active.next_if(|same| same.id == lease.id).unwrap_or(lease);
                if is_asked(&lease) {
                    list.add(&lease.id.clone(), lease);
                }
            }
        }
        for lease in active {
            list.add(&lease.id.clone(), lease);
        }
        Ok(LeaseList { leases: list.items, next: list.next })
    }
}

/// Converts a client's request for the core.
fn wanted(
    caller: &CallerIdentity,
    standing: TokenStatus,
    package: Arc<PackageInfo>,
    asked: LeaseRequest,
) -> Result<PreparedRequest, Error> {
    let request = match asked.request.as_str() {
        "" => None,
        name => Some(name.parse()?),
    };
    if !asked.is_segment() {
        check_leasable(&package)?;
        check_pu(&package, &asked.pu)?;
    }
    Ok(PreparedRequest {
        request,
        tenant: Arc::clone(&caller.tenant),
        token: caller.token,
        standing,
        terms: LeaseTerms::of(&asked)?,
        locality: Locality::of(&asked)?,
        needs: Arc::default(),
        pu: asked.pu,
        package,
        wait_ms: asked.wait_ms,
        refusals: Refusals::by(&asked.refused),
        application: None,
        run: if asked.run.is_empty() { None } else { Some(run_number(&asked.run)?) },
    })
}

/// Refuses a kind of processing unit on which no build of the package can ever run.
fn check_pu(package: &PackageInfo, pu: &str) -> Result<(), Error> {
    if package.builds.iter().any(|build| may_run_on(pu, &build.architecture)) {
        return Ok(());
    }
    let (name, builds) = (&package.name, package.architectures());
    let message = format!("package {name} has no build for {pu}, but for {builds}");
    Err(Error::new(Code::WrongArchitecture, message))
}
