//! Regions that end separately while their connection continues: for the side that lent them, and for the side that
//! used them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sublet_fabric::exposed::{ExposedMemory, OWN, RemoteRegion};
use sublet_fabric::region::Region;
use sublet_fabric::stored::StoredBytes;
use sublet_fabric::tcp::frame::{Frame, HEADER_BYTES};
use sublet_fabric::tcp::{self, ByteStream};
use sublet_fabric::window::RegionAddress;
use sublet_fabric::{Endpoint, FabricError};
use sublet_means::spawn_until_asleep;
use sublet_proto::graph::MemoryRights;

use crate::pairs::{LEN, REGION, STREAMS, at, over, own_at, pattern, sockets};
use crate::refusals::with_bare_peer;

/// Another region of a pair.
const OTHER: u32 = REGION + 1;
/// More bytes than a socket accepts while its peer does not read.
const LARGE: u64 = 64 << 20;

fn is_expired<T>(result: Result<T, FabricError>) -> bool {
    matches!(result, Err(FabricError::KeyExpired { region: REGION }))
}

#[test]
fn what_has_expired_is_refused_and_the_rest_goes_on() {
    over(STREAMS, |pair| {
        let other = Region::create("other", LEN).unwrap();
        pair.register(OTHER, &other).unwrap();
        pair.end.fetch_add(at(0), 1).unwrap();
        pair.passive.stream().withdraw(REGION, "over");
        for len in [8, 5000, 100_000] {
            // A refused put is not reported until a request is made.
            pair.end.put(at(0), &pattern(len, 1)).unwrap();
            assert!(is_expired(pair.end.get(at(0), &mut vec![0; len])));
        }
        assert!(is_expired(pair.end.fetch_add(at(0), 1)) && is_expired(pair.end.compare_swap(at(0), 1, 2)));
        let Endpoint::Tcp(ours) = &pair.end else { panic!("a network's end") };
        let on_other = RegionAddress { region: OTHER, offset: 0 };
        ours.put(on_other, b"there").unwrap();
        let mut bytes = [0; 5];
        ours.get(on_other, &mut bytes).unwrap();
        assert_eq!((&bytes, ours.down(), pair.passive.stream().down()), (b"there", None, None));
        let mut word = [0; 8];
        pair.target.read(0, &mut word).unwrap();
        assert_eq!(u64::from_ne_bytes(word), 1, "nothing was written with it");
    });
}

/// Makes an endpoint that lends two regions. Returns it with their keys and the bare socket of its peer.
fn lender(len_bytes: u64) -> (tcp::TcpEndpoint, [(Arc<Region>, u64); 2], TcpStream) {
    let (left, right) = sockets();
    right.set_read_timeout(Some(Duration::from_secs(180))).unwrap();
    let exposed = Arc::new(ExposedMemory::lending(2));
    let lent = ["one", "two"].map(|name| {
        let region = Arc::new(Region::create(name, len_bytes).unwrap());
        let (_, remote) = exposed.lend(region.clone(), MemoryRights::Write).unwrap().unwrap();
        (region, remote.key)
    });
    let end = tcp::TcpEndpoint::new(exposed, None);
    end.connect(ByteStream::plain(left).unwrap()).unwrap();
    (end, lent, right)
}

/// Makes an endpoint execute its peer's frames until a condition holds.
fn progress_until(end: &tcp::TcpEndpoint, is_so: impl Fn() -> bool) {
    while !is_so() {
        let _ = end.progress();
    }
}

/// The next frame that a peer receives.
fn hear(peer: &mut TcpStream) -> Frame {
    let mut header = [0; HEADER_BYTES];
    peer.read_exact(&mut header).unwrap();
    Frame::decode(&header).unwrap()
}

#[test]
fn arriving_put_to_a_withdrawn_region_is_discarded() {
    let (end, [(one, key), (two, other)], mut peer) = lender(LEN);
    let first = |region: &Region| {
        let mut bytes = [0; 1];
        region.read(0, &mut bytes).unwrap();
        bytes[0]
    };
    let half = vec![7; LEN as usize / 2];
    peer.write_all(&Frame::Put { key, offset: 0, len_bytes: LEN }.encode()).unwrap();
    peer.write_all(&half).unwrap();
    progress_until(&end, || first(&one) == 7);
    end.withdraw(0, "over");
    one.write(0, &vec![0; LEN as usize]).unwrap();
    peer.write_all(&half).unwrap();
    peer.write_all(&Frame::Put { key: other, offset: 0, len_bytes: 1 }.encode()).unwrap();
    peer.write_all(&[9]).unwrap();
    progress_until(&end, || first(&two) == 9);
    let mut bytes = vec![1; LEN as usize];
    one.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0) && end.down().is_none());
}

#[test]
fn withdrawal_completes_a_partly_sent_answer_or_disconnects() {
    let (end, [(_, key), (_, other)], mut peer) = lender(LARGE);
    let get = |request, key, len_bytes| Frame::Get { request, key, offset: 0, len_bytes }.encode();
    peer.write_all(&get(0, other, LARGE)).unwrap();
    for _ in 0..100 {
        end.progress().unwrap();
    }
    end.withdraw(0, "one is over");
    peer.write_all(&get(1, key, 8)).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            assert_eq!(hear(&mut peer), Frame::GetReply { request: 0, len_bytes: LARGE });
            peer.read_exact(&mut vec![0; LARGE as usize]).unwrap();
            hear(&mut peer)
        });
        progress_until(&end, || reader.is_finished());
        assert_eq!(reader.join().unwrap(), Frame::Refused { request: 1 });
    });
    assert_eq!(end.down(), None, "nothing of one was under way");
    peer.write_all(&get(2, other, LARGE)).unwrap();
    for _ in 0..100 {
        end.progress().unwrap();
    }
    end.withdraw(1, "two is over");
    assert_eq!(end.down().as_deref(), Some("two is over"));
}

#[test]
fn wait_for_a_forgotten_region_ends_and_discards_late_replies() {
    let (_node, end, mut peer) = with_bare_peer();
    let end = Arc::new(end);
    end.reach(REGION, RemoteRegion { key: 2 << 16, base: 0, len_bytes: LEN }).unwrap();
    let mut ahead = vec![0; 4096];
    let mut ask_ahead = || {
        // SAFETY: the bytes outlive the request, which is waited for, and no other code uses them.
        unsafe { end.begin_get(at(0), NonNull::new(ahead.as_mut_ptr()).unwrap(), 4096) }.unwrap().unwrap()
    };
    let getting = ask_ahead();
    let (mut bytes, mut halved) = ([0; 8], vec![0; 10_000]);
    std::thread::scope(|scope| {
        let askers = [
            scope.spawn(|| is_expired(end.get(at(0), &mut bytes))),
            scope.spawn(|| is_expired(end.fetch_add(at(0), 1))),
            scope.spawn(|| is_expired(end.get(at(0), &mut halved))),
        ];
        let asked: Vec<Frame> = (0..4).map(|_| hear(&mut peer)).collect();
        let reply = |frame: &Frame, peer: &mut TcpStream, from: usize, to: usize| {
            let frame = match *frame {
                Frame::Get { request, len_bytes, .. } => Frame::GetReply { request, len_bytes },
                Frame::FetchAdd { request, .. } => Frame::AtomicReply { request, before: 5 },
                other => panic!("{other:?} was asked"),
            };
            if from == 0 {
                peer.write_all(&frame.encode()).unwrap();
            }
            if let Frame::GetReply { .. } = frame {
                peer.write_all(&vec![6; to - from]).unwrap();
            }
        };
        let len =
            |frame: &Frame| if let Frame::Get { len_bytes, .. } = frame { *len_bytes as usize } else { 0 };
        let large = asked.iter().find(|frame| len(frame) == 10_000).unwrap();
        reply(large, &mut peer, 0, 5000);
        std::thread::sleep(Duration::from_millis(20));
        end.forget(REGION);
        assert!(askers.into_iter().all(|asker| asker.join().unwrap()));
        assert!(is_expired(getting.wait()));
        reply(large, &mut peer, 5000, 10_000);
        for frame in asked.iter().filter(|frame| len(frame) != 10_000) {
            reply(frame, &mut peer, 0, len(frame));
        }
    });
    assert!(
        (bytes, ahead) == ([0; 8], vec![0; 4096]) && halved[5000..] == [0; 5000],
        "late replies belong to no request"
    );
    // All slots are free again, and the rest of the connection is unchanged.
    std::thread::scope(|scope| {
        let rounds = scope.spawn(|| (0..200).map(|_| end.fetch_add(own_at(0), 1).unwrap()).sum::<u64>());
        for _ in 0..200 {
            let Frame::FetchAdd { request, .. } = hear(&mut peer) else { panic!("a word was asked for") };
            peer.write_all(&Frame::AtomicReply { request, before: 1 }.encode()).unwrap();
        }
        assert_eq!(rounds.join().unwrap(), 200);
    });
    assert!(
        matches!(end.get(at(0), &mut [0; 8]), Err(FabricError::OutOfBounds { .. })) && end.down().is_none()
    );
    assert_eq!(OWN, 0);
}

#[test]
fn requests_without_a_waiting_thread_end_with_their_connection() {
    let (_node, end, mut peer) = with_bare_peer();
    let mut ask = || {
        end.reach(REGION, RemoteRegion { key: 2 << 16, base: 0, len_bytes: LEN }).unwrap();
        std::thread::scope(|scope| {
            let askers: Vec<_> = (0..64).map(|_| scope.spawn(|| end.fetch_add(at(0), 1).is_err())).collect();
            (0..64).for_each(|_| assert!(matches!(hear(&mut peer), Frame::FetchAdd { .. })));
            end.forget(REGION);
            assert!(askers.into_iter().all(|asker| asker.join().unwrap()));
        });
    };
    ask();
    end.disconnect("enough");
    // All slots are free again: this does not wait for one.
    assert!((0..100).all(|_| end.fetch_add(own_at(0), 1).is_err()));
    let (next, _other) = sockets();
    end.connect(ByteStream::plain(next).unwrap()).unwrap();
    end.reach(OWN, RemoteRegion { key: 1 << 16, base: 0, len_bytes: LEN }).unwrap();
    std::thread::scope(|scope| {
        let asker = spawn_until_asleep(scope, || end.fetch_add(own_at(0), 1));
        end.disconnect("enough");
        assert!(asker.join().unwrap().is_err());
    });
}

/// Bytes in a store that can be made to fail.
struct Store {
    bytes: Mutex<Vec<u8>>,
    fails: AtomicU32,
}

impl Store {
    fn access<T>(&self, act: impl FnOnce(&mut [u8]) -> T) -> io::Result<T> {
        match self.fails.load(Ordering::Acquire) {
            0 => Ok(act(&mut self.bytes.lock().unwrap())),
            _ => Err(io::Error::other("the store has failed")),
        }
    }
}

impl StoredBytes for Store {
    fn len_bytes(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let at = offset as usize;
        self.access(|bytes| into.copy_from_slice(&bytes[at..at + into.len()]))
    }

    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let at = offset as usize;
        self.access(|bytes| bytes[at..at + from.len()].copy_from_slice(from))
    }
}

#[test]
fn stored_bytes_are_put_and_got_until_their_store_fails() {
    const STORED: usize = 3 << 20;
    let store = Arc::new(Store { bytes: Mutex::new(vec![0; STORED]), fails: AtomicU32::new(0) });
    let exposed = Arc::new(ExposedMemory::lending(2));
    let (_, remote) = exposed.lend_stored(store.clone(), MemoryRights::Write).unwrap().unwrap();
    assert_eq!(remote.len_bytes, STORED as u64);
    let (left, right) = sockets();
    let lender = tcp::TcpEndpoint::new(exposed, None);
    lender.connect(ByteStream::plain(left).unwrap()).unwrap();
    let user = tcp::TcpEndpoint::new(Arc::new(ExposedMemory::lending(1)), None);
    user.connect(ByteStream::plain(right).unwrap()).unwrap();
    user.reach(0, remote).unwrap();
    let at = |offset: usize| RegionAddress { region: 0, offset: offset as u64 };
    std::thread::scope(|scope| {
        let using = scope.spawn(|| {
            for (offset, len) in [(0, 1), (7, 100), (4090, 5000), (1 << 20, 1 << 20), (STORED - 9, 9)] {
                let sent: Vec<u8> = (0..len).map(|byte| (byte * 3 + offset + 1) as u8).collect();
                let mut got = vec![0; len];
                user.put(at(offset), sent.as_slice()).unwrap();
                user.get(at(offset), got.as_mut_slice()).unwrap();
                assert!(got == sent, "{len} bytes at {offset}");
                assert!(store.bytes.lock().unwrap()[offset..offset + len] == sent);
            }
            store.fails.store(1, Ordering::Release);
            let mut got = [9; 8];
            assert!(matches!(user.get(at(0), &mut got), Err(FabricError::KeyExpired { .. })));
            assert_eq!(got, [9; 8], "no bytes in place of those that cannot be read");
            store.fails.store(0, Ordering::Release);
            // More than a request may have breaks the rules.
            let _ = user.put(at(0), vec![0; (1 << 20) + 1].as_slice());
            let error = user.get(at(0), &mut got).unwrap_err();
            assert!(matches!(error, FabricError::Disconnected { .. }), "{error}");
        });
        progress_until(&lender, || using.is_finished());
    });
}
