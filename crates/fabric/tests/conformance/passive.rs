//! A side that runs no thread of its own: one thread serves all its endpoints.

use std::io::{IoSlice, Read, Write};
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sublet_fabric::exposed::{OWN, RemoteRegion};
use sublet_fabric::progress::ProgressThread;
use sublet_fabric::tcp::frame::Frame;
use sublet_fabric::tcp::{self, ByteStream};
use sublet_fabric::tls::{Identity, TlsStream};
use sublet_fabric::{Endpoint, ofi};

use crate::libfabric;
use crate::pairs::{LEN, PairSide, PairTransport, for_each, own_at, sockets, streams};

/// Transports over which the target's progress takes part in the peers' operations on its memory.
const SERVED: &[PairTransport] = &[PairTransport::Tcp, PairTransport::Tls, PairTransport::Ofi];
const CLIENTS: usize = 4;

/// A memory component: one region, one thread, and an endpoint for each client.
struct Component {
    pair_transport: PairTransport,
    node: PairSide,
    progress: ProgressThread,
}

impl Component {
    fn new(pair_transport: PairTransport) -> Component {
        Component { pair_transport, node: PairSide::new(LEN), progress: ProgressThread::start().unwrap() }
    }

    fn client(&self) -> Endpoint {
        let (client, remote) = self.client_without_memory();
        reach(&client, remote);
        client
    }

    fn client_with_wrong_key(&self) -> Endpoint {
        let (client, remote) = self.client_without_memory();
        reach(&client, RemoteRegion { key: remote.key ^ 1 << 20, ..remote });
        client
    }

    /// Makes a client without access to the component's memory. Also returns how to access that memory.
    fn client_without_memory(&self) -> (Endpoint, RemoteRegion) {
        let node = PairSide::new(4096);
        if self.pair_transport == PairTransport::Ofi {
            let client = ofi::OfiEndpoint::new(node.exposed.clone(), None);
            let theirs = Arc::new(ofi::OfiEndpoint::new(self.node.exposed.clone(), None));
            let answer = libfabric::open(&client, &theirs);
            self.progress.serve(theirs.clone()).unwrap();
            client.connect(&answer).unwrap();
            return (Endpoint::Ofi(client), theirs.expose(OWN).unwrap());
        }
        let (ours, theirs) = streams(self.pair_transport);
        let client = node.end(None);
        client.connect(ours).unwrap();
        (Endpoint::Tcp(client), self.serve(theirs).expose(OWN).unwrap())
    }

    /// A client that consists only of its connection.
    fn bare_client(&self) -> (BareClient, RemoteRegion) {
        let (left, right) = sockets();
        if self.pair_transport == PairTransport::Tcp {
            let theirs = self.serve(ByteStream::plain(right).unwrap());
            return (BareClient::Plain(left), theirs.expose(OWN).unwrap());
        }
        let identity = Identity::generate("conformance").unwrap();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| ByteStream::encrypted_server(right, &identity).unwrap());
            let client = TlsStream::client(left, &identity.certificate).unwrap();
            let theirs = self.serve(server.join().unwrap());
            (BareClient::Encrypted(Box::new(client)), theirs.expose(OWN).unwrap())
        })
    }

    fn serve(&self, stream: ByteStream) -> Arc<tcp::TcpEndpoint> {
        let end = Arc::new(self.node.end(None));
        end.connect(stream).unwrap();
        self.progress.serve(end.clone()).unwrap();
        end
    }

    fn wait_until_serving(&self, count: usize) {
        while self.progress.serving() != count {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

enum BareClient {
    Plain(TcpStream),
    Encrypted(Box<TlsStream>),
}

impl BareClient {
    /// Sends a frame. It must fit into the socket's buffer.
    fn send(&mut self, frame: Frame) {
        let bytes = frame.encode();
        match self {
            BareClient::Plain(socket) => socket.write_all(&bytes).unwrap(),
            BareClient::Encrypted(stream) => {
                assert_eq!(stream.send(&[IoSlice::new(&bytes)]).unwrap(), bytes.len());
                stream.flush().unwrap();
            }
        }
    }
}

fn reach(client: &Endpoint, remote: RemoteRegion) {
    match client {
        Endpoint::Tcp(end) => end.reach(OWN, remote).unwrap(),
        Endpoint::Ofi(end) => end.reach(OWN, remote).unwrap(),
        _ => panic!("a network's end"),
    }
}

fn use_memory(client: &Endpoint, number: usize) {
    let area = 4096 + number as u64 * 65_536;
    for round in 0..40 {
        let bytes = vec![(round * 7 + number) as u8; 1 + round * 1500];
        client.put(own_at(area), &bytes).unwrap();
        let mut back = vec![0; bytes.len()];
        client.get(own_at(area), &mut back).unwrap();
        assert!(back == bytes, "client {number}, round {round}");
        client.fetch_add(own_at(0), 1).unwrap();
    }
}

/// Uses the memory by all clients at once: each in its own area, and all in one word.
fn use_memory_at_once(clients: &[Endpoint]) {
    std::thread::scope(|scope| {
        for (number, client) in clients.iter().enumerate() {
            scope.spawn(move || use_memory(client, number));
        }
    });
    assert_eq!(clients[0].fetch_add(own_at(0), 0).unwrap(), 40 * clients.len() as u64);
}

#[test]
fn several_clients_are_served_while_one_floods_and_one_leaves() {
    for_each(SERVED, |pair_transport| {
        let component = Component::new(pair_transport);
        let clients: Vec<_> = (0..CLIENTS).map(|_| component.client()).collect();
        let (flooder, leaver) = (component.client(), component.client());
        assert_eq!(component.progress.serving(), CLIENTS + 2);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let bytes = vec![1; 32 << 10];
                while !is_over.load(Ordering::Relaxed) {
                    flooder.put(own_at(LEN / 2), &bytes).unwrap();
                }
            });
            scope.spawn(move || {
                leaver.put(own_at(LEN / 2), &vec![2; 32 << 10]).unwrap();
                drop(leaver);
            });
            let used = catch_unwind(AssertUnwindSafe(|| use_memory_at_once(&clients)));
            is_over.store(true, Ordering::Relaxed);
            used.unwrap();
        });
        component.wait_until_serving(CLIENTS + 1);
    });
}

#[test]
fn serves_clients_while_one_does_not_read_and_one_dies() {
    for_each(&[PairTransport::Tcp, PairTransport::Tls], |pair_transport| {
        let component = Component::new(pair_transport);
        let clients: Vec<_> = (0..CLIENTS).map(|_| component.client()).collect();
        let (mut half_dead, RemoteRegion { key, .. }) = component.bare_client();
        half_dead.send(Frame::Put { key, offset: 0, len_bytes: 1000 });
        // Requests the largest replies that it may, repeatedly, and reads none of them.
        let (mut deaf, RemoteRegion { key, .. }) = component.bare_client();
        for request in 0..32 {
            deaf.send(Frame::Get { request, key, offset: 0, len_bytes: LEN });
        }
        use_memory_at_once(&clients);
        assert_eq!(component.progress.serving(), CLIENTS + 2);
        drop((half_dead, deaf));
        component.wait_until_serving(CLIENTS);
    });
}

#[test]
fn client_that_is_cut_off_is_removed_without_others() {
    for_each(&[PairTransport::Tcp, PairTransport::Tls], |pair_transport| {
        let component = Component::new(pair_transport);
        let (good, bad) = (component.client(), component.client_with_wrong_key());
        assert!(bad.get(own_at(0), &mut [0; 8]).is_err());
        component.wait_until_serving(1);
        assert!(bad.down().unwrap().contains("the key is of no region"), "{:?}", bad.down());
        use_memory(&good, 0);
        drop(good);
        component.wait_until_serving(0);
    });
}

/// Over libfabric the target may never learn of the wrong key.
#[test]
fn client_with_a_wrong_key_gets_nothing_and_others_continue() {
    for_each(SERVED, |pair_transport| {
        let component = Component::new(pair_transport);
        let (good, bad) = (component.client(), component.client_with_wrong_key());
        good.put(own_at(0), &[7; 8]).unwrap();
        let mut got = [0; 8];
        assert!(bad.get(own_at(0), &mut got).is_err() && got == [0; 8]);
        good.put(own_at(0), &[0; 8]).unwrap();
        use_memory(&good, 0);
    });
}

/// Relays between two sockets, so that all bytes that the first sends after its first message reach the second in one
/// piece.
fn pass_on(client: TcpStream, server: TcpStream) {
    let copy = |mut from: TcpStream, mut to: TcpStream, pause: Duration| {
        let mut bytes = vec![0; 1 << 16];
        for round in 0.. {
            if round == 1 {
                std::thread::sleep(pause);
            }
            match from.read(&mut bytes) {
                Ok(len) if len > 0 => to.write_all(&bytes[..len]).unwrap(),
                _ => return,
            }
        }
    };
    let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
    std::thread::spawn(move || copy(back.0, back.1, Duration::ZERO));
    std::thread::spawn(move || copy(client, server, Duration::from_millis(300)));
}

#[test]
fn serves_a_request_sent_with_the_end_of_the_handshake() {
    let component = Component::new(PairTransport::Tls);
    let RemoteRegion { key, .. } = component.node.end(None).expose(OWN).unwrap();
    let identity = Identity::generate("conformance").unwrap();
    let ((ours, near), (far, theirs)) = (sockets(), sockets());
    pass_on(near, far);
    std::thread::scope(|scope| {
        scope.spawn(|| component.serve(ByteStream::encrypted_server(theirs, &identity).unwrap()));
        let client = TlsStream::client(ours, &identity.certificate).unwrap();
        let mut client = BareClient::Encrypted(Box::new(client));
        client.send(Frame::FetchAdd { request: 0, key, offset: 0, value: 7 });
        let (begun, mut word) = (Instant::now(), [0; 8]);
        while begun.elapsed() < Duration::from_secs(180) && word[0] == 0 {
            std::thread::sleep(Duration::from_millis(10));
            component.node.own.read(0, &mut word).unwrap();
        }
        assert_eq!(word[0], 7);
    });
}
