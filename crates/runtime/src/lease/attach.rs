//! From grants to leases: showing tickets, and starting workers.
//!
//! A ticket asks its agent to start the worker process at once. [`Attaching::begin`] shows one and does not wait, so
//! that several nodes start their workers at the same time; [`Attaching::finish`] then takes up what the agent has
//! answered, and returns when the workers wait for calls.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message;
use rustix::event::{EventfdFlags, eventfd};
use sublet_fabric::clock::monotonic_ns;
use sublet_fabric::packet::{PacketError, PacketSocket};
use sublet_fabric::region::Region;
use sublet_fabric::sync::{AtomicU32, AtomicU64};
use sublet_fabric::window::Window;
use sublet_fabric::{Endpoint, shm};
use sublet_proto::v1::{self, agent_to_client, client_to_agent};
use sublet_proto::{Code, Error, decode};

use super::crew::Crew;
use super::link::{AGENT_TIMEOUT, Link, error_of, protocol};
use super::{IDLE, Lease, WorkerLink};
use crate::access::socket_path;
use crate::arena::Arena;
use crate::wire::{InboxLayout, OWN_REGION, ResultsLayout};

/// What all leases of an invoker share.
#[derive(Clone)]
pub(crate) struct Household {
    pub(crate) arena: Arc<Arena>,
    pub(crate) crew: Arc<Crew>,
    /// How long a waiter spins before it sleeps.
    pub(crate) spin: Duration,
}

/// A grant whose ticket has been shown.
pub(crate) struct Attaching {
    description: v1::Lease,
    package: v1::PackageInfo,
    options: v1::WorkerOptions,
    inbox: InboxLayout,
    agent: PacketSocket,
    asked_ns: u64,
}

impl Attaching {
    /// Shows a grant's ticket to its agent, which attaches the lease and starts its worker process.
    pub(crate) fn begin(grant: v1::LeaseGrant) -> Result<Attaching, Error> {
        let description = grant.lease.ok_or_else(|| protocol("the grant names no lease"))?;
        let package = grant.package.ok_or_else(|| protocol("the grant names no package"))?;
        let options = description.options.ok_or_else(|| protocol("the lease has no options"))?;
        let inbox = InboxLayout::new(description.cores, options.slots, options.slot_bytes)?;
        let asked_ns = monotonic_ns();
        let agent = connect(&grant.agent)?;
        let attach = client_to_agent::Body::Attach(v1::Attach { ticket: grant.ticket, start: true });
        agent.send(&v1::ClientToAgent { body: Some(attach) }.encode_to_vec(), &[]).map_err(gone)?;
        Ok(Attaching { description, package, options, inbox, agent, asked_ns })
    }

    /// The attached lease, whose first worker has this number, with its workers waiting for calls. If they cannot be
    /// started, the lease is given back.
    pub(crate) fn finish(self, household: &Household, first_worker: u32) -> Result<Arc<Lease>, Error> {
        let (attached, inbox_file) = read_attached(&self.agent)?;
        let asked_ns = self.asked_ns;
        let lease = self.lease((attached, inbox_file), household, first_worker)?;
        match lease.await_start(asked_ns) {
            Ok(()) => Ok(lease),
            Err(error) => {
                // Why the workers did not start is the better thing to say.
                let _ = lease.end();
                Err(error)
            }
        }
    }

    fn lease(
        self,
        (attached, inbox_file): (v1::Attached, OwnedFd),
        household: &Household,
        first_worker: u32,
    ) -> Result<Arc<Lease>, Error> {
        let Attaching { description, package, options, inbox, agent, .. } = self;
        let (expected, is) = (inbox.len_bytes(), attached.inbox_bytes);
        if is != expected {
            return Err(protocol(format!("an inbox of {is} bytes instead of {expected}")));
        }
        let window = Window::reserve(1, expected)?;
        window.map(OWN_REGION, inbox_file.as_fd(), expected)?;
        let results_layout = ResultsLayout::new(description.cores);
        let (answer, answers) = sync_channel(1);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::new(Code::System, format!("eventfd: {error}")))?;
        let lease = Arc::new(Lease {
            names: names(&package),
            results: Region::create("sublet-results", results_layout.len_bytes())?,
            workers: (0..description.cores).map(|_| WorkerLink::new(options.slots)).collect(),
            endpoint: Endpoint::Shm(shm::Endpoint::new(window, None)),
            status: AtomicU32::new(IDLE),
            ending: AtomicU32::new(0),
            deaths: Mutex::new(VecDeque::new()),
            ticks_per_ns: attached.ticks_per_ns,
            spin_ticks: (household.spin.as_nanos() as f64 * attached.ticks_per_ns) as u64,
            next_worker: AtomicU32::new(0),
            expires_unix_ms: AtomicU64::new(description.expires_unix_ms),
            link: Link::new(agent, bell, answers),
            crew: household.crew.clone(),
            first_worker,
            arena: household.arena.clone(),
            description,
            package,
            options,
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
}

/// Functions by name.
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

fn read_attached(agent: &PacketSocket) -> Result<(v1::Attached, OwnedFd), Error> {
    let closed = || Error::new(Code::AgentUnreachable, "the agent closed the connection");
    let mut packet = agent.receive(Some(AGENT_TIMEOUT)).map_err(gone)?.ok_or_else(closed)?;
    let message: v1::AgentToClient = decode("an agent's message", &packet.bytes)?;
    match (message.body, packet.fds.pop()) {
        (Some(agent_to_client::Body::Attached(attached)), Some(inbox)) => Ok((attached, inbox)),
        (Some(agent_to_client::Body::Failure(failure)), _) => Err(error_of(failure.code, failure.message)),
        (Some(agent_to_client::Body::LeaseEnded(ended)), _) => Err(error_of(ended.code, ended.reason)),
        (body, _) => Err(protocol(format!("the agent answered a ticket with {body:?}"))),
    }
}

/// An agent that cannot be talked to.
fn gone(error: PacketError) -> Error {
    Error::new(Code::AgentUnreachable, format!("the lease's agent does not answer: {error}"))
}
