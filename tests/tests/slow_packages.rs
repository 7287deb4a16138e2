//! Packages that take long to come to a node: clients receive signs of life from the node all the while, and the owner
//! can still reclaim the node.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use sublet::{Allocation, Code};
use sublet_proto::network::Fabric;
use sublet_proto::v1::agent_to_client::Body as Heard;
use sublet_proto::v1::client_to_agent::Body as Said;
use sublet_proto::v1::{Attach, BillRequest, LeaseGrant, LeaseRequest};
use sublet_runtime::deploy::read_package;
use sublet_tests::assert_fails;
use sublet_tests::cluster::{CLIENT_HOST, Cluster, ClusterPlan, FIRST_AGENT_HOST, LentCores, MANAGER_HOST};
use sublet_tests::functions::library;
use sublet_tests::hand::ByHand;
use sublet_tests::network::SwitchedNetwork;
use sublet_tests::platform::assert_echoes;
use sublet_tests::process::{PATIENCE, PATIENCE_MS};

/// For longer than an agent may be silent, and shorter than one tries to connect to a manager that says nothing.
const SIGNS: usize = 5;

/// A lease for functions that its node has not got.
fn granted(cluster: &Cluster, source: &'static str) -> LeaseGrant {
    let client = cluster.invoker();
    let package = read_package(&library(source)).and_then(|encoded| client.manager().deploy(encoded));
    let package = package.unwrap().package.unwrap().digest;
    let request =
        LeaseRequest { package, cores: 1, wait_ms: u64::from(PATIENCE_MS), ..LeaseRequest::default() };
    client.manager().request_lease(request).unwrap().grants.remove(0)
}

/// Shows the ticket as from another machine, with a worker to be started; the lease is attached.
fn attach(grant: &LeaseGrant) -> ByHand {
    let client = ByHand::from_afar(grant);
    let fabric = Some(Fabric::Tcp.choice(false));
    client.say(Said::Attach(Attach {
        ticket: grant.ticket.clone(),
        start: true,
        fabric,
        ..Attach::default()
    }));
    assert!(matches!(hear_more(&client).unwrap(), Heard::Attached(_)));
    client
}

/// Next message that is not a sign of life.
fn hear_more(client: &ByHand) -> Result<Heard, sublet::Error> {
    loop {
        match client.hear() {
            Ok(Heard::Alive(_)) => {}
            heard => return heard,
        }
    }
}

/// Waits for the worker, whatever steps of its start are sent before.
fn hear_started(client: &ByHand) {
    loop {
        match hear_more(client).unwrap() {
            Heard::Started(_) => return,
            Heard::Progress(_) => {}
            heard => panic!("{heard:?} in place of a worker"),
        }
    }
}

#[test]
fn a_remote_client_gets_signs_of_life_during_package_transfer() {
    let cluster = Cluster::with_agents(1);
    let grant = granted(&cluster, "calls.c");
    cluster.managers[0].pause();
    let client = attach(&grant);
    for _ in 0..SIGNS {
        let heard = client.hear().unwrap();
        assert!(matches!(heard, Heard::Alive(_) | Heard::Progress(_)), "{heard:?} without a package");
    }
    cluster.managers[0].resume();
    hear_started(&client);
    client.release();
    cluster.assert_serves();
}

#[test]
fn a_lease_waiting_for_its_package_is_released_at_once() {
    let cluster = Cluster::with_agents(1);
    let given_back = granted(&cluster, "calls.c");
    cluster.managers[0].pause();
    attach(&given_back).release();
    cluster.managers[0].resume();
    let grant = granted(&cluster, "faults.c");
    cluster.managers[0].pause();
    let client = attach(&grant);
    let mut reclaim = cluster.agents[0].told(&["--reclaim", "--grace", "500ms"]);
    let mut reclaim = reclaim.stdout(Stdio::null()).spawn().unwrap();
    assert!(matches!(hear_more(&client).unwrap(), Heard::Ending(_)));
    assert_fails(hear_more(&client).map(drop), Code::NodeReclaimed, &[]);
    assert!(reclaim.wait().unwrap().success());
    cluster.managers[0].resume();
}

#[test]
fn a_remote_client_waits_for_a_slow_package() {
    let Some(network) = SwitchedNetwork::of_machines(FIRST_AGENT_HOST + 1) else { return };
    let mut cluster = Cluster::start(ClusterPlan { network: Some(network), ..ClusterPlan::default() });
    cluster.add_agent(LentCores::cores(1));
    let folder = cluster.folder().join("large");
    fs::create_dir(&folder).unwrap();
    fs::copy(library("calls.c"), folder.join("libcalls.so")).unwrap();
    fs::write(folder.join("sublet.toml"), "name = 'large'\nlibrary = 'libcalls.so'\n").unwrap();
    fs::write(folder.join("data"), vec![7; 1_500_000]).unwrap();
    let host = cluster.network.as_ref().unwrap().host(CLIENT_HOST);
    host.run(|| {
        let mut client = cluster.invoker();
        let digest = client.manager().deploy(read_package(&folder).unwrap()).unwrap().package.unwrap().digest;
        // More than ten seconds for what was deployed.
        cluster.network.as_ref().unwrap().shape(MANAGER_HOST, 1);
        let steps = Arc::new(Mutex::new(Vec::new()));
        let heard = steps.clone();
        let note = move |step: &str| heard.lock().unwrap().push(step.to_owned());
        client.allocate(&Allocation::new(digest).wait(PATIENCE).on_step(note)).unwrap();
        assert_echoes(&client);
        // The transfer is longer than the interval at which a step is sent again.
        assert!(steps.lock().unwrap().contains(&"fetching the package".to_owned()), "{steps:?}");
        client.deallocate().unwrap();
        let lines = cluster.operator().manager().bill(BillRequest::default()).unwrap().lines;
        assert_eq!(lines.len(), 1, "it was given up and asked for anew: {lines:?}");
    });
}
