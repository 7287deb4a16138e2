//! One lease's supervisor: a thread that waits for whatever may happen to the lease, and acts on it.
//!
//! ```text
//!             manager confirms            Start           worker ends, Stop
//! provisional ----------------> attached ------> running ------------------> attached
//!     |                            |                |
//!     | manager refuses            +----------------+--> ended: Release, client gone, expired, idle, asked to end,
//!     +---> refused                                             broken client
//! ```
//!
//! The client's connection is the lease's life line: when it closes, however the client died, the lease ends. Between
//! nodes the kernel closes it when the other end is out of reach, since something is always under way. The inbox and the
//! usage region belong to the lease, so a worker that is started again finds both.
//!
//! Invariants:
//! - When a lease has ended, its worker and all work of its starts are dead before its cores are free, and its cores are
//!   free before the manager and the client hear of it. A core on which a worker cannot be killed is never lent again.
//! - Nothing of a lease is handed to its client before the token behind it was verified.
//! - A requested end is announced to the client first, with the time that is left.
//! - A worker process does not outlive the thread of its lease.
//! - This thread waits only for events, and for the end of a worker that it kills: a client on another node receives
//!   signs of life all the while.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sublet_fabric::connection::Connection;
use sublet_fabric::greeting::PULSE;
use sublet_fabric::packet::PacketError;
use sublet_fabric::region::punch_hole;
use sublet_proto::v1;
use sublet_proto::{Code, Error};
use tracing::{error, info};

use crate::execution::start_cores::StartCores;
use crate::execution::worker::WorkerProcess;
use crate::leases::attach::AttachedLease;
use crate::leases::confirm::Confirmation;
use crate::leases::end::EndReason;
use crate::leases::idle::{self, IdleDecision, IdleWatch};
use crate::listener::message::{self, FromClient, ToClient};
use crate::listener::pace::{MAX_MESSAGES_PER_SECOND, Pace};
use crate::node::Node;
use crate::signal::{DescriptorWatch, WantedEnd, wait_for, wait_readable};
use relay::WorkerRelay;
use remote_segment::RemoteSegment;
use start_state::StartState;

mod memory_proxy;
mod process;
mod relay;
mod remote_segment;
mod start;
mod start_state;
mod tell;

/// How long a client waits at most for a manager to hear of the end of its lease.
const TELL_PATIENCE: Duration = Duration::from_secs(2);

/// How long the end of a lease waits at most for work on its cores to end. The work is killed at once, but may have begun
/// to start a sandbox, which takes longer.
const WORK_END_PATIENCE: Duration = Duration::from_secs(10);

/// How long a client may take to release memory of a segment that has ended.
const LET_GO_PATIENCE: Duration = Duration::from_millis(500);

/// Watches over a lease until it has ended.
pub(crate) fn supervise(node: &Node, socket: &Connection, held: AttachedLease) {
    let idle_timeout = match held.lease.idle_timeout_ms {
        // A segment has no calls.
        _ if held.lease.is_segment() => None,
        0 => node.leases.idle_timeout,
        own_ms => Some(Duration::from_millis(own_ms)),
    };
    let idle = idle_timeout.map(|timeout| IdleWatch::new(timeout, Instant::now()));
    Supervisor {
        worker: None,
        relay: None,
        served: None,
        start: StartState::None,
        start_cores: None,
        held,
        ending: None,
        idle,
        pace: Pace::default(),
        // A message may have come with the ticket.
        has_more: true,
        socket,
        node,
    }
    .run();
}

/// State of a supervisor. If this thread fails, the worker is dropped, and dies, before what it uses.
struct Supervisor<'node> {
    worker: Option<WorkerProcess>,
    /// Relay to a client on another node.
    relay: Option<WorkerRelay>,
    /// Access to a segment from other machines.
    served: Option<RemoteSegment>,
    start: StartState,
    /// The lease's cores, once work of a start may use them.
    start_cores: Option<Arc<StartCores>>,
    held: AttachedLease,
    /// End that was announced to the client.
    ending: Option<WantedEnd>,
    idle: Option<IdleWatch>,
    /// Rate of the client's messages.
    pace: Pace,
    /// The client's connection may hold a message beside the one that was taken.
    has_more: bool,
    socket: &'node Connection,
    node: &'node Node,
}

/// Event of a lease.
enum Event {
    WorkerEnded,
    EndWanted(WantedEnd),
    /// The time of the announced end has come.
    EndDue(Error),
    Expired,
    /// A check for calls is due.
    Look,
    Message(FromClient),
    /// The client has sent an invalid message.
    Garbage(Error),
    ClientGone,
    /// The package for which a worker waits was fetched, or cannot be fetched.
    Fetched,
    /// A start that waits for its package has a step to tell.
    Stepped,
    /// The worker has sent a message for a client on another node.
    FromWorker,
    /// The worker requests memory.
    Question,
    /// Connections for workers or for a segment have arrived.
    Links,
    /// A sign of life to the client is due.
    Alive,
}

impl Supervisor<'_> {
    fn run(mut self) {
        info!(lease = self.held.lease.id, cores = ?self.held.reservation.cores, "lease attached");
        let end = match self.supervise() {
            Ok(end) => end,
            Err(error) if self.held.confirmation.is_some() => EndReason::Refused(error),
            Err(error) => EndReason::Error(error),
        };
        self.finish(end);
    }

    /// Supervises until the lease ends. An error ends it, too.
    fn supervise(&mut self) -> Result<EndReason, Error> {
        if let Some(network_transport) = &self.held.network_transport {
            self.relay = Some(WorkerRelay::new(self.node, &self.held.lease, network_transport)?);
        }
        // A worker that is requested at once starts while the manager verifies the token.
        if self.held.start {
            self.begin_start();
        }
        let mut end = self.await_confirmation()?;
        // The tenant of the lease is known from now on.
        if end.is_none() && self.relay.is_some() && self.held.lease.is_segment() {
            self.served()?;
        }
        if end.is_none() {
            end = self.tell_attached()?;
        }
        if end.is_none() {
            end = self.tell_start()?;
        }
        loop {
            if let Some(end) = end {
                return Ok(end);
            }
            let event = self.next_event()?;
            end = self.handle(event)?;
        }
    }

    /// Opens the segment to other machines, from the first call on.
    fn served(&mut self) -> Result<&mut RemoteSegment, Error> {
        if self.served.is_none() {
            let AttachedLease { lease, network_transport, inbox, flash, .. } = &self.held;
            let memory = (inbox, flash.as_ref());
            self.served = Some(RemoteSegment::open(self.node, lease, network_transport.as_ref(), memory)?);
        }
        self.served.as_mut().ok_or_else(|| Error::new(Code::Internal, "a segment that is not served"))
    }

    /// Waits for the manager's answer about a provisional ticket. The client may go meanwhile; its messages wait. A
    /// worker starts once its package is fetched.
    fn await_confirmation(&mut self) -> Result<Option<EndReason>, Error> {
        while let Some(confirmation) = &self.held.confirmation {
            let watches = [
                Some(DescriptorWatch::Readable(confirmation.as_fd())),
                Some(DescriptorWatch::Readable(self.held.end.signal.as_fd())),
                Some(DescriptorWatch::Closed(self.socket.as_fd())),
                self.fetched().map(DescriptorWatch::Readable),
            ];
            let [_, end_wanted, client_gone, _] = wait_for(watches, Some(self.until_alive()))?;
            if client_gone {
                return Ok(Some(EndReason::ClientGone));
            }
            if let Some(wanted) = self.held.end.take_note().filter(|_| end_wanted) {
                return Ok(Some(EndReason::Refused(wanted.reason)));
            }
            self.go_on_starting();
            let end = if self.is_alive_due(Instant::now()) { self.tell_alive()? } else { None };
            if let Some(end) = end.or(self.take_confirmation()?) {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    /// Takes the manager's answer, if it has come.
    fn take_confirmation(&mut self) -> Result<Option<EndReason>, Error> {
        match self.held.confirmation.as_ref().and_then(Confirmation::outcome) {
            Some(Ok(ticket)) => {
                self.held.lease.tenant = self.held.enrolment.confirm(&ticket)?;
                self.held.confirmation = None;
                if let Some(worker) = &mut self.worker {
                    worker.is_of(self.node, &self.held.lease.tenant);
                }
                self.held.enrolment.bill(self.held.meter.clone());
                Ok(None)
            }
            Some(Err(error)) => Ok(Some(EndReason::Refused(error))),
            None if Instant::now() >= self.held.expires => Ok(Some(EndReason::Refused(self.expired()))),
            None => Ok(None),
        }
    }

    fn next_event(&mut self) -> Result<Event, Error> {
        loop {
            let worker = self.worker.as_ref().and_then(WorkerProcess::exit_fd);
            let relay = self.relay.as_ref();
            let fds = [
                worker,
                Some(self.held.end.signal.as_fd()),
                Some(self.socket.as_fd()),
                relay.and_then(WorkerRelay::control),
                relay.and_then(WorkerRelay::arrived).or(self.served.as_ref().map(RemoteSegment::arrived)),
                self.fetched(),
                relay.and_then(WorkerRelay::asks),
                self.stepped(),
            ];
            let deadline = if self.has_more { Instant::now() } else { self.next_deadline() };
            let [worker_ended, end_wanted, readable, said, arrived, fetched, asks, stepped] =
                wait_readable(fds, Some(deadline))?;
            if worker_ended {
                return Ok(Event::WorkerEnded);
            }
            if let Some(wanted) = end_wanted.then(|| self.held.end.take_note()).flatten() {
                return Ok(Event::EndWanted(wanted));
            }
            if let Some(event) = self.due_event(Instant::now()) {
                return Ok(event);
            }
            if fetched {
                return Ok(Event::Fetched);
            }
            if stepped {
                return Ok(Event::Stepped);
            }
            if said {
                return Ok(Event::FromWorker);
            }
            if arrived {
                return Ok(Event::Links);
            }
            if asks {
                return Ok(Event::Question);
            }
            if (readable || self.has_more)
                && let Some(event) = self.receive()
            {
                return Ok(event);
            }
        }
    }

    fn next_deadline(&self) -> Instant {
        let ending = self.ending.as_ref().map(|ending| ending.at);
        let look = self.idle.as_ref().map(IdleWatch::next_look);
        [ending, look, self.next_step()].into_iter().flatten().fold(self.until_alive(), Instant::min)
    }

    /// Time of the next sign of life to the client, or of the lease's expiry if that is earlier.
    fn until_alive(&self) -> Instant {
        let alive = self.relay.as_ref().map(WorkerRelay::next_alive);
        alive.map_or(self.held.expires, |alive| alive.min(self.held.expires))
    }

    fn is_alive_due(&self, now: Instant) -> bool {
        self.relay.as_ref().is_some_and(|relay| now >= relay.next_alive())
    }

    fn due_event(&self, now: Instant) -> Option<Event> {
        if let Some(ending) = self.ending.as_ref().filter(|ending| now >= ending.at) {
            return Some(Event::EndDue(ending.reason.clone()));
        }
        if now >= self.held.expires {
            return Some(Event::Expired);
        }
        if self.is_alive_due(now) {
            return Some(Event::Alive);
        }
        if self.next_step().is_some_and(|at| now >= at) {
            return Some(Event::Stepped);
        }
        self.idle.as_ref().filter(|idle| now >= idle.next_look()).map(|_| Event::Look)
    }

    /// Receives a message of the client; `None` if no complete one has arrived.
    fn receive(&mut self) -> Option<Event> {
        let received = self.socket.receive(Some(Duration::ZERO));
        self.has_more = matches!(received, Ok(Some(_)));
        Some(match received {
            Ok(Some(packet)) => self.read(&packet.bytes),
            Ok(None) | Err(PacketError::PeerGone) => Event::ClientGone,
            Err(PacketError::TimedOut(_)) => return None,
            Err(error) => Event::Garbage(error.into()),
        })
    }

    fn read(&mut self, bytes: &[u8]) -> Event {
        let message = match message::parse(bytes) {
            Ok(message) => message,
            Err(error) => return Event::Garbage(error),
        };
        let is_asked_for = match &message {
            FromClient::Memory(answer) => self.relay.as_ref().is_some_and(|relay| relay.awaits(answer)),
            _ => false,
        };
        if is_asked_for || self.pace.keeps(Instant::now()) {
            return Event::Message(message);
        }
        let message = format!("the client sends more than {MAX_MESSAGES_PER_SECOND} messages a second");
        Event::Garbage(Error::new(Code::Protocol, message))
    }

    fn handle(&mut self, event: Event) -> Result<Option<EndReason>, Error> {
        match event {
            Event::WorkerEnded => self.worker_ended(),
            Event::EndWanted(wanted) => self.announce(wanted),
            Event::EndDue(reason) => Ok(Some(EndReason::Error(reason))),
            Event::Expired => Ok(Some(EndReason::Error(self.expired()))),
            Event::Look => self.look_for_calls(),
            Event::Message(message) => self.obey(message),
            Event::Fetched => {
                self.go_on_starting();
                self.tell_start()
            }
            Event::Stepped => self.tell_step(),
            Event::FromWorker => self.hear_worker(),
            Event::Question => match self.relay.as_mut().and_then(WorkerRelay::question) {
                Some(question) => self.tell(ToClient::Memory(question)),
                None => Ok(None),
            },
            Event::Links => {
                self.relay.iter().for_each(WorkerRelay::pass_links);
                self.served.iter_mut().for_each(|served| served.take_links(self.node));
                Ok(None)
            }
            Event::Alive => self.tell_alive(),
            Event::Garbage(error) => {
                // The connection ends whether or not the client can receive the reason.
                let _ = message::send(self.socket, message::failure(&error), &[]);
                Ok(Some(EndReason::Error(error)))
            }
            Event::ClientGone => Ok(Some(EndReason::ClientGone)),
        }
    }

    fn obey(&mut self, message: FromClient) -> Result<Option<EndReason>, Error> {
        match message {
            FromClient::Start(_) => self.start(),
            FromClient::Stop(stop) => self.stop(stop.reason),
            FromClient::Renew(renew) => self.renew(&renew.ticket),
            FromClient::Release(_) => Ok(Some(EndReason::Released)),
            FromClient::Attach(_) => {
                let message = format!("this connection holds lease {} already", self.held.lease.id);
                self.tell(message::failure(&Error::new(Code::AlreadyAllocated, message)))
            }
            FromClient::Command(_) | FromClient::Sandboxes(_) | FromClient::Shim(_) => {
                let message = "a command is given on a connection of its own";
                self.tell(message::failure(&Error::new(Code::Protocol, message)))
            }
            FromClient::ToWorker(message) => self.ask_worker(&message),
            FromClient::Invite(invite) => self.invite(&invite),
            FromClient::Memory(answer) => {
                let answered = self.relay.as_mut().map_or(Ok(()), |relay| relay.answer(&answer));
                answered.map_or_else(|error| self.handle(Event::Garbage(error)), |()| Ok(None))
            }
            FromClient::Alive(_) => Ok(None),
            FromClient::Measure(_) => {
                let memory_bytes = self.held.meter.look();
                let usage = Some(self.held.meter.read().usage);
                let cpu_ns = self.held.meter.processor_ns();
                self.tell(ToClient::Measured(v1::Measured { usage, memory_bytes, cpu_ns }))
            }
        }
    }

    /// Invites another process to reach the segment.
    fn invite(&mut self, invite: &v1::Invite) -> Result<Option<EndReason>, Error> {
        if !self.held.lease.is_segment() {
            let message = format!("lease {} is of workers: it has no memory for others", self.held.lease.id);
            return self.tell(message::failure(&Error::new(Code::InvalidArgument, message)));
        }
        let node = self.node;
        let lease = self.held.lease.clone();
        match self.served().and_then(|served| served.invite(node, &lease, invite)) {
            Ok(invited) => self.tell(ToClient::Invited(invited)),
            Err(error) => self.tell(message::failure(&error)),
        }
    }

    /// Announces the end: the client has the remaining time to do without the lease.
    fn announce(&mut self, wanted: WantedEnd) -> Result<Option<EndReason>, Error> {
        let grace = wanted.at.saturating_duration_since(Instant::now());
        info!(lease = self.held.lease.id, reason = %wanted.reason, grace_ms = grace.as_millis(), "lease ending");
        let told = self.tell_ending(&wanted.reason, grace);
        self.ending = Some(wanted);
        told
    }

    fn look_for_calls(&mut self) -> Result<Option<EndReason>, Error> {
        let is_fetching = self.is_fetching();
        let Some(idle) = &mut self.idle else { return Ok(None) };
        if is_fetching {
            idle.touch(Instant::now());
        }
        let verdict = idle.look(Instant::now(), self.held.meter.activity());
        let reason = format!("lease {} was idle for {} s", self.held.lease.id, idle.timeout.as_secs_f64());
        let reason = Error::new(Code::LeaseEnded, reason);
        match verdict {
            IdleDecision::Stay => Ok(None),
            IdleDecision::Announce => self.tell_ending(&reason, idle::GRACE),
            IdleDecision::End => Ok(Some(EndReason::Error(reason))),
        }
    }

    fn renew(&mut self, ticket: &[u8]) -> Result<Option<EndReason>, Error> {
        match self.held.enrolment.renew(ticket) {
            Ok(expires) => {
                self.held.expires = expires;
                let remaining = expires.saturating_duration_since(Instant::now());
                let remaining_ms = u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX);
                self.tell(ToClient::Renewed(v1::Renewed { remaining_ms }))
            }
            Err(error) => self.tell(message::failure(&error)),
        }
    }

    fn expired(&self) -> Error {
        Error::new(Code::LeaseExpired, format!("lease {} has expired", self.held.lease.id))
    }

    fn finish(self, end: EndReason) {
        let Supervisor { mut worker, relay, served, start_cores, held, socket, node, .. } = self;
        let AttachedLease { lease, meter, reservation, enrolment, inbox, flash, .. } = held;
        let is_dead = worker.as_mut().is_none_or(|worker| end_worker(worker, &lease.id));
        let busy_cores = start_cores.filter(|cores| !cores.call_back(Instant::now() + WORK_END_PATIENCE));
        if let Err(error) = meter.settle() {
            error!(lease = lease.id, %error, "the usage of the lease's last calls is lost");
        }
        drop(worker);
        let usage = meter.close().usage;
        if let (true, None, EndReason::Error(reason)) = (lease.is_segment(), &relay, &end) {
            let_go(socket, reason);
        }
        drop(relay);
        drop(served);
        if lease.is_segment()
            && let Err(error) = punch_hole(inbox.fd(), 0, inbox.len_bytes())
        {
            // The memory is free once no process maps it any more.
            error!(lease = lease.id, %error, "the memory of a segment is not free yet");
        }
        drop(inbox);
        flash.iter().for_each(|file| file.release());
        match busy_cores {
            _ if !is_dead => reservation.forfeit(),
            Some(cores) => {
                error!(
                    lease = lease.id,
                    "work of the lease's start still uses its cores: they are free when it ends"
                );
                cores.keep(reservation);
            }
            None => drop(reservation),
        }
        info!(lease = lease.id, reason = end.reason(), "lease ended");
        enrolment.finish(end.for_the_book());
        if matches!(end, EndReason::Released | EndReason::Error(_)) {
            wait_told(node, socket, &lease.id);
        }
        // The client may have gone meanwhile, which changes nothing.
        let _ = message::send(socket, end.message(usage), &[]);
    }
}

/// Informs a client that has a segment mapped of its end, and waits for the confirmation: the memory reads as 0
/// afterwards.
fn let_go(socket: &Connection, reason: &Error) {
    let ending = v1::Ending { code: reason.code.number(), reason: reason.message.clone(), grace_ms: 0 };
    let until = Instant::now() + LET_GO_PATIENCE;
    if message::send(socket, ToClient::Ending(ending), &[]).is_err() {
        return;
    }
    while let Ok(Some(packet)) = socket.receive(Some(until.saturating_duration_since(Instant::now()))) {
        if let Ok(FromClient::Release(_)) = message::parse(&packet.bytes) {
            return;
        }
    }
}

/// Waits until a manager has heard of the end of a lease, and sends a client on another node signs of life meanwhile.
fn wait_told(node: &Node, socket: &Connection, lease: &str) {
    let until = Instant::now() + TELL_PATIENCE;
    while !node.leases.ledger.wait_told(lease, PULSE) && Instant::now() < until {
        if socket.is_remote() && message::send(socket, ToClient::Alive(v1::Alive {}), &[]).is_err() {
            return;
        }
    }
}

/// Kills the worker. Returns whether it is dead. Its sandbox, with the kernel's counters, exists until the worker is
/// dropped.
fn end_worker(worker: &mut WorkerProcess, lease: &str) -> bool {
    match worker.kill() {
        Ok(()) => true,
        Err(error) => {
            error!(lease, %error, "the lease's cores are lost");
            false
        }
    }
}
