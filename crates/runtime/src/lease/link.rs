//! Implements the slow side of an attached lease: the state that its threads share, and a client's requests to its
//! agent.
//!
//! One thread for each lease receives the agent's messages ([`monitor`](super::monitor)). A thread with a request waits
//! for the answer that the lease's thread passes on. Only the holder of the lock of [`Control`] may send requests and
//! talk to the worker process ([`start`](super::start)).

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
use super::steps::StartProgress;
use super::{ClientLease, WorkerLink};

/// Longest time until an agent answers.
pub(crate) const AGENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest number of unread messages of a worker process.
const WORKER_MESSAGES: usize = 4;
/// Largest number of unanswered requests for a lease's usage.
const MAX_ASKED: usize = 4;

/// Times at which a cold start reached each step, in nanoseconds of this machine's monotonic clock.
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

/// The announced end of a lease (rFaaS III-A). Calls continue until then.
#[derive(Clone, Debug)]
pub struct Notice {
    /// Id of the lease.
    pub lease: String,
    /// Reason for the end, as the lease's calls will report it.
    pub error: Error,
    /// Time at which the lease ends by force.
    pub until: Instant,
}

/// Usage of a lease, once its agent has reported it.
pub(crate) type Asked = Arc<OnceLock<v1::Measured>>;

pub(super) struct AgentLink {
    pub(super) agent: AgentSocket,
    pub(super) bell: OwnedFd,
    pub(super) control: Mutex<Control>,
    pub(super) ended: Mutex<Endings>,
    pub(super) questions: Mutex<Questions>,
    /// Callers that wait for the lease's usage. The answers come in the same order.
    pub(super) asked: Mutex<VecDeque<Asked>>,
    pub(super) changed: Condvar,
    pub(super) alarms: Alarms,
    /// Time of the agent's latest message, by this machine's monotonic clock. Written by the monitor.
    pub(super) heard_ns: AtomicU64,
    /// Time at which the lease's thread wakes all futures, since a deadline of one of them passes: by this machine's
    /// monotonic clock.
    pub(super) futures_due_ns: AtomicU64,
    /// Not 0: the lease's thread checks the futures that wait. Set by the thread that begins to wait, cleared by the
    /// lease's thread.
    pub(super) looking: AtomicU32,
    /// Not 0: a thread is starting a worker process.
    pub(super) reviving: AtomicU32,
    /// Steps of the start that is under way.
    pub(super) progress: Mutex<StartProgress>,
}

/// Receiver of a worker process's questions.
#[derive(Default)]
pub(super) struct Questions {
    /// The latest run of which there were any.
    pub(super) run: u32,
    pub(super) ask: Option<SyncSender<Vec<u8>>>,
}

/// State that only the holder of the lock may use.
pub(super) struct Control {
    pub(super) answers: Receiver<Answer>,
    /// Messages of a worker process on another machine.
    pub(super) said: Receiver<FromWorker>,
    pub(super) worker: Option<WorkerSocket>,
    /// Number of worker processes that had ended before this one was requested.
    pub(super) exits: u64,
    /// The arena's regions that the running worker process has mapped.
    pub(super) regions: BTreeSet<u32>,
    /// The region that the process was sent last and has not answered yet.
    pub(super) untold: Option<Untold>,
    /// Connections that were made to workers' threads.
    pub(super) links: u64,
    pub(super) cold_start: ColdStart,
    /// Modules that the running worker process has imported by itself, as its node cannot keep them warm.
    pub(super) cold_imports: Option<v1::ColdImports>,
    /// Isolation of the running worker process, by its name.
    pub(super) isolation: String,
}

/// A region that was sent to a worker process on another machine. Its answer will come, or the process's end.
#[derive(Clone, Copy)]
pub(super) struct Untold {
    pub(super) region: u32,
    pub(super) len_bytes: u64,
}

/// The way to a worker process.
pub(super) enum WorkerSocket {
    Local(PacketSocket),
    /// A process on another machine, whose agent relays the messages.
    Remote,
}

/// Ends that the monitor has learnt of.
#[derive(Default)]
pub(super) struct Endings {
    /// Number of worker processes that have ended.
    pub(super) exits: u64,
    /// Why the running worker process was asked to stop, if its writes make no sense.
    pub(super) distrusted: Option<Error>,
    /// The lease's end, if it was announced.
    pub(super) notice: Option<Notice>,
    /// Set when the lease is over: its usage, or the reason why its agent could not report it.
    pub(super) lease: Option<Result<v1::Usage, Error>>,
}

/// The agent's answer to a request.
pub(super) type Answer = Result<AgentAnswer, Error>;

pub(super) enum AgentAnswer {
    /// The worker process has started; within a node, with its control socket.
    Started(v1::Started, Option<OwnedFd>),
    Renewed,
}

/// A message from a worker process on another machine, or its end.
pub(super) enum FromWorker {
    Said(Vec<u8>),
    Ended,
}

/// Channels by which the monitor passes on the messages that it receives.
pub(super) struct MonitorChannels {
    pub(super) answer: SyncSender<Answer>,
    pub(super) worker: SyncSender<FromWorker>,
}

impl AgentLink {
    pub(super) fn new(agent: AgentSocket, bell: OwnedFd) -> (AgentLink, MonitorChannels) {
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
            isolation: String::new(),
        };
        let link = AgentLink {
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
            progress: Mutex::default(),
        };
        (link, MonitorChannels { answer, worker })
    }

    /// Wakes the lease's thread, which then checks everything.
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

impl ClientLease {
    /// Has the waker called at that time.
    #[cold]
    pub(crate) fn wake_at(&self, at: Instant, waker: &Waker) {
        if self.link.alarms.set(at, waker) {
            // The lease's thread learns by its bell that it has to look at the clock.
            self.link.ring();
        }
    }

    /// Has all futures woken when this deadline passes. Futures that end before leave nothing behind, and the others
    /// come back with their own deadlines.
    #[cold]
    pub(crate) fn look_at_futures_at(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let due_ns = monotonic_ns().saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        if self.link.futures_due_ns.fetch_min(due_ns, Ordering::AcqRel) > due_ns {
            self.link.ring();
        }
    }

    /// Shows the agent a ticket of this lease with another end.
    pub(crate) fn renew(&self, grant: v1::LeaseGrant) -> Result<(), Error> {
        let renewed = grant.lease.ok_or_else(|| protocol("the renewal names no lease"))?;
        let control = lock(&self.link.control);
        while control.answers.try_recv().is_ok() {}
        self.tell_agent(client_to_agent::Body::Renew(v1::Renew { ticket: grant.ticket }))?;
        match self.hear_answer(&control, "renew the lease", AGENT_TIMEOUT)? {
            AgentAnswer::Renewed => {
                self.expires_unix_ms.store(renewed.expires_unix_ms, Ordering::Relaxed);
                Ok(())
            }
            AgentAnswer::Started(..) => Err(protocol("the agent answered a renewal with a worker")),
        }
    }

    /// Requests the lease's usage from the agent, without waiting. The cell is filled when the answer comes, if it
    /// comes.
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

    /// Reason why the lease is over.
    pub(crate) fn why_over(&self) -> Error {
        self.why_lost(0, u64::MAX)
    }

    /// Ends the worker process; its unfinished calls are lost for this reason.
    pub(crate) fn stop_worker(&self, reason: String) {
        // If the agent cannot be reached, it is gone, and the monitor reports that to all waiting threads.
        let _ = self.tell_agent(client_to_agent::Body::Stop(v1::Stop { reason }));
    }

    /// Gives the lease back. Calls that have not ended are lost. Returns the usage, or the reason why its agent cannot
    /// report it.
    pub(crate) fn end(&self) -> Result<v1::Usage, Error> {
        let told = self.give_back();
        self.await_end(told)
    }

    /// Notifies the agent that the lease is given back.
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
            // An agent that cannot be reached may have ended the lease already, and its last message may be on its way.
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
    ) -> Result<AgentAnswer, Error> {
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
