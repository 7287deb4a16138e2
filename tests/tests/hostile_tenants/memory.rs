//! Memory and numbers that processes of two tenants could share: shared cores, FIFOs, regions.

use std::sync::atomic::Ordering;

use sublet::{Allocation, Code, Error, Invoker, Policy};
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores};
use sublet_tests::functions::package;
use sublet_tests::global::{GlobalProcess, WRITE, exchange};
use sublet_tests::platform::assert_echoes;
use sublet_tests::process::{memory_files, wait_until};

use super::{ALICE, MALLORY, assert_blocked, lease};

fn cluster(lent: LentCores) -> Cluster {
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent(lent);
    cluster
}

#[test]
fn fifos_and_processes_of_another_tenant_do_not_exist() {
    let cluster = cluster(LentCores::shared(1, 3));
    let shared = |source| Allocation::new(package(source)).shared().policy(Policy::AlwaysWarm);
    let neighbours = shared("neighbours.c");
    let (reader, writer) = (lease(&cluster, ALICE, &neighbours), lease(&cluster, ALICE, &neighbours));
    let (reader, writer) = (GlobalProcess(reader), GlobalProcess(writer));
    let mallory = lease(&cluster, MALLORY, &shared("hostile_tenant.c"));
    let (object, from) = reader.make("frames").unwrap();
    reader.words("allow", &[writer.pid(), object, WRITE]).unwrap();
    let to = writer.join("frames").unwrap();
    exchange((&reader, from), (&writer, to));
    // Its numbers are near those that it guesses.
    assert!(object.abs_diff(reader.pid()) < 64);
    assert_blocked(&mallory, "trespass", b"frames", 2_000);
    assert_eq!((reader.rights(object), writer.rights(object)), (7, 2));
    exchange((&reader, from), (&writer, to));
}

#[test]
fn worker_processes_of_two_leases_have_no_region_in_common() {
    let cluster = cluster(LentCores { cores: 1, shared: Some((1, 2)) });
    let shared = Allocation::new(package("calls.c")).shared().policy(Policy::AlwaysWarm);
    let own = Allocation::new(package("calls.c"));
    let leases = [(ALICE, &own), (ALICE, &shared), (MALLORY, &shared)]
        .map(|(tenant, allocation)| lease(&cluster, tenant, allocation));
    leases.iter().for_each(assert_echoes);
    let workers = cluster.agents[0].workers();
    assert_eq!(workers.len(), 3);
    for (index, &one) in workers.iter().enumerate() {
        let regions = memory_files(one, "sublet-");
        assert!(regions.len() >= 2, "process {one} maps {regions:?}");
        // The slot of a shared core is the one region that two leases have.
        let slots = memory_files(one, "sublet-core");
        for &other in &workers[index + 1..] {
            let theirs = memory_files(other, "sublet-");
            let common: Vec<_> = regions.iter().filter(|&region| theirs.contains(region)).collect();
            assert!(common.iter().all(|&region| slots.contains(region)), "{one} and {other} map {common:?}");
        }
    }
}

fn call(client: &Invoker) -> Result<(), Error> {
    client.submit("echo", b"hello", &mut [0u8; 5])?.wait().map(|_| ())
}

/// Holds the core by a call of a client while something is done.
fn while_executing(client: &Invoker, act: impl FnOnce()) {
    let mut said = client.buffer::<u32>(3).unwrap();
    said.fill(0);
    let mut nothing = [0u8; 0];
    let executing = client.submit("converse", &said, &mut nothing).unwrap();
    wait_until("the call executes", || said.atomic(0).load(Ordering::Acquire) == 1);
    act();
    said.atomic(1).store(1, Ordering::Release);
    executing.wait().unwrap();
}

#[test]
fn an_overwritten_slot_is_free_when_the_lease_ends() {
    // The slot names a process that does not exist, or a worker that a living neighbour does not have.
    for names_a_neighbour in [0u32, 1] {
        let cluster = cluster(LentCores::shared(1, 3));
        let shared = |source| Allocation::new(package(source)).shared().policy(Policy::AlwaysWarm);
        let victims = [ALICE, "bob"].map(|tenant| lease(&cluster, tenant, &shared("calls.c")));
        let mut mallory = lease(&cluster, MALLORY, &shared("hostile_tenant.c"));
        victims.iter().for_each(assert_echoes);
        let mut order = mallory.buffer::<u32>(2).unwrap();
        order.copy_from_slice(&[names_a_neighbour, 0]);
        let mut begun = [0u32];
        mallory.submit("squat", &order, &mut begun).unwrap().wait().unwrap();
        assert_eq!(begun, [1]);
        let wait = || {
            wait_until("it holds the slot", || order.atomic(1).load(Ordering::Acquire) == 1);
        };
        match names_a_neighbour {
            0 => wait(),
            _ => while_executing(&victims[0], wait),
        }
        // Neighbours are turned away at once, and none waits.
        wait_until("calls are turned away", || {
            let outcome = call(&victims[1]);
            assert!(outcome.as_ref().err().is_none_or(|error| error.code == Code::CoreBusy), "{outcome:?}");
            outcome.is_err()
        });
        mallory.deallocate().unwrap();
        for victim in &victims {
            wait_until("the core is free", || call(victim).is_ok());
        }
    }
}
