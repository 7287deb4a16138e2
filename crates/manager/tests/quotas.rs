//! Tests the limits of tenants' data in a running manager's store, and how it is freed.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use sublet_proto::v1::*;
use sublet_proto::{Code, Error};

use crate::common::*;

const MIB: u64 = 1 << 20;
const GRAPH: &str = r#"{"version":1,"name":"NAME","components":[{"name":"c","type":"compute","package":"x","function":"FUNCTION","entry":true}]}"#;

async fn set_quota(fixture: &mut ManagerFixture, tenant: &str, quota: Quota) {
    let asked = Tenant { name: tenant.into(), quota: Some(quota), ..Tenant::default() };
    let tenant = done(fixture.client.set_tenant(asked).await).unwrap();
    assert_eq!(tenant.quota, Some(quota));
    // The manager takes over all quotas at once: it has this one when it has a later one.
    let mut later = fixture.user("later").await.1;
    let asked = Tenant {
        name: "later".into(),
        quota: Some(Quota { graphs: Some(0), ..Quota::default() }),
        ..Tenant::default()
    };
    done(fixture.client.set_tenant(asked).await).unwrap();
    let (deadline, mut number) = (Instant::now() + PATIENCE, 0);
    let refused = loop {
        if let Err(error) = deploy_graph(&mut later, "g", &format!("f{number}")).await {
            break error;
        }
        assert!(Instant::now() < deadline, "the quota is not in force");
        tokio::time::sleep(Duration::from_millis(20)).await;
        number += 1;
    };
    assert_eq!(refused.code, Code::QuotaExceeded, "{refused}");
}

async fn stored(fixture: &mut ManagerFixture, tenant: &str) -> StoreUse {
    let tenants = done(fixture.client.list_tenants(ListTenantsRequest::default()).await).unwrap().tenants;
    tenants.into_iter().find(|known| known.name == tenant).and_then(|tenant| tenant.stored).unwrap()
}

async fn deploy_graph(client: &mut Client, name: &str, function: &str) -> Result<GraphInfo, Error> {
    let document = GRAPH.replace("NAME", name).replace("FUNCTION", function).into_bytes();
    done(client.deploy_graph(DeployGraphRequest { document }).await)
}

fn run_id(number: u32) -> String {
    format!("{number:032x}")
}

async fn begin(client: &mut Client, number: u32, input: usize) -> Result<RunInfo, Error> {
    let asked = BeginRunRequest {
        run: run_id(number),
        graph: "g".into(),
        input: vec![7; input],
        ..BeginRunRequest::default()
    };
    done(client.begin_run(asked).await)
}

async fn end_run(client: &mut Client, number: u32) {
    done(client.end_run(EndRunRequest { run: run_id(number), ..EndRunRequest::default() }).await).unwrap();
}

async fn runs(client: &mut Client) -> Vec<String> {
    let listed = done(client.list_runs(ListRunsRequest::default()).await).unwrap();
    listed.runs.into_iter().map(|run| run.run).collect()
}

async fn remove(client: &mut Client, name: &str, old_versions: bool) -> u32 {
    let asked = RemovePackageRequest { name: name.into(), old_versions };
    done(client.remove_package(asked).await).unwrap().versions
}

async fn collect(fixture: &mut ManagerFixture) -> CollectGarbageReply {
    done(fixture.client.collect_garbage(CollectGarbageRequest {}).await).unwrap()
}

/// Ends a lease, and reports the end as its node.
async fn end(fixture: &mut ManagerFixture, client: &mut Client, lease: String) {
    let asked = EndLeaseRequest { leases: vec![lease.clone()], ..EndLeaseRequest::default() };
    done(client.end_lease(asked).await).unwrap();
    fixture.agent.report(vec![used(&lease, LeaseState::Ended, 1)]).await.unwrap();
}

fn is_refused<T: std::fmt::Debug>(result: Result<T, Error>, option: &str) {
    let error = result.unwrap_err();
    assert!(error.code == Code::QuotaExceeded && error.message.contains(option), "{error}");
}

#[tokio::test]
async fn packages_beyond_the_quota_are_refused_until_some_are_removed() {
    let mut fixture = fixture_on_tcp().await;
    let mut alice = fixture.user("alice").await.1;
    let quota = Quota { store_bytes: Some(3 * MIB), packages: Some(2), ..Quota::default() };
    set_quota(&mut fixture, "alice", quota).await;
    let (first, second) = (encoded(MIB as usize), encoded(MIB as usize + 1));
    deploy(&mut alice, &first).await.unwrap();
    deploy(&mut alice, &second).await.unwrap();
    let used = stored(&mut fixture, "alice").await;
    assert!(used.packages == 2 && used.bytes > 2 * MIB, "{used:?}");
    is_refused(deploy(&mut alice, &encoded(MIB as usize + 2)).await, "--store");
    is_refused(deploy(&mut alice, &encoded(1)).await, "--packages");
    // The same content again takes no space.
    deploy(&mut alice, &second).await.unwrap();
    assert_eq!(remove(&mut alice, "x", true).await, 1);
    deploy(&mut alice, &encoded(1)).await.unwrap();
    assert_eq!(remove(&mut alice, "x", false).await, 2);
    assert_eq!(stored(&mut fixture, "alice").await.packages, 0);
    // Another tenant has a quota of its own, and an operator none.
    let mut bob = fixture.user("bob").await.1;
    deploy(&mut bob, &encoded(4 * MIB as usize)).await.unwrap();
}

#[tokio::test]
async fn graphs_and_journals_beyond_the_quota_are_refused() {
    let mut fixture = fixture_on_tcp().await;
    let mut alice = fixture.user("alice").await.1;
    deploy(&mut alice, &encoded(0)).await.unwrap();
    let quota = Quota { store_bytes: Some(MIB), graphs: Some(2), ..Quota::default() };
    set_quota(&mut fixture, "alice", quota).await;
    deploy_graph(&mut alice, "g", "f").await.unwrap();
    let other = deploy_graph(&mut alice, "g", "g").await.unwrap();
    is_refused(deploy_graph(&mut alice, "h", "f").await, "--graphs");
    let removal = RemoveGraphRequest { name: other.digest };
    assert_eq!(done(alice.remove_graph(removal).await).unwrap().removed.len(), 1);
    deploy_graph(&mut alice, "h", "f").await.unwrap();

    begin(&mut alice, 1, 256 << 10).await.unwrap();
    is_refused(begin(&mut alice, 2, 1 << 20).await, "--store");
    let entry = |number| JournalEntry { number, output: vec![7; 256 << 10], ..JournalEntry::default() };
    let journal = |number| JournalRequest { run: run_id(1), entries: vec![entry(number)], epoch: 0 };
    done(alice.journal(journal(1)).await).unwrap();
    done(alice.journal(journal(2)).await).unwrap();
    is_refused(done(alice.journal(journal(3)).await), "--store");
    // The messages of a run are removed at its end.
    end_run(&mut alice, 1).await;
    begin(&mut alice, 3, 256 << 10).await.unwrap();
}

#[tokio::test]
async fn the_oldest_ended_runs_make_way_for_new_ones() {
    let mut fixture = fixture_on_tcp().await;
    let mut alice = fixture.user("alice").await.1;
    deploy(&mut alice, &encoded(0)).await.unwrap();
    deploy_graph(&mut alice, "g", "f").await.unwrap();
    set_quota(&mut fixture, "alice", Quota { runs: Some(3), ..Quota::default() }).await;
    for number in 1..=3 {
        begin(&mut alice, number, 0).await.unwrap();
    }
    is_refused(begin(&mut alice, 4, 0).await, "--runs");
    end_run(&mut alice, 2).await;
    begin(&mut alice, 4, 0).await.unwrap();
    assert_eq!(runs(&mut alice).await, [run_id(4), run_id(3), run_id(1)]);

    let removal = |runs: &[u32]| RemoveRunsRequest { runs: runs.iter().copied().map(run_id).collect() };
    let refused = done(alice.remove_runs(removal(&[4])).await).unwrap_err();
    assert!(refused.code == Code::InvalidArgument && refused.message.contains("in progress"), "{refused}");
    assert_eq!(done(alice.remove_runs(removal(&[9])).await).unwrap_err().code, Code::UnknownRun);
    end_run(&mut alice, 4).await;
    end_run(&mut alice, 1).await;
    assert_eq!(done(alice.remove_runs(removal(&[4])).await).unwrap().removed, 1);
    assert_eq!(done(alice.remove_runs(removal(&[])).await).unwrap().removed, 1);
    assert_eq!(runs(&mut alice).await, [run_id(3)]);
    assert_eq!(stored(&mut fixture, "alice").await.runs, 1);
}

#[tokio::test]
async fn leases_of_a_day_are_bounded() {
    let mut fixture = fixture_on_tcp().await;
    let mut alice = fixture.user("alice").await.1;
    set_quota(&mut fixture, "alice", Quota { leases_per_day: Some(8), ..Quota::default() }).await;
    for _ in 0..2 {
        let granted = lease(&mut alice, 1).await.unwrap();
        end(&mut fixture, &mut alice, id(&granted)).await;
    }
    is_refused(lease(&mut alice, 1).await, "--leases-per-day");
    lease(&mut fixture.client, 1).await.unwrap();
}

#[tokio::test]
async fn only_what_nothing_refers_to_is_collected() {
    let mut fixture = fixture_on_tcp().await;
    let mut alice = fixture.user("alice").await.1;
    let package = encoded(MIB as usize);
    deploy(&mut alice, &package).await.unwrap();
    deploy_graph(&mut alice, "g", "f").await.unwrap();
    assert_eq!(collect(&mut fixture).await, CollectGarbageReply::default());
    // A lease, and then a run, need the package when its names are gone.
    let leased = lease(&mut alice, 1).await.unwrap();
    begin(&mut alice, 1, 0).await.unwrap();
    let removal = RemoveGraphRequest { name: "g".into() };
    let removed = done(alice.remove_graph(removal.clone()).await).unwrap();
    assert_eq!((removed.removed.len(), removed.kept), (0, 1));
    remove(&mut alice, "x", false).await;
    assert_eq!(collect(&mut fixture).await, CollectGarbageReply::default());
    end_run(&mut alice, 1).await;
    assert_eq!(collect(&mut fixture).await, CollectGarbageReply::default());
    end(&mut fixture, &mut alice, id(&leased)).await;
    let deadline = Instant::now() + PATIENCE;
    let mut collected = collect(&mut fixture).await;
    while collected.blobs == 0 {
        assert!(Instant::now() < deadline, "the ended lease still holds its package");
        tokio::time::sleep(Duration::from_millis(10)).await;
        collected = collect(&mut fixture).await;
    }
    assert!(collected.blobs == 1 && collected.bytes > MIB, "{collected:?}");
    // A tenant that deploys it again has it again.
    let again = deploy(&mut alice, &package).await.unwrap();
    assert!(!again.known);
    assert_eq!(collect(&mut fixture).await, CollectGarbageReply::default());
    let refused = done(alice.collect_garbage(CollectGarbageRequest {}).await).unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied);
}
