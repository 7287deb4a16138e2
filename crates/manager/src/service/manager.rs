//! The service for clients and operators.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sublet_proto::graph::{self, Graph};
use sublet_proto::limits::MAX_ENDS;
use sublet_proto::package;
use sublet_proto::v1::manager_server::Manager;
use sublet_proto::v1::{
    self, BackUpStoreReply, BackUpStoreRequest, BeginRunRequest, BillReply, BillRequest, CancelRunRequest,
    CollectGarbageReply, CollectGarbageRequest, CreateTokenReply, CreateTokenRequest, DeployGraphRequest,
    DeployReply, DriveRunRequest, EndLeaseReply, EndLeaseRequest, EndRunRequest, FindGraphRequest,
    GrantPackageRequest, GraphDocument, GraphInfo, GraphList, JournalReply, JournalRequest, LeaseGrant,
    LeaseGrants, LeaseList, LeaseRequest, ListGraphsRequest, ListLeasesRequest, ListManagersRequest,
    ListNodesRequest, ListPackagesRequest, ListRunsRequest, ListSecretsRequest, ListTenantsRequest,
    ListTokensRequest, ManagerList, NodeDescription, NodeList, PackageChunk, PackageInfo, PackageList,
    PackageRight, PublishPackageRequest, ReadRunRequest, RemoveGraphReply, RemoveGraphRequest,
    RemovePackageReply, RemovePackageRequest, RemoveRunsReply, RemoveRunsRequest, RemoveSecretRequest,
    RenewRequest, ReportRunReply, ReportRunRequest, ResolveRequest, RevokeTokenRequest, Role, RunInfo,
    RunList, RunPage, RunPlan, SecretInfo, SecretList, SetSecretRequest, StoreUse, TakeRunReply,
    TakeRunRequest, Tenant, TenantList, Token, TokenList,
};
use sublet_proto::{Code, Error};
use tonic::{Request, Response, Status, Streaming};

use super::{Service, ServiceParts};
use crate::auth::{CallerIdentity, CallerVerification, caller};
use crate::core::{ManagedNode, application_of};
use crate::database::blocking;
use crate::garbage::{self, RemovedBlobs};
use crate::graphs;
use crate::listen::Peer;
use crate::packages::{Asker, Versions};
use crate::plans::{HISTORY_RUNS, RunPlans};
use crate::reply::ReplyPage;
use crate::secrets::StoreSecrets;
use crate::store::RECORD_BYTES;
use crate::tokens::RevokedTokens;
use crate::upkeep;

/// Time for which a bill waits for recently reported usage to be stored.
const SETTLE: Duration = Duration::from_secs(2);

#[tonic::async_trait]
impl Manager for Service {
    async fn deploy(
        &self,
        request: Request<Streaming<PackageChunk>>,
    ) -> Result<Response<DeployReply>, Status> {
        let caller = caller(&request)?;
        let upload = self.0.uploads.receive(&caller.tenant, request.into_inner()).await?;
        answer(self.0.deploy(&caller, upload.encoded.clone()).await)
    }

    async fn resolve(&self, request: Request<ResolveRequest>) -> Result<Response<PackageInfo>, Status> {
        let caller = caller(&request)?;
        let name = request.into_inner().name;
        let found = self.0.packages.resolve(Asker::of(&caller), &name, PackageRight::Read).await;
        answer(found.map(|info| PackageInfo::clone(&info)))
    }

    async fn list_packages(
        &self,
        request: Request<ListPackagesRequest>,
    ) -> Result<Response<PackageList>, Status> {
        let caller = caller(&request)?;
        answer(self.0.packages.list(Asker::of(&caller), &request.get_ref().after).await)
    }

    async fn grant_package(
        &self,
        request: Request<GrantPackageRequest>,
    ) -> Result<Response<PackageInfo>, Status> {
        let caller = caller(&request)?;
        let GrantPackageRequest { name, grant } = request.into_inner();
        answer(self.0.packages.grant(Asker::of(&caller), &name, grant.unwrap_or_default()).await)
    }

    async fn publish_package(
        &self,
        request: Request<PublishPackageRequest>,
    ) -> Result<Response<PackageInfo>, Status> {
        let caller = caller(&request)?;
        answer(self.0.packages.publish(Asker::of(&caller), &request.into_inner().package).await)
    }

    async fn remove_package(
        &self,
        request: Request<RemovePackageRequest>,
    ) -> Result<Response<RemovePackageReply>, Status> {
        let caller = caller(&request)?;
        let RemovePackageRequest { name, old_versions } = request.into_inner();
        let versions = if old_versions { Versions::Old } else { Versions::All };
        let removed = self.0.packages.remove(Asker::of(&caller), &name, versions).await;
        self.0.quotas.removed(name.split_once('/').map_or(&*caller.tenant, |(owner, _)| owner));
        answer(removed)
    }

    async fn request_lease(&self, request: Request<LeaseRequest>) -> Result<Response<LeaseGrants>, Status> {
        let (caller, peer) = (caller(&request)?, request.extensions().get::<Peer>().cloned());
        let asked = request.into_inner();
        let granted = match &caller.standing {
            CallerVerification::Verified => self.0.request(&caller, asked).await,
            // This branch is rare and large: its future would enlarge the common request's future.
            CallerVerification::Pending(shown) => {
                Box::pin(Arc::clone(&self.0).request_pending(&caller, (shown.clone(), peer), asked)).await
            }
        };
        answer(granted.map(|given| self.0.shell.sign(given)))
    }

    async fn renew_lease(&self, request: Request<RenewRequest>) -> Result<Response<LeaseGrant>, Status> {
        let caller = caller(&request)?;
        let renewed = self.0.renew(&caller, request.into_inner()).await;
        answer(renewed.map(|granted| self.0.shell.sign_one(granted)))
    }

    async fn end_lease(&self, request: Request<EndLeaseRequest>) -> Result<Response<EndLeaseReply>, Status> {
        let caller = caller(&request)?;
        let EndLeaseRequest { leases, wait_ms } = request.into_inner();
        if !(1..=MAX_ENDS).contains(&leases.len()) {
            let message = format!("{} leases to end, one request ends 1 to {MAX_ENDS}", leases.len());
            return Err(Error::new(Code::InvalidArgument, message).into_status());
        }
        let is_callers = |tenant: &str| caller.may_see(tenant);
        let ended = self.0.shell.end(&leases, is_callers);
        if wait_ms > 0 {
            let wait = Duration::from_millis(wait_ms);
            answer(self.0.shell.await_ends(&leases, is_callers, wait).await)?;
        }
        answer(ended.map(|()| EndLeaseReply {}))
    }

    async fn list_leases(&self, request: Request<ListLeasesRequest>) -> Result<Response<LeaseList>, Status> {
        let caller = caller(&request)?;
        answer(self.0.list_leases(&caller, request.into_inner()).await)
    }

    async fn list_nodes(&self, request: Request<ListNodesRequest>) -> Result<Response<NodeList>, Status> {
        let caller = caller(&request)?;
        let nodes = self.0.shell.look(|core| core.nodes().map(|node| core.info(node)).collect::<Vec<_>>());
        answer(nodes.map(|mut nodes| {
            for node in &mut nodes {
                // The modules of a tenant's environment are shown to that tenant and to operators.
                node.standby.retain(|set| set.tenant.is_empty() || caller.may_see(&set.tenant));
            }
            nodes.sort_by(|a, b| name_of(a).cmp(name_of(b)));
            let named = nodes.into_iter().map(|node| (name_of(&node).to_owned(), node));
            let page = ReplyPage::after(&request.get_ref().after, named);
            NodeList { nodes: page.items, next: page.next }
        }))
    }

    async fn list_managers(&self, _: Request<ListManagersRequest>) -> Result<Response<ManagerList>, Status> {
        Ok(Response::new(ManagerList { managers: self.0.store_managers.managers() }))
    }

    async fn bill(&self, request: Request<BillRequest>) -> Result<Response<BillReply>, Status> {
        let caller = caller(&request)?;
        answer(self.0.bill(&caller, request.into_inner()).await)
    }

    async fn set_secret(&self, request: Request<SetSecretRequest>) -> Result<Response<SecretInfo>, Status> {
        let (caller, request) = (caller(&request)?, request.into_inner());
        answer(self.0.set_secret(&caller, request).await)
    }

    async fn list_secrets(
        &self,
        request: Request<ListSecretsRequest>,
    ) -> Result<Response<SecretList>, Status> {
        let tenant = caller(&request)?.tenant;
        answer(self.0.secrets.list(&tenant, &request.get_ref().after).await)
    }

    async fn remove_secret(
        &self,
        request: Request<RemoveSecretRequest>,
    ) -> Result<Response<SecretInfo>, Status> {
        let tenant = caller(&request)?.tenant;
        let removed = self.0.secrets.remove(&tenant, &request.into_inner().name).await;
        self.0.quotas.removed(&tenant);
        answer(removed)
    }

    async fn deploy_graph(
        &self,
        request: Request<DeployGraphRequest>,
    ) -> Result<Response<GraphInfo>, Status> {
        let caller = caller(&request)?;
        answer(self.0.deploy_graph(&caller, request.into_inner().document).await)
    }

    async fn remove_graph(
        &self,
        request: Request<RemoveGraphRequest>,
    ) -> Result<Response<RemoveGraphReply>, Status> {
        let tenant = caller(&request)?.tenant;
        let removed = self.0.graphs.remove(&tenant, &request.into_inner().name).await;
        self.0.quotas.removed(&tenant);
        answer(removed.map(|(removed, kept)| RemoveGraphReply { removed, kept }))
    }

    async fn remove_runs(
        &self,
        request: Request<RemoveRunsRequest>,
    ) -> Result<Response<RemoveRunsReply>, Status> {
        let tenant = caller(&request)?.tenant;
        let removed = self.0.runs.remove(&tenant, request.into_inner().runs).await;
        self.0.quotas.removed(&tenant);
        answer(removed.map(|removed| RemoveRunsReply { removed }))
    }

    async fn collect_garbage(
        &self,
        _: Request<CollectGarbageRequest>,
    ) -> Result<Response<CollectGarbageReply>, Status> {
        let removed =
            garbage::collect(&self.0.database, &self.0.shell.clock, || self.0.shell.packages()).await;
        answer(removed.map(|RemovedBlobs { blobs, bytes }| CollectGarbageReply { blobs, bytes }))
    }

    async fn back_up_store(
        &self,
        request: Request<BackUpStoreRequest>,
    ) -> Result<Response<BackUpStoreReply>, Status> {
        let caller = caller(&request)?;
        let file = PathBuf::from(request.into_inner().file);
        if caller.token.is_some() {
            let message = "a store is backed up on the operator's socket of its manager only, since a file is written there";
            return Err(Error::new(Code::PermissionDenied, message).into_status());
        }
        let written = upkeep::back_up(&self.0.database, file).await;
        answer(written.map(|bytes| BackUpStoreReply { bytes }))
    }

    async fn find_graph(
        &self,
        request: Request<FindGraphRequest>,
    ) -> Result<Response<GraphDocument>, Status> {
        let tenant = caller(&request)?.tenant;
        let mut found = self.0.graphs.find(&tenant, &request.into_inner().name).await;
        if let Some(info) = found.as_mut().ok().and_then(|found| found.info.as_mut()) {
            info.swaps = self.0.quotas.lets_swap(&tenant);
        }
        answer(found)
    }

    async fn list_graphs(&self, request: Request<ListGraphsRequest>) -> Result<Response<GraphList>, Status> {
        let tenant = caller(&request)?.tenant;
        answer(self.0.graphs.list(&tenant, &request.get_ref().after).await)
    }

    async fn begin_run(&self, request: Request<BeginRunRequest>) -> Result<Response<RunInfo>, Status> {
        let caller = caller(&request)?;
        answer(self.0.begin_run(&caller, request.into_inner()).await)
    }

    async fn journal(&self, request: Request<JournalRequest>) -> Result<Response<JournalReply>, Status> {
        let (caller, entries) = (caller(&request)?, request.into_inner());
        answer(self.0.journal(&caller, entries).await.map(|()| JournalReply {}))
    }

    async fn report_run(
        &self,
        request: Request<ReportRunRequest>,
    ) -> Result<Response<ReportRunReply>, Status> {
        let (tenant, now_ms) = (caller(&request)?.tenant, self.0.shell.clock.now_ms());
        answer(self.0.runs.report(&tenant, request.into_inner(), now_ms).await.map(|()| ReportRunReply {}))
    }

    async fn end_run(&self, request: Request<EndRunRequest>) -> Result<Response<RunInfo>, Status> {
        let tenant = caller(&request)?.tenant;
        let ended = self.0.runs.end(&tenant, request.into_inner(), self.0.shell.clock.now_ms()).await;
        if let Ok(info) = &ended {
            self.0.plans.end(&info.run);
        }
        self.0.quotas.removed(&tenant);
        answer(ended)
    }

    async fn drive_run(&self, request: Request<DriveRunRequest>) -> Result<Response<RunInfo>, Status> {
        let (tenant, now_ms) = (caller(&request)?.tenant, self.0.shell.clock.now_ms());
        answer(self.0.runs.drive(&tenant, request.into_inner(), now_ms).await)
    }

    async fn take_run(&self, request: Request<TakeRunRequest>) -> Result<Response<TakeRunReply>, Status> {
        let (caller, now_ms) = (caller(&request)?, self.0.shell.clock.now_ms());
        let tenant = (!caller.is_operator()).then_some(&*caller.tenant);
        let taken = self.0.runs.take(tenant, request.into_inner(), now_ms).await;
        answer(taken.map(|run| TakeRunReply { run }))
    }

    async fn cancel_run(&self, request: Request<CancelRunRequest>) -> Result<Response<RunInfo>, Status> {
        let (tenant, now_ms) = (caller(&request)?.tenant, self.0.shell.clock.now_ms());
        let cancelled = self.0.runs.cancel(&tenant, request.into_inner().run, now_ms).await;
        if let Ok(info) = &cancelled {
            self.0.plans.end(&info.run);
        }
        self.0.quotas.removed(&tenant);
        answer(cancelled)
    }

    async fn read_run(&self, request: Request<ReadRunRequest>) -> Result<Response<RunPage>, Status> {
        let tenant = caller(&request)?.tenant;
        answer(self.0.runs.read(&tenant, request.into_inner()).await)
    }

    async fn list_runs(&self, request: Request<ListRunsRequest>) -> Result<Response<RunList>, Status> {
        let tenant = caller(&request)?.tenant;
        answer(self.0.runs.list(&tenant, request.into_inner()).await)
    }

    async fn create_token(
        &self,
        request: Request<CreateTokenRequest>,
    ) -> Result<Response<CreateTokenReply>, Status> {
        let created =
            self.0.authorizer.tokens.create(request.into_inner(), self.0.shell.clock.now_ms()).await;
        answer(created.map(|(token, secret)| CreateTokenReply { token: Some(token), secret }))
    }

    async fn list_tokens(&self, request: Request<ListTokensRequest>) -> Result<Response<TokenList>, Status> {
        let ListTokensRequest { include_revoked, after } = request.into_inner();
        let revoked = if include_revoked { RevokedTokens::Included } else { RevokedTokens::LeftOut };
        let tokens = self.0.authorizer.tokens.list(revoked).await;
        answer(tokens.map(|tokens| {
            let dated = |token: &Token| format!("{:020} {}", token.created_unix_ms, token.id);
            let page = ReplyPage::after(&after, tokens.into_iter().map(|token| (dated(&token), token)));
            TokenList { tokens: page.items, next: page.next }
        }))
    }

    async fn revoke_token(&self, request: Request<RevokeTokenRequest>) -> Result<Response<Token>, Status> {
        let now_ms = self.0.shell.clock.now_ms();
        let revoked = self.0.authorizer.tokens.revoke(&request.into_inner().id, now_ms).await;
        let ended = self.0.shell.end_revoked(|token| self.0.authorizer.tokens.is_valid(token, now_ms));
        answer(ended.and(revoked))
    }

    async fn set_tenant(&self, request: Request<Tenant>) -> Result<Response<Tenant>, Status> {
        let Tenant { name, quota, .. } = request.into_inner();
        answer(self.0.set_tenant(name, quota.unwrap_or_default()).await)
    }

    async fn list_tenants(
        &self,
        request: Request<ListTenantsRequest>,
    ) -> Result<Response<TenantList>, Status> {
        answer(self.0.list_tenants(&request.get_ref().after).await)
    }
}

impl ServiceParts {
    async fn deploy(&self, caller: &CallerIdentity, encoded: Arc<Vec<u8>>) -> Result<DeployReply, Error> {
        let bytes = Arc::clone(&encoded);
        let checked = blocking(move || package::validate(&bytes)).await?;
        let checked = self.packages.link(Asker::of(caller), checked).await?;
        self.check_architecture(&checked)?;
        let more = self.packages.more(&caller.tenant, &checked).await?;
        self.quotas.admit(Asker::of(caller), more).await?;
        self.packages.deploy(&caller.tenant, encoded, checked).await
    }

    async fn set_secret(
        &self,
        caller: &CallerIdentity,
        request: SetSecretRequest,
    ) -> Result<SecretInfo, Error> {
        self.quotas.admit(Asker::of(caller), StoreSecrets::more(&request)).await?;
        self.secrets.set(&caller.tenant, request).await
    }

    async fn deploy_graph(&self, caller: &CallerIdentity, document: Vec<u8>) -> Result<GraphInfo, Error> {
        let graph = graphs::CheckedGraph::of(document)?;
        let more = self.graphs.more(&caller.tenant, &graph).await?;
        self.quotas.admit(Asker::of(caller), more).await?;
        let info = self.graphs.deploy(&caller.tenant, graph).await?;
        Ok(GraphInfo { swaps: self.quotas.lets_swap(&caller.tenant), ..info })
    }

    /// Admits a run to those of its tenant. The oldest ended runs are removed to make space.
    async fn admit_run(&self, caller: &CallerIdentity, input_bytes: usize) -> Result<(), Error> {
        let asker = Asker::of(caller);
        while self.quotas.is_full_of_runs(asker).await? {
            if self.runs.remove_oldest(&caller.tenant).await? == 0 {
                break;
            }
            self.quotas.removed(&caller.tenant);
        }
        let bytes = input_bytes as u64 + 2 * RECORD_BYTES;
        self.quotas.admit(asker, StoreUse { bytes, runs: 1, ..StoreUse::default() }).await
    }

    async fn journal(&self, caller: &CallerIdentity, entries: JournalRequest) -> Result<(), Error> {
        let sizes = entries.entries.iter().map(|entry| entry.output.len() as u64 + RECORD_BYTES);
        let bytes = sizes.fold(0, u64::saturating_add);
        self.quotas.admit(Asker::of(caller), StoreUse { bytes, ..StoreUse::default() }).await?;
        self.runs.journal(&caller.tenant, entries).await
    }

    /// Refuses a package that no node could run, by its processor, its devices or its interpreters. A manager that has just
    /// started, or has no nodes of its own, cannot say.
    fn check_architecture(&self, package: &package::CheckedPackage) -> Result<(), Error> {
        if package.builds.iter().any(v1::PackageBuild::is_layer) {
            return Ok(());
        }
        let of = |node: &ManagedNode| {
            let NodeDescription { architecture, devices, runtimes, .. } = (*node.description).clone();
            [vec![architecture], devices, runtimes]
        };
        let mut nodes: Vec<String> = self.shell.look(|core| core.nodes().flat_map(of).flatten().collect())?;
        nodes.retain(|architecture| !architecture.is_empty());
        nodes.sort();
        nodes.dedup();
        let is_for =
            |node: &String| package.builds.iter().any(|build| package::runs_on(&build.architecture, node));
        if nodes.is_empty() || nodes.iter().any(is_for) {
            return Ok(());
        }
        let is_missing = |is_one: fn(&str) -> bool| {
            package.builds.iter().all(|build| is_one(&build.architecture))
                && !nodes.iter().any(|node| is_one(node))
        };
        let missing = [
            (is_missing(is_nodes_python), "Python", "python"),
            (is_missing(is_nodes_nodejs), "Node.js", "node"),
        ];
        let missing = missing.into_iter().find(|(is_missing, ..)| *is_missing);
        let (name, builds, nodes) = (&package.name, package.info().architectures(), nodes.join(", "));
        let message = match missing {
            Some((_, language, option)) => format!(
                "package {name} is for {builds}, but no node executes {language}: start one by `sublet up --{option} \
                 PROGRAM` or `sublet agent --{option} PROGRAM` (nodes are {nodes})"
            ),
            None => format!("package {name} is for {builds}, but nodes are {nodes}"),
        };
        Err(Error::new(Code::WrongArchitecture, message))
    }

    /// Begins a run, with the versions to which the names of its graph's packages now refer.
    async fn begin_run(&self, caller: &CallerIdentity, asked: BeginRunRequest) -> Result<RunInfo, Error> {
        let GraphDocument { info, document } = self.graphs.find(&caller.tenant, &asked.graph).await?;
        let GraphInfo { name, digest, .. } = info.unwrap_or_default();
        let graph = Graph::parse(&document).map_err(|problems| graph::error(&name, &problems))?;
        if let (Some(result), true) = (graph.result(), asked.detached.is_some()) {
            let result = &graph.components[result].name;
            let message = format!(
                "graph {name} returns memory component {result}, which ends with the process that drives the run: a detached \
                 run needs another way to its result, such as an output"
            );
            return Err(Error::new(Code::InvalidArgument, message));
        }
        let named = graph.components.iter().filter_map(|component| {
            component.compute().map(|compute| (component.name.as_str(), compute.package.as_str()))
        });
        let packages = self.packages.pin(Asker::of(caller), named).await?;
        let plan = self.plan_run(&caller.tenant, &digest).await;
        let begun = RunInfo { graph: name, digest, packages, plan, ..RunInfo::default() };
        if asked.plan_only {
            return Ok(RunInfo { tenant: caller.tenant.to_string(), ..begun });
        }
        self.admit_run(caller, asked.input.len()).await?;
        let info = self.runs.begin(&caller.tenant, asked, begun, self.shell.clock.now_ms()).await?;
        // A repeated request may find that the run has ended.
        if let Some(plan) = info.plan.as_ref().filter(|_| info.ended_unix_ms == 0) {
            self.plans.begin(&info.run, plan);
        }
        Ok(info)
    }

    /// Plans a run of a graph's version. `None` if nothing is known of its earlier runs, or the store does not answer.
    async fn plan_run(&self, tenant: &str, digest: &str) -> Option<RunPlan> {
        let runs = self.runs.succeeded(tenant, digest, HISTORY_RUNS).await.ok()?;
        if runs.is_empty() {
            return None;
        }
        let nodes = self.shell.look(RunPlans::nodes).ok()?;
        let plans = self.plans.clone();
        // A decision may take 20 ms, in which this thread serves others.
        blocking(move || Ok(plans.plan(&runs, nodes))).await.ok()?
    }

    async fn bill(&self, caller: &CallerIdentity, asked: BillRequest) -> Result<BillReply, Error> {
        let only = (caller.role != Role::Operator).then(|| caller.tenant.to_string());
        if only.is_some() && !asked.tenant.is_empty() && !caller.may_see(&asked.tenant) {
            let message =
                format!("this access token is for tenant {}, not for {:?}", caller.tenant, asked.tenant);
            return Err(Error::new(Code::PermissionDenied, message));
        }
        // An error of the store is reported when the bill is read.
        let _ = self.shell.ledger.settle(SETTLE).await;
        self.bills.make(asked, only).await
    }

    async fn set_tenant(&self, name: String, quota: v1::Quota) -> Result<Tenant, Error> {
        self.tenants.set(&name, quota).await?;
        let r#use = self.shell.set_quota(&name, quota)?;
        let stored = self.quotas.used(&name).await?;
        Ok(Tenant { name, quota: Some(quota), r#use: Some(r#use), stored: Some(stored) })
    }

    async fn list_tenants(&self, after: &str) -> Result<TenantList, Error> {
        let mut tenants: Vec<Tenant> = self.shell.look(|core| {
            let tenants = core.tenants().filter(|tenant| application_of(&tenant.name).is_none());
            let known = tenants.map(|tenant| Tenant {
                name: tenant.name.to_string(),
                quota: Some(tenant.quota),
                r#use: Some(tenant.used()),
                stored: None,
            });
            known.collect()
        })?;
        for stored in self.tenants.list().await? {
            if !tenants.iter().any(|tenant| tenant.name == stored.name) {
                tenants.push(stored);
            }
        }
        tenants.sort_by(|a, b| a.name.cmp(&b.name));
        let mut list = ReplyPage::default();
        for mut tenant in tenants.into_iter().filter(|tenant| tenant.name.as_str() > after) {
            tenant.stored = Some(self.quotas.used(&tenant.name).await?);
            if !list.add(&tenant.name.clone(), tenant) {
                break;
            }
        }
        Ok(TenantList { tenants: list.items, next: list.next })
    }
}

fn name_of(node: &v1::NodeInfo) -> &str {
    node.description.as_ref().map(|description| description.name.as_str()).unwrap_or_default()
}

fn answer<T>(result: Result<T, Error>) -> Result<Response<T>, Status> {
    result.map(Response::new).map_err(Error::into_status)
}

/// Whether an architecture is that of a Python which nodes have, not their images.
fn is_nodes_python(architecture: &str) -> bool {
    package::is_python(architecture) && !package::is_image_python(architecture)
}

/// Whether an architecture is that of a Node.js which nodes have, not their images.
fn is_nodes_nodejs(architecture: &str) -> bool {
    package::is_nodejs(architecture) && !package::is_image_nodejs(architecture)
}
