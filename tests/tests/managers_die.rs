//! Managers that are killed, stopped and started again while clients lease and call: leases and calls continue, no core
//! is leased twice, and every lease is billed as its agent has measured it.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sublet::{Allocation, Code, Invoker};
use sublet_proto::v1::{BillRequest, LeaseState};
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, ManagerProcess, TENANT, connect};
use sublet_tests::crowd::{Crowd, ServedLease};
use sublet_tests::functions::package;
use sublet_tests::hand::{ByHand, ask};
use sublet_tests::platform::assert_echoes;
use sublet_tests::process::{spawner, wait_until};

/// Whether a request may fail with this code while managers die; such failures are temporary.
fn passes(code: Code) -> bool {
    // A manager that has just started knows of no node until agents come back to it.
    matches!(
        code,
        Code::ManagerUnreachable | Code::NoCapacity | Code::InsufficientResources | Code::TicketSuperseded
    )
}

/// Calls on a lease while `act` runs. Prints the number of calls.
fn while_calling<T>(client: &Invoker, act: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let mut calls = 0u64;
            while !over.load(Ordering::Relaxed) {
                assert_echoes(client);
                calls += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            calls
        });
        let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        over.store(true, Ordering::Relaxed);
        println!("{} calls meanwhile", calls.join().unwrap());
        acted.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Checks that each lease is on the bill with exactly the usage that its agent reported at its end.
fn assert_billed(manager: &ManagerProcess, served: &[ServedLease]) {
    assert!(!served.is_empty());
    let agent_said: HashMap<_, _> = served.iter().map(|lease| (&lease.lease, lease)).collect();
    wait_until("all ends are known", || {
        let bill = manager.operator().manager().bill(BillRequest::default()).unwrap();
        let ended = bill.lines.iter().filter(|line| line.state() == LeaseState::Ended);
        ended.filter(|line| agent_said.contains_key(&line.lease)).count() == served.len()
    });
    let bill = manager.operator().manager().bill(BillRequest::default()).unwrap();
    for line in &bill.lines {
        let Some(lease) = agent_said.get(&line.lease) else { continue };
        let usage = line.usage.unwrap();
        assert_eq!((usage, usage.calls), (lease.usage, lease.calls), "lease {}", line.lease);
    }
    println!("{} leases billed as measured", served.len());
}

/// The number of the manager that a node reports to.
fn owner(cluster: &Cluster, node: &str) -> usize {
    let mut owner = None;
    wait_until("some manager has the node", || {
        owner = cluster.managers.iter().position(|manager| manager.hears_of(node));
        owner.is_some()
    });
    owner.unwrap()
}

#[test]
fn a_manager_killed_during_grants_leaves_leases_intact() {
    let mut cluster = Cluster::with_agents(3);
    let mut holder = cluster.client("calls.c");
    let held = holder.lease().unwrap().id.clone();
    let crowd = Crowd::start(&cluster.user(TENANT), 4, 1, passes);
    while_calling(&holder, || {
        for _ in 0..3 {
            crowd.wait_for(4);
            cluster.managers[0].kill();
            std::thread::sleep(Duration::from_millis(500));
            cluster.managers[0].restart();
        }
        crowd.wait_for(4);
    });
    let served = crowd.stop();
    let usage = holder.deallocate().unwrap();
    let line = cluster.final_bill(&held);
    assert_eq!(line.usage.unwrap(), usage);
    assert_billed(&cluster.managers[0], &served);
    cluster.wait_until_idle();
    cluster.assert_serves();
}

#[test]
fn agents_of_a_dead_manager_move_to_another() {
    let mut cluster = Cluster::start(ClusterPlan::of_managers(2));
    for _ in 0..3 {
        cluster.add_agent(LentCores::cores(1));
    }
    let mut holder = cluster.client("calls.c");
    let held = holder.lease().unwrap();
    let crowd = Crowd::start(&cluster.user(TENANT), 3, 1, passes);
    crowd.wait_for(4);
    let dead = owner(&cluster, &held.node);
    let alive = 1 - dead;
    while_calling(&holder, || {
        cluster.managers[dead].kill();
        wait_until("its agents are with the other", || {
            cluster.agents.iter().all(|agent| cluster.managers[alive].hears_of(&agent.name))
        });
        crowd.wait_for(6);
        cluster.managers[dead].restart();
        crowd.wait_for(6);
    });
    // Whichever has the node now renews and ends its leases.
    holder.renew(Duration::from_secs(60)).unwrap();
    assert_echoes(&holder);
    let served = crowd.stop();
    let usage = holder.deallocate().unwrap();
    for manager in &cluster.managers {
        let bill_of = |lease: &str| {
            let request = BillRequest { lease: lease.into(), ..BillRequest::default() };
            manager.operator().manager().bill(request).unwrap().lines
        };
        wait_until("the held lease's end is known", || {
            bill_of(&held.id).iter().any(|line| line.state() == LeaseState::Ended)
        });
        assert_eq!(bill_of(&held.id)[0].usage.unwrap(), usage);
        assert_billed(manager, &served);
    }
    cluster.wait_until_idle();
    // And the one that was alive can die, too.
    cluster.managers[alive].kill();
    cluster.managers[alive].restart();
    cluster.assert_serves();
}

#[test]
fn tickets_of_an_outdated_manager_are_invalid() {
    let mut cluster = Cluster::start(ClusterPlan::of_managers(2));
    cluster.add_agent(LentCores::cores(2));
    let user = cluster.user_token(TENANT).secret;
    cluster.assert_serves();
    let first = owner(&cluster, "node-0");
    let (before, after) = (&cluster.managers[first], &cluster.managers[1 - first]);
    let only_before = cluster.access(&before.address, &user);
    before.pause();
    wait_until("the agent is with the other manager", || after.hears_of("node-0"));
    let mut holder = connect(&cluster.access(&after.address, &user));
    holder.allocate(&Allocation::new(package("calls.c"))).unwrap();
    let (worker, digest) = (cluster.agents[0].worker(), holder.package().unwrap().digest.clone());
    before.resume();
    // It believes that it has the node, of which a core is free indeed; the agent takes nothing from it any more.
    let mut codes = Vec::new();
    wait_until("it knows", || {
        if let Ok(grant) = ask(&only_before, &digest) {
            let (_, answer) = ByHand::show(&grant, &grant.ticket);
            codes.push(answer.expect_err("a node was leased by two managers").code);
        }
        !before.hears_of("node-0")
    });
    println!("refused with {codes:?}");
    assert!(codes.iter().all(|&code| code == Code::TicketSuperseded), "{codes:?}");
    assert_eq!(cluster.agents[0].worker(), worker);
    assert_echoes(&holder);
    holder.deallocate().unwrap();
    // Who asks both gets it from the one that has it.
    cluster.assert_serves();
}

#[test]
fn an_agent_that_starts_before_its_manager_waits_for_it() {
    let mut cluster = Cluster::with_agents(1);
    cluster.managers[0].kill();
    cluster.agents[0].kill();
    let token = std::fs::read_to_string(cluster.folder().join("node-0.token")).unwrap();
    let mut agent = cluster.begin_agent("node-0", &token, LentCores::cores(1), &[]);
    // It makes its spawner before it looks for a manager.
    wait_until("the agent has started", || spawner(agent.pid()).is_some());
    cluster.managers[0].restart();
    agent.wait_until_it_serves();
    cluster.assert_serves();
    drop(agent);
}
