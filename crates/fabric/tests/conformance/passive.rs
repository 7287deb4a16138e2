//! A side that runs nothing of its own: one thread serves all its ends.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sublet_fabric::exposed::OWN;
use sublet_fabric::tcp::frame::Frame;
use sublet_fabric::tcp::{self, Progress, Stream};

use crate::pairs::{LEN, Node, own_at, sockets};

const CLIENTS: usize = 4;

/// A memory component: one region, one thread, an end for each client.
struct Component {
    node: Node,
    progress: Progress,
}

impl Component {
    fn new() -> Component {
        Component { node: Node::new(LEN), progress: Progress::start().unwrap() }
    }

    /// The socket of a new client, which nobody has taken up on its side.
    fn admit(&self) -> (TcpStream, Arc<tcp::Endpoint>) {
        let (left, right) = sockets();
        let end = Arc::new(self.node.end(None));
        end.connect(Stream::plain(right).unwrap()).unwrap();
        self.progress.serve(end.clone()).unwrap();
        (left, end)
    }

    fn client(&self) -> tcp::Endpoint {
        let (socket, theirs) = self.admit();
        let client = Node::new(4096).end(None);
        client.connect(Stream::plain(socket).unwrap()).unwrap();
        client.reach(OWN, theirs.expose(OWN).unwrap()).unwrap();
        client
    }

    fn wait_until_serving(&self, count: usize) {
        while self.progress.serving() != count {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn use_memory(client: &tcp::Endpoint, number: usize) {
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

#[test]
fn several_clients_are_served_while_one_floods_one_does_not_read_and_one_dies_amid_a_frame() {
    let component = Component::new();
    let clients: Vec<_> = (0..CLIENTS).map(|_| component.client()).collect();
    let (mut half_dead, theirs) = component.admit();
    let key = theirs.expose(OWN).unwrap().key;
    let frame = Frame::Put { key, offset: 0, len_bytes: 1000 };
    half_dead.write_all(&frame.encode()).unwrap();
    // Asks for as much as it may, again and again, and reads none of it.
    let (mut deaf, _) = component.admit();
    for request in 0..32 {
        let frame = Frame::Get { request, key, offset: 0, len_bytes: LEN };
        deaf.write_all(&frame.encode()).unwrap();
    }
    let flooder = component.client();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bytes = vec![1; 32 << 10];
            while !stop.load(Ordering::Relaxed) {
                flooder.put(own_at(LEN / 2), &bytes).unwrap();
            }
        });
        let users: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(number, client)| scope.spawn(move || use_memory(client, number)))
            .collect();
        for user in users {
            user.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(clients[0].fetch_add(own_at(0), 0).unwrap(), 40 * CLIENTS as u64);
    assert_eq!(component.progress.serving(), CLIENTS + 3);
    drop((half_dead, deaf));
    component.wait_until_serving(CLIENTS + 1);
}

#[test]
fn a_client_that_is_cut_off_is_let_go_and_the_others_stay() {
    let component = Component::new();
    let (good, bad) = (component.client(), component.client());
    let wrong = sublet_fabric::exposed::RemoteRegion { key: 1 << 20, base: 0, len_bytes: LEN };
    bad.reach(OWN, wrong).unwrap();
    assert!(bad.get(own_at(0), &mut [0; 8]).is_err());
    component.wait_until_serving(1);
    assert!(bad.down().unwrap().contains("the key is of no region"), "{:?}", bad.down());
    use_memory(&good, 0);
    drop(good);
    component.wait_until_serving(0);
}
