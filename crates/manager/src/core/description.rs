//! Checks the description of a node. All of it is passed to clients, which act on it.

use sublet_proto::isolation::Isolation;
use sublet_proto::network::check_network;
use sublet_proto::package::{PORTABLE, is_processor};
use sublet_proto::pool::Pool;
use sublet_proto::pu::{self, is_processor_kind};
use sublet_proto::v1::{DeviceCount, Needs, NodeDescription};
use sublet_proto::{Code, Error};

/// Most cores of one node, and most places on its shared ones.
pub(super) const MAX_NODE_CORES: u32 = 65_536;
const MAX_NAME_BYTES: usize = 64;
/// Longest name of an operating system's boot, in bytes.
const MAX_HOST_BYTES: usize = 64;
/// Most devices, and runtimes, that a node names, and the longest name of one, in bytes.
const MAX_DEVICES: usize = 16;
const MAX_DEVICE_BYTES: usize = 32;
/// Longest name of a device that a node lends, in bytes.
const MAX_DEVICE_NAME_BYTES: usize = 128;
/// Longest version of an agent's program, in bytes.
const MAX_VERSION_BYTES: usize = 64;
/// Prefix of the address of a Unix socket.
const UNIX_SCHEME: &str = "unix:/";
/// Longest address of a Unix socket, in bytes: more than its path may have.
const MAX_AGENT_BYTES: usize = 256;

/// Refuses descriptions that no node can have.
pub(super) fn check(node: &NodeDescription) -> Result<(), Error> {
    let name = &node.name;
    let invalid = |message: String| Err(Error::new(Code::InvalidArgument, message));
    if !is_text(name, MAX_NAME_BYTES) {
        return invalid(format!("{name:?} is no name of a node: 1 to {MAX_NAME_BYTES} bytes"));
    }
    for (what, count) in [("cores", node.cores), ("shared places", node.shared_places)] {
        if count > MAX_NODE_CORES {
            return invalid(format!(
                "node {name} says that it has {count} {what}, not 0 to {MAX_NODE_CORES}"
            ));
        }
    }
    check_lends_cores(node)?;
    for (what, value) in [("agent", &node.agent), ("architecture", &node.architecture)] {
        if value.is_empty() {
            return invalid(format!("node {name} says no {what}"));
        }
    }
    let is_architecture =
        |name: &str| is_processor(name) && name != PORTABLE && name.len() <= MAX_DEVICE_BYTES;
    for (what, value, may_be) in [
        ("pu", &node.pu, node.pu.is_empty() || is_processor_kind(&node.pu)),
        ("architecture", &node.architecture, is_architecture(&node.architecture)),
    ] {
        if !may_be {
            return invalid(format!("node {name} says that its {what} is {value:.40?}, which is of no node"));
        }
    }
    if !node.agent.starts_with(UNIX_SCHEME) || !is_text(&node.agent, MAX_AGENT_BYTES) {
        let agent: String = node.agent.chars().take(MAX_AGENT_BYTES).collect();
        return invalid(format!("node {name} says that its agent is at {agent:?}, which is no unix:/path"));
    }
    if !node.host.is_empty() && !is_text(&node.host, MAX_HOST_BYTES) {
        return invalid(format!(
            "node {name} names its host in more than {MAX_HOST_BYTES} bytes, or unreadably"
        ));
    }
    for (what, names) in [("devices", &node.devices), ("runtimes", &node.runtimes)] {
        if names.len() > MAX_DEVICES || names.iter().any(|one| !is_text(one, MAX_DEVICE_BYTES)) {
            return invalid(format!("node {name} names {} {what}, or one unreadably", names.len()));
        }
    }
    if !node.rack.is_empty() && !is_text(&node.rack, MAX_NAME_BYTES) {
        return invalid(format!(
            "node {name} names its rack in more than {MAX_NAME_BYTES} bytes, or unreadably"
        ));
    }
    if !node.version.is_empty() && !is_text(&node.version, MAX_VERSION_BYTES) {
        return invalid(format!(
            "node {name} names its version in more than {MAX_VERSION_BYTES} bytes, or unreadably"
        ));
    }
    check_folders(node)?;
    check_isolations(node)?;
    pu::check_neighbours(name, &node.neighbours)?;
    pu::check_devices(node)?;
    if node.model != pu::cleaned(&node.model) {
        return invalid(format!("node {name} says unreadably what its processor is"));
    }
    Pool::said(&node.pool)
        .map_err(|error| Error::new(error.code, format!("the pool of node {name}: {}", error.message)))?;
    let named =
        |error: Error| Error::new(error.code, format!("the network of node {name}: {}", error.message));
    node.network.as_ref().map_or(Ok(()), |network| check_network(network).map_err(named))
}

/// Checks that a node lends cores, or flash in their place.
fn check_lends_cores(node: &NodeDescription) -> Result<(), Error> {
    let name = &node.name;
    let has_none = node.cores == 0 && node.shared_places == 0;
    let message = match (has_none, node.pool == Pool::Flash.name()) {
        (true, false) => format!("node {name} has no cores to lend"),
        (false, true) => format!("node {name} lends flash, and a node of flash lends no cores"),
        _ => return Ok(()),
    };
    Err(Error::new(Code::InvalidArgument, message))
}

/// Checks the names of the isolations that a node offers.
fn check_isolations(node: &NodeDescription) -> Result<(), Error> {
    if node.isolations.len() > Isolation::ALL.len() {
        let message = format!("node {} offers {} isolations", node.name, node.isolations.len());
        return Err(Error::new(Code::InvalidArgument, message));
    }
    node.isolations.iter().try_for_each(|name| Isolation::parse(name).map(drop))
}

/// Checks the devices that a node lends.
fn check_lent_devices(node: &NodeDescription) -> Result<(), Error> {
    let kinds = node.lent_devices.iter().map(|lent| DeviceCount {
        kind: lent.kind.clone(),
        count: u32::try_from(lent.names.len()).unwrap_or(u32::MAX),
    });
    let all = Needs { devices: kinds.collect(), ..Needs::default() };
    let is_long = |name: &String| {
        !(1..=MAX_DEVICE_NAME_BYTES).contains(&name.len())
            || !name.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let wrong = node.lent_devices.iter().flat_map(|lent| &lent.names).any(is_long);
    let checked = if wrong {
        Err(Error::new(Code::InvalidArgument, "the name of a device is not readable"))
    } else {
        all.check()
    };
    checked.map_err(|error| {
        Error::new(error.code, format!("the devices that node {} lends: {}", node.name, error.message))
    })
}

/// Checks the folders that a node lends.
fn check_folders(node: &NodeDescription) -> Result<(), Error> {
    let lent = Needs {
        folders: node.folders.iter().map(|folder| folder.name.clone()).collect(),
        ..Needs::default()
    };
    check_lent_devices(node)?;
    lent.check().map_err(|error| {
        Error::new(error.code, format!("the folders that node {} lends: {}", node.name, error.message))
    })
}

fn is_text(text: &str, most_bytes: usize) -> bool {
    (1..=most_bytes).contains(&text.len()) && !text.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_proto::v1::NodeNetwork;

    fn node() -> NodeDescription {
        NodeDescription {
            name: "n".into(),
            agent: "unix:/run/agent.sock".into(),
            architecture: "x86_64".into(),
            cores: 1,
            host: "3c1c1c4e-8a3e-4a3e-9c1c-1c4e8a3e4a3e".into(),
            network: Some(NodeNetwork {
                address: "192.0.2.7:7441".into(),
                certificate: vec![1; 500],
                fabrics: vec!["ofi:verbs".into(), "tcp".into()],
                encrypted: true,
            }),
            ..NodeDescription::default()
        }
    }

    fn v1_folder(name: &str) -> sublet_proto::v1::LentFolder {
        sublet_proto::v1::LentFolder { name: name.into(), writable: true }
    }

    #[test]
    fn a_node_that_can_be_is_taken() {
        check(&node()).unwrap();
        check(&NodeDescription { host: String::new(), network: None, ..node() }).unwrap();
        check(&NodeDescription { version: "1.2.3-rc.1+build".into(), ..node() }).unwrap();
        check(&NodeDescription { pool: "flash".into(), pu: "flash".into(), cores: 0, ..node() }).unwrap();
        check(&NodeDescription { pool: "memory".into(), rack: "row 1, rack 7".into(), ..node() }).unwrap();
    }

    #[test]
    fn what_would_lead_clients_astray_is_refused() {
        let network = |change: fn(&mut NodeNetwork)| {
            let mut node = node();
            node.network.iter_mut().for_each(change);
            node
        };
        for (wrong, named) in [
            (NodeDescription { devices: vec!["x".into(); 17], ..node() }, "17 devices"),
            (NodeDescription { devices: vec!["x\n".into()], ..node() }, "unreadably"),
            (NodeDescription { runtimes: vec!["python3.11".into(); 17], ..node() }, "17 runtimes"),
            (NodeDescription { pu: "opencl".into(), ..node() }, "opencl"),
            (NodeDescription { architecture: "python3.11".into(), ..node() }, "python3.11"),
            (NodeDescription { architecture: "wasm32".into(), ..node() }, "wasm32"),
            (NodeDescription { pu: "p".repeat(33), ..node() }, "of no node"),
            (NodeDescription { pu: "a\x1b[2J".into(), ..node() }, "of no node"),
            (NodeDescription { neighbours: vec!["n".into()], ..node() }, "itself"),
            (NodeDescription { device_units: vec![pu::undescribed("cuda")], ..node() }, "cuda0"),
            (NodeDescription { model: "a\tb".into(), ..node() }, "unreadably"),
            (NodeDescription { agent: "tcp://192.0.2.7:7441".into(), ..node() }, "unix:/path"),
            (NodeDescription { agent: "unix:relative".into(), ..node() }, "unix:/path"),
            (NodeDescription { agent: format!("unix:/{}", "a".repeat(300)), ..node() }, "unix:/path"),
            (NodeDescription { agent: String::new(), ..node() }, "no agent"),
            (NodeDescription { isolations: vec!["vm".into()], ..node() }, "\"vm\""),
            (NodeDescription { isolations: vec!["runc".into(); 8], ..node() }, "8 isolations"),
            (NodeDescription { folders: vec![v1_folder("../x")], ..node() }, "../x"),
            (NodeDescription { folders: vec![v1_folder("x"); 2], ..node() }, "x is set twice"),
            (NodeDescription { pool: "fast".into(), ..node() }, "fast"),
            (NodeDescription { cores: 0, ..node() }, "no cores"),
            (NodeDescription { pool: "flash".into(), ..node() }, "lends no cores"),
            (NodeDescription { rack: "r".repeat(65), ..node() }, "rack"),
            (NodeDescription { rack: "a\tb".into(), ..node() }, "rack"),
            (NodeDescription { version: "1".repeat(65), ..node() }, "version"),
            (NodeDescription { version: "1\x1b[2J".into(), ..node() }, "version"),
            (NodeDescription { host: "h".repeat(65), ..node() }, "host"),
            (NodeDescription { host: "a\nb".into(), ..node() }, "host"),
            (network(|network| network.address = "tcp://a:1".into()), "tcp://a:1"),
            (network(|network| network.address = "a:0".into()), "port"),
            (network(|network| network.certificate = vec![0; 4097]), "4097"),
            (network(|network| network.fabrics.clear()), "fabrics"),
            (network(|network| network.fabrics.push("smoke".into())), "smoke"),
        ] {
            let error = check(&wrong).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument, "{wrong:?}");
            assert!(error.message.contains(named), "{error}");
        }
    }
}
