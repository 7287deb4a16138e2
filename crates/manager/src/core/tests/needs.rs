//! Folders, temporary space and isolations: requests are placed only on nodes that lend them.

use sublet_proto::v1::{DeviceCount, LentDevices, LentFolder, Needs, SecretUse};
use sublet_proto::version;

use super::*;

fn lending(name: &str, cores: u32, folders: &[&str], temporary_bytes: u64) -> NodeDescription {
    let folder = |name: &&str| LentFolder { name: name.to_string(), writable: false };
    let folders = folders.iter().map(folder).collect();
    NodeDescription { folders, temporary_bytes, messages: version::NEEDS, ..node(name, cores) }
}

fn needing(cores: u32, folders: &[&str], temporary_bytes: u64) -> LeaseRequest {
    let folders = folders.iter().map(ToString::to_string).collect();
    LeaseRequest { needs: Some(Needs { folders, temporary_bytes, ..Needs::default() }), ..asked(cores) }
}

fn fixture() -> CoreFixture {
    let mut fixture = CoreFixture::new();
    for (number, description) in [
        lending("plain", 8, &[], 0),
        lending("small", 1, &["data"], 1 << 20),
        lending("both", 2, &["data", "work"], 1 << 20),
    ]
    .into_iter()
    .enumerate()
    {
        fixture.register(description, number as u128 + 1, Vec::new()).unwrap();
    }
    fixture
}

fn nodes(fixture: &mut CoreFixture, asked: &LeaseRequest) -> Vec<String> {
    let leases = fixture.grant(asked);
    let name = |id: &LeaseId| {
        let lease = fixture.core.lease(*id).unwrap();
        assert_eq!(Some(lease.needs.as_ref()), asked.needs.as_ref());
        fixture.core.node(lease.node).unwrap().name.to_string()
    };
    let mut names: Vec<_> = leases.iter().map(name).collect();
    names.sort();
    names
}

#[test]
fn lease_is_placed_only_on_nodes_that_lend_its_folders() {
    let mut fixture = fixture();
    assert_eq!(nodes(&mut fixture, &needing(1, &["work"], 0)), ["both"]);
    assert_eq!(nodes(&mut fixture, &needing(2, &["data"], 0)), ["both", "small"]);
    let refused = fixture.refusal(&needing(1, &["data"], 0));
    assert_eq!(refused.code, Code::NoCapacity);
    assert!(refused.message.contains("which have 3 cores, 0 of them free"), "{refused}");
    assert_eq!(nodes(&mut fixture, &needing(8, &[], 2 << 20)), ["plain"]);
}

#[test]
fn refusal_names_what_no_node_lends() {
    let mut fixture = fixture();
    for (asked, named) in [
        (needing(1, &["data", "tapes"], 0), "folder \"tapes\""),
        (needing(1, &["data"], 2 << 20), "2097152 bytes of temporary space"),
        (needing(4, &["data"], 0), "4 cores"),
    ] {
        let refused = fixture.refusal(&asked);
        assert_eq!(refused.code, Code::InsufficientResources, "{refused}");
        assert!(refused.message.contains(named), "{refused}");
    }
}

fn isolating(name: &str, cores: u32, isolations: &[&str]) -> NodeDescription {
    let isolations = isolations.iter().map(ToString::to_string).collect();
    NodeDescription { isolations, ..lending(name, cores, &[], 0) }
}

fn isolated(cores: u32, isolation: &str) -> LeaseRequest {
    let needs = Needs { isolation: isolation.into(), ..Needs::default() };
    LeaseRequest { needs: Some(needs), ..asked(cores) }
}

#[test]
fn lease_is_placed_only_where_operator_allows_its_isolation() {
    let mut fixture = CoreFixture::new();
    for (number, node) in [
        isolating("usual", 2, &[]),
        isolating("crun", 1, &["container", "crun"]),
        isolating("weak", 4, &["weak"]),
        isolating("process", 3, &["process"]),
    ]
    .into_iter()
    .enumerate()
    {
        fixture.register(node, number as u128 + 1, Vec::new()).unwrap();
    }
    assert_eq!(nodes(&mut fixture, &isolated(1, "crun")), ["crun"]);
    let refused = fixture.refusal(&isolated(1, "crun"));
    assert_eq!(refused.code, Code::NoCapacity, "other nodes have free cores: {refused}");
    assert_eq!(nodes(&mut fixture, &isolated(2, "container")), ["usual"]);
    assert_eq!(nodes(&mut fixture, &isolated(3, "process")), ["process"]);
    assert_eq!(nodes(&mut fixture, &isolated(4, "weak")), ["weak"]);
    let refused = fixture.refusal(&isolated(1, "runc"));
    assert_eq!(refused.code, Code::InsufficientResources, "{refused}");
    assert!(refused.message.contains("runc"), "{refused}");
}

#[test]
fn earlier_agents_get_no_leases_with_needs() {
    let mut fixture = CoreFixture::new();
    let old = NodeDescription { messages: 0, ..lending("old", 8, &[], 0) };
    fixture.register(old.clone(), 1, Vec::new()).unwrap();
    let secrets = vec![SecretUse { variable: "KEY".into(), secret: "key".into() }];
    let secret = LeaseRequest { needs: Some(Needs { secrets, ..Needs::default() }), ..asked(1) };
    for asked in [needing(1, &[], 1 << 20), secret.clone()] {
        let refused = fixture.refusal(&asked);
        assert_eq!(refused.code, Code::VersionMismatch, "{refused}");
        assert!(
            refused.message.contains("revision 0") && refused.message.contains("revision 1"),
            "{refused}"
        );
    }
    fixture.grant(&asked(1));
    fixture.register(lending("new", 2, &[], 0), 2, Vec::new()).unwrap();
    assert_eq!(nodes(&mut fixture, &secret), ["new"]);
}

#[test]
fn global_manager_has_a_group_for_each_lending() {
    let mut fixture = fixture();
    fixture.register(lending("more", 1, &["data"], 1 << 20), 9, Vec::new()).unwrap();
    let groups = fixture.core.groups();
    let lent: Vec<_> = groups.iter().map(|group| (group.folders.len(), group.all.unwrap().cores)).collect();
    assert_eq!(lent, [(0, 8), (1, 2), (2, 2)]);
}

#[test]
fn needs_are_those_of_the_ticket_after_a_restart() {
    let mut before = fixture();
    let leases = before.grant(&needing(1, &["work"], 1 << 20));
    let described = before.core.describe(before.core.lease(leases[0]).unwrap());
    let mut after = CoreFixture::of_epoch(2);
    let brought = AgentLease { lease: Box::new(described), report: runs(leases[0], 1), remaining_ms: 10_000 };
    after.register(lending("both", 2, &["data", "work"], 1 << 20), 3, vec![brought]).unwrap();
    let needs = &after.core.lease(leases[0]).unwrap().needs;
    assert_eq!((needs.folders.as_slice(), needs.temporary_bytes), (&["work".to_owned()][..], 1 << 20));
}

fn with_devices(name: &str, cores: u32, kind: &str, names: &[&str]) -> NodeDescription {
    let names = names.iter().map(ToString::to_string).collect();
    let lent_devices = vec![LentDevices { kind: kind.into(), names }];
    NodeDescription { lent_devices, messages: version::DEVICES, ..node(name, cores) }
}

fn wanting(cores: u32, kind: &str, count: u32) -> LeaseRequest {
    let devices = vec![DeviceCount { kind: kind.into(), count }];
    LeaseRequest { needs: Some(Needs { devices, ..Needs::default() }), ..asked(cores) }
}

#[test]
fn devices_are_counted_on_their_node_until_the_lease_ends() {
    let mut fixture = CoreFixture::new();
    fixture.register(node("plain", 8), 1, Vec::new()).unwrap();
    fixture.register(with_devices("a", 4, "rocm", &["0", "1"]), 2, Vec::new()).unwrap();
    let leases = fixture.grant(&wanting(1, "gpu", 1));
    let lease = fixture.core.lease(leases[0]).unwrap();
    assert_eq!(
        lease.needs.devices,
        [DeviceCount { kind: "rocm".into(), count: 1 }],
        "as the node calls them"
    );
    let node = fixture.core.node(lease.node).unwrap();
    assert_eq!((&*node.name, fixture.core.info(node).devices_leased[0].count), ("a", 1));
    let busy = fixture.refusal(&wanting(1, "rocm", 2));
    assert_eq!(busy.code, Code::NoCapacity);
    assert!(busy.message.contains("1 of 2 are free"), "{busy}");
    for (wrong, named) in [
        (wanting(1, "rocm", 3), "no node lends 3 devices of the kind \"rocm\""),
        (wanting(1, "tpu", 1), "no node lends a device of the kind \"tpu\""),
        (wanting(5, "rocm", 1), "which have 4 cores"),
    ] {
        let refused = fixture.refusal(&wrong);
        assert_eq!(refused.code, Code::InsufficientResources, "{refused}");
        assert!(refused.message.contains(named), "{refused}");
    }
    fixture.grant(&wanting(1, "rocm", 1));
    assert_eq!(fixture.refusal(&wanting(1, "gpu", 1)).code, Code::NoCapacity);
    assert_eq!(fixture.grant(&asked(1)).len(), 1, "cores without devices are free");
}

#[test]
fn request_that_waits_for_a_device_bars_no_other() {
    let mut fixture = CoreFixture::new();
    fixture.register(node("plain", 400), 1, Vec::new()).unwrap();
    fixture.register(with_devices("a", 1, "rocm", &["0"]), 2, Vec::new()).unwrap();
    fixture.grant(&wanting(1, "rocm", 1));
    let waiting = LeaseRequest { wait_ms: 600_000, ..wanting(1, "rocm", 1) };
    assert!(fixture.request_of("waits", &waiting).is_empty());
    for _ in 0..2 * MAX_OVERTAKES {
        assert_eq!(fixture.grant(&asked(1)).len(), 1);
    }
    let brief = LeaseRequest { wait_ms: 500, ..wanting(1, "rocm", 1) };
    assert!(fixture.request_of("brief", &brief).is_empty());
    let ended = fixture.ticks(1);
    let message = ended.into_iter().find_map(|action| match action {
        CoreAction::Refused { error, .. } => Some(error.message),
        _ => None,
    });
    assert_eq!(
        message.unwrap(),
        "1 cores with 1 devices of the kind \"rocm\" did not become free within 500 ms"
    );
}
