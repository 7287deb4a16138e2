//! Tests of greetings over real sockets: versions, secrets and time limits.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use super::*;
use proptest::prelude::*;

const SECRET: Secret = [7; 32];
const LINK: DataLink = DataLink { lease: [3; 16], worker: 5, counter: 9 };
const BRIDGE: BridgeLink = BridgeLink { from: 0x0102_0304, to: 5, counter: 6 };

/// Two ends of a connection over the loopback interface.
pub(crate) fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (here, listener.accept().unwrap().0)
}

fn greeted(kind: ConnectionPurpose, secret: Option<&Secret>) -> Greeting {
    Greeting::decode(&wire::hello(&kind, secret).unwrap()).unwrap()
}

#[test]
fn both_ends_agree_on_what_a_connection_is_for() {
    for (kind, secret) in [
        (ConnectionPurpose::Control, None),
        (ConnectionPurpose::Data(LINK), Some(&SECRET)),
        (ConnectionPurpose::Bridge(BRIDGE), Some(&SECRET)),
    ] {
        let (here, there) = pair();
        prepare(&here).unwrap();
        prepare(&there).unwrap();
        thread::scope(|scope| {
            let client = scope.spawn(|| greet(&here, &kind, secret));
            let greeting = Greeting::receive(&there).unwrap();
            assert_eq!(greeting.kind, kind);
            assert_eq!(greeting.is_by(&SECRET), secret.is_some());
            greeting.accept(&there).unwrap();
            client.join().unwrap().unwrap();
        });
        for end in [&here, &there] {
            // A data connection allows silence: a peer that computes for long is not lost.
            let silence = if secret.is_some() { 0 } else { 800 };
            assert_eq!(sockopt::tcp_user_timeout(end).unwrap(), silence);
            assert!(sockopt::tcp_nodelay(end).unwrap());
            assert!(fcntl_getfd(end).unwrap().contains(FdFlags::CLOEXEC));
        }
    }
}

#[test]
fn refusal_carries_its_code_and_even_a_long_reason() {
    let (here, there) = pair();
    let long = format!("the lease is over: {}", "ü".repeat(300));
    thread::scope(|scope| {
        let client = scope.spawn(|| greet(&here, &ConnectionPurpose::Control, None));
        let greeting = Greeting::receive(&there).unwrap();
        greeting.refuse(&there, &Error::new(Code::LeaseEnded, &long));
        drop(there);
        let error = client.join().unwrap().unwrap_err();
        assert_eq!(error.code, Code::LeaseEnded);
        assert!(
            error.message.contains("127.0.0.1") && error.message.contains("the lease is over: üüü"),
            "{error}"
        );
    });
}

#[test]
fn versions_that_differ_are_named_on_both_sides() {
    let (mut here, there) = pair();
    let mut hello = wire::hello(&ConnectionPurpose::Control, None).unwrap().to_vec();
    hello[8] = 200;
    // A later version may say more.
    hello.extend([1; 100]);
    here.write_all(&hello).unwrap();
    let error = Greeting::receive(&there).unwrap_err();
    drop(there);
    let named =
        |error: &Error, versions: [&str; 2]| versions.iter().all(|version| error.message.contains(version));
    assert!(error.code == Code::VersionMismatch && named(&error, ["version 200", "version 1"]), "{error}");
    let mut answer = [0; ANSWER_BYTES];
    here.read_exact(&mut answer).unwrap();
    let told = GreetingAnswer::decode(&answer).unwrap().refusal.unwrap();
    assert!(told.code == Code::VersionMismatch && named(&told, ["version 200", "version 1"]), "{told}");

    let (here, mut there) = pair();
    answer[8] = 201;
    there.write_all(&answer).unwrap();
    let error = greet(&here, &ConnectionPurpose::Control, None).unwrap_err();
    assert!(error.code == Code::VersionMismatch && named(&error, ["version 201", "version 1"]), "{error}");
}

#[test]
fn what_is_not_sublet_is_refused_by_its_first_bytes() {
    for said in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], b"\x16\x03\x01\x02\x00\x01", b"\x89Sublot", b"\0"]
    {
        let (mut here, there) = pair();
        here.write_all(said).unwrap();
        let error = Greeting::receive(&there).unwrap_err();
        assert!(error.code == Code::Protocol && error.message.contains("does not speak Sublet"), "{error}");
        drop(there);
        // The client gets no answer.
        let mut answer = Vec::new();
        let _ = here.read_to_end(&mut answer);
        assert_eq!(answer, b"");
    }
    let (here, mut there) = pair();
    there.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    assert_eq!(greet(&here, &ConnectionPurpose::Control, None).unwrap_err().code, Code::Protocol);
}

#[test]
fn half_a_greeting_is_none_however_it_goes_on() {
    let hello = wire::hello(&ConnectionPurpose::Control, None).unwrap();
    // The client goes away.
    let (mut here, there) = pair();
    here.write_all(&hello[..HELLO_BYTES / 2]).unwrap();
    drop(here);
    let error = Greeting::receive(&there).unwrap_err();
    assert!(error.code == Code::Protocol && error.message.contains("before it had greeted"), "{error}");
    // It says nothing more, or one byte now and then: both end at the deadline.
    for pause in [Duration::from_secs(3600), Duration::from_millis(20)] {
        let (mut here, there) = pair();
        here.write_all(&hello[..4]).unwrap();
        let (stop, stopped) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut rest = hello[4..60].iter();
                while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                    let _ = rest.next().map(|&byte| here.write_all(&[byte]));
                }
            });
            let peer = GreetingPeer { socket: &there, who: GreetingParty::Client };
            let error =
                peer.read(&mut [0; HELLO_BYTES], Instant::now() + Duration::from_millis(200)).unwrap_err();
            assert!(error.message.contains("sent no greeting in time"), "{error}");
            drop(stop);
        });
    }
}

#[test]
fn greeting_is_valid_only_unaltered_with_its_own_secret() {
    let hello = wire::hello(&ConnectionPurpose::Data(LINK), Some(&SECRET)).unwrap();
    assert!(Greeting::decode(&hello).unwrap().is_by(&SECRET));
    assert!(!Greeting::decode(&hello).unwrap().is_by(&[8; 32]));
    for bit in 0..HELLO_BYTES * 8 {
        let mut altered = hello;
        altered[bit / 8] ^= 1 << (bit % 8);
        let passes = Greeting::decode(&altered).is_ok_and(|greeting| greeting.is_by(&SECRET));
        assert!(!passes, "with bit {bit} changed");
    }
    assert!(!greeted(ConnectionPurpose::Control, None).is_by(&SECRET));
    assert_eq!(
        greet(&pair().0, &ConnectionPurpose::Data(LINK), None).unwrap_err().code,
        Code::InvalidArgument
    );
}

#[test]
fn rejects_a_replayed_greeting() {
    let mut counters = Counters::default();
    let mut good = |hello: &[u8; HELLO_BYTES]| match Greeting::decode(hello).unwrap() {
        greeting if !greeting.is_by(&SECRET) => false,
        Greeting { kind: ConnectionPurpose::Data(link), .. } => counters.accept(link.counter),
        _ => false,
    };
    let recorded = wire::hello(&ConnectionPurpose::Data(LINK), Some(&SECRET)).unwrap();
    assert!(good(&recorded) && !good(&recorded));
    let next = DataLink { counter: LINK.counter + 1, ..LINK };
    assert!(good(&wire::hello(&ConnectionPurpose::Data(next), Some(&SECRET)).unwrap()));
}

#[test]
fn finds_agent_by_name_and_both_kinds_of_address() {
    for (bind, host) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "[::1]"), ("127.0.0.1:0", "localhost")] {
        // A machine may have no IPv6.
        let Ok(listener) = TcpListener::bind(bind) else { continue };
        let address = format!("{host}:{}", listener.local_addr().unwrap().port());
        thread::scope(|scope| {
            let client = scope.spawn(|| {
                let socket = dial(&address, None, Instant::now() + Duration::from_secs(180)).unwrap();
                greet(&socket, &ConnectionPurpose::Control, None)
            });
            let there = listener.accept().unwrap().0;
            Greeting::receive(&there).unwrap().accept(&there).unwrap();
            client.join().unwrap().unwrap();
        });
    }
}

#[test]
fn unreachable_agent_is_named_with_the_reason() {
    let soon = || Instant::now() + Duration::from_millis(300);
    let late = || Instant::now() + Duration::from_secs(180);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let refused = dial(&format!("127.0.0.1:{port}"), None, late()).unwrap_err();
    assert!(refused.message.contains(&format!(":{port} refuses connections")), "{refused}");
    let unknown = dial("no-such-host.invalid:1", None, soon()).unwrap_err();
    assert!(unknown.message.contains("no-such-host.invalid"), "{unknown}");
    assert_eq!((refused.code, unknown.code), (Code::AgentUnreachable, Code::AgentUnreachable));
    for malformed in ["", "host", ":1", "host:", "host:99999", "::1"] {
        let error = dial(malformed, None, soon()).unwrap_err();
        assert!(error.code == Code::InvalidArgument || malformed == "::1", "{malformed}: {error}");
    }
    // An agent that listens and does not answer.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = dial(&silent.local_addr().unwrap().to_string(), None, late()).unwrap();
    let error = greet_until(&socket, &ConnectionPurpose::Control, None, soon()).unwrap_err();
    assert!(error.code == Code::AgentUnreachable && error.message.contains("in time"), "{error}");
}

#[test]
fn a_reason_cannot_move_a_terminals_cursor() {
    let answer = GreetingAnswer { refusal: Some(Error::new(Code::System, "a\x1b[2Jb\nc")) };
    let decoded = GreetingAnswer::decode(&answer.encode()).unwrap().refusal.unwrap();
    assert_eq!(decoded.message, "a\\x1b[2Jb\\x0ac");
}

proptest! {
    #[test]
    fn any_greeting_is_decoded_as_it_was_made(lease: [u8; 16], worker: u32, counter: u64, secret: [u8; 32]) {
        let kind = ConnectionPurpose::Data(DataLink { lease, worker, counter });
        let greeting = greeted(kind, Some(&secret));
        prop_assert!(greeting.kind == kind && greeting.is_by(&secret));
    }
}
