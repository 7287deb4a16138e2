//! Leases that had better be somewhere.

use super::*;

fn near(names: &[&str], asked: LeaseRequest) -> LeaseRequest {
    LeaseRequest { near: names.iter().map(ToString::to_string).collect(), max_nodes: 1, ..asked }
}

fn warm(key: &str, asked: LeaseRequest) -> LeaseRequest {
    LeaseRequest { warm: key.into(), max_nodes: 1, ..asked }
}

fn with_nodes(count: u128, cores: u32) -> CoreFixture {
    let mut fixture = CoreFixture::new();
    for number in 0..count {
        fixture.register(node(&format!("n{number}"), cores), number + 1, Vec::new()).unwrap();
    }
    fixture
}

impl CoreFixture {
    fn granted_on(&mut self, asked: &LeaseRequest) -> String {
        let leases = self.grant(asked);
        let lease = self.core.lease(leases[0]).unwrap();
        self.core.node(lease.node).unwrap().name.to_string()
    }
}

#[test]
fn lease_is_beside_its_neighbours_while_they_have_capacity() {
    let mut fixture = with_nodes(20, 2);
    for _ in 0..2 {
        assert_eq!(fixture.granted_on(&near(&["gone", "n7", "n3"], asked(1))), "n7");
    }
    for _ in 0..2 {
        assert_eq!(fixture.granted_on(&near(&["gone", "n7", "n3"], asked(1))), "n3");
    }
    let elsewhere = fixture.granted_on(&near(&["gone", "n7", "n3"], asked(1)));
    assert!(elsewhere != "n7" && elsewhere != "n3", "{elsewhere}");
    let too_much = LeaseRequest { memory_bytes: GIB, ..asked(1) };
    assert_ne!(fixture.granted_on(&near(&[elsewhere.as_str()], too_much)), elsewhere);
}

#[test]
fn a_segment_is_beside_whoever_accesses_it() {
    let mut fixture = with_nodes(20, 2);
    let segment = LeaseRequest { memory_bytes: GIB / 2, ..LeaseRequest::default() };
    let asked = LeaseRequest { near: vec!["n5".into(), "n6".into()], ..segment };
    let on: Vec<String> = (0..4).map(|_| fixture.granted_on(&asked)).collect();
    assert_eq!(on, ["n5", "n5", "n6", "n6"]);
    assert!(!["n5", "n6"].contains(&fixture.granted_on(&asked).as_str()));
}

#[test]
fn leases_of_one_key_meet_on_the_same_nodes() {
    let mut fixture = with_nodes(50, 4);
    let first = fixture.granted_on(&warm("app/train", asked(1)));
    for _ in 0..3 {
        assert_eq!(fixture.granted_on(&warm("app/train", asked(1))), first);
    }
    let second = fixture.granted_on(&warm("app/train", asked(1)));
    assert_ne!(second, first, "it was full");
    assert_eq!(fixture.granted_on(&warm("app/train", asked(1))), second);
    let others: BTreeSet<String> =
        (0..20).map(|number| fixture.granted_on(&warm(&format!("app-{number}/f"), asked(1)))).collect();
    assert!(others.len() > 5, "keys do not spread: {others:?}");
}

#[test]
fn prefers_neighbours_to_warm_nodes_within_what_is_possible() {
    let mut fixture = with_nodes(10, 1);
    let key = "app/f";
    let home = fixture.granted_on(&warm(key, asked(1)));
    let other = if home == "n1" { "n2" } else { "n1" };
    assert_eq!(fixture.granted_on(&near(&[other], warm(key, asked(1)))), other);
    // Two cores are on two nodes, whatever nodes the request prefers.
    let two = LeaseRequest { near: vec!["n3".into()], warm: key.into(), ..asked(2) };
    assert_eq!(fixture.grant(&two).len(), 2);
    let draining = fixture
        .core
        .node_key("n9")
        .map(|_| fixture.refusal(&near(&["n9"], LeaseRequest { max_nodes: 1, ..asked(2) })));
    assert_eq!(draining.unwrap().code, Code::InsufficientResources);
}

#[test]
fn a_node_of_another_kind_is_no_neighbour() {
    let mut fixture = with_nodes(2, 2);
    let arm = NodeDescription { architecture: "aarch64".into(), ..node("arm", 4) };
    fixture.register(arm, 9, Vec::new()).unwrap();
    assert_ne!(fixture.granted_on(&near(&["arm"], asked(1))), "arm");
}
