//! `sublet pus`: shows processing units and neighbouring nodes.

use clap::Args;
use serde::Serialize;
use sublet_proto::Error;
use sublet_proto::v1::{NodeDescription, NodeInfo, NodeState, Price, ProcessingUnit};

use super::ConnectionArguments;
use super::output::{CommandOutput, table};
use super::parse::show_bytes;
use super::view::{LentDevicesView, lent_devices, node_state};

const EXAMPLES: &str = "\
Examples:
  sublet pus           show the processors and devices of all nodes
  sublet pus --json    {\"units\": [...], \"unlinked\": [...], \"devices\": [...]}

A unit is called NODE/UNIT: NODE/cpu is a node's processor, of any architecture, NODE/opencl0 and
NODE/cuda0 are its devices. Leases request a unit by its kind (--pu) and pay its prices: for a GiB of
memory, for executing on a core and for polling on a core, each for a second, in nano-units
(billionths) of the currency.

Nodes are neighbours if each names the other (sublet agent --neighbour). Their agents connect some seconds
after both have started; until then a neighbour is marked as not connected, and functions of the unit do not
reach it. Devices that nodes lend whole to programs (sublet call --device), and neighbours that are not
linked, with the reason, follow the table.";

/// Show processing units: processors and devices, what they execute, their prices and neighbours
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Output of the command.
#[derive(Debug, Serialize)]
struct Units {
    units: Vec<UnitView>,
    unlinked: Vec<MissingLink>,
    devices: Vec<NodeDevices>,
}

/// Devices of a kind that a node lends whole to programs.
#[derive(Debug, Serialize)]
struct NodeDevices {
    node: String,
    #[serde(flatten)]
    devices: LentDevicesView,
}

/// A processing unit.
#[derive(Debug, Serialize)]
struct UnitView {
    /// Identifier of the unit, the same after every start.
    id: u32,
    node: String,
    unit: String,
    /// State of the node.
    state: &'static str,
    /// Kind by which leases request the unit.
    kind: String,
    architecture: String,
    /// Model name, if known.
    model: Option<String>,
    cores: u32,
    memory_bytes: u64,
    /// Kinds of packages and interpreters that the unit executes.
    abilities: Vec<String>,
    price: PriceView,
    /// Nodes that are linked with the unit's node.
    neighbours: Vec<String>,
    /// Nodes to whose agents that of the unit's node is connected, also by another neighbour; null if it does not report
    /// them.
    connected: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
struct PriceView {
    allocation_nano_per_gib_s: u64,
    compute_nano_per_core_s: u64,
    polling_nano_per_core_s: u64,
}

/// A node that names a neighbour without being linked to it.
#[derive(Debug, PartialEq, Serialize)]
struct MissingLink {
    node: String,
    neighbour: String,
    why: String,
}

/// Shows the processing units.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    let nodes = arguments.connection.open()?.nodes()?;
    let unlinked = unlinked(&nodes);
    let devices = nodes.iter().flat_map(devices_of).collect();
    let units = nodes.into_iter().flat_map(|node| {
        let state = node_state(node.state());
        // An agent that says its version reports its connections, too, but not with its registration.
        let reports =
            node.state() != NodeState::Lost && node.description.is_some_and(|node| !node.version.is_empty());
        let connected = node.connected.map(|connected| connected.nodes).or_else(|| reports.then(Vec::new));
        node.units.into_iter().map(move |unit| view(state, unit, connected.clone()))
    });
    output.show(&Units { units: units.collect(), unlinked, devices }, text)
}

fn view(state: &'static str, unit: ProcessingUnit, connected: Option<Vec<String>>) -> UnitView {
    let Price { allocation_nano_per_gib_s, compute_nano_per_core_s, polling_nano_per_core_s } =
        unit.price.unwrap_or_default();
    UnitView {
        id: unit.id,
        node: unit.node,
        unit: unit.unit,
        state,
        kind: unit.kind,
        architecture: unit.architecture,
        model: Some(unit.model).filter(|model| !model.is_empty()),
        cores: unit.cores,
        memory_bytes: unit.memory_bytes,
        abilities: unit.abilities,
        price: PriceView { allocation_nano_per_gib_s, compute_nano_per_core_s, polling_nano_per_core_s },
        neighbours: unit.neighbours,
        connected,
    }
}

/// The devices that a node lends whole to programs.
fn devices_of(node: &NodeInfo) -> Vec<NodeDevices> {
    let NodeDescription { name, lent_devices: lent, .. } = node.description.clone().unwrap_or_default();
    let devices = lent_devices(lent, &node.devices_leased).into_iter();
    devices.map(|devices| NodeDevices { node: name.clone(), devices }).collect()
}

/// Finds neighbours that are not linked, with the reason.
fn unlinked(nodes: &[NodeInfo]) -> Vec<MissingLink> {
    let described = |node: &NodeInfo| node.description.clone().unwrap_or_default();
    let find = |name: &str| nodes.iter().find(|node| described(node).name == name);
    let mut unlinked = Vec::new();
    for node in nodes {
        let NodeDescription { name, neighbours, .. } = described(node);
        let is_linked = |other: &String| node.units.iter().any(|unit| unit.neighbours.contains(other));
        for neighbour in neighbours.into_iter().filter(|other| !is_linked(other)) {
            let why = match find(&neighbour) {
                _ if node.state() == NodeState::Lost => format!("{name} is lost"),
                None => format!("no node {neighbour} is registered with this manager"),
                Some(other) if other.state() == NodeState::Lost => format!("{neighbour} is lost"),
                Some(_) => format!("{neighbour} does not name {name}"),
            };
            unlinked.push(MissingLink { node: name.clone(), neighbour, why });
        }
    }
    unlinked
}

fn text(Units { units, unlinked, devices }: &Units) -> String {
    let rows: Vec<_> = units.iter().map(row).collect();
    let headings = [
        "UNIT",
        "STATE",
        "KIND",
        "ARCHITECTURE",
        "MODEL",
        "CORES",
        "MEMORY",
        "ABILITIES",
        "PRICE",
        "NEIGHBOURS",
    ];
    let mut text = table(&headings, &rows);
    for NodeDevices { node, devices: LentDevicesView { kind, names, leased } } in devices {
        text += &format!(
            "\n{node} lends {} devices of the kind {kind} to programs, {leased} of them leased: {}",
            names.len(),
            names.join(", ")
        );
    }
    for MissingLink { node, neighbour, why } in unlinked {
        text += &format!("\n{node} names {neighbour} as its neighbour but is not linked to it: {why}");
    }
    text
}

fn row(unit: &UnitView) -> [String; 10] {
    let PriceView { allocation_nano_per_gib_s, compute_nano_per_core_s, polling_nano_per_core_s } =
        unit.price;
    let known = |size: u64, shown: String| if size == 0 { "-".to_owned() } else { shown };
    [
        format!("{}/{}", unit.node, unit.unit),
        unit.state.to_owned(),
        unit.kind.clone(),
        unit.architecture.clone(),
        unit.model.clone().unwrap_or_else(|| "unknown".to_owned()),
        known(unit.cores.into(), unit.cores.to_string()),
        known(unit.memory_bytes, show_bytes(unit.memory_bytes)),
        unit.abilities.join(", "),
        format!("{allocation_nano_per_gib_s}/{compute_nano_per_core_s}/{polling_nano_per_core_s}"),
        neighbours(unit),
    ]
}

/// The neighbours of a unit, with those that its functions do not reach yet marked.
fn neighbours(unit: &UnitView) -> String {
    let shown = unit.neighbours.iter().map(|name| match &unit.connected {
        Some(connected) if !connected.contains(name) => format!("{name} (not connected)"),
        _ => name.clone(),
    });
    let shown: Vec<_> = shown.collect();
    if shown.is_empty() { "-".to_owned() } else { shown.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, names: &[&str], linked: &[&str], state: NodeState) -> NodeInfo {
        let texts = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect();
        let description =
            NodeDescription { name: name.into(), neighbours: texts(names), ..NodeDescription::default() };
        let unit =
            ProcessingUnit { node: name.into(), neighbours: texts(linked), ..ProcessingUnit::default() };
        NodeInfo {
            description: Some(description),
            units: vec![unit],
            state: state.into(),
            ..NodeInfo::default()
        }
    }

    #[test]
    fn marks_neighbours_that_are_not_connected() {
        let shown = |connected: Option<&[&str]>| {
            let unit =
                ProcessingUnit { neighbours: vec!["a".into(), "b".into()], ..ProcessingUnit::default() };
            let connected = connected.map(|names| names.iter().map(|name| name.to_string()).collect());
            neighbours(&view("lending", unit, connected))
        };
        assert_eq!(shown(Some(&["b", "bridged"])), "a (not connected), b");
        assert_eq!(shown(Some(&["b", "a"])), "a, b");
        assert_eq!(shown(None), "a, b", "an agent of an earlier version reports none");
        assert_eq!(neighbours(&view("lending", ProcessingUnit::default(), None)), "-");
    }

    #[test]
    fn explains_missing_links_between_neighbours() {
        let lending = NodeState::Lending;
        let nodes = [
            node("a", &["b", "c", "d", "e"], &["b"], lending),
            node("b", &["a"], &["a"], lending),
            node("c", &[], &[], lending),
            node("d", &["a"], &[], NodeState::Lost),
        ];
        let told = unlinked(&nodes);
        let told: Vec<_> = told.iter().map(|one| (&*one.node, &*one.neighbour, &*one.why)).collect();
        let expected = [
            ("a", "c", "c does not name a"),
            ("a", "d", "d is lost"),
            ("a", "e", "no node e is registered with this manager"),
            ("d", "a", "d is lost"),
        ];
        assert_eq!(told, expected);
    }
}
