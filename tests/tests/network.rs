//! Hosts whose links are cut and mended: network namespaces for clients, managers and agents.
//!
//! Client and agent speak through a Unix socket, which is no network; what a client sees of an agent that it cannot
//! reach is shown in `agents_die.rs` by agents that stand still.

#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;

use sublet::{Allocation, Code};
use sublet_proto::v1::{BillRequest, LeaseState, NodeState};
use sublet_tests::assert_fails;
use sublet_tests::cluster::{
    CLIENT_HOST, Cluster, ClusterPlan, FIRST_AGENT_HOST, LentCores, MANAGER_HOST, TENANT, connect,
};
use sublet_tests::crowd::Crowd;
use sublet_tests::functions::package;
use sublet_tests::network::SwitchedNetwork;
use sublet_tests::platform::assert_echoes;
use sublet_tests::process::{PATIENCE, wait_until};

/// A cluster on hosts: clients, managers, and one for each agent, which lends a core. `None` where this user may not.
fn cluster(plan: ClusterPlan, agents: u8) -> Option<Cluster> {
    let network = SwitchedNetwork::make(FIRST_AGENT_HOST + agents)?;
    let mut cluster = Cluster::start(ClusterPlan { network: Some(network), ..plan });
    for _ in 0..agents {
        cluster.add_agent(LentCores::cores(1));
    }
    Some(cluster)
}

fn address(cluster: &Cluster, host: u8) -> Ipv4Addr {
    cluster.network.as_ref().unwrap().host(host).address(0)
}

fn allocation() -> Allocation {
    Allocation::new(package("calls.c")).wait(PATIENCE)
}

/// Direction in which a link is cut.
#[derive(Clone, Copy)]
enum Cut {
    Both,
    ToManager,
    FromManager,
}

impl Cut {
    /// The pairs of addresses between which nothing arrives.
    fn pairs(self, manager: Ipv4Addr, other: Ipv4Addr) -> Vec<(Ipv4Addr, Ipv4Addr)> {
        match self {
            Cut::Both => vec![(manager, other), (other, manager)],
            Cut::ToManager => vec![(other, manager)],
            Cut::FromManager => vec![(manager, other)],
        }
    }
}

/// Cuts links while something is done.
fn while_cut<T>(cluster: &Cluster, pairs: &[(Ipv4Addr, Ipv4Addr)], act: impl FnOnce() -> T) -> T {
    let network = cluster.network.as_ref().unwrap();
    for &(from, to) in pairs {
        network.cut(from, to);
    }
    let acted = act();
    for &(from, to) in pairs {
        network.mend(from, to);
    }
    acted
}

fn the_agent_is_cut_off(cut: Cut) {
    let Some(cluster) = cluster(ClusterPlan::default(), 1) else { return };
    let (manager, agent) = (address(&cluster, MANAGER_HOST), address(&cluster, FIRST_AGENT_HOST));
    let state = || cluster.node("node-0").unwrap().state();
    cluster.network.as_ref().unwrap().host(CLIENT_HOST).run(|| {
        let mut client = cluster.invoker();
        client.allocate(&allocation()).unwrap();
        let (lease, worker) = (client.lease().unwrap().id, cluster.agents[0].worker());
        let calls = while_cut(&cluster, &cut.pairs(manager, agent), || {
            let mut calls = 0;
            wait_until("the node is lost", || {
                assert_echoes(&client);
                calls += 1;
                state() == NodeState::Lost
            });
            let refused = cluster.invoker().allocate(&Allocation::new(package("calls.c")));
            assert!(refused.is_err(), "a node that is out of reach is leased");
            calls
        });
        wait_until("the node is back", || state() == NodeState::Lending);
        assert_echoes(&client);
        assert_eq!(cluster.agents[0].worker(), worker);
        assert_eq!(cluster.lease(&lease).unwrap().state(), LeaseState::Attached);
        let usage = client.deallocate().unwrap();
        assert_eq!((usage.calls, cluster.final_bill(&lease).usage.unwrap()), (calls + 1, usage));
        cluster.assert_serves();
    });
}

#[test]
fn a_disconnected_agent_is_lost_and_found_with_its_lease() {
    the_agent_is_cut_off(Cut::Both);
}

#[test]
fn an_unheard_agent_is_lost_and_found_with_its_lease() {
    the_agent_is_cut_off(Cut::ToManager);
}

#[test]
fn a_deaf_agent_is_lost_and_found_with_its_lease() {
    the_agent_is_cut_off(Cut::FromManager);
}

#[test]
fn a_lease_that_ends_during_a_cut_is_billed_later() {
    let Some(cluster) = cluster(ClusterPlan::default(), 1) else { return };
    let (manager, agent) = (address(&cluster, MANAGER_HOST), address(&cluster, FIRST_AGENT_HOST));
    cluster.network.as_ref().unwrap().host(CLIENT_HOST).run(|| {
        let mut client = cluster.invoker();
        client.allocate(&allocation()).unwrap();
        let lease = client.lease().unwrap().id;
        let usage = while_cut(&cluster, &Cut::Both.pairs(manager, agent), || {
            client.submit("busy", &[1_000u32], &mut [0u8; 0]).unwrap().wait().unwrap();
            let usage = client.deallocate().unwrap();
            assert_ne!(cluster.lease(&lease).unwrap().state(), LeaseState::Ended);
            usage
        });
        // The function counts whole milliseconds.
        assert!(usage.executing_ns >= 990_000_000, "{usage:?}");
        assert_eq!(cluster.final_bill(&lease).usage.unwrap(), usage);
        cluster.assert_serves();
    });
}

#[test]
fn a_client_cut_off_from_the_manager_can_still_call() {
    let Some(cluster) = cluster(ClusterPlan::default(), 2) else { return };
    let (manager, client_host) = (address(&cluster, MANAGER_HOST), address(&cluster, CLIENT_HOST));
    cluster.network.as_ref().unwrap().host(CLIENT_HOST).run(|| {
        let access = cluster.user(TENANT);
        let (mut holder, mut asking) = (connect(&access), connect(&access));
        holder.allocate(&allocation()).unwrap();
        for cut in [Cut::Both, Cut::ToManager, Cut::FromManager] {
            while_cut(&cluster, &cut.pairs(manager, client_host), || {
                assert_echoes(&holder);
                let refused = asking.allocate(&Allocation::new("libcalls"));
                assert_fails(refused, Code::ManagerUnreachable, &[&manager.to_string()]);
                assert_echoes(&holder);
            });
            // A lease whose grant could not be delivered is leased again.
            asking.allocate(&allocation()).unwrap();
            assert_echoes(&asking);
            asking.deallocate().unwrap();
        }
        assert_echoes(&holder);
        holder.deallocate().unwrap();
        cluster.wait_until_idle();
    });
}

#[test]
fn an_agent_between_two_managers_leases_each_core_once() {
    let Some(cluster) = cluster(ClusterPlan::of_managers(2), 1) else { return };
    let agent = address(&cluster, FIRST_AGENT_HOST);
    let network = cluster.network.as_ref().unwrap();
    let crowd = network.host(CLIENT_HOST).run(|| {
        Crowd::start(&cluster.user(TENANT), 3, 1, |code| {
            matches!(
                code,
                Code::NoCapacity
                    | Code::InsufficientResources
                    | Code::TicketSuperseded
                    | Code::ManagerUnreachable
                    | Code::TryLater
            )
        })
    });
    crowd.wait_for(3);
    // Cut from one manager and then from the other: each believes for a while that it has the node.
    for cut in [Cut::Both, Cut::FromManager] {
        for manager in &cluster.managers {
            let other = cluster.managers.iter().find(|other| other.ip != manager.ip).unwrap();
            while_cut(&cluster, &cut.pairs(manager.ip, agent), || {
                wait_until("the agent is with the other", || other.hears_of("node-0"));
                crowd.wait_for(3);
            });
            crowd.wait_for(1);
        }
    }
    let served = crowd.stop();
    cluster.wait_until_idle();
    let bill =
        |which: usize| cluster.managers[which].operator().manager().bill(BillRequest::default()).unwrap();
    for lease in &served {
        wait_until("the lease's end is known", || {
            bill(0).lines.iter().any(|line| line.lease == lease.lease && line.state() == LeaseState::Ended)
        });
    }
    let (bill, other) = (bill(0), bill(1));
    assert_eq!(bill.total, other.total);
    for lease in &served {
        let lines: Vec<_> = bill.lines.iter().filter(|line| line.lease == lease.lease).collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(lines[0].usage.unwrap(), lease.usage, "{lease:?}");
    }
}
