//! Attaches granted leases: shows their tickets, and starts their workers.
//!
//! A ticket asks its agent to start the worker process at once. [`Attaching::begin`] shows one and does not wait, so
//! that several nodes start their workers at the same time. [`Attaching::finish`] then processes the agent's answer,
//! and returns when the workers wait for calls.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use sublet_fabric::clock::monotonic_ns;
use sublet_fabric::greeting::{self, ConnectionPurpose};
use sublet_fabric::packet::{PacketError, PacketSocket};
use sublet_fabric::region::Region;
use sublet_fabric::remote::RemoteSocket;
use sublet_fabric::shm;
use sublet_fabric::sync::{AtomicU32, AtomicU64};
use sublet_fabric::window::Window;
use sublet_proto::v1::{self, agent_to_client, client_to_agent};
use sublet_proto::{Code, Error, decode, saturating_u64, version};

use super::agent::AgentSocket;
use super::dial::Dial;
use super::function::names;
use super::link::{AGENT_TIMEOUT, AgentLink, error_of, protocol};
use super::steps::Starting;
use super::transport::{RemoteWorkers, Route, WorkerTransport};
use super::worker_set::WorkerSet;
use super::{ClientLease, IDLE, WorkerLink};
use crate::access::socket_path;
use crate::arena::Arena;
use crate::fabrics::{self, ClientTerms, Here, NetworkPath};
use crate::wire::{InboxLayout, OWN_REGION, ResultsLayout};

/// State that all leases of an invoker share.
#[derive(Clone)]
pub(crate) struct ClientContext {
    pub(crate) arena: Arc<Arena>,
    pub(crate) worker_set: Arc<WorkerSet>,
    /// Time that a waiting thread spins before it sleeps.
    pub(crate) spin: Duration,
    pub(crate) terms: ClientTerms,
    /// Terms of the starts of workers.
    pub(crate) starting: Starting,
}

/// A grant whose ticket has been shown.
pub(crate) struct Attaching {
    description: v1::Lease,
    package: v1::PackageInfo,
    options: v1::WorkerOptions,
    inbox: InboxLayout,
    agent: AgentSocket,
    /// Whether the agent got environment variables.
    has_variables: bool,
    /// Address and network of the node, if it is another machine.
    by: Option<(Dial, NetworkPath)>,
    asked_ns: u64,
}

impl Attaching {
    /// Shows a grant's ticket to its agent, which attaches the lease and starts its worker process.
    /// The agent also gets the environment variables of the functions.
    pub(crate) fn begin(
        grant: v1::LeaseGrant,
        variables: &[v1::Variable],
        terms: &ClientTerms,
        here: &Here,
    ) -> Result<Attaching, Error> {
        let asked_ns = monotonic_ns();
        let (agent, by) = reach(&grant, terms, here)?;
        let description = grant.lease.ok_or_else(|| protocol("the grant names no lease"))?;
        let package = grant.package.ok_or_else(|| protocol("the grant names no package"))?;
        let options = description.options.ok_or_else(|| protocol("the lease has no options"))?;
        let inbox = InboxLayout::new(description.workers(), options.slots, options.slot_bytes)?;
        let fabric = by.as_ref().map(|(_, network)| network.message());
        agent.tell(client_to_agent::Body::Attach(v1::Attach {
            ticket: grant.ticket,
            start: true,
            fabric,
            variables: variables.to_vec(),
            calls: version::CALLS,
            ..v1::Attach::default()
        }))?;
        let has_variables = !variables.is_empty();
        Ok(Attaching { description, package, options, inbox, agent, has_variables, by, asked_ns })
    }

    /// The attached lease, whose first worker has this number, with its workers waiting for calls. If they cannot be
    /// started, the lease is given back.
    pub(crate) fn finish(
        self,
        client_context: &ClientContext,
        first_worker: u32,
    ) -> Result<Arc<ClientLease>, Error> {
        let attached = read_attached(&self.agent)?;
        if self.has_variables {
            let agent = format!("the agent of node {}", self.description.node);
            let what = "environment variables of a lease";
            version::check_messages(&agent, attached.0.messages, what, version::NEEDS)?;
        }
        if self.description.cores_each() > 1 {
            let agent = format!("the agent of node {}", self.description.node);
            let what = "workers with several cores";
            version::check_messages(&agent, attached.0.messages, what, version::WORKER_CORES)?;
        }
        let asked_ns = self.asked_ns;
        let lease = self.lease(attached, client_context, first_worker)?;
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
        (attached, inbox_file): (v1::Attached, Option<OwnedFd>),
        client_context: &ClientContext,
        first_worker: u32,
    ) -> Result<Arc<ClientLease>, Error> {
        let Attaching { description, package, options, inbox, agent, by, .. } = self;
        let (expected, is) = (inbox.len_bytes(), attached.inbox_bytes);
        if is != expected {
            return Err(protocol(format!("an inbox of {is} bytes instead of {expected}")));
        }
        let results_layout = ResultsLayout::new(description.workers());
        let results = Region::create("sublet-results", results_layout.len_bytes())?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::of_system("eventfd", &error.into()))?;
        let window = client_context.arena.window();
        let worker_transport = match by {
            None => local(inbox_file, expected)?,
            Some(by) => {
                let route = route(by, agent.peer_ip(), &description.id, &attached)?;
                let (workers, spin) = (description.workers(), client_context.spin);
                WorkerTransport::Remote(Box::new(RemoteWorkers::new(
                    route,
                    (&results, window),
                    (workers, spin),
                    bell.as_fd(),
                )?))
            }
        };
        let (link, told) = AgentLink::new(agent, bell);
        let lease = Arc::new(ClientLease {
            names: names(&package),
            results,
            workers: (0..description.workers()).map(|_| WorkerLink::new(options.slots)).collect(),
            worker_transport,
            status: AtomicU32::new(IDLE),
            ending: AtomicU32::new(0),
            deaths: Mutex::new(VecDeque::new()),
            messages: attached.messages,
            ticks_per_ns: attached.ticks_per_ns,
            spin_ticks: saturating_u64(client_context.spin.as_nanos() as f64 * attached.ticks_per_ns),
            next_worker: AtomicU32::new(0),
            expires_unix_ms: AtomicU64::new(description.expires_unix_ms),
            link,
            starting: client_context.starting.clone(),
            worker_set: client_context.worker_set.clone(),
            first_worker,
            arena: client_context.arena.clone(),
            window: window.clone(),
            description,
            package,
            options,
            inbox,
            results_layout,
        });
        // The lease joins before its worker starts: regions allocated from here on are published at once or when it
        // starts.
        let user: Weak<ClientLease> = Arc::downgrade(&lease);
        client_context.arena.join(user);
        let monitored = lease.clone();
        std::thread::Builder::new()
            .name("sublet lease".into())
            .spawn(move || monitored.monitor(&told))
            .map_err(|error| Error::new(Code::System, format!("starting the lease's thread: {error}")))?;
        Ok(lease)
    }
}

/// Connects to a grant's agent: by its Unix socket where memory can be shared, else by a network that both have.
pub(crate) fn reach(
    grant: &v1::LeaseGrant,
    terms: &ClientTerms,
    here: &Here,
) -> Result<(AgentSocket, Option<(Dial, NetworkPath)>), Error> {
    let (mut why, mut silent) = (Vec::new(), None);
    if terms.fabric.allows_sharing() {
        match fabrics::is_own_host(&grant.host).then(|| connect(&grant.agent)) {
            Some(Ok(socket)) => return Ok((AgentSocket::Local(socket), None)),
            Some(Err(error)) => silent = Some(error),
            None => why.push("the node's host is another one".to_owned()),
        }
    }
    let network = match &grant.network {
        Some(offered) => terms.fabric.network(offered, here).map(|network| (offered, network)),
        None => Err("the node is on no network".to_owned()),
    };
    match network {
        Ok((offered, network)) => {
            let dial = Dial { address: offered.address.clone(), interface: terms.interface.clone() };
            Ok((dial_agent(&dial, &offered.certificate)?, Some((dial, network))))
        }
        // An agent whose socket does not answer is gone; it does not lack a network.
        Err(reason) => Err(silent.unwrap_or_else(|| {
            why.push(reason);
            fabrics::unavailable(&terms.fabric, grant, &why)
        })),
    }
}

fn dial_agent(dial: &Dial, certificate: &[u8]) -> Result<AgentSocket, Error> {
    let socket = dial.connect()?;
    greeting::greet(&socket, &ConnectionPurpose::Control, None)?;
    Ok(AgentSocket::remote(RemoteSocket::connect(socket, certificate)?))
}

/// Memory that is shared with the workers.
fn local(inbox: Option<OwnedFd>, inbox_bytes: u64) -> Result<WorkerTransport, Error> {
    let inbox = inbox.ok_or_else(|| protocol("the agent attached a lease without its inbox"))?;
    let window = Window::new(1, inbox_bytes)?;
    window.map(OWN_REGION, inbox.as_fd(), inbox_bytes)?;
    Ok(WorkerTransport::Local(shm::ShmEndpoint::new(window, None)))
}

/// The route to a lease's resources on its node.
pub(crate) fn route(
    (dial, network): (Dial, NetworkPath),
    agent: Option<IpAddr>,
    lease: &str,
    attached: &v1::Attached,
) -> Result<Route, Error> {
    let id = u128::from_str_radix(lease, 16).map_err(|_| protocol(format!("{lease:?} is no lease's id")))?;
    let secret = match &network {
        NetworkPath::Tcp { .. } => <[u8; 32]>::try_from(attached.link_secret.as_slice()).map_err(|_| {
            protocol(format!("a secret of {} bytes instead of 32", attached.link_secret.len()))
        })?,
        NetworkPath::Ofi { .. } => [0; 32],
    };
    let certificate = attached.worker_certificate.clone();
    Ok(Route { dial, network, agent, lease: id.to_be_bytes(), secret, certificate })
}

fn connect(address: &str) -> Result<PacketSocket, Error> {
    PacketSocket::connect(socket_path(address)?).map_err(|error| {
        Error::new(Code::AgentUnreachable, format!("the lease's agent at {address}: {error}"))
    })
}

pub(crate) fn read_attached(agent: &AgentSocket) -> Result<(v1::Attached, Option<OwnedFd>), Error> {
    let closed = || gone(&agent.why_gone());
    let deadline = Instant::now() + AGENT_TIMEOUT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut packet = agent.receive(Some(left)).map_err(not_received)?.ok_or_else(closed)?;
        let message: v1::AgentToClient = decode("an agent's message", &packet.bytes)?;
        match message.body {
            Some(agent_to_client::Body::Attached(attached)) => {
                version::check_calls("the lease's agent", attached.calls)?;
                return Ok((attached, packet.fds.pop()));
            }
            Some(agent_to_client::Body::Failure(failure)) => {
                return Err(error_of(failure.code, failure.message));
            }
            Some(agent_to_client::Body::LeaseEnded(ended)) => return Err(error_of(ended.code, ended.reason)),
            // While the token behind the ticket is verified.
            Some(agent_to_client::Body::Alive(_) | agent_to_client::Body::Progress(_)) => {}
            body => return Err(protocol(format!("the agent answered a ticket with {body:?}"))),
        }
    }
}

/// The error of a packet that did not arrive. A limit of this process keeps its code: the agent is well.
fn not_received(error: PacketError) -> Error {
    let unreachable = gone(&error);
    match Error::from(error) {
        limit if limit.code == Code::LimitTooLow => limit,
        _ => unreachable,
    }
}

/// An agent that cannot be talked to.
fn gone(why: &dyn std::fmt::Display) -> Error {
    Error::new(Code::AgentUnreachable, format!("the lease's agent does not answer: {why}"))
}
