//! Programs that processes spawn, on their own processing unit and on another: what they may do, when they end, what is refused.

#![allow(clippy::unwrap_used)]

use std::fs;

use serde_json::Value;
use sublet::{Allocation, Error};
use sublet_tests::cluster::Cluster;
use sublet_tests::functions::{library, program};
use sublet_tests::global::{GlobalProcess, OWN, WRITE, computer, linked_unit, refused};
use sublet_tests::platform::PlatformProcess;
use sublet_tests::process::wait_until;
use tempfile::TempDir;

/// A package of functions with a program, and a file that is not a program.
fn package() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("family");
    let programs = own.join("bin").join(std::env::consts::ARCH);
    fs::create_dir_all(&programs).unwrap();
    fs::write(own.join("sublet.toml"), "name = 'family'\nlibrary = 'libneighbours.so'\n").unwrap();
    fs::write(own.join("notes"), "no program").unwrap();
    fs::copy(library("neighbours.c"), own.join("libneighbours.so")).unwrap();
    fs::copy(program("child.c"), programs.join("child")).unwrap();
    let path = own.to_str().unwrap().to_owned();
    (folder, path)
}

fn spawn(
    parent: &GlobalProcess,
    unit: u64,
    (object, rights): (u64, u64),
    words: &[&str],
) -> Result<u64, Error> {
    let head = [unit, object, rights].map(u64::to_le_bytes).concat();
    let words: Vec<u8> = words.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
    let pid = parent.call("spawn", &[head, words].concat())?;
    Ok(u64::from_le_bytes(pid.try_into().unwrap()))
}

/// Id of the unit on which a process runs.
fn own_unit(parent: &GlobalProcess) -> u64 {
    parent.pid() >> 32
}

/// Id of the sender of a message, and the message.
fn hear(parent: &GlobalProcess, fd: u32) -> (u64, String) {
    let (from, said) = parent.hear(fd, 5000).unwrap();
    (from, String::from_utf8(said).unwrap())
}

fn leases(listed: &Value) -> usize {
    listed["leases"].as_array().unwrap().len()
}

const CHILD: &str = "bin/{arch}/child";

#[test]
fn a_program_has_what_it_was_given_and_nothing_else() {
    let (_folder, package) = package();
    let platform = PlatformProcess::start();
    let parent = GlobalProcess(platform.client_with(&Allocation::new(package)));
    let ((object, fd), _) = (parent.make("news").unwrap(), parent.make("secret").unwrap());
    let words = [CHILD, "news", "secret", "COLOUR=blue"];
    let child = spawn(&parent, own_unit(&parent), (object, WRITE), &words).unwrap();
    assert_ne!(child, parent.pid());
    assert_eq!(child >> 32, own_unit(&parent));
    let (from, said) = hear(&parent, fd);
    assert_eq!(from, child);
    let wanted = format!("{child:x} child blue 0 process");
    assert!(said.starts_with(&wanted), "{said}, where {wanted} was expected");
    assert!(said.contains("has no right to write to FIFO"), "{said}");
    // It has a lease of its own, which ends with it and with its parent.
    assert_eq!(leases(&platform.json(&["ps"])), 2);
    drop(parent);
    wait_until("nothing is leased", || leases(&platform.json(&["ps"])) == 0);
}

#[test]
fn a_program_that_ends_gives_back_what_it_had() {
    let (_folder, package) = package();
    let platform = PlatformProcess::start();
    let parent = GlobalProcess(platform.client_with(&Allocation::new(package)));
    let (object, fd) = parent.make("news").unwrap();
    for _ in 0..3 {
        let words = [CHILD, "news", "news", "end"];
        let child =
            when_there_is_a_core(|| spawn(&parent, own_unit(&parent), (object, WRITE), &words)).unwrap();
        assert_eq!(hear(&parent, fd).0, child);
        wait_until("its lease has ended", || leases(&platform.json(&["ps"])) == 1);
        refused(parent.words("allow", &[child, object, WRITE]), "there is no process");
    }
    // Each is on the bill with a lease of its own, and with the time for which it has run.
    let executed = |line: &&Value| line["usage"]["executing_ns"].as_u64() > Some(0);
    wait_until("all are on the bill", || {
        let bill = platform.json(&["bill"]);
        let lines = bill["leases"].as_array().unwrap();
        lines.len() == 4 && lines.iter().filter(executed).count() == 4
    });
}

/// A node's core is free when its agent's report says so.
fn when_there_is_a_core(spawn: impl Fn() -> Result<u64, Error>) -> Result<u64, Error> {
    let mut spawned = None;
    wait_until("there is a core", || {
        let outcome = spawned.insert(spawn());
        !outcome.as_ref().is_err_and(|error| error.message.contains("left"))
    });
    spawned.unwrap()
}

#[test]
fn what_cannot_be_spawned_is_refused_and_takes_no_lease() {
    let (_folder, package) = package();
    let platform = PlatformProcess::start();
    let parent = GlobalProcess(platform.client_with(&Allocation::new(package.clone())));
    let own = own_unit(&parent);
    let (object, _) = parent.make("news").unwrap();
    for path in ["../child", "/bin/sh", "bin/../../sh", ""] {
        refused(spawn(&parent, own, (0, 0), &[path]), "the path");
    }
    for path in ["notes", "bin", "bin/nothing", "sublet.toml/x"] {
        refused(when_there_is_a_core(|| spawn(&parent, own, (0, 0), &[path])), "has no program");
    }
    refused(spawn(&parent, own, (object + 1000, WRITE), &[CHILD]), "has no right to own");
    refused(spawn(&parent, own, (object, 8), &[CHILD]), "no rights 0x8");
    refused(spawn(&parent, own + 1, (0, 0), &[CHILD]), "no neighbour");
    refused(spawn(&parent, own, (0, 0), &[CHILD, &"x".repeat(4096)]), "at most 4096");
    wait_until("no lease is left", || leases(&platform.json(&["ps"])) == 1);
    let other = GlobalProcess(platform.client_with(&Allocation::new(package)));
    // A right that another process granted is not one to grant.
    parent.words("allow", &[other.pid(), object, WRITE]).unwrap();
    refused(spawn(&other, own, (object, WRITE), &[CHILD, "news"]), "has no right to own");
    refused(spawn(&parent, own, (0, 0), &[CHILD]), "left");
    parent.words("allow", &[other.pid(), object, OWN]).unwrap();
    assert_eq!(leases(&platform.json(&["ps"])), 2);
}

#[test]
fn a_remote_program_ends_with_its_parent_or_that_agent() {
    let (_folder, package) = package();
    let mut cluster = computer(&[]);
    let parent = || GlobalProcess::of(&cluster, Allocation::new(package.clone()).pu("cpu"));
    let (one, two) = (parent(), parent());
    let dpu = linked_unit(&one);
    refused(one.call("unit", &2u32.to_le_bytes()), "no processor 2");
    let (object, fd) = one.make("news").unwrap();
    let child = spawn(&one, dpu, (object, WRITE), &[CHILD, "news", "news", "COLOUR=green"]).unwrap();
    assert_eq!(child >> 32, dpu);
    let (from, said) = hear(&one, fd);
    assert_eq!(from, child);
    assert!(said.starts_with(&format!("{child:x} child green 0 -")), "{said}");
    let (theirs, other_fd) = two.make("other news").unwrap();
    spawn(&two, dpu, (theirs, WRITE), &[CHILD, "other news"]).unwrap();
    hear(&two, other_fd);
    refused(spawn(&two, dpu, (0, 0), &[CHILD]), "left");
    let on_dpu = |cluster: &Cluster| leases_of(cluster, "node-1");
    assert_eq!(on_dpu(&cluster), 2);
    drop(two);
    wait_until("the child of a parent that is gone has ended", || on_dpu(&cluster) == 1);
    cluster.agents[0].kill();
    wait_until("the child of an agent that is gone has ended", || on_dpu(&cluster) == 0);
}

fn leases_of(cluster: &Cluster, node: &str) -> usize {
    let listed = cluster.json(&["ps"]);
    listed["leases"].as_array().unwrap().iter().filter(|lease| lease["node"] == node).count()
}
