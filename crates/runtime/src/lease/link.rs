//! The slow side of an attached lease: starting its worker process, renewing it, learning how things end.
//!
//! One thread for each lease sleeps on the agent's socket and on the bell (rFaaS IV-B). It is the only reader of the
//! socket: answers go to whoever asked, announcements change the lease's status. When a worker rings the bell, it
//! wakes the futures whose results have come. It must never wait for itself: whoever may run on it starts no worker.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use prost::Message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sublet_fabric::clock::monotonic_ns;
use sublet_fabric::packet::{Packet, PacketSocket};
use sublet_fabric::ring::Sender;
use sublet_fabric::sync::{AtomicU32, AtomicU64, Ordering};
use sublet_proto::v1::{self, agent_to_client, client_to_agent, client_to_worker, worker_to_client};
use sublet_proto::{Code, Error, decode, limits};

use super::alarm::Alarms;
use super::records::Records;
use super::{Death, ENDED, IDLE, Lease, REMEMBERED_DEATHS, RUNNING, WorkerLink};

/// How long an agent may take to answer; starting a worker includes fetching its package.
pub(super) const AGENT_TIMEOUT: Duration = Duration::from_secs(10);
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

pub(super) struct Link {
    agent: PacketSocket,
    bell: OwnedFd,
    control: Mutex<Control>,
    ended: Mutex<Endings>,
    changed: Condvar,
    alarms: Alarms,
    /// Not 0: a thread is starting a worker process.
    reviving: AtomicU32,
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
    /// Its end, if it was announced.
    notice: Option<Notice>,
    /// Once the lease is over: what it has used, or why its agent could not say so.
    lease: Option<Result<v1::Usage, Error>>,
}

/// What the agent answers to a request.
pub(super) type Answer = Result<Answered, Error>;

pub(super) enum Answered {
    Started(v1::Started, OwnedFd),
    Renewed,
}

impl Link {
    pub(super) fn new(agent: PacketSocket, bell: OwnedFd, answers: Receiver<Answer>) -> Link {
        let control = Control { answers, worker: None, regions: 0, cold_start: ColdStart::default() };
        Link {
            agent,
            bell,
            control: Mutex::new(control),
            ended: Mutex::new(Endings::default()),
            changed: Condvar::new(),
            alarms: Alarms::new(),
            reviving: AtomicU32::new(0),
        }
    }
}

pub(super) fn protocol(message: impl Into<String>) -> Error {
    Error::new(Code::Protocol, message)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lease {
    /// Starts the worker process unless it runs.
    #[cold]
    pub(crate) fn revive(&self) -> Result<(), Error> {
        let mut control = lock(&self.link.control);
        match self.status.load(Ordering::Acquire) {
            RUNNING => Ok(()),
            ENDED => Err(self.why_over()),
            _ => {
                while control.answers.try_recv().is_ok() {}
                let asked_ns = monotonic_ns();
                let asked = self.tell_agent(client_to_agent::Body::Start(v1::Start {}));
                self.start(&mut control, asked.map(|()| asked_ns))
            }
        }
    }

    /// Takes up the worker process that was asked for with the ticket, at this time.
    pub(super) fn await_start(&self, asked_ns: u64) -> Result<(), Error> {
        self.start(&mut lock(&self.link.control), Ok(asked_ns))
    }

    /// As [`Lease::revive`], in the background and only if nobody does so already. If it fails, the calls that wait for
    /// the process are lost.
    #[cold]
    pub(crate) fn revive_soon(self: &Arc<Lease>) {
        if self.link.reviving.swap(1, Ordering::AcqRel) != 0 {
            return;
        }
        let lease = self.clone();
        let start = move || {
            // Whoever waits for the process finds the reason beside its call.
            let _ = lease.revive();
            lease.link.reviving.store(0, Ordering::Release);
        };
        if std::thread::Builder::new().name("sublet start".into()).spawn(start).is_err() {
            self.link.reviving.store(0, Ordering::Release);
        }
    }

    /// Has the waker called at that time.
    #[cold]
    pub(crate) fn wake_at(&self, at: Instant, waker: &Waker) {
        if self.link.alarms.set(at, waker) {
            // The lease's thread learns by its bell that it has to look at the clock. A full bell is a rung one.
            let _ = rustix::io::write(&self.link.bell, &1u64.to_ne_bytes());
        }
    }

    /// Shows the agent a ticket of this lease with another end.
    pub(crate) fn renew(&self, grant: v1::LeaseGrant) -> Result<(), Error> {
        let renewed = grant.lease.ok_or_else(|| protocol("the renewal names no lease"))?;
        let control = lock(&self.link.control);
        while control.answers.try_recv().is_ok() {}
        self.tell_agent(client_to_agent::Body::Renew(v1::Renew { ticket: grant.ticket }))?;
        match self.hear_answer(&control, "renew the lease")? {
            Answered::Renewed => {
                self.expires_unix_ms.store(renewed.expires_unix_ms, Ordering::Relaxed);
                Ok(())
            }
            Answered::Started(..) => Err(protocol("the agent answered a renewal with a worker")),
        }
    }

    /// The announcement of the lease's end, if there was one.
    pub(crate) fn notice(&self) -> Option<Notice> {
        lock(&self.link.ended).notice.clone()
    }

    /// Why the lease is over.
    pub(crate) fn why_over(&self) -> Error {
        self.why_lost(0, u64::MAX)
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

    /// When the running worker process reached what.
    pub(crate) fn cold_start(&self) -> ColdStart {
        lock(&self.link.control).cold_start
    }

    /// Connects the worker process that the agent was asked for at a time, or could not be. If that fails, the calls
    /// that wait for a process are lost.
    fn start(&self, control: &mut Control, asked_ns: Result<u64, Error>) -> Result<(), Error> {
        let exits = lock(&self.link.ended).exits;
        control.worker = None;
        if let Err(error) = asked_ns.and_then(|asked_ns| self.start_process(control, asked_ns)) {
            // Without its control socket the process ends, if there is one. A later start must not mistake the
            // announcement of that for the end of its own process.
            let started = control.worker.take().is_some();
            let error = if started { self.await_exit(exits, error) } else { error };
            self.bury(self.tails(), error.clone());
            self.poke_all();
            return Err(error);
        }
        if !self.change(IDLE, RUNNING) {
            return Err(self.why_over());
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

    fn start_process(&self, control: &mut Control, asked_ns: u64) -> Result<(), Error> {
        let (started, socket) = match self.hear_answer(control, "start a worker")? {
            Answered::Started(started, socket) => (started, socket),
            Answered::Renewed => return Err(protocol("the agent answered a start with a renewal")),
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

    fn hear_answer(&self, control: &Control, what: &str) -> Result<Answered, Error> {
        match control.answers.recv_timeout(AGENT_TIMEOUT) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                let seconds = AGENT_TIMEOUT.as_secs();
                let message = format!("the agent did not {what} within {seconds} s");
                Err(Error::new(Code::AgentUnreachable, message))
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.why_over()),
        }
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
    pub(super) fn monitor(&self, answer: &SyncSender<Answer>) {
        while !self.is_over() {
            let alarm = self.link.alarms.ring(Instant::now());
            let (agent, bell) = wait_for_either(self.link.agent.as_fd(), self.link.bell.as_fd(), alarm);
            if bell {
                let _ = rustix::io::read(&self.link.bell, &mut [0; 8]);
                self.wake_futures();
            }
            if agent {
                self.hear_agent(answer);
            }
        }
        self.wake_futures();
        self.link.alarms.close();
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
            Ok(Heard::Ending(error, grace)) => self.announce(error, grace),
            Err(error) => self.lease_ended(error, None),
        }
    }

    fn worker_ended(&self, error: Error) {
        let was_running = self.change(RUNNING, IDLE);
        self.bury(self.tails(), error);
        lock(&self.link.ended).exits += 1;
        self.link.changed.notify_all();
        if was_running {
            self.poke_all();
        }
    }

    fn announce(&self, error: Error, grace: Duration) {
        let lease = self.description.id.clone();
        lock(&self.link.ended).notice = Some(Notice { lease, error, until: Instant::now() + grace });
        self.ending.store(1, Ordering::Relaxed);
    }

    fn lease_ended(&self, error: Error, usage: Option<v1::Usage>) {
        self.status.store(ENDED, Ordering::Release);
        self.bury(vec![u64::MAX; self.workers.len()], error.clone());
        lock(&self.link.ended).lease = Some(usage.ok_or(error));
        self.link.changed.notify_all();
        self.poke_all();
    }

    /// The positions that the next submissions get.
    fn tails(&self) -> Vec<u64> {
        self.workers.iter().map(|link| link.ring.tail()).collect()
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
            let ended = self.is_over();
            link.records.wake(|record| {
                let (line, watch) = (self.result_line(worker, record), self.result_watch(worker, record));
                ended || !line.ask_bell(watch, link.records.latest_turn(record))
            });
        }
    }
}

impl WorkerLink {
    pub(super) fn new(slots: u32) -> WorkerLink {
        WorkerLink { ring: Sender::new(slots), records: Records::new(), dead_before: AtomicU64::new(0) }
    }
}

enum Heard {
    Answer(Answer),
    WorkerExited(Error),
    Ending(Error, Duration),
    LeaseEnded(Error, v1::Usage),
}

fn read_agent(mut packet: Packet) -> Result<Heard, Error> {
    let message: v1::AgentToClient = decode("an agent's message", &packet.bytes)?;
    match message.body {
        Some(agent_to_client::Body::Started(started)) => {
            let socket = packet.fds.pop().ok_or_else(|| protocol("a started worker without its socket"))?;
            Ok(Heard::Answer(Ok(Answered::Started(started, socket))))
        }
        Some(agent_to_client::Body::Failure(failure)) => {
            Ok(Heard::Answer(Err(error_of(failure.code, failure.message))))
        }
        Some(agent_to_client::Body::Renewed(_)) => Ok(Heard::Answer(Ok(Answered::Renewed))),
        Some(agent_to_client::Body::Ending(ending)) => {
            let grace = Duration::from_millis(ending.grace_ms.min(limits::MAX_TIMEOUT_MS));
            Ok(Heard::Ending(error_of(ending.code, ending.reason), grace))
        }
        Some(agent_to_client::Body::WorkerExited(exited)) => {
            Ok(Heard::WorkerExited(error_of(exited.code, exited.reason)))
        }
        Some(agent_to_client::Body::LeaseEnded(ended)) => {
            let code = if ended.code == 0 { Code::LeaseEnded.number() } else { ended.code };
            Ok(Heard::LeaseEnded(error_of(code, ended.reason), ended.usage.unwrap_or_default()))
        }
        Some(agent_to_client::Body::Attached(_)) => Err(protocol("the agent attached the lease twice")),
        Some(other) => Err(protocol(format!("the agent said {other:?}"))),
        None => Err(protocol("an empty message from the agent")),
    }
}

pub(super) fn error_of(code: u32, message: String) -> Error {
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

fn wait_for_either(agent: BorrowedFd<'_>, bell: BorrowedFd<'_>, until: Option<Instant>) -> (bool, bool) {
    let mut watched = [PollFd::new(&agent, PollFlags::IN), PollFd::new(&bell, PollFlags::IN)];
    // A time beyond what the kernel can say is as good as for ever.
    let left = until.and_then(|at| Timespec::try_from(at.saturating_duration_since(Instant::now())).ok());
    match poll(&mut watched, left.as_ref()) {
        Ok(_) => (!watched[0].revents().is_empty(), !watched[1].revents().is_empty()),
        // Interrupted: look again.
        Err(_) => (false, false),
    }
}
