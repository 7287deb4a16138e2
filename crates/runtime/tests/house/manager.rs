//! Implements a manager for tests: a gRPC server with grants that the test chooses.

use std::path::Path;
use std::sync::{Arc, Mutex};

use prost::Message;
use sublet_proto::v1::manager_server::{Manager as Service, ManagerServer};
use sublet_proto::v1::*;
use sublet_proto::{Code, Error};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use super::node::Node;

/// The nodes on which a request is granted workers, with the number of workers on each.
pub type Grants = Result<Vec<(Node, u32)>, Error>;

type Decide = Box<dyn FnMut(&LeaseRequest) -> Grants + Send>;
/// Chooses the manager that a request is handed to.
type Hand = Box<dyn FnMut(&LeaseRequest) -> Option<String> + Send>;

/// A running manager. It stops when it is dropped.
pub struct Manager {
    pub address: String,
    state: Arc<State>,
    runtime: Option<Runtime>,
}

#[derive(Default)]
struct State {
    grant: Mutex<Option<Decide>>,
    hand: Mutex<Option<Hand>>,
    known: Mutex<Vec<ManagerInfo>>,
    requests: Mutex<Vec<LeaseRequest>>,
    ended: Mutex<Vec<String>>,
    tokens: Mutex<Vec<String>>,
}

impl Manager {
    /// Starts a manager on a socket in a folder.
    pub fn start(
        folder: &Path,
        name: &str,
        grant: impl FnMut(&LeaseRequest) -> Grants + Send + 'static,
    ) -> Manager {
        let socket = folder.join(format!("{name}.sock"));
        let (state, runtime) = (Arc::new(State::default()), runtime());
        *state.grant.lock().unwrap() = Some(Box::new(grant));
        let listener = {
            let _entered = runtime.enter();
            UnixListener::bind(&socket).unwrap()
        };
        let service = ManagerServer::from_arc(state.clone());
        runtime.spawn(
            Server::builder().add_service(service).serve_with_incoming(UnixListenerStream::new(listener)),
        );
        Manager { address: format!("unix:{}", socket.display()), state, runtime: Some(runtime) }
    }

    /// Starts a manager on a port of this machine, with TLS.
    pub fn start_tls(identity: Identity) -> Manager {
        let (state, runtime) = (Arc::new(State::default()), runtime());
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let mut server = Server::builder().tls_config(ServerTlsConfig::new().identity(identity)).unwrap();
        let service = ManagerServer::from_arc(state.clone());
        runtime.spawn(server.add_service(service).serve_with_incoming(TcpListenerStream::new(listener)));
        Manager { address, state, runtime: Some(runtime) }
    }

    /// Makes the manager list other managers to its clients.
    pub fn knows(&self, addresses: &[&str]) {
        let info = |address: &&str| ManagerInfo { address: (*address).to_owned(), ..Default::default() };
        *self.state.known.lock().unwrap() = addresses.iter().map(info).collect();
    }

    /// Makes the manager global, above these: it lists itself and them, and hands requests on.
    pub fn is_above(
        &self,
        racks: &[&Manager],
        hand: impl FnMut(&LeaseRequest) -> Option<String> + Send + 'static,
    ) {
        *self.state.hand.lock().unwrap() = Some(Box::new(hand));
        let info = |address: &str, global| ManagerInfo {
            address: address.to_owned(),
            global,
            ..ManagerInfo::default()
        };
        let racks_known = racks.iter().map(|rack| info(&rack.address, false));
        let known: Vec<_> = racks_known.chain([info(&self.address, true)]).collect();
        for manager in racks.iter().copied().chain([self]) {
            *manager.state.known.lock().unwrap() = known.clone();
        }
    }

    /// The requests for leases that came.
    pub fn requests(&self) -> Vec<LeaseRequest> {
        self.state.requests.lock().unwrap().clone()
    }

    /// The leases that were ended by request.
    pub fn ended(&self) -> Vec<String> {
        self.state.ended.lock().unwrap().clone()
    }

    /// The tokens that clients have shown.
    pub fn tokens(&self) -> Vec<String> {
        self.state.tokens.lock().unwrap().clone()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn not_here<T>() -> Result<Response<T>, Status> {
    Err(Error::new(Code::Internal, "not in this test").into_status())
}

fn package() -> PackageInfo {
    PackageInfo {
        name: "test".into(),
        digest: "sha256:0".into(),
        functions: vec![FunctionInfo { name: "who".into() }],
        ..PackageInfo::default()
    }
}

fn grant(request: &LeaseRequest, number: usize, node: &Node, cores: u32) -> LeaseGrant {
    let lease = Lease {
        id: format!("{:0>31}{number}", request.request.get(..16).unwrap_or_default()),
        node: format!("node-{}", node.number()),
        cores,
        options: request.options,
        memory_bytes: 1 << 20,
        expires_unix_ms: 1000,
        ..Lease::default()
    };
    LeaseGrant {
        ticket: lease.encode_to_vec(),
        agent: node.address(),
        lease: Some(lease),
        package: Some(package()),
        ..LeaseGrant::default()
    }
}

#[tonic::async_trait]
impl Service for State {
    async fn request_lease(&self, request: Request<LeaseRequest>) -> Result<Response<LeaseGrants>, Status> {
        let request = request.into_inner();
        self.requests.lock().unwrap().push(request.clone());
        let handed = self.hand.lock().unwrap().as_mut().and_then(|hand| hand(&request));
        if let Some(manager) = handed {
            return Ok(Response::new(LeaseGrants { grants: Vec::new(), manager }));
        }
        let granted = self.grant.lock().unwrap().as_mut().map_or(Ok(Vec::new()), |grant| grant(&request));
        let granted = granted.map_err(Error::into_status)?;
        let grants =
            granted.iter().enumerate().map(|(number, (node, cores))| grant(&request, number, node, *cores));
        Ok(Response::new(LeaseGrants { grants: grants.collect(), manager: String::new() }))
    }

    async fn list_managers(
        &self,
        request: Request<ListManagersRequest>,
    ) -> Result<Response<ManagerList>, Status> {
        let shown = request.metadata().get("authorization").map(|shown| shown.to_str().unwrap_or_default());
        self.tokens.lock().unwrap().extend(shown.map(str::to_owned));
        Ok(Response::new(ManagerList { managers: self.known.lock().unwrap().clone() }))
    }

    async fn renew_lease(&self, request: Request<RenewRequest>) -> Result<Response<LeaseGrant>, Status> {
        let RenewRequest { lease, timeout_ms } = request.into_inner();
        let lease = Lease { id: lease, expires_unix_ms: 1000 + timeout_ms, ..Lease::default() };
        Ok(Response::new(LeaseGrant { lease: Some(lease), ticket: vec![1], ..LeaseGrant::default() }))
    }

    async fn end_lease(&self, request: Request<EndLeaseRequest>) -> Result<Response<EndLeaseReply>, Status> {
        self.ended.lock().unwrap().extend(request.into_inner().leases);
        Ok(Response::new(EndLeaseReply {}))
    }

    async fn deploy(&self, _: Request<Streaming<PackageChunk>>) -> Result<Response<DeployReply>, Status> {
        not_here()
    }
    async fn resolve(&self, _: Request<ResolveRequest>) -> Result<Response<PackageInfo>, Status> {
        Ok(Response::new(package()))
    }
    async fn grant_package(&self, _: Request<GrantPackageRequest>) -> Result<Response<PackageInfo>, Status> {
        not_here()
    }
    async fn publish_package(
        &self,
        _: Request<PublishPackageRequest>,
    ) -> Result<Response<PackageInfo>, Status> {
        not_here()
    }
    async fn remove_package(
        &self,
        _: Request<RemovePackageRequest>,
    ) -> Result<Response<RemovePackageReply>, Status> {
        not_here()
    }
    async fn remove_graph(
        &self,
        _: Request<RemoveGraphRequest>,
    ) -> Result<Response<RemoveGraphReply>, Status> {
        not_here()
    }
    async fn remove_runs(&self, _: Request<RemoveRunsRequest>) -> Result<Response<RemoveRunsReply>, Status> {
        not_here()
    }
    async fn collect_garbage(
        &self,
        _: Request<CollectGarbageRequest>,
    ) -> Result<Response<CollectGarbageReply>, Status> {
        not_here()
    }
    async fn back_up_store(
        &self,
        _: Request<BackUpStoreRequest>,
    ) -> Result<Response<BackUpStoreReply>, Status> {
        not_here()
    }
    async fn list_packages(&self, _: Request<ListPackagesRequest>) -> Result<Response<PackageList>, Status> {
        not_here()
    }
    async fn list_leases(&self, _: Request<ListLeasesRequest>) -> Result<Response<LeaseList>, Status> {
        not_here()
    }
    async fn list_nodes(&self, _: Request<ListNodesRequest>) -> Result<Response<NodeList>, Status> {
        not_here()
    }
    async fn bill(&self, _: Request<BillRequest>) -> Result<Response<BillReply>, Status> {
        not_here()
    }
    async fn deploy_graph(&self, _: Request<DeployGraphRequest>) -> Result<Response<GraphInfo>, Status> {
        not_here()
    }
    async fn find_graph(&self, _: Request<FindGraphRequest>) -> Result<Response<GraphDocument>, Status> {
        not_here()
    }
    async fn list_graphs(&self, _: Request<ListGraphsRequest>) -> Result<Response<GraphList>, Status> {
        not_here()
    }
    async fn begin_run(&self, _: Request<BeginRunRequest>) -> Result<Response<RunInfo>, Status> {
        not_here()
    }
    async fn journal(&self, _: Request<JournalRequest>) -> Result<Response<JournalReply>, Status> {
        not_here()
    }
    async fn report_run(&self, _: Request<ReportRunRequest>) -> Result<Response<ReportRunReply>, Status> {
        not_here()
    }
    async fn end_run(&self, _: Request<EndRunRequest>) -> Result<Response<RunInfo>, Status> {
        not_here()
    }
    async fn read_run(&self, _: Request<ReadRunRequest>) -> Result<Response<RunPage>, Status> {
        not_here()
    }
    async fn list_runs(&self, _: Request<ListRunsRequest>) -> Result<Response<RunList>, Status> {
        not_here()
    }
    async fn create_token(
        &self,
        _: Request<CreateTokenRequest>,
    ) -> Result<Response<CreateTokenReply>, Status> {
        not_here()
    }
    async fn list_tokens(&self, _: Request<ListTokensRequest>) -> Result<Response<TokenList>, Status> {
        not_here()
    }
    async fn revoke_token(&self, _: Request<RevokeTokenRequest>) -> Result<Response<Token>, Status> {
        not_here()
    }
    async fn set_tenant(&self, _: Request<Tenant>) -> Result<Response<Tenant>, Status> {
        not_here()
    }
    async fn list_tenants(&self, _: Request<ListTenantsRequest>) -> Result<Response<TenantList>, Status> {
        not_here()
    }
}
