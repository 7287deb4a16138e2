//! Agents that lie: about what they have, what they run and what was used. A real manager, and an agent of the test's
//! own that says what it likes.

#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::time::{Duration, Instant};

use sublet::{Access, Allocation, Code, Error, Invoker};
use sublet_proto::ticket::Signing;
use sublet_proto::v1::nodes_client::NodesClient;
use sublet_proto::v1::{
    CreateTokenRequest, Lease, LeaseGrant, LeaseReport, LeaseRequest, LeaseState, NodeDescription,
    NodeRegistration, NodeReport, NodeReportReply, NodeState, ProcessLeaseRequest, Registration, Role,
    RunningLease, Ticket, Usage,
};
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, TENANT, connect};
use sublet_tests::functions::package;
use sublet_tests::hand::ByHand;
use sublet_tests::platform::assert_echoes;
use sublet_tests::process::wait_until;
use sublet_tests::rounds::wait_for_reports;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;
use tonic::{Response, Status};

const LIAR: &str = "liar";
const YEAR_NS: u64 = 365 * 24 * 60 * 60 * 1_000_000_000;
/// How much more than wall time a manager believes: clocks of two machines run apart. And what rounding adds.
const CLOCK_SLACK: Duration = Duration::from_millis(1_100);
const GIB: u64 = 1 << 30;

/// The agent's end of the protocol, and no agent behind it.
struct Liar {
    runtime: Runtime,
    access: Access,
    stub: NodesClient<Channel>,
    registered: NodeRegistration,
    sequence: u64,
    since: Instant,
}

impl Liar {
    /// Makes an agent with a token for `max_cores` cores of its node, and as many GiB of its memory.
    fn new(cluster: &Cluster, max_cores: u32) -> Liar {
        let token = cluster.token(&CreateTokenRequest {
            role: Role::Agent.into(),
            node: LIAR.into(),
            max_cores,
            max_memory_bytes: u64::from(max_cores) * GIB,
            ..CreateTokenRequest::default()
        });
        let access = cluster.access(&cluster.addresses(), &token.secret);
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let channel = runtime.block_on(async { access.channel(0) }).unwrap();
        let (stub, since) = (NodesClient::new(channel), Instant::now());
        Liar { runtime, access, stub, registered: NodeRegistration::default(), sequence: 0, since }
    }

    fn node(cores: u32) -> NodeDescription {
        NodeDescription {
            name: LIAR.into(),
            agent: "unix:/nonexistent/agent.sock".into(),
            architecture: std::env::consts::ARCH.into(),
            cores,
            memory_bytes: u64::from(cores) * GIB,
            ..NodeDescription::default()
        }
    }

    fn register(&mut self, node: NodeDescription, leases: Vec<RunningLease>) -> Result<(), Error> {
        let instance = format!("{:032x}", 7);
        let registration = Registration { node: Some(node), instance, leases, ..Registration::default() };
        let request = self.access.authorize(tonic::Request::new(registration));
        self.registered = said(&self.runtime, self.stub.register(request))?;
        (self.sequence, self.since) = (0, Instant::now());
        Ok(())
    }

    fn report(&mut self, leases: Vec<LeaseReport>) -> Result<NodeReportReply, Error> {
        self.sequence += 1;
        let report = NodeReport {
            node: LIAR.into(),
            leases,
            registration: self.registered.registration,
            sequence: self.sequence,
            clock_unix_ms: self.registered.now_unix_ms + self.since.elapsed().as_millis() as u64,
            state: NodeState::Lending.into(),
            ..NodeReport::default()
        };
        let request = self.access.authorize(tonic::Request::new(report));
        said(&self.runtime, self.stub.report(request))
    }
}

fn said<T>(runtime: &Runtime, answer: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Error> {
    let answer = runtime.block_on(answer);
    answer.map(Response::into_inner).map_err(|status| Error::from_status(&status))
}

/// A lease on the liar's node, to which no client will ever attach.
fn granted(cluster: &Cluster) -> LeaseGrant {
    let mut client = connect(&cluster.user(TENANT));
    // Its functions are deployed on the way to a lease that cannot be had.
    let _ = client.allocate(&Allocation::new(package("calls.c")).cores(64));
    let request = LeaseRequest { package: "libcalls".into(), cores: 1, ..LeaseRequest::default() };
    client.manager().request_lease(request).unwrap().grants.remove(0)
}

/// A lease on a node that has an agent.
fn grant_elsewhere(client: &Invoker, request: &LeaseRequest) -> LeaseGrant {
    loop {
        let grant = client.manager().request_lease(request.clone()).unwrap().grants.remove(0);
        let lease = grant.lease.as_ref().unwrap();
        if lease.node != LIAR {
            return grant;
        }
        client.manager().end_lease(&lease.id).unwrap();
    }
}

fn report_of(lease: &str, state: LeaseState, usage: Usage) -> LeaseReport {
    let usage = Some(usage);
    LeaseReport { lease: lease.into(), state: state.into(), usage, ..LeaseReport::default() }
}

fn boast() -> Usage {
    Usage {
        allocated_ns: YEAR_NS,
        executing_ns: YEAR_NS,
        polling_ns: YEAR_NS,
        calls: 7,
        failed_calls: 0,
        ..Usage::default()
    }
}

#[test]
fn more_than_the_token_allows_is_not_lent() {
    let cluster = Cluster::with_agents(1);
    let mut liar = Liar::new(&cluster, 2);
    for (node, too_many, allowed) in [
        (Liar::node(3), 3, 2),
        (NodeDescription { shared_cores: 1, shared_places: 1, ..Liar::node(2) }, 3, 2),
        (NodeDescription { memory_bytes: 2 * GIB + 1, ..Liar::node(2) }, 2 * GIB + 1, 2 * GIB),
    ] {
        let refused = liar.register(node, Vec::new());
        assert_fails(refused, Code::PermissionDenied, &[&too_many.to_string(), &allowed.to_string()]);
    }
    assert!(cluster.node(LIAR).is_none());
    let other = NodeDescription { name: "node-0".into(), ..Liar::node(1) };
    assert_fails(liar.register(other, Vec::new()), Code::PermissionDenied, &["node-0"]);
    liar.register(Liar::node(2), Vec::new()).unwrap();
    assert_eq!(cluster.node(LIAR).unwrap().description.unwrap().cores, 2);
    cluster.assert_serves();
}

#[test]
fn descriptions_that_make_no_sense_are_refused() {
    let cluster = Cluster::with_agents(1);
    let mut liar = Liar::new(&cluster, 0);
    for senseless in [
        NodeDescription { name: String::new(), ..Liar::node(1) },
        NodeDescription { architecture: String::new(), ..Liar::node(1) },
        NodeDescription { agent: String::new(), ..Liar::node(1) },
        NodeDescription { cores: 0, ..Liar::node(1) },
        NodeDescription { cores: u32::MAX, ..Liar::node(1) },
        NodeDescription { shared_cores: 1, shared_places: u32::MAX, ..Liar::node(1) },
    ] {
        let refused = liar.register(senseless.clone(), Vec::new());
        let error = refused.err().unwrap_or_else(|| panic!("{senseless:?} was taken"));
        assert!(
            matches!(error.code, Code::InvalidArgument | Code::PermissionDenied),
            "{senseless:?}: {error}"
        );
    }
    cluster.assert_serves();
}

#[test]
fn a_lying_node_costs_clients_no_money() {
    let cluster = Cluster::with_agents(1);
    cluster.assert_serves();
    cluster.wait_until_idle();
    let mut liar = Liar::new(&cluster, 0);
    liar.register(Liar::node(8), Vec::new()).unwrap();
    let mut client = cluster.invoker();
    let mut served = 0;
    for _ in 0..10 {
        liar.report(Vec::new()).unwrap();
        match client.allocate(&Allocation::new(package("calls.c"))) {
            Ok(()) => {
                assert_echoes(&client);
                assert_eq!(client.lease().unwrap().node, "node-0");
                client.deallocate().unwrap();
                cluster.wait_until_idle();
                served += 1;
            }
            Err(error) => assert_eq!(error.code, Code::AgentUnreachable, "{error}"),
        }
    }
    println!("{served} of 10 requests were served");
    let bill = cluster.json(&["bill"]);
    let leases = bill["leases"].as_array().unwrap().len();
    assert_eq!(leases, served + 1, "{bill}");
    // Once the node is silent, no request is sent there any more.
    wait_until("the liar is lost", || cluster.node(LIAR).unwrap().state() == NodeState::Lost);
    cluster.assert_serves();
}

#[test]
fn usage_beyond_wall_time_is_cut() {
    let cluster = Cluster::start(Default::default());
    let mut liar = Liar::new(&cluster, 0);
    liar.register(Liar::node(1), Vec::new()).unwrap();
    let granted_at = Instant::now();
    let lease = granted(&cluster).lease.unwrap().id;
    liar.report(vec![report_of(&lease, LeaseState::Attached, boast())]).unwrap();
    wait_until("a second has passed", || granted_at.elapsed() > Duration::from_secs(1));
    liar.report(vec![report_of(&lease, LeaseState::Attached, boast())]).unwrap();
    // Less than before is no usage given back.
    liar.report(vec![report_of(&lease, LeaseState::Attached, Usage::default())]).unwrap();
    wait_until("the change is stored", || {
        cluster.billed(&lease).usage.unwrap().allocated_ns >= 1_000_000_000
    });
    liar.report(vec![report_of(&lease, LeaseState::Ended, boast())]).unwrap();
    let wall_ns = (granted_at.elapsed() + CLOCK_SLACK).as_nanos() as u64;
    let line = cluster.final_bill(&lease);
    let usage = line.usage.unwrap();
    assert!(usage.allocated_ns <= wall_ns, "{usage:?}");
    assert!(usage.executing_ns + usage.polling_ns <= wall_ns, "{usage:?}");
    assert!(usage.allocated_ns >= 1_000_000_000, "{usage:?}");
    wait_until("the end is acknowledged", || {
        let report = report_of(&lease, LeaseState::Ended, boast());
        liar.report(vec![report]).unwrap().acknowledged.contains(&lease)
    });
}

#[test]
fn agents_cannot_report_invented_or_foreign_leases() {
    let cluster = Cluster::with_agents(2);
    let mut client = cluster.client("calls.c");
    let theirs = client.lease().unwrap();
    wait_until("its agent has reported it", || {
        cluster.lease(&theirs.id).unwrap().state() == LeaseState::Attached
    });
    let mut liar = Liar::new(&cluster, 0);
    liar.register(Liar::node(4), Vec::new()).unwrap();
    let made_up = format!("{:032x}", 0xbad);
    let senseless = report_of("no lease at all", LeaseState::Attached, boast());
    assert!(liar.report(vec![senseless]).is_err());
    let reply = liar.report(vec![report_of(&made_up, LeaseState::Attached, boast())]).unwrap();
    assert!(reply.end.iter().any(|order| order.lease == made_up), "{reply:?}");
    liar.report(vec![report_of(&theirs.id, LeaseState::Ended, boast())]).unwrap();
    assert_eq!(cluster.lease(&theirs.id).unwrap().state(), LeaseState::Attached);
    // With tickets of its own making, in a registration.
    let ticket =
        |lease: Lease| Signing::from_seed(&[7; 32]).sign(&Ticket { lease: Some(lease), ..Ticket::default() });
    let made = Lease { id: made_up.clone(), node: LIAR.into(), cores: 4, ..theirs.clone() };
    let running = |lease: &Lease| RunningLease {
        ticket: ticket(lease.clone()),
        report: Some(report_of(&lease.id, LeaseState::Attached, boast())),
        remaining_ms: 60_000,
    };
    // And with a good one, of another node's lease.
    let request = LeaseRequest { package: theirs.package.clone(), cores: 1, ..LeaseRequest::default() };
    let stolen = grant_elsewhere(&client, &request);
    let (agent, attached) = ByHand::show(&stolen, &stolen.ticket);
    attached.unwrap();
    let stolen_id = stolen.lease.as_ref().unwrap().id.clone();
    let over = RunningLease {
        ticket: stolen.ticket,
        report: Some(report_of(&stolen_id, LeaseState::Attached, boast())),
        remaining_ms: 0,
    };
    liar.register(Liar::node(4), vec![running(&made), running(&theirs), over]).unwrap();
    liar.report(vec![report_of(&theirs.id, LeaseState::Ended, boast())]).unwrap();
    for agent in &cluster.agents {
        wait_for_reports(&cluster.managers[0], &agent.name, 3);
    }
    assert_echoes(&client);
    assert!(cluster.lease(&made_up).is_none());
    for lease in [&theirs.id, &stolen_id] {
        assert_eq!(cluster.lease(lease).unwrap().state(), LeaseState::Attached);
    }
    agent.release();
    let usage = client.deallocate().unwrap();
    assert_eq!(cluster.final_bill(&theirs.id).usage.unwrap(), usage);
    let bill = cluster.json(&["bill"]);
    assert_eq!(bill["leases"].as_array().unwrap().len(), 2, "{bill}");
}

#[test]
fn an_agent_gets_leases_only_for_its_own_leases_processes() {
    let cluster = Cluster::with_agents(1);
    let victim = cluster.client("calls.c");
    let mut liar = Liar::new(&cluster, 1);
    liar.register(NodeDescription { neighbours: vec!["node-0".into()], ..Liar::node(1) }, Vec::new())
        .unwrap();
    let lease = victim.lease().unwrap().id.clone();
    let package = victim.package().unwrap().digest.clone();
    for node in [LIAR, "node-0"] {
        for package in ["", &package] {
            let unit = sublet_proto::pu::id(node, sublet_proto::pu::PROCESSOR);
            let asked = ProcessLeaseRequest { lease: lease.clone(), unit, package: package.into() };
            let request = liar.access.authorize(tonic::Request::new(asked));
            let refused = said(&liar.runtime, liar.stub.lease_for_process(request));
            assert_fails(refused, Code::PermissionDenied, &[LIAR]);
        }
    }
    assert_echoes(&victim);
}
