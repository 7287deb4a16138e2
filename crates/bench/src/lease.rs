//! Measures the number of leases that a manager grants and takes back in a second, over the wire, and the latency of a
//! grant.
//!
//! The manager is a separate process. A thousand simulated nodes report each second as separate processes would.
//!
//! In the first part several connections with several requests in flight each request leases as fast as the answers
//! arrive, one request for each lease. They are released in calls that name [`RELEASED_PER_CALL`] of them. In the
//! second part leases are requested at half of that rate, at times that are fixed beforehand (an open loop). Each grant
//! is timed from the time when it was due: a request that waits behind a slow answer counts as slow, too.
//!
//! No client attaches to the leases. A released lease keeps its core until its node has confirmed the release, which
//! takes one to two seconds; so the nodes together need cores for the leases of two seconds.
//!
//! One thread executes all clients, so that on two cores the manager has a core of its own.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use sublet_proto::v1::manager_client::ManagerClient as Stub;
use sublet_proto::v1::{CreateTokenRequest, EndLeaseRequest, LeaseRequest, Role, WorkerOptions};
use sublet_proto::{ALWAYS_WARM_NS, Code, Error, saturating_u64, to_usize};
use sublet_runtime::Access;
use sublet_runtime::manager::ManagerClient;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tonic::transport::Channel;

use super::private_instance::{PrivateInstance, free_port};
use super::simulated_nodes::{SimulatedNodes, SimulationSize};
use super::{PACKAGE, Samples, Summary, deploy, human_ns};

/// Time at the beginning of each part that is not counted.
const WARM_UP: Duration = Duration::from_millis(500);
const MEMORY_BYTES: u64 = 64 << 20;
const TENANT: &str = "bench";
/// Leases that one call releases; at half load, the most.
const RELEASED_PER_CALL: usize = 16;
/// Latest end of a pause that the kernel may choose, in nanoseconds.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::MIN;
/// Most unanswered requests of the open loop: beyond that, the manager cannot keep up at all.
const MAX_UNANSWERED: usize = 16_384;

/// Transport of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LeaseTransport {
    /// The manager's Unix socket.
    Unix,
    /// A loopback port, with TLS and tokens.
    Tls,
}

/// Parameters of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct LeasePlan {
    /// Transport of the requests.
    pub transport: LeaseTransport,
    /// Number of nodes.
    pub nodes: u32,
    /// Cores of each node.
    pub cores: u32,
    /// Connections of clients.
    pub connections: u32,
    /// Requests in flight at each connection.
    pub in_flight: u32,
    /// Duration of each of the two parts.
    pub time: Duration,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct LeaseResult {
    bench: &'static str,
    transport: LeaseTransport,
    nodes: u32,
    cores_per_node: u32,
    connections: u32,
    in_flight: u32,
    released_per_call: usize,
    leases: u64,
    seconds: f64,
    leases_per_second: f64,
    at_half_load: HalfLoad,
}

/// Results of the second part.
#[derive(Clone, Debug, Serialize)]
pub struct HalfLoad {
    offered_per_second: f64,
    granted_per_second: f64,
    n: usize,
    #[serde(flatten)]
    grant: Summary,
}

/// The headings of [`LeaseResult::cells`].
pub const HEADINGS: [&str; 8] = [
    "TRANSPORT",
    "NODES",
    "CONNECTIONS",
    "IN FLIGHT",
    "RELEASED PER CALL",
    "LEASES/S",
    "GRANT MEDIAN AT HALF",
    "P99",
];

impl LeaseResult {
    /// Formats the results for a table.
    pub fn cells(&self) -> [String; 8] {
        [
            format!("{:?}", self.transport).to_lowercase(),
            format!("{} x {} cores", self.nodes, self.cores_per_node),
            self.connections.to_string(),
            self.in_flight.to_string(),
            self.released_per_call.to_string(),
            format!("{:.0}", self.leases_per_second),
            human_ns(self.at_half_load.grant.median_ns),
            human_ns(self.at_half_load.grant.p99_ns),
        ]
    }
}

/// Starts a manager, registers nodes, and measures.
pub fn run(plan: LeasePlan) -> Result<LeaseResult, Error> {
    let (own, access) = start(plan.transport)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::new(Code::System, format!("cannot make a tokio runtime: {error}")))?;
    runtime.block_on(measure(&own.access(), &access, plan))
}

/// Starts a manager, and returns the clients' access to it.
fn start(transport: LeaseTransport) -> Result<(PrivateInstance, Access), Error> {
    if transport == LeaseTransport::Unix {
        let own = PrivateInstance::manager(&["--listen", ""])?;
        let access = own.access();
        return Ok((own, access));
    }
    let port = free_port()?;
    let own =
        PrivateInstance::manager(&["--listen", &format!("127.0.0.1:{port}"), "--tls-names", "127.0.0.1"])?;
    let request = CreateTokenRequest {
        tenant: TENANT.into(),
        role: Role::User.into(),
        ..CreateTokenRequest::default()
    };
    let token = ManagerClient::connect_with(own.access())?.create_token(request)?;
    let access = own.access_by_tls(port, token.secret)?;
    Ok((own, access))
}

async fn measure(nodes: &Access, clients: &Access, plan: LeasePlan) -> Result<LeaseResult, Error> {
    let size = SimulationSize { nodes: plan.nodes, cores: plan.cores, connections: plan.connections };
    let mut fleet = SimulatedNodes::register(nodes, size).await?;
    // A manager without nodes could not choose a build of the package.
    let operator = nodes.clone();
    let deployed = tokio::task::spawn_blocking(move || deploy(&ManagerClient::connect_with(operator)?)).await;
    deployed.map_err(|error| failed(&error))??;
    let clients: Vec<_> =
        (0..plan.connections).map(|_| LeaseClient::new(clients)).collect::<Result<_, Error>>()?;
    let (leases, seconds) = as_fast_as_it_goes(&clients, plan).await?;
    fleet.check()?;
    let leases_per_second = leases as f64 / seconds;
    let at_half_load = at_rate(&clients, leases_per_second / 2.0, plan.time).await?;
    fleet.check()?;
    Ok(LeaseResult {
        bench: "lease",
        transport: plan.transport,
        nodes: plan.nodes,
        cores_per_node: plan.cores,
        connections: plan.connections,
        in_flight: plan.in_flight,
        released_per_call: RELEASED_PER_CALL,
        leases,
        seconds,
        leases_per_second,
        at_half_load,
    })
}

/// A client on a connection of its own, or another user of that connection.
#[derive(Clone)]
struct LeaseClient {
    access: Arc<Access>,
    stub: Stub<Channel>,
}

impl LeaseClient {
    fn new(access: &Access) -> Result<LeaseClient, Error> {
        Ok(LeaseClient { access: Arc::new(access.clone()), stub: Stub::new(access.channel(0)?) })
    }

    /// Requests a lease, and returns its id.
    async fn request(&mut self) -> Result<String, Error> {
        let request = LeaseRequest {
            package: PACKAGE.to_owned(),
            cores: 1,
            memory_bytes: MEMORY_BYTES,
            options: Some(WorkerOptions {
                slots: 8,
                slot_bytes: 64,
                hot_timeout_ns: ALWAYS_WARM_NS,
                swap_bytes: 0,
                cores: 0,
                swap_if_possible: false,
            }),
            ..LeaseRequest::default()
        };
        let granted = self.stub.request_lease(self.access.authorize(tonic::Request::new(request))).await;
        let granted = granted.map_err(|status| Error::from_status(&status))?.into_inner();
        let lease = granted.grants.into_iter().next().and_then(|grant| grant.lease);
        let none = || Error::new(Code::Protocol, "a granted request without a lease");
        lease.map(|lease| lease.id).ok_or_else(none)
    }

    /// Releases leases.
    async fn end(&mut self, leases: Vec<String>) -> Result<(), Error> {
        let request = self.access.authorize(tonic::Request::new(EndLeaseRequest { leases, wait_ms: 0 }));
        self.stub.end_lease(request).await.map(drop).map_err(|status| Error::from_status(&status))
    }
}

/// Number of leases granted and released, and the time in seconds.
async fn as_fast_as_it_goes(clients: &[LeaseClient], plan: LeasePlan) -> Result<(u64, f64), Error> {
    let counted_from = Instant::now() + WARM_UP;
    let until = counted_from + plan.time;
    let mut loops = JoinSet::new();
    for client in clients {
        for _ in 0..plan.in_flight {
            loops.spawn(again_and_again(client.clone(), counted_from, until));
        }
    }
    let mut leases: u64 = 0;
    while let Some(done) = loops.join_next().await {
        leases += done.map_err(|error| failed(&error))??;
    }
    debug_assert!(
        leases.is_multiple_of(RELEASED_PER_CALL as u64),
        "{leases} leases were released in calls of {RELEASED_PER_CALL}"
    );
    Ok((leases, counted_from.elapsed().as_secs_f64()))
}

async fn again_and_again(
    mut client: LeaseClient,
    counted_from: Instant,
    until: Instant,
) -> Result<u64, Error> {
    let mut counted = 0;
    loop {
        let began = Instant::now();
        if began >= until {
            return Ok(counted);
        }
        let mut leases = Vec::with_capacity(RELEASED_PER_CALL);
        for _ in 0..RELEASED_PER_CALL {
            leases.push(client.request().await?);
        }
        client.end(leases).await?;
        counted += if began >= counted_from { RELEASED_PER_CALL as u64 } else { 0 };
    }
}

/// Requests leases at fixed times.
async fn at_rate(clients: &[LeaseClient], per_second: f64, time: Duration) -> Result<HalfLoad, Error> {
    let counted_from = Instant::now() + WARM_UP;
    let until = counted_from + time;
    let (due, mut dues) = unbounded_channel();
    let gap = Duration::from_secs_f64(1.0 / per_second);
    // A thread, since a runtime's timer is coarser than the gap between two requests.
    let pacer = std::thread::spawn(move || {
        // If this fails, requests become due slightly later.
        let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS));
        let mut next = Instant::now();
        while next < until && due.send(next).is_ok() {
            next += gap;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    });
    let mut samples = Samples::with_capacity(to_usize(saturating_u64(per_second * time.as_secs_f64())) + 1);
    let (granted, given_back) = unbounded_channel();
    let client = clients.first().ok_or_else(|| Error::new(Code::InvalidArgument, "there are no clients"))?;
    let ending = tokio::spawn(give_back(client.clone(), given_back));
    let answered = ask_when_due(clients, &mut dues, counted_from, &mut samples, granted).await;
    let ended = ending.await.map_err(|error| failed(&error))?;
    // The pacer stops once the receiver is dropped.
    drop(dues);
    pacer.join().map_err(|_| Error::new(Code::Internal, "the pace of the measurement was lost"))?;
    answered.and(ended)?;
    Ok(HalfLoad {
        offered_per_second: per_second,
        granted_per_second: samples.len() as f64 / counted_from.elapsed().as_secs_f64(),
        n: samples.len(),
        grant: samples.summary(1.0),
    })
}

async fn ask_when_due(
    clients: &[LeaseClient],
    dues: &mut UnboundedReceiver<Instant>,
    counted_from: Instant,
    samples: &mut Samples,
    leases: UnboundedSender<String>,
) -> Result<(), Error> {
    let mut asking = JoinSet::new();
    let mut turn = clients.iter().cycle();
    loop {
        tokio::select! {
            due = dues.recv() => {
                let (Some(due), Some(client)) = (due, turn.next()) else { break };
                if asking.len() >= MAX_UNANSWERED {
                    let message = format!("{MAX_UNANSWERED} requests are unanswered at half load");
                    return Err(Error::new(Code::TryLater, message));
                }
                asking.spawn(timed(client.clone(), due, leases.clone()));
            }
            Some(granted) = asking.join_next() => count(granted, counted_from, samples)?,
        }
    }
    while let Some(granted) = asking.join_next().await {
        count(granted, counted_from, samples)?;
    }
    Ok(())
}

/// Releases leases until no more are granted.
async fn give_back(mut client: LeaseClient, mut granted: UnboundedReceiver<String>) -> Result<(), Error> {
    let mut leases = Vec::new();
    while granted.recv_many(&mut leases, RELEASED_PER_CALL).await > 0 {
        debug_assert!(leases.len() <= RELEASED_PER_CALL, "{} leases in one call", leases.len());
        client.end(std::mem::take(&mut leases)).await?;
    }
    Ok(())
}

/// The time when a lease was due, and the time from then to its grant, in nanoseconds.
type Granted = Result<(Instant, u64), Error>;

async fn timed(mut client: LeaseClient, due: Instant, leases: UnboundedSender<String>) -> Granted {
    let lease = client.request().await?;
    let grant_ns = u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX);
    // The receiver is missing only if releasing has failed, and that error is reported.
    let _ = leases.send(lease);
    Ok((due, grant_ns))
}

fn count(
    granted: Result<Granted, tokio::task::JoinError>,
    counted_from: Instant,
    samples: &mut Samples,
) -> Result<(), Error> {
    let (due, grant_ns) = granted.map_err(|error| failed(&error))??;
    if due >= counted_from {
        samples.push(grant_ns);
    }
    Ok(())
}

fn failed(error: &tokio::task::JoinError) -> Error {
    Error::new(Code::Internal, format!("a part of the measurement failed: {error}"))
}
