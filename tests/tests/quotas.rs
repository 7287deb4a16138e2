//! Tests the quotas of a tenant: cores, memory, leases, money. A request beyond a quota is refused with the quota's
//! name, and other tenants are not affected.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use sublet::{Allocation, Code, Error, Invoker};
use sublet_proto::v1::Quota;
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, ManagerProcess, connect};
use sublet_tests::functions::package;
use sublet_tests::platform::assert_echoes;
use sublet_tests::process::{PATIENCE, wait_until};

const MIB: u64 = 1 << 20;

fn allocation() -> Allocation {
    Allocation::new(package("calls.c")).memory_bytes(64 * MIB)
}

fn busy(client: &Invoker, ms: u32) -> Result<(), Error> {
    client.submit("busy", &[ms], &mut [0u8; 0])?.wait().map(drop)
}

#[test]
fn requests_beyond_a_quota_are_refused_by_its_name() {
    let cluster = Cluster::with_agents(2);
    let access = cluster.user("bounded");
    for (quota, two_are, named) in [
        (Quota { cores: Some(1), ..Quota::default() }, "core", "1"),
        (Quota { memory_bytes: Some(100 * MIB), ..Quota::default() }, "memory", "104857600"),
        (Quota { leases: Some(1), ..Quota::default() }, "lease", "1"),
    ] {
        cluster.set_quota("bounded", quota);
        let (mut first, mut second) = (connect(&access), connect(&access));
        let mut granted = || first.allocate(&allocation());
        // The manager takes a new quota up at once; what the lease before has used, when its end is reported.
        wait_until("the quota has free capacity", || granted().is_ok());
        let waiting = allocation().wait(Duration::from_millis(300));
        for refused in [second.allocate(&allocation()), second.allocate(&waiting)] {
            assert_fails(refused, Code::QuotaExceeded, &["bounded", two_are, named]);
        }
        assert_echoes(&first);
        // The other core is there for others.
        cluster.assert_serves();
        let tenants = cluster.json(&["tenant", "list"]);
        assert!(tenants.to_string().contains("bounded"), "{tenants}");
    }
    // More than the quota in one request; and then without any.
    cluster.set_quota("bounded", Quota { cores: Some(1), ..Quota::default() });
    let mut client = connect(&access);
    let two = Allocation::new(package("calls.c")).cores(2).wait(PATIENCE);
    assert_fails(client.allocate(&two), Code::QuotaExceeded, &["2", "1"]);
    cluster.set_quota("bounded", Quota::default());
    client.allocate(&two).unwrap();
    assert_echoes(&client);
}

#[test]
fn a_lease_whose_node_goes_to_another_manager_counts_once() {
    let mut cluster = Cluster::start(ClusterPlan::of_managers(2));
    // One core more than the tenant may have, so that it is the quota that refuses.
    for cores in [2, 1] {
        cluster.add_agent(LentCores::cores(cores));
    }
    let access = cluster.user("moved");
    cluster.set_quota("moved", Quota { cores: Some(2), leases: Some(2), ..Quota::default() });
    let mut holder = connect(&access);
    holder.allocate(&allocation()).unwrap();
    let lease = holder.lease().unwrap().id.clone();
    let in_use = |manager: &ManagerProcess| {
        let tenants = manager.operator().manager().list_tenants().unwrap();
        let moved = tenants.into_iter().find(|tenant| tenant.name == "moved").unwrap_or_default();
        moved.r#use.unwrap_or_default().leases
    };
    let first = usize::from(!cluster.managers[0].hears_of("node-0"));
    let (before, after) = (&cluster.managers[first], &cluster.managers[1 - first]);
    before.pause();
    let nodes = ["node-0", "node-1"];
    wait_until("the agents are with the other manager", || nodes.iter().all(|node| after.hears_of(node)));
    before.resume();
    wait_until("the manager before knows that they have gone", || before.nodes().is_empty());
    wait_until("both count the lease once", || [before, after].map(in_use) == [1, 1]);
    assert_echoes(&holder);
    // Up to the quota, and no further; and what has moved ends as it would have.
    let mut second = connect(&access);
    second.allocate(&allocation().wait(PATIENCE)).unwrap();
    assert_echoes(&second);
    assert_fails(connect(&access).allocate(&allocation()), Code::QuotaExceeded, &["moved", "2"]);
    let usage = holder.deallocate().unwrap();
    assert_eq!(cluster.final_bill(&lease).usage.unwrap(), usage);
}

#[test]
fn a_spent_quota_allows_no_lease_until_it_is_raised() {
    let cluster = Cluster::with_agents(1);
    let access = cluster.user("thrifty");
    let price = 20_000;
    cluster.set_quota("thrifty", Quota { spend_nano: Some(price / 2), ..Quota::default() });
    let mut client = connect(&access);
    client.allocate(&allocation()).unwrap();
    let lease = client.lease().unwrap().id.clone();
    // At the default price for a second, twice the quota.
    let ended = busy(&client, 1_000).and_then(|()| client.deallocate().map(drop));
    // If its use is reported during the call, the lease ends then.
    assert!(ended.as_ref().err().is_none_or(|error| error.code == Code::QuotaExceeded), "{ended:?}");
    let line = cluster.final_bill(&lease);
    assert!(line.total_nano >= price / 2, "{line:?}");
    wait_until("the tenant has spent it all", || match client.allocate(&allocation()) {
        Ok(()) => client.deallocate().is_err(),
        Err(error) => error.code == Code::QuotaExceeded,
    });
    assert_fails(client.allocate(&allocation()), Code::QuotaExceeded, &["thrifty"]);
    cluster.assert_serves();
    // It is still known after a restart.
    let mut cluster = cluster;
    cluster.managers[0].kill();
    cluster.managers[0].restart();
    cluster.assert_serves();
    let mut client = connect(&access);
    assert_fails(client.allocate(&allocation()), Code::QuotaExceeded, &["thrifty"]);
    cluster.set_quota("thrifty", Quota { spend_nano: Some(1_000 * price), ..Quota::default() });
    client.allocate(&allocation().wait(PATIENCE)).unwrap();
    assert_echoes(&client);
}
