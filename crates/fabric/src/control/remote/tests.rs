//! Tests of messages over TLS: damaged streams, sizes and closed connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc;
use std::thread;

use rustix::net::sockopt;
use sublet_means::spawn_until_asleep;

use super::*;
use crate::greeting::tests::pair as tcp_pair;

/// A client and an agent.
pub(crate) fn pair() -> (RemoteSocket, RemoteSocket) {
    let (here, there) = tcp_pair();
    over(here, there)
}

fn over(here: TcpStream, there: TcpStream) -> (RemoteSocket, RemoteSocket) {
    let identity = Identity::generate("a test").unwrap();
    thread::scope(|scope| {
        let server = scope.spawn(|| RemoteSocket::accept(there, &identity));
        let client = RemoteSocket::connect(here, &identity.certificate).unwrap();
        (client, server.join().unwrap().unwrap())
    })
}

/// A client and an agent whose messages pass over a wire of two TCP connections, and the two inner ends of that wire.
fn through_a_wire() -> (RemoteSocket, RemoteSocket, TcpStream, TcpStream) {
    let ((here, left), (right, there)) = (tcp_pair(), tcp_pair());
    let carry = |mut from: TcpStream, mut to: TcpStream| {
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(received) = from.read(&mut bytes)
                && received > 0
                && to.write_all(&bytes[..received]).is_ok()
            {}
            let _ = to.shutdown(Shutdown::Write);
        });
    };
    carry(left.try_clone().unwrap(), right.try_clone().unwrap());
    carry(right.try_clone().unwrap(), left.try_clone().unwrap());
    let (client, agent) = over(here, there);
    (client, agent, left, right)
}

#[test]
fn messages_keep_their_bounds_and_order() {
    let (here, there) = pair();
    for message in [&b"one"[..], &[2; MAX_PACKET_BYTES], b"3"] {
        here.send(message).unwrap();
        let packet = there.receive(None).unwrap().unwrap();
        assert!(packet.bytes == message && packet.fds.is_empty());
    }
    here.send(b"a").unwrap();
    here.send(b"b").unwrap();
    assert_eq!(there.receive(None).unwrap().unwrap().bytes, b"a");
    assert_eq!(there.receive(Some(Duration::from_secs(60))).unwrap().unwrap().bytes, b"b");
    assert!(matches!(there.receive(Some(Duration::ZERO)), Err(PacketError::TimedOut(_))));
}

#[test]
fn a_message_outside_of_the_bounds_is_not_sent() {
    let (here, there) = pair();
    for len in [0, MAX_PACKET_BYTES + 1] {
        assert!(matches!(here.send(&vec![0; len]), Err(PacketError::Protocol(_))));
    }
    here.send(b"good").unwrap();
    assert_eq!(there.receive(None).unwrap().unwrap().bytes, b"good");
}

#[test]
fn a_received_message_outside_of_the_bounds_ends_the_connection() {
    for length in [0, MAX_PACKET_BYTES as u32 + 1, u32::MAX] {
        let (here, there) = pair();
        here.send(b"good").unwrap();
        lock(&here.state).tls.send(&[IoSlice::new(&length.to_le_bytes()), IoSlice::new(&[0; 100])]).unwrap();
        here.send(b"late").unwrap();
        assert_eq!(there.receive(None).unwrap().unwrap().bytes, b"good");
        for _ in 0..2 {
            let refused = there.receive(None).unwrap_err();
            assert!(
                matches!(&refused, PacketError::Protocol(why) if why.contains(&length.to_string())),
                "{refused}"
            );
        }
        assert!(matches!(there.send(b"x"), Err(PacketError::PeerGone)));
    }
}

#[test]
fn lost_peer_is_an_end_after_its_last_messages() {
    let (here, there) = pair();
    // Messages that the peer has not read do not remove its own last message.
    here.send(b"unread").unwrap();
    there.send(b"last").unwrap();
    drop(there);
    assert_eq!(here.receive(None).unwrap().unwrap().bytes, b"last");
    for _ in 0..2 {
        assert!(here.receive(None).unwrap().is_none());
    }
    assert!(matches!(here.send(b"x"), Err(PacketError::PeerGone)));
    assert!(here.gone().unwrap().contains("closed the connection"));
}

#[test]
fn a_peer_that_was_killed_is_an_end() {
    // Its kernel closes its sockets: without a goodbye, and with a reset if something was unread.
    for unread in [false, true] {
        let (here, there) = pair();
        if unread {
            here.send(b"unread").unwrap();
        }
        let killed = thread::scope(|scope| {
            let waiting = spawn_until_asleep(scope, || here.receive(None));
            if unread {
                sockopt::set_socket_linger(&*there.tcp, Some(Duration::ZERO)).unwrap();
            }
            kill(there);
            waiting.join().unwrap()
        });
        assert!(killed.unwrap().is_none());
        assert!(here.gone().is_some());
    }
}

/// Closes the socket as the kernel does for a killed process, without the closing messages of TLS.
fn kill(socket: RemoteSocket) {
    let fd = socket.tcp.as_raw_fd();
    std::mem::forget(socket);
    // SAFETY: the descriptor is open, and its owner was forgotten: no other code closes it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

#[test]
fn an_end_within_a_message_is_named() {
    let (here, there) = pair();
    lock(&here.state).tls.send(&[IoSlice::new(&100u32.to_le_bytes()), IoSlice::new(b"half")]).unwrap();
    drop(here);
    assert!(there.receive(None).unwrap().is_none());
    assert!(there.gone().unwrap().contains("in the middle of a message"));
}

#[test]
fn what_was_changed_on_the_way_is_refused() {
    let (here, there, _left, mut right) = through_a_wire();
    here.send(b"good").unwrap();
    assert_eq!(there.receive(None).unwrap().unwrap().bytes, b"good");
    let mut forged = vec![23, 3, 3, 0, 40];
    forged.extend([1; 40]);
    right.write_all(&forged).unwrap();
    let refused = there.receive(None).unwrap_err();
    assert!(matches!(refused, PacketError::Protocol(_)), "{refused}");
    assert!(here.receive(None).is_err() || here.gone().is_some());
}

#[test]
fn receiving_ends_at_its_timeout() {
    let (here, _there) = pair();
    let (timeout, start) = (Duration::from_millis(20), Instant::now());
    assert!(matches!(here.receive(Some(timeout)), Err(PacketError::TimedOut(_))));
    assert!(start.elapsed() >= timeout);
}

#[test]
fn send_timeout_leaves_no_torn_message() {
    let (here, there) = pair();
    // The kernel's limit on silence is shorter than this test.
    sockopt::set_tcp_user_timeout(&*here.tcp, 0).unwrap();
    here.set_send_timeout(Duration::from_millis(20));
    let message = |number: u32| [&number.to_le_bytes()[..], &[7; 60_000]].concat();
    let (timed_out, error) =
        (0..10_000).find_map(|number| Some((number, here.send(&message(number)).err()?))).unwrap();
    assert!(matches!(error, PacketError::TimedOut(timeout) if timeout.as_millis() == 20), "{error}");
    thread::scope(|scope| {
        // The thread that receives also sends the bytes that were left.
        scope.spawn(|| assert_eq!(here.receive(None).unwrap().unwrap().bytes, b"enough"));
        for number in 0..timed_out {
            assert!(there.receive(None).unwrap().unwrap().bytes == message(number), "message {number}");
        }
        there.send(b"enough").unwrap();
    });
}

#[test]
fn sleeping_receiver_does_not_keep_others_from_sending() {
    let (here, there) = pair();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| here.receive(None));
        for sender in 0..4u8 {
            let here = &here;
            scope.spawn(move || {
                for number in 0..200u8 {
                    here.send(&[&[sender, number][..], &vec![number; usize::from(number) * 50]].concat())
                        .unwrap();
                }
            });
        }
        let mut next = [0; 4];
        for _ in 0..800 {
            let bytes = there.receive(None).unwrap().unwrap().bytes;
            let (sender, number) = (usize::from(bytes[0]), bytes[1]);
            assert_eq!((number, bytes.len()), (next[sender], 2 + usize::from(number) * 50));
            next[sender] += 1;
        }
        there.send(b"go").unwrap();
        assert_eq!(receiver.join().unwrap().unwrap().unwrap().bytes, b"go");
    });
}

#[test]
fn two_ends_sending_much_at_once_do_not_deadlock() {
    let (here, there) = pair();
    thread::scope(|scope| {
        for end in [&here, &there] {
            scope.spawn(move || (0..300).for_each(|_| end.send(&[1; MAX_PACKET_BYTES]).unwrap()));
            scope.spawn(move || (0..300).for_each(|_| drop(end.receive(None).unwrap().unwrap())));
        }
    });
}

#[test]
fn a_silent_host_is_noticed_by_the_kernel() {
    // A peer that acknowledges and does not read, which the kernel counts as silence, too.
    let (here, _there) = pair();
    here.set_send_timeout(Duration::from_secs(60));
    let gone = (0..10_000).find_map(|_| here.send(&[0; MAX_PACKET_BYTES]).err());
    assert!(matches!(gone, Some(PacketError::PeerGone)), "{gone:?}");
    assert!(here.receive(None).unwrap().is_none());
    assert!(here.gone().unwrap().contains("no acknowledgement for 800 ms"), "{:?}", here.gone());
}

#[test]
fn rejects_a_client_that_does_not_speak_tls() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stranger = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let identity = Identity::generate("a test").unwrap();
    let (told, end) = mpsc::channel();
    thread::spawn(move || told.send(RemoteSocket::accept(listener.accept().unwrap().0, &identity)));
    assert!(end.recv().unwrap().is_err());
}

#[test]
fn frames_are_found_however_they_are_cut() {
    let messages = [vec![1; 1], vec![2; 700], vec![3; MAX_PACKET_BYTES], vec![4; 3]];
    let stream: Vec<u8> = messages
        .iter()
        .flat_map(|message| (message.len() as u32).to_le_bytes().into_iter().chain(message.iter().copied()))
        .collect();
    for piece in [1, 3, 5, 1000, stream.len()] {
        let (mut frames, mut found) = (FrameSplitter::default(), Vec::new());
        for bytes in stream.chunks(piece) {
            frames.push(bytes);
            while let Some(message) = frames.next().unwrap() {
                found.push(message);
            }
        }
        assert!(found == messages, "in pieces of {piece}");
    }
}
