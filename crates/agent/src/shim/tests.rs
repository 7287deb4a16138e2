//! Tests of the shim: processes, rights and lost neighbours.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sublet_means::spawn_until_asleep;
use sublet_runtime::access::Access;
use sublet_xpu::{FifoRights, FifoShape, Process, Reader, Unread, Writer};

use super::*;
use std::os::fd::OwnedFd;

const UNIT: u32 = 7;

fn shim() -> Shim {
    Shim::start(("here", "cpu", "0000001fffffffffffffffffffffffff"), &[UNIT], 2, nobody()).unwrap()
}

/// Managers at an address without a listener.
fn nobody() -> (Arc<Managers>, bool) {
    (Arc::new(Managers::new(Access::parse("unix:/nowhere").unwrap())), false)
}

fn who(tenant: &str) -> ProcessIdentity {
    ProcessIdentity { lease: "l".into(), tenant: tenant.to_owned(), pu: UNIT, capacity_bytes: 1 << 20 }
}

/// A process of its own, as far as the shim can tell.
fn enter(shim: &Shim, tenant: &str) -> (Process, ProcessAdmission) {
    let (outside, inside) = PacketSocket::pair().unwrap();
    let admission = shim.admit(outside, who(tenant), None);
    (Process::enter(inside).unwrap(), admission)
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(180))
}

fn now() -> Option<Instant> {
    Some(Instant::now())
}

fn code(unread: Unread) -> Code {
    match unread {
        Unread::Error(error) => error.code,
        Unread::TooLong(len) => panic!("a message of {len} bytes"),
    }
}

/// Two processes with a FIFO between them.
fn pair(shim: &Shim, shape: FifoShape) -> ((Process, Reader), (Process, Writer), [ProcessAdmission; 2]) {
    let ((one, first), (two, second)) = (enter(shim, "t"), enter(shim, "t"));
    let reader = one.init("fifo", shape).unwrap();
    one.grant(two.pid(), reader.object(), FifoRights::WRITE).unwrap();
    let writer = two.connect("fifo", soon()).unwrap();
    ((one, reader), (two, writer), [first, second])
}

#[test]
fn messages_of_every_size_arrive_in_their_order() {
    let shim = shim();
    let shape = FifoShape { lines: 8, slot_bytes: 4096 };
    let ((_one, mut reader), (two, mut writer), _held) = pair(&shim, shape);
    let pid = two.pid();
    let sizes = [0, 1, 39, 40, 41, 64, 4095, 4096, 4097, 9000, 24576];
    let message = |size: usize, round: usize| (0..size).map(|at| (at * 7 + round) as u8).collect::<Vec<u8>>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..50 {
                for size in sizes {
                    writer.write(&message(size, round), soon()).unwrap();
                }
            }
            let error = writer.write(&vec![0; 24577], soon()).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument);
        });
        let mut into = vec![0; 24576];
        for round in 0..50 {
            for size in sizes {
                let (len, from) = reader.read(&mut into, soon()).unwrap();
                assert_eq!((len, from), (size as u64, pid));
                assert!(into[..size] == message(size, round), "{size} bytes in round {round}");
            }
        }
        // The writer has closed its end.
        assert_eq!(
            code(reader.read(&mut into, Some(Instant::now() + Duration::from_millis(50))).unwrap_err()),
            Code::DeadlineExceeded
        );
        assert_eq!(reader.writers().unwrap(), 0);
    });
}

#[test]
fn a_full_fifo_blocks_its_writer_until_the_deadline() {
    let shim = shim();
    let shape = FifoShape { lines: 4, slot_bytes: 4096 };
    let ((_one, mut reader), (_two, mut writer), _held) = pair(&shim, shape);
    for number in 0..4u8 {
        writer.write(&[number], now()).unwrap();
    }
    assert_eq!(writer.write(&[9], now()).unwrap_err().code, Code::DeadlineExceeded);
    // A message that needs two slots waits for both, and leaves nothing behind.
    assert_eq!(writer.write(&[9; 5000], now()).unwrap_err().code, Code::DeadlineExceeded);
    std::thread::scope(|scope| {
        let waits = spawn_until_asleep(scope, || writer.write(&[4], soon()));
        let mut into = [0; 16];
        for number in 0..5u8 {
            let (len, _) = reader.read(&mut into, soon()).unwrap();
            assert_eq!((len, into[0]), (1, number));
        }
        waits.join().unwrap().unwrap();
    });
}

#[test]
fn a_message_that_is_too_long_for_its_reader_stays() {
    let shim = shim();
    let ((_one, mut reader), (_two, mut writer), _held) = pair(&shim, FifoShape::default());
    writer.write(&[7; 100], now()).unwrap();
    let mut short = [0; 99];
    assert!(matches!(reader.read(&mut short, soon()), Err(Unread::TooLong(100))));
    let mut long = [0; 100];
    assert_eq!(reader.read(&mut long, soon()).unwrap().0, 100);
    assert_eq!(long, [7; 100]);
}

#[test]
fn reads_from_all_writers_including_ones_that_connect_later() {
    let shim = shim();
    let (one, _first) = enter(&shim, "t");
    let mut reader = one.init("fifo", FifoShape::default()).unwrap();
    let object = reader.object();
    let mut seen = std::collections::BTreeMap::new();
    std::thread::scope(|scope| {
        let mut pids = Vec::new();
        for _ in 0..5 {
            let (two, held) = enter(&shim, "t");
            pids.push(two.pid());
            scope.spawn(move || {
                let mut writer = two.connect_to(object, soon());
                while writer.as_ref().is_err_and(|error| error.code == Code::PermissionDenied) {
                    std::thread::sleep(Duration::from_millis(1));
                    writer = two.connect_to(object, soon());
                }
                let mut writer = writer.unwrap();
                for count in 0..1000u32 {
                    writer.write(&count.to_le_bytes(), soon()).unwrap();
                }
                drop((writer, two, held));
            });
        }
        let one = &one;
        scope.spawn(move || {
            for pid in pids {
                std::thread::sleep(Duration::from_millis(5));
                one.grant(pid, object, FifoRights::WRITE).unwrap();
            }
        });
        for _ in 0..5000 {
            let mut word = [0; 4];
            let (len, from) = reader.read(&mut word, soon()).unwrap();
            let next = seen.entry(from).or_insert(0u32);
            assert_eq!((len, u32::from_le_bytes(word)), (4, *next));
            *next += 1;
        }
    });
    assert!(seen.len() == 5 && seen.values().all(|&count| count == 1000), "{seen:?}");
    assert_eq!(reader.writers().unwrap(), 0);
}

#[test]
fn a_revoked_right_cuts_what_is_open_and_what_waits() {
    let shim = shim();
    let ((one, mut reader), (two, mut writer), _held) = pair(&shim, FifoShape { lines: 4, slot_bytes: 4096 });
    let object = reader.object();
    writer.write(b"unread", now()).unwrap();
    one.revoke(two.pid(), object, FifoRights::WRITE).unwrap();
    // Unread messages are not read any more, and nothing is written.
    assert_eq!(code(reader.read(&mut [0; 16], now()).unwrap_err()), Code::DeadlineExceeded);
    let error = writer.write(b"more", soon()).unwrap_err();
    assert!(error.code == Code::PermissionDenied && error.message.contains(&object.to_string()), "{error}");
    assert_eq!(two.connect("fifo", now()).err().unwrap().code, Code::PermissionDenied);
    drop(writer);
    // A writer that waits for free capacity learns of it.
    one.grant(two.pid(), object, FifoRights::WRITE).unwrap();
    let mut writer = two.connect("fifo", soon()).unwrap();
    (0..4).for_each(|_| writer.write(b"x", now()).unwrap());
    std::thread::scope(|scope| {
        let waits = spawn_until_asleep(scope, || writer.write(b"y", None));
        one.revoke(two.pid(), object, FifoRights::WRITE).unwrap();
        assert_eq!(waits.join().unwrap().unwrap_err().code, Code::PermissionDenied);
    });
    // A reader that waits learns of it, too.
    std::thread::scope(|scope| {
        let waits = spawn_until_asleep(scope, || code(reader.read(&mut [0; 16], None).unwrap_err()));
        one.revoke(one.pid(), object, FifoRights::READ).unwrap();
        assert_eq!(waits.join().unwrap(), Code::PermissionDenied);
    });
}

#[test]
fn who_reads_no_more_ends_those_who_write() {
    let shim = shim();
    let ((_one, reader), (two, mut writer), [first, second]) =
        pair(&shim, FifoShape { lines: 4, slot_bytes: 4096 });
    (0..4).for_each(|_| writer.write(b"x", now()).unwrap());
    std::thread::scope(|scope| {
        let waits = spawn_until_asleep(scope, || writer.write(b"y", None));
        drop(reader);
        assert_eq!(waits.join().unwrap().unwrap_err().code, Code::LeaseEnded);
    });
    // No other process may read it.
    assert_eq!(two.connect("fifo", soon()).err().unwrap().code, Code::InvalidArgument);
    drop(first);
    while shim.members() > 1 {
        std::thread::yield_now();
    }
    drop(second);
    // The shim answers until it has noticed the end.
    while shim.members() > 0 {
        std::thread::yield_now();
    }
    let error = two.rights(writer.object()).unwrap_err();
    assert_eq!(error.code, Code::AgentUnreachable);
}

#[test]
fn what_a_process_has_written_before_it_dies_is_read() {
    let shim = shim();
    let ((_one, mut reader), (two, mut writer), [_first, second]) = pair(&shim, FifoShape::default());
    writer.write(b"last words", now()).unwrap();
    std::mem::forget(writer);
    drop((second, two));
    while shim.members() > 1 {
        std::thread::yield_now();
    }
    let mut into = [0; 16];
    assert_eq!(reader.read(&mut into, soon()).unwrap().0, 10);
    assert_eq!(
        code(reader.read(&mut into, Some(Instant::now() + Duration::from_millis(30))).unwrap_err()),
        Code::DeadlineExceeded
    );
    assert_eq!(reader.writers().unwrap(), 0);
}

#[test]
fn a_process_that_scribbles_over_what_it_shares_harms_itself() {
    let shim = shim();
    let ((one, mut reader), (two, mut good), _held) = pair(&shim, FifoShape::default());
    let object = reader.object();
    // The reader of an invalid ring learns of it once, and the other writers continue.
    let (outside, inside) = PacketSocket::pair().unwrap();
    let _admission = shim.admit(outside, who("t"), None);
    let bad = Scribbler::enter(inside);
    one.grant(bad.pid, object, FifoRights::WRITE).unwrap();
    for nonsense in [[9u64, 0], [0, u64::MAX], [1, 8]] {
        bad.scribble(object, nonsense);
        let mut into = [0; 64];
        let error = reader.read(&mut into, soon()).unwrap_err();
        assert!(matches!(&error, Unread::Error(error) if error.code == Code::Protocol), "{error:?}");
        good.write(b"good", now()).unwrap();
        assert_eq!(reader.read(&mut into, soon()).unwrap(), (4, two.pid()));
    }
    // An invalid call is answered, or its process is removed.
    assert_eq!(bad.call(99, 0), Some(Code::Protocol.number()));
    assert_eq!(bad.call(INIT, u32::MAX), Some(Code::InvalidArgument.number()));
    bad.flood();
    while shim.members() > 2 {
        std::thread::yield_now();
    }
    good.write(b"good", now()).unwrap();
    assert_eq!(reader.read(&mut [0; 64], soon()).unwrap().1, two.pid());
}

const INIT: u16 = sublet_xpu::wire::Operation::Init as u16;
const CONNECT: u16 = sublet_xpu::wire::Operation::Connect as u16;

/// A process that follows no protocol.
struct Scribbler {
    pid: GlobalId,
    socket: PacketSocket,
    page: Region,
    bell: OwnedFd,
    next: std::cell::Cell<u64>,
}

impl Scribbler {
    fn enter(socket: PacketSocket) -> Scribbler {
        socket.send(&v1::EnterShim { version: sublet_xpu::wire::VERSION }.encode_to_vec(), &[]).unwrap();
        let mut packet = socket.receive(None).unwrap().unwrap();
        let told = ShimToProcess::decode(packet.bytes.as_slice()).unwrap();
        let Some(Body::Entered(entered)) = told.body else { panic!("{told:?}") };
        let bell = packet.fds.pop().unwrap();
        let page = Region::attach(packet.fds.pop().unwrap(), sublet_xpu::wire::PAGE_BYTES).unwrap();
        Scribbler { pid: GlobalId::from_bits(entered.pid), socket, page, bell, next: Default::default() }
    }

    fn publish(&self, request: &sublet_xpu::wire::CallRequest) -> u64 {
        use sublet_fabric::line::Line;
        use sublet_fabric::ring::Position;
        let count = self.next.replace(self.next.get() + 1);
        let position = Position::new(count, sublet_xpu::wire::RECORDS);
        let line: &Line = self.page.view(sublet_xpu::wire::request(position.line)).unwrap();
        let watch: &Watch = self.page.view(sublet_xpu::wire::REQUEST_WATCH).unwrap();
        let (immediate, body) = request.encode();
        if line.publish(watch, position.turn, immediate, &body) {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
        count
    }

    fn request(&self, operation: u16, len_bytes: u32, words: [u64; 3]) -> Option<(u32, u64)> {
        use sublet_fabric::line::{Line, Turn};
        let turn = Turn::of_use(self.next.get());
        self.publish(&sublet_xpu::wire::CallRequest { operation, record: 0, turn, len_bytes, words });
        let line: &Line = self.page.view(sublet_xpu::wire::answer(0)).unwrap();
        while !line.is(turn) {
            std::thread::yield_now();
        }
        let (status, [value]) = line.read();
        Some((status, value))
    }

    fn call(&self, operation: u16, len_bytes: u32) -> Option<u32> {
        self.request(operation, len_bytes, [16, 4096, 0]).map(|(status, _)| status)
    }

    /// Connects, and writes a line of these words.
    fn scribble(&self, object: GlobalId, [immediate, first]: [u64; 2]) {
        use sublet_fabric::line::Line;
        use sublet_fabric::ring::Position;
        let (status, _) = self.request(CONNECT, 0, [object.to_bits(), 0, 0]).unwrap();
        assert_eq!(status, 0);
        let mut packet = self.socket.receive(None).unwrap().unwrap();
        let bell = packet.fds.pop().unwrap();
        let shape = FifoShape::default();
        let region = Region::attach(packet.fds.pop().unwrap(), shape.region_bytes()).unwrap();
        let position = Position::new(0, shape.lines);
        let line: &Line = region.view(4096).unwrap();
        let watch: &Watch = region.view(4096 + u64::from(shape.lines) * 64).unwrap();
        if line.publish(watch, position.turn, immediate as u32, &[first]) {
            let _ = rustix::io::write(&bell, &1u64.to_ne_bytes());
        }
    }

    /// Calls without ever waiting for an answer.
    fn flood(&self) {
        use sublet_fabric::line::Turn;
        let turn = Turn::of_use(0);
        let record = sublet_xpu::wire::RECORDS as u16;
        self.publish(&sublet_xpu::wire::CallRequest {
            operation: 3,
            record,
            turn,
            len_bytes: 0,
            words: [0; 3],
        });
    }
}

#[test]
fn refuses_unexpected_packets_and_other_protocol_versions() {
    let shim = shim();
    for (said, code) in [
        (v1::EnterShim { version: 99 }.encode_to_vec(), Code::VersionMismatch),
        (b"\xff\xff\xff".to_vec(), Code::Protocol),
    ] {
        let (outside, inside) = PacketSocket::pair().unwrap();
        let _admission = shim.admit(outside, who("t"), None);
        inside.send(&said, &[]).unwrap();
        let packet = inside.receive(None).unwrap().unwrap();
        let told = ShimToProcess::decode(packet.bytes.as_slice()).unwrap();
        assert!(
            matches!(&told.body, Some(Body::Failure(failure)) if failure.code == code.number()),
            "{told:?}"
        );
        assert!(inside.receive(None).unwrap().is_none());
    }
    // Twice is once too often.
    let (outside, inside) = PacketSocket::pair().unwrap();
    let _admission = shim.admit(outside, who("t"), None);
    let entered = Scribbler::enter(inside);
    entered.socket.send(b"x", &[]).unwrap();
    assert!(
        entered.socket.receive(None).unwrap().is_some() && entered.socket.receive(None).unwrap().is_none()
    );
    while shim.members() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn refuses_arguments_beyond_32_bits() {
    use sublet_xpu::wire::Operation;
    let shim = shim();
    let (outside, inside) = PacketSocket::pair().unwrap();
    let _admission = shim.admit(outside, who("t"), None);
    let entered = Scribbler::enter(inside);
    let (own, wide) = (entered.pid.to_bits(), 1 << 32);
    for (operation, words) in [
        (Operation::Close, [wide, 0, 0]),
        (Operation::Object, [wide, 0, 0]),
        (Operation::Cut, [0, wide, 0]),
        (Operation::Grant, [own, own, wide]),
        (Operation::Revoke, [own, own, wide]),
    ] {
        let (status, _) = entered.request(operation as u16, 0, words).unwrap();
        let mut said = vec![0; 64];
        entered.page.read(sublet_xpu::wire::payload(0), &mut said).unwrap();
        let said = String::from_utf8_lossy(&said);
        assert!(
            status == Code::InvalidArgument.number() && said.contains("4294967296"),
            "{operation:?}: {status}, {said}"
        );
    }
}

#[test]
fn slows_a_process_that_calls_all_the_time_not_others() {
    let shim = Shim::start(("here", "cpu", "1f"), &[UNIT], 1, nobody()).unwrap();
    let ((greedy, _first), (modest, _second)) = (enter(&shim, "t"), enter(&shim, "t"));
    let stop = AtomicBool::new(false);
    let nobody = GlobalId { pu: UNIT, local: 1 };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                greedy.rights(nobody).unwrap();
            }
        });
        for _ in 0..200 {
            modest.rights(nobody).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn several_threads_of_a_process_call_at_once() {
    let shim = shim();
    let (process, _held) = enter(&shim, "t");
    let mine = process.init("mine", FifoShape::default()).unwrap();
    let object = mine.object();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let reader = process.init("", FifoShape::default()).unwrap();
                    assert_eq!(process.rights(reader.object()).unwrap(), FifoRights::ALL);
                    assert_eq!(process.rights(object).unwrap(), FifoRights::ALL);
                }
            });
        }
    });
}
