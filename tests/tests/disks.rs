//! Faulty disks: what is damaged or missing is noticed, said, and mended from where it can be.

#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sublet::{Allocation, Code};
use sublet_manager::store::{Batch, NatsOptions, NatsStore, Store};
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, TENANT, connect};
use sublet_tests::functions::{library, package};
use sublet_tests::nats::NatsServer;
use sublet_tests::platform::{assert_echoes, sublet};
use sublet_tests::process::{PATIENCE, wait_until};

/// Takes a lease, starts a worker, calls, and gives it back.
fn assert_leases(cluster: &Cluster) {
    let mut client = connect(&cluster.user(TENANT));
    client.allocate(&Allocation::new(package("calls.c")).wait(PATIENCE)).unwrap();
    assert_echoes(&client);
    client.deallocate().unwrap();
}

/// The folder of the only unpacked package on the node, and its library.
fn unpacked(cluster: &Cluster) -> (PathBuf, PathBuf) {
    let packages = cluster.agents[0].state().join("packages");
    let entries = fs::read_dir(packages).unwrap().map(|entry| entry.unwrap().path());
    let is_package = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("sha256:");
    let folders: Vec<_> = entries.filter(is_package).collect();
    assert_eq!(folders.len(), 1, "{folders:?}");
    let files = fs::read_dir(&folders[0]).unwrap().map(|entry| entry.unwrap().path());
    let library = files.into_iter().find(|path| path.to_str().unwrap().ends_with(".so")).unwrap();
    (folders[0].clone(), library)
}

/// Flips one bit in the middle of a file.
fn flip(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    let mode = fs::metadata(file).unwrap().permissions();
    fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
    fs::write(file, bytes).unwrap();
    fs::set_permissions(file, mode).unwrap();
}

#[test]
fn refetches_a_damaged_unpacked_package_for_the_next_lease() {
    let mut cluster = Cluster::with_agents(1);
    assert_leases(&cluster);
    let (folder, library) = unpacked(&cluster);
    let good = fs::read(&library).unwrap();
    let damages: [&dyn Fn(); 4] = [
        &|| flip(&library),
        &|| fs::remove_file(&library).unwrap(),
        &|| flip(&folder.join("manifest.pb")),
        &|| fs::remove_dir_all(&folder).unwrap(),
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        damage();
        assert_leases(&cluster);
        assert!(fs::read(&library).unwrap() == good, "damage {number} was not mended");
    }
    // Also what happens while there is no agent.
    cluster.agents[0].kill();
    flip(&library);
    cluster.agents[0].restart();
    assert_leases(&cluster);
    assert!(fs::read(&library).unwrap() == good);
    let log = cluster.agents[0].log();
    assert!(log.contains("is damaged, and fetched again"), "{log}");
}

/// A package of the functions in calls.c, and of this much data.
fn with_data(folder: &Path, name: &str, bytes: usize) -> Allocation {
    let folder = folder.join(name);
    fs::create_dir(&folder).unwrap();
    fs::copy(library("calls.c"), folder.join("libcalls.so")).unwrap();
    fs::write(folder.join("sublet.toml"), format!("name = '{name}'\nlibrary = 'libcalls.so'\n")).unwrap();
    fs::write(folder.join("data"), vec![7; bytes]).unwrap();
    Allocation::new(folder.to_str().unwrap()).wait(PATIENCE)
}

#[test]
fn node_evicts_packages_beyond_its_cache_and_fetches_them_again() {
    const BYTES: usize = 400_000;
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent_with(LentCores::cores(2), &["--cache", "1MiB"]);
    let folder = tempfile::tempdir().unwrap();
    let mut client = connect(&cluster.user(TENANT));
    let leased = with_data(folder.path(), "leased", BYTES);
    client.allocate(&leased).unwrap();
    assert_echoes(&client);
    let worker = cluster.agents[0].worker();
    let mut other = connect(&cluster.user("flood"));
    let many: Vec<_> =
        (0..4).map(|number| with_data(folder.path(), &format!("many{number}"), BYTES)).collect();
    // Each of them, and the first one again, which made way.
    for package in many.iter().chain([&many[0]]) {
        other.allocate(package).unwrap();
        assert_echoes(&other);
        other.deallocate().unwrap();
    }
    let shown = || cluster.json(&["ps", "--nodes"])["nodes"][0]["cache"].take();
    wait_until("the node has reported its evictions", || shown()["evicted"].as_u64() >= Some(3));
    assert!(shown()["used_bytes"].as_u64() <= shown()["limit_bytes"].as_u64(), "{}", shown());
    assert_echoes(&client);
    assert_eq!(cluster.agents[0].worker(), worker, "the package of a living lease was taken away");
    let error = other.allocate(&with_data(folder.path(), "large", 2 << 20)).and_then(|()| {
        let mut output = [0u8; 5];
        other.submit("echo", b"hello", &mut output)?.wait().map(drop)
    });
    let error = error.unwrap_err();
    assert!(error.code == Code::StoreFull && error.message.contains("cache"), "{error}");
}

/// A manager alone with tokens, one of which is revoked; the ids of both.
fn with_tokens() -> (Cluster, String, String) {
    let cluster = Cluster::start(ClusterPlan::default());
    let create = |name: &str| {
        let created = cluster.json(&["token", "create", "--tenant", name]);
        created["id"].as_str().unwrap().to_owned()
    };
    let (good, revoked) = (create("good"), create("revoked"));
    cluster.json(&["token", "revoke", &revoked]);
    (cluster, good, revoked)
}

/// Whether a token is revoked, as the manager says.
fn is_revoked(cluster: &Cluster, id: &str) -> bool {
    let listed = cluster.json(&["token", "list", "--all"]);
    let tokens = listed["tokens"].as_array().unwrap();
    let token = tokens.iter().find(|token| token["id"] == id).unwrap_or_else(|| panic!("token {id} is gone"));
    !token["revoked_unix_ms"].is_null()
}

/// Runs `sublet store` on the manager's state, and returns its JSON or its error output.
fn store(cluster: &Cluster, arguments: &[&str]) -> Result<Value, String> {
    store_by(sublet(), cluster, arguments)
}

/// Copies the store of the running manager, which listens at its own socket.
fn live_backup(cluster: &Cluster, file: &str) -> Result<Value, String> {
    store_by(cluster.command(), cluster, &["backup", file])
}

fn store_by(mut command: Command, cluster: &Cluster, arguments: &[&str]) -> Result<Value, String> {
    let state = cluster.managers[0].state().to_str().unwrap();
    let output = command.args(["--json", "store"]).args(arguments).args(["--state", state]).output().unwrap();
    if output.status.success() {
        return Ok(serde_json::from_slice(&output.stdout).unwrap());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Error output of a manager that does not start on this state.
fn refusal(cluster: &Cluster) -> String {
    let state = cluster.managers[0].state();
    let output = sublet().args(["manager", "--json", "--state"]).arg(state).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn revocations_survive_a_damaged_write_ahead_log() {
    let (mut cluster, good, revoked) = with_tokens();
    let state = cluster.managers[0].state().to_owned();
    let damages: [&dyn Fn(); 3] = [
        &|| flip(&state.join("store.sqlite-wal")),
        &|| fs::remove_file(state.join("store.sqlite-wal")).unwrap(),
        &|| flip(&state.join("store.journal")),
    ];
    for damage in damages {
        cluster.managers[0].kill();
        damage();
        cluster.managers[0].restart();
        assert!(is_revoked(&cluster, &revoked) && !is_revoked(&cluster, &good));
        // Something for the next log.
        cluster.json(&["token", "create", "--tenant", "more"]);
    }
    let log = cluster.managers[0].log();
    assert!(log.contains("its journal has put back") && log.contains("the journal is damaged"), "{log}");
}

#[test]
fn a_store_is_checked_repaired_backed_up_and_restored() {
    let (mut cluster, good, revoked) = with_tokens();
    let state = cluster.managers[0].state().to_owned();
    let file = cluster.folder().join("backup.sqlite");
    let backup = file.to_str().unwrap().to_owned();
    let error = store(&cluster, &["check"]).unwrap_err();
    assert!(error.contains("already_running"), "{error}");
    cluster.managers[0].kill();
    assert_eq!(store(&cluster, &["check"]).unwrap()["whole"], true);
    store(&cluster, &["backup", &backup]).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let error = store(&cluster, &["backup", &backup]).unwrap_err();
    assert!(error.contains("exists already"), "{error}");

    // Without its file the store is refused, and repaired from the journal.
    fs::remove_file(state.join("store.sqlite")).unwrap();
    let said = refusal(&cluster);
    assert!(said.contains("store.sqlite") && said.contains("journal"), "{said}");
    let repaired = store(&cluster, &["repair"]).unwrap();
    assert!(!repaired["restored"].as_array().unwrap().is_empty(), "{repaired}");
    cluster.managers[0].restart();
    assert!(is_revoked(&cluster, &revoked) && !is_revoked(&cluster, &good));
    cluster.json(&["token", "revoke", &good]);
    cluster.managers[0].kill();

    let error = store(&cluster, &["restore", &backup]).unwrap_err();
    assert!(error.contains("--overwrite"), "{error}");
    flip(&file);
    let damaged = store(&cluster, &["restore", &backup, "--overwrite"]);
    flip(&file);
    // A bit that no record and no page needs may flip.
    if let Err(error) = damaged {
        assert!(error.contains("store") && state.join("store.sqlite").exists(), "{error}");
    }
    store(&cluster, &["restore", &backup, "--overwrite"]).unwrap();
    cluster.managers[0].restart();
    assert!(is_revoked(&cluster, &revoked) && !is_revoked(&cluster, &good), "as it was when it was copied");
    let elsewhere = cluster.folder().join("nothing");
    let output = sublet().args(["store", "check", "--state"]).arg(&elsewhere).output().unwrap();
    assert!(!output.status.success() && !elsewhere.exists());
}

#[test]
fn store_of_a_running_manager_is_backed_up_and_restored() {
    let (mut cluster, good, revoked) = with_tokens();
    let file = cluster.folder().join("live.sqlite");
    let backup = file.to_str().unwrap().to_owned();
    live_backup(&cluster, &backup).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let error = live_backup(&cluster, &backup).unwrap_err();
    assert!(error.contains("exists already"), "{error}");
    let nowhere = cluster.folder().join("nowhere/live.sqlite");
    let error = live_backup(&cluster, nowhere.to_str().unwrap()).unwrap_err();
    assert!(error.contains("nowhere"), "{error}");
    // The manager keeps running, and later changes are not in the copy.
    cluster.json(&["token", "revoke", &good]);
    assert!(is_revoked(&cluster, &good));
    cluster.managers[0].kill();
    store(&cluster, &["restore", &backup, "--overwrite"]).unwrap();
    assert_eq!(store(&cluster, &["check"]).unwrap()["whole"], true);
    cluster.managers[0].restart();
    assert!(is_revoked(&cluster, &revoked) && !is_revoked(&cluster, &good), "as it was when it was copied");
}

#[test]
fn store_on_nats_is_checked_and_repaired() {
    let server = NatsServer::start();
    let options = NatsOptions { url: server.url(), name: "sublet".into(), replicas: 1, ca_file: None };
    let mut nats = NatsStore::open(&options).unwrap();
    let mut batch = Batch::default();
    batch.put("token/a".into(), b"a".into());
    batch.put("lease/a".into(), b"a".into());
    nats.commit(&batch).unwrap();
    let run = |arguments: &[&str]| {
        let url = server.url();
        let output = sublet().arg("store").args(arguments).args(["--store-url", &url, "--json"]).output();
        serde_json::from_slice::<Value>(&output.unwrap().stdout).unwrap()
    };
    let found = run(&["check"]);
    assert!(found["whole"] == true && found["restored"] == json!([]), "{found}");
    assert_eq!(found["records"], json!({ "lease": 1, "token": 1 }));
    let found = run(&["repair"]);
    assert!(found["whole"] == true && found["restored"] == json!([]), "{found}");
    let output = sublet().args(["store", "backup", "x", "--store-url", &server.url()]).output().unwrap();
    assert!(!output.status.success());
}

#[test]
fn the_signing_key_is_kept_twice_and_never_replaced_silently() {
    let (mut cluster, _, _) = with_tokens();
    let state = cluster.managers[0].state().to_owned();
    let key = state.join("signing.key");
    let good = fs::read(&key).unwrap();
    cluster.managers[0].kill();
    flip(&key);
    cluster.managers[0].restart();
    assert_eq!(fs::read(&key).unwrap(), good);
    cluster.managers[0].kill();
    fs::remove_file(&key).unwrap();
    cluster.managers[0].restart();
    assert_eq!(fs::read(&key).unwrap(), good);
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    cluster.managers[0].kill();
    // The key of another store.
    let other = Cluster::start(ClusterPlan::default());
    fs::copy(other.managers[0].state().join("signing.key"), &key).unwrap();
    let said = refusal(&cluster);
    assert!(said.contains("signing.key") && said.contains("altered"), "{said}");
}
