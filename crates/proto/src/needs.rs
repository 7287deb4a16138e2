//! Rules of what functions need beside a package, cores and memory: environment variables, secrets, folders that nodes
//! lend, space for temporary files, isolation, and devices.
//!
//! A package names its needs in its manifest, and a lease adds its own. Variables and values of secrets are never part
//! of an error message, and [`Variable`] shows no value.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::isolation::Isolation;
use crate::names::{is_name, name_form};
use crate::v1::{DeviceCount, Needs, NodeDescription, SecretUse, SetSecretRequest, Variable};
use crate::{Code, Error};

/// Most environment variables of a worker process, those with secrets included.
pub const MAX_VARIABLES: usize = 128;
/// Longest name of a variable, in bytes.
pub const MAX_VARIABLE_NAME_BYTES: usize = 128;
/// Most bytes of the names and values of a worker process's variables together, those with secrets included.
pub const MAX_VARIABLES_BYTES: usize = 32 << 10;
/// Most secrets of a lease.
pub const MAX_SECRETS: usize = 32;
/// Largest secret, in bytes.
pub const MAX_SECRET_BYTES: usize = 16 << 10;
/// Most folders of a lease, and of a node.
pub const MAX_FOLDERS: usize = 16;
/// Least space for temporary files that a lease may ask for, in bytes.
pub const MIN_TEMPORARY_BYTES: u64 = 64 << 10;

/// Most kinds of devices of a lease, and of a node.
pub const MAX_DEVICE_KINDS: usize = 16;
/// Most devices of a kind of a lease, and of a node.
pub const MAX_DEVICES: usize = 64;
/// Kind that means any GPU that a node lends.
pub const GPU: &str = "gpu";
/// Kinds of which [`GPU`] means the first that a node lends.
const GPU_KINDS: [&str; 2] = ["cuda", "rocm"];

/// Prefixes of names that would have no effect, each with the reason.
const RESERVED: [(&str, &str); 2] = [
    ("LD_", "the dynamic loader has read its variables before a function runs"),
    ("SUBLET_", "these names are Sublet's own"),
];

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=***", self.name)
    }
}

impl fmt::Debug for SetSecretRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=***", self.name)
    }
}

impl Needs {
    /// Tells whether nothing is needed.
    pub fn is_empty(&self) -> bool {
        *self == Needs::default()
    }

    /// Tells whether the tenant of a lease has to be known before it can be granted: secrets and folders belong to one.
    pub fn are_of_tenant(&self) -> bool {
        !self.secrets.is_empty() || !self.folders.is_empty()
    }

    /// Adds the needs of a lease to those of its package. The lease's own take precedence: its secrets over those of the
    /// same variable, its temporary space, its isolation, and its number of devices of a kind.
    pub fn with(&self, lease: &Needs) -> Needs {
        let variables = self.variables.iter().chain(&lease.variables);
        let variables: BTreeMap<_, _> = variables.map(|one| (&one.name, &one.value)).collect();
        let secrets = self.secrets.iter().chain(&lease.secrets);
        let secrets: BTreeMap<_, _> = secrets.map(|one| (&one.variable, &one.secret)).collect();
        let folders: BTreeSet<_> = self.folders.iter().chain(&lease.folders).cloned().collect();
        let devices = self.devices.iter().chain(&lease.devices);
        let devices: BTreeMap<_, _> = devices.map(|one| (&one.kind, one.count)).collect();
        let own = lease.temporary_bytes;
        Needs {
            variables: variables
                .into_iter()
                .map(|(name, value)| Variable { name: name.clone(), value: value.clone() })
                .collect(),
            secrets: secrets
                .into_iter()
                .map(|(variable, secret)| SecretUse { variable: variable.clone(), secret: secret.clone() })
                .collect(),
            folders: folders.into_iter().collect(),
            temporary_bytes: if own > 0 { own } else { self.temporary_bytes },
            isolation: if lease.isolation.is_empty() { &self.isolation } else { &lease.isolation }.clone(),
            devices: devices
                .into_iter()
                .map(|(kind, count)| DeviceCount { kind: kind.clone(), count })
                .collect(),
        }
    }

    /// Each folder, the temporary space, the isolation and each kind of devices as needs of their own, with their
    /// description in words.
    pub fn parts(&self) -> Vec<(Needs, String)> {
        let folder = |name: &String| Needs { folders: vec![name.clone()], ..Needs::default() };
        let folders = self.folders.iter().map(|name| (folder(name), describe_folder(name)));
        let space = Needs { temporary_bytes: self.temporary_bytes, ..Needs::default() };
        let space = (self.temporary_bytes > 0).then(|| (space, describe_space(self.temporary_bytes)));
        let isolation = Needs { isolation: self.isolation.clone(), ..Needs::default() };
        let isolation =
            (!self.isolation.is_empty()).then(|| (isolation, describe_isolation(&self.isolation)));
        let device = |one: &DeviceCount| {
            let devices = Needs { devices: vec![one.clone()], ..Needs::default() };
            (devices, describe_devices(&one.kind, one.count))
        };
        folders.chain(space).chain(isolation).chain(self.devices.iter().map(device)).collect()
    }

    /// The first thing that a node does not offer to functions, in words.
    pub fn lacking(&self, node: &NodeDescription) -> Option<String> {
        let is_lent = |name: &&String| node.folders.iter().any(|folder| folder.name == **name);
        if let Some(name) = self.folders.iter().find(|name| !is_lent(name)) {
            return Some(describe_folder(name));
        }
        let is_weak = Isolation::Weak.is_offered(node);
        let has_space = node.temporary_bytes == 0 || self.temporary_bytes <= node.temporary_bytes;
        // Functions of a weak isolation write no files.
        let has_space = has_space && !(is_weak && self.temporary_bytes > 0);
        if !has_space {
            return Some(describe_space(self.temporary_bytes));
        }
        let lends = |one: &&DeviceCount| lent_count(node, &one.kind) >= one.count as usize;
        if let Some(one) = self.devices.iter().find(|one| !lends(one)) {
            return Some(describe_devices(&one.kind, one.count));
        }
        let isolates = |name: &str| Isolation::parse(name).is_ok_and(|isolation| isolation.is_offered(node));
        let lacks = !self.isolation.is_empty() && !isolates(&self.isolation);
        lacks.then(|| describe_isolation(&self.isolation))
    }

    /// Checks names, values and numbers.
    ///
    /// # Errors
    /// `invalid_argument` with the name and the limit.
    pub fn check(&self) -> Result<(), Error> {
        check_variables(&self.variables)?;
        at_most("secrets", self.secrets.len(), MAX_SECRETS)?;
        for SecretUse { variable, secret } in &self.secrets {
            check_secret_name(secret)?;
            check_variable_name(variable)?;
        }
        let variables = self.secrets.iter().map(|one| &one.variable);
        check_once(variables.chain(self.variables.iter().map(|one| &one.name)), "variable")?;
        at_most("folders", self.folders.len(), MAX_FOLDERS)?;
        self.folders.iter().try_for_each(|name| check_folder_name(name))?;
        check_once(self.folders.iter(), "folder")?;
        if (1..MIN_TEMPORARY_BYTES).contains(&self.temporary_bytes) {
            return Err(invalid(format!(
                "{} bytes of temporary space, at least {MIN_TEMPORARY_BYTES} are possible",
                self.temporary_bytes
            )));
        }
        if !self.isolation.is_empty() {
            Isolation::parse(&self.isolation)?;
        }
        check_device_counts(&self.devices)
    }
}

/// Reads a use of a secret: `NAME`, which is also the variable's name, or `VARIABLE=NAME`.
pub fn parse_secret_use(text: &str) -> SecretUse {
    let (variable, secret) = text.split_once('=').unwrap_or((text, text));
    SecretUse { variable: variable.to_owned(), secret: secret.to_owned() }
}

/// Checks environment variables: names, number and size.
///
/// # Errors
/// `invalid_argument` with the name and the limit, without the value.
pub fn check_variables(variables: &[Variable]) -> Result<(), Error> {
    at_most("environment variables", variables.len(), MAX_VARIABLES)?;
    for Variable { name, value } in variables {
        check_variable_name(name)?;
        if value.contains('\0') {
            return Err(invalid(format!("the value of variable {name} has a zero byte")));
        }
    }
    check_once(variables.iter().map(|variable| &variable.name), "variable")?;
    let bytes: usize = variables.iter().map(|variable| variable.name.len() + variable.value.len()).sum();
    at_most("bytes of environment variables", bytes, MAX_VARIABLES_BYTES)
}

/// Checks the name of an environment variable.
///
/// # Errors
/// `invalid_argument` with the form of a name.
pub fn check_variable_name(name: &str) -> Result<(), Error> {
    let is_first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    let is_form = (1..=MAX_VARIABLE_NAME_BYTES).contains(&name.len())
        && name.bytes().next().is_some_and(is_first)
        && name.bytes().all(|byte| is_first(byte) || byte.is_ascii_digit());
    if !is_form {
        let shown: String = name.chars().take(MAX_VARIABLE_NAME_BYTES).collect();
        return Err(invalid(format!(
            "{shown:?} cannot be the name of an environment variable: 1 to {MAX_VARIABLE_NAME_BYTES} of A-Z a-z 0-9 _ \
             and no digit in front"
        )));
    }
    match RESERVED.iter().find(|(prefix, _)| name.starts_with(prefix)) {
        Some((_, why)) => Err(invalid(format!("environment variable {name} cannot be set: {why}"))),
        None => Ok(()),
    }
}

/// Checks the name of a secret.
///
/// # Errors
/// `invalid_argument` with the form of a name.
pub fn check_secret_name(name: &str) -> Result<(), Error> {
    check_plain("secret", name)
}

/// Checks the name of a folder that nodes lend.
///
/// # Errors
/// `invalid_argument` with the form of a name.
pub fn check_folder_name(name: &str) -> Result<(), Error> {
    check_plain("lent folder", name)
}

/// Checks the value of a secret.
///
/// # Errors
/// `invalid_argument` with the limit, without the value.
pub fn check_secret_value(name: &str, value: &str) -> Result<(), Error> {
    if !(1..=MAX_SECRET_BYTES).contains(&value.len()) {
        let bytes = value.len();
        return Err(invalid(format!("secret {name} has {bytes} bytes, not 1 to {MAX_SECRET_BYTES}")));
    }
    if value.contains('\0') {
        return Err(invalid(format!(
            "secret {name} has a zero byte, which no environment variable can have"
        )));
    }
    Ok(())
}

/// Checks the name of a kind of devices that nodes lend.
///
/// # Errors
/// `invalid_argument` with the form of a name.
pub fn check_device_kind(name: &str) -> Result<(), Error> {
    check_plain("kind of devices", name)
}

/// The kind of a node's devices that a kind in a lease's needs means.
pub fn meant_kind<'name>(node: &NodeDescription, kind: &'name str) -> &'name str {
    let is_lent = |kind: &str| node.lent_devices.iter().any(|lent| lent.kind == kind);
    if kind != GPU || is_lent(kind) {
        return kind;
    }
    GPU_KINDS.into_iter().find(|kind| is_lent(kind)).unwrap_or(kind)
}

/// Number of devices that a node lends of the kind that a need means.
pub fn lent_count(node: &NodeDescription, kind: &str) -> usize {
    let kind = meant_kind(node, kind);
    node.lent_devices.iter().find(|lent| lent.kind == kind).map_or(0, |lent| lent.names.len())
}

fn check_device_counts(devices: &[DeviceCount]) -> Result<(), Error> {
    at_most("kinds of devices", devices.len(), MAX_DEVICE_KINDS)?;
    for DeviceCount { kind, count } in devices {
        check_device_kind(kind)?;
        if !(1..=MAX_DEVICES).contains(&(*count as usize)) {
            return Err(invalid(format!(
                "{count} devices of the kind {kind} asked, 1 to {MAX_DEVICES} are possible"
            )));
        }
    }
    check_once(devices.iter().map(|one| &one.kind), "kind of devices")
}

fn describe_devices(kind: &str, count: u32) -> String {
    match count {
        1 => format!("a device of the kind {kind:?}"),
        count => format!("{count} devices of the kind {kind:?}"),
    }
}

fn describe_folder(name: &str) -> String {
    format!("folder {name:?}")
}

fn describe_space(bytes: u64) -> String {
    format!("{bytes} bytes of temporary space")
}

fn describe_isolation(name: &str) -> String {
    format!("isolation {name:?}")
}

fn check_plain(what: &str, name: &str) -> Result<(), Error> {
    if is_name(name) {
        return Ok(());
    }
    let shown: String = name.chars().take(64).collect();
    Err(invalid(format!("{shown:?} cannot be the name of a {what}: {}", name_form())))
}

fn check_once<'name>(names: impl Iterator<Item = &'name String>, what: &str) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    let mut names = names;
    match names.find(|name| !seen.insert(*name)) {
        Some(name) => Err(invalid(format!("{what} {name} is set twice"))),
        None => Ok(()),
    }
}

fn at_most(what: &str, count: usize, most: usize) -> Result<(), Error> {
    if count <= most { Ok(()) } else { Err(invalid(format!("{count} {what}, at most {most} are possible"))) }
}

fn invalid(message: String) -> Error {
    Error::new(Code::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{LentDevices, LentFolder};

    fn variable(name: &str, value: &str) -> Variable {
        Variable { name: name.into(), value: value.into() }
    }

    fn message(needs: &Needs) -> String {
        let error = needs.check().unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
        error.message
    }

    #[test]
    fn rejects_invalid_names_and_shows_no_value() {
        let of =
            |name: &str, value: &str| Needs { variables: vec![variable(name, value)], ..Needs::default() };
        for name in ["", "1A", "A-B", "A B", "A=B", "Ä", "LD_PRELOAD", "SUBLET_X"] {
            let message = message(&of(name, "hidden"));
            assert!(message.contains(name) && !message.contains("hidden"), "{name}: {message}");
        }
        assert!(message(&of("A", "hid\0den")).contains("zero byte"));
        assert!(message(&of("A", &"x".repeat(MAX_VARIABLES_BYTES))).contains("32769 bytes"));
        of("_a1", "").check().unwrap();
        let many = (0..=MAX_VARIABLES).map(|number| variable(&format!("A{number}"), "")).collect();
        assert!(message(&Needs { variables: many, ..Needs::default() }).contains("129"));
        let secrets = |uses: &[&str]| Needs {
            secrets: uses.iter().map(|text| parse_secret_use(text)).collect(),
            ..Needs::default()
        };
        assert!(message(&secrets(&["a/b"])).contains("a/b"));
        assert!(message(&secrets(&["db-key"])).contains("db-key"), "not the name of a variable");
        assert!(message(&secrets(&["A=x", "A=y"])).contains("A is set twice"));
        secrets(&["A=db-key", "B=db-key", "KEY"]).check().unwrap();
        let folders = |names: &[&str]| Needs {
            folders: names.iter().map(ToString::to_string).collect(),
            ..Needs::default()
        };
        for name in ["..", "a/b", ".a", ""] {
            assert!(message(&folders(&[name])).contains(&format!("{name:?}")), "{name}");
        }
        assert!(message(&folders(&["a", "a"])).contains("twice"));
        assert!(message(&Needs { temporary_bytes: 1, ..Needs::default() }).contains("temporary"));
    }

    #[test]
    fn value_is_never_part_of_debug_output() {
        let shown = format!("{:?}", Needs { variables: vec![variable("KEY", "hidden")], ..Needs::default() });
        assert!(shown.contains("KEY") && !shown.contains("hidden"), "{shown}");
        let request = SetSecretRequest { name: "KEY".into(), value: "hidden".into() };
        assert!(!format!("{request:?}").contains("hidden"));
    }

    #[test]
    fn needs_of_a_lease_take_precedence() {
        let package = Needs {
            variables: vec![variable("A", "1"), variable("B", "1")],
            secrets: vec![parse_secret_use("K=old")],
            folders: vec!["data".into()],
            temporary_bytes: 1 << 20,
            isolation: "runsc".into(),
            devices: vec![devices("cuda", 1), devices("fpga", 1)],
        };
        let lease = Needs {
            variables: vec![variable("B", "2")],
            secrets: vec![parse_secret_use("K=new")],
            folders: vec!["data".into(), "work".into()],
            temporary_bytes: 0,
            isolation: String::new(),
            devices: vec![devices("cuda", 2)],
        };
        let all = package.with(&lease);
        assert_eq!(all.variables, [variable("A", "1"), variable("B", "2")]);
        assert_eq!(
            (all.secrets[0].secret.as_str(), all.folders.len(), all.temporary_bytes),
            ("new", 2, 1 << 20)
        );
        assert_eq!(all.isolation, "runsc");
        assert_eq!(all.devices, [devices("cuda", 2), devices("fpga", 1)]);
        let more = Needs { temporary_bytes: 7, isolation: "process".into(), ..lease };
        assert_eq!(
            (package.with(&more).temporary_bytes, package.with(&more).isolation.as_str()),
            (7, "process")
        );
    }

    fn devices(kind: &str, count: u32) -> DeviceCount {
        DeviceCount { kind: kind.into(), count }
    }

    #[test]
    fn names_the_devices_that_a_node_lacks() {
        let lending = |kind: &str, names: &[&str]| NodeDescription {
            lent_devices: vec![LentDevices {
                kind: kind.into(),
                names: names.iter().map(ToString::to_string).collect(),
            }],
            ..NodeDescription::default()
        };
        let needs = |kind: &str, count| Needs { devices: vec![devices(kind, count)], ..Needs::default() };
        let node = lending("rocm", &["0", "1"]);
        assert_eq!(needs("rocm", 2).lacking(&node), None);
        assert_eq!(needs(GPU, 2).lacking(&node), None, "a GPU of any make");
        assert_eq!(needs("rocm", 3).lacking(&node).unwrap(), "3 devices of the kind \"rocm\"");
        assert_eq!(needs("fpga", 1).lacking(&node).unwrap(), "a device of the kind \"fpga\"");
        assert_eq!(meant_kind(&lending("gpu", &["0"]), GPU), "gpu", "an operator's own kind comes first");
        assert_eq!(meant_kind(&node, "cuda"), "cuda");
    }

    #[test]
    fn refuses_devices_that_no_lease_can_have() {
        let of = |all: &[(&str, u32)]| Needs {
            devices: all.iter().map(|&(kind, count)| devices(kind, count)).collect(),
            ..Needs::default()
        };
        assert!(message(&of(&[("../dev", 1)])).contains("../dev"));
        assert!(message(&of(&[("cuda", 0)])).contains("0 devices of the kind cuda"));
        assert!(message(&of(&[("cuda", 65)])).contains("1 to 64"));
        assert!(message(&of(&[("cuda", 1), ("cuda", 2)])).contains("cuda is set twice"));
        of(&[("cuda", 64), ("fpga", 1)]).check().unwrap();
    }

    #[test]
    fn names_what_a_node_lacks() {
        let folders = vec![LentFolder { name: "data".into(), writable: false }];
        let lent = NodeDescription { folders, ..NodeDescription::default() };
        let needs = Needs { folders: vec!["data".into(), "work".into()], ..Needs::default() };
        assert_eq!(needs.lacking(&lent).unwrap(), "folder \"work\"");
        let space = Needs { temporary_bytes: 9, ..Needs::default() };
        let node = |temporary_bytes| NodeDescription { temporary_bytes, ..NodeDescription::default() };
        assert!(space.lacking(&node(8)).unwrap().contains("9 bytes"));
        assert_eq!((space.lacking(&node(9)), space.lacking(&node(0))), (None, None));
        let weak = NodeDescription { isolations: vec!["weak".into()], ..node(0) };
        assert!(space.lacking(&weak).is_some());
        let isolated = Needs { isolation: "runc".into(), ..Needs::default() };
        assert_eq!(isolated.lacking(&node(0)).unwrap(), "isolation \"runc\"");
        let offering = NodeDescription { isolations: vec!["runc".into()], ..node(0) };
        assert_eq!(isolated.lacking(&offering), None);
        assert!(isolated.check().is_ok());
        assert!(message(&Needs { isolation: "vm".into(), ..Needs::default() }).contains("\"vm\""));
        let parts = Needs { temporary_bytes: 9, isolation: "runc".into(), ..needs }.parts();
        assert_eq!((parts.len(), parts[2].1.as_str()), (4, "9 bytes of temporary space"));
        assert_eq!(parts[3].1, "isolation \"runc\"");
    }
}
