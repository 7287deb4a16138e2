//! Two DPUs of one host that cannot reach each other: what passes between their processes the host passes on. Network namespaces stand in
//! for machines; see `sublet_tests::network`.

#![allow(clippy::unwrap_used)]

use sublet::Allocation;
use sublet_tests::cluster::{CLIENT_HOST, Cluster, ClusterPlan, FIRST_AGENT_HOST, LentCores};
use sublet_tests::functions::package;
use sublet_tests::global::{GlobalProcess, WRITE, allow, exchange, join_while_it_reads, refused};
use sublet_tests::network::{Host, SwitchedNetwork};
use sublet_tests::process::wait_until;

/// A host, `node-0`, and two DPUs that name it, between which there is no path; all have these flags, too. `None` where this user may make
/// no network.
fn computer(more: &[&str]) -> Option<Cluster> {
    let network = SwitchedNetwork::of_machines(FIRST_AGENT_HOST + 3)?;
    let [one, other] = [1, 2].map(|dpu| network.host(FIRST_AGENT_HOST + dpu).address(0));
    network.cut(one, other);
    network.cut(other, one);
    let mut cluster = Cluster::start(ClusterPlan { network: Some(network), ..ClusterPlan::default() });
    let host = ["--devices", "none", "--neighbour", "node-1", "--neighbour", "node-2"];
    cluster.add_agent_with(LentCores::cores(2), &[&host, more].concat());
    for _ in 0..2 {
        let dpu = ["--devices", "none", "--pu", "dpu", "--neighbour", "node-0"];
        cluster.add_agent_with(LentCores::cores(2), &[&dpu, more].concat());
    }
    Some(cluster)
}

fn client_of(cluster: &Cluster) -> Host {
    cluster.network.as_ref().unwrap().host(CLIENT_HOST)
}

fn on(cluster: &Cluster, node: &str, source: &'static str) -> GlobalProcess {
    GlobalProcess::of(cluster, Allocation::new(package(source)).pu("dpu").near([node]))
}

/// The number by which a process knows a unit, once it is linked with both others.
fn number_of(process: &GlobalProcess, unit: u64) -> u32 {
    let mut number = None;
    wait_until("the units are linked", || {
        let found = |number: u32| process.call("unit", &number.to_le_bytes()).ok();
        // Another that is linked meanwhile may have a lower number.
        let are_all = found(2).is_some();
        number = (1..=2).find(|number| found(*number).is_some_and(|id| id == (unit as u32).to_le_bytes()));
        are_all && number.is_some()
    });
    number.unwrap()
}

#[test]
fn unconnected_dpus_share_fifos_through_the_host() {
    for encryption in [&[][..], &["--encrypt", "true"]] {
        let Some(mut cluster) = computer(encryption) else { return };
        client_of(&cluster).run(|| {
            let (one, two) = (on(&cluster, "node-1", "neighbours.c"), on(&cluster, "node-2", "neighbours.c"));
            assert_ne!(one.pid() >> 32, two.pid() >> 32);
            let (object, fd) = one.make("frames").unwrap();
            allow(&one, [two.pid(), object, WRITE]);
            let to = join_while_it_reads(&two, "frames", (&one, fd));
            exchange((&one, fd), (&two, to));
            // A name is one FIFO's in the whole computer.
            refused(two.make("frames"), "frames");
            // To operators the neighbours of a node are those that it names.
            let units = cluster.json(&["pus"]);
            let units = units["units"].as_array().unwrap();
            let dpu = units.iter().find(|unit| unit["node"] == "node-1").unwrap();
            assert_eq!(dpu["neighbours"], serde_json::json!(["node-0"]));
            // Without the host there is no way.
            cluster.agents[0].kill();
            wait_until("the connection is lost", || two.say(to, b"x").is_err());
            refused(one.words("allow", &[two.pid(), object, WRITE]), "out of reach");
        });
    }
}

#[test]
fn functions_execute_on_a_dpu_that_only_the_host_reaches() {
    let Some(cluster) = computer(&[]) else { return };
    client_of(&cluster).run(|| {
        let (caller, other) = (on(&cluster, "node-1", "executors.c"), on(&cluster, "node-2", "neighbours.c"));
        let there = other.pid() >> 32;
        let number = number_of(&caller, there);
        let begun = caller.call("begin", &[number.to_le_bytes(), [0; 4]].concat()).unwrap();
        let mut name = [0; 24];
        name[..6].copy_from_slice(b"square");
        let asked = [&begun, 5000u32.to_le_bytes().as_slice(), &name, &7u64.to_le_bytes()].concat();
        assert_eq!(caller.call("ask", &asked).unwrap(), 49u64.to_le_bytes());
        let which = caller.call("which", &begun).unwrap();
        assert_eq!(u64::from_le_bytes(which.try_into().unwrap()) >> 32, there);
    });
}
