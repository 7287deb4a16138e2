//! Nodes that go from one manager to another and come back.

use super::*;

/// A manager that has node "n" with its one lease, and another one that the node has gone to with it.
fn moved() -> (CoreFixture, CoreFixture, LeaseId) {
    let mut before = CoreFixture::with_node(2);
    let lease = before.grant(&asked(1))[0];
    before.report(vec![runs(lease, 5)]);
    let mut after = CoreFixture::of_epoch(2);
    after.generation = before.generation;
    let running = vec![before.running(lease, runs(lease, 8))];
    after.register(node("n", 2), 1, running).unwrap();
    (before, after, lease)
}

fn own(fixture: &mut CoreFixture) -> TenantUse {
    let tenant = fixture.core.tenant_key("t");
    fixture.core.tenant(tenant).own
}

fn tell_found(fixture: &mut CoreFixture, found: &[NodeGeneration]) -> Vec<CoreAction> {
    let moved = found.iter().map(|found| (fixture.core.node_key(&found.node).unwrap(), found.generation));
    let events: Vec<CoreEvent> = moved.map(|(node, generation)| CoreEvent::Moved(node, generation)).collect();
    events.into_iter().flat_map(|event| fixture.event(event)).collect()
}

#[test]
fn leases_taken_over_by_another_manager_count_only_there() {
    let (mut before, mut after, lease) = moved();
    assert!(before.core.missing().next().is_none(), "it was heard of a moment ago");
    before.ticks(4);
    let missing: Vec<NodeGeneration> = before.core.missing().collect();
    assert_eq!(missing, [NodeGeneration { node: "n".into(), generation: 1 }]);
    assert_eq!(before.core.found(&missing), [], "by no later registration than its own");
    let found = after.core.found(&missing);
    assert_eq!(found, [NodeGeneration { node: "n".into(), generation: 2 }]);
    let spent = own(&mut before).spent_nano;
    before.saved.clear();
    assert!(tell_found(&mut before, &found).is_empty());
    assert_eq!(before.state(lease), None);
    assert!(before.core.node_key("n").is_none() && before.saved.is_empty());
    assert_eq!(own(&mut before), TenantUse { spent_nano: spent, ..TenantUse::default() });
    assert_eq!((own(&mut after).cores, after.state(lease)), (1, Some(LeasePhase::Attached)));
    assert_eq!(before.refusal(&asked(1)).code, Code::InsufficientResources);
}

#[test]
fn an_earlier_registration_with_another_manager_takes_nothing_away() {
    let (mut before, mut after, lease) = moved();
    // The agent came back, and the other manager does not know yet.
    before.generation = after.generation;
    let running = vec![after.running(lease, runs(lease, 9))];
    before.register(node("n", 2), 1, running).unwrap();
    before.ticks(4);
    let missing: Vec<NodeGeneration> = before.core.missing().collect();
    assert_eq!(after.core.found(&missing), []);
    let stale = [NodeGeneration { node: "n".into(), generation: 2 }];
    tell_found(&mut before, &stale);
    assert_eq!((before.state(lease), before.leased().cores), (Some(LeasePhase::Attached), 1));
    after.ticks(4);
    let missing: Vec<NodeGeneration> = after.core.missing().collect();
    let found = before.core.found(&missing);
    tell_found(&mut after, &found);
    assert_eq!((after.state(lease), own(&mut after).cores), (None, 0));
}

#[test]
fn grants_that_nobody_has_attached_to_go_with_their_node() {
    let (mut before, after, _) = moved();
    let granted = before.grant(&asked(1))[0];
    before.ticks(4);
    let missing: Vec<NodeGeneration> = before.core.missing().collect();
    tell_found(&mut before, &after.core.found(&missing));
    assert_eq!((before.state(granted), own(&mut before).leases), (None, 0));
    assert!(!before.saved.contains(&granted));
}

#[test]
fn moved_lease_is_stored_before_it_is_forgotten() {
    let (mut before, after, lease) = moved();
    before.is_store_full = true;
    before.report(vec![runs(lease, 7)]);
    let unsaved = before.grant(&asked(1))[0];
    before.report(vec![runs(lease, 7), over(unsaved, 3)]);
    before.saved.clear();
    before.ticks(4);
    let missing: Vec<NodeGeneration> = before.core.missing().collect();
    tell_found(&mut before, &after.core.found(&missing));
    assert_eq!(
        (before.state(lease), before.state(unsaved)),
        (Some(LeasePhase::Moved), Some(LeasePhase::Ended))
    );
    assert_eq!((before.leased(), own(&mut before).leases), (NodeCapacity::default(), 0));
    assert!(before.core.missing().next().is_none(), "it knows where the node is");
    let described = before.core.describe(before.core.lease(lease).unwrap());
    assert_eq!((described.state(), described.usage), (LeaseState::Attached, Some(usage(7))));
    let renewal = Renewal { lease, timeout_ms: 1_000 };
    let refused = before.event(CoreEvent::Renew(renewal));
    assert!(matches!(&refused[..], [CoreAction::NotRenewed(_, error)] if error.code == Code::UnknownLease));
    before.is_store_full = false;
    before.ticks(1);
    assert!(before.saved.contains(&lease) && before.saved.contains(&unsaved));
    assert!(before.core.leases().next().is_none() && before.core.node_key("n").is_none());
}

#[test]
fn late_write_of_earlier_state_does_not_store_later_usage() {
    let (mut before, after, lease) = moved();
    (6..16).for_each(|used| _ = before.report(vec![runs(lease, used)]));
    let written = before.core.lease(lease).unwrap().revision;
    before.ticks(4);
    let missing: Vec<NodeGeneration> = before.core.missing().collect();
    tell_found(&mut before, &after.core.found(&missing));
    assert_eq!(before.state(lease), None);
    // The node comes back, and the lease's current usage cannot be stored.
    before.generation = after.generation;
    before.is_store_full = true;
    let running = vec![after.running(lease, runs(lease, 20))];
    before.register(node("n", 2), 1, running).unwrap();
    assert!(before.event(CoreEvent::Saved(lease, written)).is_empty());
    let (reply, _) = before.report(vec![over(lease, 21)]);
    assert_eq!((reply.acknowledged, before.state(lease)), (vec![], Some(LeasePhase::Ended)));
    before.is_store_full = false;
    before.ticks(1);
    let (reply, _) = before.report(vec![over(lease, 21)]);
    assert_eq!((reply.acknowledged, before.state(lease)), (vec![lease], None));
}

#[test]
fn moved_lease_that_returns_early_is_unchanged() {
    let (mut before, after, lease) = moved();
    before.is_store_full = true;
    before.report(vec![runs(lease, 7)]);
    let spent = own(&mut before);
    before.ticks(4);
    let missing: Vec<NodeGeneration> = before.core.missing().collect();
    tell_found(&mut before, &after.core.found(&missing));
    assert_eq!(own(&mut before), TenantUse { spent_nano: spent.spent_nano, ..TenantUse::default() });
    before.generation = after.generation;
    let running = vec![after.running(lease, runs(lease, 7))];
    before.register(node("n", 2), 1, running).unwrap();
    assert_eq!((before.state(lease), before.leased().cores), (Some(LeasePhase::Attached), 1));
    assert_eq!(own(&mut before), spent, "nothing is spent twice");
    before.is_store_full = false;
    before.ticks(1);
    before.report(vec![over(lease, 9)]);
    assert_eq!((before.state(lease), own(&mut before).cores), (Some(LeasePhase::Ended), 0));
    let (reply, _) = before.report(vec![over(lease, 9)]);
    assert_eq!((reply.acknowledged, before.state(lease)), (vec![lease], None));
}

#[test]
fn late_registration_does_not_affect_the_newer_one() {
    let mut fixture = CoreFixture::with_node(2);
    fixture.register(node("n", 2), 1, Vec::new()).unwrap();
    let lease = fixture.grant(&asked(1))[0];
    fixture.report(vec![runs(lease, 1)]);
    let registration = fixture.core.node(fixture.core.node_key("n").unwrap()).unwrap().registration;
    for generation in 0..2 {
        fixture.generation = generation;
        let late = fixture.register(node("n", 2), 1, Vec::new()).unwrap_err();
        assert_eq!(late.code, Code::Protocol, "{late}");
    }
    fixture.sequence = 2;
    let (reply, _) = fixture.report(vec![runs(lease, 2)]);
    assert!(reply.end.is_empty());
    assert_eq!(fixture.state(lease), Some(LeasePhase::Attached));
    assert_eq!(fixture.core.node(fixture.core.node_key("n").unwrap()).unwrap().registration, registration);
    // Nor does one of an agent that is dead, though the node has not been heard of; unless it is only the clock that
    // was set back before the agent started. One that does not number its registrations is never late.
    fixture.ticks(SILENCE_TICKS + 1);
    fixture.generation = 0;
    assert_eq!(fixture.register(node("n", 2), 2, Vec::new()).unwrap_err().code, Code::AlreadyRunning);
    assert_eq!(fixture.state(lease), Some(LeasePhase::Attached));
    fixture.ticks(120);
    fixture.generation = 0;
    fixture.register(node("n", 2), 2, Vec::new()).unwrap();
    let unnumbered =
        |leases| Joining { description: node("n", 2), instance: InstanceId(2), generation: 0, leases };
    for _ in 0..2 {
        let actions = fixture.event(CoreEvent::Register(Box::new(unnumbered(Vec::new()))));
        assert!(matches!(&actions[..], [CoreAction::Registered { .. }]), "{actions:?}");
    }
}
