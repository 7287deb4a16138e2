//! Measures a hop of a run, from the beginning of a component to that of the next one, for a client on a machine behind a slow
//! link. `cargo bench -p sublet-tests --bench hops [-- RUNS]` prints JSON. It needs the programs of `cargo build --release
//! --workspace`, and the rights to make network namespaces.
//!
//! All components are executed one after the other by a worker of one node. The run is driven by three processes in turn:
//! its client, a runner on the managers' machine, and a runner on the node. An input or output of a component is small or
//! large, so the hops show what a large output costs on its way to the driver, and what it costs from there to the next
//! component.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use sublet::{Access, Application, Outcome, RunHandle, RunOptions};
use sublet_tests::cluster::{
    CLIENT_HOST, Cluster, ClusterPlan, FIRST_AGENT_HOST, LentCores, MANAGER_HOST, TENANT,
};
use sublet_tests::functions::library;
use sublet_tests::graph::chain_of;
use sublet_tests::network::SwitchedNetwork;
use sublet_tests::process::PATIENCE;
use sublet_tests::runner;

const DEFAULT_RUNS: usize = 10;
/// An even number, so that the last output has the size of the first input.
const COMPONENTS: usize = 12;
/// Rate of the client's link.
const CLIENT_MBIT: u32 = 20;
/// Bytes of a small input or output, and of a large one.
const SMALL: usize = 64;
const LARGE: usize = 200_000;
/// Sizes that the inputs of the components of a run have in turn.
const INPUT_SIZES: [[usize; 2]; 3] = [[SMALL, SMALL], [LARGE, LARGE], [SMALL, LARGE]];
/// Sizes of the input and the output of the component with which a hop begins, and the name of the measurement.
const HOPS: [(&str, [usize; 2]); 4] = [
    ("nothing large", [SMALL, SMALL]),
    ("output large", [SMALL, LARGE]),
    ("input large", [LARGE, SMALL]),
    ("both large", [LARGE, LARGE]),
];
/// Processes that drive runs, and the hosts of those that are runners.
const DRIVERS: [(&str, Option<u8>); 3] =
    [("client", None), ("runner", Some(MANAGER_HOST)), ("runner-on-the-node", Some(FIRST_AGENT_HOST))];

/// Times of hops in microseconds, by the sizes of the component's input and output.
type HopTimes = BTreeMap<[usize; 2], Vec<u32>>;

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
    let mut times = DRIVERS.map(|_| HopTimes::new());
    for run in 0..runs.max(1) {
        for sizes in INPUT_SIZES {
            for ((driver, host), times) in DRIVERS.into_iter().zip(&mut times) {
                let name = format!("{driver}-{}-{}-{run}", sizes[0], sizes[1]);
                let hops_us = measure(&cluster, &access, (name.as_str(), host), sizes);
                // During the first hop the worker is new.
                for (at, hop_us) in hops_us.into_iter().enumerate().skip(1) {
                    times.entry([sizes[at % 2], sizes[(at + 1) % 2]]).or_default().push(hop_us);
                }
            }
        }
    }
    for ((driver, _), times) in DRIVERS.into_iter().zip(times) {
        print_hops(driver, times);
    }
}

/// Prints the measurements of a driver.
fn print_hops(driver: &str, mut times: HopTimes) {
    times.values_mut().for_each(|hops_us| hops_us.sort_unstable());
    let at =
        |sizes: [usize; 2], per_mille: usize| times[&sizes][(times[&sizes].len() - 1) * per_mille / 1000];
    for (large, sizes) in HOPS {
        let (count, median_us, p99_us) = (times[&sizes].len(), at(sizes, 500), at(sizes, 990));
        println!(
            "{{\"bench\":\"hop\",\"driver\":\"{driver}\",\"large\":\"{large}\",\"input_bytes\":{},\"output_bytes\":{},\
             \"client_mbit\":{CLIENT_MBIT},\"n\":{count},\"median_us\":{median_us},\"p99_us\":{p99_us}}}",
            sizes[0], sizes[1],
        );
    }
    let median = |sizes| f64::from(at(sizes, 500));
    let [small, output, input, both] = HOPS.map(|(_, sizes)| median(sizes));
    println!(
        "{{\"bench\":\"hop share\",\"driver\":\"{driver}\",\"to_driver_us\":{:.0},\"to_successor_us\":{:.0},\
         \"to_driver_share\":{:.3},\"to_successor_share\":{:.3}}}",
        output - small,
        input - small,
        (output - small) / both,
        (input - small) / both,
    );
}

/// Executes one run whose components have inputs of these sizes in turn, and returns the times of its hops.
fn measure(cluster: &Cluster, access: &Access, driver: (&str, Option<u8>), sizes: [usize; 2]) -> Vec<u32> {
    // Each component uses the worker of the one before.
    let options = RunOptions { patience: PATIENCE, prewarm: None, ..RunOptions::default() };
    let document = chain_of("alternate", COMPONENTS);
    let deploy = || Application::deploy(access.clone(), &document, options.clone()).unwrap();
    let mut input: Vec<u8> =
        sizes.into_iter().flat_map(|size| u64::try_from(size).unwrap().to_ne_bytes()).collect();
    input.resize(sizes[0], 0);
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

/// The times between the beginnings of successive components.
fn hops_us(outcome: &Outcome) -> Vec<u32> {
    let steps = outcome.components.iter().filter(|used| used.component.starts_with("step"));
    let mut begun_us: Vec<u64> = steps.map(|used| used.begin_us).collect();
    assert_eq!(begun_us.len(), COMPONENTS, "{outcome:?}");
    begun_us.sort_unstable();
    begun_us.windows(2).map(|pair| u32::try_from(pair[1] - pair[0]).unwrap()).collect()
}
