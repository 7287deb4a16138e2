//! Measures a hop of a run, from the beginning of a component to that of the next one, for a client on a machine behind a slow
//! link. `cargo bench -p sublet-tests --bench hops [-- RUNS]` prints JSON. It needs the programs of `cargo build --release
//! --workspace`, and the rights to make network namespaces.
//!
//! All components are executed one after the other by a worker of one node, and hand on their input. The run is driven by
//! three processes in turn: its client, a runner on the managers' machine, and a runner on the node.

#![allow(clippy::unwrap_used)]

use sublet::{Access, Application, Outcome, RunHandle, RunOptions};
use sublet_tests::cluster::{
    CLIENT_HOST, Cluster, ClusterPlan, FIRST_AGENT_HOST, LentCores, MANAGER_HOST, TENANT,
};
use sublet_tests::functions::library;
use sublet_tests::graph::chain;
use sublet_tests::network::SwitchedNetwork;
use sublet_tests::process::PATIENCE;
use sublet_tests::runner;

const DEFAULT_RUNS: usize = 10;
const COMPONENTS: usize = 12;
/// Rate of the client's link.
const CLIENT_MBIT: u32 = 20;
/// Bytes that each component hands on.
const SIZES: [usize; 2] = [64, 200_000];
/// Processes that drive runs, and the hosts of those that are runners.
const DRIVERS: [(&str, Option<u8>); 3] =
    [("client", None), ("runner", Some(MANAGER_HOST)), ("runner-on-the-node", Some(FIRST_AGENT_HOST))];

fn main() {
    let runs: usize = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(DEFAULT_RUNS);
    let Some(network) = SwitchedNetwork::of_machines(FIRST_AGENT_HOST + 1) else {
        eprintln!("not measured: this user may not make network namespaces");
        return;
    };
    network.shape(CLIENT_HOST, CLIENT_MBIT);
    let mut cluster = Cluster::start(ClusterPlan { network: Some(network), ..ClusterPlan::default() });
    cluster.add_agent(LentCores::cores(1));
    cluster.publish(library("components.c"));
    let access = cluster.user(TENANT);
    for bytes in SIZES {
        let mut hops_us = DRIVERS.map(|_| Vec::<u64>::new());
        for run in 0..runs.max(1) {
            for ((driver, host), hops_us) in DRIVERS.into_iter().zip(&mut hops_us) {
                let name = format!("{driver}-{bytes}-{run}");
                hops_us.extend(measure(&cluster, &access, (name.as_str(), host), bytes));
            }
        }
        for ((driver, _), mut hops_us) in DRIVERS.into_iter().zip(hops_us) {
            hops_us.sort_unstable();
            let at = |per_mille: usize| hops_us[(hops_us.len() - 1) * per_mille / 1000];
            println!(
                "{{\"bench\":\"hop\",\"driver\":\"{driver}\",\"size_bytes\":{bytes},\"client_mbit\":{CLIENT_MBIT},\
                 \"n\":{},\"median_us\":{},\"p99_us\":{}}}",
                hops_us.len(),
                at(500),
                at(990)
            );
        }
    }
}

/// Executes one run, and returns the times of its hops.
fn measure(cluster: &Cluster, access: &Access, driver: (&str, Option<u8>), bytes: usize) -> Vec<u64> {
    // Each component uses the worker of the one before.
    let options = RunOptions { patience: PATIENCE, prewarm: None, ..RunOptions::default() };
    let deploy = || Application::deploy(access.clone(), &chain(COMPONENTS), options.clone()).unwrap();
    // The first byte is the time for which the components wait.
    let input = vec![0; bytes];
    let network = cluster.network.as_ref().unwrap();
    let client = network.host(CLIENT_HOST);
    let (name, host) = driver;
    let Some(host) = host else {
        return client.run(|| hops_us(&deploy().run(&input).unwrap()));
    };
    let _runner = runner::start_on(cluster, name, &network.host(host));
    let run = client.run(|| deploy().detach(&input).unwrap().id().to_owned());
    network.host(MANAGER_HOST).run(|| {
        let handle = RunHandle::open(access.clone(), &run).unwrap();
        hops_us(&handle.wait(Some(PATIENCE)).unwrap())
    })
}

/// The times between the beginnings of successive components, without the first, during which the worker is new.
fn hops_us(outcome: &Outcome) -> Vec<u64> {
    let steps = outcome.components.iter().filter(|used| used.component.starts_with("step"));
    let mut begun_us: Vec<u64> = steps.map(|used| used.begin_us).collect();
    assert_eq!(begun_us.len(), COMPONENTS, "{outcome:?}");
    begun_us.sort_unstable();
    begun_us.windows(2).skip(1).map(|pair| pair[1] - pair[0]).collect()
}
