//! Sends notices to a lease's client, and treats a client that cannot receive them as gone.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use sublet_fabric::packet::PacketError;
use sublet_proto::v1;
use sublet_proto::{Code, Error, version};

use super::Supervisor;
use super::remote_segment::RemoteSegment;
use super::start_state::Outcome;
use crate::leases::end::EndReason;
use crate::listener::message::{self, ToClient};

impl Supervisor<'_> {
    /// Sends the answer to the ticket. A client on the node gets the inbox, one on another node the secrets of its
    /// connections.
    pub(super) fn tell_attached(&self) -> Result<Option<EndReason>, Error> {
        let held = &self.held;
        let network_transport = held.network_transport.as_ref();
        let identity = network_transport.and_then(|network_transport| network_transport.identity.as_ref());
        let memory = self.served.as_ref().and_then(RemoteSegment::key);
        let attached = ToClient::Attached(v1::Attached {
            inbox_bytes: held.flash.as_ref().map_or(held.inbox.len_bytes(), |file| file.len_bytes),
            ticks_per_ns: self.node.calibration.ticks_per_ns(),
            link_secret: network_transport
                .and_then(|network_transport| network_transport.secret)
                .map_or(Vec::new(), Vec::from),
            worker_certificate: identity.map_or(Vec::new(), |identity| identity.certificate.clone()),
            memory: memory.map(|(key, _)| key),
            joined: memory.is_some_and(|(_, has_joined)| has_joined),
            process: held
                .one_shot_program
                .as_ref()
                .map_or(0, |one_shot_program| one_shot_program.process.pid.to_bits()),
            calls: version::CALLS,
            messages: version::MESSAGES,
        });
        match network_transport {
            None => self.tell_with(attached, &[held.inbox.fd()]),
            Some(_) => self.tell(attached),
        }
    }

    pub(super) fn tell_started(&self, started: Outcome) -> Result<Option<EndReason>, Error> {
        match started {
            Ok((started, Some(control))) => self.tell_with(ToClient::Started(started), &[control.as_fd()]),
            Ok((started, None)) => self.tell(ToClient::Started(started)),
            Err(error) => self.tell(message::failure(&error)),
        }
    }

    pub(super) fn tell_ending(&self, reason: &Error, grace: Duration) -> Result<Option<EndReason>, Error> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let (code, reason) = (reason.code.number(), reason.message.clone());
        self.tell(ToClient::Ending(v1::Ending { code, reason, grace_ms }))
    }

    pub(super) fn tell_exit(&self, code: Code, reason: String) -> Result<Option<EndReason>, Error> {
        self.tell(ToClient::WorkerExited(v1::WorkerExited { code: code.number(), reason }))
    }

    pub(super) fn tell_alive(&mut self) -> Result<Option<EndReason>, Error> {
        self.relay.iter_mut().for_each(|relay| relay.has_told_alive(Instant::now()));
        self.tell(ToClient::Alive(v1::Alive {}))
    }

    pub(super) fn tell(&self, body: ToClient) -> Result<Option<EndReason>, Error> {
        self.tell_with(body, &[])
    }

    /// Sends a message. A client that cannot receive it counts as gone.
    fn tell_with(&self, body: ToClient, fds: &[BorrowedFd<'_>]) -> Result<Option<EndReason>, Error> {
        match message::send(self.socket, body, fds) {
            Ok(()) => Ok(None),
            Err(PacketError::PeerGone | PacketError::TimedOut(_)) => Ok(Some(EndReason::ClientGone)),
            Err(error) => Err(error.into()),
        }
    }
}
