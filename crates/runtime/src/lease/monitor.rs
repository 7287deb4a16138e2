//! Implements the lease's thread: receives the agent's messages, handles the ends of processes, and completes futures.
//!
//! One thread for each lease sleeps on the agent's connection and on the bell (rFaaS IV-B). It is the only reader of
//! the connection: answers go to the thread that asked, announcements change the lease's status. When a worker rings
//! the bell, it wakes the futures whose results have come. It must never wait for itself: a future that runs on it
//! starts no worker.
//!
//! Over a network it has three more tasks. It sends a sign of life a few times a second, so that the kernel always has
//! data for the agent's host to acknowledge and notices within a second that the host is unreachable. It receives what
//! arrives from workers with watched futures. If the connection to a worker is lost while the agent's is intact, it has
//! the worker process stopped, whose end then takes the usual course.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sublet_fabric::clock::monotonic_ns;
use sublet_fabric::greeting::PULSE;
use sublet_fabric::packet::{Packet, PacketError};
use sublet_fabric::sync::{Ordering, fence};
use sublet_proto::v1::{self, agent_to_client, client_to_agent};
use sublet_proto::{Code, Error, decode, limits};

use super::link::{AgentAnswer, Answer, FromWorker, MonitorChannels, Notice, error_of, lock, protocol};
use super::transport::RemoteWorkers;
use super::{ClientLease, Death, ENDED, IDLE, REMEMBERED_DEATHS, RUNNING};

/// Longest time until the end of a worker process is announced after its connection has ended.
const DOWN_GRACE: Duration = Duration::from_millis(100);
/// Interval at which the calls of futures are checked for worker writes that make no sense. The threads of futures do
/// not check themselves.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Time after which an agent is asked again to stop a worker process.
const STOP_AGAIN: Duration = Duration::from_secs(2);

thread_local! {
    /// Whether this is a lease's thread.
    static IS_MONITOR: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is a lease's thread, which must not wait for messages that only such a thread receives.
pub(super) fn is_here() -> bool {
    IS_MONITOR.get()
}

impl ClientLease {
    /// Whether this is a lease's own thread, which must not wait for messages that only such a thread receives.
    pub(crate) fn is_own_thread() -> bool {
        is_here()
    }
}

/// Times of the periodic work over a network.
struct Pulse {
    next: Instant,
    /// Time at which a lost connection to a worker has been down for too long.
    stop_at: Option<Instant>,
}

/// Events that the lease's thread has to handle.
struct PendingEvents {
    agent: bool,
    bell: bool,
    /// Workers with data that has arrived.
    workers: Vec<u32>,
}

impl ClientLease {
    /// Runs until the lease is over.
    pub(super) fn monitor(&self, told: &MonitorChannels) {
        IS_MONITOR.set(true);
        let mut pulse = Pulse { next: Instant::now(), stop_at: None };
        let mut look_at = None;
        // Messages that the agent sent with its first answer may have been read together with it.
        let mut more = self.link.agent.is_remote();
        while !self.is_over() {
            let now = Instant::now();
            let alarm = self.link.alarms.ring(now);
            let due = self.worker_transport.remote().map(|remote| self.beat(remote, &mut pulse, now));
            let futures = self.look_at_futures(&mut look_at, now);
            let until = if more { Some(now) } else { [alarm, due, futures].into_iter().flatten().min() };
            let events = self.await_events(until);
            if events.bell {
                let _ = rustix::io::read(&self.link.bell, &mut [0; 8]);
            }
            for &worker in &events.workers {
                self.take_arrived(worker);
            }
            if events.bell || !events.workers.is_empty() {
                self.wake_futures();
            }
            if events.agent || more {
                more = self.hear_agent(told) && self.link.agent.is_remote();
            }
        }
        self.wake_futures();
        self.link.alarms.close();
    }

    /// Sends a sign of life when it is due, and checks the connections. Returns the time of the next call.
    fn beat(&self, remote: &RemoteWorkers, pulse: &mut Pulse, now: Instant) -> Instant {
        let is_due = now >= pulse.next;
        if is_due {
            // If the agent is gone, the next access to its connection shows that.
            let _ = self.tell_agent(client_to_agent::Body::Alive(v1::Alive {}));
            pulse.next = now + PULSE;
        }
        if is_due || pulse.stop_at.is_some_and(|at| now >= at) {
            pulse.stop_at = self.look_after(remote, pulse.stop_at, now);
        }
        pulse.stop_at.map_or(pulse.next, |at| at.min(pulse.next))
    }

    fn look_after(&self, remote: &RemoteWorkers, stop_at: Option<Instant>, now: Instant) -> Option<Instant> {
        let (worker, reason) = remote.down().filter(|_| self.running())?;
        match stop_at {
            Some(at) if now >= at => {
                self.stop_worker(format!("the connection to worker {worker} was lost: {reason}"));
                Some(now + STOP_AGAIN)
            }
            Some(at) => Some(at),
            None => Some(now + DOWN_GRACE),
        }
    }

    /// Wakes all futures when a deadline passes, and at intervals those whose worker wrote invalid values, since that
    /// worker will not ring. Returns the time of the next call.
    fn look_at_futures(&self, look_at: &mut Option<Instant>, now: Instant) -> Option<Instant> {
        let left_ns = self.link.futures_due_ns.load(Ordering::Acquire).saturating_sub(monotonic_ns());
        if left_ns == 0 {
            // Reset before the futures are woken: those that wait again set their deadlines.
            self.link.futures_due_ns.store(u64::MAX, Ordering::Release);
            (0..self.workers()).for_each(|worker| self.records(worker).wake(|_| true));
        }
        let is_looking = self.link.looking.load(Ordering::Acquire) != 0;
        *look_at = match *look_at {
            Some(at) if now < at => Some(at),
            Some(_) if self.stop_looking() => None,
            Some(_) => {
                self.distrust_watched();
                Some(now + LOOK_AGAIN)
            }
            None => is_looking.then(|| now + LOOK_AGAIN),
        };
        let due = (1..u64::MAX >> 1).contains(&left_ns).then(|| now + Duration::from_nanos(left_ns));
        [*look_at, due].into_iter().flatten().min()
    }

    /// Stops the worker process if it wrote invalid values and futures wait for it. They complete when the process has
    /// ended.
    fn distrust_watched(&self) {
        for worker in (0..self.workers()).filter(|&worker| self.records(worker).any_watched()) {
            if let Some((position, nonsense)) = self.find_nonsense(worker) {
                self.distrust(worker, position, nonsense);
            }
        }
    }

    /// Stops checking futures if there are none.
    fn stop_looking(&self) -> bool {
        let any_watched = || (0..self.workers()).any(|worker| self.records(worker).any_watched());
        if any_watched() {
            return false;
        }
        self.link.looking.store(0, Ordering::Relaxed);
        // Pairs with the fence in `watched`: either this sees the future that begins to wait, or that the flag down.
        fence(Ordering::SeqCst);
        if any_watched() {
            self.link.looking.store(1, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Receives the agent's messages. Returns whether there may be more.
    fn hear_agent(&self, told: &MonitorChannels) -> bool {
        let gone =
            |why: &str| Error::new(Code::AgentUnreachable, format!("the lease's agent is gone: {why}"));
        let packet = match self.link.agent.receive(Some(Duration::ZERO)) {
            Ok(Some(packet)) => {
                self.has_heard();
                packet
            }
            Ok(None) => {
                self.lease_ended(gone(&self.link.agent.why_gone()), None);
                return false;
            }
            Err(PacketError::TimedOut(_)) => return false,
            Err(error) => {
                self.lease_ended(gone(&error.to_string()), None);
                return false;
            }
        };
        match read_agent(packet) {
            Ok(AgentMessage::Answer(result)) => drop(told.answer.try_send(result)),
            Ok(AgentMessage::FromWorker(bytes)) => drop(told.worker.try_send(FromWorker::Said(bytes))),
            Ok(AgentMessage::Question(question)) => self.pass_question(question),
            Ok(AgentMessage::Alive) => {}
            Ok(AgentMessage::Step(step)) => self.note_step(&step),
            Ok(AgentMessage::Measured(measured)) => {
                if let Some(asked) = lock(&self.link.asked).pop_front() {
                    // Only this thread sets the cell.
                    let _ = asked.set(measured);
                }
            }
            Ok(AgentMessage::WorkerExited(error)) => {
                self.worker_ended(error);
                drop(told.worker.try_send(FromWorker::Ended));
            }
            Ok(AgentMessage::LeaseEnded(error, usage)) => self.lease_ended(error, Some(usage)),
            Ok(AgentMessage::Ending(error, grace)) => self.announce(error, grace),
            Err(error) => self.lease_ended(error, None),
        }
        true
    }

    fn worker_ended(&self, error: Error) {
        self.disconnect(&error.message);
        // The client knows the better reason for the end of a process that it had stopped for its writes.
        let error = lock(&self.link.ended).distrusted.take().unwrap_or(error);
        self.bury(self.tails(), error);
        self.clear_nonsense();
        // A thread that starts the next process must not take this end for that of its own, so the count is raised
        // before.
        let mut endings = lock(&self.link.ended);
        endings.exits += 1;
        endings.distrusted = None;
        drop(endings);
        let was_running = self.change(RUNNING, IDLE);
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
        let all = vec![u64::MAX; self.workers.len()];
        // A caller that sees the lease's end asks for the reason, which must be there by then.
        self.remember(all.clone(), error.clone());
        self.status.store(ENDED, Ordering::Release);
        self.disconnect(&error.message);
        if let Some(remote) = self.worker_transport.remote() {
            remote.withdraw();
        }
        self.give_up(&all);
        lock(&self.link.ended).lease = Some(usage.ok_or(error));
        self.link.changed.notify_all();
        self.poke_all();
    }

    /// Ends the connections to the workers, over a network. To be done before calls are given up: this concerns those
    /// that were sent by then, and later ones are kept for the next process.
    pub(super) fn disconnect(&self, reason: &str) {
        if let Some(remote) = self.worker_transport.remote() {
            remote.disconnect(reason);
        }
    }

    /// The positions that the next submissions get.
    pub(super) fn tails(&self) -> Vec<u64> {
        self.workers.iter().map(|link| link.ring.tail()).collect()
    }

    /// Gives up the calls below these positions.
    pub(super) fn bury(&self, before: Vec<u64>, error: Error) {
        self.remember(before.clone(), error);
        self.give_up(&before);
    }

    /// Records the reason why calls are about to be given up.
    fn remember(&self, before: Vec<u64>, error: Error) {
        let mut deaths = lock(&self.deaths);
        if deaths.len() == REMEMBERED_DEATHS {
            deaths.pop_front();
        }
        deaths.push_back(Death { before, error });
    }

    fn give_up(&self, before: &[u64]) {
        for (link, &before) in self.workers.iter().zip(before) {
            link.dead_before.fetch_max(before, Ordering::AcqRel);
        }
    }

    /// Makes every thread that waits for a result check the state of its call.
    pub(super) fn poke_all(&self) {
        for (worker, link) in (0..).zip(&self.workers) {
            link.records.each_in_use(|record| self.result_watch(worker, record).poke());
            link.records.wake(|_| true);
        }
    }

    /// Wakes the futures whose results have come, and requests the bell again for the others: the worker may have rung
    /// for the record's earlier call, with the flag that was set for this one.
    fn wake_futures(&self) {
        for (worker, link) in (0..).zip(&self.workers) {
            let ended = self.is_over();
            link.records.wake(|record| {
                let (line, watch) = (self.result_line(worker, record), self.result_watch(worker, record));
                ended || !line.ask_bell(watch, link.records.latest_turn(record))
            });
        }
    }

    /// Sleeps until the agent, the bell or a worker with watched futures has something, or until a time.
    fn await_events(&self, until: Option<Instant>) -> PendingEvents {
        let polled = match self.worker_transport.remote() {
            None => Vec::new(),
            Some(remote) => remote.to_poll(|worker| self.records(worker).any_watched()),
        };
        let own = [self.link.agent.as_fd(), self.link.bell.as_fd()];
        let fds: Vec<BorrowedFd<'_>> = own.into_iter().chain(polled.iter().map(|&(_, fd)| fd)).collect();
        let ready = poll_until(&fds, until);
        let workers = polled.iter().zip(&ready[2..]).filter(|(_, ready)| **ready);
        let workers = workers.map(|(&(worker, _), _)| worker).collect();
        PendingEvents { agent: ready[0], bell: ready[1], workers }
    }
}

enum AgentMessage {
    Answer(Answer),
    FromWorker(Vec<u8>),
    Question(v1::RunMessage),
    Alive,
    Step(String),
    Measured(v1::Measured),
    WorkerExited(Error),
    Ending(Error, Duration),
    LeaseEnded(Error, v1::Usage),
}

fn read_agent(mut packet: Packet) -> Result<AgentMessage, Error> {
    let message: v1::AgentToClient = decode("an agent's message", &packet.bytes)?;
    match message.body {
        Some(agent_to_client::Body::Started(started)) => {
            Ok(AgentMessage::Answer(Ok(AgentAnswer::Started(started, packet.fds.pop()))))
        }
        Some(agent_to_client::Body::Failure(failure)) => {
            Ok(AgentMessage::Answer(Err(error_of(failure.code, failure.message))))
        }
        Some(agent_to_client::Body::FromWorker(bytes)) => Ok(AgentMessage::FromWorker(bytes)),
        Some(agent_to_client::Body::Memory(question)) => Ok(AgentMessage::Question(question)),
        Some(agent_to_client::Body::Alive(_)) => Ok(AgentMessage::Alive),
        Some(agent_to_client::Body::Progress(progress)) => Ok(AgentMessage::Step(progress.step)),
        Some(agent_to_client::Body::Measured(measured)) => Ok(AgentMessage::Measured(measured)),
        Some(agent_to_client::Body::Renewed(_)) => Ok(AgentMessage::Answer(Ok(AgentAnswer::Renewed))),
        Some(agent_to_client::Body::Ending(ending)) => {
            let grace = Duration::from_millis(ending.grace_ms.min(limits::MAX_TIMEOUT_MS));
            Ok(AgentMessage::Ending(error_of(ending.code, ending.reason), grace))
        }
        Some(agent_to_client::Body::WorkerExited(exited)) => {
            Ok(AgentMessage::WorkerExited(error_of(exited.code, exited.reason)))
        }
        Some(agent_to_client::Body::LeaseEnded(ended)) => {
            let code = if ended.code == 0 { Code::LeaseEnded.number() } else { ended.code };
            Ok(AgentMessage::LeaseEnded(error_of(code, ended.reason), ended.usage.unwrap_or_default()))
        }
        Some(agent_to_client::Body::Attached(_)) => Err(protocol("the agent attached the lease twice")),
        Some(other) => Err(protocol(format!("the agent said {other:?}"))),
        None => Err(protocol("an empty message from the agent")),
    }
}

/// Waits until one of the descriptors is readable or broken, or until the given time. Returns which of them are.
pub(super) fn poll_until(fds: &[BorrowedFd<'_>], until: Option<Instant>) -> Vec<bool> {
    let mut watched: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    // A time beyond the kernel's range counts as never.
    let left = until.and_then(|at| Timespec::try_from(at.saturating_duration_since(Instant::now())).ok());
    // Interrupted: look again.
    let polled = poll(&mut watched, left.as_ref()).is_ok();
    watched.iter().map(|fd| polled && !fd.revents().is_empty()).collect()
}
