//! Segments on disks: what is written is read, also over faults, nothing is left of them, and components swap to them.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sublet::{Application, Code, Error, Invoker, Memory, MemoryPlan, Outcome, Pool, RunOptions};
use sublet_means::{Means, skip};
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, TENANT, connect};
use sublet_tests::disk::SmallDisk;
use sublet_tests::functions::library;
use sublet_tests::platform::sublet;
use sublet_tests::process::wait_until;

const MIB: u64 = 1 << 20;

/// Adds an agent that lends this part of the disk of a folder, and returns the folder.
fn add_flash(cluster: &mut Cluster, bytes: &str) -> PathBuf {
    let folder = cluster.folder().join("flash");
    fs::create_dir(&folder).unwrap();
    let arguments = ["--flash-folder", folder.to_str().unwrap(), "--flash-bytes", bytes];
    cluster.add_agent_with(LentCores::cores(0), &arguments);
    folder
}

/// A cluster with a node of flash only.
fn flash(bytes: &str) -> (Cluster, PathBuf) {
    let mut cluster = Cluster::start(ClusterPlan::default());
    let folder = add_flash(&mut cluster, bytes);
    (cluster, folder)
}

fn plan() -> MemoryPlan {
    let sizes = MemoryPlan::new().initial_bytes(MIB).increment_bytes(2 * MIB).limit_bytes(8 * MIB);
    sizes.pool(Pool::Flash)
}

/// A component of `len` bytes: memory is leased by its first access.
fn begin(client: &Invoker, plan: MemoryPlan, len: u64) -> Result<Memory, Error> {
    let memory = client.memory(plan)?;
    memory.write(len - 1, &[1])?;
    memory.sync()?;
    Ok(memory)
}

fn entries(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn flash_returns_what_was_written_after_random_operations() {
    const LEN: usize = 5 << 20;
    let (cluster, folder) = flash("16MiB");
    let client = cluster.invoker();
    for cache_bytes in [0, 1 << 20] {
        let memory = begin(&client, plan().cache_bytes(cache_bytes), LEN as u64).unwrap();
        let mut expected = vec![0_u8; LEN];
        expected[LEN - 1] = 1;
        // A fixed linear congruential sequence.
        let mut random = 12_345_u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        for round in 0..200 {
            // Some accesses are longer than a request may be, and span segments.
            let most = if round % 10 == 0 { 3 << 20 } else { 10_000 };
            let (at, len) = (next(LEN), next(most));
            let len = len.min(LEN - at);
            if next(2) == 0 {
                let bytes: Vec<u8> = (0..len).map(|byte| (byte * 7 + round) as u8).collect();
                memory.write(at as u64, bytes.as_slice()).unwrap();
                expected[at..at + len].copy_from_slice(&bytes);
            } else {
                let mut bytes = vec![1; len];
                memory.read(at as u64, bytes.as_mut_slice()).unwrap();
                assert!(bytes == expected[at..at + len], "{len} bytes at {at} in round {round}");
            }
        }
        memory.sync().unwrap();
        let all = memory.read_async(0, vec![0; LEN]).unwrap().wait().unwrap();
        assert!(all == expected);
        assert_fails(memory.mapped(0, 8), Code::FabricUnavailable, &["on a disk", "not mapped"]);
        let segments = memory.segments();
        let about = |segment: &sublet::Lease| (segment.node.clone(), segment.pu.clone());
        assert!(segments.iter().all(|segment| about(segment) == ("node-0".into(), "flash".into())));
        assert_eq!(entries(&folder), 0, "files have no name");
        memory.release().unwrap();
    }
    let node = cluster.json(&["ps"])["nodes"][0].take();
    assert_eq!((&node["pool"], &node["memory_bytes"]), (&json!("flash"), &json!(16 * MIB)));
}

#[test]
fn next_lease_cannot_read_bytes_of_an_ended_one() {
    let (cluster, _folder) = flash("4MiB");
    let plan = || plan().initial_bytes(4 * MIB).limit_bytes(4 * MIB);
    let first = begin(&cluster.invoker(), plan(), 4 * MIB).unwrap();
    first.write(0, vec![0xa5; 4 << 20].as_slice()).unwrap();
    first.sync().unwrap();
    let client = connect(&cluster.user("another"));
    assert_fails(begin(&client, plan(), 4 * MIB).map(drop), Code::NoCapacity, &["in the flash pool"]);
    first.release().unwrap();
    let mut second = None;
    wait_until("the disk is lent again", || {
        second = begin(&client, plan(), 4 * MIB).ok();
        second.is_some()
    });
    let mut bytes = vec![1; (4 << 20) - 1];
    second.unwrap().read(0, bytes.as_mut_slice()).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0));
}

#[test]
fn full_disk_is_a_named_error_and_passes() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    let folder = cluster.folder().join("disk");
    fs::create_dir(&folder).unwrap();
    let Some(disk) = SmallDisk::mount(&folder, 12 * MIB) else { return };
    let arguments = ["--flash-folder", folder.to_str().unwrap(), "--flash-bytes", "8MiB"];
    cluster.add_agent_on(&disk, LentCores::cores(0), &arguments);
    let client = cluster.invoker();
    disk.fill();
    let refused = begin(&client, plan(), MIB).map(drop);
    assert_fails(refused, Code::InsufficientResources, &["flash", "No space left"]);
    disk.empty();
    wait_until("the disk has space again", || begin(&client, plan(), MIB).is_ok());
}

#[test]
fn killed_agent_leaves_no_file_and_lends_after_its_restart() {
    let (mut cluster, folder) = flash("8MiB");
    let memory = begin(&cluster.invoker(), plan(), MIB).unwrap();
    memory.write(0, &[7; 100]).unwrap();
    memory.sync().unwrap();
    cluster.agents[0].kill();
    assert_eq!(entries(&folder), 0);
    wait_until("the component is over", || memory.sync().is_err());
    assert!(memory.read(0, &mut [0; 100]).is_err(), "lost bytes are an error");
    cluster.agents[0].restart();
    let client = cluster.invoker();
    let mut next = None;
    wait_until("the node lends again", || {
        next = begin(&client, plan(), MIB).ok();
        next.is_some()
    });
    let mut bytes = [1; 100];
    next.unwrap().read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 100]);
}

#[test]
fn flash_is_lent_on_request_only_and_within_its_quota() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent_with(LentCores::cores(1), &["--memory", "64MiB"]);
    let client = connect(&cluster.user("modest"));
    let none = "no node lends flash";
    assert_fails(begin(&client, plan(), MIB).map(drop), Code::InsufficientResources, &[none]);
    add_flash(&mut cluster, "128MiB");
    // Memory never goes to a disk.
    let large = MemoryPlan::new().initial_bytes(65 * MIB).limit_bytes(65 * MIB);
    let largest = "the largest node has 67108864";
    assert_fails(begin(&client, large, MIB).map(drop), Code::InsufficientResources, &[largest]);
    let shown = cluster.json(&["tenant", "set", "modest", "--pool-memory", "flash=2MiB"]);
    assert_eq!(shown["pools"][3]["memory_limit_bytes"], 2 * MIB);
    let memory = begin(&client, plan(), MIB).unwrap();
    let said = ["modest", "in the flash pool", "2097152"];
    assert_fails(memory.write(2 * MIB, &[1]), Code::QuotaExceeded, &said);
    let shm = plan().fabric("shm".parse().unwrap());
    assert_fails(begin(&client, shm, MIB).map(drop), Code::FabricUnavailable, &["tcp"]);
}

#[test]
fn contradicting_settings_of_flash_are_refused_by_name() {
    let refused = |arguments: &[&str], named: &str| {
        let mut command = sublet();
        command.args(["agent", "--print-config", "--listen", "127.0.0.1:0"]).args(arguments);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(named), "{arguments:?}: {said}");
    };
    let both = ["--flash-folder", "/tmp", "--flash-bytes", "1GiB"];
    refused(&both[..2], "flash.bytes");
    refused(&both[2..], "flash.folder");
    refused(&[&both[..], &["--cores", "1"]].concat(), "--cores");
    refused(&[&both[..], &["--memory", "1GiB"]].concat(), "--memory");
    refused(&[&both[..], &["--pool", "memory"]].concat(), "in the flash pool");
    refused(&["--pool", "flash"], "flash.folder");
}

/// A graph whose component allocates 256 MiB and has 64 MiB, and swaps to this medium.
fn swapping(medium: &str) -> Vec<u8> {
    let resources = json!({ "memory_bytes": 64 * MIB, "swap_bytes": 320 * MIB });
    let component = json!({ "name": "large", "type": "compute", "package": "libswapping", "function": "large",
                            "entry": true, "resources": resources });
    let limits = json!({ "swap_medium": medium });
    json!({ "version": 1, "name": "swapping", "components": [component], "edges": [], "limits": limits })
        .to_string()
        .into_bytes()
}

/// The number of the instance, and how many words were wrong.
fn words(outcome: &Outcome) -> Vec<u64> {
    let [(_, outputs)] = outcome.outputs.as_slice() else { panic!("{outcome:?}") };
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    outputs[0].chunks_exact(8).map(word).collect()
}

#[test]
fn component_swaps_to_flash_and_ends_right() {
    let device = fs::File::options().read(true).write(true).open("/dev/userfaultfd");
    if let Err(error) = device {
        return skip(Means::Userfaultfd, format_args!("/dev/userfaultfd: {error}"));
    }
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent_with(LentCores::cores(1), &["--memory", "128MiB"]);
    add_flash(&mut cluster, "512MiB");
    cluster.publish(library("swapping.c"));
    let user = cluster.user(TENANT);
    let large = Application::deploy(user, &swapping("flash"), RunOptions::default()).unwrap();
    let input: Vec<u8> = [256_u64, 1, 0].iter().flat_map(|number| number.to_le_bytes()).collect();
    let outcome = large.run(&input).unwrap();
    assert_eq!(words(&outcome), [0, 0]);
    let swap = outcome.components.iter().find(|of| of.component == "large/swap").unwrap();
    assert!(swap.used_bytes >= 192 * MIB, "{swap:?}");
    wait_until("nothing is leased any more", || {
        let nodes = cluster.json(&["ps"])["nodes"].take();
        let is_idle = |node: &Value| node["memory_leased_bytes"] == 0;
        nodes.as_array().unwrap().iter().all(is_idle)
    });
    let leases = cluster.operator().manager().leases_with_ended().unwrap();
    let on_flash: Vec<_> = leases.iter().filter(|lease| lease.pu == "flash").collect();
    assert!(!on_flash.is_empty() && on_flash.iter().all(|lease| lease.node == "node-1"), "{leases:?}");
}
