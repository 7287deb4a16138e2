//! The agent's port, with clients of another machine who know the protocol, and some who do not keep to it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use sublet_fabric::FabricError;
use sublet_fabric::exposed::{ExposedMemory, OWN, RemoteRegion};
use sublet_fabric::greeting::{self, ConnectionPurpose, DataLink};
use sublet_fabric::packet::PacketError;
use sublet_fabric::remote::RemoteSocket;
use sublet_fabric::tcp::{self, ByteStream};
use sublet_fabric::window::RegionAddress;
use sublet_proto::network::Fabric;
use sublet_proto::v1::agent_to_client::Body as FromAgent;
use sublet_proto::v1::client_to_agent::Body as ToAgent;
use sublet_proto::v1::*;
use sublet_proto::{Code, Error};
use sublet_runtime::invited::MAX_JOINED;

use crate::common::*;
use crate::{SLEEPS, assert_dies};

const LEASE: &str = "0123456789abcdef0123456789abcdef";
const OTHER_LEASE: &str = "fedcba9876543210fedcba9876543210";

/// A worker that answers nothing and takes nothing.
fn node() -> NodeFixture {
    node_with(SLEEPS, |_| {})
}

fn node_with(does: &str, prepare: impl FnOnce(&mut sublet_agent::NetworkOptions)) -> NodeFixture {
    NodeFixture::with(does, |options, _| {
        let mut network = sublet_agent::NetworkOptions::at(SocketAddr::from(([127, 0, 0, 1], 0)));
        prepare(&mut network);
        options.network = Some(network);
    })
}

/// The network as the node describes it to its manager.
fn described(node: &NodeFixture) -> NodeNetwork {
    let book = node.manager.book();
    book.registrations[0].node.as_ref().unwrap().network.clone().unwrap()
}

fn dial(node: &NodeFixture) -> TcpStream {
    let socket = TcpStream::connect(described(node).address).unwrap();
    greeting::prepare(&socket).unwrap();
    socket
}

/// A client's end of its control connection.
struct Remote(RemoteSocket);

impl Remote {
    fn connect(node: &NodeFixture) -> Remote {
        let socket = dial(node);
        greeting::greet(&socket, &ConnectionPurpose::Control, None).unwrap();
        Remote(RemoteSocket::connect(socket, &described(node).certificate).unwrap())
    }

    fn show(node: &NodeFixture, lease: Lease, fabric: Option<FabricChoice>) -> Remote {
        let client = Remote::connect(node);
        client.say(ToAgent::Attach(Attach {
            ticket: node.ticket(lease),
            start: false,
            fabric,
            ..Attach::default()
        }));
        client
    }

    /// A lease whose calls would travel over TCP.
    fn attach(node: &NodeFixture) -> (Remote, Attached) {
        let client = Remote::show(node, node.lease(LEASE), Some(Fabric::Tcp.choice(false)));
        let attached = client.hear_attached();
        (client, attached)
    }

    fn say(&self, body: ToAgent) {
        self.0.send(&ClientToAgent { body: Some(body) }.encode_to_vec()).unwrap();
    }

    /// The next message that is no sign of life.
    fn hear(&self) -> FromAgent {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let packet = self.0.receive(Some(left)).unwrap().expect("the agent has closed the connection");
            match AgentToClient::decode(packet.bytes.as_slice()).unwrap().body.unwrap() {
                FromAgent::Alive(_) => {}
                body => return body,
            }
        }
    }

    fn hear_attached(&self) -> Attached {
        match self.hear() {
            FromAgent::Attached(attached) => attached,
            other => panic!("{other:?} instead of the attachment"),
        }
    }

    fn hear_failure(&self) -> Error {
        match self.hear() {
            FromAgent::Failure(failure) => Error::new(Code::from_number(failure.code), failure.message),
            other => panic!("{other:?} instead of a failure"),
        }
    }

    fn start(&self) -> u32 {
        self.say(ToAgent::Start(Start {}));
        match self.hear() {
            FromAgent::Started(started) => started.pid,
            other => panic!("{other:?} instead of a start"),
        }
    }

    fn hear_exit(&self) -> WorkerExited {
        match self.hear() {
            FromAgent::WorkerExited(exited) => exited,
            other => panic!("{other:?} instead of the worker's exit"),
        }
    }

    fn assert_closed(&self) {
        loop {
            match self.0.receive(Some(PATIENCE)) {
                Ok(Some(_)) => {}
                Ok(None) | Err(PacketError::PeerGone) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn release(&self) {
        self.say(ToAgent::Release(Release {}));
        assert!(matches!(self.hear(), FromAgent::LeaseEnded(ended) if ended.code == 0));
    }
}

/// A worker's connection as its client makes it, with the agent's answer.
fn link(node: &NodeFixture, lease: &str, link: (u32, u64), secret: &[u8]) -> (TcpStream, Result<(), Error>) {
    let socket = dial(node);
    let lease = u128::from_str_radix(lease, 16).unwrap().to_be_bytes();
    let kind = ConnectionPurpose::Data(DataLink { lease, worker: link.0, counter: link.1 });
    let answer = greeting::greet(&socket, &kind, Some(&secret.try_into().unwrap()));
    (socket, answer)
}

/// The node still does what it is for.
fn assert_serves(node: &NodeFixture) {
    let lease = node.lease(OTHER_LEASE);
    Remote::show(node, lease, Some(Fabric::Tcp.choice(false))).hear_attached();
}

#[test]
fn the_node_says_where_it_is_reached_and_by_what() {
    let node = node_with(SLEEPS, |network| network.encrypt = true);
    let network = described(&node);
    assert_eq!(node.agent.as_ref().unwrap().address(), Some(network.address.as_str()));
    assert!(network.address.starts_with("127.0.0.1:") && network.encrypted, "{network:?}");
    assert_eq!(network.fabrics, ["tcp"]);
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(node.manager.book().registrations[0].node.as_ref().unwrap().host, boot_id.trim());
    let silent = NodeFixture::with_worker(SLEEPS);
    assert!(silent.agent.as_ref().unwrap().address().is_none());
    assert!(silent.manager.book().registrations[0].node.as_ref().unwrap().network.is_none());
}

#[test]
fn a_remote_lease_gets_secrets_and_ends_with_its_connection() {
    let node = node();
    let (client, attached) = Remote::attach(&node);
    assert!(attached.inbox_bytes > 0 && attached.ticks_per_ns > 0.0);
    assert_eq!((attached.link_secret.len(), attached.worker_certificate.len()), (32, 0));
    let worker = client.start();
    assert!(is_alive(worker));
    drop(client);
    assert_dies(worker);
    node.manager.wait_ended(LEASE);
    assert_serves(&node);
}

#[test]
fn both_sides_give_signs_of_life() {
    let node = node();
    let (client, _) = Remote::attach(&node);
    for _ in 0..3 {
        client.say(ToAgent::Alive(Alive {}));
        let packet = client.0.receive(Some(PATIENCE)).unwrap().unwrap();
        let said = AgentToClient::decode(packet.bytes.as_slice()).unwrap().body.unwrap();
        assert!(matches!(said, FromAgent::Alive(_)), "{said:?}");
    }
    client.release();
}

#[test]
fn refuses_an_unoffered_fabric_and_keeps_the_ticket_valid() {
    let node = node_with(SLEEPS, |network| network.encrypt = true);
    let verbs = Fabric::Ofi("verbs".into()).choice(false);
    for choice in [None, Some(verbs), Some(Fabric::Tcp.choice(false))] {
        let client = Remote::show(&node, node.lease(LEASE), choice.clone());
        let error = client.hear_failure();
        assert_eq!(error.code, Code::FabricUnavailable, "{choice:?}: {error}");
        client.assert_closed();
    }
    let local = node.connect();
    let fabric = Some(Fabric::Tcp.choice(true));
    local.say(ToAgent::Attach(Attach {
        ticket: node.ticket(node.lease(LEASE)),
        start: false,
        fabric,
        ..Attach::default()
    }));
    assert_eq!(local.hear_failure().0, Code::FabricUnavailable, "at the agent's socket");
    let client = Remote::show(&node, node.lease(LEASE), Some(Fabric::Tcp.choice(true)));
    assert!(!client.hear_attached().worker_certificate.is_empty());
}

#[test]
fn no_command_is_taken_over_the_network() {
    let node = node();
    let client = Remote::connect(&node);
    client.say(ToAgent::Command(Command { state: NodeState::Draining.into(), grace_ms: 0 }));
    assert_eq!(client.hear_failure().code, Code::PermissionDenied);
    client.assert_closed();
    assert_serves(&node);
}

#[test]
fn requires_a_fresh_proof_for_each_worker_connection() {
    let node = node();
    let (client, attached) = Remote::attach(&node);
    let secret = attached.link_secret.as_slice();
    let refused = |lease, at, secret: &[u8], code| {
        let error = link(&node, lease, at, secret).1.unwrap_err();
        assert_eq!(error.code, code, "{error}");
    };
    refused(LEASE, (0, 1), secret, Code::WorkerDied);
    client.start();
    refused(OTHER_LEASE, (0, 2), secret, Code::UnknownLease);
    refused(LEASE, (0, 2), &[7; 32], Code::PermissionDenied);
    refused(LEASE, (1, 2), secret, Code::InvalidArgument);
    refused(LEASE, (0, 1), secret, Code::PermissionDenied);
    let (_first, answer) = link(&node, LEASE, (0, 2), secret);
    answer.unwrap();
    refused(LEASE, (0, 2), secret, Code::PermissionDenied);
    // In the place of the first.
    link(&node, LEASE, (0, 3), secret).1.unwrap();
    client.release();
    refused(LEASE, (0, 4), secret, Code::UnknownLease);
}

#[test]
fn reports_the_end_of_a_silent_worker_and_starts_another() {
    let node = node_with("usleep(200000); return 0;", |_| {});
    let (client, _) = Remote::attach(&node);
    for _ in 0..2 {
        client.start();
        let question = ClientToWorker { body: Some(client_to_worker::Body::Connect(Connect::default())) };
        client.say(ToAgent::ToWorker(question.encode_to_vec()));
        let exited = client.hear_exit();
        assert_eq!(exited.code, Code::WorkerDied.number());
        assert!(exited.reason.contains("exited with status 0"), "{}", exited.reason);
    }
    // A message without a worker to receive it is dropped.
    client.say(ToAgent::ToWorker(b"?".to_vec()));
    client.release();
}

#[test]
fn a_flooding_client_loses_only_its_own_lease() {
    for body in [ToAgent::Alive(Alive {}), ToAgent::ToWorker(vec![0; 16])] {
        let node = node();
        let (client, _) = Remote::attach(&node);
        let worker = client.start();
        let message = ClientToAgent { body: Some(body) }.encode_to_vec();
        let start = Instant::now();
        while client.0.send(&message).is_ok() {
            assert!(start.elapsed() < PATIENCE, "the agent takes everything");
        }
        assert_dies(worker);
        node.manager.wait_ended(LEASE);
        assert_serves(&node);
    }
}

#[test]
fn refuses_invalid_connections_and_still_serves() {
    let node = node();
    for said in [&b"GET / HTTP/1.1\r\nHost: node\r\n\r\n"[..], b"\0\0\0\0", &[0xff; 4096], b""] {
        let mut socket = dial(&node);
        socket.write_all(said).unwrap();
        // The agent may have closed the connection before.
        let _ = socket.shutdown(std::net::Shutdown::Write);
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = Vec::new();
        // The connection may be reset, because not all bytes were read.
        let _ = socket.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?} to {said:?}");
    }
    // A client that greets and then does not speak TLS.
    let mut socket = dial(&node);
    greeting::greet(&socket, &ConnectionPurpose::Control, None).unwrap();
    socket.write_all(&[0x55; 2048]).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = socket.read_to_end(&mut Vec::new());
    // A client that does not trust the agent.
    let socket = dial(&node);
    greeting::greet(&socket, &ConnectionPurpose::Control, None).unwrap();
    let other = sublet_fabric::tls::Identity::generate("another").unwrap();
    assert!(RemoteSocket::connect(socket, &other.certificate).is_err());
    assert_serves(&node);
}

#[test]
fn silent_connections_give_way_and_end_with_the_agent() {
    let mut node = node();
    let address = described(&node).address;
    let silent: Vec<_> = (0..64).map(|_| TcpStream::connect(&address).unwrap()).collect();
    // The oldest one of the address makes way.
    let socket = dial(&node);
    greeting::greet(&socket, &ConnectionPurpose::Control, None).unwrap();
    let mut oldest = &silent[0];
    oldest.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(oldest.read(&mut [0; 1]).unwrap(), 0);
    // Another address has places of its own.
    let other = socket_from([127, 0, 0, 2], &address);
    greeting::greet(&other, &ConnectionPurpose::Control, None).unwrap();
    let agent = node.agent.take().unwrap();
    let start = Instant::now();
    agent.stop();
    assert!(start.elapsed() < PATIENCE);
    for mut socket in silent {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let ended = socket.read(&mut [0; 1]);
        assert!(
            matches!(ended, Ok(0))
                || ended.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock)
        );
    }
}

/// A connection from this address of the machine.
fn socket_from(from: [u8; 4], to: &str) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(fd.as_fd(), &SocketAddr::from((from, 0))).unwrap();
    connect(fd.as_fd(), &to.parse::<SocketAddr>().unwrap()).unwrap();
    TcpStream::from(fd)
}

#[test]
fn a_port_in_use_keeps_an_agent_from_starting() {
    let node = node();
    let address: SocketAddr = described(&node).address.parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let network = Some(sublet_agent::NetworkOptions::at(address));
    let options = sublet_agent::AgentOptions { network, ..options(folder.path(), SLEEPS) };
    let error = sublet_agent::Agent::start(options).err().unwrap();
    assert_eq!(error.code, Code::AlreadyRunning);
    assert!(error.message.contains(&address.port().to_string()), "{error}");
}

#[test]
fn a_lease_of_this_machine_is_as_before() {
    let node = node();
    let client = node.attach(node.lease(LEASE));
    let (started, _control) = client.start();
    client.say(ToAgent::ToWorker(vec![1]));
    assert_eq!(client.hear_failure().0, Code::Protocol);
    assert!(client.0.receive(Some(Duration::from_millis(600))).is_err(), "no signs of life within a machine");
    assert!(is_alive(started.pid));
}

/// A segment, whose client is on the node's own machine.
fn segment(node: &NodeFixture) -> Client {
    segment_of(node, LEASE, "")
}

fn segment_of(node: &NodeFixture, id: &str, tenant: &str) -> Client {
    let client = node.show(memory(node, id, tenant));
    client.hear_attached();
    client
}

fn memory(node: &NodeFixture, id: &str, tenant: &str) -> Lease {
    let (package, tenant) = (String::new(), tenant.into());
    Lease { package, tenant, cores: 0, memory_bytes: 1 << 20, ..node.lease(id) }
}

fn invite(client: &Client, invite: Invite) -> Invited {
    client.say(ToAgent::Invite(invite));
    match client.hear().0 {
        FromAgent::Invited(invited) => invited,
        other => panic!("{other:?} instead of an invitation"),
    }
}

/// Connection of an invited process to a segment.
fn connect_invited(node: &NodeFixture, invited: &Invited) -> tcp::TcpEndpoint {
    let (socket, answer) = link(node, LEASE, (invited.guest, 1), &invited.secret);
    answer.unwrap();
    let end = tcp::TcpEndpoint::new(Arc::new(ExposedMemory::lending(4)), None);
    end.connect(ByteStream::plain(socket).unwrap()).unwrap();
    reach(&end, OWN, invited.memory);
    end
}

fn reach(end: &tcp::TcpEndpoint, region: u32, key: Option<RegionKey>) {
    let RegionKey { key, base, .. } = key.unwrap();
    end.reach(region, RemoteRegion { key, base, len_bytes: 1 << 20 }).unwrap();
}

#[test]
fn an_invitation_admits_once_with_the_stated_rights() {
    let node = node();
    let client = segment(&node);
    let (reader, writer) =
        (invite(&client, Invite::default()), invite(&client, Invite { writable: true, ..Invite::default() }));
    assert_ne!((reader.guest, &reader.secret), (writer.guest, &writer.secret));
    assert_ne!(reader.memory, writer.memory, "who may read has a key of its own");
    let refused = |guest: u32, secret: &[u8], code| {
        let error = link(&node, LEASE, (guest, 1), secret).1.unwrap_err();
        assert_eq!(error.code, code, "{error}");
    };
    refused(reader.guest, &writer.secret, Code::PermissionDenied);
    refused(99, &reader.secret, Code::PermissionDenied);
    refused(0, &reader.secret, Code::PermissionDenied);
    let (reads, writes) = (connect_invited(&node, &reader), connect_invited(&node, &writer));
    refused(reader.guest, &reader.secret, Code::PermissionDenied);
    let at = |offset| RegionAddress { region: OWN, offset };
    let mut bytes = [0; 5];
    writes.put(at(4096), b"bytes").unwrap();
    writes.get(at(4096), &mut [0; 1]).unwrap();
    reads.get(at(4096), &mut bytes).unwrap();
    assert_eq!(&bytes, b"bytes");
    // Who writes where it may not is cut off, and nothing is written.
    reads.put(at(4096), b"other").unwrap();
    assert!(reads.get(at(4096), &mut bytes).is_err());
    writes.get(at(4096), &mut bytes).unwrap();
    assert_eq!(&bytes, b"bytes");
    let late = invite(&client, Invite::default());
    client.say(ToAgent::Release(Release {}));
    assert!(matches!(client.hear().0, FromAgent::LeaseEnded(ended) if ended.code == 0));
    assert!(writes.get(at(0), &mut bytes).is_err());
    refused(late.guest, &late.secret, Code::UnknownLease);
}

#[test]
fn further_segments_join_a_connection_and_end_one_by_one() {
    let node = node();
    let (one, two) = (segment(&node), segment_of(&node, OTHER_LEASE, ""));
    let writer = Invite { writable: true, ..Invite::default() };
    let invited = invite(&one, writer.clone());
    let joins = Some(Joins { segment: LEASE.into(), guest: invited.guest });
    // As well before the connection is there as afterwards.
    let joined = invite(&two, Invite { joins: joins.clone(), ..writer.clone() });
    assert!(joined.joined && joined.secret.is_empty() && !invited.joined);
    let end = connect_invited(&node, &invited);
    reach(&end, 1, joined.memory);
    let reader = invite(&two, Invite { joins: joins.clone(), ..Invite::default() });
    reach(&end, 2, reader.memory);
    let at = |region| RegionAddress { region, offset: 4096 };
    let read = |region| {
        let mut bytes = [0; 3];
        end.get(at(region), &mut bytes).map(|()| bytes)
    };
    end.put(at(0), b"one").unwrap();
    end.put(at(1), b"two").unwrap();
    assert_eq!([0, 1, 2].map(|region| read(region).unwrap()), [*b"one", *b"two", *b"two"]);
    // A segment of another tenant does not, nor what is to be encrypted, nor to what is not there.
    let other = segment_of(&node, "00000000000000000000000000000003", "another");
    let nobody = Some(Joins { guest: 99, ..joins.clone().unwrap() });
    for (client, asked) in [
        (&other, Invite { joins: joins.clone(), ..writer.clone() }),
        (&two, Invite { joins: joins.clone(), encrypted: true, ..writer.clone() }),
        (&two, Invite { joins: nobody, ..writer.clone() }),
    ] {
        let refused = invite(client, asked);
        assert!(!refused.joined && refused.secret.len() == 32);
    }
    one.say(ToAgent::Release(Release {}));
    assert!(matches!(one.hear().0, FromAgent::LeaseEnded(_)));
    assert!(matches!(read(0), Err(FabricError::KeyExpired { region: 0 })), "{:?}", read(0));
    assert_eq!(read(1).unwrap(), *b"two");
    two.say(ToAgent::Release(Release {}));
    assert!(matches!(two.hear().0, FromAgent::LeaseEnded(_)));
    assert!(matches!(read(1), Err(FabricError::Disconnected { .. })), "with the last segment: {:?}", read(1));
}

#[test]
fn bounds_the_segments_on_a_connection() {
    let node = node();
    let (one, two) = (segment(&node), segment_of(&node, OTHER_LEASE, ""));
    let invited = invite(&one, Invite::default());
    let joins = Some(Joins { segment: LEASE.into(), guest: invited.guest });
    let joined = (0..MAX_JOINED).map(|_| invite(&two, Invite { joins: joins.clone(), ..Invite::default() }));
    let joined: Vec<bool> = joined.map(|invited| invited.joined).collect();
    assert!(joined[..joined.len() - 1].iter().all(|joined| *joined) && !joined[joined.len() - 1]);
}

#[test]
fn a_remote_client_shares_one_connection_between_its_segments() {
    let node = node();
    let attach = |id: &str, tenant: &str, joins: &str| {
        let ticket = node.ticket(memory(&node, id, tenant));
        let client = Remote::connect(&node);
        let (fabric, joins) = (Some(Fabric::Tcp.choice(false)), joins.into());
        client.say(ToAgent::Attach(Attach { ticket, fabric, joins, ..Attach::default() }));
        let attached = client.hear_attached();
        (client, attached)
    };
    let (_one, first) = attach(LEASE, "", "");
    let (_two, second) = attach(OTHER_LEASE, "", LEASE);
    assert!(!first.joined && second.joined);
    let (socket, answer) = link(&node, LEASE, (0, 1), &first.link_secret);
    answer.unwrap();
    let end = tcp::TcpEndpoint::new(Arc::new(ExposedMemory::lending(2)), None);
    end.connect(ByteStream::plain(socket).unwrap()).unwrap();
    reach(&end, 0, first.memory);
    reach(&end, 1, second.memory);
    end.put(RegionAddress { region: 1, offset: 0 }, b"two").unwrap();
    end.get(RegionAddress { region: 1, offset: 0 }, &mut [0; 3]).unwrap();
    // It has no other connection, and no client joins that of another tenant.
    let (_third, third) = attach("00000000000000000000000000000003", "", OTHER_LEASE);
    assert!(third.joined, "it is known by each of its segments");
    let (socket, answer) = link(&node, OTHER_LEASE, (0, 1), &second.link_secret);
    assert!(answer.is_err() || ByteStream::plain(socket).is_err(), "it is reached by the one that it joined");
    let (_other, other) = attach("00000000000000000000000000000004", "another", LEASE);
    assert!(!other.joined);
}

#[test]
fn refuses_invitations_to_workers_and_without_a_network() {
    let node = node();
    let (workers, _) = Remote::attach(&node);
    workers.say(ToAgent::Invite(Invite::default()));
    assert_eq!(workers.hear_failure().code, Code::InvalidArgument);
    workers.release();
    let silent = NodeFixture::with_worker(SLEEPS);
    let client = segment(&silent);
    client.say(ToAgent::Invite(Invite::default()));
    assert_eq!(client.hear_failure().0, Code::FabricUnavailable);
}

#[test]
fn encrypts_invited_connections_where_the_node_requires_it() {
    let node = node_with(SLEEPS, |network| network.encrypt = true);
    let client = segment(&node);
    assert!(!invite(&client, Invite::default()).certificate.is_empty());
    let open = node_with(SLEEPS, |_| {});
    let client = segment(&open);
    assert!(invite(&client, Invite::default()).certificate.is_empty());
    assert!(!invite(&client, Invite { encrypted: true, ..Invite::default() }).certificate.is_empty());
}

#[test]
fn drops_unrequested_answers_about_memory() {
    let node = node();
    let (client, _) = Remote::attach(&node);
    // No process runs that could have asked, and then none that executes a component.
    client.say(ToAgent::Memory(RunMessage { run: 1, message: b"\xff".to_vec() }));
    client.start();
    client.say(ToAgent::Memory(RunMessage { run: 1, message: b"\xff".to_vec() }));
    client.release();
}
