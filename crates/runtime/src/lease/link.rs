//! The slow side of an attached lease: what its threads share, and what a client asks of its agent.
//!
//! One thread for each lease hears the agent ([`monitor`](super::monitor)); whoever asks for something waits for what that
//! thread passes on. Whoever holds the lock of [`Control`] may ask, and talks to the worker process ([`start`](super::start)).

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use sublet_fabric::clock::monotonic_ns;
use sublet_fabric::packet::PacketSocket;
use sublet_fabric::ring::Sender;
pub(crate) use sublet_fabric::sync::lock;
use sublet_fabric::sync::{AtomicU32, AtomicU64, Ordering};
use sublet_proto::v1::{self, client_to_agent};
use sublet_proto::{Code, Error};

use super::agent::AgentSocket;
use super::alarm::Alarms;
use super::records::Records;
use super::run::Questions;
use super::{Lease, WorkerLink, monitor};

/// How long an agent may take to answer.
pub(crate) const AGENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Messages of a worker process that nobody has asked for yet, or any more.
const WORKER_MESSAGES: usize = 4;
/// Questions for what a lease uses that its agent has not answered.
const MAX_ASKED: usize = 4;

/// When a cold start reached what, in nanoseconds of this machine's monotonic clock.
///
/// The steps on a node that is another machine are known by that node's clock. They are put on this one's as if the
/// way to the node and the way back had taken the same time.
#[derive(Clone, Copy, Debug, Default)]
pub struct ColdStart {
    /// The client asked the agent for a worker.
    pub asked_ns: u64,
    /// The agent had the request.
    pub requested_ns: u64,
    /// The package was there, unpacked.
    pub package_ready_ns: u64,
    /// The process was spawned.
    pub spawned_ns: u64,
    /// The process reached its first instruction.
    pub entered_ns: u64,
    /// The shared object was loaded.
    pub loaded_ns: u64,
    /// Every worker thread was on its core, connected.
    pub ready_ns: u64,
}

/// The announced end of a lease (rFaaS III-A). Calls go on until then.
#[derive(Clone, Debug)]
pub struct Notice {
    /// Which lease.
    pub lease: String,
    /// Why, as its calls will say it.
    pub error: Error,
    /// When it ends by force.
    pub until: Instant,
}

/// What a lease uses, once its agent has said so.
pub(crate) type Asked = Arc<OnceLock<v1::Measured>>;

pub(super) struct Link {
    pub(super) agent: AgentSocket,
    pub(super) bell: OwnedFd,
    pub(super) control: Mutex<Control>,
    pub(super) ended: Mutex<Endings>,
    pub(super) questions: Mutex<Questions>,
    /// Who asked what the lease uses, and waits for the answer. The answers come in the same order.
    pub(super) asked: Mutex<VecDeque<Asked>>,
    pub(super) changed: Condvar,
    pub(super) alarms: Alarms,
    /// When the agent last said anything, by this machine's monotonic clock. Written by the monitor.
    pub(super) heard_ns: AtomicU64,
    /// When the lease's thread wakes all futures, as a deadline of one of them passes: by this machine's monotonic clock.
    pub(super) futures_due_ns: AtomicU64,
    /// Not 0: the lease's thread looks after the futures that wait. Set by who begins to wait, cleared by that thread.
    pub(super) looking: AtomicU32,
    /// Not 0: a thread is starting a worker process.
    pub(super) reviving: AtomicU32,
}

/// What whoever holds the lock may talk to.
pub(super) struct Control {
    pub(super) answers: Receiver<Answer>,
    /// What a worker process on another machine says.
    pub(super) said: Receiver<FromWorker>,
    pub(super) worker: Option<WorkerSocket>,
    /// How many worker processes had ended before this one was asked for.
    pub(super) exits: u64,
    /// The arena's regions that the running worker process has mapped.
    pub(super) regions: BTreeSet<u32>,
    /// The region that it was told of last and has said nothing of yet.
    pub(super) untold: Option<Untold>,
    /// Connections that were made to workers' threads.
    pub(super) links: u64,
    pub(super) cold_start: ColdStart,
    /// Modules that the running worker process has imported by itself, as its node cannot keep them warm.
    pub(super) cold_imports: Option<v1::ColdImports>,
}

/// A region that a worker process on another machine was told of. Its answer will come, or the process's end.
#[derive(Clone, Copy)]
pub(super) struct Untold {
    pub(super) region: u32,
    pub(super) len_bytes: u64,
}

/// The way to a worker process.
pub(super) enum WorkerSocket {
    Local(PacketSocket),
    /// Its agent relays.
    Remote,
}

/// What the monitor has learnt.
#[derive(Default)]
pub(super) struct Endings {
    /// How many worker processes have ended.
    pub(super) exits: u64,
    /// Why the running worker process was told to stop, if what it wrote makes no sense.
    pub(super) distrusted: Option<Error>,
    /// Its end, if it was announced.
    pub(super) notice: Option<Notice>,
    /// Once the lease is over: what it has used, or why its agent could not say so.
    pub(super) lease: Option<Result<v1::Usage, Error>>,
}

/// What the agent answers to a request.
pub(super) type Answer = Result<Answered, Error>;

pub(super) enum Answered {
    /// With the worker's control socket, within a node.
    Started(v1::Started, Option<OwnedFd>),
    Renewed,
}

/// What is heard of a worker process on another machine.
pub(super) enum FromWorker {
    Said(Vec<u8>),
    Ended,
}

/// Where the monitor passes on what it hears.
pub(super) struct Told {
    pub(super) answer: SyncSender<Answer>,
    pub(super) worker: SyncSender<FromWorker>,
}

impl Link {
    pub(super) fn new(agent: AgentSocket, bell: OwnedFd) -> (Link, Told) {
        let ((answer, answers), (worker, said)) = (sync_channel(1), sync_channel(WORKER_MESSAGES));
        let control = Control {
            answers,
            said,
            worker: None,
            exits: 0,
            regions: BTreeSet::new(),
            untold: None,
            links: 0,
            cold_start: ColdStart::default(),
            cold_imports: None,
        };
        let link = Link {
            agent,
            bell,
            control: Mutex::new(control),
            ended: Mutex::new(Endings::default()),
            questions: Mutex::default(),
            asked: Mutex::default(),
            changed: Condvar::new(),
            alarms: Alarms::new(),
            heard_ns: AtomicU64::new(0),
            futures_due_ns: AtomicU64::new(u64::MAX),
            looking: AtomicU32::new(0),
            reviving: AtomicU32::new(0),
        };
        (link, Told { answer, worker })
    }

    /// Has the lease's thread look at everything.
    pub(super) fn ring(&self) {
        // A full bell is a rung one.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

impl WorkerLink {
    pub(super) fn new(slots: u32) -> WorkerLink {
        WorkerLink { ring: Sender::new(slots), records: Records::new(), dead_before: AtomicU64::new(0) }
    }
}

pub(crate) fn protocol(message: impl Into<String>) -> Error {
    Error::new(Code::Protocol, message)
}

pub(crate) fn error_of(code: u32, message: String) -> Error {
    Error::new(Code::from_number(code), message)
}

impl Lease {
    /// Has the waker called at that time.
    #[cold]
    pub(crate) fn wake_at(&self, at: Instant, waker: &Waker) {
        if self.link.alarms.set(at, waker) {
            // The lease's thread learns by its bell that it has to look at the clock.
            self.link.ring();
        }
    }

    /// Has all futures woken when this deadline passes. Futures that end before leave nothing behind, and the others come back
    /// with their own deadlines.
    #[cold]
    pub(crate) fn look_at_futures_at(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let due_ns = monotonic_ns().saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        if self.link.futures_due_ns.fetch_min(due_ns, Ordering::AcqRel) > due_ns {
            self.link.ring();
        }
    }

    /// Whether this is a lease's own thread, which must not wait for what only such a thread hears.
    pub(crate) fn is_own_thread() -> bool {
        monitor::is_here()
    }

    /// Shows the agent a ticket of this lease with another end.
    pub(crate) fn renew(&self, grant: v1::LeaseGrant) -> Result<(), Error> {
        let renewed = grant.lease.ok_or_else(|| protocol("the renewal names no lease"))?;
        let control = lock(&self.link.control);
        while control.answers.try_recv().is_ok() {}
        self.tell_agent(client_to_agent::Body::Renew(v1::Renew { ticket: grant.ticket }))?;
        match self.hear_answer(&control, "renew the lease", AGENT_TIMEOUT)? {
            Answered::Renewed => {
                self.expires_unix_ms.store(renewed.expires_unix_ms, Ordering::Relaxed);
                Ok(())
            }
            Answered::Started(..) => Err(protocol("the agent answered a renewal with a worker")),
        }
    }

    /// Asks the agent what the lease uses, and waits for nothing: the answer is there when it has come, if it comes.
    pub(crate) fn ask_usage(&self) -> Asked {
        let answer = Asked::default();
        let mut asked = lock(&self.link.asked);
        if asked.len() < MAX_ASKED && self.tell_agent(client_to_agent::Body::Measure(v1::Measure {})).is_ok()
        {
            asked.push_back(answer.clone());
        }
        answer
    }

    /// The announcement of the lease's end, if there was one.
    pub(crate) fn notice(&self) -> Option<Notice> {
        lock(&self.link.ended).notice.clone()
    }

    /// Why the lease is over.
    pub(crate) fn why_over(&self) -> Error {
        self.why_lost(0, u64::MAX)
    }

    /// Ends the worker process; its unfinished calls are lost for this reason.
    pub(crate) fn stop_worker(&self, reason: String) {
        // If the agent cannot be told, it is gone, and the monitor says so to everybody.
        let _ = self.tell_agent(client_to_agent::Body::Stop(v1::Stop { reason }));
    }

    /// Gives the lease back. Calls that have not ended are lost. Returns what was used, or why its agent cannot say.
    pub(crate) fn end(&self) -> Result<v1::Usage, Error> {
        let told = self.give_back();
        self.await_end(told)
    }

    /// Tells the agent that the lease is given back.
    pub(crate) fn give_back(&self) -> Result<(), Error> {
        self.tell_agent(client_to_agent::Body::Release(v1::Release {}))
    }

    /// Waits until the lease that was given back is over.
    pub(crate) fn await_end(&self, told: Result<(), Error>) -> Result<v1::Usage, Error> {
        let deadline = Instant::now() + AGENT_TIMEOUT;
        let mut endings = lock(&self.link.ended);
        loop {
            if let Some(usage) = &endings.lease {
                return usage.clone();
            }
            // An agent that cannot be told may have ended the lease already, and its last word be on its way.
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                told?;
                return Err(Error::new(
                    Code::AgentUnreachable,
                    "the agent did not confirm the lease's end within 10 s",
                ));
            }
            let waited = self.link.changed.wait_timeout(endings, left);
            endings = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn hear_answer(
        &self,
        control: &Control,
        what: &str,
        longest: Duration,
    ) -> Result<Answered, Error> {
        let late = || {
            let message = format!("the agent did not {what} within {} s", longest.as_secs());
            Error::new(Code::AgentUnreachable, message)
        };
        self.wait_for_word(&control.answers, longest, late)?
    }

    pub(super) fn tell_agent(&self, body: client_to_agent::Body) -> Result<(), Error> {
        self.link.agent.tell(body)
    }
}
