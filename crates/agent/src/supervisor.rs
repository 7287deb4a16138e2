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
//! The client's connection is the lease's life line: when it closes, however the client died, the lease ends. The
//! inbox and the usage region belong to the lease, so a worker that is started again finds both.
//!
//! Invariants:
//! - When a lease has ended, its worker is dead before its cores are free, and its cores are free before the
//!   manager and the client hear of it. A core on which a worker cannot be killed is never lent again.
//! - Nothing of a lease is handed to its client before the token behind it was verified.
//! - An end that somebody asks for is announced to the client first, with the time that is left.
//! - Worker processes are started on this thread and do not outlive it.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use sublet_fabric::packet::{PacketError, PacketSocket};
use sublet_proto::v1::{self, Started};
use sublet_proto::{Code, Error};
use tracing::{debug, error, info};

use crate::attach::Attached;
use crate::end::End;
use crate::idle::{self, IdleWatch, Verdict};
use crate::message::{self, FromClient, ToClient};
use crate::node::Node;
use crate::signal::{WantedEnd, Watch, wait_for, wait_readable};
use crate::worker::WorkerProcess;

/// How long a client waits at most for a manager to hear of the end of its lease.
const TELL_PATIENCE: Duration = Duration::from_secs(2);

/// Watches over a lease until it has ended.
pub(crate) fn supervise(node: &Node, socket: &PacketSocket, held: Attached) {
    let idle_timeout = match held.lease.idle_timeout_ms {
        0 => node.idle_timeout,
        own_ms => Some(Duration::from_millis(own_ms)),
    };
    let idle = idle_timeout.map(|timeout| IdleWatch::new(timeout, Instant::now()));
    Supervisor { worker: None, held, ending: None, idle, socket, node }.run();
}

/// Should this thread fail, the worker is dropped, and dies, before what it uses.
struct Supervisor<'node> {
    worker: Option<WorkerProcess>,
    held: Attached,
    /// What was announced to the client.
    ending: Option<WantedEnd>,
    idle: Option<IdleWatch>,
    socket: &'node PacketSocket,
    node: &'node Node,
}

/// What can happen to a lease.
enum Event {
    WorkerEnded,
    EndWanted(WantedEnd),
    /// The time of the announced end has come.
    EndDue(Error),
    Expired,
    /// It is time to see whether there were calls.
    Look,
    Message(FromClient),
    /// The client said something that makes no sense.
    Garbage(Error),
    ClientGone,
}

impl Supervisor<'_> {
    fn run(mut self) {
        info!(lease = self.held.lease.id, cores = ?self.held.reservation.cores, "lease attached");
        let end = match self.supervise() {
            Ok(end) => end,
            Err(error) if self.held.confirmation.is_some() => End::Refused(error),
            Err(error) => End::Error(error),
        };
        self.finish(end);
    }

    /// Until the lease ends. An error ends it, too.
    fn supervise(&mut self) -> Result<End, Error> {
        // A worker that is wanted at once starts while the manager verifies the token.
        let started = self.held.start.then(|| self.start_worker());
        let mut end = self.await_confirmation()?;
        if end.is_none() {
            end = self.tell_attached()?;
        }
        if let Some(started) = started.filter(|_| end.is_none()) {
            end = self.tell_started(started)?;
        }
        loop {
            if let Some(end) = end {
                return Ok(end);
            }
            let event = self.next_event()?;
            end = self.handle(event)?;
        }
    }

    /// Waits for the manager's word about a provisional ticket. The client may go meanwhile; what it says waits.
    fn await_confirmation(&mut self) -> Result<Option<End>, Error> {
        while let Some(confirmation) = &self.held.confirmation {
            let watches = [
                Some(Watch::Readable(confirmation.as_fd())),
                Some(Watch::Readable(self.held.end.signal.as_fd())),
                Some(Watch::Closed(self.socket.as_fd())),
            ];
            let [_, end_wanted, client_gone] = wait_for(watches, Some(self.held.expires))?;
            if client_gone {
                return Ok(Some(End::ClientGone));
            }
            if let Some(wanted) = self.held.end.take_note().filter(|_| end_wanted) {
                return Ok(Some(End::Refused(wanted.reason)));
            }
            match confirmation.outcome() {
                Some(Ok(ticket)) => {
                    self.held.enrolment.renew(&ticket)?;
                    self.held.confirmation = None;
                    self.held.enrolment.bill(self.held.meter.clone());
                }
                Some(Err(error)) => return Ok(Some(End::Refused(error))),
                None if Instant::now() >= self.held.expires => return Ok(Some(End::Refused(self.expired()))),
                None => {}
            }
        }
        Ok(None)
    }

    fn next_event(&self) -> Result<Event, Error> {
        loop {
            let worker = self.worker.as_ref().and_then(WorkerProcess::exit_fd);
            let fds = [worker, Some(self.held.end.signal.as_fd()), Some(self.socket.as_fd())];
            let [worker_ended, end_wanted, readable] = wait_readable(fds, Some(self.next_deadline()))?;
            if worker_ended {
                return Ok(Event::WorkerEnded);
            }
            if let Some(wanted) = end_wanted.then(|| self.held.end.take_note()).flatten() {
                return Ok(Event::EndWanted(wanted));
            }
            if let Some(event) = self.due_event(Instant::now()) {
                return Ok(event);
            }
            if readable {
                return Ok(self.receive());
            }
        }
    }

    fn next_deadline(&self) -> Instant {
        let ending = self.ending.as_ref().map(|ending| ending.at);
        let look = self.idle.as_ref().map(IdleWatch::next_look);
        [ending, look].into_iter().flatten().fold(self.held.expires, Instant::min)
    }

    fn due_event(&self, now: Instant) -> Option<Event> {
        if let Some(ending) = self.ending.as_ref().filter(|ending| now >= ending.at) {
            return Some(Event::EndDue(ending.reason.clone()));
        }
        if now >= self.held.expires {
            return Some(Event::Expired);
        }
        self.idle.as_ref().filter(|idle| now >= idle.next_look()).map(|_| Event::Look)
    }

    fn receive(&self) -> Event {
        match self.socket.receive(Some(Duration::ZERO)) {
            Ok(Some(packet)) => message::parse(&packet.bytes).map_or_else(Event::Garbage, Event::Message),
            Ok(None) => Event::ClientGone,
            Err(error) => Event::Garbage(error.into()),
        }
    }

    fn handle(&mut self, event: Event) -> Result<Option<End>, Error> {
        match event {
            Event::WorkerEnded => self.worker_ended(),
            Event::EndWanted(wanted) => self.announce(wanted),
            Event::EndDue(reason) => Ok(Some(End::Error(reason))),
            Event::Expired => Ok(Some(End::Error(self.expired()))),
            Event::Look => self.look_for_calls(),
            Event::Message(message) => self.obey(message),
            Event::Garbage(error) => {
                // The connection ends whether or not the client can be told why.
                let _ = message::send(self.socket, message::failure(&error), &[]);
                Ok(Some(End::Error(error)))
            }
            Event::ClientGone => Ok(Some(End::ClientGone)),
        }
    }

    fn obey(&mut self, message: FromClient) -> Result<Option<End>, Error> {
        match message {
            FromClient::Start(_) => self.start(),
            FromClient::Stop(stop) => self.stop(stop.reason),
            FromClient::Renew(renew) => self.renew(&renew.ticket),
            FromClient::Release(_) => Ok(Some(End::Released)),
            FromClient::Attach(_) => {
                let message = format!("this connection holds lease {} already", self.held.lease.id);
                self.tell(message::failure(&Error::new(Code::AlreadyAllocated, message)))
            }
            FromClient::Command(_) => {
                let message = "a command is given on a connection of its own";
                self.tell(message::failure(&Error::new(Code::Protocol, message)))
            }
        }
    }

    /// The client has the time that is left to do without the lease.
    fn announce(&mut self, wanted: WantedEnd) -> Result<Option<End>, Error> {
        let grace = wanted.at.saturating_duration_since(Instant::now());
        info!(lease = self.held.lease.id, reason = %wanted.reason, grace_ms = grace.as_millis(), "lease ending");
        let told = self.tell_ending(&wanted.reason, grace);
        self.ending = Some(wanted);
        told
    }

    fn look_for_calls(&mut self) -> Result<Option<End>, Error> {
        let Some(idle) = &mut self.idle else { return Ok(None) };
        let verdict = idle.look(Instant::now(), self.held.meter.activity());
        let reason = format!("lease {} was idle for {} s", self.held.lease.id, idle.timeout.as_secs_f64());
        let reason = Error::new(Code::LeaseEnded, reason);
        match verdict {
            Verdict::Stay => Ok(None),
            Verdict::Announce => self.tell_ending(&reason, idle::GRACE),
            Verdict::End => Ok(Some(End::Error(reason))),
        }
    }

    fn renew(&mut self, ticket: &[u8]) -> Result<Option<End>, Error> {
        match self.held.enrolment.renew(ticket) {
            Ok(expires) => {
                self.held.expires = expires;
                let remaining_ms = expires.saturating_duration_since(Instant::now()).as_millis() as u64;
                self.tell(ToClient::Renewed(v1::Renewed { remaining_ms }))
            }
            Err(error) => self.tell(message::failure(&error)),
        }
    }

    fn start(&mut self) -> Result<Option<End>, Error> {
        if self.worker.is_some() {
            let message = format!("the worker of lease {} runs already", self.held.lease.id);
            return self.tell(message::failure(&Error::new(Code::AlreadyAllocated, message)));
        }
        let started = self.start_worker();
        self.tell_started(started)
    }

    /// The client's end of the worker's control socket comes with it.
    fn start_worker(&mut self) -> Result<(Started, PacketSocket), Error> {
        let (worker, started, control) =
            WorkerProcess::start(self.node, &self.held).inspect_err(|error| {
                error!(lease = self.held.lease.id, %error, "the worker could not be started");
            })?;
        debug!(lease = self.held.lease.id, pid = started.pid, "worker started");
        self.worker = Some(worker);
        if let Some(idle) = &mut self.idle {
            idle.touch(Instant::now());
        }
        Ok((started, control))
    }

    /// The client wants the worker dead. If it has just died by itself, the client knows already.
    fn stop(&mut self, reason: String) -> Result<Option<End>, Error> {
        let Some(mut worker) = self.worker.take() else { return Ok(None) };
        if let Err(error) = worker.kill() {
            self.worker = Some(worker);
            return Err(error);
        }
        self.held.meter.settle()?;
        self.tell_exit(reason)
    }

    fn worker_ended(&mut self) -> Result<Option<End>, Error> {
        let Some(worker) = &mut self.worker else { return Ok(None) };
        let Some(exit) = worker.exit()? else { return Ok(None) };
        let reason = worker.describe(exit, &self.held.meter.executing(), self.held.lease.memory_bytes);
        info!(lease = self.held.lease.id, %reason, "worker ended");
        self.worker = None;
        self.held.meter.settle()?;
        self.tell_exit(reason)
    }

    fn tell_attached(&self) -> Result<Option<End>, Error> {
        let inbox_bytes = self.held.inbox.len_bytes();
        let attached = v1::Attached { inbox_bytes, ticks_per_ns: self.node.calibration.ticks_per_ns() };
        self.tell_with(ToClient::Attached(attached), &[self.held.inbox.fd()])
    }

    fn tell_started(&self, started: Result<(Started, PacketSocket), Error>) -> Result<Option<End>, Error> {
        match started {
            Ok((started, control)) => self.tell_with(ToClient::Started(started), &[control.as_fd()]),
            Err(error) => self.tell(message::failure(&error)),
        }
    }

    fn tell_ending(&self, reason: &Error, grace: Duration) -> Result<Option<End>, Error> {
        let grace_ms = grace.as_millis() as u64;
        let (code, reason) = (reason.code.number(), reason.message.clone());
        self.tell(ToClient::Ending(v1::Ending { code, reason, grace_ms }))
    }

    fn tell_exit(&self, reason: String) -> Result<Option<End>, Error> {
        self.tell(ToClient::WorkerExited(v1::WorkerExited { code: Code::WorkerDied.number(), reason }))
    }

    fn tell(&self, body: ToClient) -> Result<Option<End>, Error> {
        self.tell_with(body, &[])
    }

    /// A client that cannot be told anything is gone.
    fn tell_with(&self, body: ToClient, fds: &[BorrowedFd<'_>]) -> Result<Option<End>, Error> {
        match message::send(self.socket, body, fds) {
            Ok(()) => Ok(None),
            Err(PacketError::PeerGone | PacketError::TimedOut(_)) => Ok(Some(End::ClientGone)),
            Err(error) => Err(error.into()),
        }
    }

    fn expired(&self) -> Error {
        Error::new(Code::LeaseExpired, format!("lease {} has expired", self.held.lease.id))
    }

    fn finish(self, end: End) {
        let Supervisor { worker, held, socket, node, .. } = self;
        let Attached { lease, meter, reservation, enrolment, inbox, .. } = held;
        let is_dead = worker.is_none_or(|worker| end_worker(worker, &lease.id));
        if let Err(error) = meter.settle() {
            error!(lease = lease.id, %error, "the usage of the lease's last calls is lost");
        }
        let usage = meter.close().usage;
        drop(inbox);
        if is_dead {
            drop(reservation)
        } else {
            reservation.forfeit()
        }
        info!(lease = lease.id, reason = end.reason(), "lease ended");
        enrolment.finish(end.for_the_book());
        if matches!(end, End::Released | End::Error(_)) {
            node.ledger.wait_told(&lease.id, TELL_PATIENCE);
        }
        // It may have gone meanwhile, which changes nothing.
        let _ = message::send(socket, end.message(usage), &[]);
    }
}

/// Says whether the worker is dead.
fn end_worker(mut worker: WorkerProcess, lease: &str) -> bool {
    match worker.kill() {
        Ok(()) => true,
        Err(error) => {
            error!(lease, %error, "the lease's cores are lost");
            false
        }
    }
}
