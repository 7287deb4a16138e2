//! Grants without an attached client cost their tenant its turn, as long as others have to wait.

use super::*;

fn waits(cores: u32) -> LeaseRequest {
    LeaseRequest { wait_ms: 600_000, ..asked(cores) }
}

/// Returns the tenants of the grants among actions.
fn granted(fixture: &CoreFixture, actions: &[CoreAction]) -> Vec<String> {
    let tenants = actions.iter().filter_map(|action| match action {
        CoreAction::Granted { tenant, .. } => Some(fixture.core.tenant(*tenant).name.to_string()),
        _ => None,
    });
    tenants.collect()
}

/// Lets time pass until grants lapse, while the node reports these leases. Returns the tenants of the grants that
/// follow.
fn lapse(fixture: &mut CoreFixture, leases: Vec<LeaseReport>) -> Vec<String> {
    fixture.now_ms += ATTACH_GRACE_MS + 1;
    let (_, actions) = fixture.report(leases);
    granted(fixture, &actions)
}

/// Returns the newest lease, and asserts that it is of this tenant.
fn newest(fixture: &CoreFixture, tenant: &str) -> LeaseId {
    let active = fixture.core.leases().filter(|lease| lease.is_active());
    let lease = active.max_by_key(|lease| lease.granted_ms).unwrap();
    assert_eq!(&*fixture.core.tenant(lease.tenant).name, tenant);
    lease.id
}

#[test]
fn tenant_that_lets_grants_lapse_waits_behind_others() {
    let mut fixture = CoreFixture::with_node(1);
    let first = fixture.request_of("greedy", &waits(1));
    assert_eq!(granted(&fixture, &first), ["greedy"]);
    for _ in 0..3 {
        assert!(fixture.request_of("greedy", &waits(1)).is_empty());
    }
    assert!(fixture.request_of("modest", &waits(1)).is_empty());
    assert_eq!(lapse(&mut fixture, vec![]), ["modest"]);
    // The greedy tenant gets no lease between those of the modest one, though its requests have waited for longer. The modest
    // tenant is not refused for having overtaken them too often.
    for _ in 0..=MAX_OVERTAKES {
        let lease = newest(&fixture, "modest");
        fixture.report(vec![runs(lease, 1)]);
        let (_, actions) = fixture.report(vec![over(lease, 2)]);
        assert_eq!(granted(&fixture, &actions), [""; 0]);
        let next = fixture.request_of("modest", &waits(1));
        assert_eq!(granted(&fixture, &next), ["modest"]);
    }
    let refused = fixture.request_of("greedy", &asked(1)).pop();
    assert!(
        matches!(&refused, Some(CoreAction::Refused { error, .. }) if error.message.contains("did not attach")),
        "{refused:?}"
    );
}

#[test]
fn tenant_is_held_back_longer_each_time_then_served() {
    let mut fixture = CoreFixture::with_node(2);
    let kept = fixture.grant(&asked(1))[0];
    fixture.report(vec![runs(kept, 1)]);
    for _ in 0..3 {
        fixture.request_of("greedy", &waits(1));
    }
    // Another tenant requests both cores, in vain.
    assert!(matches!(&fixture.request_of("modest", &asked(2))[..], [CoreAction::Refused { .. }]));
    assert_eq!(lapse(&mut fixture, vec![runs(kept, 1)]), [""; 0]);
    let mut pauses = Vec::new();
    for _ in 0..2 {
        let (begun_ms, mut seen) = (fixture.now_ms, Vec::new());
        while seen.is_empty() {
            fixture.request_of("modest", &asked(2));
            let actions = fixture.ticks(1);
            seen = granted(&fixture, &actions);
            fixture.report(vec![runs(kept, 1)]);
        }
        assert_eq!(seen, ["greedy"]);
        pauses.push(fixture.now_ms - begun_ms);
        assert_eq!(lapse(&mut fixture, vec![runs(kept, 1)]), [""; 0]);
    }
    assert!(pauses[0] >= 9_000 && pauses[1] >= 19_000, "{pauses:?}");
}

#[test]
fn lapsed_grants_cost_nothing_where_nobody_else_waits() {
    let mut fixture = CoreFixture::with_node(1);
    for _ in 0..3 {
        fixture.request_of("t", &waits(1));
    }
    for _ in 0..2 {
        assert_eq!(lapse(&mut fixture, vec![]), ["t"]);
    }
}

#[test]
fn no_provisional_leases_while_a_tenant_is_held_back() {
    let mut fixture = CoreFixture::with_node(2);
    fixture.request_of("greedy", &asked(2));
    assert!(matches!(&fixture.request_of("modest", &asked(1))[..], [CoreAction::Refused { .. }]));
    assert_eq!(lapse(&mut fixture, vec![]), [""; 0]);
    fixture.standing = TokenStatus::Provisional;
    let refused = fixture.request_of("unverified", &asked(1)).pop();
    assert!(
        matches!(&refused, Some(CoreAction::Refused { error, .. }) if error.code == Code::NoCapacity),
        "{refused:?}"
    );
    fixture.standing = TokenStatus::Verified;
    let verified = fixture.request_of("modest", &asked(1));
    assert_eq!(granted(&fixture, &verified), ["modest"]);
}
