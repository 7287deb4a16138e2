//! Control messages as managers, agents and clients decode them, and values computed from them: a bill, a node's units.

use sublet_proto::{decode, price, pu, v1};

use crate::{round_trip, values};

/// Decodes the message of a kind; the first byte is the kind.
///
/// # Panics
/// If it is not the same after a round trip, or a value computed from it is inconsistent.
pub fn run(input: &[u8]) {
    let Some((kind, bytes)) = values::<(u8, &[u8])>(input) else { return };
    match kind % 16 {
        0 => round_trip::<v1::PackageChunk>(bytes),
        1 => round_trip::<v1::DeployReply>(bytes),
        2 => round_trip::<v1::ResolveRequest>(bytes),
        3 => round_trip::<v1::PackageInfo>(bytes),
        4 => round_trip::<v1::PackageList>(bytes),
        5 => round_trip::<v1::LeaseRequest>(bytes),
        6 => round_trip::<v1::LeaseGrant>(bytes),
        7 => round_trip::<v1::ListLeasesRequest>(bytes),
        8 => leases(bytes),
        9 => round_trip::<v1::NodeList>(bytes),
        10 => round_trip::<v1::BillRequest>(bytes),
        11 => round_trip::<v1::BillReply>(bytes),
        12 => node(bytes),
        13 => round_trip::<v1::NodeRegistration>(bytes),
        14 => round_trip::<v1::NodeReport>(bytes),
        _ => round_trip::<v1::NodeReportReply>(bytes),
    }
}

/// A node's description of its units is refused, or each unit is listed under a name of its own.
fn node(bytes: &[u8]) {
    round_trip::<v1::NodeDescription>(bytes);
    let Ok(node) = decode::<v1::NodeDescription>("a node", bytes) else { return };
    assert_eq!(pu::cleaned(&pu::cleaned(&node.model)), pu::cleaned(&node.model));
    let checked = pu::check_neighbours(&node.name, &node.neighbours).and_then(|()| pu::check_devices(&node));
    if checked.is_ok() {
        let units = pu::units(&node, &price::Prices::default(), &node.neighbours);
        let mut names: Vec<_> = units.iter().map(|unit| &unit.unit).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), units.len());
    }
}

/// A bill does not overflow, and its total is at least each line.
fn leases(bytes: &[u8]) {
    let Ok(list) = decode::<v1::LeaseList>("leases", bytes) else { return };
    let lines: Vec<_> = list.leases.iter().map(price::bill).collect();
    let total = price::total(&lines);
    assert!(lines.iter().all(|line| line.total_nano <= total.total_nano));
}
