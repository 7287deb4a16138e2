//! Tests access to a manager: TLS, tokens, roles, tenants and their quotas, over real sockets.

#![allow(clippy::unwrap_used)]

use sublet_manager::{Manager, Tls};
use sublet_proto::v1::manager_client::ManagerClient;
use sublet_proto::v1::nodes_client::NodesClient;
use sublet_proto::v1::*;
use sublet_proto::{Code, Error};
use tonic::transport::Endpoint;

use crate::common::*;

fn agent_token(node: &str, max_cores: u32) -> CreateTokenRequest {
    CreateTokenRequest {
        role: Role::Agent.into(),
        node: node.into(),
        max_cores,
        max_memory_bytes: 1 << 30,
        ..CreateTokenRequest::default()
    }
}

async fn packages(client: &mut Client) -> Result<PackageList, Error> {
    done(client.list_packages(ListPackagesRequest::default()).await)
}

#[tokio::test]
async fn only_those_who_trust_the_managers_authority_connect() {
    let mut fixture = fixture_on_tcp().await;
    let (_, mut user) = fixture.user("t").await;
    assert_eq!(packages(&mut user).await.unwrap().packages.len(), 1);
    let other = fixture_on_tcp().await;
    assert!(
        secure(&fixture.manager, &other.ca(), "localhost").await.is_err(),
        "another authority is trusted"
    );
    assert!(secure(&fixture.manager, &fixture.ca(), "elsewhere").await.is_err(), "another name is accepted");
    let clear = Endpoint::from_shared(format!("http://{}", fixture.manager.addresses()[0])).unwrap();
    if let Ok(channel) = clear.connect().await {
        let mut client = ManagerClient::with_interceptor(channel, Bearer::default());
        assert_eq!(packages(&mut client).await.unwrap_err().code, Code::ManagerUnreachable);
    }
}

#[tokio::test]
async fn the_authority_outlives_the_manager() {
    let fixture = fixture_on_tcp().await;
    let ca = fixture.ca();
    let ManagerFixture { folder, manager, .. } = fixture;
    manager.stop().await.unwrap();
    let mut options = options(folder.path());
    options.listen = vec!["127.0.0.1:0".parse().unwrap()];
    options.tls = Tls::Generated { names: vec!["manager.example".into()] };
    let manager = Manager::start(options).await.unwrap();
    secure(&manager, &ca, "localhost").await.unwrap();
    secure(&manager, &ca, "manager.example").await.unwrap();
}

#[tokio::test]
async fn without_tls_a_manager_listens_on_loopback_only() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.tls = Tls::Plain;
    options.listen = vec!["0.0.0.0:0".parse().unwrap()];
    let refused = Manager::start(options).await.err().unwrap();
    assert!(refused.code == Code::InvalidArgument && refused.message.contains("0.0.0.0"), "{refused}");
    let fixture = fixture_with(plain).await;
    let clear = Endpoint::from_shared(format!("http://{}", fixture.manager.addresses()[0])).unwrap();
    let mut client = ManagerClient::with_interceptor(clear.connect().await.unwrap(), Bearer::default());
    assert_eq!(packages(&mut client).await.unwrap_err().code, Code::Unauthenticated);
}

#[tokio::test]
async fn a_token_that_is_not_good_opens_nothing() {
    let mut fixture = fixture_on_tcp().await;
    let (token, secret) = fixture.token(user_token("t")).await;
    let short = CreateTokenRequest { lifetime_ms: 1, ..user_token("t") };
    let (_, expired) = fixture.token(short).await;
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    let changed = format!("{}{}", &secret[..secret.len() - 4], "AAAA");
    let unknown = secret.replace(&token.id, &"0".repeat(16));
    for bad in ["", "sublet_", "x", &changed, &unknown, &expired, &"x".repeat(10_000)] {
        let refused = packages(&mut fixture.as_token(bad).await).await.unwrap_err();
        assert_eq!(refused.code, Code::Unauthenticated, "{bad}: {refused}");
        assert!(bad.len() < 20 || !refused.message.contains(bad), "the token is repeated");
        let refused = lease(&mut fixture.as_token(bad).await, 1).await;
        // A token that the store does not know may get a provisional ticket, which no agent obeys.
        assert!(refused.is_err() || bad == unknown, "{bad}");
    }
    let refused =
        packages(&mut ManagerClient::with_interceptor(fixture.channel().await, Bearer::default())).await;
    assert!(refused.unwrap_err().message.contains("none was shown"));

    let mut user = fixture.as_token(&secret).await;
    packages(&mut user).await.unwrap();
    let revoked =
        done(fixture.client.revoke_token(RevokeTokenRequest { id: token.id.clone() }).await).unwrap();
    assert!(revoked.revoked_unix_ms > 0);
    assert_eq!(packages(&mut user).await.unwrap_err().code, Code::Unauthenticated);
    let list = |include_revoked| ListTokensRequest { include_revoked, ..Default::default() };
    let tokens = done(fixture.client.list_tokens(list(true)).await).unwrap().tokens;
    assert!(tokens.iter().any(|listed| listed.id == token.id));
    let tokens = done(fixture.client.list_tokens(list(false)).await).unwrap().tokens;
    assert!(!tokens.iter().any(|listed| listed.id == token.id));
}

#[tokio::test]
async fn each_role_may_do_its_own() {
    let mut fixture = fixture_on_tcp().await;
    let (_, mut user) = fixture.user("t").await;
    let operator = CreateTokenRequest { role: Role::Operator.into(), ..CreateTokenRequest::default() };
    let (_, operator) = fixture.token(operator).await;
    let (_, agent) = fixture.token(agent_token("m", 4)).await;

    let denied = done(user.create_token(user_token("t")).await).unwrap_err();
    assert!(denied.code == Code::PermissionDenied && denied.message.contains("an operator"), "{denied}");
    assert_eq!(
        done(user.list_tenants(ListTenantsRequest::default()).await).unwrap_err().code,
        Code::PermissionDenied
    );
    let denied = lease(&mut fixture.as_token(&agent).await, 1).await.unwrap_err();
    assert_eq!(denied.code, Code::PermissionDenied, "{denied}");
    let mut operator = fixture.as_token(&operator).await;
    done(operator.list_tenants(ListTenantsRequest::default()).await).unwrap();

    let described = NodeDescription { name: "m".into(), ..node() };
    let agent = NodesClient::with_interceptor(fixture.channel().await, Bearer::of(&agent));
    let denied = AgentFixture::register_as(agent.clone(), node(), Vec::new()).await.err().unwrap();
    assert!(denied.code == Code::PermissionDenied && denied.message.contains("\"m\""), "{denied}");
    let many = NodeDescription { cores: 5, ..described.clone() };
    let denied = AgentFixture::register_as(agent.clone(), many, Vec::new()).await.err().unwrap();
    assert!(denied.message.contains("5 cores") && denied.message.contains("allows 4"), "{denied}");
    let large = NodeDescription { memory_bytes: 2 << 30, ..described.clone() };
    assert_eq!(
        AgentFixture::register_as(agent.clone(), large, Vec::new()).await.err().unwrap().code,
        Code::PermissionDenied
    );
    let mut registered = AgentFixture::register_as(agent, described, Vec::new()).await.unwrap();
    registered.report(Vec::new()).await.unwrap();
    registered.name = "n".into();
    assert_eq!(registered.report(Vec::new()).await.unwrap_err().code, Code::PermissionDenied);
}

#[tokio::test]
async fn an_agent_whose_token_is_revoked_is_not_heard() {
    let mut fixture = fixture_on_tcp().await;
    let (token, secret) = fixture.token(agent_token("m", 0)).await;
    let agent = NodesClient::with_interceptor(fixture.channel().await, Bearer::of(&secret));
    let described = NodeDescription { name: "m".into(), ..node() };
    let mut agent = AgentFixture::register_as(agent, described, Vec::new()).await.unwrap();
    agent.report(Vec::new()).await.unwrap();
    fixture.client.revoke_token(RevokeTokenRequest { id: token.id }).await.unwrap();
    assert_eq!(agent.report(Vec::new()).await.unwrap_err().code, Code::Unauthenticated);
}

#[tokio::test]
async fn the_leases_of_a_revoked_token_end() {
    let mut fixture = fixture_on_tcp().await;
    let (token, mut user) = fixture.user("t").await;
    let attached = lease(&mut user, 1).await.unwrap();
    fixture.agent.report(vec![used(&id(&attached), LeaseState::Attached, 1)]).await.unwrap();
    let unattached = lease(&mut user, 1).await.unwrap();
    fixture.client.revoke_token(RevokeTokenRequest { id: token.id }).await.unwrap();
    let reply = fixture.agent.report(vec![used(&id(&attached), LeaseState::Attached, 2)]).await.unwrap();
    let ended: Vec<_> = reply.end.iter().map(|order| (order.lease.clone(), order.code)).collect();
    let both = [id(&attached), id(&unattached)].map(|lease| (lease, Code::Unauthenticated.number()));
    assert_eq!(ended, both);
    fixture.agent.report(vec![used(&id(&attached), LeaseState::Attached, 3)]).await.unwrap();
    let left = done(fixture.client.list_leases(ListLeasesRequest::default()).await).unwrap().leases;
    assert!(!left.iter().any(|lease| lease.id == id(&unattached)), "the lease continues");
}

#[tokio::test]
async fn what_is_another_tenants_is_not_there() {
    let mut fixture = fixture_on_tcp().await;
    let (_, mut mine) = fixture.user("mine").await;
    let (_, mut other) = fixture.user("other").await;
    let lease = id(&lease(&mut mine, 1).await.unwrap());
    fixture.agent.report(vec![used(&lease, LeaseState::Attached, 5)]).await.unwrap();
    let renew = RenewRequest { lease: lease.clone(), timeout_ms: 1000 };
    assert_eq!(done(other.renew_lease(renew).await).unwrap_err().code, Code::UnknownLease);
    let end = EndLeaseRequest { leases: vec![lease.clone()], wait_ms: 0 };
    assert_eq!(done(other.end_lease(end).await).unwrap_err().code, Code::UnknownLease);
    for include_ended in [false, true] {
        let listed = done(other.list_leases(ListLeasesRequest { include_ended, ..Default::default() }).await)
            .unwrap()
            .leases;
        assert!(listed.is_empty(), "{listed:?}");
    }
    let of_lease = BillRequest { lease: lease.clone(), ..BillRequest::default() };
    until("its tenant has a bill", async || done(mine.clone().bill(of_lease.clone()).await).ok()).await;
    assert_eq!(done(other.bill(of_lease).await).unwrap_err().code, Code::UnknownLease);
    let of_tenant = BillRequest { tenant: "mine".into(), ..BillRequest::default() };
    assert_eq!(done(other.bill(of_tenant).await).unwrap_err().code, Code::PermissionDenied);
    assert!(done(other.bill(BillRequest::default()).await).unwrap().lines.is_empty());
}

#[tokio::test]
async fn a_tenant_gets_what_its_quota_allows() {
    let mut fixture = fixture_on_tcp().await;
    let (_, mut user) = fixture.user("t").await;
    let quotas = [
        (Quota { cores: Some(1), ..Quota::default() }, "cores"),
        (Quota { memory_bytes: Some(1 << 20), ..Quota::default() }, "memory"),
        (Quota { leases: Some(0), ..Quota::default() }, "leases"),
    ];
    for (quota, what) in quotas {
        let set = Tenant { name: "t".into(), quota: Some(quota), ..Tenant::default() };
        fixture.client.set_tenant(set).await.unwrap();
        let refused = lease(&mut user, 2).await.unwrap_err();
        assert!(refused.code == Code::QuotaExceeded && refused.message.contains(what), "{refused}");
    }
    let spend = Quota { spend_nano: Some(1), ..Quota::default() };
    let set = Tenant { name: "t".into(), quota: Some(spend), ..Tenant::default() };
    fixture.client.set_tenant(set).await.unwrap();
    let granted = lease(&mut user, 1).await.unwrap();
    let reply = fixture.agent.report(vec![used(&id(&granted), LeaseState::Attached, 500)]).await.unwrap();
    assert_eq!(reply.end[0].code, Code::QuotaExceeded.number());
    assert_eq!(lease(&mut user, 1).await.unwrap_err().code, Code::QuotaExceeded);
    lease(&mut fixture.client, 1).await.unwrap();
    let bad = Tenant { name: "a/b".into(), ..Tenant::default() };
    assert_eq!(done(fixture.client.set_tenant(bad).await).unwrap_err().code, Code::InvalidArgument);
}

#[tokio::test]
async fn tokens_quotas_and_spending_outlive_the_manager() {
    let mut fixture = fixture_on_tcp().await;
    let (_, secret) = fixture.token(user_token("t")).await;
    let quota = Quota { cores: Some(1), spend_nano: Some(1_000_000), ..Quota::default() };
    let set = Tenant { name: "t".into(), quota: Some(quota), ..Tenant::default() };
    fixture.client.set_tenant(set).await.unwrap();
    let mut user = fixture.as_token(&secret).await;
    let granted = lease(&mut user, 1).await.unwrap();
    fixture.agent.report(vec![used(&id(&granted), LeaseState::Ended, 500)]).await.unwrap();
    let ManagerFixture { folder, manager, .. } = fixture;
    manager.stop().await.unwrap();

    let mut options = options(folder.path());
    options.listen = vec!["127.0.0.1:0".parse().unwrap()];
    let manager = Manager::start(options).await.unwrap();
    let _agent = AgentFixture::register(&manager, node(), Vec::new()).await;
    let ca = std::fs::read_to_string(folder.path().join("state/tls/ca.pem")).unwrap();
    let channel = secure(&manager, &ca, "localhost").await.unwrap();
    let mut user = ManagerClient::with_interceptor(channel, Bearer::of(&secret));
    assert_eq!(lease(&mut user, 2).await.unwrap_err().code, Code::QuotaExceeded);
    let mut operator = ManagerClient::with_interceptor(local(&manager).await, Bearer::default());
    let tenants = done(operator.list_tenants(ListTenantsRequest::default()).await).unwrap().tenants;
    let tenant = tenants.iter().find(|tenant| tenant.name == "t").unwrap();
    assert_eq!(tenant.quota, Some(quota));
    // Half a second of computing, and the memory meanwhile.
    let spent_nano = tenant.r#use.unwrap().spent_nano;
    assert!((10_000..10_100).contains(&spent_nano), "{spent_nano}");
}

#[tokio::test]
async fn many_clients_at_once_are_all_answered() {
    const CLIENTS: usize = 300;
    let mut fixture = fixture_on_tcp().await;
    let (_, secret) = fixture.token(user_token("t")).await;
    let (ca, address) = (fixture.ca(), fixture.manager.addresses()[0]);
    let clients = (0..CLIENTS).map(|_| {
        let (ca, secret) = (ca.clone(), secret.clone());
        tokio::spawn(async move {
            let tls = tonic::transport::ClientTlsConfig::new()
                .ca_certificate(tonic::transport::Certificate::from_pem(ca))
                .domain_name("localhost");
            let endpoint =
                Endpoint::from_shared(format!("https://{address}")).unwrap().tls_config(tls).unwrap();
            let channel = endpoint.connect().await.unwrap();
            let mut client = ManagerClient::with_interceptor(channel, Bearer::of(&secret));
            lease(&mut client, 1).await.map(|grant| id(&grant))
        })
    });
    let mut granted = 0;
    for client in clients.collect::<Vec<_>>() {
        match tokio::time::timeout(4 * PATIENCE, client).await.expect("a client hangs").unwrap() {
            Ok(_) => granted += 1,
            Err(refused) => assert_eq!(refused.code, Code::NoCapacity, "{refused}"),
        }
    }
    assert_eq!(granted, 2);
}
