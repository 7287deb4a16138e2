//! Tests the records of a queue, and threads that receive from one queue at once.

use std::thread;

use prost::Message;
use sublet_fabric::packet::PacketSocket;
use sublet_fabric::region::{PAGE_BYTES, Region};
use sublet_proto::v1::memory_answer::Body;

use super::super::channel;
use super::*;
use crate::memory::pieces::CacheSize;

/// Answers a process's question, with the memory behind the answer.
fn answer(process: &PacketSocket, body: Body, memory: Option<&Region>) {
    let files: Vec<_> = memory.iter().map(|memory| memory.fd()).collect();
    process.send(&v1::MemoryAnswer { body: Some(body) }.encode_to_vec(), &files).unwrap();
}

/// A channel with two queues, whose client is a thread that answers its questions. It has one worker.
fn channel_of_two_queues() -> Channel {
    let (client, process) = PacketSocket::pair().unwrap();
    let len_bytes = 2 * QUEUE_BYTES;
    let (state, queues) = (Region::create("state", PAGE_BYTES), Region::create("queues", len_bytes));
    let (state, queues) = (state.unwrap(), queues.unwrap());
    let told = v1::Channel {
        component: "ask~tell".into(),
        writable: true,
        limit_bytes: len_bytes,
        reserved_bytes: len_bytes,
        ..v1::Channel::default()
    };
    answer(&client, Body::Channel(told), Some(&state));
    thread::spawn(move || {
        while let Ok(Some(question)) = client.receive(None) {
            let question = v1::MemoryQuestion::decode(&question.bytes[..]).unwrap();
            if question.end_bytes > question.have_bytes {
                let piece = v1::Piece { len_bytes, segment: "s".into(), ..v1::Piece::default() };
                answer(&client, Body::Piece(piece), Some(&queues));
            }
            answer(&client, Body::There(v1::MemoryThere { len_bytes, ended: 0 }), None);
        }
    });
    channel::receive(1, vec![process.into()], 1, CacheSize::within(0)).unwrap().remove(0)
}

/// The two ends of the queues: the instance that receives, and the one that sends to it.
fn ends() -> [v1::Mailbox; 2] {
    let end = |peer: &str, own_queue, peer_queue| v1::Mailbox {
        peer: peer.into(),
        peers: 1,
        own_queue,
        peer_queue,
        peer_end: own_queue,
    };
    [end("tell", 0, 1), end("ask", 1, 0)]
}

const FIRST: QueueReceiver = QueueReceiver { instance: 0, worker: 0 };

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(60))
}

#[test]
fn threads_that_receive_at_once_get_each_message_once() {
    const MESSAGES: u32 = 20_000;
    let channel = channel_of_two_queues();
    let [receiving, sending] = ends();
    let receive = || {
        let mailbox = Mailbox { channel: &channel, told: &receiving };
        let (mut found, mut bytes) = (Vec::new(), [0_u8; 4]);
        loop {
            let (len, _) = mailbox.receive(FIRST, (&mut bytes).into(), soon()).unwrap();
            match (len, u32::from_ne_bytes(bytes)) {
                (4, u32::MAX) => return found,
                (4, number) => found.push(number),
                (other, _) => panic!("a message of {other} bytes"),
            }
        }
    };
    let mut found = thread::scope(|scope| {
        let receivers = [scope.spawn(receive), scope.spawn(receive)];
        let mailbox = Mailbox { channel: &channel, told: &sending };
        for number in (0..MESSAGES).chain([u32::MAX; 2]) {
            mailbox.send(0, 0, (&number.to_ne_bytes()).into(), soon()).unwrap();
        }
        receivers.map(|receiver| receiver.join().unwrap()).concat()
    });
    found.sort_unstable();
    assert!(found.iter().copied().eq(0..MESSAGES), "{} of {MESSAGES} messages", found.len());
}

#[test]
fn message_stays_while_another_thread_takes_from_its_queue() {
    let channel = channel_of_two_queues();
    let [receiving, sending] = ends();
    Mailbox { channel: &channel, told: &sending }.send(0, 0, b"word".into(), soon()).unwrap();
    let mailbox = Mailbox { channel: &channel, told: &receiving };
    let mut bytes = [0_u8; 8];
    let claim = channel.claim_queue(0).unwrap();
    let refused = mailbox.receive(FIRST, (&mut bytes).into(), Some(Instant::now())).unwrap_err();
    let ReceiveError::Error(error) = refused else { panic!("{refused:?}") };
    assert_eq!(error.code, Code::DeadlineExceeded);
    assert_eq!(error.message, "another thread receives from component tell at the same time");
    drop(claim);
    assert_eq!(mailbox.receive(FIRST, (&mut bytes).into(), soon()).unwrap(), (4, 0));
    assert_eq!(&bytes[..4], b"word");
}

#[test]
fn records_are_contiguous_and_skip_the_rest_of_the_ring() {
    assert_eq!(Record::at(0, 0), Record { at: 0, skipped: 0, bytes: 8 });
    assert_eq!(Record::at(16, 9), Record { at: 16, skipped: 0, bytes: 24 });
    let last = RING_BYTES - 16;
    assert_eq!(Record::at(RING_BYTES + last, 8), Record { at: last, skipped: 0, bytes: 16 });
    assert_eq!(Record::at(RING_BYTES + last, 9), Record { at: 0, skipped: 16, bytes: 24 });
    assert_eq!(Record::at(last, 9).end(last), Some(RING_BYTES + 24));
    assert!(RING_BYTES.is_multiple_of(WORD_BYTES) && MAX_MESSAGE_BYTES + 8 < RING_BYTES / 2);
}

#[test]
fn refuses_positions_and_lengths_that_no_sender_has_written() {
    let code = |refused: Result<(), Error>| refused.unwrap_err().code;
    let claimed = |head, tail| code(Record::claimed(head, tail, 9).map(drop));
    // Positions within a word, and a tail whose record would end beyond the last position.
    assert_eq!(claimed(0, 3), Code::Protocol);
    assert_eq!(claimed(RING_BYTES - 1, RING_BYTES), Code::Protocol);
    for tail in [u64::MAX - 7, u64::MAX - 15] {
        assert_eq!(claimed(tail - 8, tail), Code::Protocol, "{tail}");
    }
    let received = |head, len| code(Record::received(head, len).map(drop));
    assert_eq!(received(5, 9), Code::Protocol);
    assert_eq!(received(0, MAX_MESSAGE_BYTES as u32 + 1), Code::Protocol);
    // Its end would be in the next queue.
    assert_eq!(received(RING_BYTES - 8, 1), Code::Protocol);
    assert_eq!(Record::received(RING_BYTES - 8, 0).unwrap().bytes, 8);
}

#[test]
fn records_of_any_positions_are_within_the_ring() {
    let ends = [0, 8, RING_BYTES - 8, RING_BYTES, u64::MAX - 7, u64::MAX / 2 + 1];
    for (head, tail) in ends.iter().flat_map(|head| ends.iter().map(move |tail| (*head, *tail))) {
        for len in [0, 1, 8, MAX_MESSAGE_BYTES] {
            if let Ok(Some((record, end))) = Record::claimed(head, tail, len) {
                assert!(record.at + record.bytes <= RING_BYTES, "{record:?}");
                assert!(record.at.is_multiple_of(WORD_BYTES) && end > tail, "{record:?} up to {end}");
            }
        }
    }
    assert_eq!(Record::claimed(0, RING_BYTES, 0).unwrap(), None, "the ring is full");
    assert!(Record::claimed(8, RING_BYTES, 0).unwrap().is_some());
}

#[test]
fn word_encodes_length_and_sender_and_is_never_zero() {
    for (len, from) in [(0, 0), (1, 7), (MAX_MESSAGE_BYTES as u32, u32::MAX), (SKIP, 0)] {
        assert_eq!(read_word(word(len, from)), Some((len, from)));
    }
    assert_eq!(read_word(0), None);
}
