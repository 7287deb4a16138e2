//! Worker processes as global processes of one or two processing units: FIFOs between them, capabilities, what is refused, and
//! what remains of who dies.

#![allow(clippy::unwrap_used)]

use sublet::Allocation;
use sublet_tests::cluster::Cluster;
use sublet_tests::functions::package;
use sublet_tests::global::{
    GlobalProcess, OWN, READ, WRITE, allow, computer, exchange, join_while_it_reads, linked_unit,
    package_in_nodejs, package_in_python, refused,
};
use sublet_tests::platform::PlatformProcess;
use sublet_tests::process::wait_until;
use sublet_tests::root;
use tempfile::TempDir;

fn of(platform: &PlatformProcess) -> GlobalProcess {
    GlobalProcess(platform.client_with(&Allocation::new(package("neighbours.c"))))
}

/// Starts a process on a kind of processing unit.
fn on(cluster: &Cluster, kind: &str) -> GlobalProcess {
    GlobalProcess::of(cluster, Allocation::new(package("neighbours.c")).pu(kind))
}

/// The same, whose functions are in an interpreter's language.
fn interpreted_on(cluster: &Cluster, kind: &str, package: &TempDir) -> GlobalProcess {
    let package = package.path().to_str().unwrap();
    GlobalProcess::of(cluster, Allocation::new(package).memory_bytes(64 << 20).pu(kind))
}

#[test]
fn worker_processes_send_each_other_messages_past_client_and_agent() {
    let platform = PlatformProcess::start();
    let (one, two) = (of(&platform), of(&platform));
    assert_ne!(one.pid(), two.pid());
    assert_eq!(one.pid() >> 32, two.pid() >> 32, "one processing unit");
    let (object, fd) = one.make("frames").unwrap();
    refused(two.join("frames"), "has no right to write");
    refused(two.join("fra"), "there is no FIFO \"fra\"");
    one.words("allow", &[two.pid(), object, WRITE]).unwrap();
    let to = two.join("frames").unwrap();
    for size in [0, 1, 40, 41, 4096, 4097, 8184] {
        let message: Vec<u8> = (0..size).map(|at| at as u8).collect();
        two.say(to, &message).unwrap();
        assert_eq!(one.hear(fd, 5000).unwrap(), (two.pid(), message));
    }
    refused(one.hear(fd, 0), "no process has written");
    refused(two.say(to, &[0; 49_153]), "49153 bytes");
    // Descriptors are what they are.
    refused(two.hear(to, 0), "written to, and not read");
    refused(one.say(fd, b"x"), "read, and not written to");
    two.shut(to).unwrap();
    refused(two.shut(to), "is not open");
    refused(two.say(to, b"x"), "is not open");
    refused(two.shut(4711), "4711 is not open");
}

#[test]
fn capabilities_are_granted_and_revoked_by_who_owns_a_fifo() {
    let platform = PlatformProcess::start();
    let (one, two) = (of(&platform), of(&platform));
    let (object, fd) = one.make("f").unwrap();
    assert_eq!((one.rights(object), two.rights(object)), (7, 0));
    refused(two.words("allow", &[two.pid(), object, WRITE]), "no right to own");
    refused(one.words("allow", &[two.pid(), object, 8]), "no rights 0x8");
    refused(one.words("allow", &[one.pid() + 1000, object, READ]), "there is no process");
    refused(one.words("allow", &[two.pid(), object + 1000, READ]), "there is no FIFO");
    refused(one.words("allow", &[5 << 32 | 1, object, READ]), "no neighbour");
    one.words("allow", &[two.pid(), object, WRITE | OWN]).unwrap();
    assert_eq!(two.rights(object), 6);
    let to = two.join("f").unwrap();
    two.say(to, b"read").unwrap();
    assert_eq!(one.hear(fd, 5000).unwrap().1, b"read");
    two.say(to, b"unread").unwrap();
    one.words("forbid", &[two.pid(), object, WRITE]).unwrap();
    refused(one.hear(fd, 0), "no process has written");
    refused(two.say(to, b"late"), "was revoked");
    refused(two.join("f"), "no right to write");
    // Who may own it grants itself what it lacks.
    two.words("allow", &[two.pid(), object, WRITE]).unwrap();
    two.shut(to).unwrap();
    let to = two.join("f").unwrap();
    two.say(to, b"again").unwrap();
    assert_eq!(one.hear(fd, 5000).unwrap().1, b"again");
}

#[test]
fn names_belong_to_a_tenant_until_the_fifo_ends() {
    let platform = PlatformProcess::start();
    let (one, two) = (of(&platform), of(&platform));
    let (first, fd) = one.make("name").unwrap();
    refused(one.make("name"), "is taken");
    refused(two.make("name"), "is taken");
    refused(two.make("two\nlines"), "'\\n'");
    refused(two.make(&"x".repeat(129)), "129 bytes");
    one.shut(fd).unwrap();
    let (second, _) = two.make("name").unwrap();
    assert_ne!(first, second);
    drop(two);
    wait_until("the name is free", || one.make("name").is_ok());
}

#[test]
fn fifos_of_a_dead_worker_end_after_their_data() {
    let platform = PlatformProcess::start();
    let (one, two) = (of(&platform), of(&platform));
    let (object, fd) = one.make("f").unwrap();
    let before = two.pid();
    one.words("allow", &[before, object, WRITE]).unwrap();
    let to = two.join("f").unwrap();
    two.say(to, b"last words").unwrap();
    two.call("die", &[]).unwrap_err();
    assert_eq!(one.hear(fd, 5000).unwrap(), (before, b"last words".to_vec()));
    // The lease's next process is another one, with no rights.
    assert_ne!(two.pid(), before);
    refused(two.join("f"), "no right to write");
    one.words("allow", &[two.pid(), object, WRITE]).unwrap();
    let to = two.join("f").unwrap();
    one.call("die", &[]).unwrap_err();
    wait_until("the FIFO has ended", || two.say(to, b"x").is_err());
    refused(two.say(to, b"x"), "has no reader");
    refused(two.join("f"), "there is no FIFO");
}

#[test]
fn processes_of_two_units_send_each_other_messages() {
    let cluster = computer(&[]);
    let (host, dpu) = (on(&cluster, "cpu"), on(&cluster, "dpu"));
    assert_ne!(host.pid() >> 32, dpu.pid() >> 32);
    let (forth, from_dpu) = host.make("to the host").unwrap();
    allow(&host, [dpu.pid(), forth, WRITE]);
    let to_host = dpu.join("to the host").unwrap();
    exchange((&host, from_dpu), (&dpu, to_host));
    let (back, from_host) = dpu.make("to the dpu").unwrap();
    dpu.words("allow", &[host.pid(), back, WRITE]).unwrap();
    let sockets = [&host, &dpu].map(|process| process.call("sockets", &[]).unwrap());
    let to_dpu = host.join("to the dpu").unwrap();
    exchange((&dpu, from_host), (&host, to_dpu));
    // Who has read before it connects back does so along the same connection.
    assert_eq!([&host, &dpu].map(|process| process.call("sockets", &[]).unwrap()), sockets);
    // Names are the computer's, and rights are the unit's own to look at.
    refused(host.make("to the dpu"), "is taken");
    refused(dpu.make("to the host"), "is taken");
    assert_eq!((host.rights(back), dpu.rights(forth), dpu.rights(back)), (2, 2, 7));
    refused(dpu.words("allow", &[dpu.pid(), forth, READ]), "no right to own");
    // Beside a writer of its own unit.
    let near = on(&cluster, "cpu");
    host.words("allow", &[near.pid(), forth, WRITE]).unwrap();
    let beside = near.join("to the host").unwrap();
    near.say(beside, b"near").unwrap();
    dpu.say(to_host, b"far").unwrap();
    let mut heard = [host.hear(from_dpu, 5000).unwrap().1, host.hear(from_dpu, 5000).unwrap().1];
    heard.sort();
    assert_eq!(heard, [b"far".to_vec(), b"near".to_vec()]);
    // A right that is revoked is gone on both sides.
    dpu.say(to_host, b"unread").unwrap();
    host.words("forbid", &[dpu.pid(), forth, WRITE]).unwrap();
    refused(host.hear(from_dpu, 0), "no process has written");
    refused(dpu.say(to_host, b"late"), "was revoked");
    refused(dpu.join("to the host"), "no right to write");
    // And messages in the other direction of the same connection still arrive.
    exchange((&dpu, from_host), (&host, to_dpu));
    dpu.shut(to_host).unwrap();
    exchange((&dpu, from_host), (&host, to_dpu));
    host.words("allow", &[dpu.pid(), forth, WRITE]).unwrap();
    let again = dpu.join("to the host").unwrap();
    exchange((&host, from_dpu), (&dpu, again));
    host.shut(to_dpu).unwrap();
    exchange((&host, from_dpu), (&dpu, again));
    refused(dpu.hear(from_host, 100), "no process has written");
}

#[test]
fn python_and_c_processes_of_two_units_exchange_messages() {
    let python = root().join("target/tools/python/bin/python3");
    let python = ["--python", python.to_str().unwrap()];
    let package = package_in_python().unwrap();
    for encryption in [&[][..], &["--encrypt", "true"]] {
        let cluster = computer(&[&python, encryption].concat());
        let (host, dpu) = (interpreted_on(&cluster, "cpu", &package), on(&cluster, "dpu"));
        let (forth, from_dpu) = host.make("to python").unwrap();
        allow(&host, [dpu.pid(), forth, WRITE]);
        let (back, from_host) = dpu.make("to c").unwrap();
        refused(host.join("to c"), "PermissionDenied");
        dpu.words("allow", &[host.pid(), back, WRITE]).unwrap();
        assert_eq!((host.rights(back), host.rights(forth), dpu.rights(forth)), (2, 7, 2));
        let to_host = join_while_it_reads(&dpu, "to python", (&host, from_dpu));
        let to_dpu = join_while_it_reads(&host, "to c", (&dpu, from_host));
        exchange((&host, from_dpu), (&dpu, to_host));
        exchange((&dpu, from_host), (&host, to_dpu));
        host.words("forbid", &[dpu.pid(), forth, WRITE]).unwrap();
        refused(dpu.say(to_host, b"late"), "was revoked");
        refused(host.hear(from_dpu, 0), "DeadlineExceeded: no process has written");
        // The FIFOs of a worker in Python end with it.
        host.call("die", &[]).unwrap_err();
        wait_until("the name is free", || dpu.make("to python").is_ok());
        refused(dpu.hear(from_host, 100), "no process has written");
    }
}

#[test]
fn nodejs_and_c_processes_of_two_units_exchange_messages() {
    let package = package_in_nodejs().unwrap();
    for encryption in [&[][..], &["--encrypt", "true"]] {
        let cluster = computer(&[&["--node", "node"], encryption].concat());
        let (host, dpu) = (interpreted_on(&cluster, "cpu", &package), on(&cluster, "dpu"));
        let (forth, from_dpu) = host.make("to nodejs").unwrap();
        allow(&host, [dpu.pid(), forth, WRITE]);
        let (back, from_host) = dpu.make("to c").unwrap();
        refused(host.join("to c"), "has no right to write");
        dpu.words("allow", &[host.pid(), back, WRITE]).unwrap();
        assert_eq!((host.rights(back), host.rights(forth), dpu.rights(forth)), (2, 7, 2));
        let to_host = join_while_it_reads(&dpu, "to nodejs", (&host, from_dpu));
        let to_dpu = join_while_it_reads(&host, "to c", (&dpu, from_host));
        exchange((&host, from_dpu), (&dpu, to_host));
        exchange((&dpu, from_host), (&host, to_dpu));
        host.words("forbid", &[dpu.pid(), forth, WRITE]).unwrap();
        refused(dpu.say(to_host, b"late"), "was revoked");
        refused(host.hear(from_dpu, 0), "no process has written");
        host.shut(to_dpu).unwrap();
        refused(host.say(to_dpu, b"x"), "it was closed");
        host.call("die", &[]).unwrap_err();
        wait_until("the name is free", || dpu.make("to nodejs").is_ok());
    }
}

#[test]
fn nodejs_operations_wait_beside_one_another() {
    let package = package_in_nodejs().unwrap();
    let platform = PlatformProcess::start_with(|up| {
        up.args(["--node", "node"]);
    });
    let package = Allocation::new(package.path().to_str().unwrap()).memory_bytes(64 << 20);
    let process = GlobalProcess(platform.client_with(&package));
    let said: serde_json::Value = serde_json::from_slice(&process.call("wait", &[]).unwrap()).unwrap();
    let closed = "invalid_argument: it was closed";
    assert_eq!(said["outcomes"][0], closed);
    assert_eq!(said["outcomes"].as_array().unwrap().iter().filter(|outcome| **outcome == "done").count(), 8);
    assert!(
        said["late"].as_str().unwrap().starts_with("deadline_exceeded: no process has written"),
        "{said}"
    );
    assert!(
        said["full"].as_str().unwrap().starts_with("deadline_exceeded: no process has written"),
        "{said}"
    );
    assert_eq!(said["read"], serde_json::json!([1, true, 1, true, 9000, true]));
    assert_eq!((&said["iterated"], &said["closed"]), (&serde_json::json!(["last"]), &closed.into()));
    assert!(said["file"] == true && said["timers"] == true, "{said}");
    let wrong = "invalid_argument: a timeout of -1 milliseconds is no time to wait";
    assert_eq!(said["wrong"][0], wrong);
    assert!(said["wrong"][1].as_str().unwrap().starts_with("invalid_argument: there is no FIFO"), "{said}");
}

#[test]
fn nodejs_executes_functions_and_programs_on_another_unit() {
    let package = package_in_nodejs().unwrap();
    let cluster = computer(&["--node", "node"]);
    let host = interpreted_on(&cluster, "cpu", &package);
    let dpu = linked_unit(&host);
    let shouted =
        host.call("delegate", &[&(dpu as u32).to_le_bytes(), b"shout ab".as_slice()].concat()).unwrap();
    assert_eq!(String::from_utf8(shouted).unwrap(), format!("AB {dpu:x}"));
    refused(
        host.call("delegate", &[&(dpu as u32).to_le_bytes(), b"shout  ".as_slice()].concat()),
        "shout: nothing to shout",
    );
    let (news, fd) = host.make("news").unwrap();
    let input = |program: &str| {
        let words = format!("{program}\0news\0one\0");
        [&[dpu, news, WRITE].map(u64::to_le_bytes).concat(), words.as_bytes()].concat()
    };
    wait_until("the executor's core is free again", || match host.call("spawn", &input("nothing.js")) {
        Err(error) if error.message.contains("nothing.js") => true,
        Err(error) if error.message.contains("cores with") => false,
        spawned => panic!("{spawned:?}"),
    });
    let child = u64::from_le_bytes(host.call("spawn", &input("child.js")).unwrap().try_into().unwrap());
    let (from, said) = host.hear(fd, 20_000).unwrap();
    assert_eq!((from, from >> 32), (child, dpu));
    assert_eq!(String::from_utf8(said).unwrap(), format!("{child} [\"one\"] red COLOUR"));
}

#[test]
fn traffic_between_units_is_encrypted_if_either_requires_it() {
    let cluster = computer(&["--encrypt", "true"]);
    let (host, dpu) = (on(&cluster, "cpu"), on(&cluster, "dpu"));
    let (object, fd) = host.make("f").unwrap();
    allow(&host, [dpu.pid(), object, WRITE]);
    let to = join_while_it_reads(&dpu, "f", (&host, fd));
    exchange((&host, fd), (&dpu, to));
}

#[test]
fn a_restarted_unit_has_none_of_its_processes() {
    let mut cluster = computer(&[]);
    let (host, dpu) = (on(&cluster, "cpu"), on(&cluster, "dpu"));
    let (object, fd) = host.make("f").unwrap();
    let before = dpu.pid();
    allow(&host, [before, object, WRITE]);
    let to = dpu.join("f").unwrap();
    let (theirs, _) = dpu.make("g").unwrap();
    dpu.words("allow", &[host.pid(), theirs, WRITE]).unwrap();
    let to_dpu = host.join("g").unwrap();
    dpu.say(to, b"last words").unwrap();
    cluster.agents[1].kill();
    assert_eq!(host.hear(fd, 5000).unwrap(), (before, b"last words".to_vec()));
    wait_until("the FIFO of the dead unit has ended", || host.say(to_dpu, b"x").is_err());
    wait_until("the name is free", || host.make("g").is_ok());
    drop(dpu);
    cluster.agents[1].restart();
    let dpu = on(&cluster, "dpu");
    assert_ne!(dpu.pid(), before);
    allow(&host, [dpu.pid(), object, WRITE]);
    refused(host.words("allow", &[before, object, WRITE]), "there is no process");
    let to = dpu.join("f").unwrap();
    exchange((&host, fd), (&dpu, to));
    refused(dpu.make("g"), "is taken");
}

#[test]
fn a_python_program_is_a_copy_of_a_warm_interpreter() {
    let python = root().join("target/tools/python/bin/python3");
    let package = package_in_python().unwrap();
    let cluster = computer(&["--python", python.to_str().unwrap()]);
    let host = interpreted_on(&cluster, "cpu", &package);
    let (news, fd) = host.make("news").unwrap();
    let dpu = linked_unit(&host);
    let said = [(); 2].map(|()| {
        let input = [&[dpu, news, WRITE].map(u64::to_le_bytes).concat(), b"child.py\0news\0one\0".as_slice()]
            .concat();
        let child = u64::from_le_bytes(host.call("spawn", &input).unwrap().try_into().unwrap());
        let (from, said) = host.hear(fd, 20_000).unwrap();
        assert_eq!((from, from >> 32), (child, dpu));
        let said = String::from_utf8(said).unwrap();
        let own = format!("{:x}:{:x} ['one'] red ", child >> 32, child as u32);
        said.strip_prefix(&own).unwrap_or_else(|| panic!("{said}, where {own} was expected")).to_owned()
    });
    assert_eq!(said[0], said[1], "two copies of one interpreter");
}
