//! The slow side of an attached lease: the state that its threads share.
//!
//! A client sends its requests to the agent by it ([`requests`](super::requests)). One thread for each lease receives the
//! agent's messages ([`monitor`](super::monitor)). A thread with a request waits for the answer that the lease's thread
//! passes on. Only the holder of the lock of [`Control`] may send requests and talk to the worker process
//! ([`start`](super::start)).

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use sublet_fabric::packet::PacketSocket;
pub(crate) use sublet_fabric::sync::lock;
use sublet_fabric::sync::{AtomicU32, AtomicU64};
use sublet_proto::v1;
use sublet_proto::{Code, Error};

use super::agent::AgentSocket;
use super::alarm::Alarms;
use super::steps::StartProgress;

/// Longest time until an agent answers.
pub(crate) const AGENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest number of unread messages of a worker process.
const WORKER_MESSAGES: usize = 4;

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

pub(crate) fn protocol(message: impl Into<String>) -> Error {
    Error::new(Code::Protocol, message)
}

pub(crate) fn error_of(code: u32, message: String) -> Error {
    Error::new(Code::from_number(code), message)
}
