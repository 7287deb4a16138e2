//! Environments of Python: deployed from requirements, stored as layers, installed by nodes, shared, collected, and refused
//! to those without a right.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sublet::{Allocation, Code, Invoker};
use sublet_means::{Means, skip};
use sublet_proto::package::{self, EnvironmentLayer, environment_of};
use sublet_proto::v1::{PackageInfo, Quota};
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, connect};
use sublet_tests::disk::SmallDisk;
use sublet_tests::platform::PlatformProcess;
use sublet_tests::process::{PATIENCE, wait_until};
use sublet_wheels::WheelBuilder;

const MODULE: &str = "
import beta

def version(input):
    return str(beta.version).encode()

def has(input):
    import importlib.util
    return str(importlib.util.find_spec(bytes(input).decode()) is not None).encode()
";

fn python() -> PathBuf {
    sublet_tests::root().join("target/tools/python/bin/python3")
}

/// Version of that interpreter, as `3.11`.
fn version() -> String {
    let asked =
        Command::new(python()).args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).output();
    String::from_utf8(asked.unwrap().stdout).unwrap().trim().to_owned()
}

fn platform() -> PlatformProcess {
    PlatformProcess::start_with(|up| {
        up.arg("--python").arg(python());
    })
}

fn cluster(agents: usize) -> Cluster {
    let mut cluster = Cluster::start(ClusterPlan::default());
    for _ in 0..agents {
        cluster.add_agent_with(LentCores::cores(1), &["--python", python().to_str().unwrap()]);
    }
    cluster
}

fn beta(version: u32) -> WheelBuilder {
    WheelBuilder::new("beta", &format!("{version}.0")).file("beta.py", format!("version = {version}\n"))
}

/// Uploads wheels, and an environment of them.
fn environment(client: &Invoker, name: &str, wheels: &[WheelBuilder]) -> PackageInfo {
    let manager = client.manager();
    let layers = wheels.iter().map(|wheel| {
        let bytes = wheel.bytes();
        let digest = package::digest(&bytes);
        let size_bytes = bytes.len() as u64;
        manager.deploy(bytes).unwrap();
        EnvironmentLayer { digest, name: wheel.file_name(), size_bytes }
    });
    let package = environment_of(name, &version(), layers.collect()).unwrap();
    manager.deploy(package::encode(&package)).unwrap().package.unwrap()
}

/// A package whose functions run in an environment.
fn folder_in(environment: &str) -> tempfile::TempDir {
    folder_with(&format!("[python]\nenvironment = '{environment}'\n"), &[])
}

fn folder_with(more: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("words.py"), MODULE).unwrap();
    let functions = "[[function]]\nname = 'version'\n[[function]]\nname = 'has'\n";
    let manifest = format!("name = 'words'\nkind = 'python'\nlibrary = 'words.py'\n{functions}{more}");
    fs::write(folder.path().join("sublet.toml"), manifest).unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn allocation(package: &Path) -> Allocation {
    Allocation::new(package.to_str().unwrap()).memory_bytes(64 << 20).wait(PATIENCE)
}

fn call(client: &Invoker, function: &str, input: &[u8]) -> String {
    let mut output = [0; 64];
    let done = client.submit(function, input, &mut output).unwrap().wait().unwrap();
    String::from_utf8(output[..done.output_bytes].to_vec()).unwrap()
}

/// The folders of packages and layers on a node.
fn entries(state: &Path) -> Vec<String> {
    let folders = fs::read_dir(state.join("packages")).unwrap();
    folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn stored_bytes(cluster: &Cluster, tenant: &str) -> (u64, u32) {
    let tenants = cluster.operator().manager().list_tenants().unwrap();
    let stored = tenants.into_iter().find(|known| known.name == tenant).and_then(|known| known.stored);
    stored.map_or((0, 0), |stored| (stored.bytes, stored.packages))
}

#[test]
fn functions_of_a_package_run_in_its_environment() {
    let platform = platform();
    let client = platform.invoker();
    let made = environment(&client, "science", &[beta(1)]);
    let package = folder_in("science");
    let mut client = platform.client_with(&allocation(package.path()));
    assert_eq!(call(&client, "version", b""), "1");
    // The interpreter of the node has this.
    assert_eq!([call(&client, "has", b"numpy"), call(&client, "has", b"json")], ["False", "True"]);
    let shown = platform.json(&["ps"]);
    assert_eq!(shown["leases"][0]["environment"], made.digest, "{shown}");
    assert_eq!(shown["environments"][0]["name"], "science");
    let text = String::from_utf8(platform.run(&["ps"]).stdout).unwrap();
    assert!(text.contains("ENVIRONMENT") && text.contains("science"), "{text}");
    client.deallocate().unwrap();
}

#[test]
fn deploy_resolves_requirements_and_pins_the_environment() {
    let platform = platform();
    let links = tempfile::tempdir().unwrap();
    for wheel in [beta(1), beta(2), WheelBuilder::new("alpha", "1.0").file("alpha.py", "").requires("beta<2")]
    {
        fs::write(links.path().join(wheel.file_name()), wheel.bytes()).unwrap();
    }
    let requirements = format!("--no-index\n--find-links {}\nalpha\n", links.path().display());
    let package =
        folder_with("[python]\nrequirements = 'requirements.txt'\n", &[("requirements.txt", &requirements)]);
    let cache = tempfile::tempdir().unwrap();
    let deploy = |folder: &Path| {
        let mut command = platform.command();
        command.args(["deploy", "--json"]).arg(folder).env("XDG_CACHE_HOME", cache.path());
        command.env("SUBLET_PYTHON", python()).output().unwrap()
    };
    let deployed = deploy(package.path());
    let said = String::from_utf8_lossy(&deployed.stderr);
    assert!(deployed.status.success(), "{said}");
    let deployed: Value = serde_json::from_slice(&deployed.stdout).unwrap();
    let environments = platform.json(&["environment", "list"]);
    let [made] = &environments["environments"].as_array().unwrap()[..] else { panic!("{environments}") };
    let address = deployed["builds"][0]["environment"].as_str().unwrap();
    assert_eq!(address, made["digest"]);
    let wheels: Vec<_> =
        made["wheels"].as_array().unwrap().iter().map(|wheel| wheel["name"].as_str().unwrap()).collect();
    assert_eq!(wheels, ["alpha-1.0-py3-none-any.whl", "beta-1.0-py3-none-any.whl"]);
    let client = platform.client_with(&Allocation::new("words").memory_bytes(64 << 20));
    assert_eq!(call(&client, "version", b""), "1");
    // Requirements that cannot be met are refused, and nothing is deployed.
    fs::write(package.path().join("requirements.txt"), "--no-index\nabsent-distribution\n").unwrap();
    let refused = deploy(package.path());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("invalid_argument") && said.contains("absent-distribution"), "{said}");
    let error = platform.assert_refuses(&["environment", "show", "words"], Code::InvalidArgument);
    assert!(error.contains("words is not an environment"), "{error}");
    let name = made["name"].as_str().unwrap();
    let shown = String::from_utf8(platform.run(&["environment", "show", name]).stdout).unwrap();
    assert!(
        shown.contains("beta-1.0-py3-none-any.whl") && shown.contains("2 wheels for python3."),
        "{shown}"
    );
}

#[test]
fn environments_and_packages_do_not_share_names() {
    let platform = platform();
    let client = platform.invoker();
    environment(&client, "words", &[beta(1)]);
    let package = folder_with("", &[]);
    let error = platform.assert_refuses(&["deploy", package.path().to_str().unwrap()], Code::InvalidArgument);
    assert!(error.contains("/words is an environment: give the package another name"), "{error}");
    let taken = platform.invoker().allocate(&Allocation::new("words"));
    assert_fails(taken, Code::InvalidArgument, &["words is an environment, which has no functions"]);
    let listed = platform.json(&["package", "list"]);
    assert_eq!(listed["packages"].as_array().unwrap().len(), 0, "{listed}");
    let own = folder_in("words");
    fs::write(
        own.path().join("sublet.toml"),
        "name='other'\nkind='python'\nlibrary='words.py'\n[python]\nversion='3.5'\nenvironment='words'\n",
    )
    .unwrap();
    let error = platform.assert_refuses(&["deploy", own.path().to_str().unwrap()], Code::InvalidPackage);
    assert!(error.contains("it is for python3.5, and its environment words for"), "{error}");
}

#[test]
fn another_tenants_environment_needs_a_right() {
    let cluster = cluster(1);
    let [alice, mallory] = ["alice", "mallory"].map(|tenant| connect(&cluster.user(tenant)));
    let made = environment(&alice, "science", &[beta(1)]);
    for address in [made.digest.clone(), format!("alice/science@{}", made.digest), "alice/science".to_owned()]
    {
        let package = folder_in(&address);
        let taken = connect(&cluster.user("mallory")).allocate(&allocation(package.path()));
        assert_fails(taken, Code::UnknownPackage, &["no environment"]);
    }
    // Its layers are not to be had either: a tenant that lists a layer has to have uploaded it.
    let layer = EnvironmentLayer {
        digest: package::digest(&beta(1).bytes()),
        name: beta(1).file_name(),
        size_bytes: 1,
    };
    let stolen = environment_of("stolen", &version(), vec![layer.clone()]).unwrap();
    let deployed = mallory.manager().deploy(package::encode(&stolen)).map(drop);
    assert_fails(deployed, Code::UnknownPackage, &["mallory has not uploaded its layer", &layer.digest]);
    assert_fails(mallory.manager().resolve(&layer.digest).map(drop), Code::UnknownPackage, &[]);
    assert_fails(mallory.manager().remove_package("alice/science").map(drop), Code::PermissionDenied, &[]);
    // With a grant of the name it is used by its address.
    let grant = sublet_proto::v1::PackageGrant { tenant: "mallory".into(), right: 2 };
    alice.manager().grant_package("science", grant).unwrap();
    let package = folder_in("alice/science");
    let mut granted = connect(&cluster.user("mallory"));
    granted.allocate(&allocation(package.path())).unwrap();
    assert_eq!(call(&granted, "version", b""), "1");
}

#[test]
fn removed_environment_stays_for_packages_and_leases_that_use_it() {
    let cluster = cluster(1);
    let mut client = connect(&cluster.user("alice"));
    let made =
        environment(&client, "science", &[beta(1), WheelBuilder::new("shared", "1.0").file("shared.py", "")]);
    environment(&client, "other", &[WheelBuilder::new("shared", "1.0").file("shared.py", "")]);
    let package = folder_in("science");
    client.allocate(&allocation(package.path())).unwrap();
    let before = stored_bytes(&cluster, "alice");
    assert_eq!(before.1, 3, "a package and two environments, and no layer counts");
    client.manager().remove_package("science").unwrap();
    let collect = || cluster.json(&["gc"])["blobs"].as_u64().unwrap();
    assert_eq!(collect(), 0, "the package needs its environment");
    assert_eq!(call(&client, "version", b""), "1");
    client.deallocate().unwrap();
    // Another node could still install it.
    client.allocate(&Allocation::new("words").memory_bytes(64 << 20).wait(PATIENCE)).unwrap();
    client.manager().remove_package("words").unwrap();
    assert_eq!(collect(), 0, "the lease needs its package and environment");
    client.deallocate().unwrap();
    cluster.wait_until_idle();
    wait_until("the package, its environment and a layer are collected", || collect() == 3);
    assert_fails(client.manager().resolve(&made.digest).map(drop), Code::UnknownPackage, &[]);
    let after = stored_bytes(&cluster, "alice");
    assert!(after.0 < before.0 && after.1 == 1, "{after:?}");
    let shared = package::digest(&WheelBuilder::new("shared", "1.0").file("shared.py", "").bytes());
    client.manager().resolve(&shared).unwrap();
}

#[test]
fn quotas_count_the_bytes_of_layers() {
    let cluster = cluster(0);
    cluster.set_quota("alice", Quota { store_bytes: Some(100_000), ..Quota::default() });
    let client = connect(&cluster.user("alice"));
    let wheel = |number: u32| {
        WheelBuilder::new("data", &number.to_string()).file("data.bin", vec![7; 40_000]).bytes()
    };
    client.manager().deploy(wheel(0)).unwrap();
    let mut number = 0;
    wait_until("a layer more is refused", || {
        number += 1;
        let refused = client.manager().deploy(wheel(number)).err();
        refused.inspect(|error| assert_eq!(error.code, Code::QuotaExceeded, "{error}")).is_some()
    });
    let (bytes, packages) = stored_bytes(&cluster, "alice");
    assert!(bytes > u64::from(number) * 40_000 && packages == 0, "{bytes} bytes, {packages} packages");
    // The same layer again takes no space.
    client.manager().deploy(wheel(0)).unwrap();
}

#[test]
fn hostile_wheels_are_refused_at_deploy() {
    let cluster = cluster(0);
    let client = connect(&cluster.user("alice"));
    let refused = |wheel: Vec<u8>, named: &str| {
        assert_fails(client.manager().deploy(wheel).map(drop), Code::InvalidPackage, &[named]);
    };
    refused(
        WheelBuilder::new("evil", "1.0").file("../../etc/cron.d/x", "x").bytes(),
        "evil-1.0 is refused: the path",
    );
    refused(
        WheelBuilder::new("evil", "1.0").unrecorded("x.py", b"x").bytes(),
        "which its RECORD does not have",
    );
    refused(b"PK\x03\x04 and nothing else".to_vec(), "no zip directory");
    // Contents are compared where the wheel is unpacked: see `a_wheel_with_other_contents_than_recorded_is_refused`.
    let wheel = WheelBuilder::new("many", "1.0").file("a", "").file("a", "");
    refused(wheel.bytes(), "two files");
}

#[test]
fn a_wheel_with_other_contents_than_recorded_is_refused() {
    let cluster = cluster(1);
    let mut client = connect(&cluster.user("alice"));
    environment(&client, "science", &[beta(1).recorded_as("evil.py", b"x = 2", b"x = 1")]);
    let package = folder_in("science");
    let taken = client.allocate(&allocation(package.path()));
    assert_fails(taken, Code::InvalidPackage, &["environment science", "evil.py", "another content"]);
    let left = entries(cluster.agents[0].state());
    assert_eq!(left.len(), 2, "the package and the environment, and no part of a layer: {left:?}");
    cluster.assert_serves();
}

#[test]
fn environments_share_layers_on_a_node() {
    let cluster = cluster(1);
    let mut client = connect(&cluster.user("alice"));
    let shared = WheelBuilder::new("shared", "1.0").file("shared/data.bin", vec![7; 1 << 20]);
    for (name, version) in [("one", 1), ("two", 2)] {
        let made = environment(&client, name, &[beta(version), shared.clone()]);
        client.allocate(&allocation(folder_in(name).path())).unwrap();
        assert_eq!(call(&client, "version", b""), version.to_string());
        client.deallocate().unwrap();
        let packages = cluster.agents[0].state().join("packages");
        let file = |tree: PathBuf| fs::metadata(tree.join("shared/data.bin")).unwrap();
        let layer = file(packages.join(package::digest(&shared.bytes())).join("site"));
        let site = format!(".built/environment/lib/python{}/site-packages", self::version());
        let linked = file(packages.join(&made.digest).join(site));
        use std::os::unix::fs::MetadataExt;
        assert_eq!((layer.ino(), layer.nlink()), (linked.ino(), u64::from(version) + 1));
    }
    let cache = cluster.json(&["ps", "--nodes"])["nodes"][0]["cache"]["used_bytes"].as_u64().unwrap();
    assert!(cache < 2 << 20, "the shared layer is counted once: {cache}");
}

#[test]
fn node_that_died_while_installing_begins_anew() {
    let mut cluster = cluster(1);
    let mut client = connect(&cluster.user("alice"));
    environment(&client, "science", &[beta(1)]);
    let package = folder_in("science");
    client.allocate(&allocation(package.path())).unwrap();
    client.deallocate().unwrap();
    cluster.agents[0].kill();
    // An agent that was killed in the middle, or whose machine has crashed, leaves such files.
    let packages = cluster.agents[0].state().join("packages");
    let layer = packages.join(package::digest(&beta(1).bytes()));
    let unfinished = packages.join(".unfinished-layer");
    fs::create_dir_all(unfinished.join("site")).unwrap();
    fs::write(unfinished.join("site/x"), "x").unwrap();
    let damaged = layer.join("site/beta.py");
    fs::remove_file(&damaged).unwrap();
    fs::write(&damaged, "").unwrap();
    cluster.agents[0].restart();
    assert!(!unfinished.exists());
    wait_until("the node is back", || client.allocate(&allocation(package.path())).is_ok());
    assert_eq!(call(&client, "version", b""), "1");
}

#[test]
fn reports_a_full_disk_during_installation_and_leaves_nothing() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    let state = cluster.next_agents_state();
    fs::create_dir(&state).unwrap();
    let Some(disk) = SmallDisk::mount(&state, 12 << 20) else { return };
    cluster.add_agent_on(
        &disk,
        LentCores::cores(1),
        &["--python", python().to_str().unwrap(), "--cache", "1GiB"],
    );
    let mut client = connect(&cluster.user("alice"));
    environment(&client, "small", &[beta(1)]);
    environment(&client, "large", &[beta(2).file("large.bin", vec![7; 16 << 20])]);
    let taken = client.allocate(&allocation(folder_in("large").path()));
    assert_fails(taken, Code::StoreFull, &["environment large"]);
    let left = entries(&disk.path());
    assert!(!left.iter().any(|name| name.starts_with(".unfinished")), "{left:?}");
    client.allocate(&allocation(folder_in("small").path())).unwrap();
    assert_eq!(call(&client, "version", b""), "1");
}

#[test]
fn environments_are_evicted_with_their_layers() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent_with(LentCores::cores(1), &["--python", python().to_str().unwrap(), "--cache", "4MiB"]);
    let mut client = connect(&cluster.user("alice"));
    for version in [1, 2, 3] {
        let wheel = beta(version).file("data.bin", vec![7; 1_500_000]);
        environment(&client, &format!("e{version}"), &[wheel]);
        let package = folder_in(&format!("e{version}"));
        client.allocate(&allocation(package.path())).unwrap();
        assert_eq!(call(&client, "version", b""), version.to_string());
        client.deallocate().unwrap();
    }
    let cache = &cluster.json(&["ps", "--nodes"])["nodes"][0]["cache"];
    assert!(cache["used_bytes"].as_u64().unwrap() <= 4 << 20, "{cache}");
    // The first one was evicted, and comes again.
    client.allocate(&allocation(folder_in("e1").path())).unwrap();
    assert_eq!(call(&client, "version", b""), "1");
    client.deallocate().unwrap();
    environment(&client, "huge", &[beta(4).file("huge.bin", vec![7; 5 << 20])]);
    let taken = client.allocate(&allocation(folder_in("huge").path()));
    assert_fails(taken, Code::StoreFull, &["environment huge", "the wheel beta-4.0"]);
}

/// A process on standby has imported before it has a package.
const SAYS_WHEN: &str = "import os\nversion = 'in the lease' if os.listdir('/package') else 'ahead'\n";

#[test]
fn lease_takes_process_that_has_imported_its_tenants_environment() {
    let controllers = ["memory", "cpuset"].map(Means::Controller);
    if let Some(missing) = controllers.into_iter().find(|controller| !controller.is_here()) {
        skip(missing, "without control groups no process is put on standby");
        return;
    }
    let mut cluster = Cluster::start(ClusterPlan::default());
    let python = python();
    let options = ["--python", python.to_str().unwrap(), "--standby", "256MiB"];
    cluster.add_agent_with(LentCores::cores(1), &options);
    let [mut alice, mut mallory] = ["alice", "mallory"].map(|tenant| connect(&cluster.user(tenant)));
    environment(&alice, "science", &[WheelBuilder::new("beta", "1.0").file("beta.py", SAYS_WHEN)]);
    let grant = sublet_proto::v1::PackageGrant { tenant: "mallory".into(), right: 2 };
    alice.manager().grant_package("science", grant).unwrap();
    let package = folder_with("[python]\nenvironment = 'alice/science'\nimports = ['beta']\n", &[]);
    let call_once = |client: &mut Invoker, allocation: &Allocation| {
        client.allocate(allocation).unwrap();
        let when = call(client, "version", b"");
        client.deallocate().unwrap();
        when
    };
    let allocation = allocation(package.path());
    assert_eq!(call_once(&mut alice, &allocation), "in the lease");
    let waits_for = |client: &Invoker, tenant: &str| {
        let nodes = client.manager().nodes().unwrap();
        let mut sets = nodes.iter().flat_map(|node| &node.standby);
        sets.any(|set| set.tenant == tenant && set.modules == "beta" && set.waiting > 0)
    };
    wait_until("a process waits for alice", || waits_for(&alice, "alice"));
    assert!(waits_for(&cluster.operator(), "alice") && !waits_for(&mallory, "alice"), "others do not see it");
    // The environment is the same, and mallory has a right to it.
    assert_eq!(call_once(&mut mallory, &allocation), "in the lease");
    // Nodes report their processes after a while, and a process on a busy machine may answer too late.
    wait_until("a lease takes the process", || {
        waits_for(&alice, "alice") && call_once(&mut alice, &allocation) == "ahead"
    });
    wait_until("the process is replaced", || waits_for(&alice, "alice"));
    let with_variable = allocation.clone().variable("LEVEL", "3");
    assert_eq!(call_once(&mut alice, &with_variable), "in the lease", "modules may read variables");
    // Reports of the node are a while old, so the process may not have been replaced yet.
    wait_until("a later lease takes the next process", || {
        waits_for(&alice, "alice") && call_once(&mut alice, &allocation) == "ahead"
    });
}

#[test]
fn an_environment_for_another_platform_is_refused_at_deploy() {
    let platform = platform();
    let client = platform.invoker();
    let tag = format!("cp{0}-cp{0}-manylinux_2_17_riscv64", version().replace('.', ""));
    let wheel = WheelBuilder::new("beta", "1.0").tag(&tag).file("beta.py", "");
    let bytes = wheel.bytes();
    let layer = EnvironmentLayer {
        digest: package::digest(&bytes),
        name: wheel.file_name(),
        size_bytes: bytes.len() as u64,
    };
    client.manager().deploy(bytes).unwrap();
    let made = environment_of("riscv", &version(), vec![layer]).unwrap();
    let deployed = client.manager().deploy(package::encode(&made)).map(drop);
    assert_fails(
        deployed,
        Code::WrongArchitecture,
        &["riscv is for python3.", "riscv64-glibc2.17", "but nodes are"],
    );
}
