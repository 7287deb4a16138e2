//! One lease's supervisor: a thread that waits for whatever may happen to the lease, and acts on it.
//!
//! ```text
//!              Start            worker ends, Stop
//! attached ------------> running ------------------> attached
//!     |                     |
//!     +---------------------+--> ended: Release, client gone, expired, asked to end, broken client
//! ```
//!
//! The client's connection is the lease's life line: when it closes, however the client died, the lease ends. The
//! inbox and the usage region belong to the lease, so a worker that is started again finds both.
//!
//! Invariants:
//! - When a lease has ended, its worker is dead before its cores are free, and its cores are free before the
//!   manager and the client hear of it. A core on which a worker cannot be killed is never lent again.
//! - Worker processes are started on this thread and do not outlive it.
//! - A client that does not receive holds nothing up for longer than [`SEND_PATIENCE`]; then it counts as gone.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use sublet_fabric::packet::{PacketError, PacketSocket};
use sublet_proto::v1::{self, Usage};
use sublet_proto::{Code, Error};
use tracing::{debug, error, info};

use crate::attach::{self, Attached};
use crate::message::{self, FromClient, ToClient};
use crate::node::Node;
use crate::signal::wait_readable;
use crate::worker::WorkerProcess;

/// How long a client may take to make room for a message.
const SEND_PATIENCE: Duration = Duration::from_secs(1);
/// How long a client waits at most for the manager to hear of the end of its lease.
const ACKNOWLEDGEMENT_PATIENCE: Duration = Duration::from_secs(2);

/// The body of a connection's thread.
pub(crate) fn serve(node: &Node, socket: PacketSocket) {
    let attached = match socket.set_send_timeout(SEND_PATIENCE) {
        Ok(()) => attach::attach(node, &socket),
        Err(error) => Err(error.into()),
    };
    match attached {
        Ok(Some(held)) => Supervisor { worker: None, held, socket, node }.run(),
        Ok(None) => {}
        Err(error) => {
            info!(code = %error.code, %error, "a connection was refused");
            // A client that does not listen is refused all the same.
            let _ = message::send(&socket, message::failure(&error), &[]);
        }
    }
}

/// Should this thread fail, the worker is dropped, and dies, before what it uses.
struct Supervisor<'node> {
    worker: Option<WorkerProcess>,
    held: Attached,
    socket: PacketSocket,
    node: &'node Node,
}

/// What can happen to a lease.
enum Event {
    WorkerEnded,
    EndRequested(Error),
    Expired,
    Message(FromClient),
    /// The client said something that makes no sense.
    Garbage(Error),
    ClientGone,
}

/// Why a lease ends.
enum End {
    Released,
    ClientGone,
    /// The client is told this error.
    Error(Error),
}

impl Supervisor<'_> {
    fn run(mut self) {
        info!(lease = self.held.lease.id, cores = ?self.held.reservation.cores, "lease attached");
        let end = match self.supervise() {
            Ok(end) => end,
            Err(error) => End::Error(error),
        };
        self.finish(end);
    }

    /// Until the lease ends. An error ends it, too.
    fn supervise(&mut self) -> Result<End, Error> {
        let inbox_bytes = self.held.inbox.len_bytes();
        let attached = v1::Attached { inbox_bytes, ticks_per_ns: self.node.calibration.ticks_per_ns() };
        let sent = message::send(&self.socket, ToClient::Attached(attached), &[self.held.inbox.fd()]);
        let mut end = unless_gone(sent)?;
        while end.is_none() {
            let event = self.next_event()?;
            end = self.handle(event)?;
        }
        Ok(end.unwrap_or(End::ClientGone))
    }

    fn next_event(&self) -> Result<Event, Error> {
        loop {
            let worker = self.worker.as_ref().and_then(WorkerProcess::exit_fd);
            let fds = [worker, Some(self.held.end.signal.as_fd()), Some(self.socket.as_fd())];
            let [worker_ended, end_requested, readable] = wait_readable(fds, Some(self.held.expires))?;
            if worker_ended {
                return Ok(Event::WorkerEnded);
            }
            if let Some(reason) = self.held.end.reason().filter(|_| end_requested) {
                return Ok(Event::EndRequested(reason));
            }
            if Instant::now() >= self.held.expires {
                return Ok(Event::Expired);
            }
            if readable {
                return Ok(self.receive());
            }
        }
    }

    fn receive(&self) -> Event {
        match self.socket.receive(Some(Duration::ZERO)) {
            Ok(Some(packet)) => message::parse(&packet.bytes).map_or_else(Event::Garbage, Event::Message),
            Ok(None) => Event::ClientGone,
            Err(error) => Event::Garbage(error.into()),
        }
    }

    fn handle(&mut self, event: Event) -> Result<Option<End>, Error> {
        let lease = &self.held.lease.id;
        match event {
            Event::WorkerEnded => self.worker_ended(),
            Event::EndRequested(reason) => Ok(Some(End::Error(reason))),
            Event::Expired => {
                let message = format!("lease {lease} has expired");
                Ok(Some(End::Error(Error::new(Code::LeaseExpired, message))))
            }
            Event::Message(FromClient::Start(_)) => self.start(),
            Event::Message(FromClient::Stop(stop)) => self.stop(stop.reason),
            Event::Message(FromClient::Release(_)) => Ok(Some(End::Released)),
            Event::Message(FromClient::Attach(_)) => {
                let message = format!("this connection holds lease {lease} already");
                self.tell(message::failure(&Error::new(Code::AlreadyAllocated, message)))
            }
            Event::Garbage(error) => {
                // The connection ends whether or not the client can be told why.
                let _ = message::send(&self.socket, message::failure(&error), &[]);
                Ok(Some(End::Error(error)))
            }
            Event::ClientGone => Ok(Some(End::ClientGone)),
        }
    }

    fn start(&mut self) -> Result<Option<End>, Error> {
        if self.worker.is_some() {
            let message = format!("the worker of lease {} runs already", self.held.lease.id);
            return self.tell(message::failure(&Error::new(Code::AlreadyAllocated, message)));
        }
        match WorkerProcess::start(self.node, &self.held) {
            Ok((worker, started, control)) => {
                debug!(lease = self.held.lease.id, pid = started.pid, "worker started");
                self.worker = Some(worker);
                unless_gone(message::send(&self.socket, ToClient::Started(started), &[control.as_fd()]))
            }
            Err(error) => {
                error!(lease = self.held.lease.id, %error, "the worker could not be started");
                self.tell(message::failure(&error))
            }
        }
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

    fn tell_exit(&self, reason: String) -> Result<Option<End>, Error> {
        self.tell(ToClient::WorkerExited(v1::WorkerExited { code: Code::WorkerDied.number(), reason }))
    }

    fn tell(&self, body: ToClient) -> Result<Option<End>, Error> {
        unless_gone(message::send(&self.socket, body, &[]))
    }

    fn finish(self, end: End) {
        let Supervisor { worker, held, socket, node } = self;
        let Attached { lease, meter, reservation, enrolment, inbox, .. } = held;
        let is_dead = worker.is_none_or(|worker| end_worker(worker, &lease.id));
        if let Err(error) = meter.settle() {
            error!(lease = lease.id, %error, "the usage of the lease's last calls is lost");
        }
        let usage = meter.close();
        drop(inbox);
        if is_dead {
            drop(reservation)
        } else {
            reservation.forfeit()
        }
        info!(lease = lease.id, reason = end.reason(), "lease ended");
        enrolment.finish(end.reason());
        if !matches!(end, End::ClientGone) {
            node.ledger.wait_acknowledged(&lease.id, ACKNOWLEDGEMENT_PATIENCE);
            // It may have gone meanwhile, which changes nothing.
            let _ = message::send(&socket, end.message(usage), &[]);
        }
    }
}

impl End {
    fn reason(&self) -> String {
        match self {
            End::Released => "released by the client".to_owned(),
            End::ClientGone => "the client is gone".to_owned(),
            End::Error(error) => error.message.clone(),
        }
    }

    fn message(&self, usage: Usage) -> ToClient {
        let code = match self {
            End::Error(error) => error.code.number(),
            End::Released | End::ClientGone => 0,
        };
        ToClient::LeaseEnded(v1::LeaseEnded { code, reason: self.reason(), usage: Some(usage) })
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

/// A client that cannot be told anything is gone; whatever else fails is an error.
fn unless_gone(sent: Result<(), PacketError>) -> Result<Option<End>, Error> {
    match sent {
        Ok(()) => Ok(None),
        Err(PacketError::PeerGone | PacketError::TimedOut(_)) => Ok(Some(End::ClientGone)),
        Err(error) => Err(error.into()),
    }
}
