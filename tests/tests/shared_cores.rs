//! Cores that workers of several leases share: a call that finds its core taken is rejected at once and goes elsewhere;
//! a hot worker keeps its core; a worker that dies gives it back.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use rustix::process::Signal;
use sublet::{Allocation, Buffer, Code, Error, Invoker, Policy};
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores};
use sublet_tests::functions::package;
use sublet_tests::platform::{assert_echoes, kill};
use sublet_tests::process::wait_until;

/// Longer than a test takes.
const LONG: Duration = Duration::from_secs(600);

fn cluster(lent: LentCores) -> Cluster {
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent(lent);
    cluster
}

fn shared(source: &'static str) -> Allocation {
    Allocation::new(package(source)).shared().policy(Policy::AlwaysWarm)
}

fn client(cluster: &Cluster, allocation: &Allocation) -> Invoker {
    let mut client = cluster.invoker();
    client.allocate(allocation).unwrap();
    client
}

fn call(client: &Invoker) -> Result<(), Error> {
    client.submit("echo", b"hello", &mut [0u8; 5])?.wait().map(|_| ())
}

/// Words by which a call of `converse` says that it runs, and is let go.
fn conversation(client: &Invoker) -> Buffer<u32> {
    let mut words = client.buffer::<u32>(3).unwrap();
    words.fill(0);
    words
}

/// Holds the client's core by a call while something is done.
fn while_executing(client: &Invoker, act: impl FnOnce()) {
    let words = conversation(client);
    let mut nothing = [0u8; 0];
    let executing = client.submit("converse", &words, &mut nothing).unwrap();
    let word = |index: usize| words.atomic(index);
    wait_until("the call executes", || word(0).load(std::sync::atomic::Ordering::Acquire) == 1);
    act();
    word(1).store(1, std::sync::atomic::Ordering::Release);
    executing.wait().unwrap();
}

#[test]
fn only_a_call_whose_core_is_taken_is_rejected() {
    let cluster = cluster(LentCores::shared(1, 2));
    let (one, other) = (client(&cluster, &shared("calls.c")), client(&cluster, &shared("calls.c")));
    assert_eq!(cluster.node("node-0").unwrap().shared_leased, 2);
    let third = cluster.invoker().allocate(&shared("calls.c"));
    assert_fails(third, Code::NoCapacity, &["1"]);
    assert_echoes(&one);
    assert_echoes(&other);
    while_executing(&one, || {
        assert_fails(call(&other), Code::CoreBusy, &["libcalls/echo"]);
    });
    wait_until("the core is free", || call(&other).is_ok());
    assert_echoes(&one);
}

#[test]
fn a_rejected_call_is_redirected_to_another_core() {
    let cluster = cluster(LentCores::shared(2, 4));
    let two = client(&cluster, &shared("calls.c").cores(2));
    let one = client(&cluster, &shared("calls.c"));
    while_executing(&one, || {
        for _ in 0..20 {
            assert_echoes(&two);
        }
    });
    let mut two = two;
    let usage = two.deallocate().unwrap();
    // A rejected call was not executed, and does not count as a call.
    assert_eq!((usage.calls, usage.failed_calls), (20, 0));
}

#[test]
fn a_hot_worker_keeps_its_core_until_its_lease_ends() {
    let cluster = cluster(LentCores::shared(1, 2));
    let other = client(&cluster, &shared("calls.c"));
    let mut hot = client(&cluster, &shared("calls.c").policy(Policy::HotFor(LONG)));
    assert_echoes(&hot);
    assert_fails(call(&other), Code::CoreBusy, &["libcalls/echo"]);
    assert_echoes(&hot);
    hot.deallocate().unwrap();
    assert_echoes(&other);
}

#[test]
fn a_core_whose_holder_was_killed_is_free_again() {
    let cluster = cluster(LentCores::shared(1, 2));
    let hot = client(&cluster, &shared("calls.c").policy(Policy::HotFor(LONG)));
    let holder = cluster.agents[0].worker();
    let other = client(&cluster, &shared("calls.c"));
    assert_echoes(&hot);
    assert_fails(call(&other), Code::CoreBusy, &[]);
    kill(holder, Signal::KILL);
    wait_until("the core is free", || call(&other).is_ok());
}

#[test]
fn a_worker_that_polls_for_ever_gets_no_shared_core() {
    let cluster = cluster(LentCores::shared(1, 2));
    let hot = Allocation::new(package("calls.c")).shared().policy(Policy::AlwaysHot);
    assert_fails(cluster.invoker().allocate(&hot), Code::InvalidArgument, &["shared"]);
    // A lease of its own has no core here.
    let own = Allocation::new(package("calls.c"));
    assert_fails(cluster.invoker().allocate(&own), Code::InsufficientResources, &["1"]);
    assert_echoes(&client(&cluster, &shared("calls.c")));
}
