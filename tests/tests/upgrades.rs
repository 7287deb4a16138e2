//! Upgrades of a running system, with the programs of the version before: each process is replaced while leases are
//! held and calls continue, in either direction, and a pair of versions that does not work is refused by name.
//!
//! `cargo xtask upgrade` builds those programs and runs these tests; without them the tests cannot run.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sublet::{Allocation, Code, FabricChoice, Invoker};
use sublet_proto::v1::{LeaseState, NodeState};
use sublet_tests::assert_fails;
use sublet_tests::before::{CallingClient, ClientVersion, command_of, programs};
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, TENANT, connect};
use sublet_tests::functions::package;
use sublet_tests::platform::{self, assert_echoes};
use sublet_tests::process::{PATIENCE, wait_until};

/// The programs of the version before, or those of this build.
fn folder(version: ClientVersion) -> std::path::PathBuf {
    match version {
        ClientVersion::Before => programs(),
        ClientVersion::Now => platform::programs(),
    }
}

/// A cluster of the version before, whose agents lend two cores each.
fn before(plan: ClusterPlan, agents: usize) -> Cluster {
    let mut cluster = Cluster::start(ClusterPlan { programs: Some(programs()), ..plan });
    for _ in 0..agents {
        cluster.add_agent(LentCores::cores(2));
    }
    cluster
}

/// Replaces a manager by one of the other version, in order, and waits until its agents are back.
fn replace_manager(cluster: &mut Cluster, number: usize, version: ClientVersion) {
    cluster.managers[number].use_programs(&folder(version));
    assert!(cluster.managers[number].stop().success());
    cluster.managers[number].restart();
    let names: Vec<_> = cluster.agents.iter().map(|agent| agent.name.clone()).collect();
    wait_until("some manager hears of every node", || {
        names.iter().all(|name| cluster.managers.iter().any(|manager| manager.hears_of(name)))
    });
}

/// Checks that each lease is billed with exactly the calls that its client has made.
#[track_caller]
fn assert_billed(cluster: &Cluster, leases: &[(String, u64)]) {
    for (lease, calls) in leases {
        let line = cluster.final_bill(lease);
        assert_eq!((line.state(), line.usage.unwrap().calls), (LeaseState::Ended, *calls), "lease {lease}");
    }
}

/// Replaces an agent that has been drained by one of the other version, and waits until its node is lent.
fn replace_agent(cluster: &mut Cluster, number: usize, version: ClientVersion) {
    cluster.agents[number].use_programs(&folder(version));
    assert!(cluster.agents[number].stop().success());
    cluster.agents[number].restart();
    let name = cluster.agents[number].name.clone();
    wait_until("the node is lent again", || {
        cluster
            .managers
            .iter()
            .any(|manager| manager.node(&name).is_some_and(|node| node.state() == NodeState::Lending))
    });
}

#[test]
#[ignore = "needs the programs of the version before: cargo xtask upgrade"]
fn processes_are_replaced_while_calls_continue() {
    let mut cluster = before(ClusterPlan::default(), 2);
    let token = cluster.user_token(TENANT).secret;
    let start = |cluster: &Cluster, version| CallingClient::start(version, cluster, &token, "shm");
    let mut calling = Vec::new();
    for version in [ClientVersion::Before, ClientVersion::Now] {
        calling.push(start(&cluster, version));
    }
    replace_manager(&mut cluster, 0, ClientVersion::Now);
    calling.iter_mut().for_each(|client| assert!(client.is_calling()));
    for client in &calling {
        let lease = cluster.lease(&client.lease).expect("the new manager has taken the lease up");
        assert_eq!((lease.state(), lease.node.as_str()), (LeaseState::Attached, client.node.as_str()));
    }

    let mut over = Vec::new();
    for number in 0..2 {
        let name = cluster.agents[number].name.clone();
        let mut drain = cluster.agents[number].told(&["--drain"]);
        let mut draining = drain.stdout(Stdio::null()).spawn().unwrap();
        wait_until("the node takes no new leases", || {
            cluster.node(&name).unwrap().state() == NodeState::Draining
        });
        // Each client of the node takes a lease elsewhere, and then gives back the one that it has here.
        let (mut here, there): (Vec<_>, Vec<_>) = calling.into_iter().partition(|client| client.node == name);
        calling = there;
        for version in [ClientVersion::Before, ClientVersion::Now].into_iter().take(here.len()) {
            let moved = start(&cluster, version);
            assert_ne!(moved.node, name, "a draining node got a lease");
            calling.push(moved);
        }
        here.iter_mut().for_each(|client| assert!(client.is_calling()));
        over.extend(here.into_iter().map(|client| (client.lease.clone(), client.finish())));
        assert!(draining.wait().unwrap().success());
        replace_agent(&mut cluster, number, ClientVersion::Now);
        calling.iter_mut().for_each(|client| assert!(client.is_calling()));
        calling.push(start(&cluster, ClientVersion::Before));
        if calling.len() > 2 {
            let spare = calling.remove(0);
            over.push((spare.lease.clone(), spare.finish()));
        }
    }
    over.extend(calling.into_iter().map(|client| (client.lease.clone(), client.finish())));
    let calls: u64 = over.iter().map(|(_, calls)| calls).sum();
    assert!(calls > over.len() as u64, "no client called again");
    println!("{calls} calls on {} leases", over.len());
    assert_billed(&cluster, &over);
    cluster.wait_until_idle();
    cluster.assert_serves();
}

#[test]
#[ignore = "needs the programs of the version before: cargo xtask upgrade"]
fn processes_of_both_versions_work_together() {
    use ClientVersion::{Before, Now};
    for (manager, agent) in [(Before, Before), (Now, Before), (Before, Now), (Now, Now)] {
        let mut cluster =
            Cluster::start(ClusterPlan { programs: Some(folder(manager)), ..ClusterPlan::default() });
        cluster.programs = Some(folder(agent));
        cluster.add_agent(LentCores::cores(2));
        let token = cluster.user_token(TENANT).secret;
        let mut over = Vec::new();
        for client in [Before, Now] {
            for fabric in ["shm", "tcp", "tcp+tls"] {
                let calling = CallingClient::start(client, &cluster, &token, fabric);
                over.push((calling.lease.clone(), calling.finish()));
                println!("manager {manager:?}, agent {agent:?}, client {client:?}, {fabric}: works");
            }
        }
        assert_billed(&cluster, &over);
        cluster.assert_serves();
    }
}

#[test]
#[ignore = "needs the programs of the version before: cargo xtask upgrade"]
fn agent_works_with_a_later_worker_program() {
    let mut cluster = before(ClusterPlan::default(), 1);
    let later = folder(ClientVersion::Now).join("sublet-worker");
    cluster.agents[0].restart_with(|agent| {
        agent.env("SUBLET_WORKER", &later);
    });
    wait_until("the node is lent", || {
        cluster.node("node-0").is_some_and(|node| node.state() == NodeState::Lending)
    });
    let token = cluster.user_token(TENANT).secret;
    for version in [ClientVersion::Before, ClientVersion::Now] {
        let mut calling = CallingClient::start(version, &cluster, &token, "shm");
        let program = fs::read(format!("/proc/{}/exe", cluster.agents[0].worker())).unwrap();
        assert!(program == fs::read(&later).unwrap(), "the worker is not the later program");
        assert!(calling.is_calling());
        calling.finish();
        wait_until("the worker has ended", || cluster.agents[0].workers().is_empty());
    }
}

/// The value of a variable of the functions of `needs.c`.
fn variable(client: &Invoker, name: &str) -> String {
    let mut output = vec![0u8; 256];
    let done = client.submit("variable", name.as_bytes(), &mut output).unwrap().wait().unwrap();
    String::from_utf8_lossy(&output[..done.output_bytes]).into_owned()
}

#[test]
#[ignore = "needs the programs of the version before: cargo xtask upgrade"]
fn additions_that_a_peer_would_ignore_are_refused() {
    let plain = || Allocation::new(package("needs.c")).memory_bytes(64 << 20);
    let mut cluster = before(ClusterPlan::default(), 1);
    let token = cluster.user_token(TENANT).secret;
    let user = || connect(&cluster.access(&cluster.addresses(), &token));
    // A variable goes to the agent, which does not know it; a secret to the manager.
    let mismatch = Code::VersionMismatch;
    for fabric in [FabricChoice::Shm, FabricChoice::Tcp { encrypted: false }] {
        let asked = plain().variable("COLOUR", "red").fabric(fabric);
        assert_fails(user().allocate(&asked), mismatch, &["node-0", "revision 0", "revision 1"]);
    }
    let asked = plain().secret("KEY", "key");
    assert_fails(user().allocate(&asked), mismatch, &["the manager", "revision 0", "revision 1"]);
    let asked = plain().temporary_bytes(1 << 20);
    assert_fails(user().allocate(&asked), mismatch, &["the manager", "revision 0", "revision 1"]);
    let value = cluster.folder().join("value");
    fs::write(&value, "red").unwrap();
    let set = |cluster: &Cluster| {
        let mut set = command_of(cluster, &token);
        set.args(["secret", "set", "key", "--file"]).arg(&value).output().unwrap()
    };
    let output = set(&cluster);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), i32::try_from(mismatch.number()).ok(), "{said}");
    assert!(said.contains("does not know this request") && said.contains("revision 1"), "{said}");
    // Nothing is left of what was refused.
    cluster.wait_until_idle();
    cluster.assert_serves();

    replace_manager(&mut cluster, 0, ClientVersion::Now);
    assert!(set(&cluster).status.success());
    let user = || connect(&cluster.access(&cluster.addresses(), &token));
    assert_fails(user().allocate(&asked), mismatch, &["agent", "revision 0", "revision 1"]);
    assert_fails(user().allocate(&plain().secret("KEY", "key")), mismatch, &["agent", "revision 0"]);
    replace_agent(&mut cluster, 0, ClientVersion::Now);
    let mut client = connect(&cluster.access(&cluster.addresses(), &token));
    client.allocate(&plain().secret("KEY", "key").variable("COLOUR", "blue")).unwrap();
    assert_eq!((variable(&client, "KEY"), variable(&client, "COLOUR")), ("red".into(), "blue".into()));
    client.deallocate().unwrap();

    // A lease with a secret from a manager of the version before, by an agent of this one.
    replace_manager(&mut cluster, 0, ClientVersion::Before);
    let mut client = connect(&cluster.access(&cluster.addresses(), &token));
    let asked = plain().secret("KEY", "key");
    assert_fails(client.allocate(&asked), mismatch, &["the manager", "revision 0"]);
    cluster.assert_serves();
}

#[test]
#[ignore = "needs the programs of the version before: cargo xtask upgrade"]
fn earlier_manager_continues_with_a_later_store() {
    let mut cluster = before(ClusterPlan::default(), 1);
    let old_token = cluster.user_token("alice").secret;
    let mut held = CallingClient::start(ClientVersion::Now, &cluster, &old_token, "shm");
    replace_manager(&mut cluster, 0, ClientVersion::Now);
    let new_token = cluster.user_token("bob").secret;
    let value = cluster.folder().join("value");
    fs::write(&value, "red").unwrap();
    let mut set = command_of(&cluster, &new_token);
    assert!(set.args(["secret", "set", "key", "--file"]).arg(&value).status().unwrap().success());
    let mut newer = connect(&cluster.access(&cluster.addresses(), &new_token));
    newer.allocate(&Allocation::new(package("faults.c"))).unwrap();
    assert_echoes(&newer);
    let ended = newer.lease().unwrap().id.clone();
    newer.deallocate().unwrap();
    let lists = |cluster: &Cluster| {
        [["package", "list"], ["token", "list"], ["graph", "list"]].map(|list| cluster.json(&list))
    };
    let known = lists(&cluster);
    cluster.final_bill(&ended);

    replace_manager(&mut cluster, 0, ClientVersion::Before);
    assert!(held.is_calling());
    assert_eq!(lists(&cluster), known);
    assert_eq!(cluster.final_bill(&ended).state(), LeaseState::Ended);
    for token in [&old_token, &new_token] {
        let mut client = connect(&cluster.access(&cluster.addresses(), token));
        client.allocate(&Allocation::new(package("calls.c")).wait(PATIENCE)).unwrap();
        assert_echoes(&client);
        client.deallocate().unwrap();
    }

    replace_manager(&mut cluster, 0, ClientVersion::Now);
    let mut list = command_of(&cluster, &new_token);
    let listed = list.args(["secret", "list", "--json"]).output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("\"key\""), "{listed:?}");
    let lease = held.lease.clone();
    let calls = held.finish();
    assert_billed(&cluster, &[(lease, calls)]);
    cluster.managers[0].stop();
    let mut check = cluster.command();
    let checked =
        check.args(["store", "check", "--state"]).arg(cluster.managers[0].state()).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
#[ignore = "needs the programs of the version before: cargo xtask upgrade"]
fn managers_of_both_versions_share_a_store() {
    let mut cluster = before(ClusterPlan::of_managers(2), 2);
    let token = cluster.user_token(TENANT).secret;
    let mut calling: Vec<_> =
        (0..2).map(|_| CallingClient::start(ClientVersion::Before, &cluster, &token, "shm")).collect();
    let over = AtomicBool::new(false);
    // While managers are replaced, requests for leases may fail, but none hangs and none is lost.
    std::thread::scope(|scope| {
        let access = cluster.access(&cluster.addresses(), &token);
        let over = &over;
        let leasing = scope.spawn(move || {
            let mut served = 0u32;
            while !over.load(Ordering::Relaxed) {
                let mut client = connect(&access);
                match client.allocate(&Allocation::new(package("calls.c")).wait(Duration::from_secs(2))) {
                    Ok(()) => {
                        assert_echoes(&client);
                        client.deallocate().unwrap();
                        served += 1;
                    }
                    Err(error) => assert!(
                        matches!(
                            error.code,
                            Code::ManagerUnreachable
                                | Code::NoCapacity
                                | Code::InsufficientResources
                                | Code::TicketSuperseded
                        ),
                        "{error}"
                    ),
                }
            }
            served
        });
        for (number, version) in
            [(0, ClientVersion::Now), (0, ClientVersion::Before), (0, ClientVersion::Now)]
        {
            replace_manager(&mut cluster, number, version);
            // A token of either manager counts at the other one.
            for manager in &cluster.managers {
                let made = manager.json(&["token", "create", "--tenant", "carol"]);
                let secret = made["secret"].as_str().unwrap().to_owned();
                for other in &cluster.managers {
                    let carol = cluster.access(&other.address, &secret);
                    wait_until("the token is known", || connect(&carol).manager().nodes().is_ok());
                }
            }
            calling.iter_mut().for_each(|client| assert!(client.is_calling()));
        }
        over.store(true, Ordering::Relaxed);
        assert!(leasing.join().unwrap() > 0);
    });
    let leases: Vec<_> = calling.into_iter().map(|client| (client.lease.clone(), client.finish())).collect();
    assert_billed(&cluster, &leases);
    replace_manager(&mut cluster, 1, ClientVersion::Now);
    let url = cluster.nats.as_ref().unwrap().url();
    let mut check = cluster.command();
    let checked = check.args(["store", "check", "--store-url", &url]).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success(), "{said}{}", String::from_utf8_lossy(&checked.stderr));
    cluster.wait_until_idle();
    cluster.assert_serves();
}
