//! The level above racks: the rack that a request is handed to, the effects of a refusal, and that no rack is handed
//! more than it had reported.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use sublet_proto::v1::{NodeGroup, NodeRoom};

use super::*;

const MIB: u64 = 1 << 20;

/// Nodes of a rack, each by the cores that are free of it and that it has, with a GiB that is free.
fn group(nodes: &[(u32, u32)]) -> NodeGroup {
    let room = |cores, nodes| Some(NodeRoom { cores, places: 0, memory_bytes: GIB * nodes });
    let count = nodes.len() as u64;
    NodeGroup {
        architecture: "x86_64".into(),
        pool: "balanced".into(),
        all: room(nodes.iter().map(|node| node.1).sum(), count),
        free: room(nodes.iter().map(|node| node.0).sum(), count),
        largest: room(nodes.iter().map(|node| node.1).max().unwrap_or(0), 1),
        most_free: room(nodes.iter().map(|node| node.0).max().unwrap_or(0), 1),
        ..NodeGroup::default()
    }
}

fn one_node(cores: u32) -> LeaseRequest {
    LeaseRequest { max_nodes: 1, ..asked(cores) }
}

fn waiting(asked: LeaseRequest) -> LeaseRequest {
    LeaseRequest { wait_ms: 60_000, ..asked }
}

impl CoreFixture {
    fn above_racks() -> CoreFixture {
        let queue = QueueLimits { total: 1000, per_tenant: 1000 };
        let settings =
            CoreSettings { epoch: 1, seed: 7, prices: Prices::default(), queue, balanced_bytes: None };
        CoreFixture { core: Core::global(settings), ..CoreFixture::new() }
    }

    /// Reports these racks as all that exist, each for the first time or anew.
    fn stand(&mut self, racks: &[(&str, NodeGroup)]) -> Vec<CoreAction> {
        self.stand_in_groups(racks.iter().map(|(name, group)| (*name, vec![group.clone()])).collect())
    }

    fn stand_in_groups(&mut self, racks: Vec<(&str, Vec<NodeGroup>)>) -> Vec<CoreAction> {
        self.sequence += 1;
        let said = (1, self.sequence);
        let standing = |(name, groups): (&str, Vec<NodeGroup>)| {
            let groups = groups.into_iter().filter(|group| group.all.unwrap().cores > 0).collect();
            RackStanding { manager: name.to_owned(), said, groups }
        };
        let actions = self.event(CoreEvent::Racks(racks.into_iter().map(standing).collect()));
        self.core.nodes.assert_consistent();
        actions
    }

    /// Repeats the request of this number; `refused` names the rack that has refused it, if any.
    fn ask_again(
        &mut self,
        number: u128,
        tenant: &str,
        asked: &LeaseRequest,
        refused: &str,
    ) -> Vec<CoreAction> {
        let build = PackageBuild { architecture: "x86_64".into(), ..PackageBuild::default() };
        let request = ClientRequest {
            id: RequestId(number),
            tenant: self.core.tenant_key(tenant),
            standing: TokenStatus::Verified,
            pu: String::new(),
            package: Arc::new(PackageInfo { builds: vec![build], ..PackageInfo::default() }),
            terms: LeaseTerms::of(asked).unwrap(),
            locality: Locality::of(asked).unwrap(),
            needs: Arc::new(asked.needs.clone().unwrap_or_default()),
            wait_ms: asked.wait_ms,
            refusals: Refusals::by(refused),
            application: None,
        };
        let actions = self.event(CoreEvent::Request(Box::new(request)));
        self.core.nodes.assert_consistent();
        actions
    }

    fn handed(&mut self, asked: &LeaseRequest) -> String {
        let actions = self.request_of("t", asked);
        only(&actions).1
    }

    fn again(&mut self, number: u128, asked: &LeaseRequest, refused: &str) -> Vec<CoreAction> {
        self.ask_again(number, "t", asked, refused)
    }
}

/// Returns the only request that was handed on, and its rack's manager.
#[track_caller]
fn only(actions: &[CoreAction]) -> (u128, String) {
    match actions {
        [CoreAction::Handed { request, manager, .. }] => (request.0, manager.to_string()),
        other => panic!("not handed to one rack: {other:?}"),
    }
}

#[track_caller]
fn refused(actions: &[CoreAction]) -> Error {
    match actions {
        [CoreAction::Refused { error, .. }] => error.clone(),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn requests_go_to_the_freest_rack_and_spill_when_full() {
    let mut fixture = CoreFixture::above_racks();
    fixture.stand(&[("large", group(&[(8, 8); 2])), ("small", group(&[(2, 2)]))]);
    assert_eq!(fixture.handed(&asked(12)), "large");
    // Four are left there, of a higher magnitude than two.
    assert_eq!(fixture.handed(&asked(3)), "large");
    assert_eq!(fixture.handed(&asked(2)), "small");
    assert_eq!(fixture.handed(&asked(1)), "large");
    let error = fixture.refusal(&asked(1));
    assert_eq!(error.code, Code::NoCapacity);
    assert_eq!(fixture.core.tenants().map(|tenant| tenant.own.cores).sum::<u32>(), 18);
    // The reports of the racks count, whichever client has the cores.
    fixture.stand(&[("large", group(&[(0, 8); 2])), ("small", group(&[(1, 2)]))]);
    assert_eq!(fixture.core.tenants().map(|tenant| tenant.own.cores).sum::<u32>(), 0);
    assert_eq!(fixture.handed(&asked(1)), "small");
}

#[test]
fn what_no_rack_has_is_refused_with_the_amount() {
    let mut fixture = CoreFixture::above_racks();
    let refusal = |fixture: &mut CoreFixture, asked: &LeaseRequest| {
        let error = fixture.refusal(asked);
        (error.code, error.message)
    };
    let (code, message) = refusal(&mut fixture, &asked(1));
    assert_eq!((code, message.as_str()), (Code::InsufficientResources, "no node of cpu/x86_64 is there"));
    fixture.stand(&[("a", group(&[(8, 8); 2])), ("b", group(&[(0, 12)]))]);
    for (asked, code, said) in [
        (asked(17), Code::InsufficientResources, "17 cores asked, the largest rack has 16"),
        (
            one_node(13),
            Code::InsufficientResources,
            "13 cores of one node asked, the largest node of a rack has 12",
        ),
        (one_node(9), Code::NoCapacity, "the rack with most has 16 of 16 cores free"),
        (
            LeaseRequest { memory_bytes: 3 * GIB, ..asked(2) },
            Code::InsufficientResources,
            "1610612736 of them on one node, the largest node of a rack has 1073741824",
        ),
        (
            LeaseRequest { memory_bytes: 2 * GIB, ..LeaseRequest::default() },
            Code::InsufficientResources,
            "2147483648 bytes of memory asked, the largest node has 1073741824",
        ),
        (
            LeaseRequest { pool: "compute".into(), ..asked(1) },
            Code::InsufficientResources,
            "in the compute pool",
        ),
    ] {
        let refused = refusal(&mut fixture, &asked);
        assert!(refused.0 == code && refused.1.contains(said), "{refused:?}: {said}");
    }
    assert_eq!(fixture.handed(&one_node(8)), "a");
    assert_eq!(fixture.handed(&LeaseRequest { memory_bytes: GIB, ..LeaseRequest::default() }), "a");
}

#[test]
fn request_goes_to_one_rack_and_possibly_several_groups() {
    let mut fixture = CoreFixture::above_racks();
    let (plain, mut with_python, mut compute) = (group(&[(4, 4)]), group(&[(4, 4)]), group(&[(4, 4)]));
    with_python.runtimes = vec!["python3.11".into()];
    compute.pool = "compute".into();
    let (a, b) = (vec![plain.clone(), with_python, compute], vec![plain.clone(), plain]);
    // Groups with the same description are one: the last reported.
    fixture.stand_in_groups(vec![("a", a), ("b", b)]);
    assert_eq!(fixture.handed(&asked(12)), "a");
    let error = fixture.refusal(&asked(5));
    assert_eq!(error.code, Code::NoCapacity);
    assert_eq!(fixture.handed(&asked(4)), "b");
    let error = fixture.refusal(&asked(13));
    assert_eq!(error.code, Code::InsufficientResources);
}

#[test]
fn refused_request_avoids_the_rack_until_its_groups_change() {
    let mut fixture = CoreFixture::above_racks();
    let racks = [("a", group(&[(8, 8)])), ("b", group(&[(2, 2)]))];
    fixture.stand(&racks);
    let wants = waiting(asked(2));
    let first = only(&fixture.request_of("t", &wants));
    assert_eq!(first.1, "a");
    assert_eq!(only(&fixture.again(first.0, &wants, "a")).1, "b");
    assert!(fixture.again(first.0, &wants, "b").is_empty(), "it waits: neither is to be asked again");
    assert!(fixture.stand(&racks).is_empty(), "they stand as they stood");
    // Other requests still fit.
    assert_eq!(fixture.handed(&asked(2)), "a");
    let changed = [racks[0].clone(), ("b", group(&[(2, 3)]))];
    assert_eq!(only(&fixture.stand(&changed)), (first.0, "b".into()));
    assert!(fixture.again(first.0, &wants, "b").is_empty());
    assert_eq!(only(&fixture.stand(&[("a", group(&[(7, 8)])), changed[1].clone()])), (first.0, "a".into()));
}

#[test]
fn refused_amount_stays_counted_until_the_rack_reports_again() {
    let mut fixture = CoreFixture::above_racks();
    fixture.stand(&[("a", group(&[(2, 8)]))]);
    let wants = one_node(2);
    let first = only(&fixture.request_of("t", &wants));
    assert_eq!(refused(&fixture.again(first.0, &wants, "a")).code, Code::NoCapacity);
    assert_eq!(
        fixture.refusal(&wants).code,
        Code::NoCapacity,
        "the rack knows better than what it said before"
    );
    fixture.stand(&[("a", group(&[(2, 8)]))]);
    assert_eq!(fixture.handed(&wants), "a");
}

#[test]
fn repeated_request_gets_the_same_answer_despite_false_refusals() {
    let mut fixture = CoreFixture::above_racks();
    fixture.stand(&[("a", group(&[(4, 4)]))]);
    let wants = asked(1);
    let first = only(&fixture.request_of("t", &wants));
    for said in ["", "b", "https://nowhere"] {
        assert_eq!(only(&fixture.again(first.0, &wants, said)), first, "{said}");
    }
    assert_eq!(fixture.core.tenants().map(|tenant| tenant.own.cores).sum::<u32>(), 1, "it was counted once");
    // A request of another tenant, or one that was never handed, is a new request.
    assert_eq!(only(&fixture.ask_again(first.0, "u", &wants, "a")).1, "a");
    assert_eq!(only(&fixture.again(99, &wants, "a")), (99, "a".into()));
    assert_eq!(fixture.core.tenants().map(|tenant| tenant.own.cores).sum::<u32>(), 3);
    // A request that was handed too long ago is a new one, too.
    fixture.ticks(61);
    assert_eq!(only(&fixture.again(first.0, &wants, "a")).1, "a");
}

#[test]
fn refused_request_keeps_its_turn_before_later_ones() {
    let mut fixture = CoreFixture::above_racks();
    fixture.stand(&[("a", group(&[(2, 4)]))]);
    let wants = waiting(asked(2));
    let first = only(&fixture.request_of("t", &wants)).0;
    for tenant in ["u", "t", "v"] {
        assert!(fixture.request_of(tenant, &wants).is_empty());
    }
    assert!(fixture.again(first, &wants, "a").is_empty());
    assert_eq!(only(&fixture.stand(&[("a", group(&[(3, 4)]))])).0, first);
    // Requests of other tenants take turns, as with the manager of a rack.
    let numbers = [(2, 4), (3, 4), (2, 4)].map(|cores| only(&fixture.stand(&[("a", group(&[cores]))])).0);
    assert_eq!(numbers, [1, 3, 2].map(|later| first + later));
}

#[test]
fn dead_managers_rack_is_skipped_and_returns_with_fresh_groups() {
    let mut fixture = CoreFixture::above_racks();
    fixture.stand(&[("a", group(&[(8, 8)])), ("b", group(&[(1, 1)]))]);
    assert_eq!(fixture.handed(&asked(4)), "a");
    assert!(fixture.stand(&[("b", group(&[(1, 1)]))]).is_empty());
    assert_eq!(fixture.core.tenants().map(|tenant| tenant.own.cores).sum::<u32>(), 0);
    assert_eq!(fixture.refusal(&asked(4)).code, Code::InsufficientResources);
    // A manager that is silent and not dead stays: the store may be unreachable.
    fixture.ticks(1000);
    assert_eq!(fixture.handed(&asked(1)), "b");
    let now = [("a", group(&[(4, 8)])), ("b", group(&[(1, 1)]))];
    fixture.stand(&now);
    assert_eq!(fixture.handed(&asked(4)), "a");
    // A request that was handed to it waits for it, if it may wait.
    fixture.stand(&[("a", group(&[(8, 8)])), ("b", group(&[(1, 1)]))]);
    let wants = waiting(asked(4));
    let first = only(&fixture.request_of("t", &wants)).0;
    fixture.stand(&[("b", group(&[(1, 1)]))]);
    assert!(fixture.again(first, &wants, "a").is_empty());
    assert_eq!(only(&fixture.stand(&now)), (first, "a".into()));
    // An older start of its manager is ignored.
    let late = RackStanding { manager: "a".into(), said: (0, 99), groups: vec![group(&[(8, 8)])] };
    let b = RackStanding { manager: "b".into(), said: (1, 0), groups: Vec::new() };
    fixture.event(CoreEvent::Racks(vec![late, b]));
    assert_eq!(fixture.refusal(&asked(4)).code, Code::NoCapacity);
}

#[test]
fn a_tenant_is_handed_no_more_than_its_quota() {
    let mut fixture = CoreFixture::above_racks();
    fixture.stand(&[("a", group(&[(8, 8)]))]);
    let tenant = fixture.core.tenant_key("t");
    fixture.event(CoreEvent::Quota(tenant, Quota { cores: Some(3), ..Quota::default() }));
    assert_eq!(fixture.handed(&asked(2)), "a");
    assert_eq!(fixture.refusal(&asked(2)).code, Code::QuotaExceeded);
    fixture.event(CoreEvent::Elsewhere(tenant, TenantUse { cores: 2, ..TenantUse::default() }));
    fixture.stand(&[("a", group(&[(6, 8)]))]);
    assert_eq!(fixture.refusal(&asked(2)).code, Code::QuotaExceeded);
    assert_eq!(fixture.handed(&asked(1)), "a");
}

#[test]
fn rack_reports_capacity_and_free_resources_of_its_nodes() {
    let mut rack = CoreFixture::new();
    let pools = [("n1", 4, "compute"), ("n2", 8, "compute"), ("n3", 2, "memory"), ("n4", 16, "compute")];
    for (number, (name, cores, pool)) in pools.into_iter().enumerate() {
        let described = NodeDescription { pool: pool.into(), ..node(name, cores) };
        rack.register(described, number as u128 + 1, Vec::new()).unwrap();
    }
    let on = |node: &str, asked| LeaseRequest { near: vec![node.into()], ..asked };
    rack.grant(&on("n2", one_node(7)));
    // A node that takes no leases is not offered.
    let n4 = rack.core.node_key("n4").unwrap();
    rack.core.nodes.change(n4, |node| node.lending = LendingState::Draining);
    let groups = rack.core.groups();
    let cores = |room: Option<NodeRoom>| room.unwrap().cores;
    let described: Vec<_> = groups
        .iter()
        .map(|group| {
            (group.pool.as_str(), [group.all, group.free, group.largest, group.most_free].map(cores))
        })
        .collect();
    assert_eq!(described, [("compute", [12, 5, 8, 4]), ("memory", [2, 2, 2, 2])]);
    let mut fixture = CoreFixture::above_racks();
    fixture.stand_in_groups(vec![("a", groups)]);
    assert_eq!(fixture.refusal(&one_node(5)).code, Code::NoCapacity);
    assert_eq!(fixture.handed(&one_node(4)), "a");
    assert_eq!(fixture.handed(&LeaseRequest { pool: "memory".into(), ..asked(2) }), "a");
}

/// A step of a story; small numbers are racks and tenants.
#[derive(Clone, Debug)]
enum Step {
    Request {
        tenant: u8,
        cores: u32,
        one_node: bool,
        wait_ms: u64,
    },
    Segment {
        tenant: u8,
        mib: u64,
        wait_ms: u64,
    },
    /// Others take or give back this many cores of a rack's node.
    Taken {
        rack: u8,
        node: u8,
        cores: u32,
    },
    /// All racks report, except one whose manager is dead.
    Stand {
        dead: u8,
    },
    /// The clients whose requests were handed to a rack ask it.
    Ask,
    Ticks {
        count: u8,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..3, 1u32..12, any::<bool>(), 0u64..20_000).prop_map(
            |(tenant, cores, one_node, wait_ms)| Step::Request { tenant, cores, one_node, wait_ms }
        ),
        2 => (0u8..3, 1u64..1_500, 0u64..20_000).prop_map(
            |(tenant, mib, wait_ms)| Step::Segment { tenant, mib, wait_ms }
        ),
        4 => (0u8..3, 0u8..2, 0u32..9).prop_map(|(rack, node, cores)| Step::Taken { rack, node, cores }),
        4 => (0u8..12).prop_map(|dead| Step::Stand { dead }),
        4 => Just(Step::Ask),
        2 => (0u8..12).prop_map(|count| Step::Ticks { count }),
    ]
}

const RACKS: [&str; 3] = ["a", "b", "c"];

/// A request as its client has it.
#[derive(Clone, Debug)]
struct Open {
    tenant: String,
    asked: LeaseRequest,
    until_ms: u64,
}

/// Plays a story and records the state for the invariants.
struct Story {
    fixture: CoreFixture,
    /// The free cores of each rack's two nodes, of eight; the current ones, and those of the last report.
    free: [[u32; 2]; 3],
    said: [Option<[u32; 2]>; 3],
    /// Number of reports of each rack that differ from the one before.
    changes: [u32; 3],
    /// Cores and bytes that were handed to each rack since its last report.
    handed: [(u32, u64); 3],
    open: BTreeMap<u128, Open>,
    /// Requests whose clients are to ask a rack, and the rack's number of changes when they were handed to it.
    on_their_way: Vec<(u128, usize, u32)>,
    /// Waiting requests by tenant, in the order in which they are to be served.
    queues: BTreeMap<String, VecDeque<u128>>,
}

impl Story {
    fn play(&mut self, step: Step) {
        match step {
            Step::Request { tenant, cores, one_node, wait_ms } => {
                let asked = LeaseRequest { wait_ms, max_nodes: one_node.into(), ..asked(cores) };
                self.request(tenant, asked)
            }
            Step::Segment { tenant, mib, wait_ms } => {
                let asked = LeaseRequest { memory_bytes: mib * MIB, wait_ms, ..LeaseRequest::default() };
                self.request(tenant, asked)
            }
            Step::Taken { rack, node, cores } => {
                self.free[usize::from(rack)][usize::from(node)] = cores.min(8)
            }
            Step::Stand { dead } => self.stand(dead.into()),
            Step::Ask => self.ask(),
            Step::Ticks { count } => {
                // A request that comes back late is new.
                self.ask();
                let actions = self.fixture.ticks(count.into());
                self.note(actions, None);
            }
        }
        self.check();
    }

    fn request(&mut self, tenant: u8, asked: LeaseRequest) {
        let tenant = ["t", "u", "v"][usize::from(tenant)].to_owned();
        let until_ms = self.fixture.now_ms + asked.wait_ms;
        let number = self.fixture.requests + 1;
        self.open.insert(number, Open { tenant: tenant.clone(), asked: asked.clone(), until_ms });
        let actions = self.fixture.request_of(&tenant, &asked);
        let is_answered = !actions.is_empty();
        self.note(actions, Some(number));
        if !is_answered {
            self.queues.entry(tenant).or_default().push_back(number);
        }
    }

    fn stand(&mut self, dead: usize) {
        let racks: Vec<_> = (0..RACKS.len()).filter(|&rack| rack != dead).collect();
        for rack in 0..RACKS.len() {
            let said = (rack != dead).then_some(self.free[rack]);
            self.changes[rack] += u32::from(self.said[rack] != said);
            self.said[rack] = said;
            self.handed[rack] = (0, 0);
        }
        let of = |rack: usize| (RACKS[rack], group(&self.free[rack].map(|free| (free, 8))));
        let standings: Vec<_> = racks.into_iter().map(of).collect();
        let actions = self.fixture.stand(&standings);
        self.note(actions, None);
    }

    /// Lets each rack grant what one of its nodes, or all of them, have free, and else refuse.
    fn ask(&mut self) {
        for (number, rack, changes) in std::mem::take(&mut self.on_their_way) {
            let Some(Open { tenant, mut asked, until_ms }) = self.open.get(&number).cloned() else {
                continue;
            };
            let free = &mut self.free[rack];
            let most = if asked.max_nodes == 1 { *free.iter().max().unwrap() } else { free.iter().sum() };
            if asked.cores <= most {
                let mut left = asked.cores;
                for node in free.iter_mut() {
                    if asked.max_nodes != 1 || *node >= asked.cores {
                        let taken = left.min(*node);
                        (*node, left) = (*node - taken, left - taken);
                    }
                }
                self.open.remove(&number);
                continue;
            }
            asked.wait_ms = until_ms.saturating_sub(self.fixture.now_ms);
            let before = self.fixture.core.waiting();
            let actions = self.fixture.ask_again(number, &tenant, &asked, RACKS[rack]);
            if let [CoreAction::Handed { manager, .. }] = actions.as_slice() {
                let has_changed = changes != self.changes[rack];
                assert!(has_changed || **manager != *RACKS[rack], "it was refused there as it stands");
            }
            let is_answered = !actions.is_empty();
            self.note(actions, Some(number));
            if !is_answered {
                assert_eq!(self.fixture.core.waiting(), before + 1);
                self.queues.entry(tenant).or_default().push_front(number);
            }
        }
    }

    /// Notes actions. `asked` is a request that was answered at once.
    fn note(&mut self, actions: Vec<CoreAction>, asked: Option<u128>) {
        for action in actions {
            let (number, manager) = match action {
                CoreAction::Handed { request, manager, .. } => (request.0, Some(manager)),
                CoreAction::Refused { request, .. } => (request.0, None),
                other => panic!("{other:?}"),
            };
            let open = self.open.get(&number).expect("it was answered twice, or never asked");
            if asked != Some(number) {
                let queue = self.queues.get_mut(&open.tenant).unwrap();
                match manager {
                    Some(_) => assert_eq!(queue.pop_front(), Some(number), "it was not its turn"),
                    None => queue.retain(|waits| *waits != number),
                }
            }
            let Some(manager) = manager else {
                self.open.remove(&number);
                continue;
            };
            let rack = RACKS.iter().position(|name| *name == &*manager).unwrap();
            let terms = LeaseTerms::of(&open.asked).unwrap();
            let (cores, bytes) = &mut self.handed[rack];
            *cores += terms.workers;
            *bytes += terms.memory_bytes;
            let said = self.said[rack].expect("it was handed to a dead manager");
            assert!(*cores <= said.iter().sum::<u32>(), "more was handed than there was said to be");
            assert!(*bytes <= 2 * GIB);
            let most = if terms.max_nodes == 1 { *said.iter().max().unwrap() } else { said.iter().sum() };
            assert!(terms.workers <= most);
            self.on_their_way.push((number, rack, self.changes[rack]));
        }
    }

    fn check(&self) {
        let core = &self.fixture.core;
        core.nodes.assert_consistent();
        let queued: usize = self.queues.values().map(VecDeque::len).sum();
        assert_eq!(core.waiting(), queued, "a request was lost");
        assert_eq!(self.open.len(), queued + self.on_their_way.len());
        assert_eq!(core.leases().count(), 0, "nothing is leased above racks");
        let counted: u64 = core.tenants().map(|tenant| u64::from(tenant.own.cores)).sum();
        let handed: u64 = self.handed.iter().map(|handed| u64::from(handed.0)).sum();
        assert_eq!(counted, handed);
    }
}

proptest! {
    #[test]
    fn no_story_above_racks_breaks_an_invariant(steps in proptest::collection::vec(step(), 1..150)) {
        let fixture = CoreFixture::above_racks();
        let (free, said, handed, changes) = ([[8; 2]; 3], [None; 3], [(0, 0); 3], [0; 3]);
        let (open, on_their_way, queues) = Default::default();
        let mut story = Story { fixture, free, said, changes, handed, open, on_their_way, queues };
        for step in steps {
            story.play(step);
        }
        // With enough free and enough time each is answered.
        for _ in 0..200 {
            story.free = [[8; 2]; 3];
            story.play(Step::Stand { dead: 9 });
            story.play(Step::Ask);
        }
        story.play(Step::Ticks { count: 41 });
        story.play(Step::Ask);
        prop_assert!(story.open.is_empty(), "{:?}", story.open);
    }
}
