//! Tickets that do not hold: forged, shown again or too late, for another node, of an earlier registration, and another
//! tenant's. Each is refused with the reason, and what is not refused works.

#![allow(clippy::unwrap_used)]

use std::thread::sleep;
use std::time::Duration;

use prost::Message;
use sublet::{Access, Allocation, Code, Error, Invoker};
use sublet_proto::ticket::{ATTACH_GRACE_MS, Signing};
use sublet_proto::v1::agent_to_client::Body as Heard;
use sublet_proto::v1::client_to_agent::Body as Said;
use sublet_proto::v1::{LeaseGrant, LeaseRequest, Renew, SignedTicket, Ticket};
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, TENANT, connect};
use sublet_tests::functions::package;
use sublet_tests::hand::ByHand;
use sublet_tests::process::{PATIENCE, PATIENCE_MS};
use sublet_tests::rounds::wait_for_reports;

/// Deploys the functions by taking a lease, and gives their digest.
fn deploy(access: &Access) -> String {
    let mut client = connect(access);
    client.allocate(&Allocation::new(package("calls.c")).wait(PATIENCE)).unwrap();
    let digest = client.package().unwrap().digest.clone();
    client.deallocate().unwrap();
    digest
}

fn request(client: &Invoker, package: &str) -> LeaseGrant {
    let request = LeaseRequest {
        package: package.to_owned(),
        cores: 1,
        wait_ms: u64::from(PATIENCE_MS),
        ..LeaseRequest::default()
    };
    client.manager().request_lease(request).unwrap().grants.remove(0)
}

/// Error with which the agent refuses a ticket.
#[track_caller]
fn refused(grant: &LeaseGrant, ticket: &[u8]) -> Error {
    let (_, answer) = ByHand::show(grant, ticket);
    answer.expect_err("the ticket is refused")
}

#[track_caller]
fn taken(grant: &LeaseGrant) -> ByHand {
    let (agent, answer) = ByHand::show(grant, &grant.ticket);
    assert!(matches!(answer, Ok(Heard::Attached(_))), "{answer:?}");
    agent
}

#[test]
fn only_a_forged_ticket_is_refused() {
    let cluster = Cluster::with_agents(1);
    let access = cluster.user(TENANT);
    let package = deploy(&access);
    let client = connect(&access);
    let grant = request(&client, &package);
    // Every 7th bit of it, so that each field is met and each place in a byte.
    for bit in (0..grant.ticket.len() * 8).step_by(7) {
        let mut forged = grant.ticket.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        let error = refused(&grant, &forged);
        assert!(matches!(error.code, Code::PermissionDenied | Code::Protocol), "bit {bit}: {error}");
    }
    for cut in [0, 1, grant.ticket.len() / 2, grant.ticket.len() - 1] {
        let error = refused(&grant, &grant.ticket[..cut]);
        assert!(matches!(error.code, Code::PermissionDenied | Code::Protocol), "{cut} bytes: {error}");
    }
    // The same ticket with more cores, signed by another key.
    let signed = SignedTicket::decode(grant.ticket.as_slice()).unwrap();
    let mut ticket = Ticket::decode(signed.ticket.as_slice()).unwrap();
    ticket.lease.as_mut().unwrap().cores += 1;
    let mut resigned = signed.clone();
    resigned.ticket = ticket.encode_to_vec();
    for forged in [Signing::from_seed(&[7; 32]).sign(&ticket), resigned.encode_to_vec()] {
        assert_eq!(refused(&grant, &forged).code, Code::PermissionDenied);
    }
    taken(&grant).release();
    cluster.assert_serves();
}

#[test]
fn accepts_a_ticket_for_one_attachment() {
    let mut cluster = Cluster::with_agents(1);
    cluster.add_agent(LentCores::cores(1));
    let access = cluster.user(TENANT);
    let package = deploy(&access);
    let grant = request(&connect(&access), &package);
    let agent = taken(&grant);
    assert_eq!(refused(&grant, &grant.ticket).code, Code::PermissionDenied);
    agent.release();
    assert_eq!(refused(&grant, &grant.ticket).code, Code::PermissionDenied);
    // The agent forgets the lease when its end is stored, and the ticket when that is too old anyway.
    cluster.final_bill(&grant.lease.as_ref().unwrap().id);
    wait_for_reports(&cluster.managers[0], &grant.lease.as_ref().unwrap().node, 2);
    assert_eq!(refused(&grant, &grant.ticket).code, Code::PermissionDenied);
    // Nor is it good elsewhere.
    let grant = request(&connect(&access), &package);
    let other = usize::from(grant.lease.as_ref().unwrap().node == "node-0");
    let socket = cluster.folder().join(format!("node-{other}/agent.sock"));
    let elsewhere = LeaseGrant { agent: format!("unix:{}", socket.display()), ..grant.clone() };
    let error = refused(&elsewhere, &grant.ticket);
    assert_eq!(error.code, Code::PermissionDenied, "{error}");
    assert!(error.message.contains(&format!("node-{other}")), "{error}");
    taken(&grant).release();
}

#[test]
fn a_late_ticket_is_refused_and_its_core_freed() {
    let cluster = Cluster::with_agents(1);
    let access = cluster.user(TENANT);
    let package = deploy(&access);
    let late = request(&connect(&access), &package);
    sleep(Duration::from_millis(ATTACH_GRACE_MS + 500));
    let error = refused(&late, &late.ticket);
    assert_eq!(error.code, Code::PermissionDenied, "{error}");
    cluster.assert_serves();
    // One whose lease was over before it was shown.
    let client = connect(&access);
    let short = LeaseRequest {
        package,
        cores: 1,
        timeout_ms: 1_000,
        wait_ms: u64::from(PATIENCE_MS),
        ..Default::default()
    };
    let short = client.manager().request_lease(short).unwrap().grants.remove(0);
    sleep(Duration::from_millis(1_500));
    assert_eq!(refused(&short, &short.ticket).code, Code::LeaseExpired);
    cluster.assert_serves();
    let bill = cluster.json(&["bill", "--tenant", TENANT]);
    let leases: Vec<_> = bill["leases"].as_array().unwrap().iter().map(|line| &line["lease"]).collect();
    for grant in [late, short] {
        let id = grant.lease.unwrap().id;
        assert!(
            !leases.contains(&&id.as_str().into()),
            "a lease that no client attached to is charged: {leases:?}"
        );
    }
}

#[test]
fn a_ticket_of_an_earlier_registration_is_superseded() {
    let mut cluster = Cluster::with_agents(1);
    let access = cluster.user(TENANT);
    let package = deploy(&access);
    let before = request(&connect(&access), &package);
    cluster.agents[0].restart();
    let error = refused(&before, &before.ticket);
    assert_eq!(error.code, Code::TicketSuperseded, "{error}");
    // The core that it was for is free, and the library's clients do not notice.
    cluster.assert_serves();
}

#[test]
fn another_tenants_lease_is_nobodys_to_renew_end_or_see() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent(LentCores::cores(2));
    let (ours, theirs) = (cluster.user("ours"), cluster.user("theirs"));
    let package = deploy(&ours);
    let (our_client, their_client) = (connect(&ours), connect(&theirs));
    let grant = request(&our_client, &package);
    let lease = grant.lease.clone().unwrap().id;
    let agent = taken(&grant);
    let unknown =
        |error: Error| assert!(matches!(error.code, Code::UnknownLease | Code::PermissionDenied), "{error}");
    unknown(their_client.manager().renew_lease(&lease, 60_000).unwrap_err());
    unknown(their_client.manager().end_lease(&lease).unwrap_err());
    assert!(their_client.manager().leases_with_ended().unwrap().is_empty());
    let bill = their_client.manager().bill(Default::default()).unwrap();
    assert!(bill.lines.is_empty(), "{bill:?}");
    // Neither a forged ticket renews ours nor a good one of their own lease on the same node.
    our_client.manager().renew_lease(&lease, 60_000).unwrap();
    let forged =
        Signing::from_seed(&[7; 32]).sign(&Ticket { lease: grant.lease.clone(), ..Ticket::default() });
    let their_grant = request(&their_client, &deploy(&theirs));
    let their_agent = taken(&their_grant);
    let good = their_client.manager().renew_lease(&their_grant.lease.as_ref().unwrap().id, 60_000).unwrap();
    for ticket in [forged, good.ticket] {
        agent.say(Said::Renew(Renew { ticket }));
        let refused = agent.hear().expect_err("a ticket of another lease renews ours");
        assert_eq!(refused.code, Code::PermissionDenied, "{refused}");
    }
    their_agent.release();
    let renewed = our_client.manager().renew_lease(&lease, 120_000).unwrap();
    agent.say(Said::Renew(Renew { ticket: renewed.ticket }));
    assert!(matches!(agent.hear(), Ok(Heard::Renewed(_))));
    agent.release();
}
