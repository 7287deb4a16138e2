//! The store unreachable, slow, or full: leases are granted and calls continue, a command that needs the store reports
//! the failure, and usage meanwhile is billed afterwards.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use sublet::{Allocation, Code, Error, Invoker, Usage};
use sublet_proto::v1::LeaseState;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, StoreChoice, TENANT, connect};
use sublet_tests::functions::{library, package};
use sublet_tests::nats;
use sublet_tests::platform::assert_echoes;
use sublet_tests::process::{PATIENCE, wait_until};
use sublet_tests::rounds::wait_for_reports;

const MIB: u64 = 1 << 20;
/// Longer than a manager waits for its store before it says that it does not answer.
const SLOW: Duration = Duration::from_secs(6);

/// A cluster with one node, whose functions are deployed, and a client that has leased before.
fn in_use(plan: ClusterPlan) -> (Cluster, Invoker) {
    let mut cluster = Cluster::start(plan);
    cluster.add_agent(LentCores::cores(1));
    let mut client = connect(&cluster.user(TENANT));
    lease_and_call(&mut client).unwrap();
    (cluster, client)
}

/// Takes a lease of what is deployed, calls, and gives it back; the lease and what its agent says.
fn lease_and_call(client: &mut Invoker) -> Result<(String, Usage), Error> {
    client.allocate(&Allocation::new(package("calls.c")).wait(PATIENCE))?;
    let lease = client.lease().unwrap().id;
    client.submit("busy", &[100u32], &mut [0u8; 0])?.wait()?;
    Ok((lease, client.deallocate()?))
}

fn assert_billed(cluster: &Cluster, leases: &[(String, Usage)]) {
    for (lease, usage) in leases {
        let line = cluster.final_bill(lease);
        assert_eq!((line.state(), line.usage.unwrap()), (LeaseState::Ended, *usage));
    }
}

/// A package with so much data in it, as a folder.
fn large_package(cluster: &Cluster, name: &str, bytes: u64) -> String {
    let folder = cluster.folder().join(name);
    fs::create_dir(&folder).unwrap();
    fs::copy(library("calls.c"), folder.join("libcalls.so")).unwrap();
    fs::write(folder.join("sublet.toml"), format!("name = '{name}'\nlibrary = 'libcalls.so'\n")).unwrap();
    // Nothing that could be made smaller.
    let mut random = 88_172_645_463_325_252_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as u8
    };
    fs::write(folder.join("data"), (0..bytes).map(|_| next()).collect::<Vec<u8>>()).unwrap();
    folder.display().to_string()
}

/// Deploys a package; on failure returns the exit status and the error output of `sublet deploy`.
fn deploy(cluster: &Cluster, path: &str) -> Result<(), (Option<i32>, String)> {
    let output = cluster.command().args(["deploy", path, "--json"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err((output.status.code(), said)) }
}

fn exit_status(code: Code) -> Option<i32> {
    i32::try_from(code.number()).ok()
}

#[test]
fn leases_are_granted_and_billed_while_the_store_is_dead() {
    let (mut cluster, mut client) = in_use(ClusterPlan::of_managers(1));
    let mut holder = connect(&cluster.user(TENANT));
    lease_and_call(&mut holder).unwrap();
    cluster.nats.as_mut().unwrap().kill();
    let mut leases: Vec<_> = (0..3).map(|_| lease_and_call(&mut client).unwrap()).collect();
    let (status, said) = deploy(&cluster, &package("faults.c")).unwrap_err();
    assert_eq!(status, exit_status(Code::StoreUnreachable), "{said}");
    holder.allocate(&Allocation::new(package("calls.c")).wait(PATIENCE)).unwrap();
    sleep(SLOW);
    assert_echoes(&holder);
    cluster.nats.as_mut().unwrap().restart();
    leases.push((holder.lease().unwrap().id, holder.deallocate().unwrap()));
    wait_until("packages can be deployed again", || deploy(&cluster, &package("faults.c")).is_ok());
    leases.push(lease_and_call(&mut client).unwrap());
    assert_billed(&cluster, &leases);
    // The billed usage is also stored.
    cluster.managers[0].kill();
    cluster.managers[0].restart();
    assert_billed(&cluster, &leases);
}

#[test]
fn leases_are_granted_and_billed_while_the_store_is_slow() {
    let (cluster, mut client) = in_use(ClusterPlan::of_managers(2));
    let mut leases = Vec::new();
    let nats = cluster.nats.as_ref().unwrap();
    for _ in 0..3 {
        nats.pause();
        leases.push(lease_and_call(&mut client).unwrap());
        sleep(SLOW / 6);
        leases.push(lease_and_call(&mut client).unwrap());
        nats.resume();
        leases.push(lease_and_call(&mut client).unwrap());
    }
    nats.pause();
    sleep(SLOW);
    leases.push(lease_and_call(&mut client).unwrap());
    // A command that needs the store fails with that reason, before its own time limit.
    let (status, said) = deploy(&cluster, &package("faults.c")).unwrap_err();
    assert_eq!(status, exit_status(Code::StoreUnreachable), "{said}");
    nats.resume();
    wait_until("packages can be deployed again", || deploy(&cluster, &package("faults.c")).is_ok());
    assert_billed(&cluster, &leases);
}

#[test]
fn a_manager_killed_without_store_learns_usage_from_agents() {
    let (mut cluster, mut client) = in_use(ClusterPlan::of_managers(1));
    cluster.nats.as_mut().unwrap().kill();
    let leases: Vec<_> = (0..3).map(|_| lease_and_call(&mut client).unwrap()).collect();
    // Nothing of it is stored, and the manager's memory is gone.
    cluster.managers[0].kill();
    cluster.nats.as_mut().unwrap().restart();
    cluster.managers[0].restart();
    assert_billed(&cluster, &leases);
    lease_and_call(&mut client).unwrap();
}

#[test]
fn a_full_server_refuses_packages_and_still_bills_leases() {
    let settings = nats::NatsSettings { storage_bytes: Some(24 * MIB), ..nats::NatsSettings::default() };
    let (cluster, mut client) =
        in_use(ClusterPlan { store: StoreChoice::Nats(settings), ..ClusterPlan::default() });
    let mut refused = None;
    for number in 0..8 {
        let name = format!("large-{number}");
        refused = deploy(&cluster, &large_package(&cluster, &name, 6 * MIB)).err();
        if refused.is_some() {
            break;
        }
    }
    let (status, said) = refused.expect("more was stored than fits into the limit");
    assert_eq!(status, exit_status(Code::StoreFull), "{said}");
    for _ in 0..3 {
        lease_and_call(&mut client).unwrap();
    }
    cluster.wait_until_idle();
    cluster.assert_serves();
}

#[test]
fn a_full_disk_refuses_packages_and_delays_bills() {
    let (mut cluster, mut client) =
        in_use(ClusterPlan { disk_bytes: Some(16 * MIB), ..ClusterPlan::default() });
    let Some(disk) = &cluster.disk else { return };
    // The disk has enough free space for it, but it would leave too little to the ledger.
    let (status, said) = deploy(&cluster, &large_package(&cluster, "nearly", 7 * MIB)).unwrap_err();
    assert_eq!(status, exit_status(Code::StoreFull), "{said}");
    disk.fill();
    let (status, said) = deploy(&cluster, &large_package(&cluster, "large", MIB)).unwrap_err();
    assert_eq!(status, exit_status(Code::StoreFull), "{said}");
    let mut leases: Vec<_> = (0..3).map(|_| lease_and_call(&mut client).unwrap()).collect();
    wait_for_reports(&cluster.managers[0], "node-0", 2);
    disk.empty();
    leases.push(lease_and_call(&mut client).unwrap());
    assert_billed(&cluster, &leases);
    wait_until("the ends are stored", || {
        cluster.managers[0].kill();
        cluster.managers[0].restart();
        leases.iter().all(|(lease, usage)| {
            cluster.lease(lease).is_some_and(|lease| lease.usage.as_ref() == Some(usage))
        })
    });
    cluster.assert_serves();
}
