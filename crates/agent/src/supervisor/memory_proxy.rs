//! Relays between a client on another machine and the socket on which its worker process asks for memory.
//!
//! Questions are passed on one at a time. A thread of its own passes the answers on. It turns the client's tickets into
//! what the process gets: the memory itself if the segment is on this node, and otherwise a connection to the memory.
//! That may take a while, and the supervisor waits for nothing.
//!
//! Invariants:
//! - The next question is taken from the process once the one before is answered.
//! - If a ticket in an answer cannot be used, the process gets the error instead, and the rest of that answer is
//!   dropped.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use prost::Message;
use sublet_fabric::packet::{PacketError, PacketSocket};
use sublet_fabric::region::{PAGE_BYTES, Region, bar_writers, read_only};
use sublet_proto::graph::MAX_SEGMENTS;
use sublet_proto::v1::memory_answer::Body;
use sublet_proto::v1::{self, MemoryAnswer};
use sublet_proto::{Code, Error, decode, to_usize};
use sublet_runtime::invited;
use tracing::info;

use crate::listener::arrivals::ArrivalQueues;
use crate::threads::start_thread;

/// How long a process may take to free buffer space for an answer.
const SEND_PATIENCE: Duration = Duration::from_secs(1);
/// Parts of answers that wait for the thread.
const MAX_WAITING: usize = to_usize(MAX_SEGMENTS) + 1;
/// Longest question, in bytes.
const MAX_QUESTION_BYTES: usize = 4096;

/// See the [module](self). Dropping this ends the process's requests.
pub(super) struct MemoryProxy {
    /// The client's number of the run.
    run: u32,
    socket: Arc<PacketSocket>,
    answers: SyncSender<ChannelAnswer>,
    state: State,
}

/// State of the questions.
enum State {
    /// The process may ask.
    Listening,
    /// The process waits for the answer to a question about this channel.
    Answering(u32),
    /// The process has closed its end, or sent an invalid message.
    Deaf,
}

struct ChannelAnswer {
    /// Channel of the question.
    channel: usize,
    body: Body,
}

impl MemoryProxy {
    /// Starts a relay for a run. Returns the process's end of the socket, too.
    pub(super) fn begin(run: u32, links: Arc<ArrivalQueues>) -> Result<(MemoryProxy, PacketSocket), Error> {
        let (here, there) = PacketSocket::pair()?;
        here.set_send_timeout(SEND_PATIENCE)?;
        let socket = Arc::new(here);
        let (answers, coming) = sync_channel(MAX_WAITING);
        let thread = ProxyThread { links, socket: socket.clone(), states: Vec::new(), is_refused: false };
        start_thread("sublet-usher", move || thread.run(&coming))?;
        Ok((MemoryProxy { run, socket, answers, state: State::Listening }, there))
    }

    /// A descriptor that is readable when the process asks, unless a question is being answered.
    pub(super) fn asks(&self) -> Option<BorrowedFd<'_>> {
        matches!(self.state, State::Listening).then(|| self.socket.as_fd())
    }

    /// Takes a question for the client, if there is a valid one.
    pub(super) fn hear(&mut self) -> Option<v1::RunMessage> {
        let packet = match self.socket.receive(Some(Duration::ZERO)) {
            Ok(Some(packet)) if packet.bytes.len() <= MAX_QUESTION_BYTES => packet,
            Err(PacketError::TimedOut(_)) => return None,
            _ => return self.hear_no_more(),
        };
        match decode::<v1::MemoryQuestion>("a question about memory", &packet.bytes) {
            Ok(question) => {
                self.state = State::Answering(question.channel);
                Some(v1::RunMessage { run: self.run, message: packet.bytes })
            }
            Err(_) => self.hear_no_more(),
        }
    }

    fn hear_no_more(&mut self) -> Option<v1::RunMessage> {
        self.socket.shutdown();
        self.state = State::Deaf;
        None
    }

    /// Whether a message of the client answers a question.
    pub(super) fn awaits(&self, message: &v1::RunMessage) -> bool {
        self.run == message.run && matches!(self.state, State::Answering(_))
    }

    /// Passes on the client's answer. An error is the client's fault.
    pub(super) fn answer(&mut self, message: &v1::RunMessage) -> Result<(), Error> {
        if self.run != message.run {
            return Ok(());
        }
        let answer: MemoryAnswer = decode("an answer about memory", &message.message)?;
        let body = answer.body.ok_or_else(|| Error::new(Code::Protocol, "an empty answer about memory"))?;
        let channel = match (&self.state, &body) {
            (_, Body::Channel(_)) => 0,
            (State::Answering(channel), _) => *channel as usize,
            (State::Deaf, _) => return Ok(()),
            (State::Listening, _) => return Err(Error::new(Code::Protocol, "an answer to no question")),
        };
        if matches!(body, Body::There(_) | Body::Failure(_)) {
            self.state = State::Listening;
        }
        match self.answers.try_send(ChannelAnswer { channel, body }) {
            // A process that has closed its end needs no answer.
            Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
            Err(TrySendError::Full(_)) => {
                Err(Error::new(Code::Protocol, format!("an answer in more than {MAX_WAITING} parts")))
            }
        }
    }
}

impl Drop for MemoryProxy {
    fn drop(&mut self) {
        self.socket.shutdown();
    }
}

struct ProxyThread {
    links: Arc<ArrivalQueues>,
    socket: Arc<PacketSocket>,
    /// Page of each channel by which the process learns of the end of memory that it has mapped.
    states: Vec<Arc<Region>>,
    /// The rest of this answer is dropped.
    is_refused: bool,
}

impl ProxyThread {
    fn run(mut self, coming: &Receiver<ChannelAnswer>) {
        while let Ok(answer) = coming.recv() {
            if let Err(error) = self.pass(answer) {
                info!(%error, "a worker process takes no answers about memory");
                break;
            }
        }
        self.socket.shutdown();
    }

    fn pass(&mut self, ChannelAnswer { channel, body }: ChannelAnswer) -> Result<(), Error> {
        let is_end = matches!(body, Body::There(_) | Body::Failure(_));
        if self.is_refused {
            self.is_refused = !is_end;
            return Ok(());
        }
        let (body, file) = match self.made(channel, body) {
            Ok(made) => made,
            Err(Error { code, message }) => {
                self.is_refused = true;
                (Body::Failure(v1::Failure { code: code.number(), message }), None)
            }
        };
        let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        Ok(self.socket.send(&MemoryAnswer { body: Some(body) }.encode_to_vec(), &files)?)
    }

    /// Turns a part of an answer into what the process gets.
    fn made(&mut self, channel: usize, body: Body) -> Result<(Body, Option<OwnedFd>), Error> {
        match body {
            Body::Channel(told) => {
                let state = Region::create("sublet-channel", PAGE_BYTES)?;
                bar_writers(state.fd())?;
                let file = read_only(state.fd())?;
                self.states.push(Arc::new(state));
                Ok((Body::Channel(v1::Channel { is_far: true, ..told }), Some(file)))
            }
            Body::Piece(piece) => {
                let (piece, file) = self.reach(channel, piece)?;
                Ok((Body::Piece(piece), file))
            }
            end => Ok((end, None)),
        }
    }

    /// Opens the memory of a segment of this node, or a connection to that of another node, if the process may have it.
    fn reach(&self, channel: usize, piece: v1::Piece) -> Result<(v1::Piece, Option<OwnedFd>), Error> {
        let protocol = |message: &str| Error::new(Code::Protocol, message);
        let ticket = piece.ticket.as_ref().ok_or_else(|| protocol("memory without a ticket"))?;
        let invited = ticket.invited.as_ref().ok_or_else(|| protocol("a ticket without an invitation"))?;
        let state = channel.checked_sub(1).and_then(|index| self.states.get(index));
        let state = state.ok_or_else(|| protocol("memory of no channel"))?;
        if ticket.joins.is_none() {
            let secret = invited::secret_of(invited)?;
            if let Some(file) = self.links.admit(&piece.segment, (invited.guest, &secret), state)? {
                return Ok((v1::Piece { ticket: None, ..piece }, Some(file)));
            }
        }
        let (connected, socket) = invited::connected(&piece.segment, ticket)?;
        Ok((v1::Piece { ticket: None, connected: Some(connected), ..piece }, socket.map(OwnedFd::from)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_proto::v1::{Channel, MemoryQuestion, MemoryThere, Piece, RunMessage};

    const RUN: u32 = 7;

    fn memory_proxy() -> (MemoryProxy, PacketSocket) {
        MemoryProxy::begin(RUN, Arc::default()).unwrap()
    }

    fn answer(memory_proxy: &mut MemoryProxy, run: u32, body: Body) -> Result<(), Error> {
        memory_proxy.answer(&RunMessage { run, message: MemoryAnswer { body: Some(body) }.encode_to_vec() })
    }

    fn ask(process: &PacketSocket, channel: u32) -> Vec<u8> {
        let question = MemoryQuestion { channel, end_bytes: 1, ..MemoryQuestion::default() }.encode_to_vec();
        process.send(&question, &[]).unwrap();
        question
    }

    fn hear(process: &PacketSocket) -> (Body, usize) {
        let packet = process.receive(Some(Duration::from_secs(180))).unwrap().unwrap();
        (MemoryAnswer::decode(packet.bytes.as_slice()).unwrap().body.unwrap(), packet.fds.len())
    }

    fn there() -> Body {
        Body::There(MemoryThere { len_bytes: 9, ended: 0 })
    }

    #[test]
    fn a_question_is_heard_when_the_one_before_is_answered() {
        let (mut memory_proxy, process) = memory_proxy();
        assert!(memory_proxy.hear().is_none() && memory_proxy.asks().is_some());
        let (first, second) = (ask(&process, 1), ask(&process, 2));
        assert_eq!(memory_proxy.hear().unwrap(), RunMessage { run: RUN, message: first });
        assert!(memory_proxy.asks().is_none());
        let of = |run| RunMessage { run, message: Vec::new() };
        assert!(memory_proxy.awaits(&of(RUN)) && !memory_proxy.awaits(&of(RUN - 1)));
        // An answer for an earlier run is ignored.
        answer(&mut memory_proxy, RUN - 1, there()).unwrap();
        assert!(memory_proxy.asks().is_none());
        answer(&mut memory_proxy, RUN, there()).unwrap();
        assert_eq!(hear(&process), (there(), 0));
        assert!(memory_proxy.asks().is_some() && !memory_proxy.awaits(&of(RUN)));
        assert_eq!(memory_proxy.hear().unwrap().message, second);
    }

    #[test]
    fn rejects_unrequested_answers_and_ignores_invalid_questions() {
        let (mut memory_proxy, process) = memory_proxy();
        assert_eq!(answer(&mut memory_proxy, RUN, there()).unwrap_err().code, Code::Protocol);
        let nonsense = RunMessage { run: RUN, message: b"\xff".to_vec() };
        assert_eq!(memory_proxy.answer(&nonsense).unwrap_err().code, Code::Protocol);
        process.send(b"\xff\xff", &[]).unwrap();
        assert!(memory_proxy.hear().is_none() && memory_proxy.asks().is_none());
        answer(&mut memory_proxy, RUN, there()).unwrap();
        assert!(process.receive(Some(Duration::from_secs(180))).unwrap().is_none());
    }

    #[test]
    fn each_channel_has_a_page_that_the_process_reads() {
        let (mut memory_proxy, process) = memory_proxy();
        let told = Channel { component: "numbers".into(), writable: true, ..Channel::default() };
        answer(&mut memory_proxy, RUN, Body::Channel(told.clone())).unwrap();
        let packet = process.receive(Some(Duration::from_secs(180))).unwrap().unwrap();
        let said = MemoryAnswer::decode(packet.bytes.as_slice()).unwrap().body.unwrap();
        assert_eq!(said, Body::Channel(Channel { is_far: true, ..told }));
        let [file] = <[OwnedFd; 1]>::try_from(packet.fds).unwrap();
        assert!(Region::attach(file.try_clone().unwrap(), PAGE_BYTES).is_err());
        Region::attach_to_read(file, PAGE_BYTES).unwrap();
    }

    #[test]
    fn reports_unreachable_memory_once_and_serves_the_next_question() {
        let (mut memory_proxy, process) = memory_proxy();
        answer(&mut memory_proxy, RUN, Body::Channel(Channel::default())).unwrap();
        hear(&process);
        ask(&process, 1);
        memory_proxy.hear().unwrap();
        let nobody = v1::Invited { guest: 1, secret: vec![7; 32], ..v1::Invited::default() };
        let ticket = v1::SegmentTicket { address: "127.0.0.1:1".into(), invited: Some(nobody), joins: None };
        let segment = "0123456789abcdef0123456789abcdef".to_owned();
        let piece = || {
            Body::Piece(Piece { segment: segment.clone(), ticket: Some(ticket.clone()), ..Piece::default() })
        };
        answer(&mut memory_proxy, RUN, piece()).unwrap();
        answer(&mut memory_proxy, RUN, piece()).unwrap();
        answer(&mut memory_proxy, RUN, there()).unwrap();
        let (said, files) = hear(&process);
        assert!(matches!(said, Body::Failure(failure) if failure.code == Code::AgentUnreachable.number()));
        assert_eq!(files, 0);
        ask(&process, 1);
        memory_proxy.hear().unwrap();
        answer(&mut memory_proxy, RUN, there()).unwrap();
        assert_eq!(hear(&process), (there(), 0));
    }
}
