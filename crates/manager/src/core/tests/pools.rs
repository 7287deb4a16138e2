//! Pools and racks: where leases go first, where they go then, and where they never go.

use proptest::prelude::*;
use sublet_proto::pool::Pool::{self, Balanced, Compute, Memory};

use super::*;

const MIB: u64 = 1 << 20;

fn placed(name: &str, cores: u32, pool: &str, rack: &str) -> NodeDescription {
    NodeDescription { pool: pool.into(), rack: rack.into(), ..node(name, cores) }
}

fn fixture_of(nodes: &[NodeDescription]) -> CoreFixture {
    let mut fixture = CoreFixture::new();
    for (number, description) in nodes.iter().enumerate() {
        fixture.register(description.clone(), number as u128 + 1, Vec::new()).unwrap();
    }
    fixture
}

fn segment(mib: u64) -> LeaseRequest {
    LeaseRequest { memory_bytes: mib * MIB, timeout_ms: 60_000, ..LeaseRequest::default() }
}

fn in_pool(pool: &str, asked: LeaseRequest) -> LeaseRequest {
    LeaseRequest { pool: pool.into(), ..asked }
}

fn beside(node: &str, asked: LeaseRequest) -> LeaseRequest {
    LeaseRequest { near: vec![node.into()], max_nodes: 1, ..asked }
}

#[test]
fn quota_of_a_pool_leaves_its_memory_to_others() {
    let nodes = [placed("m", 1, "memory", "a"), placed("b", 1, "balanced", "a")];
    let mut fixture = fixture_of(&nodes);
    let tenant = fixture.core.tenant_key("t");
    let limit = |fixture: &mut CoreFixture, quota| drop(fixture.event(CoreEvent::Quota(tenant, quota)));
    limit(&mut fixture, Quota { memory_pool_bytes: Some(300 * MIB), ..Quota::default() });
    assert_eq!(fixture.on(&segment(200)), "m");
    // Without a pool of its own, a segment goes elsewhere; with one, it is refused.
    assert_eq!(fixture.on(&segment(200)), "b");
    let refused = fixture.refusal(&in_pool("memory", segment(101)));
    assert_eq!(refused.code, Code::QuotaExceeded);
    let said = "tenant t has 209715200 in the memory pool and may have 314572800 there";
    assert!(refused.message.contains(said), "{refused}");
    assert_eq!(fixture.on(&in_pool("memory", segment(100))), "m");
    // Workers in the pool count, too.
    assert_eq!(fixture.refusal(&in_pool("memory", asked(1))).code, Code::QuotaExceeded);
    // A lease by another manager counts; that of another tenant does not.
    let elsewhere = TenantUse { balanced_pool_bytes: 900 * MIB, ..TenantUse::default() };
    fixture.event(CoreEvent::Elsewhere(tenant, elsewhere));
    limit(&mut fixture, Quota { balanced_pool_bytes: Some(1100 * MIB), ..Quota::default() });
    assert_eq!(fixture.refusal(&in_pool("balanced", segment(1))).code, Code::QuotaExceeded);
    let others = fixture.request_of("other", &in_pool("memory", segment(700)));
    assert!(matches!(others[..], [CoreAction::Granted { .. }]), "{others:?}");
}

#[test]
fn memory_given_back_counts_in_its_pool_no_more() {
    let mut fixture = fixture_of(&[placed("n", 1, "memory", "a")]);
    let tenant = fixture.core.tenant_key("t");
    let quota = Quota { memory_pool_bytes: Some(100 * MIB), ..Quota::default() };
    fixture.event(CoreEvent::Quota(tenant, quota));
    let lease = fixture.grant(&segment(100))[0];
    let described = fixture.core.describe(fixture.core.lease(lease).unwrap());
    assert_eq!(described.pool, "memory");
    // Without a suitable node in another pool, the quota is the reason.
    assert_eq!(fixture.refusal(&segment(1)).code, Code::QuotaExceeded);
    assert_eq!(fixture.core.tenant(tenant).used().memory_pool_bytes, 100 * MIB);
    fixture.gives_back(lease);
    assert_eq!(fixture.core.tenant(tenant).used().memory_pool_bytes, 0);
    assert_eq!(fixture.on(&segment(100)), "n");
}

impl CoreFixture {
    fn on(&mut self, asked: &LeaseRequest) -> String {
        let leases = self.grant(asked);
        assert_eq!(leases.len(), 1);
        let lease = self.core.lease(leases[0]).unwrap();
        self.core.node(lease.node).unwrap().name.to_string()
    }

    fn pool_of(&self, node: &str) -> String {
        self.core.node(self.core.node_key(node).unwrap()).unwrap().info().pool
    }

    /// Node "n" says that one of its leases is over.
    fn gives_back(&mut self, lease: LeaseId) -> Vec<CoreAction> {
        let node = self.core.lease(lease).unwrap().node;
        let active = self.core.leases().filter(|other| other.node == node && other.is_active());
        let reports = active.map(|one| if one.id == lease { over(lease, 1) } else { runs(one.id, 1) });
        self.report(reports.collect()).1
    }
}

#[test]
fn each_kind_of_lease_goes_to_its_pool_then_spills() {
    let pools = ["compute", "memory", "balanced"];
    let nodes = pools.map(|pool| NodeDescription { memory_bytes: 4 * GIB, ..placed(pool, 2, pool, "") });
    let little = asked(2);
    let much = LeaseRequest { memory_bytes: GIB, ..asked(2) };
    for (asked, order) in [
        (little, ["compute", "balanced", "memory"]),
        (much, ["balanced", "compute", "memory"]),
        (segment(3 * 1024), ["memory", "balanced", "compute"]),
    ] {
        let mut fixture = fixture_of(&nodes);
        assert_eq!([(); 3].map(|()| fixture.on(&asked)), order);
        let refused = fixture.refusal(&asked);
        assert_eq!(refused.code, Code::NoCapacity, "{refused}");
    }
}

#[test]
fn named_pool_is_mandatory_and_refusals_name_it() {
    let mut fixture = fixture_of(&[placed("c", 4, "compute", ""), placed("m", 1, "memory", "")]);
    assert_eq!(fixture.on(&in_pool("memory", asked(1))), "m");
    let refused = fixture.refusal(&in_pool("memory", asked(1)));
    assert_eq!(refused.code, Code::NoCapacity);
    assert_eq!(refused.message, "1 cores asked, 0 of 1 free in the memory pool");
    // The pool holds beside a neighbour, too, and over several nodes.
    assert_eq!(fixture.refusal(&beside("c", in_pool("memory", asked(1)))).code, Code::NoCapacity);
    let refused = fixture.refusal(&in_pool("memory", asked(2)));
    assert_eq!(refused.code, Code::InsufficientResources);
    assert!(refused.message.ends_with("all nodes together have 1 in the memory pool"), "{refused}");
    let refused = fixture.refusal(&in_pool("balanced", segment(1)));
    assert_eq!((refused.code, refused.message.as_str()), {
        (Code::InsufficientResources, "no node is there in the balanced pool")
    });
    let refused = fixture.refusal(&in_pool("compute", segment(2 * 1024)));
    assert!(refused.message.ends_with("1073741824 in the compute pool"), "{refused}");
    assert_eq!(fixture.on(&in_pool("compute", segment(1024))), "c");
}

#[test]
fn what_communicates_stays_in_its_rack_until_that_is_full() {
    let mut fixture = fixture_of(&[
        placed("a1", 2, "", "a"),
        placed("a2", 1, "memory", "a"),
        placed("b1", 8, "compute", "b"),
        placed("c1", 9, "compute", "c"),
        placed("none", 20, "compute", ""),
    ]);
    let near = |asked| beside("a1", asked);
    // The leases go beside it, then into its rack in any pool, then where most is free.
    assert_eq!([(); 4].map(|()| fixture.on(&near(asked(1)))), ["a1", "a1", "a2", "none"]);
    // Nodes that name no rack are near no others, not even each other.
    let refused = fixture.refusal(&LeaseRequest { max_nodes: 1, ..asked(21) });
    assert_eq!(refused.code, Code::InsufficientResources);
    assert_eq!(fixture.on(&beside("none", asked(19))), "none");
    assert!(["b1", "c1"].contains(&fixture.on(&beside("none", asked(1))).as_str()));
}

#[test]
fn takes_rack_with_most_capacity_without_a_neighbour() {
    let mut fixture = CoreFixture::new();
    for number in 0..8 {
        let rack = if number < 2 { "small" } else { "large" };
        fixture.register(placed(&format!("{rack}{number}"), 4, "", rack), number + 1, Vec::new()).unwrap();
    }
    // 24 cores are of a higher magnitude than 8, until there are 15.
    let racks: Vec<String> = (0..8).map(|_| fixture.on(&asked(1))).collect();
    assert!(racks.iter().all(|node| node.starts_with("large")), "{racks:?}");
    let rest: BTreeSet<String> = (0..16).map(|_| fixture.on(&asked(1))[..5].to_owned()).collect();
    assert_eq!(rest.len(), 2, "both racks are used, and neither alone");
}

#[test]
fn multi_node_request_prefers_one_rack_and_one_pool() {
    let nodes = [
        placed("a1", 2, "compute", "a"),
        placed("a2", 2, "compute", "a"),
        placed("b1", 3, "compute", "b"),
        placed("b2", 3, "memory", "b"),
    ];
    let on = |asked: &LeaseRequest| {
        let mut fixture = fixture_of(&nodes);
        let leases = fixture.grant(asked);
        let node = |lease: &LeaseId| fixture.core.node(fixture.core.lease(*lease).unwrap().node).unwrap();
        leases.iter().map(|lease| node(lease).name.to_string()).collect::<BTreeSet<_>>()
    };
    let near = |cores| LeaseRequest { near: vec!["a1".into()], ..asked(cores) };
    let set = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    assert_eq!(on(&near(4)), set(&["a1", "a2"]));
    assert_eq!(on(&asked(7)), set(&["a1", "a2", "b1"]), "the compute pool has them");
    assert_eq!(on(&in_pool("compute", asked(5))).len(), 2);
    assert_eq!(on(&asked(10)).len(), 4);
    let refused = fixture_of(&nodes).refusal(&in_pool("compute", asked(8)));
    assert!(refused.message.contains("all nodes together have 7 in the compute pool"), "{refused}");
}

#[test]
fn warm_nodes_are_sought_in_the_pool_and_rack() {
    let racks = ["a", "b", "c", "d"];
    let nodes: Vec<_> = (0..40)
        .map(|number| {
            let pool = if number % 2 == 0 { "compute" } else { "memory" };
            placed(&format!("n{number}"), 2, pool, racks[number / 10])
        })
        .collect();
    let mut fixture = fixture_of(&nodes);
    let warm = |asked| LeaseRequest { warm: "app/f".into(), max_nodes: 1, ..asked };
    let home = fixture.on(&warm(asked(1)));
    assert_eq!((fixture.on(&warm(asked(1))), fixture.pool_of(&home)), (home.clone(), "compute".into()));
    // All of the rack is busy but for two nodes: the same one is chosen each time.
    let in_rack: BTreeSet<String> = (0..2)
        .map(|_| fixture.on(&LeaseRequest { near: vec!["n11".into(), "gone".into()], ..warm(asked(1)) }))
        .collect();
    assert_eq!(in_rack, BTreeSet::from(["n11".to_owned()]), "beside it first");
    let next =
        |fixture: &mut CoreFixture| fixture.on(&LeaseRequest { near: vec!["n11".into()], ..warm(asked(1)) });
    let (first, second) = (next(&mut fixture), next(&mut fixture));
    assert_eq!(first, second);
    assert!(nodes[10..20].iter().any(|node| node.name == first && node.pool == "compute"), "{first}");
}

#[test]
fn node_without_a_named_pool_moves_between_virtual_pools() {
    let mut fixture = CoreFixture::with_virtual_pools(GIB / 4);
    fixture.register(placed("n", 4, "", ""), 1, Vec::new()).unwrap();
    fixture.register(placed("said", 4, "compute", ""), 2, Vec::new()).unwrap();
    assert_eq!((fixture.pool_of("n"), fixture.pool_of("said")), ("balanced".into(), "compute".into()));
    // A request may wait for the pool that the node may come into.
    let refused = fixture.refusal(&in_pool("memory", segment(600)));
    assert_eq!(refused.code, Code::NoCapacity, "{refused}");
    let waits = LeaseRequest { wait_ms: 5_000, ..in_pool("memory", segment(600)) };
    assert!(fixture.request_of("u", &waits).is_empty());
    let cores = fixture.grant(&beside("n", asked(3)))[0];
    assert_eq!(fixture.pool_of("n"), "memory");
    let granted = fixture.ticks(1);
    assert!(matches!(&granted[..], [CoreAction::Granted { .. }]), "{granted:?}");
    fixture.report(vec![runs(cores, 1)]);
    fixture.core.nodes.assert_consistent();
    fixture.gives_back(cores);
    assert_eq!(fixture.pool_of("n"), "compute", "more than half of its memory is gone, and no core");
}

#[test]
fn refusal_after_a_wait_names_the_pool() {
    let mut fixture = fixture_of(&[placed("n", 1, "compute", ""), placed("m", 1, "memory", "")]);
    fixture.grant(&in_pool("compute", asked(1)));
    let (cores, memory) = (in_pool("compute", asked(1)), in_pool("compute", segment(1024)));
    for asked in [cores, memory] {
        assert!(fixture.request_of("u", &LeaseRequest { wait_ms: 1_000, ..asked }).is_empty());
    }
    let said: Vec<String> = fixture
        .ticks(2)
        .into_iter()
        .map(|action| match action {
            CoreAction::Refused { error, .. } if error.code == Code::NoCapacity => error.message,
            other => panic!("{other:?}"),
        })
        .collect();
    let what = ["1 cores in the compute pool", "1073741824 bytes of memory in the compute pool"];
    assert_eq!(said, what.map(|what| format!("{what} did not become free within 1000 ms")));
}

#[test]
fn waiting_for_one_pool_bounds_overtakes_only_in_that_pool() {
    let mut fixture = fixture_of(&[placed("n", 2, "compute", ""), placed("m", 1000, "memory", "")]);
    let small = |pool: &str| in_pool(pool, asked(1));
    let mut held: Vec<LeaseId> = (0..2).map(|_| fixture.grant(&small("compute"))[0]).collect();
    let large = LeaseRequest { wait_ms: 600_000, ..in_pool("compute", asked(2)) };
    assert!(fixture.request_of("large", &large).is_empty());
    for _ in 0..2 * MAX_OVERTAKES {
        fixture.grant(&small("memory"));
    }
    for _ in 0..MAX_OVERTAKES {
        fixture.report(held.iter().map(|&id| runs(id, 1)).collect());
        assert!(fixture.gives_back(held.remove(0)).is_empty());
        held.push(fixture.grant(&small("compute"))[0]);
    }
    fixture.report(held.iter().map(|&id| runs(id, 1)).collect());
    fixture.gives_back(held.remove(0));
    let refused = fixture.refusal(&small("compute"));
    assert!(refused.message.ends_with("it is the turn of another in the compute pool"), "{refused}");
    let refused = fixture.refusal(&in_pool("memory", asked(1001)));
    assert_eq!(refused.code, Code::InsufficientResources, "no request has its turn there: {refused}");
    // Other requests are served: those that may go outside of the pool, and those that wait as well.
    assert_eq!(fixture.on(&small("memory")), "m");
    assert_eq!(fixture.on(&asked(1)), "m");
    let whole = LeaseRequest { max_nodes: 1, ..asked(1000) };
    assert!(fixture.request_of("whole", &LeaseRequest { wait_ms: 600_000, ..whole }).is_empty());
    assert!(fixture.request_of("other", &LeaseRequest { wait_ms: 600_000, ..small("compute") }).is_empty());
    let granted = fixture.gives_back(held.remove(0));
    let whose: Vec<_> = granted
        .iter()
        .map(|action| match action {
            CoreAction::Granted { tenant, .. } => fixture.core.tenant(*tenant).name.to_string(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(whose, ["large"]);
}

#[test]
fn agent_cannot_register_an_unlimited_number_of_racks() {
    let mut fixture = CoreFixture::new();
    for number in 0..MAX_RACKS {
        let rack = format!("r{number}");
        fixture.register(placed(&rack, 1, "", &rack), number as u128 + 1, Vec::new()).unwrap();
    }
    let error = fixture.register(placed("one", 1, "", "more"), 9_999, Vec::new()).unwrap_err();
    assert!(error.code == Code::InvalidArgument && error.message.contains("more"), "{error}");
    fixture.register(placed("one", 1, "", "r7"), 9_999, Vec::new()).unwrap();
    // A rack that no node names any more frees a slot for another.
    fixture.register(placed("r3", 1, "", "r7"), 4, Vec::new()).unwrap();
    fixture.register(placed("one", 1, "", "more"), 9_999, Vec::new()).unwrap();
    fixture.core.nodes.assert_consistent();
    for wrong in [placed("x", 1, "fast", ""), placed("x", 1, "", &"r".repeat(65))] {
        assert_eq!(fixture.register(wrong, 1, Vec::new()).unwrap_err().code, Code::InvalidArgument);
    }
}

const RACKS: [&str; 4] = ["", "a", "b", "c"];

/// Returns the pools in which a lease may be, the best first: stated a second time, independently of the code.
fn expected_order(asked: &LeaseRequest) -> Vec<Pool> {
    let order = match (asked.cores, asked.memory_bytes) {
        (0, _) => [Memory, Balanced, Compute],
        (cores, bytes) if bytes.div_ceil(u64::from(cores)) <= 256 * MIB => [Compute, Balanced, Memory],
        _ => [Balanced, Compute, Memory],
    };
    order.into_iter().filter(|pool| asked.pool.is_empty() || asked.pool == pool.name()).collect()
}

/// Returns the nodes that may be chosen, by a look at all of them.
fn expected(core: &Core, asked: &LeaseRequest) -> Vec<String> {
    let order = expected_order(asked);
    let fits = |node: &&ManagedNode| {
        let free = node.free();
        free.cores >= asked.cores && free.memory_bytes >= asked.memory_bytes && order.contains(&node.pool)
    };
    let fitting: Vec<&ManagedNode> = core.nodes().filter(fits).collect();
    let names = |nodes: &[&ManagedNode]| nodes.iter().map(|node| node.name.to_string()).collect::<Vec<_>>();
    let near = asked.near.iter().filter_map(|name| core.node(core.node_key(name)?));
    if let Some(beside) = near.clone().find(|near| fitting.iter().any(|node| node.name == near.name)) {
        return names(&[beside]);
    }
    let racks = near.map(|node| node.description.rack.clone()).filter(|rack| !rack.is_empty());
    for rack in racks.map(Some).chain([None]) {
        for &pool in &order {
            let mut there: Vec<&ManagedNode> =
                fitting.iter().copied().filter(|node| node.pool == pool).collect();
            there.retain(|node| rack.as_ref().is_none_or(|rack| *rack == node.description.rack));
            if rack.is_none() && asked.warm.is_empty() {
                let free = |node: &ManagedNode| {
                    let rack = core.nodes().filter(|other| other.description.rack == node.description.rack);
                    let free: u64 = rack
                        .map(|node| match asked.cores {
                            0 => node.free().memory_bytes,
                            _ => node.free().cores.into(),
                        })
                        .sum();
                    free.ilog2()
                };
                let most = there.iter().map(|node| free(node)).max();
                there.retain(|node| Some(free(node)) == most);
            }
            if !there.is_empty() {
                return names(&there);
            }
        }
    }
    Vec::new()
}

proptest! {
    /// A lease goes to a node of the best step that has one with enough free, and is refused only if none has.
    #[test]
    fn placement_follows_the_steps_and_finds_every_fit(
        nodes in proptest::collection::vec((1u32..9, 1u64..9, 0usize..4, 0usize..4), 1..12),
        requests in proptest::collection::vec(
            (0u32..9, 1u64..5_000, 0usize..6, 0usize..14, any::<bool>()), 1..40
        ),
    ) {
        let pool_name = |pool: usize| Pool::ALL.get(pool).filter(|&&pool| pool != Pool::Flash).map(Pool::to_string).unwrap_or_default();
        let described = nodes.iter().enumerate().map(|(number, &(cores, gib, pool, rack))| NodeDescription {
            memory_bytes: gib * GIB / 4,
            ..placed(&format!("n{number}"), cores, &pool_name(pool), RACKS[rack])
        });
        let mut fixture = fixture_of(&described.collect::<Vec<_>>());
        for (cores, mib, pool, near, is_warm) in requests {
            let memory_bytes = (mib * MIB).max(u64::from(cores) * MIB);
            let asked = LeaseRequest {
                cores,
                memory_bytes,
                package: if cores == 0 { String::new() } else { "p".into() },
                max_nodes: 1,
                pool: pool_name(pool),
                near: vec![format!("n{near}"), format!("n{}", near / 2)],
                warm: if is_warm && cores > 0 { "app/f".into() } else { String::new() },
                ..LeaseRequest::default()
            };
            let among = expected(&fixture.core, &asked);
            match fixture.request_of("t", &asked).pop() {
                Some(CoreAction::Granted { leases, .. }) => {
                    let node = fixture.core.lease(leases[0]).unwrap().node;
                    let name = fixture.core.node(node).unwrap().name.to_string();
                    prop_assert!(among.contains(&name), "{asked:?} went to {name}, not to one of {among:?}");
                }
                Some(CoreAction::Refused { .. }) => prop_assert_eq!(among, Vec::<String>::new()),
                other => panic!("{other:?}"),
            }
            fixture.core.nodes.assert_consistent();
        }
    }
}
