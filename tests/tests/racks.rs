//! A global manager above the managers of racks: leases spill from a full rack to another, runs stay in their rack, and
//! the death of a process affects only those that depend on it.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::thread::scope;
use std::time::Duration;

use serde_json::json;
use sublet::{Access, Allocation, Application, Code, Invoker, RunOptions};
use sublet_proto::v1::{CreateTokenRequest, ManagerInfo, Role};
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, ManagerProcess, TENANT, connect};
use sublet_tests::functions::{library, package};
use sublet_tests::graph::{sum_to, sums, total};
use sublet_tests::platform::assert_echoes;
use sublet_tests::process::{PATIENCE, wait_until};

/// Racks with a manager each, and one above them.
struct Racks {
    cluster: Cluster,
    global: ManagerProcess,
}

impl Racks {
    /// Starts two racks of `agents` agents each, which lend `cores` cores each.
    fn start(agents: usize, cores: u32) -> Racks {
        let mut cluster = Cluster::start(ClusterPlan::of_managers(2));
        for rack in 0..2 {
            let manager = cluster.managers[rack].address.clone();
            for _ in 0..agents {
                cluster.add_agent_to(&manager, LentCores::cores(cores), &[]);
            }
        }
        let global = cluster.start_global();
        let racks = Racks { cluster, global };
        racks.wait_until_free(&[agents as u32 * cores; 2]);
        racks
    }

    /// Waits until the global manager knows each rack to have this number of cores free.
    #[track_caller]
    fn wait_until_free(&self, cores: &[u32]) {
        let free = |manager: &ManagerProcess| {
            let of_rack = self.global.nodes().into_iter().filter(|node| {
                node.description.as_ref().is_some_and(|described| described.rack == manager.address)
            });
            of_rack.map(|node| node.description.unwrap().cores - node.cores_leased).sum::<u32>()
        };
        wait_until("the global manager knows what is free", || {
            self.cluster.managers.iter().map(free).eq(cores.iter().copied())
        });
    }

    /// Access of a user who knows only the global manager.
    fn user(&self) -> Access {
        self.cluster.access(&self.global.address, &self.cluster.user_token(TENANT).secret)
    }

    /// Leases `cores` cores for a new client.
    fn leases(&self, access: &Access, cores: u32) -> Result<Invoker, sublet::Error> {
        let mut client = connect(access);
        client.allocate(&Allocation::new(package("calls.c")).cores(cores))?;
        assert_echoes(&client);
        Ok(client)
    }

    /// Number of the rack of a client's first lease.
    fn rack(&self, client: &Invoker) -> usize {
        let node = client.lease().unwrap().node.clone();
        let agent = self.cluster.agents.iter().position(|agent| agent.name == node).unwrap();
        agent / (self.cluster.agents.len() / 2)
    }

    /// The global manager's description of itself.
    fn own(&self) -> ManagerInfo {
        let managers = self.cluster.operator().manager().managers().unwrap();
        let global = managers.into_iter().filter(|manager| manager.global);
        // One that was killed is missed after some seconds.
        global.max_by_key(|manager| manager.epoch).unwrap_or_default()
    }
}

#[test]
fn full_racks_spill_leases_and_refuse_impossible_amounts() {
    let racks = Racks::start(1, 2);
    let user = racks.user();
    let clients: Vec<_> = (0..4).map(|_| racks.leases(&user, 1).unwrap()).collect();
    let mut of_racks = [0; 2];
    clients.iter().for_each(|client| of_racks[racks.rack(client)] += 1);
    assert_eq!(of_racks, [2, 2]);
    assert_eq!(racks.leases(&user, 1).err().unwrap().code, Code::NoCapacity);
    let error = racks.leases(&user, 3).err().unwrap();
    assert_eq!(error.code, Code::InsufficientResources, "{error}");
    assert!(error.message.contains("3 cores asked, the largest rack has 2"), "{error}");
    // A user who knows only a rack's manager gets the same error: the client learns of the global manager.
    let other = racks.cluster.user(TENANT);
    assert_eq!(racks.leases(&other, 3).err().unwrap().message, error.message);
    // Leases are renewed and ended with the racks' managers.
    for mut client in clients {
        client.renew(Duration::from_secs(60)).unwrap();
        client.deallocate().unwrap();
    }
    racks.wait_until_free(&[2, 2]);
    racks.leases(&other, 2).unwrap();
    racks.cluster.wait_until_idle();
}

#[test]
fn the_global_manager_is_listed_and_takes_no_nodes() {
    let racks = Racks::start(1, 1);
    let shown = |manager: &ManagerProcess| {
        let output = manager.command().args(["ps", "--json"]).output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let seen = shown(&racks.global);
    let managers = seen["managers"].as_array().unwrap();
    let global: Vec<_> = managers.iter().filter(|manager| manager["global"] == true).collect();
    assert_eq!((managers.len(), global.len()), (3, 1), "{seen}");
    assert_eq!(global[0]["address"], racks.global.address.as_str());
    assert_eq!((&global[0]["nodes"], &global[0]["cores_free"]), (&json!(0), &json!(0)));
    let mut of_racks: Vec<_> = seen["nodes"].as_array().unwrap().iter().map(|node| &node["rack"]).collect();
    of_racks.sort_by_key(|rack| rack.to_string());
    let mut addresses: Vec<_> = racks.cluster.managers.iter().map(|manager| &manager.address).collect();
    addresses.sort();
    assert_eq!(of_racks, addresses);

    // Its operator knows no authority to trust and has no token: leases are another manager's.
    let allocation = Allocation::new(package("calls.c"));
    let refused = racks.global.operator().allocate(&allocation).unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    assert!(racks.cluster.managers.iter().any(|rack| refused.message.contains(&rack.address)), "{refused}");

    let token = racks.cluster.token(&CreateTokenRequest {
        role: Role::Agent.into(),
        node: "stray".into(),
        ..CreateTokenRequest::default()
    });
    let global = &racks.global.address;
    let mut stray = racks.cluster.begin_agent_to(global, "stray", &token.secret, LentCores::cores(1), &[]);
    wait_until("the agent has given up", || !stray.is_running());
    let log = stray.log();
    assert!(log.contains("this manager is the global one") && log.contains("rack's manager"), "{log}");
}

#[test]
fn waiting_requests_survive_the_global_managers_death() {
    let mut racks = Racks::start(1, 1);
    let user = racks.user();
    let mut holders: Vec<_> = (0..2).map(|_| racks.leases(&user, 1).unwrap()).collect();
    for is_killed in [false, true] {
        wait_until("no request waits", || racks.own().waiting == 0);
        let (first, next) = scope(|scope| {
            let waits = scope.spawn(|| {
                let mut client = connect(&user);
                let allocation = Allocation::new(package("calls.c")).wait(PATIENCE);
                client.allocate(&allocation).unwrap();
                client
            });
            wait_until("it waits with the global manager", || racks.own().waiting == 1);
            if is_killed {
                racks.global.kill();
                racks.global.restart();
                wait_until("it waits again", || racks.own().waiting == 1);
            }
            let mut first = holders.remove(0);
            let rack = racks.rack(&first);
            first.deallocate().unwrap();
            (rack, waits.join().unwrap())
        });
        assert_echoes(&next);
        assert_eq!(racks.rack(&next), first);
        holders.push(next);
    }
}

#[test]
fn killing_a_racks_manager_ends_no_lease() {
    let mut racks = Racks::start(1, 2);
    let user = racks.user();
    let mut holders: Vec<_> = (0..2).map(|_| racks.leases(&user, 1).unwrap()).collect();
    let rack = racks.rack(&holders[0]);
    racks.cluster.managers[rack].kill();
    // Whichever rack it is handed to first.
    let others: Vec<_> = (0..2).map(|_| racks.leases(&user, 1)).filter_map(Result::ok).collect();
    assert!(!others.is_empty(), "the other rack has free capacity");
    holders.iter().for_each(assert_echoes);
    racks.cluster.managers[rack].restart();
    drop(others);
    wait_until("each node is with a manager, whichever it is", || {
        let is_heard_of = |name: &str| racks.cluster.managers.iter().any(|manager| manager.hears_of(name));
        racks.cluster.agents.iter().all(|agent| is_heard_of(&agent.name))
    });
    for holder in &mut holders {
        holder.renew(Duration::from_secs(60)).unwrap();
        assert_echoes(holder);
    }
    let mut more = Vec::new();
    wait_until("the global manager knows it, too", || {
        more.extend(racks.leases(&user, 1));
        more.len() == 2
    });
    more.iter().for_each(assert_echoes);
}

#[test]
fn a_run_is_in_one_rack_with_its_memory() {
    let racks = Racks::start(2, 2);
    racks.global.publish(library("components.c"));
    let application = Application::deploy(racks.user(), &sums(), RunOptions::default()).unwrap();
    let rack_of = |node: &str| racks.cluster.agents.iter().position(|agent| agent.name == *node).unwrap() / 2;
    for count in [511u64, 300_000] {
        let outcome = application.run(&count.to_le_bytes()).unwrap();
        assert_eq!(total(&outcome), sum_to(count));
        let nodes = outcome.components.iter().flat_map(|component| &component.nodes);
        let of: BTreeSet<usize> = nodes.map(|node| rack_of(node)).collect();
        assert_eq!(of.len(), 1, "{:?}", outcome.components);
    }
    racks.cluster.wait_until_idle();
}
