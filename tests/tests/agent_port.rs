//! The agent's port, as real programs have it: calls over TCP within one machine, and unauthenticated peers that send
//! anything else. Further attempts of clients that know the protocol are tested beside the agent.

#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Instant;

use prost::Message;
use rustix::process::Signal;
use sublet::{Allocation, Code, Error, FabricChoice, Invoker};
use sublet_fabric::greeting::{
    self, ANSWER_BYTES, ConnectionPurpose, DataLink, GreetingAnswer, HELLO_BYTES, Secret, VERSION,
};
use sublet_fabric::packet::PacketError;
use sublet_fabric::remote::RemoteSocket;
use sublet_fabric::tcp::frame::Frame;
use sublet_proto::network::Fabric;
use sublet_proto::v1::agent_to_client::Body as Heard;
use sublet_proto::v1::client_to_agent::Body as Said;
use sublet_proto::v1::*;
use sublet_runtime::wire::ResultsLayout;
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores};
use sublet_tests::functions::package;
use sublet_tests::hand;
use sublet_tests::platform::{PlatformProcess, assert_echoes, kill, sublet};
use sublet_tests::process::{PATIENCE, PATIENCE_MS, is_alive, wait_until};

const ANY_PORT: &str = "127.0.0.1:0";
const MIB: usize = 1 << 20;

fn platform(more: &[&str]) -> PlatformProcess {
    PlatformProcess::start_with(|up| {
        up.args(["--listen", ANY_PORT, "--fabrics", "tcp"]).args(more);
    })
}

fn address(platform: &PlatformProcess) -> String {
    platform.said["node"]["network"]["address"].as_str().unwrap().to_owned()
}

/// Certificate of the node, as the manager reports it to clients.
fn certificate(platform: &PlatformProcess) -> Vec<u8> {
    let node = platform.invoker().manager().nodes().unwrap().remove(0);
    node.description.unwrap().network.unwrap().certificate
}

fn over_tcp(encrypted: bool) -> Allocation {
    Allocation::new(package("calls.c")).fabric(FabricChoice::Tcp { encrypted })
}

fn echo_in_place(client: &Invoker, len: usize) {
    let (mut input, mut output) = (client.buffer::<u8>(len).unwrap(), client.buffer::<u8>(len).unwrap());
    for round in 0..3 {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + round) as u8).collect();
        input.copy_from_slice(&bytes);
        let done = client.submit("echo", &input, &mut output).unwrap().wait().unwrap();
        assert_eq!(done.output_bytes, len);
        assert!(output.to_vec() == bytes, "{len} bytes came back as others");
    }
}

#[test]
fn calls_of_all_sizes_work_over_tcp_as_arenas_grow() {
    let platform = platform(&[]);
    for encrypted in [false, true] {
        let client = platform.client_with(&over_tcp(encrypted).memory_bytes(256 << 20));
        assert_echoes(&client);
        for len in [1, 64, 4095, 65_537, MIB, 9 * MIB] {
            echo_in_place(&client, len);
        }
        assert_echoes(&client);
    }
}

#[test]
fn a_dead_worker_is_replaced_and_reported_with_the_cause() {
    let platform = platform(&[]);
    let client = platform.client_with(&over_tcp(false));
    assert_echoes(&client);
    let worker = platform.worker();
    kill(worker, Signal::KILL);
    wait_until("the worker is dead", || !is_alive(worker));
    let mut output = [0u8; 5];
    wait_until("calls are answered again", || {
        client.submit("echo", b"hello", &mut output).and_then(sublet::Invocation::wait).is_ok()
    });
    assert_ne!(platform.worker(), worker);
    echo_in_place(&client, MIB);
}

#[test]
fn buffers_beyond_the_leases_memory_are_refused_with_both_sizes() {
    let platform = platform(&[]);
    let client = platform.client_with(&over_tcp(false).memory_bytes(32 << 20));
    let error = client.buffer::<u8>(64 * MIB).err().unwrap();
    assert_eq!(error.code, Code::InsufficientResources, "{error}");
    assert!(error.message.contains(&(64 * MIB).to_string()), "{error}");
    assert_echoes(&client);
    echo_in_place(&client, MIB);
}

#[test]
fn a_node_that_requires_encryption_gets_only_encrypted_calls() {
    let platform = platform(&["--encrypt"]);
    let nodes = platform.json(&["ps", "--nodes"]);
    let network = &nodes["nodes"][0]["network"];
    assert_eq!((network["encrypted"].as_bool(), network["fabrics"][0].as_str()), (Some(true), Some("tcp")));
    assert_eq!(network["address"].as_str(), Some(address(&platform).as_str()));
    assert!(nodes.get("leases").is_none(), "{nodes}");
    let table = platform.run(&["ps", "--nodes"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains(&address(&platform)) && table.contains("encrypted"), "{table}");
    let client = platform.client_with(&over_tcp(false));
    assert_eq!(client.fabrics()[0].to_string(), "tcp+tls");
    assert_echoes(&client);
}

/// A lease that the test holds message by message, with its worker started and linked.
struct ByHand {
    agent: hand::ByHand,
    worker: TcpStream,
    address: String,
    lease: [u8; 16],
    secret: Secret,
}

impl ByHand {
    fn start(platform: &PlatformProcess) -> ByHand {
        let grant = granted(platform);
        let agent = show(&grant, Some(Fabric::Tcp.choice(false)));
        let Heard::Attached(attached) = hear(&agent) else { panic!("no attachment") };
        assert!(matches!(hear(&agent), Heard::Started(_)));
        let lease = u128::from_str_radix(&grant.lease.unwrap().id, 16).unwrap().to_be_bytes();
        let (address, secret) = (grant.network.unwrap().address, attached.link_secret.try_into().unwrap());
        let worker = link(&address, lease, 1, &secret).unwrap();
        ByHand { agent, worker, address, lease, secret }
    }

    /// Has the agent start a worker process after the one before has ended, and links it.
    fn start_again(&mut self, counter: u64) {
        self.agent.say(Said::Start(Start {}));
        assert!(matches!(hear(&self.agent), Heard::Started(_)));
        self.worker = link(&self.address, self.lease, counter, &self.secret).unwrap();
    }

    fn ask(&self, body: client_to_worker::Body) -> worker_to_client::Body {
        self.agent.say(Said::ToWorker(ClientToWorker { body: Some(body) }.encode_to_vec()));
        match hear(&self.agent) {
            Heard::FromWorker(said) => WorkerToClient::decode(said.as_slice()).unwrap().body.unwrap(),
            other => panic!("{other:?} instead of the worker's answer"),
        }
    }

    fn connect(&self) -> Ready {
        let connect = Connect {
            results_bytes: ResultsLayout::new(1).len_bytes(),
            start_positions: vec![0],
            results: Some(RegionKey { key: 1 << 20, base: 0, stored: false }),
            ..Connect::default()
        };
        match self.ask(client_to_worker::Body::Connect(connect)) {
            worker_to_client::Body::Ready(ready) => ready,
            other => panic!("{other:?} instead of readiness"),
        }
    }

    fn exit(&self) -> WorkerExited {
        match hear(&self.agent) {
            Heard::WorkerExited(exited) => exited,
            other => panic!("{other:?} instead of the worker's end"),
        }
    }
}

/// A lease of the functions, to which no client has attached.
fn granted(platform: &PlatformProcess) -> LeaseGrant {
    let client = platform.client("calls.c");
    let digest = client.package().unwrap().digest.clone();
    drop(client);
    let request = LeaseRequest {
        package: digest,
        cores: 1,
        wait_ms: u64::from(PATIENCE_MS),
        ..LeaseRequest::default()
    };
    platform.invoker().manager().request_lease(request).unwrap().grants.remove(0)
}

/// Shows a grant's ticket at the agent's port.
fn show(grant: &LeaseGrant, fabric: Option<sublet_proto::v1::FabricChoice>) -> hand::ByHand {
    let agent = hand::ByHand::from_afar(grant);
    agent.say(Said::Attach(Attach {
        ticket: grant.ticket.clone(),
        start: true,
        fabric,
        ..Attach::default()
    }));
    agent
}

/// The connection of a lease's first worker, as its client makes it.
fn link(address: &str, lease: [u8; 16], counter: u64, secret: &Secret) -> Result<TcpStream, Error> {
    let socket = TcpStream::connect(address).unwrap();
    let kind = ConnectionPurpose::Data(DataLink { lease, worker: 0, counter });
    greeting::greet(&socket, &kind, Some(secret)).map(|()| socket)
}

/// Next message of the agent that is not a sign of life.
fn heard(agent: &hand::ByHand) -> Result<Heard, Error> {
    let since = Instant::now();
    loop {
        match agent.hear()? {
            Heard::Alive(_) => {
                assert!(since.elapsed() < PATIENCE, "the agent says that it is alive and no more")
            }
            body => return Ok(body),
        }
    }
}

fn hear(agent: &hand::ByHand) -> Heard {
    heard(agent).unwrap()
}

#[test]
fn a_lease_starts_another_worker_when_a_connection_ends() {
    let platform = platform(&[]);
    let client = ByHand::start(&platform);
    assert!(client.connect().inbox.is_some_and(|inbox| inbox.key != 0));
    client.worker.shutdown(std::net::Shutdown::Both).unwrap();
    let exited = client.exit();
    assert_eq!(exited.code, Code::WorkerDied.number(), "{}", exited.reason);
    assert!(exited.reason.starts_with("the connection to its client was lost: "), "{}", exited.reason);
    client.agent.say(Said::Start(Start {}));
    assert!(matches!(hear(&client.agent), Heard::Started(_)));
    // Nothing was linked to this one.
    let connect = Connect {
        results_bytes: ResultsLayout::new(1).len_bytes(),
        start_positions: vec![0],
        results: Some(RegionKey { key: 1 << 20, base: 0, stored: false }),
        ..Connect::default()
    };
    let said = client.ask(client_to_worker::Body::Connect(connect));
    let worker_to_client::Body::Failure(failure) = said else { panic!("{said:?} without a connection") };
    assert_eq!(failure.code, Code::FabricUnavailable.number(), "{}", failure.message);
    assert!(failure.message.contains("worker 0"), "{}", failure.message);
}

#[test]
fn invalid_frames_end_only_the_clients_own_worker() {
    let platform = platform(&[]);
    let client = ByHand::start(&platform);
    client.connect();
    (&client.worker).write_all(&[0xa5; 4096]).unwrap();
    let exited = client.exit();
    assert!(exited.reason.starts_with("the connection to its client was lost: "), "{}", exited.reason);
    drop(client);
    platform.assert_serves();
}

#[test]
fn unknown_and_old_keys_cut_the_connection() {
    let platform = platform(&[]);
    let mut client = ByHand::start(&platform);
    let before = client.connect().inbox.unwrap().key;
    let cut_by = |client: &ByHand, key| {
        let put = Frame::Put { key, offset: 0, len_bytes: 8 };
        (&client.worker).write_all(&[&put.encode()[..], &[0; 8]].concat()).unwrap();
        let exited = client.exit();
        assert!(exited.reason.contains("the key is of no region"), "{}", exited.reason);
    };
    cut_by(&client, before ^ 1 << 40);
    client.start_again(2);
    assert_ne!(client.connect().inbox.unwrap().key, before);
    cut_by(&client, before);
    drop(client);
    platform.assert_serves();
}

#[test]
fn a_workers_connection_requires_its_clients_proof_each_time() {
    let platform = platform(&[]);
    let client = ByHand::start(&platform);
    let (address, lease, secret) = (client.address.as_str(), client.lease, &client.secret);
    assert_fails(link(address, lease, 2, &[7; 32]), Code::PermissionDenied, &["prove"]);
    assert_fails(link(address, lease, 1, secret), Code::PermissionDenied, &["counter 1", "before"]);
    assert_fails(link(address, [7; 16], 2, secret), Code::UnknownLease, &["0707"]);
    client.connect();
}

#[test]
fn requests_for_what_a_node_does_not_offer_are_refused() {
    let platform = platform(&["--encrypt"]);
    let grant = granted(&platform);
    let verbs = Fabric::Ofi("verbs".into()).choice(false);
    for (fabric, named) in [(Fabric::Tcp.choice(false), "encrypted"), (verbs, "ofi:verbs")] {
        assert_fails(heard(&show(&grant, Some(fabric))), Code::FabricUnavailable, &[named]);
    }
    assert!(matches!(hear(&show(&grant, Some(Fabric::Tcp.choice(true)))), Heard::Attached(_)));
}

#[test]
fn an_agent_of_another_version_is_recognized() {
    let newer = TcpListener::bind(ANY_PORT).unwrap();
    let address = newer.local_addr().unwrap().to_string();
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent_with(LentCores::cores(1), &["--advertise", &address]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = newer.accept().unwrap().0;
            client.read_exact(&mut [0; HELLO_BYTES]).unwrap();
            let mut answer = GreetingAnswer { refusal: None }.encode();
            answer[8..12].copy_from_slice(&(VERSION + 1).to_le_bytes());
            client.write_all(&answer).unwrap();
        });
        let versions = [VERSION, VERSION + 1].map(|version| format!("version {version}"));
        let refused = cluster.invoker().allocate(&over_tcp(false));
        assert_fails(refused, Code::VersionMismatch, &[&address, &versions[0], &versions[1]]);
    });
    cluster.assert_serves();
}

#[test]
fn copies_have_one_bound_together_and_regions_their_keys() {
    let platform = platform(&[]);
    let client = ByHand::start(&platform);
    let map = |region, len_bytes| {
        let key = Some(RegionKey { key: 1 << 20 | u64::from(region), base: 0, stored: false });
        let map = MapRegion { region, len_bytes, key, ..MapRegion::default() };
        client.ask(client_to_worker::Body::MapRegion(map))
    };
    let worker_to_client::Body::RegionMapped(one) = map(1, MIB as u64) else { panic!("region 1 fits") };
    let worker_to_client::Body::RegionMapped(two) = map(7, MIB as u64) else { panic!("region 7 fits") };
    assert_eq!((one.region, two.region), (1, 7));
    assert!(one.key.unwrap().key != two.key.unwrap().key && one.keys.is_empty());
    for too_large in [u64::MAX, 1 << 40] {
        let said = map(2, too_large);
        let worker_to_client::Body::Failure(failure) = said else { panic!("{said:?}") };
        assert_eq!(failure.code, Code::InsufficientResources.number(), "{}", failure.message);
        assert!(failure.message.contains(&too_large.to_string()), "{}", failure.message);
        assert!(failure.message.contains(&(2 * MIB).to_string()), "{}", failure.message);
    }
    client.connect();
    assert!(matches!(map(2, 4096), worker_to_client::Body::RegionMapped(_)));
}

#[test]
fn invalid_peers_are_refused_and_clients_are_served_beside_them() {
    let platform = platform(&[]);
    let address = address(&platform);
    let dial = || {
        let socket = TcpStream::connect(&address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    };
    let mut browser = dial();
    browser.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = browser.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{answer:?}");
    // A peer of another version; its greeting may be longer than ours.
    let mut newer = dial();
    let mut hello = [0u8; 2 * HELLO_BYTES];
    hello[..8].copy_from_slice(b"\x89Sublet\n");
    hello[8..12].copy_from_slice(&(VERSION + 1).to_le_bytes());
    newer.write_all(&hello).unwrap();
    let mut answer = [0; ANSWER_BYTES];
    newer.read_exact(&mut answer).unwrap();
    let refusal = GreetingAnswer::decode(&answer).unwrap().refusal.unwrap();
    assert_eq!(refusal.code, Code::VersionMismatch);
    for version in [VERSION, VERSION + 1] {
        assert!(refusal.message.contains(&version.to_string()), "{refusal}");
    }
    // As many silent connections as one address may have, and one more.
    let silent: Vec<_> = (0..64).map(|_| dial()).collect();
    greeting::greet(&dial(), &ConnectionPurpose::Control, None).unwrap();
    // Connections from another address are accepted, also those that stop after the greeting.
    let elsewhere = || {
        let socket = greeting::dial(&address, Some("127.0.0.2"), Instant::now() + PATIENCE).unwrap();
        greeting::greet(&socket, &ConnectionPurpose::Control, None).unwrap();
        socket
    };
    let without_tls = elsewhere();
    let without_ticket = RemoteSocket::connect(elsewhere(), &certificate(&platform)).unwrap();
    platform.assert_serves();
    without_tls.set_read_timeout(Some(PATIENCE)).unwrap();
    silent.into_iter().chain([without_tls]).for_each(assert_cut_off);
    loop {
        match without_ticket.receive(Some(PATIENCE)) {
            Ok(Some(_)) => {}
            Ok(None) | Err(PacketError::PeerGone) => break,
            Err(error) => panic!("who shows no ticket is let be: {error}"),
        }
    }
    let client = wait_for_client(&platform);
    assert_echoes(&client);
}

/// Checks that the agent has closed the connection of a peer that sends nothing.
fn assert_cut_off(mut socket: TcpStream) {
    let waits = |error: std::io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
    assert!(!socket.read(&mut [0; 1]).is_err_and(waits), "who says nothing is let be");
}

/// Connects a client over TCP, as soon as the agent has a free connection for it.
fn wait_for_client(platform: &PlatformProcess) -> Invoker {
    let mut client = platform.invoker();
    wait_until("a client over TCP is let in", || client.allocate(&over_tcp(false)).is_ok());
    client
}

#[test]
fn an_agent_that_cannot_listen_names_the_reason() {
    let taken = TcpListener::bind(ANY_PORT).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let refuses = |listen: &str, more: &[&str], code: Code, named: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let mut up: Command = sublet();
        up.args(["up", "--json", "--listen", listen, "--state"]).arg(folder.path()).args(more);
        let output = up.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), i32::try_from(code.number()).ok(), "{listen}: {said}");
        assert!(named.iter().all(|name| said.contains(name)), "{listen}: {said}");
    };
    refuses(&format!("127.0.0.1:{port}"), &[], Code::AlreadyRunning, &[&port, "127.0.0.1", "in use"]);
    refuses("192.0.2.1:7441", &[], Code::InvalidArgument, &["192.0.2.1", "no interface"]);
    let smoke = ["--fabrics", "ofi:smoke_signals"];
    refuses(ANY_PORT, &smoke, Code::FabricUnavailable, &["ofi:smoke_signals"]);
}
