//! The core against single stories, and against random ones for its invariants.

mod choices;
mod global;
mod lapses;
mod moved;
mod needs;
mod neighbours;
mod pools;
mod preferred_nodes;
mod segments;
mod stories;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use sublet_proto::ticket::ATTACH_GRACE_MS;
use sublet_proto::v1::{
    FunctionUsage, LeaseRequest, NodeDescription, NodeGeneration, PackageBuild, PackageInfo, Quota,
    TenantUse, Usage, WorkerOptions,
};
use sublet_proto::{Code, Error};

const GIB: u64 = 1 << 30;
const START_MS: u64 = 1_000_000;

fn node(name: &str, cores: u32) -> NodeDescription {
    NodeDescription {
        name: name.into(),
        agent: format!("unix:/{name}"),
        architecture: "x86_64".into(),
        cores,
        memory_bytes: GIB,
        ..NodeDescription::default()
    }
}

fn asked(cores: u32) -> LeaseRequest {
    LeaseRequest {
        cores,
        memory_bytes: u64::from(cores) << 20,
        timeout_ms: 60_000,
        ..LeaseRequest::default()
    }
}

fn usage(executing_ns: u64) -> Usage {
    Usage {
        allocated_ns: executing_ns * 2,
        executing_ns,
        polling_ns: 0,
        calls: executing_ns,
        failed_calls: 0,
        ..Usage::default()
    }
}

fn over(lease: LeaseId, executing_ns: u64) -> LeaseReport {
    let ended = Some(ReportedEnd { code: 0, reason: "released".into() });
    LeaseReport { ended, ..runs(lease, executing_ns) }
}

fn runs(lease: LeaseId, executing_ns: u64) -> LeaseReport {
    LeaseReport { lease, usage: usage(executing_ns), functions: Vec::new(), cold_imports: None, ended: None }
}

/// A core with a clock, and a store that works unless it is full.
struct CoreFixture {
    core: Core,
    now_ms: u64,
    sequence: u64,
    /// The latest report whose answer the agent has.
    answered: u64,
    /// Generation of the latest registration.
    generation: u64,
    /// Standing of the tenants' requests.
    standing: TokenStatus,
    requests: u128,
    is_store_full: bool,
    saved: BTreeSet<LeaseId>,
}

impl CoreFixture {
    fn new() -> CoreFixture {
        CoreFixture::of_epoch(1)
    }

    fn of_epoch(epoch: u64) -> CoreFixture {
        let settings = CoreSettings {
            epoch,
            seed: 7,
            prices: Prices::default(),
            queue: QueueLimits { total: 6, per_tenant: 4 },
            balanced_bytes: None,
        };
        let core = Core::new(settings);
        CoreFixture {
            core,
            now_ms: START_MS,
            sequence: 0,
            answered: 0,
            generation: 0,
            requests: 0,
            standing: TokenStatus::Verified,
            is_store_full: false,
            saved: BTreeSet::new(),
        }
    }

    /// Creates a house in which nodes without a named pool are assigned to one by the resources they have left.
    fn with_virtual_pools(balanced_bytes: u64) -> CoreFixture {
        let settings = CoreSettings {
            epoch: 1,
            seed: 7,
            prices: Prices::default(),
            queue: QueueLimits::default(),
            balanced_bytes: Some(balanced_bytes),
        };
        CoreFixture { core: Core::new(settings), ..CoreFixture::new() }
    }

    fn with_node(cores: u32) -> CoreFixture {
        let mut fixture = CoreFixture::new();
        fixture.register(node("n", cores), 1, Vec::new()).unwrap();
        fixture
    }

    /// Returns the actions that follow from the event, without saves and forgotten leases, in order.
    fn event(&mut self, event: CoreEvent) -> Vec<CoreAction> {
        let (mut out, mut done) = (Vec::new(), Vec::new());
        self.core.on_event(self.now_ms, event, &mut out);
        while !out.is_empty() {
            match out.remove(0) {
                CoreAction::Save { lease, revision } => {
                    if !self.is_store_full {
                        self.saved.insert(lease);
                    }
                    let answer = if self.is_store_full {
                        CoreEvent::SaveFailed(lease)
                    } else {
                        CoreEvent::Saved(lease, revision)
                    };
                    self.core.on_event(self.now_ms, answer, &mut out);
                }
                CoreAction::Forgotten(_) => {}
                other => done.push(other),
            }
        }
        done
    }

    fn register(
        &mut self,
        description: NodeDescription,
        instance: u128,
        leases: Vec<AgentLease>,
    ) -> Result<(NodeKey, u64), Error> {
        (self.sequence, self.answered) = (0, 0);
        self.generation += 1;
        let (instance, generation) = (InstanceId(instance), self.generation);
        let joining = Joining { description, instance, generation, leases };
        let actions = self.event(CoreEvent::Register(Box::new(joining)));
        match actions.into_iter().find(|action| !matches!(action, CoreAction::Granted { .. })) {
            Some(CoreAction::Registered { node, registration, .. }) => Ok((node, registration)),
            Some(CoreAction::NotRegistered(error)) => Err(error),
            other => panic!("a registration was answered by {other:?}"),
        }
    }

    fn request_of(&mut self, tenant: &str, asked: &LeaseRequest) -> Vec<CoreAction> {
        self.request_for(tenant, "x86_64", asked)
    }

    /// Requests leases of a package with a build for this architecture or device.
    fn request_for(&mut self, tenant: &str, architecture: &str, asked: &LeaseRequest) -> Vec<CoreAction> {
        self.request_of_builds(tenant, &[architecture], asked)
    }

    fn request_of_builds(
        &mut self,
        tenant: &str,
        architectures: &[&str],
        asked: &LeaseRequest,
    ) -> Vec<CoreAction> {
        self.request_with_profiles(tenant, architectures, &[], asked)
    }

    fn request_with_profiles(
        &mut self,
        tenant: &str,
        architectures: &[&str],
        profiles: &[v1::Profile],
        asked: &LeaseRequest,
    ) -> Vec<CoreAction> {
        let build = |architecture: &&str| PackageBuild {
            architecture: architecture.to_string(),
            ..PackageBuild::default()
        };
        let builds = architectures.iter().map(build).collect();
        self.requests += 1;
        let request = ClientRequest {
            id: RequestId(self.requests),
            tenant: self.core.tenant_key(tenant),
            standing: self.standing,
            pu: asked.pu.clone(),
            package: Arc::new(PackageInfo {
                name: "p".into(),
                builds,
                profiles: profiles.into(),
                ..PackageInfo::default()
            }),
            terms: LeaseTerms::of(asked).unwrap(),
            locality: Locality::of(asked).unwrap(),
            needs: Arc::new(asked.needs.clone().unwrap_or_default()),
            wait_ms: asked.wait_ms,
            refusals: Refusals::default(),
            application: None,
        };
        self.event(CoreEvent::Request(Box::new(request)))
    }

    /// Requests leases for a run of an application of tenant "t" with these limits over all of its runs.
    fn request_for_application(
        &mut self,
        name: &str,
        quota: Quota,
        asked: &LeaseRequest,
    ) -> Result<Vec<LeaseId>, Error> {
        self.request_for_run((name, None), quota, asked)
    }

    /// Requests leases as [`CoreFixture::request_for_application`] does, for the run of a number.
    fn request_for_run(
        &mut self,
        (name, run): (&str, Option<RunNumber>),
        quota: Quota,
        asked: &LeaseRequest,
    ) -> Result<Vec<LeaseId>, Error> {
        let key = self.core.tenant_key(&application_name("t", name));
        self.requests += 1;
        let build = PackageBuild { architecture: "x86_64".into(), ..PackageBuild::default() };
        let request = ClientRequest {
            id: RequestId(self.requests),
            tenant: self.core.tenant_key("t"),
            standing: TokenStatus::Verified,
            pu: String::new(),
            package: Arc::new(PackageInfo { builds: vec![build], ..PackageInfo::default() }),
            terms: LeaseTerms::of(asked).unwrap(),
            locality: Locality::of(asked).unwrap(),
            needs: Arc::default(),
            wait_ms: asked.wait_ms,
            refusals: Refusals::default(),
            application: Some(ApplicationLimits { key, quota, run }),
        };
        match self.event(CoreEvent::Request(Box::new(request))).pop() {
            Some(CoreAction::Granted { leases, .. }) => Ok(leases),
            Some(CoreAction::Refused { error, .. }) => Err(error),
            other => panic!("neither granted nor refused: {other:?}"),
        }
    }

    fn grant(&mut self, asked: &LeaseRequest) -> Vec<LeaseId> {
        match self.request_of("t", asked).pop() {
            Some(CoreAction::Granted { leases, .. }) => leases,
            other => panic!("not granted: {other:?}"),
        }
    }

    fn refusal(&mut self, asked: &LeaseRequest) -> Error {
        match self.request_of("t", asked).pop() {
            Some(CoreAction::Refused { error, .. }) => error,
            other => panic!("not refused: {other:?}"),
        }
    }

    /// Reports for node "n", with the manager's clock; returns the answer and the other actions.
    fn report(&mut self, leases: Vec<LeaseReport>) -> (ReportAnswer, Vec<CoreAction>) {
        self.report_as(LendingState::Open, leases)
    }

    fn report_as(
        &mut self,
        lending: LendingState,
        leases: Vec<LeaseReport>,
    ) -> (ReportAnswer, Vec<CoreAction>) {
        self.sequence += 1;
        let node = self.core.node_key("n").unwrap();
        let registration = self.core.node(node).unwrap().registration;
        let report = AgentReport {
            node,
            registration,
            sequence: self.sequence,
            answered: self.answered,
            clock_ms: self.now_ms,
            lending,
            leases,
            neighbours: 0,
        };
        let mut actions = self.event(CoreEvent::Report(report));
        match actions.remove(0) {
            CoreAction::Reported(reply) => (reply, actions),
            other => panic!("a report was answered by {other:?}"),
        }
    }

    fn ticks(&mut self, count: u32) -> Vec<CoreAction> {
        let mut actions = Vec::new();
        for _ in 0..count {
            self.now_ms += TICK_MS;
            actions.extend(self.event(CoreEvent::Tick));
        }
        actions
    }

    fn state(&self, lease: LeaseId) -> Option<LeasePhase> {
        self.core.lease(lease).map(|lease| lease.state)
    }

    fn leased(&self) -> NodeCapacity {
        self.core.node(self.core.node_key("n").unwrap()).unwrap().leased
    }

    /// A lease as its agent shows it when it registers.
    fn running(&self, lease: LeaseId, report: LeaseReport) -> AgentLease {
        let described = self.core.describe(self.core.lease(lease).unwrap());
        AgentLease { lease: Box::new(described), report, remaining_ms: 30_000 }
    }
}

#[test]
fn refusals_say_what_was_asked_and_what_there_is() {
    let mut fixture = CoreFixture::with_node(4);
    fixture.grant(&asked(3));
    let check = |error: Error, code, parts: &[&str]| {
        assert_eq!(error.code, code, "{error}");
        assert!(parts.iter().all(|part| error.message.contains(part)), "{error}");
    };
    check(fixture.refusal(&asked(2)), Code::NoCapacity, &["2 cores asked", "1 of 4 free"]);
    check(fixture.refusal(&asked(5)), Code::InsufficientResources, &["5 cores", "together have 4"]);
    let on_one = LeaseRequest { max_nodes: 1, ..asked(5) };
    check(fixture.refusal(&on_one), Code::InsufficientResources, &["5 cores", "largest node has 4"]);
    let large = LeaseRequest { memory_bytes: 2 * GIB, ..asked(1) };
    check(fixture.refusal(&large), Code::InsufficientResources, &["2147483648", "1073741824"]);
    let most = LeaseRequest { memory_bytes: GIB, ..asked(1) };
    check(fixture.refusal(&most), Code::NoCapacity, &["1073741824 bytes"]);
    let on_one = LeaseRequest { max_nodes: 1, ..asked(2) };
    fixture.register(node("m", 1), 2, Vec::new()).unwrap();
    check(fixture.refusal(&on_one), Code::NoCapacity, &["2 of 5 are free", "at most 1 on a node"]);
    fixture.register(node("large", 9), 3, Vec::new()).unwrap();
    fixture.register(node("large", 1), 3, Vec::new()).unwrap();
    let on_one = LeaseRequest { max_nodes: 1, ..asked(9) };
    check(fixture.refusal(&on_one), Code::InsufficientResources, &["9 cores", "largest node has 4"]);
    let places = LeaseRequest { shared: true, ..asked(1) };
    check(fixture.refusal(&places), Code::InsufficientResources, &["shared places"]);
    let gpu = LeaseRequest { pu: "gpu".into(), ..asked(1) };
    check(fixture.refusal(&gpu), Code::InsufficientResources, &["no node of gpu/x86_64"]);
}

#[test]
fn chooses_the_fullest_fitting_node_and_randomly_among_equals() {
    let mut fixture = CoreFixture::new();
    fixture.register(node("large", 8), 1, Vec::new()).unwrap();
    for small in 0..8 {
        fixture.register(node(&format!("small{small}"), 2), 1, Vec::new()).unwrap();
    }
    let mut chosen = BTreeSet::new();
    for _ in 0..8 {
        let lease = fixture.grant(&asked(2))[0];
        chosen.insert(fixture.core.lease(lease).unwrap().node);
    }
    assert_eq!(chosen.len(), 8, "the small ones are full first");
    let first_of = |seed| {
        let settings = CoreSettings {
            epoch: 1,
            seed,
            prices: Prices::default(),
            queue: QueueLimits::default(),
            balanced_bytes: None,
        };
        let mut fixture = CoreFixture { core: Core::new(settings), ..CoreFixture::new() };
        for small in 0..8 {
            fixture.register(node(&format!("small{small}"), 2), 1, Vec::new()).unwrap();
        }
        let lease = fixture.grant(&asked(1))[0];
        fixture.core.lease(lease).unwrap().node
    };
    let firsts: BTreeSet<NodeKey> = (0..64).map(first_of).collect();
    assert!(firsts.len() > 4, "many clients of many managers spread: {firsts:?}");
}

/// Requests workers that have this many cores each.
fn asked_each(workers: u32, each: u32) -> LeaseRequest {
    let options = WorkerOptions { cores: each, ..DEFAULT_OPTIONS };
    LeaseRequest { options: Some(options), ..asked(workers * each) }
}

#[test]
fn cores_of_a_worker_are_on_one_node() {
    let mut fixture = CoreFixture::new();
    for (name, cores) in [("a", 5), ("b", 3), ("c", 1)] {
        let messages = sublet_proto::version::WORKER_CORES;
        fixture.register(NodeDescription { messages, ..node(name, cores) }, 1, Vec::new()).unwrap();
    }
    let refused = fixture.refusal(&asked_each(1, 6));
    assert_eq!(refused.code, Code::InsufficientResources);
    assert!(refused.message.contains("6 cores of one node asked for each worker"), "{refused}");
    assert!(refused.message.contains("the largest node has 5"), "{refused}");
    // Nine cores are free, and only three pairs.
    assert_eq!(fixture.refusal(&asked_each(4, 2)).code, Code::NoCapacity);
    let leases = fixture.grant(&asked_each(3, 2));
    let parts: Vec<_> = leases.iter().map(|&id| fixture.core.lease(id).unwrap().amount.workers).collect();
    assert_eq!(parts, [4, 2]);
    let described = fixture.core.describe(fixture.core.lease(leases[0]).unwrap());
    assert_eq!((described.cores, described.cores_each(), described.workers()), (4, 2, 2));
    assert_eq!(fixture.refusal(&asked_each(1, 2)).code, Code::NoCapacity, "a core is left on each node");
    assert_eq!(fixture.grant(&asked(3)).len(), 3);
}

#[test]
fn agents_that_give_one_core_take_no_worker_with_two() {
    let mut fixture = CoreFixture::new();
    fixture.register(node("old", 8), 1, Vec::new()).unwrap();
    let refused = fixture.refusal(&asked_each(1, 2));
    assert_eq!(refused.code, Code::VersionMismatch);
    assert!(
        refused.message.contains("every agent") && refused.message.contains("several cores"),
        "{refused}"
    );
    assert_eq!(fixture.grant(&asked_each(2, 1)).len(), 1);
}

#[test]
fn all_workers_go_to_the_fewest_nodes_or_none() {
    let mut fixture = CoreFixture::new();
    for (name, cores) in [("a", 4), ("b", 2), ("c", 1)] {
        fixture.register(node(name, cores), 1, Vec::new()).unwrap();
    }
    assert_eq!(fixture.refusal(&LeaseRequest { max_nodes: 2, ..asked(7) }).code, Code::NoCapacity);
    let leases = fixture.grant(&asked(7));
    let parts: Vec<_> = leases.iter().map(|&id| fixture.core.lease(id).unwrap().amount).collect();
    assert_eq!(parts.iter().map(|part| part.workers).collect::<Vec<_>>(), [4, 2, 1]);
    assert_eq!(parts.iter().map(|part| part.memory_bytes).sum::<u64>(), 7 << 20);
    assert_eq!(fixture.refusal(&asked(1)).code, Code::NoCapacity);
}

#[test]
fn places_on_shared_cores_are_apart_from_cores() {
    let mut fixture = CoreFixture::new();
    let shares = NodeDescription { shared_cores: 1, shared_places: 3, ..node("n", 1) };
    fixture.register(shares, 1, Vec::new()).unwrap();
    let shared = |workers| LeaseRequest { shared: true, ..asked(workers) };
    fixture.grant(&shared(2));
    fixture.grant(&asked(1));
    assert_eq!(fixture.refusal(&shared(2)).code, Code::NoCapacity);
    fixture.grant(&shared(1));
    assert_eq!(fixture.leased(), NodeCapacity { cores: 1, places: 3, memory_bytes: 4 << 20 });
}

#[test]
fn grant_is_taken_back_once_its_ticket_is_too_old() {
    let mut fixture = CoreFixture::with_node(1);
    let lease = fixture.grant(&asked(1))[0];
    fixture.now_ms += ATTACH_GRACE_MS;
    fixture.report(vec![]);
    assert_eq!(fixture.state(lease), Some(LeasePhase::Granted), "it may still be on its way");
    fixture.now_ms += 1;
    fixture.report(vec![]);
    assert_eq!((fixture.state(lease), fixture.leased().cores), (None, 0));
    assert!(fixture.saved.is_empty(), "an unused lease is not recorded");
}

#[test]
fn lease_ends_by_report_and_is_forgotten_once_stored() {
    let mut fixture = CoreFixture::with_node(1);
    let lease = fixture.grant(&asked(1))[0];
    fixture.report(vec![runs(lease, 5)]);
    assert_eq!(fixture.state(lease), Some(LeasePhase::Attached));
    fixture.is_store_full = true;
    let (reply, _) = fixture.report(vec![over(lease, 9)]);
    assert!(reply.acknowledged.is_empty());
    assert_eq!((fixture.state(lease), fixture.leased().cores), (Some(LeasePhase::Ended), 0));
    fixture.grant(&asked(1));
    fixture.ticks(3);
    assert_eq!(fixture.core.lease(lease).unwrap().usage, usage(9));
    fixture.is_store_full = false;
    fixture.ticks(1);
    for _ in 0..2 {
        let (reply, _) = fixture.report(vec![over(lease, 9)]);
        assert_eq!(reply.acknowledged, [lease], "said again, should the answer be lost");
    }
    assert_eq!(fixture.state(lease), None);
}

#[test]
fn usage_only_grows_and_never_beyond_wall_time() {
    let mut fixture = CoreFixture::with_node(2);
    let lease = fixture.grant(&asked(2))[0];
    fixture.now_ms += 1_000;
    fixture.report(vec![runs(lease, 500)]);
    fixture.report(vec![runs(lease, 400)]);
    assert_eq!(fixture.core.lease(lease).unwrap().usage, usage(500));
    let functions = vec![FunctionUsage { function: 0, executing_ns: 7, calls: 1, failed_calls: 0 }];
    let lie = LeaseReport { usage: usage(u64::MAX / 4), functions: functions.clone(), ..runs(lease, 0) };
    fixture.report(vec![lie]);
    let known = fixture.core.lease(lease).unwrap();
    assert_eq!(known.usage.allocated_ns, 2_000_000_000, "a second, and the slack of clocks");
    assert_eq!((known.usage.executing_ns, &known.functions), (4_000_000_000, &functions));
}

#[test]
fn keeps_cold_imports_that_agents_report() {
    let mut fixture = CoreFixture::with_node(2);
    let lease = fixture.grant(&asked(2))[0];
    let cold = v1::ColdImports { module: "m".into(), reason: "starts 1 thread".into(), import_ms: 5 };
    fixture.report(vec![runs(lease, 0)]);
    fixture.ticks(1);
    fixture.saved.clear();
    fixture.report(vec![LeaseReport { cold_imports: Some(cold.clone()), ..runs(lease, 0) }]);
    let known = fixture.core.describe(fixture.core.lease(lease).unwrap());
    assert_eq!(known.cold_imports.as_ref(), Some(&cold));
    fixture.ticks(1);
    assert!(fixture.saved.contains(&lease), "the store keeps it although nothing else has changed");
    let mut other = CoreFixture::of_epoch(2);
    other.event(CoreEvent::Restored(Box::new(known)));
    let restored = other.core.describe(other.core.lease(lease).unwrap());
    assert_eq!(restored.cold_imports, Some(cold), "another manager takes it over");
    fixture.report(vec![runs(lease, 1)]);
    assert_eq!(fixture.core.describe(fixture.core.lease(lease).unwrap()).cold_imports, None);
}

#[test]
fn reports_that_are_late_or_of_another_registration_change_nothing() {
    let mut fixture = CoreFixture::with_node(1);
    let lease = fixture.grant(&asked(1))[0];
    fixture.report(vec![runs(lease, 5)]);
    fixture.sequence = 0;
    let (reply, _) = fixture.report(vec![]);
    assert!(reply.end.is_empty());
    assert_eq!(fixture.state(lease), Some(LeasePhase::Attached));
    let node = fixture.core.node_key("n").unwrap();
    let stale = AgentReport {
        node,
        registration: 1,
        sequence: 9,
        answered: 0,
        clock_ms: 0,
        lending: LendingState::Open,
        leases: vec![],
        neighbours: 0,
    };
    assert!(matches!(fixture.event(CoreEvent::Report(stale))[..], [CoreAction::RegisterAgain]));
}

#[test]
fn what_an_agent_does_not_list_it_does_not_have() {
    let mut fixture = CoreFixture::with_node(2);
    let (kept, lost) = (fixture.grant(&asked(1))[0], fixture.grant(&asked(1))[0]);
    fixture.report(vec![runs(kept, 1), runs(lost, 1)]);
    fixture.report(vec![runs(kept, 2)]);
    assert_eq!((fixture.state(kept), fixture.state(lost)), (Some(LeasePhase::Attached), None));
    assert_eq!(fixture.leased().cores, 1);
    let (reply, _) = fixture.report(vec![runs(kept, 3), runs(lost, 3)]);
    assert!(matches!(&reply.end[..], [(id, error)] if *id == lost && error.code == Code::UnknownLease));
}

#[test]
fn silent_node_takes_no_leases_and_keeps_its_own() {
    let mut fixture = CoreFixture::with_node(2);
    let lease = fixture.grant(&asked(1))[0];
    fixture.report(vec![runs(lease, 1)]);
    fixture.ticks(SILENCE_TICKS + 1);
    assert_eq!(fixture.refusal(&asked(1)).code, Code::InsufficientResources);
    assert_eq!(fixture.state(lease), Some(LeasePhase::Attached));
    fixture.report(vec![runs(lease, 2)]);
    fixture.grant(&asked(1));
    // The node is now silent for good: its lease's time passes, and usage since then is still counted when the node is
    // back.
    fixture.ticks((60_000 + 2 * EXPIRY_SLACK_MS) as u32 / TICK_MS as u32);
    assert_eq!(fixture.state(lease), Some(LeasePhase::Ended));
    fixture.is_store_full = true;
    fixture.report(vec![over(lease, 50)]);
    assert_eq!(fixture.core.lease(lease).unwrap().usage, usage(50));
}

#[test]
fn disconnected_node_gets_no_leases_until_it_reports() {
    let mut fixture = CoreFixture::with_node(2);
    let lease = fixture.grant(&asked(1))[0];
    fixture.report(vec![runs(lease, 1)]);
    let node = fixture.core.node_key("n").unwrap();
    fixture.event(CoreEvent::Disconnected(node));
    assert_eq!(fixture.refusal(&asked(1)).code, Code::NoCapacity, "a request may wait for it");
    assert_eq!(fixture.state(lease), Some(LeasePhase::Attached));
    fixture.report(vec![runs(lease, 2)]);
    fixture.grant(&asked(1));
    // An agent that is started anew there registers at once.
    fixture.event(CoreEvent::Disconnected(node));
    fixture.register(self::node("n", 2), 2, Vec::new()).unwrap();
    assert_eq!(fixture.state(lease), None, "its end is stored");
    fixture.grant(&asked(2));
}

#[test]
fn repeats_a_leases_end_to_an_agent_that_forgot_it() {
    let mut fixture = CoreFixture::with_node(1);
    let lease = fixture.grant(&asked(1))[0];
    fixture.report(vec![runs(lease, 1)]);
    fixture.now_ms += 60_000 + EXPIRY_SLACK_MS;
    let (reply, _) = fixture.report(vec![runs(lease, 2)]);
    assert!(matches!(&reply.end[..], [(id, error)] if *id == lease && error.code == Code::LeaseExpired));
}

#[test]
fn leases_on_a_draining_or_reclaimed_node_are_not_renewed() {
    let mut fixture = CoreFixture::with_node(1);
    let lease = fixture.grant(&asked(1))[0];
    let renewal = Renewal { lease, timeout_ms: 120_000 };
    let renew = |fixture: &mut CoreFixture, lending| {
        fixture.report_as(lending, vec![runs(lease, 1)]);
        fixture.event(CoreEvent::Renew(renewal)).pop()
    };
    let why = [
        (LendingState::Draining, Code::NoCapacity, "drained"),
        (LendingState::Reclaimed, Code::NodeReclaimed, "handed back"),
    ];
    for (lending, code, part) in why {
        let Some(CoreAction::NotRenewed(_, error)) = renew(&mut fixture, lending) else { panic!("renewed") };
        assert!(error.code == code && error.message.contains(part), "{error}");
        assert!(error.message.contains("60000 ms"), "the end stays what it was: {error}");
    }
    assert!(matches!(renew(&mut fixture, LendingState::Open), Some(CoreAction::Renewed(_))));
    assert_eq!(fixture.core.lease(lease).unwrap().expires_ms, START_MS + 120_000);
}

#[test]
fn a_registration_is_the_truth_about_a_node() {
    let mut fixture = CoreFixture::with_node(3);
    let (kept, gone, unattached) =
        (fixture.grant(&asked(1))[0], fixture.grant(&asked(1))[0], fixture.grant(&asked(1))[0]);
    fixture.report(vec![runs(kept, 1), runs(gone, 1)]);
    let running = vec![fixture.running(kept, runs(kept, 5))];
    fixture.register(node("n", 3), 1, running).unwrap();
    assert_eq!(
        [kept, gone, unattached].map(|id| fixture.state(id)),
        [Some(LeasePhase::Attached), None, None]
    );
    assert_eq!(fixture.leased().cores, 1);
    assert_eq!(fixture.core.lease(kept).unwrap().expires_ms, START_MS + 30_000);
}

#[test]
fn a_new_manager_takes_leases_over_with_their_tickets() {
    let mut before = CoreFixture::with_node(2);
    let (runs_on, ended) = (before.grant(&asked(1))[0], before.grant(&asked(1))[0]);
    before.report(vec![runs(runs_on, 5), runs(ended, 5)]);
    let running = vec![before.running(runs_on, runs(runs_on, 8)), before.running(ended, over(ended, 9))];
    let mut fixture = CoreFixture::of_epoch(2);
    let (_, registration) = fixture.register(node("n", 2), 1, running).unwrap();
    assert!(registration > 2 << 32);
    assert_eq!((fixture.state(runs_on), fixture.leased().cores), (Some(LeasePhase::Attached), 1));
    let lease = fixture.core.lease(runs_on).unwrap();
    assert_eq!((&*fixture.core.tenant(lease.tenant).name, lease.usage), ("t", usage(8)));
    let (reply, _) = fixture.report(vec![runs(runs_on, 9), over(ended, 9)]);
    assert_eq!(reply.acknowledged, [ended]);
}

#[test]
fn a_registration_that_was_slow_loses_no_usage() {
    let (mut before, allocated_ms) = (CoreFixture::with_node(1), 10_000);
    let lease = before.grant(&asked(1))[0];
    let used = |ms: u64| LeaseReport { usage: usage(ms * 1_000_000 / 2), ..runs(lease, 0) };
    let mut fixture = CoreFixture::of_epoch(2);
    // The agent's list is nearly two seconds old when it arrives.
    let running = vec![before.running(lease, used(allocated_ms))];
    fixture.now_ms += 20_000;
    fixture.register(node("n", 1), 1, running).unwrap();
    fixture.now_ms += 5_000;
    fixture.report(vec![used(allocated_ms + 6_900)]);
    assert_eq!(fixture.core.lease(lease).unwrap().usage.allocated_ns, 16_900_000_000);
    fixture.report(vec![used(allocated_ms + 100_000)]);
    assert_eq!(
        fixture.core.lease(lease).unwrap().usage.allocated_ns,
        18_000_000_000,
        "and no more than that"
    );
}

#[test]
fn stored_leases_wait_for_their_node_and_end_without_it() {
    let mut before = CoreFixture::with_node(2);
    let (here, lost) = (before.grant(&asked(1))[0], before.grant(&asked(1))[0]);
    before.report(vec![runs(here, 5), runs(lost, 5)]);
    let mut fixture = CoreFixture::of_epoch(2);
    for lease in before.core.leases() {
        let lease = before.core.describe(lease);
        fixture.event(CoreEvent::Restored(Box::new(lease)));
    }
    assert_eq!(fixture.refusal(&asked(1)).code, Code::InsufficientResources);
    let running = vec![before.running(here, runs(here, 6))];
    fixture.register(node("n", 2), 1, running).unwrap();
    assert_eq!(
        (fixture.state(here), fixture.state(lost), fixture.leased().cores),
        (Some(LeasePhase::Attached), None, 1)
    );
    assert!(fixture.saved.contains(&lost));
}

#[test]
fn a_name_is_not_taken_from_an_agent_that_reports() {
    let mut fixture = CoreFixture::with_node(1);
    let error = fixture.register(node("n", 9), 2, Vec::new()).unwrap_err();
    assert!(error.code == Code::AlreadyRunning && error.message.contains("unix:/n"), "{error}");
    fixture.ticks(SILENCE_TICKS + 1);
    fixture.register(node("n", 9), 2, Vec::new()).unwrap();
    fixture.grant(&asked(9));
    assert_eq!(fixture.register(node("", 1), 1, Vec::new()).unwrap_err().code, Code::InvalidArgument);
    assert_eq!(fixture.register(node("m", 0), 1, Vec::new()).unwrap_err().code, Code::InvalidArgument);
}

#[test]
fn a_drained_node_takes_no_leases() {
    let mut fixture = CoreFixture::with_node(2);
    fixture.report_as(LendingState::Draining, vec![]);
    assert_eq!(fixture.refusal(&asked(1)).code, Code::InsufficientResources);
    fixture.report(vec![]);
    fixture.grant(&asked(2));
}

#[test]
fn a_repeated_request_gets_the_same_leases() {
    let mut fixture = CoreFixture::with_node(2);
    let first = fixture.grant(&asked(1));
    fixture.requests -= 1;
    assert_eq!(fixture.grant(&asked(1)), first);
    assert_eq!(fixture.leased().cores, 1);
}

#[test]
fn an_ended_lease_is_free_when_its_agent_knows() {
    let mut fixture = CoreFixture::with_node(1);
    let error = || Error::new(Code::LeaseEnded, "ended by an operator");
    let lease = fixture.grant(&asked(1))[0];
    fixture.event(CoreEvent::End(lease, error()));
    for sequence in 1..3 {
        let (reply, _) = fixture.report(vec![]);
        assert_eq!((reply.sequence, &reply.end[..]), (sequence, &[(lease, error())][..]));
        assert_eq!(fixture.leased().cores, 1, "the answer may not have come, and the ticket still holds");
    }
    fixture.answered = 1;
    fixture.report(vec![]);
    assert_eq!((fixture.state(lease), fixture.leased().cores), (None, 0));
    let lease = fixture.grant(&asked(1))[0];
    fixture.report(vec![runs(lease, 1)]);
    fixture.event(CoreEvent::End(lease, error()));
    assert_eq!(fixture.leased().cores, 1);
    let (reply, _) = fixture.report(vec![runs(lease, 2)]);
    assert_eq!(reply.end, [(lease, error())]);
    fixture.report(vec![over(lease, 3)]);
    assert_eq!(fixture.leased().cores, 0);
}

#[test]
fn a_lease_is_renewed_while_it_runs() {
    let mut fixture = CoreFixture::with_node(1);
    let lease = fixture.grant(&asked(1))[0];
    fixture.now_ms += 1_000;
    fixture.report(vec![runs(lease, 1)]);
    let renew = |fixture: &mut CoreFixture, timeout_ms| match fixture
        .event(CoreEvent::Renew(Renewal { lease, timeout_ms }))
        .pop()
    {
        Some(CoreAction::Renewed(_)) => Ok(fixture.core.lease(lease).unwrap().expires_ms),
        Some(CoreAction::NotRenewed(_, error)) => Err(error.code),
        other => panic!("{other:?}"),
    };
    assert_eq!(renew(&mut fixture, 90_000), Ok(START_MS + 91_000));
    assert_eq!(renew(&mut fixture, 10), Ok(START_MS + 91_000), "never earlier");
    fixture.event(CoreEvent::End(lease, Error::new(Code::LeaseEnded, "over")));
    assert_eq!(renew(&mut fixture, 0), Err(Code::LeaseEnded));
    fixture.report(vec![over(lease, 2)]);
    fixture.report(vec![over(lease, 2)]);
    assert_eq!(renew(&mut fixture, 0), Err(Code::UnknownLease));
}

#[test]
fn provisional_lease_with_an_invalid_token_ends_unbilled() {
    let mut fixture = CoreFixture::with_node(2);
    let (good, bad) = (fixture.grant(&asked(1))[0], fixture.grant(&asked(1))[0]);
    for id in [good, bad] {
        let key = fixture.core.leases.find(id).unwrap();
        fixture.core.leases.get_mut(key).unwrap().provisional = true;
    }
    fixture.now_ms += 10_000;
    fixture.report(vec![runs(good, 1_000_000_000), runs(bad, 1_000_000_000)]);
    let tenant = fixture.core.lease(good).unwrap().tenant;
    fixture.event(CoreEvent::Verified(good, tenant));
    let spent =
        |fixture: &CoreFixture| fixture.core.tenants().map(|tenant| tenant.own.spent_nano).sum::<u64>();
    let both = spent(&fixture);
    fixture.event(CoreEvent::Rejected(bad, Error::new(Code::Unauthenticated, "no such token")));
    assert_eq!(spent(&fixture) * 2, both);
    let (reply, _) = fixture.report(vec![runs(good, 2), runs(bad, 2)]);
    assert!(matches!(&reply.end[..], [(id, error)] if *id == bad && error.code == Code::Unauthenticated));
    let token = Error::new(Code::Unauthenticated, "revoked");
    let before = spent(&fixture);
    fixture.event(CoreEvent::Rejected(good, token));
    assert_eq!(spent(&fixture), before, "what a revoked token has used is paid for");
}

#[test]
fn quotas_hold_for_everything_that_a_tenant_has_anywhere() {
    let mut fixture = CoreFixture::with_node(8);
    let tenant = fixture.core.tenant_key("t");
    let limit = |fixture: &mut CoreFixture, quota| drop(fixture.event(CoreEvent::Quota(tenant, quota)));
    limit(&mut fixture, Quota { cores: Some(3), ..Quota::default() });
    fixture.grant(&asked(2));
    let error = fixture.refusal(&asked(2));
    assert!(error.code == Code::QuotaExceeded && error.message.contains("has 2 and may have 3"), "{error}");
    fixture.grant(&asked(1));
    limit(&mut fixture, Quota { leases: Some(2), ..Quota::default() });
    assert_eq!(fixture.refusal(&asked(1)).code, Code::QuotaExceeded);
    limit(&mut fixture, Quota { memory_bytes: Some(4 << 20), ..Quota::default() });
    fixture.event(CoreEvent::Elsewhere(tenant, TenantUse { memory_bytes: 1 << 20, ..TenantUse::default() }));
    assert_eq!(fixture.refusal(&asked(1)).code, Code::QuotaExceeded);
    fixture.event(CoreEvent::Elsewhere(tenant, TenantUse::default()));
    fixture.grant(&asked(1));
    assert_eq!(fixture.request_of("other", &asked(4)).len(), 1);
}

#[test]
fn limits_of_an_application_hold_over_all_of_its_leases() {
    let mut fixture = CoreFixture::with_node(8);
    let quota = Quota { cores: Some(3), memory_bytes: Some(64 << 20), ..Quota::default() };
    let ask = |fixture: &mut CoreFixture, name: &str, cores: u32| {
        let asked = LeaseRequest { wait_ms: 1000, ..asked(cores) };
        fixture.request_for_application(name, quota, &asked)
    };
    let first = ask(&mut fixture, "app", 2).unwrap()[0];
    let error = ask(&mut fixture, "app", 2).unwrap_err();
    assert_eq!(error.code, Code::NoCapacity);
    let said = "application t/app has 2 in all of its runs and may have 3";
    assert!(error.message.contains(said), "{error}");
    assert_eq!(fixture.core.waiting(), 0, "it would take the turn of others");
    ask(&mut fixture, "app", 1).unwrap();
    assert_eq!(ask(&mut fixture, "app", 4).unwrap_err().code, Code::InsufficientResources, "it never fits");
    // Neither another application nor the tenant itself is bound by them.
    ask(&mut fixture, "other", 3).unwrap();
    fixture.grant(&asked(1));
    let described = fixture.core.describe(fixture.core.lease(first).unwrap());
    assert_eq!((described.tenant.as_str(), described.application.as_str()), ("t", "app"));
    let key = fixture.core.tenant_key(&application_name("t", "app"));
    assert_eq!(fixture.core.tenant(key).used().cores, 3);
    let elsewhere = TenantUse { memory_bytes: 62 << 20, ..TenantUse::default() };
    let quota = Quota { memory_bytes: Some(64 << 20), ..Quota::default() };
    fixture.event(CoreEvent::Elsewhere(key, elsewhere));
    let refused = fixture.request_for_application("app", quota, &asked(1)).unwrap_err();
    assert!(refused.code == Code::NoCapacity && refused.message.contains("bytes of memory"), "{refused}");
    fixture.report(vec![over(first, 1)]);
    assert_eq!(fixture.core.tenant(key).own.cores, 1);
    fixture.request_for_application("app", quota, &asked(1)).unwrap();
}

#[test]
fn youngest_of_runs_that_wait_for_each_other_gives_way() {
    let mut fixture = CoreFixture::with_node(8);
    let quota = Quota { cores: Some(2), ..Quota::default() };
    let ask = |fixture: &mut CoreFixture, run: RunNumber| {
        let asked = LeaseRequest { wait_ms: 4000, ..asked(1) };
        fixture.request_for_run(("app", Some(run)), quota, &asked)
    };
    let first = ask(&mut fixture, 1).unwrap()[0];
    let youngers = ask(&mut fixture, 2).unwrap()[0];
    let began_ms = fixture.now_ms;
    let error = loop {
        assert_eq!(ask(&mut fixture, 1).unwrap_err().code, Code::NoCapacity);
        let error = ask(&mut fixture, 2).unwrap_err();
        if error.code != Code::NoCapacity {
            break error;
        }
        fixture.now_ms += 100;
    };
    assert_eq!((error.code, fixture.now_ms - began_ms), (Code::LeaseEnded, 4000));
    assert!(error.message.contains("gives way to earlier runs of application t/app"), "{error}");
    fixture.report(vec![runs(first, 1), over(youngers, 1)]);
    let error = ask(&mut fixture, 2).unwrap_err();
    let said = "another run of application t/app waits for more within its limits";
    assert_eq!((error.code, error.message.as_str()), (Code::NoCapacity, said));
    let second = ask(&mut fixture, 1).unwrap()[0];
    assert_eq!(ask(&mut fixture, 2).unwrap_err().code, Code::NoCapacity, "the limit");
    fixture.report(vec![over(first, 1), runs(second, 1)]);
    ask(&mut fixture, 2).unwrap();
}

#[test]
fn tenant_over_its_spending_limit_loses_its_leases() {
    let mut fixture = CoreFixture::with_node(2);
    let tenant = fixture.core.tenant_key("t");
    fixture.event(CoreEvent::Quota(tenant, Quota { spend_nano: Some(10_000), ..Quota::default() }));
    let lease = fixture.grant(&asked(1))[0];
    fixture.now_ms += 1_000;
    assert!(fixture.report(vec![runs(lease, 400_000_000)]).0.end.is_empty());
    fixture.now_ms += 1_000;
    let (reply, _) = fixture.report(vec![runs(lease, 600_000_000)]);
    assert!(matches!(&reply.end[..], [(_, error)] if error.code == Code::QuotaExceeded), "{reply:?}");
    assert_eq!(fixture.refusal(&asked(1)).code, Code::QuotaExceeded);
}

#[test]
fn tenant_that_may_not_wait_is_not_queued() {
    let mut fixture = CoreFixture::with_node(1);
    let queue = QueueLimits { total: 1, per_tenant: 0 };
    (fixture.core.queue, fixture.core.waiting) = (queue, WaitQueue::new(queue));
    fixture.grant(&asked(1));
    let refused = fixture.refusal(&LeaseRequest { wait_ms: 10_000, ..asked(1) });
    assert_eq!(refused.code, Code::TryLater);
    fixture.core.waiting.assert_consistent();
}

#[test]
fn requests_wait_in_turn_within_bounds_and_for_their_time() {
    let mut fixture = CoreFixture::with_node(2);
    let held = fixture.grant(&asked(2))[0];
    fixture.report(vec![runs(held, 1)]);
    let waits = |cores| LeaseRequest { wait_ms: 5_000, ..asked(cores) };
    for _ in 0..4 {
        assert!(fixture.request_of("greedy", &waits(1)).is_empty());
    }
    let full = |actions: Vec<CoreAction>| matches!(&actions[..], [CoreAction::Refused { error, .. }] if error.code == Code::TryLater);
    assert!(full(fixture.request_of("greedy", &waits(1))), "four of a tenant may wait");
    assert!(fixture.request_of("modest", &waits(1)).is_empty());
    assert!(fixture.request_of("modest", &waits(1)).is_empty());
    assert!(full(fixture.request_of("third", &waits(1))), "six may wait in all");
    let impossible = fixture.request_of("third", &waits(3)).pop();
    assert!(
        matches!(impossible, Some(CoreAction::Refused { error, .. }) if error.code == Code::InsufficientResources)
    );
    let (_, actions) = fixture.report(vec![over(held, 2)]);
    let tenants: Vec<_> = actions
        .iter()
        .map(|action| match action {
            CoreAction::Granted { tenant, .. } => fixture.core.tenant(*tenant).name.to_string(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(tenants, ["greedy", "modest"]);
    let late = fixture.ticks(10);
    assert_eq!(late.len(), 4);
    assert!(
        late.iter().all(|a| matches!(a, CoreAction::Refused { error, .. } if error.code == Code::NoCapacity))
    );
    assert_eq!(fixture.core.waiting(), 0);
}

#[test]
fn request_without_any_node_waits_for_one() {
    let mut fixture = CoreFixture::new();
    assert_eq!(fixture.refusal(&asked(1)).code, Code::InsufficientResources);
    assert!(fixture.request_of("t", &LeaseRequest { wait_ms: 5_000, ..asked(1) }).is_empty());
    let (description, leases) = (node("n", 1), Vec::new());
    let joining = Joining { description, instance: InstanceId(1), generation: 1, leases };
    let actions = fixture.event(CoreEvent::Register(Box::new(joining)));
    assert!(actions.iter().any(|action| matches!(action, CoreAction::Granted { .. })), "{actions:?}");
}

#[test]
fn a_large_request_is_overtaken_only_so_often() {
    let mut fixture = CoreFixture::with_node(2);
    let mut held: Vec<LeaseId> = (0..2).map(|_| fixture.grant(&asked(1))[0]).collect();
    assert!(fixture.request_of("large", &LeaseRequest { wait_ms: 600_000, ..asked(2) }).is_empty());
    let mut overtakes = 0;
    loop {
        let list: Vec<LeaseReport> =
            held.iter().skip(1).map(|&id| runs(id, 1)).chain([over(held[0], 1)]).collect();
        fixture.report(list);
        held.remove(0);
        match fixture.request_of("small", &asked(1)).pop() {
            Some(CoreAction::Granted { leases, .. }) => held.extend(leases),
            Some(CoreAction::Refused { error, .. }) => {
                assert!(
                    error.code == Code::NoCapacity && error.message.contains("turn of another"),
                    "{error}"
                );
                break;
            }
            other => panic!("{other:?}"),
        }
        overtakes += 1;
    }
    assert_eq!(overtakes, MAX_OVERTAKES);
    let (_, actions) = fixture.report(vec![over(held[0], 1)]);
    assert!(matches!(&actions[..], [CoreAction::Granted { leases, .. }] if leases.len() == 1));
}

#[test]
fn who_does_not_wait_any_more_gets_nothing() {
    let mut fixture = CoreFixture::with_node(1);
    let held = fixture.grant(&asked(1))[0];
    fixture.request_of("t", &LeaseRequest { wait_ms: 5_000, ..asked(1) });
    let tenant = fixture.core.tenant_key("t");
    fixture.event(CoreEvent::Withdraw(tenant, RequestId(fixture.requests)));
    let (_, actions) = fixture.report(vec![over(held, 1)]);
    assert!(actions.is_empty() && fixture.core.waiting() == 0);
}
