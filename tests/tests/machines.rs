//! Clients, managers and agents on machines of their own: calls travel over a network whose links are cut, shaped and
//! taken away. Network namespaces stand in for machines; see `sublet_tests::network`.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sublet_means::{Means, skip};

use serde_json::json;
use sublet::{
    Allocation, Application, CallOptions, Code, Completion, Error, Invocation, Invoker, MemoryPlan,
    RunOptions,
};
use sublet_fabric::ofi;
use sublet_tests::assert_fails;
use sublet_tests::cluster::{CLIENT_HOST, Cluster, ClusterPlan, FIRST_AGENT_HOST, LentCores};
use sublet_tests::functions::{library, package};
use sublet_tests::network::{Host, SwitchedNetwork, connections_to, wait_until_acknowledged};
use sublet_tests::platform::{assert_echoes, kill};
use sublet_tests::process::{PATIENCE, is_alive, wait_until, with_growing_time};
use sublet_tests::rounds::wait_for_reports;

/// Arguments of agents that are also reached by libfabric without a network card for it.
const LIBFABRIC: &[&str] = &["--fabrics", "tcp,ofi:tcp;ofi_rxm"];

/// A client's machine, one of a manager, and one for each agent, which lends a core. `None` where this user may not.
fn cluster(agents: u8) -> Option<Cluster> {
    cluster_with(agents, &[])
}

/// Does what [`cluster`] does, with further arguments of the agents.
fn cluster_with(agents: u8, more: &[&str]) -> Option<Cluster> {
    let network = SwitchedNetwork::of_machines(FIRST_AGENT_HOST + agents)?;
    let mut cluster = Cluster::start(ClusterPlan { network: Some(network), ..ClusterPlan::default() });
    for _ in 0..agents {
        cluster.add_agent_with(LentCores::cores(1), more);
    }
    Some(cluster)
}

fn host(cluster: &Cluster, number: u8) -> Host {
    cluster.network.as_ref().unwrap().host(number)
}

fn allocation() -> Allocation {
    Allocation::new(package("calls.c")).wait(PATIENCE)
}

/// Fabrics over which the calls of each lease travel.
fn fabrics(client: &Invoker) -> Vec<String> {
    client.fabrics().iter().map(ToString::to_string).collect()
}

fn is_free(cluster: &Cluster, node: &str) -> bool {
    cluster.node(node).unwrap().cores_leased == 0
}

/// Result of a call that ends in any case.
fn end_of(call: Invocation) -> Result<Completion, Error> {
    call.wait_deadline(Instant::now() + PATIENCE)
}

fn echoes(client: &Invoker, len: usize) -> Result<(), Error> {
    let input: Vec<u8> = (0..len).map(|index| (index * 31 + len) as u8).collect();
    let mut buffer = client.buffer::<u8>(len)?;
    buffer.copy_from_slice(&input);
    let mut output = client.buffer::<u8>(len)?;
    let done = end_of(client.submit("echo", &buffer, &mut output)?)?;
    assert_eq!(done.output_bytes, len);
    assert!(output.to_vec() == input, "{len} bytes came back as others");
    Ok(())
}

#[test]
fn remote_clients_use_tcp_and_local_ones_shared_memory() {
    let Some(cluster) = cluster(1) else { return };
    host(&cluster, CLIENT_HOST).run(|| {
        let mut client = cluster.invoker();
        client.allocate(&allocation()).unwrap();
        assert_eq!(fabrics(&client), ["tcp"]);
        assert_echoes(&client);
    });
    // A program that sees the agent's boot id is on its machine.
    let beside = host(&cluster, FIRST_AGENT_HOST);
    let (input, output) = (cluster.folder().join("input"), cluster.folder().join("output"));
    fs::write(&input, "near").unwrap();
    let mut call = cluster.user_command(&beside);
    call.args(["call", "libcalls/echo", "--json", "--input"]).arg(&input).arg("--output").arg(&output);
    let said = call.output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let said: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!((said["fabric"].as_str(), fs::read(&output).unwrap().as_slice()), (Some("shm"), &b"near"[..]));
}

#[test]
fn workers_of_two_nodes_are_called_in_parallel() {
    let Some(cluster) = cluster(2) else { return };
    host(&cluster, CLIENT_HOST).run(|| {
        let mut client = cluster.invoker();
        client.allocate(&allocation().cores(2)).unwrap();
        assert_eq!(fabrics(&client), ["tcp", "tcp"]);
        let (busy, echo) = (client.function("busy").unwrap(), client.function("echo").unwrap());
        let mut calls = 0;
        for (long, short) in [(0, 1), (1, 0)] {
            let on = |worker| CallOptions { worker: Some(worker), ..CallOptions::default() };
            // Calls that waited for each other would do so however long the one takes.
            with_growing_time(Duration::from_secs(1), |time| {
                let (ms, mut nothing) = ([u32::try_from(time.as_millis()).unwrap()], [0u8; 0]);
                let mut slow = client.submit_with(busy, &ms, &mut nothing, on(long)).unwrap();
                for _ in 0..100 {
                    let mut output = [0u8; 2];
                    client.submit_with(echo, b"hi", &mut output, on(short)).unwrap().wait().unwrap();
                    assert_eq!(&output, b"hi");
                }
                let is_parallel = !slow.is_ready();
                slow.wait().unwrap();
                calls += 101;
                is_parallel.then_some(())
            });
        }
        let usage = client.deallocate().unwrap();
        assert_eq!(usage.calls, calls);
        cluster.wait_until_idle();
    });
}

/// A cut that leaves the agent with its manager.
fn the_link_is_cut(to_client: bool, to_agent: bool) {
    let Some(cluster) = cluster(1) else { return };
    the_link_is_cut_under(&cluster, &allocation(), (to_client, to_agent));
}

fn the_link_is_cut_under(cluster: &Cluster, allocation: &Allocation, (to_client, to_agent): (bool, bool)) {
    let network = cluster.network.as_ref().unwrap();
    let [here, there] = [CLIENT_HOST, FIRST_AGENT_HOST].map(|number| network.host(number).address(0));
    let pairs: Vec<_> =
        [(to_client, (there, here)), (to_agent, (here, there))].into_iter().filter(|(cut, _)| *cut).collect();
    host(cluster, CLIENT_HOST).run(|| {
        let mut client = cluster.invoker();
        client.allocate(allocation).unwrap();
        let lease = client.lease().unwrap().id;
        assert_echoes(&client);
        let mut nothing = [0u8; 0];
        let in_flight = client.submit("busy", &[60_000u32], &mut nothing).unwrap();
        wait_until_acknowledged(there);
        for (_, (from, to)) in &pairs {
            network.cut(*from, *to);
        }
        let error = end_of(in_flight).unwrap_err();
        assert_eq!(error.code, Code::AgentUnreachable, "{error}");
        wait_until("the agent frees what its client had", || is_free(cluster, "node-0"));
        assert_eq!(client.deallocate().unwrap_err().code, Code::AgentUnreachable);
        for (_, (from, to)) in &pairs {
            network.mend(*from, *to);
        }
        assert!(cluster.final_bill(&lease).usage.unwrap().calls >= 1);
        cluster.assert_serves();
    });
}

#[test]
fn a_cut_link_ends_the_lease_on_both_sides() {
    the_link_is_cut(true, true);
}

#[test]
fn a_link_cut_to_the_client_ends_the_lease() {
    the_link_is_cut(true, false);
}

#[test]
fn a_link_cut_to_the_agent_ends_the_lease() {
    the_link_is_cut(false, true);
}

/// The provider's ends send to any other, and nothing of it says that the peer is out of reach: the control connections do.
#[test]
fn a_cut_link_ends_the_lease_under_libfabric_too() {
    if let Err(error) = ofi::providers() {
        skip(Means::Libfabric, error);
        return;
    }
    let Some(cluster) = cluster_with(1, LIBFABRIC) else { return };
    let allocation = allocation().fabric("ofi:tcp;ofi_rxm".parse().unwrap());
    the_link_is_cut_under(&cluster, &allocation, (true, true));
}

#[test]
fn an_unreachable_node_is_free_once_its_client_knows() {
    let Some(cluster) = cluster(1) else { return };
    let network = cluster.network.as_ref().unwrap();
    let [here, there] = [CLIENT_HOST, FIRST_AGENT_HOST].map(|number| network.host(number).address(0));
    host(&cluster, CLIENT_HOST).run(|| {
        let (mut client, at_once) = (cluster.invoker(), Allocation::new(package("calls.c")));
        network.cut(here, there);
        for _ in 0..2 {
            assert_fails(client.allocate(&at_once), Code::AgentUnreachable, &[&there.to_string()]);
        }
        network.mend(here, there);
        client.allocate(&at_once).unwrap();
        assert_echoes(&client);
    });
}

#[test]
fn an_idle_lease_of_an_unreachable_client_ends() {
    let Some(cluster) = cluster(1) else { return };
    let network = cluster.network.as_ref().unwrap();
    let [here, there] = [CLIENT_HOST, FIRST_AGENT_HOST].map(|number| network.host(number).address(0));
    host(&cluster, CLIENT_HOST).run(|| {
        for (from, to) in [(there, here), (here, there)] {
            let mut client = cluster.invoker();
            client.allocate(&allocation()).unwrap();
            let lease = client.lease().unwrap().id;
            assert_echoes(&client);
            // From now on only signs of life are under way.
            wait_until_acknowledged(there);
            network.cut(from, to);
            wait_until("the agent frees what its client had", || is_free(&cluster, "node-0"));
            let error = echoes(&client, 1).unwrap_err();
            assert_eq!(error.code, Code::AgentUnreachable, "{error}");
            network.mend(from, to);
            assert_eq!(cluster.final_bill(&lease).usage.unwrap().calls, 1);
        }
        cluster.assert_serves();
    });
}

#[test]
fn repeatable_calls_continue_at_the_other_node_after_a_cut() {
    let Some(cluster) = cluster(2) else { return };
    let network = cluster.network.as_ref().unwrap();
    host(&cluster, CLIENT_HOST).run(|| {
        let mut client = cluster.invoker();
        client.allocate(&allocation().cores(2)).unwrap();
        let leaving: u8 = client.leases()[1].node.strip_prefix("node-").unwrap().parse().unwrap();
        let [here, there] =
            [CLIENT_HOST, FIRST_AGENT_HOST + leaving].map(|number| network.host(number).address(0));
        let busy = client.function("busy").unwrap();
        let options = CallOptions::default().repeatable(1);
        let mut nothings = [[0u8; 0]; 2];
        // One for each worker; the one that is lost is repeated by the other.
        let calls =
            nothings.iter_mut().map(|nothing| client.submit_with(busy, &[1_500u32], nothing, options));
        let calls: Vec<_> = calls.map(Result::unwrap).collect();
        network.cut(here, there);
        network.cut(there, here);
        for call in calls {
            call.wait().unwrap();
        }
        for _ in 0..10 {
            assert_echoes(&client);
        }
        network.mend(here, there);
        network.mend(there, here);
        drop(client);
        cluster.wait_until_idle();
    });
}

#[test]
fn a_slow_link_carries_large_calls_whole() {
    let Some(cluster) = cluster(1) else { return };
    cluster.network.as_ref().unwrap().shape(FIRST_AGENT_HOST, 300);
    host(&cluster, CLIENT_HOST).run(|| {
        let mut client = cluster.invoker();
        client.allocate(&allocation()).unwrap();
        for len in [1, 1_000, 100_000, 5_000_000] {
            echoes(&client, len).unwrap();
        }
        client.deallocate().unwrap();
    });
}

#[test]
fn a_removed_interface_ends_the_lease_and_frees_the_node() {
    let Some(cluster) = cluster(2) else { return };
    let network = cluster.network.as_ref().unwrap();
    host(&cluster, CLIENT_HOST).run(|| {
        let mut client = cluster.invoker();
        client.allocate(&allocation()).unwrap();
        let node = client.lease().unwrap().node;
        let number: u8 = node.strip_prefix("node-").unwrap().parse().unwrap();
        let mut nothing = [0u8; 0];
        let in_flight = client.submit("busy", &[60_000u32], &mut nothing).unwrap();
        let worker = cluster.agents[usize::from(number)].worker();
        network.unplug(FIRST_AGENT_HOST + number);
        let error = end_of(in_flight).unwrap_err();
        assert_eq!(error.code, Code::AgentUnreachable, "{error}");
        wait_until("the agent stops the worker", || !is_alive(worker));
        drop(client);
        cluster.assert_serves();
    });
}

#[test]
fn packets_too_large_for_a_switch_are_an_error() {
    let Some(cluster) = cluster(1) else { return };
    let network = cluster.network.as_ref().unwrap();
    for number in [CLIENT_HOST, FIRST_AGENT_HOST] {
        network.set_port_mtu(number, 9_000);
        network.set_mtu(number, 9_000);
    }
    host(&cluster, CLIENT_HOST).run(|| {
        let mut client = cluster.invoker();
        client.allocate(&allocation()).unwrap();
        echoes(&client, 100_000).unwrap();
        network.set_port_mtu(FIRST_AGENT_HOST, 1_500);
        echoes(&client, 64).unwrap();
        // Small packets still pass, so the agent is there; the connection to the worker is not.
        let error = echoes(&client, 100_000).unwrap_err();
        assert!(matches!(error.code, Code::WorkerDied | Code::AgentUnreachable), "{error}");
        assert!(error.message.contains("connection"), "{error}");
        network.set_port_mtu(FIRST_AGENT_HOST, 9_000);
        drop(client);
        wait_until("the agent frees what its client had", || is_free(&cluster, "node-0"));
        cluster.assert_serves();
    });
}

#[test]
fn a_client_that_stands_still_keeps_its_lease() {
    let Some(cluster) = cluster(1) else { return };
    let input = cluster.folder().join("milliseconds");
    fs::write(&input, 60_000u32.to_le_bytes()).unwrap();
    let mut holder = cluster.user_command(&host(&cluster, CLIENT_HOST));
    holder.arg("call").arg(package("calls.c") + "/busy").arg("--input").arg(&input);
    let mut holder = holder.stdout(Stdio::null()).spawn().unwrap();
    wait_until("the client's worker runs", || !cluster.agents[0].workers().is_empty());
    kill(holder.id(), Signal::STOP);
    // Each second; a connection may be silent for less.
    wait_for_reports(&cluster.managers[0], "node-0", 4);
    assert!(!is_free(&cluster, "node-0"), "a client that was stopped for a while was taken for lost");
    holder.kill().unwrap();
    holder.wait().unwrap();
    wait_until("the lease of a client that is killed ends", || is_free(&cluster, "node-0"));
    host(&cluster, CLIENT_HOST).run(|| cluster.assert_serves());
}

#[test]
fn remote_memory_is_reached_over_the_fabric_of_its_plan() {
    let Some(cluster) = cluster(2) else { return };
    let plan = || MemoryPlan::new().initial_bytes(1 << 20).increment_bytes(1 << 20);
    host(&cluster, CLIENT_HOST).run(|| {
        let near = cluster.invoker().memory(plan().near(["node-0"])).unwrap();
        near.write(0, &[7; 1 << 20]).unwrap();
        assert_eq!(near.segments()[0].node, "node-0", "where its neighbour is");
        assert_fails(near.mapped(0, 1), Code::FabricUnavailable, &["node-0"]);
        let other = cluster.invoker().memory(plan().near(["node-1"])).unwrap();
        other.write((1 << 20) - 1, &[9; 2]).unwrap();
        assert!(other.segments().iter().all(|lease| lease.node == "node-1"));
        let mut both = [0; 2];
        near.read((1 << 20) - 1, &mut both[..1]).unwrap();
        other.read(1 << 20, &mut both[1..]).unwrap();
        assert_eq!(both, [7, 9]);
        near.release().unwrap();
        other.release().unwrap();
    });
}

/// Numbers are written by one worker, and added up by two on two machines.
fn sums() -> Vec<u8> {
    let compute = |name: &str, function: &str, parallelism: u32| {
        json!({
            "name": name, "type": "compute", "package": "libcomponents", "function": function,
            "parallelism": parallelism, "entry": name == "fill", "resources": { "memory_bytes": 16 << 20 },
        })
    };
    let memory = |name: &str| {
        json!({
            "name": name, "type": "memory",
            "initial_bytes": 4 << 20, "increment_bytes": 4 << 20, "limit_bytes": 128 << 20,
        })
    };
    let trigger = |from: &str, to: &str| json!({ "type": "trigger", "from": from, "to": to });
    let access = |from: &str, to: &str, rights: &str| json!({ "type": "access", "from": from, "to": to, "rights": rights });
    let components = [
        compute("fill", "pour", 1),
        compute("share", "gather", 2),
        compute("total", "total", 1),
        memory("numbers"),
        memory("sums"),
    ];
    let edges = [
        trigger("fill", "share"),
        trigger("share", "total"),
        access("fill", "numbers", "write"),
        access("share", "numbers", "read"),
        access("share", "sums", "write"),
        access("total", "sums", "read"),
    ];
    let graph = json!({ "version": 1, "name": "sums", "components": components, "edges": edges });
    graph.to_string().into_bytes()
}

/// The most connections at a time that led from one agent's machine to the other's agent while something was done, in both
/// directions.
fn most_connections(cluster: &Cluster, act: impl FnOnce()) -> [usize; 2] {
    let is_done = AtomicBool::new(false);
    let look = |number: u8| {
        let other = cluster.node(&format!("node-{}", 1 - number)).unwrap().description.unwrap();
        let agent = other.network.unwrap().address.parse().unwrap();
        host(cluster, FIRST_AGENT_HOST + number).run(|| {
            let mut most = 0;
            while !is_done.load(Ordering::Relaxed) {
                most = most.max(connections_to(agent));
            }
            most
        })
    };
    std::thread::scope(|scope| {
        let looks = [0, 1].map(|number| {
            let look = &look;
            scope.spawn(move || look(number))
        });
        act();
        is_done.store(true, Ordering::Relaxed);
        looks.map(|look| look.join().unwrap())
    })
}

/// Runs that, on machines that lend as much memory, from this one.
fn assert_sums(cluster: &Cluster, from: &Host, count: u64) {
    from.run(|| {
        let options = RunOptions { retries: 0, ..RunOptions::default() };
        let application = Application::deploy(cluster.user("somebody"), &sums(), options).unwrap();
        let outcome = application.run(&count.to_le_bytes()).unwrap();
        let [(_, outputs)] = outcome.outputs.as_slice() else { panic!("{outcome:?}") };
        let sum = u64::from_le_bytes(outputs[0].as_slice().try_into().unwrap());
        assert_eq!(sum, count * (count + 1) / 2);
        let moved = |component: &str, memory: &str| {
            let used = outcome.components.iter().find(|used| used.component == component).unwrap();
            let channel = used.channels.iter().find(|channel| channel.memory == memory);
            channel.unwrap_or_else(|| panic!("{used:?}")).traffic.unwrap()
        };
        let (filled, read) = (moved("fill", "numbers"), moved("share", "numbers"));
        assert_eq!((filled.writes, filled.written_bytes), (count.div_ceil(512), count * 8));
        assert_eq!((filled.reads, read.read_bytes, read.writes), (0, count * 8, 0));
        assert_eq!((moved("share", "sums").written_bytes, moved("total", "sums").read_bytes), (16, 16));
        cluster.wait_until_idle();
    });
}

#[test]
fn components_share_memory_larger_than_either_machine_lends() {
    let Some(cluster) = cluster_with(2, &["--memory", "64MiB"]) else { return };
    cluster.publish(library("components.c"));
    // 72 MiB of numbers: on both machines, and the workers are on both.
    let count: u64 = 72 << 17;
    let most = most_connections(&cluster, || assert_sums(&cluster, &host(&cluster, CLIENT_HOST), count));
    assert_eq!(most, [1, 1], "each worker process has one to the other node, for all segments there");
    // A client on one of the machines shares its memory with what is there, and hands connections to the other one in.
    let at = |name: &str| cluster.folder().join(name);
    fs::write(at("sums.json"), sums()).unwrap();
    fs::write(at("count"), count.to_le_bytes()).unwrap();
    let mut run = cluster.user_command(&host(&cluster, FIRST_AGENT_HOST));
    run.args(["graph", "run", "--retries", "0"]).arg(at("sums.json"));
    run.arg("--input").arg(at("count")).arg("--output").arg(at("sum"));
    let said = run.output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    assert_eq!(fs::read(at("sum")).unwrap(), u64::to_le_bytes(count * (count + 1) / 2));
}

#[test]
fn memory_of_two_machines_is_made_shorter_and_longer() {
    let Some(cluster) = cluster_with(2, &["--memory", "64MiB"]) else { return };
    cluster.publish(library("components.c"));
    let graph = json!({
        "version": 1, "name": "halve",
        "components": [
            {
                "name": "halve", "type": "compute", "package": "libcomponents", "function": "halve", "entry": true,
                "resources": { "memory_bytes": 16 << 20 },
            },
            {
                "name": "numbers", "type": "memory",
                "initial_bytes": 4 << 20, "increment_bytes": 4 << 20, "limit_bytes": 128 << 20,
            },
        ],
        "edges": [{ "type": "access", "from": "halve", "to": "numbers", "rights": "write" }],
    });
    // 72 MiB: on both machines.
    let count: u64 = 72 << 17;
    for from in [CLIENT_HOST, FIRST_AGENT_HOST] {
        host(&cluster, from).run(|| {
            let options = RunOptions { retries: 0, ..RunOptions::default() };
            let document = graph.to_string().into_bytes();
            let application = Application::deploy(cluster.user("somebody"), &document, options).unwrap();
            let outcome = application.run(&count.to_le_bytes()).unwrap();
            let sum = u64::from_le_bytes(outcome.outputs[0].1[0].as_slice().try_into().unwrap());
            let left = count / 2 + 1;
            assert_eq!(sum, left * (left + 1) / 2);
            cluster.wait_until_idle();
        });
    }
}

#[test]
fn components_of_two_machines_send_each_other_messages() {
    let Some(cluster) = cluster(2) else { return };
    cluster.publish(library("components.c"));
    let compute = |name: &str, function: &str| {
        json!({
            "name": name, "type": "compute", "package": "libcomponents", "function": function,
            "entry": name == "start",
        })
    };
    let edge = |kind: &str, from: &str, to: &str| json!({ "type": kind, "from": from, "to": to });
    let graph = json!({
        "version": 1, "name": "talk",
        "components": [compute("start", "later"), compute("ask", "ask"), compute("tell", "tell")],
        "edges": [edge("trigger", "start", "ask"), edge("trigger", "start", "tell"), edge("message", "ask", "tell")],
    });
    host(&cluster, CLIENT_HOST).run(|| {
        let document = graph.to_string().into_bytes();
        let application =
            Application::deploy(cluster.user("somebody"), &document, RunOptions::default()).unwrap();
        let outcome = application.run(&300u64.to_le_bytes()).unwrap();
        let said = |at: usize| u64::from_le_bytes(outcome.outputs[at].1[0].as_slice().try_into().unwrap());
        assert_eq!((said(0), said(1)), ((1..=300u64).map(|number| number * number).sum(), 300));
        cluster.wait_until_idle();
    });
}

#[test]
fn where_a_node_insists_memory_travels_encrypted() {
    let Some(cluster) = cluster_with(2, &["--encrypt", "true"]) else { return };
    cluster.publish(library("components.c"));
    assert_sums(&cluster, &host(&cluster, CLIENT_HOST), 100_000);
}

#[test]
fn unreachable_memory_ends_with_an_error_and_is_freed() {
    let Some(cluster) = cluster(1) else { return };
    let network = cluster.network.as_ref().unwrap();
    host(&cluster, CLIENT_HOST).run(|| {
        let memory = cluster.invoker().memory(MemoryPlan::new().initial_bytes(1 << 20)).unwrap();
        memory.write(0, &[7; 1 << 20]).unwrap();
        let leased = || cluster.node("node-0").unwrap().memory_leased_bytes;
        wait_until("it is leased", || leased() == 1 << 20);
        let [here, there] = [CLIENT_HOST, FIRST_AGENT_HOST].map(|number| network.host(number).address(0));
        let pairs = [(here, there), (there, here)];
        pairs.iter().for_each(|(from, to)| network.cut(*from, *to));
        let ends =
            |result: Result<(), Error>| result.is_err_and(|error| error.code == Code::AgentUnreachable);
        wait_until("a write ends", || ends(memory.write(0, &[8; 100_000])));
        wait_until("a read ends", || ends(memory.read(0, &mut [0; 100_000])));
        pairs.iter().for_each(|(from, to)| network.mend(*from, *to));
        wait_until("it is free", || leased() == 0);
    });
}
