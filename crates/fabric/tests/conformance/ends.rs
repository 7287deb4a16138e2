//! Ends of connections: peers that die at every step, and the operations after that.

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use sublet_fabric::exposed::OWN;
use sublet_fabric::line::Turn;
use sublet_fabric::sim::{Break, InjectedFaults, NetSide, Sim};
use sublet_fabric::tcp::{self, ByteStream};
use sublet_fabric::{Endpoint, FabricError};
use sublet_means::spawn_until_asleep;

use crate::pairs::{
    LEN, PairSide, STREAMS, at, connect, introduce, meet, over, own_at, own_line, plain, sockets,
};

/// A short conversation with each operation once. The other side answers the line.
fn converse(end: &tcp::TcpEndpoint, node: &PairSide, large: &[u8]) -> Result<(), FabricError> {
    end.put(own_at(512), b"first")?;
    // SAFETY: no thread writes there.
    unsafe { end.push(own_at(1024), NonNull::from(large).cast(), large.len() as u64)? };
    end.put_imm(own_line(0), Turn::of_use(0), 1, &[2, 3])?;
    end.fetch_add(own_at(256), 1)?;
    end.compare_swap(own_at(256), 1, 2)?;
    end.get(own_at(512), &mut [0; 100])?;
    let answered = end.wait(node.line(0), Turn::of_use(0), None, || false);
    assert_eq!(answered, node.line(0).0.is(Turn::of_use(0)));
    match end.down() {
        Some(reason) if !answered => Err(FabricError::Disconnected { reason }),
        _ => Ok(()),
    }
}

/// Runs the conversation on a stream with these faults. Returns whether it completed, and the numbers of bytes and
/// steps.
fn run(faults: InjectedFaults, large: &[u8]) -> (bool, [u64; 2], u64) {
    let nodes = [PairSide::new(LEN), PairSide::new(LEN)];
    let (sim, left, right) = Sim::pair(faults);
    let ends = (nodes[0].end(None), Arc::new(nodes[1].end(None)));
    connect((&ends.0, ByteStream::sim(left)), (&ends.1, ByteStream::sim(right)));
    introduce(&ends.0, &ends.1);
    let [ours, theirs] = nodes;
    let (server, mut answered) = (ends.1.clone(), false);
    sim.on_wait(NetSide::Right, move || {
        // A connection that is down is detected below.
        let _ = server.progress();
        if !answered && theirs.line(0).0.is(Turn::of_use(0)) {
            answered = true;
            let _ = server.put_imm(own_line(0), Turn::of_use(0), 0, &[]);
        }
    });
    let ended = converse(&ends.0, &ours, large);
    if let Err(error) = &ended {
        assert!(matches!(error, FabricError::Disconnected { .. }), "{faults:?}: {error}");
        assert!(ends.0.down().is_some());
        // The other side learns of the end at its next progress.
        while ends.1.progress().is_ok() {}
        assert!(ends.1.put(own_at(0), &[1]).is_err());
    }
    (ended.is_ok(), [NetSide::Left, NetSide::Right].map(|side| sim.sent_bytes(side)), sim.steps())
}

#[test]
fn both_sides_notice_a_break_after_any_byte_or_step() {
    let faults = InjectedFaults::of_seed(11);
    let (whole, sent, steps) = run(faults, &[7; 100]);
    assert!(whole);
    for (side, sent) in [NetSide::Left, NetSide::Right].into_iter().zip(sent) {
        for bytes in 0..sent {
            run(InjectedFaults { breaks: Some(Break::AfterBytes(side, bytes)), ..faults }, &[7; 100]);
        }
    }
    for step in 0..steps {
        let (whole, ..) = run(InjectedFaults { breaks: Some(Break::AfterSteps(step)), ..faults }, &[7; 100]);
        assert!(!whole || step + 10 > steps, "step {step} of {steps}");
    }
}

#[test]
fn both_sides_notice_a_break_within_a_large_payload() {
    for seed in 0..200 {
        let faults = InjectedFaults::of_seed(seed);
        let large = vec![3; 100_000];
        let breaks = Some(Break::AfterBytes(NetSide::Left, 100 + seed * 501));
        run(InjectedFaults { breaks, ..faults }, &large);
        let (whole, ..) = run(faults, &large);
        assert!(whole, "seed {seed}");
    }
}

#[test]
fn the_same_seed_is_the_same_conversation() {
    for seed in 0..20 {
        let first = run(InjectedFaults::of_seed(seed), &[1; 20_000]);
        assert_eq!(first, run(InjectedFaults::of_seed(seed), &[1; 20_000]), "seed {seed}");
    }
}

#[test]
fn shutdown_of_a_socket_at_any_moment_ends_its_waits() {
    for round in 0..60u32 {
        let (left, right) = sockets();
        let saboteur = left.try_clone().unwrap();
        let nodes = [PairSide::new(LEN), PairSide::new(LEN)];
        let ends = meet(
            (&nodes[0], ByteStream::plain(left).unwrap()),
            (&nodes[1], ByteStream::plain(right).unwrap()),
        );
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| ends.1.wait(nodes[1].line(0), Turn::of_use(9), None, || false));
            let beside = scope.spawn(|| ends.1.wait(nodes[1].line(256), Turn::of_use(9), None, || false));
            let sender = scope.spawn(|| {
                let bytes = vec![5; 300_000];
                loop {
                    let error = match round % 2 {
                        0 => ends.0.put(own_at(4096), &bytes).err(),
                        _ => ends.0.get(own_at(4096), &mut [0; 5000]).err(),
                    };
                    if let Some(error) = error {
                        return error;
                    }
                }
            });
            std::thread::sleep(Duration::from_micros(u64::from(round * 53)));
            saboteur.shutdown([Shutdown::Both, Shutdown::Read, Shutdown::Write][round as usize % 3]).unwrap();
            if round % 3 == 1 {
                // A side that only stops reading is detected once the other side sends. By now both may have ended the
                // connection.
                let _ = saboteur.shutdown(Shutdown::Both);
            }
            assert!(!waiter.join().unwrap() && !beside.join().unwrap());
            assert!(matches!(sender.join().unwrap(), FabricError::Disconnected { .. }));
        });
    }
}

/// The child of the next test: puts into its parent's memory until it is killed.
#[test]
fn helper_that_puts_until_it_is_killed() {
    let Ok(address) = std::env::var("CONFORMANCE_PARENT") else { return };
    let (key, address) = address.split_once('@').unwrap();
    let node = PairSide::new(4096);
    let end = node.end(None);
    end.connect(ByteStream::plain(TcpStream::connect(address).unwrap()).unwrap()).unwrap();
    let remote = sublet_fabric::exposed::RemoteRegion { key: key.parse().unwrap(), base: 0, len_bytes: LEN };
    end.reach(OWN, remote).unwrap();
    let bytes = vec![1; 100_000];
    end.put_imm(own_line(0), Turn::of_use(0), 0, &[]).unwrap();
    while end.put(own_at(4096), &bytes).is_ok() {}
}

#[test]
fn a_peer_whose_process_is_killed_is_noticed_at_once() {
    for _ in 0..5 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let node = PairSide::new(LEN);
        let end = node.end(None);
        let key = end.expose(OWN).unwrap().key;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "ends::helper_that_puts_until_it_is_killed"])
            .env("CONFORMANCE_PARENT", format!("{key}@{}", listener.local_addr().unwrap()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        end.connect(ByteStream::plain(listener.accept().unwrap().0).unwrap()).unwrap();
        assert!(end.wait(node.line(0), Turn::of_use(0), None, || false), "{:?}", end.down());
        child.kill().unwrap();
        assert!(!end.wait(node.line(256), Turn::of_use(9), None, || false));
        assert!(end.down().is_some());
        child.wait().unwrap();
    }
}

#[test]
fn disconnect_wakes_all_waiters_and_fails_later_operations() {
    over(STREAMS, |pair| {
        let Endpoint::Tcp(ours) = &pair.end else { panic!("a network's end") };
        let node = PairSide::new(LEN);
        std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..4)
                .map(|number| {
                    let node = &node;
                    spawn_until_asleep(scope, move || {
                        ours.wait(node.line(number * 256), Turn::of_use(0), None, || false)
                    })
                })
                .collect();
            ours.disconnect("enough");
            for waiter in waiters {
                assert!(!waiter.join().unwrap());
            }
        });
        let error = pair.end.put(at(0), &[0; 100]).unwrap_err();
        assert!(matches!(&error, FabricError::Disconnected { reason } if reason == "enough"), "{error}");
        assert!(pair.end.get(at(0), &mut [0; 8]).is_err() && pair.end.fetch_add(at(0), 1).is_err());
        assert!(!ours.wait(node.line(0), Turn::of_use(0), None, || false), "at once");
    });
}

#[test]
fn an_end_goes_on_with_another_stream() {
    let nodes = [PairSide::new(LEN), PairSide::new(LEN)];
    let streams = plain();
    let (ours, theirs) = meet((&nodes[0], streams.0), (&nodes[1], streams.1));
    for n in 0..20 {
        ours.put(own_at(4096), &[n as u8; 9000]).unwrap();
        ours.put_imm(own_line(0), Turn::of_use(n), 0, &[]).unwrap();
        assert!(theirs.wait(nodes[1].line(0), Turn::of_use(n), None, || false));
        let streams = plain();
        if n % 2 == 0 {
            ours.disconnect("the next one");
            assert!(ours.put_imm(own_line(0), Turn::of_use(n), 0, &[]).is_err());
            ours.reach(OWN, theirs.expose(OWN).unwrap()).unwrap();
        }
        connect((&ours, streams.0), (&theirs, streams.1));
    }
}

#[test]
fn next_connection_does_not_answer_requests_of_the_last() {
    let (left, _silent) = sockets();
    let node = PairSide::new(LEN);
    let end = node.end(None);
    end.connect(ByteStream::plain(left).unwrap()).unwrap();
    let remote = sublet_fabric::exposed::RemoteRegion { key: 1 << 16, base: 0, len_bytes: LEN };
    end.reach(OWN, remote).unwrap();
    std::thread::scope(|scope| {
        let askers = [0, 1].map(|_| spawn_until_asleep(scope, || end.fetch_add(own_at(0), 1)));
        let (next, mut peer) = sockets();
        end.connect(ByteStream::plain(next).unwrap()).unwrap();
        for asker in askers {
            assert!(asker.join().unwrap().is_err());
        }
        // The new peer replies to a request that was never made to it.
        let frame = tcp::frame::Frame::AtomicReply { request: 0, before: 1 };
        peer.write_all(&frame.encode()).unwrap();
        assert!(!end.wait(node.line(0), Turn::of_use(0), None, || false));
        assert!(end.down().unwrap().contains("request 0"), "{:?}", end.down());
    });
}

#[test]
fn descriptor_reports_arrivals_and_outlives_the_stream() {
    let nodes = [PairSide::new(LEN), PairSide::new(LEN)];
    let streams = plain();
    let (ours, theirs) = meet((&nodes[0], streams.0), (&nodes[1], streams.1));
    let readable = theirs.readable().unwrap();
    let poll = |limit_ms: i64| {
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(readable, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 0, tv_nsec: limit_ms * 1_000_000 };
        rustix::event::poll(&mut fds, (limit_ms >= 0).then_some(&limit)).unwrap() > 0
    };
    assert!(!poll(1));
    for n in 0..3 {
        ours.put_imm(own_line(0), Turn::of_use(n), 0, &[]).unwrap();
        assert!(poll(-1));
        theirs.progress().unwrap();
        assert!(nodes[1].line(0).0.is(Turn::of_use(n)));
        assert!(!poll(1));
        let streams = plain();
        connect((&ours, streams.0), (&theirs, streams.1));
    }
    ours.disconnect("the end");
    assert!(poll(-1));
    let error = loop {
        match theirs.progress() {
            Ok(()) => assert!(poll(-1)),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("the end"), "{error}");
    assert!(!poll(1), "the end was reported already");
}
