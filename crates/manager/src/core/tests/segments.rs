//! Tests the placement of segments.

use super::*;

const MIB: u64 = 1 << 20;

fn segment(memory_bytes: u64) -> LeaseRequest {
    LeaseRequest { memory_bytes, timeout_ms: 60_000, ..LeaseRequest::default() }
}

fn with_memory(name: &str, memory_bytes: u64) -> NodeDescription {
    NodeDescription { memory_bytes, ..node(name, 1) }
}

impl CoreFixture {
    /// The node that a segment is granted on.
    fn node_of(&mut self, asked: &LeaseRequest) -> String {
        let leases = self.grant(asked);
        assert_eq!(leases.len(), 1);
        let lease = self.core.lease(leases[0]).unwrap();
        assert_eq!((lease.amount.workers, lease.amount.memory_bytes), (0, asked.memory_bytes));
        self.core.node(lease.node).unwrap().name.to_string()
    }
}

#[test]
fn segment_takes_the_smallest_fitting_node() {
    let mut fixture = CoreFixture::new();
    fixture.register(with_memory("large", 64 * MIB), 1, Vec::new()).unwrap();
    fixture.register(with_memory("small", 4 * MIB), 2, Vec::new()).unwrap();
    let on = |fixture: &mut CoreFixture, mib: u64| fixture.node_of(&segment(mib * MIB));
    assert_eq!(
        ["small", "large", "small"],
        [3, 2, 1].map(|mib| on(&mut fixture, mib)).each_ref().map(String::as_str)
    );
    assert_eq!(on(&mut fixture, 62), "large");
    let refused = fixture.refusal(&segment(MIB));
    assert_eq!(refused.code, Code::NoCapacity, "{refused}");
    let refused = fixture.refusal(&segment(65 * MIB));
    assert_eq!(refused.code, Code::InsufficientResources);
    assert!(refused.message.contains("68157440") && refused.message.contains("67108864"), "{refused}");
}

#[test]
fn a_rack_whose_memory_exceeds_64_bits_takes_segments() {
    let mut fixture = CoreFixture::new();
    for (instance, name) in [(1, "a"), (2, "b")] {
        let node = NodeDescription { rack: "r".into(), ..with_memory(name, 1 << 63) };
        fixture.register(node, instance, Vec::new()).unwrap();
    }
    fixture.node_of(&segment(MIB));
}

#[test]
fn segments_and_workers_have_the_memory_of_a_node_once() {
    let mut fixture = CoreFixture::with_node(4);
    fixture.grant(&LeaseRequest { memory_bytes: GIB / 2, ..asked(1) });
    fixture.grant(&segment(GIB / 2));
    assert_eq!(fixture.refusal(&segment(4096)).code, Code::NoCapacity);
    assert_eq!(fixture.refusal(&asked(1)).code, Code::NoCapacity);
    let LeaseResources { memory_bytes, .. } = fixture.core.leases().last().unwrap().amount;
    assert_eq!(memory_bytes, GIB / 2);
}

#[test]
fn a_segment_waits_for_memory_and_has_its_turn() {
    let mut fixture = CoreFixture::with_node(1);
    let first = fixture.grant(&segment(GIB))[0];
    let waiting = fixture.request_of("u", &LeaseRequest { wait_ms: 10_000, ..segment(MIB) });
    assert!(waiting.is_empty(), "{waiting:?}");
    fixture.report(vec![runs(first, 1)]);
    let (_, then) = fixture.report(vec![over(first, 1)]);
    assert!(matches!(then.as_slice(), [CoreAction::Granted { leases, .. }] if leases.len() == 1), "{then:?}");
}

#[test]
fn segment_without_a_node_waits_or_is_refused() {
    let mut fixture = CoreFixture::new();
    assert_eq!(fixture.refusal(&segment(MIB)).code, Code::InsufficientResources);
    assert!(fixture.request_of("t", &LeaseRequest { wait_ms: 10_000, ..segment(MIB) }).is_empty());
    let (sequence, instance) = (fixture.generation + 1, InstanceId(1));
    let joining = Joining { description: node("n", 1), instance, generation: sequence, leases: Vec::new() };
    let actions = fixture.event(CoreEvent::Register(Box::new(joining)));
    assert!(actions.iter().any(|action| matches!(action, CoreAction::Granted { .. })), "{actions:?}");
}

#[test]
fn a_node_that_takes_no_leases_gets_no_segments() {
    let mut fixture = CoreFixture::with_node(1);
    fixture.report_as(LendingState::Draining, Vec::new());
    assert_eq!(fixture.refusal(&segment(MIB)).code, Code::InsufficientResources);
    fixture.report_as(LendingState::Open, Vec::new());
    fixture.grant(&segment(MIB));
    fixture.ticks(SILENCE_TICKS + 1);
    assert_eq!(fixture.refusal(&segment(MIB)).code, Code::InsufficientResources);
}

#[test]
fn memory_is_paid_for_by_its_nodes_price() {
    let mut fixture = CoreFixture::with_node(1);
    let lease = fixture.grant(&segment(GIB))[0];
    let described = fixture.core.describe(fixture.core.lease(lease).unwrap());
    assert_eq!((described.cores, described.package.as_str(), described.pu.as_str()), (0, "", DEFAULT_PU));
    assert_eq!(described.price, Some(Prices::default().of(DEFAULT_PU)));
}
