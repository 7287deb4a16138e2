//! Faulty disks: what is damaged or missing is noticed, said, and mended from where it can be.

#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sublet::Allocation;
use sublet_tests::cluster::{Cluster, TENANT, connect};
use sublet_tests::functions::package;
use sublet_tests::platform::assert_echoes;

/// Takes a lease, starts a worker, calls, and gives it back.
fn assert_leases(cluster: &Cluster) {
    let mut client = connect(&cluster.user(TENANT));
    client.allocate(&Allocation::new(package("calls.c")).wait(Duration::from_secs(20))).unwrap();
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
