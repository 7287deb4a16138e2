//! Devices that the operator lends whole to programs: finds them by CDI specifications or by device nodes, and checks that
//! sandboxes can use them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use sublet_proto::cdi::{CdiSpec, DeviceEdits, MAX_CDI_BYTES, ShownPath, check_cdi_kind, check_node_place};
use sublet_proto::needs::{MAX_DEVICE_KINDS, MAX_DEVICES, check_device_kind};
use sublet_proto::package::can_open_devices;
use sublet_proto::v1::{PackageBuild, Variable};
use sublet_proto::{Code, Error};
use sublet_sandbox::{DeviceMount, DevicePlace, MAX_DEVICE_MOUNTS, spawner};

use crate::machine::devices::{DevicePool, DeviceReservation, LentDevice};

/// Name of a CDI device that stands for all of its kind.
const ALL: &str = "all";
/// Permissions that let all users read and write a device node.
const OPEN: u32 = 0o006;

/// Devices of one kind that the operator lends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Name by which leases ask for them.
    pub kind: String,
    /// Where the devices are found.
    pub source: DeviceSource,
}

/// Where the devices of a kind are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSource {
    /// All devices of this kind of CDI, as `nvidia.com/gpu`.
    Cdi(String),
    /// The device nodes of each device, at the same paths in sandboxes.
    Nodes(Vec<Vec<PathBuf>>),
}

/// A specification, and its file.
struct SpecFile {
    path: PathBuf,
    spec: CdiSpec,
}

/// Finds the devices that are to be lent. The folders have CDI specifications.
///
/// # Errors
/// `invalid_argument` with the file or the device, and what is wrong with it.
pub(crate) fn find(options: &[DeviceOptions], folders: &[PathBuf]) -> Result<DevicePool, Error> {
    if options.len() > MAX_DEVICE_KINDS {
        let count = options.len();
        return Err(invalid(format!(
            "{count} kinds of devices are lent, at most {MAX_DEVICE_KINDS} are possible"
        )));
    }
    let wants_cdi = options.iter().any(|one| matches!(one.source, DeviceSource::Cdi(_)));
    let files = if wants_cdi { read_folders(folders)? } else { Vec::new() };
    let mut kinds = BTreeMap::new();
    for DeviceOptions { kind, source } in options {
        check_device_kind(kind)?;
        let named = |error: Error| Error::new(error.code, format!("the devices {kind:?}: {}", error.message));
        let devices = match source {
            DeviceSource::Cdi(cdi) => of_cdi(cdi, &files, folders),
            DeviceSource::Nodes(all) => of_nodes(all),
        };
        let devices = devices.map_err(named)?;
        if devices.is_empty() || devices.len() > MAX_DEVICES {
            let message = format!("{} devices, 1 to {MAX_DEVICES} are possible", devices.len());
            return Err(named(invalid(message)));
        }
        devices.iter().try_for_each(check_on_host).map_err(named)?;
        if kinds.insert(kind.clone(), devices).is_some() {
            return Err(invalid(format!("two kinds of devices are lent as {kind:?}")));
        }
    }
    check_apart(&kinds)?;
    Ok(DevicePool::new(
        kinds
            .into_iter()
            .map(|(kind, devices)| (kind, devices.into_iter().map(FoundDevice::lent).collect()))
            .collect(),
    ))
}

/// A device with the nodes that are its own, and not those of all devices of a specification.
#[derive(Debug)]
struct FoundDevice {
    name: String,
    own_nodes: BTreeSet<PathBuf>,
    edits: DeviceEdits,
}

impl FoundDevice {
    fn lent(self) -> LentDevice {
        LentDevice { name: self.name, edits: self.edits }
    }
}

/// Refuses devices for functions that cannot open them.
pub(crate) fn check(reserved: &DeviceReservation, package: &str, build: &PackageBuild) -> Result<(), Error> {
    if reserved.is_empty() || can_open_devices(build) {
        return Ok(());
    }
    let what =
        if build.image.is_empty() { format!("of the kind {}", build.kind) } else { "in an image".to_owned() };
    Err(invalid(format!(
        "the lease has devices, which native code and Python can open, and the functions of package {package} are {what}"
    )))
}

/// The environment variables of devices. The last of several values of the same variable counts.
pub(crate) fn variables<'devices>(devices: impl Iterator<Item = &'devices LentDevice>) -> Vec<Variable> {
    let all = devices.flat_map(|device| &device.edits.variables);
    let all: BTreeMap<_, _> = all.map(|variable| (&variable.0, &variable.1)).collect();
    let variable = |(name, value): (&String, &String)| Variable { name: name.clone(), value: value.clone() };
    all.into_iter().map(variable).collect()
}

/// The mounts of devices for the sandbox of a lease.
///
/// # Errors
/// `insufficient_resources` with a path that is gone, and `invalid_argument` for devices that need too many.
pub(crate) fn mounts<'devices>(
    devices: impl Iterator<Item = &'devices LentDevice>,
) -> Result<Vec<DeviceMount>, Error> {
    let mut shown = BTreeSet::new();
    for LentDevice { name, edits } in devices {
        for path in edits.nodes.iter().chain(&edits.mounts) {
            if let Err(error) = fs::metadata(&path.source) {
                let message = format!("{} of the device {name} is gone: {error}", path.source.display());
                return Err(Error::new(Code::InsufficientResources, message));
            }
            shown.insert(path);
        }
    }
    if shown.len() > MAX_DEVICE_MOUNTS {
        let count = shown.len();
        return Err(invalid(format!(
            "the devices of a lease need {count} mounts, {MAX_DEVICE_MOUNTS} are possible"
        )));
    }
    let mount = |path: &ShownPath| DeviceMount { source: path.source.clone(), place: path.place.clone() };
    Ok(shown.into_iter().map(mount).collect())
}

/// The places of all devices in sandboxes.
pub(crate) fn places(pool: &DevicePool) -> Vec<DevicePlace> {
    let mut places = BTreeSet::new();
    for device in pool.all() {
        places.extend(device.edits.nodes.iter().map(|node| DevicePlace::File(node.place.clone())));
        places.extend(device.edits.mounts.iter().map(|mount| {
            let place = mount.place.clone();
            if mount.source.is_dir() { DevicePlace::Folder(place) } else { DevicePlace::File(place) }
        }));
    }
    places.into_iter().collect()
}

/// Reads all specifications of the folders that exist.
fn read_folders(folders: &[PathBuf]) -> Result<Vec<SpecFile>, Error> {
    let mut files = Vec::new();
    for path in files_of(folders, &["json"])? {
        let failed = |why: String| invalid(format!("the CDI specification {}: {why}", path.display()));
        let bytes = read(&path).map_err(|error| failed(error.to_string()))?;
        let spec = CdiSpec::parse(&bytes).map_err(|error| failed(error.message))?;
        files.push(SpecFile { path, spec });
    }
    Ok(files)
}

/// Reads a file up to a byte more than a specification may have.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(MAX_CDI_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Files with one of these extensions in folders, those of each folder in the order of their names.
fn files_of(folders: &[PathBuf], extensions: &[&str]) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for folder in folders {
        let failed = |error: std::io::Error| {
            invalid(format!("the folder {} cannot be read: {error}", folder.display()))
        };
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            entries => entries.map_err(failed)?,
        };
        let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
        let mut paths = paths.map_err(failed)?;
        let is_one =
            |path: &PathBuf| extensions.iter().any(|one| path.extension().is_some_and(|own| own == *one));
        paths.retain(is_one);
        paths.sort();
        files.extend(paths);
    }
    Ok(files)
}

/// The devices of a kind of CDI. A device that needs the same as an earlier one is another name of that.
fn of_cdi(kind: &str, files: &[SpecFile], folders: &[PathBuf]) -> Result<Vec<FoundDevice>, Error> {
    check_cdi_kind(kind)?;
    let mut devices: Vec<FoundDevice> = Vec::new();
    let mut files_by_name = BTreeMap::new();
    for SpecFile { path, spec } in files.iter().filter(|file| file.spec.kind == kind) {
        for device in spec.devices.iter().filter(|device| device.name != ALL) {
            if let Some(other) = files_by_name.insert(&device.name, path) {
                let (other, own) = (other.display(), path.display());
                return Err(invalid(format!(
                    "device {} is in two specifications, {other} and {own}",
                    device.name
                )));
            }
            let own_nodes: BTreeSet<_> = device.edits.nodes.iter().map(|node| node.source.clone()).collect();
            let edits = together(&spec.common, &device.edits);
            if devices.iter().any(|known| known.edits == edits) {
                continue;
            }
            devices.push(FoundDevice { name: device.name.clone(), own_nodes, edits });
        }
    }
    if devices.is_empty() {
        return Err(no_spec(kind, folders)?);
    }
    Ok(devices)
}

/// The error of a kind for which there is no specification.
fn no_spec(kind: &str, folders: &[PathBuf]) -> Result<Error, Error> {
    let shown: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
    let mut message = format!("no CDI specification in {} has devices of the kind {kind}", shown.join(", "));
    if let Some(file) = files_of(folders, &["yaml", "yml"])?.first() {
        message += &format!(
            "; {} is YAML, which is not read: write it as JSON (nvidia-ctk cdi generate --format json)",
            file.display()
        );
    }
    Ok(invalid(message))
}

/// Everything that a program needs for a device: the edits that all devices share come first.
fn together(common: &DeviceEdits, own: &DeviceEdits) -> DeviceEdits {
    let is_needed = |mount: &&ShownPath| !is_shown_anyway(mount);
    DeviceEdits {
        nodes: common.nodes.iter().chain(&own.nodes).cloned().collect(),
        mounts: common.mounts.iter().chain(&own.mounts).filter(is_needed).cloned().collect(),
        variables: common.variables.iter().chain(&own.variables).cloned().collect(),
    }
}

/// Whether every sandbox sees a file of the host where a device needs it.
fn is_shown_anyway(mount: &ShownPath) -> bool {
    mount.source == mount.place && spawner::is_shown_to_all(&mount.place)
}

/// Devices of named nodes.
fn of_nodes(devices: &[Vec<PathBuf>]) -> Result<Vec<FoundDevice>, Error> {
    let device = |nodes: &Vec<PathBuf>| {
        nodes.iter().try_for_each(|node| check_node_place(node))?;
        let first = nodes.first().and_then(|node| node.file_name()).unwrap_or_default();
        let shown = |node: &PathBuf| ShownPath { source: node.clone(), place: node.clone() };
        let edits = DeviceEdits { nodes: nodes.iter().map(shown).collect(), ..DeviceEdits::default() };
        let name = first.to_string_lossy().into_owned();
        Ok(FoundDevice { name, own_nodes: nodes.iter().cloned().collect(), edits })
    };
    devices.iter().map(device).collect()
}

/// Checks that all is there that a device needs, and that sandboxes, which have users of their own, may open its nodes.
fn check_on_host(device: &FoundDevice) -> Result<(), Error> {
    let wrong = |path: &Path, why: String| {
        invalid(format!("{} of the device {}: {why}", path.display(), device.name))
    };
    if device.own_nodes.is_empty() {
        return Err(invalid(format!("the device {} has no device node of its own", device.name)));
    }
    for node in &device.edits.nodes {
        let metadata = fs::metadata(&node.source).map_err(|error| wrong(&node.source, error.to_string()))?;
        if !metadata.file_type().is_char_device() {
            return Err(wrong(&node.source, "it is no character device".to_owned()));
        }
        if metadata.mode() & OPEN != OPEN {
            let why = "sandboxes have users of their own: let all users read and write it (chmod o+rw, a rule of udev)";
            return Err(wrong(&node.source, why.to_owned()));
        }
    }
    for mount in &device.edits.mounts {
        fs::metadata(&mount.source).map_err(|error| wrong(&mount.source, error.to_string()))?;
        if spawner::is_shown_to_all(&mount.place) && fs::metadata(&mount.place).is_err() {
            let why = "sandboxes see the folder of the host there, which has no such file".to_owned();
            return Err(wrong(&mount.place, why));
        }
    }
    Ok(())
}

/// Refuses devices that are a part of each other, or the same: two leases would have it.
fn check_apart(kinds: &BTreeMap<String, Vec<FoundDevice>>) -> Result<(), Error> {
    let all: Vec<_> = kinds.iter().flat_map(|(kind, all)| all.iter().map(move |one| (kind, one))).collect();
    for (number, (kind, one)) in all.iter().enumerate() {
        for (other_kind, other) in all.iter().skip(number + 1) {
            if one.own_nodes.is_subset(&other.own_nodes) || other.own_nodes.is_subset(&one.own_nodes) {
                let (one, other) = (&one.name, &other.name);
                return Err(invalid(format!(
                    "the devices {kind}/{one} and {other_kind}/{other} are the same: one has all device nodes of the other"
                )));
            }
        }
    }
    Ok(())
}

fn invalid(message: String) -> Error {
    Error::new(Code::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, source: &str) -> String {
        format!(
            "{{\"name\": \"{name}\", \"containerEdits\": {{\"deviceNodes\": [{{\"path\": \"/dev/{name}\", \
             \"hostPath\": \"{source}\"}}]}}}}"
        )
    }

    fn write(folder: &Path, file: &str, devices: &[String]) {
        let text = format!(
            "{{\"cdiVersion\": \"0.6.0\", \"kind\": \"test.com/x\", \"devices\": [{}]}}",
            devices.join(", ")
        );
        fs::write(folder.join(file), text).unwrap();
    }

    fn cdi(kind: &str) -> DeviceOptions {
        DeviceOptions { kind: kind.into(), source: DeviceSource::Cdi("test.com/x".into()) }
    }

    fn refusal(options: &[DeviceOptions], folder: &Path) -> String {
        let error = find(options, &[folder.to_owned()]).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
        error.message
    }

    #[test]
    fn finds_devices_and_counts_second_names_once() {
        let folder = tempfile::tempdir().unwrap();
        let (zero, null) = (device("t0", "/dev/zero"), device("t1", "/dev/null"));
        let alias = zero.replace("\"name\": \"t0\"", "\"name\": \"GPU-1\"");
        write(folder.path(), "a.json", &[zero, null, alias, device("all", "/dev/full")]);
        let pool = find(&[cdi("x")], &[folder.path().to_owned(), "/no/such/folder".into()]).unwrap();
        let described = pool.described();
        assert_eq!(described[0].names, ["t0", "t1"]);
        let file = |place: &str| DevicePlace::File(place.into());
        assert_eq!(places(&pool), [file("/dev/t0"), file("/dev/t1")]);
    }

    #[test]
    fn names_the_file_or_device_that_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        fs::write(path.join("a.yaml"), "cdiVersion: 0.6.0\n").unwrap();
        let told = refusal(&[cdi("x")], path);
        assert!(told.contains("a.yaml") && told.contains("--format json"), "{told}");
        fs::write(path.join("a.json"), "{").unwrap();
        assert!(refusal(&[cdi("x")], path).contains("a.json"));
        write(path, "a.json", &[device("t0", "/no/such/node")]);
        assert!(refusal(&[cdi("x")], path).contains("/no/such/node"));
        write(path, "a.json", &[device("t0", "/etc/passwd")]);
        assert!(refusal(&[cdi("x")], path).contains("no character device"));
        write(path, "a.json", &[device("t0", "/dev/null"), device("t1", "/dev/null")]);
        assert!(refusal(&[cdi("x")], path).contains("x/t0 and x/t1 are the same"));
        write(path, "a.json", &[device("t0", "/dev/null")]);
        assert!(refusal(&[cdi("x"), cdi("y")], path).contains("are the same"));
        assert!(refusal(&[cdi("x"), cdi("x")], path).contains("two kinds"));
        write(path, "b.json", &[device("t0", "/dev/zero")]);
        let told = refusal(&[cdi("x")], path);
        assert!(told.contains("a.json") && told.contains("b.json") && told.contains("t0"), "{told}");
        let nodes = |node: &str| DeviceOptions {
            kind: "x".into(),
            source: DeviceSource::Nodes(vec![vec![node.into()]]),
        };
        assert!(refusal(&[nodes("/dev/../etc/x")], path).contains("/dev/../etc/x"));
        assert!(refusal(&[nodes("/dev/null")], path).contains("every sandbox"));
    }

    #[test]
    fn device_that_is_gone_is_named() {
        let gone = ShownPath { source: "/dev/no-such-node".into(), place: "/dev/t0".into() };
        let edits = DeviceEdits { nodes: vec![gone], ..DeviceEdits::default() };
        let device = LentDevice { name: "t0".into(), edits };
        let error = mounts(std::iter::once(&device)).unwrap_err();
        assert_eq!(error.code, Code::InsufficientResources);
        assert!(error.message.contains("/dev/no-such-node") && error.message.contains("t0"), "{error}");
    }
}
