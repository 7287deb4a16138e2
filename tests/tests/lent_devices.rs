//! Tests devices that a node lends whole to programs, by harmless nodes under other names.

#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use sublet::{Allocation, Code, Error, Invoker};
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, connect};
use sublet_tests::functions::package;

const MIB: u64 = 1 << 20;
/// Longest time until a device is free again.
const PATIENCE: Duration = Duration::from_secs(30);

fn call(client: &Invoker, function: &str, input: &str) -> Result<String, Error> {
    let mut output = vec![0u8; 4096];
    let done = client.submit(function, input.as_bytes(), &mut output)?.wait()?;
    Ok(String::from_utf8_lossy(&output[..done.output_bytes]).into_owned())
}

/// A configuration that lends two devices of the kind `test`: `/dev/zero` as `/dev/test0` and `/dev/test1`'s own, `/dev/full`.
fn configuration(folder: &Path) -> PathBuf {
    let cdi = folder.join("cdi");
    fs::create_dir(&cdi).unwrap();
    let notes = folder.join("notes");
    fs::write(&notes, "for all devices").unwrap();
    fs::set_permissions(&notes, Permissions::from_mode(0o644)).unwrap();
    let device = |number: u32, source: &str| {
        json!({
            "name": format!("test{number}"),
            "containerEdits": {
                "deviceNodes": [{ "path": format!("/dev/test{number}"), "hostPath": source }],
                "env": [format!("WHICH={number}")],
            },
        })
    };
    let spec = json!({
        "cdiVersion": "0.6.0",
        "kind": "test.com/zeros",
        "devices": [device(0, "/dev/zero"), device(1, "/dev/full")],
        "containerEdits": { "mounts": [{ "hostPath": notes, "containerPath": "/test-devices/notes" }] },
    });
    fs::write(cdi.join("test.json"), spec.to_string()).unwrap();
    let file = folder.join("agent.toml");
    let settings = format!("cdi_folders = ['{}']\n[device.test]\ncdi = 'test.com/zeros'\n", cdi.display());
    fs::write(&file, settings).unwrap();
    file
}

/// A cluster with a node that lends these cores and the devices, started with these arguments, too.
fn cluster_with(folder: &Path, lent: LentCores, more: &[&str]) -> Cluster {
    let file = configuration(folder);
    let mut cluster = Cluster::start(ClusterPlan::default());
    let config = ["--config", file.to_str().unwrap()];
    cluster.add_agent_with(lent, &[&config[..], more].concat());
    cluster
}

/// A cluster whose node has cores for more leases than devices.
fn cluster(folder: &Path) -> Cluster {
    cluster_with(folder, LentCores::shared(1, 8), &[])
}

fn plain() -> Allocation {
    Allocation::new(package("needs.c")).memory_bytes(64 * MIB).shared()
}

fn needing(kind: &str, count: u32) -> Allocation {
    plain().devices(kind, count)
}

/// The number of the only device of a lease, which can open that and not the other.
#[track_caller]
fn only_device(client: &Invoker) -> u32 {
    let number: u32 = call(client, "variable", "WHICH").unwrap().parse().unwrap();
    assert_eq!(call(client, "read_file", &format!("/dev/test{number}")).unwrap(), "\0".repeat(4096));
    let other = call(client, "read_file", &format!("/dev/test{}", 1 - number));
    assert_fails(other, Code::FunctionFailed, &["Permission denied"]);
    assert_eq!(call(client, "read_file", "/test-devices/notes").unwrap(), "for all devices");
    assert_fails(call(client, "write_file", "/test-devices/notes"), Code::FunctionFailed, &[]);
    number
}

#[test]
fn each_lease_opens_its_own_device_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(folder.path());
    let (alice, bob) = (cluster.user("alice"), cluster.user("bob"));
    let (mut first, mut second, mut third) = (connect(&alice), connect(&bob), connect(&bob));
    first.allocate(&needing("test", 1)).unwrap();
    second.allocate(&needing("test", 1)).unwrap();
    assert_ne!(only_device(&first), only_device(&second));
    assert_fails(third.allocate(&needing("test", 1)), Code::NoCapacity, &["\"test\"", "0 of 2"]);
    third.allocate(&plain()).unwrap();
    for number in 0..2 {
        let refused = call(&third, "read_file", &format!("/dev/test{number}"));
        assert_fails(refused, Code::FunctionFailed, &["Permission denied"]);
    }
    third.deallocate().unwrap();
    let shown = cluster.command().args(["pus", "--json"]).output().unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["devices"][0]["names"], json!(["test0", "test1"]));
    assert_eq!(shown["devices"][0]["leased"], json!(2));
    let freed = only_device(&first);
    first.deallocate().unwrap();
    third.allocate(&needing("test", 1).wait(PATIENCE)).unwrap();
    assert_eq!(only_device(&third), freed);
}

#[test]
fn devices_that_no_node_lends_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(folder.path());
    let mut client = connect(&cluster.user("alice"));
    for (asked, named) in [
        (needing("tpu", 1), "a device of the kind \"tpu\""),
        (needing("test", 3), "3 devices of the kind \"test\""),
    ] {
        assert_fails(client.allocate(&asked), Code::InsufficientResources, &[named]);
    }
    assert_fails(client.allocate(&needing("../x", 1)), Code::InvalidArgument, &["../x"]);
    assert_fails(client.allocate(&needing("test", 0)), Code::InvalidArgument, &["0 devices"]);
    client.allocate(&needing("test", 2)).unwrap();
    for number in 0..2 {
        let read = call(&client, "read_file", &format!("/dev/test{number}")).unwrap();
        assert_eq!(read.len(), 4096, "/dev/test{number}");
    }
}

#[test]
fn function_in_python_opens_its_device() {
    let folder = tempfile::tempdir().unwrap();
    let python = sublet_tests::root().join("target/tools/python/bin/python3");
    let cluster = cluster_with(folder.path(), LentCores::cores(2), &["--python", python.to_str().unwrap()]);
    let package = tempfile::tempdir().unwrap();
    let source = "import os\ndef read(_):\n    path = '/dev/test' + os.environ['WHICH']\n    \
                  return open(path, 'rb', 0).read(5)\n";
    fs::write(package.path().join("p.py"), source).unwrap();
    let manifest =
        "name = 'p'\nkind = 'python'\nlibrary = 'p.py'\n[[function]]\nname = 'read'\n[devices]\ntest = 1\n";
    fs::write(package.path().join("sublet.toml"), manifest).unwrap();
    let mut client = connect(&cluster.user("alice"));
    let allocation = Allocation::new(package.path().to_str().unwrap()).memory_bytes(256 * MIB);
    client.allocate(&allocation).unwrap();
    assert_eq!(call(&client, "read", "").unwrap(), "\0".repeat(5));
    client.deallocate().unwrap();
    let mut second = connect(&cluster.user("bob"));
    let several = allocation.cores(2);
    assert_fails(second.allocate(&several), Code::InvalidArgument, &["2 workers with devices"]);
}

#[test]
fn devices_are_free_after_their_agent_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = cluster(folder.path());
    let mut client = connect(&cluster.user("alice"));
    client.allocate(&needing("test", 2)).unwrap();
    cluster.agents[0].kill();
    cluster.agents[0].restart();
    let mut next = connect(&cluster.user("bob"));
    next.allocate(&needing("test", 2).wait(PATIENCE)).unwrap();
    assert_eq!(call(&next, "read_file", "/dev/test0").unwrap().len(), 4096);
}
