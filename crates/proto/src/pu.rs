//! Processing units of the platform (Molecule, sections 3.1 and 4.1): their names and their descriptions.
//!
//! A *unit* is the processor of a node, whatever its kind, or a device of one, and is called `NODE/UNIT`. The manager
//! decides which links are marked; this module has the rules for a node's own statements.

use sha2::{Digest, Sha256};

pub use crate::names::{MAX_NODE_NAME_BYTES, is_node_name};
pub use crate::package::{MAX_KIND_BYTES, is_processor_kind};
use crate::package::{PackageKind, is_device, is_interpreter};
use crate::price::Prices;
use crate::v1::{DeviceUnit, NodeDescription, ProcessingUnit};
use crate::{Code, Error};

/// The unit that runs programs, of whichever kind it is; and the kind of one that says none.
pub const PROCESSOR: &str = "cpu";
/// Most nodes that one names as its neighbours.
pub const MAX_NEIGHBOURS: usize = 64;
/// Most devices that a node describes.
pub const MAX_DEVICE_UNITS: usize = 64;
/// Longest description of a unit, in bytes.
pub const MAX_MODEL_BYTES: usize = 128;

const ID_BYTES: usize = size_of::<u32>();

/// Returns the number of a node's unit: the first four bytes of the digest of its name that are not 0. It is the same
/// after every start, and follows from the name alone.
pub fn id(node: &str, unit: &str) -> u32 {
    let digest = Sha256::new().chain_update(node).chain_update("/").chain_update(unit).finalize();
    let mut words = digest.as_chunks::<ID_BYTES>().0.iter().map(|bytes| u32::from_be_bytes(*bytes));
    words.find(|&word| word != 0).unwrap_or(u32::MAX)
}

/// Splits a user's name of a unit into node and unit: `NODE/UNIT`, or only a node for its processor.
pub fn parse(name: &str) -> (&str, &str) {
    name.split_once('/').unwrap_or((name, PROCESSOR))
}

/// Returns the kind of a processor, with the default for an empty one.
pub fn kind(said: &str) -> &str {
    if said.is_empty() { PROCESSOR } else { said }
}

/// Checks the names of a node's neighbours.
///
/// # Errors
/// `invalid_argument` for too many, for a text that is no name of a node, for its own name, and for one that occurs
/// twice.
pub fn check_neighbours(node: &str, named: &[String]) -> Result<(), Error> {
    let invalid = |message: String| Err(Error::new(Code::InvalidArgument, message));
    if named.len() > MAX_NEIGHBOURS {
        let count = named.len();
        return invalid(format!(
            "node {node} names {count} neighbours, at most {MAX_NEIGHBOURS} are possible"
        ));
    }
    for (at, name) in named.iter().enumerate() {
        if !is_node_name(name) {
            return invalid(format!(
                "node {node} names {name:.70?} as a neighbour, which is no name of a node"
            ));
        }
        if name == node {
            return invalid(format!("node {node} names itself as its neighbour"));
        }
        if named[..at].contains(name) {
            return invalid(format!("node {node} names its neighbour {name} twice"));
        }
    }
    Ok(())
}

/// Checks a node's description of its devices: each is of a kind that the node has, is named after that, and occurs
/// once.
///
/// # Errors
/// `invalid_argument` for the first violation.
pub fn check_devices(node: &NodeDescription) -> Result<(), Error> {
    let name = &node.name;
    let units = &node.device_units;
    let invalid = |message: String| Err(Error::new(Code::InvalidArgument, message));
    if units.len() > MAX_DEVICE_UNITS {
        let count = units.len();
        return invalid(format!(
            "node {name} describes {count} devices, at most {MAX_DEVICE_UNITS} are possible"
        ));
    }
    for (at, DeviceUnit { unit, kind, model, .. }) in units.iter().enumerate() {
        let number = unit.strip_prefix(kind.as_str()).and_then(|number| number.parse::<u8>().ok());
        if !node.devices.contains(kind) || number.is_none_or(|number| *unit != format!("{kind}{number}")) {
            return invalid(format!("node {name} says that its unit {unit:.40?} is a device of {kind:.40?}"));
        }
        if units[..at].iter().any(|before| before.unit == *unit) {
            return invalid(format!("node {name} has two units {unit}"));
        }
        if *model != cleaned(model) {
            return invalid(format!("node {name} says unreadably what its unit {unit} is"));
        }
    }
    Ok(())
}

/// Returns a device's or processor's name in a form to show: short, and without characters that would disturb a
/// terminal.
pub fn cleaned(model: &str) -> String {
    let mut text = String::new();
    let words =
        model.split(|char: char| char.is_whitespace() || char.is_control()).filter(|word| !word.is_empty());
    for char in words.flat_map(|word| [" ", word]).flat_map(str::chars).skip(1) {
        if text.len() + char.len_utf8() > MAX_MODEL_BYTES {
            break;
        }
        text.push(char);
    }
    text.truncate(text.trim_end().len());
    debug_assert!(
        text.len() <= MAX_MODEL_BYTES && !text.contains(char::is_control),
        "{text:?} of {} bytes is not in a form to show",
        text.len()
    );
    text
}

/// Returns the units of a node, its processor first. `neighbours` are the nodes whose links with it are marked.
pub fn units(node: &NodeDescription, prices: &Prices, neighbours: &[String]) -> Vec<ProcessingUnit> {
    let unit = |unit: &str, kind: &str| ProcessingUnit {
        id: id(&node.name, unit),
        node: node.name.clone(),
        unit: unit.to_owned(),
        kind: kind.to_owned(),
        price: Some(prices.of(kind)),
        neighbours: neighbours.to_vec(),
        ..ProcessingUnit::default()
    };
    // Their platforms are for the placement of environments.
    let is_shown = |runtime: &&String| is_interpreter(runtime) && !runtime.contains('-');
    let interpreters = node.runtimes.iter().filter(is_shown).cloned();
    let programs = [PackageKind::Native, PackageKind::Wasm].map(|kind| kind.name().to_owned());
    let processor = ProcessingUnit {
        architecture: node.architecture.clone(),
        model: node.model.clone(),
        cores: node.cores.saturating_add(node.shared_cores),
        memory_bytes: node.memory_bytes,
        abilities: programs.into_iter().chain(interpreters).collect(),
        ..unit(PROCESSOR, kind(&node.pu))
    };
    let devices = devices(node).map(|device| ProcessingUnit {
        architecture: device.kind.clone(),
        model: device.model,
        cores: device.compute_units,
        memory_bytes: device.memory_bytes,
        abilities: vec![device.kind.clone()],
        ..unit(&device.unit, &device.kind)
    });
    std::iter::once(processor).chain(devices).collect()
}

/// Lists the devices of a node, of the kinds that this release knows, described or not.
fn devices(node: &NodeDescription) -> impl Iterator<Item = DeviceUnit> {
    let known = node.devices.iter().enumerate();
    let known = known.filter(|(at, kind)| is_device(kind) && !node.devices[..*at].contains(kind));
    known.flat_map(|(_, kind)| {
        let described: Vec<_> = node.device_units.iter().filter(|unit| unit.kind == *kind).cloned().collect();
        if described.is_empty() { vec![undescribed(kind)] } else { described }
    })
}

/// Returns a device of which only the kind is known.
pub fn undescribed(kind: &str) -> DeviceUnit {
    DeviceUnit { unit: format!("{kind}0"), kind: kind.to_owned(), ..DeviceUnit::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::Price;

    #[test]
    fn unit_number_is_stable_and_never_zero() {
        // printf 'n/cpu' | sha256sum
        assert_eq!(id("n", PROCESSOR), 0xbe15_6258);
        assert_ne!(id("n", "opencl0"), id("n", PROCESSOR));
        assert_eq!((parse("n"), parse("n/opencl0")), (("n", "cpu"), ("n", "opencl0")));
        assert!((0..10_000).all(|number| id(&number.to_string(), PROCESSOR) != 0));
    }

    #[test]
    fn kind_of_processor_is_a_plain_word() {
        for kind in ["cpu", "dpu", "bluefield-3"] {
            assert!(is_processor_kind(kind), "{kind}");
        }
        for kind in ["", "DPU", "opencl", "cuda", "python3.11", "wasm32", "d pu", "d\npu", &"p".repeat(33)] {
            assert!(!is_processor_kind(kind), "{kind}");
        }
    }

    #[test]
    fn whom_a_node_cannot_name_is_refused_with_the_name() {
        let named = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        check_neighbours("n", &named(&["a", "dpu-1.rack@b"])).unwrap();
        let most: Vec<String> = (0..=MAX_NEIGHBOURS).map(|number| format!("m{number}")).collect();
        check_neighbours("n", &most[1..]).unwrap();
        for (wrong, part) in [
            (most, "65 neighbours"),
            (named(&["a", "n"]), "itself"),
            (named(&["a/cpu"]), "a/cpu"),
            (named(&[""]), "no name"),
            (named(&["a\n"]), "a\\n"),
            (named(&[&"a".repeat(65)]), "no name"),
            (named(&["a", "b", "a"]), "a twice"),
        ] {
            let error = check_neighbours("n", &wrong).unwrap_err();
            assert!(error.code == Code::InvalidArgument && error.message.contains(part), "{error}");
        }
    }

    fn node() -> NodeDescription {
        let gpu =
            DeviceUnit { model: "a GPU".into(), compute_units: 132, memory_bytes: 9, ..undescribed("cuda") };
        NodeDescription {
            name: "n".into(),
            pu: "dpu".into(),
            architecture: "aarch64".into(),
            cores: 3,
            shared_cores: 1,
            memory_bytes: 7,
            devices: ["opencl", "abacus", "cuda", "opencl"].map(str::to_owned).to_vec(),
            device_units: vec![gpu],
            runtimes: vec!["python3.11".into(), "abacus2".into()],
            model: "a core".into(),
            ..NodeDescription::default()
        }
    }

    #[test]
    fn units_of_a_node_have_their_description_and_price() {
        let dear = Price { compute_nano_per_core_s: 5, ..Price::default() };
        let prices = Prices { by_pu: [("cuda".into(), dear)].into(), ..Prices::default() };
        let units = units(&node(), &prices, &["m".into()]);
        let shown: Vec<_> =
            units.iter().map(|unit| (unit.unit.as_str(), unit.kind.as_str(), unit.cores)).collect();
        assert_eq!(shown, [("cpu", "dpu", 4), ("opencl0", "opencl", 0), ("cuda0", "cuda", 132)]);
        assert!(units.iter().all(|unit| unit.id == id("n", &unit.unit) && unit.neighbours == ["m"]));
        assert_eq!(units[0].abilities, ["native", "wasm", "python3.11"]);
        assert_eq!((units[0].architecture.as_str(), units[0].memory_bytes), ("aarch64", 7));
        assert_eq!((units[1].model.as_str(), units[1].price), ("", Some(prices.default)));
        assert_eq!((units[2].model.as_str(), units[2].price), ("a GPU", Some(dear)));
        assert_eq!(
            (units[2].architecture.as_str(), &*units[2].abilities),
            ("cuda", &["cuda".to_owned()][..])
        );
    }

    #[test]
    fn what_is_said_of_devices_agrees_with_which_there_are() {
        check_devices(&node()).unwrap();
        let said = |unit: &str, kind: &str, model: &str| DeviceUnit {
            unit: unit.into(),
            kind: kind.into(),
            model: model.into(),
            ..DeviceUnit::default()
        };
        let many: Vec<_> =
            (0..=MAX_DEVICE_UNITS).map(|number| said(&format!("cuda{number}"), "cuda", "")).collect();
        check_devices(&NodeDescription { device_units: many[1..].to_vec(), ..node() }).unwrap();
        for wrong in [
            many,
            vec![said("cpu", "cuda", "")],
            vec![said("cuda", "cuda", "")],
            vec![said("cuda00", "cuda", "")],
            vec![said("cuda+1", "cuda", "")],
            vec![said("cuda256", "cuda", "")],
            vec![said("fpga0", "fpga", "")],
            vec![said("0", "", "")],
            vec![said("cuda0", "cuda", ""), said("cuda0", "cuda", "")],
            vec![said("cuda0", "cuda", "a\x1b[2J")],
            vec![said("cuda0", "cuda", &"x".repeat(MAX_MODEL_BYTES + 1))],
        ] {
            let wrong = NodeDescription { device_units: wrong, ..node() };
            assert_eq!(check_devices(&wrong).unwrap_err().code, Code::InvalidArgument, "{wrong:?}");
        }
    }

    #[test]
    fn a_model_is_short_and_readable_whatever_it_was() {
        assert_eq!(cleaned("  AMD\tEPYC \0\x1b[2J 9B45\n"), "AMD EPYC [2J 9B45");
        assert_eq!(cleaned(&"ä".repeat(100)), "ä".repeat(64));
        assert_eq!(cleaned(&format!("{} b", "a".repeat(127))), "a".repeat(127));
        for text in ["", " ", "a b", "AMD EPYC [2J 9B45", &"ä".repeat(64)] {
            assert_eq!(cleaned(&cleaned(text)), cleaned(text));
        }
    }
}
