//! Peers that violate the protocol: they receive the reason, both sides report it, and no memory outside is touched.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use sublet_fabric::exposed::{OWN, RemoteRegion};
use sublet_fabric::line::Turn;
use sublet_fabric::tcp::frame::{Frame, HEADER_BYTES};
use sublet_fabric::tcp::{self, ByteStream};
use sublet_fabric::{Endpoint, FabricError};

use crate::pairs::{LEN, Pair, PairSide, REGION, STREAMS, at, line_at, over, sockets};

/// Waits until the passive side is down, and returns the reason.
fn their_reason(pair: &Pair) -> String {
    loop {
        let _ = pair.passive.stream().progress();
        match pair.passive.stream().down() {
            Some(reason) => return reason,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Gives this side a wrong description of the peer's region; its first use ends the connection.
fn misled(remote: impl Fn(RemoteRegion) -> RemoteRegion, expected: &str) {
    over(STREAMS, |pair| {
        let theirs = pair.passive.stream();
        let Endpoint::Tcp(ours) = &pair.end else { panic!("a network's end") };
        ours.reach(REGION, remote(theirs.expose(REGION).unwrap())).unwrap();
        let error = pair.end.get(at(LEN), &mut [0; 8]).unwrap_err();
        assert!(
            matches!(&error, FabricError::Disconnected { reason } if reason.contains(expected)),
            "{error}"
        );
        assert!(their_reason(&pair).contains(expected), "{}", their_reason(&pair));
        let after = pair.end.put(at(0), &[1]).unwrap_err();
        assert!(matches!(after, FabricError::Disconnected { .. }), "{after}");
    });
}

#[test]
fn wrong_key_ends_the_connection_with_a_reason() {
    let wrong = |right: RemoteRegion| RemoteRegion { key: right.key ^ 1 << 40, len_bytes: 2 * LEN, ..right };
    misled(wrong, "the key is of no region");
}

#[test]
fn address_outside_ends_the_connection_with_a_reason() {
    let larger = |right: RemoteRegion| RemoteRegion { len_bytes: 2 * LEN, ..right };
    misled(larger, "outside of region 3");
}

#[test]
fn unaligned_word_ends_the_connection_with_a_reason() {
    over(STREAMS, |pair| {
        let theirs = pair.passive.stream();
        let Endpoint::Tcp(ours) = &pair.end else { panic!("a network's end") };
        ours.reach(REGION, RemoteRegion { base: 4, ..theirs.expose(REGION).unwrap() }).unwrap();
        let error = pair.end.fetch_add(at(0), 1).unwrap_err();
        assert!(error.to_string().contains("not a multiple of 8"), "{error}");
        assert!(their_reason(&pair).contains("not a multiple of 8"));
    });
}

/// Makes an endpoint, and returns it with the bare socket of its peer.
pub fn with_bare_peer() -> (PairSide, tcp::TcpEndpoint, TcpStream) {
    let (left, right) = sockets();
    right.set_read_timeout(Some(Duration::from_secs(180))).unwrap();
    let node = PairSide::new(LEN);
    let end = node.end(None);
    end.connect(ByteStream::plain(left).unwrap()).unwrap();
    end.reach(OWN, RemoteRegion { key: 1 << 16, base: 0, len_bytes: LEN }).unwrap();
    (node, end, right)
}

/// Processes arrivals until the connection is down, and returns the reason.
fn wait_for_end(end: &tcp::TcpEndpoint, node: &PairSide) -> String {
    assert!(!end.wait(
        node.line(0),
        Turn::of_use(7),
        Some(Instant::now() + Duration::from_secs(180)),
        || false
    ));
    end.down().expect("the connection is down")
}

/// The reason in the last frame that the peer received.
fn told(peer: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).unwrap();
    let is_cut = |at: &usize| {
        let header = bytes[*at..].first_chunk::<HEADER_BYTES>();
        header.is_some_and(|header| {
            matches!(Frame::decode(header), Ok(Frame::Cut { len_bytes }) if *at + HEADER_BYTES + len_bytes as usize == bytes.len())
        })
    };
    let cut = (0..bytes.len()).find(is_cut).expect("a cut is the last frame");
    String::from_utf8(bytes[cut + HEADER_BYTES..].to_vec()).unwrap()
}

#[test]
fn garbage_ends_the_connection_and_the_peer_gets_the_reason() {
    let mut seed = 1u64;
    for round in 0..50 {
        let (node, end, mut peer) = with_bare_peer();
        let mut bytes: Vec<u8> = (0..4096)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 56) as u8
            })
            .collect();
        // Each kind is tested.
        bytes[0] = round % 10;
        if round < 30 {
            bytes[1..4].fill(0);
        }
        let _ = peer.write_all(&bytes);
        let reason = wait_for_end(&end, &node);
        assert!(reason.contains("cut off") || reason.contains("the peer ended it"), "{reason}");
        if reason.contains("cut off") {
            let told = told(&mut peer);
            assert!(reason.contains(&told), "{reason} / {told}");
        }
    }
}

#[test]
fn unrequested_or_repeated_reply_ends_the_connection() {
    for replies in [1, 2] {
        let (_node, end, mut peer) = with_bare_peer();
        std::thread::scope(|scope| {
            let asker = scope.spawn(|| {
                let first = end.fetch_add(crate::pairs::own_at(0), 1);
                (first, end.fetch_add(crate::pairs::own_at(0), 1))
            });
            let mut header = [0; HEADER_BYTES];
            peer.read_exact(&mut header).unwrap();
            let Ok(Frame::FetchAdd { request, .. }) = Frame::decode(&header) else { panic!("a request") };
            let right = Frame::AtomicReply { request, before: 5 }.encode();
            let wrong = Frame::GetReply { request, len_bytes: 8 }.encode();
            match replies {
                1 => peer.write_all(&wrong).unwrap(),
                _ => peer.write_all(&[right, right].concat()).unwrap(),
            }
            let (first, second) = asker.join().unwrap();
            assert_eq!(first.ok(), (replies == 2).then_some(5));
            assert!(second.unwrap_err().to_string().contains(&format!("request {request}")));
        });
    }
}

#[test]
fn flood_of_requests_with_unread_replies_is_cut_off() {
    let (node, end, mut peer) = with_bare_peer();
    let key = end.expose(OWN).unwrap().key;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for request in 0.. {
                let frame = Frame::Get { request, key, offset: 0, len_bytes: LEN };
                if peer.write_all(&frame.encode()).is_err() {
                    break;
                }
            }
        });
        let reason = wait_for_end(&end, &node);
        assert!(reason.contains("requests at once"), "{reason}");
        end.disconnect("it was a flood");
    });
}

#[test]
fn peer_receives_the_reason_of_a_disconnect() {
    over(STREAMS, |pair| {
        let Endpoint::Tcp(ours) = &pair.end else { panic!("a network's end") };
        pair.end.fetch_add(at(0), 1).unwrap();
        ours.disconnect("the lease is over");
        assert!(their_reason(&pair).contains("the lease is over"), "{}", their_reason(&pair));
        let error = pair.end.put_imm(line_at(0), Turn::of_use(0), 0, &[]).unwrap_err();
        assert!(
            matches!(&error, FabricError::Disconnected { reason } if reason == "the lease is over"),
            "{error}"
        );
    });
}
