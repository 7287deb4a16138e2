//! Tests what functions can do in their sandboxes, as seen from a client, and what the operator learns of
//! weaknesses.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::{Value, json};
use sublet::{Allocation, Code};
use sublet_tests::assert_fails;
use sublet_tests::functions::{library, package};
use sublet_tests::platform::{PlatformProcess, assert_echoes, kill, sublet};
use sublet_tests::process::{is_alive, spawner, wait_until};

fn status(code: Code) -> Option<i32> {
    i32::try_from(code.number()).ok()
}

/// A package of `network.c` that asks for the network.
fn dialling(folder: &Path) -> Allocation {
    fs::copy(library("network.c"), folder.join("libnetwork.so")).unwrap();
    let manifest = "name = 'dials'\nlibrary = 'libnetwork.so'\nnetwork = true\n";
    fs::write(folder.join("sublet.toml"), manifest).unwrap();
    Allocation::new(folder.to_str().unwrap())
}

/// Result of connecting to a port of this machine.
fn dial(platform: &PlatformProcess, allocation: &Allocation) -> i32 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (client, mut error) = (platform.client_with(allocation), [-1i32]);
    let port = [listener.local_addr().unwrap().port()];
    assert_eq!(client.submit("dial", &port, &mut error).unwrap().wait().unwrap().output_bytes, 4);
    error[0]
}

#[test]
fn functions_have_the_network_if_requested_and_lent() {
    let folder = tempfile::tempdir().unwrap();
    let asking = dialling(folder.path());
    let lending = PlatformProcess::start_with(|up| {
        up.arg("--lend-network");
    });
    assert_eq!(dial(&lending, &asking), 0);
    let refused = Errno::PERM.raw_os_error();
    assert_eq!(dial(&lending, &Allocation::new(package("network.c"))), refused, "it did not ask");
    let keeping = PlatformProcess::start();
    assert_eq!(dial(&keeping, &Allocation::new(package("network.c"))), refused);
    let mut client = keeping.invoker();
    assert_fails(client.allocate(&asking), Code::PermissionDenied, &["dials", "lend_network"]);
    // The refused allocation holds nothing, and the node keeps running.
    assert_eq!(keeping.json(&["ps"])["leases"], json!([]));
    assert_eq!(dial(&keeping, &Allocation::new(package("network.c"))), refused);
}

#[test]
fn workers_end_with_the_sandbox_maker_and_are_replaced() {
    let platform = PlatformProcess::start();
    let mut client = platform.client("calls.c");
    assert_echoes(&client);
    let worker = platform.worker();
    let mut nothing = [0u8; 0];
    let in_flight = client.submit("busy", &[60_000u32], &mut nothing).unwrap();
    kill(spawner(platform.pid()).unwrap(), Signal::KILL);
    assert_fails(in_flight.wait(), Code::WorkerDied, &["SIGKILL"]);
    assert!(!is_alive(worker));
    client.deallocate().unwrap();
    for _ in 0..2 {
        client.allocate(&Allocation::new(package("calls.c"))).unwrap();
        assert_echoes(&client);
        client.deallocate().unwrap();
    }
}

#[test]
fn an_operator_makes_starts_kills_and_deletes_sandboxes() {
    let platform = PlatformProcess::start();
    let agent = platform.state().join("agent.sock");
    let sandbox = |words: &[&str]| {
        let agent = ["sandbox", "--json", "--agent", agent.to_str().unwrap()];
        let output = sublet().args(agent).args(words).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let answer = |words: &[&str]| -> Value {
        let (status, said, complained) = sandbox(words);
        assert_eq!(status, Some(0), "{words:?}: {complained}");
        serde_json::from_str::<Value>(&said).unwrap()["sandboxes"].take()
    };
    let made = answer(&["create", "--count", "2", "--memory", "64MiB", "--", "/bin/sleep", "1000"]);
    let [one, other] = [0, 1].map(|index: usize| made[index]["id"].to_string());
    assert_eq!((&made[0]["status"], &made[1]["status"]), (&json!("created"), &json!("created")));
    let started = answer(&["start", &one, &other]);
    assert_eq!((&started[1]["status"], started[1]["pid"].as_u64() > Some(1)), (&json!("running"), true));
    let refused = sandbox(&["delete", &one]);
    assert!(refused.0 == status(Code::InvalidArgument) && refused.2.contains("Running"), "{refused:?}");
    answer(&["kill", &one]);
    answer(&["kill", &other, "--signal", "KILL"]);
    wait_until("both have ended", || {
        let states = answer(&["state", &one, &other]);
        [0, 1].iter().all(|index: &usize| states[*index]["status"] == "stopped")
    });
    let ended = answer(&["state", &one, &other]);
    assert_eq!(
        (&ended[0]["exit"], &ended[1]["exit"]),
        (&json!("killed by SIGTERM"), &json!("killed by SIGKILL"))
    );
    answer(&["delete", &one, &other]);
    assert_eq!(answer(&["state"]), json!([]));

    // Those of leases are seen, and end with their leases alone.
    let client = platform.client("calls.c");
    let seen = answer(&["state"]);
    assert_eq!(seen[0]["pid"], json!(platform.worker()));
    let leases = seen[0]["id"].to_string();
    for verb in ["kill", "start", "delete"] {
        let refused = sandbox(&[verb, &leases]);
        assert!(
            refused.0 == status(Code::InvalidArgument) && refused.2.contains("ends with the lease"),
            "{refused:?}"
        );
    }
    assert_echoes(&client);
    for (bad, named) in [
        (&["state", "99"][..], "no sandbox 99"),
        (&["create", "--start", "--", "/no/such/program"], "/no/such/program"),
        (&["create", "--start", "--", "/etc/passwd"], "executing"),
        (&["kill", "1", "--signal", "NONSENSE"], "NONSENSE"),
    ] {
        let refused = sandbox(bad);
        assert!(refused.0 != Some(0) && (refused.1 + &refused.2).contains(named), "{bad:?}");
    }
}

#[test]
fn doctor_reports_the_strength_of_each_wall() {
    let output = sublet().args(["doctor", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let walls = said["walls"].as_array().unwrap();
    for name in ["users", "landlock", "memory", "pids", "cpuset", "namespaces"] {
        let wall = walls.iter().find(|wall| wall["wall"] == name).unwrap_or_else(|| panic!("{name}: {said}"));
        assert!(["full", "weaker", "missing"].iter().any(|strength| wall["strength"] == *strength), "{wall}");
        assert!(!wall["why"].as_str().unwrap().is_empty(), "{wall}");
    }
    let table = sublet().arg("doctor").output().unwrap();
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.starts_with("WALL") && table.contains("here"), "{table}");
    assert!(
        table.contains("\ntimes to start in each isolation") && table.contains("docs/performance.md"),
        "{table}"
    );
    let document = std::fs::read_to_string(sublet_tests::root().join("docs/performance.md")).unwrap();
    let is_row = |line: &&str| line.starts_with("| the first instruction in each isolation");
    let row = document.lines().find(is_row).unwrap();
    assert!(row.ends_with("| `cargo bench -p sublet-sandbox` |"), "{row}");
    for isolation in ["process", "container", "weak", "crun", "runc", "runsc"] {
        assert!(row.contains(&format!("`{isolation}`")), "{isolation}: {row}");
    }
}
