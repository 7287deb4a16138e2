//! Random stories: whatever agents, clients and the store do, the books hold.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sublet_proto::pool::Pool;

use super::*;

/// A step of a story; small numbers are nodes, leases and outcomes.
#[derive(Clone, Debug)]
enum Step {
    Register { node: u8, instance: u8, listed: u8, is_late: bool, pool: u8, rack: u8 },
    Moved { node: u8, is_later: bool },
    Disconnect { node: u8 },
    Request { cores: u32, shared: bool, wait_ms: u64, one_node: bool, pool: u8, near: u8 },
    Segment { mib: u64, wait_ms: u64, pool: u8 },
    Report { node: u8, lease: u8, ended: bool, executing_ns: u64 },
    End { lease: u8 },
    Ticks { count: u8, ms: u64 },
    Store { is_full: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0u8..3, 0u8..2, 0u8..12, prop::bool::weighted(0.2), 0u8..4, 0u8..3).prop_map(
            |(node, instance, listed, is_late, pool, rack)| {
                Step::Register { node, instance, listed, is_late, pool, rack }
            }
        ),
        1 => (0u8..3, any::<bool>()).prop_map(|(node, is_later)| Step::Moved { node, is_later }),
        1 => (0u8..3).prop_map(|node| Step::Disconnect { node }),
        6 => (1u32..9, any::<bool>(), 0u64..3_000, any::<bool>(), 0u8..6, 0u8..6).prop_map(
            |(cores, shared, wait_ms, one_node, pool, near)| {
                Step::Request { cores, shared, wait_ms, one_node, pool, near }
            }
        ),
        3 => (1u64..1_200, 0u64..3_000, 0u8..6).prop_map(
            |(mib, wait_ms, pool)| Step::Segment { mib, wait_ms, pool }
        ),
        8 => (0u8..3, 0u8..12, prop::bool::weighted(0.3), 0u64..100).prop_map(
            |(node, lease, ended, executing_ns)| Step::Report { node, lease, ended, executing_ns }
        ),
        1 => (0u8..12).prop_map(|lease| Step::End { lease }),
        3 => (0u8..8, 0u64..3_000).prop_map(|(count, ms)| Step::Ticks { count, ms }),
        1 => any::<bool>().prop_map(|is_full| Step::Store { is_full }),
    ]
}

/// A pool, or none: the higher numbers are no pool.
fn pool(number: u8) -> String {
    Pool::ALL
        .get(usize::from(number))
        .filter(|&&pool| pool != Pool::Flash)
        .map(Pool::to_string)
        .unwrap_or_default()
}

/// Plays a story and records the state for the invariants.
struct Story {
    fixture: CoreFixture,
    leases: Vec<LeaseId>,
    /// Requests that have no answer yet, and in which pool they must be.
    open: BTreeMap<u128, String>,
    usage: BTreeMap<LeaseId, Usage>,
}

impl Story {
    fn of(fixture: CoreFixture) -> Story {
        Story { fixture, leases: Vec::new(), open: BTreeMap::new(), usage: BTreeMap::new() }
    }

    fn lease(&self, index: u8) -> Option<LeaseId> {
        self.leases.iter().rev().nth(index.into()).copied()
    }

    fn play(&mut self, step: Step) {
        let actions = match step {
            Step::Register { node: name, instance, listed, is_late, pool: number, rack } => {
                self.fixture.generation += u64::from(!is_late);
                let rack = ["", "a", "b"][usize::from(rack)].to_owned();
                let placed = NodeDescription { pool: pool(number), rack, ..node(&format!("n{name}"), 4) };
                self.register(placed, instance, listed)
            }
            Step::Moved { node: name, is_later } => self.moved(name, is_later),
            Step::Disconnect { node: name } => match self.fixture.core.node_key(&format!("n{name}")) {
                Some(node) => self.fixture.event(CoreEvent::Disconnected(node)),
                None => Vec::new(),
            },
            Step::Request { cores, shared, wait_ms, one_node, pool: number, near } => {
                let (pool, near) = (pool(number), vec![format!("n{near}")]);
                let asked =
                    LeaseRequest { shared, wait_ms, max_nodes: one_node.into(), pool, near, ..asked(cores) };
                self.open.insert(self.fixture.requests + 1, asked.pool.clone());
                self.fixture.request_of(["a", "b", "c"][cores as usize % 3], &asked)
            }
            Step::Segment { mib, wait_ms, pool: number } => {
                let (memory_bytes, pool) = (mib << 20, pool(number));
                let asked = LeaseRequest { memory_bytes, wait_ms, pool, ..LeaseRequest::default() };
                self.open.insert(self.fixture.requests + 1, asked.pool.clone());
                self.fixture.request_of("b", &asked)
            }
            Step::Report { node, lease, ended, executing_ns } => {
                self.report(node, lease, ended, executing_ns)
            }
            Step::End { lease } => match self.lease(lease) {
                Some(id) => self.fixture.event(CoreEvent::End(id, Error::new(Code::LeaseEnded, "ordered"))),
                None => Vec::new(),
            },
            Step::Ticks { count, ms } => {
                self.fixture.now_ms += ms;
                self.fixture.ticks(count.into())
            }
            Step::Store { is_full } => {
                self.fixture.is_store_full = is_full;
                Vec::new()
            }
        };
        self.note(actions);
        self.check();
    }

    fn register(&mut self, node: NodeDescription, instance: u8, listed: u8) -> Vec<CoreAction> {
        let listed = self.lease(listed).filter(|&id| self.fixture.core.lease(id).is_some());
        let leases = listed.map(|id| self.fixture.running(id, runs(id, 1))).into_iter();
        let leases = leases.filter(|running| running.lease.node == node.name).collect();
        let description = NodeDescription { shared_cores: 1, shared_places: 4, ..node };
        let instance = InstanceId(instance.into());
        let generation = self.fixture.generation;
        self.fixture.event(CoreEvent::Register(Box::new(Joining {
            description,
            instance,
            generation,
            leases,
        })))
    }

    /// Another manager has the node, by its next registration or by none that is later than this manager's.
    fn moved(&mut self, name: u8, is_later: bool) -> Vec<CoreAction> {
        let Some(node) = self.fixture.core.node_key(&format!("n{name}")) else { return Vec::new() };
        let before = self.fixture.core.node(node).unwrap().generation;
        self.fixture.generation += u64::from(is_later);
        let generation = if is_later { self.fixture.generation } else { before };
        let actions = self.fixture.event(CoreEvent::Moved(node, generation));
        if let Some(left) = self.fixture.core.node(node).filter(|_| is_later) {
            assert_eq!((left.registration, left.leased), (0, NodeCapacity::default()));
            assert!(!left.leases.is_empty(), "a node was kept for nothing");
        }
        actions
    }

    /// Reports all leases of the node except one.
    fn report(&mut self, name: u8, lease: u8, ended: bool, executing_ns: u64) -> Vec<CoreAction> {
        let Some(node) = self.fixture.core.node_key(&format!("n{name}")) else { return Vec::new() };
        let one = self.lease(lease);
        let of_node = self.fixture.core.leases().filter(|lease| lease.node == node);
        let leases = of_node.map(|lease| match lease.state {
            LeasePhase::Ended => over(lease.id, executing_ns),
            _ if ended && Some(lease.id) == one => over(lease.id, executing_ns),
            _ => runs(lease.id, executing_ns),
        });
        let leases = leases.filter(|report| ended || Some(report.lease) != one).collect();
        self.fixture.sequence += 1;
        let registration = self.fixture.core.node(node).unwrap().registration;
        self.fixture.event(CoreEvent::Report(AgentReport {
            node,
            registration,
            sequence: self.fixture.sequence,
            answered: self.fixture.sequence - 1,
            clock_ms: self.fixture.now_ms,
            lending: LendingState::Open,
            leases,
            neighbours: 0,
        }))
    }

    fn note(&mut self, actions: Vec<CoreAction>) {
        for action in actions {
            let (request, leases) = match action {
                CoreAction::Granted { request, leases, .. } => (request, leases),
                CoreAction::Refused { request, .. } => (request, Vec::new()),
                _ => continue,
            };
            let pool = self.open.remove(&request.0).expect("it was answered twice, or never asked");
            leases.iter().for_each(|&lease| self.check_pool(lease, &pool));
            self.leases.extend(leases);
        }
    }

    /// Checks the pool of a granted lease. A node may have left a virtual pool because of the lease's resources.
    fn check_pool(&self, lease: LeaseId, pool: &str) {
        let core = &self.fixture.core;
        let node = core.lease(lease).and_then(|lease| core.node(lease.node)).unwrap();
        let is_virtual = core.nodes.has_virtual_pools() && node.description.pool.is_empty();
        assert!(pool.is_empty() || is_virtual || node.pool.name() == pool, "{pool}: {:?}", node.pool);
    }

    fn check(&mut self) {
        let core = &self.fixture.core;
        assert_eq!(self.open.len(), core.waiting(), "a request was lost");
        let mut leased = BTreeMap::<NodeKey, NodeCapacity>::new();
        for lease in core.leases() {
            if lease.is_active() {
                let room = leased.entry(lease.node).or_default();
                *room = room.plus(lease.amount);
            }
            let before = self.usage.insert(lease.id, lease.usage).unwrap_or_default();
            assert!(lease.usage.executing_ns >= before.executing_ns, "usage shrank");
        }
        for node in core.nodes() {
            let key = core.node_key(&node.name).unwrap();
            assert_eq!(node.leased, leased.remove(&key).unwrap_or_default());
            let NodeCapacity { cores, places, memory_bytes } = node.capacity;
            let fits = node.leased.cores <= cores && node.leased.places <= places;
            assert!(fits && node.leased.memory_bytes <= memory_bytes, "leased twice");
            let counts = [LeasePhase::Attached, LeasePhase::Granted]
                .map(|state| core.leases().filter(|lease| lease.node == key && lease.state == state).count());
            assert_eq!([node.attached as usize, node.unattached as usize], counts);
        }
        core.nodes.assert_consistent();
        assert!(leased.is_empty(), "leases on no node: {leased:?}");
        let used: u32 = core.tenants().map(|tenant| tenant.own.cores).sum();
        assert_eq!(
            used,
            core.leases().filter(|lease| lease.is_active()).map(|lease| lease.amount.workers).sum::<u32>()
        );
    }
}

proptest! {
    #[test]
    fn no_story_breaks_an_invariant(
        steps in proptest::collection::vec(step(), 1..150),
        are_pools_virtual in any::<bool>(),
    ) {
        let fixture = CoreFixture::new();
        let usual = CoreFixture::with_virtual_pools(GIB / 8);
        let mut story = Story::of(if are_pools_virtual { usual } else { fixture });
        for step in steps {
            story.play(step);
        }
        // Without faults, and with time, everything becomes free again.
        story.fixture.is_store_full = false;
        let actions = story.fixture.ticks(30 * 60 * 2);
        story.note(actions);
        story.check();
        for node in story.fixture.core.nodes() {
            prop_assert_eq!(node.leased, NodeCapacity::default());
        }
        prop_assert!(story.open.is_empty());
    }
}
