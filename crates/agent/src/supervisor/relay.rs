//! Relays between a client on another node and its worker process: messages in both directions, and the workers'
//! connections.
//!
//! The client has no descriptor of the worker's control socket, so the supervisor keeps it. A worker answers each of
//! its client's messages once; those answers are relayed. An unrequested message is kept as the worker's last words, in
//! case it ends, and only one such message is accepted.
//!
//! Invariants:
//! - Nothing of a worker process is relayed after the client was informed of its end.
//! - A client that sends faster than its worker answers, or a worker that sends unrequested messages, loses the process
//!   or the lease; neither makes the agent keep more than a few messages.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use sublet_fabric::greeting::PULSE;
use sublet_fabric::packet::{PacketError, PacketSocket};
use sublet_proto::text::printable_line;
use sublet_proto::v1::worker_to_client::Body as FromWorker;
use sublet_proto::v1::{self, ClientToWorker, WorkerToClient, client_to_worker};
use sublet_proto::{Code, Error, MAX_PACKET_BYTES, decode};
use tracing::{debug, info};

use super::memory_proxy::MemoryProxy;
use crate::listener::arrivals::{ArrivalQueues, ArrivedConnection, OpenArrivalQueue};
use crate::listener::transport::NetworkTransport;
use crate::node::Node;
use crate::signal::wait_readable;

/// How long a worker process may take to free buffer space for a message.
const SEND_PATIENCE: Duration = Duration::from_secs(1);
/// Messages of a client that its worker has not answered yet.
const MAX_UNANSWERED: u32 = 256;
/// Longest message of a worker that is relayed, in bytes: the longest packet less what encloses the message.
const MAX_RELAYED_BYTES: usize = MAX_PACKET_BYTES - 64;
/// Steps that a worker tells before it is ready: one every two seconds for a day, and those of its imports.
const MAX_STEPS: u32 = 50_000;
/// Longest step, in characters.
const MAX_STEP_CHARS: usize = 200;
/// Longest last words, in characters.
const MAX_LAST_WORDS: usize = 512;

/// See the [module](self).
pub(super) struct WorkerRelay {
    /// Arrival queue for connections over tcp; a segment has none.
    arrival_queue: Option<OpenArrivalQueue>,
    /// Arrival queues of the node, if it is on a network.
    links: Option<Arc<ArrivalQueues>>,
    next_alive: Instant,
    process: Option<RelayedProcess>,
}

/// The worker process that runs.
struct RelayedProcess {
    /// Control socket, until either end closes it.
    control: Option<PacketSocket>,
    unanswered: u32,
    /// Number of steps that it has told.
    steps: u32,
    /// Whether the process has answered that it is ready.
    is_ready: bool,
    last_words: Option<Error>,
    /// Relay for requests of memory, while the process executes a component that accesses memory.
    memory_proxy: Option<MemoryProxy>,
}

/// Outcome of a message.
pub(super) enum RelayOutcome {
    Nothing,
    /// An answer to send to the client.
    ToClient(Vec<u8>),
    /// A step of the worker's start, for the client.
    Step(String),
    /// The worker process has to be stopped, for this reason.
    Stop(String),
}

impl WorkerRelay {
    /// Creates the relay for the processes of a lease.
    pub(super) fn new(
        node: &Node,
        lease: &v1::Lease,
        network_transport: &NetworkTransport,
    ) -> Result<WorkerRelay, Error> {
        let arrival_queue = match (&node.clients.listener_state, network_transport.secret) {
            (Some(listener_state), Some(secret)) if !lease.is_segment() => {
                Some(listener_state.links.open(&lease.id, (secret, lease.workers()), None)?)
            }
            _ => None,
        };
        let links = node.clients.listener_state.as_ref().map(|listener_state| listener_state.links.clone());
        Ok(WorkerRelay { arrival_queue, links, next_alive: Instant::now(), process: None })
    }

    /// Begins to relay for a worker process. `control` is the client's end of its control socket.
    pub(super) fn begin(&mut self, control: PacketSocket) -> Result<(), Error> {
        control.set_send_timeout(SEND_PATIENCE)?;
        let control = Some(control);
        self.process = Some(RelayedProcess {
            control,
            unanswered: 0,
            steps: 0,
            is_ready: false,
            last_words: None,
            memory_proxy: None,
        });
        Ok(())
    }

    /// Ends the relay of a worker process. Returns the answers that are still to be sent to the client, and the last
    /// words.
    pub(super) fn end(&mut self) -> (Vec<Vec<u8>>, Option<Error>) {
        let mut left = Vec::new();
        // The worker sends no more answers than there were questions, and a bounded number of steps; any other message
        // ends the loop.
        while self.has_spoken() {
            match self.hear() {
                RelayOutcome::ToClient(answer) => left.push(answer),
                RelayOutcome::Step(_) => {}
                RelayOutcome::Nothing | RelayOutcome::Stop(_) => break,
            }
        }
        let process = self.process.take();
        (left, process.and_then(|process| process.last_words))
    }

    /// A descriptor that is readable when the worker has sent a message.
    pub(super) fn control(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref()?.control.as_ref().map(PacketSocket::as_fd)
    }

    /// A descriptor that is readable when the worker requests memory.
    pub(super) fn asks(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref()?.memory_proxy.as_ref()?.asks()
    }

    /// Takes the worker's request for memory, for the client.
    pub(super) fn question(&mut self) -> Option<v1::RunMessage> {
        self.process.as_mut()?.memory_proxy.as_mut()?.hear()
    }

    /// Whether the relay waits for this answer of the client.
    pub(super) fn awaits(&self, message: &v1::RunMessage) -> bool {
        let memory_proxy = self.process.as_ref().and_then(|process| process.memory_proxy.as_ref());
        memory_proxy.is_some_and(|memory_proxy| memory_proxy.awaits(message))
    }

    /// Passes on the client's answer about memory. Answers for a process that is gone are dropped.
    pub(super) fn answer(&mut self, message: &v1::RunMessage) -> Result<(), Error> {
        let memory_proxy = self.process.as_mut().and_then(|process| process.memory_proxy.as_mut());
        memory_proxy.map_or(Ok(()), |memory_proxy| memory_proxy.answer(message))
    }

    /// A descriptor that is readable when connections have arrived.
    pub(super) fn arrived(&self) -> Option<BorrowedFd<'_>> {
        self.arrival_queue.as_ref().map(|open| open.arrival_queue.arrived.as_fd())
    }

    pub(super) fn next_alive(&self) -> Instant {
        self.next_alive
    }

    pub(super) fn has_told_alive(&mut self, now: Instant) {
        self.next_alive = now + PULSE;
    }

    /// Passes a client's message on. Without a process there is no answer: the client is informed of the end, or was
    /// already.
    pub(super) fn ask(&mut self, message: &[u8]) -> Result<RelayOutcome, Error> {
        let Some(process) = &mut self.process else { return Ok(RelayOutcome::Nothing) };
        let Some(control) = &process.control else { return Ok(RelayOutcome::Nothing) };
        if process.unanswered >= MAX_UNANSWERED {
            let message = format!("the worker has {MAX_UNANSWERED} messages to answer already");
            return Err(Error::new(Code::Protocol, message));
        }
        let mut socket = None;
        // The worker refuses messages that make no sense.
        if let Ok(ClientToWorker { body: Some(client_to_worker::Body::Run(run)) }) =
            decode("a client's message to its worker", message)
        {
            // The relay of an earlier run ends here.
            process.memory_proxy = None;
            if let Some(links) = self.links.as_ref().filter(|_| run.channels > 0) {
                let (memory_proxy, theirs) = MemoryProxy::begin(run.number, links.clone())?;
                (process.memory_proxy, socket) = (Some(memory_proxy), Some(theirs));
            }
        }
        let sockets: Vec<_> = socket.iter().map(AsFd::as_fd).collect();
        match control.send(message, &sockets) {
            Ok(()) => process.unanswered += 1,
            // The worker's end will be noticed.
            Err(PacketError::PeerGone) => {}
            Err(PacketError::TimedOut(_)) => {
                return Ok(RelayOutcome::Stop("it takes no messages".to_owned()));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(RelayOutcome::Nothing)
    }

    /// Receives a message of the worker.
    pub(super) fn hear(&mut self) -> RelayOutcome {
        let Some(process) = &mut self.process else { return RelayOutcome::Nothing };
        let Some(control) = &process.control else { return RelayOutcome::Nothing };
        match control.receive(Some(Duration::ZERO)) {
            Ok(Some(packet)) => process.take(packet.bytes),
            Err(PacketError::TimedOut(_)) => RelayOutcome::Nothing,
            Ok(None) => {
                process.control = None;
                RelayOutcome::Nothing
            }
            Err(error) => RelayOutcome::Stop(format!("it cannot be understood: {error}")),
        }
    }

    /// Passes on the connections that have arrived, or refuses them.
    pub(super) fn pass_links(&self) {
        let Some(open) = &self.arrival_queue else { return };
        for arrival in open.arrival_queue.take() {
            match self.pass_link(&arrival) {
                // A client that is gone meanwhile needs no answer.
                Ok(()) => drop(arrival.greeting.accept(&arrival.socket)),
                Err(error) => {
                    info!(worker = arrival.worker, %error, "a worker's connection was refused");
                    arrival.greeting.refuse(&arrival.socket, &error);
                }
            }
        }
    }

    fn pass_link(&self, arrival: &ArrivedConnection) -> Result<(), Error> {
        let process = self.process.as_ref().and_then(|process| process.control.as_ref());
        let control =
            process.ok_or_else(|| Error::new(Code::WorkerDied, "no worker process of the lease runs"))?;
        let link = client_to_worker::Body::Link(v1::Link { worker: arrival.worker });
        let message = ClientToWorker { body: Some(link) }.encode_to_vec();
        debug!(worker = arrival.worker, "a worker's connection is passed on");
        control.send(&message, &[arrival.socket.as_fd()]).map_err(|error| {
            Error::new(Code::WorkerDied, format!("the worker process does not take the connection: {error}"))
        })
    }

    fn has_spoken(&self) -> bool {
        let fds = [self.control()];
        fds[0].is_some() && matches!(wait_readable(fds, Some(Instant::now())), Ok([true]))
    }
}

impl RelayedProcess {
    fn take(&mut self, said: Vec<u8>) -> RelayOutcome {
        let body = match decode::<WorkerToClient>("a worker's message", &said) {
            Ok(WorkerToClient { body: Some(body) }) => body,
            Ok(WorkerToClient { body: None }) => return RelayOutcome::Stop("it said nothing".to_owned()),
            Err(error) => return RelayOutcome::Stop(error.message),
        };
        if said.len() > MAX_RELAYED_BYTES {
            return RelayOutcome::Stop(format!("it said {} bytes at once", said.len()));
        }
        if let FromWorker::Progress(progress) = &body
            && !self.is_ready
            && self.steps < MAX_STEPS
        {
            self.steps += 1;
            let step = printable_line(&progress.step).chars().take(MAX_STEP_CHARS).collect();
            return RelayOutcome::Step(step);
        }
        if self.unanswered > 0 {
            self.unanswered -= 1;
            self.is_ready |= matches!(body, FromWorker::Ready(_));
            return RelayOutcome::ToClient(said);
        }
        match body {
            FromWorker::Failure(failure) if self.last_words.is_none() => {
                // Before it is ready a client learns by the code why it cannot be; later, that it died, or that a function
                // has written over what its worker needs.
                let code = match Code::from_number(failure.code) {
                    code if !self.is_ready || code == Code::Protocol => code,
                    _ => Code::WorkerDied,
                };
                let words = printable_line(&failure.message).chars().take(MAX_LAST_WORDS).collect::<String>();
                self.last_words = Some(Error::new(code, words));
                RelayOutcome::Nothing
            }
            _ => RelayOutcome::Stop("it spoke without being asked".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_proto::v1::{Failure, Ready, RegionMapped};

    fn relay() -> (WorkerRelay, PacketSocket) {
        let (ours, workers) = PacketSocket::pair().unwrap();
        let mut relay =
            WorkerRelay { arrival_queue: None, links: None, next_alive: Instant::now(), process: None };
        relay.begin(ours).unwrap();
        (relay, workers)
    }

    fn say(worker: &PacketSocket, body: FromWorker) -> Vec<u8> {
        let bytes = WorkerToClient { body: Some(body) }.encode_to_vec();
        worker.send(&bytes, &[]).unwrap();
        bytes
    }

    fn failure(code: Code, message: &str) -> FromWorker {
        FromWorker::Failure(Failure { code: code.number(), message: message.into() })
    }

    #[test]
    fn a_worker_answers_each_message_once() {
        let (mut relay, worker) = relay();
        assert!(matches!(relay.ask(b"question"), Ok(RelayOutcome::Nothing)));
        assert_eq!(worker.receive(None).unwrap().unwrap().bytes, b"question");
        let answer = say(&worker, FromWorker::RegionMapped(RegionMapped::default()));
        assert!(matches!(relay.hear(), RelayOutcome::ToClient(said) if said == answer));
        assert!(matches!(relay.hear(), RelayOutcome::Nothing));
        say(&worker, FromWorker::RegionMapped(RegionMapped::default()));
        assert!(matches!(relay.hear(), RelayOutcome::Stop(_)));
    }

    #[test]
    fn relays_steps_until_the_worker_is_ready() {
        let (mut relay, worker) = relay();
        relay.ask(b"connect").unwrap();
        let step = |text: &str| FromWorker::Progress(v1::Progress { step: text.into() });
        say(&worker, step("importing\ntorch"));
        assert!(matches!(relay.hear(), RelayOutcome::Step(step) if step == "importing\\x0atorch"));
        let answer = say(&worker, FromWorker::Ready(Ready::default()));
        assert!(matches!(relay.hear(), RelayOutcome::ToClient(said) if said == answer));
        say(&worker, step("more"));
        assert!(matches!(relay.hear(), RelayOutcome::Stop(_)), "nothing loads any more");
    }

    #[test]
    fn what_is_no_message_stops_the_worker() {
        for bytes in [&b"\xff\xff"[..], b"\x7a\x00"] {
            let (mut relay, worker) = relay();
            relay.ask(b"question").unwrap();
            worker.send(bytes, &[]).unwrap();
            assert!(matches!(relay.hear(), RelayOutcome::Stop(_)), "{bytes:?}");
        }
    }

    #[test]
    fn delivers_answers_and_reports_last_words_of_a_worker() {
        let (mut early, worker) = relay();
        say(&worker, failure(Code::InvalidPackage, "no such\n\x1b[2J\u{202e}symbol"));
        drop(worker);
        let (left, words) = early.end();
        assert!(left.is_empty());
        assert_eq!(words.unwrap(), Error::new(Code::InvalidPackage, "no such\\x0a\\x1b[2J\\u{202e}symbol"));

        let (mut late, worker) = relay();
        late.ask(b"connect").unwrap();
        let answer = say(&worker, FromWorker::Ready(Ready::default()));
        say(&worker, failure(Code::AgentUnreachable, "the connection was lost"));
        drop(worker);
        let (left, words) = late.end();
        assert_eq!((left, words.unwrap().code), (vec![answer], Code::WorkerDied));
        assert!(late.control().is_none());
    }

    #[test]
    fn bounds_unanswered_questions_and_drops_them_without_a_process() {
        let (mut relay, _worker) = relay();
        for _ in 0..MAX_UNANSWERED {
            relay.ask(b"question").unwrap();
        }
        assert_eq!(relay.ask(b"question").err().unwrap().code, Code::Protocol);
        relay.end();
        assert!(matches!(relay.ask(b"question"), Ok(RelayOutcome::Nothing)));
    }

    #[test]
    fn stops_listening_to_a_worker_that_closes_its_end() {
        let (mut relay, worker) = relay();
        drop(worker);
        assert!(matches!(relay.hear(), RelayOutcome::Nothing));
        assert!(relay.control().is_none());
    }
}
