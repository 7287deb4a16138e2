//! Tests of TLS streams over real sockets: pinned certificates, partial writes and endings.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::thread;

use rustix::event::PollFlags;

use super::*;
use crate::greeting::tests::pair;
use crate::socket::wait;

fn agent() -> Identity {
    Identity::generate("agent of a test").unwrap()
}

/// A client and a server after their handshake.
fn streams() -> (TlsStream, TlsStream) {
    let (here, there) = pair();
    let identity = agent();
    thread::scope(|scope| {
        let server = scope.spawn(|| TlsStream::server(there, &identity));
        let client = TlsStream::client(here, &identity.certificate).unwrap();
        (client, server.join().unwrap().unwrap())
    })
}

/// Results of both ends of a handshake in which the client trusts `certificate`.
fn handshake(
    certificate: &[u8],
    identity: &Identity,
) -> (Result<TlsStream, FabricError>, Result<TlsStream, FabricError>) {
    let (here, there) = pair();
    thread::scope(|scope| {
        let server = scope.spawn(|| TlsStream::server(there, identity));
        (TlsStream::client(here, certificate), server.join().unwrap())
    })
}

fn failure(result: Result<TlsStream, FabricError>) -> String {
    result.err().unwrap().to_string()
}

fn receive_all(stream: &mut TlsStream, wanted: usize) -> Vec<u8> {
    let mut all = vec![0; wanted];
    let mut filled = 0;
    while filled < wanted {
        match stream.recv(&mut all[filled..]) {
            Ok(0) => break,
            Ok(received) => filled += received,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                assert!(!stream.buffered());
                wait(&*stream, PollFlags::IN, None).unwrap();
            }
            Err(error) => panic!("{error} after {filled} bytes"),
        }
    }
    all.truncate(filled);
    all
}

fn send_all(stream: &mut TlsStream, bytes: &[u8]) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() || stream.wants_write() {
        // In odd pieces: some records are gathered, some are not.
        let middle = sent + (bytes.len() - sent).min(31);
        let result = match sent < bytes.len() {
            true => stream.send(&[
                IoSlice::new(&bytes[sent..middle]),
                IoSlice::new(&[]),
                IoSlice::new(&bytes[middle..]),
            ]),
            false => stream.flush().map(|()| 0),
        };
        match result {
            Ok(taken) => sent += taken,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait(&*stream, PollFlags::OUT, None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 31 + index / 251) as u8).collect()
}

#[test]
fn bytes_arrive_unchanged_in_both_directions_at_once() {
    let (mut client, mut server) = streams();
    for len in [1, 100, 16 * 1024, 16 * 1024 + 1, 300_000, 5_000_000] {
        let bytes = pattern(len);
        thread::scope(|scope| {
            scope.spawn(|| {
                send_all(&mut client, &bytes).unwrap();
                assert!(receive_all(&mut client, len) == bytes);
            });
            assert!(receive_all(&mut server, len) == bytes, "{len} bytes");
            send_all(&mut server, &bytes).unwrap();
        });
    }
}

#[test]
fn small_read_leaves_the_rest_for_the_next_one() {
    let (mut client, mut server) = streams();
    let bytes = pattern(50_000);
    send_all(&mut client, &bytes).unwrap();
    let mut all = Vec::new();
    while all.len() < bytes.len() {
        let mut few = [0; 7];
        match server.recv(&mut few) {
            Ok(received) => all.extend_from_slice(&few[..received]),
            Err(_) => {
                assert!(!server.buffered());
                wait(&server, PollFlags::IN, None).unwrap();
            }
        }
    }
    assert!(all == bytes && !server.buffered());
}

#[test]
fn a_peer_that_does_not_read_takes_a_bounded_amount() {
    let (mut client, mut server) = streams();
    let bytes = pattern(64 * 1024);
    let mut taken = Vec::new();
    loop {
        match client.send(&[IoSlice::new(&bytes)]) {
            Ok(some) => taken.extend_from_slice(&bytes[..some]),
            Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    assert!(client.wants_write());
    thread::scope(|scope| {
        scope.spawn(|| send_all(&mut client, &[]));
        assert!(receive_all(&mut server, taken.len()) == taken);
    });
}

#[test]
fn another_certificate_than_the_pinned_one_is_refused() {
    let (pinned, other) = (agent(), agent());
    let (client, server) = handshake(&pinned.certificate, &other);
    let said = failure(client);
    assert!(said.contains("another certificate"), "{said}");
    let said = failure(server);
    assert!(said.contains("ended the TLS handshake"), "{said}");
    // Knowing the certificate is not enough without its key.
    let thief = Identity { certificate: pinned.certificate.clone(), ..other };
    let (client, server) = handshake(&pinned.certificate, &thief);
    assert!(client.is_err() && server.is_err());
    assert!(failure(handshake(b"nonsense", &pinned).0).contains("the 8 bytes of the certificate"));
}

#[test]
fn refuses_identities_with_keys_of_other_kinds() {
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let certificate = CertificateParams::default().self_signed(&key).unwrap().der().to_vec();
    let other = Identity { certificate, private_key: key.serialize_der() };
    let (client, server) = handshake(&other.certificate, &other);
    assert!(client.is_err() && server.is_err());
}

#[test]
fn who_does_not_speak_tls_gets_no_connection() {
    let identity = agent();
    for said in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 70_000], &[0x16, 3, 1, 0xff, 0xff], b""] {
        let (mut here, there) = pair();
        thread::scope(|scope| {
            let server = scope.spawn(|| TlsStream::server(there, &identity));
            let _ = here.write_all(said);
            let _ = here.shutdown(Shutdown::Write);
            assert!(server.join().unwrap().is_err());
        });
    }
    let (here, mut there) = pair();
    there.write_all(b"220 mail.example ESMTP\r\n").unwrap();
    assert!(matches!(TlsStream::client(here, &identity.certificate), Err(FabricError::Protocol(_))));
}

#[test]
fn peer_that_stops_in_the_handshake_is_given_up() {
    let (here, _there) = pair();
    let trust = Trust::pinned(&agent().certificate).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_millis(50);
    let said = failure(TlsStream::new_client(here, trust).unwrap().shake_hands(deadline));
    assert!(said.contains("did not complete the TLS handshake"), "{said}");
}

#[test]
fn refuses_an_altered_record_and_everything_after_it() {
    let (mut client, mut server) = streams();
    let _ = client.send(&[IoSlice::new(b"good")]).unwrap();
    assert_eq!(receive_all(&mut server, 4), b"good");
    // A record that neither end has encrypted.
    let mut forged = vec![23, 3, 3, 0, 32];
    forged.extend([9; 32]);
    (&**client.socket()).write_all(&forged).unwrap();
    client.send(&[IoSlice::new(b"after")]).unwrap();
    wait(&server, PollFlags::IN, None).unwrap();
    for _ in 0..2 {
        assert_eq!(server.recv(&mut [0; 64]).unwrap_err().kind(), ErrorKind::InvalidData);
    }
    assert_eq!(server.send(&[IoSlice::new(b"x")]).unwrap_err().kind(), ErrorKind::InvalidData);
}

#[test]
fn announced_and_unannounced_ends_are_both_ends() {
    for close in [|mut stream: TlsStream| stream.close(), |stream: TlsStream| drop(stream)] {
        let (mut client, mut server) = streams();
        send_all(&mut client, b"last words").unwrap();
        close(client);
        assert_eq!(receive_all(&mut server, 100), b"last words");
        assert_eq!(server.recv(&mut [0; 1]).unwrap(), 0);
        assert!(server.send(&[IoSlice::new(b"x")]).is_err());
    }
}

#[test]
fn it_is_tls_and_not_what_was_said() {
    let (mut client, server) = streams();
    let secret = b"a secret that must not be seen".repeat(4);
    send_all(&mut client, &secret).unwrap();
    let mut seen = [0; 4096];
    let mut tcp: &TcpStream = server.socket();
    wait(server.as_fd(), PollFlags::IN, None).unwrap();
    let len = tcp.read(&mut seen).unwrap();
    assert!(len > secret.len() && seen[..3] == [23, 3, 3]);
    assert!(!seen[..len].windows(8).any(|window| window == &secret[..8]));
}

#[test]
fn a_stream_may_move_between_threads() {
    fn is_send<T: Send>() {}
    is_send::<TlsStream>();
}
