//! Tests of admission: budgets, displacement of connections and time limits.

use proptest::prelude::*;

use super::*;

const LIMITS: AdmissionLimits = AdmissionLimits {
    total: 24,
    unidentified: ClassBudget { reserved: 6, most: 6, each: 3 },
    operator: ClassBudget { reserved: 2, most: 24, each: 24 },
    peers: ClassBudget { reserved: 4, most: 10, each: 2 },
    tenants: ClassBudget { reserved: 0, most: 24, each: 5 },
    handshake_ms: 10,
    first_request_ms: 20,
    idle_ms: 100,
};

fn address(last: u8) -> Party {
    Party::at([192, 0, 2, last].into())
}

fn tenant(name: &str) -> Party {
    Party::Tenant(name.into())
}

/// Admits a connection with a number of the caller as its handle.
fn enter(admission: &mut Admission<u32>, party: Party, handle: u32) -> (ConnectionId, Option<u32>) {
    admission.enter(0, party, handle).unwrap()
}

#[test]
fn address_sheds_its_own_oldest_connection() {
    let mut admission = Admission::new(LIMITS);
    let shed: Vec<_> = (0..5).map(|handle| enter(&mut admission, address(1), handle).1).collect();
    assert_eq!(shed, [None, None, None, Some(0), Some(1)]);
    assert_eq!(enter(&mut admission, address(2), 9).1, None);
}

#[test]
fn full_class_sheds_the_oldest_of_the_largest_party() {
    let mut admission = Admission::new(LIMITS);
    let lone = enter(&mut admission, address(9), 100).0;
    for (handle, last) in [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2)] {
        enter(&mut admission, address(last), handle);
    }
    let shed: Vec<_> = (3..6).map(|last| enter(&mut admission, address(last), 200).1).collect();
    assert_eq!(shed, [Some(0), Some(1), Some(3)]);
    assert_eq!(admission.leave(lone), Some(100), "a party with one connection kept it");
}

#[test]
fn unidentified_connections_leave_reserved_ones() {
    let mut admission = Admission::new(LIMITS);
    for handle in 0..100 {
        enter(&mut admission, address(handle as u8), handle);
    }
    for (name, each) in [("a", 5), ("b", 5), ("c", 2)] {
        for _ in 0..each {
            let (id, _) = enter(&mut admission, address(200), 0);
            admission.identify(id, tenant(name), 0).unwrap();
        }
    }
    let (id, _) = enter(&mut admission, address(200), 0);
    let refused = admission.identify(id, tenant("d"), 0).unwrap_err();
    assert_eq!(refused, Refusal::Class(Class::Tenants, 12));
    for number in 0..4 {
        let (id, _) = enter(&mut admission, address(201), 0);
        admission.identify(id, Party::Peer(format!("node-{number}").into()), 0).unwrap();
    }
    for _ in 0..2 {
        assert_eq!(enter(&mut admission, Party::Operator, 1).1, None);
    }
}

#[test]
fn tenant_is_limited_to_its_budget() {
    let mut admission = Admission::new(LIMITS);
    for _ in 0..5 {
        let (id, _) = enter(&mut admission, address(1), 0);
        admission.identify(id, tenant("a"), 0).unwrap();
    }
    let (id, _) = enter(&mut admission, address(1), 0);
    let refused = admission.identify(id, tenant("a"), 0).unwrap_err();
    assert_eq!(refused.to_string(), "tenant a has 5 connections, which is the maximum");
    admission.identify(id, tenant("b"), 0).unwrap();
}

#[test]
fn ipv6_network_counts_as_one_address() {
    let at = |text: &str| Party::at(text.parse().unwrap());
    assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:1"));
    assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
    assert_eq!(at("::ffff:192.0.2.1"), at("192.0.2.1"));
}

#[test]
fn expires_by_handshake_first_request_and_idleness() {
    let mut admission = Admission::new(LIMITS);
    let [_silent, shaken, busy, idle] =
        [0, 1, 2, 3].map(|handle| enter(&mut admission, address(handle as u8), handle).0);
    for id in [shaken, busy, idle] {
        admission.shaken(id, 5);
    }
    for id in [busy, idle] {
        admission.identify(id, tenant("a"), 5).unwrap();
    }
    // Requests without a valid token do not extend the limit.
    admission.begin(shaken);
    admission.end(shaken, 24);
    admission.begin(busy);
    let at = |admission: &mut Admission<u32>, now_ms| -> Vec<_> {
        admission.expire(now_ms).into_iter().map(|(_, why, handle)| (why, handle)).collect()
    };
    assert_eq!(at(&mut admission, 9), []);
    assert_eq!(at(&mut admission, 10), [(Overdue::Handshake, 0)]);
    assert_eq!(at(&mut admission, 25), [(Overdue::FirstRequest, 1)]);
    assert_eq!(at(&mut admission, 105), [(Overdue::Idle, 3)]);
    admission.end(busy, 1000);
    assert_eq!(at(&mut admission, 1099), []);
    assert_eq!(at(&mut admission, 1100), [(Overdue::Idle, 2)]);
}

#[test]
fn logs_the_first_refusal_and_then_summaries() {
    let mut log = RefusalLog::default();
    assert_eq!(log.note(0, "a"), Some(1));
    assert_eq!((1..1000).find_map(|ms| log.note(ms, "a")), None);
    assert_eq!(log.note(1, "b"), Some(1));
    assert_eq!(log.due(SUMMARY_MS), [("a".to_owned(), 999)]);
    assert_eq!(log.note(SUMMARY_MS + 1, "a"), None);
    assert_eq!(log.note(3 * SUMMARY_MS, "a"), Some(2));
    assert_eq!(log.due(9 * SUMMARY_MS), []);
    assert_eq!(log.note(9 * SUMMARY_MS + 1, "a"), Some(1));
}

#[test]
fn log_of_refusals_has_a_bounded_number_of_kinds() {
    let mut log = RefusalLog::default();
    for _ in 0..2 {
        for kind in 0..1000 {
            log.note(0, &format!("kind {kind}"));
        }
    }
    let due = log.due(SUMMARY_MS);
    assert!(due.len() <= 65, "{} kinds", due.len());
    assert_eq!(due.iter().map(|(_, count)| count).sum::<u64>(), 2000 - due.len() as u64);
}

#[derive(Clone, Debug)]
enum Step {
    Enter(u8),
    Identify(usize, u8),
    Shaken(usize),
    Request(usize),
    Leave(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..12).prop_map(Step::Enter),
        3 => (any::<usize>(), 0u8..9).prop_map(|(which, party)| Step::Identify(which, party)),
        1 => any::<usize>().prop_map(Step::Shaken),
        1 => any::<usize>().prop_map(Step::Request),
        1 => any::<usize>().prop_map(Step::Leave),
        1 => (0u64..40).prop_map(Step::Wait),
    ]
}

fn identity(number: u8) -> Party {
    match number {
        0 => Party::Operator,
        1..=3 => Party::Peer(format!("node-{number}").into()),
        _ => tenant(&format!("t{number}")),
    }
}

proptest! {
    #[test]
    fn budgets_hold_for_every_sequence(steps in proptest::collection::vec(step(), 1..400)) {
        let mut admission = Admission::new(LIMITS);
        // Model: the party of each connection.
        let mut there: BTreeMap<ConnectionId, (Party, bool)> = BTreeMap::new();
        let mut now_ms = 0;
        for step in steps {
            let pick = |which: usize| (!there.is_empty()).then(|| *there.keys().nth(which % there.len()).unwrap());
            match step {
                Step::Enter(who) => {
                    let party = match who { 0 => Party::Operator, 1 => Party::User(7), _ => address(who) };
                    let before = there.len();
                    // The handle is the number that the connection will have.
                    let handle = ConnectionId(admission.next);
                    match admission.enter(now_ms, party.clone(), handle) {
                        Ok((id, shed)) => {
                            prop_assert_eq!(id, handle);
                            if let Some(shed) = shed {
                                let (of, is_identified) = there.remove(&shed).expect("only what is there is shed");
                                prop_assert!(!is_identified);
                                prop_assert_eq!(of.class(), party.class());
                            }
                            there.insert(id, (party, false));
                        }
                        // The operator is refused only if all other connections are identified.
                        Err(_) => {
                            prop_assert_eq!(&party, &Party::Operator);
                            prop_assert!(before >= LIMITS.total - LIMITS.unidentified.reserved - LIMITS.peers.reserved);
                        }
                    }
                }
                Step::Identify(which, who) => if let Some(id) = pick(which) {
                    let done = admission.identify(id, identity(who), now_ms);
                    let entry = there.get_mut(&id).expect("it was picked");
                    if done.is_ok() && !entry.1 {
                        *entry = (identity(who), true);
                    }
                }
                Step::Shaken(which) => if let Some(id) = pick(which) { admission.shaken(id, now_ms) }
                Step::Request(which) => if let Some(id) = pick(which) {
                    admission.begin(id);
                    admission.end(id, now_ms);
                }
                Step::Leave(which) => if let Some(id) = pick(which) {
                    prop_assert_eq!(admission.leave(id), Some(id));
                    there.remove(&id);
                }
                Step::Wait(ms) => {
                    now_ms += ms;
                    for (party, _, id) in admission.expire(now_ms) {
                        prop_assert_eq!(there.remove(&id).map(|(party, _)| party), Some(party));
                    }
                }
            }
            for class in Class::ALL {
                let used = there.values().filter(|(party, _)| party.class() == class).count();
                prop_assert_eq!(used, admission.used(class));
                prop_assert!(used <= LIMITS.of(class).most);
            }
            for (party, _) in there.values() {
                let own = there.values().filter(|(other, _)| other == party).count();
                prop_assert!(own <= LIMITS.of(party.class()).each);
            }
            let claimed: usize =
                Class::ALL.into_iter().map(|class| admission.used(class).max(LIMITS.of(class).reserved)).sum();
            prop_assert!(claimed <= LIMITS.total);
        }
    }
}
