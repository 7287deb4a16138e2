//! Passes the memory components of a run to the workers that access them.
//!
//! Each worker process has a socket on which it requests memory, and a thread here that answers: with the files of
//! segments, opened with the rights of the edge, or with connections to segments of other machines. On another machine
//! the process has this socket from its agent, which relays requests and answers, and exchanges tickets for
//! connections. So only processes that have received a segment from its run reach it. A process has one connection to
//! each node, which further segments there join.
//!
//! A process that was leased ahead receives its run before its component begins, and joins the segments that exist then
//! (Scad 4.2.3). It counts as one that accesses them once the component begins. If the component's memory is not the same
//! by then, or was made shorter, the process receives its run again.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message;
use sublet_fabric::packet::PacketSocket;
use sublet_fabric::region::read_only;
use sublet_fabric::sync::{AtomicU32, Ordering};
use sublet_proto::graph::MemoryRights;
use sublet_proto::v1::{self, memory_answer};
use sublet_proto::{Code, Error, decode};

use super::{Channels, ComponentAccess, MemoryComponent};
use crate::lease::ClientLease;
use crate::lease::link::{lock, protocol};
use crate::lease::run::RunMemoryAccess;
use crate::memory::invited;
use crate::memory::piece::MemoryPiece;
use crate::worker::channel::{ENDED_AT, LEN_AT, shared};

/// Longest time that a worker may take to receive an answer.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Time at which a worker process receives its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::run) enum LinkTime {
    /// Before its component begins: the process joins the memory that exists.
    Ahead,
    /// When its component begins.
    Begin,
}

/// Segments that a process joins before its component begins.
struct JoinedAhead {
    /// 1 once the component has begun. Written by the component's thread.
    has_begun: AtomicU32,
    /// For each channel, 1 once the process has requested the segments that exist. Written by the thread that answers,
    /// before it looks for them.
    asked: Box<[AtomicU32]>,
    /// Number of segments that were passed to the process at its request for what exists. Written by the thread that
    /// answers.
    segments: AtomicU32,
}

impl JoinedAhead {
    fn new(time: LinkTime, channels: usize) -> JoinedAhead {
        JoinedAhead {
            has_begun: AtomicU32::new(u32::from(time == LinkTime::Begin)),
            asked: (0..channels).map(|_| AtomicU32::new(0)).collect(),
            segments: AtomicU32::new(0),
        }
    }
}

/// Opens the file again with only these rights.
fn opened(file: BorrowedFd<'_>, rights: MemoryRights) -> Result<OwnedFd, Error> {
    match rights {
        MemoryRights::Write => {
            file.try_clone_to_owned().map_err(|error| Error::of_system("dup of memory", &error))
        }
        MemoryRights::Read => Ok(read_only(file)?),
    }
}

/// The connection by which a worker process requests memory. It is closed when this is dropped.
pub(in crate::run) struct Link {
    way: Option<Arc<RequestPath>>,
    channels: Channels,
    /// The process's first instance.
    first: u32,
    joined: Arc<JoinedAhead>,
    /// For each channel, the number of requests to make it shorter before the process received the run.
    cuts: Vec<u32>,
    lease: Arc<ClientLease>,
    /// Number of the worker processes that had ended before the one that has received the run.
    exits: u64,
}

impl Link {
    /// Sends a lease's worker process the run, and lets it access these components.
    pub(in crate::run) fn open(
        lease: &Arc<ClientLease>,
        first: u32,
        instances: u32,
        channels: &Channels,
        time: LinkTime,
    ) -> Result<Link, Error> {
        let channels = channels.of_process(first);
        let count = u32::try_from(channels.len()).unwrap_or(u32::MAX);
        let ahead = time == LinkTime::Ahead;
        let device_memory_from = channels.device_memory_from;
        let run = v1::Run {
            first_instance: first,
            instances,
            channels: count,
            number: 0,
            ahead,
            device_memory_from,
        };
        let joined = Arc::new(JoinedAhead::new(time, channels.len()));
        let cuts = channels.iter().map(|access| access.memory.cuts.load(Ordering::SeqCst)).collect();
        let (lease_of, exits) = (lease.clone(), 0);
        let mut link = Link { way: None, channels, first, joined, cuts, lease: lease_of, exits };
        let channels = &link.channels;
        if channels.is_empty() {
            link.exits = lease.tell_run(run, RunMemoryAccess::Nothing)?;
            return Ok(link);
        }
        let node = lease.description().node;
        let own = lease.first_worker..lease.first_worker + lease.workers();
        let answering = |way: &Arc<RequestPath>| WorkerResponder {
            way: way.clone(),
            channels: channels.clone(),
            own,
            instances,
            node,
            joined: link.joined.clone(),
            sent: RefCell::default(),
        };
        let first = channels.iter().map(ProcessAnswer::channel);
        let (way, exits) = if lease.is_remote() {
            let first = first.map(|answer| Ok(answer?.bytes)).collect::<Result<_, Error>>()?;
            let (number, questions) = lease.hear_questions();
            let questions = Mutex::new(questions);
            let way = Arc::new(RequestPath::Relayed { lease: lease.clone(), run: number, questions });
            answering(&way).start()?;
            let exits = lease.tell_run(v1::Run { number, ..run }, RunMemoryAccess::Relayed(first));
            (way, exits)
        } else {
            let (here, there) = PacketSocket::pair()?;
            here.set_send_timeout(SEND_TIMEOUT)?;
            let way = Arc::new(RequestPath::Here(here));
            first.into_iter().try_for_each(|answer| way.send(answer?))?;
            answering(&way).start()?;
            let exits = lease.tell_run(run, RunMemoryAccess::Here(there.as_fd()));
            (way, exits)
        };
        link.way = Some(way);
        link.exits = exits?;
        Ok(link)
    }

    /// Lets the component of a process that received its run ahead begin with these components. Returns the number of
    /// segments that the process has joined by then; `None` if it has to receive its run again, because the memory is
    /// not the same any more, or another process runs.
    pub(in crate::run) fn begin(&self, channels: &Channels) -> Option<u32> {
        let now = channels.of_process(self.first);
        let pairs = || self.channels.iter().zip(now.iter());
        let is_same = now.len() == self.channels.len()
            && pairs().all(|(known, now)| Arc::ptr_eq(&known.memory, &now.memory));
        if !is_same || self.check().is_err() {
            return None;
        }
        let Some(way) = &self.way else { return Some(0) };
        self.joined.has_begun.store(1, Ordering::SeqCst);
        for (access, asked) in self.channels.iter().zip(self.joined.asked.iter()) {
            // Pairs with the thread that answers, which stores this word and then looks whether the component has begun.
            if asked.load(Ordering::SeqCst) != 0 {
                lock(&access.memory.reached_by).insert(way.number());
            }
        }
        debug_assert_eq!(
            self.cuts.len(),
            self.channels.len(),
            "numbers of requests to make channels shorter"
        );
        let mut cuts = self.channels.iter().zip(&self.cuts);
        // From here on the memory is not made shorter, as the process has pieces of it.
        let is_whole = cuts.all(|(access, cuts)| access.memory.cuts.load(Ordering::SeqCst) == *cuts);
        is_whole.then(|| self.joined.segments.load(Ordering::SeqCst))
    }

    /// Checks that the worker process is still the one that received the run.
    ///
    /// # Errors
    /// `worker_died` if not: the output may come from another process.
    pub(in crate::run) fn check(&self) -> Result<(), Error> {
        if self.lease.exits() == self.exits && !self.lease.is_over() {
            return Ok(());
        }
        Err(Error::new(Code::WorkerDied, "the worker process ended while it executed its component"))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(way) = &self.way {
            way.cut();
            way.reaches_nothing(&self.channels);
        }
    }
}

/// Path of requests and answers.
enum RequestPath {
    /// The process has the other end.
    Here(PacketSocket),
    /// The process's agent relays them.
    Relayed { lease: Arc<ClientLease>, run: u32, questions: Mutex<Receiver<Vec<u8>>> },
}

/// Answer to a process, with a file if the process is on this machine.
struct ProcessAnswer {
    bytes: Vec<u8>,
    file: Option<OwnedFd>,
}

impl ProcessAnswer {
    fn new(body: memory_answer::Body, file: Option<OwnedFd>) -> ProcessAnswer {
        ProcessAnswer { bytes: v1::MemoryAnswer { body: Some(body) }.encode_to_vec(), file }
    }

    fn channel(access: &ComponentAccess) -> Result<ProcessAnswer, Error> {
        let state = opened(access.memory.state.fd(), access.rights)?;
        let (mailbox, is_swap) = (access.mailbox.clone(), access.swaps_from.is_some());
        let channel = v1::Channel { mailbox, is_swap, ..access.memory.channel(access.rights) };
        Ok(ProcessAnswer::new(memory_answer::Body::Channel(channel), Some(state)))
    }
}

impl RequestPath {
    /// The next question; `None` once either end has closed the connection.
    fn hear(&self) -> Option<Vec<u8>> {
        match self {
            RequestPath::Here(socket) => socket.receive(None).ok().flatten().map(|packet| packet.bytes),
            RequestPath::Relayed { questions, .. } => lock(questions).recv().ok(),
        }
    }

    fn send(&self, answer: ProcessAnswer) -> Result<(), Error> {
        match self {
            RequestPath::Here(socket) => {
                let files: Vec<_> = answer.file.iter().map(AsFd::as_fd).collect();
                Ok(socket.send(&answer.bytes, &files)?)
            }
            RequestPath::Relayed { lease, run, .. } => lease.answer_memory(*run, answer.bytes),
        }
    }

    fn cut(&self) {
        match self {
            RequestPath::Here(socket) => socket.shutdown(),
            RequestPath::Relayed { lease, run, .. } => lease.hear_no_questions(*run),
        }
    }

    /// An identifier that distinguishes its process from others.
    fn number(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Records that its process no longer has pieces of these components.
    fn reaches_nothing(&self, channels: &Channels) {
        channels.iter().for_each(|access| {
            lock(&access.memory.reached_by).remove(&self.number());
        });
    }

    /// A segment of another machine, as the process or its agent gets it.
    fn reached(&self, told: v1::Piece, ticket: v1::SegmentTicket) -> Result<ProcessAnswer, Error> {
        let (told, file) = match self {
            RequestPath::Relayed { .. } => (v1::Piece { ticket: Some(ticket), ..told }, None),
            RequestPath::Here(_) => {
                let (connected, socket) = invited::connected(&told.segment, &ticket)?;
                (v1::Piece { connected: Some(connected), ..told }, socket.map(OwnedFd::from))
            }
        };
        Ok(ProcessAnswer::new(memory_answer::Body::Piece(told), file))
    }
}

/// Pieces that a process has been sent.
#[derive(Default)]
struct SentPieces {
    /// The process's connections to nodes, as the nodes' agents name them.
    segment_connections: HashMap<String, v1::Joins>,
    /// The segments of each channel.
    pieces: HashSet<(u32, String)>,
}

impl SentPieces {
    /// The connection by which a process may be able to reach a segment.
    fn joins(&mut self, channel: u32, piece: &MemoryPiece) -> Option<v1::Joins> {
        // A repeated request means that the segment was not reached, and perhaps not the connection to join either.
        if !self.pieces.insert((channel, piece.segment.clone())) {
            self.segment_connections.remove(&piece.node);
        }
        self.segment_connections.get(&piece.node).cloned()
    }
}

/// Whether a question is one that a process may ask before its component begins: it changes no memory. The run gives
/// back no memory of a component that has not begun.
fn is_for_ahead(question: &v1::MemoryQuestion) -> bool {
    let v1::MemoryQuestion { end_bytes, len_bytes, shorten_to, released_by, .. } = *question;
    (end_bytes, len_bytes, shorten_to, released_by) == (0, 0, None, 0)
}

/// The thread that answers one worker process.
struct WorkerResponder {
    way: Arc<RequestPath>,
    channels: Channels,
    /// The component's instances that the process executes, and the number of all instances.
    own: Range<u32>,
    instances: u32,
    /// The node that the process is on.
    node: String,
    joined: Arc<JoinedAhead>,
    sent: RefCell<SentPieces>,
}

impl WorkerResponder {
    fn start(self) -> Result<(), Error> {
        std::thread::Builder::new()
            .name("sublet channels".into())
            .spawn(move || self.run())
            .map(drop)
            .map_err(|error| Error::of_system("starting a thread", &error))
    }

    /// Answers until either end closes the connection.
    fn run(self) {
        while let Some(question) = self.way.hear() {
            let end = match self.answer(&question) {
                Ok(there) => memory_answer::Body::There(there),
                Err(Error { code, message }) => {
                    memory_answer::Body::Failure(v1::Failure { code: code.number(), message })
                }
            };
            if self.way.send(ProcessAnswer::new(end, None)).is_err() {
                break;
            }
        }
        self.way.cut();
        self.way.reaches_nothing(&self.channels);
    }

    fn answer(&self, question: &[u8]) -> Result<v1::MemoryThere, Error> {
        let question: v1::MemoryQuestion = decode("a question about memory", question)?;
        // Before anything may fail: counts of memory that is over are valid, too.
        self.count(&question.counted);
        let number = question.channel;
        let channel = number.checked_sub(1).and_then(|index| self.channels.get(index as usize));
        let access = channel.ok_or_else(|| protocol(format!("there is no channel {number}")))?;
        let ComponentAccess { memory: component, rights, swaps_from, .. } = access;
        if !question.lost_segment.is_empty() {
            return Err(component.lost(&question.lost_segment, &self.node));
        }
        if question.lost_on_device {
            return Err(component.lost_on_device());
        }
        if question.is_over {
            return Err(component.why_over());
        }
        let end = question.end_bytes.max(question.len_bytes);
        if end > component.limit_bytes {
            let message = format!("{end} bytes of memory component {}", component.name);
            return Err(Error::new(Code::MemoryExceeded, message));
        }
        component.check()?;
        if self.joined.has_begun.load(Ordering::SeqCst) == 0 && !is_for_ahead(&question) {
            let name = &component.name;
            return Err(protocol(format!("memory component {name} is used before its component begins")));
        }
        if let Some(instance) = question.released_by.checked_sub(1) {
            self.release(access, instance)?;
        }
        if let Some(len_bytes) = question.shorten_to {
            self.shorten(access, len_bytes)?;
        }
        if question.if_there {
            self.join((number, component), question.have_bytes, *rights)?;
        }
        if question.end_bytes > 0 {
            lock(&component.reached_by).insert(self.way.number());
            let reserved = component.reserve(question.end_bytes, self.channels.of);
            let grown =
                reserved.and_then(|()| component.grow((question.have_bytes, question.end_bytes), &self.node));
            if let (Err(error), Some(_)) = (&grown, swaps_from) {
                component.refuse(error);
            }
            for piece in grown? {
                let answer = self.piece((number, component), &piece, *rights)?;
                self.way.send(answer)?;
            }
        }
        if *rights == MemoryRights::Write {
            component.word(LEN_AT).fetch_max(question.len_bytes, Ordering::AcqRel);
        }
        let ended = (component.word(ENDED_AT).load(Ordering::Acquire) & 0xffff_ffff) as u32;
        Ok(v1::MemoryThere { len_bytes: component.len_bytes(), ended })
    }

    /// Passes the pieces behind `from` that exist to the process, whose component may not have begun.
    fn join(
        &self,
        (channel, component): (u32, &MemoryComponent),
        from: u64,
        rights: MemoryRights,
    ) -> Result<(), Error> {
        let index = channel.checked_sub(1).and_then(|index| self.joined.asked.get(index as usize));
        if let Some(asked) = index {
            asked.store(1, Ordering::SeqCst);
        }
        // Pairs with the beginning of the component, which looks at the word that was just stored.
        if self.joined.has_begun.load(Ordering::SeqCst) != 0 {
            lock(&component.reached_by).insert(self.way.number());
        }
        for piece in component.existing(from) {
            let answer = self.piece((channel, component), &piece, rights)?;
            self.way.send(answer)?;
            self.joined.segments.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Notes what the process has moved through its channels. A channel that it does not have is left out.
    fn count(&self, counted: &[v1::ChannelTraffic]) {
        for v1::ChannelTraffic { channel, traffic } in counted {
            let access = channel.checked_sub(1).and_then(|index| self.channels.get(index as usize));
            if let (Some(access), Some(traffic)) = (access, traffic) {
                access.memory.count_traffic(self.channels.of, traffic);
            }
        }
    }

    /// A piece, as the process or its agent gets it.
    fn piece(
        &self,
        (channel, component): (u32, &MemoryComponent),
        piece: &MemoryPiece,
        rights: MemoryRights,
    ) -> Result<ProcessAnswer, Error> {
        let (segment, node) = (piece.segment.clone(), piece.node.clone());
        let MemoryPiece { offset, len_bytes, .. } = *piece;
        let told = v1::Piece { offset, len_bytes, segment, node, ..v1::Piece::default() };
        if let (RequestPath::Here(_), Some(file)) = (&*self.way, piece.file()) {
            return Ok(ProcessAnswer::new(memory_answer::Body::Piece(told), Some(opened(file, rights)?)));
        }
        // A process on the segment's own node gets the memory.
        let is_far = piece.node != self.node;
        let mut sent = self.sent.borrow_mut();
        let joins = if is_far { sent.joins(channel, piece) } else { None };
        let ticket = component.invite(piece, rights, joins)?;
        let guest = ticket.invited.as_ref().filter(|invited| is_far && !invited.joined).map(|it| it.guest);
        let answer = self.way.reached(told, ticket)?;
        if let Some(guest) = guest {
            let joins = v1::Joins { segment: piece.segment.clone(), guest };
            sent.segment_connections.insert(piece.node.clone(), joins);
        }
        Ok(answer)
    }

    /// Records that one of the process's instances does not access a component any more.
    fn release(&self, access: &ComponentAccess, instance: u32) -> Result<(), Error> {
        if access.mailbox.is_some() || !self.own.contains(&instance) {
            return Err(protocol(format!("instance {instance} released what is not its own")));
        }
        lock(&access.released).insert(instance);
        if access.is_released_by(self.own.clone()) {
            lock(&access.memory.reached_by).remove(&self.way.number());
        }
        if access.is_released_by(0..self.instances) {
            access.memory.set_released(self.channels.of);
        }
        Ok(())
    }

    fn shorten(&self, access: &ComponentAccess, len_bytes: u64) -> Result<(), Error> {
        let component = &access.memory;
        if access.mailbox.is_some() || access.rights != MemoryRights::Write {
            return Err(protocol(format!("memory component {} may not be made shorter", component.name)));
        }
        if component.unmade_bytes() > 0 {
            // The bytes that it begins with are there before some of them are cut off.
            component.reserve(0, self.channels.of)?;
            component.grow((0, 0), &self.node)?;
        }
        let own = self.way.number();
        // Processes of components that have not begun receive their runs again.
        component.cuts.fetch_add(1, Ordering::SeqCst);
        // Held until the pieces are given back, so that no process receives one of them meanwhile.
        let reached_by = lock(&component.reached_by);
        if reached_by.iter().any(|other| *other != own) {
            return Err(shared(&component.name));
        }
        // A process on another machine learns of the end of its mapped memory from its agent, and gets no message about
        // a part of it.
        component.shorten(len_bytes, matches!(*self.way, RequestPath::Here(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_changes_no_memory_before_its_component_begins() {
        let none = v1::MemoryQuestion::default;
        assert!(is_for_ahead(&none()) && is_for_ahead(&v1::MemoryQuestion { if_there: true, ..none() }));
        for question in [
            v1::MemoryQuestion { end_bytes: 1, ..none() },
            v1::MemoryQuestion { len_bytes: 1, ..none() },
            v1::MemoryQuestion { shorten_to: Some(0), ..none() },
            v1::MemoryQuestion { released_by: 1, ..none() },
        ] {
            assert!(!is_for_ahead(&question), "{question:?}");
        }
    }
}
