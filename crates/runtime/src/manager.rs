//! Implements a client's connection to the managers of a store: deploys packages, requests leases, lists objects.
//!
//! Nothing here is on the path of a call, so [`ManagerClient`] is blocking and plain. It drives its connection only
//! while a method runs, on the caller's thread. Inside of the caller's tokio runtime, where blocking is forbidden, it
//! uses a thread of its own for the length of the call. Every method has a deadline, and tries the next manager if one
//! does not answer.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sublet_fabric::sync::lock;
use sublet_proto::v1::manager_client::ManagerClient as Stub;
use sublet_proto::v1::{self, PackageChunk};
use sublet_proto::{Code, Error, version};
use tonic::codegen::tokio_stream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

mod connection;
mod handed;

pub use crate::access::{default_address, default_state, manager_address, socket_path};

use crate::access::Access;
use crate::random::random_bits;
use connection::{ManagerConnection, Repeat, RequestTerms, Whom};

/// Longest wait for an answer.
const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// Time for which a request waits at one of several managers before it is made at the next.
const TURN: Duration = Duration::from_millis(500);
/// Longest time of a deployment, to which a second is added for each [`DEPLOY_STEP_BYTES`] of the package.
const DEPLOY_DEADLINE: Duration = Duration::from_secs(30);
const DEPLOY_STEP_BYTES: usize = 1 << 20;
/// Longest time of a manager to sum up a bill, for which it reads the records of all leases.
const BILL_DEADLINE: Duration = Duration::from_secs(120);
/// Longest time of a manager to copy its store.
const BACKUP_DEADLINE: Duration = Duration::from_secs(600);
/// Bytes of a package in one message.
const CHUNK_BYTES: usize = 256 * 1024;
/// Interval at which leases are requested again that the limits over all runs of an application do not allow now.
const APPLICATION_RETRY: Duration = Duration::from_millis(50);
/// Number of runs in a list without a limit.
const DEFAULT_RUNS: u32 = 100;

/// A blocking client of the managers of one store.
pub struct ManagerClient {
    connection: ManagerConnection,
}

impl ManagerClient {
    /// Connects to managers at addresses such as `unix:/path` or `https://host:port`, separated by commas. Reads
    /// trusted certificates and the token from the environment.
    ///
    /// # Errors
    /// As for [`ManagerClient::connect_with`], and `invalid_argument` if an address is not valid.
    pub fn connect(addresses: &str) -> Result<ManagerClient, Error> {
        ManagerClient::connect_with(Access::parse(addresses)?.with_env()?)
    }

    /// Connects to one of the managers.
    ///
    /// # Errors
    /// `manager_unreachable` if none of them answers, `unauthenticated` if the token is not valid.
    pub fn connect_with(access: Access) -> Result<ManagerClient, Error> {
        let client = ManagerClient { connection: ManagerConnection::new(access)? };
        match client.managers() {
            Err(error) if matches!(error.code, Code::Protocol | Code::PermissionDenied) => Ok(client),
            Err(error) => Err(error),
            Ok(_) => Ok(client),
        }
    }

    /// The address of the manager that answered last.
    pub fn address(&self) -> String {
        self.connection.address()
    }

    /// The managers that share the store. They are asked as well from now on if others do not answer.
    pub fn managers(&self) -> Result<Vec<v1::ManagerInfo>, Error> {
        let request = v1::ListManagersRequest {};
        let list = self.ask(request, async |mut stub: Stub<_>, request| stub.list_managers(request).await)?;
        self.connection.learn(&list.managers);
        Ok(list.managers)
    }

    /// Stores an encoded package and points the name that it has among the caller's tenant's at it.
    pub fn deploy(&self, encoded: Vec<u8>) -> Result<v1::DeployReply, Error> {
        self.deploy_with_progress(encoded, |_| {})
    }

    /// Deploys like [`ManagerClient::deploy`], and calls `progress` repeatedly with the number of bytes sent.
    pub fn deploy_with_progress<F>(&self, encoded: Vec<u8>, progress: F) -> Result<v1::DeployReply, Error>
    where
        F: FnMut(u64) + Send + 'static,
    {
        let steps = u32::try_from(encoded.len() / DEPLOY_STEP_BYTES).unwrap_or(u32::MAX);
        let deadline = DEPLOY_DEADLINE.saturating_add(Duration::from_secs(1).saturating_mul(steps));
        let chunks =
            PackageChunks { encoded: encoded.into(), sent: 0, progress: Arc::new(Mutex::new(progress)) };
        self.connection.ask(
            RequestTerms { deadline, ..anywhere() },
            chunks,
            async |mut stub: Stub<_>, request| {
                let (metadata, extensions, chunks) = request.into_parts();
                stub.deploy(Request::from_parts(metadata, extensions, tokio_stream::iter(chunks))).await
            },
        )
    }

    /// Finds a deployed package by "name", "name/function", "tenant/name", "tenant/name/function" or "sha256:...".
    pub fn resolve(&self, name: &str) -> Result<v1::PackageInfo, Error> {
        let request = v1::ResolveRequest { name: name.to_owned() };
        self.ask(request, async |mut stub, request| stub.resolve(request).await)
    }

    /// The packages that the caller may resolve: its own, public ones and those granted to it; all of them for
    /// operators.
    pub fn packages(&self) -> Result<Vec<v1::PackageInfo>, Error> {
        pages(|after| {
            let request = v1::ListPackagesRequest { after };
            let page = self.ask(request, async |mut stub, request| stub.list_packages(request).await)?;
            Ok((page.packages, page.next))
        })
    }

    /// Lets another tenant use the caller's package of this name. An unspecified right revokes the tenant's present
    /// one. Operators may change another tenant's package: "tenant/name".
    pub fn grant_package(&self, name: &str, grant: v1::PackageGrant) -> Result<v1::PackageInfo, Error> {
        let request = v1::GrantPackageRequest { name: name.to_owned(), grant: Some(grant) };
        self.ask(request, async |mut stub, request| stub.grant_package(request).await)
    }

    /// Makes a package public under its name: every tenant that has no package of this name gets this one. For
    /// operators.
    pub fn publish_package(&self, package: &str) -> Result<v1::PackageInfo, Error> {
        let request = v1::PublishPackageRequest { package: package.to_owned() };
        self.ask(request, async |mut stub, request| stub.publish_package(request).await)
    }

    /// Removes the caller's package of this name; operators may remove another tenant's, and public ones:
    /// "tenant/name". Returns the removed version.
    pub fn remove_package(&self, name: &str) -> Result<v1::PackageInfo, Error> {
        let reply = self.remove_versions(name, false)?;
        reply
            .package
            .ok_or_else(|| Error::new(Code::Protocol, "the manager does not say what it has removed"))
    }

    /// Removes the versions of a package that its name no longer refers to; returns their number.
    pub fn remove_old_versions(&self, name: &str) -> Result<u32, Error> {
        self.remove_versions(name, true).map(|reply| reply.versions)
    }

    fn remove_versions(&self, name: &str, old_versions: bool) -> Result<v1::RemovePackageReply, Error> {
        let terms = RequestTerms { repeat: Repeat::Unsent, ..anywhere() };
        let request = v1::RemovePackageRequest { name: name.to_owned(), old_versions };
        self.connection
            .ask(terms, request, async |mut stub: Stub<_>, request| stub.remove_package(request).await)
    }

    /// Removes one version of the caller's graph by its digest, or a name and every version that it referred to, except
    /// those that unfinished runs need.
    pub fn remove_graph(&self, name: &str) -> Result<v1::RemoveGraphReply, Error> {
        let terms = RequestTerms { repeat: Repeat::Unsent, ..anywhere() };
        let request = v1::RemoveGraphRequest { name: name.to_owned() };
        self.connection
            .ask(terms, request, async |mut stub: Stub<_>, request| stub.remove_graph(request).await)
    }

    /// Removes these runs, which have ended, or all of the caller's that have; returns how many.
    pub fn remove_runs(&self, runs: &[String]) -> Result<u32, Error> {
        let terms = RequestTerms { repeat: Repeat::Unsent, ..anywhere() };
        let request = v1::RemoveRunsRequest { runs: runs.to_vec() };
        let reply = self
            .connection
            .ask(terms, request, async |mut stub: Stub<_>, request| stub.remove_runs(request).await)?;
        Ok(reply.removed)
    }

    /// Removes packages and graphs from the store that nothing refers to any more. For operators.
    pub fn collect_garbage(&self) -> Result<v1::CollectGarbageReply, Error> {
        self.connection.ask(anywhere(), v1::CollectGarbageRequest {}, async |mut stub: Stub<_>, request| {
            stub.collect_garbage(request).await
        })
    }

    /// Has a manager write a copy of its embedded store to a file on its machine; returns the length in bytes. For
    /// operators, on the manager's socket.
    pub fn back_up_store(&self, file: &str) -> Result<u64, Error> {
        let terms = RequestTerms { deadline: BACKUP_DEADLINE, repeat: Repeat::Unsent, ..anywhere() };
        let request = v1::BackUpStoreRequest { file: file.to_owned() };
        let reply = self
            .connection
            .ask(terms, request, async |mut stub: Stub<_>, request| stub.back_up_store(request).await)?;
        Ok(reply.bytes)
    }

    /// Requests leases for all of the cores of a request. They are granted within the time that the request may wait,
    /// or refused with the reason. If one manager's nodes have too little capacity, the others are asked. If there is a
    /// global manager, it chooses which of them.
    ///
    /// A request without a name gets one, so that it can be made of another manager if one does not answer.
    ///
    /// A request for an application whose runs are limited together does not wait at the manager while these limits
    /// leave too little: it is made again until its time to wait is over.
    pub fn request_lease(&self, request: v1::LeaseRequest) -> Result<v1::LeaseGrants, Error> {
        if request.application.is_empty() {
            return self.request_in_time(request);
        }
        let until = Instant::now() + Duration::from_millis(request.wait_ms);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let wait_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            match self.request_in_time(v1::LeaseRequest { wait_ms, ..request.clone() }) {
                Err(error) if error.code == Code::NoCapacity && wait_ms > 0 => {
                    std::thread::sleep(APPLICATION_RETRY.min(left));
                }
                granted => return check_application(&request.application, granted?),
            }
        }
    }

    fn request_in_time(&self, mut request: v1::LeaseRequest) -> Result<v1::LeaseGrants, Error> {
        if request.request.is_empty() {
            request.request = format!("{:032x}", random_bits()?);
        }
        match self.connection.global() {
            Some(_) => self.request_by_global(&request),
            None => self.request_of_racks(request),
        }
    }

    fn request_of_racks(&self, request: v1::LeaseRequest) -> Result<v1::LeaseGrants, Error> {
        if request.wait_ms == 0 || !self.connection.has_several() {
            return self.request_once(request);
        }
        // It first tries all managers without waiting, since another may have the capacity that one lacks. Then it waits at
        // each in turn, since capacity may become free at any of them.
        let until = Instant::now() + Duration::from_millis(request.wait_ms);
        let mut wait = Duration::ZERO;
        loop {
            let asked = Instant::now();
            match self.request_once(with_wait(&request, wait)) {
                // A refusal before the end of the wait is final.
                Err(error) if may_have(error.code) && asked.elapsed() >= wait && asked < until => {}
                answered => return answered,
            }
            wait = TURN.min(until.saturating_duration_since(Instant::now()));
        }
    }

    fn request_once(&self, request: v1::LeaseRequest) -> Result<v1::LeaseGrants, Error> {
        let deadline = CALL_DEADLINE.saturating_add(Duration::from_millis(request.wait_ms));
        let terms = RequestTerms { deadline, also_elsewhere: may_have, whom: Whom::Racks, ..anywhere() };
        let given = self
            .connection
            .ask(terms, request.clone(), async |mut stub, request| stub.request_lease(request).await)?;
        // A reply that names a manager comes from a global one that this client did not know as such, for example through
        // an operator's own address.
        match given.manager.is_empty() {
            true => Ok(given),
            false => self.request_there(&self.connection.reach(&given.manager)?, &request),
        }
    }

    /// Changes the end of a lease to `timeout_ms` from now; 0 stands for the manager's default. The grant's ticket must
    /// be shown to its agent.
    pub fn renew_lease(&self, lease: &str, timeout_ms: u64) -> Result<v1::LeaseGrant, Error> {
        let request = v1::RenewRequest { lease: lease.to_owned(), timeout_ms };
        self.connection.ask(of_a_lease(), request, async |mut stub, request| stub.renew_lease(request).await)
    }

    /// Ends a lease before its time.
    pub fn end_lease(&self, lease: &str) -> Result<(), Error> {
        self.end_leases(&[lease.to_owned()], Duration::ZERO)
    }

    /// Ends leases before their time, and waits at most so long until they hold nothing of their nodes any more.
    ///
    /// # Errors
    /// `unknown_lease` if one of them is not there; the others are ended.
    pub fn end_leases(&self, leases: &[String], wait: Duration) -> Result<(), Error> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let request = v1::EndLeaseRequest { leases: leases.to_vec(), wait_ms };
        let terms = RequestTerms { deadline: CALL_DEADLINE.saturating_add(wait), ..of_a_lease() };
        let ended =
            self.connection.ask(terms, request, async |mut stub, request| stub.end_lease(request).await);
        ended.map(|_| ())
    }

    /// Leases that are not ended.
    pub fn leases(&self) -> Result<Vec<v1::Lease>, Error> {
        self.list_leases(false)
    }

    /// All leases that the manager remembers, the newest first.
    pub fn leases_with_ended(&self) -> Result<Vec<v1::Lease>, Error> {
        self.list_leases(true)
    }

    fn list_leases(&self, include_ended: bool) -> Result<Vec<v1::Lease>, Error> {
        pages(|after| {
            let request = v1::ListLeasesRequest { include_ended, after };
            let page = self.ask(request, async |mut stub, request| stub.list_leases(request).await)?;
            Ok((page.leases, page.next))
        })
    }

    /// Lists every node, with its leased resources.
    pub fn nodes(&self) -> Result<Vec<v1::NodeInfo>, Error> {
        pages(|after| {
            let request = v1::ListNodesRequest { after };
            let page = self.ask(request, async |mut stub, request| stub.list_nodes(request).await)?;
            Ok((page.nodes, page.next))
        })
    }

    /// Every processing unit: the processors of all nodes, and their devices.
    pub fn units(&self) -> Result<Vec<v1::ProcessingUnit>, Error> {
        Ok(self.nodes()?.into_iter().flat_map(|node| node.units).collect())
    }

    /// Returns the cost of leases.
    pub fn bill(&self, request: v1::BillRequest) -> Result<v1::BillReply, Error> {
        let terms = RequestTerms { deadline: BILL_DEADLINE, ..anywhere() };
        self.connection.ask(terms, request, async |mut stub: Stub<_>, request| stub.bill(request).await)
    }

    /// Stores a secret of the caller's tenant, in place of one of the same name.
    pub fn set_secret(&self, name: &str, value: String) -> Result<v1::SecretInfo, Error> {
        let request = v1::SetSecretRequest { name: name.to_owned(), value };
        self.ask(request, async |mut stub, request| stub.set_secret(request).await)
    }

    /// Lists the names of the secrets of the caller's tenant.
    pub fn secrets(&self) -> Result<Vec<v1::SecretInfo>, Error> {
        pages(|after| {
            let request = v1::ListSecretsRequest { after };
            let page = self.ask(request, async |mut stub, request| stub.list_secrets(request).await)?;
            Ok((page.secrets, page.next))
        })
    }

    /// Removes a secret of the caller's tenant.
    pub fn remove_secret(&self, name: &str) -> Result<v1::SecretInfo, Error> {
        let request = v1::RemoveSecretRequest { name: name.to_owned() };
        self.ask(request, async |mut stub, request| stub.remove_secret(request).await)
    }

    /// Stores a graph's document, and points its name at it.
    pub fn deploy_graph(&self, document: Vec<u8>) -> Result<v1::GraphInfo, Error> {
        let request = v1::DeployGraphRequest { document };
        self.ask(request, async |mut stub, request| stub.deploy_graph(request).await)
    }

    /// The graph of this name or digest.
    pub fn find_graph(&self, name: &str) -> Result<v1::GraphDocument, Error> {
        let request = v1::FindGraphRequest { name: name.to_owned() };
        self.ask(request, async |mut stub, request| stub.find_graph(request).await)
    }

    /// Every deployed graph.
    pub fn graphs(&self) -> Result<Vec<v1::GraphInfo>, Error> {
        pages(|after| {
            let request = v1::ListGraphsRequest { after };
            let page = self.ask(request, async |mut stub, request| stub.list_graphs(request).await)?;
            Ok((page.graphs, page.next))
        })
    }

    /// Lists the runs of a graph, or of all, the newest first: at most `limit`, or 100 if `limit` is 0.
    pub fn runs(&self, graph: &str, limit: u32) -> Result<Vec<v1::RunInfo>, Error> {
        self.list_runs(graph, limit, false)
    }

    /// Lists runs like [`ManagerClient::runs`], but only those that have not ended: they are running, or their client
    /// is gone.
    pub fn runs_going_on(&self, graph: &str, limit: u32) -> Result<Vec<v1::RunInfo>, Error> {
        self.list_runs(graph, limit, true)
    }

    fn list_runs(&self, graph: &str, limit: u32, going_on: bool) -> Result<Vec<v1::RunInfo>, Error> {
        let mut left = if limit == 0 { DEFAULT_RUNS } else { limit };
        pages(|after| {
            let request = v1::ListRunsRequest { graph: graph.to_owned(), limit: left, going_on, after };
            let page = self.ask(request, async |mut stub, request| stub.list_runs(request).await)?;
            left = left.saturating_sub(u32::try_from(page.runs.len()).unwrap_or(u32::MAX));
            Ok((page.runs, if left == 0 { String::new() } else { page.next }))
        })
    }

    /// A run, and its recorded output behind a number.
    pub fn read_run(&self, run: &str, after: u64) -> Result<v1::RunPage, Error> {
        let request = v1::ReadRunRequest { run: run.to_owned(), after };
        self.ask(request, async |mut stub, request| stub.read_run(request).await)
    }

    /// The plan of a run of a deployed graph, were it to begin now.
    pub fn plan_run(&self, graph: &str) -> Result<v1::RunInfo, Error> {
        let graph = graph.to_owned();
        self.begin_run(v1::BeginRunRequest { graph, plan_only: true, ..v1::BeginRunRequest::default() })
    }

    pub(crate) fn begin_run(&self, request: v1::BeginRunRequest) -> Result<v1::RunInfo, Error> {
        self.ask(request, async |mut stub, request| stub.begin_run(request).await)
    }

    pub(crate) fn journal(&self, request: v1::JournalRequest) -> Result<(), Error> {
        self.ask(request, async |mut stub, request| stub.journal(request).await).map(drop)
    }

    pub(crate) fn report_run(&self, request: v1::ReportRunRequest) -> Result<(), Error> {
        self.ask(request, async |mut stub, request| stub.report_run(request).await).map(drop)
    }

    pub(crate) fn end_run(&self, request: v1::EndRunRequest) -> Result<v1::RunInfo, Error> {
        self.ask(request, async |mut stub, request| stub.end_run(request).await)
    }

    /// Takes, renews or hands back a run's lease.
    pub(crate) fn drive_run(&self, request: v1::DriveRunRequest) -> Result<v1::RunInfo, Error> {
        self.ask(request, async |mut stub, request| stub.drive_run(request).await)
    }

    /// Takes the lease of a detached run that no process drives.
    pub(crate) fn take_run(&self, request: v1::TakeRunRequest) -> Result<Option<v1::RunInfo>, Error> {
        let taken = self.ask(request, async |mut stub, request| stub.take_run(request).await);
        taken.map(|reply| reply.run)
    }

    /// Ends a run of the caller's tenant before it is done. The process that drives it gives its resources back.
    ///
    /// # Errors
    /// `unknown_run` if the tenant has no such run, or the run has ended.
    pub fn cancel_run(&self, run: &str) -> Result<v1::RunInfo, Error> {
        let request = v1::CancelRunRequest { run: run.to_owned() };
        self.ask(request, async |mut stub, request| stub.cancel_run(request).await)
    }

    /// Makes an access token, whose secret is returned only once. For operators.
    pub fn create_token(&self, request: v1::CreateTokenRequest) -> Result<v1::CreateTokenReply, Error> {
        let terms = RequestTerms { repeat: Repeat::Unsent, ..anywhere() };
        self.connection.ask(terms, request, async |mut stub, request| stub.create_token(request).await)
    }

    /// Lists the valid tokens, or all that ever existed. For operators.
    pub fn list_tokens(&self, include_revoked: bool) -> Result<Vec<v1::Token>, Error> {
        pages(|after| {
            let request = v1::ListTokensRequest { include_revoked, after };
            let page = self.ask(request, async |mut stub, request| stub.list_tokens(request).await)?;
            Ok((page.tokens, page.next))
        })
    }

    /// Revokes a token. For operators.
    pub fn revoke_token(&self, id: &str) -> Result<v1::Token, Error> {
        let request = v1::RevokeTokenRequest { id: id.to_owned() };
        self.ask(request, async |mut stub, request| stub.revoke_token(request).await)
    }

    /// Makes a tenant, or changes its quota. For operators.
    pub fn set_tenant(&self, tenant: v1::Tenant) -> Result<v1::Tenant, Error> {
        self.ask(tenant, async |mut stub, request| stub.set_tenant(request).await)
    }

    /// Lists every tenant, with its usage and its limits. For operators.
    pub fn list_tenants(&self) -> Result<Vec<v1::Tenant>, Error> {
        pages(|after| {
            let request = v1::ListTenantsRequest { after };
            let page = self.ask(request, async |mut stub, request| stub.list_tenants(request).await)?;
            Ok((page.tenants, page.next))
        })
    }

    /// Asks whichever manager answers.
    fn ask<M, T, F, Fut>(&self, message: M, call: F) -> Result<T, Error>
    where
        M: Clone + Send + Sync,
        T: Send,
        F: Fn(Stub<Channel>, Request<M>) -> Fut + Sync,
        Fut: Future<Output = Result<Response<T>, Status>> + Send,
    {
        self.connection.ask(anywhere(), message, call)
    }
}

/// Checks that a manager counts leases under an application's limits: one of an earlier version ignores these.
fn check_application(application: &str, granted: v1::LeaseGrants) -> Result<v1::LeaseGrants, Error> {
    let is_counted =
        |grant: &v1::LeaseGrant| grant.lease.as_ref().is_some_and(|lease| lease.application == application);
    if !granted.grants.iter().all(is_counted) {
        let what = "limits over all runs of an application";
        version::check_messages("the manager", 0, what, version::APPLICATION_LIMITS)?;
    }
    Ok(granted)
}

/// Terms for requests that any manager can answer, and that may be repeated.
fn anywhere() -> RequestTerms {
    RequestTerms {
        deadline: CALL_DEADLINE,
        repeat: Repeat::Harmless,
        also_elsewhere: |_| false,
        whom: Whom::Any,
    }
}

/// Terms for requests about a lease, which only the manager of its node can answer.
fn of_a_lease() -> RequestTerms {
    RequestTerms { also_elsewhere: |code| code == Code::UnknownLease, whom: Whom::Racks, ..anywhere() }
}

/// Whether another manager may have the resources that one lacks.
fn may_have(code: Code) -> bool {
    code.is_shortage() || code == Code::TryLater
}

/// The same request, with another waiting time.
fn with_wait(request: &v1::LeaseRequest, wait: Duration) -> v1::LeaseRequest {
    let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    v1::LeaseRequest { wait_ms, ..request.clone() }
}

/// Returns the items of all pages of a list. `ask` gets the start of a page, and returns its items and the start of the
/// next page, which is empty after the last one.
fn pages<T>(mut ask: impl FnMut(String) -> Result<(Vec<T>, String), Error>) -> Result<Vec<T>, Error> {
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let (items, next) = ask(after)?;
        let is_last = next.is_empty() || items.is_empty();
        all.extend(items);
        if is_last {
            return Ok(all);
        }
        after = next;
    }
}

/// An encoded package as it is sent.
struct PackageChunks<F> {
    encoded: Arc<[u8]>,
    sent: usize,
    progress: Arc<Mutex<F>>,
}

impl<F> Clone for PackageChunks<F> {
    fn clone(&self) -> PackageChunks<F> {
        PackageChunks { encoded: self.encoded.clone(), sent: self.sent, progress: self.progress.clone() }
    }
}

impl<F: FnMut(u64)> Iterator for PackageChunks<F> {
    type Item = PackageChunk;

    fn next(&mut self) -> Option<PackageChunk> {
        let rest = &self.encoded[self.sent..];
        let data = rest[..rest.len().min(CHUNK_BYTES)].to_vec();
        self.sent += data.len();
        lock(&self.progress)(self.sent as u64);
        (!data.is_empty()).then_some(PackageChunk { data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let address = manager_address(folder.path());
        let error = ManagerClient::connect(&address).err().unwrap();
        assert_eq!(error.code, Code::ManagerUnreachable);
        assert!(error.message.contains(&address) && !error.message.contains("sublet up"), "{error}");
    }

    #[test]
    fn a_manager_can_be_missed_from_inside_of_a_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let error = runtime.block_on(async { ManagerClient::connect("unix:/nonexistent").err().unwrap() });
        assert_eq!(error.code, Code::ManagerUnreachable);
    }

    #[test]
    fn chunks_make_the_package_and_tell_their_progress() {
        let (tell, told) = std::sync::mpsc::channel();
        let encoded = vec![7; CHUNK_BYTES + 1];
        let progress = move |bytes| tell.send(bytes).unwrap();
        let progress = Arc::new(Mutex::new(progress));
        let chunks = PackageChunks { encoded: encoded.clone().into(), sent: 0, progress };
        let whole: Vec<u8> = chunks.flat_map(|chunk| chunk.data).collect();
        assert_eq!(whole, encoded);
        assert_eq!(told.into_iter().max(), Some(encoded.len() as u64));
    }
}
