//! Leases whose token is verified while they are used: grants, confirmations and revocations.

mod lists;
mod needs;

use std::sync::Arc;

use sublet_proto::package::{self, CheckedPackage, PUBLIC};
use sublet_proto::price::Prices;
use sublet_proto::ticket::{Signing, Verifying};
use sublet_proto::v1::manager_server::Manager;
use sublet_proto::v1::nodes_server::Nodes;
use sublet_proto::v1::*;
use sublet_proto::{Code, Error};
use tonic::Request;

use super::{Service, ServiceParts};
use crate::auth::{Authorizer, CallerIdentity};
use crate::bill::Bills;
use crate::clock::Clock;
use crate::core::{Core, CoreSettings, Level, QueueLimits};
use crate::database::Database;
use crate::graphs::Graphs;
use crate::packages::StorePackages;
use crate::peers::Peers;
use crate::plans::RunPlans;
use crate::quotas::Quotas;
use crate::runs::StoreRuns;
use crate::secrets::StoreSecrets;
use crate::shell::Shell;
use crate::store::SqliteStore;
use crate::store_managers::StoreManagers;
use crate::tenants::StoreTenants;
use crate::tokens::{MAX_LOOKUPS_PER_SECOND, Tokens, ValidTokens};
use crate::uploads::Uploads;

struct ServiceFixture {
    service: Service,
    /// Another manager of the store.
    elsewhere: Tokens,
    signing: Signing,
    _folder: tempfile::TempDir,
}

const SEED: [u8; 32] = [7; 32];
const ARCHITECTURE: &str = "x86_64";

async fn fixture() -> ServiceFixture {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
    let peers = Peers::join(&store, 1).unwrap();
    let database = Database::new(Box::new(store));
    let settings = CoreSettings {
        epoch: 1,
        seed: 1,
        prices: Prices::default(),
        queue: QueueLimits::default(),
        balanced_bytes: None,
    };
    let clock = Clock::start();
    let shell = Shell::new(Core::new(settings), Signing::from_seed(&SEED), database.clone(), clock).unwrap();
    shell.set_quotas(Default::default()).unwrap();
    let tokens = || Tokens::new(database.clone(), ValidTokens::default());
    let service = Service::new(ServiceParts {
        shell: Arc::new(shell),
        authorizer: Arc::new(Authorizer::new(tokens(), clock)),
        tenants: Arc::new(StoreTenants::new(database.clone())),
        packages: StorePackages::new(database.clone(), clock),
        graphs: Graphs::new(database.clone(), clock),
        runs: StoreRuns::new(database.clone()),
        plans: Arc::new(RunPlans::new(700, Level::Rack)),
        secrets: StoreSecrets::new(database.clone(), clock, folder.path().join("secrets.key")),
        bills: Arc::new(Bills::new(database.clone(), clock)),
        store_managers: Arc::new(StoreManagers::new(database.clone(), peers, 1)),
        database: database.clone(),
        uploads: Uploads::new(),
        quotas: Arc::new(Quotas::new(database.clone())),
    });
    let fixture =
        ServiceFixture { service, elsewhere: tokens(), signing: Signing::from_seed(&SEED), _folder: folder };
    fixture.service.0.packages.deploy(PUBLIC, Arc::new(vec![1]), package()).await.unwrap();
    let node = NodeDescription {
        name: "n".into(),
        agent: "unix:/n".into(),
        architecture: ARCHITECTURE.into(),
        cores: 2,
        memory_bytes: 1 << 30,
        host: "h".into(),
        network: Some(network()),
        messages: sublet_proto::version::MESSAGES,
        ..NodeDescription::default()
    };
    let registration = Registration { node: Some(node), instance: "1".repeat(32), ..Registration::default() };
    fixture.service.register(by(CallerIdentity::local(0), registration)).await.unwrap();
    fixture
}

fn network() -> NodeNetwork {
    NodeNetwork {
        address: "192.0.2.7:7441".into(),
        certificate: vec![7; 100],
        fabrics: vec!["tcp".into()],
        encrypted: true,
    }
}

fn package() -> CheckedPackage {
    CheckedPackage {
        name: "p".into(),
        digest: package::digest(b"p"),
        functions: vec!["f".into()],
        builds: vec![PackageBuild { architecture: ARCHITECTURE.into(), ..PackageBuild::default() }],
        profiles: Vec::new(),
        needs: None,
        size_bytes: 1,
        package: Default::default(),
    }
}

fn by<T>(identity: CallerIdentity, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(identity);
    request
}

impl ServiceFixture {
    /// The text of a token that this manager has not heard of.
    async fn token(&self, tenant: &str) -> String {
        let asked =
            CreateTokenRequest { tenant: tenant.into(), role: Role::User.into(), ..Default::default() };
        self.elsewhere.create(asked, 1).await.unwrap().1
    }

    async fn request(&self, token: &str, cores: u32) -> Result<LeaseGrants, Error> {
        let asked = LeaseRequest { package: package::digest(b"p"), cores, ..LeaseRequest::default() };
        let caller = CallerIdentity::pending(token.parse().unwrap());
        answered(self.service.request_lease(by(caller, asked)).await)
    }

    async fn confirm(&self, grants: &LeaseGrants) -> Result<Ticket, Error> {
        let lease = grants.grants[0].lease.as_ref().unwrap().id.clone();
        let agent = CallerIdentity::local(0);
        let reply = answered(self.service.confirm_lease(by(agent, ConfirmRequest { lease })).await)?;
        self.open(&reply.ticket)
    }

    fn open(&self, ticket: &[u8]) -> Result<Ticket, Error> {
        Verifying::from_bytes(&self.signing.verifying_key())?.open(ticket)
    }

    /// Sends two reports of the agent: the first's answer lists the ended leases, the second acknowledges it.
    async fn report_twice(&self) {
        let registration =
            self.service.0.shell.look(|core| core.nodes().next().map(|node| node.registration));
        for sequence in 1..3 {
            let report = NodeReport {
                node: "n".into(),
                registration: registration.as_ref().unwrap().unwrap(),
                sequence,
                answered: sequence - 1,
                state: NodeState::Lending.into(),
                ..NodeReport::default()
            };
            answered(self.service.report(by(CallerIdentity::local(0), report)).await).unwrap();
        }
    }

    fn free_cores(&self) -> u32 {
        self.service.0.shell.look(|core| core.nodes().map(|node| node.free().cores).sum()).unwrap()
    }
}

fn answered<T>(result: Result<tonic::Response<T>, tonic::Status>) -> Result<T, Error> {
    result.map(tonic::Response::into_inner).map_err(|status| Error::from_status(&status))
}

#[tokio::test]
async fn a_lease_begins_before_its_token_is_verified_and_is_its_tenants_then() {
    let fixture = fixture().await;
    let granted = fixture.request(&fixture.token("t").await, 1).await.unwrap();
    let first = fixture.open(&granted.grants[0].ticket).unwrap();
    assert!(first.provisional && !first.token.is_empty());
    let confirmed = fixture.confirm(&granted).await.unwrap();
    let lease = confirmed.lease.unwrap();
    assert!(!confirmed.provisional);
    assert_eq!((lease.tenant.as_str(), confirmed.token), ("t", first.token));
    let used = |name: &str| fixture.service.0.shell.set_quota(name, Quota::default()).unwrap().cores;
    assert_eq!((used("t"), used(crate::names::UNVERIFIED)), (1, 0));
}

#[tokio::test]
async fn a_grant_says_how_its_node_is_reached() {
    let fixture = fixture().await;
    let granted = fixture.request(&fixture.token("t").await, 1).await.unwrap();
    let LeaseGrant { agent, host, network: reached, .. } = &granted.grants[0];
    assert_eq!((agent.as_str(), host.as_str(), reached), ("unix:/n", "h", &Some(network())));
}

#[tokio::test]
async fn a_lease_of_a_token_that_nobody_made_is_taken_back() {
    let fixture = fixture().await;
    let forged = format!("sublet_{}_{}", "0".repeat(16), "A".repeat(43));
    let granted = fixture.request(&forged, 1).await.unwrap();
    assert_eq!(fixture.confirm(&granted).await.unwrap_err().code, Code::Unauthenticated);
    fixture.report_twice().await;
    assert_eq!(fixture.free_cores(), 2);
}

#[tokio::test]
async fn a_lease_that_its_tenant_may_not_have_is_taken_back() {
    let fixture = fixture().await;
    let token = fixture.token("t").await;
    fixture.service.0.shell.set_quota("t", Quota { cores: Some(1), ..Quota::default() }).unwrap();
    let granted = fixture.request(&token, 2).await.unwrap();
    assert_eq!(fixture.confirm(&granted).await.unwrap_err().code, Code::QuotaExceeded);
    fixture.report_twice().await;
    assert_eq!(fixture.free_cores(), 2);
}

#[tokio::test]
async fn takes_back_a_lease_of_another_tenants_digest() {
    let fixture = fixture().await;
    let hers = CheckedPackage { name: "q".into(), digest: package::digest(b"q"), ..package() };
    let packages = &fixture.service.0.packages;
    packages.deploy("alice", Arc::new(b"q".to_vec()), hers).await.unwrap();
    for (tenant, code) in [("alice", None), ("t", Some(Code::UnknownPackage))] {
        let asked = LeaseRequest { package: package::digest(b"q"), cores: 1, ..LeaseRequest::default() };
        let caller = CallerIdentity::pending(fixture.token(tenant).await.parse().unwrap());
        let granted = answered(fixture.service.request_lease(by(caller, asked)).await).unwrap();
        assert_eq!(fixture.confirm(&granted).await.err().map(|error| error.code), code);
    }
    fixture.report_twice().await;
    assert_eq!(fixture.free_cores(), 1);
}

#[tokio::test]
async fn who_cannot_have_a_lease_at_once_hears_why_when_the_token_is_verified() {
    let fixture = fixture().await;
    let refused = fixture.request(&fixture.token("t").await, 3).await.unwrap_err();
    assert_eq!(refused.code, Code::InsufficientResources);
    let forged = format!("sublet_{}_{}", "0".repeat(16), "A".repeat(43));
    assert_eq!(fixture.request(&forged, 3).await.unwrap_err().code, Code::Unauthenticated);
}

#[tokio::test]
async fn agents_confirm_leases_of_their_own_node_only() {
    let fixture = fixture().await;
    let granted = fixture.request(&fixture.token("t").await, 1).await.unwrap();
    let asked = CreateTokenRequest { role: Role::Agent.into(), node: "other".into(), ..Default::default() };
    let (_, text) = fixture.elsewhere.create(asked, 1).await.unwrap();
    let shown = text.parse().unwrap();
    let record = fixture.service.0.authorizer.tokens.look_up(&shown, 1).await.unwrap();
    let lease = granted.grants[0].lease.as_ref().unwrap().id.clone();
    let request = by(CallerIdentity::of(shown.id, &record), ConfirmRequest { lease });
    let refused = answered(fixture.service.confirm_lease(request).await).unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied);
}

#[tokio::test]
async fn a_program_gets_a_core_of_its_unit_for_the_tenant_of_who_spawns_it() {
    let fixture = fixture().await;
    let neighbours = |name: &str, other: &str, pu: &str| NodeDescription {
        name: name.into(),
        pu: pu.into(),
        agent: format!("unix:/{name}"),
        architecture: ARCHITECTURE.into(),
        cores: 1,
        memory_bytes: 1 << 30,
        neighbours: vec![other.into()],
        ..NodeDescription::default()
    };
    for node in
        [neighbours("host", "dpu", ""), neighbours("dpu", "host", "dpu"), neighbours("far", "host", "")]
    {
        let registration =
            Registration { node: Some(node), instance: "2".repeat(32), ..Registration::default() };
        fixture.service.register(by(CallerIdentity::local(0), registration)).await.unwrap();
    }
    let ask = async |lease: &str, unit: &str| {
        let unit = sublet_proto::pu::id(unit, "cpu");
        let asked = ProcessLeaseRequest { lease: lease.into(), unit, ..ProcessLeaseRequest::default() };
        answered(fixture.service.lease_for_process(by(CallerIdentity::local(0), asked)).await)
    };
    let asked = LeaseRequest {
        package: package::digest(b"p"),
        cores: 1,
        near: vec!["host".into()],
        ..LeaseRequest::default()
    };
    let token = fixture.token("t").await;
    let caller = CallerIdentity::pending(token.parse().unwrap());
    let granted = answered(fixture.service.request_lease(by(caller, asked)).await).unwrap();
    let parent = granted.grants[0].lease.clone().unwrap();
    assert_eq!(parent.node, "host");
    assert_eq!(
        ask(&parent.id, "dpu").await.unwrap_err().code,
        Code::LeaseEnded,
        "the lease has no verified owner yet"
    );
    fixture.confirm(&granted).await.unwrap();
    let child = ask(&parent.id, "dpu").await.unwrap();
    let ticket = fixture.open(&child.ticket).unwrap();
    let lease = ticket.lease.unwrap();
    let is = (lease.node.as_str(), lease.tenant.as_str(), lease.pu.as_str(), lease.cores, lease.memory_bytes);
    assert_eq!(is, ("dpu", "t", "dpu", 1, parent.memory_bytes));
    assert!(!ticket.provisional && !ticket.token.is_empty() && child.agent == "unix:/dpu");
    assert_eq!(ask(&parent.id, "dpu").await.unwrap_err().code, Code::NoCapacity);
    assert_eq!(ask(&parent.id, "host").await.unwrap_err().code, Code::NoCapacity);
    assert_eq!(ask(&parent.id, "far").await.unwrap_err().code, Code::InvalidArgument, "it is not linked");
    assert_eq!(ask(&"0".repeat(32), "dpu").await.unwrap_err().code, Code::UnknownLease);
    let unit = sublet_proto::pu::id("dpu", "cpu");
    let of_nobody = ProcessLeaseRequest { lease: parent.id.clone(), unit, package: "nobody".into() };
    let refused = answered(fixture.service.lease_for_process(by(CallerIdentity::local(0), of_nobody)).await);
    assert_eq!(refused.unwrap_err().code, Code::UnknownPackage);
}

#[tokio::test]
async fn made_up_tokens_are_looked_up_at_a_bounded_rate() {
    let fixture = fixture().await;
    let tokens = &fixture.service.0.authorizer.tokens;
    for number in 0..MAX_LOOKUPS_PER_SECOND {
        let shown = format!("sublet_{number:016x}_{}", "A".repeat(43)).parse().unwrap();
        assert_eq!(tokens.look_up(&shown, 1).await.err().unwrap().code, Code::Unauthenticated);
    }
    let shown = fixture.token("t").await.parse().unwrap();
    assert_eq!(tokens.look_up(&shown, 1).await.err().unwrap().code, Code::TryLater);
    tokens.refresh(1).await.unwrap();
    tokens.look_up(&shown, 1).await.unwrap();
}

#[tokio::test]
async fn a_revocation_by_another_manager_is_seen_with_the_next_refresh() {
    let fixture = fixture().await;
    let text = fixture.token("t").await;
    let shown: crate::tokens::ShownToken = text.parse().unwrap();
    let tokens = &fixture.service.0.authorizer.tokens;
    tokens.look_up(&shown, 1).await.unwrap();
    fixture.elsewhere.revoke(&shown.id.to_string(), 2).await.unwrap();
    assert!(tokens.is_valid(shown.id, 3));
    tokens.refresh(3).await.unwrap();
    assert!(!tokens.is_valid(shown.id, 3));
    assert_eq!(tokens.look_up(&shown, 3).await.err().unwrap().code, Code::Unauthenticated);
}
