//! Agents that are killed or stopped with leases running: their workers die with them, clients get an error with the
//! cause, calls that may be repeated continue elsewhere, and usage until then is billed.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sublet::{Allocation, CallOptions, Code, Invoker};
use sublet_proto::v1::{LeaseState, NodeState};
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, TENANT};
use sublet_tests::functions::package;
use sublet_tests::platform::assert_echoes;
use sublet_tests::process::{PATIENCE, is_alive, wait_until};
use sublet_tests::rounds::wait_for_journal;

/// Most time by which a call of `busy` may be shorter than requested.
const ROUNDING: Duration = Duration::from_millis(1);

fn busy(client: &Invoker, ms: u32) -> Result<(), sublet::Error> {
    client.submit("busy", &[ms], &mut [0u8; 0])?.wait().map(|_| ())
}

fn allocation() -> Allocation {
    Allocation::new(package("calls.c")).wait(PATIENCE)
}

#[test]
fn killing_an_agent_ends_its_workers_and_loses_little_usage() {
    let mut cluster = Cluster::with_agents(1);
    let mut client = cluster.invoker();
    let begun = Instant::now();
    client.allocate(&allocation()).unwrap();
    let (lease, worker) = (client.lease().unwrap().id, cluster.agents[0].worker());
    let (calls, ms) = (20u32, 100u32);
    (0..calls).for_each(|_| busy(&client, ms).unwrap());
    let used = (Duration::from_millis(ms.into()) - ROUNDING) * calls;
    wait_for_journal(&cluster.agents[0]);
    let mut nothing = [0u8; 0];
    let in_flight = client.submit("busy", &[60_000u32], &mut nothing).unwrap();
    cluster.agents[0].kill();
    assert_fails(in_flight.wait(), Code::AgentUnreachable, &["agent"]);
    wait_until("its worker dies with it", || !is_alive(worker));
    let held = begun.elapsed();
    assert_fails(client.deallocate(), Code::AgentUnreachable, &["agent"]);
    wait_until("the manager misses it", || cluster.node("node-0").unwrap().state() == NodeState::Lost);
    cluster.agents[0].restart();
    let line = cluster.final_bill(&lease);
    let usage = line.usage.unwrap();
    let billed = Duration::from_nanos(usage.executing_ns);
    assert!(billed >= used, "{used:?} used, {billed:?} billed");
    assert!(billed <= held && Duration::from_nanos(usage.allocated_ns) <= held, "{held:?} held: {usage:?}");
    assert!(usage.calls >= u64::from(calls), "{usage:?}");
    cluster.wait_until_idle();
    cluster.assert_serves();
    // It is said once: a second restart does not bill it again.
    cluster.agents[0].kill();
    cluster.agents[0].restart();
    cluster.assert_serves();
    assert_eq!(cluster.final_bill(&lease).usage.unwrap(), usage);
}

#[test]
fn the_next_agent_reports_usage_of_a_killed_one() {
    let mut cluster = Cluster::with_agents(1);
    let mut client = cluster.invoker();
    client.allocate(&allocation()).unwrap();
    let lease = client.lease().unwrap().id;
    assert_echoes(&client);
    cluster.billed(&lease);
    cluster.managers[0].kill();
    let used_ms = 1_000u32;
    busy(&client, used_ms).unwrap();
    wait_for_journal(&cluster.agents[0]);
    cluster.agents[0].kill();
    cluster.managers[0].restart();
    cluster.agents[0].restart();
    let usage = cluster.final_bill(&lease).usage.unwrap();
    let billed = Duration::from_nanos(usage.executing_ns);
    assert!(billed + ROUNDING >= Duration::from_millis(used_ms.into()), "{usage:?}");
    cluster.assert_serves();
}

#[test]
fn repeatable_calls_continue_elsewhere_when_an_agent_is_killed() {
    let mut cluster = Cluster::with_agents(2);
    let mut client = cluster.invoker();
    client.allocate(&allocation().cores(2)).unwrap();
    let dying = client.leases().remove(1);
    let number: usize = dying.node.strip_prefix("node-").unwrap().parse().unwrap();
    let [converse, echo] = ["converse", "echo"].map(|name| client.function(name).unwrap());
    let options = |retries| CallOptions { retries, ..CallOptions::default() };
    let there = CallOptions { worker: Some(1), ..options(0) };
    let words = [(); 2].map(|()| {
        let mut words = client.buffer::<u32>(3).unwrap();
        words.fill(0);
        words
    });
    let (mut nothings, mut output) = ([[0u8; 0]; 2], [0u8; 5]);
    let [first, second] = &mut nothings;
    // Both workers are taken; then the one that is lost is repeated by the other.
    let calls = [(&words[0], first), (&words[1], second)]
        .map(|(words, nothing)| client.submit_with(converse, words, nothing, options(3)).unwrap());
    wait_until("both workers execute", || {
        words.iter().all(|words| words.atomic(0).load(Ordering::Acquire) == 1)
    });
    // It waits until its worker has executed the call before.
    let once = client.submit_with(echo, b"hello", &mut output, there).unwrap();
    cluster.agents[number].kill();
    assert_fails(once.wait(), Code::AgentUnreachable, &["agent"]);
    words.iter().for_each(|words| words.atomic(1).store(1, Ordering::Release));
    for call in calls {
        call.wait().unwrap();
    }
    for _ in 0..5 {
        assert_echoes(&client);
    }
    // The agent may have been killed before the manager had heard that the lease had begun.
    cluster.agents[number].restart();
    wait_until("the lease of the killed agent is over", || {
        cluster.lease(&dying.id).is_none_or(|lease| lease.state() == LeaseState::Ended)
    });
}

#[test]
fn requests_wait_for_the_next_agent_of_the_node() {
    let mut cluster = Cluster::with_agents(1);
    let mut client = cluster.invoker();
    client.allocate(&allocation()).unwrap();
    assert_echoes(&client);
    let begun = Instant::now();
    cluster.agents[0].kill();
    let mut output = [0u8; 5];
    wait_until("the client has noticed", || {
        client.submit("echo", b"hello", &mut output).and_then(sublet::Invocation::wait).is_err()
    });
    // The lease is over, whatever its manager says of it meanwhile.
    let _ = client.deallocate();
    cluster.agents[0].restart();
    client.allocate(&allocation().wait(PATIENCE)).unwrap();
    assert_echoes(&client);
    println!("calls succeed {} ms after their agent was killed", begun.elapsed().as_millis());
}

#[test]
fn a_stopped_agent_is_lost_and_found_with_its_leases() {
    // For a client, this is a cut from its agent: the two share a machine, and no network lies between.
    let cluster = Cluster::with_agents(1);
    let mut client = cluster.invoker();
    client.allocate(&allocation()).unwrap();
    let (lease, worker) = (client.lease().unwrap().id, cluster.agents[0].worker());
    cluster.agents[0].pause();
    wait_until("the manager misses it", || cluster.node("node-0").unwrap().state() == NodeState::Lost);
    for _ in 0..10 {
        assert_echoes(&client);
    }
    let refused = cluster.invoker().allocate(&Allocation::new(package("calls.c")));
    assert!(refused.unwrap_err().code.is_shortage());
    assert_ne!(cluster.lease(&lease).unwrap().state(), LeaseState::Ended);
    cluster.agents[0].resume();
    wait_until("it is back", || cluster.node("node-0").unwrap().state() == NodeState::Lending);
    assert_eq!(cluster.agents[0].worker(), worker);
    assert_echoes(&client);
    let usage = client.deallocate().unwrap();
    assert_eq!((usage.calls, cluster.final_bill(&lease).usage.unwrap()), (11, usage));
    cluster.assert_serves();
}

#[test]
fn an_expired_lease_of_a_stopped_agent_ends_on_resume() {
    let cluster = Cluster::with_agents(1);
    let mut client = cluster.invoker();
    let timeout = Duration::from_secs(2);
    client.allocate(&allocation().timeout(timeout)).unwrap();
    let (lease, leased) = (client.lease().unwrap().id, Instant::now());
    cluster.agents[0].pause();
    wait_until("the manager misses it", || cluster.node("node-0").unwrap().state() == NodeState::Lost);
    wait_until("the lease has expired", || leased.elapsed() > timeout);
    cluster.agents[0].resume();
    wait_until("the lease is over", || cluster.agents[0].workers().is_empty());
    let error =
        client.submit("echo", b"hello", &mut [0u8; 5]).and_then(sublet::Invocation::wait).unwrap_err();
    assert_eq!(error.code, Code::LeaseExpired, "{error}");
    cluster.final_bill(&lease);
    cluster.assert_serves();
}

#[test]
fn a_killed_client_of_a_remote_agent_holds_nothing() {
    let cluster = Cluster::with_agents(1);
    let mut client = Command::new(env!("CARGO_BIN_EXE_holding-client"))
        .args([cluster.addresses(), package("faults.c")])
        .env("SUBLET_CA", cluster.ca_file())
        .env("SUBLET_TOKEN", cluster.user_token(TENANT).secret)
        .env_remove("SUBLET_TOKEN_FILE")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(client.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "3 calls\n");
    let worker = cluster.agents[0].worker();
    client.kill().unwrap();
    client.wait().unwrap();
    wait_until("the worker is gone", || !is_alive(worker));
    cluster.wait_until_idle();
    let ended = cluster.operator().manager().leases_with_ended().unwrap().remove(0);
    assert_eq!((ended.state(), ended.tenant.as_str()), (LeaseState::Ended, TENANT));
    assert!(ended.end_reason.contains("client"), "{ended:?}");
    cluster.assert_serves();
}
