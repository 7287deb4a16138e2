//! Access tokens: what is unknown, revoked, expired or for something else opens nothing, and a token that a manager must
//! look up first releases nothing before the answer.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use sublet::{Access, Allocation, Code, Error};
use sublet_proto::v1::client_to_agent::Body as Said;
use sublet_proto::v1::{Attach, CreateTokenRequest, NodeState, Role};
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, TENANT, connect};
use sublet_tests::functions::package;
use sublet_tests::hand::{ByHand, ask};
use sublet_tests::platform::assert_echoes;
use sublet_tests::process::{PATIENCE, wait_until};

/// A token of the right form that no manager has issued.
fn made_up() -> String {
    format!("sublet_{}_{}", "0123456789abcdef", "A".repeat(43))
}

/// Tries to lease with this access.
fn try_to_lease(access: &Access) -> Result<(), Error> {
    let mut client = sublet::Invoker::connect_with(access.clone())?;
    client.allocate(&Allocation::new(package("calls.c")).wait(PATIENCE))?;
    client.submit("echo", b"hello", &mut [0u8; 5])?.wait()?;
    client.deallocate().map(|_| ())
}

fn wait_for_refusal(access: &Access) {
    wait_until("the token is refused", || match try_to_lease(access) {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error.code, Code::Unauthenticated, "{error}");
            true
        }
    });
}

#[test]
fn no_token_and_unknown_ones_open_nothing() {
    let cluster = Cluster::with_agents(1);
    let good = cluster.user_token(TENANT).secret;
    let mut other_secret = good.clone();
    other_secret.replace_range(good.len() - 4.., "AAAA");
    for token in [made_up(), other_secret, "sublet".into(), good[..good.len() - 1].into()] {
        let message = assert_fails(
            try_to_lease(&cluster.access(&cluster.addresses(), &token)),
            Code::Unauthenticated,
            &[],
        );
        assert!(!message.contains(&token), "{message}");
    }
    let none = Access::parse(&cluster.addresses()).unwrap().with_ca_file(&cluster.ca_file()).unwrap();
    assert_fails(try_to_lease(&none), Code::Unauthenticated, &[]);
    try_to_lease(&cluster.access(&cluster.addresses(), &good)).unwrap();
}

#[test]
fn a_revoked_token_ends_its_leases_and_gets_no_more() {
    let cluster = Cluster::with_agents(1);
    let made = cluster.user_token(TENANT);
    let access = cluster.access(&cluster.addresses(), &made.secret);
    let mut client = connect(&access);
    client.allocate(&Allocation::new(package("calls.c"))).unwrap();
    let lease = client.lease().unwrap().id.clone();
    assert_echoes(&client);
    let id = made.token.unwrap().id;
    let listed = cluster.json(&["token", "list"]);
    assert!(listed.to_string().contains(&id) && !listed.to_string().contains(&made.secret), "{listed}");
    cluster.json(&["token", "revoke", &id]);
    wait_until("its lease has ended", || {
        client.submit("echo", b"hello", &mut [0u8; 5]).and_then(sublet::Invocation::wait).is_err()
    });
    wait_for_refusal(&access);
    let line = cluster.final_bill(&lease);
    assert!(line.usage.unwrap().calls >= 1, "{line:?}");
    // Another of the same tenant is as good as before.
    cluster.assert_serves();
}

#[test]
fn an_expired_token_is_as_good_as_none() {
    let cluster = Cluster::with_agents(1);
    let made = cluster.token(&CreateTokenRequest {
        tenant: TENANT.into(),
        role: Role::User.into(),
        lifetime_ms: 3_000,
        ..CreateTokenRequest::default()
    });
    let access = cluster.access(&cluster.addresses(), &made.secret);
    try_to_lease(&access).unwrap();
    wait_for_refusal(&access);
    cluster.assert_serves();
}

#[test]
fn a_token_permits_only_its_role() {
    let mut cluster = Cluster::with_agents(1);
    let user = connect(&cluster.user(TENANT));
    let denied = Code::PermissionDenied;
    let role = |role: Role, node: &str| CreateTokenRequest {
        tenant: TENANT.into(),
        role: role.into(),
        node: node.into(),
        ..CreateTokenRequest::default()
    };
    assert_fails(user.manager().create_token(role(Role::User, "")), denied, &[]);
    assert_fails(user.manager().list_tokens(false), denied, &[]);
    assert_fails(user.manager().list_tenants(), denied, &[]);
    assert_fails(user.manager().set_tenant(Default::default()), denied, &[]);
    assert_fails(user.manager().revoke_token("0123456789abcdef"), denied, &[]);

    let agent = cluster.token(&role(Role::Agent, "node-7"));
    let access = cluster.access(&cluster.addresses(), &agent.secret);
    assert_fails(try_to_lease(&access), denied, &[]);
    // Nor does it lend another node, and only an agent's token lends any.
    let user = cluster.user_token(TENANT);
    for (name, token) in [("node-8", agent.secret.as_str()), ("node-7", user.secret.as_str())] {
        let mut refused = cluster.begin_agent(name, token, LentCores::cores(1), &[]);
        wait_until("the agent gives up", || !refused.is_running());
        assert!(refused.log().contains(name) || refused.log().contains("agent"), "{}", refused.log());
        assert!(cluster.node(name).is_none());
    }
    let operator = cluster.token(&role(Role::Operator, ""));
    let operator = connect(&cluster.access(&cluster.addresses(), &operator.secret));
    operator.manager().list_tokens(false).unwrap();
    cluster.add_agent(LentCores::cores(1));
    cluster.assert_serves();
}

#[test]
fn revoking_an_agents_token_removes_its_node_without_ending_calls() {
    let cluster = Cluster::with_agents(1);
    let client = cluster.client("calls.c");
    let tokens = cluster.operator().manager().list_tokens(false).unwrap();
    let agents: Vec<_> = tokens.iter().filter(|token| token.role() == Role::Agent).collect();
    cluster.operator().manager().revoke_token(&agents[0].id).unwrap();
    wait_until("the node is lost", || {
        cluster.node("node-0").is_none_or(|node| node.state() == NodeState::Lost)
    });
    assert_echoes(&client);
    assert!(connect(&cluster.user(TENANT)).allocate(&Allocation::new(package("calls.c"))).is_err());
}

/// Two managers, and an agent of each: where a lease is granted is where its node reports to.
fn two_managers() -> Cluster {
    let mut cluster = Cluster::start(ClusterPlan::of_managers(2));
    cluster.add_agent(LentCores::cores(1));
    cluster
}

#[test]
fn nothing_is_released_before_the_token_is_verified() {
    let cluster = two_managers();
    try_to_lease(&cluster.user(TENANT)).unwrap();
    let mut client = cluster.invoker();
    client.allocate(&Allocation::new(package("calls.c")).wait(PATIENCE)).unwrap();
    let digest = client.package().unwrap().digest.clone();
    client.deallocate().unwrap();
    cluster.wait_until_idle();
    let nats = cluster.nats.as_ref().unwrap();
    nats.pause();
    // No manager can tell yet that this token is invalid.
    let owner = cluster.managers.iter().find(|manager| manager.hears_of("node-0")).unwrap();
    let grant = ask(&cluster.access(&owner.address, &made_up()), &digest).unwrap();
    let agent = ByHand::to(&grant);
    agent.say(Said::Attach(Attach { ticket: grant.ticket.clone(), start: true, ..Attach::default() }));
    let early = agent.socket().receive(Some(Duration::from_secs(1)));
    assert!(early.is_err(), "something was released before the token was known");
    nats.resume();
    let refused = agent.hear().expect_err("an unknown token has got a lease");
    assert_eq!(refused.code, Code::Unauthenticated, "{refused}");
    wait_until("its core is free again", || cluster.agents[0].workers().is_empty());
    cluster.wait_until_idle();
    cluster.assert_serves();
}

#[test]
fn a_token_just_issued_by_another_manager_is_valid() {
    let cluster = two_managers();
    for _ in 0..5 {
        for manager in &cluster.managers {
            // Made by the first, shown to both at once.
            let token = cluster.user_token(TENANT).secret;
            let addresses = format!("{},{}", manager.address, cluster.addresses());
            try_to_lease(&cluster.access(&addresses, &token)).unwrap();
        }
    }
}
