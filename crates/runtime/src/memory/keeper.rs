//! Implements the thread of a memory component, which receives its agents' messages and learns when a segment has
//! ended.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use sublet_fabric::greeting::PULSE;
use sublet_fabric::packet::PacketError;
use sublet_fabric::sync::{AtomicU32, Ordering};
use sublet_proto::v1::{self, agent_to_client, client_to_agent};
use sublet_proto::{Code, Error, decode};

use super::piece::MemoryPiece;
use super::pieces::PieceOwner;
use super::segment::Segment;
use crate::lease::link::{AGENT_TIMEOUT, error_of, lock, protocol};

/// Longest time between the end of a segment's connection and the report of the segment's end. Its agent reports to a
/// manager first.
const WORD_GRACE: Duration = Duration::from_millis(2_500);

/// Watches over the segments of one component, until it is closed.
#[derive(Clone)]
pub(super) struct SegmentKeeper(Arc<KeeperState>);

struct KeeperState {
    /// Rung when there is a segment more or one fewer.
    bell: OwnedFd,
    /// Held by the thread that sends an agent a request: one at a time.
    asking: Mutex<()>,
    inside: Mutex<WatchedSegments>,
    changed: Condvar,
    /// Not 0: the component has ended. Written by the thread, Release, when the reason is there.
    ended: AtomicU32,
}

#[derive(Default)]
struct WatchedSegments {
    is_closed: bool,
    watched: Vec<Arc<Segment>>,
    /// Segments that are being given back, by lease. Their end does not end the component.
    leaving: HashMap<String, Option<v1::Usage>>,
    /// The agent's answer to the current request.
    answer: Option<Result<SegmentAnswer, Error>>,
    why_ended: Option<Error>,
    /// Called when the component has ended.
    on_end: Vec<OnEnd>,
}

type OnEnd = Box<dyn FnOnce(Error) + Send>;

/// Answer of a segment's agent.
enum SegmentAnswer {
    Renewed,
    Invited(v1::Invited),
}

impl SegmentKeeper {
    pub(super) fn start() -> Result<SegmentKeeper, Error> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::of_system("eventfd", &error.into()))?;
        let (inside, changed, ended) = (Mutex::default(), Condvar::new(), AtomicU32::new(0));
        let shared = Arc::new(KeeperState { bell, asking: Mutex::default(), inside, changed, ended });
        let thread = shared.clone();
        std::thread::Builder::new()
            .name("sublet memory".into())
            .spawn(move || thread.run())
            .map_err(|error| Error::of_system("starting the thread of a memory component", &error))?;
        Ok(SegmentKeeper(shared))
    }

    /// Ends its thread, and lets go of the segments.
    pub(super) fn close(&self) {
        lock(&self.0.inside).is_closed = true;
        self.0.ring();
    }

    /// Watches a segment: from now on its end is the component's.
    pub(super) fn watch(&self, segment: Arc<Segment>) {
        lock(&self.0.inside).watched.push(segment);
        self.0.ring();
    }

    /// Returns the reason if the component has ended. Must be called after an access: bytes that were read before may
    /// no longer have been the component's.
    #[inline]
    pub(super) fn check(&self) -> Result<(), Error> {
        self.0.check()
    }

    /// Waits, after an access found that the component has ended, until an agent reports the reason, and returns it.
    pub(super) fn await_end(&self) -> Error {
        drop(self.0.wait_until(WORD_GRACE, |inside| inside.why_ended.is_some()));
        let unsaid = || Error::new(Code::LeaseEnded, "the memory component has ended for an unknown reason");
        self.check().err().unwrap_or_else(unsaid)
    }

    /// Begins to give a segment back.
    pub(super) fn release(&self, segment: &Segment) {
        lock(&self.0.inside).leaving.insert(segment.lease.id.clone(), None);
        // If the agent cannot be reached, it is gone, and its lease with it.
        let _ = segment.agent.tell(client_to_agent::Body::Release(v1::Release {}));
    }

    /// The owner that the component's pieces report to.
    pub(super) fn owner(&self) -> Arc<dyn PieceOwner> {
        self.0.clone()
    }

    /// Has `call` called when the component has ended; at once if it has.
    pub(super) fn on_end(&self, call: OnEnd) {
        lock(&self.0.inside).on_end.push(call);
        if self.0.ended.load(Ordering::Acquire) != 0 {
            self.0.set_ended();
        }
    }

    /// The lease of a segment that is being given back, with its usage, if its agent reports it in time.
    pub(super) fn ended(&self, segment: &Segment) -> v1::Lease {
        let is_left = |inside: &WatchedSegments| {
            inside.watched.iter().all(|watched| watched.lease.id != segment.lease.id)
        };
        let mut inside = self.0.wait_until(AGENT_TIMEOUT, is_left);
        let usage = inside.leaving.remove(&segment.lease.id).flatten();
        v1::Lease { usage, ..segment.lease.clone() }
    }

    /// Shows the agent of a segment a ticket with a later end.
    pub(super) fn renew(&self, segment: &Segment, ticket: Vec<u8>) -> Result<(), Error> {
        match self.ask(segment, client_to_agent::Body::Renew(v1::Renew { ticket }))? {
            SegmentAnswer::Renewed => Ok(()),
            SegmentAnswer::Invited(_) => Err(protocol("the agent answered a renewal with an invitation")),
        }
    }

    /// Requests from the agent of a segment that another process may reach it.
    pub(super) fn invite(&self, segment: &Segment, invite: v1::Invite) -> Result<v1::Invited, Error> {
        match self.ask(segment, client_to_agent::Body::Invite(invite))? {
            SegmentAnswer::Invited(invited) => Ok(invited),
            SegmentAnswer::Renewed => Err(protocol("the agent answered an invitation with a renewal")),
        }
    }

    fn ask(&self, segment: &Segment, question: client_to_agent::Body) -> Result<SegmentAnswer, Error> {
        let _asking = lock(&self.0.asking);
        lock(&self.0.inside).answer = None;
        segment.agent.tell(question)?;
        let is_told = |inside: &WatchedSegments| inside.answer.is_some() || inside.why_ended.is_some();
        let mut inside = self.0.wait_until(AGENT_TIMEOUT, is_told);
        let late = || {
            let message = format!("the agent of segment {} does not answer", segment.lease.id);
            Error::new(Code::AgentUnreachable, message)
        };
        let why_ended = inside.why_ended.clone();
        inside.answer.take().or(why_ended.map(Err)).unwrap_or_else(|| Err(late()))
    }
}

impl PieceOwner for KeeperState {
    #[inline]
    fn check(&self) -> Result<(), Error> {
        if self.ended.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(self.why_ended()) }
    }

    /// Records that a piece is out of reach, which ends the component: the result of the access is not known. The agent
    /// reports the reason, if it still runs.
    #[cold]
    fn failed(&self, piece: &MemoryPiece, error: Error) -> Error {
        if error.code == Code::AgentUnreachable {
            let mut inside = self.wait_until(WORD_GRACE, |inside| inside.why_ended.is_some());
            inside.why_ended.get_or_insert_with(|| error.clone());
            for segment in inside.watched.iter().filter(|segment| segment.lease.id == piece.segment) {
                let _ = segment.agent.tell(client_to_agent::Body::Release(v1::Release {}));
            }
            drop(inside);
            self.set_ended();
            self.changed.notify_all();
        }
        self.check().err().unwrap_or(error)
    }

    /// Wakes the thread, to receive prefetched bytes.
    fn attend(&self) {
        self.ring();
    }
}

impl KeeperState {
    #[cold]
    fn why_ended(&self) -> Error {
        let why = lock(&self.inside).why_ended.clone();
        why.unwrap_or_else(|| Error::new(Code::Internal, "a memory component ended without a reason"))
    }
    fn ring(&self) {
        // A full bell is a rung one.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// The reason is there.
    fn set_ended(&self) {
        self.ended.store(1, Ordering::Release);
        let (calls, why) = {
            let mut inside = lock(&self.inside);
            debug_assert!(
                inside.why_ended.is_some(),
                "a component of {} segments ends without a reason",
                inside.watched.len()
            );
            (std::mem::take(&mut inside.on_end), inside.why_ended.clone())
        };
        if let Some(why) = why {
            calls.into_iter().for_each(|call| call(why.clone()));
        }
    }

    fn wait_until(
        &self,
        longest: Duration,
        is_so: impl Fn(&WatchedSegments) -> bool,
    ) -> std::sync::MutexGuard<'_, WatchedSegments> {
        let deadline = Instant::now() + longest;
        let mut inside = lock(&self.inside);
        while !is_so(&inside) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            inside =
                self.changed.wait_timeout(inside, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        inside
    }

    fn run(&self) {
        let mut next_pulse = Instant::now();
        loop {
            let watched = {
                let inside = lock(&self.inside);
                if inside.is_closed {
                    return;
                }
                inside.watched.clone()
            };
            let now = Instant::now();
            let is_far = |segment: &&Arc<Segment>| segment.agent.is_remote();
            if now >= next_pulse {
                for segment in watched.iter().filter(is_far) {
                    // If the agent is gone, the next access to its connection shows that.
                    let _ = segment.agent.tell(client_to_agent::Body::Alive(v1::Alive {}));
                }
                next_pulse = now + PULSE;
            }
            let has_far = watched.iter().any(|segment| is_far(&segment));
            let until = has_far.then(|| next_pulse.saturating_duration_since(now));
            self.wait_and_hear(&watched, until);
        }
    }

    /// Sleeps until an agent sends a message, prefetched data comes, or the bell is rung, and handles it.
    fn wait_and_hear(&self, watched: &[Arc<Segment>], until: Option<Duration>) {
        let until = until.and_then(|left| Timespec::try_from(left).ok());
        let awaited: Vec<_> = watched.iter().filter_map(|one| Some((one, one.piece.awaited()?))).collect();
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN)];
        fds.extend(watched.iter().map(|segment| readable(segment.agent.as_fd())));
        fds.extend(awaited.iter().map(|(_, fd)| readable(*fd)));
        // After a signal, or a temporary lack of memory, the caller polls again.
        if poll(&mut fds, until.as_ref()).is_err() {
            return;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let (agents, connections) = ready[1..].split_at(watched.len());
        if ready[0] {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
        for (segment, _) in watched.iter().zip(agents).filter(|(_, ready)| **ready) {
            // Over a network several messages may have been read at once.
            while self.hear(segment) && segment.agent.is_remote() {}
        }
        for ((segment, _), _) in awaited.iter().zip(connections).filter(|(_, ready)| **ready) {
            segment.piece.progress();
        }
    }

    /// Receives an agent's messages. Returns whether there may be more.
    fn hear(&self, segment: &Segment) -> bool {
        let gone = |why: String| {
            Error::new(
                Code::AgentUnreachable,
                format!("the agent of segment {} is gone: {why}", segment.lease.id),
            )
        };
        let packet = match segment.agent.receive(Some(Duration::ZERO)) {
            Ok(Some(packet)) => packet,
            Ok(None) => return self.end(segment, gone(segment.agent.why_gone()), None),
            Err(PacketError::TimedOut(_)) => return false,
            Err(error) => return self.end(segment, gone(error.to_string()), None),
        };
        let message = decode::<v1::AgentToClient>("an agent's message", &packet.bytes);
        match message.map(|message| message.body) {
            Ok(Some(agent_to_client::Body::LeaseEnded(ended))) => {
                let reason = match ended.code {
                    0 => Error::new(Code::LeaseEnded, format!("segment {} was given back", segment.lease.id)),
                    code => error_of(code, ended.reason),
                };
                self.end(segment, reason, ended.usage)
            }
            Ok(Some(agent_to_client::Body::Renewed(_))) => self.answer(Ok(SegmentAnswer::Renewed)),
            Ok(Some(agent_to_client::Body::Invited(invited))) => {
                self.answer(Ok(SegmentAnswer::Invited(invited)))
            }
            Ok(Some(agent_to_client::Body::Failure(failure))) => {
                self.answer(Err(error_of(failure.code, failure.message)))
            }
            // The segment is over. The agent frees its bytes when it has heard that this process no longer reads them.
            Ok(Some(agent_to_client::Body::Ending(ending))) if ending.grace_ms == 0 => {
                self.over(segment, error_of(ending.code, ending.reason));
                let _ = segment.agent.tell(client_to_agent::Body::Release(v1::Release {}));
                true
            }
            // The end itself follows the announcement.
            Ok(Some(agent_to_client::Body::Ending(_) | agent_to_client::Body::Alive(_))) => true,
            Ok(body) => self.end(segment, protocol(format!("an agent said {body:?} of a segment")), None),
            Err(error) => self.end(segment, error, None),
        }
    }

    fn answer(&self, answer: Result<SegmentAnswer, Error>) -> bool {
        lock(&self.inside).answer = Some(answer);
        self.changed.notify_all();
        true
    }

    /// The component has ended with one of its segments, unless that one was being given back.
    fn over(&self, segment: &Segment, why: Error) {
        let mut inside = lock(&self.inside);
        if inside.leaving.contains_key(&segment.lease.id) {
            return;
        }
        inside.why_ended.get_or_insert(why);
        drop(inside);
        self.set_ended();
        self.changed.notify_all();
    }

    fn end(&self, segment: &Segment, why: Error, usage: Option<v1::Usage>) -> bool {
        let reason = why.message.clone();
        self.over(segment, why);
        let mut inside = lock(&self.inside);
        inside.watched.retain(|watched| watched.lease.id != segment.lease.id);
        if let Some(used) = inside.leaving.get_mut(&segment.lease.id) {
            *used = usage;
        }
        drop(inside);
        segment.piece.disconnect(&reason);
        self.changed.notify_all();
        false
    }
}
