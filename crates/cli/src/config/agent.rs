//! Configuration of `sublet agent`.

use std::net::SocketAddr;
use std::path::PathBuf;

use sublet_agent::{
    AgentOptions, ClientUsers, FolderOptions, FolderUse, MAX_UNAUTHENTICATED, NetworkOptions, Python,
    SharedCores, UnauthenticatedLimits, WarmInterpreters,
};
use sublet_proto::needs::check_folder_name;
use sublet_proto::network::{Fabric, host_and_port};
use sublet_proto::pu::{MAX_NODE_NAME_BYTES, PROCESSOR, check_neighbours, is_node_name, is_processor_kind};
use sublet_proto::{Error, package};
use sublet_runtime::Access;
use sublet_runtime::access::{default_address, default_state};

use super::{ConfigKey, ConfiguredProgram, EffectiveSettings, Otherwise, Schema, ValueKind, Visibility};
use crate::cli::daemon::{find_spawner, find_worker, host_name};
use crate::cli::files::warn_of_open_secret;
use crate::cli::parse::{absolute, duration, isolation, node_modules, pool, size, switch, whole};

/// The program `sublet agent`.
pub(crate) struct AgentProgram;

impl ConfiguredProgram for AgentProgram {
    const SCHEMA: &'static Schema = &SCHEMA;
}

/// Default address that an agent listens on: all interfaces.
const DEFAULT_LISTEN: &str = "0.0.0.0:7441";

/// Keys of the agent.
pub(crate) const SCHEMA: Schema = Schema {
    file: "/etc/sublet/agent.toml",
    keys: &[
        ConfigKey {
            name: "name",
            kind: ValueKind::Text,
            environment: "SUBLET_NAME",
            flag: "name",
            value: "NAME",
            help: "Unique name of this node",
            otherwise: Otherwise::Found(host_name),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "state",
            kind: ValueKind::Text,
            environment: "SUBLET_STATE",
            flag: "state",
            value: "FOLDER",
            help: "State folder, with unpacked packages and the usage of leases",
            otherwise: Otherwise::Found(state),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "socket",
            kind: ValueKind::Text,
            environment: "",
            flag: "socket",
            value: "PATH",
            help: "Unix socket for clients on this machine",
            otherwise: Otherwise::Means("agent.sock in the state folder"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "listen",
            kind: ValueKind::Text,
            environment: "SUBLET_AGENT_LISTEN",
            flag: "listen",
            value: "ADDRESS:PORT",
            help: "Address to listen on for clients on other machines; empty: do not listen",
            otherwise: Otherwise::Is(DEFAULT_LISTEN),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "advertise",
            kind: ValueKind::Text,
            environment: "SUBLET_AGENT_ADVERTISE",
            flag: "advertise",
            value: "HOST:PORT",
            help: "Address of this agent for clients on other machines",
            otherwise: Otherwise::Means(
                "the address from which it connects to its managers, and its listening port",
            ),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "fabrics",
            kind: ValueKind::List,
            environment: "SUBLET_AGENT_FABRICS",
            flag: "fabrics",
            value: "FABRIC",
            help: "Fabrics for calls from other machines, best first: tcp, ofi:PROVIDER",
            otherwise: Otherwise::Means("the RDMA networks of this machine, then tcp"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "encrypt",
            kind: ValueKind::Switch,
            environment: "SUBLET_AGENT_ENCRYPT",
            flag: "encrypt",
            value: "BOOL",
            help: "Whether calls over TCP must be encrypted: true or false",
            otherwise: Otherwise::Is("false"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "managers",
            kind: ValueKind::List,
            environment: "SUBLET_MANAGER",
            flag: "manager",
            value: "ADDRESS",
            help: "Managers that share one store, as https://HOST:PORT or unix:/path",
            otherwise: Otherwise::Found(default_address),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "ca",
            kind: ValueKind::Text,
            environment: "SUBLET_CA",
            flag: "ca",
            value: "FILE",
            help: "PEM file of the certificate authority that issued the managers' certificates",
            otherwise: Otherwise::Means("none; required for https"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "token_file",
            kind: ValueKind::Text,
            environment: "SUBLET_TOKEN_FILE",
            flag: "token-file",
            value: "FILE",
            help: "File with the access token, with the role agent for this node",
            otherwise: Otherwise::Means("none; required for https"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "token",
            kind: ValueKind::Text,
            environment: "SUBLET_TOKEN",
            flag: "",
            value: "SECRET",
            help: "Access token, instead of token_file",
            otherwise: Otherwise::Means("the contents of token_file"),
            shown: Visibility::Never,
        },
        ConfigKey {
            name: "cores",
            kind: ValueKind::Whole,
            environment: "SUBLET_CORES",
            flag: "cores",
            value: "N",
            help: "Cores to lend exclusively, each to one lease",
            otherwise: Otherwise::Means("all cores that are not shared"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "memory",
            kind: ValueKind::Size,
            environment: "SUBLET_MEMORY",
            flag: "memory",
            value: "SIZE",
            help: "Memory to lend, as 4GiB",
            otherwise: Otherwise::Means("three quarters of the usable memory"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "shared_cores",
            kind: ValueKind::Whole,
            environment: "SUBLET_SHARED_CORES",
            flag: "shared-cores",
            value: "N",
            help: "Cores to share among several leases, in addition to the exclusive ones",
            otherwise: Otherwise::Is("0"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "shared_places",
            kind: ValueKind::Whole,
            environment: "SUBLET_SHARED_PLACES",
            flag: "shared-places",
            value: "N",
            help: "Number of workers on all shared cores together",
            otherwise: Otherwise::Means("4 for each shared core"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "idle_timeout",
            kind: ValueKind::Text,
            environment: "SUBLET_IDLE_TIMEOUT",
            flag: "idle-timeout",
            value: "TIME",
            help: "Time without a call after which a lease ends, unless its client requests another one",
            otherwise: Otherwise::Means("leases may be idle until they expire"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "pool",
            kind: ValueKind::Text,
            environment: "SUBLET_POOL",
            flag: "pool",
            value: "POOL",
            help: "Pool of this node: compute, memory or balanced",
            otherwise: Otherwise::Means("balanced, or by its manager's pools.balanced"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "rack",
            kind: ValueKind::Text,
            environment: "SUBLET_RACK",
            flag: "rack",
            value: "NAME",
            help: "Rack of this node: communicating components are placed in one rack",
            otherwise: Otherwise::Means("none: no other node counts as close"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "clients",
            kind: ValueKind::Text,
            environment: "SUBLET_CLIENTS",
            flag: "clients",
            value: "WHOSE",
            help: "Users whose processes may present tickets: own-user or all-users",
            otherwise: Otherwise::Is("own-user"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "connections.unauthenticated",
            kind: ValueKind::Whole,
            environment: "SUBLET_CONNECTIONS_UNAUTHENTICATED",
            flag: "connections-unauthenticated",
            value: "N",
            help: "Maximum connections without a ticket so far; beyond it, a new one replaces the oldest",
            otherwise: Otherwise::Means("256, or what the limit of open files (ulimit -n) allows"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "connections.per_party",
            kind: ValueKind::Whole,
            environment: "SUBLET_CONNECTIONS_PER_PARTY",
            flag: "connections-per-party",
            value: "N",
            help: "Maximum of such connections per user of this machine, or per address (IPv6: per /64 network)",
            otherwise: Otherwise::Means("a quarter of connections.unauthenticated"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "lend_network",
            kind: ValueKind::Switch,
            environment: "SUBLET_LEND_NETWORK",
            flag: "lend-network",
            value: "BOOL",
            help: "Whether functions may use this machine's network if their package asks for it: true or false",
            otherwise: Otherwise::Is("false"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "temporary",
            kind: ValueKind::Size,
            environment: "SUBLET_TEMPORARY",
            flag: "temporary",
            value: "SIZE",
            help: "Maximum size of a worker's temporary files in /tmp, which are part of its lease's memory, as 1GiB",
            otherwise: Otherwise::Means("the memory of the lease"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "folder.*.path",
            kind: ValueKind::Text,
            environment: "",
            flag: "",
            value: "FOLDER",
            help: "Folder to lend to functions, which see it as /folders and its name",
            otherwise: Otherwise::Means("no folder is lent"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "folder.*.access",
            kind: ValueKind::Text,
            environment: "",
            flag: "",
            value: "ACCESS",
            help: "Access of functions to the folder: read-only, or scratch, where each tenant writes to a part of its own",
            otherwise: Otherwise::Means("read-only"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "container_runtime",
            kind: ValueKind::Text,
            environment: "SUBLET_CONTAINER_RUNTIME",
            flag: "container-runtime",
            value: "PROGRAM",
            help: "OCI runtime, by name or path, that creates the containers of packages with an image: crun, runc",
            otherwise: Otherwise::Means("the agent creates them itself"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "isolation",
            kind: ValueKind::List,
            environment: "SUBLET_ISOLATION",
            flag: "isolation",
            value: "NAME",
            help: "Isolations that functions may have here: process, container, crun, runc, apptainer; or weak alone, \
                   with less protection, where no namespaces can be made",
            otherwise: Otherwise::Means("process, container, and that of container_runtime"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "python",
            kind: ValueKind::Text,
            environment: "SUBLET_PYTHON",
            flag: "python",
            value: "PROGRAM",
            help: "Python interpreter for functions, by name or path, as python3 or that of a virtual environment; it is kept warm for sandboxes",
            otherwise: Otherwise::Means("none"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "python_path",
            kind: ValueKind::List,
            environment: "SUBLET_PYTHON_PATH",
            flag: "python-path",
            value: "FOLDER",
            help: "Folders in which that Python looks for modules, in place of its own search path; functions of all tenants can read them",
            otherwise: Otherwise::Means("the interpreter's own"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "node",
            kind: ValueKind::Text,
            environment: "SUBLET_NODE",
            flag: "node",
            value: "PROGRAM",
            help: "Node.js for functions in JavaScript, by name or path; it is kept warm for sandboxes",
            otherwise: Otherwise::Means("none"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "node_modules",
            kind: ValueKind::Text,
            environment: "SUBLET_NODE_MODULES",
            flag: "node-modules",
            value: "FOLDER",
            help: "Folder called node_modules with the modules that programs of that Node.js can load",
            otherwise: Otherwise::Means("none"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "cache",
            kind: ValueKind::Size,
            environment: "SUBLET_CACHE",
            flag: "cache",
            value: "SIZE",
            help: "Maximum disk space for packages and images, as 20GiB; each 16 KiB allow one file",
            otherwise: Otherwise::Means("a quarter of the state folder's file system"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "registries",
            kind: ValueKind::List,
            environment: "SUBLET_REGISTRIES",
            flag: "registries",
            value: "REGISTRY",
            help: "Registries from which images may be pulled, as docker.io or localhost:5000",
            otherwise: Otherwise::Means("all except those on this machine"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "pu",
            kind: ValueKind::Text,
            environment: "SUBLET_PU",
            flag: "pu",
            value: "KIND",
            help: "Kind of this node's processor, for leases and prices: cpu, dpu or another lower-case name",
            otherwise: Otherwise::Is(PROCESSOR),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "neighbours",
            kind: ValueKind::List,
            environment: "SUBLET_NEIGHBOURS",
            flag: "neighbour",
            value: "NODE",
            help: "Neighbouring nodes, which must name this node in turn: the DPUs or virtual machines of a host, and their host",
            otherwise: Otherwise::Means("none"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "devices",
            kind: ValueKind::List,
            environment: "SUBLET_DEVICES",
            flag: "devices",
            value: "KIND",
            help: "Kinds of devices that execute kernels on this node: opencl, cuda, or none",
            otherwise: Otherwise::Means("opencl, if a driver for it is installed"),
            shown: Visibility::Openly,
        },
        ConfigKey {
            name: "worker",
            kind: ValueKind::Text,
            environment: "SUBLET_WORKER",
            flag: "worker",
            value: "FILE",
            help: "Path of the worker program",
            otherwise: Otherwise::Means("sublet-worker beside this program, or in ../libexec/sublet"),
            shown: Visibility::Openly,
        },
        super::LOG,
    ],
};

/// Default number of workers per shared core.
pub(crate) const PLACES_OF_A_SHARED_CORE: u32 = 4;
/// Maximum number of cores, more than any node has.
const MAX_CORES: u64 = 1 << 16;

/// Converts the settings to the agent's options.
pub(crate) fn options(settings: &EffectiveSettings) -> Result<AgentOptions, Error> {
    let state = settings.needed("state", absolute)?;
    Ok(AgentOptions {
        socket: socket(settings)?,
        access: access(settings)?,
        name: settings.needed("name", node_name)?,
        cores: settings.value("cores", cores)?,
        memory_bytes: settings.value("memory", size)?,
        shared: shared(settings)?,
        worker: match settings.value("worker", absolute)? {
            Some(worker) => worker,
            None => find_worker()?,
        },
        spawner: find_spawner()?,
        lend_network: settings.needed("lend_network", switch)?,
        folders: folders(settings)?,
        temporary_bytes: settings.value("temporary", size)?,
        container_runtime: settings.value("container_runtime", |text| Ok(PathBuf::from(text)))?,
        isolation: settings.list("isolation", isolation)?,
        warm: WarmInterpreters {
            python: settings.value("python", |text| Ok(python(text)))?.unwrap_or_default(),
            python_path: settings.list("python_path", absolute)?,
            node: settings.value("node", |text| Ok(PathBuf::from(text)))?,
            node_modules: settings.value("node_modules", node_modules)?,
        },
        cache_bytes: settings.value("cache", size)?,
        registries: settings.list("registries", |text| Ok(text.to_owned()))?,
        pu: settings.needed("pu", processor_kind)?,
        neighbours: neighbours(settings)?,
        devices: wanted(settings.list("devices", device)?),
        idle_timeout: settings.value("idle_timeout", duration)?,
        pool: settings.value("pool", pool)?,
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
    settings.value("cache", size)?;
    settings.value("temporary", size)?;
    folders(settings)?;
    shared(settings)?;
    settings.value("idle_timeout", duration)?;
    settings.value("pool", pool)?;
    network(settings)?;
    settings.needed("lend_network", switch)?;
    settings.needed("pu", processor_kind)?;
    neighbours(settings)?;
    settings.list("devices", device)?;
    connections(settings)?;
    settings.needed("clients", clients).map(drop)
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
    let number = |text: &str| whole(text, 1..=MAX_UNAUTHENTICATED as u64).map(|number| number as usize);
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

fn state() -> String {
    default_state().display().to_string()
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

fn cores(text: &str) -> Result<u32, String> {
    whole(text, 0..=MAX_CORES).map(|cores| cores as u32)
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
