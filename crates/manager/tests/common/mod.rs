//! A manager, with clients, operators and agents that use its sockets.

#![allow(clippy::unwrap_used, dead_code, missing_docs)]

use std::future::Future;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use sublet_manager::{Manager, ManagerOptions, Tls};
use sublet_proto::v1::manager_client::ManagerClient;
use sublet_proto::v1::nodes_client::NodesClient;
use sublet_proto::v1::*;
use sublet_proto::{Error, package};
use tempfile::TempDir;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};

/// Time that no step of a test needs, even on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

pub type Client = ManagerClient<InterceptedService<Channel, Bearer>>;
pub type Agent = NodesClient<InterceptedService<Channel, Bearer>>;

/// Shows a token with each request, if it has one.
#[derive(Clone, Default)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl Bearer {
    pub fn of(token: &str) -> Bearer {
        Bearer(Some(format!("Bearer {token}").parse().unwrap()))
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

pub struct ManagerFixture {
    pub folder: TempDir,
    pub manager: Manager,
    /// An operator on the Unix socket.
    pub client: Client,
    pub agent: AgentFixture,
}

pub fn options(folder: &Path) -> ManagerOptions {
    ManagerOptions::in_folder(folder.join("state"))
}

/// A manager with one node and one package on a Unix socket.
pub async fn fixture() -> ManagerFixture {
    fixture_with(|_| ()).await
}

pub async fn fixture_with(change: impl FnOnce(&mut ManagerOptions)) -> ManagerFixture {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    change(&mut options);
    let manager = Manager::start(options).await.unwrap();
    let mut client = ManagerClient::with_interceptor(local(&manager).await, Bearer::default());
    let agent = AgentFixture::register(&manager, node(), Vec::new()).await;
    deploy(&mut client, &encoded(0)).await.unwrap();
    publish(&mut client, "x").await.unwrap();
    ManagerFixture { folder, manager, client, agent }
}

/// Creates a house with TLS on a loopback address.
pub async fn fixture_on_tcp() -> ManagerFixture {
    fixture_with(|options| options.listen = vec!["127.0.0.1:0".parse().unwrap()]).await
}

impl ManagerFixture {
    pub fn ca(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("state/tls/ca.pem")).unwrap()
    }

    /// Connects over TLS with this token.
    pub async fn as_token(&self, token: &str) -> Client {
        ManagerClient::with_interceptor(self.channel().await, Bearer::of(token))
    }

    pub async fn channel(&self) -> Channel {
        secure(&self.manager, &self.ca(), "localhost").await.unwrap()
    }

    pub async fn token(&mut self, asked: CreateTokenRequest) -> (Token, String) {
        let reply = done(self.client.create_token(asked).await).unwrap();
        (reply.token.unwrap(), reply.secret)
    }

    pub async fn user(&mut self, tenant: &str) -> (Token, Client) {
        let (token, secret) = self.token(user_token(tenant)).await;
        let client = self.as_token(&secret).await;
        (token, client)
    }
}

pub fn user_token(tenant: &str) -> CreateTokenRequest {
    CreateTokenRequest { tenant: tenant.into(), role: Role::User.into(), ..CreateTokenRequest::default() }
}

pub async fn local(manager: &Manager) -> Channel {
    Endpoint::from_shared(format!("unix:{}", manager.socket().display())).unwrap().connect().await.unwrap()
}

pub async fn secure(manager: &Manager, ca: &str, name: &str) -> Result<Channel, tonic::transport::Error> {
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)).domain_name(name);
    let endpoint = Endpoint::from_shared(format!("https://{}", manager.addresses()[0])).unwrap();
    endpoint.tls_config(tls).unwrap().connect().await
}

pub fn plain(options: &mut ManagerOptions) {
    options.listen = vec!["127.0.0.1:0".parse().unwrap()];
    options.tls = Tls::Plain;
}

/// An agent from its manager's point of view.
pub struct AgentFixture {
    pub client: Agent,
    pub registered: NodeRegistration,
    pub name: String,
    pub sequence: u64,
}

impl AgentFixture {
    pub async fn register(
        manager: &Manager,
        node: NodeDescription,
        leases: Vec<RunningLease>,
    ) -> AgentFixture {
        let client = NodesClient::with_interceptor(local(manager).await, Bearer::default());
        AgentFixture::register_as(client, node, leases).await.unwrap()
    }

    pub async fn register_as(
        mut client: Agent,
        node: NodeDescription,
        leases: Vec<RunningLease>,
    ) -> Result<AgentFixture, Error> {
        let name = node.name.clone();
        let instance = "0".repeat(31) + "1";
        let registered = done(
            client
                .register(Registration { node: Some(node), instance, leases, ..Registration::default() })
                .await,
        )?;
        Ok(AgentFixture { client, registered, name, sequence: 0 })
    }

    pub async fn report(&mut self, leases: Vec<LeaseReport>) -> Result<NodeReportReply, Error> {
        self.sequence += 1;
        let report = NodeReport {
            node: self.name.clone(),
            leases,
            registration: self.registered.registration,
            sequence: self.sequence,
            clock_unix_ms: self.registered.now_unix_ms,
            state: NodeState::Lending.into(),
            answered: self.sequence - 1,
            ..NodeReport::default()
        };
        done(self.client.report(report).await)
    }
}

pub fn node() -> NodeDescription {
    NodeDescription {
        name: "n".into(),
        agent: "unix:/run/agent.sock".into(),
        architecture: std::env::consts::ARCH.into(),
        cores: 2,
        memory_bytes: 1 << 30,
        ..NodeDescription::default()
    }
}

/// A package of a real library with this much ballast.
pub fn encoded(ballast_bytes: usize) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let (source, object) = (folder.path().join("x.c"), folder.path().join("libx.so"));
    std::fs::write(&source, "unsigned f(void* in, unsigned size, void* out) { return size; }").unwrap();
    let made =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&object).arg(&source).status().unwrap();
    assert!(made.success(), "cc failed");
    let library =
        PackageFile { path: "libx.so".into(), data: std::fs::read(object).unwrap(), executable: true };
    let ballast = PackageFile { path: "ballast".into(), data: vec![7; ballast_bytes], executable: false };
    let manifest = "name = 'x'\nlibrary = 'libx.so'";
    package::encode(&package::from_files(manifest, vec![library, ballast]).unwrap())
}

pub async fn deploy(client: &mut Client, encoded: &[u8]) -> Result<DeployReply, Error> {
    let chunks: Vec<_> = encoded.chunks(100_000).map(|data| PackageChunk { data: data.into() }).collect();
    done(client.deploy(tokio_stream::iter(chunks)).await)
}

pub async fn publish(client: &mut Client, package: &str) -> Result<PackageInfo, Error> {
    done(client.publish_package(PublishPackageRequest { package: package.into() }).await)
}

pub fn done<T>(result: Result<tonic::Response<T>, Status>) -> Result<T, Error> {
    result.map(tonic::Response::into_inner).map_err(|status| Error::from_status(&status))
}

pub fn asked(cores: u32) -> LeaseRequest {
    LeaseRequest { package: "x".into(), cores, ..LeaseRequest::default() }
}

/// Requests one lease with this many cores.
pub async fn lease(client: &mut Client, cores: u32) -> Result<LeaseGrant, Error> {
    let mut grants = done(client.request_lease(asked(cores)).await)?.grants;
    assert_eq!(grants.len(), 1);
    Ok(grants.remove(0))
}

pub fn id(grant: &LeaseGrant) -> String {
    grant.lease.as_ref().unwrap().id.clone()
}

/// Returns an agent's report of a lease that has computed for this many milliseconds.
pub fn used(lease: &str, state: LeaseState, executing_ms: u64) -> LeaseReport {
    let executing_ns = executing_ms * 1_000_000;
    let usage = Usage { allocated_ns: executing_ns, executing_ns, calls: executing_ms, ..Usage::default() };
    let function = FunctionUsage { function: 0, executing_ns, calls: executing_ms, failed_calls: 0 };
    LeaseReport {
        lease: lease.into(),
        state: state.into(),
        usage: Some(usage),
        end_reason: "released".into(),
        functions: vec![function],
        ..LeaseReport::default()
    }
}

/// Asks again and again until there is an answer.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "{what} has not happened");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
