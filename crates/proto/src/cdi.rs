//! Reads specifications of the Container Device Interface (CDI), by which vendors describe what a program needs to use a
//! device: device nodes, files, and environment variables.
//!
//! A specification says more than a sandbox can have. A field without a meaning here is ignored only if nothing is lost by
//! that; every other one is refused with its name. Hooks are programs of the host that would be executed for a container; a few
//! known ones only prepare what sandboxes have anyway, and all others are refused.

use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::needs::check_variable_name;
use crate::{Code, Error};

/// Largest specification, in bytes.
pub const MAX_CDI_BYTES: usize = 1 << 20;
/// Most devices of a specification.
pub const MAX_CDI_DEVICES: usize = 256;
/// Most device nodes, and most mounts, of a device or of all devices of a specification in common.
const MAX_EDITS: usize = 64;
/// Longest name of a device, in bytes.
const MAX_NAME_BYTES: usize = 128;
/// Minor numbers of the versions that are read; the major number is 0.
const VERSIONS: std::ops::RangeInclusive<u32> = 3..=8;
/// Device nodes of every sandbox, which no device may cover.
const OWN_NODES: [&str; 10] =
    ["null", "zero", "full", "random", "urandom", "shm", "fd", "stdin", "stdout", "stderr"];
/// Folders of every sandbox in which nothing of a device may be mounted.
const OWN_FOLDERS: [&str; 8] = ["dev", "proc", "sys", "tmp", "package", "folders", "environment", "program"];
/// Hooks that prepare what sandboxes have anyway: the host's list of libraries, its links, and its modes of files.
const NEEDLESS_HOOKS: [&str; 5] =
    ["update-ldcache", "create-symlinks", "chmod", "enable-cuda-compat", "disable-device-node-modification"];

/// A specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CdiSpec {
    /// Kind of the devices, as `nvidia.com/gpu`.
    pub kind: String,
    /// Devices that the specification describes.
    pub devices: Vec<CdiDevice>,
    /// Edits that programs need for each of these devices.
    pub common: DeviceEdits,
}

/// A device of a specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CdiDevice {
    /// Name, unique in its kind.
    pub name: String,
    /// Edits that programs need for this device.
    pub edits: DeviceEdits,
}

/// Device nodes, files and variables that a program needs to use devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceEdits {
    /// Device nodes.
    pub nodes: Vec<ShownPath>,
    /// Files and folders, which the program can only read.
    pub mounts: Vec<ShownPath>,
    /// Environment variables.
    pub variables: Vec<(String, String)>,
}

/// A path of the host that a program sees.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShownPath {
    /// Path on the host.
    pub source: PathBuf,
    /// Path at which the program sees it.
    pub place: PathBuf,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    cdi_version: String,
    kind: String,
    #[serde(default, rename = "annotations")]
    _annotations: Option<IgnoredAny>,
    #[serde(default)]
    devices: Vec<WrittenDevice>,
    container_edits: Option<WrittenEdits>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenDevice {
    name: String,
    #[serde(default, rename = "annotations")]
    _annotations: Option<IgnoredAny>,
    container_edits: Option<WrittenEdits>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenEdits {
    #[serde(default)]
    env: Vec<String>,
    #[serde(default)]
    device_nodes: Vec<WrittenNode>,
    #[serde(default)]
    mounts: Vec<WrittenMount>,
    #[serde(default)]
    hooks: Vec<WrittenHook>,
    // Device nodes have to be open to all users: no group is needed.
    #[serde(default, rename = "additionalGids")]
    _groups: Option<IgnoredAny>,
}

/// A device node. The node of the host is shown as it is, so its numbers, mode and owner are not used.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenNode {
    path: String,
    host_path: Option<String>,
    #[serde(rename = "type")]
    sort: Option<String>,
    permissions: Option<String>,
    #[serde(rename = "major")]
    _major: Option<IgnoredAny>,
    #[serde(rename = "minor")]
    _minor: Option<IgnoredAny>,
    #[serde(rename = "fileMode")]
    _mode: Option<IgnoredAny>,
    #[serde(rename = "uid")]
    _user: Option<IgnoredAny>,
    #[serde(rename = "gid")]
    _group: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenMount {
    host_path: String,
    container_path: String,
    #[serde(default)]
    options: Vec<String>,
    #[serde(rename = "type")]
    _sort: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenHook {
    #[serde(rename = "hookName")]
    _name: Option<IgnoredAny>,
    path: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(rename = "env")]
    _env: Option<IgnoredAny>,
    #[serde(rename = "timeout")]
    _timeout: Option<IgnoredAny>,
}

impl CdiSpec {
    /// Parses a specification in JSON, of the versions 0.3 to 0.8.
    ///
    /// # Errors
    /// `invalid_argument` with what is wrong, or what sandboxes cannot have.
    pub fn parse(text: &[u8]) -> Result<CdiSpec, Error> {
        if text.len() > MAX_CDI_BYTES {
            return Err(wrong(format!("it has {} bytes, at most {MAX_CDI_BYTES} are read", text.len())));
        }
        let written: Written =
            serde_json::from_slice(text).map_err(|error| wrong(format!("it is not valid: {error}")))?;
        check_version(&written.cdi_version)?;
        check_cdi_kind(&written.kind)?;
        if written.devices.len() > MAX_CDI_DEVICES {
            let count = written.devices.len();
            return Err(wrong(format!("it has {count} devices, at most {MAX_CDI_DEVICES} are possible")));
        }
        let device = |device: WrittenDevice| {
            check_device_name(&device.name)?;
            let named = |error: Error| wrong(format!("its device {}: {}", device.name, error.message));
            let edits = edits(device.container_edits.unwrap_or_default()).map_err(named)?;
            Ok(CdiDevice { name: device.name, edits })
        };
        let devices = written.devices.into_iter().map(device).collect::<Result<Vec<_>, Error>>()?;
        let mut names: Vec<_> = devices.iter().map(|device| &device.name).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(wrong(format!("it has two devices {}", pair[0])));
        }
        let common = edits(written.container_edits.unwrap_or_default())?;
        Ok(CdiSpec { kind: written.kind, devices, common })
    }
}

/// Checks the name of a kind of CDI devices.
///
/// # Errors
/// `invalid_argument` with the form of a name.
pub fn check_cdi_kind(kind: &str) -> Result<(), Error> {
    let is_part = |part: &str| {
        let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        part.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric()) && part.bytes().all(is_inner)
    };
    let is_kind = kind.split_once('/').is_some_and(|(vendor, class)| is_part(vendor) && is_part(class));
    if is_kind && kind.len() <= MAX_NAME_BYTES {
        return Ok(());
    }
    Err(wrong(format!("{kind:.64?} is not a kind of CDI devices: it has the form vendor.com/class")))
}

/// Checks that a path is plain: absolute, beneath the root, and without `.` and `..`.
///
/// # Errors
/// `invalid_argument` with the path.
pub fn check_plain_path(path: &Path) -> Result<(), Error> {
    let text = path.to_string_lossy();
    let is_written_plainly = !text.ends_with('/') && !text.contains("/./") && !text.contains("//");
    let mut components = path.components();
    let is_absolute = components.next() == Some(Component::RootDir);
    let names: Vec<_> = components.collect();
    let is_plain = names.iter().all(|one| matches!(one, Component::Normal(_)));
    if is_absolute && is_plain && !names.is_empty() && is_written_plainly && !text.ends_with("/.") {
        let has_zero = text.contains('\0');
        return if has_zero { Err(wrong(format!("the path {text:?} has a zero byte"))) } else { Ok(()) };
    }
    Err(wrong(format!("the path {text:.256?} is not an absolute path without . and ..")))
}

/// Checks the path at which sandboxes see a device node.
///
/// # Errors
/// `invalid_argument` with the path.
pub fn check_node_place(place: &Path) -> Result<(), Error> {
    check_plain_path(place)?;
    let within = place.strip_prefix("/dev").map_err(|_| {
        wrong(format!(
            "the device node {} is not in /dev, where device nodes of sandboxes are",
            place.display()
        ))
    })?;
    let first = within.components().next().map(|one| one.as_os_str());
    if first.is_none_or(|first| OWN_NODES.iter().any(|own| first == *own)) {
        return Err(wrong(format!(
            "{} is there in every sandbox, and cannot be a device's",
            place.display()
        )));
    }
    Ok(())
}

fn check_mount_place(place: &Path) -> Result<(), Error> {
    check_plain_path(place)?;
    let first = place.components().nth(1).map(|one| one.as_os_str());
    if first.is_none_or(|first| OWN_FOLDERS.iter().any(|own| first == *own)) {
        return Err(wrong(format!("{} is in a folder that is the sandbox's own", place.display())));
    }
    Ok(())
}

fn check_version(version: &str) -> Result<(), Error> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    let is_known = parts.next() == Some(Some(0))
        && parts.next().flatten().is_some_and(|minor| VERSIONS.contains(&minor))
        && parts.all(|part| part.is_some());
    if is_known {
        return Ok(());
    }
    Err(wrong(format!("its cdiVersion is {version:.32?}, and 0.3 to 0.8 are read")))
}

fn check_device_name(name: &str) -> Result<(), Error> {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b':');
    let is_name = (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
        && name.bytes().all(is_inner);
    if is_name {
        return Ok(());
    }
    Err(wrong(format!("{name:.64?} cannot be the name of a device")))
}

fn edits(written: WrittenEdits) -> Result<DeviceEdits, Error> {
    let WrittenEdits { env, device_nodes, mounts, hooks, _groups: _ } = written;
    for (what, count) in
        [("device nodes", device_nodes.len()), ("mounts", mounts.len()), ("variables", env.len())]
    {
        if count > MAX_EDITS {
            return Err(wrong(format!("{count} {what}, at most {MAX_EDITS} are possible")));
        }
    }
    hooks.iter().try_for_each(check_hook)?;
    Ok(DeviceEdits {
        nodes: device_nodes.into_iter().map(node).collect::<Result<_, _>>()?,
        mounts: mounts.into_iter().map(mount).collect::<Result<_, _>>()?,
        variables: env.into_iter().map(variable).collect::<Result<_, _>>()?,
    })
}

fn node(written: WrittenNode) -> Result<ShownPath, Error> {
    let place = PathBuf::from(written.path);
    check_node_place(&place)?;
    let shown = place.display();
    match written.sort.as_deref().unwrap_or_default() {
        "" | "c" | "u" => {}
        sort => {
            return Err(wrong(format!("{shown} is a device of the type {sort:.8?}, and only c is possible")));
        }
    }
    let permissions = written.permissions.unwrap_or_default();
    let is_partial = !permissions.contains('r') || !permissions.contains('w');
    if !permissions.is_empty() && is_partial {
        let message =
            format!("{shown} has the permissions {permissions:.8?}: a sandbox reads and writes its devices");
        return Err(wrong(message));
    }
    let source =
        written.host_path.filter(|path| !path.is_empty()).map_or_else(|| place.clone(), PathBuf::from);
    check_plain_path(&source)?;
    Ok(ShownPath { source, place })
}

fn mount(written: WrittenMount) -> Result<ShownPath, Error> {
    let (source, place) = (PathBuf::from(written.host_path), PathBuf::from(written.container_path));
    check_plain_path(&source)?;
    check_mount_place(&place)?;
    if written.options.iter().any(|option| option == "rw") {
        return Err(wrong(format!(
            "{} is mounted to be written to, which no sandbox can have",
            place.display()
        )));
    }
    Ok(ShownPath { source, place })
}

fn variable(written: String) -> Result<(String, String), Error> {
    let (name, value) =
        written.split_once('=').ok_or_else(|| wrong(format!("the variable {written:.64?} has no =")))?;
    check_variable_name(name)?;
    if value.contains('\0') {
        return Err(wrong(format!("the value of variable {name} has a zero byte")));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Refuses a hook unless it is known to be needless.
fn check_hook(hook: &WrittenHook) -> Result<(), Error> {
    let program = Path::new(&hook.path).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_of_nvidia = matches!(program, "nvidia-ctk" | "nvidia-cdi-hook");
    let is_needless = |word: &String| NEEDLESS_HOOKS.contains(&word.as_str());
    if is_of_nvidia && hook.args.iter().take(3).any(is_needless) {
        return Ok(());
    }
    let message = format!("it has a hook, {:.128?}, and sandboxes execute no hooks of devices", hook.path);
    Err(wrong(message))
}

fn wrong(message: String) -> Error {
    Error::new(Code::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn parse(value: &Value) -> Result<CdiSpec, Error> {
        CdiSpec::parse(value.to_string().as_bytes())
    }

    fn spec(edits: Value) -> Value {
        json!({
            "cdiVersion": "0.6.0",
            "kind": "test.com/null",
            "devices": [{ "name": "0", "containerEdits": edits }],
        })
    }

    #[track_caller]
    fn message(value: &Value) -> String {
        let error = parse(value).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
        error.message
    }

    #[test]
    fn reads_nodes_mounts_and_variables() {
        let mut value = spec(json!({
            "deviceNodes": [
                { "path": "/dev/test0", "hostPath": "/dev/null", "type": "c", "permissions": "rw", "major": 1 },
                { "path": "/dev/other" },
            ],
            "mounts": [{ "hostPath": "/a/b", "containerPath": "/usr/share/b", "options": ["ro", "bind"] }],
            "env": ["WHICH=0=1"],
            "additionalGids": [5],
        }));
        value["containerEdits"] = json!({
            "hooks": [{ "hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook",
                        "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", "/lib"] }],
            "deviceNodes": [{ "path": "/dev/control" }],
        });
        let parsed = parse(&value).unwrap();
        let shown = |source: &str, place: &str| ShownPath { source: source.into(), place: place.into() };
        let edits = &parsed.devices[0].edits;
        assert_eq!(edits.nodes, [shown("/dev/null", "/dev/test0"), shown("/dev/other", "/dev/other")]);
        assert_eq!(edits.mounts, [shown("/a/b", "/usr/share/b")]);
        assert_eq!(edits.variables, [("WHICH".to_owned(), "0=1".to_owned())]);
        assert_eq!((parsed.kind.as_str(), parsed.common.nodes.len()), ("test.com/null", 1));
    }

    #[test]
    fn refuses_what_sandboxes_cannot_have_by_name() {
        let node = |path: &str| json!({ "deviceNodes": [{ "path": path }] });
        let mount = |place: &str| json!({ "mounts": [{ "hostPath": "/a", "containerPath": place }] });
        for (edits, named) in [
            (node("/dev/../etc/shadow"), "/dev/../etc/shadow"),
            (node("dev/x"), "dev/x"),
            (node("/etc/x"), "is not in /dev"),
            (node("/dev/null"), "/dev/null"),
            (node("/dev/shm/x"), "/dev/shm/x"),
            (node("/dev"), "/dev"),
            (json!({ "deviceNodes": [{ "path": "/dev/x", "hostPath": "/dev/a/../b" }] }), "/dev/a/../b"),
            (json!({ "deviceNodes": [{ "path": "/dev/x", "type": "b" }] }), "\"b\""),
            (json!({ "deviceNodes": [{ "path": "/dev/x", "permissions": "r" }] }), "permissions"),
            (mount("/proc/x"), "/proc/x"),
            (mount("/tmp"), "/tmp"),
            (mount("/usr/../x"), "/usr/../x"),
            (mount("/"), "\"/\""),
            (
                json!({ "mounts": [{ "hostPath": "/a", "containerPath": "/b", "options": ["rw"] }] }),
                "written to",
            ),
            (
                json!({ "hooks": [{ "hookName": "x", "path": "/bin/evil", "args": ["update-ldcache"] }] }),
                "/bin/evil",
            ),
            (json!({ "env": ["LD_PRELOAD=/x.so"] }), "LD_PRELOAD"),
            (json!({ "env": ["NAME"] }), "no ="),
            (json!({ "netDevices": [] }), "netDevices"),
        ] {
            let told = message(&spec(edits.clone()));
            assert!(told.contains(named), "{edits}: {told}");
        }
    }

    #[test]
    fn refuses_other_versions_kinds_and_names() {
        let with = |key: &str, value: Value| {
            let mut all = spec(json!({}));
            all[key] = value;
            message(&all)
        };
        for version in ["0.2.0", "0.9.0", "1.0.0", "0.x", "", "0.5.x"] {
            assert!(with("cdiVersion", json!(version)).contains("cdiVersion"), "{version}");
        }
        for kind in ["gpu", "a/b/c", "/x", "a/", "../x"] {
            assert!(with("kind", json!(kind)).contains(kind), "{kind}");
        }
        for name in ["", "../x", "a b"] {
            assert!(with("devices", json!([{ "name": name }])).contains("cannot be the name"), "{name}");
        }
        assert!(with("devices", json!([{ "name": "0" }, { "name": "0" }])).contains("two devices 0"));
        assert!(with("devices", json!(vec![json!({ "name": "0" }); 257])).contains("257 devices"));
        assert!(CdiSpec::parse(b"cdiVersion: 0.6.0\n").unwrap_err().message.contains("not valid"));
        assert!(CdiSpec::parse(&vec![b' '; MAX_CDI_BYTES + 1]).unwrap_err().message.contains("bytes"));
    }

    proptest! {
        #[test]
        fn accepts_no_path_that_leaves_its_folder(
            text in proptest::collection::vec(any::<u8>(), 0..64),
            words in proptest::collection::vec("[a-z./]{0,8}", 0..6),
        ) {
            prop_assert!(CdiSpec::parse(&text).is_err());
            let path = format!("/dev/{}", words.join("/"));
            let edits = json!({ "deviceNodes": [{ "path": path.clone(), "hostPath": "/dev/null" }] });
            if let Ok(parsed) = parse(&spec(edits)) {
                let place = &parsed.devices[0].edits.nodes[0].place;
                prop_assert!(place.starts_with("/dev") && place.components().count() > 2, "{place:?}");
                prop_assert!(place.components().all(|one| one != Component::ParentDir), "{place:?}");
                prop_assert_eq!(place.to_string_lossy(), path);
            }
        }
    }
}
