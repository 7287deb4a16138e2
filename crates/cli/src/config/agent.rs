//! Configuration of `sublet agent`.

mod keys;

use std::net::SocketAddr;
use std::path::PathBuf;

use sublet_agent::{
    AgentOptions, ClientUsers, DeviceOptions, DeviceSource, FlashOptions, FolderOptions, FolderUse,
    MAX_UNAUTHENTICATED, NetworkOptions, Python, SharedCores, UnauthenticatedLimits, WarmInterpreters,
};
use sublet_proto::cdi::{check_cdi_kind, check_node_place};
use sublet_proto::needs::{check_device_kind, check_folder_name};
use sublet_proto::network::{Fabric, host_and_port};
use sublet_proto::pool::Pool;
use sublet_proto::pu::{MAX_NODE_NAME_BYTES, PROCESSOR, check_neighbours, is_node_name, is_processor_kind};
use sublet_proto::{Error, package, to_usize};
use sublet_runtime::Access;

use super::{ConfiguredProgram, EffectiveSettings, Schema};
use crate::cli::daemon::{find_spawner, find_worker};
use crate::cli::files::warn_of_open_secret;
use crate::cli::parse::{
    absolute, duration, image_digest, isolation, node_modules, pool, size, switch, whole, whole_u32,
};

pub(crate) use keys::SCHEMA;

/// The program `sublet agent`.
pub(crate) struct AgentProgram;

impl ConfiguredProgram for AgentProgram {
    const SCHEMA: &'static Schema = &SCHEMA;
}

/// Default number of workers per shared core.
pub(crate) const PLACES_OF_A_SHARED_CORE: u32 = 4;
/// Folders in which vendors' tools put specifications of devices.
const CDI_FOLDERS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// Maximum number of cores, more than any node has.
const MAX_CORES: u32 = 1 << 16;

/// Converts the settings to the agent's options.
pub(crate) fn options(settings: &EffectiveSettings) -> Result<AgentOptions, Error> {
    let state = settings.needed("state", absolute)?;
    let flash = flash(settings)?;
    let (pu, pool) = unit_and_pool(settings, flash.is_some())?;
    Ok(AgentOptions {
        socket: socket(settings)?,
        access: access(settings)?,
        name: settings.needed("name", node_name)?,
        cores: settings.value("cores", cores)?,
        memory_bytes: settings.value("memory", size)?,
        numa_nodes: settings.list("numa_nodes", numa_node)?,
        shared: shared(settings)?,
        flash,
        worker: match settings.value("worker", absolute)? {
            Some(worker) => worker,
            None => find_worker()?,
        },
        spawner: find_spawner()?,
        lend_network: settings.needed("lend_network", switch)?,
        folders: folders(settings)?,
        lent_devices: lent_devices(settings)?,
        cdi_folders: cdi_folders(settings)?,
        temporary_bytes: settings.value("temporary", size)?,
        container_runtime: settings.value("container_runtime", |text| Ok(PathBuf::from(text)))?,
        isolation: settings.list("isolation", isolation)?,
        warm: WarmInterpreters {
            python: settings.value("python", |text| Ok(python(text)))?.unwrap_or_default(),
            python_path: settings.list("python_path", absolute)?,
            node: settings.value("node", |text| Ok(PathBuf::from(text)))?,
            node_modules: settings.value("node_modules", node_modules)?,
            standby_bytes: settings.value("standby", size)?.unwrap_or(0),
        },
        cache_bytes: settings.value("cache", size)?,
        registries: settings.list("registries", |text| Ok(text.to_owned()))?,
        image_templates: settings.list("image_templates", image_digest)?,
        pu,
        neighbours: neighbours(settings)?,
        devices: wanted(settings.list("devices", device)?),
        idle_timeout: settings.value("idle_timeout", duration)?,
        pool,
        rack: settings.value("rack", |text| Ok(text.to_owned()))?.unwrap_or_default(),
        clients: settings.needed("clients", clients)?,
        connections: connections(settings)?,
        network: network(settings)?,
        state,
    })
}

/// Checks the settings like [`options`], except for files that only the node's machine has: token and certificates.
pub(crate) fn check(settings: &EffectiveSettings) -> Result<(), Error> {
    socket(settings)?;
    settings.needed("managers", |text| Access::parse(text).map_err(|error| error.message))?;
    settings.stronger("token_file", "token")?;
    settings.value("cores", cores)?;
    settings.value("memory", size)?;
    settings.list("numa_nodes", numa_node)?;
    settings.value("cache", size)?;
    settings.value("temporary", size)?;
    settings.value("standby", size)?;
    folders(settings)?;
    lent_devices(settings)?;
    cdi_folders(settings)?;
    shared(settings)?;
    settings.value("idle_timeout", duration)?;
    network(settings)?;
    settings.needed("lend_network", switch)?;
    unit_and_pool(settings, flash(settings)?.is_some())?;
    neighbours(settings)?;
    settings.list("devices", device)?;
    settings.list("image_templates", image_digest)?;
    connections(settings)?;
    settings.needed("clients", clients).map(drop)
}

/// The kind of processing units by which nodes of flash have their price, unless they name another.
const FLASH_PU: &str = "flash";

/// The part of a disk that the agent lends, if it lends one.
fn flash(settings: &EffectiveSettings) -> Result<Option<FlashOptions>, Error> {
    let folder = settings.value("flash.folder", absolute)?;
    let bytes = settings.value("flash.bytes", size)?;
    match (folder, bytes) {
        (None, None) => Ok(None),
        (Some(folder), Some(bytes)) => {
            if settings.value("listen", listen)?.flatten().is_none() {
                let why = "a node of flash is reached over the network: set an address to listen on (listen)";
                return Err(settings.invalid("flash.folder", why));
            }
            for key in ["cores", "memory", "standby"] {
                if settings.value(key, |text| Ok(text.to_owned()))?.is_some_and(|text| text != "0") {
                    let why =
                        "an agent lends flash in place of cores and memory: lend those with another agent";
                    return Err(settings.invalid(key, why));
                }
            }
            if shared(settings)?.is_some() {
                let why = "an agent lends flash in place of cores and memory: lend those with another agent";
                return Err(settings.invalid("shared_cores", why));
            }
            Ok(Some(FlashOptions { folder, bytes }))
        }
        (Some(_), None) => {
            Err(settings.invalid("flash.folder", "it requires the bytes to lend (flash.bytes)"))
        }
        (None, Some(_)) => Err(settings.invalid("flash.bytes", "it requires a folder (flash.folder)")),
    }
}

/// Kind of processing unit and pool of the node, which is in the flash pool if it lends a part of a disk, and only then.
fn unit_and_pool(settings: &EffectiveSettings, lends_flash: bool) -> Result<(String, Option<Pool>), Error> {
    let pu = settings.needed("pu", processor_kind)?;
    let pool = settings.value("pool", pool)?;
    match (lends_flash, pool) {
        (true, None | Some(Pool::Flash)) => {
            let pu = if pu == PROCESSOR { FLASH_PU.to_owned() } else { pu };
            Ok((pu, Some(Pool::Flash)))
        }
        (true, Some(_)) => Err(settings.invalid("pool", "a node that lends flash is in the flash pool")),
        (false, Some(Pool::Flash)) => {
            Err(settings
                .invalid("pool", "the flash pool takes a part of a disk (flash.folder and flash.bytes)"))
        }
        (false, pool) => Ok((pu, pool)),
    }
}

/// The folders that functions can use.
fn folders(settings: &EffectiveSettings) -> Result<Vec<FolderOptions>, Error> {
    let folder = |name: &str| {
        let key = |what: &str| format!("folder.{name}.{what}");
        if let Err(error) = check_folder_name(name) {
            return Err(settings.invalid(&key("path"), &error.message));
        }
        Ok(FolderOptions {
            name: name.to_owned(),
            path: settings.needed(&key("path"), absolute)?,
            r#use: settings.value(&key("access"), folder_use)?.unwrap_or(FolderUse::ReadOnly),
        })
    };
    settings.names_under("folder.").into_iter().map(folder).collect()
}

/// The devices that programs can use, each one lease's at a time.
fn lent_devices(settings: &EffectiveSettings) -> Result<Vec<DeviceOptions>, Error> {
    let device = |kind: &str| {
        let key = |what: &str| format!("device.{kind}.{what}");
        let (cdi, nodes) =
            (settings.value(&key("cdi"), cdi_kind)?, settings.list(&key("nodes"), device_nodes)?);
        if let Err(error) = check_device_kind(kind) {
            return Err(settings.invalid(&key("cdi"), &error.message));
        }
        let source = match (cdi, nodes.is_empty()) {
            (Some(cdi), true) => DeviceSource::Cdi(cdi),
            (None, false) => DeviceSource::Nodes(nodes),
            (Some(_), false) => {
                return Err(
                    settings.invalid(&key("nodes"), "the devices are named by a specification (cdi) already")
                );
            }
            (None, true) => {
                let why = "the devices need a specification (cdi) or device nodes (nodes)";
                return Err(settings.invalid(&key("nodes"), why));
            }
        };
        Ok(DeviceOptions { kind: kind.to_owned(), source })
    };
    settings.names_under("device.").into_iter().map(device).collect()
}

/// The folders with specifications of devices.
fn cdi_folders(settings: &EffectiveSettings) -> Result<Vec<PathBuf>, Error> {
    let named = settings.list("cdi_folders", absolute)?;
    let default = || CDI_FOLDERS.map(PathBuf::from).to_vec();
    Ok(if named.is_empty() { default() } else { named })
}

fn cdi_kind(text: &str) -> Result<String, String> {
    check_cdi_kind(text).map(|()| text.to_owned()).map_err(|error| error.message)
}

/// Parses the nodes of a device: paths with `+` between them.
fn device_nodes(text: &str) -> Result<Vec<PathBuf>, String> {
    let node = |path: &str| {
        let path = PathBuf::from(path);
        check_node_place(&path).map(|()| path).map_err(|error| error.message)
    };
    text.split('+').map(node).collect()
}

fn folder_use(text: &str) -> Result<FolderUse, String> {
    match text {
        "read-only" => Ok(FolderUse::ReadOnly),
        "scratch" => Ok(FolderUse::Scratch),
        _ => Err(format!("{text:?} is not valid: use read-only or scratch")),
    }
}

/// Parses a lent folder: `NAME=PATH`.
pub(crate) fn lent_folder(text: &str) -> Result<(String, PathBuf), String> {
    let wrong = || format!("{text:?} is not a folder with its name: write it as datasets=/srv/datasets");
    let (name, path) = text.split_once('=').ok_or_else(wrong)?;
    check_folder_name(name).map_err(|error| error.message)?;
    Ok((name.to_owned(), absolute(path)?))
}

fn connections(settings: &EffectiveSettings) -> Result<UnauthenticatedLimits, Error> {
    let number = |text: &str| whole(text, 1..=MAX_UNAUTHENTICATED as u64).map(to_usize);
    let unauthenticated = settings.value("connections.unauthenticated", number)?;
    let per_party = settings.value("connections.per_party", number)?;
    let most = unauthenticated.unwrap_or(MAX_UNAUTHENTICATED);
    if per_party.is_some_and(|per_party| per_party > most) {
        let why = format!("must be at most {most} (connections.unauthenticated)");
        return Err(settings.invalid("connections.per_party", &why));
    }
    Ok(UnauthenticatedLimits { unauthenticated, per_party })
}

/// Network settings for clients on other machines, if the agent listens for them.
fn network(settings: &EffectiveSettings) -> Result<Option<NetworkOptions>, Error> {
    let listen = settings.value("listen", listen)?.flatten();
    let advertise = settings.value("advertise", advertise)?;
    let fabrics = settings.list("fabrics", fabric)?;
    let encrypt = settings.needed("encrypt", switch)?;
    Ok(listen.map(|listen| NetworkOptions { listen, advertise, fabrics, encrypt }))
}

/// Path of the running agent's Unix socket.
pub(crate) fn socket(settings: &EffectiveSettings) -> Result<PathBuf, Error> {
    match settings.value("socket", absolute)? {
        Some(socket) => Ok(socket),
        None => Ok(settings.needed("state", absolute)?.join("agent.sock")),
    }
}

fn access(settings: &EffectiveSettings) -> Result<Access, Error> {
    let mut access =
        settings.needed("managers", |text| Access::parse(text).map_err(|error| error.message))?;
    let named = |name: &str, error: Error| settings.invalid(name, &error.message);
    if let Some(path) = settings.value("ca", absolute)? {
        access = access.with_ca_file(&path).map_err(|error| named("ca", error))?;
    }
    match settings.stronger("token_file", "token")? {
        "token" => {
            let token = settings.needed("token", |text| Ok(text.to_owned()))?;
            access.with_token(token).map_err(|error| named("token", error))
        }
        _ => match settings.value("token_file", absolute)? {
            Some(path) => {
                warn_of_open_secret(&path);
                access.with_token_file(&path).map_err(|error| named("token_file", error))
            }
            None => Ok(access),
        },
    }
}

/// Parses the number of a NUMA node; the kernel has at most 1024.
fn numa_node(text: &str) -> Result<u32, String> {
    whole_u32(text, 0..=1023)
}

fn cores(text: &str) -> Result<u32, String> {
    whole_u32(text, 0..=MAX_CORES)
}

fn shared(settings: &EffectiveSettings) -> Result<Option<SharedCores>, Error> {
    let cores = settings.needed("shared_cores", cores)?;
    let places = settings.value("shared_places", self::cores)?;
    match (cores, places) {
        (0, None) => Ok(None),
        (0, Some(_)) => Err(settings.invalid("shared_places", "it requires shared cores (shared_cores)")),
        (cores, Some(places)) if places < cores => {
            let why = format!("{places} is less than the number of shared cores ({cores})");
            Err(settings.invalid("shared_places", &why))
        }
        (cores, places) => {
            let places = places.unwrap_or_else(|| cores.saturating_mul(PLACES_OF_A_SHARED_CORE));
            debug_assert!(places >= cores, "{places} places on {cores} shared cores");
            Ok(Some(SharedCores { cores, places }))
        }
    }
}

/// Parses an address to listen on; `None` if the text is empty.
fn listen(text: &str) -> Result<Option<SocketAddr>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let refused =
        |_| format!("{text:?} is not an address with a port: write it as 0.0.0.0:7441 or [::]:7441");
    text.parse().map(Some).map_err(refused)
}

fn advertise(text: &str) -> Result<String, String> {
    match host_and_port(text) {
        Ok((_, 0)) => Err(format!("{text:?} has no valid port: it must be from 1 to 65535")),
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error.message),
    }
}

fn fabric(text: &str) -> Result<Fabric, String> {
    text.parse().map_err(|error: Error| error.message)
}

/// Parses the name of a node. The host name may be invalid, as `(none)` for a machine without a name.
fn node_name(text: &str) -> Result<String, String> {
    if is_node_name(text) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{text:.80?} is not a valid name of a node: use 1 to {MAX_NODE_NAME_BYTES} letters, digits or .:_-@ (set it with --name)"
    ))
}

/// Parses the Python interpreter; `none` means that the node executes no functions in Python.
pub(crate) fn python(text: &str) -> Python {
    if text == "none" { Python::None } else { Python::Named(PathBuf::from(text)) }
}

/// Parses a kind of processor.
fn processor_kind(text: &str) -> Result<String, String> {
    if is_processor_kind(text) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{text:.40?} is not a kind of processor: use cpu, dpu, or another name of lower-case letters, digits and -"
    ))
}

/// Parses the neighbours of the node with the configured name.
fn neighbours(settings: &EffectiveSettings) -> Result<Vec<String>, Error> {
    let name = settings.needed("name", node_name)?;
    let named = settings.list("neighbours", |text| Ok(text.to_owned()))?;
    match check_neighbours(&name, &named) {
        Ok(()) => Ok(named),
        Err(error) => Err(settings.invalid("neighbours", &error.message)),
    }
}

/// Kind of device, by the name of its kind of packages, or `none`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceSetting(Option<package::PackageKind>);

/// Parses a kind of device.
pub(crate) fn device(text: &str) -> Result<DeviceSetting, String> {
    if text == "none" {
        return Ok(DeviceSetting(None));
    }
    let kind = package::PackageKind::parse(text).ok().filter(|kind| kind.is_of_kernels());
    kind.map(|kind| DeviceSetting(Some(kind)))
        .ok_or_else(|| format!("{text:?} is not a kind of device: use opencl, cuda or none"))
}

/// Converts the named kinds of devices to the agent's option, if any were named.
pub(crate) fn wanted(devices: Vec<DeviceSetting>) -> Option<Vec<package::PackageKind>> {
    let kinds = devices.iter().filter_map(|device| device.0).collect();
    (!devices.is_empty()).then_some(kinds)
}

fn clients(text: &str) -> Result<ClientUsers, String> {
    match text {
        "own-user" => Ok(ClientUsers::OwnUser),
        "all-users" => Ok(ClientUsers::AllUsers),
        _ => Err(format!("{text:?} is not valid: use own-user or all-users")),
    }
}
