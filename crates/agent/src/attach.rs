//! From a connection to an attached lease: who may come, what a ticket must say, and what the lease then holds.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sublet_fabric::clock::unix_ms;
use sublet_fabric::packet::{PacketError, PacketSocket};
use sublet_fabric::region::Region;
use sublet_proto::package::is_digest;
use sublet_proto::v1::{Lease, WorkerOptions};
use sublet_proto::{Code, Error, limits};
use sublet_runtime::wire::InboxLayout;

use crate::ledger::Enrolment;
use crate::message::{self, FromClient};
use crate::node::Node;
use crate::resources::Reservation;
use crate::signal::{EndRequest, wait_readable};
use crate::usage::Meter;

/// How long a connection may take to show its ticket.
const TICKET_PATIENCE: Duration = Duration::from_secs(5);

/// Everything that a lease holds on this node. Whatever is dropped of it is given back; the fields stand in the
/// order in which that has to happen.
pub(crate) struct Attached {
    pub(crate) lease: Lease,
    pub(crate) options: WorkerOptions,
    /// Shared by the client and the workers; the agent does not look into it.
    pub(crate) inbox: Region,
    pub(crate) meter: Arc<Meter>,
    pub(crate) end: Arc<EndRequest>,
    pub(crate) expires: Instant,
    pub(crate) reservation: Reservation,
    pub(crate) enrolment: Enrolment,
}

/// Waits for a client's ticket and takes its lease up. `None`: the client or the agent has gone.
pub(crate) fn attach(node: &Node, socket: &PacketSocket) -> Result<Option<Attached>, Error> {
    check_peer(socket)?;
    let Some(bytes) = first_message(node, socket)? else { return Ok(None) };
    match message::parse(&bytes)? {
        FromClient::Attach(attach) => reserve(node, &attach.ticket).map(Some),
        _ => Err(Error::new(Code::Protocol, "the first message of a client is not its ticket")),
    }
}

/// Only this user and root may use the node; the socket's mode says the same.
fn check_peer(socket: &PacketSocket) -> Result<(), Error> {
    let (uid, own) = (socket.peer_uid()?, rustix::process::geteuid().as_raw());
    if uid == own || uid == 0 {
        return Ok(());
    }
    let message = format!("this agent serves user {own}, and not user {uid}");
    Err(Error::new(Code::PermissionDenied, message))
}

fn first_message(node: &Node, socket: &PacketSocket) -> Result<Option<Vec<u8>>, Error> {
    let deadline = Instant::now() + TICKET_PATIENCE;
    let fds = [Some(socket.as_fd()), Some(node.stopping.as_fd())];
    let [readable, stopping] = wait_readable(fds, Some(deadline))?;
    if stopping {
        return Ok(None);
    }
    if !readable {
        let message = format!("no ticket was shown within {} s", TICKET_PATIENCE.as_secs());
        return Err(Error::new(Code::Protocol, message));
    }
    match socket.receive(Some(Duration::ZERO)) {
        Ok(packet) => Ok(packet.map(|packet| packet.bytes)),
        Err(PacketError::PeerGone) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn reserve(node: &Node, ticket: &[u8]) -> Result<Attached, Error> {
    let lease = node.verify(ticket)?;
    let (options, inbox_bytes) = check_lease(&lease)?;
    let end = Arc::new(EndRequest::new()?);
    let meter = Arc::new(Meter::open(lease.cores, node.calibration)?);
    let enrolment = node.ledger.enrol(&lease.id, meter.clone(), end.clone())?;
    let held = node
        .pool
        .reserve(lease.cores, lease.memory_bytes)
        .and_then(|reservation| Ok((reservation, Region::create("sublet-inbox", inbox_bytes)?)));
    let (reservation, inbox) = match held {
        Ok(held) => held,
        Err(error) => {
            enrolment.finish(format!("the node could not take it up: {error}"));
            return Err(error);
        }
    };
    let left_ms = lease.expires_unix_ms.saturating_sub(unix_ms()).min(limits::MAX_TIMEOUT_MS);
    let expires = Instant::now() + Duration::from_millis(left_ms);
    Ok(Attached { lease, options, inbox, meter, end, expires, reservation, enrolment })
}

/// The manager's signature makes a lease genuine, not possible. Answers with the size of its inbox, too.
fn check_lease(lease: &Lease) -> Result<(WorkerOptions, u64), Error> {
    let protocol = |message: String| Error::new(Code::Protocol, message);
    if !is_digest(&lease.package) {
        return Err(protocol(format!("lease {} is for {:?}, which is no digest", lease.id, lease.package)));
    }
    let options =
        lease.options.ok_or_else(|| protocol(format!("lease {} has no worker options", lease.id)))?;
    let inbox_bytes = InboxLayout::new(lease.cores, options.slots, options.slot_bytes)?.len_bytes();
    if inbox_bytes > lease.memory_bytes {
        let message = format!(
            "{} cores with {} slots of {} bytes need an inbox of {inbox_bytes} bytes, and lease {} has {} bytes",
            lease.cores, options.slots, options.slot_bytes, lease.id, lease.memory_bytes
        );
        return Err(Error::new(Code::InsufficientResources, message));
    }
    Ok((options, inbox_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> Lease {
        Lease {
            id: "l".into(),
            package: format!("sha256:{}", "0".repeat(64)),
            cores: 1,
            memory_bytes: 1 << 20,
            options: Some(WorkerOptions { slots: 4, slot_bytes: 4096, hot_timeout_ns: 0 }),
            ..Lease::default()
        }
    }

    #[test]
    fn a_lease_must_be_possible() {
        assert!(check_lease(&lease()).is_ok());
        let impossible = [
            (Lease { package: "../x".into(), ..lease() }, Code::Protocol),
            (Lease { options: None, ..lease() }, Code::Protocol),
            (Lease { cores: 0, ..lease() }, Code::InvalidArgument),
            (Lease { memory_bytes: 4096, ..lease() }, Code::InsufficientResources),
        ];
        for (lease, code) in impossible {
            assert_eq!(check_lease(&lease).unwrap_err().code, code, "{lease:?}");
        }
    }
}
