//! The slow side of a lease: attaching to its agent, starting its worker process, learning how things end.
//!
//! One thread for each lease sleeps on the agent's socket and on the bell (rFaaS IV-B). It is the only reader of the
//! socket: answers go to whoever asked, announcements change the lease's status. When a worker rings the bell, it
//! wakes the futures whose results have come.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prost::Message;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use sublet_fabric::clock::monotonic_ns;
use sublet_fabric::packet::{Packet, PacketSocket};
use sublet_fabric::region::Region;
use sublet_fabric::ring::Sender;
use sublet_fabric::sync::{AtomicU32, AtomicU64, Ordering};
use sublet_fabric::window::Window;
use sublet_fabric::{Endpoint, shm};
use sublet_proto::v1::{self, agent_to_client, client_to_agent, client_to_worker, worker_to_client};
use sublet_proto::{Code, Error, decode};

use super::records::Records;
use super::{Death, ENDED, IDLE, Lease, REMEMBERED_DEATHS, RUNNING, WorkerLink};
use crate::arena::Arena;
use crate::manager::socket_path;
use crate::wire::{InboxLayout, OWN_REGION, ResultsLayout};

/// How long an agent may take to answer; starting a worker includes fetching its package.
const AGENT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a worker may take to map a region, or to load its package.
const WORKER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the announcement of a worker's end may take after the end was seen otherwise.
const ANNOUNCEMENT_TIMEOUT: Duration = Duration::from_secs(2);

/// When a cold start reached what, in nanoseconds of the node's monotonic clock.
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

pub(super) struct Link {
    agent: PacketSocket,
    bell: OwnedFd,
    control: Mutex<Control>,
    ended: Mutex<Endings>,
    changed: Condvar,
}

/// What whoever holds the lock may talk to.
struct Control {
    answers: Receiver<Answer>,
    worker: Option<PacketSocket>,
    /// The arena's regions that the running worker process has mapped.
    regions: u32,
    cold_start: ColdStart,
}

/// What the monitor has learnt.
#[derive(Default)]
struct Endings {
    /// How many worker processes have ended.
    exits: u64,
    /// Once the lease is over: what it has used, or why its agent could not say so.
    lease: Option<Result<v1::Usage, Error>>,
}

type Answer = Result<(v1::Started, OwnedFd), Error>;

fn protocol(message: impl Into<String>) -> Error {
    Error::new(Code::Protocol, message)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lease {
    /// Shows the ticket to the agent and makes the lease ready to start workers.
    pub(crate) fn attach(
        grant: v1::LeaseGrant,
        arena: Arc<Arena>,
        spin: Duration,
    ) -> Result<Arc<Lease>, Error> {
        let description = grant.lease.ok_or_else(|| protocol("the grant names no lease"))?;
        let package = grant.package.ok_or_else(|| protocol("the grant names no package"))?;
        let options = description.options.ok_or_else(|| protocol("the lease has no options"))?;
        let inbox = InboxLayout::new(description.cores, options.slots, options.slot_bytes)?;
        let agent = connect(&grant.agent)?;
        let (attached, inbox_file) = introduce(&agent, grant.ticket)?;
        if attached.inbox_bytes != inbox.len_bytes() {
            return Err(protocol(format!(
                "an inbox of {} bytes instead of {}",
                attached.inbox_bytes,
                inbox.len_bytes()
            )));
        }
        let window = Window::reserve(1, inbox.len_bytes())?;
        window.map(OWN_REGION, inbox_file.as_fd(), inbox.len_bytes())?;
        let results_layout = ResultsLayout::new(description.cores);
        let (answer, answers) = sync_channel(1);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::new(Code::System, format!("eventfd: {error}")))?;
        let control = Control { answers, worker: None, regions: 0, cold_start: ColdStart::default() };
        let lease = Arc::new(Lease {
            names: names(&package),
            results: Region::create("sublet-results", results_layout.len_bytes())?,
            workers: (0..description.cores).map(|_| WorkerLink::new(options.slots)).collect(),
            endpoint: Endpoint::Shm(shm::Endpoint::new(window, None)),
            status: AtomicU32::new(IDLE),
            deaths: Mutex::new(VecDeque::new()),
            ticks_per_ns: attached.ticks_per_ns,
            spin_ticks: (spin.as_nanos() as f64 * attached.ticks_per_ns) as u64,
            next_worker: AtomicU32::new(0),
            link: Link {
                agent,
                bell,
                control: Mutex::new(control),
                ended: Mutex::new(Endings::default()),
                changed: Condvar::new(),
            },
            description,
            package,
            options,
            arena,
            inbox,
            results_layout,
        });
        let monitored = lease.clone();
        std::thread::Builder::new()
            .name("sublet lease".into())
            .spawn(move || monitored.monitor(&answer))
            .map_err(|error| Error::new(Code::System, format!("starting the lease's thread: {error}")))?;
        Ok(lease)
    }

    /// Starts the worker process unless it runs.
    #[cold]
    pub(crate) fn revive(&self) -> Result<(), Error> {
        let mut control = lock(&self.link.control);
        match self.status.load(Ordering::Acquire) {
            RUNNING => Ok(()),
            ENDED => Err(self.why_lost(0, u64::MAX)),
            _ => self.start(&mut control),
        }
    }

    /// Makes the running worker process map what the arena has grown by. Without one, the next start does.
    pub(crate) fn publish_regions(&self) -> Result<(), Error> {
        let mut control = lock(&self.link.control);
        if control.worker.is_none() {
            return Ok(());
        }
        match self.send_regions(&mut control) {
            // A worker that died meanwhile takes its reason to those who wait for it.
            Err(error) if error.code == Code::WorkerDied => Ok(()),
            sent => sent,
        }
    }

    /// Ends the worker process; its unfinished calls are lost for this reason.
    pub(crate) fn stop_worker(&self, reason: String) {
        // If the agent cannot be told, it is gone, and the monitor says so to everybody.
        let _ = self.tell_agent(client_to_agent::Body::Stop(v1::Stop { reason }));
    }

    /// Gives the lease back. Calls that have not ended are lost. Returns what was used, or why its agent cannot say.
    pub(crate) fn end(&self) -> Result<v1::Usage, Error> {
        let told = self.tell_agent(client_to_agent::Body::Release(v1::Release {}));
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

    /// When the running worker process reached what.
    pub(crate) fn cold_start(&self) -> ColdStart {
        lock(&self.link.control).cold_start
    }

    fn start(&self, control: &mut Control) -> Result<(), Error> {
        let exits = lock(&self.link.ended).exits;
        control.worker = None;
        if let Err(error) = self.start_process(control) {
            // Without its control socket the process ends, if there is one. A later start must not mistake the
            // announcement of that for the end of its own process.
            let started = control.worker.take().is_some();
            return Err(if started { self.await_exit(exits, error) } else { error });
        }
        if !self.change(IDLE, RUNNING) {
            return Err(self.why_lost(0, u64::MAX));
        }
        // The process may have ended before it was said to run: then its end was announced to nobody.
        if lock(&self.link.ended).exits != exits && self.change(RUNNING, IDLE) {
            self.poke_all();
        }
        Ok(())
    }

    /// Changes the status, unless it is another by now.
    fn change(&self, from: u32, to: u32) -> bool {
        self.status.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn start_process(&self, control: &mut Control) -> Result<(), Error> {
        while control.answers.try_recv().is_ok() {}
        let asked_ns = monotonic_ns();
        self.tell_agent(client_to_agent::Body::Start(v1::Start {}))?;
        let (started, socket) = match control.answers.recv_timeout(AGENT_TIMEOUT) {
            Ok(answer) => answer?,
            Err(RecvTimeoutError::Timeout) => {
                return Err(Error::new(
                    Code::AgentUnreachable,
                    "the agent did not start a worker within 10 s",
                ));
            }
            Err(RecvTimeoutError::Disconnected) => return Err(self.why_lost(0, u64::MAX)),
        };
        control.worker = Some(PacketSocket::from(socket));
        control.regions = 0;
        self.send_regions(control)?;
        let ready = self.connect_worker(control)?;
        control.cold_start = ColdStart {
            asked_ns,
            requested_ns: started.requested_ns,
            package_ready_ns: started.package_ready_ns,
            spawned_ns: started.spawned_ns,
            entered_ns: ready.entered_ns,
            loaded_ns: ready.loaded_ns,
            ready_ns: ready.ready_ns,
        };
        Ok(())
    }

    fn send_regions(&self, control: &mut Control) -> Result<(), Error> {
        let Control { worker, regions, .. } = control;
        let worker = worker.as_ref().ok_or_else(|| Error::new(Code::WorkerDied, "there is no worker"))?;
        self.arena.regions_above(*regions, |number, file, len_bytes| {
            let message = client_to_worker::Body::MapRegion(v1::MapRegion { region: number, len_bytes });
            match ask_worker(worker, message, &[file.as_fd()])? {
                worker_to_client::Body::RegionMapped(mapped) if mapped.region == number => *regions = number,
                other => return Err(protocol(format!("the worker answered a region with {other:?}"))),
            }
            Ok(())
        })
    }

    fn connect_worker(&self, control: &Control) -> Result<v1::Ready, Error> {
        let worker =
            control.worker.as_ref().ok_or_else(|| Error::new(Code::WorkerDied, "there is no worker"))?;
        let start_positions =
            self.workers.iter().map(|link| link.dead_before.load(Ordering::Acquire)).collect();
        let connect = v1::Connect { results_bytes: self.results.len_bytes(), start_positions };
        let fds = [self.results.fd(), self.link.bell.as_fd()];
        match ask_worker(worker, client_to_worker::Body::Connect(connect), &fds)? {
            worker_to_client::Body::Ready(ready) => Ok(ready),
            other => Err(protocol(format!("the worker answered a connection with {other:?}"))),
        }
    }

    /// Waits until the end of a process that did not start well has been announced; chooses the better reason.
    fn await_exit(&self, exits: u64, error: Error) -> Error {
        let endings = lock(&self.link.ended);
        let waited = self.link.changed.wait_timeout_while(endings, ANNOUNCEMENT_TIMEOUT, |endings| {
            endings.exits == exits && endings.lease.is_none()
        });
        drop(waited);
        if error.code == Code::WorkerDied { self.why_lost(0, u64::MAX) } else { error }
    }

    fn tell_agent(&self, body: client_to_agent::Body) -> Result<(), Error> {
        let bytes = v1::ClientToAgent { body: Some(body) }.encode_to_vec();
        self.link.agent.send(&bytes, &[]).map_err(|error| {
            Error::new(Code::AgentUnreachable, format!("the lease's agent cannot be told anything: {error}"))
        })
    }

    /// The lease's thread: until the lease is over.
    fn monitor(&self, answer: &SyncSender<Answer>) {
        while self.status.load(Ordering::Acquire) != ENDED {
            let (agent, bell) = wait_for_either(self.link.agent.as_fd(), self.link.bell.as_fd());
            if bell {
                let _ = rustix::io::read(&self.link.bell, &mut [0; 8]);
                self.wake_futures();
            }
            if agent {
                self.hear_agent(answer);
            }
        }
        self.wake_futures();
    }

    fn hear_agent(&self, answer: &SyncSender<Answer>) {
        let gone =
            |why: String| Error::new(Code::AgentUnreachable, format!("the lease's agent is gone: {why}"));
        let packet = match self.link.agent.receive(Some(Duration::ZERO)) {
            Ok(Some(packet)) => packet,
            Ok(None) => return self.lease_ended(gone("it closed the connection".into()), None),
            Err(sublet_fabric::packet::PacketError::TimedOut(_)) => return,
            Err(error) => return self.lease_ended(gone(error.to_string()), None),
        };
        match read_agent(packet) {
            Ok(Heard::Answer(result)) => drop(answer.try_send(result)),
            Ok(Heard::WorkerExited(error)) => self.worker_ended(error),
            Ok(Heard::LeaseEnded(error, usage)) => self.lease_ended(error, Some(usage)),
            Err(error) => self.lease_ended(error, None),
        }
    }

    fn worker_ended(&self, error: Error) {
        let was_running = self.change(RUNNING, IDLE);
        let before = self.workers.iter().map(|link| link.ring.tail()).collect();
        self.bury(before, error);
        lock(&self.link.ended).exits += 1;
        self.link.changed.notify_all();
        if was_running {
            self.poke_all();
        }
    }

    fn lease_ended(&self, error: Error, usage: Option<v1::Usage>) {
        self.status.store(ENDED, Ordering::Release);
        self.bury(vec![u64::MAX; self.workers.len()], error.clone());
        lock(&self.link.ended).lease = Some(usage.ok_or(error));
        self.link.changed.notify_all();
        self.poke_all();
    }

    /// Gives up the calls below these positions.
    fn bury(&self, before: Vec<u64>, error: Error) {
        let mut deaths = lock(&self.deaths);
        if deaths.len() == REMEMBERED_DEATHS {
            deaths.pop_front();
        }
        deaths.push_back(Death { before: before.clone(), error });
        for (link, before) in self.workers.iter().zip(before) {
            link.dead_before.fetch_max(before, Ordering::AcqRel);
        }
    }

    /// Makes everybody who waits for a result look at what has become of it.
    fn poke_all(&self) {
        for (worker, link) in self.workers.iter().enumerate() {
            link.records.each_in_use(|record| self.result_watch(worker as u32, record).poke());
            link.records.wake(|_| true);
        }
    }

    /// Wakes the futures whose results have come, and asks for the bell anew for the others: the worker may have rung
    /// for the record's call before, with the flag that was set for this one.
    fn wake_futures(&self) {
        for (worker, link) in self.workers.iter().enumerate() {
            let worker = worker as u32;
            let ended = self.status.load(Ordering::Acquire) == ENDED;
            link.records.wake(|record| {
                let (line, watch) = (self.result_line(worker, record), self.result_watch(worker, record));
                ended || !line.ask_bell(watch, link.records.latest_turn(record))
            });
        }
    }
}

impl WorkerLink {
    fn new(slots: u32) -> WorkerLink {
        WorkerLink { ring: Sender::new(slots), records: Records::new(), dead_before: AtomicU64::new(0) }
    }
}

fn names(package: &v1::PackageInfo) -> Vec<(String, u16)> {
    let mut names: Vec<_> =
        package.functions.iter().enumerate().map(|(index, info)| (info.name.clone(), index as u16)).collect();
    names.sort_unstable();
    names
}

fn connect(address: &str) -> Result<PacketSocket, Error> {
    PacketSocket::connect(socket_path(address)?).map_err(|error| {
        Error::new(Code::AgentUnreachable, format!("the lease's agent at {address}: {error}"))
    })
}

fn introduce(agent: &PacketSocket, ticket: Vec<u8>) -> Result<(v1::Attached, OwnedFd), Error> {
    let attach = client_to_agent::Body::Attach(v1::Attach { ticket });
    agent.send(&v1::ClientToAgent { body: Some(attach) }.encode_to_vec(), &[])?;
    let packet = agent.receive(Some(AGENT_TIMEOUT))?;
    let mut packet =
        packet.ok_or_else(|| Error::new(Code::AgentUnreachable, "the agent closed the connection"))?;
    let message: v1::AgentToClient = decode("an agent's message", &packet.bytes)?;
    match (message.body, packet.fds.pop()) {
        (Some(agent_to_client::Body::Attached(attached)), Some(inbox)) => Ok((attached, inbox)),
        (Some(agent_to_client::Body::Failure(failure)), _) => Err(error_of(failure.code, failure.message)),
        (Some(agent_to_client::Body::LeaseEnded(ended)), _) => Err(error_of(ended.code, ended.reason)),
        (body, _) => Err(protocol(format!("the agent answered a ticket with {body:?}"))),
    }
}

enum Heard {
    Answer(Answer),
    WorkerExited(Error),
    LeaseEnded(Error, v1::Usage),
}

fn read_agent(mut packet: Packet) -> Result<Heard, Error> {
    let message: v1::AgentToClient = decode("an agent's message", &packet.bytes)?;
    match message.body {
        Some(agent_to_client::Body::Started(started)) => {
            let socket = packet.fds.pop().ok_or_else(|| protocol("a started worker without its socket"))?;
            Ok(Heard::Answer(Ok((started, socket))))
        }
        Some(agent_to_client::Body::Failure(failure)) => {
            Ok(Heard::Answer(Err(error_of(failure.code, failure.message))))
        }
        Some(agent_to_client::Body::WorkerExited(exited)) => {
            Ok(Heard::WorkerExited(error_of(exited.code, exited.reason)))
        }
        Some(agent_to_client::Body::LeaseEnded(ended)) => {
            let code = if ended.code == 0 { Code::LeaseEnded.number() } else { ended.code };
            Ok(Heard::LeaseEnded(error_of(code, ended.reason), ended.usage.unwrap_or_default()))
        }
        Some(agent_to_client::Body::Attached(_)) => Err(protocol("the agent attached the lease twice")),
        None => Err(protocol("an empty message from the agent")),
    }
}

fn error_of(code: u32, message: String) -> Error {
    Error::new(Code::from_number(code), message)
}

fn ask_worker(
    worker: &PacketSocket,
    body: client_to_worker::Body,
    fds: &[BorrowedFd<'_>],
) -> Result<worker_to_client::Body, Error> {
    let died = |what: &str| Error::new(Code::WorkerDied, format!("the worker ended {what}"));
    let bytes = v1::ClientToWorker { body: Some(body) }.encode_to_vec();
    // A worker that has failed says why before it ends, so a failed send is not the last word.
    let sent = worker.send(&bytes, fds);
    let answer = match worker.receive(Some(WORKER_TIMEOUT)) {
        Ok(Some(packet)) => packet,
        Ok(None) => return Err(died("while it was being connected")),
        Err(error) => {
            sent.map_err(|_| died("before it could be connected"))?;
            return Err(Error::new(Code::WorkerDied, format!("the worker did not answer: {error}")));
        }
    };
    match decode::<v1::WorkerToClient>("a worker's message", &answer.bytes)?.body {
        Some(worker_to_client::Body::Failure(failure)) => Err(error_of(failure.code, failure.message)),
        Some(body) => Ok(body),
        None => Err(protocol("an empty message from the worker")),
    }
}

fn wait_for_either(agent: BorrowedFd<'_>, bell: BorrowedFd<'_>) -> (bool, bool) {
    let mut watched = [PollFd::new(&agent, PollFlags::IN), PollFd::new(&bell, PollFlags::IN)];
    match poll(&mut watched, None) {
        Ok(_) => (!watched[0].revents().is_empty(), !watched[1].revents().is_empty()),
        // Interrupted: look again.
        Err(_) => (false, false),
    }
}
