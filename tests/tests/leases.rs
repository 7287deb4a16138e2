//! A lease's life on real processes: it expires, is renewed, given back, reaped when idle; it grows over several nodes;
//! and a node's owner takes the node back, at leisure or at once.

#![allow(clippy::unwrap_used)]

use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::Value;
use sublet::{Allocation, CallOptions, Code, Error, Invoker};
use sublet_proto::v1::{LeaseState, NodeState};
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, LentCores};
use sublet_tests::functions::package;
use sublet_tests::platform::assert_echoes;
use sublet_tests::process::{PATIENCE, wait_until, with_growing_time};

fn call(client: &Invoker) -> Result<(), Error> {
    client.submit("echo", b"hello", &mut [0u8; 5])?.wait().map(|_| ())
}

/// Keeps the lease's core busy for so long.
fn busy(client: &Invoker, ms: u32) -> Result<(), Error> {
    client.submit("busy", &[ms], &mut [0u8; 0])?.wait().map(|_| ())
}

fn waiting(source: &'static str) -> Allocation {
    Allocation::new(package(source)).wait(PATIENCE)
}

/// Waits until calls fail, and gives the error.
fn wait_for_end(client: &Invoker) -> Error {
    let mut error = None;
    wait_until("the lease ends", || {
        error = call(client).err();
        error.is_some()
    });
    error.unwrap()
}

fn begin(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn json(output: Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Lets the first node lend again.
fn lend_again(cluster: &Cluster) {
    let lending = json(cluster.agents[0].told(&["--lend"]).output().unwrap());
    assert_eq!(lending["state"], "lending");
    wait_until("the manager knows", || cluster.node("node-0").unwrap().state() == NodeState::Lending);
}

#[test]
fn a_lease_expires_and_its_core_is_leased_again() {
    let cluster = Cluster::with_agents(1);
    let client = with_growing_time(Duration::from_secs(2), |time| {
        let mut client = cluster.invoker();
        client.allocate(&waiting("calls.c").timeout(time)).ok()?;
        call(&client).is_ok().then_some(client)
    });
    let lease = client.lease().unwrap().id.clone();
    let error = wait_for_end(&client);
    assert_eq!(error.code, Code::LeaseExpired, "{error}");
    cluster.assert_serves();
    let line = cluster.final_bill(&lease);
    assert!(line.usage.unwrap().calls >= 1, "{line:?}");
    assert_eq!(Code::from_number(cluster.lease(&lease).unwrap().end_code), Code::LeaseExpired);
    assert!(cluster.agents[0].workers().is_empty());
    assert_fails(client.renew(Duration::from_secs(60)), Code::LeaseExpired, &[&lease]);
}

#[test]
fn a_renewed_lease_keeps_its_call_in_flight() {
    let cluster = Cluster::with_agents(1);
    let (mut client, lease) = with_growing_time(Duration::from_secs(2), |time| {
        let mut client = cluster.invoker();
        client.allocate(&waiting("calls.c").timeout(time)).ok()?;
        let lease = client.lease()?;
        let longer = time + Duration::from_secs(1);
        let (called, renewed) = std::thread::scope(|scope| {
            let calling = scope.spawn(|| busy(&client, longer.as_millis().try_into().unwrap()));
            let renewed = client.renew(Duration::from_secs(600));
            (calling.join().unwrap(), renewed)
        });
        renewed.ok()?;
        called.unwrap();
        Some((client, lease))
    });
    assert_echoes(&client);
    let renewed = client.lease().unwrap();
    assert_eq!(renewed.id, lease.id);
    assert!(renewed.expires_unix_ms > lease.expires_unix_ms + 30_000, "{renewed:?}");
    client.deallocate().unwrap();
    assert_eq!(cluster.final_bill(&lease.id).usage.unwrap().calls, 2);
}

#[test]
fn what_is_released_early_is_leased_again() {
    let cluster = Cluster::with_agents(1);
    let mut client = cluster.invoker();
    let mut leases = Vec::new();
    for _ in 0..20 {
        client.allocate(&waiting("calls.c")).unwrap();
        assert_echoes(&client);
        leases.push(client.lease().unwrap().id.clone());
        client.deallocate().unwrap();
    }
    for lease in leases {
        let line = cluster.final_bill(&lease);
        assert_eq!((line.state(), line.usage.unwrap().calls), (LeaseState::Ended, 1));
    }
    cluster.wait_until_idle();
}

#[test]
fn only_an_idle_lease_is_reaped() {
    let mut cluster = Cluster::with_agents(1);
    cluster.add_agent(LentCores::cores(1));
    // A machine that stands still for longer than the time lets the other lease be idle, too.
    let (idle, lease, calling) = with_growing_time(Duration::from_secs(1), |time| {
        let idle_after = waiting("calls.c").idle_timeout(time);
        let (mut idle, mut calling) = (cluster.invoker(), cluster.invoker());
        idle.allocate(&idle_after).ok()?;
        calling.allocate(&idle_after).ok()?;
        let lease = idle.lease()?.id;
        let mut called = call(&calling);
        wait_until("the idle one is reaped", || {
            called = called.clone().and_then(|()| call(&calling));
            cluster.lease(&lease).is_some_and(|lease| lease.state() == LeaseState::Ended)
        });
        // A call that takes longer is no idleness.
        let longer = (time * 5 / 2).as_millis().try_into().unwrap();
        called.and_then(|()| busy(&calling, longer)).and_then(|()| call(&calling)).ok()?;
        Some((idle, lease, calling))
    });
    let ended = cluster.lease(&lease).unwrap();
    assert!(ended.end_reason.contains("idle"), "{ended:?}");
    assert_fails(call(&idle), Code::LeaseEnded, &["idle"]);
    assert_echoes(&calling);
}

#[test]
fn one_allocation_grows_over_several_nodes_or_takes_nothing() {
    let mut cluster = Cluster::with_agents(2);
    let mut client = cluster.invoker();
    client.allocate(&waiting("calls.c").cores(2)).unwrap();
    let nodes: Vec<_> = client.leases().into_iter().map(|lease| (lease.node, lease.cores)).collect();
    assert!(nodes.contains(&("node-0".into(), 1)) && nodes.contains(&("node-1".into(), 1)), "{nodes:?}");
    assert_eq!(client.workers(), 2);
    // Each returns only when the other runs, on another node.
    let mut meeting = client.buffer::<u32>(2).unwrap();
    meeting.fill(0);
    let on = |worker| CallOptions { worker: Some(worker), ..CallOptions::default() };
    let (first, second) = (client.function("meet_first").unwrap(), client.function("meet_second").unwrap());
    let (mut nothing, mut nothing_either) = ([0u8; 0], [0u8; 0]);
    let calls = [
        client.submit_with(first, &meeting, &mut nothing, on(0)).unwrap(),
        client.submit_with(second, &meeting, &mut nothing_either, on(1)).unwrap(),
    ];
    for call in calls {
        call.wait().unwrap();
    }
    assert_eq!([meeting.atomic(0), meeting.atomic(1)].map(|word| word.load(Ordering::Relaxed)), [1, 1]);

    let mut other = cluster.invoker();
    let one_node = Allocation::new(package("calls.c")).cores(2).max_nodes(1);
    assert_fails(other.allocate(&one_node), Code::InsufficientResources, &["2"]);
    client.deallocate().unwrap();
    other.allocate(&waiting("calls.c")).unwrap();
    let two = Allocation::new(package("calls.c")).cores(2);
    assert_fails(client.allocate(&two), Code::NoCapacity, &["2"]);
    // A request that cannot be met in full takes nothing: there is a core for one more.
    let at_once = Allocation::new(package("calls.c"));
    wait_until("its core is free", || client.allocate(&at_once).is_ok());
    assert_fails(client.grow(1), Code::NoCapacity, &["1"]);
    assert_echoes(&client);
    cluster.add_agent(LentCores::cores(1));
    client.grow(1).unwrap();
    assert_eq!((client.workers(), client.leases().len()), (2, 2));
    let names = |client: &Invoker| client.leases().into_iter().map(|lease| lease.id).collect::<Vec<_>>();
    let leases = names(&client);
    client.deallocate().unwrap();
    for lease in leases {
        assert_eq!(cluster.final_bill(&lease).state(), LeaseState::Ended);
    }
}

#[test]
fn a_drained_node_keeps_leases_and_takes_no_new_ones() {
    let cluster = Cluster::with_agents(1);
    let mut client = cluster.client("calls.c");
    let draining = begin(cluster.agents[0].told(&["--drain"]));
    wait_until("the manager knows", || cluster.node("node-0").unwrap().state() == NodeState::Draining);
    for _ in 0..10 {
        assert_echoes(&client);
    }
    let refused = cluster.invoker().allocate(&Allocation::new(package("calls.c")));
    assert!(refused.unwrap_err().code.is_shortage());
    client.deallocate().unwrap();
    let done = json(draining.wait_with_output().unwrap());
    assert_eq!((&done["state"], &done["leases"]), (&"draining".into(), &0.into()));
    let refused = cluster.invoker().allocate(&Allocation::new(package("calls.c")));
    assert!(refused.unwrap_err().code.is_shortage());
    lend_again(&cluster);
    cluster.assert_serves();
}

#[test]
fn a_reclaimed_node_gives_notice_and_then_takes_its_cores() {
    let cluster = Cluster::with_agents(1);
    let client = cluster.client("faults.c");
    let lease = client.lease().unwrap().id.clone();
    let mut flag = client.buffer::<u32>(1).unwrap();
    flag.set(0, 0);
    let mut output = [0u8; 8];
    let since = Instant::now();
    let reclaiming = begin(cluster.agents[0].told(&["--reclaim", "--grace", "10s"]));
    wait_until("the client has a notice", || !client.notices().is_empty());
    let notice = client.notices().remove(0);
    assert_eq!((&notice.lease, notice.error.code), (&lease, Code::NodeReclaimed), "{}", notice.error);
    // Calls succeed until then, which is longer than this takes.
    assert_echoes(&client);
    let spinning = client.submit("spin", &flag, &mut output).unwrap();
    assert_fails(spinning.wait(), Code::NodeReclaimed, &["node-0"]);
    assert!(since.elapsed() >= Duration::from_secs(10), "the grace was cut short");
    let done = json(reclaiming.wait_with_output().unwrap());
    assert_eq!((&done["state"], &done["leases"]), (&"reclaimed".into(), &0.into()));
    assert!(cluster.agents[0].workers().is_empty());
    let line = cluster.final_bill(&lease);
    assert!(line.usage.unwrap().executing_ns > 0, "{line:?}");
    assert_eq!(Code::from_number(cluster.lease(&lease).unwrap().end_code), Code::NodeReclaimed);
    let node = cluster.node("node-0").unwrap();
    assert_eq!((node.state(), node.cores_leased), (NodeState::Reclaimed, 0));
    assert!(cluster.invoker().allocate(&Allocation::new(package("calls.c"))).is_err());
    lend_again(&cluster);
    cluster.assert_serves();
}

#[test]
fn only_repeatable_calls_move_away_from_a_reclaimed_node() {
    let cluster = Cluster::with_agents(2);
    let mut client = cluster.invoker();
    client.allocate(&waiting("calls.c").cores(2)).unwrap();
    let reclaimed = client.leases().remove(0);
    let number: usize = reclaimed.node.strip_prefix("node-").unwrap().parse().unwrap();
    let function = client.function("busy").unwrap();
    let (repeatable, once) = (CallOptions::default().repeatable(2), CallOptions::default());
    let on_reclaimed = |options| CallOptions { worker: None, ..options };
    let long = [2_000u32];
    let (mut nothing, mut nothing_either) = ([0u8; 0], [0u8; 0]);
    // One on each worker; which one is where, is theirs to choose.
    let moves = client.submit_with(function, &long, &mut nothing, on_reclaimed(repeatable)).unwrap();
    let stays = client.submit_with(function, &long, &mut nothing_either, on_reclaimed(once)).unwrap();
    let reclaiming = begin(cluster.agents[number].told(&["--reclaim", "--grace", "1s"]));
    moves.wait().unwrap();
    if let Err(error) = stays.wait() {
        assert_eq!(error.code, Code::NodeReclaimed, "{error}");
    }
    json(reclaiming.wait_with_output().unwrap());
    // New calls go to the lease that remains.
    for _ in 0..10 {
        assert_echoes(&client);
    }
    assert!(cluster.agents[number].workers().is_empty());
}
