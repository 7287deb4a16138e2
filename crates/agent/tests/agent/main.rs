//! The agent as its clients and its manager see it.

#![allow(clippy::unwrap_used)]

mod common;
mod life;
mod managers;
mod network;
mod operator;
mod units;

use std::time::Duration;

use common::*;
use prost::Message;
use sublet_agent::Agent;
use sublet_fabric::packet::PacketSocket;
use sublet_proto::Code;
use sublet_proto::v1::client_to_agent::Body as ToAgent;
use sublet_proto::v1::*;

const SLEEPS: &str = "for (;;) pause();";

fn assert_dies(pid: u32) {
    let start = std::time::Instant::now();
    while is_alive(pid) {
        assert!(start.elapsed() < PATIENCE, "worker {pid} lives on");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_lease_frees_its_core_before_its_reported_end() {
    let node = NodeFixture::with_worker(SLEEPS);
    for id in ["a", "b"] {
        let client = node.attach(node.lease(id));
        let (started, _control) = client.start();
        assert!(is_alive(started.pid));
        assert!(started.requested_ns <= started.package_ready_ns);
        assert!(started.package_ready_ns <= started.spawned_ns);
        client.say(ToAgent::Release(Release {}));
        let ended = client.hear_end();
        assert_eq!((ended.code, ended.reason.as_str()), (0, "released by the client"));
        assert!(!is_alive(started.pid));
        let report = node.manager.last_report(id).unwrap();
        assert_eq!(report.state(), LeaseState::Ended, "the manager hears of it before the client does");
        assert_eq!(report.usage, ended.usage);
        assert!(ended.usage.unwrap().allocated_ns > 0);
        client.assert_closed();
    }
}

#[test]
fn starts_a_worker_with_set_up_and_unpacked_package() {
    // The set-up lies in the control socket; this worker leaves it there for the test to look at what is unpacked.
    let node = NodeFixture::with_worker(SLEEPS);
    let client = node.attach(node.lease("a"));
    client.start();
    let folder = node.folder.path().join("state/packages").join(&node.package);
    let info = PackageInfo::decode(std::fs::read(folder.join("manifest.pb")).unwrap().as_slice()).unwrap();
    assert_eq!((info.name.as_str(), info.functions[0].name.as_str()), ("libx", "f"));
    assert!(folder.join(&info.build(0).unwrap().library).is_file());
    // A second start finds the package without the manager.
    node.manager.book().packages.clear();
    client.say(ToAgent::Stop(Stop { reason: "again".into() }));
    assert_eq!(client.hear_exit().reason, "again");
    client.start();
}

#[test]
fn a_client_that_dies_loses_its_lease_and_its_worker() {
    let node = NodeFixture::with_worker(SLEEPS);
    let client = node.attach(node.lease("a"));
    let (started, _control) = client.start();
    assert_eq!(node.show(node.lease("b")).hear_failure().0, Code::NoCapacity);
    drop(client);
    assert_dies(started.pid);
    assert_eq!(node.manager.wait_ended("a").end_reason, "the client is gone");
    node.attach(node.lease("c"));
}

#[test]
fn reports_the_end_of_a_worker_and_starts_another() {
    let node = NodeFixture::with_worker("return 3;");
    let client = node.attach(node.lease("a"));
    for _ in 0..2 {
        client.start();
        let exited = client.hear_exit();
        assert_eq!(exited.code, Code::WorkerDied.number());
        assert_eq!(exited.reason, "worker exited with status 3 between calls; the lease's memory is 8 MiB");
    }
    client.say(ToAgent::Release(Release {}));
    assert_eq!(client.hear_end().code, 0);
}

#[test]
fn reports_the_signal_that_killed_a_worker() {
    let node = NodeFixture::with_worker("return raise(SIGSEGV);");
    let client = node.attach(node.lease("a"));
    client.start();
    assert!(client.hear_exit().reason.starts_with("worker killed by SIGSEGV between calls"));
}

#[test]
fn stops_a_worker_with_a_reason_and_ignores_needless_stops() {
    let node = NodeFixture::with_worker(SLEEPS);
    let client = node.attach(node.lease("a"));
    client.say(ToAgent::Stop(Stop { reason: "nothing runs".into() }));
    let (started, _control) = client.start();
    client.say(ToAgent::Start(Start {}));
    assert_eq!(client.hear_failure().0, Code::AlreadyAllocated);
    client.say(ToAgent::Stop(Stop { reason: "the deadline of a call passed".into() }));
    let exited = client.hear_exit();
    assert_eq!(
        (exited.code, exited.reason.as_str()),
        (Code::WorkerDied.number(), "the deadline of a call passed")
    );
    assert!(!is_alive(started.pid));
}

#[test]
fn a_ticket_attaches_once() {
    let node = NodeFixture::with_worker(SLEEPS);
    let client = node.attach(node.lease("a"));
    assert_eq!(node.show(node.lease("a")).hear_failure().0, Code::PermissionDenied);
    client.say(ToAgent::Attach(Attach {
        ticket: node.ticket(node.lease("b")),
        start: false,
        fabric: None,
        ..Attach::default()
    }));
    assert_eq!(client.hear_failure().0, Code::AlreadyAllocated);
    client.say(ToAgent::Release(Release {}));
    assert_eq!(client.hear_end().code, 0);
    let (code, message) = node.show(node.lease("a")).hear_failure();
    assert_eq!(
        (code, message.as_str()),
        (Code::PermissionDenied, "lease a was attached already, or has been ended")
    );
}

#[test]
fn what_the_node_cannot_take_up_is_refused() {
    let node = NodeFixture::with_worker(SLEEPS);
    let options = |slots, slot_bytes| Some(WorkerOptions { slots, slot_bytes, ..WorkerOptions::default() });
    let refused = [
        (Lease { node: "elsewhere".into(), ..node.lease("a") }, Code::PermissionDenied),
        (Lease { expires_unix_ms: 1, ..node.lease("b") }, Code::LeaseExpired),
        (Lease { cores: 2, ..node.lease("c") }, Code::InsufficientResources),
        (Lease { memory_bytes: 17 * MIB, ..node.lease("d") }, Code::InsufficientResources),
        (Lease { options: options(4, 4 * MIB), ..node.lease("e") }, Code::InsufficientResources),
        (Lease { options: options(0, 64), ..node.lease("f") }, Code::InvalidArgument),
        (Lease { cores: 0, ..node.lease("g") }, Code::InvalidArgument),
    ];
    for (lease, code) in refused {
        let client = node.show(lease.clone());
        assert_eq!(client.hear_failure().0, code, "{lease:?}");
        client.assert_closed();
    }
    node.attach(node.lease("h"));
}

#[test]
fn a_missing_package_fails_the_start_not_the_lease() {
    let node = NodeFixture::with_worker(SLEEPS);
    let package = format!("sha256:{}", "0".repeat(64));
    let client = node.attach(Lease { package, ..node.lease("a") });
    client.say(ToAgent::Start(Start {}));
    assert_eq!(client.hear_failure(), (Code::UnknownPackage, "no such package".to_owned()));
    client.say(ToAgent::Release(Release {}));
    assert_eq!(client.hear_end().code, 0);
}

#[test]
fn garbage_is_answered_and_the_connection_closed() {
    let node = NodeFixture::with_worker(SLEEPS);
    for bytes in [&b"\xff\xff\xff"[..], b"\x00", &[0x2a; 60_000]] {
        let stranger = Client(PacketSocket::connect(node.socket()).unwrap());
        stranger.0.send(bytes, &[]).unwrap();
        assert_eq!(stranger.hear_failure().0, Code::Protocol);
        stranger.assert_closed();
    }
    let early = Client(PacketSocket::connect(node.socket()).unwrap());
    early.say(ToAgent::Start(Start {}));
    assert_eq!(early.hear_failure().0, Code::Protocol);
    let client = node.attach(node.lease("a"));
    let (started, _control) = client.start();
    client.0.send(b"\xff\xff\xff", &[]).unwrap();
    assert_eq!(client.hear_failure().0, Code::Protocol);
    assert_eq!(client.hear_end().code, Code::Protocol.number());
    client.assert_closed();
    assert!(!is_alive(started.pid));
    node.attach(node.lease("b"));
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let node = NodeFixture::with_worker(SLEEPS);
    let client = node.attach(node.lease("a"));
    let (ours, theirs) = PacketSocket::pair().unwrap();
    let fd: std::os::fd::OwnedFd = theirs.into();
    let stop = ClientToAgent { body: Some(ToAgent::Stop(Stop::default())) }.encode_to_vec();
    client.0.send(&stop, &[std::os::fd::AsFd::as_fd(&fd)]).unwrap();
    drop(fd);
    assert!(ours.receive(Some(PATIENCE)).unwrap().is_none());
}

#[test]
fn a_connection_without_a_ticket_is_dropped() {
    let node = NodeFixture::with_worker(SLEEPS);
    let silent = Client(PacketSocket::connect(node.socket()).unwrap());
    let (code, message) = silent.hear_failure();
    assert!(code == Code::Protocol && message.contains("no ticket"), "{message}");
    silent.assert_closed();
}

#[test]
fn silent_connections_of_a_user_make_way_for_later_ones() {
    let node = NodeFixture::with_worker(SLEEPS);
    let connect = || Client(PacketSocket::connect(node.socket()).unwrap());
    let silent: Vec<Client> = (0..64).map(|_| connect()).collect();
    let ticket = node.ticket(node.lease("a"));
    let client = connect();
    client.say(ToAgent::Attach(Attach { ticket, start: false, fabric: None, ..Attach::default() }));
    assert!(matches!(client.hear(), (agent_to_client::Body::Attached(_), _)));
    silent[0].assert_closed();
    assert!(!silent[63].0.is_closed());
}

#[test]
fn a_stopping_agent_ends_its_leases_and_tells_everybody() {
    let mut node = NodeFixture::with_worker(SLEEPS);
    let client = node.attach(node.lease("a"));
    let silent = Client(PacketSocket::connect(node.socket()).unwrap());
    let (started, _control) = client.start();
    node.agent.take().unwrap().stop();
    assert_eq!(client.hear_ending().grace_ms, 0);
    assert_eq!(client.hear_end().code, Code::LeaseEnded.number());
    assert!(!is_alive(started.pid));
    silent.assert_closed();
    assert_eq!(node.manager.last_report("a").unwrap().state(), LeaseState::Ended);
    assert!(!node.socket().exists());
}

#[test]
fn usage_is_reported_while_a_lease_lasts_and_only_grows() {
    let node = NodeFixture::with_worker(SLEEPS);
    let _client = node.attach(node.lease("a"));
    node.manager.wait_for("the lease was reported thrice", |book| {
        book.reports.iter().flat_map(|report| &report.leases).count() >= 3
    });
    let book = node.manager.book();
    let usages: Vec<Usage> =
        book.reports.iter().flat_map(|report| &report.leases).filter_map(|report| report.usage).collect();
    assert!(usages.windows(2).all(|pair| pair[0].allocated_ns < pair[1].allocated_ns), "{usages:?}");
}

#[test]
fn an_agent_that_cannot_start_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let good = options(folder.path(), SLEEPS);
    let failure = |options| Agent::start(options).err().unwrap();
    let error = failure(sublet_agent::AgentOptions { worker: "/no/such/worker".into(), ..good.clone() });
    assert!(error.message.contains("/no/such/worker"), "{error}");
    let error = failure(sublet_agent::AgentOptions { cores: Some(100_000), ..good.clone() });
    assert_eq!(error.code, Code::InsufficientResources);
    let error = failure(sublet_agent::AgentOptions { numa_nodes: vec![1023], ..good.clone() });
    assert!(error.code == Code::InvalidArgument && error.message.contains("NUMA node 1023"), "{error}");
    let error = failure(good);
    assert_eq!(error.code, Code::ManagerUnreachable);
    assert!(!folder.path().join("agent.sock").exists());
}
