//! Grants without an attached client cost their tenant its turn, as long as others have to wait.

use super::*;

fn waits(cores: u32) -> LeaseRequest {
    LeaseRequest { wait_ms: 600_000, ..asked(cores) }
}

/// Returns the tenants of the grants among actions.
fn granted(house: &CoreFixture, actions: &[CoreAction]) -> Vec<String> {
    let tenants = actions.iter().filter_map(|action| match action {
        CoreAction::Granted { tenant, .. } => Some(house.core.tenant(*tenant).name.to_string()),
        _ => None,
    });
    tenants.collect()
}

/// Lets time pass until grants lapse, while the node reports these leases. Returns the tenants of the grants that
/// follow.
fn lapse(house: &mut CoreFixture, leases: Vec<LeaseReport>) -> Vec<String> {
    house.now_ms += ATTACH_GRACE_MS + 1;
    let (_, actions) = house.report(leases);
    granted(house, &actions)
}

/// Returns the newest lease, and asserts that it is of this tenant.
fn newest(house: &CoreFixture, tenant: &str) -> LeaseId {
    let active = house.core.leases().filter(|lease| lease.is_active());
    let lease = active.max_by_key(|lease| lease.granted_ms).unwrap();
    assert_eq!(&*house.core.tenant(lease.tenant).name, tenant);
    lease.id
}

#[test]
fn tenant_that_lets_grants_lapse_waits_behind_others() {
    let mut house = CoreFixture::with_node(1);
    let first = house.request_of("greedy", &waits(1));
    assert_eq!(granted(&house, &first), ["greedy"]);
    for _ in 0..3 {
        assert!(house.request_of("greedy", &waits(1)).is_empty());
    }
    assert!(house.request_of("modest", &waits(1)).is_empty());
    assert_eq!(lapse(&mut house, vec![]), ["modest"]);
    // The greedy tenant gets no lease between those of the modest one, though its requests have waited for longer. The modest
    // tenant is not refused for having overtaken them too often.
    for _ in 0..=MAX_OVERTAKES {
        let lease = newest(&house, "modest");
        house.report(vec![runs(lease, 1)]);
        let (_, actions) = house.report(vec![over(lease, 2)]);
        assert_eq!(granted(&house, &actions), [""; 0]);
        let next = house.request_of("modest", &waits(1));
        assert_eq!(granted(&house, &next), ["modest"]);
    }
    let refused = house.request_of("greedy", &asked(1)).pop();
    assert!(
        matches!(&refused, Some(CoreAction::Refused { error, .. }) if error.message.contains("did not attach")),
        "{refused:?}"
    );
}

#[test]
fn tenant_is_held_back_longer_each_time_then_served() {
    let mut house = CoreFixture::with_node(2);
    let kept = house.grant(&asked(1))[0];
    house.report(vec![runs(kept, 1)]);
    for _ in 0..3 {
        house.request_of("greedy", &waits(1));
    }
    // Another tenant requests both cores, in vain.
    assert!(matches!(&house.request_of("modest", &asked(2))[..], [CoreAction::Refused { .. }]));
    assert_eq!(lapse(&mut house, vec![runs(kept, 1)]), [""; 0]);
    let mut pauses = Vec::new();
    for _ in 0..2 {
        let (begun_ms, mut seen) = (house.now_ms, Vec::new());
        while seen.is_empty() {
            house.request_of("modest", &asked(2));
            let actions = house.ticks(1);
            seen = granted(&house, &actions);
            house.report(vec![runs(kept, 1)]);
        }
        assert_eq!(seen, ["greedy"]);
        pauses.push(house.now_ms - begun_ms);
        assert_eq!(lapse(&mut house, vec![runs(kept, 1)]), [""; 0]);
    }
    assert!(pauses[0] >= 9_000 && pauses[1] >= 19_000, "{pauses:?}");
}

#[test]
fn lapsed_grants_cost_nothing_where_nobody_else_waits() {
    let mut house = CoreFixture::with_node(1);
    for _ in 0..3 {
        house.request_of("t", &waits(1));
    }
    for _ in 0..2 {
        assert_eq!(lapse(&mut house, vec![]), ["t"]);
    }
}

#[test]
fn no_provisional_leases_while_a_tenant_is_held_back() {
    let mut house = CoreFixture::with_node(2);
    house.request_of("greedy", &asked(2));
    assert!(matches!(&house.request_of("modest", &asked(1))[..], [CoreAction::Refused { .. }]));
    assert_eq!(lapse(&mut house, vec![]), [""; 0]);
    house.standing = TokenStatus::Provisional;
    let refused = house.request_of("unverified", &asked(1)).pop();
    assert!(
        matches!(&refused, Some(CoreAction::Refused { error, .. }) if error.code == Code::NoCapacity),
        "{refused:?}"
    );
    house.standing = TokenStatus::Verified;
    let verified = house.request_of("modest", &asked(1));
    assert_eq!(granted(&house, &verified), ["modest"]);
}
